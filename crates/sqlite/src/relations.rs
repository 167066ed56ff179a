//! Maps pages to tables and indexes, learnt from the pages that pass by.
//!
//! SQLite reaches a page through its parent: page 1 is the schema's root, schema entries name the
//! roots of tables and indexes, and their pages name children. So the map reads nothing itself. It
//! is a hint. A page whose parent was not seen has no relation. A page that moved to another table
//! keeps its relation until the new parent passes by.
//!
//! A relation's number is its root page; 1 is the schema. Memory: four bytes per page, in chunks of
//! 1 MiB; pages beyond 2^26 have no relation.

use std::collections::{BTreeMap, HashMap};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;

use crate::btree::{self, Reference, Root};

const CHUNK_PAGES: usize = 1 << 18;
const CHUNKS: usize = 1 << 8;

/// Limit of relations whose names are kept.
const NAMES_MAX: usize = 1 << 16;

/// Relation of the schema, which is also its root page.
pub(crate) const SCHEMA: u32 = 1;

/// Bits of a page's word: relation, overflow page, already parsed.
const RELATION: u32 = (1 << 30) - 1;
const OVERFLOW: u32 = 1 << 30;
const SEEN: u32 = 1 << 31;

pub(crate) struct RelationMap {
    chunks: Box<[OnceLock<Box<[AtomicU32]>>]>,
    /// Reserved bytes at the end of each page.
    reserved: AtomicU32,
    roots: Mutex<BTreeMap<u32, Root>>,
    /// Known pages per relation.
    pages: Mutex<HashMap<u32, u32>>,
}

impl Default for RelationMap {
    fn default() -> Self {
        let chunks = (0..CHUNKS).map(|_| OnceLock::new()).collect();
        Self { chunks, reserved: AtomicU32::new(0), roots: Mutex::default(), pages: Mutex::default() }
    }
}

impl RelationMap {
    /// The relation of `page`, counted from 1.
    pub fn relation(&self, page: u32) -> Option<u32> {
        // Relaxed, here and below: each word is a hint by itself.
        let word = self.word(page)?.load(Ordering::Relaxed);
        (word & RELATION != 0).then_some(word & RELATION)
    }

    /// The table or index with this number.
    pub fn name(&self, relation: u32) -> Option<Root> {
        if relation == SCHEMA {
            return Some(Root { page: SCHEMA, name: "sqlite_schema".to_owned(), is_index: false });
        }
        self.roots.lock().get(&relation).cloned()
    }

    pub fn pages(&self, relation: u32) -> Option<u32> {
        self.pages.lock().get(&relation).copied()
    }

    /// Learns from the bytes of a page that was read or written.
    pub fn observe(&self, page: u32, bytes: &[u8], written: bool) {
        let Some(position) = self.position(page) else { return };
        let mut word = position.load(Ordering::Relaxed);
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
        position.store(word | SEEN, Ordering::Relaxed);
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

    /// Parses every page again, after changes by another program.
    pub fn forget_what_was_seen(&self) {
        for word in self.chunks.iter().filter_map(OnceLock::get).flatten() {
            word.fetch_and(!SEEN, Ordering::Relaxed);
        }
    }

    fn assign(&self, page: u32, known: u32) {
        // The schema root has no parent. A relation above the bits has no number.
        if page <= SCHEMA || known & RELATION == 0 || known & SEEN != 0 {
            return;
        }
        let Some(position) = self.position(page) else { return };
        let before = position.load(Ordering::Relaxed) & !SEEN;
        if before == known {
            return;
        }
        position.store(known, Ordering::Relaxed);
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

    /// Like [`RelationMap::word`], but allocates the chunk.
    fn position(&self, page: u32) -> Option<&AtomicU32> {
        let chunk = self.chunks.get(page as usize / CHUNK_PAGES)?;
        let chunk = chunk.get_or_init(|| (0..CHUNK_PAGES).map(|_| AtomicU32::new(0)).collect());
        chunk.get(page as usize % CHUNK_PAGES)
    }
}
