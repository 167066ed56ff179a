//! Old versions of entries, in DRAM, for snapshots.
//!
//! The tree holds the newest version of each key. What a commit replaces or removes goes here
//! first, under the timestamp that superseded it.
//!
//! ```text
//!   key k:   [4, 9) "a"     [9, 15) absent     [15, 22) "b"      tree: 22 "c"
//!                 9 superseded it  15                22
//! ```
//!
//! Every change pushes, so versions have no gaps. At time `t` the version with the lowest
//! superseding timestamp above `t` counts, else the tree's entry. Commits push before they change
//! the page and readers read the page first, so they miss neither. A change of a part of a value
//! pushes that part only (`versions/chain.rs`).
//!
//! **Chains.** Keys with one hash share a chain, newest version first. A commit locks that hash
//! before it draws its timestamp, so a chain has one writer and timestamps fall from the head on. A
//! second link jumps further down for logarithmic searches (*skew-binary* list, Myers, "An
//! applicative random-access stack").
//!
//! **Collection** drops versions superseded at or before the oldest snapshot from the queues'
//! fronts. A chunk is reused once all of it is dropped. Nothing is unlinked: a link with an earlier
//! generation than its chunk's ends the chain, behind which no valid snapshot needs anything. Every
//! 64 commits a thread collects its own queue; the collector thread (`db/core.rs`), or the commit
//! in inline mode, collects all.
//!
//! Locks: one mutex per queue, below it one for the free chunks; one per part of the deleted keys.

mod arena;
mod chain;
mod deleted;
mod queue;
mod record;
mod version;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use self::arena::Arena;
use self::chain::{Chain, Read, WHOLE_EVERY};
use self::deleted::DeletedKeys;
use self::queue::Queue;
use self::record::{New, RECORD_BYTES_MIN};
pub(crate) use self::version::{Collected, OldValue, OldVersion, OverflowRef};
use self::version::{Link, QUEUES_MAX};
use super::{Key, KeyRange, Padded, hash_key, thread_number};
use crate::error::{Error, Result};
use crate::planted::{Bug, planted};
use crate::{TableId, Timestamp};

/// The share of the limit for the queues' first chunks: a few versions per thread always fit.
const FIRST_CHUNKS_SHARE: usize = 4;

#[derive(Debug)]
pub(crate) struct Versions {
    heads: Box<[AtomicU64]>,
    arena: Arena,
    queues: Box<[Padded<Queue>]>,
    deleted: DeletedKeys,
    bytes_max: AtomicUsize,
}

/// Sizes and limits of [`Versions`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    /// Chains: as many as the lock table has slots.
    pub(crate) chains: usize,
    /// The soft limit in bytes; see [`Versions::is_over_limit`].
    pub(crate) bytes_max: usize,
    /// The hard limit in bytes: reserved addresses, no memory.
    pub(crate) bytes_reserved: usize,
    pub(crate) entry_bytes_max: usize,
}

impl Versions {
    /// Reserves an empty store.
    ///
    /// # Errors
    /// [`Error::Memory`] if the addresses cannot be reserved.
    pub(crate) fn new(room: Room) -> Result<Self> {
        let arena = Arena::new(room.bytes_max, room.bytes_reserved, RECORD_BYTES_MIN + room.entry_bytes_max)?;
        let queues = room.bytes_max / FIRST_CHUNKS_SHARE / (arena.chunk_words() * 8);
        Ok(Versions {
            heads: (0..room.chains.next_power_of_two()).map(|_| AtomicU64::new(0)).collect(),
            queues: (0..queues.clamp(1, QUEUES_MAX)).map(|_| Padded::default()).collect(),
            deleted: DeletedKeys::default(),
            // Bounded by a link's reach: snapshots are given up before there is no room at all.
            bytes_max: AtomicUsize::new(room.bytes_max.min(arena.bytes_max() / 2)),
            arena,
        })
    }

    /// Changes the limit, and returns memory above it. Collection removes the excess.
    pub(crate) fn set_bytes_max(&self, bytes_max: usize) {
        self.bytes_max.store(bytes_max.min(self.arena.bytes_max() / 2), Relaxed);
        self.arena.set_bytes_max(bytes_max);
    }

    /// The lowest limit that spares snapshots for a few versions per thread.
    pub(crate) fn bytes_max_least(&self) -> usize {
        FIRST_CHUNKS_SHARE * self.queues.len() * self.arena.chunk_words() * 8
    }

