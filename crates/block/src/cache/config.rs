//! What a cache is set up with, and the presets that are named after papers.

use std::sync::Arc;

use super::CacheError;
use crate::policy::{Name, Relation};
use crate::{BlockDevice, Clock, MachineClock};

/// What is done with writes.
///
/// ```
/// use terrace_block::{CacheConfig, WriteMode};
///
/// assert_eq!(CacheConfig::new(1000).mode, WriteMode::Through);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WriteMode {
    /// A write goes to the slow device, and to the cache if the block is there or is admitted. The slow device alone is
    /// always complete.
    #[default]
    Through,
    /// A write goes to the slow device, and the block leaves the cache. The slow device alone is always complete.
    Around,
    /// A write of whole blocks goes to the cache only, and to the slow device later, in the order of the syncs; a sync makes the
    /// cache durable. **The slow device alone is not complete**: if the fast device dies, everything is lost that was
    /// written since the last [`drain`](super::Cached::drain) or [`tend`](super::Cached::tend), and the slow device is as it was at some
    /// sync since then. Needs a [guard](CacheConfig::guard).
    Back,
}

/// Says which table or index a block of the slow device belongs to.
///
/// ```
/// use terrace_block::Relations;
/// use terrace_block::policy::Relation;
///
/// // The second gibibyte is an index.
/// let relations = |block: u64| Some((Relation((block >= 1 << 18).into()), block % (1 << 18)));
/// assert_eq!(relations.relation(5), Some((Relation(0), 5)));
/// ```
pub trait Relations: Send + Sync {
    /// The relation of a block, and the block's number in it, if known. Called for every look-up, so it must
    /// be fast, and it must not use the cache, for a lock of that may be held; it may answer differently at another time.
    fn relation(&self, block: u64) -> Option<(Relation, u64)>;
}

impl<F: Fn(u64) -> Option<(Relation, u64)> + Send + Sync> Relations for F {
    fn relation(&self, block: u64) -> Option<(Relation, u64)> {
        self(block)
    }
}

/// The settings of a cache.
///
/// ```
/// use terrace_block::{CacheConfig, WriteMode};
///
/// let config = CacheConfig::new(1 << 18).policy("obp+lru")?.mode(WriteMode::Around);
/// assert_eq!((config.capacity_blocks, config.block_bytes), (1 << 18, 4096));
/// assert!(config.check().is_ok());
/// # Ok::<(), terrace_block::CacheError>(())
/// ```
#[derive(Clone)]
pub struct CacheConfig {
    /// What the cache holds, in blocks.
    pub capacity_blocks: u32,
    /// Bytes of one block: a power of two from 4 KiB to 2 MiB. The size of the pages above is right: a write of part of a
    /// block takes the block out of the cache, a read of part of one may fetch all of it, and a hit on part of one reads all of it
    /// where it is compared ([`CacheConfig::verify_hits`]). Only reads of whole blocks tell which device is the faster one.
    pub block_bytes: usize,
    /// What is done with writes.
    pub mode: WriteMode,
    /// The policy: one of [`NAMES`](crate::policy::NAMES) behind any of [`ADMISSIONS`](crate::policy::ADMISSIONS).
    pub policy: Name,
    /// Decides what the policy draws by chance.
    pub seed: u64,
    /// What names the content of the slow device, such as the UUID in a database's header. What was cached under another
    /// identity is not used.
    pub identity: [u8; 16],
    /// The capacity may be raised to this while the cache runs; by default it cannot be raised. Space and memory are taken
    /// for it at once.
    pub capacity_blocks_max: Option<u32>,
    /// Names the machine's life since it was switched on, see [`CacheConfig::machine_power_cycle`]. If it is the same as when the cache
    /// was last used, the process was only killed, and all of the cache is warm. If it is another, or not given, nothing is
    /// used of places that were written shortly before the cache was left without [`close`](super::Cached::close).
    pub power_cycle: Option<[u8; 16]>,
    /// Bytes of the slow device that share a mark: they are cold together after a power cut in the midst of writes. Smaller ones
    /// are marked more often, which is a durable write to the fast device. Rounded up to a power of two; larger for devices beyond
    /// 30 GiB.
    pub region_bytes: u64,
    /// A file of 4 KiB beside the slow device, which remembers a cache that must not be used again because its device failed
    /// while the slow one was written. Without it such a device must not be brought back after a restart.
    pub guard: Option<Arc<dyn BlockDevice>>,
    /// [`Cached::session`](super::Cached::session) of the cache when it was left, for owners that have no guard. A cache of another
    /// session, such as an older copy of the file, is taken as empty. `None`, the default, takes any.
    pub session: Option<u64>,
    /// How far the slow device is, as its owner counts: each step that a reader of it begins with, such as a database's superblock, has a
    /// number one higher, and what the steps before refer to is not written over until [`Cached::progress`](super::Cached::progress)
    /// has been told. An opening begins with a step of the number [`Cached::first_step`](super::Cached::first_step). A cache is taken
    /// as empty if the slow device is at another place than it knows, because a copy of the slow device was put back. 0, the default, is
    /// for owners that do not count, and for those that have blocks written back.
    pub progress: u64,
    /// Blocks that may wait to be written back at most; a quarter of the capacity by default. One that finds no room has all of them
    /// written back first. They take about 100 bytes of DRAM each.
    pub dirty_blocks_max: Option<u32>,
    /// Blocks of DRAM that the engine above caches in itself, for `small-bypass`; a tenth of the capacity by default.
    pub dram_blocks: Option<u64>,
    /// Bytes a day that may be written to the fast device, for its endurance; `None` for any number. See `docs/cache.md`.
    pub write_budget_bytes_day: Option<u64>,
    /// Whether every hit is compared with its block's checksum. By default it is. That costs CRC-32C over the block, and a hit on part of
    /// a block then reads the whole block from the fast device. A reader that checks what it reads by checksums of its own does without, and calls [`read_again`](super::Cached::read_again) when they do not hold.
    pub verify_hits: bool,
    /// Which relation a block belongs to; no policy needs it.
    pub relations: Option<Arc<dyn Relations>>,
    /// Tells the time.
    pub clock: Arc<dyn Clock>,
}

