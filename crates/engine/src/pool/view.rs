//! Access to the bytes of a page, latched or not.
//!
//! An optimistic reader reads a frame while a writer may change it. Rust's memory model defines
//! that only for atomic accesses. So frames are arrays of `AtomicU64`; readers load and writers
//! store relaxed words. A result counts only after validation of the page's version. Until then
//! every number may be garbage. So accesses are clamped (out of range reads as zeros), and no
//! caller loops or allocates by an unvalidated number without its own limit.
//!
//! Node code is generic over [`View`]: [`Racy`] for a frame, `&[u8]` for a private copy.

use std::cmp::Ordering;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use terrace_io::{append_words, copy_words};

/// New bytes of whole words of a page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece<'a> {
    /// In the page, a multiple of eight.
    pub(crate) at: usize,
    pub(crate) bytes: &'a [u8],
}

/// Bytes of one page, little-endian; reads outside give zeros.
pub(crate) trait View: Copy {
    fn len(&self) -> usize;

    /// The eight bytes at `at`, aligned or not.
    fn u64(&self, at: usize) -> u64;

    fn copy_to(&self, at: usize, to: &mut [u8]);

    /// Compares `length` bytes at `at` with `other`, as byte strings.
    fn compare(&self, at: usize, length: usize, other: &[u8]) -> Ordering;

    /// Counts the words below `bound` among `count` ascending ones at `at`. `at` is a multiple of
    /// eight. Words that do not ascend, or are outside, give some number up to `count`.
    fn count_below(&self, at: usize, count: usize, bound: u64) -> usize;

    #[inline]
    fn u8(&self, at: usize) -> u8 {
        self.u64(at) as u8
    }

    #[inline]
    fn u16(&self, at: usize) -> u16 {
        self.u64(at) as u16
    }

    #[inline]
    fn u32(&self, at: usize) -> u32 {
        self.u64(at) as u32
    }

    /// Appends `length` bytes at `at` to `to`, at most the page's length.
    #[inline]
    fn append_to(&self, at: usize, length: usize, to: &mut Vec<u8>) {
        let length = length.min(self.len());
        let start = to.len();
        to.resize(start + length, 0);
        self.copy_to(at, &mut to[start..]);
    }
}

/// Most words searched side by side; more are halved first.
const SIDE_BY_SIDE: usize = 128;
/// Words of a cache line.
const LINE: usize = 8;

/// Counts the ascending words `word(0..count)` that are below `bound`.
///
/// In a binary search each load waits for the last, and each branch is unpredictable. Here the last
/// words of all lines are loaded at once. They give the line, whose words are then counted.
#[inline(always)]
pub(super) fn count_below(mut count: usize, bound: u64, word: impl Fn(usize) -> u64) -> usize {
    let mut low = 0;
    while count > SIDE_BY_SIDE {
        let half = count / 2;
        low += if word(low + half) < bound { half } else { 0 };
        count -= half;
    }
    let lines = (0..count / LINE).filter(|line| word(low + line * LINE + LINE - 1) < bound).count();
    low += lines * LINE;
    low + (0..(count - lines * LINE).min(LINE)).filter(|rank| word(low + rank) < bound).count()
}

impl View for &[u8] {
    #[inline]
    fn len(&self) -> usize {
        <[u8]>::len(self)
    }

    #[inline]
    fn u64(&self, at: usize) -> u64 {
        match self.get(at..at + 8) {
            Some(bytes) => u64::from_le_bytes(bytes.try_into().expect("eight bytes")),
            None => {
                let mut bytes = [0; 8];
                self.copy_to(at, &mut bytes);
                u64::from_le_bytes(bytes)
            }
        }
    }

    #[inline]
    fn copy_to(&self, at: usize, to: &mut [u8]) {
        let source = self.get(at..).unwrap_or_default();
        let length = source.len().min(to.len());
        to[..length].copy_from_slice(&source[..length]);
        to[length..].fill(0);
    }

    #[inline]
    fn count_below(&self, at: usize, count: usize, bound: u64) -> usize {
        count_below(count, bound, |index| self.u64(at + index * 8))
    }

