//! What the block cache under the page file tells about itself.

use serde::Serialize;
use terrace_block::{Bypass, Cached, Start};

use crate::cache::dram_bytes;

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
    /// Bytes of DRAM that its index takes.
    pub index_bytes: u64,
    /// Bytes of the budget that are set aside for it: for the index, and for what the policies keep, also of blocks that are not in it.
    pub dram_bytes: u64,
    /// Blocks that were read from it.
    pub hits: u64,
    /// Blocks that were read and not in it, or while it was out of service. Each came in or is among the bypasses, as is each
    /// of [`CacheStats::write_misses`].
    pub misses: u64,
    /// Blocks in it that were written.
    pub write_hits: u64,
    /// Blocks that were written and not in it.
    pub write_misses: u64,
    /// Blocks in it that were read from the page file's device all the same, because that was sooner.
    pub below: u64,
    /// Page reads that it served wholly. A read of several pages that are beside each other counts for each.
    pub requests_whole: u64,
    /// Page reads of which it had a part: they took both devices.
    pub requests_part: u64,
    /// Page reads of which it had nothing.
    pub requests_missed: u64,
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
    /// Bytes written to its device: blocks, journal, marks and superblocks.
    pub written_bytes: u64,
    /// Blocks that turned out damaged in it and were dropped.
    pub damaged: u64,
    /// Reads of pages that found bytes of it damaged since the database was opened, and that the page file has served.
    pub fallbacks: u64,
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
    /// It was written, and writes go around the cache.
    pub write_around: u64,
    /// A part of it was written.
    pub partial_write: u64,
    /// It was in use.
    pub in_use: u64,
    /// No slot could be given up.
    pub no_slot: u64,
    /// It is the page file's last and not whole.
    pub tail: u64,
    /// Its place is in doubt since a sync failed.
    pub doubt: u64,
    /// The cache has stepped aside.
    pub aside: u64,
    /// The day's bytes are written.
    pub budget: u64,
    /// The cache is out of service.
    pub out_of_service: u64,
}

impl CacheStats {
    /// What was counted since `earlier`; what says how things are is as it is now.
    pub fn since(&self, earlier: &CacheStats) -> CacheStats {
        since!(
            self,
            earlier,
            hits,
            misses,
            write_hits,
            write_misses,
            below,
            requests_whole,
            requests_part,
            requests_missed,
            admissions,
            evictions,
            invalidations,
            relocations,
            written_bytes,
            damaged,
            fallbacks,
            errors,
            bypasses.policy,
            bypasses.write_around,
            bypasses.partial_write,
            bypasses.in_use,
            bypasses.no_slot,
            bypasses.tail,
            bypasses.doubt,
            bypasses.aside,
            bypasses.budget,
            bypasses.out_of_service
        )
    }

    /// Blocks read that were in it, for each that was read; 0 where none were.
    pub fn hit_ratio(&self) -> f64 {
        match self.hits + self.below + self.misses {
            0 => 0.0,
            reads => (self.hits + self.below) as f64 / reads as f64,
        }
    }

    /// Page reads that it served wholly, for each that there was; 0 where there were none.
    pub fn request_hit_ratio(&self) -> f64 {
        match self.requests_whole + self.requests_part + self.requests_missed {
            0 => 0.0,
            requests => self.requests_whole as f64 / requests as f64,
        }
    }

    /// What `cached` tells.
    pub(crate) fn of(cached: &Cached) -> CacheStats {
        let (stats, config) = (cached.stats(), cached.config());
        let bytes = config.block_bytes as u64;
        let bypassed = |reason| stats.bypassed(reason);
        let (kept, dropped, cold) = match &stats.start {
            Start::Warm { kept, dropped } => (*kept, *dropped, None),
            Start::Cold(reason) => (0, 0, Some(reason.clone())),
            _ => (0, 0, None),
        };
        CacheStats {
            policy: config.policy.to_string(),
            block_bytes: bytes,
            capacity_bytes: stats.capacity_blocks * bytes,
            resident_bytes: stats.resident_blocks * bytes,
            index_bytes: stats.index_bytes,
            dram_bytes: dram_bytes(&config.policy, stats.capacity_blocks),
            hits: stats.hits,
            misses: stats.misses,
            write_hits: stats.write_hits,
            write_misses: stats.write_misses,
            below: stats.below,
            requests_whole: stats.requests_whole,
            requests_part: stats.requests_part,
            requests_missed: stats.requests_missed,
            is_aside: stats.is_aside,
            admissions: stats.admissions,
            evictions: stats.evictions,
            invalidations: stats.invalidations,
            relocations: stats.relocations,
            bypasses: CacheBypasses {
                policy: bypassed(Bypass::Policy),
                write_around: bypassed(Bypass::WriteAround),
                partial_write: bypassed(Bypass::PartialWrite),
                in_use: bypassed(Bypass::InUse),
                no_slot: bypassed(Bypass::NoSlot),
                tail: bypassed(Bypass::Tail),
                doubt: bypassed(Bypass::Doubt),
                aside: bypassed(Bypass::Aside),
                budget: bypassed(Bypass::Budget),
                out_of_service: bypassed(Bypass::OutOfService),
            },
            written_bytes: stats.fast_written_bytes,
            damaged: stats.damaged,
            fallbacks: stats.fallbacks,
            errors: stats.fast_errors,
            kept,
            dropped,
            cold,
            out_of_service: stats.out_of_service,
        }
    }
}
