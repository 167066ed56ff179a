//! The write-ahead log as one connection has it: heads of frames wait for their pages, and pages are kept (`log.rs`).
//!
//! Only the head of a frame that is *appended* waits, for its page is sure to be the next call. SQLite also writes heads by themselves:
//! when a transaction has changed pages that it had put into the log before, its commit writes the heads behind them again, with
//! other checksums, the last frame's too. Those must be in the file when the commit returns. They lie before the end of what this connection
//! has appended, and a head waits at that end alone.

use std::ffi::c_int;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::below::Below;
use crate::code::Outcome;
use crate::file::Handle;
use crate::log::{LOG_HEAD_BYTES, LogPages, frame_of, is_frame_head};
use crate::planted::{Bug, planted};

/// The log of one connection.
pub(crate) struct Log {
    below: Below,
    pages: Option<Arc<Mutex<LogPages>>>,
    /// The head of a frame that is not yet written, and its place.
    head: Vec<u8>,
    head_offset: i64,
    /// Where the frame after the last that was appended begins, as far as is known.
    end: i64,
    /// Where the page of a head that did not wait begins, if the head was written last.
    page_at: Option<i64>,
}

impl Log {
    pub fn new(below: Below, pages: Option<Arc<Mutex<LogPages>>>) -> Log {
        Log { below, pages, head: Vec::new(), head_offset: 0, end: LOG_HEAD_BYTES as i64, page_at: None }
    }

    /// Writes the head that waits.
    fn flush(&mut self) -> Outcome {
        if self.head.is_empty() {
            return Ok(());
        }
        let head = std::mem::take(&mut self.head);
        self.below.write(&head, self.head_offset)
    }

    /// What follows the head of a frame is written at `offset`. It is the page, or a part of it up to where SQLite syncs.
    fn appended(&mut self, bytes: usize, offset: i64) {
        let is_page = u64::try_from(offset).is_ok_and(|offset| frame_of(offset, bytes).is_some());
        self.end = if is_page { offset + bytes as i64 } else { 0 };
    }

    /// Takes note of a write, before it is made.
    fn note(&self, bytes: &[u8], offset: i64) {
        let (Some(pages), Ok(offset)) = (&self.pages, u64::try_from(offset)) else { return };
        match frame_of(offset, bytes.len()) {
            Some(_) => pages.lock().write(offset, bytes),
            // The log's head, or a frame's, and the page follows; or part of a page, up to where SQLite syncs.
            None if is_frame_head(bytes.len()) || offset == 0 => {}
            None => pages.lock().clear(),
        }
    }
}

impl Handle for Log {
    fn below(&self) -> &Below {
        &self.below
    }

    fn close(&mut self) -> Outcome {
        let flushed = self.flush();
        let closed = self.below.close();
        flushed.and(closed)
    }

    fn read(&mut self, buffer: &mut [u8], offset: i64) -> Outcome {
        self.flush()?;
        if let (Some(pages), Ok(offset)) = (&self.pages, u64::try_from(offset))
            && pages.lock().read(offset, buffer)
        {
            return Ok(());
        }
        self.below.read(buffer, offset)
    }

    fn write(&mut self, bytes: &[u8], offset: i64) -> Outcome {
        self.note(bytes, offset);
        if !self.head.is_empty() && self.head_offset + self.head.len() as i64 == offset {
            let mut frame = std::mem::take(&mut self.head);
            frame.extend_from_slice(bytes);
            self.appended(bytes.len(), offset);
            return self.below.write(&frame, self.head_offset);
        }
        self.flush()?;
        if self.page_at.take() == Some(offset) {
            self.appended(bytes.len(), offset);
        } else if is_frame_head(bytes.len()) {
            if offset == self.end || planted(Bug::HoldEveryHead) {
                self.head = bytes.to_vec();
                self.head_offset = offset;
                return Ok(());
            }
            self.page_at = Some(offset + bytes.len() as i64);
        }
        self.below.write(bytes, offset)
    }

    fn truncate(&mut self, bytes: i64) -> Outcome {
        self.flush()?;
        self.end = LOG_HEAD_BYTES as i64;
        if let Some(pages) = &self.pages {
            pages.lock().clear();
        }
        self.below.truncate(bytes)
    }

    fn sync(&mut self, flags: c_int) -> Outcome {
        self.flush()?;
        self.below.sync(flags)
    }
}
