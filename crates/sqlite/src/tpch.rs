//! TPC-H on SQLite: the data (by the crate `tpchgen`), the 22 queries, and what a stream of them costs on a slow disk behind a cache.
//!
//! The disk's time and the cache's are counted and not waited for (`time=counted`), and the processor's time is taken from the number of
//! instructions of SQLite's virtual machine. So a stream comes to the same time wherever and however often it is run.
//!
//! With the feature `tpch` only, for `examples/tpch.rs` and `terrace reproduce`.

mod queries;

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, StatementStatus};
use tpchgen::generators::{
    CustomerGenerator, LineItemGenerator, NationGenerator, OrderGenerator, PartGenerator, PartSuppGenerator,
    RegionGenerator, SupplierGenerator,
};

pub use queries::{COMPLEX, Query, complex, power};

/// Tables with their primary keys, and an index for each foreign key that queries go by, as MySQL makes them.
const SCHEMA: &str = include_str!("tpch/schema.sql");

/// What an instruction of SQLite's virtual machine counts as. In Q1's scan of pages in memory one took 25 ns on the build machine,
/// by `examples/tpch.rs`; joins use longer ones.
const INSTRUCTION_NS: u64 = 30;

/// The disks that are compared, and what is before them.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Microseconds of a transfer of the slow disk.
    pub slow_us: u64,
    /// Transfers that pass it in a second.
    pub slow_operations: Option<u64>,
    /// Microseconds of a transfer of the cache's disk.
    pub fast_us: u64,
    /// The page cache of SQLite, in bytes.
    pub page_cache: u64,
    /// A new file that what SQLite asks for is recorded in.
    pub trace: Option<PathBuf>,
}

/// A block cache: its policy, its size in bytes, and whether its policy is told of queries.
#[derive(Clone, Debug)]
pub struct BlockCache {
    /// As `terrace simulate` names it.
    pub policy: String,
    /// What it holds, in bytes.
    pub bytes: u64,
    /// Whether SQLite's statements are reported to it.
    pub hints: bool,
}

/// What a query cost.
#[derive(Clone, Debug)]
pub struct Cost {
    /// The query.
    pub name: String,
    /// Counted: processor, cache and disk.
    pub time: Duration,
    /// The processor's part of it.
    pub processor: Duration,
    /// Rows that came out, so that it is seen that all did the same.
    pub rows: u64,
    /// Pages read from the slow disk.
    pub slow_reads: u64,
}

/// What the cache did in a stream.
#[derive(Clone, Debug, Default)]
pub struct Stream {
    /// Query by query.
    pub costs: Vec<Cost>,
    /// Reads that the cache served.
    pub hits: u64,
    /// Reads that it did not.
    pub misses: u64,
    /// Blocks that were admitted.
    pub admissions: u64,
}

impl Stream {
    /// The counted time of all queries.
    pub fn time(&self) -> Duration {
        self.costs.iter().map(|cost| cost.time).sum()
    }

    /// Hits for each read.
    pub fn hit_ratio(&self) -> f64 {
        self.hits as f64 / (self.hits + self.misses).max(1) as f64
    }
}

/// Makes the database at `path`, at a scale factor: 1 is a gigabyte of data.
///
/// # Errors
/// SQLite's.
pub fn load(path: &Path, scale: f64) -> rusqlite::Result<()> {
    let mut db = Connection::open(path)?;
    db.execute_batch("pragma journal_mode = off; pragma synchronous = off; pragma cache_size = -65536;")?;
    db.execute_batch(SCHEMA)?;
    let transaction = db.transaction()?;
    fill(&transaction, "region", RegionGenerator::new(scale, 1, 1).iter())?;
    fill(&transaction, "nation", NationGenerator::new(scale, 1, 1).iter())?;
    fill(&transaction, "supplier", SupplierGenerator::new(scale, 1, 1).iter())?;
    fill(&transaction, "part", PartGenerator::new(scale, 1, 1).iter())?;
    fill(&transaction, "partsupp", PartSuppGenerator::new(scale, 1, 1).iter())?;
    fill(&transaction, "customer", CustomerGenerator::new(scale, 1, 1).iter())?;
    fill(&transaction, "orders", OrderGenerator::new(scale, 1, 1).iter())?;
    fill(&transaction, "lineitem", LineItemGenerator::new(scale, 1, 1).iter())?;
    transaction.commit()?;
    db.execute_batch(include_str!("tpch/indexes.sql"))?;
    db.query_row("pragma journal_mode = delete", [], |_| Ok(()))
}

