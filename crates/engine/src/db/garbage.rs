//! Pages that belong to nobody yet, or to nobody any more, so that no crash leaks them.
//!
//! A large value is written before the transaction that refers to it commits, a table's root before its name; and an
//! overwritten value or a dropped table stays as long as a snapshot may read it. All of them have an entry in the
//! *garbage tree* meanwhile, which is made and removed in the same log records as the pages and references it stands
//! for. Whatever has an entry when the database opens is freed.
//!
//! ```text
//!   key     kind u8 | id u64, big-endian          a value's first or last index page; a table's root
//!   value   reference, 16 bytes, for a value      nothing for a table
//! ```
//!
//! While the database is open nobody searches the tree: what has become garbage is queued here, a value when its last
//! version is dropped, a table with the time below which snapshots may still read it. Transactions read the newest entry,
//! decided or not; so the values of a commit that was taken back also wait until no snapshot is older than it. Freeing goes in steps, each one
//! atomic record that frees a few pages. The entry stays as it is to the end: the last record removes it and frees the
//! page it is under. Were that page freed before, a new value could have its entry under the same key.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};

use parking_lot::Mutex;

use super::core::{Core, garbage_root};
use crate::buffer::{Mode, Pool};
use crate::error::{Error, Result};
use crate::ids::{PageId, Timestamp};
use crate::index::chain::{FreeStep, free_step};
use crate::index::overflow::Reference;
use crate::index::{Change, LeafRows, Seek, Tree, Write, log_bytes};
use crate::txn::versions::OverflowRef;

pub(crate) fn garbage_tree(pool: &Pool) -> Tree {
    Tree { root: garbage_root(pool.class()) }
}

const VALUE: u8 = 1;
const TABLE: u8 = 2;
/// Pages of a table freed by one record.
const TABLE_STEP_PAGES: usize = 16;
/// Pages of a value in one record that frees some: a batch as it was written, and the head.
const VALUE_STEP_PAGES: usize = 17;
/// Log bytes of one freed page in a record.
const FREE_BYTES: u64 = 32;

/// The key of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GarbageKey([u8; 9]);

impl GarbageKey {
    fn new(kind: u8, id: PageId) -> Self {
        let mut key = [kind; 9];
        key[1..].copy_from_slice(&id.0.to_be_bytes());
        GarbageKey(key)
    }

    /// Of a value whose head or whose last index page is `id`, either of which is freed last.
    pub(crate) fn value(id: PageId) -> Self {
        Self::new(VALUE, id)
    }

    /// Of a table.
    pub(crate) fn table(root: PageId) -> Self {
        Self::new(TABLE, root)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The page it names: one of a value's that are freed last, or a table's root.
    pub(crate) fn id(&self) -> PageId {
        PageId(u64::from_be_bytes(self.0[1..].try_into().expect("eight bytes")))
    }

    fn parse(key: &[u8]) -> Option<(u8, PageId)> {
        let (&kind, id) = key.split_first()?;
        Some((kind, PageId(u64::from_be_bytes(id.try_into().ok()?))))
    }
}

/// The root of the table that an entry with this key stands for, if it is one of a table.
pub(crate) fn table_root(key: &[u8]) -> Option<PageId> {
    GarbageKey::parse(key).filter(|(kind, _)| *kind == TABLE).map(|(_, root)| root)
}

/// What a committing transaction does to the garbage tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transfer {
    /// What the entry names is referred to from now on.
    Claim(GarbageKey, Option<Reference>),
    /// What the entry names is no longer referred to.
    Discard(GarbageKey, Option<Reference>),
}

#[derive(Clone, Copy, Debug)]
enum Item {
    Value { key: GarbageKey, reference: Reference, not_before: Timestamp },
    Table { root: PageId, not_before: Timestamp },
}

impl Item {
    /// What nobody has a snapshot for that could lead to it.
    fn unseen(key: GarbageKey, reference: Reference) -> Self {
        Item::Value { key, reference, not_before: Timestamp::NONE }
    }

    /// Snapshots below this may still read it.
    fn not_before(&self) -> Timestamp {
        let (Item::Value { not_before, .. } | Item::Table { not_before, .. }) = *self;
        not_before
    }
}

/// What is to be freed.
#[derive(Debug, Default)]
pub(crate) struct Garbage {
    queue: Mutex<VecDeque<Item>>,
    waiting: AtomicUsize,
    /// The highest timestamp of a commit that was taken back.
    taken_back: AtomicU64,
    /// What is damaged. It keeps its entry and what is left of its pages.
    damaged: Mutex<Vec<Item>>,
    /// Held by who frees: one at a time.
    freeing: Mutex<()>,
}

/// What an entry of the garbage tree names.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Named {
    Value(Reference),
    Table(PageId),
}

impl Garbage {
    fn push(&self, items: impl IntoIterator<Item = Item>) {
        let mut queue = self.queue.lock();
        queue.extend(items);
        self.waiting.store(queue.len(), Relaxed);
    }

