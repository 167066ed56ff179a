//! Simulated block caches: what policies would have done with a trace.
//!
//! A [`Simulation`] is a set of caches, each a policy and a size, over one trace. The trace is read once, its blocks are
//! interned to dense numbers, and all caches are run over the shared chunks on all cores, each by a loop compiled for its
//! policy. The caches start empty and every access counts: what is measured is what `oracle.csv` of the shared traces
//! holds, to the last miss.
//!
//! | module     | what is in it                                                                       |
//! |------------|-------------------------------------------------------------------------------------|
//! | `decode`   | the trace, read ahead by a thread of its own                                         |
//! | `chunk`    | requests in memory: interned, in chunks, with marks for queries                      |
//! | `flow`     | many caches over a window of chunks, on several threads                              |
//! | `cache`    | one cache: the map from blocks to slots, the policy, the counts                      |
//! | `lane`     | a cache of any kind at work: its time, and what is counted apart                      |
//! | `memory_mode` | DRAM as a direct-mapped cache, a baseline                                          |
//! | `parts`    | counts by query and by relation                                                      |
//! | `distance` | LRU at all sizes at once, by stack distance                                          |
//! | `curve`    | miss-ratio curves, and the sizes they have points at                                 |
//! | `run`      | a simulation from the trace's beginning to its report                                |
//! | `cost`     | latency and throughput of what was counted, on devices that profiles describe       |
//! | `size`     | sizes in blocks and in shares of the footprint                                       |
//!
//! # Memory
//! A trace of up to [`LOADED_REQUESTS_MAX`] requests is kept in memory, 12 bytes each, and each cache is made when its
//! turn comes. A longer one is streamed through a window of [`WINDOW_REQUESTS`], and so is any for at most as many caches as
//! there are threads, if their sizes are in blocks; all caches are there at a time then:
//! memory is 4 bytes for each different block in each cache, about 24 for each in the table of numbers, and
//! what the policies keep. Queries and relations take 256 MiB at most. None of that grows with the length of the trace. Sizes given as shares need the footprint, so
//! a long trace is read twice for them; and so it is for policies that are told the sizes of relations, if it has any.
//!
//! # Sampling
//! With [`Simulation::sample`], only blocks whose hash falls below a share of all hashes are simulated, in caches smaller by
//! that share (Waldspurger et al., "Efficient MRC construction with SHARDS", FAST 2015). What is left out is the same
//! for all policies and sizes. Miss ratios are divided by the expected number of sampled requests, not by the number
//! there happen to be, which is their SHARDS-adj. The error is that of a sample: over the curves of LRU, ARC and S3-FIFO on
//! each of the shared traces, from a thousandth of the footprint on, it was at most 0.017 in the mean with 1 in 10 of the blocks,
//! and 0.028 with 1 in 100. `sim/tests.rs` holds a bound for a trace of its own. Policies that look at neighbouring blocks
//! (`tac`, `heuristicdb`, `sequential` before another) see few of them in a sample, which tears runs apart: no bound holds for
//! them, and `sequential+lru` becomes `lru`.

mod cache;
mod chunk;
mod cost;
mod curve;
mod decode;
mod distance;
mod flow;
mod lane;
mod memory_mode;
mod parts;
mod run;
mod size;

#[cfg(test)]
mod tests;

pub use cache::Counts;
pub use chunk::Summary;
pub use cost::{Cost, Devices};
pub use curve::{Curve, CurvePoint};
pub use distance::Distances;
pub use parts::Part;
pub use run::Open;
pub use size::Size;

use crate::policy::Name;
use crate::trace::TraceError;

/// A trace of so many requests is kept in memory while it is simulated: 192 MiB.
pub const LOADED_REQUESTS_MAX: u64 = 1 << 24;

/// Requests in the window through which longer traces go: 48 MiB.
pub const WINDOW_REQUESTS: u64 = 1 << 22;