/// Rows come as TPC's own tools print them, with a bar after each column.
fn fill<R: fmt::Display>(
    db: &Connection,
    table: &str,
    rows: impl Iterator<Item = R>,
) -> rusqlite::Result<()> {
    let columns = db.prepare(&format!("select * from {table}"))?.column_count();
    let places = vec!["?"; columns].join(", ");
    let mut insert = db.prepare(&format!("insert into {table} values ({places})"))?;
    for row in rows {
        let row = row.to_string();
        let values = row.split('|').take(columns);
        insert.execute(rusqlite::params_from_iter(values))?;
    }
    Ok(())
}

/// Runs queries over the database at `path`, whose cache is made anew in `cache_directory`.
///
/// # Errors
/// SQLite's.
pub fn run(
    path: &Path,
    cache_directory: &Path,
    setting: &Setting,
    cache: Option<&BlockCache>,
    queries: &[Query],
) -> rusqlite::Result<Stream> {
    let mut uri =
        format!("file:{}?vfs={}&time=counted&latency_us={}", path.display(), crate::NAME, setting.slow_us);
    if let Some(operations) = setting.slow_operations {
        uri += &format!("&operations_per_second={operations}");
    }
    if let Some(trace) = &setting.trace {
        uri += &format!("&trace={}", trace.display());
    }
    if let Some(cache) = cache {
        // A plus stands for a blank in a URI.
        let policy = cache.policy.replace('+', "%2b");
        uri += &format!(
            "&block_cache={}&block_cache_size={}&block_cache_policy={policy}&block_cache_latency_us={}\
             &block_cache_io=buffered&block_cache_hints={}",
            cache_directory.display(),
            cache.bytes,
            setting.fast_us,
            if cache.hints { "on" } else { "off" }
        );
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
    let db = Connection::open_with_flags(uri, flags)?;
    db.execute_batch(&format!(
        "pragma cache_size = -{}; pragma temp_store = memory;",
        setting.page_cache / 1024
    ))?;
    let mut stream = Stream::default();
    for query in queries {
        let before = Counts::of(&db)?;
        let (rows, instructions) = drain(&db, &query.sql)?;
        let after = Counts::of(&db)?;
        let processor = Duration::from_nanos(instructions * INSTRUCTION_NS);
        stream.costs.push(Cost {
            name: query.name.clone(),
            processor,
            time: processor + Duration::from_micros(after.clock_us - before.clock_us),
            rows,
            slow_reads: after.slow_reads - before.slow_reads,
        });
    }
    let counts = Counts::of(&db)?;
    (stream.hits, stream.misses, stream.admissions) = (counts.hits, counts.misses, counts.admissions);
    Ok(stream)
}

/// Runs a query to its end; gives how many rows it had and how many instructions it took.
///
/// # Errors
/// SQLite's.
pub fn drain(db: &Connection, sql: &str) -> rusqlite::Result<(u64, u64)> {
    let mut statement = db.prepare(sql)?;
    let mut count = 0;
    {
        let mut rows = statement.query([])?;
        while rows.next()?.is_some() {
            count += 1;
        }
    }
    let instructions = statement.get_status(StatementStatus::VmStep);
    // SQLite counts with 32 bits; in counted time nothing here comes near that.
    Ok((count, u64::from(instructions.cast_unsigned())))
}

/// What `PRAGMA terrace_stats` counts.
struct Counts {
    clock_us: u64,
    slow_reads: u64,
    hits: u64,
    misses: u64,
    admissions: u64,
}

impl Counts {
    fn of(db: &Connection) -> rusqlite::Result<Counts> {
        let stats: String = db.query_row("pragma terrace_stats", [], |row| row.get(0))?;
        let count = |name: &str| {
            let rest = stats.split_once(&format!("\"{name}\":")).map_or("0", |(_, rest)| rest);
            rest.split([',', '}']).next().and_then(|number| number.parse().ok()).unwrap_or(0)
        };
        Ok(Counts {
            clock_us: count("clock_us"),
            slow_reads: count("database_reads"),
            hits: count("hits"),
            misses: count("misses"),
            admissions: count("admissions"),
        })
    }
}
