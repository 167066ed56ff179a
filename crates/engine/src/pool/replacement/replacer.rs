//! The replacer: free lists, queues and frame requests, one lock per partition.

use std::io;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering::Relaxed};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::fifo::{Entry as InLine, Fifo};
use super::queues::Queues;
use super::reserve::ReservedFrames;
use crate::ids::{PageId, SizeClass};
use crate::pool::frames::Frames;
use crate::pool::frames::partition::{ByPartition, Partition, index_of, is_mini, partition_of};
use crate::pool::page_table::{Entry, Location};
use crate::pool::resident::Resident;
use crate::replacement::Replacement;

/// Frames evicted together, to amortise the lock.
pub(crate) const BATCH: usize = 32;
/// Frames evicted together if their memory migrates, to amortise the system call.
const BATCH_OF_MEMORY: usize = 128;

/// Free frames of one partition, and the eviction order of the others.
#[derive(Debug)]
pub(crate) struct FreeFrames {
    pub(crate) partition: Partition,
    pub(crate) list: Vec<u32>,
    pub(crate) queues: Queues,
    /// Frames from this index on are held back for removal (`resize.rs`).
    ///
    /// Normally the number of frames.
    pub(crate) limit: u32,
    /// Empty frames beyond the limit.
    pub(crate) parked: Vec<u32>,
    /// Frames in no list, whose pages leave without the lock.
    pub(crate) leaving: usize,
    /// Whether a thread puts memory behind the next chunk, without the lock.
    pub(crate) is_backing: bool,
    /// Threads that wait for that, or for a frame that another thread gives back.
    pub(crate) waiting: u32,
}

impl FreeFrames {
    pub(crate) fn none(partition: Partition, ghost_least: u32, replacement: Replacement) -> FreeFrames {
        let queues = Queues::new(partition.class, ghost_least, replacement);
        FreeFrames {
            partition,
            list: Vec::new(),
            queues,
            limit: 0,
            parked: Vec::new(),
            leaving: 0,
            is_backing: false,
            waiting: 0,
        }
    }

    /// Lets frames up to `limit` be given out, which have no memory yet.
    pub(crate) fn gain(&mut self, limit: u32) {
        self.limit = limit;
        self.queues.resize(limit);
    }

    /// Whether few frames are free and more can get memory, which no thread sees to.
    pub(crate) fn is_low(&self, frames: &Frames) -> bool {
        self.list.len() < Frames::chunk(self.partition) as usize / 2
            && !self.is_backing
            && frames.backed(self.partition) < self.limit
    }

    /// Frames without a page, with memory or not.
    pub(crate) fn idle(&self, frames: &Frames) -> u64 {
        let without_memory = frames.count(self.partition).saturating_sub(frames.backed(self.partition));
        self.list.len() as u64 + u64::from(without_memory)
    }

    pub(crate) fn keep_back(&mut self, limit: u32) {
        self.limit = limit;
        self.parked = self.list.extract_if(.., |frame| index_of(*frame) >= limit).collect();
        self.list.shrink_to_fit();
    }

    pub(crate) fn keep_nothing_back(&mut self, count: u32) {
        self.limit = count;
        let parked = std::mem::take(&mut self.parked);
        self.list.extend(parked);
    }

    pub(crate) fn give(&mut self, frame: u32) {
        if index_of(frame) < self.limit { self.list.push(frame) } else { self.parked.push(frame) }
    }
}

#[derive(Debug)]
pub(crate) struct Replacer {
    free: ByPartition<Mutex<FreeFrames>>,
    /// Signals that a chunk has memory or a frame was given back.
    more: ByPartition<Condvar>,
    /// One bit per partition that is low on frames with memory.
    low: AtomicU32,
    kind: Replacement,
    /// The class that the record cache borrows from.
    own: SizeClass,
    /// Frames that the record cache holds.
    lent: AtomicU32,
    /// One bit per partition with threads waiting for a frame.
    wanting: AtomicU32,
    /// One bit per class for which a thread has waited in vain.
    ///
    /// Other waiting threads hold its frames.
    starving: AtomicU16,
    pub(in crate::pool) reserved: ReservedFrames,
}

