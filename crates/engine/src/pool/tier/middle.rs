//! The middle tier: options, state and decisions.
//!
//! The policy decides where a page goes (`migration.rs`); `promote.rs` and `demote.rs` move it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::RwLock;
use terrace_io::{SimulatedMemory, Time};

use super::adapt::Adaptation;
use super::addresses::Addresses;
use super::line_counts::LineCounts;
use super::migration::{Access, Choice, Die, Intent, LiveMigration, Migration, Path, Policy};
use super::operation;
use super::promotion_batch::PromotionBatch;
use crate::ids::{ByClass, PageId, SizeClass};
use crate::pool::frames::partition::{ByPartition, Partition, Tier, class_of, is_middle};
use crate::pool::frames::persistent::{PersistentFrames, PersistentSource};
use crate::pool::frames::{Header, MiniPages, NodeOptions};
use crate::pool::replacement::Replacer;
use crate::pool::resident::Resident;
use crate::pool::retry::Mode;
use crate::stats::{LineWrites, MiddleClass, MiddleStats, MiddleWrites, Migrations};
use crate::threads::{Tally, thread_number};

/// After more restarts, an operation loads missing pages to DRAM.
///
/// With fewer middle frames than threads, two operations could evict each other's pages forever.
pub(in crate::pool) const RESTARTS_MAX: u32 = 2;
/// Position of the thread number in an operation number.
const THREAD_SHIFT: u32 = 40;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MiddleOptions {
    /// The database's own class, or the smallest of an allocator.
    pub(crate) class: SizeClass,
    /// Its size, as frames of that class.
    pub(crate) frames: u32,
    pub(crate) migration: Migration,
    /// Bytes of a line, if pages may be partial in DRAM.
    pub(crate) lines: Option<u32>,
    /// Whether pages with few lines are mini pages.
    pub(crate) minis: bool,
}

/// The tiers that hold frames. Default: DRAM on any node.
#[derive(Clone, Debug)]
pub(crate) struct TierOptions {
    pub(crate) middle: Option<MiddleOptions>,
    /// Charges accesses to the middle tier if it is simulated.
    pub(crate) memory: Option<Arc<SimulatedMemory>>,
    /// Where the middle tier lies, if it outlives the process.
    pub(crate) persistent: Option<PersistentSource>,
    pub(crate) nodes: NodeOptions,
    /// The time of simulated memory.
    pub(crate) time: Time,
}

impl Default for TierOptions {
    fn default() -> TierOptions {
        TierOptions {
            middle: None,
            memory: None,
            persistent: None,
            nodes: NodeOptions::default(),
            time: Time::wall(),
        }
    }
}

#[derive(Debug)]
pub(crate) struct MiddleTier {
    /// [`MiddleOptions::class`]: the only one with lines, and the only one of a persistent tier.
    pub(crate) class: SizeClass,
    bytes: u64,
    /// Of simulated memory.
    pub(in crate::pool) addresses: Addresses,
    pub(crate) migration: LiveMigration,
    /// First operation number: different between databases, equal for equal seeds.
    origin: u64,
    /// Pages created so far. New pages have no id to cast dice with.
    created: AtomicU64,
    pub(crate) counts: MiddleCounts,
    pub(crate) memory: Option<Arc<SimulatedMemory>>,
    pub(in crate::pool) line_counts: Option<LineCounts>,
    adaptation: Option<Adaptation>,
    pub(in crate::pool) batches: ByClass<PromotionBatch>,
    /// Shared (`try_read`) while a dirty page moves between tiers.
    ///
    /// Exclusive while the log cut scans the headers, so that no page is missed (`demote.rs`).
    pub(crate) moving: RwLock<()>,
}

#[derive(Debug, Default)]
pub(crate) struct MiddleCounts {
    pub(crate) reads_in_place: Tally,
    pub(crate) writes_in_place: Tally,
    pub(crate) store_to_middle: AtomicU64,
    pub(crate) created: AtomicU64,
    pub(crate) up_for_read: AtomicU64,
    pub(crate) up_for_write: AtomicU64,
    /// Refused promotions: no frame in DRAM, or the page moved meanwhile.
    pub(crate) up_refused: AtomicU64,
    pub(crate) up_deferred: AtomicU64,
    pub(crate) down_dirty: AtomicU64,
    pub(crate) down_clean: AtomicU64,
    pub(crate) down_current: AtomicU64,
    pub(crate) down_refused: AtomicU64,
    /// Middle copies dropped for other pages; the DRAM copy stays.
    pub(crate) copies_dropped: AtomicU64,
    /// Middle copies dropped because their pages were freed.
    pub(crate) copies_freed: AtomicU64,
    /// Pages loaded or created whose size has no frames in this tier.
    pub(crate) other_sizes: AtomicU64,
    /// Steps of frames to another page size.
    pub(crate) frame_moves: AtomicU64,
    /// Bytes of whole pages read from this tier.
    pub(crate) read_bytes: AtomicU64,
    /// Bytes of whole pages written to this tier.
    pub(crate) written_bytes: AtomicU64,
    pub(crate) middle_to_store: AtomicU64,
    pub(crate) dram_to_store: AtomicU64,
    pub(crate) flushed: AtomicU64,
    pub(crate) lines_written: AtomicU64,
    pub(crate) lines_loaded: AtomicU64,
    pub(crate) lines_demoted: AtomicU64,
    pub(crate) up_partial: AtomicU64,
    pub(crate) made_whole: AtomicU64,
    pub(crate) up_mini: AtomicU64,
    /// Mini pages that got a frame.
    pub(crate) widened: AtomicU64,
    /// Pages with a copy in both tiers now.
    pub(crate) copies: AtomicU64,
}

