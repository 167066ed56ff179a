//! Counts all bytes written to the fast device, for statistics and budget.

use std::io;
use std::sync::Arc;

use super::stats::Counter;
use terrace_io::{BlockDevice, Write};

/// A device that counts the bytes of each write before trying it.
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

impl terrace_io::Decorator for Metered {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
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
}
