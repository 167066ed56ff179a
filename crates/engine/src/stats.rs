//! Statistics of a database.
//!
//! A hit in memory raises no counter and reads no clock. Frequent events are counted per thread.
//!
//! Each part has one struct, which library, JSON and Prometheus share: a field names its metric
//! where it is declared (`terrace_io::stats!`), and `db/stats.rs` fills it in. The structs of the
//! block cache and of simulated DRAM caches are those of their crates.

mod line_writes;
mod middle;
mod prometheus;
mod reasons;

use serde::Serialize;
pub use terrace_cache::{CacheBypasses, CacheStats};
use terrace_io::stats::Family;
pub use terrace_io::stats::{Bucket, Latency};

pub use self::line_writes::LineWrites;
pub(crate) use self::line_writes::LinesOfSize;
pub use self::middle::{
    DramCacheStats, MemoryMoves, MiddleClass, MiddleStats, MiddleWrites, Migrations, PersistentStats, Tuning,
};
pub use self::reasons::{Bypasses, GivenUp, Retries, Stalls, Sweeps, WriteBacks};
use crate::backend::Backend;
use crate::compression::Compression;
use crate::concurrency::Concurrency;
use crate::page_table::PageTableKind;

const BACKEND: Family = Family::gauge("terrace_backend", "Where the bytes of pages are.").by("backend");
const CONCURRENCY: Family =
    Family::gauge("terrace_concurrency", "The protocol of transactions.").by("protocol");
const PAGE_TABLE: Family =
    Family::gauge("terrace_page_table", "How page ids lead to pages.").by("page_table");
const MEMORY: Family = Family::gauge("terrace_memory_bytes", "Memory taken, by what for.").by("part");
const FILES: Family = Family::gauge("terrace_file_bytes", "Bytes of the files.").by("file");
const AHEAD: Family =
    Family::counter("terrace_ahead_pages_total", "Pages that scans read ahead, by event.").by("event");
const RECORDS: Family = Family::counter(
    "terrace_record_cache_total",
    "Cached records found to be of an older image, taken in and dropped.",
)
.by("event");
const COMPRESSED: Family =
    Family::counter("terrace_compression_images_total", "Images of pages that are to be compressed.")
        .by("outcome");
const COMPRESSION_BYTES: Family =
    Family::counter("terrace_compression_bytes_total", "Bytes of those pages, and of their images.")
        .by("side");
const COMMITS: Family = Family::counter("terrace_commits_total", "Commits, by how they ended.").by("outcome");
const COMPRESSION: Family =
    Family::gauge("terrace_table_compression", "1 for the compression of each table.").by("compression");

terrace_io::present!(Backend, |backend, family, _label, text| text.sample(family, backend.name(), 1));
terrace_io::present!(PageTableKind, |table, family, _label, text| text.sample(family, table.name(), 1));
terrace_io::present!(Concurrency, |protocol, family, _label, text| text.sample(family, protocol.name(), 1));
terrace_io::present!(Compression, |compression, family, _label, text| {
    text.sample(family, &compression.to_string(), 1);
});

