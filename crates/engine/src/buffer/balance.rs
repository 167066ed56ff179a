//! Frames go to the class that misses most for lack of them.
//!
//! The ghost of each class remembers the pages that were evicted lately; a fault on one of them would have been none with
//! that much more memory. So hits of a ghost, for each page it knows, are what a frame more is worth to the class: per byte,
//! since a hit of a larger page saves as many bytes as the memory for it takes. That is the gradient which Cliffhanger
//! (Cidon et al., NSDI 2016) climbs with shadow queues of the size classes of a cache, with the ghosts that replacement has
//! anyway. Nothing is counted on a hit of a frame.
//!
//! A step takes [`STEP_SHARE`] of the budget from the class to which it is worth least and gives it to the one to which it is
//! worth most, by [`shrink`](Pool::shrink) and [`grow`](Pool::grow). The pages that have to go are remembered by the ghost,
//! whatever they were worth, so that a class from which too much was taken says so at once.
//!
//! It does not go to and fro: the one must be worth more than [`GAIN_MIN`] times the other, hits must be as many as mean
//! something, and a step is taken no sooner than as many bytes were brought in as it moves. Where all gain alike, all keep
//! what they have. A class keeps its floor in any case.
//!
//! One class gets a step whatever it is worth: that for which somebody has waited in vain, because all its frames are in the
//! hands of others who wait for more of them, as when several threads write large values to a table whose pages had only the
//! floor so far. It is given by who has most.
//!
//! A step is the upkeep thread's, or, without one, of who needs a frame, before he looks for one. Who holds frames himself
//! cannot empty them, so it does not wait for any: a step that finds frames in use is left for later.

use std::sync::atomic::Ordering::Relaxed;

use super::frame_cost;
use super::pool::Pool;
use super::resize::FrameBudget;
use crate::error::{Error, Result};
use crate::ids::SizeClass;

/// One part in so many of the budget is moved at a time,
pub(super) const STEP_SHARE: u64 = 64;
/// but no more than so many bytes, so that nobody waits for long.
const STEP_BYTES_MAX: u64 = 4 << 20;
/// How many times as much a frame must be worth to who gets it.
const GAIN_MIN: u64 = 2;
/// Hits of a ghost that mean something.
const HITS_MIN: u64 = 16;
/// When all together have so many, half of them are forgotten, so that they tell of what is now.
const HITS_MAX: u64 = 256;
/// Rounds that get nowhere before a step is given up.
const PATIENCE: u32 = 2;

/// What is known of a class.
#[derive(Clone, Copy, Debug)]
struct Standing {
    class: SizeClass,
    /// Hits of its ghost.
    hits: u64,
    /// Pages that its ghost knows.
    known: u64,
    /// Bytes of its frames above the floor.
    above: u64,
}

/// Who gives, and who gets, a step of so many bytes.
fn decide(standings: &[Standing], step: u64) -> Option<(SizeClass, SizeClass)> {
    let less = |one: &Standing, other: &Standing| (one.hits * other.known).cmp(&(other.hits * one.known));
    let taker = standings.iter().max_by(|one, other| less(one, other))?;
    let may_give = |one: &&Standing| one.class != taker.class && one.above >= step;
    let giver = standings.iter().filter(may_give).min_by(|one, other| less(one, other))?;
    // One more, since none so far does not mean never.
    let gains = taker.hits * giver.known > GAIN_MIN * (giver.hits + 1) * taker.known;
    (gains && taker.hits >= HITS_MIN).then_some((giver.class, taker.class))
}

/// Who has most above its floor, and a step at least, to give to `taker`.
fn richest(standings: &[Standing], taker: SizeClass, step: u64) -> Option<SizeClass> {
    let may_give = |one: &&Standing| one.class != taker && one.above >= step;
    standings.iter().filter(may_give).max_by_key(|one| one.above).map(|one| one.class)
}

impl Pool {
    /// Moves frames from one class to another, if it is time to and one gains more by that than the other loses.
    pub(super) fn balance(&self) -> Result<()> {
        if self.frames.classes().nth(1).is_none() {
            return Ok(());
        }
        // Who changes the budget divides it anew anyway.
        let Some(mut budget) = self.resizing.try_lock() else { return Ok(()) };
        let largest = self.frames.largest();
        let step = (budget.bytes / STEP_SHARE).min(STEP_BYTES_MAX).max(frame_cost(largest));
        let taken = self.stats.taken_bytes();
        let starving = self.take_starving();
        if taken - budget.taken < step && starving.is_none() {
            return Ok(());
        }
        budget.taken = taken;
        let standings: Vec<Standing> =
            self.frames.classes().map(|class| self.standing(class, &budget)).collect();
        // Where the disk has no room for what is dirty, more frames would only be more dirty ones.
        if let Some(taker) = starving.filter(|_| self.without_room.load(Relaxed) == 0) {
            return match richest(&standings, taker, step) {
                Some(giver) => self.try_move_frames(giver, taker, step, &budget),
                None => Ok(()),
            };
        }
        let Some((giver, taker)) = decide(&standings, step) else {
            if standings.iter().map(|one| one.hits).sum::<u64>() >= HITS_MAX {
                self.forget_hits(Some(2));
            }
            return Ok(());
        };
        self.try_move_frames(giver, taker, step, &budget)
    }

