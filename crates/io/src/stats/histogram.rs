//! Latency histograms with logarithmic buckets.
//!
//! Each power of two of nanoseconds has eight buckets of equal width (the layout of HDR
//! histograms). So a quantile is at most an eighth too high, in constant memory. Threads count in
//! different slots, and readers add the slots.

use std::fmt::{self, Debug, Write};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::{Family, Field, Text};

/// Shorter latencies share a bucket: reading the clock takes about as long.
const LOWEST_NS: u64 = 1 << LOWEST_BITS;
const LOWEST_BITS: u32 = 7;
/// Longer latencies share the last bucket, of 68 seconds.
const HIGHEST_BITS: u32 = 36;
const PARTS_BITS: u32 = 3;
const PARTS: usize = 1 << PARTS_BITS;
const BUCKETS: usize = 1 + (HIGHEST_BITS - LOWEST_BITS) as usize * PARTS;
/// Slots; threads beyond that share.
const SLOTS: usize = 8;
/// Bucket limits for Prometheus, as powers of two: from a microsecond to 17 seconds.
const OCTAVES: std::ops::RangeInclusive<u32> = 10..=34;

fn bucket_of(ns: u64) -> usize {
    if ns < LOWEST_NS {
        return 0;
    }
    let bits = ns.ilog2();
    let part = (ns >> (bits - PARTS_BITS)) as usize & (PARTS - 1);
    (1 + (bits - LOWEST_BITS) as usize * PARTS + part).min(BUCKETS - 1)
}

fn highest_of(bucket: usize) -> u64 {
    let Some(above) = bucket.checked_sub(1) else { return LOWEST_NS - 1 };
    let (bits, part) = (LOWEST_BITS + (above / PARTS) as u32, (above % PARTS) as u64);
    ((PARTS as u64 + part + 1) << (bits - PARTS_BITS)) - 1
}

/// Alone on its cache lines, because the neighbour line is prefetched.
#[derive(Debug)]
#[repr(align(128))]
struct Slot {
    buckets: [AtomicU64; BUCKETS],
    total_ns: AtomicU64,
    max_ns: AtomicU64,
}

/// A concurrent histogram of latencies.
///
/// ```
/// use std::time::Duration;
/// use terrace_io::stats::Histogram;
///
/// let histogram = Histogram::default();
/// histogram.record(Duration::from_micros(1), 0);
/// assert_eq!(histogram.latency().max_ns, 1000);
/// ```
pub struct Histogram {
    slots: Box<[Slot]>,
}

impl Default for Histogram {
    fn default() -> Self {
        let slot = || Slot {
            buckets: [const { AtomicU64::new(0) }; BUCKETS],
            total_ns: AtomicU64::new(0),
            max_ns: AtomicU64::new(0),
        };
        Histogram { slots: (0..SLOTS).map(|_| slot()).collect() }
    }
}

impl Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.latency().fmt(f)
    }
}

impl Histogram {
    /// Counts a latency. Threads of different numbers are less in each other's way.
    pub fn record(&self, latency: Duration, thread: u64) {
        // 64 bits of nanoseconds last 584 years.
        let ns = latency.as_nanos() as u64;
        let slot = &self.slots[thread as usize % SLOTS];
        slot.buckets[bucket_of(ns)].fetch_add(1, Relaxed);
        slot.total_ns.fetch_add(ns, Relaxed);
        if slot.max_ns.load(Relaxed) < ns {
            slot.max_ns.fetch_max(ns, Relaxed);
        }
    }

    /// Its memory, bytes.
    pub fn size_bytes(&self) -> usize {
        size_of_val(&*self.slots)
    }

    /// What was counted so far.
    pub fn latency(&self) -> Latency {
        let sum = |of: fn(&Slot) -> &AtomicU64| self.slots.iter().map(|slot| of(slot).load(Relaxed)).sum();
        let counts = (0..BUCKETS).map(|bucket| {
            let count = self.slots.iter().map(|slot| slot.buckets[bucket].load(Relaxed)).sum();
            Bucket { up_to_ns: highest_of(bucket), count }
        });
        let buckets: Vec<Bucket> = counts.filter(|bucket| bucket.count > 0).collect();
        let max_ns = self.slots.iter().map(|slot| slot.max_ns.load(Relaxed)).max().unwrap_or(0);
        Latency::new(buckets, sum(|slot| &slot.total_ns), max_ns)
    }
}

