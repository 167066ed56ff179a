//! The statistics in the text format that Prometheus reads (version 0.0.4).
//!
//! The numbers are those of one moment and always the same families in the same order, so there is no registry:
//! a family is a few lines of text, and `tests/suite/statistics.rs` reads them back by the rules of the format.

use std::fmt::Write;

use super::{CacheBypasses, CacheStats, FrameClass, Latency, MiddleStats, Stats, TableStats};

/// One of the numbers of the middle tier.
type MiddleCount = fn(&MiddleStats) -> u64;

/// The text so far. Writing to a string does not fail.
struct Text(String);

impl Text {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    fn gauge(&mut self, name: &str, help: &str, value: u64) {
        self.family(name, "gauge", help);
        _ = writeln!(self.0, "{name} {value}");
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.family(name, "counter", help);
        _ = writeln!(self.0, "{name} {value}");
    }

    /// A family with one sample for each value of a label.
    fn labelled<L: AsRef<str>>(
        &mut self,
        (name, kind, help): (&str, &str, &str),
        label: &str,
        samples: impl IntoIterator<Item = (L, u64)>,
    ) {
        self.family(name, kind, help);
        for (of, value) in samples {
            _ = write!(self.0, "{name}{{{label}=\"");
            for letter in of.as_ref().chars() {
                match letter {
                    '\\' => self.0.push_str("\\\\"),
                    '"' => self.0.push_str("\\\""),
                    '\n' => self.0.push_str("\\n"),
                    other => self.0.push(other),
                }
            }
            _ = writeln!(self.0, "\"}} {value}");
        }
    }

    fn histogram(&mut self, name: &str, help: &str, latency: &Latency) {
        let seconds = |ns: u64| ns as f64 / 1e9;
        self.family(name, "histogram", help);
        for (up_to_ns, count) in latency.by_octave() {
            _ = writeln!(self.0, "{name}_bucket{{le=\"{}\"}} {count}", seconds(up_to_ns));
        }
        _ = writeln!(self.0, "{name}_bucket{{le=\"+Inf\"}} {}", latency.count);
        _ = writeln!(self.0, "{name}_sum {}\n{name}_count {}", seconds(latency.total_ns), latency.count);
    }
}

