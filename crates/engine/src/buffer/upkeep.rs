//! The background work, in rounds: absorb what became durable, write back dirty pages ahead of the sweep, checkpoint
//! so that the log can be cut, empty sparse segments.
//!
//! All of it happens under one lock, so there is never more than one image of a page in flight, cleaner included
//! (durability, rule 6). In the background a thread runs rounds when it is rung for and every few milliseconds;
//! inline, whoever needs something runs the part that gives it.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use terrace_block::AlignedBuffer;

use super::backup::BackupHold;
use super::cleaner::LeftAlone;
use super::mapping::Mapping;
use super::pool::{Event, Pool, places_granted};
use super::queues::{self, Queue};
use super::stats::Cause;
use super::stripe::{ByStripe, Stripe};
use super::table::Location;
use super::write_back::batches;
use crate::error::{Error, Result};
use crate::ids::{Lsn, PageId, SizeClass};
use crate::planted::{Bug, planted};
use crate::store::image::Packer;
use crate::store::place::Mapped;
use crate::store::superblock::{Slots, Superblock};

/// How long the upkeep thread sleeps when nobody rings.
const PAUSE: Duration = Duration::from_millis(5);
/// How far ahead of the sweep pages are written: one part in this many of all frames.
const AHEAD_SHARE: u32 = 8;
/// But not less than so many.
const AHEAD_MIN: u32 = 64;

/// What the background work owns.
#[derive(Debug)]
pub(crate) struct Upkeep {
    pub(super) slots: Slots,
    pub(super) superblock: Superblock,
    pub(super) mapping: Mapping,
    /// Images on their way to the store.
    pub(super) staging: AlignedBuffer,
    /// What they are compressed with.
    pub(super) packer: Packer,
    /// Segments that could not be emptied, because images in them are damaged or latched.
    pub(super) left_alone: LeftAlone,
    /// Every allocation and free with an LSN below this is in the durable state.
    pub(super) absorbed: Lsn,
    /// Frames of each stripe taken when the write-back last ran ahead of its sweep.
    pub(super) frames_taken: ByStripe<u64>,
    /// Why dirty pages are being written just now.
    pub(super) cause: Cause,
    /// Whether somebody waits for what is being done just now (`transfer.rs`).
    pub(super) hurried: bool,
    /// Whether what is being written is moved from elsewhere, which no cache is to keep for that.
    pub(super) moving: bool,
    /// What a backup under way wants to know, and to be left.
    pub(super) backup: Option<BackupHold>,
}

impl Upkeep {
    /// The durable image of `page` is another one now, or there is none any more.
    pub(super) fn note_image(&mut self, page: PageId) {
        if let Some(backup) = &mut self.backup {
            backup.changed.insert(page);
        }
    }
}

impl Pool {
    /// Takes allocations and frees whose records are durable into the durable state. Returns up to where.
    pub(super) fn absorb(&self, upkeep: &mut Upkeep) -> Lsn {
        // In this order: a record below the floor has been queued, one below the durable end will survive.
        let end = self.wal.cut_limit();
        let mut due: Vec<Event> = {
            let mut events = self.events.lock();
            let (due, later) = events.drain(..).partition(|event| event.lsn < end);
            *events = later;
            due
        };
        due.sort_unstable_by_key(|event| event.lsn);
        for event in due {
            if event.allocated {
                self.absorb_allocation(upkeep, event)
            } else {
                self.absorb_free(upkeep, event)
            }
        }
        upkeep.absorbed = upkeep.absorbed.max(end);
        end
    }

    fn absorb_allocation(&self, upkeep: &mut Upkeep, event: Event) {
        let entry = self.table.entry(event.page).expect("allocated ids are within the table");
        upkeep.mapping.dirty(event.page, event.lsn);
        // Shared, since the page may go from one tier to the other as long as nobody has it latched.
        self.share_entry(entry);
        // A page that has an image by now is allocated by that already.
        if let Location::Frame(frame) = entry.location() {
            let header = self.frames.header(frame);
            if header.mapped() == Mapped::FREE {
                header.set_mapped(Mapped::UNWRITTEN);
            }
        }
        entry.latch().unshare();
    }

