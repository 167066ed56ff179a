//! Partial pages: some lines of a page in DRAM, above a middle copy that has all.
//!
//! A point read that promotes a leaf gives it a DRAM frame or a mini page, and loads no line
//! (HyMem, sections 3.1 and 3.2).
//! [`Lined`] loads the lines that a look touches. A change that keeps an entry's size changes those
//! lines. All other accesses make the page whole first: `try_read` finds no partial page, and
//! `Pool::fetch` calls [`make_whole`].
//!
//! A line is loaded under the exclusive latch taken at the version seen, which is released
//! unchanged: no byte changes that a reader may have read. Its bit is set after its bytes, and
//! tested before a look at them. A look that gets no latch reads zeros, and does not validate.
//!
//! A mini page that is full gets a frame. Without one, a look reads the other lines in the middle
//! copy, which does not change or go while the page has this version.

use std::cell::Cell;
use std::cmp::Ordering;
use std::ops::Range;
use std::sync::atomic::AtomicU64;

use super::frames::PartialPage;
use super::frames::partition::is_mini;
use super::guard::{ReadGuard, WriteGuard};
use super::latch::Word;
use super::line_fault::fault;
use super::page_table::{Entry, Location};
use super::replacement::queues::COUNT_MAX;
use super::resident::class_of_page;
use super::retry::Retry;
use super::tier::{Seen, partial};
use super::tiers::Tiers;
use super::view::{Racy, View, count_below};
use crate::ids::PageId;
use crate::store::page;

/// A partial page of which no byte was read yet. A descent that may end at one returns no more than
/// for a whole page: a larger result made cached gets 5 % slower.
pub(crate) struct Unread<'p>(ReadGuard<'p>);

/// Optimistic access to a partial page. Reads count only after `validate`.
pub(crate) struct PartialGuard<'p> {
    guard: ReadGuard<'p>,
    /// A look was refused a line.
    refused: Cell<bool>,
    /// The middle frame in which looks read the lines that a full mini page lacks.
    in_place: Cell<Option<u32>>,
}

impl<'p> Unread<'p> {
    /// `guard` is that of a partial page.
    pub(super) fn new(guard: ReadGuard<'p>) -> Self {
        Unread(guard)
    }

    /// Starts an optimistic read if `id`, which may be garbage, is partial.
    ///
    /// # Errors
    /// [`Retry::Restart`] if it is latched, mostly for the load of a line.
    pub(crate) fn try_read(tiers: &'p Tiers, id: PageId) -> Result<Option<Self>, Retry> {
        let Some(entry) = tiers.table.entry(id).filter(|_| tiers.frames.lines.is_some()) else {
            return Ok(None);
        };
        let word = entry.latch().load();
        match entry.location() {
            Location::Partial(_) if word.is_exclusive() => Err(tiers.count_restart()),
            Location::Partial(frame) => Ok(Some(Unread(ReadGuard::new(tiers, id, entry, word, frame)))),
            _ => Ok(None),
        }
    }

    /// Marks the page for the sweep; the reference to it was valid.
    pub(crate) fn mark(&self) {
        let Seen { entry, word, frame, .. } = self.0.page();
        if !is_mini(frame) {
            self.0.mark();
        } else if !word.is_marked() {
            // The header may be bytes of another page by now. It has no read reason.
            entry.latch().mark();
        }
    }

    pub(crate) fn open(self) -> PartialGuard<'p> {
        PartialGuard { guard: self.0, refused: Cell::new(false), in_place: Cell::new(None) }
    }
}

