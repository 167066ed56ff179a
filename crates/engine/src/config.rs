//! Settings, and how a byte budget becomes parts.
//!
//! `dram` is everything the engine takes, not only its cache. What has a fixed size is taken off first, the frames get
//! the rest:
//!
//! | part              | share                                                     | with another budget     |
//! |-------------------|-----------------------------------------------------------|-------------------------|
//! | log buffer        | 1/32, a power of two, at least 32 pages, else at most 8 MiB | as it was              |
//! | staging           | 1/64, at least eight pages, else at most 2 MiB             | as it was               |
//! | batches of reads  | 1/64, at least four pages, at most 256                     | as it was               |
//! | old versions      | 1/16, or what `old_version_bytes_max` says                 | a new limit; see below  |
//! | reads of transactions | at most 1/32, taken from the part of old versions      | a new limit             |
//! | locks, clock      | 1/256 and 1/512                                            | as they were            |
//! | snapshots, gate, statistics | about 160 KiB of slots, one line each             | as they were            |
//! | read buffers      | two pages for each of eight threads                        | an estimate, as it was  |
//! | compression       | two pages and a bit, where pages are larger than 4 KiB     | as it was               |
//! | middle tier       | 66 bytes for each of its frames, and an admission queue   | as it was               |
//! | page table        | 1/48, or 18 bytes for each page the file has room for, and with mapped pages 8 for each 4 KiB of it | it grows by itself |
//! | frames            | the rest; 66 bytes beside each: header, replacement        | the rest                |
//!
//! Pages may be of several sizes. The first three parts have room for the largest of: the database's own size, those in use when
//! it is opened, [`Builder::page_size_max`] and [`Builder::value_page_size_max`]. Read buffers and compression are of the largest
//! in use, and grow at the expense of frames when a larger one is used for the first time. Each size in use has at least 24
//! frames.
//!
//! Sizes above 64 KiB are for long values alone, one page of which is in a record, and in the hands of a thread. So of these
//! the parts need less than the table says: two pages of log buffer, two of staging, four for reads, which read them in place of
//! the read buffers, and four frames.
//!
//! The budget can be changed while the database is open ([`Db::set_dram`]), up to `dram_max`, for whose frames addresses
//! are reserved. Memory comes and goes with the frames and with the limit of old versions; what `old_version_bytes_max`
//! has set stays, and a share of the budget falls no lower than four times the first chunks of the queues that old
//! versions wait in, of which there are as many as the first budget allowed. What is fixed was measured by the budget at
//! open: a database that is to become large works better if it was opened so.
//!
//! The page table grows with the store, 16 bytes a page, and frames are not given back for it: a store that grows to
//! more than about five times its budget (with 4 KiB pages) while it is open exceeds the share. `Stats` says by how
//! much, and the next open takes it off the frames. A transaction's write set is its caller's memory; it is bounded
//! by the log, of which its records may take five eighths. So are the first 4 KiB of what it has read, and the scratch memory that
//! each thread keeps: at most three times 64 KiB, and less with small pages.

use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use terrace_block::{Directory, Migrate, NodeSet, Time};

use crate::backend::Backend;
use crate::buffer::{
    BATCH_PAGES_MAX, BATCHES_MAX, FRAMES_MAX, Mode, RECORD_BYTES_PER_FRAME, RecordCache, VALUE_FRAMES_MIN,
    buffers_bytes, frame_cost, table_bytes_per_page,
};
use crate::cache::Cache;
use crate::db::Db;
use crate::db::options::Compression;
use crate::error::{Error, Result};
use crate::ids::{ByClass, SizeClass};
use crate::middle::Middle;
use crate::migration::{Choice, CleanVictims};
use crate::replacement::Replacement;
use crate::store::place::PLACE_BYTES;
use crate::store::superblock::Superblock;

mod cache;
mod middle;
#[cfg(test)]
mod tests;

/// The smallest budget: below it the fixed parts leave no room for frames.
pub const MIN_DRAM_BYTES: u64 = 1 << 20;
/// The smallest log.
pub const MIN_LOG_BYTES: u64 = 256 << 10;
/// Frames that each size of pages in use has at least, if nodes can have it.
pub(crate) const FRAMES_MIN: u32 = 24;

