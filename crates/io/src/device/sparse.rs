//! Sparse bytes in memory with cheap copies.
//!
//! A clone shares all reference-counted chunks, and a write first copies a shared one. The
//! simulated disk keeps a durable and a current content of each file and makes a third after every
//! power cut.

use std::io;
use std::sync::Arc;

/// Bytes per chunk: few chunks per file, and a short copy before a write.
pub(crate) const CHUNK_BYTES: usize = 16 * 1024;

/// Longest content, so that the chunk table of a mistaken length fits into memory.
const LENGTH_MAX: u64 = 1 << 40;

type Chunk = [u8; CHUNK_BYTES];

/// The content of every absent chunk.
static ZEROS: Chunk = [0; CHUNK_BYTES];

/// A sparse sequence of bytes. Chunks are zero beyond the length, so growth clears nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sparse {
    /// Absent chunks, and those beyond the table's end, are zeros.
    chunks: Vec<Option<Arc<Chunk>>>,
    length: u64,
}

impl Sparse {
    pub(crate) fn len(&self) -> u64 {
        self.length
    }

    /// Sets the length and discards the bytes beyond it.
    pub(crate) fn set_len(&mut self, length: u64) -> io::Result<()> {
        if length > LENGTH_MAX {
            return Err(io::Error::new(
                io::ErrorKind::StorageFull,
                format!("{length} bytes do not fit, at most {LENGTH_MAX} do"),
            ));
        }
        if length < self.length {
            let (chunk, within) = locate(length);
            if let Some(Some(last)) = self.chunks.get_mut(chunk)
                && within != 0
            {
                Arc::make_mut(last)[within..].fill(0);
            }
            self.chunks.truncate(chunk + usize::from(within != 0));
        }
        self.length = length;
        Ok(())
    }

    /// Fills `buffer` from `offset` on, with zeros beyond the length.
    pub(crate) fn read(&self, offset: u64, buffer: &mut [u8]) {
        for_each_piece(offset, buffer.len(), |chunk, within, piece| {
            let target = &mut buffer[piece];
            match self.chunks.get(chunk) {
                Some(Some(bytes)) => target.copy_from_slice(&bytes[within..within + target.len()]),
                _ => target.fill(0),
            }
        });
    }

