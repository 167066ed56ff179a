//! Many threads: isolation, snapshots, tiny budgets.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use terrace::{Builder, Db, Durability, Error, MemoryDirectory, Table, Transaction, WriteBatch};

use super::common;

fn open(dram: u64) -> Db {
    open_with(common::builder(), dram)
}

fn open_with(builder: Builder, dram: u64) -> Db {
    let directory = Arc::new(MemoryDirectory::new());
    builder.directory(directory).dram(dram).page_size(4096).open("").unwrap()
}

fn number(bytes: Option<Vec<u8>>) -> u64 {
    bytes.map_or(0, |bytes| u64::from_le_bytes(bytes[..8].try_into().unwrap()))
}

const ACCOUNTS: u64 = 200;
const TOTAL: u64 = ACCOUNTS * 1000;

fn name(n: u64) -> Vec<u8> {
    format!("account {n:05}").into_bytes()
}

/// A balance padded so that the accounts take many pages.
fn balance(amount: u64) -> Vec<u8> {
    let mut bytes = amount.to_le_bytes().to_vec();
    bytes.resize(400, 1);
    bytes
}

fn transfer(transaction: &mut Transaction, accounts: &Table, random: &mut SmallRng) -> terrace::Result<()> {
    let (from, to) = (random.random_range(0..ACCOUNTS), random.random_range(0..ACCOUNTS));
    let held = number(transaction.get(accounts, name(from))?);
    let amount = if random.random_range(0..4) == 0 { held } else { random.random_range(0..=held) };
    if amount == held {
        transaction.delete(accounts, name(from))?;
    } else {
        transaction.put(accounts, name(from), balance(held - amount))?;
    }
    let other = number(transaction.get(accounts, name(to))?);
    if other + amount > 0 {
        transaction.put(accounts, name(to), balance(other + amount))?;
    }
    Ok(())
}

/// The sum of all accounts in one snapshot, read in the given way.
fn sum_in_snapshot(db: &Db, accounts: &Table, way: &str) -> terrace::Result<u64> {
    let snapshot = db.snapshot();
    match way {
        "points" => (0..ACCOUNTS).map(|n| snapshot.get(accounts, name(n)).map(number)).sum(),
        "many" => {
            let values = snapshot.get_many(accounts, (0..ACCOUNTS).map(name));
            values.map(|values| values.into_iter().map(number).sum())
        }
        _ => snapshot.iter(accounts).map(|entry| entry.map(|(_, value)| number(Some(value)))).sum(),
    }
}

/// Checks the sum in two transactions: by keys, and by a range from behind.
fn check_sums_in_transactions(db: &Db, accounts: &Table) {
    let many = db.update(|transaction| {
        let values = transaction.get_many(accounts, (0..ACCOUNTS).map(name))?;
        Ok::<u64, Error>(values.into_iter().map(number).sum())
    });
    assert_eq!(many.unwrap(), TOTAL, "in a transaction, together");
    let sum = db.update(|transaction| {
        transaction
            .range::<&[u8]>(accounts, ..)
            .rev()
            .map(|entry| entry.map(|(_, value)| number(Some(value))))
            .sum::<Result<u64, _>>()
    });
    assert_eq!(sum.unwrap(), TOTAL, "in a transaction");
}

