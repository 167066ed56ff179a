//! Waiting for shared bandwidth, in either kind of time.

use std::collections::VecDeque;
use std::hint::spin_loop;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::busy::Busy;
use super::profile::{Direction, Pattern, Profile};
use super::virtual_time::VirtualTime;

/// Longer waits sleep, except for this last part, in picoseconds: a sleep may end late.
const SLEEP_PS: u64 = 200_000_000;
const OVERSLEEP_PS: u64 = 100_000_000;
/// Most spans of writing kept per worker.
const WRITES_MAX: usize = 32;
/// Spans between two attempts of a channel to drop old ones.
const SPANS_KEPT: usize = 32;

/// How time passes for charged users.
///
/// ```
/// use std::sync::Arc;
/// use terrace_io::{Pattern, Profile, SimulatedMemory, Time, VirtualTime};
///
/// let cxl = || Profile::named("cxl-prototype").unwrap();
/// let started = std::time::Instant::now();
/// SimulatedMemory::new(cxl(), Time::wall()).read(0, 64, Pattern::Random);
/// assert!(started.elapsed().as_nanos() >= 500, "the caller has waited");
///
/// let time = Arc::new(VirtualTime::new(4));
/// SimulatedMemory::new(cxl(), Time::Virtual(Arc::clone(&time))).read(0, 64, Pattern::Random);
/// assert_eq!(time.now(0), 563, "its clock has been put on");
/// ```
#[derive(Clone, Debug)]
pub enum Time {
    /// The machine's time, since that instant. Users wait.
    Wall(Instant),
    /// Each worker's own time. Nobody waits.
    Virtual(Arc<VirtualTime>),
}

impl Time {
    /// The machine's time, from now on.
    pub fn wall() -> Time {
        Time::Wall(Instant::now())
    }

    pub(super) fn worker(&self) -> usize {
        match self {
            Time::Wall(_) => thread_number(),
            Time::Virtual(time) => time.worker(),
        }
    }
}

fn thread_number() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        // Relaxed: only uniqueness counts.
        static NUMBER: usize = THREADS.fetch_add(1, Relaxed);
    }
    NUMBER.with(|number| *number)
}

/// The two directions of a memory or a disk, and their users.
#[derive(Debug)]
pub(super) struct Channel {
    pub(super) profile: Profile,
    pub(super) time: Time,
    wall: WallGates,
    simulated: Mutex<Simulated>,
}

/// By direction: when it becomes free, picoseconds.
#[derive(Debug, Default)]
#[repr(align(128))]
struct WallGates {
    free_at: [AtomicU64; 2],
    writers: AtomicU32,
}

#[derive(Debug, Default)]
struct Simulated {
    /// By direction.
    busy: [Busy; 2],
    /// The kernel, which moves pages one call at a time.
    moves: Busy,
    /// By worker: its spans of writing, in order.
    writes: Vec<VecDeque<(u64, u64)>>,
}

impl Channel {
    pub(super) fn new(profile: Profile, time: Time) -> Self {
        let workers = match &time {
            Time::Wall(_) => 0,
            Time::Virtual(time) => time.workers(),
        };
        let simulated = Simulated { writes: vec![VecDeque::new(); workers], ..Simulated::default() };
        Self { profile, time, wall: WallGates::default(), simulated: Mutex::new(simulated) }
    }

