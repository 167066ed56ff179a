//! Prefetching memory.
#![allow(unsafe_code)]

use std::sync::atomic::AtomicU64;

const LINE_WORDS: usize = 8;

/// Prefetches the lines of `words` into the processor's cache without waiting. Only a hint: has no
/// effect if the processor lacks the instruction or is busy.
///
/// ```
/// use terrace_io::{Region, prefetch};
///
/// let region = Region::reserve(1 << 20)?;
/// region.commit(0..8192)?;
/// prefetch(region.words(4096..8192));
/// # Ok::<(), std::io::Error>(())
/// ```
#[inline]
pub fn prefetch(words: &[AtomicU64]) {
    for line in words.chunks(LINE_WORDS) {
        prefetch_line(line.as_ptr().cast());
    }
}

/// Prefetches the line at `address`, which may be any: nothing is read through it.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) fn prefetch_line(address: *const u8) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: the instruction is part of every x86-64 processor. It changes nothing, returns
    // nothing and faults on no address.
    unsafe {
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
pub(super) fn prefetch_line(_address: *const u8) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_byte_of_a_region_can_be_asked_for_and_no_other() {
        let region = crate::Region::reserve(4 << 20).unwrap();
        region.commit(0..4096).unwrap();
        let start = region.words(0..8).as_ptr() as usize;
        for at in [0, 1, 4095, 4096, 3 << 20, (4 << 20) - 1] {
            assert_eq!(region.address_of(at).map(|address| address as usize), Some(start + at));
            region.prefetch(at);
        }
        for at in [4 << 20, (4 << 20) + 1, usize::MAX / 2, usize::MAX] {
            assert_eq!(region.address_of(at), None);
            region.prefetch(at);
        }
    }

    #[test]
    fn asking_for_memory_changes_none() {
        let words: Vec<AtomicU64> = (0..20).map(AtomicU64::new).collect();
        for length in [0, 1, 8, 9, 20] {
            prefetch(&words[..length]);
        }
        let content = words.iter().map(|word| word.load(std::sync::atomic::Ordering::Relaxed));
        assert!(content.eq(0..20));
    }
}
