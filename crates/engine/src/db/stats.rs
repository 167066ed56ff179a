//! The assembly of [`Stats`] from the parts of an open database.

use std::sync::atomic::Ordering::Relaxed;

use terrace_cache::Cached;

use super::core::Core;
use crate::pool::inspect::Footprint;
use crate::stats::{GivenUp, Stalls, Stats};
use crate::store::superblock::FORMAT_VERSION;
use crate::txn::order::TimestampOrder;

pub(crate) fn stats(core: &Core) -> Stats {
    memory(core, log(core, store(core, reads(core, commits(core)))))
}

fn memory(core: &Core, rest: Stats) -> Stats {
    let (pool, counted) = (&core.pool, &core.pool.stats);
    let (footprint, split) = (Footprint::of(pool), core.budget.split());
    let transaction_bytes = core.clock.size_bytes()
        + core.gate.size_bytes()
        + core.locks.size_bytes()
        + core.order.as_ref().map_or(0, TimestampOrder::size_bytes)
        + core.flight.size_bytes()
        + core.snapshots.size_bytes()
        + core.read_memory.used()
        + 3 * counted.fault.size_bytes()
        + core.tables.size_bytes();
    Stats {
        format: FORMAT_VERSION,
        budget_bytes: split.total,
        frames: footprint.frames.iter().map(|class| class.frames).sum(),
        frame_moves: counted.frame_moves.load(Relaxed),
        backend: pool.backend(),
        concurrency: core.settings.concurrency,
        not_discarded: counted.not_discarded.load(Relaxed),
        misplaced_pages: pool.misplaced_pages(),
        page_bytes: pool.page_bytes() as u64,
        frame_bytes: footprint.frames.iter().map(|class| class.bytes).sum(),
        frame_classes: footprint.frames,
        page_table: footprint.page_table,
        swizzled: footprint.is_swizzled,
        page_table_bytes: footprint.page_table_bytes,
        log_buffer_bytes: split.buffers.log,
        version_bytes: core.versions.size_bytes() as u64,
        transaction_bytes: transaction_bytes as u64,
        middle: pool.middle_stats(),
        cache: pool.cache.as_deref().map(Cached::stats),
        file_bytes: footprint.file_bytes,
        live_bytes: footprint.live_bytes,
        live_pages: footprint.live_pages,
        ..rest
    }
}

fn reads(core: &Core, rest: Stats) -> Stats {
    let (pool, counted) = (&core.pool, &core.pool.stats);
    let stalls = Stalls {
        frames: counted.frame_waits.load(Relaxed),
        log_space: counted.log_waits.load(Relaxed),
        log_buffer: pool.wal().stats().buffer_waits,
        segments: counted.segment_waits.load(Relaxed),
        latches: counted.latch_waits.total(),
        locks: core.locks.waits(),
        gate: core.gate.waits(),
        timestamps: core.clock.waits(),
        chains: core.chains.waits(),
    };
    Stats {
        faults: counted.faults.load(Relaxed),
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
        records: pool.records.stats(pool),
        stalls,
        retries: counted.retries(),
        bypasses: counted.bypasses(),
        fault: counted.fault.latency(),
        ..rest
    }
}

fn store(core: &Core, rest: Stats) -> Stats {
    let counted = &core.pool.stats;
    Stats {
        images_written: counted.images_written.load(Relaxed),
        write_backs: counted.write_backs(),
        images_moved: counted.images_moved.load(Relaxed),
        mapping_images: counted.mapping_images.load(Relaxed),
        written_bytes: counted.store_written_bytes.load(Relaxed),
        images_compressed: counted.images_compressed.load(Relaxed),
        images_incompressible: counted.images_incompressible.load(Relaxed),
        compression_input_bytes: counted.compression_input_bytes.load(Relaxed),
        compression_output_bytes: counted.compression_output_bytes.load(Relaxed),
        store_syncs: counted.store_syncs.load(Relaxed),
        superblocks: counted.superblocks.load(Relaxed),
        ..rest
    }
}

fn log(core: &Core, rest: Stats) -> Stats {
    let pool = &core.pool;
    let log = pool.wal().stats();
    let (log_cut, log_tail) = core.counters.log_on_disk.unwrap_or((log.cut, log.tail));
    Stats {
        log_records: log.records,
        log_bytes: log.record_bytes,
        log_flushes: log.flushes,
        log_flushed_bytes: log.flushed_bytes,
        log_tail: log_tail.0,
        log_cut: log_cut.0,
        log_persistent: log.persistent.0,
        log_filed: log.filed.0,
        log_memory_bytes: log.ring_bytes,
        log_capacity: log.capacity,
        log_capacity_max: log.capacity_max,
        log_write: pool.wal().write_latency(),
        commit: pool.wal().commit_latency(),
        log_file_bytes: log.capacity + 4096,
        ..rest
    }
}

fn commits(core: &Core) -> Stats {
    let counters = &core.counters;
    let named = core.named.list(&core.versions);
    let given_up = GivenUp {
        age: counters.given_up_for_age.load(Relaxed),
        memory: counters.given_up_for_memory.load(Relaxed),
    };
    Stats {
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
        changes_redone: counters.changes_redone.load(Relaxed),
        losers_undone: counters.losers_undone.load(Relaxed),
        ..Stats::default()
    }
}
