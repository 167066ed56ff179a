//! The log: drawing and filling slots, the two watermarks, the ring in persistent memory, and a
//! file that doubles.

use crate::disk::{Kind, LOG_LARGEST, RING, Record, SEGMENT, Superblock};
use crate::flags::Flag;
use crate::world::{Growth, Log, Outcome, World};

impl Log {
    /// A log that ends at `end`, as recovery leaves it.
    pub fn at_recovery(superblock: &Superblock, end: u32, has_ring: bool) -> Self {
        Self {
            tail: end + 1,
            durable: end,
            filed: end,
            file_written: end,
            epoch: superblock.epoch,
            epoch_first: superblock.epoch_first,
            cut: superblock.cut,
            capacity: superblock.capacity,
            unfilled: Vec::new(),
            holds_next: false,
            growth: None,
            has_ring,
        }
    }

    /// Records that the file has room for.
    pub fn room(&self) -> u32 {
        (self.cut / SEGMENT * SEGMENT + self.capacity).saturating_sub(self.tail)
    }

    /// The end of the log without holes.
    fn complete(&self) -> u32 {
        self.unfilled.iter().map(|record| record.lsn).min().unwrap_or(self.tail) - 1
    }
}

impl World {
    /// Whether `records` may be appended now, without what others have reserved.
    pub fn may_append(&self, records: u32) -> bool {
        self.may_append_reserved() && self.life.log.room() >= records + self.reserved()
    }

    /// Whether a record may be appended for which there is a reservation.
    pub fn may_append_reserved(&self) -> bool {
        let log = &self.life.log;
        let filed = if self.lacks(Flag::RingRoomByPersistent) { log.durable } else { log.filed };
        let is_ring_full = log.has_ring && log.tail - filed > RING;
        !self.is_blocked() && log.room() > 0 && !is_ring_full
    }

    /// Draws an LSN and fills its slot, at once or later.
    pub fn append(&mut self, kind: Kind) -> Record {
        let log = &mut self.life.log;
        let record = Record { lsn: log.tail, epoch: log.epoch, kind };
        log.tail += 1;
        if std::mem::take(&mut log.holds_next) {
            log.unfilled.push(record);
            self.note(|| format!("(record {} is drawn and not filled)", record.lsn));
        } else {
            self.store(record);
        }
        record
    }

    fn store(&mut self, record: Record) {
        if self.life.log.has_ring {
            self.disk.ring[(record.lsn % RING) as usize].set(Some(record));
        } else {
            self.write_file(record.lsn, Some(record));
        }
    }

    fn write_file(&mut self, lsn: u32, record: Option<Record>) {
        let log = &self.life.log;
        self.disk.log[(lsn % log.capacity) as usize].set(record);
        if let Some(growth) = log.growth
            && !self.lacks(Flag::LogInOldRing)
        {
            self.disk.log[(lsn % growth.to) as usize].set(record);
        }
    }

    /// The next record is drawn and not filled.
    pub fn hold(&mut self) -> Outcome {
        let log = &mut self.life.log;
        if log.holds_next || log.unfilled.len() > 1 {
            return Ok(false);
        }
        log.holds_next = true;
        Ok(true)
    }

    /// Fills the oldest such record.
    pub fn fill(&mut self) -> Outcome {
        if self.life.log.unfilled.is_empty() {
            return Ok(false);
        }
        let record = self.life.log.unfilled.remove(0);
        self.store(record);
        self.note(|| format!("record {} is filled", record.lsn));
        Ok(true)
    }

    /// Makes filled records durable: a sync of the file, or fences of the ring.
    pub fn sync_log(&mut self) -> Outcome {
        let log = &self.life.log;
        let copies = !log.has_ring && log.growth.is_some_and(|growth| !growth.is_synced);
        let end = if self.lacks(Flag::WatermarkAsMaximum) { log.tail - 1 } else { log.complete() };
        if log.durable == end && !copies {
            return Ok(false);
        }
        if !log.has_ring {
            self.sync_file();
        } else if !self.lacks(Flag::RingNotFenced) {
            self.disk.ring.iter_mut().for_each(crate::cell::Cell::sync);
        }
        let log = &mut self.life.log;
        log.durable = end;
        if !log.has_ring {
            log.filed = end;
            log.file_written = end;
        }
        self.note(|| format!("the log is durable to {end}"));
        self.absorb_durable();
        Ok(true)
    }

    fn sync_file(&mut self) {
        self.disk.sync_log();
        if let Some(growth) = &mut self.life.log.growth {
            growth.is_synced = true;
        }
    }

    /// Copies persistent records from the ring to the file.
    pub fn file_ring(&mut self) -> Outcome {
        let log = &self.life.log;
        let (from, to) = (log.file_written + 1, log.durable);
        if !log.has_ring || from > to {
            return Ok(false);
        }
        for lsn in from..=to {
            let record = self.disk.ring[(lsn % RING) as usize].get();
            self.write_file(lsn, record);
        }
        self.life.log.file_written = to;
        if self.lacks(Flag::RingRoomBeforeSync) {
            self.life.log.filed = to;
        }
        self.note(|| format!("records {from} to {to} are written to the file"));
        Ok(true)
    }

    /// Syncs the file below a ring.
    pub fn sync_filed(&mut self) -> Outcome {
        let log = &self.life.log;
        let copies = log.growth.is_some_and(|growth| !growth.is_synced);
        if !log.has_ring || (log.filed == log.file_written && !copies) {
            return Ok(false);
        }
        self.sync_file();
        let log = &mut self.life.log;
        log.filed = log.file_written;
        self.note(|| "the file is synced".to_owned());
        Ok(true)
    }

    /// Begins to double the file: length, then copies of records whose slots change. Recovery may
    /// do so too, once it may append.
    pub fn grow(&mut self) -> Outcome {
        let log = &self.life.log;
        let is_busy = log.growth.is_some() || self.life.backup.is_some() || self.life.is_closing;
        if is_busy || self.is_blocked() || log.capacity == LOG_LARGEST {
            return Ok(false);
        }
        let (from, old) = (log.cut / SEGMENT * SEGMENT, log.capacity);
        let (to, end) = (2 * old, log.tail);
        self.disk.log_length.set(to);
        self.disk.log_length.sync();
        for lsn in from..end {
            let record = self.disk.log[(lsn % old) as usize].get();
            let is_there = record.is_some_and(|record| record.lsn == lsn);
            if is_there && lsn % old != lsn % to && !self.lacks(Flag::LogLeftBehind) {
                self.disk.log[(lsn % to) as usize].set(record);
            }
        }
        self.life.log.growth = Some(Growth { to, is_synced: false });
        self.note(|| format!("the log grows to {to} records: copies are written"));
        Ok(true)
    }

    /// Writes the superblock that names the new capacity.
    pub fn announce_growth(&mut self) -> Outcome {
        let Some(growth) = self.life.log.growth else { return Ok(false) };
        let is_early = !growth.is_synced && !self.lacks(Flag::AnnounceBeforeCopySync);
        if is_early || self.life.pending.is_some() || self.life.is_closing {
            return Ok(false);
        }
        self.write_superblock(self.life.log.cut, growth.to);
        self.note(|| format!("a superblock with a log of {} records is written", growth.to));
        Ok(true)
    }
}
