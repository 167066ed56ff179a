//! When a transaction gets priority, and when it gives up. Only tests move the clock.

use super::*;
use crate::txn::snapshots::{ManualTime, TimeSource};
use crate::{TableId, Timestamp};

const TABLE: TableId = TableId(1);
const MILLISECOND: Duration = Duration::from_millis(1);

fn gate() -> (Gate, Arc<ManualTime>) {
    let time = Arc::new(ManualTime::default());
    (Gate::new(Arc::clone(&time) as Arc<dyn TimeSource>), time)
}

fn reads() -> ReadSet {
    let mut reads = ReadSet::default();
    reads.point(TABLE, b"key", Some(Timestamp(1)));
    reads
}

/// Runs of length `run` until one has priority; returns how many had none.
fn runs_without_priority(effort: &mut Effort<'_>, time: &ManualTime, run: Duration) -> u32 {
    for runs in 0..100 {
        if let Some(protected) = effort.begin_run() {
            drop(protected);
            return runs;
        }
        time.advance(run);
        assert!(effort.goes_on(false, &reads()));
    }
    unreachable!("no run has priority")
}

#[test]
fn priority_comes_by_conflicts_for_a_short_body_and_by_time_for_a_long_one() {
    for (run, expected) in [
        (Duration::ZERO, MAX_CONFLICTS),
        (6 * MILLISECOND, MAX_CONFLICTS),
        (50 * MILLISECOND, 2),
        (200 * MILLISECOND, 1),
        (Duration::from_secs(10), 1),
    ] {
        let (gate, time) = gate();
        let runs = runs_without_priority(&mut Effort::new(&gate), &time, run);
        assert_eq!(runs, expected, "with runs of {run:?}");
    }
}

#[test]
fn protection_lasts_twice_the_longest_run_within_bounds() {
    for (run, expected) in [
        (MILLISECOND, PROTECTED_MIN),
        (200 * MILLISECOND, 400 * MILLISECOND),
        (Duration::from_secs(60), PROTECTED_MAX),
    ] {
        let (gate, time) = gate();
        let mut effort = Effort::new(&gate);
        runs_without_priority(&mut effort, &time, run);
        assert_eq!(effort.length(), expected, "after runs of {run:?}");
        time.advance(30 * MILLISECOND);
        assert!(effort.goes_on(true, &reads()));
        assert_eq!(effort.length(), expected.max(60 * MILLISECOND), "a run with priority counts, too");
    }
}

/// A body waits for a commit that writes its reads: the commit waits for its time limit, the body
/// for the commit.
#[test]
fn a_body_that_waits_for_a_commit_that_waits_for_it_gives_up() {
    let (gate, time) = gate();
    let mut effort = Effort::new(&gate);
    runs_without_priority(&mut effort, &time, MILLISECOND);
    let mut stalls = vec![PROTECTED_MIN];
    loop {
        let stall = *stalls.last().unwrap();
        time.advance(stall);
        if !effort.goes_on(true, &reads()) {
            break;
        }
        stalls.push(effort.length());
        drop(effort.begin_run().unwrap());
    }
    assert_eq!(stalls, [10, 20, 40].map(Duration::from_millis), "how long others are kept waiting");
}

#[test]
fn a_body_that_meets_conflicts_to_the_end_gives_up() {
    let (gate, time) = gate();
    let mut effort = Effort::new(&gate);
    runs_without_priority(&mut effort, &time, MILLISECOND);
    let mut runs = 1;
    while effort.goes_on(false, &reads()) {
        drop(effort.begin_run().unwrap());
        runs += 1;
    }
    assert_eq!(runs, PROTECTED_RUNS_MAX);
}

#[test]
fn what_a_run_has_read_is_protected_in_all_runs_after_it() {
    let (gate, time) = gate();
    let mut effort = Effort::new(&gate);
    for _ in 0..2 {
        assert!(effort.begin_run().is_none());
        time.advance(PATIENCE);
        assert!(effort.goes_on(false, &reads()));
        if effort.protected.is_some() {
            break;
        }
    }
    let first = effort.begin_run().unwrap();
    let mut further = ReadSet::default();
    further.protect(Arc::clone(&first.reads));
    further.point(TABLE, b"another", None);
    drop(first);
    assert!(effort.goes_on(false, &further));
    let second = effort.begin_run().unwrap();
    for key in [&b"key"[..], b"another"] {
        assert!(second.reads.holds(TABLE, key), "{key:?}");
    }
    assert!(!second.reads.holds(TABLE, b"third"));
}

#[test]
fn a_transaction_within_the_body_of_one_with_priority_does_not_wait_for_it() {
    let (gate, time) = gate();
    let mut outer = Effort::new(&gate);
    runs_without_priority(&mut outer, &time, MILLISECOND);
    assert!(outer.goes_on(false, &reads()));
    let outermost = outer.begin_run().unwrap();
    let mut inner = Effort::new(&gate);
    let mut runs = 0;
    loop {
        // It has no turn, but commits of its reads wait from then on, so its conflicts end.
        match inner.begin_run() {
            None => assert!(runs < MAX_CONFLICTS),
            Some(Protected { turn, reads }) => {
                assert!(turn.is_none() && Arc::ptr_eq(&reads, &outermost.reads));
            }
        }
        runs += 1;
        if !inner.goes_on(false, &reads()) {
            break;
        }
    }
    assert_eq!(runs, MAX_CONFLICTS + PROTECTED_RUNS_MAX);
}
