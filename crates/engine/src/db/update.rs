//! Retries of a transaction's closure. [`crate::txn::effort`] decides on priority, and on giving
//! up after some 24 runs.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::core::Shared;
use super::transaction::Transaction;
use crate::error::{Error, Result};
use crate::txn::effort::{Effort, Protected};

#[derive(Debug)]
pub(super) enum GaveUp<E> {
    /// An error of the body, of a call, or of the commit.
    Failed(E),
    /// Conflicts; `too_old` if the last run lost the snapshot that kept a large value.
    Conflict { too_old: bool },
}

impl<E: From<Error>> GaveUp<E> {
    pub(super) fn into_error(self) -> E {
        match self {
            GaveUp::Failed(error) => error,
            GaveUp::Conflict { .. } => Error::Conflict.into(),
        }
    }

    /// The error if only conflicts over a large value prevented the commit.
    pub(super) fn of_large_value(self) -> E {
        match self {
            GaveUp::Conflict { too_old: true } => Error::SnapshotTooOld.into(),
            other => other.into_error(),
        }
    }
}

/// Runs `body` in transactions until one commits or a retry is of no use.
pub(super) fn update<T, E: From<Error> + 'static>(
    shared: &Arc<Shared>,
    mut body: impl FnMut(&mut Transaction) -> Result<T, E>,
) -> Result<T, GaveUp<E>> {
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
        match outcome {
            Ok(value) => match transaction.finish(turn.map(|turn| turn.alone())) {
                Ok(_) => return Ok(value),
                Err(Error::Conflict) => {}
                Err(error) => return Err(GaveUp::Failed(error.into())),
            },
            Err(error) if is_conflict(&error) || is_stale(shared, &transaction) => {}
            Err(error) => return Err(GaveUp::Failed(error)),
        }
        if !effort.goes_on(lapsed, transaction.reads()) {
            return Err(GaveUp::Conflict { too_old: transaction.is_too_old() });
        }
        drop(transaction);
        effort.pause();
    }
}

fn is_conflict<E: 'static>(error: &E) -> bool {
    matches!((error as &dyn Any).downcast_ref(), Some(Error::Conflict))
}

/// Whether the error may come from reads that do not hold together.
fn is_stale(shared: &Shared, transaction: &Transaction) -> bool {
    transaction.met_conflict() || (shared.check().is_ok() && !transaction.still_holds())
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
