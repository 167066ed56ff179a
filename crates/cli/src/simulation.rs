//! What `simulate` found: the object of `--json`, and from it the text on a terminal and the HTML report.
//!
//! | module  | what it does                                                |
//! |---------|-------------------------------------------------------------|
//! | `table` | the text                                                    |
//! | `html`  | the report                                                  |
//! | `merge` | joins the objects that the shards of one simulation printed |
//!
//! Text and report are made of the object alone, so what was joined from shards is shown as what was never apart.

mod html;
mod merge;
mod table;

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use terrace_block::sim::{Counts, Devices, Part, Report};

use crate::args::Shard;

pub use html::report;
pub use merge::merge;
pub use table::table;

/// The object, with the keys of the command's interface.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Found {
    /// The trace, as it was named.
    pub trace: String,
    /// Accesses to one block each.
    pub requests: u64,
    /// Those that write.
    pub writes: u64,
    /// Different blocks.
    pub footprint: usize,
    pub block_bytes: u32,
    /// The share of the blocks that was simulated; null where all were.
    pub sample: Option<f64>,
    /// Which part of the work this is; null where it is all.
    pub shard: Option<[u32; 2]>,
    /// Seconds that reading and simulating took.
    pub seconds: f64,
    pub results: Vec<CacheFound>,
    pub curves: Vec<CurveFound>,
}

/// One cache.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct CacheFound {
    /// Where it comes in the order of the command line, from 0 on.
    pub index: usize,
    pub policy: String,
    /// As it was asked for.
    pub size: String,
    pub cache_blocks: usize,
    pub hits: u64,
    pub misses: u64,
    pub miss_ratio: f64,
    pub admissions: u64,
    pub evictions: u64,
    /// Write-backs: blocks that were dirty when they left.
    pub migrated: u64,
    /// Blocks moved between cache and store in both directions: reads admitted, and write-backs.
    pub moved: u64,
    /// Bytes written to the cache's device: admissions, and hits that wrote.
    pub written_bytes: u64,
    /// Misses of a direct-mapped cache that an LRU cache of the same size would not have had; for no other policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conflict_misses: Option<u64>,
    /// Dirty blocks in the cache at the end.
    pub dirty_at_end: u64,
    /// Requests that one core simulates in a second.
    pub requests_per_second: f64,
    /// On the devices of --profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<CostFound>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub queries: Vec<PartFound>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub relations: Vec<PartFound>,
}

/// What the requests cost on the devices of --profile.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub struct CostFound {
    pub latency_us: LatencyFound,
    /// Requests a second of all workers together, at most.
    pub throughput: f64,
}

/// How long requests take, in microseconds.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub struct LatencyFound {
    pub mean: f64,
    pub p50: f64,
    pub p99: f64,
}

/// What was counted for a query or a relation.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct PartFound {
    /// Its number; null for requests of none.
    pub number: Option<u32>,
    /// The query's template or the relation's name, where the trace tells.
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
    /// Where it comes in the order of the command line, from 0 on.
    pub index: usize,
    pub policy: String,
    /// Pairs of a size in blocks and a miss ratio.
    pub points: Vec<(usize, f64)>,
}

impl Found {
    /// What `report` says; of its caches and curves, `indices` says where they come in the order of the command line.
    pub fn new(trace: String, block_bytes: u32, report: &Report, indices: [&[usize]; 2]) -> Found {
        let summary = &report.summary;
        // The first of a number names it.
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
        let result = |(index, result): (&usize, &terrace_block::sim::CacheResult)| {
            let counts = &result.counts;
            CacheFound {
                index: *index,
                policy: result.policy.to_string(),
                size: result.size.to_string(),
                cache_blocks: result.cache_blocks,
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
        let curve = |(index, curve): (&usize, &terrace_block::sim::Curve)| CurveFound {
            index: *index,
            policy: curve.policy.to_string(),
            points: curve.points.iter().map(|point| (point.cache_blocks, point.miss_ratio)).collect(),
        };
        Found {
            trace,
            requests: summary.requests,
            writes: summary.writes,
            footprint: summary.footprint,
            block_bytes,
            results: caches.iter().zip(&report.results).map(result).collect(),
            curves: curves.iter().zip(&report.curves).map(curve).collect(),
            ..Found::default()
        }
    }

    /// What each cache costs on these devices.
    pub fn priced(mut self, report: &Report, devices: &Devices) -> Found {
        for (found, result) in self.results.iter_mut().zip(&report.results) {
            let cost = devices.cost(&result.counts);
            let latency_us = LatencyFound { mean: cost.mean_us, p50: cost.p50_us, p99: cost.p99_us };
            found.cost = Some(CostFound { latency_us, throughput: cost.requests_per_second });
        }
        self
    }

    /// Which part of the work this is.
    pub fn part(mut self, shard: Option<Shard>) -> Found {
        self.shard = shard.map(|shard| [shard.part, shard.of]);
        self
    }

    /// The policies, and the sizes, in the order in which they come.
    fn axes(&self) -> (Vec<&str>, Vec<usize>) {
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

    fn result(&self, policy: &str, cache_blocks: usize) -> Option<&CacheFound> {
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

    /// What it is called where people read it.
    fn title(&self) -> String {
        match (&self.number, &self.name) {
            (None, _) => "none".to_owned(),
            (Some(number), None) => number.to_string(),
            (Some(number), Some(name)) => format!("{number} {name}"),
        }
    }
}
