//! Backups of a pool in use, and their restores.
//!
//! Steps of the backup and of a life take turns, with write-back, checkpoints and cleaning. Log and
//! page file are so small that both are reused. By seed, a call of the source's or the target's
//! disk ends the run, or none. The promises:
//!
//! - a completed backup survives a power cut. Its restore has the state after the last commit below
//!   its end, which includes every commit acknowledged before the backup began;
//! - a failed backup has no effect on its source, which goes on and recovers as usual.

use std::cell::RefCell;
use std::rc::Rc;

use terrace_io::{Directory, OpenMode, SimulatedDisk};

use super::cycle::{Plan, read_all};
use super::life::{Halt, Life};
use super::meanwhile::{self, Random, Script, State};
use super::model::Model;
use super::raw::Raw;
use super::{create, open, open_with_ring};
use crate::backup::{Archive, Backup, Visitor};
use crate::error::{Error, Result};
use crate::ids::{Lsn, PageId};
use crate::maintenance::Maintenance;
use crate::store::files::Files;
use crate::wal::read_header;
use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Restored,
    SourceCrashed,
    TargetCrashed,
}

/// Refuses damage and checks nothing else.
struct Strict;

impl Visitor for Strict {
    fn image(&mut self, _id: PageId, _image: &[u8]) -> Result<(), String> {
        Ok(())
    }

    fn damage(&mut self, error: Error) -> Result<()> {
        Err(error)
    }
}

fn recover(disk: &SimulatedDisk, plan: &Plan) -> Result<Arc<Maintenance>> {
    recover_files(open_with_ring(disk, &plan.sizes)?, plan)
}

fn recover_files(files: Files, plan: &Plan) -> Result<Arc<Maintenance>> {
    let mut recovered = crate::recovery::recover(&files, &plan.sizes.options(), &Raw)?;
    crate::recovery::undo_losers(
        &recovered.maintenance,
        &files,
        std::mem::take(&mut recovered.losers),
        &Raw,
    )?;
    plan.sizes.other_class().map_or(Ok(()), |class| recovered.maintenance.resizer().use_class(class))?;
    Ok(recovered.maintenance)
}

pub(super) fn empty(seed: u64) -> (SimulatedDisk, Files) {
    let disk = SimulatedDisk::new(seed);
    let file = |name| disk.open(name, OpenMode::CreateNew).expect("a new disk is empty");
    let files = Files::new(file("pages"), file("log"));
    disk.sync().expect("a new disk works");
    (disk, files)
}

/// Checks that the pool holds what `model` says, for a log that ended at `end`.
fn judge(pool: &Maintenance, model: &mut Model, end: Option<Lsn>) -> Result<(), String> {
    model.judge(&read_all(pool)?, end, pool.timestamp_now())?;
    match &pool.audit()[..] {
        [] => Ok(()),
        faults => Err(faults.join("; ")),
    }
}

fn run(plan: Plan) -> Result<Outcome, String> {
    let disk = SimulatedDisk::new(plan.seed);
    create(&disk, &plan.sizes);
    let state = State {
        model: Model::default(),
        random: Random(plan.seed),
        sizes: plan.sizes,
        aligned: false,
        open_max: plan.open_max,
        resizes: plan.resizes,
    };
    let script: Script = Rc::new(RefCell::new(state));
    let pool = recover(&disk, &plan).map_err(|error| error.to_string())?;
    meanwhile::play(Some(meanwhile::follow(script.clone())));
    let outcome = back_up(&plan, &pool, &script, &disk);
    meanwhile::play(None);
    drop(pool);
    let (outcome, disk) = outcome?;
    // The source is right whatever happened to the backup.
    let left = disk.survivor(plan.seed);
    let pool = recover(&left, &plan).map_err(|error| format!("the source: {error}"))?;
    judge(&pool, &mut script.borrow_mut().model, None).map_err(|what| format!("the source: {what}"))?;
    Ok(outcome)
}

fn back_up(
    plan: &Plan,
    pool: &Maintenance,
    script: &Script,
    disk: &SimulatedDisk,
) -> Result<(Outcome, SimulatedDisk), String> {
    let below = |limit| script.borrow_mut().random.below(limit);
    let mut life = Life::new(pool, script.clone());
    life.run(plan.steps).map_err(|halt| halt.to_string())?;
    let (target, files) = empty(plan.seed);
    match plan.seed % 4 {
        0 => disk.crash_at(disk.calls() + 1 + below(60) as u64),
        1 => target.crash_at(target.calls() + 1 + below(30) as u64),
        _ => {}
    }
    let source_failed = |what: String| match disk.crashed() {
        Some(_) => Ok((Outcome::SourceCrashed, disk.clone())),
        None => Err(what),
    };
    let mut at_end: Option<(Lsn, Model)> = None;
    let mut backup = Backup::begin(pool, files).map_err(|error| error.to_string())?;
    // In some runs writers take the log that the backup holds, which then gets another end.
    let mut log_taken = if plan.seed.is_multiple_of(3) { 0 } else { 4 };
    let copied = loop {
        let stepped = backup.step();
        if let Some(end) = backup.end()
            && at_end.as_ref().is_none_or(|(known, _)| *known != end)
        {
            at_end = Some((end, script.borrow().model.clone()));
        }
        match stepped {
            Ok(Some(copied)) => break copied,
            Ok(None) => {}
            Err(_) if target.crashed().is_some() => {
                drop::<Backup<'_>>(backup);
                // Nothing is left of it: the log can be cut again, and later work succeeds.
                life.run(plan.steps).map_err(|halt| format!("after a failed backup: {halt}"))?;
                return Ok((Outcome::TargetCrashed, disk.clone()));
            }
            Err(error) => return source_failed(format!("the backup failed: {error}")),
        }
        if backup.holds_log() && log_taken < 4 && below(2) == 0 {
            pool.take_log_from_backup();
            log_taken += 1;
        }
        match life.run(below(12) as u32) {
            Ok(()) => {}
            // The last round holds the log. Others wait for it to end, and it does.
            Err(Halt::NoRoom) if backup.holds_log() => {}
            Err(Halt::Engine(error)) => return source_failed(format!("beside the backup: {error}")),
            Err(halt) => return Err(halt.to_string()),
        }
    };
    drop(backup);
    let (end, mut model) = at_end.ok_or("the backup is done and has no end")?;
    if copied.end != end {
        return Err(format!("the backup ends at {}, not {end}", copied.end));
    }
    // Nothing else works on the restored pool.
    meanwhile::play(None);
    let restored =
        restore(plan, &target.survivor(plan.seed)).map_err(|error| format!("restoring: {error}"))?;
    judge(&restored, &mut model, Some(end)).map_err(|what| format!("what was restored: {what}"))?;
    Ok((Outcome::Restored, disk.clone()))
}

