//! Address ranges with stable addresses and changing memory.
//!
//! Latch-free readers validate only after reading, so addresses must stay accessible. A region is
//! reserved once, at the size of the whole budget, until drop:
//!
//! ```text
//!   reserve           commit(range)               release(range)
//!   [ no access ] --> [ accessible, present ] --> [ accessible, absent: zeros on the next touch ]
//! ```
//!
//! * `commit` touches every page: a page fault in the hot path is expensive, and missing memory is
//!   an error here instead of a later signal.
//! * Uncommitted and released ranges advise against huge pages. A late reader of a released page
//!   then gets the shared page of zeros, without memory. A huge page would take two megabytes, and
//!   a committed neighbour might grow into the gap.
//! * Access never narrows, which makes [`Region::words`] sound without a lock: the slice borrows
//!   the region.
//!
//! Bytes are visible only as `&[AtomicU64]`, since a frame may be read while it is written.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};

use super::prefetch::prefetch_line;

const PAGE_BYTES: usize = 4096;

/// Granularity of access, bytes: a huge page, so that granting access never splits one.
const GRANULE_BYTES: usize = 2 << 20;

/// The calling thread, as a pseudo process descriptor (linux/pidfd.h, Linux 6.15).
const PIDFD_SELF_THREAD: libc::c_int = -10000;

/// A reserved range of addresses, aligned to 2 MiB.
///
/// ```
/// use std::sync::atomic::Ordering;
/// use terrace_io::Region;
///
/// let region = Region::reserve(1 << 30)?; // a gigabyte of addresses, no memory yet
/// region.commit(0..8192)?;
/// region.words(4096..8192)[0].store(7, Ordering::Relaxed);
/// assert_eq!(region.words(4096..4104)[0].load(Ordering::Relaxed), 7);
/// region.release(4096..8192)?;
/// assert_eq!(region.words(4096..4104)[0].load(Ordering::Relaxed), 0);
/// # std::io::Result::Ok(())
/// ```
#[derive(Debug)]
pub struct Region {
    /// The mapping, with slack for alignment.
    mapping: NonNull<c_void>,
    mapping_bytes: usize,
    start: NonNull<u8>,
    length: usize,
    /// Whether memory needs a commit, instead of coming with the first write.
    commits: bool,
    /// With `commits`, a bit per accessible granule, set after the system call and never cleared.
    accessible: Box<[AtomicU64]>,
    huge_pages_refused: AtomicBool,
    /// Whether the kernel lacks advice for several ranges at once.
    pub(super) vectors_refused: AtomicBool,
    /// The process with files in the region, which a forked one lacks; 0 if there are none.
    shares_in: AtomicU32,
}

// SAFETY: the region owns its mapping; the bytes are only reachable as atomics or through `as_ptr`,
// whose users make their own argument. No lock is needed: the kernel serialises the system calls,
// and the bitmap is atomic.
unsafe impl Send for Region {}
// SAFETY: see `Send`.
unsafe impl Sync for Region {}

impl Region {
    /// Reserves `bytes` addresses, rounded up to 4096, without memory. Inaccessible before
    /// [`Region::commit`].
    ///
    /// # Errors
    /// `OutOfMemory` or whatever the system reports, for instance under an address-space limit;
    /// `InvalidInput` for 0.
    pub fn reserve(bytes: usize) -> io::Result<Self> {
        let region = Self::map(bytes, ProtFlags::empty())?;
        region.advise_against_huge_pages(0..region.length);
        Ok(region)
    }

