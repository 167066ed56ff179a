//! The frames: room for a page in DRAM or in the middle tier, each with a header. Where the bytes of the page in one are, at an
//! address of the frame's or of the page's, is the back end's to say (`residency.rs`).
//!
//! Each class of pages has frames of its own in each tier, a *stripe* (`stripe.rs`), of which there could be as many as take the
//! whole budget of the tier.
//!
//! A page may have two copies, one in a frame of each tier. The page table names the one in DRAM, whose header is what counts and
//! knows the frame *below* it. In the header of the lower one then counts, besides the page's id, the version of the page at which
//! both were equal, and nothing else.
//!
//! Addresses are type-stable: where a page was there are always bytes of some page of this database and of that size, or zeros,
//! and they are never unmapped under readers, so that an optimistic reader that comes too late reads old bytes or zeros
//! and nothing worse. A frame never changes its class. There are addresses for as many frames as there may ever be.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use terrace_block::{Region, is_numa_balancing};

use super::batch::Purpose;
use super::queues::Links;
use super::residency::{Housed, NodeOptions, Placement, Residency};
use super::stripe::{ByStripe, FRAMES_MAX, Stripe, Tier, class_of, index_of, stripe_index_of};
use super::view::Racy;
use crate::backend::Backend;
use crate::ids::{ByClass, Lsn, PageId, SizeClass};
use crate::store::place::Mapped;

/// Bytes of a header, for the budget: a cache line.
pub(crate) const HEADER_BYTES: u64 = 64;
/// Memory is taken and given back in pieces of this.
const GRANULE_BYTES: usize = 4096;

/// What the pool knows of a frame's content besides the content. Changed under the page's latch (exclusive, or
/// shared together with the claim), except `page`, which the sweep reads to find the entry it must latch, and the purpose,
/// which the first look takes away. All zeros is the header of a frame that holds nothing.
///
/// The purpose is the lower half of a word whose upper half is the frame below, plus one: so both are changed by read-modify-writes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header<'a> {
    page: &'a AtomicU64,
    mapped: &'a AtomicU64,
    recovery: &'a AtomicU64,
    next_recovery: &'a AtomicU64,
    below_and_purpose: &'a AtomicU64,
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

    /// Of a lower copy: the version of the page at which it was equal to the copy in DRAM. Kept in a word that no lower copy needs.
    pub(super) fn equal_at(&self) -> u64 {
        self.next_recovery.load(Relaxed) & !MARKED_BELOW
    }

    /// `marked`: as [`Header::is_marked_below`].
    pub(super) fn set_equal_at(&self, version: u64, marked: bool) {
        self.next_recovery.store(version | if marked { MARKED_BELOW } else { 0 }, Relaxed);
    }

    /// Of a lower copy, where it has a mark of its own, since that of the page is for the copy above: whether it was looked at
    /// since the sweep last came by. Versions are far shorter than a word.
    pub(super) fn is_marked_below(&self) -> bool {
        self.next_recovery.load(Relaxed) & MARKED_BELOW != 0
    }

    /// Takes that mark away; whether there was one. Without a latch: if the page left DRAM meanwhile, there is none.
    pub(super) fn unmark_below(&self) -> bool {
        self.is_marked_below() && self.next_recovery.fetch_and(!MARKED_BELOW, Relaxed) & MARKED_BELOW != 0
    }

    /// Of a copy in DRAM: the frame of the middle tier with the copy below it.
    pub(super) fn below(&self) -> Option<u32> {
        ((self.below_and_purpose.load(Relaxed) >> BELOW_SHIFT) as u32).checked_sub(1)
    }

    /// Under the page's exclusive latch.
    pub(super) fn set_below(&self, frame: Option<u32>) {
        let below = frame.map_or(0, |frame| u64::from(frame) + 1) << BELOW_SHIFT;
        // The first look may take the purpose away meanwhile, and nobody else changes what is below.
        let before = self.below_and_purpose.load(Relaxed) & !PURPOSE;
        self.below_and_purpose.fetch_xor(before ^ below, Relaxed);
    }

    /// Notes why the page was read before anybody looked at it.
    pub(crate) fn set_purpose(&self, purpose: Option<Purpose>) {
        self.below_and_purpose.fetch_and(!PURPOSE, Relaxed);
        if purpose.is_some() {
            self.below_and_purpose.fetch_or(Purpose::encode(purpose), Relaxed);
        }
    }

    /// The hand comes to a page that is wanted and that nobody has looked at: whether it does so for the first time.
    pub(super) fn is_waited_for(&self) -> bool {
        let [wanted, overdue] =
            [Purpose::Wanted, Purpose::Overdue].map(|purpose| Purpose::encode(Some(purpose)));
        let word = self.below_and_purpose.load(Relaxed);
        let next = word & !PURPOSE | overdue;
        word & PURPOSE == wanted
            && self.below_and_purpose.compare_exchange(word, next, Relaxed, Relaxed).is_ok()
    }

    /// Takes that note away. Written only where there is one.
    pub(crate) fn take_purpose(&self) -> Option<Purpose> {
        match self.below_and_purpose.load(Relaxed) & PURPOSE {
            0 => None,
            _ => Purpose::decode(self.below_and_purpose.fetch_and(!PURPOSE, Relaxed) & PURPOSE),
        }
    }
}

