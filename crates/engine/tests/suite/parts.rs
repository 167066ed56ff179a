//! Parts of values: changes are logged as a part and atomic, reads agree with those of the whole.
//! Both are inside the value or refused.

use std::ops::{Bound, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use terrace::{
    Builder, Db, Durability, Error, MemoryDirectory, Mode, RecordCache, Result, Snapshot, Table,
    TableOptions, Transaction, TypedTable,
};

use super::common;

const THREADS: usize = 4;

fn open(directory: &MemoryDirectory) -> (Db, Table) {
    open_with(common::builder(), directory)
}

fn open_with(builder: Builder, directory: &MemoryDirectory) -> (Db, Table) {
    let builder = builder.directory(Arc::new(directory.clone())).dram(4 << 20);
    let db = builder.durability(Durability::Buffered).open("").unwrap();
    let table = db.open_or_create_table("t").unwrap();
    (db, table)
}

fn logged(db: &Db, change: impl FnOnce()) -> u64 {
    let before = db.stats().log_bytes;
    change();
    db.stats().log_bytes - before
}

#[test]
fn the_log_gets_the_part_that_changed() {
    let directory = MemoryDirectory::new();
    let (db, table) = open(&directory);
    let mut value = vec![1; 1000];
    table.put("k", &value).unwrap();
    value[500..600].fill(2);
    let part = 100..300;
    let whole = 1000..1200;
    assert!(part.contains(&logged(&db, || assert!(table.update_range("k", 500, [2; 100]).unwrap()))));
    assert_eq!(table.get("k").unwrap().as_ref(), Some(&value));
    value[0..100].fill(3);
    assert!(part.contains(&logged(&db, || table.put("k", &value).unwrap())), "a put finds the part");
    assert!(whole.contains(&logged(&db, || table.put("k", [4; 1000]).unwrap())));
    assert!(whole.contains(&logged(&db, || table.put("k", [4; 999]).unwrap())), "another length");
    // In a transaction the old bytes are in the log too: twice the part.
    table.put("k", &value).unwrap();
    value[900..1000].fill(5);
    let twice = logged(&db, || {
        let transaction = db.begin();
        assert!(transaction.update_range(&table, "k", 900, [5; 100]).unwrap());
        assert!(transaction.update_range(&table, "k", 900, [5; 100]).unwrap(), "of its own value");
        assert!(!transaction.update_range(&table, "absent", 0, "a").unwrap());
        transaction.commit().unwrap();
    });
    assert!((200..400).contains(&twice), "{twice}");
    assert_eq!(table.get("k").unwrap().as_ref(), Some(&value));
    db.close().unwrap();
    let (_db, table) = open(&directory);
    assert_eq!(table.get("k").unwrap().as_ref(), Some(&value));
}

#[test]
fn a_part_outside_the_value_is_refused_and_nothing_changes() {
    let (db, table) = open(&MemoryDirectory::new());
    for length in [0, 10, 3000, 50_000] {
        table.put("k", vec![1; length]).unwrap();
        for (at, bytes) in [(length, 1), (length + 1, 0), (0, length + 1), (usize::MAX, 2)] {
            let refused = table.update_range("k", at, vec![2; bytes]).unwrap_err();
            let Error::OutsideValue { start, end, length: found } = refused else { panic!("{refused}") };
            assert_eq!((start, end, found), (at, at.saturating_add(bytes), length));
            let transaction = db.begin();
            assert!(transaction.update_range(&table, "k", at, vec![2; bytes]).is_err());
        }
        assert!(table.update_range("k", length, "").unwrap(), "nothing, at the end");
        assert_eq!(table.get("k").unwrap(), Some(vec![1; length]));
        table.update_range("k", length / 2, vec![3; length - length / 2]).unwrap();
        assert_eq!(table.get("k").unwrap().unwrap()[length / 2..], vec![3; length - length / 2]);
    }
    assert!(!table.update_range("absent", 0, "").unwrap());
    assert!(!table.update_range("absent", 7, "abc").unwrap());
}

/// Each thread owns some bytes of one value; a snapshot sees whole changes only.
#[test]
fn threads_change_parts_of_one_value_without_loss() {
    for length in [THREADS * 16, 60_000] {
        let (db, table) = open(&MemoryDirectory::new());
        table.put("k", vec![0; length]).unwrap();
        let part = length / THREADS;
        let rounds = if length < 1000 { 500 } else { 20 };
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (db, table) = (&db, &table);
                scope.spawn(move || {
                    for round in 1..=rounds {
                        let bytes = vec![round as u8; part];
                        if round % 3 == 0 {
                            let update = db.update(|transaction| {
                                transaction.update_range(table, "k", thread * part, &bytes)
                            });
                            assert!(update.unwrap());
                        } else {
                            assert!(table.update_range("k", thread * part, &bytes).unwrap());
                        }
                        let now = db.snapshot().get(table, "k").unwrap().unwrap();
                        assert!(now.chunks(part).all(|part| part.iter().all(|byte| *byte == part[0])));
                        assert_eq!(now[thread * part], round as u8);
                    }
                });
            }
        });
        assert_eq!(table.get("k").unwrap(), Some(vec![rounds as u8; part * THREADS]));
    }
}

