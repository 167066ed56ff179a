//! The log: one stream of records in LSN order, from which recovery rebuilds everything that is not yet in the store.
//!
//! An LSN is the offset of a byte in a stream without end, of which the file keeps the last `capacity` bytes. The
//! first record is at [`FIRST_LSN`]; [`Lsn::NONE`] is never one. The way of a record:
//!
//! ```text
//!  reserve ──> enter ──> append ──────────────────────────> flush_to ──> acknowledge
//!  log space   a ticket   draw a place (one fetch_add),       group
//!  (may fail)  (in flight) seal, copy it into the ring         commit
//! ```
//!
//! | file         | what is in it                                                                  |
//! |--------------|--------------------------------------------------------------------------------|
//! | `record.rs`  | the format of records, and building them                                       |
//! | `parse.rs`   | reading them, from bytes that may be anything                                  |
//! | `layout.rs`  | the file: header block and ring                                                |
//! | `buffer.rs`  | the ring in memory: places drawn, holes, the contiguous watermark              |
//! | `flush.rs`   | group commit: writing rounds                                                   |
//! | `group.rs`   | whose turn it is to write, and who waits                                       |
//! | `writer.rs`  | the thread that writes what nobody waits for                                   |
//! | `space.rs`   | cut, capacity, reservations                                                    |
//! | `tickets.rs` | what is in flight                                                              |
//! | `marks.rs`   | lower bounds published without a lock, under both of the above                 |
//! | `failure.rs` | the first failure, after which nothing more is promised                        |
//! | `scan.rs`    | reading the log back                                                           |
//!
//! **Order of calls.** Space is reserved before anything is latched; a ticket is taken before the first LSN is drawn.
//! [`Wal::append`] takes no lock and allocates nothing. It may be called under page latches: it then waits at most
//! for the ring to be written out, by others or by itself, which needs no latch.
//!
//! **Lock order.** Three mutexes, never held together and never during I/O: the turns in `group.rs` (with the seats
//! below it), the bell of `writer.rs`, the list of pending tickets in `tickets.rs`. Nothing is called out to from under any.

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
mod writer;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use terrace_block::{AlignedBuffer, BlockDevice};

pub(crate) use copy::{LogCopy, geometry_for};
pub(crate) use layout::{Geometry, LogHeader, read_header, write_header};
pub(crate) use parse::{Change, RecordView};
pub(crate) use record::{
    ALLOCATES, ChunkEntry, HEADER_BYTES, Kind, MappingEntry, RECORD_ALIGNMENT, RECORD_BYTES_MAX,
    RecordBuilder, change_kind,
};
pub(crate) use scan::{EpochRule, LogScan, RecordReader, rewrite_tail};
pub(crate) use space::{Class, Reservation};
pub(crate) use tickets::Ticket;

use crate::error::{Error, Result};
use crate::ids::Lsn;
use crate::planted::{Bug, planted};
use crate::stats::Latency;
use crate::stats::histogram::Histogram;
use group::Pace;

/// The block the log is written in, and the size of its header.
pub(crate) const BLOCK: u64 = 4096;
/// Where the first record of a new log is.
pub(crate) const FIRST_LSN: Lsn = Lsn(BLOCK);
/// No log has a larger buffer.
pub(crate) const BUFFER_BYTES_MAX: u64 = 8 << 20;
/// The smallest buffer: a block to fill and one to keep.
pub(crate) const BUFFER_BYTES_MIN: usize = 2 * BLOCK as usize;

const fn block_floor(lsn: u64) -> u64 {
    lsn - lsn % BLOCK
}

/// How a log is opened: with what recovery found out about it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WalOptions {
    /// Where LSNs are in the file, from its header.
    pub(crate) geometry: Geometry,
    /// Size of the buffer in memory: a power of two, at least [`BUFFER_BYTES_MIN`]. No record can be longer than this
    /// without one block.
    pub(crate) buffer_bytes: usize,
    /// The epoch of all records from now on. The superblock that says so is synced already.
    pub(crate) epoch: u32,
    /// Where the log ends.
    pub(crate) tail: Lsn,
    /// Where it is cut.
    pub(crate) cut: Lsn,
}

/// Where a record came to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Appended {
    /// Its LSN.
    pub(crate) lsn: Lsn,
    /// The end of it: it is durable when the log is durable up to here.
    pub(crate) end: Lsn,
}

/// What a log has done and where it stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WalStats {
    /// Records appended since it was opened.
    pub(crate) records: u64,
    /// Bytes appended since it was opened.
    pub(crate) record_bytes: u64,
    /// Rounds written to the device.
    pub(crate) flushes: u64,
    /// Bytes written to the device, blocks written again included.
    pub(crate) flushed_bytes: u64,
    /// The end of everything appended.
    pub(crate) tail: Lsn,
    /// The end of everything durable.
    pub(crate) durable: Lsn,
    /// Where it is cut.
    pub(crate) cut: Lsn,
    /// Bytes set aside and not yet appended.
    pub(crate) reserved: u64,
    /// Bytes it can hold.
    pub(crate) capacity: u64,
    /// Times a record waited for room in the ring.
    pub(crate) buffer_waits: u64,
}