/// Distribution of one latency since the beginning.
///
/// ```
/// # use std::time::Duration;
/// let histogram = terrace_io::stats::Histogram::default();
/// for microseconds in 1..=100 {
///     histogram.record(Duration::from_micros(microseconds), 0);
/// }
/// let reads = histogram.latency();
/// assert!(reads.count == 100 && reads.p50_ns >= 50_000 && reads.p50_ns <= reads.max_ns);
/// assert_eq!(reads.quantile_ns(1.0), reads.max_ns);
/// assert_eq!(reads.at_most(reads.max_ns), reads.count);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Latency {
    /// Number of measurements.
    pub count: u64,
    /// Sum, nanoseconds.
    pub total_ns: u64,
    /// Median, nanoseconds. Quantiles are upper bounds, at most an eighth too high.
    pub p50_ns: u64,
    /// 90th percentile, nanoseconds.
    pub p90_ns: u64,
    /// 99th percentile, nanoseconds.
    pub p99_ns: u64,
    /// 99.9th percentile, nanoseconds.
    pub p999_ns: u64,
    /// Maximum, exact, nanoseconds.
    pub max_ns: u64,
    /// Non-empty buckets, shortest first.
    pub buckets: Vec<Bucket>,
}

/// Number of latencies in one interval.
///
/// ```
/// let bucket = terrace_io::stats::Bucket { up_to_ns: 1023, count: 7 };
/// assert_eq!(bucket.count, 7);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Bucket {
    /// Upper end, inclusive, nanoseconds. The previous bucket's end is the lower one.
    pub up_to_ns: u64,
    /// Number of latencies.
    pub count: u64,
}

impl Latency {
    fn new(buckets: Vec<Bucket>, total_ns: u64, max_ns: u64) -> Self {
        let count = buckets.iter().map(|bucket| bucket.count).sum();
        let all = Latency { count, total_ns, max_ns, buckets, ..Latency::default() };
        let quantile = |quantile| all.quantile_ns(quantile);
        let (p50_ns, p90_ns) = (quantile(0.5), quantile(0.9));
        let (p99_ns, p999_ns) = (quantile(0.99), quantile(0.999));
        Latency { p50_ns, p90_ns, p99_ns, p999_ns, ..all }
    }

    /// The latencies since `earlier`; the maximum is that of all.
    fn minus(&self, earlier: &Latency) -> Latency {
        let before = |end: u64| {
            earlier.buckets.iter().find(|bucket| bucket.up_to_ns == end).map_or(0, |bucket| bucket.count)
        };
        let since = |bucket: &Bucket| Bucket {
            count: bucket.count.saturating_sub(before(bucket.up_to_ns)),
            up_to_ns: bucket.up_to_ns,
        };
        let buckets = self.buckets.iter().map(since).filter(|bucket| bucket.count > 0).collect();
        Latency::new(buckets, self.total_ns.saturating_sub(earlier.total_ns), self.max_ns)
    }

    /// The quantile at `share` (0 to 1), nanoseconds, at most an eighth too high; 0 without
    /// measurements.
    pub fn quantile_ns(&self, share: f64) -> u64 {
        let rank = ((share.clamp(0.0, 1.0) * self.count as f64).ceil() as u64).max(1);
        let mut seen = 0;
        for bucket in &self.buckets {
            seen += bucket.count;
            if seen >= rank {
                return bucket.up_to_ns.min(self.max_ns);
            }
        }
        self.max_ns
    }

    /// Number of latencies of at most `ns`; exact at bucket ends.
    pub fn at_most(&self, ns: u64) -> u64 {
        let within = |bucket: &&Bucket| bucket.up_to_ns.min(self.max_ns) <= ns;
        self.buckets.iter().take_while(within).map(|bucket| bucket.count).sum()
    }

    /// Cumulative counts at fixed bucket ends, in nanoseconds.
    fn by_octave(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        OCTAVES.map(|bits| {
            let end = (1 << bits) - 1;
            let within = |bucket: &&Bucket| bucket.up_to_ns <= end;
            (end, self.buckets.iter().take_while(within).map(|bucket| bucket.count).sum())
        })
    }
}

impl Field for Latency {
    fn show(&self, family: &Family, label: &str, text: &mut Text) {
        let (name, lines) = (family.name, text.lines(family));
        let seconds = |ns: u64| ns as f64 / 1e9;
        let (before, alone) = match family.label {
            "" => (String::new(), String::new()),
            own => (format!("{own}=\"{label}\","), format!("{{{own}=\"{label}\"}}")),
        };
        for (up_to_ns, count) in self.by_octave() {
            _ = writeln!(lines, "{name}_bucket{{{before}le=\"{}\"}} {count}", seconds(up_to_ns));
        }
        _ = writeln!(lines, "{name}_bucket{{{before}le=\"+Inf\"}} {}", self.count);
        _ = writeln!(
            lines,
            "{name}_sum{alone} {}\n{name}_count{alone} {}",
            seconds(self.total_ns),
            self.count
        );
    }

