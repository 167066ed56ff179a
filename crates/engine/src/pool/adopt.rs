//! Pages whose base at recovery is a frame of a persistent middle tier.
//!
//! Recovery puts them into their frames without a look at the bodies. The first access compares a
//! body with its checksum, or redo at the page's first record. If it does not hold, the image is
//! the base: redo has changed nothing yet, and afterwards such a page is clean.

use std::time::Instant;

use super::buffer_pool::Pool;
use super::frames::partition::{Partition, index_of, is_middle};
use super::frames::persistent::{Adopted, PersistentFrames};
use super::guard::ReadGuard;
use super::page_table::{Entry, Location};
use super::retry::Retry;
use super::tiers::Tiers;
use crate::error::{Error, Result};
use crate::ids::{Lsn, PageId};
use crate::planted::{Bug, planted};
use crate::store::mapping_word::MappingWord;

/// Puts pages into their frames, which no page has. `unwritten` gives the LSN of the allocation of
/// a page without an image.
///
/// # Errors
/// [`Error::Memory`].
pub(crate) fn adopt(
    tiers: &Tiers,
    adopted: &[Adopted],
    mut unwritten: impl FnMut(PageId) -> Option<Lsn>,
) -> Result<()> {
    let Some(middle) = &tiers.middle else { return Ok(()) };
    let begun = Instant::now();
    let partition = Partition::middle(middle.class);
    let Some(highest) = adopted.iter().map(|frame| frame.index).max() else { return Ok(()) };
    let mut free = tiers.replacer.free(partition).lock();
    while tiers.frames.backed(partition) <= highest {
        tiers.replacer.back_more(&tiers.frames, &mut free).map_err(|source| {
            let bytes = u64::from(highest) * super::frames::HEADER_BYTES;
            Error::Memory { bytes, what: "the headers of the middle tier", source }
        })?;
    }
    let mut is_free = vec![true; tiers.frames.backed(partition) as usize];
    adopted.iter().for_each(|frame| is_free[frame.index as usize] = false);
    free.list.retain(|&frame| is_free[index_of(frame) as usize]);
    for &Adopted { id, index, .. } in adopted {
        let entry = tiers.table.entry(id).expect("adopted pages are within the table");
        let frame = partition.frame(index);
        match entry.location() {
            Location::Store(mapped) => tiers.bind_to_frame(id, entry, frame, mapped),
            _ => {
                let lsn = unwritten(id).expect("a page without an image has its allocation in the log");
                tiers.bind_to_frame(id, entry, frame, MappingWord::UNWRITTEN);
                tiers.frames.header(frame).set_rec_lsn(lsn);
                entry.latch().set_dirty(true);
            }
        }
        free.queues.adopt(&tiers.frames, frame);
    }
    drop(free);
    for &Adopted { id, index, .. } in adopted {
        let entry = tiers.table.entry(id).expect("adopted pages are within the table");
        tiers.unlocked(id, entry, partition.frame(index));
    }
    tiers.frames.persistent.iter().for_each(|persistent| persistent.count_adoption(begun));
    Ok(())
}

/// Before an access to a page in a persistent middle tier: checks its body once.
///
/// # Errors
/// [`Retry::Restart`] if the page is elsewhere now; [`Error::Poisoned`] in a forked child.
#[inline]
pub(super) fn before_access(pool: &Pool, guard: &ReadGuard<'_>) -> Result<(), Retry> {
    let Some(persistent) = &pool.frames.persistent else { return Ok(()) };
    persistent.check_process()?;
    if persistent.wants_check(guard.page().frame) { check_adopted(pool, persistent, guard) } else { Ok(()) }
}

