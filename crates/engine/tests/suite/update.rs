//! `Db::update` under endless conflicts of optimistic transactions.
//!
//! It gets priority, unrelated commits pass, and a body that waits for other threads blocks none
//! for good.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use terrace::{Db, Durability, Error, MemoryDirectory, Table};

use super::common;

/// Anything longer counts as a hang.
const HANGS: Duration = Duration::from_secs(120);
/// Upper bound of conflicts before priority.
const CONFLICTS: u64 = 16;

fn open() -> (Db, Table) {
    let directory = Arc::new(MemoryDirectory::new());
    let builder = common::optimistic().directory(directory).dram(4 << 20).durability(Durability::Buffered);
    let db = builder.open("").unwrap();
    let table = db.create_table("t").unwrap();
    table.put("read", 0u64.to_le_bytes()).unwrap();
    (db, table)
}

fn number(bytes: Option<Vec<u8>>) -> u64 {
    bytes.map_or(0, |bytes| u64::from_le_bytes(bytes[..8].try_into().unwrap()))
}

/// Runs `work` on a thread that is left behind if it hangs.
fn on_a_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || sender.send(work()));
    receiver
}

fn in_time<T>(receiver: Receiver<T>, what: &str) -> T {
    receiver.recv_timeout(HANGS).unwrap_or_else(|error| panic!("{what}: {error}"))
}

/// An update that conflicts until it has priority, then does `then`; returns conflicts and outcome.
fn update_in_the_end(
    db: &Db,
    table: &Table,
    then: impl Fn() -> terrace::Result<()>,
) -> (u64, terrace::Result<()>) {
    let mut conflicts = 0;
    let outcome = db.update(|transaction| {
        let read = number(transaction.get(table, "read")?);
        if db.stats().alone == 0 {
            conflicts += 1;
            table.put("read", (read + 1).to_le_bytes())?;
        } else {
            then()?;
        }
        transaction.put(table, "written", read.to_le_bytes())
    });
    (conflicts, outcome)
}

#[test]
fn commits_of_what_it_has_not_read_pass_a_transaction_with_priority() {
    let (db, table) = open();
    let (conflicts, outcome) = in_time(
        on_a_thread({
            let (db, table) = (db.clone(), table.clone());
            move || {
                let other = table.clone();
                update_in_the_end(&db, &table, || {
                    let other = other.clone();
                    let work = move || -> terrace::Result<()> {
                        other.put("another", "1")?;
                        other.delete("another")?;
                        Ok(())
                    };
                    in_time(on_a_thread(work), "a put of another key does not come back")
                })
            }
        }),
        "an update does not come back",
    );
    outcome.unwrap();
    assert!((1..=CONFLICTS).contains(&conflicts), "{conflicts}");
    assert_eq!(number(table.get("written").unwrap()), conflicts);
    assert_eq!(db.stats().alone, 1);
}

#[test]
fn tables_are_made_counted_and_dropped_beside_a_transaction_with_priority() {
    let (db, table) = open();
    let update = on_a_thread({
        let (db, table) = (db.clone(), table.clone());
        move || {
            let other = db.clone();
            update_in_the_end(&db, &table, || {
                let other = other.clone();
                let work = move || -> terrace::Result<()> {
                    assert!(other.create_table("u")?.is_empty()?);
                    other.drop_table("u")
                };
                in_time(on_a_thread(work), "making a table does not come back")
            })
        }
    });
    let (conflicts, outcome) = in_time(update, "an update does not come back");
    outcome.unwrap();
    assert!((1..=CONFLICTS).contains(&conflicts), "{conflicts}");
    assert_eq!(db.stats().alone, 1);
}

