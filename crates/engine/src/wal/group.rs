//! Turns of group commit: one thread leads, the others wait, each in its own seat.
//!
//! A round's end wakes only the threads that it served: one sleep and one wake-up per commit. If
//! some remain, the first is called to lead. The lead stays free until it comes, and a newcomer may
//! take it. Whenever the lead is free and a thread waits, one has an unanswered call.
//!
//! **Gathering.** A round right after the last would find hardly any thread, as the served ones are
//! still waking: two alternating halves would each wait for two writes. So the next round waits for
//! as many as the last one served; the last to come leads. Gathering never delays a lone committer
//! or an urgent thread, and lasts at most half a recent write. If the expected threads stay away,
//! the next rounds skip it, twice as many each time.
//!
//! One thread in a gathering is its *guard*: it sleeps only until the time is over, and then leads
//! if none has. (It must not yield instead: beside a busy thread, a yield lasts milliseconds.)
//!
//! Loom covers the turns of a few threads:
//! `RUSTFLAGS="--cfg loom" cargo test -p terrace --lib wal::group`.
//!
//! Lock order: the state's mutex, then one seat's. Neither is held during a sleep or a write.

#[cfg(loom)]
mod model;
#[cfg(all(test, not(loom)))]
mod tests;

use std::sync::Arc;
use std::time::{Duration, Instant};

#[cfg(loom)]
use model::{Condvar, Mutex};
#[cfg(not(loom))]
use parking_lot::{Condvar, Mutex};

/// Most rounds in a row without gathering; a power of two.
const ROUNDS_ALONE_MAX: u32 = 64;
/// The inverse weight of the last round in the average write time.
const RECENT: u32 = 8;

/// Whether a round may gather before it serves this thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    /// A commit: it returns soon, and gains from a full round.
    Commit,
    /// Others wait for this thread.
    Hurry,
    /// No thread waits for this one, and it does not return soon.
    Leisure,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Ended {
    /// Threads that wait for at most this are served.
    pub(super) filed: u64,
    /// All wake; no thread will be served again.
    pub(super) failed: bool,
    pub(super) took: Option<Duration>,
}

/// Passes a lead around. `L` is the leader's exclusive state.
pub(super) struct Group<L> {
    state: Mutex<State<L>>,
}

struct State<L> {
    /// Absent while a thread leads.
    lead: Option<L>,
    waiting: Vec<Waiting>,
    gathering: Option<Gathering>,
    usual: Duration,
    /// Consecutive gatherings that too few joined.
    disappointments: u32,
    /// Remaining rounds without gathering.
    alone: u32,
}

struct Waiting {
    to: u64,
    pace: Pace,
    seat: Arc<Seat>,
}

/// A round that waits for its members. The lead is free meanwhile.
struct Gathering {
    expected: usize,
    missing: usize,
    until: Instant,
    guarded: bool,
}

/// What a seat is called for. A call may come late, so it replaces only lower ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Call {
    Wait,
    Guard,
    /// Take the lead, if it is still free.
    Lead,
    /// Check again: the round has ended.
    Over,
}

struct Seat {
    call: Mutex<Call>,
    called: Condvar,
}

impl Seat {
    fn new() -> Arc<Self> {
        Arc::new(Seat { call: Mutex::new(Call::Wait), called: Condvar::new() })
    }

    fn call(&self, call: Call) {
        let mut now = self.call.lock();
        *now = call.max(*now);
        self.called.notify_one();
    }

    /// Sleeps until called, or until `until`; then the result may still be [`Call::Wait`]. Taking a
    /// call clears it.
    fn wait(&self, until: Option<Instant>) -> Call {
        let mut call = self.call.lock();
        while *call == Call::Wait {
            match until {
                None => self.called.wait(&mut call),
                Some(until) if self.called.wait_until(&mut call, until).timed_out() => break,
                Some(_) => {}
            }
        }
        std::mem::replace(&mut *call, Call::Wait)
    }
}

impl<L> Group<L> {
    pub(super) fn new(lead: L) -> Self {
        let state = State {
            lead: Some(lead),
            waiting: Vec::new(),
            gathering: None,
            usual: Duration::ZERO,
            disappointments: 0,
            alone: 0,
        };
        Group { state: Mutex::new(state) }
    }

