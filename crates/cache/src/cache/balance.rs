//! Which device serves a hit: a saturated or slow fast device may answer later.
//!
//! As in non-hierarchical caching (Wu et al., "The Storage Hierarchy is Not a Hierarchy", FAST
//! 2021), surplus reads go to the slow device. Mean times of one-block reads are compared, queues
//! included. While the fast device is slower, its share of hits shrinks by a quarter per round;
//! otherwise it grows. At 1/256 the cache *steps aside*: it admits nothing and drops written
//! blocks, and the remaining hits tell when it may return.
//!
//! While all hits go to the fast device, one in 16 is timed, as reading the clock costs
//! nanoseconds. If the slow device's time is old or unknown, one hit in 1024 probes it. The time of
//! a device at least four times slower stays valid much longer, because probes of it are costly and
//! decide little.
//!
//! All this needs a complete slow device, so it excludes dirty blocks.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

const WHOLE: u32 = 256;

/// Timed reads of the fast device per round; fewer at small shares, down to an eighth.
const ROUND: u32 = 32;

/// One in this many hits is timed, or read from the slow device to learn its time.
const TIMED: u64 = 16;
const PROBED: u64 = 1024;

/// Rounds after which the slow device's time is old; the second if it was far slower.
const KNOWN_ROUNDS: u32 = 4;
const FAR_KNOWN_ROUNDS: u32 = 256;

/// Log2 of the inverse weight of a new time in the mean.
const WEIGHT_SHIFT: u32 = 3;

/// Log2 of the inverse tolerance: an eighth slower counts as equal, against noise.
const TOLERANCE_SHIFT: u32 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Route {
    pub below: bool,
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
    round: u32,
    unknown_rounds: u32,
    /// The last news was that the cache stepped aside.
    told_aside: bool,
}

/// What an operator wants to know. With devices of nearly equal speed the cache wavers, so only a
/// whole return is news.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    Aside,
    Back,
}

#[derive(Debug)]
pub(super) struct Balance {
    /// The fast device's share, in 256ths; 1 means aside.
    share: AtomicU32,
    is_unknown: std::sync::atomic::AtomicBool,
    times: Mutex<Times>,
}

impl Balance {
    pub fn new() -> Self {
        Self { share: AtomicU32::new(WHOLE), is_unknown: true.into(), times: Mutex::default() }
    }

    fn share(&self) -> u32 {
        self.share.load(Ordering::Relaxed)
    }

    pub fn is_aside(&self) -> bool {
        self.share() == 1
    }

    /// The route of a thread's `count`-th hit.
    #[inline]
    pub fn route(&self, count: u64) -> Route {
        let share = self.share();
        // Hits for the slow device are spread evenly.
        let bucket = (count.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u32;
        let below =
            bucket >= share || (count % PROBED == PROBED - 1 && self.is_unknown.load(Ordering::Relaxed));
        Route { below, timed: below || share < WHOLE || count.is_multiple_of(TIMED) }
    }

    pub fn slow_took(&self, time: Duration) {
        if let Some(mut times) = self.times.try_lock() {
            times.slow.add(time);
            times.unknown_rounds = 0;
            self.is_unknown.store(false, Ordering::Relaxed);
        }
    }

    /// Reports the time of a one-block read from the fast device.
    pub fn fast_took(&self, time: Duration) -> Option<News> {
        let mut times = self.times.try_lock()?;
        times.fast.add(time);
        times.round += 1;
        // A small share has few reads, so a round needs fewer.
        let round = (ROUND * self.share() / WHOLE).max(ROUND / 8);
        if times.round < round {
            return None;
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
        let news = match after {
            1 if !times.told_aside => News::Aside,
            WHOLE if times.told_aside => News::Back,
            _ => return None,
        };
        times.told_aside = news == News::Aside;
        Some(news)
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
    fn a_cache_that_wavers_is_news_once() {
        let balance = Balance::new();
        balance.slow_took(100 * US);
        let mut news = Vec::new();
        for _ in 0..50 {
            // From aside to half of the hits and back.
            while !balance.is_aside() {
                news.extend(balance.fast_took(300 * US));
            }
            while balance.share() < WHOLE / 2 {
                news.extend(balance.fast_took(50 * US));
            }
        }
        assert_eq!(news, [News::Aside]);
        while balance.share() < WHOLE {
            news.extend(balance.fast_took(50 * US));
        }
        while !balance.is_aside() {
            news.extend(balance.fast_took(300 * US));
        }
        assert_eq!(news, [News::Aside, News::Back, News::Aside]);
    }

    #[test]
    fn a_faster_one_keeps_all() {
        let balance = Balance::new();
        balance.slow_took(100 * US);
        for read in 0..10_000 {
            // Noise of an eighth changes nothing.
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
