//! Pages on their way between DRAM and the middle tier.
//!
//! ```text
//!   store ──frame_for_load──> middle ──settle──> DRAM ──go_down──> middle ──> store
//!      └─────────────────────────────────────────^ └───────────────────────────^
//! ```
//!
//! **Two copies.** Where pages are in frames of their tier's own memory, a page that comes to DRAM leaves its copy in the middle tier
//! where it is, *below*. The page table names the copy in DRAM, whose header is what counts; it knows the frame below, and the header
//! there has the version of the page at which both were equal. Every change moves the version. So when the page leaves DRAM and the
//! version is still that one, the copy below is as new, and takes over what the header said, dirtiness included, without a byte
//! being moved; else the page is copied down, dirty or clean: nobody ever reads a copy that is older, and a page that has its place
//! in the middle tier keeps it. There is no write to a copy that has another above it. A copy below is dropped at any time for
//! another page's sake, which readers do not notice, and with its page when that is freed. **One copy**: where the bytes of a page are at one address whatever frame it has, and where
//! replacement goes by versions (`fifo.rs`), the frame below is given back at once.
//!
//! **Memory that moves.** Where the two tiers of mapped pages are nodes, a page that changes tiers has its memory moved by the system, while
//! it is latched and before anything says that it has gone (`residency/nodes.rs`); so what the system does not move stays in its tier, like a
//! page for which there is no frame. Pages go up together (`due.rs`), and down in the batches of the sweep.
//!
//! **Up.** A reader that finds a page in the middle tier casts a die ([`Pool::settle`]). If it says so, and if a frame in DRAM can be
//! had without waiting, the page is latched exclusively at the version at which it was found, copied, and unlatched with a
//! new version, at which the reader goes on: who followed a pointer to it did so while the page was at the old one, and nothing but
//! its place changed in between. What refuses is no error: the page is read where it is. Pages whose image is in flight do not move.
//!
//! **Down.** The sweep decides about a page that is to leave DRAM, with its latch in hand, and leaves moving it to when it has
//! let go of its lock ([`Pool::go_down`]). Frames for it are taken if there are any now. If not, a clean page is dropped, and a dirty one
//! stays where it is, in the laundry.
//!
//! **The cut of the log** is computed from the headers of all frames, one after the other. A dirty page that went from a frame not
//! looked at yet to one that was would be missed. So who moves one holds `moving` shared, and who computes the cut holds it alone; the
//! one does not wait for the other but leaves the page where it is. Whoever looks for the durable state of a page may find
//! it moved and looks again (`Pool::durable_state`): a lower copy's header keeps what it knew of the store, which the upkeep alone
//! changes.
//!
//! Lock order: page latches, `moving`, free frames in DRAM, those of the middle tier, the admission queue.

use std::sync::atomic::{Ordering::Relaxed, Ordering::Release, fence};

use super::due::Raised;
use super::evict::{Leaving, To};
use super::guard::ReadGuard;
use super::latch::Word;
use super::middle::Counts;
use super::migration::{Access, Intent, Path};
use super::operation;
use super::pool::{Pool, Stop, class_of_page};
use super::stripe::{Stripe, Tier, class_of, is_middle};
use super::table::{Entry, Location};
use super::view::View;
use crate::backend::Backend;
use crate::error::Result;
use crate::ids::{Lsn, PageId, SizeClass};
use crate::planted::{Bug, planted};
use crate::replacement::Replacement;
use crate::store::page;

impl Pool {
    /// Whether a page may have a copy in each tier.
    pub(super) fn has_two_copies(&self) -> bool {
        self.backend() == Backend::Frames && self.replacement != Replacement::FifoPaper
    }

    /// A frame for `id`, which is about to be read from the store: of the middle tier if the policy says so and one can be had now,
    /// else of DRAM. May wait; the caller holds no latch.
    pub(super) fn frame_for_load(&self, id: PageId) -> Result<u32> {
        let stripe = self.stripe_for_load(id);
        if stripe.tier == Tier::Middle
            && let Some(frame) = self.take_frame_now(stripe, id)?
        {
            return Ok(frame);
        }
        self.take_frame(stripe.class, id)
    }

