//! W-TinyLFU: a small LRU window in front of a segmented LRU, and a frequency sketch that decides whether a block that
//! leaves the window is worth more than the one the main part would give up (Einziger, Friedman and Manes 2017). The
//! window's share follows the hit ratio (Einziger, Eytan, Friedman and Manes, "Adaptive Software Cache Management",
//! Middleware 2018), with the steps of Caffeine, which is the authors' own implementation.
//!
//! ```text
//! new block -> WINDOW -> candidate -> PROBATION -> hit -> PROTECTED -> back of PROBATION
//!                                '-> leaves, if the last of PROBATION was used more often
//! ```
//!
//! The climber looks at the hit ratio once in ten times the capacity of look-ups. If it got better it goes on in the same
//! direction, else it turns round; steps shrink by 2 % a time and start again at 6.25 % of the capacity when the hit
//! ratio jumps by 5 points.

use super::lists::Lists;
use super::sketch::Sketch;
use super::{Access, Policy, Slot};

const WINDOW: usize = 0;
const PROBATION: usize = 1;
const PROTECTED: usize = 2;

/// A first step of the climber, as a part of the capacity.
const STEP: f64 = 0.0625;
const STEP_DECAY: f64 = 0.98;
/// A change of the hit ratio that starts the climber anew.
const RESTART: f64 = 0.05;
/// The part of the main cache that is protected.
const PROTECTED_SHARE: f64 = 0.8;
/// Blocks moved between the parts at one look-up.
const MOVES_MAX: usize = 1000;
/// A candidate that is used that often may win against a victim with as many, by chance, so that
/// nobody can lock blocks out by making hashes collide.
const WARM: u8 = 6;

/// W-TinyLFU with an adaptive window; see the module [`policy`](crate::policy) for how to drive it.
///
/// ```
/// use terrace_block::policy::{Access, Policy, Slot, WTinyLfu};
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
    lists: Lists<3>,
    blocks: Vec<u64>,
    list_of: Vec<u8>,
    sketch: Sketch,
    capacity: usize,
    window_target: usize,
    protected_target: usize,
    climber: Climber,
    random: u64,
}

#[derive(Clone, Debug)]
struct Climber {
    hits: u64,
    look_ups: u64,
    last_hit_ratio: f64,
    /// Blocks by which the window grows next; negative shrinks it.
    step: f64,
    /// What is still to be moved of the last step.
    pending: i64,
}

impl WTinyLfu {
    /// For `capacity` blocks. `seed` decides the rare draws between blocks of equal frequency.
    pub fn new(capacity: usize, seed: u64) -> WTinyLfu {
        let mut policy = WTinyLfu {
            lists: Lists::new(0),
            blocks: Vec::new(),
            list_of: Vec::new(),
            sketch: Sketch::new(capacity),
            capacity: 0,
            window_target: 0,
            protected_target: 0,
            climber: Climber { hits: 0, look_ups: 0, last_hit_ratio: 0.0, step: 0.0, pending: 0 },
            random: seed | 1,
        };
        policy.resize(capacity);
        policy
    }

    fn push_front(&mut self, list: usize, slot: u32) {
        self.list_of[slot as usize] = list as u8;
        self.lists.push_front(list, slot);
    }

    fn count(&mut self, block: u64, hit: bool) {
        // What the look-ups before this one decided, now that their blocks have found their places.
        if self.climber.look_ups >= 10 * self.capacity as u64 {
            self.climb();
        }
        if self.climber.pending != 0 {
            self.move_window();
        }
        self.sketch.increment(block);
        self.climber.hits += u64::from(hit);
        self.climber.look_ups += 1;
    }

    fn climb(&mut self) {
        let climber = &mut self.climber;
        let hit_ratio = climber.hits as f64 / climber.look_ups as f64;
        let change = hit_ratio - climber.last_hit_ratio;
        let amount = if change >= 0.0 { climber.step } else { -climber.step };
        climber.step = if change.abs() >= RESTART {
            (STEP * self.capacity as f64).copysign(amount)
        } else {
            STEP_DECAY * amount
        };
        climber.last_hit_ratio = hit_ratio;
        climber.pending = amount as i64;
        (climber.hits, climber.look_ups) = (0, 0);
    }

    /// Gives blocks of the main part to the window, or takes some from it.
    fn move_window(&mut self) {
        let pending = std::mem::take(&mut self.climber.pending);
        if pending > 0 {
            let quota = (pending as usize).min(self.protected_target);
            let moved = quota.min(MOVES_MAX);
            self.protected_target -= moved;
            self.window_target += moved;
            self.demote();
            for _ in 0..moved {
                let Some(slot) = self.lists.pop_back(PROBATION).or_else(|| self.lists.pop_back(PROTECTED))
                else {
                    break;
                };
                self.push_front(WINDOW, slot);
            }
            self.climber.pending = (quota - moved) as i64;
        } else {
            let quota = (pending.unsigned_abs() as usize).min(self.window_target.saturating_sub(1));
            let moved = quota.min(MOVES_MAX);
            self.window_target -= moved;
            self.protected_target += moved;
            for _ in 0..moved {
                let Some(slot) = self.lists.pop_back(WINDOW) else { break };
                self.push_front(PROBATION, slot);
            }
            self.climber.pending = -((quota - moved) as i64);
        }
    }

    /// Protected blocks above the target go back on probation.
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
        self.lists.back(PROBATION).or_else(|| self.lists.back(PROTECTED))
    }
}

impl Policy for WTinyLfu {
    fn hit(&mut self, slot: Slot, access: Access) {
        self.count(access.block, true);
        let list = self.list_of[slot.index()] as usize;
        self.lists.unlink(list, slot.0);
        self.push_front(if list == WINDOW { WINDOW } else { PROTECTED }, slot.0);
        self.demote();
    }

    fn miss(&mut self, access: Access) {
        self.count(access.block, false);
    }

    fn victim(&mut self, _: Access) -> Option<Slot> {
        // The new block goes to the window's front; what that pushes out competes for a place in the main part.
        let candidate = self.lists.back(WINDOW).filter(|_| self.lists.len(WINDOW) >= self.window_target);
        let victim = match (candidate, self.main_victim()) {
            (Some(candidate), Some(victim)) if self.wins(candidate, victim) => {
                self.lists.unlink(WINDOW, candidate);
                self.push_front(PROBATION, candidate);
                victim
            }
            (Some(candidate), _) => candidate,
            (None, Some(victim)) => victim,
            (None, None) => self.lists.back(WINDOW)?,
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
    }

    fn remove(&mut self, slot: Slot) {
        self.lists.unlink(self.list_of[slot.index()] as usize, slot.0);
    }

    fn renamed(&mut self, slot: Slot, access: Access) {
        self.blocks[slot.index()] = access.block;
    }

    fn resize(&mut self, capacity: usize) {
        self.capacity = capacity;
        let main = (capacity as f64 * 0.99) as usize;
        self.window_target = (capacity - main).max(1);
        self.protected_target = (main as f64 * PROTECTED_SHARE) as usize;
        self.sketch = Sketch::new(capacity);
        self.climber.step = -STEP * capacity as f64;
        self.climber.pending = 0;
        self.lists.grow(capacity);
        let slots = capacity.max(self.blocks.len());
        self.blocks.resize(slots, 0);
        self.list_of.resize(slots, WINDOW as u8);
    }
}
