//! How many entries each table has, without walking it.
//!
//! A commit knows which keys it adds and which it removes, and tells the table's count so, in a slot of its own thread,
//! before it is decided. So whoever sees an entry finds it counted; and who is alone inside the gate, where no commit
//! is under way, reads a sum that is exact. No word is shared by the threads that commit, and a commit that only replaces
//! values does nothing here.
//!
//! Counts are saved in the catalog (`catalog.rs`), under the table's id, together with a *mark*:
//!
//! ```text
//!   key     0 u8 | id u64, big-endian      entries u64 | exact u8
//!   key     0 u8                           1 u8 | since u64 | first u64
//! ```
//!
//! The mark is written by the last commit before a database is closed. If it is the newest commit when the database is
//! opened again, nothing was changed since, and the counts are right. Otherwise there was a crash, and each table's count
//! is unknown until somebody asks for it: then it is counted by a walk, once. The entries written before the crash must not
//! be believed later either, when the next mark is valid: so the mark says since which commit counts can be believed, and
//! from which table's id on no entry means an empty table.
//!
//! The walk stops nobody. It counts what a snapshot sees, and the snapshot is taken alone inside the gate, together with
//! the slots' sum: what they count beyond that sum came after the snapshot.
//!
//! Between times the counts are saved as well, for [`crate::Table::approximate_len`] after a crash.

use std::collections::HashMap;
use std::ops::Bound;
use std::sync::atomic::{
    AtomicBool, AtomicI64, AtomicU64,
    Ordering::{Acquire, Release, SeqCst},
};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::catalog::damaged;
use super::core::{Core, TableState};
use super::scan::Scan;
use crate::error::{Error, Result};
use crate::ids::{TableId, Timestamp};
use crate::index::{Found, Stored, Toward};
use crate::threads::{Padded, thread_number};

/// Threads beyond share.
const SLOTS: usize = 16;
/// The count is saved when the log has grown by one part in this many of its capacity.
const SAVE_SHARE: u64 = 8;
/// Walks whose snapshot is given up each time, before one that stops all commits.
const WALKS: u32 = 3;
/// The first byte of the catalog's keys that name no table: no name has it.
const PREFIX: u8 = 0;
/// The key of the mark.
pub(super) const MARK: &[u8] = &[PREFIX];
/// The version of the mark.
const MARK_VERSION: u8 = 1;

/// Under which key the count of a table is saved.
pub(super) fn count_key(table: TableId) -> [u8; 9] {
    let mut key = [PREFIX; 9];
    key[1..].copy_from_slice(&table.0.to_be_bytes());
    key
}

/// Whether a key of the catalog is one of this file's.
pub(super) fn is_count_key(key: &[u8]) -> bool {
    key.first() == Some(&PREFIX)
}

/// A number of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Saved {
    entries: u64,
    exact: bool,
}

impl Saved {
    fn encode(self) -> [u8; 9] {
        let mut bytes = [u8::from(self.exact); 9];
        bytes[..8].copy_from_slice(&self.entries.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (entries, exact) = bytes.split_first_chunk::<8>()?;
        let entries = u64::from_le_bytes(*entries);
        match exact {
            [exact @ 0..=1] if entries <= i64::MAX as u64 => Some(Saved { entries, exact: *exact == 1 }),
            _ => None,
        }
    }
}

/// What saved counts can be believed, if the mark can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Since {
    /// Entries of this commit and of later ones.
    commit: Timestamp,
    /// A table from this id on that has no entry is empty.
    table: TableId,
}