    fn absorb_free(&self, upkeep: &mut Upkeep, event: Event) {
        let entry = self.table.entry(event.page).expect("freed ids are within the table");
        self.lock_entry(entry);
        let old = match entry.location() {
            Location::Frame(frame) => {
                let header = self.frames.header(frame);
                let old = header.mapped();
                header.set_recovery(Lsn::NONE);
                entry.latch().set_dirty(false);
                self.evacuate(&[(event.page, frame)]);
                if let Some(below) = self.part(&header).filter(|_| !planted(Bug::KeepMiddleCopy)) {
                    self.count_copy_freed();
                    self.give_frame(below);
                }
                self.give_frame(frame);
                old
            }
            Location::Store(mapped) => mapped,
            // No file leads here: a freed page is not latched again (`ReadGuard::upgrade`).
            Location::Nowhere => unreachable!("page {} freed twice", event.page),
        };
        entry.set_location(Location::Nowhere);
        entry.latch().set_freed(false);
        entry.latch().release_changed();
        match old.extent() {
            Some(extent) => self.free_places(extent),
            None => self.space.ungrant(places_granted(event.page)),
        }
        upkeep.mapping.dirty(event.page, event.lsn);
        upkeep.note_image(event.page);
        self.ids.lock().give_back(event.page);
    }

    /// Inline: makes frames of a stripe clean so that the sweep finds some, any of them if it is `urgent`.
    pub(super) fn upkeep_for_frames(&self, stripe: impl Into<Stripe>, urgent: bool) -> Result<()> {
        let mut upkeep = self.upkeep.lock();
        self.clean_ahead_of(&mut upkeep, stripe.into(), urgent)
    }

    /// One round of everything. `urgent` also writes pages that were touched lately.
    pub(crate) fn round(&self, urgent: bool) -> Result<()> {
        self.balance()?;
        let mut upkeep = self.upkeep.lock();
        self.absorb(&mut upkeep);
        upkeep.hurried = urgent;
        let outcome = self
            .clean_ahead(&mut upkeep, urgent)
            .and_then(|()| self.checkpoint_step(&mut upkeep))
            .and_then(|()| self.clean_segments(&mut upkeep));
        upkeep.hurried = false;
        drop(upkeep);
        self.tend_cache();
        outcome
    }

    /// Now and then has the cache make durable what it knows. Where the page file is written its syncs do that; where it is only read,
    /// nobody else would, and what came in since would be cold after a power cut.
    pub(super) fn tend_cache(&self) {
        if let Some(cache) = &self.cache {
            cache.tend_if_due();
        }
    }

    /// Writes back dirty pages that the sweeps are about to look at; if it is `urgent`, any of those stripes for which somebody
    /// waits, or of all if nobody has said which.
    fn clean_ahead(&self, upkeep: &mut Upkeep, urgent: bool) -> Result<()> {
        let wanting = self.wanting.swap(0, Relaxed);
        for stripe in self.frames.stripes() {
            let wanted = wanting == 0 || wanting & 1 << stripe.index() != 0;
            self.clean_ahead_of(upkeep, stripe, urgent && wanted)?;
        }
        Ok(())
    }

    /// Writes back dirty pages in `stripe` that the sweep is about to look at.
    fn clean_ahead_of(&self, upkeep: &mut Upkeep, stripe: Stripe, urgent: bool) -> Result<()> {
        let taken = self.stats.frames_taken[stripe.index()].load(Relaxed);
        if !urgent && upkeep.frames_taken[stripe.index()] == taken {
            // Nobody needed a frame since the last time: what is dirty waits for the checkpoint, if that.
            return Ok(());
        }
        upkeep.frames_taken[stripe.index()] = taken;
        let batch = upkeep.staging.len() / stripe.class.page_bytes();
        let mut pages = self.dirty_ahead(stripe, urgent, false, batch);
        if pages.is_empty() && urgent {
            pages = self.dirty_ahead(stripe, urgent, true, batch);
        }
        // What is written together is in the order of ids, which scans of tables that were loaded in order profit from.
        pages.sort_unstable();
        // A frame that a sweep moved on meanwhile was met in two queues.
        pages.dedup();
        for batch in batches(&pages, upkeep.staging.len()) {
            upkeep.cause = if urgent { Cause::Frames } else { Cause::Ahead };
            self.write_back(upkeep, batch)?;
            // Each batch logs where its images are. What is dirty may be all there is, and inline, where nothing but frames is
            // asked for, nobody else cuts the log.
            if self.wal.tail().0 - self.wal.cut().0 > self.log_capacity / 8 * 5 {
                self.checkpoint_step(upkeep)?;
            }
        }
        Ok(())
    }

