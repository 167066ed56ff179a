//! Open: creation, locks, recovery, and cleanup after a crash.
//!
//! A new database is created under temporary names, synced and renamed, the log first and the page
//! file last, each durably. So a directory with the page file holds a database. Without it, it
//! holds at most remains that the next creation removes.
//!
//! Recovery runs inline in any mode, because the threads need its pool. Then the clock starts above
//! every timestamp ever issued.
//!
//! **Locks.** A writer locks the lock file, which names its process, and the page file exclusively.
//! A reader locks only the page file, shared.
//!
//! **Read-only.** Recovery writes to a layer in memory, and the open fails if its part of the
//! budget is too small. Dirty pages go into that layer before the first read, so no read has to
//! write.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use parking_lot::Mutex;
use rand::rand_core::UnwrapErr;
use rand::rngs::{SmallRng, SysRng};
use rand::{RngExt, SeedableRng};
use terrace_io::units::show_size;
use terrace_io::{BlockDevice, Directory, OpenMode, Sharing, SimulatedMemory};

use super::Db;
use super::budget::{Budget, old_version_bytes_reserved, pages_in};
use super::core::{Core, Shared};
use super::files::{LOG, Lock, NEW_LOG, NEW_PAGES, PAGES, hold, open_directory, own, refuse_unfinished};
use super::limits;
use super::overlay::{Overlay, Room as OverlayRoom};
use crate::Backend;
use crate::cache::{Cache, GUARD as CACHE_GUARD, Opening};
use crate::concurrency::Concurrency;
use crate::config::{Builder, FRAMES_MIN, NewLayout, PageSizes, Split, hash_options, overlay_bytes};
use crate::error::{Error, Result};
use crate::ids::{Lsn, Timestamp};
use crate::index::node::leaf::max_record;
use crate::index::{NodeRedo, Tree};
use crate::maintenance::{self, Layout, Maintenance};
use crate::middle::bytes_beside;
use crate::planted::{Bug, planted};
use crate::pool::{Edit, Mode, PAGES_MAX, Pool, PoolOptions, TierOptions, id_count_below};
use crate::recovery::{Recovered, leave_ring, log_has_changes, recover, undo_losers};
use crate::store::files::Files;
use crate::store::names::{exists, within};
use crate::store::page;
use crate::store::superblock::{Slots, Superblock};
use crate::txn::clock::Clock;
use crate::txn::counters::Counters;
use crate::txn::flight::InFlight;
use crate::txn::garbage::garbage_root;
use crate::txn::gate::Gate;
use crate::txn::locks::LockTable;
use crate::txn::mvcc::Mvcc;
use crate::txn::order::TimestampOrder;
use crate::txn::read_set::ReadMemory;
use crate::txn::settings::Settings;
use crate::txn::snapshots::{MonotonicTime, Snapshots};
use crate::txn::table::{TableState, catalog_location, catalog_root};
use crate::txn::table_count::TableCount;
use crate::txn::tables::Tables;
use crate::txn::undo::KeyUndo;
use crate::txn::versions::{Room, Versions};
use crate::wal::{ALLOCATES, RecordBuilder, change_kind};

impl Builder {
    /// Opens or creates the database in directory `path`; recovers it if needed. Other files there
    /// are left alone. A new database that cannot be opened leaves no files.
    ///
    /// # Errors
    /// [`Error::Busy`] if it is open elsewhere, [`Error::NotADatabase`], [`Error::Version`],
    /// [`Error::Corrupt`], [`Error::Config`] for invalid settings, [`Error::Memory`],
    /// [`Error::Full`], [`Error::Io`].
    pub fn open(self, path: impl AsRef<Path>) -> Result<Db> {
        open(self, path.as_ref())
    }
}

fn open(builder: Builder, path: &Path) -> Result<Db> {
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
        let what = missing(&*directory)?.unwrap_or_else(|| format!("it holds no {PAGES}"));
        return Err(Error::NotADatabase { path: name, what });
    }
    let owner = if builder.read_only { None } else { Some(Arc::new(own(&*directory)?)) };
    let is_new = !there()?;
    if !is_new {
        return open_in(builder, &directory, dram, owner);
    }
    let before = exists(&*directory, CACHE_GUARD)?;
    create_new(&builder, &*directory, layout)?;
    // The owner's name is kept until the files are gone.
    open_in(builder, &directory, dram, owner.clone()).inspect_err(|_| take_back(&*directory, before))
}

