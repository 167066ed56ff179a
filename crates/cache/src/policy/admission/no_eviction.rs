//! No eviction: admits while a slot is free (NVCache, table 1).

use super::{Admission, Occupancy};
use crate::policy::Access;

/// Refuses blocks that would displace others. Slots become free by invalidation alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoEviction;

impl Admission for NoEviction {
    fn admits(&mut self, _: Access, occupancy: Occupancy) -> bool {
        !occupancy.full
    }

    /// The last free slot may be in the middle of a request.
    fn is_by_request(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::NoEviction;
    use crate::policy::admission::{Applies, Filtered};
    use crate::policy::{Access, Lru, Policy, Slot};

    #[test]
    fn a_full_cache_admits_again_after_an_invalidation_alone() {
        let mut policy = Filtered::new(Lru::new(2), 2, vec![(Applies::Both, Box::new(NoEviction))]);
        let mut admits = |access: Access, slot: Option<u32>| {
            policy.miss(access);
            assert_eq!(policy.admits(access), slot.is_some(), "{access:?}");
            if let Some(slot) = slot {
                policy.insert(access, Slot(slot));
            }
        };
        let continued = |block| Access { continues: true, ..Access::read(block) };
        admits(Access::read(1), Some(0));
        admits(continued(2), Some(1));
        admits(continued(3), None);
        admits(Access::write(4), None);
        policy.remove(Slot(0));
        policy.miss(Access::read(3));
        assert!(policy.admits(Access::read(3)));
    }
}
