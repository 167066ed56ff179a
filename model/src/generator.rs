//! Random steps: single ones, and those of a plan that takes several, with others between them.

use std::collections::VecDeque;

use crate::actions::Action::{self, *};
use crate::cell::Random;
use crate::disk::{FRAMES, KEYS};
use crate::flags::{Flag, Flags};
use crate::world::{CHUNKS, Devices};

/// Steps for each one that begins a plan.
const PLANS: u64 = 12;

/// Draws steps.
#[derive(Debug)]
pub struct Generator {
    flags: Flags,
    random: Random,
    plan: VecDeque<Action>,
    features: Features,
}

/// What a run does at all. A run that leaves out most goes deeper into the rest.
#[derive(Clone, Copy, Debug)]
struct Features {
    tier: bool,
    ring: bool,
    backup: bool,
    growth: bool,
    copies: bool,
    /// Of this number of ends of the process that are drawn, one is taken.
    ends: u64,
}

impl Features {
    fn random(random: &mut Random) -> Self {
        let mut one_of = |count| random.below(count) == 0;
        Self {
            tier: !one_of(4),
            ring: one_of(2),
            backup: one_of(3),
            growth: one_of(4),
            copies: one_of(6),
            ends: [1, 3, 9][random.below(3) as usize],
        }
    }

    fn allow(self, action: Action) -> bool {
        match action {
            Demote(..) | Load(_) => self.tier,
            BeginBackup | Restore(_) => self.backup,
            Grow => self.growth,
            CopyFiles | PutBack(_) => self.copies,
            _ => true,
        }
    }

    /// What the next process is given.
    fn devices(self, random: &mut Random) -> Devices {
        let devices = match random.below(8) {
            0 | 1 => Devices::Neither,
            2 => Devices::SmallTier,
            _ => Devices::Tier,
        };
        if self.ring && random.below(4) != 0 { devices.and_ring() } else { devices }
    }
}

impl Generator {
    /// Steps for a database that lacks the rules of `flags`.
    pub fn new(flags: Flags, mut random: Random) -> Self {
        let features = Features::random(&mut random);
        Self { flags, random, plan: VecDeque::new(), features }
    }

    /// The next step.
    pub fn next_action(&mut self) -> Action {
        loop {
            let action = self.any_action();
            let ends = action.ends_life();
            if self.features.allow(action) && !(ends && self.random.below(self.features.ends) != 0) {
                if ends {
                    self.plan.clear();
                }
                return action;
            }
        }
    }

    fn any_action(&mut self) -> Action {
        let features = self.features;
        let random = &mut self.random;
        if self.plan.is_empty() && random.below(PLANS) == 0 {
            self.plan = plan(random).into();
        }
        let planned = if random.below(4) == 0 { None } else { self.plan.pop_front() };
        planned.unwrap_or_else(|| random_action(random, self.flags, features))
    }

    /// Random numbers for other ends.
    pub fn random(&mut self) -> &mut Random {
        &mut self.random
    }
}

/// Steps that lead somewhere. Random single steps seldom do all of them.
fn plan(random: &mut Random) -> Vec<Action> {
    let page = random.below(4) as usize;
    let other = random.below(4) as usize;
    let frame = random.below(FRAMES as u64) as usize;
    let chunk = random.below(CHUNKS as u64) as usize;
    let recovered =
        [SyncSuperblock, UnsealOthers, SetTierEpoch, ClaimRing, Undo, Undo, SyncLog, Undo, Undo, Open];
    match random.below(12) {
        9..12 => vec![Begin(page, other), Change(0), Change(0), Commit(0), SyncLog],
        0 | 1 => vec![WriteImage(page), SyncPages, AppendMapping(0), SyncLog, PutInForce(0)],
        2 => vec![WriteChunk(chunk), SyncPages, EndChunk(chunk), WriteCut, SyncSuperblock],
        3 | 4 => vec![Demote(page, frame), SyncLog, FenceBody(frame), WriteHeader(frame), Seal(frame)],
        5 => (0..4)
            .flat_map(|page| [WriteImage(page), SyncPages, AppendMapping(0), SyncLog, PutInForce(0)])
            .collect(),
        6 => [0, 1]
            .into_iter()
            .flat_map(|chunk| [WriteChunk(chunk), SyncPages, EndChunk(chunk)])
            .chain([FileRing, SyncFiled, WriteCut, SyncSuperblock])
            .collect(),
        7 => recovered.into(),
        _ => {
            let copies = (0..4).map(CopyImage);
            [BeginBackup].into_iter().chain(copies).chain([SyncLog, FileRing, SyncFiled, EndBackup]).collect()
        }
    }
}

