//! Whether the log has failed. The first reason stays; nothing ever takes it back, for after a write or sync that
//! failed no one knows what the device holds, and a later success would say nothing about it.

use std::sync::OnceLock;

use crate::error::{Error, Result};

/// Set once, asked on every append.
#[derive(Debug, Default)]
pub(super) struct Failure {
    reason: OnceLock<String>,
}

impl Failure {
    /// Notes that the log has failed, unless it had before.
    pub(super) fn set(&self, reason: impl Into<String>) {
        if self.reason.set(reason.into()).is_ok() {
            tracing::error!(reason = self.get(), "poisoned");
        }
    }

    /// Lets nothing more be written, because whoever owns the log is done with it.
    pub(super) fn close(&self, reason: &str) {
        // If it has failed before, that stays the reason.
        let _ = self.reason.set(reason.to_owned());
    }

    /// The first reason, if it has failed.
    pub(super) fn get(&self) -> Option<&str> {
        self.reason.get().map(String::as_str)
    }

    /// An error if it has failed.
    pub(super) fn check(&self) -> Result<()> {
        match self.get() {
            None => Ok(()),
            Some(reason) => Err(Error::Poisoned { reason: reason.to_owned() }),
        }
    }
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
