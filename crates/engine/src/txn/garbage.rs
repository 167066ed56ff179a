//! Pages without an owner in any table, recorded so that no crash leaks them.
//!
//! A large value is written before its transaction commits, and a table's root before its name. An
//! overwritten value or a dropped table stays while a snapshot may read it. Meanwhile each has an
//! entry in the *garbage tree*, which the log records that create or remove its pages and
//! references also create or remove. Whatever has an entry at open is freed.
//!
//! ```text
//!   key     kind u8 | id u64, big-endian       a value's first or last index page; a table's root
//!   value   reference, 16 bytes, for a value   nothing for a table
//! ```
//!
//! While the database is open, garbage is queued in memory: a value when its last version is
//! dropped, a table with the timestamp below which snapshots may read it. Transactions read the
//! newest entry, even an undecided one. So values of a commit that was taken back also wait until
//! no snapshot is older.
//!
//! Freeing goes in steps, each an atomic record that frees a few pages. The last record removes the
//! entry and frees the page that names it. If that page were freed earlier, a new value could get
//! the same key.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};

use parking_lot::Mutex;

use super::versions::OverflowRef;
use crate::error::{Error, Result};
use crate::ids::{PageId, SizeClass, Timestamp};
use crate::index::chain::{FreeStep, free_step};
use crate::index::node::overflow::Reference;
use crate::index::{Change, LeafRows, Seek, Tree, Write, log_bytes, release_step};
use crate::pool::Pool;

/// Root of the garbage tree in a database of `class`.
pub(crate) fn garbage_root(class: SizeClass) -> PageId {
    PageId::new(class, 2)
}

pub(crate) fn garbage_tree(pool: &Pool) -> Tree {
    Tree { root: garbage_root(pool.class()) }
}

const VALUE: u8 = 1;
const TABLE: u8 = 2;
const TABLE_STEP_PAGES: usize = 16;
/// Pages of a value per record: a written batch and the head.
const VALUE_STEP_PAGES: usize = 17;
const FREE_BYTES: u64 = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GarbageKey([u8; 9]);

impl GarbageKey {
    fn new(kind: u8, id: PageId) -> Self {
        let mut key = [kind; 9];
        key[1..].copy_from_slice(&id.0.to_be_bytes());
        GarbageKey(key)
    }

    /// Key of a value by its head or last index page, which is freed last.
    pub(crate) fn value(id: PageId) -> Self {
        Self::new(VALUE, id)
    }

    pub(crate) fn table(root: PageId) -> Self {
        Self::new(TABLE, root)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The named page: one freed last, or a table's root.
    pub(crate) fn id(&self) -> PageId {
        PageId(u64::from_be_bytes(self.0[1..].try_into().expect("eight bytes")))
    }

    fn parse(key: &[u8]) -> Option<(u8, PageId)> {
        let (&kind, id) = key.split_first()?;
        Some((kind, PageId(u64::from_be_bytes(id.try_into().ok()?))))
    }
}

/// Root of the table that this key names, if it names one.
pub(crate) fn table_root(key: &[u8]) -> Option<PageId> {
    GarbageKey::parse(key).filter(|(kind, _)| *kind == TABLE).map(|(_, root)| root)
}

/// Effect of a commit on the garbage tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transfer {
    /// Something refers to the named pages from now on.
    Claim(GarbageKey, Option<Reference>),
    /// Nothing refers to the named pages any more.
    Discard(GarbageKey, Option<Reference>),
}

#[derive(Clone, Copy, Debug)]
enum Item {
    Value { key: GarbageKey, reference: Reference, not_before: Timestamp },
    Table { root: PageId, not_before: Timestamp },
}

impl Item {
    /// A value that no snapshot can reach.
    fn unseen(key: GarbageKey, reference: Reference) -> Self {
        Item::Value { key, reference, not_before: Timestamp::NONE }
    }

    /// Snapshots below this may still read it.
    fn not_before(&self) -> Timestamp {
        let (Item::Value { not_before, .. } | Item::Table { not_before, .. }) = *self;
        not_before
    }
}

