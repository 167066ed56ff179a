//! OBP, NVCache's overhead bypass (FAST 2022, section 3.2, lesson 2).
//!
//! Filling a cache writes to it, and writes slow down its reads, so this ratio is kept at a target,
//! 10 %:
//!
//! ```text
//! OBP = (blocks inserted + blocks removed) / blocks looked up
//! ```
//!
//! Above it nothing is admitted, so nothing is evicted. Lookups are reads only, as in the paper.
//! Removals are evictions and invalidations, so a database with many overwrites may stay above the
//! target.
//!
//! [`LifetimeObp`] uses totals since the start, as in WiredTiger: after a quiet time it admits
//! freely for nearly as long. [`Obp`] uses a sliding window in [`PARTS`] parts. Each part may spend
//! only what its own lookups earned, or a change of phase would spend a whole window's budget at
//! once.

use std::collections::VecDeque;

use super::{Admission, Occupancy};
use crate::policy::Access;

const PARTS: usize = 64;

/// Insertions and removals per admission into a full cache.
const COST_FULL: u64 = 2;

pub(crate) const TARGET: f64 = 0.1;

#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    /// Blocks read.
    look_ups: u64,
    writes: u64,
}

impl Totals {
    /// Whether one more admission, with its removal if the cache is full, keeps the target.
    fn allows(self, target: f64, occupancy: Occupancy) -> bool {
        let cost = if occupancy.full { COST_FULL } else { 1 };
        (self.writes + cost) as f64 <= target * self.look_ups as f64
    }
}

/// The overhead bypass over a sliding window.
#[derive(Clone, Debug)]
pub struct Obp {
    target: f64,
    part_look_ups: u64,
    parts_max: usize,
    /// Full parts of the window, oldest first.
    parts: VecDeque<Totals>,
    past: Totals,
    current: Totals,
}

impl Obp {
    /// The default window, in lookups.
    pub const WINDOW: u64 = 4096;

    /// Limits insertions and removals to `target` times the lookups, in a window of at least 64.
    pub fn new(target: f64, window: u64) -> Self {
        // A part earns at least one admission into a full cache, or nothing would ever enter; low
        // targets have fewer parts.
        let admission_look_ups = (COST_FULL as f64 / target).ceil() as u64;
        let part_look_ups = (window / PARTS as u64).max(admission_look_ups).max(1);
        let parts_max = (window / part_look_ups).clamp(1, PARTS as u64) as usize;
        Obp {
            target,
            part_look_ups,
            parts_max,
            parts: VecDeque::with_capacity(parts_max),
            past: Totals::default(),
            current: Totals::default(),
        }
    }

    fn turn(&mut self) {
        if self.parts.len() == self.parts_max
            && let Some(oldest) = self.parts.pop_front()
        {
            self.past.look_ups -= oldest.look_ups;
            self.past.writes -= oldest.writes;
        }
        self.past.look_ups += self.current.look_ups;
        self.past.writes += self.current.writes;
        self.parts.push_back(std::mem::take(&mut self.current));
    }
}

impl Admission for Obp {
    fn look_up(&mut self, access: Access, _: bool) {
        if access.write {
            return;
        }
        if self.current.look_ups >= self.part_look_ups {
            self.turn();
        }
        self.current.look_ups += 1;
    }

    fn admits(&mut self, _: Access, occupancy: Occupancy) -> bool {
        let Totals { look_ups, writes } = self.past;
        let window =
            Totals { look_ups: look_ups + self.current.look_ups, writes: writes + self.current.writes };
        // A part may be too short to earn an admission; the last part helps.
        let last = self.parts.back().copied().unwrap_or_default();
        let part = Totals {
            look_ups: last.look_ups + self.current.look_ups,
            writes: last.writes + self.current.writes,
        };
        window.allows(self.target, occupancy) && part.allows(self.target, occupancy)
    }

    fn inserted(&mut self) {
        self.current.writes += 1;
    }

    fn removed(&mut self) {
        self.current.writes += 1;
    }
}

/// The overhead bypass over the cache's lifetime.
#[derive(Clone, Debug)]
pub struct LifetimeObp {
    target: f64,
    totals: Totals,
}

impl LifetimeObp {
    /// Limits insertions and removals to `target` times the lookups from now on.
    pub fn new(target: f64) -> Self {
        LifetimeObp { target, totals: Totals::default() }
    }
}

impl Admission for LifetimeObp {
    fn look_up(&mut self, access: Access, _: bool) {
        self.totals.look_ups += u64::from(!access.write);
    }

    fn admits(&mut self, _: Access, occupancy: Occupancy) -> bool {
        self.totals.allows(self.target, occupancy)
    }

    fn inserted(&mut self) {
        self.totals.writes += 1;
    }

