//! The fault of a line: the protocol that a partial page's readers, writers and eviction rely on.
//!
//! It is apart from the pool so that loom checks the code itself (`loom_tests`).

use std::ops::Range;
#[cfg(not(loom))]
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

#[cfg(loom)]
use loom::sync::atomic::AtomicU64;

use super::latch::{Latch, Word};
use crate::planted::{Bug, planted};

/// Whether `line` may be read. Acquire pairs with [`publish`].
#[inline]
pub(super) fn has(mask: &[AtomicU64], line: usize) -> bool {
    mask[line / 64].load(Acquire) >> (line % 64) & 1 != 0
}

/// Lets `line` be read, whose bytes are in the frame.
pub(super) fn publish(mask: &[AtomicU64], line: usize) {
    mask[line / 64].fetch_or(1 << (line % 64), Release);
}

/// Forgets all lines, for another page in the frame.
pub(super) fn forget(mask: &[AtomicU64]) {
    mask.iter().for_each(|word| word.store(0, Relaxed));
}

/// Loads lines for a look at a page at version `seen`. Whether it still has that version.
pub(super) fn fault(
    latch: Latch<'_>,
    seen: Word,
    is_partial: impl FnOnce() -> bool,
    load: impl FnOnce(),
) -> bool {
    if planted(Bug::LoadUnderSharedLatch) && latch.try_share() {
        load();
        latch.unshare();
        return true;
    }
    if !latch.try_exclusive(seen) {
        return false;
    }
    // At this version the page is whole by now, or still partial.
    if is_partial() {
        load();
    }
    latch.release_unchanged();
    true
}

/// Copies the bytes of `run` to the frame and publishes its lines. Requires the exclusive latch.
pub(super) fn load_run(run: Range<usize>, copy: impl FnOnce(), publish: impl Fn(usize)) {
    let is_early = planted(Bug::LineBitBeforeLine);
    if is_early {
        run.clone().for_each(&publish);
        while_loading();
    }
    copy();
    while_loading();
    if !is_early {
        run.for_each(publish);
    }
}

/// Lets a test act in the middle of a load.
fn while_loading() {
    #[cfg(test)]
    super::partial_tests::while_loading();
}

