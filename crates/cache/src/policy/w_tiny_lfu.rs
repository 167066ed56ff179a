//! W-TinyLFU: an LRU window, a segmented LRU, and a frequency sketch between them.
//!
//! A block leaving the window must beat the main part's victim (Einziger, Friedman and Manes,
//! "TinyLFU", ACM Transactions on Storage 2017). The window adapts as in "Adaptive Software Cache
//! Management" (Middleware 2018), but without hill climbing, which confuses changes of load with
//! the effect of a step.
//!
//! ```text
//! new block -> WINDOW -> candidate -> PROBATION -> LAST -> leaves
//!                            |            '---------'--> hit -> PROTECTED -> front of PROBATION
//!                            '-> ghost, if the last of the main part was used more often
//! ```
//!
//! **Window size.** Both sides are measured at once, at their border (marginal hits, as in
//! "Cliffhanger", NSDI 2016). A miss on one of the last refused candidates, within a *margin*, is a
//! hit lost by a small window: it grows by a block. A hit in LAST, the margin at the main part's
//! end, shrinks it by a block. New blocks move the parts to their targets.
//!
//! **The sketch** begins when the cache is full (in Caffeine, at a half). Earlier blocks would have
//! higher counts than those that must compete.

use super::lists::Lists;
use super::sketch::Sketch;
use super::{Access, Policy, Slot};

const WINDOW: usize = 0;
const PROBATION: usize = 1;
/// The end of PROBATION: the main part's margin.
const LAST: usize = 2;
const PROTECTED: usize = 3;

/// Initial fraction of the window.
const WINDOW_SHARE: f64 = 0.01;
/// Maximum fraction of the window.
const WINDOW_SHARE_MAX: f64 = 0.8;
/// The margin as a fraction of the capacity.
const MARGIN_SHARE: f64 = 0.0625;
/// Capacity for ghosts, in margins; collisions replace.
const GHOST_MARGINS: usize = 4;
/// The protected fraction of the main part.
const PROTECTED_SHARE: f64 = 0.8;
/// Candidates with this frequency may win a tie by chance. Otherwise hash collisions could lock
/// blocks out.
const WARM: u8 = 6;

/// The W-TinyLFU policy with an adaptive window.
///
/// ```
/// use terrace_cache::policy::{Access, Policy, Slot, WTinyLfu};
///
/// let mut policy = WTinyLfu::new(2, 1);
/// policy.insert(Access::read(4), Slot(0));
/// policy.insert(Access::read(5), Slot(1));
/// policy.miss(Access::read(6));
/// assert_eq!(policy.victim(Access::read(6)), Some(Slot(1)));
/// ```
#[derive(Clone, Debug)]
pub struct WTinyLfu {
    /// Most recently used in front.
    lists: Lists<4>,
    blocks: Vec<u64>,
    list_of: Vec<u8>,
    sketch: Sketch,
    /// The cache was full once: counts and adaptation are on.
    was_full: bool,
    capacity: usize,
    margin: usize,
    window_target: usize,
    protected_target: usize,
    ghosts: Ghosts,
    random: u64,
}

impl WTinyLfu {
    /// For `capacity` blocks; `seed` decides rare ties.
    pub fn new(capacity: usize, seed: u64) -> WTinyLfu {
        let mut policy = WTinyLfu {
            lists: Lists::new(0),
            blocks: Vec::new(),
            list_of: Vec::new(),
            sketch: Sketch::new(capacity),
            was_full: false,
            capacity: 0,
            margin: 0,
            window_target: 0,
            protected_target: 0,
            ghosts: Ghosts::new(0),
            random: seed | 1,
        };
        policy.resize(capacity);
        policy
    }

    fn push_front(&mut self, list: usize, slot: u32) {
        self.list_of[slot as usize] = list as u8;
        self.lists.push_front(list, slot);
    }

    #[inline]
    fn count(&mut self, block: u64) {
        if !self.was_full {
            let lists = [WINDOW, PROBATION, LAST, PROTECTED];
            let resident: usize = lists.into_iter().map(|list| self.lists.len(list)).sum();
            if resident < self.capacity {
                return;
            }
            self.was_full = true;
        }
        self.sketch.increment(block);
    }

    /// Sets the window's target, clamped.
    fn set_window(&mut self, blocks: usize) {
        let max = (self.capacity as f64 * WINDOW_SHARE_MAX) as usize;
        self.window_target = blocks.clamp(1, max.max(1));
        self.protected_target = ((self.capacity - self.window_target) as f64 * PROTECTED_SHARE) as usize;
    }

