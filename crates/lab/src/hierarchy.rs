//! Workloads over simulated tiers in virtual time, with repeatable figures.
//!
//! One real thread drives all workers, always the one whose clock is furthest behind
//! ([`VirtualTime`]). The database runs without background threads. So a worker pays for everything
//! done on its behalf, write-back included, like Spitfire's threads. The page file and the middle
//! tier are charged by their profiles; the computation constants include DRAM. A middle tier with a
//! persistent profile takes the persistent path: seals, unseals, write-backs and fences. The log is
//! free, because the papers put it on its own device, unless [`Logging`] says otherwise. Throughput
//! is operations over the time from aligned clocks after warm-up to the last worker's clock.
//!
//! Workers run YCSB's operations over records, or TPC-C's transactions (`work.rs`). Experiments
//! with the same initial data share one load. Each opens a copy and reads it all in order, as a
//! load would pass through the tiers.
//!
//! Capacities are frames only, as in the papers; the budget adds the rest. The record cache is off:
//! the papers have none, and it would hide their choice of tier.

mod business;
mod loaded;
mod noting;
mod records;
#[cfg(test)]
mod tests;
mod versions;
mod work;

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::thread::available_parallelism;

use terrace::migration::{Choice, Migration, Policy};
use terrace::{
    Backend, Builder, Cache, CacheStats, Db, Durability, LineWrites, LogMemory, LogMemoryKind,
    MemoryDirectory, Middle, MiddleKind, MiddleStats, Mode, RecordCache, Replacement, Stats,
};
use terrace_common::failure::{Failure, Outcome};
use terrace_common::values;
use terrace_io::{DecoratedDirectory, Directory, PAGE_NS, Profile, SimulatedDevice, Time, VirtualTime};

use self::business::Business;
use self::loaded::{Data, Loaded, TABLE};
pub use self::loaded::{LoadOrder, on_new_thread};
use self::records::{Records, levels};
use self::versions::Versions;
use self::work::Work;
use crate::workload::fields::Fields;
use crate::workload::tpcc;
use crate::workload::ycsb::{Distribution, Mix, Stream};

/// The charged files, and that of a persistent middle tier.
const PAGE_FILE: &str = "pages.terrace";
const LOG_FILE: &str = "log.terrace";
const MIDDLE_FILE: &str = "middle.terrace";
/// Initial estimate of the budget besides frames.
const BESIDE_BYTES: u64 = 8 << 20;
/// Capacity of the log where none is given.
const LOG_BYTES: u64 = 8 << 20;
/// Attempts to find the budget for the wanted frames.
const OPENINGS_MAX: u32 = 6;

/// The tiers of an experiment.
#[derive(Clone, Debug)]
pub struct Hierarchy {
    /// Bytes of DRAM frames.
    pub dram_bytes: u64,
    /// Profile and frame bytes of the middle tier.
    pub middle: Option<(Profile, u64)>,
    /// Device of the page file.
    pub store: Profile,
    /// Block cache above the store.
    pub cache: Option<Cache>,
}

impl Hierarchy {
    /// Number of DRAM frames for this page size.
    pub fn dram_frames(&self, page_bytes: u64) -> u64 {
        self.dram_bytes / page_bytes
    }
}

/// What commits cost, and when they are acknowledged.
#[derive(Clone, Debug)]
pub struct Logging {
    pub durability: Durability,
    /// Capacity in bytes; the log does not grow. Pages dirty for longer than half of it are
    /// written.
    pub capacity_bytes: u64,
    /// Device of the log's file; `None`: it costs nothing.
    pub device: Option<Profile>,
    /// Persistent memory for the log's ring, and its bytes.
    pub memory: Option<(Profile, u64)>,
    /// Whether reads and updates change pages of versions too (`versions.rs`).
    pub versions: bool,
}

impl Default for Logging {
    fn default() -> Logging {
        Logging {
            durability: Durability::Buffered,
            capacity_bytes: LOG_BYTES,
            device: None,
            memory: None,
            versions: false,
        }
    }
}

