//! What a cache on this machine's disk gains for a database on a slower one.
//!
//! ```text
//! cargo run --release -p terrace-sqlite --example network_disk -- [DIRECTORY] [SECONDS] [ROUNDS] [counted]
//! ```
//!
//! The database is ten times as large as SQLite's page cache and lies, as does its log, behind a gate that lets 3,000 transfers
//! a second pass, each in at least 500 microseconds, as a network disk does (`latency_us`, `operations_per_second`). The block cache
//! lies beside it without a gate. With `counted` the gate's time is not waited for, but counted and added to the time that the processor
//! was at work, and the cache that is read directly has a disk of 80 microseconds, which are counted, too: other work on the
//! machine, which takes the processor away from who needs it and not from who waits, does not change the ratios then. Runs with and without a cache take turns; what is printed are medians, and by the last run
//! the transfers of the slow disk for each operation: reads and writes of the database, reads and writes of the log. Rows are
//! drawn by a Zipf distribution, theta .99, over scattered keys.

use std::path::Path;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rusqlite::{Connection, params};

/// About 30 MB in rows of 1 KB.
const ROWS: u64 = 26_000;
const ROW_BYTES: usize = 1000;
const PAGE_CACHE_KIB: i64 = 3_000;

/// Reads that fill a cache before anything is measured.
const READS_BEFORE: usize = 4_000;

/// Operations for each second that is asked for, where time is counted.
const COUNTED_A_SECOND: u64 = 5_000;

const DISK: &str = "&latency_us=500&operations_per_second=3000";

/// Caches that are compared with none: their size, and what they can hold of the database.
const CACHES: [(&str, &str); 3] = [
    ("48MiB&block_cache_io=direct", "all of it"),
    ("48MiB&block_cache_io=buffered", "all, buffered"),
    ("15MiB&block_cache_io=buffered", "half, buffered"),
];

/// What is done: the share of reads, in percent.
const MIXES: [(&str, u32); 3] = [("read-only", 100), ("read-mostly", 95), ("write-only", 0)];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().unwrap_or_else(|| ".".to_owned());
    let seconds: u64 = arguments.next().map_or(Ok(5), |text| text.parse())?;
    let rounds: usize = arguments.next().map_or(Ok(5), |text| text.parse())?;
    let is_counted = arguments.next().as_deref() == Some("counted");
    terrace_sqlite::register(false)?;
    let place = tempfile::tempdir_in(directory)?;
    load(place.path())?;
    // Each has a copy of its own: to the others' caches its changes would be changes by somebody else.
    let setups: Vec<Option<&str>> = [None].into_iter().chain(CACHES.map(|(size, _)| Some(size))).collect();
    for setup in &setups {
        std::fs::copy(place.path().join("x.db"), place.path().join(name(*setup)))?;
        if setup.is_some() {
            warm(place.path(), *setup, is_counted)?;
        }
    }
    println!(
        "{:<12} {:>14} {:>12} {:>6} {:>9}  slow transfers an operation",
        "mix", "cache", "operations/s", "ratio", "hit ratio"
    );
    // No two runs of a database have the same.
    let mut seed = 10;
    for (mix, reads) in MIXES {
        let mut speeds = vec![Vec::new(); CACHES.len() + 1];
        let mut last = vec![Run::default(); CACHES.len() + 1];
        for _ in 0..rounds {
            seed += 1;
            for (number, cache) in setups.iter().enumerate() {
                last[number] = run(place.path(), *cache, reads, seconds, seed, is_counted)?;
                speeds[number].push(last[number].speed);
            }
        }
        let medians: Vec<f64> = speeds.iter_mut().map(|speeds| median(speeds)).collect();
        for (number, speed) in medians.iter().enumerate() {
            let cache = if number == 0 { "none" } else { CACHES[number - 1].1 };
            let (ratio, hits, [reads, writes, log_reads, log_writes]) =
                (speed / medians[0], last[number].hit_ratio, last[number].transfers);
            println!(
                "{mix:<12} {cache:>14} {speed:>12.0} {ratio:>6.2} {hits:>9.3}  {reads:.3} {writes:.3} {log_reads:.3} {log_writes:.3}"
            );
        }
    }
    Ok(())
}

fn load(place: &Path) -> rusqlite::Result<()> {
    let mut db = Connection::open(place.join("x.db"))?;
    db.query_row("pragma journal_mode = wal", [], |_| Ok(()))?;
    db.execute_batch("create table t(id integer primary key, value blob)")?;
    let transaction = db.transaction()?;
    let mut random = SmallRng::seed_from_u64(1);
    for id in 0..ROWS {
        transaction.execute("insert into t values (?, ?)", params![id as i64, value(&mut random)])?;
    }
    transaction.commit()
}

fn value(random: &mut SmallRng) -> Vec<u8> {
    (0..ROW_BYTES).map(|_| random.random()).collect()
}

fn name(cache: Option<&str>) -> String {
    format!("x-{}.db", cache.unwrap_or("none").replace(['&', '='], "-"))
}

fn open(place: &Path, cache: Option<&str>, is_counted: bool) -> rusqlite::Result<Connection> {
    let (path, name) = (place.display(), name(cache));
    let parameters = cache
        .map_or(String::new(), |size| format!("&block_cache={path}/{name}-cache&block_cache_size={size}"));
    let time = match (is_counted, parameters.ends_with("direct")) {
        (true, true) => "&time=counted&block_cache_latency_us=80",
        (true, false) => "&time=counted",
        (false, _) => "",
    };
    let db = Connection::open(format!("file:{path}/{name}?vfs=terrace{DISK}{parameters}{time}"))?;
    db.execute_batch(&format!("pragma cache_size = -{PAGE_CACHE_KIB}; pragma synchronous = normal"))?;
    Ok(db)
}