#[cold]
fn check_adopted(pool: &Pool, persistent: &PersistentFrames, guard: &ReadGuard<'_>) -> Result<(), Retry> {
    let page = guard.page();
    if !page.entry.latch().try_exclusive(page.word) {
        return Err(Retry::Restart);
    }
    if persistent.check_body(page.frame, page.id) {
        page.entry.latch().release_unchanged();
        return Ok(());
    }
    forsake(pool, persistent, page.id, page.entry, page.frame);
    Err(Retry::Restart)
}

/// Checks the frame of adopted page `id`, unless that was done.
pub(crate) fn check_adopted_page(pool: &Pool, id: PageId) {
    let Some((persistent, entry)) = pool.frames.persistent.as_ref().zip(pool.table.entry(id)) else {
        return;
    };
    pool.lock_entry(entry);
    match entry.location() {
        Location::Frame(frame)
            if is_middle(frame) && persistent.wants_check(frame) && !persistent.check_body(frame, id) =>
        {
            forsake(pool, persistent, id, entry, frame);
        }
        _ => entry.latch().release_unchanged(),
    }
}

/// Redo meets the record at `lsn` of page `id`, which its image may lack. A page whose base is a
/// frame is dirty from here on, unless its image is equal. Whether the frame has the change by its
/// seal.
pub(crate) fn meet_adopted(pool: &Pool, id: PageId, lsn: Lsn) -> bool {
    let Some((persistent, entry)) = pool.frames.persistent.as_ref().zip(pool.table.entry(id)) else {
        return false;
    };
    let in_frame = |entry: Entry<'_>| match entry.location() {
        Location::Frame(frame) if is_middle(frame) && persistent.is_sealed(frame) => Some(frame),
        _ => None,
    };
    if in_frame(entry).is_none() {
        return false;
    }
    pool.lock_entry(entry);
    let Some(frame) = in_frame(entry) else {
        entry.latch().release_unchanged();
        return false;
    };
    if persistent.wants_check(frame) && !persistent.check_body(frame, id) {
        forsake(pool, persistent, id, entry, frame);
        return false;
    }
    if persistent.is_unmet(frame) && !planted(Bug::RedoLeavesClean) {
        let header = pool.frames.header(frame);
        if header.rec_lsn().is_none() {
            header.set_rec_lsn(lsn);
        }
        entry.latch().set_dirty(true);
    }
    persistent.meet(frame);
    let has_change = persistent.sealed_lsn(frame).is_some_and(|sealed| lsn <= sealed);
    entry.latch().release_unchanged();
    has_change
}

/// Page and LSN of `frame`, if it is sealed, and its fault.
pub(crate) fn look_at_sealed(
    pool: &Pool,
    persistent: &PersistentFrames,
    frame: u32,
) -> Option<(PageId, Lsn, Option<&'static str>)> {
    let id = pool.frames.header(frame).page();
    let entry = pool.table.entry(id).filter(|_| !id.is_none())?;
    pool.share_entry(entry);
    let is_here = pool.frames.header(frame).page() == id && persistent.is_sealed(frame);
    let found = is_here.then(|| {
        let lsn = persistent.sealed_lsn(frame).unwrap_or(Lsn::NONE);
        (id, lsn, persistent.body_fault(frame, id))
    });
    entry.latch().unshare();
    found
}

/// Gives up a damaged frame, and unlatches its page: its base is the image.
#[cold]
fn forsake(pool: &Pool, persistent: &PersistentFrames, id: PageId, entry: Entry<'_>, frame: u32) {
    let what = persistent.body_fault(frame, id).unwrap_or("it changes");
    tracing::warn!(
        page = id.0,
        what,
        "a frame of the middle tier is damaged; its page is read from the store"
    );
    let mapped = pool.frames.header(frame).mapped();
    debug_assert!(mapped.has_image(), "bodies of pages without one are checked before");
    entry.latch().set_dirty(false);
    pool.frames.header(frame).set_rec_lsn(Lsn::NONE);
    entry.set_location(Location::Store(mapped));
    pool.give_frame(frame);
    entry.latch().release_changed();
}
