//! The versions that the threads of one slot have pushed, oldest push first.
//!
//! Keys are locked from before the timestamp is drawn, so one key's versions are pushed in timestamp order; those of
//! different keys may be swapped by a few places where threads share a slot, and one that is late waits for the next
//! collection.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::Release, fence};

use parking_lot::Mutex;

use super::Collected;
use super::arena::{Arena, Link};
use super::record::{self, Dropped, New};
use crate::Timestamp;
use crate::buffer::view::Racy;

/// Versions dropped under one hold of the mutex: a few microseconds, the longest a push waits.
const DROPPED_AT_ONCE: usize = 128;

#[derive(Debug)]
pub(super) struct Queue {
    /// Superseding timestamp at the front, `u64::MAX` if it is empty: whether a collection must look inside.
    front: AtomicU64,
    inside: Mutex<Inside>,
}

#[derive(Debug, Default)]
struct Inside {
    chunks: VecDeque<u32>,
    /// The word of the first chunk where the oldest version begins.
    oldest: usize,
    /// The word of the last chunk where the next version goes.
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
    /// Puts a version at the end; `None` if there is no memory for it.
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
        // The second step of the writer in `arena.rs`, also when another thread took the chunk.
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

    /// Bytes of all versions ever pushed.
    pub(super) fn pushed_bytes(&self) -> u64 {
        self.inside.lock().pushed * 8
    }

    /// Whether the front may be dropped. A guess that the next collection corrects, so relaxed is enough.
    pub(super) fn holds_below(&self, bound: Timestamp) -> bool {
        self.front.load(Relaxed) <= bound.0.min(u64::MAX - 1)
    }

    /// Drops versions superseded at or before `bound` from the front, a bounded number at once, and calls `finish`
    /// for those that leave something to be done.
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
    /// The words from the oldest version on. Chunks that hold nothing any more are given back.
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
