//! Opening: the lock, creation in one step, recovery, and what a crash left to be finished.
//!
//! A database is created under temporary names, synced, and named when it is whole. The log gets its name first, the
//! page file last, each made durable before the next step; so a directory that holds the page file holds a database,
//! and one that does not holds at most the remains of a creation that was interrupted, which the next one removes.
//!
//! Recovery runs inline whatever the mode, because the threads need the pool it makes. It ends with the losers
//! undone; then the clock starts above every timestamp ever issued.
//!
//! **Locks.** Who writes holds the lock file, which names its process, and the page file alone; who reads holds the
//! page file together with others, for which it needs to write nothing. So a database has one writer or any number
//! of readers.
//!
//! **Read-only**, both files are opened for reading, and the same recovery runs over a layer in memory that takes what
//! it writes: part of the budget, and if that is too little the database is refused. Whatever is left dirty goes
//! into that layer too before the first read, so that no read ever has to write.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use parking_lot::Mutex;
use rand::rand_core::UnwrapErr;
use rand::rngs::{SmallRng, SysRng};
use rand::{RngExt, SeedableRng};
use terrace_block::{BlockDevice, Directory, FileDirectory, LockError, OpenMode, Sharing, SimulatedMemory};

use super::Db;
use super::backup::refuse_unfinished;
use super::budget::Budget;
use super::core::{
    Core, Counters, FIRST_TABLE, Settings, Shared, TableState, catalog_place, catalog_root, garbage_root,
};
use super::count::{Counts, TableCount};
use super::limits;
use super::overlay::{Overlay, Room as OverlayRoom};
use super::undo::KeyUndo;
use crate::buffer::{Edit, Files, Layout, Mode, PAGES_MAX, Pool, PoolOptions, Recovered, id_count_below};
use crate::cache::{Cache, Opening};
use crate::config::{Builder, FRAMES_MIN, PageSizes, Split, overlay_bytes};
use crate::error::{Error, Result};
use crate::ids::{Lsn, TableId, Timestamp};
use crate::index::leaf::max_record;
use crate::index::{NodeRedo, Tree};
use crate::middle::bytes_beside;
use crate::planted::{Bug, planted};
use crate::store::page;
use crate::store::place::PLACE_BYTES;
use crate::store::superblock::{Slots, Superblock};
use crate::txn::clock::Clock;
use crate::txn::flight::InFlight;
use crate::txn::gate::Gate;
use crate::txn::locks::LockTable;
use crate::txn::read_set::ReadMemory;
use crate::txn::snapshots::{MonotonicTime, Snapshots};
use crate::txn::versions::{Room, Versions};
use crate::wal::{ALLOCATES, RecordBuilder, change_kind};

/// The page file.
pub(crate) const PAGES: &str = "pages.terrace";
/// The log.
pub(crate) const LOG: &str = "log.terrace";
pub(crate) const LOCK: &str = "lock";
pub(crate) const NEW_PAGES: &str = "pages.new";
pub(crate) const NEW_LOG: &str = "log.new";

/// What keeps others out, or makes them read only, until it is dropped.
pub(crate) type Lock = Box<dyn Send + Sync>;

