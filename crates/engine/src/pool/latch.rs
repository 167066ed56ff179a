//! The one-word latch of a page.
//!
//! ```text
//!   63         62    61     60       59..52        51..50  49     48..0
//!   exclusive  mark  dirty  claimed  shared count  unused  freed  version
//! ```
//!
//! - **exclusive**: one thread changes content or location, or loads the page; others wait for that
//!   read.
//! - **shared**: keeps the exclusive latch away and disturbs no reader. For image copies and pins
//!   (`pin.rs`).
//! - **mark**: accessed since the sweep's last visit. Set only when clear, so hot pages cost no
//!   write.
//! - **dirty**: differs from the image; the frame's recLSN says since when.
//! - **claimed**: an image is in flight. The page may change, but stays in its frame.
//! - **freed**: a record not yet durable freed the page, which keeps content and id. Only a damaged
//!   reference leads here.
//! - **version**: incremented when content or location change, or a failed migration removed the
//!   bytes for a time. Optimistic readers compare it and the exclusive bit.
//!
//! Protocol of a writer: `try_exclusive` (Acquire), a release fence, relaxed stores,
//! `release_changed` (Release). Of an optimistic reader: `load` (Acquire), relaxed loads, an
//! acquire fence, `validate`. A reader that saw one of the writer's stores sees, by the two fences,
//! the exclusive bit or the newer version. Loom checks this in `loom_tests` (`RUSTFLAGS="--cfg
//! loom" cargo test -p terrace --lib pool::latch`).

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering, fence};

const EXCLUSIVE: u64 = 1 << 63;
const MARK: u64 = 1 << 62;
const DIRTY: u64 = 1 << 61;
const CLAIMED: u64 = 1 << 60;
const SHARED_ONE: u64 = 1 << 52;
const SHARED: u64 = 0xff << 52;
const FREED: u64 = 1 << 49;
const VERSION: u64 = (1 << 49) - 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Word(u64);

impl Word {
    #[inline]
    pub(crate) fn is_exclusive(self) -> bool {
        self.0 & EXCLUSIVE != 0
    }

    #[inline]
    pub(crate) fn is_latched(self) -> bool {
        self.0 & (EXCLUSIVE | SHARED) != 0
    }

    /// Whether the page is pinned, or an image of it is being copied.
    pub(crate) fn is_shared(self) -> bool {
        self.0 & SHARED != 0
    }

    #[inline]
    pub(crate) fn is_marked(self) -> bool {
        self.0 & MARK != 0
    }

    #[inline]
    pub(crate) fn is_dirty(self) -> bool {
        self.0 & DIRTY != 0
    }

    #[inline]
    pub(crate) fn is_claimed(self) -> bool {
        self.0 & CLAIMED != 0
    }

    #[inline]
    pub(crate) fn is_freed(self) -> bool {
        self.0 & FREED != 0
    }

    #[inline]
    pub(crate) fn version(self) -> u64 {
        self.0 & VERSION
    }

    pub(crate) fn version_after(self) -> u64 {
        (self.version() + 1) & VERSION
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Latch<'a>(pub(crate) &'a AtomicU64);

impl Latch<'_> {
    /// The word now. Acquire: pairs with the Release of `release_changed`.
    #[inline]
    pub(crate) fn load(self) -> Word {
        Word(self.0.load(Ordering::Acquire))
    }

    /// Whether nothing changed since `seen` and no thread is changing it. The fence pairs with the
    /// writer's.
    #[inline]
    pub(crate) fn validate(self, seen: Word) -> bool {
        fence(Ordering::Acquire);
        let now = self.0.load(Ordering::Relaxed);
        (now ^ seen.0) & (EXCLUSIVE | VERSION) == 0
    }

    /// Takes the exclusive latch at the version seen, if none is held.
    #[inline]
    pub(crate) fn try_exclusive(self, seen: Word) -> bool {
        let mut now = self.0.load(Ordering::Relaxed);
        loop {
            if now & (EXCLUSIVE | SHARED) != 0 || (now ^ seen.0) & VERSION != 0 {
                return false;
            }
            match self.0.compare_exchange_weak(now, now | EXCLUSIVE, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => {
                    // The stores that follow must not become visible before the exclusive bit.
                    fence(Ordering::Release);
                    return true;
                }
                Err(other) => now = other,
            }
        }
    }

    /// Releases the exclusive latch after no change.
    #[inline]
    pub(crate) fn release_unchanged(self) {
        self.0.fetch_and(!EXCLUSIVE, Ordering::Release);
    }

