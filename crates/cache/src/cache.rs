//! A block cache: keeps blocks of a slow device on a fast one.
//!
//! [`Cached`] is itself a [`BlockDevice`]. Without write-back the slow device is always complete:
//! it has every write before the acknowledgement, and the fast device may fail. `docs/cache.md`
//! says why no stale block is served.
//!
//! Each type owns its state, and a file imports only files above it in this table.
//!
//! | file           | contents                                                        |
//! |----------------|-----------------------------------------------------------------|
//! | `config.rs`, `stats.rs`, `shape.rs` | settings; counters; blocks and slots       |
//! | `index.rs`, `recent.rs` | blocks to slots, and hits, both without a shared lock  |
//! | `balance.rs`, `budget.rs`, `metered.rs` | device of a hit; bytes written per day |
//! | `request.rs`, `dirty.rs`, `record.rs` | requests; dirty blocks; journal records  |
//! | `placement.rs` | policy, free slots and blocks being written, under one lock     |
//! | `layout.rs`, `regions.rs`, `guard.rs`, `journal.rs` | durable state of the cache |
//! | `recover.rs`, `open.rs` | dirty and clean blocks of the previous run             |
//! | `blocks.rs`, `service.rs`, `write_back.rs` | devices; durability; write-back     |
//! | `read.rs`, `batch.rs`, `read_again.rs`, `write.rs` | reads; writes                    |
//! | `relocate.rs`, `maintenance.rs`, `directory.rs`, `trust.rs` | `Cached`, by task  |
//!
//! Lock order: `syncs`, the journal's `state`, the placement; the regions' `io` and `table`, and
//! the lists of hits, are innermost. Only `syncs`, `state` and `io` are held during device I/O.

use std::io;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use crate::policy::{COUNTS_PER_SLOT, HashedTable, Hint, Policy, Relation, Settings};
use terrace_io::{BlockDevice, Read, Write};

mod balance;
mod batch;
mod blocks;
mod budget;
mod checksum;
mod config;
mod directory;
mod dirty;
mod error;
mod guard;
mod index;
mod journal;
mod layout;
mod maintenance;
mod metered;
mod open;
mod placement;
mod random;
mod read;
mod read_again;
mod recent;
mod record;
mod recover;
mod regions;
mod relocate;
mod request;
mod service;
mod shape;
mod stats;
mod trust;
mod write;
mod write_back;

#[cfg(test)]
mod tests;

pub use config::{CacheConfig, Relations, WriteMode};
pub use error::CacheError;
pub use stats::{Bypass, CacheBypasses, CacheStats, RelationStats, Start};
pub use trust::CacheTrust;

use balance::Balance;
use blocks::Blocks;
use budget::Budget;
use guard::GuardState;
use index::{BLOCKS_MAX, Index, SLOT_BYTES};
use journal::Journal;
use metered::Metered;
use open::Usable;
use placement::Placement;
use read::Reads;
use recent::Recent;
use request::Starts;
use service::Service;
use shape::Shape;
use stats::Counters;
use write::{Writer, Writes};
use write_back::WriteBack;

/// A slow device with a cache on a fast one; see `docs/cache.md`.
///
/// ```
/// use std::sync::Arc;
/// use terrace_cache::{CacheConfig, Cached};
/// use terrace_io::{AlignedBuffer, BlockDevice, MemoryDevice};
///
/// let slow = Arc::new(MemoryDevice::new("database", 1 << 20));
/// let fast = Arc::new(MemoryDevice::new("cache", 0));
/// let cached = Cached::open(slow, fast, CacheConfig::new(64))?;
/// let mut page = AlignedBuffer::zeroed(4096);
/// cached.read_at(8192, &mut page)?; // from the slow device
/// cached.read_at(8192, &mut page)?; // from the fast one
/// assert_eq!((cached.stats().misses, cached.stats().hits), (1, 1));
/// cached.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Cached {
    blocks: Arc<Blocks>,
    service: Arc<Service>,
    back: Arc<WriteBack>,
    reads: Reads,
    writes: Writes,
    /// Dirty blocks of the previous run that were written to the slow device.
    recovered: u64,
    start: Start,
    /// The lock on the cache's file, for a cache in a directory.
    lock: Mutex<Option<Box<dyn Send + Sync>>>,
}

