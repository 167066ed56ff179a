//! Directed scripts: for a rule, steps that lose data without it. Random lives seldom take them.

use crate::actions::Action::{self, *};
use crate::flags::Flag::{self, *};
use crate::flags::Flags;
use crate::world::Devices::{Both, Neither, Ring, SmallTier, Tier};

/// Steps that lose data if some rules are left out, and none otherwise.
#[derive(Debug)]
pub struct Script {
    /// The rules. If there are two, each alone suffices.
    pub without: &'static [Flag],
    /// The steps.
    pub actions: Vec<Action>,
}

impl Script {
    /// The rules as a set.
    pub fn flags(&self) -> Flags {
        Flags::of(self.without)
    }
}

fn script(without: &'static [Flag], parts: &[&[Action]]) -> Script {
    Script { without, actions: parts.concat() }
}

/// A transaction that writes one key and is acknowledged. Alone, it takes two records.
fn commit(key: usize) -> Vec<Action> {
    vec![Begin(key, key), Change(0), Commit(0), SyncLog]
}

fn commits(count: usize) -> Vec<Action> {
    (0..count).flat_map(|_| commit(0)).collect()
}

/// An image of a page comes into force.
fn image(page: usize) -> Vec<Action> {
    vec![WriteImage(page), SyncPages, AppendMapping(0), SyncLog, PutInForce(0)]
}

fn chunk(chunk: usize) -> [Action; 3] {
    [WriteChunk(chunk), SyncPages, EndChunk(chunk)]
}

const CUT_LOG: &[Action] = &[WriteCut, SyncSuperblock];
const SPLIT: &[Action] = &[Restructure(2), ApplyRestructuring, SyncLog];
const MERGE: &[Action] = SPLIT;
/// The rest of a recovery, with the tier and without it.
const OPENED: &[Action] = &[SyncSuperblock, UnsealOthers, SetTierEpoch, Open];
const OPENED_WITHOUT_TIER: &[Action] = &[SyncSuperblock, Open];
const OPENED_WITH_RING: &[Action] = &[SyncSuperblock, ClaimRing, Open];
const FILE: &[Action] = &[FileRing, SyncFiled];
const LOSE_UNSYNCED: u64 = 0;
const KEEP_UNSYNCED: u64 = 1;
/// Of a change, another one and a commit record, the first is torn.
const TEAR_FIRST: u64 = 3;

/// A page goes from DRAM to a frame, and that is sealed.
fn sealed(page: usize, frame: usize) -> [Action; 4] {
    [Demote(page, frame), FenceBody(frame), WriteHeader(frame), Seal(frame)]
}

/// Page 1 is written again, and the log is cut behind that.
fn written_again() -> Vec<Action> {
    [commit(1), image(1), chunk(0).into(), CUT_LOG.into()].concat()
}

/// A frame with page 1 is sealed, with a transaction that the image lacks.
fn one_sealed() -> Vec<Action> {
    [commit(0), sealed(1, 0).into()].concat()
}

/// A backup of the two pages of a new database.
fn backup() -> Vec<Action> {
    vec![BeginBackup, CopyImage(0), CopyImage(1), EndBackup]
}

/// A new life with the ring.
fn with_ring() -> Vec<Action> {
    [&[Kill(Ring)], OPENED_WITH_RING].concat()
}

/// All scripts, in the order of the flags.
pub fn all() -> Vec<Script> {
    let mut all = logs();
    all.extend(unseals());
    all.extend(seals());
    all.extend(old_frames());
    all.extend(adoption());
    all.extend(lives());
    all.extend(growth());
    all.extend(backups());
    all.extend(rings());
    all.extend(named_rings());
    all
}

/// Four transactions, then the log is cut behind them: nine records.
fn checkpointed() -> Vec<Action> {
    [commits(4), image(1), chunk(0).into(), CUT_LOG.into()].concat()
}

/// Rules 2 and 11. The log has 21 records.
fn logs() -> Vec<Script> {
    let not_synced = [commits(4), image(1), chunk(0).into(), vec![WriteCut]].concat();
    vec![
        // Behind the end are records of the lap before.
        script(&[NoLsnInRecord], &[&checkpointed(), &checkpointed(), &commits(2), &[Kill(Neither)]]),
        script(
            &[RecycleBeforeSuperblock],
            &[&not_synced, &commits(5), SPLIT, MERGE, SPLIT, &[Cut(LOSE_UNSYNCED, Neither)]],
        ),
    ]
}

