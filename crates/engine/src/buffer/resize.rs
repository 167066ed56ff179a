//! More frames, or fewer, while others work; and how the bytes there are for frames are divided among the classes.
//!
//! There is one budget, in bytes, for the frames of all classes. Frames of a class come and go at the end of its range.
//! **Growing** puts memory behind the new ones, as an error where there is none, and then gives them out. **Shrinking** goes
//! the other way round:
//!
//! 1. The limit is set: frames from there on are not given out any more, and those that were free are *parked*.
//! 2. The pages in them are written, if they are dirty, and evicted, however hot they are; what the record cache has in them
//!    it moves to others; a frame that is given back is parked. This is repeated until all are parked: a page may be latched
//!    just now, or a frame be in the hands of who is about to load or make a page. Nobody holds either for longer than a write
//!    of the log takes; the wait is bounded all the same.
//! 3. Their memory is given back, and only then are there fewer frames.
//!
//! An optimistic reader may still look at a frame that is gone. Its page was evicted, which moved the version before
//! the memory went: what it reads, old bytes or zeros, it finds invalid. That it reads takes no memory
//! (`terrace_block::Region`), and nobody writes: contents and headers of frames are written under the latch of the page
//! in them, or by whom the frame was given to.
//!
//! A class that is in use has at least its *floor*, so that whoever needs several pages of it at once gets them. What is above
//! the floors goes to the classes in proportion to what they have there ([`Pool::resize`]), and from one to another as the
//! load demands (`balance.rs`).
//!
//! Lock order: `resizing` comes before all others of the pool.

use std::time::Duration;

use super::balance::STEP_SHARE;
use super::pool::Pool;
use super::stripe::Stripe;
use super::{VALUE_FRAMES_MIN, buffers_bytes, frame_cost};
use crate::config::PageSizes;
use crate::error::{Error, Result};
use crate::ids::{ByClass, PageId, SizeClass};

/// Rounds over the frames that are to go before it is given up, and how long lies between two that got nowhere.
const ROUNDS_MAX: u32 = 4000;
const PAUSE: Duration = Duration::from_millis(1);
/// Rounds that got nowhere after which the record cache is emptied if it still has some of those frames.
const RECORDS_ROUNDS_MAX: u32 = 8;

/// What frames may take.
#[derive(Debug)]
pub(super) struct FrameBudget {
    /// Bytes of the frames of all classes with what is beside each, and of the buffers that are as long as the longest pages.
    pub(super) bytes: u64,
    /// Frames that a class in use has at least, if nodes can have it.
    pub(super) floor: u32,
    /// Bytes of the frames taken when frames were last moved between classes, or it was decided not to.
    pub(super) taken: u64,
}

impl FrameBudget {
    /// Pages of `class` that its ghost knows, however few frames it has: as many as it would have more frames after one step.
    pub(super) fn ghost_least(&self, class: SizeClass) -> u32 {
        (self.bytes / STEP_SHARE / frame_cost(class)) as u32
    }

    /// Frames that `class` has at least if it is in use.
    pub(super) fn floor(&self, class: SizeClass) -> u32 {
        if class.is_for_values() { VALUE_FRAMES_MIN } else { self.floor }
    }

    /// Bytes for frames alone, if pages of `largest` are in use.
    pub(super) fn for_frames(&self, largest: SizeClass) -> u64 {
        self.bytes.saturating_sub(buffers_bytes(largest))
    }
}

impl Pool {
    /// Gives frames and the buffers of their pages `bytes` bytes, at most as many as there are addresses for. Others may work
    /// meanwhile; the caller holds no latch.
    ///
    /// # Errors
    /// [`Error::Config`] if that does not give each class in use its floor; [`Error::Memory`], [`Error::OutOfFrames`] if pages
    /// that are to go stay in use, or what writing them met. The frames are as they were then, as far as there is memory.
    pub(crate) fn resize(&self, bytes: u64) -> Result<()> {
        let mut budget = self.resizing.lock();
        let next = FrameBudget { bytes, ..*budget };
        let wanted = self.shares(&next)?;
        self.change_counts(&wanted)?;
        *budget = next;
        Ok(())
    }

