//! Runs a workload on a store: loads records, starts threads, warms up, measures.
//!
//! Threads share only the phase, a word that rarely changes. Each has its own counter, which the
//! driver reads once per tick for the time series. The clock is read once per operation: one's end
//! is the next one's start. So generating a request counts towards its operation, as in any closed
//! loop.
//!
//! With a rate the loop is open, and latencies count from the scheduled time (`rate.rs`).
//!
//! Every value read is checked. Wrong or missing values are counted apart from failed operations:
//! they mean damage, a failure may be a full disk.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use terrace::LineWrites;
use terrace_common::failure::Outcome;
use terrace_common::interrupt;
use terrace_common::latency::Latencies;
use terrace_common::progress::Progress;
use terrace_common::store::{Access, Counters, Ending, Store};
use terrace_common::values;

use super::fields::{Fields, Touch};
use super::rate::Schedule;
use super::ycsb::{Distribution, Kind, Mix, Operation, Stream};

/// Parameters of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Kinds of operations.
    pub mix: Mix,
    /// Distribution of the requested records.
    pub distribution: Distribution,
    /// Records loaded.
    pub records: u64,
    /// Bytes per value.
    pub value_bytes: usize,
    /// Fields of each value, of as many bytes together.
    pub fields: Option<Fields>,
    /// How much of a value is touched.
    pub touch: Touch,
    /// Whether reads pass values to a closure instead of copying them to a vector.
    pub visit: bool,
    /// Client threads.
    pub threads: u64,
    /// Total requests per second; `None` means a closed loop.
    pub rate: Option<f64>,
    /// End of the measurement.
    pub length: Length,
    /// Duration of the warm-up.
    pub warmup: Duration,
    /// Seed of all choices.
    pub seed: u64,
    /// Width of a time-series step.
    pub tick: Duration,
}

/// End condition of a measurement.
#[derive(Clone, Copy, Debug)]
pub enum Length {
    /// After a time and a number of log wraps; at most [`TIMES_MAX`] times that time.
    Time {
        /// Minimum duration.
        least: Duration,
        /// Required number of log wraps.
        log_cycles: u32,
    },
    /// After this many operations in total.
    Operations(u64),
}

/// Result of a run.
#[derive(Debug, Default)]
pub struct Measured {
    /// Seconds measured.
    pub seconds: f64,
    /// Operations completed.
    pub operations: u64,
    /// Latencies of all operations.
    pub latencies: Latencies,
    /// Latencies by kind that occurred.
    pub by_kind: Vec<(Kind, Latencies)>,
    /// Failed operations.
    pub errors: u64,
    /// The first error's message.
    pub first_error: Option<String>,
    /// Correct values read.
    pub verified: u64,
    /// Wrong or missing values.
    pub wrong: u64,
    /// Transaction retries after conflicts.
    pub reruns: u64,
    /// Requests due but not made at the end.
    pub overdue: u64,
    /// Seconds since the start, and operations completed in the tick that ended then.
    pub over_time: Vec<(f64, u64)>,
    /// The engine's statistics for the measurement.
    pub counters: Counters,
    /// Line write counts of a simulated middle tier for the measurement.
    pub line_writes: Option<LineWrites>,
}

/// Limit on extending a measurement for log wraps, as a factor.
pub const TIMES_MAX: u32 = 10;

/// Failed operations after which a thread stops.
const ERRORS_MAX: u64 = 100;

/// Interval of looking for a signal.
const SIGNAL_WAIT: Duration = Duration::from_millis(100);

/// Batch size of the load, in value bytes.
const BATCH_BYTES: usize = 256 << 10;

/// Threads wait for the start.
const HOLD: u8 = 0;
/// Requests run, unmeasured.
const WARMUP: u8 = 1;
/// Requests are measured.
const MEASURE: u8 = 2;
/// Threads end.
const STOP: u8 = 3;

