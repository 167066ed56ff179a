//! The policy that changes by itself: what lets a [`Tuner`] run.
//!
//! The tuner is told the throughput of one epoch after the other. An epoch is a number of operations. They are not counted where
//! they happen, where nothing may be written that threads share: each thread counts its own (`operation.rs`), and hands in what has
//! come together when it next has to do with the middle tier or the store. Operations that find all they need in DRAM are handed in
//! with one that does not; if there is none for long, there is nothing to decide either. Whoever hands in the last operations of an
//! epoch ends it, if nobody else is just doing so.
//!
//! In the first half of an epoch pages are still where the policy before has put them, so throughput is that of the second half.
//! Time is the machine's, or that of simulated memory (`Builder::simulated_time`). A database without threads is to do
//! the same in each run, so there the policy changes only with simulated time.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use terrace_block::Time;

use super::migration::{LivePolicy, Policy};
use super::tuner::Tuner;
use crate::stats::Tuning;

/// Operations of an epoch, at least.
const EPOCH_OPERATIONS_MIN: u64 = 20_000;
/// And for each frame of the middle tier, so that a policy shows.
const EPOCH_OPERATIONS_PER_FRAME: u64 = 2;

/// A tuner that runs.
#[derive(Debug)]
pub(super) struct Adaptation {
    /// Whether it still does: not after somebody has said which policy is to hold.
    runs: AtomicBool,
    operations: AtomicU64,
    /// Operations at which half an epoch is over.
    due: AtomicU64,
    half_epoch: u64,
    running: Mutex<Running>,
    time: Time,
}

#[derive(Debug)]
struct Running {
    tuner: Tuner,
    /// Operations and time at the middle of the epoch, if that is over.
    middle: Option<(u64, u64)>,
}

impl Adaptation {
    /// One that begins with `policy` and draws by `seed`, of a middle tier of so many frames.
    pub(super) fn new(policy: Policy, seed: u64, frames: u32, time: Time) -> Adaptation {
        let half_epoch = (EPOCH_OPERATIONS_PER_FRAME * u64::from(frames)).max(EPOCH_OPERATIONS_MIN) / 2;
        Adaptation {
            runs: AtomicBool::new(true),
            operations: AtomicU64::new(0),
            due: AtomicU64::new(half_epoch),
            half_epoch,
            running: Mutex::new(Running { tuner: Tuner::new(policy, seed), middle: None }),
            time,
        }
    }

    /// Whether its time passes by what is done, and not by itself.
    pub(super) fn is_deterministic(&self) -> bool {
        matches!(self.time, Time::Virtual(_))
    }

    /// Leaves the policy as it is from now on.
    pub(super) fn stop(&self) {
        // Not while somebody is about to change it.
        let _running = self.running.lock();
        self.runs.store(false, Relaxed);
    }

    /// So many operations were done since they were last counted. Changes `live` if that ends an epoch.
    pub(super) fn count(&self, operations: u64, live: &LivePolicy) {
        let total = self.operations.fetch_add(operations, Relaxed) + operations;
        if total < self.due.load(Relaxed) || !self.runs.load(Relaxed) {
            return;
        }
        let Some(mut running) = self.running.try_lock() else { return };
        // Somebody may have been here in between, or have stopped it.
        if total < self.due.load(Relaxed) || !self.runs.load(Relaxed) {
            return;
        }
        self.due.store(total + self.half_epoch, Relaxed);
        let now = self.now_ns();
        match running.middle.take() {
            None => running.middle = Some((total, now)),
            Some((before, then)) => {
                let seconds = now.saturating_sub(then) as f64 / 1e9;
                live.set(running.tuner.epoch((total - before) as f64 / seconds));
            }
        }
    }

    /// How far it is.
    pub(super) fn tuning(&self) -> Tuning {
        let running = self.running.lock();
        Tuning {
            runs: self.runs.load(Relaxed),
            is_holding: running.tuner.is_holding(),
            epochs: running.tuner.epochs(),
            searches: running.tuner.searches(),
            epoch_operations: 2 * self.half_epoch,
        }
    }

    fn now_ns(&self) -> u64 {
        match &self.time {
            Time::Wall(start) => start.elapsed().as_nanos() as u64,
            Time::Virtual(time) => time.elapsed_ns(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use terrace_block::VirtualTime;

    use super::*;

    /// A workload that takes the longer the more of it goes up to DRAM.
    #[test]
    fn the_policy_changes_by_what_epochs_took_until_it_is_held() {
        let time = Arc::new(VirtualTime::new(1));
        let adaptation = Adaptation::new(Policy::EAGER, 5, 10, Time::Virtual(Arc::clone(&time)));
        let live = LivePolicy::new(Policy::EAGER);
        let mut seen = std::collections::HashSet::new();
        for _ in 0..4 * u64::from(Tuner::SEARCH_EPOCHS_MAX) {
            time.spend(0, (5000.0 * (1000.0 + 1000.0 * live.get().dr())) as u64);
            adaptation.count(5000, &live);
            seen.insert(live.get());
        }
        let tuning = adaptation.tuning();
        assert!(tuning.is_holding && tuning.searches == 1 && seen.len() > 10, "{tuning:?}");
        assert!(live.get().dr() < 0.04, "{}", live.get());
        adaptation.stop();
        live.set(Policy::EAGER);
        (0..1000).for_each(|_| adaptation.count(5000, &live));
        assert_eq!(live.get(), Policy::EAGER);
    }
}
