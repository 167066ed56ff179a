//! Pages: new ones, guards of them, their end.
//!
//! A page is held twice, in this order: by its word (`words.rs`), which is where its users meet, and by a pin of the pool
//! (`buffer/pin.rs`), which keeps it in memory. Both are given back in the opposite order.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use super::builder::PagesBuilder;
use super::file::PageFile;
use super::guard::{AllocationGuard, ExclusiveGuard, SharedGuard};
use super::words::{PageWords, Refused, WORD_BYTES, next_number};
use crate::buffer::{Mode, PINS_MAX, Pin, Pool, Purpose, Stop};
use crate::config::any_class_of;
use crate::error::{Error, Result};
use crate::ids::{PageId, SizeClass};
use crate::stats::FrameClass;
use crate::store::page;

/// How long a thread waits for a shared guard of a page that has as many as it can have.
const CROWDED_WAIT: Duration = Duration::from_secs(2);

/// A page of an allocator, named by who keeps the structure it belongs to.
///
/// Sixteen bytes. No other page has the same name as long as the process lives, even if it has the id of one that was freed:
/// who uses the name of a page that was freed, or of another allocator, is told so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageRef {
    id: PageId,
    number: u64,
}

impl PageRef {
    /// Its id: how large it is and which of that size. Ids are used again.
    pub fn id(self) -> PageId {
        self.id
    }

    /// Bytes it takes.
    pub fn page_bytes(self) -> usize {
        self.id.page_bytes()
    }

    /// Bytes its user has of it: all but a header of 24.
    pub fn capacity(self) -> usize {
        self.id.page_bytes() - page::HEADER_BYTES
    }

    fn missing(self) -> Error {
        Error::PageNotFound { page: self.id.0 }
    }

    /// Why there is no guard of it.
    fn refused(self, refused: Refused) -> Error {
        match refused {
            Refused::Missing => self.missing(),
            Refused::Crowded => Error::TooManyGuards { page: self.id.0, max: PINS_MAX },
        }
    }

    /// What became of an attempt to hold it.
    fn stopped(self, stop: Stop) -> Error {
        match stop {
            Stop::Fail(error) => error,
            Stop::Missing(_) | Stop::Restart => self.missing(),
        }
    }
}

/// What an allocator has done and what it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PagesStats {
    /// Bytes of memory it may take.
    pub budget_bytes: u64,
    /// Pages there are.
    pub pages: u64,
    /// Frames by the size of their pages, the smallest first.
    pub frame_classes: Vec<FrameClass>,
    /// Bytes of the tables of pages.
    pub table_bytes: u64,
    /// Bytes of the log, which is in memory.
    pub log_bytes: u64,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Bytes of the file that hold pages.
    pub live_bytes: u64,
    /// Pages brought in from the file.
    pub faults: u64,
    /// Pages whose memory was taken for others.
    pub evictions: u64,
    /// Bytes read from the file.
    pub read_bytes: u64,
    /// Bytes written to it.
    pub written_bytes: u64,
    /// Times somebody waited because all frames were dirty or in use.
    pub frame_waits: u64,
}

/// Hands out pages that are in memory while there is room, and in a file else.
///
/// A handle: clones are of the same allocator, which goes with the last of them, its pages and its file with it. All calls take
/// `&self`, from any thread.
///
/// ```
/// use terrace::pages::PageAllocator;
///
/// let place = tempfile::tempdir().unwrap();
/// let pages = PageAllocator::builder().dram(8 << 20).page_sizes(&[4096]).open(place.path().join("pages"))?;
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

/// An allocator with its thread.
#[derive(Debug)]
pub(super) struct Shared {
    pool: Arc<Pool>,
    words: PageWords,
    /// Of which there may be pages. The pool may have one more, for its tables.
    classes: Vec<SizeClass>,
    pages: AtomicU64,
    dram: u64,
    log_bytes: u64,
    upkeep: Option<JoinHandle<()>>,
    process: u32,
    /// Removed when nothing writes to it any more: the last of these to be dropped.
    _file: PageFile,
}

