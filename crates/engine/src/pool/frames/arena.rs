//! All frames with their headers. `residency.rs` gives the addresses of page bytes.
//!
//! A page may have a copy in each tier. The page table names the DRAM copy, whose header is
//! authoritative and links to the middle copy. The middle copy's header holds only the page id, the
//! version at which both were equal, and CLOCK's mark.
//!
//! Addresses are type-stable: never unmapped, with zeros or bytes of pages of this database and one
//! size. A late optimistic reader sees old bytes or zeros, and its validation fails. A frame never
//! changes its class.
//!
//! In a partition, the frames with lower indexes have memory. It comes in chunks when a frame is
//! needed and none is free, so an unused budget costs nothing.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use terrace_io::{Region, is_numa_balancing};

use super::fixed::Fixed;
use super::header::{HEADER_BYTES, Header};
use super::line_masks::LineMasks;
use super::links::Links;
use super::mini_pages::{MiniPage, MiniPages};
use super::nodes::{NodeOptions, Placement};
use super::partial_page::{Part, PartialPage};
use super::partition::{
    ByPartition, FRAMES_MAX, PageFrame, Partition, Tier, class_of, index_of, is_middle, is_mini,
    partition_index_of,
};
use super::persistent::PersistentFrames;
use super::residency::Residency;
use crate::backend::Backend;
use crate::error::Result;
use crate::ids::{ByClass, Lsn, PageId, SizeClass};
use crate::planted::{Bug, planted};
use crate::pool::page_table::Location;
use crate::pool::view::{Racy, View};

/// Unit of committing and releasing header memory.
const GRANULE_BYTES: usize = 4096;
/// Page bytes that get memory together: a huge page.
const CHUNK_BYTES: usize = 2 << 20;

#[derive(Debug)]
pub(crate) struct Frames {
    bytes: Residency,
    nodes: Placement,
    headers: Region,
    /// Binary logarithm of the header bytes reserved per partition.
    headers_shift: u32,
    partitions: ByPartition<FrameCounts>,
    /// With line-grained pages.
    pub(crate) lines: Option<LineMasks>,
    /// With mini pages.
    pub(crate) minis: Option<MiniPages>,
    /// The middle partition's frames, if they outlive the process.
    pub(crate) persistent: Option<PersistentFrames>,
}

#[derive(Debug)]
struct FrameCounts {
    /// Frames that the budget allows.
    count: AtomicU32,
    /// Frames with lower indexes have memory, and may hold pages. Never above `count`.
    backed: AtomicU32,
    count_max: u32,
}

impl Frames {
    /// Reserves addresses without memory.
    ///
    /// `bytes_max` bounds the DRAM frames of each class, `middle` counts those of the middle tier.
    /// `pages_max` counts pages of the smallest class.
    pub(crate) fn reserve(
        bytes_max: u64,
        middle: &ByClass<u32>,
        backend: Backend,
        pages_max: u64,
    ) -> io::Result<Frames> {
        let counts = Frames::counts_max(bytes_max, middle);
        let most = counts.iter().map(|&count| header_bytes(count)).max().unwrap_or(0);
        let headers = most.next_power_of_two();
        Ok(Frames {
            bytes: Residency::reserve(backend, &counts, pages_max)?,
            nodes: Placement::new(&NodeOptions::default()),
            headers: Region::reserve(headers * counts.len())?,
            headers_shift: headers.trailing_zeros(),
            partitions: counts.map(|count_max| FrameCounts {
                count: AtomicU32::new(0),
                backed: AtomicU32::new(0),
                count_max,
            }),
            lines: None,
            minis: None,
            persistent: None,
        })
    }

    /// Puts the middle partition into memory that outlives the process.
    ///
    /// # Errors
    /// Those of the system; `Unsupported` for mapped pages.
    pub(crate) fn over(self, persistent: PersistentFrames) -> io::Result<Frames> {
        let partition = persistent.partition();
        for (frames, at) in persistent.bodies() {
            self.bytes.map_over(partition, frames, persistent.memory(), at)?;
        }
        Ok(Frames { persistent: Some(persistent), ..self })
    }

