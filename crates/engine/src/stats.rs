//! What a database tells about itself.
//!
//! | file            | what is in it                                        |
//! |-----------------|------------------------------------------------------|
//! | this one        | all numbers together; what verification found        |
//! | `reasons.rs`    | counts by reason: waits, retries, writes and more     |
//! | `histogram.rs`  | latencies                                            |
//! | `cache.rs`      | the block cache under the page file                  |
//! | `middle.rs`     | the middle tier                                      |
//! | `line_writes.rs` | how often each of its lines was written             |
//! | `prometheus.rs` | the same as text for Prometheus                      |
//!
//! A hit in memory raises no counter and reads no clock. What many threads count at once, they count in slots of
//! their own; the rest happens where something was waited for or written anyway.

/// A copy of `$now` in which these counters, some of them in fields of fields, are what was counted since `$earlier`.
macro_rules! since {
    ($now:expr, $earlier:expr, $($($field:ident).+),+) => {{
        let mut since = $now.clone();
        $(since.$($field).+ = since.$($field).+.saturating_sub($earlier.$($field).+);)+
        since
    }};
}

mod cache;
pub(crate) mod histogram;
mod line_writes;
mod middle;
mod prometheus;
mod reasons;

use std::sync::atomic::Ordering::Relaxed;

use serde::Serialize;

pub use self::cache::{CacheBypasses, CacheStats};
pub use self::histogram::{Bucket, Latency};
pub use self::line_writes::LineWrites;
pub use self::middle::{DramCacheStats, MemoryMoves, MiddleStats, MiddleWrites, Migrations, Tuning};
pub use self::reasons::{Bypasses, GivenUp, Retries, Stalls, Sweeps, WriteBacks};
use crate::backend::Backend;
use crate::db::core::Core;
use crate::db::options::Compression;

