//! TPC-C's tables in RocksDB, with its pessimistic transactions.
//!
//! Two-phase locking makes them serializable: a transaction locks each key that it reads or writes,
//! and RocksDB keeps the locks until the commit is visible. Reads return the newest commits.
//!
//! RocksDB locks no ranges, so a fence stands for one: a name that is no key, with the first bytes
//! of the keys behind it. A scan locks its fence against all writes behind it, and a write against
//! all scans. So no other transaction adds, changes or removes a row of a range that was read.
//!
//! Commits are visible in the order in which conflicting transactions got their locks. A snapshot
//! has all of them up to some commit, so it is a state of that order. Deadlocks are detected; the
//! transaction that closes the circle runs again.

use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;
use std::sync::Arc;

use rocksdb::{
    DBAccess, DBRawIteratorWithThreadMode, Error, ErrorKind, ReadOptions, SnapshotWithThreadMode,
    Transaction, TransactionDB, TransactionDBOptions, TransactionOptions, WriteOptions,
};
use terrace::Durability;
use terrace_common::failure::{Failure, Outcome};
use terrace_common::store::{Database as _, Settings};

use super::{Database, NAME, failed};
use crate::peers::business::{Peer, key_in_one_map, span_in_one_map, without_table};
use crate::workload::tpcc::access::{Direction, Ended, Engine, NAMES, Reads, Span, Writes};

/// The directory of all tables.
const TABLE: &str = "tpcc";
/// First bytes of a key that name its fence: those of a warehouse and a district.
const FENCE_BYTES: usize = 5;
/// The fences' number in the map of all tables.
const FENCES: usize = 255;

/// Whether transactions only read the table after the load. Its readers share their locks. Other
/// rows are mostly read to be written, and two readers that share a lock could not both write.
fn is_fixed(table: usize) -> bool {
    matches!(NAMES[table], "tpcc.warehouse" | "tpcc.customer_by_name" | "tpcc.item")
}

/// An open database with the tables.
#[derive(Clone)]
pub struct Business {
    db: Arc<TransactionDB>,
    database: Arc<Database>,
}

impl Business {
    fn begin(&self, options: &TransactionOptions) -> Within<'_> {
        let mut writes = WriteOptions::default();
        writes.set_sync(self.database.shared.durability == Durability::Sync);
        let transaction = self.db.transaction_opt(&writes, options);
        Within { transaction, fences: BTreeMap::new(), conflicts: false }
    }
}

impl Peer for Business {
    const ISOLATION: &'static str = "serializable: two-phase locking of rows and districts";

    fn open(settings: &Settings) -> Outcome<Business> {
        let database = Database::open(settings)?;
        let path = database.path(TABLE);
        if settings.create && path.is_dir() {
            fs::remove_dir_all(&path).map_err(|error| Failure::file("removing", &path, error))?;
        }
        let options = database.options(settings.create);
        let db = TransactionDB::open(&options, &TransactionDBOptions::default(), path);
        Ok(Business { db: Arc::new(db.map_err(failed(NAME))?), database: Arc::new(database) })
    }

    fn settings(&self) -> BTreeMap<&'static str, String> {
        let mut settings = self.database.settings();
        settings.insert("tables", "one map, keys begin with the table's number".to_owned());
        settings.insert("transactions", "TransactionDB, get_for_update, deadlock_detect".to_owned());
        settings
    }

    fn close(self) -> Outcome {
        self.db.flush_wal(true).map_err(failed(NAME))
    }
}

impl Engine for Business {
    type Transaction<'a> = Within<'a>;
    type Snapshot<'a> = At<'a>;

