//! The words of a leaf that a change of one entry overwrites, if the entry keeps its size.

use super::node::op::NodeOp;
use super::node::{Body, Entry, LEAF, Node, SLOT, align8, entry_header, slots_at};
use crate::pool::PartialGuard;
use crate::pool::view::{Piece, View};

/// Bytes of an entry's timestamp, its first word.
const TIMESTAMP: usize = 8;

/// Words of an entry that a change overwrites. Positions in the page are multiples of eight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InPlace {
    /// The whole entry, of which the words are made.
    Entry {
        at: usize,
        bytes: usize,
        /// Where the entry's suffix begins in the key.
        suffix_at: usize,
    },
    /// The timestamp, and the words around a part of the value, which are copied and changed.
    Part {
        entry_at: usize,
        words_at: usize,
        /// Where the part begins in these words.
        from: usize,
    },
}

impl InPlace {
    /// Where a value of `length` bytes can overwrite the entry at `index`, if possible.
    #[inline(always)]
    pub(super) fn entry<V: View>(
        node: &Node<V>,
        index: usize,
        old: &Entry,
        key: &[u8],
        length: usize,
    ) -> Option<InPlace> {
        let (at, suffix_at) = (node.slot(index).at(), node.prefix());
        // A changing or damaged page may say anything; the general path reports damage.
        let suffix_length = key.len().checked_sub(suffix_at)?;
        let bytes = |value_length| align8(entry_header(LEAF) + suffix_length + value_length);
        let (now, before) = (bytes(length), bytes(old.value_length));
        let heap = node.heap_start().max(slots_at(LEAF) + node.count() * SLOT);
        let inside = at >= heap && at + now <= node.page_bytes();
        (now == before && inside).then_some(InPlace::Entry { at, bytes: now, suffix_at })
    }

    /// Where `bytes` bytes can overwrite the value of `old`, the entry at `index`, from offset `at`
    /// on, if possible. Copies the words there to `words`.
    pub(super) fn part<V: View>(
        node: &Node<V>,
        index: usize,
        old: &Entry,
        key: &[u8],
        (at, bytes): (usize, usize),
        words: &mut Vec<u8>,
    ) -> Option<InPlace> {
        let InPlace::Entry { at: entry_at, suffix_at, .. } =
            InPlace::entry(node, index, old, key, old.value_length)?
        else {
            return None;
        };
        let value_at = entry_at + entry_header(LEAF) + key.len() - suffix_at;
        let is_inside = at.checked_add(bytes).is_some_and(|end| end <= old.value_length);
        if value_at != old.value_at || !is_inside {
            return None;
        }
        let (start, end) = (value_at + at, value_at + at + bytes);
        let words_at = start & !7;
        words.resize(align8(end) - words_at, 0);
        node.copy_to(words_at, words);
        Some(InPlace::Part { entry_at, words_at, from: start - words_at })
    }

    /// Loads the words of a partial leaf, of which looks may have skipped some. Those around a part
    /// were copied.
    pub(super) fn load(&self, leaf: &PartialGuard<'_>) {
        if let InPlace::Entry { at, bytes, .. } = *self {
            leaf.load_for_change(at, bytes);
        }
    }

    /// Makes the new `words`, as `op` changes the value `old` or the words around a part.
    pub(super) fn write(&self, op: &NodeOp<'_>, old: &[u8], words: &mut Vec<u8>) {
        match (*self, *op) {
            (InPlace::Part { from, .. }, NodeOp::LeafPatch { bytes, .. }) => {
                words[from..from + bytes.len()].copy_from_slice(bytes);
            }
            (InPlace::Entry { bytes, suffix_at, .. }, NodeOp::LeafPut { key, timestamp, flags, value }) => {
                words.resize(bytes, 0);
                Body::Leaf { timestamp, flags, value }.write(&key[suffix_at..], words);
            }
            (
                InPlace::Entry { bytes, suffix_at, .. },
                NodeOp::LeafPatch { key, timestamp, at, bytes: part },
            ) => {
                words.resize(bytes, 0);
                let suffix = &key[suffix_at..];
                Body::Leaf { timestamp, flags: 0, value: old }.write(suffix, words);
                let at = entry_header(LEAF) + suffix.len() + at;
                words[at..at + part.len()].copy_from_slice(part);
            }
            (_, other) => unreachable!("{other:?} leaves no value where it was"),
        }
    }

