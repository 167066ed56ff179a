//! Old versions of entries, in DRAM, for snapshots. The tree holds the newest version of each key; what a commit
//! replaces or removes goes here first, under the timestamp that superseded it.
//!
//! ```text
//!   key k:   [4, 9) "a"     [9, 15) absent     [15, 22) "b"      tree: 22 "c"
//!                 9 superseded it  15                22
//! ```
//!
//! Every change pushes, so a key's versions follow each other without a gap, and what counted at time `t` is the
//! version with the lowest superseding timestamp above `t`; if there is none, the tree's entry counts. That rule needs
//! no timestamp of an *absent* version, which no page records. A commit pushes before it changes the page and a
//! reader reads the page first: if it finds the changed page, the old version is here already. If it finds the old
//! page and then the old version as well, both say the same.
//!
//! A key that was deleted is in no leaf, so a scan in the past would not know to ask for it. Such keys are also in
//! an ordered index; one atomic load tells that it is empty.
//!
//! **Collecting.** No snapshot reads below the oldest one, so a version superseded at or before it is dropped. Each
//! shard has a queue of its versions, oldest push first, and collecting pops from it: the cost is proportional to what
//! is dropped. Keys are locked from before the timestamp is drawn, so one key's versions are pushed in timestamp
//! order; different keys' may be swapped by a few places, and one that is late waits for the next collection.
//! Overflow values of dropped versions are handed to the caller, who frees their pages.
//!
//! Locks: one mutex per shard and one per part of the index of deleted keys; never two at a time.

mod deleted;

use std::collections::{HashMap, VecDeque};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use foldhash::fast::FixedState;
use parking_lot::Mutex;

use self::deleted::DeletedKeys;
use super::{Key, KeyRange, Padded, hash_key};
use crate::{TableId, Timestamp};

const SHARDS: usize = 64;
/// Versions dropped under one hold of a shard's mutex: about ten microseconds, the longest a reader waits.
const DROPPED_AT_ONCE: usize = 128;
/// What the allocator adds to a block, and the two counts of a shared pointer.
const BLOCK_OVERHEAD_BYTES: usize = 8;
const SHARED_OVERHEAD_BYTES: usize = BLOCK_OVERHEAD_BYTES + 16;

/// Where a value lies that is too large for a leaf: 16 bytes that only the index reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct OverflowRef(pub [u8; 16]);

/// The value a key had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum OldValue {
    /// None: the key was not there.
    Absent,
    /// These bytes, shared so that a reader copies them outside the mutex.
    Inline(Arc<[u8]>),
    /// Bytes in overflow pages. They stay until the version is dropped.
    Overflow(OverflowRef),
}

/// What a key's entry was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OldVersion {
    /// The commit that wrote it; none where the key was absent and nobody knows since when.
    pub timestamp: Timestamp,
    /// Its value.
    pub value: OldValue,
}

/// What [`Versions::collect`] has dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Collected {
    /// Versions dropped.
    pub versions: usize,
    /// Bytes of memory they took, without the share of tables that have not shrunk.
    pub bytes: usize,
}

/// The old versions of all keys.
#[derive(Debug)]
pub(crate) struct Versions {
    shards: Box<[Padded<Shard>]>,
    deleted: DeletedKeys,
    bytes_max: usize,
    /// Entries that an empty shard may keep room for, so that small limits are not used up by nothing.
    spare: usize,
}

#[derive(Debug)]
struct Shard {
    /// Superseding timestamp at the queue's front, `u64::MAX` if it is empty: whether a collection must look inside.
    front: AtomicU64,
    /// Memory taken, stored by who holds the mutex.
    bytes: AtomicUsize,
    inside: Mutex<Inside>,
}

