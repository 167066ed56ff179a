//! Work in flight, which the log cut must not pass.
//!
//! A thread takes a ticket *before* it draws its first LSN. It holds it until its last record is
//! persistent (a commit), or its changes are in all pages (a structure modification). The ticket is
//! a mark (`marks.rs`) at the tail on entry. The floor is the lowest of tail and tickets.
//!
//! A buffered commit leaves a pending entry with its end instead of waiting. The mark is cleared
//! after the entry is listed, and the floor reads the marks first, so it finds one or the other.
//! Entries with close ends are merged, which bounds the list and cuts less.

use std::collections::VecDeque;

use parking_lot::Mutex;

use super::buffer::Ring;
use super::marks::Marks;
use crate::ids::Lsn;
use crate::planted::{Bug, planted};

/// Tickets at a time; further threads wait.
const TICKETS_MAX: usize = 256;
/// Pending entries with ends in one such range are merged.
const MERGE_BYTES: u64 = 64 << 10;

#[derive(Debug)]
pub(super) struct Tickets {
    marks: Marks<TICKETS_MAX>,
    /// In ascending order of their ends.
    pending: Mutex<VecDeque<Pending>>,
}

/// Work from `low` on ends once the log is persistent up to `end`.
#[derive(Debug)]
struct Pending {
    low: u64,
    end: u64,
}

impl Tickets {
    pub(super) fn new() -> Self {
        Self { marks: Marks::new(), pending: Mutex::new(VecDeque::new()) }
    }

    pub(super) fn enter(&self, ring: &Ring) -> Ticket<'_> {
        Ticket { tickets: self, slot: self.marks.set(ring.tail_counter()) }
    }

    /// The lowest LSN in flight, or the tail.
    pub(super) fn floor(&self, ring: &Ring) -> Lsn {
        // The tail is read before the marks: see `marks.rs`.
        let tail = ring.tail();
        if planted(Bug::CutPastCommitInFlight) {
            return Lsn(tail);
        }
        let low = self.marks.low(tail);
        let mut pending = self.pending.lock();
        drop_persistent(&mut pending, ring.persistent());
        Lsn(pending.iter().map(|entry| entry.low).fold(low, u64::min))
    }

    fn retire(&self, persistent: u64, low: u64, end: u64) {
        let mut pending = self.pending.lock();
        drop_persistent(&mut pending, persistent);
        match pending.back_mut() {
            // Kept until the higher of the two is persistent.
            Some(last) if end <= last.end || end / MERGE_BYTES == last.end / MERGE_BYTES => {
                last.end = last.end.max(end);
                last.low = last.low.min(low);
            }
            _ => pending.push_back(Pending { low, end }),
        }
    }
}

fn drop_persistent(pending: &mut VecDeque<Pending>, persistent: u64) {
    while pending.front().is_some_and(|entry| entry.end <= persistent) {
        pending.pop_front();
    }
}

/// Work in flight; dropping it ends the work.
#[derive(Debug)]
#[must_use = "the work counts as finished when this is dropped"]
pub(crate) struct Ticket<'a> {
    tickets: &'a Tickets,
    slot: usize,
}

impl Ticket<'_> {
    /// A lower bound of this work's LSNs.
    pub(crate) fn low(&self) -> Lsn {
        Lsn(self.tickets.marks.get(self.slot))
    }

    /// Ends the work once the log is persistent up to `end`.
    pub(super) fn retire(self, ring: &Ring, end: Lsn) {
        let persistent = ring.persistent();
        if persistent < end.0 {
            self.tickets.retire(persistent, self.low().0, end.0);
        }
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.tickets.marks.clear(self.slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wal::buffer::ring;
    use crate::wal::record::RecordBuilder;

    fn append(ring: &Ring, length: usize) -> Lsn {
        let slot = ring.draw(length);
        let (end, noop) = (slot.end(), RecordBuilder::sealed_noop(slot.lsn(), 1, length));
        slot.fill(&noop).unwrap();
        end
    }

    #[test]
    fn the_floor_is_the_oldest_ticket() {
        let (ring, _drain) = ring(1 << 16, 1, Lsn(4096), &[]).unwrap();
        let tickets = Tickets::new();
        append(&ring, 40);
        let first = tickets.enter(&ring);
        append(&ring, 40);
        let second = tickets.enter(&ring);
        append(&ring, 40);
        assert_eq!(tickets.floor(&ring), Lsn(4136));
        assert_eq!(first.low(), Lsn(4136));
        drop(first);
        assert_eq!(tickets.floor(&ring), Lsn(4176));
        drop(second);
        assert_eq!(tickets.floor(&ring), Lsn(4216));
    }

    #[test]
    fn a_retired_ticket_counts_until_its_end_is_durable() {
        let (ring, mut drain) = ring(1 << 16, 1, Lsn(4096), &[]).unwrap();
        let tickets = Tickets::new();
        let ticket = tickets.enter(&ring);
        let end = append(&ring, 40);
        append(&ring, 40);
        ticket.retire(&ring, end);
        assert_eq!(tickets.floor(&ring), Lsn(4096));
        drain.look();
        drain.publish(end.0 - 8).unwrap();
        assert_eq!(tickets.floor(&ring), Lsn(4096));
        drain.publish(end.0).unwrap();
        assert_eq!(tickets.floor(&ring), Lsn(4176));
        tickets.enter(&ring).retire(&ring, end);
        assert!(tickets.pending.lock().is_empty());
    }

    #[test]
    fn ends_close_together_or_out_of_order_are_merged_to_the_safe_side() {
        let (ring, mut drain) = ring(1 << 20, 1, Lsn(4096), &[]).unwrap();
        let tickets = Tickets::new();
        let late = tickets.enter(&ring);
        for _ in 0..1000 {
            let ticket = tickets.enter(&ring);
            let end = append(&ring, 400);
            ticket.retire(&ring, end);
        }
        assert!(tickets.pending.lock().len() <= 400_000 / MERGE_BYTES as usize + 2);
        late.retire(&ring, Lsn(5000));
        drain.look();
        drain.publish(MERGE_BYTES * 2).unwrap();
        assert_eq!(tickets.floor(&ring), Lsn(4096));
        drain.publish(ring.tail()).unwrap();
        assert_eq!(tickets.floor(&ring).0, ring.tail());
    }
}
