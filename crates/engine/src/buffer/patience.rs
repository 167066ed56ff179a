//! How long a thread waits for what others must do first: frames, log space.
//!
//! A wait ends in failure when nobody has come any further for a stated time, not after a number of rounds of the
//! upkeep: every thread that rings for one makes rounds short, so that many of them say nothing about time. Progress of
//! others starts the time anew. So a budget that is small for the threads there are makes them slow, and nothing fails
//! as long as anything moves.
//!
//! Without a thread for the upkeep, whoever waits does the work itself. Then a number of turns that got nowhere ends it,
//! so that a test without threads needs no time.

use std::time::{Duration, Instant};

/// A wait ends when others have got nowhere for so long.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(10);
/// Turns that get nowhere, where whoever waits does the work itself.
const TURNS_MAX: u32 = 2000;

/// One wait. `P` says how far others have come.
#[derive(Debug)]
pub(crate) struct Patience<P> {
    inline: bool,
    /// How far they were when they last moved, when that was, and how often it was looked at since.
    last: Option<(P, Instant, u32)>,
}

impl<P: PartialEq> Patience<P> {
    /// A wait that begins now. `inline`: whoever waits does the work itself.
    pub(crate) fn new(inline: bool) -> Self {
        Patience { inline, last: None }
    }

    /// Which part of the patience is spent, others having come as far as `progress` by now: 0 when they have just moved,
    /// 1 and more when they have not for `limit`.
    pub(crate) fn spent(&mut self, progress: P, limit: Duration) -> f64 {
        let now = now();
        match &mut self.last {
            Some((seen, since, turns)) if *seen == progress => {
                *turns += 1;
                match self.inline {
                    true => f64::from(*turns) / f64::from(TURNS_MAX),
                    false => now.saturating_duration_since(*since).as_secs_f64() / limit.as_secs_f64(),
                }
            }
            _ => {
                self.last = Some((progress, now, 0));
                0.0
            }
        }
    }

    /// Whether to wait on.
    pub(crate) fn lasts(&mut self, progress: P) -> bool {
        self.spent(progress, WAIT_MAX) < 1.0
    }
}

#[cfg(not(test))]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
pub(crate) use tests::{hasten, now};

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        static STEP: Cell<Duration> = const { Cell::new(Duration::ZERO) };
        static AHEAD: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    }

    /// Has each look at the clock of this thread's waits come `step` after the last one.
    pub(crate) fn hasten(step: Duration) {
        STEP.set(step);
    }

    pub(crate) fn now() -> Instant {
        AHEAD.set(AHEAD.get() + STEP.get());
        Instant::now() + AHEAD.get()
    }

    #[test]
    fn progress_starts_the_time_anew_and_notifications_do_not_end_it() {
        hasten(WAIT_MAX / 100);
        let mut patience = Patience::new(false);
        for moved in 0..20 {
            // Many more looks than there were rounds once, in less than the time.
            for look in 0..60 {
                assert!(patience.lasts(moved), "{moved}, look {look}");
            }
        }
        let looks = (0..).take_while(|_| patience.lasts(20)).count();
        hasten(Duration::ZERO);
        assert!((99..=101).contains(&looks), "{looks}");
    }

    #[test]
    fn without_threads_turns_count_that_got_nowhere() {
        let mut patience = Patience::new(true);
        for turn in 0..3 * TURNS_MAX {
            assert!(patience.lasts(turn / 100));
        }
        assert_eq!((0..).take_while(|_| patience.lasts(u32::MAX)).count() as u32, TURNS_MAX);
    }
}
