//! A device whose writes stay in memory.
//!
//! A database opened read-only recovers over two of them, so the open changes nothing. The memory
//! is bounded. Blocks rewritten with the same bytes take none.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use terrace_io::{AlignedBuffer, BlockDevice, Read};

const BLOCK: u64 = 4096;
/// Bytes per block beside its content.
const BLOCK_OVERHEAD: u64 = 64;

#[derive(Debug)]
pub(crate) struct Room {
    left: AtomicU64,
    used_up: AtomicBool,
}

impl Room {
    pub(crate) fn new(bytes: u64) -> Arc<Self> {
        Arc::new(Room { left: AtomicU64::new(bytes), used_up: AtomicBool::new(false) })
    }

    pub(crate) fn is_used_up(&self) -> bool {
        self.used_up.load(Relaxed)
    }

    fn take_block(&self) -> io::Result<()> {
        let taken = self.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(BLOCK + BLOCK_OVERHEAD));
        taken.map(drop).map_err(|_| {
            self.used_up.store(true, Relaxed);
            io::Error::from(io::ErrorKind::OutOfMemory)
        })
    }
}

#[derive(Debug)]
pub(crate) struct Overlay {
    base: Arc<dyn BlockDevice>,
    room: Arc<Room>,
    blocks: Mutex<BTreeMap<u64, Box<[u8]>>>,
    len: AtomicU64,
}

impl Overlay {
    pub(crate) fn over(base: Arc<dyn BlockDevice>, room: &Arc<Room>) -> Arc<Self> {
        let len = AtomicU64::new(base.len());
        Arc::new(Overlay { base, room: Arc::clone(room), blocks: Mutex::default(), len })
    }

    /// The part of a range that the base device has: offset and length.
    fn held_below(&self, offset: u64, bytes: usize) -> (u64, usize) {
        match self.base.len().saturating_sub(offset).min(bytes as u64) {
            // No device reads beyond its end, not even zero bytes.
            0 => (0, 0),
            held => (offset, held as usize),
        }
    }

    /// Applies changes to a read of which the base supplied `held` bytes.
    fn lay_over(&self, offset: u64, held: usize, buffer: &mut [u8]) {
        buffer[held..].fill(0);
        let blocks = self.blocks.lock();
        for (block, inside, outside) in pieces(offset, buffer.len()) {
            if let Some(changed) = blocks.get(&block) {
                buffer[outside].copy_from_slice(&changed[inside]);
            }
        }
    }

    fn check_inside(&self, offset: u64, bytes: usize, kind: io::ErrorKind) -> io::Result<()> {
        if offset + bytes as u64 > self.len() { Err(kind.into()) } else { Ok(()) }
    }

    fn is_as_below(&self, block: u64, content: &[u8]) -> io::Result<bool> {
        let mut below = AlignedBuffer::zeroed(BLOCK as usize);
        let (at, held) = self.held_below(block * BLOCK, BLOCK as usize);
        self.base.read_at(at, &mut below[..held])?;
        Ok(below[..] == *content)
    }
}

/// Blocks of a range: number, range inside the block, range inside the buffer.
fn pieces(
    offset: u64,
    bytes: usize,
) -> impl Iterator<Item = (u64, std::ops::Range<usize>, std::ops::Range<usize>)> {
    let end = offset + bytes as u64;
    (offset / BLOCK..end.div_ceil(BLOCK)).map(move |block| {
        let (from, to) = (offset.max(block * BLOCK), end.min((block + 1) * BLOCK));
        let inside = (from - block * BLOCK) as usize..(to - block * BLOCK) as usize;
        (block, inside, (from - offset) as usize..(to - offset) as usize)
    })
}

impl BlockDevice for Overlay {
    fn name(&self) -> &str {
        self.base.name()
    }

    fn len(&self) -> u64 {
        self.len.load(Relaxed)
    }

    fn alignment(&self) -> usize {
        self.base.alignment()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.check_inside(offset, buffer.len(), io::ErrorKind::UnexpectedEof)?;
        // Readers do not wait for each other's I/O. A block written meanwhile is found afterwards.
        let (at, held) = self.held_below(offset, buffer.len());
        self.base.read_at(at, &mut buffer[..held])?;
        self.lay_over(offset, held, buffer);
        Ok(())
    }