    /// The stripe of the frame that a page which is read from the store is to have, by the policy.
    pub(super) fn stripe_for_load(&self, id: PageId) -> Stripe {
        let class = class_of_page(id);
        match self.middle_for(class) {
            Some(middle) if !middle.is_bypassed(self.mode, id) => Stripe::middle(class),
            _ => class.into(),
        }
    }

    /// The same for a page of `class` that is about to be made.
    pub(super) fn frame_for_new(&self, class: SizeClass) -> Result<u32> {
        if let Some(middle) = self.middle_for(class)
            && !middle.is_bypassed_by_new()
            && let Some(frame) = self.take_frame_now(Stripe::middle(class), PageId::NONE)?
        {
            return Ok(frame);
        }
        self.take_frame(class, PageId::NONE)
    }

    /// Decides about a page that was found in the middle tier: gives a guard of it in DRAM if it was brought there, else the same.
    /// `loaded` says that it came in just now. What was read that led to it must hold.
    #[cold]
    #[inline(never)]
    pub(crate) fn settle<'p>(&'p self, guard: ReadGuard<'p>, loaded: bool) -> Result<ReadGuard<'p>, Stop> {
        let middle = self.middle.as_ref().expect("only a middle tier has such frames");
        // An operation that writes writes to a leaf, and reads what leads there.
        let is_leaf = guard.view().u8(page::LEVEL_AT) & !crate::store::image::COMPRESS == 0;
        let access = |access| if is_leaf { access } else { Access::Read };
        let asked = access(operation::current().access);
        let path = middle.path_of_access(self.mode, guard.id(), |by| Intent::Touch(access(by)));
        if path == Path::MiddleToDram {
            let raised = match self.frames.moves_memory() {
                true => self.bring_up_together(&guard, asked)?,
                false => self.bring_up(&guard, asked)?,
            };
            match raised {
                Raised::Up(guard) => return Ok(guard),
                Raised::Waits => middle.counts.up_deferred.fetch_add(1, Relaxed),
                Raised::Stays => middle.counts.up_refused.fetch_add(1, Relaxed),
            };
        }
        self.charge_search(guard.frame());
        match asked {
            Access::Read => middle.counts.reads_in_place.raise(),
            Access::Write => middle.counts.writes_in_place.raise(),
        }
        if !loaded {
            guard.mark();
        }
        Ok(guard)
    }

    /// Brings a page to DRAM that is in the middle tier at the version seen, if that can be done now.
    fn bring_up<'p>(&'p self, guard: &ReadGuard<'p>, access: Access) -> Result<Raised<'p>> {
        let (id, entry, from) = (guard.id(), guard.entry(), guard.frame());
        // A frame would be taken in vain for one whose image is in flight.
        if guard.seen().is_claimed() || guard.seen().is_dirty() && self.is_short_of_room() {
            return Ok(Raised::Stays);
        }
        let Some(to) = self.take_frame_now(Stripe::from(class_of(from)), id)? else {
            return Ok(Raised::Stays);
        };
        match self.move_up(id, entry, guard.seen(), from, to) {
            Some((seen, freed)) => {
                freed.into_iter().for_each(|frame| self.give_frame(frame));
                self.count_raised(access);
                self.unlocked(id, entry, to);
                Ok(Raised::Up(ReadGuard::new(self, id, entry, seen, to)))
            }
            None => {
                self.give_frame(to);
                Ok(Raised::Stays)
            }
        }
    }

    /// A page was brought to DRAM for `access`.
    pub(super) fn count_raised(&self, access: Access) {
        if let Some(Counts { up_for_read, up_for_write, .. }) =
            self.middle.as_ref().map(|middle| &middle.counts)
        {
            let count = if access == Access::Read { up_for_read } else { up_for_write };
            count.fetch_add(1, Relaxed);
        }
    }