/// When a commit returns.
///
/// ```
/// use terrace::{Db, Durability, MemoryDirectory};
///
/// # let directory = std::sync::Arc::new(MemoryDirectory::new());
/// let db = Db::builder().directory(directory).dram(4 << 20).durability(Durability::Buffered).open("")?;
/// let table = db.create_table("events")?;
/// table.put(b"1", b"not yet durable")?;
/// db.flush()?; // now it is
/// # Ok::<(), terrace::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Durability {
    /// When it would survive a power cut.
    #[default]
    Sync,
    /// At once. A crash may lose the last ones, never a part of one, and none that had returned before one that survives
    /// began. Others see the changes before they are durable.
    Buffered,
}

/// How to open a database.
///
/// ```
/// use terrace::{Db, Durability};
///
/// let place = tempfile::tempdir().unwrap();
/// let db = Db::builder().dram(8 << 20).page_size(4096).log_max(1 << 20).open(place.path().join("db"))?;
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
    pub(crate) read_only: bool,
    pub(crate) create: bool,
    pub(crate) durability: Durability,
    pub(crate) snapshot_age_max: Duration,
    pub(crate) old_version_bytes_max: Option<u64>,
    pub(crate) record_cache: RecordCache,
    pub(crate) backend: Option<Backend>,
    pub(crate) replacement: Replacement,
    pub(crate) middle: Option<Middle>,
    /// Whether there is none whatever the environment says.
    pub(crate) no_middle: bool,
    pub(crate) policy: Option<Choice>,
    pub(crate) cache: Option<Cache>,
    pub(crate) cache_directory: Option<Arc<dyn Directory>>,
    pub(crate) clean_victims: Option<CleanVictims>,
    pub(crate) admission_queue: Option<u64>,
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
            read_only: false,
            create: true,
            durability: Durability::Sync,
            snapshot_age_max: Duration::from_secs(3600),
            old_version_bytes_max: None,
            record_cache: RecordCache::Auto,
            backend: None,
            replacement: Replacement::default(),
            middle: None,
            no_middle: false,
            policy: None,
            cache: None,
            cache_directory: None,
            clean_victims: None,
            admission_queue: None,
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
    /// Bytes of memory for everything, at least 1 MiB. Default: a quarter of what the machine or its control group
    /// allows, between 16 MiB and 1 GiB.
    pub fn dram(mut self, bytes: u64) -> Self {
        self.dram = Some(bytes);
        self
    }

    /// How far [`Db::set_dram`] may raise the budget, in bytes, at least the budget at open, which is the default. It
    /// costs addresses, no memory.
    pub fn dram_max(mut self, bytes: u64) -> Self {
        self.dram_max = Some(bytes);
        self
    }

    /// Bytes of a page of a database that is created here: a power of two from 4 KiB to 64 KiB. Default 4 KiB, the
    /// best for point reads of data larger than memory. An existing database keeps its own.
    pub fn page_size(mut self, bytes: u64) -> Self {
        self.page_size = Some(bytes);
        self
    }

    /// The largest pages that tables may have, in bytes: the parts of memory that must hold several of them are made large
    /// enough when the database is opened, and so are the log and the segments of one that is created here. Default: those
    /// of the database itself or of the tables there are, or larger ones for which the parts suffice as they are.
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

    /// The largest pages that long values of tables may have, in bytes, up to 2 MiB: as [`Builder::page_size_max`] for the pages
    /// of [`crate::TableOptions::value_page_size_max`]. Above 64 KiB a database that is created here gets segments of four such
    /// pages, and a log of eight at least. Default: those that are in use, or larger ones for which the parts suffice as they are.
    ///
    /// ```
    /// use terrace::{Db, MemoryDirectory};
    ///
    /// # let directory = std::sync::Arc::new(MemoryDirectory::new());
    /// let db = Db::builder().directory(directory).dram(64 << 20).value_page_size_max(2 << 20).open("")?;
    /// assert_eq!(db.stats().page_bytes, 4096);
    /// assert!(db.stats().log_buffer_bytes >= 2 * (2 << 20));
    /// # Ok::<(), terrace::Error>(())
    /// ```
    pub fn value_page_size_max(mut self, bytes: u64) -> Self {
        self.value_page_size_max = Some(bytes);
        self
    }

    /// How pages are written of tables that are made from now on and say nothing else ([`crate::TableOptions`]). Tables that
    /// exist keep what they were made with. Default: as they are. Pages of 4 KiB cannot be compressed.
    pub fn compression(mut self, compression: Compression) -> Self {
        self.compression = compression;
        self
    }

    /// How long the log of a database that is created here may grow, in bytes, at least 256 KiB. Default: half of
    /// the budget, between 4 MiB and 1 GiB. An existing database keeps its own.
    pub fn log_max(mut self, bytes: u64) -> Self {
        self.log_max = Some(bytes);
        self
    }

    /// Refuse every change, and leave no trace: nothing is created, written or locked for others that read. Several
    /// may have a database open like this at the same time, and nobody for writing. One that was not closed cleanly is
    /// recovered in memory, within the budget, or refused with [`Error::NeedsRecovery`].
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.read_only = read_only;
        self
    }

    /// Whether to create the database where there is none. Default: yes.
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// What commits that say nothing else wait for. Default: [`Durability::Sync`].
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// The age at which a snapshot is given up and fails with [`Error::SnapshotTooOld`]. Default: one hour.
    pub fn snapshot_age_max(mut self, age: Duration) -> Self {
        self.snapshot_age_max = age;
        self
    }

    /// Bytes of old versions kept for snapshots, beyond which the oldest snapshot is given up. Default: a sixteenth
    /// of the budget.
    pub fn old_version_bytes_max(mut self, bytes: u64) -> Self {
        self.old_version_bytes_max = Some(bytes);
        self
    }

    /// How much of the memory may go to records that are read often while others of their pages are not, in place of
    /// pages. Default: [`RecordCache::Auto`].
    pub fn record_cache(mut self, share: RecordCache) -> Self {
        self.record_cache = share;
        self
    }

    /// Where the bytes of pages are. Default: what the environment variable `TERRACE_BACKEND` says, or else [`Backend::Frames`].
    pub fn backend(mut self, backend: Backend) -> Self {
        self.backend = Some(backend);
        self
    }

    /// Which pages leave memory first. Default: [`Replacement::Mark`].
    pub fn replacement(mut self, replacement: Replacement) -> Self {
        self.replacement = replacement;
        self
    }

    /// Who does the background work. Default: threads of the database's own.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Draws the identity of a database that is created here from this seed, so that a test replays byte by byte. Two
    /// databases made from one seed cannot tell each other's files apart. 0, the default, draws it from the system.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Where the files are, instead of a directory of the file system; the path given to [`Builder::open`] then
    /// means nothing.
    pub fn directory(mut self, directory: Arc<dyn Directory>) -> Self {
        self.directory = Some(directory);
        self
    }

    /// Opens the database in the directory `path`, recovering it if it was not closed, or creates it.
    ///
    /// # Errors
    /// [`Error::Busy`] if it is open elsewhere, [`Error::NotADatabase`], [`Error::Version`], [`Error::Corrupt`],
    /// [`Error::Config`] for settings that cannot be, [`Error::Memory`], [`Error::Full`], [`Error::Io`].
    pub fn open(self, path: impl AsRef<Path>) -> Result<Db> {
        crate::db::open::open(self, path.as_ref())
    }

    /// The budget in bytes.
    pub(crate) fn dram_bytes(&self) -> Result<u64> {
        match self.dram {
            Some(bytes) => check_dram(bytes),
            None => Ok((memory_limit() / 4).clamp(16 << 20, 1 << 30)),
        }
    }

    /// The largest budget in bytes there may be, `dram` being the first.
    pub(crate) fn dram_bytes_max(&self, dram: u64) -> Result<u64> {
        match self.dram_max {
            Some(most) if most < dram => {
                Err(Error::Config(format!("dram_max of {most} bytes; the budget at open is {dram} bytes")))
            }
            most => Ok(most.unwrap_or(dram)),
        }
    }

    /// The back end.
    pub(crate) fn backend_or_default(&self) -> Result<Backend> {
        self.backend.map_or_else(Backend::of_environment, Ok)
    }

    /// The class of the largest pages that tables are to have, if that was said.
    pub(crate) fn class_max(&self) -> Result<Option<SizeClass>> {
        self.page_size_max.map(class_of).transpose()
    }

    /// The class of the largest pages that long values are to have, if that was said.
    pub(crate) fn value_class_max(&self) -> Result<Option<SizeClass>> {
        self.value_page_size_max.map(|bytes| value_class_of(bytes, SizeClass::SMALLEST)).transpose()
    }

    /// Page size, segment size and log capacity of a database to be created.
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
        let log_bytes = self.log_max.unwrap_or((dram / 2).clamp(4 << 20, 1 << 30).max(log_min));
        if log_bytes < log_min {
            return Err(Error::Config(format!(
                "log_max of {log_bytes} bytes; with pages of {} bytes the least is {log_min}",
                by.page_bytes()
            )));
        }
        let segment_bytes = (dram / 64).clamp(64 << 10, 2 << 20);
        Ok(NewLayout {
            page_bytes: class.page_bytes(),
            segment_places: (segment_bytes / PLACE_BYTES as u64)
                .max(SEGMENT_PAGES_MIN * class.places())
                .max(least(|needs| needs.segment).0 / PLACE_BYTES as u64),
            log_capacity: log_bytes / 4096 * 4096,
        })
    }
}

