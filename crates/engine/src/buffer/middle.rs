//! The middle tier: what a pool is told of it, and where pages go.
//!
//! It has frames for pages of the database's own size, with queues like those in DRAM (`stripe.rs`, `sweep.rs`). Where a page goes
//! is decided by a policy (`migration.rs`); how it gets there is in `migrate.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use terrace_block::{SimulatedMemory, Time};

use super::adapt::Adaptation;
use super::due::Due;
use super::frames::Header;
use super::migration::{
    Access, AdmissionQueue, CleanVictims, Die, Intent, LivePolicy, Path, Policy, asks_queue, path,
};
use super::operation;
use super::pool::{Mode, Pool};
use super::stripe::{Stripe, Tier, class_of, is_middle};
use super::table::Location;
use super::wear::Wear;
use crate::ids::{PageId, SizeClass};
use crate::stats::{LineWrites, MiddleStats, MiddleWrites, Migrations};
use crate::threads::{Tally, thread_number};

/// An operation that began again so often has what it lacks brought to DRAM: where the middle tier has fewer frames than threads, what
/// one brings in there would push out what the other needs, for ever.
const RESTARTS_MAX: u32 = 2;
/// Where in the number of an operation the thread is, so that no two count alike.
const THREAD_SHIFT: u32 = 40;

/// What a pool is told of its middle tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MiddleOptions {
    /// Frames there are.
    pub(crate) frames: u32,
    pub(crate) policy: Policy,
    pub(crate) clean_victims: CleanVictims,
    /// Pages that an admission queue remembers, which decides in place of `N_w`; none = there is no queue.
    pub(crate) queue_pages: Option<usize>,
    /// Whether the policy changes by itself.
    pub(crate) adaptive: bool,
}

/// The middle tier of a pool.
#[derive(Debug)]
pub(crate) struct MiddleTier {
    /// Of which it has frames.
    pub(super) class: SizeClass,
    pub(super) policy: LivePolicy,
    clean_victims: CleanVictims,
    queue: Option<AdmissionQueue>,
    /// Where the numbers of operations begin, so that the dice of two databases do not fall alike, and those of one made from a seed
    /// always do.
    origin: u64,
    /// Pages made so far; dice of new pages have no page to go by.
    created: AtomicU64,
    pub(super) counts: Counts,
    /// What its memory costs, where it is simulated.
    pub(super) memory: Option<Arc<SimulatedMemory>>,
    /// How often it was written, where it is simulated.
    pub(super) wear: Option<Wear>,
    adaptation: Option<Adaptation>,
    /// Pages that are to come to DRAM when they are enough.
    pub(super) due: Due,
}

/// What the pages of the middle tier did.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Reads and writes of pages where they are, in the middle tier.
    pub(super) reads_in_place: Tally,
    pub(super) writes_in_place: Tally,
    /// Pages read from the store, or made, by the tier they came to.
    pub(super) store_to_middle: AtomicU64,
    pub(super) created: AtomicU64,
    /// Pages brought to DRAM, for a read and for a write.
    pub(super) up_for_read: AtomicU64,
    pub(super) up_for_write: AtomicU64,
    /// Pages that should have been, and for which DRAM had no frame, or that moved meanwhile.
    pub(super) up_refused: AtomicU64,
    /// Looks that decided so, and whose pages wait for others to come with them.
    pub(super) up_deferred: AtomicU64,
    /// Dirty and clean pages copied from DRAM.
    pub(super) down_dirty: AtomicU64,
    pub(super) down_clean: AtomicU64,
    /// Pages that left DRAM for a copy here that was as new.
    pub(super) down_current: AtomicU64,
    /// Pages that should have been, and for which there was no frame.
    pub(super) down_refused: AtomicU64,
    /// Copies that were dropped for others, since there was one in DRAM.
    pub(super) copies_dropped: AtomicU64,
    /// Copies that were dropped because their pages were freed.
    pub(super) copies_freed: AtomicU64,
    /// Pages of other sizes than the tier's that were read from the store, or made, and could not come here.
    pub(super) other_sizes: AtomicU64,
    /// Pages that left for the store.
    pub(super) middle_to_store: AtomicU64,
    /// Pages that left DRAM for the store.
    pub(super) dram_to_store: AtomicU64,
    /// Images that were made of pages here.
    pub(super) flushed: AtomicU64,
    /// Lines of pages that were changed here.
    pub(super) lines_written: AtomicU64,
    /// Pages with a copy in DRAM and one here, now.
    pub(super) copies: AtomicU64,
}