/// Where in a word the frame below begins, and the part in front of it.
const BELOW_SHIFT: u32 = 32;
const PURPOSE: u64 = (1 << BELOW_SHIFT) - 1;

/// The mark of a lower copy, in the word of the version at which it was equal.
const MARKED_BELOW: u64 = 1 << 63;

/// All frames.
#[derive(Debug)]
pub(crate) struct Frames {
    bytes: Residency,
    /// Which nodes they are on.
    nodes: Placement,
    /// In which each stripe has a range of its own.
    headers: Region,
    /// Bytes of such a range, as a power of two.
    headers_shift: u32,
    stripes: ByStripe<Counts>,
}

/// How many frames there are of one stripe.
#[derive(Debug)]
struct Counts {
    /// Frames with indexes below this may hold pages.
    count: AtomicU32,
    count_max: u32,
}

impl Frames {
    /// Addresses for as many frames of each class as `bytes_max` bytes of DRAM have room for, and for those of the middle tier, for
    /// a page table of `pages_max` pages of the smallest class. There are none yet.
    pub(crate) fn reserve(
        bytes_max: u64,
        middle: Option<(SizeClass, u32)>,
        backend: Backend,
        pages_max: u64,
    ) -> io::Result<Frames> {
        let counts = Frames::counts_max(bytes_max, middle);
        let most = counts.iter().map(|&count| header_bytes(count)).max().unwrap_or(0);
        let headers = most.next_power_of_two();
        Ok(Frames {
            bytes: Residency::reserve(backend, &counts, pages_max)?,
            nodes: Placement::new(
                &NodeOptions::default(),
                middle.map_or(SizeClass::SMALLEST, |(class, _)| class),
            ),
            headers: Region::reserve(headers * counts.len())?,
            headers_shift: headers.trailing_zeros(),
            stripes: counts.map(|count_max| Counts { count: AtomicU32::new(0), count_max }),
        })
    }

    /// Bytes of addresses that [`Frames::reserve`] takes, but for those that mapped pages get class by class.
    pub(crate) fn address_bytes(bytes_max: u64, middle: Option<(SizeClass, u32)>) -> u64 {
        let counts = Frames::counts_max(bytes_max, middle);
        let headers = counts.iter().map(|&count| header_bytes(count)).max().unwrap_or(0).next_power_of_two();
        (Residency::frame_address_bytes(&counts) + headers * counts.len()) as u64
    }