#[derive(Debug, Default)]
pub(crate) struct Garbage {
    queue: Mutex<VecDeque<Item>>,
    waiting: AtomicUsize,
    taken_back: AtomicU64,
    /// Damaged items. They keep their entries and remaining pages.
    damaged: Mutex<Vec<Item>>,
    /// Serialises freeing.
    freeing: Mutex<()>,
}

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

    /// Adds values that no snapshot can see, with entries under their heads.
    pub(crate) fn add_values(&self, values: Vec<OverflowRef>) {
        let item = |OverflowRef(bytes): OverflowRef| {
            let reference = Reference::decode(&bytes)?;
            Some(Item::unseen(GarbageKey::value(reference.head), reference))
        };
        if !values.is_empty() {
            self.push(values.into_iter().filter_map(item));
        }
    }

    /// Adds a value of a transaction that did not commit.
    ///
    /// Only a commit that was taken back may have exposed it.
    pub(crate) fn add_value(&self, key: GarbageKey, reference: Reference) {
        let not_before = Timestamp(self.taken_back.load(SeqCst));
        self.push([Item::Value { key, reference, not_before }]);
    }

    /// Notes a commit that was taken back; snapshots below `timestamp` may reach its values.
    ///
    /// Called before its values are added. Other values added later may wait needlessly.
    pub(crate) fn note_taken_back(&self, timestamp: Timestamp) {
        self.taken_back.fetch_max(timestamp.0, SeqCst);
    }

    /// Adds a table that snapshots below `not_before` may read.
    pub(crate) fn add_table(&self, root: PageId, not_before: Timestamp) {
        self.push([Item::Table { root, not_before }]);
    }

    /// Prevents all freeing until dropped.
    pub(crate) fn hold(&self) -> impl Drop + '_ {
        self.freeing.lock()
    }

    /// Sets a damaged item aside, because a retry would find the same damage.
    fn set_aside(&self, item: Item, error: &Error) {
        tracing::error!(%error, "what was deleted is damaged and cannot be freed: its space is lost until `repair`");
        self.damaged.lock().push(item);
    }

    fn reconsider(&self) {
        let damaged = std::mem::take(&mut *self.damaged.lock());
        self.push(damaged);
    }

    pub(crate) fn damaged(&self) -> usize {
        self.damaged.lock().len()
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Relaxed)
    }
}

fn named(key: &[u8], value: &[u8]) -> Option<(GarbageKey, Named)> {
    let (kind, id) = GarbageKey::parse(key)?;
    let named = match kind {
        VALUE => Named::Value(Reference::decode(value)?),
        TABLE => Named::Table(id),
        _ => return None,
    };
    Some((GarbageKey::new(kind, id), named))
}

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

