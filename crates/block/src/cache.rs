//! A block cache: blocks of a slow device are kept on a fast one, and reads of them do not go to the slow device.
//!
//! [`Cached`] is itself a [`BlockDevice`], so what stands on the slow device can stand on the cache with nothing else
//! changed. The slow device is always complete: every write goes there before it is acknowledged, and the
//! fast device may fail, fill up or vanish at any time. Only where write-back is asked for the slow device lags behind. What is admitted and what must leave is decided by the policies of
//! [`policy`](crate::policy), the same objects that the simulator runs.
//!
//! | file           | what is in it                                                                  |
//! |----------------|--------------------------------------------------------------------------------|
//! | `config.rs`    | settings and presets                                                           |
//! | `balance.rs`   | which device serves a hit                                                        |
//! | `budget.rs`    | bytes a day that may be written to the fast device                                |
//! | `index.rs`     | which block is in which slot; read without a lock                                |
//! | `placement.rs` | policy, free slots and what is being written, under the one lock                     |
//! | `recent.rs`    | hits that the policy has not yet heard of, by thread                               |
//! | `read.rs`      | hits, misses and fetches                                                         |
//! | `again.rs`     | reads of bytes that turned out damaged                                             |
//! | `request.rs`   | what is asked for together                                                          |
//! | `metered.rs`   | counts what is written to the fast device                                             |
//! | `batch.rs`     | batches of reads                                                                 |
//! | `write.rs`     | writes and invalidations                                                         |
//! | `relocate.rs`  | bytes that move from one place of the slow device to another                        |
//! | `write_back.rs`| writes that the slow device gets later                                           |
//! | `dirty.rs`     | which blocks those are, and in which order they go                                |
//! | `recover.rs`   | those of an earlier life                                                         |
//! | `layout.rs`    | what is where on the fast device                                                 |
//! | `journal.rs`   | what is in which slot, for the next opening                                      |
//! | `regions.rs`   | which parts of the slow device are being written                                 |
//! | `directory.rs` | a cache in a file of a directory, with its lock                                   |
//! | `open.rs`      | what is used of an earlier life                                                  |
//! | `upkeep.rs`    | syncs, the journal's pages, and what is done when the fast device fails            |
//! | `guard.rs`     | a page beside the slow device that says what must not be used again                  |
//! | `trust.rs`     | how much is believed of a cache whose process died                                   |
//!
//! # What a hit does
//! It finds the slot in the index, reads the fast device, looks whether the slot's word is still what it was, and
//! takes a note for the policy in a list of its own thread. It takes no lock that other threads take.
//!
//! # Why nothing stale is ever served
//! While the cache runs, by the courses of `placement.rs`: what is being written is not served, and what was fetched meanwhile
//! is thrown away. After a restart a block is served if its bytes have the checksum that the journal has of it, and
//!
//! * if the process was killed: every write goes to the slot before it goes to the slow device, and no block is written whose old
//!   bytes some slot could claim; so bytes with the right checksum are the slow device's;
//! * if the power may have gone: its region carries no mark; then the slow device was synced after the last write to it, and
//!   everything the cache knew was made durable after that;
//! * and in neither case if the region is in doubt, the device is revoked, or it is not as the guard left it (`guard.rs`).
//!
//! # Lock order
//! `syncs`, then the journal's `state`, then the placement; the regions' `io` and `table`, and the lists of hits, are innermost. A device
//! is waited for under the first two and `io` only.

use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::device::{check_read, check_write, invalid_input};
use crate::policy::{Access, COUNTS_PER_SLOT, HashedTable, Hint, Relation, Settings};
use crate::{BlockDevice, Read, Write};

mod again;
mod balance;
mod batch;
mod budget;
mod config;
mod directory;
mod dirty;
mod error;
mod guard;
mod index;
mod journal;
mod layout;
mod metered;
mod open;
mod placement;
mod read;
mod recent;
mod recover;
mod regions;
mod relocate;
mod request;
mod stats;
mod trust;
mod upkeep;
mod write;
mod write_back;

#[cfg(test)]
mod tests;

pub use config::{CacheConfig, Relations, WriteMode};
pub use error::CacheError;
pub use stats::{Bypass, CacheStats, RelationStats, Start};
pub use trust::CacheTrust;

use balance::Balance;
use budget::Budget;
use guard::Revoked;
use index::{BLOCKS_MAX, Index, SLOT_BYTES};
use journal::Journal;
use metered::Metered;
use open::Usable;
use placement::Placement;
use recent::Recent;
use regions::Regions;
use request::Starts;
use stats::Counters;
use write::Writer;
use write_back::Back;

