//! Transactions that read and write in their turn: timestamp ordering.

use std::cell::RefCell;
use std::ops::Bound;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use terrace_io::{CallKind, FaultPlan, MemoryDirectory, SimulatedDisk};

use crate::crash::play;
use crate::planted::{Bug, plant};
use crate::{Concurrency, Db, Durability, Error, Mode, Table};

fn open(durability: Durability) -> (Db, Table) {
    let builder = Db::builder().directory(Arc::new(MemoryDirectory::new())).dram(2 << 20).page_size(4096);
    let builder = builder.mode(Mode::Inline).seed(1).concurrency(Concurrency::Mvto);
    let db = builder.durability(durability).open("").unwrap();
    let table = db.create_table("t").unwrap();
    for key in ["a", "b", "c"] {
        table.put(key, "old").unwrap();
    }
    (db, table)
}

fn expect(holds: bool, what: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what.to_owned()) }
}

/// Runs `check` with the bug, which must show, and without.
fn caught(bug: Bug, check: fn(Option<Bug>) -> Result<(), String>) {
    plant(Some(bug));
    let outcome = check(Some(bug));
    plant(None);
    println!("{bug:?}: {}", outcome.expect_err("the bug was not noticed"));
    check(None).expect("the same passes without the bug");
}

/// A transaction that has its turn, and has changed `key`.
fn writer(db: &Db, table: &Table, key: &str) -> crate::Transaction {
    let writer = db.begin();
    writer.get(table, "its turn begins here").unwrap();
    writer.put(table, key, "new").unwrap();
    writer
}

fn is_refused(writer: crate::Transaction) -> bool {
    matches!(writer.commit(), Err(Error::Conflict))
}

#[test]
fn a_transaction_reads_what_was_there_when_its_turn_began() {
    let (db, table) = open(Durability::Buffered);
    let reader = db.begin();
    assert_eq!(reader.get(&table, "a").unwrap().as_deref(), Some(&b"old"[..]));
    table.put("b", "new").unwrap();
    table.delete("c").unwrap();
    table.put("d", "new").unwrap();
    assert_eq!(reader.get(&table, "b").unwrap().as_deref(), Some(&b"old"[..]));
    assert_eq!(reader.get(&table, "d").unwrap(), None);
    let many = reader.get_many(&table, ["c", "d", "b"]).unwrap();
    assert_eq!(many, [Some(b"old".to_vec()), None, Some(b"old".to_vec())]);
    assert_eq!(reader.get_range(&table, "b", 1..).unwrap().as_deref(), Some(&b"ld"[..]));
    let keys: Vec<_> = reader.iter(&table).map(|entry| entry.unwrap().0).collect();
    assert_eq!(keys, [b"a", b"b", b"c"]);
    reader.put(&table, "e", "its own").unwrap();
    let keys: Vec<_> = reader.iter(&table).rev().map(|entry| entry.unwrap().0).collect();
    assert_eq!(keys, [b"e", b"c", b"b", b"a"]);
    reader.commit().unwrap();
    let keys: Vec<_> = table.iter().map(|entry| entry.unwrap().0).collect();
    assert_eq!(keys, [b"a", b"b", b"d", b"e"]);
    assert_eq!(table.len().unwrap(), 4);
    assert!(db.verify().unwrap().is_ok());
}

/// A change below a later read is refused.
#[test]
fn catches_no_read_mark() {
    caught(Bug::NoReadMark, |_| {
        let (db, table) = open(Durability::Buffered);
        let [first, second] = ["a", "b"].map(|key| writer(&db, &table, key));
        let reader = db.begin();
        reader.get(&table, "a").unwrap();
        reader.get_many(&table, ["c"]).unwrap();
        let third = writer(&db, &table, "a");
        expect(is_refused(first), "a later transaction had read what it changed")?;
        expect(second.commit().is_ok(), "nobody had read what it changed")?;
        expect(third.commit().is_ok(), "it is later than the reader")?;
        let seen = reader.get(&table, "a").unwrap();
        expect(seen.as_deref() == Some(b"old"), "the reader has its turn before")
    });
}

/// A change below a later change is refused.
#[test]
fn catches_write_below_newer() {
    caught(Bug::WriteBelowNewer, |_| {
        let (db, table) = open(Durability::Buffered);
        let [first, second] = ["a", "b"].map(|key| writer(&db, &table, key));
        table.put("a", "newer").unwrap();
        writer(&db, &table, "b").commit().unwrap();
        expect(is_refused(first), "a single change came before it")?;
        expect(is_refused(second), "a later transaction came before it")?;
        expect(table.get("a").unwrap().as_deref() == Some(b"newer"), "the later change stays")
    });
}