    /// What the page gets, in its order.
    pub(super) fn pieces<'a>(&self, timestamp: &'a [u8; TIMESTAMP], words: &'a [u8]) -> [Piece<'a>; 2] {
        match *self {
            InPlace::Entry { at, .. } => {
                let (first, rest) = words.split_at(TIMESTAMP);
                [Piece { at, bytes: first }, Piece { at: at + TIMESTAMP, bytes: rest }]
            }
            InPlace::Part { entry_at, words_at, .. } => {
                [Piece { at: entry_at, bytes: timestamp }, Piece { at: words_at, bytes: words }]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::node::leaf;
    use super::*;
    use crate::ids::{PageId, Timestamp};

    /// A frame reused between descent and read may show this.
    #[test]
    fn a_key_shorter_than_the_prefix_is_not_in_place() {
        let mut page = vec![0; 4096];
        let prefix = [b'p'; 40];
        leaf::init(&mut page, PageId(9), &prefix, Some(&[&prefix[..], b"x"].concat()));
        leaf::put(&mut page, &prefix, Timestamp(1), 0, b"value").unwrap();
        let node = Node::new(&page[..]);
        let (index, found) = node.lower_bound(b"k");
        assert!(found, "the entry without a suffix passes for the key's");
        let entry = node.entry(index);
        let part = |key| InPlace::part(&node, index, &entry, key, (1, 2), &mut Vec::new());
        assert!(InPlace::entry(&node, index, &entry, b"k", 5).is_none() && part(b"k").is_none());
        assert!(InPlace::entry(&node, index, &entry, &prefix, 5).is_some() && part(&prefix).is_some());
    }

    /// Of values at each offset in a word, and parts of each length at each offset.
    #[test]
    fn a_part_in_place_changes_the_page_as_its_redo_does() {
        for key in [&b"k"[..], b"ke", b"key1234", b"a longer key"] {
            let mut page = vec![0; 4096];
            leaf::init(&mut page, PageId(9), &[], None);
            let value: Vec<u8> = (1..=30).collect();
            leaf::put(&mut page, b"a", Timestamp(1), 0, b"before").unwrap();
            leaf::put(&mut page, key, Timestamp(2), 0, &value).unwrap();
            leaf::put(&mut page, b"z", Timestamp(3), 0, b"behind").unwrap();
            let node = Node::new(&page[..]);
            let (index, found) = node.lower_bound(key);
            assert!(found);
            let entry = node.entry(index);
            let mut words = Vec::new();
            for (at, end) in (0..=30).flat_map(|at| (at..=30).map(move |end| (at, end))) {
                let bytes = vec![99; end - at];
                let op = NodeOp::LeafPatch { key, timestamp: Timestamp(7), at, bytes: &bytes };
                let slot = InPlace::part(&node, index, &entry, key, (at, end - at), &mut words).unwrap();
                let InPlace::Part { from, .. } = slot else { unreachable!("it is a part") };
                assert_eq!(words[from..from + bytes.len()], value[at..end], "the bytes before");
                slot.write(&op, &[], &mut words);
                let mut changed = page.clone();
                for Piece { at, bytes } in slot.pieces(&7u64.to_le_bytes(), &words) {
                    assert!(at.is_multiple_of(8) && bytes.len().is_multiple_of(8));
                    changed[at..at + bytes.len()].copy_from_slice(bytes);
                }
                let mut redone = page.clone();
                assert!(op.apply(&mut redone).unwrap());
                assert!(changed == redone, "bytes {at} to {end} of {key:?}");
            }
            for outside in [(31, 0), (30, 1), (0, 31), (usize::MAX, 2)] {
                assert!(InPlace::part(&node, index, &entry, key, outside, &mut words).is_none());
            }
        }
    }
}
