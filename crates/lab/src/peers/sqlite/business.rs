//! TPC-C's tables in SQLite.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, params, params_from_iter};
use terrace_common::failure::{Failure, Outcome};
use terrace_common::store::{Database as _, Settings};

use super::{Database, NAME, failed, put, quoted};
use crate::peers::business::Peer;
use crate::workload::tpcc::access::{Direction, Ended, Engine, NAMES, Reads, Span, Writes};

/// An open database with the tables.
#[derive(Clone)]
pub struct Business {
    database: Arc<Database>,
    statements: Arc<Vec<Statements>>,
}

/// Statements of a table.
struct Statements {
    get: String,
    put: String,
    delete: String,
    scan: String,
}

impl Statements {
    fn of(name: &str) -> Statements {
        let table = quoted(name);
        Statements {
            get: format!("SELECT v FROM {table} WHERE k=?"),
            put: format!("INSERT INTO {table}(k,v) VALUES(?,?) ON CONFLICT(k) DO UPDATE SET v=excluded.v"),
            delete: format!("DELETE FROM {table} WHERE k=?"),
            scan: format!("SELECT k,v FROM {table} WHERE k>=?"),
        }
    }

    fn scan(&self, span: &Span, direction: Direction) -> String {
        let end = if span.to.is_some() { " AND k<?" } else { "" };
        let order = if direction == Direction::Descending { " DESC" } else { "" };
        format!("{}{end} ORDER BY k{order}", self.scan)
    }
}

impl Peer for Business {
    const ISOLATION: &'static str = "serializable: one transaction writes at a time";

    fn open(settings: &Settings) -> Outcome<Business> {
        let database = Database::open(settings)?;
        for name in NAMES {
            if settings.create {
                database.drop_table(name)?;
            }
            database.table(name, settings.create)?;
        }
        let statements = NAMES.iter().map(|name| Statements::of(name)).collect();
        Ok(Business { database: Arc::new(database), statements: Arc::new(statements) })
    }

    fn settings(&self) -> BTreeMap<&'static str, String> {
        self.database.settings()
    }

    fn close(self) -> Outcome {
        Ok(())
    }
}

impl Engine for Business {
    type Transaction<'a> = Within<'a>;
    type Snapshot<'a> = Within<'a>;

    fn update<T>(&self, mut body: impl FnMut(&mut Within<'_>) -> Result<T, Ended>) -> Result<T, Ended> {
        self.database.0.with(|connection| {
            let _alone = self.database.0.writer();
            run(connection, "BEGIN IMMEDIATE")?;
            match body(&mut Within { connection, statements: &self.statements }) {
                Ok(value) => {
                    run(connection, "COMMIT").inspect_err(|_| drop(run(connection, "ROLLBACK")))?;
                    Ok(value)
                }
                Err(ended) => {
                    run(connection, "ROLLBACK")?;
                    Err(ended)
                }
            }
        })
    }

    fn read<T, E: From<Failure>>(&self, body: impl FnOnce(&mut Within<'_>) -> Result<T, E>) -> Result<T, E> {
        self.database.0.with(|connection| {
            run(connection, "BEGIN")?;
            let done = body(&mut Within { connection, statements: &self.statements });
            run(connection, "COMMIT")?;
            done
        })
    }
}

fn run(connection: &Connection, sql: &str) -> Outcome {
    let done = connection.prepare_cached(sql).and_then(|mut statement| statement.execute([]));
    done.map(drop).map_err(failed(NAME))
}

/// The tables in a transaction; one that only reads keeps the state of its first read.
pub struct Within<'a> {
    connection: &'a Connection,
    statements: &'a [Statements],
}

impl Reads for Within<'_> {
    fn get<R>(&mut self, table: usize, key: &[u8], read: impl FnOnce(&[u8]) -> R) -> Outcome<Option<R>> {
        let statement = self.connection.prepare_cached(&self.statements[table].get);
        let mut statement = statement.map_err(failed(NAME))?;
        let found = statement.query_row([key], |row| Ok(read(row.get_ref(0)?.as_blob()?)));
        found.optional().map_err(failed(NAME))
    }

    fn scan(
        &mut self,
        table: usize,
        span: &Span,
        direction: Direction,
        mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Outcome {
        let mut visit_all = || -> rusqlite::Result<()> {
            let mut statement =
                self.connection.prepare_cached(&self.statements[table].scan(span, direction))?;
            let bounds = std::iter::once(&span.from).chain(&span.to).cloned().map(Value::Blob);
            let mut rows = statement.query(params_from_iter(bounds))?;
            while let Some(row) = rows.next()? {
                if visit(row.get_ref(0)?.as_blob()?, row.get_ref(1)?.as_blob()?).is_break() {
                    break;
                }
            }
            Ok(())
        };
        visit_all().map_err(failed(NAME))
    }
}

impl Writes for Within<'_> {
    fn put(&mut self, table: usize, key: &[u8], value: &[u8]) -> Outcome {
        put(self.connection, &self.statements[table].put, key, value)
    }

    fn delete(&mut self, table: usize, key: &[u8]) -> Outcome {
        let statement = self.connection.prepare_cached(&self.statements[table].delete);
        let mut statement = statement.map_err(failed(NAME))?;
        statement.execute(params![key]).map(drop).map_err(failed(NAME))
    }
}
