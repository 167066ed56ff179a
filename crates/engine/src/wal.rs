//! The log: one stream of records in LSN order, for recovery.
//!
//! An LSN is a byte offset in an endless stream; the file keeps the last `capacity` bytes. The
//! first record is at [`FIRST_LSN`]; [`Lsn::NONE`] is never one. The path of a record:
//!
//! ```text
//!  reserve ──> enter ──> append ──────────────────────────> flush_to ──> acknowledge
//!  log space   a ticket   draw a slot (one fetch_add),         group
//!  (may fail)  (in flight) seal, copy it into the ring         commit
//! ```
//!
//! **Order of calls.** Reserve space before any latch; take a ticket before the first LSN is drawn.
//! [`Wal::append`] allocates nothing, takes no lock and does no I/O unless the ring is full. Then
//! it waits for the log's device, or writes itself. It may run under page latches: writing the log
//! needs none.
//!
//! **Watermarks.** *Persistent* is the end of what survives a crash: commits are acknowledged,
//! mappings come into force and pages count as logged up to it. *Filed* is the end of what the
//! log's file holds: room in the ring, the log cut and readers of the file end there. They differ
//! with a ring in persistent memory, which a thread files when much of it is full.
//!
//! **Lock order.** Three mutexes, never held together or during I/O or calls to other modules: the
//! turns in `group.rs` (above its seats), the wake-up in `writer.rs`, the pending tickets in
//! `tickets.rs`.

mod buffer;
mod copy;
mod failure;
mod flush;
mod group;
mod layout;
mod marks;
mod parse;
mod record;
mod scan;
mod space;
#[cfg(test)]
mod tests;
mod tickets;
mod units;
mod writer;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use terrace_io::stats::Histogram;
use terrace_io::{AlignedBuffer, BlockDevice};

pub(crate) use copy::{LogCopy, geometry_for};
pub(crate) use layout::{Geometry, LogHeader, read_header, write_header};
pub(crate) use parse::{Change, RecordView};
pub(crate) use record::{
    ALLOCATES, ChunkEntry, HEADER_BYTES, Kind, MappingEntry, RECORD_ALIGNMENT, RECORD_BYTES_MAX,
    RecordBuilder, change_kind,
};
pub(crate) use scan::{EpochRule, LogScan, RecordReader, check_not_outrun, file_ring, rewrite_tail};
pub(crate) use space::{Class, Reservation};
pub(crate) use tickets::Ticket;
pub(crate) use units::{BLOCK, BUFFER_BYTES_MAX, CAPACITY_FIRST, FIRST_LSN};

use crate::error::{Error, Result};
use crate::ids::Lsn;
use crate::planted::{Bug, planted};
use crate::stats::Latency;
use crate::store::ring::RingMemory;
use crate::threads::thread_number;
use group::Pace;
use layout::Present;
use units::{BUFFER_BYTES_MIN, block_floor};

