//! SQLite with a write-ahead log: one connection per thread, with prepared statements.
//!
//! `sync` is `synchronous=FULL`. `buffered` is `NORMAL`, which syncs only at checkpoints and loses
//! at most the last commits. Tables are `WITHOUT ROWID`, so a lookup uses one tree. Rows must fit a
//! quarter of a page to avoid overflow pages, so the page size follows the values, at least 4 KiB.
//! Data that fit the budget are read through a mapping, and the page caches of all connections
//! share the budget. Larger data are read without one, because a fault reads around the wanted
//! page: 45 KiB per get, against 6 for plain reads. The page caches then have half of the budget,
//! since each serves one connection and the kernel's cache serves all.
//!
//! SQLite has one writer and makes others sleep and retry. Here writers wait on a lock, which is
//! faster.

pub(super) mod business;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rusqlite::{Connection, OptionalExtension, params};
use terrace::Durability;
use terrace_common::failure::{Failure, Outcome};
use terrace_common::store::{self, Access, Counters, Ending, Opener, Settings, Store, Visit};
use terrace_common::units::show_size;
use thread_local::ThreadLocal;

use super::folder::{Folder, budget, failed};

const NAME: &str = "sqlite";

/// SQLite's built-in limit of a mapping.
const MAPPED_BYTES_MAX: u64 = 0x7fff_0000;

/// Prepared statements of a connection; TPC-C has six for each of thirteen tables.
const STATEMENTS: usize = 128;

/// Row overhead: a workload key, and SQLite's header.
const ROW_OVERHEAD_BYTES: u64 = 40;

/// The SQLite engine.
pub struct Engine;

impl Opener for Engine {
    fn open(&self, settings: &Settings) -> Outcome<Box<dyn store::Database>> {
        Ok(Box::new(Database::open(settings)?))
    }
}

impl Database {
    fn open(settings: &Settings) -> Outcome<Database> {
        let folder = Folder::of(settings)?;
        let page_bytes = page_bytes(settings.value_bytes);
        let budget_bytes = budget(settings);
        // The loading thread has a connection too.
        let connections = settings.threads + 1;
        let (cache_bytes, mapped_bytes) = match settings.data_bytes() <= budget_bytes {
            true => (budget_bytes / connections, MAPPED_BYTES_MAX),
            false => (budget_bytes / 2 / connections, 0),
        };
        let inner = Inner {
            durability: settings.tiers.commits.durability,
            connections: ThreadLocal::new(),
            writers: Mutex::new(()),
            budget_bytes,
            cache_bytes,
            mapped_bytes,
            page_bytes,
            folder,
        };
        inner.with(|_| Outcome::Ok(()))?;
        Ok(Database(Arc::new(inner)))
    }
}

/// The smallest page that holds a row whole: SQLite keeps `(page - 12) * 64 / 255 - 23` bytes of
/// it.
fn page_bytes(value_bytes: u64) -> u64 {
    let kept = |page: u64| (page - 12) * 64 / 255 - 23;
    let fits = |page: &u64| kept(*page) >= value_bytes + ROW_OVERHEAD_BYTES;
    (12..=16).map(|bits| 1u64 << bits).find(fits).unwrap_or(4096)
}

struct Inner {
    durability: Durability,
    connections: ThreadLocal<RefCell<Connection>>,
    writers: Mutex<()>,
    budget_bytes: u64,
    cache_bytes: u64,
    mapped_bytes: u64,
    page_bytes: u64,
    folder: Folder,
}

impl Inner {
    /// Runs `work` with this thread's connection.
    fn with<T, E: From<Failure>>(&self, work: impl FnOnce(&mut Connection) -> Result<T, E>) -> Result<T, E> {
        let connection = self.connections.get_or_try(|| self.connect().map(RefCell::new))?;
        work(&mut connection.borrow_mut())
    }