/// Loads the records in key order; returns the duration.
pub fn load(store: &dyn Store, plan: &Plan) -> Outcome<Duration> {
    let began = Instant::now();
    let progress = Progress::new("load", "records", plan.records);
    let batch_records = (BATCH_BYTES / (plan.value_bytes + values::KEY_BYTES)).clamp(1, 1000) as u64;
    let mut content = Content::of(plan);
    let mut batch: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    let mut first = 0;
    while first < plan.records {
        let end = plan.records.min(first + batch_records);
        batch.resize_with((end - first) as usize, Default::default);
        for (record, (key, value)) in (first..end).zip(&mut batch) {
            let number = values::loaded(record);
            key.clear();
            key.extend_from_slice(&values::key(number));
            content.fill(number, 0, value);
        }
        interrupt::check()?;
        store.write(&batch)?;
        progress.set(end);
        first = end;
    }
    Ok(began.elapsed())
}

/// Runs the workload over a loaded store; calls `began` after the warm-up.
pub fn run(store: &dyn Store, plan: &Plan, began: &mut dyn FnMut()) -> Outcome<Measured> {
    let phase = AtomicU8::new(HOLD);
    let running = AtomicUsize::new(plan.threads as usize);
    let counts: Vec<Count> = (0..plan.threads).map(|_| Count::default()).collect();
    thread::scope(|scope| {
        let conductor = thread::current();
        let workers: Vec<_> = (0..plan.threads)
            .map(|thread| {
                let worker = Worker::new(store, plan, thread, &phase, &counts[thread as usize].0);
                let (running, conductor) = (&running, conductor.clone());
                scope.spawn(move || {
                    // Decremented even by a panic, or the conductor would wait forever.
                    let _leaving = Leaving(running, conductor);
                    worker.work()
                })
            })
            .collect();
        let mut measured = conduct(store, plan, &phase, &running, &counts, began);
        for worker in workers {
            match worker.join() {
                Ok(found) => measured.take_in(found),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        interrupt::check().map(|()| measured)
    })
}

/// A thread's operation count on its own cache line.
#[derive(Default)]
#[repr(align(128))]
struct Count(AtomicU64);

/// Tells the conductor that a worker has ended.
struct Leaving<'a>(&'a AtomicUsize, thread::Thread);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
        self.1.unpark();
    }
}

/// Advances the phases and takes the time series.
fn conduct(
    store: &dyn Store,
    plan: &Plan,
    phase: &AtomicU8,
    running: &AtomicUsize,
    counts: &[Count],
    announce: &mut dyn FnMut(),
) -> Measured {
    let total = || counts.iter().map(|count| count.0.load(Ordering::Relaxed)).sum::<u64>();
    let finished = || running.load(Ordering::SeqCst) == 0 || interrupt::check().is_err();
    let sleep_until = |end: Instant| {
        while !finished() && Instant::now() < end {
            thread::park_timeout(end.saturating_duration_since(Instant::now()).min(SIGNAL_WAIT));
        }
    };
    if !plan.warmup.is_zero() {
        phase.store(WARMUP, Ordering::SeqCst);
        sleep_until(Instant::now() + plan.warmup);
    }

    // Slower one first: neither counts operations during these calls.
    let writes_before = store.line_writes();
    let before = store.counters();
    announce();
    let (progress, end) = match plan.length {
        Length::Time { least, .. } => (Progress::time("run", least), Some(least)),
        Length::Operations(operations) => (Progress::new("run", "operations", operations), None),
    };
    let began = Instant::now();
    phase.store(MEASURE, Ordering::SeqCst);
    let mut measured = Measured::default();
    let mut done = 0;
    loop {
        let ticks = began.elapsed().as_nanos() / plan.tick.as_nanos();
        let tick = plan.tick * (ticks as u32 + 1);
        sleep_until(began + end.filter(|end| began.elapsed() < *end).map_or(tick, |end| tick.min(end)));
        let elapsed = began.elapsed();
        let now = total();
        measured.over_time.push((elapsed.as_secs_f64(), now - done));
        done = now;
        progress.set(if end.is_some() { elapsed.as_millis() as u64 } else { now });
        let cycles = || {
            let position = store.counters().since(&before).log_position;
            position.map_or(f64::INFINITY, |position| position.cycles())
        };
        let is_over = match plan.length {
            Length::Time { least, log_cycles } => {
                elapsed >= least && (elapsed >= least * TIMES_MAX || cycles() >= f64::from(log_cycles))
            }
            Length::Operations(_) => false,
        };
        if finished() || is_over {
            break;
        }
    }
    phase.store(STOP, Ordering::SeqCst);
    measured.seconds = began.elapsed().as_secs_f64();
    measured.counters = store.counters().since(&before);
    measured.line_writes =
        store.line_writes().zip(writes_before).map(|(writes, before)| writes.since(&before));
    measured
}

