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
//! | file         | what is in it                                                                   |
//! |--------------|---------------------------------------------------------------------------------|
//! | `arena.rs`   | the memory: chunks that come and go, read while they may be used again          |
//! | `record.rs`  | a version as words of a chunk                                                   |
//! | `queue.rs`   | the versions of one slot's threads in the order of their pushes                 |
//! | `deleted.rs` | the keys that are in no leaf any more, in key order                             |
//!
//! **Chains.** Keys that hash to one number share a chain, newest version first; its head is a word in an array as
//! long as the lock table and indexed by the same hash. Who pushes holds that lock since before it drew its timestamp,
//! so a chain has one writer at a time and its timestamps fall strictly from the head on. A second link in each
//! version jumps further down (a *skew-binary* list, Myers, "An applicative random-access stack"), so that a long
//! history of a hot key costs an old snapshot logarithmically many steps.
//!
//! **Collecting.** No snapshot reads below the oldest one, so a version superseded at or before it is dropped. A
//! push goes to the end of the queue of its thread's slot, and collecting takes from the front, so the cost is
//! proportional to what is dropped and no memory is allocated or freed for a single version. A chunk is used again
//! when all of it is dropped. Nothing unlinks what is dropped: the links to it carry the chunk's generation, and a
//! reader takes a link of an earlier generation for the end of the chain. That is right, for behind it there is
//! nothing that a snapshot which has not been given up could need.
//!
//! A key that was deleted is in no leaf, so a scan in the past would not know to ask for it. Such keys are also in
//! an ordered index; one atomic load tells that it is empty. Overflow values of dropped versions are handed to the
//! caller, who frees their pages.
//!
//! Locks: one mutex per queue, one for the free chunks below it; one per part of the index of deleted keys.

mod arena;
mod deleted;
mod queue;
mod record;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use self::arena::{Arena, Link};
use self::deleted::DeletedKeys;
use self::queue::Queue;
use self::record::{Header, New, RECORD_BYTES_MIN};
use super::{Key, KeyRange, Padded, hash_key, thread_number};
use crate::error::{Error, Result};
use crate::planted::{Bug, planted};
use crate::{TableId, Timestamp};

/// Queues at most. Threads beyond share.
const QUEUES_MAX: usize = 64;
/// Queues hold at least a chunk each while they hold anything: together no more than one part in this many of what old
/// versions may take, so that a version or two of each thread never are too much.
const FIRST_CHUNKS_SHARE: usize = 4;

/// Where a value lies that is too large for a leaf: 16 bytes that only the index reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct OverflowRef(pub [u8; 16]);

/// The value a key had. `B`: borrowed where a version is pushed, owned where one is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum OldValue<B = Vec<u8>> {
    /// None: the key was not there.
    Absent,
    /// These bytes.
    Inline(B),
    /// Bytes in overflow pages. They stay until the version is dropped.
    Overflow(OverflowRef),
}

/// What a key's entry was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OldVersion<B = Vec<u8>> {
    /// The commit that wrote it; none where the key was absent and nobody knows since when.
    pub timestamp: Timestamp,
    /// Its value.
    pub value: OldValue<B>,
}

/// What [`Versions::collect`] has dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Collected {
    /// Versions dropped.
    pub versions: usize,
    /// Bytes of memory that can be used again.
    pub bytes: usize,
}

/// The old versions of all keys.
#[derive(Debug)]
pub(crate) struct Versions {
    /// The newest version of each chain.
    heads: Box<[AtomicU64]>,
    arena: Arena,
    queues: Box<[Padded<Queue>]>,
    deleted: DeletedKeys,
    bytes_max: AtomicUsize,
}

/// How much room old versions may take, and what they are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    /// Chains: as many as the lock table has slots.
    pub(crate) chains: usize,
    /// Bytes they shall not take more of; see [`Versions::is_over_limit`].
    pub(crate) bytes_max: usize,
    /// Bytes they cannot take more of: addresses reserved, no memory.
    pub(crate) bytes_reserved: usize,
    /// The longest key and value together.
    pub(crate) entry_bytes_max: usize,
}

