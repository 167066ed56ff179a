//! Hierarchies of memory in virtual time: a workload over a database whose tiers are simulated, with figures that are the same on each
//! machine.
//!
//! One real thread drives a number of workers, always the one whose clock is behind ([`VirtualTime`]). The database runs without
//! threads of its own, so what it does for a worker, write-back included, that worker pays for, as in Spitfire, whose threads evict for
//! themselves. The page file is charged as its profile says, the middle tier as its own; DRAM is in the constants of computation. The
//! log is not charged: it is on a device of its own in the papers. Throughput is operations over the time from when all clocks
//! were set alike, after the warm-up, to the clock of the last worker.
//!
//! Records are loaded once for all experiments that have the same: each opens a copy of that database, and reads all of it in order
//! before anything else, as a load would go through the tiers.
//!
//! Capacities are those of frames alone, as the papers count; the rest of a budget is opened beside them. The record cache is off: no
//! paper has one, and it would do the work of the tiers between which they choose.

use std::collections::HashMap;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::available_parallelism;

use terrace::migration::{Choice, CleanVictims, Policy};
use terrace::{
    Builder, Cache, CacheStats, Db, Durability, MemoryDirectory, Middle, MiddleKind, MiddleStats, Mode,
    RecordCache, Replacement, Table,
};
use terrace_block::{DecoratedDirectory, PAGE_NS, Profile, SimulatedDevice, Time, VirtualTime};

use crate::failure::{Failure, Outcome};
use crate::workload::values;
use crate::workload::ycsb::{Distribution, Kind, Mix, Operation, Stream};

/// The file that is charged.
const PAGE_FILE: &str = "pages.terrace";
/// The table with the records.
const TABLE: &str = "records";
/// Bytes of a budget for which there is something left for frames, to begin with.
const BESIDE_BYTES: u64 = 8 << 20;
/// The budget of a load, which is a sweep.
const LOADING_BYTES: u64 = 16 << 20;
/// Times that a budget is opened to see how many frames it has.
const OPENINGS_MAX: u32 = 6;

/// What there is to keep pages in.
#[derive(Clone, Debug)]
pub struct Hierarchy {
    /// Bytes of frames in DRAM.
    pub dram_bytes: u64,
    /// What the middle tier is, and how many bytes of frames it has.
    pub middle: Option<(Profile, u64)>,
    /// What the page file is on.
    pub store: Profile,
    /// A block cache before that.
    pub cache: Option<Cache>,
}

impl Hierarchy {
    /// Frames of DRAM there are, of so many bytes.
    pub fn dram_frames(&self, page_bytes: u64) -> u64 {
        self.dram_bytes / page_bytes
    }
}

/// One run.
#[derive(Clone, Debug)]
pub struct Experiment {
    pub hierarchy: Hierarchy,
    pub policy: Choice,
    /// What is done with clean pages that leave DRAM; by default as the policy's paper has it.
    pub clean_victims: Option<CleanVictims>,
    /// Which pages leave a tier first.
    pub replacement: Replacement,
    pub page_bytes: u64,
    pub records: u64,
    pub value_bytes: usize,
    pub mix: Mix,
    pub distribution: Distribution,
    pub workers: usize,
    /// Nanoseconds that an operation computes beside its pages.
    pub operation_ns: u64,
    /// Operations under a policy that fills the middle tier, before those under the one that is measured.
    pub filling: u64,
    /// Operations before those that count.
    pub warmup: u64,
    pub operations: u64,
    pub seed: u64,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Found {
    /// In virtual time.
    pub ops_per_second: f64,
    /// Pages read from the store for each operation.
    pub misses: f64,
    /// Bytes written to the page file.
    pub store_written_bytes: u64,
    /// What the block cache counted meanwhile.
    cache: Option<CacheStats>,
    /// What the middle tier counted meanwhile, and what it has now.
    middle: Option<MiddleStats>,
}

impl Found {
    /// What the block cache counted meanwhile, and what it has now.
    ///
    /// # Errors
    /// There is none.
    pub fn cache(&self) -> Outcome<&CacheStats> {
        let none = || Failure::Work("the hierarchy has no block cache".into());
        self.cache.as_ref().ok_or_else(none)
    }