/// Opens the database in `directory`, of which `owner` keeps other writers out.
fn open_in(
    builder: Builder,
    directory: &Arc<dyn Directory>,
    dram: u64,
    owner: Option<Arc<Lock>>,
) -> Result<Db> {
    let name = directory.name();
    let sharing = if builder.read_only { Sharing::Shared } else { Sharing::Alone };
    // Released in this order: the owner's name last.
    let lock = Box::new((hold(&**directory, sharing)?, owner));
    let mut files = open_files(&**directory, builder.read_only)?;
    let superblock = maintenance::inspect(&files)?;
    if builder.read_only {
        if let Some(cache) = &builder.cache {
            tracing::info!(%cache, "opened to read only: past the cache");
        }
        return open_read_only(builder, files, &superblock, name, lock);
    }
    let (memory, page_size, log_max) = (builder.middle_memory(), builder.page_size, builder.log_max);
    let opening = Opening {
        cache: builder.cache.as_ref(),
        fast: builder.cache_directory.as_ref(),
        directory: &**directory,
        dram_bytes: dram,
        time: &builder.simulated_time,
        memory: memory.as_deref(),
    };
    if let Some(cached) = opening.attach(Arc::clone(&files.pages), &superblock)? {
        files = files.with_cache(cached);
    }
    let files = with_log_memory(&builder, &**directory, files)?;
    let (options, split) = shares(&builder, dram, &files, &superblock, memory)?;
    check_log_memory(&files, &options)?;
    let recover = || {
        let Recovered { maintenance, losers, redone, log_end } = recover(&files, &options, &NodeRedo)?;
        let counters = counters(log_end, redone, losers.len());
        undo_losers(&maintenance, &files, losers, &KeyUndo)?;
        let pool = &maintenance.pool;
        if !pool.exists(catalog_root(pool.class())) {
            create_roots(pool)?;
        }
        pool.set_mode(builder.mode);
        assemble(maintenance, settings(&builder, name)?, split, counters, lock)
    };
    let dram_max = options.frame_bytes_max;
    let core = recover().map_err(|error| limits::explained(error, &options, split, dram_max, &*files.log))?;
    core.garbage.load(&core.pool, core.catalog.tree.root)?;
    if core.pool.mode() == Mode::Inline {
        core.garbage.free_sound(&core.pool, &|| core.oldest())?;
    }
    warn_of_kept(&core, page_size, log_max);
    start(core)
}

/// Warns of settings that only a new database takes.
fn warn_of_kept(core: &Core, page_size: Option<u64>, log_max: Option<u64>) {
    let (page_bytes, log_bytes) = (core.pool.page_bytes() as u64, core.maintenance.wal.capacity_limit());
    if let Some(asked) = page_size.filter(|asked| *asked != page_bytes) {
        tracing::warn!(asked, page_bytes, "page_size is not used: the database keeps its own");
    }
    // The layout of a new database rounds down by at most a 64th.
    if let Some(asked) = log_max.filter(|asked| !(asked - asked / 32..=*asked).contains(&log_bytes)) {
        tracing::warn!(asked, log_bytes, "log_max is not used: the database keeps its own");
    }
}

fn create_new(builder: &Builder, directory: &dyn Directory, layout: NewLayout) -> Result<()> {
    // Another process may have started since the first check.
    refuse_unfinished(directory)?;
    builder.compression.check(layout.page_bytes)?;
    let uuid = random(builder);
    let layout = Layout {
        uuid,
        page_bytes: layout.page_bytes,
        segment_blocks: layout.segment_blocks,
        log_max: layout.log_max,
        log_first: layout.log_first,
    };
    create(directory, &layout)
}

fn random<const N: usize>(builder: &Builder) -> [u8; N] {
    let mut bytes = [0; N];
    match builder.seed {
        // A generator per thread may be gone in an ending thread.
        0 => UnwrapErr(SysRng).fill(&mut bytes),
        seed => SmallRng::seed_from_u64(seed).fill(&mut bytes),
    }
    bytes
}