/// Opens or creates the database that `builder` describes.
pub(crate) fn open(builder: Builder, path: &Path) -> Result<Db> {
    let dram = builder.dram_bytes()?;
    builder.dram_bytes_max(dram)?;
    builder.check_migrate()?;
    let layout = builder.new_layout()?;
    let may_create = builder.create && !builder.read_only;
    let directory = match &builder.directory {
        Some(directory) => Arc::clone(directory),
        None => open_directory(path, may_create)?,
    };
    let name = directory.name();
    let there = || exists(&*directory, PAGES);
    if !there()? {
        refuse_unfinished(&*directory)?;
    }
    if !may_create && !there()? {
        let what = format!("it holds no {PAGES}");
        return Err(Error::NotADatabase { path: name, what });
    }
    let owner = if builder.read_only { None } else { Some(own(&*directory)?) };
    if !there()? {
        // Somebody may have begun something since the first look.
        refuse_unfinished(&*directory)?;
        builder.compression.check(layout.page_bytes)?;
        let mut uuid = [0; 16];
        match builder.seed {
            // A thread that ends may have lost a generator of its own.
            0 => UnwrapErr(SysRng).fill(&mut uuid),
            seed => SmallRng::seed_from_u64(seed).fill(&mut uuid),
        }
        let layout = Layout {
            uuid,
            page_bytes: layout.page_bytes,
            segment_places: layout.segment_places,
            log_capacity: layout.log_capacity,
        };
        create(&*directory, &layout)?;
    }
    let sharing = if builder.read_only { Sharing::Shared } else { Sharing::Alone };
    // Given back in this order: the owner's name last.
    let lock = Box::new((hold(&*directory, sharing)?, owner));
    let mut files = open_files(&*directory, builder.read_only)?;
    let superblock = Pool::inspect(&files)?;
    if builder.read_only {
        if let Some(cache) = &builder.cache {
            tracing::info!(%cache, "opened to read only: past the cache");
        }
        return open_read_only(builder, files, &superblock, name, lock);
    }
    let memory = builder.middle_memory()?;
    let opening = Opening {
        cache: builder.cache.as_ref(),
        fast: builder.cache_directory.as_ref(),
        directory: &*directory,
        dram_bytes: dram,
        time: &builder.simulated_time,
        memory: memory.as_deref(),
    };
    if let Some(cached) = opening.attach(Arc::clone(&files.pages), &superblock)? {
        files = files.with_cache(cached);
    }
    let (options, split) = shares(&builder, dram, &files, &superblock, memory)?;
    let recover = || {
        let Recovered { mut pool, losers, redone, log_end, .. } = Pool::recover(&files, &options, &NodeRedo)?;
        let counters = counters(log_end, redone, losers.len());
        pool.undo_losers(&files, losers, &KeyUndo)?;
        if !pool.exists(catalog_root(pool.class())) {
            create_roots(&pool)?;
        }
        pool.set_mode(builder.mode);
        assemble(pool, settings(&builder, name)?, split, counters, lock)
    };
    let dram_max = options.frame_bytes_max;
    let core = recover()
        .map_err(|error| limits::explained(error, &options, split, dram_max, superblock.log_capacity))?;
    core.load_garbage()?;
    if core.pool.mode() == Mode::Inline {
        core.free_sound_garbage()?;
    }
    start(core)
}

/// Opens what only is to be read: recovers over a layer in memory.
fn open_read_only(
    builder: Builder,
    files: Files,
    superblock: &Superblock,
    name: String,
    lock: Lock,
) -> Result<Db> {
    let dram = builder.dram_bytes()?;
    let bytes_max = overlay_bytes(dram, Pool::log_has_changes(&files)?);
    let room = OverlayRoom::new(bytes_max);
    let files = Files::new(Overlay::over(files.pages, &room), Overlay::over(files.log, &room));
    let shares = shares(&builder, dram - bytes_max, &files, superblock, builder.middle_memory()?);
    let (options, split) = shares.map_err(|error| {
        error.of_part(format_args!(
            "of {dram} bytes of dram, {bytes_max} are for what the log comes to, and of the rest"
        ))
    })?;
    let recover = || {
        let Recovered { pool, losers, redone, log_end, .. } = Pool::recover(&files, &options, &NodeRedo)?;
        let counters = Counters {
            log_on_disk: Some((superblock.cut, log_end)),
            ..counters(log_end, redone, losers.len())
        };
        pool.undo_losers(&files, losers, &KeyUndo)?;
        let recovered = counters.changes_redone.load(Relaxed) > 0 || counters.losers_undone.load(Relaxed) > 0;
        if pool.exists(catalog_root(pool.class())) && recovered {
            pool.checkpoint_now(true)?;
        }
        Ok((pool, counters))
    };
    let (pool, counters) = recover().map_err(|error| match room.is_used_up() {
        true => Error::NeedsRecovery { path: name.clone(), bytes_max },
        false => limits::explained(error, &options, split, options.frame_bytes_max, superblock.log_capacity),
    })?;
    if !pool.exists(catalog_root(pool.class())) {
        return Err(Error::NotADatabase { path: name, what: "it was created and never opened".to_owned() });
    }
    let split = Split { total: dram, overlay: bytes_max, ..split };
    let core = assemble(pool, settings(&builder, name)?, split, counters, lock)?;
    start(core)
}

