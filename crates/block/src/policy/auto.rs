//! The selector: the policy of several that has the fewest misses now, found and followed by shadow caches.
//!
//! No eviction policy is best for all traces, nor for all hours of one. Every candidate is an [`expert`]: it runs beside the
//! cache with no bytes, and says what it would keep (Subramanian, Smaragdakis and Loh, "Adaptive Caches: Effective
//! Shaping of Cache Behavior to Workloads", MICRO 2006, where shadow directories decide between two policies). One of them
//! is followed: a block is admitted if that one has just admitted it, and what leaves for it is a *stray*, a
//! block of the cache that the one followed has given up. There always is one when the cache is full, for the cache then has a
//! block fewer in common with the expert than the expert has blocks.
//!
//! **When to switch.** Each candidate has an advantage: the misses by which it undercut the one followed, summed up, and never
//! below zero. What a switch can cost at most is known, for it is the number of the candidate's strays: as many
//! blocks of its own are missing in the cache. A candidate is followed as soon as its advantage has paid for that. Then the
//! misses from switching too soon and those from waiting too long are in balance, as in the problem of renting skis
//! (Karlin, Manasse, Rudolph and Sleator, "Competitive Snoopy Caching", 1988). [`NOISE`] misses more are asked
//! for, so that candidates which do alike do not take turns.
//!
//! **How.** Nothing moves and nothing is forgotten: the candidate has always known what it would know. Its strays leave one
//! for one with the blocks that come in, the one that it gave up first before the others.
//!
//! **What it costs.** Up to [`EXACT_BLOCKS_MAX`] slots every candidate is an expert all the time: up to 200 bytes for
//! each slot and candidate, 85 MiB at most, and a look-up is one of each candidate's. A larger cache has candidates
//! watched in [`shadow`]s of [`SAMPLED_BLOCKS`] slots by a sample of its blocks, and two experts at most: the one followed, and a
//! challenger, which begins when its advantage in the sample comes to [`CHALLENGE`] of the capacity and can be followed after
//! two capacities of look-ups. No look-up takes more than a constant number of steps besides the policies' own.
//!
//! **Measured** on the 38 pairs of a shared trace and a size, `auto` misses 2.6 % more than the best of its candidates at the
//! worst, 0.4 % in the mean, and in the mean over all pairs less than each of them. On traces that are short against the cache
//! it is further behind (`docs/policies.md`).
//!
//! Two goals: `auto` wants hits. `heuristicdb` is among its candidates once a query has been told. `auto-thrifty` wants few writes to
//! the device: its candidates filter what they admit, and admissions beyond [`QUOTA`] of what LRU would admit are charged dearly. A
//! candidate may save its quota up for a capacity of admissions: a [ration](super::Ration) is kept over thousands of look-ups, not
//! over the few between two comparisons. Where the working set drifts, a ration costs several times LRU's misses. LRU is a candidate,
//! too, and is charged as the others are; while it is followed the quota is given up, and all candidates of `auto` are watched.

mod expert;
mod shadow;

use std::collections::HashMap;

use expert::{Expert, Held};
use foldhash::fast::FixedState;
use shadow::{Change, Shadow};

use super::sample::Sample;
use super::{Access, BlockTable, Hint, Name, Policy, Relation, Settings, Slot};

/// The largest cache that has all candidates watched at its own size.
const EXACT_BLOCKS_MAX: usize = 1 << 16;
/// The slots of a shadow that watches a sample.
const SAMPLED_BLOCKS: usize = 1 << 13;
/// Look-ups of shadows from one comparison of what they did to the next.
const COMPARED_AFTER: u64 = 128;
/// The advantage, in misses, that says nothing.
const NOISE: f64 = 128.0;
/// The advantage in a sample that makes a candidate the challenger, as a part of the capacity.
const CHALLENGE: f64 = 0.1;
/// Look-ups after which a challenger may be followed, in multiples of the capacity.
const COLD_CAPACITIES: u64 = 2;
/// What a candidate of `auto-thrifty` may admit, in multiples of LRU's admissions, without being charged.
const QUOTA: f64 = 0.33;
/// What a candidate may save of that for later, in multiples of the capacity.
const SAVED_MAX: f64 = 1.0;
/// What an admission beyond the quota costs, in misses.
const ADMISSION_COST: f64 = 3.0;

