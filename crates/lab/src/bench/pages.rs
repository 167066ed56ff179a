//! `terrace bench pages`: random pages under guards, next to raw disk reads.
//!
//! The allocator holds `--data` bytes, several times `--dram`. Threads take shared guards of random
//! pages and check a word of each cache line they touch. In turn, as many threads read the same
//! file at random with O_DIRECT. A second raw figure adds the cost of mapped memory (vmcache,
//! section 3): each read also populates a page, and pages are released in batches of 64 or 4 MiB.
//! Populating is measured beside the read, which goes into a buffer.
//!
//! Some pages are in memory already; ratios count only pages read. Figures are medians over the
//! rounds; ratios are medians of per-round ratios.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use serde::Serialize;
use terrace::pages::{PageAllocator, PageRef, PagesBuilder};
use terrace_common::failure::{Failure, Outcome};
use terrace_common::interrupt;
use terrace_common::memory;
use terrace_common::output::{print, print_json};
use terrace_common::units::{counted, show_count, show_size};
use terrace_io::{AlignedBuffer, BlockDevice, Directory, FileDirectory, OpenMode, Region};

use crate::args::{PagesArgs, StructureArgs};

/// The page file, below `--store`.
pub(super) const FILE: &str = "bench.pages";
/// Offset of the first page in the file.
pub(super) const FIRST_PAGE_AT: u64 = 32 << 10;
/// Words per cache line.
const LINE: usize = 8;
/// Page limit of a release batch.
const RELEASED_TOGETHER: u64 = 64;
/// Byte limit of a release batch, per thread.
const RELEASED_BYTES: u64 = 4 << 20;

/// Result of the benchmark.
#[derive(Debug, Default, Serialize)]
pub struct PagesReport {
    page_bytes: u64,
    pages: u64,
    data_bytes: u64,
    budget_bytes: u64,
    /// Peak memory before the first raw read, whose buffers are not the allocator's.
    rss_bytes: u64,
    threads: u16,
    rounds: u16,
    touch_percent: u8,
    /// Pages per second under guards, hits included.
    guards_per_second: f64,
    /// Pages of them read from the file.
    faults_per_second: f64,
    /// Raw reads per second; null if nothing is on disk.
    raw_reads_per_second: Option<f64>,
    /// Raw reads per second that also populate and release memory.
    raw_with_release_per_second: Option<f64>,
    /// `faults_per_second` divided by `raw_reads_per_second`.
    share_of_raw_reads: Option<f64>,
    /// `faults_per_second` divided by `raw_with_release_per_second`.
    share_of_raw_with_release: Option<f64>,
    /// Words verified.
    verified: u64,
}

/// Runs the benchmark.
pub fn run(args: &PagesArgs, output: &mut dyn Write) -> Outcome {
    let report = measure(args)?;
    match args.of.output.json {
        true => print_json(output, &report),
        false => show(&report, output),
    }
}

/// Opens an allocator in `store`, creating it if needed.
pub(super) fn open(args: &StructureArgs, page_bytes: u64) -> Outcome<PageAllocator> {
    let store = &args.store;
    FileDirectory::create(store).map_err(|error| Failure::file("creating", store, error))?;
    let builder = PageAllocator::builder().page_sizes(&[page_bytes]);
    let builder = args.dram.into_iter().fold(builder, PagesBuilder::dram);
    let builder = args.backend.into_iter().fold(builder, PagesBuilder::backend);
    Ok(builder.open(store.join(FILE))?)
}

/// The page file in `store`, opened read-only beside the allocator.
pub(super) fn open_raw(store: &Path) -> Outcome<Arc<dyn BlockDevice>> {
    let opened = FileDirectory::open(store).and_then(|directory| directory.open(FILE, OpenMode::Read));
    opened.map_err(|error| Failure::file("opening", &store.join(FILE), error))
}

