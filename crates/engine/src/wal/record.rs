//! The format of records, and their builder; `parse.rs` reads them.
//!
//! A record is one atomic change of one or several pages, or a note about the log itself. Numbers
//! are little-endian; records begin at multiples of 8, and their lengths are multiples of 8.
//!
//! ```text
//!  0        4        8       16      20     21      22  24            32             40
//!  | crc32c | length | LSN   | epoch | kind | flags | 0 | transaction | previous LSN | body ...
//! ```
//!
//! The checksum covers everything behind it up to the length, LSN and epoch included: old bytes of
//! the ring cannot pass for the expected record.
//!
//! ```text
//!  Pages    | undo_next u64 | undo_len u32 | undo, padded to 8 | count u32 | changes ...
//!  change   | page u64 | kind u8 | flags u8 | 0 u16 | len u32 | payload, padded to 8
//!  Mapping  | count u32 | 0 u32 | page u64, block u64, image LSN u64, check u32, blocks u32 ...
//!  Chunk    | count u32 | 0 u32 | chunk u64, block u64, current LSN u64, check u32, blocks u32 ...
//!  Commit, End: empty. Noop: anything.
//! ```
//!
//! A builder is filled outside every latch, before its LSN is known. Sealing patches two fields and
//! computes the checksum. Builders are reused, so a commit allocates nothing.

use crate::ids::{Lsn, PageId, Timestamp};
use crate::store::mapping_word::Extent;

pub(crate) const HEADER_BYTES: usize = 40;
/// The longest record for any buffer size; readers must hold it.
pub(crate) const RECORD_BYTES_MAX: usize = 16 << 20;
/// Every record's offset and length is a multiple of this.
pub(crate) const RECORD_ALIGNMENT: usize = 8;

pub(super) const LENGTH_AT: usize = 4;
pub(super) const LSN_AT: usize = 8;
pub(super) const EPOCH_AT: usize = 16;
pub(super) const KIND_AT: usize = 20;
pub(super) const FLAGS_AT: usize = 21;
pub(super) const TRANSACTION_AT: usize = 24;
pub(super) const PREVIOUS_AT: usize = 32;
/// In a Pages record.
pub(super) const UNDO_NEXT_AT: usize = HEADER_BYTES;
pub(super) const UNDO_LENGTH_AT: usize = HEADER_BYTES + 8;
pub(super) const UNDO_AT: usize = HEADER_BYTES + 12;
/// In a Mapping or Chunk record.
pub(super) const COUNT_AT: usize = HEADER_BYTES;
pub(super) const ENTRIES_AT: usize = HEADER_BYTES + 8;
pub(super) const CHANGE_HEADER_BYTES: usize = 16;
pub(super) const ENTRY_BYTES: usize = 32;

/// Flag of a Pages record: it also commits its transaction.
pub(crate) const COMMITS: u8 = 1;
/// Flag of a Pages record: it undoes another one, and names what to undo next.
pub(crate) const COMPENSATION: u8 = 2;
/// Flag of an image change: it allocates the page.
pub(crate) const ALLOCATES: u8 = 1;

/// Kinds of change within a Pages record. Those from [`change_kind::INDEX_FIRST`] on belong to the
/// index.
pub(crate) mod change_kind {
    /// The payload is the page's content, in the store's compact form.
    pub(crate) const IMAGE: u8 = 1;
    /// Frees the page. No payload.
    pub(crate) const FREE: u8 = 2;
    /// The payload is an offset, four bytes, and the bytes to write there.
    pub(crate) const BYTES: u8 = 3;
    /// The first of the index's own kinds.
    pub(crate) const INDEX_FIRST: u8 = 16;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Fills a drawn slot of the log that could not be used.
    Noop = 0,
    Pages = 1,
    Commit = 2,
    /// Closes a loser whose changes are all undone.
    End = 3,
    /// Page images were written and synced; their mappings apply once this is durable.
    Mapping = 4,
    /// Chunks of the page table were written and synced.
    Chunk = 5,
}

impl Kind {
    pub(super) fn from_byte(byte: u8) -> Option<Kind> {
        const ALL: [Kind; 6] = [Kind::Noop, Kind::Pages, Kind::Commit, Kind::End, Kind::Mapping, Kind::Chunk];
        ALL.get(usize::from(byte)).copied()
    }
}

/// An entry of a Mapping record: the page's newest image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MappingEntry {
    pub(crate) page: PageId,
    pub(crate) extent: Extent,
    /// The page's LSN in that image.
    pub(crate) image_lsn: Lsn,
    pub(crate) check: u32,
}

