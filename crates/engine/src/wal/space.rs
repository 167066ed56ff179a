//! How much of the log's file may be filled, and who has a claim on it.
//!
//! The file is a ring too: what is at and above the *cut* is needed by recovery and must not be overwritten. As the
//! log is written in whole blocks, the limit is the block the cut falls in, one capacity later.
//!
//! ```text
//!      tail + reserved + bytes + margin(class)  <=  floor(cut) + capacity
//! ```
//!
//! A thread reserves what it will append *before* it latches anything, and never waits here: if there is no room it is
//! told so, and lets go of everything before it helps the checkpoint or waits for it. Commits leave a margin, so that
//! the structure modifications they turn out to need find room when other commits no longer do; those leave a
//! smaller one, so that the work that frees log (checkpoint, cleaner, recovery) always does.
//!
//! The sum is never too small: a reservation is added before the tail is read, and an append moves the tail before
//! it gives its reservation back. It may be too large for a moment, and a reservation fail that would have fit.

use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Release, SeqCst},
};

use super::buffer::Ring;
use super::marks::Padded;
use super::record::RECORD_ALIGNMENT;
use super::{Geometry, block_floor};
use crate::ids::Lsn;

/// Commits leave this fraction of the log free.
const COMMIT_MARGIN_FRACTION: u64 = 4;
/// Structure modifications leave this fraction of the log free.
const STRUCTURE_MARGIN_FRACTION: u64 = 8;
/// One reservation is at most this many eighths of the log, so that it can be had while others hold theirs and the
/// cut still has some way to go.
const RESERVATION_EIGHTHS: u64 = 5;

/// Who asks for log space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// A transaction, which can wait.
    Commit,
    /// A structure modification, which a commit under way may be waiting for.
    Structure,
    /// Work that frees log: checkpoint, cleaner, recovery.
    System,
}

/// Cut, capacity and reservations.
#[derive(Debug)]
pub(super) struct Space {
    geometry: Geometry,
    cut: Padded<AtomicU64>,
    reserved: Padded<AtomicU64>,
}

impl Space {
    pub(super) fn new(geometry: Geometry, cut: Lsn) -> Self {
        Self { geometry, cut: Padded(AtomicU64::new(cut.0)), reserved: Padded(AtomicU64::new(0)) }
    }

    pub(super) fn cut(&self) -> Lsn {
        Lsn(self.cut.0.load(Acquire))
    }

    /// Frees what is below `cut`. Never moves back.
    pub(super) fn set_cut(&self, cut: Lsn) {
        self.cut.0.fetch_max(cut.0, Release);
    }

    /// Nothing may be appended beyond this.
    pub(super) fn limit(&self) -> u64 {
        block_floor(self.cut().0) + self.geometry.capacity()
    }

    pub(super) fn reserved(&self) -> u64 {
        self.reserved.0.load(SeqCst)
    }

    /// The most that one reservation can be.
    pub(super) fn reservation_max(&self) -> u64 {
        self.geometry.capacity() / 8 * RESERVATION_EIGHTHS
    }

    /// Sets `bytes` aside for the caller, or says that there is no room.
    pub(super) fn reserve(&self, ring: &Ring, bytes: u64, class: Class) -> Option<Reservation<'_>> {
        let bytes = bytes.checked_next_multiple_of(RECORD_ALIGNMENT as u64)?;
        let margin = match class {
            Class::Commit => self.geometry.capacity() / COMMIT_MARGIN_FRACTION,
            Class::Structure => self.geometry.capacity() / STRUCTURE_MARGIN_FRACTION,
            Class::System => 0,
        };
        if bytes > self.geometry.capacity() {
            return None;
        }
        let before = self.reserved.0.fetch_add(bytes, SeqCst);
        let reservation = Reservation { space: self, left: bytes };
        let fits = ring.tail() + before + bytes + margin <= self.limit();
        fits.then_some(reservation)
    }
}

/// Log space set aside. What is not used goes back when it is dropped.
#[derive(Debug)]
#[must_use = "the space goes back when this is dropped"]
pub(crate) struct Reservation<'a> {
    space: &'a Space,
    left: u64,
}

impl Reservation<'_> {
    /// Bytes not yet used.
    pub(crate) fn left(&self) -> u64 {
        self.left
    }

    /// Gives back what an append has used: the tail counts it now.
    pub(super) fn consume(&mut self, bytes: u64) {
        self.left -= bytes;
        self.space.reserved.0.fetch_sub(bytes, SeqCst);
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if self.left > 0 {
            self.space.reserved.0.fetch_sub(self.left, SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wal::buffer::ring;
    use crate::wal::record::RecordBuilder;

    fn space(capacity: u64, cut: u64) -> Space {
        Space::new(Geometry::new(capacity).unwrap(), Lsn(cut))
    }

    #[test]
    fn commits_leave_a_margin_that_the_system_may_use() {
        let (ring, _drain) = ring(8192, 1, Lsn(4096), &[]).unwrap();
        let space = space(65536, 4096);
        assert!(space.reserve(&ring, 65536 - 16384 + 8, Class::Commit).is_none());
        let commit = space.reserve(&ring, 65536 - 16384, Class::Commit).unwrap();
        assert!(space.reserve(&ring, 8, Class::Commit).is_none());
        let system = space.reserve(&ring, 16384, Class::System).unwrap();
        assert!(space.reserve(&ring, 8, Class::System).is_none());
        drop((commit, system));
        assert_eq!(space.reserved(), 0);
    }

    #[test]
    fn the_block_of_the_cut_is_never_given_out() {
        let (ring, _drain) = ring(8192, 1, Lsn(8192), &[]).unwrap();
        let space = space(8192, 8184);
        assert_eq!(space.limit(), 12288);
        assert!(space.reserve(&ring, 4104, Class::System).is_none());
        space.set_cut(Lsn(8192));
        assert!(space.reserve(&ring, 4104, Class::System).is_some());
        space.set_cut(Lsn(4096));
        assert_eq!(space.cut(), Lsn(8192));
    }

    #[test]
    fn a_reservation_moves_into_the_tail() {
        let (ring, _drain) = ring(8192, 1, Lsn(4096), &[]).unwrap();
        let space = space(8192, 4096);
        let mut reservation = space.reserve(&ring, 95, Class::System).unwrap();
        assert_eq!(reservation.left(), 96);
        let place = ring.draw(40);
        let noop = RecordBuilder::sealed_noop(place.lsn(), 1, 40);
        place.fill(&noop);
        reservation.consume(40);
        assert_eq!((reservation.left(), space.reserved()), (56, 56));
    }

    #[test]
    fn absurd_sizes_are_refused() {
        let (ring, _drain) = ring(8192, 1, Lsn(4096), &[]).unwrap();
        let space = space(8192, 4096);
        for bytes in [u64::MAX, u64::MAX - 7, 1 << 40] {
            assert!(space.reserve(&ring, bytes, Class::System).is_none());
        }
        assert_eq!(space.reserved(), 0);
    }
}