    /// Fills LAST up to the margin from the end of PROBATION.
    fn refill(&mut self) {
        while self.lists.len(LAST) < self.margin {
            let Some(slot) = self.lists.pop_back(PROBATION) else { return };
            self.push_front(LAST, slot);
        }
    }

    /// Moves protected blocks above the target to probation.
    fn demote(&mut self) {
        while self.lists.len(PROTECTED) > self.protected_target {
            let Some(slot) = self.lists.pop_back(PROTECTED) else { return };
            self.push_front(PROBATION, slot);
        }
    }

    fn wins(&mut self, candidate: u32, victim: u32) -> bool {
        let candidate = self.sketch.frequency(self.blocks[candidate as usize]);
        let victim = self.sketch.frequency(self.blocks[victim as usize]);
        if candidate > victim {
            return true;
        }
        if candidate < WARM {
            return false;
        }
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random & 127 == 0
    }

    fn main_victim(&self) -> Option<u32> {
        let lists = [LAST, PROBATION, PROTECTED];
        lists.into_iter().find_map(|list| self.lists.back(list))
    }
}

impl Policy for WTinyLfu {
    fn hit(&mut self, slot: Slot, access: Access) {
        self.count(access.block);
        let list = self.list_of[slot.index()] as usize;
        if list == LAST && self.was_full {
            self.set_window(self.window_target - 1);
        }
        self.lists.unlink(list, slot.0);
        self.push_front(if list == WINDOW { WINDOW } else { PROTECTED }, slot.0);
        self.demote();
        self.refill();
    }

    fn miss(&mut self, access: Access) {
        self.count(access.block);
        if self.ghosts.take(access.block, self.margin) {
            self.set_window(self.window_target + 1);
        }
    }

    fn victim(&mut self, _: Access) -> Option<Slot> {
        // The new block enters the window; the block that leaves it competes for the main part.
        let candidate = self.lists.back(WINDOW).filter(|_| self.lists.len(WINDOW) >= self.window_target);
        let victim = match (candidate, self.main_victim()) {
            (Some(candidate), Some(victim)) => {
                let wins = self.wins(candidate, victim);
                self.ghosts.decided((!wins).then(|| self.blocks[candidate as usize]));
                if wins {
                    self.lists.unlink(WINDOW, candidate);
                    self.push_front(PROBATION, candidate);
                    victim
                } else {
                    candidate
                }
            }
            (candidate, victim) => victim.or(candidate).or_else(|| self.lists.back(WINDOW))?,
        };
        self.remove(Slot(victim));
        Some(Slot(victim))
    }

    fn coldest(&self) -> Option<Slot> {
        self.main_victim().or_else(|| self.lists.back(WINDOW)).map(Slot)
    }

    fn insert(&mut self, access: Access, slot: Slot) {
        self.blocks[slot.index()] = access.block;
        self.push_front(WINDOW, slot.0);
        while self.lists.len(WINDOW) > self.window_target {
            let Some(candidate) = self.lists.pop_back(WINDOW) else { break };
            self.push_front(PROBATION, candidate);
        }
        self.refill();
    }

    fn restore(&mut self, access: Access, slot: Slot, is_hit: bool) {
        // A reopened cache has lost its sketch, but these blocks were used. A running cache has it.
        let uses = if self.was_full { 0 } else { 1 + u32::from(is_hit) };
        (0..uses).for_each(|_| self.sketch.increment(access.block));
        self.insert(access, slot);
        if is_hit {
            self.hit(slot, access);
        }
    }

    fn remove(&mut self, slot: Slot) {
        self.lists.unlink(self.list_of[slot.index()] as usize, slot.0);
    }

    fn renamed(&mut self, slot: Slot, access: Access) {
        self.blocks[slot.index()] = access.block;
    }

    fn moved(&mut self, from: Slot, to: Slot, _: Access) {
        self.blocks[to.index()] = self.blocks[from.index()];
        self.list_of[to.index()] = self.list_of[from.index()];
        self.lists.substitute(from.0, to.0);
    }

    fn resize(&mut self, capacity: usize) {
        let share = match self.capacity {
            0 => WINDOW_SHARE,
            before => self.window_target as f64 / before as f64,
        };
        self.capacity = capacity;
        self.set_window((share * capacity as f64) as usize);
        self.margin = ((MARGIN_SHARE * capacity as f64) as usize).max(1);
        self.ghosts = Ghosts::new(self.margin);
        self.sketch = Sketch::new(capacity);
        self.was_full = false;
        self.lists.grow(capacity);
        let slots = capacity.max(self.blocks.len());
        self.blocks.resize(slots, 0);
        self.list_of.resize(slots, WINDOW as u8);
    }
}