fn start(core: Core) -> Result<Db> {
    let (database, read_only) = (core.settings.name.clone(), core.settings.read_only);
    let db = Db::new(Shared::start(core)?);
    tracing::info!(database, read_only, "opened");
    Ok(db)
}

/// Pages for which a file of so many bytes has room as they are, or that were in use, if those have room when they are
/// compressed.
pub(crate) fn pages_in(file_bytes: u64, page_bytes: u64, page_ids_used: u64) -> u64 {
    (file_bytes / page_bytes).max(page_ids_used.min(file_bytes / PLACE_BYTES as u64))
}

/// How `dram` bytes are split for the database in `files`, and what of them is the pool's.
fn shares(
    builder: &Builder,
    dram: u64,
    files: &Files,
    superblock: &Superblock,
    middle_memory: Option<Arc<SimulatedMemory>>,
) -> Result<(PoolOptions, Split)> {
    let page_bytes = u64::from(superblock.page_bytes);
    let file_pages = pages_in(files.pages.len(), page_bytes, id_count_below(&superblock.page_ids_end));
    let sizes = PageSizes {
        most: builder.class_max()?,
        most_values: builder.value_class_max()?,
        ..PageSizes::of(superblock)
    };
    let (versions, records) = (builder.old_version_bytes_max, builder.record_cache);
    let backend = builder.backend_or_default()?;
    // First: memory for what is known of a tier is of no use if the tier has no room.
    let middle_nodes = builder.middle_nodes(sizes.own)?;
    let split = Split::new(dram, versions, records, backend, sizes, file_pages)?;
    let middle = builder.middle_options(sizes.own)?;
    let cache = builder.cache.as_ref().filter(|_| !builder.read_only);
    let beside = middle.as_ref().map_or(0, bytes_beside).saturating_add(cache.map_or(0, Cache::dram_bytes));
    let with_beside = |split: Split| {
        let part = format_args!("what is known of the middle tier and of the cache takes {beside} bytes");
        split.with_beside(beside, sizes, file_pages).map_err(|error| error.of_part(part))
    };
    let split = if beside == 0 { split } else { with_beside(split)? };
    let options = PoolOptions {
        frame_bytes: split.frame_bytes,
        frame_bytes_max: builder.dram_bytes_max(builder.dram_bytes()?)?,
        frames_floor: FRAMES_MIN,
        log_buffer_bytes: split.log_buffer as usize,
        staging_bytes: split.staging as usize,
        batch_bytes: split.batches as usize,
        batch_least: split.batch_least as usize,
        pages_max: PAGES_MAX,
        store_bytes_max: u64::MAX,
        record_cache: builder.record_cache,
        backend,
        replacement: builder.replacement,
        middle,
        middle_memory,
        nodes: builder.node_options(middle_nodes, split.frame_bytes)?,
        time: builder.simulated_time.clone(),
        mode: Mode::Inline,
        in_memory: builder.read_only,
    };
    Ok((options, split))
}

fn counters(log_end: Lsn, redone: u64, losers: usize) -> Counters {
    if redone > 0 || losers > 0 {
        tracing::info!(%log_end, changes_redone = redone, losers_undone = losers, "recovered");
    }
    let counters = Counters::default();
    counters.changes_redone.store(redone, Relaxed);
    counters.losers_undone.store(losers as u64, Relaxed);
    counters
}

fn settings(builder: &Builder, name: String) -> Result<Settings> {
    let dram_max = builder.dram_bytes_max(builder.dram_bytes()?)?;
    Ok(Settings {
        name,
        durability: builder.durability,
        snapshot_age_max: builder.snapshot_age_max,
        read_only: builder.read_only,
        dram_max,
        old_version_bytes_max: builder.old_version_bytes_max,
        compression: builder.compression,
    })
}