/// The log. All calls take `&self`, from any thread.
pub(crate) struct Wal {
    ring: Arc<buffer::Ring>,
    flusher: flush::Flusher,
    space: space::Space,
    tickets: tickets::Tickets,
    geometry: Geometry,
    first: Lsn,
    bell: writer::Bell,
    /// Times a record waited for room in the ring.
    buffer_waits: AtomicU64,
    /// From the append of a commit's last record until it may be acknowledged as durable.
    commits: Histogram,
}

impl std::fmt::Debug for Wal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wal").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

impl Wal {
    /// Makes an empty file a log: allocates all of its space and writes the header, durably but for the file's name.
    ///
    /// # Errors
    /// [`Error::Full`] if there is no space for it, [`Error::Io`], also if the file is not empty.
    pub(crate) fn create(device: &dyn BlockDevice, header: &LogHeader) -> Result<()> {
        let name = device.name();
        if !device.is_empty() {
            return Err(Error::io("create", name, None, io::ErrorKind::AlreadyExists.into()));
        }
        let bytes = header.geometry.file_bytes();
        device.set_len(bytes).map_err(|source| Error::io("allocate", name, Some(bytes), source))?;
        write_header(device, header)?;
        device.sync().map_err(|source| Error::io("sync", name, None, source))
    }

    /// Bytes of memory that a log takes with a buffer of `buffer_bytes`.
    pub(crate) const fn memory_bytes(buffer_bytes: u64) -> u64 {
        buffer_bytes + flush::Flusher::size_bytes(buffer_bytes)
    }

    /// Opens a log at the end that recovery found.
    ///
    /// # Errors
    /// [`Error::Config`] for an impossible buffer, [`Error::Corrupt`] for a cut and a tail that do not fit together,
    /// [`Error::Memory`], [`Error::Io`].
    pub(crate) fn open(device: Arc<dyn BlockDevice>, options: WalOptions) -> Result<Self> {
        let WalOptions { geometry, buffer_bytes, epoch, tail, cut } = options;
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
        let (ring, drain) = buffer::ring(buffer_bytes, epoch, tail, &block[..kept])?;
        let flusher = flush::Flusher::new(Arc::clone(&ring), drain, device, geometry);
        let space = space::Space::new(geometry, cut);
        Ok(Self {
            ring,
            flusher,
            space,
            tickets: tickets::Tickets::new(),
            geometry,
            first: tail,
            bell: writer::Bell::default(),
            buffer_waits: AtomicU64::new(0),
            commits: Histogram::default(),
        })
    }

    /// Appends a record, using space from `reservation`. Without one, or with one that is too small, the caller has
    /// shown by other means that there is space; if there is none after all the log fails, for then a rule is broken.
    ///
    /// The record is durable once [`Wal::durable`] has reached the end returned. Takes no lock and allocates nothing; if
    /// the buffer is full it helps to write it out.
    ///
    /// # Errors
    /// [`Error::TransactionTooLarge`] if no place in the log can hold the record; nothing has happened then. Else the
    /// log has failed: [`Error::Poisoned`], or [`Error::Io`] if this call met the failure.
    pub(crate) fn append(
        &self,
        record: &mut RecordBuilder,
        reservation: Option<&mut Reservation<'_>>,
    ) -> Result<Appended> {
        self.ring.failure.check()?;
        let bytes = record.len();
        if bytes > self.record_bytes_max() {
            return Err(Error::TransactionTooLarge {
                bytes: bytes as u64,
                max: self.record_bytes_max() as u64,
            });
        }
        let place = match reservation {
            Some(reservation) if reservation.left() >= bytes as u64 => {
                let place = self.ring.draw(bytes);
                reservation.consume(bytes as u64);
                place
            }
            _ => {
                let mut proved =
                    self.space.reserve(&self.ring, bytes as u64, Class::System).ok_or_else(|| {
                        self.ring.failure.set("a record was appended without space for it in the log");
                        Error::Poisoned { reason: self.poisoned().unwrap_or_default().to_owned() }
                    })?;
                let place = self.ring.draw(bytes);
                proved.consume(bytes as u64);
                place
            }
        };
        let appended = Appended { lsn: place.lsn(), end: place.end() };
        let sealed = record.seal(appended.lsn, self.ring.epoch());
        if !place.has_room() {
            self.buffer_waits.fetch_add(1, Relaxed);
            if let Err(error) = self.flusher.flush_to(place.room_needs(), Pace::Hurry) {
                place.abandon();
                return Err(error);
            }
        }
        place.fill(sealed);
        self.note_filled(appended.lsn.0, appended.end.0);
        Ok(appended)
    }

