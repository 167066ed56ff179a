//! Deliberate faults that tests must catch, one switch per rule.
//!
//! Outside unit tests the switch is the constant `false`.

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(crate) enum Bug {
    /// A faulty device in the test harness, `crash/unsynced.rs`.
    #[cfg(test)]
    SkipLogSync,
    /// An open without the database's cache does not update the guard.
    CacheUntold,
    CacheSuperblocks,
    /// The block cache does not learn of a new superblock.
    StepUntold,
    /// A bad image counts as damage without a read past the cache.
    BelieveCache,
    SkipStoreSync,
    AcknowledgeBeforeFlush,
    /// The durable end is the highest filled byte, holes included.
    WatermarkAsMaximum,
    /// Records of an earlier epoch count beyond the start of a later one.
    NoEpochInRecords,
    AppendBeforeEpochSync,
    SkipUndo,
    NoEndRecordAfterUndo,
    /// Redo applies a record whose LSN is at most the page's.
    CompareLsnsWrongly,
    /// A wrong writer in the test `index/order_tests.rs`.
    #[cfg(test)]
    AppendBeforeLatching,
    MappingBeforeImageSync,
    /// A block is freed before the mapping record that releases it is durable.
    ReuseBlocksEarly,
    /// The recLSN is cleared though the page changed after its copy was taken.
    ClearRecLsn,
    /// Cleaner and checkpoint write the same page at the same time.
    TwoImagesInFlight,
    /// A mapping chunk overwrites its image.
    ChunkInPlace,
    CutPastDirtyChunk,
    CutPastCommitInFlight,
    CutPastWatermark,
    /// Records at other offsets of a grown log are not copied there.
    LogLeftBehind,
    /// Records written while a grown log is announced are at their old offsets only.
    LogInOldRing,
    /// Recovery reads a log that has grown meanwhile at the old offsets.
    ReadOldRing,
    /// Log space is reused before the superblock is synced.
    RecycleBeforeSuperblock,
    WriteNewestSuperblock,
    /// Records that only the ring had are filed, but not analysed.
    AnalysisWithoutRing,
    /// Analysis does not read again what it had no room to note.
    AnalysisOfNoted,
    /// Redo takes the LSN of a mapping record for that of its image.
    ImageAsNewAsMapping,
    /// Recovery uses a mapping that is not final.
    BaseThroughOldMapping,
    TimestampsFromZero,
    SkipDirectorySync,
    LoseEvictionWrite,
    ReadOwnStaleVersion,
    /// Old parts of a value are put back in the order of the changes.
    OldestPartFirst,
    /// Old parts are put back into the entry, although a whole value is between.
    WholeValueBetween,
    /// An old part is kept by its offset in the page.
    PartByPageOffset,
    /// Range validation ignores foreign keys in flight.
    NoRangeCheck,
    /// With timestamp ordering, a read leaves no mark.
    NoReadMark,
    /// A read does not wait for a commit that has its key.
    LockNotAwaited,
    /// A commit replaces an entry of a later one.
    WriteBelowNewer,
    /// A commit changes a table that a later scan has seen.
    NoTableMark,
    /// A scan begins beside commits that it must see.
    ScanBesideCommit,
    /// A durable commit lets readers see it earlier.
    UnlockBeforeDurable,
    /// The page file shrinks before its superblock is durable.
    TruncateBeforeSuperblock,
    BackupCutsLog,
    /// A backup misses pages written back while it runs.
    BackupSkipsChangedPages,
    BackupEndsLogEarly,
    /// Blocks that a backup is about to read are freed and reused.
    BackupReadsFreedBlocks,
    /// A verification misses created and freed pages.
    RenewalUntold,
    /// A verification misses values and tables that change owner.
    PassingUntold,
    RecordOfOtherImage,
    /// A record of a page in the middle tier as it was before a change.
    RecordOfOtherVersion,
    RecordOfReusedMemory,
    /// The page belongs to another tree by then.
    RecordOfLeftPage,
    /// Other threads may have reloaded the page.
    DiscardAfterUnlatching,
    DemoteWithoutRecLsn,
    /// A line of a partial page counts as loaded before its bytes are.
    LineBitBeforeLine,
    /// A line of a mini page counts before its number is there.
    LineCountedBeforeNumber,
    /// A changed line of a partial page is not noted as dirty.
    DirtyLineForgotten,
    /// A line is loaded under the shared latch, at whatever version.
    LoadUnderSharedLatch,
    /// The lines of the page that a frame held before count for the next one.
    KeepLineBits,
    /// A swip that another node or another change left is followed without a look at the id.
    SwipOfReusedEntry,
    /// A read takes the hint for the page's frame.
    BelieveHint,
    /// A page of another size than the own is promoted without its lines, of which it has none.
    PartialOfOtherSize,
    /// Middle frames are removed while pages in DRAM still have copies in them.
    KeepCopyInRemovedFrame,
    /// Middle frames go to another size beyond the tier's bytes.
    MiddleBeyondBudget,
    /// A middle copy is dropped below a partial page.
    DropBelowPartial,
    /// An image has zeros or older bytes for the lines that a partial page lacks.
    ImageOfHalfAPage,
    /// A mini page is evicted without its changed lines.
    MiniEvictedUnwritten,
    /// The log cut does not see changes of mini pages.
    CutForgetsMini,
    /// A mini page that gets a frame forgets which lines are dirty.
    PromotionLosesDirty,
    /// A stale middle copy counts when its page leaves DRAM.
    StaleMiddleCopy,
    /// A page written under a pin in a middle frame counts as clean.
    PinInMiddleStaysClean,
    /// A page is pinned before the access that may promote it.
    PromoteAfterPin,
    /// A freed page can be latched before its record is durable.
    FreedUnmarked,
    KeepMiddleCopy,
    /// The count was saved and dropped since.
    CountReadBeforeDrop,
    /// A commit that failed halfway is closed with its changes in place.
    LeaveAbortedChanges,
    /// A value is freed with the old version of a restored entry.
    FreeRestoredValue,
    /// Reservations for new pages leave too few frames for other threads.
    ReserveBeyondFrames,
    /// A record counts as persistent before a fence covers its lines in the ring.
    AcknowledgeBeforeRingFence,
    /// The superblock does not name the ring that commits rely on.
    RingUnnamed,
    /// An older copy of the ring, or records of an earlier epoch in it, count.
    RingOfEarlierLife,
    /// A ring that is not named keeps its bytes, which fit by LSN and epoch.
    RingNotCleared,
    /// The life before stays in the ring after the first append.
    KeepOldRingLife,
    /// The ring does not tell up to where it relies on the log's file.
    RingForgetsFiled,
    /// Recovery goes on at the ring's end without the ring's records in the log's file.
    AppendBeforeFiling,
    /// A database whose newest log is in a ring opens without it.
    MissingRingAccepted,
    /// A backup copies the log before its file holds all of it.
    BackupReadsUnfiled,
    /// The superblock drops the ring's name before the log's file holds all of it.
    ReleaseBeforeFiling,
    WriteProtectedReads,
    ProtectForEver,
    /// A middle copy older than an image keeps its seal when the image comes into force.
    UnsealNotAtMapping,
    KeepSealOfVacated,
    KeepSealOfFreed,
    /// A tier is made smaller while frames beyond its new end are sealed.
    KeepSealBeyondEnd,
    /// A page whose base is a frame stays clean though the log has records of it.
    RedoLeavesClean,
    /// A tier that was not attached in the last life counts.
    KeepEpochOfTier,
    /// The tier names the new epoch while frames of earlier lives are sealed.
    EpochBeforeUnsealing,
    /// A header that reads unsealed after a kill counts as durably unsealed.
    TrustUnsealedHeader,
    /// The frame changes before its seal is off.
    UnsealLate,
    /// The seal is written back without a fence before the frame changes.
    UnsealUnfenced,
    /// Header and seal are written before the body is durable.
    SealBeforeBody,
    /// The body is not written back before the seal.
    SealUnflushed,
    /// A frame with changes that are not durable is sealed.
    SealBeforeDurable,
    /// An older middle copy of a page in DRAM is sealed.
    SealOlderCopy,
    AdoptBeforeCount,
}

#[cfg(test)]
thread_local! {
    static CURRENT: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

/// Plants `bug` for the calling thread; `None` removes it.
#[cfg(test)]
pub(crate) fn plant(bug: Option<Bug>) {
    CURRENT.with(|current| current.set(bug));
}

#[cfg(test)]
#[inline]
pub(crate) fn planted(bug: Bug) -> bool {
    CURRENT.with(|current| current.get() == Some(bug))
}

/// Always false in this build.
#[cfg(not(test))]
#[inline(always)]
pub(crate) fn planted(_bug: Bug) -> bool {
    false
}
