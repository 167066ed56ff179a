//! Settings of an allocator, and the division of its budget.
//!
//! - Log, in memory: 1/32, from 256 KiB to 4 MiB, and a buffer of 64 KiB.
//! - Staging: 1/64, at most 2 MiB, at least four of the largest pages.
//! - Batches of reads: 1/16, at most 16 MiB; if that is less, eight of the largest pages or 1/8; at
//!   least four of them.
//! - Read buffers: two of the largest pages for each of eight threads.
//! - Page table: 24 bytes for each page of the smallest size in five times the budget; mapped, 8
//!   more for each 4 KiB.
//! - Middle tier: 66 bytes for each page of the smallest size that fits, and an admission queue.
//! - Frames: the rest, with 66 bytes beside each.

use std::path::Path;
use std::sync::Arc;

use terrace_io::{Directory, MemoryDevice, Migrate, Time};

use super::allocator::PageAllocator;
use super::file::{MARK, PageFile};
use super::shared::Shared;
use super::words::{PageWords, WORD_BYTES};
use crate::backend::Backend;
use crate::config::{Defaults, FRAMES_MIN, any_class_of, frames_min};
use crate::error::{Error, Result};
use crate::ids::SizeClass;
use crate::maintenance::{self, Layout};
use crate::middle::{Middle, bytes_beside};
use crate::migration::{Choice, Migration};
use crate::pool::{
    BufferSizes, FRAMES_MAX, Mode, PAGES_MAX, PoolOptions, RecordCache, TierOptions, buffers_bytes,
    frame_cost, indexes_max, table_bytes_per_page,
};
use crate::recovery::{Recovered, Redo, recover};
use crate::replacement::Replacement;
use crate::store::files::Files;
use crate::store::mapping_word::BLOCK_BYTES;
use crate::wal::Wal;

/// The log's buffer. Its longest records name the images of one staging buffer.
const LOG_BUFFER_BYTES: u64 = 64 << 10;
/// The log's slots for work in flight, counters, and the like.
const SLOT_BYTES: u64 = 64 << 10;
const TABLE_BYTES_PER_PAGE: u64 = 16 + WORD_BYTES;
/// The page table's capacity as a multiple of the budget.
const TIMES_BUDGET: u64 = 5;
const NO_SIZES: &str = "no sizes of pages were given";

/// Settings of a [`PageAllocator`].
///
/// ```
/// use terrace::pages::PageAllocator;
///
/// let folder = tempfile::tempdir().unwrap();
/// let pages = PageAllocator::builder()
///     .dram(8 << 20)
///     .page_sizes(&[16 << 10])
///     .open(folder.path().join("pages"))?;
/// assert_eq!(pages.stats().budget_bytes, 8 << 20);
/// # Ok::<(), terrace::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder opens nothing until `open` is called"]
pub struct PagesBuilder {
    dram: crate::Builder,
    page_sizes: Vec<u64>,
    backend: Option<Backend>,
    mode: Mode,
    directory: Option<Arc<dyn Directory>>,
}

