//! What the cache needs of an open file of the lower directory.

use std::fmt::Debug;
use std::io;

use terrace_io::AlignedBuffer;

use crate::stamp::Stamp;

/// Enough for all that is read directly, and no more than a block.
pub(crate) const ALIGNMENT: usize = 4096;

pub(crate) trait Lower: Send + Sync + Debug {
    fn stamp(&self) -> io::Result<Stamp>;

    /// Reads until `buffer` is full or the file ends; returns the bytes read.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;

    /// Writes once; returns the bytes written, perhaps fewer.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<usize>;
}

/// Bytes of a read; the file may have ended before.
#[derive(Debug)]
pub(crate) struct Bytes {
    pub buffer: AlignedBuffer,
    pub from: usize,
    pub to: usize,
    /// Whether the cache had all of them.
    pub is_cached: bool,
}

impl Bytes {
    pub fn as_slice(&self) -> &[u8] {
        &self.buffer[self.from..self.to]
    }
}

/// Reads a file itself.
pub(crate) fn read_lower(lower: &dyn Lower, offset: u64, size: usize) -> io::Result<Bytes> {
    let mut buffer = AlignedBuffer::zeroed(size.next_multiple_of(ALIGNMENT));
    let to = lower.read_at(offset, &mut buffer[..size])?;
    Ok(Bytes { buffer, from: 0, to, is_cached: false })
}
