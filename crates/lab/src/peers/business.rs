//! Peers under TPC-C ([`crate::workload::tpcc`]).
//!
//! All are serializable, as Terrace is. In LMDB and SQLite one transaction writes at a time;
//! RocksDB locks rows and ranges. Transactions that only read have a snapshot. LMDB and RocksDB
//! keep the tables in one map, SQLite in tables of keys and values.

use std::collections::BTreeMap;

use terrace_common::failure::Outcome;
use terrace_common::store::Settings;

use super::TERRACE;
pub use super::lmdb::business::Business as Lmdb;
#[cfg(feature = "rocksdb")]
pub use super::rocksdb::business::Business as RocksDb;
pub use super::sqlite::business::Business as Sqlite;
use crate::workload::tpcc::access::{Engine, Span};

/// Names for `--engine` of `bench tpcc` in this build.
pub const NAMES: &[&str] = &[
    TERRACE,
    "lmdb",
    "sqlite",
    #[cfg(feature = "rocksdb")]
    "rocksdb",
];

/// Validates an engine name.
pub fn parse(name: &str) -> Result<String, String> {
    match NAMES.contains(&name) {
        true => Ok(name.to_owned()),
        false => Err(format!("{name:?} does not run TPC-C; use one of {}", NAMES.join(" "))),
    }
}

/// A peer with the tables of TPC-C.
pub trait Peer: Engine {
    /// How the engine isolates transactions that write.
    const ISOLATION: &'static str;

    /// Opens it. With [`Settings::create`] the tables are empty.
    fn open(settings: &Settings) -> Outcome<Self>;

    /// The engine's version and settings in its own terms.
    fn settings(&self) -> BTreeMap<&'static str, String>;

    /// Writes everything out.
    fn close(self) -> Outcome;
}

/// A key of a table in one map of all tables.
pub(super) fn key_in_one_map(table: usize, key: &[u8]) -> Vec<u8> {
    let mut whole = Vec::with_capacity(1 + key.len());
    whole.push(table as u8);
    whole.extend_from_slice(key);
    whole
}

/// The part of a key of [`key_in_one_map`] behind the table.
pub(super) fn without_table(key: &[u8]) -> &[u8] {
    key.get(1..).unwrap_or_default()
}

