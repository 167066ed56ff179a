//! Redo: repeats the changes that base images lack, in log order.
//!
//! A change is redone if its page is allocated and the base has a lower LSN. It must not be older
//! than the page's last allocation or free. Mapping records and seals tell without a look at the
//! page that most bases have a change. Each redo needs only the page and the record. Pages are
//! evicted and written as usual, so redo keeps the memory limit.
//!
//! Pages in the store are read several at a time, before the redo of their first records: by a
//! thread beside it, where there may be one. Another checks adopted frames.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;

use super::analysis::{Bases, FirstChanges, lacks};
use crate::error::{Error, Result};
use crate::ids::{Lsn, PageId};
use crate::maintenance::Maintenance;
use crate::pool::adopt::{check_adopted_page, meet_adopted};
use crate::pool::page_table::Location;
use crate::pool::resident::class_of_page;
use crate::pool::view::View;
use crate::pool::{ReadReason, Retry, batch_pages, fault_many};
use crate::store::page;
use crate::wal::{Change, Kind, LogScan, change_kind};

/// Replays changes of the index.
pub(crate) trait Redo {
    fn redo(&self, kind: u8, payload: &[u8], page: &mut [u8]) -> Result<()>;
}

/// Batches that wait for redo, beside the one being sent. Each takes up to an eighth of the frames.
const BATCHES_AHEAD: usize = 1;

/// Redoes missing changes, while threads read the pages of `first_changes` and check the frames of
/// adopted ones.
pub(super) fn redo_beside_reads(
    maintenance: &Maintenance,
    records: LogScan,
    bases: &Bases,
    first_changes: &FirstChanges,
    losers_floor: u64,
    redo: &dyn Redo,
) -> Result<u64> {
    let (sent, read) = sync_channel(BATCHES_AHEAD);
    let pool = &maintenance.pool;
    let read_all = move || {
        for (pages, end) in first_changes.batches(batch_pages(pool, pool.class()).max(1)) {
            // Redo meets the same error, or has ended.
            if fault_many(pool, &pages, ReadReason::Wanted, &mut |_, _| {}).is_err()
                || sent.send(end).is_err()
            {
                return;
            }
        }
    };
    let check_all = || first_changes.adopted().iter().for_each(|&id| check_adopted_page(pool, id));
    thread::scope(|scope| {
        let start = |name: &str| thread::Builder::new().name(name.to_owned());
        let failed = |source| Error::io("start a thread", "for redo", None, source);
        start("terrace-read").spawn_scoped(scope, read_all).map_err(failed)?;
        start("terrace-check").spawn_scoped(scope, check_all).map_err(failed)?;
        redo_all(maintenance, records, bases, Some(read), losers_floor, redo)
    })
}

/// Redoes missing changes. `read` says up to where another thread has read their pages; redo itself
/// reads the others. Returns the number of changes.
pub(super) fn redo_all(
    maintenance: &Maintenance,
    mut records: LogScan,
    bases: &Bases,
    read: Option<Receiver<Lsn>>,
    losers_floor: u64,
    redo: &dyn Redo,
) -> Result<u64> {
    let (mut redone, mut read_to) = (0, Lsn::NONE);
    let mut scratch = Vec::new();
    loop {
        if records.end() >= read_to {
            read_to = match read.as_ref().and_then(|read| read.recv().ok()) {
                Some(read_to) => read_to,
                None => read_ahead(maintenance, &mut records, bases)?,
            };
        }
        let Some(record) = records.next()? else { return Ok(redone) };
        if record.kind() != Kind::Pages {
            continue;
        }
        maintenance.requests.recovery_floor.store(record.lsn().0.min(losers_floor), Relaxed);
        // Evictions log mappings, which could fill the log without a checkpoint.
        if maintenance.wal.tail().0 - maintenance.wal.cut().0 > maintenance.wal.capacity() / 8 * 7 {
            maintenance.checkpoint_step(&mut maintenance.round_state.lock())?;
        }
        for change in record.changes().filter(|change| counts(maintenance, bases, record.lsn(), change)) {
            if meet_adopted(&maintenance.pool, change.page, record.lsn()) {
                continue;
            }
            redone += u64::from(redo_one(maintenance, record.lsn(), &change, redo, &mut scratch)?);
        }
    }
}