terrace_io::stats! {
    /// Counters since open, and current sizes, of a database.
    ///
    /// Numbers are read one after the other, so under load they need not add up.
    ///
    /// ```
    /// use terrace::{Db, MemoryDirectory};
    ///
    /// # let directory = std::sync::Arc::new(MemoryDirectory::new());
    /// let db = Db::builder().directory(directory).dram(4 << 20).open("")?;
    /// db.create_table("t")?.put("k", "v")?;
    /// let stats = db.stats();
    /// assert_eq!(stats.budget_bytes, 4 << 20);
    /// assert!(stats.commits >= 2 && stats.log_flushes >= 2);
    /// # Ok::<(), terrace::Error>(())
    /// ```
    #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
    #[non_exhaustive]
    pub struct Stats {
        /// File format version.
        format: u32 => gauge "terrace_format" "Version of the file format.",
        /// Memory budget now, bytes.
        budget_bytes: u64 => gauge "terrace_budget_bytes" "Memory the database allows itself.",
        /// Frames of all page sizes.
        frames: u64 => gauge "terrace_frames" "Frames for pages.",
        /// Frames by page size, smallest first; unused sizes are left out.
        frame_classes: Vec<FrameClass>,
        /// Moves of frames from one page size to another.
        frame_moves: u64 => counter "terrace_frame_moves_total"
            "Times that frames went from pages of one size to pages of another.",
        /// The back end.
        backend: Backend => BACKEND,
        /// The protocol of transactions.
        concurrency: Concurrency => CONCURRENCY,
        /// Evicted pages whose memory the system did not take back, beyond the budget.
        not_discarded: u64 => counter
            "terrace_not_discarded_total" "Pages whose memory the system refused to take back.",
        /// DRAM pages of 4 KiB outside [`crate::Builder::dram_nodes`].
        misplaced_pages: u64 => counter "terrace_misplaced_pages_total"
            "Pages of the system's that it put elsewhere than on the nodes of DRAM.",
        /// Default page size of tables, bytes; the catalog has it too.
        page_bytes: u64 => gauge "terrace_page_bytes" "Bytes of a page.",
        /// The page table.
        page_table: PageTableKind => PAGE_TABLE,
        /// Whether it has swips ([`crate::Builder::swizzle`]).
        swizzled: bool => gauge "terrace_swizzled" "Whether inner nodes have swips.",
        /// Bytes of frames and their headers.
        frame_bytes: u64 => MEMORY "frames",
        /// Bytes of the page table in use.
        page_table_bytes: u64 => MEMORY "page_table",
        /// Bytes of the log buffer.
        log_buffer_bytes: u64 => MEMORY "log_buffer",
        /// Bytes of old versions kept for snapshots.
        version_bytes: u64 => MEMORY "versions",
        /// Bytes of lock table, clock, transaction slots and latency counters.
        transaction_bytes: u64 => MEMORY "transactions",
        /// The middle tier; `None` without one.
        middle: Option<MiddleStats>,
        /// The block cache; `None` without one.
        cache: Option<CacheStats>,
        /// Pages read from the page file.
        faults: u64 => counter "terrace_faults_total" "Pages read into frames.",
        /// Bytes of those reads.
        read_bytes: u64 => counter "terrace_read_bytes_total" "Bytes read from the page file.",
        /// Page reads from the page file in flight now.
        reads_in_flight: u64 => gauge
            "terrace_reads_in_flight" "Page reads from the page file under way.",
        /// Asynchronous reads of keys ([`crate::Table::get_async`]) waiting now.
        lookups_waiting: u64 => gauge
            "terrace_lookups_waiting" "Asynchronous reads of keys that wait.",
        /// Reads of several pages at once.
        batched_reads: u64 => counter
            "terrace_batched_reads_total" "Reads of several pages at once.",
        /// Pages read that way.
        batched_pages: u64 => counter "terrace_batched_pages_total" "Pages of those reads.",
        /// Pages that scans read ahead.
        ahead_pages: u64 => AHEAD "read",
        /// Pages read ahead and used later.
        ahead_used: u64 => AHEAD "used",
        /// Pages read ahead and evicted unused.
        ahead_unused: u64 => AHEAD "unused",
        /// Pages evicted.
        evictions: u64 => counter "terrace_evictions_total" "Pages evicted.",
        /// Outcomes of the sweep for free frames.
        sweeps: Sweeps,
        /// The record cache.
        records: CachedRecords,
        /// Waits by reason.
        stalls: Stalls,
        /// Restarts of tree operations by reason.
        retries: Retries,
        /// Images read without a frame.
        bypasses: Bypasses,
        /// From a miss until the page is in a frame, waits included.
        fault: Latency => histogram
            "terrace_fault_seconds" "From a miss until the page was in its frame.",
        /// Page images written.
        images_written: u64 => counter
            "terrace_all_images_written_total" "Images of dirty pages written, for any reason.",
        /// Images written, by reason.
        write_backs: WriteBacks,
        /// Images moved to empty a segment.
        images_moved: u64 => counter "terrace_images_moved_total" "Images moved to empty segments.",
        /// Images of the page table written.
        mapping_images: u64 => counter
            "terrace_mapping_images_total" "Images of the page table written.",
        /// Bytes written to the page file for all images.
        written_bytes: u64 => counter
            "terrace_written_bytes_total" "Bytes written to the page file.",
        /// Images that became shorter by compression.
        images_compressed: u64 => COMPRESSED "compressed",
        /// Images that compression did not shorten, written uncompressed.
        images_incompressible: u64 => COMPRESSED "incompressible",
        /// Bytes of the pages given to compression.
        compression_input_bytes: u64 => COMPRESSION_BYTES "input",
        /// Bytes of their images.
        compression_output_bytes: u64 => COMPRESSION_BYTES "output",
        /// Syncs of the page file.
        store_syncs: u64 => counter "terrace_store_syncs_total" "Syncs of the page file.",
        /// Superblocks written.
        superblocks: u64 => counter "terrace_superblocks_total" "Superblocks written.",
        /// Records appended to the log.
        log_records: u64 => counter "terrace_log_records_total" "Records appended to the log.",
        /// Bytes of log records.
        log_bytes: u64 => counter "terrace_log_record_bytes_total" "Bytes of those records.",
        /// Writes of the log; each serves all waiting commits.
        log_flushes: u64 => counter
            "terrace_log_writes_total" "Writes of the log, each for all that waited.",
        /// Bytes of log writes.
        log_flushed_bytes: u64 => counter
            "terrace_log_written_bytes_total" "Bytes of those writes.",
        /// End of the log (LSN).
        log_tail: u64 => gauge "terrace_log_tail_lsn" "End of the log.",
        /// LSN where recovery would begin.
        log_cut: u64 => gauge "terrace_log_cut_lsn" "Where recovery would begin.",
        /// End of the log that survives a crash (LSN): commits are acknowledged up to it.
        log_persistent: u64 => gauge "terrace_log_persistent_lsn" "End of what survives a crash.",
        /// End of what the log's file holds (LSN). The rest is in the memory of the log.
        log_filed: u64 => gauge "terrace_log_filed_lsn" "End of what the file of the log holds.",
        /// Persistent memory of the log, bytes; 0 without one.
        log_memory_bytes: u64 => gauge
            "terrace_log_memory_bytes" "Bytes of persistent memory for the log.",
        /// Capacity of the log, bytes.
        log_capacity: u64 => gauge "terrace_log_capacity_bytes" "Bytes the log can hold.",
        /// Capacity that the log may grow to, bytes.
        log_capacity_max: u64 => gauge "terrace_log_capacity_max_bytes" "Bytes the log may grow to.",
        /// From the start of a log write until it is durable.
        log_write: Latency => histogram
            "terrace_log_write_seconds" "From the start of a write of the log until it was durable.",
        /// From the last record of a sync commit until it is durable.
        commit: Latency => histogram
            "terrace_commit_seconds" "From a commit's last record until it was durable.",
        /// Transactions committed.
        commits: u64 => COMMITS "committed",
        /// Commits that failed other than by conflict.
        aborts: u64 => COMMITS "failed",
        /// Commits that met a conflict.
        conflicts: u64 => COMMITS "conflict",
        /// Runs of transactions with priority; see [`crate::Db::update`].
        alone: u64 => counter "terrace_alone_total" "Runs of transactions with priority.",
        /// Snapshots held, including those of cursors and running transactions.
        snapshots: u64 => gauge "terrace_snapshots" "Snapshots held, those of cursors included.",
        /// Snapshots given up.
        given_up: GivenUp,
        /// Named snapshots, including given-up ones.
        named_snapshots: u64 => gauge "terrace_named_snapshots" "Named snapshots.",
        /// Bytes of old versions kept since the oldest named snapshot.
        named_snapshot_bytes: u64 => gauge
            "terrace_named_snapshot_bytes" "Bytes of old versions since the oldest named snapshot.",
        /// Old versions dropped.
        versions_dropped: u64 => counter "terrace_versions_dropped_total" "Old versions dropped.",
        /// Values and tables waiting to be freed, including damaged ones that cannot be.
        garbage: u64 => gauge "terrace_garbage" "Values and tables waiting to be freed.",
        /// Bytes of the page file.
        file_bytes: u64 => FILES "pages",
        /// Live bytes of the page file: images of pages and page table.
        live_bytes: u64 => gauge "terrace_live_bytes" "Bytes of the page file in use.",
        /// Bytes of the log file.
        log_file_bytes: u64 => FILES "log",
        /// Pages in use.
        live_pages: u64 => gauge "terrace_live_pages" "Pages in use.",
        /// Changes redone by recovery at open.
        changes_redone: u64 => gauge
            "terrace_recovery_changes" "Changes made again when it was opened.",
        /// Transactions undone by recovery at open.
        losers_undone: u64 => gauge
            "terrace_recovery_losers" "Transactions taken back when it was opened.",
    }
}

