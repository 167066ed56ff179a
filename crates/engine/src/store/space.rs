//! Space in the page file: segments of equal size, filled from start to end, used again when nothing in them is live.
//!
//! ```text
//!   0            32 KiB          + segment          ...
//!   superblocks  segment 0       segment 1          segment n
//! ```
//!
//! A place is a page-sized slot, counted from the start of the file. Per segment only the number of live places is
//! kept; which of them are live is known by the page table, and the cleaner learns it from the headers of the images
//! themselves. Recovery counts anew, so nothing of this is stored.
//!
//! Page ids are granted only while everything that is live fits below a fill limit; that is what leaves the cleaner
//! room to work, and it is the only point where "disk full" is raised (durability, rule 14): a change of a page that
//! exists needs no more space than it has.

use std::sync::Arc;

use parking_lot::Mutex;
use terrace_block::BlockDevice;

use super::superblock::SUPERBLOCK_BYTES;
use crate::error::{Error, Result};

/// The file grows when more than this share of it would be live.
const GROW_FILL: f64 = 0.77;
/// When it cannot grow, page ids are granted up to this share; the rest is what cleaner and checkpoint work with.
const FULL_FILL: f64 = 0.88;
/// Segments nobody but cleaner and checkpoint may count on.
const RESERVED_SEGMENTS: u64 = 4;

/// The fixed numbers of a page file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Geometry {
    pub(crate) page_bytes: usize,
    pub(crate) segment_pages: u64,
}

impl Geometry {
    /// The first place of a segment.
    pub(crate) fn first_place(&self, segment: u64) -> u64 {
        SUPERBLOCK_BYTES.div_ceil(self.page_bytes as u64) + segment * self.segment_pages
    }

    /// The segment a place lies in; `None` for a place inside the superblocks.
    pub(crate) fn segment_of(&self, place: u64) -> Option<u64> {
        place.checked_sub(self.first_place(0)).map(|places| places / self.segment_pages)
    }

    /// Bytes of a file with so many segments.
    pub(crate) fn file_bytes(&self, segments: u64) -> u64 {
        self.first_place(segments) * self.page_bytes as u64
    }
}

/// A run of adjacent places handed out for writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) first: u64,
    pub(crate) pages: u64,
}

#[derive(Debug, Default)]
struct Segments {
    /// Live places of each segment, places handed out included.
    live: Vec<u32>,
    /// Segments without a live place.
    free: Vec<u64>,
    /// The segment being filled and the next place in it.
    open: Option<(u64, u64)>,
    /// Live places in all.
    live_total: u64,
    /// Pages granted but not yet written anywhere, with those promised to commits under way.
    granted: u64,
    /// Whether the last grant was refused.
    refused: bool,
}

/// Counts and hands out places.
#[derive(Debug)]
pub(crate) struct Space {
    device: Arc<dyn BlockDevice>,
    geometry: Geometry,
    segments: Mutex<Segments>,
    /// The file is not grown beyond this.
    segments_max: u64,
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
        let state = Segments { live: vec![0; segments as usize], ..Segments::default() };
        let segments_max = (bytes_max / (geometry.segment_pages * geometry.page_bytes as u64)).max(segments);
        Space { device, geometry, segments: Mutex::new(state), segments_max }
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

    /// Live places of each segment, and pages granted that have no place yet.
    #[cfg(test)]
    pub(crate) fn counts(&self) -> (Vec<u32>, u64) {
        let segments = self.segments.lock();
        (segments.live.clone(), segments.granted)
    }

    /// Recovery: `place` is live. An error where two owners claim one place would need a map; the checksums of the
    /// images tell them apart instead.
    pub(crate) fn count(&self, place: u64) -> Result<()> {
        let mut segments = self.segments.lock();
        let segment =
            self.geometry.segment_of(place).filter(|&segment| (segment as usize) < segments.live.len());
        let Some(segment) = segment else {
            return Err(Error::corrupt(
                self.device.name(),
                None,
                format!("a mapping names place {place} outside the file"),
            ));
        };
        segments.live[segment as usize] += 1;
        segments.live_total += 1;
        Ok(())
    }

    /// Recovery: everything live has been counted; `granted` pages exist in the log only.
    pub(crate) fn settle(&self, granted: u64) {
        let mut segments = self.segments.lock();
        segments.granted = granted;
        segments.free =
            (0..segments.live.len() as u64).rev().filter(|&s| segments.live[s as usize] == 0).collect();
    }

