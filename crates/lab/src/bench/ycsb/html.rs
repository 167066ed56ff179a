//! The HTML report of `terrace bench ycsb`: throughput over time, latencies, tiers, cost.

use terrace_common::latency::Summary;
use terrace_common::report::{Figure, Lines, Report, Table};
use terrace_common::units::{counted, show_count, show_size};

use super::object::{BenchReport, Migrations, Tier};
use crate::cost::Part;

/// The report of one run.
pub(super) fn report(found: &BenchReport) -> Report {
    let BenchReport { engine, workload, distribution, threads, .. } = found;
    let lead = format!(
        "{} of {} bytes, keys {distribution}, {}, {engine}.",
        counted(found.records, "record"),
        found.value_bytes,
        counted(*threads, "thread")
    );
    let mut report = Report::new(&format!("YCSB {workload}"), &lead);
    report.section("Throughput").figures(&[
        Figure::new(
            show_count(found.ops_per_second as u64),
            "operations a second",
            format!("{} in {:.1} s", show_count(found.operations), found.seconds),
        ),
        Figure::new(show_count(found.verified), "values verified", String::new()),
        Figure::new(
            show_size(found.budget_bytes),
            "of DRAM",
            format!("of the process {}", show_size(found.rss_bytes)),
        ),
    ]);
    report.lines(&over_time(&[("operations", &found.over_time)]));
    latencies(&mut report, found);
    tiers(&mut report, found);
    cost(&mut report, found);
    let mut table = Table::new("", &["setting", "value"]);
    for (name, value) in &found.settings {
        table.row([(*name).to_owned(), value.clone()]);
    }
    report.section("Settings").table(&table);
    report
}

/// Operations per second over time, per named run. A point counts the operations since the previous
/// point.
pub(super) fn over_time(runs: &[(&str, &[(f64, u64)])]) -> Lines {
    let lines = Lines::new("Operations a second", "seconds", "operations/s");
    runs.iter().fold(lines, |lines, (name, ticks)| {
        let begins = std::iter::once(0.0).chain(ticks.iter().map(|tick| tick.0));
        let rates = begins.zip(*ticks).filter(|(begin, (end, _))| end > begin);
        let points = rates.map(|(begin, (end, count))| (*end, *count as f64 / (end - begin)));
        lines.line(*name, points.collect())
    })
}

fn latencies(report: &mut Report, found: &BenchReport) {
    let mut table =
        Table::new("Microseconds", &["operation", "operations", "p50", "p90", "p99", "p99.9", "max"]);
    for (kind, of) in &found.by_operation {
        let Summary { p50, p90, p99, p999, max, .. } = of.latency_us;
        let times = [p50, p90, p99, p999, max].map(|time| format!("{time:.1}"));
        table.row([(*kind).to_owned(), show_count(of.operations)].into_iter().chain(times));
    }
    report.section("Latency").table(&table);
}

fn tiers(report: &mut Report, found: &BenchReport) {
    let mut table = Table::new("", &["tier", "capacity", "hits", "read", "written", "memory"]);
    for (name, tier) in
        [("DRAM", &found.tiers.dram), ("middle", &found.tiers.middle), ("store", &found.tiers.store)]
    {
        let Tier { simulated, capacity_bytes, hits, read_bytes, written_bytes } = tier;
        table.row([
            name.to_owned(),
            show_size(*capacity_bytes),
            hits.map_or_else(|| "not counted".to_owned(), show_count),
            show_size(*read_bytes),
            show_size(*written_bytes),
            if *simulated { "simulated" } else { "real" }.to_owned(),
        ]);
    }
    report.section("Tiers").table(&table);
    let Migrations {
        store_to_dram,
        store_to_middle,
        middle_to_dram,
        dram_to_middle,
        dram_to_store,
        middle_to_store,
    } = found.migrations;
    let mut table = Table::new("Pages", &["way", "pages"]);
    for (way, pages) in [
        ("store to DRAM", store_to_dram),
        ("store to middle", store_to_middle),
        ("middle to DRAM", middle_to_dram),
        ("DRAM to middle", dram_to_middle),
        ("DRAM to store", dram_to_store),
        ("middle to store", middle_to_store),
        ("read in the middle", found.in_place.reads),
        ("written in the middle", found.in_place.writes),
    ] {
        table.row([way.to_owned(), show_count(pages)]);
    }
    report.table(&table);
    if found.tiers.middle.capacity_bytes > 0 {
        let counted = |count: Option<u64>| count.map_or_else(|| "not counted".to_owned(), show_count);
        report.paragraph(&format!(
            "Inclusivity {:.3}. D_r, D_w, N_r, N_w in the end {}, {}, {}, {}. Lines of the middle tier written {}, one of them {} times at most.",
            found.inclusivity,
            found.policy.dr,
            found.policy.dw,
            found.policy.nr,
            found.policy.nw,
            counted(found.middle_line_writes.total),
            counted(found.middle_line_writes.max)
        ));
    }
}

fn cost(report: &mut Report, found: &BenchReport) {
    let mut table = Table::new("", &["tier", "bytes", "priced as", "dollars for 10^9 bytes", "dollars"]);
    let prices = &found.prices;
    let parts = [&prices.dram, &prices.middle, &prices.cache, &prices.store];
    for (name, part) in ["DRAM", "middle", "block cache", "store"].into_iter().zip(parts) {
        let Part { profile, bytes, dollars_per_gb, dollars } = part;
        let profile = profile.as_deref().unwrap_or("nothing");
        table.row([
            name.to_owned(),
            show_size(*bytes),
            profile.to_owned(),
            format!("{dollars_per_gb}"),
            format!("{dollars:.4}"),
        ]);
    }
    report.section("Cost").table(&table);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_become_rates() {
        let lines = over_time(&[("a", &[(1.0, 100), (1.5, 100), (1.5, 1)]), ("b", &[])]);
        assert_eq!(lines.series[0].points, [(1.0, 100.0), (1.5, 200.0)]);
        assert!(lines.series[1].points.is_empty());
    }

    #[test]
    fn a_report_has_throughput_over_time_and_what_it_costs() {
        let found = BenchReport { over_time: vec![(1.0, 10), (2.0, 30)], ..BenchReport::default() };
        let html = report(&found).render();
        for part in ["Operations a second", "<svg", "store to middle", "dollars for 10^9 bytes", "priced as"]
        {
            assert!(html.contains(part), "{part}");
        }
    }
}
