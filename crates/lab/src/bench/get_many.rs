//! `terrace bench get-many`: the gain of batched reads, next to the disk's own gain.
//!
//! One thread alternates four methods: keys singly, keys in batches, pages of the page file singly,
//! pages in batches. The key order visits each record once before repeating and separates
//! neighbours. So nearly every key misses once if data far exceed memory; `misses_per_key` reports
//! how often. Figures are medians over the rounds; ratios are medians of per-round ratios.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use serde::Serialize;
use terrace_common::failure::{Failure, Outcome};
use terrace_common::interrupt;
use terrace_common::memory;
use terrace_common::output::{print, print_json};
use terrace_common::store::{Opener, Settings, Store, with_database};
use terrace_common::units::{show_count, show_size};
use terrace_common::values;
use terrace_io::{AlignedBuffer, BlockDevice, Directory, FileDirectory, OpenMode, Read};

use super::ground;
use crate::args::GetManyArgs;
use crate::workload::driver::{self, Length, Plan};
use crate::workload::fields::Touch;
use crate::workload::ycsb::Distribution;

/// The loaded table, replaced if it exists.
const TABLE: &str = "get-many";
/// File for the raw disk reads.
const PAGES: &str = "pages.terrace";
/// Default page size.
const PAGE_BYTES: u64 = 4096;

/// The object of `--json`.
#[derive(Debug, Default, Serialize)]
pub struct GetManyReport {
    records: u64,
    value_bytes: usize,
    /// Settings in the engine's own terms.
    settings: BTreeMap<&'static str, String>,
    budget_bytes: u64,
    rss_bytes: u64,
    keys: u16,
    rounds: u16,
    /// Keys per second, singly.
    gets_per_second: f64,
    /// Keys per second, batched.
    get_many_per_second: f64,
    /// Disk page reads per second, singly; null without a page file.
    disk_single_per_second: Option<f64>,
    /// Disk page reads per second, batched.
    disk_many_per_second: Option<f64>,
    /// `get_many_per_second` divided by `gets_per_second`.
    gain: f64,
    disk_gain: Option<f64>,
    /// `gain` divided by `disk_gain`.
    share_of_disk_gain: Option<f64>,
    /// Pages read per key, singly and batched.
    misses_per_key: [f64; 2],
    /// Correct values read.
    verified: u64,
}

/// Runs the benchmark.
pub fn run(args: &GetManyArgs, opener: &dyn Opener, output: &mut dyn Write) -> Outcome {
    let settings =
        Settings { create: !args.loaded, threads: 1, ..Settings::new(&args.tiers, Some(args.store.clone())) };
    if !args.loaded {
        ground::take(Some(&args.store))?;
    }
    let report = with_database(opener, &settings, |database| {
        if !args.loaded {
            database.drop_table(TABLE)?;
            let table = database.table(TABLE, true)?;
            driver::load(&*table, &plan(args))?;
        }
        let table = database.table(TABLE, false)?;
        let mut report = measure(args, &*table, Disk::open(args)?)?;
        report.settings = database.settings();
        Ok(report)
    })?;
    match args.output.json {
        true => print_json(output, &report),
        false => show(&report, output),
    }
}

fn plan(args: &GetManyArgs) -> Plan {
    Plan {
        mix: "c".parse().expect("a workload"),
        distribution: Distribution::Uniform,
        records: args.records,
        value_bytes: args.value_size,
        fields: None,
        touch: Touch::All,
        visit: false,
        threads: 1,
        length: Length::Operations(0),
        rate: None,
        warmup: Duration::ZERO,
        seed: args.tiers.seed,
        tick: Duration::from_secs(1),
    }
}

/// Records in an order that visits each once before repeating.
struct Order {
    records: u64,
    step: u64,
    at: u64,
}