/// One experiment.
#[derive(Clone, Debug)]
pub struct Experiment {
    pub hierarchy: Hierarchy,
    pub log: Logging,
    /// Which pages move between the tiers.
    pub migration: Migration,
    /// Page replacement; that of the CXL paper comes with mapped pages, which have one copy.
    pub replacement: Replacement,
    /// Bytes of the lines that a point read loads from the middle tier; 0 for whole pages.
    pub lines: u64,
    /// Whether pages of which few lines are wanted are mini pages.
    pub mini_pages: bool,
    pub page_bytes: u64,
    /// A business of this size, whose transactions run in place of operations over records.
    pub business: Option<tpcc::Scale>,
    pub records: u64,
    pub load_order: LoadOrder,
    pub value_bytes: usize,
    /// The fields of a value, of which a read or an update touches one.
    pub fields: Option<Fields>,
    pub mix: Mix,
    pub distribution: Distribution,
    pub workers: usize,
    /// Nanoseconds of computation per operation, besides page accesses.
    pub operation_ns: u64,
    /// Operations that fill the middle tier, before those under the measured policy.
    pub filling: u64,
    /// Operations before the measurement.
    pub warmup: u64,
    pub operations: u64,
    pub seed: u64,
}

/// Result of an experiment.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// In virtual time.
    pub ops_per_second: f64,
    /// Store reads per operation.
    pub misses: f64,
    /// Page file bytes written.
    pub store_written_bytes: u64,
    /// Block cache statistics.
    cache: Option<CacheStats>,
    /// Middle-tier statistics and current state.
    middle: Option<MiddleStats>,
}

impl Found {
    /// Block cache statistics and current state.
    ///
    /// # Errors
    /// If there is no block cache.
    pub fn cache(&self) -> Outcome<&CacheStats> {
        let none = || Failure::Work("the hierarchy has no block cache".into());
        self.cache.as_ref().ok_or_else(none)
    }

    /// Middle-tier statistics and current state.
    ///
    /// # Errors
    /// If there is no middle tier.
    pub fn middle(&self) -> Outcome<&MiddleStats> {
        let none = || Failure::Work("the hierarchy has no middle tier".into());
        self.middle.as_ref().ok_or_else(none)
    }
}

/// Runs experiments in parallel, grouped by common records.
///
/// # Errors
/// The first error of any experiment.
pub fn run_all(experiments: &[Experiment]) -> Outcome<Vec<Found>> {
    let loaded = Loaded::for_all(experiments.iter().map(Experiment::data));
    let mut order: Vec<usize> = (0..experiments.len()).collect();
    order.sort_by_key(|&at| experiments[at].data());
    let found = side_by_side(&order, |&at| {
        let experiment = &experiments[at];
        let found = experiment
            .begin_on(&loaded.image(experiment.data())?, |running| running.measure(experiment.operations));
        loaded.is_done(experiment.data());
        found
    })?;
    let mut found: Vec<(usize, Found)> = order.into_iter().zip(found).collect();
    found.sort_by_key(|(at, _)| *at);
    Ok(found.into_iter().map(|(_, found)| found).collect())
}

/// Applies `work` to each item with one thread per CPU. Results are independent of each other.
///
/// # Errors
/// The first error of any item.
pub fn side_by_side<T: Sync, R: Send + Sync>(
    items: &[T],
    work: impl Fn(&T) -> Outcome<R> + Sync,
) -> Outcome<Vec<R>> {
    let found: Vec<OnceLock<Outcome<R>>> = items.iter().map(|_| OnceLock::new()).collect();
    let next = AtomicUsize::new(0);
    let take = || {
        loop {
            // Relaxed: only the atomic increment matters.
            let at = next.fetch_add(1, Relaxed);
            let Some(item) = items.get(at) else { break };
            _ = found[at].set(work(item));
        }
    };
    let threads = available_parallelism().map_or(1, |count| count.get()).min(items.len());
    std::thread::scope(|scope| (0..threads).for_each(|_| _ = scope.spawn(take)));
    found.into_iter().map(|slot| slot.into_inner().expect("each of them was taken by somebody")).collect()
}

/// How a database ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// By a close, or by a kill.
    pub is_closed: bool,
    /// Whether its persistent middle tier is there afterwards.
    pub keeps_tier: bool,
}

