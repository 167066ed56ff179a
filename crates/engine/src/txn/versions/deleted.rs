//! The deleted keys with an old version, for scans in the past.
//!
//! Each part, by table, has a key count that is read without the mutex. Zero means that nothing was
//! deleted before the reader read its leaf: a commit raises the count before it changes the page.
//!
//! An undone deletion must not let the count fall to zero again. A reader without a snapshot may
//! have found the key gone, and may ask at any later time. So the part then counts one more until
//! the next open, and reads of absent keys take a snapshot there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};

use parking_lot::Mutex;

use super::super::{Key, KeyRange, Padded, is_empty_range};
use crate::{TableId, Timestamp};

const PARTS: usize = 16;
/// A key's share of a B-tree two thirds full, counts and allocator overhead.
const ENTRY_BYTES: usize = (size_of::<Key>() + size_of::<Deletions>()) * 3 / 2 + 16 + 8;

#[derive(Debug, Default)]
pub(super) struct DeletedKeys {
    parts: [Padded<Part>; PARTS],
}

#[derive(Debug, Default)]
struct Part {
    /// Keys, plus one if a deletion was undone.
    keys: AtomicUsize,
    taken_back: AtomicBool,
    key_bytes: AtomicUsize,
    tables: Mutex<BTreeMap<TableId, BTreeMap<Key, Deletions>>>,
}

#[derive(Debug)]
struct Deletions {
    /// Versions kept that a deletion superseded.
    kept: usize,
    latest: Timestamp,
}

impl DeletedKeys {
    fn part(&self, table: TableId) -> &Part {
        &self.parts[table.0 as usize % PARTS]
    }

    pub(super) fn insert(&self, table: TableId, key: &Key, at: Timestamp) {
        let part = self.part(table);
        let mut tables = part.tables.lock();
        let keys = tables.entry(table).or_default();
        let deletions = keys.entry(Arc::clone(key)).or_insert_with(|| {
            part.keys.fetch_add(1, SeqCst);
            part.key_bytes.fetch_add(key.len(), Relaxed);
            Deletions { kept: 0, latest: at }
        });
        deletions.kept += 1;
        deletions.latest = deletions.latest.max(at);
    }

    pub(super) fn remove(&self, table: TableId, key: &[u8]) {
        let part = self.part(table);
        let mut tables = part.tables.lock();
        let Some(keys) = tables.get_mut(&table) else { return };
        let Some(deletions) = keys.get_mut(key) else { return };
        deletions.kept -= 1;
        if deletions.kept == 0 {
            keys.remove(key);
            part.keys.fetch_sub(1, SeqCst);
            part.key_bytes.fetch_sub(key.len(), Relaxed);
            if keys.is_empty() {
                tables.remove(&table);
            }
        }
    }

    /// Notes an undone deletion from `table`: unknown readers may have found its key gone.
    pub(super) fn note_taken_back(&self, table: TableId) {
        let part = self.part(table);
        if !part.taken_back.swap(true, SeqCst) {
            part.keys.fetch_add(1, SeqCst);
        }
    }

    /// Whether nothing was deleted from `table`.
    #[inline]
    pub(super) fn is_empty(&self, table: TableId) -> bool {
        self.part(table).keys.load(SeqCst) == 0
    }

    pub(super) fn keys_in(&self, table: TableId, range: KeyRange<'_>, at: Timestamp) -> Vec<Key> {
        if is_empty_range(range) {
            return Vec::new();
        }
        let tables = self.part(table).tables.lock();
        let keys = tables.get(&table).map(|keys| keys.range::<[u8], _>(range));
        let later = keys.into_iter().flatten().filter(|(_, deletions)| deletions.latest > at);
        later.map(|(key, _)| Arc::clone(key)).collect()
    }

    pub(super) fn size_bytes(&self) -> usize {
        let bytes = |part: &Part| part.keys.load(SeqCst) * ENTRY_BYTES + part.key_bytes.load(Relaxed);
        self.parts.iter().map(|part| bytes(part)).sum()
    }
}