    /// Releases the exclusive latch with a new version; returns the word.
    #[inline]
    pub(crate) fn release_changed(self) -> Word {
        let now = self.0.load(Ordering::Relaxed);
        // One addition increments the version and clears the top bit. The last version wraps inside
        // its bits; a carry would change the freed bit.
        let more = if now & VERSION == VERSION { EXCLUSIVE.wrapping_sub(VERSION) } else { EXCLUSIVE + 1 };
        Word(self.0.fetch_add(more, Ordering::Release).wrapping_add(more))
    }

    /// Takes a shared latch. Fails beside a writer, or if the count is full.
    #[inline]
    pub(crate) fn try_share(self) -> bool {
        let mut now = self.0.load(Ordering::Relaxed);
        loop {
            if now & EXCLUSIVE != 0 || now & SHARED == SHARED {
                return false;
            }
            match self.0.compare_exchange_weak(now, now + SHARED_ONE, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(other) => now = other,
            }
        }
    }

    /// Makes the only shared latch, the caller's, exclusive.
    #[inline]
    pub(crate) fn try_promote(self) -> bool {
        let mut now = self.0.load(Ordering::Relaxed);
        while now & SHARED == SHARED_ONE {
            let promoted = (now - SHARED_ONE) | EXCLUSIVE;
            match self.0.compare_exchange_weak(now, promoted, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => {
                    // As in `try_exclusive`.
                    fence(Ordering::Release);
                    return true;
                }
                Err(other) => now = other,
            }
        }
        false
    }

    #[inline]
    pub(crate) fn unshare(self) {
        self.0.fetch_sub(SHARED_ONE, Ordering::Release);
    }

