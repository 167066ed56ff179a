//! Limits how long a thread waits for frames or log space.
//!
//! A wait fails when other threads made no progress for `WAIT_MAX`. Maintenance rounds do not
//! count: each thread that asks for one makes rounds shorter. So a small budget makes threads slow,
//! but nothing fails while anything moves.
//!
//! Inline, the waiting thread does the work. Then turns without progress are counted, so tests need
//! no time.

use std::time::{Duration, Instant};

/// Time without progress after which a wait fails.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(10);
/// Turns without progress after which an inline wait fails.
const TURNS_MAX: u32 = 2000;

/// One wait; `P` measures the progress of others.
#[derive(Debug)]
pub(crate) struct Patience<P> {
    inline: bool,
    /// The last progress, its time, and the checks since.
    last: Option<(P, Instant, u32)>,
}

impl<P: PartialEq> Patience<P> {
    /// Begins a wait; `inline` if the waiting thread does the work.
    pub(crate) fn new(inline: bool) -> Self {
        Patience { inline, last: None }
    }

    /// Share of the patience spent since `progress` changed; 1 ends a wait.
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
        /// The last reading of a clock that only readings move, and their step.
        static CLOCK: Cell<Option<(Instant, Duration)>> = const { Cell::new(None) };
    }

    /// From now on only this thread's readings move its clock, each by `step`; with 0, time does.
    pub(crate) fn hasten(step: Duration) {
        CLOCK.set((!step.is_zero()).then(|| (Instant::now(), step)));
    }

    pub(crate) fn now() -> Instant {
        let Some((last, step)) = CLOCK.get() else { return Instant::now() };
        CLOCK.set(Some((last + step, step)));
        last + step
    }

    #[test]
    fn progress_starts_the_time_anew_and_notifications_do_not_end_it() {
        hasten(WAIT_MAX / 100);
        let mut patience = Patience::new(false);
        for moved in 0..20 {
            // Sixty looks take less than the limit.
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
