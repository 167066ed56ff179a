//! The snapshots that somebody reads at, and the oldest time among them: old versions needed by nobody are dropped.
//!
//! A snapshot takes a slot. To register it must not lose the race against a collector that computes the oldest
//! snapshot meanwhile:
//!
//! ```text
//!   registering                          collecting
//!   1. lower = visible                   a. bound = visible
//!   2. slot := lower                     b. bound = min(bound, every slot)
//!   3. timestamp = visible
//!   4. slot := timestamp
//! ```
//!
//! If b reads the slot after 2, the bound is at most `lower`, hence at most `timestamp`. If it reads the slot before
//! 2, then a came before 3, and `visible` never falls. All of it is sequentially consistent. Releasing and taking
//! slots touches no line that another thread's slot is on; beyond 256 snapshots, further slots are under a mutex.
//!
//! A snapshot can be **given up**, for its age, unless it is to be kept however old, or because old versions take too much room. Its slot then no longer
//! counts, versions it needs are dropped, and its reads fail with `SnapshotTooOld`. A reader looks *after* it has
//! read: versions are dropped after the mark is set, and the generation of a chunk that is used again is raised with
//! release and read with acquire, so whoever misses a version sees the mark. The mark lives in a word with the slot's generation, so that a late collector
//! cannot give up the slot's next tenant.

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

/// Where ages come from; tests bring their own.
pub(crate) trait TimeSource: Send + Sync + Debug {
    /// Time since some fixed moment. Never runs backwards.
    fn elapsed(&self) -> Duration;
}

/// The system's monotonic clock.
#[derive(Debug)]
pub(crate) struct MonotonicTime(Instant);

impl MonotonicTime {
    /// Counts from now.
    pub(crate) fn new() -> Self {
        MonotonicTime(Instant::now())
    }
}

impl TimeSource for MonotonicTime {
    fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

/// A clock that stands still until a test moves it.
#[cfg(test)]
#[derive(Debug, Default)]
pub(crate) struct ManualTime(AtomicU64);

#[cfg(test)]
impl ManualTime {
    /// Sets it to so long after its beginning.
    pub(crate) fn set(&self, elapsed: Duration) {
        self.0.store(elapsed.as_nanos() as u64, SeqCst);
    }

    /// Moves it on.
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

/// All snapshots of a database.
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
    /// The slot's generation and the mark. Changed by the tenant when it leaves, and by who gives it up.
    tenancy: AtomicU64,
    /// When the tenant came, in nanoseconds of the time source.
    born: AtomicU64,
    /// Whether the tenant is not given up for its age.
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
enum Place {
    Fixed(usize),
    Further(Arc<Slot>),
}

/// A registered snapshot; dropping it ends it.
#[derive(Debug)]
pub(crate) struct SnapshotHandle {
    registry: Arc<Snapshots>,
    place: Place,
    timestamp: Timestamp,
}

impl Slot {
    /// Publishes the lower bound, if the slot is free.
    fn take(&self, lower: Timestamp) -> bool {
        self.reads_at.load(SeqCst) == 0
            && self.reads_at.compare_exchange(0, lower.0 + 1, SeqCst, SeqCst).is_ok()
    }

    fn leave(&self) {
        // The order keeps a collector safe at every step: no age, then no mark, and only then no tenant.
        self.born.store(UNBORN, SeqCst);
        self.kept.store(false, SeqCst);
        let tenancy = self.tenancy.load(SeqCst) & !GIVEN_UP;
        self.tenancy.store(tenancy + GENERATION, SeqCst);
        self.reads_at.store(0, SeqCst);
    }

    fn is_given_up(&self) -> bool {
        self.tenancy.load(SeqCst) & GIVEN_UP != 0
    }

    /// The timestamp needed here. The mark is read after it: if it belongs to a later tenant than the timestamp,
    /// that one registered after the collector's look at `visible`, which bounds it.
    fn needs(&self) -> Option<Timestamp> {
        let reads_at = self.reads_at.load(SeqCst);
        (reads_at != 0 && !self.is_given_up()).then(|| Timestamp(reads_at - 1))
    }

    /// Gives the tenant up, if it is one that `choose` picks by timestamp and birth.
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
    /// No snapshots.
    pub(crate) fn new(time: Arc<dyn TimeSource>) -> Arc<Self> {
        let slots = (0..SLOTS).map(|_| Padded::default()).collect();
        Arc::new(Snapshots { slots, further: Mutex::default(), time })
    }