/// An experiment after its load.
pub struct Running {
    db: Db,
    directory: MemoryDirectory,
    budget: u64,
    time: Arc<VirtualTime>,
    work: Box<dyn Work>,
}

impl Experiment {
    /// Loads, warms up and measures.
    pub fn run(&self) -> Outcome<Found> {
        self.begin(|running| running.measure(self.operations))
    }

    /// Loads, warms up and runs `body`.
    pub fn begin<T: Send>(&self, body: impl FnOnce(&mut Running) -> Outcome<T> + Send) -> Outcome<T> {
        self.begin_on(&self.data().load()?, body)
    }

    /// Its initial database.
    pub fn load(&self) -> Outcome<MemoryDirectory> {
        self.data().load()
    }

    /// Opens a copy of the loaded `image`, warms up and runs `body`.
    pub fn begin_on<T: Send>(
        &self,
        image: &MemoryDirectory,
        body: impl FnOnce(&mut Running) -> Outcome<T> + Send,
    ) -> Outcome<T> {
        on_new_thread(|| {
            let mut running = self.open(image)?;
            running.work.read_all()?;
            running.level_clocks();
            running.fill(self)?;
            running.go_on(self.warmup)?;
            body(&mut running)
        })
    }

    fn data(&self) -> Data {
        let (page_bytes, log_bytes) = (self.page_bytes, self.log.capacity_bytes);
        let versions = self.log.versions;
        if self.business.is_some() {
            return Data { page_bytes, log_bytes, business: self.business, versions, ..Data::default() };
        }
        let (records, value_bytes, fields) = (self.records, self.value_bytes, self.fields);
        let order = self.load_order;
        Data { page_bytes, log_bytes, business: None, records, order, value_bytes, fields, versions }
    }

    fn open(&self, image: &MemoryDirectory) -> Outcome<Running> {
        let time = Arc::new(VirtualTime::new(self.workers));
        time.enter(0);
        let (db, directory, budget) = self.open_with_frames(image, &time)?;
        Ok(Running { work: self.work(&db)?, directory, budget, db, time })
    }

    fn work(&self, db: &Db) -> Outcome<Box<dyn Work>> {
        Ok(match self.business {
            Some(scale) => {
                let (workers, seed) = (self.workers, self.seed);
                Box::new(Business::new(db, scale, workers, seed, self.operation_ns, self.log.versions)?)
            }
            None => {
                let levels = levels(self.records, self.page_bytes, self.value_bytes as u64);
                Box::new(Records {
                    table: db.open_table(TABLE)?,
                    records: self.records,
                    streams: self.streams(),
                    value_bytes: self.value_bytes,
                    fields: self.fields,
                    versions: match self.log.versions {
                        true => Some(Versions::open(db, self.records)?),
                        false => None,
                    },
                    nanoseconds: self.operation_ns + levels * PAGE_NS,
                    rewrites: false,
                    value: Vec::new(),
                })
            }
        })
    }

    /// The operation streams of the workers.
    pub fn streams(&self) -> Vec<Stream> {
        let workers = self.workers as u64;
        let stream =
            |worker| Stream::new(&self.mix, self.distribution, self.records, worker, workers, self.seed);
        (0..workers).map(stream).collect()
    }

    /// Opens a copy of `image` with charged files, and frames within 1 % of the request. Returns
    /// the copy and the budget too.
    pub fn open_with_frames(
        &self,
        image: &MemoryDirectory,
        time: &Arc<VirtualTime>,
    ) -> Outcome<(Db, MemoryDirectory, u64)> {
        let wanted = self.hierarchy.dram_bytes;
        let mut budget = wanted + BESIDE_BYTES;
        for _ in 0..OPENINGS_MAX {
            let directory = image.copy();
            let db = self.builder(Arc::new(directory.clone()), time, budget).open("")?;
            let stats = db.stats();
            let own = stats.frame_classes.iter().find(|class| class.page_bytes == self.page_bytes);
            let frames = own.map_or(0, |class| class.frames * class.page_bytes);
            if frames.abs_diff(wanted) <= wanted / 100 {
                return Ok((db, directory, budget));
            }
            budget = (budget + wanted).saturating_sub(frames);
        }
        Err(Failure::Work(format!("no budget gives {wanted} bytes of frames of {} bytes", self.page_bytes)))
    }

