//! Scripts over a persistent middle tier, each for one rule.
//!
//! Random lives miss rare orders: 600,000 crashes did not find a sealed frame of a freed page that
//! a script of 30 steps loses a transaction by. So each planted bug has its script. The power goes
//! at each call of the last life in turn, and after it. Several survivors of each cut are recovered
//! and compared with the model.

use std::sync::Arc;

use terrace_io::SimulatedDisk;

use super::life::draw;
use super::meanwhile;
use super::model::{Deed, Model};
use super::raw::{self, CELLS, Raw};
use super::tests::SIZES;
use super::{Sizes, create, open};
use crate::error::{Error, Result};
use crate::ids::{Lsn, PageId, Timestamp};
use crate::maintenance::Maintenance;
use crate::migration::{Choice, CleanVictims, Migration, Policy};
use crate::planted::{Bug, plant, planted};
use crate::pool::{Edit, MiddleOptions, Retry};
use crate::wal::{RecordBuilder, change_kind};

/// Survivors of each cut.
const SURVIVORS: u64 = 6;

/// Pages are made in the middle tier, and stay there.
fn in_place() -> Policy {
    Policy::new(0.0, 0.0, 1.0, 1.0).expect("these are probabilities")
}

/// Pages are promoted at each access.
fn promoting() -> Policy {
    Policy::new(1.0, 1.0, 1.0, 1.0).expect("these are probabilities")
}

/// Pages are loaded and made in DRAM.
fn past_the_tier() -> Policy {
    Policy::new(1.0, 1.0, 0.0, 0.0).expect("these are probabilities")
}

fn sizes(frames: u32) -> Sizes {
    let migration = Migration {
        policy: Some(Choice::Fixed(in_place())),
        clean_victims: Some(CleanVictims::Always),
        admission_queue: None,
    };
    let class = super::class(SIZES.page_bytes);
    Sizes {
        middle: Some(MiddleOptions { class, frames, migration, lines: None, minis: false }),
        persistent: true,
        log_capacity: 256 << 10,
        ..SIZES
    }
}

/// A database between two crashes, with what it should hold.
struct Stage {
    sizes: Sizes,
    disk: SimulatedDisk,
    pool: Arc<Maintenance>,
    model: Model,
}

type Script = fn(&mut Stage) -> Result<()>;

fn recover(disk: &SimulatedDisk, sizes: &Sizes, with_tier: bool) -> Result<(Arc<Maintenance>, Lsn)> {
    let files = open(disk).map_err(|source| Error::io("open", "the disk", None, source))?;
    let mut options = sizes.options_on(disk);
    if !with_tier {
        options.tiers.persistent = None;
    }
    let recovered = crate::recovery::recover(&files, &options, &Raw)?;
    let end = recovered.log_end;
    crate::recovery::undo_losers(&recovered.maintenance, &files, recovered.losers, &Raw)?;
    Ok((recovered.maintenance, end))
}

impl Stage {
    fn new(frames: u32, seed: u64) -> Stage {
        let (sizes, disk) = (sizes(frames), SimulatedDisk::new(seed));
        create(&disk, &sizes);
        let (pool, _) = recover(&disk, &sizes, true).expect("a new disk works");
        Stage { sizes, disk, pool, model: Model::default() }
    }

