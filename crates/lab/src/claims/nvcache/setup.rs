//! The machine of NVCache's claims, scaled to 256 KiB per GB.
//!
//! The page file is on an Optane disk. All DRAM belongs to the pool; the paper's page cache is
//! omitted. The profile `optane-2` has the bandwidth that the paper measured on its two modules
//! (N1, N2). Optane memory has one of these uses ([`Nvm`]):
//!
//! * a block cache before the page file, with any policy: NVCache's preset, OpenCAS, admit-all;
//! * **memory mode**: the pool has the size of the Optane memory and lies there; DRAM is the memory
//!   controller's direct-mapped line cache;
//! * both, in separate parts of the same modules, sharing bandwidth.
//!
//! A worker is a thread of the paper. It computes for [`Machine::operation_ns`] per operation in
//! addition to page accesses. In memory mode a last-level cache of the paper's 22 MiB, scaled,
//! precedes memory.

use terrace::migration::{Choice, Policy};
use terrace::{Cache, CacheKind, Replacement};
use terrace_common::failure::{Failure, Outcome};
use terrace_io::{OPERATION_NS, Profile};

use crate::claims::claim::Setting;
use crate::hierarchy::{Experiment, Found, Hierarchy, LoadOrder, Logging, run_all};
use crate::workload::ycsb::Distribution;

/// Bytes per scaled GB.
pub(super) const GB: u64 = 256 << 10;
pub(super) const PAGE_BYTES: u64 = 16 << 10;
const VALUE_BYTES: usize = 1000;
/// Bytes per record in a freshly loaded page.
const RECORD_BYTES: u64 = 1100;
/// The paper's 22 MiB last-level cache.
const LAST_LEVEL_BYTES: u64 = (22 << 20) / ((1 << 30) / GB);
/// The engine's minimum of DRAM frames.
const FRAMES_LEAST: u64 = 24;
/// The paper's preset and its competitor.
pub(super) const NVCACHE: &str = "small-bypass+obp+lfru";
pub(super) const ADMIT_ALL: &str = "lru";
/// OpenCAS in write-around mode: admits reads on a miss, but no writes. Its LRU list's hot half,
/// which only saves locks, is omitted.
pub(super) const OPENCAS: &str = "probability:0@writes+lru";

/// Use of Optane memory, with sizes in GB.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Nvm {
    None,
    Cache { policy: &'static str, gb: u64 },
    MemoryMode { gb: u64 },
    Both { memory_mode_gb: u64, policy: &'static str, cache_gb: u64 },
}

impl Nvm {
    fn memory_mode_gb(self) -> Option<u64> {
        match self {
            Nvm::MemoryMode { gb } | Nvm::Both { memory_mode_gb: gb, .. } => Some(gb),
            _ => None,
        }
    }

    fn cache(self) -> Option<(&'static str, u64)> {
        match self {
            Nvm::Cache { policy, gb } | Nvm::Both { policy, cache_gb: gb, .. } => Some((policy, gb)),
            _ => None,
        }
    }
}

/// A workload: the named mix over this many GB of data.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Work {
    pub(super) mix: &'static str,
    pub(super) threads: usize,
    pub(super) data_gb: u64,
    pub(super) distribution: Distribution,
    /// Uncounted operations at the start.
    pub(super) warmup: u64,
    pub(super) operations: u64,
}

/// Memory, disk and processor.
#[derive(Clone, Debug)]
pub(super) struct Machine {
    pub(super) optane: Profile,
    disk: Profile,
    pub(super) operation_ns: u64,
}

impl Machine {
    pub(super) fn of(setting: &Setting) -> Outcome<Machine> {
        let found = |name: &str| Profile::find(name).map_err(|error| Failure::Work(error.to_string()));
        Ok(Machine {
            optane: found(setting.optane.as_deref().unwrap_or("optane-2"))?,
            disk: found("nvme-optane")?,
            operation_ns: setting.operation_ns.unwrap_or(OPERATION_NS),
        })
    }

    /// An experiment of `work` with `dram_gb` GB of DRAM.
    pub(super) fn experiment(&self, work: Work, dram_gb: u64, nvm: Nvm) -> Outcome<Experiment> {
        let cache = match nvm.cache() {
            None => None,
            Some((policy, gb)) => {
                Some(Cache::new(CacheKind::Simulated(self.optane.clone()), gb * GB).policy(policy)?)
            }
        };
        let in_place = Policy::new(0.0, 0.0, 1.0, 1.0).map(Choice::Fixed).map_err(Failure::Work)?;
        let (dram_bytes, middle, policy) = match nvm.memory_mode_gb() {
            None => ((dram_gb * GB).max(64 * PAGE_BYTES), None, Choice::Eager),
            Some(gb) => {
                let memory = self.optane.clone().with_cache_bytes(LAST_LEVEL_BYTES / work.threads as u64);
                let memory = memory.with_dram_cache_bytes(dram_gb * GB);
                (FRAMES_LEAST * PAGE_BYTES, Some((memory, gb * GB)), in_place)
            }
        };
        Ok(Experiment {
            hierarchy: Hierarchy { dram_bytes, middle, store: self.disk.clone(), cache },
            log: Logging::default(),
            migration: policy.into(),
            replacement: Replacement::default(),
            lines: 0,
            mini_pages: false,
            business: None,
            page_bytes: PAGE_BYTES,
            records: work.data_gb * GB / RECORD_BYTES,
            load_order: LoadOrder::Ascending,
            value_bytes: VALUE_BYTES,
            fields: None,
            mix: work.mix.parse().map_err(Failure::Work)?,
            distribution: work.distribution,
            workers: work.threads,
            operation_ns: self.operation_ns,
            filling: 0,
            warmup: work.warmup,
            operations: work.operations,
            seed: 20_220_222,
        })
    }

    /// Runs rows of experiments in parallel: work, GB of DRAM, Optane memory.
    pub(super) fn run(&self, rows: &[Vec<(Work, u64, Nvm)>]) -> Outcome<Vec<Vec<Found>>> {
        let each = rows.iter().flatten().map(|&(work, dram_gb, nvm)| self.experiment(work, dram_gb, nvm));
        let mut found = run_all(&each.collect::<Outcome<Vec<Experiment>>>()?)?.into_iter();
        Ok(rows.iter().map(|row| found.by_ref().take(row.len()).collect()).collect())
    }

    /// A note for a machine other than the paper's.
    pub(super) fn told(&self) -> String {
        format!(
            "Optane memory of profile {}, {} ns of computation an operation.",
            self.optane.location(),
            self.operation_ns
        )
    }
}

/// Bytes written to Optane memory in any use.
pub(super) fn nvm_written_bytes(found: &Found) -> u64 {
    let cache = found.cache().map_or(0, |cache| cache.written_bytes);
    let memory_mode = found.middle().ok().and_then(|middle| middle.dram_cache);
    cache + memory_mode.map_or(0, |dram| dram.memory_written_bytes)
}