/// Sizes of blocks, in bytes.
const BLOCK_BYTES_MIN: usize = 4096;
const BLOCK_BYTES_MAX: usize = 2 << 20;

/// Slots are numbered with 32 bits, and a number is kept for none.
const CAPACITY_BLOCKS_MAX: u32 = u32::MAX - 1;

impl CacheConfig {
    /// The policy of a new configuration: a link and a mark for each block, and the misses of LRU on the traces of
    /// `docs/policies.md`.
    const POLICY: &'static str = "sieve";

    /// The default settings, for `capacity_blocks` blocks of 4 KiB.
    pub fn new(capacity_blocks: u32) -> Self {
        Self {
            capacity_blocks,
            block_bytes: BLOCK_BYTES_MIN,
            mode: WriteMode::Through,
            policy: Self::POLICY.parse().expect("a policy's name"),
            seed: 1,
            identity: [0; 16],
            capacity_blocks_max: None,
            power_cycle: None,
            region_bytes: 1 << 20,
            guard: None,
            session: None,
            progress: 0,
            dirty_blocks_max: None,
            dram_blocks: None,
            write_budget_bytes_day: None,
            verify_hits: true,
            relations: None,
            clock: Arc::new(MachineClock::default()),
        }
    }

    /// NVCache (paper 004): LFRU behind small-bypass and the overhead bypass over a window. `dram_blocks` is the memory
    /// above the cache, in blocks: nothing is admitted while the database fits there.
    pub fn nvcache(capacity_blocks: u32, dram_blocks: u64) -> Self {
        let policy = "nvcache".parse().expect("a policy's name");
        Self { policy, dram_blocks: Some(dram_blocks), ..Self::new(capacity_blocks) }
    }

    /// HeuristicDB (paper 002), the eager one of `docs/decisions/0019-heuristicdb.md`. It gains by
    /// [`Cached::query_begins`](super::Cached::query_begins) and [`CacheConfig::relations`], and works without.
    pub fn heuristicdb(capacity_blocks: u32) -> Self {
        let policy = "heuristicdb-eager".parse().expect("a policy's name");
        Self { policy, ..Self::new(capacity_blocks) }
    }

    /// Takes the policy by its name.
    ///
    /// # Errors
    /// [`CacheError::Policy`] if there is none of that name.
    pub fn policy(self, name: &str) -> Result<Self, CacheError> {
        Ok(Self { policy: name.parse()?, ..self })
    }