#[test]
fn money_is_neither_made_nor_lost() {
    let seed = 0x51e7;
    println!("seed {seed:#x}");
    let db = open(1 << 20);
    let accounts = db.create_table("accounts").unwrap();
    let mut batch = WriteBatch::new();
    for n in 0..ACCOUNTS {
        batch.put(&accounts, name(n), balance(1000));
    }
    db.write(batch, Durability::Sync).unwrap();
    let stop = AtomicBool::new(false);
    let checked = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let (db, accounts, stop, checked) = (&db, &accounts, &stop, &checked);
        let writers: Vec<_> = (0..4)
            .map(|thread| {
                scope.spawn(move || {
                    let mut random = SmallRng::seed_from_u64(seed + thread);
                    for _ in 0..1500 {
                        db.update(|transaction| transfer(transaction, accounts, &mut random)).unwrap();
                    }
                })
            })
            .collect();
        for way in ["range", "points", "many"] {
            scope.spawn(move || {
                while !stop.load(SeqCst) || checked.load(SeqCst) == 0 {
                    match sum_in_snapshot(db, accounts, way) {
                        Ok(sum) => assert_eq!(sum, TOTAL, "by {way}"),
                        Err(Error::SnapshotTooOld) => continue,
                        Err(error) => panic!("{error}"),
                    }
                    checked.fetch_add(1, SeqCst);
                }
            });
        }
        scope.spawn(move || {
            while !stop.load(SeqCst) {
                check_sums_in_transactions(db, accounts);
                checked.fetch_add(1, SeqCst);
            }
        });
        let results: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        stop.store(true, SeqCst);
        results.into_iter().for_each(|result| result.unwrap());
    });
    let sum: u64 = accounts.iter().map(|entry| number(Some(entry.unwrap().1))).sum();
    assert_eq!(sum, TOTAL);
    assert_eq!(db.verify().unwrap().errors, []);
    println!("{} sums, {} conflicts", checked.load(SeqCst), db.stats().conflicts);
}

/// Each doctor leaves only if another stays; both must not leave.
#[test]
fn write_skew_is_refused() {
    let db = open(1 << 20);
    let table = db.create_table("on call").unwrap();
    for round in 0..300u32 {
        table.put("a", "1").unwrap();
        table.put("b", "1").unwrap();
        let leave = |mine: &str, other: &str| {
            let transaction = db.begin_with(Durability::Buffered);
            if transaction.get(&table, other)?.is_some() {
                transaction.delete(&table, mine)?;
            }
            transaction.commit()
        };
        let outcomes = std::thread::scope(|scope| {
            let other = scope.spawn(|| leave("b", "a"));
            [leave("a", "b"), other.join().unwrap()]
        });
        for outcome in outcomes {
            assert!(matches!(outcome, Ok(()) | Err(Error::Conflict)), "{outcome:?}");
        }
        assert!(!table.is_empty().unwrap(), "both left in round {round}");
    }
}

#[test]
fn lost_updates_are_refused() {
    let db = open_with(common::optimistic(), 1 << 20);
    let table = db.create_table("t").unwrap();
    let first = db.begin();
    let second = db.begin();
    let count = number(first.get(&table, "n").unwrap());
    assert_eq!(number(second.get(&table, "n").unwrap()), count);
    first.put(&table, "n", (count + 1).to_le_bytes()).unwrap();
    second.put(&table, "n", (count + 1).to_le_bytes()).unwrap();
    first.commit().unwrap();
    assert!(matches!(second.commit(), Err(Error::Conflict)));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..250 {
                    db.update(|transaction| {
                        let count = number(transaction.get(&table, "n")?);
                        transaction.put(&table, "n", (count + 1).to_le_bytes())
                    })
                    .unwrap();
                }
            });
        }
    });
    assert_eq!(number(table.get("n").unwrap()), 1001);
}

