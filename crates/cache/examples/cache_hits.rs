//! Overhead of a cache hit, and scaling of hits with two threads.
//!
//! The fast device is a file in the page cache, fast and without contention. Reads of the file and
//! cache hits alternate; prints the median round in wall-clock and in processor time, which other
//! load disturbs less.
//!
//! ```text
//!   cargo run --release -p terrace-cache --example cache_hits
//! ```

use std::sync::Arc;
use std::time::{Duration, Instant};

use terrace_cache::{CacheConfig, Cached};
use terrace_io::{
    AlignedBuffer, BlockDevice, Directory, FileDirectory, FileOptions, Limits, MachineClock, MemoryDevice,
    OpenMode, ThrottledDevice,
};

const BLOCKS: u64 = 4096;
const BLOCK: usize = 4096;
const ROUNDS: usize = 40;
const READS: u32 = 25_000;

/// Nanoseconds per read and thread, while `threads` read.
#[derive(Clone, Copy)]
struct Times {
    clock: f64,
    processor: f64,
}

/// Processor time of this thread, if available.
fn processor_nanoseconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(f64::NAN)
}

fn nanoseconds(device: &dyn BlockDevice, threads: u32) -> Times {
    let began = Instant::now();
    let processor: f64 = std::thread::scope(|scope| {
        let readers = (0..threads).map(|thread| {
            scope.spawn(move || {
                let began = processor_nanoseconds();
                let mut buffer = AlignedBuffer::zeroed(BLOCK);
                let mut random = u64::from(thread) + 1;
                for _ in 0..READS {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let block = (random >> 40) % BLOCKS;
                    device.read_at(block * BLOCK as u64, &mut buffer).expect("the file can be read");
                }
                processor_nanoseconds() - began
            })
        });
        let readers: Vec<_> = readers.collect();
        readers.into_iter().map(|reader| reader.join().expect("a reader")).sum()
    });
    Times {
        clock: began.elapsed().as_secs_f64() * 1e9 / f64::from(READS),
        processor: processor / f64::from(READS * threads),
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let options = FileOptions { direct: false, uring: false };
    let directory = FileDirectory::open_with(folder.path(), options)?;
    let file = directory.open("file", OpenMode::CreateNew)?;
    file.set_len(BLOCKS * BLOCK as u64)?;
    // Slow enough that no hit is diverted to it.
    let limits = Limits { latency: Duration::from_micros(50), ..Limits::default() };
    let memory = Arc::new(MemoryDevice::new("slow", BLOCKS * BLOCK as u64));
    let slow = Arc::new(ThrottledDevice::new(memory, limits, Arc::new(MachineClock::default())));
    for policy in ["sieve", "lru", "w-tinylfu", "small-bypass:0+obp+lfru"] {
        let fast = directory.open(&format!("{policy}.cache"), OpenMode::CreateNew)?;
        let cached = Cached::open(slow.clone(), fast, CacheConfig::new(BLOCKS as u32).policy(policy)?)?;
        let mut page = AlignedBuffer::zeroed(BLOCK);
        while cached.stats().resident_blocks() < BLOCKS {
            for block in 0..BLOCKS {
                cached.read_at(block * BLOCK as u64, &mut page)?;
            }
        }
        let (mut beyond, mut of_processor) = (Vec::new(), Vec::new());
        let (mut file_scaling, mut scaling) = (Vec::new(), Vec::new());
        let before = cached.stats();
        for _ in 0..ROUNDS {
            let (alone, hit) = (nanoseconds(&*file, 1), nanoseconds(&cached, 1));
            let (alone_of_two, hit_of_two) = (nanoseconds(&*file, 2), nanoseconds(&cached, 2));
            beyond.push(hit.clock - alone.clock);
            of_processor.push(hit.processor - alone.processor);
            file_scaling.push(2.0 * alone.clock / alone_of_two.clock);
            scaling.push(2.0 * hit.clock / hit_of_two.clock);
        }
        let stats = cached.stats();
        println!(
            "{policy}: a hit costs {:.0} ns beyond its device, {:.0} of a processor; two threads {:.2} times one, the device alone {:.2}; {} misses, {} below of {}",
            median(beyond),
            median(of_processor),
            median(scaling),
            median(file_scaling),
            stats.misses - before.misses,
            stats.below - before.below,
            stats.hits - before.hits,
        );
    }
    Ok(())
}