#[derive(Clone, Debug)]
pub(crate) struct WalOptions {
    pub(crate) geometry: Geometry,
    /// The form of the file that `geometry` may grow to.
    pub(crate) largest: Geometry,
    /// Size of the buffer in memory: a power of two, at least [`BUFFER_BYTES_MIN`]. Records are at
    /// least one block shorter. A `ring` has its own size.
    pub(crate) buffer_bytes: usize,
    /// Persistent memory for the ring, which a durable superblock names.
    pub(crate) ring: Option<Arc<RingMemory>>,
    /// The device is memory, and a failure no event of its own.
    pub(crate) in_memory: bool,
    /// The superblock that names it is synced already.
    pub(crate) epoch: u32,
    pub(crate) tail: Lsn,
    pub(crate) cut: Lsn,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Appended {
    pub(crate) lsn: Lsn,
    /// The record's end: it survives once the log is persistent up to here.
    pub(crate) end: Lsn,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WalStats {
    pub(crate) records: u64,
    pub(crate) record_bytes: u64,
    pub(crate) flushes: u64,
    /// Bytes written to the device, rewritten blocks included.
    pub(crate) flushed_bytes: u64,
    pub(crate) tail: Lsn,
    /// The end of what survives a crash.
    pub(crate) persistent: Lsn,
    /// The end of what the log's file holds.
    pub(crate) filed: Lsn,
    /// Bytes of the ring in persistent memory; 0 if it is in none.
    pub(crate) ring_bytes: u64,
    pub(crate) cut: Lsn,
    pub(crate) reserved: u64,
    pub(crate) capacity: u64,
    pub(crate) capacity_max: u64,
    /// Times a record waited for room in the ring.
    pub(crate) buffer_waits: u64,
}

pub(crate) struct Wal {
    ring: Arc<buffer::Ring>,
    flusher: flush::Flusher,
    space: space::Space,
    tickets: tickets::Tickets,
    geometry: Arc<Present>,
    largest: Geometry,
    first: Lsn,
    wake_up: writer::WakeUp,
    buffer_waits: AtomicU64,
    /// From the append of a commit's last record until its acknowledgement.
    commits: Histogram,
}

impl std::fmt::Debug for Wal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wal").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

impl Wal {
    /// Makes an empty file a log: allocates the space of `ring` and writes the header. Durable
    /// except for the file's name.
    ///
    /// # Errors
    /// [`Error::Full`] if there is no space for it, [`Error::Io`], also if the file is not empty.
    pub(crate) fn create(device: &dyn BlockDevice, header: &LogHeader, ring: Geometry) -> Result<()> {
        let name = device.name();
        if !device.is_empty() {
            return Err(Error::io("create", name, None, io::ErrorKind::AlreadyExists.into()));
        }
        let bytes = ring.file_bytes();
        device.set_len(bytes).map_err(|source| Error::io("allocate", name, Some(bytes), source))?;
        write_header(device, header)?;
        device.sync().map_err(|source| Error::io("sync", name, None, source))
    }

    pub(crate) const fn memory_bytes(buffer_bytes: u64) -> u64 {
        buffer_bytes + flush::Flusher::size_bytes(buffer_bytes)
    }

    /// Opens a log at the end that recovery found.
    ///
    /// # Errors
    /// [`Error::Config`] for an impossible buffer, [`Error::Corrupt`] for contradictory cut and
    /// tail, [`Error::Memory`], [`Error::Io`].
    pub(crate) fn open(device: Arc<dyn BlockDevice>, options: WalOptions) -> Result<Self> {
        let WalOptions { geometry, largest, buffer_bytes, ring, in_memory, epoch, tail, cut } = options;
        let fits = (BUFFER_BYTES_MIN as u64..=BUFFER_BYTES_MAX).contains(&(buffer_bytes as u64));
        if !buffer_bytes.is_power_of_two() || !fits {
            return Err(Error::Config(format!(
                "a log buffer of {buffer_bytes} bytes; it must be a power of two from {BUFFER_BYTES_MIN} to \
                 {BUFFER_BYTES_MAX}"
            )));
        }
        let aligned = tail.0.is_multiple_of(RECORD_ALIGNMENT as u64);
        let full = tail.0.checked_sub(block_floor(cut.0)).is_none_or(|used| used > geometry.capacity());
        if !aligned || full || cut > tail || cut < FIRST_LSN {
            let what = format!("its log cannot be cut at {cut} and end at {tail}");
            return Err(Error::corrupt(device.name(), None, what));
        }
        let mut block = AlignedBuffer::zeroed(BLOCK as usize);
        let kept = (tail.0 - block_floor(tail.0)) as usize;
        if kept > 0 {
            scan::read(&*device, geometry, block_floor(tail.0), &mut block)?;
        }
        let (ring, drain) = match &ring {
            Some(memory) => buffer::persistent_ring(memory, epoch, tail, &block[..kept]),
            None => buffer::ring(buffer_bytes, epoch, tail, &block[..kept])?,
        };
        if in_memory {
            ring.failure.be_attempt();
        }
        let geometry = Arc::new(Present::new(geometry));
        let flusher = flush::Flusher::new(Arc::clone(&ring), drain, device, Arc::clone(&geometry));
        let space = space::Space::new(Arc::clone(&geometry), cut);
        Ok(Self {
            ring,
            flusher,
            space,
            tickets: tickets::Tickets::new(),
            geometry,
            largest,
            first: tail,
            wake_up: writer::WakeUp::default(),
            buffer_waits: AtomicU64::new(0),
            commits: Histogram::default(),
        })
    }

    /// Appends a record, using space from `reservation`.
    ///
    /// Without enough reserved, the caller guarantees space otherwise; if there is none, the log
    /// fails. The record survives once [`Wal::persistent`] reaches the returned end. If the buffer
    /// is full, this helps to write it.
    ///
    /// # Errors
    /// [`Error::TransactionTooLarge`] if the record can never fit, and nothing has happened.
    /// Otherwise the log has failed: [`Error::Poisoned`], or [`Error::Io`] if this call met the
    /// failure.
    pub(crate) fn append(
        &self,
        record: &mut RecordBuilder,
        reservation: Option<&mut Reservation<'_>>,
    ) -> Result<Appended> {
        match self.ring.memory().is_some() {
            true => self.flusher.check_process()?,
            false => self.ring.failure.check()?,
        }
        let bytes = record.len();
        if bytes > self.record_bytes_max() {
            return Err(Error::TransactionTooLarge {
                bytes: bytes as u64,
                max: self.record_bytes_max() as u64,
                reads: false,
            });
        }
        let slot = match reservation {
            Some(reservation) if reservation.left() >= bytes as u64 => {
                let slot = self.ring.draw(bytes);
                reservation.consume(bytes as u64);
                slot
            }
            _ => {
                let mut proved =
                    self.space.reserve(&self.ring, bytes as u64, Class::System).ok_or_else(|| {
                        self.ring.failure.set("a record was appended without space for it in the log");
                        Error::Poisoned { reason: self.poisoned().unwrap_or_default().to_owned() }
                    })?;
                let slot = self.ring.draw(bytes);
                proved.consume(bytes as u64);
                slot
            }
        };
        let appended = Appended { lsn: slot.lsn(), end: slot.end() };
        let sealed = record.seal(appended.lsn, self.ring.epoch());
        if !slot.has_room() {
            self.buffer_waits.fetch_add(1, Relaxed);
            if let Err(error) = self.flusher.file_to(slot.room_needs(), Pace::Hurry) {
                slot.abandon();
                return Err(error);
            }
        }
        slot.fill(sealed)
            .map_err(|source| Error::io("persist a record of", self.flusher.name(), None, source))?;
        self.wake_up.note_filled(&self.ring, appended.lsn.0, appended.end.0);
        Ok(appended)
    }

    /// Waits until everything below `to` is persistent: a record's end, or the tail. The page file
    /// may then rely on it.
    ///
    /// # Errors
    /// [`Error::Io`] for the call that met the failure, [`Error::Poisoned`] for all others and ever
    /// after.
    pub(crate) fn flush_to(&self, to: Lsn) -> Result<()> {
        self.persist_to(to, Pace::Hurry)?;
        self.ring.rely_on(to.0).map_err(|source| Error::io("persist", self.flusher.name(), None, source))
    }

    fn persist_to(&self, to: Lsn, pace: Pace) -> Result<()> {
        // What a slow writer holds up is filed: that sleeps properly, and implies persistent.
        if self.flusher.watch(to.0.min(self.ring.tail())) { Ok(()) } else { self.flusher.file_to(to, pace) }
    }

    /// Waits until the log's file holds everything below `to`, for readers of the file.
    ///
    /// # Errors
    /// As [`Wal::flush_to`].
    pub(crate) fn file_to(&self, to: Lsn) -> Result<()> {
        self.flusher.file_to(to, Pace::Hurry)
    }

    /// Waits until the commit whose record ends at `to` may be acknowledged.
    ///
    /// # Errors
    /// As [`Wal::flush_to`]; the commit's fate is then unknown.
    pub(crate) fn acknowledge(&self, to: Lsn) -> Result<()> {
        if planted(Bug::AcknowledgeBeforeFlush) {
            return Ok(());
        }
        if self.ring.look() >= to.0 {
            self.commits.record(Duration::ZERO, thread_number());
            return Ok(());
        }
        let begun = Instant::now();
        self.persist_to(to, Pace::Commit)?;
        self.commits.record(begun.elapsed(), thread_number());
        Ok(())
    }

    /// The body of the log's thread; ends after [`Wal::stop_writer`], or when the log has failed.
    pub(crate) fn run_writer(&self) {
        while self.wake_up.wait() && self.write_at_leisure().is_ok() {}
    }

    /// Waits until everything appended so far is persistent. Lets commits gather first.
    ///
    /// # Errors
    /// As [`Wal::flush_to`].
    pub(crate) fn flush_at_leisure(&self) -> Result<()> {
        self.persist_to(self.tail(), Pace::Leisure)
    }

    /// One round of the log's thread. Persistent records are filed only for the sake of room.
    fn write_at_leisure(&self) -> Result<()> {
        let much = self.wake_up.is_much(&self.ring);
        match self.ring.persists() && !much {
            true => self.flush_at_leisure(),
            false => self.flusher.file_to(self.tail(), Pace::Leisure),
        }
    }

    /// Gives the ring's memory up, after a durable superblock that does not name it.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(crate) fn release_ring(&self) -> Result<()> {
        self.ring.memory().map_or(Ok(()), RingMemory::release)
    }

    /// From now on only the log's file makes records persistent. It holds all earlier ones then.
    ///
    /// # Errors
    /// As [`Wal::flush_to`].
    pub(crate) fn retire_ring(&self) -> Result<()> {
        self.ring.retire();
        if planted(Bug::ReleaseBeforeFiling) { Ok(()) } else { self.file_to(self.tail()) }
    }

    pub(crate) fn stop_writer(&self) {
        self.wake_up.stop();
    }

    pub(crate) fn commit_latency(&self) -> Latency {
        self.commits.latency()
    }

    pub(crate) fn write_latency(&self) -> Latency {
        self.flusher.latency()
    }

    /// Reads the records from `from`, where one begins.
    ///
    /// The caller keeps them in the log, and stops at their filed end at the latest. The log may
    /// grow meanwhile.
    ///
    /// # Errors
    /// [`Error::Memory`].
    pub(crate) fn scan(&self, from: Lsn, rule: EpochRule) -> Result<LogScan> {
        LogScan::growing(self.flusher.device(), Arc::clone(&self.geometry), from, rule)
    }

    /// Reads single records that are filed, under the conditions of [`Wal::scan`].
    ///
    /// # Errors
    /// [`Error::Memory`].
    pub(crate) fn reader(&self) -> Result<RecordReader> {
        RecordReader::new(self.flusher.device(), Arc::clone(&self.geometry), self.cut(), self.filed())
    }

    /// The end of what survives a crash.
    pub(crate) fn persistent(&self) -> Lsn {
        Lsn(self.ring.persistent())
    }

    /// The end of what the log's file holds for good.
    pub(crate) fn filed(&self) -> Lsn {
        Lsn(self.ring.filed())
    }

    /// The end of everything appended or being appended.
    pub(crate) fn tail(&self) -> Lsn {
        Lsn(self.ring.tail())
    }

    /// Recovery needs nothing below this.
    pub(crate) fn cut(&self) -> Lsn {
        self.space.cut()
    }

    /// Lets the log below `cut` be overwritten. Never moves back.
    ///
    /// The superblock that names the cut must be synced.
    pub(crate) fn set_cut(&self, cut: Lsn) {
        self.space.set_cut(cut);
    }

    /// Reserves log space if available. Never waits.
    pub(crate) fn reserve(&self, bytes: u64, class: Class) -> Option<Reservation<'_>> {
        self.space.reserve(&self.ring, bytes, class)
    }

