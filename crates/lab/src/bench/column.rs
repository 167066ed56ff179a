//! `terrace bench column`: the sum of a column, next to plain memory or the disk.
//!
//! A column that fits `--dram` alternates with a plain array of the same numbers. A larger one
//! alternates with sequential O_DIRECT reads of its file, 4 MiB at a time. Each thread takes one
//! contiguous part. Some pages may still be in memory from the previous round, so the disk's share
//! counts only bytes actually read. Figures are medians over the rounds; ratios are medians of
//! per-round ratios.

use std::io::Write;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;
use terrace::pages::{Column, PageAllocator};
use terrace_common::failure::{Failure, Outcome};
use terrace_common::interrupt;
use terrace_common::memory;
use terrace_common::output::{print, print_json};
use terrace_common::units::{counted, show_count, show_size};
use terrace_io::{AlignedBuffer, BlockDevice};

use super::pages::{FILE, FIRST_PAGE_AT, in_threads, median, open, open_raw};
use crate::args::StructureArgs;

/// Numbers per append.
const APPENDED: u64 = 1 << 16;
/// Bytes per sequential disk read; larger reads are no faster.
const TRANSFER_BYTES: usize = 4 << 20;
/// Default page size.
const PAGE_BYTES: u64 = 64 << 10;

/// Result of the benchmark.
#[derive(Debug, Default, Serialize)]
pub struct ColumnReport {
    page_bytes: u64,
    values: u64,
    data_bytes: u64,
    budget_bytes: u64,
    /// Peak memory before the array or the raw reads are set up.
    rss_bytes: u64,
    threads: u16,
    rounds: u16,
    /// Memory of the column besides its pages.
    list_bytes: u64,
    /// The baseline: "memory" or "disk".
    beside: &'static str,
    /// Bytes of numbers summed per second.
    sum_bytes_per_second: f64,
    /// Bytes read from the file per second.
    read_bytes_per_second: f64,
    /// Bytes per second of the baseline.
    beside_bytes_per_second: f64,
    /// `sum_bytes_per_second` (memory) or `read_bytes_per_second` (disk), divided by
    /// `beside_bytes_per_second`.
    share: f64,
    /// Sums verified.
    verified: u64,
}

/// The baseline.
enum Beside {
    Array(Vec<u64>),
    Disk { file: Arc<dyn BlockDevice>, bytes: u64 },
}

/// Bytes per second in one round.
#[derive(Clone, Copy, Default)]
struct Round {
    sum: f64,
    read: f64,
    beside: f64,
}

/// Runs the benchmark.
pub fn run(args: &StructureArgs, output: &mut dyn Write) -> Outcome {
    let report = measure(args)?;
    match args.output.json {
        true => print_json(output, &report),
        false => show(&report, output),
    }
}

/// The number at `index`. Numbers are distinct, so the sum reveals a missing one.
fn number(index: u64) -> u64 {
    index.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 8
}

/// Thread `thread`'s part of `count` items.
fn part(count: u64, thread: u16, threads: u16) -> Range<u64> {
    let at = |thread: u16| (u128::from(count) * u128::from(thread) / u128::from(threads)) as u64;
    at(thread)..at(thread + 1)
}

fn measure(args: &StructureArgs) -> Outcome<ColumnReport> {
    let page_bytes = args.page_size.unwrap_or(PAGE_BYTES);
    let pages = open(args, page_bytes)?;
    let column: Column<u64> = Column::with_page_bytes(&pages, page_bytes)?;
    let values = (args.data / 8).max(1);
    let mut expected = 0;
    for start in (0..values).step_by(APPENDED as usize) {
        let block: Vec<u64> = (start..values.min(start + APPENDED)).map(number).collect();
        interrupt::check()?;
        expected += block.iter().map(|&value| u128::from(value)).sum::<u128>();
        column.append(&block)?;
    }
    let mut rounds = Vec::new();
    let (mut beside, mut rss_bytes) = (None, 0);
    // An extra first round writes back the dirty pages; it does not count.
    for round in 0..=args.rounds {
        let beside = match &beside {
            Some(beside) => beside,
            None => {
                sum(args, &column, expected)?;
                rss_bytes = memory::peak_resident_bytes();
                beside.insert(Beside::of(args, &pages, &column)?)
            }
        };
        let mut measured = Round::default();
        for step in if round % 2 == 0 { [0, 1] } else { [1, 0] } {
            interrupt::check()?;
            let read = pages.stats().read_bytes;
            let began = Instant::now();
            let rate = |bytes: u64| bytes as f64 / began.elapsed().as_secs_f64();
            if step == 0 {
                sum(args, &column, expected)?;
                (measured.sum, measured.read) = (rate(values * 8), rate(pages.stats().read_bytes - read));
            } else {
                measured.beside = rate(beside.pass(args, expected)?);
            }
        }
        if round > 0 {
            rounds.push(measured);
        }
    }
    let stats = pages.stats();
    let (name, share): (_, fn(&Round) -> f64) = match &beside {
        Some(Beside::Disk { .. }) => ("disk", |round| round.read / round.beside),
        _ => ("memory", |round| round.sum / round.beside),
    };
    Ok(ColumnReport {
        page_bytes,
        values,
        data_bytes: values * 8,
        budget_bytes: stats.budget_bytes,
        rss_bytes,
        threads: args.threads,
        rounds: args.rounds,
        list_bytes: column.memory_bytes(),
        beside: name,
        sum_bytes_per_second: median(&rounds, |round| round.sum),
        read_bytes_per_second: median(&rounds, |round| round.read),
        beside_bytes_per_second: median(&rounds, |round| round.beside),
        share: median(&rounds, share),
        verified: u64::from(args.rounds) + 2,
    })
}

