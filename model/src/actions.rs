//! The steps, and random ones.

use crate::cell::{PowerCut, Random};
use crate::disk::{FRAMES, KEYS};
use crate::flags::{Flag, Flags};
use crate::world::{CHUNKS, Devices, Outcome, World};

/// A step. A number is a page, a frame, a chunk or a key, or the position in a list of what is in
/// flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Action {
    /// Two keys, or one twice.
    Begin(usize, usize),
    Change(usize),
    ApplyLate(usize),
    Commit(usize),
    /// The page of the split, if it is one.
    Restructure(usize),
    ApplyRestructuring,
    Hold,
    Fill,
    SyncLog,
    FileRing,
    SyncFiled,
    Grow,
    AnnounceGrowth,
    WriteImage(usize),
    MoveImage(usize),
    SyncPages,
    AppendMapping(usize),
    PutInForce(usize),
    WriteChunk(usize),
    EndChunk(usize),
    ComputeCut,
    WriteCut,
    SyncSuperblock,
    /// Page and frame.
    Demote(usize, usize),
    FenceBody(usize),
    WriteHeader(usize),
    Seal(usize),
    Vacate(usize),
    DieUnsealing(usize),
    Load(usize),
    DropCopy(usize),
    BeginBackup,
    CopyImage(usize),
    EndBackup,
    Close,
    UnsealOthers,
    SetTierEpoch,
    Undo,
    Open,
    /// The process is killed; caches survive.
    Kill(Devices),
    /// The power is cut.
    Cut(u64, Devices),
    Restore(Devices),
}

use Action::*;

impl World {
    /// Takes a step. False if it is not possible now; then nothing has changed.
    ///
    /// # Errors
    /// How the promise was broken.
    pub fn step(&mut self, action: Action) -> Outcome {
        let ends = matches!(action, Kill(_) | Cut(..) | Restore(_));
        if self.life.is_dying && !ends {
            return Ok(false);
        }
        match action {
            Begin(key, second) => self.begin(key, second),
            Change(at) => self.change(at),
            ApplyLate(at) => self.apply_late(at),
            Commit(at) => self.commit(at),
            Restructure(page) => self.restructure(page),
            ApplyRestructuring => self.apply_restructuring(),
            Hold => self.hold(),
            Fill => self.fill(),
            SyncLog => self.sync_log(),
            FileRing => self.file_ring(),
            SyncFiled => self.sync_filed(),
            Grow => self.grow(),
            AnnounceGrowth => self.announce_growth(),
            WriteImage(page) => self.write_image(page),
            MoveImage(page) => self.move_image(page),
            SyncPages => self.sync_pages(),
            AppendMapping(at) => self.append_mapping(at),
            PutInForce(at) => self.put_in_force(at),
            WriteChunk(chunk) => self.write_chunk(chunk),
            EndChunk(chunk) => self.end_chunk(chunk),
            ComputeCut => self.compute_cut(),
            WriteCut => self.write_cut(),
            SyncSuperblock => self.sync_superblock(),
            Close => self.close(),
            Undo => self.undo(),
            Open => self.open(),
            Kill(_) | Cut(..) | Restore(_) => self.end(action),
            _ => self.step_of_tier_or_backup(action),
        }
    }

    fn step_of_tier_or_backup(&mut self, action: Action) -> Outcome {
        match action {
            Demote(page, frame) => self.demote(page, frame),
            FenceBody(frame) => self.fence_body(frame),
            WriteHeader(frame) => self.write_header(frame),
            Seal(frame) => self.seal(frame),
            Vacate(frame) => self.vacate(frame),
            DieUnsealing(frame) => self.die_unsealing(frame),
            Load(page) => self.load(page),
            DropCopy(page) => self.drop_copy(page),
            UnsealOthers => self.unseal_others(),
            SetTierEpoch => self.set_tier_epoch(),
            BeginBackup => self.begin_backup(),
            CopyImage(page) => self.copy_image(page),
            EndBackup => self.end_backup(),
            _ => unreachable!("the other steps are taken elsewhere"),
        }
    }

    /// The process ends.
    fn end(&mut self, action: Action) -> Outcome {
        let devices = match action {
            Cut(cut, devices) => {
                let survives = ["nothing", "everything", "a part", "a part, torn"][cut as usize % 4];
                self.note(|| format!("POWER CUT: of what was not synced, {survives} persists"));
                self.disk.cut_power(PowerCut(cut));
                devices
            }
            Restore(devices) => return self.restore(devices),
            Kill(devices) => devices,
            _ => unreachable!("no other step ends the process"),
        };
        if matches!(action, Kill(_)) {
            self.note(|| "KILLED".to_owned());
        }
        self.recover(devices)?;
        Ok(true)
    }

    /// Goes on until the database is open, so that its state is compared.
    ///
    /// # Errors
    /// How the promise was broken.
    pub fn finish(&mut self) -> Result<(), String> {
        const ROUNDS: usize = 60;
        for _ in 0..ROUNDS {
            if self.life.is_open && !self.life.is_dying {
                return Ok(());
            }
            if self.life.is_dying {
                self.step(Kill(Devices::Both))?;
            }
            for action in [SyncSuperblock, UnsealOthers, SetTierEpoch, FileRing, SyncFiled, Undo, Open] {
                self.step(action)?;
            }
            if self.life.log.has_ring {
                self.step(SyncLog)?;
            }
        }
        Err("the database does not open".to_owned())
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
    (4, CopyImage(0)),
    (2, EndBackup),
    (1, Close),
    (4, UnsealOthers),
    (4, SetTierEpoch),
    (6, Undo),
    (4, Open),
    (1, Kill(Devices::Both)),
    (1, Cut(0, Devices::Both)),
    (1, Restore(Devices::Both)),
];

fn devices(random: &mut Random) -> Devices {
    match random.below(8) {
        0 => Devices::Neither,
        1 => Devices::Ring,
        2..5 => Devices::Tier,
        _ => Devices::Both,
    }
}

/// A random step.
pub fn random_action(random: &mut Random, flags: Flags) -> Action {
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
        CopyImage(_) => CopyImage(page),
        Kill(_) => Kill(devices(random)),
        Cut(..) if flags.has(Flag::NoSyncAtRecovery) && two == 0 => Kill(devices(random)),
        Cut(..) => Cut(random.bits(), devices(random)),
        Restore(_) => Restore(devices(random)),
        other => other,
    }
}
