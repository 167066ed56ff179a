//! Space in the page file: equal segments, filled in order, reused when nothing in them is live.
//!
//! ```text
//!   0            32 KiB          + segment          ...
//!   superblocks  segment 0       segment 1          segment n
//! ```
//!
//! An image takes consecutive blocks of 4 KiB in one segment. A segment only counts its live
//! blocks; the page table knows them, and the cleaner reads the image headers. Recovery recounts.
//!
//! Two segments are filled at a time: one with changed images, one with those that the cleaner
//! moved, to separate hot from cold pages. Free segments are filled from the file's start, so that
//! free space gathers at its end (`compact.rs`).
//!
//! A fill limit bounds the granted page ids; it leaves room for the cleaner, and raises "disk full"
//! (docs/durability.md, rule 14). A page is granted all its blocks, so changing it needs no more
//! space, unless compression shortened its image. Those savings are not reserved
//! (`docs/decisions/0013-blocks-and-compression.md`): write-back grows the file for them, and
//! commits wait if it cannot. With several page sizes, the limit excludes the blocks at each
//! segment's end that the longest image may find too few: the cleaner must fit images again, in any
//! order.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use parking_lot::Mutex;
use terrace_io::BlockDevice;

use super::mapping_word::{BLOCK_BYTES, Extent, MappingWord};
use super::superblock::SUPERBLOCK_BYTES;
use crate::error::{Error, Result};

/// The file grows above this live share; with the reserve it is a third longer than the live data.
const GROW_FILL: f64 = 0.755;
/// Growth as a fraction of the file, up to [`GROW_MAX`] segments.
const GROW_SHARE: u64 = 64;
const GROW_MAX: u64 = 64;
/// If the file cannot grow, page ids are granted up to this share.
const FULL_FILL: f64 = 0.88;
/// Segments reserved for cleaner and checkpoint.
const RESERVED_SEGMENTS: u64 = 5;

pub(crate) const SEGMENTS_MIN: u64 = 8;

/// The reason for writing an image, which selects its segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    /// Its page changed.
    Changed = 0,
    /// Its segment is being emptied.
    Moved = 1,
}