#[derive(Debug, Default)]
struct Inside {
    chains: HashMap<Name, Chain, FixedState>,
    /// Every version pushed and not collected, also those retracted since.
    queue: VecDeque<(Timestamp, Name)>,
    /// Bytes of keys, values and long chains, which no capacity tells.
    heap_bytes: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Name {
    table: TableId,
    key: Key,
}

/// A key's versions. Most keys have one, which then needs no allocation.
#[derive(Debug)]
struct Chain {
    oldest: Version,
    newer: VecDeque<Version>,
}

#[derive(Debug)]
struct Version {
    superseded_at: Timestamp,
    /// Whether it was superseded by a deletion, and so is in the index of deleted keys.
    deleted: bool,
    old: OldVersion,
}

/// Lets a map of owned names be searched with borrowed ones.
trait Named {
    fn parts(&self) -> (TableId, &[u8]);
}

impl Named for Name {
    fn parts(&self) -> (TableId, &[u8]) {
        (self.table, &self.key)
    }
}

impl Named for (TableId, &[u8]) {
    fn parts(&self) -> (TableId, &[u8]) {
        *self
    }
}

impl Hash for dyn Named + '_ {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let (table, key) = self.parts();
        state.write_u64(table.0);
        state.write(key);
    }
}

impl PartialEq for dyn Named + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.parts() == other.parts()
    }
}

impl Eq for dyn Named + '_ {}

impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self as &dyn Named).hash(state);
    }
}

impl<'a> std::borrow::Borrow<dyn Named + 'a> for Name {
    fn borrow(&self) -> &(dyn Named + 'a) {
        self
    }
}

impl Version {
    fn heap_bytes(&self) -> usize {
        match &self.old.value {
            OldValue::Inline(bytes) => bytes.len() + SHARED_OVERHEAD_BYTES,
            OldValue::Absent | OldValue::Overflow(_) => 0,
        }
    }
}

impl Chain {
    /// The version that counted at `at`.
    fn read(&self, at: Timestamp) -> Option<&Version> {
        if self.oldest.superseded_at > at {
            return Some(&self.oldest);
        }
        let below = self.newer.partition_point(|version| version.superseded_at <= at);
        self.newer.get(below)
    }

    fn newest(&self) -> &Version {
        self.newer.back().unwrap_or(&self.oldest)
    }
}

impl Inside {
    /// Removes one end of a chain if it was superseded at exactly `superseded_at`.
    fn remove(
        &mut self,
        name: &dyn Named,
        superseded_at: Timestamp,
        from_the_front: bool,
    ) -> Option<Version> {
        let chain = self.chains.get_mut(name)?;
        let found = if from_the_front { &chain.oldest } else { chain.newest() };
        if found.superseded_at != superseded_at {
            return None;
        }
        let capacity = chain.newer.capacity();
        let removed = if from_the_front {
            chain.newer.pop_front().map(|next| std::mem::replace(&mut chain.oldest, next))
        } else {
            chain.newer.pop_back()
        };
        // A chain that was long once gives its room back when it is short again.
        if chain.newer.capacity() > 8 && chain.newer.len() < chain.newer.capacity() / 4 {
            chain.newer.shrink_to(chain.newer.len() * 2);
        }
        self.heap_bytes -= (capacity - chain.newer.capacity()) * size_of::<Version>();
        let removed = match removed {
            Some(version) => version,
            None => {
                let rest = chain.newer.capacity() * size_of::<Version>();
                let chain = self.chains.remove(name)?;
                self.heap_bytes -= rest + name.parts().1.len() + SHARED_OVERHEAD_BYTES;
                chain.oldest
            }
        };
        self.heap_bytes -= removed.heap_bytes();
        Some(removed)
    }

    fn bytes(&self) -> usize {
        // A hash map's capacity is seven eighths of its slots, each with a byte of control.
        let slots = self.chains.capacity() * 8 / 7;
        self.heap_bytes
            + slots * (size_of::<(Name, Chain)>() + 1)
            + self.queue.capacity() * size_of::<(Timestamp, Name)>()
    }