    /// Opens the database in `directory`, with charged files.
    pub fn builder(&self, directory: Arc<dyn Directory>, time: &Arc<VirtualTime>, budget: u64) -> Builder {
        let Hierarchy { middle, store, .. } = &self.hierarchy;
        let (pages, log, clock) = (store.clone(), self.log.device.clone(), Arc::clone(time));
        let directory = DecoratedDirectory::new(directory, move |file, device| {
            let profile = match file {
                PAGE_FILE => Some(&pages),
                LOG_FILE => log.as_ref(),
                _ => None,
            };
            let Some(profile) = profile else { return device };
            Arc::new(SimulatedDevice::new(device, profile.clone(), Time::Virtual(Arc::clone(&clock))))
        });
        let mut builder = Db::builder();
        builder = match middle {
            None => builder.no_middle(),
            Some((profile, bytes)) => {
                let middle = Middle::new(MiddleKind::Simulated(profile.clone()), *bytes);
                let builder = builder.middle(middle).lines(self.lines).mini_pages(self.mini_pages);
                builder.simulated_time(Time::Virtual(Arc::clone(time)))
            }
        };
        if let Some((profile, bytes)) = &self.log.memory {
            let memory = LogMemory::new(LogMemoryKind::Simulated(profile.clone()), Some(*bytes));
            builder = builder.log_memory(memory).simulated_time(Time::Virtual(Arc::clone(time)));
        }
        if let Some(cache) = &self.hierarchy.cache {
            builder = builder.cache(cache.clone()).simulated_time(Time::Virtual(Arc::clone(time)));
        }
        if self.replacement == Replacement::FifoPaper {
            // The CXL paper's buffer manager, with one copy of each page.
            builder = builder.backend(Backend::Mapped);
        }
        builder
            .migration(self.migration)
            .directory(Arc::new(directory))
            .dram(budget)
            .page_size(self.page_bytes)
            .page_size_max(self.page_bytes)
            .record_cache(RecordCache::Off)
            .replacement(self.replacement)
            .durability(self.log.durability)
            .mode(Mode::Inline)
            .seed(self.seed.max(1))
    }
}

/// `policy` with a middle tier that admits every page.
fn admitting(policy: Policy) -> Outcome<Policy> {
    Policy::new(policy.dr(), policy.dw(), 1.0, 1.0).map_err(Failure::Work)
}

impl Running {
    /// Aligns all clocks to the last worker's and returns it.
    pub fn level_clocks(&self) -> u64 {
        let last = self.time.elapsed_ns();
        for worker in 0..self.time.workers() {
            self.time.spend(worker, last - self.time.now(worker));
        }
        last
    }

    /// Fills the middle tier like Spitfire's authors: every page from the store is admitted, while
    /// promotion already follows the policy.
    fn fill(&mut self, experiment: &Experiment) -> Outcome {
        let choice = experiment.migration.choice();
        if choice == Choice::Adaptive {
            return Ok(());
        }
        let policy = choice.policy();
        if experiment.filling > 0 && experiment.hierarchy.middle.is_some() {
            self.db.set_policy(admitting(policy)?);
            self.go_on(experiment.filling)?;
            self.db.set_policy(policy);
        }
        Ok(())
    }

    /// Reads all data in order while every page is admitted to the middle tier, and warms up again.
    pub fn admit_all(&mut self, experiment: &Experiment) -> Outcome {
        self.db.set_policy(admitting(experiment.migration.choice().policy())?);
        self.work.read_all()?;
        self.level_clocks();
        self.fill(experiment)?;
        self.go_on(experiment.warmup)
    }

    /// From here on, updates of a field write the bytes of the load: they change a page only where
    /// the engine keeps its own data.
    ///
    /// # Errors
    /// If there are no records.
    pub fn rewrite(&mut self) -> Outcome {
        self.work.rewrite()
    }

    /// Reads `rows` records in order from key `number` on, each with `row_ns` of computation.
    ///
    /// # Errors
    /// If there are fewer.
    pub fn scan(&mut self, number: u64, rows: u64, row_ns: u64) -> Outcome {
        let worker = self.time.next();
        self.time.enter(worker);
        self.work.scan(worker, &self.time, number, rows, row_ns)
    }

