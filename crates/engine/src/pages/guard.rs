//! Guards: access to a page until dropped.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::shared::{PageRef, Shared};
use super::words::Hold;
use crate::pool::Pin;

/// A page for reading, shared with other readers.
///
/// It stays at one address, and no thread writes to it.
///
/// ```
/// use std::sync::atomic::Ordering::Relaxed;
/// use terrace::pages::PageAllocator;
///
/// let folder = tempfile::tempdir().unwrap();
/// let pages = PageAllocator::builder()
///     .dram(8 << 20)
///     .page_sizes(&[4096])
///     .open(folder.path().join("pages"))?;
/// let name = pages.allocate(4096)?.keep();
/// let (one, another) = (pages.read(name)?, pages.read(name)?);
/// assert_eq!(one.words().len(), (4096 - 24) / 8);
/// assert!(one.words().iter().chain(another.words()).all(|word| word.load(Relaxed) == 0));
/// # Ok::<(), terrace::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "the page is held while the guard is"]
pub struct SharedGuard<'a> {
    // Dropped in this order.
    pin: Pin<'a>,
    _hold: Hold<'a>,
}

impl<'a> SharedGuard<'a> {
    pub(super) fn new(pin: Pin<'a>, hold: Hold<'a>) -> Self {
        SharedGuard { pin, _hold: hold }
    }

    /// The page's content as native words, to load with any ordering.
    ///
    /// Stores through a shared guard are lost when the page leaves memory.
    pub fn words(&self) -> &[AtomicU64] {
        self.pin.words()
    }

    /// Copies the bytes from `at` on into `to`.
    ///
    /// # Panics
    /// If the page ends earlier.
    pub fn copy_to(&self, at: usize, to: &mut [u8]) {
        check(self.words(), at, to.len());
        self.pin.copy_to(at, to);
    }
}

/// A page for reading and writing, held alone. It stays at one address in memory.
///
/// ```
/// use terrace::pages::PageAllocator;
///
/// let folder = tempfile::tempdir().unwrap();
/// let pages = PageAllocator::builder()
///     .dram(8 << 20)
///     .page_sizes(&[4096])
///     .open(folder.path().join("pages"))?;
/// let name = pages.allocate(4096)?.keep();
/// pages.write(name)?.write(100, b"written");
/// let mut back = [0; 7];
/// pages.read(name)?.copy_to(100, &mut back);
/// assert_eq!(&back, b"written");
/// # Ok::<(), terrace::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "the page is held while the guard is"]
pub struct ExclusiveGuard<'a> {
    shared: &'a Shared,
    page: PageRef,
    /// Both until the page is freed; then the pin goes first.
    held: Option<(Pin<'a>, Hold<'a>)>,
}

impl<'a> ExclusiveGuard<'a> {
    pub(super) fn new(shared: &'a Shared, page: PageRef, pin: Pin<'a>, hold: Hold<'a>) -> Self {
        ExclusiveGuard { shared, page, held: Some((pin, hold)) }
    }

    fn pin(&self) -> &Pin<'a> {
        &self.held.as_ref().expect("held until freed").0
    }

    /// The page's name.
    pub fn page(&self) -> PageRef {
        self.page
    }

    /// The page's content as native words, to load only.
    pub fn words(&self) -> &[AtomicU64] {
        self.pin().words()
    }

    /// The page's content as native words; marks the page as changed.
    pub fn words_mut(&mut self) -> &[AtomicU64] {
        let (pin, _) = self.held.as_mut().expect("held until freed");
        pin.will_change();
        pin.words()
    }

    /// Copies the bytes from `at` on into `to`.
    ///
    /// # Panics
    /// If the page ends earlier.
    pub fn copy_to(&self, at: usize, to: &mut [u8]) {
        check(self.words(), at, to.len());
        self.pin().copy_to(at, to);
    }

    /// Writes `bytes` from byte `at` on.
    ///
    /// # Panics
    /// If they pass the end of the page.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        check(self.words(), at, bytes.len());
        let words = self.words_mut();
        let head = (at.next_multiple_of(8) - at).min(bytes.len());
        let (head, rest) = bytes.split_at(head);
        let (whole, tail) = rest.as_chunks::<8>();
        write_part(words, at, head);
        let first = at.div_ceil(8);
        for (word, bytes) in words[first..].iter().zip(whole) {
            word.store(u64::from_ne_bytes(*bytes), Relaxed);
        }
        write_part(words, (first + whole.len()) * 8, tail);
    }

    /// Frees the page.
    pub fn free(mut self) {
        self.end();
    }

    fn end(&mut self) {
        if let Some((pin, hold)) = self.held.take() {
            drop(pin);
            hold.end();
            self.shared.freed(self.page);
        }
    }
}