impl Order {
    fn new(records: u64, random: &mut SmallRng) -> Order {
        // The golden ratio keeps successive records apart; a coprime step visits all.
        let mut step = ((records as f64 * 0.618_033_988_75) as u64).max(1);
        while divisor(step, records) != 1 {
            step += 1;
        }
        Order { records, step, at: random.random_range(0..records) }
    }

    fn next(&mut self) -> u64 {
        self.at = (self.at + self.step) % self.records;
        values::loaded(self.at)
    }
}

/// The greatest common divisor.
fn divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { divisor(b, a % b) }
}

/// The page file, opened read-only beside the database.
struct Disk {
    device: Arc<dyn BlockDevice>,
    page_bytes: u64,
    pages: u64,
    buffer: AlignedBuffer,
}

impl Disk {
    fn open(args: &GetManyArgs) -> Outcome<Option<Disk>> {
        let failed = |error: std::io::Error| Failure::file("reading", &args.store, error);
        if !Path::new(&args.store).join(PAGES).exists() {
            return Ok(None);
        }
        let device = FileDirectory::open(&args.store)
            .and_then(|directory| directory.open(PAGES, OpenMode::Read))
            .map_err(failed)?;
        let page_bytes = args.tiers.layout.page_size.unwrap_or(PAGE_BYTES);
        let pages = device.len() / page_bytes;
        let buffer = AlignedBuffer::zeroed(usize::from(args.keys) * page_bytes as usize);
        Ok(Some(Disk { device, page_bytes, pages, buffer }))
    }

    /// Reads `count` random pages in batches of `together`; returns pages per second.
    fn read(&mut self, count: u32, together: u16, random: &mut SmallRng) -> std::io::Result<f64> {
        let began = Instant::now();
        let mut left = count as usize;
        while left > 0 {
            let now = left.min(together.into());
            let mut reads: Vec<Read<'_>> = self
                .buffer
                .chunks_exact_mut(self.page_bytes as usize)
                .take(now)
                .map(|page| Read::new(random.random_range(0..self.pages) * self.page_bytes, page))
                .collect();
            self.device.read_batch(&mut reads);
            reads.into_iter().try_for_each(|read| read.result)?;
            left -= now;
        }
        Ok(f64::from(count) / began.elapsed().as_secs_f64())
    }
}

/// Rates of one round.
#[derive(Clone, Copy, Default)]
struct Round {
    single: f64,
    many: f64,
    disk_single: f64,
    disk_many: f64,
}

struct Reader<'a> {
    args: &'a GetManyArgs,
    table: &'a dyn Store,
    order: Order,
    verified: u64,
    missed: [u64; 2],
}

impl Reader<'_> {
    /// Reads a round's keys in batches of `together`; returns keys per second.
    fn read(&mut self, together: u16) -> Outcome<f64> {
        let before = self.table.counters().store_to_dram;
        let began = Instant::now();
        let mut left = self.args.round_keys as usize;
        while left > 0 {
            let numbers: Vec<u64> = (0..left.min(together.into())).map(|_| self.order.next()).collect();
            let keys: Vec<Vec<u8>> = numbers.iter().map(|&number| values::key(number).to_vec()).collect();
            let found = match together {
                1 => vec![self.table.get(&keys[0])?],
                _ => self.table.get_many(&keys)?,
            };
            for (&number, value) in numbers.iter().zip(&found) {
                let right =
                    value.as_deref().is_some_and(|value| values::check(number, self.args.value_size, value));
                if !right {
                    return Err(Failure::Damaged(format!("the value of key {number} is wrong or missing")));
                }
            }
            self.verified += found.len() as u64;
            left -= found.len();
        }
        let rate = f64::from(self.args.round_keys) / began.elapsed().as_secs_f64();
        self.missed[usize::from(together > 1)] += self.table.counters().store_to_dram - before;
        Ok(rate)
    }
}

