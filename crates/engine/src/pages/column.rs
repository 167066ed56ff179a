//! A column: an array of numbers in pages, which can grow beyond memory.
//!
//! Scans visit pages in memory one by one. From the first missing page on, two threads per scan
//! read ahead (`ahead.rs`), except in [`crate::Mode::Inline`].
//!
//! One thread appends at a time; all others read meanwhile. The length is published after the
//! values (Release, pairs with Acquire in [`Column::len`]), so a thread that sees the length sees
//! the values. The list's lock is held to look up names, never to read a page.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use parking_lot::{Mutex, RwLock};

use super::ahead::{Ahead, READERS};
use super::allocator::PageAllocator;
use super::shared::PageRef;
use super::value::{Aggregate, Value};
use crate::error::Result;

const PAGE_BYTES_DEFAULT: u64 = 64 << 10;

/// An array of numbers in pages of a [`PageAllocator`].
///
/// ```
/// use terrace::pages::{Column, PageAllocator};
///
/// let folder = tempfile::tempdir().unwrap();
/// let pages = PageAllocator::builder()
///     .dram(8 << 20)
///     .open(folder.path().join("pages"))?;
/// let column = Column::new(&pages);
/// for block in 0..30 {
///     let values: Vec<u64> = (block * 100_000..(block + 1) * 100_000).collect();
///     column.append(&values)?;
/// }
/// assert_eq!(column.len(), 3_000_000); // 24 MB
/// assert_eq!(column.get(1_234_567)?, Some(1_234_567));
/// let aggregate = column.aggregate(10..20)?;
/// assert_eq!((aggregate.sum, aggregate.min, aggregate.max), (145, Some(10), Some(19)));
/// let mut even = 0;
/// column.scan(.., |values| even += values.iter().filter(|&&value| value % 2 == 0).count())?;
/// assert_eq!(even, 1_500_000);
/// # Ok::<(), terrace::Error>(())
/// ```
#[derive(Debug)]
pub struct Column<T: Value> {
    allocator: PageAllocator,
    page_bytes: u64,
    pages: RwLock<Vec<PageRef>>,
    len: AtomicU64,
    /// Held while appending.
    appending: Mutex<()>,
    values: PhantomData<fn() -> T>,
}

/// Pages read in one batch, and the range of their values to visit.
struct Window {
    pages: Vec<PageRef>,
    values: Range<u64>,
}

impl<T: Value> Column<T> {
    /// An empty column in pages of 64 KiB, or the largest size.
    pub fn new(allocator: &PageAllocator) -> Column<T> {
        let sizes = allocator.page_sizes();
        let largest = sizes.last().copied().expect("an allocator has pages of some size");
        let page_bytes = if sizes.contains(&PAGE_BYTES_DEFAULT) { PAGE_BYTES_DEFAULT } else { largest };
        Column {
            allocator: allocator.clone(),
            page_bytes,
            pages: RwLock::default(),
            len: AtomicU64::new(0),
            appending: Mutex::new(()),
            values: PhantomData,
        }
    }

    /// An empty column in pages of `page_bytes` bytes.
    ///
    /// # Errors
    /// [`crate::Error::Config`] if `allocator` has no pages of that size.
    pub fn with_page_bytes(allocator: &PageAllocator, page_bytes: u64) -> Result<Column<T>> {
        allocator.check_size(page_bytes)?;
        let mut column = Column::new(allocator);
        column.page_bytes = page_bytes;
        Ok(column)
    }

    /// The number of values.
    pub fn len(&self) -> u64 {
        self.len.load(Acquire)
    }

    /// Whether the column has no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of the page list, which are outside the allocator's budget.
    pub fn memory_bytes(&self) -> u64 {
        (self.pages.read().capacity() * size_of::<PageRef>()) as u64
    }

    /// Bytes of its pages, in memory or not.
    pub fn page_bytes_total(&self) -> u64 {
        self.pages.read().len() as u64 * self.page_bytes
    }

    /// Values per page. Divide parallel scans at multiples of it.
    pub fn values_per_page(&self) -> u64 {
        (self.page_bytes - crate::store::page::HEADER_BYTES as u64) / 8
    }

    /// Appends all of `values`, or none on failure.
    ///
    /// # Errors
    /// Those of [`PageAllocator::allocate`] and [`PageAllocator::write`].
    pub fn append(&self, values: &[T]) -> Result<()> {
        let _appending = self.appending.lock();
        let mut len = self.len.load(Relaxed);
        let mut rest = values;
        while !rest.is_empty() {
            let (page, at) =
                ((len / self.values_per_page()) as usize, (len % self.values_per_page()) as usize);
            let count = rest.len().min(self.values_per_page() as usize - at);
            let (now, later) = rest.split_at(count);
            let there = self.pages.read().get(page).copied();
            match there {
                Some(page) => store(self.allocator.write(page)?.words_mut(), at, now),
                None => {
                    let mut new = self.allocator.allocate(self.page_bytes)?;
                    store(new.words_mut(), at, now);
                    // If the next page fails, this one stays for the next attempt.
                    self.pages.write().push(new.keep());
                }
            }
            (len, rest) = (len + count as u64, later);
        }
        self.len.store(len, Release);
        Ok(())
    }

    /// The value at `index`, if it exists.
    ///
    /// # Errors
    /// Those of [`PageAllocator::read`].
    pub fn get(&self, index: u64) -> Result<Option<T>> {
        if index >= self.len() {
            return Ok(None);
        }
        let page = self.pages.read()[(index / self.values_per_page()) as usize];
        let guard = self.allocator.read(page)?;
        let word = &guard.words()[(index % self.values_per_page()) as usize];
        Ok(Some(T::from_word(word.load(Relaxed))))
    }

