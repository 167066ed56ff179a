//! Lives and crashes in turn, crashed recoveries, and the verdict on the result.

use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;

use terrace_io::SimulatedDisk;

use super::life::{Halt, Life};
use super::meanwhile::{self, Random, Script, State};
use super::model::{Model, Pages};
use super::raw::{self, Raw};
use super::{Sizes, cached, create, open_with_ring};
use crate::backend::Backend;
use crate::error::Result;
use crate::ids::{Lsn, Timestamp};
use crate::migration::{Choice, CleanVictims, Migration, Policy};
use crate::pool::MiddleOptions;
use crate::pool::{Pool, Retry};
use crate::recovery::Recovered;
use crate::replacement::Replacement;
use crate::store::files::Files;
use crate::wal::{Class, RecordBuilder};

/// Upper bound of recoveries crashed in a row.
const RECOVERY_CRASHES_MAX: usize = 5;
const BRANCHES: usize = 3;

/// A run; all else follows from the seed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) seed: u64,
    pub(super) sizes: Sizes,
    pub(super) lives: u32,
    pub(super) steps: u32,
    /// Call of the first life at which the power goes, counted from its start; random if `None`.
    pub(super) crash_at: Option<u64>,
    pub(super) aligned: bool,
    pub(super) open_max: usize,
    pub(super) resizes: bool,
    /// The first life ends with a compaction of a file with mostly freed pages.
    pub(super) compacts: bool,
    pub(super) cached: bool,
    /// Whether lives that end without a power cut fill the log.
    pub(super) fills_log: bool,
}

impl Plan {
    /// Sizes and length of a run, from its seed. Odd seeds have larger pages, mostly compressed.
    pub(super) fn random(seed: u64) -> Plan {
        let mut random = Random(seed ^ 0x5eed);
        let sizes = Sizes {
            page_bytes: if seed.is_multiple_of(2) { 4096 } else { 16384 },
            other_page_bytes: None,
            frames: 12 + random.below(13) as u32,
            log_capacity: [48, 64, 96, 128][random.below(4)] << 10,
            // Of another sequence, so that the other choices of a seed stay.
            log_doublings: Random(seed ^ 0x106).below(3) as u32,
            log_buffer: [16, 32][random.below(2)] << 10,
            store_segments: 12 + random.below(13) as u64,
            staging_pages: [2, 4, 8][random.below(3)],
            replacement: Replacement::Mark,
            ring: None,
            middle: None,
            persistent: false,
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
            fills_log: false,
        }
    }

    pub(super) fn resizing(seed: u64) -> Plan {
        Plan { resizes: true, ..Plan::random(seed) }
    }

    /// Lives over a middle tier of at least one frame, with any policy; every third keeps middle
    /// copies.
    pub(super) fn tiers(seed: u64) -> Plan {
        let mut plan = Plan { resizes: seed.is_multiple_of(5), ..Plan::random(seed) };
        let mut random = Random(seed ^ 0x71e5);
        let mut probability = || [0.0, 0.2, 0.5, 1.0][random.below(4)];
        let policy = Policy::new(probability(), probability(), probability(), probability());
        if seed % 3 == 2 {
            plan.sizes.replacement = Replacement::ClockPaper;
        }
        plan.sizes.middle = Some(MiddleOptions {
            class: super::class(plan.sizes.page_bytes),
            frames: [1, 2, 4, 8, 16, 32][random.below(6)],
            migration: Migration {
                policy: Some(Choice::Fixed(policy.expect("these are probabilities"))),
                clean_victims: Some(CleanVictims::ALL[random.below(3)]),
                admission_queue: [None, None, Some(8)][random.below(3)],
            },
            lines: (seed % 2 == 1 && matches!(Backend::of_environment(), Ok(Backend::Frames))).then_some(64),
            minis: seed % 4 == 1,
        });
        plan
    }

    /// Lives whose log has its ring in persistent memory. Some have a middle tier, or pages of two
    /// sizes.
    pub(super) fn ring(seed: u64) -> Plan {
        let mut plan = match seed % 4 {
            2 => Plan::tiers(seed),
            3 => Plan::mixed(seed),
            _ => Plan::random(seed),
        };
        plan.sizes.ring = Some([16, 32, 64][Random(seed ^ 0x4109).below(3)] << 10);
        plan
    }

    /// Short lives of that kind whose records all have the same length.
    pub(super) fn aligned_ring(seed: u64) -> Plan {
        let mut plan = Plan::aligned(seed);
        plan.sizes.ring = Some(16 << 10);
        plan
    }