    /// Returns when everything below `to` is durable: a record's end, or the tail for all there is.
    ///
    /// # Errors
    /// [`Error::Io`] for the call that met the failure, [`Error::Poisoned`] for all others and ever after.
    pub(crate) fn flush_to(&self, to: Lsn) -> Result<()> {
        self.flusher.flush_to(to, Pace::Hurry)
    }

    /// Returns when the commit whose record ends at `to` may be acknowledged.
    ///
    /// # Errors
    /// As [`Wal::flush_to`]; the commit's fate is then unknown.
    pub(crate) fn acknowledge(&self, to: Lsn) -> Result<()> {
        if planted(Bug::AcknowledgeBeforeFlush) {
            return Ok(());
        }
        if self.durable() >= to {
            self.commits.record(Duration::ZERO);
            return Ok(());
        }
        let begun = Instant::now();
        self.flusher.flush_to(to, Pace::Commit)?;
        self.commits.record(begun.elapsed());
        Ok(())
    }

    /// How long commits waited for the log.
    pub(crate) fn commit_latency(&self) -> Latency {
        self.commits.latency()
    }

    /// How long each write of the log took until it was durable.
    pub(crate) fn write_latency(&self) -> Latency {
        self.flusher.latency()
    }

    /// Reads the records from `from`, where one begins. The caller sees to it that they stay in the log meanwhile, and
    /// stops at a place up to which they were durable before.
    ///
    /// # Errors
    /// [`Error::Memory`].
    pub(crate) fn scan(&self, from: Lsn, rule: EpochRule) -> Result<LogScan> {
        LogScan::new(self.flusher.device(), self.geometry, from, rule)
    }

    /// The end of everything durable.
    pub(crate) fn durable(&self) -> Lsn {
        Lsn(self.ring.durable())
    }

    /// The end of everything appended, or being appended.
    pub(crate) fn tail(&self) -> Lsn {
        Lsn(self.ring.tail())
    }

    /// Below this, recovery needs nothing.
    pub(crate) fn cut(&self) -> Lsn {
        self.space.cut()
    }

    /// Lets the log below `cut` be overwritten. The superblock that names the cut must be synced before. Never moves
    /// back.
    pub(crate) fn set_cut(&self, cut: Lsn) {
        self.space.set_cut(cut);
    }

    /// Sets log space aside, or says that there is none now. Never waits.
    pub(crate) fn reserve(&self, bytes: u64, class: Class) -> Option<Reservation<'_>> {
        self.space.reserve(&self.ring, bytes, class)
    }

    /// The most that can be reserved at once: a transaction that needs more is too large.
    pub(crate) fn max_reservation(&self) -> u64 {
        self.space.reservation_max()
    }

    /// The longest record.
    pub(crate) fn record_bytes_max(&self) -> usize {
        RECORD_BYTES_MAX.min(self.ring.place_bytes_max()).min(self.max_reservation() as usize)
    }

    /// Notes that work begins whose records must stay in the log until it is finished. Waits while a great many others
    /// are under way, so it is called before anything is latched.
    pub(crate) fn enter(&self) -> Ticket<'_> {
        self.tickets.enter(&self.ring)
    }

    /// Leaves `ticket` behind until the log is durable up to `end`, and then lets it go.
    pub(crate) fn retire_when_durable(&self, ticket: Ticket<'_>, end: Lsn) {
        ticket.retire(&self.ring, end);
    }

    /// Below this nothing is in flight: all that was appended there is applied, and durable if it had to be.
    pub(crate) fn floor(&self) -> Lsn {
        self.tickets.floor(&self.ring)
    }

    /// As far as the log itself allows a cut: [`Wal::floor`], but not beyond what is durable.
    pub(crate) fn cut_limit(&self) -> Lsn {
        let floor = self.floor();
        if planted(Bug::CutPastWatermark) { floor } else { floor.min(self.durable()) }
    }

    /// Fails the log: what happened elsewhere makes its promises void. The first reason stays.
    pub(crate) fn poison(&self, reason: &str) {
        self.ring.failure.set(reason);
    }

    /// Ends the log: nothing more is appended or written. Not a failure, if there was none before.
    pub(crate) fn close(&self, reason: &str) {
        self.ring.failure.close(reason);
    }

    /// After it has failed: returns when nothing is being written to it any more.
    pub(crate) fn wait_for_writes(&self) {
        self.flusher.wait_for_leader();
    }

    /// Why the log has failed, if it has.
    pub(crate) fn poisoned(&self) -> Option<&str> {
        self.ring.failure.get()
    }

    /// What it has done and where it stands. The numbers are read one after the other.
    pub(crate) fn stats(&self) -> WalStats {
        let (flushes, flushed_bytes) = self.flusher.written();
        let tail = self.tail();
        WalStats {
            records: self.ring.places(),
            record_bytes: tail.0 - self.first.0,
            flushes,
            flushed_bytes,
            tail,
            durable: self.durable(),
            cut: self.cut(),
            reserved: self.space.reserved(),
            capacity: self.geometry.capacity(),
            buffer_waits: self.buffer_waits.load(Relaxed),
        }
    }
}
