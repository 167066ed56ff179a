//! A transaction's uncommitted changes, private until the commit announces them; an abort drops
//! them.
//!
//! The keys are ordered: scans merge them ([`super::merge`]), and validators of foreign ranges
//! search them ([`super::flight`]).
//!
//! A cursor shares the tree of its table, so it sees the changes made before it began. The first
//! later change copies that tree.
//!
//! From the first savepoint on, a *journal* keeps what each change replaced, newest last. A
//! rollback takes changes off its end and restores the old ones. So a savepoint itself costs
//! nothing, and each later change costs one journal entry.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Bound;
use std::sync::Arc;

use super::versions::OverflowRef;
use super::{Key, KeyRange, is_empty_range};
use crate::TableId;
use crate::planted::{Bug, planted};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NewValue {
    /// The bytes of a value that fits into a leaf.
    Inline(Arc<[u8]>),
    /// The location of a value already written to overflow pages.
    Overflow(OverflowRef),
}

/// One change of one key; a later change of that key replaces it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Write {
    Put(NewValue),
    Delete,
}

type Writes = BTreeMap<Key, Write>;

/// The changes of a range at one moment; double-ended.
#[derive(Clone, Debug)]
pub(crate) struct OwnRange {
    writes: Arc<Writes>,
    /// The rest of the range.
    low: Bound<Key>,
    high: Bound<Key>,
}

#[derive(Debug, Default)]
pub(crate) struct WriteSet {
    tables: BTreeMap<TableId, Arc<Writes>>,
    len: usize,
    size_bytes: usize,
    log_bytes: usize,
    /// What changes replaced since the first savepoint; none without a savepoint.
    journal: Option<Vec<Replaced>>,
}

/// The state replaced by one change.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Replaced {
    table: TableId,
    key: Key,
    /// The transaction's earlier change of the key, if any.
    before: Option<Write>,
}

/// Memory of a change beside key and value: its share of a B-tree two thirds full, the key's two
/// counts, and allocator overhead.
const WRITE_OVERHEAD_BYTES: usize = (size_of::<Key>() + size_of::<Write>()) * 3 / 2 + 16 + 2 * 8;

/// Memory of a journal entry beside the replaced value: a vector grows by doubling.
const REPLACED_BYTES: usize = size_of::<Replaced>() * 3 / 2;

impl OwnRange {
    fn take(&mut self, back: bool) -> Option<(Key, Write)> {
        let left = (self.low.as_ref().map(|key| &**key), self.high.as_ref().map(|key| &**key));
        if is_empty_range(left) {
            return None;
        }
        let mut range = self.writes.range::<[u8], _>(left);
        let (key, write) = if back { range.next_back() } else { range.next() }?;
        let taken = (Arc::clone(key), write.clone());
        let bound = if back { &mut self.high } else { &mut self.low };
        *bound = Bound::Excluded(Arc::clone(&taken.0));
        Some(taken)
    }
}

impl Iterator for OwnRange {
    type Item = (Key, Write);

    fn next(&mut self) -> Option<Self::Item> {
        self.take(false)
    }
}

impl DoubleEndedIterator for OwnRange {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.take(true)
    }
}

impl NewValue {
    pub(crate) fn inline(bytes: &[u8]) -> Self {
        NewValue::Inline(bytes.into())
    }

    pub(crate) fn leaf_bytes(&self) -> usize {
        match self {
            NewValue::Inline(bytes) => bytes.len(),
            NewValue::Overflow(OverflowRef(reference)) => reference.len(),
        }
    }
}

impl Write {
    fn heap_bytes(&self) -> usize {
        match self {
            Write::Put(NewValue::Inline(bytes)) => bytes.len(),
            Write::Put(NewValue::Overflow(_)) | Write::Delete => 0,
        }
    }

    fn leaf_bytes(&self) -> usize {
        match self {
            Write::Put(value) => value.leaf_bytes(),
            Write::Delete => 0,
        }
    }
}

impl WriteSet {
    /// Sets `key`. Returns the replaced change, unless the journal keeps it: its overflow value has
    /// become garbage.
    pub(crate) fn put(&mut self, table: TableId, key: &[u8], value: NewValue) -> Option<Write> {
        self.change(table, key, Write::Put(value))
    }

