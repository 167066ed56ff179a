//! The versions pushed by the threads of one slot, oldest push first.
//!
//! Key locks order the versions of one key by timestamp. Versions of different keys may swap where
//! threads share a slot; a late one waits for the next collection.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::Release, fence};

use parking_lot::Mutex;

use super::arena::Arena;
use super::record::{self, Dropped, New};
use super::version::{Collected, Link};
use crate::Timestamp;
use crate::pool::view::Racy;

/// Versions dropped under one hold of the mutex: a few microseconds, the longest wait of a push.
const DROPPED_AT_ONCE: usize = 128;

#[derive(Debug)]
pub(super) struct Queue {
    /// Superseding timestamp at the front, `u64::MAX` if empty: tells a collection whether to lock.
    front: AtomicU64,
    inside: Mutex<Inside>,
}

#[derive(Debug, Default)]
struct Inside {
    chunks: VecDeque<u32>,
    /// The oldest version's word in the first chunk.
    oldest: usize,
    /// The next version's word in the last chunk.
    next: usize,
    /// Words of all versions ever pushed.
    pushed: u64,
}

impl Default for Queue {
    fn default() -> Self {
        Queue { front: AtomicU64::new(u64::MAX), inside: Mutex::default() }
    }
}

impl Queue {
    /// Appends a version; `None` if there is no memory.
    pub(super) fn push(&self, arena: &Arena, new: &New<'_>) -> Option<Link> {
        let words = new.words();
        let mut inside = self.inside.lock();
        let fits = !inside.chunks.is_empty() && inside.next + words <= arena.chunk_words();
        if !fits {
            let chunk = arena.take()?;
            if let Some(&last) = inside.chunks.back() {
                record::end(arena.words(last, inside.next));
            }
            inside.chunks.push_back(chunk);
            inside.next = 0;
            if inside.chunks.len() == 1 {
                inside.oldest = 0;
            }
        }
        let chunk = *inside.chunks.back().expect("there is one now");
        // The writer's second step in `arena.rs`, even if another thread took the chunk.
        fence(Release);
        new.write(arena.words(chunk, inside.next));
        let link = arena.link(chunk, inside.next);
        inside.next += words;
        inside.pushed += words as u64;
        if self.front.load(Relaxed) == u64::MAX {
            self.front.store(new.superseded_at.0, Relaxed);
        }
        Some(link)
    }

    pub(super) fn pushed_bytes(&self) -> u64 {
        self.inside.lock().pushed * 8
    }

    /// Whether the front may be dropped. Relaxed: a hint that the next collection corrects.
    pub(super) fn holds_below(&self, bound: Timestamp) -> bool {
        self.front.load(Relaxed) <= bound.0.min(u64::MAX - 1)
    }

    /// Drops a bounded number of versions superseded at or before `bound`. Calls `finish` for those
    /// with remaining work.
    pub(super) fn drop_some(
        &self,
        arena: &Arena,
        bound: Timestamp,
        mut finish: impl FnMut(Dropped),
    ) -> Collected {
        let mut left = Vec::new();
        let mut collected = Collected::default();
        let mut inside = self.inside.lock();
        while collected.versions < DROPPED_AT_ONCE {
            let Some(words) = inside.front(arena) else { break };
            let Some((superseded_at, length)) = record::front(words) else { break };
            if superseded_at > bound {
                break;
            }
            left.extend(record::dropped(words));
            inside.oldest += length;
            collected.versions += 1;
            collected.bytes += length * 8;
        }
        let front = inside.front(arena).and_then(record::front);
        self.front.store(front.map_or(u64::MAX, |(superseded_at, _)| superseded_at.0), Relaxed);
        drop(inside);
        left.into_iter().for_each(&mut finish);
        collected
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.inside.lock().chunks.is_empty()
    }
}

impl Inside {
    /// The words from the oldest version on. Returns empty chunks to the arena.
    fn front<'a>(&mut self, arena: &'a Arena) -> Option<Racy<'a>> {
        loop {
            let &chunk = self.chunks.front()?;
            let is_last = self.chunks.len() == 1;
            let at_end = match is_last {
                true => self.oldest == self.next,
                false => {
                    self.oldest == arena.chunk_words()
                        || record::front(arena.words(chunk, self.oldest)).is_none()
                }
            };
            if !at_end {
                return Some(arena.words(chunk, self.oldest));
            }
            self.chunks.pop_front();
            self.oldest = 0;
            arena.give(chunk);
        }
    }
}