/// What is decided when a database is created.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewLayout {
    pub(crate) page_bytes: usize,
    pub(crate) segment_places: u64,
    pub(crate) log_capacity: u64,
}

/// The class of pages of so many bytes, which a tree can have.
pub(crate) fn class_of(page_bytes: u64) -> Result<SizeClass> {
    class_between(page_bytes, SizeClass::SMALLEST, SizeClass::LARGEST_NODE, "pages")
}

/// The class of pages of so many bytes, whatever is in them.
pub(crate) fn any_class_of(page_bytes: u64) -> Result<SizeClass> {
    class_between(page_bytes, SizeClass::SMALLEST, SizeClass::LARGEST, "pages")
}

/// The class of pages of so many bytes for long values of a table whose own are of class `own`.
pub(crate) fn value_class_of(page_bytes: u64, own: SizeClass) -> Result<SizeClass> {
    class_between(page_bytes, own, SizeClass::LARGEST, "pages for values")
}

fn class_between(page_bytes: u64, least: SizeClass, most: SizeClass, what: &str) -> Result<SizeClass> {
    let class = SizeClass::of_bytes(page_bytes).filter(|class| (least..=most).contains(class));
    class.ok_or_else(|| {
        let [least, most] = [least, most].map(SizeClass::page_bytes);
        Error::Config(format!(
            "{what} of {page_bytes} bytes; a power of two from {least} to {most} is possible"
        ))
    })
}

