//! How many entries each table has, without walking it.
//!
//! A commit knows which keys it adds and which it removes, and tells the table's count so before it is decided. So whoever
//! sees an entry finds it counted; and who is alone inside the gate, where no commit is under way, reads a sum that is exact.
//! A commit that only replaces values does nothing here.
//!
//! A table counts in one word until two threads meet there. Then it gets a slot for each thread, so that the threads that
//! commit share no word. Slots take two kilobytes, and a database may have many tables: few of them are written by several
//! threads at a time.
//!
//! A count is kept while somebody has a handle of the table, and until it is saved. Then it is dropped, and read from the
//! catalog when the table is opened again. So counts take memory by the tables in use.
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
    Ordering::{Acquire, Relaxed, Release, SeqCst},
    fence,
};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::catalog::damaged;
use super::core::{Core, TableState};
use super::scan::Scan;
use crate::error::{Error, Result};
use crate::ids::{TableId, Timestamp};
use crate::index::{Found, Stored, Toward};
use crate::planted::{Bug, planted};
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
    /// Whether all together are the number of entries.
    exact: AtomicBool,
    /// What came and went before there were slots.
    first: AtomicI64,
    /// Made when two threads meet in `first`.
    slots: OnceLock<Box<[Padded<AtomicI64>]>>,
}

