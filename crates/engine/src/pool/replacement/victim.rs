//! Pages during their eviction.

use crate::ids::PageId;
use crate::pool::latch::Word;
use crate::pool::page_table::Entry;

pub(in crate::pool) struct Leaving<'p> {
    pub(in crate::pool) id: PageId,
    pub(in crate::pool) entry: Entry<'p>,
    pub(in crate::pool) frame: u32,
    pub(in crate::pool) to: To,
}

/// A partial page, as seen, whose middle frame is wanted.
pub(in crate::pool) struct Wanted<'p> {
    pub(in crate::pool) id: PageId,
    pub(in crate::pool) entry: Entry<'p>,
    pub(in crate::pool) seen: Word,
    /// Its DRAM frame or mini page.
    pub(in crate::pool) above: u32,
    pub(in crate::pool) frame: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pool) enum To {
    /// Out of memory: the store has the current image.
    Dropped,
    Middle,
    Stays,
    /// Has left its frame and is unlatched.
    Gone,
}

pub(in crate::pool) enum Evicted {
    Yes(To),
    Dirty,
    /// The frame is empty, or its page latched.
    No,
}

pub(in crate::pool) enum Look<'p> {
    /// The frame becomes free when its page has left.
    Evicted(Leaving<'p>),
    /// The frame is free: it held a page's middle copy.
    Dropped,
    /// The page was accessed or is dirty; its frame was requeued.
    Moved,
    /// The page is to be demoted to its middle frame, which was requeued.
    Wanted(Wanted<'p>),
    /// The partial page above was accessed; its middle frame was requeued.
    Spared,
    Passed,
}
