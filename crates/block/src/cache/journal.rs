//! The journal: which block is in which slot, with which checksum, as the next opening will find it.
//!
//! A record says what a slot holds now: a block and the checksum of its bytes, or nothing. Records are gathered in
//! memory, under the placement's lock, and written in pages. Replaying them in order gives what each slot held last.
//!
//! # Pages
//! ```text
//!  0      4       8            16       24      64                                      4096
//!  | crc | count | generation | number | zeros | 252 records: slot 4, checksum 4, block 8 |
//! ```
//! A page counts if its checksum is right, its generation is that of the superblock, and all pages before it in its half
//! count. A page is written once: what was synced is never overwritten by what a power cut can tear. The bit 63 of
//! a block says that the slot is free, the bit 62 that the block had been hit, the bit 61 that it is dirty, and then the bits 36 to 60 in
//! which epoch (`dirty.rs`). A record that is both free and dirty says of no slot, but that all epochs up to that one are durable: a
//! dirty block of one of them that is damaged is lost, while one of a later epoch may just have been torn. The superblock says how many pages are durable;
//! where fewer count, or where a damaged page ends the journal although no power cut can have torn it, records are missing,
//! and the cache is begun anew.
//!
//! When a half is full, and at every opening and closing, the other half is begun: with a new generation, with a record for each slot
//! that holds a block, synced, and only then named by a new superblock. So pages that a power cut left behind a
//! torn one never count again.
//!
//! # What may be missing
//! A record is only a claim. It is believed if the bytes of its slot have its checksum, and, after a power cut, if the block's
//! region has no mark (`regions.rs`). Records of blocks that came in may therefore be lost or be written late: the block is then
//! cold, or its claim is found to be wrong. A record that a block has *left* its slot must not be lost, because the old bytes
//! are still there: before the block is next written, or cut off, the record is on the fast device.
//! Blocks that have left since the last page was written are kept in a filter; who writes one of them writes the page first. And before
//! a region loses its mark everything is synced.
//!
//! Nor must a slot get bytes that fit a claim by chance which is no longer true, and of which the journal does not know that yet: those
//! that its block had before, or another block with the same content, such as zeros. So the filter has claims that have
//! ended, too, each by its slot and checksum; who is about to write such bytes to that slot writes the page first.
//!
//! # Locks
//! `state`, then the placement's. Pages are written under `state` alone.

use std::io;

use parking_lot::Mutex;

use super::checksum;
use super::dirty::EPOCH_MAX;
use super::guard::Name;
use super::index::{Index, State};
use super::layout::{Layout, PAGE_BYTES, PAGE_RECORDS, Superblock};
use super::open::draw;
use super::placement::Placement;
use crate::planted::{CacheBug, planted};
use crate::{AlignedBuffer, BlockDevice, Write};

const HEAD_BYTES: usize = 64;
const RECORD_BYTES: usize = 16;
const FREE: u64 = 1 << 63;
const HIT: u64 = 1 << 62;
const DIRTY: u64 = 1 << 61;
const EPOCH_SHIFT: u32 = 36;

/// Pages read or written together.
const BATCH_PAGES: usize = 64;

const _: () = assert!(HEAD_BYTES + PAGE_RECORDS * RECORD_BYTES == PAGE_BYTES);

/// A block in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub block: u64,
    /// CRC-32C of the block's bytes.
    pub checksum: u32,
    /// Whether the block was hit since it came in.
    pub is_hit: bool,
    /// The epoch, if the slow device does not have the block so, else 0.
    pub epoch: u32,
}

/// What a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Record {
    /// A block.
    Holds {
        /// The slot.
        slot: u32,
        /// The block there.
        place: Place,
    },
    /// Nothing.
    Free {
        /// The slot.
        slot: u32,
    },
    /// Everything of the epochs up to this is durable.
    Durable {
        /// The epoch.
        epoch: u32,
    },
}

