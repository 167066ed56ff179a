//! Detection of workload shifts while a policy is held.
//!
//! The first epochs under the held policy give the mean and deviation of its throughput. A shift
//! moves the median of the last five by more than a tenth and four deviations. One or two disturbed
//! epochs do not move a median of five.

use std::collections::VecDeque;

/// Epochs ignored at first: they still show the previous policy.
const SETTLING: usize = 2;
/// Epochs that define the normal throughput.
const REFERENCE: usize = 8;
const WINDOW: usize = 5;
/// Minimum relative difference of a shift.
const SHIFT: f64 = 0.1;
/// Minimum difference of a shift in standard deviations.
const DEVIATIONS: f64 = 4.0;

#[derive(Debug, Default)]
pub(super) struct Watch {
    epochs: usize,
    reference: Vec<f64>,
    window: VecDeque<f64>,
}

impl Watch {
    pub(super) fn is_shift(&mut self, throughput: f64) -> bool {
        self.epochs += 1;
        if self.epochs <= SETTLING {
            return false;
        }
        if self.reference.len() < REFERENCE {
            self.reference.push(throughput);
            return false;
        }
        if self.window.len() == WINDOW {
            self.window.pop_front();
        }
        self.window.push_back(throughput);
        self.window.len() == WINDOW && (self.median() - self.mean()).abs() > self.tolerance()
    }

    fn median(&self) -> f64 {
        let mut sorted = Vec::from_iter(self.window.iter().copied());
        sorted.sort_by(f64::total_cmp);
        sorted[sorted.len() / 2]
    }

    fn mean(&self) -> f64 {
        self.reference.iter().sum::<f64>() / self.reference.len() as f64
    }

    fn tolerance(&self) -> f64 {
        let mean = self.mean();
        let squares: f64 = self.reference.iter().map(|throughput| (throughput - mean).powi(2)).sum();
        let deviation = (squares / (self.reference.len() - 1) as f64).sqrt();
        (SHIFT * mean).max(DEVIATIONS * deviation)
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::SmallRng;
    use rand::{RngExt, SeedableRng};

    use super::*;

    /// A watch with normal throughput 100, give or take `noise`.
    fn watching(noise: f64, random: &mut SmallRng) -> Watch {
        let mut watch = Watch::default();
        for _ in 0..SETTLING + REFERENCE {
            assert!(!watch.is_shift(100.0 + noise * random.random_range(-1.0..1.0)));
        }
        watch
    }

    #[test]
    fn a_steady_workload_is_left_alone() {
        for seed in 0..20 {
            let mut random = SmallRng::seed_from_u64(seed);
            let mut watch = watching(5.0, &mut random);
            for epoch in 0..5000 {
                let disturbed = if epoch % 10 < 2 { 50.0 } else { 0.0 };
                let throughput = 100.0 - disturbed + 5.0 * random.random_range(-1.0..1.0);
                assert!(!watch.is_shift(throughput), "seed {seed} epoch {epoch}");
            }
        }
    }

    #[test]
    fn a_shift_up_or_down_is_told_within_five_epochs() {
        for seed in 0..20 {
            for level in [60.0, 85.0, 115.0, 300.0] {
                let mut random = SmallRng::seed_from_u64(seed);
                let mut watch = watching(1.0, &mut random);
                (0..50).for_each(|_| assert!(!watch.is_shift(100.0 + random.random_range(-1.0..1.0))));
                let told = (1..=5).find(|_| watch.is_shift(level + random.random_range(-1.0..1.0)));
                assert!(told.is_some_and(|epochs| epochs >= 3), "seed {seed} level {level}: {told:?}");
            }
        }
    }

    #[test]
    fn a_workload_that_varies_by_itself_has_to_shift_further() {
        let mut watch = Watch::default();
        let swing = |epoch: usize| if epoch.is_multiple_of(2) { 80.0 } else { 120.0 };
        (0..SETTLING + REFERENCE).for_each(|epoch| assert!(!watch.is_shift(swing(epoch))));
        (0..1000).for_each(|epoch| assert!(!watch.is_shift(swing(epoch))));
        assert!((0..5).any(|_| watch.is_shift(250.0)));
    }
}
