//! Databases to damage, operations on damaged ones, and a map to compare sound ones with.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use terrace::{Builder, Compression, Db, Error, Mode, Table};
use terrace_io::MemoryDirectory;

use crate::files::{DATABASE, Files};

/// Limit of entries read from a damaged database.
const ENTRIES_MAX: usize = 10_000;

/// A builder with the environment's back end, so that a run can cover each.
pub(crate) fn defaults() -> Builder {
    Db::builder().defaults_from(|name| std::env::var(name).ok()).expect("a back end")
}

fn open(directory: Arc<MemoryDirectory>, create: bool) -> terrace::Result<Db> {
    let builder = defaults().dram(2 << 20).page_size(4096).log_max(1 << 20).mode(Mode::Inline).seed(1);
    builder.create(create).directory(directory).open("memory")
}

/// A new database with larger, compressed pages.
fn open_compressed(directory: Arc<MemoryDirectory>) -> terrace::Result<Db> {
    let builder = defaults().dram(2 << 20).page_size(8192).log_max(1 << 20).mode(Mode::Inline).seed(1);
    builder.compression(Compression::Lz4).directory(directory).open("memory")
}

/// A few hundred entries of all sizes in two tables, some changed or removed.
fn fill(db: &Db) {
    let table = db.create_table("first").expect("a new table");
    let other = db.create_table("second").expect("another");
    for number in 0..300u32 {
        let length = if number % 50 == 7 { 20_000 } else { number as usize * 3 % 400 };
        let value = vec![number as u8; length];
        table.put(format!("key {:03}", number * 7 % 300).as_bytes(), &value).expect("put");
        if number % 3 == 0 {
            other.put(number.to_be_bytes(), b"value").expect("put");
        }
    }
    for number in (0..300u32).step_by(4) {
        table.delete(format!("key {number:03}").as_bytes()).expect("delete");
    }
}

/// Files of a closed database.
pub(crate) fn closed(compressed: bool) -> Files {
    let directory = Arc::new(MemoryDirectory::new());
    let opened = if compressed { open_compressed(directory.clone()) } else { open(directory.clone(), true) };
    let db = opened.expect("a new database opens");
    fill(&db);
    db.close().expect("closes");
    Files::of(&directory, DATABASE)
}

/// Files of a killed database whose log needs recovery.
pub(crate) fn killed() -> Files {
    let directory = Arc::new(MemoryDirectory::new());
    let db = open(directory.clone(), true).expect("a new database opens");
    fill(&db);
    let files = Files::of(&directory, DATABASE);
    drop(db);
    files
}

/// Opens arbitrary files and tries many operations; errors are acceptable. Runs twice, because the
/// second open meets what the first found damaged.
pub(crate) fn use_hostile(files: &Files) {
    let directory = files.directory(DATABASE);
    use_twice(|| open(directory.clone(), false));
}

/// Does the same with databases from `open`.
pub(crate) fn use_twice(open: impl Fn() -> terrace::Result<Db>) {
    for life in 0..2 {
        let Ok(db) = open() else { return };
        let _ = db.verify();
        for name in db.table_names().unwrap_or_default() {
            let Ok(table) = db.open_table(&name) else { continue };
            let _ = table.iter().take(ENTRIES_MAX).take_while(|entry| entry.is_ok()).count();
            let _ = table.iter().rev().take(ENTRIES_MAX).take_while(|entry| entry.is_ok()).count();
            let _ = table.get(b"key 001");
            let _ = table.get_many([b"key 001", b"key 002"]);
            let _ = table.put(b"key 001", [1; 9000]);
            let _ = table.delete(b"key 009");
            let _ = (table.pages(), table.len());
            // The first run leaves something for the second.
            let _ = if life == 0 {
                table.delete_range("k".."kz")
            } else {
                table.delete_range_in_steps::<&[u8]>(..)
            };
            if life == 1 {
                let _ = db.drop_table(&name);
            }
        }
        let _ = (db.table_stats(), db.checkpoint(), db.compact());
        let _ = db.close();
    }
}

/// A table and its model.
struct Pair {
    directory: Arc<MemoryDirectory>,
    db: Option<Db>,
    table: Option<Table>,
    map: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// Takes numbers from an input; zeros after its end.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&byte, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        byte
    }

    /// A key: mostly short and close to others, sometimes long.
    fn key(&mut self) -> Vec<u8> {
        let (shape, number) = (self.byte(), self.byte());
        match shape % 8 {
            0 => vec![],
            1 => vec![number; usize::from(shape) * 4],
            2 => [&[b'p'; 200][..], &[number]].concat(),
            _ => vec![shape % 4, number],
        }
    }

    fn value(&mut self) -> Vec<u8> {
        let (shape, byte) = (self.byte(), self.byte());
        let length = match shape % 16 {
            0 => usize::from(shape) * 200,
            1..4 => usize::from(shape) * 8,
            _ => usize::from(shape) / 4,
        };
        vec![byte; length]
    }
}

impl Pair {
    fn new() -> Pair {
        let directory = Arc::new(MemoryDirectory::new());
        let mut pair = Pair { directory, db: None, table: None, map: BTreeMap::new() };
        pair.reopen(true);
        pair
    }

    fn db(&self) -> &Db {
        self.db.as_ref().expect("open between operations")
    }

