//! Results of the demo as JSON, text and report.

use serde::Serialize;
use terrace::VerifyReport;
use terrace_common::failure::{Failure, Outcome};
use terrace_common::latency;
use terrace_common::report::{Bars, Figure, Lines, Report, Table, Verdict};
use terrace_common::units::{counted, show_count, show_size};

use super::ledger::Ledger;
use super::serve::Served;

/// Memory allowed beyond the budget: code, stacks, the demo's own lists.
pub const OVERHEAD_BYTES: u64 = 32 << 20;

/// Throughput and memory over the demo.
#[derive(Debug, Default)]
pub struct Track {
    intervals: Vec<Interval>,
    /// End of the last interval.
    since: f64,
    /// End of the load.
    loaded: f64,
    memory: Vec<(f64, f64)>,
    /// Peak memory.
    pub memory_bytes_max: u64,
}

/// Operations per second from one time to another, in seconds; `None` while nothing serves.
type Interval = (f64, f64, Option<f64>);

impl Track {
    /// Adds the operations since the last call, and current memory.
    pub fn add(&mut self, second: f64, operations: u64, memory_bytes: u64) {
        let rate = operations as f64 / (second - self.since).max(1e-3);
        self.until(second, Some(rate));
        self.memory.push((second, memory_bytes as f64 / f64::from(1 << 20)));
        self.note_memory(memory_bytes);
    }

    /// Marks the time since the last call as idle.
    pub fn idle_until(&mut self, second: f64) {
        self.until(second, None);
    }

    fn until(&mut self, second: f64, rate: Option<f64>) {
        self.intervals.push((self.since, second, rate));
        self.since = second;
    }

    /// Ends the load, which the rates leave out.
    pub fn loaded(&mut self) {
        self.loaded = self.since;
    }

    /// The intervals after the load in which the database served or recovered.
    fn at_work(&self) -> impl Iterator<Item = (f64, f64, f64)> {
        let after = self.intervals.iter().filter(|(begin, ..)| *begin >= self.loaded);
        after.filter_map(|(begin, end, rate)| Some((*begin, *end, (*rate)?)))
    }

    /// Seconds of service and recovery until this second of the demo.
    fn worked(&self, second: f64) -> f64 {
        self.at_work().map(|(begin, end, _)| (end.min(second) - begin).max(0.0)).sum()
    }

    /// The rates over seconds of service and recovery.
    fn steps(&self) -> Vec<(f64, f64)> {
        let begins = self.at_work().map(|(begin, _, rate)| (self.worked(begin), rate));
        let end = self.at_work().last().map(|(_, end, rate)| (self.worked(end), rate));
        begins.chain(end).collect()
    }

    /// Records memory only.
    pub fn note_memory(&mut self, memory_bytes: u64) {
        self.memory_bytes_max = self.memory_bytes_max.max(memory_bytes);
    }
}

/// Result of one kill.
#[derive(Debug, Default, Serialize)]
pub struct Kill {
    /// Time of the kill, in seconds of the demo.
    pub at_seconds: f64,
    /// Time when the database was open again.
    pub recovered_at_seconds: f64,
    /// Operations completed by the process.
    pub operations: u64,
    /// Commits acknowledged by the process.
    pub committed: u64,
    /// Seconds to open the database.
    pub recovery_seconds: f64,
    /// Transactions in flight that were applied in full.
    pub in_flight_applied: u64,
    /// Transactions in flight that left no trace.
    pub in_flight_undone: u64,
    /// Records that differ from the ledger.
    pub faults: u64,
    /// Descriptions of the first faults.
    pub descriptions: Vec<String>,
}

impl Kill {
    /// A line for the terminal.
    pub fn line(&self, round: u64) -> String {
        format!(
            "kill {round}: {} operations, {} commits acknowledged; recovered in {:.2} s, {} records wrong",
            show_count(self.operations),
            show_count(self.committed),
            self.recovery_seconds,
            self.faults
        )
    }
}

