//! The steps.

use crate::cell::PowerCut;
use crate::world::{Devices, Outcome, World};

/// A step. A number is a page, a frame, a chunk or a key, or a position in a list: of
/// transactions, or of images in flight.
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
    LookUpImage(usize),
    CopyImage(usize),
    EndBackup,
    Close,
    UnsealOthers,
    SetTierEpoch,
    ClaimRing,
    Undo,
    Open,
    /// The process is killed; caches survive.
    Kill(Devices),
    /// The power is cut.
    Cut(u64, Devices),
    Restore(Devices),
    CopyFiles,
    PutBack(Devices),
}

impl Action {
    /// Whether another process follows.
    pub fn ends_life(self) -> bool {
        matches!(self, Kill(_) | Cut(..) | Restore(_) | PutBack(_))
    }
}

use Action::*;

impl World {
    /// Takes a step. False if it is not possible now; then nothing has changed.
    ///
    /// # Errors
    /// How the promise was broken.
    pub fn step(&mut self, action: Action) -> Outcome {
        if self.life.is_dying && !action.ends_life() {
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
            Kill(_) | Cut(..) | Restore(_) | PutBack(_) => self.end(action),
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
            LookUpImage(page) => self.look_up_image(page),
            CopyImage(page) => self.copy_image(page),
            EndBackup => self.end_backup(),
            CopyFiles => self.copy_files(),
            ClaimRing => self.claim_ring(),
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
            PutBack(devices) => return self.put_back(devices),
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
            for action in
                [SyncSuperblock, UnsealOthers, SetTierEpoch, ClaimRing, FileRing, SyncFiled, Undo, Open]
            {
                self.step(action)?;
            }
            if self.life.log.has_ring {
                self.step(SyncLog)?;
            }
        }
        Err("the database does not open".to_owned())
    }
}
