//! Opens databases with the engine of this workspace, behind the traits of [`crate::store`].
//!
//! Databases that are only looked at are opened read-only, which writes nothing. One that was not closed cannot be:
//! it needs recovery first. That is done in memory; where there is too little of it, the database is opened for writing, which recovers
//! it, and looked at like that.

use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::path::Path;
use std::sync::Arc;

use terrace::{
    Backup, Builder, Db, Error, FrameClass, LineWrites, MemoryDirectory, RecordCache, Stats, Table,
    TableOptions, TableStats, Transaction, WriteBatch,
};

use crate::failure::{Failure, Outcome};
use crate::store::{
    Access, Compacted, Compression, Copied, Counters, Damage, Database, Durability, Ending, FrameStat,
    MiddleStat, Opener, Settings, Stat, Store, TableStat, Verification, Visit,
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
            let builder = Db::builder().create(settings.create).read_only(read_only).durability(durability);
            let builder = with_sizes(builder, settings);
            match &settings.store {
                Some(path) => builder.open(path),
                None => builder.directory(Arc::new(MemoryDirectory::new())).open(""),
            }
        };
        let db = match open(settings.read_only) {
            // Recovery in memory had too little of that. Settings that cannot be fail the second time too.
            Err(Error::NeedsRecovery { .. } | Error::Config(_)) if settings.read_only => open(false)?,
            opened => opened?,
        };
        let files = if settings.store.is_some() { "as given" } else { "none, all in memory" };
        Ok(Box::new(Opened {
            db,
            durability,
            durability_name: settings.durability.name(),
            compression: settings.compression.name(),
            middle: settings.middle.as_ref().map(|middle| middle.kind().to_string()),
            cache: settings
                .cache
                .as_ref()
                .map(|cache| format!("{}, {}", cache.kind(), show_size(cache.bytes()))),
            policy: settings.policy.unwrap_or_default().to_string(),
            page_bytes: settings.page_bytes,
            value_page_bytes_max: settings.value_page_bytes_max,
            files,
        }))
    }
}

/// A builder with the sizes that are given.
pub(crate) fn with_sizes(mut builder: Builder, settings: &Settings) -> Builder {
    if let Some(bytes) = settings.dram_bytes {
        builder = builder.dram(bytes);
    }
    if let Some(bytes) = settings.page_bytes {
        builder = builder.page_size(bytes).page_size_max(bytes);
    }
    if let Some(backend) = settings.backend {
        builder = builder.backend(backend);
    }
    if let Some(replacement) = settings.replacement {
        builder = builder.replacement(replacement);
    }
    if let Some(middle) = &settings.middle {
        builder = builder.middle(middle.clone());
    }
    if let Some(cache) = &settings.cache {
        builder = builder.cache(cache.clone());
    }
    if let Some(policy) = settings.policy {
        builder = builder.policy(policy);
    }
    if let Some(pages) = settings.admission_queue_pages {
        builder = builder.admission_queue(pages);
    }
    if let Some(clean_victims) = settings.clean_victims {
        builder = builder.clean_victims(clean_victims);
    }
    if let Some(nodes) = &settings.dram_nodes {
        builder = builder.dram_nodes(nodes.clone());
    }
    if let Some(way) = settings.migrate {
        builder = builder.migrate(way);
    }
    if let Some(bytes) = settings.value_page_bytes_max {
        builder = builder.value_page_size_max(bytes);
    }
    builder = builder.compression(match settings.compression {
        Compression::None => terrace::Compression::None,
        Compression::Lz4 => terrace::Compression::Lz4,
    });
    if let Some(bytes) = settings.log_bytes_max {
        builder = builder.log_max(bytes);
    }
    builder = match settings.record_cache_percent {
        None => builder,
        Some(0) => builder.record_cache(RecordCache::Off),
        Some(percent) => builder.record_cache(RecordCache::Percent(percent)),
    };
    builder
}

/// Checks what is in the directory `path`, if that is a backup.
pub fn check_backup(path: &Path) -> Outcome<Option<Verification>> {
    match Backup::is_at(path) {
        true => Ok(Some(verification(Backup::open(path)?.check()?))),
        false => Ok(None),
    }
}

/// Saves what is whole in the database `source` into a new one.
pub fn repair(settings: &Settings, source: &Path, target: &Path) -> Outcome<terrace::RepairReport> {
    Ok(with_sizes(Db::builder(), settings).repair(source, target)?)
}

/// Makes a database of a backup.
pub fn restore(source: &Path, target: &Path) -> Outcome<Copied> {
    Ok(copied(Backup::open(source)?.restore(target)?))
}