    /// Removes `key`; returns the same as [`WriteSet::put`].
    pub(crate) fn delete(&mut self, table: TableId, key: &[u8]) -> Option<Write> {
        self.change(table, key, Write::Delete)
    }

    fn change(&mut self, table: TableId, key: &[u8], write: Write) -> Option<Write> {
        let key: Key = Arc::from(key);
        let before = self.set(table, &key, write);
        let Some(journal) = &mut self.journal else { return before };
        // The replaced change no longer counts, but still takes memory.
        self.size_bytes += REPLACED_BYTES + before.as_ref().map_or(0, Write::heap_bytes);
        journal.push(Replaced { table, key, before });
        None
    }

    fn set(&mut self, table: TableId, key: &Key, write: Write) -> Option<Write> {
        self.size_bytes += write.heap_bytes();
        self.log_bytes += write.leaf_bytes();
        match Arc::make_mut(self.tables.entry(table).or_default()).entry(Arc::clone(key)) {
            Entry::Vacant(vacant) => {
                vacant.insert(write);
                self.len += 1;
                self.size_bytes += WRITE_OVERHEAD_BYTES + key.len();
                self.log_bytes += key.len();
                None
            }
            Entry::Occupied(mut vacant) => {
                let before = vacant.insert(write);
                self.size_bytes -= before.heap_bytes();
                self.log_bytes -= before.leaf_bytes();
                Some(before)
            }
        }
    }

    /// Drops and returns the change of `key`.
    fn unset(&mut self, table: TableId, key: &Key) -> Option<Write> {
        let gone = Arc::make_mut(self.tables.get_mut(&table)?).remove(key)?;
        self.len -= 1;
        self.size_bytes -= WRITE_OVERHEAD_BYTES + key.len() + gone.heap_bytes();
        self.log_bytes -= key.len() + gone.leaf_bytes();
        Some(gone)
    }

    /// A savepoint: the journal's current end. From here on the journal keeps everything replaced.
    pub(crate) fn mark(&mut self) -> usize {
        self.journal.get_or_insert_default().len()
    }

    /// Reverts all changes since `mark`; returns them, newest first.
    pub(crate) fn roll_back(&mut self, mark: usize) -> Vec<Write> {
        let replaced = self.journal.as_mut().map(|journal| journal.split_off(mark.min(journal.len())));
        let mut gone = Vec::new();
        for Replaced { table, key, before } in replaced.into_iter().flatten().rev() {
            self.size_bytes -= REPLACED_BYTES + before.as_ref().map_or(0, Write::heap_bytes);
            gone.extend(match before {
                Some(before) => self.set(table, &key, before),
                None => self.unset(table, &key),
            });
        }
        gone
    }

    /// The change of `key`; `None`: the database's entry counts.
    pub(crate) fn get(&self, table: TableId, key: &[u8]) -> Option<&Write> {
        if planted(Bug::ReadOwnStaleVersion) {
            return None;
        }
        self.tables.get(&table)?.get(key)
    }

    /// Its changes so far in a range of one table.
    pub(crate) fn range(&self, table: TableId, (low, high): KeyRange<'_>) -> OwnRange {
        let writes = self.tables.get(&table).map_or_else(Arc::default, Arc::clone);
        OwnRange { writes, low: low.map(Arc::from), high: high.map(Arc::from) }
    }

    /// Like [`WriteSet::range`], without a share in the tree.
    pub(crate) fn in_range(
        &self,
        table: TableId,
        range: KeyRange<'_>,
    ) -> impl DoubleEndedIterator<Item = (&Key, &Write)> {
        let writes = self.tables.get(&table).filter(|_| !is_empty_range(range));
        writes.into_iter().flat_map(move |writes| writes.range::<[u8], _>(range))
    }