    /// Moves the page `id` from a frame of the middle tier to one in DRAM, if it is still at the version seen; returns its state then,
    /// and the frame that holds nothing any more.
    fn move_up(
        &self,
        id: PageId,
        entry: Entry<'_>,
        seen: Word,
        from: u32,
        to: u32,
    ) -> Option<(Word, Option<u32>)> {
        let latch = entry.latch();
        let moving = self.moving.try_read()?;
        if !latch.try_exclusive(seen) {
            return None;
        }
        if latch.load().is_claimed() || entry.location() != Location::Frame(from) {
            latch.release_unchanged();
            return None;
        }
        let raised = self.raise(id, entry, seen, from, to);
        drop(moving);
        Some(raised)
    }

    /// Makes `to`, in DRAM, the frame of the page `id`, which is in `from` at the version seen, and unlatches it; `moving` and the page's
    /// exclusive latch are the caller's. Returns its state then, and the frame that holds nothing any more.
    pub(super) fn raise(
        &self,
        id: PageId,
        entry: Entry<'_>,
        seen: Word,
        from: u32,
        to: u32,
    ) -> (Word, Option<u32>) {
        let latch = entry.latch();
        self.copy_page(id, from, to);
        let (lower, upper) = (self.frames.header(from), self.frames.header(to));
        upper.set_mapped(lower.mapped());
        upper.set_recovery(lower.recovery());
        upper.set_next_recovery(Lsn::NONE);
        upper.set_purpose(None);
        upper.set_page(id);
        self.first_look(from);
        lower.set_recovery(Lsn::NONE);
        let stays = self.has_two_copies();
        if stays {
            upper.set_below(Some(from));
            self.middle.as_ref().inspect(|middle| _ = middle.counts.copies.fetch_add(1, Relaxed));
            lower.set_equal_at(seen.version_after(), self.replacement == Replacement::ClockPaper);
        } else {
            lower.set_page(PageId::NONE);
        }
        entry.set_location(Location::Frame(to));
        // It came to DRAM for this look: seen once there.
        latch.unmark();
        let now = latch.release_changed();
        (now, (!stays).then_some(from))
    }

