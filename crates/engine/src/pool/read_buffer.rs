//! Buffers for images and for decompressed pages.
//!
//! A thread keeps one small buffer. Since threads may be many, larger buffers go to a stock of the
//! pool, up to the number in the budget ([`buffers_bytes`](super::cost::buffers_bytes)). Further
//! ones go back to the allocator. Pages too long for a read buffer are read through a batch buffer.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};

use parking_lot::Mutex;
use terrace_io::AlignedBuffer;

use super::buffers::Lent;
use super::cost::READ_BUFFERS;
use crate::threads::KEPT_BYTES_MAX;

thread_local! {
    static SPARE: Cell<Option<AlignedBuffer>> = const { Cell::new(None) };
}

/// The stock of larger buffers that are not in use.
#[derive(Debug, Default)]
pub(crate) struct ReadBuffers(Mutex<Vec<AlignedBuffer>>);

/// An aligned buffer, given back when dropped.
pub(crate) struct PageBuffer<'p> {
    /// Present until dropped.
    buffer: Option<AlignedBuffer>,
    stock: &'p ReadBuffers,
}

/// The buffer that an image is read into.
pub(crate) enum ImageBuffer<'p> {
    Own(PageBuffer<'p>),
    Lent(Lent<'p>),
}

impl ReadBuffers {
    pub(crate) fn take(&self, bytes: usize) -> PageBuffer<'_> {
        // A thread that ends may have dropped its buffer already.
        let spare = match bytes <= KEPT_BYTES_MAX {
            true => SPARE.try_with(Cell::take).ok().flatten(),
            false => self.0.lock().pop(),
        };
        let buffer = spare.filter(|buffer| buffer.len() == bytes);
        PageBuffer { buffer: Some(buffer.unwrap_or_else(|| AlignedBuffer::zeroed(bytes))), stock: self }
    }

    fn give_back(&self, buffer: AlignedBuffer) {
        if buffer.len() <= KEPT_BYTES_MAX {
            let _ = SPARE.try_with(|spare| spare.set(Some(buffer)));
            return;
        }
        let mut stock = self.0.lock();
        if stock.len() < READ_BUFFERS {
            stock.push(buffer);
        }
    }
}

impl Drop for PageBuffer<'_> {
    fn drop(&mut self) {
        self.buffer.take().into_iter().for_each(|buffer| self.stock.give_back(buffer));
    }
}

impl Deref for PageBuffer<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.buffer.as_ref().expect("present until dropped")
    }
}

impl DerefMut for PageBuffer<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.buffer.as_mut().expect("present until dropped")
    }
}

impl Deref for ImageBuffer<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            ImageBuffer::Own(buffer) => buffer,
            ImageBuffer::Lent(buffer) => buffer,
        }
    }
}

impl DerefMut for ImageBuffer<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            ImageBuffer::Own(buffer) => buffer,
            ImageBuffer::Lent(buffer) => buffer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_keeps_small_buffers_and_the_stock_a_few_large_ones() {
        let stock = ReadBuffers::default();
        for bytes in [KEPT_BYTES_MAX, 2 * KEPT_BYTES_MAX] {
            let all: Vec<_> = (0..3 * READ_BUFFERS).map(|_| stock.take(bytes)).collect();
            assert!(all.iter().all(|buffer| buffer.len() == bytes));
            drop(all);
            assert!(SPARE.take().is_none_or(|kept| kept.len() == KEPT_BYTES_MAX));
        }
        assert_eq!(stock.0.lock().len(), READ_BUFFERS);
        assert_eq!(stock.take(4 * KEPT_BYTES_MAX).len(), 4 * KEPT_BYTES_MAX, "whatever length is there");
    }
}
