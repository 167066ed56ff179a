//! N1 and N2: the cost of writes on Optane memory, in the profile of the other claims.
//!
//! Workers in virtual time write or read 16 KiB blocks in sequence, each in its own part of the
//! device. The profile is calibrated to both claims. So this checks only that the simulation
//! reproduces its numbers, queues included.

use std::sync::Arc;

use terrace_common::failure::{Failure, Outcome};
use terrace_common::report::Lines;
use terrace_io::{Direction, Pattern, Profile, SimulatedMemory, Time, VirtualTime};

use super::setup::Machine;
use crate::claims::claim::{Measured, Setting, Verdict};

const BLOCK_BYTES: u64 = 16 << 10;
/// Virtual time per measurement.
const NANOSECONDS: u64 = 20_000_000;

fn profile(name: &str) -> Outcome<Profile> {
    Profile::named(name).map_err(|error| Failure::Work(error.to_string()))
}

/// GB/s read by `readers` beside `writers`, and GB/s written.
fn bandwidths(profile: &Profile, readers: usize, writers: usize) -> [f64; 2] {
    let time = Arc::new(VirtualTime::new(readers + writers));
    let memory = SimulatedMemory::new(profile.clone().with_cache_bytes(0), Time::Virtual(Arc::clone(&time)));
    let mut blocks = [0_u64; 2];
    loop {
        let worker = time.next();
        if time.now(worker) >= NANOSECONDS {
            break;
        }
        time.enter(worker);
        let is_writer = worker >= readers;
        let direction = if is_writer { Direction::Write } else { Direction::Read };
        let address = ((worker as u64) << 32) + blocks[usize::from(is_writer)] * BLOCK_BYTES;
        _ = memory.begin(direction, address, BLOCK_BYTES, Pattern::Sequential).finish();
        blocks[usize::from(is_writer)] += 1;
    }
    blocks.map(|count| (count * BLOCK_BYTES) as f64 / NANOSECONDS as f64)
}

/// Writer counts of N1.
const WRITERS: [usize; 5] = [1, 2, 4, 8, 16];
/// Blocks that one thread has in flight on a disk, to measure its bandwidth.
const DEPTH: u64 = 32;

/// GB/s that one thread writes with `depth` blocks in flight.
fn at_depth(profile: &Profile, depth: u64) -> f64 {
    let time = Arc::new(VirtualTime::new(1));
    time.enter(0);
    let memory = SimulatedMemory::new(profile.clone().with_cache_bytes(0), Time::Virtual(time));
    let bytes = depth * BLOCK_BYTES;
    let (mut nanoseconds, mut written) = (0, 0);
    while nanoseconds < NANOSECONDS {
        nanoseconds += memory.write(written, bytes, Pattern::Sequential);
        written += bytes;
    }
    written as f64 / nanoseconds as f64
}

/// Measures figure 1.
pub fn writes(setting: &Setting) -> Outcome<Measured> {
    let (optane, disk) = (Machine::of(setting)?.optane, profile("nvme-optane")?);
    let of = |profile: &Profile| WRITERS.map(|writers| bandwidths(profile, 0, writers)[1]);
    Ok(judge_writes(of(&optane), of(&disk), at_depth(&disk, DEPTH)))
}

/// `deep` is what one thread writes to the disk with many blocks in flight.
fn judge_writes(optane: [f64; 5], disk: [f64; 5], deep: f64) -> Measured {
    let always_falls = optane.windows(2).all(|pair| pair[1] <= pair[0]);
    let ahead = optane[0] / deep;
    let is_barely_ahead = (0.8..=2.0).contains(&ahead);
    let verdict = match optane[4] < optane[0] {
        true if always_falls && is_barely_ahead => Verdict::Holds,
        true => Verdict::Sign,
        false => Verdict::Fails,
    };
    let line =
        |rates: [f64; 5]| WRITERS.iter().zip(rates).map(|(&writers, rate)| (writers as f64, rate)).collect();
    let figure = Lines::new("Sequential writes, N1", "threads", "GB/s")
        .line("Optane memory", line(optane))
        .line("Optane disk", line(disk));
    Measured {
        measured: format!(
            "1 thread writes {:.1} GB/s, {ahead:.2} times what it writes to the disk with {DEPTH} blocks in flight, {:.1} times with one; 16 threads \
             keep {:.2} of that",
            optane[0],
            optane[0] / disk[0],
            optane[4] / optane[0]
        ),
        verdict,
        note: "A property of the profile optane-2, calibrated to this figure, whose values are not in the text: not a measurement of a \
               device. Holds: writes fall with each doubling of threads, and one thread is at .8 to 2 times the disk at depth, which then \
               has its bandwidth (section 3.2.1: up to 2.2 GB/s); sign: 16 threads write less than one."
            .into(),
        figures: vec![figure],
    }
}