#[test]
fn phantoms_are_refused() {
    let db = open_with(common::optimistic(), 1 << 20);
    let table = db.create_table("t").unwrap();
    for n in 0..400u32 {
        table.put(n.to_be_bytes(), [0; 50]).unwrap();
    }
    let reader = db.begin();
    assert_eq!(reader.range(&table, &10u32.to_be_bytes()[..]..&20u32.to_be_bytes()).count(), 10);
    reader.put(&table, "marker", "").unwrap();
    table.put([0, 0, 0, 15, 1], "a phantom").unwrap();
    assert!(matches!(reader.commit(), Err(Error::Conflict)));
    // Outside the range that was read, changes are no conflict.
    let reader = db.begin();
    assert!(reader.range(&table, &10u32.to_be_bytes()[..]..).next().is_some());
    reader.put(&table, "marker", "").unwrap();
    table.put([0, 0, 0, 99, 1], "no phantom").unwrap();
    reader.commit().unwrap();
    // Two transactions that count and add one must not count the same.
    let group = db.create_table("group").unwrap();
    let seen: Vec<u64> = std::thread::scope(|scope| {
        let join = |thread: u32| {
            let (db, group) = (&db, &group);
            scope.spawn(move || {
                let join = |n: u32| {
                    db.update(|transaction| {
                        let there = transaction
                            .prefix(group, "member")
                            .try_fold(0, |count, entry| entry.map(|_| count + 1))?;
                        transaction.put(group, format!("member {thread} {n}"), "")?;
                        Ok::<_, Error>(there)
                    })
                    .unwrap()
                };
                (0..60).map(join).collect::<Vec<u64>>()
            })
        };
        let threads: Vec<_> = (0..4).map(join).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let mut seen = seen;
    seen.sort_unstable();
    assert_eq!(seen, (0..240).collect::<Vec<u64>>());
}

#[test]
fn snapshot_survives_eviction_and_deletes() {
    let directory = Arc::new(MemoryDirectory::new());
    let builder = common::builder().directory(directory).dram(6 << 20).page_size(4096);
    let db = builder
        .old_version_bytes_max(4 << 20)
        .log_max(1 << 20)
        .durability(Durability::Buffered)
        .open("")
        .unwrap();
    let table = db.create_table("t").unwrap();
    let value = |n: u32, round: u32| [n.to_le_bytes(), round.to_le_bytes()].concat().repeat(30);
    for n in 0..4000u32 {
        table.put(n.to_be_bytes(), value(n, 0)).unwrap();
    }
    let snapshot = db.snapshot();
    for n in 0..4000u32 {
        if n % 3 == 0 {
            table.delete(n.to_be_bytes()).unwrap();
        } else {
            table.put(n.to_be_bytes(), value(n, 1)).unwrap();
        }
    }
    for n in 4000..12_000u32 {
        table.put(n.to_be_bytes(), value(n, 0)).unwrap();
    }
    assert!(db.stats().evictions > 0);
    let seen: Vec<_> = snapshot.iter(&table).map(Result::unwrap).collect();
    assert_eq!(seen.len(), 4000);
    for (n, (key, bytes)) in (0u32..).zip(&seen) {
        assert_eq!((&key[..], bytes), (&n.to_be_bytes()[..], &value(n, 0)));
    }
    let mut back: Vec<_> = snapshot.iter(&table).rev().map(Result::unwrap).collect();
    back.reverse();
    assert!(back == seen);
    assert_eq!(snapshot.get(&table, 3u32.to_be_bytes()).unwrap().unwrap(), value(3, 0));
    assert_eq!(table.get(3u32.to_be_bytes()).unwrap(), None);
    drop(snapshot);
}

#[test]
fn snapshots_are_given_up_for_memory_and_say_so() {
    let directory = Arc::new(MemoryDirectory::new());
    let builder = common::builder().directory(directory).dram(2 << 20);
    let db = builder.durability(Durability::Buffered).open("").unwrap();
    let table = db.create_table("t").unwrap();
    table.put("k", "v").unwrap();
    let snapshot = db.snapshot();
    for n in 0..3000u32 {
        table.put("k", vec![n as u8; 500]).unwrap();
    }
    assert!(matches!(snapshot.get(&table, "k"), Err(Error::SnapshotTooOld)));
    assert!(snapshot.iter(&table).any(|entry| matches!(entry, Err(Error::SnapshotTooOld))));
    assert_eq!(db.snapshot().get(&table, "k").unwrap().unwrap().len(), 500);
    assert!(db.stats().given_up.total() >= 1);
}

#[test]
fn data_eight_times_the_budget_stays_within_it() {
    let db = open(2 << 20);
    let table = db.create_table("t").unwrap();
    let count = 32_000u32;
    let key = |n: u32| (n.wrapping_mul(2_654_435_761)).to_be_bytes();
    for first in (0..count).step_by(200) {
        let mut batch = WriteBatch::new();
        for n in first..first + 200 {
            batch.put(&table, key(n), vec![n as u8; 500]);
        }
        db.write(batch, Durability::Buffered).unwrap();
    }
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let table = &table;
            scope.spawn(move || {
                let mut random = SmallRng::seed_from_u64(thread);
                for _ in 0..4000 {
                    let n = random.random_range(0..count);
                    assert_eq!(table.get(key(n)).unwrap().unwrap(), vec![n as u8; 500]);
                    if n % 16 == 0 {
                        table.put(key(n), vec![n as u8; 500]).unwrap();
                    }
                }
            });
        }
    });
    let stats = db.stats();
    let taken = stats.frame_bytes
        + stats.page_table_bytes
        + stats.log_buffer_bytes
        + stats.version_bytes
        + stats.transaction_bytes;
    assert!(taken <= stats.budget_bytes, "{taken} of {}", stats.budget_bytes);
    assert!(stats.live_pages * stats.page_bytes > 8 * stats.budget_bytes);
    assert_eq!(table.len().unwrap(), u64::from(count));
    assert_eq!(db.verify().unwrap().errors, []);
}