/// When a candidate is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Watched {
    Always,
    /// Once a query has been told.
    WithQueries,
    /// While the quota is given up.
    WithoutQuota,
}

/// What the selector is to achieve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// As few misses as possible.
    Hits,
    /// Few admissions, at few more misses.
    FewWrites,
}

impl Goal {
    /// The first is followed until another proves better.
    fn candidates(self) -> &'static [(&'static str, Watched)] {
        match self {
            Goal::Hits => &[
                ("w-tinylfu", Watched::Always),
                ("s3-fifo", Watched::Always),
                ("lru", Watched::Always),
                ("arc", Watched::Always),
                ("mq", Watched::Always),
                ("heuristicdb", Watched::WithQueries),
            ],
            Goal::FewWrites => &[
                // Less than the quota each, since what a switch brings in is admitted beside their rations.
                ("ration:0.305+w-tinylfu", Watched::Always),
                ("ration:0.305+mq", Watched::Always),
                ("heuristicdb", Watched::Always),
                // The quota is a part of its admissions. It is followed where it pays to give the quota up.
                ("lru", Watched::Always),
                ("w-tinylfu", Watched::WithoutQuota),
                ("s3-fifo", Watched::WithoutQuota),
                ("arc", Watched::WithoutQuota),
                ("mq", Watched::WithoutQuota),
            ],
        }
    }

    /// Whether following this candidate gives the quota up.
    fn gives_up(self, candidate: &Name) -> bool {
        self == Goal::FewWrites && candidate.admissions() == 0 && candidate.eviction() != "heuristicdb"
    }
}

/// How large caches are that are watched in one way or the other.
#[derive(Clone, Copy, Debug)]
struct Limits {
    exact_blocks_max: usize,
    sampled_blocks: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { exact_blocks_max: EXACT_BLOCKS_MAX, sampled_blocks: SAMPLED_BLOCKS }
    }
}

/// What the shadow of a candidate did since shadows were compared.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    misses: u64,
    admissions: u64,
}

impl Counts {
    fn add(&mut self, change: Change) {
        self.misses += u64::from(change != Change::Hit);
        self.admissions += u64::from(matches!(change, Change::Admitted { .. }));
    }
}

/// The policy that watches others; see the module [`policy`](crate::policy) for how to drive it.
///
/// ```
/// use terrace_block::policy::{Auto, Goal, HashedTable};
///
/// let auto = Auto::<HashedTable>::new(100, Goal::Hits, 1);
/// assert_eq!(auto.at_work().to_string(), "w-tinylfu");
/// ```
pub struct Auto<T> {
    goal: Goal,
    seed: u64,
    limits: Limits,
    /// The candidates.
    names: Vec<Name>,
    /// At the size of the cache: all that are watched, or the one followed and the challenger.
    experts: Vec<Option<Expert<T>>>,
    /// Of all that are watched, if experts are not; else empty.
    sampled: Vec<Option<Shadow<T>>>,
    sample: Sample,
    counts: Vec<Counts>,
    /// Of each candidate, in misses of the cache.
    advantages: Vec<f64>,
    /// Admissions of each candidate's quota that it has not made yet.
    saved: Vec<f64>,
    chosen: usize,
    /// Whose admissions the quota is a part of.
    lru: usize,
    /// A query has been told.
    has_queries: bool,
    /// Nothing has been looked up or inserted.
    is_new: bool,
    held: Held<T>,
    capacity: usize,
    /// Counted look-ups since shadows were compared.
    look_ups: u64,
    /// The sizes of relations, as hinted, for policies that are made later.
    sizes: HashMap<Relation, u64, FixedState>,
}