/// Writer counts of N2 with values in the paper.
const BESIDE: [usize; 3] = [0, 1, 8];

/// Measures figure 2.
pub fn reads(setting: &Setting) -> Outcome<Measured> {
    let of = |profile: &Profile| BESIDE.map(|writers| bandwidths(profile, 8, writers)[0]);
    Ok(judge_reads(&of(&Machine::of(setting)?.optane), &of(&profile("dram")?)))
}

fn judge_reads(optane: &[f64], dram: &[f64]) -> Measured {
    let kept = |rates: &[f64], at: usize| rates[at] / rates[0];
    let found = [kept(optane, 1), kept(optane, 2), kept(dram, 1), kept(dram, 2)];
    let paper = [0.28, 0.07, 0.82, 0.65];
    let is_close = found.iter().zip(paper).all(|(found, paper)| (found - paper).abs() <= 0.1 * paper);
    let is_right = found[0] < 0.5 && found[1] < found[0] && found[2] > found[0] && found[3] > found[1];
    let verdict = match (is_close, is_right) {
        (true, true) => Verdict::Holds,
        (_, true) => Verdict::Sign,
        _ => Verdict::Fails,
    };
    let line = |rates: &[f64]| {
        BESIDE.iter().zip(rates).map(|(&count, rate)| (count as f64, rate / rates[0])).collect()
    };
    let beside = |kept: [f64; 2]| BESIDE[1..].iter().map(|&count| count as f64).zip(kept).collect();
    let figure =
        Lines::new("Reads of 8 threads beside writers, N2", "writers", "share of the bandwidth without")
            .line("Optane memory", line(optane))
            .line("DRAM", line(dram))
            .paper("Optane memory", beside([paper[0], paper[1]]))
            .paper("DRAM", beside([paper[2], paper[3]]));
    Measured {
        measured: format!(
            "1 and 8 writers leave 8 readers {:.2} and {:.2} of Optane memory, {:.2} and {:.2} of DRAM",
            found[0], found[1], found[2], found[3]
        ),
        verdict,
        note: "A property of the profiles, calibrated to these figures: not a measurement of a device. Holds: each within a tenth of \
               the paper's; sign: the order is right."
            .into(),
        figures: vec![figure],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_profiles_do_what_they_were_calibrated_to() {
        let setting = Setting::default();
        for measured in [writes(&setting).unwrap(), reads(&setting).unwrap()] {
            assert_ne!(measured.verdict, Verdict::Fails, "{}", measured.measured);
        }
    }

    #[test]
    fn writes_must_fall_and_hurt() {
        let falling = [3.0, 2.5, 2.0, 1.5, 1.2];
        assert_eq!(judge_writes([2.0, 3.0, 4.0, 5.0, 6.0], [2.0; 5], 2.0).verdict, Verdict::Fails);
        assert_eq!(judge_writes(falling.map(|rate| 10.0 * rate), [2.0; 5], 2.0).verdict, Verdict::Sign);
        assert_eq!(judge_writes(falling, [1.0; 5], 2.0).verdict, Verdict::Holds, "by the disk at depth");
        let disk = profile("nvme-optane").unwrap();
        assert!((at_depth(&disk, 1) - bandwidths(&disk, 0, 1)[1]).abs() < 0.01);
        assert!((2.2..2.4).contains(&at_depth(&disk, DEPTH)), "all but its bandwidth");
        let paper = judge_reads(&[10.0, 2.8, 0.7], &[10.0, 8.2, 6.5]);
        assert_eq!(paper.verdict, Verdict::Holds);
        let [ours, papers] = [1, 3].map(|at| &paper.figures[0].series[at]);
        assert!(papers.is_paper && ours.name == papers.name && ours.points[1..] == papers.points);
        assert_eq!(judge_reads(&[10.0, 4.0, 0.7], &[10.0, 8.2, 6.5]).verdict, Verdict::Sign);
        assert_eq!(judge_reads(&[10.0, 9.0, 8.0], &[10.0, 8.2, 6.5]).verdict, Verdict::Fails);
    }
}
