//! The access pattern detector (HeuristicDB, section 5.3).
//!
//! A relation is *unknown* until accesses reach one per cent of its blocks, at least
//! [`ACCESSES_MIN`]; then *sequential* if over 90 % of them were, else *random*. An access is
//! sequential if it reads ahead or continues a run. A block frequency above one makes its relation
//! *repeated*. Rule 6 makes it *hot* until the next query that requires it. A relation's size is
//! hinted, or the distance between its first and last position seen: positions may be in a file of
//! all relations, as in SQLite.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use crate::policy::streams::Streams;
use crate::policy::{Access, Relation};

/// Fewer accesses cannot show 90 %: the first of a run is not sequential.
const ACCESSES_MIN: u64 = 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    Unknown,
    Sequential,
    Random,
    Repeated,
    Hot,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Sight {
    pub status: Status,
    /// The access is part of a sequential run.
    pub in_run: bool,
}

#[derive(Clone, Copy, Debug)]
struct Watch {
    status: Status,
    blocks: u64,
    is_hinted: bool,
    /// The first position seen, and the one after the last.
    seen: (u64, u64),
    accesses: u64,
    sequential: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Detector {
    relations: HashMap<Relation, Watch, FixedState>,
    database_blocks: u64,
    streams: Streams,
}

impl Detector {
    /// A run skips at most `band_blocks` blocks.
    pub fn new(band_blocks: u64) -> Self {
        Detector { relations: HashMap::default(), database_blocks: 0, streams: Streams::new(band_blocks) }
    }

    fn watch(&mut self, relation: Relation) -> &mut Watch {
        self.relations.entry(relation).or_insert(Watch {
            status: Status::Unknown,
            blocks: 0,
            is_hinted: false,
            seen: (u64::MAX, 0),
            accesses: 0,
            sequential: 0,
        })
    }

    pub fn database_blocks(&self) -> u64 {
        self.database_blocks
    }

    /// Records an access to a block with this `frequency`.
    pub fn see(&mut self, access: Access, frequency: u32) -> Sight {
        let in_run = access.read_ahead || self.streams.run(access) > 0;
        let Some(relation) = access.relation else { return Sight { status: Status::Unknown, in_run } };
        let watch = self.watch(relation);
        let (first, end) = watch.seen;
        watch.seen = (first.min(access.offset), end.max(access.offset.saturating_add(1)));
        let blocks = if watch.is_hinted { watch.blocks } else { watch.seen.1 - watch.seen.0 };
        let growth = blocks - std::mem::replace(&mut watch.blocks, blocks);
        match watch.status {
            Status::Hot => {}
            _ if frequency > 1 => watch.status = Status::Repeated,
            Status::Unknown => {
                watch.accesses += 1;
                watch.sequential += u64::from(in_run);
                if watch.accesses >= watch.blocks.div_ceil(100).max(ACCESSES_MIN) {
                    let sequential = watch.sequential * 10 > watch.accesses * 9;
                    watch.status = if sequential { Status::Sequential } else { Status::Random };
                }
            }
            Status::Sequential | Status::Random | Status::Repeated => {}
        }
        let status = watch.status;
        self.database_blocks = self.database_blocks.saturating_add(growth);
        Sight { status, in_run }
    }

    pub fn resize(&mut self, relation: Relation, blocks: u64) {
        let watch = self.watch(relation);
        watch.is_hinted = true;
        let before = std::mem::replace(&mut watch.blocks, blocks);
        self.database_blocks = self.database_blocks.saturating_sub(before).saturating_add(blocks);
    }

    /// A query requires `relations`: their patterns become unknown.
    pub fn verify(&mut self, relations: &[Relation]) {
        for &relation in relations {
            let watch = self.watch(relation);
            *watch = Watch { status: Status::Unknown, accesses: 0, sequential: 0, ..*watch };
        }
    }

    pub fn mark_hot(&mut self, relations: &[Relation]) {
        for &relation in relations {
            self.watch(relation).status = Status::Hot;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ACCESSES_MIN, Detector, Status};
    use crate::policy::{Access, Relation};

    const T: Relation = Relation(7);

    fn see(detector: &mut Detector, offset: u64, frequency: u32) -> Status {
        detector.see(Access::read(0).of(T, offset), frequency).status
    }

    #[test]
    fn the_first_hundredth_of_a_relation_decides() {
        for (stride, status) in [(1, Status::Sequential), (997, Status::Random)] {
            let mut detector = Detector::new(16);
            detector.resize(T, 5000);
            for access in 1..50 {
                assert_eq!(see(&mut detector, access * stride % 5000, 1), Status::Unknown, "access {access}");
            }
            assert_eq!(see(&mut detector, 50 * stride % 5000, 1), status);
            detector.verify(&[T]);
            assert_eq!(see(&mut detector, 51, 1), Status::Unknown);
            assert_eq!(detector.database_blocks(), 5000);
        }
    }

    #[test]
    fn offsets_in_a_file_that_relations_share_do_not_make_them_large() {
        let mut detector = Detector::new(16);
        for offset in 9000..9100 {
            see(&mut detector, offset, 1);
        }
        assert_eq!(detector.database_blocks(), 100);
        detector.resize(T, 300);
        see(&mut detector, 20_000, 1);
        assert_eq!(detector.database_blocks(), 300, "what was hinted is believed");
    }

    #[test]
    fn a_reused_block_makes_its_relation_repeated_and_hot_stays_hot() {
        let mut detector = Detector::new(16);
        for offset in 0..ACCESSES_MIN {
            see(&mut detector, offset, 1);
        }
        assert_eq!(see(&mut detector, 30, 1), Status::Sequential);
        assert_eq!(see(&mut detector, 31, 2), Status::Repeated);
        detector.mark_hot(&[T]);
        assert_eq!(see(&mut detector, 32, 2), Status::Hot);
    }

    #[test]
    fn read_ahead_is_sequential_wherever_it_is() {
        let mut detector = Detector::new(16);
        let mut status = Status::Unknown;
        for access in 0..ACCESSES_MIN {
            let offset = access * 997 % 1009;
            status = detector.see(Access { read_ahead: true, ..Access::read(0).of(T, offset) }, 1).status;
        }
        assert_eq!(status, Status::Sequential);
    }
}