    /// Waits for a round to serve `to`, or for the lead, which [`Group::leave`] must return.
    /// `None`: check again. `is_over` ends the wait; it must see everything done before a round
    /// ended.
    pub(super) fn join(&self, to: u64, pace: Pace, is_over: impl Fn() -> bool) -> Option<L> {
        let mut state = self.state.lock();
        if is_over() {
            return None;
        }
        if state.lead.is_some() && state.arrive(pace) {
            return state.take();
        }
        let seat = Seat::new();
        state.waiting.push(Waiting { to, pace, seat: Arc::clone(&seat) });
        let mut call = match &mut state.gathering {
            Some(gathering) if !gathering.guarded => {
                gathering.guarded = true;
                Call::Guard
            }
            _ => Call::Wait,
        };
        drop(state);
        loop {
            call = match call {
                Call::Wait => seat.wait(None),
                Call::Over => return None,
                Call::Lead => match self.state.lock().take_over(&seat) {
                    Some(lead) => return Some(lead),
                    None => Call::Wait,
                },
                Call::Guard => match self.guard(&seat) {
                    Ok(lead) => return Some(lead),
                    Err(call) => call,
                },
            }
        }
    }

    /// Ends a round: passes the lead on and wakes the served threads. `own` is the leader's target
    /// and pace.
    pub(super) fn leave(&self, lead: L, own: (u64, Pace), ended: Ended) {
        let is_served = |to: u64| ended.failed || to <= ended.filed;
        let mut state = self.state.lock();
        let (served, left): (Vec<_>, Vec<_>) =
            std::mem::take(&mut state.waiting).into_iter().partition(|waiting| is_served(waiting.to));
        state.waiting = left;
        if let Some(took) = ended.took {
            state.usual = (state.usual * (RECENT - 1) + took) / RECENT;
        }
        let of_served = served.iter().map(|waiting| (waiting.to, waiting.pace)).chain([own]);
        let crew = of_served.filter(|&(to, pace)| pace == Pace::Commit && is_served(to)).count();
        let next = state.next_round(crew, ended.failed);
        state.lead = Some(lead);
        drop(state);
        if let Some((seat, call)) = next {
            seat.call(call);
        }
        for waiting in served {
            waiting.seat.call(Call::Over);
        }
    }

    /// Waits until the gathering's time is over. Returns the lead, if still free, else the next
    /// call.
    fn guard(&self, seat: &Arc<Seat>) -> Result<L, Call> {
        let Some(until) = self.state.lock().gathering.as_ref().map(|gathering| gathering.until) else {
            return Err(Call::Wait);
        };
        match seat.wait(Some(until)) {
            Call::Wait => {}
            call => return Err(call),
        }
        let mut state = self.state.lock();
        // This gathering, or a newer one, whose time is as good as over.
        if let Some(Gathering { expected, missing, .. }) = state.gathering
            && (expected - missing) * 2 <= expected
        {
            state.be_disappointed();
        }
        state.take_over(seat).ok_or(Call::Wait)
    }
}

impl<L> State<L> {
    fn take(&mut self) -> Option<L> {
        self.gathering = None;
        self.lead.take()
    }

    /// Takes the lead for a waiting thread; `None` if the lead is not free, or the thread was
    /// served.
    fn take_over(&mut self, seat: &Arc<Seat>) -> Option<L> {
        let at = self.waiting.iter().position(|waiting| Arc::ptr_eq(&waiting.seat, seat))?;
        let lead = self.take()?;
        self.waiting.remove(at);
        Some(lead)
    }

    /// Counts an arrival while the lead is free; returns whether the newcomer takes it.
    fn arrive(&mut self, pace: Pace) -> bool {
        let Some(gathering) = &mut self.gathering else { return true };
        match pace {
            Pace::Hurry => return true,
            Pace::Leisure => return false,
            Pace::Commit => {}
        }
        gathering.missing -= 1;
        if gathering.missing == 0 {
            self.disappointments = 0;
        }
        gathering.missing == 0
    }

    fn be_disappointed(&mut self) {
        self.disappointments = (self.disappointments + 1).min(ROUNDS_ALONE_MAX.ilog2());
        self.alone = 1 << self.disappointments;
    }

    /// The next seat to call, after a round that served `crew` commits.
    fn next_round(&mut self, crew: usize, failed: bool) -> Option<(Arc<Seat>, Call)> {
        debug_assert!(self.gathering.is_none(), "nothing gathers while the lead is out");
        if failed {
            return None;
        }
        let urgent = self.waiting.iter().position(|waiting| waiting.pace == Pace::Hurry);
        if urgent.is_none() && crew > 0 && crew + self.waiting.len() > 1 {
            if self.alone == 0 {
                let until = Instant::now() + self.usual / 2;
                let guard = self.waiting.first().map(|waiting| Arc::clone(&waiting.seat));
                self.gathering =
                    Some(Gathering { expected: crew, missing: crew, until, guarded: guard.is_some() });
                return guard.map(|seat| (seat, Call::Guard));
            }
            self.alone -= 1;
        }
        let next = self.waiting.get(urgent.unwrap_or(0))?;
        Some((Arc::clone(&next.seat), Call::Lead))
    }
}
