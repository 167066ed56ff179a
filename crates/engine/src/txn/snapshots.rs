//! The registered snapshots and the oldest timestamp among them.
//!
//! Old versions below that timestamp can be collected. A registration must not lose the race
//! against a collector:
//!
//! ```text
//!   registering                          collecting
//!   1. lower = visible                   a. bound = visible
//!   2. slot := lower                     b. bound = min(bound, every slot)
//!   3. timestamp = visible
//!   4. slot := timestamp
//! ```
//!
//! If b reads the slot after 2, the bound is at most `lower`, hence at most `timestamp`. If it
//! reads the slot before 2, then a came before 3, and `visible` never falls. All of it is
//! sequentially consistent. Beyond 256 snapshots, further slots are under a mutex.
//!
//! A snapshot can be **given up**, for its age unless it is kept, or because old versions take too
//! much room. Its slot then no longer counts, and its reads fail with `SnapshotTooOld`. A reader
//! checks the mark *after* reading. The mark is set before versions are dropped, and a reused
//! chunk's generation is raised with release and read with acquire. So a reader that misses a
//! version sees the mark. The mark shares a word with the slot's generation, so that a late
//! collector cannot give up the next tenant.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::clock::Clock;
use super::{Padded, thread_number};
use crate::{Error, Result, Timestamp};

const SLOTS: usize = 256;
const GIVEN_UP: u64 = 1;
const GENERATION: u64 = 2;
/// The birth of a snapshot that is still registering: it has no age yet.
const UNBORN: u64 = u64::MAX;

/// A source of ages; tests bring their own.
pub(crate) trait TimeSource: Send + Sync + Debug {
    /// Time since some fixed moment; monotonic.
    fn elapsed(&self) -> Duration;
}

#[derive(Debug)]
pub(crate) struct MonotonicTime(Instant);

impl MonotonicTime {
    pub(crate) fn new() -> Self {
        MonotonicTime(Instant::now())
    }
}

impl TimeSource for MonotonicTime {
    fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

#[cfg(test)]
#[derive(Debug, Default)]
pub(crate) struct ManualTime(AtomicU64);

#[cfg(test)]
impl ManualTime {
    pub(crate) fn set(&self, elapsed: Duration) {
        self.0.store(elapsed.as_nanos() as u64, SeqCst);
    }

    pub(crate) fn advance(&self, by: Duration) {
        self.0.fetch_add(by.as_nanos() as u64, SeqCst);
    }
}

#[cfg(test)]
impl TimeSource for ManualTime {
    fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.0.load(SeqCst))
    }
}

#[derive(Debug)]
pub(crate) struct Snapshots {
    slots: Box<[Padded<Slot>]>,
    further: Mutex<Vec<Arc<Slot>>>,
    time: Arc<dyn TimeSource>,
}

#[derive(Debug)]
struct Slot {
    /// The snapshot's timestamp plus one, or a lower bound of it; 0 = free.
    reads_at: AtomicU64,
    /// The slot's generation and mark. Changed by a leaving tenant, and by the thread that gives it
    /// up.
    tenancy: AtomicU64,
    /// Nanoseconds of the time source.
    born: AtomicU64,
    kept: AtomicBool,
}

impl Default for Slot {
    fn default() -> Self {
        Slot {
            reads_at: AtomicU64::new(0),
            tenancy: AtomicU64::new(0),
            born: AtomicU64::new(UNBORN),
            kept: AtomicBool::new(false),
        }
    }
}

#[derive(Debug)]
enum Registered {
    Fixed(usize),
    Further(Arc<Slot>),
}

/// A registered snapshot; dropping it ends it.
#[derive(Debug)]
pub(crate) struct SnapshotHandle {
    registry: Arc<Snapshots>,
    registered: Registered,
    timestamp: Timestamp,
}

impl Slot {
    fn take(&self, lower: Timestamp) -> bool {
        self.reads_at.load(SeqCst) == 0
            && self.reads_at.compare_exchange(0, lower.0 + 1, SeqCst, SeqCst).is_ok()
    }

    fn leave(&self) {
        // This order keeps a collector safe at every step: clear the age, then the mark, then the
        // tenant.
        self.born.store(UNBORN, SeqCst);
        self.kept.store(false, SeqCst);
        let tenancy = self.tenancy.load(SeqCst) & !GIVEN_UP;
        self.tenancy.store(tenancy + GENERATION, SeqCst);
        self.reads_at.store(0, SeqCst);
    }

    fn is_given_up(&self) -> bool {
        self.tenancy.load(SeqCst) & GIVEN_UP != 0
    }

