//! TPC-C's tables in Terrace.

use std::ops::ControlFlow;

use terrace::{Db, Error, Snapshot, Table, TableOptions, Transaction};
use terrace_common::failure::{Failure, Outcome};

use super::access::{Direction, Ended, Engine, NAMES, Reads, Span, Writes};

/// The tables of an open database.
#[derive(Clone, Debug)]
pub struct Tables {
    db: Db,
    tables: [Table; NAMES.len()],
}

impl Tables {
    /// Opens the tables, created with `options` where they are missing.
    ///
    /// # Errors
    /// Those of opening and creating a table.
    pub fn open(db: &Db, options: &TableOptions) -> terrace::Result<Tables> {
        Tables::with(db, |name| match db.open_table(name) {
            Err(Error::TableNotFound(_)) => db.create_table_with(name, options),
            found => found,
        })
    }

    /// Opens the tables of an earlier load.
    ///
    /// # Errors
    /// Those of opening a table.
    pub fn existing(db: &Db) -> terrace::Result<Tables> {
        Tables::with(db, |name| db.open_table(name))
    }

    fn with(db: &Db, table: impl FnMut(&str) -> terrace::Result<Table>) -> terrace::Result<Tables> {
        let tables = NAMES.into_iter().map(table).collect::<terrace::Result<Vec<Table>>>()?;
        Ok(Tables { db: db.clone(), tables: tables.try_into().expect("each name has a table") })
    }

    /// The tables by their position in [`NAMES`].
    pub fn all(&self) -> &[Table] {
        &self.tables
    }
}

impl Engine for Tables {
    type Transaction<'a> = Within<'a>;
    type Snapshot<'a> = At<'a>;

    fn update<T>(&self, mut body: impl FnMut(&mut Within<'_>) -> Result<T, Ended>) -> Result<T, Ended> {
        self.db.update(|transaction| body(&mut Within { tables: &self.tables, transaction }))
    }

    fn read<T, E: From<Failure>>(&self, body: impl FnOnce(&mut At<'_>) -> Result<T, E>) -> Result<T, E> {
        body(&mut At { tables: &self.tables, snapshot: &self.db.snapshot() })
    }
}

/// The tables in a transaction.
#[derive(Clone, Copy, Debug)]
pub struct Within<'a> {
    tables: &'a [Table],
    transaction: &'a Transaction,
}

impl Reads for Within<'_> {
    fn get<R>(&mut self, table: usize, key: &[u8], read: impl FnOnce(&[u8]) -> R) -> Outcome<Option<R>> {
        Ok(self.transaction.get_with(&self.tables[table], key, read)?)
    }

    fn scan(
        &mut self,
        table: usize,
        span: &Span,
        direction: Direction,
        visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Outcome {
        pass_on(self.transaction.range::<&[u8]>(&self.tables[table], span.bounds()), direction, visit)
    }
}

impl Writes for Within<'_> {
    fn put(&mut self, table: usize, key: &[u8], value: &[u8]) -> Outcome {
        Ok(self.transaction.put(&self.tables[table], key, value)?)
    }

    fn delete(&mut self, table: usize, key: &[u8]) -> Outcome {
        self.transaction.delete(&self.tables[table], key)?;
        Ok(())
    }
}

/// The tables in a snapshot.
#[derive(Clone, Copy, Debug)]
pub struct At<'a> {
    tables: &'a [Table],
    snapshot: &'a Snapshot,
}

impl Reads for At<'_> {
    fn get<R>(&mut self, table: usize, key: &[u8], read: impl FnOnce(&[u8]) -> R) -> Outcome<Option<R>> {
        Ok(self.snapshot.get_with(&self.tables[table], key, read)?)
    }

    fn get_many<R>(
        &mut self,
        table: usize,
        keys: &[Vec<u8>],
        read: impl Fn(&[u8]) -> R,
    ) -> Outcome<Vec<Option<R>>> {
        let values = self.snapshot.get_many(&self.tables[table], keys)?;
        Ok(values.into_iter().map(|value| value.map(|value| read(&value))).collect())
    }

    fn scan(
        &mut self,
        table: usize,
        span: &Span,
        direction: Direction,
        visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Outcome {
        pass_on(self.snapshot.range::<&[u8]>(&self.tables[table], span.bounds()), direction, visit)
    }
}

fn pass_on(
    mut entries: impl DoubleEndedIterator<Item = terrace::Result<(Vec<u8>, Vec<u8>)>>,
    direction: Direction,
    mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
) -> Outcome {
    let mut next = || match direction {
        Direction::Ascending => entries.next(),
        Direction::Descending => entries.next_back(),
    };
    while let Some(entry) = next() {
        let (key, value) = entry?;
        if visit(&key, &value).is_break() {
            break;
        }
    }
    Ok(())
}
