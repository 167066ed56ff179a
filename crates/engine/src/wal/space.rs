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
//!
//! Small commits do not go to the sum each: the threads of a slot share a *stock*, set aside in one piece, and give
//! back what they have appended when they fill it up. So the sum is too large by a stock of each slot at most, a
//! thirty-second of the log in all.

use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Release, SeqCst},
};

use super::buffer::Ring;
use super::record::RECORD_ALIGNMENT;
use super::{Geometry, block_floor};
use crate::ids::Lsn;
use crate::threads::{Padded, thread_number};

/// Commits leave this fraction of the log free.
const COMMIT_MARGIN_FRACTION: u64 = 4;
/// Structure modifications leave this fraction of the log free.
const STRUCTURE_MARGIN_FRACTION: u64 = 8;
/// One reservation is at most this many eighths of the log, so that it can be had while others hold theirs and the
/// cut still has some way to go.
const RESERVATION_EIGHTHS: u64 = 5;
/// Stocks. Threads beyond share.
const STOCKS: usize = 32;
/// All stocks together are at most this fraction of the log.
const STOCKS_FRACTION: u64 = 32;
/// A larger stock would save nothing more.
const STOCK_BYTES_MAX: u64 = 32 << 10;
/// A smaller one would save too little.
const STOCK_BYTES_MIN: u64 = 2 << 10;

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
    stocks: Box<[Padded<Stock>]>,
    stock_bytes: u64,
}

/// Log space set aside for the small commits of a slot's threads.
#[derive(Debug, Default)]
struct Stock {
    left: AtomicU64,
    /// Appended since the stock was last filled up, and still counted as reserved.
    spent: AtomicU64,
}

impl Space {
    pub(super) fn new(geometry: Geometry, cut: Lsn) -> Self {
        let stock_bytes = (geometry.capacity() / STOCKS_FRACTION / STOCKS as u64).min(STOCK_BYTES_MAX);
        Self {
            geometry,
            cut: Padded(AtomicU64::new(cut.0)),
            reserved: Padded(AtomicU64::new(0)),
            stocks: (0..STOCKS).map(|_| Padded::default()).collect(),
            stock_bytes: if stock_bytes < STOCK_BYTES_MIN { 0 } else { stock_bytes & !7 },
        }
    }

    pub(super) fn cut(&self) -> Lsn {
        Lsn(self.cut.load(Acquire))
    }

    /// Frees what is below `cut`. Never moves back.
    pub(super) fn set_cut(&self, cut: Lsn) {
        self.cut.fetch_max(cut.0, Release);
    }

    /// Nothing may be appended beyond this.
    pub(super) fn limit(&self) -> u64 {
        block_floor(self.cut().0) + self.geometry.capacity()
    }

    /// Bytes set aside and not yet appended, stocks left out. Not exact while others reserve.
    pub(super) fn reserved(&self) -> u64 {
        let in_stock = |stock: &Padded<Stock>| stock.left.load(SeqCst) + stock.spent.load(SeqCst);
        let stocks = self.stocks.iter().map(in_stock).sum::<u64>();
        self.reserved.load(SeqCst).saturating_sub(stocks)
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
        if class == Class::Commit
            && bytes <= self.stock_bytes / 4
            && let Some(reservation) = self.reserve_from_stock(ring, bytes, margin)
        {
            return Some(reservation);
        }
        let before = self.reserved.fetch_add(bytes, SeqCst);
        let reservation = Reservation { space: self, stock: None, left: bytes };
        let fits = ring.tail() + before + bytes + margin <= self.limit();
        fits.then_some(reservation)
    }

