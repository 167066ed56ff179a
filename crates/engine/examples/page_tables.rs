//! How long a get from DRAM takes with an array, with a hash table and swips, and with frame
//! numbers in the nodes, in turns in one process. Prints ratios of the times.
//!
//!     cargo run --release -p terrace --features raw-frames --example page_tables -- \
//!         RECORDS VALUE_BYTES PAGE_BYTES zipf|uniform

use std::error::Error;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use terrace::{Db, Durability, MemoryDirectory, PageTableKind, RawFrames, Table};

/// Gets of one side before it is the other's turn.
const BATCH: usize = 4096;
const KEYS: usize = 1 << 20;
const ROUNDS: usize = 900;
const ARRAY: usize = 0;
const SWIPS: usize = 1;
const RAW: usize = 2;

/// SplitMix64 of one number.
fn mixed(number: u64) -> u64 {
    let word = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

/// Keys to ask for, uniform or with a zipfian parameter of .99.
fn keys(records: u64, zipf: bool) -> Vec<u64> {
    if !zipf {
        return (0..KEYS as u64).map(|at| mixed(mixed(at) % records)).collect();
    }
    let mut total = 0.0;
    let add = |rank: u64| {
        total += (rank as f64).powf(-0.99);
        total
    };
    let sums: Vec<f64> = (1..=records).map(add).collect();
    let share = |at: u64| (mixed(at) >> 11) as f64 / (1u64 << 53) as f64 * total;
    (0..KEYS as u64).map(|at| mixed(sums.partition_point(|&sum| sum < share(at)) as u64)).collect()
}

fn filled(side: usize, records: u64, value: &[u8], page_bytes: u64) -> terrace::Result<Table> {
    let kind = if side == SWIPS { PageTableKind::Hash } else { PageTableKind::Array };
    let builder = Db::builder().directory(Arc::new(MemoryDirectory::new())).dram(512 << 20);
    let builder = builder.page_size(page_bytes).durability(Durability::Buffered).page_table(kind);
    let table = builder.swizzle(side == SWIPS).open("")?.create_table("records")?;
    for record in 0..records {
        table.put(mixed(record).to_be_bytes(), value)?;
    }
    Ok(table)
}

/// Nanoseconds of a get.
fn time(keys: &[u64], get: impl Fn([u8; 8]) -> terrace::Result<Option<Vec<u8>>>) -> terrace::Result<f64> {
    let began = Instant::now();
    for key in keys {
        black_box(get(key.to_be_bytes())?);
    }
    Ok(began.elapsed().as_nanos() as f64 / keys.len() as f64)
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [records, value, page_bytes, distribution] = &arguments[..] else {
        return Err("give RECORDS VALUE_BYTES PAGE_BYTES zipf|uniform".into());
    };
    let (records, value, page_bytes) = (records.parse()?, vec![7; value.parse()?], page_bytes.parse()?);
    let keys = keys(records, distribution == "zipf");
    // The order of opening decides which memory each gets, and with it some percent.
    for order in [[ARRAY, SWIPS, RAW], [SWIPS, RAW, ARRAY], [RAW, ARRAY, SWIPS]] {
        let mut tables = [None, None, None];
        for side in order {
            tables[side] = Some(filled(side, records, &value, page_bytes)?);
        }
        let [Some(array), Some(swips), Some(raw)] = &tables else { unreachable!("each was filled") };
        let raw = RawFrames::of(raw)?;
        let mut times = [const { Vec::new() }; 3];
        for round in 0..ROUNDS {
            let from = round * BATCH % (KEYS - BATCH);
            let batch = &keys[from..from + BATCH];
            for turn in 0..3 {
                let side = (turn + round) % 3;
                times[side].push(match side {
                    ARRAY => time(batch, |key| array.get(key))?,
                    SWIPS => time(batch, |key| swips.get(key))?,
                    _ => time(batch, |key| raw.get(key))?,
                });
            }
        }
        let to_array =
            |side: usize| median(times[side].iter().zip(&times[ARRAY]).map(|(a, b)| a / b).collect());
        println!("raw frames / array {:.3}, swips / array {:.3}", to_array(RAW), to_array(SWIPS));
    }
    Ok(())
}
