//! One life of a pool: random steps until they are done or the power goes.
//!
//! A step changes pages like the engine: reserve log space; create and fault in pages; latch all;
//! decide what to write; log, apply, unlatch. The decision comes after the latches, because pages
//! may change before (`meanwhile.rs`).

use std::ops::ControlFlow;

use super::meanwhile::Script;
use super::model::Deed;
use super::raw::{self, CELLS};
use super::{FRAMES_MAX, FRAMES_MIN};
use crate::error::Error;
use crate::ids::{Lsn, PageId, SizeClass, Timestamp};
use crate::maintenance::{Maintenance, compact};
use crate::pool::{Edit, NewPage, Pool, Retry, WriteGuard};
use crate::wal::{Appended, Class, RecordBuilder, Reservation, Ticket};

#[derive(Debug)]
pub(super) enum Halt {
    /// A call of the pool failed: by a power cut or a fault.
    Engine(Error),
    Wrong(String),
    /// A checkpoint makes no room in the log, which is right only while a backup holds it.
    NoRoom,
}

impl std::fmt::Display for Halt {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Halt::Engine(error) => write!(to, "the engine failed: {error}"),
            Halt::Wrong(what) => to.write_str(what),
            Halt::NoRoom => to.write_str("the checkpoint makes no room in the log"),
        }
    }
}

impl From<Error> for Halt {
    fn from(error: Error) -> Self {
        Halt::Engine(error)
    }
}

/// Upper bound of log bytes per record, with its compensation.
const RECORD_BYTES: u64 = 6 << 10;
/// Upper bound of records of an open transaction.
const RECORDS_MAX: usize = 4;
/// Unit of record lengths in aligned runs.
const ALIGNED_BYTES: usize = 1024;

/// Approximate upper bounds of pages: normally, and before a whole compaction.
const PAGES_MAX: usize = 60;
const PAGES_BEFORE_COMPACTION: usize = 150;

/// An uncommitted transaction of several records.
struct Open<'p> {
    timestamp: Timestamp,
    last: Lsn,
    deeds: Vec<Deed>,
    records: usize,
    ticket: Ticket<'p>,
    /// Space for its compensation and end records.
    reserved: Vec<Reservation<'p>>,
}

pub(super) struct Life<'p> {
    pool: &'p Maintenance,
    script: Script,
    open: Vec<Open<'p>>,
    /// Approximate upper bound of pages.
    pages_max: usize,
}

/// Latched and new pages for a change.
struct Ready<'p> {
    guards: Vec<WriteGuard<'p>>,
    new: Vec<NewPage<'p>>,
}

pub(super) fn draw(pool: &Pool) -> Timestamp {
    Timestamp(pool.highest_timestamp.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1)
}

impl<'p> Life<'p> {
    pub(super) fn new(pool: &'p Maintenance, script: Script) -> Self {
        Life { pool, script, open: Vec::new(), pages_max: PAGES_MAX }
    }

    pub(super) fn run(&mut self, steps: u32) -> Result<(), Halt> {
        if let Some(class) = self.other_class() {
            self.full_is_fine(self.pool.resizer().use_class(class))?;
        }
        for _ in 0..steps {
            self.step()?;
        }
        Ok(())
    }

    fn other_class(&self) -> Option<SizeClass> {
        self.script.borrow().sizes.other_class()
    }

    fn below(&self, limit: usize) -> usize {
        self.script.borrow_mut().random.below(limit)
    }

    fn step(&mut self) -> Result<(), Halt> {
        if self.script.borrow().aligned {
            let new = usize::from(self.script.borrow().model.pages.len() < 4);
            return if self.below(8) == 0 { self.acknowledge() } else { self.write_committed(new) };
        }
        if self.script.borrow().resizes && self.below(12) == 0 {
            return self.resize();
        }
        if self.script.borrow().sizes.persistent && self.below(8) == 0 {
            self.pool.seal_all();
        }
        if self.other_class().is_some() && self.below(20) == 0 {
            return self.move_frames();
        }
        match self.below(100) {
            0..25 => self.write_open(),
            25..32 => self.commit_one(),
            32..52 => self.write_committed(0),
            52..66 => self.write_committed(1),
            66..70 => self.free_page(),
            70..80 => self.acknowledge(),
            80..92 => self.read_one(),
            92..95 => Ok(self.full_is_fine(self.pool.round(self.below(2) == 0))?),
            95 => {
                let segments = self.below(8) as u32;
                self.compact(segments)
            }
            96..98 => self.checkpoint(),
            98 => self.write_many(),
            _ => self.audit(),
        }
    }