    /// Gives spare room back, but for `spare` entries' worth.
    fn shrink(&mut self, spare: usize) {
        if self.chains.capacity() > spare && self.chains.len() < self.chains.capacity() / 8 {
            self.chains.shrink_to(self.chains.len() * 2);
        }
        if self.queue.capacity() > spare && self.queue.len() < self.queue.capacity() / 8 {
            self.queue.shrink_to(self.queue.len() * 2);
        }
    }
}

impl Shard {
    /// Stores what others may know without the mutex. The partner of both is a guess, so relaxed is enough.
    fn publish(&self, inside: &Inside) {
        self.bytes.store(inside.bytes(), Relaxed);
        self.front.store(inside.queue.front().map_or(u64::MAX, |(front, _)| front.0), Relaxed);
    }
}

impl Versions {
    /// No old versions; they shall not take more than `bytes_max` bytes of memory, see [`Versions::is_over_limit`].
    pub(crate) fn new(bytes_max: usize) -> Self {
        let shard = || Shard {
            front: AtomicU64::new(u64::MAX),
            bytes: AtomicUsize::new(0),
            inside: Mutex::new(Inside {
                chains: HashMap::with_hasher(FixedState::with_seed(super::HASH_SEED)),
                ..Inside::default()
            }),
        };
        let shards = (0..SHARDS).map(|_| Padded(shard())).collect();
        let spare = bytes_max / SHARDS / 4 / size_of::<(Timestamp, Name, Name, Chain)>();
        Versions { shards, deleted: DeletedKeys::default(), bytes_max, spare: spare.clamp(4, 64) }
    }

    fn shard(&self, table: TableId, key: &[u8]) -> &Shard {
        // The upper bits: the lock table uses the lower ones, and its collisions should not be repeated here.
        &self.shards[(hash_key(table, key) >> 32) as usize % SHARDS]
    }

    /// Keeps `old`, which the commit at `superseded_at` is about to replace or, if `deletes`, to remove. To be called
    /// with the key locked and before its page is changed.
    pub(crate) fn push(
        &self,
        table: TableId,
        key: &Key,
        superseded_at: Timestamp,
        deletes: bool,
        old: OldVersion,
    ) {
        debug_assert!(old.timestamp < superseded_at, "a version is superseded after it is written");
        if deletes {
            self.deleted.insert(table, key, superseded_at);
        }
        let version = Version { superseded_at, deleted: deletes, old };
        let name = Name { table, key: Arc::clone(key) };
        let shard = self.shard(table, key);
        let mut inside = shard.inside.lock();
        inside.heap_bytes += version.heap_bytes();
        inside.queue.push_back((superseded_at, name.clone()));
        match inside.chains.get_mut(&name as &dyn Named) {
            Some(chain) => {
                assert!(
                    chain.newest().superseded_at < superseded_at,
                    "versions are pushed in timestamp order"
                );
                let capacity = chain.newer.capacity();
                chain.newer.push_back(version);
                let grown = chain.newer.capacity() - capacity;
                inside.heap_bytes += grown * size_of::<Version>();
            }
            None => {
                inside.heap_bytes += key.len() + SHARED_OVERHEAD_BYTES;
                inside.chains.insert(name, Chain { oldest: version, newer: VecDeque::new() });
            }
        }
        shard.publish(&inside);
    }

    /// Takes back what the commit at `superseded_at` has pushed for `key`: it failed before it changed the page. The
    /// old entry, its overflow value included, is still the page's.
    pub(crate) fn retract(&self, table: TableId, key: &[u8], superseded_at: Timestamp) {
        let shard = self.shard(table, key);
        let mut inside = shard.inside.lock();
        let removed = inside.remove(&(table, key), superseded_at, false);
        shard.publish(&inside);
        drop(inside);
        if removed.is_some_and(|version| version.deleted) {
            self.deleted.remove(table, key);
        }
    }

