//! Pages: allocation, guards, freeing.
//!
//! Lock order: a page's word (`words.rs`) excludes other users, then a pin of the pool
//! (`pool/pin.rs`) keeps it in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::guard::{AllocationGuard, ExclusiveGuard, SharedGuard};
use super::shared::{PageRef, Shared};
use super::words::{WORD_BYTES, next_number};
use crate::config::any_class_of;
use crate::error::{Error, Result};
use crate::ids::{PageId, SizeClass};
use crate::migration::Access;
use crate::pool::{Pin, ReadReason, Retry, batch_pages, fault_many, operation};
use crate::stats::{FrameClass, MiddleStats};

/// Longest wait for a shared guard.
const CROWDED_WAIT: Duration = Duration::from_secs(2);

/// Counters and sizes of an allocator.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PagesStats {
    /// Memory budget, bytes.
    pub budget_bytes: u64,
    /// Pages that exist.
    pub pages: u64,
    /// Frames by page size, smallest first.
    pub frame_classes: Vec<FrameClass>,
    /// Bytes of the page tables.
    pub table_bytes: u64,
    /// Bytes of the log in memory.
    pub log_bytes: u64,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Bytes of the file in use.
    pub live_bytes: u64,
    /// Pages read from the file on access.
    pub faults: u64,
    /// Pages evicted from memory.
    pub evictions: u64,
    /// Bytes read from the file.
    pub read_bytes: u64,
    /// Bytes written to the file.
    pub written_bytes: u64,
    /// Waits for a frame while all were dirty or in use.
    pub frame_waits: u64,
    /// The middle tier, if there is one.
    pub middle: Option<MiddleStats>,
}

/// Hands out pages in memory, or in a file once memory is full.
///
/// Clones share one allocator, which ends with the last one, together with its pages and file. Any
/// thread may call any method.
///
/// ```
/// use terrace::pages::PageAllocator;
///
/// let folder = tempfile::tempdir().unwrap();
/// let pages = PageAllocator::builder()
///     .dram(8 << 20)
///     .page_sizes(&[4096])
///     .open(folder.path().join("pages"))?;
/// let mut names = Vec::new();
/// for number in 0..10_000u64 { // 40 MB
///     let mut page = pages.allocate(4096)?;
///     page.write(0, &number.to_le_bytes());
///     names.push(page.keep());
/// }
/// let mut number = [0; 8];
/// pages.read(names[1234])?.copy_to(0, &mut number);
/// assert_eq!(u64::from_le_bytes(number), 1234);
/// assert!(pages.stats().evictions > 0);
/// # Ok::<(), terrace::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct PageAllocator {
    shared: Arc<Shared>,
}

impl PageAllocator {
    pub(super) fn of(shared: Shared) -> Self {
        PageAllocator { shared: Arc::new(shared) }
    }