impl Record {
    fn encode(self, bytes: &mut [u8]) {
        let (slot, checksum, block) = match self {
            Record::Holds { slot, place: Place { block, checksum, is_hit, epoch } } => {
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

    fn decode(bytes: &[u8]) -> Self {
        let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let (slot, checksum) = (u32_at(0), u32_at(4));
        match u64::from_le_bytes(bytes[8..16].try_into().expect("eight bytes")) {
            block if block & (FREE | DIRTY) == FREE => Record::Free { slot },
            block if block & FREE != 0 => Record::Durable { epoch: epoch_of(block) },
            block => {
                let epoch = if block & DIRTY != 0 { epoch_of(block) } else { 0 };
                let number = if epoch > 0 { block & ((1 << EPOCH_SHIFT) - 1) } else { block & !HIT };
                let place = Place { block: number, checksum, is_hit: block & HIT != 0, epoch };
                Record::Holds { slot, place }
            }
        }
    }

    fn slot(self) -> u32 {
        match self {
            Record::Holds { slot, .. } | Record::Free { slot } => slot,
            Record::Durable { .. } => 0,
        }
    }
}

fn epoch_of(block: u64) -> u32 {
    (block >> EPOCH_SHIFT) as u32 & EPOCH_MAX
}

/// Records that are not yet written, and which blocks they are about.
#[derive(Debug, Default)]
pub(super) struct Pending {
    records: Vec<Record>,
    /// Blocks that left their slots, by hash, since the last records were taken to be written; and before, while
    /// those are being written.
    left: Filter,
    leaving: Filter,
}

/// A set of blocks that may say yes by mistake.
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
    fn place(block: u64) -> (usize, u64) {
        let hash = block.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        ((hash >> 6) as usize % FILTER_WORDS, 1 << (hash & 63))
    }

    fn add(&mut self, block: u64) {
        let (word, bit) = Self::place(block);
        self.bits[word] |= bit;
        self.is_empty = false;
    }

    fn has(&self, block: u64) -> bool {
        let (word, bit) = Self::place(block);
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
    /// `slot` holds a block. What was last claimed of the slot had the checksum `before`.
    pub fn holds(&mut self, slot: u32, place: Place, before: u32) {
        self.records.push(Record::Holds { slot, place });
        if before != place.checksum {
            self.left.add(claim(slot, before));
        }
    }

    /// `block` has left `slot`. What was last claimed of the slot had the checksum `before`.
    pub fn left(&mut self, slot: u32, block: u64, before: u32) {
        self.records.push(Record::Free { slot });
        self.left.add(block);
        self.left.add(claim(slot, before));
    }

    /// All epochs up to `epoch` are durable.
    pub fn durable(&mut self, epoch: u32) {
        self.records.push(Record::Durable { epoch });
    }

    /// Whether bytes with this checksum may fit a claim of `slot` that has ended without that being written yet.
    pub fn fits_ended_claim(&self, slot: u32, checksum: u32) -> bool {
        self.has_left(claim(slot, checksum))
    }

    /// Whether `block` may have left a slot without that being written yet.
    pub fn has_left(&self, block: u64) -> bool {
        self.left.has(block) || self.leaving.has(block)
    }

    pub fn len(&self) -> usize {
        self.records.len()
    }
}

/// A claim as an element of the filter; blocks are far smaller numbers.
fn claim(slot: u32, checksum: u32) -> u64 {
    (u64::from(slot) << 32 | u64::from(checksum)).wrapping_mul(0xd6e8_feb8_6659_fd93) | FREE
}

#[derive(Debug)]
struct Position {
    superblock: Superblock,
    /// The page of the current half that is written next.
    next: u64,
    /// Records were lost with a write that failed: the cache is about to be given up.
    is_broken: bool,
    /// Nothing is written any more.
    is_stopped: bool,
}

/// The journal of one cache.
#[derive(Debug)]
pub(super) struct Journal {
    layout: Layout,
    state: Mutex<Position>,
}

impl Journal {
    /// A journal whose first half is yet to be begun, by [`Journal::begin_half`].
    pub fn new(superblock: Superblock) -> Self {
        Self {
            layout: superblock.layout,
            state: Mutex::new(Position { superblock, next: 0, is_broken: false, is_stopped: false }),
        }
    }

    /// Records after which a page is written though it is not full, so that few blocks are cold after a kill.
    pub fn due(&self) -> usize {
        PAGE_RECORDS.min((self.layout.slots as usize / 64).max(1))
    }

    /// Writes all pending records, if there are at least `least`. When this returns they are on `fast`, not
    /// durably.
    pub fn flush(
        &self,
        fast: &dyn BlockDevice,
        index: &Index,
        placement: &Mutex<Placement>,
        least: usize,
    ) -> io::Result<()> {
        let mut position = if least > 1 {
            // Nobody relies on it: whoever is writing may go on with these, too.
            let Some(position) = self.state.try_lock() else { return Ok(()) };
            position
        } else {
            self.state.lock()
        };
        if position.is_stopped {
            return Ok(());
        }
        if position.is_broken {
            return Err(io::Error::other("an earlier write of the journal has failed"));
        }
        let records = {
            let mut placement = placement.lock();
            let pending = placement.pending();
            if pending.len() < least.max(1) {
                return Ok(());
            }
            std::mem::swap(&mut pending.left, &mut pending.leaving);
            std::mem::take(&mut pending.records)
        };
        let pages = records.len().div_ceil(PAGE_RECORDS) as u64;
        // Until it has succeeded nobody else may take it for written.
        position.is_broken = true;
        if position.next + pages > self.layout.half_pages() {
            // The new half says all that these records say, and what happened since.
            self.begin_half_at(&mut position, fast, index, placement)?;
        } else {
            self.append(&mut position, fast, &records)?;
        }
        position.is_broken = false;
        placement.lock().pending().leaving.clear();
        Ok(())
    }

    /// How far the journal is: what has been written of which generation.
    pub fn written(&self) -> (u64, u64) {
        let position = self.state.lock();
        (position.superblock.generation, position.next)
    }

    /// Whether all that has been written is known to be durable.
    pub fn is_vouched(&self) -> bool {
        let position = self.state.lock();
        position.superblock.pages >= position.next
    }

    /// Notes durably that what [`Journal::written`] gave has become durable since.
    pub fn vouch(&self, fast: &dyn BlockDevice, written: (u64, u64)) -> io::Result<()> {
        let mut position = self.state.lock();
        let is_stopped = position.is_stopped;
        let superblock = &mut position.superblock;
        if is_stopped || superblock.generation != written.0 || superblock.pages >= written.1 {
            return Ok(());
        }
        superblock.pages = written.1;
        superblock.sequence += 1;
        superblock.write(fast)
    }

    /// What the guard is to call the cache.
    pub fn name(&self) -> Name {
        let Superblock { number, session, sequence, .. } = self.state.lock().superblock;
        Name { number, session, sequence }
    }

    /// Draws a new session; the next superblock has it, and the one before (`guard.rs`).
    pub fn draw_session(&self) {
        let superblock = &mut self.state.lock().superblock;
        // One that the guard has never had does not matter; the one that it has must not be forgotten.
        if superblock.session_before == 0 || planted(CacheBug::KeepSession) {
            superblock.session_before = superblock.session;
        }
        superblock.session = draw();
    }

    /// The guard has the session: forgets the one before, durably.
    pub fn end_session_before(&self, fast: &dyn BlockDevice) -> io::Result<()> {
        let mut position = self.state.lock();
        if position.is_stopped {
            return Ok(());
        }
        let superblock = &mut position.superblock;
        superblock.session_before = 0;
        superblock.sequence += 1;
        // Both: the session before is not to count again should one of them be damaged.
        superblock.write_both(fast)
    }

    /// The number of the first step in this opening, until it was noted.
    pub fn first_step(&self) -> u64 {
        self.state.lock().superblock.first_step
    }

    /// Notes durably how far the slow device is.
    pub fn set_progress(&self, fast: &dyn BlockDevice, progress: u64) -> io::Result<()> {
        let mut position = self.state.lock();
        if position.is_stopped {
            return Ok(());
        }
        let superblock = &mut position.superblock;
        (superblock.progress, superblock.first_step) = (progress, 0);
        superblock.sequence += 1;
        superblock.write(fast)
    }

    /// Says durably that there may be dirty blocks from now on.
    pub fn begin_dirty(&self, fast: &dyn BlockDevice) -> io::Result<()> {
        let mut position = self.state.lock();
        if position.is_stopped {
            return Err(io::Error::other("the cache has been given up"));
        }
        let superblock = &mut position.superblock;
        superblock.is_dirty = true;
        if !planted(CacheBug::KeepUnneeded) {
            // The guard has been written with this one.
            superblock.session_before = 0;
        }
        superblock.sequence += 1;
        superblock.write_both(fast)
    }

    /// Runs `then` unless nothing is written any more; [`Journal::stop`] waits for it.
    pub fn unless_stopped<T>(&self, then: impl FnOnce() -> T) -> Option<T> {
        let position = self.state.lock();
        (!position.is_stopped).then(then)
    }

    /// Writes nothing more, and runs `then` before anybody can find out.
    pub fn stop(&self, then: impl FnOnce()) {
        let mut position = self.state.lock();
        if !position.is_stopped {
            position.is_stopped = true;
            then();
        }
    }

    fn append(&self, position: &mut Position, fast: &dyn BlockDevice, records: &[Record]) -> io::Result<()> {
        let Superblock { half, generation, .. } = position.superblock;
        let images: Vec<_> = (position.next..)
            .zip(records.chunks(PAGE_RECORDS))
            .map(|(number, records)| (number, image(generation, number, records)))
            .collect();
        let offset = |number: u64| self.layout.journal_offset(half, number);
        let writes: Vec<_> =
            images.iter().map(|(number, image)| Write::new(offset(*number), image)).collect();
        fast.write_batch(&writes)?;
        position.next += images.len() as u64;
        Ok(())
    }

    /// Begins the other half, with a record for each slot that holds a block. All of it is durable when this returns, and so
    /// is everything that was written to `fast` before. Says that no block is dirty, if none is and none can become so meanwhile.
    ///
    pub fn begin_half(
        &self,
        fast: &dyn BlockDevice,
        index: &Index,
        placement: &Mutex<Placement>,
    ) -> io::Result<()> {
        let mut position = self.state.lock();
        if position.is_stopped {
            return Ok(());
        }
        position.superblock.is_dirty = !placement.lock().dirty().is_empty();
        self.begin_half_at(&mut position, fast, index, placement)
    }

    fn begin_half_at(
        &self,
        position: &mut Position,
        fast: &dyn BlockDevice,
        index: &Index,
        placement: &Mutex<Placement>,
    ) -> io::Result<()> {
        // If it fails there is no half to which others could write.
        position.is_broken = true;
        let superblock = &mut position.superblock;
        superblock.half = 1 - superblock.half;
        superblock.generation = superblock.generation.wrapping_add(1);
        superblock.sequence += 1;
        position.next = 0;
        let mut slot = 0;
        while slot < index.slots() {
            let mut records = Vec::with_capacity(BATCH_PAGES * PAGE_RECORDS);
            {
                // What changes after this look is in records that are written after these.
                let mut placement = placement.lock();
                while slot < index.slots() && records.len() < BATCH_PAGES * PAGE_RECORDS {
                    let word = index.word(slot);
                    if word.state() == State::Valid {
                        let (checksum, epoch) =
                            (index.checksum(slot), placement.dirty().epoch(slot).unwrap_or(0));
                        let place = Place { block: word.block(), checksum, is_hit: word.is_hit(), epoch };
                        records.push(Record::Holds { slot, place });
                    }
                    slot += 1;
                }
                if slot == index.slots() {
                    records.extend(placement.overwritten(index));
                }
            }
            self.append(position, fast, &records)?;
        }
        fast.sync()?;
        position.superblock.pages = position.next;
        position.superblock.write_both(fast)?;
        position.is_broken = false;
        Ok(())
    }
}

/// A page of records.
fn image(generation: u64, number: u64, records: &[Record]) -> AlignedBuffer {
    let mut page = AlignedBuffer::zeroed(PAGE_BYTES);
    page[4..8].copy_from_slice(&(records.len() as u32).to_le_bytes());
    page[8..16].copy_from_slice(&generation.to_le_bytes());
    page[16..24].copy_from_slice(&number.to_le_bytes());
    for (record, place) in records.iter().zip(page[HEAD_BYTES..].chunks_exact_mut(RECORD_BYTES)) {
        record.encode(place);
    }
    let check = checksum(&page[4..]);
    page[..4].copy_from_slice(&check.to_le_bytes());
    page
}

/// The records of a page, if it counts.
fn records_of(page: &[u8], superblock: &Superblock, number: u64) -> Option<Vec<Record>> {
    let count = u32::from_le_bytes(page[4..8].try_into().expect("four bytes")) as usize;
    let counts = page[..4] == checksum(&page[4..]).to_le_bytes()
        && (page[8..16] == superblock.generation.to_le_bytes() || planted(CacheBug::NoGenerationInJournal))
        && page[16..24] == number.to_le_bytes()
        && count <= PAGE_RECORDS;
    if !counts {
        return None;
    }
    let places = page[HEAD_BYTES..].chunks_exact(RECORD_BYTES).take(count);
    let records: Vec<_> = places.map(Record::decode).collect();
    // A page with a slot that does not exist was never written by a cache.
    records.iter().all(|record| record.slot() < superblock.layout.slots).then_some(records)
}

/// Reads the half that counts and hands over its records, oldest first. Says whether none is missing; `may_be_torn` says that a
/// power cut may have torn the last pages.
pub(super) fn replay(
    fast: &dyn BlockDevice,
    superblock: &Superblock,
    may_be_torn: bool,
    mut apply: impl FnMut(Record),
) -> io::Result<bool> {
    let layout = superblock.layout;
    let mut pages = AlignedBuffer::zeroed(BATCH_PAGES * PAGE_BYTES);
    let mut number = 0;
    while number < layout.half_pages() {
        let count = (layout.half_pages() - number).min(BATCH_PAGES as u64) as usize;
        let pages = &mut pages[..count * PAGE_BYTES];
        fast.read_at(layout.journal_offset(superblock.half, number), pages)?;
        for page in pages.chunks(PAGE_BYTES) {
            let Some(records) = records_of(page, superblock, number) else {
                // One of an earlier generation is whole, and one that was never written is zeros.
                let is_damaged =
                    page[..4] != checksum(&page[4..]).to_le_bytes() && page.iter().any(|&byte| byte != 0);
                return Ok(number >= superblock.pages && (may_be_torn || !is_damaged));
            };
            records.into_iter().for_each(&mut apply);
            number += 1;
        }
    }
    Ok(true)
}
