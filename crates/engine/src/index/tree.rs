//! The tree: descends from a root page to a leaf, over pages that other threads change.
//!
//! Descents hold nothing (*optimistic lock coupling*, Leis et al., "The ART of practical
//! synchronization"). Every step
//! 1. reads the parent and finds the child,
//! 2. validates the parent: the child's id was not garbage,
//! 3. asks the pool for the child, which notes its version and may fault it in,
//! 4. validates the parent again: the child still covered the key at that version.
//!
//! A read from a leaf counts once the leaf validates; a failed validation restarts at the root. A
//! missing or unexpected page is damage only if its parent is unchanged: no other thread explains
//! it.
//!
//! Writers prepare everything without a latch. Then they upgrade the versions they saw to latches,
//! without waiting or I/O, which fails if a page moved. So no thread holds a latch while it waits
//! for a frame, a page or log space, and latches need no order.
//!
//! The root's page id never changes: a split root moves its content to two new pages, and a root
//! with one child takes over the child's content.

use std::cell::Cell;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use super::node::edit::damaged_page;
use super::node::leaf;
use super::node::{Entry, INNER, LEAF, LEVEL, Node};
use crate::error::{Error, Result};
use crate::ids::{PageId, SizeClass};
use crate::pool::backoff::Backoff;
use crate::pool::migration::Access;
use crate::pool::operation;
use crate::pool::view::View;
use crate::pool::{Pool, ReadGuard, Retry};
use crate::store::image::COMPRESS;
use crate::threads::KEPT_BYTES_MAX;
use crate::wal::{RecordBuilder, Reservation};

/// How long a thread restarts before it gives up.
const RESTARTS_TIME: Duration = Duration::from_secs(10);
/// Restarts before [`RESTARTS_TIME`] begins. Attempts that wait, and a stopped process, take long;
/// only attempts that fail at once reach this number within seconds.
const RESTARTS_LEAST: u32 = 10_000;

/// A tree, named by its root page, which never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tree {
    pub(crate) root: PageId,
}

/// The end of a descent: a node's parent, and the node.
pub(super) type Descent<'p> = (Option<ReadGuard<'p>>, ReadGuard<'p>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seek<'a> {
    First,
    Last,
    At(&'a [u8]),
    /// The leaf of the keys just below this one: lower fence < key <= upper fence. The first leaf
    /// for the empty key.
    Before(&'a [u8]),
}

impl Tree {
    pub(crate) fn class(&self) -> SizeClass {
        self.root.class().unwrap_or(SizeClass::SMALLEST)
    }

    #[inline]
    pub(crate) fn page_bytes(&self) -> usize {
        self.root.page_bytes()
    }

    /// A new tree's root page, an empty leaf. Its compression bit applies to all pages of the tree.
    pub(crate) fn init_root(id: PageId, compress: bool) -> Vec<u8> {
        let mut page = vec![0; id.page_bytes()];
        leaf::init(&mut page, id, &[], None);
        page[LEVEL] = if compress { COMPRESS } else { 0 };
        page
    }

    /// The leaf for `seek`. It counts once the guard validates.
    #[inline]
    pub(super) fn leaf<'p>(&self, pool: &'p Pool, seek: Seek<'_>) -> Result<ReadGuard<'p>, Retry> {
        self.leaf_by(pool, seek, &mut Plainly { pool, search: Some((seek, 0)) })
    }

    /// The leaf for `seek`, with `detour` for children that are not in DRAM.
    #[inline(always)]
    pub(super) fn leaf_by<'p, D: Detour<'p>>(
        &self,
        pool: &'p Pool,
        seek: Seek<'_>,
        detour: &mut D,
    ) -> Result<ReadGuard<'p>, D::End> {
        let root = pool.try_read_in_array(self.root, false);
        if let Some(root) = root
            && !root.is_in_middle()
        {
            root.mark();
            return Tree::leaf_below::<D, true>(pool, root, seek, detour);
        }
        // With a hash table. A call would return the leaf's guard through memory.
        if root.is_none()
            && let Some(root) = pool.try_read_root(self.root)
            && !root.is_in_middle()
        {
            root.mark();
            return Tree::leaf_below::<D, false>(pool, root, seek, detour);
        }
        // Another type: passing on a `Result` would put the guard in memory on both paths.
        match self.leaf_otherwise(pool, seek, detour) {
            ControlFlow::Continue(leaf) => Ok(leaf),
            ControlFlow::Break(end) => Err(end),
        }
    }

    /// [`Tree::leaf_by`] if the root is not in DRAM.
    #[inline(never)]
    fn leaf_otherwise<'p, D: Detour<'p>>(
        &self,
        pool: &'p Pool,
        seek: Seek<'_>,
        detour: &mut D,
    ) -> ControlFlow<D::End, ReadGuard<'p>> {
        let leaf = read_root(pool, self.root, (seek, 0))
            .map_err(D::End::from)
            .and_then(|root| Tree::leaf_below::<D, false>(pool, root, seek, detour));
        match leaf {
            Ok(leaf) => ControlFlow::Continue(leaf),
            Err(end) => ControlFlow::Break(end),
        }
    }

    #[inline(always)]
    fn leaf_below<'p, D: Detour<'p>, const IN_ARRAY: bool>(
        pool: &'p Pool,
        root: ReadGuard<'p>,
        seek: Seek<'_>,
        detour: &mut D,
    ) -> Result<ReadGuard<'p>, D::End> {
        let mut guard = root;
        let mut above = None;
        loop {
            let node = Node::new(guard.view());
            let here = checked_level(&node, &guard, above)?;
            if here == 0 {
                return Ok(guard);
            }
            let index = seek.child_index(&node);
            let id = node.child_at(index);
            let seen = match IN_ARRAY {
                true => pool.try_read_in_array(id, here == 1),
                false => pool.try_read_child(&guard, index, id, here == 1),
            };
            // The rare path gets copies, so that these guards need no memory.
            guard = match seen {
                Some(child) if !child.is_in_middle() => {
                    guard.validate()?;
                    child.mark();
                    child
                }
                seen => child_by(pool, guard, here, id, seen, detour)?,
            };
            above = Some(here);
        }
    }

    /// The node at `level` on the path to a leaf, and its parent, if any. The parent is valid as of
    /// the moment the node's version was noted. `None` if the tree is lower.
    #[inline]
    pub(super) fn descend<'p>(
        &self,
        pool: &'p Pool,
        seek: Seek<'_>,
        level: u8,
    ) -> Result<Option<Descent<'p>>, Retry> {
        let mut parent: Option<(ReadGuard<'p>, u8)> = None;
        // The caller looks at the last node as it likes.
        let search = (seek, level.saturating_add(1));
        let mut guard = read_root(pool, self.root, search)?;
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
            let id = node.child_at(seek.child_index(&node));
            let next = child_for(pool, &guard, id, Some(search))?;
            parent = Some((guard, here));
            guard = next;
        }
    }
}

