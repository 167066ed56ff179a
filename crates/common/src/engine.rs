//! Opens Terrace databases behind the traits of [`crate::store`].
//!
//! Commands that only read open a database read-only, which writes nothing. After a crash a
//! read-only open recovers in memory. If memory is too small for that, a warning says so, and the
//! database is opened for writing, which recovers it on disk.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::ops::{Bound, ControlFlow, Range};
use std::path::Path;
use std::sync::Arc;

use terrace::{
    Backup, BackupReport, Compaction, Db, Error, LineWrites, MemoryDirectory, Stats, Table, Transaction,
    VerifyReport, WriteBatch,
};

use terrace_io::units::{exact_size, show_size};

use crate::escape;
use crate::failure::{Failure, Outcome};
use crate::store::{
    Access, Counters, Database, Ending, LogPosition, MiddleStat, Opener, Settings, Stat, Store, Visit,
};
use crate::tiers::{TierArgs, durability_name};

/// Terrace as an [`Opener`].
pub struct Engine;

impl Opener for Engine {
    fn open(&self, settings: &Settings) -> Outcome<Box<dyn Database>> {
        let Settings { tiers, .. } = settings;
        if let Some(path) = settings.store.as_ref().filter(|_| settings.create) {
            refuse_foreign(path)?;
        }
        let open = |read_only: bool| {
            let builder = tiers.builder()?.create(settings.create).read_only(read_only);
            match &settings.store {
                Some(path) => builder.open(path),
                None => builder.directory(Arc::new(MemoryDirectory::new())).open(""),
            }
        };
        let db = match open(settings.read_only) {
            Err(error @ Error::NeedsRecovery { .. }) if settings.read_only => {
                tracing::warn!(
                    "too little --dram to recover in memory what was not closed; recovering it on disk"
                );
                // Without permission to write, more memory is what helps.
                open(false).map_err(|second| if is_refused(&second) { error } else { second })?
            }
            // The budget may do for an open that keeps no changes. Other settings fail again.
            Err(Error::Config(_)) if settings.read_only => open(false)?,
            opened => opened.map_err(|error| of_budget(error, tiers.memory.dram))?,
        };
        let files = if settings.store.is_some() { "as given" } else { "none, all in memory" };
        Ok(Box::new(Opened {
            db,
            middle: tiers.middle.middle.as_ref().map(|middle| middle.kind().to_string()),
            cache: tiers
                .cache
                .cache
                .as_ref()
                .map(|cache| format!("{}, {}", cache.kind(), show_size(cache.bytes()))),
            tiers: tiers.clone(),
            files,
        }))
    }
}

/// Whether the system does not let this user write.
fn is_refused(error: &Error) -> bool {
    let kinds = [ErrorKind::PermissionDenied, ErrorKind::ReadOnlyFilesystem];
    matches!(error, Error::Io { source, .. } if kinds.contains(&source.kind()))
}

/// Names the flag, and the budget as asked for, that the system has no memory for.
fn of_budget(error: Error, dram: Option<u64>) -> Failure {
    match (error, dram) {
        (error @ Error::Memory { .. }, Some(bytes)) => {
            Failure::Work(format!("--dram {}: {error}", exact_size(bytes)))
        }
        (error, _) => error.into(),
    }
}

/// Refuses to make a database among other files: the path is probably mistyped.
fn refuse_foreign(path: &Path) -> Outcome {
    let Ok(entries) = std::fs::read_dir(path) else { return Ok(()) };
    let names: Vec<_> = entries.flatten().map(|entry| entry.file_name()).collect();
    // Files of a database, of a backup, or of one that was begun; the engine judges those.
    let is_ours = |name: &OsString| {
        let name = Path::new(name);
        let endings = ["terrace", "new", "backup", "partial", "restoring", "salvage", "repaired"];
        name == Path::new("lock") || endings.iter().any(|ending| name.extension() == Some(OsStr::new(ending)))
    };
    match names.is_empty() || names.iter().any(is_ours) {
        true => Ok(()),
        false => Err(Failure::Work(format!(
            "{} has files, but no database; name a new or an empty directory",
            escape::path(path)
        ))),
    }
}

