//! Scans of a table from both ends, over copies of its leaves.
//!
//! Each end has a copy of one leaf, and two bounds delimit the rest of the range. Taking an
//! entry moves that end's bound behind it, so the ends meet without repeating a key. When a copy is
//! used up, the next leaf is found *by key*: at the upper fence going up, just below the lower
//! fence going down. That is correct whatever is split, merged, evicted or freed meanwhile.
//!
//! A scan sees the tree as it is now (a transaction, validated at commit) or the state at a
//! timestamp. For the latter, entries that are too new come from the old versions, and keys deleted
//! since are merged in. The leaf is read first and the old versions second, as `versions.rs`
//! requires.

use std::collections::VecDeque;
use std::ops::{Bound, ControlFlow};

use super::mvcc::Mvcc;
use super::read_set::RangeRead;
use super::table::TableState;
use super::versions::{OldValue, OldVersion, OverflowRef};
use super::{Key, KeyRange, is_empty_range};
use crate::error::{Error, Result};
use crate::ids::{PageId, Timestamp};
use crate::index::node::OVERFLOW;
use crate::index::node::overflow::Reference;
use crate::index::{Ahead, LeafRows, Seek, Stored, Toward, Tree};
use crate::pool::Pool;

pub(crate) type OwnedRange = (Bound<Vec<u8>>, Bound<Vec<u8>>);

#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) key: Vec<u8>,
    pub(crate) timestamp: Timestamp,
    pub(crate) value: Stored,
}

#[derive(Debug)]
pub(crate) enum Met {
    /// A row of that end's leaf copy, inline value included: see [`Scan::row`].
    Here(usize),
    /// An entry from elsewhere, or with its value elsewhere.
    Apart(Row),
}

#[derive(Debug, Default)]
struct End {
    rows: LeafRows,
    /// Going up: the next row. Going down: one after the next row.
    at: usize,
    loaded: bool,
    /// Keys of this leaf deleted since, in scan order.
    deleted: VecDeque<(Key, OldVersion)>,
    ahead: Ahead,
}

#[derive(Debug)]
pub(crate) struct Scan {
    tree: Tree,
    /// The rest of the range.
    low: Bound<Vec<u8>>,
    high: Bound<Vec<u8>>,
    /// Timestamp to read at; `None` is now.
    at: Option<Timestamp>,
    front: End,
    back: End,
    done: bool,
}

pub(crate) fn as_slice(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(|key| &key[..])
}

fn set(bound: &mut Bound<Vec<u8>>, key: &[u8], included: bool) {
    // Reuse the old bound's memory: this runs for every entry.
    let mut bytes = match std::mem::replace(bound, Bound::Unbounded) {
        Bound::Included(bytes) | Bound::Excluded(bytes) => bytes,
        Bound::Unbounded => Vec::new(),
    };
    bytes.clear();
    bytes.extend_from_slice(key);
    *bound = if included { Bound::Included(bytes) } else { Bound::Excluded(bytes) };
}

fn is_above_low(low: &Bound<Vec<u8>>, key: &[u8]) -> bool {
    match low {
        Bound::Unbounded => true,
        Bound::Included(low) => key >= &low[..],
        Bound::Excluded(low) => key > &low[..],
    }
}

fn is_below_high(high: &Bound<Vec<u8>>, key: &[u8]) -> bool {
    match high {
        Bound::Unbounded => true,
        Bound::Included(high) => key <= &high[..],
        Bound::Excluded(high) => key < &high[..],
    }
}

impl Scan {
    pub(crate) fn new(tree: Tree, (low, high): OwnedRange, at: Option<Timestamp>) -> Self {
        let front = End { rows: LeafRows::lent(), ..End::default() };
        Scan { tree, low, high, at, front, back: End::default(), done: false }
    }

    /// Announces about `entries` entries, going up.
    pub(crate) fn expect(&mut self, entries: usize) {
        self.front.ahead.expect(entries);
    }

