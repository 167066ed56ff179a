//! What a transaction has tried so far, and what its next run gets.
//!
//! Conflicts are answered by running the body again. After [`MAX_CONFLICTS`] of them, or when [`PATIENCE`] has gone by
//! since the first run began, the next run has [priority](super::priority). So others wait for a body of a millisecond
//! after its sixteenth conflict, and for one of a second after its first.
//!
//! A run with priority meets a conflict only where a commit slipped in between a read and its protection, or where
//! protection lapsed: the body took more than twice as long as ever before, or it waits for a commit that waits for
//! it. The first ends once the body reads what it has read before. The second never ends with some bodies. So there are
//! at most [`PROTECTED_RUNS_MAX`] such runs, of which at most [`LAPSES_MAX`] lapse.

use std::sync::Arc;
use std::time::Duration;

use super::gate::{Gate, Turn};
use super::priority::{PROTECTED_MAX, PROTECTED_MIN, ProtectedReads};
use super::read_set::ReadSet;

/// Conflicts a transaction may meet before it gets priority. Each costs one run of its body, so the bound is low; with
/// random backoff sixteen in a row mean that optimism does not work for it.
pub(crate) const MAX_CONFLICTS: u32 = 16;
/// Time that a transaction may spend from the beginning of its first run before a conflict gives it priority.
pub(crate) const PATIENCE: Duration = Duration::from_millis(100);
/// Runs with priority.
pub(crate) const PROTECTED_RUNS_MAX: u32 = 8;
/// Runs with priority whose protection lapsed.
pub(crate) const LAPSES_MAX: u32 = 3;
/// The longest pause before another run, in microseconds; it doubles from one run to the next.
const BACKOFF_US_MAX: u64 = 1000;

/// The runs of one transaction.
#[derive(Debug)]
pub(crate) struct Effort<'g> {
    gate: &'g Gate,
    began: Duration,
    run_began: Duration,
    /// The longest run.
    longest: Duration,
    runs: u32,
    protected_runs: u32,
    lapses: u32,
    /// What runs with priority have read, and the run before them; none = there was none yet.
    protected: Option<Arc<ProtectedReads>>,
}

/// A run with priority.
#[derive(Debug)]
#[must_use]
pub(crate) struct Protected<'g> {
    /// None where it runs in the body of a transaction that has priority, and so under that one's turn.
    pub(crate) turn: Option<Turn<'g>>,
    /// Where the transaction is to enter what it reads.
    pub(crate) reads: Arc<ProtectedReads>,
}

impl<'g> Effort<'g> {
    /// Of a transaction that begins now.
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

    /// Begins a run; with priority, if it has come to that, which may have to be waited for. A transaction within the body
    /// of one that has priority is protected under that one's turn: to wait for a turn of its own would be to wait for itself.
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

    /// How long the next run is protected.
    fn length(&self) -> Duration {
        (2 * self.longest).clamp(PROTECTED_MIN, PROTECTED_MAX)
    }

    /// Notes a conflict of a run that has read `reads`; whether there is to be another run.
    pub(crate) fn goes_on(&mut self, lapsed: bool, reads: &ReadSet) -> bool {
        let now = self.gate.now();
        self.longest = self.longest.max(now.saturating_sub(self.run_began));
        if self.protected.is_some() {
            self.lapses += u32::from(lapsed);
            return self.protected_runs < PROTECTED_RUNS_MAX && self.lapses < LAPSES_MAX;
        }
        if self.runs >= MAX_CONFLICTS || now.saturating_sub(self.began) >= PATIENCE {
            self.protected = Some(ProtectedReads::of(reads));
        }
        true
    }

    /// Waits before another run: at random, so that two that met do not meet again.
    pub(crate) fn pause(&self) {
        let most = (1u64 << self.runs.min(20)).min(BACKOFF_US_MAX);
        // The time and the thread are random enough, and need no generator, which a thread that ends has lost.
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