/// Read performance at one memory size.
#[derive(Debug, Default, Serialize)]
pub struct Size {
    /// Memory budget.
    pub dram_bytes: u64,
    /// Reads per second.
    pub reads_per_second: f64,
    /// Latencies of reads.
    pub latency_us: latency::Summary,
}

/// All results, in the JSON layout.
#[derive(Default, Serialize)]
pub struct Summary {
    /// Source of the records.
    pub source: String,
    /// Whether the records come from files.
    pub real: bool,
    /// Records loaded.
    pub records: u64,
    /// Bytes of keys and values loaded.
    pub data_bytes: u64,
    /// Memory budget of the engine.
    pub budget_bytes: u64,
    /// Peak memory of any process.
    pub rss_bytes: u64,
    /// The share of it in the demo's key list.
    pub keys_bytes: u64,
    /// Seconds of the load.
    pub load_seconds: f64,
    /// The kills.
    pub kills: Vec<Kill>,
    /// Commits acknowledged by the killed processes.
    pub committed: u64,
    /// Transactions aborted on purpose.
    pub aborted: u64,
    /// Result of the verification.
    pub verification: VerifyReport,
    /// Operations per second without kills.
    pub ops_per_second: f64,
    /// Latencies of reads.
    pub read_latency_us: latency::Summary,
    /// Latencies of durable commits.
    pub commit_latency_us: latency::Summary,
    /// Correct values read while serving.
    pub verified: u64,
    /// Wrong values read while serving.
    pub wrong: u64,
    /// Reads per memory size.
    pub sizes: Vec<Size>,
    /// Seconds of the demo.
    pub seconds: f64,
    /// File of the report.
    pub report: String,
    /// Throughput and memory over time.
    #[serde(skip)]
    pub track: Track,
    /// Cumulative distribution of read latencies.
    #[serde(skip)]
    pub read_curve: Vec<(f64, f64)>,
    /// Cumulative distribution of latencies of durable commits.
    #[serde(skip)]
    pub commit_curve: Vec<(f64, f64)>,
}

impl Summary {
    /// Adds the totals of the ledger.
    pub fn account(&mut self, ledger: &Ledger) {
        (self.committed, self.aborted) = (ledger.committed, ledger.aborted);
        self.wrong += ledger.wrong;
    }

    /// Adds the results of the run without kills.
    pub fn served(&mut self, served: &Served, seconds: f64) {
        self.ops_per_second = (served.reads.count() + served.commits.count()) as f64 / seconds;
        (self.read_latency_us, self.commit_latency_us) = (served.reads.summary(), served.commits.summary());
        (self.read_curve, self.commit_curve) = (served.reads.curve(), served.commits.curve());
        self.verified += served.verified;
        self.wrong += served.wrong;
        self.rss_bytes = self.track.memory_bytes_max;
    }

    /// Whether memory stayed within budget.
    fn in_budget(&self) -> bool {
        self.rss_bytes <= self.budget_bytes + self.keys_bytes + OVERHEAD_BYTES
    }

    fn faults(&self) -> u64 {
        self.kills.iter().map(|kill| kill.faults).sum()
    }

    /// A line about the load.
    pub fn load_line(&self) -> String {
        format!(
            "loaded {} records, {} into {} of memory, in {:.1} s",
            show_count(self.records),
            show_size(self.data_bytes),
            show_size(self.budget_bytes),
            self.load_seconds
        )
    }

    /// The closing text for the terminal.
    pub fn text(&self) -> String {
        let mut text = format!(
            "{} kills, {} commits acknowledged, {} records wrong, {} damaged places\n",
            self.kills.len(),
            show_count(self.committed),
            self.faults() + self.wrong,
            self.verification.error_count()
        );
        text += &format!(
            "{} operations/s with {} of data\n",
            show_count(self.ops_per_second as u64),
            show_size(self.data_bytes)
        );
        text += &self.memory_line();
        text += &format!(
            "report in {} ({:.0} s in all)\n",
            terrace_common::escape::text(&self.report),
            self.seconds
        );
        text
    }

