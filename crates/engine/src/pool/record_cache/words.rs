//! The memory of the record cache: pool frames joined by a map.
//!
//! An *address* counts eight-byte words through all segments, as if they were contiguous. The map
//! gives the frame of each page-sized piece, those of the index first. Readers take no lock, so
//! they must validate the sequence (`records.rs`).

use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use terrace_io::Region;

use crate::pool::frames::Frames;
use crate::pool::view::{Racy, View};

/// The map; an entry is a frame number plus one, or zero.
#[derive(Debug)]
pub(super) struct Map {
    region: Region,
    entries: u32,
}

impl Map {
    /// A map for `entries` frames. Its memory is allocated on use.
    pub(super) fn new(entries: u32) -> io::Result<Map> {
        Ok(Map { region: Region::reserve_writable(entries as usize * 8)?, entries })
    }

    /// The frame of entry `index`.
    ///
    /// Acquire pairs with `set`: the zeros of a new index frame are visible.
    pub(super) fn get(&self, index: u32) -> Option<u32> {
        let frame = self.word(index)?.load(Acquire);
        (frame as u32).checked_sub(1)
    }

    /// Requires the lock of the cache.
    pub(super) fn set(&self, index: u32, frame: Option<u32>) {
        let word = self.word(index).expect("the map was made for as many");
        word.store(frame.map_or(0, |frame| u64::from(frame) + 1), Release);
    }

    fn word(&self, index: u32) -> Option<&AtomicU64> {
        let at = index as usize * 8;
        (index < self.entries).then(|| &self.region.words(at..at + 8)[0])
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Words<'a> {
    pub(super) frames: &'a Frames,
    pub(super) map: &'a Map,
    /// The map entry of address 0.
    pub(super) first: u32,
    pub(super) page_bytes: usize,
}

impl<'a> Words<'a> {
    /// The pieces of `bytes` bytes from `address` on: content, offset and length.
    fn pieces(self, address: u64, bytes: usize) -> impl Iterator<Item = Option<(Racy<'a>, usize, usize)>> {
        let (mut at, mut left) = (address * 8, bytes);
        std::iter::from_fn(move || {
            if left == 0 {
                return None;
            }
            let inside = (at % self.page_bytes as u64) as usize;
            let length = left.min(self.page_bytes - inside);
            let index = u32::try_from(at / self.page_bytes as u64).ok();
            let frame = index.and_then(|index| self.map.get(self.first.checked_add(index)?));
            (at, left) = (at + length as u64, left - length);
            Some(frame.map(|frame| (Racy::new(self.frames.own_words(frame)), inside, length)))
        })
    }

    pub(super) fn slot(self, address: u64) -> Option<&'a AtomicU64> {
        let page_words = self.page_bytes as u64 / 8;
        let index = u32::try_from(address / page_words).ok()?;
        let frame = self.map.get(self.first.checked_add(index)?)?;
        self.frames.own_words(frame).get((address % page_words) as usize)
    }

    /// The word at `address`; zero if it has no frame.
    pub(super) fn word(self, address: u64) -> u64 {
        self.slot(address).map_or(0, |word| u64::from_le(word.load(Relaxed)))
    }

    /// Copies bytes from `address` on; returns whether all exist.
    pub(super) fn copy_to(self, address: u64, to: &mut [u8]) -> bool {
        let mut rest = to;
        for piece in self.pieces(address, rest.len()) {
            let Some((view, at, length)) = piece else { return false };
            let (now, later) = rest.split_at_mut(length);
            view.copy_to(at, now);
            rest = later;
        }
        true
    }

    pub(super) fn are(self, address: u64, bytes: &[u8]) -> bool {
        let mut rest = bytes;
        for piece in self.pieces(address, rest.len()) {
            let Some((view, at, length)) = piece else { return false };
            let (now, later) = rest.split_at(length);
            if view.compare(at, length, now).is_ne() {
                return false;
            }
            rest = later;
        }
        true
    }

    /// Writes `bytes` at `address`, padded with zeros to whole words.
    ///
    /// Requires the lock of the cache; readers validate the sequence.
    pub(super) fn set(self, address: u64, bytes: &[u8]) {
        let mut rest = bytes;
        for piece in self.pieces(address, bytes.len()) {
            let (view, at, length) = piece.expect("what is written has its frames");
            let (now, later) = rest.split_at(length);
            view.set_bytes(at / 8, now);
            rest = later;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Backend;
    use crate::ids::SizeClass;

    #[test]
    fn bytes_lie_across_frames_as_if_they_were_one() {
        let frames = Frames::reserve(1 << 20, &[0; _], Backend::default(), 1 << 10).unwrap();
        frames.grow_backed(SizeClass::SMALLEST, 8).unwrap();
        frames.populate_own(&[6, 1, 3]).unwrap();
        let map = Map::new(8).unwrap();
        for (index, frame) in [6, 1, 3].into_iter().enumerate() {
            map.set(2 + index as u32, Some(frame));
        }
        let words = Words { frames: &frames, map: &map, first: 2, page_bytes: 4096 };
        let bytes: Vec<u8> = (0..5001u32).map(|byte| (byte % 251) as u8).collect();
        words.set(500, &bytes);
        let mut read = vec![0; bytes.len()];
        assert!(words.copy_to(500, &mut read) && read == bytes);
        assert!(words.are(500, &bytes) && !words.are(501, &bytes));
        assert_eq!(Racy::new(frames.own_words(6)).u8(4000), bytes[0]);
        assert_eq!(Racy::new(frames.own_words(1)).u8(0), bytes[96]);
        assert_eq!(words.word(500), u64::from_le_bytes(bytes[..8].try_into().unwrap()));
        assert!(!words.copy_to(1500, &mut read), "there is no fourth frame");
        assert_eq!((words.word(1536), words.word(u64::MAX)), (0, 0));
    }
}