    /// Lets pages of `class` be partial in DRAM, with lines of `line_bytes` bytes, `mini` as well.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn with_lines(self, class: SizeClass, line_bytes: usize, mini: bool) -> io::Result<Frames> {
        debug_assert_eq!(self.backend(), Backend::Frames);
        let lines = LineMasks::reserve(class, line_bytes, self.count_max(class))?;
        let minis = mini.then(|| MiniPages::new(class, line_bytes));
        Ok(Frames { lines: Some(lines), minis, ..self })
    }

    pub(crate) fn mini_page(&self, mini: u32) -> MiniPage<'_> {
        let minis = self.minis.as_ref().expect("only mini pages have such numbers");
        minis.page(self.own_words(minis.frame_of(mini)), mini)
    }

    /// What DRAM has of a partial page, in `frame` or a mini page.
    pub(crate) fn partial_page(&self, id: PageId, frame: u32) -> PartialPage<'_> {
        let lines = self.lines.as_ref().expect("partial pages have lines");
        let part = match is_mini(frame) {
            true => Part::Mini(self.mini_page(frame)),
            false => Part::Frame(frame, self.words(id, frame)),
        };
        PartialPage::new(lines, part)
    }

    /// Takes an empty mini page in a frame that has others.
    pub(crate) fn take_mini(&self) -> Option<u32> {
        self.minis.as_ref()?.take(|mini| self.mini_page(mini).clear())
    }

    /// Frees a mini page.
    pub(crate) fn give_mini(&self, mini: u32) {
        self.minis.iter().for_each(|minis| minis.give(mini));
    }

    /// Headers of all mini pages. None comes or goes meanwhile.
    pub(crate) fn for_each_mini(&self, mut with: impl FnMut(Header<'_>)) {
        self.minis.iter().for_each(|minis| minis.for_each(|mini| with(self.header(mini))));
    }

    fn is_persistent(&self, partition: Partition) -> bool {
        self.persistent.is_some() && partition.tier == Tier::Middle
    }

    /// Bytes of addresses that [`Frames::reserve`] takes.
    ///
    /// Excludes the ranges that the mapped back end reserves later, per class.
    pub(crate) fn address_bytes(bytes_max: u64, middle: &ByClass<u32>) -> u64 {
        let counts = Frames::counts_max(bytes_max, middle);
        let headers = counts.iter().map(|&count| header_bytes(count)).max().unwrap_or(0).next_power_of_two();
        (Residency::frame_address_bytes(&counts) + headers * counts.len()) as u64
    }

    fn counts_max(bytes_max: u64, middle: &ByClass<u32>) -> ByPartition<u32> {
        let mut counts: ByPartition<u32> = [0; _];
        for class in SizeClass::all() {
            let count_max = bytes_max / (class.page_bytes() as u64 + HEADER_BYTES);
            counts[Partition::from(class).index()] = count_max.clamp(1, u64::from(FRAMES_MAX)) as u32;
            counts[Partition::middle(class).index()] = middle[class.index()];
        }
        counts
    }

    /// Sets the nodes of both tiers.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn on_nodes(self, options: &NodeOptions) -> io::Result<Frames> {
        if (options.dram.is_some() || options.middle.is_some()) && is_numa_balancing() {
            tracing::warn!(
                "the kernel moves pages between nodes on its own (kernel.numa_balancing), against what tiers ask for"
            );
        }
        let nodes = Placement::new(options);
        self.bytes.bind(&nodes)?;
        Ok(Frames { nodes, ..self })
    }

    pub(crate) fn nodes(&self) -> &Placement {
        &self.nodes
    }

    /// Whether the system migrates memory when a page changes tiers.
    pub(crate) fn moves_memory(&self) -> bool {
        self.backend() == Backend::Mapped && self.nodes.splits_addresses()
    }

    /// Whether a migrating page may read as zeros.
    pub(crate) fn takes_bytes_away(&self) -> bool {
        self.moves_memory() && self.nodes.takes_bytes_away()
    }

    pub(crate) fn backend(&self) -> Backend {
        self.bytes.backend()
    }

    /// Frames of a partition, with memory or not; a class means its DRAM partition.
    pub(crate) fn count(&self, partition: impl Into<Partition>) -> u32 {
        self.partitions[partition.into().index()].count.load(Acquire)
    }

    /// Frames of a partition that have memory.
    ///
    /// Acquire pairs with the store in `back`.
    pub(crate) fn backed(&self, partition: impl Into<Partition>) -> u32 {
        self.partitions[partition.into().index()].backed.load(Acquire)
    }

    pub(crate) fn count_max(&self, partition: impl Into<Partition>) -> u32 {
        self.partitions[partition.into().index()].count_max
    }

    pub(crate) fn classes(&self) -> impl DoubleEndedIterator<Item = SizeClass> {
        SizeClass::all().filter(|&class| self.count(class) > 0)
    }

    pub(crate) fn partitions(&self) -> impl DoubleEndedIterator<Item = Partition> {
        Partition::all().filter(|&partition| self.count(partition) > 0)
    }

    pub(crate) fn largest(&self) -> SizeClass {
        self.classes().next_back().unwrap_or(SizeClass::SMALLEST)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = u32> {
        self.partitions().flat_map(|partition| self.of(partition))
    }

    /// The frames of a partition that have memory.
    pub(crate) fn of(&self, partition: Partition) -> impl Iterator<Item = u32> + use<> {
        (0..self.backed(partition)).map(move |index| partition.frame(index))
    }

    pub(crate) fn has(&self, frame: u32) -> bool {
        Partition::from_index(partition_index_of(frame))
            .is_some_and(|partition| index_of(frame) < self.backed(partition))
    }

    /// Lets a partition have `count` frames, still without memory. One caller at a time.
    ///
    /// # Errors
    /// Out of addresses, or the nodes of the partition lack room; nothing has changed.
    pub(crate) fn grow(&self, partition: impl Into<Partition>, count: u32) -> io::Result<()> {
        let partition = partition.into();
        let one = &self.partitions[partition.index()];
        debug_assert!(self.count(partition) <= count && count <= one.count_max);
        #[cfg(test)]
        super::residency_tests::refuse_growth()?;
        if !self.is_persistent(partition) {
            self.bytes.prepare(partition, self.backed(partition)..count, &self.nodes)?;
        }
        one.count.store(count, Release);
        Ok(())
    }

    /// The next chunk of frames to get memory, up to index `limit`. Empty if all have it.
    pub(crate) fn next_chunk(&self, partition: Partition, limit: u32) -> Range<u32> {
        let (old, chunk) = (self.backed(partition), Frames::chunk(partition));
        // Chunks end where huge pages do.
        let count = (old / chunk + 1).saturating_mul(chunk).min(limit);
        old..count.max(old)
    }

    /// Frames that get memory together.
    pub(crate) fn chunk(partition: Partition) -> u32 {
        (CHUNK_BYTES / partition.class.page_bytes()).max(1) as u32
    }

    /// Puts memory behind the [`Frames::next_chunk`] of a partition. One caller at a time, and it
    /// needs no lock.
    ///
    /// # Errors
    /// Out of memory; nothing has changed.
    pub(crate) fn back(&self, partition: Partition, chunk: Range<u32>) -> io::Result<()> {
        debug_assert_eq!(chunk.start, self.backed(partition));
        #[cfg(test)]
        super::residency_tests::while_backing();
        let headers = self.headers.commit(self.headers_of(partition, chunk.clone()));
        let committed = headers.and_then(|()| match self.is_persistent(partition) {
            true => Ok(()),
            false => self.bytes.back(partition, chunk.clone(), &self.nodes),
        });
        if let Err(error) = committed {
            self.release(partition, chunk)?;
            return Err(error);
        }
        self.partitions[partition.index()].backed.store(chunk.end, Release);
        Ok(())
    }

    /// Grows a partition to `count` frames with memory.
    #[cfg(test)]
    pub(crate) fn grow_backed(&self, partition: impl Into<Partition>, count: u32) -> io::Result<()> {
        let partition = partition.into();
        self.grow(partition, count)?;
        loop {
            let chunk = self.next_chunk(partition, count);
            if chunk.is_empty() {
                return Ok(());
            }
            self.back(partition, chunk)?;
        }
    }

    /// Shrinks a partition to `count` frames. One caller at a time.
    ///
    /// The removed frames hold nothing, and no thread may receive one meanwhile. A late reader sees
    /// zeros and a changed version.
    ///
    /// # Errors
    /// Those of the system; the number of frames is unchanged.
    pub(crate) fn shrink(&self, partition: impl Into<Partition>, count: u32) -> io::Result<()> {
        let partition = partition.into();
        let one = &self.partitions[partition.index()];
        debug_assert!(count <= self.count(partition));
        let backed = self.backed(partition);
        if count < backed {
            self.release(partition, count..backed)?;
            one.backed.store(count, Release);
        }
        one.count.store(count, Release);
        Ok(())
    }

    /// The header of a frame or mini page.
    #[inline]
    pub(crate) fn header(&self, frame: u32) -> Header<'_> {
        if is_mini(frame) {
            return self.header_of_mini(frame);
        }
        let at = partition_index_of(frame) << self.headers_shift;
        let at = at + index_of(frame) as usize * HEADER_BYTES as usize;
        let words = self.headers.words(at..at + HEADER_BYTES as usize);
        let [page, mapped, rec_lsn, next_rec_lsn, middle_copy_and_read_reason, before, behind, standing] =
            words
        else {
            unreachable!("eight words were asked for");
        };
        let links = Links { before, behind, standing };
        Header { page, mapped, rec_lsn, next_rec_lsn, middle_copy_and_read_reason, links }
    }

    #[cold]
    #[inline(never)]
    fn header_of_mini(&self, mini: u32) -> Header<'_> {
        let frame = self.minis.as_ref().map_or(0, |minis| minis.frame_of(mini));
        self.mini_page(mini).header(self.header(frame).links)
    }

    /// Ends a frame's hold on its page, if it has one. No other function does so.
    ///
    /// The caller holds the page's exclusive latch, or owns the frame.
    pub(crate) fn vacate(&self, frame: u32) {
        if !planted(Bug::KeepSealOfVacated) {
            self.unseal(frame);
        }
        self.header(frame).page.store(PageId::NONE.0, Relaxed);
    }

    /// Fails in a forked child, which lacks the memory of a persistent middle tier.
    #[inline]
    pub(crate) fn check_process(&self) -> Result<()> {
        self.persistent.as_ref().map_or(Ok(()), PersistentFrames::check_process)
    }

    /// Makes sure that a crash finds `frame` unsealed: before it changes, or lets its page go.
    #[inline]
    pub(crate) fn unseal(&self, frame: u32) {
        if let Some(persistent) = &self.persistent
            && is_middle(frame)
        {
            persistent.unseal(frame);
        }
    }

    /// Takes `frame` for unsealed, whatever its header says: a planted fault.
    pub(crate) fn forget_seal(&self, frame: u32) {
        self.persistent
            .iter()
            .filter(|_| is_middle(frame))
            .for_each(|persistent| persistent.forget_seal(frame));
    }

    /// Unseals the middle copy in `frame` if it is older than `image`, which comes into force.
    pub(crate) fn unseal_older(&self, frame: u32, image: Lsn) {
        self.persistent.iter().for_each(|persistent| persistent.unseal_older(frame, image));
    }

    /// Unseals `frame` and announces stores to it.
    #[inline]
    pub(crate) fn begin_stores(&self, frame: u32) {
        if let Some(persistent) = &self.persistent
            && is_middle(frame)
        {
            if !planted(Bug::UnsealLate) {
                persistent.unseal(frame);
            }
            persistent.note_stores(frame);
        }
    }

    /// Ends stores to `frame`.
    #[inline]
    pub(crate) fn end_stores(&self, frame: u32) {
        if planted(Bug::UnsealLate) {
            self.unseal(frame);
        }
    }

    #[inline(always)]
    pub(crate) fn words(&self, id: PageId, frame: u32) -> &[AtomicU64] {
        self.bytes.words(id, frame)
    }

    /// The addresses of frames, if they are those of pages.
    #[inline(always)]
    pub(crate) fn fixed(&self) -> Option<&Fixed> {
        self.bytes.fixed()
    }

    /// The content of page `id`: read it latched, or validate.
    #[inline(always)]
    pub(crate) fn view(&self, id: PageId, frame: u32) -> Racy<'_> {
        Racy::new(self.words(id, frame))
    }

    /// Stores the content of page `id`, new in `frame`.
    ///
    /// The caller holds the exclusive latch. Does not compare first: the old bytes are another
    /// page's.
    pub(crate) fn fill(&self, id: PageId, frame: u32, content: &[u8]) {
        debug_assert_eq!(content.len(), class_of(frame).page_bytes());
        self.view(id, frame).set_bytes(0, content);
    }

    /// Replaces the content of page `id` in `frame`.
    ///
    /// The caller holds the exclusive latch. Stores only words that differ, to dirty few cache
    /// lines.
    pub(crate) fn store(&self, id: PageId, frame: u32, content: &[u8]) {
        debug_assert_eq!(content.len(), class_of(frame).page_bytes());
        for (word, bytes) in self.words(id, frame).iter().zip(content.chunks_exact(8)) {
            let new = u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
            if word.load(Relaxed) != new {
                word.store(new, Relaxed);
            }
        }
    }

    pub(crate) fn resident_bytes(&self, class: SizeClass) -> u64 {
        match self.bytes.resident_bytes(class) {
            Some(bytes) => bytes,
            None => u64::from(self.backed(class)) * class.page_bytes() as u64,
        }
    }

    pub(crate) fn huge_pages(&self, class: SizeClass) -> bool {
        self.bytes.huge_pages(class)
    }

    pub(crate) fn tables_bytes(&self, ends: &ByClass<u64>) -> u64 {
        let pages = SizeClass::all().map(|class| ends[class.index()] * class.page_bytes() as u64);
        self.bytes.tables_bytes(pages.sum())
    }

    pub(crate) fn page_at(&self, address: usize) -> Option<PageId> {
        let page_in = |frame: u32| match self.has(frame) {
            true => self.header(frame).page(),
            false => PageId::NONE,
        };
        self.bytes.page_at(address, page_in).filter(|id| !id.is_none())
    }

    pub(crate) fn populate(&self, pages: &[PageFrame]) -> io::Result<()> {
        self.bytes.populate(pages, &self.nodes)
    }

    pub(crate) fn discard(&self, pages: &[PageFrame]) -> io::Result<()> {
        self.bytes.discard(pages)
    }

    pub(crate) fn migrate(&self, pages: &[PageId], tier: Tier) -> Vec<bool> {
        self.bytes.migrate(pages, tier, &self.nodes)
    }

    #[cfg(test)]
    pub(crate) fn nodes_of(&self, id: PageId, frame: u32) -> Vec<u32> {
        self.bytes.nodes_of(id, frame)
    }

    /// The words of a frame that holds no page.
    ///
    /// Valid between [`Frames::populate_own`] and [`Frames::discard_own`].
    #[inline(always)]
    pub(crate) fn own_words(&self, frame: u32) -> &[AtomicU64] {
        self.bytes.own_words(frame)
    }

    /// Allocates memory for frames without pages. Its content is unspecified.
    pub(crate) fn populate_own(&self, frames: &[u32]) -> io::Result<()> {
        self.bytes.populate_own(frames, &self.nodes)
    }

    pub(crate) fn discard_own(&self, frames: &[u32]) -> io::Result<()> {
        self.bytes.discard_own(frames)
    }

    /// Copies between frames without pages. No thread may write to either meanwhile.
    pub(crate) fn copy_own(&self, from: u32, to: u32) {
        debug_assert_eq!(class_of(from), class_of(to));
        for (from, to) in self.own_words(from).iter().zip(self.own_words(to)) {
            to.store(from.load(Relaxed), Relaxed);
        }
    }

    /// Copies page `id` between two frames, under its exclusive latch.
    ///
    /// Does nothing where a page keeps its address in every frame.
    pub(crate) fn copy_page(&self, id: PageId, from: u32, to: u32) {
        debug_assert_eq!(class_of(from), class_of(to));
        if self.backend() == Backend::Frames {
            for (from, to) in self.words(id, from).iter().zip(self.words(id, to)) {
                to.store(from.load(Relaxed), Relaxed);
            }
        }
    }

    /// The frame of a page at `location`, and the middle copy below if that frame lacks lines.
    pub(crate) fn whole_copy(&self, location: Location) -> Option<(u32, Option<u32>)> {
        let frame = location.frame()?;
        match location {
            Location::Partial(_) if !planted(Bug::ImageOfHalfAPage) => {
                Some((frame, self.header(frame).middle_copy()))
            }
            _ => Some((frame, None)),
        }
    }

    /// Copies the content of page `id` in `frame`, as far as lines are dirty over that in `below`.
    ///
    /// The caller holds the page's latch.
    pub(crate) fn copy_whole(&self, id: PageId, (frame, below): (u32, Option<u32>), to: &mut [u8]) {
        let Some(below) = below else { return self.view(id, frame).copy_to(0, to) };
        self.view(id, below).copy_to(0, to);
        let page = self.partial_page(id, frame);
        for line in page.dirty().flatten() {
            let words = page.line(line).expect("dirty lines are resident");
            Racy::new(words).copy_to(0, &mut to[page.masks().bytes(line..line + 1)]);
        }
    }

    fn release(&self, partition: Partition, frames: Range<u32>) -> io::Result<()> {
        self.headers.release(self.headers_of(partition, frames.clone()))?;
        self.bytes.shrink(partition, frames.start, frames.end)
    }

    fn headers_of(&self, partition: Partition, frames: Range<u32>) -> Range<usize> {
        let start = partition.index() << self.headers_shift;
        start + header_bytes(frames.start)..start + header_bytes(frames.end)
    }
}

