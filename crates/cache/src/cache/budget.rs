//! The endurance budget: bytes per day that may be written to the fast device.
//!
//! It accrues evenly and saves up at most one hour. Admissions wait until it affords them.
//! Necessary writes happen at once, and later admissions pay for them.

use std::sync::Arc;
use std::time::Duration;

use super::CacheConfig;
use super::stats::Counter;
use terrace_io::Clock;

const DAY_NANOSECONDS: u128 = 86_400 * 1_000_000_000;

/// The share of a day's budget that can be saved: one in this many.
const SAVED_PARTS: u64 = 24;

/// The budget of one cache; no limit if unset.
#[derive(Debug, Default)]
pub(super) struct Budget {
    limit: Option<Limit>,
}

#[derive(Debug)]
struct Limit {
    bytes_day: u64,
    clock: Arc<dyn Clock>,
    written_bytes: Arc<Counter>,
    paid_bytes: u64,
    /// Remaining bytes; negative after overdrawing.
    bytes: i128,
    earned_until: Duration,
}

impl Budget {
    pub fn new(config: &CacheConfig, written_bytes: Arc<Counter>) -> Self {
        let limit = |bytes_day: u64| Limit {
            bytes_day,
            bytes: i128::from(bytes_day / SAVED_PARTS),
            earned_until: config.clock.now(),
            clock: Arc::clone(&config.clock),
            paid_bytes: 0,
            written_bytes: Arc::clone(&written_bytes),
        };
        Self { limit: config.write_budget_bytes_day.map(limit) }
    }

    pub fn affords(&mut self, bytes: u64) -> bool {
        self.limit.as_mut().is_none_or(|limit| {
            limit.pay();
            limit.earn();
            limit.bytes >= i128::from(bytes)
        })
    }
}

impl Limit {
    fn pay(&mut self) {
        let written = self.written_bytes.get();
        self.bytes -= i128::from(written - self.paid_bytes);
        self.paid_bytes = written;
    }

    fn earn(&mut self) {
        let now = self.clock.now();
        let time = now.saturating_sub(self.earned_until).as_nanos();
        let bytes_day = u128::from(self.bytes_day);
        let earned = time.saturating_mul(bytes_day) / DAY_NANOSECONDS;
        if earned > 0 {
            let saved_max = i128::from(self.bytes_day / SAVED_PARTS);
            self.bytes = (self.bytes + earned as i128).min(saved_max);
            // Fractions of a byte are earned next time.
            let paid = (earned * DAY_NANOSECONDS / bytes_day).min(time);
            self.earned_until += Duration::from_nanos(u64::try_from(paid).unwrap_or(u64::MAX));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_io::VirtualClock;

    #[test]
    fn a_day_earns_the_budget_and_no_more_than_an_hour_is_saved() {
        let clock = Arc::new(VirtualClock::default());
        let mut config = CacheConfig::new(10).clock(Arc::clone(&clock) as Arc<dyn Clock>);
        config.write_budget_bytes_day = Some(24_000_000);
        let meter = Arc::new(Counter::default());
        let mut budget = Budget::new(&config, Arc::clone(&meter));
        let mut spent = 0_u64;
        for second in 0..86_400 {
            clock.sleep_until(Duration::from_secs(second));
            while budget.affords(4096) {
                meter.add(4096);
                spent += 4096;
            }
        }
        // A day's budget, and the hour saved at the start.
        assert!((24_990_000..25_010_000).contains(&spent), "{spent}");
        clock.sleep_until(Duration::from_secs(10 * 86_400));
        assert!(budget.affords(1_000_000) && !budget.affords(1_000_001));
        meter.add(3_000_000);
        assert!(!budget.affords(1), "what had to be written is paid later");
    }
}
