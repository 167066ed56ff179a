//! The time that counts take, on devices with profiles.
//!
//! Hits wait for the cache's device, read misses for the store; the copy into the cache is in the
//! background. An admitted write waits for the cache; others, and all if the cache writes through,
//! for the store. So there are four latencies, and quantiles are exact for a single worker.
//!
//! Throughput is the least of three bounds (operational analysis: Lazowska et al., "Quantitative
//! System Performance", 1984, chapter 5): the workers, with one request each, and the bandwidth of
//! each device, including admissions and write-backs. Queueing below the bounds is ignored; with
//! more workers, latencies would be longer.

use terrace_io::{Direction, Pattern, Profile};

use super::counts::Counts;

/// A cache device above a store.
///
/// ```
/// use terrace_io::Profile;
/// use terrace_cache::sim::{Counts, Devices};
///
/// let profile = |name| Profile::named(name).unwrap();
/// let devices = Devices::new(profile("nvme-optane"), profile("nvme-flash"), 4096, 1);
/// let all_hits = Counts { requests: 100, hits: 100, ..Counts::default() };
/// let all_misses = Counts { requests: 100, ..Counts::default() };
/// let [hits, misses] = [all_hits, all_misses].map(|counts| devices.cost(&counts));
/// assert!(misses.mean_us > hits.mean_us && misses.requests_per_second < hits.requests_per_second);
/// ```
#[derive(Clone, Debug)]
pub struct Devices {
    cache: Profile,
    store: Profile,
    block_bytes: u64,
    workers: usize,
}

/// The cost of a trace's requests.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Mean microseconds per request.
    pub mean_us: f64,
    /// Median microseconds per request.
    pub p50_us: f64,
    /// 99th percentile in microseconds.
    pub p99_us: f64,
    /// Bound of the total requests per second.
    pub requests_per_second: f64,
}

struct Work {
    reads: u64,
    writes: u64,
}

impl Devices {
    /// A cache over a store, with random requests for blocks of `block_bytes` by `workers`.
    pub fn new(cache: Profile, store: Profile, block_bytes: u64, workers: usize) -> Devices {
        Devices { cache, store, block_bytes, workers: workers.max(1) }
    }

    /// The cost of `counts`; 0 without requests.
    pub fn cost(&self, counts: &Counts) -> Cost {
        if counts.requests == 0 {
            return Cost::default();
        }
        let written_around = counts.write_misses - counts.write_admissions;
        let to_store = written_around + counts.written_through;
        let read_misses = counts.misses() - counts.write_misses;
        let time = |profile: &Profile, direction| {
            profile.time_of(direction, Pattern::Random, self.block_bytes).as_secs_f64() * 1e6
        };
        let mut classes = [
            (time(&self.cache, Direction::Read), counts.hits - counts.write_hits),
            (
                time(&self.cache, Direction::Write),
                counts.write_hits + counts.write_admissions - counts.written_through,
            ),
            (time(&self.store, Direction::Read), read_misses),
            (time(&self.store, Direction::Write), to_store),
        ];
        classes.sort_by(|a, b| a.0.total_cmp(&b.0));
        let requests = counts.requests as f64;
        let mean_us = classes.iter().map(|(time, count)| time * *count as f64).sum::<f64>() / requests;
        let quantile = |share: f64| {
            let mut seen = 0;
            let reached = classes.iter().find(|(_, count)| {
                seen += count;
                seen as f64 >= share * requests
            });
            reached.map_or(0.0, |(time, _)| *time)
        };
        let cache = Work {
            reads: counts.hits - counts.write_hits + counts.write_backs,
            writes: counts.device_writes(),
        };
        let store = Work { reads: read_misses, writes: to_store + counts.write_backs };
        let busy_seconds = self.seconds(&self.cache, &cache).max(self.seconds(&self.store, &store));
        let by_workers = self.workers as f64 / (mean_us / 1e6);
        Cost {
            mean_us,
            p50_us: quantile(0.5),
            p99_us: quantile(0.99),
            requests_per_second: by_workers.min(requests / busy_seconds),
        }
    }

    /// A device's time for its work at full bandwidth.
    fn seconds(&self, profile: &Profile, work: &Work) -> f64 {
        let blocks = (work.reads + work.writes).max(1);
        let writers = (self.workers as f64 * work.writes as f64 / blocks as f64).ceil() as usize;
        let seconds = |direction, count: u64| {
            let gb_s = profile.gb_s(direction, Pattern::Random) * profile.share(direction, writers);
            count as f64 * self.block_bytes as f64 / (gb_s * 1e9)
        };
        seconds(Direction::Read, work.reads) + seconds(Direction::Write, work.writes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn devices(workers: usize) -> Devices {
        let named = |name| Profile::named(name).unwrap();
        Devices::new(named("nvme-optane"), named("nvme-flash"), 4096, workers)
    }

    #[test]
    fn a_worker_alone_waits_for_each_request() {
        let counts = Counts { requests: 100, hits: 98, admissions: 2, ..Counts::default() };
        let devices = devices(1);
        let cost = devices.cost(&counts);
        let time =
            |profile: &Profile| profile.time_of(Direction::Read, Pattern::Random, 4096).as_secs_f64() * 1e6;
        let (hit, miss) = (time(&devices.cache), time(&devices.store));
        assert!((cost.mean_us - (0.98 * hit + 0.02 * miss)).abs() < 1e-9);
        assert_eq!((cost.p50_us, cost.p99_us), (hit, miss));
        assert!((cost.requests_per_second * cost.mean_us - 1e6).abs() < 1e-3);
    }

    #[test]
    fn writes_wait_where_they_go() {
        let write = Counts { requests: 10, write_misses: 10, ..Counts::default() };
        let admitted = Counts { admissions: 10, write_admissions: 10, ..write };
        let devices = devices(1);
        let time =
            |profile: &Profile| profile.time_of(Direction::Write, Pattern::Random, 4096).as_secs_f64() * 1e6;
        assert_eq!(devices.cost(&write).p50_us, time(&devices.store));
        assert_eq!(devices.cost(&admitted).p50_us, time(&devices.cache));
        let through = Counts { written_through: 10, ..admitted };
        assert_eq!(devices.cost(&through).p50_us, time(&devices.store));
    }

    #[test]
    fn many_workers_are_held_up_by_bandwidth_and_write_backs() {
        let counts = Counts { requests: 100, hits: 50, admissions: 50, evictions: 50, ..Counts::default() };
        let [one, two, many, more] = [1, 2, 4096, 8192].map(|workers| devices(workers).cost(&counts));
        assert!((two.requests_per_second / one.requests_per_second - 2.0).abs() < 1e-9);
        assert_eq!(many.requests_per_second, more.requests_per_second);
        let dirty = Counts { write_backs: 50, ..counts };
        assert!(devices(4096).cost(&dirty).requests_per_second < many.requests_per_second);
        assert_eq!(devices(4).cost(&Counts::default()), Cost::default());
    }
}