    /// The dirty pages of the laundry of `stripe`, and as many others as make whole batches with them: such as are near the
    /// ends of the queues at which frames are taken, or anywhere if it is `urgent`. Marked ones too if they are accepted.
    fn dirty_ahead(&self, stripe: Stripe, urgent: bool, accept_marked: bool, batch: usize) -> Vec<PageId> {
        let count = self.page_frames(stripe);
        let (first, waiting) = {
            let free = self.free(stripe).lock();
            let first = [Queue::Laundry, Queue::Probation, Queue::Main].map(|queue| free.queues.first(queue));
            (first, free.queues.len(Queue::Laundry))
        };
        let most = (waiting as usize).max(1).next_multiple_of(batch);
        let reach = |share: u32| if urgent { count } else { share.max(AHEAD_MIN).min(count) };
        let laundry = queues::walk(&self.frames, first[0], count);
        let probation = queues::walk(&self.frames, first[1], reach(queues::probation_goal(count) / 2));
        let main = queues::walk(&self.frames, first[2], reach(count / AHEAD_SHARE));
        let main = main.filter(|&frame| urgent || self.frames.header(frame).links.count() <= 1);
        let mut pages = Vec::new();
        for frame in laundry.chain(probation).chain(main) {
            let id = self.frames.header(frame).page();
            let Some(entry) = self.table.entry(id).filter(|_| !id.is_none()) else { continue };
            let now = entry.latch().load();
            // What is dirty may be a copy in DRAM of what is here.
            let is_here = entry.location() == Location::Frame(frame);
            if is_here && now.is_dirty() && (accept_marked || !now.is_marked()) {
                pages.push(id);
                if pages.len() >= most {
                    break;
                }
            }
        }
        pages
    }

    /// Images of the page table that fit the staging buffer.
    pub(super) fn staging_table_images(&self, upkeep: &Upkeep) -> usize {
        upkeep.staging.len() / self.page_bytes
    }

    /// Notes that somebody waits for a frame of a stripe.
    pub(super) fn note_wanting(&self, stripe: impl Into<Stripe>) {
        self.wanting.fetch_or(1 << stripe.into().index(), Relaxed);
    }

    /// Whether somebody does, which is forgotten.
    pub(super) fn take_wanting(&self, stripe: Stripe) -> bool {
        let bit = 1 << stripe.index();
        self.wanting.load(Relaxed) & bit != 0 && self.wanting.fetch_and(!bit, Relaxed) & bit != 0
    }

    /// Notes that somebody has waited for a frame for a page of `class` in vain.
    pub(super) fn note_starving(&self, class: SizeClass) {
        self.starving.fetch_or(bit(class), Relaxed);
    }

    /// A class for which somebody has waited in vain, which is forgotten.
    pub(super) fn take_starving(&self) -> Option<SizeClass> {
        let starving = self.starving.load(Relaxed);
        let class = SizeClass::all().find(|&class| starving & bit(class) != 0)?;
        self.starving.fetch_and(!bit(class), Relaxed);
        Some(class)
    }

    /// Asks the upkeep thread for a round because frames of `stripe` are becoming few.
    pub(super) fn ring_for_frames(&self, stripe: Stripe, urgent: bool) {
        if urgent {
            self.note_wanting(stripe);
        }
        self.ring(urgent);
    }

