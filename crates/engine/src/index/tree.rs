//! The tree: from a root page to the leaf a key belongs to, over pages that others change meanwhile.
//!
//! Descents hold nothing (*optimistic lock coupling*, Leis et al., "The ART of practical synchronization"). At
//! every step
//! 1. read the parent and find the child,
//! 2. validate the parent: the child's id was not garbage,
//! 3. ask the pool for the child, which notes its version and may fault it in,
//! 4. validate the parent again: the child was still the one for the key when its version was noted.
//!
//! So whatever is read from a leaf counts once the leaf validates. Whoever finds that something moved starts again
//! at the root. A page that does not exist, or is not what its parent says, is damage only if the pointer to it still stands:
//! if the parent has not changed since, no other thread's work explains it, and starting again would not end.
//!
//! Writers descend the same way, prepare everything they can without a latch, and then turn the versions they saw
//! into latches; that neither waits nor does I/O, and fails if anything moved. Hence no latch is ever held while
//! waiting for a frame, a page or log space, and no order of latches is needed.
//!
//! The root's page id never changes: a root that is split moves its content to two new pages, and a root with a
//! single child takes its content in.

use std::cell::Cell;
use std::time::{Duration, Instant};

use super::edit::damaged_page;
use super::leaf;
use super::node::{INNER, LEAF, LEVEL, Node};
use super::op::NodeOp;
use crate::buffer::backoff::Backoff;
use crate::buffer::migration::Access;
use crate::buffer::operation;
use crate::buffer::view::View;
use crate::buffer::{Grant, NewPage, Pool, ReadGuard, Redo, Stop};
use crate::error::{Error, Result};
use crate::ids::{Lsn, PageId, SizeClass, Timestamp};
use crate::store::image::COMPRESS;
use crate::threads::KEPT_BYTES_MAX;
use crate::wal::{RecordBuilder, Reservation};

/// How long a thread starts again before it gives up.
const RESTARTS_TIME: Duration = Duration::from_secs(10);
/// And how often before that time begins. Attempts that wait for frames, log space or the disk take long, and so does a
/// stopped process; only attempts that fail at once reach this number within seconds.
const RESTARTS_LEAST: u32 = 10_000;

/// A tree, by the page its root is and stays. All methods take the pool its pages are in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tree {
    /// The root's page.
    pub(crate) root: PageId,
}

/// Where a descent ends: a node's parent, and the node.
pub(super) type Descent<'p> = (Option<ReadGuard<'p>>, ReadGuard<'p>);

/// Which leaf to go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seek<'a> {
    /// The leaf of the lowest keys.
    First,
    /// The leaf of the highest keys.
    Last,
    /// The leaf this key belongs to.
    At(&'a [u8]),
    /// The leaf that the keys just below this one belong to: its upper fence is at or above the key, its lower
    /// fence below it. The leaf of the lowest keys for the empty key, which has none below it.
    Before(&'a [u8]),
}

/// A change of one leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change<'a> {
    /// Write a record, new or not.
    Put {
        /// Its key.
        key: &'a [u8],
        /// The commit that writes it.
        timestamp: Timestamp,
        /// [`OVERFLOW`](super::node::OVERFLOW) or nothing.
        flags: u8,
        /// The value, or the encoded [`Reference`](super::overflow::Reference) to it.
        value: &'a [u8],
    },
    /// Remove a record. If there is none the record is logged without a change of a leaf.
    Remove {
        /// Its key.
        key: &'a [u8],
    },
}

/// On whose behalf a change is made, and what else happens in the same log record.
#[derive(Default)]
pub(crate) struct Write<'w, 'p> {
    /// The transaction, none for the system.
    pub(crate) transaction: Timestamp,
    /// Its record before this one.
    pub(crate) previous: Lsn,
    /// What recovery needs to undo the change; empty if it is not to be undone.
    pub(crate) undo: &'w [u8],
    /// Whether the record also commits its transaction.
    pub(crate) commit: bool,
    /// The change undoes another; what to undo next.
    pub(crate) compensation: Option<Lsn>,
    /// Log space for the record; see [`log_bytes`]. Without it, or if it is too small, space is waited for.
    pub(crate) reservation: Option<&'w mut Reservation<'p>>,
    /// Room for the pages that splits make.
    pub(crate) grant: Option<&'w mut Grant<'p>>,
    /// Pages that come into being in the same record, with their content, the page id included.
    pub(crate) create: Vec<(NewPage<'p>, Vec<u8>)>,
    /// Pages that cease to exist in the same record.
    pub(crate) free: Vec<PageId>,
    /// Where to note that [`Tree::tidy`] may find something to do; none = it is done at once.
    pub(crate) underfull: Option<&'w mut bool>,
}

impl<'a> Change<'a> {
    /// The key.
    pub(crate) fn key(&self) -> &'a [u8] {
        match *self {
            Change::Put { key, .. } | Change::Remove { key } => key,
        }
    }