fn header_bytes(count: u32) -> usize {
    (count as usize * HEADER_BYTES as usize).next_multiple_of(GRANULE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::super::partition::partition_of;
    use super::super::read_reason::ReadReason;
    use super::*;

    #[test]
    fn what_is_below_and_why_a_page_was_read_share_a_word() {
        let frames = Frames::reserve(1 << 20, &[0; _], Backend::Frames, 1 << 10).unwrap();
        frames.grow_backed(SizeClass::SMALLEST, 1).unwrap();
        let header = frames.header(0);
        assert_eq!((header.middle_copy(), header.take_read_reason()), (None, None));
        header.set_read_reason(Some(ReadReason::Ahead));
        header.set_middle_copy(Some(1 << 27));
        assert_eq!(
            (header.middle_copy(), header.take_read_reason()),
            (Some(1 << 27), Some(ReadReason::Ahead))
        );
        assert_eq!((header.middle_copy(), header.take_read_reason()), (Some(1 << 27), None));
        header.set_read_reason(Some(ReadReason::Wanted));
        header.set_middle_copy(None);
        assert_eq!((header.middle_copy(), header.take_read_reason()), (None, Some(ReadReason::Wanted)));
    }

    #[test]
    fn frames_of_each_class_are_as_long_as_its_pages_and_apart() {
        for backend in Backend::ALL {
            let mut middle = [2; SizeClass::COUNT];
            middle[0] = 40;
            let frames = Frames::reserve(24 << 20, &middle, backend, 1 << 13).unwrap();
            assert_eq!((frames.all().count(), frames.backend()), (0, backend));
            let more = |class: SizeClass| if class.is_for_values() { 0 } else { class.index() as u32 };
            let counts: Vec<_> = SizeClass::all().map(|class| (class, 3 + more(class))).collect();
            for &(class, count) in &counts {
                frames.grow_backed(class, count).unwrap();
            }
            let below = |class: SizeClass| middle[class.index()];
            SizeClass::all()
                .for_each(|class| frames.grow_backed(Partition::middle(class), below(class)).unwrap());
            let all: Vec<u32> = frames.all().collect();
            assert_eq!(
                all.len() as u32,
                middle.iter().sum::<u32>() + counts.iter().map(|(_, count)| count).sum::<u32>()
            );
            let page = |frame| {
                let index = u64::from(index_of(frame)) + 5 + 8 * u64::from(is_middle(frame));
                PageId::new(class_of(frame), index)
            };
            let pages: Vec<PageFrame> = all.iter().map(|&frame| (page(frame), frame)).collect();
            frames.populate(&pages).unwrap();
            for (number, &(id, frame)) in pages.iter().enumerate() {
                assert_eq!(partition_of(frame).frame(index_of(frame)), frame);
                assert_eq!(frames.words(id, frame).len() * 8, class_of(frame).page_bytes());
                frames.words(id, frame).iter().for_each(|word| word.store(number as u64, Relaxed));
                frames.header(frame).set_page(PageId(number as u64 + 100));
            }
            for (number, &(id, frame)) in pages.iter().enumerate() {
                let holds = |word: &AtomicU64| word.load(Relaxed) == number as u64;
                assert!(frames.words(id, frame).iter().all(holds), "{frame:x}");
                assert_eq!(frames.header(frame).page(), PageId(number as u64 + 100));
            }
            let class = SizeClass::from_index(2).unwrap();
            let is_above = |&(id, frame): &PageFrame| id.class() == Some(class) && !is_middle(frame);
            let of_class: Vec<PageFrame> = pages.iter().copied().filter(is_above).collect();
            frames.discard(&of_class).unwrap();
            frames.shrink(class, 0).unwrap();
            assert_eq!(frames.classes().count(), SizeClass::COUNT - 1);
            assert_eq!(frames.all().filter(|frame| all.contains(frame)).count(), all.len() - 5);
            frames.grow_backed(class, 2).unwrap();
            let (id, frame) = of_class[1];
            assert!(frames.words(id, frame).iter().all(|word| word.load(Relaxed) == 0));
            assert!(frames.header(frame).page().is_none());
            assert_eq!(frames.largest(), SizeClass::LARGEST);
            let (id, frame) = *pages.last().unwrap();
            frames.discard(&[(id, frame)]).unwrap();
            frames.shrink(partition_of(frame), 1).unwrap();
            assert!(!frames.has(frame) && frames.words(id, frame).iter().all(|word| word.load(Relaxed) == 0));
        }
    }
}
