//! Entry counts of tables, kept without walks.
//!
//! A commit adds its inserted and removed keys to the table's count before it is decided. So a
//! visible entry is always counted, and a thread alone inside the gate reads an exact sum. A commit
//! that only replaces values does nothing here.
//!
//! A table counts in one word until two threads contend for it. Then it gets a slot per thread, two
//! kilobytes in all.
//!
//! A count is in memory while the table has handles, and until it is saved. Counts are saved in the
//! catalog (`catalog.rs`) under the table's id, together with a *mark*:
//!
//! ```text
//!   key     0 u8 | id u64, big-endian      entries u64 | exact u8
//!   key     0 u8                           1 u8 | since u64 | first u64
//! ```
//!
//! The last commit before a close writes the mark. If it is the newest commit at the next open, the
//! counts are right. Otherwise there was a crash, and each count is unknown until one walk of the
//! table. Counts saved before the crash must stay invalid under later marks. So the mark names the
//! first commit whose counts are valid, and the first table id for which no entry means an empty
//! table.
//!
//! The walk blocks no commit. It counts a snapshot, taken alone inside the gate together with the
//! sum of the slots. Later changes of that sum come after the snapshot.
//!
//! Counts are also saved in between, for [`crate::Table::approximate_len`] after a crash.

use std::collections::HashMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, SeqCst},
    fence,
};

use parking_lot::Mutex;

use super::catalog::{MARK, change, count_key, damaged, next_table_id};
use super::durability::Durability;
use super::mvcc::Mvcc;
use super::scan::Scan;
use super::table::TableState;
use super::table_count::{Saved, TableCount};
use crate::error::{Error, Result};
use crate::ids::{TableId, Timestamp};
use crate::index::{Found, Stored, Toward};
use crate::planted::{Bug, planted};

/// Counts are saved each time the log has grown by this fraction of its capacity.
const SAVE_SHARE: u64 = 8;
/// Walks that may lose their snapshot before one that stops all commits.
const WALKS: u32 = 3;
const MARK_VERSION: u8 = 1;

/// Which saved counts are valid, given a valid mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Since {
    /// Counts of this commit and of later ones.
    commit: Timestamp,
    /// A table from this id on without a saved count is empty.
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

/// Counts of tables with handles, and unsaved counts.
#[derive(Debug)]
pub(crate) struct Counts {
    since: Since,
    tables: Mutex<HashMap<TableId, Known>>,
    /// Number of drops from the map; changes under its lock.
    drops: AtomicU64,
    saved_at: AtomicU64,
    /// Commit of the last mark written or found valid.
    mark: AtomicU64,
}

#[derive(Debug)]
struct Known {
    count: Arc<TableCount>,
    saved: Saved,
}

impl Known {
    /// Whether a handle has the count or the catalog lacks it.
    ///
    /// New handles need the lock of the map.
    fn is_needed(&self) -> bool {
        if Arc::strong_count(&self.count) > 1 {
            return true;
        }
        // Pairs with the Release of the last handle's drop, so that the load sees all its
        // additions.
        fence(Acquire);
        self.count.now() != self.saved
    }
}

impl Counts {
    /// Trusts only counts saved by commits above `highest`, and empty tables from `next` on.
    fn unknown(highest: Timestamp, next: TableId) -> Self {
        Counts {
            since: Since { commit: Timestamp(highest.0 + 1), table: next },
            tables: Mutex::default(),
            drops: AtomicU64::new(0),
            saved_at: AtomicU64::new(0),
            mark: AtomicU64::new(0),
        }
    }

    fn drop_unneeded(&self, tables: &mut HashMap<TableId, Known>) {
        tables.retain(|_, known| known.is_needed());
        self.drops.fetch_add(1, SeqCst);
    }

    pub(crate) fn forget(&self, table: TableId) {
        self.tables.lock().remove(&table);
    }

    pub(crate) fn size_bytes(&self) -> usize {
        let of = |known: &Known| known.count.size_bytes();
        let tables = self.tables.lock();
        tables.capacity() * size_of::<(TableId, Known)>() + tables.values().map(of).sum::<usize>()
    }

