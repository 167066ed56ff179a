//! The memory of old versions: chunks of one reserved range of addresses.
//!
//! A chunk has one writer at a time, the queue it belongs to. Readers hold nothing: a [`Link`] names a place and the
//! generation of its chunk, and what was read there counts if the chunk still is of that generation afterwards. The
//! words are atomic and never unmapped, so a reader that comes too late reads other bytes and nothing worse.
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
use terrace_block::Region;

use super::OldVersion;
use super::record::{self, Header};
use crate::TableId;
use crate::buffer::view::Racy;
use crate::error::{Error, Result};

/// The largest chunk that is used when records do not need a larger one.
const CHUNK_BYTES_MAX: usize = 64 << 10;
const CHUNK_BYTES_MIN: usize = 8 << 10;
/// A link has 32 bits for the word.
const WORDS_MAX: usize = u32::MAX as usize;

/// Where a version is: generation of the chunk in the upper half, word of the arena in the lower one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Link(pub(super) u64);

impl Link {
    pub(super) const NONE: Link = Link(0);

    fn word(self) -> usize {
        self.0 as u32 as usize
    }

    fn generation(self) -> u64 {
        self.0 >> 32
    }
}

#[derive(Debug)]
pub(super) struct Arena {
    region: Region,
    chunk_bytes: usize,
    /// Of each chunk, a word; 0 before its first use. A region, because most chunks are never used, and what was never
    /// touched takes no memory.
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
    /// Chunks that have memory behind them.
    warm: Vec<u32>,
    /// Chunks whose memory was given back.
    cold: Vec<u32>,
    /// Chunks from here on were never used.
    end: u32,
}

impl Arena {
    /// Reserves `reserved` bytes of addresses in chunks of at least `record_bytes_max`, several of them to `bytes_max`.
    pub(super) fn new(bytes_max: usize, reserved: usize, record_bytes_max: usize) -> Result<Self> {
        let chunk_bytes = (bytes_max / 64).clamp(CHUNK_BYTES_MIN, CHUNK_BYTES_MAX).max(record_bytes_max + 8);
        let chunk_bytes = chunk_bytes.next_power_of_two();
        let chunks = (reserved.max(bytes_max).min(WORDS_MAX * 8) / chunk_bytes).max(2 * super::QUEUES_MAX);
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

    /// Bytes of all chunks there can be.
    pub(super) fn bytes_max(&self) -> usize {
        self.chunks * self.chunk_bytes
    }

    /// The generation of a chunk, in the lower half.
    fn generation(&self, chunk: usize) -> &AtomicU64 {
        &self.generations.words(chunk * 8..chunk * 8 + 8)[0]
    }

    /// A chunk nobody uses, if there is one.
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
        // Never 0, so that no link is `Link::NONE`. Release: a reader that finds its version gone also finds the mark
        // that gave its snapshot up, which was set before anything of the chunk was dropped.
        generation.store(u64::from((generation.load(Relaxed) as u32).wrapping_add(1).max(1)), Release);
        Some(chunk)
    }

    /// Takes back a chunk of which everything is dropped.
    pub(super) fn give(&self, chunk: u32) {
        self.used.fetch_sub(1, Relaxed);
        let mut free = self.free.lock();
        free.warm.push(chunk);
        self.warm.fetch_add(1, Relaxed);
        self.cool(&mut free);
    }

    /// As many free chunks keep their memory as go with this limit; the memory of others is given back.
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

    /// The link to word `at` of a chunk in use.
    pub(super) fn link(&self, chunk: u32, at: usize) -> Link {
        let generation = self.generation(chunk as usize).load(Relaxed);
        Link(generation << 32 | (chunk as usize * self.chunk_words() + at) as u64)
    }

    /// The words of a chunk from `at` on.
    pub(super) fn words(&self, chunk: u32, at: usize) -> Racy<'_> {
        let start = chunk as usize * self.chunk_bytes;
        Racy::new(self.region.words(start + at * 8..start + self.chunk_bytes))
    }

    /// The words behind a link, up to the end of its chunk; `None` for no link and for one whose chunk was used again.
    fn behind(&self, link: Link) -> Option<Racy<'_>> {
        let chunk = link.word() / self.chunk_words();
        // What is read behind a link may be no link.
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

    /// Reads behind a link with `read`, if what it names is still there afterwards.
    fn read<T>(&self, link: Link, read: impl FnOnce(Racy<'_>) -> T) -> Option<T> {
        let result = read(self.behind(link)?);
        self.still_holds(link).then_some(result)
    }

    /// The numbers of the version behind `link`.
    pub(super) fn header(&self, link: Link) -> Option<Header> {
        self.read(link, record::header)
    }

    /// Whether the version behind `link` is one of this key.
    pub(super) fn is_of(&self, link: Link, table: TableId, key: &[u8]) -> bool {
        self.read(link, |words| record::is_of(words, table, key)).unwrap_or(false)
    }

    /// The version behind `link`, copied.
    pub(super) fn version(&self, link: Link) -> Option<OldVersion> {
        self.read(link, record::version)
    }

    /// Marks the version behind `link` as one that never was. By who pushed it, the key still locked.
    pub(super) fn retract(&self, link: Link) {
        if let Some(words) = self.behind(link) {
            record::retract(words);
        }
    }

    /// Marks the version behind `link` as one whose entry is in its leaf again. By who pushed it, the key still locked.
    pub(super) fn restored(&self, link: Link) {
        if let Some(words) = self.behind(link) {
            record::restored(words);
        }
    }

    /// Bytes of the chunks in use.
    pub(super) fn used_bytes(&self) -> usize {
        self.used.load(Relaxed) * self.chunk_bytes
    }

    /// Bytes of all chunks that have memory behind them.
    pub(super) fn resident_bytes(&self) -> usize {
        (self.used.load(Relaxed) + self.warm.load(Relaxed)) * self.chunk_bytes
            + self.free.lock().end as usize * 8
    }
}

/// Free chunks that keep their memory where old versions may take `bytes_max` bytes.
fn warm_max(bytes_max: usize, chunk_bytes: usize) -> usize {
    (bytes_max / chunk_bytes / 8).max(2)
}
