//! The selector: follows the policy with the fewest misses in shadow caches.
//!
//! Every candidate is an [`expert`]: a policy without bytes that says what it would keep
//! (Subramanian, Smaragdakis and Loh, "Adaptive Caches", MICRO 2006). The cache admits a block if
//! the followed expert just did. Its victim is a *stray*: a block that this expert has given up. A
//! full cache always has one.
//!
//! **When to switch.** A candidate's advantage sums the misses by which it beat the followed one,
//! never below zero. A switch costs at most its number of strays. Once the advantage exceeds that,
//! plus [`NOISE`], the candidate is followed (ski rental: Karlin et al., "Competitive Snoopy
//! Caching", 1988). New blocks then replace strays, the oldest first.
//!
//! **Cost.** Up to [`EXACT_BLOCKS_MAX`] slots every candidate is an expert: up to 200 bytes per
//! slot and candidate, 85 MiB at most. A larger cache uses sampled [`shadow`]s and two experts: the
//! followed one and a challenger, which starts at an advantage of [`CHALLENGE`] of the capacity.
//!
//! **Goals.** `auto` minimises misses (`docs/policies.md`). `auto-thrifty` charges admissions
//! beyond [`QUOTA`] of LRU's; a candidate may save its quota for a capacity of admissions, since a
//! [ration](super::Ration) holds only over thousands of lookups. If the working set drifts, a
//! ration costs several times LRU's misses, so LRU is a candidate too; while it is followed, the
//! quota is off.

mod expert;
mod shadow;

use std::collections::HashMap;

use expert::{Expert, Held};
use foldhash::fast::FixedState;
use shadow::{Change, Shadow};

use super::sample::Sample;
use super::{Access, BlockTable, Hint, Name, Policy, Relation, Settings, Slot};

/// The largest cache with full-size experts.
const EXACT_BLOCKS_MAX: usize = 1 << 16;
/// Slots of a sampled shadow.
const SAMPLED_BLOCKS: usize = 1 << 13;
/// Lookups of shadows between two comparisons.
const COMPARED_AFTER: u64 = 128;
/// The advantage, in misses, treated as noise.
const NOISE: f64 = 128.0;
/// The sampled advantage of a challenger, as a fraction of the capacity.
const CHALLENGE: f64 = 0.1;
/// Lookups until a challenger is ready, in multiples of the capacity.
const COLD_CAPACITIES: u64 = 2;
/// Free admissions in `auto-thrifty`, in multiples of LRU's.
const QUOTA: f64 = 0.33;
/// Most saved admissions, in multiples of the capacity.
const SAVED_MAX: f64 = 1.0;
/// The charge for an admission beyond the quota, in misses.
const ADMISSION_COST: f64 = 3.0;

/// When a candidate competes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Watched {
    Always,
    /// After the first query hint.
    WithQueries,
    /// While the quota is off.
    WithoutQuota,
}

/// Makes a policy from its name.
type Make = fn(&Name, &Settings) -> Box<dyn Policy>;

/// The selector's goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// Fewest misses.
    Hits,
    /// Few admissions, at few more misses.
    FewWrites,
}

impl Goal {
    /// The first is followed initially.
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
                // Less than the quota each, since a switch adds admissions.
                ("ration:0.305+w-tinylfu", Watched::Always),
                ("ration:0.305+mq", Watched::Always),
                ("heuristicdb", Watched::Always),
                // The reference of the quota; followed where the quota does not pay.
                ("lru", Watched::Always),
                ("w-tinylfu", Watched::WithoutQuota),
                ("s3-fifo", Watched::WithoutQuota),
                ("arc", Watched::WithoutQuota),
                ("mq", Watched::WithoutQuota),
            ],
        }
    }

    /// Whether following this candidate turns the quota off.
    fn gives_up(self, candidate: &Name) -> bool {
        self == Goal::FewWrites && candidate.admissions() == 0 && candidate.eviction() != "heuristicdb"
    }
}

/// Bounds of the cache sizes for experts and shadows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    exact_blocks_max: usize,
    sampled_blocks: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { exact_blocks_max: EXACT_BLOCKS_MAX, sampled_blocks: SAMPLED_BLOCKS }
    }
}

/// A shadow's counts since the last comparison.
#[derive(Clone, Copy, Debug, Default)]
struct ExpertCounts {
    misses: u64,
    admissions: u64,
}

impl ExpertCounts {
    fn add(&mut self, change: Change) {
        self.misses += u64::from(change != Change::Hit);
        self.admissions += u64::from(matches!(change, Change::Admitted { .. }));
    }
}

