//! Settings of a cache, and presets named after papers.

use std::sync::Arc;

use super::CacheError;
use crate::policy::{Name, Relation};
use terrace_io::{BlockDevice, Clock, MachineClock};

/// Where writes go.
///
/// ```
/// use terrace_cache::{CacheConfig, WriteMode};
///
/// assert_eq!(CacheConfig::new(1000).mode, WriteMode::Through);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WriteMode {
    /// Writes go to the slow device, and to blocks that are cached or admitted.
    #[default]
    Through,
    /// Writes go to the slow device, and the block leaves the cache.
    Around,
    /// Writes of whole blocks go to the cache, and later to the slow device.
    ///
    /// Epochs between syncs reach the slow device in order; a sync makes the cache durable. **The
    /// slow device alone is incomplete.** If the fast device dies, it loses all writes since the
    /// last [`drain`](super::Cached::drain) or [`maintain`](super::Cached::maintain). The slow
    /// device then has the state of some sync since. Needs a [guard](CacheConfig::guard).
    Back,
}

/// Maps blocks of the slow device to tables and indexes.
///
/// ```
/// use terrace_cache::Relations;
/// use terrace_cache::policy::Relation;
///
/// // The second gibibyte is an index.
/// let relations = |block: u64| Some((Relation((block >= 1 << 18).into()), block % (1 << 18)));
/// assert_eq!(relations.relation(5), Some((Relation(0), 5)));
/// ```
pub trait Relations: Send + Sync {
    /// The relation of a block and the block's number in it, if known.
    ///
    /// Called at every look-up, so it must be fast. It must not use the cache, whose lock may be
    /// held. The answer may change over time.
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
/// use terrace_cache::{CacheConfig, WriteMode};
///
/// let config = CacheConfig::new(1 << 18).policy("obp+lru")?.mode(WriteMode::Around);
/// assert_eq!((config.capacity_blocks, config.block_bytes), (1 << 18, 4096));
/// assert!(config.check().is_ok());
/// # Ok::<(), terrace_cache::CacheError>(())
/// ```
#[derive(Clone)]
pub struct CacheConfig {
    /// Capacity in blocks.
    pub capacity_blocks: u32,
    /// Bytes of one block: a power of two from 4 KiB to 2 MiB.
    ///
    /// Use the page size of the engine above. A partial write drops the block. A partial read may
    /// fetch all of it, and a verified partial hit reads all of it ([`CacheConfig::verify_hits`]).
    /// Only reads of whole blocks show which device is faster.
    pub block_bytes: usize,
    /// Where writes go.
    pub mode: WriteMode,
    /// One of [`NAMES`](crate::policy::NAMES), behind any of
    /// [`ADMISSIONS`](crate::policy::ADMISSIONS).
    pub policy: Name,
    /// Seed of the policy's random choices.
    pub seed: u64,
    /// Names the content of the slow device, such as a database's UUID.
    ///
    /// Blocks cached under another identity are not used.
    pub identity: [u8; 16],
    /// The largest capacity of a resize; default: the capacity.
    ///
    /// Space and memory for it are taken at open.
    pub capacity_blocks_max: Option<u32>,
    /// Names the time since power-on; see [`CacheConfig::machine_power_cycle`].
    ///
    /// If it is the same as before, only the process died, and the whole cache is warm. Otherwise,
    /// regions written shortly before an end without [`close`](super::Cached::close) are cold.
    pub power_cycle: Option<[u8; 16]>,
    /// Bytes of the slow device that share a region mark.
    ///
    /// After a power cut, a region that was being written is cold. Smaller regions cost more
    /// durable writes to the fast device. Rounded up to a power of two; larger for devices beyond
    /// 30 GiB.
    pub region_bytes: u64,
    /// A file of 4 KiB beside the slow device that records revoked caches.
    ///
    /// Without it, never put a failed fast device back.
    pub guard: Option<Arc<dyn BlockDevice>>,
    /// [`Cached::session`](super::Cached::session) at the end of the previous run.
    ///
    /// For owners without a guard. A cache of another session, such as an older copy, begins empty.
    /// `None`, the default, accepts any.
    pub session: Option<u64>,
    /// The owner's count of durable steps of the slow device.
    ///
    /// A step is what a reader starts from, such as a database's superblock, and has the next
    /// number. Data of the step before must stay until
    /// [`Cached::progress`](super::Cached::progress) was called. The first step of an opening is
    /// [`Cached::first_step`](super::Cached::first_step). If the slow device differs from the
    /// cache's count, a copy was put back, and the cache begins empty. 0, the default, is for
    /// owners that do not count, and for write-back.
    pub progress: u64,
    /// Most dirty blocks; default: a quarter of the capacity.
    ///
    /// A write beyond it first writes back all of them. Each takes about 100 bytes of DRAM.
    pub dirty_blocks_max: Option<u32>,
    /// Blocks of DRAM that the engine above caches, for `small-bypass`; default: a tenth of the
    /// capacity.
    pub dram_blocks: Option<u64>,
    /// Bytes per day that may be written to the fast device; `None`: no limit.
    pub write_budget_bytes_day: Option<u64>,
    /// Whether every hit is checked against its block's checksum; default: true.
    ///
    /// This costs a CRC-32C per block, and a partial hit reads the whole block. Readers with their
    /// own checksums can disable it and call [`read_again`](super::Cached::read_again) on a
    /// mismatch.
    pub verify_hits: bool,
    /// Maps blocks to relations; no policy needs it.
    pub relations: Option<Arc<dyn Relations>>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
}

const BLOCK_BYTES_MIN: usize = 4096;
const BLOCK_BYTES_MAX: usize = 2 << 20;

/// Slot numbers have 32 bits, and one number means none.
const CAPACITY_BLOCKS_MAX: u32 = u32::MAX - 1;

impl CacheConfig {
    /// The default policy (`docs/policies.md`): little memory, and as few misses as LRU.
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

