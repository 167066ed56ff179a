//! What a charge of simulated memory costs, and how exactly it waits: `cargo run --release -p terrace-block --example charge`.
//!
//! Medians of many charges, by one thread and by two. The first row charges nothing, so what it takes is the cost of charging; the others
//! say how long a caller was kept for a target of so many nanoseconds. Virtual time is in the last rows: what accounting takes.

use std::sync::{Arc, Barrier};
use std::time::Instant;

use terrace_block::{Pattern, Profile, SimulatedMemory, Time, VirtualTime};

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

/// The mean of the middle half of what single charges took, over all threads.
fn waits(memory: &SimulatedMemory, threads: usize) -> f64 {
    let start = Barrier::new(threads);
    let mut batches: Vec<f64> = std::thread::scope(|scope| {
        let run = || {
            start.wait();
            // The clock is looked at once in a hundred charges, so that it costs little.
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