/// What a database has done since it was opened, and what it takes. Numbers are read one after the other, so while
/// others work they need not add up.
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
    /// Version of the file format.
    pub format: u32,
    /// Bytes of memory the database allows itself now.
    pub budget_bytes: u64,
    /// Frames for pages, of all sizes.
    pub frames: u64,
    /// The same by the size of the pages, the smallest first; those of a size that no table has are left out.
    pub frame_classes: Vec<FrameClass>,
    /// Times that frames went from pages of one size to pages of another.
    pub frame_moves: u64,
    /// Where the bytes of pages are.
    pub backend: Backend,
    /// Pages whose memory the system refused to take back when they left it: as much is taken beyond the budget.
    pub not_discarded: u64,
    /// Pages of the system's, 4 KiB each, that frames in DRAM were given and that are not on the nodes which were asked for
    /// ([`crate::Builder::dram_nodes`]); counted as they come.
    pub misplaced_pages: u64,
    /// Bytes of a page of the catalog, and of tables for which nothing else is said.
    pub page_bytes: u64,
    /// Bytes of the frames and their headers.
    pub frame_bytes: u64,
    /// Bytes of the page table that are in use.
    pub page_table_bytes: u64,
    /// Bytes of the log's buffer.
    pub log_buffer_bytes: u64,
    /// Bytes of old versions kept for snapshots.
    pub version_bytes: u64,
    /// Bytes of lock table, clock, the slots of transactions and the counters of latencies.
    pub transaction_bytes: u64,
    /// The middle tier, if there is one.
    pub middle: Option<MiddleStats>,
    /// The block cache under the page file, if there is one.
    pub cache: Option<CacheStats>,
    /// Pages read from the page file.
    pub faults: u64,
    /// Bytes read from the page file for them.
    pub read_bytes: u64,
    /// Reads of pages that are under way now, from the page file.
    pub reads_in_flight: u64,
    /// Reads of keys that wait for a thread ([`crate::Table::get_async`]), now.
    pub lookups_waiting: u64,
    /// Reads of several pages at a time.
    pub batched_reads: u64,
    /// Pages read by them.
    pub batched_pages: u64,
    /// Pages that scans read before they came to them.
    pub ahead_pages: u64,
    /// Those of them that were looked at later.
    pub ahead_used: u64,
    /// Those of them whose frame was taken before that. What is neither used nor unused is still in memory.
    pub ahead_unused: u64,
    /// Pages whose frame was taken.
    pub evictions: u64,
    /// What the sweep for free frames did with the pages it came by.
    pub sweeps: Sweeps,
    /// Records that are cached without their pages.
    pub records: CachedRecords,
    /// How often somebody had to wait, by what for.
    pub stalls: Stalls,
    /// How often a search or change of a tree was begun again, by why.
    pub retries: Retries,
    /// Images read past the frames.
    pub bypasses: Bypasses,
    /// From a miss until the page was in its frame, waiting for a frame included.
    pub fault: Latency,
    /// Page images written.
    pub images_written: u64,
    /// The same by why they were.
    pub write_backs: WriteBacks,
    /// Page images moved to empty a segment.
    pub images_moved: u64,
    /// Images of the page table written.
    pub mapping_images: u64,
    /// Bytes written to the page file for all of them.
    pub written_bytes: u64,
    /// Images written of pages that are to be compressed, that became shorter by it.
    pub images_compressed: u64,
    /// Those that did not, and were written as they are.
    pub images_incompressible: u64,
    /// Bytes of the pages of both.
    pub compression_input_bytes: u64,
    /// Bytes of their images.
    pub compression_output_bytes: u64,
    /// Syncs of the page file.
    pub store_syncs: u64,
    /// Superblocks written.
    pub superblocks: u64,
    /// Records appended to the log.
    pub log_records: u64,
    /// Bytes of those records.
    pub log_bytes: u64,
    /// Writes of the log, each for all commits that waited.
    pub log_flushes: u64,
    /// Bytes of those writes.
    pub log_flushed_bytes: u64,
    /// End of the log.
    pub log_tail: u64,
    /// Where recovery would begin to read.
    pub log_cut: u64,
    /// Bytes the log can hold.
    pub log_capacity: u64,
    /// From the start of a write of the log until it was durable.
    pub log_write: Latency,
    /// From a commit's last record until it was durable, of commits that wait for that.
    pub commit: Latency,
    /// Transactions committed.
    pub commits: u64,
    /// Commits that failed for other reasons than a conflict.
    pub aborts: u64,
    /// Commits that met a conflict.
    pub conflicts: u64,
    /// Runs of transactions with priority, after too many conflicts: see [`crate::Db::update`].
    pub alone: u64,
    /// Snapshots held, those of cursors and running transactions included.
    pub snapshots: u64,
    /// Snapshots given up.
    pub given_up: GivenUp,
    /// Snapshots that have names, those given up included.
    pub named_snapshots: u64,
    /// Bytes of old versions kept since the oldest of them was taken.
    pub named_snapshot_bytes: u64,
    /// Old versions dropped.
    pub versions_dropped: u64,
    /// Values and tables waiting to be freed, those that cannot be because they are damaged among them.
    pub garbage: u64,
    /// Bytes of the page file.
    pub file_bytes: u64,
    /// Bytes of it that count: images of pages and of the page table.
    pub live_bytes: u64,
    /// Bytes of the log file.
    pub log_file_bytes: u64,
    /// Pages in use.
    pub live_pages: u64,
    /// Changes that recovery made again when the database was opened.
    pub changes_redone: u64,
    /// Transactions that recovery took back then.
    pub losers_undone: u64,
}

/// Records that are cached without their pages ([`crate::Builder::record_cache`]): how many now, and what became of others
/// since the database was opened.
///
/// ```
/// use terrace::{Db, MemoryDirectory};
///
/// # let directory = std::sync::Arc::new(MemoryDirectory::new());
/// let db = Db::builder().directory(directory).dram(4 << 20).open("")?;
/// db.create_table("t")?.put("k", "v")?;
/// assert_eq!(db.stats().records, terrace::CachedRecords::default(), "everything is in memory with its page");
/// # Ok::<(), terrace::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CachedRecords {
    /// Records, those included that are of older images of their pages.
    pub entries: u64,
    /// Bytes of the frames they take, which are part of `frame_bytes`.
    pub bytes: u64,
    /// Reads they answered, each of which would have been a read of the page file.
    pub hits: u64,
    /// Reads they could not answer because the page had changed since.
    pub stale: u64,
    /// Records taken in.
    pub inserted: u64,
    /// Those of them that took the place of one of an older image of the page.
    pub replaced: u64,
    /// Records dropped to make room for others.
    pub evicted: u64,
    /// Records dropped because others had the same slots.
    pub crowded: u64,
}

