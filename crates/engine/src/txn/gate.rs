//! The gate every commit passes: shared as a rule, alone in the end.
//!
//! Optimistic transactions can starve: a long one loses to a stream of short ones again and again. So a transaction
//! that has met [`MAX_RETRIES`] conflicts closes the gate, waits until the commits inside have left, runs again with
//! nobody committing beside it, and cannot meet a conflict.
//!
//! Entering shared touches a counter of the thread's own slot and reads one word that hardly ever changes; no line is
//! written by two threads. Raising the counter and then reading the word, against writing the word and then reading
//! the counters, is sequentially consistent, so at least one side sees the other.
//!
//! The thread inside alone may also enter shared (its transaction's body may commit another transaction); any other
//! thread it waits for must not itself wait for a commit.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::{Padded, thread_number};

/// Conflicts a transaction may meet before it runs alone. Each costs one run of its body, so the bound is low; with
/// random backoff sixteen in a row mean that optimism does not work for it.
pub(crate) const MAX_RETRIES: u32 = 16;

const SLOTS: usize = 64;

/// Lets commits in: many, or one alone.
#[derive(Debug)]
pub(crate) struct Gate {
    /// The thread that is inside alone or waits for it; 0 = open.
    closed_by: Padded<AtomicU64>,
    inside: Box<[Padded<AtomicU64>]>,
    /// Held by who closes the gate, for as long as it is closed.
    alone: Mutex<()>,
    outside: Mutex<()>,
    opened: Condvar,
    /// How often somebody waited outside.
    waits: AtomicU64,
}

/// A commit is inside; dropping it leaves.
#[derive(Debug)]
#[must_use]
pub(crate) struct Shared<'a> {
    inside: &'a AtomicU64,
}

/// A transaction is inside alone; dropping it opens the gate. Stays on its thread.
#[derive(Debug)]
#[must_use]
pub(crate) struct Alone<'a> {
    gate: &'a Gate,
    _turn: MutexGuard<'a, ()>,
}

impl Gate {
    /// An open gate.
    pub(crate) fn new() -> Self {
        Gate {
            closed_by: Padded::default(),
            inside: (0..SLOTS).map(|_| Padded::default()).collect(),
            alone: Mutex::new(()),
            outside: Mutex::new(()),
            opened: Condvar::new(),
            waits: AtomicU64::new(0),
        }
    }

    /// Bytes of memory taken.
    pub(crate) fn size_bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.inside)
    }

    /// Enters together with others; waits while somebody is alone inside.
    pub(crate) fn enter(&self) -> Shared<'_> {
        let me = thread_number();
        let inside = &*self.inside[me as usize % SLOTS];
        loop {
            inside.fetch_add(1, SeqCst);
            let closed_by = self.closed_by.load(SeqCst);
            if closed_by == 0 || closed_by == me {
                return Shared { inside };
            }
            inside.fetch_sub(1, SeqCst);
            self.waits.fetch_add(1, Relaxed);
            let mut outside = self.outside.lock();
            // Opening takes this mutex between its store and its wake-up, so the wake-up is not missed.
            while ![0, me].contains(&self.closed_by.load(SeqCst)) {
                self.opened.wait(&mut outside);
            }
        }
    }

    /// How often somebody waited outside.
    pub(crate) fn waits(&self) -> u64 {
        self.waits.load(Relaxed)
    }

    /// Whether the calling thread is alone inside.
    pub(crate) fn is_mine(&self) -> bool {
        self.closed_by.load(SeqCst) == thread_number()
    }

    /// Enters alone, after those inside have left and after others who wanted the same. The calling thread is
    /// neither inside already nor holds anything that those inside wait for.
    pub(crate) fn enter_alone(&self) -> Alone<'_> {
        let turn = self.alone.lock();
        self.closed_by.store(thread_number(), SeqCst);
        for inside in &self.inside {
            let mut looks = 0usize;
            while inside.load(SeqCst) > 0 {
                looks += 1;
                match looks {
                    0..1000 => std::hint::spin_loop(),
                    1000..2000 => std::thread::yield_now(),
                    // A commit inside waits for a disk; it takes no part in waking us, so look now and then.
                    _ => std::thread::sleep(std::time::Duration::from_micros(50)),
                }
            }
        }
        Alone { gate: self, _turn: turn }
    }
}

impl Drop for Shared<'_> {
    fn drop(&mut self) {
        self.inside.fetch_sub(1, SeqCst);
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.gate.closed_by.store(0, SeqCst);
        drop(self.gate.outside.lock());
        self.gate.opened.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn who_is_alone_may_also_enter_shared() {
        let gate = Gate::new();
        let alone = gate.enter_alone();
        drop(gate.enter());
        drop(alone);
        drop(gate.enter());
        assert!(gate.size_bytes() >= SLOTS * 128);
    }

    #[test]
    fn alone_excludes_everybody() {
        let gate = Gate::new();
        let (shared, alone) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for thread in 0..5 {
                let (gate, shared, alone) = (&gate, &shared, &alone);
                scope.spawn(move || {
                    for round in 0..4000 {
                        if round % 50 == thread {
                            let _inside = gate.enter_alone();
                            assert_eq!(alone.fetch_add(1, SeqCst), 0);
                            assert_eq!(shared.load(SeqCst), 0);
                            std::thread::yield_now();
                            assert_eq!(shared.load(SeqCst), 0);
                            alone.fetch_sub(1, SeqCst);
                        } else {
                            let _inside = gate.enter();
                            shared.fetch_add(1, SeqCst);
                            assert_eq!(alone.load(SeqCst), 0);
                            shared.fetch_sub(1, SeqCst);
                        }
                    }
                });
            }
        });
    }
}