    /// Shows the values of `range` in order, page by page.
    ///
    /// Shows copies, so `show` may block: no page is held meanwhile. Skips values beyond the end.
    ///
    /// # Errors
    /// Those of [`PageAllocator::read`]; earlier values were shown.
    pub fn scan(&self, range: impl std::ops::RangeBounds<u64>, mut show: impl FnMut(&[T])) -> Result<()> {
        let mut copied = Vec::with_capacity(self.values_per_page() as usize);
        self.visit(self.clamped(range), |words| {
            copied.clear();
            copied.extend(words.words().iter().map(|word| T::from_word(word.load(Relaxed))));
            drop(words);
            show(&copied);
        })
    }

    /// Sum of the values of `range`; floats are added in a fixed order.
    ///
    /// # Errors
    /// Those of [`PageAllocator::read`].
    pub fn sum(&self, range: impl std::ops::RangeBounds<u64>) -> Result<T::Sum> {
        let mut sum = T::Sum::default();
        self.visit(self.clamped(range), |words| sum = sum + T::sum(words.words()))?;
        Ok(sum)
    }

    /// Count, sum, minimum and maximum of the values of `range`.
    ///
    /// # Errors
    /// Those of [`PageAllocator::read`].
    pub fn aggregate(&self, range: impl std::ops::RangeBounds<u64>) -> Result<Aggregate<T>> {
        let mut aggregate = Aggregate::default();
        self.visit(self.clamped(range), |words| aggregate = aggregate.and(Aggregate::of(words.words())))?;
        Ok(aggregate)
    }

    fn clamped(&self, range: impl std::ops::RangeBounds<u64>) -> Range<u64> {
        use std::ops::Bound::{Excluded, Included, Unbounded};
        let start = match range.start_bound() {
            Included(&start) => start,
            Excluded(&before) => before.saturating_add(1),
            Unbounded => 0,
        };
        let end = match range.end_bound() {
            Included(&last) => last.saturating_add(1),
            Excluded(&end) => end,
            Unbounded => u64::MAX,
        };
        let end = end.min(self.len());
        start.min(end)..end
    }

    /// Shows the words of `range`, with read-ahead from the first missing page.
    fn visit(&self, range: Range<u64>, mut show: impl FnMut(Words<'_>)) -> Result<()> {
        let each = self.values_per_window();
        let mut rest = range;
        while !rest.is_empty() {
            let window = self.window(rest.start..rest.end.min(rest.start - rest.start % each + each));
            let brought = self.allocator.prefetch(&window.pages)?;
            self.show(&window, &mut show)?;
            rest.start = window.values.end;
            if brought > 0 && !rest.is_empty() && self.allocator.has_threads() {
                return self.visit_with_readers(rest, each, show);
            }
        }
        Ok(())
    }

    /// Visits with threads that read ahead, from a window of `each` values on.
    fn visit_with_readers(
        &self,
        range: Range<u64>,
        each: u64,
        mut show: impl FnMut(Words<'_>),
    ) -> Result<()> {
        let count = (range.end - range.start).div_ceil(each) as usize;
        let window = |number: usize| {
            let start = range.start + number as u64 * each;
            self.window(start..range.end.min(start + each))
        };
        let bring = |number: usize| self.allocator.prefetch(&window(number).pages).map(drop);
        let ahead = Ahead::of(count);
        std::thread::scope(|scope| {
            let _stop = ahead.stop();
            for _ in 0..READERS {
                let reader = std::thread::Builder::new().name("terrace-column".to_owned());
                // Without threads, the scan loads the parts itself.
                let _ = reader.spawn_scoped(scope, || ahead.read(bring));
            }
            for number in 0..count {
                ahead.wait(bring)?;
                self.show(&window(number), &mut show)?;
                ahead.shown();
            }
            Ok(())
        })
    }

    fn show(&self, window: &Window, show: &mut impl FnMut(Words<'_>)) -> Result<()> {
        let mut start = window.values.start;
        for &page in &window.pages {
            let at = start % self.values_per_page();
            let end = (start - at + self.values_per_page()).min(window.values.end);
            let guard = self.allocator.read(page)?;
            show(Words { guard, range: at as usize..(at + end - start) as usize });
            start = end;
        }
        Ok(())
    }

    fn values_per_window(&self) -> u64 {
        self.allocator.prefetch_pages_max(self.page_bytes) as u64 * self.values_per_page()
    }

    fn window(&self, values: Range<u64>) -> Window {
        let first = (values.start / self.values_per_page()) as usize;
        let end = values.end.div_ceil(self.values_per_page()) as usize;
        Window { pages: self.pages.read()[first..end].to_vec(), values }
    }
}

struct Words<'a> {
    guard: super::SharedGuard<'a>,
    range: Range<usize>,
}

impl Words<'_> {
    fn words(&self) -> &[AtomicU64] {
        &self.guard.words()[self.range.clone()]
    }
}

fn store<T: Value>(words: &[AtomicU64], at: usize, values: &[T]) {
    for (word, value) in words[at..].iter().zip(values) {
        word.store(value.to_word(), Relaxed);
    }
}

impl<T: Value> Drop for Column<T> {
    fn drop(&mut self) {
        for page in self.pages.get_mut().drain(..) {
            let freed = self.allocator.free(page);
            debug_assert!(freed.is_ok(), "the pages of a column are its own");
        }
    }
}
