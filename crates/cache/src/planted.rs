//! Planted bugs of the block cache, which its tests must catch.
//!
//! Outside of the crate's tests the switch is the constant `false`, so no wrong branch is compiled
//! in.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CacheBug {
    ServeMarkedRegions,
    NoGenerationInJournal,
    /// Leaves the blocks of a smaller cache where the journal of a larger one will be.
    KeepLeftovers,
    ServeUnverified,
    /// Before the journal and the blocks are durable.
    UnmarkBeforeData,
    UnmarkBeforeSync,
    WriteBeforeMark,
    SlowBeforeFast,
    /// Writes an evicted block before the journal has the eviction.
    ForgetLeft,
    /// Writes a moved block before the journal has the end of its old slot.
    ForgetMoved,
    /// Uses a cache though another was used since.
    ForgetLatest,
    ForgetSession,
    /// Keeps the previous session when the guard has the new one.
    KeepSession,
    /// Keeps the previous session when the guard surely has this one, so that the next replaces the
    /// wrong one.
    KeepUnneeded,
    /// Uses a cache though the slow device is behind or ahead of it.
    ForgetProgress,
    /// Gives a slot bytes that match an ended claim in the journal.
    ForgetEndedClaims,
    /// Keeps blocks beyond a truncation of the slow device.
    ForgetTruncate,
    ServeReusedSlot,
    /// Keeps a block fetched during its write.
    KeepRacedFetch,
    KeepDamaged,
    /// Looks up without the lock whether a block needs write-back.
    FindWithoutLock,
    TrustFailedSync,
    /// Reuses a device that missed a write.
    ForgetRevoked,
    /// Does not journal that a block, rewritten while settling, has left its slot.
    KeepSettling,
    EvictDirty,
    /// Overwrites the only synced copy of a dirty block.
    OverwriteDirty,
    CleanBeforeSync,
    /// Writes back the newest synced version first.
    DrainOutOfOrder,
    /// Writes directly to the slow device before earlier synced writes.
    DirectBeforeEarlier,
    AcknowledgeBeforeJournal,
    SyncWithoutFast,
    DirtyWhileWritten,
    /// Makes a block dirty while the cache closes as clean.
    DirtyWhileClosed,
    /// Starts write-back during writes unaware of it.
    BackAmidWrites,
    /// Never writes back dirty blocks of an earlier run.
    ForgetDirty,
}

#[cfg(test)]
thread_local! {
    static CURRENT: std::cell::Cell<Option<CacheBug>> = const { std::cell::Cell::new(None) };
}

/// Plants `bug` on the calling thread; `None` removes it.
#[cfg(test)]
pub(crate) fn plant(bug: Option<CacheBug>) {
    CURRENT.with(|current| current.set(bug));
}

#[cfg(test)]
#[inline]
pub(crate) fn planted(bug: CacheBug) -> bool {
    CURRENT.with(|current| current.get() == Some(bug))
}

/// False: this build has no planted bugs.
#[cfg(not(test))]
#[inline(always)]
pub(crate) fn planted(_bug: CacheBug) -> bool {
    false
}