    /// Values that no snapshot can see any longer and that have entries under their heads.
    pub(crate) fn add_values(&self, values: Vec<OverflowRef>) {
        let item = |OverflowRef(bytes): OverflowRef| {
            let reference = Reference::decode(&bytes)?;
            Some(Item::unseen(GarbageKey::value(reference.head), reference))
        };
        if !values.is_empty() {
            self.push(values.into_iter().filter_map(item));
        }
    }

    /// A value of a transaction that did not commit. Nobody has seen it, unless the commit was taken back.
    pub(crate) fn add_value(&self, key: GarbageKey, reference: Reference) {
        let not_before = Timestamp(self.taken_back.load(SeqCst));
        self.push([Item::Value { key, reference, not_before }]);
    }

    /// The commit that drew `timestamp` was taken back: until it was, snapshots below that could lead to its values. It is
    /// told before they are added. Values of others that are added later may wait for the same snapshots, needlessly.
    pub(crate) fn note_taken_back(&self, timestamp: Timestamp) {
        self.taken_back.fetch_max(timestamp.0, SeqCst);
    }

    /// A table that snapshots below `not_before` may still read.
    pub(crate) fn add_table(&self, root: PageId, not_before: Timestamp) {
        self.push([Item::Table { root, not_before }]);
    }

    /// Keeps everything from being freed until dropped.
    pub(crate) fn hold(&self) -> impl Drop + '_ {
        self.freeing.lock()
    }

    /// Notes that an item cannot be freed, because what it names is damaged. Trying again finds the same, so nobody does
    /// until all is to be freed.
    fn set_aside(&self, item: Item, error: &Error) {
        tracing::error!(%error, "what was deleted is damaged and cannot be freed: its space is lost until `repair`");
        self.damaged.lock().push(item);
    }

    /// Has what is damaged looked at again.
    fn reconsider(&self) {
        let damaged = std::mem::take(&mut *self.damaged.lock());
        self.push(damaged);
    }

    /// How many values and tables cannot be freed because they are damaged.
    pub(crate) fn damaged(&self) -> usize {
        self.damaged.lock().len()
    }

    /// How much is waiting to be freed.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Relaxed)
    }
}

/// What an entry of the garbage tree says; `None` if it means nothing.
fn named(key: &[u8], value: &[u8]) -> Option<(GarbageKey, Named)> {
    let (kind, id) = GarbageKey::parse(key)?;
    let named = match kind {
        VALUE => Named::Value(Reference::decode(value)?),
        TABLE => Named::Table(id),
        _ => return None,
    };
    Some((GarbageKey::new(kind, id), named))
}

/// All entries of the garbage tree.
pub(crate) fn entries(pool: &Pool) -> Result<Vec<(GarbageKey, Named)>> {
    let mut found = Vec::new();
    let mut rows = LeafRows::new();
    garbage_tree(pool).read_leaf(pool, Seek::First, &mut rows)?;
    loop {
        for index in 0..rows.len() {
            let damaged =
                || Error::corrupt("the garbage tree", Some(rows.leaf.0), "an entry that means nothing");
            found.push(named(rows.key(index), rows.value(index)).ok_or_else(damaged)?);
        }
        let Some(upper) = rows.upper.take() else { return Ok(found) };
        garbage_tree(pool).read_leaf(pool, Seek::At(&upper), &mut rows)?;
    }
}

/// Calls back with every entry of the garbage tree in the order of their keys, each as it is while nothing is freed; others
/// may come and go meanwhile.
pub(crate) fn each_entry(
    core: &Core,
    mut visit: impl FnMut(Named) -> Result<()>,
    mut damaged: impl FnMut(PageId) -> Result<()>,
) -> Result<()> {
    let garbage = garbage_tree(&core.pool);
    let (mut rows, mut value) = (LeafRows::new(), Vec::new());
    let mut next: Option<Vec<u8>> = None;
    loop {
        let seek = next.as_deref().map_or(Seek::First, Seek::At);
        garbage.read_leaf(&core.pool, seek, &mut rows)?;
        for index in 0..rows.len() {
            let key = rows.key(index);
            // A leaf may have taken its neighbour in, which was seen already.
            if next.as_deref().is_some_and(|next| key < next) {
                continue;
            }
            let _still = core.garbage.hold();
            if garbage.get_into(&core.pool, key, &mut value)?.is_none() {
                continue;
            }
            match named(key, &value) {
                Some((_, named)) => visit(named)?,
                None => damaged(rows.leaf)?,
            }
        }
        next = rows.upper.take();
        if next.is_none() {
            return Ok(());
        }
    }
}

impl Core {
    /// Queues what the garbage tree names: what the last owner of this database left behind.
    pub(crate) fn load_garbage(&self) -> Result<()> {
        let (garbage, catalog) = (garbage_tree(&self.pool).root, self.catalog.tree.root);
        for (key, named) in entries(&self.pool)? {
            let item = match named {
                Named::Value(reference) => Item::unseen(key, reference),
                Named::Table(root) if root == garbage || root == catalog => {
                    return Err(Error::corrupt(
                        "the garbage tree",
                        Some(root.0),
                        "it has a tree that every database has",
                    ));
                }
                Named::Table(root) => Item::Table { root, not_before: Timestamp::NONE },
            };
            self.garbage.push([item]);
        }
        Ok(())
    }

