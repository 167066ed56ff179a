//! What the upkeep moves between memory and the page file goes in pieces.
//!
//! A disk serves its transfers nearly one after the other, whosever they are. While 2 MiB of a segment are read, the few
//! kilobytes that make a commit durable wait for two milliseconds; behind a piece of 64 KiB, for some tens of microseconds,
//! and the disk moves a good part as much (`docs/decisions/0011-pieces.md` has the figures).
//! So the upkeep has one transfer under way at a time, and a short one. Longer ones where somebody waits for what it does:
//! then the sooner it is done the better, and who waits is late anyway.
//!
//! This says nothing about durability. A batch of images is still written as a whole before the one sync that makes it
//! durable, and the mapping record comes after that.

use std::io;

use terrace_block::BlockDevice;

use super::pool::Pool;
use super::upkeep::Upkeep;
use crate::ids::SizeClass;
use crate::store::place::{Extent, PLACE_BYTES};

/// The longest transfer of the upkeep while nobody waits for it. Segments of tests are short, and are to take several too.
const PIECE_BYTES: usize = if cfg!(test) { 8 << 10 } else { 64 << 10 };
/// The longest when somebody does.
const PIECE_BYTES_HURRIED: usize = if cfg!(test) { 12 << 10 } else { 256 << 10 };

impl Pool {
    /// How many places to look at at once: those of a page, of the largest, at least.
    pub(super) fn piece_places(&self, upkeep: &Upkeep) -> u64 {
        self.transfer_places(upkeep).max(self.image_places_max())
    }

    /// How many places to read or write at once.
    fn transfer_places(&self, upkeep: &Upkeep) -> u64 {
        let hurried = upkeep.hurried || self.works_inline() || self.bell.rung.lock().urgent;
        let bytes = if hurried { PIECE_BYTES_HURRIED } else { PIECE_BYTES };
        ((bytes / PLACE_BYTES) as u64).max(self.image_places_max().min(SizeClass::LARGEST_NODE.places()))
    }

    /// What is read for what nobody asked for, such as emptying a segment or a backup: past the cache, to which it would say
    /// nothing about what will be read again.
    pub(super) fn slow(&self) -> &dyn BlockDevice {
        self.cache.as_ref().map_or(&*self.device, |cache| cache.slow())
    }

    /// Nobody needs the image at `extent` any more.
    pub(super) fn free_places(&self, extent: Extent) {
        if let Some(cache) = &self.cache {
            cache.free(extent.offset(), extent.bytes() as u64);
        }
        self.space.free(extent);
    }

    /// Writes what is staged from byte `at` on to `places`, in which the images of pages begin at `starts`, in ascending order: each of
    /// them is a request of its own to the cache.
    pub(super) fn write_pieces(
        &self,
        upkeep: &Upkeep,
        mut at: usize,
        places: Extent,
        starts: &[u64],
    ) -> io::Result<()> {
        let mut first = places.first;
        while first < places.end() {
            let piece = Extent { first, places: self.transfer_places(upkeep).min(places.end() - first) };
            let bytes = &upkeep.staging[at..at + piece.bytes()];
            match &self.cache {
                Some(cache) if upkeep.moving => cache.write_past(piece.offset(), bytes)?,
                Some(cache) => cache.write_of(piece.offset(), bytes, starts)?,
                None => self.device.write_at(piece.offset(), bytes)?,
            }
            (at, first) = (at + piece.bytes(), piece.end());
        }
        Ok(())
    }

    /// Reads `places` into the staging buffer, from byte `at` on.
    pub(super) fn read_pieces(&self, upkeep: &mut Upkeep, mut at: usize, places: Extent) -> io::Result<()> {
        let mut first = places.first;
        while first < places.end() {
            let piece = Extent { first, places: self.transfer_places(upkeep).min(places.end() - first) };
            self.slow().read_at(piece.offset(), &mut upkeep.staging[at..at + piece.bytes()])?;
            (at, first) = (at + piece.bytes(), piece.end());
        }
        Ok(())
    }
}