    fn connect(&self) -> Outcome<Connection> {
        let connection = Connection::open(self.folder.path.join("data.sqlite")).map_err(failed(NAME))?;
        connection.busy_timeout(std::time::Duration::from_secs(60)).map_err(failed(NAME))?;
        let synchronous = self.synchronous();
        let cache_kib = self.cache_bytes / 1024;
        // The page size applies only to a new file, before its journal mode is set.
        let pragmas = format!(
            "PRAGMA page_size={}; PRAGMA journal_mode=WAL; PRAGMA synchronous={synchronous}; PRAGMA cache_size=-{cache_kib}; \
             PRAGMA mmap_size={}; PRAGMA temp_store=MEMORY;",
            self.page_bytes, self.mapped_bytes
        );
        connection.execute_batch(&pragmas).map_err(failed(NAME))?;
        connection.set_prepared_statement_cache_capacity(STATEMENTS);
        Ok(connection)
    }

    fn synchronous(&self) -> &'static str {
        match self.durability {
            Durability::Sync => "FULL",
            Durability::Buffered => "NORMAL",
        }
    }

    fn writer(&self) -> MutexGuard<'_, ()> {
        self.writers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Database(Arc<Inner>);

/// A quoted SQL identifier.
fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

impl store::Database for Database {
    fn table(&self, name: &str, create: bool) -> Outcome<Box<dyn Store>> {
        let table = quoted(name);
        self.0.with(|connection| {
            if create {
                let sql = format!(
                    "CREATE TABLE IF NOT EXISTS {table}(k BLOB PRIMARY KEY, v BLOB NOT NULL) WITHOUT ROWID"
                );
                connection.execute_batch(&sql).map_err(failed(NAME))?;
            } else if !connection.table_exists(None, name).map_err(failed(NAME))? {
                return Err(Failure::Work(format!("{NAME}: there is no table {name:?}")));
            }
            Ok(())
        })?;
        Ok(Box::new(Table {
            inner: self.0.clone(),
            get: format!("SELECT v FROM {table} WHERE k=?"),
            put: format!("INSERT INTO {table}(k,v) VALUES(?,?) ON CONFLICT(k) DO UPDATE SET v=excluded.v"),
            delete: format!("DELETE FROM {table} WHERE k=?"),
            scan: format!("SELECT k,v FROM {table} WHERE k>=? ORDER BY k"),
        }))
    }

    fn drop_table(&self, name: &str) -> Outcome {
        let sql = format!("DROP TABLE IF EXISTS {}", quoted(name));
        self.0.with(|connection| connection.execute_batch(&sql).map_err(failed(NAME)))
    }

    fn settings(&self) -> BTreeMap<&'static str, String> {
        BTreeMap::from([
            ("version", format!("SQLite {}", rusqlite::version())),
            ("journal_mode", "WAL".to_owned()),
            ("synchronous", self.0.synchronous().to_owned()),
            ("cache_size", format!("{} for each connection", show_size(self.0.cache_bytes))),
            ("mmap_size", show_size(self.0.mapped_bytes)),
            ("page_size", show_size(self.0.page_bytes)),
            ("table", "k BLOB PRIMARY KEY, WITHOUT ROWID".to_owned()),
            ("connections", "one for each thread, statements cached".to_owned()),
            ("files", self.0.folder.kind.to_owned()),
        ])
    }

    fn close(self: Box<Self>) -> Outcome {
        Ok(())
    }
}

struct Table {
    inner: Arc<Inner>,
    get: String,
    put: String,
    delete: String,
    scan: String,
}

