//! Parses the format of `record.rs` from arbitrary bytes.
//!
//! Two questions are separate. *Is this a record?* checks length, LSN and checksum; a no is the end
//! of the log, as a power cut leaves it. *Is it sound?* checks the lengths inside; a no despite a
//! good checksum is damage, and an error. Both are answered before a view exists, so its iterators
//! cannot fail. Nothing is allocated, and every length is checked before use.

use crate::ids::{Lsn, PageId, Timestamp};
use crate::store::mapping_word::Extent;

use super::record::{
    CHANGE_HEADER_BYTES, COMMITS, COMPENSATION, COUNT_AT, ChunkEntry, ENTRIES_AT, ENTRY_BYTES, EPOCH_AT,
    FLAGS_AT, HEADER_BYTES, KIND_AT, Kind, LENGTH_AT, LSN_AT, MappingEntry, PREVIOUS_AT, RECORD_ALIGNMENT,
    RECORD_BYTES_MAX, TRANSACTION_AT, UNDO_AT, UNDO_LENGTH_AT, UNDO_NEXT_AT, change_kind, checksum, padded,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotARecord {
    /// No complete record is here: the log ends.
    Absent,
    /// A record with a valid checksum, but an invalid body.
    Malformed(&'static str),
}

/// The unverified claim of the first bytes at an LSN.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    pub(super) length: usize,
}

/// Judges the header at `lsn` alone. `None`: no record is here.
pub(super) fn claim(bytes: &[u8], lsn: Lsn) -> Option<Claim> {
    let header = bytes.first_chunk::<HEADER_BYTES>()?;
    let length = u32_at(header, LENGTH_AT)? as usize;
    let fits = (HEADER_BYTES..=RECORD_BYTES_MAX).contains(&length) && length.is_multiple_of(RECORD_ALIGNMENT);
    let here = u64_at(header, LSN_AT)? == lsn.0;
    (fits && here).then_some(Claim { length })
}

/// A validated record in its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordView<'a> {
    bytes: &'a [u8],
    kind: Kind,
}

impl<'a> RecordView<'a> {
    /// Parses the record at the beginning of `bytes`, which were read at `lsn`; ignores what
    /// follows.
    ///
    /// # Errors
    /// [`NotARecord`] says which of the two questions was answered no.
    pub(crate) fn parse(bytes: &'a [u8], lsn: Lsn) -> Result<Self, NotARecord> {
        let claim = claim(bytes, lsn).ok_or(NotARecord::Absent)?;
        let bytes = bytes.get(..claim.length).ok_or(NotARecord::Absent)?;
        if u32_at(bytes, 0) != Some(checksum(bytes)) {
            return Err(NotARecord::Absent);
        }
        let kind = Kind::from_byte(bytes[KIND_AT]).ok_or(NotARecord::Malformed("unknown kind of record"))?;
        let record = Self { bytes, kind };
        record.check_body().map_err(NotARecord::Malformed)?;
        Ok(record)
    }