impl MiddleTier {
    pub(crate) fn new(tiers: &TierOptions, seed: u64) -> Option<MiddleTier> {
        let options = tiers.middle.as_ref()?;
        let class = options.class;
        let bytes = u64::from(options.frames) * class.page_bytes() as u64;
        let choice = options.migration.choice();
        let adaptation = (choice == Choice::Adaptive)
            .then(|| Adaptation::new(choice.policy(), seed, options.frames, tiers.time.clone()));
        let memory = tiers.memory.clone();
        let line_counts = memory.as_ref().map(|_| LineCounts::new(class, options.frames));
        Some(MiddleTier {
            memory,
            line_counts,
            adaptation,
            class,
            bytes,
            addresses: Addresses::new(class, bytes),
            migration: LiveMigration::new(&options.migration, options.frames),
            origin: seed.wrapping_sub(operation::current().number),
            created: AtomicU64::new(0),
            counts: MiddleCounts::default(),
            batches: Default::default(),
            moving: RwLock::new(()),
        })
    }

    pub(crate) fn path_of_access(&self, mode: Mode, id: PageId, intent: impl Fn(Access) -> Intent) -> Path {
        self.count_operations(mode);
        let operation = operation::current();
        // Without background threads, runs repeat only without the thread number.
        let thread = if mode == Mode::Inline { 0 } else { thread_number() << THREAD_SHIFT };
        let number = self.origin.wrapping_add(operation.number) ^ thread;
        self.migration.path_of_access(intent(operation.access), Die::cast(number, id.0))
    }

    fn count_operations(&self, mode: Mode) {
        if let Some(adaptation) = &self.adaptation
            && (mode == Mode::Background || adaptation.is_deterministic())
            && let Some(operations) = operation::uncounted()
        {
            adaptation.count(operations, &self.migration.policy);
        }
    }

    pub(crate) fn is_bypassed(&self, mode: Mode, id: PageId) -> bool {
        operation::current().restarts > RESTARTS_MAX
            || self.path_of_access(mode, id, Intent::Load) == Path::ToDram
    }

    pub(crate) fn is_bypassed_by_new(&self) -> bool {
        let number = self.origin.wrapping_add(self.created.fetch_add(1, Relaxed));
        let die = Die::cast(number, PageId::NONE.0);
        self.migration.path_of_access(Intent::Create, die) == Path::ToDram
    }

    pub(crate) fn path_of_victim(&self, id: PageId, version: u64, dirty: bool, middle_copy: bool) -> Path {
        let intent = Intent::Evict { dirty, middle_copy };
        // The version changes with every departure, so each casts another die.
        let die = Die::cast(!self.origin.wrapping_add(version), id.0);
        self.migration.path_of_victim(id.0, intent, die)
    }

    pub(crate) fn decide(&self, mode: Mode, id: PageId, is_leaf: bool) -> (Access, Path) {
        // A writing operation writes to a leaf and reads the pages above.
        let access = |access| if is_leaf { access } else { Access::Read };
        let asked = access(operation::current().access);
        (asked, self.path_of_access(mode, id, |by| Intent::Touch(access(by))))
    }

    pub(crate) fn access_in_place(&self, frame: u32, asked: Access) {
        self.charge_search(frame);
        match asked {
            Access::Read => self.counts.reads_in_place.raise(),
            Access::Write => self.counts.writes_in_place.raise(),
        }
    }

