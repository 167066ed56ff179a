//! Changing pages: the one way content gets into frames besides loading and redo.
//!
//! The order is the log's (durability, rule 3): the pages are latched, the record is appended, which draws its LSN,
//! the new content is stored and stamped, the latches are given back. A ticket of the log covers the time from
//! before the LSN is drawn until every page knows it is dirty, so that a checkpoint which computes the cut meanwhile
//! stays below.

use super::guard::WriteGuard;
use super::pool::{Event, Pool, Stop};
use super::reserve::FrameReservation;
use super::table::Location;
use crate::error::{Error, Result};
use crate::ids::{ByClass, Lsn, PageId, SizeClass};
use crate::planted::{Bug, planted};
use crate::store::page;
use crate::store::place::Mapped;
use crate::wal::{Appended, RecordBuilder, Reservation};

/// Room for new pages, promised before anything of a change is written.
#[derive(Debug)]
pub(crate) struct Grant<'p> {
    pool: &'p Pool,
    /// Places.
    left: u64,
    /// Frames.
    frames: FrameReservation<'p>,
}

impl Grant<'_> {
    /// Frames of `class` that may be in hand at once.
    pub(crate) fn frames(&self, class: SizeClass) -> u32 {
        self.frames.of(class)
    }
}

impl Drop for Grant<'_> {
    fn drop(&mut self) {
        if self.left > 0 {
            self.pool.space.ungrant(self.left);
        }
    }
}

/// A page id and a frame for a page that is about to exist. Dropped without being used, both go back.
#[derive(Debug)]
pub(crate) struct NewPage<'p> {
    pool: &'p Pool,
    id: PageId,
    class: SizeClass,
    frame: Option<u32>,
}

impl NewPage<'_> {
    pub(crate) fn id(&self) -> PageId {
        self.id
    }

    /// A page of zeros, to be made the content of this one.
    pub(crate) fn zeroed(&self) -> Vec<u8> {
        vec![0; self.class.page_bytes()]
    }
}

impl Drop for NewPage<'_> {
    fn drop(&mut self) {
        if let Some(frame) = self.frame.take() {
            self.pool.evacuate(&[(self.id, frame)]);
            self.pool.give_frame(frame);
            self.pool.ids.lock().give_back(self.id);
            self.pool.space.ungrant(self.class.places());
        }
    }
}

