//! The adaptive policy: runs a [`Tuner`] with measured throughput.
//!
//! An epoch is a number of operations. Each thread counts its own, to avoid shared writes
//! (`operation.rs`). It reports them at its next visit to the middle tier or the store. Only the
//! second half of an epoch is measured: in the first, pages still lie where the previous policy put
//! them. Time is real or virtual (`Builder::simulated_time`). A database without threads must
//! repeat exactly, so there the policy changes only in virtual time.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use terrace_io::Time;

use super::migration::{LivePolicy, Policy};
use super::tuner::Tuner;
use crate::stats::Tuning;

const EPOCH_OPERATIONS_MIN: u64 = 20_000;
/// Operations per epoch and middle frame, so that a policy takes effect.
const EPOCH_OPERATIONS_PER_FRAME: u64 = 2;

#[derive(Debug)]
pub(in crate::pool) struct Adaptation {
    /// False once a policy was set explicitly.
    runs: AtomicBool,
    operations: AtomicU64,
    /// Operations at which the current half epoch ends.
    due: AtomicU64,
    half_epoch: u64,
    running: Mutex<Running>,
    time: Time,
}

#[derive(Debug)]
struct Running {
    tuner: Tuner,
    /// Operations and time at the middle of the epoch, once past it.
    middle: Option<(u64, u64)>,
}

impl Adaptation {
    pub(in crate::pool) fn new(policy: Policy, seed: u64, frames: u32, time: Time) -> Adaptation {
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

    pub(in crate::pool) fn is_deterministic(&self) -> bool {
        matches!(self.time, Time::Virtual(_))
    }

    pub(in crate::pool) fn stop(&self) {
        // Waits until no thread changes the policy.
        let _running = self.running.lock();
        self.runs.store(false, Relaxed);
    }

    /// MiddleCounts `operations`; changes `live` if they end an epoch.
    pub(in crate::pool) fn count(&self, operations: u64, live: &LivePolicy) {
        let total = self.operations.fetch_add(operations, Relaxed) + operations;
        if total < self.due.load(Relaxed) || !self.runs.load(Relaxed) {
            return;
        }
        let Some(mut running) = self.running.try_lock() else { return };
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

    pub(in crate::pool) fn tuning(&self) -> Tuning {
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

    use terrace_io::VirtualTime;

    use super::*;

    /// A workload that slows down with the share of promoted pages.
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
