//! The log's newest bytes in memory: a ring filled by many threads and drained by one.
//!
//! ```text
//!             floor(filed)   filed         complete        tail
//!   ... reusable |--- kept ----|--- may be written --|- filling -|  not drawn yet ...
//! ```
//!
//! * A writer draws its slot with one `fetch_add` on the tail and fills it in parallel with others.
//!   Until then a mark (`marks.rs`) shows the slot as a hole.
//! * *Complete* is the lowest mark, or the tail as it was before the marks were read: a contiguous
//!   watermark, never past a hole. Marks and tails are ends of records, so it is between two.
//! * *Filed* is what the log's file holds for good. Its block is kept: it is rewritten with what
//!   follows.
//! * *Persistent* is what survives, and what commits are acknowledged up to. It is at least the
//!   filed end. In persistent memory it is the complete end: a writer persists its slot before it
//!   clears its mark. What was complete once stays so until it is filed.
//! * A slot has room once the bytes one ring length earlier are below the kept block. The lowest
//!   unfilled slot always gets room: no slot is longer than the ring less one block.
//!
//! [`Ring::retire`] ends that for good, before the superblock drops the ring's name.
//!
//! The log's only file with unsafe code: disjoint parts of the shared ring have different owners,
//! which the borrow checker cannot see. A part is owned by
//! 1. the [`LogSlot`] drawn for it, from the moment there is room until it is filled and its mark
//!    cleared;
//! 2. then the only [`Drain`], until it publishes a filed end beyond the part's block.
#![allow(unsafe_code)]

use std::io;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, Release, SeqCst},
};

use terrace_io::AlignedBuffer;

use super::failure::Failure;
use super::marks::Marks;
use super::record::{HEADER_BYTES, RECORD_ALIGNMENT, RecordBuilder};
use super::units::{BLOCK, block_floor};
use crate::error::{Error, Result};
use crate::ids::Lsn;
use crate::planted::{Bug, planted};
use crate::store::ring::RingMemory;
use crate::threads::Padded;

/// Threads that can fill at once; more wait.
const FILLING_MAX: usize = 128;

/// The ring. [`ring`] makes it with its [`Drain`].
pub(super) struct Ring {
    tail: Padded<AtomicU64>,
    persistent: Padded<AtomicU64>,
    filed: Padded<AtomicU64>,
    filling: Marks<FILLING_MAX>,
    pub(super) failure: Failure,
    epoch: u32,
    start: *mut u8,
    size: u64,
    /// Owns the memory at `start`.
    memory: Memory,
    /// Whether complete is persistent.
    persists: AtomicBool,
}