fn measure(args: &GetManyArgs, table: &dyn Store, mut disk: Option<Disk>) -> Outcome<GetManyReport> {
    let mut random = SmallRng::seed_from_u64(args.tiers.seed);
    let order = Order::new(args.records, &mut random);
    let mut reader = Reader { args, table, order, verified: 0, missed: [0; 2] };
    let mut rounds: Vec<Round> = Vec::new();
    // An extra first round loads the inner nodes; it does not count.
    for number in 0..=args.rounds {
        let mut round = Round::default();
        let mut steps = [0, 1, 2, 3];
        if number % 2 == 1 {
            steps.reverse();
        }
        for step in steps {
            interrupt::check()?;
            match (step, &mut disk) {
                (0, _) => round.single = reader.read(1)?,
                (1, _) => round.many = reader.read(args.keys)?,
                (_, None) => {}
                (step, Some(disk)) => {
                    let together = if step == 2 { 1 } else { args.keys };
                    let rate = disk
                        .read(args.round_keys, together, &mut random)
                        .map_err(|error| Failure::file("reading", &args.store, error))?;
                    *(if step == 2 { &mut round.disk_single } else { &mut round.disk_many }) = rate;
                }
            }
        }
        if number == 0 {
            reader.missed = [0; 2];
        } else {
            rounds.push(round);
        }
    }
    let median = |of: fn(&Round) -> f64| {
        let mut values: Vec<f64> = rounds.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let of_disk = |of: fn(&Round) -> f64| disk.is_some().then(|| median(of));
    let asked = f64::from(args.round_keys) * f64::from(args.rounds);
    Ok(GetManyReport {
        records: args.records,
        value_bytes: args.value_size,
        budget_bytes: table.counters().budget_bytes,
        rss_bytes: memory::peak_resident_bytes(),
        keys: args.keys,
        rounds: args.rounds,
        gets_per_second: median(|round| round.single),
        get_many_per_second: median(|round| round.many),
        disk_single_per_second: of_disk(|round| round.disk_single),
        disk_many_per_second: of_disk(|round| round.disk_many),
        gain: median(|round| round.many / round.single),
        disk_gain: of_disk(|round| round.disk_many / round.disk_single),
        share_of_disk_gain: of_disk(|round| {
            round.many / round.single / (round.disk_many / round.disk_single)
        }),
        misses_per_key: reader.missed.map(|missed| missed as f64 / asked),
        verified: reader.verified,
        ..GetManyReport::default()
    })
}

fn show(report: &GetManyReport, output: &mut dyn Write) -> Outcome {
    let rate = |rate: f64| show_count(rate as u64);
    let (budget, rss) = (show_size(report.budget_bytes), show_size(report.rss_bytes));
    let [single, many] = report.misses_per_key;
    print(
        output,
        format_args!(
            "{} records of {} B, budget {budget}, memory {rss} of process, medians of {} rounds\n\
             keys one by one: {}/s ({single:.2} pages read for a key)\n\
             {} keys at a time: {}/s ({many:.2} pages), {:.2} times as many\n",
            show_count(report.records),
            report.value_bytes,
            report.rounds,
            rate(report.gets_per_second),
            report.keys,
            rate(report.get_many_per_second),
            report.gain,
        ),
    )?;
    if let (Some(single), Some(many), Some(gain), Some(share)) = (
        report.disk_single_per_second,
        report.disk_many_per_second,
        report.disk_gain,
        report.share_of_disk_gain,
    ) {
        print(
            output,
            format_args!(
                "the disk, one page at a time: {}/s; {} at a time: {}/s, {gain:.2} times as many\n\
                 of the disk's gain, {:.0} % reach the keys\n",
                rate(single),
                report.keys,
                rate(many),
                share * 100.0,
            ),
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_visits_every_record_once() {
        for records in [1, 2, 10, 999, 1000] {
            let mut order = Order::new(records, &mut SmallRng::seed_from_u64(records));
            let mut seen: Vec<u64> = (0..records).map(|_| order.next()).collect();
            seen.sort_unstable();
            assert!(seen.iter().copied().eq((0..records).map(values::loaded)), "{records}");
        }
    }
}
