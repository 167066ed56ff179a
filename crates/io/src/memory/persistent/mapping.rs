//! A file mapped for sharing, whose length never changes meanwhile.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, SealFlags, SeekFrom};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::flush::{Flush, LINE_BYTES};
use crate::memory::copy::copy_words;
use crate::memory::numa::bind_file;
use crate::memory::numa::calls::Pages;
use crate::memory::numa::nodes::NodeSet;
use crate::memory::region::Region;

/// Unit of lengths and of mappings over a region, bytes.
pub(crate) const PAGE_BYTES: usize = 4096;

/// Longest file, so that a mistaken length is an error here.
const LENGTH_MAX: u64 = 1 << 46;

/// What has the bytes of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backing {
    /// Nameless, for simulations. Small pages: it is sparse, and often copied.
    Anonymous,
    /// The page cache.
    Cache,
    /// Metadata that lead to the bytes are durable before the first store.
    Dax,
}

impl Backing {
    fn flags(self) -> MapFlags {
        match self {
            Backing::Anonymous | Backing::Cache => MapFlags::SHARED,
            Backing::Dax => MapFlags::SHARED_VALIDATE | MapFlags::SYNC,
        }
    }

    fn wants_huge_pages(self) -> bool {
        self != Backing::Anonymous
    }
}

#[derive(Debug)]
pub(crate) struct SharedMapping {
    file: OwnedFd,
    start: NonNull<u8>,
    length: usize,
    backing: Backing,
    /// A forked process may have another mapping there.
    process: u32,
}

// SAFETY: the mapping is owned, and its bytes are only reachable as atomics.
unsafe impl Send for SharedMapping {}
// SAFETY: see `Send`.
unsafe impl Sync for SharedMapping {}

impl SharedMapping {
    /// Zeros without a name, whose memory comes with the first touch of each page.
    pub(crate) fn anonymous(name: &str, bytes: u64) -> io::Result<SharedMapping> {
        let length = whole_pages(bytes)?;
        // Only for lists of mappings; at most 249 bytes.
        let label: String = name.chars().filter(|&letter| letter != '\0').take(60).collect();
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create(label, flags)?;
        rustix::fs::ftruncate(&file, length)?;
        // A shorter file would make a touch kill the process.
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Self::of_file(file, length, Backing::Anonymous)
    }

    /// The first `bytes` of `file`, which is as long and stays so.
    ///
    /// # Errors
    /// `EOPNOTSUPP` or `EINVAL` if the file is not on persistent memory and `backing` is.
    pub(crate) fn of_file(file: OwnedFd, bytes: u64, backing: Backing) -> io::Result<SharedMapping> {
        let length = usize::try_from(whole_pages(bytes)?).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let start = unsafe { rustix::mm::mmap(ptr::null_mut(), length, access, backing.flags(), &file, 0)? };
        let start = NonNull::new(start).expect("the kernel never maps address 0 unasked").cast();
        let mapping = Self { file, start, length, backing, process: std::process::id() };
        mapping.advise(Advice::LinuxDontFork)?;
        if backing.wants_huge_pages() {
            // Where the file system has some for those that ask.
            let _ = mapping.advise(Advice::LinuxHugepage);
        }
        Ok(mapping)
    }

    fn advise(&self, advice: Advice) -> io::Result<()> {
        // SAFETY: the mapping is ours. No advice changes a byte of a shared file: what leaves the
        // page table stays in the file.
        unsafe { rustix::mm::madvise(self.start.as_ptr().cast(), self.length, advice)? };
        Ok(())
    }

    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// The bytes of `range` as words.
    ///
    /// # Panics
    /// If the range is not aligned to 8 or not inside.
    #[inline]
    pub(crate) fn words(&self, range: Range<usize>) -> &[AtomicU64] {
        assert!(
            (range.start | range.end).is_multiple_of(8)
                && range.start <= range.end
                && range.end <= self.length,
            "bytes {range:?} are not whole words of a memory of {} bytes",
            self.length
        );
        // SAFETY: the words are inside the mapping, which lives as long as `self` and is readable
        // and writable; they are aligned, as it is; the file has them all and keeps its length. All
        // references to them are to atomics.
        unsafe {
            std::slice::from_raw_parts(
                self.start.add(range.start).cast().as_ptr(),
                range.len() / size_of::<u64>(),
            )
        }
    }