    fn update<T>(&self, mut body: impl FnMut(&mut Within<'_>) -> Result<T, Ended>) -> Result<T, Ended> {
        let mut options = TransactionOptions::default();
        options.set_deadlock_detect(true);
        loop {
            let mut within = self.begin(&options);
            match body(&mut within) {
                Ok(value) => match within.transaction.commit() {
                    Ok(()) => return Ok(value),
                    Err(error) if is_conflict(&error) => {}
                    Err(error) => return Err(failed(NAME)(error).into()),
                },
                Err(_) if within.conflicts => {}
                Err(ended) => return Err(ended),
            }
        }
    }

    fn read<T, E: From<Failure>>(&self, body: impl FnOnce(&mut At<'_>) -> Result<T, E>) -> Result<T, E> {
        body(&mut At { snapshot: self.db.snapshot() })
    }
}

/// A deadlock, or a wait for a lock of more than a second.
fn is_conflict(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Busy | ErrorKind::TimedOut)
}

/// Options of a scan of `span`.
fn bounded(table: usize, span: &Span) -> ReadOptions {
    let [from, to] = span_in_one_map(table, span);
    let mut options = ReadOptions::default();
    options.set_iterate_lower_bound(from);
    options.set_iterate_upper_bound(to);
    options
}

fn each<D: DBAccess>(
    mut rows: DBRawIteratorWithThreadMode<'_, D>,
    direction: Direction,
    mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
) -> Outcome {
    match direction {
        Direction::Ascending => rows.seek_to_first(),
        Direction::Descending => rows.seek_to_last(),
    }
    while let Some((key, value)) = rows.item() {
        if visit(without_table(key), value).is_break() {
            return Ok(());
        }
        match direction {
            Direction::Ascending => rows.next(),
            Direction::Descending => rows.prev(),
        }
    }
    rows.status().map_err(failed(NAME))
}

/// The tables in a snapshot.
pub struct At<'a> {
    snapshot: SnapshotWithThreadMode<'a, TransactionDB>,
}

impl Reads for At<'_> {
    fn get<R>(&mut self, table: usize, key: &[u8], read: impl FnOnce(&[u8]) -> R) -> Outcome<Option<R>> {
        let found = self.snapshot.get_pinned(key_in_one_map(table, key)).map_err(failed(NAME))?;
        Ok(found.map(|value| read(&value)))
    }

    fn scan(
        &mut self,
        table: usize,
        span: &Span,
        direction: Direction,
        visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Outcome {
        each(self.snapshot.raw_iterator_opt(bounded(table, span)), direction, visit)
    }
}

/// The tables in a transaction.
pub struct Within<'a> {
    transaction: Transaction<'a, TransactionDB>,
    /// Fences that are locked, and whether exclusively.
    fences: BTreeMap<Vec<u8>, bool>,
    /// Whether another transaction had a lock for too long.
    conflicts: bool,
}

/// Notes a conflict.
fn noted<T>(conflicts: &mut bool, done: Result<T, Error>) -> Outcome<T> {
    done.map_err(|error| {
        *conflicts |= is_conflict(&error);
        failed(NAME)(error)
    })
}

impl Within<'_> {
    /// Locks the fence before `key`. No scan is behind the fence of a shorter key.
    fn fence(&mut self, table: usize, key: &[u8], exclusive: bool) -> Outcome {
        let Some(part) = key.get(..FENCE_BYTES) else { return Ok(()) };
        let fence = key_in_one_map(FENCES, &key_in_one_map(table, part));
        if self.fences.get(&fence).is_some_and(|&held| held || !exclusive) {
            return Ok(());
        }
        let locked = self.transaction.get_pinned_for_update(&fence, exclusive);
        noted(&mut self.conflicts, locked)?;
        self.fences.insert(fence, exclusive);
        Ok(())
    }
}

/// Whether one fence is before all keys of `span`.
fn is_fenced(span: &Span) -> bool {
    let fenced = span.from.get(..FENCE_BYTES).map(|part| Span::of(part.to_vec()));
    fenced.is_some_and(|fenced| fenced.to.is_none_or(|end| span.to.as_ref().is_some_and(|to| *to <= end)))
}

impl Reads for Within<'_> {
    fn get<R>(&mut self, table: usize, key: &[u8], read: impl FnOnce(&[u8]) -> R) -> Outcome<Option<R>> {
        let found = self.transaction.get_pinned_for_update(key_in_one_map(table, key), !is_fixed(table));
        Ok(noted(&mut self.conflicts, found)?.map(|value| read(&value)))
    }

    fn scan(
        &mut self,
        table: usize,
        span: &Span,
        direction: Direction,
        visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Outcome {
        if !is_fenced(span) {
            return Err(Failure::Work(format!("{NAME}: a transaction's scan is of one district only")));
        }
        self.fence(table, &span.from, !is_fixed(table))?;
        each(self.transaction.raw_iterator_opt(bounded(table, span)), direction, visit)
    }
}

