//! A lane of a simulation: any kind of cache, its time, and its parts.

use std::ops::Range;

use rustix::time::{ClockId, clock_gettime};

use super::chunk::{Chunk, Mark};
use super::counts::Counts;
use super::flow::{Lane, Outcome};
use super::parts::Parts;

/// A cache that takes requests.
pub(super) trait Body: Send {
    /// Blocks now have numbers below `footprint`.
    fn grow(&mut self, footprint: usize);

    fn requests(&mut self, chunk: &Chunk, range: Range<usize>);

    /// Takes an event between two requests.
    fn mark(&mut self, mark: &Mark) {
        let _ = mark;
    }

    fn counts(&self) -> Counts;

    /// Number of dirty blocks.
    fn dirty(&self) -> u64;
}

pub(super) struct Run<B> {
    body: B,
    parts: Parts,
    /// Of processor time.
    nanoseconds: u64,
}

/// Nanoseconds of processor time that the calling thread has had.
fn processor_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

impl<B: Body> Run<B> {
    /// `parts` selects further counts.
    pub(super) fn new(body: B, parts: Parts) -> Run<B> {
        Run { body, parts, nanoseconds: 0 }
    }

    /// Takes a range of requests, counted by query and relation if requested.
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
        let began = processor_ns();
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
        self.nanoseconds += processor_ns() - began;
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    struct Sleeper;

    impl Body for Sleeper {
        fn grow(&mut self, _: usize) {}

        fn requests(&mut self, _: &Chunk, _: Range<usize>) {
            std::thread::sleep(Duration::from_millis(50));
        }

        fn counts(&self) -> Counts {
            Counts::default()
        }

        fn dirty(&self) -> u64 {
            0
        }
    }

    #[test]
    fn waiting_is_not_processor_time() {
        let mut run = Run::new(Sleeper, Parts::default());
        run.run(&Chunk::default());
        assert!(run.nanoseconds < 50_000_000, "{}", run.nanoseconds);
    }
}
