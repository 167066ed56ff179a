//! C4: ways to move pages to another node.
//!
//! The cost of a call varies a thousandfold: microseconds on hardware, milliseconds in an emulator.
//! So a few pages move first. They set how many pages and rounds fit the time and the free memory.
//!
//! The claim is about memory of hardware. In a virtual machine the calls are real, and neither the
//! nodes nor the processors are. There the figures are told without a verdict.

use std::ops::Range;
use std::time::{Duration, Instant};

use terrace_common::failure::{Failure, Outcome};
use terrace_common::report::Lines;
use terrace_io::{Migrate, Node, Region, nodes};

use crate::claims::claim::{Measured, Setting, Verdict};

/// Page limits per round, 4 KiB pages. The minimum fills the largest batch.
const PAGES_MAX: usize = 2048;
const PAGES_MIN: usize = 512;
/// Pages moved to estimate the cost.
const PAGES_FIRST: usize = 64;
/// Pages per call.
const BATCHES: [usize; 3] = [1, 32, 512];
/// Limits on rounds.
const ROUNDS_MAX: usize = 9;
const ROUNDS_MIN: usize = 2;
/// Time after which no round starts beyond the minimum.
const LENGTH: Duration = Duration::from_secs(8);
/// Inverse share of a node's free memory that pages may use.
const FREE_PART: u64 = 8;
const PAGE_BYTES: usize = 4096;

/// Seconds per batch size, and pages that failed to move.
#[derive(Default)]
struct Round {
    seconds: [[f64; BATCHES.len()]; Migrate::ALL.len()],
    stayed: usize,
}

/// Non-adjacent pages, since hot pages lie anywhere, and their two nodes.
struct Pages {
    region: Region,
    count: usize,
    nodes: [u32; 2],
    /// Index of the current node.
    at: usize,
}

impl Pages {
    fn new(count: usize, nodes: [u32; 2]) -> Outcome<Pages> {
        let region = Region::reserve_sparse(2 * count * PAGE_BYTES, PAGE_BYTES);
        let region = region.map_err(|error| failed(nodes, error))?;
        let mut pages = Pages { region, count, nodes, at: 0 };
        pages.region.populate(&mut pages.ranges()).map_err(|error| failed(nodes, error))?;
        // The kernel may have placed them on either node.
        pages.go(pages.count, Migrate::Batch)?;
        pages.go(pages.count, Migrate::Batch)?;
        Ok(pages)
    }

    fn ranges(&self) -> Vec<Range<usize>> {
        (0..self.count).map(|page| 2 * page * PAGE_BYTES..(2 * page + 1) * PAGE_BYTES).collect()
    }

    /// Moves all pages to the other node, `batch` per call. Returns the seconds, and the number
    /// that stayed.
    fn go(&mut self, batch: usize, way: Migrate) -> Outcome<(f64, usize)> {
        self.at = 1 - self.at;
        let (node, all) = (self.nodes[self.at], self.ranges());
        let mut there = 0;
        let began = Instant::now();
        for part in all.chunks(batch) {
            let moved = self.region.migrate(&mut part.to_vec(), node, way);
            there += moved.map_err(|error| failed(self.nodes, error))?.there;
        }
        Ok((began.elapsed().as_secs_f64(), self.count - there))
    }

    fn round(&mut self) -> Outcome<Round> {
        let mut round = Round::default();
        for (way, seconds) in Migrate::ALL.iter().zip(&mut round.seconds) {
            for (batch, seconds) in BATCHES.iter().zip(seconds) {
                let (took, stayed) = self.go(*batch, *way)?;
                *seconds = took;
                round.stayed += stayed;
            }
        }
        Ok(round)
    }
}

fn failed(nodes: [u32; 2], error: std::io::Error) -> Failure {
    Failure::Work(format!("moving pages between nodes {} and {}: {error}", nodes[0], nodes[1]))
}

/// Pages per round from the time of the `first` move and the fuller node's free memory: halved
/// until the minimum rounds fit.
fn pages_of_round(first: Duration, free_bytes: u64) -> usize {
    let each = first / PAGES_FIRST as u32;
    let fits = |pages: &usize| {
        let room = (pages * PAGE_BYTES) as u64 <= free_bytes / FREE_PART;
        room && each * (pages * ROUNDS_MIN) as u32 <= LENGTH
    };
    let sizes = std::iter::successors(Some(PAGES_MAX), |pages| Some(pages / 2));
    sizes.take_while(|pages| *pages > PAGES_MIN).find(fits).unwrap_or(PAGES_MIN)
}

/// Runs the experiment if there are two nodes.
pub fn measure(_: &Setting) -> Outcome<Measured> {
    let there: Vec<Node> = nodes().into_iter().filter(|node| node.bytes > 0).collect();
    let [near, far, ..] = &there[..] else {
        return Ok(Measured {
            measured: String::new(),
            verdict: Verdict::NotHere,
            note: "this machine has one NUMA node, and pages move between two".into(),
            figures: Vec::new(),
        });
    };
    let (free, numbers) = (near.free_bytes.min(far.free_bytes), [near.node, far.node]);
    let began = Instant::now();
    Pages::new(PAGES_FIRST, numbers)?.round()?;
    let mut pages = Pages::new(pages_of_round(began.elapsed(), free), numbers)?;
    let (count, began) = (pages.count, Instant::now());
    let mut rounds = Vec::new();
    while rounds.len() < ROUNDS_MIN || (rounds.len() < ROUNDS_MAX && began.elapsed() < LENGTH) {
        rounds.push(pages.round()?);
    }
    Ok(of_machine(judge(numbers, count, &rounds), is_emulated("/proc/cpuinfo")))
}

