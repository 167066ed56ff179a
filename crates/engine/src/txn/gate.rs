//! The gate of all commits: shared normally, exclusive while the engine needs no commit in flight.
//!
//! Entering shared raises a counter of the thread's own slot and reads one word that hardly ever
//! changes. Raising the counter and then reading the word, against writing the word and then
//! reading the counters, is sequentially consistent: at least one side sees the other.
//!
//! ```text
//!     63          62 .. 0
//!    +-----------+------------------------------------------------+
//!    | protected | the exclusive thread, entered or waiting; 0 = open |
//!    +-----------+------------------------------------------------+
//! ```
//!
//! User code never runs while the gate is closed. The engine closes it to change the catalog, to
//! count, and to validate a transaction with [priority](super::priority).
//!
//! While a transaction has priority, the `protected` bit makes commits check whether they write
//! what it has read. Such a commit waits outside, without holding anything, for a bounded time. The
//! transaction sets the bit, then closes and opens the gate once, which drains earlier commits. The
//! exclusive thread may also enter shared.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::priority::{Priority, ProtectedReads, Reads, WAIT_MAX};
use super::snapshots::TimeSource;
use super::{Padded, thread_number};
use crate::planted::{Bug, planted};

const SLOTS: usize = 64;

/// A transaction has priority; its reads are protected.
const PROTECTED: u64 = 1 << 63;

/// Admits commits, many or one alone.
#[derive(Debug)]
pub(crate) struct Gate {
    state: Padded<AtomicU64>,
    inside: Box<[Padded<AtomicU64>]>,
    alone: Mutex<()>,
    outside: Mutex<()>,
    opened: Condvar,
    priority: Priority,
    waits: AtomicU64,
}

/// Shared entry of a commit; dropping it leaves.
#[derive(Debug)]
#[must_use]
pub(crate) struct Shared<'a> {
    inside: &'a AtomicU64,
}

/// Exclusive entry; dropping it opens the gate. Stays on its thread.
#[derive(Debug)]
#[must_use]
pub(crate) struct Alone<'a> {
    gate: &'a Gate,
    _closed: MutexGuard<'a, ()>,
    /// Ends after the gate opens.
    turn: Option<Turn<'a>>,
}

/// A transaction's priority; dropping it ends that.
#[derive(Debug)]
#[must_use]
pub(crate) struct Turn<'a> {
    gate: &'a Gate,
    number: u64,
}

impl Gate {
    pub(crate) fn new(time: Arc<dyn TimeSource>) -> Self {
        Gate {
            state: Padded::default(),
            inside: (0..SLOTS).map(|_| Padded::default()).collect(),
            alone: Mutex::new(()),
            outside: Mutex::new(()),
            opened: Condvar::new(),
            priority: Priority::new(time),
            waits: AtomicU64::new(0),
        }
    }

