//! YCSB's operations over records.

use terrace::{Db, Table};
use terrace_common::failure::{Failure, Outcome};
use terrace_common::values;
use terrace_io::VirtualTime;

use super::loaded::TABLE;
use super::versions::Versions;
use super::work::Work;
use crate::workload::fields::Fields;
use crate::workload::ycsb::{Kind, Operation, Stream};

/// The workers' operations, and the records.
pub(super) struct Records {
    pub(super) table: Table,
    pub(super) records: u64,
    pub(super) streams: Vec<Stream>,
    pub(super) value_bytes: usize,
    pub(super) fields: Option<Fields>,
    pub(super) versions: Option<Versions>,
    /// Computation of an operation.
    pub(super) nanoseconds: u64,
    /// Updates of a field write the bytes of the load.
    pub(super) rewrites: bool,
    /// Scratch memory.
    pub(super) value: Vec<u8>,
}

impl Records {
    /// Reads at most `most` entries in order from key `number` on, and counts them.
    fn count(&self, number: u64, most: u64) -> Outcome<u64> {
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let mut entries = self.table.range(values::key(number)..).take(most);
        Ok(entries.try_fold(0, |found, entry| entry.map(|_| found + 1))?)
    }

    fn request(&mut self, operation: Operation) -> Outcome {
        let Operation { kind, number, version, scan_length } = operation;
        let key = values::key(number);
        let right = match (kind, self.fields) {
            (Kind::Read, Some(fields)) => {
                let field = fields.pick(version);
                let part = self.table.get_range(key, fields.range(field))?;
                part.is_some_and(|part| fields.check_one(number, field, &part))
            }
            (Kind::Update, Some(fields)) => {
                let field = fields.pick(version);
                let version = if self.rewrites { 0 } else { version };
                fields.fill_one(number, field, version, &mut self.value);
                self.table.update_range(key, fields.range(field).start, &self.value)?
            }
            (_, Some(_)) => return Err(Failure::Work("values of fields are read and updated only".into())),
            (Kind::Read, None) => {
                if let Some(versions) = &mut self.versions {
                    versions.note_read(&number.to_be_bytes())?;
                }
                self.is_right(number, self.table.get(key)?.as_deref())
            }
            (Kind::Update | Kind::Insert, None) => {
                self.write(key, number, version)?;
                if let Some(versions) = &mut self.versions {
                    versions.note_change(&number.to_be_bytes(), &self.value)?;
                }
                true
            }
            (Kind::ReadModifyWrite, None) => {
                let right = self.is_right(number, self.table.get(key)?.as_deref());
                self.write(key, number, version)?;
                right
            }
            (Kind::Scan, None) => self.count(number, scan_length)? > 0,
        };
        match right {
            true => Ok(()),
            false => Err(Failure::Damaged(format!("the value of record {number} is wrong or missing"))),
        }
    }

    fn write(&mut self, key: [u8; values::KEY_BYTES], number: u64, version: u64) -> Outcome {
        values::fill(number, version, self.value_bytes, &mut self.value);
        Ok(self.table.put(key, &self.value)?)
    }

    fn is_right(&self, number: u64, value: Option<&[u8]>) -> bool {
        value.is_some_and(|value| values::check(number, self.value_bytes, value))
    }
}

impl Work for Records {
    fn step(&mut self, worker: usize, time: &VirtualTime) -> Outcome {
        time.spend(worker, self.nanoseconds);
        let operation = self.streams[worker].next_operation();
        self.request(operation)
    }

    fn read_all(&self) -> Outcome {
        let (found, records) = (self.count(0, u64::MAX)?, self.records);
        match found == records {
            true => self.versions.as_ref().map_or(Ok(()), Versions::read_all),
            false => Err(Failure::Damaged(format!("{found} of {records} records were loaded"))),
        }
    }

    fn scan(&mut self, worker: usize, time: &VirtualTime, number: u64, rows: u64, row_ns: u64) -> Outcome {
        time.spend(worker, self.nanoseconds + rows * row_ns);
        match self.count(number, rows)? {
            found if found == rows => Ok(()),
            found => Err(Failure::Damaged(format!("{found} of {rows} records from {number} on"))),
        }
    }

    fn rewrite(&mut self) -> Outcome {
        self.rewrites = true;
        Ok(())
    }

    fn reopen(&mut self, db: &Db) -> Outcome {
        self.table = db.open_table(TABLE)?;
        if self.versions.is_some() {
            self.versions = Some(Versions::open(db, self.records)?);
        }
        Ok(())
    }
}

/// Tree levels, for the computation cost: inner nodes hold hundreds of keys, leaves as many records
/// as fit.
pub(super) fn levels(records: u64, page_bytes: u64, value_bytes: u64) -> u64 {
    let key_bytes = values::KEY_BYTES as u64;
    let (fan_out, per_leaf) = (page_bytes / (key_bytes + 16), page_bytes / (key_bytes + value_bytes + 16));
    let (mut levels, mut pages) = (1, records.div_ceil(per_leaf.max(1)));
    while pages > 1 {
        pages = pages.div_ceil(fan_out.max(2));
        levels += 1;
    }
    levels
}