    fn since(&self, earlier: &Self, _: &Family) -> Self {
        self.minus(earlier)
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::SmallRng;
    use rand::{RngExt, SeedableRng};

    use super::*;

    #[test]
    fn a_difference_has_the_latencies_between() {
        let histogram = Histogram::default();
        let record = |ns| histogram.record(Duration::from_nanos(ns), 0);
        record(1000);
        let earlier = histogram.latency();
        record(1000);
        record(100_000);
        let since = histogram.latency().minus(&earlier);
        assert_eq!((since.count, since.total_ns, since.max_ns), (2, 101_000, 100_000));
        assert_eq!(since.at_most(2000), 1);
    }

    #[test]
    fn prometheus_shows_buckets_with_the_label_of_the_family() {
        let histogram = Histogram::default();
        histogram.record(Duration::from_nanos(1500), 0);
        let shown = |family: &Family, label| {
            let mut text = Text::default();
            histogram.latency().show(family, label, &mut text);
            text.finish()
        };
        let text = shown(&Family::histogram("reads", "Reads."), "");
        let lines = ["reads_bucket{le=\"0.000002047\"} 1\n", "reads_sum 0.0000015\nreads_count 1\n"];
        assert!(lines.iter().all(|line| text.contains(line)), "{text}");
        let text = shown(&Family::histogram("reads", "Reads.").by("from"), "disk");
        let lines = ["reads_bucket{from=\"disk\",le=\"0.000001023\"} 0\n", "reads_count{from=\"disk\"} 1\n"];
        assert!(lines.iter().all(|line| text.contains(line)), "{text}");
    }

    #[test]
    fn buckets_follow_each_other_and_are_an_eighth_wide() {
        let mut before = LOWEST_NS - 1;
        for bucket in 1..BUCKETS {
            let highest = highest_of(bucket);
            assert_eq!(
                (bucket_of(before), bucket_of(before + 1), bucket_of(highest)),
                (bucket - 1, bucket, bucket)
            );
            assert!((highest - before) * 8 <= before + 1, "{bucket}");
            before = highest;
        }
        assert_eq!(before, (1 << HIGHEST_BITS) - 1);
        assert_eq!((bucket_of(0), bucket_of(u64::MAX)), (0, BUCKETS - 1));
    }

    /// Compares with all values, sorted.
    #[test]
    fn quantiles_are_at_most_an_eighth_too_high() {
        for seed in 0..20 {
            let mut random = SmallRng::seed_from_u64(seed);
            let histogram = Histogram::default();
            let mut values: Vec<u64> = (0..random.random_range(1..3000))
                .map(|_| {
                    let bits = random.random_range(8..40);
                    random.random_range(LOWEST_NS..1 << bits)
                })
                .collect();
            values.iter().for_each(|&ns| histogram.record(Duration::from_nanos(ns), 0));
            values.sort_unstable();
            let found = histogram.latency();
            assert_eq!(
                (found.count, found.total_ns),
                (values.len() as u64, values.iter().sum()),
                "seed {seed}"
            );
            assert_eq!(found.max_ns, *values.last().unwrap(), "seed {seed}");
            for share in [0.0, 0.1, 0.5, 0.9, 0.99, 0.999] {
                let rank = ((share * values.len() as f64).ceil() as usize).max(1);
                let (exact, quantile) = (values[rank - 1], found.quantile_ns(share));
                let in_range = exact < 1 << HIGHEST_BITS;
                assert!(
                    quantile >= exact.min((1 << HIGHEST_BITS) - 1),
                    "seed {seed}, {share}: {quantile} of {exact}"
                );
                assert!(
                    !in_range || quantile <= exact + exact / 8 + 1,
                    "seed {seed}, {share}: {quantile} of {exact}"
                );
            }
            let cumulated: Vec<_> = found.by_octave().collect();
            for (end, count) in cumulated {
                let exact = values.iter().filter(|&&ns| ns <= end).count() as u64;
                assert_eq!(count, exact, "seed {seed}, at most {end}");
            }
        }
    }

    #[test]
    fn all_threads_are_counted() {
        let histogram = Histogram::default();
        std::thread::scope(|scope| {
            for thread in 0..20u64 {
                let histogram = &histogram;
                scope.spawn(move || {
                    (0..500).for_each(|ns| histogram.record(Duration::from_nanos(ns * 100 + thread), thread));
                });
            }
        });
        let found = histogram.latency();
        assert_eq!((found.count, found.max_ns), (10_000, 49_919));
        assert_eq!(found.at_most(u64::MAX), 10_000);
        assert!(histogram.size_bytes() < 24 << 10);
        assert_eq!(Histogram::default().latency(), Latency::default());
    }
}