    fn check_body(&self) -> Result<(), &'static str> {
        match self.kind {
            Kind::Noop => Ok(()),
            Kind::Commit | Kind::End if self.len() == HEADER_BYTES => Ok(()),
            Kind::Commit | Kind::End => Err("a body where there should be none"),
            Kind::Mapping | Kind::Chunk => {
                let count = u32_at(self.bytes, COUNT_AT).ok_or("no count of entries")? as usize;
                let room = self.bytes.get(ENTRIES_AT..).ok_or("no count of entries")?;
                if count.checked_mul(ENTRY_BYTES) != Some(room.len()) {
                    return Err("a count of entries that does not fit");
                }
                let possible = room.chunks_exact(ENTRY_BYTES).all(|entry| extent(words(entry)).is_possible());
                possible.then_some(()).ok_or("blocks that no file has")
            }
            Kind::Pages => {
                let (count, mut rest) = self.changes_at().ok_or("undo bytes beyond the end")?;
                for _ in 0..count {
                    (_, rest) = split_change(rest).ok_or("a change beyond the end")?;
                }
                rest.is_empty().then_some(()).ok_or("bytes behind the last change")
            }
        }
    }

    fn changes_at(&self) -> Option<(u32, &'a [u8])> {
        let undo = u32_at(self.bytes, UNDO_LENGTH_AT)? as usize;
        let count_at = padded(undo).checked_add(UNDO_AT)?;
        Some((u32_at(self.bytes, count_at)?, self.bytes.get(count_at + 4..)?))
    }

    pub(crate) fn lsn(&self) -> Lsn {
        Lsn(self.word(LSN_AT))
    }

    pub(crate) fn end(&self) -> Lsn {
        Lsn(self.lsn().0 + self.len() as u64)
    }

    pub(super) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn epoch(&self) -> u32 {
        u32_at(self.bytes, EPOCH_AT).unwrap_or_default()
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// Its transaction; none for the system's own.
    pub(crate) fn transaction(&self) -> Timestamp {
        Timestamp(self.word(TRANSACTION_AT))
    }

    pub(crate) fn previous(&self) -> Lsn {
        Lsn(self.word(PREVIOUS_AT))
    }

    /// Whether it commits its transaction: a commit record, or a Pages record with the flag.
    pub(crate) fn commits(&self) -> bool {
        self.kind == Kind::Commit || self.has_flag(COMMITS)
    }

    /// For a compensation record: what to undo next.
    pub(crate) fn compensation(&self) -> Option<Lsn> {
        self.has_flag(COMPENSATION).then(|| Lsn(self.word(UNDO_NEXT_AT)))
    }

    /// Its undo data; empty if it is never undone.
    pub(crate) fn undo(&self) -> &'a [u8] {
        if self.kind != Kind::Pages {
            return &[];
        }
        let length = u32_at(self.bytes, UNDO_LENGTH_AT).unwrap_or_default() as usize;
        self.bytes.get(UNDO_AT..UNDO_AT + length).unwrap_or_default()
    }

    /// The changes of a Pages record, in order; empty for other kinds.
    pub(crate) fn changes(&self) -> impl Iterator<Item = Change<'a>> + use<'a> {
        let of_pages = if self.kind == Kind::Pages { self.changes_at() } else { None };
        let mut rest = of_pages.map(|(_, bytes)| bytes).unwrap_or_default();
        std::iter::from_fn(move || {
            let (change, behind) = split_change(rest)?;
            rest = behind;
            Some(change)
        })
    }

    /// Empty for other kinds.
    pub(crate) fn mappings(&self) -> impl Iterator<Item = MappingEntry> + use<'a> {
        self.entries(Kind::Mapping).map(|words| MappingEntry {
            page: PageId(words[0]),
            extent: extent(words),
            image_lsn: Lsn(words[2]),
            check: words[3] as u32,
        })
    }

    /// Empty for other kinds of record.
    pub(crate) fn chunks(&self) -> impl Iterator<Item = ChunkEntry> + use<'a> {
        self.entries(Kind::Chunk).map(|words| ChunkEntry {
            chunk: PageId(words[0]),
            extent: extent(words),
            current_lsn: Lsn(words[2]),
            check: words[3] as u32,
        })
    }

    fn entries(&self, kind: Kind) -> impl Iterator<Item = [u64; 4]> + use<'a> {
        let bytes = if self.kind == kind { self.bytes.get(ENTRIES_AT..) } else { None };
        let entries = bytes.unwrap_or_default().chunks_exact(ENTRY_BYTES);
        entries.map(words)
    }

    fn has_flag(&self, flag: u8) -> bool {
        self.kind == Kind::Pages && self.bytes[FLAGS_AT] & flag != 0
    }

    fn word(&self, at: usize) -> u64 {
        u64_at(self.bytes, at).unwrap_or_default()
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Change<'a> {
    pub(crate) page: PageId,
    /// One of [`change_kind`], or the index's own.
    pub(crate) kind: u8,
    /// [`super::record::ALLOCATES`] for an image, otherwise the kind's own.
    pub(crate) flags: u8,
    /// The payload; its kind defines the format.
    pub(crate) payload: &'a [u8],
}

impl<'a> Change<'a> {
    /// Offset and bytes of a change of kind [`change_kind::BYTES`]; `None` for other kinds, or if
    /// too short.
    pub(crate) fn overwrite(&self) -> Option<(u32, &'a [u8])> {
        let of_bytes = self.kind == change_kind::BYTES;
        let (offset, bytes) = self.payload.split_first_chunk::<4>()?;
        of_bytes.then_some((u32::from_le_bytes(*offset), bytes))
    }
}

fn split_change(bytes: &[u8]) -> Option<(Change<'_>, &[u8])> {
    let (header, behind) = bytes.split_at_checked(CHANGE_HEADER_BYTES)?;
    let length = u32_at(header, 12)? as usize;
    let (payload, rest) = behind.split_at_checked(padded(length))?;
    let page = PageId(u64_at(header, 0)?);
    if page.is_none() {
        return None;
    }
    Some((Change { page, kind: header[8], flags: header[9], payload: &payload[..length] }, rest))
}

fn words(entry: &[u8]) -> [u64; 4] {
    [0, 8, 16, 24].map(|at| u64_at(entry, at).unwrap_or_default())
}