impl<'p> PartialGuard<'p> {
    /// For calls that read no byte of the page: its frame has some lines only.
    pub(crate) fn unread(&self) -> &ReadGuard<'p> {
        &self.guard
    }

    /// Checks that all reads so far saw one version, and lacked no line.
    pub(crate) fn validate(&self) -> Result<(), Retry> {
        if self.refused.get() { Err(self.guard.tiers().count_restart()) } else { self.guard.validate() }
    }

    /// Latches the page exclusively at the version seen, for a change of lines that it has.
    pub(crate) fn upgrade(self) -> Result<WriteGuard<'p>, Retry> {
        if self.refused.get() { Err(self.guard.tiers().count_restart()) } else { self.guard.upgrade() }
    }

    /// The page's bytes, which are loaded as a look needs them.
    pub(crate) fn view(&self) -> Lined<'_> {
        let Seen { id, frame, .. } = self.guard.page();
        let page = self.guard.tiers().frames.partial_page(id, frame);
        Lined { page, bytes: page.words().map(Racy::new), length: id.page_bytes(), guard: self }
    }

    /// Loads `lines` for a look, or lets it read them in place.
    #[cold]
    fn load(&self, lines: Range<usize>) -> bool {
        let middle = self.guard.tiers().middle_of_frame();
        if let Some(below) = self.in_place.get() {
            let page = self.view().page;
            page.absent(lines).for_each(|run| middle.charge_in_place(below, page.masks().bytes(run)));
            return true;
        }
        match self.try_load(lines.clone()) {
            Ok(is_loaded) => is_loaded,
            Err(below) if widen_full(self.guard.tiers(), self.guard.page()) == Widened::NoFrame => {
                self.in_place.set(Some(below));
                middle.counts.reads_in_place.raise();
                self.load(lines)
            }
            Err(_) => false,
        }
    }

    /// Whether the page still had the version seen, and now has `lines`.
    ///
    /// # Errors
    /// The middle frame of a mini page without room for them, at that version.
    fn try_load(&self, lines: Range<usize>) -> Result<bool, u32> {
        let Seen { id, entry, word, frame } = self.guard.page();
        let (middle, resident) = (self.guard.tiers().middle_of_frame(), &self.guard.tiers().resident);
        let is_partial = || entry.location() == Location::Partial(frame);
        let mut full = None;
        let is_loaded = fault(entry.latch(), word, is_partial, || {
            if !partial::load(middle, resident, id, frame, lines) {
                full = Some(partial::below(resident, frame));
            }
        });
        full.map_or(Ok(is_loaded), Err)
    }

    /// Loads the lines of a change of `bytes` bytes at `at`, and the one with the LSN. Looks may
    /// have skipped some, or read them in place. If that is refused, `upgrade` fails.
    pub(crate) fn load_for_change(&self, at: usize, bytes: usize) {
        let page = self.view().page;
        for lines in [page.masks().of(page::LSN_AT, 8), page.masks().of(at, bytes)] {
            let has = lines.clone().all(|line| page.has(line));
            let loaded = if has { Ok(true) } else { self.try_load(lines) };
            if loaded.is_err() {
                end_mini(self.guard.tiers(), self.guard.page());
            }
            if loaded != Ok(true) {
                self.refused.set(true);
                return;
            }
        }
    }
}

/// A view of a partial page.
#[derive(Clone, Copy)]
pub(crate) struct Lined<'a> {
    page: PartialPage<'a>,
    /// None of a mini page.
    bytes: Option<Racy<'a>>,
    length: usize,
    guard: &'a PartialGuard<'a>,
}

impl Lined<'_> {
    /// Whether the bytes may be read, which may load them.
    #[inline]
    fn has(&self, at: usize, bytes: usize) -> bool {
        let lines = self.page.masks().of(at, bytes);
        let has = lines.clone().all(|line| self.page.has(line)) || self.guard.load(lines);
        if !has {
            self.guard.refused.set(true);
        }
        has
    }

    /// The words of a line of a mini page, or of its middle copy. None if the page has changed.
    fn line(&self, line: usize) -> Option<&[AtomicU64]> {
        let below = || {
            let (id, frames) = (self.guard.guard.id(), &self.guard.guard.tiers().frames);
            self.guard.in_place.get().map(|frame| &frames.words(id, frame)[self.page.words_of(line)])
        };
        self.page.line(line).or_else(below)
    }

    /// Copies bytes of a mini page.
    fn gather(&self, mut at: usize, mut to: &mut [u8]) {
        while !to.is_empty() {
            let line = self.page.masks().of(at, 1);
            let bytes = self.page.masks().bytes(line.clone());
            let length = bytes.end.saturating_sub(at).min(to.len());
            if length == 0 {
                // Behind the page.
                return to.fill(0);
            }
            let (part, rest) = to.split_at_mut(length);
            match self.line(line.start) {
                Some(words) => Racy::new(words).copy_to(at - bytes.start, part),
                None => part.fill(0),
            }
            (at, to) = (at + length, rest);
        }
    }

    /// Compares bytes in one line. Equal if they may not be read: the look does not count.
    fn compare_in_line(&self, at: usize, other: &[u8]) -> Ordering {
        if !self.has(at, other.len()) {
            return Ordering::Equal;
        }
        let lines = self.page.masks().of(at, 1);
        let (words, from) = match self.bytes {
            Some(bytes) => return bytes.compare(at, other.len(), other),
            None => (self.line(lines.start), self.page.masks().bytes(lines).start),
        };
        words.map_or(Ordering::Equal, |words| Racy::new(words).compare(at - from, other.len(), other))
    }
}

