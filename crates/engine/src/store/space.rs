//! Space in the page file: segments of equal size, filled from start to end, used again when nothing in them is live.
//!
//! ```text
//!   0            32 KiB          + segment          ...
//!   superblocks  segment 0       segment 1          segment n
//! ```
//!
//! A place is 4 KiB, counted from the start of the file; an image takes some places of one segment, one behind the other.
//! What is left at the end of a segment and too short for the next image stays empty until the segment is filled again. Per
//! segment only the number of live places is kept; which of them are live is known by the page table, and the cleaner
//! learns it from the headers of the images themselves. Recovery counts anew, so nothing of this is stored.
//!
//! Two segments are filled at a time: one with images that were written because their pages changed, one with images that
//! the cleaner moved because theirs did not. Pages that change often and pages that do not are thus parted, and the
//! cleaner finds segments that are nearly all one or the other. Free segments are filled from the start of the file on, so
//! that what is free gathers at its end, where it can be cut off (`compact.rs`).
//!
//! Page ids are granted only while everything that is live fits below a fill limit; that is what leaves the cleaner
//! room to work, and it is the point where "disk full" is raised (durability, rule 14): a page is granted all its places, and
//! a change of one that exists needs no more space than it has, unless compression has made its image shorter. What that
//! saves is not kept for it (`docs/decisions/0013-places-and-compression.md`): write-back has the file grow for it too, and
//! commits wait where it cannot. Where pages have several sizes, the places at the end of each segment that the longest image
//! may find too few are not counted on for that limit: images of one size fill a segment, a mixture need not, and the
//! cleaner, which moves them in whatever order it finds them, would find no room for them again.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use parking_lot::Mutex;
use terrace_block::BlockDevice;

use super::place::{Extent, PLACE_BYTES};
use super::superblock::SUPERBLOCK_BYTES;
use crate::error::{Error, Result};

/// The file grows when more than this share of it would be live: with it and the reserve it is a third longer than what is live.
const GROW_FILL: f64 = 0.755;
/// By one part in this many, at most [`GROW_MAX`] segments at a time.
const GROW_SHARE: u64 = 64;
const GROW_MAX: u64 = 64;
/// When it cannot grow, page ids are granted up to this share; the rest is what cleaner and checkpoint work with.
const FULL_FILL: f64 = 0.88;
/// Segments nobody but cleaner and checkpoint may count on.
const RESERVED_SEGMENTS: u64 = 5;

/// Segments of a file, at least.
pub(crate) const SEGMENTS_MIN: u64 = 8;

/// Why an image is written, which says what it is put beside.
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

/// The fixed numbers of a page file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Geometry {
    pub(crate) segment_places: u64,
}

impl Geometry {
    /// The first place of a segment.
    pub(crate) fn first_place(&self, segment: u64) -> u64 {
        SUPERBLOCK_BYTES / PLACE_BYTES as u64 + segment * self.segment_places
    }

    /// The segment a place lies in; `None` for a place inside the superblocks.
    pub(crate) fn segment_of(&self, place: u64) -> Option<u64> {
        place.checked_sub(self.first_place(0)).map(|places| places / self.segment_places)
    }

    /// The segment that all of `extent` lies in.
    pub(crate) fn segment_with(&self, extent: Extent) -> Option<u64> {
        let last = extent.end().checked_sub(1)?;
        self.segment_of(extent.first).filter(|&segment| self.segment_of(last) == Some(segment))
    }

    /// Bytes of a file with so many segments.
    pub(crate) fn file_bytes(&self, segments: u64) -> u64 {
        self.first_place(segments) * PLACE_BYTES as u64
    }
}

/// A segment that is being filled, and the next place in it.
#[derive(Clone, Copy, Debug)]
struct Open {
    segment: u64,
    used: u64,
}

/// Incarnations that are counted. Segments that share one count have more incarnations than they had.
const INCARNATIONS: usize = 1024;