fn assemble(pool: Pool, settings: Settings, split: Split, counters: Counters, lock: Lock) -> Result<Core> {
    check_sizes(&pool, split)?;
    let catalog = catalog_place(pool.class());
    let mut core = Core {
        clock: Clock::counting_on(Arc::clone(&pool.highest_timestamp), split.clock_window),
        gate: Gate::new(Arc::new(MonotonicTime::new())),
        locks: LockTable::new(split.lock_slots),
        flight: InFlight::new(),
        read_memory: ReadMemory::of(split.total),
        versions: Versions::new(old_versions(&pool, &settings, split))?,
        pool,
        snapshots: Snapshots::new(Arc::new(MonotonicTime::new())),
        named: Default::default(),
        catalog: Arc::new(TableState::new(catalog, "the catalog", TableCount::unknown())),
        tables: Mutex::default(),
        counts: Counts::unknown(Timestamp::NONE, TableId(FIRST_TABLE)),
        garbage: Default::default(),
        chains: Default::default(),
        counters,
        budget: Budget::new(split),
        verifying: Mutex::default(),
        settings,
        lock: Mutex::new(Some(lock)),
        collector: Default::default(),
        backups: Mutex::default(),
        lookups: Default::default(),
    };
    core.load_counts()?;
    Ok(core)
}

/// Holds the parts of memory against the sizes of pages that recovery found: a superblock names each size before there are
/// pages of it, but the newest one may have been lost.
fn check_sizes(pool: &Pool, split: Split) -> Result<()> {
    let (own, sizes) = (pool.class(), pool.page_sizes());
    let others = sizes.in_use().filter(|&class| class != own);
    let log_capacity = pool.wal().stats().capacity;
    others.into_iter().try_for_each(|class| split.check_class(class, log_capacity, pool.segment_bytes()))
}

/// Room for old versions: what the budget has for them, and addresses for what transactions may push beyond that
/// before anything can be dropped, which is what the log and the clock's window let them.
fn old_versions(pool: &Pool, settings: &Settings, split: Split) -> Room {
    let entry_bytes_max = max_record(split.largest_node().page_bytes());
    let dram_max = match settings.old_version_bytes_max {
        Some(_) => 0,
        None => settings.dram_max,
    };
    let bytes_reserved = old_version_bytes_reserved(split, dram_max, pool.wal().stats().capacity) as usize;
    Room { chains: split.lock_slots, bytes_max: split.versions as usize, bytes_reserved, entry_bytes_max }
}

/// Addresses for old versions, if the budget may become `dram_max` bytes.
pub(super) fn old_version_bytes_reserved(split: Split, dram_max: u64, log_bytes: u64) -> u64 {
    let entry_bytes_max = max_record(split.largest_node().page_bytes()) as u64;
    let in_flight = log_bytes + split.clock_window as u64 * entry_bytes_max;
    2 * (split.versions.max(Split::versions_share(dram_max)) + in_flight)
}

pub(crate) fn open_directory(path: &Path, create: bool) -> Result<Arc<dyn Directory>> {
    let opened = if create { FileDirectory::create(path) } else { FileDirectory::open(path) };
    match opened {
        Ok(directory) => Ok(Arc::new(directory)),
        Err(source) => {
            let path = path.display().to_string();
            let what = match source.kind() {
                io::ErrorKind::NotADirectory => "it is not a directory",
                io::ErrorKind::NotFound if create => "the directory it would be made in does not exist",
                io::ErrorKind::NotFound => "there is no such directory",
                _ => return Err(Error::io("open", &path, None, source)),
            };
            Err(Error::NotADatabase { path, what: what.to_owned() })
        }
    }
}

pub(crate) fn exists(directory: &dyn Directory, file: &str) -> Result<bool> {
    directory.exists(file).map_err(|source| Error::io("look for", &within(directory, file), None, source))
}

pub(crate) fn within(directory: &dyn Directory, file: &str) -> String {
    format!("{}/{file}", directory.name())
}

/// Takes the lock file, which says whose the database is.
pub(crate) fn own(directory: &dyn Directory) -> Result<Lock> {
    directory.lock(LOCK).map_err(|error| refused(directory, LOCK, error))
}

/// Takes the page file, alone or with others that read.
pub(crate) fn hold(directory: &dyn Directory, sharing: Sharing) -> Result<Lock> {
    directory.lock_existing(PAGES, sharing).map_err(|error| match error {
        LockError::Busy { .. } if sharing == Sharing::Shared => {
            Error::Busy { path: directory.name(), owner_process: directory.lock_owner(LOCK) }
        }
        LockError::Busy { .. } => Error::Busy { path: directory.name(), owner_process: None },
        error => refused(directory, PAGES, error),
    })
}

fn refused(directory: &dyn Directory, file: &str, error: LockError) -> Error {
    match error {
        LockError::Busy { owner_process } => Error::Busy { path: directory.name(), owner_process },
        LockError::Io(source) => Error::io("lock", &within(directory, file), None, source),
    }
}

