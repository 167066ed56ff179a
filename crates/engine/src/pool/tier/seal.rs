//! Sealing of frames that outlive the process.
//!
//! Maintenance calls this under its lock, so no image comes into force meanwhile
//! (`maintenance/flush.rs`). A hand goes over the frames and passes those that would soon be
//! unsealed: marked, dirty, and changed since its last look. It seals a middle copy only if the
//! copy in DRAM is equal: a newer one's image may be in force already.
//!
//! The page's shared latch is held from the read of its LSN until the seal is stored.

use super::middle::MiddleTier;
use crate::ids::Lsn;
use crate::planted::{Bug, planted};
use crate::pool::frames::partition::{Partition, is_middle};
use crate::pool::frames::persistent::{PersistentFrames, Sealing};
use crate::pool::page_table::{Entry, Location};
use crate::pool::resident::Resident;

/// Pages sealed together, with one pair of fences.
const BATCH: usize = 16;

/// How much of the tier a call looks at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SealLimits {
    /// Frames.
    pub(crate) looks: u32,
    /// Frames to seal, rounded up to a batch.
    pub(crate) seals: usize,
    /// Also those that may change soon.
    pub(crate) all: bool,
}

/// Seals frames in turn, as far as the log is `durable`. Returns their number.
///
/// `buffer` has room for a page.
pub(in crate::pool) fn seal_some(
    middle: &MiddleTier,
    resident: &Resident,
    durable: Lsn,
    limits: SealLimits,
    buffer: &mut [u8],
) -> usize {
    let persistent = resident.frames.persistent.as_ref();
    let Some(persistent) = persistent.filter(|frames| frames.is_of_this_process()) else { return 0 };
    let count = resident.frames.backed(Partition::middle(middle.class));
    let mut batch = Vec::with_capacity(BATCH);
    let mut sealed = 0;
    let mut finish = |batch: &mut Vec<(Entry<'_>, Sealing)>| {
        let frames: Vec<Sealing> = batch.iter().map(|&(_, sealing)| sealing).collect();
        persistent.seal(&frames);
        batch.drain(..).for_each(|(entry, _)| entry.latch().unshare());
        sealed += frames.len();
        sealed >= limits.seals
    };
    for _ in 0..limits.looks.min(count) {
        let frame = persistent.next_in_turn(count);
        batch.extend(begin(resident, persistent, frame, durable, limits.all, buffer));
        if batch.len() == BATCH && finish(&mut batch) {
            break;
        }
    }
    finish(&mut batch);
    sealed
}

/// Shares the latch of the page in `frame` if it is to be sealed.
fn begin<'r>(
    resident: &'r Resident,
    persistent: &PersistentFrames,
    frame: u32,
    durable: Lsn,
    all: bool,
    buffer: &mut [u8],
) -> Option<(Entry<'r>, Sealing)> {
    let header = resident.frames.header(frame);
    let id = header.page();
    if persistent.is_sealed(frame) || id.is_none() {
        return None;
    }
    let entry = resident.table.entry(id)?;
    let latch = entry.latch();
    if !latch.try_share() {
        return None;
    }
    let word = latch.load();
    let is_due = match entry.location() {
        Location::Frame(at) if at == frame => {
            let is_unchanged = persistent.is_unchanged(frame, word.version());
            all || !word.is_marked() || !word.is_dirty() || is_unchanged
        }
        Location::Frame(above) | Location::Partial(above) if !is_middle(above) => {
            let is_copy = resident.frames.header(above).middle_copy() == Some(frame);
            is_copy && (header.equal_at() == word.version() || planted(Bug::SealOlderCopy))
        }
        _ => false,
    };
    let sealing = (is_due && header.page() == id && !word.is_freed())
        .then(|| persistent.begin_seal(frame, id, durable, buffer))
        .flatten();
    if sealing.is_none() {
        latch.unshare();
    }
    sealing.map(|sealing| (entry, sealing))
}
