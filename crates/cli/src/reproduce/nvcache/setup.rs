//! What NVCache's claims run on: the paper's machine, at the scale of 256 KiB for a GB.
//!
//! The page file is on an Optane disk. DRAM is the pool's, all of it, and what the paper leaves to the system's page cache is left out. Optane
//! memory is that of the profile `optane-2`, which has the bandwidth that the paper measured on its two modules (N1, N2). It is used in one
//! of these ways ([`Nvm`]):
//!
//! * a block cache before the page file, with any policy: the preset of NVCache, OpenCAS, admit-all;
//! * **memory mode**: the pool is as large as the Optane memory and all of it is there, in place; DRAM is a direct-mapped cache of its
//!   lines, which nobody but the memory controller sees;
//! * both, each in a part of the same modules, whose bandwidth they share.
//!
//! A worker is a thread of the paper's, and computes for [`Machine::operation_ns`] beside what its pages take. A last-level cache before
//! memory in memory mode is the paper's 22 MiB for all, at the same scale.

use terrace::migration::{Choice, Policy};
use terrace::{Cache, CacheKind, Replacement};
use terrace_block::{OPERATION_NS, Profile};

use super::super::Setting;
use crate::failure::{Failure, Outcome};
use crate::hierarchy::{Experiment, Found, Hierarchy, run_all};
use crate::workload::ycsb::Distribution;

/// Bytes that stand for a GB.
pub(super) const GB: u64 = 256 << 10;
pub(super) const PAGE_BYTES: u64 = 16 << 10;
const VALUE_BYTES: usize = 1000;
/// Bytes of a record in a page that is as full as one that was loaded.
const RECORD_BYTES: u64 = 1100;
/// The processor's last cache: 22 MiB of the paper's.
const LAST_LEVEL_BYTES: u64 = (22 << 20) / ((1 << 30) / GB);
/// Frames in DRAM that the engine has at least.
const FRAMES_LEAST: u64 = 24;
/// The paper's presets, and what it holds against them.
pub(super) const NVCACHE: &str = "small-bypass+obp+lfru";
pub(super) const ADMIT_ALL: &str = "lru";
/// OpenCAS in write-around mode: reads that miss are admitted, writes are not. The hot half of its LRU list, which saves it locks, is left out.
pub(super) const OPENCAS: &str = "probability:0@writes+lru";

/// How Optane memory is used, GB of it.
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

/// What is done: the mix of that name, over so many GB of data.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Work {
    pub(super) mix: &'static str,
    pub(super) threads: usize,
    pub(super) data_gb: u64,
    pub(super) distribution: Distribution,
    /// Operations before those that count.
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
    /// The paper's, but for what `setting` says.
    pub(super) fn of(setting: &Setting) -> Outcome<Machine> {
        let found = |name: &str| Profile::find(name).map_err(|error| Failure::Work(error.to_string()));
        Ok(Machine {
            optane: found(setting.optane.as_deref().unwrap_or("optane-2"))?,
            disk: found("nvme-optane")?,
            operation_ns: setting.operation_ns.unwrap_or(OPERATION_NS),
        })
    }

    /// A run of `work` with so many GB of DRAM.
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
            policy,
            clean_victims: None,
            replacement: Replacement::default(),
            page_bytes: PAGE_BYTES,
            records: work.data_gb * GB / RECORD_BYTES,
            value_bytes: VALUE_BYTES,
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

    /// Runs rows of experiments, all of them side by side: work, GB of DRAM, Optane memory.
    pub(super) fn run(&self, rows: &[Vec<(Work, u64, Nvm)>]) -> Outcome<Vec<Vec<Found>>> {
        let each = rows.iter().flatten().map(|&(work, dram_gb, nvm)| self.experiment(work, dram_gb, nvm));
        let mut found = run_all(&each.collect::<Outcome<Vec<Experiment>>>()?)?.into_iter();
        Ok(rows.iter().map(|row| found.by_ref().take(row.len()).collect()).collect())
    }

    /// What a note says of it, where it is not what the claims are measured on.
    pub(super) fn told(&self) -> String {
        format!(
            "Optane memory of profile {}, {} ns of computation an operation.",
            self.optane.place(),
            self.operation_ns
        )
    }
}

/// Bytes that were written to Optane memory, whichever way it was used.
pub(super) fn nvm_written_bytes(found: &Found) -> u64 {
    let cache = found.cache().map_or(0, |cache| cache.written_bytes);
    let memory_mode = found.middle().ok().and_then(|middle| middle.dram_cache);
    cache + memory_mode.map_or(0, |dram| dram.memory_written_bytes)
}