terrace_io::stats! {
    /// Records cached without their pages ([`crate::Builder::record_cache`]).
    ///
    /// ```
    /// use terrace::{Db, MemoryDirectory};
    ///
    /// # let directory = std::sync::Arc::new(MemoryDirectory::new());
    /// let db = Db::builder().directory(directory).dram(4 << 20).open("")?;
    /// db.create_table("t")?.put("k", "v")?;
    /// let none = terrace::CachedRecords::default();
    /// assert_eq!(db.stats().records, none, "everything is in memory with its page");
    /// # Ok::<(), terrace::Error>(())
    /// ```
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
    #[non_exhaustive]
    pub struct CachedRecords {
        /// Records now, including outdated ones.
        entries: u64 => gauge "terrace_record_cache_entries" "Records cached without pages.",
        /// Bytes of their frames, part of `frame_bytes`.
        bytes: u64 => gauge "terrace_record_cache_bytes" "Bytes of frames they take.",
        /// Reads answered while the page was in the page file only; each saved a read of it.
        hits: u64 => counter
            "terrace_record_cache_hits_total" "Reads that were answered by cached records.",
        /// Reads answered while the page was in the middle tier. They are no accesses of it.
        middle_hits: u64 => counter
            "terrace_record_cache_middle_hits_total" "Reads that cached records kept from the middle tier.",
        /// Reads not answered because the page had changed.
        stale: u64 => RECORDS "stale",
        /// Records inserted.
        inserted: u64 => RECORDS "inserted",
        /// Inserted records that replaced one of an older content of the page.
        replaced: u64 => RECORDS "replaced",
        /// Records evicted for others.
        evicted: u64 => RECORDS "evicted",
        /// Records dropped because their slots were taken.
        crowded: u64 => RECORDS "crowded",
    }
}