    /// Writes `bytes` at `offset`, without those beyond the length.
    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) {
        let room = usize::try_from(self.length.saturating_sub(offset)).unwrap_or(usize::MAX);
        let bytes = &bytes[..bytes.len().min(room)];
        for_each_piece(offset, bytes.len(), |chunk, within, piece| {
            let source = &bytes[piece];
            let bytes = Arc::make_mut(self.slot(chunk).get_or_insert_with(|| Arc::new([0; CHUNK_BYTES])));
            bytes[within..within + source.len()].copy_from_slice(source);
        });
    }

    pub(crate) fn copy_from(&mut self, other: &Sparse, offset: u64, length: usize) {
        let mut bytes = vec![0; length];
        other.read(offset, &mut bytes);
        self.write(offset, &bytes);
    }

    /// Shares all chunks of `other`, of the same length, that the bytes touch.
    pub(crate) fn share_chunks(&mut self, other: &Sparse, offset: u64, length: usize) {
        for_each_piece(offset, length, |chunk, _, _| {
            *self.slot(chunk) = other.chunks.get(chunk).cloned().flatten();
        });
    }

    /// Writes `bytes` of one chunk, unless they are there already: that would end sharing.
    pub(crate) fn write_changed(&mut self, offset: u64, bytes: &[u8]) {
        let (chunk, within) = locate(offset);
        if self.chunk(chunk)[within..within + bytes.len()] != *bytes {
            self.write(offset, bytes);
        }
    }

    /// Clears `range`, a little at a time where it has content.
    pub(crate) fn zero(&mut self, range: std::ops::Range<usize>) {
        for_each_piece(range.start as u64, range.len(), |chunk, within, piece| {
            if let Some(slot @ Some(_)) = self.chunks.get_mut(chunk) {
                match piece.len() {
                    CHUNK_BYTES => *slot = None,
                    length => {
                        let bytes = slot.as_mut().expect("matched");
                        if bytes[within..within + length].iter().any(|&byte| byte != 0) {
                            Arc::make_mut(bytes)[within..within + length].fill(0);
                        }
                    }
                }
            }
        });
    }

    /// The chunks with content, by offset, without bytes beyond the length.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = (usize, &[u8])> {
        let present = self.chunks.iter().enumerate().filter(|(_, chunk)| chunk.is_some());
        present.map(|(chunk, _)| (chunk * CHUNK_BYTES, &self.chunk(chunk)[..self.bytes_of(chunk)]))
    }

    /// The chunks that `other`, of the same length, does not share: offset and both contents.
    pub(crate) fn differences<'a>(
        &'a self,
        other: &'a Sparse,
    ) -> impl Iterator<Item = (usize, &'a [u8], &'a [u8])> {
        (0..self.chunks.len().max(other.chunks.len())).filter_map(|chunk| {
            let (own, others) = (self.chunk(chunk), other.chunk(chunk));
            let bytes = self.bytes_of(chunk);
            (!std::ptr::eq(own, others)).then(|| (chunk * CHUNK_BYTES, &own[..bytes], &others[..bytes]))
        })
    }

    fn chunk(&self, chunk: usize) -> &Chunk {
        match self.chunks.get(chunk) {
            Some(Some(bytes)) => bytes,
            _ => &ZEROS,
        }
    }

    fn bytes_of(&self, chunk: usize) -> usize {
        (self.length as usize - chunk * CHUNK_BYTES).min(CHUNK_BYTES)
    }

    fn slot(&mut self, chunk: usize) -> &mut Option<Arc<Chunk>> {
        if self.chunks.len() <= chunk {
            self.chunks.resize(chunk + 1, None);
        }
        &mut self.chunks[chunk]
    }
}

fn locate(offset: u64) -> (usize, usize) {
    ((offset / CHUNK_BYTES as u64) as usize, (offset % CHUNK_BYTES as u64) as usize)
}

/// Calls `visit(chunk, offset within it, range of the caller's bytes)` for each chunk touched.
fn for_each_piece(offset: u64, length: usize, mut visit: impl FnMut(usize, usize, std::ops::Range<usize>)) {
    let mut done = 0;
    while done < length {
        let (chunk, within) = locate(offset + done as u64);
        let end = length.min(done + CHUNK_BYTES - within);
        visit(chunk, within, done..end);
        done = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_what_a_vector_would_hold() {
        let mut random = 7u64;
        let mut next = |below: usize| {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (random >> 33) as usize % below
        };
        let (mut sparse, mut model) = (Sparse::default(), Vec::new());
        for step in 0..2000 {
            match next(4) {
                0 => {
                    let length = next(5 * CHUNK_BYTES);
                    model.resize(length, 0);
                    sparse.set_len(length as u64).unwrap();
                }
                _ if model.is_empty() => {}
                _ => {
                    let offset = next(model.len());
                    let length = next(model.len() - offset + 1);
                    let bytes = vec![step as u8; length];
                    model[offset..offset + length].copy_from_slice(&bytes);
                    sparse.write(offset as u64, &bytes);
                }
            }
            let mut content = vec![1; model.len()];
            sparse.read(0, &mut content);
            assert!(content == model, "step {step}");
            assert_eq!(sparse.len(), model.len() as u64);
        }
    }

    #[test]
    fn a_clone_keeps_what_the_original_overwrites() {
        let mut original = Sparse::default();
        original.set_len(100_000).unwrap();
        original.write(50_000, &[1; 100]);
        let copy = original.clone();
        original.write(50_000, &[2; 100]);
        let mut bytes = [0; 100];
        copy.read(50_000, &mut bytes);
        assert_eq!(bytes, [1; 100]);
    }

    #[test]
    fn an_absurd_length_is_refused() {
        assert_eq!(Sparse::default().set_len(1 << 60).unwrap_err().kind(), io::ErrorKind::StorageFull);
    }
}
