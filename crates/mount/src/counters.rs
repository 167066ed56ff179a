//! Statistics of a mount.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use terrace_cache::CacheStats;

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

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub reads: AtomicU64,
    pub read_bytes: AtomicU64,
    pub past: AtomicU64,
    pub writes: AtomicU64,
    pub write_bytes: AtomicU64,
    pub syncs: AtomicU64,
    dropped: [AtomicU64; REASONS],
}

pub(crate) fn count(counter: &AtomicU64, by: u64) {
    // Relaxed: nothing is decided by a counter.
    counter.fetch_add(by, Ordering::Relaxed);
}

impl Counters {
    pub fn dropped(&self, reason: Dropped) {
        count(&self.dropped[reason as usize], 1);
    }

    pub fn stats(&self, cache: Option<CacheStats>, kept_files: u64) -> MountStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let dropped = |reason: Dropped| get(&self.dropped[reason as usize]);
        MountStats {
            reads: get(&self.reads),
            read_bytes: get(&self.read_bytes),
            reads_past: get(&self.past),
            writes: get(&self.writes),
            write_bytes: get(&self.write_bytes),
            syncs: get(&self.syncs),
            dropped_outside: dropped(Dropped::Outside),
            dropped_changed: dropped(Dropped::Changed),
            dropped_failed: dropped(Dropped::Failed),
            dropped_deleted: dropped(Dropped::Deleted),
            kept_files,
            cache,
        }
    }
}

/// What a mount did since it began.
#[derive(Clone, Debug, Default)]
pub struct MountStats {
    /// Reads of programs.
    pub reads: u64,
    /// Bytes read by programs.
    pub read_bytes: u64,
    /// Reads that went past the cache entirely.
    pub reads_past: u64,
    /// Writes of programs.
    pub writes: u64,
    /// Bytes written by programs.
    pub write_bytes: u64,
    /// Fsyncs of programs.
    pub syncs: u64,
    /// Files or parts dropped from the cache because of a change past the mount.
    pub dropped_outside: u64,
    /// The same because of a truncation or a similar change through the mount.
    pub dropped_changed: u64,
    /// The same because of a failed write or fsync.
    pub dropped_failed: u64,
    /// The same because the file was deleted.
    pub dropped_deleted: u64,
    /// Files of the previous run that the map had.
    pub kept_files: u64,
    /// The block cache.
    pub cache: Option<CacheStats>,
}

impl fmt::Display for MountStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MountStats { reads, read_bytes, reads_past, writes, write_bytes, syncs, .. } = self;
        write!(
            f,
            "reads {reads} ({read_bytes} bytes, {reads_past} past the cache), \
             writes {writes} ({write_bytes} bytes), fsyncs {syncs}"
        )?;
        let Some(cache) = &self.cache else { return Ok(()) };
        write!(
            f,
            "\nblocks: hit ratio {:.4}, {} hits, {} misses, {} admissions, {} evictions, \
             {} of {} bytes in use, {} bytes written to the cache",
            cache.hit_ratio(),
            cache.hits,
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