    /// Makes pages of `class` possible: gives it its floor of frames, which others give up for it. Nothing if it has frames.
    /// The caller holds no latch.
    ///
    /// # Errors
    /// [`Error::Config`] if the budget or the buffers do not suffice for it; [`Error::Full`] if the page file cannot be as long
    /// as images of several sizes want it; otherwise as [`Pool::resize`].
    pub(crate) fn use_class(&self, class: SizeClass) -> Result<()> {
        if self.frames.count(class) > 0 {
            return Ok(());
        }
        let budget = self.resizing.lock();
        if self.frames.count(class) > 0 {
            return Ok(());
        }
        self.check_buffers(class)?;
        let largest = class.max(self.frames.largest());
        let floors = self.floors(&budget, Some(class));
        let bytes = budget.for_frames(largest);
        if floors > bytes {
            return Err(too_little(&budget, floors + buffers_bytes(largest)));
        }
        self.mix_images(largest)?;
        // What the others keep, so that the floor of this one is free.
        let bytes = bytes - u64::from(budget.floor(class)) * frame_cost(class);
        let mut wanted = self.divided(&budget, bytes);
        wanted[class.index()] = budget.floor(class);
        self.change_counts(&wanted)?;
        self.announce(class)?;
        tracing::info!(
            page_bytes = class.page_bytes(),
            frames = budget.floor(class),
            "pages of another size are used"
        );
        self.warn_of_size(class);
        Ok(())
    }

    /// Gives `class` all that is above the floors of the others. The caller holds no latch.
    ///
    /// # Errors
    /// As [`Pool::resize`].
    pub(crate) fn give_to(&self, class: SizeClass) -> Result<()> {
        let budget = self.resizing.lock();
        let spare = budget.for_frames(self.frames.largest()).saturating_sub(self.floors(&budget, None));
        let mut wanted = [0; SizeClass::COUNT];
        self.frames.classes().for_each(|used| wanted[used.index()] = budget.floor(used));
        let count = u64::from(budget.floor(class)) + spare / frame_cost(class);
        wanted[class.index()] = count.min(self.frames.count_max(class).into()) as u32;
        self.change_counts(&wanted)
    }

    /// The page file has images of several sizes from now on, the longest those of `largest`.
    fn mix_images(&self, largest: SizeClass) -> Result<()> {
        match self.space.mix(largest.places(), self.is_recovering()) {
            // They are there. For what the file has no room commits wait, and reads go on.
            Err(Error::Full { .. }) if self.is_recovering() => Ok(()),
            other => other,
        }
    }

    /// Names `class` in the superblock, durably, unless it was named before: its pages may be in the log alone for long, and the
    /// next owner must know of them before it reads that.
    fn announce(&self, class: SizeClass) -> Result<()> {
        let mut upkeep = self.upkeep.lock();
        if upkeep.superblock.page_ids_end[class.index()] > 1 {
            return Ok(());
        }
        let cut = self.wal.cut();
        self.put_superblock(&mut upkeep, cut)
    }

    /// Recovery: makes pages possible of each class of which there were any.
    pub(super) fn use_classes_with_ids(&self) -> Result<()> {
        let ends = self.ids.lock().ends();
        SizeClass::all().filter(|class| ends[class.index()] > 1).try_for_each(|class| self.use_class(class))
    }

    /// Whether there may be pages of `class`.
    pub(crate) fn uses(&self, class: SizeClass) -> bool {
        self.frames.count(class) > 0
    }

    /// The sizes of pages that are in use.
    pub(crate) fn page_sizes(&self) -> PageSizes {
        let mut sizes = PageSizes::one(self.class());
        self.frames.classes().for_each(|class| sizes.others[class.index()] = true);
        sizes
    }