impl Measured {
    /// Operations in the slowest whole tick relative to the median tick.
    pub fn slowest_tick(&self, tick: Duration) -> Option<f64> {
        let begins = std::iter::once(0.0).chain(self.over_time.iter().map(|tick| tick.0));
        let ticks = begins.zip(&self.over_time).map(|(begin, &(end, count))| (end - begin, count as f64));
        let whole = ticks.filter(|(seconds, _)| *seconds > tick.as_secs_f64() * 0.9);
        let mut rates: Vec<f64> = whole.map(|(seconds, count)| count / seconds).collect();
        rates.sort_by(f64::total_cmp);
        let median = *rates.get(rates.len() / 2)?;
        (median > 0.0).then(|| rates[0] / median)
    }

    fn take_in(&mut self, found: Measured) {
        self.operations += found.operations;
        self.errors += found.errors;
        self.verified += found.verified;
        self.wrong += found.wrong;
        self.reruns += found.reruns;
        self.overdue += found.overdue;
        self.first_error = self.first_error.take().or(found.first_error);
        for (kind, latencies) in found.by_kind {
            self.latencies.add(&latencies);
            match self.by_kind.iter_mut().find(|(known, _)| *known == kind) {
                Some((_, sum)) => sum.add(&latencies),
                None => self.by_kind.push((kind, latencies)),
            }
        }
        self.by_kind.sort_by_key(|(kind, _)| *kind);
    }
}

/// What values hold.
struct Content {
    value_bytes: usize,
    fields: Option<Fields>,
    /// Scratch memory.
    one: Vec<u8>,
}

impl Content {
    fn of(plan: &Plan) -> Content {
        Content { value_bytes: plan.value_bytes, fields: plan.fields, one: Vec::new() }
    }

    #[inline]
    fn fill(&mut self, number: u64, version: u64, value: &mut Vec<u8>) {
        match self.fields {
            None => values::fill(number, version, self.value_bytes, value),
            Some(fields) => fields.fill(number, version, &mut self.one, value),
        }
    }

    #[inline]
    fn check(&self, number: u64, value: &[u8]) -> bool {
        match self.fields {
            None => values::check(number, self.value_bytes, value),
            Some(fields) => fields.check(number, value),
        }
    }
}

/// The state of one thread.
struct Worker<'a> {
    store: &'a dyn Store,
    stream: Stream,
    schedule: Option<Schedule>,
    content: Content,
    /// The fields, if one is touched.
    one_of: Option<Fields>,
    visit: bool,
    quota: u64,
    phase: &'a AtomicU8,
    count: &'a AtomicU64,
    value: Vec<u8>,
    found: Measured,
}