    /// Reserves `bytes` addresses that are accessible at once.
    ///
    /// For sparse tables: each 4 KiB page is zero and gets memory on its first write. Without
    /// memory that write kills the process; use [`Region::commit`] for essential memory.
    ///
    /// ```
    /// use std::sync::atomic::Ordering;
    /// use terrace_io::Region;
    ///
    /// let table = Region::reserve_writable(1 << 36)?;
    /// let last = table.words((1 << 36) - 8..1 << 36);
    /// assert_eq!(last[0].fetch_add(1, Ordering::Relaxed), 0);
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// As [`Region::reserve`].
    pub fn reserve_writable(bytes: usize) -> io::Result<Self> {
        Self::map(bytes, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// Reserves `bytes` accessible addresses, for pages of `page_bytes` that come and go singly.
    ///
    /// Core dumps omit them, since they would span all addresses. Huge pages are used only if a
    /// page is as long, and if reads of absent pages share a page of zeros (`use_zero_page`).
    ///
    /// # Errors
    /// As [`Region::reserve`]; `Unsupported` if the process locks all of its memory, so that none
    /// can be released.
    pub fn reserve_sparse(bytes: usize, page_bytes: usize) -> io::Result<Self> {
        let mut region = Self::map(bytes, ProtFlags::empty())?;
        let all = 0..region.length;
        // Before anything is accessible: granting access to locked addresses populates them all.
        region.advise(&all, Advice::LinuxDontNeed).map_err(|error| {
            let why = "memory of single pages cannot be given back here; is all memory of the process locked (mlockall)?";
            io::Error::new(io::ErrorKind::Unsupported, format!("{why} {error}"))
        })?;
        if page_bytes.is_multiple_of(GRANULE_BYTES) && zeros_are_shared() {
            region.advise_huge_pages(&all);
        } else {
            region.advise_against_huge_pages(all.clone());
            region.huge_pages_refused = AtomicBool::new(true);
        }
        region.advise(&all, Advice::LinuxDontDump)?;
        region.allow_access(&all)?;
        region.commits = false;
        Ok(region)
    }

    fn map(bytes: usize, protection: ProtFlags) -> io::Result<Self> {
        let length = bytes.checked_next_multiple_of(PAGE_BYTES).ok_or(io::ErrorKind::OutOfMemory)?;
        if length == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a region of 0 bytes"));
        }
        let granules = length.div_ceil(GRANULE_BYTES);
        let mapping_bytes = granules
            .checked_add(1)
            .and_then(|granules| granules.checked_mul(GRANULE_BYTES))
            .ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches nothing that
        // exists.
        let mapping = unsafe {
            rustix::mm::mmap_anonymous(
                ptr::null_mut(),
                mapping_bytes,
                protection,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )?
        };
        let mapping = NonNull::new(mapping).expect("the kernel never maps address 0 unasked");
        let slack = mapping.as_ptr().addr().next_multiple_of(GRANULE_BYTES) - mapping.as_ptr().addr();
        // SAFETY: `slack` is below one granule, and the mapping is one granule longer than the
        // region.
        let start = unsafe { mapping.cast::<u8>().add(slack) };
        let commits = protection.is_empty();
        let words = if commits { granules.div_ceil(64) } else { 0 };
        Ok(Self {
            mapping,
            mapping_bytes,
            start,
            length,
            commits,
            accessible: (0..words).map(|_| AtomicU64::new(0)).collect(),
            huge_pages_refused: AtomicBool::new(false),
            vectors_refused: AtomicBool::new(false),
            shares_in: AtomicU32::new(0),
        })
    }

    /// Length in bytes, a multiple of 4096.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Always false.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The first address. Touch only committed bytes through it, and only as atomics if shared.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// The offset of an address inside.
    pub fn offset_of(&self, address: usize) -> Option<usize> {
        address.checked_sub(self.start.as_ptr().addr()).filter(|&offset| offset < self.length)
    }

    /// Whether the kernel has taken all advice for huge pages so far.
    pub fn huge_pages(&self) -> bool {
        !self.huge_pages_refused.load(Ordering::Relaxed)
    }

    /// Makes `range` accessible, without memory. A limit of the process (RLIMIT_DATA) and strict
    /// overcommit refuse here what they would refuse later.
    ///
    /// # Errors
    /// As [`Region::commit`]; nothing has changed.
    pub fn allow(&self, range: Range<usize>) -> io::Result<()> {
        self.check_pages(&range)?;
        if range.is_empty() {
            return Ok(());
        }
        self.allow_access(&range)?;
        self.open(range);
        Ok(())
    }

    /// Puts memory behind `range` and touches all of it. Keeps the content of committed pages.
    ///
    /// # Errors
    /// `InvalidInput` for a range that is not aligned to 4096 or not inside; otherwise memory is
    /// short, and part of the range may be committed.
    pub fn commit(&self, range: Range<usize>) -> io::Result<()> {
        self.check_pages(&range)?;
        if range.is_empty() {
            return Ok(());
        }
        if self.commits {
            self.allow(range.clone())?;
        }
        self.advise_huge_pages(&range);
        self.touch(range)
    }

    /// Replaces the memory of `range` by bytes of `file`, from `at` on. The file has them, and
    /// keeps its length while the region lives. Forked processes lack the range.
    ///
    /// # Errors
    /// As [`Region::allow`], or what the system reports; nothing has changed, or only access.
    pub(super) fn map_shared(
        &self,
        range: Range<usize>,
        file: impl AsFd,
        at: u64,
        flags: MapFlags,
    ) -> io::Result<()> {
        self.check_pages(&range)?;
        if range.is_empty() {
            return Ok(());
        }
        // First, because access is granted and recorded for whole granules.
        if self.commits {
            self.allow(range.clone())?;
        }
        let (access, address) = (ProtFlags::READ | ProtFlags::WRITE, self.address(range.start));
        // SAFETY: the range is inside our mapping. The kernel holds its lock from the removal of
        // the old pages to the arrival of the new ones, so a touch meanwhile waits: access never
        // narrows. The bytes change under readers, as in `release`, and are visible only as
        // atomics. The caller keeps the file's length as long as the range.
        let mapped =
            unsafe { rustix::mm::mmap(address, range.len(), access, flags | MapFlags::FIXED, file, at) };
        if let Err(error) = mapped {
            let plain = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
            // SAFETY: as above. A kernel may have removed the old pages before it failed.
            unsafe { rustix::mm::mmap_anonymous(address, range.len(), access, plain)? };
            return Err(error.into());
        }
        self.shares_in.store(std::process::id(), Ordering::Relaxed);
        self.advise(&range, Advice::LinuxDontFork)
    }

    fn allow_access(&self, range: &Range<usize>) -> io::Result<()> {
        let granules = range.start / GRANULE_BYTES * GRANULE_BYTES..range.end.next_multiple_of(GRANULE_BYTES);
        let access = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: the granules lie inside the mapping (`check_pages`, and `map` rounds up), which
        // is ours. Access only widens, so earlier references keep their bytes.
        unsafe { rustix::mm::mprotect(self.address(granules.start), granules.len(), access)? };
        Ok(())
    }

    fn touch(&self, range: Range<usize>) -> io::Result<()> {
        self.check_pages(&range)?;
        match self.advise(&range, Advice::LinuxPopulateWrite) {
            // Kernels before 5.14 lack this advice.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                self.touch_words(&range);
                Ok(())
            }
            outcome => outcome,
        }
    }