/// The frames for pages of one size.
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
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Frames there are.
    pub frames: u64,
    /// Bytes of them and of their headers.
    pub bytes: u64,
    /// Bytes of memory behind pages or other content of them now: all of it in frames, and of mapped pages those that are in
    /// memory.
    pub resident_bytes: u64,
    /// Whether huge pages were asked for behind them, and the system knows them; how many it has just now it does not say. Mapped
    /// pages have them if they are as long, two megabytes.
    pub huge_pages: bool,
    /// Frames that were handed out, for pages that were read or made.
    pub taken: u64,
    /// Frames that came from pages of another size.
    pub gained: u64,
    /// Frames that went to pages of another size.
    pub lost: u64,
}

/// A table, as [`crate::Db::table_stats`] tells of it.
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
    /// Its name.
    pub name: String,
    /// Entries in it.
    pub entries: u64,
    /// Whether there are exactly so many. After a crash the number is about right, until somebody asks for
    /// [`crate::Table::len`].
    pub entries_exact: bool,
    /// Pages of its tree, those of large values left out; none in a database too large to count them in passing.
    pub pages: Option<u64>,
    /// Bytes of each of its pages, but for those of long values.
    pub page_bytes: u64,
    /// Bytes of the largest pages that its long values may have.
    pub value_page_bytes_max: u64,
    /// How its pages are written.
    pub compression: Compression,
}

/// What [`crate::Db::verify`] found.
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
    /// Pages looked at, in frames or in the page file.
    pub pages_checked: u64,
    /// Entries of tables counted.
    pub entries_checked: u64,
    /// What did not hold; empty when all is well. The first 1,000 findings.
    pub errors: Vec<Damage>,
    /// Findings beyond those. Of more than 65,536 findings, one that is met in two ways may count twice.
    pub more_errors: u64,
}

impl VerifyReport {
    /// Whether all is well.
    pub fn is_ok(&self) -> bool {
        self.errors.is_empty()
    }
}

/// One thing that verification found wrong.
///
/// ```
/// let damage = terrace::Damage { file: "pages.terrace".into(), page: Some(7), what: "its checksum does not hold".into() };
/// assert_eq!(damage.to_string(), "pages.terrace, page 7: its checksum does not hold");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct Damage {
    /// The file it is in.
    pub file: String,
    /// The page, where one can be named.
    pub page: Option<u64>,
    /// What does not hold.
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