fn policy_of(config: &CacheConfig) -> Box<dyn Policy> {
    let (slots, capacity) = (config.capacity_blocks_max(), config.capacity_blocks);
    let mut settings = Settings::new(capacity as usize);
    settings.seed = config.seed;
    settings.lfu_counts = Some(COUNTS_PER_SLOT);
    settings.dram_blocks = config.dram_blocks.unwrap_or(settings.dram_blocks);
    let mut policy = config.policy.boxed::<HashedTable>(&settings);
    if slots > capacity {
        // Slots up to the largest capacity may hold blocks of the previous run.
        policy.resize(slots as usize);
        policy.resize(capacity as usize);
    }
    policy
}

impl Cached {
    /// Opens the cache on `fast` for `slow`.
    ///
    /// Blocks of the previous run are used as far as they can be trusted ([`Cached::start`]);
    /// otherwise a new cache is made. `fast` is extended as needed. If `fast` fails, the cache
    /// starts out of service, which is no error.
    ///
    /// Nothing else may use `fast`. Write to `slow` only through this cache, also while it is
    /// closed.
    ///
    /// # Errors
    /// [`CacheError::Config`] when a setting is out of range or does not fit the devices.
    /// [`CacheError::Foreign`] and [`CacheError::OtherVersion`] when `fast` holds something else,
    /// which stays unchanged. [`CacheError::Incomplete`] when dirty blocks are missing, and
    /// [`CacheError::Slow`].
    pub fn open(
        slow: Arc<dyn BlockDevice>,
        fast: Arc<dyn BlockDevice>,
        config: CacheConfig,
    ) -> Result<Self, CacheError> {
        config.check()?;
        let counters = Counters::default();
        let meter = &counters.written_bytes;
        let fast: Arc<dyn BlockDevice> = Arc::new(Metered::new(fast, Arc::clone(meter)));
        let alignment = slow.alignment().max(fast.alignment());
        if alignment > config.block_bytes.min(layout::PAGE_BYTES) {
            return Err(CacheError::Config(format!("devices that are aligned to {alignment} bytes")));
        }
        if slow.len() / config.block_bytes as u64 > BLOCKS_MAX {
            return Err(CacheError::Config(format!("{} has more than {BLOCKS_MAX} blocks", slow.name())));
        }
        let of_slow = |source| CacheError::Slow { device: slow.name().to_owned(), source };
        let revoked = match &config.guard {
            Some(guard) => GuardState::read(&**guard).map_err(of_slow)?,
            None => GuardState::Absent,
        };
        let (slots, capacity) = (config.capacity_blocks_max(), config.capacity_blocks);
        let policy = policy_of(&config);
        let (mut opened, failure) = match open::open(&*slow, &*fast, &config, revoked)? {
            Usable::Yes(opened) => (*opened, None),
            Usable::No(what, error) => (open::Opened::nothing(&config, &*slow), Some((what, error))),
        };
        if let Start::Cold(reason) = &opened.start {
            tracing::warn!(device = fast.name(), reason, "the cache is taken as empty");
        }
        let index = Index::new(slots, config.seed);
        let mut placement = Placement::new(policy, capacity);
        placement.account(config.relations.is_some(), Budget::new(&config, Arc::clone(meter)));
        opened.restore(&index, &mut placement);
        let open::Opened { superblock, regions, start, recovered, .. } = opened;
        let blocks = Arc::new(Blocks {
            shape: Shape {
                block_shift: config.block_bytes.trailing_zeros(),
                slots_start: superblock.layout.slots_start(),
                alignment,
            },
            index,
            recent: Recent::new(),
            placement: Mutex::new(placement),
            settled: Condvar::new(),
            counters,
            balance: Balance::new(),
            slow,
            fast,
            config,
        });
        let journal = Journal::new(superblock);
        let service = Arc::new(Service::new(Arc::clone(&blocks), regions, journal, failure.is_none()));
        let back = Arc::new(WriteBack::new(Arc::clone(&blocks), Arc::clone(&service)));
        let parts = || (Arc::clone(&blocks), Arc::clone(&service), Arc::clone(&back));
        let reads = {
            let (blocks, service, back) = parts();
            Reads { blocks, service, back }
        };
        let writes = {
            let (blocks, service, back) = parts();
            Writes { blocks, service, back }
        };
        match failure {
            Some((what, error)) => service.give_up(what, &error),
            None => service.enter_service()?,
        }
        Ok(Self { blocks, service, back, reads, writes, recovered, start, lock: Mutex::new(None) })
    }

    fn set_aside(&mut self, reason: String) {
        self.start = Start::Cold(reason);
    }

    /// The settings of the cache.
    pub fn config(&self) -> &CacheConfig {
        &self.blocks.config
    }

    /// The slow device, for reading.
    pub fn slow(&self) -> &dyn BlockDevice {
        &*self.blocks.slow
    }

