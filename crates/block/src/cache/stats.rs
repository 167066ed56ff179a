//! What a cache counts. Counters are independent of each other, hence relaxed; those of a hit lie on lines of their own
//! by thread, so that two threads that hit do not write to the same one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::policy::Relation;

/// Why a look-up that was not a hit did not bring its block into the cache.
///
/// ```
/// use terrace_block::Bypass;
///
/// assert_eq!(Bypass::ALL[Bypass::Policy as usize].name(), "policy");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bypass {
    /// The admission policy said no.
    Policy,
    /// It is a write, and writes go around the cache.
    WriteAround,
    /// It is a write of part of a block.
    PartialWrite,
    /// Somebody was writing the block, or fetching it.
    InUse,
    /// All slots that could be given up were in use.
    NoSlot,
    /// The block is the device's last and not whole.
    Tail,
    /// The place is in doubt since a sync of the slow device failed.
    Doubt,
    /// The fast device is slower than the slow one; the cache has stepped aside.
    Aside,
    /// The endurance budget is spent.
    Budget,
    /// The cache is out of service.
    OutOfService,
}

impl Bypass {
    /// All reasons, in the order of their numbers.
    pub const ALL: [Bypass; 10] = [
        Bypass::Policy,
        Bypass::WriteAround,
        Bypass::PartialWrite,
        Bypass::InUse,
        Bypass::NoSlot,
        Bypass::Tail,
        Bypass::Doubt,
        Bypass::Aside,
        Bypass::Budget,
        Bypass::OutOfService,
    ];

    /// The reason in one word, as statistics print it.
    pub fn name(self) -> &'static str {
        match self {
            Bypass::Policy => "policy",
            Bypass::WriteAround => "write-around",
            Bypass::PartialWrite => "partial-write",
            Bypass::InUse => "in-use",
            Bypass::NoSlot => "no-slot",
            Bypass::Tail => "tail",
            Bypass::Doubt => "doubt",
            Bypass::Aside => "aside",
            Bypass::Budget => "budget",
            Bypass::OutOfService => "out-of-service",
        }
    }
}

/// What a cache began with.
///
/// ```
/// use terrace_block::{CacheStats, Start};
///
/// assert_eq!(CacheStats::default().start, Start::New);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Start {
    /// There was none before.
    #[default]
    New,
    /// With blocks of an earlier life.
    Warm {
        /// Blocks that are there again; each is compared with its checksum when it is first hit.
        kept: u64,
        /// Blocks that could not be trusted.
        dropped: u64,
    },
    /// With nothing, though there was a cache: it could not be used, for this reason.
    Cold(String),
}

/// What happened in a cache since it was opened, in blocks unless it says otherwise.
///
/// ```
/// use terrace_block::CacheStats;
///
/// let mut stats = CacheStats::default();
/// (stats.hits, stats.misses) = (3, 1);
/// assert_eq!(stats.hit_ratio(), 0.75);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheStats {
    /// Reads served by the fast device.
    pub hits: u64,
    /// Reads of blocks that were not in the cache, or came while it was out of service. Each is an admission or a bypass, and so is a
    /// write that misses; what else is a bypass is a write of a cached block which that takes out of the cache.
    pub misses: u64,
    /// Writes of blocks that were in the cache.
    pub write_hits: u64,
    /// Writes of blocks that were not.
    pub write_misses: u64,
    /// Reads of blocks in the cache that the slow device has served, because the fast one is saturated or slower, or to learn the
    /// slow one's time; not among the hits.
    pub below: u64,
    /// Read requests, each of one block or several, that the cache had wholly.
    pub requests_whole: u64,
    /// Those of which it had some blocks: they took both devices.
    pub requests_part: u64,
    /// Those of which it had none.
    pub requests_missed: u64,
    /// Whether the cache has stepped aside because the fast device is the slower one.
    pub is_aside: bool,
    /// Blocks that were given a slot.
    pub admissions: u64,
    /// Blocks that left to make room.
    pub evictions: u64,
    /// Blocks that left because they were freed, cut off, or written around the cache.
    pub invalidations: u64,
    /// Blocks that were given another name because their bytes were moved ([`Cached::relocate`](super::Cached::relocate)).
    pub relocations: u64,
    /// Look-ups that did not bring their block in, by reason, in the order of [`Bypass::ALL`].
    pub bypasses: [u64; Bypass::ALL.len()],
    /// Blocks in the cache whose newest bytes the slow device does not have, or may not have after a power cut, every version counted.
    pub dirty_blocks: u64,
    /// Blocks written back to the slow device, every version counted.
    pub written_back: u64,
    /// Blocks of an earlier life that were written back when the cache was opened.
    pub recovered: u64,
    /// Bytes written to the fast device: blocks, journal, marks of regions and superblocks.
    pub fast_written_bytes: u64,
    /// Blocks that were damaged in the cache and were dropped; blocks of an earlier life also if they were not those of the slow
    /// device any more, when first hit.
    pub damaged: u64,
    /// Reads that found bytes of the cache damaged since they were written there, and that the slow device has served.
    pub fallbacks: u64,
    /// Errors of the fast device.
    pub fast_errors: u64,
    /// Why the cache is out of service, if it is.
    pub out_of_service: Option<String>,
    /// What the cache began with.
    pub start: Start,
    /// Blocks in the cache now.
    pub resident_blocks: u64,
    /// Most blocks that may be in the cache now.
    pub capacity_blocks: u64,
    /// Bytes of DRAM that the index takes, without the policy's own.
    pub index_bytes: u64,
}

