//! TPC-C's tables, with notes of the rows that transactions touch.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};

use terrace_common::failure::{Failure, Outcome};

use crate::workload::tpcc::access::{Direction, Ended, Engine, Reads, Span, Writes};
use crate::workload::tpcc::tables::{At, Tables, Within};

/// A row that was read, or its new value.
pub(super) struct Touched {
    /// Position of the table, and the row's key.
    pub(super) key: Vec<u8>,
    pub(super) value: Option<Vec<u8>>,
}

pub(super) fn key_of(table: usize, key: &[u8]) -> Vec<u8> {
    [&[table as u8], key].concat()
}

/// Rows in the order in which they were touched.
#[derive(Clone, Default)]
pub(super) struct Notes(Arc<Mutex<Vec<Touched>>>);

impl Notes {
    fn note(&self, table: usize, key: &[u8], value: Option<&[u8]>) {
        let touched = Touched { key: key_of(table, key), value: value.map(<[u8]>::to_vec) };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(touched);
    }

    pub(super) fn take(&self) -> Vec<Touched> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The tables, with notes if wanted.
#[derive(Clone)]
pub(super) struct Noting {
    pub(super) tables: Tables,
    pub(super) notes: Option<Notes>,
}

impl Engine for Noting {
    type Transaction<'a> = Noted<'a, Within<'a>>;
    type Snapshot<'a> = Noted<'a, At<'a>>;

    fn update<T>(
        &self,
        mut body: impl FnMut(&mut Self::Transaction<'_>) -> Result<T, Ended>,
    ) -> Result<T, Ended> {
        self.tables.update(|inner| body(&mut Noted { inner: *inner, notes: self.notes.as_ref() }))
    }

    fn read<T, E: From<Failure>>(
        &self,
        body: impl FnOnce(&mut Self::Snapshot<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        self.tables.read(|inner| body(&mut Noted { inner: *inner, notes: self.notes.as_ref() }))
    }
}

/// A transaction or a snapshot.
pub(super) struct Noted<'a, R> {
    inner: R,
    notes: Option<&'a Notes>,
}

impl<R> Noted<'_, R> {
    fn note(&self, table: usize, key: &[u8], value: Option<&[u8]>) {
        if let Some(notes) = self.notes {
            notes.note(table, key, value);
        }
    }
}

impl<R: Reads> Reads for Noted<'_, R> {
    fn get<T>(&mut self, table: usize, key: &[u8], read: impl FnOnce(&[u8]) -> T) -> Outcome<Option<T>> {
        let found = self.inner.get(table, key, read)?;
        if found.is_some() {
            self.note(table, key, None);
        }
        Ok(found)
    }

    fn get_many<T>(
        &mut self,
        table: usize,
        keys: &[Vec<u8>],
        read: impl Fn(&[u8]) -> T,
    ) -> Outcome<Vec<Option<T>>> {
        let found = self.inner.get_many(table, keys, read)?;
        keys.iter().zip(&found).filter(|(_, row)| row.is_some()).for_each(|(key, _)| {
            self.note(table, key, None);
        });
        Ok(found)
    }

    fn scan(
        &mut self,
        table: usize,
        span: &Span,
        direction: Direction,
        mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Outcome {
        let notes = self.notes;
        self.inner.scan(table, span, direction, |key, row| {
            if let Some(notes) = notes {
                notes.note(table, key, None);
            }
            visit(key, row)
        })
    }
}

impl<R: Writes> Writes for Noted<'_, R> {
    fn put(&mut self, table: usize, key: &[u8], value: &[u8]) -> Outcome {
        self.note(table, key, Some(value));
        self.inner.put(table, key, value)
    }

    fn delete(&mut self, table: usize, key: &[u8]) -> Outcome {
        self.note(table, key, Some(&[]));
        self.inner.delete(table, key)
    }
}