    /// Promises room for `pages` more pages, growing the file if need be. `Full` when there is none to be had.
    pub(crate) fn grant(&self, pages: u64) -> Result<()> {
        let mut segments = self.segments.lock();
        let outcome = self.make_room(&mut segments, pages);
        if outcome.is_ok() {
            segments.granted += pages;
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

    fn make_room(&self, segments: &mut Segments, pages: u64) -> Result<()> {
        let wanted = segments.live_total + segments.granted + pages;
        while wanted as f64 > self.usable(segments) * GROW_FILL {
            if let Err(refused) = self.grow(segments) {
                if wanted as f64 <= self.usable(segments) * FULL_FILL {
                    break;
                }
                return Err(refused);
            }
        }
        Ok(())
    }

    /// Takes promised pages back that were not used, or that have a place of their own now.
    pub(crate) fn ungrant(&self, pages: u64) {
        let mut segments = self.segments.lock();
        debug_assert!(segments.granted >= pages, "more pages ungranted than granted");
        segments.granted = segments.granted.saturating_sub(pages);
    }

    fn usable(&self, segments: &Segments) -> f64 {
        (segments.live.len() as u64).saturating_sub(RESERVED_SEGMENTS) as f64
            * self.geometry.segment_pages as f64
    }

    /// Makes the file larger by about a sixteenth, or by one segment where that is refused.
    fn grow(&self, segments: &mut Segments) -> Result<()> {
        let old = segments.live.len() as u64;
        let step = (old / 16).clamp(1, 64);
        let mut refused = None;
        for step in [step, 1] {
            let new = old + step;
            if new > self.segments_max {
                refused = Some(Error::Full {
                    what: format!("{} has reached the size it is allowed", self.device.name()),
                });
                continue;
            }
            match self.device.set_len(self.geometry.file_bytes(new)) {
                Ok(()) => {
                    segments.live.resize(new as usize, 0);
                    segments.free.splice(0..0, (old..new).rev());
                    return Ok(());
                }
                Err(source) => refused = Some(Error::io("grow", self.device.name(), None, source)),
            }
        }
        Err(refused.expect("at least one attempt was made"))
    }

    /// Places for `pages` images, in as few runs as the open segment allows, leaving `spare` segments free. They
    /// count as live from now on. `None` when there is no such room: the cleaner must run first.
    pub(crate) fn allocate(&self, pages: u64, spare: u64) -> Option<Vec<Run>> {
        let mut segments = self.segments.lock();
        let open_room = segments.open.map_or(0, |(_, used)| self.geometry.segment_pages - used);
        let free = (segments.free.len() as u64).saturating_sub(spare);
        if open_room + free * self.geometry.segment_pages < pages {
            return None;
        }
        let mut runs = Vec::new();
        let mut left = pages;
        while left > 0 {
            let (segment, used) = match segments.open {
                Some((segment, used)) if used < self.geometry.segment_pages => (segment, used),
                full => {
                    // A segment that was emptied while it was open goes back to the free ones when it is closed.
                    if let Some((closed, _)) = full
                        && segments.live[closed as usize] == 0
                    {
                        segments.free.insert(0, closed);
                    }
                    (segments.free.pop().expect("room was counted above"), 0)
                }
            };
            let take = left.min(self.geometry.segment_pages - used);
            runs.push(Run { first: self.geometry.first_place(segment) + used, pages: take });
            segments.open = Some((segment, used + take));
            segments.live[segment as usize] += take as u32;
            segments.live_total += take;
            left -= take;
        }
        Some(runs)
    }

    /// As `allocate`, but makes the file larger where there is no such room. `Full` where that is refused.
    pub(crate) fn allocate_or_grow(&self, pages: u64, spare: u64) -> Result<Vec<Run>> {
        loop {
            if let Some(runs) = self.allocate(pages, spare) {
                return Ok(runs);
            }
            self.grow(&mut self.segments.lock())?;
        }
    }

    /// Live places in `segment`.
    pub(crate) fn live_in(&self, segment: u64) -> u64 {
        u64::from(self.segments.lock().live[segment as usize])
    }

    /// The image at `place` is no longer needed by anyone.
    pub(crate) fn free(&self, place: u64) {
        let mut segments = self.segments.lock();
        let segment = self.geometry.segment_of(place).expect("places freed were handed out here");
        let live = &mut segments.live[segment as usize];
        assert!(*live > 0, "place {place} freed twice");
        *live -= 1;
        let emptied = *live == 0;
        segments.live_total -= 1;
        if emptied && segments.open.is_none_or(|(open, _)| open != segment) {
            segments.free.insert(0, segment);
        }
    }

    /// What the cleaner should empty next: the segment with the fewest live places, at most `live_max`, that is
    /// neither open nor free nor one of those it may not touch.
    pub(crate) fn victim(&self, live_max: u64, may_touch: impl Fn(u64) -> bool) -> Option<u64> {
        let segments = self.segments.lock();
        let open = segments.open.map(|(segment, _)| segment);
        (0..segments.live.len() as u64)
            .filter(|&segment| Some(segment) != open && may_touch(segment))
            .filter(|&segment| (1..=live_max).contains(&u64::from(segments.live[segment as usize])))
            .min_by_key(|&segment| segments.live[segment as usize])
    }
}
