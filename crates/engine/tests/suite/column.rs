//! A column compared with an array, over memory that is many times too small.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use terrace::pages::{Aggregate, Column, PageAllocator, Value};
use terrace::{Backend, Error, MemoryDirectory, Mode, SimulatedDisk};
use terrace_io::{CallKind, FaultPlan};

use super::common;

fn open(mode: Mode, page_bytes: u64) -> PageAllocator {
    let directory = Arc::new(MemoryDirectory::new());
    let builder = common::pages_builder().dram(2 << 20).page_sizes(&[page_bytes]).mode(mode);
    builder.directory(directory).open("pages").unwrap()
}

/// The aggregate of `values`.
fn expected<T: Value>(values: &[T], sum: T::Sum) -> Aggregate<T> {
    let choose = |choose: fn(T, T) -> T| values.iter().copied().reduce(choose);
    Aggregate { count: values.len() as u64, sum, min: choose(T::lesser), max: choose(T::greater) }
}

/// A random range of an array of `len` values, sometimes beyond its end.
fn any_range(random: &mut SmallRng, len: usize) -> std::ops::Range<u64> {
    let start = random.random_range(0..=len as u64 + 10);
    start..start + random.random_range(0..=len as u64 / 4 + 1)
}

fn behaves_as_an_array<T: Value>(seed: u64, draw: fn(&mut SmallRng) -> T, sum: fn(&[T]) -> T::Sum) {
    println!("seed {seed}");
    let mut random = SmallRng::seed_from_u64(seed);
    let mode = if seed.is_multiple_of(2) { Mode::Inline } else { Mode::Background };
    let page_bytes = 4096 << (seed % 3);
    let pages = open(mode, page_bytes);
    let column: Column<T> = Column::new(&pages);
    let mut array: Vec<T> = Vec::new();
    for _ in 0..300 {
        match random.random_range(0..10) {
            0..5 => {
                let values: Vec<T> = (0..random.random_range(0..9000)).map(|_| draw(&mut random)).collect();
                column.append(&values).unwrap();
                array.extend(values);
            }
            5..7 => {
                for _ in 0..20 {
                    let index = random.random_range(0..array.len() as u64 + 2);
                    assert_eq!(column.get(index).unwrap(), array.get(index as usize).copied());
                }
            }
            kind => {
                let range = any_range(&mut random, array.len());
                let here = |at: u64| (at as usize).min(array.len());
                let values = &array[here(range.start)..here(range.end)];
                match kind {
                    7 => {
                        let mut scanned = Vec::new();
                        column.scan(range, |block| scanned.extend_from_slice(block)).unwrap();
                        assert_eq!(scanned, values);
                    }
                    8 => assert_eq!(column.sum(range).unwrap(), sum(values)),
                    _ => assert_eq!(column.aggregate(range).unwrap(), expected(values, sum(values))),
                }
            }
        }
        assert_eq!(column.len(), array.len() as u64);
    }
    assert_eq!(column.sum(..).unwrap(), sum(&array));
    assert!(array.len() * 8 > 2 * (2 << 20), "{} values fit", array.len());
    let stats = pages.stats();
    assert!(stats.faults > 100, "{stats:?}");
    assert_eq!(stats.pages * page_bytes, column.page_bytes_total());
    assert!(column.memory_bytes() >= stats.pages * 16);
    drop(column);
    assert_eq!(pages.stats().pages, 0);
}

#[test]
fn a_column_behaves_as_an_array() {
    for seed in 0..2 {
        behaves_as_an_array::<u64>(
            seed * 3,
            |random| random.random(),
            |all| all.iter().map(|&one| u128::from(one)).sum(),
        );
        behaves_as_an_array::<i64>(
            seed * 3 + 1,
            |random| random.random(),
            |all| all.iter().map(|&one| i128::from(one)).sum(),
        );
        // Halves of small numbers, whose sums are exact in any order.
        behaves_as_an_array::<f64>(
            seed * 3 + 2,
            |random| f64::from(random.random::<i16>()) / 2.0,
            |all| all.iter().sum(),
        );
    }
}

/// Checks that `block` counts on from `next`.
fn is_counting(block: &[u64], next: &mut u64) {
    for &value in block {
        assert_eq!(value, *next);
        *next += 1;
    }
}