    pub(crate) fn size_bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.inside)
    }

    pub(crate) fn now(&self) -> Duration {
        self.priority.now()
    }

    /// Enters shared. Waits while another thread is alone inside, and at most [`WAIT_MAX`] for
    /// transactions with priority that have read what the commit `writes`. The caller holds no
    /// commit lock.
    pub(crate) fn enter(&self, writes: impl Fn(&Reads) -> bool) -> Shared<'_> {
        let me = thread_number();
        let inside = &*self.inside[me as usize % SLOTS];
        inside.fetch_add(1, SeqCst);
        if self.state.load(SeqCst) != 0 {
            self.enter_slowly(me, inside, &writes);
        }
        Shared { inside }
    }

    /// The slow path of [`Gate::enter`]: enters and returns with the slot's counter raised.
    #[cold]
    fn enter_slowly(&self, me: u64, inside: &AtomicU64, writes: &dyn Fn(&Reads) -> bool) {
        let mut patience = None;
        loop {
            let state = self.state.load(SeqCst);
            let closed_by = state & !PROTECTED;
            if closed_by == me {
                return;
            }
            if closed_by != 0 {
                inside.fetch_sub(1, SeqCst);
                self.waits.fetch_add(1, Relaxed);
                let mut outside = self.outside.lock();
                // The opener takes this mutex between its store and its wake-up, so no wake-up is
                // lost.
                while ![0, me].contains(&(self.state.load(SeqCst) & !PROTECTED)) {
                    self.opened.wait(&mut outside);
                }
            } else {
                let stopped = match state & PROTECTED {
                    0 => None,
                    _ => self.priority.stops(me, writes),
                };
                let Some(number) = stopped.filter(|_| !planted(Bug::WriteProtectedReads)) else { return };
                let until = *patience.get_or_insert_with(|| self.now() + WAIT_MAX);
                if self.now() >= until {
                    return;
                }
                inside.fetch_sub(1, SeqCst);
                self.waits.fetch_add(1, Relaxed);
                self.priority.wait(number, until, || self.unprotect());
            }
            inside.fetch_add(1, SeqCst);
        }
    }

    pub(crate) fn waits(&self) -> u64 {
        self.waits.load(Relaxed)
    }

    pub(crate) fn is_mine(&self) -> bool {
        self.state.load(SeqCst) & !PROTECTED == thread_number()
    }

    /// Enters alone, once all commits inside have left. The calling thread is not inside, and holds
    /// nothing that a commit inside waits for.
    pub(crate) fn enter_alone(&self) -> Alone<'_> {
        let closed = self.alone.lock();
        self.state.fetch_or(thread_number(), SeqCst);
        for inside in &self.inside {
            let mut looks = 0usize;
            while inside.load(SeqCst) > 0 {
                looks += 1;
                match looks {
                    0..1000 => std::hint::spin_loop(),
                    1000..2000 => std::thread::yield_now(),
                    // A commit inside waits for a disk and does not wake this thread, so poll.
                    _ => std::thread::sleep(Duration::from_micros(50)),
                }
            }
        }
        Alone { gate: self, _closed: closed, turn: None }
    }

    /// The protected reads of the calling thread's transaction; none without priority.
    pub(crate) fn reads_of_turn(&self) -> Option<Arc<ProtectedReads>> {
        self.priority.reads_of(thread_number())
    }

    /// Waits for priority, first come first served, for `length`. Other commits that write `reads`
    /// wait until the turn is dropped or that time has passed. On return, earlier commits have
    /// left. The calling thread is not inside and [has no turn](Gate::reads_of_turn).
    pub(crate) fn take_turn(&self, reads: Arc<ProtectedReads>, length: Duration) -> Turn<'_> {
        let number = self.priority.acquire(
            thread_number(),
            reads,
            || self.state.fetch_or(PROTECTED, SeqCst),
            || self.unprotect(),
        );
        let turn = Turn { gate: self, number };
        drop(self.enter_alone());
        self.priority.start(number, length);
        turn
    }

    fn unprotect(&self) {
        self.state.fetch_and(!PROTECTED, SeqCst);
    }
}

impl<'a> Turn<'a> {
    /// Whether no waiting commit has ended the turn.
    pub(crate) fn lasts(&self) -> bool {
        self.gate.priority.is_held(self.number)
    }

    /// Enters alone, to validate with no commit in flight. Opening the gate ends the turn.
    pub(crate) fn alone(self) -> Alone<'a> {
        let mut alone = self.gate.enter_alone();
        alone.turn = Some(self);
        alone
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.gate.priority.release(self.number, || self.gate.unprotect());
    }
}

impl Drop for Shared<'_> {
    fn drop(&mut self) {
        self.inside.fetch_sub(1, SeqCst);
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.gate.state.fetch_and(PROTECTED, SeqCst);
        drop(self.gate.outside.lock());
        self.gate.opened.notify_all();
    }
}

#[cfg(test)]
mod tests;