    /// Finds out at open which saved counts are valid, before any commit.
    ///
    /// A damaged catalog says nothing about counts and does not prevent opening.
    pub(crate) fn load(mvcc: &Mvcc) -> Result<Self> {
        let mut counts = Counts::unknown(mvcc.clock.highest_drawn(), TableId(u64::MAX));
        counts.saved_at.store(mvcc.pool.wal().tail().0, SeqCst);
        match counts.read_mark(mvcc) {
            Ok(()) | Err(Error::Corrupt { .. }) => Ok(counts),
            Err(error) => Err(error),
        }
    }

    fn read_mark(&mut self, mvcc: &Mvcc) -> Result<()> {
        let highest = mvcc.clock.highest_drawn();
        self.since.table = next_table_id(mvcc)?;
        if let Some(Found { timestamp, value }) = mvcc.catalog.tree.get(&mvcc.pool, MARK)?
            && timestamp == highest
        {
            let Stored::Inline(value) = value else { return Err(damaged()) };
            self.since = Since::decode(&value).ok_or_else(damaged)?;
            self.mark.store(highest.0, SeqCst);
        }
        Ok(())
    }

    pub(crate) fn of(&self, mvcc: &Mvcc, table: TableId) -> Result<Arc<TableCount>> {
        loop {
            let drops = {
                let tables = self.tables.lock();
                if let Some(known) = tables.get(&table) {
                    return Ok(Arc::clone(&known.count));
                }
                self.drops.load(SeqCst)
            };
            let saved = self.saved(mvcc, table)?;
            mvcc.pool.meanwhile();
            let mut tables = self.tables.lock();
            // Another thread may have loaded, changed, saved and dropped the count meanwhile.
            if self.drops.load(SeqCst) != drops && !planted(Bug::CountReadBeforeDrop) {
                continue;
            }
            if tables.len() == tables.capacity() {
                self.drop_unneeded(&mut tables);
            }
            let new = || Known { count: Arc::new(TableCount::of(saved)), saved };
            return Ok(Arc::clone(&tables.entry(table).or_insert_with(new).count));
        }
    }

    fn saved(&self, mvcc: &Mvcc, table: TableId) -> Result<Saved> {
        let since = self.since;
        match mvcc.catalog.tree.get(&mvcc.pool, &count_key(table))? {
            Some(Found { timestamp, value: Stored::Inline(value) }) => {
                let Saved { entries, exact } = Saved::decode(&value).ok_or_else(damaged)?;
                Ok(Saved { entries, exact: exact && timestamp >= since.commit })
            }
            Some(_) => Err(damaged()),
            None => Ok(Saved { entries: 0, exact: table >= since.table }),
        }
    }

    /// Checks the count against `entries`, found since [`Mvcc::quiet`] returned `quiet`.
    ///
    /// Returns a wrong count. An unknown count becomes known.
    pub(crate) fn check(
        &self,
        mvcc: &Mvcc,
        table: TableId,
        entries: u64,
        quiet: (Timestamp, u64),
    ) -> Result<Option<u64>> {
        let count = self.of(mvcc, table)?;
        let (now, change) = (count.now(), count.change());
        if mvcc.quiet() != Some(quiet) {
            return Ok(None);
        }
        if now.exact {
            return Ok((now.entries != entries).then_some(now.entries));
        }
        count.set(entries, change);
        Ok(None)
    }

    pub(super) fn is_save_due(&self, mvcc: &Mvcc) -> bool {
        let grown = mvcc.pool.wal().tail().0.saturating_sub(self.saved_at.load(SeqCst));
        grown >= mvcc.pool.wal().stats().capacity / SAVE_SHARE && !mvcc.settings.read_only
    }

