//! The file of a persistent middle tier.
//!
//! ```text
//!   0        identity: one line of 64 bytes
//!   4096     headers: one line per frame
//!   2 MiB    bodies: the pages
//! ```
//!
//! Frames beyond 32,256 follow in groups of as many: 4096 unused bytes, headers, bodies. So a
//! frame's offset does not depend on their number, and the file can be resized.
//!
//! Identity, little-endian: magic 8, version u32, page bytes u32, UUID 16, timeline u64, frames
//! u32, epoch u32, life u64, zeros 4, CRC-32C u32 of the 60 bytes before it.
//!
//! Header: page id u64, LSN u64, body's CRC-32C u32, header's CRC-32C u32, zeros 32, seal word u64.
//! The header's checksum covers frame index, page id, LSN and body's checksum.
//!
//! A line reaches the memory whole, with its stores in order. So a seal word proves its header.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::Release};

use crate::ids::{Lsn, PageId, SizeClass};
use crate::pool::frames::partition::FRAMES_MAX;
use crate::store::page::crc32c;

const MAGIC: [u8; 8] = *b"TERRMID\0";
const VERSION: u32 = 2;
/// Bytes of the identity and of each header: a cache line.
pub(super) const LINE_BYTES: usize = 64;
const HEADERS_AT: usize = 4096;
/// Bodies begin and end where huge pages do.
const BODIES_AT: usize = 2 << 20;
/// Frames of a group: their headers leave room below the bodies.
const GROUP_FRAMES: u32 = 32_256;
/// Word of a header with the seal, and its value in a sealed one.
const SEAL_AT: usize = 7;
const SEALED: u64 = 0x5ea1_ed5e_a1ed_5ea1;

/// Where headers and bodies of `frames` frames are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) class: SizeClass,
    pub(super) frames: u32,
}

impl Layout {
    /// The headers of frames from `first` on, one range per group.
    pub(super) fn headers(self, first: u32) -> impl Iterator<Item = Range<usize>> {
        groups(first..self.frames)
            .map(move |frames| self.header(frames.start).start..self.header(frames.end - 1).end)
    }

    pub(super) fn header(self, index: u32) -> Range<usize> {
        let start = self.group_at(index) + HEADERS_AT + (index % GROUP_FRAMES) as usize * LINE_BYTES;
        start..start + LINE_BYTES
    }

    /// The frames of each group, and where their bodies begin.
    pub(super) fn bodies(self) -> impl Iterator<Item = (Range<u32>, usize)> {
        groups(0..self.frames).map(move |frames| (frames.clone(), self.body(frames.start).start))
    }

    pub(super) fn body(self, index: u32) -> Range<usize> {
        let within = (index % GROUP_FRAMES) as usize * self.class.page_bytes();
        let start = self.group_at(index) + BODIES_AT + within;
        start..start + self.class.page_bytes()
    }

    fn group_at(self, index: u32) -> usize {
        (index / GROUP_FRAMES) as usize * (BODIES_AT + GROUP_FRAMES as usize * self.class.page_bytes())
    }

    /// The frames whose headers are in a file of `bytes`, at most [`FRAMES_MAX`].
    pub(super) fn of_headers_in(class: SizeClass, bytes: usize) -> Layout {
        let is_inside = |frames: u32| Layout { class, frames }.header(frames - 1).end <= bytes;
        let (mut most, mut beyond) = (0, FRAMES_MAX + 1);
        while beyond - most > 1 {
            let middle = most + (beyond - most) / 2;
            *(if is_inside(middle) { &mut most } else { &mut beyond }) = middle;
        }
        Layout { class, frames: most }
    }

    /// Length of the file.
    pub(super) fn bytes(self) -> usize {
        self.body(self.frames - 1).end
    }
}

/// `frames`, divided where groups end.
fn groups(frames: Range<u32>) -> impl Iterator<Item = Range<u32>> {
    let (first, last) = (frames.start / GROUP_FRAMES, frames.end.div_ceil(GROUP_FRAMES));
    (first..last)
        .map(move |group| {
            let start = frames.start.max(group * GROUP_FRAMES);
            start..frames.end.min((group + 1) * GROUP_FRAMES).max(start)
        })
        .filter(|frames| !frames.is_empty())
}

