//! Group commit: a thread that needs the log filed writes for all.
//!
//! A thread that finds no leader becomes one. It writes everything complete, publishes the new
//! filed end and passes the lead on. Threads that come meanwhile wait for the next round. So a lone
//! committer pays one device write, and many share one. `group.rs` decides on turns.
//!
//! **One round** writes the blocks from that of `filed` to that of `complete`. The first is
//! rewritten with the same bytes and more, so no tear can lose durable bytes. The rest of the last
//! is zeroed, because other threads still fill it. Rounds of up to [`ASIDE_BYTES`] are copied into
//! one write that is durable on return, the cheapest commit. Larger ones are written from the ring,
//! in at most four pieces (ring wrap, file wrap, last block), and synced.
//!
//! **The first lap.** Most file systems mark preallocated blocks as unwritten. A first durable
//! write to them doubles a commit's cost. So a small round that reaches such blocks writes many
//! blocks of zeros behind its records. That is safe: no log is between its end and its limit, and
//! zeros are no record.
//!
//! **Failure.** An error of the device fails the log for good (`failure.rs`), even a full file
//! system, since the space was allocated. No lock is held during I/O; the lead excludes other
//! writers.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use terrace_io::stats::Histogram;
use terrace_io::{AlignedBuffer, BlockDevice, Write};

use super::buffer::{Drain, Ring};
use super::group::{Ended, Group, Pace};
use super::layout::{Geometry, Present};
use super::scan;
use super::units::{BLOCK, block_floor};
use crate::error::{Error, Result};
use crate::ids::Lsn;
use crate::planted::{Bug, planted};
use crate::stats::Latency;
use crate::threads::thread_number;

/// Rounds up to this size are one write.
const ASIDE_BYTES: u64 = 64 << 10;
/// Most bytes that a small round of the first lap writes ahead.
const AHEAD_BYTES_MAX: u64 = 256 << 10;
/// Write-ahead bytes as a fraction of the ring.
const AHEAD_SHARE: u64 = 8;
/// Most pieces of one round: ring wrap, file wrap, last block.
const PIECES: usize = 4;
/// Most checks for the leader's own record, before it writes.
const LOOKS_MAX: u32 = 200;

pub(super) struct Flusher {
    ring: Arc<Ring>,
    device: Arc<dyn BlockDevice>,
    geometry: Arc<Present>,
    group: Group<Lead>,
    /// Small rounds write ahead to the next multiple of this.
    ahead: u64,
    flushes: AtomicU64,
    flushed_bytes: AtomicU64,
    /// From the start of a write until it was durable.
    writes: Histogram,
    /// The process that opened the log. In a forked child no thread returns a lead held at the
    /// fork.
    process: u32,
}

struct Lead {
    drain: Drain,
    aside: AlignedBuffer,
    /// All blocks below this were written, as far as this process knows.
    written: u64,
    /// A superblock is about to name it. Rounds write into both.
    next: Option<Geometry>,
}

impl Flusher {
    pub(super) fn new(
        ring: Arc<Ring>,
        drain: Drain,
        device: Arc<dyn BlockDevice>,
        geometry: Arc<Present>,
    ) -> Self {
        let ahead = Self::ahead_bytes(ring.size());
        let aside = AlignedBuffer::zeroed((ASIDE_BYTES + ahead) as usize);
        let written = ring.filed().next_multiple_of(BLOCK);
        Self {
            ring,
            device,
            geometry,
            group: Group::new(Lead { drain, aside, written, next: None }),
            ahead,
            flushes: AtomicU64::new(0),
            flushed_bytes: AtomicU64::new(0),
            writes: Histogram::default(),
            process: std::process::id(),
        }
    }

    pub(super) fn name(&self) -> &str {
        self.device.name()
    }

    pub(super) fn device(&self) -> Arc<dyn BlockDevice> {
        Arc::clone(&self.device)
    }

    pub(super) const fn size_bytes(ring_bytes: u64) -> u64 {
        ASIDE_BYTES + Self::ahead_bytes(ring_bytes)
    }

    const fn ahead_bytes(ring_bytes: u64) -> u64 {
        let share = (ring_bytes / AHEAD_SHARE).next_multiple_of(BLOCK);
        if share < AHEAD_BYTES_MAX { share } else { AHEAD_BYTES_MAX }
    }