    fn read_batch(&self, reads: &mut [Read<'_>]) {
        let mut below: Vec<Read<'_>> = reads
            .iter_mut()
            .map(|read| {
                let (at, held) = self.held_below(read.offset, read.buffer.len());
                Read::new(at, &mut read.buffer[..held])
            })
            .collect();
        self.base.read_batch(&mut below);
        let results: Vec<_> = below.into_iter().map(|read| (read.buffer.len(), read.result)).collect();
        for (read, (held, result)) in reads.iter_mut().zip(results) {
            let inside = self.check_inside(read.offset, read.buffer.len(), io::ErrorKind::UnexpectedEof);
            read.result = inside.and(result);
            if read.result.is_ok() {
                self.lay_over(read.offset, held, read.buffer);
            }
        }
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.check_inside(offset, bytes.len(), io::ErrorKind::InvalidInput)?;
        for (block, inside, outside) in pieces(offset, bytes.len()) {
            let mut content = AlignedBuffer::zeroed(BLOCK as usize);
            if inside.len() < BLOCK as usize {
                let held = self.len().saturating_sub(block * BLOCK).min(BLOCK) as usize;
                self.read_at(block * BLOCK, &mut content[..held])?;
            }
            content[inside].copy_from_slice(&bytes[outside]);
            let is_kept = self.blocks.lock().contains_key(&block);
            if !is_kept {
                if self.is_as_below(block, &content)? {
                    continue;
                }
                self.room.take_block()?;
            }
            self.blocks.lock().insert(block, content[..].into());
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.len.store(bytes, Relaxed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use terrace_io::{AlignedBuffer, Directory, MemoryDirectory, OpenMode};

    use super::*;

    #[test]
    fn writes_are_seen_here_and_not_below() {
        let base = MemoryDirectory::new().open("f", OpenMode::CreateNew).unwrap();
        base.set_len(8192 + 512).unwrap();
        let overlay = Overlay::over(Arc::clone(&base), &Room::new(1 << 20));
        let mut bytes = AlignedBuffer::zeroed(4096);
        bytes.fill(7);
        overlay.write_at(2048, &bytes).unwrap();
        overlay.write_at(8192, &bytes[..512]).unwrap();
        assert!(overlay.write_at(8192, &bytes).is_err());
        let mut back = AlignedBuffer::zeroed(8192);
        overlay.read_at(0, &mut back).unwrap();
        assert_eq!((back[2047], back[2048], back[6143], back[6144]), (0, 7, 7, 0));
        base.read_at(0, &mut back).unwrap();
        assert!(back.iter().all(|&byte| byte == 0));
        overlay.set_len(16384).unwrap();
        overlay.read_at(8192, &mut back).unwrap();
        assert_eq!((back[0], back[511], back[512]), (7, 7, 0));
    }

    #[test]
    fn a_batch_of_reads_sees_what_was_written() {
        let base = MemoryDirectory::new().open("f", OpenMode::CreateNew).unwrap();
        base.set_len(8192).unwrap();
        let overlay = Overlay::over(base, &Room::new(1 << 20));
        overlay.set_len(16384).unwrap();
        let mut bytes = AlignedBuffer::zeroed(4096);
        bytes.fill(7);
        overlay.write_at(4096, &bytes).unwrap();
        overlay.write_at(12288, &bytes).unwrap();
        let mut buffers = [0, 4096, 8192, 12288, 16384].map(|at| (at, AlignedBuffer::zeroed(4096)));
        let mut reads: Vec<_> = buffers.iter_mut().map(|(at, buffer)| Read::new(*at, buffer)).collect();
        overlay.read_batch(&mut reads);
        let ends: Vec<_> = reads.iter().map(|read| read.result.is_ok().then(|| read.buffer[4095])).collect();
        assert_eq!(ends, [Some(0), Some(7), Some(0), Some(7), None]);
    }

    #[test]
    fn what_is_written_as_it_was_takes_no_room_and_the_rest_is_bounded() {
        let base = MemoryDirectory::new().open("f", OpenMode::CreateNew).unwrap();
        base.set_len(16 * 4096).unwrap();
        let room = Room::new(2 * (BLOCK + BLOCK_OVERHEAD));
        let overlay = Overlay::over(base, &room);
        let mut bytes = AlignedBuffer::zeroed(4096);
        for block in 0..16 {
            overlay.write_at(block * 4096, &bytes).unwrap();
        }
        bytes.fill(1);
        for _ in 0..3 {
            overlay.write_at(0, &bytes).unwrap();
            overlay.write_at(4096, &bytes).unwrap();
        }
        assert!(!room.is_used_up());
        assert_eq!(overlay.write_at(8192, &bytes).unwrap_err().kind(), io::ErrorKind::OutOfMemory);
        assert!(room.is_used_up());
        overlay.read_at(8192, &mut bytes).unwrap();
        assert!(bytes.iter().all(|&byte| byte == 0), "what found no room is not there");
    }
}