    fn memory_line(&self) -> String {
        let peak = show_size(self.rss_bytes);
        let (budget, keys) = (show_size(self.budget_bytes), show_size(self.keys_bytes));
        match self.rss_bytes.checked_sub(self.budget_bytes + self.keys_bytes) {
            Some(rest) => format!(
                "process memory {peak} at most: budget {budget}, the demo's list of keys {keys}, code, stacks and \
                 buffers {}\n",
                show_size(rest)
            ),
            None => format!(
                "process memory {peak} at most, below the budget {budget} and the demo's list of keys {keys}\n"
            ),
        }
    }

    /// Fails if data were lost or damaged.
    pub fn verdict(&self) -> Outcome {
        match (self.faults() + self.wrong, self.verification.error_count()) {
            (0, 0) => Ok(()),
            (records, damages) => Err(Failure::Damaged(format!(
                "{records} records differ from what was acknowledged, {damages} places in the files are damaged; see {}",
                self.report
            ))),
        }
    }

    /// The report.
    pub fn html(&self) -> Report {
        let lead = format!(
            "{} of data served from {} of memory, killed {} times and recovered.",
            show_size(self.data_bytes),
            show_size(self.budget_bytes),
            self.kills.len()
        );
        let mut report = Report::new("Terrace demo", &lead);
        self.overview(&mut report);
        self.crashes(&mut report);
        self.service(&mut report);
        self.memory(&mut report);
        report
    }

    fn overview(&self, report: &mut Report) {
        let ratio = self.data_bytes as f64 / self.budget_bytes.max(1) as f64;
        report.section("What was shown").figures(&[
            Figure::new(show_count(self.records), "records loaded", format!("in {:.1} s", self.load_seconds)),
            Figure::new(
                format!("{ratio:.1}\u{d7}"),
                "data to memory",
                format!("{} over {}", show_size(self.data_bytes), show_size(self.budget_bytes)),
            ),
            Figure::new(
                show_count(self.faults() + self.wrong),
                "records lost or wrong",
                format!("{} commits acknowledged", show_count(self.committed)),
            ),
            Figure::new(
                show_size(self.rss_bytes),
                "process memory at most",
                format!("budget {}", show_size(self.budget_bytes)),
            ),
        ]);
        report.paragraph(&format!(
            "The records are chunks of up to 1 KiB, from {}. Each carries a version and a checksum, and every value \
             read was checked against them.",
            self.source
        ));
        if !self.real {
            report.verdict(
                Verdict::Open,
                "The records were generated: there were too few files on this machine.",
            );
        }
        let good = |holds| if holds { Verdict::Good } else { Verdict::Bad };
        report.verdict(
            good(self.faults() == 0),
            "After each kill every acknowledged commit was there, no aborted one, and no half transaction.",
        );
        report.verdict(
            good(self.verification.errors.is_empty()),
            &format!(
                "Verification of {} and {} found {}.",
                counted(self.verification.pages_checked, "page"),
                counted(self.verification.entries_checked, "entry"),
                counted(self.verification.error_count(), "damaged place")
            ),
        );
        report.verdict(
            good(self.wrong == 0),
            &format!(
                "{} values read while serving were right, {} wrong.",
                show_count(self.verified),
                self.wrong
            ),
        );
        report.verdict(
            good(self.in_budget()),
            &format!(
                "Process memory stayed at {}, within the budget of {}, {} for the demo's own list of keys, and {} \
                 for the rest of the process.",
                show_size(self.rss_bytes),
                show_size(self.budget_bytes),
                show_size(self.keys_bytes),
                show_size(OVERHEAD_BYTES)
            ),
        );
    }