/// Opens the log's memory, in the size asked for.
fn with_log_memory(builder: &Builder, directory: &dyn Directory, files: Files) -> Result<Files> {
    let [life, id] = [8, 0].map(|at| {
        let bytes: [u8; 16] = random(builder);
        u64::from_le_bytes(*bytes[at..].first_chunk().expect("eight bytes"))
    });
    let files = files.with_life(life);
    let Some(memory) = &builder.log_memory else { return Ok(files) };
    let open = || memory.open(directory, id, &builder.simulated_time).map(Arc::new);
    let mut ring = open()?;
    if memory.bytes().is_some_and(|bytes| bytes != ring.bytes() as u64) {
        leave_ring(&files.clone().with_ring(Some(ring)))?;
        memory.remove(directory)?;
        ring = open()?;
    }
    Ok(files.with_ring(Some(ring)))
}

/// The longest record must fit the log's memory, as it fits a buffer.
fn check_log_memory(files: &Files, options: &PoolOptions) -> Result<()> {
    let (Some(ring), least) = (&files.ring, options.buffers.log) else { return Ok(()) };
    if ring.bytes() as u64 >= least {
        return Ok(());
    }
    let (has, least) = (show_size(ring.bytes() as u64), show_size(least));
    Err(Error::Config(format!(
        "the log's memory has {has}, which is less than the log's buffer with this dram and these pages, {least}; give \
         it that size, or less dram"
    )))
}

fn open_read_only(
    builder: Builder,
    files: Files,
    superblock: &Superblock,
    name: String,
    lock: Lock,
) -> Result<Db> {
    if superblock.ring.is_some() {
        let what = "its newest commits are in the memory of its log, which a read-only open does not read; open it once \
                    for writing, with that memory, and close it";
        return Err(Error::LogMemory { path: name, what: what.to_owned() });
    }
    let dram = builder.dram_bytes()?;
    let bytes_max = overlay_bytes(dram, log_has_changes(&files)?);
    let room = OverlayRoom::new(bytes_max);
    let files = Files::new(Overlay::over(files.pages, &room), Overlay::over(files.log, &room));
    let shares = shares(&builder, dram - bytes_max, &files, superblock, builder.middle_memory());
    let (options, split) = shares.map_err(|error| {
        error.of_part(format_args!(
            "of {dram} bytes of dram, {bytes_max} are for what the log comes to, and of the rest"
        ))
    })?;
    let recover = || {
        let Recovered { maintenance, losers, redone, log_end } = recover(&files, &options, &NodeRedo)?;
        let counters = Counters {
            log_on_disk: Some((superblock.cut, log_end)),
            ..counters(log_end, redone, losers.len())
        };
        undo_losers(&maintenance, &files, losers, &KeyUndo)?;
        let pool = &maintenance.pool;
        let recovered = counters.changes_redone.load(Relaxed) > 0 || counters.losers_undone.load(Relaxed) > 0;
        if pool.exists(catalog_root(pool.class())) && recovered {
            maintenance.checkpoint_now(true)?;
        }
        Ok((maintenance, counters))
    };
    let (maintenance, counters) = recover().map_err(|error| match room.is_used_up() {
        true => Error::NeedsRecovery { path: name.clone(), bytes_max },
        false => limits::explained(error, &options, split, options.frame_bytes_max, &*files.log),
    })?;
    let pool = &maintenance.pool;
    if !pool.exists(catalog_root(pool.class())) {
        return Err(Error::NotADatabase {
            path: name,
            what: "it was created and never used; open it for writing, or remove it".to_owned(),
        });
    }
    let split = Split { total: dram, overlay: bytes_max, ..split };
    let core = assemble(maintenance, settings(&builder, name)?, split, counters, lock)?;
    warn_of_kept(&core, builder.page_size, builder.log_max);
    start(core)
}

fn start(core: Core) -> Result<Db> {
    let (database, read_only) = (core.settings.name.clone(), core.settings.read_only);
    let db = Db::new(Shared::start(core)?);
    tracing::info!(database, read_only, "opened");
    Ok(db)
}