/// Sums the column and compares with `expected`.
fn sum(args: &StructureArgs, column: &Column<u64>, expected: u128) -> Outcome {
    let in_page = column.values_per_page();
    let pages = column.len().div_ceil(in_page);
    let sums = in_threads(args.threads, |thread| {
        let part = part(pages, thread, args.threads);
        Ok(column.sum(part.start * in_page..part.end * in_page)?)
    })?;
    match sums.into_iter().sum::<u128>() == expected {
        true => Ok(()),
        false => Err(Failure::Damaged("the sum of the column is wrong".to_owned())),
    }
}

impl Beside {
    /// The array if the column fits memory, else the disk.
    fn of(args: &StructureArgs, pages: &PageAllocator, column: &Column<u64>) -> Outcome<Beside> {
        let stats = pages.stats();
        if stats.evictions == 0 {
            return Ok(Beside::Array((0..column.len()).map(number).collect()));
        }
        // Pages fill the file from its start. Reads beyond them hit unwritten space and never reach
        // the disk.
        Ok(Beside::Disk { file: open_raw(&args.store)?, bytes: stats.live_bytes })
    }

    /// One full pass; returns its bytes.
    fn pass(&self, args: &StructureArgs, expected: u128) -> Outcome<u64> {
        match self {
            Beside::Array(array) => {
                let sums = in_threads(args.threads, |thread| {
                    let part = part(array.len() as u64, thread, args.threads);
                    let numbers = &array[part.start as usize..part.end as usize];
                    Ok(numbers.iter().fold(0u64, |sum, &value| sum.wrapping_add(value)))
                })?;
                let sum = sums.into_iter().fold(0u64, u64::wrapping_add);
                match sum == expected as u64 {
                    true => Ok(array.len() as u64 * 8),
                    false => Err(Failure::Damaged("the sum of the array is wrong".to_owned())),
                }
            }
            Beside::Disk { file, bytes } => {
                let transfers = bytes / TRANSFER_BYTES as u64;
                let failed = |error| Failure::file("reading", &args.store.join(FILE), error);
                in_threads(args.threads, |thread| {
                    let mut buffer = AlignedBuffer::zeroed(TRANSFER_BYTES);
                    for transfer in part(transfers, thread, args.threads) {
                        let at = FIRST_PAGE_AT + transfer * TRANSFER_BYTES as u64;
                        file.read_at(at, &mut buffer).map_err(failed)?;
                    }
                    Ok(())
                })?;
                Ok(transfers * TRANSFER_BYTES as u64)
            }
        }
    }
}

fn show(report: &ColumnReport, output: &mut dyn Write) -> Outcome {
    let rate = |rate: f64| show_size(rate as u64);
    print(
        output,
        format_args!(
            "{} numbers in pages of {}, budget {}, memory {} of process, {}, medians of {}\n\
             summed: {}/s, of which {}/s were read from the file\n\
             {}: {}/s; the column has {:.0} % of that\n",
            show_count(report.values),
            show_size(report.page_bytes),
            show_size(report.budget_bytes),
            show_size(report.rss_bytes),
            counted(report.threads.into(), "thread"),
            counted(report.rounds.into(), "round"),
            rate(report.sum_bytes_per_second),
            rate(report.read_bytes_per_second),
            if report.beside == "disk" { "the disk" } else { "a plain array in memory" },
            rate(report.beside_bytes_per_second),
            report.share * 100.0,
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_all_threads_are_everything_once() {
        for (count, threads) in [(0, 1), (1, 2), (100, 3), (u64::MAX, 7)] {
            let parts: Vec<_> = (0..threads).map(|thread| part(count, thread, threads)).collect();
            assert!(parts[0].start == 0 && parts[parts.len() - 1].end == count);
            assert!(parts.windows(2).all(|two| two[0].end == two[1].start));
        }
    }
}