fn check_dram(bytes: u64) -> Result<u64> {
    if bytes < MIN_DRAM_BYTES {
        return Err(Error::Config(format!("dram of {bytes} bytes; the least is {MIN_DRAM_BYTES} (1 MiB)")));
    }
    Ok(bytes)
}

/// The sizes of the pages of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageSizes {
    /// Its own: that of the catalog, and of tables for which nothing else is said.
    pub(crate) own: SizeClass,
    /// The others that are in use.
    pub(crate) others: ByClass<bool>,
    /// What [`Builder::page_size_max`] says.
    pub(crate) most: Option<SizeClass>,
    /// What [`Builder::value_page_size_max`] says.
    pub(crate) most_values: Option<SizeClass>,
}

impl PageSizes {
    /// Those of the database with this superblock.
    pub(crate) fn of(superblock: &Superblock) -> PageSizes {
        let own = SizeClass::of_bytes(superblock.page_bytes.into()).expect("the superblock was checked");
        PageSizes { others: superblock.page_ids_end.map(|end| end > 1), ..PageSizes::one(own) }
    }

    /// Those of a database all of whose pages have one size.
    pub(crate) fn one(own: SizeClass) -> PageSizes {
        PageSizes { own, others: [false; SizeClass::COUNT], most: None, most_values: None }
    }