    /// Waits until the log's file holds everything below `to` for good.
    ///
    /// # Errors
    /// The failure of the device if this thread met it, [`Error::Poisoned`] if another did before.
    pub(super) fn file_to(&self, to: Lsn, pace: Pace) -> Result<()> {
        let to = to.0.min(self.ring.tail());
        if self.ring.filed() >= to {
            return Ok(());
        }
        self.check_process()?;
        let is_over = || self.ring.filed() >= to || self.ring.failure.get().is_some();
        while self.ring.filed() < to {
            self.ring.failure.check()?;
            if let Some(lead) = self.group.join(to, pace, is_over) {
                Leading { flusher: self, lead: Some(lead), own: (to, pace), took: None }.round(to)?;
            }
        }
        Ok(())
    }

    pub(super) fn check_process(&self) -> Result<()> {
        if self.process != std::process::id() {
            self.ring.failure.set(format!("this process was forked by {}, which opened it", self.process));
        }
        self.ring.failure.check()
    }

    /// Waits until every record below `to` is filled, for a while only. Returns whether all are
    /// persistent.
    pub(super) fn watch(&self, to: u64) -> bool {
        // A record is filled within a microsecond of its draw, unless its thread lost the
        // processor, or waits for room.
        for look in 0..LOOKS_MAX {
            if self.ring.look() >= to {
                return true;
            }
            if !self.ring.persists() || self.ring.failure.get().is_some() {
                return false;
            }
            pause(look);
        }
        false
    }

    /// Waits until no thread leads, so no round is being written. The next leader checks the
    /// failure first.
    pub(super) fn wait_for_leader(&self) {
        drop(self.lead());
    }

    fn lead(&self) -> Leading<'_> {
        let own = (u64::MAX, Pace::Hurry);
        let lead = loop {
            if let Some(lead) = self.group.join(own.0, own.1, || false) {
                break lead;
            }
        };
        Leading { flusher: self, lead: Some(lead), own, took: None }
    }

    /// Switches to the longer ring `to`, which has its space. `announce` names it durably; until
    /// then both rings hold the log. Rounds go on meanwhile.
    ///
    /// # Errors
    /// Those of `announce`, [`Error::Io`], [`Error::Memory`], [`Error::Poisoned`]. The ring is the
    /// old one then.
    pub(super) fn switch_to(
        &self,
        to: Geometry,
        cut: Lsn,
        announce: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let old = self.geometry.get();
        let copy = |from: u64, end: u64| {
            let copied = scan::copy(&*self.device, old, to, from..end);
            copied.inspect_err(|error| {
                if !matches!(error, Error::Memory { .. }) {
                    self.ring.failure.set(error.to_string());
                }
            })
        };
        // Rounds write the block of the filed end again and all behind it, from now on into both
        // rings. Only that block is copied while they wait.
        let (kept, moved) = self.with_lead(|lead| {
            self.ring.failure.check()?;
            let filed = self.ring.filed();
            let moved = copy(block_floor(filed), filed.next_multiple_of(BLOCK))?;
            lead.next = Some(to);
            Ok::<_, Error>((block_floor(filed), moved))
        })?;
        let announced = copy(block_floor(cut.0), kept)
            .and_then(|others| if moved || others { self.sync_copies() } else { Ok(()) })
            .and_then(|()| announce());
        self.with_lead(|lead| {
            lead.next = None;
            if announced.is_ok() {
                self.geometry.set(to);
            }
        });
        announced
    }

    fn sync_copies(&self) -> Result<()> {
        let synced = self.device.sync();
        synced.map_err(|source| Error::io("sync", self.device.name(), None, source)).inspect_err(|error| {
            self.ring.failure.set(error.to_string());
        })
    }

    fn with_lead<T>(&self, work: impl FnOnce(&mut Lead) -> T) -> T {
        work(self.lead().lead.as_mut().expect("taken back on drop only"))
    }

    pub(super) fn written(&self) -> (u64, u64) {
        (self.flushes.load(Relaxed), self.flushed_bytes.load(Relaxed))
    }

    pub(super) fn latency(&self) -> Latency {
        self.writes.latency()
    }

    /// Durably writes the blocks that hold `from` to `to`.
    fn write(&self, lead: &mut Lead, from: u64, to: u64) -> io::Result<()> {
        let geometry = self.geometry.get();
        self.write_into(geometry, lead, from, to)?;
        let moves = |next: &Geometry| {
            !geometry.moved(*next, block_floor(from), to.next_multiple_of(BLOCK)).is_empty()
        };
        match lead.next.filter(moves) {
            Some(next) if !planted(Bug::LogInOldRing) => self.write_into(next, lead, from, to),
            _ => Ok(()),
        }
    }

    fn write_into(&self, geometry: Geometry, lead: &mut Lead, from: u64, to: u64) -> io::Result<()> {
        let (first, last, end) = (block_floor(from), block_floor(to), to.next_multiple_of(BLOCK));
        let is_small = end - first <= ASIDE_BYTES && geometry.contiguous(first) >= end - first;
        let end = if is_small { self.end_of_small(geometry, end, lead.written) } else { end };
        lead.written = lead.written.max(end);
        self.flushes.fetch_add(1, Relaxed);
        self.flushed_bytes.fetch_add(end - first, Relaxed);
        if is_small {
            lead.drain.copy(first, to, &mut lead.aside);
            lead.aside[(to - first) as usize..(end - first) as usize].fill(0);
            return self.write_through(geometry, first, &lead.aside[..(end - first) as usize]);
        }
        let mut pieces = Vec::with_capacity(PIECES);
        let mut lsn = first;
        for mut part in lead.drain.blocks(first, last) {
            while !part.is_empty() {
                let length = (part.len() as u64).min(geometry.contiguous(lsn));
                let (piece, rest) = part.split_at(length as usize);
                pieces.push(Write::new(geometry.offset(lsn), piece));
                (lsn, part) = (lsn + length, rest);
            }
        }
        if last < to {
            let block = &mut lead.aside[..BLOCK as usize];
            lead.drain.copy(last, to, block);
            block[(to - last) as usize..].fill(0);
            pieces.push(Write::new(geometry.offset(last), block));
        }
        match &pieces[..] {
            [one] => self.write_through(geometry, first, one.bytes),
            several => {
                self.device.write_batch(several)?;
                self.device.sync()
            }
        }
    }

    /// The end of a small round whose records end below `end`: extended over unwritten blocks of
    /// the first lap. The lap ends at the log's limit.
    fn end_of_small(&self, geometry: Geometry, end: u64, written: u64) -> u64 {
        let lap_end = geometry.capacity();
        if end <= written || end >= lap_end { end } else { end.next_multiple_of(self.ahead).min(lap_end) }
    }

    fn write_through(&self, geometry: Geometry, lsn: u64, bytes: &[u8]) -> io::Result<()> {
        self.device.write_through_at(geometry.offset(lsn), bytes)
    }
}

