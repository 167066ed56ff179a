//! U4 and U5: HeuristicDB end to end, on PostgreSQL.
//!
//! As in `sqlite.rs`, a recording of the queries is replayed by `replayed.rs`. A query costs the
//! processor time that its backend took here, so results do not repeat to the digit. The kernel's
//! work for reads of the mount is part of it. Shared buffers, block caches and database have the
//! paper's ratios, 4 : 10 to 60 : 90.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use terrace_common::failure::{Failure, Outcome};
use terrace_sqlite::tpch::{self, Dialect, Query};

use super::{NO_QUERY, PAGE_BYTES, Server, Uses, lack, not_here, open, queries_of};
use crate::claims::claim::{Measured, Setting};
use crate::claims::replayed::{self, DATA_GB, POOL_GB, QueryCost, Recording, Replayed};
use crate::claims::traces::Source;

/// TPC-H scale factor, as on SQLite.
const SCALE: f64 = 0.02;
/// The scale factor of a quick look. At many others below [`SCALE`], a part has a supplier twice.
const SCALE_SMALL: f64 = 0.008;
/// Least shared buffers, bytes.
const BUFFERS_LEAST: u64 = 128 << 10;
/// Shared buffers while data are loaded, bytes.
const LOADING_BUFFERS: u64 = 64 << 20;

/// U4.
pub fn end_to_end(setting: &Setting) -> Outcome<Measured> {
    measure("U4-postgresql", setting, |streams| replayed::end_to_end(&streams.replayed, &streams.about))
}

/// U5.
pub fn query_by_query(setting: &Setting) -> Outcome<Measured> {
    measure("U5-postgresql", setting, |streams| {
        replayed::query_by_query(&streams.replayed, "as U4-postgresql")
    })
}

fn measure(id: &str, setting: &Setting, judge: impl Fn(&Streams) -> Measured) -> Outcome<Measured> {
    match lack(id) {
        Some(lack) => Ok(not_here(&lack)),
        None => Ok(judge(&*streams(setting)?)),
    }
}

/// Both streams of queries, replayed.
struct Streams {
    replayed: Replayed,
    about: String,
}

/// Records and replays them once.
fn streams(setting: &Setting) -> Outcome<Arc<Streams>> {
    static STREAMS: Mutex<Option<Arc<Streams>>> = Mutex::new(None);
    let mut known = STREAMS.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(known) = &*known {
        return Ok(Arc::clone(known));
    }
    let scale = scale(setting.postgresql_scale.unwrap_or(1.0));
    let server = Server::create()?;
    let [complex, power] = [tpch::complex(Dialect::Postgresql), tpch::power(Dialect::Postgresql, scale)];
    let database = Database::load(&server, scale, complex.iter().chain(&power))?;
    let recordings = [database.record("complex OLAP", &complex)?, database.record("TPC-H", &power)?];
    let replayed = Replayed::new(&recordings)?;
    let shares = [0, 1].map(|at| {
        let processor: Duration = recordings[at].costs.iter().map(|cost| cost.processor).sum();
        100.0 * processor.as_secs_f64() / replayed.scaled[at].uncached().as_secs_f64()
    });
    let about = format!(
        "PostgreSQL {} on TPC-H data of scale {scale}, {} KiB of pages, {} KiB of them in shared buffers. Pages read beyond \
         those are counted, also of the catalog. A page of 8 KiB costs what one of 4 does in U4. Processor time is measured, with the kernel's for \
         reads of the mount: {:.0} and {:.0} % of the time without a cache. Not counted: the log, the kernel's page cache. \
         Bands as U1",
        server.version,
        database.bytes >> 10,
        database.buffers >> 10,
        shares[0],
        shares[1]
    );
    let streams = Arc::new(Streams { replayed, about });
    *known = Some(Arc::clone(&streams));
    Ok(streams)
}

/// A database of TPC-H.
struct Database<'s> {
    server: &'s Server,
    /// Of tables and indexes.
    bytes: u64,
    /// Shared buffers of the queries.
    buffers: u64,
    uses: Uses,
}

