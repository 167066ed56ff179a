//! Deliberate bugs in the cache rule, which the tests must catch. Outside unit tests the switch is
//! the constant `false`.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// Rollback mode: ignores changes of the file head.
    TrustTheHead,
    /// WAL mode: ignores others' checkpoints.
    ForgetCheckpoints,
    /// WAL mode: ignores restarts of the log.
    ForgetGenerations,
    /// Keeps the state of a log that all have left.
    KeepTheLog,
    /// Trusts the cache at open, whatever the fingerprint.
    TrustTheOrigin,
    /// Trusts the cache at open, whatever its session.
    ForgetTheSession,
    /// Writes of this process bypass the cache.
    WritePastTheCache,
    /// Serves log pages of an earlier generation.
    KeepOldFrames,
    /// Serves uncommitted log pages.
    KeepUncommittedFrames,
    /// Delays every frame head, even one that a commit rewrites.
    HoldEveryHead,
}

#[cfg(test)]
thread_local! {
    static CURRENT: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

/// Plants `bug` on the calling thread; `None` removes it.
#[cfg(test)]
pub(crate) fn plant(bug: Option<Bug>) {
    CURRENT.with(|current| current.set(bug));
}

#[cfg(test)]
pub(crate) fn planted(bug: Bug) -> bool {
    CURRENT.with(|current| current.get() == Some(bug))
}

/// Never, in this build.
#[cfg(not(test))]
#[inline(always)]
pub(crate) fn planted(_bug: Bug) -> bool {
    false
}