    /// The largest reservation: a transaction that needs more is too large.
    pub(crate) fn max_reservation(&self) -> u64 {
        space::Space::reservation_max(self.largest)
    }

    /// The largest reservation that needs no longer log.
    pub(crate) fn max_reservation_now(&self) -> u64 {
        space::Space::reservation_max(self.geometry.get())
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.geometry.get().capacity()
    }

    /// The capacity that the log may grow to for commits.
    pub(crate) fn capacity_limit(&self) -> u64 {
        self.largest.capacity()
    }

    /// That capacity, or the present one, to which recovery may have extended the log.
    pub(crate) fn capacity_max(&self) -> u64 {
        self.capacity_limit().max(self.capacity())
    }

    /// Doubles the log's capacity once or more, to `bytes` if it may. False if it has its largest
    /// already.
    ///
    /// `announce` gets the new capacity and names it in a durable superblock. The caller prevents
    /// that anything else moves the cut, or reads the log but by [`Wal::scan`].
    ///
    /// # Errors
    /// [`Error::Full`] without space for it, those of `announce`; [`Error::Io`], then the log has
    /// failed; [`Error::Memory`], [`Error::Poisoned`]. The capacity is the old one then.
    pub(crate) fn grow(&self, bytes: u64, announce: impl FnOnce(u64) -> Result<()>) -> Result<bool> {
        match self.geometry.get().grown(bytes, self.largest) {
            Some(to) => self.grow_to(to, announce).map(|()| true),
            None => Ok(false),
        }
    }