    /// Lives whose log may be full when recovery begins.
    pub(super) fn tight(seed: u64) -> Plan {
        let mut plan = Plan { fills_log: true, open_max: 3, lives: 6, ..Plan::random(seed) };
        plan.sizes.frames = 12;
        plan.sizes.log_capacity = [32, 40, 48][(seed / 2 % 3) as usize] << 10;
        plan.sizes.log_doublings = 0;
        plan.sizes.ring = (seed % 5 == 4).then_some(16 << 10);
        plan
    }

    /// Lives with both: the log's ring and the middle tier in memories of the disk.
    pub(super) fn persistent_with_ring(seed: u64) -> Plan {
        let mut plan = Plan::persistent(seed);
        plan.sizes.ring = Some([16, 32, 64][Random(seed ^ 0x4109).below(3)] << 10);
        plan
    }

    /// Lives over a middle tier in a memory of the disk, which loses lines. Some open without it.
    pub(super) fn persistent(seed: u64) -> Plan {
        let mut plan = Plan::tiers(seed);
        plan.sizes.persistent = true;
        plan
    }

    /// Lives with pages of two sizes; in some the number of frames changes too.
    pub(super) fn mixed(seed: u64) -> Plan {
        let mut plan = Plan { resizes: seed.is_multiple_of(3), ..Plan::random(seed) };
        let other = if plan.sizes.page_bytes == 4096 { 16384 } else { 4096 };
        plan.sizes.other_page_bytes = Some([8192, other][(seed / 2 % 2) as usize]);
        plan
    }

    /// Lives with pages too large for nodes beside pages of the database's own size.
    pub(super) fn values(seed: u64) -> Plan {
        let mut plan = Plan { resizes: seed.is_multiple_of(3), lives: 2, ..Plan::random(seed) };
        plan.steps = plan.steps.min(150);
        plan.sizes.other_page_bytes = Some([128 << 10, 256 << 10][(seed / 2 % 2) as usize]);
        plan
    }

    /// Lives over a block cache, with pages of one or two sizes.
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

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    /// Disks recovered, or used by a crashed recovery.
    pub(super) states: u64,
    pub(super) first_life_calls: u64,
    pub(super) compressed: u64,
    pub(super) frame_moves: u64,
    /// Lives at whose end the log was longer than at first.
    pub(super) log_growths: u64,
    /// Recoveries that made the log longer than its largest.
    pub(super) log_extensions: u64,
    /// Disk calls before the compaction.
    pub(super) calls_before_compaction: u64,
    /// Block cache: blocks read, moved after an image, and kept at open, in all lives.
    pub(super) cache_hits: u64,
    pub(super) relocated: u64,
    pub(super) kept: u64,
    pub(super) adopted: u64,
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.states += other.states;
        self.first_life_calls += other.first_life_calls;
        self.compressed += other.compressed;
        self.frame_moves += other.frame_moves;
        self.log_growths += other.log_growths;
        self.log_extensions += other.log_extensions;
        self.calls_before_compaction += other.calls_before_compaction;
        self.cache_hits += other.cache_hits;
        self.relocated += other.relocated;
        self.kept += other.kept;
        self.adopted += other.adopted;
    }
}

struct Machine {
    disk: SimulatedDisk,
    /// Identifies the time since power-on: unchanged by a kill, changed by a power cut.
    power_cycle: u64,
}

struct Run {
    plan: Plan,
    script: Script,
    tally: Tally,
    power_ons: u64,
    /// Losers closed durably.
    closed: HashSet<Timestamp>,
    /// Whether the present life is without its persistent middle tier.
    apart: bool,
}

