//! The frames: pre-touched page-sized pieces of DRAM, each with a header beside it.
//!
//! Frames are type-stable: a frame always holds bytes of some page of this database, or zeros, and its addresses are
//! never unmapped under readers, so that an optimistic reader that comes too late reads old bytes or zeros and nothing
//! worse. There are addresses for as many frames as there may ever be; memory is behind those that count.

use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use terrace_block::Region;

use super::batch::Purpose;
use super::queues::Links;
use super::view::Racy;
use crate::ids::{Lsn, PageId};
use crate::store::place::Mapped;

/// Bytes of a header, for the budget: a cache line.
pub(crate) const HEADER_BYTES: u64 = 64;
/// Memory is taken and given back in pieces of this.
const GRANULE_BYTES: usize = 4096;

/// What the pool knows of a frame's content besides the content. Changed under the page's latch (exclusive, or
/// shared together with the claim), except `page`, which the sweep reads to find the entry it must latch, and `purpose`,
/// which the first look takes away. All zeros is the header of a frame that holds nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header<'a> {
    page: &'a AtomicU64,
    mapped: &'a AtomicU64,
    recovery: &'a AtomicU64,
    next_recovery: &'a AtomicU64,
    purpose: &'a AtomicU64,
    /// Where the frame stands in the queues of replacement; their lock's.
    pub(super) links: Links<'a>,
}

impl Header<'_> {
    /// The page in this frame; none when the frame is free.
    pub(crate) fn page(&self) -> PageId {
        PageId(self.page.load(Relaxed))
    }

    pub(crate) fn set_page(&self, id: PageId) {
        self.page.store(id.0, Relaxed);
    }

    /// The page's durable image.
    pub(crate) fn mapped(&self) -> Mapped {
        Mapped(self.mapped.load(Relaxed))
    }

    pub(crate) fn set_mapped(&self, mapped: Mapped) {
        self.mapped.store(mapped.0, Relaxed);
    }

    /// recLSN: the first change that the durable image lacks; none when the page is clean.
    pub(crate) fn recovery(&self) -> Lsn {
        Lsn(self.recovery.load(Relaxed))
    }

    pub(crate) fn set_recovery(&self, lsn: Lsn) {
        self.recovery.store(lsn.0, Relaxed);
    }

    /// The first change since the image in flight was copied; becomes recLSN when that image is in force.
    pub(crate) fn next_recovery(&self) -> Lsn {
        Lsn(self.next_recovery.load(Relaxed))
    }

    pub(crate) fn set_next_recovery(&self, lsn: Lsn) {
        self.next_recovery.store(lsn.0, Relaxed);
    }

    /// Notes why the page was read before anybody looked at it.
    pub(crate) fn set_purpose(&self, purpose: Option<Purpose>) {
        self.purpose.store(Purpose::encode(purpose), Relaxed);
    }

    /// Takes that note away. Written only where there is one.
    pub(crate) fn take_purpose(&self) -> Option<Purpose> {
        match self.purpose.load(Relaxed) {
            0 => None,
            _ => Purpose::decode(self.purpose.swap(0, Relaxed)),
        }
    }
}

/// All frames of the DRAM tier.
#[derive(Debug)]
pub(crate) struct Frames {
    region: Region,
    headers: Region,
    page_bytes: usize,
    /// Frames below this have memory and may hold pages.
    count: AtomicU32,
    count_max: u32,
}

impl Frames {
    /// Maps and touches `count` frames of `page_bytes` each, and has addresses for `count_max`.
    pub(crate) fn new(count: u32, count_max: u32, page_bytes: usize) -> io::Result<Frames> {
        let count_max = count_max.max(count);
        let region = Region::reserve(count_max as usize * page_bytes)?;
        let headers = Region::reserve(header_bytes(count_max))?;
        let frames = Frames { region, headers, page_bytes, count: AtomicU32::new(0), count_max };
        frames.grow(count)?;
        Ok(frames)
    }

    /// Frames there are. Acquire: partner of the store in `grow`, so that what is counted has its memory.
    pub(crate) fn count(&self) -> u32 {
        self.count.load(Acquire)
    }

    /// Makes it `count` frames, more than there are; the new ones hold nothing. One caller at a time.
    ///
    /// # Errors
    /// There is not enough memory; everything is as it was.
    pub(crate) fn grow(&self, count: u32) -> io::Result<()> {
        let old = self.count();
        debug_assert!(old <= count && count <= self.count_max);
        let committed = self
            .headers
            .commit(0..header_bytes(count))
            .and_then(|()| self.region.commit(self.bytes_of(old..count)));
        if let Err(error) = committed {
            self.release(old..count)?;
            return Err(error);
        }
        self.count.store(count, Release);
        Ok(())
    }

    /// Makes it `count` frames, fewer than there are, and gives the memory of the others back. They hold nothing, and
    /// nobody is given them meanwhile; who still looks at one reads zeros from now on, in a page whose version has
    /// moved. One caller at a time.
    ///
    /// # Errors
    /// The system's; there are as many frames as before.
    pub(crate) fn shrink(&self, count: u32) -> io::Result<()> {
        let old = self.count();
        debug_assert!(count <= old);
        self.release(count..old)?;
        self.count.store(count, Release);
        Ok(())
    }

    /// Gives the memory of `frames`, the last ones, back.
    fn release(&self, frames: std::ops::Range<u32>) -> io::Result<()> {
        self.headers.release(header_bytes(frames.start)..header_bytes(frames.end))?;
        self.region.release(self.bytes_of(frames))
    }

    fn bytes_of(&self, frames: std::ops::Range<u32>) -> std::ops::Range<usize> {
        frames.start as usize * self.page_bytes..frames.end as usize * self.page_bytes
    }

    #[inline]
    pub(crate) fn header(&self, frame: u32) -> Header<'_> {
        let at = frame as usize * HEADER_BYTES as usize;
        let words = self.headers.words(at..at + HEADER_BYTES as usize);
        let [page, mapped, recovery, next_recovery, purpose, before, behind, standing] = words else {
            unreachable!("eight words were asked for");
        };
        let links = Links { before, behind, standing };
        Header { page, mapped, recovery, next_recovery, purpose, links }
    }

    #[inline(always)]
    pub(crate) fn words(&self, frame: u32) -> &[AtomicU64] {
        let start = frame as usize * self.page_bytes;
        self.region.words(start..start + self.page_bytes)
    }

    /// The content, to be validated or read under a latch.
    #[inline(always)]
    pub(crate) fn view(&self, frame: u32) -> Racy<'_> {
        Racy::new(self.words(frame))
    }

    /// Replaces the content; the caller holds the exclusive latch. Only words that differ are stored, so that a
    /// small change dirties few cache lines.
    pub(crate) fn store(&self, frame: u32, content: &[u8]) {
        debug_assert_eq!(content.len(), self.page_bytes);
        for (word, bytes) in self.words(frame).iter().zip(content.chunks_exact(8)) {
            let new = u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
            if word.load(Relaxed) != new {
                word.store(new, Relaxed);
            }
        }
    }
}

/// Bytes of the headers of `count` frames, in whole granules.
fn header_bytes(count: u32) -> usize {
    (count as usize * HEADER_BYTES as usize).next_multiple_of(GRANULE_BYTES)
}
