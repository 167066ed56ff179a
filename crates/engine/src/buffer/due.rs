//! Pages of the middle tier that are to come to DRAM, and wait until others come with them.
//!
//! Where pages are mapped and the tiers are nodes, a page that comes up has the kernel move its memory, and a call for one page costs as much
//! as one for many: it empties the lists of every processor first (CXL paper, section V). So a page of which a look has decided that it
//! comes up is used where it is and noted here, once. When there are enough of them, whoever notes the last takes frames for all, latches
//! those that are still there, has their memory moved by one call, and unlatches them in DRAM. Where the same few pages are looked at
//! over and over, and no others, they go after so many looks as if they were enough.
//!
//! Latches are tried for and frames after the first only taken if there are any, so this waits for nothing that the fault of a page would
//! not wait for. A page whose memory does not move stays in the middle tier.

use parking_lot::Mutex;

use super::guard::ReadGuard;
use super::latch::Word;
use super::migration::Access;
use super::pool::Pool;
use super::stripe::{Stripe, Tier, class_of, is_middle};
use super::table::{Entry, Location};
use crate::error::Result;
use crate::ids::PageId;

/// Pages that come up together: so many that a call moves more than the 32 of a batch of the sweep, and few enough to be latched meanwhile.
const PAGES_MAX: usize = 64;
/// They are at most this share of the frames of either tier.
const FRAMES_SHARE: u32 = 4;
/// Looks that decide, for each page of a batch, after which those that wait are enough.
const LOOKS_PER_PAGE: usize = 8;

/// The pages that wait.
#[derive(Debug, Default)]
pub(super) struct Due {
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    /// What the looks were for that decided.
    pages: Vec<(PageId, Access)>,
    /// Looks that decided so since pages last went.
    looks: usize,
}

/// What became of a page that a look has decided about.
pub(super) enum Raised<'p> {
    /// It is in DRAM.
    Up(ReadGuard<'p>),
    /// It waits for others, and is used where it is.
    Waits,
    /// It cannot come now, and is used where it is.
    Stays,
}

/// A page that is on its way up: its exclusive latch is held.
struct Rising<'p> {
    id: PageId,
    entry: Entry<'p>,
    seen: Word,
    access: Access,
    from: u32,
    to: u32,
}

impl Due {
    /// Notes that `id` is to come up, of which `most` go at a time; all that go, if they are enough. Whoever meets another thread here
    /// leaves it at that: his page will be looked at again.
    fn note(&self, id: PageId, access: Access, most: usize) -> Option<Vec<(PageId, Access)>> {
        let mut waiting = self.waiting.try_lock()?;
        waiting.looks += 1;
        if waiting.pages.iter().all(|&(page, _)| page != id) {
            waiting.pages.push((id, access));
        }
        if waiting.pages.len() < most && waiting.looks < most * LOOKS_PER_PAGE {
            return None;
        }
        waiting.looks = 0;
        Some(std::mem::take(&mut waiting.pages))
    }
}