    /// Frames of each stripe that there are addresses for.
    fn counts_max(bytes_max: u64, middle: Option<(SizeClass, u32)>) -> ByStripe<u32> {
        let mut counts: ByStripe<u32> = [0; _];
        for class in SizeClass::all() {
            let count_max = bytes_max / (class.page_bytes() as u64 + HEADER_BYTES);
            counts[Stripe::from(class).index()] = count_max.clamp(1, u64::from(FRAMES_MAX)) as u32;
        }
        if let Some((class, count)) = middle {
            counts[Stripe::middle(class).index()] = count;
        }
        counts
    }

    /// The same on nodes; the middle tier has frames of `class`.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn on_nodes(self, options: &NodeOptions, class: SizeClass) -> io::Result<Frames> {
        if (options.dram.is_some() || options.middle.is_some()) && is_numa_balancing() {
            tracing::warn!(
                "the kernel moves pages between nodes on its own (kernel.numa_balancing), against what tiers ask for"
            );
        }
        let nodes = Placement::new(options, class);
        self.bytes.place(&nodes)?;
        Ok(Frames { nodes, ..self })
    }

    /// Which nodes they are on.
    pub(super) fn nodes(&self) -> &Placement {
        &self.nodes
    }

    /// Whether memory moves when a page goes from one tier to the other, for which the system is asked.
    pub(super) fn moves_memory(&self) -> bool {
        self.backend() == Backend::Mapped && self.nodes.splits_addresses()
    }

    /// Whether the bytes of a page that is to move may be away meanwhile, and zeros in their place.
    pub(super) fn takes_bytes_away(&self) -> bool {
        self.moves_memory() && self.nodes.takes_bytes_away()
    }

    /// Where the bytes of pages are.
    pub(crate) fn backend(&self) -> Backend {
        self.bytes.backend()
    }

    /// Frames there are of a stripe; that of a class is the one in DRAM. Acquire: partner of the store in `grow`, so that what is
    /// counted has its memory.
    pub(crate) fn count(&self, stripe: impl Into<Stripe>) -> u32 {
        self.stripes[stripe.into().index()].count.load(Acquire)
    }

    /// How many there may ever be of it.
    pub(crate) fn count_max(&self, stripe: impl Into<Stripe>) -> u32 {
        self.stripes[stripe.into().index()].count_max
    }

    /// The classes that have frames in DRAM, the smallest first.
    pub(crate) fn classes(&self) -> impl DoubleEndedIterator<Item = SizeClass> {
        SizeClass::all().filter(|&class| self.count(class) > 0)
    }

    /// The stripes that have frames, those in DRAM first.
    pub(super) fn stripes(&self) -> impl DoubleEndedIterator<Item = Stripe> {
        Stripe::all().filter(|&stripe| self.count(stripe) > 0)
    }

    /// The largest class that has frames.
    pub(crate) fn largest(&self) -> SizeClass {
        self.classes().next_back().unwrap_or(SizeClass::SMALLEST)
    }

    /// All frames there are, of all classes, those in DRAM first.
    pub(crate) fn all(&self) -> impl Iterator<Item = u32> {
        self.stripes().flat_map(|stripe| self.of(stripe))
    }

    /// Those of a stripe.
    pub(super) fn of(&self, stripe: Stripe) -> impl Iterator<Item = u32> + use<> {
        (0..self.count(stripe)).map(move |index| stripe.frame(index))
    }

    /// Whether there is a frame of this number.
    pub(super) fn has(&self, frame: u32) -> bool {
        Stripe::from_index(stripe_index_of(frame)).is_some_and(|stripe| index_of(frame) < self.count(stripe))
    }

    /// Makes it `count` frames of a stripe, more than there are; the new ones hold nothing. One caller at a time.
    ///
    /// # Errors
    /// There is not enough memory; everything is as it was.
    pub(crate) fn grow(&self, stripe: impl Into<Stripe>, count: u32) -> io::Result<()> {
        let stripe = stripe.into();
        let one = &self.stripes[stripe.index()];
        let old = self.count(stripe);
        debug_assert!(old <= count && count <= one.count_max);
        let committed = self
            .headers
            .commit(self.headers_of(stripe, 0..count))
            .and_then(|()| self.bytes.grow(stripe, old, count, &self.nodes));
        if let Err(error) = committed {
            self.release(stripe, old..count)?;
            return Err(error);
        }
        one.count.store(count, Release);
        Ok(())
    }

    /// Makes it `count` frames of `class`, fewer than there are, and gives the memory of the others back. They hold nothing,
    /// and nobody is given them meanwhile; who still looks at one reads zeros from now on, in a page whose version has
    /// moved. One caller at a time.
    ///
    /// # Errors
    /// The system's; there are as many frames as before.
    pub(crate) fn shrink(&self, class: SizeClass, count: u32) -> io::Result<()> {
        let stripe = Stripe::from(class);
        let one = &self.stripes[stripe.index()];
        let old = self.count(stripe);
        debug_assert!(count <= old);
        self.release(stripe, count..old)?;
        one.count.store(count, Release);
        Ok(())
    }

    #[inline]
    pub(crate) fn header(&self, frame: u32) -> Header<'_> {
        let at = stripe_index_of(frame) << self.headers_shift;
        let at = at + index_of(frame) as usize * HEADER_BYTES as usize;
        let words = self.headers.words(at..at + HEADER_BYTES as usize);
        let [page, mapped, recovery, next_recovery, below_and_purpose, before, behind, standing] = words
        else {
            unreachable!("eight words were asked for");
        };
        let links = Links { before, behind, standing };
        Header { page, mapped, recovery, next_recovery, below_and_purpose, links }
    }

    /// The words of the page `id`, which is in `frame`.
    #[inline(always)]
    pub(crate) fn words(&self, id: PageId, frame: u32) -> &[AtomicU64] {
        self.bytes.words(id, frame)
    }

    /// The content of the page `id`, which is in `frame`, to be validated or read under a latch.
    #[inline(always)]
    pub(crate) fn view(&self, id: PageId, frame: u32) -> Racy<'_> {
        Racy::new(self.words(id, frame))
    }

    /// Stores the content of the page `id`, which comes into `frame`; the caller holds the exclusive latch. What was there was
    /// another page's, so there is no looking at it first.
    pub(crate) fn fill(&self, id: PageId, frame: u32, content: &[u8]) {
        debug_assert_eq!(content.len(), class_of(frame).page_bytes());
        self.view(id, frame).set_bytes(0, content);
    }

    /// Replaces the content of the page `id`, which is in `frame`; the caller holds the exclusive latch. Only
    /// words that differ are stored, so that a small change dirties few cache lines.
    pub(crate) fn store(&self, id: PageId, frame: u32, content: &[u8]) {
        debug_assert_eq!(content.len(), class_of(frame).page_bytes());
        for (word, bytes) in self.words(id, frame).iter().zip(content.chunks_exact(8)) {
            let new = u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
            if word.load(Relaxed) != new {
                word.store(new, Relaxed);
            }
        }
    }

    /// Bytes of memory behind what is in the frames of `class` now.
    pub(super) fn resident_bytes(&self, class: SizeClass) -> u64 {
        match self.bytes.resident_bytes(class) {
            Some(bytes) => bytes,
            None => u64::from(self.count(class)) * class.page_bytes() as u64,
        }
    }

    /// Whether the system has taken the advice to use huge pages for what is in the frames of `class`.
    pub(super) fn huge_pages(&self, class: SizeClass) -> bool {
        self.bytes.huge_pages(class)
    }

    /// Bytes that the system takes for tables of the addresses of pages whose indexes are below these.
    pub(super) fn tables_bytes(&self, ends: &ByClass<u64>) -> u64 {
        let pages = SizeClass::all().map(|class| ends[class.index()] * class.page_bytes() as u64);
        self.bytes.tables_bytes(pages.sum())
    }

    /// The page whose bytes include those at `address`, for who holds it there.
    pub(super) fn page_at(&self, address: usize) -> Option<PageId> {
        let page_in = |frame: u32| match self.has(frame) {
            true => self.header(frame).page(),
            false => PageId::NONE,
        };
        self.bytes.page_at(address, page_in).filter(|id| !id.is_none())
    }

    /// Puts memory behind pages, before their content is stored. As [`Residency::populate`].
    pub(super) fn populate(&self, pages: &[Housed]) -> io::Result<()> {
        self.bytes.populate(pages, &self.nodes)
    }

    /// Takes it away again. As [`Residency::discard`].
    pub(super) fn discard(&self, pages: &[Housed]) -> io::Result<()> {
        self.bytes.discard(pages)
    }

    /// Moves the memory of pages that are about to be in frames of `tier`. As [`Residency::migrate`].
    pub(super) fn migrate(&self, pages: &[PageId], tier: Tier) -> Vec<bool> {
        self.bytes.migrate(pages, tier, &self.nodes)
    }

    /// Which nodes the system has the memory of the page `id` in `frame` on.
    #[cfg(test)]
    pub(super) fn nodes_of(&self, id: PageId, frame: u32) -> Vec<u32> {
        self.bytes.nodes_of(id, frame)
    }

    /// The words of a frame that holds something else than a page, between [`Frames::populate_own`] and
    /// [`Frames::discard_own`].
    #[inline(always)]
    pub(super) fn own_words(&self, frame: u32) -> &[AtomicU64] {
        self.bytes.own_words(frame)
    }

    /// The same as bytes.
    #[inline(always)]
    pub(super) fn own_view(&self, frame: u32) -> Racy<'_> {
        Racy::new(self.own_words(frame))
    }

    /// Puts memory behind frames that are to hold something else than pages; what it is filled with is not said.
    pub(super) fn populate_own(&self, frames: &[u32]) -> io::Result<()> {
        self.bytes.populate_own(frames, &self.nodes)
    }

    /// Takes it away again, before they are given back.
    pub(super) fn discard_own(&self, frames: &[u32]) -> io::Result<()> {
        self.bytes.discard_own(frames)
    }

    /// Makes what is in `to` what is in `from`, a frame of the same class; neither holds a page. Nobody writes to either
    /// meanwhile.
    pub(super) fn copy_own(&self, from: u32, to: u32) {
        debug_assert_eq!(class_of(from), class_of(to));
        for (from, to) in self.own_words(from).iter().zip(self.own_words(to)) {
            to.store(from.load(Relaxed), Relaxed);
        }
    }

    /// Makes the bytes of the page `id` in frame `to` those that it has in `from`, under its exclusive latch. Nothing where a page
    /// has its bytes at one address whatever frame it is in.
    pub(super) fn copy_page(&self, id: PageId, from: u32, to: u32) {
        debug_assert_eq!(class_of(from), class_of(to));
        if self.backend() == Backend::Frames {
            for (from, to) in self.words(id, from).iter().zip(self.words(id, to)) {
                to.store(from.load(Relaxed), Relaxed);
            }
        }
    }

    /// Gives the memory of `frames`, the last ones of `stripe`, back.
    fn release(&self, stripe: Stripe, frames: Range<u32>) -> io::Result<()> {
        self.headers.release(self.headers_of(stripe, frames.clone()))?;
        self.bytes.shrink(stripe, frames.start, frames.end)
    }

    /// Where the headers of frames of `stripe` are, in whole granules.
    fn headers_of(&self, stripe: Stripe, frames: Range<u32>) -> Range<usize> {
        let start = stripe.index() << self.headers_shift;
        start + header_bytes(frames.start)..start + header_bytes(frames.end)
    }
}

