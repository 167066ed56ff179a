//! Simulation results as text: a row per cache, then per query and relation if counted.

use std::fmt::Write as _;

use terrace_common::units::{show_count, show_size};

use super::found::{CacheFound, CostFound, CurveFound, Found, PartFound};

/// Renders the text.
pub fn table(found: &Found) -> String {
    let mut text = format!(
        "{}: {} requests, {} of them writes, for {} {} of {}, {} together\n",
        found.trace,
        show_count(found.requests),
        show_count(found.writes),
        show_count(found.footprint as u64),
        if found.footprint == 1 { "block" } else { "blocks" },
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
    found.curves.iter().for_each(|curve| points(&mut text, found, curve));
    for result in &found.results {
        parts(&mut text, result, "query", &result.queries);
        parts(&mut text, result, "relation", &result.relations);
    }
    text
}

fn points(text: &mut String, found: &Found, curve: &CurveFound) {
    let _ = writeln!(
        text,
        "\n{}, miss ratio by size:\n{:>12} {:>10} {:>10}",
        curve.policy, "blocks", "bytes", "miss ratio"
    );
    // A terminal cannot show every point of an exact curve.
    let stride = curve.points.len().div_ceil(25).max(1);
    for (blocks, ratio) in curve.points.iter().rev().step_by(stride).rev() {
        let _ = writeln!(
            text,
            "{:>12} {:>10} {ratio:>10.4}",
            show_count(*blocks as u64),
            show_size(found.bytes(*blocks))
        );
    }
    let _ = match curve.knee {
        Some(knee) => writeln!(
            text,
            "knee: {} blocks, {}, miss ratio {:.4}",
            show_count(knee.cache_blocks as u64),
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

fn parts(text: &mut String, result: &CacheFound, what: &str, parts: &[PartFound]) {
    if parts.is_empty() {
        return;
    }
    let _ = writeln!(
        text,
        "\n{} with {} blocks\n{what:<40} {:>12} {:>12} {:>10} {:>12} {:>11}",
        result.policy,
        show_count(result.cache_blocks as u64),
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
