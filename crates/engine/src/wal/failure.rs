//! The log's first failure, which is final.
//!
//! After a failed write or sync, the device's content is unknown, and a later success would prove
//! nothing.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::error::{Error, Result};

/// Set once, checked on every append.
#[derive(Debug, Default)]
pub(super) struct Failure {
    reason: OnceLock<String>,
    /// The log is an attempt in memory: its owner gets the error, and nothing written is at stake.
    is_attempt: AtomicBool,
}

impl Failure {
    /// From now on, a failure is no event of its own.
    pub(super) fn be_attempt(&self) {
        self.is_attempt.store(true, Relaxed);
    }

    /// Fails the log, unless it had failed.
    pub(super) fn set(&self, reason: impl Into<String>) {
        if self.reason.set(reason.into()).is_ok() && !self.is_attempt.load(Relaxed) {
            tracing::error!(reason = self.get(), "poisoned");
        }
    }

    /// Stops all writes, because the log's owner has ended.
    pub(super) fn close(&self, reason: &str) {
        // An earlier failure stays the reason.
        let _ = self.reason.set(reason.to_owned());
    }

    pub(super) fn get(&self) -> Option<&str> {
        self.reason.get().map(String::as_str)
    }

    #[inline]
    pub(super) fn check(&self) -> Result<()> {
        self.get().map_or(Ok(()), |reason| Err(poisoned(reason)))
    }
}

#[cold]
fn poisoned(reason: &str) -> Error {
    Error::Poisoned { reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_reason_stays() {
        let failure = Failure::default();
        assert!(failure.check().is_ok());
        failure.set("first");
        failure.set("second");
        assert_eq!(failure.get(), Some("first"));
        assert!(matches!(failure.check(), Err(Error::Poisoned { reason }) if reason == "first"));
    }
}