/// The memory of a ring.
enum Memory {
    /// Used only to free it.
    Ordinary(#[expect(dead_code, reason = "owns the memory")] AlignedBuffer),
    Persistent(Arc<RingMemory>),
}

// SAFETY: the bytes behind `start` are only accessed through `LogSlot` and `Drain`, whose parts are
// disjoint by the two ownership rules at the head of this file; all else is atomic or thread-safe
// itself.
unsafe impl Send for Ring {}
// SAFETY: see `Send`.
unsafe impl Sync for Ring {}

/// A ring of `size` bytes, a power of two, for records of `epoch`. All watermarks are `tail`;
/// `last_block` holds its block up to there.
pub(super) fn ring(size: usize, epoch: u32, tail: Lsn, last_block: &[u8]) -> Result<(Arc<Ring>, Drain)> {
    assert!(size.is_power_of_two() && size as u64 >= 2 * BLOCK, "a ring of {size} bytes");
    let memory = AlignedBuffer::try_zeroed(size);
    let mut memory =
        memory.map_err(|source| Error::Memory { bytes: size as u64, what: "the log's buffer", source })?;
    let start = memory.as_mut_ptr();
    Ok(ring_in(Memory::Ordinary(memory), start, size, epoch, tail, last_block))
}

/// The same in persistent memory, which a durable superblock names.
pub(super) fn persistent_ring(
    memory: &Arc<RingMemory>,
    epoch: u32,
    tail: Lsn,
    last_block: &[u8],
) -> (Arc<Ring>, Drain) {
    // The words are atomic, so they may change behind a shared reference.
    let start = memory.words().as_ptr().cast_mut().cast();
    let size = memory.bytes();
    ring_in(Memory::Persistent(Arc::clone(memory)), start, size, epoch, tail, last_block)
}

/// `memory` owns `size` bytes at `start`, for nobody else.
fn ring_in(
    memory: Memory,
    start: *mut u8,
    size: usize,
    epoch: u32,
    tail: Lsn,
    last_block: &[u8],
) -> (Arc<Ring>, Drain) {
    let kept = block_floor(tail.0);
    assert_eq!(last_block.len() as u64, tail.0 - kept);
    if let Memory::Persistent(memory) = &memory {
        memory.note(kept, last_block.len());
    }
    let at = (kept % size as u64) as usize;
    assert!(at + last_block.len() <= size);
    // SAFETY: the bytes are inside the memory, as just checked, and nobody else has it yet.
    unsafe { start.add(at).copy_from_nonoverlapping(last_block.as_ptr(), last_block.len()) };
    let persists = AtomicBool::new(matches!(memory, Memory::Persistent(_)));
    let ring = Arc::new(Ring {
        tail: Padded(AtomicU64::new(tail.0)),
        persistent: Padded(AtomicU64::new(tail.0)),
        filed: Padded(AtomicU64::new(tail.0)),
        filling: Marks::new(),
        failure: Failure::default(),
        epoch,
        start,
        size: size as u64,
        memory,
        persists,
    });
    let drain = Drain { ring: Arc::clone(&ring), complete: tail.0 };
    (ring, drain)
}

impl Ring {
    /// The end of everything drawn.
    pub(super) fn tail(&self) -> u64 {
        self.tail.0.load(SeqCst)
    }

    /// The counter itself, for [`Marks::set`].
    pub(super) fn tail_counter(&self) -> &AtomicU64 {
        &self.tail.0
    }

    /// The end of what survives a crash.
    pub(super) fn persistent(&self) -> u64 {
        // Acquire: pairs with the update in `Drain::publish`.
        self.persistent.0.load(Acquire)
    }

    /// The persistent memory, if it is one. A forked child does not have it.
    pub(super) fn memory(&self) -> Option<&RingMemory> {
        match &self.memory {
            Memory::Ordinary(_) => None,
            Memory::Persistent(memory) => Some(memory),
        }
    }

    /// Whether records are persistent before they are filed.
    pub(super) fn persists(&self) -> bool {
        // Acquire: pairs with the store in `Ring::retire`.
        self.persists.load(Acquire)
    }

    /// Notes in the memory that the page file relies on the persistent records below `to`.
    ///
    /// # Errors
    /// Those of a simulated memory.
    pub(super) fn rely_on(&self, to: u64) -> io::Result<()> {
        match &self.memory {
            Memory::Persistent(memory) if self.filed() < to => memory.rely_on(to.min(self.persistent())),
            _ => Ok(()),
        }
    }

    /// Updates and returns the persistent end, without any wait.
    pub(super) fn look(&self) -> u64 {
        if !self.persists() {
            return self.persistent();
        }
        let complete = self.complete();
        // Read after the watermark: see `Ring::retire`.
        if self.persists.load(SeqCst) {
            self.persistent.0.fetch_max(complete, Release);
        }
        self.persistent()
    }

    /// From now on, only filed records count as persistent. What was counted so far ends at or
    /// below a tail that is read later.
    pub(super) fn retire(&self) {
        self.persists.store(false, SeqCst);
    }

