//! Admission policies: whether a missed block may get a slot.
//!
//! [`Filtered`] puts [`Admission`]s before an eviction policy: `small-bypass+obp+lru` admits if
//! both filters agree. Every filter sees all lookups, insertions, evictions and invalidations, but
//! decides only about reads, writes or both ([`Applies`]).
//!
//! Decisions are per request ([`Access::continues`]): the answer for the first missed block holds
//! for the others. `sequential` and `no-eviction` decide per block, since one request may be a long
//! run. If threads alternate, a later part of a request may get another request's answer.

mod frequency;
mod no_eviction;
mod obp;
mod probability;
mod ration;
mod sequential;
mod small_bypass;

pub use frequency::Frequency;
pub use no_eviction::NoEviction;
pub(crate) use obp::TARGET;
pub use obp::{LifetimeObp, Obp};
pub use probability::Probability;
pub use ration::Ration;
pub(crate) use ration::SHARE;
pub use sequential::SequentialCutoff;
pub use small_bypass::SmallBypass;

use super::{Access, Hint, Policy, Slot};

/// The cache's state when a missed block requests a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occupancy {
    /// No slot is free: admission evicts.
    pub full: bool,
    /// The probable victim.
    pub coldest: Option<u64>,
}

/// Decides whether blocks enter the cache.
pub trait Admission: Send {
    /// A lookup, before any question for its admission.
    fn look_up(&mut self, access: Access, hit: bool) {
        let _ = (access, hit);
    }

    /// Several hits, oldest first.
    fn hits(&mut self, hits: &[(Slot, Access)]) {
        for &(_, access) in hits {
            self.look_up(access, true);
        }
    }

    /// Whether the missed block may get a slot.
    fn admits(&mut self, access: Access, occupancy: Occupancy) -> bool;

    /// Whether one decision holds for a whole request.
    fn is_by_request(&self) -> bool {
        true
    }

    /// A block got a slot.
    fn inserted(&mut self) {}

    /// A block was evicted or invalidated.
    fn removed(&mut self) {}

    /// A hint from the database.
    fn hint(&mut self, hint: Hint<'_>) {
        let _ = hint;
    }

    /// The new capacity in blocks.
    fn resize(&mut self, capacity: usize) {
        let _ = capacity;
    }
}

/// The accesses that an admission policy decides about; it admits all others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Applies {
    /// Reads and writes.
    #[default]
    Both,
    /// Reads only.
    Reads,
    /// Writes only.
    Writes,
}

impl Applies {
    fn to(self, access: Access) -> bool {
        match self {
            Applies::Both => true,
            Applies::Reads => !access.write,
            Applies::Writes => access.write,
        }
    }
}

/// An eviction policy behind admission policies.
///
/// ```
/// use terrace_cache::policy::{Access, Applies, Filtered, Lru, Policy, Probability};
///
/// let never = Box::new(Probability::new(0.0, 1));
/// let mut policy = Filtered::new(Lru::new(10), 10, vec![(Applies::Reads, never)]);
/// assert!(!policy.admits(Access::read(1)));
/// assert!(policy.admits(Access::write(1)));
/// ```
pub struct Filtered<P> {
    eviction: P,
    admissions: Vec<(Applies, Box<dyn Admission>)>,
    blocks: Vec<u64>,
    resident: usize,
    capacity: usize,
    /// The admissions' answer for the last request, if asked.
    answer: Option<bool>,
}

impl<P: Policy> Filtered<P> {
    /// `eviction` for `capacity` blocks, behind `admissions`.
    pub fn new(eviction: P, capacity: usize, admissions: Vec<(Applies, Box<dyn Admission>)>) -> Self {
        Filtered { eviction, admissions, blocks: vec![0; capacity], resident: 0, capacity, answer: None }
    }

    /// Asks the admissions that decide by request, or by block.
    fn ask(&mut self, access: Access, by_request: bool) -> bool {
        let coldest = self.eviction.coldest().map(|slot| self.blocks[slot.index()]);
        let occupancy = Occupancy { full: self.resident >= self.capacity, coldest };
        let asked = self.admissions.iter_mut().filter(|(applies, _)| applies.to(access));
        let mut asked = asked.filter(|(_, admission)| admission.is_by_request() == by_request);
        asked.all(|(_, admission)| admission.admits(access, occupancy))
    }

    /// Clears the answer if another request begins.
    #[inline]
    fn note_request(&mut self, begins: bool) {
        if begins {
            self.answer = None;
        }
    }

    fn each(&mut self, mut tell: impl FnMut(&mut dyn Admission)) {
        for (_, admission) in &mut self.admissions {
            tell(admission.as_mut());
        }
    }
}

impl<P: Policy> Policy for Filtered<P> {
    fn hit(&mut self, slot: Slot, access: Access) {
        self.note_request(!access.continues);
        self.each(|admission| admission.look_up(access, true));
        self.eviction.hit(slot, access);
    }

    fn hits(&mut self, hits: &[(Slot, Access)]) {
        self.note_request(hits.iter().any(|(_, access)| !access.continues));
        self.each(|admission| admission.hits(hits));
        self.eviction.hits(hits);
    }

    fn miss(&mut self, access: Access) {
        self.note_request(!access.continues);
        self.each(|admission| admission.look_up(access, false));
        self.eviction.miss(access);
    }

    fn admits(&mut self, access: Access) -> bool {
        let answer = match self.answer {
            Some(answer) if access.continues => answer,
            _ => self.ask(access, true),
        };
        self.answer = Some(answer);
        answer && self.ask(access, false) && self.eviction.admits(access)
    }

    fn victim(&mut self, access: Access) -> Option<Slot> {
        let slot = self.eviction.victim(access)?;
        self.resident -= 1;
        self.each(|admission| admission.removed());
        Some(slot)
    }

    fn coldest(&self) -> Option<Slot> {
        self.eviction.coldest()
    }

    fn insert(&mut self, access: Access, slot: Slot) {
        self.resident += 1;
        self.blocks[slot.index()] = access.block;
        self.each(|admission| admission.inserted());
        self.eviction.insert(access, slot);
    }

    fn restore(&mut self, access: Access, slot: Slot, is_hit: bool) {
        self.resident += 1;
        self.blocks[slot.index()] = access.block;
        self.eviction.restore(access, slot, is_hit);
    }

    fn remove(&mut self, slot: Slot) {
        self.resident -= 1;
        self.each(|admission| admission.removed());
        self.eviction.remove(slot);
    }

    fn hint(&mut self, hint: Hint<'_>) {
        self.each(|admission| admission.hint(hint));
        self.eviction.hint(hint);
    }

    fn renamed(&mut self, slot: Slot, access: Access) {
        self.blocks[slot.index()] = access.block;
        self.eviction.renamed(slot, access);
    }

    fn moved(&mut self, from: Slot, to: Slot, access: Access) {
        self.blocks[to.index()] = access.block;
        self.eviction.moved(from, to, access);
    }

    fn resize(&mut self, capacity: usize) {
        self.capacity = capacity;
        self.blocks.resize(capacity.max(self.blocks.len()), 0);
        self.each(|admission| admission.resize(capacity));
        self.eviction.resize(capacity);
    }
}