/// Steps with their weights. Numbers are drawn later.
const WEIGHTS: &[(u64, Action)] = &[
    (8, Begin(0, 0)),
    (14, Change(0)),
    (2, ApplyLate(0)),
    (8, Commit(0)),
    (3, Restructure(0)),
    (4, ApplyRestructuring),
    (3, Hold),
    (5, Fill),
    (10, SyncLog),
    (4, FileRing),
    (4, SyncFiled),
    (1, Grow),
    (2, AnnounceGrowth),
    (7, WriteImage(0)),
    (3, MoveImage(0)),
    (6, SyncPages),
    (7, AppendMapping(0)),
    (7, PutInForce(0)),
    (4, WriteChunk(0)),
    (4, EndChunk(0)),
    (4, WriteCut),
    (5, SyncSuperblock),
    (5, Demote(0, 0)),
    (5, FenceBody(0)),
    (5, WriteHeader(0)),
    (5, Seal(0)),
    (2, Vacate(0)),
    (1, DieUnsealing(0)),
    (1, Load(0)),
    (1, DropCopy(0)),
    (1, BeginBackup),
    (2, LookUpImage(0)),
    (4, CopyImage(0)),
    (2, EndBackup),
    (1, Close),
    (4, UnsealOthers),
    (4, SetTierEpoch),
    (4, ClaimRing),
    (6, Undo),
    (4, Open),
    (1, Kill(Devices::Both)),
    (1, Cut(0, Devices::Both)),
    (1, Restore(Devices::Both)),
    (1, CopyFiles),
    (1, PutBack(Devices::Both)),
];

/// A random step.
fn random_action(random: &mut Random, flags: Flags, features: Features) -> Action {
    let mut at = random.below(WEIGHTS.iter().map(|(weight, _)| weight).sum());
    let (_, action) = WEIGHTS
        .iter()
        .find(|(weight, _)| match at.checked_sub(*weight) {
            Some(less) => {
                at = less;
                false
            }
            None => true,
        })
        .expect("the number is below the sum");
    let page = random.below(4) as usize;
    let two = random.below(2) as usize;
    let frame = random.below(FRAMES as u64) as usize;
    match *action {
        Begin(..) => Begin(page, if two == 0 { page } else { random.below(KEYS as u64) as usize }),
        Change(_) => Change(random.below(3) as usize),
        Commit(_) => Commit(random.below(3) as usize),
        ApplyLate(_) => ApplyLate(two),
        Restructure(_) => Restructure(2 + two),
        WriteImage(_) => WriteImage(page),
        MoveImage(_) => MoveImage(page),
        AppendMapping(_) => AppendMapping(two),
        PutInForce(_) => PutInForce(two),
        WriteChunk(_) => WriteChunk(random.below(CHUNKS as u64) as usize),
        EndChunk(_) => EndChunk(random.below(CHUNKS as u64) as usize),
        WriteCut if flags.has(Flag::CutComputedEarly) && two == 0 => ComputeCut,
        Demote(..) => Demote(page, frame),
        FenceBody(_) => FenceBody(frame),
        WriteHeader(_) => WriteHeader(frame),
        Seal(_) => Seal(frame),
        Vacate(_) => Vacate(frame),
        DieUnsealing(_) => DieUnsealing(frame),
        Load(_) => Load(page),
        DropCopy(_) => DropCopy(page),
        LookUpImage(_) => LookUpImage(page),
        CopyImage(_) => CopyImage(page),
        Kill(_) => Kill(features.devices(random)),
        Cut(..) if flags.has(Flag::NoSyncAtRecovery) && two == 0 => Kill(features.devices(random)),
        Cut(..) => Cut(random.bits(), features.devices(random)),
        Restore(_) => Restore(features.devices(random)),
        PutBack(_) => PutBack(features.devices(random)),
        other => other,
    }
}