    /// Bytes of memory taken.
    pub(crate) fn size_bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.slots) + self.further.lock().len() * (size_of::<Slot>() + 24)
    }

    /// A snapshot of everything visible now.
    pub(crate) fn register(self: &Arc<Self>, clock: &Clock) -> SnapshotHandle {
        let lower = clock.visible();
        let first = thread_number() as usize;
        let free = (0..SLOTS).map(|n| (first + n) % SLOTS).find(|&n| self.slots[n].take(lower));
        let place = free.map_or_else(|| Place::Further(self.take_further(lower)), Place::Fixed);
        let handle = SnapshotHandle { registry: Arc::clone(self), place, timestamp: clock.visible() };
        handle.slot().reads_at.store(handle.timestamp.0 + 1, SeqCst);
        // 64 bits of nanoseconds last 584 years.
        handle.slot().born.store(self.time.elapsed().as_nanos() as u64, SeqCst);
        handle
    }

    fn take_further(&self, lower: Timestamp) -> Arc<Slot> {
        let slot = Arc::new(Slot::default());
        assert!(slot.take(lower), "a new slot is free");
        self.further.lock().push(Arc::clone(&slot));
        slot
    }

    /// No snapshot, registered or registering, reads below this timestamp, apart from those given up.
    pub(crate) fn oldest(&self, clock: &Clock) -> Timestamp {
        let bound = clock.visible();
        let fixed = self.slots.iter().filter_map(|slot| slot.needs()).fold(bound, Timestamp::min);
        self.further.lock().iter().filter_map(|slot| slot.needs()).fold(fixed, Timestamp::min)
    }

    /// How many snapshots are registered, those given up included.
    pub(crate) fn len(&self) -> usize {
        let fixed = self.slots.iter().filter(|slot| slot.reads_at.load(SeqCst) != 0).count();
        fixed + self.further.lock().len()
    }

    /// Gives up the snapshots older than `age`, but for those that are kept; returns how many.
    pub(crate) fn give_up_older_than(&self, age: Duration) -> usize {
        let now = self.time.elapsed();
        self.give_up(|slot, _, born| now.saturating_sub(born) > age && !slot.kept.load(SeqCst))
    }

    /// Gives up the snapshots with the lowest timestamp, to make room for old versions; returns how many. 0 = there
    /// is nobody to give up, or the oldest was just ending.
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
    /// The timestamp to read at.
    pub(crate) fn timestamp(&self) -> Timestamp {
        self.timestamp
    }

    /// How long ago it was taken.
    pub(crate) fn age(&self) -> Duration {
        self.registry.time.elapsed().saturating_sub(Duration::from_nanos(self.slot().born.load(SeqCst)))
    }

    /// Whether it was given up. To be asked *after* each read, before its result is used or its error reported: an
    /// overflow value may have been freed under the reader.
    #[inline]
    pub(crate) fn expired(&self) -> bool {
        self.slot().is_given_up()
    }

    /// Whether it is not to be given up for its age. No, unless this says so.
    pub(crate) fn keep(&self, keep: bool) {
        self.slot().kept.store(keep, SeqCst);
    }

    /// Gives it up; false if it was before.
    pub(crate) fn give_up(&self) -> bool {
        self.slot().tenancy.fetch_or(GIVEN_UP, SeqCst) & GIVEN_UP == 0
    }

    /// [`Error::SnapshotTooOld`] if it was given up.
    pub(crate) fn check(&self) -> Result<()> {
        if self.expired() { Err(Error::SnapshotTooOld) } else { Ok(()) }
    }

    fn slot(&self) -> &Slot {
        match &self.place {
            Place::Fixed(slot) => &self.registry.slots[*slot],
            Place::Further(slot) => slot,
        }
    }
}

impl Drop for SnapshotHandle {
    fn drop(&mut self) {
        match &self.place {
            Place::Fixed(slot) => self.registry.slots[*slot].leave(),
            Place::Further(slot) => self.registry.further.lock().retain(|other| !Arc::ptr_eq(other, slot)),
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
        let kept = registry.register(&clock);
        kept.keep(true);
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

    /// Readers register while the clock runs and a collector computes the oldest; nothing collected is needed.
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
