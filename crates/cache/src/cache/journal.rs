//! The journal: which block each slot holds, with which checksum, for the next opening.
//!
//! Records are gathered under the placement's lock and replayed in order.
//!
//! ```text
//!  0      4       8            16       24      64                                      4096
//!  | crc | count | generation | number | zeros | 252 records: slot 4, checksum 4, block 8 |
//! ```
//! A page counts if its checksum, number and generation are right and all pages before it count.
//! Pages are never rewritten, so a power cut cannot tear synced ones. Bits of a block: 63 free, 62
//! hit, 61 dirty, 36 to 60 epoch (`dirty.rs`). Free and dirty mean that all epochs up to that one
//! are durable, so damage there is no torn write. If pages are missing that the superblock calls
//! durable, or that no power cut can have torn, the cache begins empty.
//!
//! A full half, opening and closing begin the other half: a new generation, a record per used slot,
//! a sync, then a new superblock. So pages behind a torn one never count.
//!
//! A record is a claim, believed if the slot's bytes match and, after a power cut, the region has
//! no mark (`regions.rs`). Records of new blocks may be lost. A record that a block has *left* must
//! be on the fast device before the block is written or cut off: its old bytes still match. Nor may
//! a slot get bytes that match an outdated claim, such as zeros. A filter has unwritten departures
//! and ended claims; writers that it concerns first write the page.
//!
//! Locks: `state`, then the placement's. Pages are written under `state` alone.

use std::io;

use parking_lot::Mutex;

use super::checksum::checksum;
use super::guard::Name;
use super::index::{Index, State};
use super::layout::{Layout, PAGE_BYTES, PAGE_RECORDS, Superblock};
use super::placement::Placement;
use super::random::draw;
use super::record::{RECORD_BYTES, Record, SlotContent};
use crate::planted::{CacheBug, planted};
use terrace_io::{AlignedBuffer, BlockDevice, Write};

const HEAD_BYTES: usize = 64;
const BATCH_PAGES: usize = 64;

const _: () = assert!(HEAD_BYTES + PAGE_RECORDS * RECORD_BYTES == PAGE_BYTES);

#[derive(Debug)]
struct Position {
    superblock: Superblock,
    next: u64,
    /// A failed write lost records; the cache is about to be given up.
    is_broken: bool,
    is_stopped: bool,
}

#[derive(Debug)]
pub(super) struct Journal {
    layout: Layout,
    state: Mutex<Position>,
}

impl Journal {
    pub fn new(superblock: Superblock) -> Self {
        Self {
            layout: superblock.layout,
            state: Mutex::new(Position { superblock, next: 0, is_broken: false, is_stopped: false }),
        }
    }

    /// Pending records after which a partial page is written, to limit cold blocks.
    pub fn due(&self) -> usize {
        PAGE_RECORDS.min((self.layout.slots as usize / 64).max(1))
    }

    /// Writes all pending records if there are at least `least`, without a sync.
    pub fn flush(
        &self,
        fast: &dyn BlockDevice,
        index: &Index,
        placement: &Mutex<Placement>,
        least: usize,
    ) -> io::Result<()> {
        let mut position = if least > 1 {
            // No caller relies on this write, so the present writer may include these records.
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
            pending.take()
        };
        let pages = records.len().div_ceil(PAGE_RECORDS) as u64;
        // Until the write succeeds, no other thread may assume that it did.
        position.is_broken = true;
        if position.next + pages > self.layout.half_pages() {
            self.begin_half_at(&mut position, fast, index, placement)?;
        } else {
            self.append(&mut position, fast, &records)?;
        }
        position.is_broken = false;
        placement.lock().pending().written();
        Ok(())
    }

    pub fn written(&self) -> (u64, u64) {
        let position = self.state.lock();
        (position.superblock.generation, position.next)
    }

    /// Whether all written pages are recorded as durable.
    pub fn is_recorded_durable(&self) -> bool {
        let position = self.state.lock();
        position.superblock.pages >= position.next
    }

