//! The log records of one commit: what they change, in order, and what room they need.

use std::sync::Arc;

use super::garbage::{GarbageKey, Transfer, garbage_tree, put};
use super::table::TableState;
use super::undo::{Inverse, OldEntry};
use super::versions::{OldValue, OldVersion, OverflowRef};
use super::write_set::{NewValue, Write, WriteSet};
use crate::error::Result;
use crate::ids::{ByClass, SizeClass, TableId, Timestamp};
use crate::index::node::OVERFLOW;
use crate::index::node::leaf;
use crate::index::node::overflow::Reference;
use crate::index::{CROWDED_MAX, Change, SPLIT_FRAMES, Tree, log_bytes};
use crate::planted::{Bug, planted};
use crate::pool::Pool;

pub(super) struct Old {
    pub(super) timestamp: Timestamp,
    pub(super) flags: u8,
    pub(super) value: Box<[u8]>,
}

impl Old {
    pub(super) fn entry(&self) -> OldEntry<'_> {
        OldEntry { timestamp: self.timestamp, flags: self.flags, value: &self.value, at: None }
    }

    pub(super) fn reference(&self) -> Option<Reference> {
        (self.flags & OVERFLOW != 0).then(|| Reference::decode(&self.value)).flatten()
    }

    /// If `new` differs in a part only: that part as it was, its offset, and its new bytes.
    fn difference<'a>(&self, new: &'a [u8]) -> Option<(OldEntry<'_>, usize, &'a [u8])> {
        let (at, bytes) = if self.flags == 0 { leaf::difference(&self.value, new)? } else { return None };
        let value = &self.value[at..at + bytes.len()];
        Some((OldEntry { value, at: Some(at as u32), ..self.entry() }, at, bytes))
    }

    pub(super) fn version(&self) -> OldVersion<&[u8]> {
        let value = match self.reference() {
            Some(reference) => OldValue::Overflow(OverflowRef(reference.encode())),
            None => OldValue::Inline(&self.value[..]),
        };
        OldVersion { timestamp: self.timestamp, value }
    }
}

#[derive(Default)]
pub(super) struct Estimate {
    pub(super) records: usize,
    log_bytes: u64,
    /// Bytes that leaves gain, by page class; `None` where no leaf changes.
    leaf_bytes: [Option<u64>; SizeClass::COUNT],
}

impl Estimate {
    fn record(&mut self, tree: Tree, change: &Change<'_>, inverse: &Inverse<'_>) {
        const ENTRY: u64 = 24;
        self.records += 1;
        self.log_bytes += log_bytes(change, inverse.encoded_bytes()) + log_bytes(&inverse.change(), 0);
        let leaf_bytes = self.leaf_bytes[tree.class().index()].get_or_insert_default();
        if let Change::Put { key, value, .. } = change {
            *leaf_bytes += (key.len() + value.len()) as u64 + ENTRY;
        }
    }

    /// Upper bound of pages for splits, by class: half full new leaves, crowded leaves not split
    /// before, and some inner nodes.
    pub(super) fn pages(&self) -> impl Iterator<Item = (SizeClass, u64)> + '_ {
        SizeClass::all().zip(self.leaf_bytes).filter_map(|(class, leaf_bytes)| {
            Some((class, 2 + CROWDED_MAX as u64 + leaf_bytes? * 2 / class.page_bytes() as u64))
        })
    }
}

impl Estimate {
    /// Upper bound of log bytes: the records, and each page of a split half full in a record of its
    /// own.
    pub(super) fn log_bytes(&self) -> u64 {
        let split_bytes: u64 =
            self.pages().map(|(class, pages)| pages * (class.page_bytes() as u64 / 2 + 256)).sum();
        self.log_bytes + 2 * 64 + split_bytes
    }

    /// Upper bound of blocks for new pages.
    pub(super) fn blocks(&self) -> u64 {
        self.pages().map(|(class, pages)| pages * class.blocks()).sum()
    }

    /// Upper bound of frames held at once.
    pub(super) fn frames(&self) -> ByClass<u32> {
        self.leaf_bytes.map(|bytes| if bytes.is_some() { SPLIT_FRAMES } else { 0 })
    }
}

pub(crate) fn tree_of(tables: &[Arc<TableState>], id: TableId) -> Tree {
    state_of(tables, id).tree
}

pub(super) fn state_of(tables: &[Arc<TableState>], id: TableId) -> &TableState {
    tables.iter().find(|table| table.id == id).expect("a transaction knows the tables it has used")
}

/// One key of a commit: its table, the change, and the entry before.
pub(super) type Step<'w> = ((TableId, &'w Arc<[u8]>, &'w Write), &'w Option<Old>);

