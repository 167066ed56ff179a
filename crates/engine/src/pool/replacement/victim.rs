//! Pages during their eviction.

use crate::ids::PageId;
use crate::pool::page_table::Entry;

pub(in crate::pool) struct Leaving<'p> {
    pub(in crate::pool) id: PageId,
    pub(in crate::pool) entry: Entry<'p>,
    pub(in crate::pool) frame: u32,
    pub(in crate::pool) to: To,
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
    /// The page was partial in this DRAM frame, which is empty now. Its middle frame was requeued.
    Demoted(u32),
    /// Mini pages left a frame, which was requeued, and has free slots for others.
    Minis {
        left: usize,
        free: usize,
    },
    Passed,
}