impl Shared {
    pub(super) fn start(
        pool: Pool,
        words: PageWords,
        classes: Vec<SizeClass>,
        file: PageFile,
        dram: u64,
        log_bytes: u64,
        mode: Mode,
    ) -> Result<PageAllocator> {
        let pool = Arc::new(pool);
        let upkeep = match mode {
            Mode::Inline => None,
            Mode::Background => {
                let pool = Arc::clone(&pool);
                let builder = std::thread::Builder::new().name("terrace-pages".to_owned());
                let spawned = builder.spawn(move || pool.run_upkeep());
                Some(spawned.map_err(|source| Error::io("start a thread", "terrace-pages", None, source))?)
            }
        };
        let process = std::process::id();
        let pages = AtomicU64::new(0);
        let shared = Shared { pool, words, classes, pages, dram, log_bytes, upkeep, process, _file: file };
        Ok(PageAllocator { shared: Arc::new(shared) })
    }

    /// The page of a guard that holds it alone, and has unpinned it, is freed.
    pub(super) fn freed(&self, page: PageRef) {
        self.pages.fetch_sub(1, Relaxed);
        self.pool.free_unlogged(page.id);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // A forked child has neither the thread nor the file.
        if self.process == std::process::id()
            && let Some(upkeep) = self.upkeep.take()
        {
            self.pool.wal().close("the allocator has been dropped");
            self.pool.stop_upkeep();
            let _ = upkeep.join();
        }
    }
}

impl PageAllocator {
    /// Settings for a new allocator.
    pub fn builder() -> PagesBuilder {
        PagesBuilder::default()
    }

    /// A new page of `page_bytes` bytes, one of the sizes the allocator was opened with. Zeros, but for a header of 24 bytes that
    /// guards do not show.
    ///
    /// # Errors
    /// [`Error::Config`] for another size, [`Error::Full`] if the disk has no room for one more, [`Error::OutOfFrames`] if
    /// all pages in memory are under guards, [`Error::Poisoned`] after a failed write, [`Error::Io`].
    pub fn allocate(&self, page_bytes: u64) -> Result<AllocationGuard<'_>> {
        let Shared { pool, words, pages, .. } = &*self.shared;
        let class = self.check_size(page_bytes)?;
        pool.check()?;
        let created = match pool.create_pinned(class) {
            // What was freed lately may be room enough.
            Err(Stop::Fail(Error::Full { .. })) => {
                pool.absorb_freed();
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

    /// The class of pages of `page_bytes` bytes, if there may be any.
    pub(super) fn check_size(&self, page_bytes: u64) -> Result<SizeClass> {
        let class = any_class_of(page_bytes)?;
        if self.shared.classes.contains(&class) {
            return Ok(class);
        }
        let what = format!("pages of {page_bytes} bytes; the allocator was opened without: see page_sizes");
        Err(Error::Config(what))
    }

    /// A guard for reading `page`, of which there may be 200 at a time; waits for one that writes. Reads the page from the file
    /// if it is not in memory.
    ///
    /// # Errors
    /// [`Error::PageNotFound`] if it was freed or is another allocator's, [`Error::TooManyGuards`] if it finds 200
    /// for two seconds, [`Error::OutOfFrames`] if all pages in memory are under guards, [`Error::Poisoned`] after a failed write if a page must leave memory for it, [`Error::Corrupt`], [`Error::Io`].
    pub fn read(&self, page: PageRef) -> Result<SharedGuard<'_>> {
        let hold = self.shared.words.share(page.id, page.number, CROWDED_WAIT);
        let hold = hold.map_err(|refused| page.refused(refused))?;
        Ok(SharedGuard::new(self.pin(page)?, hold))
    }

    /// A guard for reading and writing `page`, alone; waits for all others. Reads the page from the file if it is not in
    /// memory.
    ///
    /// # Errors
    /// As [`PageAllocator::read`], and [`Error::Poisoned`] after any failed write.
    pub fn write(&self, page: PageRef) -> Result<ExclusiveGuard<'_>> {
        self.shared.pool.check()?;
        let hold = self.shared.words.exclude(page.id, page.number);
        let hold = hold.map_err(|refused| page.refused(refused))?;
        Ok(ExclusiveGuard::new(&self.shared, page, self.pin(page)?, hold))
    }