#[derive(Debug, Default)]
struct Segments {
    /// Live places of each segment, places handed out included.
    live: Vec<u32>,
    /// For each segment, how many places had been handed out when it was opened last.
    filled_at: Vec<u64>,
    /// Segments without a live place that are not open.
    free: BTreeSet<u64>,
    /// The segments being filled, one for each stream.
    open: [Option<Open>; 2],
    /// Places handed out since the database was opened.
    handed_out: u64,
    /// Live places in all.
    live_total: u64,
    /// Places granted to pages that are not yet written anywhere, with those promised to commits under way.
    granted: u64,
    /// Places of each segment that may have to stay empty, because images of several sizes are mixed.
    lost: u64,
    /// Whether the last grant was refused.
    refused: bool,
    /// The file is not grown beyond this.
    most: u64,
}

impl Segments {
    fn is_open(&self, segment: u64) -> bool {
        self.open.iter().flatten().any(|open| open.segment == segment)
    }

    /// Places left in the segment that `stream` fills.
    fn open_room(&self, stream: Stream, segment_places: u64) -> u64 {
        self.open[stream as usize].map_or(0, |open| segment_places - open.used)
    }

    /// Whether there is room for images of these lengths in places, with `spare` segments left free. Where there is room
    /// for some there is room for shorter ones in their stead: images are put one behind the other, and none of them
    /// comes to stand later for those before it being shorter.
    fn has_room(
        &self,
        lengths: impl IntoIterator<Item = u64>,
        spare: u64,
        stream: Stream,
        segment_places: u64,
    ) -> bool {
        let mut room = self.open_room(stream, segment_places);
        let mut free = (self.free.len() as u64).saturating_sub(spare);
        // The other stream's segment is for when nothing else is left.
        let mut last = if spare == 0 { self.open_room(stream.other(), segment_places) } else { 0 };
        lengths.into_iter().all(|length| {
            if room < length {
                if free > 0 {
                    (free, room) = (free - 1, segment_places);
                } else {
                    (room, last) = (last, 0);
                }
            }
            let fits = length <= room;
            room = room.saturating_sub(length);
            fits
        })
    }

    /// Stops filling a segment. One that was emptied meanwhile is free from now on.
    fn close(&mut self, stream: Stream) {
        if let Some(Open { segment, .. }) = self.open[stream as usize].take()
            && self.live[segment as usize] == 0
        {
            self.free.insert(segment);
        }
    }