    /// Begins a transfer of `bytes` bytes, whole media units, or of several at the same time. It
    /// ends when the result is dropped.
    pub(super) fn begin(&self, direction: Direction, pattern: Pattern, bytes: u64) -> Charge<'_> {
        let now = self.now_ps();
        let by_core = now.saturating_add(self.profile.core_ps(direction, bytes));
        self.begin_until(now, direction, pattern, bytes, by_core)
    }

    /// Begins a transfer of `bytes` bytes at `now`, picoseconds, which may be in the future, by no
    /// core.
    pub(super) fn begin_at(
        &self,
        now: u64,
        direction: Direction,
        pattern: Pattern,
        bytes: u64,
    ) -> Charge<'_> {
        self.begin_until(now, direction, pattern, bytes, now)
    }

    /// Begins a transfer that ends at `least` or later.
    fn begin_until(
        &self,
        now: u64,
        direction: Direction,
        pattern: Pattern,
        bytes: u64,
        least: u64,
    ) -> Charge<'_> {
        let deadline = match &self.time {
            Time::Wall(_) => self.begin_on_the_wall(now, direction, pattern, bytes).max(least),
            Time::Virtual(time) => self.begin_in_virtual_time(time, now, direction, pattern, bytes, least),
        };
        let writes = (direction == Direction::Write).then_some(self);
        Charge { channel: Some(self), writes: [writes, None], started: now, deadline }
    }

    /// A wait of the caller alone, which takes no bandwidth.
    pub(super) fn wait(&self, picoseconds: u64) -> Charge<'_> {
        if picoseconds == 0 {
            return Charge::nothing();
        }
        let started = self.now_ps();
        Charge { channel: Some(self), writes: [None; 2], started, deadline: started + picoseconds }
    }

    /// Waits in virtual time for the kernel's turn to move a page, and for the move.
    pub(super) fn move_page(&self) {
        let hold = self.profile.move_ns() * 1000;
        let Time::Virtual(time) = &self.time else { return };
        if hold == 0 {
            return;
        }
        let worker = time.worker();
        let mut simulated = self.simulated.lock();
        let end = simulated.moves.take(time.now_ps(worker), hold);
        if simulated.moves.len() > SPANS_KEPT {
            simulated.moves.forget_before(time.first_ps());
        }
        time.wait_until_ps(worker, end);
    }

    fn now_ps(&self) -> u64 {
        match &self.time {
            Time::Wall(start) => picoseconds(*start),
            Time::Virtual(time) => time.now_ps(time.worker()),
        }
    }

    fn begin_on_the_wall(&self, now: u64, direction: Direction, pattern: Pattern, bytes: u64) -> u64 {
        let writers = match direction {
            Direction::Read => self.wall.writers.load(Relaxed),
            Direction::Write => self.wall.writers.fetch_add(1, Relaxed) + 1,
        };
        let hold = self.profile.hold_ps(direction, pattern, bytes, writers as usize);
        let done = |free_at: u64| free_at.max(now).saturating_add(hold);
        // Relaxed: no other data depends on the word.
        let word = &self.wall.free_at[direction as usize];
        // Never refused. The infallible `update` needs a newer compiler than the rest.
        let (Ok(free_at) | Err(free_at)) = word.fetch_update(Relaxed, Relaxed, |free_at| Some(done(free_at)));
        done(free_at).saturating_add(self.profile.latency_ps(direction, pattern))
    }

    fn begin_in_virtual_time(
        &self,
        time: &VirtualTime,
        now: u64,
        direction: Direction,
        pattern: Pattern,
        bytes: u64,
        least: u64,
    ) -> u64 {
        let worker = time.worker();
        let mut simulated = self.simulated.lock();
        let others = simulated.writers_at(now, worker);
        let writers = if direction == Direction::Write { others + 1 } else { others };
        let hold = self.profile.hold_ps(direction, pattern, bytes, writers);
        let busy = &mut simulated.busy[direction as usize];
        let latency = self.profile.latency_ps(direction, pattern);
        let deadline = busy.take(now, hold).saturating_add(latency).max(least);
        if busy.len() > SPANS_KEPT {
            busy.forget_before(time.first_ps());
        }
        if direction == Direction::Write {
            simulated.note_write(worker, now, deadline);
        }
        deadline
    }
}

/// An access in progress.
///
/// Its drop waits for the end. Meanwhile the caller's work, such as really moving the bytes,
/// counts.
///
/// ```
/// use terrace_io::{Direction, Pattern, Profile, SimulatedMemory, Time};
///
/// let memory = SimulatedMemory::new(Profile::named("optane").unwrap(), Time::wall());
/// let (from, mut to) = ([7u8; 4096], [0u8; 4096]);
/// let charge = memory.begin(Direction::Read, 0, 4096, Pattern::Sequential);
/// to.copy_from_slice(&from);
/// assert_eq!(charge.finish(), 1088, "the copy included");
/// ```
#[derive(Debug)]
#[must_use = "the access is over when this is dropped"]
pub struct Charge<'c> {
    /// The charged channel; none if the access is free.
    channel: Option<&'c Channel>,
    /// The channels that it writes to until its end.
    writes: [Option<&'c Channel>; 2],
    started: u64,
    deadline: u64,
}