    /// The state of the cache, and its counters since it was opened.
    pub fn stats(&self) -> CacheStats {
        let mut placement = self.blocks.placement.lock();
        let Blocks { config, .. } = &*self.blocks;
        let (block_bytes, capacity) = (config.block_bytes as u64, u64::from(placement.capacity()));
        let (kept, dropped, cold) = match &self.start {
            Start::New => (0, 0, None),
            Start::Warm { kept, dropped } => (*kept, *dropped, None),
            Start::Cold(reason) => (0, 0, Some(reason.clone())),
        };
        CacheStats {
            policy: config.policy.to_string(),
            block_bytes,
            capacity_bytes: capacity * block_bytes,
            resident_bytes: u64::from(placement.used()) * block_bytes,
            index_bytes: u64::from(self.blocks.index.slots()) * SLOT_BYTES,
            dram_bytes: config.policy.dram_bytes(capacity),
            hits: self.blocks.recent.hits(),
            requests_whole: self.blocks.recent.whole(),
            is_aside: self.blocks.balance.is_aside(),
            evictions: placement.evictions(),
            kept,
            dropped,
            cold,
            out_of_service: self.service.outage().cloned(),
            dirty_blocks: placement.dirty().len() as u64,
            recovered: self.recovered,
            ..self.blocks.counters.stats()
        }
    }

    /// The state in which the cache was opened.
    pub fn start(&self) -> Start {
        self.start.clone()
    }

    /// The counters of each relation, in order; blocks without a relation first.
    ///
    /// Empty without [`CacheConfig::relations`].
    pub fn relation_stats(&self) -> Vec<RelationStats> {
        self.blocks.report_hits();
        self.blocks.placement.lock().relations()
    }

    /// Changes the capacity, in blocks, up to the largest configured one.
    ///
    /// Surplus blocks leave at once, except those in use.
    ///
    /// # Errors
    /// [`CacheError::Config`] when the capacity is 0 or above the largest.
    pub fn resize(&self, capacity_blocks: u32) -> Result<(), CacheError> {
        if !(1..=self.blocks.index.slots()).contains(&capacity_blocks) {
            let largest = self.blocks.index.slots();
            let what = format!("a capacity of {capacity_blocks} blocks; it must be from 1 to {largest}");
            return Err(CacheError::Config(what));
        }
        self.blocks.placement.lock().resize(&self.blocks.index, capacity_blocks);
        if let Err(error) = self.drain() {
            tracing::warn!(%error, "dirty blocks stay in the cache until they can be written back");
        }
        self.service.write_journal_if_due();
        Ok(())
    }

    /// Hints that a submitted query requires these relations.
    pub fn query_begins(&self, query: u64, relations: &[Relation]) {
        self.hint(Hint::QueryBegins { query, relations });
    }

    /// Hints that the query has ended.
    pub fn query_ends(&self, query: u64) {
        self.hint(Hint::QueryEnds { query });
    }

    /// Hints that a relation now has `blocks` blocks.
    pub fn relation_size(&self, relation: Relation, blocks: u64) {
        self.hint(Hint::RelationSize { relation, blocks });
    }

    fn hint(&self, hint: Hint<'_>) {
        let mut placement = self.blocks.placement.lock();
        placement.hits(&self.blocks.index, &mut self.blocks.recent.lane().waiting());
        placement.policy().hint(hint);
    }

    /// Drops all blocks that lie wholly in an unused range.
    ///
    /// The slow device stays unchanged.
    pub fn free(&self, offset: u64, bytes: u64) {
        let first = offset.div_ceil(self.blocks.shape.block_bytes() as u64);
        self.blocks.invalidate(first, offset.saturating_add(bytes) >> self.blocks.shape.block_shift);
    }

