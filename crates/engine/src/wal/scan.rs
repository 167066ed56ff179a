//! Reads the log, from the cut to its end.
//!
//! The exact end is stored nowhere, only a lower bound (`log_end` of the superblock). The log ends
//! where the bytes are not the next record, by length, LSN, checksum or epoch. A power cut causes
//! all of these, so none is an error. A failed read is one, and so is an invalid body behind a good
//! checksum.
//!
//! **Epochs.** Behind a hole there may be whole records of unacknowledged work. Recovery ends the
//! log at the hole and continues there in the next epoch; later, old records may follow at exactly
//! the right offset. So the superblock keeps the newest epoch and its first LSN, from which on only
//! that epoch is valid. Below it, epochs do not decrease.
//!
//! A next record of a later epoch than the superblock's proves that the newest superblock was
//! damaged: they are synced before their epoch enters the log. A log that ends below its epoch's
//! first LSN has lost durable bytes.

use std::ops::Range;
use std::sync::Arc;

use terrace_io::{AlignedBuffer, BlockDevice};

use super::layout::{Geometry, Present};
use super::parse::{NotARecord, RecordView, claim};
use super::record::{HEADER_BYTES, RECORD_ALIGNMENT, RECORD_BYTES_MAX};
use super::units::{BLOCK, block_floor};
use crate::error::{Error, Result};
use crate::ids::Lsn;
use crate::planted::{Bug, planted};
use crate::store::ring::RingMemory;

/// Tests have short logs.
const WINDOW_BYTES: usize = if cfg!(test) { 32 << 10 } else { 256 << 10 };
/// Holds enough records for batches of pages to read. A disk reads shorter windows more slowly.
const WIDE_WINDOW_BYTES: u64 = if cfg!(test) { 48 << 10 } else { 1 << 20 };

/// Which epochs are valid where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EpochRule {
    pub(crate) epoch: u32,
    pub(crate) first_lsn: Lsn,
}

pub(crate) struct LogScan {
    window: Window,
    at: u64,
    rule: EpochRule,
    epoch: u32,
    ended: bool,
    /// The epoch at the log's end, if the superblock does not know it.
    newer: Option<u32>,
}

impl LogScan {
    /// A scan from `from`, where a record begins, or the log ends.
    ///
    /// # Errors
    /// [`Error::Memory`].
    pub(crate) fn new(
        device: Arc<dyn BlockDevice>,
        geometry: Geometry,
        from: Lsn,
        rule: EpochRule,
    ) -> Result<Self> {
        Self::growing(device, Arc::new(Present::new(geometry)), from, rule)
    }

    /// A scan of a log that may grow meanwhile.
    ///
    /// # Errors
    /// [`Error::Memory`].
    pub(super) fn growing(
        device: Arc<dyn BlockDevice>,
        present: Arc<Present>,
        from: Lsn,
        rule: EpochRule,
    ) -> Result<Self> {
        let limit = block_floor(from.0).saturating_add(present.get().capacity());
        let window = Window::new(device, present, limit)?;
        Ok(Self { window, at: from.0, rule, epoch: 0, ended: false, newer: None })
    }