/// The median of `of` over `rounds`.
pub(super) fn median<T>(rounds: &[T], of: impl Fn(&T) -> f64) -> f64 {
    let mut values: Vec<f64> = rounds.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// Runs `work` in `threads` threads with their numbers and returns all results.
pub(super) fn in_threads<T: Send>(threads: u16, work: impl Fn(u16) -> Outcome<T> + Sync) -> Outcome<Vec<T>> {
    std::thread::scope(|scope| {
        let work = &work;
        let started: Vec<_> = (0..threads).map(|thread| scope.spawn(move || work(thread))).collect();
        started
            .into_iter()
            .map(|thread| thread.join().expect("a thread that measures does not panic"))
            .collect()
    })
}

/// Pages per second in one round.
#[derive(Clone, Copy, Default)]
struct Round {
    guards: f64,
    faults: f64,
    raw: f64,
    released: f64,
}

struct Bench<'a> {
    args: &'a PagesArgs,
    page_bytes: u64,
    pages: PageAllocator,
    names: Vec<PageRef>,
    file: Arc<dyn BlockDevice>,
    /// Pages in the written part of the file.
    raw_pages: u64,
    rss_bytes: Option<u64>,
    time: Duration,
    verified: AtomicU64,
}

fn measure(args: &PagesArgs) -> Outcome<PagesReport> {
    let page_bytes = args.of.page_size.unwrap_or(4096);
    let pages = open(&args.of, page_bytes)?;
    let count = (args.of.data / page_bytes).max(1);
    let mut names = Vec::with_capacity(count as usize);
    for number in 0..count {
        interrupt::check()?;
        let mut new = pages.allocate(page_bytes)?;
        new.words_mut().iter().step_by(LINE).for_each(|word| word.store(number, Relaxed));
        names.push(new.keep());
    }
    let file = open_raw(&args.of.store)?;
    // Three measurements per round.
    let time = args.seconds / u32::from(args.of.rounds) / 3;
    let (raw_pages, rss_bytes, verified) = (0, None, AtomicU64::new(0));
    let mut bench = Bench { args, page_bytes, pages, names, file, raw_pages, rss_bytes, time, verified };
    let mut rounds = Vec::new();
    // An extra first round writes back the dirty pages; it does not count.
    for number in 0..=args.of.rounds {
        let round = bench.round(number)?;
        if number > 0 {
            rounds.push(round);
        }
    }
    let stats = bench.pages.stats();
    let of_disk = |of: fn(&Round) -> f64| (bench.raw_pages > 0).then(|| median(&rounds, of));
    Ok(PagesReport {
        page_bytes,
        pages: stats.pages,
        data_bytes: stats.pages * page_bytes,
        budget_bytes: stats.budget_bytes,
        rss_bytes: bench.rss_bytes.unwrap_or_default(),
        threads: args.of.threads,
        rounds: args.of.rounds,
        touch_percent: args.touch,
        guards_per_second: median(&rounds, |round| round.guards),
        faults_per_second: median(&rounds, |round| round.faults),
        raw_reads_per_second: of_disk(|round| round.raw),
        raw_with_release_per_second: of_disk(|round| round.released),
        share_of_raw_reads: of_disk(|round| round.faults / round.raw),
        share_of_raw_with_release: of_disk(|round| round.faults / round.released),
        verified: bench.verified.into_inner(),
    })
}