    /// Changes one page, as a commit.
    fn commit<'p>(
        &mut self,
        pool: &'p Maintenance,
        deed: Deed,
        (record, timestamp): (&mut RecordBuilder, Timestamp),
        edit: Edit<'_, 'p>,
    ) -> Result<()> {
        let mut reservation = pool.reserve_log(2 * record.len() as u64)?;
        let appended = pool.change(record, Some(&mut reservation), [edit])?;
        self.model.did(&deed);
        self.model.committed(appended.end, timestamp, vec![deed]);
        Ok(())
    }

    fn create(&mut self) -> Result<PageId> {
        let pool = Arc::clone(&self.pool);
        let new = pool.new_page(pool.class(), None)?;
        let (id, timestamp) = (new.id(), draw(&pool));
        let cells = std::array::from_fn(|_| self.model.fresh_value());
        let mut content = raw::content(id, &cells);
        let mut record = RecordBuilder::pages(timestamp, Lsn::NONE);
        record.set_commit();
        raw::note_create(&mut record, id, &content);
        let deed = Deed::Create { page: id.0, cells };
        self.commit(&pool, deed, (&mut record, timestamp), Edit::Create(new, &mut content))?;
        Ok(id)
    }

    fn latch<'p>(pool: &'p Maintenance, id: PageId) -> Result<crate::pool::WriteGuard<'p>> {
        raw::latch_all(pool, &[id]).map(|mut guards| guards.remove(0)).map_err(|stop| match stop {
            Retry::Fail(error) => error,
            other => Error::corrupt("the pages", Some(id.0), format!("{other:?}")),
        })
    }

    /// Writes a new value to each cell of a page, in commits of their own.
    fn write(&mut self, id: PageId) -> Result<()> {
        (0..CELLS).try_for_each(|cell| self.write_cell(id, cell))
    }

    fn write_cell(&mut self, id: PageId, cell: usize) -> Result<()> {
        let pool = Arc::clone(&self.pool);
        let mut guard = Self::latch(&pool, id)?;
        let (mut copy, timestamp) = (Vec::new(), draw(&pool));
        guard.copy(&mut copy);
        let old = raw::cells(&copy).map_err(|what| Error::corrupt("the pages", Some(id.0), what))?[cell];
        let value = self.model.fresh_value();
        let mut record = RecordBuilder::pages(timestamp, Lsn::NONE);
        record.set_commit();
        raw::note_write(&mut record, &copy, cell, old, value);
        raw::set_cell(&mut copy, cell, value);
        let deed = Deed::Write { page: id.0, cell, value };
        self.commit(&pool, deed, (&mut record, timestamp), Edit::Update(&mut guard, &mut copy))
    }

    fn free(&mut self, id: PageId) -> Result<()> {
        let pool = Arc::clone(&self.pool);
        let guard = Self::latch(&pool, id)?;
        let mut record = RecordBuilder::pages(Timestamp::NONE, Lsn::NONE);
        record.change(id, change_kind::FREE, 0, &[]);
        self.commit(&pool, Deed::Free { page: id.0 }, (&mut record, Timestamp::NONE), Edit::Free(guard))
    }

    fn read(&mut self, id: PageId) -> Result<()> {
        match raw::read(&self.pool, id) {
            Ok(content) => {
                raw::cells(&content).map(drop).map_err(|what| Error::corrupt("the pages", None, what))
            }
            Err(Retry::Fail(error)) => Err(error),
            Err(other) => Err(Error::corrupt("the pages", Some(id.0), format!("{other:?}"))),
        }
    }

    fn acknowledge(&mut self) -> Result<()> {
        let end = self.model.last_end();
        self.pool.wal().acknowledge(end)?;
        self.model.acknowledge(end);
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<()> {
        self.acknowledge()?;
        // The second cuts past the mapping of the first.
        (0..2).try_for_each(|_| self.pool.checkpoint_now(true))
    }

    fn restart(&mut self, disk: SimulatedDisk, with_tier: bool) -> Result<()> {
        let (pool, end) = recover(&disk, &self.sizes, with_tier)?;
        (self.disk, self.pool) = (disk, pool);
        self.judge(Some(end)).map_err(|what| Error::corrupt("the script", None, what))
    }

    fn judge(&mut self, end: Option<Lsn>) -> Result<(), String> {
        let found = super::cycle::read_all(&self.pool)?;
        self.model.judge(&found, end, self.pool.timestamp_now())?;
        self.model.restart(self.pool.wal().persistent());
        match &self.pool.audit()[..] {
            [] => Ok(()),
            faults => Err(faults.join("; ")),
        }
    }

    /// Recovers survivors of a power cut now, some again after a kill in between.
    fn judge_survivors(&self, seed: u64) -> Result<(), String> {
        for survivor in 0..SURVIVORS {
            let mut disk = self.disk.survivor(seed << 8 | survivor);
            if survivor % 3 == 2 {
                disk.crash_at(disk.calls() + 2 + survivor * 4);
                let _ = recover(&disk, &self.sizes, true);
                disk = if survivor == 2 { disk.killed() } else { disk.survivor(survivor) };
            }
            let outcome = recover(&disk, &self.sizes, true);
            let (pool, end) = outcome.map_err(|error| format!("survivor {survivor}: {error}"))?;
            let end = (survivor % 3 != 2).then_some(end);
            let mut after = Stage { sizes: self.sizes, disk, pool, model: self.model.clone() };
            after.judge(end).map_err(|what| format!("survivor {survivor}: {what}"))?;
        }
        Ok(())
    }
}

