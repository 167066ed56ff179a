//! Runs each target for a few seconds without the fuzzer. `TERRACE_FUZZ_SECONDS` sets the time;
//! `TERRACE_FUZZ_SEED` runs only that case.

use std::env;
use std::time::{Duration, Instant};

/// More memory than this, over all tests of the process, also means a trusted hostile number. The
/// window of a compressed trace is 128 MiB.
const MEMORY_MAX: u64 = 2 << 30;

/// Peak memory of the process in bytes; 0 if unknown.
fn memory_peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|text| text.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.unwrap_or_default() << 10
}

/// A longer run means that a hostile number was trusted.
const CASE_MAX: Duration = Duration::from_secs(60);

/// SplitMix64: sufficient for inputs and portable.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    /// Bytes with repetitions and small numbers, like numbers in files.
    fn input(&mut self) -> Vec<u8> {
        let length = 1 + self.next() as usize % 400;
        let small = self.next().is_multiple_of(4);
        (0..length).map(|_| if small { self.next() % 16 } else { self.next() } as u8).collect()
    }
}

/// Names the running case when a test panics.
struct Case(u64);

impl Drop for Case {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed in the case of TERRACE_FUZZ_SEED={}", self.0);
        }
    }
}

fn number(name: &str) -> Option<u64> {
    env::var(name).ok().map(|text| text.parse().expect("a number"))
}

fn run(target: fn(&[u8])) {
    if let Some(seed) = number("TERRACE_FUZZ_SEED") {
        return target(&Random(seed).input());
    }
    let time = Duration::from_secs(number("TERRACE_FUZZ_SECONDS").unwrap_or(1));
    let began = Instant::now();
    // The same cases each time, for repeatable runs; TERRACE_FUZZ_FIRST sets another start.
    let first = number("TERRACE_FUZZ_FIRST").unwrap_or(1);
    let mut seed = first;
    while began.elapsed() < time {
        let (_case, case_began) = (Case(seed), Instant::now());
        target(&Random(seed).input());
        assert!(case_began.elapsed() < CASE_MAX, "took {:?}", case_began.elapsed());
        assert!(memory_peak() < MEMORY_MAX, "took {} bytes of memory", memory_peak());
        seed += 1;
    }
    println!("{} cases, seeds {first} to {}", seed - first, seed - 1);
}

#[test]
fn a_hostile_page_file_is_an_error_or_harmless() {
    run(terrace_fuzz::pages);
}

#[test]
fn a_hostile_log_is_an_error_or_harmless() {
    run(terrace_fuzz::log);
}

#[test]
fn operations_do_what_a_map_does() {
    run(terrace_fuzz::operations);
}

#[test]
fn a_hostile_cache_is_an_error_or_serves_what_the_slow_device_has() {
    run(terrace_fuzz::caches);
}

#[test]
fn a_hostile_trace_is_an_error_or_harmless() {
    run(terrace_fuzz::traces);
}

#[test]
fn a_database_with_hostile_fields_is_an_error_or_harmless() {
    run(terrace_fuzz::databases);
}

#[test]
fn a_backup_with_hostile_fields_is_restored_whole_or_not_at_all() {
    run(terrace_fuzz::backups);
}

#[test]
fn a_cache_with_hostile_fields_is_an_error_or_harmless() {
    run(terrace_fuzz::cache_fields);
}

#[test]
fn a_trace_with_hostile_fields_is_an_error_or_harmless() {
    run(terrace_fuzz::trace_fields);
}

/// A timestamp above the clock's once panicked; a trusted page id once allocated a table of that
/// size.
#[test]
fn logs_that_were_too_hostile_once() {
    for seed in [147_023_199_187_765, 133_012_256_991_209] {
        let (_case, began) = (Case(seed), Instant::now());
        terrace_fuzz::log(&Random(seed).input());
        assert!(began.elapsed() < Duration::from_secs(5), "took {:?}", began.elapsed());
    }
}