impl Since {
    fn encode(self) -> [u8; 17] {
        let mut bytes = [MARK_VERSION; 17];
        bytes[1..9].copy_from_slice(&self.commit.0.to_le_bytes());
        bytes[9..].copy_from_slice(&self.table.0.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (version, rest) = bytes.split_first()?;
        let (commit, table) = rest.split_first_chunk::<8>()?;
        let table = u64::from_le_bytes(table.try_into().ok()?);
        let since = Since { commit: Timestamp(u64::from_le_bytes(*commit)), table: TableId(table) };
        (*version == MARK_VERSION).then_some(since)
    }
}

/// The count of one table's entries.
#[derive(Debug)]
pub(crate) struct TableCount {
    /// What the slots count from; below zero if entries were counted as gone that were never counted as there.
    base: AtomicI64,
    /// Whether base and slots together are the number of entries.
    exact: AtomicBool,
    /// Made when the first entry comes or goes.
    slots: OnceLock<Box<[Padded<AtomicI64>]>>,
}

impl TableCount {
    fn of(saved: Saved) -> Self {
        TableCount {
            base: AtomicI64::new(saved.entries as i64),
            exact: AtomicBool::new(saved.exact),
            slots: OnceLock::new(),
        }
    }

    /// A count that nobody asks for.
    pub(crate) fn unknown() -> Arc<Self> {
        Arc::new(Self::of(Saved { entries: 0, exact: false }))
    }

    /// Notes that entries came, or went if `change` is below zero. Before the commit is decided, inside the gate.
    #[inline]
    pub(crate) fn add(&self, change: i64) {
        let slots = self.slots.get_or_init(|| (0..SLOTS).map(|_| Padded::default()).collect());
        // Release, partner of the load in `change`: who sees this addition sees that its timestamp was drawn.
        slots[thread_number() as usize % SLOTS].fetch_add(change, Release);
    }

    /// The sum of the slots.
    fn change(&self) -> i64 {
        let slots = self.slots.get().into_iter().flatten();
        slots.fold(0, |sum, slot| sum.wrapping_add(slot.load(Acquire)))
    }

    fn now(&self) -> Saved {
        let entries = self.base.load(SeqCst).wrapping_add(self.change()).max(0) as u64;
        Saved { entries, exact: self.exact.load(SeqCst) }
    }

    /// There were `entries` when the sum of the slots was `change`. Whoever finds that out, and when, the base is the same, so
    /// two threads that have walked the table store the same.
    fn set(&self, entries: u64, change: i64) {
        self.base.store((entries as i64).wrapping_sub(change), SeqCst);
        self.exact.store(true, SeqCst);
    }
}

/// The counts of all tables that anybody has opened.
#[derive(Debug)]
pub(crate) struct Counts {
    since: Since,
    tables: Mutex<HashMap<TableId, Known>>,
    /// The end of the log when counts were last saved.
    saved_at: AtomicU64,
    /// The commit that wrote the mark last, or that of the mark that was found valid.
    mark: AtomicU64,
}

#[derive(Debug)]
struct Known {
    count: Arc<TableCount>,
    /// What the catalog says.
    saved: Saved,
}

impl Counts {
    /// No count can be believed but those that commits above `highest` save, of tables from `next` on.
    pub(crate) fn unknown(highest: Timestamp, next: TableId) -> Self {
        Counts {
            since: Since { commit: Timestamp(highest.0 + 1), table: next },
            tables: Mutex::default(),
            saved_at: AtomicU64::new(0),
            mark: AtomicU64::new(0),
        }
    }

    /// Forgets a table that was dropped.
    pub(super) fn forget(&self, table: TableId) {
        self.tables.lock().remove(&table);
    }

    /// Bytes of memory taken.
    pub(crate) fn size_bytes(&self) -> usize {
        let slots = SLOTS * size_of::<Padded<AtomicI64>>();
        let of = |known: &Known| size_of::<TableCount>() + known.count.slots.get().map_or(0, |_| slots);
        let tables = self.tables.lock();
        tables.capacity() * size_of::<(TableId, Known)>() + tables.values().map(of).sum::<usize>()
    }
}

impl Core {
    /// Finds out which saved counts can be believed. When the database is opened, before anything is committed. A catalog
    /// that is damaged says nothing about counts; it does not prevent opening, so that the damage can be looked at.
    pub(crate) fn load_counts(&mut self) -> Result<()> {
        self.counts = Counts::unknown(self.clock.highest_drawn(), TableId(u64::MAX));
        self.counts.saved_at.store(self.pool.wal().tail().0, SeqCst);
        match self.read_mark() {
            Err(Error::Corrupt { .. }) => Ok(()),
            other => other,
        }
    }

