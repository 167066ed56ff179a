//! What the block cache under the page file tells about itself.

use serde::Serialize;
use terrace_block::{Bypass, Cached, Start};

/// The cache under the page file: what is in it, and what happened since the database was opened. Its blocks have
/// [`CacheStats::block_bytes`] bytes each.
///
/// ```
/// use std::sync::Arc;
/// use terrace::{Db, MemoryDirectory};
///
/// # let (directory, fast) = (Arc::new(MemoryDirectory::new()), Arc::new(MemoryDirectory::new()));
/// let builder = Db::builder().directory(directory).cache_directory(fast).dram(4 << 20);
/// let db = builder.cache("file:cache,16MiB".parse()?).open("")?;
/// db.create_table("t")?.put("k", "v")?;
/// db.checkpoint()?;
/// let cache = db.stats().cache.unwrap();
/// assert!(cache.admissions > 0 && cache.out_of_service.is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CacheStats {
    /// Admission and eviction, as on the command line.
    pub policy: String,
    /// Bytes of a block.
    pub block_bytes: u64,
    /// Bytes of blocks that it may hold.
    pub capacity_bytes: u64,
    /// Bytes of blocks in it.
    pub resident_bytes: u64,
    /// Bytes of DRAM that its index takes, part of the budget with what the policy keeps.
    pub index_bytes: u64,
    /// Blocks that were read from it.
    pub hits: u64,
    /// Blocks that were read and not in it.
    pub misses: u64,
    /// Blocks in it that were read from the page file's device all the same, because that was sooner.
    pub below: u64,
    /// Whether it has stepped aside because its device is the slower one.
    pub is_aside: bool,
    /// Blocks that came in.
    pub admissions: u64,
    /// Blocks that left for others.
    pub evictions: u64,
    /// Blocks that left because their places were freed, cut off or written past the cache.
    pub invalidations: u64,
    /// Blocks that followed an image which the cleaner has moved.
    pub relocations: u64,
    /// Blocks that were read or written and did not come in, by reason.
    pub bypasses: CacheBypasses,
    /// Bytes written to its device.
    pub written_bytes: u64,
    /// Blocks of before the database was opened that turned out damaged and were dropped.
    pub damaged: u64,
    /// Errors of its device.
    pub errors: u64,
    /// Blocks of before the database was opened that it began with.
    pub kept: u64,
    /// Blocks of before that could not be trusted.
    pub dropped: u64,
    /// Why it began cold though there was a cache, if it did.
    pub cold: Option<String>,
    /// Why it is out of service, if it is.
    pub out_of_service: Option<String>,
}

/// Blocks that did not come into the cache, by the reason: [`terrace_block::Bypass`] says more of each.
///
/// ```
/// assert_eq!(terrace::CacheBypasses::default().policy, 0);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CacheBypasses {
    /// The admission policy refused it.
    pub policy: u64,
    /// It was in use.
    pub in_use: u64,
    /// No slot could be given up.
    pub no_slot: u64,
    /// Its place is in doubt since a sync failed.
    pub doubt: u64,
    /// The cache has stepped aside.
    pub aside: u64,
    /// The day's bytes are written.
    pub budget: u64,
    /// All others.
    pub other: u64,
}

impl CacheStats {
    /// What was counted since `earlier`; what says how things are is as it is now.
    pub fn since(&self, earlier: &CacheStats) -> CacheStats {
        let less = |count: fn(&CacheStats) -> u64| count(self).saturating_sub(count(earlier));
        CacheStats {
            hits: less(|stats| stats.hits),
            misses: less(|stats| stats.misses),
            below: less(|stats| stats.below),
            admissions: less(|stats| stats.admissions),
            evictions: less(|stats| stats.evictions),
            invalidations: less(|stats| stats.invalidations),
            relocations: less(|stats| stats.relocations),
            written_bytes: less(|stats| stats.written_bytes),
            damaged: less(|stats| stats.damaged),
            errors: less(|stats| stats.errors),
            bypasses: CacheBypasses {
                policy: less(|stats| stats.bypasses.policy),
                in_use: less(|stats| stats.bypasses.in_use),
                no_slot: less(|stats| stats.bypasses.no_slot),
                doubt: less(|stats| stats.bypasses.doubt),
                aside: less(|stats| stats.bypasses.aside),
                budget: less(|stats| stats.bypasses.budget),
                other: less(|stats| stats.bypasses.other),
            },
            ..self.clone()
        }
    }

    /// Blocks read that were in it, for each that was read; 0 where none were.
    pub fn hit_ratio(&self) -> f64 {
        match self.hits + self.below + self.misses {
            0 => 0.0,
            reads => (self.hits + self.below) as f64 / reads as f64,
        }
    }

    /// What `cached` tells.
    pub(crate) fn of(cached: &Cached) -> CacheStats {
        let (stats, config) = (cached.stats(), cached.config());
        let bytes = config.block_bytes as u64;
        let bypassed = |reason| stats.bypassed(reason);
        let named = CacheBypasses {
            policy: bypassed(Bypass::Policy),
            in_use: bypassed(Bypass::InUse),
            no_slot: bypassed(Bypass::NoSlot),
            doubt: bypassed(Bypass::Doubt),
            aside: bypassed(Bypass::Aside),
            budget: bypassed(Bypass::Budget),
            other: 0,
        };
        let CacheBypasses { policy, in_use, no_slot, doubt, aside, budget, other: _ } = named;
        let other = stats.bypasses.iter().sum::<u64>() - (policy + in_use + no_slot + doubt + aside + budget);
        let (kept, dropped, cold) = match stats.start {
            Start::Warm { kept, dropped } => (kept, dropped, None),
            Start::Cold(reason) => (0, 0, Some(reason)),
            _ => (0, 0, None),
        };
        CacheStats {
            policy: config.policy.to_string(),
            block_bytes: bytes,
            capacity_bytes: stats.capacity_blocks * bytes,
            resident_bytes: stats.resident_blocks * bytes,
            index_bytes: stats.index_bytes,
            hits: stats.hits,
            misses: stats.misses,
            below: stats.below,
            is_aside: stats.is_aside,
            admissions: stats.admissions,
            evictions: stats.evictions,
            invalidations: stats.invalidations,
            relocations: stats.relocations,
            bypasses: CacheBypasses { other, ..named },
            written_bytes: stats.fast_written_bytes,
            damaged: stats.damaged,
            errors: stats.fast_errors,
            kept,
            dropped,
            cold,
            out_of_service: stats.out_of_service,
        }
    }
}
