//! Write-back in several threads, ended by a crash: each sector has an allowed version.
//!
//! Three threads work until a power cut. Each write notes the events of its beginning and its
//! acknowledgement. A write *certainly* survives a power cut if it was acknowledged before a
//! successful sync began, and a kill if it was acknowledged. A sector may not have a version
//! acknowledged before a certain write of it began. The slow device alone must have the state of
//! some sync, with nothing begun after the next.
//!
//! A seed fixes each thread's choices only, so a failure may need several runs. Tests of single
//! interleavings are at the end.

use std::time::Duration;

use parking_lot::Mutex;

use super::lives::{Failure, Lives, Machine, run};
use super::races::Interposed;
use super::write_back::{content, versions_of};
use super::*;
use crate::planted::{CacheBug, plant};
use crate::policy::Relation;
use terrace_io::{Clock, Directory, OpenMode, SimulatedDisk};

const BLOCKS: u64 = 32;
const SECTOR: usize = 512;
const THREADS: u64 = 3;

#[derive(Clone, Copy, Debug)]
struct Written {
    version: u64,
    began: u64,
    acknowledged: Option<u64>,
}

#[derive(Default)]
struct Events {
    now: u64,
    sectors: Vec<Vec<Written>>,
    /// Beginning and end of each successful sync.
    syncs: Vec<(u64, u64)>,
    /// Beginning of the latest sync that was followed by a complete drain.
    drained: u64,
}

impl Events {
    fn new(versions: &[u64]) -> Self {
        let first = |&version: &u64| vec![Written { version, began: 0, acknowledged: Some(0) }];
        Self { now: 1, sectors: versions.iter().map(first).collect(), ..Self::default() }
    }

    fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    /// Whether a sector may have this version.
    ///
    /// Writes acknowledged before `certain` exist, and none begun after `last`.
    fn allows(&self, sector: usize, version: u64, certain: u64, last: u64) -> bool {
        let all = &self.sectors[sector];
        let is_certain = |write: &&Written| write.acknowledged.is_some_and(|time| time < certain);
        let base = all.iter().filter(is_certain).map(|write| write.began).max().unwrap_or(0);
        all.iter().any(|write| {
            write.version == version
                && write.began <= last
                && write.acknowledged.is_none_or(|acknowledged| acknowledged >= base)
        })
    }

    fn first_wrong(&self, versions: &[u64], certain: u64, last: u64) -> Option<usize> {
        (0..versions.len()).find(|&sector| !self.allows(sector, versions[sector], certain, last))
    }

    /// Writes acknowledged before this survive a power cut.
    fn certain(&self) -> u64 {
        self.syncs.iter().map(|&(began, _)| began).max().unwrap_or(1)
    }

    /// Whether this is the state of some sync, without writes begun after the next.
    fn is_prefix(&self, versions: &[u64]) -> bool {
        let mut begins: Vec<_> = self.syncs.iter().map(|&(began, _)| began).collect();
        begins.push(1);
        begins.iter().any(|&certain| {
            let next = self.syncs.iter().filter(|&&(began, _)| began > certain).map(|&(_, end)| end).min();
            self.first_wrong(versions, certain, next.unwrap_or(u64::MAX)).is_none()
        })
    }
}

struct Threads {
    machine: Machine,
    policy: &'static str,
}

#[derive(Default, Debug)]
struct Seen {
    writes: u64,
    syncs: u64,
    recovered: u64,
    written_back: u64,
    hits: u64,
}

struct Worker<'a> {
    number: u64,
    random: Random,
    cached: &'a Cached,
    machine: &'a Machine,
    events: &'a Mutex<Events>,
}