    /// The next record; `None` at the end.
    ///
    /// # Errors
    /// [`Error::Io`] if the device cannot be read, [`Error::Corrupt`] for a malformed record.
    pub(crate) fn next(&mut self) -> Result<Option<RecordView<'_>>> {
        if self.ended {
            return Ok(None);
        }
        let lsn = Lsn(self.at);
        match self.window.record(lsn)? {
            Some(record) if epoch_fits(self.rule, self.epoch, &record) => {
                self.at = record.end().0;
                self.epoch = record.epoch();
                Ok(Some(record))
            }
            found => {
                let epoch = self.rule.epoch;
                self.newer = found.map(|record| record.epoch()).filter(|&found| found > epoch);
                self.ended = true;
                Ok(None)
            }
        }
    }

    /// The same scan, which has more records in memory at a time.
    ///
    /// # Errors
    /// [`Error::Memory`].
    pub(crate) fn widened(mut self) -> Result<Self> {
        self.window.buffer = buffer(self.window.begun.capacity().min(WIDE_WINDOW_BYTES) as usize)?;
        (self.window.from, self.window.to) = (0, 0);
        Ok(self)
    }

    /// The next records, as far as they are in memory. At least one, except at the end.
    ///
    /// # Errors
    /// As [`LogScan::next`].
    pub(crate) fn ahead(&mut self) -> Result<impl Iterator<Item = RecordView<'_>>> {
        let (window, rule) = (&mut self.window, self.rule);
        let (mut at, mut epoch) = (Lsn(self.at), self.epoch);
        window.record(at)?;
        let window = &*window;
        Ok(std::iter::from_fn(move || {
            let record = RecordView::parse(window.from(at.0), at).ok()?;
            if !epoch_fits(rule, epoch, &record) {
                return None;
            }
            (at, epoch) = (record.end(), record.epoch());
            Some(record)
        }))
    }

    /// Goes on behind the end, where records were filed since.
    pub(crate) fn resume(&mut self) {
        (self.window.from, self.window.to) = (0, 0);
        (self.ended, self.newer) = (false, None);
    }

    /// The end of the last record read; finally, the end of the log.
    pub(crate) fn end(&self) -> Lsn {
        Lsn(self.at)
    }

    pub(super) fn file(&self) -> &str {
        self.window.device.name()
    }

    /// Reads the rest, and returns the end of the log.
    ///
    /// # Errors
    /// As [`LogScan::next`], and [`LogScan::finish`].
    pub(crate) fn finish_with(&mut self, mut each: impl FnMut(&RecordView<'_>)) -> Result<Lsn> {
        while let Some(record) = self.next()? {
            each(&record);
        }
        self.checked_end()
    }

    /// As [`LogScan::finish_with`].
    ///
    /// # Errors
    /// As [`LogScan::next`], and [`Error::Corrupt`] if the log ends below the first LSN of its
    /// epoch, where it was durable.
    pub(crate) fn finish(mut self) -> Result<Lsn> {
        self.finish_with(|_| ())
    }

    fn checked_end(&self) -> Result<Lsn> {
        let (end, first) = (self.end(), self.rule.first_lsn);
        if end < first {
            let what = format!("the log ends at {end}, but had been durable up to {first}");
            return Err(Error::corrupt(self.window.device.name(), None, what));
        }
        // Only before this recovery appends: redo scans the log beside its own appends.
        match self.newer {
            Some(epoch) if !planted(Bug::AppendBeforeEpochSync) => {
                let what = format!("the log goes on at {end} in epoch {epoch}, which no superblock knows");
                Err(Error::corrupt(self.window.device.name(), None, what))
            }
            _ => Ok(end),
        }
    }
}

/// Looks for proof that the damaged one of two superblocks was the newer one: a record written
/// over what follows `cut`, or more records in a longer ring.
///
/// # Errors
/// [`Error::Corrupt`] if there is any, [`Error::Io`], [`Error::Memory`].
pub(crate) fn check_not_outrun(
    device: Arc<dyn BlockDevice>,
    geometry: Geometry,
    cut: Lsn,
    rule: EpochRule,
) -> Result<()> {
    let first = block_floor(cut.0).saturating_add(geometry.capacity());
    let end = first.saturating_add(geometry.capacity());
    let mut window = Window::new(Arc::clone(&device), Arc::new(Present::new(geometry)), end)?;
    let outrun = |what: String| {
        let what = format!(
            "the superblock that is left cuts the log at {cut}, but {what}: the newer superblock is damaged; what is \
             left can be saved with `terrace repair`"
        );
        Err(Error::corrupt(device.name(), None, what))
    };
    for lsn in (first..end).step_by(RECORD_ALIGNMENT) {
        if window.record(Lsn(lsn))?.is_some() {
            return outrun(format!("a record at {lsn} is written over it"));
        }
    }
    let end_in = |ring: Geometry| {
        let mut records = LogScan::new(Arc::clone(&device), ring, cut, rule)?;
        while records.next()?.is_some() {}
        Ok::<_, Error>(records.end())
    };
    let (end, mut ring) = (end_in(geometry)?, geometry);
    while let Some(longer) = ring.doubled().filter(|longer| longer.file_bytes() <= device.len()) {
        if end_in(longer)? > end {
            return outrun(format!("it goes on at {end} in a ring of {} bytes", longer.capacity()));
        }
        ring = longer;
    }
    Ok(())
}

