//! The frame of the crash tests: a machine with one disk for the slow device, the cache and the guard, on which a cache lives and dies, again
//! and again.
//!
//! All files lie on one simulated disk, so that its calls are counted together; a power cut takes any part of the unsynced sectors of
//! each. A *cycle* is a life that ends at a call drawn by chance, and a look at what is left, on a copy; the next life goes on from there.

use super::*;
use crate::{CallKind, Clock, Directory, FaultPlan, OpenMode, SimulatedDisk};

/// What went wrong.
pub(super) type Failure = String;

pub(super) struct Machine {
    pub random: Random,
    pub disk: SimulatedDisk,
    pub clock: Arc<VirtualClock>,
    /// The machine's life; none where it is not told.
    pub power_cycle: Option<[u8; 16]>,
    /// The call at which the latest life ended.
    pub ended: Option<String>,
}

impl Machine {
    /// With a slow device of `blocks` blocks.
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

    /// One of these, by chance.
    pub fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.random.below(choices.len() as u64) as usize]
    }

    /// A cache on `disk`, which may be a copy, with small regions.
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

    /// Up to three seconds go by.
    pub fn wait(&mut self) {
        let pause = std::time::Duration::from_millis(self.random.below(3000));
        self.clock.sleep_until(self.clock.now() + pause);
    }

    /// The power goes within so many calls.
    pub fn end_within(&mut self, calls: u64) {
        self.disk.crash_at(self.disk.calls() + 1 + self.random.below(calls));
    }

    /// One kind of call fails within the first `calls` of it, and one time in `for_good` from then on.
    pub fn fail_within(&mut self, calls: u64, for_good: u64) {
        let kind = self.one_of(&[CallKind::Read, CallKind::Write, CallKind::WriteThrough, CallKind::Sync]);
        let nth = 1 + self.random.below(calls);
        self.disk.fail(match self.random.below(for_good) {
            0 => FaultPlan::from_then_on(kind, nth, libc::EIO),
            _ => FaultPlan::once(kind, nth, libc::EIO),
        });
    }

    /// The life is over: by a kill, which is as if only the process died, or by a power cut. The next goes on with what is left, of which
    /// this gives a copy to look at.
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

/// What is in the cache's file.
pub(super) fn copy_of_cache(disk: &SimulatedDisk) -> AlignedBuffer {
    let fast = disk.open("fast", OpenMode::Read).unwrap();
    read(&*fast, 0, fast.len() as usize)
}

/// A disk on which the cache's file is an older one.
pub(super) fn with_cache(disk: &SimulatedDisk, older: &[u8]) -> SimulatedDisk {
    let disk = disk.killed();
    let fast = disk.open("fast", OpenMode::Write).unwrap();
    fast.set_len(older.len() as u64).unwrap();
    fast.write_at(0, older).unwrap();
    disk
}

/// What a series of lives is.
pub(super) trait Lives {
    /// What it has seen.
    type Seen: Default;

    fn new(seed: u64) -> Self;

    fn machine(&self) -> &Machine;

    /// What else there is to say where a life has failed.
    fn describe(&self) -> String;

    /// One life, its end, and a look at what is left.
    fn cycle(&mut self, seen: &mut Self::Seen) -> Result<(), Failure>;
}

/// Ten lives for each seed; gives the first failure.
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
