//! Open loop: requests have fixed times, whether or not earlier ones are answered.
//!
//! A closed loop sends its next request after an answer. If the engine stalls for a second, only
//! one slow request shows it (coordinated omission). Here all times are fixed beforehand, evenly
//! and in turn over the threads, and latencies count from the scheduled time. A late thread sends
//! its requests back to back until it has caught up.
//!
//! Waiting threads sleep. The kernel wakes them some fifty microseconds late, which counts too.

use std::fmt;
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

use super::ycsb::{Kind, Mix};

/// Shorter waits yield instead of sleeping. Equals the kernel's wake-up delay; spinning would take
/// the CPU from the measured engine.
const NAP_MIN: Duration = Duration::from_micros(50);
/// Longest sleep between checks for the end of the run.
const NAP_MAX: Duration = Duration::from_millis(20);

/// Total request rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// The counted kind; `None` means all.
    kind: Option<Kind>,
    per_second: f64,
}

impl Rate {
    /// Requests of all kinds per second that give the counted kind its rate.
    ///
    /// # Errors
    /// If the mix has none of the kind.
    pub fn of_mix(&self, mix: &Mix) -> Result<f64, String> {
        match self.kind.map(|kind| (kind, mix.share(kind))) {
            None => Ok(self.per_second),
            Some((_, share)) if share > 0.0 => Ok(self.per_second / share),
            Some((kind, _)) => Err(format!("--rate {self}: workload {mix} has no {}", kind.name())),
        }
    }
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Rate, String> {
        let names = || Kind::ALL.map(Kind::name).join(", ");
        let Some((name, number)) = text.split_once('=') else {
            return Err(format!("{text:?} is not a rate; write all=N, or OP=N with OP one of {}", names()));
        };
        let kind = match Kind::ALL.into_iter().find(|kind| kind.name() == name) {
            None if name == "all" => None,
            None => return Err(format!("unknown operation {name:?}; use all, {}", names())),
            found => found,
        };
        match number.parse::<f64>() {
            Ok(per_second) if (1e-3..=1e9).contains(&per_second) => Ok(Rate { kind, per_second }),
            _ => Err(format!("{number:?} is not a rate per second from 0.001 to 1000000000")),
        }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.kind.map_or("all", Kind::name), self.per_second)
    }
}

/// Schedule of one thread's requests.
#[derive(Clone, Debug)]
pub struct Schedule {
    began: Instant,
    /// Seconds between this thread's requests.
    step: f64,
    /// Seconds until the first request.
    first: f64,
    made: u64,
}

impl Schedule {
    /// The requests of one of `threads` threads, which together make `per_second`, from now on.
    pub fn new(per_second: f64, thread: u64, threads: u64) -> Schedule {
        Schedule {
            began: Instant::now(),
            step: threads as f64 / per_second,
            first: thread as f64 / per_second,
            made: 0,
        }
    }

    /// Restarts the schedule at `began`.
    pub fn restart(&mut self, began: Instant) {
        (self.began, self.made) = (began, 0);
    }

    /// Time of the next request.
    fn due(&self) -> Instant {
        self.began + Duration::from_secs_f64(self.first + self.step * self.made as f64)
    }

    /// Waits for the next request and returns its scheduled time; `None` once `is_over`.
    pub fn wait(&mut self, is_over: impl Fn() -> bool) -> Option<Instant> {
        let due = self.due();
        while !is_over() {
            match due.saturating_duration_since(Instant::now()) {
                Duration::ZERO => {
                    self.made += 1;
                    return Some(due);
                }
                left if left >= NAP_MIN => thread::sleep(left.min(NAP_MAX)),
                _ => thread::yield_now(),
            }
        }
        None
    }

    /// Requests due before `now` but not made.
    pub fn overdue(&self, now: Instant) -> u64 {
        let elapsed = now.saturating_duration_since(self.began).as_secs_f64() - self.first;
        let due = if elapsed < 0.0 { 0 } else { (elapsed / self.step) as u64 + 1 };
        due.saturating_sub(self.made)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_and_others_refused() {
        for text in ["all=1000", "update=2.5", "read_modify_write=1"] {
            assert_eq!(text.parse::<Rate>().unwrap().to_string(), text);
        }
        for wrong in ["1000", "all=0", "all=-1", "all=NaN", "all=", "delete=5", "=5"] {
            assert!(wrong.parse::<Rate>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_rate_of_one_kind_is_made_one_of_the_mix() {
        let of = |rate: &str, mix: &str| rate.parse::<Rate>().unwrap().of_mix(&mix.parse().unwrap());
        assert_eq!(of("all=100", "b"), Ok(100.0));
        assert_eq!(of("update=5", "b"), Ok(100.0));
        assert_eq!(of("read=50", "a"), Ok(100.0));
        assert!(of("scan=5", "a").unwrap_err().contains("no scan"));
    }

    #[test]
    fn threads_take_turns_evenly() {
        let mut due = Vec::new();
        for thread in 0..4 {
            let mut schedule = Schedule::new(1000.0, thread, 4);
            for _ in 0..25 {
                due.push((schedule.due() - schedule.began).as_micros());
                schedule.made += 1;
            }
        }
        due.sort_unstable();
        assert!(due.iter().zip((0..).step_by(1000)).all(|(&due, even)| due.abs_diff(even) <= 1), "{due:?}");
    }

    #[test]
    fn what_was_not_made_in_time_is_overdue() {
        let mut schedule = Schedule::new(1000.0, 1, 2);
        let began = schedule.began;
        let at = |us| began + Duration::from_micros(us);
        assert_eq!([0, 900, 1100, 2900, 3100].map(|us| schedule.overdue(at(us))), [0, 0, 1, 1, 2]);
        schedule.made = 1;
        assert_eq!(schedule.overdue(at(3100)), 1);
    }

    #[test]
    fn a_late_thread_is_not_kept_waiting_and_counts_from_when_it_was_due() {
        let mut schedule = Schedule::new(1000.0, 0, 1);
        let began = schedule.began;
        schedule.restart(began.checked_sub(Duration::from_secs(1)).unwrap());
        for number in 0..100 {
            let due = schedule.wait(|| false).unwrap();
            assert!((due + Duration::from_secs(1) - began).as_micros().abs_diff(number * 1000) <= 1);
        }
        assert!(schedule.overdue(began) >= 900);
        assert_eq!(schedule.wait(|| true), None);
    }
}