    /// Those in use, the smallest first.
    pub(crate) fn in_use(&self) -> impl Iterator<Item = SizeClass> {
        SizeClass::all().filter(|&class| class == self.own || self.others[class.index()])
    }

    /// The largest in use.
    pub(crate) fn largest_used(&self) -> SizeClass {
        self.in_use().last().expect("its own is in use")
    }

    /// The largest of nodes for which there is to be room. Values that may have larger pages may have those too.
    fn largest_node(&self) -> SizeClass {
        let wanted = self.in_use().chain(self.most).chain(self.most_values);
        wanted.map(|class| class.min(SizeClass::LARGEST_NODE)).max().expect("its own is in use")
    }

    /// The largest above those, if there is to be room for any.
    fn largest_for_values(&self) -> Option<SizeClass> {
        self.in_use().chain(self.most_values).filter(|class| class.is_for_values()).max()
    }

    /// The same with all classes from `own` to `most` in use.
    pub(crate) fn with_values(mut self, own: SizeClass, most: SizeClass) -> PageSizes {
        SizeClass::all()
            .filter(|class| (own..=most).contains(class))
            .for_each(|class| self.others[class.index()] = true);
        self
    }
}

/// A budget, split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Split {
    pub(crate) total: u64,
    pub(crate) log_buffer: u64,
    pub(crate) staging: u64,
    pub(crate) batches: u64,
    /// Bytes that one of the buffers of batches has at least, where pages are read in them that no read buffer has room for.
    pub(crate) batch_least: u64,
    pub(crate) versions: u64,
    pub(crate) lock_slots: usize,
    pub(crate) clock_window: usize,
    /// What a writer would write, of a database opened read-only.
    pub(crate) overlay: u64,
    /// What is known of the frames of the middle tier, and of the blocks of the cache.
    pub(crate) beside: u64,
    /// What the record cache keeps beside each frame.
    pub(crate) beside_frame: u64,
    /// What is known of each page of the file, whether or not it is in memory.
    pub(crate) table_bytes_per_page: u64,
    /// Frames with what is beside each, and the buffers of their pages.
    pub(crate) frame_bytes: u64,
}

/// What recovery in memory leaves to everything else, if the budget is no more than twice that.
const BESIDE_OVERLAY_BYTES_MIN: u64 = 768 << 10;
/// What opening read-only takes to note a new epoch and the end of the log, in memory.
const OVERLAY_BYTES_MIN: u64 = 64 << 10;

/// What a database opened read-only may take for what a writer would write: of a budget of `total` bytes half, if its
/// log holds changes, so that what they came to can be kept.
pub(crate) fn overlay_bytes(total: u64, log_has_changes: bool) -> u64 {
    match log_has_changes {
        true => (total / 2).min(total.saturating_sub(BESIDE_OVERLAY_BYTES_MIN)).max(OVERLAY_BYTES_MIN),
        false => OVERLAY_BYTES_MIN,
    }
}

/// A segment has room for so many pages at the least, so that the place an image may leave empty at its end is a small part.
const SEGMENT_PAGES_MIN: u64 = 16;
/// Bytes of slots for snapshots, gate, keys in flight, shards, tickets, counters: each on lines of its own.
const SLOT_BYTES: u64 = 192 << 10;

/// Pages of a size for which the parts must have room at least.
struct Needs {
    log_buffer: u64,
    staging: u64,
    /// In the buffers of batches: those of one buffer, and one more.
    batches: u64,
    log: u64,
    segment: u64,
}

/// Of a size that nodes can have. A batch of a large value is one record, of sixteen pages.
const NODE_NEEDS: Needs = Needs { log_buffer: 32, staging: 8, batches: 2, log: 64, segment: 4 };
/// Of a size for values alone, of which a record has one page. Two buffers have room for an image and the page in it.
const VALUE_NEEDS: Needs = Needs { log_buffer: 2, staging: 2, batches: 4, log: 8, segment: 4 };
/// Pages in the buffers of batches, if nodes can have their size: as many as there may be buffers.
const BATCHES_PAGES_MIN: u64 = 4;

