//! Frames for loads, new pages and promotions; log space.
//!
//! A frame comes from the free list or one sweep (`evict.rs`). If neither has one, a fault waits
//! for write-back. Without a maintenance thread it writes pages itself, so **the caller holds no
//! latch**. Promotions never wait for a frame.

use std::sync::atomic::Ordering::Relaxed;

use super::adopt::before_access;
use super::buffer_pool::Pool;
use super::evict::FoundFrame;
use super::frames::partition::{Partition, Tier, class_of};
use super::guard::ReadGuard;
use super::partial::Unread;
use super::patience::Patience;
use super::replacement::{FrameReservation, Waits};
use super::resident::class_of_page;
use super::retry::Retry;
use super::tier::migration::{Access, Path};
use super::tier::{MiddleTier, RESTARTS_MAX, Rising, operation};
use super::view::View;
use crate::error::{Error, Result};
use crate::ids::{ByClass, PageId, SizeClass};
use crate::planted::{Bug, planted};
use crate::store::image::COMPRESS;
use crate::store::page;
use crate::wal::{Class, Reservation};

/// Rounds after which waiting threads must hold the frames. Then other classes give up some.
const STARVED_ROUNDS: u32 = 4;

enum Promotion<'p> {
    Done(ReadGuard<'p>),
    /// The page waits for the promotion batch.
    Deferred,
    /// The page cannot move now.
    Refused,
}

impl Pool {
    /// Takes an empty DRAM frame of `class`. Evicts, and waits for write-back; the caller holds no
    /// latch.
    pub(super) fn take_frame(&self, class: SizeClass, id: PageId) -> Result<u32> {
        if self.requests.works_inline() {
            self.resizer().balance()?;
        }
        let mut patience = Patience::new(self.requests.works_inline());
        for round in 0u32.. {
            if class == self.class() {
                // Before a page is evicted instead.
                self.records.give_back(&self.tiers);
            }
            if let Ok(frame) = self.find_frame(class.into(), id)? {
                return Ok(frame);
            }
            self.stats.frame_waits.fetch_add(1, Relaxed);
            if !patience.lasts(self.frame_progress(class)) {
                break;
            }
            if round >= STARVED_ROUNDS {
                self.replacer.note_starving(class);
            }
            if self.requests.works_inline() {
                self.requests.clean_frames(class.into(), true)?;
                self.resizer().balance()?;
            } else {
                self.replacer.note_wanting(class);
                self.wait_for_round()?;
            }
            if round > 10 {
                std::thread::yield_now();
            }
        }
        Err(self.out_of_frames(class))
    }

    /// Progress of threads that take frames or clean pages.
    fn frame_progress(&self, class: SizeClass) -> (u64, u64, u32) {
        let images = self.stats.images_written.load(Relaxed);
        (self.stats.taken(class), images, self.frames.count(class))
    }