    /// Like [`BlockDevice::read_batch`], with several requests per read.
    ///
    /// Requests begin at the ascending offsets `starts` and at each read. Adjacent pages are thus
    /// read together and admitted separately.
    pub fn read_batch_of(&self, reads: &mut [Read<'_>], starts: &[u64]) {
        self.reads.read_batch_of(reads, starts);
    }

    /// Reads again, past the cache, bytes that failed the caller's check.
    ///
    /// Returns whether `is_whole` accepts the new content of `buffer`. If so, cached blocks that
    /// differ are dropped; if any did, the read counts in
    /// [`CacheStats::fallbacks`](super::CacheStats), and the first such read warns. Dirty blocks
    /// come from the cache.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use terrace_cache::{CacheConfig, Cached};
    /// use terrace_io::{AlignedBuffer, BlockDevice, MemoryDevice};
    ///
    /// let slow = Arc::new(MemoryDevice::new("database", 1 << 20));
    /// let fast = Arc::new(MemoryDevice::new("cache", 0));
    /// let cached = Cached::open(slow, fast, CacheConfig::new(64))?;
    /// let mut page = AlignedBuffer::zeroed(4096);
    /// cached.read_at(8192, &mut page)?;
    /// let is_zero = |page: &[u8]| page.iter().all(|&byte| byte == 0);
    /// if !is_zero(&page) {
    ///     assert!(cached.read_again(8192, &mut page, is_zero)?, "the database is damaged");
    /// }
    /// assert_eq!(cached.stats().fallbacks, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Errors of the slow device. `InvalidData`, naming the fast device, if a dirty block is
    /// damaged.
    pub fn read_again(
        &self,
        offset: u64,
        buffer: &mut [u8],
        is_whole: impl FnOnce(&[u8]) -> bool,
    ) -> io::Result<bool> {
        self.reads.read_again(offset, buffer, is_whole)
    }

    /// Like [`BlockDevice::write_at`], with requests that begin at `starts`.
    ///
    /// `starts` is ascending. Bytes before its first offset in the range continue the request
    /// written last, such as a page written in parts. Without an offset there, the write is one
    /// request.
    ///
    /// # Errors
    /// As [`BlockDevice::write_at`].
    pub fn write_of(&self, offset: u64, bytes: &[u8], starts: &[u64]) -> io::Result<()> {
        self.blocks.check_write(offset, bytes)?;
        let write = [Write::new(offset, bytes)];
        self.writes
            .write_ranges(Writer::Above, &write, Starts(starts), || self.blocks.slow.write_at(offset, bytes))
    }

    /// Sets the write mode of one relation.
    ///
    /// [`WriteMode::Back`] suits temporary data that may be lost with the fast device. Write order
    /// is kept only among relations that are written back; other writes do not wait for them.
    ///
    /// # Errors
    /// [`CacheError::Config`] for [`WriteMode::Back`] without a [guard](super::CacheConfig::guard).
    pub fn write_mode(&self, relation: Relation, mode: WriteMode) -> Result<(), CacheError> {
        self.back.set_mode(relation, mode)
    }

    /// Writes all dirty blocks to the slow device, in order, and syncs it.
    ///
    /// # Errors
    /// Errors of the slow device, or of reading the fast one. Unwritten blocks stay dirty.
    pub fn drain(&self) -> io::Result<()> {
        self.back.drain()
    }
}

impl std::fmt::Debug for Cached {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Cached")
            .field("slow", &self.blocks.slow.name())
            .field("fast", &self.blocks.fast.name())
            .field("config", &self.blocks.config)
            .finish_non_exhaustive()
    }
}

/// Has the name, length and limits of the slow device.
impl BlockDevice for Cached {
    fn name(&self) -> &str {
        self.blocks.slow.name()
    }

    fn len(&self) -> u64 {
        self.blocks.slow.len()
    }

    fn covers(&self, end: u64) -> bool {
        self.blocks.slow.covers(end)
    }

    fn alignment(&self) -> usize {
        self.blocks.shape.alignment
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.reads.read_at(offset, buffer)
    }

    fn read_batch(&self, reads: &mut [Read<'_>]) {
        self.read_batch_of(reads, &[]);
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_of(offset, bytes, &[])
    }

    fn write_batch(&self, writes: &[Write<'_>]) -> io::Result<()> {
        let mut first = Ok(());
        let mut ready = Vec::with_capacity(writes.len());
        for write in writes {
            match self.blocks.check_write(write.offset, write.bytes) {
                Ok(()) => ready.push(*write),
                Err(error) => first = first.and(Err(error)),
            }
        }
        let written = self
            .writes
            .write_ranges(Writer::Above, &ready, Starts::default(), || self.blocks.slow.write_batch(&ready));
        first.and(written)
    }

    fn write_through_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.blocks.check_write(offset, bytes)?;
        let write = [Write::new(offset, bytes)];
        if self.back.is_on() {
            // Makes the write durable wherever it goes.
            self.write_at(offset, bytes)?;
            return self.flush();
        }
        let through = || self.blocks.slow.write_through_at(offset, bytes);
        let written = self.writes.write_ranges(Writer::Above, &write, Starts::default(), through);
        if written.is_err() {
            // A durable write fails like a sync.
            self.service.doubt();
        }
        written
    }

    fn sync(&self) -> io::Result<()> {
        self.flush()
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        if bytes >> self.blocks.shape.block_shift > BLOCKS_MAX {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{}: {bytes} bytes are more than a cache can name", self.blocks.slow.name()),
            ));
        }
        self.writes.change_len(bytes)
    }
}
