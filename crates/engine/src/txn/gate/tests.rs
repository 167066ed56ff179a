//! Shared and exclusive entries, and waiting. Only tests move the clock.

use std::ops::Bound::{Excluded, Included};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::mpsc;

use super::*;
use crate::TableId;
use crate::planted::plant;
use crate::txn::snapshots::ManualTime;

const TABLE: TableId = TableId(1);
const SECOND: Duration = Duration::from_secs(1);

fn gate() -> (Gate, Arc<ManualTime>) {
    let time = Arc::new(ManualTime::default());
    (Gate::new(Arc::clone(&time) as Arc<dyn TimeSource>), time)
}

/// A key, and a range.
fn reads() -> Arc<ProtectedReads> {
    let reads = ProtectedReads::default();
    reads.point(TABLE, b"key");
    reads.range(TABLE, (Included(b"m"), Excluded(b"p")));
    Arc::new(reads)
}

fn enter<'g>(gate: &'g Gate, key: &[u8]) -> Shared<'g> {
    gate.enter(|reads| reads.holds(TABLE, key))
}

/// Runs `meanwhile` once another thread's commit of `key` is inside or waits; returns whether it
/// was inside by then.
fn enters_at_once(gate: &Gate, key: &[u8], bug: Option<Bug>, meanwhile: impl FnOnce()) -> bool {
    let inside = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let waited = gate.waits();
        scope.spawn(|| {
            plant(bug);
            let _inside = enter(gate, key);
            inside.store(true, SeqCst);
        });
        while !inside.load(SeqCst) && gate.waits() == waited {
            std::thread::yield_now();
        }
        let at_once = inside.load(SeqCst);
        meanwhile();
        at_once
    })
}

#[test]
fn who_is_alone_may_also_enter_shared() {
    let (gate, _) = gate();
    let alone = gate.enter_alone();
    drop(enter(&gate, b""));
    drop(alone);
    drop(enter(&gate, b""));
    assert!(gate.size_bytes() >= SLOTS * 128);
}

#[test]
fn alone_excludes_everybody() {
    let (gate, _) = gate();
    let (shared, alone) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for thread in 0..5 {
            let (gate, shared, alone) = (&gate, &shared, &alone);
            scope.spawn(move || {
                for round in 0..4000 {
                    if round % 50 == thread {
                        // Some have priority, which sets and clears a bit of the same word.
                        let turn = (round % 3 == 0).then(|| gate.take_turn(reads(), SECOND));
                        let _inside = turn.map_or_else(|| gate.enter_alone(), Turn::alone);
                        assert_eq!(alone.fetch_add(1, SeqCst), 0);
                        assert_eq!(shared.load(SeqCst), 0);
                        std::thread::yield_now();
                        assert_eq!(shared.load(SeqCst), 0);
                        alone.fetch_sub(1, SeqCst);
                    } else {
                        let _inside = enter(gate, b"another");
                        shared.fetch_add(1, SeqCst);
                        assert_eq!(alone.load(SeqCst), 0);
                        shared.fetch_sub(1, SeqCst);
                    }
                }
            });
        }
    });
    assert_eq!(gate.state.load(SeqCst), 0);
}

#[test]
fn a_commit_waits_for_the_turn_that_has_read_what_it_writes_and_others_pass() {
    let (gate, _) = gate();
    let turn = gate.take_turn(reads(), SECOND);
    for key in [&b"zebra"[..], b"kez", b"l", b"p"] {
        assert!(enters_at_once(&gate, key, None, || {}), "{key:?} was not read");
    }
    drop(enter(&gate, b"key"));
    assert!(turn.lasts(), "commits of the thread that has the turn pass, and do not end it");
    drop(turn);
    for key in [&b"key"[..], b"m", b"nn"] {
        let turn = gate.take_turn(reads(), SECOND);
        assert!(!enters_at_once(&gate, key, None, || drop(turn)), "{key:?} was read");
    }
}

#[test]
fn protection_lapses_when_its_time_is_over() {
    let (gate, time) = gate();
    let turn = gate.take_turn(reads(), SECOND);
    time.advance(SECOND - Duration::from_nanos(1));
    let lasts_until_then = std::cell::Cell::new(false);
    let waited = !enters_at_once(&gate, b"key", None, || {
        lasts_until_then.set(turn.lasts());
        time.advance(Duration::from_nanos(1));
    });
    assert!(waited && lasts_until_then.get());
    assert!(!turn.lasts());
    assert!(enters_at_once(&gate, b"key", None, || {}), "nothing is protected any more");
    assert_eq!(gate.state.load(SeqCst), 0);
}

#[test]
fn a_turn_that_nobody_waits_for_lasts_beyond_its_time() {
    let (gate, time) = gate();
    let turn = gate.take_turn(reads(), SECOND);
    time.advance(10 * SECOND);
    assert!(enters_at_once(&gate, b"zebra", None, || {}));
    assert!(turn.lasts());
}

#[test]
fn a_commit_waits_no_longer_than_its_own_bound() {
    let (gate, time) = gate();
    let turn = gate.take_turn(reads(), 10 * WAIT_MAX);
    assert!(!enters_at_once(&gate, b"key", None, || time.advance(WAIT_MAX)));
    assert!(turn.lasts(), "others still wait for it");
}

#[test]
fn the_next_turn_begins_when_the_time_of_the_last_is_over() {
    let (gate, time) = gate();
    let turn = gate.take_turn(reads(), SECOND);
    std::thread::scope(|scope| {
        let next = scope.spawn(|| gate.take_turn(reads(), SECOND).lasts());
        while gate.priority.waiting() == 0 {
            std::thread::yield_now();
        }
        time.advance(SECOND);
        assert!(next.join().unwrap());
    });
    assert!(!turn.lasts());
}

/// A commit inside when a turn begins has not checked the protection; the turn waits for it.
#[test]
fn a_turn_waits_for_the_commits_that_are_inside() {
    let (gate, _) = gate();
    let inside = enter(&gate, b"key");
    let left = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let turn = scope.spawn(|| {
            let turn = gate.take_turn(reads(), SECOND);
            assert!(left.load(SeqCst));
            drop(turn);
        });
        while gate.state.load(SeqCst) & !PROTECTED == 0 {
            std::thread::yield_now();
        }
        left.store(true, SeqCst);
        drop(inside);
        turn.join().unwrap();
    });
}

#[test]
fn catches_write_protected_reads() {
    let (gate, _) = gate();
    let _turn = gate.take_turn(reads(), SECOND);
    assert!(enters_at_once(&gate, b"key", Some(Bug::WriteProtectedReads), || {}));
}

#[test]
fn catches_protect_for_ever() {
    let commits_after_the_time = |bug| {
        let (gate, time) = gate();
        let turn = gate.take_turn(reads(), SECOND);
        time.advance(10 * WAIT_MAX);
        std::thread::scope(|scope| {
            let (sender, receiver) = mpsc::channel();
            let gate = &gate;
            scope.spawn(move || {
                plant(bug);
                drop(enter(gate, b"key"));
                sender.send(())
            });
            // With the bug, nothing arrives before the turn is dropped.
            let patience = if bug.is_some() { Duration::from_millis(100) } else { 60 * SECOND };
            let came = receiver.recv_timeout(patience).is_ok();
            drop(turn);
            came
        })
    };
    assert!(commits_after_the_time(None));
    assert!(!commits_after_the_time(Some(Bug::ProtectForEver)));
}