    pub(super) fn touch_words(&self, range: &Range<usize>) {
        for page in range.clone().step_by(PAGE_BYTES) {
            self.words(page..page + 8)[0].fetch_or(0, Ordering::Relaxed);
        }
    }

    /// Releases the memory behind `range`. The bytes stay accessible and read as zeros, after a
    /// page fault. Only writing takes memory again.
    ///
    /// # Errors
    /// `InvalidInput` for a range that is not aligned to 4096 or not inside, or what the system
    /// reports.
    pub fn release(&self, range: Range<usize>) -> io::Result<()> {
        self.check_pages(&range)?;
        if range.is_empty() {
            return Ok(());
        }
        if self.commits {
            // Not for single sparse pages: each advice may split a mapping, and mappings are
            // limited.
            self.advise_against_huge_pages(range.clone());
        }
        self.advise(&range, Advice::LinuxDontNeed)
    }

    /// The bytes of `range` as words.
    ///
    /// # Panics
    /// If the range is not aligned to 8, not inside the region, or partly never committed.
    #[inline(always)]
    pub fn words(&self, range: Range<usize>) -> &[AtomicU64] {
        let whole = (range.start | range.end).is_multiple_of(8);
        let inside = range.start <= range.end && range.end <= self.length;
        if !(whole && inside && (!self.commits || self.is_accessible(&range))) {
            self.refuse(&range);
        }
        // SAFETY: the words are inside the mapping, aligned (the start is, and the range was
        // checked), readable and writable (checked, and access never narrows before the drop of the
        // region, which the slice borrows) and initialised by the kernel. All references to them
        // are to atomics.
        unsafe {
            std::slice::from_raw_parts(
                self.start.add(range.start).cast().as_ptr(),
                range.len() / size_of::<u64>(),
            )
        }
    }

