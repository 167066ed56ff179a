//! Lines of partial pages: loaded, changed, and demoted.
//!
//! The content of a partial page is that of its middle copy, with the dirty lines of its DRAM frame
//! or mini page over it. A line is changed only while it is resident, so dirty lines are.
//!
//! A mini page that lacks room for a line gets a frame, with a new version. The caller takes the
//! frame first: a thread that holds a latch waits for none.
//!
//! The caller of each function holds the page's exclusive latch, unless it says otherwise.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::middle::MiddleTier;
use super::promote::Seen;
use crate::ids::PageId;
use crate::planted::{Bug, planted};
use crate::pool::frames::PartialPage;
use crate::pool::frames::partition::is_mini;
use crate::pool::line_fault::load_run;
use crate::pool::page_table::{Entry, Location};
use crate::pool::resident::Resident;
use crate::pool::view::Piece;

/// The partial page in DRAM frame or mini page `frame`, and its middle frame.
fn parts(resident: &Resident, id: PageId, frame: u32) -> (PartialPage<'_>, u32) {
    (resident.frames.partial_page(id, frame), below(resident, frame))
}

/// The middle frame of a partial page in `frame`.
pub(in crate::pool) fn below(resident: &Resident, frame: u32) -> u32 {
    resident.frames.header(frame).middle_copy().expect("a partial page has a middle copy")
}

fn copy(from: &[AtomicU64], to: &[AtomicU64]) {
    for (from, to) in from.iter().zip(to) {
        to.store(from.load(Relaxed), Relaxed);
    }
}

/// Loads those of `lines` that a partial page lacks. False if a mini page has no room for them.
#[must_use]
pub(in crate::pool) fn load(
    middle: &MiddleTier,
    resident: &Resident,
    id: PageId,
    frame: u32,
    lines: Range<usize>,
) -> bool {
    let (page, below) = parts(resident, id, frame);
    if !page.has_room(lines.clone()) {
        return false;
    }
    let whole = resident.frames.words(id, below);
    for run in page.absent(lines) {
        middle.charge_load(below, page.masks().bytes(run.clone()));
        middle.counts.lines_loaded.fetch_add(run.len() as u64, Relaxed);
        let copy_all = || {
            for (ahead, line) in run.clone().enumerate() {
                let to = page.line(line).unwrap_or_else(|| page.words_for(line, ahead));
                copy(&whole[page.words_of(line)], to);
            }
        };
        load_run(run.clone(), copy_all, |line| page.publish(line));
    }
    true
}

/// Loads all lines that the page lacks, if it is partial in a frame.
pub(in crate::pool) fn make_whole(middle: &MiddleTier, resident: &Resident, id: PageId, entry: Entry<'_>) {
    if let (Location::Partial(frame), Some(lines)) = (entry.location(), &resident.frames.lines) {
        let has_room = load(middle, resident, id, frame, lines.all());
        assert!(has_room, "a mini page gets a frame before it is made whole");
        entry.set_location(Location::Frame(frame));
        middle.counts.made_whole.fetch_add(1, Relaxed);
    }
}

/// Replaces a piece of a partial page.
///
/// The caller has loaded its lines (`PartialGuard::load_for_change`).
pub(in crate::pool) fn change(
    middle: &MiddleTier,
    resident: &Resident,
    id: PageId,
    frame: u32,
    piece: &Piece<'_>,
) {
    let page = resident.frames.partial_page(id, frame);
    let first = piece.at / 8;
    let lines = page.masks().of(piece.at, piece.bytes.len());
    let has_room = load(middle, resident, id, frame, lines.clone());
    assert!(has_room, "a mini page has the lines of a change before it");
    for line in lines {
        let (at, words) = (page.words_of(line).start, page.line(line).expect("it is loaded"));
        // The part of the content in this line.
        let from = first.max(at);
        let part = &piece.bytes[(from - first) * 8..];
        for (word, bytes) in words[from - at..].iter().zip(part.chunks_exact(8)) {
            let new = u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
            if word.load(Relaxed) != new {
                word.store(new, Relaxed);
                if !planted(Bug::DirtyLineForgotten) {
                    page.set_dirty(line);
                }
            }
        }
    }
}

