//! TinyLFU's admission in front of any eviction: a block enters a full cache only if it was looked up more often lately
//! than the block that would leave (Einziger, Friedman and Manes 2017).

use super::{Admission, Occupancy};
use crate::policy::Access;
use crate::policy::sketch::Sketch;

/// Admits what is more frequent than the coldest resident block. Memory: eight bytes a slot.
#[derive(Clone, Debug)]
pub struct Frequency {
    sketch: Sketch,
}

impl Frequency {
    /// For a cache of `capacity` blocks.
    pub fn new(capacity: usize) -> Self {
        Frequency { sketch: Sketch::new(capacity) }
    }
}

impl Admission for Frequency {
    fn look_up(&mut self, access: Access, _: bool) {
        self.sketch.increment(access.block);
    }

    fn admits(&mut self, access: Access, occupancy: Occupancy) -> bool {
        match occupancy.coldest {
            Some(coldest) if occupancy.full => {
                self.sketch.frequency(access.block) > self.sketch.frequency(coldest)
            }
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Frequency;
    use crate::policy::Access;
    use crate::policy::admission::{Admission, Occupancy};

    #[test]
    fn a_block_must_be_more_frequent_than_the_one_that_leaves() {
        let mut admission = Frequency::new(100);
        for block in [1, 1, 2, 2, 3, 3, 3] {
            admission.look_up(Access::read(block), false);
        }
        let full = Occupancy { full: true, coldest: Some(1) };
        assert!(!admission.admits(Access::read(2), full), "as frequent");
        assert!(admission.admits(Access::read(3), full));
        assert!(admission.admits(Access::read(4), Occupancy { full: false, coldest: Some(1) }));
    }
}
