//! Simulation results as an HTML report: curves first, then all numbers.

use terrace_common::report::{Bars, Figure, Lines, Report, Scale, SecondAxis, Table};
use terrace_common::units::{counted, show_count, show_size};

use super::found::{CacheFound, CostFound, Found, PartFound};

/// The report.
pub fn report(found: &Found) -> Report {
    let (simulated, of_what) = match found.results.len() {
        0 => (found.curves.len(), "curves"),
        caches => (caches, "caches simulated"),
    };
    let lead = format!(
        "What policies of a block cache would have done with {}: {} for {} of {}. The caches start \
         empty, and every request counts.",
        name(&found.trace),
        found.amount(),
        counted(found.footprint as u64, "block"),
        show_size(u64::from(found.block_bytes)),
    );
    let mut report = Report::new(&format!("Cache policies on {}", name(&found.trace)), &lead);
    let share = 100.0 * found.writes as f64 / found.requests.max(1) as f64;
    let bytes = found.bytes(found.footprint);
    report.section("The trace").figures(&[
        Figure::new(show_count(found.requests), "block accesses", format!("{share:.1} % of them writes")),
        Figure::new(show_count(found.footprint as u64), "blocks", format!("{} together", show_size(bytes))),
        Figure::new(show_count(simulated as u64), of_what, format!("in {:.1} s", found.seconds)),
    ]);
    if let Some(share) = found.sample {
        report.paragraph(&format!(
            "Estimated from a sample of {share} of the blocks. Ratios are of all requests, counts are of the sample."
        ));
    }
    curves(&mut report, found);
    matrix(&mut report, found);
    rows(&mut report, found);
    costs(&mut report, found);
    parts(&mut report, found, "Queries", |result| &result.queries);
    parts(&mut report, found, "Tables and indices", |result| &result.relations);
    report
}

/// The file name without directories.
fn name(trace: &str) -> &str {
    trace.rsplit('/').next().unwrap_or(trace)
}

fn curves(report: &mut Report, found: &Found) {
    let (policies, sizes) = found.axes();
    let chart = |title: &str| {
        let bytes = SecondAxis {
            name: "cache size, bytes".to_owned(),
            factor: f64::from(found.block_bytes),
            label: |bytes| show_size(bytes as u64),
        };
        let lines = Lines::new(title, "cache size, blocks", "miss ratio");
        Lines { scale: Scale::Logarithmic, second_x: Some(bytes), ..lines }
    };
    if !found.curves.is_empty() {
        let lines = found.curves.iter().fold(chart("Miss ratio by cache size"), |lines, curve| {
            let points = curve.points.iter().map(|(blocks, ratio)| (*blocks as f64, *ratio));
            lines.line(&curve.policy, points.collect())
        });
        let lines = marked(lines, found);
        report.section("Miss-ratio curves").lines(&lines).table(&knees(found));
    } else if sizes.len() > 1 {
        let lines = policies.iter().fold(chart("Miss ratio at the sizes asked for"), |lines, policy| {
            let mut points: Vec<(f64, f64)> = sizes
                .iter()
                .filter_map(|blocks| Some((*blocks as f64, found.result(policy, *blocks)?.miss_ratio)))
                .collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            lines.line(*policy, points)
        });
        report.section("Miss-ratio curves").lines(&lines);
    }
}

/// Marks the knee of each curve.
fn marked(lines: Lines, found: &Found) -> Lines {
    let knees = found.curves.iter().filter_map(|curve| Some((&curve.policy, curve.knee?)));
    knees.fold(lines, |lines, (policy, knee)| {
        let word = format!("{policy}, knee: {}", show_size(knee.cache_bytes));
        lines.point(policy, (knee.cache_blocks as f64, knee.miss_ratio), word)
    })
}

/// The knee of each curve.
fn knees(found: &Found) -> Table {
    let header = ["policy", "blocks", "bytes", "miss ratio"];
    let mut table = Table::new("The knee of each curve: the point farthest below its chord", &header);
    for curve in &found.curves {
        let none = || ["\u{2013}"; 3].map(str::to_owned);
        let [blocks, bytes, ratio] = curve.knee.map_or_else(none, |knee| {
            let (blocks, bytes) = (show_count(knee.cache_blocks as u64), show_size(knee.cache_bytes));
            [blocks, bytes, format!("{:.4}", knee.miss_ratio)]
        });
        table.row([curve.policy.clone(), blocks, bytes, ratio]);
    }
    table
}

