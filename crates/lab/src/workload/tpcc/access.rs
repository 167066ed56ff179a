//! The trait of an engine under TPC-C: thirteen ordered maps, transactions and snapshots.
//!
//! An engine has to isolate transactions so that the consistency conditions hold. [`Rows`] gives a
//! map types; its encoding is that of Terrace's typed tables for all engines.

use std::marker::PhantomData;
use std::ops::{Bound, ControlFlow};

use terrace::{AsKey, AsValue, Key, KeyPrefix, Value};
use terrace_common::failure::{Failure, Outcome};

/// The tables' names in the database.
pub const NAMES: [&str; 13] = [
    "tpcc.warehouse",
    "tpcc.warehouse_paid",
    "tpcc.district",
    "tpcc.district_paid",
    "tpcc.customer",
    "tpcc.customer_by_name",
    "tpcc.history",
    "tpcc.new_order",
    "tpcc.order",
    "tpcc.order_by_customer",
    "tpcc.order_line",
    "tpcc.item",
    "tpcc.stock",
];

/// A database of the tables [`NAMES`].
pub trait Engine: Clone + Send + Sync {
    /// A transaction that may write.
    type Transaction<'a>: Writes
    where
        Self: 'a;
    /// A state that does not change.
    type Snapshot<'a>: Reads
    where
        Self: 'a;

