//! Group commit: whoever needs the log durable writes for all.
//!
//! A thread that finds nobody writing becomes the leader, writes everything that is complete, its own records and
//! those of all others, publishes the new durable end and hands the lead on. Who comes while it writes waits, and the
//! next round takes everything that has gathered meanwhile. So a lone committer pays one device write and many
//! share one, and the device alone sets the pace. Whose turn it is, and when a round begins, is in `group.rs`.
//!
//! **What one round writes** are the blocks from the one `durable` falls in to the one `complete` falls in. Both may be
//! partly filled: the first is written again with the same bytes and more behind them, so that no tear can lose
//! what was durable; the last is filled up with zeros, because the bytes behind `complete` are still being written by
//! others. Rounds of up to [`ASIDE_BYTES`] are copied aside and go out as one write that is durable on return, the
//! cheapest commit there is. Larger ones are written from the ring where they lie, in at most four pieces (the ring
//! may wrap, the file may wrap, the last block is aside) and synced.
//!
//! **The first lap.** The file's space is allocated when it is made, but a block that was never written is marked so by most file
//! systems: writing it durably changes their own tables as well, which doubles what a commit takes. So a small round
//! that comes to such blocks writes zeros behind its records, many blocks at once, and the rounds after it find
//! them written. Nothing is at stake there: what lies between the end of the log and its limit is no part of it, and zeros
//! are no record.
//!
//! **Failure.** An error of the device, a full file system included (the file was allocated, so that is no lack
//! of space but a broken promise), fails the log for good: see `failure.rs`.
//!
//! No lock is held during I/O; being the leader is what keeps others out.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use terrace_block::{AlignedBuffer, BlockDevice, Write};

use super::buffer::{Drain, Ring};
use super::group::{Ended, Group, Pace};
use super::{BLOCK, Geometry, block_floor};
use crate::error::{Error, Result};
use crate::ids::Lsn;
use crate::planted::{Bug, planted};
use crate::stats::Latency;
use crate::stats::histogram::Histogram;

/// Rounds up to this size go out as one write.
const ASIDE_BYTES: u64 = 64 << 10;
/// How far a small round of the first lap writes ahead, at most.
const AHEAD_BYTES_MAX: u64 = 256 << 10;
/// It writes ahead one part in this many of the ring.
const AHEAD_SHARE: u64 = 8;
/// Pieces of one round, at most: ring wrap, file wrap, last block.
const PIECES: usize = 4;
/// How often a leader looks again for its own record to be complete before it writes what there is.
const LOOKS_MAX: u32 = 200;

/// Writes the ring to the device.
pub(super) struct Flusher {
    ring: Arc<Ring>,
    device: Arc<dyn BlockDevice>,
    geometry: Geometry,
    group: Group<Lead>,
    /// A small round that comes to blocks never written goes on to the next multiple of this.
    ahead: u64,
    flushes: AtomicU64,
    flushed_bytes: AtomicU64,
    /// From the start of a write until it was durable.
    writes: Histogram,
    /// Who opened the log. In a forked child nobody hands a lead back that was out at the fork.
    process: u32,
}

/// What the leader, and nobody else, may use.
struct Lead {
    drain: Drain,
    aside: AlignedBuffer,
    /// Below this all blocks have been written, as far as this process knows.
    written: u64,
}

impl Flusher {
    pub(super) fn new(
        ring: Arc<Ring>,
        drain: Drain,
        device: Arc<dyn BlockDevice>,
        geometry: Geometry,
    ) -> Self {
        let ahead = Self::ahead_bytes(ring.size());
        let aside = AlignedBuffer::zeroed((ASIDE_BYTES + ahead) as usize);
        let written = ring.durable().next_multiple_of(BLOCK);
        Self {
            ring,
            device,
            geometry,
            group: Group::new(Lead { drain, aside, written }),
            ahead,
            flushes: AtomicU64::new(0),
            flushed_bytes: AtomicU64::new(0),
            writes: Histogram::default(),
            process: std::process::id(),
        }
    }

    /// What it writes to.
    pub(super) fn device(&self) -> Arc<dyn BlockDevice> {
        Arc::clone(&self.device)
    }

    /// Bytes it takes beside a ring of `ring_bytes`.
    pub(super) const fn size_bytes(ring_bytes: u64) -> u64 {
        ASIDE_BYTES + Self::ahead_bytes(ring_bytes)
    }

    const fn ahead_bytes(ring_bytes: u64) -> u64 {
        let share = (ring_bytes / AHEAD_SHARE).next_multiple_of(BLOCK);
        if share < AHEAD_BYTES_MAX { share } else { AHEAD_BYTES_MAX }
    }

    /// Returns when everything below `to` is durable.
    ///
    /// # Errors
    /// The failure of the device if this thread met it, [`Error::Poisoned`] if another did before.
    pub(super) fn flush_to(&self, to: Lsn, pace: Pace) -> Result<()> {
        let to = to.0.min(self.ring.tail());
        if self.ring.durable() >= to {
            return Ok(());
        }
        if self.process != std::process::id() {
            self.ring.failure.set(format!("this process was forked by {}, which opened it", self.process));
            return self.ring.failure.check();
        }
        let is_over = || self.ring.durable() >= to || self.ring.failure.get().is_some();
        while self.ring.durable() < to {
            self.ring.failure.check()?;
            if let Some(lead) = self.group.join(to, pace, is_over) {
                Leading { flusher: self, lead: Some(lead), own: (to, pace), took: None }.round(to)?;
            }
        }
        Ok(())
    }