impl<'c> Charge<'c> {
    pub(super) fn nothing() -> Self {
        Charge { channel: None, writes: [None; 2], started: 0, deadline: 0 }
    }

    pub(super) fn deadline_ps(&self) -> u64 {
        self.deadline
    }

    /// Joins another transfer of the same caller that began now or later; both end with the later
    /// one. They write to two channels at most.
    pub(super) fn and(mut self, mut other: Charge<'c>) -> Charge<'c> {
        // Without a channel, the drop does not wait.
        let channel = self.channel.take().or(other.channel);
        other.channel = None;
        let mut writes = self.writes.into_iter().chain(other.writes).flatten();
        let together = Charge {
            channel,
            writes: [writes.next(), writes.next()],
            started: self.started,
            deadline: self.deadline.max(other.deadline),
        };
        debug_assert!(writes.next().is_none(), "writes to a third channel would never end");
        together
    }

    /// Waits for the end; returns the nanoseconds since the beginning.
    pub fn finish(self) -> u64 {
        (self.deadline - self.started) / 1000
    }
}

impl Drop for Charge<'_> {
    fn drop(&mut self) {
        let Some(channel) = self.channel else { return };
        match &channel.time {
            Time::Virtual(time) => time.wait_until_ps(time.worker(), self.deadline),
            Time::Wall(start) => {
                wait_until(*start, self.deadline);
                for written in self.writes.iter().flatten() {
                    written.wall.writers.fetch_sub(1, Relaxed);
                }
            }
        }
    }
}

impl Simulated {
    /// Number of workers other than `reader` that write at `moment`.
    fn writers_at(&self, moment: u64, reader: usize) -> usize {
        let is_writing = |spans: &VecDeque<(u64, u64)>| {
            spans.iter().rev().find(|(start, _)| *start <= moment).is_some_and(|(_, end)| moment < *end)
        };
        let others = self.writes.iter().enumerate().filter(|(worker, _)| *worker != reader);
        others.filter(|(_, spans)| is_writing(spans)).count()
    }

    /// A worker's clock only advances, so its spans are in order.
    fn note_write(&mut self, worker: usize, start: u64, end: u64) {
        let spans = &mut self.writes[worker];
        if let Some(last) = spans.back_mut()
            && last.1 >= start
        {
            // A nested transfer may end after the outer one.
            last.1 = last.1.max(end);
            return;
        }
        if spans.len() == WRITES_MAX {
            spans.pop_front();
        }
        spans.push_back((start, end));
    }
}

/// Since `start`; overflows after two hundred days.
fn picoseconds(start: Instant) -> u64 {
    start.elapsed().as_nanos() as u64 * 1000
}

/// Picoseconds per look at the clock, measured once.
pub(super) fn look_ps() -> u64 {
    static LOOK: OnceLock<u64> = OnceLock::new();
    *LOOK.get_or_init(|| {
        const LOOKS: u64 = 200;
        let measure = |_| {
            let start = Instant::now();
            (0..LOOKS).fold(0, |_, _| picoseconds(start)) / LOOKS
        };
        // The minimum, since others may take the processor in between.
        (0..20).map(measure).min().unwrap_or(0)
    })
}

/// Waits for the deadline, ending one and a half looks early: half of the first and of the last
/// look are outside of the measured time, and the deadline is detected half a look late on average.
fn wait_until(start: Instant, deadline: u64) {
    loop {
        let now = picoseconds(start) + look_ps() * 3 / 2;
        if now >= deadline {
            return;
        }
        if deadline - now > SLEEP_PS {
            std::thread::sleep(Duration::from_nanos((deadline - now - OVERSLEEP_PS) / 1000));
        } else {
            spin_loop();
        }
    }
}