    /// Frames for pages of the size of `id`, or for the database's own if those are fewer.
    pub(crate) fn frames_least(&self, id: PageId) -> u32 {
        let classes = id.class().into_iter().chain([self.class()]);
        classes.map(|class| self.frames.count(class)).min().unwrap_or(0)
    }

    /// Bytes of the frames there are, of all classes, with what is beside each.
    pub(super) fn bytes_of_frames(&self) -> u64 {
        self.frames.classes().map(|class| u64::from(self.frames.count(class)) * frame_cost(class)).sum()
    }

    /// Whether the buffers that were made at open have room for pages of `class`.
    fn check_buffers(&self, class: SizeClass) -> Result<()> {
        let bytes = class.page_bytes();
        let staging = self.upkeep.lock().staging.len();
        let batch = self.batches.bytes();
        let segment = self.space.geometry().segment_places;
        // What read buffers have no room for is read into a batch's, and decompressed there.
        let read = if class.is_for_values() { 2 * bytes } else { bytes };
        if bytes <= staging && read <= batch && class.places() <= segment {
            return Ok(());
        }
        let setting = if class.is_for_values() { "value_page_size_max" } else { "page_size_max" };
        Err(Error::Config(format!(
            "pages of {bytes} bytes in a database opened with {staging} bytes of staging and {batch} bytes for a batch of \
             reads, whose segments have {segment} places; open it with a {setting} of {bytes}, and with a larger budget"
        )))
    }

    /// Bytes of the floors of the classes in use, and of `more`.
    fn floors(&self, budget: &FrameBudget, more: Option<SizeClass>) -> u64 {
        self.frames
            .classes()
            .chain(more)
            .map(|class| u64::from(budget.floor(class)) * frame_cost(class))
            .sum()
    }

    /// How many frames each class in use gets of `budget`.
    fn shares(&self, budget: &FrameBudget) -> Result<ByClass<u32>> {
        let bytes = budget.for_frames(self.frames.largest());
        let alone = self.frames.classes().count() == 1;
        let least = if alone { frame_cost(self.class()) } else { self.floors(budget, None) };
        if bytes < least {
            return Err(too_little(budget, least + buffers_bytes(self.frames.largest())));
        }
        Ok(self.divided(budget, bytes))
    }

    /// `bytes` divided among the classes in use, no less than their floors: what is above those in proportion to what each has
    /// there now, and what is left over to the database's own.
    fn divided(&self, budget: &FrameBudget, bytes: u64) -> ByClass<u32> {
        let above = |class: SizeClass| {
            u64::from(self.frames.count(class).saturating_sub(budget.floor(class))) * frame_cost(class)
        };
        let all: u64 = self.frames.classes().map(above).sum();
        let spare = bytes.saturating_sub(self.floors(budget, None));
        let (mut wanted, mut given, own) = ([0; SizeClass::COUNT], 0, self.class());
        for class in self.frames.classes().filter(|&class| class != own) {
            let more = u128::from(spare) * u128::from(above(class)) / u128::from(all.max(1));
            let count = u64::from(budget.floor(class)) + more as u64 / frame_cost(class);
            wanted[class.index()] = count.min(self.frames.count_max(class).into()) as u32;
            given += u64::from(wanted[class.index()]) * frame_cost(class);
        }
        let count = bytes.saturating_sub(given) / frame_cost(own);
        wanted[own.index()] = count.min(self.frames.count_max(own).into()) as u32;
        wanted
    }

    /// Makes it `wanted` frames of each class; those that get fewer first. `resizing` is the caller's.
    fn change_counts(&self, wanted: &ByClass<u32>) -> Result<()> {
        let before = SizeClass::all().map(|class| self.frames.count(class)).collect::<Vec<_>>();
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
        let count = |class: SizeClass| (wanted[class.index()], self.frames.count(class));
        for class in SizeClass::all() {
            let (wanted, now) = count(class);
            if wanted < now {
                self.shrink(class, wanted, patience)?;
            }
        }
        for class in SizeClass::all() {
            let (wanted, now) = count(class);
            if wanted > now {
                self.grow(class, wanted)?;
            }
        }
        Ok(())
    }