/// Everything that reads a part.
trait Reads {
    fn range(&self, table: &Table, key: &[u8], range: Range<usize>) -> Result<Option<Vec<u8>>>;
    fn with(&self, table: &Table, key: &[u8], range: Range<usize>) -> Result<Option<Vec<u8>>>;
    fn into(&self, table: &Table, key: &[u8], range: Range<usize>, part: &mut Vec<u8>) -> Result<bool>;
}

struct Now;

impl Reads for Now {
    fn range(&self, table: &Table, key: &[u8], range: Range<usize>) -> Result<Option<Vec<u8>>> {
        table.get_range(key, range)
    }

    fn with(&self, table: &Table, key: &[u8], range: Range<usize>) -> Result<Option<Vec<u8>>> {
        table.get_range_with(key, range, <[u8]>::to_vec)
    }

    fn into(&self, table: &Table, key: &[u8], range: Range<usize>, part: &mut Vec<u8>) -> Result<bool> {
        table.get_range_into(key, range, part)
    }
}

macro_rules! reads {
    ($($type:ty)*) => { $(
        impl Reads for $type {
            fn range(&self, table: &Table, key: &[u8], range: Range<usize>) -> Result<Option<Vec<u8>>> {
                self.get_range(table, key, range)
            }

            fn with(&self, table: &Table, key: &[u8], range: Range<usize>) -> Result<Option<Vec<u8>>> {
                self.get_range_with(table, key, range, <[u8]>::to_vec)
            }

            fn into(&self, table: &Table, key: &[u8], range: Range<usize>, part: &mut Vec<u8>) -> Result<bool> {
                self.get_range_into(table, key, range, part)
            }
        }
    )* };
}

reads! { Snapshot Transaction }

/// Compares every way to read a part with `whole`, the value.
fn check(reads: &dyn Reads, table: &Table, key: &[u8], whole: Option<&[u8]>, range: Range<usize>) {
    let mut buffer = b"left over".to_vec();
    let answers = [reads.range(table, key, range.clone()), reads.with(table, key, range.clone())];
    let into = reads.into(table, key, range.clone(), &mut buffer);
    match whole.map(|whole| (whole.len(), whole.get(range.clone()))) {
        Some((length, None)) => {
            let mut refused = answers.into_iter().map(Result::unwrap_err).chain([into.unwrap_err()]);
            assert!(refused.all(|error| matches!(
                error,
                Error::OutsideValue { start, end, length: found } if (start..end) == range && found == length
            )));
            assert!(buffer.is_empty());
        }
        part => {
            let part = part.and_then(|(_, part)| part);
            for answer in answers {
                assert!(answer.unwrap().as_deref() == part, "bytes {range:?}");
            }
            assert_eq!(into.unwrap(), part.is_some());
            assert!(buffer == part.unwrap_or_default(), "bytes {range:?}");
        }
    }
}

/// Bytes that tell their offset.
fn bytes(seed: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at ^ at >> 8 ^ at >> 16 ^ (seed * 37)) as u8).collect()
}

/// Some ranges of a value of `length` bytes, some of them not inside.
fn some_ranges(random: &mut SmallRng, length: usize) -> Vec<Range<usize>> {
    let mut offset = || random.random_range(0..=length);
    let (a, b) = (offset(), offset());
    let (c, beyond) = (offset(), length + 1);
    vec![
        0..length,
        0..0,
        length..length,
        a.min(b)..a.max(b),
        c..(c + 9).min(length),
        c..c,
        c..beyond,
        beyond..beyond,
    ]
}

const LENGTHS: [usize; 9] = [0, 1, 9, 1000, 3000, 10_000, 64_000, 300_000, 1_200_000];