/// Whether `record` may follow one of `epoch`.
fn epoch_fits(rule: EpochRule, epoch: u32, record: &RecordView<'_>) -> bool {
    if planted(Bug::NoEpochInRecords) {
        return true;
    }
    if record.lsn() >= rule.first_lsn {
        record.epoch() == rule.epoch
    } else {
        (epoch..rule.epoch).contains(&record.epoch()) && record.end() <= rule.first_lsn
    }
}

/// Reads single records by LSN, for undo: mostly in descending order.
pub(crate) struct RecordReader {
    window: Window,
}

impl RecordReader {
    /// Reads records from `cut` to `end`, which a scan has validated. The log may grow meanwhile.
    ///
    /// # Errors
    /// [`Error::Memory`].
    pub(super) fn new(
        device: Arc<dyn BlockDevice>,
        present: Arc<Present>,
        cut: Lsn,
        end: Lsn,
    ) -> Result<Self> {
        let limit = block_floor(cut.0).saturating_add(present.get().capacity());
        Ok(Self { window: Window::new(device, present, limit.min(end.0.next_multiple_of(BLOCK)))? })
    }

    /// The record at `lsn`.
    ///
    /// # Errors
    /// [`Error::Io`], or [`Error::Corrupt`] if no record is there.
    pub(crate) fn read_record_at(&mut self, lsn: Lsn) -> Result<RecordView<'_>> {
        if lsn.0 < self.window.from {
            // Descending: the records below follow.
            let below = block_floor(lsn.0).saturating_sub(self.window.buffer.len() as u64 - 2 * BLOCK);
            let lowest = self.window.limit.saturating_sub(self.window.begun.capacity());
            self.window.load(below.max(lowest), 0)?;
        }
        let name = self.window.device.name().to_owned();
        let record = self.window.record(lsn)?;
        record.ok_or_else(|| Error::corrupt(&name, None, format!("no log record at {lsn}")))
    }
}

struct Window {
    device: Arc<dyn BlockDevice>,
    /// The ring when the reading began, and as it is.
    begun: Geometry,
    present: Arc<Present>,
    limit: u64,
    buffer: AlignedBuffer,
    from: u64,
    to: u64,
}

impl Window {
    fn new(device: Arc<dyn BlockDevice>, present: Arc<Present>, limit: u64) -> Result<Self> {
        let begun = present.get();
        Ok(Self { device, begun, present, limit, buffer: buffer(window_bytes(begun))?, from: 0, to: 0 })
    }

