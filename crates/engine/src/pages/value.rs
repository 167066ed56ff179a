//! Column values, and sums over them.
//!
//! Other threads may write a page, so its words are loaded one by one, and no compiler vectorises
//! these loops. Eight parallel sums and software prefetch bring them to memory speed. Hardware
//! prefetch stops at operating-system pages, which mapped pages consist of.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use terrace_io::prefetch;

mod sealed {
    pub trait Sealed {}
    impl Sealed for u64 {}
    impl Sealed for i64 {}
    impl Sealed for f64 {}
}

/// Parallel sums: the words of a cache line.
const LANES: usize = 8;
/// Distance of the prefetch, in lines.
const LINES_AHEAD: usize = 16;

/// A number of eight bytes for a [`Column`](super::Column): `u64`, `i64` or `f64`.
pub trait Value: sealed::Sealed + Copy + PartialOrd + std::fmt::Debug + Send + Sync + 'static {
    /// The type of sums: exact for integers.
    type Sum: Copy + Default + PartialEq + std::fmt::Debug + std::ops::Add<Output = Self::Sum> + Send;

    /// Encodes the number as a word.
    fn to_word(self) -> u64;

    /// Decodes the number from a word.
    fn from_word(word: u64) -> Self;

    /// Sum of the numbers in `words`, in a fixed order for floats.
    fn sum(words: &[AtomicU64]) -> Self::Sum;

    /// The lesser number; the first if they cannot be compared.
    #[must_use]
    fn lesser(self, other: Self) -> Self {
        if other < self { other } else { self }
    }

    /// The greater number; the first if they cannot be compared.
    #[must_use]
    fn greater(self, other: Self) -> Self {
        if other > self { other } else { self }
    }
}

impl Value for u64 {
    type Sum = u128;

    fn to_word(self) -> u64 {
        self
    }

    fn from_word(word: u64) -> u64 {
        word
    }

    fn sum(words: &[AtomicU64]) -> u128 {
        sum_words(words, 0)
    }
}

impl Value for i64 {
    type Sum = i128;

    fn to_word(self) -> u64 {
        self as u64
    }

    fn from_word(word: u64) -> i64 {
        word as i64
    }

    fn sum(words: &[AtomicU64]) -> i128 {
        // Flipping the highest bit adds 2^63, so no word is negative.
        sum_words(words, 1 << 63) as i128 - ((words.len() as i128) << 63)
    }
}

impl Value for f64 {
    type Sum = f64;

    fn to_word(self) -> u64 {
        self.to_bits()
    }

    fn from_word(word: u64) -> f64 {
        f64::from_bits(word)
    }

    fn sum(words: &[AtomicU64]) -> f64 {
        let (chunks, rest) = words.as_chunks::<LANES>();
        let mut sums = [0.0; LANES];
        each_line(chunks, |chunk| {
            for (sum, word) in sums.iter_mut().zip(chunk) {
                *sum += f64::from_bits(word.load(Relaxed));
            }
        });
        let rest = rest.iter().map(|word| f64::from_bits(word.load(Relaxed)));
        sums.into_iter().chain(rest).sum()
    }
}

#[inline(always)]
fn each_line(lines: &[[AtomicU64; LANES]], mut show: impl FnMut(&[AtomicU64; LANES])) {
    let behind = lines.get(LINES_AHEAD..).unwrap_or_default();
    let (first, last) = lines.split_at(behind.len());
    for (line, behind) in first.iter().zip(behind) {
        prefetch(behind);
        show(line);
    }
    last.iter().for_each(show);
}

/// The sum of `words`, with the bits of `turned` flipped in each.
fn sum_words(words: &[AtomicU64], turned: u64) -> u128 {
    let (chunks, rest) = words.as_chunks::<LANES>();
    let mut sums = [0u64; LANES];
    let mut carries = [0u64; LANES];
    each_line(chunks, |chunk| {
        for (lane, word) in chunk.iter().enumerate() {
            let (sum, carry) = sums[lane].overflowing_add(word.load(Relaxed) ^ turned);
            sums[lane] = sum;
            carries[lane] += u64::from(carry);
        }
    });
    let carried = (u128::from(carries.iter().sum::<u64>())) << 64;
    let rest = rest.iter().map(|word| u128::from(word.load(Relaxed) ^ turned));
    carried + sums.into_iter().map(u128::from).chain(rest).sum::<u128>()
}

/// Count, sum and bounds of some numbers of a column.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Aggregate<T: Value> {
    /// How many numbers.
    pub count: u64,
    /// Their sum.
    pub sum: T::Sum,
    /// Their minimum; none if there are none. Unspecified with NaN.
    pub min: Option<T>,
    /// Their maximum, with the same exceptions.
    pub max: Option<T>,
}

impl<T: Value> Default for Aggregate<T> {
    fn default() -> Self {
        Aggregate { count: 0, sum: T::Sum::default(), min: None, max: None }
    }
}

impl<T: Value> Aggregate<T> {
    pub(super) fn of(words: &[AtomicU64]) -> Self {
        let bounds = |known: Option<(T, T)>, word: &AtomicU64| {
            let value = T::from_word(word.load(Relaxed));
            Some(known.map_or((value, value), |(min, max)| (min.lesser(value), max.greater(value))))
        };
        let bounds = words.iter().fold(None, bounds);
        Aggregate {
            count: words.len() as u64,
            sum: T::sum(words),
            min: bounds.map(|(min, _)| min),
            max: bounds.map(|(_, max)| max),
        }
    }

    /// Combines two aggregates.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let both = |one: Option<T>, other: Option<T>, choose: fn(T, T) -> T| match (one, other) {
            (Some(one), Some(other)) => Some(choose(one, other)),
            (one, other) => one.or(other),
        };
        Aggregate {
            count: self.count + other.count,
            sum: self.sum + other.sum,
            min: both(self.min, other.min, T::lesser),
            max: both(self.max, other.max, T::greater),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words<T: Value>(values: &[T]) -> Vec<AtomicU64> {
        values.iter().map(|value| AtomicU64::new(value.to_word())).collect()
    }

    #[test]
    fn sums_of_whole_numbers_are_exact_at_both_ends() {
        for count in [0, 1, 7, 8, 9, 1000] {
            assert_eq!(u64::sum(&words(&vec![u64::MAX; count])), u128::from(u64::MAX) * count as u128);
            assert_eq!(i64::sum(&words(&vec![i64::MIN; count])), i128::from(i64::MIN) * count as i128);
            assert_eq!(i64::sum(&words(&vec![i64::MAX; count])), i128::from(i64::MAX) * count as i128);
            assert_eq!(f64::sum(&words(&vec![0.5; count])), 0.5 * count as f64);
        }
        assert_eq!(i64::sum(&words::<i64>(&[-3, 5, -4, 1, 1, 1, 1, 1, 1])), 4);
    }

    #[test]
    fn aggregates_join() {
        let values: Vec<i64> = (0..100).map(|value| (value * 37) % 101 - 50).collect();
        let whole = Aggregate::<i64>::of(&words(&values));
        let (min, max) = (values.iter().min().copied(), values.iter().max().copied());
        let sum = values.iter().map(|&value| i128::from(value)).sum();
        assert_eq!(whole, Aggregate { count: 100, sum, min, max });
        let parts = values.chunks(33).map(|part| Aggregate::of(&words(part)));
        assert_eq!(parts.fold(Aggregate::default(), Aggregate::and), whole);
        assert_eq!(Aggregate::<f64>::of(&[]), Aggregate::default());
    }
}