    fn read_mark(&mut self) -> Result<()> {
        let highest = self.clock.highest_drawn();
        self.counts.since.table = self.next_table_id()?;
        if let Some(Found { timestamp, value }) = self.catalog.tree.get(&self.pool, MARK)?
            && timestamp == highest
        {
            let Stored::Inline(value) = value else { return Err(damaged()) };
            self.counts.since = Since::decode(&value).ok_or_else(damaged)?;
            self.counts.mark.store(highest.0, SeqCst);
        }
        Ok(())
    }

    /// The count of a table that exists.
    pub(super) fn count_of(&self, table: TableId) -> Result<Arc<TableCount>> {
        if let Some(known) = self.counts.tables.lock().get(&table) {
            return Ok(Arc::clone(&known.count));
        }
        let since = self.counts.since;
        let saved = match self.catalog.tree.get(&self.pool, &count_key(table))? {
            Some(Found { timestamp, value: Stored::Inline(value) }) => {
                let Saved { entries, exact } = Saved::decode(&value).ok_or_else(damaged)?;
                Saved { entries, exact: exact && timestamp >= since.commit }
            }
            Some(_) => return Err(damaged()),
            None => Saved { entries: 0, exact: table >= since.table },
        };
        let mut tables = self.counts.tables.lock();
        // Another thread may have been faster, and have counted since.
        let new = || Known { count: Arc::new(TableCount::of(saved)), saved };
        Ok(Arc::clone(&tables.entry(table).or_insert_with(new).count))
    }

    /// How many entries a table has, of one moment during the call; walks it if that is not known.
    pub(crate) fn count_entries(&self, table: &TableState) -> Result<u64> {
        loop {
            if let Some(entries) = self.count_if_known(table)? {
                return Ok(entries);
            }
            self.recount(table)?;
        }
    }

    /// How many entries a table has, of one moment during the call; none if that takes a walk.
    pub(crate) fn count_if_known(&self, table: &TableState) -> Result<Option<u64>> {
        self.check()?;
        let (now, drawn) = {
            let _alone = (!self.gate.is_mine()).then(|| self.gate.enter_alone());
            table.check()?;
            (table.count.now(), self.clock.highest_drawn())
        };
        // What is counted must not be taken back any more.
        self.clock.wait_visible(drawn, || self.pump())?;
        Ok(now.exact.then_some(now.entries))
    }

    /// How many entries a table has, more or less.
    pub(crate) fn count_about(&self, table: &TableState) -> Result<u64> {
        self.check()?;
        table.check()?;
        Ok(table.count.now().entries)
    }

    /// Walks the table, unless another thread has done so meanwhile.
    fn recount(&self, table: &TableState) -> Result<()> {
        let count = &table.count;
        for walk in 0..=WALKS {
            if count.exact.load(SeqCst) {
                return Ok(());
            }
            let alone = (!self.gate.is_mine()).then(|| self.gate.enter_alone());
            table.check()?;
            // Nobody draws timestamps meanwhile, so the snapshot sees all that the slots have counted.
            self.clock.wait_visible(self.clock.highest_drawn(), || self.pump())?;
            let (snapshot, change) = (self.snapshots.register(&self.clock), count.change());
            // However long the walk takes, it is not given up for its age.
            snapshot.keep(true);
            let alone = alone.filter(|_| walk == WALKS);
            let mut scan =
                Scan::new(table.tree, (Bound::Unbounded, Bound::Unbounded), Some(snapshot.timestamp()));
            let mut entries = 0;
            let walked = loop {
                match scan.step(self, table, Toward::Up, &mut |_, _| {}) {
                    Ok(Some(_)) => entries += 1,
                    Ok(None) => break snapshot.check(),
                    Err(error) => break snapshot.check().and(Err(error)),
                }
            };
            match walked {
                Ok(()) => {
                    table.check_at(snapshot.timestamp())?;
                    count.set(entries, change);
                    return Ok(());
                }
                Err(Error::SnapshotTooOld) if walk < WALKS => {}
                Err(error) => return table.check().and(Err(error)),
            }
            drop(alone);
        }
        unreachable!("the last walk ends with a result")
    }