#[test]
fn many_committing_threads_do_not_wait_in_a_circle() {
    let db = open(4 << 20);
    let table = db.create_table("t").unwrap();
    std::thread::scope(|scope| {
        for thread in 0..300u32 {
            let (db, table) = (&db, &table);
            scope.spawn(move || {
                for n in 0..3u32 {
                    let mut batch = WriteBatch::new();
                    for part in 0..5u32 {
                        batch.put(table, format!("{thread} {n} {part}"), "v");
                    }
                    db.write(batch, Durability::Sync).unwrap();
                }
            });
        }
    });
    assert_eq!(table.len().unwrap(), 300 * 3 * 5);
}

#[test]
fn long_transactions_get_through_in_the_end() {
    const WRITERS: u64 = 2;
    let db = open_with(common::optimistic(), 2 << 20);
    let table = db.create_table("t").unwrap();
    for n in 0..100u32 {
        table.put(n.to_be_bytes(), 0u64.to_le_bytes()).unwrap();
    }
    let (stop, commits) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let _stop = common::Retry(&stop);
        for thread in 0..WRITERS {
            let (db, table, stop, commits) = (&db, &table, &stop, &commits);
            scope.spawn(move || {
                let mut random = SmallRng::seed_from_u64(thread);
                while !stop.load(SeqCst) {
                    let mut batch = WriteBatch::new();
                    batch.put(table, random.random_range(0..100u32).to_be_bytes(), 1u64.to_le_bytes());
                    db.write(batch, Durability::Buffered).unwrap();
                    commits.fetch_add(1, SeqCst);
                }
            });
        }
        for _ in 0..5 {
            let before = db.stats().alone;
            db.update(|transaction| {
                let mut sum = 0;
                for n in 0..100u32 {
                    sum += number(transaction.get(&table, n.to_be_bytes())?);
                }
                // Without priority there is always a commit that began after the reads.
                let since = commits.load(SeqCst);
                while db.stats().alone == before && commits.load(SeqCst) <= since + WRITERS {
                    std::thread::yield_now();
                }
                transaction.put(&table, "sum", sum.to_le_bytes())
            })
            .unwrap();
        }
    });
    assert!(db.stats().alone >= 5, "{:?}", db.stats());
}

/// Stages of a pair of keys, by single changes: `low` comes, `high` comes, `low` goes, `high` goes.
///
/// Each round uses the next number.
const STAGES: u64 = 4;

fn pair_keys(pair: u64) -> (Vec<u8>, Vec<u8>) {
    (format!("p{pair} a").into_bytes(), format!("p{pair} z").into_bytes())
}