    pub(crate) fn touches(&self, table: TableId, range: KeyRange<'_>) -> bool {
        self.in_range(table, range).next().is_some()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (TableId, &Key, &Write)> {
        self.tables
            .iter()
            .flat_map(|(&table, writes)| writes.iter().map(move |(key, write)| (table, key, write)))
    }

    /// All changed keys, by table and key: what a commit locks.
    pub(crate) fn keys(&self) -> impl Iterator<Item = (TableId, &[u8])> {
        self.iter().map(|(table, key, _)| (table, &**key))
    }

    /// The overflow values it refers to: garbage after an abort.
    pub(crate) fn overflow_values(&self) -> impl Iterator<Item = OverflowRef> {
        self.iter().filter_map(|(_, _, write)| match write {
            Write::Put(NewValue::Overflow(reference)) => Some(*reference),
            _ => None,
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    /// Bytes of keys and leaf values in its log records, without headers.
    pub(crate) fn log_bytes(&self) -> usize {
        self.log_bytes
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Bound::{Included, Unbounded};

    use super::*;

    const TABLE: TableId = TableId(1);

    #[test]
    fn the_last_change_of_a_key_counts() {
        let mut writes = WriteSet::default();
        assert!(writes.is_empty());
        assert_eq!(writes.put(TABLE, b"k", NewValue::inline(b"first")), None);
        let size = writes.size_bytes();
        assert_eq!(writes.log_bytes(), 6);
        let overflow = NewValue::Overflow(OverflowRef([7; 16]));
        assert_eq!(writes.put(TABLE, b"k", overflow.clone()), Some(Write::Put(NewValue::inline(b"first"))));
        assert_eq!(writes.size_bytes(), size - 5);
        assert_eq!(writes.log_bytes(), 17);
        assert_eq!(writes.overflow_values().collect::<Vec<_>>(), [OverflowRef([7; 16])]);
        assert_eq!(writes.delete(TABLE, b"k"), Some(Write::Put(overflow)));
        assert_eq!(writes.get(TABLE, b"k"), Some(&Write::Delete));
        assert_eq!(writes.get(TableId(2), b"k"), None);
        assert_eq!((writes.len(), writes.log_bytes()), (1, 1));
    }

    #[test]
    fn going_back_to_a_mark_restores_changes_and_counts() {
        let mut writes = WriteSet::default();
        writes.put(TABLE, b"a", NewValue::inline(b"1"));
        assert_eq!(writes.delete(TABLE, b"a"), Some(Write::Put(NewValue::inline(b"1"))), "no journal yet");
        let numbers = |writes: &WriteSet| (writes.len(), writes.size_bytes(), writes.log_bytes());
        let all = |writes: &WriteSet| -> Vec<_> {
            writes.iter().map(|(table, key, write)| (table, key.to_vec(), write.clone())).collect()
        };
        let outer = writes.mark();
        let (before, counted) = (all(&writes), numbers(&writes));
        let overflow = NewValue::Overflow(OverflowRef([7; 16]));
        assert_eq!(writes.put(TABLE, b"a", overflow.clone()), None, "the journal has it");
        writes.put(TableId(2), b"b", NewValue::inline(b"22"));
        let inner = writes.mark();
        let (between, counted_between) = (all(&writes), numbers(&writes));
        writes.delete(TABLE, b"a");
        writes.put(TABLE, b"a", NewValue::inline(b"3"));
        writes.delete(TableId(2), b"c");
        let gone = writes.roll_back(inner);
        assert_eq!(gone, [Write::Delete, Write::Put(NewValue::inline(b"3")), Write::Delete]);
        assert_eq!((all(&writes), numbers(&writes)), (between, counted_between));
        assert!(writes.roll_back(inner).is_empty());
        let gone = writes.roll_back(outer);
        assert_eq!(gone, [Write::Put(NewValue::inline(b"22")), Write::Put(overflow)]);
        assert_eq!((all(&writes), numbers(&writes)), (before, counted));
    }

    #[test]
    fn ranges_run_both_ways_and_may_be_empty() {
        let mut writes = WriteSet::default();
        for key in [b"a", b"b", b"c"] {
            writes.put(TABLE, key, NewValue::inline(b""));
        }
        let keys = |range: OwnRange| range.map(|(key, _)| key[0]).collect::<Vec<_>>();
        assert_eq!(keys(writes.range(TABLE, (Included(b"b"), Unbounded))), b"bc");
        let backwards: Vec<u8> =
            writes.range(TABLE, (Unbounded, Unbounded)).rev().map(|(key, _)| key[0]).collect();
        assert_eq!(backwards, b"cba");
        assert!(keys(writes.range(TABLE, (Included(b"c"), Included(b"a")))).is_empty());
        assert!(keys(writes.range(TableId(9), (Unbounded, Unbounded))).is_empty());
        assert_eq!(writes.keys().count(), 3);
    }
}