/// The body waits for a commit that writes what the body has read.
///
/// No order allows both, so the update fails, and no other thread is blocked for good.
#[test]
fn a_body_that_waits_for_a_commit_of_what_it_has_read_fails_and_stops_nobody() {
    let (db, table) = open();
    let runs = Arc::new(AtomicU64::new(0));
    let update = on_a_thread({
        let (db, table, runs) = (db.clone(), table.clone(), Arc::clone(&runs));
        move || {
            db.update(|transaction| {
                runs.fetch_add(1, SeqCst);
                let read = number(transaction.get(&table, "read")?);
                let other = table.clone();
                std::thread::spawn(move || other.put("read", (read + 100).to_le_bytes())).join().unwrap()?;
                transaction.put(&table, "read", (read + 1).to_le_bytes())
            })
        }
    });
    let outcome = in_time(update, "an update whose body waits for a put does not come back");
    assert!(matches!(outcome, Err(Error::Conflict)), "{outcome:?}");
    let runs = runs.load(SeqCst);
    let with_priority = db.stats().alone;
    assert!((3..=8).contains(&with_priority) && runs - with_priority <= CONFLICTS, "{runs}, {with_priority}");
    assert_eq!(number(table.get("read").unwrap()), 100 * runs, "every put of the body's helpers is there");
    table.put("read", 0u64.to_le_bytes()).unwrap();
}

/// The body takes a mutex that another thread holds while it commits what the body has read.
#[test]
fn a_body_that_takes_a_mutex_held_around_commits_stops_nobody() {
    const UPDATES: u64 = 4;
    let (db, table) = open();
    let (mutex, stop) = (Arc::new(Mutex::new(())), Arc::new(AtomicBool::new(false)));
    let has_put = Arc::new(Barrier::new(2));
    let putter = on_a_thread({
        let (table, mutex, stop, has_put) = (table.clone(), mutex.clone(), stop.clone(), has_put.clone());
        move || {
            table.put("read", u64::MAX.to_le_bytes()).unwrap();
            has_put.wait();
            let mut puts = 0u64;
            while !stop.load(SeqCst) {
                let held = mutex.lock().unwrap();
                table.put("read", puts.to_le_bytes()).unwrap();
                puts += 1;
                drop(held);
                std::thread::yield_now();
            }
            puts
        }
    });
    let updates = on_a_thread({
        let (db, table, mutex) = (db.clone(), table.clone(), Arc::clone(&mutex));
        move || {
            has_put.wait();
            (0..UPDATES)
                .filter(|_| {
                    let outcome = db.update(|transaction| {
                        let read = transaction.get(&table, "read")?;
                        std::thread::yield_now();
                        let _held = mutex.lock().unwrap();
                        transaction.put(&table, "written", read.unwrap_or_default())
                    });
                    assert!(matches!(outcome, Ok(()) | Err(Error::Conflict)), "{outcome:?}");
                    outcome.is_ok()
                })
                .count()
        }
    });
    let committed = in_time(updates, "updates do not come back");
    stop.store(true, SeqCst);
    let puts = in_time(putter, "a put does not come back");
    println!("{committed} of {UPDATES} updates, {puts} puts");
}

/// Threads raise counters beside a long transaction that reads all of them: nothing is lost, and
/// all end.
#[test]
fn counters_are_right_beside_long_transactions() {
    const COUNTERS: u64 = 8;
    let (db, table) = open();
    let stop = AtomicBool::new(false);
    let raised = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..3u64 {
            let (db, table, stop, raised) = (&db, &table, &stop, &raised);
            scope.spawn(move || {
                for round in 0u64.. {
                    let key = ((round + thread) % COUNTERS).to_be_bytes();
                    db.update(|transaction| {
                        let count = number(transaction.get(table, key)?);
                        transaction.put(table, key, (count + 1).to_le_bytes())
                    })
                    .unwrap();
                    raised.fetch_add(1, SeqCst);
                    if stop.load(SeqCst) {
                        return;
                    }
                }
            });
        }
        for round in 0..10u64 {
            let before = raised.load(SeqCst);
            let mut conflicts = 0;
            db.update(|transaction| {
                let mut sum = 0;
                for entry in transaction.range(&table, ..COUNTERS.to_be_bytes()) {
                    sum += number(Some(entry?.1));
                }
                // Some commits meanwhile, as long as they may.
                conflicts += 1;
                while conflicts <= 2 && raised.load(SeqCst) < before + 20 * conflicts {
                    std::thread::yield_now();
                }
                assert!(sum >= before || conflicts < 3, "a sum below what was raised before it began");
                transaction.put(&table, "sum", sum.to_le_bytes())
            })
            .unwrap_or_else(|error| panic!("round {round}, after {conflicts} runs: {error}"));
        }
        stop.store(true, SeqCst);
    });
    let sum: u64 = (0..COUNTERS).map(|key| number(table.get(key.to_be_bytes()).unwrap())).sum();
    assert_eq!(sum, raised.load(SeqCst));
}