    /// The timestamp that the tenant needs. The mark is read second: if it is a later tenant's,
    /// that one registered after the collector read `visible`, which bounds it.
    fn needs(&self) -> Option<Timestamp> {
        let reads_at = self.reads_at.load(SeqCst);
        (reads_at != 0 && !self.is_given_up()).then(|| Timestamp(reads_at - 1))
    }

    /// Gives the tenant up if `choose` picks its timestamp and birth.
    fn give_up_if(&self, choose: impl Fn(&Slot, Timestamp, Duration) -> bool) -> bool {
        let tenancy = self.tenancy.load(SeqCst);
        let reads_at = self.reads_at.load(SeqCst);
        let born = self.born.load(SeqCst);
        reads_at != 0
            && born != UNBORN
            && tenancy & GIVEN_UP == 0
            && choose(self, Timestamp(reads_at - 1), Duration::from_nanos(born))
            && self.tenancy.compare_exchange(tenancy, tenancy | GIVEN_UP, SeqCst, SeqCst).is_ok()
    }
}

impl Snapshots {
    pub(crate) fn new(time: Arc<dyn TimeSource>) -> Arc<Self> {
        let slots = (0..SLOTS).map(|_| Padded::default()).collect();
        Arc::new(Snapshots { slots, further: Mutex::default(), time })
    }

    pub(crate) fn size_bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.slots) + self.further.lock().len() * (size_of::<Slot>() + 24)
    }

    pub(crate) fn register(self: &Arc<Self>, clock: &Clock) -> SnapshotHandle {
        self.register_as(clock, false)
    }

    /// Registers a snapshot that is exempt from the age limit from the start.
    pub(crate) fn register_kept(self: &Arc<Self>, clock: &Clock) -> SnapshotHandle {
        self.register_as(clock, true)
    }

    /// Registers a snapshot of all below a timestamp that nobody else has, and returns both.
    ///
    /// # Errors
    /// Those of `draw`, which draws the timestamp.
    pub(crate) fn register_below(
        self: &Arc<Self>,
        clock: &Clock,
        draw: impl FnOnce() -> Result<Timestamp>,
    ) -> Result<(SnapshotHandle, Timestamp)> {
        let mut handle = self.take_slot(clock);
        let drawn = draw()?;
        // It may be above `visible`. A reader waits for the locks of commits between.
        handle.timestamp = Timestamp(drawn.0 - 1);
        handle.begin(self.time.elapsed());
        Ok((handle, drawn))
    }

    fn register_as(self: &Arc<Self>, clock: &Clock, kept: bool) -> SnapshotHandle {
        let mut handle = self.take_slot(clock);
        handle.timestamp = clock.visible();
        // Before it has an age: a collector may compare that at once.
        if kept {
            handle.keep(true);
        }
        handle.begin(self.time.elapsed());
        handle
    }

    /// Steps 1 and 2 of a registration.
    fn take_slot(self: &Arc<Self>, clock: &Clock) -> SnapshotHandle {
        let lower = clock.visible();
        let first = thread_number() as usize;
        let free = (0..SLOTS).map(|n| (first + n) % SLOTS).find(|&n| self.slots[n].take(lower));
        let registered =
            free.map_or_else(|| Registered::Further(self.take_further(lower)), Registered::Fixed);
        SnapshotHandle { registry: Arc::clone(self), registered, timestamp: lower }
    }

    fn take_further(&self, lower: Timestamp) -> Arc<Slot> {
        let slot = Arc::new(Slot::default());
        assert!(slot.take(lower), "a new slot is free");
        self.further.lock().push(Arc::clone(&slot));
        slot
    }

    /// A lower bound of all snapshot timestamps, registering ones included, given-up ones excluded.
    pub(crate) fn oldest(&self, clock: &Clock) -> Timestamp {
        let bound = clock.visible();
        let fixed = self.slots.iter().filter_map(|slot| slot.needs()).fold(bound, Timestamp::min);
        self.further.lock().iter().filter_map(|slot| slot.needs()).fold(fixed, Timestamp::min)
    }

    /// The number of registered snapshots, given-up ones included.
    pub(crate) fn len(&self) -> usize {
        let fixed = self.slots.iter().filter(|slot| slot.reads_at.load(SeqCst) != 0).count();
        fixed + self.further.lock().len()
    }

    /// Gives up the snapshots older than `age`, except kept ones; returns how many.
    pub(crate) fn give_up_older_than(&self, age: Duration) -> usize {
        let now = self.time.elapsed();
        self.give_up(|slot, _, born| now.saturating_sub(born) > age && !slot.kept.load(SeqCst))
    }

    /// Gives up the oldest snapshots to make room; returns how many. 0: there are none, or the
    /// oldest was just ending.
    pub(crate) fn give_up_oldest(&self) -> usize {
        let fixed = self.slots.iter().filter_map(|slot| slot.needs()).min();
        let further = self.further.lock().iter().filter_map(|slot| slot.needs()).min();
        match fixed.into_iter().chain(further).min() {
            Some(oldest) => self.give_up(|_, timestamp, _| timestamp <= oldest),
            None => 0,
        }
    }

    fn give_up(&self, choose: impl Fn(&Slot, Timestamp, Duration) -> bool) -> usize {
        let fixed = self.slots.iter().filter(|slot| slot.give_up_if(&choose)).count();
        fixed + self.further.lock().iter().filter(|slot| slot.give_up_if(&choose)).count()
    }
}

