//! Redo: what the base images lack is done again, in the order of the log.
//!
//! A change is redone if its page is allocated, if it is not older than the page's last allocation or free, and if the
//! base has a lower LSN. Redoing a page takes that page and the record, nothing else. Pages are faulted in, evicted and
//! written as always, so redo keeps the memory limit; for the changes that only the index understands it is given a
//! [`Redo`].

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;

use crate::buffer::pool::{Pool, Stop, class_of_page};
use crate::error::{Error, Result};
use crate::ids::{Lsn, PageId};
use crate::planted::{Bug, planted};
use crate::store::page;
use crate::store::place::Mapped;
use crate::wal::{Change, Kind, LogScan, change_kind};

/// Replays the changes that only the index understands.
pub(crate) trait Redo {
    /// Applies a change of an index kind to a page.
    fn redo(&self, kind: u8, payload: &[u8], page: &mut [u8]) -> Result<()>;
}

impl Pool {
    /// Redoes what the base images lack. Returns how many changes that was.
    pub(super) fn redo_all(
        &self,
        mut records: LogScan,
        born: &HashMap<PageId, Lsn>,
        losers_floor: u64,
        redo: &dyn Redo,
    ) -> Result<u64> {
        let mut redone = 0;
        let mut scratch = Vec::new();
        while let Some(record) = records.next()? {
            if record.kind() != Kind::Pages {
                continue;
            }
            self.recovery_floor.store(record.lsn().0.min(losers_floor), Relaxed);
            // Evictions log where images went; without a checkpoint now and then that could fill the log.
            if self.wal.tail().0 - self.wal.cut().0 > self.log_capacity / 8 * 7 {
                self.checkpoint_step(&mut self.upkeep.lock())?;
            }
            for change in record.changes() {
                let old_life = born.get(&change.page).is_some_and(|&lsn| record.lsn() < lsn);
                if old_life || change.kind == change_kind::FREE || !self.exists_durably(change.page) {
                    continue;
                }
                redone += u64::from(self.redo_one(record.lsn(), &change, redo, &mut scratch)?);
            }
        }
        Ok(redone)
    }

    fn exists_durably(&self, id: PageId) -> bool {
        // Pages that only the log knows have no location until their first image record is redone.
        self.exists(id) || self.unwritten.lock().contains(&id)
    }

    /// Redoes one change if the page lacks it.
    fn redo_one(
        &self,
        lsn: Lsn,
        change: &Change<'_>,
        redo: &dyn Redo,
        scratch: &mut Vec<u8>,
    ) -> Result<bool> {
        let damaged = |what: String| Error::corrupt("the log", Some(change.page.0), what);
        if !self.exists(change.page) {
            if change.kind != change_kind::IMAGE {
                return Err(damaged(format!("the record at {lsn} changes a page of which nothing is known")));
            }
            let class = class_of_page(change.page);
            scratch.resize(class.page_bytes(), 0);
            page::expand(change.payload, scratch)?;
            check_identity(scratch, change.page)?;
            page::set_lsn(scratch, lsn);
            let frame = self.take_frame(class, change.page)?;
            self.house(&[(change.page, frame)]).inspect_err(|_| self.give_frame(frame))?;
            self.install(change.page, frame, Mapped::UNWRITTEN, lsn, scratch);
            self.unwritten.lock().remove(&change.page);
            return Ok(true);
        }
        let mut guard = match self.latch(change.page) {
            Ok(guard) => guard,
            Err(Stop::Fail(error)) => return Err(error),
            Err(other) => unreachable!("a page that exists is found in recovery: {other:?}"),
        };
        guard.copy(scratch);
        let base = page::lsn(scratch);
        let lacks = if planted(Bug::CompareLsnsWrongly) { base.0 <= lsn.0 + 1 } else { base < lsn };
        if !lacks {
            return Ok(false);
        }
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
        self.note_change(&guard, lsn);
        Ok(true)
    }
}

fn check_identity(content: &[u8], id: PageId) -> Result<()> {
    if page::page_id(content) != id {
        return Err(Error::corrupt("the log", Some(id.0), "a record gives the page another page's content"));
    }
    page::check_kind(content, id).map_err(|what| Error::corrupt("the log", Some(id.0), what))
}