/// Why a simulation was not done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SimError {
    /// The trace cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// There are no requests.
    #[error("the trace has no requests")]
    Empty,
    /// There are requests, but none for a block of the sample.
    #[error("none of the trace's blocks is in a sample of {share}; give a larger one")]
    EmptySample {
        /// The share of the blocks that was asked for.
        share: f64,
    },
    /// A size that comes to no block in the sample.
    #[error(
        "a cache of {size}, {blocks} blocks, has no block in a sample of {share}; give a larger size or sample"
    )]
    NoBlocksInSample {
        /// As it was asked for.
        size: Size,
        /// The same in blocks of the trace.
        blocks: usize,
        /// The share of the blocks that is simulated.
        share: f64,
    },
    /// A size that is no block at all.
    #[error("a cache of {size} of {footprint} blocks has no blocks; give a larger size")]
    NoBlocks {
        /// As it was asked for.
        size: Size,
        /// Different blocks of the trace.
        footprint: usize,
    },
    /// A size at which every policy does alike.
    #[error(
        "a cache of {size} blocks is larger than the trace's footprint of {footprint} blocks; give at most that, or a share such as 10%"
    )]
    BeyondFootprint {
        /// As it was asked for.
        size: Size,
        /// Different blocks of the trace.
        footprint: usize,
    },
    /// More than there is room for.
    #[error("the trace has more than {max} {what}")]
    TooMany {
        /// The most there may be.
        max: usize,
        /// Of what.
        what: &'static str,
    },
    /// Something that needs all of a trace in memory, or twice.
    #[error("{what} needs {needs}, and the trace has more than {max} requests")]
    TooLong {
        /// What was asked for.
        what: String,
        /// What it takes.
        needs: &'static str,
        /// The most requests there may be.
        max: u64,
    },
}

/// How far a simulation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// More of the trace was read; [`Trace::bytes_read`](crate::trace::Trace::bytes_read) says how much.
    Read,
    /// The caches will take so many requests, all together. Not told of a trace whose length is not known before its end.
    Total(u64),
    /// One of the caches has taken so many requests more.
    Taken(u64),
}

/// Caches to simulate.
///
/// ```
/// use terrace_block::sim::{Simulation, Size};
/// use terrace_block::trace::Trace;
///
/// let trace = "1 3 0 0\n1 1 0 1\n";
/// let report = Simulation::new()
///     .cache("lru".parse().unwrap(), Size::Blocks(3))
///     .run(&mut || Ok(Trace::new("sample", trace.as_bytes(), "lis".parse()?, 4096)), true, &|_| {})
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
    loaded_requests_max: u64,
}

/// One cache and what happened in it.
#[derive(Clone, Debug)]
pub struct CacheResult {
    /// The policy.
    pub policy: Name,
    /// The size that was asked for.
    pub size: Size,
    /// The same in blocks.
    pub cache_blocks: usize,
    /// What happened; of a sample, what happened in the sample.
    pub counts: Counts,
    /// Misses for each request; of a sample, the estimate for all.
    pub miss_ratio: f64,
    /// Blocks in the cache at the end that the store does not have.
    pub dirty_at_end: u64,
    /// Seconds of one core that the cache took.
    pub seconds: f64,
    /// By query, where that was asked for.
    pub queries: Vec<Part>,
    /// By relation, where that was asked for.
    pub relations: Vec<Part>,
}

impl CacheResult {
    /// Requests simulated in a second of one core.
    pub fn requests_per_second(&self) -> f64 {
        self.counts.requests as f64 / self.seconds.max(1e-9)
    }
}

/// What a simulation found.
#[derive(Clone, Debug)]
pub struct Report {
    /// The trace; of a sample, all of it.
    pub summary: Summary,
    /// The caches, in the order in which they were added.
    pub results: Vec<CacheResult>,
    /// The curves, in the order in which they were asked for.
    pub curves: Vec<Curve>,
}

impl Default for Simulation {
    fn default() -> Simulation {
        Simulation::new()
    }
}

impl Simulation {
    /// No caches yet, on as many threads as there are cores.
    pub fn new() -> Simulation {
        Simulation {
            caches: Vec::new(),
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            by_query: false,
            by_relation: false,
            curves: Vec::new(),
            sample: None,
            loaded_requests_max: LOADED_REQUESTS_MAX,
        }
    }

    /// Adds a cache.
    pub fn cache(mut self, policy: Name, size: Size) -> Simulation {
        self.caches.push((policy, size));
        self
    }

    /// On so many threads, besides the one that calls, which numbers the blocks, and one that decodes the trace.
    pub fn threads(mut self, threads: usize) -> Simulation {
        self.threads = threads;
        self
    }

    /// Counts by query, by relation, or both as well.
    pub fn parts(mut self, by_query: bool, by_relation: bool) -> Simulation {
        (self.by_query, self.by_relation) = (by_query, by_relation);
        self
    }

    /// Adds the miss-ratio curve of a policy: of `lru` at every size, of others at the sizes of a grid.
    pub fn curve(mut self, policy: Name) -> Simulation {
        self.curves.push(policy);
        self
    }

    /// Simulates a share of the blocks only, above 0 and below 1.
    pub fn sample(mut self, share: f64) -> Simulation {
        self.sample = (share > 0.0 && share < 1.0).then_some(share);
        self
    }

    /// Streams traces of more requests than this, instead of [`LOADED_REQUESTS_MAX`].
    pub fn loaded_requests_max(mut self, requests: u64) -> Simulation {
        self.loaded_requests_max = requests;
        self
    }
}