    fn head(&self, table: TableId, key: &[u8]) -> &AtomicU64 {
        &self.heads[hash_key(table, key) as usize & (self.heads.len() - 1)]
    }

    /// Keeps `old` before the commit at `superseded_at` replaces or removes it. `deletes` tells
    /// which. The key is locked since before the timestamp was drawn.
    ///
    /// # Errors
    /// [`Error::Full`] if there is no room at all, which takes a reader that never ends;
    /// [`Error::Corrupt`] for an entry that no leaf can hold. Nothing was kept.
    pub(crate) fn push(
        &self,
        table: TableId,
        key: &[u8],
        superseded_at: Timestamp,
        deletes: bool,
        old: &OldVersion<&[u8]>,
    ) -> Result<()> {
        debug_assert!(old.timestamp < superseded_at, "a version is superseded after it is written");
        if record::words_of(key, old) > self.arena.chunk_words() {
            return Err(Error::corrupt("the page file", None, "an entry is longer than a leaf can hold"));
        }
        if deletes {
            self.deleted.insert(table, &Key::from(key), superseded_at);
        }
        let head = self.head(table, key);
        let below = Link(head.load(Relaxed));
        let (jump, depth) = self.jump_over(below);
        let new = New { table, key, superseded_at, deletes, old, below, jump, depth };
        let queue = &self.queues[thread_number() as usize % self.queues.len()];
        let Some(link) = queue.push(&self.arena, &new) else {
            if deletes {
                self.deleted.remove(table, key);
            }
            let what =
                "the memory for old versions of entries, which open snapshots and transactions still need";
            return Err(Error::Full { what: what.into() });
        };
        // Release: publishes the version behind the link.
        head.store(link.0, Release);
        Ok(())
    }

    /// The newest version of the chain of `key`, which is locked.
    fn newest(&self, table: TableId, key: &[u8]) -> Link {
        Link(self.head(table, key).load(Relaxed))
    }

    /// Whether the next version of `key` has a whole value: in a long chain, if a snapshot needs
    /// the version before. The key is locked.
    pub(crate) fn wants_whole(&self, table: TableId, key: &[u8], oldest: impl FnOnce() -> Timestamp) -> bool {
        let newest = self.arena.header(self.newest(table, key));
        newest.is_some_and(|newest| {
            (newest.depth + 1).is_multiple_of(WHOLE_EVERY) && newest.superseded_at > oldest()
        })
    }

    /// The jump target and the depth of a version above `below`.
    fn jump_over(&self, below: Link) -> (Link, u64) {
        let Some(next) = self.arena.header(below) else { return (Link::NONE, 1) };
        let skip = self.arena.header(next.jump).zip(Some(next.jump));
        let further = skip.and_then(|(skip, _)| Some((skip, self.arena.header(skip.jump)?)));
        match further {
            // Wrapping: concurrently dropped versions may read as zeros.
            Some((skip, far))
                if next.depth.wrapping_sub(skip.depth) == skip.depth.wrapping_sub(far.depth) =>
            {
                (skip.jump, next.depth + 1)
            }
            _ => (below, next.depth + 1),
        }
    }

    /// Retracts a push of a commit that failed before it changed the page, which keeps the old
    /// entry and its overflow value. The key is still locked.
    pub(crate) fn retract(&self, table: TableId, key: &[u8], superseded_at: Timestamp) {
        self.with_pushed(table, key, superseded_at, |link, is_deletion| {
            if is_deletion {
                self.deleted.remove(table, key);
            }
            self.arena.retract(link);
        });
    }

    /// Notes that a commit was undone after it had changed the page, which has the old entry and
    /// overflow value again. The version stays for readers that saw the change. The key is still
    /// locked, and the timestamp undecided.
    pub(crate) fn restored(&self, table: TableId, key: &[u8], superseded_at: Timestamp) {
        if !planted(Bug::FreeRestoredValue) {
            self.with_pushed(table, key, superseded_at, |link, _| self.arena.restored(link));
        }
    }