#[test]
fn whoever_sees_the_length_sees_the_values() {
    let pages = open(Mode::Background, 4096);
    let column: Column<u64> = Column::new(&pages);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (column, done) = (&column, &done);
            scope.spawn(move || {
                let mut random = SmallRng::seed_from_u64(thread);
                while !done.load(Relaxed) {
                    let len = column.len();
                    if len == 0 {
                        continue;
                    }
                    let index = random.random_range(0..len);
                    assert_eq!(column.get(index).unwrap(), Some(index));
                    let start = len.saturating_sub(2000);
                    assert_eq!(column.sum(start..len).unwrap(), (start..len).map(u128::from).sum());
                    let mut next = start;
                    column.scan(start..len, |block| is_counting(block, &mut next)).unwrap();
                    assert_eq!(next, len);
                }
            });
        }
        let _stop = crate::common::Retry(&done);
        let mut next = 0;
        while next < 1_000_000 {
            let values: Vec<u64> = (next..next + 1777).collect();
            column.append(&values).unwrap();
            next += 1777;
        }
    });
}

#[test]
fn an_append_that_fails_appends_nothing() {
    let disk = SimulatedDisk::new(1);
    let builder = common::pages_builder().dram(2 << 20).page_sizes(&[4096]).mode(Mode::Inline);
    let pages = builder.directory(Arc::new(disk.clone())).open("pages").unwrap();
    let column: Column<u64> = Column::new(&pages);
    disk.set_capacity(6 << 20);
    let mut len = 0;
    let error = loop {
        match column.append(&(len..len + 100_000).collect::<Vec<u64>>()) {
            Ok(()) => len += 100_000,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::Full { .. }), "{error}");
    assert_eq!(column.len(), len);
    disk.set_capacity(64 << 20);
    for _ in 0..3 {
        column.append(&(len..len + 100_000).collect::<Vec<u64>>()).unwrap();
        len += 100_000;
    }
    let mut next = 0;
    column.scan(.., |block| is_counting(block, &mut next)).unwrap();
    assert_eq!(next, len);
    // A scan whose last page cannot be read.
    disk.fail(FaultPlan::from_then_on(CallKind::Read, 1, libc::EIO));
    assert!(column.sum(..).is_err());
    disk.mend();
    assert_eq!(column.sum(..).unwrap(), (0..u128::from(len)).sum());
    for page_bytes in [0, 8, 5000, 64 << 10] {
        let other = Column::<i64>::with_page_bytes(&pages, page_bytes);
        assert!(matches!(other, Err(Error::Config(_))), "{page_bytes}");
    }
    let empty = Column::<i64>::with_page_bytes(&pages, 4096).unwrap();
    assert_eq!((empty.len(), empty.sum(..).unwrap(), empty.get(0).unwrap()), (0, 0, None));
}

/// Scans in which reads fail from some point: they show the values before, in order, and return the
/// error.
///
/// The next scan, with a working disk, shows everything.
#[test]
fn a_scan_ends_where_a_page_cannot_be_read() {
    for (mode, reads) in
        [Mode::Inline, Mode::Background].into_iter().flat_map(|mode| [1, 3, 20].map(|reads| (mode, reads)))
    {
        let disk = SimulatedDisk::new(1);
        let builder = common::pages_builder().dram(2 << 20).page_sizes(&[4096]).mode(mode);
        let pages = builder.directory(Arc::new(disk.clone())).open("pages").unwrap();
        let column: Column<u64> = Column::new(&pages);
        let len = (8 << 20) / 8;
        column.append(&(0..len).collect::<Vec<u64>>()).unwrap();
        disk.fail(FaultPlan::from_then_on(CallKind::Read, reads, libc::EIO));
        let mut next = 0;
        let failed = column.scan(.., |block| is_counting(block, &mut next));
        assert!(matches!(failed, Err(Error::Io { operation: "read", .. })), "{mode:?} {reads}: {failed:?}");
        assert!(next < len && next.is_multiple_of(column.values_per_page()), "{mode:?} {reads}: {next}");
        disk.mend();
        next = 0;
        column.scan(.., |block| is_counting(block, &mut next)).unwrap();
        assert_eq!(next, len, "{mode:?} {reads}");
    }
}

