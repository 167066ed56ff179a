//! Findings of a verification, in bounded memory.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};

use crate::stats::Damage;

pub(crate) const KEPT_MAX: usize = 1000;
/// Findings told apart, by 64-bit hashes: a repeated one counts once.
const KNOWN_MAX: usize = 1 << 16;

/// Distinct findings. The first are kept, the others counted.
#[derive(Debug, Default)]
pub(crate) struct Damages {
    kept: Vec<Damage>,
    known: HashSet<u64>,
    hasher: RandomState,
    /// Findings since `known` is full; repeated ones count twice.
    beyond: u64,
}

impl Damages {
    /// An empty part that `self` may take later.
    pub(crate) fn begin_part(&self) -> Damages {
        Damages { hasher: self.hasher.clone(), ..Damages::default() }
    }

    pub(crate) fn add(&mut self, damage: Damage) {
        if self.is_new(self.hasher.hash_one(&damage)) && self.kept.len() < KEPT_MAX {
            self.kept.push(damage);
        }
    }

    pub(crate) fn take(&mut self, part: Damages) {
        part.kept.into_iter().for_each(|damage| self.add(damage));
        for hash in part.known {
            self.is_new(hash);
        }
        self.beyond += part.beyond;
    }

    fn is_new(&mut self, hash: u64) -> bool {
        if self.known.len() < KNOWN_MAX {
            return self.known.insert(hash);
        }
        let is_new = !self.known.contains(&hash);
        self.beyond += u64::from(is_new);
        is_new
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Kept findings, and the number of others.
    pub(crate) fn into_parts(self) -> (Vec<Damage>, u64) {
        let more = (self.known.len() - self.kept.len()) as u64 + self.beyond;
        (self.kept, more)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn damage(number: u64) -> Damage {
        Damage { file: "pages.terrace".into(), page: Some(number), what: "it is damaged".into() }
    }

    fn of(numbers: std::ops::Range<u64>) -> Damages {
        let mut damages = Damages::default();
        numbers.clone().chain(numbers).for_each(|number| damages.add(damage(number)));
        damages
    }

    #[test]
    fn each_finding_counts_once_and_the_first_are_kept() {
        let most = KEPT_MAX as u64;
        for (count, more) in [(0, 0), (1, 0), (most, 0), (most + 1, 1), (5 * most, 4 * most)] {
            let (kept, found) = of(0..count).into_parts();
            let expected: Vec<Damage> = (0..count - more).map(damage).collect();
            assert_eq!((kept, found), (expected, more));
        }
    }

    #[test]
    fn parts_are_taken_and_what_was_known_does_not_count_again() {
        let most = KEPT_MAX as u64;
        let mut all = of(0..most / 2);
        for range in [0..most, 10..3 * most, 0..4 * most] {
            let mut part = all.begin_part();
            assert!(part.is_empty());
            range.for_each(|number| part.add(damage(number)));
            all.take(part);
        }
        let (kept, more) = all.into_parts();
        assert_eq!((kept.len() as u64, more), (most, 3 * most));
        assert!(kept.into_iter().eq((0..most).map(damage)));
    }

    #[test]
    fn memory_does_not_grow_with_the_findings() {
        let (known, twice) = (KNOWN_MAX as u64, 100_000);
        let damages = of(0..known + twice);
        assert!(damages.known.len() <= KNOWN_MAX && damages.kept.len() <= KEPT_MAX);
        // Findings beyond the known ones were met twice.
        assert_eq!(damages.into_parts().1, known - KEPT_MAX as u64 + 2 * twice);
    }
}
