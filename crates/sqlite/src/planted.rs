//! Deliberate faults of the rule by which the cache is believed: the tests are proved by the bugs they catch. Except in
//! the crate's own tests the switch is the constant `false` and the wrong branch is not compiled in.

/// One way to believe a cache that is stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// In rollback mode the head of the file is not looked at.
    TrustTheHead,
    /// In WAL mode checkpoints by others are not noticed within a generation of the log.
    ForgetCheckpoints,
    /// In WAL mode new generations of the log are not noticed.
    ForgetGenerations,
    /// What is known of a log is believed after all connections have left it.
    KeepTheLog,
    /// What an earlier process left is believed, whatever became of the file.
    TrustTheOrigin,
    /// What an earlier process left is believed, whatever the session is in which the cache was left.
    ForgetTheSession,
    /// What this process writes does not reach the cache.
    WritePastTheCache,
    /// Pages of an earlier generation of the log are served.
    KeepOldFrames,
    /// Pages of the log are kept that were not committed.
    KeepUncommittedFrames,
    /// Every head of a frame waits for a page, one that is written again at a commit, too.
    HoldEveryHead,
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
pub(crate) fn planted(bug: Bug) -> bool {
    CURRENT.with(|current| current.get() == Some(bug))
}

/// Whether `bug` is planted: never, in this build.
#[cfg(not(test))]
#[inline(always)]
pub(crate) fn planted(_bug: Bug) -> bool {
    false
}