/// Tables of policies by sizes: miss ratios, and bytes written.
fn matrix(report: &mut Report, found: &Found) {
    let (policies, sizes) = found.axes();
    if policies.len() < 2 {
        return;
    }
    let mut header = vec!["policy".to_owned()];
    header.extend(sizes.iter().map(|blocks| format!("{} blocks", show_count(*blocks as u64))));
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    report.section("Policies by size");
    let best = |blocks: usize| {
        let ratios =
            found.results.iter().filter(|result| result.cache_blocks == blocks && result.policy != "belady");
        ratios.map(|result| result.miss_ratio).fold(f64::INFINITY, f64::min)
    };
    let mut misses =
        Table::new("Miss ratio; the best of each size is marked *, Belady's bound aside", &header);
    let mut written = Table::new("Blocks written to the cache's device for each 100 requests", &header);
    for policy in &policies {
        let cells = |cell: &dyn Fn(&CacheFound) -> String| {
            let of_sizes =
                sizes.iter().map(|blocks| found.result(policy, *blocks).map_or("\u{2013}".into(), cell));
            std::iter::once((*policy).to_owned()).chain(of_sizes).collect::<Vec<String>>()
        };
        misses.row(cells(&|result| {
            let mark = if result.miss_ratio == best(result.cache_blocks) { " *" } else { "" };
            format!("{:.4}{mark}", result.miss_ratio)
        }));
        written.row(cells(&|result| {
            let blocks = result.written_bytes as f64 / f64::from(found.block_bytes);
            format!("{:.1}", 100.0 * blocks / (result.hits + result.misses).max(1) as f64)
        }));
    }
    report.table(&misses).table(&written);
    if let Some(largest) = sizes.last() {
        let bars = policies.iter().fold(
            Bars::new(
                format!("Blocks written per request at {} blocks", show_count(*largest as u64)),
                "blocks per request",
                &["admissions", "write-backs to the store"],
            ),
            |bars, policy| match found.result(policy, *largest) {
                Some(result) => {
                    let requests = (result.hits + result.misses).max(1) as f64;
                    let (admissions, backs) = (result.admissions as f64, result.migrated as f64);
                    bars.group(*policy, vec![admissions / requests, backs / requests])
                }
                None => bars,
            },
        );
        report.bars(&bars);
    }
}

fn rows(report: &mut Report, found: &Found) {
    if found.results.is_empty() {
        return;
    }
    let header = [
        "policy",
        "size",
        "blocks",
        "misses",
        "miss ratio",
        "admissions",
        "evictions",
        "write-backs",
        "million requests/s",
    ];
    let mut table = Table::new("", &header);
    for result in &found.results {
        table.row([
            result.policy.clone(),
            result.size.clone(),
            show_count(result.cache_blocks as u64),
            show_count(result.misses),
            format!("{:.4}", result.miss_ratio),
            show_count(result.admissions),
            show_count(result.evictions),
            show_count(result.migrated),
            format!("{:.1}", result.requests_per_second / 1e6),
        ]);
    }
    report.section("Every cache").table(&table);
    report.paragraph(
        "Write-backs are blocks that were dirty when they left. The last column is how fast one core simulated.",
    );
}

fn costs(report: &mut Report, found: &Found) {
    if found.results.iter().all(|result| result.cost.is_none()) {
        return;
    }
    let header = ["policy", "blocks", "mean, \u{b5}s", "p50, \u{b5}s", "p99, \u{b5}s", "requests/s, at most"];
    let mut table = Table::new("", &header);
    for result in &found.results {
        let Some(CostFound { latency_us, throughput }) = result.cost else { continue };
        table.row([
            result.policy.clone(),
            show_count(result.cache_blocks as u64),
            format!("{:.1}", latency_us.mean),
            format!("{:.1}", latency_us.p50),
            format!("{:.1}", latency_us.p99),
            show_count(throughput as u64),
        ]);
    }
    report.section("On devices").table(&table);
}

fn parts(report: &mut Report, found: &Found, heading: &str, of: impl Fn(&CacheFound) -> &[PartFound]) {
    if found.results.iter().all(|result| of(result).is_empty()) {
        return;
    }
    report.section(heading);
    if found.results.iter().any(|result| PartFound::is_none(of(result))) {
        report.paragraph("The trace names none.");
        return;
    }
    for result in &found.results {
        let caption = format!("{}, {} blocks", result.policy, show_count(result.cache_blocks as u64));
        let header = ["", "requests", "misses", "miss ratio", "admissions", "write-backs"];
        let mut table = Table::new(&caption, &header);
        for part in of(result) {
            table.row([
                part.title(),
                show_count(part.requests),
                show_count(part.misses),
                format!("{:.4}", part.miss_ratio),
                show_count(part.admissions),
                show_count(part.migrated),
            ]);
        }
        report.table(&table);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulation::found::{CurveFound, KneeFound};

    #[test]
    fn curves_are_over_blocks_and_bytes() {
        let knee = Some(KneeFound { cache_blocks: 1024, cache_bytes: 8 << 20, miss_ratio: 0.2 });
        let points = vec![(10, 0.5), (1024, 0.2), (90_000, 0.1)];
        let curve = CurveFound { policy: "lru".to_owned(), points, knee, ..CurveFound::default() };
        let found = Found { block_bytes: 8192, footprint: 100_000, curves: vec![curve], ..Found::default() };
        let page = report(&found).render();
        for text in ["cache size, blocks", "cache size, bytes", "10k", &show_size(8192 * 10_000)] {
            assert!(page.contains(&format!(">\n{text}\n</text>")), "{text}");
        }
        assert!(page.contains("lru, knee: 8 MiB"));
    }
}