/// Scans ended by a panic of the visitor leave neither threads nor guards: every page stays
/// writable.
#[test]
fn a_scan_that_is_given_up_holds_nothing() {
    let pages = open(Mode::Background, 4096);
    let column: Column<u64> = Column::new(&pages);
    let len = (8 << 20) / 8;
    column.append(&(0..len).collect::<Vec<u64>>()).unwrap();
    for end in [0, 1000, len / 2] {
        let mut next = 0;
        let scan = std::panic::AssertUnwindSafe(|| {
            column.scan(.., |block| {
                is_counting(block, &mut next);
                assert!(next < end, "given up");
            })
        });
        assert!(std::panic::catch_unwind(scan).is_err(), "{end}");
        assert!(next >= end && next < len);
    }
    column.append(&[len]).unwrap();
    assert_eq!(column.sum(..).unwrap(), u128::from(len) * u128::from(len + 1) / 2);
    drop(column);
    assert_eq!(pages.stats().pages, 0);
}

const BUDGET_BYTES: u64 = 16 << 20;
/// Bytes for the program and its stacks.
const BESIDE_BYTES: u64 = 16 << 20;
const FOLDER: &str = "TERRACE_COLUMN_FOLDER";

/// Fills and reads a column of eight times the budget, and reports its memory; otherwise does
/// nothing.
#[test]
fn filler() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let pages = common::pages_builder().dram(BUDGET_BYTES).open(Path::new(&folder).join("pages")).unwrap();
    let column: Column<u64> = Column::new(&pages);
    let values = 8 * BUDGET_BYTES / 8;
    for start in (0..values).step_by(10_000) {
        column.append(&(start..values.min(start + 10_000)).collect::<Vec<u64>>()).unwrap();
    }
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let column = &column;
            scope.spawn(move || {
                assert_eq!(column.sum(..).unwrap(), (0..u128::from(values)).sum());
                let mut random = SmallRng::seed_from_u64(thread);
                for _ in 0..2000 {
                    let index = random.random_range(0..values);
                    assert_eq!(column.get(index).unwrap(), Some(index));
                }
            });
        }
    });
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    println!("\npeak {}", peak.trim());
}

#[test]
fn a_column_larger_than_memory_keeps_to_the_budget() {
    if std::fs::read_to_string("/proc/self/status").is_err() {
        println!("left out: the system does not say how much memory a process has");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["column::filler", "--exact", "--nocapture", "--test-threads=1"]).env(FOLDER, folder.path());
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let lines: Vec<String> = lines.map(Result::unwrap).collect();
    let peak = lines.iter().find_map(|line| line.strip_prefix("peak "));
    assert!(child.wait().unwrap().success());
    let peak: u64 = peak.unwrap().strip_suffix(" kB").unwrap().parse().unwrap();
    println!("{peak} kB");
    assert!(
        peak * 1024 <= BUDGET_BYTES + BESIDE_BYTES,
        "{peak} kB of memory with a budget of {BUDGET_BYTES}"
    );
    assert!(std::fs::read_dir(folder.path()).unwrap().next().is_none(), "the file is gone");
}

/// The largest pages, twice as many as fit, with either back end.
#[test]
fn large_pages_hold_a_column() {
    for (backend, page_bytes) in
        [(Backend::Frames, 2 << 20), (Backend::Mapped, 2 << 20), (Backend::Mapped, 256 << 10)]
    {
        let builder = common::pages_builder().dram(48 << 20).page_sizes(&[page_bytes]).backend(backend);
        let pages = builder.directory(Arc::new(MemoryDirectory::new())).open("pages").unwrap();
        let column: Column<u64> = Column::with_page_bytes(&pages, page_bytes).unwrap();
        let len = (64 << 20) / 8;
        for start in (0..len).step_by(1 << 16) {
            column.append(&(start..start + (1 << 16)).collect::<Vec<u64>>()).unwrap();
        }
        let aggregate = column.aggregate(..).unwrap();
        assert_eq!((aggregate.count, aggregate.min, aggregate.max), (len, Some(0), Some(len - 1)));
        assert_eq!(aggregate.sum, u128::from(len) * u128::from(len - 1) / 2);
        for index in (0..len).step_by(99_991) {
            assert_eq!(column.get(index).unwrap(), Some(index), "{backend}");
        }
        let stats = pages.stats();
        assert!(stats.evictions > 0, "{stats:?}");
        for class in &stats.frame_classes {
            assert!(class.resident_bytes <= class.frames * class.page_bytes, "{class:?}");
        }
    }
}
