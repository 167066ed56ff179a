//! The log's newest bytes in memory: a ring that many threads fill at once and one thread empties.
//!
//! ```text
//!            floor(durable)  durable        complete        tail
//!   ... reusable |--- kept ----|--- may be written --|- filling -|  not drawn yet ...
//! ```
//!
//! * A writer draws its place with one `fetch_add` on the tail and then fills it, in parallel with the others. While
//!   it does, a mark (`marks.rs`) tells that its place is a hole.
//! * *Complete* is the lowest mark, or the tail as it was before the marks were read: a contiguous watermark, never a
//!   maximum and never past a hole. Marks and tails are ends of records, so it always falls between two records.
//! * *Durable* is what the device holds. The block it falls in is kept, for it is written again with what follows.
//! * A place may be filled once the ring has room: what stood there a ring's length ago is below the block kept.
//!   The lowest unfilled place always gets room, because all below it is complete and can be written out, and no
//!   place is longer than the ring without one block.
//!
//! This is the only file of the log that contains unsafe code: the ring is shared memory whose disjoint parts have
//! different owners, which the borrow checker cannot see. A part is owned by
//! 1. the [`Place`] drawn for it, from the moment there is room until it is filled and the mark is cleared;
//! 2. from then on the [`Drain`], of which there is one, until it publishes a durable end beyond the part's block.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Release, SeqCst},
};

use terrace_block::AlignedBuffer;

use super::failure::Failure;
use super::marks::Marks;
use super::record::{HEADER_BYTES, RECORD_ALIGNMENT, RecordBuilder};
use super::{BLOCK, block_floor};
use crate::error::{Error, Result};
use crate::ids::Lsn;
use crate::planted::{Bug, planted};
use crate::threads::Padded;

/// Threads that can fill at once; more wait.
const FILLING_MAX: usize = 128;

/// The ring. Made with its [`Drain`] by [`ring`].
pub(super) struct Ring {
    tail: Padded<AtomicU64>,
    durable: Padded<AtomicU64>,
    filling: Marks<FILLING_MAX>,
    pub(super) failure: Failure,
    epoch: u32,
    start: *mut u8,
    size: u64,
    /// Owns what `start` points to; never touched again but to free it.
    _memory: AlignedBuffer,
}

// SAFETY: the bytes behind `start` are only accessed through `Place` and `Drain`, whose parts are disjoint by the two
// ownership rules at the head of this file; all else is atomic or thread-safe itself.
unsafe impl Send for Ring {}
// SAFETY: see `Send`.
unsafe impl Sync for Ring {}

/// A ring of `size` bytes (a power of two, at least two blocks) for records of `epoch`, whose tail and durable end are
/// `tail`; `last_block` are the bytes of the block it falls in, up to the tail.
pub(super) fn ring(size: usize, epoch: u32, tail: Lsn, last_block: &[u8]) -> Result<(Arc<Ring>, Drain)> {
    assert!(size.is_power_of_two() && size as u64 >= 2 * BLOCK, "a ring of {size} bytes");
    assert_eq!(last_block.len() as u64, tail.0 - block_floor(tail.0));
    let memory = AlignedBuffer::try_zeroed(size);
    let mut memory =
        memory.map_err(|source| Error::Memory { bytes: size as u64, what: "the log's buffer", source })?;
    let at = (block_floor(tail.0) % size as u64) as usize;
    memory[at..at + last_block.len()].copy_from_slice(last_block);
    let ring = Arc::new(Ring {
        tail: Padded(AtomicU64::new(tail.0)),
        durable: Padded(AtomicU64::new(tail.0)),
        filling: Marks::new(),
        failure: Failure::default(),
        epoch,
        start: memory.as_mut_ptr(),
        size: size as u64,
        _memory: memory,
    });
    let drain = Drain { ring: Arc::clone(&ring), complete: tail.0 };
    Ok((ring, drain))
}

impl Ring {
    /// The end of everything drawn.
    pub(super) fn tail(&self) -> u64 {
        self.tail.0.load(SeqCst)
    }

    /// The counter itself, for others who mark against it.
    pub(super) fn tail_counter(&self) -> &AtomicU64 {
        &self.tail.0
    }

    /// The end of what the device holds for good.
    pub(super) fn durable(&self) -> u64 {
        // Acquire: partner of `Drain::publish`.
        self.durable.0.load(Acquire)
    }

    /// Bytes of memory.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// The longest record that is sure to get room.
    pub(super) fn place_bytes_max(&self) -> usize {
        (self.size - BLOCK) as usize
    }

