//! Which device a hit is read from. A fast device that is saturated answers later than the slow one, and some are
//! slower to begin with.
//!
//! Non-hierarchical caching (Wu et al., "The Storage Hierarchy is Not a Hierarchy", FAST 2021, which calls it Orthus) sends
//! surplus reads below when the fast device has become the slower one. Here the two are compared by the mean time of a
//! read of one block, as the callers see it, queues included. While the fast one is slower, the share of hits that goes to it shrinks by a
//! quarter in each round; while it is faster the share grows again. When it has shrunk to one in 256 the cache *steps
//! aside*: it admits nothing and drops what is written, and the one in 256 is left to find out when it may come back.
//!
//! While all hits go to the fast device, one in 16 is timed, so that reading the clock costs a few nanoseconds. As the slow device may serve misses too rarely to
//! be known, a hit in 1024 is read from it while nothing is known of it lately; where it was four times slower than the fast one
//! or more, that is after a much longer time, as nothing hangs on it and each such read takes the slow device's time.
//!
//! This takes a slow device that is complete, which it is whenever writes go through or around.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

/// The whole of the hits.
const WHOLE: u32 = 256;

/// Timed reads of the fast device in a round; fewer where it gets fewer, down to an eighth.
const ROUND: u32 = 32;

/// How often hits are timed, and read below only to know its time.
const TIMED: u64 = 16;
const PROBED: u64 = 1024;

/// Rounds after which the slow device's time is old, and where it was far the slower one.
const KNOWN_ROUNDS: u32 = 4;
const FAR_KNOWN_ROUNDS: u32 = 256;

/// The weight of a new time in the mean: an eighth.
const WEIGHT_SHIFT: u32 = 3;

/// What the fast device may lose by and still count as equal, so that noise moves nothing: an eighth.
const TOLERANCE_SHIFT: u32 = 3;

/// How a hit is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Route {
    /// From the slow device.
    pub below: bool,
    /// Its time is to be reported.
    pub timed: bool,
}

/// A mean time in nanoseconds; 0 is unknown.
#[derive(Clone, Copy, Debug, Default)]
struct Mean(u64);

impl Mean {
    fn add(&mut self, time: Duration) {
        let time = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX >> WEIGHT_SHIFT).max(1);
        self.0 = match self.0 {
            0 => time,
            mean => mean - (mean >> WEIGHT_SHIFT) + (time >> WEIGHT_SHIFT),
        };
    }
}

#[derive(Debug, Default)]
struct Times {
    fast: Mean,
    slow: Mean,
    /// Timed reads of the fast device in this round.
    round: u32,
    /// Rounds since the slow device was timed.
    unknown_rounds: u32,
}

/// The share of hits that goes to the fast device.
#[derive(Debug)]
pub(super) struct Balance {
    /// In 256ths; 1 is aside.
    share: AtomicU32,
    /// Whether the slow device has to be probed.
    is_unknown: std::sync::atomic::AtomicBool,
    times: Mutex<Times>,
}

impl Balance {
    pub fn new() -> Self {
        Self { share: AtomicU32::new(WHOLE), is_unknown: true.into(), times: Mutex::default() }
    }

    /// The share of hits that goes to the fast device, in 256ths.
    fn share(&self) -> u32 {
        self.share.load(Ordering::Relaxed)
    }

    /// Whether the cache has stepped aside.
    pub fn is_aside(&self) -> bool {
        self.share() == 1
    }

    /// How the `count`-th hit of a thread is to be served.
    #[inline]
    pub fn route(&self, count: u64) -> Route {
        let share = self.share();
        // Those that go below are spread over all.
        let place = (count.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u32;
        let below =
            place >= share || (count % PROBED == PROBED - 1 && self.is_unknown.load(Ordering::Relaxed));
        Route { below, timed: below || share < WHOLE || count.is_multiple_of(TIMED) }
    }

    /// A read of one block from the slow device took that long.
    pub fn slow_took(&self, time: Duration) {
        if let Some(mut times) = self.times.try_lock() {
            times.slow.add(time);
            times.unknown_rounds = 0;
            self.is_unknown.store(false, Ordering::Relaxed);
        }
    }

    /// A read of one block from the fast device took that long. Says whether the cache has stepped aside or come back by it.
    pub fn fast_took(&self, time: Duration) -> bool {
        let Some(mut times) = self.times.try_lock() else { return false };
        times.fast.add(time);
        times.round += 1;
        // Where few reads are left, few have to do, or it would take for ever.
        let round = (ROUND * self.share() / WHOLE).max(ROUND / 8);
        if times.round < round {
            return false;
        }
        times.round = 0;
        times.unknown_rounds += 1;
        let (fast, slow) = (times.fast.0, times.slow.0);
        let is_far = slow / 4 >= fast;
        if times.unknown_rounds > if is_far { FAR_KNOWN_ROUNDS } else { KNOWN_ROUNDS } {
            self.is_unknown.store(true, Ordering::Relaxed);
        }
        let before = self.share();
        let after = if slow == 0 || fast <= slow.saturating_add(slow >> TOLERANCE_SHIFT) {
            (before + 16).min(WHOLE)
        } else {
            (before * 3 / 4).max(1)
        };
        self.share.store(after, Ordering::Relaxed);
        (before == 1) != (after == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    #[test]
    fn a_slower_fast_device_is_left_in_bounded_time_and_taken_back() {
        let balance = Balance::new();
        balance.slow_took(100 * US);
        let mut reads = 0;
        while !balance.is_aside() {
            balance.fast_took(300 * US);
            reads += 1;
            assert!(reads <= 20 * ROUND, "it should have stepped aside");
        }
        let below = (0..25_600).filter(|&count| balance.route(count).below).count();
        assert!((25_450..25_550).contains(&below), "one in 256 is left: {below}");
        for _ in 0..100 + 20 * ROUND {
            balance.fast_took(50 * US);
        }
        assert_eq!(balance.share(), WHOLE);
    }

    #[test]
    fn a_faster_one_keeps_all() {
        let balance = Balance::new();
        balance.slow_took(100 * US);
        for read in 0..10_000 {
            // Noise of an eighth is none.
            balance.fast_took(if read % 2 == 0 { 90 * US } else { 110 * US });
            assert_eq!(balance.share(), WHOLE);
        }
        let below = (0..10_000).filter(|&count| balance.route(count).below).count();
        assert!(below <= 10, "the slow device is only probed: {below}");
    }

    #[test]
    fn a_slow_device_that_is_far_slower_is_seldom_probed() {
        for (slow, probes) in [(120 * US, 60..140), (500 * US, 1..4)] {
            let (balance, mut below) = (Balance::new(), 0);
            balance.slow_took(slow);
            for count in 0..300 * PROBED {
                let route = balance.route(count);
                if route.below {
                    below += 1;
                    balance.slow_took(slow);
                } else if route.timed {
                    balance.fast_took(100 * US);
                }
            }
            assert!(probes.contains(&below), "{slow:?}: {below}");
        }
    }

    #[test]
    fn an_unknown_slow_device_is_probed() {
        let balance = Balance::new();
        let below = (0..10 * PROBED).filter(|&count| balance.route(count).below).count();
        assert_eq!(below, 10);
        for _ in 0..100 * ROUND {
            balance.fast_took(US);
        }
        assert_eq!(balance.share(), WHOLE, "nothing is known against it");
    }
}
