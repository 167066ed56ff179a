//! Fast copies of memory that other threads may change.
//!
//! A compiler copies `AtomicU64`s one by one, which doubles the time for a leaf. Callers validate
//! the page as a whole after the copy, so a faster copy is enough.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const LINE_WORDS: usize = 8;

/// Copies `from` into the first bytes of `to`, like relaxed loads of each word. Concurrent stores
/// appear or not, word by word, in any order.
///
/// ```
/// use std::sync::atomic::AtomicU64;
/// use terrace_io::copy_words;
///
/// let words = [1, 2, 3].map(AtomicU64::new);
/// let mut bytes = [0; 25];
/// copy_words(&words, &mut bytes);
/// assert_eq!(bytes[16..], [3u64.to_ne_bytes().as_slice(), &[0]].concat());
/// ```
///
/// # Panics
/// If `to` is shorter than `from`.
#[inline]
pub fn copy_words(from: &[AtomicU64], to: &mut [u8]) {
    let to = &mut to[..from.len() * 8];
    // SAFETY: the same bytes, which `copy` only ever initializes.
    copy(from, unsafe { &mut *(std::ptr::from_mut(to) as *mut [MaybeUninit<u8>]) });
}

/// [`copy_words`] to the end of `to`, which it extends. Writes each byte once: zeroing the room
/// first took 140 of some 2,350 instructions of a get of 1,000 bytes.
///
/// ```
/// use std::sync::atomic::AtomicU64;
/// use terrace_io::append_words;
///
/// let mut bytes = vec![9];
/// append_words(&[1, 2].map(AtomicU64::new), &mut bytes);
/// assert_eq!(bytes, [&[9][..], &1u64.to_ne_bytes(), &2u64.to_ne_bytes()].concat());
/// ```
#[inline]
pub fn append_words(from: &[AtomicU64], to: &mut Vec<u8>) {
    let bytes = from.len() * 8;
    to.reserve(bytes);
    copy(from, &mut to.spare_capacity_mut()[..bytes]);
    // SAFETY: `copy` has initialized these bytes.
    unsafe { to.set_len(to.len() + bytes) };
}

/// Initializes all of `to`, which has the length of `from`.
#[inline]
fn copy(from: &[AtomicU64], to: &mut [MaybeUninit<u8>]) {
    let lines = from.len() / LINE_WORDS;
    let (whole, rest) = from.split_at(lines * LINE_WORDS);
    let (whole_to, rest_to) = to.split_at_mut(lines * LINE_WORDS * 8);
    copy_lines(whole, whole_to);
    copy_each(rest, rest_to);
}

/// Copies word by word. `to` has the length of `from`.
#[inline]
fn copy_each(from: &[AtomicU64], to: &mut [MaybeUninit<u8>]) {
    for (word, to) in from.iter().zip(to.as_chunks_mut::<8>().0) {
        *to = word.load(Relaxed).to_ne_bytes().map(MaybeUninit::new);
    }
}

/// Copies whole lines. `to` has the length of `from`.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
fn copy_lines(from: &[AtomicU64], to: &mut [MaybeUninit<u8>]) {
    debug_assert!(from.len().is_multiple_of(LINE_WORDS) && to.len() == from.len() * 8);
    if from.is_empty() {
        return;
    }
    // SAFETY: `source` and `target` reach `end` after a number of whole steps, so all reads are in
    // `from` and all writes in `to`, which is exclusively ours. Every x86-64 processor has 16-byte
    // loads and stores, which access each aligned word of eight bytes at once. Other threads may
    // store to `from` meanwhile: the compiler treats this code as reading and writing any memory,
    // so it neither moves accesses across nor infers anything from them, and the processor has no
    // undefined races.
    unsafe {
        std::arch::asm!(
            "2:",
            "movups {a}, [{source}]",
            "movups {b}, [{source} + 16]",
            "movups {c}, [{source} + 32]",
            "movups {d}, [{source} + 48]",
            "movups [{target}], {a}",
            "movups [{target} + 16], {b}",
            "movups [{target} + 32], {c}",
            "movups [{target} + 48], {d}",
            "add {source}, 64",
            "add {target}, 64",
            "cmp {source}, {end}",
            "jne 2b",
            source = inout(reg) from.as_ptr() => _,
            target = inout(reg) to.as_mut_ptr() => _,
            end = in(reg) from.as_ptr_range().end,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack),
        );
    }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
#[inline]
fn copy_lines(from: &[AtomicU64], to: &mut [MaybeUninit<u8>]) {
    copy_each(from, to);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_arrives_and_nothing_else_changes() {
        let words: Vec<AtomicU64> =
            (0..600u64).map(|at| AtomicU64::new(at.wrapping_mul(0x9e37_79b9_7f4a_7c15))).collect();
        for first in 0..9 {
            for count in (0..40).chain([64, 100, 512, 591]) {
                for shift in 0..9 {
                    let mut bytes = vec![0xaa; shift + count * 8 + 17];
                    copy_words(&words[first..first + count], &mut bytes[shift..]);
                    let wanted =
                        words[first..first + count].iter().flat_map(|word| word.load(Relaxed).to_ne_bytes());
                    assert!(
                        bytes[shift..shift + count * 8].iter().copied().eq(wanted),
                        "{first} {count} {shift}"
                    );
                    let mut appended = bytes[..shift].to_vec();
                    append_words(&words[first..first + count], &mut appended);
                    assert_eq!(appended, bytes[..shift + count * 8]);
                    assert!(
                        bytes[..shift].iter().chain(&bytes[shift + count * 8..]).all(|&byte| byte == 0xaa)
                    );
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "range end index")]
    fn too_little_room_is_refused() {
        copy_words(&[AtomicU64::new(1)], &mut [0; 7]);
    }

    /// Two threads store while another copies: each copied word is one that was stored.
    #[test]
    fn words_are_never_torn() {
        let words: Vec<AtomicU64> = (0..512).map(|_| AtomicU64::new(0)).collect();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..2000u64 {
                    words.iter().for_each(|word| word.store(round << 32 | round, Relaxed));
                }
            });
            let mut bytes = vec![0; 4096];
            for _ in 0..2000 {
                copy_words(&words, &mut bytes);
                for word in bytes.as_chunks::<8>().0 {
                    let word = u64::from_ne_bytes(*word);
                    assert_eq!(word >> 32, word & 0xffff_ffff);
                }
            }
        });
    }
}