/// The database, its life, and the tier's shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) uuid: [u8; 16],
    pub(super) timeline: u64,
    pub(super) page_bytes: u32,
    pub(super) frames: u32,
    /// Epoch and random number of the last life with this tier.
    pub(super) epoch: u32,
    pub(super) life: u64,
}

impl Identity {
    pub(super) fn encode(&self) -> [u8; LINE_BYTES] {
        let mut line = [0; LINE_BYTES];
        line[..8].copy_from_slice(&MAGIC);
        line[8..12].copy_from_slice(&VERSION.to_le_bytes());
        line[12..16].copy_from_slice(&self.page_bytes.to_le_bytes());
        line[16..32].copy_from_slice(&self.uuid);
        line[32..40].copy_from_slice(&self.timeline.to_le_bytes());
        line[40..44].copy_from_slice(&self.frames.to_le_bytes());
        line[44..48].copy_from_slice(&self.epoch.to_le_bytes());
        line[48..56].copy_from_slice(&self.life.to_le_bytes());
        let checksum = crc32c(&line[..60]);
        line[60..].copy_from_slice(&checksum.to_le_bytes());
        line
    }

    /// The identity in `line`, or why there is none. `None` if it is no tier file.
    pub(super) fn decode(line: &[u8; LINE_BYTES]) -> Option<Result<Identity, &'static str>> {
        if line[..8] != MAGIC {
            return None;
        }
        let half = |at: usize| u32::from_le_bytes(line[at..at + 4].try_into().expect("four bytes"));
        let word = |at: usize| u64::from_le_bytes(line[at..at + 8].try_into().expect("eight bytes"));
        if half(60) != crc32c(&line[..60]) {
            return Some(Err("its checksum does not hold"));
        }
        if half(8) != VERSION {
            return Some(Err("it is of another version"));
        }
        Some(Ok(Identity {
            uuid: line[16..32].try_into().expect("sixteen bytes"),
            timeline: word(32),
            page_bytes: half(12),
            frames: half(40),
            epoch: half(44),
            life: word(48),
        }))
    }
}

/// What a sealed frame's header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sealed {
    pub(super) page: PageId,
    pub(super) lsn: Lsn,
    pub(super) checksum: u32,
}

impl Sealed {
    fn header_checksum(&self, index: u32) -> u32 {
        let mut bytes = [0; 24];
        bytes[..8].copy_from_slice(&self.page.0.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.lsn.0.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.checksum.to_le_bytes());
        bytes[20..].copy_from_slice(&index.to_le_bytes());
        crc32c(&bytes)
    }

    /// Stores the header of frame `index`, the seal word last.
    pub(super) fn store(&self, index: u32, line: &[AtomicU64]) {
        line[0].store(self.page.0, Relaxed);
        line[1].store(self.lsn.0, Relaxed);
        let checksums = u64::from(self.header_checksum(index)) << 32 | u64::from(self.checksum);
        line[2].store(checksums, Relaxed);
        line[SEAL_AT].store(SEALED, Release);
    }

    /// `None` if it is damaged.
    pub(super) fn load(index: u32, line: &[AtomicU64]) -> Option<Sealed> {
        let [page, lsn, checksums] = [0, 1, 2].map(|at| line[at].load(Relaxed));
        let sealed = Sealed { page: PageId(page), lsn: Lsn(lsn), checksum: checksums as u32 };
        let holds = line[SEAL_AT].load(Relaxed) == SEALED
            && (checksums >> 32) as u32 == sealed.header_checksum(index);
        holds.then_some(sealed)
    }
}

/// Whether a header has anything in its seal word, right or wrong.
pub(super) fn reads_sealed(line: &[AtomicU64]) -> bool {
    line[SEAL_AT].load(Relaxed) != 0
}