    /// The segment in which the next image of `stream`, of `length` places, is put; there is room for it.
    fn next(
        &mut self,
        stream: Stream,
        length: u64,
        segment_places: u64,
        incarnations: &[AtomicU32],
    ) -> &mut Open {
        if self.open_room(stream, segment_places) < length {
            self.close(stream);
            if let Some(segment) = self.free.pop_first() {
                // Whoever sees an image that is written there sees this, by the latch under which it is put in force.
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

/// Counts and hands out places.
#[derive(Debug)]
pub(crate) struct Space {
    device: Arc<dyn BlockDevice>,
    geometry: Geometry,
    segments: Mutex<Segments>,
    /// How often segments were opened, by their numbers.
    incarnations: Box<[AtomicU32]>,
}

impl Space {
    /// Space of a file with `segments` segments, nothing in them live yet; recovery calls `count` for what is, then
    /// `settle`.
    pub(crate) fn new(
        device: Arc<dyn BlockDevice>,
        geometry: Geometry,
        segments: u64,
        bytes_max: u64,
    ) -> Space {
        let most = (bytes_max / (geometry.segment_places * PLACE_BYTES as u64)).max(segments);
        let count = segments as usize;
        let state = Segments { live: vec![0; count], filled_at: vec![0; count], most, ..Segments::default() };
        let incarnations = (0..INCARNATIONS).map(|_| AtomicU32::new(0)).collect();
        Space { device, geometry, segments: Mutex::new(state), incarnations }
    }

    /// Tells the images apart that are at `place` one after the other: as long as one is in force it does not change, and
    /// for the next one it is another, since a place is used again only when its segment was empty and is filled anew. It
    /// may change for no reason; it comes round after four billion segments.
    pub(crate) fn incarnation(&self, place: u64) -> u32 {
        let segment = self.geometry.segment_of(place).unwrap_or(0);
        self.incarnations[segment as usize % INCARNATIONS].load(Relaxed)
    }

    pub(crate) fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Segments in the file.
    pub(crate) fn segments(&self) -> u64 {
        self.segments.lock().live.len() as u64
    }

    /// Segments with nothing live in them.
    pub(crate) fn free_segments(&self) -> u64 {
        self.segments.lock().free.len() as u64
    }

    /// Live places of each segment, and places granted to pages that have none yet.
    #[cfg(test)]
    pub(crate) fn counts(&self) -> (Vec<u32>, u64) {
        let segments = self.segments.lock();
        (segments.live.clone(), segments.granted)
    }

    /// Recovery: the places of `extent` are live. An error where two owners claim one place would need a map; the checksums
    /// of the images tell them apart instead.
    pub(crate) fn count(&self, extent: Extent) -> Result<()> {
        let mut segments = self.segments.lock();
        let segment =
            self.geometry.segment_with(extent).filter(|&segment| (segment as usize) < segments.live.len());
        let Some(segment) = segment else {
            let Extent { first, places } = extent;
            return Err(Error::corrupt(
                self.device.name(),
                None,
                format!(
                    "a mapping names {places} places from {first} on, which are outside the file or its segments"
                ),
            ));
        };
        let live = &mut segments.live[segment as usize];
        *live += extent.places as u32;
        if u64::from(*live) > self.geometry.segment_places {
            let what = format!("more is said to be in segment {segment} than it has room for");
            return Err(Error::corrupt(self.device.name(), None, what));
        }
        segments.live_total += extent.places;
        Ok(())
    }

    /// Recovery: everything live has been counted; `granted` places are promised to pages that exist in the log only.
    pub(crate) fn settle(&self, granted: u64) {
        let mut segments = self.segments.lock();
        segments.granted = granted;
        segments.free = (0..segments.live.len() as u64).filter(|&s| segments.live[s as usize] == 0).collect();
    }

    /// Promises `places` more places, growing the file if need be. `Full` when there are none to be had.
    pub(crate) fn grant(&self, places: u64) -> Result<()> {
        let mut segments = self.segments.lock();
        let outcome = self.make_room(&mut segments, places);
        if outcome.is_ok() {
            segments.granted += places;
        }
        let refused_before = std::mem::replace(&mut segments.refused, outcome.is_err());
        drop(segments);
        // Told when it changes, however often it is tried.
        match &outcome {
            Err(error) if !refused_before => tracing::warn!(%error, "full"),
            Ok(()) if refused_before => tracing::info!(file = self.device.name(), "space again"),
            _ => {}
        }
        outcome
    }

    fn make_room(&self, segments: &mut Segments, places: u64) -> Result<()> {
        let wanted = segments.live_total + segments.granted + places;
        while wanted as f64 > self.usable(segments) * GROW_FILL {
            let step = (segments.live.len() as u64 / GROW_SHARE).clamp(1, GROW_MAX);
            if let Err(refused) = self.grow(segments, step) {
                if wanted as f64 <= self.usable(segments) * FULL_FILL {
                    break;
                }
                return Err(refused);
            }
        }
        Ok(())
    }

    /// Makes the file as long as what is live and promised wants it, since images may become longer than they were. Whether it
    /// has as much room then as it is to have; `Full` if it has none left for more.
    pub(crate) fn keep_up(&self) -> Result<bool> {
        let mut segments = self.segments.lock();
        self.make_room(&mut segments, 0)?;
        let wanted = segments.live_total + segments.granted;
        Ok(wanted as f64 <= self.usable(&segments) * GROW_FILL)
    }

    /// Takes promised places back that were not used, or whose page has its own now.
    pub(crate) fn ungrant(&self, places: u64) {
        let mut segments = self.segments.lock();
        debug_assert!(segments.granted >= places, "more places ungranted than granted");
        segments.granted = segments.granted.saturating_sub(places);
    }

    fn usable(&self, segments: &Segments) -> f64 {
        (segments.live.len() as u64).saturating_sub(RESERVED_SEGMENTS) as f64 * self.fillable(segments)
    }

    /// Places of a segment that can be filled, whatever the order of images.
    fn fillable(&self, segments: &Segments) -> f64 {
        self.geometry.segment_places.saturating_sub(segments.lost).max(1) as f64
    }

    /// Images of several sizes are mixed from now on, the longest of `longest` places. Makes the file as long as that wants it.
    ///
    /// # Errors
    /// [`Error::Full`] if it cannot be: then nothing has changed, or if they are there already, nothing but the file's limit.
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

    /// Makes the file larger by `step` segments, or by one where that is refused.
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
            // What was cut off by a compaction and is still there until its superblock is durable, is taken back.
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

    /// Whether there is room for images of these lengths in places, or for as many shorter ones, with `spare` segments left
    /// free.
    pub(crate) fn has_room(&self, lengths: &[u64], spare: u64, stream: Stream) -> bool {
        let lengths = lengths.iter().copied();
        self.segments.lock().has_room(lengths, spare, stream, self.geometry.segment_places)
    }

    /// As `has_room`, but makes the file larger where there is no such room, as far as it may be.
    pub(crate) fn finds_room(&self, lengths: &[u64], spare: u64, stream: Stream) -> bool {
        while !self.has_room(lengths, spare, stream) {
            if self.grow(&mut self.segments.lock(), 1).is_err() {
                return false;
            }
        }
        true
    }

    /// Places for images of these lengths in places, one behind the other as far as segments allow, leaving `spare`
    /// segments free. They count as live from now on. `None` when there is no such room: the cleaner must run first.
    pub(crate) fn allocate(&self, lengths: &[u64], spare: u64, stream: Stream) -> Option<Vec<Extent>> {
        let segment_places = self.geometry.segment_places;
        let mut segments = self.segments.lock();
        if !segments.has_room(lengths.iter().copied(), spare, stream, segment_places) {
            return None;
        }
        let mut extents = Vec::with_capacity(lengths.len());
        for &places in lengths {
            let open = segments.next(stream, places, segment_places, &self.incarnations);
            let first = self.geometry.first_place(open.segment) + open.used;
            extents.push(Extent { first, places });
            open.used += places;
            let segment = open.segment as usize;
            segments.live[segment] += places as u32;
            segments.live_total += places;
            segments.handed_out += places;
        }
        Some(extents)
    }

    /// As `allocate`, but makes the file larger where there is no such room, by no more than that takes. `Full` where that
    /// is refused.
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

    /// Live places in `segment`.
    pub(crate) fn live_in(&self, segment: u64) -> u64 {
        u64::from(self.segments.lock().live[segment as usize])
    }

    /// The image at `extent` is no longer needed by anyone.
    pub(crate) fn free(&self, extent: Extent) {
        let mut segments = self.segments.lock();
        let segment = self.geometry.segment_with(extent).expect("places freed were handed out here");
        let live = &mut segments.live[segment as usize];
        assert!(u64::from(*live) >= extent.places, "{extent:?} freed twice");
        *live -= extent.places as u32;
        let emptied = *live == 0;
        segments.live_total -= extent.places;
        if emptied && !segments.is_open(segment) {
            segments.free.insert(segment);
        }
    }

    /// When `segment` was filled, by the places handed out until then, and how many places in it are live.
    pub(crate) fn filling(&self, segment: u64) -> (u64, u64) {
        let segments = self.segments.lock();
        (segments.filled_at[segment as usize], u64::from(segments.live[segment as usize]))
    }

    /// Places that can be handed out before the file grows, but for those at ends of segments for which the next image is too long.
    pub(crate) fn room(&self) -> u64 {
        let segments = self.segments.lock();
        let free = segments.free.len() as u64 * self.geometry.segment_places;
        free + segments
            .open
            .iter()
            .flatten()
            .map(|open| self.geometry.segment_places - open.used)
            .sum::<u64>()
    }

    /// Bytes of all images that count.
    pub(crate) fn live_bytes(&self) -> u64 {
        self.segments.lock().live_total * PLACE_BYTES as u64
    }

    /// What the cleaner should empty next, and when it was filled, by the places handed out until then: of the
    /// segments with at most `live_max` live places that are neither open nor
    /// free nor such as it may not touch: where most is gained for what it costs, and the longer ago it was filled the
    /// more, for what is left in a segment after long will stay (cost and benefit; Rosenblum and Ousterhout, SOSP 1991).
    /// The root of the age: the age itself costs 3 % where all pages change alike, the root 1 %, and with a tenth of
    /// the pages taking nine tenths of the writes the root leaves 40 % of the moves, the age a third.
    /// `may_touch` is asked with a segment and its live places.
    pub(crate) fn victim(&self, live_max: u64, may_touch: impl Fn(u64, u64) -> bool) -> Option<(u64, u64)> {
        let segments = self.segments.lock();
        let all = self.geometry.segment_places as f64;
        let worth = |segment: u64| {
            let live = f64::from(segments.live[segment as usize]) / all;
            let age =
                segments.handed_out - segments.filled_at[segment as usize] + self.geometry.segment_places;
            (1.0 - live) * (age as f64).sqrt() / live
        };
        (0..segments.live.len() as u64)
            .map(|segment| (segment, u64::from(segments.live[segment as usize])))
            .filter(|(_, live)| (1..=live_max).contains(live))
            .filter(|&(segment, live)| !segments.is_open(segment) && may_touch(segment, live))
            .map(|(segment, _)| (segment, segments.filled_at[segment as usize]))
            .max_by(|&(one, _), &(other, _)| worth(one).total_cmp(&worth(other)))
    }

    /// The least number of segments in which what is live and granted leaves the cleaner room to work.
    fn least(&self, segments: &Segments) -> u64 {
        let places = (segments.live_total + segments.granted) as f64;
        let full = (places / (self.fillable(segments) * FULL_FILL)).ceil() as u64;
        (full + RESERVED_SEGMENTS).max(SEGMENTS_MIN)
    }

    /// Compaction: the last segment that is in use, if the file would be shorter without it, and how many segments ahead
    /// of it are free. Nothing more is put into segments behind a free one from now on.
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

    /// Compaction: gives up the free segments at the end that are not needed; whether there were any. The file keeps them
    /// until `truncate`.
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

    /// Whether the file is longer than its segments.
    pub(crate) fn has_retired(&self) -> bool {
        let segments = self.segments.lock();
        self.device.len() > self.geometry.file_bytes(segments.live.len() as u64)
    }

    /// Cuts off what was retired. The superblock that does not name it is durable.
    pub(crate) fn truncate(&self) -> Result<()> {
        // Under the lock, so that the file is not grown meanwhile.
        let segments = self.segments.lock();
        let bytes = self.geometry.file_bytes(segments.live.len() as u64);
        if self.device.len() <= bytes {
            return Ok(());
        }
        let cut = self.device.set_len(bytes);
        cut.map_err(|source| Error::io("truncate", self.device.name(), Some(bytes), source))
    }

    /// Makes the file as long as makes this share of it live, and keeps it from growing beyond.
    #[cfg(test)]
    pub(crate) fn limit_to_fill(&self, fill: f64) -> Result<()> {
        let mut segments = self.segments.lock();
        segments.most =
            (segments.live_total as f64 / fill / self.geometry.segment_places as f64).ceil() as u64;
        while segments.most > segments.live.len() as u64 {
            self.grow(&mut segments, 1)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
