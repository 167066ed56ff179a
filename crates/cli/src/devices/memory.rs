//! Latency and bandwidth of one node's memory.

use std::hint::black_box;
use std::thread;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::{Node, bind};

/// Words of a cache line.
const LINE_WORDS: usize = 8;
/// Memory walked through: beyond the second-level caches, and the third of most machines.
const BYTES: usize = 64 << 20;
/// Loads of the chase.
const LOADS: usize = 1_000_000;
/// How long each bandwidth is measured.
const BANDWIDTH_TIME: Duration = Duration::from_millis(100);

/// Measures a node; what cannot be measured says why instead.
pub fn measure(mut node: Node) -> Node {
    if node.bytes < 4 * BYTES as u64 {
        node.unmeasured = Some("too little memory on it".to_owned());
        return node;
    }
    let number = node.node;
    // A thread of its own, since where memory comes from is a property of the thread.
    let measured = thread::spawn(move || {
        // Without the permission, or the kernel support, there is only the default node to measure.
        bind::allocate_on(number)
            .or_else(|error| if number == 0 { Ok(()) } else { Err(error) })
            .map(|()| speeds())
    });
    match measured.join() {
        Ok(Ok((latency, read, write))) => {
            (node.read_latency_ns, node.read_gb_s, node.write_gb_s) = (latency, read, write);
        }
        Ok(Err(error)) => node.unmeasured = Some(format!("its memory cannot be had: {error}")),
        Err(_) => node.unmeasured = Some("the measurement failed".to_owned()),
    }
    node
}

/// Nanoseconds of a dependent load, gigabytes a second read, gigabytes a second written.
fn speeds() -> (f64, f64, f64) {
    let mut words = vec![1usize; BYTES / size_of::<usize>()];
    let read = bandwidth(|| {
        black_box(black_box(&words).iter().fold(0usize, |sum, word| sum.wrapping_add(*word)));
    });
    let mut turn = 0;
    let write = bandwidth(|| {
        turn += 1;
        black_box(&mut words).fill(turn);
    });
    (latency(&mut words), read, write)
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

/// Lays a random cycle through the lines (Sattolo's shuffle gives a single one) and follows it.
fn latency(words: &mut [usize]) -> f64 {
    let lines = words.len() / LINE_WORDS;
    let mut random = SmallRng::seed_from_u64(1);
    (0..lines).for_each(|line| words[line * LINE_WORDS] = line);
    for line in (1..lines).rev() {
        let other = random.random_range(0..line);
        words.swap(line * LINE_WORDS, other * LINE_WORDS);
    }
    let began = Instant::now();
    let mut line = 0;
    for _ in 0..LOADS {
        line = words[line * LINE_WORDS];
    }
    black_box(line);
    began.elapsed().as_nanos() as f64 / LOADS as f64
}
