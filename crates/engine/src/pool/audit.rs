//! Recounts the owners of blocks and frames, and compares with the counters.
//!
//! Every block has at most one owner: a page, a chunk or a directory block. The owned blocks must
//! equal the segments' live counts. The granted blocks must equal those of pages without an image.
//! This holds while no change is under way.

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;

use super::budget::FrameBudget;
use super::buffer_pool::Pool;
use super::frames::{Header, MiniPages, Queue};
use super::page_table::Location;
use super::partition::{ByPartition, Partition, is_middle, is_mini, partition_index_of};
use super::replacement::fifo::Entry as InLine;
use super::resident::{blocks_granted, class_of_page};
use crate::backend::Backend;
use crate::ids::{PageId, SizeClass};
use crate::store::mapping_word::{Extent, MappingWord};

impl Pool {
    /// Returns all inconsistencies as sentences. No thread may change pages meanwhile. `budget` is
    /// that of the frames. `durable_state` gives the mapping word that the page-table images hold
    /// for a page; `parts` are the extents of those images.
    pub(crate) fn audit_with(
        &self,
        budget: &FrameBudget,
        durable_state: &dyn Fn(PageId) -> MappingWord,
        parts: Vec<(Option<Extent>, String)>,
    ) -> Vec<String> {
        let mut faults = Vec::new();
        let mut owners: HashMap<u64, String> = HashMap::new();
        let mut own = |extent: Option<Extent>, owner: String| {
            for block in extent.into_iter().flat_map(|extent| extent.first..extent.end()) {
                if let Some(other) = owners.insert(block, owner.clone()) {
                    faults.push(format!("block {block} belongs to {other} and to {owner}"));
                }
            }
        };
        let mut unwritten = 0;
        let mut in_frames: ByPartition<u64> = [0; _];
        let (mut misplaced, mut mini_pages) = (Vec::new(), 0);
        for id in self.page_ids() {
            let state = durable_state(id);
            own(state.extent(), format!("page {id}"));
            // A free id may have no entry in a hash table.
            let Some(entry) = self.table.entry(id) else { continue };
            let in_frame = entry.location().frame().is_some();
            if let Some(frame) = entry.location().frame() {
                if is_mini(frame) || self.frames.has(frame) {
                    match is_mini(frame) {
                        true => mini_pages += 1,
                        false => in_frames[partition_index_of(frame)] += 1,
                    }
                    let below = self.audit_copies(id, frame, &mut misplaced);
                    in_frames[Partition::middle(class_of_page(id)).index()] += u64::from(below);
                } else {
                    misplaced
                        .push(format!("page {id} is in frame {frame}, and there is none of that number"));
                }
            }
            let is_granted = !state.has_image() && (in_frame || state.is_allocated());
            unwritten += if is_granted { blocks_granted(id) } else { 0 };
        }
        in_frames[Partition::from(self.class()).index()] += self.audit_minis(mini_pages, &mut misplaced);
        parts.into_iter().for_each(|(extent, name)| own(extent, name));
        faults.append(&mut misplaced);
        self.audit_space(owners.keys().copied(), unwritten, &mut faults);
        for partition in self.frames.partitions() {
            self.audit_frames(partition, in_frames[partition.index()], &mut faults);
        }
        for class in self.frames.classes() {
            let partitions = [class.into(), Partition::middle(class)];
            let in_frames =
                partitions.into_iter().map(|partition: Partition| in_frames[partition.index()]).sum();
            self.audit_memory(class, in_frames, &mut faults);
        }
        let copies = self.middle_stats().map_or(0, |middle| middle.copies);
        let has_copy = |header: &Header<'_>| header.middle_copy().is_some();
        let mut both = self.frames.all().map(|frame| self.frames.header(frame)).filter(has_copy).count();
        self.frames.for_each_mini(|header| both += usize::from(has_copy(&header)));
        if copies != both as u64 {
            faults.push(format!("{copies} pages are counted that have two copies, and {both} have"));
        }
        self.audit_budget(budget, &mut faults);
        faults
    }

    fn audit_budget(&self, budget: &FrameBudget, faults: &mut Vec<String>) {
        let (taken, given) = (self.bytes_of_frames(), budget.for_frames(self.frames.largest()));
        if taken > given {
            faults.push(format!("frames take {taken} bytes, and they were given {given}"));
        }
        if let Some(middle) = &budget.middle {
            let bytes = |class| u64::from(self.frames.count(Partition::middle(class))) * middle.cost(class);
            let (taken, given) = (SizeClass::all().map(bytes).sum::<u64>(), middle.bytes);
            if taken > given {
                faults.push(format!("frames of the middle tier take {taken} bytes of {given}"));
            }
        }
    }

    /// Compares the segments' counts with the `owned` blocks, and the granted blocks with those of
    /// pages without an image.
    fn audit_space(&self, owned: impl Iterator<Item = u64>, unwritten: u64, faults: &mut Vec<String>) {
        let (live, granted) = self.space.counts();
        let mut counted = vec![0; live.len()];
        for block in owned {
            match self.space.geometry().segment_of(block).and_then(|at| counted.get_mut(at as usize)) {
                Some(count) => *count += 1,
                None => faults.push(format!("block {block} is outside the file")),
            }
        }
        for (segment, (live, counted)) in live.iter().zip(&counted).enumerate() {
            if live != counted {
                faults.push(format!("segment {segment} counts {live} live blocks and has {counted}"));
            }
        }
        if granted != unwritten {
            faults.push(format!("{granted} blocks are granted, to pages that have no image {unwritten}"));
        }
    }