    /// Prefetches the cache line with the byte `at`, which may be any number, without waiting. It
    /// may be inaccessible or have no memory.
    ///
    /// ```
    /// let region = terrace_io::Region::reserve(1 << 20)?;
    /// region.prefetch(4096);
    /// region.prefetch(usize::MAX);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[inline(always)]
    pub fn prefetch(&self, at: usize) {
        if let Some(address) = self.address_of(at) {
            prefetch_line(address);
        }
    }

    /// The address of the byte `at`, if it is inside: others' memory is not brought.
    #[inline(always)]
    pub(super) fn address_of(&self, at: usize) -> Option<*const u8> {
        (at < self.length).then(|| self.start.as_ptr().wrapping_add(at).cast_const().cast())
    }

    #[cold]
    #[inline(never)]
    fn refuse(&self, range: &Range<usize>) -> ! {
        assert!(
            range.start.is_multiple_of(8)
                && range.end.is_multiple_of(8)
                && range.start <= range.end
                && range.end <= self.length,
            "bytes {range:?} are not whole words of a region of {} bytes",
            self.length
        );
        panic!("bytes {range:?} of the region were never committed");
    }

    #[inline(always)]
    fn is_accessible(&self, range: &Range<usize>) -> bool {
        // Acquire pairs with the Release in `open`: the system call came before the bit.
        let is =
            |granule: usize| self.accessible[granule / 64].load(Ordering::Acquire) >> (granule % 64) & 1 == 1;
        let (first, end) = (range.start / GRANULE_BYTES, range.end.div_ceil(GRANULE_BYTES));
        first == end || is(first) && (first + 1..end).all(is)
    }

    fn open(&self, range: Range<usize>) {
        for granule in range.start / GRANULE_BYTES..range.end.div_ceil(GRANULE_BYTES) {
            self.accessible[granule / 64].fetch_or(1 << (granule % 64), Ordering::Release);
        }
    }

    pub(super) fn check_pages(&self, range: &Range<usize>) -> io::Result<()> {
        let inside = range.start <= range.end && range.end <= self.length;
        if inside && range.start.is_multiple_of(PAGE_BYTES) && range.end.is_multiple_of(PAGE_BYTES) {
            return Ok(());
        }
        let what = format!(
            "bytes {range:?} are not whole pages of {PAGE_BYTES} bytes in a region of {} bytes",
            self.length
        );
        Err(io::Error::new(io::ErrorKind::InvalidInput, what))
    }

    fn address(&self, offset: usize) -> *mut c_void {
        self.start.as_ptr().wrapping_add(offset).cast()
    }

    pub(super) fn advise_huge_pages(&self, range: &Range<usize>) {
        if let Err(error) = self.advise(range, Advice::LinuxHugepage)
            && !self.huge_pages_refused.swap(true, Ordering::Relaxed)
        {
            tracing::info!(%error, "no huge pages for this memory");
        }
    }

    /// A kernel without this advice has no huge pages to avoid.
    fn advise_against_huge_pages(&self, range: Range<usize>) {
        let _ = self.advise(&range, Advice::LinuxNoHugepage);
    }

    fn advise(&self, range: &Range<usize>, advice: Advice) -> io::Result<()> {
        loop {
            // SAFETY: the range is inside our mapping. `LinuxDontNeed` zeroes bytes that are only
            // visible as atomics; other advice changes no byte.
            match unsafe { rustix::mm::madvise(self.address(range.start), range.len(), advice) } {
                Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
                outcome => return Ok(outcome?),
            }
        }
    }

