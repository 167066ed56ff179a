//! Simulated block caches over a trace.
//!
//! A [`Simulation`] runs many caches, each a policy and a size, over one trace. The trace is read
//! once, and its blocks are interned to dense numbers. All cores run the caches over shared chunks,
//! each in a loop compiled for its policy. Caches start empty and every access counts, as in
//! `oracle.csv` of the shared traces.
//!
//! A trace of up to [`LOADED_REQUESTS_MAX`] requests stays in memory, 12 bytes each, and caches run
//! in turn. Longer traces stream through a window of [`WINDOW_REQUESTS`], with all caches at once:
//! 4 bytes per distinct block and cache, 24 per distinct block for numbering, and the policies'
//! state. Sizes relative to the footprint, and policies that need the sizes of relations, then read
//! the trace twice.
//!
//! [`Simulation::sample`] simulates only blocks with a small hash, in caches scaled alike
//! (Waldspurger et al., "Efficient MRC construction with SHARDS", FAST 2015). Miss ratios are over
//! the expected number of sampled requests (SHARDS-adj). A sample tears runs apart, so there is no
//! bound on errors for `tac`, `heuristicdb` and `sequential`.

mod cache;
mod chunk;
mod cost;
mod counts;
mod curve;
mod decode;
mod distance;
mod error;
mod fit;
mod flow;
mod lane;
mod memory_mode;
mod parts;
mod run;
mod size;
mod stack;

#[cfg(test)]
mod tests;

pub use chunk::Summary;
pub use cost::{Cost, Devices};
pub use counts::Counts;
pub use curve::{Curve, CurvePoint};
pub use distance::Distances;
pub use error::SimError;
pub use parts::Part;
pub use run::Open;
pub use size::Size;

use crate::policy::Name;
use crate::trace::BLOCK_BYTES;

/// Most requests of a trace kept in memory: 192 MiB.
pub const LOADED_REQUESTS_MAX: u64 = 1 << 24;

/// Requests in the window of longer traces: 48 MiB.
pub const WINDOW_REQUESTS: u64 = 1 << 22;

/// Progress of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// More of the trace was read; see [`Trace::bytes_read`](crate::trace::Trace::bytes_read).
    Read,
    /// Requests that all caches together will process, if known early.
    Total(u64),
    /// Further requests that one cache has processed.
    Taken(u64),
}

/// A set of caches to simulate.
///
/// ```
/// use terrace_cache::sim::{Simulation, Size};
/// use terrace_cache::trace::Trace;
///
/// let trace = "1 3 0 0\n1 1 0 1\n";
/// let report = Simulation::new()
///     .cache("lru".parse().unwrap(), Size::Blocks(3))
///     .run(
///         &mut || Ok(Trace::new("sample", trace.as_bytes(), "lis".parse()?, 4096)),
///         true,
///         &|_| {},
///     )
///     .unwrap();
/// assert_eq!((report.summary.requests, report.summary.footprint), (4, 3));
/// assert_eq!(report.results[0].counts.misses(), 3);
/// ```
#[derive(Clone, Debug)]
pub struct Simulation {
    caches: Vec<(Name, Size)>,
    threads: usize,
    by_query: bool,
    by_relation: bool,
    curves: Vec<Name>,
    sample: Option<f64>,
    block_bytes: u32,
    loaded_requests_max: u64,
    band_blocks: Option<u64>,
}

/// One cache's results.
#[derive(Clone, Debug)]
pub struct CacheResult {
    /// The policy.
    pub policy: Name,
    /// The requested size.
    pub size: Size,
    /// The size in blocks.
    pub cache_blocks: usize,
    /// The counts, unscaled for a sample.
    pub counts: Counts,
    /// Misses per request, estimated for a sample.
    pub miss_ratio: f64,
    /// Dirty blocks at the end.
    pub dirty_at_end: u64,
    /// Processor seconds of the cache.
    pub seconds: f64,
    /// Counts by query, if requested.
    pub queries: Vec<Part>,
    /// Counts by relation, if requested.
    pub relations: Vec<Part>,
}

impl CacheResult {
    /// Requests simulated per processor second.
    pub fn requests_per_second(&self) -> f64 {
        self.counts.requests as f64 / self.seconds.max(1e-9)
    }
}

/// The results of a simulation.
#[derive(Clone, Debug)]
pub struct Report {
    /// The whole trace, even with a sample.
    pub summary: Summary,
    /// The caches, in the order added.
    pub results: Vec<CacheResult>,
    /// The curves, in the order added.
    pub curves: Vec<Curve>,
}

impl Default for Simulation {
    fn default() -> Simulation {
        Simulation::new()
    }
}

impl Simulation {
    /// Without caches, on all cores.
    pub fn new() -> Simulation {
        Simulation {
            caches: Vec::new(),
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            by_query: false,
            by_relation: false,
            curves: Vec::new(),
            sample: None,
            block_bytes: BLOCK_BYTES,
            loaded_requests_max: LOADED_REQUESTS_MAX,
            band_blocks: None,
        }
    }

    /// Adds a cache.
    pub fn cache(mut self, policy: Name, size: Size) -> Simulation {
        self.caches.push((policy, size));
        self
    }

    /// Sets the number of workers, beside the caller, which numbers blocks, and the decoder.
    pub fn threads(mut self, threads: usize) -> Simulation {
        self.threads = threads;
        self
    }

    /// Sets how many blocks `tac` and `heuristicdb` skip at most within a sequential run. Theirs
    /// are for files of some gigabytes.
    pub fn band(mut self, blocks: u64) -> Simulation {
        self.band_blocks = Some(blocks);
        self
    }

    /// Also counts by query, by relation, or both.
    pub fn parts(mut self, by_query: bool, by_relation: bool) -> Simulation {
        (self.by_query, self.by_relation) = (by_query, by_relation);
        self
    }

    /// Adds a miss-ratio curve: of `lru` at every size, of others on a grid.
    pub fn curve(mut self, policy: Name) -> Simulation {
        self.curves.push(policy);
        self
    }

    /// Simulates a fraction of the blocks, between 0 and 1.
    pub fn sample(mut self, share: f64) -> Simulation {
        self.sample = (share > 0.0 && share < 1.0).then_some(share);
        self
    }

    /// Sets the bytes per block, for sizes in bytes.
    pub fn block_bytes(mut self, block_bytes: u32) -> Simulation {
        self.block_bytes = block_bytes;
        self
    }

    /// Replaces [`LOADED_REQUESTS_MAX`] as the limit of traces in memory.
    pub fn loaded_requests_max(mut self, requests: u64) -> Simulation {
        self.loaded_requests_max = requests;
        self
    }
}
