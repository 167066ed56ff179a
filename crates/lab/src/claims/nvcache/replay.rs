//! Replays recorded page requests over N6's devices, in virtual time.
//!
//! The block cache is the live one that N6 has before the page file, on simulated Optane memory. A
//! request is one of a page, by the worker whose clock is furthest behind, and waits for what it
//! needs: so a worker of the replay is no process of the recording.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Cursor;
use std::sync::Arc;
use std::time::Duration;

use terrace_cache::trace::{Event, Trace};
use terrace_cache::{CacheConfig, CacheStats, Cached};
use terrace_common::failure::{Failure, Outcome};
use terrace_io::{
    AlignedBuffer, BlockDevice, Clock, MemoryDevice, Profile, SimulatedDevice, Time, VirtualTime,
};

/// Bytes of the cache's blocks, as in N6.
const BLOCK_BYTES: u64 = 4096;

/// Requests of pages, in the order of the recording.
pub struct Requests {
    page_bytes: u64,
    /// Page numbers, and whether it is a write.
    all: Vec<(u64, bool)>,
    /// Requests that are not counted.
    warmup: usize,
    /// Number of different pages.
    pages: u64,
}

impl Requests {
    /// Those of a recording, of which `counted` is the query that counts.
    pub fn of(recording: Vec<u8>, page_bytes: u64, counted: &str) -> Outcome<Requests> {
        let format = "pgt".parse().expect("a format");
        let (mut requests, mut warmup) = (Vec::new(), 0);
        for event in Trace::new("recording", Cursor::new(recording), format, page_bytes as u32) {
            match event.map_err(failed)? {
                Event::Query(query) if query.template == counted => warmup = requests.len(),
                Event::Request(request) => requests.push((request.block, request.write)),
                _ => {}
            }
        }
        // Pages that adjoin each other stay so.
        let pages: BTreeSet<u64> = requests.iter().map(|(block, _)| *block).collect();
        let numbers: BTreeMap<u64, u64> = pages.into_iter().zip(0..).collect();
        let all = requests.iter().map(|(block, is_write)| (numbers[block], *is_write)).collect();
        Ok(Requests { page_bytes, all, warmup, pages: numbers.len() as u64 })
    }

    /// Requests that count.
    pub fn counted(&self) -> usize {
        self.all.len() - self.warmup
    }

    /// Bytes that those write.
    pub fn written_bytes(&self) -> u64 {
        let writes = self.all[self.warmup..].iter().filter(|(_, is_write)| *is_write);
        writes.count() as u64 * self.page_bytes
    }
}

/// A block cache on simulated memory.
pub struct FastCache {
    pub policy: &'static str,
    pub memory: Profile,
    pub bytes: u64,
    /// What the system above caches, for `small-bypass`.
    pub dram_bytes: u64,
}

/// What the requests that count took.
pub struct Replayed {
    pub duration: Duration,
    /// What the cache did, if there is one.
    pub cache: CacheStats,
}

/// The calling worker's clock.
#[derive(Debug)]
struct WorkersClock(Arc<VirtualTime>);

impl Clock for WorkersClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.0.now(self.0.worker()))
    }

    fn sleep_until(&self, deadline: Duration) {
        let left = deadline.saturating_sub(self.now());
        self.0.spend(self.0.worker(), left.as_nanos() as u64);
    }
}

/// Sets all clocks to the latest and returns it.
fn level(time: &VirtualTime) -> u64 {
    let last = time.elapsed_ns();
    (0..time.workers()).for_each(|worker| time.spend(worker, last - time.now(worker)));
    last
}