fn numbered(number: u64) -> Vec<u8> {
    let mut bytes = number.to_le_bytes().to_vec();
    // Some values change their size.
    bytes.resize(100 + (number % 3) as usize / 2 * 40, 3);
    bytes
}

/// The stage at which a pair was seen: the first possible one from `since` on.
fn stage(low: Option<u64>, high: Option<u64>, since: u64) -> u64 {
    match (low, high) {
        (Some(number), None) => number * STAGES + 1,
        (Some(number), Some(other)) => {
            assert_eq!(number, other, "half of a round and half of another");
            number * STAGES + 2
        }
        (None, Some(number)) => number * STAGES + 3,
        (None, None) => since.next_multiple_of(STAGES),
    }
}

/// Takes a pair through its stages, and checks each change by a read.
fn write_pair(table: &Table, pair: u64, begun: &AtomicU64, done: &AtomicU64) {
    let (low, high) = pair_keys(pair);
    for step in 0..24_000 {
        begun.store(step + 1, SeqCst);
        let value = numbered(step / STAGES);
        match step % STAGES {
            0 => table.put(&low, value).unwrap(),
            1 => table.put(&high, value).unwrap(),
            2 => assert!(table.delete(&low).unwrap()),
            _ => assert!(table.delete(&high).unwrap()),
        }
        done.store(step + 1, SeqCst);
        let own = if step % STAGES < 2 { Some(step / STAGES) } else { None };
        let key = if step % 2 == 0 { &low } else { &high };
        assert_eq!(table.get(key).unwrap().map(|bytes| number(Some(bytes))), own);
    }
}

/// The numbers of a pair's low and high key.
type Pair = (Option<u64>, Option<u64>);

/// The pair among the entries of a range.
fn pair_among(
    entries: impl Iterator<Item = terrace::Result<(Vec<u8>, Vec<u8>)>>,
    (low, high): &(Vec<u8>, Vec<u8>),
) -> terrace::Result<Pair> {
    let mut seen = (None, None);
    for entry in entries {
        let (key, value) = entry?;
        let number = number(Some(value));
        if key == *low {
            seen.0 = Some(number);
        } else if key == *high {
            seen.1 = Some(number);
        }
    }
    Ok(seen)
}

/// Reads both keys of a pair: in a range, a snapshot, or one of two kinds of transactions.
fn look_at_pair(
    db: &Db,
    table: &Table,
    (kind, round): (usize, u64),
    keys: &(Vec<u8>, Vec<u8>),
) -> terrace::Result<Pair> {
    let (low, high) = keys;
    match kind {
        0 => pair_among(table.range(&low[..]..=&high[..]), keys),
        1 => {
            let snapshot = db.snapshot();
            let get = |key: &[u8]| -> terrace::Result<_> {
                Ok(snapshot.get(table, key)?.map(|bytes| number(Some(bytes))))
            };
            get(low).and_then(|low| Ok((low, get(high)?)))
        }
        2 => db.update(|transaction| {
            let seen = pair_among(transaction.range(table, &low[..]..=&high[..]).rev(), keys)?;
            transaction.put(table, format!("q{kind}"), "read and written")?;
            Ok(seen)
        }),
        _ => db.update(|transaction| {
            let get = |key: &[u8]| -> terrace::Result<_> {
                Ok(transaction.get(table, key)?.map(|bytes| number(Some(bytes))))
            };
            let seen = (get(low)?, get(high)?);
            if round % 2 == 0 {
                transaction.put(table, format!("q{kind}"), "read and written")?;
            }
            Ok(seen)
        }),
    }
}