    /// Several checkpoints: the second finds pages that the first made dirty.
    fn checkpoint(&mut self) -> Result<(), Halt> {
        let all = self.below(2) == 0;
        for _ in 0..=self.below(3) {
            self.full_is_fine(self.pool.checkpoint_now(all))?;
        }
        Ok(())
    }

    /// A compaction stopped after `segments` segments.
    pub(super) fn compact(&self, segments: u32) -> Result<(), Halt> {
        let mut left = segments;
        let compacted = compact(self.pool, &mut |_, _| {
            left = left.saturating_sub(1);
            if left > 0 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        Ok(self.full_is_fine(compacted.map(drop))?)
    }

    /// Extends the file, then frees most of its pages.
    pub(super) fn thin_out(&mut self) -> Result<(), Halt> {
        self.pages_max = PAGES_BEFORE_COMPACTION;
        for _ in 0..PAGES_BEFORE_COMPACTION {
            self.write_committed(1)?;
        }
        self.full_is_fine(self.pool.checkpoint_now(true))?;
        for _ in 0..PAGES_BEFORE_COMPACTION * 3 / 4 {
            self.free_page()?;
        }
        self.acknowledge()
    }

    fn move_frames(&mut self) -> Result<(), Halt> {
        let own = self.pool.class();
        let Some(other) = self.other_class().filter(|&class| self.pool.uses(class)) else { return Ok(()) };
        let (giver, taker) = if self.below(2) == 0 { (own, other) } else { (other, own) };
        Ok(self.full_is_fine(self.pool.resizer().move_step(giver, taker))?)
    }

    fn resize(&mut self) -> Result<(), Halt> {
        let frames = FRAMES_MIN + self.below((FRAMES_MAX - FRAMES_MIN) as usize + 1) as u32;
        let bytes = self.script.borrow().sizes.frame_bytes(frames);
        Ok(self.full_is_fine(self.pool.resizer().resize(bytes))?)
    }

    fn full_is_fine(&self, result: Result<(), Error>) -> Result<(), Error> {
        match result {
            Err(Error::Full { .. }) => Ok(()),
            other => other,
        }
    }

    fn audit(&self) -> Result<(), Halt> {
        match &self.pool.audit()[..] {
            [] => Ok(()),
            faults => Err(Halt::Wrong(faults.join("; "))),
        }
    }

    fn some_pages(&self, most: usize) -> Vec<PageId> {
        let mut script = self.script.borrow_mut();
        let known: Vec<u64> = script.model.pages.keys().copied().collect();
        let mut pages = Vec::new();
        if known.is_empty() {
            return pages;
        }
        for _ in 0..=script.random.below(most) {
            let page = PageId(known[script.random.below(known.len())]);
            if !pages.contains(&page) {
                pages.push(page);
            }
        }
        pages
    }

    /// Log space for a record. Commits open transactions if they hold the log back.
    fn reserve(&mut self, bytes: u64) -> Result<Reservation<'p>, Halt> {
        for attempt in 0.. {
            if let Some(reservation) = self.pool.wal().reserve(bytes, Class::Commit) {
                return Ok(reservation);
            }
            if attempt > 12 {
                return Err(Halt::NoRoom);
            }
            if attempt > 1 && !self.open.is_empty() {
                self.commit_one()?;
            }
            self.full_is_fine(self.pool.checkpoint_now(attempt > 3))?;
        }
        unreachable!("the attempts are bounded")
    }

    fn some_class(&self) -> SizeClass {
        let other = self.other_class().filter(|&class| self.pool.uses(class) && self.below(2) == 0);
        other.unwrap_or(self.pool.class())
    }

    /// Faults in and latches `pages`, with `new` new ones. `None` if a page is gone or the disk is
    /// full.
    fn ready(&self, pages: &[PageId], new: usize) -> Result<Option<Ready<'p>>, Halt> {
        let mut fresh = Vec::new();
        for _ in 0..new {
            match self.pool.new_page(self.some_class(), None) {
                Ok(page) => fresh.push(page),
                Err(Error::Full { .. }) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
        match raw::latch_all(self.pool, pages) {
            Ok(guards) => Ok(Some(Ready { guards, new: fresh })),
            Err(Retry::Missing(_) | Retry::Restart | Retry::Fail(Error::Full { .. })) => Ok(None),
            Err(Retry::Fail(error)) => Err(error.into()),
        }
    }

    /// Commits one record, of a transaction or of the system, with `new` new pages.
    fn write_committed(&mut self, new: usize) -> Result<(), Halt> {
        let mut reservation = self.reserve(2 * RECORD_BYTES)?;
        let pages = self.some_pages(2);
        let new = if self.script.borrow().model.pages.len() > self.pages_max { 0 } else { new };
        let Some(ready) = self.ready(&pages, new)? else { return Ok(()) };
        let timestamp = if self.below(4) == 0 { Timestamp::NONE } else { draw(self.pool) };
        let mut record = RecordBuilder::pages(timestamp, Lsn::NONE);
        if !timestamp.is_none() {
            record.set_commit();
        }
        let (appended, deeds) =
            change(self.pool, &self.script, ready, None, &mut record, &mut reservation, &mut Vec::new())?;
        self.script.borrow_mut().model.committed(appended.end, timestamp, deeds);
        Ok(())
    }

    fn write_open(&mut self) -> Result<(), Halt> {
        let open_max = self.script.borrow().open_max;
        if open_max == 0 {
            return self.write_committed(0);
        }
        let mut reservation = self.reserve(2 * RECORD_BYTES)?;
        let pages = self.some_pages(3);
        let Some(ready) = self.ready(&pages, 0)? else { return Ok(()) };
        if pages.is_empty() {
            return Ok(());
        }
        let index = self.below(open_max);
        let index = match self.open.get(index) {
            Some(open) if open.records < RECORDS_MAX => index,
            _ if self.open.len() < open_max => {
                let ticket = self.pool.wal().enter();
                let timestamp = draw(self.pool);
                let (deeds, reserved) = (Vec::new(), Vec::new());
                self.open.push(Open { timestamp, last: Lsn::NONE, deeds, records: 0, ticket, reserved });
                self.open.len() - 1
            }
            _ => return Ok(()),
        };
        let open = &mut self.open[index];
        let mut record = RecordBuilder::pages(open.timestamp, open.last);
        let mut undo = Vec::new();
        let owner = Some(open.timestamp);
        let (appended, deeds) =
            change(self.pool, &self.script, ready, owner, &mut record, &mut reservation, &mut undo)?;
        open.last = appended.lsn;
        open.deeds.extend(deeds);
        open.records += 1;
        open.reserved.push(reservation);
        Ok(())
    }

    fn commit_one(&mut self) -> Result<(), Halt> {
        if self.open.is_empty() {
            return Ok(());
        }
        let open = self.open.swap_remove(self.below(self.open.len()));
        if open.records == 0 {
            return Ok(());
        }
        let mut record = RecordBuilder::commit(open.timestamp, open.last);
        let mut reserved = open.reserved;
        let before = self.pool.wal().tail();
        let appended = self.pool.wal().append(&mut record, reserved.last_mut()).inspect_err(|_| {
            let model = &mut self.script.borrow_mut().model;
            model.interrupted(before, self.pool.wal().tail(), open.timestamp, &open.deeds);
        })?;
        self.pool.wal().retire_when_persistent(open.ticket, appended.end);
        let mut script = self.script.borrow_mut();
        script.model.locked.retain(|_, owner| *owner != open.timestamp);
        script.model.committed(appended.end, open.timestamp, open.deeds);
        Ok(())
    }

    fn free_page(&mut self) -> Result<(), Halt> {
        let mut reservation = self.reserve(RECORD_BYTES)?;
        let pages = self.some_pages(1);
        let Some(ready) = self.ready(&pages, 0)? else { return Ok(()) };
        for guard in ready.guards {
            free(self.pool, &self.script, guard, &mut reservation)?;
        }
        Ok(())
    }

    /// Fills a good part of the log without a flush.
    fn write_many(&mut self) -> Result<(), Halt> {
        for _ in 0..12 {
            self.write_committed(0)?;
        }
        Ok(())
    }

    fn acknowledge(&mut self) -> Result<(), Halt> {
        let end = self.script.borrow().model.last_end();
        self.pool.wal().acknowledge(end)?;
        self.script.borrow_mut().model.acknowledge(end);
        Ok(())
    }

    /// Reads a cell of `id` by lines, if it is not whole in DRAM.
    fn is_read_by_lines(&mut self, id: PageId) -> Result<bool, Halt> {
        let cell = id.0 as usize % raw::CELLS;
        let found = match raw::read_cell(self.pool, id, cell) {
            Ok(Some(found)) => found,
            Ok(None) | Err(Retry::Missing(_) | Retry::Restart) => return Ok(false),
            Err(Retry::Fail(error)) => return Err(error.into()),
        };
        let script = self.script.borrow();
        match script.model.pages.get(&id.0) {
            Some(cells) if cells[cell] != found => {
                Err(Halt::Wrong(format!("cell {cell} of page {id} reads as {found}, they are {cells:?}")))
            }
            _ => Ok(true),
        }
    }

    fn read_one(&mut self) -> Result<(), Halt> {
        for id in self.some_pages(3) {
            if self.pool.frames.lines.is_some() && self.is_read_by_lines(id)? {
                continue;
            }
            let found = match raw::read(self.pool, id) {
                Ok(content) => raw::cells(&content).map_err(Halt::Wrong)?,
                Err(Retry::Missing(_) | Retry::Fail(Error::Full { .. })) => continue,
                Err(Retry::Fail(error)) => return Err(error.into()),
                Err(Retry::Restart) => continue,
            };
            let script = self.script.borrow();
            let expected = script.model.pages.get(&id.0);
            if expected.is_some_and(|expected| *expected != found) {
                return Err(Halt::Wrong(format!("page {id} reads as {found:?}, it is {expected:?}")));
            }
        }
        Ok(())
    }
}

/// Logs and applies writes to random cells of the pages, none locked by another transaction.
fn change(
    pool: &Pool,
    script: &Script,
    ready: Ready<'_>,
    owner: Option<Timestamp>,
    record: &mut RecordBuilder,
    reservation: &mut Reservation<'_>,
    undo: &mut Vec<u8>,
) -> Result<(Appended, Vec<Deed>), Halt> {
    let mut script = script.borrow_mut();
    let mut deeds = Vec::new();
    let mut contents = Vec::new();
    let Ready { mut guards, new } = ready;
    for guard in &guards {
        let mut copy = Vec::new();
        guard.copy(&mut copy);
        let (id, cell) = (guard.id(), script.random.below(CELLS));
        let lock = script.model.locked.get(&(id.0, cell)).copied();
        let exists = script.model.pages.contains_key(&id.0);
        if exists && lock.is_none_or(|holder| Some(holder) == owner) {
            let old = raw::cells(&copy).map_err(Halt::Wrong)?[cell];
            let value = script.model.fresh_value();
            raw::undo_entry(undo, id, cell, old);
            raw::note_write(record, &copy, cell, old, value);
            raw::set_cell(&mut copy, cell, value);
            deeds.push(Deed::Write { page: id.0, cell, value });
            contents.push(Some(copy));
        } else {
            contents.push(None);
        }
    }
    let mut created = Vec::new();
    for page in &new {
        let cells = std::array::from_fn(|_| raw::quiet(|| script.model.fresh_value()));
        let content = raw::content(page.id(), &cells);
        raw::note_create(record, page.id(), &content);
        deeds.push(Deed::Create { page: page.id().0, cells });
        created.push(content);
    }
    if owner.is_some() {
        record.undo(undo);
    } else if script.aligned {
        // Never used, because this record commits.
        record.undo(&vec![0; ALIGNED_BYTES - record.len() % ALIGNED_BYTES]);
    }
    let written = guards.iter_mut().zip(&mut contents);
    let updates = written.filter_map(|(guard, copy)| Some(Edit::Update(guard, copy.as_mut()?)));
    let creations = new.into_iter().zip(&mut created).map(|(page, content)| Edit::Create(page, content));
    let edits = updates.chain(creations);
    let before = pool.wal().tail();
    let appended = pool.change(record, Some(reservation), edits).inspect_err(|_| {
        if owner.is_none() {
            // Only the end of such a record is of interest, not its timestamp.
            script.model.interrupted(before, pool.wal().tail(), Timestamp::NONE, &deeds);
        }
    })?;
    for deed in &deeds {
        script.model.did(deed);
        if let (Deed::Write { page, cell, .. }, Some(owner)) = (deed, owner) {
            script.model.locked.insert((*page, *cell), owner);
        }
    }
    Ok((appended, deeds))
}

/// Frees a page without writes of open transactions.
pub(super) fn free(
    pool: &Pool,
    script: &Script,
    guard: WriteGuard<'_>,
    reservation: &mut Reservation<'_>,
) -> Result<(), Halt> {
    let mut script = script.borrow_mut();
    let id = guard.id();
    if !script.model.pages.contains_key(&id.0) || !script.model.is_unlocked(id) {
        return Ok(());
    }
    let mut record = RecordBuilder::pages(Timestamp::NONE, Lsn::NONE);
    record.change(id, crate::wal::change_kind::FREE, 0, &[]);
    let (before, deed) = (pool.wal().tail(), Deed::Free { page: id.0 });
    let appended = pool.change(&mut record, Some(reservation), [Edit::Free(guard)]).inspect_err(|_| {
        let deeds = std::slice::from_ref(&deed);
        script.model.interrupted(before, pool.wal().tail(), Timestamp::NONE, deeds);
    })?;
    script.model.did(&deed);
    script.model.committed(appended.end, Timestamp::NONE, vec![deed]);
    Ok(())
}
