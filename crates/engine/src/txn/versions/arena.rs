//! The memory of old versions: chunks of one reserved address range.
//!
//! A chunk has one writer at a time, its queue. Readers hold nothing: a [`Link`] names a word and
//! its chunk's generation, and a read counts if the generation is unchanged afterwards. The words
//! are atomic and stay mapped, so a late reader only reads other bytes.
//!
//! ```text
//!   writer that reuses a chunk              reader
//!   1. generation += 1                      a. read the words
//!   2. release fence (`Queue::push`)         b. acquire fence
//!   3. write the words                      c. compare the generation
//! ```

use std::sync::atomic::{
    AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, fence,
};

use parking_lot::Mutex;
use terrace_io::Region;

use super::record::{self, Header};
use super::version::{Link, OldVersion, QUEUES_MAX};
use crate::TableId;
use crate::error::{Error, Result};
use crate::pool::view::Racy;

/// The largest chunk, unless a record needs a larger one.
const CHUNK_BYTES_MAX: usize = 64 << 10;
const CHUNK_BYTES_MIN: usize = 8 << 10;
const WORDS_MAX: usize = u32::MAX as usize;

#[derive(Debug)]
pub(super) struct Arena {
    region: Region,
    chunk_bytes: usize,
    /// One word per chunk; 0 before its first use. A region, because most chunks are never used,
    /// and untouched ones take no memory.
    generations: Region,
    chunks: usize,
    free: Mutex<Free>,
    used: AtomicUsize,
    warm: AtomicUsize,
    /// Free chunks that keep their memory.
    warm_max: AtomicUsize,
}

#[derive(Debug, Default)]
struct Free {
    /// Free chunks with memory.
    warm: Vec<u32>,
    /// Free chunks without memory.
    cold: Vec<u32>,
    /// Chunks from here on were never used.
    end: u32,
}

impl Arena {
    /// Reserves `reserved` bytes of addresses in chunks. A chunk holds a record of
    /// `record_bytes_max`, and several chunks fit in `bytes_max`.
    pub(super) fn new(bytes_max: usize, reserved: usize, record_bytes_max: usize) -> Result<Self> {
        let chunk_bytes = (bytes_max / 64).clamp(CHUNK_BYTES_MIN, CHUNK_BYTES_MAX).max(record_bytes_max + 8);
        let chunk_bytes = chunk_bytes.next_power_of_two();
        let chunks = (reserved.max(bytes_max).min(WORDS_MAX * 8) / chunk_bytes).max(2 * QUEUES_MAX);
        let bytes = chunks * chunk_bytes;
        let reserve = |bytes| {
            Region::reserve_writable(bytes).map_err(|source| Error::Memory {
                bytes: bytes as u64,
                what: "addresses for old versions",
                source,
            })
        };
        Ok(Arena {
            region: reserve(bytes)?,
            chunk_bytes,
            generations: reserve((chunks * 8).next_multiple_of(4096))?,
            chunks,
            free: Mutex::default(),
            used: AtomicUsize::new(0),
            warm: AtomicUsize::new(0),
            warm_max: AtomicUsize::new(warm_max(bytes_max, chunk_bytes)),
        })
    }

    pub(super) fn chunk_words(&self) -> usize {
        self.chunk_bytes / 8
    }

    pub(super) fn bytes_max(&self) -> usize {
        self.chunks * self.chunk_bytes
    }

    /// The generation of a chunk, in the lower half.
    fn generation(&self, chunk: usize) -> &AtomicU64 {
        &self.generations.words(chunk * 8..chunk * 8 + 8)[0]
    }

    pub(super) fn take(&self) -> Option<u32> {
        let mut free = self.free.lock();
        let chunk = match free.warm.pop() {
            Some(chunk) => {
                self.warm.fetch_sub(1, Relaxed);
                chunk
            }
            None => match free.cold.pop() {
                Some(chunk) => chunk,
                None if (free.end as usize) < self.chunks => {
                    free.end += 1;
                    free.end - 1
                }
                None => return None,
            },
        };
        drop(free);
        self.used.fetch_add(1, Relaxed);
        let generation = self.generation(chunk as usize);
        // Never 0, so that no link is `Link::NONE`. Release: a reader that finds its version gone
        // also sees the mark that gave its snapshot up, set before the chunk's versions were
        // dropped.
        generation.store(u64::from((generation.load(Relaxed) as u32).wrapping_add(1).max(1)), Release);
        Some(chunk)
    }