impl MiddleTier {
    /// One for pages of `class`; `seed` is the database's.
    pub(super) fn new(
        options: &MiddleOptions,
        memory: Option<Arc<SimulatedMemory>>,
        time: Time,
        class: SizeClass,
        seed: u64,
    ) -> MiddleTier {
        let adaptation =
            options.adaptive.then(|| Adaptation::new(options.policy, seed, options.frames, time));
        let wear = memory.as_ref().map(|_| Wear::new(options.frames, class.page_bytes()));
        MiddleTier {
            memory,
            wear,
            adaptation,
            class,
            policy: LivePolicy::new(options.policy),
            clean_victims: options.clean_victims,
            queue: options.queue_pages.map(AdmissionQueue::new),
            origin: seed.wrapping_sub(operation::current().number),
            created: AtomicU64::new(0),
            counts: Counts::default(),
            due: Due::default(),
        }
    }

    /// Where a page goes that is needed by the calling thread's operation.
    pub(super) fn path_of_access(&self, mode: Mode, id: PageId, intent: impl Fn(Access) -> Intent) -> Path {
        self.count_operations(mode);
        let operation = operation::current();
        // A thread that works alone has the same number in every run only if others do not count.
        let thread = if mode == Mode::Inline { 0 } else { thread_number() << THREAD_SHIFT };
        let number = self.origin.wrapping_add(operation.number) ^ thread;
        path(self.policy.get(), self.clean_victims, intent(operation.access), Die::cast(number, id.0), None)
    }

    fn count_operations(&self, mode: Mode) {
        if let Some(adaptation) = &self.adaptation
            && (mode == Mode::Background || adaptation.is_deterministic())
            && let Some(operations) = operation::uncounted()
        {
            adaptation.count(operations, &self.policy);
        }
    }

    /// Whether a page that the calling thread's operation reads from the store goes past this tier.
    pub(super) fn is_bypassed(&self, mode: Mode, id: PageId) -> bool {
        operation::current().restarts > RESTARTS_MAX
            || self.path_of_access(mode, id, Intent::Load) == Path::ToDram
    }

    /// Whether a new page does.
    pub(super) fn is_bypassed_by_new(&self) -> bool {
        let number = self.origin.wrapping_add(self.created.fetch_add(1, Relaxed));
        let die = Die::cast(number, PageId::NONE.0);
        path(self.policy.get(), self.clean_victims, Intent::Create, die, None) == Path::ToDram
    }

    /// Where the page `id` goes that leaves DRAM at `version`.
    pub(super) fn path_of_victim(&self, id: PageId, version: u64, dirty: bool, middle_copy: bool) -> Path {
        let intent = Intent::Evict { dirty, middle_copy };
        let queue = self.queue.as_ref().filter(|_| asks_queue(self.clean_victims, intent));
        // Its version moves whenever it leaves, so the die is another each time.
        let die = Die::cast(!self.origin.wrapping_add(version), id.0);
        path(self.policy.get(), self.clean_victims, intent, die, queue.map(|queue| queue.admits(id.0)))
    }
}

impl Pool {
    /// What the middle tier has done and takes, if there is one.
    pub(crate) fn middle_stats(&self) -> Option<MiddleStats> {
        let middle = self.middle.as_ref()?;
        let stripe = Stripe::middle(middle.class);
        let idle = |stripe: Stripe| self.free(stripe).lock().list.len() as u64;
        let (frames, page_bytes) = (u64::from(self.frames.count(stripe)), middle.class.page_bytes() as u64);
        let counts = &middle.counts;
        let count = |counter: &AtomicU64| counter.load(Relaxed);
        let (from_store, flushed) = (count(&counts.store_to_middle), count(&counts.flushed));
        let (dirty, clean) = (count(&counts.down_dirty), count(&counts.down_clean));
        let (for_read, for_write) = (count(&counts.up_for_read), count(&counts.up_for_write));
        Some(MiddleStats {
            capacity_bytes: frames * page_bytes,
            frames,
            used: frames.saturating_sub(idle(stripe)),
            copies: count(&counts.copies),
            dram_used: u64::from(self.page_frames(middle.class)).saturating_sub(idle(middle.class.into())),
            policy: middle.policy.get(),
            tuning: middle.adaptation.as_ref().map(Adaptation::tuning),
            simulated: middle.memory.is_some(),
            lines_written: count(&counts.lines_written),
            dram_cache: middle.memory.as_ref().and_then(|memory| memory.dram_cache()).map(Into::into),
            reads_in_place: counts.reads_in_place.total(),
            writes_in_place: counts.writes_in_place.total(),
            page_bytes,
            migrations: Migrations {
                store_to_dram: self.misses().saturating_sub(from_store),
                store_to_middle: from_store,
                middle_to_dram: for_read + for_write,
                middle_to_dram_for_writes: for_write,
                dram_to_middle: dirty + clean,
                dram_to_middle_uncopied: count(&counts.down_current),
                dram_to_store: count(&counts.dram_to_store),
                middle_to_store: count(&counts.middle_to_store),
            },
            writes: MiddleWrites {
                in_place: counts.writes_in_place.total(),
                from_dram: dirty,
                from_dram_clean: clean,
                from_store,
                created: count(&counts.created),
            },
            dram_flushes: self.stats.images_written.load(Relaxed).saturating_sub(flushed),
            middle_flushes: flushed,
            up_refused: count(&counts.up_refused),
            up_deferred: count(&counts.up_deferred),
            memory_moves: self.frames.nodes().moves(),
            misplaced_pages: self.frames.nodes().misplaced(Tier::Middle),
            down_refused: count(&counts.down_refused),
            copies_dropped: count(&counts.copies_dropped),
            copies_freed: count(&counts.copies_freed),
            other_sizes: count(&counts.other_sizes),
        })
    }