/// An entry of a Chunk record: the chunk's newest image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChunkEntry {
    /// The chunk, by class and number.
    pub(crate) chunk: PageId,
    pub(crate) extent: Extent,
    /// The log position up to which the image is current.
    pub(crate) current_lsn: Lsn,
    pub(crate) check: u32,
}

pub(super) const fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(RECORD_ALIGNMENT)
}

/// The checksum of a record's bytes, without the four that hold it.
pub(super) fn checksum(record: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(&record[LENGTH_AT..])
}

/// A record under construction. [`RecordBuilder::restart`] reuses its memory.
#[derive(Clone, Debug)]
pub(crate) struct RecordBuilder {
    bytes: Vec<u8>,
    /// Offset of the count of changes or entries, if this kind has one.
    count_at: usize,
}

impl Default for RecordBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl RecordBuilder {
    /// A no-op record, to restart as another kind.
    pub(crate) fn new() -> Self {
        let mut builder = Self { bytes: Vec::new(), count_at: 0 };
        builder.restart(Kind::Noop, Timestamp::NONE, Lsn::NONE);
        builder
    }

    fn started(kind: Kind, transaction: Timestamp, previous: Lsn) -> Self {
        let mut builder = Self { bytes: Vec::new(), count_at: 0 };
        builder.restart(kind, transaction, previous);
        builder
    }

    /// A Pages record of `transaction` (none: the system), after its record `previous`.
    pub(crate) fn pages(transaction: Timestamp, previous: Lsn) -> Self {
        Self::started(Kind::Pages, transaction, previous)
    }

    /// The commit record of a transaction, if no change carries the flag.
    #[cfg(test)]
    pub(crate) fn commit(transaction: Timestamp, previous: Lsn) -> Self {
        Self::started(Kind::Commit, transaction, previous)
    }

    pub(crate) fn end(transaction: Timestamp, previous: Lsn) -> Self {
        Self::started(Kind::End, transaction, previous)
    }

    pub(crate) fn mapping() -> Self {
        Self::started(Kind::Mapping, Timestamp::NONE, Lsn::NONE)
    }

    pub(crate) fn chunk() -> Self {
        Self::started(Kind::Chunk, Timestamp::NONE, Lsn::NONE)
    }

    /// The length of a Mapping or Chunk record of `entries` entries.
    pub(crate) const fn bytes_of_entries(entries: usize) -> u64 {
        (ENTRIES_AT + entries * ENTRY_BYTES) as u64
    }

    pub(crate) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    pub(crate) fn restart(&mut self, kind: Kind, transaction: Timestamp, previous: Lsn) -> &mut Self {
        self.bytes.clear();
        self.bytes.resize(HEADER_BYTES, 0);
        self.bytes[KIND_AT] = kind as u8;
        put_u64(&mut self.bytes, TRANSACTION_AT, transaction.0);
        put_u64(&mut self.bytes, PREVIOUS_AT, previous.0);
        match kind {
            Kind::Pages => {
                self.bytes.resize(UNDO_AT + 4, 0);
                self.count_at = UNDO_AT;
            }
            Kind::Mapping | Kind::Chunk => {
                self.bytes.resize(ENTRIES_AT, 0);
                self.count_at = COUNT_AT;
            }
            Kind::Noop | Kind::Commit | Kind::End => self.count_at = 0,
        }
        self.note_length();
        self
    }

    /// Sets the transaction of a record built before its timestamp was known.
    pub(crate) fn set_transaction(&mut self, transaction: Timestamp) -> &mut Self {
        put_u64(&mut self.bytes, TRANSACTION_AT, transaction.0);
        self
    }

    pub(crate) fn only_payload_mut(&mut self) -> &mut [u8] {
        assert_eq!(self.count(), 1, "a record of one change");
        let at = self.count_at + 4 + CHANGE_HEADER_BYTES;
        let length = &self.bytes[at - 4..at];
        let length = u32::from_le_bytes(length.try_into().expect("four bytes")) as usize;
        &mut self.bytes[at..at + length]
    }

    pub(crate) fn set_commit(&mut self) -> &mut Self {
        self.assert_kind(Kind::Pages);
        self.bytes[FLAGS_AT] |= COMMITS;
        self
    }

    /// Makes this a compensation record; `undo_next` is what to undo after it.
    pub(crate) fn compensation(&mut self, undo_next: Lsn) -> &mut Self {
        self.assert_kind(Kind::Pages);
        self.bytes[FLAGS_AT] |= COMPENSATION;
        put_u64(&mut self.bytes, UNDO_NEXT_AT, undo_next.0);
        self
    }