impl Versions {
    /// No old versions.
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
            // A link reaches so far and no further, whatever the budget is: snapshots are given up before there is no
            // room at all.
            bytes_max: AtomicUsize::new(room.bytes_max.min(arena.bytes_max() / 2)),
            arena,
        })
    }

    /// Changes the limit, and gives memory back that is not needed for the new one. What is over it is collected as
    /// always.
    pub(crate) fn set_bytes_max(&self, bytes_max: usize) {
        self.bytes_max.store(bytes_max.min(self.arena.bytes_max() / 2), Relaxed);
        self.arena.set_bytes_max(bytes_max);
    }

    /// The lowest limit that does not give snapshots up for a version or two of each thread.
    pub(crate) fn bytes_max_least(&self) -> usize {
        FIRST_CHUNKS_SHARE * self.queues.len() * self.arena.chunk_words() * 8
    }

    fn head(&self, table: TableId, key: &[u8]) -> &AtomicU64 {
        &self.heads[hash_key(table, key) as usize & (self.heads.len() - 1)]
    }

    /// Keeps `old`, which the commit at `superseded_at` is about to replace or, if `deletes`, to remove. To be called
    /// with the key locked since before the timestamp was drawn, and before its page is changed.
    ///
    /// # Errors
    /// [`Error::Full`] if there is no room at all, which takes a reader that holds on to everything; [`Error::Corrupt`]
    /// for an entry that no leaf can hold. Nothing was kept.
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
        // Release: whoever finds the link finds the version behind it.
        head.store(link.0, Release);
        Ok(())
    }

    /// Where a version above `below` jumps to, and how many versions there are from it on.
    fn jump_over(&self, below: Link) -> (Link, u64) {
        let Some(next) = self.arena.header(below) else { return (Link::NONE, 1) };
        let skip = self.arena.header(next.jump).zip(Some(next.jump));
        let further = skip.and_then(|(skip, _)| Some((skip, self.arena.header(skip.jump)?)));
        match further {
            // Wrapping: what is dropped meanwhile may read as zeros.
            Some((skip, far))
                if next.depth.wrapping_sub(skip.depth) == skip.depth.wrapping_sub(far.depth) =>
            {
                (skip.jump, next.depth + 1)
            }
            _ => (below, next.depth + 1),
        }
    }

    /// Takes back what the commit at `superseded_at` has pushed for `key`: it failed before it changed the page. The
    /// old entry, its overflow value included, is still the page's. The key is still locked.
    pub(crate) fn retract(&self, table: TableId, key: &[u8], superseded_at: Timestamp) {
        self.with_pushed(table, key, superseded_at, |link, is_deletion| {
            if is_deletion {
                self.deleted.remove(table, key);
            }
            self.arena.retract(link);
        });
    }

    /// The commit at `superseded_at` was taken back after it had changed the page of `key`: the old entry, its overflow
    /// value included, is the page's again. The version stays for readers that saw the page changed. The key is still
    /// locked, and the timestamp undecided.
    pub(crate) fn restored(&self, table: TableId, key: &[u8], superseded_at: Timestamp) {
        if !planted(Bug::FreeRestoredValue) {
            self.with_pushed(table, key, superseded_at, |link, _| self.arena.restored(link));
        }
    }

    /// Calls back with the version that the commit at `superseded_at` has pushed for `key`, and whether it deletes.
    fn with_pushed(
        &self,
        table: TableId,
        key: &[u8],
        superseded_at: Timestamp,
        found: impl FnOnce(Link, bool),
    ) {
        let mut link = Link(self.head(table, key).load(Relaxed));
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

    /// What counted for `key` at time `at`, if it is no longer what the page says, the page having been read before.
    ///
    /// `Some` with [`OldValue::Absent`]: the key was absent. `None`: nothing is stored for that time. Then the page's
    /// entry counts, or the page's lack of one; and if that entry is newer than `at`, the snapshot was given up.
    pub(crate) fn read(&self, table: TableId, key: &[u8], at: Timestamp) -> Option<OldVersion> {
        // Acquire: partner of the store in `push`.
        let head = Link(self.head(table, key).load(Acquire));
        let found = match self.lowest_above(head, at) {
            Some((link, header)) if !header.is_retracted() && self.arena.is_of(link, table, key) => {
                Some(link)
            }
            Some(_) => self.lowest_of(head, table, key, at),
            None => None,
        };
        // Written after `at`: what counted then is dropped already, under a snapshot that was given up.
        self.arena.version(found?).filter(|version| version.timestamp <= at)
    }

    /// The version of a chain with the lowest superseding timestamp above `at`, whosever it is.
    fn lowest_above(&self, head: Link, at: Timestamp) -> Option<(Link, Header)> {
        let above = |link: Link| self.arena.header(link).filter(|header| header.superseded_at > at);
        let mut found = (head, above(head)?);
        loop {
            let next = [found.1.jump, found.1.below].into_iter().find_map(|link| Some((link, above(link)?)));
            match next {
                Some(next) => found = next,
                None => return Some(found),
            }
        }
    }

    /// The same for one key, link by link: for chains that several keys share.
    #[cold]
    fn lowest_of(&self, head: Link, table: TableId, key: &[u8], at: Timestamp) -> Option<Link> {
        let mut found = None;
        let mut link = head;
        while let Some(header) = self.arena.header(link).filter(|header| header.superseded_at > at) {
            if !header.is_retracted() && self.arena.is_of(link, table, key) {
                found = Some(link);
            }
            link = header.below;
        }
        found
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
        self.queues.iter().fold(Collected::default(), |mut all, queue| {
            let collected = self.collect_from(queue, oldest.min(visible), freed);
            all.versions += collected.versions;
            all.bytes += collected.bytes;
            all
        })
    }

    /// As [`Versions::collect`], of what the calling thread's slot has pushed.
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

    /// Bytes of memory taken, chunks with their spare room included. Not exact while others push.
    pub(crate) fn size_bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.heads) + size_of_val(&*self.queues) + self.payload_bytes()
    }

    /// Bytes of memory that depend on how many versions are kept.
    fn payload_bytes(&self) -> usize {
        self.arena.resident_bytes() + self.deleted.size_bytes()
    }

    /// Whether they take more memory than they should. The caller then gives up the oldest snapshots and collects.
    pub(crate) fn is_over_limit(&self, reads: usize) -> bool {
        let bytes_max = self.bytes_max.load(Relaxed);
        self.arena.used_bytes() + self.deleted.size_bytes() + reads.min(bytes_max / 2) > bytes_max
    }
}

#[cfg(test)]
mod tests;
