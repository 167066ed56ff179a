//! Splits transfers into blocks, and locates slots on the fast device.

use std::collections::BTreeMap;

use terrace_io::Write;

/// The part of one block in a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub block: u64,
    pub within: u64,
    pub length: usize,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub block_shift: u32,
    /// Offset of slot 0 on the fast device, in bytes.
    pub slots_start: u64,
    pub alignment: usize,
}

impl Shape {
    pub fn block_bytes(&self) -> usize {
        1 << self.block_shift
    }

    pub fn slot_offset(&self, slot: u32) -> u64 {
        self.slots_start + (u64::from(slot) << self.block_shift)
    }

    /// The first piece of a non-empty transfer of `length` bytes at `offset`.
    pub fn piece(&self, offset: u64, length: usize) -> Piece {
        let within = offset & (self.block_bytes() as u64 - 1);
        let length = length.min(self.block_bytes() - within as usize);
        Piece { block: offset >> self.block_shift, within, length }
    }

    pub fn blocks_in(&self, offset: u64, length: usize) -> u64 {
        match length as u64 {
            0 => 0,
            length => ((offset + length - 1) >> self.block_shift) - (offset >> self.block_shift) + 1,
        }
    }

    /// The written blocks, ascending, with their bytes if one write covers all of a block.
    pub fn blocks_of<'a>(&self, writes: &[Write<'a>]) -> BTreeMap<u64, Option<&'a [u8]>> {
        let mut blocks = BTreeMap::new();
        for &Write { offset, bytes } in writes {
            let mut done = 0;
            while done < bytes.len() {
                let piece = self.piece(offset + done as u64, bytes.len() - done);
                let is_whole = piece.length == self.block_bytes();
                let part = is_whole.then(|| &bytes[done..done + piece.length]);
                // The order of two writes to one block in a batch is undefined.
                blocks.entry(piece.block).and_modify(|part| *part = None).or_insert(part);
                done += piece.length;
            }
        }
        blocks
    }

    /// The pieces of a range, each with its offset in the range.
    pub fn pieces(self, offset: u64, length: usize) -> impl Iterator<Item = (usize, Piece)> {
        let mut done = 0;
        std::iter::from_fn(move || {
            let piece = (done < length).then(|| (done, self.piece(offset + done as u64, length - done)));
            done += piece.map_or(0, |(_, piece)| piece.length);
            piece
        })
    }
}