#[cfg(all(test, loom))]
mod loom_tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use loom::sync::Arc;

    use super::*;
    use crate::planted::plant;
    use crate::reached::Reached;

    const LINES: usize = 2;
    /// Where the page is.
    const PARTIAL: u64 = 0;
    const BELOW: u64 = 1;
    /// What the lines have: the middle copy, after a change, and another page in the frame.
    const LOADED: u64 = 1;
    const CHANGED: u64 = 2;
    const OTHERS: u64 = 3;

    const BRANCHES: [&str; 7] = ["away", "found", "loaded", "refused", "stale", "old", "new"];

    /// A page over a middle copy whose lines are all [`LOADED`], and its first frame. A line is a
    /// word.
    struct Page {
        latch: AtomicU64,
        location: AtomicU64,
        other_latch: AtomicU64,
        mask: [AtomicU64; 1],
        frame: [AtomicU64; LINES],
    }

    impl Page {
        fn new() -> Arc<Page> {
            let word = || AtomicU64::new(0);
            let (mask, frame) = ([word()], [word(), word()]);
            Arc::new(Page { latch: word(), location: word(), other_latch: word(), mask, frame })
        }

        fn latch(&self) -> Latch<'_> {
            Latch(&self.latch)
        }

        /// As `Unread::try_read`.
        fn see(&self) -> Option<Word> {
            let word = self.latch().load();
            (self.location.load(Acquire) == PARTIAL && !word.is_exclusive()).then_some(word)
        }

        /// As `tier::partial::load`.
        fn load(&self, lines: Range<usize>) {
            for line in lines.filter(|&line| !has(&self.mask, line)) {
                let copy = || self.frame[line].store(LOADED, Relaxed);
                load_run(line..line + 1, copy, |line| publish(&self.mask, line));
            }
        }

        /// As `Lined::u64`; `None` if the look was refused the line.
        fn look(&self, seen: Word, line: usize, reached: &Reached) -> Option<u64> {
            if has(&self.mask, line) {
                reached.at("found");
            } else {
                let is_partial = || self.location.load(Acquire) == PARTIAL;
                if !fault(self.latch(), seen, is_partial, || self.load(line..line + 1)) {
                    reached.at("refused");
                    return None;
                }
                reached.at("loaded");
            }
            Some(self.frame[line].load(Relaxed))
        }

        /// Looks at `lines`. If that counts, they must be of the version seen.
        fn read(&self, lines: [usize; LINES], reached: &Reached) {
            let Some(seen) = self.see() else { return reached.at("away") };
            let mut found = [0; LINES];
            for (found, line) in found.iter_mut().zip(lines) {
                let Some(word) = self.look(seen, line, reached) else { return };
                *found = word;
            }
            if !self.latch().validate(seen) {
                return reached.at("stale");
            }
            let wanted = if seen.version() == 0 { LOADED } else { CHANGED };
            assert_eq!(found, [wanted; LINES], "at version {}", seen.version());
            reached.at(if wanted == LOADED { "old" } else { "new" });
        }

        /// Changes all lines, after a look at the first.
        fn write(&self, reached: &Reached) {
            let Some(seen) = self.see() else { return };
            if self.look(seen, 0, reached).is_none() || !self.latch().try_exclusive(seen) {
                return;
            }
            // As `tier::partial::change`.
            self.load(0..LINES);
            self.frame.iter().for_each(|line| line.store(CHANGED, Relaxed));
            self.latch().release_changed();
        }

        /// Evicts the page, and has another one take the frame. That one is whole.
        fn evict(&self) {
            let latch = self.latch();
            if !latch.try_exclusive(latch.load()) {
                return;
            }
            self.location.store(BELOW, Release);
            latch.release_changed();
            let other = Latch(&self.other_latch);
            assert!(other.try_exclusive(other.load()), "nobody else is at that page");
            forget(&self.mask);
            self.frame.iter().for_each(|line| line.store(OTHERS, Relaxed));
            other.release_changed();
        }
    }

    /// A reader beside `other`. Loom would not run another thread before the first step of its own,
    /// so both are threads.
    fn explore(reached: &'static Reached, other: fn(&Page, &Reached)) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || {
            let page = Page::new();
            let threads: [fn(&Page, &Reached); 2] = [other, |page, reached| page.read([0, 1], reached)];
            let threads = threads.map(|work| {
                let page = Arc::clone(&page);
                loom::thread::spawn(move || work(&page, reached))
            });
            threads.into_iter().for_each(|thread| thread.join().expect("it panics by itself"));
            if page.location.load(Acquire) == BELOW {
                let left = [0, 1].map(|line| page.frame[line].load(Relaxed));
                assert_eq!(left, [OTHERS; LINES], "a line of the page that has left");
            }
        });
    }

    fn beside_a_writer(reached: &'static Reached) {
        explore(reached, Page::write);
    }

    fn beside_eviction(reached: &'static Reached) {
        explore(reached, |page, _| page.evict());
    }

    #[test]
    fn looks_beside_a_writer_are_of_one_version() {
        let reached = Reached::new(&BRANCHES);
        beside_a_writer(reached);
        reached.check();
    }

    /// Nobody else loads a line, and the page does not change.
    #[test]
    fn no_line_is_loaded_into_the_frame_of_another_page() {
        let reached = Reached::new(&["away", "loaded", "refused", "stale", "old"]);
        beside_eviction(reached);
        reached.check();
    }

    fn catches(bug: Bug, model: fn(&'static Reached)) {
        plant(Some(bug));
        let outcome = catch_unwind(AssertUnwindSafe(|| model(Reached::new(&BRANCHES))));
        plant(None);
        assert!(outcome.is_err(), "{bug:?} was not noticed");
    }

    #[test]
    fn catches_line_bit_before_line() {
        catches(Bug::LineBitBeforeLine, beside_a_writer);
    }

    #[test]
    fn catches_load_under_shared_latch() {
        catches(Bug::LoadUnderSharedLatch, beside_eviction);
    }
}
