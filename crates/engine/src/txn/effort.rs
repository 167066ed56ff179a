//! The retry policy of one transaction.
//!
//! A conflict runs the body again. After [`MAX_CONFLICTS`] conflicts, or [`PATIENCE`] after the
//! first run began, the next run has [priority](super::priority).
//!
//! A run with priority still conflicts if a commit slips in between a read and its protection,
//! until the body repeats its reads. It also conflicts if protection lapsed: the body took more
//! than twice as long as ever before, or waits for a commit that waits for it. Some bodies lapse
//! every time, so [`PROTECTED_RUNS_MAX`] and [`LAPSES_MAX`] bound such runs.

use std::sync::Arc;
use std::time::Duration;

use super::gate::{Gate, Turn};
use super::priority::{PROTECTED_MAX, PROTECTED_MIN, ProtectedReads};
use super::read_set::ReadSet;

/// Conflicts before a transaction gets priority. Low, since each costs a run; sixteen despite
/// random backoff show that optimism fails.
pub(crate) const MAX_CONFLICTS: u32 = 16;
/// Time since the first run began after which a conflict gives priority.
pub(crate) const PATIENCE: Duration = Duration::from_millis(100);
/// Most runs with priority.
pub(crate) const PROTECTED_RUNS_MAX: u32 = 8;
/// Most runs with priority whose protection lapses.
pub(crate) const LAPSES_MAX: u32 = 3;
/// The longest pause before a retry, in microseconds; the pause doubles from run to run.
const BACKOFF_US_MAX: u64 = 1000;

#[derive(Debug)]
pub(crate) struct Effort<'g> {
    gate: &'g Gate,
    began: Duration,
    run_began: Duration,
    longest: Duration,
    runs: u32,
    protected_runs: u32,
    lapses: u32,
    /// Reads of the runs with priority and of the run before them; none before the first.
    protected: Option<Arc<ProtectedReads>>,
}

#[derive(Debug)]
#[must_use]
pub(crate) struct Protected<'g> {
    /// None inside the body of a transaction with priority: the outer turn covers it.
    pub(crate) turn: Option<Turn<'g>>,
    /// Where the transaction enters its reads.
    pub(crate) reads: Arc<ProtectedReads>,
}

impl<'g> Effort<'g> {
    pub(crate) fn new(gate: &'g Gate) -> Self {
        let began = gate.now();
        Effort {
            gate,
            began,
            run_began: began,
            longest: Duration::ZERO,
            runs: 0,
            protected_runs: 0,
            lapses: 0,
            protected: None,
        }
    }

    /// Begins a run, with priority if it is due; waits for the turn. A transaction inside the body
    /// of one with priority uses the outer turn: waiting for its own would deadlock.
    pub(crate) fn begin_run(&mut self) -> Option<Protected<'g>> {
        self.runs += 1;
        let Some(reads) = &self.protected else {
            if self.runs > 1 {
                self.run_began = self.gate.now();
            }
            return None;
        };
        self.protected_runs += 1;
        let protected = match self.gate.reads_of_turn() {
            Some(reads) => Protected { turn: None, reads },
            None => {
                let turn = self.gate.take_turn(Arc::clone(reads), self.length());
                Protected { turn: Some(turn), reads: Arc::clone(reads) }
            }
        };
        self.run_began = self.gate.now();
        Some(protected)
    }

    fn length(&self) -> Duration {
        (2 * self.longest).clamp(PROTECTED_MIN, PROTECTED_MAX)
    }

    /// Records a conflict of a run that read `reads`; returns whether to run again.
    pub(crate) fn goes_on(&mut self, lapsed: bool, reads: &ReadSet) -> bool {
        let now = self.gate.now();
        self.longest = self.longest.max(now.saturating_sub(self.run_began));
        if self.protected.is_some() {
            self.lapses += u32::from(lapsed);
            return self.protected_runs < PROTECTED_RUNS_MAX && self.lapses < LAPSES_MAX;
        }
        if self.runs >= MAX_CONFLICTS || now.saturating_sub(self.began) >= PATIENCE {
            self.protected = Some(reads.to_protected());
        }
        true
    }

    /// Sleeps a random time before a retry, so that two conflicting runs separate.
    pub(crate) fn pause(&self) {
        let most = (1u64 << self.runs.min(20)).min(BACKOFF_US_MAX);
        // Time and thread are random enough. A generator in a thread-local may be gone in an ending
        // thread.
        let now = self.gate.now().as_nanos() as u64 ^ super::thread_number() << 40;
        let us = (now.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % (most + 1);
        if us > 10 {
            std::thread::sleep(Duration::from_micros(us));
        } else {
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests;