/// Plays `before`, then `last` with a power cut at each of its calls and after it.
fn explore(frames: u32, before: Script, last: Script) -> Result<u64, String> {
    meanwhile::play(None);
    for call in 1.. {
        let mut stage = Stage::new(frames, call);
        before(&mut stage).map_err(|error| format!("before: {error}"))?;
        stage.disk.crash_at(stage.disk.calls() + call);
        let outcome = last(&mut stage);
        let is_over = stage.disk.crashed().is_none();
        match outcome {
            Err(error) if is_over => return Err(error.to_string()),
            _ => {}
        }
        stage.judge_survivors(call).map_err(|what| format!("call {call}: {what}"))?;
        if is_over {
            return Ok(call);
        }
    }
    unreachable!("each script ends")
}

/// Explores a script, with a panic as an error.
fn explore_caught(frames: u32, before: Script, last: Script) -> Result<u64, String> {
    let outcome = std::panic::catch_unwind(|| explore(frames, before, last));
    outcome.unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<String>().cloned();
        Err(said.or_else(|| panic.downcast_ref::<&str>().map(|&said| said.into())).unwrap_or_default())
    })
}

/// The script passes, and fails with `bug`.
fn catches(bug: Bug, frames: u32, before: Script, last: Script) {
    let calls = explore_caught(frames, before, last).expect("the script passes without the bug");
    plant(Some(bug));
    let outcome = explore_caught(frames, before, last);
    plant(None);
    match outcome {
        Err(what) => println!("{bug:?}: {what} ({calls} calls)"),
        Ok(_) => panic!("{bug:?} was not caught at any of {calls} calls"),
    }
}

/// A page whose sealed frame has an image.
fn sealed_page(stage: &mut Stage) -> Result<PageId> {
    let id = stage.create()?;
    stage.write(id)?;
    stage.checkpoint()?;
    stage.pool.seal_all();
    Ok(id)
}

const PAGE: PageId = PageId(1);

fn first_sealed(stage: &mut Stage) -> Result<()> {
    assert_eq!(sealed_page(stage)?, PAGE);
    Ok(())
}

/// The page is sealed in the middle tier, and promoted and changed above that.
#[test]
fn catches_unseal_not_at_mapping() {
    fn promoted(stage: &mut Stage) -> Result<()> {
        first_sealed(stage)?;
        stage.pool.set_policy(promoting());
        stage.read(PAGE)
    }
    fn image_of_the_upper(stage: &mut Stage) -> Result<()> {
        stage.write(PAGE)?;
        stage.checkpoint()
    }
    catches(Bug::UnsealNotAtMapping, 4, promoted, image_of_the_upper);
}

/// An older copy below is sealed after the image of the upper one is in force.
#[test]
fn catches_seal_older_copy() {
    fn promoted(stage: &mut Stage) -> Result<()> {
        let id = stage.create()?;
        stage.pool.set_policy(promoting());
        stage.read(id)
    }
    fn sealed_below(stage: &mut Stage) -> Result<()> {
        stage.write(PAGE)?;
        stage.checkpoint()?;
        stage.pool.seal_all();
        Ok(())
    }
    catches(Bug::SealOlderCopy, 4, promoted, sealed_below);
}

/// Pages leave their frames for the store, come back to DRAM, and change there.
#[test]
fn catches_keep_seal_of_vacated() {
    fn full(stage: &mut Stage) -> Result<()> {
        (0..8).try_for_each(|_| sealed_page(stage).map(drop))
    }
    fn evicted_and_changed(stage: &mut Stage) -> Result<()> {
        // One page more evicts three at once, and takes one of their frames.
        stage.create()?;
        stage.checkpoint()?;
        stage.pool.set_policy(past_the_tier());
        (1..=3).try_for_each(|id| stage.write(PageId(id)))?;
        stage.checkpoint()
    }
    catches(Bug::KeepSealOfVacated, 8, full, evicted_and_changed);
}

/// A page is freed, its id used again in another frame, and the log cut past both.
#[test]
fn catches_keep_seal_of_freed() {
    fn used_again(stage: &mut Stage) -> Result<()> {
        stage.free(PAGE)?;
        stage.checkpoint()?;
        stage.pool.set_policy(past_the_tier());
        assert_eq!(stage.create()?, PAGE, "the last freed id is the next");
        stage.write(PAGE)?;
        stage.checkpoint()
    }
    catches(Bug::KeepSealOfFreed, 4, first_sealed, used_again);
}

fn six_sealed(stage: &mut Stage) {
    for id in 1..=6 {
        assert_eq!(sealed_page(stage).expect("nothing fails"), PageId(id));
    }
}

