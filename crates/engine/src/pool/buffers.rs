//! Buffers of batches and of large images.

use std::io;

use parking_lot::{Condvar, Mutex};
use terrace_io::AlignedBuffer;

use super::frames::ReadReason;
use crate::error::{Error, Result};

/// Pages of one batch; more do not speed up a disk.
pub(crate) const BATCH_PAGES_MAX: usize = 64;
/// Batches at the same time.
pub(crate) const BATCHES_MAX: usize = 4;
/// Bytes beyond which more batches beat longer ones. Two such reads saturate a disk.
const BATCH_BYTES_ENOUGH: usize = 2 << 20;

/// Buffers, allocated when first needed.
#[derive(Debug)]
pub(crate) struct Batches {
    pub(crate) bytes: usize,
    /// Upper limit of buffers.
    pub(crate) most: usize,
    buffers: Mutex<Buffers>,
    returned: Condvar,
}

#[derive(Debug, Default)]
struct Buffers {
    idle: Vec<AlignedBuffer>,
    made: usize,
}

impl Batches {
    /// Buffers in `bytes` bytes, none shorter than `least`.
    pub(crate) fn new(bytes: usize, page_bytes: usize, least: usize) -> Self {
        // Two, as far as `least` allows. More if each holds a full batch or is long enough.
        let enough = (BATCH_PAGES_MAX * page_bytes).min(BATCH_BYTES_ENOUGH);
        let each = (bytes / 2).min(enough.max(bytes / BATCHES_MAX)).max(least);
        let each = (each / page_bytes).max(1) * page_bytes;
        Batches {
            bytes: each,
            most: (bytes / each).clamp(1, BATCHES_MAX),
            buffers: Mutex::default(),
            returned: Condvar::new(),
        }
    }

    /// Takes a buffer. Waits, except when reading ahead.
    pub(crate) fn take(&self, read_reason: ReadReason) -> io::Result<Option<Lent<'_>>> {
        let mut buffers = self.buffers.lock();
        loop {
            if let Some(buffer) = buffers.idle.pop() {
                return Ok(Some(Lent { batches: self, buffer: Some(buffer) }));
            }
            if buffers.made < self.most {
                let buffer = AlignedBuffer::try_zeroed(self.bytes)?;
                buffers.made += 1;
                return Ok(Some(Lent { batches: self, buffer: Some(buffer) }));
            }
            if read_reason == ReadReason::Ahead {
                return Ok(None);
            }
            self.returned.wait(&mut buffers);
        }
    }

    /// Takes a buffer for one large image. Its owner may wait for a frame, so the caller holds no
    /// latch, frame or other buffer.
    ///
    /// # Errors
    /// [`Error::Memory`].
    pub(crate) fn take_for_image(&self) -> Result<Lent<'_>> {
        let bytes = self.bytes as u64;
        let taken = self.take(ReadReason::Wanted);
        let taken = taken.map_err(|source| Error::Memory { bytes, what: "reading a large page", source })?;
        Ok(taken.expect("a buffer that is wanted is waited for"))
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

pub(crate) struct Lent<'p> {
    batches: &'p Batches,
    buffer: Option<AlignedBuffer>,
}

impl std::ops::Deref for Lent<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.buffer.as_ref().expect("lent until dropped")
    }
}

impl std::ops::DerefMut for Lent<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.buffer.as_mut().expect("lent until dropped")
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        self.batches.buffers.lock().idle.extend(self.buffer.take());
        self.batches.returned.notify_one();
    }
}