/// Now, of a snapshot whose values were replaced or deleted, and in a transaction with its own.
#[test]
fn parts_of_values_of_every_kind_are_as_the_whole_says() {
    let builder =
        common::builder().directory(Arc::new(MemoryDirectory::new())).dram(48 << 20).log_max(16 << 20);
    let db = builder.value_page_size_max(256 << 10).durability(Durability::Buffered).open("").unwrap();
    let mut random = SmallRng::seed_from_u64(7);
    for (name, most) in [("small", 4 << 10), ("large", 256 << 10)] {
        let table = db.create_table_with(name, &TableOptions::new().value_page_size_max(most)).unwrap();
        let key = |number: usize| [number as u8];
        for (number, &length) in LENGTHS.iter().enumerate() {
            table.put(key(number), bytes(number, length)).unwrap();
        }
        let (snapshot, transaction) = (db.snapshot(), db.begin());
        for (number, &length) in LENGTHS.iter().enumerate() {
            let value = bytes(number, length);
            for range in some_ranges(&mut random, length) {
                check(&Now, &table, &key(number), Some(&value), range.clone());
                check(&snapshot, &table, &key(number), Some(&value), range.clone());
                check(&transaction, &table, &key(number), Some(&value), range.clone());
                check(&Now, &table, b"absent", None, range);
            }
        }
        for (number, &length) in LENGTHS.iter().rev().enumerate() {
            transaction.put(&table, key(number), bytes(number + 100, length)).unwrap();
            table.put(key(number), bytes(number + 200, length)).unwrap();
        }
        transaction.take(&table, key(3)).unwrap();
        table.delete(key(3)).unwrap();
        for (number, &length) in LENGTHS.iter().enumerate() {
            let (before, other) = (bytes(number, length), LENGTHS[LENGTHS.len() - 1 - number]);
            let (own, now) = (bytes(number + 100, other), bytes(number + 200, other));
            let is_left = number != 3;
            for range in some_ranges(&mut random, length.max(other)) {
                check(&snapshot, &table, &key(number), Some(&before), range.clone());
                check(&transaction, &table, &key(number), is_left.then_some(&own[..]), range.clone());
                check(&Now, &table, &key(number), is_left.then_some(&now[..]), range);
            }
        }
    }
}

#[test]
fn bounds_of_every_kind_mean_what_they_do_for_slices() {
    let (db, table) = open(&MemoryDirectory::new());
    for length in [10, 50_000] {
        let value = bytes(1, length);
        table.put("k", &value).unwrap();
        assert_eq!(table.get_range("k", ..).unwrap().unwrap(), value);
        assert_eq!(table.get_range("k", 3..).unwrap().unwrap(), value[3..]);
        assert_eq!(table.get_range("k", length..).unwrap().unwrap(), b"");
        assert_eq!(table.get_range("k", ..=4).unwrap().unwrap(), value[..=4]);
        let behind_two = (Bound::Excluded(2), Bound::Included(4));
        assert_eq!(table.get_range("k", behind_two).unwrap().unwrap(), value[3..=4]);
        #[expect(clippy::reversed_empty_ranges, reason = "it is refused")]
        let backward = table.get_range("k", 5..4);
        let beyond = [table.get_range("k", length + 1..), table.get_range("k", ..=usize::MAX), backward];
        for (refused, expected) in beyond.into_iter().zip([(length + 1, length + 1), (0, usize::MAX), (5, 4)])
        {
            let Error::OutsideValue { start, end, length: found } = refused.unwrap_err() else { panic!() };
            assert_eq!((start, end, found), (expected.0, expected.1, length));
        }
    }
    let typed: TypedTable<String, Vec<u8>> = table.typed();
    typed.put("k", "name: anna ").unwrap();
    assert!(typed.update_range("k", 6, "bert").unwrap());
    assert_eq!(typed.get_range("k", 6..10).unwrap().unwrap(), b"bert");
    let snapshot = db.snapshot();
    db.update(|transaction| {
        let typed = typed.within(transaction);
        assert!(typed.update_range("k", 0, "NAME")?);
        assert_eq!(typed.get_range("k", ..6)?.as_deref(), Some(&b"NAME: "[..]));
        Ok::<(), Error>(())
    })
    .unwrap();
    assert_eq!(typed.at(&snapshot).get_range("k", ..6).unwrap().unwrap(), b"name: ");
}

/// A part of a value that another commit has changed elsewhere is a read of the value.
#[test]
fn a_part_that_was_read_conflicts_with_a_change_of_another() {
    let (db, table) = open_with(common::optimistic(), &MemoryDirectory::new());
    for length in [100, 50_000] {
        table.put("k", vec![1; length]).unwrap();
        let transaction = db.begin();
        assert_eq!(transaction.get_range(&table, "k", ..9).unwrap(), Some(vec![1; 9]));
        assert!(matches!(transaction.get_range(&table, "k", ..length + 1), Err(Error::OutsideValue { .. })));
        transaction.put(&table, "other", "").unwrap();
        table.update_range("k", 50, "a").unwrap();
        assert!(matches!(transaction.commit(), Err(Error::Conflict)));
    }
}