    /// A step from `giver` to `taker`, whoever gains by that, if the one has so much.
    #[cfg(test)]
    pub(crate) fn move_step(&self, giver: SizeClass, taker: SizeClass) -> Result<()> {
        let budget = self.resizing.lock();
        let step = frame_cost(giver.max(taker));
        match self.standing(giver, &budget).above >= step {
            true => self.try_move_frames(giver, taker, step, &budget),
            false => Ok(()),
        }
    }

    fn try_move_frames(
        &self,
        giver: SizeClass,
        taker: SizeClass,
        step: u64,
        budget: &FrameBudget,
    ) -> Result<()> {
        match self.move_frames(giver, taker, step, budget) {
            Ok(()) => self.forget_hits(None),
            // They are in use, the disk has no room for what is dirty in them, or the system has no memory for others just
            // now: another time, then. What was taken and not given is the next one's to get.
            Err(Error::OutOfFrames { .. } | Error::Full { .. } | Error::Memory { .. }) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn standing(&self, class: SizeClass, budget: &FrameBudget) -> Standing {
        let (hits, known) = self.free(class).lock().queues.hits();
        let above =
            u64::from(self.frames.count(class).saturating_sub(budget.floor(class))) * frame_cost(class);
        Standing { class, hits, known, above }
    }

    fn forget_hits(&self, share: Option<u64>) {
        self.frames.classes().for_each(|class| self.free(class).lock().queues.forget_hits(share));
    }

    fn move_frames(&self, giver: SizeClass, taker: SizeClass, step: u64, budget: &FrameBudget) -> Result<()> {
        let (had, has) = (self.frames.count(giver), self.frames.count(taker));
        let given = step.div_ceil(frame_cost(giver)).min(u64::from(had - budget.floor(giver)));
        self.shrink(giver, had - given as u32, PATIENCE)?;
        let room = budget.for_frames(self.frames.largest()).saturating_sub(self.bytes_of_frames());
        let gets = (room / frame_cost(taker)).min(u64::from(self.frames.count_max(taker) - has));
        self.grow(taker, has + gets as u32)?;
        self.stats.frame_moves.fetch_add(1, Relaxed);
        self.stats.frames_lost[giver.index()].fetch_add(given, Relaxed);
        self.stats.frames_gained[taker.index()].fetch_add(gets, Relaxed);
        tracing::debug!(
            from = giver.page_bytes(),
            to = taker.page_bytes(),
            given,
            gets,
            "frames for pages of another size"
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standing(index: usize, hits: u64, known: u64) -> Standing {
        let class = SizeClass::from_index(index).unwrap();
        Standing { class, hits, known, above: 1 << 20 }
    }

    fn decided(standings: &[Standing]) -> Option<(usize, usize)> {
        decide(standings, 1 << 16).map(|(giver, taker)| (giver.index(), taker.index()))
    }

    #[test]
    fn who_misses_most_for_each_page_remembered_gets_from_who_misses_least() {
        assert_eq!(decided(&[standing(0, 100, 1000), standing(2, 20, 50)]), Some((0, 2)));
        assert_eq!(decided(&[standing(0, 100, 100), standing(2, 20, 50)]), Some((2, 0)));
        assert_eq!(decided(&[standing(0, 5, 90), standing(1, 40, 90), standing(4, 0, 90)]), Some((4, 1)));
        let poor = Standing { above: 0, ..standing(4, 0, 90) };
        assert_eq!(decided(&[standing(0, 5, 90), standing(1, 40, 90), poor]), Some((0, 1)));
        assert_eq!(decided(&[standing(1, 40, 90), poor]), None, "the floor stays");
    }

    #[test]
    fn nothing_moves_where_all_gain_about_alike_or_little_is_known() {
        assert_eq!(decided(&[standing(0, 100, 1000), standing(2, 8, 50)]), None);
        assert_eq!(decided(&[standing(0, 100, 1000), standing(2, 195, 1000)]), None);
        assert_eq!(decided(&[standing(0, 0, 1000), standing(2, HITS_MIN - 1, 50)]), None);
        assert_eq!(decided(&[standing(0, 0, 1000), standing(2, HITS_MIN, 50)]), Some((0, 2)));
        assert_eq!(decided(&[standing(0, 0, 1000), standing(2, 0, 50)]), None);
        assert_eq!(decided(&[]), None);
    }
}
