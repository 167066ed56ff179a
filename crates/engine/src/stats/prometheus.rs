//! Statistics in Prometheus text format (version 0.0.4).
//!
//! The fields of the statistics say how they are shown. `tests/suite/statistics.rs` parses the text
//! by the rules of the format.

use terrace_io::stats::{Family, Text};

use super::{Stats, TableStats};

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