    #[inline]
    fn compare(&self, at: usize, length: usize, other: &[u8]) -> Ordering {
        let end = at.saturating_add(length).min(<[u8]>::len(self));
        self.get(at..end).unwrap_or_default().cmp(other)
    }
}

/// The bytes of a frame that may change: relaxed loads, validated afterwards.
#[derive(Clone, Copy)]
pub(crate) struct Racy<'a> {
    words: &'a [AtomicU64],
}

impl<'a> Racy<'a> {
    /// A view of the words of one frame.
    #[inline]
    pub(crate) fn new(words: &'a [AtomicU64]) -> Self {
        Self { words }
    }

    #[inline]
    fn word(&self, index: usize) -> u64 {
        self.words.get(index).map_or(0, |word| u64::from_le(word.load(Relaxed)))
    }

    /// Stores a word. The caller is the only writer; others may read.
    #[inline]
    pub(crate) fn set_word(&self, index: usize, word: u64) {
        self.words[index].store(word.to_le(), Relaxed);
    }

    /// Stores `bytes` from word `index` on, zero-padded to whole words, as [`Racy::set_word`].
    #[inline]
    pub(crate) fn set_bytes(&self, index: usize, bytes: &[u8]) {
        let words = &self.words[index..index + bytes.len().div_ceil(8)];
        let (whole, rest) = bytes.as_chunks::<8>();
        for (word, bytes) in words.iter().zip(whole) {
            word.store(u64::from_ne_bytes(*bytes), Relaxed);
        }
        if !rest.is_empty() {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            words[whole.len()].store(u64::from_ne_bytes(last), Relaxed);
        }
    }
}

impl View for Racy<'_> {
    #[inline]
    fn len(&self) -> usize {
        self.words.len() * 8
    }

    #[inline]
    fn u64(&self, at: usize) -> u64 {
        let (index, shift) = (at / 8, (at % 8) * 8);
        if shift == 0 {
            return self.word(index);
        }
        (self.word(index) >> shift) | (self.word(index + 1) << (64 - shift))
    }

    fn copy_to(&self, at: usize, to: &mut [u8]) {
        let mut at = at;
        let mut to = to;
        // Reach a word boundary first, then copy whole words.
        let head = ((8 - at % 8) % 8).min(to.len());
        if head > 0 {
            let bytes = self.u64(at).to_le_bytes();
            to[..head].copy_from_slice(&bytes[..head]);
            to = &mut to[head..];
            at += head;
        }
        let source = self.words.get(at / 8..).unwrap_or_default();
        let whole = (to.len() / 8).min(source.len());
        let (inside, rest) = to.split_at_mut(whole * 8);
        copy_words(&source[..whole], inside);
        for (slot, index) in rest.chunks_mut(8).zip(at / 8 + whole..) {
            slot.copy_from_slice(&self.word(index).to_le_bytes()[..slot.len()]);
        }
    }

    fn append_to(&self, at: usize, length: usize, to: &mut Vec<u8>) {
        let length = length.min(self.len());
        // Once: else the head alone makes an empty buffer grow, and then grow again.
        to.reserve(length);
        // The steps of `copy_to`.
        let head = ((8 - at % 8) % 8).min(length);
        if head > 0 {
            to.extend_from_slice(&self.u64(at).to_le_bytes()[..head]);
        }
        let (first, mut left) = ((at + head) / 8, length - head);
        let source = self.words.get(first..).unwrap_or_default();
        let whole = (left / 8).min(source.len());
        append_words(&source[..whole], to);
        left -= whole * 8;
        for index in first + whole..first + whole + left.div_ceil(8) {
            let bytes = self.word(index).to_le_bytes();
            to.extend_from_slice(&bytes[..left.min(8)]);
            left -= left.min(8);
        }
    }

    #[inline]
    fn count_below(&self, at: usize, count: usize, bound: u64) -> usize {
        let words = self.words.get(at / 8..at / 8 + count).unwrap_or_default();
        count_below(words.len(), bound, |index| u64::from_le(words[index].load(Relaxed)))
    }

    #[inline]
    fn compare(&self, at: usize, length: usize, other: &[u8]) -> Ordering {
        let length = length.min(self.len().saturating_sub(at));
        let common = length.min(other.len());
        let ours = |at: usize| self.u64(at).swap_bytes();
        // Big-endian words compare as their bytes do.
        for (word, theirs) in other[..common].as_chunks::<8>().0.iter().enumerate() {
            match ours(at + word * 8).cmp(&u64::from_be_bytes(*theirs)) {
                Ordering::Equal => {}
                unequal => return unequal,
            }
        }
        let rest = common % 8;
        if rest > 0 {
            let done = common - rest;
            let mask = u64::MAX << (64 - rest * 8);
            match (ours(at + done) & mask).cmp(&few_bytes(&other[done..common])) {
                Ordering::Equal => {}
                unequal => return unequal,
            }
        }
        length.cmp(&other.len())
    }
}