fn needs(class: SizeClass) -> &'static Needs {
    if class.is_for_values() { &VALUE_NEEDS } else { &NODE_NEEDS }
}

/// Bytes of the page table for each page of the file: its entry, and what is known of ids that are free.
const TABLE_BYTES_PER_PAGE: u64 = 18;

/// Frames that pages of `class` have at least if it is in use.
pub(crate) fn frames_min(class: SizeClass) -> u32 {
    if class.is_for_values() { VALUE_FRAMES_MIN } else { FRAMES_MIN }
}

impl Split {
    /// Splits `total` bytes for a database with pages of these sizes and a page file of `file_pages` pages.
    pub(crate) fn new(
        total: u64,
        versions: Option<u64>,
        records: RecordCache,
        backend: Backend,
        sizes: PageSizes,
        file_pages: u64,
    ) -> Result<Split> {
        let page_bytes = sizes.largest_node().page_bytes() as u64;
        let value_bytes = sizes.largest_for_values().map_or(0, |class| class.page_bytes() as u64);
        let log_buffer = (total / 32).min(crate::wal::BUFFER_BYTES_MAX);
        let log_buffer = log_buffer
            .max(NODE_NEEDS.log_buffer * page_bytes)
            .max(VALUE_NEEDS.log_buffer * value_bytes)
            .next_power_of_two();
        let least = NODE_NEEDS.staging * page_bytes;
        let staging = (total / 64).clamp(least, (2 << 20).max(least));
        let staging = (staging / page_bytes * page_bytes).max(VALUE_NEEDS.staging * value_bytes);
        let batches = (total / 64 / page_bytes)
            .clamp(BATCHES_PAGES_MIN, (BATCH_PAGES_MAX * BATCHES_MAX) as u64)
            * page_bytes;
        let batches = batches.max(VALUE_NEEDS.batches * value_bytes);
        // More than everything is too much, and can still be added to.
        let versions = versions.unwrap_or(Split::versions_share(total)).min(total);
        let lock_slots =
            ((total / 256 / 16) as usize).clamp(256, crate::txn::locks::LockTable::SLOTS_DEFAULT);
        let clock_window = ((total / 512 / 16) as usize).clamp(64, crate::txn::clock::Clock::WINDOW_DEFAULT);
        let split = Split {
            total,
            log_buffer,
            staging,
            batches,
            batch_least: VALUE_NEEDS.batches / 2 * value_bytes,
            versions,
            lock_slots,
            clock_window,
            overlay: 0,
            beside: 0,
            beside_frame: if records == RecordCache::Off { 0 } else { RECORD_BYTES_PER_FRAME },
            table_bytes_per_page: TABLE_BYTES_PER_PAGE + table_bytes_per_page(backend, sizes.own),
            frame_bytes: 0,
        };
        split.with_frames(sizes, file_pages)
    }

    /// The same with what is known of the frames of a middle tier and the blocks of a cache taken off.
    pub(crate) fn with_beside(self, bytes: u64, sizes: PageSizes, file_pages: u64) -> Result<Split> {
        Split { beside: bytes, ..self }.with_frames(sizes, file_pages)
    }

    /// The same for a budget of `total` bytes, while the database is open. What is fixed at open stays; old versions
    /// may take `versions` bytes.
    pub(crate) fn resized(
        &self,
        total: u64,
        versions: u64,
        sizes: PageSizes,
        file_pages: u64,
    ) -> Result<Split> {
        let versions = versions.min(check_dram(total)?);
        Split { total, versions, ..*self }.with_frames(sizes, file_pages)
    }

    /// The largest pages of nodes that what is fixed at open has room for.
    pub(crate) fn largest_node(&self) -> SizeClass {
        let has_room = |class: &SizeClass| {
            !class.is_for_values() && self.check_class(*class, u64::MAX, u64::MAX).is_ok()
        };
        SizeClass::all().rev().find(has_room).unwrap_or(SizeClass::SMALLEST)
    }

