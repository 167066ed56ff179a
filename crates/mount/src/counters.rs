//! Statistics of a mount.

use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use terrace_cache::CacheStats;
use terrace_io::stats::{Family, Histogram, Latency, Text};

use crate::read_times::ReadTimes;

/// Why cached blocks of a file were dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dropped {
    /// The file was changed past the mount.
    Outside,
    /// Truncated, punched or copied over.
    Changed,
    /// A write or an fsync failed, or the stamp could not be read.
    Failed,
    /// Deleted.
    Deleted,
}

const REASONS: usize = 4;

thread_local! {
    static THREAD: Cell<Option<u64>> = const { Cell::new(None) };
}

/// A number of this thread, for the slots of histograms.
fn thread_number() -> u64 {
    static THREADS: AtomicU64 = AtomicU64::new(0);
    // Relaxed: it need only differ.
    let number = THREAD.get().unwrap_or_else(|| THREADS.fetch_add(1, Ordering::Relaxed));
    THREAD.set(Some(number));
    number
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    read_bytes: AtomicU64,
    pub past: AtomicU64,
    pub writes: AtomicU64,
    pub write_bytes: AtomicU64,
    pub syncs: AtomicU64,
    pub opens_passed: AtomicU64,
    dropped: [AtomicU64; REASONS],
    cached_reads: Histogram,
    other_reads: Histogram,
}

pub(crate) fn count(counter: &AtomicU64, by: u64) {
    // Relaxed: nothing is decided by a counter.
    counter.fetch_add(by, Ordering::Relaxed);
}

impl Counters {
    pub fn dropped(&self, reason: Dropped) {
        count(&self.dropped[reason as usize], 1);
    }

    pub fn read(&self, bytes: u64, is_cached: bool, took: Duration) {
        count(&self.read_bytes, bytes);
        let histogram = if is_cached { &self.cached_reads } else { &self.other_reads };
        histogram.record(took, thread_number());
    }

    pub fn stats(&self, cache: Option<CacheStats>, kept_files: u64) -> MountStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let dropped = |reason: Dropped| get(&self.dropped[reason as usize]);
        MountStats {
            cached_reads: self.cached_reads.latency(),
            other_reads: self.other_reads.latency(),
            read_bytes: get(&self.read_bytes),
            reads_past: get(&self.past),
            writes: get(&self.writes),
            write_bytes: get(&self.write_bytes),
            syncs: get(&self.syncs),
            opens_passed: get(&self.opens_passed),
            dropped_outside: dropped(Dropped::Outside),
            dropped_changed: dropped(Dropped::Changed),
            dropped_failed: dropped(Dropped::Failed),
            dropped_deleted: dropped(Dropped::Deleted),
            kept_files,
            cache,
            left_out: None,
        }
    }
}

const READS: Family =
    Family::histogram("terrace_mount_read_seconds", "Reads of programs, by where all bytes came from.")
        .by("from");
const BYTES: Family =
    Family::counter("terrace_mount_bytes_total", "Bytes of programs, by request.").by("request");
const DROPPED: Family = Family::counter(
    "terrace_mount_dropped_total",
    "Files or parts of files dropped from the cache, by reason.",
)
.by("reason");
const RELATION: Family = Family::counter(
    "terrace_mount_relation_blocks_total",
    "Blocks of tables, indexes and other files, by event.",
)
.by("event");

