//! A simulation from trace to report.
//!
//! A few caches of known sizes begin with the first chunk. Otherwise the trace is read into memory,
//! up to a limit. If it ends there, the lanes run over it. If not, it streams on from there if all
//! sizes are in blocks; else it is read to its end for the footprint, reopened and streamed.

use std::sync::Arc;

use crate::policy::{Build, DenseTable, Future, Name, Policy, Settings};
use crate::trace::{Trace, TraceError};

use super::cache::Cache;
use super::chunk::{CHUNK_REQUESTS, Chunk, Chunks, FOOTPRINT_MAX, Summary};
use super::curve::{self, Curve, CurvePoint};
use super::error::SimError;
use super::flow::{self, Job, Lane, Outcome};
use super::lane::Run;
use super::memory_mode::MemoryMode;
use super::parts::Parts;
use super::size::Size;
use super::stack::Stack;
use super::{CacheResult, Report, Simulation, Step, WINDOW_REQUESTS};

/// Opens the trace from its beginning.
pub type Open<'a> = &'a mut dyn FnMut() -> Result<Trace, TraceError>;

/// The largest cache that begins before the footprint is known.
const BEGUN_BLOCKS_MAX: usize = 1 << 22;

/// The policy whose curve is exact at every size.
const LRU: &str = "lru";

impl Simulation {
    /// Runs all caches over the trace.
    ///
    /// `open` is called again to read the trace twice, if `can_reopen`. Several threads call
    /// `progress`.
    ///
    /// # Errors
    /// A malformed, empty or too large trace; a size that does not fit it.
    pub fn run(
        &self,
        open: Open<'_>,
        can_reopen: bool,
        progress: &(dyn Fn(Step) + Sync),
    ) -> Result<Report, SimError> {
        let mut chunks = Chunks::new(open()?, self.sample);
        if self.is_few() {
            return self.streamed(chunks, Vec::new(), &Summary::default(), progress);
        }
        let mut loaded = Vec::new();
        while chunks.requests() <= self.loaded_requests_max {
            match chunks.read()? {
                Some(chunk) => {
                    loaded.push(Arc::new(chunk));
                    progress(Step::Read);
                }
                None => return self.loaded(chunks.summary(), loaded, progress),
            }
        }
        if let Some(policy) = self.policies().find(|policy| policy.needs_future()) {
            let (what, max) = (policy.to_string(), self.loaded_requests_max);
            return Err(SimError::TooLong { what, needs: "the whole trace in memory", max });
        }
        let relative = self.caches.iter().find(|(_, size)| size.is_relative());
        let sized = self.policies().find(|policy| chunks.has_relations() && policy.needs_relation_sizes());
        let reason = match (relative, self.curves.first(), sized) {
            (Some((_, size)), ..) => Some(format!("a cache of {size} of the footprint")),
            (None, Some(policy), _) => Some(format!("the curve of {policy}")),
            (None, None, Some(policy)) => Some(format!("{policy}, which is told the sizes of relations,")),
            (None, None, None) => None,
        };
        let summary = match reason {
            // Sizes in blocks fit any footprint until the end.
            None => Summary::default(),
            Some(what) if !can_reopen => {
                let max = self.loaded_requests_max;
                return Err(SimError::TooLong { what, needs: "a trace that can be read twice", max });
            }
            Some(_) => {
                loaded = Vec::new();
                while chunks.read()?.is_some() {
                    progress(Step::Read);
                }
                let summary = chunks.summary();
                chunks = chunks.again(open()?);
                summary
            }
        };
        self.streamed(chunks, loaded, &summary, progress)
    }

    /// Whether the caches can begin with the first chunk, on a thread each: none needs the trace's
    /// end, or a check of its size before allocation.
    fn is_few(&self) -> bool {
        let can_begin = |(policy, size): &(Name, Size)| {
            let is_small =
                size.fixed_blocks(self.block_bytes).is_some_and(|blocks| blocks <= BEGUN_BLOCKS_MAX);
            is_small && !policy.needs_future() && !policy.needs_relation_sizes()
        };
        self.curves.is_empty()
            && (1..=self.threads).contains(&self.caches.len())
            && self.caches.iter().all(can_begin)
    }