    pub(crate) fn left(&self) -> KeyRange<'_> {
        (as_slice(&self.low), as_slice(&self.high))
    }

    /// Takes the lowest entry left. Calls `visit` with each leaf read and its version.
    pub(crate) fn next(
        &mut self,
        mvcc: &Mvcc,
        table: &TableState,
        visit: &mut dyn FnMut(PageId, u64),
    ) -> Result<Option<Row>> {
        let met = self.step(mvcc, table, Toward::Up, visit)?;
        Ok(met.map(|met| self.copied(Toward::Up, met)))
    }

    pub(crate) fn next_back(
        &mut self,
        mvcc: &Mvcc,
        table: &TableState,
        visit: &mut dyn FnMut(PageId, u64),
    ) -> Result<Option<Row>> {
        let met = self.step(mvcc, table, Toward::Down, visit)?;
        Ok(met.map(|met| self.copied(Toward::Down, met)))
    }

    fn copied(&self, toward: Toward, met: Met) -> Row {
        match met {
            Met::Apart(row) => row,
            Met::Here(index) => {
                let (key, value) = self.row(toward, index);
                let timestamp = self.end(toward).rows.timestamp(index);
                Row { key: key.to_vec(), timestamp, value: Stored::Inline(value.to_vec()) }
            }
        }
    }

    /// Key and value of a row from the last step at this end.
    pub(crate) fn row(&self, toward: Toward, index: usize) -> (&[u8], &[u8]) {
        let rows = &self.end(toward).rows;
        (rows.key(index), rows.value(index))
    }

    fn end(&self, toward: Toward) -> &End {
        if toward == Toward::Up { &self.front } else { &self.back }
    }

    /// Takes the next entry at an end, without a copy if it is in that end's leaf.
    pub(crate) fn step(
        &mut self,
        mvcc: &Mvcc,
        table: &TableState,
        toward: Toward,
        visit: &mut dyn FnMut(PageId, u64),
    ) -> Result<Option<Met>> {
        while !self.done && !is_empty_range(self.left()) {
            if !self.end(toward).loaded {
                self.load(mvcc, table, toward)?;
                let rows = &self.end(toward).rows;
                visit(rows.leaf, rows.version);
            }
            match self.take(toward) {
                Taken::Row(index) => {
                    if let Some(met) = self.resolve(mvcc, table, toward, index)? {
                        return Ok(Some(met));
                    }
                }
                Taken::Deleted(key, old) => {
                    self.pass(toward, &key);
                    if let Some(value) = stored(old.value)? {
                        let row = Row { key: key.to_vec(), timestamp: old.timestamp, value };
                        return Ok(Some(Met::Apart(row)));
                    }
                }
                Taken::End => {
                    self.done = true;
                }
                Taken::Leaf => {}
            }
        }
        Ok(None)
    }

    /// Visits the next entries, going up, as long as the leaf copy alone decides them.
    ///
    /// [`Scan::step`] does the rest.
    pub(crate) fn show<B>(
        &mut self,
        visit: &mut impl FnMut(&[u8], &[u8]) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        let end = &mut self.front;
        let rows = &end.rows;
        if !end.loaded || !end.deleted.is_empty() || !self.at.is_some_and(|at| rows.are_all_of(at)) {
            return ControlFlow::Continue(());
        }
        let stop = match (&self.high, &rows.upper) {
            (Bound::Unbounded, _) => rows.len(),
            (Bound::Excluded(high), Some(upper)) if upper <= high => rows.len(),
            (Bound::Included(high) | Bound::Excluded(high), _) => rows.lower_bound(high),
        };
        let mut flow = ControlFlow::Continue(());
        let first = end.at;
        while end.at < stop && flow.is_continue() {
            flow = visit(rows.key(end.at), rows.value(end.at));
            end.at += 1;
        }
        if end.at > first {
            set(&mut self.low, rows.key(end.at - 1), false);
        }
        flow
    }

    fn load(&mut self, mvcc: &Mvcc, table: &TableState, toward: Toward) -> Result<()> {
        let (end, seek) = match (toward, &self.low, &self.high) {
            (Toward::Up, Bound::Unbounded, _) => (&mut self.front, Seek::First),
            (Toward::Up, Bound::Included(low) | Bound::Excluded(low), _) => (&mut self.front, Seek::At(low)),
            (Toward::Down, _, Bound::Unbounded) => (&mut self.back, Seek::Last),
            (Toward::Down, _, Bound::Included(high)) => (&mut self.back, Seek::At(high)),
            (Toward::Down, _, Bound::Excluded(high)) => (&mut self.back, Seek::Before(high)),
        };
        let (low, high) = (&self.low, &self.high);
        let within = |separator: &[u8]| match toward {
            Toward::Up => is_below_high(high, separator),
            Toward::Down => is_above_low(low, separator),
        };
        end.ahead.before_leaf(&mvcc.pool, self.tree, seek, toward, end.rows.len(), &within);
        self.tree.read_beside(&mvcc.pool, seek, toward, &mut end.rows)?;
        end.loaded = true;
        let goes_on = match toward {
            Toward::Up => end.rows.upper.as_deref().is_some_and(within),
            Toward::Down => within(&end.rows.lower),
        };
        if goes_on && end.ahead.wants_more_than(end.rows.len()) {
            self.tree.prefetch_beside(&mvcc.pool, toward, &end.rows);
        }
        end.at = match toward {
            Toward::Up => match &self.low {
                Bound::Unbounded => 0,
                Bound::Included(low) => end.rows.lower_bound(low),
                Bound::Excluded(low) => {
                    let at = end.rows.lower_bound(low);
                    at + usize::from(at < end.rows.len() && end.rows.key(at) == &low[..])
                }
            },
            Toward::Down => match &self.high {
                Bound::Unbounded => end.rows.len(),
                Bound::Excluded(high) => end.rows.lower_bound(high),
                Bound::Included(high) => {
                    let at = end.rows.lower_bound(high);
                    at + usize::from(at < end.rows.len() && end.rows.key(at) == &high[..])
                }
            },
        };
        end.deleted.clear();
        if let Some(at) = self.at {
            let low = if is_above_low(&self.low, &end.rows.lower) {
                Bound::Included(&end.rows.lower[..])
            } else {
                as_slice(&self.low)
            };
            let high = match &end.rows.upper {
                Some(upper) if is_below_high(&self.high, upper) => Bound::Excluded(&upper[..]),
                _ => as_slice(&self.high),
            };
            end.deleted.extend(mvcc.versions.deleted_in(table.id, (low, high), at));
            if toward == Toward::Down {
                end.deleted.make_contiguous().reverse();
            }
        }
        Ok(())
    }

    fn take(&mut self, toward: Toward) -> Taken {
        let end = if toward == Toward::Up { &mut self.front } else { &mut self.back };
        let row = match toward {
            Toward::Up => (end.at < end.rows.len()).then_some(end.at),
            Toward::Down => end.at.checked_sub(1),
        };
        let row_first = match (row, end.deleted.front()) {
            (None, None) => {
                end.loaded = false;
                return match toward {
                    Toward::Up => match &end.rows.upper {
                        Some(upper) if is_below_high(&self.high, upper) => {
                            set(&mut self.low, upper, true);
                            Taken::Leaf
                        }
                        _ => Taken::End,
                    },
                    Toward::Down if end.rows.lower.is_empty() => Taken::End,
                    Toward::Down if is_above_low(&self.low, &end.rows.lower) => {
                        set(&mut self.high, &end.rows.lower, false);
                        Taken::Leaf
                    }
                    Toward::Down => Taken::End,
                };
            }
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (Some(index), Some((key, _))) => match (end.rows.key(index).cmp(key), toward) {
                (std::cmp::Ordering::Equal, _) => {
                    let too_new = self.at.is_some_and(|at| end.rows.timestamp(index) > at);
                    if too_new {
                        end.at = if toward == Toward::Up { end.at + 1 } else { end.at - 1 };
                    } else {
                        end.deleted.pop_front();
                    }
                    !too_new
                }
                (order, Toward::Up) => order.is_lt(),
                (order, Toward::Down) => order.is_gt(),
            },
        };
        let key = match (row_first, row, end.deleted.front()) {
            (true, Some(index), _) => end.rows.key(index),
            (_, _, Some((key, _))) => key,
            _ => unreachable!("one of the two comes next"),
        };
        let inside = is_above_low(&self.low, key) && is_below_high(&self.high, key);
        if !inside {
            // The other end has been here, or the range ends here.
            return Taken::End;
        }
        if row_first {
            end.at = if toward == Toward::Up { end.at + 1 } else { end.at - 1 };
            return Taken::Row(row.expect("a row comes next"));
        }
        let (key, old) = end.deleted.pop_front().expect("a deleted key comes next");
        Taken::Deleted(key, old)
    }

    fn pass(&mut self, toward: Toward, key: &[u8]) {
        let bound = if toward == Toward::Up { &mut self.low } else { &mut self.high };
        set(bound, key, false);
    }

    /// The entry of row `index` at the scan's timestamp; `None` if the key was absent.
    fn resolve(
        &mut self,
        mvcc: &Mvcc,
        table: &TableState,
        toward: Toward,
        index: usize,
    ) -> Result<Option<Met>> {
        let (end, bound) = match toward {
            Toward::Up => (&self.front, &mut self.low),
            Toward::Down => (&self.back, &mut self.high),
        };
        let rows = &end.rows;
        let (key, timestamp) = (rows.key(index), rows.timestamp(index));
        set(bound, key, false);
        if let Some(at) = self.at.filter(|&at| timestamp > at) {
            let old = if rows.flags(index) & OVERFLOW == 0 {
                mvcc.versions.read_below(table.id, key, at, &OldValue::Inline(rows.value(index)))
            } else {
                mvcc.versions.read(table.id, key, at)
            };
            let Some(OldVersion { timestamp, value }) = old else {
                // Every commit pushes what it replaces, so the version was dropped: the snapshot
                // was given up.
                return Err(Error::SnapshotTooOld);
            };
            return Ok(stored(value)?.map(|value| Met::Apart(Row { key: key.to_vec(), timestamp, value })));
        }
        if rows.flags(index) & OVERFLOW == 0 {
            return Ok(Some(Met::Here(index)));
        }
        let damaged = || Error::corrupt("the page file", Some(rows.leaf.0), "a malformed reference");
        let value = Stored::Overflow(Reference::decode(rows.value(index)).ok_or_else(damaged)?);
        Ok(Some(Met::Apart(Row { key: key.to_vec(), timestamp, value })))
    }
}

