//! Loom models of the group, and loom's locks behind the usual interface.
//!
//! The lead is a moved value, so no two threads can hold it. The remaining risk is a thread that is
//! never called, which loom reports as a deadlock. Every guard's time is over at once.

use std::ops::{Deref, DerefMut};
use std::time::Instant;

#[derive(Debug)]
pub(super) struct Mutex<T>(loom::sync::Mutex<T>);

/// Absent only while a condition is waited for.
pub(super) struct Guard<'a, T>(Option<loom::sync::MutexGuard<'a, T>>);

impl<T> Mutex<T> {
    pub(super) fn new(value: T) -> Self {
        Mutex(loom::sync::Mutex::new(value))
    }

    pub(super) fn lock(&self) -> Guard<'_, T> {
        Guard(Some(self.0.lock().unwrap()))
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().unwrap()
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().unwrap()
    }
}

pub(super) struct Condvar(loom::sync::Condvar);

pub(super) struct TimedOut;

impl TimedOut {
    pub(super) fn timed_out(&self) -> bool {
        true
    }
}

impl Condvar {
    pub(super) fn new() -> Self {
        Condvar(loom::sync::Condvar::new())
    }

    pub(super) fn notify_one(&self) {
        self.0.notify_one();
    }

    pub(super) fn wait<T>(&self, guard: &mut Guard<'_, T>) {
        guard.0 = Some(self.0.wait(guard.0.take().unwrap()).unwrap());
    }

    pub(super) fn wait_until<T>(&self, _guard: &mut Guard<'_, T>, _until: Instant) -> TimedOut {
        TimedOut
    }
}

#[cfg(test)]
mod loom_tests {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU64, Ordering::SeqCst};

    use super::super::{Ended, Group, Pace};

    struct Log {
        group: Group<()>,
        tail: AtomicU64,
        durable: AtomicU64,
    }

    /// Mirrors `Flusher::flush_to`, with a device that takes everything.
    fn commit(log: &Log, pace: Pace) {
        let to = log.tail.fetch_add(1, SeqCst) + 1;
        while log.durable.load(SeqCst) < to {
            let is_over = || log.durable.load(SeqCst) >= to;
            if log.group.join(to, pace, is_over).is_some() {
                let seen = log.tail.load(SeqCst);
                log.durable.store(seen, SeqCst);
                log.group.leave((), (to, pace), Ended { filed: seen, failed: false, took: None });
            }
        }
    }

    fn all_are_served(threads: &'static [&'static [Pace]]) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || {
            let log =
                Arc::new(Log { group: Group::new(()), tail: AtomicU64::new(0), durable: AtomicU64::new(0) });
            let (own, others) = threads.split_first().unwrap();
            let others: Vec<_> = others
                .iter()
                .map(|paces| {
                    let log = Arc::clone(&log);
                    loom::thread::spawn(move || paces.iter().for_each(|&pace| commit(&log, pace)))
                })
                .collect();
            own.iter().for_each(|&pace| commit(&log, pace));
            others.into_iter().for_each(|thread| thread.join().unwrap());
            assert_eq!(log.durable.load(SeqCst), log.tail.load(SeqCst));
        });
    }

    use Pace::{Commit, Hurry};

    #[test]
    fn two_that_commit_twice_are_served() {
        all_are_served(&[&[Commit, Commit], &[Commit, Commit]]);
    }

    #[test]
    fn three_are_served() {
        all_are_served(&[&[Commit], &[Commit], &[Commit]]);
    }

    #[test]
    fn a_hurry_between_commits_leaves_nobody_behind() {
        all_are_served(&[&[Commit, Commit], &[Commit], &[Hurry]]);
    }
}
