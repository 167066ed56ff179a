//! Latencies, counted in buckets that grow with them.
//!
//! Every power of two of nanoseconds has eight buckets of equal width (the layout of HDR histograms), so a quantile is
//! at most an eighth too high, in constant memory. Threads count in slots of their own, because commits of many
//! threads end at the same moment; a reader adds the slots up.

use std::fmt::{self, Debug};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use serde::Serialize;

use crate::threads::{Padded, thread_number};

/// Shorter latencies are not told apart: a clock reading takes about as long.
const LOWEST_NS: u64 = 1 << LOWEST_BITS;
const LOWEST_BITS: u32 = 7;
/// Longer ones are counted with those of 68 seconds.
const HIGHEST_BITS: u32 = 36;
const PARTS_BITS: u32 = 3;
const PARTS: usize = 1 << PARTS_BITS;
const BUCKETS: usize = 1 + (HIGHEST_BITS - LOWEST_BITS) as usize * PARTS;
/// Slots of threads; those beyond share.
const SLOTS: usize = 8;
/// The upper ends of what [`Latency::at_most`] is asked for by Prometheus: from a microsecond to 17 seconds.
const OCTAVES: std::ops::RangeInclusive<u32> = 10..=34;

/// The bucket of a latency.
fn bucket_of(ns: u64) -> usize {
    if ns < LOWEST_NS {
        return 0;
    }
    let bits = ns.ilog2();
    let part = (ns >> (bits - PARTS_BITS)) as usize & (PARTS - 1);
    (1 + (bits - LOWEST_BITS) as usize * PARTS + part).min(BUCKETS - 1)
}

/// The highest latency of a bucket.
fn highest_of(bucket: usize) -> u64 {
    let Some(above) = bucket.checked_sub(1) else { return LOWEST_NS - 1 };
    let (bits, part) = (LOWEST_BITS + (above / PARTS) as u32, (above % PARTS) as u64);
    ((PARTS as u64 + part + 1) << (bits - PARTS_BITS)) - 1
}

#[derive(Debug)]
struct Slot {
    buckets: [AtomicU64; BUCKETS],
    total_ns: AtomicU64,
    max_ns: AtomicU64,
}

/// Counts latencies.
pub(crate) struct Histogram {
    slots: Box<[Padded<Slot>]>,
}

impl Default for Histogram {
    fn default() -> Self {
        let slot = || {
            Padded(Slot {
                buckets: [const { AtomicU64::new(0) }; BUCKETS],
                total_ns: AtomicU64::new(0),
                max_ns: AtomicU64::new(0),
            })
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
    /// Counts one latency.
    pub(crate) fn record(&self, latency: Duration) {
        // 64 bits of nanoseconds last 584 years.
        let ns = latency.as_nanos() as u64;
        let slot = &*self.slots[thread_number() as usize % SLOTS];
        slot.buckets[bucket_of(ns)].fetch_add(1, Relaxed);
        slot.total_ns.fetch_add(ns, Relaxed);
        if slot.max_ns.load(Relaxed) < ns {
            slot.max_ns.fetch_max(ns, Relaxed);
        }
    }

    /// Bytes of memory taken.
    pub(crate) fn size_bytes(&self) -> usize {
        size_of_val(&*self.slots)
    }

    /// What was counted so far.
    pub(crate) fn latency(&self) -> Latency {
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

/// How often something took how long, since the database was opened.
///
/// ```
/// use terrace::{Db, MemoryDirectory};
///
/// # let directory = std::sync::Arc::new(MemoryDirectory::new());
/// let db = Db::builder().directory(directory).dram(4 << 20).open("")?;
/// db.create_table("t")?.put("k", "v")?;
/// let commit = db.stats().commit;
/// assert!(commit.count >= 2 && commit.p50_ns <= commit.max_ns);
/// assert_eq!(commit.quantile_ns(1.0), commit.max_ns);
/// assert_eq!(commit.at_most(commit.max_ns), commit.count);
/// # Ok::<(), terrace::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Latency {
    /// How often it was measured.
    pub count: u64,
    /// All of it together, in nanoseconds.
    pub total_ns: u64,
    /// Half of the times it took at most this many nanoseconds, or an eighth less; the others likewise.
    pub p50_ns: u64,
    /// Nine of ten times.
    pub p90_ns: u64,
    /// 99 of 100 times.
    pub p99_ns: u64,
    /// 999 of 1000 times.
    pub p999_ns: u64,
    /// The longest time, exactly.
    pub max_ns: u64,
    /// What was counted, the shortest first; only where there was something.
    pub buckets: Vec<Bucket>,
}

/// Latencies of nearly the same length.
///
/// ```
/// let bucket = terrace::Bucket { up_to_ns: 1023, count: 7 };
/// assert_eq!(bucket.count, 7);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Bucket {
    /// None of them was longer than this, in nanoseconds, and all are longer than the bucket before allows.
    pub up_to_ns: u64,
    /// How many there were.
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

    /// What this share of the times (0 to 1) took at most, in nanoseconds, or an eighth less; 0 if nothing was measured.
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

    /// How often it took at most this many nanoseconds; exact for the end of a bucket.
    pub fn at_most(&self, ns: u64) -> u64 {
        let within = |bucket: &&Bucket| bucket.up_to_ns.min(self.max_ns) <= ns;
        self.buckets.iter().take_while(within).map(|bucket| bucket.count).sum()
    }

    /// Cumulated counts at fixed ends of buckets: nanoseconds, and how often it took at most that.
    pub(super) fn by_octave(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        OCTAVES.map(|bits| {
            let end = (1 << bits) - 1;
            let within = |bucket: &&Bucket| bucket.up_to_ns <= end;
            (end, self.buckets.iter().take_while(within).map(|bucket| bucket.count).sum())
        })
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::SmallRng;
    use rand::{RngExt, SeedableRng};

    use super::*;

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

    /// Against all values, sorted.
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
            values.iter().for_each(|&ns| histogram.record(Duration::from_nanos(ns)));
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
                    (0..500).for_each(|ns| histogram.record(Duration::from_nanos(ns * 100 + thread)));
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