    /// Runs over `loaded` and the rest of `chunks`. `known` summarises the trace, or has no
    /// requests: sizes in blocks are then checked at the end.
    fn streamed(
        &self,
        mut chunks: Chunks,
        loaded: Vec<Arc<Chunk>>,
        known: &Summary,
        progress: &(dyn Fn(Step) + Sync),
    ) -> Result<Report, SimError> {
        let any = Summary { footprint: FOOTPRINT_MAX, ..Summary::default() };
        let is_known = known.requests > 0;
        let Plan { jobs, frame } = self.plan(if is_known { known } else { &any }, None)?;
        let mut read = || chunks.read();
        let window = WINDOW_REQUESTS as usize / CHUNK_REQUESTS;
        if is_known {
            progress(Step::Total(known.requests * jobs.len() as u64));
        }
        let outcomes = flow::drive(jobs, self.threads, loaded, window, Some(&mut read), progress)?;
        let summary = chunks.summary();
        self.check_not_empty(&summary)?;
        for (_, size, _) in &frame.caches {
            size.blocks(summary.footprint, self.block_bytes)?;
        }
        Ok(self.report(summary, frame, outcomes))
    }

    fn check_not_empty(&self, summary: &Summary) -> Result<(), SimError> {
        match (summary.footprint, self.sample) {
            (0, Some(share)) if summary.requests > 0 => Err(SimError::EmptySample { share }),
            (0, _) => Err(SimError::Empty),
            _ => Ok(()),
        }
    }

    fn loaded(
        &self,
        summary: Summary,
        loaded: Vec<Arc<Chunk>>,
        progress: &(dyn Fn(Step) + Sync),
    ) -> Result<Report, SimError> {
        let future = self.policies().any(Name::needs_future).then(|| {
            let requests = loaded.iter().flat_map(|chunk| chunk.requests(0..chunk.len()));
            Arc::new(Future::of(requests.map(|request| u64::from(request.number))))
        });
        let Plan { jobs, frame } = self.plan(&summary, future)?;
        progress(Step::Total(summary.requests * jobs.len() as u64));
        let outcomes = flow::drive(jobs, self.threads, loaded, 0, None, progress)?;
        Ok(self.report(summary, frame, outcomes))
    }

    fn policies(&self) -> impl Iterator<Item = &Name> {
        self.caches.iter().map(|(policy, _)| policy).chain(&self.curves)
    }

    fn plan(&self, summary: &Summary, future: Option<Arc<Future>>) -> Result<Plan, SimError> {
        self.check_not_empty(summary)?;
        let relation_blocks: Arc<[(u32, u64)]> = summary.relation_blocks.clone().into();
        let job = |policy: &Name, blocks: usize, parts: Parts| -> Job {
            let (policy, relation_blocks) = (policy.clone(), Arc::clone(&relation_blocks));
            let capacity = self.sampled(blocks);
            if policy.is_direct_mapped() {
                return Box::new(move || Box::new(Run::new(MemoryMode::new(capacity), parts)));
            }
            let build =
                IntoLane { capacity, writes_through: policy.writes_through(), parts, relation_blocks };
            let band_blocks = self.band_blocks;
            let settings = Settings { future: future.clone(), band_blocks, ..Settings::new(capacity) };
            Box::new(move || policy.build::<DenseTable, _>(&settings, build))
        };
        let mut plan = Plan { jobs: Vec::new(), frame: Frame::default() };
        for (policy, size) in &self.caches {
            let blocks = size.blocks(summary.footprint, self.block_bytes)?;
            if let Some(share) = self.sample
                && self.sampled(blocks) == 0
            {
                let footprint = summary.footprint;
                return Err(SimError::NoBlocksInSample { size: *size, blocks, share, footprint });
            }
            plan.jobs.push(job(policy, blocks, Parts::new(self.by_query, self.by_relation)));
            plan.frame.caches.push((policy.clone(), *size, blocks));
        }
        // A curve begins where a cache has a sampled block.
        let seen = |mut sizes: Vec<usize>| {
            sizes.retain(|blocks| self.sampled(*blocks) > 0);
            sizes
        };
        for policy in &self.curves {
            let sizes = match policy.to_string() == LRU {
                true => {
                    plan.jobs.push(Box::new(|| Box::new(Stack::new())));
                    seen(curve::dense(summary.footprint))
                }
                false => {
                    let sizes = seen(curve::grid(summary.footprint));
                    plan.jobs.extend(sizes.iter().map(|blocks| job(policy, *blocks, Parts::default())));
                    sizes
                }
            };
            plan.frame.curves.push((policy.clone(), sizes));
        }
        Ok(plan)
    }