/// Whether the processor says that a hypervisor runs the machine.
fn is_emulated(processors: &str) -> bool {
    let text = std::fs::read_to_string(processors).unwrap_or_default();
    let flags = text.lines().find(|line| line.starts_with("flags"));
    flags.is_some_and(|flags| flags.split_whitespace().any(|flag| flag == "hypervisor"))
}

/// The result, without a verdict on a machine that is emulated.
fn of_machine(measured: Measured, is_emulated: bool) -> Measured {
    match is_emulated {
        true => Measured {
            verdict: Verdict::NotHere,
            note: format!(
                "This machine and its nodes are emulated, so there is no verdict. {}",
                measured.note
            ),
            ..measured
        },
        false => measured,
    }
}

fn judge([near, far]: [u32; 2], pages: usize, rounds: &[Round]) -> Measured {
    let rate = |way: usize, batch: usize| {
        let mut times: Vec<f64> = rounds.iter().map(|round| round.seconds[way][batch]).collect();
        times.sort_by(f64::total_cmp);
        pages as f64 / times[(times.len() - 1) / 2]
    };
    let stayed: usize = rounds.iter().map(|round| round.stayed).sum();
    let moves = pages * rounds.len() * BATCHES.len() * Migrate::ALL.len();
    let way = |migrate: Migrate| Migrate::ALL.iter().position(|way| *way == migrate).unwrap_or(0);
    let (batch, mbind) = (way(Migrate::Batch), way(Migrate::Mbind));
    let last = BATCHES.len() - 1;
    let (single, many) = (rate(mbind, 0) / rate(batch, 0), rate(mbind, last) / rate(batch, last));
    let verdict = match (single, many) {
        (_, many) if many >= 1.4 => Verdict::Holds,
        (single, many) if single > 1.0 || many > 1.0 => Verdict::Sign,
        _ => Verdict::Fails,
    };
    let lines = Migrate::ALL.iter().enumerate().fold(
        Lines::new("Ways to move pages", "pages at a time", "pages/s"),
        |lines, (at, way)| {
            let points = BATCHES.iter().enumerate().map(|(size, pages)| (*pages as f64, rate(at, size)));
            lines.line(way.name(), points.collect())
        },
    );
    let copy = way(Migrate::Copy);
    Measured {
        measured: format!(
            "mbind moves {single:.2} times as many pages as move_pages one by one, {many:.2} times in batches of {}; copies {:.2} and {:.2} \
             times",
            BATCHES[last],
            rate(copy, 0) / rate(batch, 0),
            rate(copy, last) / rate(batch, last)
        ),
        verdict,
        note: format!(
            "{pages} pages of 4 KiB that do not adjoin, between nodes {near} and {far}, medians of {} rounds, batch with batch and page with \
             page; {stayed} of {moves} moves did not take place. Holds: mbind 1.4 times move_pages in batches; sign: faster in batches or one \
             by one. The copies are the paper's proposal, which it does not measure.",
            rounds.len()
        ),
        figures: vec![lines],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_pages_move_as_time_and_room_allow() {
        let first = |each: Duration| each * PAGES_FIRST as u32;
        let room = 1 << 30;
        assert_eq!(pages_of_round(first(Duration::from_micros(60)), room), PAGES_MAX);
        assert_eq!(pages_of_round(first(Duration::from_micros(2000)), room), PAGES_MAX / 2);
        assert_eq!(pages_of_round(first(Duration::from_secs(1)), room), PAGES_MIN);
        assert_eq!(pages_of_round(Duration::ZERO, 40 << 20), PAGES_MAX / 2, "8 MiB are more than an eighth");
        assert_eq!(pages_of_round(Duration::ZERO, 0), PAGES_MIN);
    }

    #[test]
    fn ways_are_judged_by_the_medians_of_their_rounds() {
        let rounds = |mbind: f64| {
            let round = |noise: f64| Round { seconds: [[noise; 3], [mbind; 3], [2.0; 3]], stayed: 1 };
            [1.0, 50.0, 1.0].map(round)
        };
        let twice = judge([0, 1], 512, &rounds(0.5));
        assert_eq!(twice.verdict, Verdict::Holds);
        assert!(twice.note.contains("3 of 13824 moves did not"), "{}", twice.note);
        assert_eq!(judge([0, 1], 512, &rounds(0.8)).verdict, Verdict::Sign);
        assert_eq!(judge([0, 1], 512, &rounds(2.0)).verdict, Verdict::Fails);
        let emulated = of_machine(judge([0, 1], 512, &rounds(0.5)), true);
        assert_eq!(emulated.verdict, Verdict::NotHere);
        assert!(emulated.measured.starts_with("mbind moves 2.00 times"), "{}", emulated.measured);
        assert_eq!(of_machine(judge([0, 1], 512, &rounds(0.5)), false).verdict, Verdict::Holds);
    }

    #[test]
    fn a_hypervisor_makes_a_machine_emulated() {
        let folder = tempfile::tempdir().unwrap();
        let told = |text: &str| {
            let file = folder.path().join("cpuinfo");
            std::fs::write(&file, text).unwrap();
            is_emulated(file.to_str().unwrap())
        };
        assert!(told("model name: x\nflags\t\t: fpu hypervisor lm\n"));
        assert!(!told("model name: hypervisor\nflags\t\t: fpu lm\n"));
        assert!(!is_emulated("/no/such/file"));
    }
}
