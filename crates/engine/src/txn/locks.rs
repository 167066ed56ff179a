//! Key locks of commits: a fixed array of owner words, indexed by key hash.
//!
//! A commit locks its whole write set at once: sorted slot numbers without duplicates, so no
//! commits wait in a circle. Two keys in one slot share its lock, which costs a needless wait or
//! conflict and nothing else. A write set far larger than the table locks all of it. One word:
//!
//! ```text
//!   63            62 .. 0
//!  +---------+------------------------------+
//!  | waiters |  owner, 0 = not locked       |
//!  +---------+------------------------------+
//! ```
//!
//! A thread that finds a slot taken spins, yields, and then sleeps in one of a few beds. It sets
//! the waiters bit under the bed's mutex. The unlocker swaps the word to zero and, if the bit was
//! set, takes that mutex before it wakes the bed. So a sleeper is either seen, or sees the slot
//! free.
//!
//! Locking and checking are sequentially consistent: two commits that lock one key each and then
//! check the other's must not both find it free (write skew).

use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

use parking_lot::{Condvar, Mutex};

use super::{Padded, hash_key};
use crate::TableId;

const WAITERS: u64 = 1 << 63;
const BEDS: usize = 64;
/// Attempts before a waiter yields its core: a commit without disk access ends by then.
const SPINS: usize = 200;
const YIELDS: usize = 50;

#[derive(Debug)]
pub(crate) struct LockTable {
    slots: Box<[AtomicU64]>,
    beds: Box<[Padded<Bed>]>,
    waits: AtomicU64,
}

#[derive(Debug, Default)]
struct Bed {
    mutex: Mutex<()>,
    unlocked: Condvar,
}

/// Locks held by one commit; dropping it unlocks them.
#[derive(Debug)]
pub(crate) struct LockSet<'a> {
    table: &'a LockTable,
    owner: u64,
    slots: Vec<u32>,
    /// How many of `slots` are locked, from the first on.
    held: usize,
}

#[derive(Debug)]
#[must_use]
pub(crate) struct LockOne<'a> {
    table: &'a LockTable,
    owner: u64,
    slot: u32,
}

impl LockTable {
    /// 65,536 slots, 512 KiB: with 64 locked keys, one read in a thousand meets a foreign lock by
    /// chance.
    pub(crate) const SLOTS_DEFAULT: usize = 1 << 16;

    /// A table of `slots` locks, rounded up to a power of two.
    pub(crate) fn new(slots: usize) -> Self {
        let slots = slots.clamp(1, 1 << 30).next_power_of_two();
        LockTable {
            slots: (0..slots).map(|_| AtomicU64::new(0)).collect(),
            beds: (0..BEDS).map(|_| Padded::default()).collect(),
            waits: AtomicU64::new(0),
        }
    }

    pub(crate) fn size_bytes(&self) -> usize {
        size_of_val(&*self.slots) + size_of_val(&*self.beds)
    }

    pub(crate) fn waits(&self) -> u64 {
        self.waits.load(Relaxed)
    }

    pub(crate) fn slots(&self) -> usize {
        self.slots.len()
    }

    #[inline]
    pub(crate) fn slot(&self, table: TableId, key: &[u8]) -> u32 {
        (hash_key(table, key) & (self.slots.len() as u64 - 1)) as u32
    }

    /// Locks all `keys` for `owner`, waiting for other commits to finish.
    ///
    /// The caller holds no other lock set: slot order prevents circles within one call only.
    pub(crate) fn lock<'k>(
        &self,
        owner: u64,
        keys: impl IntoIterator<Item = (TableId, &'k [u8])>,
    ) -> LockSet<'_> {
        let mut set = self.prepare(owner, keys);
        while let Some(&slot) = set.slots.get(set.held) {
            self.lock_slot(slot, owner);
            set.held += 1;
        }
        set
    }

    /// Locks one key, for a commit that writes nothing else.
    pub(crate) fn lock_one(&self, owner: u64, table: TableId, key: &[u8]) -> LockOne<'_> {
        debug_assert!(owner != 0 && owner & WAITERS == 0, "{owner} cannot own a lock");
        let slot = self.slot(table, key);
        self.lock_slot(slot, owner);
        LockOne { table: self, owner, slot }
    }

    /// Whether a commit other than `me` holds the lock that covers this key.
    #[inline]
    pub(crate) fn is_locked_by_other(&self, table: TableId, key: &[u8], me: u64) -> bool {
        let owner = self.slots[self.slot(table, key) as usize].load(SeqCst) & !WAITERS;
        owner != 0 && owner != me
    }

    /// Waits until the commit that holds the lock of a slot now, if any, has left it.
    pub(crate) fn wait_out(&self, slot: u32) {
        let word = &self.slots[slot as usize];
        let owner = word.load(SeqCst) & !WAITERS;
        let held = |word: &AtomicU64| Some(word.load(SeqCst)).filter(|now| now & !WAITERS == owner);
        for attempt in 0..SPINS + YIELDS {
            if owner == 0 || held(word).is_none() {
                return;
            }
            if attempt < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
        self.waits.fetch_add(1, Relaxed);
        self.sleep_while(slot, |word| held(word).unwrap_or(0));
    }

    fn prepare<'k>(&self, owner: u64, keys: impl IntoIterator<Item = (TableId, &'k [u8])>) -> LockSet<'_> {
        assert!(owner != 0 && owner & WAITERS == 0, "{owner} cannot own a lock");
        let mut slots: Vec<u32> = keys.into_iter().map(|(table, key)| self.slot(table, key)).collect();
        slots.sort_unstable();
        slots.dedup();
        LockSet { table: self, owner, slots, held: 0 }
    }

    fn lock_slot(&self, slot: u32, owner: u64) {
        let word = &self.slots[slot as usize];
        for attempt in 0..SPINS + YIELDS {
            if word.compare_exchange(0, owner, SeqCst, SeqCst).is_ok() {
                return;
            }
            if attempt < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
        self.waits.fetch_add(1, Relaxed);
        self.sleep_while(slot, |word| word.compare_exchange(0, owner, SeqCst, SeqCst).err().unwrap_or(0));
    }

    /// Sleeps until `taken` finds the word of a slot free: it returns 0 then, else the word.
    fn sleep_while(&self, slot: u32, taken: impl Fn(&AtomicU64) -> u64) {
        let word = &self.slots[slot as usize];
        let bed = &self.beds[slot as usize % BEDS];
        let mut asleep = bed.mutex.lock();
        loop {
            match taken(word) {
                0 => break,
                // The bit is set under the mutex, which the wait releases only when this thread
                // sleeps.
                seen if seen & WAITERS != 0 => bed.unlocked.wait(&mut asleep),
                seen => {
                    let _ = word.compare_exchange(seen, seen | WAITERS, SeqCst, SeqCst);
                }
            }
        }
    }

    fn unlock_slot(&self, slot: u32, owner: u64) {
        let before = self.slots[slot as usize].swap(0, SeqCst);
        assert_eq!(before & !WAITERS, owner, "a lock was released by who does not hold it");
        if before & WAITERS != 0 {
            let bed = &self.beds[slot as usize % BEDS];
            // Wakes all of the bed, other slots' waiters included; each sets the bit again before
            // it sleeps.
            drop(bed.mutex.lock());
            bed.unlocked.notify_all();
        }
    }
}

