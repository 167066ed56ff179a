//! Deliberate faults of the block cache, as those of the engine: a test suite is proved by the bugs it catches. Except in
//! the crate's own tests the switch is the constant `false` and the wrong branch is not compiled in.

/// One way to serve a block that is not the slow device's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CacheBug {
    /// Blocks of marked regions are served after a power cut.
    ServeMarkedRegions,
    /// Pages of the journal count whatever their generation is.
    NoGenerationInJournal,
    /// A block is served without a look at its checksum.
    ServeUnverified,
    /// A region loses its mark before the journal and the blocks are durable.
    UnmarkBeforeData,
    /// A region loses its mark though the slow device has not been synced since.
    UnmarkBeforeSync,
    /// The slow device is written before its region is marked.
    WriteBeforeMark,
    /// The slow device is written before the cached block is.
    SlowBeforeFast,
    /// A block that has left its slot is written before that is in the journal.
    ForgetLeft,
    /// A block whose bytes were moved is written before the journal says that it has left its slot.
    ForgetMoved,
    /// A cache is used though another was used since.
    ForgetLatest,
    /// A cache is used whatever its session is.
    ForgetSession,
    /// The session before is kept when the guard has the new one.
    KeepSession,
    /// The session before is kept when the guard is known to have this one, so that the next takes the place of the wrong one.
    KeepUnneeded,
    /// A cache is used though the slow device is not as far as it was, or further.
    ForgetProgress,
    /// A slot gets bytes that fit a claim of it in the journal that is no longer true.
    ForgetEndedClaims,
    /// What is cut off the slow device stays in the cache.
    ForgetTruncate,
    /// A slot is served that was given to another block while it was read.
    ServeReusedSlot,
    /// A block that is fetched while it is written stays in the cache.
    KeepRacedFetch,
    /// Cached bytes that turned out damaged stay in the cache.
    KeepDamaged,
    /// Whether a block is to be written back is looked up without the lock.
    FindWithoutLock,
    /// Blocks stay in the cache after a sync of the slow device has failed.
    TrustFailedSync,
    /// A device that could not be told of a write is used again.
    ForgetRevoked,
    /// A block that is written again while it settles is not said to have left its slot.
    KeepSettling,
    /// A dirty block's slot is given to another block.
    EvictDirty,
    /// A dirty block is written over in the slot that has the only copy of what was synced.
    OverwriteDirty,
    /// Blocks count as written back though the slow device has not been synced since.
    CleanBeforeSync,
    /// Of what was synced, the newest is written back first.
    DrainOutOfOrder,
    /// A write goes to the slow device before what was synced earlier.
    DirectBeforeEarlier,
    /// A write is acknowledged before the journal says where it is.
    AcknowledgeBeforeJournal,
    /// A sync does not make the fast device durable.
    SyncWithoutFast,
    /// A block becomes dirty while a part of it is written to the slow device directly.
    DirtyWhileWritten,
    /// A block becomes dirty while the cache is being closed, and says that none is.
    DirtyWhileClosed,
    /// Writing back begins while writes that know nothing of it are under way.
    BackAmidWrites,
    /// Dirty blocks of an earlier life are not written back.
    ForgetDirty,
}

#[cfg(test)]
thread_local! {
    static CURRENT: std::cell::Cell<Option<CacheBug>> = const { std::cell::Cell::new(None) };
}

/// Plants `bug` for all that the calling thread does from now on; `None` removes it.
#[cfg(test)]
pub(crate) fn plant(bug: Option<CacheBug>) {
    CURRENT.with(|current| current.set(bug));
}

/// Whether `bug` is planted on this thread.
#[cfg(test)]
#[inline]
pub(crate) fn planted(bug: CacheBug) -> bool {
    CURRENT.with(|current| current.get() == Some(bug))
}

/// Whether `bug` is planted: never, in this build.
#[cfg(not(test))]
#[inline(always)]
pub(crate) fn planted(_bug: CacheBug) -> bool {
    false
}
