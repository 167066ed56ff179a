//! Measures a local cache for a database on a slower disk.
//!
//! ```text
//! cargo run --release -p terrace-sqlite --example slow_disk -- [DIRECTORY] [SECONDS] [ROUNDS] [counted]
//! ```
//!
//! The database is ten times as large as SQLite's page cache. It and its log lie behind a simulated
//! network disk: 3,000 transfers a second, each at least 500 microseconds. The block cache has the
//! real disk.
//!
//! With `counted` the simulated time is counted and added to the processor time. A cache with
//! direct reads then has a simulated disk of 80 microseconds. Other work on the machine cannot
//! change these ratios.
//!
//! Runs with and without a cache alternate. The output has medians, and for the last run the slow
//! transfers per operation: database reads and writes, log reads and writes. Keys follow a
//! scattered Zipf distribution, theta 0.99.

use std::path::Path;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rusqlite::{Connection, params};

/// About 30 MB in rows of 1 KB.
const ROWS: u64 = 26_000;
const ROW_BYTES: usize = 1000;
const PAGE_CACHE_KIB: i64 = 3_000;

/// Reads that warm a cache.
const READS_BEFORE: usize = 4_000;

/// Operations per requested second, when time is counted.
const COUNTED_A_SECOND: u64 = 5_000;

const DISK: &str = "&latency_us=500&operations_per_second=3000";

/// Caches to compare: size, and how much of the database fits.
const CACHES: [(&str, &str); 3] = [
    ("48MiB&block_cache_io=direct", "all of it"),
    ("48MiB&block_cache_io=buffered", "all, buffered"),
    ("15MiB&block_cache_io=buffered", "half, buffered"),
];

/// Mixes: percentage of reads.
const MIXES: [(&str, u32); 3] = [("read-only", 100), ("read-mostly", 95), ("write-only", 0)];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().unwrap_or_else(|| ".".to_owned());
    let seconds: u64 = arguments.next().map_or(Ok(5), |text| text.parse())?;
    let rounds: usize = arguments.next().map_or(Ok(5), |text| text.parse())?;
    let is_counted = arguments.next().as_deref() == Some("counted");
    terrace_sqlite::register(false)?;
    let folder = tempfile::tempdir_in(directory)?;
    load(folder.path())?;
    // One copy each: changes through another cache would count as those of other programs.
    let setups: Vec<Option<&str>> = [None].into_iter().chain(CACHES.map(|(size, _)| Some(size))).collect();
    for setup in &setups {
        std::fs::copy(folder.path().join("x.db"), folder.path().join(name(*setup)))?;
        if setup.is_some() {
            warm(folder.path(), *setup, is_counted)?;
        }
    }
    println!(
        "{:<12} {:>14} {:>12} {:>6} {:>9}  slow transfers per operation",
        "mix", "cache", "operations/s", "ratio", "hit ratio"
    );
    // Runs of one database need different seeds, see `run`.
    let mut seed = 10;
    for (mix, reads) in MIXES {
        let mut speeds = vec![Vec::new(); CACHES.len() + 1];
        let mut last = vec![Run::default(); CACHES.len() + 1];
        for _ in 0..rounds {
            seed += 1;
            for (number, cache) in setups.iter().enumerate() {
                last[number] = run(folder.path(), *cache, reads, seconds, seed, is_counted)?;
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

fn load(folder: &Path) -> rusqlite::Result<()> {
    let mut db = Connection::open(folder.join("x.db"))?;
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

fn open(folder: &Path, cache: Option<&str>, is_counted: bool) -> rusqlite::Result<Connection> {
    let (path, name) = (folder.display(), name(cache));
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

/// Warms a cache, which keeps its content between connections.
fn warm(folder: &Path, cache: Option<&str>, is_counted: bool) -> rusqlite::Result<()> {
    let (db, mut random, zipf) =
        (open(folder, cache, is_counted)?, SmallRng::seed_from_u64(3), Zipf::new(ROWS, 0.99));
    db.query_row("select sum(length(value)) from t", [], |_| Ok(()))?;
    for _ in 0..READS_BEFORE {
        db.query_row("select length(value) from t where id = ?", [zipf.draw(&mut random)], |_| Ok(()))?;
    }
    // This process must be the last to change the new file, so that it is recognised. Rewriting a
    // row unchanged would not do: SQLite then leaves the page alone.
    db.execute("update t set value = ? where id = 0", [value(&mut random)])?;
    Ok(())
}

/// Result of a run.
#[derive(Clone, Default)]
struct Run {
    /// Operations per second.
    speed: f64,
    /// Hit ratio of the cache.
    hit_ratio: f64,
    /// Slow transfers per operation: database reads and writes, log reads and writes.
    transfers: [f64; 4],
}

/// Each round needs its own seed, because rewriting equal values changes nothing.
fn run(
    folder: &Path,
    cache: Option<&str>,
    reads: u32,
    seconds: u64,
    seed: u64,
    is_counted: bool,
) -> rusqlite::Result<Run> {
    let (db, mut random, zipf) =
        (open(folder, cache, is_counted)?, SmallRng::seed_from_u64(seed), Zipf::new(ROWS, 0.99));
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
    // The log left by the run is part of its cost.
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

/// Processor time of this thread.
fn at_work() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = text.split(' ').next().and_then(|number| number.parse().ok());
    Duration::from_nanos(nanoseconds.expect("Linux says so"))
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Zipf ranks (Gray et al., SIGMOD 1994, "Quickly Generating Billion-Record Synthetic Databases"),
/// scattered over the keys.
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