    fn crashes(&self, report: &mut Report) {
        report.section("Killed and recovered").paragraph(
            "A process serving reads, updates, transactions over several records and deliberate aborts announced \
             each commit to its parent before and after, and was then killed with no warning. The parent opened the \
             database again and compared every record with what had been acknowledged; no operations are counted \
             while it compared.",
        );
        let header = [
            "kill",
            "operations",
            "commits acknowledged",
            "in flight, kept",
            "in flight, undone",
            "recovery, s",
            "records wrong",
        ];
        let mut table = Table::new("", &header);
        for (round, kill) in self.kills.iter().enumerate() {
            table.row([
                format!("{}", round + 1),
                show_count(kill.operations),
                show_count(kill.committed),
                kill.in_flight_applied.to_string(),
                kill.in_flight_undone.to_string(),
                format!("{:.2}", kill.recovery_seconds),
                show_count(kill.faults),
            ]);
        }
        report.table(&table);
        let broken = self.kills.iter().flat_map(|kill| &kill.descriptions);
        let damaged =
            self.verification.errors.iter().map(|damage| format!("{}: {}", damage.file, damage.what));
        for what in broken.cloned().chain(damaged) {
            report.verdict(Verdict::Bad, &what);
        }
        let mut lines = Lines::new("Operations a second", "seconds of service and recovery", "operations/s")
            .line("operations", self.track.steps());
        lines.steps = true;
        report.lines(&self.marked(lines));
    }

    fn marked(&self, mut lines: Lines) -> Lines {
        for kill in &self.kills {
            let [killed, recovered] =
                [kill.at_seconds, kill.recovered_at_seconds].map(|second| self.track.worked(second));
            lines = lines.mark(killed, "killed").mark(recovered, "recovered");
        }
        lines
    }

    fn service(&self, report: &mut Report) {
        report.section("Service").lines(
            &Lines::cdf("Share of operations that took at most so long", "microseconds")
                .shares("read", &self.read_curve)
                .shares("durable commit", &self.commit_curve),
        );
        let mut table =
            Table::new("Latency, microseconds", &["operation", "p50", "p90", "p99", "p99.9", "max"]);
        for (name, summary) in [("read", &self.read_latency_us), ("durable commit", &self.commit_latency_us)]
        {
            let cell = |value: f64| match value {
                short if short < 100.0 => format!("{short:.1}"),
                long => show_count(long.round() as u64),
            };
            table.row([
                name.to_owned(),
                cell(summary.p50),
                cell(summary.p90),
                cell(summary.p99),
                cell(summary.p999),
                cell(summary.max),
            ]);
        }
        report.table(&table);
    }

    fn memory(&self, report: &mut Report) {
        let mebibytes = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let budget = mebibytes(self.budget_bytes);
        report.section("Memory").lines(
            &Lines::new("Memory of the process at work", "seconds", "MiB")
                .line("resident", self.track.memory.clone())
                .limit(budget, "budget")
                .limit(
                    mebibytes(self.budget_bytes + self.keys_bytes + OVERHEAD_BYTES),
                    format!("budget, key list and {}", show_size(OVERHEAD_BYTES)),
                ),
        );
        let mut bars = Bars::new("Reads a second by memory allowed", "reads/s", &["reads"]);
        for size in &self.sizes {
            bars = bars.group(show_size(size.dram_bytes), vec![size.reads_per_second]);
        }
        report.bars(&bars);
    }
}

#[cfg(test)]
mod tests {
    use terrace::Damage;

    use super::*;

    /// A typical summary.
    fn sample() -> Summary {
        let mut summary = Summary {
            source: "files below /usr/share".to_owned(),
            real: true,
            records: 131_000,
            data_bytes: 128 << 20,
            budget_bytes: 16 << 20,
            keys_bytes: 9 << 20,
            load_seconds: 6.5,
            committed: 41_000,
            ops_per_second: 42_000.0,
            seconds: 61.0,
            report: "demo.html".to_owned(),
            ..Summary::default()
        };
        for tick in 1..160u32 {
            let second = f64::from(tick) / 4.0;
            summary.track.add(second, 9_000 + u64::from(tick % 7) * 400, (30 + u64::from(tick % 3)) << 20);
        }
        for round in 0..3u32 {
            let at_seconds = 12.0 + 8.0 * f64::from(round);
            summary.kills.push(Kill {
                at_seconds,
                recovered_at_seconds: at_seconds + 0.4,
                operations: 160_000,
                committed: 13_600,
                recovery_seconds: 0.38,
                in_flight_applied: 1,
                in_flight_undone: 1,
                ..Kill::default()
            });
        }
        let mut served = Served { verified: 300_000, ..Served::default() };
        for i in 1..5000u64 {
            served.reads.record(std::time::Duration::from_nanos(900 + i * i / 90));
            served.commits.record(std::time::Duration::from_nanos(80_000 + i * 40));
        }
        summary.served(&served, 8.0);
        for (multiple, rate) in [(1, 42_000.0), (4, 97_000.0), (16, 1_200_000.0)] {
            let size = Size { dram_bytes: multiple * (16 << 20), reads_per_second: rate, ..Size::default() };
            summary.sizes.push(size);
        }
        summary
    }

