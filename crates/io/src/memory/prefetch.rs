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
        prefetch_line(&line[0]);
    }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn prefetch_line(word: &AtomicU64) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: the instruction is part of every x86-64 processor. It changes nothing, returns
    // nothing and faults on no address; the words exist anyway.
    unsafe {
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(word).cast());
    }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn prefetch_line(_word: &AtomicU64) {}

#[cfg(test)]
mod tests {
    use super::*;

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
