//! Promotion of pages from the middle tier to DRAM.
//!
//! A reader that finds a page here casts a die ([`MiddleTier::decide`]). To promote, it needs a
//! DRAM frame without waiting. It latches the page at the version it saw, copies it, and continues
//! at the new version. Pointers it followed stay valid, since only the frame changed. Otherwise it
//! reads in place. Pages with an image in flight do not move.
//!
//! **Copies.** Where bytes lie at frame addresses, the middle copy stays (`demote.rs`). Where they
//! keep one address, or replacement goes by versions (`fifo.rs`), the middle frame is returned at
//! once.
//!
//! **Memory migration.** Where the tiers of mapped pages are NUMA nodes, the system first migrates
//! the memory, under the latch. A page whose memory stays does not move.
//!
//! Lock order: as in `demote.rs`.

use std::sync::atomic::Ordering::Relaxed;

use super::middle::MiddleTier;
use super::migration::Access;
use super::promotion_batch::{FRAMES_SHARE, PAGES_MAX};
use crate::backend::Backend;
use crate::ids::{Lsn, PageId};
use crate::planted::{Bug, planted};
use crate::pool::frames::partition::{Partition, Tier, class_of, is_middle, is_mini};
use crate::pool::latch::Word;
use crate::pool::page_table::{Entry, Location};
use crate::pool::replacement::Replacer;
use crate::pool::resident::{Resident, class_of_page};

/// A page found in a frame, with the latch word seen.
#[derive(Clone, Copy)]
pub(in crate::pool) struct Seen<'p> {
    pub(in crate::pool) id: PageId,
    pub(in crate::pool) entry: Entry<'p>,
    pub(in crate::pool) word: Word,
    pub(in crate::pool) frame: u32,
}

#[derive(Clone, Copy)]
pub(in crate::pool) struct Rising<'p> {
    pub(in crate::pool) page: Seen<'p>,
    pub(in crate::pool) access: Access,
    pub(in crate::pool) to: u32,
    /// Without its lines. Then `to` may be a mini page.
    pub(in crate::pool) partial: bool,
}

pub(super) fn has_two_copies(resident: &Resident, replacer: &Replacer) -> bool {
    resident.backend() == Backend::Frames && !replacer.kind().is_fifo_paper()
}

impl MiddleTier {
    /// Adds `id` to the promotion batch of its size; returns the others if due.
    pub(in crate::pool) fn others_of_batch(
        &self,
        resident: &Resident,
        replacer: &Replacer,
        id: PageId,
        access: Access,
    ) -> Option<Vec<(PageId, Access)>> {
        let class = class_of_page(id);
        let share =
            |partition: Partition| (replacer.page_frames(resident, partition) / FRAMES_SHARE) as usize;
        let most = share(class.into()).min(share(Partition::middle(class))).clamp(1, PAGES_MAX);
        let mut pages = self.batches[class.index()].note(id, access, most)?;
        pages.retain(|&(other, _)| other != id);
        Some(pages)
    }

    /// Promotes a page still at the version seen; returns its new word.
    pub(in crate::pool) fn promote(
        &self,
        resident: &Resident,
        replacer: &Replacer,
        rising: &Rising<'_>,
    ) -> Option<Word> {
        let Some((seen, freed)) = self.move_up(resident, replacer, rising) else {
            replacer.give_frame(resident, rising.to);
            return None;
        };
        freed.into_iter().for_each(|frame| replacer.give_frame(resident, frame));
        self.count_promoted(rising.access);
        replacer.unlocked(resident, rising.page.id, rising.page.entry, rising.to);
        Some(seen)
    }

    fn count_promoted(&self, access: Access) {
        let counts = &self.counts;
        let count = if access == Access::Read { &counts.up_for_read } else { &counts.up_for_write };
        count.fetch_add(1, Relaxed);
    }

    /// Like [`MiddleTier::promote`], but returns the emptied frame.
    fn move_up(
        &self,
        resident: &Resident,
        replacer: &Replacer,
        rising: &Rising<'_>,
    ) -> Option<(Word, Option<u32>)> {
        let page = &rising.page;
        let latch = page.entry.latch();
        let moving = self.moving.try_read()?;
        if !latch.try_exclusive(page.word) {
            return None;
        }
        if latch.load().is_claimed() || page.entry.location() != Location::Frame(page.frame) {
            latch.release_unchanged();
            return None;
        }
        let promotion = self.promote_one(resident, replacer, rising);
        drop(moving);
        Some(promotion)
    }

