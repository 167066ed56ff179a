//! The write-ahead log as one connection has it: heads of frames wait for their pages, and pages are kept (`log.rs`).

use std::ffi::c_int;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::below::Below;
use crate::code::Outcome;
use crate::file::Handle;
use crate::log::{LogPages, frame_of, is_frame_head};

/// The log of one connection.
pub(crate) struct Log {
    below: Below,
    pages: Option<Arc<Mutex<LogPages>>>,
    /// The head of a frame that is not yet written, and its place.
    head: Vec<u8>,
    head_offset: i64,
}

impl Log {
    pub fn new(below: Below, pages: Option<Arc<Mutex<LogPages>>>) -> Log {
        Log { below, pages, head: Vec::new(), head_offset: 0 }
    }

    /// Writes the head that waits.
    fn flush(&mut self) -> Outcome {
        if self.head.is_empty() {
            return Ok(());
        }
        let head = std::mem::take(&mut self.head);
        self.below.write(&head, self.head_offset)
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
            return self.below.write(&frame, self.head_offset);
        }
        self.flush()?;
        if is_frame_head(bytes.len()) {
            self.head = bytes.to_vec();
            self.head_offset = offset;
            return Ok(());
        }
        self.below.write(bytes, offset)
    }

    fn truncate(&mut self, bytes: i64) -> Outcome {
        self.flush()?;
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