    /// Runs `body` in a transaction, which commits if it returns a value. After a conflict it runs
    /// again.
    fn update<T>(&self, body: impl FnMut(&mut Self::Transaction<'_>) -> Result<T, Ended>)
    -> Result<T, Ended>;

    /// Runs `body` in a snapshot.
    fn read<T, E: From<Failure>>(
        &self,
        body: impl FnOnce(&mut Self::Snapshot<'_>) -> Result<T, E>,
    ) -> Result<T, E>;
}

/// Why a transaction ended without a commit.
#[derive(Debug)]
pub enum Ended {
    /// A new order names an item that does not exist, which rolls it back.
    UnknownItem,
    /// A row is missing that the rules of the tables promise.
    Missing(&'static str),
    /// The engine failed.
    Failed(Failure),
}

impl From<Failure> for Ended {
    fn from(failure: Failure) -> Ended {
        Ended::Failed(failure)
    }
}

impl From<terrace::Error> for Ended {
    fn from(error: terrace::Error) -> Ended {
        Ended::Failed(error.into())
    }
}

impl From<Ended> for Failure {
    fn from(ended: Ended) -> Failure {
        match ended {
            Ended::UnknownItem => Failure::Work("an order with an unknown item was not rolled back".into()),
            Ended::Missing(what) => Failure::Damaged(format!("TPC-C: a {what} is missing")),
            Ended::Failed(failure) => failure,
        }
    }
}

/// Reads of a transaction or snapshot. A table is named by its position in [`NAMES`].
pub trait Reads {
    /// Passes the value of `key` to `read`, if it is there.
    fn get<R>(&mut self, table: usize, key: &[u8], read: impl FnOnce(&[u8]) -> R) -> Outcome<Option<R>>;

    /// Passes the values of `keys` to `read`, in their order.
    fn get_many<R>(
        &mut self,
        table: usize,
        keys: &[Vec<u8>],
        read: impl Fn(&[u8]) -> R,
    ) -> Outcome<Vec<Option<R>>> {
        keys.iter().map(|key| self.get(table, key, &read)).collect()
    }

    /// Passes the entries of `span` to `visit`, until it breaks.
    fn scan(
        &mut self,
        table: usize,
        span: &Span,
        direction: Direction,
        visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Outcome;
}

/// Writes of a transaction, which its own reads see.
pub trait Writes: Reads {
    /// Sets `key`.
    fn put(&mut self, table: usize, key: &[u8], value: &[u8]) -> Outcome;

    /// Removes `key`.
    fn delete(&mut self, table: usize, key: &[u8]) -> Outcome;
}

/// Keys from `from` on, up to `to` without it.
#[derive(Clone, Debug)]
pub struct Span {
    pub from: Vec<u8>,
    pub to: Option<Vec<u8>>,
}

impl Span {
    /// The keys that begin with `prefix`.
    pub fn of(prefix: Vec<u8>) -> Span {
        let mut to = prefix.clone();
        // The last byte that can grow does.
        while to.pop_if(|byte| *byte == u8::MAX).is_some() {}
        let grown = to.last_mut().map(|byte| *byte += 1);
        Span { from: prefix, to: grown.map(|()| to) }
    }

    /// The span as a range of Terrace.
    pub fn bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        let to = self.to.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        (Bound::Included(&self.from), to)
    }
}

/// The direction of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Ascending,
    Descending,
}

/// A table with types for its keys and values.
#[derive(Debug)]
pub struct Rows<K, V> {
    table: usize,
    types: PhantomData<fn() -> (K, V)>,
}

impl<K, V> Clone for Rows<K, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K, V> Copy for Rows<K, V> {}

fn bytes_of<K>(key: &impl AsKey<K>) -> Vec<u8> {
    let mut bytes = Vec::new();
    key.encode(&mut bytes);
    bytes
}

impl<K, V> Rows<K, V> {
    /// The table at this position in [`NAMES`].
    pub const fn at(table: usize) -> Rows<K, V> {
        Rows { table, types: PhantomData }
    }

    fn misfit(self) -> impl Fn(String) -> Failure {
        move |what| Failure::Damaged(format!("table {}: {what}", NAMES[self.table]))
    }
}

impl<K: Key, V: Value> Rows<K, V> {
    /// The row of `key`.
    pub fn get(self, reads: &mut impl Reads, key: impl AsKey<K>) -> Outcome<Option<V::Owned>> {
        let row = reads.get(self.table, &bytes_of(&key), V::decode)?;
        row.transpose().map_err(self.misfit())
    }

    /// The rows of `keys`.
    pub fn get_many<Q: AsKey<K>>(
        self,
        reads: &mut impl Reads,
        keys: impl IntoIterator<Item = Q>,
    ) -> Outcome<Vec<Option<V::Owned>>> {
        let keys: Vec<Vec<u8>> = keys.into_iter().map(|key| bytes_of(&key)).collect();
        let rows = reads.get_many(self.table, &keys, V::decode)?;
        rows.into_iter().map(|row| row.transpose().map_err(self.misfit())).collect()
    }

    /// Sets the row of `key`.
    pub fn put(self, writes: &mut impl Writes, key: impl AsKey<K>, row: impl AsValue<V>) -> Outcome {
        let mut bytes = Vec::new();
        row.encode(&mut bytes).map_err(self.misfit())?;
        writes.put(self.table, &bytes_of(&key), &bytes)
    }

    /// Removes the row of `key`.
    pub fn delete(self, writes: &mut impl Writes, key: impl AsKey<K>) -> Outcome {
        writes.delete(self.table, &bytes_of(&key))
    }

    /// The keys of this table that begin with `prefix`.
    pub fn prefix(self, prefix: impl KeyPrefix<K>) -> Span {
        let mut bytes = Vec::new();
        prefix.encode_prefix(&mut bytes);
        Span::of(bytes)
    }

    /// The keys from `from` on, up to `to` without it; without one, to the table's end.
    pub fn span(self, from: Option<K>, to: Option<K>) -> Span {
        let from = from.map_or_else(Vec::new, |key| bytes_of(&key));
        Span { from, to: to.map(|key| bytes_of(&key)) }
    }

    /// Passes the rows of `span` on, in order.
    pub fn each(self, reads: &mut impl Reads, span: &Span, mut visit: impl FnMut(K, V::Owned)) -> Outcome {
        self.visit(reads, span, Direction::Ascending, |key, row| {
            visit(key, row);
            ControlFlow::Continue(())
        })
    }

    /// The rows of `span`, in order.
    pub fn all(self, reads: &mut impl Reads, span: &Span) -> Outcome<Vec<(K, V::Owned)>> {
        let mut rows = Vec::new();
        self.each(reads, span, |key, row| rows.push((key, row)))?;
        Ok(rows)
    }

    /// The first row of `span` in this order.
    pub fn first(
        self,
        reads: &mut impl Reads,
        span: &Span,
        direction: Direction,
    ) -> Outcome<Option<(K, V::Owned)>> {
        let mut first = None;
        self.visit(reads, span, direction, |key, row| {
            first = Some((key, row));
            ControlFlow::Break(())
        })?;
        Ok(first)
    }

    fn visit(
        self,
        reads: &mut impl Reads,
        span: &Span,
        direction: Direction,
        mut visit: impl FnMut(K, V::Owned) -> ControlFlow<()>,
    ) -> Outcome {
        let mut fits = Ok(());
        reads.scan(self.table, span, direction, |key, row| {
            let entry = K::decode(key).and_then(|key| Ok((key, V::decode(row)?)));
            match entry {
                Ok((key, row)) => visit(key, row),
                Err(misfit) => {
                    fits = Err(self.misfit()(misfit));
                    ControlFlow::Break(())
                }
            }
        })?;
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_has_all_longer_keys_and_no_others() {
        let span = Span::of(vec![1, 255]);
        assert_eq!((span.from.as_slice(), span.to.as_deref()), (&[1, 255][..], Some(&[2][..])));
        let span = Span::of(vec![255]);
        assert!(span.to.is_none(), "no key is behind them");
    }

    #[test]
    fn a_misfit_names_its_table() {
        let rows: Rows<u32, i64> = Rows::at(1);
        let told = rows.misfit()("3 bytes instead of 8".into()).to_string();
        assert_eq!(told, "table tpcc.warehouse_paid: 3 bytes instead of 8");
    }
}