impl Stats {
    /// The statistics as text for Prometheus, with those of `tables` (see [`crate::Db::table_stats`]; none for a scrape
    /// that is to cost nothing). Names begin with `terrace_`, counters end with `_total`, times are in seconds.
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
        let mut text = Text(String::with_capacity(16 << 10));
        self.memory(&mut text);
        self.middle.iter().for_each(|middle| Stats::middle_tier(middle, &mut text));
        self.cache.iter().for_each(|cache| Stats::block_cache(cache, &mut text));
        self.pages(&mut text);
        self.log(&mut text);
        self.transactions(&mut text);
        if !tables.is_empty() {
            let about = ("terrace_table_entries", "gauge", "Entries of each table.");
            text.labelled(about, "table", tables.iter().map(|table| (&table.name, table.entries)));
            let about =
                ("terrace_table_pages", "gauge", "Pages of each table, those of large values left out.");
            let counted = tables.iter().filter_map(|table| Some((&table.name, table.pages?)));
            text.labelled(about, "table", counted);
        }
        text.0
    }

    /// Of a database that has one: with two tiers pages move as well, but these are not the counts of that.
    fn middle_tier(middle: &MiddleStats, text: &mut Text) {
        text.gauge("terrace_middle_bytes", "Bytes of the middle tier.", middle.capacity_bytes);
        text.gauge(
            "terrace_middle_copies",
            "Pages with a copy in DRAM and one in the middle tier.",
            middle.copies,
        );
        text.gauge(
            "terrace_middle_page_bytes",
            "Bytes of the pages that the middle tier has frames for.",
            middle.page_bytes,
        );
        text.counter(
            "terrace_middle_other_sizes_total",
            "Pages read or made that the middle tier has no frames for, because of their size.",
            middle.other_sizes,
        );
        let about = ("terrace_migrations_total", "counter", "Pages that went from one tier to another.");
        let ways: [(&str, MiddleCount); 7] = [
            ("store_to_dram", |middle| middle.migrations.store_to_dram),
            ("store_to_middle", |middle| middle.migrations.store_to_middle),
            ("middle_to_dram", |middle| middle.migrations.middle_to_dram),
            ("dram_to_middle", |middle| middle.migrations.dram_to_middle),
            ("dram_to_middle_uncopied", |middle| middle.migrations.dram_to_middle_uncopied),
            ("dram_to_store", |middle| middle.migrations.dram_to_store),
            ("middle_to_store", |middle| middle.migrations.middle_to_store),
        ];
        text.labelled(about, "way", ways.map(|(way, field)| (way, field(middle))));
        let about =
            ("terrace_in_place_total", "counter", "Looks at pages in the middle tier where they are.");
        let kinds: [(&str, MiddleCount); 2] =
            [("read", |middle| middle.reads_in_place), ("write", |middle| middle.writes_in_place)];
        text.labelled(about, "access", kinds.map(|(kind, field)| (kind, field(middle))));
        let about = (
            "terrace_memory_moves_total",
            "counter",
            "Pages whose memory was to go to the nodes of another tier, by what became of them.",
        );
        let outcomes: [(&str, MiddleCount); 3] = [
            ("moved", |middle| middle.memory_moves.pages),
            ("busy", |middle| middle.memory_moves.busy),
            ("full", |middle| middle.memory_moves.full),
        ];
        text.labelled(about, "outcome", outcomes.map(|(outcome, field)| (outcome, field(middle))));
        text.counter(
            "terrace_memory_move_calls_total",
            "System calls that moved memory from tier to tier.",
            middle.memory_moves.calls,
        );
        if let Some(dram) = &middle.dram_cache {
            let about = (
                "terrace_dram_cache_lines_total",
                "counter",
                "Lines wanted of a simulated memory that has DRAM before it, by where they were.",
            );
            text.labelled(about, "found", [("dram", dram.hits), ("memory", dram.misses)]);
            text.counter(
                "terrace_dram_cache_written_bytes_total",
                "Bytes that went back from there to the memory.",
                dram.memory_written_bytes,
            );
        }
        text.counter(
            "terrace_middle_misplaced_pages_total",
            "Pages of the system's that it put elsewhere than on the nodes of the middle tier.",
            middle.misplaced_pages,
        );
    }

    /// Of a database that has one.
    fn block_cache(cache: &CacheStats, text: &mut Text) {
        text.gauge("terrace_cache_bytes", "Bytes of blocks that the cache may hold.", cache.capacity_bytes);
        text.gauge("terrace_cache_resident_bytes", "Bytes of blocks in the cache.", cache.resident_bytes);
        let out = u64::from(cache.out_of_service.is_some());
        let cold = u64::from(cache.cold.is_some());
        text.counter(
            "terrace_cache_cold_starts_total",
            "1 where a cache was there and was not believed.",
            cold,
        );
        text.gauge("terrace_cache_out_of_service", "1 where the cache has been given up.", out);
        let aside = u64::from(cache.is_aside);
        text.gauge("terrace_cache_aside", "1 while the cache's device is the slower one.", aside);
        let about = ("terrace_cache_reads_total", "counter", "Blocks read, by where they were found.");
        let found = [("cache", cache.hits), ("below", cache.below), ("missed", cache.misses)];
        text.labelled(about, "found", found);
        let about =
            ("terrace_cache_writes_total", "counter", "Blocks written, by whether they were in the cache.");
        text.labelled(about, "found", [("cache", cache.write_hits), ("missed", cache.write_misses)]);
        let about = ("terrace_cache_blocks_total", "counter", "Blocks of the cache, by what became of them.");
        let fates = [
            ("admitted", cache.admissions),
            ("evicted", cache.evictions),
            ("invalidated", cache.invalidations),
            ("relocated", cache.relocations),
            ("damaged", cache.damaged),
        ];
        text.labelled(about, "fate", fates);
        let about = ("terrace_cache_bypasses_total", "counter", "Blocks that did not come in, by reason.");
        let CacheBypasses {
            policy,
            write_around,
            partial_write,
            in_use,
            no_slot,
            tail,
            doubt,
            aside,
            budget,
            out_of_service,
        } = cache.bypasses;
        let reasons = [
            ("policy", policy),
            ("write-around", write_around),
            ("partial-write", partial_write),
            ("in-use", in_use),
            ("no-slot", no_slot),
            ("tail", tail),
            ("doubt", doubt),
            ("aside", aside),
            ("budget", budget),
            ("out-of-service", out_of_service),
        ];
        text.labelled(about, "reason", reasons);
        text.counter("terrace_cache_written_bytes_total", "Bytes written to the cache.", cache.written_bytes);
        let about =
            ("terrace_cache_requests_total", "counter", "Page reads, by how much of them the cache had.");
        let parts =
            [("all", cache.requests_whole), ("part", cache.requests_part), ("none", cache.requests_missed)];
        text.labelled(about, "cached", parts);
        let help = "Page reads that found damage in the cache and that the page file has served.";
        text.counter("terrace_cache_fallbacks_total", help, cache.fallbacks);
        text.counter("terrace_cache_errors_total", "Errors of the cache's device.", cache.errors);
    }

    fn memory(&self, text: &mut Text) {
        text.gauge("terrace_format", "Version of the file format.", self.format.into());
        text.gauge("terrace_budget_bytes", "Memory the database allows itself.", self.budget_bytes);
        let parts = [
            ("frames", self.frame_bytes),
            ("page_table", self.page_table_bytes),
            ("log_buffer", self.log_buffer_bytes),
            ("versions", self.version_bytes),
            ("transactions", self.transaction_bytes),
        ];
        text.labelled(("terrace_memory_bytes", "gauge", "Memory taken, by what for."), "part", parts);
        text.gauge("terrace_frames", "Frames for pages.", self.frames);
        let by_size = |count: fn(&FrameClass) -> u64| {
            self.frame_classes.iter().map(move |class| (class.page_bytes.to_string(), count(class)))
        };
        let about = ("terrace_class_frames", "gauge", "Frames by the size of their pages.");
        text.labelled(about, "page_bytes", by_size(|class| class.frames));
        let about =
            ("terrace_class_frame_bytes", "gauge", "Bytes of frames and headers by the size of their pages.");
        text.labelled(about, "page_bytes", by_size(|class| class.bytes));
        let about = ("terrace_class_resident_bytes", "gauge", "Bytes of memory behind pages by their size.");
        text.labelled(about, "page_bytes", by_size(|class| class.resident_bytes));
        let about =
            ("terrace_class_huge_pages", "gauge", "Whether pages of a size are in huge pages of the system.");
        text.labelled(about, "page_bytes", by_size(|class| class.huge_pages.into()));
        let about = ("terrace_backend", "gauge", "Where the bytes of pages are.");
        text.labelled(about, "backend", [(self.backend.name(), 1)]);
        let help = "Pages whose memory the system refused to take back.";
        text.counter("terrace_not_discarded_total", help, self.not_discarded);
        let help = "Pages of the system's that it put elsewhere than on the nodes of DRAM.";
        text.counter("terrace_misplaced_pages_total", help, self.misplaced_pages);
        let about =
            ("terrace_class_frames_gained_total", "counter", "Frames that came from pages of another size.");
        text.labelled(about, "page_bytes", by_size(|class| class.gained));
        let about =
            ("terrace_class_frames_lost_total", "counter", "Frames that went to pages of another size.");
        text.labelled(about, "page_bytes", by_size(|class| class.lost));
        let help = "Times that frames went from pages of one size to pages of another.";
        text.counter("terrace_frame_moves_total", help, self.frame_moves);
        text.gauge("terrace_page_bytes", "Bytes of a page.", self.page_bytes);
        let files = [("pages", self.file_bytes), ("log", self.log_file_bytes)];
        text.labelled(("terrace_file_bytes", "gauge", "Bytes of the files."), "file", files);
        let about = ("terrace_stalls_total", "counter", "Times somebody waited, by what for.");
        text.labelled(about, "reason", self.stalls.by_reason());
        let about = ("terrace_retries_total", "counter", "Times a search or change was begun again, by why.");
        text.labelled(about, "reason", self.retries.by_reason());
    }

    fn pages(&self, text: &mut Text) {
        text.gauge("terrace_live_pages", "Pages in use.", self.live_pages);
        text.gauge("terrace_garbage", "Values and tables waiting to be freed.", self.garbage);
        text.counter("terrace_faults_total", "Pages read into frames.", self.faults);
        text.counter("terrace_read_bytes_total", "Bytes read from the page file.", self.read_bytes);
        text.gauge("terrace_record_cache_entries", "Records cached without pages.", self.records.entries);
        text.gauge("terrace_record_cache_bytes", "Bytes of frames they take.", self.records.bytes);
        let help = "Reads that were answered by cached records.";
        text.counter("terrace_record_cache_hits_total", help, self.records.hits);
        let fates = [
            ("stale", self.records.stale),
            ("inserted", self.records.inserted),
            ("replaced", self.records.replaced),
            ("evicted", self.records.evicted),
            ("crowded", self.records.crowded),
        ];
        let help = "Cached records found to be of an older image, taken in and dropped.";
        text.labelled(("terrace_record_cache_total", "counter", help), "event", fates);
        let about = ("terrace_bypassing_reads_total", "counter", "Images read past the frames, by whom.");
        text.labelled(about, "reason", self.bypasses.by_reason());
        let about = (
            "terrace_swept_pages_total",
            "counter",
            "Pages that the sweep for frames met, by what became of them.",
        );
        text.labelled(about, "outcome", self.sweeps.by_reason());
        let about = ("terrace_images_written_total", "counter", "Images of dirty pages written, by why.");
        text.labelled(about, "reason", self.write_backs.by_reason());
        text.counter("terrace_images_moved_total", "Images moved to empty segments.", self.images_moved);
        text.counter(
            "terrace_mapping_images_total",
            "Images of the page table written.",
            self.mapping_images,
        );
        let images = [("compressed", self.images_compressed), ("incompressible", self.images_incompressible)];
        text.labelled(
            ("terrace_compression_images_total", "counter", "Images of pages that are to be compressed."),
            "outcome",
            images,
        );
        let bytes = [("input", self.compression_input_bytes), ("output", self.compression_output_bytes)];
        text.labelled(
            ("terrace_compression_bytes_total", "counter", "Bytes of those pages, and of their images."),
            "side",
            bytes,
        );
        text.counter("terrace_written_bytes_total", "Bytes written to the page file.", self.written_bytes);
        text.counter("terrace_store_syncs_total", "Syncs of the page file.", self.store_syncs);
        text.counter("terrace_superblocks_total", "Superblocks written.", self.superblocks);
        text.histogram("terrace_fault_seconds", "From a miss until the page was in its frame.", &self.fault);
    }

    fn log(&self, text: &mut Text) {
        let in_use = self.log_tail.saturating_sub(self.log_cut);
        text.gauge("terrace_log_used_bytes", "Bytes of log that a recovery would read.", in_use);
        text.gauge("terrace_log_capacity_bytes", "Bytes the log can hold.", self.log_capacity);
        text.counter("terrace_log_records_total", "Records appended to the log.", self.log_records);
        text.counter("terrace_log_record_bytes_total", "Bytes of those records.", self.log_bytes);
        text.counter(
            "terrace_log_writes_total",
            "Writes of the log, each for all that waited.",
            self.log_flushes,
        );
        text.counter("terrace_log_written_bytes_total", "Bytes of those writes.", self.log_flushed_bytes);
        let help = "From the start of a write of the log until it was durable.";
        text.histogram("terrace_log_write_seconds", help, &self.log_write);
        text.gauge("terrace_recovery_changes", "Changes made again when it was opened.", self.changes_redone);
        text.gauge(
            "terrace_recovery_losers",
            "Transactions taken back when it was opened.",
            self.losers_undone,
        );
    }

    fn transactions(&self, text: &mut Text) {
        let outcomes = [("committed", self.commits), ("conflict", self.conflicts), ("failed", self.aborts)];
        text.labelled(
            ("terrace_commits_total", "counter", "Commits, by how they ended."),
            "outcome",
            outcomes,
        );
        text.counter("terrace_alone_total", "Runs of transactions with priority.", self.alone);
        let help = "From a commit's last record until it was durable.";
        text.histogram("terrace_commit_seconds", help, &self.commit);
        text.gauge("terrace_snapshots", "Snapshots held, those of cursors included.", self.snapshots);
        let about = ("terrace_snapshots_given_up_total", "counter", "Snapshots given up, by why.");
        text.labelled(about, "reason", self.given_up.by_reason());
        text.counter("terrace_versions_dropped_total", "Old versions dropped.", self.versions_dropped);
    }
}
