//! The changes of nodes as the log has them: *physiological*, naming a page and a key, not bytes.
//!
//! The tree makes an operation, encodes it into a log record and applies it; redo decodes it and applies it. Both
//! go through [`NodeOp::apply`], so that what recovery does to a page is what was done. Whether an operation fits
//! depends on the content of the page alone (see [`super::edit`]), so redo finds room wherever there was room.
//!
//! New pages, merged pages and changed roots are logged as images, which are not operations of nodes.
//!
//! A record may be damaged in a way its checksum does not show, or be redone on the wrong page; everything that
//! does not suit the page is [`Error::Corrupt`](crate::Error::Corrupt).

use super::edit::damaged;
use super::leaf::Put;
use super::{inner, leaf, split};
use crate::error::Result;
use crate::ids::{PageId, Timestamp};
use crate::wal::change_kind;

/// Kinds of change, as stored in the log. Those below 16 belong to the log itself.
pub(crate) const LEAF_PUT: u8 = change_kind::INDEX_FIRST;
pub(crate) const LEAF_REMOVE: u8 = 17;
pub(crate) const TRUNCATE: u8 = 18;
pub(crate) const INNER_INSERT: u8 = 19;
pub(crate) const INNER_REMOVE: u8 = 20;

/// Bytes of an encoded put in front of the key: timestamp u64, value length u32, key length u16, flags u8, zero.
const PUT_HEADER: usize = 16;
/// Bytes of an encoded separator insertion in front of the separator: the child u64.
const INSERT_HEADER: usize = 8;

/// One change of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeOp<'a> {
    /// Write a record of a leaf, new or not.
    LeafPut {
        /// Its key.
        key: &'a [u8],
        /// The commit that writes it.
        timestamp: Timestamp,
        /// [`OVERFLOW`](super::node::OVERFLOW) or nothing.
        flags: u8,
        /// The value, or the reference to it.
        value: &'a [u8],
    },
    /// Remove a record of a leaf.
    LeafRemove {
        /// Its key.
        key: &'a [u8],
    },
    /// Drop what a split has copied to the right node.
    Truncate {
        /// The new upper fence.
        separator: &'a [u8],
    },
    /// Insert a separator and the child to its right.
    InnerInsert {
        /// The separator.
        separator: &'a [u8],
        /// The child.
        child: PageId,
    },
    /// Remove a separator and the child to its right.
    InnerRemove {
        /// The separator.
        separator: &'a [u8],
    },
}

impl<'a> NodeOp<'a> {
    /// The kind of change, as stored in the log.
    pub(crate) fn kind(&self) -> u8 {
        match self {
            NodeOp::LeafPut { .. } => LEAF_PUT,
            NodeOp::LeafRemove { .. } => LEAF_REMOVE,
            NodeOp::Truncate { .. } => TRUNCATE,
            NodeOp::InnerInsert { .. } => INNER_INSERT,
            NodeOp::InnerRemove { .. } => INNER_REMOVE,
        }
    }

    /// Bytes of the payload, known before it is encoded, to reserve log space.
    pub(crate) fn encoded_bytes(&self) -> usize {
        match self {
            NodeOp::LeafPut { key, value, .. } => PUT_HEADER + key.len() + value.len(),
            NodeOp::LeafRemove { key } => key.len(),
            NodeOp::InnerInsert { separator, .. } => INSERT_HEADER + separator.len(),
            NodeOp::Truncate { separator } | NodeOp::InnerRemove { separator } => separator.len(),
        }
    }

    /// Appends the payload to `to`.
    pub(crate) fn encode(&self, to: &mut Vec<u8>) {
        match *self {
            NodeOp::LeafPut { key, timestamp, flags, value } => {
                to.extend_from_slice(&timestamp.0.to_le_bytes());
                to.extend_from_slice(&(value.len() as u32).to_le_bytes());
                to.extend_from_slice(&(key.len() as u16).to_le_bytes());
                to.extend_from_slice(&[flags, 0]);
                to.extend_from_slice(key);
                to.extend_from_slice(value);
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

    /// Puts the commit into an encoded operation that was made before there was one.
    pub(crate) fn stamp(&self, payload: &mut [u8], timestamp: Timestamp) {
        if let NodeOp::LeafPut { .. } = self {
            payload[..8].copy_from_slice(&timestamp.0.to_le_bytes());
        }
    }

    /// The same operation of that commit.
    pub(crate) fn of(self, timestamp: Timestamp) -> Self {
        match self {
            NodeOp::LeafPut { key, flags, value, .. } => NodeOp::LeafPut { key, timestamp, flags, value },
            other => other,
        }
    }

    /// The operation a payload stands for; `None` if it is none.
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

    /// Changes `page`. `false`: there is no room, nothing has changed, and the node must be split first. Removing
    /// what is not there is an error: the tree looks before it logs.
    pub(crate) fn apply(&self, page: &mut [u8]) -> Result<bool> {
        match *self {
            NodeOp::LeafPut { key, timestamp, flags, value } => {
                Ok(leaf::put(page, key, timestamp, flags, value)? != Put::DoesNotFit)
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

/// Applies a change from the log to the page it was made to.
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
