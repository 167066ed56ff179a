//! Settings, and the split of the memory budget.
//!
//! `dram` limits everything the engine allocates. `split.rs` divides it: parts of fixed size come
//! first, and frames get the rest, from which the record cache borrows. `docs/guide/memory.md`
//! lists the parts. [`Db::set_dram`](crate::Db::set_dram) changes the frames and the limits of old
//! versions and reads; the other parts keep their size.
//!
//! Log buffer, staging and batch buffers have room for the largest page size: in use,
//! [`Builder::page_size_max`] or [`Builder::value_page_size_max`]. Sizes above 64 KiB hold only
//! long values and need less. Each size in use has at least 24 frames. A middle tier takes 66 bytes
//! per frame here, and an admission queue.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use terrace_io::{Directory, Migrate, NodeSet, Time};

use crate::backend::Backend;
use crate::cache::Cache;
use crate::compression::Compression;
use crate::concurrency::Concurrency;
use crate::error::{Error, Result};
use crate::ids::SizeClass;
use crate::log_memory::LogMemory;
use crate::middle::Middle;
use crate::migration::Migration;
use crate::page_table::PageTableKind;
use crate::pool::{Mode, RecordCache};
use crate::replacement::Replacement;
use crate::store::mapping_word::BLOCK_BYTES;
use crate::txn::durability::Durability;
use crate::wal::CAPACITY_FIRST;

mod defaults;
mod middle;
mod page_table;
mod split;
#[cfg(test)]
mod tests;

pub(crate) use self::defaults::Defaults;
#[cfg(test)]
pub(crate) use self::page_table::hash_of_environment;
pub(crate) use self::page_table::hash_options;
pub(crate) use self::split::{
    FRAMES_MIN, Split, any_class_of, class_of, frames_min, log_bytes_min, overlay_bytes, value_class_of,
};
pub use self::split::{MIN_DRAM_BYTES, MIN_LOG_BYTES};
use self::split::{Needs, SEGMENT_BYTES_MAX, SEGMENT_PAGES_MIN, check_dram, needs};
pub(crate) use crate::store::page_sizes::PageSizes;

/// Settings to open a database with.
///
/// ```
/// use terrace::{Db, Durability};
///
/// let place = tempfile::tempdir().unwrap();
/// let builder = Db::builder().dram(8 << 20);
/// let db = builder.page_size(4096).log_max(1 << 20).open(place.path().join("db"))?;
/// assert_eq!(db.stats().budget_bytes, 8 << 20);
/// db.close()?;
/// # Ok::<(), terrace::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder opens nothing until `open` is called"]
pub struct Builder {
    pub(crate) dram: Option<u64>,
    pub(crate) dram_max: Option<u64>,
    pub(crate) page_size: Option<u64>,
    pub(crate) page_size_max: Option<u64>,
    pub(crate) value_page_size_max: Option<u64>,
    pub(crate) compression: Compression,
    pub(crate) log_max: Option<u64>,
    pub(crate) log_memory: Option<LogMemory>,
    /// Bytes with which the log begins.
    pub(crate) log_min: u64,
    pub(crate) read_only: bool,
    pub(crate) create: bool,
    pub(crate) durability: Durability,
    pub(crate) concurrency: Option<Concurrency>,
    pub(crate) snapshot_age_max: Duration,
    pub(crate) old_version_bytes_max: Option<u64>,
    pub(crate) record_cache: RecordCache,
    pub(crate) backend: Option<Backend>,
    pub(crate) replacement: Replacement,
    pub(crate) page_table: Option<PageTableKind>,
    pub(crate) swizzle: Option<bool>,
    pub(crate) middle: Option<Middle>,
    /// Ignores the tier of `defaults`.
    pub(crate) no_middle: bool,
    pub(crate) defaults: Defaults,
    pub(crate) migration: Migration,
    pub(crate) lines: Option<u64>,
    pub(crate) minis: Option<bool>,
    pub(crate) cache: Option<Cache>,
    pub(crate) cache_directory: Option<Arc<dyn Directory>>,
    pub(crate) dram_nodes: Option<NodeSet>,
    pub(crate) migrate: Option<Migrate>,
    pub(crate) simulated_time: Time,
    pub(crate) mode: Mode,
    pub(crate) seed: u64,
    pub(crate) directory: Option<Arc<dyn Directory>>,
}

