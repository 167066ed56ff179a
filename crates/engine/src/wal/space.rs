//! Space in the log's file: capacity, cut and reservations.
//!
//! Recovery needs everything at and above the *cut*. The log is written in whole blocks, so the
//! limit is the cut's block plus one capacity:
//!
//! ```text
//!      tail + reserved + bytes + margin(class)  <=  floor(cut) + capacity
//! ```
//!
//! A thread reserves space *before* it latches anything, and never waits here. A commit may then
//! hold the gate, key locks and a grant, but no latch, ticket or timestamp. Without room it helps
//! the checkpoint or waits for it. Commits leave a margin for structure modifications. Those leave
//! a smaller one for the work that frees log.
//!
//! The sum is never too small: a reservation is added before the tail is read, and an append moves
//! the tail before it releases its reservation. It may be too large for a moment.
//!
//! Small commits avoid the shared sum. The threads of a slot share a *stock*, reserved in one
//! piece, and release what they appended when they refill it. All stocks are a thirty-second of the
//! log.

use std::sync::Arc;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Release, SeqCst},
};

use super::buffer::Ring;
use super::layout::{Geometry, Present};
use super::record::RECORD_ALIGNMENT;
use super::units::block_floor;
use crate::ids::Lsn;
use crate::threads::{Padded, thread_number};

/// Commits leave this fraction of the log free.
const COMMIT_MARGIN_FRACTION: u64 = 4;
/// Structure modifications leave this fraction of the log free.
const STRUCTURE_MARGIN_FRACTION: u64 = 8;
/// The largest reservation in eighths of the log: it must fit beside others, with room for the cut
/// to move.
const RESERVATION_EIGHTHS: u64 = 5;
/// Stocks; further threads share them.
const STOCKS: usize = 32;
/// All stocks together are at most this fraction of the log.
const STOCKS_FRACTION: u64 = 32;
/// A larger stock would save nothing more.
const STOCK_BYTES_MAX: u64 = 32 << 10;
/// A smaller stock would save too little.
const STOCK_BYTES_MIN: u64 = 2 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// A transaction, which can wait.
    Commit,
    /// A structure modification, for which a commit may wait.
    Structure,
    /// Work that frees log: checkpoint, cleaner, recovery.
    System,
}

#[derive(Debug)]
pub(super) struct Space {
    geometry: Arc<Present>,
    cut: Padded<AtomicU64>,
    reserved: Padded<AtomicU64>,
    stocks: Box<[Padded<Stock>]>,
}

/// Log space for the small commits of a slot's threads.
#[derive(Debug, Default)]
struct Stock {
    left: AtomicU64,
    /// Appended since the last refill, and still counted as reserved.
    spent: AtomicU64,
}

impl Space {
    pub(super) fn new(geometry: Arc<Present>, cut: Lsn) -> Self {
        Self {
            geometry,
            cut: Padded(AtomicU64::new(cut.0)),
            reserved: Padded(AtomicU64::new(0)),
            stocks: (0..STOCKS).map(|_| Padded::default()).collect(),
        }
    }

    fn capacity(&self) -> u64 {
        self.geometry.get().capacity()
    }

    /// The size of a full stock. It grows with the log.
    fn stock_bytes(&self) -> u64 {
        let bytes = (self.capacity() / STOCKS_FRACTION / STOCKS as u64).min(STOCK_BYTES_MAX);
        if bytes < STOCK_BYTES_MIN { 0 } else { bytes & !7 }
    }

    pub(super) fn cut(&self) -> Lsn {
        Lsn(self.cut.load(Acquire))
    }

    /// Frees the log below `cut`. Never moves back.
    pub(super) fn set_cut(&self, cut: Lsn) {
        self.cut.fetch_max(cut.0, Release);
    }

    pub(super) fn limit(&self) -> u64 {
        block_floor(self.cut().0) + self.capacity()
    }

    /// Bytes reserved and not yet appended, without stocks. Approximate while others reserve.
    pub(super) fn reserved(&self) -> u64 {
        let in_stock = |stock: &Padded<Stock>| stock.left.load(SeqCst) + stock.spent.load(SeqCst);
        let stocks = self.stocks.iter().map(in_stock).sum::<u64>();
        self.reserved.load(SeqCst).saturating_sub(stocks)
    }