impl Replacer {
    pub(crate) fn new(free: ByPartition<FreeFrames>, kind: Replacement, own: SizeClass) -> Replacer {
        Replacer {
            free: free.map(Mutex::new),
            more: Default::default(),
            low: AtomicU32::new(0),
            kind,
            own,
            lent: AtomicU32::new(0),
            wanting: AtomicU32::new(0),
            starving: AtomicU16::new(0),
            reserved: ReservedFrames::default(),
        }
    }

    pub(crate) fn kind(&self) -> Replacement {
        self.kind
    }

    /// The free frames of a partition. A thread locks at most one partition at a time.
    pub(crate) fn free(&self, partition: impl Into<Partition>) -> &Mutex<FreeFrames> {
        &self.free[partition.into().index()]
    }

    /// Puts memory behind the next chunk of frames and frees them. Without the lock, so that other
    /// threads take and give back frames meanwhile. Does nothing if all have memory, or another
    /// thread does so.
    ///
    /// # Errors
    /// Out of memory; nothing has changed.
    pub(crate) fn back_more(&self, frames: &Frames, free: &mut MutexGuard<'_, FreeFrames>) -> io::Result<()> {
        let (partition, limit) = (free.partition, free.limit);
        let chunk = frames.next_chunk(partition, limit);
        if chunk.is_empty() || free.is_backing {
            return Ok(());
        }
        free.is_backing = true;
        let backed = MutexGuard::unlocked(free, || frames.back(partition, chunk.clone()));
        free.is_backing = false;
        if backed.is_ok() {
            // Some may be beyond a new limit.
            chunk.rev().for_each(|index| free.give(partition.frame(index)));
        }
        self.more[partition.index()].notify_all();
        backed
    }

    /// Waits while no frame is free and another thread puts memory behind a chunk. That thread
    /// waits only for the lock of the free frames.
    pub(crate) fn wait_for_chunk(&self, free: &mut MutexGuard<'_, FreeFrames>) {
        let more = &self.more[free.partition.index()];
        while free.list.is_empty() && free.is_backing {
            free.waiting += 1;
            more.wait(free);
            free.waiting -= 1;
        }
    }

    /// Waits until no thread puts memory behind a chunk chosen under an earlier limit.
    pub(crate) fn wait_for_backing(&self, free: &mut MutexGuard<'_, FreeFrames>) {
        let more = &self.more[free.partition.index()];
        while free.is_backing {
            more.wait(free);
        }
    }

    /// Frees `frame`, which a waiting thread may take.
    pub(crate) fn give(&self, free: &mut FreeFrames, frame: u32) {
        free.give(frame);
        if free.waiting > 0 {
            self.more[free.partition.index()].notify_all();
        }
    }

    /// Notes that a partition is low on frames with memory. Returns whether it was not noted yet.
    pub(crate) fn note_low(&self, partition: Partition) -> bool {
        let bit = 1 << partition.index();
        self.low.load(Relaxed) & bit == 0 && self.low.fetch_or(bit, Relaxed) & bit == 0
    }