    fn removed(&mut self) {
        self.totals.writes += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::{LifetimeObp, Obp, TARGET};
    use crate::policy::conformance::{Cache, Random};
    use crate::policy::{Access, Admission, Applies, Filtered, Lru};

    const CAPACITY: usize = 2000;

    /// Hot reads that fit, a scan, random reads with invalidations, then hot reads elsewhere.
    /// Returns each window's ratio, and whether it is two windows after a change of phase.
    fn ratios(admission: Box<dyn Admission>, window: u64, seed: u64) -> Vec<(f64, bool)> {
        let mut random = Random(seed);
        let lru = Filtered::new(Lru::new(CAPACITY), CAPACITY, vec![(Applies::Both, admission)]);
        let mut cache = Cache::new(lru, CAPACITY);
        let phase_windows = 100_000 / window;
        let mut ratios = Vec::new();
        let mut scan = 1_000_000;
        for step in 0..6 * phase_windows {
            let (phase, at) = (step / phase_windows, step % phase_windows);
            let before = cache.writes;
            for _ in 0..window {
                let block = match phase % 3 {
                    0 => phase * 100_000 + random.skewed(1500),
                    1 => {
                        scan += 1;
                        scan
                    }
                    _ => random.below(50_000),
                };
                cache.access(Access::read(block));
                if phase % 3 == 2 && random.below(20) == 0 {
                    cache.invalidate(random.below(50_000));
                }
            }
            ratios.push(((cache.writes - before) as f64 / window as f64, at >= 2));
        }
        ratios
    }

    #[test]
    fn the_window_keeps_its_target_after_a_change_of_phase() {
        for seed in 1..4 {
            for window in [1000, 1500, 2500, 4096, 10_000] {
                let ratios = ratios(Box::new(Obp::new(TARGET, Obp::WINDOW)), window, seed);
                let worst = ratios
                    .iter()
                    .filter(|(_, settled)| *settled)
                    .map(|&(ratio, _)| ratio)
                    .fold(0.0, f64::max);
                assert!(worst <= 1.1 * TARGET, "seed {seed}, windows of {window}: {worst}");
                assert!(
                    worst > 0.8 * TARGET,
                    "seed {seed}, windows of {window}: the budget is not used, {worst}"
                );
            }
        }
    }

    #[test]
    fn low_targets_and_short_windows_still_admit() {
        for (target, window) in [(0.01, Obp::WINDOW), (0.001, Obp::WINDOW), (TARGET, 64)] {
            let admission = Box::new(Obp::new(target, window));
            let lru = Filtered::new(Lru::new(10), 10, vec![(Applies::Both, admission)]);
            let mut cache = Cache::new(lru, 10);
            let look_ups = 200_000;
            (0..look_ups).for_each(|block| {
                cache.access(Access::read(block));
            });
            let ratio = cache.writes as f64 / look_ups as f64;
            assert!((0.9 * target..=1.1 * target).contains(&ratio), "{target} over {window}: {ratio}");
        }
    }

    #[test]
    fn writes_earn_no_admissions() {
        let both: [fn() -> Box<dyn Admission>; 2] =
            [|| Box::new(Obp::new(TARGET, Obp::WINDOW)), || Box::new(LifetimeObp::new(TARGET))];
        for admission in both {
            // Percentages of reads.
            for reads in [0, 20, 100] {
                let lru = Filtered::new(Lru::new(CAPACITY), CAPACITY, vec![(Applies::Both, admission())]);
                let mut cache = Cache::new(lru, CAPACITY);
                for step in 0..100_000 {
                    cache.access(Access { write: step % 100 >= reads, ..Access::read(step) });
                }
                let earned = (TARGET * 1000.0 * reads as f64) as u64;
                assert!(cache.writes <= earned, "{reads} % reads: {} of {earned}", cache.writes);
                assert!(10 * cache.writes >= 9 * earned, "{reads} % reads: {} of {earned}", cache.writes);
            }
        }
    }

    #[test]
    fn the_lifetime_version_does_not() {
        let ratios = ratios(Box::new(LifetimeObp::new(TARGET)), 1000, 1);
        let worst =
            ratios.iter().filter(|(_, settled)| *settled).map(|&(ratio, _)| ratio).fold(0.0, f64::max);
        assert!(worst > 5.0 * TARGET, "{worst}");
    }

    #[test]
    fn invalidations_count_and_are_never_refused() {
        let admission = Obp::new(TARGET, Obp::WINDOW);
        let mut cache = Cache::new(
            Filtered::new(Lru::new(CAPACITY), CAPACITY, vec![(Applies::Both, Box::new(admission))]),
            CAPACITY,
        );
        for block in 0..10_000 {
            cache.access(Access::read(block % 1000));
        }
        let inserted = cache.writes;
        assert!((500..=1000).contains(&inserted), "{inserted}");
        for block in 0..1000 {
            cache.invalidate(block);
        }
        assert_eq!(cache.writes, 2 * inserted, "all are gone");
        for block in 0..1000 {
            cache.access(Access::read(block));
        }
        assert_eq!(cache.writes, 2 * inserted, "the invalidations used the budget up");
    }
}
