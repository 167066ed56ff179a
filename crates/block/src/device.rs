//! What a block device promises.
//!
//! A device is a fixed number of bytes that are read and written in aligned blocks. The promises are narrow so
//! that every device can keep all of them, and the same tests (`tests/conformance.rs`) run over each:
//!
//! * **Whole or error.** A transfer moves every byte or reports an error. Interrupted calls are repeated and short
//!   ones continued inside the device; a caller never sees either. After a failed write the range holds any mixture
//!   of old and new bytes, after a failed read the buffer does.
//! * **Aligned.** Offsets, lengths and the addresses of buffers are multiples of [`BlockDevice::alignment`]. Every
//!   device checks this, also those that could do without, so that a test in memory finds what a disk would refuse.
//! * **Inside.** A write never lengthens a device; only [`BlockDevice::set_len`] does, and that allocates the space,
//!   so that running out of it is noticed there and not in the midst of a commit. A read past the end is an error.
//! * **Durable when told.** Written bytes are seen by later reads at once, but outlive a power cut only after
//!   [`BlockDevice::sync`], or when [`BlockDevice::write_through_at`] returned. Until then any subset of their
//!   512-byte sectors may have become durable, in any order. The bytes of a failed sync are in doubt for ever: a later
//!   sync that succeeds says nothing about them.
//! * **Shared.** All calls take `&self`, from any thread. Overlapping transfers at the same time are the caller's
//!   mistake: each sector is then old or new. Nothing is promised about the order of the writes of one batch.

use std::fmt::Debug;
use std::io;

pub(crate) mod counted;
pub(crate) mod faulty;
pub(crate) mod file;
pub(crate) mod memory;
pub(crate) mod sparse;
pub(crate) mod throttled;
pub(crate) mod uring;

/// A device of blocks: a file, a piece of memory, or a decorator around another device.
///
/// ```
/// use terrace_block::{AlignedBuffer, BlockDevice, Directory, MemoryDirectory, OpenMode};
///
/// let device = MemoryDirectory::new().open("pages", OpenMode::CreateNew)?;
/// device.set_len(8192)?;
/// let mut page = AlignedBuffer::zeroed(4096);
/// page[..5].copy_from_slice(b"hello");
/// device.write_at(4096, &page)?;
/// device.sync()?;
///
/// let mut back = AlignedBuffer::zeroed(4096);
/// device.read_at(4096, &mut back)?;
/// assert_eq!(&back[..5], b"hello");
/// # std::io::Result::Ok(())
/// ```
pub trait BlockDevice: Send + Sync + Debug {
    /// The path of the file, or `memory:...`, for error messages.
    fn name(&self) -> &str;

    /// Length in bytes.
    fn len(&self) -> u64;

    /// Whether it is known to be so long at least, in bytes. Cheaper than [`BlockDevice::len`] where that asks the system: a device
    /// may go by the last length it has seen while that is long enough, so what another handle has cut off may still be counted.
    fn covers(&self, end: u64) -> bool {
        end <= self.len()
    }

    /// Whether there is nothing in it.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What offsets, lengths and buffer addresses must be multiples of, in bytes: a power of two.
    fn alignment(&self) -> usize;

    /// Fills `buffer` with the bytes at `offset`.
    ///
    /// # Errors
    /// `UnexpectedEof` when the range ends beyond the device, `InvalidInput` when it is not aligned.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;

    /// Writes `bytes` at `offset`. They are durable after the next [`BlockDevice::sync`].
    ///
    /// # Errors
    /// `InvalidInput` when the range ends beyond the device or is not aligned, `PermissionDenied` when the device was
    /// opened for reading.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Tries all `reads`, at the same time where the device can, and leaves in each its own result.
    fn read_batch(&self, reads: &mut [Read<'_>]) {
        for read in reads {
            read.result = self.read_at(read.offset, read.buffer);
        }
    }

    /// Tries all `writes`, at the same time where the device can. None is under way any more when this returns.
    ///
    /// # Errors
    /// The error of the first of them, in the order given, that failed.
    fn write_batch(&self, writes: &[Write<'_>]) -> io::Result<()> {
        let mut outcome = Ok(());
        for write in writes {
            outcome = outcome.and(self.write_at(write.offset, write.bytes));
        }
        outcome
    }

    /// Writes `bytes` at `offset` and returns when they are durable. Says nothing about bytes written before.
    ///
    /// # Errors
    /// As [`BlockDevice::write_at`] and [`BlockDevice::sync`].
    fn write_through_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_at(offset, bytes)?;
        self.sync()
    }

    /// Returns when everything written before this call, and the length, is durable.
    ///
    /// # Errors
    /// Whatever the system reports. What was written before is then in doubt for ever, see the head of this file.
    fn sync(&self) -> io::Result<()>;

    /// Makes the device `bytes` long, which need not be a multiple of the alignment. Growing allocates the space, and
    /// what is new reads as zeros. The length is durable after the next [`BlockDevice::sync`].
    ///
    /// # Errors
    /// `StorageFull` or `QuotaExceeded` when there is no room; the length is then what it was.
    fn set_len(&self, bytes: u64) -> io::Result<()>;
}

/// One read of a batch.
///
/// ```
/// use terrace_block::{AlignedBuffer, BlockDevice, Directory, MemoryDirectory, OpenMode, Read};
///
/// let device = MemoryDirectory::new().open("pages", OpenMode::CreateNew)?;
/// device.set_len(4096)?;
/// let (mut inside, mut outside) = (AlignedBuffer::zeroed(4096), AlignedBuffer::zeroed(4096));
/// let mut reads = [Read::new(0, &mut inside), Read::new(4096, &mut outside)];
/// device.read_batch(&mut reads);
/// assert!(reads[0].result.is_ok() && reads[1].result.is_err());
/// # std::io::Result::Ok(())
/// ```
#[derive(Debug)]
pub struct Read<'a> {
    /// Where to read, in bytes.
    pub offset: u64,
    /// What to fill.
    pub buffer: &'a mut [u8],
    /// What became of it; an error of kind `Other` until it was tried.
    pub result: io::Result<()>,
}