#[test]
fn a_transaction_that_reads_one_key_for_ever_takes_no_more_memory() {
    let (db, table) = open();
    let transaction = db.begin();
    let before = db.stats().transaction_bytes;
    for _ in 0..200_000 {
        transaction.get(&table, "read").unwrap();
    }
    for _ in 0..20_000 {
        assert_eq!(transaction.range(&table, "a".."z").count(), 1);
    }
    assert!(db.stats().transaction_bytes <= before + (16 << 10));
    transaction.put(&table, "written", "1").unwrap();
    transaction.commit().unwrap();
}

#[test]
fn what_a_transaction_reads_is_limited_by_the_budget() {
    let (db, table) = open();
    let transaction = db.begin();
    let refused = (0..1_000_000u64).find_map(|key| transaction.get(&table, key.to_be_bytes()).err());
    assert!(
        matches!(refused, Some(Error::TransactionTooLarge { bytes, max, .. }) if bytes > max),
        "{refused:?}"
    );
    let taken = db.stats().transaction_bytes;
    let refused = transaction.get_many(&table, (0..100_000u64).map(u64::to_be_bytes)).unwrap_err();
    assert!(matches!(refused, Error::TransactionTooLarge { .. }), "{refused}");
    let refused = transaction.range::<&str>(&table, ..).next().unwrap().unwrap_err();
    assert!(matches!(refused, Error::TransactionTooLarge { .. }), "{refused}");
    drop(transaction);
    let given_back = taken - db.stats().transaction_bytes;
    assert!((64 << 10..=(4 << 20) / 32).contains(&given_back), "{given_back} bytes");
    // A range keeps almost no bytes per entry.
    let mut batch = terrace::WriteBatch::new();
    (0..5000u64).for_each(|key| _ = batch.put(&table, key.to_be_bytes(), [1; 100]));
    db.write(batch, Durability::Buffered).unwrap();
    let transaction = db.begin();
    assert_eq!(transaction.range::<&str>(&table, ..).count(), 5001);
    transaction.put(&table, "written", "1").unwrap();
    transaction.commit().unwrap();
}

#[derive(Debug)]
enum Refused {
    Poor { has: u64 },
    Engine(Error),
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Refused::Engine(error)
    }
}

#[test]
fn an_error_of_the_application_rolls_back_and_comes_back_as_it_is() {
    let (db, table) = open();
    table.put("read", 7u64.to_le_bytes()).unwrap();
    let mut runs = 0;
    let outcome = db.update(|transaction| {
        runs += 1;
        transaction.put(&table, "written", "1")?;
        let has = number(transaction.get(&table, "read")?);
        if has < 10 { Err(Refused::Poor { has }) } else { Ok(()) }
    });
    assert!(matches!(outcome, Err(Refused::Poor { has: 7 })), "{outcome:?}");
    assert_eq!((runs, table.get("written").unwrap()), (1, None));
    let outcome: Result<(), Refused> = db.update(|transaction| Ok(transaction.put(&table, [0; 2000], "")?));
    assert!(matches!(outcome, Err(Refused::Engine(Error::KeyTooLarge { .. }))), "{outcome:?}");
    let outcome: Result<u8, Box<dyn std::error::Error>> = db.update(|transaction| {
        transaction.put(&table, "written", "2")?;
        Ok("8".parse()?)
    });
    assert_eq!((outcome.unwrap(), table.get("written").unwrap()), (8, Some(b"2".to_vec())));
}

