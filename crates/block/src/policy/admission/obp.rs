//! OBP, the overhead bypass of NVCache (paper 004, section 3.2, lesson 2): filling a cache writes to it, and writes slow
//! down its reads, so
//!
//! ```text
//! OBP = (blocks inserted + blocks removed) / blocks looked up
//! ```
//!
//! is kept at a target, 10 %. Above the target nothing is admitted, and so nothing evicted. Looked up are blocks that are read: the
//! ratio weighs "the rate of block admission and removal, which generate writes", against "the rate of cache lookups, which
//! produce reads". A write is no benefit of the cache, so a load of writes alone admits nothing. Removed are evicted and
//! invalidated blocks; invalidations count and are never refused, so a database that overwrites much may lie above
//! the target with no admission at all.
//!
//! [`LifetimeObp`] takes totals since the start, as WiredTiger ships it: after a long quiet time it admits at any rate for
//! nearly as long, because the totals move slowly. [`Obp`] takes a sliding window of look-ups, in [`PARTS`] parts. The
//! window alone would let a whole window's budget be spent at once when a phase changes, and again one window later;
//! so within a part, too, no more may be spent than the part's look-ups have earned.

use std::collections::VecDeque;

use super::{Admission, Occupancy};
use crate::policy::Access;

/// Parts of the window, at most.
const PARTS: usize = 64;

/// Blocks that an admission into a full cache inserts and removes.
const COST_FULL: u64 = 2;

/// The paper's target.
pub(crate) const TARGET: f64 = 0.1;

#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    /// Blocks read.
    look_ups: u64,
    /// Insertions and removals.
    writes: u64,
}

impl Totals {
    /// Whether one more admission keeps the ratio at the target. It costs a removal, too, in a full cache.
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
    /// The sum of `parts`.
    past: Totals,
    current: Totals,
}

impl Obp {
    /// The default window, in look-ups.
    pub const WINDOW: u64 = 4096;

    /// Keeps insertions and removals at `target` times the look-ups of a window of `window` look-ups, at least 64.
    pub fn new(target: f64, window: u64) -> Self {
        // A part earns one admission into a full cache at least, or nothing would ever enter; a low target has fewer parts.
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
        // A part may be shorter than one admission takes to earn; the last part helps out.
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

/// The overhead bypass over the cache's whole life.
#[derive(Clone, Debug)]
pub struct LifetimeObp {
    target: f64,
    totals: Totals,
}

impl LifetimeObp {
    /// Keeps insertions and removals at `target` times the look-ups since now.
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

    /// Hot reads that fit, a scan, random reads with invalidations, and again, hot elsewhere. Gives, for
    /// every window of `window` look-ups, the ratio of insertions and removals to look-ups, and whether the window lies
    /// two windows after a change of phase.
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
            // Of a hundred accesses so many read.
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