/// Splits `dram` bytes for the database in `files`, and derives the pool's options.
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
    let (versions, backend) = (builder.old_version_bytes_max, builder.backend_or_default());
    // First: DRAM for a tier's headers is of no use if the tier has no room.
    let middle_nodes = builder.middle_nodes(sizes.own)?;
    let split = Split::new(dram, versions, builder.record_cache, backend, sizes, file_pages)?;
    let middle = builder.middle_options(sizes.own)?;
    // A middle tier moves pages too often, and the id of a mapped page says where it is.
    let hints = backend == Backend::Frames && middle.is_none();
    let split = if hints { split.with_hints(sizes, file_pages)? } else { split };
    let cache = builder.cache.as_ref().filter(|_| !builder.read_only);
    let persistent = builder.persistent_source()?.filter(|_| middle.is_some());
    let dram_max = builder.dram_bytes_max(dram)?;
    let of_middle = |middle| bytes_beside(middle, persistent.is_some(), sizes.own, dram_max);
    let beside = middle.as_ref().map_or(0, of_middle);
    let hash = hash_options(builder, sizes.own, file_pages, (dram, dram_max))?;
    let beside =
        beside.saturating_add(cache.map_or(0, Cache::dram_bytes)).saturating_add(match builder.protocol() {
            Concurrency::Occ => 0,
            Concurrency::Mvto => TimestampOrder::bytes(split.lock_slots.next_power_of_two()) as u64,
        });
    let split = match hash {
        Some(hash) => split.with_hash(hash, sizes, file_pages).map_err(|error| {
            let bytes = hash.bytes(file_pages) + hash.swips_bytes();
            error.of_part(format_args!("a hash table and its swips take {bytes} bytes"))
        })?,
        None => split,
    };
    let with_beside = |split: Split| {
        let part =
            format_args!("what is known of the middle tier, of the cache and of reads takes {beside} bytes");
        split.with_beside(beside, sizes, file_pages).map_err(|error| error.of_part(part))
    };
    let split = if beside == 0 { split } else { with_beside(split)? };
    let options = PoolOptions {
        frame_bytes: split.frame_bytes,
        frame_bytes_max: dram_max,
        frames_floor: FRAMES_MIN,
        buffers: split.buffers,
        pages_max: PAGES_MAX,
        hash,
        store_bytes_max: u64::MAX,
        record_cache: builder.record_cache,
        backend,
        replacement: builder.replacement,
        tiers: TierOptions {
            middle,
            memory: middle_memory,
            persistent,
            nodes: builder.node_options(middle_nodes, split.frame_bytes)?,
            time: builder.simulated_time.clone(),
        },
        mode: builder.mode,
        in_memory: builder.read_only,
        hints,
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
        concurrency: builder.protocol(),
    })
}

fn assemble(
    maintenance: Arc<Maintenance>,
    settings: Settings,
    split: Split,
    counters: Counters,
    lock: Lock,
) -> Result<Core> {
    let pool = Arc::clone(&maintenance.pool);
    check_sizes(&pool, split)?;
    let catalog = catalog_location(pool.class());
    let locks = LockTable::new(split.lock_slots);
    let mvcc = Mvcc {
        clock: Clock::counting_on(Arc::clone(&pool.highest_timestamp), split.clock_window),
        gate: Gate::new(Arc::new(MonotonicTime::new())),
        order: match settings.concurrency {
            Concurrency::Occ => None,
            Concurrency::Mvto => Some(TimestampOrder::new(&locks)),
        },
        locks,
        flight: InFlight::new(),
        read_memory: ReadMemory::of(split.total),
        versions: Versions::new(old_versions(&pool, &settings, split))?,
        pool,
        snapshots: Snapshots::new(Arc::new(MonotonicTime::new())),
        named: Default::default(),
        catalog: Arc::new(TableState::new(catalog, "the catalog", TableCount::unknown())),
        garbage: Default::default(),
        chains: Default::default(),
        counters,
        settings,
    };
    Ok(Core {
        tables: Tables::load(&mvcc)?,
        mvcc,
        maintenance,
        budget: Budget::new(split),
        verifying: Mutex::default(),
        lock: Mutex::new(Some(lock)),
        collector: Default::default(),
        backups: Mutex::default(),
        lookups: Default::default(),
    })
}