    /// Allocates a zeroed page of `page_bytes` bytes. Guards hide its header of 24 bytes.
    ///
    /// # Errors
    /// [`Error::Config`] for a size that the allocator lacks, [`Error::Full`] if the disk is full,
    /// [`Error::OutOfFrames`] if guards hold all frames, [`Error::Poisoned`] after a failed write,
    /// [`Error::Io`].
    pub fn allocate(&self, page_bytes: u64) -> Result<AllocationGuard<'_>> {
        let Shared { pool, words, pages, .. } = &*self.shared;
        let class = self.check_size(page_bytes)?;
        pool.check()?;
        let created = match pool.create_pinned(class) {
            // Recently freed pages may suffice.
            Err(Retry::Fail(Error::Full { .. })) => {
                pool.requests.maintainer().absorb_freed();
                pool.create_pinned(class)
            }
            other => other,
        };
        let number = next_number();
        let (id, pin) = created.map_err(|stop| PageRef { id: PageId::NONE, number }.stopped(stop))?;
        let page = PageRef { id, number };
        pages.fetch_add(1, Relaxed);
        let guard = ExclusiveGuard::new(&self.shared, page, pin, words.begin(id, number));
        Ok(AllocationGuard::new(guard))
    }

    pub(super) fn check_size(&self, page_bytes: u64) -> Result<SizeClass> {
        let class = any_class_of(page_bytes)?;
        if self.shared.classes.contains(&class) {
            return Ok(class);
        }
        let what = format!("pages of {page_bytes} bytes; the allocator was opened without: see page_sizes");
        Err(Error::Config(what))
    }

    /// Locks `page` for reading, with up to 200 readers; waits for a writer.
    ///
    /// # Errors
    /// [`Error::PageNotFound`] for a freed page or another allocator's, [`Error::TooManyGuards`]
    /// after two seconds with 200, [`Error::OutOfFrames`] if guards hold all frames,
    /// [`Error::Corrupt`], [`Error::Io`]. [`Error::Poisoned`] after a failed write, if reading must
    /// evict a page.
    pub fn read(&self, page: PageRef) -> Result<SharedGuard<'_>> {
        let hold = self.shared.words.share(page.id, page.number, CROWDED_WAIT);
        let hold = hold.map_err(|refused| page.refused(refused))?;
        Ok(SharedGuard::new(self.pin(page, Access::Read)?, hold))
    }

    /// Locks `page` for writing; waits for all other guards.
    ///
    /// # Errors
    /// As [`PageAllocator::read`], and [`Error::Poisoned`] after any failed write.
    pub fn write(&self, page: PageRef) -> Result<ExclusiveGuard<'_>> {
        self.shared.pool.check()?;
        let hold = self.shared.words.exclude(page.id, page.number);
        let hold = hold.map_err(|refused| page.refused(refused))?;
        Ok(ExclusiveGuard::new(&self.shared, page, self.pin(page, Access::Write)?, hold))
    }

    fn pin(&self, page: PageRef, access: Access) -> Result<Pin<'_>> {
        self.shared.pool.pin(page.id, access).map_err(|stop| page.stopped(stop))
    }

    /// The page that contains `word`, taken from a guard that is still held.
    ///
    /// ```
    /// use terrace::pages::PageAllocator;
    ///
    /// let folder = tempfile::tempdir().unwrap();
    /// let pages = PageAllocator::builder()
    ///     .dram(8 << 20)
    ///     .page_sizes(&[4096])
    ///     .open(folder.path().join("pages"))?;
    /// let page = pages.allocate(4096)?;
    /// assert_eq!(pages.page_of(&page.words()[100]), Some(page.page()));
    /// assert_eq!(pages.page_of(&std::sync::atomic::AtomicU64::new(0)), None);
    /// # Ok::<(), terrace::Error>(())
    /// ```
    pub fn page_of(&self, word: &AtomicU64) -> Option<PageRef> {
        let id = self.shared.pool.page_at(word)?;
        Some(PageRef { id, number: self.shared.words.number(id)? })
    }

    /// Frees `page` without reading it; waits for its guards.
    ///
    /// # Errors
    /// [`Error::PageNotFound`] if it was freed before or is another allocator's.
    pub fn free(&self, page: PageRef) -> Result<()> {
        let hold = self.shared.words.exclude(page.id, page.number);
        hold.map_err(|refused| page.refused(refused))?.end();
        self.shared.freed(page);
        Ok(())
    }

    /// Reads the missing ones of `pages` in batches; returns how many it read.
    ///
    /// It reads fewer if memory is short. A later read reports a damaged page; names of freed pages
    /// are skipped.
    ///
    /// # Errors
    /// [`Error::OutOfFrames`] if guards hold all frames, and errors of writing evicted pages.
    pub fn prefetch(&self, pages: &[PageRef]) -> Result<usize> {
        let pool = &self.shared.pool;
        if pool.middle.is_some() {
            operation::begin(Access::Read);
        }
        let there = pages.iter().filter(|page| self.shared.words.is(page.id, page.number));
        let ids: Vec<PageId> = there.map(|page| page.id).collect();
        let mut brought = 0;
        for same in ids.chunk_by(|one, next| one.class_index() == next.class_index()) {
            let most = self.prefetch_pages_max(same[0].page_bytes() as u64);
            for batch in same.chunks(most) {
                brought += fault_many(pool, batch, ReadReason::Wanted, &mut |_, _| ())?;
            }
        }
        Ok(brought)
    }

    /// Pages of this size that [`PageAllocator::prefetch`] reads in one batch: at least 1.
    pub fn prefetch_pages_max(&self, page_bytes: u64) -> usize {
        SizeClass::of_bytes(page_bytes).map_or(1, |class| batch_pages(&self.shared.pool, class).max(1))
    }

    pub(super) fn has_threads(&self) -> bool {
        self.shared.round_state.is_some()
    }

    /// The allowed page sizes in bytes, smallest first.
    pub fn page_sizes(&self) -> Vec<u64> {
        self.shared.classes.iter().map(|class| class.page_bytes() as u64).collect()
    }

    /// Counters and sizes.
    pub fn stats(&self) -> PagesStats {
        let Shared { pool, pages, dram, log_bytes, .. } = &*self.shared;
        let footprint = crate::pool::inspect::Footprint::of(pool);
        let stats = &pool.stats;
        PagesStats {
            budget_bytes: *dram,
            pages: pages.load(Relaxed),
            frame_classes: footprint.frames,
            table_bytes: footprint.page_table_bytes + pool.page_ids_used() * WORD_BYTES,
            log_bytes: *log_bytes,
            file_bytes: footprint.file_bytes,
            live_bytes: footprint.live_bytes,
            faults: stats.faults.load(Relaxed),
            evictions: stats.evictions.load(Relaxed),
            read_bytes: stats.store_read_bytes.load(Relaxed),
            written_bytes: stats.store_written_bytes.load(Relaxed),
            frame_waits: stats.frame_waits.load(Relaxed),
            middle: pool.tiers.middle_stats(),
        }
    }
}
