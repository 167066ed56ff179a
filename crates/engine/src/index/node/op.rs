//! Logged changes of nodes: *physiological*, naming a page and a key, not bytes.
//!
//! Change and redo both use [`NodeOp::apply`], so recovery repeats exactly the original change.
//! Whether an operation fits depends only on the page's content (see [`super::edit`]), so redo
//! always finds room. The log stores new pages, merged pages and changed roots as images instead.
//!
//! A record may be damaged despite its checksum, or redone on the wrong page. An operation that
//! does not suit the page is [`Error::Corrupt`](crate::Error::Corrupt).

use super::edit::damaged;
use super::leaf::Put;
use super::{inner, leaf, split};
use crate::error::Result;
use crate::ids::{PageId, Timestamp};
use crate::wal::change_kind;

/// Kinds of change, as stored in the log. Kinds below 16 belong to the log itself.
pub(crate) const LEAF_PUT: u8 = change_kind::INDEX_FIRST;
pub(crate) const LEAF_REMOVE: u8 = 17;
pub(crate) const TRUNCATE: u8 = 18;
pub(crate) const INNER_INSERT: u8 = 19;
pub(crate) const INNER_REMOVE: u8 = 20;
pub(crate) const LEAF_PATCH: u8 = 21;

/// Bytes in front of a put's key: timestamp u64, value length u32, key length u16, flags u8, zero.
const PUT_HEADER: usize = 16;
/// Bytes in front of a patch's key: timestamp u64, offset u32, key length u16, zero u16.
const PATCH_HEADER: usize = 16;
/// Bytes in front of an inserted separator: the child u64.
const INSERT_HEADER: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeOp<'a> {
    /// Write a leaf record, new or not.
    LeafPut {
        key: &'a [u8],
        timestamp: Timestamp,
        /// [`OVERFLOW`](super::layout::OVERFLOW) or 0.
        flags: u8,
        value: &'a [u8],
    },
    /// Overwrite a part of an inline value, which keeps its length.
    LeafPatch {
        key: &'a [u8],
        timestamp: Timestamp,
        /// Offset in the value.
        at: usize,
        bytes: &'a [u8],
    },
    LeafRemove {
        key: &'a [u8],
    },
    /// Drop what a split copied to the right node.
    Truncate {
        separator: &'a [u8],
    },
    /// Insert a separator and its right child.
    InnerInsert {
        separator: &'a [u8],
        child: PageId,
    },
    /// Remove a separator and its right child.
    InnerRemove {
        separator: &'a [u8],
    },
}

const _: () = assert!(PUT_HEADER == PATCH_HEADER);

/// The bytes in front of the key of a put or a patch: one append is cheaper than four.
fn header(timestamp: Timestamp, length_or_offset: usize, key: &[u8], flags: u8) -> [u8; PUT_HEADER] {
    let number = u128::from(timestamp.0)
        | u128::from(length_or_offset as u32) << 64
        | u128::from(key.len() as u16) << 96
        | u128::from(flags) << 112;
    number.to_le_bytes()
}

impl<'a> NodeOp<'a> {
    pub(crate) fn kind(&self) -> u8 {
        match self {
            NodeOp::LeafPut { .. } => LEAF_PUT,
            NodeOp::LeafPatch { .. } => LEAF_PATCH,
            NodeOp::LeafRemove { .. } => LEAF_REMOVE,
            NodeOp::Truncate { .. } => TRUNCATE,
            NodeOp::InnerInsert { .. } => INNER_INSERT,
            NodeOp::InnerRemove { .. } => INNER_REMOVE,
        }
    }

    /// For the log reservation.
    pub(crate) fn encoded_bytes(&self) -> usize {
        match self {
            NodeOp::LeafPut { key, value, .. } => PUT_HEADER + key.len() + value.len(),
            NodeOp::LeafPatch { key, bytes, .. } => PATCH_HEADER + key.len() + bytes.len(),
            NodeOp::LeafRemove { key } => key.len(),
            NodeOp::InnerInsert { separator, .. } => INSERT_HEADER + separator.len(),
            NodeOp::Truncate { separator } | NodeOp::InnerRemove { separator } => separator.len(),
        }
    }

