//! Lives and crashes in turn, with recovery crashed too, and the verdict on what comes back.

use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;

use terrace_block::{SimulatedDisk, Start};

use super::life::{Halt, Life};
use super::meanwhile::{self, Random, Script, State};
use super::model::{Model, Pages};
use super::raw::{self, Raw};
use super::{Sizes, cached, create, open};
use crate::buffer::MiddleOptions;
use crate::buffer::{Pool, Recovered, Stop};
use crate::error::Result;
use crate::ids::{Lsn, Timestamp};
use crate::migration::{CleanVictims, Policy};
use crate::replacement::Replacement;

/// Recoveries that are crashed one after the other, at most.
const RECOVERY_CRASHES_MAX: usize = 5;
/// Other survivors of each crash that are recovered and judged.
const BRANCHES: usize = 3;

/// What a run is: all else follows from the seed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) seed: u64,
    pub(super) sizes: Sizes,
    pub(super) lives: u32,
    pub(super) steps: u32,
    /// The call of the first life at which the power goes, counted from its start; otherwise it is random.
    pub(super) crash_at: Option<u64>,
    /// See [`State::aligned`].
    pub(super) aligned: bool,
    /// See [`State::open_max`].
    pub(super) open_max: usize,
    /// See [`State::resizes`].
    pub(super) resizes: bool,
    /// The first life ends with a compaction, of a file most of whose pages are freed before.
    pub(super) compacts: bool,
    /// The page file is behind a block cache.
    pub(super) cached: bool,
}

impl Plan {
    /// The sizes and the length of a run follow from its seed. Of odd seeds pages are larger, and most are compressed.
    pub(super) fn random(seed: u64) -> Plan {
        let mut random = Random(seed ^ 0x5eed);
        let sizes = Sizes {
            page_bytes: if seed.is_multiple_of(2) { 4096 } else { 16384 },
            other_page_bytes: None,
            frames: 12 + random.below(13) as u32,
            log_capacity: [48, 64, 96, 128][random.below(4)] << 10,
            log_buffer: [16, 32][random.below(2)] << 10,
            store_segments: 12 + random.below(13) as u64,
            staging_pages: [2, 4, 8][random.below(3)],
            replacement: Replacement::Mark,
            middle: None,
        };
        let steps = 20 + random.below(400) as u32;
        let open_max = [0, 1, 3][random.below(3)];
        Plan {
            seed,
            sizes,
            lives: 4,
            steps,
            crash_at: None,
            aligned: false,
            open_max,
            resizes: false,
            compacts: false,
            cached: false,
        }
    }

    /// Lives in which the number of frames goes up and down.
    pub(super) fn resizing(seed: u64) -> Plan {
        Plan { resizes: true, ..Plan::random(seed) }
    }

    /// Lives over a middle tier, of one frame or more, with any policy, and in every third with copies that stay below others.
    pub(super) fn tiers(seed: u64) -> Plan {
        let mut plan = Plan { resizes: seed.is_multiple_of(5), ..Plan::random(seed) };
        let mut random = Random(seed ^ 0x71e5);
        let mut probability = || [0.0, 0.2, 0.5, 1.0][random.below(4)];
        let policy = Policy::new(probability(), probability(), probability(), probability());
        if seed % 3 == 2 {
            plan.sizes.replacement = Replacement::ClockPaper;
        }
        plan.sizes.middle = Some(MiddleOptions {
            frames: [1, 2, 4, 8, 16, 32][random.below(6)],
            policy: policy.expect("these are probabilities"),
            clean_victims: CleanVictims::ALL[random.below(3)],
            queue_pages: [None, None, Some(8)][random.below(3)],
            adaptive: false,
        });
        plan
    }

    /// Lives with pages of two sizes, in some of which the number of frames changes too.
    pub(super) fn mixed(seed: u64) -> Plan {
        let mut plan = Plan { resizes: seed.is_multiple_of(3), ..Plan::random(seed) };
        let other = if plan.sizes.page_bytes == 4096 { 16384 } else { 4096 };
        plan.sizes.other_page_bytes = Some([8192, other][(seed / 2 % 2) as usize]);
        plan
    }

    /// Lives with pages that are too large for nodes beside those of the database's own size.
    pub(super) fn values(seed: u64) -> Plan {
        let mut plan = Plan { resizes: seed.is_multiple_of(3), lives: 2, ..Plan::random(seed) };
        plan.steps = plan.steps.min(150);
        plan.sizes.other_page_bytes = Some([128 << 10, 256 << 10][(seed / 2 % 2) as usize]);
        plan
    }