    /// NVCache: LFRU behind small-bypass and windowed overhead bypass.
    ///
    /// Nothing is admitted while the database fits into `dram_blocks`, the memory above the cache.
    pub fn nvcache(capacity_blocks: u32, dram_blocks: u64) -> Self {
        let policy = "nvcache".parse().expect("a policy's name");
        Self { policy, dram_blocks: Some(dram_blocks), ..Self::new(capacity_blocks) }
    }

    /// HeuristicDB, the eager variant of `docs/decisions/0019-heuristicdb.md`.
    ///
    /// Works best with [`Cached::query_begins`](super::Cached::query_begins) and
    /// [`CacheConfig::relations`].
    pub fn heuristicdb(capacity_blocks: u32) -> Self {
        let policy = "heuristicdb-eager".parse().expect("a policy's name");
        Self { policy, ..Self::new(capacity_blocks) }
    }

    /// Sets the policy by name.
    ///
    /// # Errors
    /// [`CacheError::Policy`] if the name is unknown.
    pub fn policy(self, name: &str) -> Result<Self, CacheError> {
        Ok(Self { policy: name.parse()?, ..self })
    }

    /// Sets the bytes of a block.
    #[must_use]
    pub fn block_bytes(self, block_bytes: usize) -> Self {
        Self { block_bytes, ..self }
    }

    /// Sets the write mode.
    #[must_use]
    pub fn mode(self, mode: WriteMode) -> Self {
        Self { mode, ..self }
    }

    /// Sets the identity.
    #[must_use]
    pub fn identity(self, identity: [u8; 16]) -> Self {
        Self { identity, ..self }
    }

    /// Sets the power cycle.
    #[must_use]
    pub fn power_cycle(self, power_cycle: Option<[u8; 16]>) -> Self {
        Self { power_cycle, ..self }
    }

    /// Sets the guard.
    #[must_use]
    pub fn guard(self, guard: Arc<dyn BlockDevice>) -> Self {
        Self { guard: Some(guard), ..self }
    }

    /// The kernel's boot id, if available, for [`CacheConfig::power_cycle`].
    ///
    /// Use it if both devices keep unsynced writes while this machine is on. Local file systems do;
    /// network disks and unplugged disks do not.
    ///
    /// ```
    /// use terrace_cache::CacheConfig;
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

    pub(super) fn check_back(&self) -> Result<(), CacheError> {
        match self.guard {
            Some(_) => Ok(()),
            None => Err(CacheError::Config(
                "to write back takes a guard, which says that the slow device is not complete".to_owned(),
            )),
        }
    }

    /// Sets the relations.
    #[must_use]
    pub fn relations(self, relations: Arc<dyn Relations>) -> Self {
        Self { relations: Some(relations), ..self }
    }

    /// Sets the clock.
    #[must_use]
    pub fn clock(self, clock: Arc<dyn Clock>) -> Self {
        Self { clock, ..self }
    }

    /// Checks that all settings are within their ranges.
    ///
    /// # Errors
    /// [`CacheError::Config`] naming the invalid setting.
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
