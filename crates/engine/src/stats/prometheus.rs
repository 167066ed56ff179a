//! Statistics in Prometheus text format (version 0.0.4).
//!
//! The fields of the statistics say how they are shown. `tests/suite/statistics.rs` parses the text
//! by the rules of the format.

use std::fmt::Write;

use terrace_io::stats::{Family, Field, Text};

use super::{Latency, Stats, TableStats};

impl Field for Latency {
    fn show(&self, family: &Family, _: &str, text: &mut Text) {
        let (name, lines) = (family.name, text.lines(family));
        let seconds = |ns: u64| ns as f64 / 1e9;
        for (up_to_ns, count) in self.by_octave() {
            _ = writeln!(lines, "{name}_bucket{{le=\"{}\"}} {count}", seconds(up_to_ns));
        }
        _ = writeln!(lines, "{name}_bucket{{le=\"+Inf\"}} {}", self.count);
        _ = writeln!(lines, "{name}_sum {}\n{name}_count {}", seconds(self.total_ns), self.count);
    }

    fn since(&self, earlier: &Self, _: &Family) -> Self {
        self.minus(earlier)
    }
}

impl Stats {
    /// Formats the statistics, and those of `tables`, for Prometheus.
    ///
    /// `tables` comes from [`crate::Db::table_stats`]; pass none for a cheap scrape. Names begin
    /// with `terrace_`, counters end with `_total`, times are in seconds.
    ///
    /// ```
    /// use terrace::{Db, MemoryDirectory};
    ///
    /// # let directory = std::sync::Arc::new(MemoryDirectory::new());
    /// let db = Db::builder().directory(directory).dram(4 << 20).open("")?;
    /// db.create_table("t")?.put("k", "v")?;
    /// let text = db.stats().prometheus(&db.table_stats()?);
    /// assert!(text.contains("\nterrace_table_entries{table=\"t\"} 1\n"));
    /// assert!(text.contains("\n# TYPE terrace_commit_seconds histogram\n"));
    /// # Ok::<(), terrace::Error>(())
    /// ```
    pub fn prometheus(&self, tables: &[TableStats]) -> String {
        let mut text = Text::default();
        text.add(self);
        let used = Family::gauge("terrace_log_used_bytes", "Bytes of log that a recovery would read.");
        text.sample(&used, "", self.log_tail.saturating_sub(self.log_cut));
        text.add(&tables.to_vec());
        text.finish()
    }
}
