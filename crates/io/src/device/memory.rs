//! A device in memory: never durable, otherwise like a disk.
//!
//! Blocks have 512 bytes, the sector of the simulated disk, so that tests can use small ones.

use std::io;
use std::sync::Arc;

use parking_lot::RwLock;

use super::sparse::Sparse;
use super::{BlockDevice, check_read, check_write, opened_for_reading};

pub(crate) const SECTOR_BYTES: usize = 512;

/// A device whose content lives in memory, as long as a handle or name.
///
/// ```
/// use terrace_io::{AlignedBuffer, BlockDevice, MemoryDevice};
///
/// let device = MemoryDevice::new("scratch", 1024);
/// device.write_at(512, &AlignedBuffer::zeroed(512))?;
/// assert_eq!((device.name(), device.len()), ("memory:scratch", 1024));
/// # std::io::Result::Ok(())
/// ```
#[derive(Clone, Debug)]
pub struct MemoryDevice {
    name: Arc<str>,
    content: Arc<RwLock<Sparse>>,
    writable: bool,
}

impl MemoryDevice {
    /// A device of `bytes` zeros.
    ///
    /// # Panics
    /// If `bytes` exceeds 1 TiB.
    pub fn new(name: &str, bytes: u64) -> Self {
        let mut content = Sparse::default();
        content.set_len(bytes).expect("at most 1 TiB");
        Self {
            name: format!("memory:{name}").into(),
            content: Arc::new(RwLock::new(content)),
            writable: true,
        }
    }

    pub(crate) fn handle(&self, writable: bool) -> Self {
        Self { writable, ..self.clone() }
    }

    /// An independent device with the same content.
    pub fn copy(&self) -> Self {
        let content = Arc::new(RwLock::new(self.content.read().clone()));
        Self { content, ..self.clone() }
    }
}

impl BlockDevice for MemoryDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> u64 {
        self.content.read().len()
    }

    fn alignment(&self) -> usize {
        SECTOR_BYTES
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let content = self.content.read();
        check_read(&self.name, SECTOR_BYTES, content.len(), offset, buffer)?;
        content.read(offset, buffer);
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if !self.writable {
            return Err(opened_for_reading(&self.name));
        }
        let mut content = self.content.write();
        check_write(&self.name, SECTOR_BYTES, content.len(), offset, bytes)?;
        content.write(offset, bytes);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        if !self.writable {
            return Err(opened_for_reading(&self.name));
        }
        self.content.write().set_len(bytes)
    }
}