impl LockSet<'_> {
    pub(super) fn slots(&self) -> &[u32] {
        &self.slots
    }
}

impl Drop for LockSet<'_> {
    fn drop(&mut self) {
        for &slot in &self.slots[..self.held] {
            self.table.unlock_slot(slot, self.owner);
        }
    }
}

impl Drop for LockOne<'_> {
    fn drop(&mut self) {
        self.table.unlock_slot(self.slot, self.owner);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use rand::rngs::SmallRng;
    use rand::{RngExt, SeedableRng};

    use super::*;

    const TABLE: TableId = TableId(1);

    fn names(keys: &[u32]) -> Vec<[u8; 4]> {
        keys.iter().map(|key| key.to_be_bytes()).collect()
    }

    #[test]
    fn a_lock_set_unlocks_when_dropped() {
        let locks = LockTable::new(1000);
        assert_eq!(locks.slots.len(), 1024);
        assert_eq!(locks.size_bytes(), 1024 * 8 + BEDS * 128);
        let set = locks.lock(7, [(TABLE, &b"a"[..]), (TABLE, b"b"), (TABLE, b"a")]);
        assert!(set.held <= 2);
        assert!(locks.is_locked_by_other(TABLE, b"a", 8));
        assert!(!locks.is_locked_by_other(TABLE, b"a", 7));
        assert!(locks.is_locked_by_other(TABLE, b"b", 8));
        drop(set);
        assert!(!locks.is_locked_by_other(TABLE, b"a", 8));
        assert!(locks.slots.iter().all(|slot| slot.load(SeqCst) == 0));
    }

    /// Others may hold the lock one after the other for ever.
    #[test]
    fn a_reader_waits_for_the_holder_that_it_met_only() {
        let locks = LockTable::new(8);
        let slot = locks.slot(TABLE, b"k");
        locks.wait_out(slot);
        let first = locks.lock_one(7, TABLE, b"k");
        let went_on = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let (locks, went_on) = (&locks, &went_on);
            let until = |waits| {
                (0..).take_while(|_| locks.waits() < waits).for_each(|_: u64| std::thread::yield_now())
            };
            scope.spawn(move || {
                locks.wait_out(slot);
                went_on.store(1, SeqCst);
            });
            until(1);
            scope.spawn(move || {
                let _second = locks.lock_one(8, TABLE, b"k");
                while went_on.load(SeqCst) == 0 {
                    std::thread::yield_now();
                }
            });
            until(2);
            assert_eq!(went_on.load(SeqCst), 0, "the first still holds it");
            drop(first);
        });
    }

    #[test]
    fn the_same_key_of_two_tables_has_two_locks() {
        let locks = LockTable::new(1 << 16);
        let _held = locks.lock(1, [(TableId(1), &b"key"[..])]);
        assert!(!locks.is_locked_by_other(TableId(2), b"key", 2));
    }

    /// Overlapping write sets on a tiny table, held until waiters sleep: no deadlock, no overlap.
    #[test]
    fn contended_write_sets_exclude_each_other() {
        let seed = 0x10c5;
        println!("seed {seed:#x}");
        let locks = LockTable::new(8);
        let inside: &[AtomicUsize] = &[const { AtomicUsize::new(0) }; 8];
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let locks = &locks;
                scope.spawn(move || {
                    let mut random = SmallRng::seed_from_u64(seed + thread);
                    for round in 0..3000 {
                        let keys = names(&[(); 3].map(|()| random.random_range(0..40)));
                        let set =
                            locks.lock(super::super::next_owner(), keys.iter().map(|key| (TABLE, &key[..])));
                        for &slot in &set.slots {
                            assert_eq!(inside[slot as usize].fetch_add(1, SeqCst), 0);
                        }
                        if round % 64 == 0 {
                            std::thread::sleep(std::time::Duration::from_micros(300));
                        }
                        for &slot in &set.slots {
                            inside[slot as usize].fetch_sub(1, SeqCst);
                        }
                    }
                });
            }
        });
        assert!(locks.slots.iter().all(|slot| slot.load(SeqCst) == 0));
    }
}