/// A policy that follows the best of several others.
///
/// ```
/// use terrace_cache::policy::{Auto, Goal, HashedTable};
///
/// let auto = Auto::<HashedTable>::new(100, Goal::Hits, 1);
/// assert_eq!(auto.at_work().to_string(), "w-tinylfu");
/// ```
pub struct Auto<T> {
    make: Make,
    goal: Goal,
    seed: u64,
    limits: Limits,
    names: Vec<Name>,
    /// At full size: all candidates, or the followed one and the challenger.
    experts: Vec<Option<Expert<T>>>,
    /// Sampled shadows of all candidates, or empty if experts have full size.
    sampled: Vec<Option<Shadow<T>>>,
    sample: Sample,
    counts: Vec<ExpertCounts>,
    /// By candidate, in misses of the cache.
    advantages: Vec<f64>,
    /// Unspent quota by candidate.
    saved: Vec<f64>,
    chosen: usize,
    /// The candidate whose admissions define the quota.
    lru: usize,
    has_queries: bool,
    /// No lookup or insertion yet.
    is_new: bool,
    held: Held<T>,
    capacity: usize,
    /// Counted lookups since the last comparison.
    look_ups: u64,
    /// Hinted sizes of relations, for policies made later.
    sizes: HashMap<Relation, u64, FixedState>,
}

impl<T: BlockTable> Auto<T> {
    pub(super) fn made_by(make: Make, capacity: usize, goal: Goal, seed: u64, limits: Limits) -> Self {
        let parse = |(name, _): &(&str, Watched)| name.parse::<Name>().expect("a candidate is a policy");
        let names: Vec<Name> = goal.candidates().iter().map(parse).collect();
        let mut auto = Auto {
            make,
            goal,
            seed,
            limits,
            experts: names.iter().map(|_| None).collect(),
            sampled: Vec::new(),
            sample: Sample::new(capacity, capacity),
            counts: vec![ExpertCounts::default(); names.len()],
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

    /// The name of the followed policy.
    pub fn at_work(&self) -> &Name {
        &self.names[self.chosen]
    }

    fn is_exact(&self) -> bool {
        self.capacity <= self.limits.exact_blocks_max
    }

    fn shadow(&self, index: usize, capacity: usize) -> Shadow<T> {
        let settings = Settings { seed: self.seed, ..Settings::new(capacity) };
        let mut shadow = Shadow::new((self.make)(&self.names[index], &settings), capacity);
        for (&relation, &blocks) in &self.sizes {
            shadow.hint(Hint::RelationSize { relation, blocks });
        }
        shadow
    }

    fn sample_if_large(&mut self) {
        self.sampled.clear();
        if !self.is_exact() {
            self.sample = Sample::new(self.capacity, self.limits.sampled_blocks);
            self.sampled.extend(self.names.iter().map(|_| None));
        }
    }

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

    /// Starts and stops candidates.
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

    /// A candidate's misses since the last comparison, plus charges beyond its quota.
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
                // Over as long as a policy may take to meet its quota.
                *saved = (*saved + QUOTA * lru - counts.admissions as f64).min(saved_max);
                let beyond = (-*saved).max(0.0);
                *saved = saved.max(0.0);
                misses + ADMISSION_COST * beyond
            }
        }
    }

    fn compare(&mut self) {
        let costs: Vec<f64> = (0..self.advantages.len()).map(|candidate| self.cost(candidate)).collect();
        // Misses of the cache per counted miss.
        let scale = if self.is_exact() { 1.0 } else { self.capacity as f64 / self.sample.capacity as f64 };
        for (index, cost) in costs.iter().enumerate() {
            if self.is_watched(index) {
                let advantage = self.advantages[index] + scale * (costs[self.chosen] - cost);
                self.advantages[index] = advantage.max(0.0);
            }
        }
        self.counts.fill(ExpertCounts::default());
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

    fn follow(&mut self, to: usize) {
        let from = std::mem::replace(&mut self.chosen, to);
        if !self.is_exact() {
            self.experts[from] = None;
        }
        self.advantages.fill(0.0);
        self.watch();
    }

    /// Drops a challenger without advantage, and starts the best candidate.
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

    /// Makes a candidate an expert, late if the cache is already in use.
    fn begin(&mut self, index: usize) {
        let shadow = self.shadow(index, self.capacity);
        let cold = COLD_CAPACITIES * self.capacity as u64;
        self.experts[index] = Some(match self.is_new {
            true => Expert::new(shadow, self.capacity),
            false => Expert::late(shadow, self.held.slots(), cold),
        });
    }

    fn leaves(&mut self, slot: Slot) {
        self.experts_mut().for_each(|expert| expert.unlist(slot));
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
            // With more than one victim, or free slots, the expert gives up blocks until the cache
            // holds one of them.
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

    /// Restores in the shadows too, without a lookup or a charge.
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
                expert.unlist(slot);
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

    /// Shadows have their own slots, so nothing changes for them.
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
        self.counts.fill(ExpertCounts::default());
    }
}

#[cfg(test)]
mod tests;