/// Rule 9: unsealing before a store.
fn unseals() -> Vec<Script> {
    let uncommitted = &[Begin(1, 1), Change(0), FenceBody(0), Cut(LOSE_UNSYNCED, Tier)];
    vec![
        script(&[TrustUnsealedFrame], &[&one_sealed(), uncommitted]),
        script(&[UnsealWithoutFence], &[&one_sealed(), uncommitted]),
        script(
            &[HeadersNotWrittenBack, UnsealByHeader],
            &[
                &one_sealed(),
                &[DieUnsealing(0), Kill(Tier)],
                OPENED,
                &[Begin(1, 1), Change(0), Demote(1, 0), FenceBody(0), Cut(LOSE_UNSYNCED, Tier)],
            ],
        ),
    ]
}

/// Rule 9: sealing.
fn seals() -> Vec<Script> {
    vec![
        script(
            &[SealBeforeBodyFence],
            &[&commit(0), &[Demote(1, 0), WriteHeader(0), Seal(0), Cut(LOSE_UNSYNCED, Tier)]],
        ),
        script(
            &[SealBeforeDurable, FrameBeyondLogEnd],
            &[&[Begin(0, 0), Change(0)], &sealed(1, 0), &[Cut(LOSE_UNSYNCED, Tier)]],
        ),
        // The frame held page 1 before.
        script(
            &[SealWordFirst],
            &[
                &one_sealed(),
                &[Load(1), Vacate(0)],
                SPLIT,
                &[Demote(2, 0), FenceBody(0), WriteHeader(0), Cut(KEEP_UNSYNCED, Tier)],
            ],
        ),
        script(
            &[SealWithoutLatch],
            &[
                &commit(0),
                &[Demote(1, 0), FenceBody(0), WriteHeader(0)],
                &[Begin(1, 1), Change(0), FenceBody(0), Seal(0), Cut(LOSE_UNSYNCED, Tier)],
            ],
        ),
        script(
            &[SealOlderCopy],
            &[
                &commit(0),
                &[Demote(1, 0), FenceBody(0), Load(1)],
                &commit(1),
                &image(1),
                &[WriteHeader(0), Seal(0)],
                &chunk(0),
                CUT_LOG,
                &[Cut(LOSE_UNSYNCED, Tier)],
            ],
        ),
        // The record that freed the page is lost.
        script(
            &[SealFreedPage],
            &[
                SPLIT,
                &[Demote(2, 0), FenceBody(0), Load(2)],
                &commit(2),
                &image(0),
                &image(1),
                &image(2),
                &[WriteChunk(0), WriteChunk(1), SyncPages, Restructure(2), ApplyRestructuring],
                &[WriteHeader(0), Seal(0), EndChunk(0), EndChunk(1)],
                CUT_LOG,
                &[Cut(LOSE_UNSYNCED, Tier)],
            ],
        ),
        script(&[SealMovesRecLsn], &[&one_sealed(), CUT_LOG, &[Cut(LOSE_UNSYNCED, Neither)]]),
    ]
}

/// Rule 9: a sealed frame is never older than the image in force.
fn old_frames() -> Vec<Script> {
    vec![
        script(
            &[UnsealNotAtMapping],
            &[&one_sealed(), &[Load(1)], &written_again(), &[Cut(LOSE_UNSYNCED, Tier)]],
        ),
        script(
            &[KeepSealOfVacated],
            &[&one_sealed(), &[Load(1), Vacate(0)], &written_again(), &[Cut(LOSE_UNSYNCED, Tier)]],
        ),
        // The id of page 2 is freed and used again.
        script(
            &[KeepSealOfFreed],
            &[
                SPLIT,
                &sealed(2, 0),
                MERGE,
                SPLIT,
                &commit(2),
                &image(0),
                &image(1),
                &image(2),
                &chunk(0),
                &chunk(1),
                CUT_LOG,
                &[Cut(LOSE_UNSYNCED, Tier)],
            ],
        ),
    ]
}

/// Rule 10.
fn adoption() -> Vec<Script> {
    vec![
        // The files are older than the frame, of the same life.
        script(&[FrameBeyondLogEnd], &[&[CopyFiles], &one_sealed(), &[PutBack(Tier)]]),
        // Two frames hold page 1, and the older one is older than the image.
        script(
            &[KeepSealOfVacated, LowestDuplicate],
            &[
                &one_sealed(),
                &[Load(1)],
                &commit(1),
                &sealed(1, 1),
                &image(1),
                &chunk(0),
                CUT_LOG,
                &[Cut(LOSE_UNSYNCED, Tier)],
            ],
        ),
        // A newer image was not in force yet, but its record is durable.
        script(
            &[KeepSealOfUnadopted],
            &[
                &one_sealed(),
                &[Load(1)],
                &commit(1),
                &[WriteImage(1), SyncPages, AppendMapping(0), SyncLog, Kill(Tier)],
                OPENED,
                &chunk(0),
                CUT_LOG,
                &[Cut(LOSE_UNSYNCED, Tier)],
            ],
        ),
        script(
            &[KeepSealBeyondEnd],
            &[&commit(0), &sealed(1, 1), &[Kill(SmallTier)], OPENED, &written_again(), &[Kill(Tier)]],
        ),
        script(
            &[RedoLeavesClean],
            &[&one_sealed(), &[Kill(Tier)], OPENED, CUT_LOG, &[Cut(LOSE_UNSYNCED, Neither)]],
        ),
        script(
            &[AdoptBeforeCount],
            &[
                &commit(0),
                &image(1),
                &sealed(1, 0),
                &chunk(0),
                CUT_LOG,
                &[Kill(Tier)],
                OPENED,
                SPLIT,
                &[WriteImage(0), WriteImage(2), SyncPages, Cut(LOSE_UNSYNCED, Neither)],
            ],
        ),
    ]
}