/// Copies the dirty lines of a partial page in `frame` to its middle copy.
pub(super) fn demote_lines(middle: &MiddleTier, resident: &Resident, id: PageId, frame: u32) {
    if planted(Bug::MiniEvictedUnwritten) && is_mini(frame) {
        return;
    }
    let (page, below) = parts(resident, id, frame);
    let whole = resident.frames.words(id, below);
    resident.frames.begin_stores(below);
    #[cfg(test)]
    crate::pool::partial_tests::while_leaving();
    for run in page.dirty() {
        for line in run.clone() {
            copy(page.line(line).expect("dirty lines are resident"), &whole[page.words_of(line)]);
        }
        middle.charge_demoted(below, page.masks().bytes(run.clone()));
        middle.counts.lines_demoted.fetch_add(run.len() as u64, Relaxed);
    }
    resident.frames.end_stores(below);
}

/// Moves a mini page to `to`: an empty frame, or another mini page. Frees the former slot.
///
/// Latches the page at the version seen, and unlatches it with another. False if that is refused;
/// then `to` is as empty as before.
pub(in crate::pool) fn move_mini(middle: &MiddleTier, resident: &Resident, page: Seen<'_>, to: u32) -> bool {
    let Seen { id, entry, word, frame: mini } = page;
    let (latch, moving) = (entry.latch(), middle.moving.try_read());
    if moving.is_none() || !latch.try_exclusive(word) {
        return false;
    }
    if entry.location() != Location::Partial(mini) {
        latch.release_unchanged();
        return false;
    }
    if !is_mini(to)
        && let Some(lines) = &resident.frames.lines
    {
        lines.clear(to);
    }
    if is_mini(to) {
        resident.frames.mini_page(to).set_rounds(resident.frames.mini_page(mini).rounds());
    }
    let (from, below) = parts(resident, id, mini);
    let into = resident.frames.partial_page(id, to);
    #[cfg(test)]
    crate::pool::partial_tests::while_leaving();
    for line in from.numbers() {
        copy(from.line(line).expect("it has the line"), into.words_for(line, 0));
        into.publish(line);
        if from.is_dirty(line) && !planted(Bug::PromotionLosesDirty) {
            into.set_dirty(line);
        }
    }
    let [old, new] = [mini, to].map(|frame| resident.frames.header(frame));
    new.set_mapped(old.mapped());
    new.set_rec_lsn(old.rec_lsn());
    // Also with an image in flight, which comes into force wherever the page is.
    new.set_next_rec_lsn(old.next_rec_lsn());
    new.set_read_reason(None);
    new.set_middle_copy(Some(below));
    new.set_page(id);
    let lower = resident.frames.header(below);
    if lower.equal_at() == word.version() {
        lower.set_equal_at(word.version_after(), lower.is_copy_marked());
    }
    entry.set_location(Location::Partial(to));
    resident.frames.give_mini(mini);
    latch.release_changed();
    if !is_mini(to) {
        middle.counts.widened.fetch_add(1, Relaxed);
    }
    true
}

/// Demotes the page of a mini page to its middle copy, and frees the slot.
///
/// False if it is latched, no longer at the version seen, or has an image in flight.
pub(in crate::pool) fn demote_mini(middle: &MiddleTier, resident: &Resident, page: Seen<'_>) -> bool {
    let Seen { id, entry, word, frame: mini } = page;
    // Only a hint: checked under the latch.
    let below = resident.frames.header(mini).middle_copy();
    let demoted = below.is_some_and(|below| middle.demote_partial(resident, (id, entry, word), mini, below));
    if demoted {
        resident.frames.give_mini(mini);
    }
    demoted
}