/// One to seven bytes as a big-endian word, padded with zeros. Uses two loads that may overlap: a
/// copy into a word would be read before it is written.
#[inline]
fn few_bytes(bytes: &[u8]) -> u64 {
    let shift = 64 - bytes.len() * 8;
    if let (Some(first), Some(last)) = (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        u64::from(u32::from_be_bytes(*first)) << 32 | u64::from(u32::from_be_bytes(*last)) << shift
    } else if let (Some(first), Some(last)) = (bytes.first_chunk::<2>(), bytes.last_chunk::<2>()) {
        u64::from(u16::from_be_bytes(*first)) << 48 | u64::from(u16::from_be_bytes(*last)) << shift
    } else {
        bytes.first().map_or(0, |byte| u64::from(*byte) << 56)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(bytes: &[u8]) -> Vec<AtomicU64> {
        bytes
            .chunks(8)
            .map(|chunk| {
                let mut word = [0; 8];
                word[..chunk.len()].copy_from_slice(chunk);
                AtomicU64::new(u64::from_ne_bytes(word))
            })
            .collect()
    }

    #[test]
    fn racy_and_plain_views_agree_at_every_offset_and_length() {
        let bytes: Vec<u8> = (0..256u32).map(|byte| (byte * 7 + 3) as u8).collect();
        let words = words(&bytes);
        let (racy, plain) = (Racy::new(&words), bytes.as_slice());
        for at in 0..270 {
            assert_eq!(racy.u64(at), View::u64(&plain, at), "offset {at}");
            for length in [0, 1, 7, 8, 9, 63, 64, 65, 130, 300] {
                let (mut ours, mut theirs) = (vec![1; length], vec![2; length]);
                racy.copy_to(at, &mut ours);
                plain.copy_to(at, &mut theirs);
                assert_eq!(ours, theirs, "offset {at}, length {length}");
                let mut appended = vec![3];
                racy.append_to(at, length, &mut appended);
                assert_eq!(appended[1..], theirs[..length.min(256)], "offset {at}, length {length}");
                let other = &bytes[at.min(200)..(at + 20).min(220).max(at.min(200))];
                assert_eq!(racy.compare(at, length, other), plain.compare(at, length, other));
            }
        }
    }

    #[test]
    fn counting_words_below_a_bound_agrees_with_looking_at_each() {
        for count in (0..300).chain([511, 512, 513, 8000]) {
            let bytes: Vec<u8> = (0..count as u64).flat_map(|word| (word / 3 * 10).to_le_bytes()).collect();
            let words = words(&bytes);
            for bound in (0..count as u64 / 3 * 10 + 20).step_by(5 + count / 7) {
                let expected = (0..count as u64).filter(|word| word / 3 * 10 < bound).count();
                assert_eq!(
                    Racy::new(&words).count_below(0, count, bound),
                    expected,
                    "{count} words, {bound}"
                );
                assert_eq!(bytes.as_slice().count_below(0, count, bound), expected, "{count} words, {bound}");
            }
        }
        assert_eq!(Racy::new(&words(&[0; 64])).count_below(32, 5, 1), 0, "words that are not there");
    }
}
