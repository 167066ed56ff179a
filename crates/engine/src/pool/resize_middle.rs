//! Divides a volatile middle tier among the page sizes, as `resize.rs` does with DRAM.
//!
//! The budget is the tier's bytes. Each size that it takes keeps one frame. No thread waits for a
//! middle frame, so that is enough. A size that comes into use gets an even share of the frames
//! without memory, which cost no eviction. If all have memory, it gets one frame. From then on a
//! step at a time goes to the size whose ghost is hit most (`balance.rs`). A large page leaves for
//! small ones, and small ones for a large one. Dirty pages are written first. Pinned ones stay.
//!
//! A persistent tier takes the own size alone: its file has one frame length.

use std::cmp::Reverse;
use std::sync::atomic::Ordering::Relaxed;

use super::balance::{HITS_MAX, PATIENCE, STEP_BYTES_MAX, Standing, decide};
use super::budget::{FrameBudget, MiddleBudget, STEP_SHARE};
use super::frames::partition::Partition;
use super::resize::{Resizer, may_pass, or_later};
use crate::error::{Error, Result};
use crate::ids::SizeClass;
use crate::planted::{Bug, planted};

impl Resizer<'_> {
    /// Gives `class` frames of the middle tier, or warns that it gets none. Under the budget's
    /// lock; the caller holds no latch.
    pub(super) fn use_in_middle(&self, budget: &mut FrameBudget, class: SizeClass) -> Result<()> {
        let Some(middle) = &mut budget.middle else { return Ok(()) };
        if !middle.admit(class) {
            self.tiers.middle.iter().for_each(|tier| tier.warn_of_size(class));
            return Ok(());
        }
        or_later(self.share_middle(middle, class))
    }

    /// Gives `class` an even share of the frames without memory, or else its first frame.
    fn share_middle(&self, middle: &MiddleBudget, class: SizeClass) -> Result<()> {
        let share = middle.bytes / middle.classes().count() as u64;
        for giver in middle.classes().filter(|&giver| giver != class) {
            let partition = Partition::middle(giver);
            let (count, cost) = (self.tiers.frames.count(partition), middle.cost(giver));
            let beyond = u64::from(count).saturating_sub((share / cost).max(1)) as u32;
            let given = beyond.min(count - self.tiers.frames.backed(partition));
            if given > 0 {
                self.shrink(partition, count - given, PATIENCE)?;
            }
        }
        self.grow_in_middle(middle, class, share)?;
        match self.tiers.frames.count(Partition::middle(class)) {
            0 => self.give_first(middle, class),
            _ => Ok(()),
        }
    }

    /// Lets `class` have the bytes that no class has, up to `most` in all.
    fn grow_in_middle(&self, middle: &MiddleBudget, class: SizeClass, most: u64) -> Result<()> {
        let (partition, cost) = (Partition::middle(class), middle.cost(class));
        let has = u64::from(self.tiers.frames.count(partition));
        let wants = (most / cost).max(1).saturating_sub(has);
        let gets = (self.room_in_middle(middle) / cost).min(wants);
        match gets {
            0 => Ok(()),
            _ => self.grow(partition, (has + gets) as u32),
        }
    }

    fn room_in_middle(&self, middle: &MiddleBudget) -> u64 {
        let bytes = |class: SizeClass| {
            u64::from(self.tiers.frames.count(Partition::middle(class))) * middle.cost(class)
        };
        let taken = if planted(Bug::MiddleBeyondBudget) { 0 } else { SizeClass::all().map(bytes).sum() };
        middle.bytes.saturating_sub(taken)
    }

    /// Moves a step of middle frames to another class, if one gains enough. The caller holds no
    /// latch.
    pub(crate) fn balance_middle(&self) -> Result<()> {
        // Classes of this tier are in use in DRAM, too.
        if self.tiers.middle.is_none() || self.tiers.frames.classes().nth(1).is_none() {
            return Ok(());
        }
        let Some(mut budget) = self.budget.try_lock() else { return Ok(()) };
        let Some(middle) = budget.middle.as_mut().filter(|middle| middle.classes().nth(1).is_some()) else {
            return Ok(());
        };
        let largest = middle.classes().last().map_or(0, |class| middle.cost(class));
        let step = (middle.bytes / STEP_SHARE).min(STEP_BYTES_MAX);
        let taken = self.taken_in_middle(middle);
        if taken - middle.taken < step.max(largest) {
            return Ok(());
        }
        middle.taken = taken;
        let count = |class| self.tiers.frames.count(Partition::middle(class));
        for class in middle.classes().filter(|&class| count(class) == 0) {
            or_later(self.give_first(middle, class))?;
            if count(class) > 0 {
                return Ok(());
            }
            // Others may be served.
        }
        let standings = self.standings_in_middle(middle, step.max(largest));
        if let Some((givers, taker)) = decide(&standings, step) {
            or_later(self.move_in_middle(middle, &givers, taker, step))?;
            // After a refusal, too: the same step would be refused at once again.
            self.forget_hits(middle.classes().map(Partition::middle), None);
        } else if standings.iter().map(|one| one.hits).sum::<u64>() >= HITS_MAX {
            self.forget_hits(middle.classes().map(Partition::middle), Some(2));
        }
        Ok(())
    }

    fn taken_in_middle(&self, middle: &MiddleBudget) -> u64 {
        let bytes =
            |class: SizeClass| self.tiers.stats.taken(Partition::middle(class)) * class.page_bytes() as u64;
        middle.classes().map(bytes).sum()
    }

    /// `step`: bytes that each may be asked for.
    fn standings_in_middle(&self, middle: &MiddleBudget, step: u64) -> Vec<Standing> {
        let standing =
            |class: SizeClass| self.standing_of(Partition::middle(class), 1, middle.cost(class), step);
        middle.classes().map(standing).collect()
    }

    /// Gives `class` its first frame, from those classes that have most.
    fn give_first(&self, middle: &MiddleBudget, class: SizeClass) -> Result<()> {
        let cost = middle.cost(class);
        let mut standings = self.standings_in_middle(middle, cost);
        standings.retain(|one| one.above > 0 && one.class != class);
        standings.sort_by_key(|one| Reverse(one.above));
        let givers: Vec<SizeClass> = standings.iter().map(|one| one.class).collect();
        self.move_in_middle(middle, &givers, class, cost)
    }

    /// Moves `step` bytes, at least a page of the taker, or what `givers` have above a frame each.
    ///
    /// # Errors
    /// [`Error::OutOfFrames`] if that is less than a page of the taker; then no page has left.
    fn move_in_middle(
        &self,
        middle: &MiddleBudget,
        givers: &[SizeClass],
        taker: SizeClass,
        step: u64,
    ) -> Result<()> {
        let step = step.max(middle.cost(taker));
        let spare = |giver| u64::from(self.spare(Partition::middle(giver), 1, step));
        let most = givers.iter().map(|&giver| spare(giver) * middle.cost(giver)).sum::<u64>();
        if self.room_in_middle(middle) + most < middle.cost(taker) {
            let what = "the frames of the middle tier that pages of another size need are in use".to_owned();
            return Err(Error::OutOfFrames { what });
        }
        let mut refused = Ok(());
        for &giver in givers {
            let lacks = step.saturating_sub(self.room_in_middle(middle));
            let given = lacks.div_ceil(middle.cost(giver)).min(spare(giver));
            if given > 0 {
                match self.shrink_in_middle(giver, given) {
                    Err(error) if !may_pass(&error) => return Err(error),
                    shrunk => refused = refused.and(shrunk),
                }
            }
        }
        let partition = Partition::middle(taker);
        let has = self.tiers.frames.count(partition);
        let most = u64::from(self.tiers.frames.count_max(partition) - has);
        let gets = (self.room_in_middle(middle) / middle.cost(taker)).min(most);
        if gets == 0 {
            return refused;
        }
        self.grow(partition, has + gets as u32)?;
        self.tiers.stats.count_gained(partition, gets);
        self.tiers.middle.iter().for_each(|tier| _ = tier.counts.frame_moves.fetch_add(1, Relaxed));
        let to = taker.page_bytes();
        tracing::debug!(?givers, to, gets, "frames of the middle tier for pages of another size");
        Ok(())
    }

    fn shrink_in_middle(&self, giver: SizeClass, given: u64) -> Result<()> {
        let partition = Partition::middle(giver);
        self.shrink(partition, self.tiers.frames.count(partition) - given as u32, PATIENCE)?;
        self.tiers.stats.count_lost(partition, given);
        Ok(())
    }

    /// Moves `step` bytes of the middle tier.
    #[cfg(test)]
    pub(crate) fn move_step_in_middle(&self, giver: SizeClass, taker: SizeClass, step: u64) -> Result<()> {
        let budget = self.budget.lock();
        let moved = |middle| self.move_in_middle(middle, &[giver], taker, step);
        budget.middle.as_ref().map_or(Ok(()), moved)
    }
}