    fn pin(&self, page: PageRef) -> Result<Pin<'_>> {
        self.shared.pool.pin(page.id).map_err(|stop| page.stopped(stop))
    }

    /// The page that `word` is in, which came from a guard that is still held: for structures that know where their bytes are,
    /// and not in which page. With mapped pages that is arithmetic.
    ///
    /// ```
    /// use terrace::pages::PageAllocator;
    ///
    /// let place = tempfile::tempdir().unwrap();
    /// let pages = PageAllocator::builder().dram(8 << 20).page_sizes(&[4096]).open(place.path().join("pages"))?;
    /// let page = pages.allocate(4096)?;
    /// assert_eq!(pages.page_of(&page.words()[100]), Some(page.page()));
    /// assert_eq!(pages.page_of(&std::sync::atomic::AtomicU64::new(0)), None);
    /// # Ok::<(), terrace::Error>(())
    /// ```
    pub fn page_of(&self, word: &AtomicU64) -> Option<PageRef> {
        let id = self.shared.pool.page_at(word)?;
        Some(PageRef { id, number: self.shared.words.number(id)? })
    }

    /// Ends `page`; waits for its guards. It is not read for that.
    ///
    /// # Errors
    /// [`Error::PageNotFound`] if it was freed before or is another allocator's.
    pub fn free(&self, page: PageRef) -> Result<()> {
        let hold = self.shared.words.exclude(page.id, page.number);
        hold.map_err(|refused| page.refused(refused))?.end();
        self.shared.freed(page);
        Ok(())
    }

    /// Reads those of `pages` that are not in memory, many at a time, so that the reads that follow find them there. Returns how
    /// many it read: fewer where memory is short. What is wrong with a page is for who reads it to learn; names of pages
    /// that are no more are passed over.
    ///
    /// # Errors
    /// [`Error::OutOfFrames`] if all pages in memory are under guards, and what writing others out met.
    pub fn prefetch(&self, pages: &[PageRef]) -> Result<usize> {
        let pool = &self.shared.pool;
        let there = pages.iter().filter(|page| self.shared.words.is(page.id, page.number));
        let ids: Vec<PageId> = there.map(|page| page.id).collect();
        let mut brought = 0;
        for same in ids.chunk_by(|one, next| one.class_index() == next.class_index()) {
            let most = self.prefetch_pages_max(same[0].page_bytes() as u64);
            for batch in same.chunks(most) {
                brought += pool.fault_many(batch, Purpose::Wanted, &mut |_, _| ())?;
            }
        }
        Ok(brought)
    }

    /// How many pages of `page_bytes` bytes one call of [`PageAllocator::prefetch`] has the disk read together: at least 1.
    pub fn prefetch_pages_max(&self, page_bytes: u64) -> usize {
        SizeClass::of_bytes(page_bytes).map_or(1, |class| self.shared.pool.batch_pages(class).max(1))
    }

    /// Whether there are threads of the allocator's own.
    pub(super) fn has_threads(&self) -> bool {
        self.shared.upkeep.is_some()
    }

    /// The sizes that pages may have, in bytes, the smallest first.
    pub fn page_sizes(&self) -> Vec<u64> {
        self.shared.classes.iter().map(|class| class.page_bytes() as u64).collect()
    }

    /// What it has done and what it takes.
    pub fn stats(&self) -> PagesStats {
        let Shared { pool, pages, dram, log_bytes, .. } = &*self.shared;
        let footprint = pool.footprint();
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
        }
    }
}