    /// Whether the page in `frame` has a middle copy; checks both copies.
    fn audit_copies(&self, id: PageId, frame: u32, faults: &mut Vec<String>) -> bool {
        let header = self.frames.header(frame);
        if header.page() != id {
            faults.push(format!("page {id} is in frame {frame}, which holds page {}", header.page()));
        }
        let entry = self.table.entry(id).expect("ids in use are within the table");
        let is_partial = entry.location() == Location::Partial(frame);
        let Some(below) = header.middle_copy() else {
            if is_partial {
                faults.push(format!("page {id} in frame {frame} lacks lines and a middle copy"));
            }
            return false;
        };
        let lower = self.frames.header(below);
        if is_middle(frame) || !is_middle(below) || !self.frames.has(below) || lower.page() != id {
            faults
                .push(format!("below page {id} in frame {frame} is frame {below} of page {}", lower.page()));
        }
        if !lower.rec_lsn().is_none() {
            faults.push(format!("the copy of page {id} in frame {below} holds the log back"));
        }
        let is_equal = match is_partial {
            true => self.clean_lines_are_equal(id, frame, below),
            false => {
                let (upper, lower) = (self.frames.words(id, frame), self.frames.words(id, below));
                upper.iter().zip(lower).all(|(upper, lower)| upper.load(Relaxed) == lower.load(Relaxed))
            }
        };
        if (is_partial || lower.equal_at() == entry.latch().load().version()) && !is_equal {
            faults.push(format!("the copies of page {id} in frames {frame} and {below} are not equal"));
        }
        true
    }

    /// Whether the resident lines of a partial page that are not dirty equal its middle copy.
    fn clean_lines_are_equal(&self, id: PageId, frame: u32, below: u32) -> bool {
        let (page, lower) = (self.frames.partial_page(id, frame), self.frames.words(id, below));
        page.numbers().filter(|&line| !page.is_dirty(line)).all(|line| {
            let words = page.line(line).unwrap_or_default().iter();
            words
                .zip(&lower[page.words_of(line)])
                .all(|(one, other)| one.load(Relaxed) == other.load(Relaxed))
        })
    }

    /// Checks that the slots in use are those of `pages` mini pages. Returns the frames that hold
    /// mini pages.
    fn audit_minis(&self, pages: u64, faults: &mut Vec<String>) -> u64 {
        let (used, known) = self.frames.minis.as_ref().map_or((0, 0), MiniPages::used);
        if used != pages {
            faults.push(format!("{used} slots of mini pages are used, by {pages} pages"));
        }
        let holds = |frame: &u32| self.frames.header(*frame).page() == PageId::MINI_PAGES;
        let frames = self.frames.all().filter(holds).count() as u64;
        if frames != known {
            faults.push(format!("{frames} frames say that they hold mini pages, {known} do"));
        }
        known
    }

    /// Checks the frames of `partition`. Each is free, lent to records, or one of `in_frames` that
    /// hold a page.
    fn audit_frames(&self, partition: Partition, in_frames: u64, faults: &mut Vec<String>) {
        let (count, free) = (self.frames.count(partition), self.replacer.free(partition).lock());
        if free.limit != count || !free.parked.is_empty() {
            faults.push(format!("{} frames are given out, {} are kept back", free.limit, free.parked.len()));
        }
        if let Some(frame) = free.list.iter().find(|&&frame| !self.frames.has(frame)) {
            faults.push(format!("frame {frame} is free, but there is none of that number"));
        }
        if let Some(fifo) = &free.queues.fifo {
            let blocks = |frame: u32| {
                let id = self.frames.header(frame).page();
                let entry = self.table.entry(id).filter(|_| !id.is_none())?;
                let in_line = fifo.count(InLine { page: id, version: entry.latch().load().version() });
                Some(in_line + usize::from(free.queues.is_dirty_queue(&self.frames, frame)))
            };
            let odd = self.frames.of(partition).filter_map(|frame| Some((frame, blocks(frame)?)));
            let odd = odd.filter(|&(_, blocks)| blocks != 1);
            faults.extend(odd.map(|(frame, blocks)| format!("frame {frame} is {blocks} times in line")));
        }
        let idle = free.idle(&self.frames);
        let queues = [Queue::Probation, Queue::Main, Queue::Dirty];
        let queued: u32 = queues.into_iter().map(|queue| free.queues.len(queue)).sum();
        drop(free);
        if u64::from(queued) != in_frames {
            faults.push(format!("{in_frames} frames are used and {queued} are in a queue"));
        }
        let records = u64::from(count - self.page_frames(partition));
        if idle + in_frames + records != u64::from(count) {
            faults.push(format!(
                "{idle} frames are free, {in_frames} are pages' and {records} are records', of {count}"
            ));
        }
    }

    /// Checks which pages and records have mapped memory.
    fn audit_memory(&self, class: SizeClass, in_frames: u64, faults: &mut Vec<String>) {
        let records = u64::from(self.frames.count(class) - self.page_frames(class));
        let resident = self.frames.resident_bytes(class);
        if self.backend() == Backend::Mapped && resident != (in_frames + records) * class.page_bytes() as u64
        {
            faults.push(format!(
                "{resident} bytes are resident, of {in_frames} pages and {records} frames of records"
            ));
        }
    }
}