impl SnapshotHandle {
    pub(crate) fn timestamp(&self) -> Timestamp {
        self.timestamp
    }

    /// Step 4 of a registration. From now on it has an age.
    fn begin(&self, now: Duration) {
        self.slot().reads_at.store(self.timestamp.0 + 1, SeqCst);
        // 64 bits of nanoseconds last 584 years.
        self.slot().born.store(now.as_nanos() as u64, SeqCst);
    }

    pub(crate) fn age(&self) -> Duration {
        self.registry.time.elapsed().saturating_sub(Duration::from_nanos(self.slot().born.load(SeqCst)))
    }

    /// Whether it was given up. Check *after* each read, before using its result or reporting its
    /// error: an overflow value may have been freed during the read.
    #[inline]
    pub(crate) fn expired(&self) -> bool {
        self.slot().is_given_up()
    }

    /// Sets whether it is exempt from the age limit; by default it is not.
    pub(crate) fn keep(&self, keep: bool) {
        self.slot().kept.store(keep, SeqCst);
    }

    /// Gives it up; false if it was already.
    pub(crate) fn give_up(&self) -> bool {
        self.slot().tenancy.fetch_or(GIVEN_UP, SeqCst) & GIVEN_UP == 0
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.expired() { Err(Error::SnapshotTooOld) } else { Ok(()) }
    }

    fn slot(&self) -> &Slot {
        match &self.registered {
            Registered::Fixed(slot) => &self.registry.slots[*slot],
            Registered::Further(slot) => slot,
        }
    }
}