    /// Whether whoever needs upkeep does it himself.
    pub(super) fn works_inline(&self) -> bool {
        !self.upkeep_runs.load(Relaxed)
    }

    /// Asks the upkeep thread for a round.
    pub(crate) fn ring(&self, urgent: bool) {
        let mut rung = self.bell.rung.lock();
        if !rung.wanted || (urgent && !rung.urgent) {
            rung.wanted = true;
            rung.urgent |= urgent;
            self.bell.work.notify_one();
        }
    }

    /// The log has no room for something: cuts it, or asks the upkeep thread to and waits a little. The thread keeps the
    /// log at half of its capacity by itself, which is not enough for a large reservation: being asked, it frees half of
    /// what is in use, again and again.
    pub(crate) fn wait_for_log_space(&self) -> Result<()> {
        self.stats.log_waits.fetch_add(1, Relaxed);
        if self.works_inline() {
            let made = self.checkpoint_now(false);
            self.bell.rung.lock().rounds += 1;
            return made;
        }
        self.bell.rung.lock().log_wanted = true;
        self.wait_for_round()
    }

    /// Waits until the upkeep thread has done something, or a little while.
    pub(crate) fn wait_for_round(&self) -> Result<()> {
        self.check()?;
        let mut rung = self.bell.rung.lock();
        if rung.stop {
            return Err(Error::Poisoned { reason: "the database is being closed".into() });
        }
        rung.wanted = true;
        rung.urgent = true;
        self.bell.work.notify_one();
        self.bell.done.wait_for(&mut rung, PAUSE);
        Ok(())
    }

    /// The upkeep thread: rounds until `stop_upkeep`. A failed round poisons the log, whose users then all learn of it.
    pub(crate) fn run_upkeep(&self) {
        /// A panic in a round must not leave others waiting for the next one.
        struct Leave<'a>(&'a Pool);
        impl Drop for Leave<'_> {
            fn drop(&mut self) {
                if std::thread::panicking() {
                    self.0.wal.poison("the upkeep thread panicked");
                }
                self.0.upkeep_runs.store(false, Relaxed);
                self.0.bell.done.notify_all();
            }
        }
        self.upkeep_runs.store(true, Relaxed);
        let _leave = Leave(self);
        let mut was_full = false;
        loop {
            let (urgent, log_wanted) = {
                let mut rung = self.bell.rung.lock();
                if !rung.wanted && !rung.stop {
                    self.bell.work.wait_for(&mut rung, PAUSE);
                }
                if rung.stop {
                    return;
                }
                rung.wanted = false;
                (std::mem::take(&mut rung.urgent), std::mem::take(&mut rung.log_wanted))
            };
            let round = || {
                self.wal.flush_at_leisure()?;
                self.round(urgent)?;
                if log_wanted { self.checkpoint_now(false) } else { Ok(()) }
            };
            if self.check().is_ok() {
                let is_full = match round() {
                    Ok(()) => false,
                    // No room to write back: reads go on, and the next round tries again.
                    Err(error @ Error::Full { .. }) => {
                        if !was_full {
                            tracing::warn!(%error, "upkeep waits for disk space");
                        }
                        true
                    }
                    Err(error) => {
                        self.wal.poison(&error.to_string());
                        false
                    }
                };
                was_full = is_full;
            }
            let mut rung = self.bell.rung.lock();
            rung.rounds += 1;
            rung.is_full = was_full;
            self.bell.done.notify_all();
        }
    }

    /// Ends `run_upkeep`.
    pub(crate) fn stop_upkeep(&self) {
        self.bell.rung.lock().stop = true;
        self.bell.work.notify_all();
        self.bell.done.notify_all();
    }

    /// After the log was poisoned: returns when nothing is being written any more. What comes later finds it poisoned.
    pub(crate) fn wait_for_writes(&self) {
        // Images, chunks and superblocks are written under this lock, each after a look at the poison.
        drop(self.upkeep.lock());
        self.wal.wait_for_writes();
    }
}

/// The bit of `class` in [`Pool::starving`].
fn bit(class: SizeClass) -> u16 {
    1 << class.index()
}