fn extent(words: [u64; 4]) -> Extent {
    Extent { first: words[1], blocks: words[3] >> 32 }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::mapping_word::{BLOCKS_MAX, IMAGE_BLOCKS_MAX};
    use crate::wal::record::RecordBuilder;
    use proptest::prelude::*;

    /// Calls every accessor of a view.
    fn read_all(record: &RecordView<'_>) -> usize {
        let changes: usize = record.changes().map(|change| change.payload.len() + 1).sum();
        let entries = record.mappings().count() + record.chunks().count();
        changes + entries + record.undo().len() + record.compensation().map_or(0, |_| 1)
    }

    /// Seals arbitrary `bytes` with a valid checksum.
    fn reseal(bytes: &mut [u8]) {
        let check = checksum(bytes);
        bytes[..4].copy_from_slice(&check.to_le_bytes());
    }

    fn sample() -> Vec<u8> {
        let mut builder = RecordBuilder::pages(Timestamp(1), Lsn(8));
        builder.undo(b"before").change(PageId(1), 16, 0, b"one").change(PageId(2), 17, 0, &[7; 30]);
        builder.seal(Lsn(4096), 1).to_vec()
    }

    #[test]
    fn a_record_at_another_lsn_is_absent() {
        assert_eq!(RecordView::parse(&sample(), Lsn(4104)).unwrap_err(), NotARecord::Absent);
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let bytes = sample();
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(RecordView::parse(&flipped, Lsn(4096)).unwrap_err(), NotARecord::Absent, "bit {bit}");
        }
    }

    #[test]
    fn every_shortened_record_is_absent() {
        let bytes = sample();
        for length in 0..bytes.len() {
            assert_eq!(RecordView::parse(&bytes[..length], Lsn(4096)).unwrap_err(), NotARecord::Absent);
        }
    }

    #[test]
    fn an_unknown_kind_behind_a_good_checksum_is_malformed() {
        let mut bytes = sample();
        bytes[KIND_AT] = 200;
        reseal(&mut bytes);
        assert!(matches!(RecordView::parse(&bytes, Lsn(4096)), Err(NotARecord::Malformed(_))));
    }

    #[test]
    fn blocks_that_no_mapping_word_can_hold_are_malformed() {
        for first in [0, BLOCKS_MAX - 1, BLOCKS_MAX, u64::MAX] {
            for blocks in [0, 1, IMAGE_BLOCKS_MAX, IMAGE_BLOCKS_MAX + 1, u64::from(u32::MAX)] {
                let mut builder = RecordBuilder::mapping();
                let (page, image_lsn, extent) = (PageId(1), Lsn(64), Extent { first, blocks });
                builder.mapping_entry(super::super::MappingEntry { page, extent, image_lsn, check: 0 });
                let parsed = RecordView::parse(builder.seal(Lsn(4096), 1), Lsn(4096));
                assert_eq!(parsed.is_ok(), extent.is_possible(), "{extent:?}: {parsed:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn whatever_is_encoded_parses_back(
            transaction: u64, previous: u64, epoch: u32,
            undo in prop::collection::vec(any::<u8>(), 0..40),
            undo_last: bool,
            changes in prop::collection::vec(
                (1u64.., any::<u8>(), any::<u8>(), prop::collection::vec(any::<u8>(), 0..50)), 0..6),
        ) {
            let mut builder = RecordBuilder::new();
            builder.restart(Kind::Pages, Timestamp(transaction), Lsn(previous));
            if !undo_last { builder.undo(&undo); }
            for (page, kind, flags, payload) in &changes {
                builder.change(PageId(*page), *kind, *flags, payload);
            }
            if undo_last { builder.undo(&undo); }
            let record = RecordView::parse(builder.seal(Lsn(64), epoch), Lsn(64)).unwrap();
            prop_assert_eq!(record.transaction().0, transaction);
            prop_assert_eq!((record.previous().0, record.epoch()), (previous, epoch));
            prop_assert_eq!(record.undo(), &undo[..]);
            let read: Vec<_> =
                record.changes().map(|c| (c.page.0, c.kind, c.flags, c.payload.to_vec())).collect();
            prop_assert_eq!(read, changes);
        }

        /// Hostile bytes behind a good checksum: refused or readable, never a panic.
        #[test]
        fn hostile_bytes_do_not_panic(
            mut bytes in prop::collection::vec(any::<u8>(), 40..200),
            kind in 0u8..8,
            small in prop::collection::vec((40usize..200, 0u8..64), 0..8),
        ) {
            bytes.truncate(bytes.len() / 8 * 8);
            let length = bytes.len();
            for (at, byte) in small {
                if at < length { bytes[at / 4 * 4 % length..][..4].copy_from_slice(&u32::from(byte).to_le_bytes()); }
            }
            bytes[LENGTH_AT..LENGTH_AT + 4].copy_from_slice(&(length as u32).to_le_bytes());
            bytes[LSN_AT..LSN_AT + 8].copy_from_slice(&4096u64.to_le_bytes());
            bytes[KIND_AT] = kind;
            reseal(&mut bytes);
            if let Ok(record) = RecordView::parse(&bytes, Lsn(4096)) {
                read_all(&record);
            }
        }

        #[test]
        fn a_sound_record_with_a_hostile_word_does_not_panic(at in 5usize..28, value: u32) {
            let mut bytes = sample();
            let at = at * 4 % bytes.len();
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
            reseal(&mut bytes);
            if let Ok(record) = RecordView::parse(&bytes, Lsn(4096)) {
                read_all(&record);
            }
        }
    }
}
