//! Changes the number of frames, and divides the budget among classes.
//!
//! One budget in bytes covers the frames of all classes. Frames of a class come and go at the end
//! of its range. New ones get memory when needed. Shrinking works in reverse:
//!
//! 1. Set the limit. Frames above it are not given out any more; free ones are *parked*.
//! 2. Write and evict the pages in them, marked or not. The record cache moves to other frames.
//!    Returned frames are parked. Repeat until all are, since a page may be latched or a frame held
//!    for a new page. That lasts no longer than a log write, but the wait is bounded.
//! 3. Give the memory back, and only then lower the count.
//!
//! An optimistic reader may still read a removed frame. Eviction changed the page's version before,
//! so validation fails. Such a read takes no memory (`terrace_io::Region`). Nobody writes there:
//! that needs the page's latch or a frame given out.
//!
//! A class in use keeps its *floor*, so that a thread gets several pages at once. The rest is
//! divided in proportion ([`Resizer::resize`]) and moves with the load (`balance.rs`).
//!
//! Lock order: the budget comes before all other locks of the pool.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use parking_lot::Mutex;

use super::balance::{HITS_MAX, PATIENCE, STEP_BYTES_MAX, Standing, decide, richest};
use super::budget::{FrameBudget, STEP_SHARE};
use super::cost::{VALUE_FRAMES_MIN, buffers_bytes, frame_cost};
use super::frames::partition::Partition;
use super::record_cache::Records;
use super::tiers::Tiers;
use crate::error::{Error, Result};
use crate::ids::{ByClass, SizeClass};

/// Rounds without progress before shrinking fails, and the pause after each.
const ROUNDS_MAX: u32 = 4000;
const PAUSE: Duration = Duration::from_millis(1);
/// Rounds without progress before the record cache is emptied.
const RECORDS_ROUNDS_MAX: u32 = 8;

/// The budget of the frames; its lock serialises resizing.
#[derive(Debug)]
pub(crate) struct Resizing {
    budget: Mutex<FrameBudget>,
}

/// What resizing needs of write-back and of the page file.
pub(crate) trait Writes {
    /// Fails if the buffers made at open are too short.
    fn check_buffers(&self, class: SizeClass) -> Result<()>;

    /// Prepares the page file for image sizes up to `largest`.
    fn mix_images(&self, largest: SizeClass) -> Result<()>;

    fn announce(&self, class: SizeClass) -> Result<()>;

    /// Cleans frames for the sweep.
    fn clean(&self, class: SizeClass) -> Result<()>;

    fn write_dirty_from(&self, partition: Partition, first: u32) -> Result<()>;

    fn is_without_room(&self) -> bool;
}

pub(crate) struct Resizer<'p> {
    pub(super) budget: &'p Mutex<FrameBudget>,
    pub(super) tiers: &'p Tiers,
    records: &'p Records,
    /// Class of the database's own pages.
    own: SizeClass,
    writes: &'p dyn Writes,
}

impl Resizing {
    pub(super) fn new(budget: FrameBudget) -> Resizing {
        Resizing { budget: Mutex::new(budget) }
    }

    /// Locks the budget against other resizing.
    #[cfg(test)]
    pub(crate) fn lock(&self) -> parking_lot::MutexGuard<'_, FrameBudget> {
        self.budget.lock()
    }

    pub(super) fn of<'p>(
        &'p self,
        tiers: &'p Tiers,
        records: &'p Records,
        own: SizeClass,
        writes: &'p dyn Writes,
    ) -> Resizer<'p> {
        Resizer { budget: &self.budget, tiers, records, own, writes }
    }
}