    pub(crate) fn encode(&self, to: &mut Vec<u8>) {
        match *self {
            NodeOp::LeafPut { key, timestamp, flags, value } => {
                to.extend_from_slice(&header(timestamp, value.len(), key, flags));
                to.extend_from_slice(key);
                to.extend_from_slice(value);
            }
            NodeOp::LeafPatch { key, timestamp, at, bytes } => {
                to.extend_from_slice(&header(timestamp, at, key, 0));
                to.extend_from_slice(key);
                to.extend_from_slice(bytes);
            }
            NodeOp::InnerInsert { separator, child } => {
                to.extend_from_slice(&child.0.to_le_bytes());
                to.extend_from_slice(separator);
            }
            NodeOp::LeafRemove { key: bytes }
            | NodeOp::Truncate { separator: bytes }
            | NodeOp::InnerRemove { separator: bytes } => to.extend_from_slice(bytes),
        }
    }

    /// Sets the timestamp in a payload that was encoded before it was drawn.
    pub(crate) fn stamp(&self, payload: &mut [u8], timestamp: Timestamp) {
        if let NodeOp::LeafPut { .. } | NodeOp::LeafPatch { .. } = self {
            payload[..8].copy_from_slice(&timestamp.0.to_le_bytes());
        }
    }

    pub(crate) fn decode(kind: u8, payload: &'a [u8]) -> Option<Self> {
        Some(match kind {
            LEAF_PUT => {
                let (header, rest) = payload.split_first_chunk::<PUT_HEADER>()?;
                let timestamp = Timestamp(u64::from_le_bytes(*header.first_chunk()?));
                let value_length = u32::from_le_bytes(*header[8..].first_chunk()?) as usize;
                let key_length = usize::from(u16::from_le_bytes(*header[12..].first_chunk()?));
                let (key, value) = rest.split_at_checked(key_length)?;
                if value.len() != value_length || header[15] != 0 {
                    return None;
                }
                NodeOp::LeafPut { key, timestamp, flags: header[14], value }
            }
            LEAF_PATCH => {
                let (header, rest) = payload.split_first_chunk::<PATCH_HEADER>()?;
                let timestamp = Timestamp(u64::from_le_bytes(*header.first_chunk()?));
                let at = u32::from_le_bytes(*header[8..].first_chunk()?) as usize;
                let key_length = usize::from(u16::from_le_bytes(*header[12..].first_chunk()?));
                let (key, bytes) = rest.split_at_checked(key_length)?;
                if header[14..] != [0; 2] {
                    return None;
                }
                NodeOp::LeafPatch { key, timestamp, at, bytes }
            }
            INNER_INSERT => {
                let (child, separator) = payload.split_first_chunk::<INSERT_HEADER>()?;
                NodeOp::InnerInsert { separator, child: PageId(u64::from_le_bytes(*child)) }
            }
            LEAF_REMOVE => NodeOp::LeafRemove { key: payload },
            TRUNCATE => NodeOp::Truncate { separator: payload },
            INNER_REMOVE => NodeOp::InnerRemove { separator: payload },
            _ => return None,
        })
    }

    /// Changes `page`. `false`: no room, nothing changed, split first. Removing an absent record is
    /// an error: the tree looks before it logs.
    pub(crate) fn apply(&self, page: &mut [u8]) -> Result<bool> {
        match *self {
            NodeOp::LeafPut { key, timestamp, flags, value } => {
                Ok(leaf::put(page, key, timestamp, flags, value)? != Put::DoesNotFit)
            }
            NodeOp::LeafPatch { key, timestamp, at, bytes } => {
                leaf::patch(page, key, timestamp, at, bytes).map(|()| true)
            }
            NodeOp::InnerInsert { separator, child } => inner::insert(page, separator, child),
            NodeOp::Truncate { separator } => split::truncate(page, separator).map(|()| true),
            NodeOp::LeafRemove { key } => present(leaf::remove(page, key)?, page),
            NodeOp::InnerRemove { separator } => present(inner::remove(page, separator)?, page),
        }
    }
}

fn present(was_there: bool, page: &[u8]) -> Result<bool> {
    if was_there { Ok(true) } else { Err(damaged(page, "a key to be removed is not there")) }
}

pub(crate) fn redo(kind: u8, payload: &[u8], page: &mut [u8]) -> Result<()> {
    let Some(op) = NodeOp::decode(kind, payload) else {
        return Err(damaged(page, format!("the log has a malformed change of kind {kind} for it")));
    };
    if op.apply(page)? {
        Ok(())
    } else {
        Err(damaged(page, format!("a change of kind {kind} in the log does not fit")))
    }
}
