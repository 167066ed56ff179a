//! The expected content.
//!
//! Commits are ordered by their records in the log. So a crash leaves the state after some prefix
//! of them, with at least every acknowledged commit.

use std::collections::{BTreeMap, VecDeque};

use super::raw::Cells;
use crate::ids::{Lsn, PageId, Timestamp};

pub(super) type Pages = BTreeMap<u64, Cells>;

#[derive(Clone, Debug)]
pub(super) enum Deed {
    Write { page: u64, cell: usize, value: u64 },
    Create { page: u64, cells: Cells },
    Free { page: u64 },
}

#[derive(Clone, Debug)]
struct Commit {
    end: Lsn,
    timestamp: Timestamp,
    deeds: Vec<Deed>,
}

/// The expected content now, and the possible content after a crash.
#[derive(Clone, Debug, Default)]
pub(super) struct Model {
    /// The pages now, with writes of open transactions.
    pub(super) pages: Pages,
    /// Cells written by open transactions.
    pub(super) locked: BTreeMap<(u64, usize), Timestamp>,
    /// The pages after the acknowledged commits.
    sure: Pages,
    /// Highest timestamp of those.
    sure_timestamp: Timestamp,
    /// End of the acknowledged log.
    acknowledged: Lsn,
    /// Commits appended since.
    unsure: VecDeque<Commit>,
    last_value: u64,
}

fn apply(pages: &mut Pages, deed: &Deed) {
    match *deed {
        Deed::Write { page, cell, value } => {
            pages.get_mut(&page).expect("only pages that exist are written")[cell] = value;
        }
        Deed::Create { page, cells } => {
            pages.insert(page, cells);
        }
        Deed::Free { page } => {
            pages.remove(&page);
        }
    }
}

impl Model {
    pub(super) fn fresh_value(&mut self) -> u64 {
        self.last_value += 1;
        // Odd and even values are logged differently, so parity must not follow the script's
        // rhythm.
        self.last_value << 8 | (self.last_value.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56)
    }

    pub(super) fn did(&mut self, deed: &Deed) {
        apply(&mut self.pages, deed);
    }

    /// Notes a commit whose record ends at `end`.
    pub(super) fn committed(&mut self, end: Lsn, timestamp: Timestamp, deeds: Vec<Deed>) {
        debug_assert!(self.unsure.back().is_none_or(|last| last.end < end));
        self.unsure.push_back(Commit { end, timestamp, deeds });
    }

    /// Notes a commit whose append failed, which moved the log's tail from `before` to `tail`. Its
    /// record may be in persistent memory.
    pub(super) fn interrupted(&mut self, before: Lsn, tail: Lsn, timestamp: Timestamp, deeds: &[Deed]) {
        if tail > before {
            self.committed(tail, timestamp, deeds.to_vec());
        }
    }

    pub(super) fn last_end(&self) -> Lsn {
        self.unsure.back().map_or(self.acknowledged, |last| last.end)
    }

    pub(super) fn acknowledge(&mut self, end: Lsn) {
        self.acknowledged = self.acknowledged.max(end);
        while let Some(commit) = self.unsure.pop_front_if(|commit| commit.end <= end) {
            commit.deeds.iter().for_each(|deed| apply(&mut self.sure, deed));
            self.sure_timestamp = self.sure_timestamp.max(commit.timestamp);
        }
    }

    /// Compares the pages found after a crash with the possible states, and continues from them.
    ///
    /// `log_end` is the end of the log, if found by the first recovery after the crash.
    pub(super) fn judge(
        &mut self,
        found: &Pages,
        log_end: Option<Lsn>,
        highest: Timestamp,
    ) -> Result<(), String> {
        if let Some(end) = log_end {
            if end < self.acknowledged {
                return Err(format!("the log ends at {end}, acknowledged was {}", self.acknowledged));
            }
            self.acknowledge(end);
            self.unsure.clear();
        }
        let mut candidate = self.sure.clone();
        let mut timestamp = self.sure_timestamp;
        let first = difference(&candidate, found);
        let mut difference_now = first.clone();
        for commit in &self.unsure {
            if difference_now.is_none() {
                break;
            }
            commit.deeds.iter().for_each(|deed| apply(&mut candidate, deed));
            timestamp = timestamp.max(commit.timestamp);
            difference_now = difference(&candidate, found);
        }
        if difference_now.is_some() {
            let more = self.unsure.len();
            return Err(format!("{}; nor does any of {more} later commits explain it", first.expect("some")));
        }
        if highest < timestamp {
            return Err(format!("the clock restarts at {highest}, a commit has {timestamp}"));
        }
        self.sure = candidate.clone();
        self.pages = candidate;
        self.sure_timestamp = timestamp;
        self.unsure.clear();
        self.locked.clear();
        Ok(())
    }

    /// Notes that the recovered log ends here, all durable.
    pub(super) fn restart(&mut self, end: Lsn) {
        self.acknowledged = end;
    }

    pub(super) fn is_unlocked(&self, page: PageId) -> bool {
        self.locked.range((page.0, 0)..(page.0 + 1, 0)).next().is_none()
    }
}

fn difference(expected: &Pages, found: &Pages) -> Option<String> {
    if expected == found {
        return None;
    }
    let wrong = expected.keys().chain(found.keys()).find(|page| expected.get(page) != found.get(page))?;
    Some(format!("page {wrong} is {:?}, it should be {:?}", found.get(wrong), expected.get(wrong)))
}