    pub(super) fn op(&self) -> NodeOp<'a> {
        match *self {
            Change::Put { key, timestamp, flags, value } => NodeOp::LeafPut { key, timestamp, flags, value },
            Change::Remove { key } => NodeOp::LeafRemove { key },
        }
    }
}

/// Bytes of log that the record of a change takes, without pages it creates or frees.
pub(crate) fn log_bytes(change: &Change<'_>, undo_bytes: usize) -> u64 {
    // Record header, lengths of undo and changes, one change's header, and what padding adds.
    const FIXED: usize = crate::wal::HEADER_BYTES + 16 + 16 + 24;
    (FIXED + undo_bytes + change.op().encoded_bytes()) as u64
}

/// Replays the changes of nodes for recovery.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeRedo;

impl Redo for NodeRedo {
    fn redo(&self, kind: u8, payload: &[u8], page: &mut [u8]) -> Result<()> {
        super::op::redo(kind, payload, page)
    }
}

impl Tree {
    /// The class of all its pages.
    pub(crate) fn class(&self) -> SizeClass {
        self.root.class().unwrap_or(SizeClass::SMALLEST)
    }

    /// Bytes of its pages.
    #[inline]
    pub(crate) fn page_bytes(&self) -> usize {
        self.root.page_bytes()
    }

    /// The content of a new tree's root, an empty leaf, for the page that is to be it. All pages of the tree will be
    /// compressed as it is.
    pub(crate) fn init_root(id: PageId, compress: bool) -> Vec<u8> {
        let mut page = vec![0; id.page_bytes()];
        leaf::init(&mut page, id, &[], None);
        page[LEVEL] = if compress { COMPRESS } else { 0 };
        page
    }

    /// The leaf to go to. It counts once the guard validates.
    #[inline]
    pub(super) fn leaf<'p>(&self, pool: &'p Pool, seek: Seek<'_>) -> Result<ReadGuard<'p>, Stop> {
        self.leaf_or(pool, seek, |parent, _, id| fetch(pool, parent, id))
    }

    /// As `leaf`. `away` is called for a child that is not in a frame, or that someone is changing, with its parent, the
    /// parent's level, and its id; it waits until the child can be read and says whether it loaded it, or ends the descent.
    #[inline]
    pub(super) fn leaf_or<'p, E: From<Stop>>(
        &self,
        pool: &'p Pool,
        seek: Seek<'_>,
        mut away: impl FnMut(&ReadGuard<'p>, u8, PageId) -> Result<bool, E>,
    ) -> Result<ReadGuard<'p>, E> {
        let mut guard = pool.read(self.root)?;
        let mut above = None;
        loop {
            let node = Node::new(guard.view());
            let here = checked_level(&node, &guard, above)?;
            if here == 0 {
                return Ok(guard);
            }
            let id = node.child_at(seek.child_index(&node));
            guard = child_or(pool, &guard, id, |id| away(&guard, here, id))?;
            above = Some(here);
        }
    }

    /// The node at `level` on the way to a leaf, and its parent; no parent if it is the root. The parent is valid as
    /// of the moment the node's version was noted. None if the tree is lower than that.
    #[inline]
    pub(super) fn descend<'p>(
        &self,
        pool: &'p Pool,
        seek: Seek<'_>,
        level: u8,
    ) -> Result<Option<Descent<'p>>, Stop> {
        let mut parent: Option<(ReadGuard<'p>, u8)> = None;
        let mut guard = pool.read(self.root)?;
        loop {
            let node = Node::new(guard.view());
            let here = checked_level(&node, &guard, parent.as_ref().map(|(_, above)| *above))?;
            if here == level {
                return Ok(Some((parent.map(|(parent, _)| parent), guard)));
            }
            if here < level {
                guard.validate()?;
                return Ok(None);
            }
            let next = child(pool, &guard, node.child_at(seek.child_index(&node)))?;
            parent = Some((guard, here));
            guard = next;
        }
    }
}

