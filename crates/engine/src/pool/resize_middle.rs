//! Divides a volatile middle tier among the page sizes, as `resize.rs` does with DRAM.
//!
//! The budget is the tier's bytes. Each size that it takes keeps one frame. No thread waits for a
//! middle frame, so that is enough. A size that comes into use gets an even share of the frames
//! without memory, which cost no eviction. From then on a step at a time goes to the size whose
//! ghost is hit most (`balance.rs`). A large page leaves for small ones, and small ones for a large
//! one. Dirty pages are written first. Pinned ones stay, and the step is given up.
//!
//! A persistent tier takes the own size alone: its file has one frame length.

use super::balance::{HITS_MAX, PATIENCE, STEP_BYTES_MAX, Standing, decide, richest};
use super::budget::{FrameBudget, MiddleBudget, STEP_SHARE};
use super::frames::partition::Partition;
use super::resize::Resizer;
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

    /// Takes all frames from `class`, for `heir`, under the budget's lock.
    pub(super) fn dismiss_from_middle(
        &self,
        budget: &mut FrameBudget,
        class: SizeClass,
        heir: SizeClass,
    ) -> Result<()> {
        let Some(middle) = &mut budget.middle else { return Ok(()) };
        self.shrink(Partition::middle(class), 0, PATIENCE)?;
        middle.dismiss(class);
        self.grow_in_middle(middle, heir, u64::MAX)
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
        let taken = |class: SizeClass| {
            u64::from(self.tiers.frames.count(Partition::middle(class))) * middle.cost(class)
        };
        middle.bytes.saturating_sub(SizeClass::all().map(taken).sum())
    }

    /// Moves a step of middle frames to another class, if one gains enough. The caller holds no
    /// latch.
    pub(crate) fn balance_middle(&self) -> Result<()> {
        if self.tiers.middle.is_none() {
            return Ok(());
        }
        let Some(mut budget) = self.budget.try_lock() else { return Ok(()) };
        let Some(middle) = budget.middle.as_mut().filter(|middle| middle.classes().nth(1).is_some()) else {
            return Ok(());
        };
        let before = *middle;
        let partitions = || before.classes().map(Partition::middle);
        let taken = partitions()
            .map(|partition| self.tiers.stats.taken(partition) * partition.class.page_bytes() as u64)
            .sum::<u64>();
        let largest = before.classes().last().map_or(0, |class| before.cost(class));
        let step = (middle.bytes / STEP_SHARE).min(STEP_BYTES_MAX);
        if taken - middle.taken < step.max(largest) {
            return Ok(());
        }
        middle.taken = taken;
        if let Some(without) = partitions().find(|&partition| self.tiers.frames.count(partition) == 0) {
            return or_later(self.give_first(middle, without.class));
        }
        let standings = self.standings_in_middle(middle);
        if let Some((giver, taker)) = decide(&standings, step) {
            return or_later(self.move_in_middle(middle, giver, taker, step.max(middle.cost(taker))));
        }
        if standings.iter().map(|one| one.hits).sum::<u64>() >= HITS_MAX {
            self.forget_hits_in_middle(middle, Some(2));
        }
        Ok(())
    }

    fn standings_in_middle(&self, middle: &MiddleBudget) -> Vec<Standing> {
        let standing = |class: SizeClass| {
            let partition = Partition::middle(class);
            let (hits, known) = self.tiers.replacer.free(partition).lock().queues.hits();
            let above = self.tiers.frames.count(partition).saturating_sub(1);
            Standing { class, hits, known, above: u64::from(above) * middle.cost(class) }
        };
        middle.classes().map(standing).collect()
    }

    /// Gives `class` its first frame, from those classes that have most.
    fn give_first(&self, middle: &MiddleBudget, class: SizeClass) -> Result<()> {
        while self.tiers.frames.count(Partition::middle(class)) == 0
            && let Some(giver) = richest(&self.standings_in_middle(middle), class, 1)
        {
            self.move_in_middle(middle, giver, class, middle.cost(class))?;
        }
        Ok(())
    }

    /// Moves `step` bytes, or what `giver` has above one frame.
    fn move_in_middle(
        &self,
        middle: &MiddleBudget,
        giver: SizeClass,
        taker: SizeClass,
        step: u64,
    ) -> Result<()> {
        let (from, to) = (Partition::middle(giver), Partition::middle(taker));
        let (had, has) = (self.tiers.frames.count(from), self.tiers.frames.count(to));
        let lacks = step.saturating_sub(self.room_in_middle(middle));
        let given = lacks.div_ceil(middle.cost(giver)).min(u64::from(had.saturating_sub(1)));
        if given > 0 && !planted(Bug::MiddleBeyondBudget) {
            self.shrink(from, had - given as u32, PATIENCE)?;
        }
        let room = match planted(Bug::MiddleBeyondBudget) {
            true => given * middle.cost(giver) / middle.cost(taker),
            false => self.room_in_middle(middle) / middle.cost(taker),
        };
        let gets = room.min(u64::from(self.tiers.frames.count_max(to) - has));
        self.grow(to, has + gets as u32)?;
        self.tiers.stats.count_move((from, given), (to, gets));
        tracing::debug!(
            from = giver.page_bytes(),
            to = taker.page_bytes(),
            given,
            gets,
            "frames of the middle tier for pages of another size"
        );
        self.forget_hits_in_middle(middle, None);
        Ok(())
    }

    /// Moves `step` bytes of the middle tier.
    #[cfg(test)]
    pub(crate) fn move_step_in_middle(&self, giver: SizeClass, taker: SizeClass, step: u64) -> Result<()> {
        let budget = self.budget.lock();
        budget.middle.as_ref().map_or(Ok(()), |middle| self.move_in_middle(middle, giver, taker, step))
    }

    fn forget_hits_in_middle(&self, middle: &MiddleBudget, share: Option<u64>) {
        for partition in middle.classes().map(Partition::middle) {
            self.tiers.replacer.free(partition).lock().queues.forget_hits(share);
        }
    }
}

/// Frames are in use, or room or memory is short: [`Resizer::balance_middle`] tries again later.
fn or_later(outcome: Result<()>) -> Result<()> {
    match outcome {
        Err(Error::OutOfFrames { .. } | Error::Full { .. } | Error::Memory { .. }) => Ok(()),
        other => other,
    }
}
