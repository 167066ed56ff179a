//! TinyLFU admission before any eviction policy (Einziger, Friedman and Manes 2017).
//!
//! A block enters a full cache if it was used more often lately than the victim. Refused blocks may
//! get a random chance, for loads whose blocks return once, soon.

use super::{Admission, Occupancy, Probability};
use crate::policy::Access;
use crate::policy::sketch::Sketch;

/// Admits blocks used more often than the coldest. Memory: eight bytes per slot.
#[derive(Clone, Debug)]
pub struct Frequency {
    sketch: Sketch,
    /// The chance of refused blocks.
    chance: Probability,
}

impl Frequency {
    /// For a cache of `capacity` blocks.
    pub fn new(capacity: usize) -> Self {
        Frequency::with_chance(capacity, 0.0, 1)
    }

    /// For `capacity` blocks; `chance` admits refused blocks, with random draws from `seed`.
    pub fn with_chance(capacity: usize, chance: f64, seed: u64) -> Self {
        Frequency { sketch: Sketch::new(capacity), chance: Probability::new(chance, seed) }
    }
}

impl Admission for Frequency {
    fn look_up(&mut self, access: Access, _: bool) {
        self.sketch.increment(access.block);
    }

    fn admits(&mut self, access: Access, occupancy: Occupancy) -> bool {
        match occupancy.coldest {
            Some(coldest) if occupancy.full => {
                self.sketch.frequency(access.block) > self.sketch.frequency(coldest)
                    || self.chance.admits(access, occupancy)
            }
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Frequency;
    use crate::policy::Access;
    use crate::policy::admission::{Admission, Occupancy};

    #[test]
    fn a_block_must_be_more_frequent_than_the_one_that_leaves() {
        let mut admission = Frequency::new(100);
        for block in [1, 1, 2, 2, 3, 3, 3] {
            admission.look_up(Access::read(block), false);
        }
        let full = Occupancy { full: true, coldest: Some(1) };
        assert!(!admission.admits(Access::read(2), full), "as frequent");
        assert!(admission.admits(Access::read(3), full));
        assert!(admission.admits(Access::read(4), Occupancy { full: false, coldest: Some(1) }));
    }

    #[test]
    fn what_is_refused_has_its_chance() {
        let mut admission = Frequency::with_chance(100, 0.25, 3);
        admission.look_up(Access::read(1), false);
        let full = Occupancy { full: true, coldest: Some(1) };
        let entered = (10..10_010).filter(|&block| admission.admits(Access::read(block), full)).count();
        assert!((2300..2700).contains(&entered), "{entered}");
    }
}