    /// How often each line of the middle tier was written, if there is one that is simulated.
    pub(crate) fn line_writes(&self) -> Option<LineWrites> {
        self.middle.as_ref()?.wear.as_ref().map(Wear::line_writes)
    }

    /// Pages of the system's that came to frames in DRAM and are not on the nodes that were asked for.
    pub(crate) fn misplaced_pages(&self) -> u64 {
        self.frames.nodes().misplaced(Tier::Dram)
    }

    /// Lets pages move by other probabilities from now on. Without a middle tier there are none.
    pub(crate) fn set_policy(&self, policy: Policy) {
        if let Some(middle) = &self.middle {
            middle.adaptation.as_ref().inspect(|adaptation| adaptation.stop());
            middle.policy.set(policy);
        }
    }

    /// By which probabilities pages move, if there is a middle tier.
    pub(crate) fn policy(&self) -> Option<Policy> {
        self.middle.as_ref().map(|middle| middle.policy.get())
    }

    /// Counts a page that was read from the store to `frame`.
    pub(super) fn count_loaded(&self, frame: u32) {
        self.count_arrival(frame, |counts| &counts.store_to_middle);
    }

    /// Counts a page that came to `frame` from nowhere in memory: by `counter` if that is in the middle tier, else only if its size
    /// kept it out.
    fn count_arrival(&self, frame: u32, counter: impl Fn(&Counts) -> &AtomicU64) {
        let Some(middle) = &self.middle else { return };
        if is_middle(frame) {
            counter(&middle.counts).fetch_add(1, Relaxed);
        } else if class_of(frame) != middle.class {
            middle.counts.other_sizes.fetch_add(1, Relaxed);
        }
    }

    /// Warns that pages of `class`, which are used from now on, will not come to the middle tier.
    pub(super) fn warn_of_size(&self, class: SizeClass) {
        if let Some(middle) = self.middle.as_ref().filter(|middle| middle.class != class) {
            tracing::warn!(
                page_bytes = class.page_bytes(),
                middle_page_bytes = middle.class.page_bytes(),
                "pages of another size do not go to the middle tier"
            );
        }
    }

    /// Counts an image of the page `id`, which is still claimed and therefore where it was when the image was made.
    pub(super) fn count_flushed(&self, id: PageId) {
        if let Some(middle) = &self.middle
            && let Some(Location::Frame(frame)) = self.table.entry(id).map(|entry| entry.location())
            && is_middle(frame)
        {
            middle.counts.flushed.fetch_add(1, Relaxed);
        }
    }

    /// Counts a page that was made in `frame`.
    pub(super) fn count_created(&self, frame: u32) {
        self.count_arrival(frame, |counts| &counts.created);
    }

    /// Takes the copy of a page in the middle tier away from below that in DRAM, whose header this is, under its exclusive latch.
    pub(super) fn part(&self, upper: &Header<'_>) -> Option<u32> {
        let below = upper.below()?;
        upper.set_below(None);
        if let Some(middle) = &self.middle {
            middle.counts.copies.fetch_sub(1, Relaxed);
        }
        Some(below)
    }

    /// The middle tier, if it has frames for pages of `class`.
    pub(super) fn middle_for(&self, class: SizeClass) -> Option<&MiddleTier> {
        self.middle.as_ref().filter(|middle| middle.class == class)
    }
}
