//! The fast device, with a meter for what is written to it: blocks, journal, marks and superblocks alike, so that none is
//! forgotten in the statistics or the endurance budget. Reads pass as they are.

use std::io;
use std::sync::Arc;

use super::stats::Counter;
use crate::{BlockDevice, Read, Write};

/// A device that adds the bytes of each write to a counter before it is tried.
#[derive(Debug)]
pub(super) struct Metered {
    inner: Arc<dyn BlockDevice>,
    written_bytes: Arc<Counter>,
}

impl Metered {
    pub fn new(inner: Arc<dyn BlockDevice>, written_bytes: Arc<Counter>) -> Self {
        Self { inner, written_bytes }
    }
}

impl BlockDevice for Metered {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn covers(&self, end: u64) -> bool {
        self.inner.covers(end)
    }

    fn alignment(&self) -> usize {
        self.inner.alignment()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset, buffer)
    }

    fn read_batch(&self, reads: &mut [Read<'_>]) {
        self.inner.read_batch(reads);
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.written_bytes.add(bytes.len() as u64);
        self.inner.write_at(offset, bytes)
    }

    fn write_batch(&self, writes: &[Write<'_>]) -> io::Result<()> {
        self.written_bytes.add(writes.iter().map(|write| write.bytes.len() as u64).sum());
        self.inner.write_batch(writes)
    }

    fn write_through_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.written_bytes.add(bytes.len() as u64);
        self.inner.write_through_at(offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.inner.sync()
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.inner.set_len(bytes)
    }
}