    fn table(&self) -> &Table {
        self.table.as_ref().expect("open between operations")
    }

    fn reopen(&mut self, create: bool) {
        let db = open(self.directory.clone(), create).expect("a sound database opens");
        self.table = Some(db.open_or_create_table("t").expect("the table"));
        self.db = Some(db);
    }

    fn close(&mut self) {
        self.table = None;
        self.db.take().expect("open").close().expect("closes");
        self.reopen(false);
    }

    /// Restarts from the current disk contents, as after a kill. All commits were acknowledged as
    /// durable.
    fn kill(&mut self) {
        self.directory = Files::of(&self.directory, DATABASE).directory(DATABASE);
        (self.table, self.db) = (None, None);
        self.reopen(false);
    }

    fn compare_range(&self, low: &[u8], high: &[u8], backwards: bool) {
        if low > high {
            return;
        }
        let range = || (Bound::Included(low.to_vec()), Bound::Excluded(high.to_vec()));
        let ours = self.table().range(range());
        let entries: terrace::Result<Vec<_>> = if backwards { ours.rev().collect() } else { ours.collect() };
        let theirs = self.map.range::<Vec<u8>, _>(range()).map(|(key, value)| (key.clone(), value.clone()));
        let expected: Vec<_> = if backwards { theirs.rev().collect() } else { theirs.collect() };
        assert_eq!(entries.expect("a sound database is read"), expected);
    }

    fn delete_range(&mut self, low: &[u8], high: &[u8]) {
        let range = (Bound::Included(low.to_vec()), Bound::Excluded(high.to_vec()));
        let before = self.map.len();
        let deleted = match self.table().delete_range(range.clone()) {
            Err(Error::TransactionTooLarge { .. }) => self.table().delete_range_in_steps(range),
            other => other,
        };
        self.map.retain(|key, _| !(low <= &key[..] && &key[..] < high));
        assert_eq!(deleted.expect("a range is deleted"), (before - self.map.len()) as u64);
    }

    /// Several changes in one transaction that may commit, after some it rolls back.
    fn transact(&mut self, input: &mut Input<'_>) {
        let mut changed = self.map.clone();
        let transaction = self.db().begin();
        let savepoint = transaction.savepoint();
        for _ in 0..input.byte() % 3 {
            transaction.put(self.table(), input.key(), input.value()).expect("put");
        }
        transaction.rollback_to(&savepoint).expect("its own savepoint");
        for _ in 0..input.byte() % 6 {
            let key = input.key();
            if input.byte().is_multiple_of(3) {
                let was = transaction.delete(self.table(), &key).expect("delete");
                assert_eq!(was, changed.remove(&key).is_some());
            } else {
                let value = input.value();
                transaction.put(self.table(), &key, &value).expect("put");
                changed.insert(key.clone(), value);
            }
            assert_eq!(transaction.get(self.table(), &key).expect("get"), changed.get(&key).cloned());
        }
        let all: Result<Vec<_>, Error> = transaction.range::<&[u8]>(self.table(), ..).collect();
        assert_eq!(all.expect("a sound database is read"), changed.clone().into_iter().collect::<Vec<_>>());
        if input.byte().is_multiple_of(4) {
            transaction.abort();
        } else {
            transaction.commit().expect("nobody to conflict with");
            self.map = changed;
        }
    }
}

/// Runs the calls encoded in `input` and compares each with the map.
pub(crate) fn operations(input: &[u8]) {
    let mut pair = Pair::new();
    let mut input = Input(input);
    while !input.0.is_empty() {
        match input.byte() % 18 {
            0..5 => {
                let (key, value) = (input.key(), input.value());
                pair.table().put(&key, &value).expect("put");
                pair.map.insert(key, value);
            }
            5..7 => {
                let key = input.key();
                assert_eq!(pair.table().delete(&key).expect("delete"), pair.map.remove(&key).is_some());
            }
            7..9 => {
                let key = input.key();
                assert_eq!(pair.table().get(&key).expect("get"), pair.map.get(&key).cloned());
            }
            9 => pair.compare_range(&input.key(), &input.key(), false),
            10 => pair.compare_range(&input.key(), &input.key(), true),
            11..13 => pair.transact(&mut input),
            13 => pair.db().checkpoint().expect("checkpoint"),
            16 => pair.delete_range(&input.key(), &input.key()),
            17 => {
                let (key, value) = (input.key(), input.value());
                let now = pair.map.get(&key).cloned();
                let expected = if input.byte().is_multiple_of(4) { None } else { now.clone() };
                let swap =
                    pair.table().compare_and_swap(&key, expected.as_deref(), Some(&value)).expect("swap");
                assert_eq!(swap.is_done(), expected == now);
                if swap.is_done() {
                    pair.map.insert(key, value);
                }
            }
            14 if input.byte().is_multiple_of(8) => pair.close(),
            15 if input.byte().is_multiple_of(8) => pair.kill(),
            _ => {}
        }
        if let Some(entries) = pair.table().len_if_known().expect("a count") {
            assert_eq!(entries, pair.map.len() as u64);
        }
    }
    pair.kill();
    assert_eq!(pair.table().len().expect("a count"), pair.map.len() as u64);
    pair.compare_range(&[], &[255; 1025], false);
    let report = pair.db().verify().expect("verify runs");
    assert!(report.errors.is_empty(), "{:?}", report.errors);
}
