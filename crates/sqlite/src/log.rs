//! The write-ahead log: pages that this process has put there are read from memory.
//!
//! A checkpoint reads every page from the log again that it moves to the database file, and readers find in the log what no
//! checkpoint has moved. On a slow disk these are slow reads of what was at hand a moment ago. So the pages of the frames that we
//! write are kept, up to a limit; those that others write are not known here.
//!
//! A frame that is committed does not change until the log begins anew, which changes the *salts* of its generation. So pages
//! are kept with the salts of their log:
//!
//! * What is written is *pending* until the lock of the log's writers is given up ([`LogPages::commits`]). Then those that the index
//!   counts as committed are kept, and the others, which somebody else may write over, are forgotten. No pending page is served.
//! * The salts are compared at each memory barrier of SQLite's ([`LogPages::generation_is`]). It has one between the two looks
//!   at the index by which it makes sure of it, before a checkpoint begins, and one between getting a read mark and making sure that
//!   the index is still the same. So it goes on only by a log with the salts that were seen there; and that log cannot
//!   begin anew, because somebody reads it, or because a checkpoint is not through.
//! * With `locking_mode=EXCLUSIVE` there is no index in shared memory, or that lock is not asked for: nothing is committed, and nothing
//!   more is served. What is pending then is forgotten when somebody gets the lock ([`LogPages::begins`]), for others may have written over it.
//!
//! SQLite writes the head of a frame that it appends and its page one after the other. They are written by one call: such a head waits for
//! the page (`log_file.rs`), and any other call on the file writes it first.

use std::collections::HashMap;

use crate::below::WalState;
use crate::planted::{Bug, planted};

/// Bytes of the log's head, and of a frame's ("Database File Format", sections 4.1 and 4.2).
pub(crate) const LOG_HEAD_BYTES: u64 = 32;
const FRAME_HEAD_BYTES: u64 = 24;

/// What is kept at most, in bytes of pages.
const BYTES_MAX: usize = 8 << 20;

/// The pages of one log that this process has written.
#[derive(Debug, Default)]
pub(crate) struct LogPages {
    salts: Option<[u32; 2]>,
    committed: HashMap<u64, Box<[u8]>>,
    pending: HashMap<u64, Box<[u8]>>,
    bytes: usize,
    /// Reads that were served.
    hits: u64,
}

impl LogPages {
    /// A page is about to be written, at this place of the log.
    pub fn write(&mut self, offset: u64, page: &[u8]) {
        self.forget(offset);
        if self.bytes + page.len() <= BYTES_MAX {
            self.bytes += page.len();
            self.pending.insert(offset, page.into());
        }
    }

    /// Something else is about to be written there: no page of a known frame.
    pub fn forget(&mut self, offset: u64) {
        let pages = [self.pending.remove(&offset), self.committed.remove(&offset)];
        self.bytes -= pages.iter().flatten().map(|page| page.len()).sum::<usize>();
    }

    /// All of it is void.
    pub fn clear(&mut self) {
        *self = LogPages { hits: self.hits, ..LogPages::default() };
    }

    /// Somebody has got the lock of the log's writers. What is still pending was written without it.
    pub fn begins(&mut self) {
        self.bytes -= self.pending.drain().map(|(_, page)| page.len()).sum::<usize>();
    }

    /// The writer of the log is about to give up its lock; the index says what is committed.
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

    /// The index says so at a barrier, or when the writer is done.
    pub fn generation_is(&mut self, now: WalState) {
        if self.salts == Some(now.salts) || planted(Bug::KeepOldFrames) {
            return;
        }
        self.salts = Some(now.salts);
        self.bytes -= self.committed.values().map(|page| page.len()).sum::<usize>();
        self.committed.clear();
    }

    /// Reads a page, if it is here.
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

/// The number of the frame, from 1 on, whose page of so many bytes begins at `offset`; none if no frame's does.
pub(crate) fn frame_of(offset: u64, page_bytes: usize) -> Option<u64> {
    let frame_bytes = FRAME_HEAD_BYTES + page_bytes as u64;
    let start = offset.checked_sub(LOG_HEAD_BYTES + FRAME_HEAD_BYTES)?;
    (page_bytes >= 512 && page_bytes.is_power_of_two() && start.is_multiple_of(frame_bytes))
        .then(|| start / frame_bytes + 1)
}

/// Whether a write of so many bytes is the head of a frame.
pub(crate) fn is_frame_head(bytes: usize) -> bool {
    bytes as u64 == FRAME_HEAD_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 512;

    fn place(frame: u64) -> u64 {
        32 + (frame - 1) * (24 + PAGE as u64) + 24
    }

    fn state(salt: u32, frames: u32) -> WalState {
        WalState { salts: [salt, 0], frames, backfilled: 0, attempted: 0 }
    }

    fn has(log: &mut LogPages, frame: u64, byte: u8) -> bool {
        let mut page = [0; PAGE];
        log.read(place(frame), &mut page) && page == [byte; PAGE]
    }

    #[test]
    fn only_what_is_committed_in_this_generation_is_served() {
        let mut log = LogPages::default();
        for frame in 1..=3 {
            assert_eq!(frame_of(place(frame), PAGE), Some(frame));
            log.write(place(frame), &[frame as u8; PAGE]);
            assert!(!has(&mut log, frame, frame as u8), "pending");
        }
        log.commits(state(7, 2));
        assert!(has(&mut log, 1, 1) && has(&mut log, 2, 2));
        assert!(!has(&mut log, 3, 3), "rolled back");
        log.generation_is(state(7, 5));
        assert!(has(&mut log, 1, 1));
        log.write(place(2), &[9; PAGE]);
        assert!(!has(&mut log, 2, 2) && !has(&mut log, 2, 9), "written over");
        log.generation_is(state(8, 5));
        assert!(!has(&mut log, 1, 1), "another log");
        log.write(place(1), &[8; PAGE]);
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
            log.write(place(frame), &[1; PAGE]);
        }
        assert_eq!(log.bytes, BYTES_MAX);
        log.commits(state(1, pages as u32));
        assert_eq!(log.committed.len() * PAGE, BYTES_MAX);
        log.generation_is(state(2, 0));
        assert_eq!(log.bytes, 0);
    }
}
