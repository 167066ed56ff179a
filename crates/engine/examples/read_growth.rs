//! How the cost of a read grows with the data, by level of the tree and by cache miss.
//!
//!     cargo run --release -p terrace --example read_growth -- VALUE_BYTES RECORDS...
//!
//! Prints a row for each number of records; `scripts/growth` draws them. A *hot* get asks for one
//! key again and again, so that all it looks at is in the processor's first cache. A *cold* get
//! asks for uniform keys. A *miss* is a load whose address is the result of the load before, from
//! huge pages of as many bytes as the tree has. So the difference of the two gets, divided by a
//! miss, tells for how many misses in turn a cold get waits.

use std::error::Error;
use std::hint::black_box;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use terrace::{Db, Durability, MemoryDirectory, Table, WriteBatch};
use terrace_io::Region;

/// Operations between two looks at the clock.
const GETS: u64 = 1 << 20;
const SCANS: u64 = 1 << 14;
const SCAN_ENTRIES: usize = 50;
const ROUNDS: u64 = 7;
const BATCH: u64 = 1000;

/// SplitMix64 of one number.
fn mixed(number: u64) -> u64 {
    let word = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

/// A number below `count`, for a uniform `word`.
fn within(word: u64, count: u64) -> u64 {
    ((u128::from(word) * u128::from(count)) >> 64) as u64
}

fn key(record: u64) -> [u8; 16] {
    let mut key = *b"record: ........";
    key[8..].copy_from_slice(&(record << 16).to_be_bytes());
    key
}

fn filled(records: u64, value_bytes: usize) -> terrace::Result<(Db, Table)> {
    // Pages are at worst half full; the files, in memory too, come on top.
    let dram = records * (value_bytes as u64 + 100) * 2 + (64 << 20);
    let builder = Db::builder().directory(Arc::new(MemoryDirectory::new())).dram(dram);
    let db = builder.durability(Durability::Buffered).open("")?;
    let table = db.create_table("records")?;
    let value = vec![7; value_bytes];
    for first in (0..records).step_by(BATCH as usize) {
        let mut batch = WriteBatch::new();
        for record in first..records.min(first + BATCH) {
            batch.put(&table, key(record), &value);
        }
        db.write(batch, Durability::Buffered)?;
    }
    Ok((db, table))
}

/// The median of the rounds, in nanoseconds of one of `count` operations.
fn time(count: u64, mut work: impl FnMut(u64) -> terrace::Result<()>) -> terrace::Result<f64> {
    let mut rounds = Vec::new();
    for round in 0..ROUNDS {
        let began = Instant::now();
        (round * count..(round + 1) * count).try_for_each(&mut work)?;
        rounds.push(began.elapsed().as_nanos() as f64 / count as f64);
    }
    rounds.sort_by(f64::total_cmp);
    Ok(rounds[rounds.len() / 2])
}

/// Nanoseconds of a load that waits for the one before, from `bytes` bytes of huge pages.
fn miss(bytes: u64) -> Result<f64, Box<dyn Error>> {
    let bytes = bytes.next_multiple_of(2 << 20) as usize;
    let region = Region::reserve(bytes)?;
    region.commit(0..bytes)?;
    let words = region.words(0..bytes);
    let lines = words.len() as u64 / 8;
    // The memory is zero, but the processor has to wait for the word to know that.
    let mut line = 0;
    let chased = time(GETS, |at| {
        let word = words[line as usize * 8].load(Relaxed);
        line = within(mixed(at ^ word), lines) ^ word;
        Ok(())
    })?;
    // What the loop costs without misses.
    let mut sum = 0;
    let plain = time(GETS, |at| {
        let word = words[(sum & 7) as usize].load(Relaxed);
        sum = within(mixed(at ^ word), lines) ^ word;
        Ok(())
    })?;
    black_box((line, sum));
    Ok((chased - plain).max(0.0))
}

fn row(value_bytes: usize, records: u64) -> Result<(), Box<dyn Error>> {
    let (db, table) = filled(records, value_bytes)?;
    let mut value = Vec::new();
    let mut get = |record: u64| {
        assert!(table.get_into(key(record), &mut value)?);
        black_box(&value);
        Ok(())
    };
    let one = records / 3;
    let hot = time(GETS, |_| get(one))?;
    let cold = time(GETS.min(records * 16), |at| get(mixed(at) % records))?;
    let scan = time(SCANS, |at| {
        let (mut seen, mut sum) = (0, 0u64);
        table.range(key(mixed(at) % records)..).expect_entries(SCAN_ENTRIES).visit::<()>(|_, value| {
            // All lines are read, as by a caller that uses the value.
            sum += value.iter().step_by(64).map(|byte| u64::from(*byte)).sum::<u64>();
            seen += 1;
            if seen < SCAN_ENTRIES { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        black_box(sum);
        Ok(())
    })?;
    let levels = db.table_stats()?[0].levels;
    let bytes = records * (value_bytes as u64 + 32);
    db.close()?;
    let miss = miss(bytes)?;
    println!(
        "{records} {value_bytes} {levels} {hot:.1} {:.1} {cold:.1} {miss:.1} {:.2} {:.1}",
        hot / levels as f64,
        (cold - hot) / miss.max(1.0),
        scan / SCAN_ENTRIES as f64
    );
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [value_bytes, sizes @ ..] = &arguments[..] else {
        return Err("give VALUE_BYTES RECORDS...".into());
    };
    println!("records value_bytes levels hot_ns hot_ns_per_level cold_ns miss_ns misses scan_ns_per_entry");
    sizes.iter().try_for_each(|records| row(value_bytes.parse()?, records.parse()?))
}