impl Worker<'_> {
    fn work(&mut self) -> Result<(), Failure> {
        for step in 0..60 {
            if self.machine.disk.crashed().is_some() {
                break;
            }
            self.step(step).map_err(|what| format!("thread {}, step {step}: {what}", self.number))?;
            let (clock, pause) = (&self.machine.clock, Duration::from_millis(self.random.below(1000)));
            clock.sleep_until(clock.now() + pause);
        }
        Ok(())
    }

    /// One of four blocks is shared.
    fn block(&mut self) -> u64 {
        let block = self.random.skewed(BLOCKS / 4) * 4;
        match self.random.below(3) {
            0 => block + 3,
            _ => block + self.number,
        }
    }

    fn write(&mut self, offset: u64, length: usize, step: u64) {
        let sectors = offset as usize / SECTOR..(offset as usize + length) / SECTOR;
        let mut events = self.events.lock();
        let began = events.tick();
        let version = began << 8 | self.number << 6 | step;
        let written = Written { version, began, acknowledged: None };
        events.sectors[sectors.clone()].iter_mut().for_each(|all| all.push(written));
        drop(events);
        if self.cached.write_at(offset, &content(length, version)).is_ok() {
            let mut events = self.events.lock();
            let acknowledged = Some(events.tick());
            let all = events.sectors[sectors].iter_mut().flatten();
            all.filter(|write| write.version == version).for_each(|write| write.acknowledged = acknowledged);
        }
    }

    fn sync(&mut self, and_drain: bool, sync: impl FnOnce() -> bool) {
        let began = self.events.lock().tick();
        if sync() {
            let mut events = self.events.lock();
            let end = events.tick();
            events.syncs.push((began, end));
            drop(events);
            if and_drain && self.cached.drain().is_ok() {
                let mut events = self.events.lock();
                events.drained = events.drained.max(began);
            }
        }
    }

    fn step(&mut self, step: u64) -> Result<(), Failure> {
        let offset = self.block() * BLOCK as u64;
        let cached = self.cached;
        match self.random.below(24) {
            0..=2 => self.sync(false, || cached.sync().is_ok()),
            3 => self.sync(true, || cached.sync().is_ok()),
            4 => self.sync(true, || cached.close().is_ok()),
            5 => cached.maintain(),
            6 => drop(cached.drain()),
            7 => cached.resize(9 + self.random.below(6) as u32).map_err(|error| error.to_string())?,
            8 => self.write(offset + 512, 1024, step),
            9..=17 => self.write(offset, BLOCK, step),
            _ => {
                let began = self.events.lock().tick();
                let mut bytes = filled(BLOCK, 0xee);
                if cached.read_at(offset, &mut bytes).is_err() {
                    return Ok(());
                }
                let events = self.events.lock();
                for (sector, bytes) in (offset as usize / SECTOR..).zip(bytes.chunks(SECTOR)) {
                    let version = u64::from_le_bytes(bytes[..8].try_into().unwrap());
                    if !events.allows(sector, version, began, u64::MAX) {
                        let all = &events.sectors[sector];
                        return Err(format!("sector {sector} is read as {version} after {began}: {all:?}"));
                    }
                }
            }
        }
        Ok(())
    }
}

impl Threads {
    fn open(&self, disk: &SimulatedDisk) -> Result<Cached, Failure> {
        let file = |name: &str| disk.open(name, OpenMode::Write).map_err(|error| error.to_string());
        let mut config = self
            .machine
            .config(disk, 14, self.policy)
            .map_err(|error| error.to_string())?
            .mode(WriteMode::Back);
        config.dirty_blocks_max = Some(8);
        let cached = Cached::open(file("slow")?, file("fast")?, config);
        cached.map_err(|error| format!("it cannot be opened: {error}"))
    }

