//! The contract of a block device.
//!
//! A device is a fixed number of bytes, read and written in aligned blocks. `tests/conformance.rs`
//! checks each promise on every device:
//!
//! * **Whole or error.** A transfer moves every byte or fails. The device repeats interrupted calls
//!   and continues short ones. After a failed write the range holds any mixture of old and new
//!   bytes; likewise the buffer after a failed read.
//! * **Aligned.** Offsets, lengths and buffer addresses are multiples of
//!   [`BlockDevice::alignment`], checked by every device.
//! * **Inside.** Only [`BlockDevice::set_len`] lengthens a device, and it allocates the space, so a
//!   full disk shows there and not during a commit. Transfers past the end fail.
//! * **Durable on request.** Later reads see written bytes at once. They survive a power cut only
//!   after [`BlockDevice::sync`] or [`BlockDevice::write_through_at`]. Until then any subset of
//!   their 512-byte sectors may be durable, in any order. After a failed sync they stay in doubt
//!   for ever, even if a later sync succeeds.
//! * **Shared.** All calls take `&self`, from any thread. Overlapping concurrent transfers are a
//!   caller's mistake: each sector is then old or new. The writes of a batch have no order.

use std::fmt::Debug;
use std::io;

pub(crate) mod counted;
pub(crate) mod decorator;
pub(crate) mod file;
pub(crate) mod memory;
pub(crate) mod sparse;
pub(crate) mod throttled;
pub(crate) mod uring;

/// A block device: a file, memory, or a decorator around another device.
///
/// ```
/// use terrace_io::{AlignedBuffer, BlockDevice, Directory, MemoryDirectory, OpenMode};
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

    /// Whether the device has at least `end` bytes. May use a cached length to save a system call,
    /// and so count bytes that another handle has cut off.
    fn covers(&self, end: u64) -> bool {
        end <= self.len()
    }

    /// Whether the length is 0.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Alignment of offsets, lengths and buffer addresses, in bytes: a power of two.
    fn alignment(&self) -> usize;

    /// Fills `buffer` with the bytes at `offset`.
    ///
    /// # Errors
    /// `UnexpectedEof` if the range ends beyond the device, `InvalidInput` if it is not aligned.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;

    /// Writes `bytes` at `offset`, durable after the next [`BlockDevice::sync`].
    ///
    /// # Errors
    /// `InvalidInput` if the range ends beyond the device or is not aligned, `PermissionDenied` if
    /// the device is open for reading only.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Tries all `reads`, concurrently if possible, and stores each result.
    fn read_batch(&self, reads: &mut [Read<'_>]) {
        for read in reads {
            read.result = self.read_at(read.offset, read.buffer);
        }
    }

    /// Tries all `writes`, concurrently if possible. All have ended on return.
    ///
    /// # Errors
    /// The error of the first failed write, in the given order.
    fn write_batch(&self, writes: &[Write<'_>]) -> io::Result<()> {
        let mut outcome = Ok(());
        for write in writes {
            outcome = outcome.and(self.write_at(write.offset, write.bytes));
        }
        outcome
    }

    /// Writes `bytes` at `offset` durably. Promises nothing about earlier writes.
    ///
    /// # Errors
    /// As [`BlockDevice::write_at`] and [`BlockDevice::sync`].
    fn write_through_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_at(offset, bytes)?;
        self.sync()
    }

    /// Makes all earlier writes and the length durable.
    ///
    /// # Errors
    /// Whatever the system reports. Earlier writes are then in doubt for ever.
    fn sync(&self) -> io::Result<()>;

    /// Sets the length, of any alignment. Growing allocates the space and adds zeros. The length is
    /// durable after the next [`BlockDevice::sync`].
    ///
    /// # Errors
    /// `StorageFull` or `QuotaExceeded` if there is no room; the length then stays.
    fn set_len(&self, bytes: u64) -> io::Result<()>;
}

/// One read of a batch.
///
/// ```
/// use terrace_io::{AlignedBuffer, BlockDevice, Directory, MemoryDirectory, OpenMode, Read};
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
    /// Offset in bytes.
    pub offset: u64,
    /// The buffer to fill.
    pub buffer: &'a mut [u8],
    /// The result; an error of kind `Other` before the attempt.
    pub result: io::Result<()>,
}

impl<'a> Read<'a> {
    /// A read of `buffer.len()` bytes at `offset`, not tried yet.
    pub fn new(offset: u64, buffer: &'a mut [u8]) -> Self {
        Self { offset, buffer, result: Err(io::ErrorKind::Other.into()) }
    }
}

/// One write of a batch.
///
/// ```
/// use terrace_io::{AlignedBuffer, BlockDevice, Directory, MemoryDirectory, OpenMode, Write};
///
/// let device = MemoryDirectory::new().open("pages", OpenMode::CreateNew)?;
/// device.set_len(8192)?;
/// let page = AlignedBuffer::zeroed(4096);
/// device.write_batch(&[Write::new(0, &page), Write::new(4096, &page)])?;
/// # std::io::Result::Ok(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Write<'a> {
    /// Offset in bytes.
    pub offset: u64,
    /// The bytes to write.
    pub bytes: &'a [u8],
}

impl<'a> Write<'a> {
    /// A write of `bytes` at `offset`.
    pub fn new(offset: u64, bytes: &'a [u8]) -> Self {
        Self { offset, bytes }
    }
}

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

/// Refuses a write that is not aligned or ends beyond `length`.
pub fn check_write(name: &str, alignment: usize, length: u64, offset: u64, bytes: &[u8]) -> io::Result<()> {
    check_aligned(name, alignment, offset, bytes)?;
    match offset.checked_add(bytes.len() as u64) {
        Some(end) if end <= length => Ok(()),
        _ => Err(invalid_input(format!(
            "{name}: write of {} bytes at {offset} ends beyond the device's {length} bytes",
            bytes.len()
        ))),
    }
}

/// Refuses a read that is not aligned or ends beyond `length`.
pub fn check_read(name: &str, alignment: usize, length: u64, offset: u64, buffer: &[u8]) -> io::Result<()> {
    check_aligned(name, alignment, offset, buffer)?;
    match offset.checked_add(buffer.len() as u64) {
        Some(end) if end <= length => Ok(()),
        _ => Err(past_the_end(name, offset, buffer.len(), length)),
    }
}

pub(crate) fn past_the_end(name: &str, offset: u64, wanted: usize, length: u64) -> io::Error {
    io::Error::new(
        io::ErrorKind::UnexpectedEof,
        format!("{name}: read of {wanted} bytes at {offset} ends beyond the device's {length} bytes"),
    )
}

pub(crate) fn opened_for_reading(name: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, format!("{name} was opened for reading only"))
}

pub(crate) fn invalid_input(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what)
}