/// Verifies the backup in directory `path`, if it is one.
pub fn check_backup(path: &Path) -> Outcome<Option<VerifyReport>> {
    match Backup::is_at(path) {
        true => Ok(Some(Backup::open(path)?.check()?)),
        false => Ok(None),
    }
}

/// Salvages intact data from the database `source` into a new one.
pub fn repair(settings: &Settings, source: &Path, target: &Path) -> Outcome<terrace::RepairReport> {
    Ok(settings.tiers.builder()?.repair(source, target)?)
}

/// Restores a backup to a new database.
pub fn restore(source: &Path, target: &Path) -> Outcome<BackupReport> {
    Ok(Backup::open(source)?.restore(target)?)
}

struct Opened {
    db: Db,
    tiers: TierArgs,
    middle: Option<String>,
    cache: Option<String>,
    files: &'static str,
}

impl Database for Opened {
    fn table(&self, name: &str, create: bool) -> Outcome<Box<dyn Store>> {
        let table = match self.db.open_table(name) {
            Err(Error::TableNotFound(_)) if create => {
                self.db.create_table_with(name, &self.tiers.layout.table_options())?
            }
            Err(Error::TableNotFound(name)) => {
                let advice = "`terrace stat` lists the tables";
                return Err(Failure::Work(format!("there is no table named {name:?}; {advice}")));
            }
            found => found?,
        };
        Ok(Box::new(Open { db: self.db.clone(), table, durability: self.tiers.commits.durability }))
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
        Ok(Stat {
            format: stats.format,
            tables,
            pages: stats.live_pages,
            free_pages: stats.file_bytes.saturating_sub(stats.live_bytes) / stats.page_bytes.max(1),
            page_bytes: stats.page_bytes,
            file_bytes: stats.file_bytes,
            log_bytes: stats.log_tail.saturating_sub(stats.log_cut),
            last_checkpoint_lsn: stats.log_cut,
            budget_bytes: stats.budget_bytes,
            frames: stats.frame_classes.clone(),
            middle: stats.middle.as_ref().map(|middle| MiddleStat {
                bytes: middle.capacity_bytes,
                frames: middle.frames,
                other_page_bytes: {
                    let takes = |bytes| middle.classes.iter().any(|class| class.page_bytes == bytes);
                    let sizes = stats.frame_classes.iter().map(|class| class.page_bytes);
                    sizes.filter(|bytes| !takes(*bytes)).collect()
                },
                classes: middle.classes.clone(),
                other_sizes: middle.other_sizes,
            }),
            prometheus,
        })
    }

    fn verify(&self) -> Outcome<VerifyReport> {
        Ok(self.db.verify()?)
    }

    fn backup(&self, destination: &Path) -> Outcome<BackupReport> {
        Ok(self.db.backup(destination)?)
    }

    fn compact(&self, progress: &mut dyn FnMut(&Compaction) -> ControlFlow<()>) -> Outcome<Compaction> {
        Ok(self.db.compact_with(progress)?)
    }

    fn settings(&self) -> BTreeMap<&'static str, String> {
        let stats = self.db.stats();
        let mut settings = BTreeMap::from([
            ("version", format!("terrace {}", env!("CARGO_PKG_VERSION"))),
            ("dram", show_size(stats.budget_bytes)),
            ("backend", stats.backend.to_string()),
            ("page_size", show_size(stats.page_bytes)),
            ("page_table", format!("{}{}", stats.page_table, if stats.swizzled { ", swizzled" } else { "" })),
            ("compression", self.tiers.layout.compression.to_string()),
            ("durability", durability_name(self.tiers.commits.durability).to_owned()),
            ("files", self.files.to_owned()),
        ]);
        if let (Some(cache), Some(what)) = (&stats.cache, &self.cache) {
            settings.insert("cache", format!("{what}, {}", cache.policy));
        }
        if let (Some(middle), Some(what)) = (&stats.middle, &self.middle) {
            settings.insert("middle", format!("{what}, {}", show_size(middle.capacity_bytes)));
            settings.insert("policy", self.tiers.migration.policy.unwrap_or_default().to_string());
        }
        settings
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

