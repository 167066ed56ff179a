//! The small trace in `data/`, against an independent implementation.
//!
//! `sample.pgt.zst` is part of a pgbench trace: requests for every 32nd page. `sample.csv` has
//! misses and write-backs from plain list-and-dictionary policies, written independently. Belady's
//! choice of dirty victims is not unique, so it has no write-backs.

use std::fs;
use std::path::{Path, PathBuf};

use terrace_cache::sim::{Simulation, Size};
use terrace_cache::trace::Trace;

fn data(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(file)
}

#[test]
fn policies_miss_and_write_back_what_another_implementation_does() {
    let expected = fs::read_to_string(data("sample.csv")).unwrap();
    let rows: Vec<Vec<&str>> = expected.lines().skip(1).map(|line| line.split(',').collect()).collect();
    assert_eq!(rows.len(), 21);
    let simulation = rows.iter().fold(Simulation::new(), |simulation, row| {
        simulation.cache(row[0].parse().unwrap(), Size::Blocks(row[1].parse().unwrap()))
    });
    let mut open = || Trace::open(&data("sample.pgt.zst"), None, 8192);
    let report = simulation.run(&mut open, true, &|_| {}).unwrap();
    assert_eq!((report.summary.requests, report.summary.footprint, report.summary.writes), SUMMARY);
    for (result, row) in report.results.iter().zip(rows) {
        let of = format!("{} with {} blocks", result.policy, result.cache_blocks);
        assert_eq!(result.counts.misses().to_string(), row[2], "misses of {of}");
        if !row[3].is_empty() {
            assert_eq!(result.counts.write_backs.to_string(), row[3], "write-backs of {of}");
        }
    }
}

/// Requests, blocks and writes of the sample.
const SUMMARY: (u64, usize, u64) = (7780, 1151, 1508);