impl Table {
    /// Runs `work` in a transaction; rolls back if it fails or aborts.
    fn together(&self, work: &mut dyn FnMut(&mut Inside<'_>) -> Outcome<Ending>) -> Outcome {
        self.inner.with(|connection| {
            let _alone = self.inner.writer();
            let run = |sql: &str| {
                let done = connection.prepare_cached(sql).and_then(|mut statement| statement.execute([]));
                done.map(drop).map_err(failed(NAME))
            };
            run("BEGIN IMMEDIATE")?;
            let worked = work(&mut Inside { connection, table: self });
            match worked {
                Ok(Ending::Commit) => run("COMMIT").inspect_err(|_| drop(run("ROLLBACK"))),
                Ok(Ending::Abort) => run("ROLLBACK"),
                Err(failure) => run("ROLLBACK").and(Err(failure)),
            }
        })
    }
}

fn get(connection: &Connection, sql: &str, key: &[u8]) -> Outcome<Option<Vec<u8>>> {
    get_with(connection, sql, key, <[u8]>::to_vec)
}

/// Passes the value of `key` to `read`, if it is there.
fn get_with<T>(
    connection: &Connection,
    sql: &str,
    key: &[u8],
    read: impl FnOnce(&[u8]) -> T,
) -> Outcome<Option<T>> {
    let mut statement = connection.prepare_cached(sql).map_err(failed(NAME))?;
    let found = statement.query_row([key], |row| Ok(read(row.get_ref(0)?.as_blob()?)));
    found.optional().map_err(failed(NAME))
}

fn put(connection: &Connection, sql: &str, key: &[u8], value: &[u8]) -> Outcome {
    let mut statement = connection.prepare_cached(sql).map_err(failed(NAME))?;
    statement.execute(params![key, value]).map(drop).map_err(failed(NAME))
}

impl Store for Table {
    fn get(&self, key: &[u8]) -> Outcome<Option<Vec<u8>>> {
        self.inner.with(|connection| get(connection, &self.get, key))
    }

    fn get_with(&self, key: &[u8], read: &mut dyn FnMut(&[u8])) -> Outcome<bool> {
        self.inner.with(|connection| Ok(get_with(connection, &self.get, key, read)?.is_some()))
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Outcome {
        self.inner.with(|connection| {
            let _alone = self.inner.writer();
            put(connection, &self.put, key, value)
        })
    }

    fn delete(&self, key: &[u8]) -> Outcome<bool> {
        self.inner.with(|connection| {
            let _alone = self.inner.writer();
            let mut statement = connection.prepare_cached(&self.delete).map_err(failed(NAME))?;
            Ok(statement.execute([key]).map_err(failed(NAME))? > 0)
        })
    }

    fn write(&self, entries: &[(Vec<u8>, Vec<u8>)]) -> Outcome {
        self.together(&mut |inside| {
            entries.iter().try_for_each(|(key, value)| inside.put(key, value))?;
            Ok(Ending::Commit)
        })
    }

    fn transact(&self, body: &mut dyn FnMut(&mut dyn Access) -> Outcome<Ending>) -> Outcome<u64> {
        self.together(&mut |inside| body(inside)).map(|()| 0)
    }

    fn scan(&self, from: &[u8], visit: &mut Visit<'_>) -> Outcome {
        self.inner.with(|connection| {
            let mut statement = connection.prepare_cached(&self.scan).map_err(failed(NAME))?;
            let mut rows = statement.query([from]).map_err(failed(NAME))?;
            while let Some(row) = rows.next().map_err(failed(NAME))? {
                let blob = |column| row.get_ref(column).map_err(failed(NAME));
                let (key, value) = (blob(0)?, blob(1)?);
                let key = key.as_blob().map_err(failed(NAME))?;
                let value = value.as_blob().map_err(failed(NAME))?;
                if visit(key, value).is_break() {
                    break;
                }
            }
            Ok(())
        })
    }

    fn counters(&self) -> Counters {
        self.inner.folder.counters(self.inner.budget_bytes)
    }
}

struct Inside<'a> {
    connection: &'a Connection,
    table: &'a Table,
}

impl Access for Inside<'_> {
    fn get(&mut self, key: &[u8]) -> Outcome<Option<Vec<u8>>> {
        get(self.connection, &self.table.get, key)
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Outcome {
        put(self.connection, &self.table.put, key, value)
    }
}