    fn get_with(&self, key: &[u8], read: &mut dyn FnMut(&[u8])) -> Outcome<bool> {
        Ok(self.table.get_with(key, read)?.is_some())
    }

    fn get_range(&self, key: &[u8], range: Range<usize>) -> Outcome<Option<Vec<u8>>> {
        match self.table.get_range(key, range) {
            Err(Error::OutsideValue { .. }) => Ok(None),
            found => Ok(found?),
        }
    }

    fn update_range(&self, key: &[u8], at: usize, bytes: &[u8]) -> Outcome<bool> {
        match self.table.update_range(key, at, bytes) {
            Err(Error::OutsideValue { .. }) => Ok(false),
            done => Ok(done?),
        }
    }

    fn has_ranges(&self) -> bool {
        true
    }

    fn get_many(&self, keys: &[Vec<u8>]) -> Outcome<Vec<Option<Vec<u8>>>> {
        Ok(self.table.get_many(keys)?)
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
        // The engine aborts when its closure fails. The reason is kept here, so that a requested
        // abort is no error and a failure of the caller comes out unchanged.
        let mut aside: Option<Outcome> = None;
        let mut runs = 0u64;
        let done = self.db.update(|transaction| {
            runs += 1;
            aside = None;
            let reason = match body(&mut Inside { transaction, table: &self.table }) {
                Ok(Ending::Commit) => return Ok(()),
                // The engine needs to see a conflict to retry the transaction.
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
        self.table
            .scan::<&[u8], ()>((Bound::Included(from), Bound::Unbounded), |key, value| visit(key, value))?;
        Ok(())
    }

    fn scan_some(&self, from: &[u8], entries: u64, visit: &mut Visit<'_>) -> Outcome {
        let range = self.table.range::<&[u8]>((Bound::Included(from), Bound::Unbounded));
        let range = range.expect_entries(usize::try_from(entries).unwrap_or(usize::MAX));
        range.visit::<()>(|key, value| visit(key, value))?;
        Ok(())
    }

    fn counters(&self) -> Counters {
        counters(&self.db.stats())
    }

    fn line_writes(&self) -> Option<LineWrites> {
        self.db.line_writes()
    }
}

/// Maps the engine's statistics to the command's. DRAM hits are not counted: a hit writes nothing.
fn counters(stats: &Stats) -> Counters {
    // Bytes that the block cache served were not read from the store.
    let from_cache = stats.cache.as_ref().map_or(0, |cache| cache.hits * cache.block_bytes);
    let from_store = stats.read_bytes.saturating_sub(from_cache);
    // Images vary in length, so reads are split in proportion to bytes.
    let share = from_store as f64 / stats.read_bytes.max(1) as f64;
    Counters {
        budget_bytes: stats.budget_bytes,
        dram_capacity_bytes: stats.frame_bytes,
        dram_misplaced_pages: stats.misplaced_pages,
        store_capacity_bytes: stats.file_bytes,
        log_capacity_bytes: stats.log_file_bytes,
        store_hits: (stats.faults as f64 * share).round() as u64,
        store_read_bytes: from_store,
        store_written_bytes: stats.written_bytes,
        log_bytes: stats.log_flushed_bytes,
        log_position: Some(LogPosition { tail: stats.log_tail, capacity: stats.log_capacity }),
        store_to_dram: stats.middle.as_ref().map_or(stats.faults, |middle| middle.migrations.store_to_dram),
        dram_to_store: stats.middle.as_ref().map_or(stats.images_written, |middle| middle.dram_flushes),
        middle: stats.middle.clone(),
        cache: stats.cache.clone(),
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
