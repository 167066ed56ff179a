//! The write-ahead log of one connection: joins frame heads with pages.
//!
//! Only the head of an *appended* frame is delayed, because its page is sure to be the next call. A
//! commit may also rewrite heads alone. If the transaction changed pages that it had already
//! logged, the heads behind them get new checksums, up to the last frame. These must be in the file
//! when the commit returns. They lie before the end of the appended frames, and only a head at that
//! end is delayed.

use std::ffi::c_int;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::below::Below;
use crate::code::Outcome;
use crate::file::Handle;
use crate::log::{LOG_HEAD_BYTES, LogPages, frame_of, is_frame_head};
use crate::planted::{Bug, planted};

pub(crate) struct Log {
    below: Below,
    pages: Option<Arc<Mutex<LogPages>>>,
    /// A delayed frame head, at `head_offset`.
    head: Vec<u8>,
    head_offset: i64,
    /// End of the last appended frame, as far as known.
    end: i64,
    /// Where the page begins of a head just written without delay.
    page_at: Option<i64>,
}

impl Log {
    pub fn new(below: Below, pages: Option<Arc<Mutex<LogPages>>>) -> Log {
        Log { below, pages, head: Vec::new(), head_offset: 0, end: LOG_HEAD_BYTES as i64, page_at: None }
    }

    /// Writes the delayed head.
    fn flush(&mut self) -> Outcome {
        if self.head.is_empty() {
            return Ok(());
        }
        let head = std::mem::take(&mut self.head);
        self.below.write(&head, self.head_offset)
    }

    /// Moves `end` behind a page; forgets it if `bytes` is a part.
    fn appended(&mut self, bytes: usize, offset: i64) {
        let is_page = u64::try_from(offset).is_ok_and(|offset| frame_of(offset, bytes).is_some());
        self.end = if is_page { offset + bytes as i64 } else { 0 };
    }

    /// Keeps the page of a write, before it is made.
    fn note(&self, bytes: &[u8], offset: i64) {
        let (Some(pages), Ok(offset)) = (&self.pages, u64::try_from(offset)) else { return };
        match frame_of(offset, bytes.len()) {
            Some(_) => pages.lock().write(offset, bytes),
            // Head of the log, or of a frame whose page follows. Other lengths are parts of a page.
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
