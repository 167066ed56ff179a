//! Who has to wait for whom, in either kind of time.

use std::collections::VecDeque;
use std::hint::spin_loop;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::busy::Busy;
use super::profile::{Direction, Pattern, Profile};
use super::virtual_time::VirtualTime;

/// What is further away than this is slept for, but for the last of it, which a sleep would miss: picoseconds.
const SLEEP_PS: u64 = 200_000_000;
const OVERSLEEP_PS: u64 = 100_000_000;
/// Spans of writing that are remembered of each worker, at most.
const WRITES_MAX: usize = 32;
/// Spans between which a channel looks for some to forget.
const SPANS_KEPT: usize = 32;

/// How time passes for those who are charged.
///
/// ```
/// use std::sync::Arc;
/// use terrace_block::{Pattern, Profile, SimulatedMemory, Time, VirtualTime};
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
    /// The machine's, from that instant on. Users wait.
    Wall(Instant),
    /// Each worker's own. Nobody waits.
    Virtual(Arc<VirtualTime>),
}

impl Time {
    /// The machine's, from now on.
    pub fn wall() -> Time {
        Time::Wall(Instant::now())
    }

    /// A number of the caller: of its worker, or of its thread.
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
        // Relaxed: only that it is nobody else's counts.
        static NUMBER: usize = THREADS.fetch_add(1, Relaxed);
    }
    NUMBER.with(|number| *number)
}

/// A memory's or a disk's two ways, in and out, and who is on them.
#[derive(Debug)]
pub(super) struct Channel {
    pub(super) profile: Profile,
    pub(super) time: Time,
    wall: WallGates,
    simulated: Mutex<Simulated>,
}

/// By direction: when it is free again, picoseconds.
#[derive(Debug, Default)]
#[repr(align(128))]
struct WallGates {
    free_at: [AtomicU64; 2],
    writers: AtomicU32,
}

/// The same in virtual time.
#[derive(Debug, Default)]
struct Simulated {
    /// By direction.
    busy: [Busy; 2],
    /// By worker: when it wrote, spans in order.
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

    /// Begins transfers of these sizes, whole units of the media, at the same time. They are done when what is returned is dropped.
    pub(super) fn begin(
        &self,
        direction: Direction,
        pattern: Pattern,
        sizes: impl Iterator<Item = u64>,
    ) -> Charge<'_> {
        self.begin_at(self.now_ps(), direction, pattern, sizes)
    }

    /// The same from `now` on, picoseconds, which may be to come.
    pub(super) fn begin_at(
        &self,
        now: u64,
        direction: Direction,
        pattern: Pattern,
        sizes: impl Iterator<Item = u64>,
    ) -> Charge<'_> {
        let deadline = match &self.time {
            Time::Wall(_) => self.begin_on_the_wall(now, direction, pattern, sizes),
            Time::Virtual(time) => self.begin_in_virtual_time(time, now, direction, pattern, sizes),
        };
        let writes = (direction == Direction::Write).then_some(self);
        Charge { channel: Some(self), writes: [writes, None], started: now, deadline }
    }

    /// The caller's time.
    fn now_ps(&self) -> u64 {
        match &self.time {
            Time::Wall(start) => picoseconds(*start),
            Time::Virtual(time) => time.now_ps(time.worker()),
        }
    }

    fn begin_on_the_wall(
        &self,
        now: u64,
        direction: Direction,
        pattern: Pattern,
        sizes: impl Iterator<Item = u64>,
    ) -> u64 {
        let writers = match direction {
            Direction::Read => self.wall.writers.load(Relaxed),
            Direction::Write => self.wall.writers.fetch_add(1, Relaxed) + 1,
        };
        let hold = self.hold(direction, pattern, sizes, writers as usize);
        let done = |free_at: u64| free_at.max(now).saturating_add(hold);
        // Relaxed: the word is the whole of what is shared.
        let free_at = self.wall.free_at[direction as usize].update(Relaxed, Relaxed, done);
        done(free_at).saturating_add(self.profile.latency_ps(direction, pattern))
    }

    fn begin_in_virtual_time(
        &self,
        time: &VirtualTime,
        now: u64,
        direction: Direction,
        pattern: Pattern,
        sizes: impl Iterator<Item = u64>,
    ) -> u64 {
        let worker = time.worker();
        let mut simulated = self.simulated.lock();
        let others = simulated.writers_at(now, worker);
        let writers = if direction == Direction::Write { others + 1 } else { others };
        let hold = self.hold(direction, pattern, sizes, writers);
        let busy = &mut simulated.busy[direction as usize];
        let deadline = busy.take(now, hold).saturating_add(self.profile.latency_ps(direction, pattern));
        if busy.len() > SPANS_KEPT {
            busy.forget_before(time.first_ps());
        }
        if direction == Direction::Write {
            simulated.note_write(worker, now, deadline);
        }
        deadline
    }

    fn hold(
        &self,
        direction: Direction,
        pattern: Pattern,
        sizes: impl Iterator<Item = u64>,
        writers: usize,
    ) -> u64 {
        sizes.fold(0, |sum, bytes| {
            sum.saturating_add(self.profile.hold_ps(direction, pattern, bytes, writers))
        })
    }
}