    /// Holds the count of a table against `entries`, which somebody has found while no timestamp above `drawn` was drawn and
    /// all up to it were decided; returns the count if it was wrong. A count that was not known is known from now on.
    pub(super) fn check_count(&self, table: TableId, entries: u64, drawn: Timestamp) -> Result<Option<u64>> {
        let count = self.count_of(table)?;
        let (now, change) = (count.now(), count.change());
        if self.clock.highest_drawn() != drawn {
            return Ok(None);
        }
        if now.exact {
            return Ok((now.entries != entries).then_some(now.entries));
        }
        count.set(entries, change);
        Ok(None)
    }

    /// Saves the counts if the log has grown enough since they were last saved.
    pub(super) fn save_counts_if_due(&self) -> Result<()> {
        let grown = self.pool.wal().tail().0.saturating_sub(self.counts.saved_at.load(SeqCst));
        if grown < self.pool.wal().stats().capacity / SAVE_SHARE || self.settings.read_only {
            return Ok(());
        }
        self.save_counts(false)
    }

    /// Saves the counts that have changed. With `mark`, as the last thing before the database is closed.
    pub(super) fn save_counts(&self, mark: bool) -> Result<()> {
        self.alone(|| {
            // Also if it fails: then it is tried again as late as if it had not.
            self.counts.saved_at.store(self.pool.wal().tail().0, SeqCst);
            let changed: Vec<(TableId, Saved)> = {
                let tables = self.counts.tables.lock();
                let now = tables.iter().map(|(&table, known)| (table, known.count.now(), known.saved));
                now.filter(|(_, now, saved)| now != saved).map(|(table, now, _)| (table, now)).collect()
            };
            let marked = self.counts.mark.load(SeqCst) == self.clock.highest_drawn().0;
            if changed.is_empty() && (marked || !mark) {
                return Ok(());
            }
            let entries = changed.iter().map(|(table, now)| (count_key(*table), now.encode()));
            let entries: Vec<_> = entries.collect();
            let mut changes: Vec<_> =
                entries.iter().map(|(key, value)| (&key[..], Some(value.to_vec()))).collect();
            if mark {
                changes.push((MARK, Some(self.counts.since.encode().to_vec())));
            }
            let at = self.change_catalog(changes, Vec::new(), crate::Durability::Buffered)?;
            if mark {
                self.counts.mark.store(at.0, SeqCst);
            }
            let mut tables = self.counts.tables.lock();
            for (table, now) in changed {
                let Some(known) = tables.get_mut(&table) else { continue };
                known.saved = now;
                // Nobody has a handle of the table, and who wants one must come here: its slots can go.
                if Arc::strong_count(&known.count) == 1 {
                    known.count = Arc::new(TableCount::of(now));
                }
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_saved_is_read_back_and_nothing_else() {
        for saved in [Saved { entries: 0, exact: true }, Saved { entries: u64::MAX >> 1, exact: false }] {
            assert_eq!(Saved::decode(&saved.encode()), Some(saved));
        }
        for bad in [&[][..], &[0; 8], &[0, 0, 0, 0, 0, 0, 0, 0, 2], &[255; 9], &[0; 10]] {
            assert_eq!(Saved::decode(bad), None, "{bad:?}");
        }
        let since = Since { commit: Timestamp(77), table: TableId(16) };
        assert_eq!(Since::decode(&since.encode()), Some(since));
        assert_eq!(Since::decode(&[2; 17]), None);
        assert_eq!(Since::decode(&[1; 16]), None);
        assert!(is_count_key(MARK) && is_count_key(&count_key(TableId(16))) && !is_count_key(b""));
    }

    #[test]
    fn entries_may_go_in_another_slot_than_they_came() {
        let count = TableCount::of(Saved { entries: 5, exact: true });
        std::thread::scope(|scope| {
            scope.spawn(|| (0..1000).for_each(|_| count.add(1)));
            scope.spawn(|| (0..1003).for_each(|_| count.add(-1)));
        });
        assert_eq!(count.now(), Saved { entries: 2, exact: true });
        count.set(10, -3);
        assert_eq!(count.now().entries, 10);
    }
}
