//! Turns, one by one and under many threads.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use super::*;

const NEVER: Duration = Duration::from_secs(3600);

fn ended(filed: u64) -> Ended {
    Ended { filed, failed: false, took: None }
}

/// A group that has just served two commits; `usual` bounds its gathering.
fn after_two(usual: Duration) -> Group<()> {
    let group = Group::new(());
    group.state.lock().usual = usual;
    assert_eq!(group.join(10, Pace::Commit, || false), Some(()));
    std::thread::scope(|scope| {
        let other = scope.spawn(|| group.join(20, Pace::Commit, || false));
        wait_for(&group, 1);
        group.leave((), (10, Pace::Commit), ended(20));
        assert_eq!(other.join().unwrap(), None);
    });
    group
}

fn wait_for(group: &Group<()>, waiting: usize) {
    while group.state.lock().waiting.len() != waiting {
        std::thread::yield_now();
    }
}

#[test]
fn a_lone_committer_leads_at_once_each_time() {
    let group = Group::new(());
    for to in 1..100 {
        assert_eq!(group.join(to, Pace::Commit, || false), Some(()));
        group.leave((), (to, Pace::Commit), Ended { took: Some(NEVER), ..ended(to) });
        assert!(group.state.lock().gathering.is_none());
    }
}

#[test]
fn what_is_over_is_not_waited_for() {
    let group = Group::new(());
    assert_eq!(group.join(1, Pace::Commit, || true), None);
    assert_eq!(group.join(1, Pace::Hurry, || false), Some(()));
}

#[test]
fn the_last_of_those_expected_leads() {
    let group = after_two(NEVER);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| group.join(30, Pace::Commit, || false));
        wait_for(&group, 1);
        assert_eq!(group.join(40, Pace::Commit, || false), Some(()));
        assert!(!first.is_finished());
        group.leave((), (40, Pace::Commit), ended(40));
        assert_eq!(first.join().unwrap(), None);
    });
    assert_eq!(group.state.lock().alone, 0);
}

#[test]
fn who_is_in_a_hurry_does_not_gather() {
    let group = after_two(NEVER);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| group.join(30, Pace::Commit, || false));
        wait_for(&group, 1);
        assert_eq!(group.join(40, Pace::Hurry, || false), Some(()));
        group.leave((), (40, Pace::Hurry), ended(40));
        assert_eq!(first.join().unwrap(), None);
    });
}

#[test]
fn who_has_leisure_neither_cuts_a_gathering_short_nor_counts_for_it() {
    let group = after_two(NEVER);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| group.join(30, Pace::Leisure, || false));
        wait_for(&group, 1);
        let second = scope.spawn(|| group.join(40, Pace::Commit, || false));
        wait_for(&group, 2);
        assert_eq!(group.join(50, Pace::Commit, || false), Some(()));
        group.leave((), (50, Pace::Commit), ended(50));
        assert_eq!((first.join().unwrap(), second.join().unwrap()), (None, None));
    });
    assert_eq!(group.state.lock().gathering.as_ref().map(|gathering| gathering.expected), Some(2));
}

#[test]
fn a_guard_leads_when_the_others_stay_away_and_rounds_then_begin_at_once() {
    let group = after_two(Duration::ZERO);
    for disappointments in 1..=8u32 {
        group.state.lock().alone = 0;
        assert_eq!(group.join(30, Pace::Commit, || false), Some(()), "after {disappointments}");
        let alone = group.state.lock().alone;
        assert_eq!(alone, (1 << disappointments).min(ROUNDS_ALONE_MAX));
        // A round of two again, without gathering.
        std::thread::scope(|scope| {
            let other = scope.spawn(|| group.join(30, Pace::Commit, || false));
            wait_for(&group, 1);
            group.leave((), (30, Pace::Commit), ended(30));
            assert_eq!(other.join().unwrap(), None);
        });
        let mut state = group.state.lock();
        assert!(state.gathering.is_none() && state.alone == alone - 1);
        state.alone = 0;
        assert!(state.next_round(2, false).is_none() && state.gathering.is_some());
    }
}

