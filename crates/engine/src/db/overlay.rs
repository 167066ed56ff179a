//! A device that is only read: what is written to it stays in memory and is gone with it. A database opened
//! read-only recovers over two of these, so that opening it changes nothing.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use terrace_block::BlockDevice;

const BLOCK: u64 = 4096;

/// A device with changes in memory laid over it.
#[derive(Debug)]
pub(crate) struct Overlay {
    base: Arc<dyn BlockDevice>,
    blocks: Mutex<BTreeMap<u64, Box<[u8]>>>,
    len: AtomicU64,
}

impl Overlay {
    pub(crate) fn over(base: Arc<dyn BlockDevice>) -> Arc<Self> {
        let len = AtomicU64::new(base.len());
        Arc::new(Overlay { base, blocks: Mutex::default(), len })
    }
}

/// The blocks that `bytes` bytes at `offset` touch: number, range inside the block, range inside the buffer.
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
        let held = (self.base.len().saturating_sub(offset)).min(buffer.len() as u64) as usize;
        self.base.read_at(offset, &mut buffer[..held])?;
        if offset + buffer.len() as u64 > self.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        buffer[held..].fill(0);
        // Readers do not wait for each other's I/O. A block that is written meanwhile is found here.
        let blocks = self.blocks.lock();
        for (block, inside, outside) in pieces(offset, buffer.len()) {
            if let Some(changed) = blocks.get(&block) {
                buffer[outside].copy_from_slice(&changed[inside]);
            }
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if offset + bytes.len() as u64 > self.len() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        for (block, inside, outside) in pieces(offset, bytes.len()) {
            let whole = inside.len() == BLOCK as usize;
            let mut content = terrace_block::AlignedBuffer::zeroed(BLOCK as usize);
            if !whole {
                let held = self.len().saturating_sub(block * BLOCK).min(BLOCK) as usize;
                self.read_at(block * BLOCK, &mut content[..held])?;
            }
            content[inside].copy_from_slice(&bytes[outside]);
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
    use terrace_block::{AlignedBuffer, Directory, MemoryDirectory, OpenMode};

    use super::*;

    #[test]
    fn writes_are_seen_here_and_not_below() {
        let base = MemoryDirectory::new().open("f", OpenMode::CreateNew).unwrap();
        base.set_len(8192 + 512).unwrap();
        let overlay = Overlay::over(Arc::clone(&base));
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
}