/// Rule 10: lives with and without the tier, restored backups, and copies of the files.
fn lives() -> Vec<Script> {
    let without_tier = [&[Kill(Neither)], OPENED_WITHOUT_TIER, &written_again()].concat();
    // Both timelines have a life of epoch 2 with other transactions in it.
    let two_timelines = [
        &commit(0)[..],
        &backup(),
        &[Kill(Tier)],
        OPENED,
        &commit(1),
        &sealed(1, 0),
        &[Restore(Neither)],
        OPENED_WITHOUT_TIER,
        &commit(2),
        &[Kill(Tier)],
    ]
    .concat();
    vec![
        script(
            &[TierEpochBeforeUnsealing],
            &[&one_sealed(), &without_tier, &[Kill(Tier), SyncSuperblock, SetTierEpoch, Kill(Tier)]],
        ),
        // The life without the tier has the epoch that the tier has already.
        script(
            &[TierEpochFirst, IgnoreTierLife],
            &[
                &one_sealed(),
                &[Kill(Tier), UnsealOthers, SetTierEpoch, Cut(LOSE_UNSYNCED, Neither)],
                OPENED_WITHOUT_TIER,
                &written_again(),
                &[Kill(Tier)],
            ],
        ),
        script(&[IgnoreTierEpoch, IgnoreTierLife], &[&one_sealed(), &without_tier, &[Kill(Tier)]]),
        // The frame is of another line of the database, and the tier's file names the copy's life.
        script(
            &[SealBeforeTierLife],
            &[
                &backup(),
                &commit(2),
                &[CopyFiles, Restore(Neither)],
                OPENED_WITHOUT_TIER,
                &commit(0),
                &[Kill(Tier)],
                &sealed(1, 0),
                &[PutBack(Tier)],
            ],
        ),
        // The original and a copy both have a life of epoch 2.
        script(
            &[IgnoreTierLife],
            &[
                &[CopyFiles, Kill(Tier)],
                OPENED,
                &one_sealed(),
                &[PutBack(Neither)],
                OPENED_WITHOUT_TIER,
                &commit(1),
                &[Kill(Tier)],
            ],
        ),
        script(&[IgnoreTierTimeline, IgnoreTierLife], &[&two_timelines]),
        script(&[RestoreKeepsTimeline, IgnoreTierLife], &[&two_timelines]),
    ]
}

/// Rule 12. The log has 21 records, so those from 21 on move when it doubles.
fn growth() -> Vec<Script> {
    let wrapped = [commits(5), image(1), chunk(0).into(), CUT_LOG.into(), commits(5)].concat();
    let named = &[SyncLog, AnnounceGrowth, SyncSuperblock, Cut(LOSE_UNSYNCED, Neither)];
    vec![
        script(&[LogLeftBehind], &[&wrapped, &[Grow], named]),
        script(&[LogInOldRing], &[&wrapped, &[Grow], &commit(0), &named[1..]]),
        script(&[AnnounceBeforeCopySync], &[&wrapped, &[Grow], &named[1..]]),
    ]
}

/// Rule 15.
fn backups() -> Vec<Script> {
    vec![
        // The log wraps during the backup.
        script(
            &[BackupCutsLog],
            &[
                &[BeginBackup, CopyImage(0), CopyImage(1)],
                &checkpointed(),
                &checkpointed(),
                &checkpointed(),
                &[EndBackup, Restore(Neither)],
            ],
        ),
        // The second image goes to the block of the first one.
        script(
            &[BackupReadsFreedBlocks],
            &[
                &[BeginBackup],
                &commit(0),
                &image(1),
                &commit(0),
                &image(1),
                &[CopyImage(0), CopyImage(1), EndBackup, Restore(Neither)],
            ],
        ),
        // The copies are newer than the log that the backup has.
        script(
            &[BackupEndsLogEarly],
            &[
                &[Begin(0, 0), Change(0), BeginBackup, SyncLog],
                &image(1),
                &[LookUpImage(1), CopyImage(0), CopyImage(1), EndBackup, Restore(Neither)],
            ],
        ),
        script(
            &[BackupReadsUnfiled],
            &[
                &with_ring(),
                &commit(0),
                &[BeginBackup, CopyImage(0), CopyImage(1), EndBackup, Restore(Neither)],
            ],
        ),
    ]
}

