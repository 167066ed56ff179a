//! Retries of a transaction's closure. [`crate::txn::effort`] decides on priority, and on giving
//! up after some 24 runs.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::core::Shared;
use super::transaction::Transaction;
use crate::error::{Error, Result};
use crate::txn::effort::{Effort, Protected};

#[derive(Debug)]
pub(super) enum GaveUp {
    /// An error of the body, of a call, or of the commit.
    Failed(Error),
    /// Conflicts; `too_old` if the last run lost the snapshot that kept a large value.
    Conflict { too_old: bool },
}

impl From<GaveUp> for Error {
    fn from(gave_up: GaveUp) -> Self {
        match gave_up {
            GaveUp::Failed(error) => error,
            GaveUp::Conflict { .. } => Error::Conflict,
        }
    }
}

impl GaveUp {
    /// The error if only conflicts over a large value prevented the commit.
    pub(super) fn of_large_value(self) -> Error {
        match self {
            GaveUp::Conflict { too_old: true } => Error::SnapshotTooOld,
            other => other.into(),
        }
    }
}

/// Runs `body` in transactions until one commits or a retry is of no use.
pub(super) fn update<T>(
    shared: &Arc<Shared>,
    mut body: impl FnMut(&mut Transaction) -> Result<T>,
) -> Result<T, GaveUp> {
    let mut effort = Effort::new(&shared.gate);
    loop {
        let protected = effort.begin_run();
        let mut transaction = Transaction::new(shared, shared.settings.durability);
        let turn = protected.and_then(|Protected { turn, reads }| {
            transaction.protect(reads);
            turn
        });
        if turn.is_some() {
            shared.counters.alone.fetch_add(1, Relaxed);
        }
        let outcome = body(&mut transaction);
        let had_turn = turn.is_some();
        let turn = turn.filter(|turn| turn.lasts());
        let lapsed = had_turn && turn.is_none();
        let outcome = match outcome {
            Ok(value) => transaction.finish(turn.map(|turn| turn.alone())).map(|_| value),
            Err(Error::Conflict) => Err(Error::Conflict),
            Err(_) if shared.check().is_ok() && !transaction.still_holds() => Err(Error::Conflict),
            Err(error) => Err(error),
        };
        match outcome {
            Ok(value) => return Ok(value),
            Err(Error::Conflict) if effort.goes_on(lapsed, transaction.reads()) => {}
            Err(Error::Conflict) => return Err(GaveUp::Conflict { too_old: transaction.is_too_old() }),
            Err(error) => return Err(GaveUp::Failed(error)),
        }
        drop(transaction);
        effort.pause();
    }
}

/// Repeats [`update`] after conflicts, for a body that waits for nothing outside.
pub(super) fn insist<T>(
    shared: &Arc<Shared>,
    mut body: impl FnMut(&mut Transaction) -> Result<T>,
) -> Result<T> {
    loop {
        match update(shared, &mut body) {
            Err(GaveUp::Conflict { too_old: false }) => {}
            other => return other.map_err(GaveUp::of_large_value),
        }
    }
}