terrace_io::stats! {
    /// What a mount did since it began.
    ///
    /// ```
    /// use terrace_mount::MountStats;
    ///
    /// let mut stats = MountStats::default();
    /// (stats.cached_reads.count, stats.other_reads.count) = (3, 1);
    /// assert_eq!(stats.reads(), 4);
    /// ```
    #[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
    #[non_exhaustive]
    pub struct MountStats {
        /// Reads of programs of which the cache had all bytes, without waiting for another read.
        cached_reads: Latency => READS "cache",
        /// All other reads of programs: some of the bytes came from the directory.
        other_reads: Latency => READS "directory",
        /// Bytes read by programs.
        read_bytes: u64 => BYTES "read",
        /// Reads that went past the cache entirely: of small files, of last blocks, and after
        /// changes from outside.
        reads_past: u64 => counter "terrace_mount_reads_past_total" "Reads past the cache.",
        /// Writes of programs.
        writes: u64 => counter "terrace_mount_writes_total" "Writes of programs.",
        /// Bytes written by programs.
        write_bytes: u64 => BYTES "write",
        /// Fsyncs of programs.
        syncs: u64 => counter "terrace_mount_syncs_total" "Fsyncs of programs.",
        /// Opens of files that the kernel then read and wrote by itself. Those reads and writes are
        /// counted nowhere here.
        opens_passed: u64 => counter "terrace_mount_opens_passed_total"
            "Opens of files that the kernel reads and writes by itself.",
        /// Files or parts dropped from the cache because of a change past the mount.
        dropped_outside: u64 => DROPPED "outside",
        /// The same because of a truncation or a similar change through the mount.
        dropped_changed: u64 => DROPPED "changed",
        /// The same because of a failed write or fsync.
        dropped_failed: u64 => DROPPED "failed",
        /// The same because the file was deleted.
        dropped_deleted: u64 => DROPPED "deleted",
        /// Files of the previous run that the map had.
        kept_files: u64 => gauge "terrace_mount_kept_files" "Files of the previous run in the map.",
        /// The block cache.
        cache: Option<CacheStats>,
        /// Why the cache is left out, if it is: its device reads no sooner than the directory.
        left_out: Option<ReadTimes>,
    }
}

terrace_io::stats! {
    /// Blocks of a table, an index or another file.
    ///
    /// ```
    /// let relation = terrace_mount::MountRelation::default();
    /// assert_eq!(relation.hits + relation.misses, 0);
    /// ```
    #[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
    #[non_exhaustive]
    pub struct MountRelation {
        /// The file, without its segment, relative to the mount. Files that belong together, such
        /// as logs, have the name of their directory.
        name: String as "relation",
        /// Reads of cached blocks, even of those that came from the directory because that was
        /// sooner. The latest may be missing.
        hits: u64 => RELATION "hit",
        /// Reads of other blocks. Reads past the cache ([`MountStats::reads_past`]) are no blocks.
        misses: u64 => RELATION "miss",
        /// Whole blocks written. Parts of blocks, appended bytes and writes past the cache are not
        /// counted.
        writes: u64 => RELATION "write",
        /// Blocks that came into the cache.
        admissions: u64 => RELATION "admitted",
    }
}

impl MountStats {
    /// Reads of programs.
    pub fn reads(&self) -> u64 {
        self.cached_reads.count + self.other_reads.count
    }

    /// Formats them, and those of `relations`, for Prometheus.
    pub fn prometheus(&self, relations: &[MountRelation]) -> String {
        let mut text = Text::default();
        text.add(self);
        text.add(&relations.to_vec());
        text.finish()
    }
}

impl fmt::Display for MountStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MountStats { read_bytes, reads_past, writes, write_bytes, syncs, opens_passed, .. } = self;
        let reads = self.reads();
        write!(
            f,
            "reads {reads} ({read_bytes} bytes, {reads_past} past the cache), \
             writes {writes} ({write_bytes} bytes), fsyncs {syncs}"
        )?;
        if *opens_passed > 0 {
            write!(f, "\nopens of files that the kernel reads and writes by itself: {opens_passed}")?;
        }
        if let Some(times) = &self.left_out {
            write!(f, "\nthe cache was left out: {times}")?;
        }
        let Some(cache) = &self.cache else { return Ok(()) };
        write!(
            f,
            "\nblocks: hit ratio {:.4}, {} hits, {} more read from the directory because that was sooner, \
             {} misses, {} admissions, {} evictions, {} of {} bytes in use, {} bytes written to the cache",
            cache.hit_ratio(),
            cache.hits,
            cache.below,
            cache.misses,
            cache.admissions,
            cache.evictions,
            cache.resident_bytes,
            cache.capacity_bytes,
            cache.written_bytes,
        )?;
        write!(
            f,
            "\ndropped: {} changed outside, {} truncated or punched, {} after a failure, {} deleted; \
             kept from before: {} files, {} blocks",
            self.dropped_outside,
            self.dropped_changed,
            self.dropped_failed,
            self.dropped_deleted,
            self.kept_files,
            cache.kept
        )?;
        if let Some(reason) = &cache.out_of_service {
            write!(f, "\nthe cache is out of service: {reason}")?;
        }
        Ok(())
    }
}