    /// Saves the changed counts, alone inside the gate; returns whether it did. With `mark`, as the
    /// last commit before closing.
    pub(super) fn save(&self, mvcc: &Mvcc, mark: bool) -> Result<bool> {
        // Also after a failure, so that the next attempt is not too early.
        self.saved_at.store(mvcc.pool.wal().tail().0, SeqCst);
        let changed: Vec<(TableId, Saved)> = {
            let tables = self.tables.lock();
            let now = tables.iter().map(|(&table, known)| (table, known.count.now(), known.saved));
            now.filter(|(_, now, saved)| now != saved).map(|(table, now, _)| (table, now)).collect()
        };
        let marked = self.mark.load(SeqCst) == mvcc.clock.highest_drawn().0;
        if changed.is_empty() && (marked || !mark) {
            return Ok(false);
        }
        let entries = changed.iter().map(|(table, now)| (count_key(*table), now.encode()));
        let entries: Vec<_> = entries.collect();
        let mut changes: Vec<_> =
            entries.iter().map(|(key, value)| (&key[..], Some(value.to_vec()))).collect();
        if mark {
            changes.push((MARK, Some(self.since.encode().to_vec())));
        }
        let at = change(mvcc, changes, Vec::new(), Durability::Buffered)?;
        if mark {
            self.mark.store(at.0, SeqCst);
            // A later commit below the mark would not tell that there was one.
            mvcc.order.iter().for_each(|order| order.freeze(at));
        }
        let mut tables = self.tables.lock();
        for (table, now) in changed {
            if let Some(known) = tables.get_mut(&table) {
                known.saved = now;
            }
        }
        self.drop_unneeded(&mut tables);
        tables.shrink_to_fit();
        drop(tables);
        Ok(true)
    }
}

/// Exact number of entries at one moment during the call; walks the table if unknown.
pub(crate) fn count_entries(mvcc: &Mvcc, table: &TableState) -> Result<u64> {
    loop {
        if let Some(entries) = count_if_known(mvcc, table)? {
            return Ok(entries);
        }
        recount(mvcc, table)?;
    }
}

/// Exact number of entries at one moment during the call; `None` if that takes a walk.
pub(crate) fn count_if_known(mvcc: &Mvcc, table: &TableState) -> Result<Option<u64>> {
    mvcc.check()?;
    let (now, drawn) = {
        let _alone = (!mvcc.gate.is_mine()).then(|| mvcc.gate.enter_alone());
        table.check()?;
        let drawn = mvcc.clock.highest_drawn();
        // Counted commits in turns must be durable, and no other may come before them.
        mvcc.order.iter().for_each(|order| order.scan(table.id, drawn));
        (table.count.now(), drawn)
    };
    // Counted commits must be decided.
    mvcc.clock.wait_visible(drawn, || mvcc.advance())?;
    Ok(now.exact.then_some(now.entries))
}

pub(crate) fn count_about(mvcc: &Mvcc, table: &TableState) -> Result<u64> {
    mvcc.check()?;
    table.check()?;
    Ok(table.count.now().entries)
}

/// Walks the table, unless another thread did meanwhile.
fn recount(mvcc: &Mvcc, table: &TableState) -> Result<()> {
    let count = &table.count;
    for walk in 0..=WALKS {
        if count.is_exact() {
            return Ok(());
        }
        let alone = (!mvcc.gate.is_mine()).then(|| mvcc.gate.enter_alone());
        table.check()?;
        // No commit is inside the gate now, so the snapshot sees all that the slots count.
        mvcc.clock.wait_visible(mvcc.clock.highest_drawn(), || mvcc.advance())?;
        // Not given up for its age, however long the walk takes.
        let (snapshot, change) = (mvcc.snapshots.register_kept(&mvcc.clock), count.change());
        // The commits at work have counted their changes already.
        mvcc.order.iter().for_each(|order| order.scan(table.id, snapshot.timestamp()));
        let alone = alone.filter(|_| walk == WALKS);
        let mut scan =
            Scan::new(table.tree, (Bound::Unbounded, Bound::Unbounded), Some(snapshot.timestamp()));
        let mut entries = 0;
        let walked = loop {
            match scan.step(mvcc, table, Toward::Up, &mut |_, _| {}) {
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use terrace_io::MemoryDirectory;

    use super::super::catalog::is_count_key;
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
        let bytes = || db.shared.tables.size_bytes();
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

    /// The count of a table whose count another thread loads, changes, saves and drops meanwhile.
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