impl Default for Builder {
    fn default() -> Self {
        Builder {
            dram: None,
            dram_max: None,
            page_size: None,
            page_size_max: None,
            value_page_size_max: None,
            compression: Compression::None,
            log_max: None,
            log_memory: None,
            log_min: CAPACITY_FIRST,
            read_only: false,
            create: true,
            durability: Durability::Sync,
            concurrency: None,
            snapshot_age_max: Duration::from_secs(3600),
            old_version_bytes_max: None,
            record_cache: RecordCache::Auto,
            backend: None,
            replacement: Replacement::default(),
            page_table: None,
            swizzle: None,
            middle: None,
            no_middle: false,
            defaults: Defaults::default(),
            migration: Migration::default(),
            lines: None,
            minis: None,
            cache: None,
            cache_directory: None,
            dram_nodes: None,
            migrate: None,
            simulated_time: Time::wall(),
            mode: Mode::Background,
            seed: 0,
            directory: None,
        }
    }
}

impl Builder {
    /// Makes commits durable in persistent memory instead of the log's file.
    ///
    /// A commit is acknowledged once its records are in `memory`; the file follows later. So the
    /// database needs this memory at each open until it is closed: without it, or with an older
    /// copy or another one, [`Builder::open`] fails with [`crate::Error::LogMemory`]. A read-only
    /// open fails in any case. After a close it is free again, once all handles are dropped.
    /// Another size takes effect at an open. Default: none.
    ///
    /// A commit survives what `memory` does: with `shm:` the end of the process, but no power cut.
    ///
    /// ```no_run
    /// use terrace::Db;
    ///
    /// let db = Db::builder().log_memory("pmem:/mnt/pmem/orders.log".parse()?).open("orders")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn log_memory(mut self, memory: LogMemory) -> Self {
        self.log_memory = Some(memory);
        self
    }

    /// Sets the budget of all allocations, bytes, at least 1 MiB.
    ///
    /// Default: a quarter of the memory of the machine or its control group, between 16 MiB and 1
    /// GiB.
    pub fn dram(mut self, bytes: u64) -> Self {
        self.dram = Some(bytes);
        self
    }

    /// Sets the upper limit of [`Db::set_dram`](crate::Db::set_dram), bytes. Default: the budget at
    /// open.
    ///
    /// It reserves address space, not memory.
    pub fn dram_max(mut self, bytes: u64) -> Self {
        self.dram_max = Some(bytes);
        self
    }

    /// Sets the page size of a new database, 4 KiB to 64 KiB.
    ///
    /// A power of two. An existing database keeps its own. Default: 4 KiB, best for point reads of
    /// data larger than memory.
    pub fn page_size(mut self, bytes: u64) -> Self {
        self.page_size = Some(bytes);
        self
    }

    /// Sets the largest page size of tables, bytes.
    ///
    /// It sizes the buffers at open, and the log and segments of a new database. Default: the sizes
    /// in use, or larger ones that fit the same buffers.
    ///
    /// ```
    /// use terrace::{Db, MemoryDirectory};
    ///
    /// # let directory = std::sync::Arc::new(MemoryDirectory::new());
    /// let db = Db::builder().directory(directory).dram(16 << 20).page_size_max(64 << 10).open("")?;
    /// assert_eq!(db.stats().page_bytes, 4096);
    /// assert!(db.stats().log_buffer_bytes >= 32 * (64 << 10));
    /// # Ok::<(), terrace::Error>(())
    /// ```
    pub fn page_size_max(mut self, bytes: u64) -> Self {
        self.page_size_max = Some(bytes);
        self
    }

    /// Sets the largest page size of long values, bytes, up to 2 MiB.
    ///
    /// Like [`Builder::page_size_max`], for pages of [`crate::TableOptions::value_page_size_max`].
    /// Above 64 KiB a new database gets segments of four such pages and a log of at least eight.
    /// Default: the sizes in use, or larger ones that fit the same buffers.
    ///
    /// ```
    /// use terrace::{Db, MemoryDirectory};
    ///
    /// # let directory = std::sync::Arc::new(MemoryDirectory::new());
    /// let builder = Db::builder().directory(directory).dram(64 << 20);
    /// let db = builder.value_page_size_max(2 << 20).open("")?;
    /// assert_eq!(db.stats().page_bytes, 4096);
    /// assert!(db.stats().log_buffer_bytes >= 2 * (2 << 20));
    /// # Ok::<(), terrace::Error>(())
    /// ```
    pub fn value_page_size_max(mut self, bytes: u64) -> Self {
        self.value_page_size_max = Some(bytes);
        self
    }

    /// Sets the default compression of new tables. Default: none.
    ///
    /// [`crate::TableOptions`] override it. Pages of 4 KiB cannot be compressed.
    pub fn compression(mut self, compression: Compression) -> Self {
        self.compression = compression;
        self
    }

    /// Sets the largest log of a new database, bytes, at least 256 KiB.
    ///
    /// The log begins with 2 to 4 MiB. It doubles while checkpoints would write much for the log
    /// that they free, or if a transaction needs more. Recovery of a full log may make it longer.
    /// An existing database keeps its limit.
    /// Default: a power of two, at most half of the budget, between 4 MiB and 1 GiB.
    pub fn log_max(mut self, bytes: u64) -> Self {
        self.log_max = Some(bytes);
        self
    }

    /// Sets the length of the log that a new database begins with, bytes. Default: 2 MiB.
    ///
    /// Up to twice as long in fact, and never longer than [`Builder::log_max`]. With the same
    /// number there, the log never grows.
    ///
    /// ```
    /// use terrace::{Db, MemoryDirectory};
    ///
    /// # let directory = std::sync::Arc::new(MemoryDirectory::new());
    /// let builder = Db::builder().directory(directory).dram(64 << 20).log_max(16 << 20);
    /// let stats = builder.log_min(16 << 20).open("")?.stats();
    /// assert_eq!((stats.log_capacity, stats.log_capacity_max), (16 << 20, 16 << 20));
    /// # Ok::<(), terrace::Error>(())
    /// ```
    pub fn log_min(mut self, bytes: u64) -> Self {
        self.log_min = bytes;
        self
    }

    /// Opens read-only: refuses changes, and writes or creates no file.
    ///
    /// Several processes can do so at once, without a writer. A database that was not closed
    /// cleanly is recovered in memory, or refused with [`Error::NeedsRecovery`].
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.read_only = read_only;
        self
    }

    /// Sets whether to create a missing database. Default: yes.
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// Sets the default durability of commits. Default: [`Durability::Sync`].
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Sets the age after which snapshots fail with [`Error::SnapshotTooOld`]. Default: one hour.
    pub fn snapshot_age_max(mut self, age: Duration) -> Self {
        self.snapshot_age_max = age;
        self
    }

    /// Limits the bytes of old versions kept for snapshots.
    ///
    /// Beyond it the oldest snapshot fails. Default: a sixteenth of the budget.
    pub fn old_version_bytes_max(mut self, bytes: u64) -> Self {
        self.old_version_bytes_max = Some(bytes);
        self
    }

    /// Sets the memory share of the record cache. Default: [`RecordCache::Auto`].
    ///
    /// It keeps hot records of pages that are otherwise cold, or in a middle tier.
    pub fn record_cache(mut self, share: RecordCache) -> Self {
        self.record_cache = share;
        self
    }

    /// Sets the back end. Default: that of [`Builder::defaults_from`], else [`Backend::Frames`].
    pub fn backend(mut self, backend: Backend) -> Self {
        self.backend = Some(backend);
        self
    }

    /// Takes defaults from variables that a program looks up, such as its environment.
    ///
    /// `TERRACE_BACKEND`, `TERRACE_PAGE_TABLE`, `TERRACE_MIDDLE`, `TERRACE_LINES` and
    /// `TERRACE_CONCURRENCY` apply to a builder that sets no back end, page table, middle tier,
    /// lines or protocol; lines only where they can be. The library itself reads no environment.
    ///
    /// # Errors
    /// [`Error::Config`] for an invalid value.
    ///
    /// ```
    /// use terrace::{Db, MemoryDirectory};
    ///
    /// # let directory = std::sync::Arc::new(MemoryDirectory::new());
    /// let builder = Db::builder().defaults_from(|name| std::env::var(name).ok())?;
    /// let db = builder.directory(directory).dram(4 << 20).open("")?;
    /// # Ok::<(), terrace::Error>(())
    /// ```
    pub fn defaults_from(mut self, variable: impl Fn(&str) -> Option<String>) -> Result<Self> {
        self.defaults = Defaults::of_variables(variable)?;
        Ok(self)
    }

    /// Sets the protocol of transactions. Default: that of [`Builder::defaults_from`], else
    /// [`Concurrency::Occ`].
    ///
    /// [`Concurrency::Mvto`] takes 16 bytes of memory per lock, of which there are up to 65,536.
    pub fn concurrency(mut self, concurrency: Concurrency) -> Self {
        self.concurrency = Some(concurrency);
        self
    }

    pub(crate) fn protocol(&self) -> Concurrency {
        self.concurrency.unwrap_or(self.defaults.concurrency)
    }

    /// Sets the page replacement policy. Default: [`Replacement::Mark`].
    pub fn replacement(mut self, replacement: Replacement) -> Self {
        self.replacement = replacement;
        self
    }

    /// Sets the page table. Default: that of [`Builder::defaults_from`], else
    /// [`PageTableKind::Array`].
    ///
    /// A hash table takes up to a 48th of the budget at open, more if the file has many pages. A
    /// store that grows beyond some twice its budget then takes 50 bytes per page outside of it.
    pub fn page_table(mut self, table: PageTableKind) -> Self {
        self.page_table = Some(table);
        self
    }

    /// Keeps beside inner nodes where children are in the hash table, so that a point read need not
    /// look for them. Default: that of [`Builder::defaults_from`], else no.
    ///
    /// Each is a guess that the child's id confirms. In LeanStore and HyMem the child's address
    /// replaces its id in the node, which spares more; the feature `raw-frames` measures how much.
    /// For the database's own page size, takes 1/384 of the frames' bytes, and 4 bytes per frame
    /// that [`Builder::dram_max`] has room for.
    ///
    /// [`Builder::open`] refuses it with [`PageTableKind::Array`], where it would spare nothing.
    pub fn swizzle(mut self, swizzle: bool) -> Self {
        self.swizzle = Some(swizzle);
        self
    }

    /// Sets where background work runs. Default: in threads of the database.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Derives the identity of a new database from `seed`, for tests.
    ///
    /// Two databases from one seed are indistinguishable. Default: 0, a random identity.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Stores the files in `directory`; [`Builder::open`] then ignores its path.
    pub fn directory(mut self, directory: Arc<dyn Directory>) -> Self {
        self.directory = Some(directory);
        self
    }

    /// Caches blocks of the page file on a faster device ([`Cache`]). Default: none.
    ///
    /// A read-only open does not use it. The index takes about 40 bytes of the budget per 4 KiB.
    pub fn cache(mut self, cache: Cache) -> Self {
        self.cache = Some(cache);
        self
    }

    /// Stores the cache file in `directory` instead of the file system.
    pub fn cache_directory(mut self, directory: Arc<dyn Directory>) -> Self {
        self.cache_directory = Some(directory);
        self
    }

    pub(crate) fn dram_bytes(&self) -> Result<u64> {
        match self.dram {
            Some(bytes) => check_dram(bytes),
            None => Ok((memory_limit() / 4).clamp(16 << 20, 1 << 30)),
        }
    }

    /// The largest budget, bytes, where `dram` is the first one.
    pub(crate) fn dram_bytes_max(&self, dram: u64) -> Result<u64> {
        match self.dram_max {
            Some(most) if most < dram => {
                Err(Error::Config(format!("dram_max of {most} bytes; the budget at open is {dram} bytes")))
            }
            most => Ok(most.unwrap_or(dram)),
        }
    }

    pub(crate) fn backend_or_default(&self) -> Backend {
        self.backend.unwrap_or(self.defaults.backend)
    }

    pub(crate) fn class_max(&self) -> Result<Option<SizeClass>> {
        self.page_size_max.map(class_of).transpose()
    }

    pub(crate) fn value_class_max(&self) -> Result<Option<SizeClass>> {
        self.value_page_size_max.map(|bytes| value_class_of(bytes, SizeClass::SMALLEST)).transpose()
    }

    pub(crate) fn new_layout(&self) -> Result<NewLayout> {
        let dram = self.dram_bytes()?;
        let class = class_of(self.page_size.unwrap_or(4 << 10))?;
        let sizes = PageSizes {
            most: self.class_max()?,
            most_values: self.value_class_max()?,
            ..PageSizes::one(class)
        };
        let largest = [Some(sizes.largest_node()), sizes.largest_for_values()];
        let least = |pages: fn(&Needs) -> u64| {
            let bytes = largest
                .iter()
                .flatten()
                .map(|class| (pages(needs(*class)) * class.page_bytes() as u64, class));
            bytes.max().expect("nodes have a size")
        };
        let (log_min, by) = least(|needs| needs.log);
        let log_min = log_min.max(MIN_LOG_BYTES);
        let default = || 1 << (dram / 2).clamp(4 << 20, 1 << 30).max(log_min).ilog2();
        let log_max = self.log_max.unwrap_or_else(default);
        if log_max < log_min {
            return Err(Error::Config(format!(
                "log_max of {log_max} bytes; with pages of {} bytes the least is {log_min}",
                by.page_bytes()
            )));
        }
        let segment_bytes = (dram / 64).clamp(64 << 10, SEGMENT_BYTES_MAX);
        // The log doubles from its first capacity to the largest one.
        let log_first = log_min.max(self.log_min).min(log_max);
        let doublings = (log_max / log_first).max(1).ilog2();
        Ok(NewLayout {
            page_bytes: class.page_bytes(),
            segment_blocks: (segment_bytes / BLOCK_BYTES as u64)
                .max(SEGMENT_PAGES_MIN * class.blocks())
                .max(least(|needs| needs.segment).0 / BLOCK_BYTES as u64),
            log_max: log_max >> doublings >> 12 << 12 << doublings,
            log_first,
        })
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct NewLayout {
    pub(crate) page_bytes: usize,
    pub(crate) segment_blocks: u64,
    pub(crate) log_max: u64,
    pub(crate) log_first: u64,
}

fn memory_limit() -> u64 {
    let number = |path: &str| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let group = number("/sys/fs/cgroup/memory.max")
        .or_else(|| number("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
        .unwrap_or(u64::MAX);
    let available = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("MemAvailable:"))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok()
    });
    group.min(available.map_or(1 << 30, |kib| kib * 1024))
}