/// Bytes of the headers of `count` frames, in whole granules.
fn header_bytes(count: u32) -> usize {
    (count as usize * HEADER_BYTES as usize).next_multiple_of(GRANULE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::super::stripe::{is_middle, stripe_of};
    use super::*;

    #[test]
    fn what_is_below_and_why_a_page_was_read_share_a_word() {
        let frames = Frames::reserve(1 << 20, None, Backend::Frames, 1 << 10).unwrap();
        frames.grow(SizeClass::SMALLEST, 1).unwrap();
        let header = frames.header(0);
        assert_eq!((header.below(), header.take_purpose()), (None, None));
        header.set_purpose(Some(Purpose::Ahead));
        header.set_below(Some(1 << 27));
        assert_eq!((header.below(), header.take_purpose()), (Some(1 << 27), Some(Purpose::Ahead)));
        assert_eq!((header.below(), header.take_purpose()), (Some(1 << 27), None));
        header.set_purpose(Some(Purpose::Wanted));
        header.set_below(None);
        assert_eq!((header.below(), header.take_purpose()), (None, Some(Purpose::Wanted)));
    }

    #[test]
    fn frames_of_each_class_are_as_long_as_its_pages_and_apart() {
        for backend in Backend::ALL {
            let frames =
                Frames::reserve(24 << 20, Some((SizeClass::SMALLEST, 40)), backend, 1 << 13).unwrap();
            assert_eq!((frames.all().count(), frames.backend()), (0, backend));
            let more = |class: SizeClass| if class.is_for_values() { 0 } else { class.index() as u32 };
            let counts: Vec<_> = SizeClass::all().map(|class| (class, 3 + more(class))).collect();
            for &(class, count) in &counts {
                frames.grow(class, count).unwrap();
            }
            frames.grow(Stripe::middle(SizeClass::SMALLEST), 40).unwrap();
            let all: Vec<u32> = frames.all().collect();
            assert_eq!(all.len() as u32, 40 + counts.iter().map(|(_, count)| count).sum::<u32>());
            let page = |frame| {
                let index = u64::from(index_of(frame)) + 5 + 100 * u64::from(is_middle(frame));
                PageId::new(class_of(frame), index)
            };
            let pages: Vec<Housed> = all.iter().map(|&frame| (page(frame), frame)).collect();
            frames.populate(&pages).unwrap();
            for (number, &(id, frame)) in pages.iter().enumerate() {
                assert_eq!(stripe_of(frame).frame(index_of(frame)), frame);
                assert_eq!(frames.words(id, frame).len() * 8, class_of(frame).page_bytes());
                frames.words(id, frame).iter().for_each(|word| word.store(number as u64, Relaxed));
                frames.header(frame).set_page(PageId(number as u64 + 100));
            }
            for (number, &(id, frame)) in pages.iter().enumerate() {
                let holds = |word: &AtomicU64| word.load(Relaxed) == number as u64;
                assert!(frames.words(id, frame).iter().all(holds), "{frame:x}");
                assert_eq!(frames.header(frame).page(), PageId(number as u64 + 100));
            }
            // One class comes and goes; the others do not notice.
            let class = SizeClass::from_index(2).unwrap();
            let of_class: Vec<Housed> =
                pages.iter().copied().filter(|(id, _)| id.class() == Some(class)).collect();
            frames.discard(&of_class).unwrap();
            frames.shrink(class, 0).unwrap();
            assert_eq!(frames.classes().count(), SizeClass::COUNT - 1);
            assert_eq!(frames.all().filter(|frame| all.contains(frame)).count(), all.len() - 5);
            frames.grow(class, 2).unwrap();
            let (id, frame) = of_class[1];
            assert!(frames.words(id, frame).iter().all(|word| word.load(Relaxed) == 0));
            assert!(frames.header(frame).page().is_none());
            assert_eq!(frames.largest(), SizeClass::LARGEST);
        }
    }
}
