//! Cost and accuracy of charges to simulated memory.
//!
//! Run with `cargo run --release -p terrace-io --example charge`. Prints medians over many charges,
//! by one thread and by two. The first row charges nothing and shows the overhead. Later rows show
//! the real wait for each target in nanoseconds. The last rows show virtual time: pure accounting.

use std::sync::{Arc, Barrier};
use std::time::Instant;

use terrace_io::{Pattern, Profile, SimulatedMemory, Time, VirtualTime};

const CHARGES: usize = 200_000;

fn main() {
    println!("{:<28} {:>12} {:>12}", "nanoseconds a charge", "one thread", "two threads");
    for target in [0, 50, 100, 320, 1000] {
        let text =
            format!("base = 'dram'\nrandom_read_ns = {target}\nrandom_read_gb_s = 1e6\ncache_bytes = 0");
        let profile = Profile::parse(&text, "target").expect("it is a profile");
        let row = [1, 2].map(|threads| waits(&SimulatedMemory::new(profile.clone(), Time::wall()), threads));
        println!("{:<28} {:>12.0} {:>12.0}", format!("wall clock, {target} wanted"), row[0], row[1]);
    }
    let cached = Profile::parse("base = 'optane'", "cached").expect("it is a profile");
    let memory = SimulatedMemory::new(cached.clone(), Time::wall());
    let row = [1, 2].map(|threads| waits(&memory, threads));
    println!("{:<28} {:>12.0} {:>12.0}", "wall clock, in the cache", row[0], row[1]);
    let time = Arc::new(VirtualTime::new(1));
    let uncached = SimulatedMemory::new(cached.with_cache_bytes(0), Time::Virtual(time));
    println!("{:<28} {:>12.0}", "virtual time", waits(&uncached, 1));
}

/// Interquartile mean of the time per charge, over all threads.
fn waits(memory: &SimulatedMemory, threads: usize) -> f64 {
    let start = Barrier::new(threads);
    let mut batches: Vec<f64> = std::thread::scope(|scope| {
        let run = || {
            start.wait();
            // One look at the clock per hundred charges keeps its cost low.
            Vec::from_iter((0..CHARGES / 100).map(|_| {
                let began = Instant::now();
                (0..100).for_each(|_| {
                    memory.read(0, 64, Pattern::Random);
                });
                began.elapsed().as_nanos() as f64 / 100.0
            }))
        };
        let workers = Vec::from_iter((0..threads).map(|_| scope.spawn(run)));
        workers.into_iter().flat_map(|worker| worker.join().expect("nothing fails")).collect()
    });
    batches.sort_by(f64::total_cmp);
    let middle = &batches[batches.len() / 4..batches.len() * 3 / 4];
    middle.iter().sum::<f64>() / middle.len() as f64
}