/// Single changes take part in the order of transactions.
///
/// A reader of two keys sees a state that existed, not before what was acknowledged and not after
/// what was begun.
#[test]
fn single_changes_are_seen_in_their_order() {
    const PAIRS: u64 = 3;
    let directory = Arc::new(MemoryDirectory::new());
    let builder =
        common::builder().directory(directory).dram(2 << 20).page_size(4096).old_version_bytes_max(64 << 10);
    let db = builder.durability(Durability::Buffered).open("").unwrap();
    let table = db.create_table("t").unwrap();
    for pair in 0..PAIRS {
        for n in 0..100u32 {
            table.put(format!("p{pair} m{n:04}"), [1; 100]).unwrap();
        }
    }
    let begun: Vec<AtomicU64> = (0..PAIRS).map(|_| AtomicU64::new(0)).collect();
    let done: Vec<AtomicU64> = (0..PAIRS).map(|_| AtomicU64::new(0)).collect();
    let (stop, looks) = (AtomicBool::new(false), [0; 4].map(AtomicU64::new));
    std::thread::scope(|scope| {
        let (db, table, begun, done, stop, looks) = (&db, &table, &begun, &done, &stop, &looks);
        let writers: Vec<_> = (0..PAIRS)
            .map(|pair| {
                scope.spawn(move || {
                    write_pair(table, pair, &begun[pair as usize], &done[pair as usize]);
                })
            })
            .collect();
        for (kind, looks) in looks.iter().enumerate() {
            scope.spawn(move || {
                for round in 0u64.. {
                    // On a busy machine, snapshots may all be given up before they are read.
                    if stop.load(SeqCst) && looks.load(SeqCst) > 0 {
                        break;
                    }
                    let pair = round % PAIRS;
                    let since = done[pair as usize].load(SeqCst);
                    let seen = look_at_pair(db, table, (kind, round), &pair_keys(pair));
                    let seen = match seen {
                        Ok((low, high)) => stage(low, high, since),
                        Err(Error::SnapshotTooOld) => continue,
                        Err(error) => panic!("{error}"),
                    };
                    let until = begun[pair as usize].load(SeqCst);
                    assert!(
                        (since..=until).contains(&seen),
                        "look {kind}: {seen} is not in {since}..={until}"
                    );
                    looks.fetch_add(1, SeqCst);
                }
            });
        }
        let results: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        stop.store(true, SeqCst);
        results.into_iter().for_each(|result| result.unwrap());
    });
    println!("looks {looks:?}, {} given up", db.stats().given_up.total());
    assert_eq!(db.verify().unwrap().errors, []);
}

#[test]
fn what_a_few_threads_keep_is_not_too_much() {
    let directory = Arc::new(MemoryDirectory::new());
    let builder =
        common::builder().directory(directory).dram(4 << 20).page_size(4096).old_version_bytes_max(64 << 10);
    let db = builder.durability(Durability::Buffered).open("").unwrap();
    let table = db.create_table("t").unwrap();
    table.put("k", "v").unwrap();
    let snapshot = db.snapshot();
    for thread in 0..20u32 {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                (0..100u32).step_by(50).for_each(|n| table.put(format!("k{thread} {n}"), "v").unwrap())
            });
        });
    }
    // The collector runs every few milliseconds.
    std::thread::sleep(std::time::Duration::from_millis(100));
    assert_eq!(snapshot.get(&table, "k").unwrap().as_deref(), Some(&b"v"[..]), "40 versions of a few bytes");
}

#[test]
fn what_a_thread_leaves_behind_is_collected_inline_too() {
    let directory = Arc::new(MemoryDirectory::new());
    let builder =
        common::builder().directory(directory).dram(4 << 20).page_size(4096).mode(terrace::Mode::Inline);
    let db = builder.durability(Durability::Buffered).open("").unwrap();
    let table = db.create_table("t").unwrap();
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| (0..30u32).for_each(|n| table.put(n.to_be_bytes(), "v").unwrap()));
        // The scope itself does not wait until the thread has handed over its versions.
        thread.join().unwrap();
    });
    let before = db.stats().versions_dropped;
    (0..200u32).for_each(|_| table.put("k", "v").unwrap());
    let dropped = db.stats().versions_dropped - before;
    assert!(dropped > 200, "{dropped}: those of the thread that is gone are kept");
}
