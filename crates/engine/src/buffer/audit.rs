//! Counting anew who owns which place of the page file, and holding that against what is kept count of.
//!
//! Every place has at most one owner: a page, a chunk or a directory block. What the segments count as live must be
//! what is owned, and what is granted must be the places of the pages that have no image yet. Holds whenever no change is under way.

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;

use super::fifo::Entry as InLine;
use super::pool::{Pool, class_of_page, places_granted};
use super::queues::Queue;
use super::stripe::{ByStripe, Stripe, is_middle, stripe_index_of};
use super::table::Location;
use crate::backend::Backend;
use crate::ids::{PageId, SizeClass};
use crate::store::place::Extent;

impl Pool {
    /// What does not add up, in words; nothing if all is well. To be asked while nobody changes pages.
    pub(crate) fn audit(&self) -> Vec<String> {
        let budget = self.resizing.lock();
        let upkeep = self.upkeep.lock();
        let mut faults = Vec::new();
        let mut owners: HashMap<u64, String> = HashMap::new();
        let mut own = |extent: Option<Extent>, owner: String| {
            for place in extent.into_iter().flat_map(|extent| extent.first..extent.end()) {
                if let Some(other) = owners.insert(place, owner.clone()) {
                    faults.push(format!("place {place} belongs to {other} and to {owner}"));
                }
            }
        };
        let mut unplaced = 0;
        let mut in_frames: ByStripe<u64> = [0; _];
        let mut misplaced = Vec::new();
        for id in self.page_ids() {
            let state = self.durable_state(id);
            own(state.extent(), format!("page {id}"));
            let entry = self.table.entry(id).expect("ids in use are within the table");
            let in_frame = matches!(entry.location(), Location::Frame(_));
            if let Location::Frame(frame) = entry.location() {
                if self.frames.has(frame) {
                    in_frames[stripe_index_of(frame)] += 1;
                    let below = self.audit_copies(id, frame, &mut misplaced);
                    in_frames[Stripe::middle(class_of_page(id)).index()] += u64::from(below);
                } else {
                    misplaced
                        .push(format!("page {id} is in frame {frame}, and there is none of that number"));
                }
            }
            let is_granted = !state.has_image() && (in_frame || state.is_allocated());
            unplaced += if is_granted { places_granted(id) } else { 0 };
        }
        for (name, chunk) in upkeep.mapping.chunks().iter() {
            own(chunk.image.extent(), format!("chunk {name}"));
        }
        for (name, block) in upkeep.mapping.blocks().iter() {
            own(block.image.extent(), format!("directory block {name}"));
        }
        faults.append(&mut misplaced);
        let (live, granted) = self.space.counts();
        let mut counted = vec![0; live.len()];
        for &place in owners.keys() {
            match self.space.geometry().segment_of(place).and_then(|at| counted.get_mut(at as usize)) {
                Some(count) => *count += 1,
                None => faults.push(format!("place {place} is outside the file")),
            }
        }
        for (segment, (live, counted)) in live.iter().zip(&counted).enumerate() {
            if live != counted {
                faults.push(format!("segment {segment} counts {live} live places and has {counted}"));
            }
        }
        if granted != unplaced {
            faults.push(format!("{granted} places are granted, to pages that have no image {unplaced}"));
        }
        for stripe in self.frames.stripes() {
            self.audit_frames(stripe, in_frames[stripe.index()], &mut faults);
        }
        for class in self.frames.classes() {
            let stripes = [class.into(), Stripe::middle(class)];
            let in_frames = stripes.into_iter().map(|stripe: Stripe| in_frames[stripe.index()]).sum();
            self.audit_memory(class, in_frames, &mut faults);
        }
        let copies = self.middle_stats().map_or(0, |middle| middle.copies);
        let both = self.frames.all().filter(|&frame| self.frames.header(frame).below().is_some()).count();
        if copies != both as u64 {
            faults.push(format!("{copies} pages are counted that have two copies, and {both} have"));
        }
        let (taken, given) = (self.bytes_of_frames(), budget.for_frames(self.frames.largest()));
        if taken > given {
            faults.push(format!("frames take {taken} bytes, and they were given {given}"));
        }
        faults
    }

    /// Whether a page in `frame` has another copy below it, which is as it should be.
    fn audit_copies(&self, id: PageId, frame: u32, faults: &mut Vec<String>) -> bool {
        let header = self.frames.header(frame);
        if header.page() != id {
            faults.push(format!("page {id} is in frame {frame}, which holds page {}", header.page()));
        }
        let Some(below) = header.below() else { return false };
        let lower = self.frames.header(below);
        if is_middle(frame) || !is_middle(below) || !self.frames.has(below) || lower.page() != id {
            faults
                .push(format!("below page {id} in frame {frame} is frame {below} of page {}", lower.page()));
        }
        if !lower.recovery().is_none() {
            faults.push(format!("the copy of page {id} in frame {below} holds the log back"));
        }
        let version = self.table.entry(id).expect("ids in use are within the table").latch().load().version();
        let words = |frame| self.frames.words(id, frame).iter().map(|word| word.load(Relaxed));
        if lower.equal_at() == version && !words(frame).eq(words(below)) {
            faults.push(format!("the copies of page {id} in frames {frame} and {below} are not equal"));
        }
        true
    }

    /// Whether each frame of `stripe` is free, or a record's, or one of the `in_frames` that hold a page.
    fn audit_frames(&self, stripe: Stripe, in_frames: u64, faults: &mut Vec<String>) {
        let (count, free) = (self.frames.count(stripe), self.free(stripe).lock());
        if free.limit != count || !free.parked.is_empty() {
            faults.push(format!("{} frames are given out, {} are kept back", free.limit, free.parked.len()));
        }
        if let Some(frame) = free.list.iter().find(|&&frame| !self.frames.has(frame)) {
            faults.push(format!("frame {frame} is free, but there is none of that number"));
        }
        if let Some(fifo) = &free.queues.fifo {
            let places = |frame: u32| {
                let id = self.frames.header(frame).page();
                let entry = self.table.entry(id).filter(|_| !id.is_none())?;
                let in_line = fifo.count(InLine { page: id, version: entry.latch().load().version() });
                Some(in_line + usize::from(free.queues.is_laundry(&self.frames, frame)))
            };
            let odd = self.frames.of(stripe).filter_map(|frame| Some((frame, places(frame)?)));
            let odd = odd.filter(|&(_, places)| places != 1);
            faults.extend(odd.map(|(frame, places)| format!("frame {frame} is {places} times in line")));
        }
        let idle = free.list.len() as u64;
        let queues = [Queue::Probation, Queue::Main, Queue::Laundry];
        let queued: u32 = queues.into_iter().map(|queue| free.queues.len(queue)).sum();
        drop(free);
        if u64::from(queued) != in_frames {
            faults.push(format!("{in_frames} frames are used and {queued} are in a queue"));
        }
        let records = u64::from(count - self.page_frames(stripe));
        if idle + in_frames + records != u64::from(count) {
            faults.push(format!(
                "{idle} frames are free, {in_frames} are pages' and {records} are records', of {count}"
            ));
        }
    }

    /// Whether pages in frames have the memory for them, and nothing else has any.
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