pub(super) fn restore(plan: &Plan, backup: &SimulatedDisk) -> Result<Arc<Maintenance>> {
    let files = open(backup).map_err(|source| Error::io("open", "the backup", None, source))?;
    let archive = Archive::open(files)?;
    let checked = archive.check(&mut Strict)?;
    let (disk, files) = empty(plan.seed);
    let restored = archive.restore(&files, 77, &mut Strict)?;
    assert_eq!(checked, restored);
    assert_eq!(read_header(&*files.log)?.timeline, 77);
    let files = open(&disk.survivor(plan.seed));
    recover_files(files.map_err(|source| Error::io("open", "the copy", None, source))?, plan)
}

/// Runs like [`run`], with a panic as an error.
pub(super) fn run_caught(plan: Plan) -> Result<(), String> {
    let outcome = std::panic::catch_unwind(|| run(plan));
    outcome.map_or_else(
        |_| {
            meanwhile::play(None);
            Err("a panic".into())
        },
        |outcome| outcome.map(|_| ()),
    )
}

#[test]
fn what_is_restored_is_the_state_after_a_commit() {
    restore_all(Plan::random, 160);
}

#[test]
fn what_is_restored_of_a_log_in_persistent_memory_is_the_state_after_a_commit() {
    restore_all(Plan::ring, 120);
}

#[test]
fn what_is_restored_of_pages_of_two_sizes_is_the_state_after_a_commit() {
    restore_all(Plan::mixed, 120);
}

#[test]
fn what_is_restored_of_pages_for_values_is_the_state_after_a_commit() {
    restore_all(Plan::values, 16);
}

fn with_backup(test: impl FnOnce(&Maintenance, Backup<'_>)) {
    let plan = Plan { steps: 200, ..Plan::random(1) };
    let disk = SimulatedDisk::new(plan.seed);
    create(&disk, &plan.sizes);
    let pool = recover(&disk, &plan).unwrap();
    let (_target, files) = empty(plan.seed);
    test(&pool, Backup::begin(&pool, files).unwrap());
}

#[test]
fn a_backup_whose_log_was_needed_copies_it_again_to_a_later_end() {
    with_backup(|pool, mut backup| {
        while !backup.holds_log() {
            backup.step().unwrap();
        }
        pool.take_log_from_backup();
        assert_eq!(backup.step().unwrap(), None);
        assert!(!backup.holds_log(), "it begins its last round again");
        assert!((0..10_000).any(|_| backup.step().unwrap().is_some()));
    });
}

/// After the most rounds, the last round restarted at once with all changes made meanwhile.
#[test]
fn a_backup_whose_log_was_needed_after_its_last_round_has_rounds_again() {
    with_backup(|pool, mut backup| {
        backup.use_up_rounds();
        while !backup.holds_log() {
            backup.step().unwrap();
        }
        assert_eq!(backup.rounds_left(), 0);
        pool.take_log_from_backup();
        assert_eq!(backup.step().unwrap(), None);
        assert!(backup.rounds_left() > 1, "{} rounds", backup.rounds_left());
        assert!((0..10_000).any(|_| backup.step().unwrap().is_some()));
    });
}

#[test]
fn a_backup_whose_log_is_needed_every_time_fails() {
    with_backup(|pool, mut backup| {
        let failed = (0..10_000).find_map(|_| {
            pool.take_log_from_backup();
            backup.step().err()
        });
        assert!(matches!(failed, Some(Error::Io { operation: "back up", .. })), "{failed:?}");
    });
}

/// Runs the plans of `cycles` seeds, or of the requested ones.
fn restore_all(plan: fn(u64) -> Plan, cycles: u64) {
    let seeds = super::tests::seeds(cycles);
    let mut outcomes = Vec::new();
    for seed in seeds.clone() {
        match run(plan(seed)) {
            Ok(outcome) => outcomes.push(outcome),
            Err(what) => panic!("TERRACE_CRASH_SEED={seed} replays this: {what}"),
        }
    }
    let count = |wanted| outcomes.iter().filter(|&&outcome| outcome == wanted).count();
    let counts = [Outcome::Restored, Outcome::SourceCrashed, Outcome::TargetCrashed].map(count);
    println!("{counts:?} restored, cut off by the source, by the target");
    assert!(outcomes.len() < 100 || counts.iter().all(|&count| count > 10), "{counts:?}");
}
