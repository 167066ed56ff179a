//! The line of commits that wait for log space.
//!
//! Commits queue, so small reservations cannot starve a large one. Only the first asks for a log
//! cut. Structure modifications bypass the line: a commit that holds log space may wait for one.

use std::collections::VecDeque;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Longest sleep before a waiting commit checks again.
const NAP: Duration = Duration::from_millis(5);

/// Waiting commits, in order of arrival.
#[derive(Debug, Default)]
pub(crate) struct Line {
    /// Read without the lock.
    length: AtomicUsize,
    state: Mutex<LineState>,
    moved: Condvar,
}

#[derive(Debug, Default)]
struct LineState {
    numbers: VecDeque<u64>,
    next: u64,
}

/// A position in line; dropping it leaves the line.
pub(crate) struct Turn<'l> {
    line: &'l Line,
    number: u64,
}

impl Line {
    pub(crate) fn is_empty(&self) -> bool {
        self.length.load(SeqCst) == 0
    }

    pub(crate) fn enter(&self) -> Turn<'_> {
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        state.numbers.push_back(number);
        self.length.store(state.numbers.len(), SeqCst);
        Turn { line: self, number }
    }
}

impl Turn<'_> {
    /// Whether this commit is first; waits briefly if not.
    pub(crate) fn has_come(&self) -> bool {
        let mut state = self.line.state.lock();
        let is_first = |state: &LineState| state.numbers.front() == Some(&self.number);
        if !is_first(&state) {
            self.line.moved.wait_for(&mut state, NAP);
        }
        is_first(&state)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.line.state.lock();
        state.numbers.retain(|&number| number != self.number);
        self.line.length.store(state.numbers.len(), SeqCst);
        drop(state);
        self.line.moved.notify_all();
    }
}