/// A slow device with a cache on a fast one; `docs/cache.md` says how to use it, and when not to.
///
/// ```
/// use std::sync::Arc;
/// use terrace_block::{AlignedBuffer, BlockDevice, CacheConfig, Cached, MemoryDevice};
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
    slow: Arc<dyn BlockDevice>,
    fast: Arc<dyn BlockDevice>,
    config: CacheConfig,
    block_shift: u32,
    /// Where slot 0 is on the fast device, in bytes.
    slots_start: u64,
    alignment: usize,
    index: Index,
    recent: Recent,
    placement: Mutex<Placement>,
    /// Some block has stopped being fetched or written.
    settled: Condvar,
    counters: Counters,
    regions: Regions,
    journal: Journal,
    balance: Balance,
    back: Back,
    recovered: u64,
    /// One sync of the slow device at a time; when marks were last taken off.
    syncs: Mutex<Duration>,
    start: Start,
    /// Whether the fast device could be used from the start, so that there is a cache on it.
    has_journal: bool,
    /// Why it is out of service.
    service: OnceLock<String>,
    /// It is, and nobody could be told that what is on the fast device must not be used.
    is_unrevoked: AtomicBool,
    /// Of the cache's file, if it is one of a directory, until it is let go of.
    lock: Mutex<Option<Box<dyn Send + Sync>>>,
}

/// The part of one block in a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    block: u64,
    /// Where the part begins in the block, in bytes.
    within: u64,
    /// Its length, in bytes.
    length: usize,
}