    /// What the middle tier counted meanwhile, and what it has now.
    ///
    /// # Errors
    /// There is none.
    pub fn middle(&self) -> Outcome<&MiddleStats> {
        let none = || Failure::Work("the hierarchy has no middle tier".into());
        self.middle.as_ref().ok_or_else(none)
    }
}

/// Runs experiments side by side, those with the same records one after the other.
///
/// # Errors
/// The first that one of them ended in.
pub fn run_all(experiments: &[Experiment]) -> Outcome<Vec<Found>> {
    let loaded = Loaded::for_all(experiments);
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

/// What `work` makes of each item, for as many at a time as there are processors: what comes of one depends on itself alone.
///
/// # Errors
/// The first that one of them ended in.
pub fn side_by_side<T: Sync, R: Send + Sync>(
    items: &[T],
    work: impl Fn(&T) -> Outcome<R> + Sync,
) -> Outcome<Vec<R>> {
    let found: Vec<OnceLock<Outcome<R>>> = items.iter().map(|_| OnceLock::new()).collect();
    let next = AtomicUsize::new(0);
    let take = || {
        loop {
            // Relaxed: which of them is taken is all that counts.
            let at = next.fetch_add(1, Relaxed);
            let Some(item) = items.get(at) else { break };
            _ = found[at].set(work(item));
        }
    };
    let threads = available_parallelism().map_or(1, |count| count.get()).min(items.len());
    std::thread::scope(|scope| (0..threads).for_each(|_| _ = scope.spawn(take)));
    found.into_iter().map(|place| place.into_inner().expect("each of them was taken by somebody")).collect()
}

/// What is in a database before an experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Data {
    page_bytes: u64,
    value_bytes: usize,
    records: u64,
}

impl Data {
    /// A directory with a database of it, which is closed.
    fn load(self) -> Outcome<MemoryDirectory> {
        let directory = MemoryDirectory::new();
        let db = Db::builder()
            .no_middle()
            .directory(Arc::new(directory.clone()))
            .dram(LOADING_BYTES)
            .page_size(self.page_bytes)
            .page_size_max(self.page_bytes)
            .record_cache(RecordCache::Off)
            .durability(Durability::Buffered)
            .mode(Mode::Inline)
            .seed(1)
            .open("")?;
        let table = db.create_table(TABLE)?;
        let mut value = Vec::new();
        for record in 0..self.records {
            let number = values::loaded(record);
            values::fill(number, 0, self.value_bytes, &mut value);
            table.put(values::key(number), &value)?;
        }
        drop(table);
        db.close()?;
        Ok(directory)
    }
}

/// Databases that several experiments begin with, each loaded when it is first wanted and gone when nobody will want it again.
struct Loaded(Mutex<Uses>);

/// By what is in them, how many will still want it.
type Uses = HashMap<Data, (usize, Arc<OnceLock<MemoryDirectory>>)>;

impl Loaded {
    fn for_all(experiments: &[Experiment]) -> Loaded {
        let mut uses = Uses::new();
        for experiment in experiments {
            uses.entry(experiment.data()).or_insert_with(|| (0, Arc::default())).0 += 1;
        }
        Loaded(Mutex::new(uses))
    }

    fn uses(&self) -> MutexGuard<'_, Uses> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A copy, of the caller's own.
    fn image(&self, data: Data) -> Outcome<MemoryDirectory> {
        let place = Arc::clone(&self.uses()[&data].1);
        if let Some(image) = place.get() {
            return Ok(image.copy());
        }
        // Two that come at once load twice, and the same.
        let image = data.load()?;
        Ok(place.get_or_init(|| image).copy())
    }

    fn is_done(&self, data: Data) {
        let mut uses = self.uses();
        let left = uses.get_mut(&data).map_or(0, |(left, _)| {
            *left -= 1;
            *left
        });
        if left == 0 {
            uses.remove(&data);
        }
    }
}

/// An experiment that has been loaded.
pub struct Running {
    db: Db,
    operation_ns: u64,
    table: Table,
    time: Arc<VirtualTime>,
    streams: Vec<Stream>,
    value_bytes: usize,
    levels: u64,
    value: Vec<u8>,
}

impl Experiment {
    /// Loads the records, warms up, and measures.
    pub fn run(&self) -> Outcome<Found> {
        self.begin(|running| running.measure(self.operations))
    }

