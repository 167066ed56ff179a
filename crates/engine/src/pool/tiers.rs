//! Resident pages, replacement and middle tier together.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use terrace_io::{Charge, Direction};

use super::frames::Header;
use super::frames::partition::{Partition, Tier, is_middle};
use super::page_table::{Entry, Location};
use super::replacement::Replacer;
use super::requests::Requests;
use super::resident::Resident;
use super::tier::migration::Policy;
use super::tier::{MiddleTier, SealLimits, seal_some};
use crate::ids::{Lsn, PageId, SizeClass};
use crate::stats::{LineWrites, MiddleStats};

#[derive(Debug)]
pub(crate) struct Tiers {
    pub(crate) resident: Resident,
    pub(crate) replacer: Replacer,
    pub(crate) middle: Option<MiddleTier>,
    /// Wakes maintenance when dirty pages hinder a sweep.
    pub(crate) requests: Arc<Requests>,
}

impl Deref for Tiers {
    type Target = Resident;

    #[inline(always)]
    fn deref(&self) -> &Resident {
        &self.resident
    }
}

impl Tiers {
    pub(crate) fn give_frame(&self, frame: u32) {
        self.replacer.give_frame(&self.resident, frame);
    }

    /// Frames of a partition that the record cache has not borrowed.
    pub(crate) fn page_frames(&self, partition: impl Into<Partition>) -> u32 {
        self.replacer.page_frames(&self.resident, partition.into())
    }

    /// Tells replacement that a page was loaded or changed, and unlatched.
    #[inline]
    pub(crate) fn unlocked(&self, id: PageId, entry: Entry<'_>, frame: u32) {
        self.replacer.unlocked(&self.resident, id, entry, frame);
    }

    /// Asks for a maintenance round to free frames of `partition`.
    pub(crate) fn request_frames(&self, partition: Partition, urgent: bool) {
        if urgent {
            self.replacer.note_wanting(partition);
        }
        self.requests.wake_up.request(urgent);
    }

    /// The middle tier, if it has frames for pages of `class`.
    pub(crate) fn middle_for(&self, class: SizeClass) -> Option<&MiddleTier> {
        self.middle.as_ref().filter(|_| self.frames.count(Partition::middle(class)) > 0)
    }

    /// For callers with a frame of the middle tier.
    pub(crate) fn middle_of_frame(&self) -> &MiddleTier {
        self.middle.as_ref().expect("only a middle tier has such frames")
    }

    /// Charges a middle frame until the result is finished or dropped.
    pub(crate) fn charge_page(&self, frame: u32, direction: Direction) -> Option<Charge<'_>> {
        self.middle.as_ref()?.charge_page(frame, direction)
    }

    /// Fills `frame` as [`Frames::fill`](super::frames::Frames::fill), with a charge.
    pub(crate) fn fill(&self, id: PageId, frame: u32, content: &[u8]) {
        let charge = self.charge_page(frame, Direction::Write);
        self.frames.begin_stores(frame);
        self.frames.fill(id, frame, content);
        self.frames.end_stores(frame);
        charge.map(Charge::finish);
    }

    /// Detaches the middle copy of a DRAM page, under its exclusive latch.
    pub(crate) fn detach_copy(&self, upper: &Header<'_>) -> Option<u32> {
        self.middle.as_ref()?.detach_copy(upper)
    }

    pub(crate) fn count_loaded(&self, frame: u32) {
        self.middle.iter().for_each(|middle| middle.count_loaded(&self.resident, frame));
    }

    pub(crate) fn count_created(&self, frame: u32) {
        self.middle.iter().for_each(|middle| middle.count_created(&self.resident, frame));
    }

    /// Counts an image of a claimed page, which stayed where it was.
    pub(crate) fn count_flushed(&self, id: PageId) {
        if let Some(middle) = &self.middle
            && let Some(Location::Frame(frame)) = self.table.entry(id).map(|entry| entry.location())
            && is_middle(frame)
        {
            middle.counts.flushed.fetch_add(1, Relaxed);
        }
    }

    pub(crate) fn count_copy_freed(&self) {
        if let Some(middle) = &self.middle {
            middle.counts.copies_freed.fetch_add(1, Relaxed);
        }
    }

    pub(crate) fn middle_stats(&self) -> Option<MiddleStats> {
        Some(self.middle.as_ref()?.stats(&self.resident, &self.replacer))
    }

    /// Seals frames of a persistent middle tier, as far as the log is `durable`. Maintenance calls
    /// it, with a buffer for a page.
    pub(crate) fn seal_some(&self, durable: Lsn, limits: SealLimits, buffer: &mut [u8]) -> usize {
        let middle = self.middle.as_ref();
        middle.map_or(0, |middle| seal_some(middle, &self.resident, durable, limits, buffer))
    }

    pub(crate) fn line_writes(&self) -> Option<LineWrites> {
        self.middle.as_ref()?.line_writes()
    }

    /// System pages of DRAM frames on other nodes than requested.
    pub(crate) fn misplaced_pages(&self) -> u64 {
        self.frames.nodes().misplaced(Tier::Dram)
    }

    pub(crate) fn set_policy(&self, policy: Policy) {
        self.middle.iter().for_each(|middle| middle.set_policy(policy));
    }

    pub(crate) fn policy(&self) -> Option<Policy> {
        self.middle.as_ref().map(|middle| middle.migration.policy.get())
    }
}
