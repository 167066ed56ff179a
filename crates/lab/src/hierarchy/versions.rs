//! The pages that Spitfire's versions take.
//!
//! Its code keeps the header of each tuple, with the timestamps of readers and writers, in a heap
//! beside the tree: 72 bytes, 227 to a page. A read looks its header up and writes it. So reads
//! change few and hot pages, and none of the tuples'. An update also copies the old tuple to a heap
//! of versions, whose pages are freed later. Terrace has the timestamps beside its locks.
//!
//! Here headers are a table, and old versions another, which is a ring. How long the paper keeps
//! versions is unknown.

use terrace::{Db, Table};
use terrace_common::failure::{Failure, Outcome};

const HEADERS: &str = "headers";
const OLD: &str = "old versions";
/// With the key and what the tree adds to an entry 72 bytes.
const HEADER_BYTES: usize = 40;
/// Records for each old version of the ring.
const RECORDS_PER_OLD: u64 = 16;

/// Headers of all records, and old versions of some.
pub(super) struct Versions {
    headers: Table,
    old: Table,
    room: u64,
    clock: u64,
}

fn header(clock: u64) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(&clock.to_be_bytes());
    header
}

impl Versions {
    /// Makes the tables for about `records` records in a new database.
    pub(super) fn create(db: &Db, records: u64, value_bytes: usize) -> Outcome<Versions> {
        let (headers, old) = (db.create_table(HEADERS)?, db.create_table(OLD)?);
        let value = vec![0; value_bytes];
        for version in 0..Versions::room(records) {
            old.put(version.to_be_bytes(), &value)?;
        }
        Ok(Versions { headers, old, room: Versions::room(records), clock: 0 })
    }

    pub(super) fn open(db: &Db, records: u64) -> Outcome<Versions> {
        let (headers, old) = (db.open_table(HEADERS)?, db.open_table(OLD)?);
        Ok(Versions { headers, old, room: Versions::room(records), clock: 0 })
    }

    fn room(records: u64) -> u64 {
        (records / RECORDS_PER_OLD).max(1)
    }

    pub(super) fn read_all(&self) -> Outcome {
        let both = [&self.headers, &self.old];
        both.iter().try_for_each(|table| table.iter().try_for_each(|entry| entry.map(drop)))?;
        Ok(())
    }

    /// Adds the header of a new record.
    pub(super) fn note_load(&mut self, key: &[u8]) -> Outcome {
        Ok(self.headers.put(key, header(0))?)
    }

    /// Notes a look at a record.
    pub(super) fn note_read(&mut self, key: &[u8]) -> Outcome {
        match self.stamp(key)? {
            true => Ok(()),
            false => Err(Failure::Damaged("a record has no header".into())),
        }
    }

    /// Notes a change of a record, whose old value, if any, had about the length of `value`.
    pub(super) fn note_change(&mut self, key: &[u8], value: &[u8]) -> Outcome {
        if self.stamp(key)? {
            self.old.put((self.clock % self.room).to_be_bytes(), value)?;
        }
        Ok(())
    }

    /// Looks up the header of a record, and writes it. Returns whether it was there.
    fn stamp(&mut self, key: &[u8]) -> Outcome<bool> {
        self.clock += 1;
        let is_there = self.headers.get(key)?.is_some();
        self.headers.put(key, header(self.clock))?;
        Ok(is_there)
    }
}