impl Pool {
    /// Notes that a page comes up that was found in the middle tier, and brings it up with others if they are enough.
    pub(super) fn bring_up_together<'p>(
        &'p self,
        guard: &ReadGuard<'p>,
        access: Access,
    ) -> Result<Raised<'p>> {
        let middle = self.middle.as_ref().expect("a page was found in it");
        let class = class_of(guard.frame());
        let share = |stripe: Stripe| (self.page_frames(stripe) / FRAMES_SHARE) as usize;
        let most = share(class.into()).min(share(Stripe::middle(class))).clamp(1, PAGES_MAX);
        let Some(mut pages) = middle.due.note(guard.id(), access, most) else { return Ok(Raised::Waits) };
        pages.retain(|&(id, _)| id != guard.id());
        let Some(frame) = self.take_frame_now(class.into(), guard.id())? else { return Ok(Raised::Stays) };
        let mut frames = Vec::with_capacity(pages.len());
        if !pages.is_empty() {
            self.try_take_frames(class, pages.len(), &mut frames);
        }
        let raised = self.raise_together(guard, access, frame, &pages, &mut frames);
        frames.into_iter().for_each(|frame| self.give_frame(frame));
        Ok(match raised {
            Some(seen) => Raised::Up(ReadGuard::new(self, guard.id(), guard.entry(), seen, frame)),
            None => Raised::Stays,
        })
    }

    /// Moves the page of `guard` to `frame`, and those of `others` that can move to some of `frames`; returns the state of the first then,
    /// if it has moved. Frames that hold nothing are in `frames` afterwards.
    fn raise_together(
        &self,
        guard: &ReadGuard<'_>,
        access: Access,
        frame: u32,
        others: &[(PageId, Access)],
        frames: &mut Vec<u32>,
    ) -> Option<Word> {
        let (id, entry) = (guard.id(), guard.entry());
        let Some(moving) = self.moving.try_read() else {
            frames.push(frame);
            return None;
        };
        let mut rising = Vec::with_capacity(others.len() + 1);
        match self.latch_in_middle(entry, guard.seen()) {
            Some(from) => rising.push(Rising { id, entry, seen: guard.seen(), access, from, to: frame }),
            None => frames.push(frame),
        }
        for &(id, access) in others {
            let Some(to) = frames.pop() else { break };
            let entry = self.table.entry(id).expect("ids that were looked at are within the table");
            let seen = entry.latch().load();
            match self.latch_in_middle(entry, seen) {
                Some(from) => rising.push(Rising { id, entry, seen, access, from, to }),
                None => frames.push(to),
            }
        }
        let ids: Vec<PageId> = rising.iter().map(|page| page.id).collect();
        let there = self.frames.migrate(&ids, Tier::Dram);
        let (up, stay): (Vec<_>, Vec<_>) = rising.into_iter().zip(there).partition(|(_, there)| *there);
        for (page, _) in stay {
            if self.release_unmoved(page.entry) {
                self.unlocked(page.id, page.entry, page.from);
            }
            frames.push(page.to);
        }
        // Before they are unlatched: from then on others may take them out of these frames. That of the page that is looked at is in a queue
        // since it was taken, whichever page it has come to hold.
        let mut free = self.free(class_of(frame)).lock();
        let entering = up.iter().filter(|(page, _)| page.to != frame);
        entering.for_each(|(page, _)| _ = free.queues.enter(&self.frames, page.to, page.id));
        drop(free);
        let (mut now, mut left) = (None, Vec::with_capacity(up.len()));
        for (page, _) in up {
            let (seen, freed) = self.raise(page.id, page.entry, page.seen, page.from, page.to);
            self.count_raised(page.access);
            self.unlocked(page.id, page.entry, page.to);
            left.extend(freed);
            now = now.or((page.id == id).then_some(seen));
        }
        drop(moving);
        left.into_iter().for_each(|frame| self.give_frame(frame));
        now
    }

    /// Latches a page exclusively that is at the version seen, if it is in a frame of the middle tier, which is returned, and may leave it.
    fn latch_in_middle(&self, entry: Entry<'_>, seen: Word) -> Option<u32> {
        let latch = entry.latch();
        if seen.is_dirty() && self.is_short_of_room() || !latch.try_exclusive(seen) {
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::SizeClass;

    #[test]
    fn pages_go_when_they_are_enough_or_were_looked_at_often_enough() {
        let due = Due::default();
        let note = |index| {
            let went = due.note(PageId::new(SizeClass::SMALLEST, index), Access::Read, 4);
            went.map(|pages| pages.iter().map(|(id, _)| id.index()).collect::<Vec<_>>())
        };
        assert_eq!([1, 2, 2, 3].map(note), [None, None, None, None]);
        assert_eq!(note(4), Some(vec![1, 2, 3, 4]));
        for look in 1..4 * LOOKS_PER_PAGE {
            assert_eq!(note(5), None, "look {look}");
        }
        assert_eq!(note(5), Some(vec![5]));
        assert_eq!(note(6), None);
    }
}