    /// The end of what the log's file holds for good.
    pub(super) fn filed(&self) -> u64 {
        // Acquire: pairs with the store in `Drain::publish`.
        self.filed.0.load(Acquire)
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// The longest record that always finds room.
    pub(super) fn slot_bytes_max(&self) -> usize {
        (self.size - BLOCK) as usize
    }

    /// The number of slots drawn.
    pub(super) fn slots(&self) -> u64 {
        self.filling.uses()
    }

    pub(super) fn epoch(&self) -> u32 {
        self.epoch
    }

    /// The end of the filled part. A lower bound: see [`Drain::look`].
    fn complete(&self) -> u64 {
        let tail = self.tail();
        if planted(Bug::WatermarkAsMaximum) { tail } else { self.filling.low(tail) }
    }

    /// Draws the next `bytes` of the log. Until it is filled, the slot is a hole.
    pub(super) fn draw(&self, bytes: usize) -> LogSlot<'_> {
        assert!(
            (HEADER_BYTES..=self.slot_bytes_max()).contains(&bytes) && bytes.is_multiple_of(RECORD_ALIGNMENT),
            "a record of {bytes} bytes"
        );
        let mark = self.filling.set(&self.tail.0);
        let lsn = self.tail.0.fetch_add(bytes as u64, SeqCst);
        // If this thread slept since, the mark may lie far below, and the ring could fill with
        // bytes that no thread may write. Raised, it is exact.
        self.filling.raise(mark, lsn);
        LogSlot { ring: self, mark, lsn, bytes, open: true }
    }
}

/// A drawn slot of the log that its owner has yet to fill.
#[must_use = "an unfilled slot stops the log"]
pub(super) struct LogSlot<'a> {
    ring: &'a Ring,
    mark: usize,
    lsn: u64,
    bytes: usize,
    open: bool,
}

impl LogSlot<'_> {
    pub(super) fn lsn(&self) -> Lsn {
        Lsn(self.lsn)
    }

    pub(super) fn end(&self) -> Lsn {
        Lsn(self.lsn + self.bytes as u64)
    }

    /// How far the log must be filed before this slot has room. Never above the slot itself.
    pub(super) fn room_needs(&self) -> Lsn {
        Lsn((self.lsn + self.bytes as u64).saturating_sub(self.ring.size).next_multiple_of(BLOCK))
    }

    /// Whether [`LogSlot::fill`] may be called.
    pub(super) fn has_room(&self) -> bool {
        self.ring.filed() >= self.room_needs().0
    }

    /// Fills the slot with a sealed record of exactly its length. Persists it, if the ring is in
    /// persistent memory.
    ///
    /// # Errors
    /// Those of a simulated memory. The slot is a hole for good then, and the log has failed.
    ///
    /// # Panics
    /// If there is no room yet, or the length differs.
    pub(super) fn fill(mut self, record: &[u8]) -> io::Result<()> {
        assert!(self.has_room() && record.len() == self.bytes);
        self.copy_in(record)
    }

    /// Leaves the slot a hole for good: the log has failed and nothing is written any more.
    pub(super) fn abandon(mut self) {
        self.open = false;
    }

    fn copy_in(&mut self, record: &[u8]) -> io::Result<()> {
        // Whatever happens below, no no-op follows.
        self.open = false;
        if let Memory::Persistent(memory) = &self.ring.memory {
            memory.note(self.lsn, self.bytes);
        }
        let at = (self.lsn % self.ring.size) as usize;
        let (first, rest) = record.split_at(record.len().min(self.ring.size as usize - at));
        // SAFETY: both destinations are inside the ring (`at < size`, `first` ends at its end at
        // the latest, `rest` is shorter than the ring). They are this slot's bytes, which no other
        // slot shares, since LSNs are drawn once. The drain has given up the bytes one ring length
        // below: `has_room` was true, and its Acquire load of `filed` pairs with the Release in
        // `Drain::publish`. The bytes one ring length above have no room before this is filed, so
        // not before the mark is cleared. The source is other memory: nothing hands out a slice of
        // this slot before the mark is cleared.
        unsafe {
            self.ring.start.add(at).copy_from_nonoverlapping(first.as_ptr(), first.len());
            self.ring.start.copy_from_nonoverlapping(rest.as_ptr(), rest.len());
        }
        if let Memory::Persistent(memory) = &self.ring.memory {
            // Before the mark is cleared: then the record counts as persistent.
            memory.persist(self.lsn, self.bytes).inspect_err(|error| {
                self.ring
                    .failure
                    .set(format!("a record could not be persisted in {}: {error}", memory.name()));
            })?;
        }
        self.ring.filling.clear(self.mark);
        Ok(())
    }
}

