//! The `--json` object of `simulate`.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use terrace_cache::sim::{Counts, Devices, Part, Report};
use terrace_common::units::counted;

use crate::args::Shard;

/// The JSON object.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Found {
    /// The trace as named by the user.
    pub trace: String,
    /// Accesses, each to one block.
    pub requests: u64,
    /// Requests of the trace, each for one block or several; 0 if unknown.
    #[serde(default)]
    pub trace_requests: u64,
    /// Write accesses.
    pub writes: u64,
    /// Distinct blocks.
    pub footprint: usize,
    pub block_bytes: u32,
    /// The simulated share of blocks; null for all.
    pub sample: Option<f64>,
    /// The shard, as part and total; null for the whole.
    pub shard: Option<[u32; 2]>,
    /// Seconds of reading and simulating.
    pub seconds: f64,
    pub results: Vec<CacheFound>,
    pub curves: Vec<CurveFound>,
}

/// One cache.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct CacheFound {
    /// Position in command-line order, from 0.
    pub index: usize,
    pub policy: String,
    /// Size as given.
    pub size: String,
    pub cache_blocks: usize,
    /// `cache_blocks` in bytes.
    #[serde(default)]
    pub cache_bytes: u64,
    pub hits: u64,
    pub misses: u64,
    pub miss_ratio: f64,
    pub admissions: u64,
    pub evictions: u64,
    /// Write-backs: blocks evicted dirty.
    pub migrated: u64,
    /// Blocks moved either way: admissions on read, and write-backs.
    pub moved: u64,
    /// Bytes written to the cache device by admissions and write hits.
    pub written_bytes: u64,
    /// Misses of a direct-mapped cache that LRU of equal size avoids; only for that policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conflict_misses: Option<u64>,
    /// Dirty blocks in the cache at the end.
    pub dirty_at_end: u64,
    /// Requests per second simulated by one core.
    pub requests_per_second: f64,
    /// Cost on the `--profile` devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<CostFound>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub queries: Vec<PartFound>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub relations: Vec<PartFound>,
}

/// Cost of the requests on the `--profile` devices.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub struct CostFound {
    pub latency_us: LatencyFound,
    /// Maximum requests per second of all workers.
    pub throughput: f64,
}

/// Request latencies in microseconds.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub struct LatencyFound {
    pub mean: f64,
    pub p50: f64,
    pub p99: f64,
}

/// Counts of a query or a relation.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct PartFound {
    /// Its number; null for requests without one.
    pub number: Option<u32>,
    /// Query template or relation name, if in the trace.
    pub name: Option<String>,
    pub requests: u64,
    pub misses: u64,
    pub miss_ratio: f64,
    pub admissions: u64,
    pub migrated: u64,
}

/// A miss-ratio curve.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct CurveFound {
    /// Position in command-line order, from 0.
    pub index: usize,
    pub policy: String,
    /// Pairs of size in blocks and miss ratio.
    pub points: Vec<(usize, f64)>,
    /// The size of each point in bytes.
    #[serde(default)]
    pub bytes: Vec<u64>,
    /// The point farthest below the chord of the curve; null if the curve is nearly straight.
    #[serde(default)]
    pub knee: Option<KneeFound>,
}

/// The knee of a curve.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct KneeFound {
    pub cache_blocks: usize,
    pub cache_bytes: u64,
    pub miss_ratio: f64,
}