    /// How many places were drawn.
    pub(super) fn places(&self) -> u64 {
        self.filling.uses()
    }

    /// The epoch of its records.
    pub(super) fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Up to where everything drawn is filled. A lower bound: see [`Drain::look`].
    fn complete(&self) -> u64 {
        let tail = self.tail();
        if planted(Bug::WatermarkAsMaximum) { tail } else { self.filling.low(tail) }
    }

    /// Draws the next `bytes` of the log. From here until it is filled the place is a hole.
    pub(super) fn draw(&self, bytes: usize) -> Place<'_> {
        assert!(
            (HEADER_BYTES..=self.place_bytes_max()).contains(&bytes)
                && bytes.is_multiple_of(RECORD_ALIGNMENT),
            "a record of {bytes} bytes"
        );
        let mark = self.filling.set(&self.tail.0);
        let lsn = self.tail.0.fetch_add(bytes as u64, SeqCst);
        // The mark may lie far below, were this thread asleep in between; the ring could then run full of complete
        // bytes that none may write out. Raised, it is exact.
        self.filling.raise(mark, lsn);
        Place { ring: self, mark, lsn, bytes, open: true }
    }
}

/// A place in the log that its owner has yet to fill.
#[must_use = "an unfilled place stops the log"]
pub(super) struct Place<'a> {
    ring: &'a Ring,
    mark: usize,
    lsn: u64,
    bytes: usize,
    open: bool,
}

impl Place<'_> {
    pub(super) fn lsn(&self) -> Lsn {
        Lsn(self.lsn)
    }

    pub(super) fn end(&self) -> Lsn {
        Lsn(self.lsn + self.bytes as u64)
    }

    /// How far the log must be durable before there is room for this. Never above the place itself.
    pub(super) fn room_needs(&self) -> Lsn {
        Lsn((self.lsn + self.bytes as u64).saturating_sub(self.ring.size).next_multiple_of(BLOCK))
    }

    /// Whether [`Place::fill`] may be called.
    pub(super) fn has_room(&self) -> bool {
        self.ring.durable() >= self.room_needs().0
    }

    /// Fills the place with a sealed record of just its length.
    ///
    /// # Panics
    /// If there is no room yet, or the length is another.
    pub(super) fn fill(mut self, record: &[u8]) {
        assert!(self.has_room() && record.len() == self.bytes);
        self.copy_in(record);
    }

    /// Leaves the place a hole for good: the log has failed and nothing is written any more.
    pub(super) fn abandon(mut self) {
        self.open = false;
    }

    fn copy_in(&mut self, record: &[u8]) {
        let at = (self.lsn % self.ring.size) as usize;
        let (first, rest) = record.split_at(record.len().min(self.ring.size as usize - at));
        // SAFETY: both destinations are inside the ring (`at < size`, `first` ends at its end at the latest, `rest` is
        // shorter than the ring) and are the bytes of this place, which no other place shares as LSNs are drawn once.
        // What aliases them a ring's length below is given up by the drain: `has_room` was seen, whose Acquire load of
        // `durable` pairs with the Release in `Drain::publish`. What aliases them above has no room before this is
        // durable, so not before the mark is cleared. The source is a slice of other memory: nothing gives out a
        // slice of this place's bytes before the mark is cleared.
        unsafe {
            self.ring.start.add(at).copy_from_nonoverlapping(first.as_ptr(), first.len());
            self.ring.start.copy_from_nonoverlapping(rest.as_ptr(), rest.len());
        }
        self.open = false;
        self.ring.filling.clear(self.mark);
    }
}

impl Drop for Place<'_> {
    /// A thread that drew a place and cannot fill it fills a no-op; if not even that is possible the log has failed.
    fn drop(&mut self) {
        if !self.open {
            return;
        }
        if self.has_room() {
            self.copy_in(&RecordBuilder::sealed_noop(Lsn(self.lsn), self.ring.epoch, self.bytes));
        } else {
            self.ring.failure.set("a thread gave up its place in the log before there was room to fill it");
        }
    }
}

/// The right to read what is complete and to say what is durable. There is one for each ring.
pub(super) struct Drain {
    ring: Arc<Ring>,
    /// The highest that `Ring::complete` ever said. Later it may say less, when a thread that was asleep publishes a
    /// mark it took long ago; what was complete stays so.
    complete: u64,
}

impl Drain {
    /// Looks up to where all is complete.
    pub(super) fn look(&mut self) -> u64 {
        self.complete = self.complete.max(self.ring.complete());
        self.complete
    }