/// Makes a cache what it is after a while. It stays so from connection to connection.
fn warm(place: &Path, cache: Option<&str>, is_counted: bool) -> rusqlite::Result<()> {
    let (db, mut random, zipf) =
        (open(place, cache, is_counted)?, SmallRng::seed_from_u64(3), Zipf::new(ROWS, 0.99));
    db.query_row("select sum(length(value)) from t", [], |_| Ok(()))?;
    for _ in 0..READS_BEFORE {
        db.query_row("select length(value) from t where id = ?", [zipf.draw(&mut random)], |_| Ok(()))?;
    }
    // A file that was made just now is recognised when it is opened again if this process was the last to change it. A row that
    // is written as it was is no change: SQLite leaves its page as it is.
    db.execute("update t set value = ? where id = 0", [value(&mut random)])?;
    Ok(())
}

/// What a run came to.
#[derive(Clone, Default)]
struct Run {
    /// Operations a second.
    speed: f64,
    /// Of the cache, meanwhile.
    hit_ratio: f64,
    /// Of the slow disk for each operation: reads and writes of the database, reads and writes of the log.
    transfers: [f64; 4],
}

/// Each round needs a seed of its own: to write again what a row has already is no change.
fn run(
    place: &Path,
    cache: Option<&str>,
    reads: u32,
    seconds: u64,
    seed: u64,
    is_counted: bool,
) -> rusqlite::Result<Run> {
    let (db, mut random, zipf) =
        (open(place, cache, is_counted)?, SmallRng::seed_from_u64(seed), Zipf::new(ROWS, 0.99));
    let counts = || -> rusqlite::Result<[f64; 7]> {
        let stats: String = db.query_row("pragma terrace_stats", [], |row| row.get(0))?;
        let count = |name: &str| {
            let rest = stats.split_once(&format!("\"{name}\":")).map_or("0", |(_, rest)| rest);
            rest.split([',', '}']).next().and_then(|number| number.parse().ok()).unwrap_or(0.0)
        };
        Ok(["database_reads", "database_writes", "log_reads", "log_writes", "hits", "misses", "clock_us"]
            .map(count))
    };
    let before = counts()?;
    let (mut operations, begun, time) = (0u64, Instant::now(), Duration::from_secs(seconds));
    let at_work = at_work();
    while if is_counted { operations < COUNTED_A_SECOND * seconds } else { begun.elapsed() < time } {
        let id = zipf.draw(&mut random);
        if random.random_range(0..100) < reads {
            db.query_row("select length(value) from t where id = ?", [id], |_| Ok(()))?;
        } else {
            db.execute("update t set value = ? where id = ?", params![value(&mut random), id])?;
        }
        operations += 1;
    }
    // What the run has left in the log is a part of what it cost.
    db.query_row("pragma wal_checkpoint(passive)", [], |_| Ok(()))?;
    let (waited, worked) = (begun.elapsed(), self::at_work() - at_work);
    let after = counts()?;
    let [database_reads, database_writes, log_reads, log_writes, hits, misses, clock_us]: [f64; 7] =
        std::array::from_fn(|number| after[number] - before[number]);
    let elapsed = match is_counted {
        true => worked.as_secs_f64() + clock_us / 1e6,
        false => waited.as_secs_f64(),
    };
    Ok(Run {
        speed: operations as f64 / elapsed,
        hit_ratio: hits / (hits + misses).max(1.0),
        transfers: [database_reads, database_writes, log_reads, log_writes]
            .map(|all| all / operations as f64),
    })
}

/// How long this thread has had a processor.
fn at_work() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = text.split(' ').next().and_then(|number| number.parse().ok());
    Duration::from_nanos(nanoseconds.expect("Linux says so"))
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Ranks by a Zipf distribution (Gray et al., "Quickly Generating Billion-Record Synthetic Databases", SIGMOD 1994), scattered over
/// the keys by a multiplication.
struct Zipf {
    rows: u64,
    theta: f64,
    zeta: f64,
    eta: f64,
}

impl Zipf {
    fn new(rows: u64, theta: f64) -> Zipf {
        let zeta: f64 = (1..=rows).map(|rank| (rank as f64).powf(-theta)).sum();
        let zeta_two = 1.0 + 2f64.powf(-theta);
        let eta = (1.0 - (2.0 / rows as f64).powf(1.0 - theta)) / (1.0 - zeta_two / zeta);
        Zipf { rows, theta, zeta, eta }
    }

    fn draw(&self, random: &mut SmallRng) -> i64 {
        let chance: f64 = random.random();
        let scaled = chance * self.zeta;
        let rank = match scaled {
            _ if scaled < 1.0 => 0,
            _ if scaled < 1.0 + 0.5f64.powf(self.theta) => 1,
            _ => {
                let spread = (self.eta * chance - self.eta + 1.0).powf(1.0 / (1.0 - self.theta));
                ((self.rows as f64 * spread) as u64).min(self.rows - 1)
            }
        };
        (rank.wrapping_mul(0x9e37_79b9_7f4a_7c15) % self.rows) as i64
    }
}