    /// Loads the records, warms up, and goes on with `body`.
    pub fn begin<T: Send>(&self, body: impl FnOnce(&mut Running) -> Outcome<T> + Send) -> Outcome<T> {
        self.begin_on(&self.data().load()?, body)
    }

    /// Opens a copy of `image`, which has the records, warms up, and goes on with `body`: in a thread of its own, because the engine
    /// counts some things by thread, and what another database was doing must not show.
    fn begin_on<T: Send>(
        &self,
        image: &MemoryDirectory,
        body: impl FnOnce(&mut Running) -> Outcome<T> + Send,
    ) -> Outcome<T> {
        let run = || {
            let mut running = self.open(image)?;
            running.read_all(self.records)?;
            running.fill(self)?;
            running.go_on(self.warmup)?;
            body(&mut running)
        };
        std::thread::scope(|scope| scope.spawn(run).join().unwrap_or_else(|panic| resume_unwind(panic)))
    }

    fn data(&self) -> Data {
        Data { page_bytes: self.page_bytes, value_bytes: self.value_bytes, records: self.records }
    }

    fn open(&self, image: &MemoryDirectory) -> Outcome<Running> {
        let time = Arc::new(VirtualTime::new(self.workers));
        time.enter(0);
        let db = self.open_with_frames(image, &time)?;
        Ok(Running {
            operation_ns: self.operation_ns,
            levels: levels(self.records, self.page_bytes, self.value_bytes as u64),
            streams: self.streams(),
            value_bytes: self.value_bytes,
            table: db.open_table(TABLE)?,
            db,
            time,
            value: Vec::new(),
        })
    }

    /// What the workers do, one after the other.
    fn streams(&self) -> Vec<Stream> {
        let workers = self.workers as u64;
        let stream =
            |worker| Stream::new(&self.mix, self.distribution, self.records, worker, workers, self.seed);
        (0..workers).map(stream).collect()
    }

    /// A copy of `image`, its page file charged, with as many bytes of frames as were asked for, to a hundredth.
    fn open_with_frames(&self, image: &MemoryDirectory, time: &Arc<VirtualTime>) -> Outcome<Db> {
        let wanted = self.hierarchy.dram_bytes;
        let mut budget = wanted + BESIDE_BYTES;
        for _ in 0..OPENINGS_MAX {
            let db = self.builder(image.copy(), time, budget).open("")?;
            let stats = db.stats();
            let own = stats.frame_classes.iter().find(|class| class.page_bytes == self.page_bytes);
            let frames = own.map_or(0, |class| class.frames * class.page_bytes);
            if frames.abs_diff(wanted) <= wanted / 100 {
                return Ok(db);
            }
            budget = (budget + wanted).saturating_sub(frames);
        }
        Err(Failure::Work(format!("no budget has {wanted} bytes of frames of {} bytes", self.page_bytes)))
    }