    /// Makes it `count` frames of `class`, more than there are. `resizing` is the caller's.
    pub(super) fn grow(&self, class: SizeClass, count: u32) -> Result<()> {
        let old = self.frames.count(class);
        let bytes = u64::from(count - old) * class.page_bytes() as u64;
        let grown = self.frames.grow(class, count);
        grown.map_err(|source| Error::Memory { bytes, what: "more frames", source })?;
        self.free(class).lock().gain(old..count);
        Ok(())
    }

    /// Makes it `count` frames of `class`, fewer than there are; gives up after `patience` rounds that got nowhere. `resizing`
    /// is the caller's.
    pub(super) fn shrink(&self, class: SizeClass, count: u32, patience: u32) -> Result<()> {
        self.free(class).lock().keep_back(count);
        let emptied = self.empty_from(class, count, patience).and_then(|()| {
            let bytes = u64::from(self.frames.count(class) - count) * class.page_bytes() as u64;
            let what = "giving frames back";
            let shrunk = self.frames.shrink(class, count);
            shrunk.map_err(|source| Error::Memory { bytes, what, source })
        });
        let mut free = self.free(class).lock();
        match emptied {
            Ok(()) => {
                free.parked = Vec::new();
                free.queues.resize(count);
            }
            Err(_) => free.keep_nothing_back(self.frames.count(class)),
        }
        emptied
    }

    /// Empties all frames of `class` from `first` on, which are not given out any more.
    fn empty_from(&self, class: SizeClass, first: u32, patience: u32) -> Result<()> {
        let gone = (self.frames.count(class) - first) as usize;
        let (mut parked, mut idle_rounds) = (0, 0);
        while idle_rounds < patience {
            if class == self.class() && !self.records.leave_frames(self, first) {
                // There is no clean page whose frame the records could have.
                match idle_rounds {
                    RECORDS_ROUNDS_MAX.. => self.records.empty(self),
                    _ => self.upkeep_for_frames(class, true)?,
                }
            }
            self.write_dirty_from(class, first)?;
            self.meanwhile();
            self.drive_out(class, first..self.frames.count(class));
            let now = self.free(class).lock().parked.len();
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

    /// Writes the dirty pages in frames from `first` on, a staging buffer full at a time, so that others who need the
    /// upkeep get their turn.
    fn write_dirty_from(&self, class: SizeClass, first: u32) -> Result<()> {
        let mut index = first;
        while index < self.frames.count(class) {
            let mut upkeep = self.upkeep.lock();
            let most = upkeep.staging.len() / class.page_bytes();
            let mut pages: Vec<PageId> = Vec::with_capacity(most);
            while pages.len() < most && index < self.frames.count(class) {
                let id = self.frames.header(Stripe::from(class).frame(index)).page();
                index += 1;
                if let Some(entry) = self.table.entry(id).filter(|_| !id.is_none())
                    && entry.latch().load().is_dirty()
                {
                    pages.push(id);
                }
            }
            // Recovery comes here before all classes are in use: then there are no pages, and the cleaner, which a checkpoint may
            // call for, does not know yet how long images are.
            if pages.is_empty() {
                continue;
            }
            self.write_back(&mut upkeep, &pages)?;
            // Each batch logs where its images are, and inline nobody else cuts the log.
            self.checkpoint_step(&mut upkeep)?;
        }
        Ok(())
    }
}

/// What there is does not suffice for the floors, which with the buffers take `needed` bytes.
fn too_little(budget: &FrameBudget, needed: u64) -> Error {
    let (bytes, floor) = (budget.bytes, budget.floor);
    Error::Config(format!(
        "{bytes} bytes of the budget are left for frames; {floor} for each size of pages that is used, {VALUE_FRAMES_MIN} for \
         each above 64 KiB, and the buffers for the largest of them, take {needed} bytes; give it about {} bytes more",
        (needed - bytes.min(needed)).next_multiple_of(1 << 20)
    ))
}