impl Writes for Within<'_> {
    fn put(&mut self, table: usize, key: &[u8], value: &[u8]) -> Outcome {
        self.fence(table, key, is_fixed(table))?;
        noted(&mut self.conflicts, self.transaction.put(key_in_one_map(table, key), value))
    }

    fn delete(&mut self, table: usize, key: &[u8]) -> Outcome {
        self.fence(table, key, is_fixed(table))?;
        noted(&mut self.conflicts, self.transaction.delete(key_in_one_map(table, key)))
    }
}

#[cfg(test)]
mod tests {
    use terrace_common::tiers::{CommitArgs, TierArgs};

    use super::*;
    use crate::workload::tpcc::rows::{CUSTOMER, CUSTOMER_BY_NAME, ITEM, NEW_ORDER, ORDER_LINE};

    #[test]
    fn a_fence_is_before_a_district_and_no_more() {
        assert!(is_fenced(&NEW_ORDER.prefix((1, 2))) && is_fenced(&ORDER_LINE.prefix((1, 2, 3))));
        assert!(is_fenced(&CUSTOMER_BY_NAME.prefix((1, 255, "BAR"))));
        assert!(is_fenced(&CUSTOMER.span(Some((1, 2, 3)), Some((1, 2, 4)))));
        let wide = [
            CUSTOMER.prefix((1,)),
            CUSTOMER.span(Some((1, 2, 3)), Some((1, 3, 1))),
            CUSTOMER.span(Some((1, 2, 3)), None),
            ITEM.span(Some(1), Some(2)),
        ];
        assert!(wide.iter().all(|span| !is_fenced(span)));
    }

    /// What a transaction does with a table.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Step {
        Get(u8),
        Put(u8),
        Delete(u8),
        Scan,
    }

    impl Step {
        const ALL: [Step; 5] = [Step::Get(1), Step::Put(1), Step::Put(2), Step::Delete(3), Step::Scan];

        fn run(self, within: &mut Within<'_>, table: usize) -> Outcome {
            let key = |last| [1, 1, 1, 1, 1, last];
            match self {
                Step::Get(last) => within.get(table, &key(last), |_| ()).map(drop),
                Step::Put(last) => within.put(table, &key(last), b""),
                Step::Delete(last) => within.delete(table, &key(last)),
                Step::Scan => {
                    let all = Span::of(key(0)[..FENCE_BYTES].to_vec());
                    within.scan(table, &all, Direction::Ascending, |_, _| ControlFlow::Continue(()))
                }
            }
        }

        /// Whether the order of both in two transactions matters.
        fn depends_on(self, other: Step) -> bool {
            match (self, other) {
                (Step::Get(_) | Step::Scan, Step::Get(_) | Step::Scan) => false,
                (Step::Scan, _) | (_, Step::Scan) => true,
                (Step::Get(one) | Step::Put(one) | Step::Delete(one), other) => {
                    matches!(other, Step::Get(two) | Step::Put(two) | Step::Delete(two) if one == two)
                }
            }
        }
    }

    /// The second of two open transactions does not wait here, so it fails.
    #[test]
    fn steps_of_two_transactions_whose_order_matters_conflict() {
        let folder = tempfile::tempdir().unwrap();
        let commits = CommitArgs { durability: Durability::Buffered };
        let tiers = TierArgs { commits, ..TierArgs::default() };
        let settings = Settings::new(&tiers, Some(folder.path().to_owned()));
        let business = Business::open(&Settings { create: true, ..settings }).unwrap();
        let mut options = TransactionOptions::default();
        options.set_lock_timeout(0);
        let mut free = 0;
        for table in 0..NAMES.len() {
            for (first, second) in Step::ALL.iter().flat_map(|&one| Step::ALL.map(|two| (one, two))) {
                let [mut one, mut two] = [(); 2].map(|()| business.begin(&options));
                first.run(&mut one, table).unwrap();
                let conflicts = second.run(&mut two, table).is_err();
                assert_eq!(conflicts, two.conflicts, "{first:?}, {second:?}");
                assert!(conflicts || !first.depends_on(second), "table {table}: {first:?}, {second:?}");
                free += u32::from(!conflicts);
                // Either way the first has what it locked, and commits.
                one.transaction.commit().unwrap();
            }
        }
        assert!(free > 100, "rows apart do not conflict: {free}");
    }
}
