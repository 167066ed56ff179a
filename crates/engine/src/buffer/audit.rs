//! Counting anew who owns which place of the page file, and holding that against what is kept count of.
//!
//! Every place has at most one owner: a page, a chunk or a directory block. What the segments count as live must be
//! what is owned, and what is granted must be the places of the pages that have no image yet. Holds whenever no change is under way.

use std::collections::HashMap;

use super::fifo::Entry as InLine;
use super::pool::{Pool, class_of_page, places_granted};
use super::queues::Queue;
use super::table::Location;
use crate::backend::Backend;
use crate::ids::SizeClass;
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
        let mut in_frames = [0; SizeClass::COUNT];
        let mut misplaced = Vec::new();
        for id in self.page_ids() {
            let state = self.durable_state(id);
            own(state.extent(), format!("page {id}"));
            let entry = self.table.entry(id).expect("ids in use are within the table");
            let in_frame = matches!(entry.location(), Location::Frame(_));
            if let Location::Frame(frame) = entry.location()
                && !self.frames.has(frame)
            {
                misplaced.push(format!("page {id} is in frame {frame}, and there is none of that number"));
            }
            in_frames[class_of_page(id).index()] += u64::from(in_frame);
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
        for class in self.frames.classes() {
            self.audit_frames(class, in_frames[class.index()], &mut faults);
        }
        let (taken, given) = (self.bytes_of_frames(), budget.for_frames(self.frames.largest()));
        if taken > given {
            faults.push(format!("frames take {taken} bytes, and they were given {given}"));
        }
        faults
    }

    /// Whether each frame of `class` is free, or a record's, or one of the `in_frames` that hold a page.
    fn audit_frames(&self, class: SizeClass, in_frames: u64, faults: &mut Vec<String>) {
        let (count, free) = (self.frames.count(class), self.free(class).lock());
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
            let odd = self.frames.of(class).filter_map(|frame| Some((frame, places(frame)?)));
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
        let records = u64::from(count - self.page_frames(class));
        if idle + in_frames + records != u64::from(count) {
            faults.push(format!(
                "{idle} frames are free, {in_frames} are pages' and {records} are records', of {count}"
            ));
        }
        let resident = self.frames.resident_bytes(class);
        if self.backend() == Backend::Mapped && resident != (in_frames + records) * class.page_bytes() as u64
        {
            faults.push(format!(
                "{resident} bytes are resident, of {in_frames} pages and {records} frames of records"
            ));
        }
    }
}