    /// One system call for several ranges interrupts the other processors once.
    pub(super) fn advise_all(&self, ranges: &[Range<usize>], advice: Advice) -> io::Result<()> {
        let each = || {
            let mut each = ranges.iter().map(|range| self.advise(range, advice));
            match advice {
                // One failure never keeps the others from releasing.
                Advice::LinuxDontNeed => each.fold(Ok(()), io::Result::and),
                _ => each.try_for_each(|done| done),
            }
        };
        if ranges.len() == 1 || self.vectors_refused.load(Ordering::Relaxed) {
            return each();
        }
        let vectors: Vec<libc::iovec> = ranges
            .iter()
            .map(|range| libc::iovec { iov_base: self.address(range.start), iov_len: range.len() })
            .collect();
        // SAFETY: as in `advise`, for the ranges in the vectors, which live through the call. The
        // target is the calling process, even if it was forked from the one that made the region.
        let done = unsafe {
            libc::syscall(
                libc::SYS_process_madvise,
                PIDFD_SELF_THREAD,
                vectors.as_ptr(),
                vectors.len(),
                advice as libc::c_int,
                0,
            )
        };
        if usize::try_from(done) == Ok(ranges.iter().map(Range::len).sum()) {
            return Ok(());
        }
        // The call did not finish; repeating advice is harmless.
        each()?;
        if done < 0 && !self.vectors_refused.swap(true, Ordering::Relaxed) {
            tracing::info!(
                "memory changes by one system call for each range: the kernel takes no vectors of them"
            );
        }
        Ok(())
    }
}

fn zeros_are_shared() -> bool {
    let setting = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/use_zero_page");
    setting.is_ok_and(|setting| setting.trim() == "1")
}