impl Database<'_> {
    fn load<'s, 'q>(
        server: &'s Server,
        scale: f64,
        queries: impl Iterator<Item = &'q Query>,
    ) -> Outcome<Database<'s>> {
        server.start(false, LOADING_BUFFERS)?;
        let script = server.path("load.sql");
        write_script(&script, scale).map_err(failed)?;
        server.script(&script)?;
        let mut session = server.session()?;
        let rows = session.ask(
            "select relname, pg_relation_filepath(oid), pg_relation_size(oid) from pg_class \
             where relnamespace = 'public'::regnamespace and relkind in ('r', 'i');",
        )?;
        let (mut files, mut bytes) = (BTreeMap::new(), 0);
        for row in &rows {
            let mut fields = row.split('|');
            let [name, path, size] = [(); 3].map(|()| fields.next().unwrap_or_default());
            files.insert(name.to_owned(), path.to_owned());
            bytes += size.parse::<u64>().map_err(|_| failed(format!("the size of {name} is {size:?}")))?;
        }
        let mut uses = Uses::new();
        for query in queries {
            let plan = session.ask(&format!("explain (costs off) {}", query.sql))?;
            let names = scanned(&plan);
            let paths = names.iter().filter_map(|name| files.get(name).cloned()).collect();
            uses.insert(query.name.clone(), paths);
        }
        drop(session);
        server.end();
        Ok(Database { server, bytes, buffers: buffers(bytes), uses })
    }

    /// Runs the queries one after the other, with empty shared buffers at first.
    fn record(&self, name: &'static str, queries: &[Query]) -> Outcome<Recording> {
        let trace = self.server.path(&format!("{}.pgt", queries.len()));
        let marks: Vec<&str> = queries.iter().map(|query| query.name.as_str()).collect();
        self.server.record(&trace, &marks)?;
        self.server.start(true, self.buffers)?;
        let mut session = self.server.session()?;
        let mut costs = Vec::new();
        for query in queries {
            self.server.mark(&query.name)?;
            let before = session.processor()?;
            session.ask(&query.sql)?;
            let processor = session.processor()? - before;
            costs.push(QueryCost { name: query.name.clone(), processor });
        }
        self.server.mark(NO_QUERY)?;
        drop(session);
        // The server, then the mount, which writes the rest of the recording.
        self.server.end();
        self.server.end();
        let trace = Source::Memory(queries_of(open(&trace)?, &self.uses)?.into());
        let (database_bytes, page_bytes) = (self.bytes, PAGE_BYTES);
        Ok(Recording { name, system: "PostgreSQL", costs, trace, database_bytes, page_bytes })
    }
}

/// The scale factor for a size relative to the claim's own.
fn scale(relative: f64) -> f64 {
    if relative < 1.0 { SCALE_SMALL } else { SCALE * relative.floor() }
}

/// The paper's share of the data, as far as the server allows, in whole pages.
fn buffers(bytes: u64) -> u64 {
    (bytes * POOL_GB / DATA_GB / PAGE_BYTES * PAGE_BYTES).max(BUFFERS_LEAST)
}

/// Statements that make and fill the tables.
fn write_script(path: &Path, scale: f64) -> std::io::Result<()> {
    let mut script = BufWriter::new(File::create(path)?);
    writeln!(script, "{}", tpch::schema(Dialect::Postgresql))?;
    for (table, rows) in tpch::tables(scale) {
        writeln!(script, "copy {table} from stdin (delimiter '|');")?;
        for row in rows {
            // No bar ends a line here.
            writeln!(script, "{}", row.strip_suffix('|').unwrap_or(&row))?;
        }
        writeln!(script, "\\.")?;
    }
    // Rows that are marked as old are not written again by the first query that reads them.
    writeln!(script, "{}\nvacuum (freeze, analyze);\ncheckpoint;", tpch::INDEXES)?;
    script.flush()
}

/// Names of the tables and indexes that a plan scans, each once.
fn scanned(plan: &[String]) -> Vec<String> {
    let mut names = Vec::new();
    for line in plan {
        let Some((_, scan)) = line.split_once("Scan") else { continue };
        let mut words = scan.split_whitespace();
        while let Some(word) = words.next() {
            let name = if ["on", "using"].contains(&word) { words.next() } else { None };
            if let Some(name) = name
                && !names.iter().any(|known| known == name)
            {
                names.push(name.to_owned());
            }
        }
    }
    names
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::Work(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_name_tables_and_indexes() {
        let plan = "Sort\n  ->  Nested Loop\n        ->  Bitmap Heap Scan on lineitem l1\n              Recheck Cond: (a = b)\n\
                    ->  Bitmap Index Scan on lineitem_part\n  ->  Index Only Scan using orders_pkey on orders o\n\
                    ->  Index Scan Backward using customer_pkey on customer\n  ->  CTE Scan on revenue\n\
                    ->  Seq Scan on orders";
        let plan: Vec<String> = plan.lines().map(str::to_owned).collect();
        let names =
            ["lineitem", "lineitem_part", "orders_pkey", "orders", "customer_pkey", "customer", "revenue"];
        assert_eq!(scanned(&plan), names);
    }

    #[test]
    fn shared_buffers_are_the_papers_share_or_the_servers_least() {
        assert_eq!(buffers(90 << 20), 4 << 20);
        assert_eq!(buffers(1 << 20), BUFFERS_LEAST);
        assert_eq!([0.1, 1.0, 2.5].map(scale), [SCALE_SMALL, SCALE, 2.0 * SCALE]);
    }
}