impl Seek<'_> {
    /// Which child of an inner node to go to.
    #[inline]
    pub(super) fn child_index<V: View>(&self, node: &Node<V>) -> usize {
        match *self {
            Seek::First => 0,
            Seek::Last => node.count(),
            Seek::At(key) => node.child_index(key),
            Seek::Before(key) => node.lower_bound(key).0,
        }
    }
}

/// The level of `node`, which must be one that a child of a node at level `above` can be.
#[inline]
pub(super) fn checked_level<V: View>(
    node: &Node<V>,
    guard: &ReadGuard<'_>,
    above: Option<u8>,
) -> Result<u8, Stop> {
    if let Some(here) = level_below(node, above) {
        return Ok(here);
    }
    guard.validate()?;
    Err(damaged_page(guard.id(), "not the node its parent says it is").into())
}

/// The level of `node`, if it is one that a child of a node at level `above` can be.
#[inline]
pub(super) fn level_below<V: View>(node: &Node<V>, above: Option<u8>) -> Option<u8> {
    let here = node.level();
    let kind = if here == 0 { LEAF } else { INNER };
    (node.kind() == kind && above.is_none_or(|above| above == here + 1)).then_some(here)
}

/// Steps 2 to 4 of a descent: the child `id`, at a version at which `parent` still pointed to it. For a child in a frame
/// step 4 does what step 2 is for, since nothing was done to the child before.
#[inline(always)]
pub(super) fn child<'p>(pool: &'p Pool, parent: &ReadGuard<'p>, id: PageId) -> Result<ReadGuard<'p>, Stop> {
    child_or(pool, parent, id, |id| fetch(pool, parent, id))
}

#[inline(always)]
fn child_or<'p, E: From<Stop>>(
    pool: &'p Pool,
    parent: &ReadGuard<'p>,
    id: PageId,
    mut away: impl FnMut(PageId) -> Result<bool, E>,
) -> Result<ReadGuard<'p>, E> {
    let mut loaded = false;
    loop {
        if let Some(child) = pool.glance(id) {
            parent.validate()?;
            if child.is_in_middle() {
                return Ok(pool.settle(child, loaded)?);
            }
            if !loaded {
                child.mark();
            }
            return Ok(child);
        }
        loaded |= away(id)?;
    }
}

/// Steps 2 and 3 for a child that is not in a frame, or that someone is changing: waits until it can be read. Whether this
/// loaded it.
#[cold]
#[inline(never)]
pub(super) fn fetch(pool: &Pool, parent: &ReadGuard<'_>, id: PageId) -> Result<bool, Stop> {
    parent.validate()?;
    match pool.fetch(id) {
        Ok(loaded) => Ok(loaded),
        Err(Stop::Missing(_)) => {
            parent.validate()?;
            Err(dangling(id).into())
        }
        Err(stop) => Err(stop),
    }
}

/// Runs `attempt`, which reads the tree or chain of pages at `head`, until nothing moves under it.
#[inline]
pub(super) fn retry<T>(head: PageId, attempt: impl FnMut() -> Result<T, Stop>) -> Result<T> {
    operation::begin(Access::Read);
    attempts(head, attempt)
}

/// The same for an attempt that changes a leaf.
pub(super) fn retry_write<T>(head: PageId, attempt: impl FnMut() -> Result<T, Stop>) -> Result<T> {
    operation::begin(Access::Write);
    attempts(head, attempt)
}

fn attempts<T>(head: PageId, mut attempt: impl FnMut() -> Result<T, Stop>) -> Result<T> {
    let mut patience = Patience::default();
    loop {
        match attempt() {
            Ok(result) => return Ok(result),
            Err(Stop::Restart) if !patience.is_over(Instant::now) => {
                operation::again();
                patience.backoff.wait();
            }
            Err(Stop::Restart) => {
                return Err(Error::OutOfFrames {
                    what: format!("the pages under page {head} are replaced faster than they can be read"),
                });
            }
            Err(Stop::Missing(id)) => return Err(dangling(id)),
            Err(Stop::Fail(error)) => return Err(error),
        }
    }
}

/// For how long it is worth starting again.
#[derive(Default)]
struct Patience {
    backoff: Backoff,
    restarts: u32,
    since: Option<Instant>,
}