    fn reserve_from_stock(&self, ring: &Ring, bytes: u64, margin: u64) -> Option<Reservation<'_>> {
        let stock = &*self.stocks[thread_number() as usize % STOCKS];
        let reservation = Reservation { space: self, stock: Some(stock), left: bytes };
        if stock.left.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(bytes)).is_ok() {
            return Some(reservation);
        }
        let spent = stock.spent.swap(0, SeqCst);
        let change = self.stock_bytes.wrapping_sub(spent);
        let reserved = self.reserved.fetch_add(change, SeqCst).wrapping_add(change);
        if ring.tail() + reserved + margin <= self.limit() {
            self.add_to(stock, self.stock_bytes - bytes);
            return Some(reservation);
        }
        self.reserved.fetch_sub(self.stock_bytes, SeqCst);
        std::mem::forget(reservation);
        None
    }

    /// Puts `bytes` into a stock. What is too much for one, because threads have filled it up at the same time or give
    /// back what they have not used, goes back to the sum: nobody else can use it, and they might never again.
    fn add_to(&self, stock: &Stock, bytes: u64) {
        let left = stock.left.fetch_add(bytes, SeqCst) + bytes;
        let surplus = |left: u64| left.checked_sub(self.stock_bytes).filter(|&surplus| surplus > 0);
        if surplus(left).is_some()
            && let Ok(left) = stock.left.fetch_update(SeqCst, SeqCst, |left| Some(left - surplus(left)?))
        {
            self.reserved.fetch_sub(left - self.stock_bytes, SeqCst);
        }
    }
}

/// Log space set aside. What is not used goes back when it is dropped.
#[derive(Debug)]
#[must_use = "the space goes back when this is dropped"]
pub(crate) struct Reservation<'a> {
    space: &'a Space,
    /// Where it came from and what is left goes back to; none = the sum itself.
    stock: Option<&'a Stock>,
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
        match self.stock {
            Some(stock) => stock.spent.fetch_add(bytes, SeqCst),
            None => self.space.reserved.fetch_sub(bytes, SeqCst),
        };
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if self.left > 0 {
            match self.stock {
                Some(stock) => self.space.add_to(stock, self.left),
                None => _ = self.space.reserved.fetch_sub(self.left, SeqCst),
            }
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
    fn small_commits_live_on_a_stock_and_the_sum_stays_right() {
        let (ring, _drain) = ring(1 << 20, 1, Lsn(4096), &[]).unwrap();
        let space = space(64 << 20, 4096);
        assert_eq!(space.stock_bytes, STOCK_BYTES_MAX);
        for _ in 0..1000 {
            let mut reservation = space.reserve(&ring, 400, Class::Commit).unwrap();
            assert!(reservation.stock.is_some());
            let place = ring.draw(104);
            let noop = RecordBuilder::sealed_noop(place.lsn(), 1, 104);
            place.fill(&noop);
            reservation.consume(104);
            assert_eq!(space.reserved(), 296);
        }
        assert_eq!(space.reserved(), 0);
        let (sum, appended) = (space.reserved.load(SeqCst), ring.tail() - 4096);
        assert_eq!(appended, 104_000);
        assert!(sum <= 2 * STOCK_BYTES_MAX, "{sum} bytes are kept");
    }

    #[test]
    fn a_stock_that_many_have_filled_up_keeps_no_more_than_one() {
        let (ring, _drain) = ring(8192, 1, Lsn(4096), &[]).unwrap();
        let space = space(64 << 20, 4096);
        let held: Vec<_> = (0..100)
            .map(|_| {
                // As if it had been empty for all of them.
                let stock = &space.stocks[thread_number() as usize % STOCKS];
                let taken = stock.left.swap(0, SeqCst);
                let reservation = space.reserve(&ring, 400, Class::Commit).unwrap();
                space.add_to(stock, taken);
                reservation
            })
            .collect();
        drop(held);
        let sum = space.reserved.load(SeqCst);
        assert!(sum <= STOCK_BYTES_MAX, "{sum} bytes are kept");
        assert_eq!(space.reserved(), 0);
    }

    #[test]
    fn a_stock_that_cannot_be_filled_up_leaves_no_claim() {
        let (ring, _drain) = ring(8192, 1, Lsn(4096), &[]).unwrap();
        let space = space(2 << 20, 4096);
        let most = space.reserve(&ring, (2 << 20) / 4 * 3 - 64, Class::Commit).unwrap();
        let last = space.reserve(&ring, 64, Class::Commit).unwrap();
        assert!(last.stock.is_none() && space.reserve(&ring, 8, Class::Commit).is_none());
        drop((most, last));
        assert_eq!((space.reserved(), space.reserved.load(SeqCst)), (0, 0));
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