fn verification(report: terrace::VerifyReport) -> Verification {
    let damage = |error: terrace::Damage| Damage { file: error.file, page: error.page, what: error.what };
    Verification {
        pages_checked: report.pages_checked,
        entries_checked: report.entries_checked,
        errors: report.errors.into_iter().map(damage).collect(),
        more_errors: report.more_errors,
    }
}

fn copied(report: terrace::BackupReport) -> Copied {
    let terrace::BackupReport { pages, page_file_bytes, log_bytes, .. } = report;
    Copied { pages, page_file_bytes, log_bytes }
}

struct Opened {
    db: Db,
    durability: terrace::Durability,
    durability_name: &'static str,
    compression: &'static str,
    /// The kind of the middle tier, where it was given, and the policy.
    middle: Option<String>,
    /// The kind and the size of the cache, where it was given.
    cache: Option<String>,
    policy: String,
    /// Of tables that are made, where it was given.
    page_bytes: Option<u64>,
    value_page_bytes_max: Option<u64>,
    files: &'static str,
}

impl Database for Opened {
    fn table(&self, name: &str, create: bool) -> Outcome<Box<dyn Store>> {
        let table = match self.db.open_table(name) {
            Err(Error::TableNotFound(_)) if create => {
                let options = TableOptions::new();
                let options = self.page_bytes.into_iter().fold(options, TableOptions::page_size);
                let values = self.value_page_bytes_max.into_iter();
                let options = values.fold(options, TableOptions::value_page_size_max);
                self.db.create_table_with(name, &options)?
            }
            found => found?,
        };
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
            entries_exact: table.entries_exact,
            pages: table.pages,
            page_bytes: table.page_bytes,
            value_page_bytes_max: table.value_page_bytes_max,
            compression: table.compression.to_string(),
        };
        let tables = tables.into_iter().map(table).collect();
        let frames = |class: &FrameClass| FrameStat {
            page_bytes: class.page_bytes,
            frames: class.frames,
            bytes: class.bytes,
            resident_bytes: class.resident_bytes,
            huge_pages: class.huge_pages,
            gained: class.gained,
            lost: class.lost,
        };
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
            frames: stats.frame_classes.iter().map(frames).collect(),
            middle: stats.middle.as_ref().map(|middle| MiddleStat {
                bytes: middle.capacity_bytes,
                frames: middle.frames,
                page_bytes: middle.page_bytes,
                other_page_bytes: {
                    let sizes = stats.frame_classes.iter().map(|class| class.page_bytes);
                    sizes.filter(|bytes| *bytes != middle.page_bytes).collect()
                },
                other_sizes: middle.other_sizes,
            }),
            prometheus,
        })
    }

    fn verify(&self) -> Outcome<Verification> {
        Ok(verification(self.db.verify()?))
    }

    fn backup(&self, destination: &Path) -> Outcome<Copied> {
        Ok(copied(self.db.backup(destination)?))
    }

    fn compact(&self, progress: &mut dyn FnMut(&Compacted)) -> Outcome<Compacted> {
        let compacted = |done: &terrace::Compaction| Compacted {
            file_bytes_before: done.file_bytes_before,
            file_bytes_after: done.file_bytes_after,
            pages_moved: done.pages_moved,
        };
        let done = self.db.compact_with(|so_far| {
            progress(&compacted(so_far));
            ControlFlow::Continue(())
        })?;
        Ok(compacted(&done))
    }

    fn settings(&self) -> BTreeMap<&'static str, String> {
        let stats = self.db.stats();
        let mut settings = BTreeMap::from([
            ("version", format!("terrace {}", env!("CARGO_PKG_VERSION"))),
            ("dram", show_size(stats.budget_bytes)),
            ("backend", stats.backend.to_string()),
            ("page_size", show_size(stats.page_bytes)),
            ("compression", self.compression.to_owned()),
            ("durability", self.durability_name.to_owned()),
            ("files", self.files.to_owned()),
        ]);
        if let (Some(cache), Some(what)) = (&stats.cache, &self.cache) {
            settings.insert("cache", format!("{what}, {}", cache.policy));
        }
        if let (Some(middle), Some(what)) = (&stats.middle, &self.middle) {
            settings.insert("middle", format!("{what}, {}", show_size(middle.capacity_bytes)));
            settings.insert("policy", self.policy.clone());
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

/// What the engine counts, in the words of the command. Hits are not counted: a hit writes nothing.
fn counters(stats: &Stats) -> Counters {
    // What the block cache has served, in bytes, was not read from the store.
    let from_cache = stats.cache.as_ref().map_or(0, |cache| cache.hits * cache.block_bytes);
    let from_store = stats.read_bytes.saturating_sub(from_cache);
    // Images have many lengths, so it is as many as there are bytes of them.
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
        log_cycles: Some(stats.log_tail as f64 / stats.log_capacity as f64),
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