/// A change below a later scan of its table, or a later snapshot, is refused.
#[test]
fn catches_no_table_mark() {
    caught(Bug::NoTableMark, |_| {
        let (db, table) = open(Durability::Buffered);
        let other = db.create_table("other").unwrap();
        let [first, second] = [&table, &other].map(|table| writer(&db, table, "z"));
        assert_eq!(table.iter().count(), 3);
        expect(is_refused(first), "a scan had counted three")?;
        expect(second.commit().is_ok(), "nobody had scanned the other table")?;
        let first = writer(&db, &other, "y");
        let reader = db.begin();
        assert_eq!(reader.iter(&other).count(), 1);
        expect(is_refused(first), "a transaction had scanned the table")?;
        let first = writer(&db, &other, "y");
        let snapshot = db.snapshot();
        expect(is_refused(first), "a snapshot has all tables")?;
        expect(snapshot.get(&other, "y").unwrap().is_none(), "it does not change")
    });
}

/// A snapshot's timestamp may be that of the only turn. Then the turn belongs to it or not, as a
/// whole.
#[test]
fn the_newest_turn_changes_nothing_that_was_read_at_its_timestamp() {
    let (db, table) = open(Durability::Buffered);
    let mut keys = (0..400u32).map(|key| key.to_be_bytes());
    keys.try_for_each(|key| table.put(key, [1; 100])).unwrap();
    // A scan that has passed the first leaf.
    let turn = writer(&db, &table, "a");
    let mut scan = table.iter();
    scan.next().unwrap().unwrap();
    assert!(is_refused(turn), "the scan has begun");
    assert_eq!(scan.count(), 402);
    // A key that was deleted lately, and a large value: both read by a snapshot.
    table.delete("b").unwrap();
    let _keeps = db.begin().get(&table, "x");
    for (key, value) in [("b", None), ("large", Some(vec![7; 60_000]))] {
        if let Some(value) = &value {
            table.put(key, value).unwrap();
        }
        let turn = writer(&db, &table, key);
        let turn_at = turn.turn().unwrap();
        assert_eq!(db.shared.clock.visible(), turn_at, "it is the newest");
        let keeps = db.begin();
        keeps.get(&table, "x").unwrap();
        table.delete("a").unwrap();
        assert_eq!(table.get(key).unwrap(), value);
        let refused = is_refused(turn);
        assert!(refused || value.is_none(), "{key} was read at a later time");
        drop(keeps);
    }
    // A count.
    let turn = writer(&db, &table, "y");
    assert_eq!(table.len().unwrap(), 402);
    assert!(is_refused(turn), "the table was counted");
    assert_eq!(table.len().unwrap(), 402);
}

#[test]
fn a_walk_that_has_lost_its_turn_ends() {
    let (db, table) = open(Durability::Buffered);
    let transaction = db.begin();
    let mut walk = transaction.iter(&table);
    walk.next().unwrap().unwrap();
    assert_eq!(db.shared.snapshots.give_up_oldest(), 1);
    let rest: Vec<_> = walk.by_ref().take(10).collect();
    assert!(matches!(rest[..], [Err(Error::Conflict)]), "{rest:?}");
    assert!(matches!(transaction.get(&table, "a"), Err(Error::Conflict)));
    assert!(is_refused(transaction));
}

/// What another thread found beside a commit.
type Found<T> = Rc<RefCell<Option<JoinHandle<T>>>>;

/// Lets `other` run in a thread at the `point`th yield point of this one, until it has ended or
/// waits.
fn beside<T: Send + 'static>(
    db: &Db,
    bug: Option<Bug>,
    point: usize,
    other: impl Fn() -> T + Clone + Send + 'static,
) -> Found<T> {
    let (found, db): (Found<T>, _) = (Rc::default(), db.clone());
    let (thread, points) = (Rc::clone(&found), RefCell::new(0));
    play(Some(Rc::new(move |_| {
        let now = *points.borrow();
        *points.borrow_mut() += 1;
        if now != point {
            return;
        }
        let (other, waits) = (other.clone(), db.shared.waits_in_turn());
        let started = std::thread::spawn(move || {
            plant(bug);
            other()
        });
        while !started.is_finished() && db.shared.waits_in_turn() == waits {
            std::thread::yield_now();
        }
        *thread.borrow_mut() = Some(started);
    })));
    found
}

fn end<T>(found: &Found<T>) -> T {
    play(None);
    found.take().expect("the commit passed the point").join().expect("it panics by itself")
}