terrace_io::stats! {
    /// Frames for pages of one size.
    ///
    /// ```
    /// use terrace::{Db, MemoryDirectory};
    ///
    /// # let directory = std::sync::Arc::new(MemoryDirectory::new());
    /// let db = Db::builder().directory(directory).dram(4 << 20).page_size(8192).open("")?;
    /// let classes = db.stats().frame_classes;
    /// assert_eq!((classes.len(), classes[0].page_bytes), (1, 8192));
    /// # Ok::<(), terrace::Error>(())
    /// ```
    #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
    #[non_exhaustive]
    pub struct FrameClass {
        /// Page size, bytes.
        page_bytes: u64 as "page_bytes",
        /// Frames of this size.
        frames: u64 => gauge "terrace_class_frames" "Frames by the size of their pages.",
        /// Bytes of frames and headers.
        bytes: u64 => gauge
            "terrace_class_frame_bytes" "Bytes of frames and headers by the size of their pages.",
        /// Bytes with memory behind them: all frames, or the mapped pages in memory.
        resident_bytes: u64 => gauge
            "terrace_class_resident_bytes" "Bytes of memory behind pages by their size.",
        /// Whether huge pages were requested and the system supports them.
        ///
        /// Mapped pages have them if they are two megabytes long.
        huge_pages: bool => gauge
            "terrace_class_huge_pages" "Whether pages of a size are in huge pages of the system.",
        /// Frames allocated for pages read or created.
        taken: u64 => counter
            "terrace_class_frames_taken_total" "Frames allocated for pages read or made.",
        /// Frames gained from other page sizes.
        gained: u64 => counter
            "terrace_class_frames_gained_total" "Frames that came from pages of another size.",
        /// Frames lost to other page sizes.
        lost: u64 => counter
            "terrace_class_frames_lost_total" "Frames that went to pages of another size.",
    }
}

