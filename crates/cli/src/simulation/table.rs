//! Simulation results as text: a row per cache, then per query and relation if counted.

use std::fmt::Write as _;

use terrace_common::units::{counted, show_count, show_size};

use super::found::{CacheFound, CostFound, CurveFound, Found, PartFound};

/// Renders the text.
pub fn table(found: &Found) -> String {
    let mut text = format!(
        "{}: {}, {} of them writes, for {} of {}, {} together\n",
        found.trace,
        found.amount(),
        show_count(found.writes),
        counted(found.footprint as u64, "block"),
        show_size(found.block_bytes.into()),
        show_size(found.bytes(found.footprint)),
    );
    if let Some(share) = found.sample {
        let _ = writeln!(text, "estimated from a sample of {share} of the blocks; counts are of the sample");
    }
    if let Some([part, of]) = found.shard {
        let _ = writeln!(text, "part {part} of {of}");
    }
    if !found.results.is_empty() {
        let width = found.results.iter().map(|result| result.policy.len()).max().unwrap_or_default().max(6);
        let _ = writeln!(
            text,
            "\n{:<width$} {:>8} {:>10} {:>12} {:>10} {:>12} {:>12} {:>11} {:>9}",
            "policy",
            "size",
            "blocks",
            "misses",
            "miss ratio",
            "admissions",
            "evictions",
            "write-backs",
            "M req/s"
        );
        found.results.iter().for_each(|result| row(&mut text, result, width));
        for (result, conflicts) in found.results.iter().filter_map(|r| Some((r, r.conflict_misses?))) {
            let (policy, size) = (&result.policy, &result.size);
            let _ = writeln!(
                text,
                "{policy} at {size}: {} misses for want of another place, which lru would not have",
                show_count(conflicts)
            );
        }
    }
    if found.results.iter().any(|result| result.cost.is_some()) {
        let _ = writeln!(
            text,
            "\n{:<24} {:>10} {:>10} {:>10} {:>10} {:>14}",
            "on devices", "blocks", "mean us", "p50 us", "p99 us", "requests/s"
        );
        found.results.iter().for_each(|result| cost(&mut text, result));
    }
    match found.curves.len() {
        0..=CURVES_MAX => found.curves.iter().for_each(|curve| points(&mut text, found, curve)),
        _ => knees(&mut text, found),
    }
    all_parts(&mut text, found, ["query", "queries"], |result| &result.queries);
    all_parts(&mut text, found, ["relation", "relations"], |result| &result.relations);
    text
}

/// Most curves shown point by point.
const CURVES_MAX: usize = 3;
/// About as many points of a curve fit a terminal.
const POINTS: usize = 25;

/// The knee of each of many curves.
fn knees(text: &mut String, found: &Found) {
    let width = found.curves.iter().map(|curve| curve.policy.len()).max().unwrap_or_default().max(8);
    let _ = writeln!(text, "\n{:<width$} {:>12} {:>10} {:>10}", "knee of", "blocks", "bytes", "miss ratio");
    for CurveFound { policy, knee, .. } in &found.curves {
        let _ = match knee {
            Some(knee) => writeln!(
                text,
                "{policy:<width$} {:>12} {:>10} {:>10.4}",
                show_count(knee.cache_blocks as u64),
                show_size(knee.cache_bytes),
                knee.miss_ratio
            ),
            None => writeln!(text, "{policy:<width$} none: the curve is nearly straight, or bulges up"),
        };
    }
    let _ = writeln!(text, "the points of the curves: --json, or --report FILE for charts");
}

fn points(text: &mut String, found: &Found, curve: &CurveFound) {
    let _ = writeln!(
        text,
        "\n{}, miss ratio by size:\n{:>12} {:>10} {:>10}",
        curve.policy, "blocks", "bytes", "miss ratio"
    );
    let all = curve.points.len();
    let stride = all.div_ceil(POINTS).max(1);
    let shown = all.div_ceil(stride);
    for (blocks, ratio) in curve.points.iter().rev().step_by(stride).rev() {
        let _ = writeln!(
            text,
            "{:>12} {:>10} {ratio:>10.4}",
            show_count(*blocks as u64),
            show_size(found.bytes(*blocks))
        );
    }
    if shown < all {
        let _ = writeln!(text, "{shown} of {all} sizes; all with --json");
    }
    let _ = match curve.knee {
        Some(knee) => writeln!(
            text,
            "knee: {}, {}, miss ratio {:.4}",
            counted(knee.cache_blocks as u64, "block"),
            show_size(knee.cache_bytes),
            knee.miss_ratio
        ),
        None => writeln!(text, "no knee: the curve is nearly straight, or bulges up"),
    };
}

fn row(text: &mut String, result: &CacheFound, width: usize) {
    let _ = writeln!(
        text,
        "{:<width$} {:>8} {:>10} {:>12} {:>10.4} {:>12} {:>12} {:>11} {:>9.1}",
        result.policy,
        result.size,
        show_count(result.cache_blocks as u64),
        show_count(result.misses),
        result.miss_ratio,
        show_count(result.admissions),
        show_count(result.evictions),
        show_count(result.migrated),
        result.requests_per_second / 1e6,
    );
}

fn cost(text: &mut String, result: &CacheFound) {
    let Some(CostFound { latency_us, throughput }) = result.cost else { return };
    let _ = writeln!(
        text,
        "{:<24} {:>10} {:>10.1} {:>10.1} {:>10.1} {:>14}",
        result.policy,
        show_count(result.cache_blocks as u64),
        latency_us.mean,
        latency_us.p50,
        latency_us.p99,
        show_count(throughput as u64)
    );
}

/// The counts by query or by relation, named in the singular and the plural.
fn all_parts(
    text: &mut String,
    found: &Found,
    [one, many]: [&str; 2],
    of: impl Fn(&CacheFound) -> &[PartFound],
) {
    match found.results.iter().any(|result| PartFound::is_none(of(result))) {
        true => drop(writeln!(text, "\nthe trace names no {many}, so nothing is counted by {one}")),
        false => found.results.iter().for_each(|result| parts(text, result, one, of(result))),
    }
}

fn parts(text: &mut String, result: &CacheFound, what: &str, parts: &[PartFound]) {
    if parts.is_empty() {
        return;
    }
    let _ = writeln!(
        text,
        "\n{} with {}\n{what:<40} {:>12} {:>12} {:>10} {:>12} {:>11}",
        result.policy,
        counted(result.cache_blocks as u64, "block"),
        "requests",
        "misses",
        "miss ratio",
        "admissions",
        "write-backs"
    );
    for part in parts {
        let _ = writeln!(
            text,
            "{:<40} {:>12} {:>12} {:>10.4} {:>12} {:>11}",
            part.title(),
            show_count(part.requests),
            show_count(part.misses),
            part.miss_ratio,
            show_count(part.admissions),
            show_count(part.migrated)
        );
    }
}