impl Stream {
    fn other(self) -> Stream {
        match self {
            Stream::Changed => Stream::Moved,
            Stream::Moved => Stream::Changed,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Geometry {
    pub(crate) segment_blocks: u64,
}

impl Geometry {
    pub(crate) fn first_block(&self, segment: u64) -> u64 {
        SUPERBLOCK_BYTES / BLOCK_BYTES as u64 + segment * self.segment_blocks
    }

    /// The segment of a block; `None` inside the superblocks.
    pub(crate) fn segment_of(&self, block: u64) -> Option<u64> {
        block.checked_sub(self.first_block(0)).map(|blocks| blocks / self.segment_blocks)
    }

    pub(crate) fn segment_with(&self, extent: Extent) -> Option<u64> {
        let last = extent.end().checked_sub(1)?;
        self.segment_of(extent.first).filter(|&segment| self.segment_of(last) == Some(segment))
    }

    pub(crate) fn file_bytes(&self, segments: u64) -> u64 {
        self.first_block(segments) * BLOCK_BYTES as u64
    }
}

/// A segment being filled, and its next block.
#[derive(Clone, Copy, Debug)]
struct Open {
    segment: u64,
    used: u64,
}

/// Counted incarnations. Segments that share a count see it change more often.
const INCARNATIONS: usize = 1024;

#[derive(Debug, Default)]
struct Segments {
    /// Live blocks of each segment, including blocks just allocated.
    live: Vec<u32>,
    /// For each segment, the allocated blocks in total when it was last opened.
    filled_at: Vec<u64>,
    /// Segments without a live block that are not open.
    free: BTreeSet<u64>,
    open: [Option<Open>; 2],
    /// Blocks allocated since the database was opened.
    handed_out: u64,
    live_total: u64,
    /// Blocks granted to unwritten pages or promised to running commits.
    granted: u64,
    /// Blocks per segment that may stay empty, because image sizes are mixed.
    lost: u64,
    /// The largest request refused since the file was reported full; `None` when there is space.
    refused: Option<u64>,
    most: u64,
}

impl Segments {
    fn is_open(&self, segment: u64) -> bool {
        self.open.iter().flatten().any(|open| open.segment == segment)
    }

    fn open_room(&self, stream: Stream, segment_blocks: u64) -> u64 {
        self.open[stream as usize].map_or(0, |open| segment_blocks - open.used)
    }

    /// Whether images of these lengths, in blocks, fit with `spare` segments left free. Then
    /// shorter ones fit too: images are consecutive.
    fn has_room(
        &self,
        lengths: impl IntoIterator<Item = u64>,
        spare: u64,
        stream: Stream,
        segment_blocks: u64,
    ) -> bool {
        let mut room = self.open_room(stream, segment_blocks);
        let mut free = (self.free.len() as u64).saturating_sub(spare);
        // The other stream's segment is the last resort.
        let mut last = if spare == 0 { self.open_room(stream.other(), segment_blocks) } else { 0 };
        lengths.into_iter().all(|length| {
            if room < length {
                if free > 0 {
                    (free, room) = (free - 1, segment_blocks);
                } else {
                    (room, last) = (last, 0);
                }
            }
            let fits = length <= room;
            room = room.saturating_sub(length);
            fits
        })
    }

    /// Closes a segment. If it was emptied meanwhile, it becomes free.
    fn close(&mut self, stream: Stream) {
        if let Some(Open { segment, .. }) = self.open[stream as usize].take()
            && self.live[segment as usize] == 0
        {
            self.free.insert(segment);
        }
    }

    /// The segment for the next image of `stream`, of `length` blocks. It has room.
    fn next(
        &mut self,
        stream: Stream,
        length: u64,
        segment_blocks: u64,
        incarnations: &[AtomicU32],
    ) -> &mut Open {
        if self.open_room(stream, segment_blocks) < length {
            self.close(stream);
            if let Some(segment) = self.free.pop_first() {
                // Relaxed: the latch under which an image there is published also publishes this.
                incarnations[segment as usize % INCARNATIONS].fetch_add(1, Relaxed);
                self.filled_at[segment as usize] = self.handed_out;
                self.open[stream as usize] = Some(Open { segment, used: 0 });
            } else {
                return self.open[stream.other() as usize].as_mut().expect("there is room");
            }
        }
        self.open[stream as usize].as_mut().expect("open by now")
    }
}

#[derive(Debug)]
pub(crate) struct Space {
    device: Arc<dyn BlockDevice>,
    geometry: Geometry,
    segments: Mutex<Segments>,
    incarnations: Box<[AtomicU32]>,
}

impl Space {
    /// Space of a file with `segments` segments, none of them live; recovery calls `count` for live
    /// images, then `end_count`.
    pub(crate) fn new(
        device: Arc<dyn BlockDevice>,
        geometry: Geometry,
        segments: u64,
        bytes_max: u64,
    ) -> Space {
        let most = (bytes_max / (geometry.segment_blocks * BLOCK_BYTES as u64)).max(segments);
        let count = segments as usize;
        let state = Segments { live: vec![0; count], filled_at: vec![0; count], most, ..Segments::default() };
        let incarnations = (0..INCARNATIONS).map(|_| AtomicU32::new(0)).collect();
        Space { device, geometry, segments: Mutex::new(state), incarnations }
    }

    /// Distinguishes successive images at the first block of `mapped`. Constant while an image is
    /// mapped, and changed before the next: a block is reused only after its segment was reopened.
    /// It may change needlessly, and wraps after four billion segments.
    pub(crate) fn incarnation(&self, mapped: MappingWord) -> u32 {
        let segment = mapped.extent().and_then(|extent| self.geometry.segment_of(extent.first)).unwrap_or(0);
        self.incarnations[segment as usize % INCARNATIONS].load(Relaxed)
    }

    pub(crate) fn geometry(&self) -> Geometry {
        self.geometry
    }

    pub(crate) fn segments(&self) -> u64 {
        self.segments.lock().live.len() as u64
    }

    pub(crate) fn free_segments(&self) -> u64 {
        self.segments.lock().free.len() as u64
    }

    #[cfg(test)]
    pub(crate) fn counts(&self) -> (Vec<u32>, u64) {
        let segments = self.segments.lock();
        (segments.live.clone(), segments.granted)
    }

    /// Recovery: counts the blocks of all extents as live. Two owners of one block go unnoticed
    /// here, but not by image checksums.
    pub(crate) fn count(&self, extents: impl IntoIterator<Item = Extent>) -> Result<()> {
        // Once for all of them: there are as many as pages.
        let mut segments = self.segments.lock();
        extents.into_iter().try_for_each(|extent| self.count_one(&mut segments, extent))
    }

    fn count_one(&self, segments: &mut Segments, extent: Extent) -> Result<()> {
        let segment =
            self.geometry.segment_with(extent).filter(|&segment| (segment as usize) < segments.live.len());
        let Some(segment) = segment else {
            let Extent { first, blocks } = extent;
            return Err(Error::corrupt(
                self.device.name(),
                None,
                format!(
                    "a mapping names {blocks} blocks from {first} on, which are outside the file or its segments"
                ),
            ));
        };
        let live = &mut segments.live[segment as usize];
        *live += extent.blocks as u32;
        if u64::from(*live) > self.geometry.segment_blocks {
            let what = format!("more is said to be in segment {segment} than it has room for");
            return Err(Error::corrupt(self.device.name(), None, what));
        }
        segments.live_total += extent.blocks;
        Ok(())
    }

    /// Ends recovery's count; `granted` blocks are promised to pages only in the log.
    pub(crate) fn end_count(&self, granted: u64) {
        let mut segments = self.segments.lock();
        segments.granted = granted;
        segments.free = (0..segments.live.len() as u64).filter(|&s| segments.live[s as usize] == 0).collect();
    }

    /// Promises `blocks` more blocks, growing the file if needed; `Full` if there are none.
    pub(crate) fn grant(&self, blocks: u64) -> Result<()> {
        let mut segments = self.segments.lock();
        let segments_before = segments.live.len();
        let outcome = self.make_room(&mut segments, blocks);
        if outcome.is_ok() {
            segments.granted += blocks;
        }
        // Reports only changes, however often it is tried.
        let refused = segments.refused.take();
        segments.refused = match &outcome {
            Err(_) => Some(refused.map_or(blocks, |before| before.max(blocks))),
            // A smaller request may be granted meanwhile, which does not end the shortage.
            Ok(()) if segments.live.len() > segments_before => None,
            Ok(()) => refused.filter(|&before| blocks < before && !self.fits(&segments, before)),
        };
        let is_short = segments.refused.is_some();
        drop(segments);
        match &outcome {
            Err(error) if refused.is_none() => tracing::warn!(%error, "full"),
            Ok(()) if refused.is_some() && !is_short => {
                tracing::info!(file = self.device.name(), "space again");
            }
            _ => {}
        }
        outcome
    }

    /// Whether `blocks` more blocks could be promised without growing the file.
    fn fits(&self, segments: &Segments, blocks: u64) -> bool {
        let wanted = segments.live_total + segments.granted + blocks;
        wanted as f64 <= self.usable(segments) * FULL_FILL
    }

    fn make_room(&self, segments: &mut Segments, blocks: u64) -> Result<()> {
        let wanted = segments.live_total + segments.granted + blocks;
        while wanted as f64 > self.usable(segments) * GROW_FILL {
            let step = (segments.live.len() as u64 / GROW_SHARE).clamp(1, GROW_MAX);
            if let Err(refused) = self.grow(segments, step) {
                if self.fits(segments, blocks) {
                    break;
                }
                return Err(refused);
            }
        }
        Ok(())
    }

    /// Grows the file for live and promised blocks, since images may become longer. Returns
    /// whether it has its full room; `Full` if there is none left.
    pub(crate) fn keep_up(&self) -> Result<bool> {
        let mut segments = self.segments.lock();
        self.make_room(&mut segments, 0)?;
        let wanted = segments.live_total + segments.granted;
        Ok(wanted as f64 <= self.usable(&segments) * GROW_FILL)
    }

    /// Returns promised blocks.
    pub(crate) fn ungrant(&self, blocks: u64) {
        let mut segments = self.segments.lock();
        debug_assert!(segments.granted >= blocks, "more blocks ungranted than granted");
        segments.granted = segments.granted.saturating_sub(blocks);
    }

    fn usable(&self, segments: &Segments) -> f64 {
        (segments.live.len() as u64).saturating_sub(RESERVED_SEGMENTS) as f64 * self.fillable(segments)
    }

    /// Blocks of a segment that can be filled, in any order of images.
    fn fillable(&self, segments: &Segments) -> f64 {
        self.geometry.segment_blocks.saturating_sub(segments.lost).max(1) as f64
    }

    /// Mixes image sizes from now on, up to `longest` blocks; grows the file.
    ///
    /// # Errors
    /// [`Error::Full`] if it cannot grow. Then nothing has changed; if such images exist already,
    /// only the file's limit has.
    pub(crate) fn mix(&self, longest: u64, are_there: bool) -> Result<()> {
        let mut segments = self.segments.lock();
        let before = segments.lost;
        segments.lost = before.max(longest - 1);
        let made = self.make_room(&mut segments, 0);
        if made.is_err() && !are_there {
            segments.lost = before;
        }
        made
    }

    /// Grows the file by `step` segments, or by one if that is refused.
    fn grow(&self, segments: &mut Segments, step: u64) -> Result<()> {
        let old = segments.live.len() as u64;
        let mut refused = None;
        for step in [step, 1] {
            let new = old + step;
            if new > segments.most {
                refused = Some(Error::Full {
                    what: format!("{} has reached the size it is allowed", self.device.name()),
                });
                continue;
            }
            // A compacted end still exists until its superblock is durable; reuse it.
            let bytes = self.geometry.file_bytes(new);
            match if self.device.len() >= bytes { Ok(()) } else { self.device.set_len(bytes) } {
                Ok(()) => {
                    segments.live.resize(new as usize, 0);
                    segments.filled_at.resize(new as usize, 0);
                    segments.free.extend(old..new);
                    return Ok(());
                }
                Err(source) => refused = Some(Error::io("grow", self.device.name(), None, source)),
            }
        }
        Err(refused.expect("at least one attempt was made"))
    }

    /// Whether images of these lengths, or shorter ones, fit. Lengths are in blocks; `spare`
    /// segments stay free.
    pub(crate) fn has_room(&self, lengths: &[u64], spare: u64, stream: Stream) -> bool {
        let lengths = lengths.iter().copied();
        self.segments.lock().has_room(lengths, spare, stream, self.geometry.segment_blocks)
    }

    /// [`Space::has_room`], but grows the file if needed and possible.
    pub(crate) fn finds_room(&self, lengths: &[u64], spare: u64, stream: Stream) -> bool {
        while !self.has_room(lengths, spare, stream) {
            if self.grow(&mut self.segments.lock(), 1).is_err() {
                return false;
            }
        }
        true
    }

    /// Allocates blocks for images of these lengths in blocks. They are consecutive as far as
    /// segments allow, leave `spare` segments free, and count as live. `None` without room: the
    /// cleaner must run first.
    pub(crate) fn allocate(&self, lengths: &[u64], spare: u64, stream: Stream) -> Option<Vec<Extent>> {
        let segment_blocks = self.geometry.segment_blocks;
        let mut segments = self.segments.lock();
        if !segments.has_room(lengths.iter().copied(), spare, stream, segment_blocks) {
            return None;
        }
        let mut extents = Vec::with_capacity(lengths.len());
        for &blocks in lengths {
            let open = segments.next(stream, blocks, segment_blocks, &self.incarnations);
            let first = self.geometry.first_block(open.segment) + open.used;
            extents.push(Extent { first, blocks });
            open.used += blocks;
            let segment = open.segment as usize;
            segments.live[segment] += blocks as u32;
            segments.live_total += blocks;
            segments.handed_out += blocks;
        }
        Some(extents)
    }

    /// [`Space::allocate`], but grows the file as little as needed; `Full` if that is refused.
    pub(crate) fn allocate_or_grow(
        &self,
        lengths: &[u64],
        spare: u64,
        stream: Stream,
    ) -> Result<Vec<Extent>> {
        loop {
            if let Some(extents) = self.allocate(lengths, spare, stream) {
                return Ok(extents);
            }
            self.grow(&mut self.segments.lock(), 1)?;
        }
    }

    pub(crate) fn live_in(&self, segment: u64) -> u64 {
        u64::from(self.segments.lock().live[segment as usize])
    }

    pub(crate) fn free(&self, extent: Extent) {
        let mut segments = self.segments.lock();
        let segment = self.geometry.segment_with(extent).expect("blocks freed were handed out here");
        let live = &mut segments.live[segment as usize];
        assert!(u64::from(*live) >= extent.blocks, "{extent:?} freed twice");
        *live -= extent.blocks as u32;
        let emptied = *live == 0;
        segments.live_total -= extent.blocks;
        if emptied && !segments.is_open(segment) {
            segments.free.insert(segment);
        }
    }

    /// When `segment` was filled, in total blocks allocated, and its live blocks.
    pub(crate) fn filling(&self, segment: u64) -> (u64, u64) {
        let segments = self.segments.lock();
        (segments.filled_at[segment as usize], u64::from(segments.live[segment as usize]))
    }

    /// Blocks that fit before the file grows, without unusable ends of segments.
    pub(crate) fn room(&self) -> u64 {
        let segments = self.segments.lock();
        let free = segments.free.len() as u64 * self.geometry.segment_blocks;
        free + segments
            .open
            .iter()
            .flatten()
            .map(|open| self.geometry.segment_blocks - open.used)
            .sum::<u64>()
    }

    pub(crate) fn live_bytes(&self) -> u64 {
        self.segments.lock().live_total * BLOCK_BYTES as u64
    }

    /// The cleaner's next segment, and its fill time in total blocks allocated. Candidates have at
    /// most `live_max` live blocks, are neither open nor free, and pass `may_touch`, which gets a
    /// segment and its live blocks. Maximises benefit over cost, weighted by age, since old live
    /// data tends to stay (Rosenblum and Ousterhout, SOSP 1991). Uses the root of the age: under
    /// uniform changes it costs 1 %, the age itself 3 %. With nine tenths of writes to a tenth of
    /// the pages, the root leaves 40 % of the moves, the age a third.
    pub(crate) fn victim(&self, live_max: u64, may_touch: impl Fn(u64, u64) -> bool) -> Option<(u64, u64)> {
        let segments = self.segments.lock();
        let all = self.geometry.segment_blocks as f64;
        let worth = |segment: u64| {
            let live = f64::from(segments.live[segment as usize]) / all;
            let age =
                segments.handed_out - segments.filled_at[segment as usize] + self.geometry.segment_blocks;
            (1.0 - live) * (age as f64).sqrt() / live
        };
        (0..segments.live.len() as u64)
            .map(|segment| (segment, u64::from(segments.live[segment as usize])))
            .filter(|(_, live)| (1..=live_max).contains(live))
            .filter(|&(segment, live)| !segments.is_open(segment) && may_touch(segment, live))
            .map(|(segment, _)| (segment, segments.filled_at[segment as usize]))
            .max_by(|&(one, _), &(other, _)| worth(one).total_cmp(&worth(other)))
    }

    /// The fewest segments that leave the cleaner room to work.
    fn least(&self, segments: &Segments) -> u64 {
        let blocks = (segments.live_total + segments.granted) as f64;
        let full = (blocks / (self.fillable(segments) * FULL_FILL)).ceil() as u64;
        (full + RESERVED_SEGMENTS).max(SEGMENTS_MIN)
    }

    /// Compaction: the last used segment, if the file can shrink, and the free ones before it. From
    /// now on no image goes behind a free segment.
    pub(crate) fn end_in_use(&self) -> Option<(u64, u64)> {
        let mut segments = self.segments.lock();
        for stream in [Stream::Changed, Stream::Moved] {
            let first_free = segments.free.first().copied();
            let open = segments.open[stream as usize];
            if open.is_some_and(|open| first_free.is_some_and(|free| free < open.segment)) {
                segments.close(stream);
            }
        }
        let last = (0..segments.live.len() as u64).rev().find(|segment| !segments.free.contains(segment))?;
        let ahead = segments.free.range(..last).count() as u64;
        Some((last, ahead)).filter(|_| last >= self.least(&segments))
    }

    /// Compaction: gives up unneeded free segments at the end; returns whether any. The file keeps
    /// them until `truncate`.
    pub(crate) fn retire_end(&self) -> bool {
        let mut segments = self.segments.lock();
        let in_use = (0..segments.live.len() as u64).rev().find(|segment| !segments.free.contains(segment));
        let keep = in_use.map_or(0, |last| last + 1).max(self.least(&segments));
        if keep >= segments.live.len() as u64 {
            return false;
        }
        segments.live.truncate(keep as usize);
        segments.filled_at.truncate(keep as usize);
        segments.free.split_off(&keep);
        true
    }

    pub(crate) fn has_retired(&self) -> bool {
        let segments = self.segments.lock();
        self.device.len() > self.geometry.file_bytes(segments.live.len() as u64)
    }

    /// Cuts off the retired end, once the superblock without it is durable.
    pub(crate) fn truncate(&self) -> Result<()> {
        // Under the lock, so that the file does not grow meanwhile.
        let segments = self.segments.lock();
        let bytes = self.geometry.file_bytes(segments.live.len() as u64);
        if self.device.len() <= bytes {
            return Ok(());
        }
        let cut = self.device.set_len(bytes);
        cut.map_err(|source| Error::io("truncate", self.device.name(), Some(bytes), source))
    }

    /// Sizes the file for this live share, and prevents growth.
    #[cfg(test)]
    pub(crate) fn limit_to_fill(&self, fill: f64) -> Result<()> {
        let mut segments = self.segments.lock();
        segments.most =
            (segments.live_total as f64 / fill / self.geometry.segment_blocks as f64).ceil() as u64;
        while segments.most > segments.live.len() as u64 {
            self.grow(&mut segments, 1)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
