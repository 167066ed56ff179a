//! Frame headers: the pool's metadata about the content of a frame.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::links::Links;
use super::read_reason::ReadReason;
use crate::ids::{Lsn, PageId};
use crate::store::mapping_word::MappingWord;

/// Bytes of a header: one cache line.
pub(crate) const HEADER_BYTES: u64 = 64;

/// Metadata of a frame; all zeros in a new one.
///
/// Changes under the page's latch: exclusive, or shared together with the claim. Exceptions: the
/// links, the read reason, and the middle copy's mark. The sweep also reads `page` without the
/// latch. Read reason and middle frame share a word, so both change by read-modify-write only.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header<'a> {
    pub(super) page: &'a AtomicU64,
    pub(super) mapped: &'a AtomicU64,
    pub(super) rec_lsn: &'a AtomicU64,
    pub(super) next_rec_lsn: &'a AtomicU64,
    pub(super) middle_copy_and_read_reason: &'a AtomicU64,
    /// Protected by the lock of the queues.
    pub(crate) links: Links<'a>,
}

impl Header<'_> {
    pub(crate) fn page(&self) -> PageId {
        PageId(self.page.load(Relaxed))
    }

    /// Names the page that the frame gets. [`Frames::vacate`](super::Frames::vacate) ends that.
    pub(crate) fn set_page(&self, id: PageId) {
        debug_assert!(!id.is_none());
        self.page.store(id.0, Relaxed);
    }

    pub(crate) fn mapped(&self) -> MappingWord {
        MappingWord(self.mapped.load(Relaxed))
    }

    pub(crate) fn set_mapped(&self, mapped: MappingWord) {
        self.mapped.store(mapped.0, Relaxed);
    }

    /// recLSN: the first change that the durable image lacks, if any.
    pub(crate) fn rec_lsn(&self) -> Lsn {
        Lsn(self.rec_lsn.load(Relaxed))
    }

    pub(crate) fn set_rec_lsn(&self, lsn: Lsn) {
        self.rec_lsn.store(lsn.0, Relaxed);
    }

    /// The first change since the copy of the image in flight.
    ///
    /// Becomes recLSN when that image applies.
    pub(crate) fn next_rec_lsn(&self) -> Lsn {
        Lsn(self.next_rec_lsn.load(Relaxed))
    }

    pub(crate) fn set_next_rec_lsn(&self, lsn: Lsn) {
        self.next_rec_lsn.store(lsn.0, Relaxed);
    }

    /// Of a middle copy: the version at which both copies were equal.
    ///
    /// Reuses the word of `next_rec_lsn`.
    pub(crate) fn equal_at(&self) -> u64 {
        self.next_rec_lsn.load(Relaxed) & !COPY_MARKED
    }

    pub(crate) fn set_equal_at(&self, version: u64, marked: bool) {
        self.next_rec_lsn.store(version | if marked { COPY_MARKED } else { 0 }, Relaxed);
    }

    /// Of a middle copy: whether it was accessed since the last sweep.
    ///
    /// The page's own mark belongs to the DRAM copy. Versions leave the top bit free.
    pub(crate) fn is_copy_marked(&self) -> bool {
        self.next_rec_lsn.load(Relaxed) & COPY_MARKED != 0
    }

    /// Clears the middle copy's mark; returns whether it was set.
    ///
    /// Needs no latch: after demotion the word is an LSN without that bit.
    pub(crate) fn unmark_copy(&self) -> bool {
        self.is_copy_marked() && self.next_rec_lsn.fetch_and(!COPY_MARKED, Relaxed) & COPY_MARKED != 0
    }

    pub(crate) fn middle_copy(&self) -> Option<u32> {
        ((self.middle_copy_and_read_reason.load(Relaxed) >> COPY_SHIFT) as u32).checked_sub(1)
    }

    /// Requires the page's exclusive latch.
    pub(crate) fn set_middle_copy(&self, frame: Option<u32>) {
        let below = frame.map_or(0, |frame| u64::from(frame) + 1) << COPY_SHIFT;
        // Meanwhile other threads change only the read reason.
        let before = self.middle_copy_and_read_reason.load(Relaxed) & !READ_REASON;
        self.middle_copy_and_read_reason.fetch_xor(before ^ below, Relaxed);
    }

    pub(crate) fn set_read_reason(&self, read_reason: Option<ReadReason>) {
        self.middle_copy_and_read_reason.fetch_and(!READ_REASON, Relaxed);
        if read_reason.is_some() {
            self.middle_copy_and_read_reason.fetch_or(ReadReason::encode(read_reason), Relaxed);
        }
    }

    /// True once, if the page is wanted and not yet accessed.
    ///
    /// The sweep asks when it reaches the page.
    pub(crate) fn take_first_pass(&self) -> bool {
        let [wanted, overdue] = [ReadReason::Wanted, ReadReason::Overdue]
            .map(|read_reason| ReadReason::encode(Some(read_reason)));
        let word = self.middle_copy_and_read_reason.load(Relaxed);
        let next = word & !READ_REASON | overdue;
        word & READ_REASON == wanted
            && self.middle_copy_and_read_reason.compare_exchange(word, next, Relaxed, Relaxed).is_ok()
    }

    /// Writes only if there is a read reason.
    pub(crate) fn take_read_reason(&self) -> Option<ReadReason> {
        match self.middle_copy_and_read_reason.load(Relaxed) & READ_REASON {
            0 => None,
            _ => ReadReason::decode(
                self.middle_copy_and_read_reason.fetch_and(!READ_REASON, Relaxed) & READ_REASON,
            ),
        }
    }
}

/// Shift of the middle copy's frame; mask of the read reason.
const COPY_SHIFT: u32 = 32;
const READ_REASON: u64 = (1 << COPY_SHIFT) - 1;

/// The middle copy's mark, beside the version.
const COPY_MARKED: u64 = 1 << 63;