pub(super) fn clear_seal(line: &[AtomicU64]) {
    line[SEAL_AT].store(0, Release);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_round_trips_and_a_changed_one_is_refused() {
        let identity =
            Identity { uuid: [9; 16], timeline: 3, page_bytes: 4096, frames: 70, epoch: 5, life: 9 };
        let line = identity.encode();
        assert_eq!(Identity::decode(&line), Some(Ok(identity)));
        for at in 0..LINE_BYTES {
            let mut changed = line;
            changed[at] ^= 0x40;
            let found = Identity::decode(&changed);
            assert!(!matches!(found, Some(Ok(_))), "byte {at}: {found:?}");
            assert_eq!(found.is_none(), at < 8, "only the magic says what a file is");
        }
    }

    #[test]
    fn a_header_counts_only_whole_and_for_its_frame() {
        let line: [AtomicU64; 8] = std::array::from_fn(|_| AtomicU64::new(0));
        assert_eq!(Sealed::load(4, &line), None);
        let sealed = Sealed { page: PageId(77), lsn: Lsn(1000), checksum: 0xdead_beef };
        sealed.store(4, &line);
        assert_eq!((Sealed::load(4, &line), Sealed::load(5, &line)), (Some(sealed), None));
        for at in [0, 1, 2, SEAL_AT] {
            line[at].fetch_xor(1 << 20, Relaxed);
            assert_eq!(Sealed::load(4, &line), None, "word {at}");
            line[at].fetch_xor(1 << 20, Relaxed);
        }
        clear_seal(&line);
        assert!(!reads_sealed(&line) && Sealed::load(4, &line).is_none());
    }

    #[test]
    fn parts_of_the_file_are_apart_and_in_order() {
        const SIZES: [(SizeClass, u32); 4] = [
            (SizeClass::SMALLEST, 1),
            (SizeClass::SMALLEST, GROUP_FRAMES),
            (SizeClass::SMALLEST, 2 * GROUP_FRAMES + 9),
            (SizeClass::LARGEST, 3),
        ];
        for (class, frames) in SIZES {
            let layout = Layout { class, frames };
            let mut parts: Vec<Range<usize>> = layout.headers(0).collect();
            for (frames, at) in layout.bodies() {
                assert!(at.is_multiple_of(BODIES_AT), "{at}");
                parts.push(at..layout.body(frames.end - 1).end);
            }
            parts.sort_by_key(|part| part.start);
            assert!(parts[0].start == HEADERS_AT && parts.windows(2).all(|two| two[0].end <= two[1].start));
            assert_eq!(parts.last().unwrap().end, layout.bytes());
            let bytes = |part: fn(Layout, u32) -> Range<usize>| -> usize {
                (0..frames).map(|index| part(layout, index).len()).sum()
            };
            let in_parts: usize = parts.iter().map(Range::len).sum();
            assert_eq!(in_parts, bytes(Layout::header) + bytes(Layout::body));
        }
    }

    #[test]
    fn frames_keep_their_offsets_in_files_of_other_lengths() {
        let layout = |frames| Layout { class: SizeClass::SMALLEST, frames };
        let (few, many) = (layout(100), layout(3 * GROUP_FRAMES));
        for index in [0, 99] {
            assert_eq!((few.header(index), few.body(index)), (many.header(index), many.body(index)));
        }
        // A file that was cut anywhere has the headers of a group, or some, or none.
        for (bytes, frames) in [
            (0, 0),
            (HEADERS_AT + 63, 0),
            (few.header(50).start, 50),
            (few.bytes(), GROUP_FRAMES),
            (many.header(GROUP_FRAMES + 7).end, GROUP_FRAMES + 8),
        ] {
            assert_eq!(Layout::of_headers_in(SizeClass::SMALLEST, bytes).frames, frames, "{bytes}");
        }
        let beyond: Vec<u32> = groups(7..GROUP_FRAMES + 3).map(|frames| frames.end).collect();
        assert_eq!(beyond, [GROUP_FRAMES, GROUP_FRAMES + 3]);
        assert_eq!(groups(7..7).count(), 0);
    }
}