/// A read waits for a commit that comes before it.
#[test]
fn catches_lock_not_awaited() {
    caught(Bug::LockNotAwaited, |bug| {
        let (db, table) = open(Durability::Buffered);
        let early = writer(&db, &table, "a");
        early.put(&table, "b", "new").unwrap();
        let (shared, read) = (db.clone(), table.clone());
        let found = beside(&db, bug, 0, move || {
            let late = shared.begin();
            ["a", "b"].map(|key| late.get(&read, key).unwrap())
        });
        early.commit().unwrap();
        let [a, b] = end(&found);
        expect(a == b, "half of a commit was read")?;
        expect(a.as_deref() == Some(b"new"), "the commit comes before the read")
    });
}

/// A scan waits for a commit that comes before it.
#[test]
fn catches_scan_beside_commit() {
    caught(Bug::ScanBesideCommit, |bug| {
        let (db, table) = open(Durability::Buffered);
        let early = writer(&db, &table, "x");
        early.put(&table, "y", "new").unwrap();
        let read = table.clone();
        let found = beside(&db, bug, 0, move || read.iter().count());
        early.commit().unwrap();
        expect(end(&found) == 5, "the commit comes before the scan")
    });
}

/// A durable commit is read when it is durable.
#[test]
fn catches_unlock_before_durable() {
    caught(Bug::UnlockBeforeDurable, |bug| {
        let (db, table) = open(Durability::Sync);
        let early = writer(&db, &table, "a");
        let (shared, read) = (db.clone(), table.clone());
        // Point 0 is before the change, 1 before its record is durable.
        let found = beside(&db, bug, 1, move || {
            let value = read.get("a").unwrap();
            (value, shared.shared.pool.wal().persistent())
        });
        early.commit().unwrap();
        let needs = db.shared.pool.wal().tail();
        let (value, persistent) = end(&found);
        expect(value.as_deref() == Some(b"new"), "it comes before the read")?;
        expect(persistent >= needs, "a power cut may still take what was read")
    });
}

/// The log fails while a commit waits for it, and other threads for the commit.
#[test]
fn a_commit_that_fails_with_the_log_is_read_by_nobody() {
    let disk = SimulatedDisk::new(1);
    let builder = Db::builder().directory(Arc::new(disk.clone())).dram(2 << 20).page_size(4096);
    let builder = builder.mode(Mode::Inline).seed(1).concurrency(Concurrency::Mvto);
    let db = builder.open("").unwrap();
    let table = db.create_table("t").unwrap();
    table.put("a", "old").unwrap();
    let early = writer(&db, &table, "a");
    let (shared, read, failing) = (db.clone(), table.clone(), disk.clone());
    let found = beside(&db, None, 1, move || {
        failing.fail(FaultPlan::from_then_on(CallKind::WriteThrough, 1, 5));
        let by_turn = shared.begin().get(&read, "a");
        (read.get("a"), by_turn, read.get_many(["a"]))
    });
    let ended = early.commit();
    let (now, by_turn, many) = end(&found);
    assert!(ended.is_err());
    for value in [now, by_turn, many.map(|many| many[0].clone())] {
        assert!(value.is_err(), "{value:?}");
    }
}

/// Two transactions that each read what the other changes, one after the other.
#[test]
fn write_skew_is_refused() {
    let (db, table) = open(Durability::Buffered);
    let [first, second] = [("a", "b"), ("b", "a")].map(|(reads, changes)| {
        let transaction = db.begin();
        transaction.get(&table, reads).unwrap();
        transaction.put(&table, changes, "new").unwrap();
        transaction
    });
    assert!(is_refused(first), "the second has read what it changes, and comes later");
    second.commit().unwrap();
}

/// A transaction that reads much and changes little commits beside others that change what it has
/// read. An optimistic one never would.
#[test]
fn a_long_reader_commits_beside_writers() {
    let builder = Db::builder().directory(Arc::new(MemoryDirectory::new())).dram(16 << 20);
    let builder = builder.mode(Mode::Inline).concurrency(Concurrency::Mvto);
    let db = builder.durability(Durability::Buffered).open("").unwrap();
    let table = db.create_table("t").unwrap();
    let key = |number: u32| format!("key {number:05}");
    (0..2000).for_each(|number| table.put(key(number), "1").unwrap());
    let report = db.begin();
    let mut sum = 0;
    for number in 0..2000 {
        let value = report.get(&table, key(number)).unwrap().unwrap();
        sum += String::from_utf8(value).unwrap().parse::<u32>().unwrap();
        table.put(key(number), "2").unwrap();
        table.put(key(1999 - number), "2").unwrap();
    }
    report.put(&table, "sum", sum.to_string()).unwrap();
    report.commit().unwrap();
    assert_eq!(table.get("sum").unwrap().as_deref(), Some(&b"2000"[..]));
}