/// Makes an empty database, or nothing that would be taken for one.
fn create(directory: &dyn Directory, layout: &Layout) -> Result<()> {
    let remains = exists(directory, NEW_PAGES)?;
    if exists(directory, LOG)? && !remains {
        let what = format!("it holds {LOG} but no {PAGES}");
        return Err(Error::NotADatabase { path: directory.name(), what });
    }
    // The page file's temporary name goes last: it is what says that the log is a remainder.
    for file in [LOG, NEW_LOG, NEW_PAGES] {
        if exists(directory, file)? {
            let removed = directory.remove(file).and_then(|()| directory.sync());
            removed.map_err(|source| Error::io("remove", &within(directory, file), None, source))?;
        }
    }
    let open = |file: &str| {
        let device = directory.open(file, OpenMode::CreateNew);
        device.map_err(|source| Error::io("create", &within(directory, file), None, source))
    };
    let files = Files::new(open(NEW_PAGES)?, open(NEW_LOG)?);
    let sync_names = || directory.sync().map_err(|source| Error::io("sync", &directory.name(), None, source));
    let name = |from: &str, to: &str| {
        let renamed = directory.rename(from, to);
        renamed.map_err(|source| Error::io("rename", &within(directory, from), None, source))
    };
    let made = Pool::create(&files, layout).and_then(|()| {
        if planted(Bug::SkipDirectorySync) {
            name(NEW_LOG, LOG)?;
            return name(NEW_PAGES, PAGES);
        }
        sync_names()?;
        name(NEW_LOG, LOG)?;
        sync_names()?;
        name(NEW_PAGES, PAGES)?;
        sync_names()
    });
    if made.is_err() {
        // Best effort: what stays is removed by the next attempt.
        let _ = directory.remove(NEW_LOG);
        let _ = directory.remove(NEW_PAGES);
    }
    made
}

fn open_files(directory: &dyn Directory, read_only: bool) -> Result<Files> {
    let mode = if read_only { OpenMode::Read } else { OpenMode::Write };
    let failed = |file: &str, source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => {
            Error::NotADatabase { path: directory.name(), what: format!("it holds no {file}") }
        }
        _ => Error::io("open", &within(directory, file), None, source),
    };
    let pages = directory.open(PAGES, mode).map_err(|source| failed(PAGES, source))?;
    match directory.open(LOG, mode) {
        Ok(log) => Ok(Files::new(pages, log)),
        // It gets its name before the page file does, so it was there, if that is one.
        Err(source) if source.kind() == io::ErrorKind::NotFound && is_page_file(&pages) => {
            Err(Error::corrupt(&within(directory, LOG), None, "it is missing, though the page file is there"))
        }
        Err(source) => Err(failed(LOG, source)),
    }
}

/// Whether a file is a page file, damaged or not.
fn is_page_file(pages: &Arc<dyn BlockDevice>) -> bool {
    !matches!(Slots::open(Arc::clone(pages)), Err(Error::NotADatabase { .. } | Error::Io { .. }))
}

/// Makes the roots of catalog and garbage tree, in one record, durably.
fn create_roots(pool: &Pool) -> Result<()> {
    let mut record = RecordBuilder::pages(Timestamp::NONE, Lsn::NONE);
    let mut pages = Vec::new();
    for root in [catalog_root(pool.class()), garbage_root(pool.class())] {
        let new = pool.new_page(pool.class(), None)?;
        if new.id() != root {
            return Err(Error::corrupt("the page file", Some(root.0), "the catalog is missing"));
        }
        let content = Tree::init_root(root, false);
        record.change_with(root, change_kind::IMAGE, ALLOCATES, |out| {
            page::compact(&content, page::HEADER_BYTES..page::HEADER_BYTES, out);
        });
        pages.push((new, content));
    }
    let mut reservation = pool.reserve_log(record.len() as u64)?;
    let (new, mut contents): (Vec<_>, Vec<_>) = pages.into_iter().unzip();
    let edits = new.into_iter().zip(&mut contents).map(|(new, content)| Edit::Create(new, content));
    let appended = pool.change(&mut record, Some(&mut reservation), edits)?;
    pool.wal().flush_to(appended.end)
}