impl Drop for LogSlot<'_> {
    /// An unfilled slot becomes a no-op record; if not even that is possible, the log has failed.
    fn drop(&mut self) {
        if !self.open {
            return;
        }
        if self.has_room() {
            // An error has failed the log.
            let _ = self.copy_in(&RecordBuilder::sealed_noop(Lsn(self.lsn), self.ring.epoch, self.bytes));
        } else {
            self.ring.failure.set("a thread gave up its slot in the log before there was room to fill it");
        }
    }
}

/// The only reader of complete bytes, and publisher of the filed end.
pub(super) struct Drain {
    ring: Arc<Ring>,
    /// The highest result of `Ring::complete`. A later one may be lower, if a slow thread publishes
    /// an old mark.
    complete: u64,
}

impl Drain {
    /// Updates and returns the complete end.
    pub(super) fn look(&mut self) -> u64 {
        self.complete = self.complete.max(self.ring.complete());
        self.complete
    }

    /// The whole blocks from `from` to `to`, both block-aligned, between the filed block and the
    /// complete end. Two slices, since the ring may wrap.
    pub(super) fn blocks(&self, from: u64, to: u64) -> [&[u8]; 2] {
        assert!(from.is_multiple_of(BLOCK) && to.is_multiple_of(BLOCK));
        let (at, first, rest) = self.part(from, to);
        // SAFETY: `part` has checked that the range is inside the ring and owned by this drain. It
        // is complete, so every writer cleared its mark with Release, seen with Acquire. It is not
        // below the filed block, so no slot above has room for it until `publish`, which needs
        // `&mut self` and so ends these borrows.
        unsafe {
            [
                std::slice::from_raw_parts(self.ring.start.add(at), first),
                std::slice::from_raw_parts(self.ring.start, rest),
            ]
        }
    }

    /// Copies the bytes from `from` to `to`, in any alignment. Otherwise as [`Drain::blocks`].
    pub(super) fn copy(&self, from: u64, to: u64, target: &mut [u8]) {
        let (at, first, rest) = self.part(from, to);
        let target = &mut target[..first + rest];
        // SAFETY: as in `blocks`, `part` has checked the range; `target` has exactly its length,
        // and is exclusively borrowed.
        unsafe {
            self.ring.start.add(at).copy_to_nonoverlapping(target.as_mut_ptr(), first);
            self.ring.start.copy_to_nonoverlapping(target[first..].as_mut_ptr(), rest);
        }
    }

    /// Publishes that the log's file holds everything below `filed` for good.
    ///
    /// # Errors
    /// Those of a simulated memory; then there is no room.
    pub(super) fn publish(&mut self, filed: u64) -> io::Result<()> {
        debug_assert!(self.ring.filed() <= filed);
        if let Memory::Persistent(memory) = &self.ring.memory {
            // Before anything is overwritten: see `RingMemory::has_let_go`.
            memory.let_go(filed)?;
        }
        // First, so that a thread that waits for the file finds its records persistent.
        self.ring.persistent.0.fetch_max(filed, Release);
        // Release: the reads of the ring end before a writer sees that it has room.
        self.ring.filed.0.store(filed, Release);
        Ok(())
    }