    /// Sets the bytes of a block.
    #[must_use]
    pub fn block_bytes(self, block_bytes: usize) -> Self {
        Self { block_bytes, ..self }
    }

    /// Sets what is done with writes.
    #[must_use]
    pub fn mode(self, mode: WriteMode) -> Self {
        Self { mode, ..self }
    }

    /// Sets what names the content of the slow device.
    #[must_use]
    pub fn identity(self, identity: [u8; 16]) -> Self {
        Self { identity, ..self }
    }

    /// Sets what the machine's life since it was switched on is called.
    #[must_use]
    pub fn power_cycle(self, power_cycle: Option<[u8; 16]>) -> Self {
        Self { power_cycle, ..self }
    }

    /// Sets the file beside the slow device that remembers what must not be used again.
    #[must_use]
    pub fn guard(self, guard: Arc<dyn BlockDevice>) -> Self {
        Self { guard: Some(guard), ..self }
    }

    /// What the kernel calls the time since the machine was switched on, if it says. To be given as
    /// [`CacheConfig::power_cycle`] where both devices keep what was written to them as long as this machine is on: files of local
    /// file systems do. A disk of a server that may be switched off by itself does not, and neither does one that is unplugged.
    ///
    /// ```
    /// use terrace_block::CacheConfig;
    ///
    /// let now = CacheConfig::machine_power_cycle();
    /// assert_eq!(now, CacheConfig::machine_power_cycle());
    /// ```
    pub fn machine_power_cycle() -> Option<[u8; 16]> {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let digits: String = text.trim().chars().filter(|&digit| digit != '-').collect();
        u128::from_str_radix(&digits, 16).ok().map(u128::to_be_bytes)
    }

    pub(super) fn capacity_blocks_max(&self) -> u32 {
        self.capacity_blocks_max.map_or(self.capacity_blocks, |max| max.max(self.capacity_blocks))
    }

    pub(super) fn dirty_blocks_max(&self) -> u32 {
        self.dirty_blocks_max.unwrap_or(self.capacity_blocks / 4).clamp(1, self.capacity_blocks)
    }

    /// Whether blocks may be written back.
    pub(super) fn check_back(&self) -> Result<(), CacheError> {
        match self.guard {
            Some(_) => Ok(()),
            None => Err(CacheError::Config(
                "to write back takes a guard, which says that the slow device is not complete".to_owned(),
            )),
        }
    }

    /// Sets which relation a block belongs to.
    #[must_use]
    pub fn relations(self, relations: Arc<dyn Relations>) -> Self {
        Self { relations: Some(relations), ..self }
    }

    /// Sets the clock.
    #[must_use]
    pub fn clock(self, clock: Arc<dyn Clock>) -> Self {
        Self { clock, ..self }
    }

    /// Whether the settings are within their ranges.
    ///
    /// # Errors
    /// [`CacheError::Config`] with the setting that is not.
    pub fn check(&self) -> Result<(), CacheError> {
        let wrong = |what: String| Err(CacheError::Config(what));
        if !self.block_bytes.is_power_of_two()
            || !(BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX).contains(&self.block_bytes)
        {
            return wrong(format!(
                "a block has {} bytes; it must be a power of two from {BLOCK_BYTES_MIN} to {BLOCK_BYTES_MAX}",
                self.block_bytes
            ));
        }
        if self.capacity_blocks == 0 || self.capacity_blocks_max() > CAPACITY_BLOCKS_MAX {
            return wrong(format!(
                "a capacity of {} blocks; it must be from 1 to {CAPACITY_BLOCKS_MAX}",
                self.capacity_blocks
            ));
        }
        if self.mode == WriteMode::Back {
            self.check_back()?;
        }
        if self.policy.needs_future() {
            return wrong(format!("'{}' needs the future, which only a trace has", self.policy));
        }
        if self.policy.is_baseline() {
            return wrong(format!("'{}' is there to compare with, in simulations only", self.policy));
        }
        Ok(())
    }
}

impl std::fmt::Debug for CacheConfig {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("CacheConfig")
            .field("capacity_blocks", &self.capacity_blocks)
            .field("block_bytes", &self.block_bytes)
            .field("mode", &self.mode)
            .field("policy", &self.policy.to_string())
            .finish_non_exhaustive()
    }
}
