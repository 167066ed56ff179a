//! Logged changes of pages.
//!
//! Other new content comes only from loading, redo and pins. The order is the log's (durability,
//! rule 3): the caller latches, then append, which draws the LSN, store and stamp, unlatch. A log
//! ticket is held from before the append until all pages are dirty. So a concurrent checkpoint's
//! cut stays below.

use super::buffer_pool::Pool;
use super::guard::WriteGuard;
use super::page_table::Location;
use super::replacement::FrameReservation;
use super::resident::class_of_page;
use super::view::Piece;
use crate::error::{Error, Result};
use crate::ids::{ByClass, Lsn, PageId, SizeClass};
use crate::planted::{Bug, planted};
use crate::store::mapping_word::MappingWord;
use crate::store::page;
use crate::wal::{Appended, RecordBuilder, Reservation};

/// Room for new pages, granted before a change writes.
#[derive(Debug)]
pub(crate) struct Grant<'p> {
    pool: &'p Pool,
    /// Blocks.
    left: u64,
    frames: FrameReservation<'p>,
}

impl Grant<'_> {
    /// Frames that may be held at once.
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

/// Id and frame of a new page; returned if dropped unused.
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

    pub(crate) fn zeroed(&self) -> Vec<u8> {
        vec![0; self.class.page_bytes()]
    }
}

impl Drop for NewPage<'_> {
    fn drop(&mut self) {
        if let Some(frame) = self.frame.take() {
            self.pool.discard(&[(self.id, frame)]);
            self.pool.give_frame(frame);
            self.pool.ids.lock().give_back(self.id);
            self.pool.space.ungrant(self.class.blocks());
        }
    }
}

/// A change of one page, which stamps it with the LSN.
pub(crate) enum Edit<'a, 'p> {
    Update(&'a mut WriteGuard<'p>, &'a mut [u8]),
    /// Replaces words behind the header, in the order of the page.
    Patch(&'a mut WriteGuard<'p>, &'a [Piece<'a>]),
    Create(NewPage<'p>, &'a mut [u8]),
    /// Frees the page; its id is reusable once the record is durable.
    Free(WriteGuard<'p>),
}

fn take_id(pool: &Pool, class: SizeClass) -> Option<PageId> {
    let mut ids = pool.ids.lock();
    let id = ids.take(class, pool.table.indexes_max(class))?;
    pool.table.admit(id);
    Some(id)
}

impl Pool {
    /// Grants `blocks` blocks for new pages, or fails for lack of disk. Waits until `frames` may be
    /// held at once. The caller holds no frame, log space or other grant.
    pub(crate) fn grant(&self, blocks: u64, frames: ByClass<u32>) -> Result<Grant<'_>> {
        let frames = self.reserve_frames(frames)?;
        self.space.grant(blocks)?;
        Ok(Grant { pool: self, left: blocks, frames })
    }