/// Checks the memory parts against the page sizes found by recovery.
///
/// A superblock names each size before there are such pages, but the newest one may be lost.
fn check_sizes(pool: &Pool, split: Split) -> Result<()> {
    let (own, sizes) = (pool.class(), pool.page_sizes());
    let others = sizes.in_use().filter(|&class| class != own);
    let log_capacity = pool.wal().capacity_max();
    others.into_iter().try_for_each(|class| split.check_class(class, log_capacity, pool.segment_bytes()))
}

/// Room for old versions: their part of the budget, and address space beyond it.
///
/// Transactions may exceed the limit before any version can be dropped, bounded by the log and the
/// clock's window.
fn old_versions(pool: &Pool, settings: &Settings, split: Split) -> Room {
    let entry_bytes_max = max_record(split.largest_node().page_bytes());
    let dram_max = match settings.old_version_bytes_max {
        Some(_) => 0,
        None => settings.dram_max,
    };
    let bytes_reserved = old_version_bytes_reserved(split, dram_max, pool.wal().capacity_max()) as usize;
    Room { chains: split.lock_slots, bytes_max: split.versions as usize, bytes_reserved, entry_bytes_max }
}

/// What a directory without a page file has lost, unless it is only the remainder of a creation.
fn missing(directory: &dyn Directory) -> Result<Option<String>> {
    let has_lost = exists(directory, LOG)? && !exists(directory, NEW_PAGES)?;
    Ok(has_lost.then(|| {
        format!("it holds {LOG} but no {PAGES}; restore a backup, or empty the directory for a new database")
    }))
}

/// Creates an empty database, or leaves nothing that looks like one.
fn create(directory: &dyn Directory, layout: &Layout) -> Result<()> {
    if let Some(what) = missing(directory)? {
        return Err(Error::NotADatabase { path: directory.name(), what });
    }
    // The page file's temporary name goes last: it marks the log as a remainder.
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
    let sync_names = || match planted(Bug::SkipDirectorySync) {
        true => Ok(()),
        false => directory.sync().map_err(|source| Error::io("sync", &directory.name(), None, source)),
    };
    let name = |from: &str, to: &str| {
        let renamed = directory.rename(from, to);
        renamed.map_err(|source| Error::io("rename", &within(directory, from), None, source))
    };
    let made = maintenance::create(&files, layout).and_then(|()| {
        sync_names()?;
        name(NEW_LOG, LOG)?;
        sync_names()?;
        name(NEW_PAGES, PAGES)?;
        sync_names()
    });
    if made.is_err() {
        // Best effort: the next attempt removes the rest.
        let _ = directory.remove(NEW_LOG);
        let _ = directory.remove(NEW_PAGES);
    }
    made
}

/// Removes a new database that could not be opened. What cannot be removed, the next creation
/// does.
fn take_back(directory: &dyn Directory, keep_guard: bool) {
    let removed = directory.rename(PAGES, NEW_PAGES).and_then(|()| {
        directory.sync()?;
        directory.remove(LOG)?;
        if !keep_guard && directory.exists(CACHE_GUARD)? {
            directory.remove(CACHE_GUARD)?;
        }
        directory.sync()?;
        directory.remove(NEW_PAGES)
    });
    if let Err(error) = removed {
        tracing::warn!(%error, "files of a new database that could not be opened are left");
    }
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
        // The log is named before the page file. So if this is a page file, the log existed.
        Err(source) if source.kind() == io::ErrorKind::NotFound && is_page_file(&pages) => {
            Err(Error::corrupt(&within(directory, LOG), None, "it is missing, though the page file is there"))
        }
        Err(source) => Err(failed(LOG, source)),
    }
}

fn is_page_file(pages: &Arc<dyn BlockDevice>) -> bool {
    !matches!(Slots::open(Arc::clone(pages)), Err(Error::NotADatabase { .. } | Error::Io { .. }))
}

/// Creates the roots of catalog and garbage tree in one durable record.
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