/// Refused candidates by hash, with their numbers: eight bytes each, in a lossy table of fixed
/// size.
#[derive(Clone, Debug)]
struct Ghosts {
    /// Upper half: upper half of the hash. Lower half: the candidate's number, 0 if empty.
    entries: Vec<u64>,
    candidates: u32,
}

impl Ghosts {
    fn new(margin: usize) -> Ghosts {
        Ghosts { entries: vec![0; (GHOST_MARGINS * margin).next_power_of_two()], candidates: 0 }
    }

    /// The entry of `block`, and the stored half of its hash.
    fn position(&self, block: u64) -> (usize, u64) {
        let hash = Sketch::hash(block);
        (hash as usize & (self.entries.len() - 1), hash >> 32 << 32)
    }

    /// Counts a candidate, admitted or `refused`.
    fn decided(&mut self, refused: Option<u64>) {
        self.candidates = self.candidates.wrapping_add(1);
        if let Some(block) = refused {
            let (index, half) = self.position(block);
            self.entries[index] = half | u64::from(self.candidates);
        }
    }

    /// Removes `block`; returns whether it was refused among the last `margin` candidates.
    fn take(&mut self, block: u64, margin: usize) -> bool {
        let (index, half) = self.position(block);
        let entry = self.entries[index];
        if entry == 0 || entry >> 32 << 32 != half {
            return false;
        }
        self.entries[index] = 0;
        (self.candidates.wrapping_sub(entry as u32) as usize) < margin
    }
}

#[cfg(test)]
mod tests {
    use super::{Ghosts, WTinyLfu};
    use crate::policy::conformance::{Cache, Random};
    use crate::policy::{Access, Policy, Slot};

    #[test]
    fn the_window_follows_the_load() {
        const CAPACITY: usize = 1000;
        let mut cache = Cache::new(WTinyLfu::new(CAPACITY, 1), CAPACITY);
        let mut random = Random(7);
        for _ in 0..30_000 {
            cache.access(Access::read(random.skewed(5000)));
        }
        let frequent = cache.policy.window_target;
        // Every block is used twice, 20 others apart: only a longer window hits.
        let mut next = 10_000;
        for _ in 0..30_000 {
            next += 1;
            cache.access(Access::read(next));
            cache.access(Access::read(next - 20));
        }
        let recent = cache.policy.window_target;
        let before = cache.misses;
        for _ in 0..1000 {
            next += 1;
            cache.access(Access::read(next));
            cache.access(Access::read(next - 20));
        }
        assert!(cache.misses - before < 1100, "{} misses with a window of {recent}", cache.misses - before);
        for _ in 0..60_000 {
            cache.access(Access::read(random.skewed(5000)));
        }
        let again = cache.policy.window_target;
        assert!(frequent < 100 && recent > 20 && again < recent, "{frequent}, {recent}, {again}");
    }

    #[test]
    fn a_block_that_gets_another_slot_is_not_counted_for_that() {
        let mut policy = WTinyLfu::new(5, 1);
        policy.resize(4);
        (0..3).for_each(|block| policy.insert(Access::read(block), Slot(block as u32)));
        policy.moved(Slot(2), Slot(3), Access::write(2));
        policy.hit(Slot(3), Access::write(2));
        assert_eq!(policy.sketch.frequency(2), 0, "nothing is counted before the cache is full");
        policy.insert(Access::read(3), Slot(2));
        policy.moved(Slot(3), Slot(4), Access::write(2));
        policy.hit(Slot(4), Access::write(2));
        assert_eq!(policy.sketch.frequency(2), 1);
    }

    #[test]
    fn a_ghost_is_taken_once_and_within_the_margin() {
        let mut ghosts = Ghosts::new(4);
        ghosts.decided(Some(7));
        assert!(!ghosts.take(8, 4));
        assert!(ghosts.take(7, 4));
        assert!(!ghosts.take(7, 4));
        ghosts.decided(Some(7));
        (0..3).for_each(|_| ghosts.decided(None));
        assert!(ghosts.clone().take(7, 4));
        ghosts.decided(None);
        assert!(!ghosts.take(7, 4));
    }
}