    /// Sets the undo data. Once per record; cheapest before the first change.
    pub(crate) fn undo(&mut self, undo: &[u8]) -> &mut Self {
        self.assert_kind(Kind::Pages);
        assert_eq!(self.count_at, UNDO_AT, "a record has one undo");
        put_u32(&mut self.bytes, UNDO_LENGTH_AT, length_u32(undo.len()));
        self.bytes.extend_from_slice(undo);
        self.bytes.resize(padded(undo.len()) - undo.len() + self.bytes.len(), 0);
        self.bytes[UNDO_AT..].rotate_right(padded(undo.len()));
        self.count_at += padded(undo.len());
        self.note_length();
        self
    }

    pub(crate) fn change(&mut self, page: PageId, kind: u8, flags: u8, payload: &[u8]) -> &mut Self {
        self.change_with(page, kind, flags, |out| out.extend_from_slice(payload))
    }

    pub(crate) fn change_bytes(&mut self, page: PageId, offset: u32, bytes: &[u8]) -> &mut Self {
        self.change_with(page, change_kind::BYTES, 0, |out| {
            out.extend_from_slice(&offset.to_le_bytes());
            out.extend_from_slice(bytes);
        })
    }

    /// Adds the change of one page; `write` appends its payload to the vector and must not shorten
    /// it.
    pub(crate) fn change_with(
        &mut self,
        page: PageId,
        kind: u8,
        flags: u8,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> &mut Self {
        self.assert_kind(Kind::Pages);
        let at = self.bytes.len();
        let mut header = [0; CHANGE_HEADER_BYTES];
        put_u64(&mut header, 0, page.0);
        header[8] = kind;
        header[9] = flags;
        self.bytes.extend_from_slice(&header);
        write(&mut self.bytes);
        let length = self.bytes.len().checked_sub(at + CHANGE_HEADER_BYTES).expect("payload only grows");
        put_u32(&mut self.bytes, at + 12, length_u32(length));
        self.bytes.resize(padded(self.bytes.len()), 0);
        self.count_one_more();
        self
    }

    pub(crate) fn mapping_entry(&mut self, entry: MappingEntry) -> &mut Self {
        self.assert_kind(Kind::Mapping);
        self.entry(entry.page.0, entry.extent, entry.image_lsn, entry.check)
    }

    pub(crate) fn chunk_entry(&mut self, entry: ChunkEntry) -> &mut Self {
        self.assert_kind(Kind::Chunk);
        self.entry(entry.chunk.0, entry.extent, entry.current_lsn, entry.check)
    }

    pub(crate) fn count(&self) -> u32 {
        match self.count_at {
            0 => 0,
            at => u32::from_le_bytes(self.bytes[at..at + 4].try_into().expect("four bytes")),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Sets LSN and epoch, and seals the record with its checksum.
    pub(super) fn seal(&mut self, lsn: Lsn, epoch: u32) -> &[u8] {
        put_u64(&mut self.bytes, LSN_AT, lsn.0);
        put_u32(&mut self.bytes, EPOCH_AT, epoch);
        let check = checksum(&self.bytes);
        put_u32(&mut self.bytes, 0, check);
        &self.bytes
    }

    /// A sealed no-op record of `length` bytes, for an unused slot.
    pub(super) fn sealed_noop(lsn: Lsn, epoch: u32, length: usize) -> Vec<u8> {
        let mut builder = Self::new();
        builder.bytes.resize(length, 0);
        builder.note_length();
        builder.seal(lsn, epoch);
        builder.bytes
    }

    fn entry(&mut self, of: u64, extent: Extent, lsn: Lsn, check: u32) -> &mut Self {
        for word in [of, extent.first, lsn.0, extent.blocks << 32 | u64::from(check)] {
            self.bytes.extend_from_slice(&word.to_le_bytes());
        }
        self.count_one_more();
        self
    }

    fn count_one_more(&mut self) {
        let count = self.count() + 1;
        put_u32(&mut self.bytes, self.count_at, count);
        self.note_length();
    }

    fn note_length(&mut self) {
        let length = length_u32(self.bytes.len());
        put_u32(&mut self.bytes, LENGTH_AT, length);
    }

    fn assert_kind(&self, kind: Kind) {
        assert_eq!(self.bytes[KIND_AT], kind as u8, "only a {kind:?} record has this");
    }
}

fn length_u32(bytes: usize) -> u32 {
    u32::try_from(bytes).expect("a record is far below 4 GiB")
}

fn put_u32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

fn put_u64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wal::parse::RecordView;

    const EXTENT: Extent = Extent { first: 2, blocks: 3 };

    #[test]
    fn a_record_may_learn_late_whose_it_is() {
        let early =
            RecordBuilder::pages(Timestamp(9), Lsn::NONE).change(PageId(3), 16, 0, b"9 payload").clone();
        let mut late = RecordBuilder::pages(Timestamp::NONE, Lsn::NONE);
        late.change(PageId(3), 16, 0, b"? payload").set_transaction(Timestamp(9));
        assert_eq!(late.only_payload_mut().len(), 9);
        late.only_payload_mut()[0] = b'9';
        assert_eq!(late.seal(Lsn(4096), 1), early.clone().seal(Lsn(4096), 1));
    }

    #[test]
    fn all_parts_of_a_pages_record_come_back() {
        let mut builder = RecordBuilder::pages(Timestamp(9), Lsn(4096));
        builder
            .undo(b"undo me")
            .change(PageId(5), change_kind::FREE, 0, b"")
            .compensation(Lsn(77))
            .set_commit();
        builder.change_with(PageId(6), 16, 3, |out| out.extend_from_slice(b"payload"));
        builder.change_bytes(PageId(7), 24, b"abc");
        let length = builder.len();
        let bytes = builder.seal(Lsn(8192), 3).to_vec();

        let record = RecordView::parse(&bytes, Lsn(8192)).unwrap();
        assert_eq!((record.lsn(), record.epoch(), record.kind()), (Lsn(8192), 3, Kind::Pages));
        assert_eq!((record.transaction(), record.previous()), (Timestamp(9), Lsn(4096)));
        assert_eq!(record.end(), Lsn(8192 + length as u64));
        assert!(record.commits());
        assert_eq!(record.compensation(), Some(Lsn(77)));
        assert_eq!(record.undo(), b"undo me");
        let changes: Vec<_> = record.changes().collect();
        assert_eq!(changes.len(), 3);
        assert_eq!(
            (changes[0].page, changes[0].kind, changes[0].payload),
            (PageId(5), change_kind::FREE, &b""[..])
        );
        assert_eq!((changes[1].page, changes[1].flags, changes[1].payload), (PageId(6), 3, &b"payload"[..]));
        assert_eq!(changes[2].overwrite(), Some((24, &b"abc"[..])));
    }

    #[test]
    fn undo_may_be_given_after_the_changes() {
        let mut before = RecordBuilder::pages(Timestamp(1), Lsn::NONE);
        before.undo(b"0123456789").change(PageId(1), 16, 0, b"x");
        let mut after = RecordBuilder::pages(Timestamp(1), Lsn::NONE);
        after.change(PageId(1), 16, 0, b"x").undo(b"0123456789");
        assert_eq!(before.seal(Lsn(8), 1), after.seal(Lsn(8), 1));
    }

    #[test]
    fn entries_come_back() {
        let mapping = MappingEntry { page: PageId(1), extent: EXTENT, image_lsn: Lsn(3), check: 4 };
        let chunk = ChunkEntry { chunk: PageId(5), extent: EXTENT, current_lsn: Lsn(7), check: u32::MAX };
        let mut builder = RecordBuilder::mapping();
        builder.mapping_entry(mapping).mapping_entry(MappingEntry { page: PageId(9), ..mapping });
        assert_eq!(builder.count(), 2);
        let bytes = builder.seal(Lsn(4096), 1).to_vec();
        let pages: Vec<_> =
            RecordView::parse(&bytes, Lsn(4096)).unwrap().mappings().map(|entry| entry.page.0).collect();
        assert_eq!(pages, [1, 9]);

        builder.restart(Kind::Chunk, Timestamp::NONE, Lsn::NONE).chunk_entry(chunk);
        let record = RecordView::parse(builder.seal(Lsn(4096), 1), Lsn(4096)).unwrap();
        assert_eq!(record.chunks().collect::<Vec<_>>(), [chunk]);
        assert_eq!(record.mappings().count(), 0);
    }

    #[test]
    fn a_noop_fills_any_length() {
        for length in [40, 48, 4096] {
            let bytes = RecordBuilder::sealed_noop(Lsn(4096), 2, length);
            let record = RecordView::parse(&bytes, Lsn(4096)).unwrap();
            assert_eq!((record.kind(), record.len()), (Kind::Noop, length));
        }
    }

    #[test]
    #[should_panic(expected = "only a Mapping record")]
    fn a_commit_takes_no_entries() {
        let entry = MappingEntry { page: PageId(1), extent: EXTENT, image_lsn: Lsn(3), check: 4 };
        RecordBuilder::commit(Timestamp(1), Lsn::NONE).mapping_entry(entry);
    }
}