impl Drop for Scan {
    fn drop(&mut self) {
        std::mem::take(&mut self.front.rows).give_back();
    }
}

enum Taken {
    Row(usize),
    Deleted(Key, OldVersion),
    Leaf,
    End,
}

/// An old version's value as a leaf would have it; `None` if the key was absent.
pub(crate) fn stored(value: OldValue) -> Result<Option<Stored>> {
    Ok(match value {
        OldValue::Absent => None,
        OldValue::Inline(bytes) => Some(Stored::Inline(bytes)),
        OldValue::Part { .. } => unreachable!("the reader had the whole entry, so it gets a whole value"),
        OldValue::Overflow(OverflowRef(bytes)) => {
            Some(Stored::Overflow(Reference::decode(&bytes).expect("sixteen bytes are a reference")))
        }
    })
}

/// Whether another scan of `range` finds the same.
pub(crate) fn digest_holds(pool: &Pool, tree: Tree, range: &RangeRead) -> Result<bool> {
    let Some((low, high)) = range.covered() else { return Ok(true) };
    let mut digest = range.digest().fresh();
    let mut rows = LeafRows::new();
    let low = low.map(<[u8]>::to_vec);
    let high = high.map(<[u8]>::to_vec);
    let mut seek_key = match &low {
        Bound::Unbounded => None,
        Bound::Included(key) | Bound::Excluded(key) => Some(key.clone()),
    };
    loop {
        let seek = seek_key.as_deref().map_or(Seek::First, Seek::At);
        tree.read_beside(pool, seek, Toward::Up, &mut rows)?;
        for index in 0..rows.len() {
            let key = rows.key(index);
            if !is_below_high(&high, key) {
                break;
            }
            if is_above_low(&low, key) {
                digest.add(key, rows.timestamp(index));
            }
        }
        match rows.upper.take() {
            Some(upper) if is_below_high(&high, &upper) => seek_key = Some(upper),
            _ => return Ok(digest == *range.digest()),
        }
    }
}