impl TableCount {
    fn of(saved: Saved) -> Self {
        TableCount {
            base: AtomicI64::new(saved.entries as i64),
            exact: AtomicBool::new(saved.exact),
            first: AtomicI64::new(0),
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
        // Release, partner of the loads in `change`: who sees this addition sees that its timestamp was drawn.
        let slots = match self.slots.get() {
            Some(slots) => slots,
            None => {
                let now = self.first.load(Relaxed);
                let next = now.wrapping_add(change);
                if self.first.compare_exchange(now, next, Release, Relaxed).is_ok() {
                    return;
                }
                self.slots.get_or_init(|| (0..SLOTS).map(|_| Padded::default()).collect())
            }
        };
        slots[thread_number() as usize % SLOTS].fetch_add(change, Release);
    }

    /// The sum of what came and went.
    fn change(&self) -> i64 {
        let slots = self.slots.get().into_iter().flatten();
        slots.fold(self.first.load(Acquire), |sum, slot| sum.wrapping_add(slot.load(Acquire)))
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

/// The counts of the tables that somebody has a handle of, and of those that are not saved yet.
#[derive(Debug)]
pub(crate) struct Counts {
    since: Since,
    tables: Mutex<HashMap<TableId, Known>>,
    /// How often counts were dropped from the map. Changes under its lock.
    drops: AtomicU64,
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

impl Known {
    /// Whether it is needed: a handle has it, or the catalog does not say it. Nobody gets a handle of it without the lock of
    /// the map it is in.
    fn is_needed(&self) -> bool {
        if Arc::strong_count(&self.count) > 1 {
            return true;
        }
        // Partner of the Release with which the last handle was dropped: the count is loaded after all it has added.
        fence(Acquire);
        self.count.now() != self.saved
    }
}

impl Counts {
    /// No count can be believed but those that commits above `highest` save, of tables from `next` on.
    pub(crate) fn unknown(highest: Timestamp, next: TableId) -> Self {
        Counts {
            since: Since { commit: Timestamp(highest.0 + 1), table: next },
            tables: Mutex::default(),
            drops: AtomicU64::new(0),
            saved_at: AtomicU64::new(0),
            mark: AtomicU64::new(0),
        }
    }

    /// Drops the counts that nobody needs.
    fn drop_unneeded(&self, tables: &mut HashMap<TableId, Known>) {
        tables.retain(|_, known| known.is_needed());
        self.drops.fetch_add(1, SeqCst);
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
        loop {
            let drops = {
                let tables = self.counts.tables.lock();
                if let Some(known) = tables.get(&table) {
                    return Ok(Arc::clone(&known.count));
                }
                self.counts.drops.load(SeqCst)
            };
            let saved = self.saved_count(table)?;
            self.pool.meanwhile();
            let mut tables = self.counts.tables.lock();
            // Another thread may have been faster, and have counted since; and that may have been saved and dropped.
            if self.counts.drops.load(SeqCst) != drops && !planted(Bug::CountReadBeforeDrop) {
                continue;
            }
            if tables.len() == tables.capacity() {
                self.counts.drop_unneeded(&mut tables);
            }
            let new = || Known { count: Arc::new(TableCount::of(saved)), saved };
            return Ok(Arc::clone(&tables.entry(table).or_insert_with(new).count));
        }
    }

    /// What the catalog says about the count of a table.
    fn saved_count(&self, table: TableId) -> Result<Saved> {
        let since = self.counts.since;
        match self.catalog.tree.get(&self.pool, &count_key(table))? {
            Some(Found { timestamp, value: Stored::Inline(value) }) => {
                let Saved { entries, exact } = Saved::decode(&value).ok_or_else(damaged)?;
                Ok(Saved { entries, exact: exact && timestamp >= since.commit })
            }
            Some(_) => Err(damaged()),
            None => Ok(Saved { entries: 0, exact: table >= since.table }),
        }
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
                if let Some(known) = tables.get_mut(&table) {
                    known.saved = now;
                }
            }
            self.counts.drop_unneeded(&mut tables);
            tables.shrink_to_fit();
            drop(tables);
            self.forget_closed_tables();
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use terrace_block::MemoryDirectory;

    use super::*;
    use crate::planted::plant;
    use crate::{Db, Mode};

    fn open() -> Db {
        let builder = Db::builder().directory(Arc::new(MemoryDirectory::new())).dram(8 << 20).seed(1);
        builder.mode(Mode::Inline).durability(crate::Durability::Buffered).open("").unwrap()
    }

    #[test]
    fn counts_take_memory_by_the_tables_in_use_and_little_for_each() {
        const TABLES: u64 = 600;
        let db = open();
        let bytes = || db.shared.counts.size_bytes() + db.shared.table_bytes();
        let made = |number: u64| {
            let table = db.create_table(&format!("t{number}")).unwrap();
            (0..=number % 3).for_each(|key| table.put(key.to_be_bytes(), "").unwrap());
            table
        };
        let tables: Vec<_> = (0..TABLES).map(made).collect();
        assert!(bytes() < TABLES as usize * 500, "{} bytes", bytes());
        drop(tables);
        db.shared.save_counts(false).unwrap();
        assert!(bytes() < 2000, "{} bytes of tables that nobody has open", bytes());
        for number in 0..TABLES {
            let table = db.open_table(&format!("t{number}")).unwrap();
            assert_eq!(table.len_if_known().unwrap(), Some(number % 3 + 1), "table {number}");
        }
        assert!(bytes() < 200_000, "{} bytes of tables that were opened one after the other", bytes());
        assert_eq!(db.verify().unwrap().errors, []);
    }

    /// The count of a table that is opened while it is opened, written and closed by another thread, and its count saved.
    fn opened_while_another_count_is_saved() -> Option<u64> {
        let db = open();
        db.create_table("t").unwrap().put("one", "").unwrap();
        db.shared.save_counts(false).unwrap();
        let (other, is_first) = (db.clone(), Cell::new(true));
        crate::crash::play(Some(Rc::new(move |_| {
            if is_first.replace(false) {
                other.open_table("t").unwrap().put("two", "").unwrap();
                other.shared.save_counts(false).unwrap();
            }
        })));
        let table = db.open_table("t");
        crate::crash::play(None);
        table.unwrap().len_if_known().unwrap()
    }

    #[test]
    fn catches_count_read_before_drop() {
        plant(Some(Bug::CountReadBeforeDrop));
        let wrong = opened_while_another_count_is_saved();
        plant(None);
        assert_eq!(wrong, Some(1), "the bug was not noticed");
        assert_eq!(opened_while_another_count_is_saved(), Some(2));
    }

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