/// The changes of a commit, with the entries that they replace.
#[derive(Clone, Copy)]
pub(super) struct Records<'w> {
    pub(super) tables: &'w [Arc<TableState>],
    pub(super) writes: &'w WriteSet,
    /// The entries before, in the order of `writes`.
    pub(super) olds: &'w [Option<Old>],
    /// Maps a large value of `writes` to the key of its garbage entry.
    pub(super) large: &'w dyn Fn(OverflowRef) -> GarbageKey,
    /// Further changes of the garbage tree.
    pub(super) transfers: &'w [Transfer],
}

impl<'w> Records<'w> {
    pub(super) fn steps(&self) -> impl Iterator<Item = Step<'w>> + use<'w> {
        self.writes.iter().zip(self.olds)
    }

    /// The steps that change something: all but deletions of absent keys.
    pub(super) fn kept(&self) -> impl Iterator<Item = Step<'w>> + use<'w> {
        self.steps().filter(|((_, _, write), old)| old.is_some() || **write != Write::Delete)
    }

    /// Sizes of the records to come, without timestamps.
    pub(super) fn estimate(&self, pool: &Pool) -> Estimate {
        let mut estimate = Estimate::default();
        self.each(pool, Timestamp::NONE, |tree, change, inverse| {
            estimate.record(tree, &change, inverse);
            Ok(())
        })
        .expect("counting does not fail");
        estimate
    }

    /// Calls `record` for each record of a commit: per key its change, then its effect on the
    /// garbage tree.
    pub(super) fn each(
        &self,
        pool: &Pool,
        timestamp: Timestamp,
        mut record: impl FnMut(Tree, Change<'_>, &Inverse<'_>) -> Result<()>,
    ) -> Result<()> {
        let garbage = garbage_tree(pool);
        for ((table, key, write), old) in self.kept() {
            let tree = tree_of(self.tables, table);
            let mut inverse = Inverse { root: tree.root, key, old: old.as_ref().map(Old::entry) };
            let change = match write {
                Write::Put(NewValue::Inline(value)) => {
                    match old.as_ref().and_then(|old| old.difference(value)) {
                        Some((part, at, bytes)) => {
                            inverse.old = Some(part);
                            Change::Patch { key, timestamp, at, bytes }
                        }
                        None => Change::Put { key, timestamp, flags: 0, value },
                    }
                }
                Write::Put(NewValue::Overflow(OverflowRef(value))) => {
                    Change::Put { key, timestamp, flags: OVERFLOW, value }
                }
                Write::Delete => Change::Remove { key },
            };
            record(tree, change, &inverse)?;
            if let Write::Put(NewValue::Overflow(reference)) = write {
                let claimed = Reference::decode(&reference.0);
                transfer(garbage, &Transfer::Claim((self.large)(*reference), claimed), &mut record)?;
            }
            if let Some(reference) = old.as_ref().and_then(Old::reference) {
                let discard = Transfer::Discard(GarbageKey::value(reference.head), Some(reference));
                transfer(garbage, &discard, &mut record)?;
            }
        }
        self.transfers.iter().try_for_each(|each| transfer(garbage, each, &mut record))
    }

    /// Tells a running verification which values and tables change owner.
    pub(super) fn note_passing(&self, pool: &Pool) {
        let Some(verify_marks) = pool.verify_marks().filter(|_| !planted(Bug::PassingUntold)) else { return };
        for ((_, _, write), old) in self.steps() {
            if let Write::Put(NewValue::Overflow(OverflowRef(reference))) = write {
                Reference::decode(reference).into_iter().for_each(|new| verify_marks.pass_on(new.head));
            }
            old.as_ref().and_then(Old::reference).into_iter().for_each(|old| verify_marks.pass_on(old.head));
        }
        for Transfer::Claim(key, reference) | Transfer::Discard(key, reference) in self.transfers {
            verify_marks.pass_on(reference.map_or(key.id(), |reference| reference.head));
        }
    }

    pub(super) fn count(&self) {
        for ((table, _, write), old) in self.steps() {
            match (write, old) {
                (Write::Put(_), None) => state_of(self.tables, table).count.add(1),
                (Write::Delete, Some(_)) => state_of(self.tables, table).count.add(-1),
                _ => {}
            }
        }
    }
}

fn transfer(
    garbage: Tree,
    transfer: &Transfer,
    record: &mut impl FnMut(Tree, Change<'_>, &Inverse<'_>) -> Result<()>,
) -> Result<()> {
    let (Transfer::Claim(key, reference) | Transfer::Discard(key, reference)) = transfer;
    let bytes = reference.map(|reference| reference.encode());
    let value = bytes.as_ref().map_or(&[][..], |bytes| bytes);
    let entry = OldEntry { timestamp: Timestamp::NONE, flags: 0, value, at: None };
    match transfer {
        Transfer::Claim(..) => {
            let inverse = Inverse { root: garbage.root, key: key.bytes(), old: Some(entry) };
            record(garbage, Change::Remove { key: key.bytes() }, &inverse)
        }
        Transfer::Discard(..) => {
            let inverse = Inverse { root: garbage.root, key: key.bytes(), old: None };
            record(garbage, put(key, value), &inverse)
        }
    }
}
