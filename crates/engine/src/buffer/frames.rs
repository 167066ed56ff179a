//! The frames: fixed, pre-touched page-sized pieces of DRAM, each with a header beside it.
//!
//! Frames are type-stable: a frame always holds bytes of some page of this database, and its memory is never
//! unmapped under readers, so that an optimistic reader that comes too late reads old bytes and nothing worse.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use terrace_block::Region;

use super::batch::Purpose;
use super::view::Racy;
use crate::ids::{Lsn, PageId};
use crate::store::place::Mapped;

/// What the pool knows of a frame's content besides the content. Changed under the page's latch (exclusive, or
/// shared together with the claim), except `page`, which the sweep reads to find the entry it must latch, and `purpose`,
/// which the first look takes away.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Header {
    page: AtomicU64,
    mapped: AtomicU64,
    recovery: AtomicU64,
    next_recovery: AtomicU64,
    purpose: AtomicU64,
}

impl Header {
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

/// Bytes of a header, for the budget.
pub(crate) const HEADER_BYTES: u64 = size_of::<Header>() as u64;

/// All frames of the DRAM tier.
#[derive(Debug)]
pub(crate) struct Frames {
    region: Region,
    headers: Vec<Header>,
    page_bytes: usize,
}

impl Frames {
    /// Maps and touches `count` frames of `page_bytes` each.
    pub(crate) fn new(count: u32, page_bytes: usize) -> io::Result<Frames> {
        let bytes = count as usize * page_bytes;
        let region = Region::reserve(bytes)?;
        region.commit(0..bytes)?;
        let headers = (0..count).map(|_| Header::default()).collect();
        Ok(Frames { region, headers, page_bytes })
    }

    pub(crate) fn count(&self) -> u32 {
        self.headers.len() as u32
    }

    pub(crate) fn header(&self, frame: u32) -> &Header {
        &self.headers[frame as usize]
    }

    #[inline]
    pub(crate) fn words(&self, frame: u32) -> &[AtomicU64] {
        let start = frame as usize * self.page_bytes;
        self.region.words(start..start + self.page_bytes)
    }

    /// The content, to be validated or read under a latch.
    #[inline]
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
