//! The frame of the crash tests: a cache runs and dies on one machine, again and again.
//!
//! All files are on one simulated disk, and a power cut keeps any part of the unsynced sectors. A
//! *cycle* is a run that ends at a random call, and a check on a copy, from which the next run goes
//! on.

use super::*;
use terrace_io::{CallKind, Clock, Directory, FaultPlan, OpenMode, SimulatedDisk};

pub(super) type Failure = String;

pub(super) struct Machine {
    pub random: Random,
    pub disk: SimulatedDisk,
    pub clock: Arc<VirtualClock>,
    /// The machine's power cycle, if given.
    pub power_cycle: Option<[u8; 16]>,
    pub ended: Option<String>,
}

impl Machine {
    pub fn new(seed: u64, blocks: u64) -> Self {
        let mut random = Random(seed);
        let disk = SimulatedDisk::new(seed);
        for name in ["slow", "fast", "guard"] {
            disk.open(name, OpenMode::CreateNew).unwrap();
        }
        let slow = disk.open("slow", OpenMode::Write).unwrap();
        slow.set_len(blocks * BLOCK as u64).unwrap();
        slow.sync().unwrap();
        disk.sync().unwrap();
        let power_cycle = (random.below(3) > 0).then_some([1; 16]);
        Self { random, disk, clock: Arc::default(), power_cycle, ended: None }
    }

    pub fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.random.below(choices.len() as u64) as usize]
    }

    /// Settings for `disk` or a copy, with small regions.
    pub fn config(&self, disk: &SimulatedDisk, capacity: u32, policy: &str) -> std::io::Result<CacheConfig> {
        let mut config = CacheConfig::new(capacity)
            .policy(policy)
            .unwrap()
            .power_cycle(self.power_cycle)
            .guard(disk.open("guard", OpenMode::Write)?)
            .clock(Arc::clone(&self.clock) as Arc<dyn Clock>);
        config.region_bytes = 2 * BLOCK as u64;
        Ok(config)
    }

    pub fn wait(&mut self) {
        let pause = std::time::Duration::from_millis(self.random.below(3000));
        self.clock.sleep_until(self.clock.now() + pause);
    }

    /// Plans a power cut within `calls` calls.
    pub fn end_within(&mut self, calls: u64) {
        self.disk.crash_at(self.disk.calls() + 1 + self.random.below(calls));
    }

    /// Plans a failure within `calls` calls of one kind, permanent once in `for_good`.
    pub fn fail_within(&mut self, calls: u64, for_good: u64) {
        let kind = self.one_of(&[CallKind::Read, CallKind::Write, CallKind::WriteThrough, CallKind::Sync]);
        let nth = 1 + self.random.below(calls);
        self.disk.fail(match self.random.below(for_good) {
            0 => FaultPlan::from_then_on(kind, nth, libc::EIO),
            _ => FaultPlan::once(kind, nth, libc::EIO),
        });
    }

    /// Ends the run by a kill or a power cut, and returns a copy of the result.
    pub fn next_life(&mut self, is_killed: bool) -> SimulatedDisk {
        self.ended = self.disk.crashed();
        self.disk = match is_killed {
            true => self.disk.killed(),
            false => {
                if let Some(cycle) = &mut self.power_cycle {
                    *cycle = u128::from_be_bytes(*cycle).wrapping_add(1).to_be_bytes();
                }
                self.disk.survivor(self.random.next())
            }
        };
        self.disk.killed()
    }
}

pub(super) fn copy_of_cache(disk: &SimulatedDisk) -> AlignedBuffer {
    let fast = disk.open("fast", OpenMode::Read).unwrap();
    read(&*fast, 0, fast.len() as usize)
}

pub(super) fn with_cache(disk: &SimulatedDisk, older: &[u8]) -> SimulatedDisk {
    let disk = disk.killed();
    let fast = disk.open("fast", OpenMode::Write).unwrap();
    fast.set_len(older.len() as u64).unwrap();
    fast.write_at(0, older).unwrap();
    disk
}

/// A series of runs.
pub(super) trait Lives {
    type Seen: Default;

    fn new(seed: u64) -> Self;

    fn machine(&self) -> &Machine;

    /// Details for the message of a failure.
    fn describe(&self) -> String;

    /// One run, its end, and a check of the result.
    fn cycle(&mut self, seen: &mut Self::Seen) -> Result<(), Failure>;
}

/// Ten runs per seed; returns the first failure.
pub(super) fn run<L: Lives>(seeds: std::ops::Range<u64>) -> Result<L::Seen, Failure> {
    let mut seen = L::Seen::default();
    for seed in seeds {
        let mut lives = L::new(seed);
        for life in 0..10 {
            lives.cycle(&mut seen).map_err(|what| {
                let (machine, more) = (lives.machine(), lives.describe());
                let (cycle, ended) = (machine.power_cycle, &machine.ended);
                format!("seed {seed}, life {life}: {what}; {more}, {cycle:?}, ended in {ended:?}")
            })?;
        }
    }
    Ok(seen)
}
