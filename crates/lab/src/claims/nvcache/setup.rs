//! The machine of NVCache's claims, scaled to 256 KiB per GB.
//!
//! The page file is on an Optane disk. The profile `optane-2` has the bandwidth that the paper
//! measured on its two modules (N1, N2). Optane memory has one of these uses ([`Nvm`]):
//!
//! * a block cache before the page file, with any policy: NVCache's preset, OpenCAS, admit-all;
//! * **memory mode**: the pool lies in Optane memory; DRAM is the memory controller's direct-mapped
//!   line cache;
//! * both, in separate parts of the same modules, sharing bandwidth.
//!
//! Two inputs can be switched:
//!
//! * **The page cache** ([`Dram`]) has the DRAM that the engine leaves, and in memory mode all that
//!   the pool leaves of the modules. Without it the pool has all DRAM, or is as large as the
//!   modules.
//! * **Cleaning.** The paper's engine reuses freed blocks; this one cleans segments, which costs
//!   reads. Without, the page file has [`ROOM`] times the data, in which there is little to clean.
//!
//! A worker is a thread of the paper. It computes for [`Machine::operation_ns`] per operation in
//! addition to page accesses. In memory mode a last-level cache of the paper's 22 MiB, scaled,
//! precedes memory.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use terrace::migration::{Choice, Policy};
use terrace::{Cache, CacheKind, Db, Durability, MemoryDirectory, Mode, RecordCache, Replacement};
use terrace_common::failure::{Failure, Outcome};
use terrace_common::values;
use terrace_io::{OPERATION_NS, Profile};

use crate::claims::claim::Setting;
use crate::hierarchy::{
    Experiment, Found, Hierarchy, LoadOrder, Logging, on_new_thread, run_all, side_by_side,
};
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
/// Most that the engine has of DRAM in section 4, GB.
const ENGINE_GB_MOST: u64 = 40;
/// Page file relative to its data, where nothing is to be cleaned.
const ROOM: u64 = 4;
/// Budget for making room.
const LOADING_BYTES: u64 = 16 << 20;
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

/// DRAM in GB: the pool's and the page cache's, and the pool's where there is no page cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Dram {
    pub(super) engine_gb: u64,
    pub(super) page_cache_gb: u64,
    pub(super) alone_gb: u64,
}

impl Dram {
    /// Half for the engine, up to 40 GB (section 4).
    pub(super) fn halved(gb: u64) -> Dram {
        let engine_gb = (gb / 2).min(ENGINE_GB_MOST);
        Dram { engine_gb, page_cache_gb: gb - engine_gb, alone_gb: gb }
    }

    fn total_gb(self) -> u64 {
        self.engine_gb + self.page_cache_gb
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
    page_cache: bool,
    cleaning: bool,
}

impl Machine {
    pub(super) fn of(setting: &Setting) -> Outcome<Machine> {
        let found = |name: &str| Profile::find(name).map_err(|error| Failure::Work(error.to_string()));
        Ok(Machine {
            optane: found(setting.optane.as_deref().unwrap_or("optane-2"))?,
            disk: found(setting.disk.as_deref().unwrap_or("nvme-optane"))?,
            operation_ns: setting.operation_ns.unwrap_or(OPERATION_NS),
            page_cache: !setting.no_page_cache,
            cleaning: !setting.no_cleaning,
        })
    }

    /// The disk with a page cache of `gb` GB in `memory`, behind `address`.
    fn disk(&self, gb: u64, memory: Profile, address: u64) -> Profile {
        self.disk_bytes(gb * GB, memory, address)
    }

    /// The disk with a page cache of `bytes` bytes in `memory`, behind `address`.
    pub(super) fn disk_bytes(&self, bytes: u64, memory: Profile, address: u64) -> Profile {
        match self.page_cache {
            true => self.disk.clone().with_page_cache(bytes, memory, address),
            false => self.disk.clone(),
        }
    }

    /// Small-bypass before LRU, and the preset, for 16 GB of DRAM and a page file as long as this
    /// machine's.
    pub(super) fn small_bypass(&self) -> [&'static str; 2] {
        // 1,024 blocks are 16 GB, and the page file has as many times the data as it has room.
        match self.cleaning {
            true => ["small-bypass:1024+lru", "small-bypass:1024+obp+lfru"],
            false => ["small-bypass:4096+lru", "small-bypass:4096+obp+lfru"],
        }
    }