/// What is known of a block's bytes: CRC-32C.
fn checksum(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

impl Cached {
    /// Puts a cache on `fast` before `slow`. What an earlier life of the cache has left there is used as far as it can be
    /// trusted; a new cache is made where there was none, or one that cannot be used ([`CacheStats::start`]). `fast` is made as
    /// long as it needs to be. If it fails, the cache is out of service from the start, which is no error.
    ///
    /// Nobody else may use `fast` meanwhile, and nobody may write to `slow` but through this cache, also between two of its
    /// lives.
    ///
    /// # Errors
    /// [`CacheError::Config`] when a setting is out of range or does not fit the devices, [`CacheError::Foreign`] and
    /// [`CacheError::OtherVersion`] when `fast` holds something else, which is left as it is,
    /// [`CacheError::Incomplete`] when blocks that were to be written back are missing, and [`CacheError::Slow`].
    pub fn open(
        slow: Arc<dyn BlockDevice>,
        fast: Arc<dyn BlockDevice>,
        config: CacheConfig,
    ) -> Result<Self, CacheError> {
        config.check()?;
        let counters = Counters::default();
        let meter = &counters.fast_written_bytes;
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
            Some(guard) => Revoked::read(&**guard).map_err(of_slow)?,
            None => Revoked::None,
        };
        let (slots, capacity) = (config.capacity_blocks_max(), config.capacity_blocks);
        let mut settings = Settings::new(capacity as usize);
        settings.seed = config.seed;
        settings.lfu_counts = Some(COUNTS_PER_SLOT);
        settings.dram_blocks = config.dram_blocks.unwrap_or(settings.dram_blocks);
        let mut policy = config.policy.boxed::<HashedTable>(&settings);
        if slots > capacity {
            // Slots up to the largest capacity may hold blocks of an earlier life.
            policy.resize(slots as usize);
            policy.resize(capacity as usize);
        }
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
        let cached = Self {
            block_shift: config.block_bytes.trailing_zeros(),
            slots_start: superblock.layout.slots_start(),
            alignment,
            index,
            recent: Recent::new(),
            placement: Mutex::new(placement),
            settled: Condvar::new(),
            counters,
            regions,
            journal: Journal::new(superblock),
            balance: Balance::new(),
            back: Back::new(config.mode, config.guard.is_some()),
            recovered,
            syncs: Mutex::new(config.clock.now()),
            start,
            has_journal: failure.is_none(),
            service: OnceLock::new(),
            is_unrevoked: AtomicBool::new(false),
            lock: Mutex::new(None),
            slow,
            fast,
            config,
        };
        match failure {
            Some((what, error)) => cached.give_up(what, &error),
            None => cached.enter_service()?,
        }
        Ok(cached)
    }

    /// Notes that there was a file that could not be used.
    fn set_aside(&mut self, reason: String) {
        self.start = Start::Cold(reason);
    }

    /// What it was set up with.
    pub fn config(&self) -> &CacheConfig {
        &self.config
    }

    /// The slow device, to be read.
    pub fn slow(&self) -> &dyn BlockDevice {
        &*self.slow
    }

    /// What has happened so far.
    pub fn stats(&self) -> CacheStats {
        let mut placement = self.placement.lock();
        CacheStats {
            dirty_blocks: placement.dirty().len() as u64,
            recovered: self.recovered,
            hits: self.recent.hits(),
            requests_whole: self.recent.whole(),
            evictions: placement.evictions(),
            resident_blocks: u64::from(placement.used()),
            capacity_blocks: u64::from(placement.capacity()),
            is_aside: self.balance.is_aside(),
            out_of_service: self.service.get().cloned(),
            start: self.start.clone(),
            index_bytes: u64::from(self.index.slots()) * SLOT_BYTES,
            ..self.counters.stats()
        }
    }

    /// What happened to the blocks of each relation, in their order, the blocks of none first. Empty if the cache was not given
    /// [`CacheConfig::relations`].
    pub fn relation_stats(&self) -> Vec<RelationStats> {
        self.report_hits();
        self.placement.lock().relations()
    }

    /// Changes the capacity, in blocks, up to the largest that the cache was opened for. What is above it leaves at once, but for
    /// blocks in use.
    ///
    /// # Errors
    /// [`CacheError::Config`] when it is none, or above the largest.
    pub fn resize(&self, capacity_blocks: u32) -> Result<(), CacheError> {
        if !(1..=self.index.slots()).contains(&capacity_blocks) {
            let largest = self.index.slots();
            let what = format!("a capacity of {capacity_blocks} blocks; it must be from 1 to {largest}");
            return Err(CacheError::Config(what));
        }
        self.placement.lock().resize(&self.index, capacity_blocks);
        if let Err(error) = self.drain() {
            tracing::warn!(%error, "dirty blocks stay in the cache until they can be written back");
        }
        self.write_journal_if_due();
        Ok(())
    }

    /// A query has been submitted that requires these relations. Policies that have no use for this ignore it.
    pub fn query_begins(&self, query: u64, relations: &[Relation]) {
        self.hint(Hint::QueryBegins { query, relations });
    }

    /// The query is over.
    pub fn query_ends(&self, query: u64) {
        self.hint(Hint::QueryEnds { query });
    }

    /// A relation has that many blocks now.
    pub fn relation_size(&self, relation: Relation, blocks: u64) {
        self.hint(Hint::RelationSize { relation, blocks });
    }

    fn hint(&self, hint: Hint<'_>) {
        let mut placement = self.placement.lock();
        placement.hits(&self.index, &mut self.recent.lane().waiting());
        placement.policy().hint(hint);
    }

    /// Nobody needs the bytes of a range any more: all blocks that lie in it wholly leave the cache. What the slow device has there
    /// is unchanged.
    pub fn free(&self, offset: u64, bytes: u64) {
        let first = offset.div_ceil(self.block_bytes() as u64);
        self.invalidate(first, offset.saturating_add(bytes) >> self.block_shift);
    }

    /// As [`BlockDevice::read_batch`], where several requests may begin in one read: at the offsets `starts`, in ascending order, beside
    /// the beginning of each read. So pages that adjoin are read together, and each is admitted by itself.
    pub fn read_batch_of(&self, reads: &mut [Read<'_>], starts: &[u64]) {
        if self.is_out_of_service() {
            if !self.back.is_stranded() {
                self.slow.read_batch(reads);
                let read = reads.iter().filter(|read| read.result.is_ok());
                let blocks = read.map(|read| self.blocks_in(read.offset, read.buffer.len())).sum();
                return self.count_unserved(&self.counters.misses, blocks);
            }
            // One by one: what is dirty comes from where it is, or is an error.
            for read in reads {
                read.result = self.read_at(read.offset, read.buffer);
            }
            return;
        }
        self.read_ranges(reads, Starts(starts));
    }

    /// As [`BlockDevice::write_at`], of bytes in which requests begin at the offsets `starts`, in ascending order. Bytes before the
    /// first of them in the range are the rest of the request that was written last, as of a page that is written in pieces. If there are
    /// none, it is one request.
    ///
    /// # Errors
    /// As [`BlockDevice::write_at`].
    pub fn write_of(&self, offset: u64, bytes: &[u8], starts: &[u64]) -> io::Result<()> {
        check_write(self.name(), self.alignment, self.length_for(offset, bytes.len()), offset, bytes)?;
        let write = [Write::new(offset, bytes)];
        self.write_ranges(Writer::Above, &write, Starts(starts), || self.slow.write_at(offset, bytes))
    }

    fn block_bytes(&self) -> usize {
        1 << self.block_shift
    }

    /// Whether all of a block lies in the slow device; a last one that does not is not cached.
    fn is_whole(&self, block: u64) -> bool {
        block < BLOCKS_MAX && self.slow.covers((block + 1) << self.block_shift)
    }

    /// What transfers that end at `end` are checked against. The slow device's length is asked for only where they may end beyond it:
    /// for a file that is a system call, which a hit would feel.
    fn length_for(&self, offset: u64, bytes: usize) -> u64 {
        match offset.checked_add(bytes as u64).filter(|&end| self.slow.covers(end)) {
            Some(end) => end,
            None => self.slow.len(),
        }
    }

    fn slot_offset(&self, slot: u32) -> u64 {
        self.slots_start + (u64::from(slot) << self.block_shift)
    }

    /// The first piece of a transfer of `length` bytes, at least one, at `offset`.
    fn piece(&self, offset: u64, length: usize) -> Piece {
        let within = offset & (self.block_bytes() as u64 - 1);
        let length = length.min(self.block_bytes() - within as usize);
        Piece { block: offset >> self.block_shift, within, length }
    }

    /// In how many blocks a range that lies inside the slow device has a part.
    fn blocks_in(&self, offset: u64, length: usize) -> u64 {
        match length as u64 {
            0 => 0,
            length => ((offset + length - 1) >> self.block_shift) - (offset >> self.block_shift) + 1,
        }
    }

    fn access(&self, block: u64, write: bool) -> Access {
        let access = if write { Access::write(block) } else { Access::read(block) };
        match self.config.relations.as_ref().and_then(|relations| relations.relation(block)) {
            Some((relation, offset)) => access.of(relation, offset),
            None => access,
        }
    }

    /// Writes slots; says whether all were written.
    fn write_slots(&self, what: &str, writes: &[Write<'_>]) -> bool {
        if self.fast.len() < self.slots_start + (u64::from(self.index.slots()) << self.block_shift) {
            // A write would make a file longer again that somebody has cut, and zeros of what was in it.
            let error = io::ErrorKind::UnexpectedEof.into();
            self.give_up("use of a device that has been cut short", &error);
            return false;
        }
        let outcome = match writes {
            [write] => self.fast.write_at(write.offset, write.bytes),
            _ => self.fast.write_batch(writes),
        };
        outcome.inspect_err(|error| self.fast_error(what, error)).is_ok()
    }
}

impl std::fmt::Debug for Cached {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Cached")
            .field("slow", &self.slow.name())
            .field("fast", &self.fast.name())
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

/// The cache is as long as the slow device, has its name, and refuses what the slow device would refuse.
impl BlockDevice for Cached {
    fn name(&self) -> &str {
        self.slow.name()
    }

    fn len(&self) -> u64 {
        self.slow.len()
    }

    fn covers(&self, end: u64) -> bool {
        self.slow.covers(end)
    }

    fn alignment(&self) -> usize {
        self.alignment
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        check_read(self.name(), self.alignment, self.length_for(offset, buffer.len()), offset, buffer)?;
        self.read_range(offset, buffer, Starts::default())
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
            let length = self.length_for(write.offset, write.bytes.len());
            match check_write(self.name(), self.alignment, length, write.offset, write.bytes) {
                Ok(()) => ready.push(*write),
                Err(error) => first = first.and(Err(error)),
            }
        }
        let written =
            self.write_ranges(Writer::Above, &ready, Starts::default(), || self.slow.write_batch(&ready));
        first.and(written)
    }

    fn write_through_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        check_write(self.name(), self.alignment, self.length_for(offset, bytes.len()), offset, bytes)?;
        let write = [Write::new(offset, bytes)];
        if self.back.is_on() {
            // Wherever it goes.
            self.write_at(offset, bytes)?;
            return self.flush();
        }
        let through = || self.slow.write_through_at(offset, bytes);
        let written = self.write_ranges(Writer::Above, &write, Starts::default(), through);
        if written.is_err() {
            // A durable write is a sync, too, and fails as one.
            self.doubt();
        }
        written
    }

    fn sync(&self) -> io::Result<()> {
        self.flush()
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        if bytes >> self.block_shift > BLOCKS_MAX {
            return Err(invalid_input(format!(
                "{}: {bytes} bytes are more than a cache can name",
                self.name()
            )));
        }
        self.change_len(bytes)
    }
}