terrace_io::stats! {
    /// Statistics of a table, from [`crate::Db::table_stats`].
    ///
    /// ```
    /// use terrace::{Db, MemoryDirectory};
    ///
    /// # let directory = std::sync::Arc::new(MemoryDirectory::new());
    /// let db = Db::builder().directory(directory).dram(4 << 20).open("")?;
    /// db.create_table("t")?.put("k", "v")?;
    /// let tables = db.table_stats()?;
    /// assert_eq!((tables[0].name.as_str(), tables[0].entries, tables[0].pages), ("t", 1, Some(1)));
    /// # Ok::<(), terrace::Error>(())
    /// ```
    #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
    #[non_exhaustive]
    pub struct TableStats {
        /// Name of the table.
        name: String as "table",
        /// Number of entries.
        entries: u64 => gauge "terrace_table_entries" "Entries of each table.",
        /// Whether `entries` is exact; after a crash not until [`crate::Table::len`] counts.
        entries_exact: bool => gauge
            "terrace_table_entries_exact" "Whether the number of entries is exact.",
        /// Pages of the tree, without large values; `None` if too many.
        pages: Option<u64> => gauge
            "terrace_table_pages" "Pages of each table, those of large values left out.",
        /// Levels of the tree: pages that a get looks at.
        levels: u64 => gauge "terrace_table_levels" "Levels of the tree of each table.",
        /// Page size of the tree, bytes.
        page_bytes: u64 => gauge "terrace_table_page_bytes" "Bytes of a page of each table.",
        /// Largest page size of long values, bytes.
        value_page_bytes_max: u64 => gauge
            "terrace_table_value_page_bytes_max" "Bytes of the largest pages for long values.",
        /// Compression of the pages.
        compression: Compression => COMPRESSION,
    }
}

/// Report of [`crate::Db::verify`].
///
/// ```
/// use terrace::{Db, MemoryDirectory};
///
/// # let directory = std::sync::Arc::new(MemoryDirectory::new());
/// let db = Db::builder().directory(directory).dram(4 << 20).open("")?;
/// db.create_table("t")?.put("k", "v")?;
/// let report = db.verify()?;
/// assert!(report.is_ok());
/// assert_eq!(report.entries_checked, 1);
/// # Ok::<(), terrace::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct VerifyReport {
    /// Pages checked, in frames or in the page file.
    pub pages_checked: u64,
    /// Table entries counted.
    pub entries_checked: u64,
    /// Bytes of a backup's log checked; 0 for a database.
    pub log_bytes_checked: u64,
    /// The first 1,000 findings; empty if there is no damage.
    pub errors: Vec<Damage>,
    /// Number of further findings. Above 65,536 findings, repeated ones may count twice.
    pub more_errors: u64,
}

impl VerifyReport {
    /// Number of all findings.
    pub fn error_count(&self) -> u64 {
        self.errors.len() as u64 + self.more_errors
    }

    /// Whether no damage was found.
    pub fn is_ok(&self) -> bool {
        self.errors.is_empty()
    }
}

/// One finding of a verification.
///
/// ```
/// let (file, what) = ("pages.terrace".into(), "its checksum does not hold".into());
/// let damage = terrace::Damage { file, page: Some(7), what };
/// assert_eq!(damage.to_string(), "pages.terrace, page 7: its checksum does not hold");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct Damage {
    /// The damaged file.
    pub file: String,
    /// The damaged page, if known.
    pub page: Option<u64>,
    /// The check that failed.
    pub what: String,
}

impl std::fmt::Display for Damage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.page {
            Some(page) => write!(f, "{}, page {page}: {}", self.file, self.what),
            None => write!(f, "{}: {}", self.file, self.what),
        }
    }
}
