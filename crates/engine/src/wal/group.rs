//! Whose turn it is to write the log: one thread leads, the others wait, each in a seat of its own.
//!
//! When a round ends, who was waiting for it is woken, and nobody else: a thread sleeps once and is woken once for
//! each commit. If some are left whom the round did not serve, the first of them is called to lead the next; but the lead
//! is free until it comes, and a newcomer that finds it free takes it. A round serves all who wait, so it matters only that it
//! begins: whenever the lead is free and somebody waits, somebody of these has been called and has not answered yet.
//!
//! **Gathering.** A round that starts the moment the last one ended finds hardly anybody: those it has just served are
//! still being woken. All committers then fall into two halves that take turns, and each of them waits for two
//! writes. So the next round waits until as many have come as were served by the last one. The last to come leads, and
//! needs no waking. It is no timer for the sake of company: a lone committer is never kept waiting, nor is who is in a
//! hurry (checkpoint, upkeep, a thread that waits for room), nor anybody for longer than half of what a write took
//! lately; and when those expected stay away, the next rounds do without, twice as many each time.
//!
//! One of those who wait while a round gathers is its *guard*: it sleeps no longer than until the time is over, and leads
//! if nobody has by then. (It must not yield instead: beside a thread that computes, a yield lasts milliseconds.)
//!
//! This file decides about turns only. That a commit is acknowledged when its log is durable, and not before, is checked by
//! `flush.rs`, whatever is returned here.
//!
//! Loom walks the turns of a few threads (`RUSTFLAGS="--cfg loom" cargo test -p terrace --lib wal::group`).
//!
//! Lock order: the state's mutex, then one seat's. Neither is held while anybody sleeps or writes.

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

/// Rounds without gathering after those expected have stayed away again and again, at most; a power of two.
const ROUNDS_ALONE_MAX: u32 = 64;
/// The weight of the last round in the time that a round takes, as one part in this many.
const RECENT: u32 = 8;

/// Whether a round may gather before it serves this thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    /// A commit: it comes again soon, and gains by a full round.
    Commit,
    /// Others wait for this thread.
    Hurry,
    /// Nobody waits for this thread, and it does not come again soon.
    Leisure,
}

/// What a round has come to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended {
    /// Who waits for no more than this has been served.
    pub(super) durable: u64,
    /// Nobody will be served any more; all are woken to learn it.
    pub(super) failed: bool,
    /// How long the write took, if there was one.
    pub(super) took: Option<Duration>,
}

/// Hands a lead around. `L` is what the leader, and nobody else, may use.
pub(super) struct Group<L> {
    state: Mutex<State<L>>,
}

struct State<L> {
    /// Absent while somebody leads.
    lead: Option<L>,
    /// In the order they came.
    waiting: Vec<Waiting>,
    gathering: Option<Gathering>,
    /// What a write takes, lately.
    usual: Duration,
    /// Gatherings in a row to which too few came.
    disappointments: u32,
    /// Rounds still to be begun without gathering.
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

/// What a seat is called for. A call may come late, when the turn is another's already or the one who sits there has been served; so
/// a call replaces lower ones only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Call {
    Wait,
    /// Guard the gathering.
    Guard,
    /// Take the lead, if it is free still.
    Lead,
    /// Look again: the round has ended.
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

    /// Sleeps until called, at the latest until `until`; then it may be [`Call::Wait`] still. Taking a call clears it.
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

    /// Waits for a round to serve `to`, or for the lead, which must be given back by [`Group::leave`]. `None`: look again.
    /// `is_over` says whether there is anything left to wait for; it must see all that was done before a round was left.
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

    /// Ends a round: hands the lead on and wakes those who were served. `own` is who led, with what it waited for.
    pub(super) fn leave(&self, lead: L, own: (u64, Pace), ended: Ended) {
        let is_served = |to: u64| ended.failed || to <= ended.durable;
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

    /// Waits until the time of a gathering is over. The lead, if nobody has taken it by then; else what to do next.
    fn guard(&self, seat: &Arc<Seat>) -> Result<L, Call> {
        let Some(until) = self.state.lock().gathering.as_ref().map(|gathering| gathering.until) else {
            return Err(Call::Wait);
        };
        match seat.wait(Some(until)) {
            Call::Wait => {}
            call => return Err(call),
        }
        let mut state = self.state.lock();
        // Of this gathering, or one that began since: then its time is as good as over.
        if let Some(Gathering { expected, missing, .. }) = state.gathering
            && (expected - missing) * 2 <= expected
        {
            state.be_disappointed();
        }
        state.take_over(seat).ok_or(Call::Wait)
    }
}

impl<L> State<L> {
    /// Takes the lead, if it is free.
    fn take(&mut self) -> Option<L> {
        self.gathering = None;
        self.lead.take()
    }

    /// Takes the lead for one of those who wait; `None` if it is not free, or the one has been served already.
    fn take_over(&mut self, seat: &Arc<Seat>) -> Option<L> {
        let at = self.waiting.iter().position(|waiting| Arc::ptr_eq(&waiting.seat, seat))?;
        let lead = self.take()?;
        self.waiting.remove(at);
        Some(lead)
    }

    /// Counts an arrival while the lead is free. Whether the newcomer is to take it.
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

    /// How the next round begins after one that served `crew` commits: whom to call, and for what.
    fn next_round(&mut self, crew: usize, failed: bool) -> Option<(Arc<Seat>, Call)> {
        debug_assert!(self.gathering.is_none(), "nothing gathers while the lead is out");
        if failed {
            return None;
        }
        let hurried = self.waiting.iter().position(|waiting| waiting.pace == Pace::Hurry);
        if hurried.is_none() && crew > 0 && crew + self.waiting.len() > 1 {
            if self.alone == 0 {
                let until = Instant::now() + self.usual / 2;
                let guard = self.waiting.first().map(|waiting| Arc::clone(&waiting.seat));
                self.gathering =
                    Some(Gathering { expected: crew, missing: crew, until, guarded: guard.is_some() });
                return guard.map(|seat| (seat, Call::Guard));
            }
            self.alone -= 1;
        }
        let next = self.waiting.get(hurried.unwrap_or(0))?;
        Some((Arc::clone(&next.seat), Call::Lead))
    }
}