impl Drop for Region {
    fn drop(&mut self) {
        let shares_in = *self.shares_in.get_mut();
        if shares_in != 0 && shares_in != std::process::id() {
            // A forked process has gaps here, where another mapping may be by now.
            return;
        }
        // SAFETY: the mapping of `map`, unmapped once; every slice of it borrowed the region.
        let unmapped = unsafe { rustix::mm::munmap(self.mapping.as_ptr(), self.mapping_bytes) };
        debug_assert!(unmapped.is_ok(), "unmapping a whole mapping cannot fail: {unmapped:?}");
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    #[test]
    fn committed_memory_is_zero_and_keeps_its_content_when_committed_again() {
        let region = Region::reserve(64 << 20).unwrap();
        let start = region.as_ptr().addr();
        assert_eq!(start % GRANULE_BYTES, 0);
        assert_eq!(
            [start, start + 77, start + region.len()].map(|at| region.offset_of(at)),
            [Some(0), Some(77), None]
        );
        assert_eq!(region.offset_of(start - 1), None);
        region.commit(4096..3 << 20).unwrap();
        assert!(region.words(4096..3 << 20).iter().all(|word| word.load(Ordering::Relaxed) == 0));
        region.words(8192..8200)[0].store(9, Ordering::Relaxed);
        region.commit(0..64 << 20).unwrap();
        assert_eq!(region.words(8192..8200)[0].load(Ordering::Relaxed), 9);
    }

    #[test]
    fn released_memory_reads_as_zeros() {
        let region = Region::reserve(1 << 20).unwrap();
        region.commit(0..1 << 20).unwrap();
        region.words(0..8)[0].store(1, Ordering::Relaxed);
        region.words(4096..4104)[0].store(2, Ordering::Relaxed);
        region.release(0..4096).unwrap();
        assert_eq!(region.words(0..8)[0].load(Ordering::Relaxed), 0);
        assert_eq!(region.words(4096..4104)[0].load(Ordering::Relaxed), 2);
    }

    fn lines(region: &Region) -> impl Iterator<Item = String> {
        let addresses = region.as_ptr().addr()..region.as_ptr().addr() + region.len();
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut inside = false;
        let lines = maps.lines().map(str::to_owned).collect::<Vec<_>>();
        lines.into_iter().filter(move |line| {
            if let Some(start) = start_of_mapping(line) {
                inside = addresses.contains(&start);
            }
            inside
        })
    }

    fn start_of_mapping(line: &str) -> Option<usize> {
        let (start, _) = line.split(' ').next()?.split_once('-')?;
        usize::from_str_radix(start, 16).ok()
    }

    pub(in crate::memory) fn mappings(region: &Region) -> usize {
        lines(region).filter(|line| start_of_mapping(line).is_some()).count()
    }

    pub(in crate::memory) fn resident_bytes(region: &Region) -> usize {
        let sizes = lines(region).filter(|line| line.starts_with("Rss:"));
        sizes.map(|line| line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10).sum()
    }

    #[test]
    fn looking_at_released_memory_takes_none() {
        let region = Region::reserve(16 << 20).unwrap();
        region.commit(0..12 << 20).unwrap();
        assert_eq!(resident_bytes(&region), 12 << 20, "committed is there, and no more");
        region.release(3 << 20..12 << 20).unwrap();
        assert_eq!(resident_bytes(&region), 3 << 20);
        let words = region.words(3 << 20..12 << 20);
        assert!(words.iter().step_by(512).all(|word| word.load(Ordering::Relaxed) == 0));
        assert_eq!(resident_bytes(&region), 3 << 20, "read, and still not there");
        region.commit(3 << 20..8 << 20).unwrap();
        assert_eq!(resident_bytes(&region), 8 << 20);
    }

    #[test]
    fn pages_whose_memory_is_refused_do_not_keep_the_others_from_losing_theirs() {
        let region = Region::reserve_sparse(1 << 20, 4096).unwrap();
        region.populate(&mut [0..4096, 8192..12288, 16384..20480]).unwrap();
        let has = |page: usize| region.words(page..page + 8)[0].load(Ordering::Relaxed) == 7;
        [0, 8192, 16384]
            .into_iter()
            .for_each(|page| region.words(page..page + 8)[0].store(7, Ordering::Relaxed));
        // SAFETY: locks and unlocks a page of the region, without changing its bytes.
        unsafe { rustix::mm::mlock(region.address(0), 4096).unwrap() };
        let refused = region.discard(&mut [0..4096, 8192..12288, 16384..20480]);
        // SAFETY: as above.
        unsafe { rustix::mm::munlock(region.address(0), 4096).unwrap() };
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!([0, 8192, 16384].map(has), [true, false, false]);
    }

    fn flags(region: &Region) -> String {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let (mut inside, start) = (false, region.as_ptr().addr());
        for line in maps.lines() {
            let word = line.split(' ').next().unwrap_or_default();
            if let Some((from, to)) = word.split_once('-')
                && let (Ok(from), Ok(to)) = (usize::from_str_radix(from, 16), usize::from_str_radix(to, 16))
            {
                inside = (from..to).contains(&start);
            } else if inside && let Some(flags) = line.strip_prefix("VmFlags:") {
                return flags.to_owned();
            }
        }
        String::new()
    }

    #[test]
    fn a_dump_of_the_process_leaves_sparse_regions_out() {
        let region = Region::reserve_sparse(1 << 36, 4096).unwrap();
        assert!(flags(&region).contains(" dd"), "{}", flags(&region));
    }

    #[test]
    #[should_panic(expected = "never committed")]
    fn memory_never_committed_is_not_handed_out() {
        let region = Region::reserve(8 << 20).unwrap();
        region.commit(0..4096).unwrap();
        region.words((4 << 20)..(4 << 20) + 8);
    }

    #[test]
    fn a_range_off_page_boundaries_or_outside_is_refused() {
        let region = Region::reserve(1 << 20).unwrap();
        #[allow(clippy::reversed_empty_ranges, reason = "a mistake of the caller's must be an error")]
        for range in [0..100, 100..4096, 0..(1 << 20) + 4096, 8192..4096] {
            assert_eq!(region.commit(range.clone()).unwrap_err().kind(), io::ErrorKind::InvalidInput);
            assert_eq!(region.release(range).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
    }

    #[test]
    fn a_reservation_beyond_the_address_space_is_an_error() {
        for bytes in [usize::MAX, usize::MAX / 2, 1 << 60] {
            assert_eq!(Region::reserve(bytes).unwrap_err().kind(), io::ErrorKind::OutOfMemory);
        }
    }
}