impl<T: BlockTable> Auto<T> {
    /// For `capacity` blocks. `seed` goes to candidates that draw by chance.
    pub fn new(capacity: usize, goal: Goal, seed: u64) -> Self {
        Auto::limited(capacity, goal, seed, Limits::default())
    }

    fn limited(capacity: usize, goal: Goal, seed: u64, limits: Limits) -> Self {
        let parse = |(name, _): &(&str, Watched)| name.parse::<Name>().expect("a candidate is a policy");
        let names: Vec<Name> = goal.candidates().iter().map(parse).collect();
        let mut auto = Auto {
            goal,
            seed,
            limits,
            experts: names.iter().map(|_| None).collect(),
            sampled: Vec::new(),
            sample: Sample::new(capacity, capacity),
            counts: vec![Counts::default(); names.len()],
            advantages: vec![0.0; names.len()],
            saved: vec![0.0; names.len()],
            chosen: 0,
            lru: names.iter().position(|name| name.eviction() == "lru").expect("a candidate"),
            has_queries: false,
            is_new: true,
            names,
            held: Held::new(capacity),
            capacity,
            look_ups: 0,
            sizes: HashMap::default(),
        };
        auto.begin(auto.chosen);
        auto.sample_if_large();
        auto.watch();
        auto
    }

    /// The name of the policy that is followed.
    pub fn at_work(&self) -> &Name {
        &self.names[self.chosen]
    }

    fn is_exact(&self) -> bool {
        self.capacity <= self.limits.exact_blocks_max
    }

    fn shadow(&self, index: usize, capacity: usize) -> Shadow<T> {
        let settings = Settings { seed: self.seed, ..Settings::new(capacity) };
        let mut shadow = Shadow::new(self.names[index].boxed::<T>(&settings), capacity);
        for (&relation, &blocks) in &self.sizes {
            shadow.hint(Hint::RelationSize { relation, blocks });
        }
        shadow
    }

    /// Makes room for shadows of a sample, if candidates are not experts.
    fn sample_if_large(&mut self) {
        self.sampled.clear();
        if !self.is_exact() {
            self.sample = Sample::new(self.capacity, self.limits.sampled_blocks);
            self.sampled.extend(self.names.iter().map(|_| None));
        }
    }

    /// The quota is given up now.
    fn has_given_up(&self) -> bool {
        self.goal.gives_up(&self.names[self.chosen])
    }

    fn is_watched(&self, index: usize) -> bool {
        match self.goal.candidates()[index].1 {
            Watched::Always => true,
            Watched::WithQueries => self.has_queries,
            Watched::WithoutQuota => self.has_given_up(),
        }
    }

    /// Begins what is to be watched from now on, and lets go what is not any more.
    fn watch(&mut self) {
        for index in 0..self.names.len() {
            let is_watched = self.is_watched(index);
            if !self.is_exact() {
                match &self.sampled[index] {
                    None if is_watched => {
                        self.sampled[index] = Some(self.shadow(index, self.sample.capacity));
                        self.saved[index] = 0.0;
                    }
                    Some(_) if !is_watched => self.sampled[index] = None,
                    _ => {}
                }
            } else if is_watched && self.experts[index].is_none() {
                self.begin(index);
                self.saved[index] = 0.0;
            }
            if !is_watched {
                self.experts[index] = None;
                self.advantages[index] = 0.0;
            }
        }
    }

    fn leader(&self) -> &Expert<T> {
        self.experts[self.chosen].as_ref().expect("what is followed is an expert")
    }

    fn leader_mut(&mut self) -> &mut Expert<T> {
        self.experts[self.chosen].as_mut().expect("what is followed is an expert")
    }

    fn experts_mut(&mut self) -> impl Iterator<Item = &mut Expert<T>> {
        self.experts.iter_mut().flatten()
    }

