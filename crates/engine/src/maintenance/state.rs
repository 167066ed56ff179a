//! The state of the rounds, under one lock.

use super::left_alone::LeftAlone;
use super::mapping::Mapping;
use super::page_set::PageSet;
use super::transfer::Staging;
use crate::ids::{Lsn, PageId};
use crate::pool::partition::ByPartition;
use crate::pool::stats::Cause;
use crate::store::superblock::{Slots, Superblock};

#[derive(Debug)]
pub(crate) struct RoundState {
    pub(crate) slots: Slots,
    pub(crate) superblock: Superblock,
    pub(crate) mapping: Mapping,
    /// Staging buffer for images to write.
    pub(crate) staging: Staging,
    /// Segments with damaged or latched images.
    pub(crate) left_alone: LeftAlone,
    /// The durable state has every allocation and free below this LSN.
    pub(crate) absorbed: Lsn,
    /// Frames taken at the last write-back ahead of each sweep.
    pub(crate) frames_taken: ByPartition<u64>,
    pub(crate) cause: Cause,
    pub(crate) backup: Option<BackupHold>,
    /// End of the log when it was last asked whether it should grow.
    pub(crate) growth_asked: Lsn,
    /// Whether it was reported that the log cannot grow.
    pub(crate) log_refused: bool,
}

impl RoundState {
    pub(crate) fn note_image(&mut self, page: PageId) {
        if let Some(backup) = &mut self.backup {
            backup.changed.insert(page);
        }
    }

    /// Ends a backup's hold on the log. The backup then repeats its last round.
    pub(super) fn release_log(&mut self) {
        if let Some(backup) = self.backup.as_mut().filter(|backup| backup.cut_max != Lsn(u64::MAX)) {
            tracing::warn!(
                "a backup repeats its last round: commits or maintenance need the log that it holds"
            );
            backup.cut_max = Lsn(u64::MAX);
            backup.outrun += 1;
        }
    }
}

/// Maintenance's view of a running backup.
#[derive(Debug)]
pub(crate) struct BackupHold {
    /// Pages written or freed since the last round began.
    pub(crate) changed: PageSet,
    /// The log is not cut beyond this.
    pub(crate) cut_max: Lsn,
    /// Times that commits or maintenance needed the held log.
    pub(crate) outrun: u32,
}