    /// Takes an empty frame of `partition` if that needs no wait. Without a maintenance thread it
    /// writes pages, so the caller holds no latch.
    pub(super) fn take_frame_now(&self, partition: Partition, id: PageId) -> Result<Option<u32>> {
        if partition.tier == Tier::Middle && self.requests.works_inline() {
            self.resizer().balance_middle()?;
        }
        match self.find_frame(partition, id)? {
            // All pages are in use. Another sweep would take those that this one spared.
            Err(0) => return Ok(None),
            Err(_) if self.requests.works_inline() => {}
            found => return Ok(found.ok()),
        }
        match self.requests.clean_frames(partition, true) {
            Ok(()) => Ok(self.find_frame(partition, id)?.ok()),
            Err(Error::Full { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// A frame, or else the number of dirty pages that were in the way.
    fn find_frame(&self, partition: Partition, id: PageId) -> Result<Result<u32, u32>> {
        let FoundFrame { frame, dirty, short } = self.tiers.find(partition, id);
        let Some((frame, known)) = frame else { return Ok(Err(dirty)) };
        if known {
            self.missed(partition.class);
        }
        if dirty > 0 && self.requests.works_inline() {
            match self.requests.clean_frames(partition, short) {
                Ok(()) | Err(Error::Full { .. }) => {}
                Err(error) => {
                    self.tiers.give_frame(frame);
                    return Err(error);
                }
            }
        }
        self.clean_middle().inspect_err(|_| self.tiers.give_frame(frame))?;
        Ok(Ok(frame))
    }

    /// Without a maintenance thread: cleans the middle tier if demotions lacked frames.
    fn clean_middle(&self) -> Result<()> {
        if self.tiers.middle.is_none() || !self.requests.works_inline() {
            return Ok(());
        }
        for partition in SizeClass::all().map(Partition::middle) {
            if self.replacer.take_wanting(partition) {
                match self.requests.clean_frames(partition, true) {
                    Ok(()) | Err(Error::Full { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// Tells the record cache of a miss that the ghost knows. The record cache has frames of the
    /// own class only; other classes exchange frames (`balance.rs`).
    pub(super) fn missed(&self, class: SizeClass) {
        if class == self.class() {
            self.records.page_missed(self.frames.count(class));
        }
    }

    /// Takes a frame for a page to be loaded. By policy a middle frame if that needs no wait, else
    /// one in DRAM. May wait; the caller holds no latch.
    pub(super) fn frame_for_load(&self, id: PageId) -> Result<u32> {
        let partition = self.partition_for_load(id);
        if partition.tier == Tier::Middle
            && let Some(frame) = self.take_frame_now(partition, id)?
        {
            return Ok(frame);
        }
        self.take_frame(partition.class, id)
    }

    pub(super) fn partition_for_load(&self, id: PageId) -> Partition {
        let class = class_of_page(id);
        match self.tiers.middle_for(class) {
            Some(middle) if !middle.is_bypassed(self.mode(), id) => Partition::middle(class),
            _ => class.into(),
        }
    }

    /// Takes a frame for a new page, like [`Pool::frame_for_load`].
    pub(super) fn frame_for_new(&self, class: SizeClass) -> Result<u32> {
        if let Some(middle) = self.tiers.middle_for(class)
            && !middle.is_bypassed_by_new()
            && let Some(frame) = self.take_frame_now(Partition::middle(class), PageId::NONE)?
        {
            return Ok(frame);
        }
        self.take_frame(class, PageId::NONE)
    }

    /// Promotes a page in the middle tier, or leaves it there. `loaded`: this access loaded it. The
    /// caller has validated the reference.
    #[cold]
    #[inline(never)]
    pub(crate) fn access_in_middle<'p>(
        &'p self,
        guard: ReadGuard<'p>,
        loaded: bool,
    ) -> Result<ReadGuard<'p>, Retry> {
        access(self, guard, loaded, false)
    }

    fn promote<'p>(
        &'p self,
        middle: &MiddleTier,
        guard: &ReadGuard<'p>,
        access: Access,
        partial: bool,
    ) -> Result<Promotion<'p>> {
        let page = guard.page();
        // The page stays: an image is in flight, or the page file lacks room for dirty pages.
        if page.word.is_claimed() || page.word.is_dirty() && self.requests.is_short_of_room() {
            return Ok(Promotion::Refused);
        }
        let mini = if partial { take_mini(self, page.id)? } else { None };
        let to = match mini {
            Some(mini) => Some(mini),
            None => self.take_frame_now(class_of(page.frame).into(), page.id)?,
        };
        let Some(to) = to else { return Ok(Promotion::Refused) };
        let rising = Rising { page, access, to, partial };
        Ok(match middle.promote(&self.tiers.resident, &self.tiers.replacer, &rising) {
            Some(seen) => Promotion::Done(ReadGuard::new(&self.tiers, page.id, page.entry, seen, to)),
            None => Promotion::Refused,
        })
    }

    /// Promotes a page with others once the promotion batch is full.
    fn promote_together<'p>(
        &'p self,
        middle: &MiddleTier,
        guard: &ReadGuard<'p>,
        access: Access,
    ) -> Result<Promotion<'p>> {
        let (page, resident, replacer) = (guard.page(), &self.tiers.resident, &self.tiers.replacer);
        let class = class_of(page.frame);
        let Some(others) = middle.others_of_batch(resident, replacer, page.id, access) else {
            return Ok(Promotion::Deferred);
        };
        let Some(to) = self.take_frame_now(class.into(), page.id)? else { return Ok(Promotion::Refused) };
        let mut frames = Vec::with_capacity(others.len());
        if !others.is_empty() {
            self.tiers.try_take_frames(class, others.len(), &mut frames);
        }
        let (first, keep_dirty) =
            (Rising { page, access, to, partial: false }, self.requests.is_short_of_room());
        let promotion = middle.promote_together(resident, replacer, &first, &others, &mut frames, keep_dirty);
        frames.into_iter().for_each(|frame| self.tiers.give_frame(frame));
        Ok(match promotion {
            Some(seen) => Promotion::Done(ReadGuard::new(&self.tiers, page.id, page.entry, seen, to)),
            None => Promotion::Refused,
        })
    }

    /// Reserves `frames` frames of each class. Waits; the caller holds no frame, log space or other
    /// reservation.
    ///
    /// # Errors
    /// [`Error::OutOfFrames`] if no thread makes progress, [`Error::Poisoned`].
    pub(crate) fn reserve_frames(&self, frames: ByClass<u32>) -> Result<FrameReservation<'_>> {
        self.replacer.reserved.reserve(frames, &self.stats.frame_reservation_waits, self)
    }

    fn out_of_frames(&self, class: SizeClass) -> Error {
        let (count, bytes) = (self.frames.count(class), class.page_bytes());
        let backed = self.frames.backed(class);
        let what = match self.stats.frames_refused.load(Relaxed) {
            1.. if backed < count => format!(
                "the system has memory for {backed} of {count} frames of {bytes} bytes of the DRAM tier, and all of them \
                 are in use at once"
            ),
            _ => format!("all {count} frames of {bytes} bytes of the DRAM tier are in use at once"),
        };
        Error::OutOfFrames { what }
    }

    /// Waits for a maintenance round, but not for long.
    pub(crate) fn wait_for_round(&self) -> Result<()> {
        self.check()?;
        self.requests.wake_up.wait_for_round()
    }

    /// Reserves log for a commit. Waits, also for room in the page file, unlike
    /// `reserve_log_to_free`. The caller holds no latch and nothing in flight.
    pub(crate) fn reserve_log(&self, bytes: u64) -> Result<Reservation<'_>> {
        if self.requests.is_short_of_room() {
            self.requests.maintainer().wait_for_room()?;
        }
        self.reserve_log_to_free(bytes)
    }

    /// Reserves log without waiting for room in the page file, as commits that free pages need it.
    /// A newcomer passes no line.
    ///
    /// # Errors
    /// [`Error::TransactionTooLarge`]; [`Error::Full`] if a full disk prevents the cut;
    /// [`Error::OutOfLog`] if another reason does for [`WAIT_MAX`](super::patience::WAIT_MAX);
    /// [`Error::Poisoned`].
    pub(crate) fn reserve_log_to_free(&self, bytes: u64) -> Result<Reservation<'_>> {
        let most = self.wal.max_reservation();
        if bytes > most {
            return Err(Error::TransactionTooLarge { bytes, max: most, reads: false });
        }
        let line = &self.requests.log_line;
        if line.is_empty()
            && let Some(reservation) = self.wal.reserve(bytes, Class::Commit)
        {
            return Ok(reservation);
        }
        let turn = line.enter();
        self.wait_for_log(bytes, Class::Commit, &|| turn.has_come())
    }

    /// Reserves log for a structure modification or recovery. Waits; the caller holds no latch, but
    /// maybe a transaction.
    ///
    /// # Errors
    /// Those of [`Pool::reserve_log_to_free`] except [`Error::TransactionTooLarge`].
    pub(crate) fn reserve_log_for_structure(&self, bytes: u64) -> Result<Reservation<'_>> {
        let class = if self.requests.is_recovering() { Class::System } else { Class::Structure };
        match self.wal.reserve(bytes, class) {
            Some(reservation) => Ok(reservation),
            None => self.check().and_then(|()| self.wait_for_log(bytes, class, &|| true)),
        }
    }