    fn look_up(&mut self, access: Access) {
        self.is_new = false;
        let is_exact = self.sampled.is_empty();
        for (expert, counts) in self.experts.iter_mut().zip(&mut self.counts) {
            let Some(expert) = expert else { continue };
            let change = expert.look_up(access, &self.held);
            if is_exact {
                counts.add(change);
            }
        }
        if !is_exact {
            if !self.sample.has(access.block) {
                return;
            }
            for (shadow, counts) in self.sampled.iter_mut().zip(&mut self.counts) {
                if let Some(shadow) = shadow {
                    counts.add(shadow.look_up(access));
                }
            }
        }
        self.look_ups += 1;
        if self.look_ups >= COMPARED_AFTER {
            self.look_ups = 0;
            self.compare();
        }
    }

    /// What a candidate's shadow did since shadows were compared, in misses: what it admitted beyond its quota counts as some.
    fn cost(&mut self, candidate: usize) -> f64 {
        let counts = self.counts[candidate];
        let misses = counts.misses as f64;
        match self.goal {
            Goal::Hits => misses,
            Goal::FewWrites => {
                let lru = self.counts[self.lru].admissions as f64;
                let slots = if self.is_exact() { self.capacity } else { self.sample.capacity };
                let saved_max = SAVED_MAX * slots as f64;
                let saved = &mut self.saved[candidate];
                // Over as long as a policy may take to keep its quota, not over the few look-ups since the last time.
                *saved = (*saved + QUOTA * lru - counts.admissions as f64).min(saved_max);
                let beyond = (-*saved).max(0.0);
                *saved = saved.max(0.0);
                misses + ADMISSION_COST * beyond
            }
        }
    }

    fn compare(&mut self) {
        let costs: Vec<f64> = (0..self.advantages.len()).map(|candidate| self.cost(candidate)).collect();
        // Misses of the cache for each that was counted.
        let scale = if self.is_exact() { 1.0 } else { self.capacity as f64 / self.sample.capacity as f64 };
        for (index, cost) in costs.iter().enumerate() {
            if self.is_watched(index) {
                let advantage = self.advantages[index] + scale * (costs[self.chosen] - cost);
                self.advantages[index] = advantage.max(0.0);
            }
        }
        self.counts.fill(Counts::default());
        let advantages = &self.advantages;
        let pays = |candidate: &usize| {
            let expert = self.experts[*candidate].as_ref().filter(|expert| expert.is_ready());
            expert
                .is_some_and(|expert| advantages[*candidate] > NOISE * scale.sqrt() + expert.strays() as f64)
        };
        let by_advantage = |a: &usize, b: &usize| advantages[*a].total_cmp(&advantages[*b]);
        match (0..advantages.len()).filter(pays).max_by(by_advantage) {
            Some(best) => self.follow(best),
            None if !self.is_exact() => self.challenge(),
            None => {}
        }
    }

    /// Follows a candidate that is ready.
    fn follow(&mut self, to: usize) {
        let from = std::mem::replace(&mut self.chosen, to);
        if !self.is_exact() {
            self.experts[from] = None;
        }
        self.advantages.fill(0.0);
        self.watch();
    }

    /// Lets a challenger go that has no advantage any more; without one, the candidate with the greatest begins.
    fn challenge(&mut self) {
        let challenger =
            (0..self.names.len()).find(|&index| index != self.chosen && self.experts[index].is_some());
        match challenger {
            Some(index) if self.advantages[index] > 0.0 => {}
            Some(index) => self.experts[index] = None,
            None => {
                let by_advantage = |a: &usize, b: &usize| self.advantages[*a].total_cmp(&self.advantages[*b]);
                let best = (0..self.advantages.len()).max_by(by_advantage).unwrap_or(self.chosen);
                if self.advantages[best] > CHALLENGE * self.capacity as f64 {
                    self.begin(best);
                }
            }
        }
    }

    /// Makes an expert of a candidate. If the cache is at work already it begins late.
    fn begin(&mut self, index: usize) {
        let shadow = self.shadow(index, self.capacity);
        let cold = COLD_CAPACITIES * self.capacity as u64;
        self.experts[index] = Some(match self.is_new {
            true => Expert::new(shadow, self.capacity),
            false => Expert::late(shadow, self.held.slots(), cold),
        });
    }

    /// The block in `slot` leaves the cache.
    fn leaves(&mut self, slot: Slot) {
        self.experts_mut().for_each(|expert| expert.settle(slot));
        self.held.remove(slot);
    }
}

