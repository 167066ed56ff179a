//! Buffers for direct I/O, which needs block-aligned addresses.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Alignment of every buffer, bytes: the largest that any device needs.
const ALIGNMENT: usize = 4096;
/// From here on the system's allocator maps memory, which costs nothing until it is written.
const LARGE_BYTES: usize = 128 << 10;

/// Heap bytes at an address that is a multiple of 4096.
///
/// ```
/// use terrace_io::AlignedBuffer;
///
/// let mut buffer = AlignedBuffer::zeroed(8192);
/// buffer[8191] = 1;
/// assert_eq!(buffer.as_ptr().addr() % 4096, 0);
/// assert_eq!((buffer.len(), buffer[0]), (8192, 0));
/// ```
pub struct AlignedBuffer {
    start: NonNull<u8>,
    length: usize,
    /// Bytes of the allocation before the start.
    slack: usize,
}

// SAFETY: the buffer owns its bytes like a `Vec<u8>`: `&self` only reads them and writing needs
// `&mut self`, so the borrow checker makes sharing and sending sound.
unsafe impl Send for AlignedBuffer {}
// SAFETY: see `Send`.
unsafe impl Sync for AlignedBuffer {}

impl AlignedBuffer {
    /// A buffer of `length` zeros. Aborts without memory, as a `Vec` does.
    pub fn zeroed(length: usize) -> Self {
        Self::try_zeroed(length).unwrap_or_else(|_| match layout(length) {
            Ok(layout) => handle_alloc_error(layout),
            Err(_) => panic!("a buffer of {length} bytes exceeds the address space"),
        })
    }

    /// A buffer of `length` zeros. Large ones get memory when they are first written.
    ///
    /// # Errors
    /// `OutOfMemory` if there is no memory for it.
    pub fn try_zeroed(length: usize) -> io::Result<Self> {
        if length == 0 {
            // An aligned address, never dereferenced or freed.
            let start = NonNull::without_provenance(ALIGNMENT.try_into().expect("not zero"));
            return Ok(Self { start, length, slack: 0 });
        }
        let layout = layout(length)?;
        // SAFETY: the layout's size is not zero.
        let allocated = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(io::ErrorKind::OutOfMemory)?;
        let slack = allocated.addr().get().next_multiple_of(ALIGNMENT) - allocated.addr().get();
        // SAFETY: the slack is 0 for an aligned layout, and below the alignment otherwise, by which
        // the allocation is longer than `length`.
        let start = unsafe { allocated.add(slack) };
        Ok(Self { start, length, slack })
    }
}

/// The allocator writes the zeros of an aligned allocation, and gets those of a large plain one
/// from the system. So large buffers align themselves.
fn layout(length: usize) -> io::Result<Layout> {
    let layout = match length < LARGE_BYTES {
        true => Layout::from_size_align(length, ALIGNMENT),
        false => Layout::from_size_align(length.saturating_add(ALIGNMENT), size_of::<usize>()),
    };
    layout.map_err(|_| io::ErrorKind::OutOfMemory.into())
}

impl Deref for AlignedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `start` is `length` initialised bytes of an allocation that lives as long as
        // `self` (or length is 0 and the address is aligned and not null); nothing writes while
        // `self` is borrowed.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }
}

impl DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        if self.length != 0 {
            let layout = layout(self.length).expect("was valid at allocation");
            // SAFETY: `alloc_zeroed` returned the address `slack` bytes before `start` for this
            // layout. It is freed once.
            unsafe { dealloc(self.start.sub(self.slack).as_ptr(), layout) }
        }
    }
}

impl Clone for AlignedBuffer {
    fn clone(&self) -> Self {
        let mut copy = Self::zeroed(self.length);
        copy.copy_from_slice(self);
        copy
    }
}

impl std::fmt::Debug for AlignedBuffer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The content would hide every other field in debug output.
        write!(formatter, "AlignedBuffer({} bytes)", self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_is_aligned_and_zero() {
        for length in [0, 1, 511, 512, 4096, 4097, LARGE_BYTES - 1, LARGE_BYTES, 1 << 20] {
            let buffer = AlignedBuffer::zeroed(length);
            assert_eq!(buffer.as_ptr().addr() % ALIGNMENT, 0);
            assert!(buffer.iter().all(|&byte| byte == 0) && buffer.len() == length);
        }
    }

    #[test]
    fn a_length_beyond_memory_is_an_error() {
        for length in [usize::MAX, isize::MAX as usize - 8192] {
            assert_eq!(AlignedBuffer::try_zeroed(length).unwrap_err().kind(), io::ErrorKind::OutOfMemory);
        }
    }
}