    /// Calls back with a pushed version, and whether it deletes.
    fn with_pushed(
        &self,
        table: TableId,
        key: &[u8],
        superseded_at: Timestamp,
        found: impl FnOnce(Link, bool),
    ) {
        let mut link = self.newest(table, key);
        while let Some(header) = self.arena.header(link)
            && header.superseded_at >= superseded_at
        {
            if header.superseded_at == superseded_at && self.arena.is_of(link, table, key) {
                return found(link, header.is_deletion());
            }
            link = header.below;
        }
        debug_assert!(false, "it was pushed, and is above all that may be dropped");
    }

    /// The version of `key` at time `at`; call it after reading the page without an inline value.
    ///
    /// [`OldValue::Absent`] if the key was absent. `None`: the page's entry, or its absence,
    /// counts; if that entry is newer than `at`, the snapshot was given up.
    pub(crate) fn read(&self, table: TableId, key: &[u8], at: Timestamp) -> Option<OldVersion> {
        self.find(Read { table, key, at, value: None })
    }

    /// [`Versions::read`] if the page has `newer`, an inline value written after `at`, or a part of
    /// one. Then the version may be the same part.
    pub(crate) fn read_below(
        &self,
        table: TableId,
        key: &[u8],
        at: Timestamp,
        newer: &OldValue<&[u8]>,
    ) -> Option<OldVersion> {
        self.find(Read { table, key, at, value: Some(newer) })
    }

    fn find(&self, read: Read<'_>) -> Option<OldVersion> {
        // Acquire: pairs with the store in `push`.
        let head = Link(self.head(read.table, read.key).load(Acquire));
        Chain::new(&self.arena, head).version(read)
    }

    /// Whether no snapshot can miss a deleted key of `table`. Ask after reading the leaf.
    #[inline]
    pub(crate) fn nothing_deleted(&self, table: TableId) -> bool {
        self.deleted.is_empty(table)
    }

    /// The keys in `range` that existed at time `at` and were deleted since, in order. Some may
    /// also be in a leaf, returned or not gone yet. Then an entry not newer than `at` may come from
    /// either, any other from here. Read the leaf first.
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

    /// Drops all versions that no snapshot at or above `oldest` needs. Keeps those superseded above
    /// `visible`. Appends unreferenced overflow values to `freed`.
    pub(crate) fn collect(
        &self,
        oldest: Timestamp,
        visible: Timestamp,
        freed: &mut Vec<OverflowRef>,
    ) -> Collected {
        self.queues.iter().fold(Collected::default(), |mut all, queue| {
            let collected = self.collect_from(queue, oldest.min(visible), freed);
            all.versions += collected.versions;
            all.bytes += collected.bytes;
            all
        })
    }

    /// [`Versions::collect`] for the calling thread's slot only.
    pub(crate) fn collect_own(
        &self,
        oldest: Timestamp,
        visible: Timestamp,
        freed: &mut Vec<OverflowRef>,
    ) -> Collected {
        let queue = &self.queues[thread_number() as usize % self.queues.len()];
        self.collect_from(queue, oldest.min(visible), freed)
    }

    fn collect_from(&self, queue: &Queue, bound: Timestamp, freed: &mut Vec<OverflowRef>) -> Collected {
        let mut collected = Collected::default();
        while queue.holds_below(bound) {
            let dropped = queue.drop_some(&self.arena, bound, |version| {
                if version.is_deletion {
                    if version.is_restored {
                        self.deleted.note_taken_back(version.table);
                    }
                    self.deleted.remove(version.table, &version.key);
                }
                freed.extend(version.overflow);
            });
            collected.versions += dropped.versions;
            collected.bytes += dropped.bytes;
        }
        collected
    }

    /// Bytes of all versions ever pushed, dropped ones included.
    pub(crate) fn pushed_bytes(&self) -> u64 {
        self.queues.iter().map(|queue| queue.pushed_bytes()).sum()
    }

    /// Bytes of memory taken. Approximate during pushes.
    pub(crate) fn size_bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.heads) + size_of_val(&*self.queues) + self.payload_bytes()
    }

    fn payload_bytes(&self) -> usize {
        self.arena.resident_bytes() + self.deleted.size_bytes()
    }

    /// Whether they exceed the limit. The caller then gives up the oldest snapshots and collects.
    pub(crate) fn is_over_limit(&self, reads: usize) -> bool {
        let bytes_max = self.bytes_max.load(Relaxed);
        self.arena.used_bytes() + self.deleted.size_bytes() + reads.min(bytes_max / 2) > bytes_max
    }
}

#[cfg(test)]
mod tests;