impl Bench<'_> {
    fn round(&mut self, number: u16) -> Outcome<Round> {
        // Pages fill the file from its start. Reads beyond them hit unwritten space and never reach
        // the disk.
        self.raw_pages = self.pages.stats().live_bytes / self.page_bytes;
        let mut round = Round::default();
        let mut steps = [0, 1, 2];
        if number % 2 == 1 {
            steps.reverse();
        }
        for step in steps.into_iter().filter(|&step| step == 0 || self.raw_pages > 0) {
            interrupt::check()?;
            let seed = self.args.seed + u64::from(number) * 1000;
            let faults = self.pages.stats().faults;
            let began = Instant::now();
            let done = in_threads(self.args.of.threads, |thread| {
                let random = SmallRng::seed_from_u64(seed + u64::from(thread));
                match step {
                    0 => self.guards(random),
                    step => self.raw(random, step == 2),
                }
            })?;
            let rate = |count: u64| count as f64 / began.elapsed().as_secs_f64();
            let done = rate(done.into_iter().sum());
            match step {
                0 => {
                    round.faults = rate(self.pages.stats().faults - faults);
                    round.guards = done;
                    self.rss_bytes.get_or_insert_with(memory::peak_resident_bytes);
                }
                1 => round.raw = done,
                _ => round.released = done,
            }
        }
        Ok(round)
    }

    /// Takes guards of random pages; returns how many.
    fn guards(&self, mut random: SmallRng) -> Outcome<u64> {
        let end = Instant::now() + self.time;
        let (mut done, mut verified) = (0, 0);
        while Instant::now() < end {
            let number = random.random_range(0..self.names.len());
            let guard = self.pages.read(self.names[number])?;
            let words = guard.words();
            let lines = words.len() / LINE * usize::from(self.args.touch) / 100;
            let right =
                words.iter().step_by(LINE).take(lines).all(|word| word.load(Relaxed) == number as u64);
            if !right {
                return Err(Failure::Damaged(format!("page {number} does not hold what was written to it")));
            }
            verified += lines as u64;
            done += 1;
        }
        self.verified.fetch_add(verified, Relaxed);
        Ok(done)
    }

    /// Reads random pages of the file and optionally populates and releases memory for each;
    /// returns how many.
    fn raw(&self, mut random: SmallRng, release: bool) -> Outcome<u64> {
        let page_bytes = self.page_bytes as usize;
        let failed = |error| Failure::file("reading", &self.args.of.store.join(FILE), error);
        let memory =
            Region::reserve_sparse(self.raw_pages as usize * page_bytes, page_bytes).map_err(failed)?;
        let mut buffer = AlignedBuffer::zeroed(page_bytes);
        let end = Instant::now() + self.time;
        let together = (RELEASED_BYTES / self.page_bytes).clamp(1, RELEASED_TOGETHER);
        let mut done = 0;
        while Instant::now() < end {
            let pages: Vec<u64> = (0..together).map(|_| random.random_range(0..self.raw_pages)).collect();
            for &page in &pages {
                let at = page as usize * page_bytes;
                if release {
                    memory.populate(std::slice::from_mut(&mut (at..at + page_bytes))).map_err(failed)?;
                }
                self.file.read_at(FIRST_PAGE_AT + at as u64, &mut buffer).map_err(failed)?;
                std::hint::black_box(
                    buffer.iter().step_by(LINE * 8).fold(0u64, |sum, &byte| sum + u64::from(byte)),
                );
                done += 1;
                if Instant::now() >= end {
                    break;
                }
            }
            if release {
                let page = |&page: &u64| page as usize * page_bytes..(page as usize + 1) * page_bytes;
                let mut pages: Vec<_> = pages.iter().map(page).collect();
                memory.discard(&mut pages).map_err(failed)?;
            }
        }
        Ok(done)
    }
}

fn show(report: &PagesReport, output: &mut dyn Write) -> Outcome {
    let rate = |rate: f64| show_count(rate as u64);
    print(
        output,
        format_args!(
            "{} of {}, budget {}, memory {} of process, {}, medians of {}\n\
             under guards: {}/s, of which {}/s were read from the file\n",
            counted(report.pages, "page"),
            show_size(report.page_bytes),
            show_size(report.budget_bytes),
            show_size(report.rss_bytes),
            counted(report.threads.into(), "thread"),
            counted(report.rounds.into(), "round"),
            rate(report.guards_per_second),
            rate(report.faults_per_second),
        ),
    )?;
    if let (Some(raw), Some(released), Some(of_raw), Some(of_released)) = (
        report.raw_reads_per_second,
        report.raw_with_release_per_second,
        report.share_of_raw_reads,
        report.share_of_raw_with_release,
    ) {
        print(
            output,
            format_args!(
                "the disk: {}/s; with memory for each page, given and taken: {}/s\n\
                 pages read are {:.0} % of the one and {:.0} % of the other\n",
                rate(raw),
                rate(released),
                of_raw * 100.0,
                of_released * 100.0,
            ),
        )?;
    }
    Ok(())
}