impl Default for PagesBuilder {
    fn default() -> Self {
        PagesBuilder {
            dram: crate::Builder::default(),
            page_sizes: vec![SizeClass::LARGEST_NODE.page_bytes() as u64],
            backend: None,
            mode: Mode::Background,
            directory: None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Parts {
    log: u64,
    staging: u64,
    batches: u64,
    frames: u64,
}

impl PagesBuilder {
    /// Bytes of memory for everything, at least 1 MiB. Default: as [`crate::Builder::dram`].
    pub fn dram(mut self, bytes: u64) -> Self {
        self.dram = self.dram.dram(bytes);
        self
    }

    /// Allowed page sizes in bytes: powers of two, see [`SizeClass`]. Default: 64 KiB.
    ///
    /// Each has at least 24 frames, or 4 above 64 KiB; more memory goes to the size with the most
    /// misses.
    pub fn page_sizes(mut self, bytes: &[u64]) -> Self {
        self.page_sizes = bytes.to_vec();
        self
    }

    /// The memory backend of pages. Default: as [`crate::Builder::backend`].
    pub fn backend(mut self, backend: Backend) -> Self {
        self.backend = Some(backend);
        self
    }

    /// Adds a memory tier between DRAM and the file, of kind [`MiddleKind::Numa`] or
    /// [`MiddleKind::Simulated`].
    ///
    /// A guard is an access: it may promote its page to DRAM, and otherwise reads and writes it in
    /// the middle tier, where it stays at its address (Riekenbrauck et al., section III-G). The
    /// tier holds pages of all allowed sizes. Its bytes are divided among these, at first evenly.
    /// Then frames go to the size whose pages miss them most, as in DRAM. A page enters a tier only
    /// if that has a frame of its size at once. Otherwise a page in the middle tier is used there,
    /// and one that leaves DRAM goes to the file. Only frame headers are part of the budget.
    /// Default: no such tier.
    ///
    /// A simulated tier charges a guard in place four lines, as a search. It charges neither loads
    /// and stores through the guard, nor any guard if its profile counts lines.
    ///
    /// [`PagesBuilder::open`] refuses tiers that outlive the process, as the pages do not, and
    /// those without room for a page of each size.
    ///
    /// ```
    /// use terrace::pages::PageAllocator;
    ///
    /// let folder = tempfile::tempdir()?;
    /// let pages = PageAllocator::builder()
    ///     .dram(2 << 20)
    ///     .page_sizes(&[4096])
    ///     .middle("simulated:dram,4MiB".parse()?)
    ///     .policy("0,0,1,1".parse()?)
    ///     .open(folder.path().join("pages"))?;
    /// let name = pages.allocate(4096)?.keep();
    /// pages.write(name)?.write(0, b"written in place");
    /// assert_eq!(pages.stats().middle.unwrap().writes_in_place, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// [`MiddleKind::Numa`]: crate::MiddleKind::Numa
    /// [`MiddleKind::Simulated`]: crate::MiddleKind::Simulated
    pub fn middle(mut self, middle: Middle) -> Self {
        self.dram = self.dram.middle(middle);
        self
    }

    /// Which pages move between the tiers, as [`crate::Builder::migration`].
    pub fn migration(mut self, migration: Migration) -> Self {
        self.dram = self.dram.migration(migration);
        self
    }

    /// The migration policy, as [`crate::Builder::policy`].
    pub fn policy(mut self, policy: Choice) -> Self {
        self.dram = self.dram.policy(policy);
        self
    }

    /// How memory moves between the nodes of two tiers, as [`crate::Builder::migrate`].
    pub fn migrate(mut self, way: Migrate) -> Self {
        self.dram = self.dram.migrate(way);
        self
    }

    /// The time of a simulated tier, as [`crate::Builder::simulated_time`].
    pub fn simulated_time(mut self, time: Time) -> Self {
        self.dram = self.dram.simulated_time(time);
        self
    }

    /// Which threads write evicted pages. Default: the allocator's own thread.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Replaces the file system's directory; [`PagesBuilder::open`] then takes only the file name.
    pub fn directory(mut self, directory: Arc<dyn Directory>) -> Self {
        self.directory = Some(directory);
        self
    }

    /// Opens an allocator over a new file `path`, with mode 0600.
    ///
    /// Its directory must exist. Dropping the last handle removes the file. A file left by a killed
    /// process is replaced.
    ///
    /// # Errors
    /// [`Error::Busy`] if another allocator has the file, [`Error::Config`] for another file of
    /// that name and for impossible settings, [`Error::Memory`], [`Error::Full`], [`Error::Io`].
    pub fn open(self, path: impl AsRef<Path>) -> Result<PageAllocator> {
        let dram = self.dram.dram_bytes()?;
        let mut classes =
            self.page_sizes.iter().map(|&bytes| any_class_of(bytes)).collect::<Result<Vec<_>>>()?;
        classes.sort_unstable();
        classes.dedup();
        let backend = self.backend.unwrap_or_else(|| Defaults::default().backend);
        let smallest = *classes.first().ok_or_else(|| Error::Config(NO_SIZES.to_owned()))?;
        // Also the class of page-table pages, which are no longer than a tree's.
        let own = if smallest.is_for_values() { SizeClass::SMALLEST } else { smallest };
        let largest = classes[classes.len() - 1];
        let (parts, tiers) = self.tiers(dram, &classes, backend)?;
        let file = PageFile::create(path.as_ref(), self.directory)?;
        let log = MemoryDevice::new("log of pages", 0);
        let files = Files::new(file.device(), Arc::new(log));
        let segment_bytes = (dram / 64).clamp(64 << 10, 2 << 20);
        let layout = Layout {
            uuid: MARK,
            page_bytes: own.page_bytes(),
            segment_blocks: (segment_bytes / BLOCK_BYTES as u64)
                .max(16 * own.blocks())
                .max(4 * largest.blocks()),
            log_max: parts.log,
            log_first: parts.log,
        };
        let options = PoolOptions {
            frame_bytes: parts.frames,
            frame_bytes_max: dram,
            frames_floor: FRAMES_MIN,
            buffers: BufferSizes {
                log: LOG_BUFFER_BYTES,
                staging: parts.staging,
                batches: parts.batches,
                batch_least: 2 * largest.page_bytes() as u64,
            },
            pages_max: PAGES_MAX,
            hash: None,
            store_bytes_max: u64::MAX,
            record_cache: RecordCache::Off,
            backend,
            replacement: Replacement::default(),
            tiers,
            mode: Mode::Inline,
            in_memory: false,
            hints: false,
        };
        maintenance::create(&files, &layout)?;
        file.make_known()?;
        let Recovered { maintenance, .. } = recover(&files, &options, &NothingToRedo)?;
        maintenance.recovery_done();
        let pool = &maintenance.pool;
        classes.iter().try_for_each(|&class| pool.resizer().use_class(class))?;
        if own != classes[0] {
            pool.resizer().give_to(classes[0])?;
        }
        pool.set_mode(self.mode);
        let words = PageWords::reserve(|class| indexes_max(PAGES_MAX, class)).map_err(|source| {
            Error::Memory { bytes: WORD_BYTES * PAGES_MAX, what: "addresses for pages", source }
        })?;
        Shared::start(maintenance, words, classes, file, dram, parts.log, self.mode).map(PageAllocator::of)
    }

    /// The parts of `dram` bytes, and the tiers, for pages of `classes`.
    fn tiers(&self, dram: u64, classes: &[SizeClass], backend: Backend) -> Result<(Parts, TierOptions)> {
        // Only what was set here counts: partial pages are the tree's.
        let mut builder = self.dram.clone().backend(backend).lines(0).mini_pages(false);
        if builder.middle.is_none() {
            builder = builder.no_middle();
        }
        builder.check_migrate()?;
        if let Some(middle) = &builder.middle {
            check_middle(middle, classes)?;
        }
        let parts = divide(dram, classes, backend, 0)?;
        let smallest = classes[0];
        let Some(middle) = builder.middle_options(smallest)? else {
            return Ok((parts, TierOptions::default()));
        };
        let parts = divide(dram, classes, backend, bytes_beside(&middle, false, smallest, dram))?;
        let nodes = builder.node_options(builder.middle_nodes(smallest)?, parts.frames)?;
        let (memory, time) = (builder.middle_memory(), builder.simulated_time);
        Ok((parts, TierOptions { middle: Some(middle), memory, persistent: None, nodes, time }))
    }
}

impl PageAllocator {
    /// Settings for a new allocator.
    pub fn builder() -> PagesBuilder {
        PagesBuilder::default()
    }
}

fn check_middle(middle: &Middle, classes: &[SizeClass]) -> Result<()> {
    let kind = middle.kind();
    let why = if kind.file().is_some() {
        "it outlives the process, and an allocator's pages do not; use numa:NODES or simulated:PROFILE"
            .to_owned()
    } else {
        let needed = classes.iter().map(|class| class.page_bytes() as u64).sum::<u64>();
        // Rounded down to whole pages of the smallest size, of which the others are multiples.
        if middle.bytes() >= needed {
            return Ok(());
        }
        format!("{} bytes lack room for a page of each size; give it {needed}", middle.bytes())
    };
    Err(Error::Config(format!("the middle tier {kind}: {why}")))
}

/// `beside`: bytes for the headers and the admission queue of a middle tier.
fn divide(total: u64, classes: &[SizeClass], backend: Backend, beside: u64) -> Result<Parts> {
    let [smallest, .., largest] = classes else {
        let [only] = classes else { return Err(Error::Config(NO_SIZES.to_owned())) };
        return divide(total, &[*only, *only], backend, beside);
    };
    let (smallest, page_bytes) = (smallest.page_bytes() as u64, largest.page_bytes() as u64);
    let share = |part: u64, most: u64| (total / part).min(most).max(4 * page_bytes) / page_bytes * page_bytes;
    let log = (total / 32).clamp(256 << 10, 4 << 20) / 4096 * 4096;
    // A buffer holds two of the largest pages, and several scanning threads read four at a time.
    let batches = share(16, 16 << 20).max(share(8, 8 * page_bytes));
    let staging = share(64, 2 << 20);
    let per_page = TABLE_BYTES_PER_PAGE + table_bytes_per_page(backend, classes[0]);
    let table = total / smallest * TIMES_BUDGET * per_page;
    let fixed = log + Wal::memory_bytes(LOG_BUFFER_BYTES) + staging + batches + table + SLOT_BYTES;
    let fixed = fixed.saturating_add(beside);
    let frames = total.saturating_sub(fixed);
    let mut distinct = classes.to_vec();
    distinct.dedup();
    let own = u64::from(FRAMES_MIN) * frame_cost(SizeClass::SMALLEST);
    let floors: u64 =
        distinct.iter().map(|&class| u64::from(frames_min(class)) * frame_cost(class)).sum::<u64>() + own;
    let needed = floors + buffers_bytes(*largest);
    if frames < needed {
        let least = fixed.saturating_add(needed).checked_next_multiple_of(1 << 20).unwrap_or(u64::MAX);
        return Err(Error::Config(format!(
            "dram of {total} bytes leaves {frames} bytes for frames; the fewest of each size of pages and the buffers of the \
             largest take {needed} bytes; give it about {least} bytes"
        )));
    }
    Ok(Parts { log, staging, batches, frames: frames.min(u64::from(FRAMES_MAX) * frame_cost(*largest)) })
}

/// The log is always new, so there is nothing to redo.
struct NothingToRedo;

impl Redo for NothingToRedo {
    fn redo(&self, kind: u8, _: &[u8], _: &mut [u8]) -> Result<()> {
        Err(Error::corrupt("log of pages", None, format!("a new log has a change of kind {kind}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::migration::AdmissionQueue;

    #[test]
    fn the_parts_do_not_exceed_the_whole() {
        for total in [1 << 20, 4 << 20, 16 << 20, 64 << 20, 1 << 30, 64 << 30] {
            for largest in SizeClass::all() {
                for classes in [vec![largest], vec![SizeClass::SMALLEST, largest]] {
                    match divide(total, &classes, Backend::Mapped, 0) {
                        Ok(parts) => {
                            assert!(parts.log + parts.staging + parts.batches + parts.frames <= total);
                            let mostly = parts.frames > total / 2 || total < 16 << 20;
                            assert!(
                                mostly || largest.page_bytes() > 64 << 10,
                                "{total} {classes:?} {parts:?}"
                            );
                        }
                        Err(error) => assert!(error.to_string().contains("give it about"), "{error}"),
                    }
                }
            }
        }
        assert!(divide(64 << 20, &[], Backend::Frames, 0).unwrap_err().to_string().contains("no sizes"));
    }

    /// Pages above 64 KiB have a pool whose own class is smaller, for its page table.
    #[test]
    fn a_tier_is_charged_for_the_frames_that_it_can_have() {
        let class = SizeClass::of_bytes(128 << 10).unwrap();
        let frames = (16 << 30) / (128 << 10);
        let beside = |policy: Choice| {
            let builder = PagesBuilder::default().middle("simulated:dram,16GiB".parse().unwrap());
            let (parts, tiers) = builder.policy(policy).tiers(1 << 30, &[class], Backend::Frames).unwrap();
            let middle = tiers.middle.unwrap();
            assert_eq!((middle.class, u64::from(middle.frames)), (class, frames));
            divide(1 << 30, &[class], Backend::Frames, 0).unwrap().frames - parts.frames
        };
        assert_eq!(beside(Choice::Lazy), 66 * frames);
        let queue = frames / 2 * AdmissionQueue::BYTES_PER_PAGE;
        assert_eq!(beside(Choice::HyMem), 66 * frames + queue);
    }

    #[test]
    fn the_budget_that_is_said_to_do_does() {
        for class in SizeClass::all() {
            let error = divide(1 << 20, &[class], Backend::Frames, 0);
            let Err(error) = error.map_err(|error| error.to_string()) else { continue };
            let least = error.rsplit(' ').nth(1).unwrap().parse::<u64>().unwrap();
            // Parts that grow with the budget may need a little more.
            assert!(divide(least + least / 4, &[class], Backend::Frames, 0).is_ok(), "{error}");
        }
    }
}