/// Of a value on 245 pages and their 17 index pages.
#[test]
fn a_part_of_a_large_value_reads_its_pages_only() {
    let directory = MemoryDirectory::new();
    let value = bytes(1, 1_000_000);
    let open = || {
        let builder = common::builder().directory(Arc::new(directory.clone())).dram(4 << 20).no_middle();
        builder.durability(Durability::Buffered).mode(Mode::Inline).page_size(4 << 10).open("").unwrap()
    };
    let db = open();
    db.create_table("t").unwrap().put("k", &value).unwrap();
    db.close().unwrap();
    for (range, data, index) in [
        (0..1, 1, 1),
        (100..4064, 1, 1),
        (4063..4065, 2, 1),
        (100..100, 1, 1),
        (60_000..62_000, 2, 2),
        (999_990..1_000_000, 1, 17),
        (0..1_000_000, 247, 17),
    ] {
        let db = open();
        let table = db.open_table("t").unwrap();
        table.get("absent").unwrap();
        let before = db.stats().faults;
        let part = table.get_range("k", range.clone()).unwrap().unwrap();
        assert!(part == value[range.clone()], "{range:?}");
        assert_eq!(db.stats().faults - before, data + index, "{range:?}");
    }
}

const KEYS: u32 = 3000;

/// A value of one byte, whose length depends on key and round.
fn of_round(number: u32, round: u8) -> Vec<u8> {
    let length = match (number + u32::from(round)) % 40 {
        0 => 20_000,
        1 => 6_000,
        other => 300 + other as usize * 40,
    };
    vec![round; length]
}

/// Reads parts beside writers; returns how many were compared with whole values, at snapshots.
fn compare(db: &Db, table: &Table, seed: u64) -> u32 {
    let mut random = SmallRng::seed_from_u64(seed << 8 | 9);
    let mut compared = 0;
    for _ in 0..6000 {
        let key = random.random_range(0..KEYS).to_be_bytes();
        let at = random.random_range(0..1000);
        let range = at..at + random.random_range(0..300);
        // It may be given up for the memory that the writers take.
        let snapshot = db.snapshot();
        if let Ok(whole) = snapshot.get(table, key).map(Option::unwrap) {
            match snapshot.get_range(table, key, range.clone()) {
                Ok(part) => assert_eq!(part.as_deref(), whole.get(range.clone()), "seed {seed}: {range:?}"),
                Err(Error::OutsideValue { length, .. }) => {
                    assert!(length == whole.len() && length < range.end, "seed {seed}");
                }
                Err(Error::SnapshotTooOld) => continue,
                Err(error) => panic!("seed {seed}: {error}"),
            }
            compared += 1;
        }
        match table.get_range(key, range.clone()).map(Option::unwrap) {
            Ok(part) => {
                let is_of_one = part.iter().all(|byte| *byte == part[0]);
                assert!(part.len() == range.len() && is_of_one, "seed {seed}: {range:?}");
            }
            Err(Error::OutsideValue { length, .. }) => assert!(length < range.end, "seed {seed}"),
            Err(error) => panic!("seed {seed}: {error}"),
        }
    }
    compared
}

#[test]
fn parts_agree_with_whole_values_beside_writers() {
    for (seed, middle) in [(1, None), (2, Some("simulated:dram,4MiB"))] {
        let builder =
            common::builder().directory(Arc::new(MemoryDirectory::new())).dram(3 << 20).log_max(2 << 20);
        let builder = match middle {
            None => builder.no_middle(),
            Some(middle) => builder.middle(middle.parse().unwrap()),
        };
        let builder = builder.record_cache(RecordCache::Percent(30)).durability(Durability::Buffered);
        let db = builder.open("").unwrap();
        let table = db.create_table("t").unwrap();
        let put = |number: u32, round| table.put(number.to_be_bytes(), of_round(number, round)).unwrap();
        (0..KEYS).for_each(|number| put(number, 0));
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let stop = common::Retry(&done);
            for thread in 0..2u64 {
                let (done, put) = (&done, &put);
                scope.spawn(move || {
                    let mut random = SmallRng::seed_from_u64(seed << 8 | thread);
                    // Each thread has its own keys.
                    for round in (0..=u8::MAX).cycle().take_while(|_| !done.load(SeqCst)) {
                        put(random.random_range(0..KEYS / 2) * 2 + thread as u32, round);
                    }
                });
            }
            let compared = compare(&db, &table, seed);
            assert!(compared > 1000, "seed {seed}: {compared} at snapshots");
            drop(stop);
        });
        let mut random = SmallRng::seed_from_u64(seed);
        for number in 0..KEYS {
            let whole = table.get(number.to_be_bytes()).unwrap().unwrap();
            for range in some_ranges(&mut random, whole.len()) {
                check(&Now, &table, &number.to_be_bytes(), Some(&whole), range);
            }
        }
        assert!(db.stats().records.hits > 0, "the record cache answered some");
    }
}
