//! Recognises sequential runs by the last position of each stream.
//!
//! An access continues a stream of the same relation if it is at most `band` blocks after its last
//! block. Streams of several queries mix, so the last [`STREAMS`] are kept; the one idle for
//! longest is replaced.

use super::{Access, Relation};

const STREAMS: usize = 32;

#[derive(Clone, Copy, Debug)]
struct Stream {
    relation: Option<Relation>,
    last: u64,
    run: u32,
}

#[derive(Clone, Debug)]
pub(crate) struct Streams {
    /// Most recently continued first.
    streams: Vec<Stream>,
    band: u64,
}

impl Streams {
    pub fn new(band: u64) -> Streams {
        Streams { streams: Vec::with_capacity(STREAMS), band }
    }

    /// Number of earlier accesses in its stream.
    pub fn run(&mut self, access: Access) -> u32 {
        let Access { relation, offset, .. } = access;
        let continued = self.streams.iter().position(|stream| {
            stream.relation == relation && offset > stream.last && offset - stream.last <= self.band
        });
        let run = match continued {
            Some(position) => {
                let stream = self.streams.remove(position);
                stream.run.saturating_add(1)
            }
            None => {
                self.streams.truncate(STREAMS - 1);
                0
            }
        };
        self.streams.insert(0, Stream { relation, last: offset, run });
        run
    }
}

#[cfg(test)]
mod tests {
    use super::{STREAMS, Streams};
    use crate::policy::{Access, Relation};

    #[test]
    fn mixed_streams_are_told_apart_and_forgotten() {
        let mut streams = Streams::new(1);
        for step in 0..10 {
            assert_eq!(streams.run(Access::read(0).of(Relation(1), 100 + step)), step as u32);
            assert_eq!(streams.run(Access::read(0).of(Relation(2), 100 + step)), step as u32);
        }
        assert_eq!(
            streams.run(Access::read(0).of(Relation(1), 109)),
            0,
            "a block read again continues nothing"
        );
        for far in 0..STREAMS as u64 {
            assert_eq!(streams.run(Access::read(1000 + 10 * far)), 0);
        }
        assert_eq!(streams.run(Access::read(0).of(Relation(2), 110)), 0, "forgotten");
    }
}