    /// Uses `policy` from now on.
    pub fn set_policy(&self, policy: Policy) {
        self.db.set_policy(policy);
    }

    /// Shifts the workload to that of `experiment`, which has as many workers and records.
    pub fn shift(&mut self, experiment: &Experiment) -> Outcome {
        self.work = experiment.work(&self.db)?;
        Ok(())
    }

    /// Ends the database, and opens a copy of its files with the tiers of `experiment`. Returns the
    /// virtual nanoseconds until it is open.
    pub fn restart(&mut self, experiment: &Experiment, end: End) -> Outcome<u64> {
        if end.is_closed {
            self.db.clone().close()?;
        }
        let (db, directory, nanoseconds) = self.open_copy(experiment, end.keeps_tier)?;
        self.work.reopen(&db)?;
        // Only now do handles of a killed database write what it would have at a close.
        (self.db, self.directory) = (db, directory);
        Ok(nanoseconds)
    }

    /// Opens a copy of the files as they are, as after a kill. Returns the virtual nanoseconds that
    /// it takes, and statistics then.
    ///
    /// # Errors
    /// Those of an open.
    pub fn recover(&mut self, experiment: &Experiment, keeps_tier: bool) -> Outcome<(u64, Stats)> {
        let (db, _, nanoseconds) = self.open_copy(experiment, keeps_tier)?;
        Ok((nanoseconds, db.stats()))
    }

    fn open_copy(
        &mut self,
        experiment: &Experiment,
        keeps_tier: bool,
    ) -> Outcome<(Db, MemoryDirectory, u64)> {
        // It has no locks, and all stores so far.
        let directory = self.directory.copy();
        if !keeps_tier && directory.exists(MIDDLE_FILE).is_ok_and(|exists| exists) {
            directory.remove(MIDDLE_FILE).map_err(|error| Failure::Work(error.to_string()))?;
        }
        let began = self.level_clocks();
        self.time.enter(0);
        let db = experiment.builder(Arc::new(directory.clone()), &self.time, self.budget).open("")?;
        // Adoption computes as much for a frame as an access for a page.
        let persistent = db.stats().middle.and_then(|middle| middle.persistent);
        self.time.spend(0, persistent.map_or(0, |persistent| persistent.adopted) * PAGE_NS);
        let nanoseconds = self.level_clocks() - began;
        Ok((db, directory, nanoseconds))
    }

    /// The value of record `number`.
    pub fn value(&self, number: u64) -> Outcome<Option<Vec<u8>>> {
        Ok(self.db.open_table(TABLE)?.get(values::key(number))?)
    }

    /// Statistics since the database was opened.
    pub fn stats(&self) -> Stats {
        self.db.stats()
    }

    /// Writes to each line of the simulated middle tier since the database was opened; `None`
    /// without one.
    pub fn line_writes(&self) -> Option<LineWrites> {
        self.db.line_writes()
    }

    /// Runs `operations` and measures them.
    pub fn measure(&mut self, operations: u64) -> Outcome<Found> {
        let began = self.level_clocks();
        let before = self.db.stats();
        self.go_on(operations)?;
        let seconds = (self.time.elapsed_ns() - began).max(1) as f64 / 1e9;
        let after = self.db.stats();
        let middle = after.middle.as_ref().zip(before.middle.as_ref());
        let middle = middle.map(|(after, before)| after.since(before));
        let cache = after.cache.as_ref().zip(before.cache.as_ref());
        Ok(Found {
            store_written_bytes: after.written_bytes - before.written_bytes,
            cache: cache.map(|(after, before)| after.since(before)),
            ops_per_second: operations as f64 / seconds,
            misses: (after.faults - before.faults) as f64 / operations.max(1) as f64,
            middle,
        })
    }

    /// Runs `operations`.
    pub fn go_on(&mut self, operations: u64) -> Outcome {
        for _ in 0..operations {
            let worker = self.time.next();
            self.time.enter(worker);
            self.work.step(worker, &self.time)?;
        }
        Ok(())
    }
}