    fn builder(&self, image: MemoryDirectory, time: &Arc<VirtualTime>, budget: u64) -> Builder {
        let Hierarchy { middle, store, .. } = &self.hierarchy;
        let (profile, clock) = (store.clone(), Arc::clone(time));
        let directory = DecoratedDirectory::new(Arc::new(image), move |file, device| match file {
            PAGE_FILE => {
                let time = Time::Virtual(Arc::clone(&clock));
                Arc::new(SimulatedDevice::new(device, profile.clone(), time))
            }
            _ => device,
        });
        let mut builder = Db::builder();
        builder = match middle {
            None => builder.no_middle(),
            Some((profile, bytes)) => {
                let middle = Middle::new(MiddleKind::Simulated(profile.clone()), *bytes);
                builder.middle(middle).simulated_time(Time::Virtual(Arc::clone(time))).policy(self.policy)
            }
        };
        if let Some(cache) = &self.hierarchy.cache {
            builder = builder.cache(cache.clone()).simulated_time(Time::Virtual(Arc::clone(time)));
        }
        if let Some(clean_victims) = self.clean_victims {
            builder = builder.clean_victims(clean_victims);
        }
        builder
            .directory(Arc::new(directory))
            .dram(budget)
            .page_size(self.page_bytes)
            .page_size_max(self.page_bytes)
            .record_cache(RecordCache::Off)
            .replacement(self.replacement)
            .durability(Durability::Buffered)
            .mode(Mode::Inline)
            .seed(self.seed.max(1))
    }
}

/// Levels of the tree, for what an operation computes: nodes hold some hundreds of keys each, the lowest as many records as fit.
fn levels(records: u64, page_bytes: u64, value_bytes: u64) -> u64 {
    let key_bytes = values::KEY_BYTES as u64;
    let (fan_out, per_leaf) = (page_bytes / (key_bytes + 16), page_bytes / (key_bytes + value_bytes + 16));
    let (mut levels, mut pages) = (1, records.div_ceil(per_leaf.max(1)));
    while pages > 1 {
        pages = pages.div_ceil(fan_out.max(2));
        levels += 1;
    }
    levels
}

impl Running {
    /// Reads all there is, in order, and says so if that is not `records`.
    fn read_all(&mut self, records: u64) -> Outcome {
        let mut found = 0;
        for entry in self.table.range(values::key(0)..) {
            entry?;
            found += 1;
        }
        self.level_clocks();
        match found == records {
            true => Ok(()),
            false => Err(Failure::Damaged(format!("{found} records were loaded of {records}"))),
        }
    }

    /// Sets all clocks to that of the last worker. Returns it.
    fn level_clocks(&self) -> u64 {
        let last = self.time.elapsed_ns();
        for worker in 0..self.time.workers() {
            self.time.spend(worker, last - self.time.now(worker));
        }
        last
    }

    /// Runs operations that fill the middle tier, as the authors of Spitfire do: every page that comes from the store goes there. How
    /// often pages go up to DRAM is as it will be.
    fn fill(&mut self, experiment: &Experiment) -> Outcome {
        if experiment.policy == Choice::Adaptive {
            return Ok(());
        }
        let policy = experiment.policy.policy();
        let filling = Policy::new(policy.dr(), policy.dw(), 1.0, 1.0).map_err(Failure::Work)?;
        if experiment.filling > 0 && experiment.hierarchy.middle.is_some() {
            self.db.set_policy(filling);
            self.go_on(experiment.filling)?;
            self.db.set_policy(policy);
        }
        Ok(())
    }

    /// The workload shifts: from now on the workers do what those of `experiment` would, which has as many, and as many records.
    pub fn shift(&mut self, experiment: &Experiment) {
        self.streams = experiment.streams();
    }

    /// Runs so many operations, and says how many a second that was.
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

    /// Runs so many operations.
    pub fn go_on(&mut self, operations: u64) -> Outcome {
        for _ in 0..operations {
            let worker = self.time.next();
            self.time.enter(worker);
            self.time.spend(worker, self.operation_ns + self.levels * PAGE_NS);
            let operation = self.streams[worker].next_operation();
            self.request(operation)?;
        }
        Ok(())
    }

    fn request(&mut self, operation: Operation) -> Outcome {
        let Operation { kind, number, version, scan_length } = operation;
        let key = values::key(number);
        let right = match kind {
            Kind::Read => self.is_right(number, self.table.get(key)?.as_deref()),
            Kind::Update | Kind::Insert => {
                self.write(key, number, version)?;
                true
            }
            Kind::ReadModifyWrite => {
                let right = self.is_right(number, self.table.get(key)?.as_deref());
                self.write(key, number, version)?;
                right
            }
            Kind::Scan => {
                let mut left = scan_length;
                for entry in self.table.range(key..) {
                    entry?;
                    left -= 1;
                    if left == 0 {
                        break;
                    }
                }
                left < scan_length
            }
        };
        match right {
            true => Ok(()),
            false => Err(Failure::Damaged(format!("the value of record {number} is wrong or missing"))),
        }
    }

    fn write(&mut self, key: [u8; values::KEY_BYTES], number: u64, version: u64) -> Outcome {
        values::fill(number, version, self.value_bytes, &mut self.value);
        Ok(self.table.put(key, &self.value)?)
    }

    fn is_right(&self, number: u64, value: Option<&[u8]>) -> bool {
        value.is_some_and(|value| values::check(number, self.value_bytes, value))
    }
}

#[cfg(test)]
mod tests {
    use terrace_block::OPERATION_NS;