/// Lives through `plan`; an error names the fault.
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
    let mut run =
        Run { plan, script: script.clone(), tally: Tally::default(), power_ons: 1, closed, apart: false };
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
            self.apart = self.plan.sizes.persistent && self.below(5) == 0;
            let (recovered, now) = self.recover(machine, true)?;
            machine = now;
            let disk = &machine.disk;
            let pool = recovered.maintenance;
            let before = disk.calls();
            // A cache makes two to three calls out of one.
            let far = if self.plan.cached { 1000 } else { 400 };
            let reach = if self.plan.aligned || self.below(3) == 0 { 12 } else { far };
            let crash_at = match self.plan.crash_at {
                Some(call) if life == 0 => call,
                _ if self.plan.fills_log && self.below(2) == 0 => u64::MAX >> 1,
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
            if self.plan.fills_log && outcome.is_ok() {
                outcome = fill_log(&pool).map_err(Halt::from);
            }
            if self.plan.sizes.ring.is_some() && outcome.is_ok() && self.below(2) == 0 {
                outcome = pool.release_ring().map_err(Halt::from);
            }
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
            self.tally.log_growths += u64::from(pool.wal.capacity() > self.plan.sizes.log_capacity);
            if let Some(cache) = &pool.cache {
                let stats = cache.stats();
                self.tally.cache_hits += stats.hits;
                self.tally.relocated += stats.relocations;
                self.tally.kept += stats.kept;
            }
            drop(pool);
            let at = disk.crashed();
            for _ in 0..BRANCHES {
                self.branch(&machine).map_err(|what| format!("life {life}, {at:?}: {what}"))?;
            }
            machine = self.next_machine(&machine);
        }
        self.apart = false;
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

    /// Recovers and judges another survivor of this crash; the run does not continue with it.
    fn branch(&mut self, machine: &Machine) -> Result<(), String> {
        let (model, closed) = (self.script.borrow().model.clone(), self.closed.clone());
        let machine = self.next_machine(machine);
        let outcome = self.recover(machine, false).map(|_| ());
        self.script.borrow_mut().model = model;
        self.closed = closed;
        outcome
    }

    /// Recovers, with crashes in between, and judges the result.
    fn recover(&mut self, mut machine: Machine, with_crashes: bool) -> Result<(Recovered, Machine), String> {
        for attempt in 0..=RECOVERY_CRASHES_MAX {
            self.tally.states += 1;
            let disk = &machine.disk;
            if with_crashes && attempt < RECOVERY_CRASHES_MAX && self.below(3) > 0 {
                let call = disk.calls() + 3 + self.below(40) as u64;
                disk.crash_at(call);
            }
            match self.recover_once(&machine) {
                // Redo may need none of the pages whose early read has failed.
                Ok(_) if machine.disk.crashed().is_some() => machine = self.next_machine(&machine),
                Ok(recovered) => {
                    // The log end of the first recovery says exactly which commits survived.
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
            false => open_with_ring(disk, &self.plan.sizes)?,
        };
        let files = self.sometimes_without_ring(files)?;
        let before = files.superblocks()?.1.log_capacity;
        let mut sizes = self.plan.sizes;
        if sizes.persistent && self.below(3) == 0 {
            // The tier's file is resized.
            let frames = [1, 2, 3, 8, 16, 40][self.below(6)];
            sizes.middle.iter_mut().for_each(|middle| middle.frames = frames);
        }
        let mut options = sizes.options_on(disk);
        if self.apart {
            options.tiers.persistent = None;
        }
        let mut recovered = crate::recovery::recover(&files, &options, &Raw)?;
        if let Some(middle) = recovered.maintenance.pool.middle_stats()
            && let Some(persistent) = middle.persistent
        {
            self.tally.adopted += persistent.adopted;
        }
        let losers = std::mem::take(&mut recovered.losers);
        if let Some(loser) = losers.iter().find(|loser| self.closed.contains(&loser.transaction)) {
            let what = format!("transaction {} was undone and closed, and is back", loser.transaction);
            return Err(crate::Error::corrupt("the log", None, what));
        }
        let closed: Vec<_> = losers.iter().map(|loser| loser.transaction).collect();
        crate::recovery::undo_losers(&recovered.maintenance, &files, losers, &Raw)?;
        self.closed.extend(closed);
        let log = recovered.maintenance.wal.stats();
        self.tally.log_extensions += u64::from(log.capacity > before);
        Ok(recovered)
    }

    /// Gives the ring up before the life, sometimes for the whole of it.
    fn sometimes_without_ring(&mut self, files: Files) -> Result<Files> {
        if files.ring.is_none() || self.below(4) > 0 {
            return Ok(files);
        }
        crate::recovery::leave_ring(&files)?;
        Ok(if self.below(2) == 0 { files.with_ring(None) } else { files })
    }

    fn judge(&mut self, recovered: &Recovered, log_end: Option<Lsn>) -> Result<(), String> {
        let pool = &recovered.maintenance;
        let found = read_all(pool)?;
        let highest = recovered.maintenance.timestamp_now();
        let mut state = self.script.borrow_mut();
        state.model.judge(&found, log_end, highest)?;
        state.model.restart(pool.wal().persistent());
        match &pool.audit()[..] {
            [] => Ok(()),
            faults => Err(faults.join("; ")),
        }
    }
}

/// Leaves no room for one more record, as a lost superblock does.
fn fill_log(pool: &Pool) -> Result<()> {
    let mut nothing = RecordBuilder::mapping();
    while let Some(mut reservation) = pool.wal().reserve(nothing.len() as u64, Class::System) {
        pool.wal().append(&mut nothing, Some(&mut reservation))?;
    }
    pool.wal().flush_to(pool.wal().tail())
}

pub(super) fn read_all(pool: &Pool) -> Result<Pages, String> {
    let mut found = Pages::new();
    for id in pool.page_ids() {
        match raw::read(pool, id) {
            Ok(content) => found.insert(id.0, raw::cells(&content)?),
            Err(Retry::Missing(_)) => continue,
            Err(stop) => return Err(format!("page {id} cannot be read: {stop:?}")),
        };
    }
    Ok(found)
}
