//! What may be in a column, and sums over it.
//!
//! Pages are words that are loaded one by one, since others may write them, so no compiler makes vectors of these loops. To be as
//! fast as memory all the same, they keep eight sums, so that no addition waits for the one before, and ask for what they come to
//! a little later: processors go ahead by themselves within a page of the system's only, and mapped pages consist of such.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use terrace_block::prefetch;

mod sealed {
    pub trait Sealed {}
    impl Sealed for u64 {}
    impl Sealed for i64 {}
    impl Sealed for f64 {}
}

/// Sums that are kept side by side: as many as a line of the cache has words.
const LANES: usize = 8;
/// Lines that are asked for before they are come to.
const LINES_AHEAD: usize = 16;

/// A number of eight bytes that a [`Column`](super::Column) may hold: `u64`, `i64` or `f64`.
pub trait Value: sealed::Sealed + Copy + PartialOrd + std::fmt::Debug + Send + Sync + 'static {
    /// What the sum of many is: exact for whole numbers.
    type Sum: Copy + Default + PartialEq + std::fmt::Debug + std::ops::Add<Output = Self::Sum> + Send;

    /// The word that stands for it.
    fn to_word(self) -> u64;

    /// What a word stands for.
    fn from_word(word: u64) -> Self;

    /// The sum of the numbers that `words` stand for; of floating-point numbers in an order of its own.
    fn sum(words: &[AtomicU64]) -> Self::Sum;

    /// The lesser; of two that cannot be compared the first.
    #[must_use]
    fn lesser(self, other: Self) -> Self {
        if other < self { other } else { self }
    }

    /// The greater; of two that cannot be compared the first.
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
        // With its highest bit turned, a word is 2^63 more than the number, and never negative.
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

/// Shows one of `lines` after the other, each of which is asked for some time before.
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

/// The sum of `words`, in each of which the bits of `turned` are turned.
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

/// What is known of some numbers of a column after one look at each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Aggregate<T: Value> {
    /// How many there are.
    pub count: u64,
    /// Their sum.
    pub sum: T::Sum,
    /// The least of them; none if there are none. Of floating-point numbers that are no numbers nothing is said.
    pub min: Option<T>,
    /// The greatest.
    pub max: Option<T>,
}

impl<T: Value> Default for Aggregate<T> {
    fn default() -> Self {
        Aggregate { count: 0, sum: T::Sum::default(), min: None, max: None }
    }
}

impl<T: Value> Aggregate<T> {
    /// Of what `words` stand for.
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

    /// Of what either is of.
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
