//! One lane of a simulation: a cache of any kind, the time it takes, and the parts that are counted apart.

use std::ops::Range;
use std::time::Instant;

use super::cache::Counts;
use super::chunk::{Chunk, Mark};
use super::flow::{Lane, Outcome};
use super::parts::Parts;

/// A cache that takes requests.
pub(super) trait Body: Send {
    /// Blocks have numbers below `footprint` from here on.
    fn grow(&mut self, footprint: usize);

    /// Takes the requests of a range of `chunk`.
    fn requests(&mut self, chunk: &Chunk, range: Range<usize>);

    /// Takes what happens between two requests.
    fn mark(&mut self, mark: &Mark) {
        let _ = mark;
    }

    /// What happened so far.
    fn counts(&self) -> Counts;

    /// Blocks that the store does not have.
    fn dirty(&self) -> u64;
}

/// A cache at work.
pub(super) struct Run<B> {
    body: B,
    parts: Parts,
    nanoseconds: u64,
}

impl<B: Body> Run<B> {
    /// `parts` says by what else to count.
    pub(super) fn new(body: B, parts: Parts) -> Run<B> {
        Run { body, parts, nanoseconds: 0 }
    }

    /// The requests of a range, counted by query and relation where that was asked for.
    fn counted(&mut self, chunk: &Chunk, range: Range<usize>) {
        if !self.parts.is_asked_for() {
            return self.body.requests(chunk, range);
        }
        for (relation, run) in self.parts.runs(chunk, range) {
            let before = self.body.counts();
            self.body.requests(chunk, run);
            let counts = self.body.counts().since(&before);
            self.parts.add(relation, &counts);
        }
    }
}

impl<B: Body> Lane for Run<B> {
    fn run(&mut self, chunk: &Chunk) {
        let began = Instant::now();
        self.body.grow(chunk.footprint);
        let mut start = 0;
        for (index, mark) in &chunk.marks {
            self.counted(chunk, start..*index);
            start = *index;
            if let Mark::Current(query) = mark {
                self.parts.query(*query);
            }
            self.body.mark(mark);
        }
        self.counted(chunk, start..chunk.len());
        self.nanoseconds += began.elapsed().as_nanos() as u64;
    }

    fn finish(self: Box<Self>) -> Outcome {
        Outcome::Cache {
            counts: self.body.counts(),
            dirty: self.body.dirty(),
            seconds: self.nanoseconds as f64 / 1e9,
            parts: self.parts.finish(),
        }
    }
}