    pub(crate) fn stats(&self, resident: &Resident, replacer: &Replacer) -> MiddleStats {
        let classes = classes(self.class, resident, replacer);
        let dram_used = |class: &MiddleClass| class.dram_used;
        let (mini_pages, mini_page_frames) = resident.frames.minis.as_ref().map_or((0, 0), MiniPages::used);
        let counts = &self.counts;
        let count = |counter: &AtomicU64| counter.load(Relaxed);
        let (from_store, flushed) = (count(&counts.store_to_middle), count(&counts.flushed));
        let (dirty, clean) = (count(&counts.down_dirty), count(&counts.down_clean));
        let (for_read, for_write) = (count(&counts.up_for_read), count(&counts.up_for_write));
        MiddleStats {
            capacity_bytes: self.bytes,
            frames: classes.iter().map(|class| class.frames).sum(),
            used: classes.iter().map(|class| class.used).sum(),
            copies: count(&counts.copies),
            dram_used: classes.iter().map(dram_used).sum(),
            classes,
            frame_moves: count(&counts.frame_moves),
            policy: self.migration.policy.get(),
            tuning: self.adaptation.as_ref().map(Adaptation::tuning),
            simulated: self.memory.is_some(),
            lines_written: count(&counts.lines_written),
            lines_loaded: count(&counts.lines_loaded),
            lines_demoted: count(&counts.lines_demoted),
            promoted_partial: count(&counts.up_partial),
            made_whole: count(&counts.made_whole),
            mini_pages,
            mini_page_frames,
            promoted_mini: count(&counts.up_mini),
            widened: count(&counts.widened),
            persistent: resident.frames.persistent.as_ref().map(PersistentFrames::stats),
            dram_cache: self.memory.as_ref().and_then(|memory| memory.dram_cache()),
            reads_in_place: counts.reads_in_place.total(),
            writes_in_place: counts.writes_in_place.total(),
            read_bytes: count(&counts.read_bytes),
            written_bytes: count(&counts.written_bytes),
            migrations: Migrations {
                store_to_dram: resident.misses().saturating_sub(from_store),
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
            dram_flushes: resident.stats.images_written.load(Relaxed).saturating_sub(flushed),
            middle_flushes: flushed,
            up_refused: count(&counts.up_refused),
            up_deferred: count(&counts.up_deferred),
            memory_moves: resident.frames.nodes().moves(),
            misplaced_pages: resident.frames.nodes().misplaced(Tier::Middle),
            down_refused: count(&counts.down_refused),
            copies_dropped: count(&counts.copies_dropped),
            copies_freed: count(&counts.copies_freed),
            other_sizes: count(&counts.other_sizes),
        }
    }

    pub(crate) fn line_writes(&self) -> Option<LineWrites> {
        self.line_counts.as_ref().map(LineCounts::line_writes)
    }

    /// Sets the policy and stops its tuning.
    pub(crate) fn set_policy(&self, policy: Policy) {
        self.adaptation.as_ref().inspect(|adaptation| adaptation.stop());
        self.migration.policy.set(policy);
    }

    pub(crate) fn count_loaded(&self, resident: &Resident, frame: u32) {
        self.count_arrival(resident, frame, &self.counts.store_to_middle);
    }

    pub(crate) fn count_created(&self, resident: &Resident, frame: u32) {
        self.count_arrival(resident, frame, &self.counts.created);
    }

    /// Counts an arrival in `frame` by `counter`, if in this tier.
    ///
    /// Elsewhere counts only pages whose size has no frames in this tier.
    fn count_arrival(&self, resident: &Resident, frame: u32, counter: &AtomicU64) {
        if is_middle(frame) {
            counter.fetch_add(1, Relaxed);
        } else if resident.frames.count(Partition::middle(class_of(frame))) == 0 {
            self.counts.other_sizes.fetch_add(1, Relaxed);
        }
    }

    pub(crate) fn warn_of_size(&self, class: SizeClass) {
        tracing::warn!(
            page_bytes = class.page_bytes(),
            middle_bytes = self.bytes,
            "pages of this size do not go to the middle tier"
        );
    }

    /// Detaches a page's middle copy; returns its frame.
    ///
    /// Requires the page's exclusive latch. `upper` is the header in DRAM.
    pub(crate) fn detach_copy(&self, upper: &Header<'_>) -> Option<u32> {
        let below = upper.middle_copy()?;
        upper.set_middle_copy(None);
        self.counts.copies.fetch_sub(1, Relaxed);
        Some(below)
    }
}

/// The frames of this tier by page size, smallest first. Those below `own` cost as much as it.
fn classes(own: SizeClass, resident: &Resident, replacer: &Replacer) -> Vec<MiddleClass> {
    let used = |partition: Partition| {
        let idle = replacer.free(partition).lock().idle(&resident.frames);
        u64::from(replacer.page_frames(resident, partition)).saturating_sub(idle)
    };
    let one = |partition: Partition| {
        let count = |counts: &ByPartition<AtomicU64>| counts[partition.index()].load(Relaxed);
        MiddleClass {
            page_bytes: partition.class.page_bytes() as u64,
            frame_bytes: partition.class.max(own).page_bytes() as u64,
            frames: u64::from(resident.frames.count(partition)),
            used: used(partition),
            dram_used: used(partition.class.into()),
            taken: count(&resident.stats.frames_taken),
            gained: count(&resident.stats.frames_gained),
            lost: count(&resident.stats.frames_lost),
        }
    };
    resident.frames.partitions().filter(|partition| partition.tier == Tier::Middle).map(one).collect()
}