    /// Frees all that is not damaged: what is, keeps neither an opening nor a checkpoint from its work.
    pub(crate) fn free_sound_garbage(&self) -> Result<()> {
        match self.free_garbage(usize::MAX) {
            Err(Error::Corrupt { .. }) => Ok(()),
            other => other,
        }
    }

    /// Frees up to `steps` steps' worth of what nobody can see. Does nothing if another thread is at it.
    ///
    /// # Errors
    /// The first damage that is met. What is damaged is set aside, and the rest freed.
    pub(crate) fn free_garbage(&self, steps: usize) -> Result<()> {
        if self.garbage.waiting() == 0 {
            return Ok(());
        }
        let Some(_turn) = self.garbage.freeing.try_lock() else { return Ok(()) };
        self.free_steps(steps)
    }

    /// Frees all that nobody can see, after whoever is at it; also tries once more what was found damaged.
    ///
    /// # Errors
    /// As [`Core::free_garbage`].
    pub(crate) fn free_garbage_now(&self) -> Result<()> {
        let _turn = self.garbage.freeing.lock();
        self.garbage.reconsider();
        self.free_steps(usize::MAX)
    }

    /// The caller has the turn.
    fn free_steps(&self, steps: usize) -> Result<()> {
        let (mut left, mut damage) = (steps, None);
        // Items that must wait go to the back; each is looked at once.
        for _ in 0..self.garbage.waiting() {
            let Some(item) = self.garbage.queue.lock().pop_front() else { break };
            let mut item = Some(item);
            while left > 0
                && let Some(next) = item
            {
                match self.free_step(next) {
                    Ok(Freed::Later) => break,
                    Ok(Freed::Some(rest)) => {
                        left -= 1;
                        item = rest;
                    }
                    Err(error @ Error::Corrupt { .. }) => {
                        self.garbage.set_aside(next, &error);
                        damage.get_or_insert(error);
                        item = None;
                    }
                    Err(error) => {
                        self.garbage.push(item);
                        return Err(error);
                    }
                }
            }
            self.garbage.push(item);
            if left == 0 {
                break;
            }
        }
        damage.map_or(Ok(()), Err)
    }

    fn free_step(&self, item: Item) -> Result<Freed> {
        if self.snapshots.oldest(&self.clock) < item.not_before() {
            return Ok(Freed::Later);
        }
        match item {
            Item::Table { root, .. } => {
                if !(Tree { root }).release_step(&self.pool, self.step_pages(root, TABLE_STEP_PAGES))? {
                    return Ok(Freed::Some(Some(item)));
                }
                let key = GarbageKey::table(root);
                self.garbage_record(Change::Remove { key: key.bytes() }, vec![root])?;
                Ok(Freed::Some(None))
            }
            Item::Value { key, reference, .. } => {
                let pages = self.step_pages(reference.head, VALUE_STEP_PAGES);
                match free_step(&self.pool, reference.head, pages)? {
                    FreeStep::Again => Ok(Freed::Some(Some(item))),
                    FreeStep::Last(free) => {
                        self.garbage_record(Change::Remove { key: key.bytes() }, free)?;
                        Ok(Freed::Some(None))
                    }
                }
            }
        }
    }

    /// Pages that one record may touch, those under `head` and in the garbage tree, so that they fit the frames together.
    fn step_pages(&self, head: PageId, most: usize) -> usize {
        (self.pool.frames_least(head) as usize / 32).clamp(2, most)
    }

    /// Changes the garbage tree and frees `free`, for the system, in one record.
    fn garbage_record(&self, change: Change<'_>, free: Vec<PageId>) -> Result<()> {
        let bytes = log_bytes(&change, 0) + free.len() as u64 * FREE_BYTES;
        let mut reservation = self.pool.reserve_log_to_free(bytes)?;
        let mut write = Write { reservation: Some(&mut reservation), free, ..Write::default() };
        garbage_tree(&self.pool).apply(&self.pool, &mut write, change).map(|_| ())
    }

    /// Frees everything that can be freed now; what a test or a checkpoint asks for.
    pub(crate) fn free_all_garbage(&self) -> Result<()> {
        self.collect();
        if self.pool.mode() == Mode::Background {
            self.collector.ring();
            return Ok(());
        }
        self.free_sound_garbage()
    }
}

/// The change that makes an entry, or gives it the new head of a value that is being written.
pub(crate) fn put<'a>(key: &'a GarbageKey, value: &'a [u8]) -> Change<'a> {
    Change::Put { key: key.bytes(), timestamp: Timestamp::NONE, flags: 0, value }
}

enum Freed {
    /// Not yet.
    Later,
    /// Some pages; this is left.
    Some(Option<Item>),
}

#[cfg(test)]
mod tests;