impl View for Lined<'_> {
    fn len(&self) -> usize {
        self.length
    }

    fn u64(&self, at: usize) -> u64 {
        if !self.has(at, 8) {
            return 0;
        }
        let Some(bytes) = self.bytes else {
            let mut bytes = [0; 8];
            self.gather(at, &mut bytes);
            return u64::from_le_bytes(bytes);
        };
        bytes.u64(at)
    }

    fn copy_to(&self, at: usize, to: &mut [u8]) {
        match self.bytes {
            _ if !self.has(at, to.len()) => to.fill(0),
            Some(bytes) => bytes.copy_to(at, to),
            None => self.gather(at, to),
        }
    }

    fn compare(&self, at: usize, length: usize, other: &[u8]) -> Ordering {
        let length = length.min(self.length.saturating_sub(at));
        // A line behind the first difference is not loaded.
        let (mut at, mut rest) = (at, &other[..length.min(other.len())]);
        while !rest.is_empty() {
            let end = self.page.masks().bytes(self.page.masks().of(at, 1)).end;
            let (here, behind) = rest.split_at((end - at).min(rest.len()));
            match self.compare_in_line(at, here) {
                Ordering::Equal => (at, rest) = (at + here.len(), behind),
                order => return order,
            }
        }
        length.cmp(&other.len())
    }

    fn count_below(&self, at: usize, count: usize, bound: u64) -> usize {
        let words = self.len().saturating_sub(at) / 8;
        count_below(count.min(words), bound, |index| self.u64(at + index * 8))
    }
}

/// Loads all lines that page `id`, seen partial, lacks. False if it is latched or has changed.
pub(super) fn make_whole(tiers: &Tiers, id: PageId, entry: Entry<'_>, seen: Word) -> bool {
    let latch = entry.latch();
    if !latch.try_exclusive(seen) {
        return false;
    }
    partial::make_whole(tiers.middle_of_frame(), &tiers.resident, id, entry);
    latch.release_unchanged();
    true
}

/// What became of a mini page that lacks room for a line.
#[derive(PartialEq, Eq)]
enum Widened {
    Done,
    /// It is latched or has changed.
    Refused,
    /// A frame cannot be had without waiting.
    NoFrame,
}

/// Ends a mini page for a change of lines that it has no room for, or an access of all lines. It
/// gets a frame, or goes to the middle tier. False if the page is latched, has changed, or is
/// written.
#[cold]
pub(super) fn end_mini(tiers: &Tiers, page: Seen<'_>) -> bool {
    match widen_full(tiers, page) {
        Widened::Done => true,
        Widened::Refused => false,
        Widened::NoFrame => partial::demote_mini(tiers.middle_of_frame(), &tiers.resident, page),
    }
}

/// Gives a mini page a frame.
fn widen_full(tiers: &Tiers, page: Seen<'_>) -> Widened {
    match tiers.find(class_of_page(page.id).into(), page.id).frame {
        Some((frame, _)) if widen(tiers, page, frame) => Widened::Done,
        Some(_) => Widened::Refused,
        None => Widened::NoFrame,
    }
}

/// Gives the mini page `page` the empty `frame`, which is freed if the page has changed.
fn widen(tiers: &Tiers, page: Seen<'_>, frame: u32) -> bool {
    // Only a hint, as the page may leave meanwhile.
    let rounds = tiers.frames.mini_page(page.frame).rounds().min(COUNT_MAX);
    // Its lines show that it is wanted, so it skips probation.
    let mut free = tiers.replacer.free(class_of_page(page.id)).lock();
    free.queues.enter_main(&tiers.frames, frame, rounds);
    drop(free);
    let widened = partial::move_mini(tiers.middle_of_frame(), &tiers.resident, page, frame);
    if !widened {
        tiers.give_frame(frame);
    }
    widened
}
