//! Which table or index a page belongs to, learnt from the pages that pass by.
//!
//! SQLite reaches a page by its parent, so whoever sees all reads and writes of a file sees the parents first: page 1 is the
//! root of the schema, whose entries name the roots of tables and indexes, whose pages name their children. Nothing is ever
//! read for this. A page that was not seen to have a parent has no relation, and one that was given to another table keeps its
//! old relation until its new parent passes by: it is a hint, and what uses it works without.
//!
//! A relation's number is the page of its root; 1 is the schema itself. A page is looked at again only after it was written.
//! Memory is four bytes for each page, in pieces of 1 MiB; pages beyond the first 2^26 have no relation.

use std::collections::{BTreeMap, HashMap};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;

use crate::btree::{self, Reference, Root};

const CHUNK_PAGES: usize = 1 << 18;
const CHUNKS: usize = 1 << 8;

/// The most relations whose names are kept.
const NAMES_MAX: usize = 1 << 16;

/// The relation of the schema, and the page of its root.
pub(crate) const SCHEMA: u32 = 1;

/// What is known of a page: its relation, whether it holds a payload that overflowed, and whether it was looked at.
const RELATION: u32 = (1 << 30) - 1;
const OVERFLOW: u32 = 1 << 30;
const SEEN: u32 = 1 << 31;

/// The relations of the pages of one file.
pub(crate) struct RelationMap {
    chunks: Box<[OnceLock<Box<[AtomicU32]>>]>,
    /// Bytes at the end of each page that are not SQLite's.
    reserved: AtomicU32,
    roots: Mutex<BTreeMap<u32, Root>>,
    /// How many pages each relation has, as far as they were seen.
    pages: Mutex<HashMap<u32, u32>>,
}

impl Default for RelationMap {
    fn default() -> Self {
        let chunks = (0..CHUNKS).map(|_| OnceLock::new()).collect();
        Self { chunks, reserved: AtomicU32::new(0), roots: Mutex::default(), pages: Mutex::default() }
    }
}

impl RelationMap {
    /// The relation of page `page`, counted from 1.
    pub fn relation(&self, page: u32) -> Option<u32> {
        // Relaxed, here and below: each word stands for itself, and is a hint.
        let word = self.word(page)?.load(Ordering::Relaxed);
        (word & RELATION != 0).then_some(word & RELATION)
    }

    /// The table or index of which `relation` is the number.
    pub fn name(&self, relation: u32) -> Option<Root> {
        if relation == SCHEMA {
            return Some(Root { page: SCHEMA, name: "sqlite_schema".to_owned(), is_index: false });
        }
        self.roots.lock().get(&relation).cloned()
    }

    /// How many pages are known to be of `relation`.
    pub fn pages(&self, relation: u32) -> Option<u32> {
        self.pages.lock().get(&relation).copied()
    }

    /// Page `page` was read or written with these bytes.
    pub fn observe(&self, page: u32, bytes: &[u8], written: bool) {
        let Some(place) = self.place(page) else { return };
        let mut word = place.load(Ordering::Relaxed);
        if word & SEEN != 0 && !written {
            return;
        }
        if page == SCHEMA {
            word = SCHEMA;
            self.reserved.store(bytes.get(20).copied().unwrap_or(0).into(), Ordering::Relaxed);
        }
        let relation = word & RELATION;
        if relation == 0 {
            return;
        }
        place.store(word | SEEN, Ordering::Relaxed);
        if word & OVERFLOW != 0 {
            self.assign(btree::next_overflow(bytes), relation | OVERFLOW);
            return;
        }
        let usable = bytes.len().saturating_sub(self.reserved.load(Ordering::Relaxed) as usize);
        btree::references(bytes, page == SCHEMA, usable, relation == SCHEMA, |reference| match reference {
            Reference::Child(child) => self.assign(child, relation),
            Reference::Overflow(first) => self.assign(first, relation | OVERFLOW),
            Reference::Root(root) => {
                self.assign(root.page, root.page);
                let mut roots = self.roots.lock();
                if roots.len() < NAMES_MAX || roots.contains_key(&root.page) {
                    roots.insert(root.page, root);
                }
            }
        });
    }

    /// Somebody else has changed the file: everything is looked at again.
    pub fn forget_what_was_seen(&self) {
        for word in self.chunks.iter().filter_map(OnceLock::get).flatten() {
            word.fetch_and(!SEEN, Ordering::Relaxed);
        }
    }

    fn assign(&self, page: u32, known: u32) {
        // The schema's root is nobody's child, and a relation that does not fit has no number.
        if page <= SCHEMA || known & RELATION == 0 || known & SEEN != 0 {
            return;
        }
        let Some(place) = self.place(page) else { return };
        let before = place.load(Ordering::Relaxed) & !SEEN;
        if before == known {
            return;
        }
        place.store(known, Ordering::Relaxed);
        if before & RELATION != known & RELATION {
            let mut pages = self.pages.lock();
            if let Some(count) = pages.get_mut(&(before & RELATION)) {
                *count = count.saturating_sub(1);
            }
            if pages.len() < NAMES_MAX || pages.contains_key(&(known & RELATION)) {
                *pages.entry(known & RELATION).or_insert(0) += 1;
            }
        }
    }

    fn word(&self, page: u32) -> Option<&AtomicU32> {
        let chunk = self.chunks.get(page as usize / CHUNK_PAGES)?.get()?;
        chunk.get(page as usize % CHUNK_PAGES)
    }

    /// As [`RelationMap::word`], which makes the piece if it is not there.
    fn place(&self, page: u32) -> Option<&AtomicU32> {
        let chunk = self.chunks.get(page as usize / CHUNK_PAGES)?;
        let chunk = chunk.get_or_init(|| (0..CHUNK_PAGES).map(|_| AtomicU32::new(0)).collect());
        chunk.get(page as usize % CHUNK_PAGES)
    }
}