    /// Lives over a block cache, with pages of one size or of two.
    pub(super) fn cached(seed: u64) -> Plan {
        let plan = if seed % 3 == 2 { Plan::mixed(seed) } else { Plan::random(seed) };
        Plan { cached: true, ..plan }
    }

    /// Short lives whose records all have the same length.
    pub(super) fn aligned(seed: u64) -> Plan {
        let mut plan = Plan { aligned: true, steps: 30, lives: 6, ..Plan::random(seed) };
        plan.sizes.frames = 24;
        plan.sizes.log_capacity = 1 << 20;
        plan
    }
}

/// What a run has done.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    /// Disks that were recovered, or on which recovery was crashed.
    pub(super) states: u64,
    /// Calls of the disk in the first life.
    pub(super) first_life_calls: u64,
    /// Images that were compressed, in all lives.
    pub(super) compressed: u64,
    /// Times that frames went from pages of one size to pages of another, in all lives.
    pub(super) frame_moves: u64,
    /// Those of them that were made before its compaction began.
    pub(super) calls_before_compaction: u64,
    /// Of a block cache: blocks read from it, blocks that followed an image, and blocks that it began with, in all lives.
    pub(super) cache_hits: u64,
    pub(super) relocated: u64,
    pub(super) kept: u64,
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.states += other.states;
        self.first_life_calls += other.first_life_calls;
        self.compressed += other.compressed;
        self.frame_moves += other.frame_moves;
        self.calls_before_compaction += other.calls_before_compaction;
        self.cache_hits += other.cache_hits;
        self.relocated += other.relocated;
        self.kept += other.kept;
    }
}

/// A disk in a machine.
struct Machine {
    disk: SimulatedDisk,
    /// Names the time since the power came: the same after a kill, another after a power cut.
    power_cycle: u64,
}

struct Run {
    plan: Plan,
    script: Script,
    tally: Tally,
    /// Times that the power came.
    power_ons: u64,
    /// Losers that are closed, durably.
    closed: HashSet<Timestamp>,
}

/// Lives through `plan`; an error says what was wrong.
pub(super) fn live(plan: Plan) -> Result<Tally, String> {
    let disk = SimulatedDisk::new(plan.seed);
    create(&disk, &plan.sizes);
    if plan.cached {
        cached::create(&disk);
    }
    let state = State {
        model: Model::default(),
        random: Random(plan.seed),
        sizes: plan.sizes,
        aligned: plan.aligned,
        open_max: plan.open_max,
        resizes: plan.resizes,
    };
    let script = Rc::new(RefCell::new(state));
    let closed = HashSet::new();
    let mut run = Run { plan, script: script.clone(), tally: Tally::default(), power_ons: 1, closed };
    meanwhile::play(None);
    let outcome = run.lives(Machine { disk, power_cycle: 1 });
    meanwhile::play(None);
    outcome.map(|()| run.tally)
}

impl Run {
    fn below(&self, limit: usize) -> usize {
        self.script.borrow_mut().random.below(limit)
    }

    fn lives(&mut self, mut machine: Machine) -> Result<(), String> {
        for life in 0..self.plan.lives {
            let (recovered, now) = self.recover(machine, true)?;
            machine = now;
            let disk = &machine.disk;
            let pool = recovered.pool;
            let before = disk.calls();
            // A cache makes two to three calls of one.
            let far = if self.plan.cached { 1000 } else { 400 };
            let reach = if self.plan.aligned || self.below(3) == 0 { 12 } else { far };
            let crash_at = match self.plan.crash_at {
                Some(call) if life == 0 => call,
                _ => 1 + self.below(reach) as u64,
            };
            disk.crash_at(before + crash_at);
            meanwhile::play(Some(meanwhile::follow(self.script.clone())));
            let mut worked = Life::new(&pool, self.script.clone());
            let mut outcome = worked.run(self.plan.steps);
            if life == 0 && self.plan.compacts && outcome.is_ok() {
                outcome = worked.thin_out().and_then(|()| {
                    self.tally.calls_before_compaction = disk.calls() - before;
                    worked.compact(u32::MAX)
                });
            }
            drop(worked);
            meanwhile::play(None);
            if life == 0 {
                self.tally.first_life_calls = disk.calls() - before;
            }
            match outcome {
                Ok(()) => {}
                Err(Halt::Engine(_)) if disk.crashed().is_some() => {}
                Err(halt) => return Err(format!("life {life}: {halt}")),
            }
            self.tally.compressed += pool.stats.images_compressed.load(Relaxed);
            self.tally.frame_moves += pool.stats.frame_moves.load(Relaxed);
            if let Some(cache) = &pool.cache {
                let stats = cache.stats();
                self.tally.cache_hits += stats.hits;
                self.tally.relocated += stats.relocations;
                if let Start::Warm { kept, .. } = stats.start {
                    self.tally.kept += kept;
                }
            }
            drop(pool);
            let place = disk.crashed();
            for _ in 0..BRANCHES {
                self.branch(&machine).map_err(|what| format!("life {life}, {place:?}: {what}"))?;
            }
            machine = self.next_machine(&machine);
        }
        self.recover(machine, true).map(|_| ())
    }

