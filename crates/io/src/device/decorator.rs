//! Devices around another device.

use std::fmt::Debug;
use std::io;

use super::{BlockDevice, Read, Write};

/// A device around another one, to which unchanged calls go.
///
/// Each decorator is a [`BlockDevice`]. Implement it by its path, so that device calls stay
/// unambiguous.
///
/// ```
/// use std::io;
/// use std::sync::Arc;
/// use terrace_io::{AlignedBuffer, BlockDevice, MemoryDevice};
///
/// #[derive(Debug)]
/// struct Unsynced(Arc<dyn BlockDevice>);
///
/// impl terrace_io::Decorator for Unsynced {
///     fn inner(&self) -> &dyn BlockDevice {
///         &*self.0
///     }
///
///     fn sync(&self) -> io::Result<()> {
///         Ok(())
///     }
/// }
///
/// let device = Unsynced(Arc::new(MemoryDevice::new("pages", 4096)));
/// device.write_at(0, &AlignedBuffer::zeroed(4096))?;
/// device.sync()?;
/// # io::Result::Ok(())
/// ```
pub trait Decorator: Send + Sync + Debug {
    /// The wrapped device.
    fn inner(&self) -> &dyn BlockDevice;

    /// As [`BlockDevice::name`].
    fn name(&self) -> &str {
        self.inner().name()
    }

    /// As [`BlockDevice::len`].
    fn len(&self) -> u64 {
        self.inner().len()
    }

    /// As [`BlockDevice::covers`].
    fn covers(&self, end: u64) -> bool {
        self.inner().covers(end)
    }

    /// As [`BlockDevice::is_empty`].
    fn is_empty(&self) -> bool {
        self.inner().is_empty()
    }

    /// As [`BlockDevice::alignment`].
    fn alignment(&self) -> usize {
        self.inner().alignment()
    }

    /// As [`BlockDevice::read_at`].
    ///
    /// # Errors
    /// As there.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.inner().read_at(offset, buffer)
    }

    /// As [`BlockDevice::write_at`].
    ///
    /// # Errors
    /// As there.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.inner().write_at(offset, bytes)
    }

    /// As [`BlockDevice::read_batch`].
    fn read_batch(&self, reads: &mut [Read<'_>]) {
        self.inner().read_batch(reads);
    }

    /// As [`BlockDevice::write_batch`].
    ///
    /// # Errors
    /// As there.
    fn write_batch(&self, writes: &[Write<'_>]) -> io::Result<()> {
        self.inner().write_batch(writes)
    }

    /// As [`BlockDevice::write_through_at`].
    ///
    /// # Errors
    /// As there.
    fn write_through_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.inner().write_through_at(offset, bytes)
    }

    /// As [`BlockDevice::sync`].
    ///
    /// # Errors
    /// As there.
    fn sync(&self) -> io::Result<()> {
        self.inner().sync()
    }

    /// As [`BlockDevice::set_len`].
    ///
    /// # Errors
    /// As there.
    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.inner().set_len(bytes)
    }
}

impl<D: Decorator> BlockDevice for D {
    fn name(&self) -> &str {
        Decorator::name(self)
    }

    fn len(&self) -> u64 {
        Decorator::len(self)
    }

    fn covers(&self, end: u64) -> bool {
        Decorator::covers(self, end)
    }

    fn is_empty(&self) -> bool {
        Decorator::is_empty(self)
    }

    fn alignment(&self) -> usize {
        Decorator::alignment(self)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        Decorator::read_at(self, offset, buffer)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        Decorator::write_at(self, offset, bytes)
    }

    fn read_batch(&self, reads: &mut [Read<'_>]) {
        Decorator::read_batch(self, reads);
    }

    fn write_batch(&self, writes: &[Write<'_>]) -> io::Result<()> {
        Decorator::write_batch(self, writes)
    }

    fn write_through_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        Decorator::write_through_at(self, offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        Decorator::sync(self)
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        Decorator::set_len(self, bytes)
    }
}