/// Rule 16. The ring has 7 records.
fn rings() -> Vec<Script> {
    vec![
        script(&[RingNotFenced], &[&with_ring(), &commit(0), &[Cut(LOSE_UNSYNCED, Ring)]]),
        script(&[RingRoomByPersistent], &[&with_ring(), &commits(4), &[Cut(LOSE_UNSYNCED, Ring)]]),
        script(
            &[RingRoomBeforeSync],
            &[&with_ring(), &commits(3), &[FileRing], &commit(0), &[Cut(LOSE_UNSYNCED, Ring)]],
        ),
        script(
            &[RingTakesTorn],
            &[&with_ring(), &[Begin(0, 1), Change(0), Change(0), Commit(0), Cut(TEAR_FIRST, Ring)]],
        ),
        // Each recovery takes the ring's records once more, until the log is full.
        script(
            &[RingIgnoresLsn],
            &[
                &with_ring(),
                &[Begin(0, 0), Begin(3, 3), Change(1), Change(0), Commit(0), SyncLog, Begin(1, 1), Change(1)],
                &[Commit(0), Commit(1), FileRing, Restructure(3), SyncLog, Kill(Ring)],
                &[Cut(LOSE_UNSYNCED, Ring), Cut(LOSE_UNSYNCED, Ring)],
            ],
        ),
        // A hole ends the log; behind it are records of the older epoch.
        script(
            &[RingIgnoresEpoch],
            &[
                &with_ring(),
                &[Begin(0, 0), Hold, Change(0), Begin(1, 2), Change(1), Change(1), Commit(1), Kill(Ring)],
                OPENED_WITH_RING,
                &commit(3),
                &[Kill(Ring)],
            ],
        ),
    ]
}

/// Rule 16: whose ring it is, and when it counts.
fn named_rings() -> Vec<Script> {
    let two_timelines = [
        &commit(0)[..],
        &backup(),
        &with_ring(),
        &[Begin(0, 1), Change(0), Change(0), Commit(0), SyncLog],
        &[Begin(0, 1), Change(0), Change(0), Commit(0), SyncLog],
        &[Restore(Ring)],
        OPENED_WITH_RING,
        &commit(2),
        &[Kill(Ring)],
    ]
    .concat();
    vec![
        script(
            &[RingOfOtherLife],
            &[
                &with_ring(),
                &commit(0),
                &[CopyFiles, Kill(Ring)],
                OPENED_WITH_RING,
                &commits(3),
                &[PutBack(Ring)],
            ],
        ),
        script(
            &[KeepOldRingLife],
            &[
                &with_ring(),
                &commit(0),
                &[CopyFiles, Kill(Ring)],
                OPENED_WITH_RING,
                &commits(3),
                &[PutBack(Ring)],
            ],
        ),
        // Nothing prevents this: the ring goes on in the life of the copy.
        script(
            &[PutBackWithinLife],
            &[&with_ring(), &commits(2), &[CopyFiles], FILE, &commits(3), &[PutBack(Ring)]],
        ),
        script(&[RingNotCleared], &[&two_timelines]),
        script(&[RingNotNamed], &[&with_ring(), &commit(0), &[Kill(Neither)]]),
        script(&[ClearRingEarly], &[&with_ring(), &commit(0), &[Close, SyncSuperblock, Kill(Neither)]]),
        script(&[OpenWithoutRing], &[&with_ring(), &commit(0), &[Kill(Neither)]]),
        script(
            &[LeaveRingRecords],
            &[&with_ring(), &commit(0), &[Kill(Ring)], OPENED_WITH_RING, &[Cut(LOSE_UNSYNCED, Both)]],
        ),
        // The cut is below the superblock's log end, and the file has nothing of that.
        script(
            &[LogEndBeforeRing],
            &[&with_ring(), &commit(0), &image(1), &commit(1), &chunk(0), CUT_LOG, &[Kill(Ring)]],
        ),
        // All that is filed may be missing in the ring.
        script(
            &[],
            &[&with_ring(), &commits(3), FILE, &commits(3), FILE, &[Close, SyncSuperblock, Kill(Neither)]],
        ),
    ]
}
