//! Planted bugs of the mount, which its tests must catch.
//!
//! Outside of the crate's tests the switch is the constant `false`, so no wrong branch is compiled
//! in.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MountBug {
    /// Reads cached blocks without a look at the file's stamp.
    NoCheckAtRead,
    /// Believes the map's record of a file without a look at its stamp.
    NoCheckAtOpen,
    /// Caches a file that may be in the middle of a change from outside.
    TrustYoung,
    /// Keeps cached blocks behind a truncation.
    ForgetTruncate,
    /// Keeps the blocks of a write that failed half way.
    KeepFailedWrite,
    /// Records a new stamp before the old blocks are dropped.
    RecordBeforeDrop,
    /// Keeps blocks after a failed fsync.
    TrustFailedSync,
    /// Leaves blocks at addresses that the next opening uses again.
    ReuseFilled,
    /// Does not record that a file is being written.
    NoWritingRecord,
    /// Keeps the block of which a write changed a part.
    KeepPartlyWritten,
}

#[cfg(test)]
thread_local! {
    static CURRENT: std::cell::Cell<Option<MountBug>> = const { std::cell::Cell::new(None) };
}

/// Plants `bug` on the calling thread; `None` removes it.
#[cfg(test)]
pub(crate) fn plant(bug: Option<MountBug>) {
    CURRENT.with(|current| current.set(bug));
}

#[cfg(test)]
pub(crate) fn planted(bug: MountBug) -> bool {
    CURRENT.with(|current| current.get() == Some(bug))
}

/// False: this build has no planted bugs.
#[cfg(not(test))]
#[inline(always)]
pub(crate) fn planted(_bug: MountBug) -> bool {
    false
}