impl Seek<'_> {
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

/// The level of `node`, which must suit a parent at level `above`.
#[inline]
pub(super) fn checked_level<V: View>(
    node: &Node<V>,
    guard: &ReadGuard<'_>,
    above: Option<u8>,
) -> Result<u8, Retry> {
    if let Some(here) = level_below(node, above) {
        return Ok(here);
    }
    guard.validate()?;
    Err(damaged_page(guard.id(), "not the node its parent says it is").into())
}

/// The level of `node`, if it suits a parent at level `above`.
#[inline]
pub(super) fn level_below<V: View>(node: &Node<V>, above: Option<u8>) -> Option<u8> {
    let here = node.level();
    let kind = if here == 0 { LEAF } else { INNER };
    (node.kind() == kind && above.is_none_or(|above| above == here + 1)).then_some(here)
}

/// Steps 2 to 4 of the head of this file. For a child in a frame, step 4 also covers step 2, since
/// nothing was done to the child before.
#[inline(always)]
pub(super) fn child<'p>(pool: &'p Pool, parent: &ReadGuard<'p>, id: PageId) -> Result<ReadGuard<'p>, Retry> {
    child_for(pool, parent, id, None)
}

/// [`child`] for a `search`.
#[inline(always)]
fn child_for<'p>(
    pool: &'p Pool,
    parent: &ReadGuard<'p>,
    id: PageId,
    search: Option<Search<'_>>,
) -> Result<ReadGuard<'p>, Retry> {
    match pool.try_read(id) {
        Some(child) if !child.is_in_middle() => {
            parent.validate()?;
            child.mark();
            Ok(child)
        }
        // The level is of interest to other detours only.
        seen => child_by(pool, *parent, 0, id, seen, &mut Plainly { pool, search }),
    }
}

/// What a descent does about a child that is not in DRAM. It may end the descent.
pub(super) trait Detour<'p> {
    type End: From<Retry>;

    /// Waits until child `id`, latched or not in a frame, is readable. Returns whether this loaded
    /// it. `level` is the parent's.
    fn away(&mut self, parent: &ReadGuard<'p>, level: u8, id: PageId) -> Result<bool, Self::End>;

    /// Accesses a child in the middle tier. The parent was valid since the child was seen.
    fn in_middle(
        &mut self,
        child: ReadGuard<'p>,
        level: u8,
        loaded: bool,
    ) -> Result<ReadGuard<'p>, Self::End>;
}

