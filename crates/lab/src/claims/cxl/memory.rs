//! C3: latency and bandwidth of CXL memory, in the profile of the other claims.
//!
//! The profile has both numbers. So this checks that what claims are charged, by the line and by
//! the page, comes to them, queues included. Workers read in virtual time. A second node of this
//! machine, if there is one, is measured beside.

use std::fmt::Write as _;
use std::sync::Arc;

use terrace_common::failure::{Failure, Outcome};
use terrace_common::report::Lines;
use terrace_io::{Direction, Pattern, Profile, SimulatedMemory, Time, VirtualTime, measure_node, nodes};

use crate::claims::claim::{Measured, Setting, Verdict};

/// The paper's CXL memory, measured when idle and with all cores.
const LATENCY_NS: f64 = 557.0;
const GB_S: f64 = 9.4;
/// Its local memory.
const LOCAL_NS: f64 = 125.5;
const LOCAL_GB_S: f64 = 224.3;
/// Allowed deviation.
const NEAR: f64 = 0.05;

const LINE_BYTES: u64 = 64;
const PAGE_BYTES: u64 = 4 << 10;
/// Workers that read pages.
const READERS: [usize; 6] = [1, 2, 4, 8, 16, 32];
/// Virtual time of a measurement.
const NANOSECONDS: u64 = 20_000_000;

fn memory(profile: &Profile, workers: usize) -> (SimulatedMemory, Arc<VirtualTime>) {
    let time = Arc::new(VirtualTime::new(workers));
    let profile = profile.clone().with_cache_bytes(0);
    (SimulatedMemory::new(profile, Time::Virtual(Arc::clone(&time))), time)
}

/// Nanoseconds of one line, each read after the one before.
fn latency(profile: &Profile) -> f64 {
    let (memory, time) = memory(profile, 1);
    // This thread may have been another worker of an earlier claim.
    time.enter(0);
    let mut lines = 0;
    while time.now(0) < NANOSECONDS {
        // Far apart, so that nothing is sequential.
        memory.read(lines * 1_000_003 * LINE_BYTES, LINE_BYTES, Pattern::Random);
        lines += 1;
    }
    time.now(0) as f64 / lines as f64
}

/// GB/s of pages that `readers` read.
fn bandwidth(profile: &Profile, readers: usize) -> f64 {
    let (memory, time) = memory(profile, readers);
    let mut pages = 0;
    loop {
        let worker = time.next();
        if time.now(worker) >= NANOSECONDS {
            return (pages * PAGE_BYTES) as f64 / NANOSECONDS as f64;
        }
        time.enter(worker);
        let address = ((worker as u64) << 32) + pages * PAGE_BYTES;
        _ = memory.begin(Direction::Read, address, PAGE_BYTES, Pattern::Sequential).finish();
        pages += 1;
    }
}

/// Measures the profile, and the machine's second node.
pub fn measure(_: &Setting) -> Outcome<Measured> {
    let profile = Profile::named("cxl-prototype").map_err(|error| Failure::Work(error.to_string()))?;
    let rates = READERS.map(|readers| bandwidth(&profile, readers));
    Ok(judge(latency(&profile), rates, &machine()?))
}

/// How a second node of this machine compares with the first, if there is one.
fn machine() -> Outcome<String> {
    let ids: Vec<u32> = nodes().iter().filter(|node| node.bytes > 0).map(|node| node.node).collect();
    let &[first, second, ..] = &*ids else { return Ok("This machine has no second node.".into()) };
    let speed = |node| measure_node(node).map_err(|error| Failure::Work(error.to_string()));
    let (near, far) = (speed(first)?, speed(second)?);
    Ok(format!(
        "Node {second} of this machine has {:.1} times the latency of node {first} and {:.2} of its bandwidth.",
        far.read_latency_ns / near.read_latency_ns,
        far.read_gb_s / near.read_gb_s
    ))
}

fn judge(latency_ns: f64, rates: [f64; READERS.len()], machine: &str) -> Measured {
    let most = rates.iter().copied().fold(0.0, f64::max);
    let near = |found: f64, paper: f64| (found / paper - 1.0).abs() <= NEAR;
    let verdict = match (near(latency_ns, LATENCY_NS), near(most, GB_S)) {
        (true, true) => Verdict::Holds,
        _ if latency_ns > LOCAL_NS && most < LOCAL_GB_S => Verdict::Sign,
        _ => Verdict::Fails,
    };
    let mut measured = format!("{latency_ns:.0} ns a line, {most:.1} GB/s at most; by readers:");
    for (readers, rate) in READERS.iter().zip(rates) {
        _ = write!(measured, " {readers} {rate:.1},");
    }
    let points = READERS.iter().zip(rates).map(|(&readers, rate)| (readers as f64, rate)).collect();
    let figure = Lines::new("Bandwidth of CXL memory, C3", "readers", "GB/s")
        .line("cxl-prototype", points)
        .limit(GB_S, "the most of the paper, with all cores");
    Measured {
        measured: measured.trim_end_matches(',').to_owned(),
        verdict,
        note: format!(
            "A property of the simulated profile cxl-prototype, which is made of the paper's numbers: not a measurement of a device. \
             Local memory is {LOCAL_NS} ns and {LOCAL_GB_S} GB/s in the paper, and this machine's own here. Holds: both within {NEAR} \
             of the paper; sign: slower than its local memory. {machine}"
        ),
        figures: vec![figure],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_charges_come_to_the_papers_numbers() {
        let profile = Profile::named("cxl-prototype").unwrap();
        let measured = judge(latency(&profile), READERS.map(|readers| bandwidth(&profile, readers)), "");
        assert_eq!(measured.verdict, Verdict::Holds, "{}", measured.measured);
    }

    #[test]
    fn other_memory_does_not_hold() {
        let of = |latency_ns, gb_s| judge(latency_ns, [gb_s; READERS.len()], "").verdict;
        assert_eq!(of(557.0, 9.4), Verdict::Holds);
        assert_eq!(of(250.0, 26.0), Verdict::Sign);
        assert_eq!(of(557.0, 11.0), Verdict::Sign);
        assert_eq!(of(100.0, 9.4), Verdict::Fails);
    }
}