/// Writes fewer than eight bytes within a word.
fn write_part(words: &[AtomicU64], at: usize, part: &[u8]) {
    if part.is_empty() {
        return;
    }
    let word = &words[at / 8];
    let mut bytes = word.load(Relaxed).to_ne_bytes();
    bytes[at % 8..at % 8 + part.len()].copy_from_slice(part);
    word.store(u64::from_ne_bytes(bytes), Relaxed);
}

fn check(words: &[AtomicU64], at: usize, length: usize) {
    let capacity = size_of_val(words);
    let fits = at.checked_add(length).is_some_and(|end| end <= capacity);
    assert!(fits, "{length} bytes at {at} of a page that has {capacity}");
}

/// Exclusive guard of a new page, which is freed unless kept.
///
/// ```
/// use terrace::pages::{PageAllocator, PageRef};
///
/// fn read_segment(
///     pages: &PageAllocator,
///     mut source: impl std::io::Read,
/// ) -> Result<PageRef, Box<dyn std::error::Error>> {
///     let mut segment = pages.allocate(4096)?;
///     let mut bytes = [0; 1000];
///     source.read_exact(&mut bytes)?; // if this fails, the page is free again
///     segment.write(0, &bytes);
///     Ok(segment.keep())
/// }
///
/// let folder = tempfile::tempdir().unwrap();
/// let pages = PageAllocator::builder()
///     .dram(8 << 20)
///     .page_sizes(&[4096])
///     .open(folder.path().join("pages"))?;
/// assert!(read_segment(&pages, &[1; 999][..]).is_err());
/// assert_eq!(pages.stats().pages, 0);
/// assert!(read_segment(&pages, &[1; 1000][..]).is_ok());
/// assert_eq!(pages.stats().pages, 1);
/// # Ok::<(), terrace::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "the page goes back when this is dropped: keep it"]
pub struct AllocationGuard<'a> {
    guard: Option<ExclusiveGuard<'a>>,
}

impl<'a> AllocationGuard<'a> {
    pub(super) fn new(guard: ExclusiveGuard<'a>) -> Self {
        AllocationGuard { guard: Some(guard) }
    }

    /// Keeps the page, drops the guard and returns the page's name.
    #[must_use = "without its name the page can be neither used nor freed"]
    pub fn keep(self) -> PageRef {
        self.keep_guard().page()
    }

    /// Keeps the page and its guard.
    pub fn keep_guard(mut self) -> ExclusiveGuard<'a> {
        self.guard.take().expect("there until kept or dropped")
    }
}

impl<'a> Deref for AllocationGuard<'a> {
    type Target = ExclusiveGuard<'a>;

    fn deref(&self) -> &ExclusiveGuard<'a> {
        self.guard.as_ref().expect("there until kept or dropped")
    }
}

impl<'a> DerefMut for AllocationGuard<'a> {
    fn deref_mut(&mut self) -> &mut ExclusiveGuard<'a> {
        self.guard.as_mut().expect("there until kept or dropped")
    }
}

impl Drop for AllocationGuard<'_> {
    fn drop(&mut self) {
        if let Some(mut guard) = self.guard.take() {
            guard.end();
        }
    }
}
