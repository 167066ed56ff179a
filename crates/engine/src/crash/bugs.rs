//! Tests of planted bugs: a bounded number of runs must catch each, and all pass without it.

use std::ops::Range;

use super::backup;
use super::cycle::Plan;
use super::tests::live_caught;
use crate::planted::{Bug, plant};

/// Runs `seeds` with `bug` until one fails, and repeats that one without the bug.
///
/// Searches from 0 would take seconds where only one in a hundred finds the bug, so those begin
/// a little below one that does.
fn catches(bug: Bug, plan: fn(u64) -> Plan, seeds: Range<u64>) {
    for seed in seeds.clone() {
        plant(Some(bug));
        let outcome = live_caught(plan(seed));
        plant(None);
        if let Err(what) = outcome {
            println!("{bug:?}: seed {seed}: {what}");
            live_caught(plan(seed)).expect("the same run passes without the bug");
            return;
        }
    }
    panic!("{bug:?} was not caught with seeds {seeds:?}");
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
    ($($name:ident: $bug:ident, $plan:ident, $seeds:expr;)*) => {
        $(#[test] fn $name() { catches(Bug::$bug, Plan::$plan, $seeds); })*
    };
}

caught! {
    catches_skip_log_sync: SkipLogSync, random, 0..300;
    catches_skip_store_sync: SkipStoreSync, random, 0..300;
    catches_acknowledge_before_flush: AcknowledgeBeforeFlush, random, 0..300;
    catches_no_epoch_in_records: NoEpochInRecords, aligned, 0..300;
    catches_append_before_epoch_sync: AppendBeforeEpochSync, random, 0..300;
    catches_skip_undo: SkipUndo, random, 0..300;
    catches_no_end_record_after_undo: NoEndRecordAfterUndo, random, 0..300;
    catches_compare_lsns_wrongly: CompareLsnsWrongly, random, 0..300;
    catches_mapping_before_image_sync: MappingBeforeImageSync, random, 0..300;
    catches_reuse_blocks_early: ReuseBlocksEarly, random, 0..300;
    catches_clear_rec_lsn: ClearRecLsn, random, 0..300;
    catches_two_images_in_flight: TwoImagesInFlight, random, 0..300;
    catches_chunk_in_place: ChunkInPlace, random, 0..300;
    catches_cut_past_dirty_chunk: CutPastDirtyChunk, random, 0..300;
    catches_cut_past_commit_in_flight: CutPastCommitInFlight, random, 0..300;
    catches_cut_past_watermark: CutPastWatermark, random, 45..345;
    catches_log_left_behind: LogLeftBehind, random, 40..340;
    catches_recycle_before_superblock: RecycleBeforeSuperblock, random, 230..2230;
    catches_base_through_old_mapping: BaseThroughOldMapping, random, 0..300;
    catches_lose_eviction_write: LoseEvictionWrite, random, 0..300;
    catches_truncate_before_superblock: TruncateBeforeSuperblock, random, 140..2140;
    catches_demote_without_rec_lsn: DemoteWithoutRecLsn, tiers, 0..300;
    catches_stale_middle_copy: StaleMiddleCopy, tiers, 0..300;
    catches_keep_middle_copy: KeepMiddleCopy, tiers, 0..300;
}