    /// Doubles the log's capacity once, even if it has its largest. Otherwise as [`Wal::grow`].
    ///
    /// # Errors
    /// As [`Wal::grow`]; [`Error::OutOfLog`] if no file is that long.
    pub(crate) fn extend(&self, announce: impl FnOnce(u64) -> Result<()>) -> Result<()> {
        let to = self.geometry.get().doubled().ok_or_else(|| {
            let what = format!("the log cannot be longer than {} bytes", self.capacity());
            Error::OutOfLog { what }
        })?;
        self.grow_to(to, announce)
    }

    fn grow_to(&self, to: Geometry, announce: impl FnOnce(u64) -> Result<()>) -> Result<()> {
        let (device, bytes) = (self.flusher.device(), to.file_bytes());
        if device.len() < bytes {
            device
                .set_len(bytes)
                .map_err(|source| Error::io("allocate", device.name(), Some(bytes), source))?;
        }
        // Even if the file is as long: a killed process may have left a length that can be lost.
        let synced = device.sync().map_err(|source| Error::io("sync", device.name(), None, source));
        synced.inspect_err(|error| self.poison(&error.to_string()))?;
        self.flusher.switch_to(to, self.cut(), || announce(to.capacity()))?;
        tracing::debug!(capacity = to.capacity(), "the log has grown");
        Ok(())
    }