impl<'a> Read<'a> {
    /// A read of `buffer.len()` bytes at `offset`, not yet tried.
    pub fn new(offset: u64, buffer: &'a mut [u8]) -> Self {
        Self { offset, buffer, result: Err(io::ErrorKind::Other.into()) }
    }
}

/// One write of a batch.
///
/// ```
/// use terrace_block::{AlignedBuffer, BlockDevice, Directory, MemoryDirectory, OpenMode, Write};
///
/// let device = MemoryDirectory::new().open("pages", OpenMode::CreateNew)?;
/// device.set_len(8192)?;
/// let page = AlignedBuffer::zeroed(4096);
/// device.write_batch(&[Write::new(0, &page), Write::new(4096, &page)])?;
/// # std::io::Result::Ok(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Write<'a> {
    /// Where to write, in bytes.
    pub offset: u64,
    /// What to write.
    pub bytes: &'a [u8],
}

impl<'a> Write<'a> {
    /// A write of `bytes` at `offset`.
    pub fn new(offset: u64, bytes: &'a [u8]) -> Self {
        Self { offset, bytes }
    }
}

/// Refuses a transfer whose offset, length or buffer address is not a multiple of `alignment`.
pub(crate) fn check_aligned(name: &str, alignment: usize, offset: u64, bytes: &[u8]) -> io::Result<()> {
    let mask = alignment - 1;
    let (address, length) = (bytes.as_ptr().addr(), bytes.len());
    let what = if offset & mask as u64 != 0 {
        format!("offset {offset} is")
    } else if length & mask != 0 {
        format!("length {length} is")
    } else if address & mask != 0 && length != 0 {
        format!("buffer address {address:#x} is")
    } else {
        return Ok(());
    };
    Err(invalid_input(format!("{name}: {what} not a multiple of {alignment} bytes")))
}

/// Refuses a write that is not aligned or would end beyond `length`.
pub(crate) fn check_write(
    name: &str,
    alignment: usize,
    length: u64,
    offset: u64,
    bytes: &[u8],
) -> io::Result<()> {
    check_aligned(name, alignment, offset, bytes)?;
    match offset.checked_add(bytes.len() as u64) {
        Some(end) if end <= length => Ok(()),
        _ => Err(invalid_input(format!(
            "{name}: write of {} bytes at {offset} ends beyond the device's {length} bytes",
            bytes.len()
        ))),
    }
}

/// Refuses a read that is not aligned or would end beyond `length`.
pub(crate) fn check_read(
    name: &str,
    alignment: usize,
    length: u64,
    offset: u64,
    buffer: &[u8],
) -> io::Result<()> {
    check_aligned(name, alignment, offset, buffer)?;
    match offset.checked_add(buffer.len() as u64) {
        Some(end) if end <= length => Ok(()),
        _ => Err(past_the_end(name, offset, buffer.len(), length)),
    }
}

/// The error of a read that ends beyond the device.
pub(crate) fn past_the_end(name: &str, offset: u64, wanted: usize, length: u64) -> io::Error {
    io::Error::new(
        io::ErrorKind::UnexpectedEof,
        format!("{name}: read of {wanted} bytes at {offset} ends beyond the device's {length} bytes"),
    )
}

/// The error of a change to a device that was opened for reading.
pub(crate) fn opened_for_reading(name: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, format!("{name} was opened for reading only"))
}

pub(crate) fn invalid_input(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what)
}