    #[test]
    fn a_good_run_passes_and_its_report_says_so() {
        let summary = sample();
        assert!(summary.verdict().is_ok() && summary.in_budget());
        let page = summary.html().render();
        assert!(page.contains("131,000") && page.contains("recovered") && !page.contains("verdict bad"));
        assert!(summary.text().contains("3 kills"));
        let json = serde_json::to_value(&summary).unwrap();
        assert_eq!(json["kills"][0]["faults"], 0);
        if let Some(kept) = std::env::var_os("TERRACE_SAMPLE_REPORT") {
            summary.html().write(std::path::Path::new(&kept)).unwrap();
        }
    }

    #[test]
    fn the_closing_text_names_the_parts_of_memory() {
        let mut summary = sample();
        summary.rss_bytes = 36 << 20;
        let parts = "process memory 36 MiB at most: budget 16 MiB, the demo's list of keys 9 MiB, code, stacks and \
                     buffers 11 MiB\n";
        assert!(summary.text().contains(parts), "{}", summary.text());
        summary.rss_bytes = 20 << 20;
        assert!(summary.text().contains("20 MiB at most, below the budget 16 MiB and"), "{}", summary.text());
    }

    #[test]
    fn a_lost_commit_or_damage_fails_with_code_three() {
        let mut lost = sample();
        lost.kills[1].faults = 1;
        lost.kills[1].descriptions.push("some key has version 1".to_owned());
        assert_eq!(lost.verdict().unwrap_err().code(), 3);
        assert!(lost.html().render().contains("some key has version 1"));
        let mut damaged = sample();
        damaged.verification.errors.push(Damage {
            file: "pages".into(),
            page: Some(3),
            what: "bad sum".into(),
        });
        assert_eq!(damaged.verdict().unwrap_err().code(), 3);
        let mut wrong = sample();
        wrong.wrong = 1;
        assert_eq!(wrong.verdict().unwrap_err().code(), 3);
    }

    #[test]
    fn the_chart_is_of_the_time_at_work() {
        let mut track = Track::default();
        track.add(30.0, 900_000, 0);
        track.loaded();
        track.idle_until(40.0);
        track.add(42.0, 2000, 0);
        track.add(42.5, 0, 0);
        track.idle_until(90.0);
        track.add(92.0, 4000, 0);
        let points = track.steps();
        assert_eq!(points, [(0.0, 1000.0), (2.0, 0.0), (2.5, 2000.0), (4.5, 2000.0)]);
        assert_eq!(
            [0.0, 42.0, 42.5, 60.0, 91.0].map(|second| track.worked(second)),
            [0.0, 2.0, 2.5, 2.5, 3.5]
        );
        let kill = Kill { at_seconds: 42.0, recovered_at_seconds: 42.5, ..Kill::default() };
        let summary = Summary { track, kills: vec![kill], ..Summary::default() };
        let marked = summary.marked(Lines::default());
        assert_eq!(marked.marks, [(2.0, "killed".to_owned()), (2.5, "recovered".to_owned())]);
        assert!(Track::default().steps().is_empty());
    }

    #[test]
    fn an_empty_run_has_a_report() {
        assert!(Summary::default().html().render().contains("</html>"));
    }
}
