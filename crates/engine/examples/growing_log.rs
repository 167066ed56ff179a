//! Waits while the log grows, beside those with a log of its full size from the start.
//!
//! ```text
//!   growing_log FOLDER [SECONDS [THREADS]]
//! ```
//!
//! Half of the operations put 1000 bytes, the others get them, from an empty database in FOLDER,
//! with 512 MiB and buffered commits. Both kinds of log alternate. Run it with `--release`, on a
//! machine that does nothing else.

use std::path::Path;
use std::time::{Duration, Instant};

use terrace::{Db, Durability, Result, Table};

const LOG_BYTES: u64 = 256 << 20;
const KEYS: u64 = 200_000;
const ROUNDS: usize = 3;

/// The longest wait, that of one operation in a thousand, and the operations of one thread.
fn work(table: &Table, thread: u64, duration: Duration) -> Result<Vec<u32>> {
    let (mut waits, begun) = (Vec::new(), Instant::now());
    let (mut last, mut state) = (begun, thread + 1);
    while last - begun < duration {
        // Splitmix64: keys in no order.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let key = ((mixed ^ mixed >> 27) % KEYS).to_be_bytes();
        match mixed & 1 {
            0 => table.put(key, [thread as u8; 1000])?,
            _ => _ = table.get(key)?,
        }
        let now = Instant::now();
        waits.push((now - last).as_micros() as u32);
        last = now;
    }
    Ok(waits)
}

fn measure(name: &str, folder: &Path, log_min: u64, duration: Duration, threads: u64) -> Result<()> {
    let home = tempfile::tempdir_in(folder).expect("the folder can be written");
    let builder = Db::builder().dram(512 << 20).log_max(LOG_BYTES).log_min(log_min);
    let db = builder.durability(Durability::Buffered).open(home.path().join("db"))?;
    let table = db.create_table("t")?;
    let mut waits: Vec<u32> = std::thread::scope(|scope| {
        let start = |thread| {
            scope.spawn({
                let table = &table;
                move || work(table, thread, duration)
            })
        };
        let workers: Vec<_> = (0..threads).map(start).collect();
        workers.into_iter().map(|worker| worker.join().expect("no panic")).collect::<Result<Vec<_>>>()
    })?
    .concat();
    waits.sort_unstable();
    let rate = waits.len() as f64 / duration.as_secs_f64();
    println!(
        "{name:8} {rate:9.0} operations per second; longest wait {:6.1} ms, one in a thousand {:5} us; log {} MiB",
        f64::from(*waits.last().expect("there were some")) / 1000.0,
        waits[waits.len() - 1 - waits.len() / 1000],
        db.stats().log_capacity >> 20,
    );
    db.close()
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().unwrap_or_else(|| ".".to_owned());
    let number = |text: Option<String>, default| text.map_or(default, |text| text.parse().expect("a number"));
    let duration = Duration::from_secs(number(arguments.next(), 8));
    let threads = number(arguments.next(), 2);
    for _ in 0..ROUNDS {
        measure("growing", Path::new(&folder), 0, duration, threads)?;
        measure("full", Path::new(&folder), LOG_BYTES, duration, threads)?;
    }
    Ok(())
}
