//! A shadow cache: a policy without bytes, to count its misses.

use crate::policy::{Access, BlockTable, Hint, Policy, Slot};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// A resident block.
    Hit,
    /// A miss, not admitted.
    Refused,
    /// An admitted miss, which may have evicted `left`.
    Admitted { left: Option<u64> },
}

pub(super) struct Shadow<T> {
    policy: Box<dyn Policy>,
    slots: T,
    blocks: Vec<u64>,
    free: Vec<u32>,
    resident: usize,
    capacity: usize,
}

impl<T: BlockTable> Shadow<T> {
    pub fn new(policy: Box<dyn Policy>, capacity: usize) -> Self {
        Shadow { policy, slots: T::default(), blocks: Vec::new(), free: Vec::new(), resident: 0, capacity }
    }

    #[inline]
    pub fn has(&self, block: u64) -> bool {
        self.slots.get(block).is_some()
    }

    pub fn look_up(&mut self, access: Access) -> Change {
        if let Some(slot) = self.slots.get(access.block) {
            self.policy.hit(Slot(slot), access);
            return Change::Hit;
        }
        self.policy.miss(access);
        if !self.policy.admits(access) {
            return Change::Refused;
        }
        let left = if self.resident >= self.capacity { self.evict(access) } else { None };
        let slot = self.take_slot();
        self.policy.insert(access, Slot(slot));
        self.enter(access.block, slot);
        Change::Admitted { left }
    }

    fn take_slot(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.blocks.push(0);
            self.blocks.len() as u32 - 1
        })
    }

    fn enter(&mut self, block: u64, slot: u32) {
        self.resident += 1;
        self.blocks[slot as usize] = block;
        self.slots.set(block, slot);
    }

    /// Evicts the policy's victim for `access`.
    pub fn evict(&mut self, access: Access) -> Option<u64> {
        let slot = self.policy.victim(access)?;
        let block = self.blocks[slot.index()];
        self.slots.take(block);
        self.free.push(slot.0);
        self.resident -= 1;
        Some(block)
    }

    pub fn coldest(&self) -> Option<u64> {
        self.policy.coldest().map(|slot| self.blocks[slot.index()])
    }

    pub fn remove(&mut self, block: u64) {
        if let Some(slot) = self.slots.take(block) {
            self.policy.remove(Slot(slot));
            self.free.push(slot);
            self.resident -= 1;
        }
    }

    /// As [`Policy::restore`], without effect on a full shadow.
    pub fn restore(&mut self, access: Access, is_hit: bool) {
        if !self.has(access.block) && self.resident < self.capacity {
            let slot = self.take_slot();
            self.policy.restore(access, Slot(slot), is_hit);
            self.enter(access.block, slot);
        }
    }

    /// As [`Policy::renamed`], from block `from`.
    pub fn renamed(&mut self, from: u64, access: Access) {
        if let Some(slot) = self.slots.take(from) {
            // The new name is free otherwise.
            self.remove(access.block);
            self.policy.renamed(Slot(slot), access);
            self.blocks[slot as usize] = access.block;
            self.slots.set(access.block, slot);
        }
    }

    pub fn hint(&mut self, hint: Hint<'_>) {
        self.policy.hint(hint);
    }

    /// Sets the capacity; calls `left` for evicted blocks.
    pub fn resize(&mut self, capacity: usize, mut left: impl FnMut(u64)) {
        self.capacity = capacity;
        self.policy.resize(capacity);
        while self.resident > capacity {
            // Any access: nothing is inserted.
            match self.evict(Access::read(0)) {
                Some(block) => left(block),
                None => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Change, Shadow};
    use crate::policy::conformance::{Cache, Random};
    use crate::policy::sample::Sample;
    use crate::policy::{Access, HashedTable, Lru};

    #[test]
    fn a_shadow_misses_about_as_often_as_the_cache() {
        const CAPACITY: usize = 20_000;
        let sample = Sample::new(CAPACITY, 2000);
        let mut shadow = Shadow::<HashedTable>::new(Box::new(Lru::new(sample.capacity)), sample.capacity);
        let mut cache = Cache::new(Lru::new(CAPACITY), CAPACITY);
        let (mut random, mut sampled, mut missed) = (Random(3), 0, 0);
        for _ in 0..400_000 {
            let access = Access::read(random.skewed(100_000));
            cache.access(access);
            if sample.has(access.block) {
                sampled += 1;
                missed += u32::from(shadow.look_up(access) != Change::Hit);
            }
        }
        let (shadow, cache) = (f64::from(missed) / f64::from(sampled), cache.misses as f64 / 400_000.0);
        assert!((36_000..44_000).contains(&sampled), "{sampled}");
        assert!((shadow - cache).abs() < 0.02, "shadow {shadow}, cache {cache}");
    }

    #[test]
    fn a_shadow_tells_what_left_and_gives_up_more_when_it_shrinks() {
        let mut shadow = Shadow::<HashedTable>::new(Box::new(Lru::new(3)), 3);
        for block in 0..3 {
            assert_eq!(shadow.look_up(Access::read(block)), Change::Admitted { left: None });
        }
        assert_eq!(shadow.look_up(Access::read(0)), Change::Hit);
        assert_eq!(shadow.look_up(Access::read(3)), Change::Admitted { left: Some(1) });
        shadow.remove(2);
        assert!(!shadow.has(2));
        let mut left = Vec::new();
        shadow.resize(1, |block| left.push(block));
        assert_eq!((left, shadow.has(3)), (vec![0], true));
    }
}