    fn check(
        &self,
        disk: &SimulatedDisk,
        events: &Events,
        certain: u64,
        seen: &mut Seen,
    ) -> Result<(), Failure> {
        let slow = disk.open("slow", OpenMode::Write).unwrap();
        let alone = versions_of(&*slow, BLOCKS)?;
        if !events.is_prefix(&alone) {
            return Err("the slow device alone is not as it was between two syncs".to_owned());
        }
        if let Some(sector) = events.first_wrong(&alone, events.drained, u64::MAX) {
            return Err(format!("sector {sector} is not on the slow device though it was drained"));
        }
        let cached = self.open(disk)?;
        seen.recovered += cached.stats().recovered;
        for round in 0..2 {
            let versions = versions_of(&cached, BLOCKS)?;
            if let Some(sector) = events.first_wrong(&versions, certain, u64::MAX) {
                let (version, all) = (versions[sector], &events.sectors[sector]);
                return Err(format!(
                    "sector {sector} is of version {version} in round {round}, certain before {certain}: {all:?}"
                ));
            }
        }
        Ok(())
    }
}

impl Lives for Threads {
    type Seen = Seen;

    fn new(seed: u64) -> Self {
        let mut machine = Machine::new(seed, BLOCKS);
        let policy = machine.one_of(&["sieve", "lru", "w-tinylfu", "obp:1+lfru", "heuristicdb"]);
        Self { policy, machine }
    }

    fn machine(&self) -> &Machine {
        &self.machine
    }

    fn describe(&self) -> String {
        self.policy.to_owned()
    }

    fn cycle(&mut self, seen: &mut Seen) -> Result<(), Failure> {
        let cached = self.open(&self.machine.disk)?;
        let events = Mutex::new(Events::new(&versions_of(&cached, BLOCKS)?));
        self.machine.end_within(900);
        let seeds: Vec<_> = (0..THREADS).map(|_| self.machine.random.next()).collect();
        let machine = &self.machine;
        let outcome: Result<(), Failure> = std::thread::scope(|scope| {
            let start = |(number, seed): (u64, u64)| {
                let (cached, events) = (&cached, &events);
                scope.spawn(move || Worker { number, random: Random(seed), cached, machine, events }.work())
            };
            let workers: Vec<_> = (0..).zip(seeds).map(start).collect();
            workers.into_iter().try_for_each(|worker| worker.join().expect("a worker's end"))
        });
        outcome?;
        let (events, stats) = (events.into_inner(), cached.stats());
        seen.writes += events.sectors.iter().map(|all| all.len() as u64 - 1).sum::<u64>();
        seen.syncs += events.syncs.len() as u64;
        (seen.hits, seen.written_back) = (seen.hits + stats.hits, seen.written_back + stats.written_back);
        drop(cached);
        let is_killed = self.machine.random.below(3) == 0;
        let left = self.machine.next_life(is_killed);
        self.check(&left, &events, if is_killed { u64::MAX } else { events.certain() }, seen)
    }
}