    /// Returns a chunk whose versions are all dropped.
    pub(super) fn give(&self, chunk: u32) {
        self.used.fetch_sub(1, Relaxed);
        let mut free = self.free.lock();
        free.warm.push(chunk);
        self.warm.fetch_add(1, Relaxed);
        self.cool(&mut free);
    }

    /// Sets how many free chunks keep their memory; frees that of the others.
    pub(super) fn set_bytes_max(&self, bytes_max: usize) {
        self.warm_max.store(warm_max(bytes_max, self.chunk_bytes), Relaxed);
        self.cool(&mut self.free.lock());
    }

    fn cool(&self, free: &mut Free) {
        while free.warm.len() > self.warm_max.load(Relaxed)
            && let Some(chunk) = free.warm.pop()
        {
            let at = chunk as usize * self.chunk_bytes;
            if let Err(error) = self.region.release(at..at + self.chunk_bytes) {
                tracing::warn!(%error, "memory of old versions could not be given back");
                free.warm.push(chunk);
                return;
            }
            free.cold.push(chunk);
            self.warm.fetch_sub(1, Relaxed);
        }
    }

    pub(super) fn link(&self, chunk: u32, at: usize) -> Link {
        let generation = self.generation(chunk as usize).load(Relaxed);
        Link(generation << 32 | (chunk as usize * self.chunk_words() + at) as u64)
    }

    pub(super) fn words(&self, chunk: u32, at: usize) -> Racy<'_> {
        let start = chunk as usize * self.chunk_bytes;
        Racy::new(self.region.words(start + at * 8..start + self.chunk_bytes))
    }

    /// The words from a link to the end of its chunk; `None` for no link, or a reused chunk.
    fn behind(&self, link: Link) -> Option<Racy<'_>> {
        let chunk = link.word() / self.chunk_words();
        // A racy read may return garbage links.
        let there = link != Link::NONE && chunk < self.chunks;
        (there && self.generation(chunk).load(Acquire) == link.generation())
            .then(|| self.words(chunk as u32, link.word() % self.chunk_words()))
    }

    fn still_holds(&self, link: Link) -> bool {
        fence(Acquire);
        let chunk = link.word() / self.chunk_words();
        // Acquire: see `take`.
        self.generation(chunk).load(Acquire) == link.generation()
    }

    /// Reads behind a link with `read`; `None` if its chunk was reused meanwhile.
    fn read<T>(&self, link: Link, read: impl FnOnce(Racy<'_>) -> T) -> Option<T> {
        let result = read(self.behind(link)?);
        self.still_holds(link).then_some(result)
    }

    pub(super) fn header(&self, link: Link) -> Option<Header> {
        self.read(link, record::header)
    }

    pub(super) fn is_of(&self, link: Link, table: TableId, key: &[u8]) -> bool {
        self.read(link, |words| record::is_of(words, table, key)).unwrap_or(false)
    }

    pub(super) fn version(&self, link: Link) -> Option<OldVersion> {
        self.read(link, record::version)
    }

    /// Marks the version behind `link` as retracted. Only for its pusher, with the key still
    /// locked.
    pub(super) fn retract(&self, link: Link) {
        if let Some(words) = self.behind(link) {
            record::retract(words);
        }
    }

    /// Marks the version behind `link` as restored to its leaf. Only for its pusher, with the key
    /// still locked.
    pub(super) fn restored(&self, link: Link) {
        if let Some(words) = self.behind(link) {
            record::restored(words);
        }
    }

    pub(super) fn used_bytes(&self) -> usize {
        self.used.load(Relaxed) * self.chunk_bytes
    }

    /// Bytes of all chunks with memory.
    pub(super) fn resident_bytes(&self) -> usize {
        (self.used.load(Relaxed) + self.warm.load(Relaxed)) * self.chunk_bytes
            + self.free.lock().end as usize * 8
    }
}

/// Free chunks that keep their memory under a limit of `bytes_max` bytes.
fn warm_max(bytes_max: usize, chunk_bytes: usize) -> usize {
    (bytes_max / chunk_bytes / 8).max(2)
}
