//! C4: ways to move pages to another node.

use std::time::Instant;

use terrace_block::{Migrate, Region, nodes};

use super::super::{Measured, Setting, Verdict};
use crate::failure::{Failure, Outcome};
use crate::report::Lines;

/// Pages moved in a round, 4 KiB each.
const PAGES: usize = 2048;
/// Pages handed over at a time.
const BATCHES: [usize; 4] = [1, 8, 64, 512];
const ROUNDS: usize = 9;
const PAGE_BYTES: usize = 4096;

/// Measures, where there are two nodes.
pub fn measure(_: &Setting) -> Outcome<Measured> {
    let there: Vec<u32> = nodes().iter().filter(|node| node.bytes > 0).map(|node| node.node).collect();
    let [near, far, ..] = there[..] else {
        return Ok(Measured {
            measured: String::new(),
            verdict: Verdict::NotHere,
            note: "this machine has one NUMA node, and pages move between two".into(),
            figures: Vec::new(),
        });
    };
    let work =
        |error: std::io::Error| Failure::Work(format!("moving pages from node {near} to {far}: {error}"));
    // Every other page, so that no two adjoin: pages that are hot are where they happen to be.
    let region = Region::reserve_sparse(2 * PAGES * PAGE_BYTES, PAGE_BYTES).map_err(work)?;
    let pages = || (0..PAGES).map(|page| 2 * page * PAGE_BYTES..(2 * page + 1) * PAGE_BYTES);
    region.populate(&mut pages().collect::<Vec<_>>()).map_err(work)?;
    let mut seconds = vec![vec![Vec::new(); BATCHES.len()]; Migrate::ALL.len()];
    let mut node = near;
    for _ in 0..ROUNDS {
        for (way, times) in Migrate::ALL.iter().zip(&mut seconds) {
            for (batch, times) in BATCHES.iter().zip(times) {
                node = if node == near { far } else { near };
                let all: Vec<_> = pages().collect();
                let began = Instant::now();
                for part in all.chunks(*batch) {
                    region.migrate(&mut part.to_vec(), node, *way).map_err(work)?;
                }
                times.push(began.elapsed().as_secs_f64());
            }
        }
    }
    let rate = |way: usize, batch: usize| {
        let mut times = seconds[way][batch].clone();
        times.sort_by(f64::total_cmp);
        PAGES as f64 / times[ROUNDS / 2]
    };
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
    Ok(Measured {
        measured: format!(
            "mbind moves {single:.2} times as many pages as move_pages one by one, {many:.2} times in batches of {}; copies {:.2} times",
            BATCHES[last],
            rate(way(Migrate::Copy), last) / rate(batch, last)
        ),
        verdict,
        note: format!(
            "Pages of 4 KiB that do not adjoin, between nodes {near} and {far}, medians of {ROUNDS} rounds, batch with batch and page with \
             page. Holds: mbind 1.4 times move_pages in batches; sign: faster in batches or one by one. The copies are the paper's \
             proposal, which it does not measure."
        ),
        figures: vec![lines],
    })
}