impl Patience {
    /// Whether it ends with this restart. `now` is asked when there have been some, so that a conflict costs no look at the clock.
    fn is_over(&mut self, now: impl FnOnce() -> Instant) -> bool {
        self.restarts += 1;
        if self.restarts < RESTARTS_LEAST {
            return false;
        }
        let now = now();
        now.duration_since(*self.since.get_or_insert(now)) >= RESTARTS_TIME
    }
}

/// A private copy of the whole page at the guard's version.
pub(super) fn copy(guard: &ReadGuard<'_>) -> Result<Vec<u8>, Stop> {
    let mut page = vec![0; guard.id().page_bytes()];
    guard.view().copy_to(0, &mut page);
    guard.validate()?;
    guard.copied(page.len());
    Ok(page)
}

/// A private copy of the node in `guard`, which must be sound and one that a child of a node at level `above` can be.
pub(super) fn copy_node(guard: &ReadGuard<'_>, above: Option<u8>) -> Result<Vec<u8>, Stop> {
    let page = copy(guard)?;
    super::check_page(&page).map_err(|what| damaged_page(guard.id(), what))?;
    checked_level(&Node::new(&page[..]), guard, above)?;
    Ok(page)
}

/// Refuses to change a page twice in one record, as damaged references would have it: the second latch would be waited for
/// for ever. `referrer` is the page with the references.
pub(super) fn distinct(referrer: PageId, pages: impl IntoIterator<Item = PageId>) -> Result<()> {
    let mut pages: Vec<PageId> = pages.into_iter().collect();
    pages.sort_unstable();
    match pages.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(damaged_page(referrer, format!("it leads to page {} twice", pair[0]))),
        None => Ok(()),
    }
}

/// The error for a reference to a page that does not exist.
pub(super) fn dangling(id: PageId) -> Error {
    damaged_page(id, "something refers to it, but it does not exist")
}

/// Log space for work that must not fail. Waits; the caller holds no latch.
pub(super) fn reserve_system(pool: &Pool, bytes: u64) -> Result<Reservation<'_>> {
    pool.reserve_log_for_structure(bytes)
}

/// What a change needs while it is put together, kept by each thread so that a change allocates nothing.
#[derive(Default)]
pub(super) struct Scratch {
    pub(super) record: RecordBuilder,
    pub(super) page: Vec<u8>,
    /// The value that an entry had.
    pub(super) old: Vec<u8>,
    /// An entry as it will be.
    pub(super) entry: Vec<u8>,
}

thread_local! {
    static SCRATCH: Cell<Option<Box<Scratch>>> = const { Cell::new(None) };
}

/// Bytes of scratch that the calling thread keeps.
#[cfg(test)]
pub(crate) fn scratch_bytes_kept() -> usize {
    SCRATCH.with(|kept| {
        let scratch = kept.take();
        let bytes = scratch.as_ref().map_or(0, |scratch| scratch.size_bytes());
        kept.set(scratch);
        bytes
    })
}

impl Scratch {
    /// Bytes of memory taken.
    fn size_bytes(&self) -> usize {
        self.record.capacity() + self.page.capacity() + self.old.capacity() + self.entry.capacity()
    }
}

/// Lends the thread's scratch memory. A thread keeps little of it, for there may be many threads and they are outside the
/// budget; what long values take goes back to the allocator. A thread that ends may have given up its own already.
pub(super) fn with_scratch<T>(work: impl FnOnce(&mut Scratch) -> T) -> T {
    let mut scratch = SCRATCH.try_with(Cell::take).ok().flatten().unwrap_or_default();
    let result = work(&mut scratch);
    if scratch.size_bytes() <= KEPT_BYTES_MAX {
        let _ = SCRATCH.try_with(|kept| kept.set(Some(scratch)));
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restarts_are_bounded_by_time_and_not_by_a_pause_alone() {
        let (mut patience, start) = (Patience::default(), Instant::now());
        for _ in 1..RESTARTS_LEAST {
            assert!(!patience.is_over(|| panic!("few restarts cost no look at the clock")));
        }
        assert!(!patience.is_over(|| start), "the time counts from here");
        assert!(!patience.is_over(|| start + RESTARTS_TIME - Duration::from_nanos(1)));
        assert!(patience.is_over(|| start + RESTARTS_TIME));
    }
}