/// The body finds less than it needs only because a commit came between its two reads.
#[test]
fn an_error_of_the_application_over_stale_reads_runs_again() {
    let (db, table) = open();
    table.put("other", 10u64.to_le_bytes()).unwrap();
    let mut runs = 0;
    let outcome = db.update(|transaction| {
        runs += 1;
        let one = number(transaction.get(&table, "read")?);
        if runs == 1 {
            let mut batch = terrace::WriteBatch::new();
            batch.put(&table, "read", 10u64.to_le_bytes()).put(&table, "other", 0u64.to_le_bytes());
            db.write(batch, Durability::Buffered)?;
        }
        let has = one + number(transaction.get(&table, "other")?);
        if has < 10 { Err(Refused::Poor { has }) } else { Ok(has) }
    });
    assert!(matches!(outcome, Ok(10)), "{outcome:?}");
    assert_eq!(runs, 2);
}

/// A large value whose pages may have been freed is a conflict, even if its key has not changed.
#[test]
fn a_conflict_that_the_body_converts_or_swallows_runs_again() {
    for swallows in [false, true] {
        let builder = common::builder().directory(Arc::new(MemoryDirectory::new())).dram(4 << 20);
        let builder = builder.durability(Durability::Buffered).old_version_bytes_max(64 << 10);
        let db = builder.open("").unwrap();
        let table = db.create_table("t").unwrap();
        table.put("large", vec![1; 50_000]).unwrap();
        let mut met = Vec::new();
        let outcome = db.update(|transaction| {
            transaction.get(&table, "nothing")?;
            if met.is_empty() {
                for round in 0..2000u32 {
                    table.put((round % 100).to_be_bytes(), [1; 500])?;
                }
            }
            let large = transaction.get(&table, "large");
            met.push(matches!(large, Err(Error::Conflict)));
            transaction.put(&table, "written", "1")?;
            match large {
                Err(_) if swallows => Ok(0),
                Err(_) => Err(Refused::Poor { has: 0 }),
                Ok(value) => Ok(value.map_or(0, |value| value.len())),
            }
        });
        assert!(matches!(outcome, Ok(50_000)), "{outcome:?}");
        assert_eq!(met, [true, false], "the first run meets a conflict, swallowed: {swallows}");
    }
}

#[test]
fn a_body_asks_for_another_run_by_the_error_of_a_conflict() {
    let (db, table) = open();
    let mut runs = 0;
    db.update(|transaction| {
        runs += 1;
        transaction.put(&table, "written", "1")?;
        if runs < 3 { Err(Error::Conflict) } else { Ok(()) }
    })
    .unwrap();
    assert_eq!(runs, 3);
}

#[test]
fn an_error_in_the_change_of_a_key_changes_nothing() {
    let (db, table) = open();
    let raise = |old: Option<&[u8]>| match old {
        Some(old) if old.len() < 3 => Ok(Some([old, b"x"].concat())),
        old => Err(Refused::Poor { has: old.map_or(0, |old| old.len() as u64) }),
    };
    assert!(matches!(table.try_update("k", raise), Err(Refused::Poor { has: 0 })));
    table.put("k", "").unwrap();
    for _ in 0..3 {
        table.try_update("k", raise).unwrap();
    }
    assert!(matches!(table.try_update("k", raise), Err(Refused::Poor { has: 3 })));
    assert_eq!(table.get("k").unwrap().as_deref(), Some(&b"xxx"[..]));
    // Others change the key before each try, until this one has priority.
    let mut rounds = 0u64;
    let outcome = table.try_update("k", |_| {
        rounds += 1;
        if db.stats().alone > 0 {
            return Err(Refused::Poor { has: rounds });
        }
        table.put("k", rounds.to_le_bytes())?;
        Ok(Some(b"never".to_vec()))
    });
    assert!(matches!(outcome, Err(Refused::Poor { has }) if has > CONFLICTS), "{outcome:?}");
    assert_eq!(number(table.get("k").unwrap()), rounds - 1);
}