#[test]
fn a_round_that_did_not_serve_somebody_hands_him_the_lead() {
    let group = Group::new(());
    assert_eq!(group.join(10, Pace::Hurry, || false), Some(()));
    std::thread::scope(|scope| {
        let late = scope.spawn(|| group.join(20, Pace::Commit, || false));
        wait_for(&group, 1);
        group.leave((), (10, Pace::Hurry), ended(10));
        assert_eq!(late.join().unwrap(), Some(()));
        assert!(group.state.lock().waiting.is_empty());
    });
}

#[test]
fn a_failure_wakes_all() {
    let group = Group::new(());
    assert_eq!(group.join(10, Pace::Commit, || false), Some(()));
    std::thread::scope(|scope| {
        let waiting: Vec<_> =
            (0..4).map(|_| scope.spawn(|| group.join(u64::MAX, Pace::Commit, || false))).collect();
        wait_for(&group, 4);
        group.leave((), (10, Pace::Commit), Ended { failed: true, ..ended(0) });
        assert!(waiting.into_iter().all(|thread| thread.join().unwrap().is_none()));
    });
    assert_eq!(group.join(10, Pace::Commit, || false), Some(()));
}

#[test]
fn a_call_that_comes_late_is_not_heard() {
    for late in [Call::Guard, Call::Lead] {
        let seat = Seat::new();
        seat.call(Call::Over);
        seat.call(late);
        assert_eq!((seat.wait(None), seat.wait(Some(Instant::now()))), (Call::Over, Call::Wait));
    }
}

#[test]
fn a_newcomer_leads_before_one_who_was_called_and_serves_him() {
    let group = Group::new(());
    assert_eq!(group.join(10, Pace::Hurry, || false), Some(()));
    std::thread::scope(|scope| {
        let late = scope.spawn(|| group.join(20, Pace::Commit, || false));
        wait_for(&group, 1);
        // Mirrors `leave`, but its call is late.
        let seat = {
            let mut state = group.state.lock();
            state.lead = Some(());
            let (seat, call) = state.next_round(0, false).unwrap();
            assert_eq!(call, Call::Lead);
            seat
        };
        assert_eq!(group.join(30, Pace::Hurry, || false), Some(()));
        seat.call(Call::Lead);
        group.leave((), (30, Pace::Hurry), ended(30));
        assert_eq!(late.join().unwrap(), None);
    });
}

/// Many threads append and wait, some urgent: one leads at a time, and all are served.
#[test]
fn one_leads_at_a_time_and_all_are_served() {
    const THREADS: u64 = 12;
    let (group, leads) = (Group::new(()), AtomicBool::new(false));
    let (tail, durable, rounds) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (group, leads, tail, durable, rounds) = (&group, &leads, &tail, &durable, &rounds);
            scope.spawn(move || {
                for turn in 0..1500 {
                    let pace =
                        if thread == 0 || (turn + thread) % 61 == 0 { Pace::Hurry } else { Pace::Commit };
                    let to = tail.fetch_add(1, SeqCst) + 1;
                    while durable.load(SeqCst) < to {
                        let is_over = || durable.load(SeqCst) >= to;
                        if group.join(to, pace, is_over).is_some() {
                            assert!(!leads.swap(true, SeqCst), "two lead");
                            // A round serves what came before it began, sometimes one less for a
                            // hole in the log.
                            let seen =
                                tail.load(SeqCst).saturating_sub(u64::from(rounds.load(SeqCst) % 17 == 0));
                            std::thread::yield_now();
                            durable.fetch_max(seen, SeqCst);
                            rounds.fetch_add(1, SeqCst);
                            assert!(leads.swap(false, SeqCst));
                            let took = Some(Duration::from_micros(20));
                            group.leave((), (to, pace), Ended { took, ..ended(durable.load(SeqCst)) });
                        }
                    }
                }
            });
        }
    });
    assert_eq!(durable.load(SeqCst), THREADS * 1500);
    let state = group.state.lock();
    assert!(state.waiting.is_empty() && state.lead.is_some());
}