    /// The whole blocks from `from` to `to`, both of them multiples of the block size, not below the block that
    /// `durable` falls in and not beyond what was seen complete. Two slices, for the ring may wrap between them.
    pub(super) fn blocks(&self, from: u64, to: u64) -> [&[u8]; 2] {
        assert!(from.is_multiple_of(BLOCK) && to.is_multiple_of(BLOCK));
        let (at, first, rest) = self.part(from, to);
        // SAFETY: `part` has checked that the range is inside the ring and this drain's own: complete, so every writer
        // of it cleared its mark with Release, seen with Acquire; not below the durable block, so no place above has
        // room for it until `publish`, which needs `&mut self` and so ends these borrows.
        unsafe {
            [
                std::slice::from_raw_parts(self.ring.start.add(at), first),
                std::slice::from_raw_parts(self.ring.start, rest),
            ]
        }
    }

    /// Copies the bytes from `from` to `to`, a range as for [`Drain::blocks`] but of any bytes.
    pub(super) fn copy(&self, from: u64, to: u64, target: &mut [u8]) {
        let (at, first, rest) = self.part(from, to);
        let target = &mut target[..first + rest];
        // SAFETY: as in `blocks`, `part` has checked the range; `target` is exactly as long, and exclusively borrowed.
        unsafe {
            self.ring.start.add(at).copy_to_nonoverlapping(target.as_mut_ptr(), first);
            self.ring.start.copy_to_nonoverlapping(target[first..].as_mut_ptr(), rest);
        }
    }

    /// Says that everything below `durable` is on the device.
    pub(super) fn publish(&mut self, durable: u64) {
        debug_assert!(self.ring.durable() <= durable);
        // Release: the reads of the ring are over before a writer learns that it has room.
        self.ring.durable.0.store(durable, Release);
    }

    /// Where in the ring a range begins, and how long it is before and after the ring wraps.
    fn part(&self, from: u64, to: u64) -> (usize, usize, usize) {
        let kept = block_floor(self.ring.durable());
        // A planted bug in `complete` lets this pass over a hole, whose bytes then are whatever the race leaves there.
        assert!(kept <= from && from <= to && to <= self.complete && to - from <= self.ring.size);
        let at = (from % self.ring.size) as usize;
        let length = (to - from) as usize;
        let first = length.min(self.ring.size as usize - at);
        (at, first, length - first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wal::parse::RecordView;

    fn append(ring: &Ring, length: usize) -> Lsn {
        let place = ring.draw(length);
        let (lsn, noop) = (place.lsn(), RecordBuilder::sealed_noop(place.lsn(), 1, length));
        place.fill(&noop);
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
        hole.fill(&noop);
        assert_eq!(drain.look(), 4248);
    }

    #[test]
    fn a_place_dropped_unfilled_becomes_a_noop() {
        let (ring, mut drain) = empty();
        drop(ring.draw(72));
        assert_eq!(drain.look(), 4168);
        let mut bytes = [0; 72];
        drain.copy(4096, 4168, &mut bytes);
        let record = RecordView::parse(&bytes, Lsn(4096)).unwrap();
        assert_eq!((record.len(), record.epoch()), (72, 1));
    }

    #[test]
    fn a_panic_while_a_place_is_open_leaves_a_noop() {
        let (ring, mut drain) = empty();
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _place = ring.draw(40);
            panic!("before the place is filled");
        }));
        assert!(panicked.is_err());
        assert_eq!(drain.look(), 4136);
    }

    #[test]
    fn a_place_dropped_without_room_fails_the_log() {
        let (ring, mut drain) = empty();
        append(&ring, 4096);
        append(&ring, 4096);
        let place = ring.draw(40);
        assert!(!place.has_room());
        drop(place);
        assert!(ring.failure.check().is_err());
        assert_eq!(drain.look(), 4096 + 8192);
    }

    #[test]
    fn room_comes_with_durable_blocks_only() {
        let (ring, mut drain) = empty();
        append(&ring, 4000);
        append(&ring, 4000);
        let place = ring.draw(200);
        assert_eq!(place.room_needs(), Lsn(8192));
        drain.look();
        drain.publish(4096 + 4000);
        assert!(!place.has_room());
        drain.publish(8192);
        assert!(place.has_room());
        place.abandon();
    }

    #[test]
    fn a_wrapped_record_comes_back_whole() {
        let (ring, mut drain) = empty();
        append(&ring, 4096);
        append(&ring, 4000);
        drain.look();
        drain.publish(12192);
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