impl Drop for SnapshotHandle {
    fn drop(&mut self) {
        match &self.registered {
            Registered::Fixed(slot) => self.registry.slots[*slot].leave(),
            Registered::Further(slot) => {
                self.registry.further.lock().retain(|other| !Arc::ptr_eq(other, slot))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::SmallRng;
    use rand::{RngExt, SeedableRng};

    use super::super::clock::Outcome;
    use super::*;
    use crate::Lsn;

    fn tick(clock: &Clock) {
        clock.draw(|| Ok(())).unwrap().complete(Outcome::Buffered);
        clock.advance(Lsn::NONE);
    }

    #[test]
    fn the_oldest_of_more_snapshots_than_slots() {
        let clock = Clock::starting_above(Timestamp(0), 16);
        let registry = Snapshots::new(Arc::new(MonotonicTime::new()));
        let mut handles = Vec::new();
        for n in 0..SLOTS as u64 + 44 {
            handles.push(registry.register(&clock));
            assert_eq!(handles[n as usize].timestamp(), Timestamp(n));
            tick(&clock);
        }
        assert_eq!(registry.len(), 300);
        for n in 0..300 {
            assert_eq!(registry.oldest(&clock), Timestamp(n));
            handles.remove(0);
        }
        assert_eq!(registry.oldest(&clock), clock.visible());
        assert_eq!(registry.len(), 0);
    }

    #[test]
    fn snapshots_are_given_up_by_age() {
        let time = Arc::new(ManualTime::default());
        let clock = Clock::starting_above(Timestamp(3), 16);
        let registry = Snapshots::new(Arc::clone(&time) as Arc<dyn TimeSource>);
        let old = registry.register(&clock);
        tick(&clock);
        time.set(Duration::from_secs(60));
        let young = registry.register(&clock);
        assert_eq!(old.age(), Duration::from_secs(60));
        assert_eq!(registry.give_up_older_than(Duration::from_secs(60)), 0);
        time.set(Duration::from_secs(61));
        assert_eq!(registry.give_up_older_than(Duration::from_secs(60)), 1);
        assert!(old.expired() && !young.expired());
        assert!(matches!(old.check(), Err(Error::SnapshotTooOld)));
        assert_eq!(registry.oldest(&clock), Timestamp(4));
        assert_eq!(registry.give_up_older_than(Duration::from_secs(60)), 0, "only once");
    }

    #[test]
    fn a_snapshot_that_is_kept_is_given_up_for_room_only_and_its_successor_for_age() {
        let time = Arc::new(ManualTime::default());
        let clock = Clock::starting_above(Timestamp(3), 16);
        let registry = Snapshots::new(Arc::clone(&time) as Arc<dyn TimeSource>);
        let kept = registry.register_kept(&clock);
        time.set(Duration::from_secs(61));
        assert_eq!(registry.give_up_older_than(Duration::from_secs(60)), 0);
        assert!(!kept.expired());
        assert_eq!(registry.give_up_oldest(), 1);
        assert!(kept.expired() && !kept.give_up());
        drop(kept);
        let next = registry.register(&clock);
        time.set(Duration::from_secs(200));
        assert_eq!(registry.give_up_older_than(Duration::from_secs(60)), 1, "the mark does not stay");
        drop(next);
        let last = registry.register(&clock);
        assert!(last.give_up() && last.expired());
        assert_eq!(registry.oldest(&clock), clock.visible());
    }

    /// A collector looks at every moment.
    #[test]
    fn a_kept_snapshot_is_exempt_from_the_age_limit_from_the_start() {
        let clock = Clock::starting_above(Timestamp(3), 16);
        let registry = Snapshots::new(Arc::new(MonotonicTime::new()));
        let stop = AtomicBool::new(false);
        let given_up = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(SeqCst) {
                    registry.give_up_older_than(Duration::ZERO);
                }
            });
            let given_up = (0..2000).filter(|_| registry.register_kept(&clock).expired()).count();
            stop.store(true, SeqCst);
            given_up
        });
        assert_eq!(given_up, 0);
    }

    #[test]
    fn pressure_gives_up_the_oldest_and_never_its_successor_in_the_slot() {
        let clock = Clock::starting_above(Timestamp(0), 16);
        let registry = Snapshots::new(Arc::new(ManualTime::default()));
        assert_eq!(registry.give_up_oldest(), 0);
        let twins = (registry.register(&clock), registry.register(&clock));
        tick(&clock);
        let third = registry.register(&clock);
        assert_eq!(registry.give_up_oldest(), 2);
        assert!(twins.0.expired() && twins.1.expired() && !third.expired());
        drop(twins);
        let next = registry.register(&clock);
        assert!(!next.expired(), "the mark does not stay in the slot");
        assert_eq!(registry.give_up_oldest(), 2);
        assert!(next.expired() && third.expired());
    }

    /// Readers register while a collector computes the oldest, which must not pass any reader.
    #[test]
    fn the_oldest_is_never_above_a_snapshot_being_registered() {
        let seed = 0x5a95;
        println!("seed {seed:#x}");
        let clock = Clock::starting_above(Timestamp(0), 64);
        let registry = Snapshots::new(Arc::new(MonotonicTime::new()));
        let collected = AtomicU64::new(0);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let readers: Vec<_> = (0..3)
                .map(|thread| {
                    let (clock, registry, collected) = (&clock, &registry, &collected);
                    scope.spawn(move || {
                        let mut random = SmallRng::seed_from_u64(seed + thread);
                        let mut held = Vec::new();
                        for _ in 0..20_000 {
                            let handle = registry.register(clock);
                            assert!(collected.load(SeqCst) <= handle.timestamp().0 || handle.expired());
                            held.push(handle);
                            if random.random_range(0..4) == 0 {
                                held.clear();
                            }
                            for handle in &held {
                                let low = collected.load(SeqCst);
                                assert!(low <= handle.timestamp().0 || handle.expired());
                            }
                            while held.len() > 20 {
                                held.swap_remove(random.random_range(0..held.len()));
                            }
                        }
                    })
                })
                .collect();
            let (clock, registry, collected, stop) = (&clock, &registry, &collected, &stop);
            scope.spawn(move || {
                while !stop.load(SeqCst) {
                    tick(clock);
                }
            });
            scope.spawn(move || {
                for round in 0u64.. {
                    collected.fetch_max(registry.oldest(clock).0, SeqCst);
                    if round % 100 == 0 {
                        registry.give_up_oldest();
                    }
                    if stop.load(SeqCst) {
                        break;
                    }
                }
            });
            for reader in readers {
                let result = reader.join();
                if result.is_err() {
                    stop.store(true, SeqCst);
                }
                result.unwrap();
            }
            stop.store(true, SeqCst);
        });
        assert_eq!(registry.len(), 0);
    }
}
