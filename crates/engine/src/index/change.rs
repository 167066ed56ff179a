//! A change of a tree, the log record that describes it, and its redo.

use super::node::op::{self, NodeOp};
use super::node::split;
use crate::error::Result;
use crate::ids::{Lsn, PageId, Timestamp};
use crate::pool::{Grant, NewPage};
use crate::recovery::Redo;
use crate::store::page;
use crate::wal::{ALLOCATES, Kind, RecordBuilder, Reservation, change_kind};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change<'a> {
    /// Write a record, new or not.
    Put {
        key: &'a [u8],
        timestamp: Timestamp,
        /// [`OVERFLOW`](super::node::OVERFLOW) or 0.
        flags: u8,
        /// The value, or the encoded [`Reference`](super::node::overflow::Reference) to it.
        value: &'a [u8],
    },
    /// Overwrite a part of an inline value, which keeps its length.
    Patch {
        key: &'a [u8],
        timestamp: Timestamp,
        /// Offset in the value.
        at: usize,
        bytes: &'a [u8],
    },
    /// Remove a record. The log records the removal of an absent key too, without a leaf change.
    Remove {
        /// The key, present or not.
        key: &'a [u8],
    },
}

/// A change's transaction, and what else its log record contains.
#[derive(Default)]
pub(crate) struct Write<'w, 'p> {
    /// The transaction; none for the system.
    pub(crate) transaction: Timestamp,
    pub(crate) previous: Lsn,
    /// Undo data for recovery; empty for a change that is never undone.
    pub(crate) undo: &'w [u8],
    pub(crate) commit: bool,
    /// For a compensation record: what to undo next.
    pub(crate) compensation: Option<Lsn>,
    /// Log space for the record; see [`log_bytes`]. If absent or too small, the change waits for
    /// space.
    pub(crate) reservation: Option<&'w mut Reservation<'p>>,
    /// Frames and page ids for splits.
    pub(crate) grant: Option<&'w mut Grant<'p>>,
    /// Pages that the record creates, with their content, page id included.
    pub(crate) create: Vec<(NewPage<'p>, Vec<u8>)>,
    pub(crate) free: Vec<PageId>,
    /// Set if [`tidy`](super::tidy) may find work; without it, the change tidies at once.
    pub(crate) underfull: Option<&'w mut bool>,
}

impl<'a> Change<'a> {
    pub(crate) fn key(&self) -> &'a [u8] {
        match *self {
            Change::Put { key, .. } | Change::Patch { key, .. } | Change::Remove { key } => key,
        }
    }

    pub(super) fn op(&self) -> NodeOp<'a> {
        match *self {
            Change::Put { key, timestamp, flags, value } => NodeOp::LeafPut { key, timestamp, flags, value },
            Change::Patch { key, timestamp, at, bytes } => NodeOp::LeafPatch { key, timestamp, at, bytes },
            Change::Remove { key } => NodeOp::LeafRemove { key },
        }
    }
}

/// Log bytes of a change's record, without the pages it creates or frees.
pub(crate) fn log_bytes(change: &Change<'_>, undo_bytes: usize) -> u64 {
    // Record header, lengths of undo and changes, one change's header, and padding.
    const FIXED: usize = crate::wal::HEADER_BYTES + 16 + 16 + 24;
    (FIXED + undo_bytes + change.op().encoded_bytes()) as u64
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeRedo;

impl Redo for NodeRedo {
    fn redo(&self, kind: u8, payload: &[u8], page: &mut [u8]) -> Result<()> {
        op::redo(kind, payload, page)
    }
}

impl Write<'_, '_> {
    pub(super) fn describe(&self, record: &mut RecordBuilder, leaf: PageId, op: Option<&NodeOp<'_>>) {
        record.restart(Kind::Pages, self.transaction, self.previous);
        if !self.undo.is_empty() {
            record.undo(self.undo);
        }
        if self.commit {
            record.set_commit();
        }
        if let Some(undo_next) = self.compensation {
            record.compensation(undo_next);
        }
        if let Some(op) = op {
            describe_op(record, leaf, op);
        }
        for (new, content) in &self.create {
            describe_image(record, new.id(), ALLOCATES, content);
        }
        for &id in &self.free {
            record.change(id, change_kind::FREE, 0, &[]);
        }
    }
}

pub(super) fn describe_op(record: &mut RecordBuilder, page: PageId, op: &NodeOp<'_>) {
    record.change_with(page, op.kind(), 0, |out| op.encode(out));
}

pub(super) fn describe_image(record: &mut RecordBuilder, page: PageId, flags: u8, content: &[u8]) {
    record.change_with(page, change_kind::IMAGE, flags, |out| {
        page::compact(content, split::gap(content), out);
    });
}
