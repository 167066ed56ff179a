//! Deliberate faults. A test suite is proved by the bugs it catches, so each rule of the log, the store and the
//! transactions has a switch here that breaks it. Except in the crate's own tests the switch is the constant `false`
//! and the wrong branch is not compiled in.

/// One way to get durability or isolation wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(crate) enum Bug {
    /// The log's sync returns without syncing.
    SkipLogSync,
    /// A database that has a cache is opened without it, and the cache is not told.
    CacheUntold,
    /// Superblocks are read and written through the block cache.
    CacheSuperblocks,
    /// The block cache is not told of a new superblock.
    StepUntold,
    /// An image that does not hold is damage, though the page file was not asked past the cache.
    BelieveCache,
    /// The store's sync before a mapping record is left out.
    SkipStoreSync,
    /// A commit is acknowledged before its log is durable.
    AcknowledgeBeforeFlush,
    /// The durable end is taken as the highest filled byte, holes included.
    WatermarkAsMaximum,
    /// Records of an earlier epoch are accepted beyond the point where a later one began.
    NoEpochInRecords,
    /// Records are appended before the new epoch's superblock is synced.
    AppendBeforeEpochSync,
    /// Recovery leaves the losers' changes in place.
    SkipUndo,
    /// Recovery does not close the losers it has undone.
    NoEndRecordAfterUndo,
    /// Redo applies a record whose LSN equals or is below the page's.
    CompareLsnsWrongly,
    /// A change's record is appended before its page is latched.
    AppendBeforeLatching,
    /// The mapping record is appended before the images are synced.
    MappingBeforeImageSync,
    /// A place is freed before the mapping record that leaves it is durable.
    ReusePlaceEarly,
    /// The recovery LSN is cleared though the page changed after its copy was taken.
    ClearRecLsn,
    /// Cleaner and checkpoint write the same page at the same time.
    TwoImagesInFlight,
    /// A mapping chunk is written over its old image.
    ChunkInPlace,
    /// The log is cut past a dirty chunk.
    CutPastDirtyChunk,
    /// The log is cut past a commit in flight.
    CutPastCommitInFlight,
    /// The log is cut past the durable watermark.
    CutPastWatermark,
    /// Log space is used again before the superblock that cuts it is synced.
    RecycleBeforeSuperblock,
    /// The superblock is written over its newest slot.
    WriteNewestSuperblock,
    /// Recovery reads base images through a mapping that is not final.
    BaseThroughOldMapping,
    /// The clock starts at zero after a restart.
    TimestampsFromZero,
    /// The directory is not synced after a file is created.
    SkipDirectorySync,
    /// A dirty page is evicted without being written.
    LoseEvictionWrite,
    /// A transaction reads the version below its own write.
    ReadOwnStaleVersion,
    /// Range reads are validated without looking for foreign keys in flight.
    NoRangeCheck,
    /// The page file is made shorter before a superblock that needs no more of it is durable.
    TruncateBeforeSuperblock,
    /// A backup lets the log be cut past where its own begins.
    BackupCutsLog,
    /// A backup copies no page again that was written back while it ran.
    BackupSkipsChangedPages,
    /// A backup's log ends where the log ended before the last images were copied.
    BackupEndsLogEarly,
    /// Places that a backup is about to read are freed and used again.
    BackupReadsFreedPlaces,
    /// Pages come into being and are freed without a verification that runs being told.
    RenewalUntold,
    /// Values and tables change hands without a verification that runs being told.
    PassingUntold,
    /// A cached record counts whatever image of its page it was copied from.
    RecordOfOtherImage,
    /// A cached record counts though its memory became something else while it was copied.
    RecordOfReusedMemory,
    /// A cached record counts though its page was another tree's by the time it was looked up.
    RecordOfLeftPage,
    /// The memory of an evicted page is taken away when others may have loaded the page again.
    DiscardAfterUnlatching,
    /// A dirty page goes from DRAM to the middle tier, and its recovery LSN does not.
    DemoteWithoutRecLsn,
    /// The copy in the middle tier of a page that leaves DRAM counts though it is older.
    StaleMiddleCopy,
    /// A page that a record has freed can be latched again before the record is durable.
    FreedUnmarked,
    /// The copy in the middle tier stays when the page above it is freed.
    KeepMiddleCopy,
    /// A count that was read from the catalog counts though another was saved and dropped since.
    CountReadBeforeDrop,
    /// A commit that failed halfway is closed, and what it had changed stays.
    LeaveAbortedChanges,
    /// A value is freed with the old version of an entry that was put back.
    FreeRestoredValue,
    /// More frames are reserved for new pages than leave some for everybody else.
    ReserveBeyondFrames,
    /// A commit writes what a transaction with priority has read, and does not wait.
    WriteProtectedReads,
    /// What a transaction with priority has read stays protected until the transaction ends.
    ProtectForEver,
}

#[cfg(test)]
thread_local! {
    static CURRENT: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

/// Plants `bug` for all that the calling thread does from now on; `None` removes it.
#[cfg(test)]
pub(crate) fn plant(bug: Option<Bug>) {
    CURRENT.with(|current| current.set(bug));
}

/// Whether `bug` is planted on this thread.
#[cfg(test)]
#[inline]
pub(crate) fn planted(bug: Bug) -> bool {
    CURRENT.with(|current| current.get() == Some(bug))
}

/// Whether `bug` is planted: never, in this build.
#[cfg(not(test))]
#[inline(always)]
pub(crate) fn planted(_bug: Bug) -> bool {
    false
}
