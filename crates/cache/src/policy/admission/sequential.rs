//! Sequential cut-off: long runs are not admitted, as in bcache's `sequential_cutoff`.

use super::{Admission, Occupancy};
use crate::policy::Access;
use crate::policy::streams::Streams;

/// Refuses read-ahead and the blocks of long runs.
#[derive(Clone, Debug)]
pub struct SequentialCutoff {
    streams: Streams,
    blocks_max: u32,
    refused: bool,
}

impl SequentialCutoff {
    /// Default number of admitted blocks per run.
    pub const BLOCKS_MAX: u32 = 32;

    /// Admits the first `blocks_max` blocks of each run.
    pub fn new(blocks_max: u32) -> Self {
        SequentialCutoff { streams: Streams::new(1), blocks_max, refused: false }
    }
}

impl Admission for SequentialCutoff {
    fn look_up(&mut self, access: Access, _: bool) {
        self.refused = self.streams.run(access) >= self.blocks_max || access.read_ahead;
    }

    fn admits(&mut self, _: Access, _: Occupancy) -> bool {
        !self.refused
    }

    /// One request may be longer than an admitted run.
    fn is_by_request(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::SequentialCutoff;
    use crate::policy::Access;
    use crate::policy::admission::{Admission, Occupancy};

    #[test]
    fn a_scan_is_cut_off_and_random_reads_are_not() {
        let occupancy = Occupancy { full: false, coldest: None };
        let mut admission = SequentialCutoff::new(8);
        let mut enters = |block| {
            admission.look_up(Access::read(block), false);
            admission.admits(Access::read(block), occupancy)
        };
        assert_eq!((100..200).filter(|&block| enters(block)).count(), 8);
        assert!((0..50).all(|step| enters(step * 7919 % 1000 * 10 + 5)));
    }
}
