//! Lines of partial pages: loaded, changed, and demoted.
//!
//! The content of a partial page is that of its middle copy, with the dirty lines of its DRAM frame
//! over it. A line is changed only while it is resident, so dirty lines are.
//!
//! The caller of each function holds the page's exclusive latch.

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use super::middle::MiddleTier;
use crate::ids::PageId;
use crate::planted::{Bug, planted};
use crate::pool::frames::{Header, LineMasks};
use crate::pool::line_fault::load_run;
use crate::pool::page_table::{Entry, Location};
use crate::pool::resident::Resident;

/// Masks and middle frame of the partial page in DRAM frame `frame`.
fn parts<'r>(resident: &'r Resident, header: &Header<'_>) -> (&'r LineMasks, u32) {
    let (Some(masks), Some(below)) = (&resident.frames.lines, header.middle_copy()) else {
        unreachable!("a partial page has a middle copy");
    };
    (masks, below)
}

/// Loads those of `lines` that a partial page lacks.
pub(in crate::pool) fn load(
    middle: &MiddleTier,
    resident: &Resident,
    id: PageId,
    frame: u32,
    lines: Range<usize>,
) {
    let (masks, below) = parts(resident, &resident.frames.header(frame));
    for run in masks.absent(frame, lines) {
        let bytes = masks.bytes(run.clone());
        middle.charge_load(below, bytes.clone());
        middle.counts.lines_loaded.fetch_add(run.len() as u64, Relaxed);
        let copy = || resident.frames.copy_part(id, below, frame, bytes);
        load_run(run, copy, |line| masks.set(frame, line));
    }
}

/// Loads all lines that the page lacks, if it is partial.
pub(in crate::pool) fn make_whole(middle: &MiddleTier, resident: &Resident, id: PageId, entry: Entry<'_>) {
    if let (Location::Partial(frame), Some(lines)) = (entry.location(), &resident.frames.lines) {
        load(middle, resident, id, frame, lines.all());
        entry.set_location(Location::Frame(frame));
        middle.counts.made_whole.fetch_add(1, Relaxed);
    }
}

/// Replaces content of a partial page from word `first` on.
pub(in crate::pool) fn change(
    middle: &MiddleTier,
    resident: &Resident,
    id: PageId,
    frame: u32,
    first: usize,
    content: &[u8],
) {
    let (masks, _) = parts(resident, &resident.frames.header(frame));
    load(middle, resident, id, frame, masks.of(first * 8, content.len()));
    let words = &resident.frames.words(id, frame)[first..];
    for (at, (word, bytes)) in (first..).zip(words.iter().zip(content.chunks_exact(8))) {
        let new = u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
        if word.load(Relaxed) != new {
            word.store(new, Relaxed);
            if !planted(Bug::DirtyLineForgotten) {
                masks.of(at * 8, 8).for_each(|line| masks.set_dirty(frame, line));
            }
        }
    }
}

/// Copies the dirty lines of a partial page in `frame` to its middle copy.
pub(super) fn demote_lines(middle: &MiddleTier, resident: &Resident, id: PageId, frame: u32) {
    let (masks, below) = parts(resident, &resident.frames.header(frame));
    resident.frames.begin_stores(below);
    for run in masks.dirty(frame) {
        let bytes = masks.bytes(run.clone());
        resident.frames.copy_part(id, frame, below, bytes.clone());
        middle.charge_demoted(below, bytes);
        middle.counts.lines_demoted.fetch_add(run.len() as u64, Relaxed);
    }
    resident.frames.end_stores(below);
}