impl Resizer<'_> {
    /// Sets the budget to `bytes`, limited by the addresses. The caller holds no latch.
    ///
    /// # Errors
    /// [`Error::Config`] below the floors; [`Error::Memory`]; [`Error::OutOfFrames`] if pages stay
    /// in use; errors of writes. Then the former frames are restored, as far as there is memory.
    pub(crate) fn resize(&self, bytes: u64) -> Result<()> {
        let mut budget = self.budget.lock();
        let next = FrameBudget { bytes, ..*budget };
        let wanted = self.shares(&next)?;
        self.change_counts(&wanted)?;
        *budget = next;
        Ok(())
    }

    /// Puts `class` into use with its floor, taken from the others. The caller holds no latch.
    ///
    /// # Errors
    /// [`Error::Config`] if budget or buffers are too small; [`Error::Full`] if the page file
    /// cannot grow; otherwise as [`Resizer::resize`].
    pub(crate) fn use_class(&self, class: SizeClass) -> Result<()> {
        if self.tiers.frames.count(class) > 0 {
            return Ok(());
        }
        let mut budget = self.budget.lock();
        if self.tiers.frames.count(class) > 0 {
            return Ok(());
        }
        self.writes.check_buffers(class)?;
        let largest = class.max(self.tiers.frames.largest());
        let floors = self.floors(&budget, Some(class));
        let bytes = budget.for_frames(largest);
        if floors > bytes {
            return Err(too_little(&budget, floors + buffers_bytes(largest)));
        }
        self.writes.mix_images(largest)?;
        // The others keep these, so that the new floor is free.
        let bytes = bytes - u64::from(budget.floor(class)) * frame_cost(class);
        let mut wanted = self.divided(&budget, bytes);
        wanted[class.index()] = budget.floor(class);
        self.change_counts(&wanted)?;
        self.writes.announce(class)?;
        tracing::info!(
            page_bytes = class.page_bytes(),
            frames = budget.floor(class),
            "pages of another size are used"
        );
        self.use_in_middle(&mut budget, class)
    }

    /// Gives `class` all bytes above the floors of the others. The caller holds no latch.
    ///
    /// # Errors
    /// As [`Resizer::resize`].
    pub(crate) fn give_to(&self, class: SizeClass) -> Result<()> {
        let budget = self.budget.lock();
        let spare = budget.for_frames(self.tiers.frames.largest()).saturating_sub(self.floors(&budget, None));
        let mut wanted = [0; SizeClass::COUNT];
        self.tiers.frames.classes().for_each(|used| wanted[used.index()] = budget.floor(used));
        let count = u64::from(budget.floor(class)) + spare / frame_cost(class);
        wanted[class.index()] = count.min(self.tiers.frames.count_max(class).into()) as u32;
        self.change_counts(&wanted)
    }

    /// Bytes of the floors of the classes in use and of `more`.
    fn floors(&self, budget: &FrameBudget, more: Option<SizeClass>) -> u64 {
        self.tiers
            .frames
            .classes()
            .chain(more)
            .map(|class| u64::from(budget.floor(class)) * frame_cost(class))
            .sum()
    }

    fn shares(&self, budget: &FrameBudget) -> Result<ByClass<u32>> {
        let bytes = budget.for_frames(self.tiers.frames.largest());
        let alone = self.tiers.frames.classes().count() == 1;
        let least = if alone { frame_cost(self.own) } else { self.floors(budget, None) };
        if bytes < least {
            return Err(too_little(budget, least + buffers_bytes(self.tiers.frames.largest())));
        }
        Ok(self.divided(budget, bytes))
    }

    /// Divides `bytes` among the classes in use. The rest follows their frames above the floors,
    /// the remainder goes to the own class.
    fn divided(&self, budget: &FrameBudget, bytes: u64) -> ByClass<u32> {
        let above = |class: SizeClass| {
            u64::from(self.tiers.frames.count(class).saturating_sub(budget.floor(class))) * frame_cost(class)
        };
        let all: u64 = self.tiers.frames.classes().map(above).sum();
        let spare = bytes.saturating_sub(self.floors(budget, None));
        let (mut wanted, mut given, own) = ([0; SizeClass::COUNT], 0, self.own);
        for class in self.tiers.frames.classes().filter(|&class| class != own) {
            let more = u128::from(spare) * u128::from(above(class)) / u128::from(all.max(1));
            let count = u64::from(budget.floor(class)) + more as u64 / frame_cost(class);
            wanted[class.index()] = count.min(self.tiers.frames.count_max(class).into()) as u32;
            given += u64::from(wanted[class.index()]) * frame_cost(class);
        }
        let count = bytes.saturating_sub(given) / frame_cost(own);
        wanted[own.index()] = count.min(self.tiers.frames.count_max(own).into()) as u32;
        wanted
    }

    /// Changes the counts or restores them, under the budget's lock.
    fn change_counts(&self, wanted: &ByClass<u32>) -> Result<()> {
        let before = SizeClass::all().map(|class| self.tiers.frames.count(class)).collect::<Vec<_>>();
        let outcome = self.change_to(wanted, ROUNDS_MAX);
        if outcome.is_err() {
            let before = before.try_into().expect("one for each class");
            if let Err(error) = self.change_to(&before, RECORDS_ROUNDS_MAX) {
                tracing::warn!(%error, "not all frames could be had again after a change of their number failed");
            }
        }
        outcome
    }

    fn change_to(&self, wanted: &ByClass<u32>, patience: u32) -> Result<()> {
        let count = |class: SizeClass| (wanted[class.index()], self.tiers.frames.count(class));
        for class in SizeClass::all() {
            let (wanted, now) = count(class);
            if wanted < now {
                self.shrink(class.into(), wanted, patience)?;
            }
        }
        for class in SizeClass::all() {
            let (wanted, now) = count(class);
            if wanted > now {
                self.grow(class.into(), wanted)?;
            }
        }
        Ok(())
    }

    /// Under the budget's lock.
    pub(super) fn grow(&self, partition: Partition, count: u32) -> Result<()> {
        let old = self.tiers.frames.count(partition);
        let bytes = u64::from(count - old) * partition.class.page_bytes() as u64;
        let grown = self.tiers.frames.grow(partition, count);
        grown.map_err(|source| Error::Memory { bytes, what: "more frames", source })?;
        self.tiers.replacer.free(partition).lock().gain(count);
        Ok(())
    }

    /// Shrinks a partition to `count` frames, under the budget's lock. Fails after `patience`
    /// rounds without progress.
    pub(super) fn shrink(&self, partition: Partition, count: u32, patience: u32) -> Result<()> {
        let mut free = self.tiers.replacer.free(partition).lock();
        free.keep_back(count);
        self.tiers.replacer.wait_for_backing(&mut free);
        drop(free);
        let emptied = self.empty_from(partition, count, patience).and_then(|()| {
            let frames = self.tiers.frames.count(partition) - count;
            let bytes = u64::from(frames) * partition.class.page_bytes() as u64;
            let what = "giving frames back";
            let shrunk = self.tiers.frames.shrink(partition, count);
            shrunk.map_err(|source| Error::Memory { bytes, what, source })
        });
        let mut free = self.tiers.replacer.free(partition).lock();
        match emptied {
            Ok(()) => {
                free.parked = Vec::new();
                free.queues.resize(count);
            }
            Err(_) => free.keep_nothing_back(self.tiers.frames.count(partition)),
        }
        emptied
    }

    /// Empties the frames from `first` on, which are not given out.
    fn empty_from(&self, partition: Partition, first: u32, patience: u32) -> Result<()> {
        // None gets memory any more.
        let gone = self.tiers.frames.backed(partition).saturating_sub(first) as usize;
        let (mut parked, mut idle_rounds) = (0, 0);
        while idle_rounds < patience {
            if partition == self.own.into() && !self.records.leave_frames(self.tiers, first) {
                // No clean page can give the records its frame.
                match idle_rounds {
                    RECORDS_ROUNDS_MAX.. => self.records.empty(self.tiers),
                    _ => self.writes.clean(self.own)?,
                }
            }
            self.writes.write_dirty_from(partition, first)?;
            self.tiers.drive_out(partition, first..self.tiers.frames.backed(partition));
            let now = self.tiers.replacer.free(partition).lock().parked.len();
            if now == gone {
                return Ok(());
            }
            if now == parked {
                idle_rounds += 1;
                std::thread::sleep(PAUSE);
            }
            parked = now;
        }
        Err(Error::OutOfFrames {
            what: format!("{} of the {gone} frames to be given back stay in use", gone - parked),
        })
    }

    /// Moves a step of frames to another class, if one gains enough, in each tier.
    pub(crate) fn balance(&self) -> Result<()> {
        if self.tiers.frames.classes().nth(1).is_none() {
            return Ok(());
        }
        self.balance_middle()?;
        // A thread that resizes divides the budget anyway.
        let Some(mut budget) = self.budget.try_lock() else { return Ok(()) };
        let largest = self.tiers.frames.largest();
        let step = (budget.bytes / STEP_SHARE).min(STEP_BYTES_MAX).max(frame_cost(largest));
        let taken = self.tiers.stats.taken_bytes();
        let starving = self.tiers.replacer.take_starving();
        if taken - budget.taken < step && starving.is_none() {
            return Ok(());
        }
        budget.taken = taken;
        let standings: Vec<Standing> =
            self.tiers.frames.classes().map(|class| self.standing(class, &budget, step)).collect();
        // Without room on disk, more frames would only become dirty.
        if let Some(taker) = starving.filter(|_| !self.writes.is_without_room()) {
            return match richest(&standings, taker, step) {
                Some(giver) => self.try_move_frames(&[giver], taker, step, &budget),
                None => Ok(()),
            };
        }
        let Some((givers, taker)) = decide(&standings, step) else {
            if standings.iter().map(|one| one.hits).sum::<u64>() >= HITS_MAX {
                self.forget_hits(self.tiers.frames.classes().map(Partition::from), Some(2));
            }
            return Ok(());
        };
        self.try_move_frames(&givers, taker, step, &budget)
    }

    /// Moves a step to `taker`, if `giver` has one to spare.
    #[cfg(test)]
    pub(crate) fn move_step(&self, giver: SizeClass, taker: SizeClass) -> Result<()> {
        let budget = self.budget.lock();
        let step = frame_cost(giver.max(taker));
        match self.standing(giver, &budget, step).above >= step {
            true => self.try_move_frames(&[giver], taker, step, &budget),
            false => Ok(()),
        }
    }

    fn try_move_frames(
        &self,
        givers: &[SizeClass],
        taker: SizeClass,
        step: u64,
        budget: &FrameBudget,
    ) -> Result<()> {
        // The next taker gets bytes that were taken but not given.
        or_later(self.move_frames(givers, taker, step, budget))?;
        // After a refusal, too: the same step would be refused at once again.
        self.forget_hits(self.tiers.frames.classes().map(Partition::from), None);
        Ok(())
    }

    fn standing(&self, class: SizeClass, budget: &FrameBudget, step: u64) -> Standing {
        self.standing_of(class.into(), budget.floor(class), frame_cost(class), step)
    }

    /// `cost`: bytes per frame. `step`: bytes that the partition may be asked for.
    pub(super) fn standing_of(&self, partition: Partition, floor: u32, cost: u64, step: u64) -> Standing {
        let (hits, known) = self.tiers.replacer.free(partition).lock().queues.hits();
        let above = u64::from(self.spare(partition, floor, step)) * cost;
        Standing { class: partition.class, hits, known, above }
    }

    /// Frames of `partition` above `floor`, without those up to a page in use. Looks for one in the
    /// last `step` bytes only.
    pub(super) fn spare(&self, partition: Partition, floor: u32, step: u64) -> u32 {
        let frames = &self.tiers.frames;
        let (count, backed) = (frames.count(partition), frames.backed(partition));
        let above = count.saturating_sub(floor);
        let asked = step.div_ceil(partition.class.page_bytes() as u64).min(above.into()) as u32;
        let held = (count - asked..backed).rev().find(|&index| self.tiers.is_held(partition.frame(index)));
        held.map_or(above, |index| count - index - 1)
    }

    pub(super) fn forget_hits(&self, partitions: impl Iterator<Item = Partition>, share: Option<u64>) {
        for partition in partitions {
            self.tiers.replacer.free(partition).lock().queues.forget_hits(share);
        }
    }

    fn move_frames(
        &self,
        givers: &[SizeClass],
        taker: SizeClass,
        step: u64,
        budget: &FrameBudget,
    ) -> Result<()> {
        let mut lacks = step;
        for &giver in givers {
            let had = self.tiers.frames.count(giver);
            let spare = self.spare(giver.into(), budget.floor(giver), step);
            let given = lacks.div_ceil(frame_cost(giver)).min(spare.into());
            self.shrink(giver.into(), had - given as u32, PATIENCE)?;
            self.tiers.stats.count_lost(giver.into(), given);
            lacks = lacks.saturating_sub(given * frame_cost(giver));
        }
        let room =
            budget.for_frames(self.tiers.frames.largest()).saturating_sub(self.tiers.bytes_of_frames());
        let has = self.tiers.frames.count(taker);
        let gets = (room / frame_cost(taker)).min(u64::from(self.tiers.frames.count_max(taker) - has));
        self.grow(taker.into(), has + gets as u32)?;
        self.tiers.stats.count_gained(taker.into(), gets);
        self.tiers.stats.frame_moves.fetch_add(1, Relaxed);
        tracing::debug!(?givers, to = taker.page_bytes(), gets, "frames for pages of another size");
        Ok(())
    }
}

/// Whether frames are in use, or room or memory is short: balancing tries again later.
pub(super) fn may_pass(error: &Error) -> bool {
    matches!(error, Error::OutOfFrames { .. } | Error::Full { .. } | Error::Memory { .. })
}

pub(super) fn or_later(outcome: Result<()>) -> Result<()> {
    outcome.or_else(|error| if may_pass(&error) { Ok(()) } else { Err(error) })
}

fn too_little(budget: &FrameBudget, needed: u64) -> Error {
    let (bytes, floor) = (budget.bytes, budget.floor);
    Error::Config(format!(
        "{bytes} bytes of the budget are left for frames; {floor} for each size of pages that is used, {VALUE_FRAMES_MIN} for \
         each above 64 KiB, and the buffers for the largest of them, take {needed} bytes; give it about {} bytes more",
        (needed - bytes.min(needed)).next_multiple_of(1 << 20)
    ))
}