    /// The largest reservation from a log of this geometry.
    pub(super) fn reservation_max(geometry: Geometry) -> u64 {
        geometry.capacity() / 8 * RESERVATION_EIGHTHS
    }

    pub(super) fn reserve(&self, ring: &Ring, bytes: u64, class: Class) -> Option<Reservation<'_>> {
        let bytes = bytes.checked_next_multiple_of(RECORD_ALIGNMENT as u64)?;
        let capacity = self.capacity();
        let margin = match class {
            Class::Commit => capacity / COMMIT_MARGIN_FRACTION,
            Class::Structure => capacity / STRUCTURE_MARGIN_FRACTION,
            Class::System => 0,
        };
        if bytes > capacity {
            return None;
        }
        let stock_bytes = self.stock_bytes();
        if class == Class::Commit
            && bytes <= stock_bytes / 4
            && let Some(reservation) = self.reserve_from_stock(ring, bytes, margin, stock_bytes)
        {
            return Some(reservation);
        }
        let before = self.reserved.fetch_add(bytes, SeqCst);
        let reservation = Reservation { space: self, stock: None, left: bytes };
        let fits = ring.tail() + before + bytes + margin <= self.limit();
        fits.then_some(reservation)
    }

    fn reserve_from_stock(
        &self,
        ring: &Ring,
        bytes: u64,
        margin: u64,
        stock_bytes: u64,
    ) -> Option<Reservation<'_>> {
        let stock = &*self.stocks[thread_number() as usize % STOCKS];
        let reservation = Reservation { space: self, stock: Some(stock), left: bytes };
        if stock.left.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(bytes)).is_ok() {
            return Some(reservation);
        }
        let spent = stock.spent.swap(0, SeqCst);
        let change = stock_bytes.wrapping_sub(spent);
        let reserved = self.reserved.fetch_add(change, SeqCst).wrapping_add(change);
        if ring.tail() + reserved + margin <= self.limit() {
            self.add_to(stock, stock_bytes - bytes);
            return Some(reservation);
        }
        self.reserved.fetch_sub(stock_bytes, SeqCst);
        std::mem::forget(reservation);
        None
    }

    /// Puts `bytes` into a stock. A surplus goes back to the sum, since no other thread could use
    /// it here.
    fn add_to(&self, stock: &Stock, bytes: u64) {
        let stock_bytes = self.stock_bytes();
        let left = stock.left.fetch_add(bytes, SeqCst) + bytes;
        let surplus = |left: u64| left.checked_sub(stock_bytes).filter(|&surplus| surplus > 0);
        if surplus(left).is_some()
            && let Ok(left) = stock.left.fetch_update(SeqCst, SeqCst, |left| Some(left - surplus(left)?))
        {
            self.reserved.fetch_sub(left - stock_bytes, SeqCst);
        }
    }
}

/// Reserved log space; dropping it returns the rest.
#[derive(Debug)]
#[must_use = "the space goes back when this is dropped"]
pub(crate) struct Reservation<'a> {
    space: &'a Space,
    /// The stock that it came from and returns to; none: the sum.
    stock: Option<&'a Stock>,
    left: u64,
}

impl Reservation<'_> {
    pub(crate) fn left(&self) -> u64 {
        self.left
    }

    /// Releases what an append used: the tail counts it now.
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
        Space::new(Arc::new(Present::new(Geometry::new(capacity).unwrap())), Lsn(cut))
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
        let slot = ring.draw(40);
        let noop = RecordBuilder::sealed_noop(slot.lsn(), 1, 40);
        slot.fill(&noop).unwrap();
        reservation.consume(40);
        assert_eq!((reservation.left(), space.reserved()), (56, 56));
    }

    #[test]
    fn small_commits_live_on_a_stock_and_the_sum_stays_right() {
        let (ring, _drain) = ring(1 << 20, 1, Lsn(4096), &[]).unwrap();
        let space = space(64 << 20, 4096);
        assert_eq!(space.stock_bytes(), STOCK_BYTES_MAX);
        for _ in 0..1000 {
            let mut reservation = space.reserve(&ring, 400, Class::Commit).unwrap();
            assert!(reservation.stock.is_some());
            let slot = ring.draw(104);
            let noop = RecordBuilder::sealed_noop(slot.lsn(), 1, 104);
            slot.fill(&noop).unwrap();
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
                // Takes the stock's content, as if it had been empty.
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