/// What a change does to one page. The content handed over is stamped with the LSN.
pub(crate) enum Edit<'a, 'p> {
    /// The page gets this content.
    Update(&'a mut WriteGuard<'p>, &'a mut [u8]),
    /// Part of the page gets this content: whole words, at a multiple of eight behind the page's header.
    Patch(&'a mut WriteGuard<'p>, usize, &'a [u8]),
    /// The page comes into existence with this content.
    Create(NewPage<'p>, &'a mut [u8]),
    /// The page ceases to exist. Its id is used again when the record is durable.
    Free(WriteGuard<'p>),
}

impl Pool {
    /// Promises room for new pages that take so many places, or says that the disk is full; and so many frames of each
    /// class to be in hand at once, which is waited for. The caller holds no frame, no log space and no other grant.
    pub(crate) fn grant(&self, places: u64, frames: ByClass<u32>) -> Result<Grant<'_>> {
        let frames = self.reserve_frames(frames)?;
        self.space.grant(places)?;
        Ok(Grant { pool: self, left: places, frames })
    }

    /// A page id and a frame for a page of `class`, out of `grant` or, when that is used up, out of what is free. May wait
    /// for a frame; the caller holds no latch.
    pub(crate) fn new_page(&self, class: SizeClass, grant: Option<&mut Grant<'_>>) -> Result<NewPage<'_>> {
        match grant {
            Some(grant) if grant.left >= class.places() => grant.left -= class.places(),
            _ => self.space.grant(class.places())?,
        }
        let frame = self.frame_for_new(class).inspect_err(|_| self.space.ungrant(class.places()))?;
        let Some(id) = self.ids.lock().take(class, self.table.indexes_max(class)) else {
            self.give_frame(frame);
            self.space.ungrant(class.places());
            let bytes = class.page_bytes();
            let what =
                format!("every id of a page of {bytes} bytes that the page table has room for is in use");
            return Err(Error::Full { what });
        };
        if let Err(error) = self.house(&[(id, frame)]) {
            self.give_frame(frame);
            self.ids.lock().give_back(id);
            self.space.ungrant(class.places());
            return Err(error);
        }
        self.count_created(frame);
        Ok(NewPage { pool: self, id, class, frame: Some(frame) })
    }

    /// Logs `record` and applies it: one atomic change of all pages in `edits`. The record must describe exactly
    /// these edits. On error nothing was changed, and the log is poisoned or was full.
    pub(crate) fn change<'a, 'p: 'a>(
        &'p self,
        record: &mut RecordBuilder,
        reservation: Option<&mut Reservation<'_>>,
        edits: impl IntoIterator<Item = Edit<'a, 'p>>,
    ) -> Result<Appended> {
        let ticket = self.wal.enter();
        let appended = self.wal.append(record, reservation)?;
        let lsn = appended.lsn;
        for edit in edits {
            match edit {
                Edit::Update(guard, content) => {
                    page::set_lsn(content, lsn);
                    guard.store(content);
                    self.note_change(guard, lsn);
                }
                Edit::Patch(guard, at, content) => {
                    guard.patch(at, content, lsn);
                    self.note_change(guard, lsn);
                }
                Edit::Create(new, content) => {
                    self.note_renewed(new.id);
                    page::set_lsn(content, lsn);
                    self.bring_into_being(new, lsn, content);
                }
                Edit::Free(guard) => {
                    self.note_renewed(guard.id());
                    self.note_change(&guard, lsn);
                    let id = guard.id();
                    guard.give_back_freed();
                    self.events.lock().push(Event { lsn, page: id, allocated: false });
                }
            }
        }
        drop(ticket);
        Ok(appended)
    }

    /// The wrong order, for [`Bug::AppendBeforeLatching`](crate::planted::Bug::AppendBeforeLatching): `record`, which
    /// is about the page `id` alone, draws its LSN before the page is latched. A change by others in between has the
    /// higher LSN and is made first; then the page's LSN goes back.
    pub(crate) fn change_before_latching(
        &self,
        record: &mut RecordBuilder,
        reservation: Option<&mut Reservation<'_>>,
        id: PageId,
        apply: impl FnOnce(&mut [u8]) -> Result<bool>,
    ) -> Result<Appended, Stop> {
        let ticket = self.wal.enter();
        let appended = self.wal.append(record, reservation)?;
        self.meanwhile();
        let mut guard = self.latch(id)?;
        let mut content = Vec::new();
        guard.copy(&mut content);
        apply(&mut content)?;
        page::set_lsn(&mut content, appended.lsn);
        guard.store(&content);
        self.note_change(&guard, appended.lsn);
        drop(ticket);
        Ok(appended)
    }

    /// A page is about to come into being, or to cease to exist.
    fn note_renewed(&self, id: PageId) {
        if let Some(census) = self.census()
            && !planted(Bug::RenewalUntold)
        {
            census.renew(id);
        }
    }

    /// The page in `guard` was changed by the record at `lsn`.
    pub(super) fn note_change(&self, guard: &WriteGuard<'_>, lsn: Lsn) {
        let (header, latch) = (guard.header(), guard.entry().latch());
        if header.recovery().is_none() {
            header.set_recovery(lsn);
        }
        let now = latch.load();
        if now.is_claimed() && header.next_recovery().is_none() {
            header.set_next_recovery(lsn);
        }
        if !now.is_dirty() {
            latch.set_dirty(true);
        }
    }

    fn bring_into_being(&self, mut new: NewPage<'_>, lsn: Lsn, content: &[u8]) {
        let frame = new.frame.take().expect("a new page has its frame until it is used");
        debug_assert_eq!(page::page_id(content), new.id);
        self.install(new.id, frame, Mapped::FREE, lsn, content);
        self.events.lock().push(Event { lsn, page: new.id, allocated: true });
    }

    /// Brings a page into being of which the log knows nothing, in a pool that nobody recovers.
    pub(super) fn create_unlogged(&self, mut new: NewPage<'_>, content: &[u8]) -> PageId {
        let frame = new.frame.take().expect("a new page has its frame until it is used");
        self.install(new.id, frame, Mapped::FREE, Lsn::NONE, content);
        new.id
    }

    /// Puts a page that has no image into `frame`, where it is housed already, dirty since `lsn`.
    pub(super) fn install(&self, id: PageId, frame: u32, mapped: Mapped, lsn: Lsn, content: &[u8]) {
        let entry = self.table.entry(id).expect("ids given out are within the table");
        let latch = entry.latch();
        // Whoever heard of the page that had this id before may have it latched while he learns that it is gone.
        self.lock_entry(entry);
        debug_assert_eq!(entry.location(), Location::Nowhere);
        self.fill(id, frame, content);
        self.settle_in_frame(id, entry, frame, mapped);
        self.frames.header(frame).set_recovery(lsn);
        latch.set_dirty(true);
        latch.set_claimed(false);
        latch.release_changed();
        self.unlocked(id, entry, frame);
    }
}