impl<'a> Worker<'a> {
    fn new(
        store: &'a dyn Store,
        plan: &Plan,
        thread: u64,
        phase: &'a AtomicU8,
        count: &'a AtomicU64,
    ) -> Worker<'a> {
        let quota = match plan.length {
            Length::Time { .. } => u64::MAX,
            Length::Operations(all) => all / plan.threads + u64::from(thread < all % plan.threads),
        };
        Worker {
            store,
            stream: Stream::new(&plan.mix, plan.distribution, plan.records, thread, plan.threads, plan.seed),
            schedule: plan.rate.map(|rate| Schedule::new(rate, thread, plan.threads)),
            content: Content::of(plan),
            one_of: plan.fields.filter(|_| plan.touch == Touch::One),
            visit: plan.visit,
            quota,
            phase,
            count,
            value: Vec::new(),
            found: Measured::default(),
        }
    }

    fn work(mut self) -> Measured {
        while self.phase.load(Ordering::Relaxed) == HOLD {
            thread::yield_now();
        }
        self.restart();
        while let Some(_due) = self.next_due(WARMUP) {
            let operation = self.stream.next_operation();
            if self.request(operation).is_err() {
                break;
            }
        }
        // Errors of the warm-up stay counted.
        let (wrong, errors) = (self.found.wrong, self.found.errors);
        self.found = Measured { wrong, errors, ..Measured::default() };
        let mut latencies: [Option<Latencies>; Kind::ALL.len()] = Default::default();
        let mut last = self.restart();
        while self.found.operations < self.quota
            && let Some(due) = self.next_due(MEASURE)
        {
            let began = due.unwrap_or(last);
            let operation = self.stream.next_operation();
            let outcome = self.request(operation);
            let ended = Instant::now();
            match outcome {
                Ok(()) => {
                    latencies[operation.kind as usize].get_or_insert_default().record(ended - began);
                    self.found.operations += 1;
                    self.count.store(self.found.operations, Ordering::Relaxed);
                }
                Err(error) => {
                    self.found.errors += 1;
                    self.found.first_error.get_or_insert_with(|| error.to_string());
                    if self.found.errors >= ERRORS_MAX {
                        break;
                    }
                }
            }
            last = ended;
        }
        if let Some(schedule) = &self.schedule
            && self.found.operations < self.quota
        {
            self.found.overdue = schedule.overdue(last);
        }
        self.found.by_kind =
            Kind::ALL.into_iter().zip(latencies).filter_map(|(kind, found)| Some((kind, found?))).collect();
        self.found
    }

    /// Starts a phase; drops requests due before it.
    fn restart(&mut self) -> Instant {
        let now = Instant::now();
        if let Some(schedule) = &mut self.schedule {
            schedule.restart(now);
        }
        now
    }

    /// Waits for the next request. Returns its scheduled time if there is a rate, and `None` when
    /// `phase` is over.
    #[inline]
    fn next_due(&mut self, phase: u8) -> Option<Option<Instant>> {
        let is_over = || self.phase.load(Ordering::Relaxed) != phase;
        match &mut self.schedule {
            None => (!is_over()).then_some(None),
            Some(schedule) => schedule.wait(is_over).map(Some),
        }
    }

    #[inline]
    fn request(&mut self, operation: Operation) -> Outcome {
        let key = values::key(operation.number);
        if let (Some(fields), Kind::Read | Kind::Update) = (self.one_of, operation.kind) {
            return self.touch_one(&key, operation, fields);
        }
        match operation.kind {
            Kind::Read if self.visit => {
                let (content, mut is_right) = (&self.content, false);
                let mut read = |value: &[u8]| is_right = content.check(operation.number, value);
                self.store.get_with(&key, &mut read)?;
                self.count_checked(is_right);
            }
            Kind::Read => {
                let value = self.store.get(&key)?;
                self.check(operation.number, value.as_deref());
            }
            Kind::Update | Kind::Insert => {
                self.content.fill(operation.number, operation.version, &mut self.value);
                self.store.put(&key, &self.value)?;
            }
            Kind::ReadModifyWrite => self.read_modify_write(&key, operation)?,
            Kind::Scan => self.scan(&key, operation)?,
        }
        Ok(())
    }

    /// Reads or updates one field of a value.
    fn touch_one(&mut self, key: &[u8], operation: Operation, fields: Fields) -> Outcome {
        let Operation { number, version, .. } = operation;
        let field = fields.pick(version);
        let range = fields.range(field);
        if operation.kind == Kind::Read {
            let content = self.store.get_range(key, range)?;
            self.count_checked(content.is_some_and(|content| fields.check_one(number, field, &content)));
        } else {
            fields.fill_one(number, field, version, &mut self.value);
            if !self.store.update_range(key, range.start, &self.value)? {
                self.found.wrong += 1;
            }
        }
        Ok(())
    }

    fn read_modify_write(&mut self, key: &[u8], operation: Operation) -> Outcome {
        self.content.fill(operation.number, operation.version, &mut self.value);
        let (store, next) = (self.store, &self.value);
        let mut old = None;
        self.found.reruns += store.transact(&mut |transaction: &mut dyn Access| {
            old = transaction.get(key)?;
            transaction.put(key, next)?;
            Ok(Ending::Commit)
        })?;
        self.check(operation.number, old.as_deref());
        Ok(())
    }

    fn scan(&mut self, from: &[u8], operation: Operation) -> Outcome {
        let (content, mut seen, mut right, mut last) = (&self.content, 0u64, 0u64, None);
        self.store.scan_some(from, operation.scan_length, &mut |key, value| {
            let number = values::number(key);
            let in_order = last < number;
            last = number;
            seen += 1;
            right += u64::from(in_order && number.is_some_and(|number| content.check(number, value)));
            if seen < operation.scan_length { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        self.found.verified += right;
        // The first record was loaded, so an empty scan is wrong too.
        self.found.wrong += (seen - right).max(u64::from(seen == 0));
        Ok(())
    }

    fn check(&mut self, number: u64, value: Option<&[u8]>) {
        self.count_checked(value.is_some_and(|value| self.content.check(number, value)));
    }

    fn count_checked(&mut self, is_right: bool) {
        match is_right {
            true => self.found.verified += 1,
            false => self.found.wrong += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use terrace_common::testing::MemoryStore;

    use super::*;

    fn plan(mix: &str, length: Length) -> Plan {
        Plan {
            mix: mix.parse().unwrap(),
            distribution: Distribution::Zipfian(0.99),
            records: 500,
            value_bytes: 40,
            fields: None,
            touch: Touch::All,
            visit: false,
            threads: 2,
            rate: None,
            length,
            warmup: Duration::ZERO,
            seed: 1,
            tick: Duration::from_millis(20),
        }
    }

    #[test]
    fn every_mix_completes_its_operations_and_verifies() {
        for mix in [
            "a",
            "b",
            "c",
            "d",
            "e",
            "f",
            "ro",
            "ba",
            "wh",
            "rw:30",
            "scan",
            "cxl-update",
            "cxl-read",
            "cxl-scan",
        ] {
            let store = MemoryStore::default();
            let plan = plan(mix, Length::Operations(1001));
            load(&store, &plan).unwrap();
            assert_eq!(store.0.lock().unwrap().len(), 500);
            let measured = run(&store, &plan, &mut || ()).unwrap();
            assert_eq!((measured.operations, measured.errors, measured.wrong), (1001, 0, 0), "{mix}");
            assert_eq!(measured.latencies.count(), 1001);
            assert_eq!(measured.over_time.iter().map(|(_, count)| count).sum::<u64>(), 1001);
            assert!(measured.verified > 0 && measured.seconds > 0.0);
        }
    }

    /// A field written for another, or a value that lost its other fields, would be found.
    #[test]
    fn one_field_is_read_and_written_and_the_others_stay() {
        for mix in ["a", "d", "e", "f"] {
            let store = MemoryStore::default();
            let fields: Fields = "5x20".parse().unwrap();
            let plan = plan(mix, Length::Operations(3000));
            let plan = Plan { value_bytes: 100, fields: Some(fields), touch: Touch::One, ..plan };
            load(&store, &plan).unwrap();
            let before = store.0.lock().unwrap().clone();
            let measured = run(&store, &plan, &mut || ()).unwrap();
            assert_eq!((measured.operations, measured.errors, measured.wrong), (3000, 0, 0), "{mix}");
            let map = store.0.lock().unwrap();
            assert!(
                map.iter().all(|(key, value)| fields.check(values::number(key).unwrap(), value)),
                "{mix}"
            );
            let changed = |field: usize, key: &Vec<u8>| {
                map[key][fields.range(field)] != before[key][fields.range(field)]
            };
            let mut counts = before.keys().map(|key| (0..5).filter(|&field| changed(field, key)).count());
            assert_eq!(counts.any(|count| (1..5).contains(&count)), mix == "a", "{mix}");
        }
        let (store, plan) = (MemoryStore::default(), plan("a", Length::Operations(500)));
        let plan = Plan { fields: Some("2x20".parse().unwrap()), touch: Touch::One, ..plan };
        load(&store, &plan).unwrap();
        store.0.lock().unwrap().values_mut().for_each(|value| value.truncate(20));
        assert!(run(&store, &plan, &mut || ()).unwrap().wrong > 150, "values that are too short");
    }

    #[test]
    fn time_ends_a_run_after_its_warmup() {
        let store = MemoryStore::default();
        let plan = Plan {
            warmup: Duration::from_millis(30),
            // Long enough for an operation on a busy machine.
            ..plan("a", Length::Time { least: Duration::from_millis(500), log_cycles: 0 })
        };
        load(&store, &plan).unwrap();
        let measured = run(&store, &plan, &mut || ()).unwrap();
        // A busy machine may be late, never early.
        assert!(measured.seconds >= 0.5, "{}", measured.seconds);
        assert!(!measured.over_time.is_empty() && measured.operations > 0);
    }

    #[test]
    fn a_rate_sets_the_pace_and_what_is_late_is_told() {
        let store = MemoryStore::default();
        let length = Length::Operations(60);
        let plan = Plan { rate: Some(1000.0), ..plan("a", length) };
        load(&store, &plan).unwrap();
        let measured = run(&store, &plan, &mut || ()).unwrap();
        // The last of 60 is due after 59 ms, never earlier.
        assert!(measured.seconds >= 0.058 && measured.operations == 60, "{}", measured.seconds);
        let length = Length::Time { least: Duration::from_millis(500), log_cycles: 0 };
        let measured = run(&store, &Plan { rate: Some(1e9), length, ..plan }, &mut || ()).unwrap();
        assert!(measured.overdue > 1000 && measured.operations > 0);
        // They queue: late requests waited most of the time, though each answer was quick.
        assert!(measured.latencies.summary().p50 > 1000.0, "{:?}", measured.latencies.summary());
    }

    #[test]
    fn the_slowest_whole_tick_is_compared_with_the_median_one() {
        let of = |over_time: &[(f64, u64)]| {
            let measured = Measured { over_time: over_time.to_vec(), ..Measured::default() };
            measured.slowest_tick(Duration::from_secs(1))
        };
        assert_eq!(of(&[(1.0, 100), (2.0, 60), (3.0, 120), (3.1, 1)]), Some(0.6));
        // The same number in twice the time is half the rate.
        assert_eq!(of(&[(1.0, 100), (3.0, 100), (4.0, 100)]), Some(0.5));
        assert_eq!(of(&[(0.5, 9)]), None);
        assert_eq!(of(&[(1.0, 0)]), None);
    }

    #[test]
    fn wrong_and_missing_values_are_found() {
        let store = MemoryStore::default();
        let plan = plan("c", Length::Operations(2000));
        load(&store, &plan).unwrap();
        for (at, value) in store.0.lock().unwrap().values_mut().enumerate() {
            if at % 2 == 0 {
                value[20] ^= 1;
            }
        }
        for visit in [false, true] {
            let measured = run(&store, &Plan { visit, ..plan.clone() }, &mut || ()).unwrap();
            assert!(measured.wrong > 100 && measured.verified > 100);
        }
        store.0.lock().unwrap().clear();
        for visit in [false, true] {
            assert_eq!(run(&store, &Plan { visit, ..plan.clone() }, &mut || ()).unwrap().wrong, 2000);
        }
    }
}