/// An access that is under way. It is over when this is dropped: the caller waits then until it has taken its time. What the caller
/// does meanwhile, such as moving the bytes for real, counts.
///
/// ```
/// use terrace_block::{Direction, Pattern, Profile, SimulatedMemory, Time};
///
/// let memory = SimulatedMemory::new(Profile::named("optane").unwrap(), Time::wall());
/// let (from, mut to) = ([7u8; 4096], [0u8; 4096]);
/// let charge = memory.begin(Direction::Read, 0, 4096, Pattern::Sequential);
/// to.copy_from_slice(&from);
/// assert_eq!(charge.finish(), 214, "the copy included");
/// ```
#[derive(Debug)]
#[must_use = "the access is over when this is dropped"]
pub struct Charge<'c> {
    /// Whose time it takes. None, for an access that costs nothing.
    channel: Option<&'c Channel>,
    /// Those that it writes to until it is over.
    writes: [Option<&'c Channel>; 2],
    started: u64,
    deadline: u64,
}

impl<'c> Charge<'c> {
    /// An access that costs nothing.
    pub(super) fn nothing() -> Self {
        Charge { channel: None, writes: [None; 2], started: 0, deadline: 0 }
    }

    /// When it is over, picoseconds.
    pub(super) fn deadline_ps(&self) -> u64 {
        self.deadline
    }

    /// This and a transfer of the same caller's that began with it or later, both of which are over when the later one is. They write to
    /// two channels at most.
    pub(super) fn and(mut self, mut other: Charge<'c>) -> Charge<'c> {
        // Whoever has no channel does not wait when it is dropped.
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

    /// Waits for the end; returns the nanoseconds from the beginning.
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
    /// How many workers other than `reader` are writing at `moment`.
    fn writers_at(&self, moment: u64, reader: usize) -> usize {
        let is_writing = |spans: &VecDeque<(u64, u64)>| {
            spans.iter().rev().find(|(start, _)| *start <= moment).is_some_and(|(_, end)| moment < *end)
        };
        let others = self.writes.iter().enumerate().filter(|(worker, _)| *worker != reader);
        others.filter(|(_, spans)| is_writing(spans)).count()
    }

    /// A worker's clock goes forward only, so its spans come in order.
    fn note_write(&mut self, worker: usize, start: u64, end: u64) {
        let spans = &mut self.writes[worker];
        if let Some(last) = spans.back_mut()
            && last.1 >= start
        {
            // A transfer that another was begun in may end after it.
            last.1 = last.1.max(end);
            return;
        }
        if spans.len() == WRITES_MAX {
            spans.pop_front();
        }
        spans.push_back((start, end));
    }
}

/// Since `start`; a program runs for less than two hundred days.
fn picoseconds(start: Instant) -> u64 {
    start.elapsed().as_nanos() as u64 * 1000
}

/// Picoseconds that a look at the clock takes, measured once.
fn look_ps() -> u64 {
    static LOOK: OnceLock<u64> = OnceLock::new();
    *LOOK.get_or_init(|| {
        const LOOKS: u64 = 200;
        let measure = |_| {
            let start = Instant::now();
            (0..LOOKS).fold(0, |_, _| picoseconds(start)) / LOOKS
        };
        // The least of several: others may have had the processor in between.
        (0..20).map(measure).min().unwrap_or(0)
    })
}

/// Waits for the deadline. Half of the first look at the clock is before what it says, and half of the last is after; and a deadline between
/// two looks is told by the second, half of one late on average. So a wait is over one and a half looks before.
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