    /// Returns when nobody leads, so when no round is being written. The next leader looks at the failure first.
    pub(super) fn wait_for_leader(&self) {
        let own = (u64::MAX, Pace::Hurry);
        let lead = loop {
            if let Some(lead) = self.group.join(own.0, own.1, || false) {
                break lead;
            }
        };
        drop(Leading { flusher: self, lead: Some(lead), own, took: None });
    }

    /// Rounds written so far, and their bytes.
    pub(super) fn written(&self) -> (u64, u64) {
        (self.flushes.load(Relaxed), self.flushed_bytes.load(Relaxed))
    }

    /// How long they took.
    pub(super) fn latency(&self) -> Latency {
        self.writes.latency()
    }

    /// Writes the blocks that hold `from` to `to`, so that they are durable.
    fn write(&self, lead: &mut Lead, from: u64, to: u64) -> io::Result<()> {
        let (first, last, end) = (block_floor(from), block_floor(to), to.next_multiple_of(BLOCK));
        let is_small = end - first <= ASIDE_BYTES && self.geometry.contiguous(first) >= end - first;
        let end = if is_small { self.end_of_small(end, lead.written) } else { end };
        lead.written = lead.written.max(end);
        self.flushes.fetch_add(1, Relaxed);
        self.flushed_bytes.fetch_add(end - first, Relaxed);
        if is_small {
            lead.drain.copy(first, to, &mut lead.aside);
            lead.aside[(to - first) as usize..(end - first) as usize].fill(0);
            return self.write_through(first, &lead.aside[..(end - first) as usize]);
        }
        let mut pieces = Vec::with_capacity(PIECES);
        let mut lsn = first;
        for mut part in lead.drain.blocks(first, last) {
            while !part.is_empty() {
                let length = (part.len() as u64).min(self.geometry.contiguous(lsn));
                let (piece, rest) = part.split_at(length as usize);
                pieces.push(Write::new(self.geometry.offset(lsn), piece));
                (lsn, part) = (lsn + length, rest);
            }
        }
        if last < to {
            let block = &mut lead.aside[..BLOCK as usize];
            lead.drain.copy(last, to, block);
            block[(to - last) as usize..].fill(0);
            pieces.push(Write::new(self.geometry.offset(last), block));
        }
        match &pieces[..] {
            [one] => self.write_through(first, one.bytes),
            several => {
                self.device.write_batch(several)?;
                if planted(Bug::SkipLogSync) { Ok(()) } else { self.device.sync() }
            }
        }
    }

    /// Where a small round ends whose records end below `end`: there, unless it comes to blocks of the first lap that
    /// nobody has written yet. The lap ends where the log may end, as the first record is at the beginning of the ring.
    fn end_of_small(&self, end: u64, written: u64) -> u64 {
        let lap_end = self.geometry.capacity();
        if end <= written || end >= lap_end { end } else { end.next_multiple_of(self.ahead).min(lap_end) }
    }

    fn write_through(&self, lsn: u64, bytes: &[u8]) -> io::Result<()> {
        let offset = self.geometry.offset(lsn);
        if planted(Bug::SkipLogSync) {
            self.device.write_at(offset, bytes)
        } else {
            self.device.write_through_at(offset, bytes)
        }
    }
}

/// A thread that leads. However it ends, the lead goes on and those who were served wake.
struct Leading<'a> {
    flusher: &'a Flusher,
    lead: Option<Lead>,
    own: (u64, Pace),
    took: Option<Duration>,
}

impl Leading<'_> {
    /// One round: waits a moment for what is below `to`, then writes what is complete.
    fn round(&mut self, to: u64) -> Result<()> {
        let (flusher, lead) = (self.flusher, self.lead.as_mut().expect("taken back on drop only"));
        let from = flusher.ring.durable();
        let mut complete = lead.drain.look();
        // A record is filled within a microsecond of being drawn, unless its thread lost the processor.
        for look in 0..LOOKS_MAX {
            if complete >= to || flusher.ring.failure.get().is_some() {
                break;
            }
            if look < LOOKS_MAX / 2 {
                std::hint::spin_loop()
            } else {
                std::thread::yield_now()
            }
            complete = lead.drain.look();
        }
        flusher.ring.failure.check()?;
        if complete <= from {
            return Ok(());
        }
        let begun = Instant::now();
        let written = flusher.write(lead, from, complete);
        let took = begun.elapsed();
        self.took = Some(took);
        match written {
            Ok(()) => {
                lead.drain.publish(complete);
                flusher.writes.record(took);
            }
            Err(source) => {
                let file = flusher.device.name().to_owned();
                let offset = Some(flusher.geometry.offset(block_floor(from)));
                let error = Error::Io { operation: "write", file, offset, source };
                flusher.ring.failure.set(error.to_string());
                return Err(error);
            }
        }
        Ok(())
    }
}

impl Drop for Leading<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.flusher.ring.failure.set("a thread panicked while it wrote the log");
        }
        let ring = &self.flusher.ring;
        let ended = Ended { durable: ring.durable(), failed: ring.failure.get().is_some(), took: self.took };
        let lead = self.lead.take().expect("taken here only");
        self.flusher.group.leave(lead, self.own, ended);
    }
}