    fn record(&mut self, lsn: Lsn) -> Result<Option<RecordView<'_>>> {
        self.cover(lsn.0, HEADER_BYTES)?;
        // A claim may be anything: the longest record and the limit bound it.
        let Some(length) = claim(self.from(lsn.0), lsn).map(|claim| claim.length) else {
            return Ok(None);
        };
        self.cover(lsn.0, length)?;
        match RecordView::parse(self.from(lsn.0), lsn) {
            Ok(record) => Ok(Some(record)),
            Err(NotARecord::Absent) => Ok(None),
            Err(NotARecord::Malformed(what)) => {
                let what = format!("the log record at {lsn} has {what}");
                Err(Error::corrupt(self.device.name(), None, what))
            }
        }
    }

    fn from(&self, lsn: u64) -> &[u8] {
        match (self.from..self.to).contains(&lsn) {
            true => &self.buffer[(lsn - self.from) as usize..(self.to - self.from) as usize],
            false => &[],
        }
    }

    /// Loads `bytes` from `lsn` on, as far as they are below the limit.
    fn cover(&mut self, lsn: u64, bytes: usize) -> Result<()> {
        let end = lsn.saturating_add(bytes as u64);
        if self.from <= lsn && end <= self.to || end > self.limit {
            return Ok(());
        }
        self.load(block_floor(lsn), bytes)
    }

    /// Loads a window from `from`, a multiple of the block size. It has at least `bytes` behind its
    /// first block.
    fn load(&mut self, from: u64, bytes: usize) -> Result<()> {
        debug_assert!(bytes <= RECORD_BYTES_MAX);
        let wanted = (bytes + BLOCK as usize).next_multiple_of(BLOCK as usize);
        if wanted > self.buffer.len() {
            self.buffer = buffer(wanted)?;
        }
        (self.from, self.to) = (from, from);
        let length = (self.buffer.len() as u64).min(self.limit.saturating_sub(from)) as usize;
        loop {
            let ring = if planted(Bug::ReadOldRing) { self.begun } else { self.present.get() };
            read(&*self.device, ring, from, &mut self.buffer[..length])?;
            // Once the ring has grown, new records go over what was there.
            if ring == self.present.get() || planted(Bug::ReadOldRing) {
                break;
            }
        }
        self.to = from + length as u64;
        Ok(())
    }
}

/// No window is longer than the log.
fn window_bytes(geometry: Geometry) -> usize {
    geometry.capacity().min(WINDOW_BYTES as u64) as usize
}

pub(super) fn buffer(bytes: usize) -> Result<AlignedBuffer> {
    AlignedBuffer::try_zeroed(bytes).map_err(|source| Error::Memory {
        bytes: bytes as u64,
        what: "reading the log",
        source,
    })
}

/// Reads whole blocks, across the end of the file if needed.
pub(super) fn read(
    device: &dyn BlockDevice,
    geometry: Geometry,
    mut lsn: u64,
    mut blocks: &mut [u8],
) -> Result<()> {
    while !blocks.is_empty() {
        let length = geometry.contiguous(lsn).min(blocks.len() as u64);
        let (part, rest) = blocks.split_at_mut(length as usize);
        let offset = geometry.offset(lsn);
        device
            .read_at(offset, part)
            .map_err(|source| Error::io("read", device.name(), Some(offset), source))?;
        (lsn, blocks) = (lsn + length, rest);
    }
    Ok(())
}

/// Copies the blocks that have another offset in `new`, a longer ring. Syncs nothing. Returns
/// whether there were any.
///
/// `live` is a range of LSNs that `old` holds, of whole blocks.
///
/// # Errors
/// [`Error::Io`], [`Error::Memory`].
pub(super) fn copy(device: &dyn BlockDevice, old: Geometry, new: Geometry, live: Range<u64>) -> Result<bool> {
    let moved = old.moved(new, live.start, live.end);
    if moved.is_empty() || planted(Bug::LogLeftBehind) {
        return Ok(false);
    }
    let mut window = buffer(window_bytes(old))?;
    let mut at = moved.start;
    while at < moved.end {
        let length = (moved.end - at).min(old.contiguous(at)).min(window.len() as u64);
        let blocks = &mut window[..length as usize];
        read(device, old, at, blocks)?;
        let offset = new.offset(at);
        device
            .write_at(offset, blocks)
            .map_err(|source| Error::io("write", device.name(), Some(offset), source))?;
        at += length;
    }
    Ok(true)
}

