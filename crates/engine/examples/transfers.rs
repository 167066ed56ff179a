//! Moves money between accounts in several threads. The sum never changes.
//!
//! `cargo run --release -p terrace --example transfers`
//!
//! Shows transactions over several keys, automatic retries, and a snapshot that reads during
//! writes.

use std::thread;

use terrace::{Db, Durability, Result, Table};

const ACCOUNTS: u64 = 100;
const START: u64 = 1_000;
const THREADS: u64 = 4;
const TRANSFERS: u64 = 5_000;

fn main() -> Result<()> {
    let home = tempfile::tempdir().expect("the system has a directory for temporary files");
    // Buffered: a commit returns before it is durable. `flush` waits for all of them.
    let db =
        Db::builder().dram(16 << 20).durability(Durability::Buffered).open(home.path().join("bank.db"))?;
    let accounts = db.create_table("accounts")?;
    for account in 0..ACCOUNTS {
        accounts.put(account.to_be_bytes(), START.to_be_bytes())?;
    }

    thread::scope(|scope| {
        let (bank, table) = (&db, &accounts);
        let writers: Vec<_> =
            (0..THREADS).map(|seed| scope.spawn(move || transfers(bank, table, seed))).collect();
        while !writers.iter().all(|writer| writer.is_finished()) {
            // A snapshot is one moment: it never sees half a transfer.
            assert_eq!(sum(&db, &accounts)?, ACCOUNTS * START);
        }
        writers.into_iter().try_for_each(|writer| writer.join().expect("a writer does not panic"))
    })?;
    db.flush()?;

    let stats = db.stats();
    println!("{} transfers, sum {}", THREADS * TRANSFERS, sum(&db, &accounts)?);
    println!("{} commits, {} conflicts, all retried", stats.commits, stats.conflicts);
    db.close()
}

fn transfers(db: &Db, accounts: &Table, seed: u64) -> Result<()> {
    // A small generator of numbers, so that the example needs no other crate.
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut below = |bound: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) % bound
    };
    for _ in 0..TRANSFERS {
        let (from, to, amount) = (below(ACCOUNTS), below(ACCOUNTS), below(50));
        db.update(|transaction| {
            let source = amount_of(transaction.get(accounts, from.to_be_bytes())?);
            if from == to || source < amount {
                return Ok(());
            }
            let target = amount_of(transaction.get(accounts, to.to_be_bytes())?);
            transaction.put(accounts, from.to_be_bytes(), (source - amount).to_be_bytes())?;
            transaction.put(accounts, to.to_be_bytes(), (target + amount).to_be_bytes())
        })?;
    }
    Ok(())
}

fn sum(db: &Db, accounts: &Table) -> Result<u64> {
    db.snapshot().iter(accounts).map(|entry| Ok(amount_of(Some(entry?.1)))).sum()
}

fn amount_of(value: Option<Vec<u8>>) -> u64 {
    value.and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_be_bytes)
}