/// A search in nodes from a level on.
pub(super) type Search<'a> = (Seek<'a>, u8);

/// Reads the child wherever it is.
struct Plainly<'p, 'a> {
    pool: &'p Pool,
    search: Option<Search<'a>>,
}

impl<'p> Detour<'p> for Plainly<'p, '_> {
    type End = Retry;

    #[inline(always)]
    fn away(&mut self, parent: &ReadGuard<'p>, _: u8, id: PageId) -> Result<bool, Retry> {
        fetch(self.pool, parent, id)
    }

    #[cold]
    #[inline(never)]
    fn in_middle(&mut self, child: ReadGuard<'p>, _: u8, loaded: bool) -> Result<ReadGuard<'p>, Retry> {
        let child = self.pool.access_in_middle(child, loaded)?;
        looked_in_middle(self.pool, &child, self.search);
        Ok(child)
    }
}

/// Charges and counts an access of a child that stays in the middle tier.
pub(super) fn looked_in_middle(pool: &Pool, child: &ReadGuard<'_>, search: Option<Search<'_>>) {
    if child.is_in_middle() {
        search.into_iter().for_each(|search| charge_search(child, search));
        pool.records.other_in_place(&pool.tiers, child.id());
    }
}

/// [`Pool::read`] of a root.
#[inline(always)]
fn read_root<'p>(pool: &'p Pool, root: PageId, search: Search<'_>) -> Result<ReadGuard<'p>, Retry> {
    match pool.try_read_root(root) {
        Some(guard) if !guard.is_in_middle() => {
            guard.mark();
            Ok(guard)
        }
        _ => root_by(pool, root, search),
    }
}

#[cold]
#[inline(never)]
fn root_by<'p>(pool: &'p Pool, root: PageId, search: Search<'_>) -> Result<ReadGuard<'p>, Retry> {
    let root = pool.read(root)?;
    charge_search(&root, search);
    Ok(root)
}

#[cold]
#[inline(never)]
pub(super) fn root_in_middle<'p>(
    pool: &'p Pool,
    root: ReadGuard<'p>,
    loaded: bool,
    search: Search<'_>,
) -> Result<ReadGuard<'p>, Retry> {
    let root = pool.access_in_middle(root, loaded)?;
    charge_search(&root, search);
    Ok(root)
}

/// Charges a search in a node, if it is in simulated memory that counts lines.
#[cold]
pub(super) fn charge_search(guard: &ReadGuard<'_>, (seek, lowest): Search<'_>) {
    guard.looked(|view| {
        let node = Node::new(view);
        if node.level() < lowest {
            return;
        }
        match seek {
            Seek::At(key) if node.is_leaf() => {
                // A long value's reference is read with the entry.
                let long = leaf::find(&node, key).filter(Entry::is_overflow);
                long.iter().for_each(|entry| node.append_value(entry, &mut Vec::new()));
            }
            _ if node.is_leaf() => {}
            _ => _ = node.child_at(seek.child_index(&node)),
        }
    });
}

/// [`child`] of a page that was `seen` in the middle tier, or not at all.
#[cold]
#[inline(never)]
fn child_by<'p, D: Detour<'p>>(
    pool: &'p Pool,
    parent: ReadGuard<'p>,
    level: u8,
    id: PageId,
    mut seen: Option<ReadGuard<'p>>,
    detour: &mut D,
) -> Result<ReadGuard<'p>, D::End> {
    let mut loaded = false;
    loop {
        if let Some(child) = seen {
            parent.validate()?;
            if child.is_in_middle() {
                return detour.in_middle(child, level, loaded);
            }
            if !loaded {
                child.mark();
            }
            return Ok(child);
        }
        loaded |= detour.away(&parent, level, id)?;
        seen = pool.try_read(id);
    }
}

/// Steps 2 and 3 for a latched or missing child; waits until it is readable. Returns whether this
/// loaded it.
#[cold]
#[inline(never)]
pub(super) fn fetch(pool: &Pool, parent: &ReadGuard<'_>, id: PageId) -> Result<bool, Retry> {
    parent.validate()?;
    match pool.fetch(id) {
        Ok(loaded) => Ok(loaded),
        Err(Retry::Missing(_)) => {
            parent.validate()?;
            Err(dangling(id).into())
        }
        Err(stop) => Err(stop),
    }
}

/// Retries `attempt`, which reads pages under `head`, until no page that it read has changed.
#[inline]
pub(super) fn retry<T>(head: PageId, attempt: impl FnMut() -> Result<T, Retry>) -> Result<T> {
    operation::begin(Access::Read);
    attempts(head, attempt)
}