/// Appends to the log's file what `ring` holds beyond its end `from`, and syncs. Returns the end of
/// the log. The scan with `rule` that found `from` began at `cut`.
///
/// # Errors
/// [`Error::Io`], [`Error::Memory`]; [`Error::Corrupt`] for a malformed record, and for one of an
/// epoch that no superblock knows.
pub(crate) fn file_ring(
    device: &dyn BlockDevice,
    geometry: Geometry,
    ring: &RingMemory,
    (cut, from): (Lsn, Lsn),
    rule: EpochRule,
) -> Result<Lsn> {
    let end = end_of_ring(geometry, ring, (cut, from), rule)?;
    if end == from || planted(Bug::AppendBeforeFiling) {
        return Ok(end);
    }
    let mut window = buffer(window_bytes(geometry))?;
    let mut at = block_floor(from.0);
    while at < end.0 {
        let blocks = end.0.next_multiple_of(BLOCK) - at;
        let length = blocks.min(geometry.contiguous(at)).min(window.len() as u64);
        let blocks = &mut window[..length as usize];
        let old = from.0.saturating_sub(at) as usize;
        if old > 0 {
            read(device, geometry, at, &mut blocks[..BLOCK as usize])?;
        }
        let filled = (end.0 - at).min(length) as usize;
        ring.read(at + old as u64, &mut blocks[old..filled]);
        // Nothing behind the end may look like a record.
        blocks[filled..].fill(0);
        let offset = geometry.offset(at);
        device
            .write_at(offset, blocks)
            .map_err(|source| Error::io("write", device.name(), Some(offset), source))?;
        at += length;
    }
    device.sync().map_err(|source| Error::io("sync", device.name(), None, source))?;
    Ok(end)
}

/// The end of the records in `ring` that follow the file's at `from`.
fn end_of_ring(
    geometry: Geometry,
    ring: &RingMemory,
    (cut, from): (Lsn, Lsn),
    rule: EpochRule,
) -> Result<Lsn> {
    // Neither the file nor the ring holds more.
    let limit = block_floor(cut.0).saturating_add(geometry.capacity());
    let limit = limit.min(from.0.saturating_add(ring.bytes() as u64));
    let mut record = buffer(ring.bytes())?;
    let mut at = from.0;
    while at.saturating_add(HEADER_BYTES as u64) <= limit {
        ring.read(at, &mut record[..HEADER_BYTES]);
        let Some(claim) = claim(&record[..HEADER_BYTES], Lsn(at)) else { break };
        if claim.length as u64 > limit - at {
            break;
        }
        ring.read(at, &mut record[..claim.length]);
        let found = match RecordView::parse(&record[..claim.length], Lsn(at)) {
            Ok(found) => found,
            Err(NotARecord::Absent) => break,
            Err(NotARecord::Malformed(what)) => {
                return Err(Error::corrupt(ring.name(), None, format!("the log record at {at} has {what}")));
            }
        };
        if found.epoch() > rule.epoch {
            let what =
                format!("the log goes on at {at} in epoch {}, which no superblock knows", found.epoch());
            return Err(Error::corrupt(ring.name(), None, what));
        }
        if found.epoch() < rule.epoch && !planted(Bug::RingOfEarlierLife) {
            break;
        }
        at = found.end().0;
    }
    Ok(Lsn(at))
}

/// Rewrites the log from `from` to `to` in place and syncs: a killed process may leave bytes that
/// can be read, but that a power cut would still lose.
///
/// # Errors
/// [`Error::Io`], [`Error::Memory`].
pub(crate) fn rewrite_tail(device: &dyn BlockDevice, geometry: Geometry, from: Lsn, to: Lsn) -> Result<()> {
    let end = to.0.next_multiple_of(BLOCK);
    let mut at = block_floor(from.0).max(end.saturating_sub(geometry.capacity()));
    let mut window = buffer(window_bytes(geometry))?;
    while at < end {
        let length = (end - at).min(geometry.contiguous(at)).min(window.len() as u64);
        let blocks = &mut window[..length as usize];
        read(device, geometry, at, blocks)?;
        let offset = geometry.offset(at);
        device
            .write_at(offset, blocks)
            .map_err(|source| Error::io("write", device.name(), Some(offset), source))?;
        at += length;
    }
    device.sync().map_err(|source| Error::io("sync", device.name(), None, source))
}
