//! The small trace in `data/`, against counts of another implementation.
//!
//! `sample.pgt.zst` is a part of a trace of pgbench: requests for every 32nd page. `sample.csv` has what
//! plain list-and-dictionary versions of the policies, written for this and not derived from the ones here, miss and write
//! back on it. Belady's bound has no one answer to which dirty blocks leave, so its write-backs are not there.

use std::fs;
use std::path::{Path, PathBuf};

use terrace_block::sim::{Simulation, Size};
use terrace_block::trace::Trace;

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