/// The closure of an update that always meets a later reader runs as with validation in the end.
#[test]
fn an_update_gets_through_beside_readers() {
    let (db, table) = open(Durability::Buffered);
    let mut runs = 0;
    db.update(|transaction| {
        runs += 1;
        let value = transaction.get(&table, "a")?.unwrap();
        let reader = db.begin();
        reader.get(&table, "a")?;
        transaction.put(&table, "a", [&value[..], b"er"].concat())
    })
    .unwrap();
    assert!(runs > 1, "the first run was below a reader");
    assert_eq!(table.get("a").unwrap().as_deref(), Some(&b"older"[..]));
}

/// A turn that is older than the mark of saved counts changes nothing after it: the next open would
/// take the mark for the newest commit.
#[test]
fn counts_are_right_after_a_crash_below_their_mark() {
    let disk = SimulatedDisk::new(1);
    let open = |disk: &SimulatedDisk| {
        let builder = Db::builder().directory(Arc::new(disk.clone())).dram(2 << 20).page_size(4096);
        builder.mode(Mode::Inline).seed(1).concurrency(Concurrency::Mvto).open("").unwrap()
    };
    let db = open(&disk);
    let table = db.create_table("t").unwrap();
    table.put("a", "old").unwrap();
    let early = writer(&db, &table, "x");
    db.checkpoint().unwrap();
    assert!(is_refused(early), "the counts were saved above it");
    let killed = open(&disk.killed());
    let table = killed.open_table("t").unwrap();
    assert_eq!(table.len_if_known().unwrap(), Some(table.iter().count() as u64));
}

/// Transactions of many threads over few keys: their order by turn explains all that they read.
#[test]
fn turns_are_a_serial_order() {
    const THREADS: u64 = 4;
    const ROUNDS: u32 = 400;
    const KEYS: u32 = 6;
    let seed = std::env::var("TERRACE_SEED").map_or(0x7457, |seed| seed.parse().expect("a number"));
    println!("TERRACE_SEED={seed}");
    let builder = Db::builder().directory(Arc::new(MemoryDirectory::new())).dram(4 << 20);
    let db = builder.concurrency(Concurrency::Mvto).durability(Durability::Buffered).open("").unwrap();
    let table = db.create_table("t").unwrap();
    let run = |thread: u64| {
        let (db, table, mut random) = (&db, &table, SmallRng::seed_from_u64(seed ^ thread));
        let mut done = Vec::new();
        for round in 0..ROUNDS {
            let transaction = db.begin();
            let (mut reads, mut writes) = (Vec::new(), Vec::new());
            for step in 0..random.random_range(1..5) {
                let key = [random.random_range(0..KEYS) as u8];
                match random.random_range(0..10) {
                    // Reads of its own changes tell nothing about others.
                    0..6 if !writes.is_empty() => {}
                    0..4 => reads.push((key[0], key[0], vec![transaction.get(table, key).unwrap()])),
                    4..6 => {
                        let range = (Bound::Included(key), Bound::Unbounded);
                        let rows: Vec<_> = transaction.range(table, range).map(Result::unwrap).collect();
                        let value = |key: u8| rows.iter().find(|row| row.0 == [key]).map(|row| row.1.clone());
                        reads.push((key[0], KEYS as u8 - 1, (key[0]..KEYS as u8).map(value).collect()));
                    }
                    6..7 => {
                        transaction.delete(table, key).unwrap();
                        writes.push((key[0], None));
                    }
                    _ => {
                        let value = format!("{thread}.{round}.{step}").into_bytes();
                        // It reads first, so that it has a turn.
                        transaction.replace(table, key, &value).unwrap();
                        writes.push((key[0], Some(value)));
                    }
                }
            }
            let turn = transaction.turn();
            if transaction.commit().is_ok() {
                done.extend(turn.map(|turn| (turn, reads, writes)));
            }
        }
        done
    };
    let mut all: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || run(thread))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    all.sort_by_key(|(turn, ..)| *turn);
    let mut model = vec![None; KEYS as usize];
    for (turn, reads, writes) in &all {
        for (from, to, seen) in reads {
            let expected = &model[usize::from(*from)..=usize::from(*to)];
            assert_eq!(seen, expected, "turn {turn}, keys {from} to {to}, seed {seed}");
        }
        for (key, value) in writes {
            model[usize::from(*key)].clone_from(value);
        }
    }
    let now: Vec<_> = (0..KEYS as u8).map(|key| table.get([key]).unwrap()).collect();
    assert_eq!(now, model, "seed {seed}");
    assert!(!all.is_empty(), "none committed");
}