    /// Durably records that the pages of an earlier [`Journal::written`] are durable.
    pub fn record_durable(&self, fast: &dyn BlockDevice, written: (u64, u64)) -> io::Result<()> {
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

    pub fn name(&self) -> Name {
        let Superblock { number, session, sequence, .. } = self.state.lock().superblock;
        Name { number, session, sequence }
    }

    /// Draws a new session and keeps the previous one (`guard.rs`).
    pub fn draw_session(&self) {
        let superblock = &mut self.state.lock().superblock;
        // Keep the session that the guard has; one that it never had does not matter.
        if superblock.session_before == 0 || planted(CacheBug::KeepSession) {
            superblock.session_before = superblock.session;
        }
        superblock.session = draw();
    }

    /// Durably forgets the previous session, once the guard has the new one.
    pub fn end_session_before(&self, fast: &dyn BlockDevice) -> io::Result<()> {
        let mut position = self.state.lock();
        if position.is_stopped {
            return Ok(());
        }
        let superblock = &mut position.superblock;
        superblock.session_before = 0;
        superblock.sequence += 1;
        // Both, so that damage to one does not bring the previous session back.
        superblock.write_both(fast)
    }

    pub fn first_step(&self) -> u64 {
        self.state.lock().superblock.first_step
    }

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

    /// Durably records that there may be dirty blocks from now on.
    pub fn begin_dirty(&self, fast: &dyn BlockDevice) -> io::Result<()> {
        let mut position = self.state.lock();
        if position.is_stopped {
            return Err(io::Error::other("the cache has been given up"));
        }
        let superblock = &mut position.superblock;
        superblock.is_dirty = true;
        if !planted(CacheBug::KeepUnneeded) {
            // The guard has been written with the current session.
            superblock.session_before = 0;
        }
        superblock.sequence += 1;
        superblock.write_both(fast)
    }

    /// Runs `then` unless writing has stopped; [`Journal::stop`] waits for it.
    pub fn unless_stopped<T>(&self, then: impl FnOnce() -> T) -> Option<T> {
        let position = self.state.lock();
        (!position.is_stopped).then(then)
    }

    /// Stops writing, and runs `then` before any thread can notice.
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

    /// Begins the other half, with a record for each used slot.
    ///
    /// It and all earlier writes to `fast` are durable on return. Records that no block is dirty,
    /// if so; the caller ensures that none becomes dirty meanwhile.
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
                // Later changes have records that follow these.
                let mut placement = placement.lock();
                while slot < index.slots() && records.len() < BATCH_PAGES * PAGE_RECORDS {
                    let word = index.word(slot);
                    if word.state() == State::Valid {
                        let (checksum, epoch) =
                            (index.checksum(slot), placement.dirty().epoch(slot).unwrap_or(0));
                        let content =
                            SlotContent { block: word.block(), checksum, is_hit: word.is_hit(), epoch };
                        records.push(Record::Holds { slot, content });
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

fn image(generation: u64, number: u64, records: &[Record]) -> AlignedBuffer {
    let mut page = AlignedBuffer::zeroed(PAGE_BYTES);
    page[4..8].copy_from_slice(&(records.len() as u32).to_le_bytes());
    page[8..16].copy_from_slice(&generation.to_le_bytes());
    page[16..24].copy_from_slice(&number.to_le_bytes());
    for (record, content) in records.iter().zip(page[HEAD_BYTES..].chunks_exact_mut(RECORD_BYTES)) {
        record.encode(content);
    }
    let check = checksum(&page[4..]);
    page[..4].copy_from_slice(&check.to_le_bytes());
    page
}

fn records_of(page: &[u8], superblock: &Superblock, number: u64) -> Option<Vec<Record>> {
    let count = u32::from_le_bytes(page[4..8].try_into().expect("four bytes")) as usize;
    let counts = page[..4] == checksum(&page[4..]).to_le_bytes()
        && (page[8..16] == superblock.generation.to_le_bytes() || planted(CacheBug::NoGenerationInJournal))
        && page[16..24] == number.to_le_bytes()
        && count <= PAGE_RECORDS;
    if !counts {
        return None;
    }
    let records = page[HEAD_BYTES..].chunks_exact(RECORD_BYTES).take(count);
    let records: Vec<_> = records.map(Record::decode).collect();
    records.iter().all(|record| record.slot() < superblock.layout.slots).then_some(records)
}

/// Reads the current half and passes its records on, oldest first.
///
/// Returns whether none is missing. `may_be_torn`: a power cut may have torn the last pages.
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
                // Undamaged remains are pages of earlier generations, or zeros.
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