/// Retries `attempt`, which changes a leaf under `head`, until no page that it read has changed.
pub(super) fn retry_write<T>(head: PageId, attempt: impl FnMut() -> Result<T, Retry>) -> Result<T> {
    operation::begin(Access::Write);
    attempts(head, attempt)
}

fn attempts<T>(head: PageId, mut attempt: impl FnMut() -> Result<T, Retry>) -> Result<T> {
    let mut restarts = Restarts::default();
    loop {
        match attempt() {
            Ok(result) => return Ok(result),
            Err(Retry::Restart) if !restarts.is_over(Instant::now) => {
                operation::again();
                restarts.backoff.wait();
            }
            Err(Retry::Restart) => {
                return Err(Error::OutOfFrames {
                    what: format!("the pages under page {head} are replaced faster than they can be read"),
                });
            }
            Err(Retry::Missing(id)) => return Err(dangling(id)),
            Err(Retry::Fail(error)) => return Err(error),
        }
    }
}

#[derive(Default)]
struct Restarts {
    backoff: Backoff,
    restarts: u32,
    since: Option<Instant>,
}

impl Restarts {
    /// Whether to give up after this restart. Reads the clock only after many restarts, so a
    /// conflict is cheap.
    fn is_over(&mut self, now: impl FnOnce() -> Instant) -> bool {
        self.restarts += 1;
        if self.restarts < RESTARTS_LEAST {
            return false;
        }
        let now = now();
        now.duration_since(*self.since.get_or_insert(now)) >= RESTARTS_TIME
    }
}

pub(super) fn copy(guard: &ReadGuard<'_>) -> Result<Vec<u8>, Retry> {
    let mut page = vec![0; guard.id().page_bytes()];
    guard.view().copy_to(0, &mut page);
    guard.validate()?;
    guard.copied(page.len(), |_, lines| lines.add(0, page.len()));
    Ok(page)
}

/// Copies the node in `guard`, which must suit a parent at level `above`.
pub(super) fn copy_node(guard: &ReadGuard<'_>, above: Option<u8>) -> Result<Vec<u8>, Retry> {
    let page = copy(guard)?;
    super::node::check_page(&page).map_err(|what| damaged_page(guard.id(), what))?;
    checked_level(&Node::new(&page[..]), guard, above)?;
    Ok(page)
}

/// Refuses a damaged `referrer` that names a page twice: one record would then latch it twice, and
/// wait for ever.
pub(super) fn distinct(referrer: PageId, pages: impl IntoIterator<Item = PageId>) -> Result<()> {
    let mut pages: Vec<PageId> = pages.into_iter().collect();
    pages.sort_unstable();
    match pages.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(damaged_page(referrer, format!("it leads to page {} twice", pair[0]))),
        None => Ok(()),
    }
}

/// Reads pages that a stable reference names.
pub(super) fn read_all<'p>(pool: &'p Pool, ids: &[PageId]) -> Result<Vec<ReadGuard<'p>>, Retry> {
    ids.iter()
        .map(|&id| match pool.read(id) {
            Err(Retry::Missing(id)) => Err(dangling(id).into()),
            other => other,
        })
        .collect()
}

pub(super) fn dangling(id: PageId) -> Error {
    damaged_page(id, "something refers to it, but it does not exist")
}

/// Reserves log space for work that must not fail. Waits; the caller holds no latch.
pub(super) fn reserve_for_structure(pool: &Pool, bytes: u64) -> Result<Reservation<'_>> {
    pool.reserve_log_for_structure(bytes)
}

/// A thread's reused buffers, so that a change allocates nothing.
#[derive(Default)]
pub(super) struct Scratch {
    pub(super) record: RecordBuilder,
    pub(super) page: Vec<u8>,
    /// The entry's old value.
    pub(super) old: Vec<u8>,
    /// The entry's new bytes.
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
    fn size_bytes(&self) -> usize {
        self.record.capacity() + self.page.capacity() + self.old.capacity() + self.entry.capacity()
    }
}

/// Lends the thread's scratch memory. A thread keeps little, outside the budget. The thread-local
/// of an ending thread may already be gone.
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
        let (mut restarts, start) = (Restarts::default(), Instant::now());
        for _ in 1..RESTARTS_LEAST {
            assert!(!restarts.is_over(|| panic!("few restarts cost no look at the clock")));
        }
        assert!(!restarts.is_over(|| start), "the time counts from here");
        assert!(!restarts.is_over(|| start + RESTARTS_TIME - Duration::from_nanos(1)));
        assert!(restarts.is_over(|| start + RESTARTS_TIME));
    }
}
