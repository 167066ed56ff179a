//! Random admission: frequent blocks enter eventually, single uses rarely.

use super::{Admission, Occupancy};
use crate::policy::Access;

/// Admits with a fixed probability; see [`Filtered`](crate::policy::Filtered).
#[derive(Clone, Debug)]
pub struct Probability {
    /// Draws below this admit.
    bound: u64,
    state: u64,
}

impl Probability {
    /// Admits with `probability`, clamped to 0..=1, by random draws from `seed`.
    pub fn new(probability: f64, seed: u64) -> Self {
        Probability { bound: (probability.clamp(0.0, 1.0) * 2f64.powi(53)) as u64, state: seed }
    }
}

impl Admission for Probability {
    fn admits(&mut self, _: Access, _: Occupancy) -> bool {
        // SplitMix64.
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut draw = self.state;
        draw = (draw ^ draw >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        draw = (draw ^ draw >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        (draw ^ draw >> 31) >> 11 < self.bound
    }
}

#[cfg(test)]
mod tests {
    use super::Probability;
    use crate::policy::Access;
    use crate::policy::admission::{Admission, Occupancy};

    #[test]
    fn a_quarter_enters() {
        let occupancy = Occupancy { full: false, coldest: None };
        let entered = |p| {
            let mut admission = Probability::new(p, 7);
            (0..10_000).filter(|&block| admission.admits(Access::read(block), occupancy)).count()
        };
        assert!((2300..2700).contains(&entered(0.25)), "{}", entered(0.25));
        assert_eq!((entered(0.0), entered(1.0)), (0, 10_000));
    }
}