fn pause(look: u32) {
    if look < LOOKS_MAX / 2 { std::hint::spin_loop() } else { std::thread::yield_now() }
}

/// A thread that leads. Dropping it passes the lead on and wakes the served threads.
struct Leading<'a> {
    flusher: &'a Flusher,
    lead: Option<Lead>,
    own: (u64, Pace),
    took: Option<Duration>,
}

impl Leading<'_> {
    /// One round: briefly waits for records below `to`, then writes the complete ones.
    fn round(&mut self, to: u64) -> Result<()> {
        let (flusher, lead) = (self.flusher, self.lead.as_mut().expect("taken back on drop only"));
        let from = flusher.ring.filed();
        let mut complete = lead.drain.look();
        // A record is filled within a microsecond of its draw, unless its thread lost the
        // processor.
        for look in 0..LOOKS_MAX {
            if complete >= to || flusher.ring.failure.get().is_some() {
                break;
            }
            pause(look);
            complete = lead.drain.look();
        }
        flusher.ring.failure.check()?;
        if complete <= from {
            return Ok(());
        }
        let begun = Instant::now();
        let written = flusher.write(lead, from, complete).and_then(|()| lead.drain.publish(complete));
        let took = begun.elapsed();
        self.took = Some(took);
        match written {
            Ok(()) => flusher.writes.record(took, thread_number()),
            Err(source) => {
                let file = flusher.device.name().to_owned();
                let offset = Some(flusher.geometry.get().offset(block_floor(from)));
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
        let ended = Ended { filed: ring.filed(), failed: ring.failure.get().is_some(), took: self.took };
        let lead = self.lead.take().expect("taken here only");
        self.flusher.group.leave(lead, self.own, ended);
    }
}