/// Whether a change is of the present life of a page that exists, and its base may lack it.
fn counts(maintenance: &Maintenance, bases: &Bases, lsn: Lsn, change: &Change<'_>) -> bool {
    change.kind != change_kind::FREE
        && bases.may_lack(change.page, lsn)
        && exists_durably(maintenance, change.page)
}

/// Reads a batch of the pages that the next records change, and returns the end of these records.
/// A page that cannot be read is left to its redo.
fn read_ahead(maintenance: &Maintenance, records: &mut LogScan, bases: &Bases) -> Result<Lsn> {
    let pool = &maintenance.pool;
    let most = batch_pages(pool, pool.class());
    let (mut end, mut pages) = (Lsn::NONE, Vec::with_capacity(most));
    for record in records.ahead()? {
        end = record.end();
        if record.kind() != Kind::Pages {
            continue;
        }
        for change in record.changes().filter(|change| counts(maintenance, bases, record.lsn(), change)) {
            let location = pool.table.entry(change.page).map(|entry| entry.location());
            if matches!(location, Some(Location::Store(_))) && !pages.contains(&change.page) {
                pages.push(change.page);
            }
        }
        if pages.len() >= most {
            break;
        }
    }
    fault_many(pool, &pages, ReadReason::Wanted, &mut |_, _| {})?;
    Ok(end)
}

fn exists_durably(maintenance: &Maintenance, id: PageId) -> bool {
    // Pages that only the log has get a location when their first image record is redone.
    maintenance.pool.exists(id) || maintenance.table_image.unwritten.lock().contains(&id)
}

/// Redoes one change if the page lacks it.
fn redo_one(
    maintenance: &Maintenance,
    lsn: Lsn,
    change: &Change<'_>,
    redo: &dyn Redo,
    scratch: &mut Vec<u8>,
) -> Result<bool> {
    let damaged = |what: String| Error::corrupt("the log", Some(change.page.0), what);
    if !maintenance.pool.exists(change.page) {
        if change.kind != change_kind::IMAGE {
            return Err(damaged(format!("the record at {lsn} changes a page of which nothing is known")));
        }
        scratch.resize(class_of_page(change.page).page_bytes(), 0);
        page::expand(change.payload, scratch)?;
        check_identity(scratch, change.page)?;
        page::set_lsn(scratch, lsn);
        maintenance.pool.create_again(change.page, lsn, scratch)?;
        maintenance.table_image.unwritten.lock().remove(&change.page);
        return Ok(true);
    }
    let mut guard = match maintenance.pool.latch(change.page) {
        Ok(guard) => guard,
        Err(Retry::Fail(error)) => return Err(error),
        Err(other) => unreachable!("a page that exists is found in recovery: {other:?}"),
    };
    if !lacks(Lsn(guard.view().u64(page::LSN_AT)), lsn) {
        return Ok(false);
    }
    guard.copy(scratch);
    match (change.kind, change.overwrite()) {
        (change_kind::IMAGE, _) => page::expand(change.payload, scratch)?,
        (change_kind::BYTES, Some((at, bytes))) => {
            let target = scratch.get_mut(at as usize..).and_then(|page| page.get_mut(..bytes.len()));
            target
                .ok_or_else(|| damaged(format!("the record at {lsn} writes beyond the page")))?
                .copy_from_slice(bytes);
        }
        (kind, _) => redo.redo(kind, change.payload, scratch)?,
    }
    check_identity(scratch, change.page)?;
    page::set_lsn(scratch, lsn);
    guard.store(scratch);
    guard.note_change(lsn);
    Ok(true)
}

fn check_identity(content: &[u8], id: PageId) -> Result<()> {
    if page::page_id(content) != id {
        return Err(Error::corrupt("the log", Some(id.0), "a record gives the page another page's content"));
    }
    page::check_kind(content, id).map_err(|what| Error::corrupt("the log", Some(id.0), what))
}
