//! The clock against a naive model, and under many threads.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::AtomicBool;

use proptest::prelude::*;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::Error;

fn idle() -> Result<()> {
    Ok(())
}

#[test]
fn visible_stops_at_a_commit_that_is_not_durable() {
    let clock = Clock::starting_above(Timestamp(10), 8);
    let (first, second, third) =
        (clock.draw(idle).unwrap(), clock.draw(idle).unwrap(), clock.draw(idle).unwrap());
    assert_eq!(first.timestamp(), Timestamp(11));
    assert_eq!(clock.highest_drawn(), Timestamp(13));
    third.complete(Outcome::Buffered);
    assert_eq!(clock.advance(Lsn(0)), Timestamp(10));
    first.complete(Outcome::Sync { needs: Lsn(4096) });
    drop(second);
    assert_eq!(clock.advance(Lsn(4095)), Timestamp(10));
    assert_eq!(clock.advance(Lsn(4096)), Timestamp(13));
}

#[test]
fn a_full_window_makes_drawers_wait_until_it_moves() {
    let clock = Clock::starting_above(Timestamp(0), 2);
    let (first, second) = (clock.draw(idle).unwrap(), clock.draw(idle).unwrap());
    let mut waiting = Some(first);
    let third = clock
        .draw(|| {
            if let Some(first) = waiting.take() {
                first.complete(Outcome::Buffered);
            }
            clock.advance(Lsn(0));
            Ok(())
        })
        .unwrap();
    assert_eq!(third.timestamp(), Timestamp(3));
    drop((second, third));
    assert_eq!(clock.advance(Lsn(0)), Timestamp(3));
}

#[test]
fn waiters_learn_that_it_is_hopeless() {
    let clock = Clock::starting_above(Timestamp(0), 2);
    let tickets = (clock.draw(idle).unwrap(), clock.draw(idle).unwrap());
    let mut rounds = 0;
    let mut poisoned = || {
        rounds += 1;
        if rounds > 60 { Err(Error::Poisoned { reason: "test".into() }) } else { Ok(()) }
    };
    assert!(clock.wait_visible(Timestamp(1), &mut poisoned).is_err());
    assert!(clock.draw(&mut poisoned).is_err());
    assert_eq!(clock.highest_drawn(), Timestamp(2), "nothing was drawn by the failed draw");
    drop(tickets);
    assert_eq!(clock.advance(Lsn(0)), Timestamp(2));
}

#[derive(Clone, Debug)]
enum Step {
    Draw,
    Complete(prop::sample::Index, u8),
    Durable(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => Just(Step::Draw),
        3 => (any::<prop::sample::Index>(), 0u8..4).prop_map(|(which, how)| Step::Complete(which, how)),
        2 => (0u64..64).prop_map(Step::Durable),
    ];
    prop::collection::vec(step, 1..200)
}

proptest! {
    #[test]
    fn visible_is_the_longest_decided_prefix(steps in steps(), start in 0u64..1000) {
        let clock = Clock::starting_above(Timestamp(start), 16);
        let mut open: Vec<Ticket<'_>> = Vec::new();
        let mut needs: BTreeMap<u64, u64> = BTreeMap::new();
        let (mut drawn, mut visible, mut durable) = (start, start, 0);
        for step in steps {
            match step {
                Step::Draw if drawn - visible < 16 => {
                    drawn += 1;
                    let ticket = clock.draw(idle).unwrap();
                    prop_assert_eq!(ticket.timestamp().0, drawn);
                    open.push(ticket);
                }
                Step::Complete(which, how) if !open.is_empty() => {
                    let ticket = open.swap_remove(which.index(open.len()));
                    let need = durable + u64::from(how) * 10;
                    needs.insert(ticket.timestamp().0, if how == 0 { 0 } else { need });
                    ticket.complete(if how == 0 { Outcome::Buffered } else { Outcome::Sync { needs: Lsn(need) } });
                }
                Step::Durable(more) => durable += more,
                _ => {}
            }
            while needs.get(&(visible + 1)).is_some_and(|&need| need <= durable) {
                visible += 1;
            }
            prop_assert_eq!(clock.advance(Lsn(durable)), Timestamp(visible));
            prop_assert_eq!(clock.visible(), Timestamp(visible));
        }
    }
}

/// A small window, and a "log" made durable by its own thread: every waiter returns, nothing is
/// visible early.
#[test]
fn many_threads_commit_and_wait() {
    let seed = 0xc10c;
    println!("seed {seed:#x}");
    let clock = Clock::starting_above(Timestamp(5), 4);
    let (appended, durable, stop) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let committers: Vec<_> = (0..6)
            .map(|thread| {
                let (clock, appended, durable) = (&clock, &appended, &durable);
                scope.spawn(move || {
                    let mut random = SmallRng::seed_from_u64(seed + thread);
                    let advance = || {
                        clock.advance(Lsn(durable.load(SeqCst)));
                        Ok(())
                    };
                    for _ in 0..3000 {
                        let ticket = clock.draw(advance).unwrap();
                        let timestamp = ticket.timestamp();
                        let needs = appended.fetch_add(1, SeqCst) + 1;
                        match random.random_range(0..4) {
                            0 => drop(ticket),
                            1 => ticket.complete(Outcome::Buffered),
                            _ => {
                                ticket.complete(Outcome::Sync { needs: Lsn(needs) });
                                clock.wait_visible(timestamp, advance).unwrap();
                                assert!(durable.load(SeqCst) >= needs);
                                continue;
                            }
                        }
                        clock.wait_visible(timestamp, advance).unwrap();
                    }
                })
            })
            .collect();
        let (clock, appended, durable, stop) = (&clock, &appended, &durable, &stop);
        scope.spawn(move || {
            while !stop.load(SeqCst) {
                durable.store(appended.load(SeqCst), SeqCst);
                clock.advance(Lsn(durable.load(SeqCst)));
                std::thread::yield_now();
            }
        });
        committers.into_iter().for_each(|thread| thread.join().unwrap());
        stop.store(true, SeqCst);
    });
    assert_eq!(clock.visible(), clock.highest_drawn());
    assert_eq!(clock.visible(), Timestamp(5 + 6 * 3000));
}

/// Timestamps of threads that commit at the same time are on different lines, and neighbours not on
/// neighbouring ones.
#[test]
fn consecutive_timestamps_have_entries_of_their_own() {
    for window in [2, 4, 32, 64, 4096] {
        let clock = Clock::starting_above(Timestamp(0), window);
        for first in [1, 2, 63, 64, 65, 4095, u64::from(u32::MAX)] {
            let entry = |timestamp: u64| std::ptr::from_ref(clock.pending(timestamp)) as usize;
            let all: HashSet<usize> = (first..first + window as u64).map(entry).collect();
            assert_eq!(all.len(), window, "{window} from {first} on");
            let line = |timestamp| entry(timestamp) / 64;
            let lines: HashSet<usize> = (first..first + APART as u64).map(line).collect();
            assert_eq!(lines.len(), APART, "{window} from {first} on");
            assert!(line(first).abs_diff(line(first + 1)) > 1, "{window} from {first} on");
        }
    }
}