    /// A range's offset in the ring, and its lengths around the wrap.
    fn part(&self, from: u64, to: u64) -> (usize, usize, usize) {
        let kept = block_floor(self.ring.filed());
        // A planted bug in `complete` may let this pass a hole.
        assert!(kept <= from && from <= to && to <= self.complete && to - from <= self.ring.size);
        let at = (from % self.ring.size) as usize;
        let length = (to - from) as usize;
        if let Memory::Persistent(memory) = &self.ring.memory {
            memory.charge_read(from, length);
        }
        let first = length.min(self.ring.size as usize - at);
        (at, first, length - first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wal::parse::RecordView;

    fn append(ring: &Ring, length: usize) -> Lsn {
        let slot = ring.draw(length);
        let (lsn, noop) = (slot.lsn(), RecordBuilder::sealed_noop(slot.lsn(), 1, length));
        slot.fill(&noop).unwrap();
        lsn
    }

    fn empty() -> (Arc<Ring>, Drain) {
        ring(8192, 1, Lsn(4096), &[]).unwrap()
    }

    #[test]
    fn a_hole_stops_the_watermark() {
        let (ring, mut drain) = empty();
        append(&ring, 48);
        let hole = ring.draw(40);
        append(&ring, 64);
        assert_eq!((drain.look(), ring.tail()), (4144, 4248));
        let noop = RecordBuilder::sealed_noop(hole.lsn(), 1, 40);
        hole.fill(&noop).unwrap();
        assert_eq!(drain.look(), 4248);
    }

    #[test]
    fn a_slot_dropped_unfilled_becomes_a_noop() {
        let (ring, mut drain) = empty();
        drop(ring.draw(72));
        assert_eq!(drain.look(), 4168);
        let mut bytes = [0; 72];
        drain.copy(4096, 4168, &mut bytes);
        let record = RecordView::parse(&bytes, Lsn(4096)).unwrap();
        assert_eq!((record.len(), record.epoch()), (72, 1));
    }

    #[test]
    fn a_panic_while_a_slot_is_open_leaves_a_noop() {
        let (ring, mut drain) = empty();
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _slot = ring.draw(40);
            panic!("before the slot is filled");
        }));
        assert!(panicked.is_err());
        assert_eq!(drain.look(), 4136);
    }

    #[test]
    fn a_slot_dropped_without_room_fails_the_log() {
        let (ring, mut drain) = empty();
        append(&ring, 4096);
        append(&ring, 4096);
        let slot = ring.draw(40);
        assert!(!slot.has_room());
        drop(slot);
        assert!(ring.failure.check().is_err());
        assert_eq!(drain.look(), 4096 + 8192);
    }

    #[test]
    fn room_comes_with_filed_blocks_only() {
        let (ring, mut drain) = empty();
        append(&ring, 4000);
        append(&ring, 4000);
        let slot = ring.draw(200);
        assert_eq!(slot.room_needs(), Lsn(8192));
        drain.look();
        drain.publish(4096 + 4000).unwrap();
        assert!(!slot.has_room());
        drain.publish(8192).unwrap();
        assert!(slot.has_room());
        slot.abandon();
    }

    #[test]
    fn a_wrapped_record_comes_back_whole() {
        let (ring, mut drain) = empty();
        append(&ring, 4096);
        append(&ring, 4000);
        drain.look();
        drain.publish(12192).unwrap();
        let lsn = append(&ring, 400);
        drain.look();
        let mut bytes = [0; 400];
        drain.copy(lsn.0, lsn.0 + 400, &mut bytes);
        assert_eq!(RecordView::parse(&bytes, lsn).unwrap().len(), 400);
        let parts = drain.blocks(8192, 12288).map(<[u8]>::len);
        assert_eq!(parts, [4096, 0]);
    }

    #[test]
    fn the_last_block_of_a_log_that_is_opened_is_kept() {
        let (_ring, drain) = ring(8192, 1, Lsn(8192 + 16), &[7; 16]).unwrap();
        let mut bytes = [0; 16];
        drain.copy(8192, 8208, &mut bytes);
        assert_eq!(bytes, [7; 16]);
    }
}
