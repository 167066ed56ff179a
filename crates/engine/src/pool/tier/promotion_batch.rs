//! Promotion batches: pages of the middle tier promoted together.
//!
//! Where memory migrates, moving one page costs as much as moving many: the system call first
//! flushes per-CPU lists (CXL paper, section V). So a page picked for promotion is used in place
//! and noted here. The thread that fills the batch promotes it in one call. Many accesses release a
//! smaller batch. Latches are only tried, and frames after the first taken only if free.

use parking_lot::Mutex;

use super::migration::Access;
use crate::ids::PageId;

/// Maximum pages of a batch: few enough to latch together.
pub(in crate::pool) const PAGES_MAX: usize = 64;
/// Limit of a batch, as a divisor of either tier's frames.
pub(in crate::pool) const FRAMES_SHARE: u32 = 4;
/// Accesses per page of a full batch that release a smaller one.
const LOOKS_PER_PAGE: usize = 8;

#[derive(Debug, Default)]
pub(in crate::pool) struct PromotionBatch {
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    pages: Vec<(PageId, Access)>,
    looks: usize,
}

impl PromotionBatch {
    /// Adds `id`; returns the batch if it is due.
    ///
    /// A full batch has `most` pages. Gives up if another thread is here: the page will be accessed
    /// again.
    pub(in crate::pool) fn note(
        &self,
        id: PageId,
        access: Access,
        most: usize,
    ) -> Option<Vec<(PageId, Access)>> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::SizeClass;

    #[test]
    fn pages_go_when_they_are_enough_or_were_looked_at_often_enough() {
        let batch = PromotionBatch::default();
        let note = |index| {
            let went = batch.note(PageId::new(SizeClass::SMALLEST, index), Access::Read, 4);
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
