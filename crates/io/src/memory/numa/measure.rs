//! Measures latency and bandwidth of one node's memory.
//!
//! Latency chases dependent loads through a random cycle of cache lines; bandwidth is one thread's
//! pass over the same memory. A measurement takes about 300 ms. It distinguishes kinds of memory;
//! it is too coarse to rank machines.

use std::hint::black_box;
use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::nodes::{NodeSet, check_room};
use crate::memory::region::Region;

const LINE_WORDS: usize = 8;
/// Measured memory: beyond most second-level and third-level caches.
const BYTES: usize = 64 << 20;
const LOADS: usize = 1_000_000;
/// Time per bandwidth measurement.
const BANDWIDTH_TIME: Duration = Duration::from_millis(100);

/// The speed of a node's memory for one thread.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Speed {
    /// Nanoseconds per dependent load.
    pub read_latency_ns: f64,
    /// 10^9 bytes read per second.
    pub read_gb_s: f64,
    /// 10^9 bytes written per second.
    pub write_gb_s: f64,
}

/// Measures the memory of `node` from the current processor.
///
/// ```
/// let speed = terrace_io::measure_node(0)?;
/// assert!(speed.read_latency_ns > 0.5 && speed.read_gb_s > 0.1);
/// # std::io::Result::Ok(())
/// ```
///
/// # Errors
/// As [`check_room`] and [`Region::bind_to`]; `OutOfMemory` if the kernel gave memory of another
/// node. If placement is impossible and there is only one node, measures without it.
pub fn measure_node(node: u32) -> io::Result<Speed> {
    let nodes = NodeSet::of(&[node]).map_err(|what| io::Error::new(io::ErrorKind::InvalidInput, what))?;
    check_room(&nodes, BYTES as u64)?;
    let is_only = super::nodes::nodes().len() == 1;
    let region = Region::reserve(BYTES)?;
    let placed = region.bind_to(0..BYTES, &nodes);
    if !is_only {
        placed?;
    }
    region.commit(0..BYTES)?;
    if !is_only {
        let elsewhere = region.misplaced(0..BYTES, &nodes)?;
        if elsewhere > 0 {
            let what = format!("{elsewhere} of {} pages came from elsewhere than node {node}", BYTES / 4096);
            return Err(io::Error::new(io::ErrorKind::OutOfMemory, what));
        }
    }
    Ok(speed(region.words(0..BYTES)))
}

fn speed(words: &[AtomicU64]) -> Speed {
    let read_gb_s = bandwidth(|| {
        // Several sums avoid dependent additions.
        let mut sums = [0u64; LINE_WORDS];
        for line in words.as_chunks::<LINE_WORDS>().0 {
            for (sum, word) in sums.iter_mut().zip(line) {
                *sum = sum.wrapping_add(word.load(Relaxed));
            }
        }
        black_box(sums);
    });
    let mut turn = 0;
    let write_gb_s = bandwidth(|| {
        turn += 1;
        words.iter().for_each(|word| word.store(turn, Relaxed));
    });
    Speed { read_latency_ns: latency(words), read_gb_s, write_gb_s }
}

fn bandwidth(mut pass: impl FnMut()) -> f64 {
    let began = Instant::now();
    let mut passes = 0;
    while began.elapsed() < BANDWIDTH_TIME {
        pass();
        passes += 1;
    }
    (passes * BYTES) as f64 / began.elapsed().as_nanos() as f64
}

/// Builds one random cycle through the lines (Sattolo's shuffle) and follows it.
fn latency(words: &[AtomicU64]) -> f64 {
    let lines = words.len() / LINE_WORDS;
    let mut state = 1u64;
    let mut draw = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((u128::from(state) * below as u128) >> 64) as usize
    };
    let line = |number: usize| &words[number * LINE_WORDS];
    (0..lines).for_each(|number| line(number).store(number as u64, Relaxed));
    for number in (1..lines).rev() {
        let (one, other) = (line(number), line(draw(number)));
        let swapped = one.load(Relaxed);
        one.store(other.load(Relaxed), Relaxed);
        other.store(swapped, Relaxed);
    }
    let began = Instant::now();
    let mut at = 0;
    for _ in 0..LOADS {
        at = line(at as usize).load(Relaxed);
    }
    black_box(at);
    began.elapsed().as_nanos() as f64 / LOADS as f64
}