    /// The sampled size of a cache of `blocks` blocks.
    pub fn sampled(&self, blocks: usize) -> usize {
        self.sample.map_or(blocks, |share| (blocks as f64 * share).round() as usize)
    }

    fn report(&self, summary: Summary, frame: Frame, outcomes: Vec<Outcome>) -> Report {
        // The expected number of sampled requests (SHARDS-adj).
        let expected = summary.requests as f64 * self.sample.unwrap_or(1.0);
        let ratio = |misses: u64| (misses as f64 / expected).min(1.0);
        let mut outcomes = outcomes.into_iter();
        let mut cache = |policy: Name, size: Size, cache_blocks: usize| match outcomes.next() {
            Some(Outcome::Cache { counts, dirty, seconds, parts: (queries, relations) }) => CacheResult {
                policy,
                size,
                cache_blocks,
                miss_ratio: ratio(counts.misses()),
                counts,
                dirty_at_end: dirty,
                seconds,
                queries,
                relations,
            },
            _ => unreachable!("every cache has its outcome"),
        };
        let results = frame.caches.into_iter().map(|(policy, size, blocks)| cache(policy, size, blocks));
        let results = results.collect();
        let mut curves = Vec::new();
        for (policy, sizes) in frame.curves {
            let mut points = Vec::with_capacity(sizes.len());
            if policy.to_string() == LRU {
                let Some(Outcome::Distances(distances)) = outcomes.next() else {
                    unreachable!("every curve has its outcome")
                };
                let sampled: Vec<usize> = sizes.iter().map(|blocks| self.sampled(*blocks)).collect();
                let misses = distances.curve(&sampled);
                let point = |(blocks, (_, misses)): (&usize, &(usize, u64))| CurvePoint {
                    cache_blocks: *blocks,
                    miss_ratio: ratio(*misses),
                };
                points.extend(sizes.iter().zip(&misses).map(point));
            } else {
                for blocks in sizes {
                    let Some(Outcome::Cache { counts, .. }) = outcomes.next() else {
                        unreachable!("every point has its outcome")
                    };
                    points.push(CurvePoint { cache_blocks: blocks, miss_ratio: ratio(counts.misses()) });
                }
            }
            curves.push(Curve { policy, points });
        }
        Report { summary, results, curves }
    }
}

struct Plan {
    jobs: Vec<Job>,
    frame: Frame,
}

/// The jobs' order: caches with sizes, then curves with sizes.
#[derive(Default)]
struct Frame {
    caches: Vec<(Name, Size, usize)>,
    curves: Vec<(Name, Vec<usize>)>,
}

struct IntoLane {
    capacity: usize,
    writes_through: bool,
    parts: Parts,
    relation_blocks: Arc<[(u32, u64)]>,
}

impl Build for IntoLane {
    type Output = Box<dyn Lane>;

    fn build<P: Policy + 'static>(self, policy: P) -> Box<dyn Lane> {
        let cache = Cache::new(policy, self.capacity).writes_through(self.writes_through);
        Box::new(Run::new(cache.sizes(&self.relation_blocks), self.parts))
    }
}