    /// Puts memory behind a chunk of the noted partitions that are still low.
    ///
    /// # Errors
    /// Out of memory; threads that need frames evict pages then.
    pub(crate) fn back_ahead(&self, frames: &Frames) -> io::Result<()> {
        if self.low.load(Relaxed) == 0 {
            return Ok(());
        }
        let low = self.low.swap(0, Relaxed);
        for partition in Partition::all().filter(|partition| low & 1 << partition.index() != 0) {
            let mut free = self.free(partition).lock();
            if free.is_low(frames) {
                self.back_more(frames, &mut free)?;
            }
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn lent(&self) -> u32 {
        self.lent.load(Relaxed)
    }

    pub(crate) fn lent_of(&self, partition: Partition) -> u32 {
        if partition == self.own.into() { self.lent() } else { 0 }
    }

    pub(crate) fn lend(&self, count: u32) {
        self.lent.fetch_add(count, Relaxed);
    }

    pub(crate) fn end_loan(&self, count: u32) {
        self.lent.fetch_sub(count, Relaxed);
    }

    pub(crate) fn page_frames(&self, resident: &Resident, partition: Partition) -> u32 {
        resident.frames.count(partition).saturating_sub(self.lent_of(partition))
    }

    /// Frees an empty frame or mini page.
    pub(crate) fn give_frame(&self, resident: &Resident, frame: u32) {
        if is_mini(frame) {
            return resident.frames.give_mini(frame);
        }
        debug_assert_eq!(resident.frames.header(frame).middle_copy(), None);
        resident.frames.vacate(frame);
        let mut free = self.free(partition_of(frame)).lock();
        free.queues.remove(&resident.frames, frame);
        self.give(&mut free, frame);
    }

    pub(crate) fn sweep_goal(&self, resident: &Resident, partition: Partition) -> usize {
        BATCH.min(self.batch_max(resident, partition))
    }

    /// Pages to evict together at most. `moves_memory`: the system migrates them to the middle
    /// tier.
    pub(crate) fn leave_goal(&self, resident: &Resident, partition: Partition, moves_memory: bool) -> usize {
        let batch = if moves_memory { BATCH_OF_MEMORY } else { BATCH };
        batch.min(self.batch_max(resident, partition))
    }

    fn batch_max(&self, resident: &Resident, partition: Partition) -> usize {
        self.page_frames(resident, partition) as usize / 4 + 1
    }

    pub(crate) fn note_wanting(&self, partition: impl Into<Partition>) {
        self.wanting.fetch_or(1 << partition.into().index(), Relaxed);
    }

    pub(crate) fn take_wanting(&self, partition: Partition) -> bool {
        let bit = 1 << partition.index();
        self.wanting.load(Relaxed) & bit != 0 && self.wanting.fetch_and(!bit, Relaxed) & bit != 0
    }

    pub(crate) fn take_all_wanting(&self) -> u32 {
        self.wanting.swap(0, Relaxed)
    }

    pub(crate) fn note_starving(&self, class: SizeClass) {
        self.starving.fetch_or(bit(class), Relaxed);
    }

    pub(crate) fn take_starving(&self) -> Option<SizeClass> {
        let starving = self.starving.load(Relaxed);
        let class = SizeClass::all().find(|&class| starving & bit(class) != 0)?;
        self.starving.fetch_and(!bit(class), Relaxed);
        Some(class)
    }

    /// Notes that page `id` was loaded or changed, and unlatched.
    #[inline]
    pub(crate) fn unlocked(&self, resident: &Resident, id: PageId, entry: Entry<'_>, frame: u32) {
        if self.kind.is_fifo_paper() {
            self.put_in_line(resident, id, entry, frame);
        }
    }

    #[cold]
    fn put_in_line(&self, resident: &Resident, id: PageId, entry: Entry<'_>, frame: u32) {
        entry.latch().mark();
        let version = entry.latch().load().version();
        let mut free = self.free(partition_of(frame)).lock();
        // A page in the dirty queue returns from there, marked. In both queues it would get two
        // looks a round.
        if !free.queues.is_dirty_queue(&resident.frames, frame) {
            line_up(resident, &mut free.queues, frame, InLine { page: id, version });
        }
    }
}

fn line_up(resident: &Resident, queues: &mut Queues, frame: u32, in_line: InLine) {
    let fifo = queues.fifo.as_mut().expect("pages stand in line where it says which go");
    let frames = resident.frames.count(partition_of(frame));
    fifo.push(in_line, frames, |other| stands(resident, other).is_some());
}

fn stands(resident: &Resident, in_line: InLine) -> Option<u32> {
    let entry = resident.table.entry(in_line.page).expect("pages in line are in the table");
    match entry.location() {
        Location::Frame(frame) if entry.latch().load().version() == in_line.version => Some(frame),
        _ => None,
    }
}

pub(super) fn first_in_line(resident: &Resident, fifo: &mut Fifo) -> Option<u32> {
    std::iter::from_fn(|| fifo.pop()).find_map(|in_line| stands(resident, in_line))
}

pub(super) fn back_into_line(resident: &Resident, queues: &mut Queues, frame: u32) {
    let id = resident.frames.header(frame).page();
    if let Some(entry) = resident.table.entry(id).filter(|_| !id.is_none())
        && !queues.is_dirty_queue(&resident.frames, frame)
    {
        let version = entry.latch().load().version();
        line_up(resident, queues, frame, InLine { page: id, version });
    }
}

fn bit(class: SizeClass) -> u16 {
    1 << class.index()
}