/// Visits every entry in key order, each while nothing is freed; others may come and go meanwhile.
pub(crate) fn each_entry(
    pool: &Pool,
    items: &Garbage,
    mut visit: impl FnMut(Named) -> Result<()>,
    mut damaged: impl FnMut(PageId) -> Result<()>,
) -> Result<()> {
    let garbage = garbage_tree(pool);
    let (mut rows, mut value) = (LeafRows::new(), Vec::new());
    let mut next: Option<Vec<u8>> = None;
    loop {
        let seek = next.as_deref().map_or(Seek::First, Seek::At);
        garbage.read_leaf(pool, seek, &mut rows)?;
        for index in 0..rows.len() {
            let key = rows.key(index);
            // A leaf may have merged with its neighbour, which was visited already.
            if next.as_deref().is_some_and(|next| key < next) {
                continue;
            }
            let _still = items.hold();
            if garbage.get_into(pool, key, &mut value)?.is_none() {
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

/// The oldest timestamp at which a reader may still read.
type Oldest<'a> = &'a dyn Fn() -> Timestamp;

impl Garbage {
    /// Queues the garbage that the last owner of the database left.
    pub(crate) fn load(&self, pool: &Pool, catalog: PageId) -> Result<()> {
        let garbage = garbage_tree(pool).root;
        for (key, named) in entries(pool)? {
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
            self.push([item]);
        }
        Ok(())
    }

    /// Frees all undamaged garbage. Damage blocks neither an open nor a checkpoint.
    pub(crate) fn free_sound(&self, pool: &Pool, oldest: Oldest<'_>) -> Result<()> {
        match self.free(pool, oldest, usize::MAX) {
            Err(Error::Corrupt { .. }) => Ok(()),
            other => other,
        }
    }

    /// Frees up to `steps` steps of garbage; does nothing while another thread frees.
    ///
    /// # Errors
    /// The first damage found. Damaged items are set aside and the rest is freed.
    pub(crate) fn free(&self, pool: &Pool, oldest: Oldest<'_>, steps: usize) -> Result<()> {
        if self.waiting() == 0 {
            return Ok(());
        }
        let Some(_turn) = self.freeing.try_lock() else { return Ok(()) };
        self.free_steps(pool, oldest, steps)
    }

    /// Frees all garbage, after any other thread, and retries damaged items.
    ///
    /// # Errors
    /// Those of [`Garbage::free`].
    pub(crate) fn free_now(&self, pool: &Pool, oldest: Oldest<'_>) -> Result<()> {
        let _turn = self.freeing.lock();
        self.reconsider();
        self.free_steps(pool, oldest, usize::MAX)
    }

    /// Requires the `freeing` lock.
    fn free_steps(&self, pool: &Pool, oldest: Oldest<'_>, steps: usize) -> Result<()> {
        let (mut left, mut damage) = (steps, None);
        // Items that must wait go to the back; visit each once.
        for _ in 0..self.waiting() {
            let Some(item) = self.queue.lock().pop_front() else { break };
            let mut item = Some(item);
            while left > 0
                && let Some(next) = item
            {
                match free_item(pool, oldest, next) {
                    Ok(Freed::Later) => break,
                    Ok(Freed::Some(rest)) => {
                        left -= 1;
                        item = rest;
                    }
                    Err(error @ Error::Corrupt { .. }) => {
                        self.set_aside(next, &error);
                        damage.get_or_insert(error);
                        item = None;
                    }
                    Err(error) => {
                        self.push(item);
                        return Err(error);
                    }
                }
            }
            self.push(item);
            if left == 0 {
                break;
            }
        }
        damage.map_or(Ok(()), Err)
    }
}

fn free_item(pool: &Pool, oldest: Oldest<'_>, item: Item) -> Result<Freed> {
    if oldest() < item.not_before() {
        return Ok(Freed::Later);
    }
    match item {
        Item::Table { root, .. } => {
            if !release_step(Tree { root }, pool, step_pages(pool, root, TABLE_STEP_PAGES))? {
                return Ok(Freed::Some(Some(item)));
            }
            let key = GarbageKey::table(root);
            free_record(pool, Change::Remove { key: key.bytes() }, vec![root])?;
            Ok(Freed::Some(None))
        }
        Item::Value { key, reference, .. } => {
            let pages = step_pages(pool, reference.head, VALUE_STEP_PAGES);
            match free_step(pool, reference.head, pages)? {
                FreeStep::Again => Ok(Freed::Some(Some(item))),
                FreeStep::Last(free) => {
                    free_record(pool, Change::Remove { key: key.bytes() }, free)?;
                    Ok(Freed::Some(None))
                }
            }
        }
    }
}

/// Pages that one record may touch, so that they fit into the frames together.
fn step_pages(pool: &Pool, head: PageId, most: usize) -> usize {
    (pool.frames_least(head) as usize / 32).clamp(2, most)
}

/// Changes the garbage tree and frees pages, in one system record.
fn free_record(pool: &Pool, change: Change<'_>, free: Vec<PageId>) -> Result<()> {
    let bytes = log_bytes(&change, 0) + free.len() as u64 * FREE_BYTES;
    let mut reservation = pool.reserve_log_to_free(bytes)?;
    let mut write = Write { reservation: Some(&mut reservation), free, ..Write::default() };
    garbage_tree(pool).apply(pool, &mut write, change).map(|_| ())
}

/// The change that creates an entry, or updates the head of a value being written.
pub(crate) fn put<'a>(key: &'a GarbageKey, value: &'a [u8]) -> Change<'a> {
    Change::Put { key: key.bytes(), timestamp: Timestamp::NONE, flags: 0, value }
}

enum Freed {
    Later,
    /// Some pages; the rest is in the item.
    Some(Option<Item>),
}

#[cfg(test)]
mod tests;
