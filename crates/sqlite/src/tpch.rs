//! TPC-H on SQLite: data from `tpchgen`, 22 queries, and their cost. Data and queries are also for
//! PostgreSQL.
//!
//! Disk and cache time are counted, not waited for (`time=counted`), and processor time is counted
//! in SQLite's instructions. So a stream takes the same time on every machine.

mod queries;

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, StatementStatus};
use tpchgen::generators::{
    CustomerGenerator, LineItemGenerator, NationGenerator, OrderGenerator, PartGenerator, PartSuppGenerator,
    RegionGenerator, SupplierGenerator,
};

pub use queries::{COMPLEX, Dialect, Query, complex, power};

/// Tables and primary keys, for SQLite.
const SCHEMA: &str = include_str!("tpch/schema.sql");

/// Indexes of foreign keys, as MySQL makes them, and statistics for the planner.
pub const INDEXES: &str = include_str!("tpch/indexes.sql");

/// Cost of a virtual machine instruction in nanoseconds. Q1's scan of pages in memory measured 25
/// (`examples/tpch.rs`); joins use longer instructions.
const INSTRUCTION_NS: u64 = 30;

/// Speed of the disks, and the page cache.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Latency of the slow disk, in microseconds.
    pub slow_us: u64,
    /// Transfers per second of the slow disk.
    pub slow_operations: Option<u64>,
    /// Latency of the cache's disk, in microseconds.
    pub fast_us: u64,
    /// SQLite's page cache, in bytes.
    pub page_cache: u64,
    /// A new file to record accesses in.
    pub trace: Option<PathBuf>,
}

/// A block cache.
#[derive(Clone, Debug)]
pub struct BlockCache {
    /// Policy, as `terrace simulate` names it.
    pub policy: String,
    /// Capacity in bytes.
    pub bytes: u64,
    /// Whether statements are reported to the policy.
    pub hints: bool,
}

/// Cost of a query.
#[derive(Clone, Debug)]
pub struct Cost {
    /// Name of the query.
    pub name: String,
    /// Counted time of processor, cache and disk.
    pub time: Duration,
    /// Processor part of `time`.
    pub processor: Duration,
    /// Rows returned, to compare runs.
    pub rows: u64,
    /// Pages read from the slow disk.
    pub slow_reads: u64,
}

/// Work of the cache in a stream.
#[derive(Clone, Debug, Default)]
pub struct Stream {
    /// Cost of each query.
    pub costs: Vec<Cost>,
    /// Reads served by the cache.
    pub hits: u64,
    /// Reads that missed the cache.
    pub misses: u64,
    /// Blocks admitted.
    pub admissions: u64,
}

impl Stream {
    /// Counted time of all queries.
    pub fn time(&self) -> Duration {
        self.costs.iter().map(|cost| cost.time).sum()
    }

    /// Hits per read.
    pub fn hit_ratio(&self) -> f64 {
        self.hits as f64 / (self.hits + self.misses).max(1) as f64
    }
}

/// Creates the database at `path`; scale 1 is a gigabyte.
///
/// # Errors
/// Those of SQLite.
pub fn load(path: &Path, scale: f64) -> rusqlite::Result<()> {
    let mut db = Connection::open(path)?;
    db.execute_batch("pragma journal_mode = off; pragma synchronous = off; pragma cache_size = -65536;")?;
    db.execute_batch(&schema(Dialect::Sqlite))?;
    let transaction = db.transaction()?;
    for (table, rows) in tables(scale) {
        fill(&transaction, table, rows)?;
    }
    transaction.commit()?;
    db.execute_batch(INDEXES)?;
    db.query_row("pragma journal_mode = delete", [], |_| Ok(()))
}

/// Statements that make the tables, with their primary keys.
pub fn schema(dialect: Dialect) -> String {
    match dialect {
        Dialect::Sqlite => SCHEMA.to_owned(),
        Dialect::Postgresql => SCHEMA
            .replace(" without rowid", "")
            .replace(" real", " decimal(15, 2)")
            // Columns of dates are named so.
            .replace("date text", "date date"),
    }
}

/// A table and its rows.
pub type Table = (&'static str, Box<dyn Iterator<Item = String>>);

/// The tables in an order that foreign keys allow. Rows are as TPC's tools print them, with a bar
/// after each column.
pub fn tables(scale: f64) -> [Table; 8] {
    [
        ("region", Box::new(RegionGenerator::new(scale, 1, 1).iter().map(|row| row.to_string()))),
        ("nation", Box::new(NationGenerator::new(scale, 1, 1).iter().map(|row| row.to_string()))),
        ("supplier", Box::new(SupplierGenerator::new(scale, 1, 1).iter().map(|row| row.to_string()))),
        ("part", Box::new(PartGenerator::new(scale, 1, 1).iter().map(|row| row.to_string()))),
        ("partsupp", Box::new(PartSuppGenerator::new(scale, 1, 1).iter().map(|row| row.to_string()))),
        ("customer", Box::new(CustomerGenerator::new(scale, 1, 1).iter().map(|row| row.to_string()))),
        ("orders", Box::new(OrderGenerator::new(scale, 1, 1).iter().map(|row| row.to_string()))),
        ("lineitem", Box::new(LineItemGenerator::new(scale, 1, 1).iter().map(|row| row.to_string()))),
    ]
}

fn fill(db: &Connection, table: &str, rows: impl Iterator<Item = String>) -> rusqlite::Result<()> {
    let columns = db.prepare(&format!("select * from {table}"))?.column_count();
    let marks = vec!["?"; columns].join(", ");
    let mut insert = db.prepare(&format!("insert into {table} values ({marks})"))?;
    for row in rows {
        let values = row.split('|').take(columns);
        insert.execute(rusqlite::params_from_iter(values))?;
    }
    Ok(())
}

/// Runs queries over the database at `path`, with a new cache in `cache_directory`.
///
/// # Errors
/// Those of SQLite.
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
        // In a URI a plus means a space.
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

/// Runs a query to its end; returns its rows and instructions.
///
/// # Errors
/// Those of SQLite.
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
    // A 32-bit counter; no query here comes near its limit.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn postgresql_has_dates_and_decimals() {
        let schema = schema(Dialect::Postgresql);
        for column in ["o_orderdate date", "l_shipdate date", "l_tax decimal(15, 2)", "o_comment text"] {
            assert!(schema.contains(column), "{column}");
        }
        assert!(!schema.contains("rowid") && !schema.contains("real"), "{schema}");
    }
}