    /// Sets the mark. Callers test `Word::is_marked` first: a hit on a marked page writes nothing.
    #[inline]
    pub(crate) fn mark(self) {
        self.0.fetch_or(MARK, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn unmark(self) {
        self.0.fetch_and(!MARK, Ordering::Relaxed);
    }

    /// Sets the dirty bit; requires a latch.
    #[inline]
    pub(crate) fn set_dirty(self, dirty: bool) {
        if dirty {
            self.0.fetch_or(DIRTY, Ordering::Relaxed);
        } else {
            self.0.fetch_and(!DIRTY, Ordering::Relaxed);
        }
    }

    /// Sets the freed bit; requires the exclusive latch.
    pub(crate) fn set_freed(self, freed: bool) {
        if freed {
            self.0.fetch_or(FREED, Ordering::Relaxed);
        } else {
            self.0.fetch_and(!FREED, Ordering::Relaxed);
        }
    }

    /// Sets the claim; requires a latch.
    #[inline]
    pub(crate) fn set_claimed(self, claimed: bool) {
        if claimed {
            self.0.fetch_or(CLAIMED, Ordering::Relaxed);
        } else {
            self.0.fetch_and(!CLAIMED, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn version_moves_only_with_change() {
        let word = AtomicU64::new(0);
        let latch = Latch(&word);
        let seen = latch.load();
        latch.mark();
        latch.set_dirty(true);
        latch.set_claimed(true);
        assert!(latch.try_share());
        assert!(latch.validate(seen), "marks, dirty, claims and sharing disturb no reader");
        assert!(!latch.try_exclusive(seen), "a shared latch keeps writers away");
        latch.unshare();
        assert!(latch.try_exclusive(seen));
        assert!(!latch.validate(seen));
        assert!(!latch.try_share());
        latch.release_unchanged();
        assert!(latch.validate(seen));
        assert!(latch.try_exclusive(seen));
        latch.release_changed();
        assert!(!latch.validate(seen));
        assert!(!latch.try_exclusive(seen));
        let now = latch.load();
        assert!(now.is_marked() && now.is_dirty() && now.is_claimed() && !now.is_latched());
        assert_eq!(now.version(), seen.version() + 1);
        latch.set_freed(true);
        assert!(latch.load().is_freed() && latch.validate(now), "the version says when that was");
        latch.set_freed(false);
        assert_eq!(latch.load(), now);
    }

    #[test]
    fn only_the_last_shared_latch_becomes_exclusive() {
        let word = AtomicU64::new(0);
        let latch = Latch(&word);
        let seen = latch.load();
        assert!(!latch.try_promote(), "there is none");
        assert!(latch.try_share() && latch.try_share());
        assert!(!latch.try_promote(), "another shares");
        latch.unshare();
        assert!(latch.try_promote());
        assert!(!latch.try_share() && !latch.validate(seen));
        latch.release_changed();
        assert!(!latch.load().is_latched() && latch.load().version() == seen.version() + 1);
    }

    #[test]
    fn version_wraps_within_its_bits() {
        let word = AtomicU64::new(VERSION | MARK);
        let latch = Latch(&word);
        assert!(latch.try_exclusive(latch.load()));
        latch.release_changed();
        assert_eq!(word.load(Ordering::Relaxed), MARK);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::reached::Reached;
    use loom::sync::Arc;

    /// Validated reads have seen both of a writer's words, or neither.
    #[test]
    fn validated_reads_are_whole() {
        let reached = Reached::new(&["latched", "old", "new", "refused"]);
        loom::model(move || {
            let page = Arc::new((AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0)));
            let writer = page.clone();
            let thread = loom::thread::spawn(move || {
                let latch = Latch(&writer.0);
                let seen = latch.load();
                if latch.try_exclusive(seen) {
                    writer.1.store(1, Ordering::Relaxed);
                    writer.2.store(1, Ordering::Relaxed);
                    latch.release_changed();
                }
            });
            // A thread, too: loom would not run the writer before the first look of this one.
            let reader = loom::thread::spawn(move || {
                let latch = Latch(&page.0);
                let seen = latch.load();
                if !seen.is_exclusive() {
                    let first = page.1.load(Ordering::Relaxed);
                    let second = page.2.load(Ordering::Relaxed);
                    if latch.validate(seen) {
                        assert_eq!(first, second);
                        assert_eq!(
                            first,
                            seen.version(),
                            "and belongs to the version it was validated against"
                        );
                        reached.at(if first == 0 { "old" } else { "new" });
                    } else {
                        reached.at("refused");
                    }
                } else {
                    reached.at("latched");
                }
            });
            thread.join().expect("writer");
            reader.join().expect("reader");
        });
        reached.check();
    }

    /// A copier that sees the dirty bit sees all stores before it. A validated optimistic reader
    /// saw the store after the promotion with its version.
    #[test]
    fn a_promoted_latch_is_exclusive() {
        let reached = Reached::new(&["copies before", "copies after", "kept away", "waits", "old", "new"]);
        loom::model(move || {
            let page = Arc::new((AtomicU64::new(SHARED_ONE), AtomicU64::new(0), AtomicU64::new(0)));
            let other = page.clone();
            let thread = loom::thread::spawn(move || {
                let latch = Latch(&other.0);
                if latch.try_share() {
                    let dirty = latch.load().is_dirty();
                    let copied = (other.1.load(Ordering::Relaxed), other.2.load(Ordering::Relaxed));
                    assert!(!dirty || copied == (1, 1), "the copy of a dirty page is whole");
                    assert!(copied.1 == 0 || dirty, "exclusive means alone");
                    reached.at(if dirty { "copies after" } else { "copies before" });
                    latch.unshare();
                } else {
                    reached.at("kept away");
                }
                let seen = latch.load();
                let second = other.2.load(Ordering::Relaxed);
                if !seen.is_exclusive() && latch.validate(seen) {
                    assert_eq!(second, seen.version());
                    reached.at(if second == 0 { "old" } else { "new" });
                }
            });
            let latch = Latch(&page.0);
            page.1.store(1, Ordering::Relaxed);
            while !latch.try_promote() {
                reached.at("waits");
                loom::thread::yield_now();
            }
            page.2.store(1, Ordering::Relaxed);
            latch.set_dirty(true);
            latch.release_changed();
            thread.join().expect("copier");
        });
        reached.check();
    }

    /// Of two writers that saw one version, exactly one latches.
    #[test]
    fn one_upgrade_per_version() {
        let reached = Reached::new(&["this one", "the other"]);
        loom::model(move || {
            let word = Arc::new(AtomicU64::new(0));
            let other = word.clone();
            let thread = loom::thread::spawn(move || {
                let latch = Latch(&other);
                let won = latch.try_exclusive(Word(0));
                if won {
                    latch.release_changed();
                }
                won
            });
            let latch = Latch(&word);
            let won = latch.try_exclusive(Word(0));
            if won {
                latch.release_changed();
            }
            let other_won = thread.join().expect("writer");
            assert!(won ^ other_won, "exactly one of them");
            reached.at(if won { "this one" } else { "the other" });
        });
        reached.check();
    }
}
