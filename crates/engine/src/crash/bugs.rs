//! Tests of planted bugs: a bounded number of runs must catch each, and all pass without it.

use super::backup;
use super::cycle::Plan;
use super::tests::live_caught;
use crate::planted::{Bug, plant};

/// Runs up to `seeds` seeds with `bug` until one fails, and repeats that one without the bug.
fn catches(bug: Bug, plan: fn(u64) -> Plan, seeds: u64) {
    for seed in 0..seeds {
        plant(Some(bug));
        let outcome = live_caught(plan(seed));
        plant(None);
        if let Err(what) = outcome {
            println!("{bug:?}: seed {seed}: {what}");
            live_caught(plan(seed)).expect("the same run passes without the bug");
            return;
        }
    }
    panic!("{bug:?} was not caught in {seeds} runs");
}

fn catches_in_backups(bug: Bug, plan: fn(u64) -> Plan) {
    for seed in 0..300 {
        plant(Some(bug));
        let outcome = backup::run_caught(plan(seed));
        plant(None);
        if let Err(what) = outcome {
            println!("{bug:?}: seed {seed}: {what}");
            backup::run_caught(plan(seed)).expect("the same run passes without the bug");
            return;
        }
    }
    panic!("{bug:?} was not caught");
}

#[test]
fn catches_backup_cuts_log() {
    catches_in_backups(Bug::BackupCutsLog, Plan::random);
}

#[test]
fn catches_backup_skips_changed_pages() {
    catches_in_backups(Bug::BackupSkipsChangedPages, Plan::random);
}

#[test]
fn catches_backup_ends_log_early() {
    catches_in_backups(Bug::BackupEndsLogEarly, Plan::random);
}

#[test]
fn catches_backup_reads_freed_blocks() {
    catches_in_backups(Bug::BackupReadsFreedBlocks, Plan::random);
}

macro_rules! caught {
    ($($name:ident: $bug:ident, $plan:ident, $seeds:literal;)*) => {
        $(#[test] fn $name() { catches(Bug::$bug, Plan::$plan, $seeds); })*
    };
}

caught! {
    catches_skip_log_sync: SkipLogSync, random, 300;
    catches_skip_store_sync: SkipStoreSync, random, 300;
    catches_acknowledge_before_flush: AcknowledgeBeforeFlush, random, 300;
    catches_no_epoch_in_records: NoEpochInRecords, aligned, 300;
    catches_append_before_epoch_sync: AppendBeforeEpochSync, random, 300;
    catches_skip_undo: SkipUndo, random, 300;
    catches_no_end_record_after_undo: NoEndRecordAfterUndo, random, 300;
    catches_compare_lsns_wrongly: CompareLsnsWrongly, random, 300;
    catches_mapping_before_image_sync: MappingBeforeImageSync, random, 300;
    catches_reuse_blocks_early: ReuseBlocksEarly, random, 300;
    catches_clear_rec_lsn: ClearRecLsn, random, 300;
    catches_two_images_in_flight: TwoImagesInFlight, random, 300;
    catches_chunk_in_place: ChunkInPlace, random, 300;
    catches_cut_past_dirty_chunk: CutPastDirtyChunk, random, 300;
    catches_cut_past_commit_in_flight: CutPastCommitInFlight, random, 300;
    catches_cut_past_watermark: CutPastWatermark, random, 300;
    catches_log_left_behind: LogLeftBehind, random, 300;
    catches_recycle_before_superblock: RecycleBeforeSuperblock, random, 2000;
    catches_base_through_old_mapping: BaseThroughOldMapping, random, 300;
    catches_lose_eviction_write: LoseEvictionWrite, random, 300;
    catches_truncate_before_superblock: TruncateBeforeSuperblock, random, 2000;
    catches_demote_without_rec_lsn: DemoteWithoutRecLsn, tiers, 300;
    catches_stale_middle_copy: StaleMiddleCopy, tiers, 300;
    catches_keep_middle_copy: KeepMiddleCopy, tiers, 300;
}