    fn wait_for_log(&self, bytes: u64, class: Class, turn: &dyn Fn() -> bool) -> Result<Reservation<'_>> {
        let mut reservation = None;
        self.requests.maintainer().wait_for_log(bytes, turn, &mut || {
            reservation = self.wal.reserve(bytes, class);
            reservation.is_some()
        })?;
        Ok(reservation.expect("the wait ends when there is one"))
    }

    /// Grows the log to `bytes` bytes, or as far as it may. The caller holds no latch.
    ///
    /// # Errors
    /// [`Error::Full`] without space for it, and those of writes.
    pub(crate) fn ensure_log_capacity(&self, bytes: u64) -> Result<()> {
        self.requests.maintainer().ensure_log_capacity(bytes)
    }

    pub(crate) fn log_progress(&self) -> (u64, u64, u64) {
        (self.wal.cut().0, self.wal.tail().0, self.stats.images_written.load(Relaxed))
    }
}

/// A leaf for a point read.
pub(crate) enum Leaf<'p> {
    Whole(ReadGuard<'p>),
    Partial(Unread<'p>),
}

/// [`Pool::access_in_middle`] of a leaf for a point read, which may promote it without its lines.
pub(crate) fn access_leaf<'p>(pool: &'p Pool, guard: ReadGuard<'p>, loaded: bool) -> Result<Leaf<'p>, Retry> {
    // Only pages of the own size have lines.
    let is_own = || class_of(guard.page().frame) == pool.class() || planted(Bug::PartialOfOtherSize);
    let partial = pool.frames.lines.is_some() && is_own();
    let guard = access(pool, guard, loaded, partial)?;
    Ok(match partial && !guard.is_in_middle() {
        true => Leaf::Partial(Unread::new(guard)),
        false => Leaf::Whole(guard),
    })
}

/// Takes a mini page for `id`, if pages may be mini and that needs no wait. Without a maintenance
/// thread it writes pages, so the caller holds no latch.
///
/// An operation that could get no frame for a seventeenth line asks for the frame first.
fn take_mini(pool: &Pool, id: PageId) -> Result<Option<u32>> {
    let Some(minis) = pool.frames.minis.as_ref().filter(|_| operation::current().restarts <= RESTARTS_MAX)
    else {
        return Ok(None);
    };
    if let Some(mini) = pool.frames.take_mini() {
        return Ok(Some(mini));
    }
    if pool.tiers.free_minis(minis.class().into()) {
        return Ok(pool.frames.take_mini());
    }
    let Some(frame) = pool.take_frame_now(minis.class().into(), id)? else { return Ok(None) };
    pool.tiers.hold_minis(frame);
    Ok(pool.frames.take_mini())
}

/// `partial`: a promotion leaves out the lines.
fn access<'p>(
    pool: &'p Pool,
    guard: ReadGuard<'p>,
    loaded: bool,
    partial: bool,
) -> Result<ReadGuard<'p>, Retry> {
    let middle = pool.tiers.middle_of_frame();
    before_access(pool, &guard)?;
    let is_leaf = guard.view().u8(page::LEVEL_AT) & !COMPRESS == 0;
    let (asked, path) = middle.decide(pool.mode(), guard.id(), is_leaf);
    if path == Path::MiddleToDram {
        let promotion = match pool.frames.moves_memory() {
            true => pool.promote_together(middle, &guard, asked)?,
            false => pool.promote(middle, &guard, asked, partial)?,
        };
        match promotion {
            Promotion::Done(guard) => return Ok(guard),
            Promotion::Deferred => middle.counts.up_deferred.fetch_add(1, Relaxed),
            Promotion::Refused => middle.counts.up_refused.fetch_add(1, Relaxed),
        };
    }
    middle.access_in_place(guard.page().frame, asked);
    if !loaded {
        guard.mark();
    }
    Ok(guard)
}

impl Waits for Pool {
    fn most(&self, class: SizeClass) -> u32 {
        self.frames.count(class) / 2
    }

    fn progress(&self, class: SizeClass) -> Result<((u64, u64, u64), u64)> {
        self.check().map(|()| (self.log_progress(), self.stats.taken(class)))
    }

    fn refused(&self, class: SizeClass) -> Error {
        self.out_of_frames(class)
    }
}
