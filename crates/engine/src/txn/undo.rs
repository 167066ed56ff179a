//! Undo information in log records, and undo in recovery.
//!
//! Undo is by key, because the page of a key may have been split, merged or freed since. A record
//! carries the root of the tree, the key, and the old entry with timestamp and flags. So undoing a
//! transaction leaves no trace. Where the change overwrote a part of a value, it carries that part.
//!
//! ```text
//!   0       8            10      11      12          16           24
//!   root    key length   kind    flags   offset u32  timestamp    key  value
//! ```

use crate::error::{Error, Result};
use crate::ids::{Lsn, PageId, Timestamp};
use crate::index::{Change, Tree, Write};
use crate::pool::Pool;
use crate::recovery::Undo;

const HEADER: usize = 24;

/// Kinds of inverses: nothing was there, an entry, a part of an entry's value.
const NOTHING: u8 = 0;
const WHOLE: u8 = 1;
const PART: u8 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OldEntry<'a> {
    pub(crate) timestamp: Timestamp,
    pub(crate) flags: u8,
    pub(crate) value: &'a [u8],
    /// Where `value` begins, if it is only a part of the old value.
    pub(crate) at: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Inverse<'a> {
    pub(crate) root: PageId,
    pub(crate) key: &'a [u8],
    /// The entry to restore; `None` removes the key.
    pub(crate) old: Option<OldEntry<'a>>,
}

impl<'a> Inverse<'a> {
    pub(crate) fn encoded_bytes(&self) -> usize {
        HEADER + self.key.len() + self.old.map_or(0, |old| old.value.len())
    }

    /// Replaces the content of `to`.
    pub(crate) fn encode(&self, to: &mut Vec<u8>) {
        to.clear();
        to.extend_from_slice(&self.root.0.to_le_bytes());
        to.extend_from_slice(&(self.key.len() as u16).to_le_bytes());
        let (kind, at) = match self.old {
            None => (NOTHING, 0),
            Some(OldEntry { at: None, .. }) => (WHOLE, 0),
            Some(OldEntry { at: Some(at), .. }) => (PART, at),
        };
        to.extend_from_slice(&[kind, self.old.map_or(0, |old| old.flags)]);
        to.extend_from_slice(&at.to_le_bytes());
        to.extend_from_slice(&self.old.map_or(0, |old| old.timestamp.0).to_le_bytes());
        to.extend_from_slice(self.key);
        to.extend_from_slice(self.old.map_or(&[], |old| old.value));
    }

    pub(crate) fn decode(bytes: &'a [u8]) -> Option<Self> {
        let (header, rest) = bytes.split_first_chunk::<HEADER>()?;
        let root = PageId(u64::from_le_bytes(*header.first_chunk()?));
        let key_length = usize::from(u16::from_le_bytes([header[8], header[9]]));
        let timestamp = Timestamp(u64::from_le_bytes(*header[16..].first_chunk()?));
        let (key, value) = rest.split_at_checked(key_length)?;
        let at = u32::from_le_bytes(*header[12..].first_chunk()?);
        let flags = header[11];
        let old = match header[10] {
            NOTHING if value.is_empty() => None,
            WHOLE => Some(OldEntry { timestamp, flags, value, at: None }),
            PART if flags == 0 => Some(OldEntry { timestamp, flags, value, at: Some(at) }),
            _ => return None,
        };
        (!root.is_none()).then_some(Inverse { root, key, old })
    }

    pub(crate) fn change(&self) -> Change<'a> {
        match self.old {
            Some(OldEntry { timestamp, flags, value, at: None }) => {
                Change::Put { key: self.key, timestamp, flags, value }
            }
            Some(OldEntry { timestamp, value, at: Some(at), .. }) => {
                Change::Patch { key: self.key, timestamp, at: at as usize, bytes: value }
            }
            None => Change::Remove { key: self.key },
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyUndo;

impl Undo for KeyUndo {
    fn undo(&self, pool: &Pool, loser: Timestamp, previous: Lsn, undo_next: Lsn, undo: &[u8]) -> Result<Lsn> {
        let inverse = Inverse::decode(undo)
            .ok_or_else(|| Error::corrupt("the log", None, format!("commit {loser} cannot be undone")))?;
        let mut write =
            Write { transaction: loser, previous, compensation: Some(undo_next), ..Write::default() };
        let appended = Tree { root: inverse.root }.apply(pool, &mut write, inverse.change())?;
        Ok(appended.lsn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inverse_survives_the_log() {
        let old = OldEntry { timestamp: Timestamp(7), flags: 1, value: b"0123456789abcdef", at: None };
        for inverse in [
            Inverse { root: PageId(3), key: b"key", old: Some(old) },
            Inverse { root: PageId(4), key: b"", old: None },
            Inverse { root: PageId(4), key: b"k", old: Some(OldEntry { value: b"", flags: 0, ..old }) },
            Inverse { root: PageId(4), key: b"k", old: Some(OldEntry { at: Some(9), flags: 0, ..old }) },
        ] {
            let mut bytes = Vec::new();
            inverse.encode(&mut bytes);
            assert_eq!(bytes.len(), inverse.encoded_bytes());
            assert_eq!(Inverse::decode(&bytes), Some(inverse));
            assert!((0..HEADER).all(|length| Inverse::decode(&bytes[..length]).is_none()));
        }
    }
}