    use super::*;

    fn experiment() -> Experiment {
        Experiment {
            hierarchy: Hierarchy {
                dram_bytes: 2 << 20,
                middle: None,
                cache: None,
                store: Profile::named("nvme-optane").unwrap(),
            },
            policy: Choice::Eager,
            clean_victims: None,
            replacement: Replacement::default(),
            page_bytes: 16 << 10,
            records: 8000,
            value_bytes: 1000,
            mix: "ba".parse().unwrap(),
            distribution: Distribution::Zipfian(0.3),
            workers: 2,
            operation_ns: OPERATION_NS,
            filling: 0,
            warmup: 4000,
            operations: 4000,
            seed: 5,
        }
    }

    #[test]
    fn a_run_gives_the_same_figures_again() {
        let runs: Vec<Found> = (0..2).map(|_| experiment().run().unwrap()).collect();
        assert_eq!(runs[0].ops_per_second, runs[1].ops_per_second);
        assert_eq!(runs[0].misses, runs[1].misses);
        assert!(runs[0].misses > 0.25, "the data do not fit");
    }

    /// Alone or beside others that begin with the same records, and write: what comes of one depends on itself.
    #[test]
    fn experiments_side_by_side_find_what_each_finds_alone() {
        let small = |mix: &str, records| Experiment {
            mix: mix.parse().unwrap(),
            records,
            warmup: 500,
            operations: 500,
            ..experiment()
        };
        let all = [small("ba", 3000), small("ro", 2000), small("wh", 3000), small("ro", 3000)];
        let together = run_all(&all).unwrap();
        for (experiment, together) in all.iter().zip(together) {
            let alone = experiment.run().unwrap();
            assert_eq!(alone.ops_per_second, together.ops_per_second, "{experiment:?}");
            assert_eq!(alone.misses, together.misses, "{experiment:?}");
        }
    }

    /// Some three in four reads miss, and a miss is a read of 16 KiB: 12 us and 7 at 2.4 GB/s.
    #[test]
    fn what_is_missed_is_paid_for() {
        let read_only = Experiment { mix: "ro".parse().unwrap(), workers: 1, ..experiment() };
        let found = read_only.run().unwrap();
        let misses = found.misses;
        let computed = (OPERATION_NS + levels(8000, 16 << 10, 1000) * PAGE_NS) as f64 * 1e-9;
        let expected = 1.0 / (computed + misses * (12e-6 + 16384.0 / 2.4e9));
        assert!((0.6..0.9).contains(&misses), "{misses}");
        let ratio = found.ops_per_second / expected;
        assert!((0.98..1.02).contains(&ratio), "{} of {expected}", found.ops_per_second);
    }

    /// As much DRAM as before, and four times as much between it and the store: DRAM is the faster, the store the slower tier.
    #[test]
    fn a_middle_tier_takes_reads_from_the_store_and_gives_the_same_figures_again() {
        let mut three = experiment();
        three.hierarchy.middle = Some((Profile::named("optane").unwrap(), 8 << 20));
        three.policy = Choice::Lazy;
        let (two, first, second) = (experiment().run().unwrap(), three.run().unwrap(), three.run().unwrap());
        assert_eq!(first.ops_per_second, second.ops_per_second);
        assert_eq!(first.middle, second.middle);
        let middle = first.middle().unwrap();
        assert!(first.misses < 0.5 * two.misses && first.ops_per_second > 1.5 * two.ops_per_second);
        assert!(middle.reads_in_place > 0 && middle.migrations.middle_to_dram > 0);
    }

    #[test]
    fn data_that_fit_cost_computation_alone() {
        let mut small = Experiment { mix: "ro".parse().unwrap(), records: 800, ..experiment() };
        small.hierarchy.dram_bytes = 4 << 20;
        let found = small.run().unwrap();
        assert_eq!(found.misses, 0.0);
        let each = 2e9 / (OPERATION_NS + levels(800, 16 << 10, 1000) * PAGE_NS) as f64;
        assert!((found.ops_per_second / each - 1.0).abs() < 0.01, "{}", found.ops_per_second);
    }
}
