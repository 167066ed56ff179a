//! Operation latencies: an HDR histogram of nanoseconds with three exact digits.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

/// The longest distinguishable time; longer ones are clamped to it.
const NANOSECONDS_MAX: u64 = 600_000_000_000;

/// Histogram of operation times.
#[derive(Clone, Debug)]
pub struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Self {
        Latencies(
            Histogram::new_with_bounds(1, NANOSECONDS_MAX, 3).expect("the bounds are constants in order"),
        )
    }
}

impl Latencies {
    /// Counts one operation.
    #[inline]
    pub fn record(&mut self, took: Duration) {
        self.0.saturating_record(u64::try_from(took.as_nanos()).unwrap_or(NANOSECONDS_MAX).max(1));
    }

    /// Merges another thread's histogram.
    pub fn add(&mut self, other: &Latencies) {
        self.0.add(&other.0).expect("all histograms have the same bounds");
    }

    /// Operations counted.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The usual percentiles.
    pub fn summary(&self) -> Summary {
        let at = |quantile| self.0.value_at_quantile(quantile) as f64 / 1000.0;
        match self.count() {
            0 => Summary::default(),
            _ => Summary {
                p50: at(0.5),
                p90: at(0.9),
                p99: at(0.99),
                p999: at(0.999),
                max: self.0.max() as f64 / 1000.0,
            },
        }
    }

    /// The cumulative distribution: pairs of microseconds and the share of operations within them.
    pub fn curve(&self) -> Vec<(f64, f64)> {
        let total = self.count() as f64;
        let mut below = 0;
        self.0
            .iter_recorded()
            .map(|step| {
                below += step.count_since_last_iteration();
                (step.value_iterated_to() as f64 / 1000.0, below as f64 / total)
            })
            .collect()
    }
}

/// Percentiles in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, serde::Deserialize)]
pub struct Summary {
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
    /// Maximum.
    pub max: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_known_times() {
        let mut latencies = Latencies::default();
        (1..=1000).for_each(|us| latencies.record(Duration::from_micros(us)));
        let mut twice = latencies.clone();
        twice.add(&latencies);
        for latencies in [&latencies, &twice] {
            let summary = latencies.summary();
            assert!((summary.p50 - 500.0).abs() < 1.0 && (summary.p99 - 990.0).abs() < 1.5, "{summary:?}");
            assert!((summary.max - 1000.0).abs() < 1.0);
        }
        assert_eq!(twice.count(), 2000);
        let curve = twice.curve();
        assert_eq!(curve.last().unwrap().1, 1.0);
        assert!(curve.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1));
    }

    #[test]
    fn extremes_do_not_fail() {
        let mut latencies = Latencies::default();
        assert_eq!(latencies.summary(), Summary::default());
        latencies.record(Duration::ZERO);
        latencies.record(Duration::from_secs(1 << 40));
        assert_eq!(latencies.count(), 2);
        assert_eq!(latencies.summary().max, latencies.summary().p999);
    }
}
