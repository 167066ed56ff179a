//! Pages of the write-ahead log that this process has written, kept in memory.
//!
//! Checkpoints and readers would otherwise read them back from a slow disk. A committed frame does
//! not change until the log restarts, which changes its *salts*. So pages are kept with their
//! salts:
//!
//! * A written page is *pending* until the write lock is released ([`LogPages::commits`]). Pages
//!   that the index counts as committed are then kept. The rest are dropped, because others may
//!   overwrite them. Pending pages are never served.
//! * Salts are compared at each memory barrier of SQLite ([`LogPages::generation_is`]). SQLite has
//!   one between its two reads of the index header, before a checkpoint, and between taking a read
//!   mark and rechecking the index. So it continues only with the salts seen there, and that log
//!   cannot restart while it has a reader or an unfinished checkpoint.
//! * With `locking_mode=EXCLUSIVE` there is no shared index or no write lock: nothing is committed
//!   or served any more. The next write lock drops pending pages, because others may have
//!   overwritten them ([`LogPages::begins`]).

use std::collections::HashMap;

use crate::below::WalState;
use crate::planted::{Bug, planted};

/// Lengths of the log's and a frame's head ("Database File Format", sections 4.1 and 4.2).
pub(crate) const LOG_HEAD_BYTES: u64 = 32;
const FRAME_HEAD_BYTES: u64 = 24;

/// Limit of kept pages, in bytes.
const BYTES_MAX: usize = 8 << 20;

#[derive(Debug, Default)]
pub(crate) struct LogPages {
    salts: Option<[u32; 2]>,
    committed: HashMap<u64, Box<[u8]>>,
    pending: HashMap<u64, Box<[u8]>>,
    bytes: usize,
    /// Reads served.
    hits: u64,
}

impl LogPages {
    /// Called before a page is written at `offset` of the log.
    pub fn write(&mut self, offset: u64, page: &[u8]) {
        self.forget(offset);
        if self.bytes + page.len() <= BYTES_MAX {
            self.bytes += page.len();
            self.pending.insert(offset, page.into());
        }
    }

    /// Called before other bytes are written at `offset`.
    pub fn forget(&mut self, offset: u64) {
        let pages = [self.pending.remove(&offset), self.committed.remove(&offset)];
        self.bytes -= pages.iter().flatten().map(|page| page.len()).sum::<usize>();
    }

    /// Drops everything.
    pub fn clear(&mut self) {
        *self = LogPages { hits: self.hits, ..LogPages::default() };
    }

    /// Called with the write lock; drops pages that were written without it.
    pub fn begins(&mut self) {
        self.bytes -= self.pending.drain().map(|(_, page)| page.len()).sum::<usize>();
    }

    /// Called before the write lock is released; keeps committed pages.
    pub fn commits(&mut self, now: WalState) {
        self.generation_is(now);
        for (offset, page) in self.pending.drain() {
            let end = frame_of(offset, page.len()).filter(|frame| *frame <= u64::from(now.frames));
            if end.is_some() || planted(Bug::KeepUncommittedFrames) {
                self.committed.insert(offset, page);
            } else {
                self.bytes -= page.len();
            }
        }
    }

    /// Drops pages of another generation than the index has.
    pub fn generation_is(&mut self, now: WalState) {
        if self.salts == Some(now.salts) || planted(Bug::KeepOldFrames) {
            return;
        }
        self.salts = Some(now.salts);
        self.bytes -= self.committed.values().map(|page| page.len()).sum::<usize>();
        self.committed.clear();
    }

    pub fn read(&mut self, offset: u64, buffer: &mut [u8]) -> bool {
        let Some(page) = self.committed.get(&offset).filter(|page| page.len() == buffer.len()) else {
            return false;
        };
        buffer.copy_from_slice(page);
        self.hits += 1;
        true
    }

    pub fn hits(&self) -> u64 {
        self.hits
    }
}

/// Number, from 1, of the frame whose page begins at `offset`.
pub(crate) fn frame_of(offset: u64, page_bytes: usize) -> Option<u64> {
    let frame_bytes = FRAME_HEAD_BYTES + page_bytes as u64;
    let start = offset.checked_sub(LOG_HEAD_BYTES + FRAME_HEAD_BYTES)?;
    (page_bytes >= 512 && page_bytes.is_power_of_two() && start.is_multiple_of(frame_bytes))
        .then(|| start / frame_bytes + 1)
}

pub(crate) fn is_frame_head(bytes: usize) -> bool {
    bytes as u64 == FRAME_HEAD_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 512;

    fn offset_of(frame: u64) -> u64 {
        32 + (frame - 1) * (24 + PAGE as u64) + 24
    }

    fn state(salt: u32, frames: u32) -> WalState {
        WalState { salts: [salt, 0], frames, backfilled: 0, attempted: 0 }
    }

    fn has(log: &mut LogPages, frame: u64, byte: u8) -> bool {
        let mut page = [0; PAGE];
        log.read(offset_of(frame), &mut page) && page == [byte; PAGE]
    }

    #[test]
    fn only_what_is_committed_in_this_generation_is_served() {
        let mut log = LogPages::default();
        for frame in 1..=3 {
            assert_eq!(frame_of(offset_of(frame), PAGE), Some(frame));
            log.write(offset_of(frame), &[frame as u8; PAGE]);
            assert!(!has(&mut log, frame, frame as u8), "pending");
        }
        log.commits(state(7, 2));
        assert!(has(&mut log, 1, 1) && has(&mut log, 2, 2));
        assert!(!has(&mut log, 3, 3), "rolled back");
        log.generation_is(state(7, 5));
        assert!(has(&mut log, 1, 1));
        log.write(offset_of(2), &[9; PAGE]);
        assert!(!has(&mut log, 2, 2) && !has(&mut log, 2, 9), "written over");
        log.generation_is(state(8, 5));
        assert!(!has(&mut log, 1, 1), "another log");
        log.write(offset_of(1), &[8; PAGE]);
        log.begins();
        log.commits(state(8, 5));
        assert!(!has(&mut log, 1, 8), "written without the lock of the writers");
        assert_eq!(log.bytes, 0);
        log.clear();
        assert_eq!((log.bytes, log.hits()), (0, 3));
    }

    #[test]
    fn memory_has_a_limit() {
        let mut log = LogPages::default();
        let pages = 2 * BYTES_MAX / PAGE;
        for frame in 1..=pages as u64 {
            log.write(offset_of(frame), &[1; PAGE]);
        }
        assert_eq!(log.bytes, BYTES_MAX);
        log.commits(state(1, pages as u32));
        assert_eq!(log.committed.len() * PAGE, BYTES_MAX);
        log.generation_is(state(2, 0));
        assert_eq!(log.bytes, 0);
    }
}
