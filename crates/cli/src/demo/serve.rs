//! The mixed workload of the demo: reads, updates, multi-key transactions and aborts.
//!
//! Requests follow Zipf's law. A thread reads all keys but writes only those with its ordinal
//! modulo the number of threads, which makes the ledger exact (see `ledger`). Every read value is
//! checked. A sink receives an announcement before and after each commit. The process to be killed
//! writes them to a pipe; other runs discard them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use terrace_common::failure::Outcome;
use terrace_common::latency::Latencies;
use terrace_common::store::{Access, Ending, Store};
use terrace_common::values::mix;
use terrace_common::zipf::{Scatter, Zipf};

use super::keys::Keys;
use super::ledger::Announcement;
use super::stamp;

/// Zipf exponent of the requests.
const THETA: f64 = 0.99;
/// Percent of reads.
const READ_PERCENT: u32 = 80;
/// Percent of transactions aborted on purpose.
const ABORT_PERCENT: u32 = 5;
/// Largest number of keys per transaction.
const KEYS_MAX: u64 = 4;
/// Interval between progress announcements of a thread.
const DONE_EVERY: Duration = Duration::from_millis(50);

/// Receives announcements; an error ends the thread.
pub type Sink<'a> = dyn Fn(&Announcement) -> Outcome + Sync + 'a;

/// Parameters of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Threads, at most one per key.
    pub threads: u64,
    /// Seed of all choices.
    pub seed: u64,
    /// Distinguishes the versions of this run from earlier runs.
    pub round: u64,
    /// Percent of reads; [`Plan::new`] sets the default.
    pub read_percent: u32,
}

impl Plan {
    /// A plan with the default mix.
    pub fn new(threads: u64, seed: u64, round: u64) -> Plan {
        Plan { threads, seed, round, read_percent: READ_PERCENT }
    }
}

/// Results of a run.
#[derive(Default)]
pub struct Served {
    /// Latencies of reads.
    pub reads: Latencies,
    /// Latencies of committed transactions.
    pub commits: Latencies,
    /// Correct values read.
    pub verified: u64,
    /// Wrong or missing values.
    pub wrong: u64,
}

/// Serves until `stop` is set and counts completed `operations`.
pub fn serve(
    store: &dyn Store,
    keys: &Keys,
    plan: &Plan,
    stop: &AtomicBool,
    sink: &Sink<'_>,
) -> Outcome<Served> {
    let threads = plan.threads.clamp(1, keys.len().max(1));
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                let worker = Worker {
                    store,
                    keys,
                    thread,
                    threads,
                    plan,
                    sink,
                    random: SmallRng::seed_from_u64(mix(
                        mix(plan.seed ^ plan.round << 32).wrapping_add(thread)
                    )),
                    zipf: Zipf::new(keys.len().max(1), THETA),
                    scatter: Scatter::new(keys.len().max(1)),
                    transactions: 0,
                    found: Served::default(),
                };
                scope.spawn(move || worker.work(stop))
            })
            .collect();
        let mut served = Served::default();
        for worker in workers {
            let found = worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            served.reads.add(&found.reads);
            served.commits.add(&found.commits);
            served.verified += found.verified;
            served.wrong += found.wrong;
        }
        Ok(served)
    })
}

struct Worker<'a> {
    store: &'a dyn Store,
    keys: &'a Keys,
    thread: u64,
    threads: u64,
    plan: &'a Plan,
    sink: &'a Sink<'a>,
    random: SmallRng,
    zipf: Zipf,
    scatter: Scatter,
    transactions: u64,
    found: Served,
}

impl Worker<'_> {
    fn work(mut self, stop: &AtomicBool) -> Outcome<Served> {
        if self.keys.len() == 0 {
            return Ok(self.found);
        }
        let mut operations = 0;
        let mut told = Instant::now();
        while !stop.load(Ordering::Relaxed) {
            match self.random.random_range(0..100) < self.plan.read_percent {
                true => self.read()?,
                false => self.write()?,
            }
            operations += 1;
            if told.elapsed() >= DONE_EVERY {
                told = Instant::now();
                (self.sink)(&Announcement::Done(self.thread, operations))?;
            }
        }
        (self.sink)(&Announcement::Done(self.thread, operations))?;
        Ok(self.found)
    }

    fn any(&mut self) -> u64 {
        self.scatter.spread(self.zipf.sample(&mut self.random))
    }

    /// An ordinal that this thread may write.
    fn own(&mut self) -> u64 {
        let any = self.any();
        let own = any - any % self.threads + self.thread;
        if own < self.keys.len() { own } else { self.thread }
    }

    fn read(&mut self) -> Outcome {
        let ordinal = self.any();
        let key = self.keys.get(ordinal);
        let began = Instant::now();
        let value = self.store.get(key)?;
        self.found.reads.record(began.elapsed());
        self.check(ordinal, value.is_some_and(|value| stamp::open(key, &value).is_some()))
    }

    fn check(&mut self, ordinal: u64, right: bool) -> Outcome {
        if right {
            self.found.verified += 1;
            return Ok(());
        }
        self.found.wrong += 1;
        (self.sink)(&Announcement::Wrong(self.thread, ordinal))
    }

    /// Writes a new version to one or more of this thread's records, or aborts doing so.
    fn write(&mut self) -> Outcome {
        self.transactions += 1;
        let version = self.plan.round << 40 | self.transactions;
        let count = if self.random.random_bool(0.5) { 1 } else { self.random.random_range(2..=KEYS_MAX) };
        let mut written: Vec<u64> = (0..count).map(|_| self.own()).collect();
        written.sort_unstable();
        written.dedup();
        let abort = self.random.random_range(0..100) < ABORT_PERCENT;
        (self.sink)(&match abort {
            // Announced without keys, so the audit objects if this version ever appears.
            true => Announcement::Doomed(self.thread),
            false => Announcement::Begin { thread: self.thread, version, keys: written.clone() },
        })?;
        let began = Instant::now();
        let mut broken = None;
        let (store, keys) = (self.store, self.keys);
        store.transact(&mut |transaction: &mut dyn Access| {
            broken = None;
            for ordinal in &written {
                let key = keys.get(*ordinal);
                let old = transaction.get(key)?.unwrap_or_default();
                match stamp::open(key, &old) {
                    Some((_, content)) => {
                        transaction.put(key, &stamp::stamp(key, version, &turned(content)))?
                    }
                    None => broken = Some(*ordinal),
                }
            }
            Ok(if abort || broken.is_some() { Ending::Abort } else { Ending::Commit })
        })?;
        if let Some(ordinal) = broken {
            self.check(ordinal, false)?;
        }
        match broken {
            _ if abort => Ok(()),
            Some(_) => (self.sink)(&Announcement::Abort(self.thread)),
            None => {
                self.found.commits.record(began.elapsed());
                (self.sink)(&Announcement::Commit(self.thread))
            }
        }
    }
}