    /// Moves pages down that are to leave DRAM for the middle tier, latched. Those that go are unlatched; those that cannot go down
    /// are given another end.
    pub(super) fn go_down(&self, leaving: &mut [Leaving<'_>]) {
        let Some(middle) = self.middle.as_ref() else { return };
        let lacks_frame = |page: &&Leaving<'_>| page.to == To::Middle && self.below(page).is_none();
        let wanted = leaving.iter().filter(lacks_frame).count();
        let stripe = Stripe::middle(middle.class);
        let mut frames = Vec::with_capacity(wanted);
        if wanted > 0 {
            self.try_take_frames(stripe, wanted, &mut frames);
        }
        // The frames were taken after the latches. Who still looks at what was in one of them before must not see what is stored there
        // now without seeing that the page he looks for has left: as the fence of a latch that is taken after the frame.
        fence(Release);
        let moving = self.moving.try_read();
        let mut going = Vec::with_capacity(leaving.len());
        for page in leaving.iter_mut().filter(|page| page.to == To::Middle) {
            let dirty = page.entry.latch().load().is_dirty();
            let may_move = !dirty || moving.is_some();
            let frame = may_move.then(|| self.below(page).or_else(|| frames.pop())).flatten();
            going.push((page, frame, dirty));
        }
        // Memory first, of all that have a frame: a page whose memory stays has none there.
        let moves = || going.iter().filter(|(_, frame, _)| frame.is_some());
        let ids: Vec<PageId> = moves().map(|(page, ..)| page.id).collect();
        let mut there = self.frames.migrate(&ids, Tier::Middle).into_iter();
        let mut gone = Vec::with_capacity(ids.len());
        for (page, frame, dirty) in going {
            match frame.filter(|_| there.next() == Some(true)) {
                Some(frame) => {
                    self.move_down(page, frame, dirty);
                    gone.push((frame, page.id, page.entry));
                    page.to = To::Gone;
                }
                None => {
                    // It is none that the page has below it: a page of two copies has no memory that moves.
                    frames.extend(frame);
                    middle.counts.down_refused.fetch_add(1, Relaxed);
                    page.to = if dirty { To::Stays } else { To::Store };
                }
            }
        }
        drop(moving);
        frames.into_iter().for_each(|frame| self.give_frame(frame));
        if gone.is_empty() {
            return;
        }
        // Before they are unlatched: from then on others may take them out of these frames.
        let mut free = self.free(stripe).lock();
        gone.iter().for_each(|&(frame, id, _)| _ = free.queues.enter(&self.frames, frame, id));
        drop(free);
        for (frame, id, entry) in gone {
            entry.latch().release_changed();
            self.unlocked(id, entry, frame);
        }
    }

    /// Gives the exclusive latch of a page back that was to change tiers and stays; whether with a new version, since its bytes may have been
    /// away: who began to look at it before that, and saw zeros, must find that it does not hold.
    pub(super) fn release_unmoved(&self, entry: Entry<'_>) -> bool {
        let were_away = self.frames.takes_bytes_away();
        if were_away {
            entry.latch().release_changed();
        } else {
            entry.latch().release_unchanged();
        }
        were_away
    }

    /// A copy in the middle tier was dropped because its page was freed.
    pub(super) fn count_copy_freed(&self) {
        if let Some(middle) = &self.middle {
            middle.counts.copies_freed.fetch_add(1, Relaxed);
        }
    }

    /// A copy in the middle tier was dropped for another page.
    pub(super) fn count_copy_dropped(&self) {
        if let Some(middle) = &self.middle {
            middle.counts.copies_dropped.fetch_add(1, Relaxed);
        }
    }

    fn below(&self, page: &Leaving<'_>) -> Option<u32> {
        self.frames.header(page.frame).below()
    }

    /// Makes `frame`, of the middle tier, that of a page that has been in DRAM, under its exclusive latch.
    fn move_down(&self, page: &Leaving<'_>, frame: u32, dirty: bool) {
        let middle = self.middle.as_ref().expect("there is a frame of it");
        let (upper, lower) = (self.frames.header(page.frame), self.frames.header(frame));
        let version = page.entry.latch().load().version();
        let is_equal = upper.below() == Some(frame) && lower.equal_at() == version;
        if is_equal || (planted(Bug::StaleMiddleCopy) && upper.below() == Some(frame)) {
            middle.counts.down_current.fetch_add(1, Relaxed);
        } else {
            self.copy_page(page.id, page.frame, frame);
            let count = if dirty { &middle.counts.down_dirty } else { &middle.counts.down_clean };
            count.fetch_add(1, Relaxed);
        }
        lower.set_mapped(upper.mapped());
        if !planted(Bug::DemoteWithoutRecLsn) {
            lower.set_recovery(upper.recovery());
        }
        if upper.below() == Some(frame) && lower.is_marked_below() {
            page.entry.latch().mark();
        }
        lower.set_next_recovery(Lsn::NONE);
        lower.set_purpose(None);
        lower.set_page(page.id);
        page.entry.set_location(Location::Frame(frame));
        upper.set_recovery(Lsn::NONE);
        self.part(&upper);
        upper.set_page(PageId::NONE);
    }

    /// Drops the copy of the page `id` in `frame`, of the middle tier, that has another above it in `above`, if the page is not
    /// latched and at the version seen. Neither version nor mark moves.
    pub(super) fn drop_below(
        &self,
        id: PageId,
        entry: Entry<'_>,
        seen: Word,
        above: u32,
        frame: u32,
    ) -> bool {
        debug_assert!(is_middle(frame));
        let latch = entry.latch();
        if !latch.try_exclusive(seen) {
            self.stats.swept_busy.fetch_add(1, Relaxed);
            return false;
        }
        let (upper, lower) = (self.frames.header(above), self.frames.header(frame));
        let is_below = entry.location() == Location::Frame(above)
            && upper.page() == id
            && upper.below() == Some(frame)
            && lower.page() == id;
        if is_below {
            self.part(&upper);
            lower.set_page(PageId::NONE);
        }
        latch.release_unchanged();
        is_below
    }
}