    /// An independent mapping of `bytes`, with the same content as far as both go.
    pub(crate) fn copy(&self, bytes: u64) -> io::Result<SharedMapping> {
        let copy = Self::anonymous("copy", bytes)?;
        let mut page = [0; PAGE_BYTES];
        let pages = self.data().into_iter().flat_map(|data| data.step_by(PAGE_BYTES));
        for at in pages.take_while(|&at| at < copy.length) {
            self.read(at, &mut page);
            copy.fill(at, &page);
        }
        Ok(copy)
    }

    /// The whole pages with memory, in order; a look at the others would give them some.
    pub(crate) fn data(&self) -> Vec<Range<usize>> {
        let (mut found, mut at) = (Vec::new(), 0);
        while at < self.length {
            let start = match rustix::fs::seek(&self.file, SeekFrom::Data(at as u64)) {
                Ok(start) => start as usize,
                Err(Errno::NXIO) => break,
                Err(_) => at,
            };
            let hole = rustix::fs::seek(&self.file, SeekFrom::Hole(start as u64));
            let end = hole.map_or(self.length, |hole| hole as usize).min(self.length);
            let pages = start / PAGE_BYTES * PAGE_BYTES..end.next_multiple_of(PAGE_BYTES);
            at = pages.end;
            found.push(pages);
        }
        found
    }

    /// Copies words from `at` on into `bytes`, of a length that 8 divides.
    pub(crate) fn read(&self, at: usize, bytes: &mut [u8]) {
        copy_words(self.words(at..at + bytes.len()), bytes);
    }

    /// Stores `bytes`, whole pages, into memory that is zero. Pages of zeros take no memory.
    pub(crate) fn fill(&self, at: usize, bytes: &[u8]) {
        for (page, bytes) in bytes.chunks(PAGE_BYTES).enumerate() {
            if bytes.iter().any(|&byte| byte != 0) {
                let at = at + page * PAGE_BYTES;
                for (word, bytes) in self.words(at..at + bytes.len()).iter().zip(bytes.as_chunks::<8>().0) {
                    word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
                }
            }
        }
    }

    /// Writes back each line of `range`, which is inside.
    #[inline]
    pub(crate) fn write_back(&self, range: Range<usize>, flush: Flush) {
        debug_assert!(range.end <= self.length);
        for line in (range.start / LINE_BYTES * LINE_BYTES..range.end).step_by(LINE_BYTES) {
            // SAFETY: the line is inside the mapping.
            unsafe { flush.line(self.start.as_ptr().add(line)) };
        }
    }

    /// As [`PersistentMemory::bind_to`](super::PersistentMemory::bind_to).
    pub(crate) fn bind_to(&self, nodes: &NodeSet) -> io::Result<usize> {
        // Only pages in the page table move, and only if they are in no other.
        self.advise(Advice::LinuxPopulateRead)?;
        let elsewhere = bind_file(Pages::of(self.start.as_ptr(), self.length), nodes)?;
        self.advise(Advice::LinuxDontNeed)?;
        Ok(elsewhere)
    }

    /// Puts bytes of the file, from `at` on, behind `range` of `region`.
    pub(crate) fn map_over(&self, region: &Region, range: Range<usize>, at: usize) -> io::Result<()> {
        let inside = at.is_multiple_of(PAGE_BYTES)
            && at.checked_add(range.len()).is_some_and(|end| end <= self.length);
        if !inside {
            let what = format!(
                "{} bytes at {at} are not whole pages of {PAGE_BYTES} bytes in {} bytes",
                range.len(),
                self.length
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        region.map_shared(range.clone(), &self.file, at as u64, self.backing.flags())?;
        if self.backing.wants_huge_pages() {
            region.advise_huge_pages(&range);
        }
        Ok(())
    }
}

impl Drop for SharedMapping {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // Something else may be there.
            return;
        }
        // SAFETY: the mapping of `of_file`, unmapped once; every slice of it borrowed `self`.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast::<c_void>(), self.length) };
        debug_assert!(unmapped.is_ok(), "unmapping a whole mapping cannot fail: {unmapped:?}");
    }
}

/// `bytes` rounded up to pages.
pub(crate) fn whole_pages(bytes: u64) -> io::Result<u64> {
    match bytes.checked_next_multiple_of(PAGE_BYTES as u64) {
        Some(0) => Err(io::Error::new(io::ErrorKind::InvalidInput, "a memory of 0 bytes")),
        Some(pages) if pages <= LENGTH_MAX => Ok(pages),
        _ => {
            let what = format!("{bytes} bytes of memory do not fit, at most {LENGTH_MAX} do");
            Err(io::Error::new(io::ErrorKind::StorageFull, what))
        }
    }
}
