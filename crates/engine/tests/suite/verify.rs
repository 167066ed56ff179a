//! Verification beside threads that put, delete, create and drop: no false findings, and they
//! proceed.
//!
//! `TERRACE_RUNS` is the number of verifications. The threads' work follows from seeds, their
//! timing does not.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use terrace::{Db, Durability, Error, MemoryDirectory, Result};

use super::common;
use crate::common::Retry;

const KEYS: u32 = 2000;
/// Changes that a verification should meet.
const COMMITS_PER_RUN: u64 = 30;

fn value(random: &mut SmallRng) -> Vec<u8> {
    let length = match random.random_range(0..20) {
        0..15 => random.random_range(0..600),
        15..19 => random.random_range(2000..12_000),
        _ => random.random_range(20_000..200_000),
    };
    vec![random.random_range(0..=255); length]
}

fn work(db: &Db, random: &mut SmallRng) -> Result<()> {
    let table = db.open_or_create_table(["a", "b", "c"][random.random_range(0..3)])?;
    let key = random.random_range(0..KEYS);
    match random.random_range(0..200) {
        0..110 => table.put(key.to_be_bytes(), value(random))?,
        110..150 => _ = table.delete(key.to_be_bytes())?,
        150..170 => {
            let transaction = db.begin();
            for key in key..KEYS.min(key + 40) {
                transaction.delete(&table, key.to_be_bytes())?;
            }
            transaction.commit()?;
        }
        170..198 => {
            let transaction = db.begin();
            for _ in 0..4 {
                let key = random.random_range(0..KEYS);
                transaction.put(&table, key.to_be_bytes(), value(random))?;
            }
            if random.random_range(0..4) > 0 {
                transaction.commit()?;
            }
        }
        198 => db.drop_table(["a", "b", "c"][random.random_range(0..3)])?,
        _ => {
            db.create_table("temporary")?.put("k", value(random))?;
            db.drop_table("temporary")?;
        }
    }
    Ok(())
}

#[test]
fn threads_that_change_everything_are_no_damage() {
    let runs = std::env::var("TERRACE_RUNS").map_or(30, |runs| runs.parse::<u64>().unwrap());
    let builder =
        common::builder().directory(Arc::new(MemoryDirectory::new())).dram(6 << 20).log_max(4 << 20);
    let db = builder.durability(Durability::Buffered).open("").unwrap();
    let (done, commits) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for seed in 0..3 {
            let (db, done, commits) = (&db, &done, &commits);
            scope.spawn(move || {
                let _stop = Retry(done);
                let mut random = SmallRng::seed_from_u64(seed);
                while !done.load(Relaxed) {
                    match work(db, &mut random) {
                        Ok(()) => _ = commits.fetch_add(1, Relaxed),
                        Err(Error::Conflict | Error::TableNotFound(_) | Error::TableExists(_)) => {}
                        Err(error) => panic!("seed {seed}: {error}"),
                    }
                }
            });
        }
        let _stop = Retry(&done);
        for run in 0..runs {
            let before = commits.load(Relaxed);
            while commits.load(Relaxed) < before + COMMITS_PER_RUN && !done.load(Relaxed) {
                std::thread::yield_now();
            }
            let report = db.verify().unwrap();
            assert_eq!(report.errors, [], "run {run}");
            assert!(report.pages_checked > 0);
        }
        let (first, second) = (scope.spawn(|| db.verify().unwrap()), db.verify().unwrap());
        assert_eq!((first.join().unwrap().errors, second.errors), (vec![], vec![]), "two at a time");
    });
    println!("{runs} verifications beside {} commits", commits.load(Relaxed));
    assert_eq!(db.verify().unwrap().errors, []);
}

#[test]
fn a_transaction_that_runs_alone_may_verify() {
    let db = common::builder().directory(Arc::new(MemoryDirectory::new())).dram(4 << 20).open("").unwrap();
    let table = db.create_table("t").unwrap();
    let mut puts = 0u64;
    db.update(|transaction| {
        transaction.get(&table, "k")?;
        if db.stats().alone == 0 {
            // Another commit always comes first, until this one has priority.
            puts += 1;
            table.put("k", puts.to_le_bytes())?;
        } else {
            assert_eq!(db.verify()?.errors, []);
        }
        transaction.put(&table, "k", "mine")
    })
    .unwrap();
    assert!(puts > 0 && db.stats().alone == 1);
    assert_eq!(table.get("k").unwrap().unwrap(), b"mine");
    assert!(matches!(db.verify_at(0), Err(Error::Config(_))));
}