/// The keys of a span of a table in one map of all tables: from the first on, up to the second.
pub(super) fn span_in_one_map(table: usize, span: &Span) -> [Vec<u8>; 2] {
    let to = span.to.as_ref().map_or_else(|| vec![table as u8 + 1], |to| key_in_one_map(table, to));
    [key_in_one_map(table, &span.from), to]
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;
    use std::thread;

    use terrace::{Db, Durability, Key, MemoryDirectory, TableOptions};
    use terrace_common::tiers::{CommitArgs, MemoryArgs, TierArgs};

    use super::*;
    use crate::workload::tpcc::access::{Direction, Ended, Rows};
    use crate::workload::tpcc::check::{Checked, Moment, check};
    use crate::workload::tpcc::load::load;
    use crate::workload::tpcc::rows::{CUSTOMER, CUSTOMER_BY_NAME, NEW_ORDER, WAREHOUSE_PAID};
    use crate::workload::tpcc::tables::Tables;
    use crate::workload::tpcc::transactions::Worker;
    use crate::workload::tpcc::{Mix, Scale};

    const SCALE: Scale = Scale { warehouses: 1, items: 40, customers: 10 };
    const THREADS: u64 = 2;

    fn open<P: Peer>(folder: &Path, create: bool) -> P {
        let tiers = TierArgs {
            memory: MemoryArgs { dram: Some(32 << 20), ..MemoryArgs::default() },
            commits: CommitArgs { durability: Durability::Buffered },
            ..TierArgs::default()
        };
        let (records, value_bytes) = (SCALE.rows(), Scale::ROW_BYTES);
        let settings = Settings::new(&tiers, Some(folder.to_owned()));
        P::open(&Settings { create, threads: THREADS, records, value_bytes, ..settings }).unwrap()
    }

    fn checked<P: Peer>(peer: &P, moment: Moment) -> Checked {
        check(peer, SCALE, moment).unwrap()
    }

    /// What the workload relies on.
    fn conforms<P: Peer>() {
        let folder = tempfile::tempdir().unwrap();
        let peer: P = open(folder.path(), true);
        load(&peer, SCALE, 1, |_| Ok(())).unwrap();
        assert_eq!(checked(&peer, Moment::Loaded).broken, []);
        ranges(&peer);
        isolation(&peer);
        serializes(&peer);
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let mut worker = Worker::new(peer.clone(), SCALE, Mix::default(), 3, thread);
                scope.spawn(move || (0..200).for_each(|_| _ = worker.step().unwrap()));
            }
        });
        let orders = checked(&peer, Moment::Running);
        assert!(orders.broken.is_empty() && orders.orders > 100 + 20, "{orders:?}");
        assert!(peer.settings().contains_key("version"));
        peer.close().unwrap();
        let again: P = open(folder.path(), false);
        assert_eq!(checked(&again, Moment::Running), orders);
        again.update(|t| Ok(WAREHOUSE_PAID.put(t, 1, 1)?)).unwrap();
        let numbers: Vec<u8> =
            checked(&again, Moment::Running).broken.iter().map(|broken| broken.condition).collect();
        assert_eq!(numbers, [1, 8]);
        drop(again);
        let empty: P = open(folder.path(), true);
        assert_eq!(checked(&empty, Moment::Running).orders, 0);
    }

    fn ranges<P: Peer>(peer: &P) {
        peer.read(|snapshot| {
            let span = CUSTOMER.prefix((1, 10));
            for (direction, wanted) in [(Direction::Ascending, 1), (Direction::Descending, 10)] {
                let (key, _) = CUSTOMER.first(snapshot, &span, direction)?.unwrap();
                assert_eq!(key, (1, 10, wanted), "the last district of the table");
            }
            let part = CUSTOMER.span(Some((1, 3, 4)), Some((1, 3, 7)));
            let numbers: Vec<u32> =
                CUSTOMER.all(snapshot, &part)?.into_iter().map(|((.., number), _)| number).collect();
            assert_eq!(numbers, [4, 5, 6]);
            let none = CUSTOMER.prefix((2,));
            assert!(CUSTOMER.all(snapshot, &none)?.is_empty());
            assert!(CUSTOMER.first(snapshot, &none, Direction::Descending)?.is_none());
            Outcome::Ok(())
        })
        .unwrap();
        let undone = peer.update(|t| {
            let span = NEW_ORDER.prefix((1, 1));
            let before = NEW_ORDER.all(t, &span)?.len();
            NEW_ORDER.put(t, (1, 1, 500), ())?;
            NEW_ORDER.delete(t, (1, 1, 10))?;
            let after: Vec<u32> = NEW_ORDER.all(t, &span)?.into_iter().map(|(key, ())| key.2).collect();
            assert_eq!((before, after), (3, vec![8, 9, 500]), "its own changes");
            let last = NEW_ORDER.first(t, &span, Direction::Descending)?.map(|(key, ())| key.2);
            assert_eq!(last, Some(500), "its own changes backwards");
            assert!(NEW_ORDER.get(t, (1, 1, 10))?.is_none());
            Err::<(), Ended>(Ended::UnknownItem)
        });
        assert!(matches!(undone, Err(Ended::UnknownItem)));
        assert_eq!(checked(peer, Moment::Loaded).broken, []);
    }

    fn isolation<P: Peer>(peer: &P) {
        /// A table that stays as it is otherwise.
        const COUNTS: Rows<u32, i64> = Rows::at(1);
        let count = |reads: &mut P::Snapshot<'_>| COUNTS.get(reads, 99);
        peer.update(|t| Ok(COUNTS.put(t, 99, 0)?)).unwrap();
        let add = || {
            peer.update(|t| {
                let count = COUNTS.get(t, 99)?.unwrap();
                Ok(COUNTS.put(t, 99, count + 1)?)
            })
            .unwrap();
        };
        peer.read(|snapshot| {
            assert_eq!(count(snapshot)?, Some(0));
            thread::scope(|scope| _ = scope.spawn(add));
            assert_eq!(count(snapshot)?, Some(0), "a snapshot does not change");
            Outcome::Ok(())
        })
        .unwrap();
        thread::scope(|scope| {
            (0..THREADS).for_each(|_| _ = scope.spawn(|| (0..200).for_each(|_| add())));
        });
        assert_eq!(peer.read(count).unwrap(), Some(401), "no update is lost");
        peer.update(|t| Ok(COUNTS.delete(t, 99)?)).unwrap();
        assert_eq!(peer.read(count).unwrap(), None);
    }

    /// Turns of each of two threads.
    const TURNS: u32 = 150;
    /// Its rows here are those of no warehouse.
    const MARKS: Rows<u32, i64> = Rows::at(1);

    fn together(turns: [&(dyn Fn() + Sync); 2]) {
        thread::scope(|scope| {
            for turn in turns {
                scope.spawn(move || (0..TURNS).for_each(|_| turn()));
            }
        });
    }

    /// Under snapshot isolation, transactions that each read what the other writes break these.
    fn serializes<E: Engine>(engine: &E) {
        engine.update(|t| Ok([97, 98].iter().try_for_each(|&key| MARKS.put(t, key, 0))?)).unwrap();
        // A mark is set only if the other is not.
        let set = |own, other| {
            let set = engine.update(|t| {
                let set = MARKS.get(t, other)?.unwrap() + MARKS.get(t, own)?.unwrap();
                assert!(set < 2, "a row that was read has changed");
                Ok(MARKS.put(t, own, 1 - set)?)
            });
            set.unwrap();
        };
        together([&|| set(97, 98), &|| set(98, 97)]);
        serializes_range(engine, NEW_ORDER, &NEW_ORDER.prefix((9, 9)), (9, 9, 1));
        let key = || (9, 9, "BAR".to_owned(), "Ann".to_owned(), 1);
        serializes_range(engine, CUSTOMER_BY_NAME, &CUSTOMER_BY_NAME.prefix((9, 9, "BAR")), key());
        engine.update(|t| Ok([97, 98].iter().try_for_each(|&key| MARKS.delete(t, key))?)).unwrap();
    }

    /// A mark is set only while the range is empty, and the row is added only while it is not set.
    fn serializes_range<E: Engine, K: Key + Sync>(engine: &E, table: Rows<K, ()>, span: &Span, key: K) {
        engine.update(|t| Ok(MARKS.put(t, 97, 0)?)).unwrap();
        let scan = || {
            let scan = engine.update(|t| {
                let (rows, mark) = (table.all(t, span)?.len(), MARKS.get(t, 97)?.unwrap());
                assert!(rows == 0 || mark == 0, "a range that was read has grown");
                if rows == 0 {
                    MARKS.put(t, 97, 1 - mark)?;
                }
                Ok(())
            });
            scan.unwrap();
        };
        let write = || {
            let write = engine.update(|t| {
                if MARKS.get(t, 97)? == Some(0) {
                    match table.get(t, &key)? {
                        None => table.put(t, &key, ())?,
                        Some(()) => table.delete(t, &key)?,
                    }
                }
                Ok(())
            });
            write.unwrap();
        };
        together([&scan, &write]);
        engine.update(|t| Ok(table.delete(t, &key)?)).unwrap();
    }

    #[test]
    fn terrace_serializes_as_its_peers_do() {
        let db = Db::builder().directory(Arc::new(MemoryDirectory::new())).dram(16 << 20).open("").unwrap();
        serializes(&Tables::open(&db, &TableOptions::new()).unwrap());
    }

    #[test]
    fn lmdb_runs_tpcc() {
        conforms::<Lmdb>();
    }

    #[test]
    fn sqlite_runs_tpcc() {
        conforms::<Sqlite>();
    }

    #[cfg(feature = "rocksdb")]
    #[test]
    fn rocksdb_runs_tpcc() {
        conforms::<RocksDb>();
    }

    #[test]
    fn other_engines_are_refused() {
        assert_eq!(parse("lmdb"), Ok("lmdb".to_owned()));
        assert!(parse("redb").unwrap_err().contains("use one of terrace lmdb sqlite"));
    }
}