/// Recovers with another number of frames, cut off at `call`, and lives on if it gets there.
fn live_with(stage: &mut Stage, frames: u32, call: u64) -> Result<()> {
    let disk = stage.disk.survivor(call);
    disk.crash_at(disk.calls() + call);
    stage.disk = disk.clone();
    stage.sizes = sizes(frames);
    stage.restart(disk, true)?;
    (1..=6).try_for_each(|id| stage.write(PageId(id)))?;
    stage.checkpoint()
}

/// The tier gets smaller and the database is written. Then the tier is as large as before, where a
/// power cut may have undone the cut of its file.
#[test]
fn catches_keep_seal_beyond_end() {
    for bug in [None, Some(Bug::KeepSealBeyondEnd)] {
        meanwhile::play(None);
        plant(bug);
        let (mut caught, mut ended) = (None, 0);
        for call in (1..40).chain((40..120).step_by(10)) {
            if caught.is_some() {
                break;
            }
            let mut stage = Stage::new(8, call);
            six_sealed(&mut stage);
            ended += u32::from(live_with(&mut stage, 2, call).is_ok());
            for frames in [8, 2] {
                stage.sizes = sizes(frames);
                caught = caught.or(stage.judge_survivors(call).err());
            }
        }
        plant(None);
        assert!(bug.is_some() || (1..40).contains(&ended), "{ended} lives were not cut off");
        assert_eq!(caught.is_some(), bug.is_some(), "{bug:?}: {caught:?}");
    }
}

#[test]
fn a_tier_that_grows_is_cut_off_at_any_call() {
    meanwhile::play(None);
    for call in (1..40).step_by(2) {
        let mut stage = Stage::new(2, call);
        six_sealed(&mut stage);
        let _ = live_with(&mut stage, 8, call);
        for frames in [2, 8, 5] {
            stage.sizes = sizes(frames);
            stage.judge_survivors(call).unwrap_or_else(|what| panic!("call {call}, {frames} frames: {what}"));
        }
    }
}

#[test]
fn frames_that_fit_stay_when_the_tier_gets_another_size() {
    meanwhile::play(None);
    let mut stage = Stage::new(8, 3);
    six_sealed(&mut stage);
    for (frames, fit) in [(40, 6..=6), (8, 6..=6), (3, 1..=3), (8, 1..=3)] {
        stage.sizes = sizes(frames);
        let disk = stage.disk.survivor(frames.into());
        stage.restart(disk, true).unwrap();
        let stats = stage.pool.middle_stats().and_then(|middle| middle.persistent).unwrap();
        assert!(fit.contains(&stats.adopted), "{frames} frames: {stats:?}");
        stage.pool.seal_all();
    }
}

/// The frame has changes that no image has. After a restart the page is evicted, and the log cut.
#[test]
fn catches_redo_leaves_clean() {
    fn sealed_with_changes(stage: &mut Stage) -> Result<()> {
        first_sealed(stage)?;
        stage.write(PAGE)?;
        stage.acknowledge()?;
        stage.pool.seal_all();
        let disk = stage.disk.survivor(5);
        stage.restart(disk, true)
    }
    fn evicted(stage: &mut Stage) -> Result<()> {
        for _ in 0..3 {
            stage.create()?;
        }
        stage.checkpoint()
    }
    catches(Bug::RedoLeavesClean, 2, sealed_with_changes, evicted);
}

/// The database is opened once without the tier, and written.
fn apart_in_between(stage: &mut Stage) -> Result<()> {
    first_sealed(stage)?;
    let disk = stage.disk.survivor(7);
    stage.restart(disk, false)?;
    stage.write(PAGE)?;
    stage.checkpoint()
}

#[test]
fn catches_keep_epoch_of_tier() {
    fn with_it(stage: &mut Stage) -> Result<()> {
        let disk = stage.disk.survivor(8);
        stage.restart(disk, true)
    }
    catches(Bug::KeepEpochOfTier, 4, apart_in_between, with_it);
}

/// As before, and the recovery with the tier is cut off at each of its calls.
#[test]
fn catches_epoch_before_unsealing() {
    for bug in [None, Some(Bug::EpochBeforeUnsealing)] {
        meanwhile::play(None);
        plant(bug);
        let mut caught = None;
        for call in 1..60 {
            let mut stage = Stage::new(4, call);
            apart_in_between(&mut stage).expect("nothing fails before");
            stage.disk = stage.disk.survivor(call);
            stage.disk.crash_at(stage.disk.calls() + call);
            let _ = recover(&stage.disk, &stage.sizes, true);
            caught = caught.or(stage.judge_survivors(call).err());
        }
        plant(None);
        assert_eq!(caught.is_some(), bug.is_some(), "{bug:?}: {caught:?}");
    }
}