    /// An experiment of `work`.
    pub(super) fn experiment(&self, work: Work, dram: Dram, nvm: Nvm) -> Outcome<Experiment> {
        let cache = match nvm.cache() {
            None => None,
            Some((policy, gb)) => {
                Some(Cache::new(CacheKind::Simulated(self.optane.clone()), gb * GB).policy(policy)?)
            }
        };
        let in_place = Policy::new(0.0, 0.0, 1.0, 1.0).map(Choice::Fixed).map_err(Failure::Work)?;
        let engine_gb = if self.page_cache { dram.engine_gb } else { dram.alone_gb };
        let (dram_bytes, middle, policy, store) = match nvm.memory_mode_gb() {
            None => {
                let memory = Profile::named("dram").map_err(|error| Failure::Work(error.to_string()))?;
                let store = self.disk(dram.page_cache_gb, memory, 0);
                ((engine_gb * GB).max(64 * PAGE_BYTES), None, Choice::Eager, store)
            }
            Some(gb) => {
                let memory = self.optane.clone().with_cache_bytes(LAST_LEVEL_BYTES / work.threads as u64);
                let controller_gb = if self.page_cache { dram.total_gb() } else { dram.alone_gb };
                let memory = memory.with_dram_cache_bytes(controller_gb * GB);
                let pool_gb = if self.page_cache { engine_gb } else { gb };
                let address = pool_gb * GB + FRAMES_LEAST * PAGE_BYTES;
                let store = self.disk(gb - pool_gb, memory.clone(), address);
                (FRAMES_LEAST * PAGE_BYTES, Some((memory, pool_gb * GB)), in_place, store)
            }
        };
        Ok(Experiment {
            hierarchy: Hierarchy { dram_bytes, middle, store, cache },
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

    /// Runs rows of experiments in parallel.
    pub(super) fn run(&self, rows: &[Vec<(Work, Dram, Nvm)>]) -> Outcome<Vec<Vec<Found>>> {
        let each = rows.iter().flatten().map(|&(work, dram, nvm)| self.experiment(work, dram, nvm));
        let each = each.collect::<Outcome<Vec<Experiment>>>()?;
        let mut found = if self.cleaning { run_all(&each)? } else { run_with_room(&each)? }.into_iter();
        Ok(rows.iter().map(|row| found.by_ref().take(row.len()).collect()).collect())
    }

    /// A note about the machine.
    pub(super) fn told(&self) -> String {
        let page_cache = if self.page_cache { "a page cache" } else { "no page cache" };
        let cleaning = if self.cleaning { "cleaned" } else { "with room, so hardly cleaned" };
        format!(
            "Optane memory of profile {}, disk {}, {} ns of computation an operation, {page_cache}, a page file {cleaning}.",
            self.optane.location(),
            self.disk.location(),
            self.operation_ns
        )
    }
}

/// Runs each over data in a page file that has [`ROOM`] times their bytes.
fn run_with_room(experiments: &[Experiment]) -> Outcome<Vec<Found>> {
    let images = experiments.iter().map(|experiment| (experiment.records, OnceLock::new()));
    let images: BTreeMap<u64, OnceLock<MemoryDirectory>> = images.collect();
    side_by_side(experiments, |experiment| {
        let slot = &images[&experiment.records];
        let image = match slot.get() {
            Some(image) => image.copy(),
            None => {
                // Two threads may race here and load identical images.
                let image = on_new_thread(|| with_room(experiment))?;
                slot.get_or_init(|| image).copy()
            }
        };
        experiment.begin_on(&image, |running| running.measure(experiment.operations))
    })
}

/// The experiment's data, and free room where other data were.
fn with_room(experiment: &Experiment) -> Outcome<MemoryDirectory> {
    const OTHERS: &str = "others";
    let image = experiment.load()?;
    let log_bytes = experiment.log.capacity_bytes;
    let open = || {
        Db::builder()
            .no_middle()
            .directory(Arc::new(image.clone()))
            .dram(LOADING_BYTES)
            .log_min(log_bytes)
            .log_max(log_bytes)
            .page_size(experiment.page_bytes)
            .page_size_max(experiment.page_bytes)
            .record_cache(RecordCache::Off)
            .durability(Durability::Buffered)
            .mode(Mode::Inline)
            .seed(1)
            .open("")
    };
    let db = open()?;
    let (others, mut value) = (db.create_table(OTHERS)?, Vec::new());
    values::fill(1, 0, experiment.value_bytes, &mut value);
    for record in 0..experiment.records * (ROOM - 1) {
        others.put(values::key(record), &value)?;
    }
    drop(others);
    db.drop_table(OTHERS)?;
    db.close()?;
    // An open frees the pages of dropped tables, which no experiment should read.
    let freed = open()?;
    match freed.stats().garbage {
        0 => freed.close()?,
        left => return Err(Failure::Work(format!("{left} dropped tables are not freed"))),
    }
    Ok(image)
}

/// GB/s that a run of `operations` operations writes to the disk and to Optane memory.
pub(super) fn written_gb_s(found: &Found, operations: u64) -> [f64; 2] {
    let each = found.ops_per_second / operations as f64 / 1e9;
    [found.store_written_bytes, nvm_written_bytes(found)].map(|bytes| bytes as f64 * each)
}

/// Bytes written to Optane memory in any use.
pub(super) fn nvm_written_bytes(found: &Found) -> u64 {
    let cache = found.cache().map_or(0, |cache| cache.written_bytes);
    let memory_mode = found.middle().ok().and_then(|middle| middle.dram_cache);
    cache + memory_mode.map_or(0, |dram| dram.memory_written_bytes)
}
