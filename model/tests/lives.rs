//! Random lives: nothing is lost with all rules, and much without one.

use terrace_model::flags::Flag::{self, *};
use terrace_model::flags::Flags;
use terrace_model::search::{search, shortest};

const SEED: u64 = 1;
/// With all rules.
const STRICT_RUNS: u64 = 6000;
/// At most, until data are lost without a rule.
const RUNS_MAX: u64 = 3000;

/// The rules whose absence random lives show soon. Scripts show that of others.
const FOUND: &[Flag] = &[
    WatermarkAsMaximum,
    SkipHoles,
    AcknowledgeEarly,
    NoLsnInRecord,
    NoEpochInRecords,
    AppendBeforeEpochSync,
    MergeReadsSource,
    AppendBeforeLatching,
    NoEndRecordAfterUndo,
    CompensationNotRedone,
    MappingBeforeImageSync,
    FreeAtImageSync,
    FreeAtMappingAppend,
    RecLsnOfMapping,
    TwoImagesInFlight,
    FreeClaimedPage,
    ReuseFreedBlock,
    ForgetFreedRecLsn,
    ChunkHoldsUndurable,
    ChunkInPlace,
    ChunkDirtyInForce,
    FreeLeavesChunkClean,
    TrustUnsealedFrame,
    UnsealWithoutFence,
    SealBeforeBodyFence,
    SealWordFirst,
    SealOlderCopy,
    SealMovesRecLsn,
    FrameBeyondLogEnd,
    KeepSealOfUnadopted,
    KeepSealBeyondEnd,
    RedoLeavesClean,
    AdoptBeforeCount,
    CutIgnoresRecLsn,
    CutPastCommitInFlight,
    CommitEndsAtUnlock,
    CutPastLosers,
    CutPastDirtyChunk,
    RecycleBeforeSuperblock,
    TwoSuperblockWrites,
    WriteNewestSuperblock,
    LogLeftBehind,
    LogInOldRing,
    NoSyncAtRecovery,
    BaseThroughOldMapping,
    RedoIgnoresAllocation,
    BackupCutsLog,
    BackupReadsFreedBlocks,
    BackupEndsLogEarly,
    BackupReadsUnfiled,
    RingNotFenced,
    RingRoomByPersistent,
    RingRoomBeforeSync,
    RingIgnoresLsn,
    RingIgnoresEpoch,
    RingNotCleared,
    RingOfOtherLife,
    KeepOldRingLife,
    RingNotNamed,
    ClearRingEarly,
    OpenWithoutRing,
    LeaveRingRecords,
    LogEndBeforeRing,
];

#[test]
fn nothing_is_lost_with_all_rules() {
    let seed = std::env::var("TERRACE_SEED").map_or(SEED, |seed| seed.parse().expect("a number"));
    let found = search(Flags::STRICT, seed, |found| found.runs < STRICT_RUNS && found.losing == 0);
    println!("seed {seed}: {} runs, {} steps, {} crashes", found.runs, found.steps, found.crashes);
    let shortest = shortest(Flags::STRICT, &found);
    assert!(shortest.is_none(), "seed {seed}: these steps lose data: {shortest:?}");
}

#[test]
fn data_are_lost_without_a_rule() {
    let mut missed = Vec::new();
    for &flag in FOUND {
        let found = search(Flags::of(&[flag]), SEED, |found| found.runs < RUNS_MAX && found.losing == 0);
        println!("{}: lost after {} runs", flag.name(), found.runs);
        if found.losing == 0 {
            missed.push(flag);
        }
    }
    assert!(missed.is_empty(), "seed {SEED}: nothing is lost without {missed:?}");
}