impl Found {
    /// Converts `report`; `indices` holds the positions of its caches and curves in command-line
    /// order.
    pub fn new(trace: String, block_bytes: u32, report: &Report, indices: [&[usize]; 2]) -> Found {
        let summary = &report.summary;
        // For duplicate numbers the first name wins.
        let queries: HashMap<u32, &str> =
            summary.queries.iter().rev().map(|query| (query.number, query.template.as_str())).collect();
        let relations: HashMap<u32, &str> = summary
            .relations
            .iter()
            .rev()
            .map(|relation| (relation.number, relation.name.as_str()))
            .collect();
        let query_name = |number: u32| queries.get(&number).map(|name| (*name).to_owned());
        let relation_name = |number: u32| relations.get(&number).map(|name| (*name).to_owned());
        let [caches, curves] = indices;
        let bytes = |blocks: usize| blocks as u64 * u64::from(block_bytes);
        let result = |(index, result): (&usize, &terrace_cache::sim::CacheResult)| {
            let counts = &result.counts;
            CacheFound {
                index: *index,
                policy: result.policy.to_string(),
                size: result.size.to_string(),
                cache_blocks: result.cache_blocks,
                cache_bytes: bytes(result.cache_blocks),
                hits: counts.hits,
                misses: counts.misses(),
                miss_ratio: result.miss_ratio,
                admissions: counts.admissions,
                evictions: counts.evictions,
                migrated: counts.write_backs,
                moved: counts.moved(),
                written_bytes: counts.device_writes() * u64::from(block_bytes),
                conflict_misses: result.policy.is_direct_mapped().then_some(counts.conflict_misses),
                dirty_at_end: result.dirty_at_end,
                requests_per_second: result.requests_per_second(),
                cost: None,
                queries: result.queries.iter().map(|part| PartFound::new(part, query_name)).collect(),
                relations: result.relations.iter().map(|part| PartFound::new(part, relation_name)).collect(),
            }
        };
        let curve = |(index, curve): (&usize, &terrace_cache::sim::Curve)| CurveFound {
            index: *index,
            policy: curve.policy.to_string(),
            points: curve.points.iter().map(|point| (point.cache_blocks, point.miss_ratio)).collect(),
            bytes: curve.points.iter().map(|point| bytes(point.cache_blocks)).collect(),
            knee: curve.knee().map(|knee| KneeFound {
                cache_blocks: knee.cache_blocks,
                cache_bytes: bytes(knee.cache_blocks),
                miss_ratio: knee.miss_ratio,
            }),
        };
        Found {
            trace,
            requests: summary.requests,
            trace_requests: summary.trace_requests,
            writes: summary.writes,
            footprint: summary.footprint,
            block_bytes,
            results: caches.iter().zip(&report.results).map(result).collect(),
            curves: curves.iter().zip(&report.curves).map(curve).collect(),
            ..Found::default()
        }
    }

    /// The requests in a sentence, and the accesses to blocks if there are more.
    pub(super) fn amount(&self) -> String {
        match self.trace_requests {
            requests if requests > 0 && requests < self.requests => {
                format!("{}, {}", counted(requests, "request"), counted(self.requests, "block access"))
            }
            _ => counted(self.requests, "request"),
        }
    }

    /// Adds each cache's cost on `devices`.
    pub fn priced(mut self, report: &Report, devices: &Devices) -> Found {
        for (found, result) in self.results.iter_mut().zip(&report.results) {
            let cost = devices.cost(&result.counts);
            let latency_us = LatencyFound { mean: cost.mean_us, p50: cost.p50_us, p99: cost.p99_us };
            found.cost = Some(CostFound { latency_us, throughput: cost.requests_per_second });
        }
        self
    }

    /// Sets the shard.
    pub fn part(mut self, shard: Option<Shard>) -> Found {
        self.shard = shard.map(|shard| [shard.part, shard.of]);
        self
    }

    /// Policies and sizes in order of appearance.
    pub(super) fn axes(&self) -> (Vec<&str>, Vec<usize>) {
        let (mut policies, mut sizes) = (Vec::new(), Vec::new());
        for result in &self.results {
            if !policies.contains(&result.policy.as_str()) {
                policies.push(result.policy.as_str());
            }
            if !sizes.contains(&result.cache_blocks) {
                sizes.push(result.cache_blocks);
            }
        }
        (policies, sizes)
    }

    /// Bytes of `blocks` blocks. The numbers may come from a file, so the product has a ceiling.
    pub(super) fn bytes(&self, blocks: usize) -> u64 {
        (blocks as u64).saturating_mul(u64::from(self.block_bytes))
    }

    pub(super) fn result(&self, policy: &str, cache_blocks: usize) -> Option<&CacheFound> {
        self.results.iter().find(|result| result.policy == policy && result.cache_blocks == cache_blocks)
    }
}

impl PartFound {
    fn new(part: &Part, name: impl Fn(u32) -> Option<String>) -> PartFound {
        let counts: &Counts = &part.counts;
        PartFound {
            number: part.number,
            name: part.number.and_then(name),
            requests: counts.requests,
            misses: counts.misses(),
            miss_ratio: counts.miss_ratio(),
            admissions: counts.admissions,
            migrated: counts.write_backs,
        }
    }

    /// Whether the only part is that of requests without a number.
    pub(super) fn is_none(parts: &[PartFound]) -> bool {
        matches!(parts, [part] if part.number.is_none())
    }

    /// Title for people.
    pub(super) fn title(&self) -> String {
        match (&self.number, &self.name) {
            (None, _) => "none".to_owned(),
            (Some(number), None) => number.to_string(),
            (Some(number), Some(name)) => format!("{number} {name}"),
        }
    }
}
