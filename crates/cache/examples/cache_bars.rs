//! Cost of a cache in its worst case: many writes, a large working set, a slow cache device.
//!
//! Throttled devices in memory on a virtual clock, one thread: figures are exact, reproducible, and
//! exclude the processor. Prints the rate with the cache relative to that without.
//!
//! ```text
//!   cargo run --release -p terrace-cache --example cache_bars
//! ```

use std::sync::Arc;
use std::time::Duration;

use terrace_cache::{CacheConfig, Cached, WriteMode};
use terrace_io::{AlignedBuffer, BlockDevice, Clock, Limits, MemoryDevice, ThrottledDevice, VirtualClock};

const BLOCKS: u64 = 40_000;
const BLOCK: usize = 4096;
const CAPACITY: u32 = 4000;
const STEPS: u64 = 20_000;

fn device(clock: &Arc<VirtualClock>, latency_us: u64) -> Arc<dyn BlockDevice> {
    let limits = Limits { latency: Duration::from_micros(latency_us), ..Limits::default() };
    let memory = Arc::new(MemoryDevice::new("memory", BLOCKS * BLOCK as u64));
    Arc::new(ThrottledDevice::new(memory, limits, Arc::clone(clock) as Arc<dyn Clock>))
}

/// Time of many steps, `writes` percent of them writes; a sync follows every hundred writes.
fn time(clock: &VirtualClock, device: &dyn BlockDevice, writes: u64, seed: u64) -> Duration {
    let began = clock.now();
    let mut page = AlignedBuffer::zeroed(BLOCK);
    let (mut random, mut written) = (seed, 0);
    let mut below = |limit: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % limit
    };
    for step in 0..STEPS {
        // Skewed: half of the accesses go to an eighth.
        let limit = if below(2) == 0 { BLOCKS / 8 } else { BLOCKS };
        let offset = below(limit) * BLOCK as u64;
        if below(100) < writes {
            page[..8].copy_from_slice(&step.to_le_bytes());
            page[8..16].copy_from_slice(&seed.to_le_bytes());
            device.write_at(offset, &page).expect("a write");
            written += 1;
            if written % 100 == 0 {
                device.sync().expect("a sync");
            }
        } else {
            device.read_at(offset, &mut page).expect("a read");
        }
    }
    clock.now() - began
}

/// Runs until the rate is stable, and reports when.
fn compare(policy: &str, mode: WriteMode, slow_us: u64, fast_us: u64, writes: u64, rounds: u64) {
    let clock = Arc::new(VirtualClock::default());
    let mut config = CacheConfig::new(CAPACITY).policy(policy).expect("a policy").mode(mode);
    config = config.clock(Arc::clone(&clock) as Arc<dyn Clock>).guard(device(&clock, slow_us));
    let cached = Cached::open(device(&clock, slow_us), device(&clock, fast_us), config).expect("it opens");
    let without = device(&clock, slow_us);
    let mut shares = Vec::new();
    for round in 1..=rounds {
        let with = time(&clock, &cached, writes, round);
        let share = time(&clock, &*without, writes, round).as_secs_f64() / with.as_secs_f64();
        shares.push(format!("{share:.3}"));
    }
    let stats = cached.stats();
    println!(
        "{policy} {mode:?}, slow {slow_us} us, fast {fast_us} us, {writes} % writes: {} of no cache in rounds of {STEPS}; hit ratio {:.3}, {} admitted, {} written back, aside: {}",
        shares.join(" "),
        stats.hit_ratio(),
        stats.admissions,
        stats.written_back,
        stats.is_aside
    );
}

fn main() {
    for policy in ["sieve", "obp+sieve", "small-bypass+obp+lfru"] {
        compare(policy, WriteMode::Through, 500, 80, 80, 6);
    }
    compare("sieve", WriteMode::Back, 500, 80, 80, 6);
    for (policy, writes) in [("sieve", 10), ("sieve", 50), ("obp+sieve", 10)] {
        compare(policy, WriteMode::Through, 200, 1000, writes, 18);
    }
}