impl Stats {
    pub(crate) fn of(core: &Core) -> Self {
        let (pool, counters) = (&core.pool, &core.counters);
        let counted = &pool.stats;
        let log = pool.wal().stats();
        let (log_cut, log_tail) = counters.log_on_disk.unwrap_or((log.cut, log.tail));
        let (footprint, split) = (pool.footprint(), core.budget.split());
        let page_bytes = pool.page_bytes() as u64;
        let faults = counted.faults.load(Relaxed);
        let images_written = counted.images_written.load(Relaxed);
        let images_moved = counted.images_moved.load(Relaxed);
        let mapping_images = counted.mapping_images.load(Relaxed);
        let named = core.list_named();
        let transaction_bytes = core.clock.size_bytes()
            + core.gate.size_bytes()
            + core.locks.size_bytes()
            + core.flight.size_bytes()
            + core.snapshots.size_bytes()
            + core.read_memory.used()
            + 3 * counted.fault.size_bytes()
            + core.counts.size_bytes()
            + core.table_bytes();
        let stalls = Stalls {
            frames: counted.frame_waits.load(Relaxed),
            log_space: counted.log_waits.load(Relaxed),
            log_buffer: log.buffer_waits,
            segments: counted.segment_waits.load(Relaxed),
            latches: counted.latch_waits.total(),
            locks: core.locks.waits(),
            gate: core.gate.waits(),
            timestamps: core.clock.waits(),
            chains: core.chains.waits(),
        };
        let given_up = GivenUp {
            age: counters.given_up_for_age.load(Relaxed),
            memory: counters.given_up_for_memory.load(Relaxed),
        };
        Stats {
            format: crate::store::superblock::FORMAT_VERSION,
            budget_bytes: split.total,
            frames: footprint.frames.iter().map(|class| class.frames).sum(),
            frame_moves: counted.frame_moves.load(Relaxed),
            backend: pool.backend(),
            not_discarded: counted.not_discarded.load(Relaxed),
            misplaced_pages: pool.misplaced_pages(),
            page_bytes,
            frame_bytes: footprint.frames.iter().map(|class| class.bytes).sum(),
            frame_classes: footprint.frames,
            page_table_bytes: footprint.page_table_bytes,
            log_buffer_bytes: split.log_buffer,
            version_bytes: core.versions.size_bytes() as u64,
            transaction_bytes: transaction_bytes as u64,
            middle: pool.middle_stats(),
            cache: pool.cache.as_deref().map(CacheStats::of),
            faults,
            read_bytes: counted.store_read_bytes.load(Relaxed),
            reads_in_flight: counted.reads_in_flight.load(Relaxed),
            lookups_waiting: core.lookups.waiting() as u64,
            batched_reads: counted.batches.load(Relaxed),
            batched_pages: counted.batched_pages.load(Relaxed),
            ahead_pages: counted.ahead_pages.load(Relaxed),
            ahead_used: counted.ahead_used.load(Relaxed),
            ahead_unused: counted.ahead_unused.load(Relaxed),
            evictions: counted.evictions.load(Relaxed),
            sweeps: counted.sweeps(),
            records: pool.records.stats(),
            stalls,
            retries: counted.retries(),
            bypasses: counted.bypasses(),
            fault: counted.fault.latency(),
            images_written,
            write_backs: counted.write_backs(),
            images_moved,
            mapping_images,
            written_bytes: counted.store_written_bytes.load(Relaxed),
            images_compressed: counted.images_compressed.load(Relaxed),
            images_incompressible: counted.images_incompressible.load(Relaxed),
            compression_input_bytes: counted.compression_input_bytes.load(Relaxed),
            compression_output_bytes: counted.compression_output_bytes.load(Relaxed),
            store_syncs: counted.store_syncs.load(Relaxed),
            superblocks: counted.superblocks.load(Relaxed),
            log_records: log.records,
            log_bytes: log.record_bytes,
            log_flushes: log.flushes,
            log_flushed_bytes: log.flushed_bytes,
            log_tail: log_tail.0,
            log_cut: log_cut.0,
            log_capacity: log.capacity,
            log_write: pool.wal().write_latency(),
            commit: pool.wal().commit_latency(),
            commits: counters.commits.total(),
            aborts: counters.aborts.load(Relaxed),
            conflicts: counters.conflicts.load(Relaxed),
            alone: counters.alone.load(Relaxed),
            snapshots: core.snapshots.len() as u64,
            given_up,
            named_snapshots: named.len() as u64,
            named_snapshot_bytes: named.iter().map(|named| named.version_bytes).max().unwrap_or(0),
            versions_dropped: counters.versions_dropped.load(Relaxed),
            garbage: (core.garbage.waiting() + core.garbage.damaged()) as u64,
            file_bytes: footprint.file_bytes,
            live_bytes: footprint.live_bytes,
            log_file_bytes: log.capacity + 4096,
            live_pages: footprint.live_pages,
            changes_redone: counters.changes_redone.load(Relaxed),
            losers_undone: counters.losers_undone.load(Relaxed),
        }
    }
}
