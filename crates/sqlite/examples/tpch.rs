//! TPC-H on SQLite and a slow disk, with several block caches.
//!
//! ```text
//! cargo run --release -p terrace-sqlite --features tpch --example tpch -- [DIRECTORY] [SCALE] [power|complex] [SHARE,...]
//! ```
//!
//! The database is created once in the directory and kept. Page cache, block cache and database
//! have sizes of 4 to SHARE to 90. The disk passes 3,000 transfers a second, each at least 500
//! microseconds; the cache's disk takes 20. Time is counted, so figures repeat on every machine.

use std::path::{Path, PathBuf};

use terrace_sqlite::tpch::{self, BlockCache, Dialect, Setting, Stream};

const POLICIES: [(&str, bool); 6] = [
    ("lru", false),
    ("tac", false),
    ("heuristicdb-paper", true),
    ("heuristicdb-eager", true),
    ("heuristicdb", false),
    ("heuristicdb", true),
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let directory = PathBuf::from(arguments.next().unwrap_or_else(|| ".".to_owned()));
    let scale: f64 = arguments.next().map_or(Ok(0.05), |text| text.parse())?;
    let queries = match arguments.next().as_deref() {
        Some("complex") => tpch::complex(Dialect::Sqlite),
        Some("power") | None => tpch::power(Dialect::Sqlite, scale),
        Some(other) => return Err(format!("{other} is neither power nor complex").into()),
    };
    let shares = arguments.next().unwrap_or_else(|| "20,40".to_owned());
    let shares: Vec<u64> = shares.split(',').map(str::parse).collect::<Result<_, _>>()?;
    terrace_sqlite::register(false)?;
    let path = directory.join(format!("tpch-{scale}.db"));
    if !path.exists() {
        tpch::load(&path, scale)?;
    }
    let bytes = std::fs::metadata(&path)?.len();
    let setting = Setting {
        slow_us: 500,
        slow_operations: Some(3000),
        fast_us: 20,
        page_cache: bytes * 4 / 90,
        trace: None,
    };
    println!("database {} MiB, page cache {} KiB", bytes >> 20, setting.page_cache >> 10);
    let scan = &tpch::power(Dialect::Sqlite, scale)[0];
    println!("an SQLite instruction takes {:.0} ns here", instruction_ns(&path, scan)?);
    let none = run(&path, &setting, None, &queries)?;
    report("no cache", &none, &none);
    for query in &none.costs {
        println!(
            "    {:<6} {:>9.1} s {:>8} pages {:>7} rows",
            query.name,
            query.time.as_secs_f64(),
            query.slow_reads,
            query.rows
        );
    }
    for share in shares {
        for (policy, hints) in POLICIES {
            let cache = BlockCache { policy: policy.to_owned(), bytes: bytes * share / 90, hints };
            let stream = run(&path, &setting, Some(&cache), &queries)?;
            for (with, without) in stream.costs.iter().zip(&none.costs) {
                assert_eq!(with.rows, without.rows, "{}", with.name);
            }
            report(&format!("{share:>2} {policy}{}", if hints { " with hints" } else { "" }), &stream, &none);
        }
    }
    Ok(())
}

fn run(
    path: &Path,
    setting: &Setting,
    cache: Option<&BlockCache>,
    queries: &[tpch::Query],
) -> Result<Stream, Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir_in(path.parent().unwrap_or(Path::new(".")))?;
    Ok(tpch::run(path, folder.path(), setting, cache, queries)?)
}

/// Nanoseconds per virtual machine instruction here: Q1 over pages in memory.
fn instruction_ns(path: &Path, query: &tpch::Query) -> Result<f64, Box<dyn std::error::Error>> {
    let at_work = || -> Result<f64, Box<dyn std::error::Error>> {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
        Ok(text.split(' ').next().unwrap_or("").parse()?)
    };
    let db = rusqlite::Connection::open(path)?;
    db.execute_batch("pragma cache_size = -1000000; pragma temp_store = memory")?;
    tpch::drain(&db, &query.sql)?;
    let before = at_work()?;
    let (_, instructions) = tpch::drain(&db, &query.sql)?;
    Ok((at_work()? - before) / instructions as f64)
}

fn report(name: &str, stream: &Stream, none: &Stream) {
    println!(
        "{name:<32} {:>9.1} s {:>6.2} times  hit ratio {:.3}  admitted {:>8}",
        stream.time().as_secs_f64(),
        none.time().as_secs_f64() / stream.time().as_secs_f64(),
        stream.hit_ratio(),
        stream.admissions
    );
}