/// Replays `requests` over `disk`, each after `computing` nanoseconds of its worker.
pub fn replay(
    requests: &Requests,
    workers: usize,
    computing: u64,
    disk: &Profile,
    cache: Option<&FastCache>,
) -> Outcome<Replayed> {
    let time = Arc::new(VirtualTime::new(workers));
    time.enter(0);
    let simulated = |inner: MemoryDevice, profile: &Profile| -> Arc<dyn BlockDevice> {
        let time = Time::Virtual(Arc::clone(&time));
        Arc::new(SimulatedDevice::new(Arc::new(inner), profile.clone(), time))
    };
    let pages = MemoryDevice::new("pages", requests.pages * requests.page_bytes);
    let disk = simulated(pages, disk);
    let cached = match cache {
        None => None,
        Some(cache) => {
            let blocks = u32::try_from(cache.bytes.div_ceil(BLOCK_BYTES)).map_err(failed)?;
            let config = CacheConfig::new(blocks).policy(cache.policy).map_err(failed)?;
            let config = config.clock(Arc::new(WorkersClock(Arc::clone(&time))));
            let dram_blocks = Some(cache.dram_bytes / BLOCK_BYTES);
            let config = CacheConfig { dram_blocks, verify_hits: false, ..config };
            let fast = simulated(MemoryDevice::new("the cache", 0), &cache.memory);
            Some(Cached::open(Arc::clone(&disk), fast, config).map_err(failed)?)
        }
    };
    let device: &dyn BlockDevice = cached.as_ref().map_or(&*disk, |cached| cached);
    let stats = || cached.as_ref().map(Cached::stats).unwrap_or_default();
    let mut page = AlignedBuffer::zeroed(requests.page_bytes as usize);
    let mut work = |requests_now: &[(u64, bool)]| -> Outcome {
        for &(number, is_write) in requests_now {
            let worker = time.next();
            time.enter(worker);
            time.spend(worker, computing);
            let offset = number * requests.page_bytes;
            match is_write {
                true => device.write_at(offset, &page),
                false => device.read_at(offset, &mut page),
            }
            .map_err(failed)?;
        }
        Ok(())
    };
    let (warmup, counted) = requests.all.split_at(requests.warmup);
    work(warmup)?;
    let (begun, before) = (level(&time), stats());
    work(counted)?;
    let duration = Duration::from_nanos((time.elapsed_ns() - begun).max(1));
    Ok(Replayed { duration, cache: stats().since(&before) })
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::Work(format!("replaying requests: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE_BYTES: u64 = 8192;

    fn requests(operation: char) -> Requests {
        let run = |name: &str, number: u32| {
            let lines = (0..4000).map(|step| format!("{operation} 1 0 {} {number}\n", step * 7 % 100));
            format!("Q 1 {number} 0 {name} 0\n{}", lines.collect::<String>())
        };
        let text = format!("R 0 a r\n{}{}", run("warm-up", 1), run("counted", 2));
        Requests::of(text.into_bytes(), PAGE_BYTES, "counted").unwrap()
    }

    #[test]
    fn reads_gain_by_a_cache_and_writes_lose_by_admissions() {
        let named = |name| Profile::named(name).unwrap();
        let of = |requests: &Requests, policy: Option<&'static str>| {
            let (memory, bytes) = (named("optane-2"), 200 * PAGE_BYTES);
            let cache = policy.map(|policy| FastCache { policy, memory, bytes, dram_bytes: 0 });
            replay(requests, 8, 600, &named("nvme-optane"), cache.as_ref()).unwrap()
        };
        let reads = requests('r');
        assert_eq!((reads.counted(), reads.pages, reads.written_bytes()), (4000, 100, 0));
        let [none, cached] = [of(&reads, None), of(&reads, Some("lru"))];
        assert_eq!(cached.cache.hit_ratio(), 1.0);
        assert!(none.duration > 3 * cached.duration, "{:?} {:?}", none.duration, cached.duration);
        assert_eq!(of(&reads, Some("lru")).duration, cached.duration, "it repeats");
        let writes = requests('w');
        assert_eq!(writes.written_bytes(), 4000 * PAGE_BYTES);
        assert!(of(&writes, Some("lru")).duration > of(&writes, None).duration);
    }
}