    /// Makes `to`, in DRAM, the page's frame, and unlatches the page.
    ///
    /// The caller holds `moving` and the page's exclusive latch.
    fn promote_one(
        &self,
        resident: &Resident,
        replacer: &Replacer,
        rising: &Rising<'_>,
    ) -> (Word, Option<u32>) {
        let &Rising { page: Seen { id, entry, word: seen, frame: from }, to, partial, .. } = rising;
        let latch = entry.latch();
        if !partial {
            self.copy_page(resident, id, from, to);
        } else if is_mini(to) {
            self.counts.up_mini.fetch_add(1, Relaxed);
        } else if let Some(lines) = resident.frames.lines.as_ref().filter(|_| !planted(Bug::KeepLineBits)) {
            lines.clear(to);
        }
        let (lower, upper) = (resident.frames.header(from), resident.frames.header(to));
        upper.set_mapped(lower.mapped());
        upper.set_rec_lsn(lower.rec_lsn());
        upper.set_next_rec_lsn(Lsn::NONE);
        upper.set_read_reason(None);
        upper.set_page(id);
        resident.first_look(from);
        lower.set_rec_lsn(Lsn::NONE);
        let stays = has_two_copies(resident, replacer);
        if stays {
            upper.set_middle_copy(Some(from));
            self.counts.copies.fetch_add(1, Relaxed);
            lower.set_equal_at(seen.version_after(), replacer.kind().is_clock_paper());
        } else {
            resident.frames.vacate(from);
        }
        if partial {
            debug_assert!(stays);
            self.counts.up_partial.fetch_add(1, Relaxed);
        }
        entry.set_location(if partial { Location::Partial(to) } else { Location::Frame(to) });
        // It was promoted for this access, so it counts as accessed once.
        latch.unmark();
        let now = latch.release_changed();
        (now, (!stays).then_some(from))
    }

    /// Promotes `first` and those of `others` that can move.
    ///
    /// Returns the new latch word of `first` if it moved. Leaves unused frames in `frames`.
    /// `keep_dirty`: dirty pages stay.
    pub(in crate::pool) fn promote_together(
        &self,
        resident: &Resident,
        replacer: &Replacer,
        first: &Rising<'_>,
        others: &[(PageId, Access)],
        frames: &mut Vec<u32>,
        keep_dirty: bool,
    ) -> Option<Word> {
        let frame = first.to;
        let Some(moving) = self.moving.try_read() else {
            frames.push(frame);
            return None;
        };
        let mut rising = Vec::with_capacity(others.len() + 1);
        match latch_in_middle(first.page.entry, first.page.word, keep_dirty) {
            Some(from) => rising.push(Rising { page: Seen { frame: from, ..first.page }, ..*first }),
            None => frames.push(frame),
        }
        for &(id, access) in others {
            let Some(to) = frames.pop() else { break };
            let entry = resident.table.entry(id).expect("ids that were looked at are within the table");
            let word = entry.latch().load();
            match latch_in_middle(entry, word, keep_dirty) {
                Some(frame) => {
                    rising.push(Rising { page: Seen { id, entry, word, frame }, access, to, partial: false })
                }
                None => frames.push(to),
            }
        }
        let ids: Vec<PageId> = rising.iter().map(|rising| rising.page.id).collect();
        let there = resident.frames.migrate(&ids, Tier::Dram);
        let (up, stay): (Vec<_>, Vec<_>) = rising.into_iter().zip(there).partition(|(_, there)| *there);
        for (Rising { page, to, .. }, _) in stay {
            if resident.release_unmoved(page.entry) {
                replacer.unlocked(resident, page.id, page.entry, page.frame);
            }
            frames.push(to);
        }
        // Before unlatching: then other threads may evict these pages. The frame of `first` is
        // already in a queue, whichever page it holds now.
        let mut free = replacer.free(class_of(frame)).lock();
        let entering = up.iter().filter(|(rising, _)| rising.to != frame);
        entering.for_each(|(rising, _)| {
            _ = free.queues.enter(&resident.frames, rising.to, rising.page.id);
        });
        drop(free);
        let (mut now, mut left) = (None, Vec::with_capacity(up.len()));
        for (rising, _) in up {
            let (seen, freed) = self.promote_one(resident, replacer, &rising);
            let Rising { page, access, to, .. } = rising;
            self.count_promoted(access);
            replacer.unlocked(resident, page.id, page.entry, to);
            left.extend(freed);
            now = now.or((page.id == first.page.id).then_some(seen));
        }
        drop(moving);
        left.into_iter().for_each(|frame| replacer.give_frame(resident, frame));
        now
    }
}

/// Latches a page at the version seen; returns its middle frame.
///
/// None if it is not in the middle tier, or may not leave.
fn latch_in_middle(entry: Entry<'_>, seen: Word, keep_dirty: bool) -> Option<u32> {
    let latch = entry.latch();
    if seen.is_dirty() && keep_dirty || !latch.try_exclusive(seen) {
        return None;
    }
    match entry.location() {
        Location::Frame(from) if is_middle(from) && !latch.load().is_claimed() => Some(from),
        _ => {
            latch.release_unchanged();
            None
        }
    }
}
