//! Opens databases with the engine of this workspace, behind the traits of [`crate::store`].
//!
//! Databases that are only looked at are opened read-only, which writes nothing. One that was not closed cannot be:
//! it needs recovery first. It is then opened for writing, which recovers it, and looked at like that.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use terrace::{Db, Error, MemoryDirectory, Stats, Table, TableStats, Transaction, WriteBatch};

use crate::failure::{Failure, Outcome};
use crate::store::{
    Access, Counters, Damage, Database, Durability, Ending, Opener, Settings, Stat, Store, TableStat,
    Verification, Visit,
};
use crate::units::show_size;

/// The engine of this workspace.
pub struct Engine;

impl Opener for Engine {
    fn open(&self, settings: &Settings) -> Outcome<Box<dyn Database>> {
        let durability = match settings.durability {
            Durability::Sync => terrace::Durability::Sync,
            Durability::Buffered => terrace::Durability::Buffered,
        };
        // The seed is the workloads'. A database is never seeded: its identity keeps its files from being mixed up with
        // another's.
        let open = |read_only: bool| {
            let mut builder =
                Db::builder().create(settings.create).read_only(read_only).durability(durability);
            if let Some(bytes) = settings.dram_bytes {
                builder = builder.dram(bytes);
            }
            if let Some(bytes) = settings.page_bytes {
                builder = builder.page_size(bytes);
            }
            if let Some(bytes) = settings.log_bytes_max {
                builder = builder.log_max(bytes);
            }
            match &settings.store {
                Some(path) => builder.open(path),
                None => builder.directory(Arc::new(MemoryDirectory::new())).open(""),
            }
        };
        let db = match open(settings.read_only) {
            // Settings that cannot be fail the second time too.
            Err(Error::Config(_)) if settings.read_only => open(false)?,
            opened => opened?,
        };
        let files = if settings.store.is_some() { "as given" } else { "none, all in memory" };
        Ok(Box::new(Opened { db, durability, durability_name: settings.durability.name(), files }))
    }
}

struct Opened {
    db: Db,
    durability: terrace::Durability,
    durability_name: &'static str,
    files: &'static str,
}

impl Database for Opened {
    fn table(&self, name: &str, create: bool) -> Outcome<Box<dyn Store>> {
        let table = if create { self.db.open_or_create_table(name)? } else { self.db.open_table(name)? };
        Ok(Box::new(Open { db: self.db.clone(), table, durability: self.durability }))
    }

    fn drop_table(&self, name: &str) -> Outcome {
        match self.db.drop_table(name) {
            Ok(()) | Err(Error::TableNotFound(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn stat(&self) -> Outcome<Stat> {
        let (stats, tables) = (self.db.stats(), self.db.table_stats()?);
        let prometheus = stats.prometheus(&tables);
        let table = |table: TableStats| TableStat {
            name: table.name,
            entries: table.entries,
            pages: Some(table.pages),
        };
        let tables = tables.into_iter().map(table).collect();
        Ok(Stat {
            format: stats.format,
            tables,
            pages: stats.live_pages,
            free_pages: (stats.file_bytes / stats.page_bytes.max(1)).saturating_sub(stats.live_pages),
            page_bytes: stats.page_bytes,
            file_bytes: stats.file_bytes,
            log_bytes: stats.log_tail.saturating_sub(stats.log_cut),
            last_checkpoint_lsn: stats.log_cut,
            budget_bytes: stats.budget_bytes,
            prometheus,
        })
    }

    fn verify(&self) -> Outcome<Verification> {
        let report = self.db.verify()?;
        let damage = |error: terrace::Damage| Damage { file: error.file, page: error.page, what: error.what };
        Ok(Verification {
            pages_checked: report.pages_checked,
            entries_checked: report.entries_checked,
            errors: report.errors.into_iter().map(damage).collect(),
        })
    }

    fn settings(&self) -> BTreeMap<&'static str, String> {
        let stats = self.db.stats();
        BTreeMap::from([
            ("version", format!("terrace {}", env!("CARGO_PKG_VERSION"))),
            ("dram", show_size(stats.budget_bytes)),
            ("page_size", show_size(stats.page_bytes)),
            ("durability", self.durability_name.to_owned()),
            ("files", self.files.to_owned()),
        ])
    }

    fn close(self: Box<Self>) -> Outcome {
        Ok(self.db.close()?)
    }
}

struct Open {
    db: Db,
    table: Table,
    durability: terrace::Durability,
}

impl Store for Open {
    fn get(&self, key: &[u8]) -> Outcome<Option<Vec<u8>>> {
        Ok(self.table.get(key)?)
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Outcome {
        Ok(self.table.put(key, value)?)
    }

    fn delete(&self, key: &[u8]) -> Outcome<bool> {
        Ok(self.table.delete(key)?)
    }

    fn write(&self, entries: &[(Vec<u8>, Vec<u8>)]) -> Outcome {
        let mut batch = WriteBatch::new();
        for (key, value) in entries {
            batch.put(&self.table, key, value);
        }
        Ok(self.db.write(batch, self.durability)?)
    }

    fn transact(&self, body: &mut dyn FnMut(&mut dyn Access) -> Outcome<Ending>) -> Outcome<u64> {
        // The engine aborts when its closure fails. Why is kept aside, so that an abort that was asked for is no error
        // and a failure that is not the engine's comes out as it was.
        let mut aside: Option<Outcome> = None;
        let mut runs = 0u64;
        let done = self.db.update(|transaction| {
            runs += 1;
            aside = None;
            let reason = match body(&mut Inside { transaction, table: &self.table }) {
                Ok(Ending::Commit) => return Ok(()),
                // A conflict must reach the engine, which then runs the transaction again.
                Err(Failure::Engine(error)) => return Err(error),
                Ok(Ending::Abort) => Ok(()),
                Err(other) => Err(other),
            };
            aside = Some(reason);
            Err(Error::Config("the transaction was aborted by its body".to_owned()))
        });
        match (done, aside) {
            (Err(Error::Config(_)), Some(reason)) => reason?,
            (done, _) => done?,
        }
        Ok(runs.saturating_sub(1))
    }

    fn scan(&self, from: &[u8], visit: &mut Visit<'_>) -> Outcome {
        for entry in self.table.range::<&[u8]>((Bound::Included(from), Bound::Unbounded)) {
            let (key, value) = entry?;
            if visit(&key, &value).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn counters(&self) -> Counters {
        counters(&self.db.stats())
    }
}

/// What the engine counts, in the words of the command. Hits are not counted: a hit writes nothing.
fn counters(stats: &Stats) -> Counters {
    Counters {
        budget_bytes: stats.budget_bytes,
        dram_capacity_bytes: stats.frame_bytes,
        store_capacity_bytes: stats.file_bytes,
        store_hits: stats.faults,
        store_read_bytes: stats.read_bytes,
        store_written_bytes: stats.written_bytes,
        log_bytes: stats.log_flushed_bytes,
        store_to_dram: stats.faults,
        dram_to_store: stats.images_written,
        aborts: stats.conflicts,
        stalls: stats.stalls.by_reason().map(|(reason, count)| (reason.to_owned(), count)).collect(),
    }
}

struct Inside<'a> {
    transaction: &'a mut Transaction,
    table: &'a Table,
}

impl Access for Inside<'_> {
    fn get(&mut self, key: &[u8]) -> Outcome<Option<Vec<u8>>> {
        Ok(self.transaction.get(self.table, key)?)
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Outcome {
        Ok(self.transaction.put(self.table, key, value)?)
    }
}
