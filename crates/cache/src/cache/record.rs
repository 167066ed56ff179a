//! Records of the journal, written and pending.

use super::dirty::EPOCH_MAX;

pub(super) const RECORD_BYTES: usize = 16;
const FREE: u64 = 1 << 63;
const HIT: u64 = 1 << 62;
const DIRTY: u64 = 1 << 61;
const EPOCH_SHIFT: u32 = 36;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotContent {
    pub block: u64,
    /// CRC-32C of the block's bytes.
    pub checksum: u32,
    pub is_hit: bool,
    /// The epoch of a dirty block, else 0.
    pub epoch: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Record {
    Holds {
        slot: u32,
        content: SlotContent,
    },
    Free {
        slot: u32,
    },
    /// All epochs up to this one are durable.
    Durable {
        epoch: u32,
    },
}

impl Record {
    pub fn encode(self, bytes: &mut [u8]) {
        let (slot, checksum, block) = match self {
            Record::Holds { slot, content: SlotContent { block, checksum, is_hit, epoch } } => {
                let dirty = if epoch > 0 { DIRTY | u64::from(epoch) << EPOCH_SHIFT } else { 0 };
                (slot, checksum, block | dirty | if is_hit { HIT } else { 0 })
            }
            Record::Free { slot } => (slot, 0, FREE),
            Record::Durable { epoch } => (0, 0, FREE | DIRTY | u64::from(epoch) << EPOCH_SHIFT),
        };
        bytes[..4].copy_from_slice(&slot.to_le_bytes());
        bytes[4..8].copy_from_slice(&checksum.to_le_bytes());
        bytes[8..16].copy_from_slice(&block.to_le_bytes());
    }

    pub fn decode(bytes: &[u8]) -> Self {
        let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let (slot, checksum) = (u32_at(0), u32_at(4));
        match u64::from_le_bytes(bytes[8..16].try_into().expect("eight bytes")) {
            block if block & (FREE | DIRTY) == FREE => Record::Free { slot },
            block if block & FREE != 0 => Record::Durable { epoch: epoch_of(block) },
            block => {
                let epoch = if block & DIRTY != 0 { epoch_of(block) } else { 0 };
                let number = if epoch > 0 { block & ((1 << EPOCH_SHIFT) - 1) } else { block & !HIT };
                let content = SlotContent { block: number, checksum, is_hit: block & HIT != 0, epoch };
                Record::Holds { slot, content }
            }
        }
    }

    pub fn slot(self) -> u32 {
        match self {
            Record::Holds { slot, .. } | Record::Free { slot } => slot,
            Record::Durable { .. } => 0,
        }
    }
}

fn epoch_of(block: u64) -> u32 {
    (block >> EPOCH_SHIFT) as u32 & EPOCH_MAX
}

#[derive(Debug, Default)]
pub(super) struct Pending {
    records: Vec<Record>,
    /// Departed blocks and ended claims whose records are not written yet.
    left: Filter,
    leaving: Filter,
}

/// A set that may say yes by mistake.
#[derive(Debug)]
struct Filter {
    bits: Box<[u64; FILTER_WORDS]>,
    is_empty: bool,
}

const FILTER_WORDS: usize = 512;

impl Default for Filter {
    fn default() -> Self {
        Self { bits: Box::new([0; FILTER_WORDS]), is_empty: true }
    }
}

impl Filter {
    fn bit_of(block: u64) -> (usize, u64) {
        let hash = block.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        ((hash >> 6) as usize % FILTER_WORDS, 1 << (hash & 63))
    }

    fn add(&mut self, block: u64) {
        let (word, bit) = Self::bit_of(block);
        self.bits[word] |= bit;
        self.is_empty = false;
    }

    fn has(&self, block: u64) -> bool {
        let (word, bit) = Self::bit_of(block);
        self.bits[word] & bit != 0
    }

    fn clear(&mut self) {
        if !self.is_empty {
            self.bits.fill(0);
            self.is_empty = true;
        }
    }
}

impl Pending {
    /// Records a block in `slot`; `before` is the checksum of the slot's last claim.
    pub fn holds(&mut self, slot: u32, content: SlotContent, before: u32) {
        self.records.push(Record::Holds { slot, content });
        if before != content.checksum {
            self.left.add(claim(slot, before));
        }
    }

    /// Records that `block` left `slot`; `before` is the slot's last claimed checksum.
    pub fn left(&mut self, slot: u32, block: u64, before: u32) {
        self.records.push(Record::Free { slot });
        self.left.add(block);
        self.left.add(claim(slot, before));
    }

    pub fn durable(&mut self, epoch: u32) {
        self.records.push(Record::Durable { epoch });
    }

    /// Whether such bytes may match an ended claim whose record is pending.
    pub fn fits_ended_claim(&self, slot: u32, checksum: u32) -> bool {
        self.has_left(claim(slot, checksum))
    }

    /// Whether `block` may have left a slot without a written record.
    pub fn has_left(&self, block: u64) -> bool {
        self.left.has(block) || self.leaving.has(block)
    }

    pub fn len(&self) -> usize {
        self.records.len()
    }

    pub fn take(&mut self) -> Vec<Record> {
        std::mem::swap(&mut self.left, &mut self.leaving);
        std::mem::take(&mut self.records)
    }

    pub fn written(&mut self) {
        self.leaving.clear();
    }
}

/// A claim as an element of the filter; block numbers are far smaller.
fn claim(slot: u32, checksum: u32) -> u64 {
    (u64::from(slot) << 32 | u64::from(checksum)).wrapping_mul(0xd6e8_feb8_6659_fd93) | FREE
}
