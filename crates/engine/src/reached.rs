//! Counts of the branches that the executions of a loom model reach.
//!
//! A model that never reaches a branch checks nothing there.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Counts by branch. They are not part of the model.
#[derive(Debug)]
pub(crate) struct Reached(Vec<(&'static str, AtomicUsize)>);

impl Reached {
    pub(crate) fn new(branches: &[&'static str]) -> &'static Reached {
        Box::leak(Box::new(Reached(branches.iter().map(|branch| (*branch, AtomicUsize::new(0))).collect())))
    }

    pub(crate) fn at(&self, branch: &str) {
        let found = self.0.iter().find(|(name, _)| *name == branch);
        found.unwrap_or_else(|| panic!("{branch}: not a branch of this model")).1.fetch_add(1, Relaxed);
    }

    /// Checks that every branch was reached, and prints how often.
    pub(crate) fn check(&self) {
        println!("{self:?}");
        for (branch, count) in &self.0 {
            assert!(count.load(Relaxed) > 0, "no execution reached: {branch}");
        }
    }
}