    pub(crate) fn record_bytes_max(&self) -> usize {
        RECORD_BYTES_MAX.min(self.ring.slot_bytes_max()).min(self.max_reservation() as usize)
    }

    /// Starts work whose records must stay in the log until it ends.
    ///
    /// May wait for a ticket, never for a latch. So it may be called under page latches.
    pub(crate) fn enter(&self) -> Ticket<'_> {
        self.tickets.enter(&self.ring)
    }

    pub(crate) fn retire_when_persistent(&self, ticket: Ticket<'_>, end: Lsn) {
        ticket.retire(&self.ring, end);
    }

    /// Nothing below this is in flight: it is applied, and persistent if required.
    pub(crate) fn floor(&self) -> Lsn {
        self.tickets.floor(&self.ring)
    }

    /// The end of all finished work that survives: [`Wal::floor`], up to the persistent end.
    pub(crate) fn finished(&self) -> Lsn {
        let floor = self.floor();
        if planted(Bug::CutPastWatermark) { floor } else { floor.min(self.persistent()) }
    }

    /// The highest cut that the log allows: [`Wal::finished`], up to the filed end. Recovery begins
    /// to read the file there.
    pub(crate) fn cut_limit(&self) -> Lsn {
        let filed = if planted(Bug::CutPastWatermark) { self.tail() } else { self.filed() };
        self.finished().min(filed)
    }

    /// The first reason stays.
    pub(crate) fn poison(&self, reason: &str) {
        self.ring.failure.set(reason);
    }

    /// Ends the log: nothing more is appended or written. No failure, unless it had failed.
    pub(crate) fn close(&self, reason: &str) {
        self.ring.failure.close(reason);
    }

    /// After a failure, waits until no thread writes to the log.
    pub(crate) fn wait_for_writes(&self) {
        self.flusher.wait_for_leader();
    }

    /// Whether the log has not failed.
    #[inline]
    pub(crate) fn is_well(&self) -> bool {
        self.ring.failure.get().is_none()
    }

    /// Fails if the log is poisoned.
    #[inline]
    pub(crate) fn check(&self) -> Result<()> {
        self.ring.failure.check()
    }

    pub(crate) fn poisoned(&self) -> Option<&str> {
        self.ring.failure.get()
    }

    pub(crate) fn stats(&self) -> WalStats {
        let (flushes, flushed_bytes) = self.flusher.written();
        let tail = self.tail();
        WalStats {
            records: self.ring.slots(),
            record_bytes: tail.0 - self.first.0,
            flushes,
            flushed_bytes,
            tail,
            persistent: self.persistent(),
            filed: self.filed(),
            ring_bytes: self.ring.memory().map_or(0, |memory| memory.bytes() as u64),
            cut: self.cut(),
            reserved: self.space.reserved(),
            capacity: self.capacity(),
            capacity_max: self.capacity_max(),
            buffer_waits: self.buffer_waits.load(Relaxed),
        }
    }
}