    /// What counted for `key` at time `at`, if it is no longer what the page says, the page having been read before.
    ///
    /// `Some` with [`OldValue::Absent`]: the key was absent. `None`: nothing is stored for that time. Then the page's
    /// entry counts, or the page's lack of one; and if that entry is newer than `at`, the snapshot was given up.
    pub(crate) fn read(&self, table: TableId, key: &[u8], at: Timestamp) -> Option<OldVersion> {
        let inside = self.shard(table, key).inside.lock();
        let version = inside.chains.get(&(table, key) as &dyn Named)?.read(at)?;
        // Written after `at`: what counted then is dropped already, under a snapshot that was given up.
        (version.old.timestamp <= at).then(|| version.old.clone())
    }

    /// Whether certainly no key of `table` was deleted that a snapshot might miss. Asked after its leaf was read.
    #[inline]
    pub(crate) fn nothing_deleted(&self, table: TableId) -> bool {
        self.deleted.is_empty(table)
    }

    /// The keys of `table` in `range` that were there at time `at` and have been deleted since, in key order. Some
    /// may be back in a leaf, or not gone from it yet: of a key in both, either may be used for an entry not newer
    /// than `at`, this one otherwise. The leaf is read before.
    pub(crate) fn deleted_in(
        &self,
        table: TableId,
        range: KeyRange<'_>,
        at: Timestamp,
    ) -> Vec<(Key, OldVersion)> {
        if self.deleted.is_empty(table) {
            return Vec::new();
        }
        let there_at = |key: Key| {
            let old = self.read(table, &key, at)?;
            (old.value != OldValue::Absent).then_some((key, old))
        };
        self.deleted.keys_in(table, range, at).into_iter().filter_map(there_at).collect()
    }

    /// Drops all versions that no snapshot at or above `oldest` can need, and none superseded above `visible`. The
    /// overflow values that nothing refers to any longer are appended to `freed`.
    pub(crate) fn collect(
        &self,
        oldest: Timestamp,
        visible: Timestamp,
        freed: &mut Vec<OverflowRef>,
    ) -> Collected {
        // Below the front of an empty queue, whatever is asked for.
        let bound = oldest.min(visible).min(Timestamp(u64::MAX - 1));
        let mut collected = Collected::default();
        let mut dropped = Vec::new();
        for shard in &self.shards {
            while shard.front.load(Relaxed) <= bound.0 {
                collected.bytes += self.drop_some(shard, bound, &mut dropped);
                collected.versions += dropped.len();
                for (name, version) in dropped.drain(..) {
                    if version.deleted {
                        self.deleted.remove(name.table, &name.key);
                    }
                    if let OldValue::Overflow(reference) = version.old.value {
                        freed.push(reference);
                    }
                }
            }
        }
        collected
    }

    fn drop_some(&self, shard: &Shard, bound: Timestamp, dropped: &mut Vec<(Name, Version)>) -> usize {
        let mut inside = shard.inside.lock();
        let before = inside.heap_bytes;
        for _ in 0..DROPPED_AT_ONCE {
            match inside.queue.front() {
                Some((superseded_at, _)) if *superseded_at <= bound => {}
                _ => break,
            }
            if let Some((superseded_at, name)) = inside.queue.pop_front()
                // Not there = retracted: the queue was not searched for it then.
                && let Some(version) = inside.remove(&name, superseded_at, true)
            {
                dropped.push((name, version));
            }
        }
        let freed = before - inside.heap_bytes + dropped.len() * size_of::<Version>();
        inside.shrink(self.spare);
        shard.publish(&inside);
        freed
    }

    /// Bytes of memory taken, tables with their spare room included. Not exact while others push.
    pub(crate) fn size_bytes(&self) -> usize {
        let shards: usize = self.shards.iter().map(|shard| shard.bytes.load(Relaxed)).sum();
        size_of::<Self>() + size_of_val(&*self.shards) + shards + self.deleted.size_bytes()
    }

    /// Whether they take more memory than they should. The caller then gives up the oldest snapshots and collects.
    pub(crate) fn is_over_limit(&self) -> bool {
        self.size_bytes() > self.bytes_max
    }
}

#[cfg(test)]
mod tests;