    /// What old versions may take of a budget of `total` bytes, unless something else is said.
    pub(crate) fn versions_share(total: u64) -> u64 {
        total / 16
    }

    /// Gives the frames what the other parts leave.
    fn with_frames(mut self, sizes: PageSizes, file_pages: u64) -> Result<Split> {
        let Split {
            total,
            log_buffer,
            staging,
            batches,
            versions,
            lock_slots,
            clock_window,
            overlay,
            beside,
            beside_frame,
            ..
        } = self;
        let page_table = (total / 48).max(file_pages * self.table_bytes_per_page);
        let log_memory = crate::wal::Wal::memory_bytes(log_buffer);
        let buffers = buffers_bytes(sizes.largest_used());
        let fixed = (log_memory + staging + (lock_slots * 16 + clock_window * 16) as u64 + SLOT_BYTES)
            .saturating_add(batches + page_table + buffers)
            .saturating_add(versions)
            .saturating_add(overlay)
            .saturating_add(beside);
        // What the record cache has beside frames it has beside those of the database's own size, which may be all of them.
        let own_cost = frame_cost(sizes.own);
        let frames = total.saturating_sub(fixed) / (own_cost + beside_frame);
        let floors =
            sizes.in_use().map(|class| u64::from(frames_min(class)) * frame_cost(class)).sum::<u64>();
        if frames * own_cost < floors {
            let least = fixed.saturating_add(floors.div_ceil(own_cost) * (own_cost + beside_frame));
            let least = least.checked_next_multiple_of(1 << 20).unwrap_or(u64::MAX);
            let (values, nodes): (Vec<_>, Vec<_>) = sizes.in_use().partition(|class| class.is_for_values());
            let named = |classes: Vec<SizeClass>| {
                let bytes: Vec<String> = classes.iter().map(|class| class.page_bytes().to_string()).collect();
                bytes.join(" and of ")
            };
            let values = match values.is_empty() {
                true => String::new(),
                false => format!(", and {VALUE_FRAMES_MIN} of {} bytes", named(values)),
            };
            return Err(Error::Config(format!(
                "dram of {total} bytes leaves {} bytes for frames; {FRAMES_MIN} frames of {} bytes{values} are needed; \
                 give it about {least} bytes",
                frames * own_cost,
                named(nodes)
            )));
        }
        self.frame_bytes = buffers + frames.min(FRAMES_MAX.into()) * own_cost;
        Ok(self)
    }

    /// Whether the parts suffice for tables with pages of `class`, in a database whose log and segments are so long.
    ///
    /// # Errors
    /// [`Error::Config`], with what would do.
    pub(crate) fn check_class(&self, class: SizeClass, log_capacity: u64, segment_bytes: u64) -> Result<()> {
        let (page_bytes, needs) = (class.page_bytes() as u64, needs(class));
        let setting = if class.is_for_values() { "value_page_size_max" } else { "page_size_max" };
        let made = [
            ("the log", log_capacity, needs.log, "log_max"),
            ("a segment", segment_bytes, needs.segment, setting),
        ];
        for (what, bytes, pages, setting) in made {
            if bytes < pages * page_bytes {
                return Err(Error::Config(format!(
                    "pages of {page_bytes} bytes; {what} of this database has {bytes} bytes, and {pages} pages are needed: \
                     that is decided when a database is created, by {setting}"
                )));
            }
        }
        let opened = [
            ("log buffer", self.log_buffer, needs.log_buffer),
            ("staging buffer", self.staging, needs.staging),
            ("buffers for batches of reads", self.batches, needs.batches),
        ];
        for (what, bytes, pages) in opened {
            if bytes < pages * page_bytes {
                return Err(Error::Config(format!(
                    "pages of {page_bytes} bytes; the {what} of this database has {bytes} bytes, and {pages} pages are \
                     needed: open it with {setting}({page_bytes}), or with a larger dram"
                )));
            }
        }
        Ok(())
    }
}

/// What the machine, or the control group this process is in, allows.
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