    /// Takes id and frame of a page. Uses `grant`, then free blocks. May wait for a frame; the
    /// caller holds no latch.
    pub(crate) fn new_page(&self, class: SizeClass, grant: Option<&mut Grant<'_>>) -> Result<NewPage<'_>> {
        self.frames.check_process()?;
        match grant {
            Some(grant) if grant.left >= class.blocks() => grant.left -= class.blocks(),
            _ => self.space.grant(class.blocks())?,
        }
        let frame = self.frame_for_new(class).inspect_err(|_| self.space.ungrant(class.blocks()))?;
        let Some(id) = take_id(self, class) else {
            self.give_frame(frame);
            self.space.ungrant(class.blocks());
            let bytes = class.page_bytes();
            let what =
                format!("every id of a page of {bytes} bytes that the page table has room for is in use");
            return Err(Error::Full { what });
        };
        if let Err(error) = self.populate(&[(id, frame)]) {
            self.give_frame(frame);
            self.ids.lock().give_back(id);
            self.space.ungrant(class.blocks());
            return Err(error);
        }
        self.count_created(frame);
        Ok(NewPage { pool: self, id, class, frame: Some(frame) })
    }

    /// Logs `record` and applies `edits`, which it describes exactly, as one change. On error
    /// nothing is changed, and the log has failed unless the record was too large.
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
                    guard.note_change(lsn);
                }
                Edit::Patch(guard, pieces) => {
                    guard.patch(pieces, lsn);
                    guard.note_change(lsn);
                }
                Edit::Create(new, content) => {
                    self.verify_marks.note_renewed(new.id);
                    page::set_lsn(content, lsn);
                    self.bring_into_being(new, lsn, content);
                }
                Edit::Free(guard) => {
                    self.verify_marks.note_renewed(guard.id());
                    guard.note_change(lsn);
                    let id = guard.id();
                    guard.give_back_freed();
                    self.requests.note(lsn, id, false);
                }
            }
        }
        drop(ticket);
        Ok(appended)
    }

    fn bring_into_being(&self, mut new: NewPage<'_>, lsn: Lsn, content: &[u8]) {
        let frame = new.frame.take().expect("a new page has its frame until it is used");
        debug_assert_eq!(page::page_id(content), new.id);
        self.install(new.id, frame, MappingWord::FREE, lsn, content);
        self.requests.note(lsn, new.id, true);
    }

    /// Creates a page unknown to the log, in a pool without recovery.
    pub(super) fn create_unlogged(&self, mut new: NewPage<'_>, content: &[u8]) -> PageId {
        let frame = new.frame.take().expect("a new page has its frame until it is used");
        self.install(new.id, frame, MappingWord::FREE, Lsn::NONE, content);
        new.id
    }

    /// Ends a page whose free is durable. Returns its mapping word.
    pub(crate) fn end_freed(&self, page: PageId) -> MappingWord {
        let entry = self.table.entry(page).expect("freed ids are within the table");
        self.lock_entry(entry);
        // The seal is off before the id can be used again.
        let give = |frame| {
            if planted(Bug::KeepSealOfFreed) {
                self.frames.forget_seal(frame);
            }
            self.give_frame(frame);
        };
        let old = match entry.location() {
            Location::Frame(frame) | Location::Partial(frame) => {
                let header = self.frames.header(frame);
                let old = header.mapped();
                header.set_rec_lsn(Lsn::NONE);
                entry.latch().set_dirty(false);
                self.discard(&[(page, frame)]);
                if let Some(below) = self.detach_copy(&header).filter(|_| !planted(Bug::KeepMiddleCopy)) {
                    self.count_copy_freed();
                    give(below);
                }
                give(frame);
                old
            }
            Location::Store(mapped) => mapped,
            // No file leads here: a freed page is not latched again (`ReadGuard::upgrade`).
            Location::Nowhere => unreachable!("page {} freed twice", page),
        };
        entry.set_location(Location::Nowhere);
        entry.latch().set_freed(false);
        entry.latch().release_changed();
        old
    }

    /// Recovery: creates a page that only the log knows.
    pub(crate) fn create_again(&self, id: PageId, lsn: Lsn, content: &[u8]) -> Result<()> {
        let frame = self.take_frame(class_of_page(id), id)?;
        self.populate(&[(id, frame)]).inspect_err(|_| self.give_frame(frame))?;
        self.install(id, frame, MappingWord::UNWRITTEN, lsn, content);
        Ok(())
    }

    /// Puts a page without an image into a populated `frame`.
    fn install(&self, id: PageId, frame: u32, mapped: MappingWord, lsn: Lsn, content: &[u8]) {
        let entry = self.table.entry(id).expect("ids given out are within the table");
        let latch = entry.latch();
        // A thread with an old reference may hold the latch until it finds the page missing.
        self.lock_entry(entry);
        debug_assert_eq!(entry.location(), Location::Nowhere);
        self.fill(id, frame, content);
        self.bind_to_frame(id, entry, frame, mapped);
        self.frames.header(frame).set_rec_lsn(lsn);
        latch.set_dirty(true);
        latch.set_claimed(false);
        latch.release_changed();
        self.unlocked(id, entry, frame);
    }
}