/// Rotates the content by a byte: all of it changes and none is lost.
fn turned(content: &[u8]) -> Vec<u8> {
    let mut content = content.to_vec();
    if !content.is_empty() {
        content.rotate_left(1);
    }
    content
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use terrace_common::testing::MemoryStore;

    use super::super::ledger::Ledger;
    use super::*;

    fn loaded(records: u64) -> MemoryStore {
        let store = MemoryStore::default();
        for record in 0..records {
            let key = format!("dir/file{}#{record:06}", record / 7);
            store.put(key.as_bytes(), &stamp::stamp(key.as_bytes(), 0, &[record as u8; 50])).unwrap();
        }
        store
    }

    /// Serves up to `count` announcements and returns their ledger.
    fn served(
        store: &MemoryStore,
        keys: &Keys,
        ledger: Ledger,
        round: u64,
        count: usize,
    ) -> (Ledger, Served) {
        let ledger = Mutex::new((ledger, 0));
        let stop = AtomicBool::new(false);
        let served = serve(store, keys, &Plan::new(2, 1, round), &stop, &|announcement| {
            let mut ledger = ledger.lock().unwrap();
            ledger.0.line(format!("{announcement}\n").as_bytes()).unwrap();
            ledger.1 += 1;
            stop.store(ledger.1 >= count, Ordering::Relaxed);
            Ok(())
        });
        (ledger.into_inner().unwrap().0, served.unwrap())
    }

    #[test]
    fn the_account_agrees_with_the_store_round_after_round() {
        let store = loaded(101);
        let keys = Keys::of(&store).unwrap();
        assert_eq!(keys.len(), 101);
        let mut ledger = Ledger::default();
        for round in 1..4 {
            let (followed, served) = served(&store, &keys, ledger, round, 500);
            ledger = followed;
            assert_eq!((served.wrong, ledger.wrong), (0, 0));
            assert!(served.verified > 0 && served.commits.count() > 0);
            let audit = ledger.audit(&store, &keys).unwrap();
            assert_eq!((audit.faults, audit.records), (0, 101), "{:?}", audit.descriptions);
        }
        assert!(ledger.aborted > 0 && ledger.committed > 100 && ledger.operations() > 0);
    }

    #[test]
    fn an_engine_that_loses_a_write_is_found_out() {
        let store = loaded(50);
        let keys = Keys::of(&store).unwrap();
        let before = store.0.lock().unwrap().clone();
        let (mut ledger, _) = served(&store, &keys, Ledger::default(), 1, 300);
        let changed = {
            let mut map = store.0.lock().unwrap();
            let key = map.iter().find(|(key, value)| before[*key] != **value).unwrap().0.clone();
            map.insert(key.clone(), before[&key].clone());
            key
        };
        let audit = ledger.audit(&store, &keys).unwrap();
        assert_eq!(audit.faults, 1);
        assert!(audit.descriptions[0].starts_with(std::str::from_utf8(&changed).unwrap()));
    }

    #[test]
    fn a_broken_value_is_announced_and_an_empty_table_is_no_trouble() {
        let store = loaded(3);
        let keys = Keys::of(&store).unwrap();
        (0..3).for_each(|key| store.put(keys.get(key), b"broken").unwrap());
        let (ledger, found) = served(&store, &keys, Ledger::default(), 1, 50);
        assert!(ledger.wrong > 0 && found.wrong == ledger.wrong && ledger.committed == 0);
        let empty = MemoryStore::default();
        let keys = Keys::of(&empty).unwrap();
        let stop = AtomicBool::new(false);
        serve(&empty, &keys, &Plan::new(2, 1, 1), &stop, &|_| Ok(())).unwrap();
    }
}