impl<T: BlockTable> Policy for Auto<T> {
    fn hit(&mut self, _: Slot, access: Access) {
        self.look_up(access);
    }

    fn miss(&mut self, access: Access) {
        self.look_up(access);
    }

    fn admits(&mut self, access: Access) -> bool {
        self.leader().shadow.has(access.block)
    }

    fn victim(&mut self, access: Access) -> Option<Slot> {
        self.held.earliest()?;
        loop {
            if let Some(slot) = self.leader().first_stray() {
                self.leaves(slot);
                return Some(slot);
            }
            // Asked for more than one victim, or with slots free: the expert gives up blocks until one is of the cache.
            let block = self.leader_mut().shadow.evict(access)?;
            if let Some(slot) = self.held.slot(block) {
                self.leader_mut().stray(slot);
            }
        }
    }

    fn coldest(&self) -> Option<Slot> {
        let leader = self.leader();
        let coldest = || leader.shadow.coldest().and_then(|block| self.held.slot(block));
        leader.first_stray().or_else(coldest).or_else(|| self.held.earliest())
    }

    fn insert(&mut self, access: Access, slot: Slot) {
        self.is_new = false;
        self.held.insert(access.block, slot);
        for expert in self.experts_mut() {
            if !expert.shadow.has(access.block) {
                expert.stray(slot);
            }
        }
    }

    /// The shadows take it as restored, too: a candidate need not have looked it up, nor pay for it.
    fn restore(&mut self, access: Access, slot: Slot, is_hit: bool) {
        self.experts_mut().for_each(|expert| expert.shadow.restore(access, is_hit));
        if self.sample.has(access.block) {
            self.sampled.iter_mut().flatten().for_each(|shadow| shadow.restore(access, is_hit));
        }
        self.insert(access, slot);
    }

    fn renamed(&mut self, slot: Slot, access: Access) {
        let from = self.held.block(slot);
        self.held.rename(slot, access.block);
        for expert in self.experts.iter_mut().flatten() {
            expert.shadow.renamed(from, access);
            if expert.shadow.has(access.block) {
                expert.settle(slot);
            }
        }
        let is_sampled = self.sample.has(access.block);
        for shadow in self.sampled.iter_mut().flatten() {
            match is_sampled {
                true => shadow.renamed(from, access),
                false => shadow.remove(from),
            }
        }
    }

    /// The shadows have slots of their own: for them nothing has happened.
    fn moved(&mut self, from: Slot, to: Slot, access: Access) {
        self.leaves(from);
        self.insert(access, to);
    }

    fn remove(&mut self, slot: Slot) {
        let block = self.held.block(slot);
        self.leaves(slot);
        self.experts_mut().for_each(|expert| expert.shadow.remove(block));
        self.sampled.iter_mut().flatten().for_each(|shadow| shadow.remove(block));
    }

    fn hint(&mut self, hint: Hint<'_>) {
        match hint {
            Hint::RelationSize { relation, blocks } => _ = self.sizes.insert(relation, blocks),
            Hint::QueryBegins { .. } if !self.has_queries => {
                self.has_queries = true;
                self.watch();
            }
            _ => {}
        }
        self.experts_mut().for_each(|expert| expert.shadow.hint(hint));
        self.sampled.iter_mut().flatten().for_each(|shadow| shadow.hint(hint));
    }

    fn resize(&mut self, capacity: usize) {
        self.capacity = capacity;
        self.held.grow(capacity);
        for expert in self.experts.iter_mut().flatten() {
            expert.resize(capacity, &self.held);
        }
        if !self.is_exact() {
            let chosen = self.chosen;
            let others = self.experts.iter_mut().enumerate().filter(|(index, _)| *index != chosen);
            others.for_each(|(_, expert)| *expert = None);
        }
        self.sample_if_large();
        self.watch();
        self.advantages.fill(0.0);
        self.counts.fill(Counts::default());
    }
}

#[cfg(test)]
mod tests;