/// A kill comes while the seal is going off; then the frame gets another page, and the power goes.
#[test]
fn catches_trust_unsealed_header() {
    for bug in [None, Some(Bug::TrustUnsealedHeader)] {
        meanwhile::play(None);
        plant(bug);
        let mut caught = None;
        for seed in 0..40 {
            let mut stage = Stage::new(1, seed);
            first_sealed(&mut stage).expect("nothing fails before");
            // The write-back of the header is the first call of a change in place.
            stage.disk.crash_at(stage.disk.calls() + 1);
            let _ = stage.write_cell(PAGE, 0);
            assert!(stage.disk.crashed().is_some());
            let disk = stage.disk.killed();
            let lived = stage.restart(disk, true).and_then(|()| {
                stage.write(PAGE)?;
                stage.checkpoint()
            });
            let outcome = lived.map_err(|error| error.to_string());
            caught = caught.or(outcome.and_then(|()| stage.judge_survivors(seed)).err());
        }
        plant(None);
        assert_eq!(caught.is_some(), bug.is_some(), "{bug:?}: {caught:?}");
    }
}

/// A sealed page is changed in place, and the log with the changes may be lost.
fn changed_in_place(stage: &mut Stage) -> Result<()> {
    stage.write(PAGE)?;
    stage.acknowledge()?;
    stage.write(PAGE)
}

#[test]
fn catches_unseal_late() {
    catches(Bug::UnsealLate, 4, first_sealed, changed_in_place);
}

#[test]
fn catches_unseal_unfenced() {
    catches(Bug::UnsealUnfenced, 4, first_sealed, changed_in_place);
}

fn sealed_once_more(stage: &mut Stage) -> Result<()> {
    stage.write(PAGE)?;
    stage.checkpoint()?;
    stage.pool.seal_all();
    stage.read(PAGE)
}

#[test]
fn catches_seal_before_body() {
    catches(Bug::SealBeforeBody, 4, first_sealed, sealed_once_more);
}

#[test]
fn catches_seal_unflushed() {
    catches(Bug::SealUnflushed, 4, first_sealed, sealed_once_more);
}

/// The seal would keep a change whose record is lost.
#[test]
fn catches_seal_before_durable() {
    fn sealed_early(stage: &mut Stage) -> Result<()> {
        stage.write_cell(PAGE, 2)?;
        stage.pool.seal_all();
        Ok(())
    }
    catches(Bug::SealBeforeDurable, 4, first_sealed, sealed_early);
}

/// The image of an adopted page is the only one of its segment.
#[test]
fn catches_adopt_before_count() {
    fn restarted(stage: &mut Stage) -> Result<()> {
        for _ in 0..4 {
            sealed_page(stage)?;
        }
        let disk = stage.disk.survivor(9);
        if planted(Bug::AdoptBeforeCount) {
            // Judged below.
            let (pool, _) = recover(&disk, &stage.sizes, true)?;
            (stage.disk, stage.pool) = (disk, pool);
            return Ok(());
        }
        stage.restart(disk, true)
    }
    fn written(stage: &mut Stage) -> Result<()> {
        for id in 1..=2 {
            stage.write(PageId(id))?;
        }
        stage.checkpoint()
    }
    catches(Bug::AdoptBeforeCount, 8, restarted, written);
}

/// What adoption is for: sealed pages are where they were, and need no image.
#[test]
fn sealed_pages_are_adopted_and_need_no_read() {
    meanwhile::play(None);
    let mut stage = Stage::new(8, 3);
    let pages: Vec<PageId> = (0..6).map(|_| stage.create().unwrap()).collect();
    stage.checkpoint().unwrap();
    pages[..3].iter().for_each(|&id| stage.write(id).unwrap());
    stage.acknowledge().unwrap();
    stage.pool.seal_all();
    let disk = stage.disk.survivor(1);
    let (pool, _) = recover(&disk, &stage.sizes, true).unwrap();
    let stats = || pool.middle_stats().and_then(|middle| middle.persistent).unwrap();
    assert_eq!((stats().adopted, stats().sealed, stats().unseals), (6, 6, 0), "{:?}", stats());
    (stage.disk, stage.pool) = (disk, Arc::clone(&pool));
    stage.judge(None).unwrap();
    assert_eq!(pool.misses(), 0, "no page was read from the store");
    // Changes that no image has hold the log back.
    assert_eq!(pool.pages_dirty_before(pool.wal().tail()), pages[..3]);
}