    fn next_machine(&mut self, machine: &Machine) -> Machine {
        let Machine { disk, power_cycle } = machine;
        let mut state = self.script.borrow_mut();
        if state.random.below(4) == 0 {
            return Machine { disk: disk.killed(), power_cycle: *power_cycle };
        }
        self.power_ons += 1;
        Machine { disk: disk.survivor(state.random.next()), power_cycle: self.power_ons }
    }

    /// Recovers and judges another survivor of this crash; the run goes on from none of it.
    fn branch(&mut self, machine: &Machine) -> Result<(), String> {
        let (model, closed) = (self.script.borrow().model.clone(), self.closed.clone());
        let machine = self.next_machine(machine);
        let outcome = self.recover(machine, false).map(|_| ());
        self.script.borrow_mut().model = model;
        self.closed = closed;
        outcome
    }

    /// Recovers, with crashes in between, and judges what comes back.
    fn recover(&mut self, mut machine: Machine, with_crashes: bool) -> Result<(Recovered, Machine), String> {
        for attempt in 0..=RECOVERY_CRASHES_MAX {
            self.tally.states += 1;
            let disk = &machine.disk;
            if with_crashes && attempt < RECOVERY_CRASHES_MAX && self.below(3) > 0 {
                let call = disk.calls() + 3 + self.below(40) as u64;
                disk.crash_at(call);
            }
            match self.recover_once(&machine) {
                Ok(recovered) => {
                    // The first recovery's log end says exactly which commits survived.
                    let end = (attempt == 0).then_some(recovered.log_end);
                    machine.disk.crash_at(u64::MAX);
                    self.judge(&recovered, end)?;
                    return Ok((recovered, machine));
                }
                Err(_) if machine.disk.crashed().is_some() => machine = self.next_machine(&machine),
                Err(error) => return Err(format!("recovery {attempt}: {error}")),
            }
        }
        unreachable!("the last attempt is not crashed")
    }

    fn recover_once(&mut self, machine: &Machine) -> Result<Recovered> {
        let Machine { disk, power_cycle } = machine;
        let files = match self.plan.cached {
            true => cached::open_cached(disk, self.plan.seed, *power_cycle)?,
            false => open(disk).map_err(|source| crate::Error::io("open", "the disk", None, source))?,
        };
        let mut recovered = Pool::recover(&files, &self.plan.sizes.options(), &Raw)?;
        let losers = std::mem::take(&mut recovered.losers);
        if let Some(loser) = losers.iter().find(|loser| self.closed.contains(&loser.transaction)) {
            let what = format!("transaction {} was undone and closed, and is back", loser.transaction);
            return Err(crate::Error::corrupt("the log", None, what));
        }
        let closed: Vec<_> = losers.iter().map(|loser| loser.transaction).collect();
        recovered.pool.undo_losers(&files, losers, &Raw)?;
        self.closed.extend(closed);
        Ok(recovered)
    }

    fn judge(&mut self, recovered: &Recovered, log_end: Option<Lsn>) -> Result<(), String> {
        let pool = &recovered.pool;
        let found = read_all(pool)?;
        let highest = recovered.pool.timestamp_now();
        let mut state = self.script.borrow_mut();
        state.model.judge(&found, log_end, highest)?;
        state.model.restart(pool.wal().durable());
        match &pool.audit()[..] {
            [] => Ok(()),
            faults => Err(faults.join("; ")),
        }
    }
}

/// All pages there are.
pub(super) fn read_all(pool: &Pool) -> Result<Pages, String> {
    let mut found = Pages::new();
    for id in pool.page_ids() {
        match raw::read(pool, id) {
            Ok(content) => found.insert(id.0, raw::cells(&content)?),
            Err(Stop::Missing(_)) => continue,
            Err(stop) => return Err(format!("page {id} cannot be read: {stop:?}")),
        };
    }
    Ok(found)
}
