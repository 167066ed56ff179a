//! TPC-C's tables in LMDB.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use lmdb_master_sys as ffi;
use terrace_common::failure::{Failure, Outcome};
use terrace_common::store::{Database as _, Settings};

use super::{Database, Environment, Reader, Writer};
use crate::peers::business::{Peer, key_in_one_map, span_in_one_map, without_table};
use crate::workload::tpcc::access::{Direction, Ended, Engine, Reads, Span, Writes};

/// The map of all tables.
const TABLE: &str = "tpcc";

/// An open environment with the tables.
#[derive(Clone)]
pub struct Business {
    database: Arc<Database>,
    table: ffi::MDB_dbi,
}

impl Business {
    fn environment(&self) -> &Environment {
        &self.database.environment
    }
}

impl Peer for Business {
    const ISOLATION: &'static str = "serializable: one transaction writes at a time";

    fn open(settings: &Settings) -> Outcome<Business> {
        let database = Database::open(settings)?;
        if settings.create {
            database.drop_table(TABLE)?;
        }
        let table = database.handle(TABLE, settings.create)?;
        let table = table.ok_or_else(|| Failure::Work("lmdb: there are no tables of TPC-C".to_owned()))?;
        Ok(Business { database: Arc::new(database), table })
    }

    fn settings(&self) -> BTreeMap<&'static str, String> {
        let mut settings = self.database.settings();
        settings.remove("load");
        settings.insert("tables", "one map, keys begin with the table's number".to_owned());
        settings
    }

    fn close(self) -> Outcome {
        self.database.sync()
    }
}

impl Engine for Business {
    type Transaction<'a> = Within<'a>;
    type Snapshot<'a> = At<'a>;

    fn update<T>(&self, mut body: impl FnMut(&mut Within<'_>) -> Result<T, Ended>) -> Result<T, Ended> {
        let mut within = Within { writer: self.environment().begin()?, table: self.table };
        let value = body(&mut within)?;
        within.writer.commit()?;
        Ok(value)
    }

    fn read<T, E: From<Failure>>(&self, body: impl FnOnce(&mut At<'_>) -> Result<T, E>) -> Result<T, E> {
        self.environment().read(self.table, |reader| body(&mut At { reader }))
    }
}

/// The bounds of a scan in the map of all tables, and whether it ascends.
fn bounds(table: usize, span: &Span, direction: Direction) -> ([Vec<u8>; 2], bool) {
    (span_in_one_map(table, span), direction == Direction::Ascending)
}

/// `visit`, whose keys begin with the table's number.
fn in_one_map(
    mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
) -> impl FnMut(&[u8], &[u8]) -> ControlFlow<()> {
    move |key, value| visit(without_table(key), value)
}

/// The tables in the write transaction.
pub struct Within<'a> {
    writer: Writer<'a>,
    table: ffi::MDB_dbi,
}

impl Reads for Within<'_> {
    fn get<R>(&mut self, table: usize, key: &[u8], read: impl FnOnce(&[u8]) -> R) -> Outcome<Option<R>> {
        self.writer.get_with(self.table, &key_in_one_map(table, key), read)
    }

    fn scan(
        &mut self,
        table: usize,
        span: &Span,
        direction: Direction,
        visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Outcome {
        let ([from, to], ascends) = bounds(table, span, direction);
        self.writer.scan(self.table, &from, &to, ascends, in_one_map(visit))
    }
}

impl Writes for Within<'_> {
    fn put(&mut self, table: usize, key: &[u8], value: &[u8]) -> Outcome {
        self.writer.put(self.table, &key_in_one_map(table, key), value)
    }

    fn delete(&mut self, table: usize, key: &[u8]) -> Outcome {
        self.writer.delete(self.table, &key_in_one_map(table, key)).map(drop)
    }
}

/// The tables in a read transaction of this thread.
pub struct At<'a> {
    reader: &'a Reader,
}

impl Reads for At<'_> {
    fn get<R>(&mut self, table: usize, key: &[u8], read: impl FnOnce(&[u8]) -> R) -> Outcome<Option<R>> {
        self.reader.get_with(&key_in_one_map(table, key), read)
    }

    fn scan(
        &mut self,
        table: usize,
        span: &Span,
        direction: Direction,
        visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Outcome {
        let ([from, to], ascends) = bounds(table, span, direction);
        self.reader.scan(&from, &to, ascends, in_one_map(visit))
    }
}
