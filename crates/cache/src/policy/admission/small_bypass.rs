//! Small-bypass: admits nothing while the database fits in DRAM (NVCache, section 3.2, lesson 1).
//!
//! The database's size is the sum of its relations' sizes, from hints or from the blocks seen.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use super::{Admission, Occupancy};
use crate::policy::{Access, Hint, Relation};

/// Refuses all blocks while the database fits in DRAM. Memory: 32 bytes per relation.
#[derive(Clone, Debug)]
pub struct SmallBypass {
    dram_blocks: u64,
    sizes: HashMap<Option<Relation>, u64, FixedState>,
    /// The last relation and its size, which rarely change.
    latest: Option<(Option<Relation>, u64)>,
    /// The sum of the sizes, which hints may push beyond 64 bits.
    database_blocks: u128,
}

impl SmallBypass {
    /// Admits once the database exceeds `dram_blocks`.
    pub fn new(dram_blocks: u64) -> Self {
        SmallBypass { dram_blocks, sizes: HashMap::default(), latest: None, database_blocks: 0 }
    }

    #[inline]
    fn grow(&mut self, relation: Option<Relation>, blocks: u64) {
        if self.latest.is_some_and(|(latest, size)| latest == relation && blocks <= size) {
            return;
        }
        let size = self.sizes.entry(relation).or_insert(0);
        self.database_blocks += u128::from(blocks.saturating_sub(*size));
        *size = blocks.max(*size);
        self.latest = Some((relation, *size));
    }
}

impl Admission for SmallBypass {
    fn look_up(&mut self, access: Access, _: bool) {
        self.grow(access.relation, access.offset.saturating_add(1));
    }

    fn admits(&mut self, _: Access, _: Occupancy) -> bool {
        self.database_blocks > u128::from(self.dram_blocks)
    }

    fn hint(&mut self, hint: Hint<'_>) {
        if let Hint::RelationSize { relation, blocks } = hint {
            self.latest = None;
            let size = self.sizes.insert(Some(relation), blocks).unwrap_or(0);
            self.database_blocks = self.database_blocks - u128::from(size) + u128::from(blocks);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::SmallBypass;
    use crate::policy::admission::{Admission, Occupancy};
    use crate::policy::{Access, Hint, Relation};

    #[test]
    fn nothing_enters_before_the_database_outgrows_memory() {
        let occupancy = Occupancy { full: false, coldest: None };
        let mut admission = SmallBypass::new(100);
        let access = Access::read(1).of(Relation(1), 59);
        admission.look_up(access, false);
        assert!(!admission.admits(access, occupancy));
        admission.hint(Hint::RelationSize { relation: Relation(2), blocks: 40 });
        assert!(!admission.admits(access, occupancy), "100 blocks fit");
        admission.look_up(Access::read(2).of(Relation(2), 40), false);
        assert!(admission.admits(access, occupancy));
        admission.hint(Hint::RelationSize { relation: Relation(2), blocks: 0 });
        assert!(!admission.admits(access, occupancy), "a relation was dropped");
        for relation in 3..6 {
            admission.hint(Hint::RelationSize { relation: Relation(relation), blocks: u64::MAX });
        }
        assert!(admission.admits(access, occupancy), "larger than 64 bits hold");
    }
}