#[test]
fn what_several_threads_wrote_back_outlives_a_crash() {
    let seeds = std::env::var("TERRACE_CACHE_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(25);
    let seen = run::<Threads>(0..seeds).unwrap();
    println!("{seen:?}");
    assert!(seen.writes > 20_000 && seen.syncs > 500, "{seen:?}");
    assert!(seen.recovered > 100 && seen.written_back > 500 && seen.hits > 1000, "{seen:?}");
}

/// An action of another thread before this one next writes the fast device.
struct Meanwhile {
    fast: Arc<Interposed>,
    slow: Arc<MemoryDevice>,
    guard: Arc<MemoryDevice>,
}

impl Meanwhile {
    fn new() -> Self {
        let memory = |name, bytes| Arc::new(MemoryDevice::new(name, bytes));
        Self {
            fast: Interposed::new(0),
            slow: memory("slow", BLOCKS * BLOCK as u64),
            guard: memory("guard", 0),
        }
    }

    fn open(&self) -> Arc<Cached> {
        self.open_in(WriteMode::Back)
    }

    fn open_in(&self, mode: WriteMode) -> Arc<Cached> {
        let config = timeless(8).mode(mode).guard(Arc::clone(&self.guard) as _);
        let config = config.relations(Arc::new(|block: u64| Some((Relation(0), block))));
        let config = config.power_cycle(Some([1; 16]));
        let cached = Cached::open(Arc::clone(&self.slow) as _, Arc::clone(&self.fast) as _, config);
        Arc::new(cached.unwrap())
    }

    /// Does `this`, with `other` inside it, to its end unless it waits for `this`.
    fn play(
        &self,
        cached: &Arc<Cached>,
        within: bool,
        other: impl FnOnce(&Cached) + Send + 'static,
        this: impl FnOnce(&Cached),
    ) {
        let started = Arc::new(Mutex::new(None));
        let (theirs, kept) = (Arc::clone(cached), Arc::clone(&started));
        self.fast.before_next_write(move || {
            let thread = std::thread::spawn(move || other(&theirs));
            match within {
                true => thread.join().unwrap(),
                false => *kept.lock() = Some(thread),
            }
        });
        this(cached);
        if let Some(thread) = started.lock().take() {
            thread.join().unwrap();
        }
    }
}

fn write(cached: &Cached, offset: u64, length: usize, version: u64) {
    cached.write_at(offset, &content(length, version)).unwrap();
}

/// Closes the cache while a block is being written; returns its byte after a kill.
fn closed_while_a_block_becomes_dirty(within: bool) -> u64 {
    let meanwhile = Meanwhile::new();
    let cached = meanwhile.open();
    // Flags the cache as dirty beforehand.
    write(&cached, 0, BLOCK, 1);
    let close = |cached: &Cached| cached.close().unwrap();
    meanwhile.play(&cached, within, close, |cached| write(cached, 0, BLOCK, 2));
    drop(cached);
    versions_of(&*meanwhile.open(), BLOCKS).unwrap()[0]
}

/// Makes a block dirty during a direct write of a part; returns the rest's byte.
fn dirty_while_a_part_is_written(within: bool) -> u64 {
    let meanwhile = Meanwhile::new();
    let cached = meanwhile.open();
    let other = |cached: &Cached| write(cached, 0, BLOCK, 1);
    meanwhile.play(&cached, within, other, |cached| write(cached, 512, 1024, 2));
    versions_of(&*cached, BLOCKS).unwrap()[0]
}

/// Turns write-back on during a direct write of a part; returns the rest's byte.
fn back_amid_a_write(within: bool, bug: Option<CacheBug>) -> u64 {
    let meanwhile = Meanwhile::new();
    let cached = meanwhile.open_in(WriteMode::Through);
    let other = move |cached: &Cached| {
        plant(bug);
        cached.write_mode(Relation(0), WriteMode::Back).unwrap();
        write(cached, 0, BLOCK, 1);
    };
    meanwhile.play(&cached, within, other, |cached| write(cached, 512, 1024, 2));
    versions_of(&*cached, BLOCKS).unwrap()[0]
}

#[test]
fn writing_back_begins_when_writes_without_it_have_ended() {
    assert_eq!(back_amid_a_write(false, None), 1);
}

#[test]
fn a_close_waits_for_blocks_that_become_dirty() {
    assert_eq!(closed_while_a_block_becomes_dirty(false), 2);
}

#[test]
fn a_block_does_not_become_dirty_while_a_part_of_it_is_written() {
    assert_eq!(dirty_while_a_part_is_written(false), 1);
}

mod planted_bugs {
    use super::*;

    #[test]
    fn catches_back_amid_writes() {
        let found = back_amid_a_write(true, Some(CacheBug::BackAmidWrites));
        assert_eq!(found, 0, "the rest of the block is lost");
    }

    #[test]
    fn catches_dirty_while_closed() {
        plant(Some(CacheBug::DirtyWhileClosed));
        let found = closed_while_a_block_becomes_dirty(true);
        plant(None);
        assert_eq!(found, 1, "the write is lost");
    }

    #[test]
    fn catches_dirty_while_written() {
        plant(Some(CacheBug::DirtyWhileWritten));
        let found = dirty_while_a_part_is_written(true);
        plant(None);
        assert_eq!(found, 0, "the rest of the block is lost");
    }
}
