//! Statistics of a cache, for the library, JSON and Prometheus.
//!
//! Counters are independent of each other, hence relaxed. Counters of hits are per thread, on
//! separate cache lines.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use terrace_io::stats::{self, Family};

use crate::policy::Relation;

/// Declares the reasons not to admit a block, and a counter of each.
macro_rules! bypasses {
    ($(#[$about:meta])* pub enum $name:ident {
        $($(#[$doc:meta])* $reason:ident $field:ident $text:literal,)*
    }) => {
        $(#[$about])*
        pub enum $name {
            $($(#[$doc])* $reason,)*
        }

        impl $name {
            /// All reasons, in the order of their numbers.
            pub const ALL: [$name; [$($name::$reason),*].len()] = [$($name::$reason),*];

            /// The reason in one word, for statistics.
            pub fn name(self) -> &'static str {
                match self {
                    $($name::$reason => $text,)*
                }
            }
        }

        terrace_io::stats! {
            /// Blocks not admitted, by reason; see [`Bypass`].
            ///
            /// ```
            /// assert_eq!(terrace_cache::CacheBypasses::default().policy, 0);
            /// ```
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
            #[cfg_attr(feature = "serde", derive(serde::Serialize))]
            #[non_exhaustive]
            pub struct CacheBypasses {
                $($(#[$doc])* $field: u64 => BYPASSES $text,)*
            }
        }

        impl CacheBypasses {
            /// The number of bypasses for this reason.
            pub fn of(&self, reason: $name) -> u64 {
                match reason {
                    $($name::$reason => self.$field,)*
                }
            }
        }

        impl Bypassed {
            fn get(&self) -> CacheBypasses {
                CacheBypasses { $($field: self.of($name::$reason).get(),)* }
            }
        }
    };
}

bypasses! {
    /// Why a missed block was not admitted.
    ///
    /// ```
    /// use terrace_cache::Bypass;
    ///
    /// assert_eq!(Bypass::ALL[Bypass::Policy as usize].name(), "policy");
    /// ```
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Bypass {
        /// The admission policy refused.
        Policy policy "policy",
        /// The write mode is around.
        WriteAround write_around "write-around",
        /// A write of part of a block.
        PartialWrite partial_write "partial-write",
        /// The block was being written or fetched.
        InUse in_use "in-use",
        /// All possible victims were in use.
        NoSlot no_slot "no-slot",
        /// The device's last block, which is incomplete.
        Tail tail "tail",
        /// A sync of the slow device failed after a write there.
        Doubt doubt "doubt",
        /// The cache has stepped aside: the fast device is slower.
        Aside aside "aside",
        /// The endurance budget is spent.
        Budget budget "budget",
        /// The cache is out of service.
        OutOfService out_of_service "out-of-service",
    }
}

/// The state in which a cache was opened.
///
/// ```
/// use terrace_cache::Start;
///
/// assert_eq!(Start::default(), Start::New);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Start {
    /// There was no cache before.
    #[default]
    New,
    /// With blocks of the previous run.
    Warm {
        /// Blocks kept; the first hit of each checks its checksum.
        kept: u64,
        /// Blocks that could not be trusted.
        dropped: u64,
    },
    /// Empty, because the existing cache was unusable, for this reason.
    Cold(String),
}

const READS: Family =
    Family::counter("terrace_cache_reads_total", "Blocks read, by where they were found.").by("found");
const WRITES: Family =
    Family::counter("terrace_cache_writes_total", "Blocks written, by whether they were in the cache.")
        .by("found");
const REQUESTS: Family =
    Family::counter("terrace_cache_requests_total", "Page reads, by how much of them the cache had.")
        .by("cached");
const BLOCKS: Family =
    Family::counter("terrace_cache_blocks_total", "Blocks of the cache, by what became of them.").by("fate");
const BYPASSES: Family =
    Family::counter("terrace_cache_bypasses_total", "Blocks that did not come in, by reason.").by("reason");
const POLICY: Family = Family::gauge("terrace_cache_policy", "1 for the policy of the cache.").by("policy");
const START: Family =
    Family::gauge("terrace_cache_start_blocks", "Earlier blocks at the start of the cache, by their fate.")
        .by("fate");

terrace_io::stats! {
    /// State of a cache, and its counters since it was opened.
    ///
    /// Blocks have [`CacheStats::block_bytes`] bytes each.
    ///
    /// ```
    /// use terrace_cache::CacheStats;
    ///
    /// let mut stats = CacheStats::default();
    /// (stats.hits, stats.misses) = (3, 1);
    /// assert_eq!(stats.hit_ratio(), 0.75);
    /// ```
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    #[cfg_attr(feature = "serde", derive(serde::Serialize))]
    #[non_exhaustive]
    pub struct CacheStats counted in Counters {
        /// Admission and eviction policy, as on the command line.
        policy: String => POLICY,
        /// Block size, bytes.
        block_bytes: u64 => gauge "terrace_cache_block_bytes" "Bytes of a block.",
        /// Capacity, bytes of blocks.
        capacity_bytes: u64 => gauge "terrace_cache_bytes" "Bytes of blocks that the cache may hold.",
        /// Bytes of blocks in the cache.
        resident_bytes: u64 => gauge "terrace_cache_resident_bytes" "Bytes of blocks in the cache.",
        /// DRAM bytes of the index, without the policy.
        index_bytes: u64 => gauge "terrace_cache_index_bytes" "Bytes of DRAM of the cache's index.",
        /// DRAM bytes of index and policies, including history, at most.
        dram_bytes: u64 => gauge "terrace_cache_dram_bytes" "Bytes of DRAM for index and policy.",
        /// Blocks read from the cache.
        hits: u64 => READS "cache",
        /// Uncached blocks read, and all blocks read while out of service.
        ///
        /// Each is an admission or a bypass, and so is each write miss. A write that drops a cached
        /// block is also a bypass.
        misses: u64 => READS "missed" [Counter],
        /// Cached blocks written.
        write_hits: u64 => WRITES "cache" [Counter],
        /// Uncached blocks written.
        write_misses: u64 => WRITES "missed" [Counter],
        /// Cached blocks read from the slow device, not counted as hits.
        ///
        /// The fast device was slower or saturated, or the slow one's time was measured.
        below: u64 => READS "below" [Counter],
        /// Read requests served entirely by the cache. An engine's read of a page is a request,
        /// also in a batch.
        requests_whole: u64 => REQUESTS "all",
        /// Read requests served in part by the cache.
        requests_part: u64 => REQUESTS "part" [Counter],
        /// Read requests not served by the cache.
        requests_missed: u64 => REQUESTS "none" [Counter],
        /// Whether the cache stands aside because the fast device is slower now.
        is_aside: bool => gauge "terrace_cache_aside" "1 while the cache's device is the slower one.",
        /// Blocks admitted.
        admissions: u64 => BLOCKS "admitted" [Counter],
        /// Blocks evicted for others.
        evictions: u64 => BLOCKS "evicted",
        /// Blocks dropped because they were freed, cut off or overwritten past the cache.
        invalidations: u64 => BLOCKS "invalidated" [Counter],
        /// Blocks that followed their data ([`Cached::relocate`](super::Cached::relocate)).
        relocations: u64 => BLOCKS "relocated" [Counter],
        /// Blocks accessed and not admitted, by reason.
        bypasses: CacheBypasses [Bypassed],
        /// Bytes written to the fast device: blocks, journal, marks and superblocks.
        written_bytes: u64 => counter
            "terrace_cache_written_bytes_total" "Bytes written to the cache." [Arc<Counter>],
        /// Damaged blocks dropped, or outdated blocks of the previous run.
        damaged: u64 => BLOCKS "damaged" [Counter],
        /// Reads served by the slow device because cached bytes were damaged.
        fallbacks: u64 => counter
            "terrace_cache_fallbacks_total"
            "Page reads that found damage in the cache and that the page file has served." [Counter],
        /// Errors of the fast device.
        errors: u64 => counter "terrace_cache_errors_total" "Errors of the cache's device." [Counter],
        /// Blocks kept from before the open.
        kept: u64 => START "kept",
        /// Earlier blocks dropped at open as untrusted.
        dropped: u64 => START "dropped",
        /// Why an existing cache began cold.
        cold: Option<String> => counter
            "terrace_cache_cold_starts_total" "1 where a cache was there and was not believed.",
        /// Why the cache is out of service.
        out_of_service: Option<String> => gauge
            "terrace_cache_out_of_service" "1 where the cache has been given up.",
        /// Versions in the cache that the slow device may lack after a power cut.
        #[cfg_attr(feature = "serde", serde(skip_serializing_if = "is_zero"))]
        dirty_blocks: u64 => gauge "terrace_cache_dirty_blocks" "Blocks not yet written back.",
        /// Versions written back to the slow device.
        #[cfg_attr(feature = "serde", serde(skip_serializing_if = "is_zero"))]
        written_back: u64 => BLOCKS "written-back" [Counter],
        /// Blocks of the previous run that were written back at open.
        #[cfg_attr(feature = "serde", serde(skip_serializing_if = "is_zero"))]
        recovered: u64 => START "recovered",
    }
}

/// Only a cache that writes back shows these counts, so others have short JSON.
#[cfg(feature = "serde")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl CacheStats {
    /// Counters since `earlier`; current state as it is now.
    #[must_use]
    pub fn since(&self, earlier: &CacheStats) -> CacheStats {
        stats::since(self, earlier)
    }

    /// The share of block reads that found a cached block; 0 without reads.
    pub fn hit_ratio(&self) -> f64 {
        match self.hits + self.below + self.misses {
            0 => 0.0,
            reads => (self.hits + self.below) as f64 / reads as f64,
        }
    }

    /// The share of read requests that the cache had wholly; 0 without reads.
    pub fn request_hit_ratio(&self) -> f64 {
        match self.requests_whole + self.requests_part + self.requests_missed {
            0 => 0.0,
            requests => self.requests_whole as f64 / requests as f64,
        }
    }

    /// Current capacity in blocks.
    pub fn capacity_blocks(&self) -> u64 {
        self.capacity_bytes / self.block_bytes.max(1)
    }

    /// Blocks in the cache now.
    pub fn resident_blocks(&self) -> u64 {
        self.resident_bytes / self.block_bytes.max(1)
    }
}

/// Events of one relation's blocks.
///
/// ```
/// use terrace_cache::RelationStats;
///
/// assert_eq!(RelationStats { hits: 3, misses: 1, ..RelationStats::default() }.relation, None);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct RelationStats {
    /// The relation; `None` if unknown or beyond the first 4096. Its name is the host's to tell.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub relation: Option<Relation>,
    /// Reads of cached blocks; the latest may be missing.
    pub hits: u64,
    /// Reads of blocks not in the cache, except while out of service.
    pub misses: u64,
    /// Writes.
    pub writes: u64,
    /// Blocks that were given a slot.
    pub admissions: u64,
}

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

/// Bypasses by reason.
#[derive(Debug, Default)]
pub(super) struct Bypassed([Counter; Bypass::ALL.len()]);

impl Bypassed {
    pub fn of(&self, reason: Bypass) -> &Counter {
        &self.0[reason as usize]
    }
}