impl CacheStats {
    /// Reads of blocks in the cache for each read; 0 where there were none.
    pub fn hit_ratio(&self) -> f64 {
        match self.hits + self.below + self.misses {
            0 => 0.0,
            reads => (self.hits + self.below) as f64 / reads as f64,
        }
    }

    /// Read requests that the cache had wholly, for each; 0 where there were none.
    pub fn request_hit_ratio(&self) -> f64 {
        match self.requests_whole + self.requests_part + self.requests_missed {
            0 => 0.0,
            requests => self.requests_whole as f64 / requests as f64,
        }
    }

    /// How many look-ups bypassed the cache for this reason.
    pub fn bypassed(&self, reason: Bypass) -> u64 {
        self.bypasses[reason as usize]
    }
}

/// What happened to the blocks of one relation.
///
/// ```
/// use terrace_block::RelationStats;
///
/// assert_eq!(RelationStats { hits: 3, misses: 1, ..RelationStats::default() }.relation, None);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RelationStats {
    /// The relation; none for blocks of no known one, and for those beyond the first 4096 relations.
    pub relation: Option<Relation>,
    /// Reads of blocks that were in the cache. Some of the latest may not be counted yet.
    pub hits: u64,
    /// Reads of blocks that were not; without those while the cache was out of service.
    pub misses: u64,
    /// Writes.
    pub writes: u64,
    /// Blocks that were given a slot.
    pub admissions: u64,
}

/// The counters behind [`CacheStats`] that are not on the path of a hit.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub misses: Counter,
    pub below: Counter,
    pub write_hits: Counter,
    pub write_misses: Counter,
    pub admissions: Counter,
    pub evictions: Counter,
    pub invalidations: Counter,
    pub relocations: Counter,
    pub bypasses: [Counter; Bypass::ALL.len()],
    pub requests_part: Counter,
    pub requests_missed: Counter,
    pub written_back: Counter,
    /// Counted by the device itself.
    pub fast_written_bytes: Arc<Counter>,
    pub damaged: Counter,
    pub fallbacks: Counter,
    pub fast_errors: Counter,
}

/// A number that only grows.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Counters {
    pub fn bypass(&self, reason: Bypass) {
        self.bypasses[reason as usize].add(1);
    }

    /// What the counters show; the rest of the fields are the cache's to fill in.
    pub fn stats(&self) -> CacheStats {
        CacheStats {
            misses: self.misses.get(),
            below: self.below.get(),
            write_hits: self.write_hits.get(),
            write_misses: self.write_misses.get(),
            admissions: self.admissions.get(),
            evictions: self.evictions.get(),
            invalidations: self.invalidations.get(),
            relocations: self.relocations.get(),
            bypasses: std::array::from_fn(|reason| self.bypasses[reason].get()),
            requests_part: self.requests_part.get(),
            requests_missed: self.requests_missed.get(),
            written_back: self.written_back.get(),
            fast_written_bytes: self.fast_written_bytes.get(),
            damaged: self.damaged.get(),
            fallbacks: self.fallbacks.get(),
            fast_errors: self.fast_errors.get(),
            ..CacheStats::default()
        }
    }
}
