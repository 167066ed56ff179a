//! The fault of a line: the protocol that a partial page's readers, writers and eviction rely on.
//!
//! It is apart from the pool so that loom checks the code itself (`loom_tests`).

use std::ops::Range;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, fence};

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, fence};

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

/// Most lines of a mini page.
pub(crate) const MINI_LINES: usize = 16;
/// Bits of the count in the word of [`Arrivals`]. Others may use the rest.
pub(super) const COUNT: u64 = 0xff;

/// The lines of a mini page, in order of arrival.
#[derive(Clone, Copy)]
pub(super) struct Arrivals<'a> {
    /// Line numbers, one byte each.
    pub(super) numbers: &'a [AtomicU64],
    /// Has the count of lines.
    pub(super) state: &'a AtomicU64,
}

impl<'a> Arrivals<'a> {
    /// Acquire pairs with [`Arrivals::publish`].
    pub(super) fn count(self) -> usize {
        ((self.state.load(Acquire) & COUNT) as usize).min(MINI_LINES)
    }

    fn number(self, index: usize) -> usize {
        (self.numbers[index / 8].load(Relaxed) >> (index % 8 * 8) & 0xff) as usize
    }

    /// Numbers of the lines, in order of arrival.
    pub(super) fn numbers(self) -> impl Iterator<Item = usize> + use<'a> {
        (0..self.count()).map(move |index| self.number(index))
    }

    /// Which of the lines `line` is.
    pub(super) fn position(self, line: usize) -> Option<usize> {
        self.numbers().position(|number| number == line)
    }

    /// Lets `line` be read, whose bytes are those of the next one.
    pub(super) fn publish(self, line: usize) {
        let index = self.count();
        let (word, shift) = (&self.numbers[index / 8], index % 8 * 8);
        let is_early = planted(Bug::LineCountedBeforeNumber);
        if is_early {
            self.state.fetch_add(1, Release);
        }
        word.store(word.load(Relaxed) & !(0xff << shift) | (line as u64) << shift, Relaxed);
        if !is_early {
            // The sweep changes other bits meanwhile.
            self.state.fetch_add(1, Release);
        }
    }

    /// Forgets all lines, for another page in the slot.
    pub(super) fn forget(self) {
        // A reader of the slot's former page that sees this also sees that the page left.
        fence(Release);
        self.numbers.iter().chain([self.state]).for_each(|word| word.store(0, Relaxed));
    }
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
    /// What line 0 has: the middle copy, after a change, and another page in the frame or slot. The
    /// next line has one more.
    const LOADED: u64 = 10;
    const CHANGED: u64 = 20;
    const OTHERS: u64 = 30;

    const BRANCHES: [&str; 7] = ["away", "found", "loaded", "refused", "stale", "old", "new"];

    /// What DRAM has of a page. A line is a word.
    enum Part {
        Frame { mask: [AtomicU64; 1], lines: [AtomicU64; LINES] },
        Mini { numbers: [AtomicU64; 1], state: AtomicU64, lines: [AtomicU64; LINES + 1] },
    }

    impl Part {
        fn new(is_mini: bool) -> Part {
            let word = || AtomicU64::new(0);
            match is_mini {
                true => Part::Mini { numbers: [word()], state: word(), lines: [word(), word(), word()] },
                false => Part::Frame { mask: [word()], lines: [word(), word()] },
            }
        }

        /// As `PartialPage::line`.
        fn line(&self, line: usize) -> Option<&AtomicU64> {
            match self {
                Part::Frame { mask, lines } => has(mask, line).then(|| &lines[line]),
                Part::Mini { numbers, state, lines } => {
                    Arrivals { numbers, state }.position(line).map(|index| &lines[index])
                }
            }
        }

        /// As `tier::partial::load`.
        fn load(&self, line: usize, content: u64) {
            if self.line(line).is_some() {
                return;
            }
            match self {
                Part::Frame { mask, lines } => {
                    let copy = || lines[line].store(content + line as u64, Relaxed);
                    load_run(line..line + 1, copy, |line| publish(mask, line));
                }
                Part::Mini { numbers, state, lines } => {
                    let arrivals = Arrivals { numbers, state };
                    let next = &lines[arrivals.count()];
                    let copy = || next.store(content + line as u64, Relaxed);
                    load_run(line..line + 1, copy, |line| arrivals.publish(line));
                }
            }
        }

        /// Another page gets the frame, or the slot. Its lines arrive in another order.
        fn reuse(&self) {
            match self {
                Part::Frame { mask, .. } => forget(mask),
                Part::Mini { numbers, state, .. } => Arrivals { numbers, state }.forget(),
            }
            (0..LINES).rev().for_each(|line| self.load(line, OTHERS));
        }

        fn is_others(&self) -> bool {
            let count = match self {
                Part::Frame { .. } => LINES,
                Part::Mini { numbers, state, .. } => Arrivals { numbers, state }.count(),
            };
            let content = |line: usize| self.line(line).map(|word| word.load(Relaxed));
            count == LINES && (0..LINES).all(|line| content(line) == Some(OTHERS + line as u64))
        }
    }

    /// A page over a middle copy whose lines are all [`LOADED`], and its first frame or slot.
    struct Page {
        latch: AtomicU64,
        location: AtomicU64,
        other_latch: AtomicU64,
        part: Part,
    }

    impl Page {
        fn new(is_mini: bool) -> Arc<Page> {
            let word = || AtomicU64::new(0);
            let part = Part::new(is_mini);
            Arc::new(Page { latch: word(), location: word(), other_latch: word(), part })
        }

        fn latch(&self) -> Latch<'_> {
            Latch(&self.latch)
        }

        /// As `Unread::try_read`.
        fn see(&self) -> Option<Word> {
            let word = self.latch().load();
            (self.location.load(Acquire) == PARTIAL && !word.is_exclusive()).then_some(word)
        }

        /// As `Lined::u64`; `None` if the look was refused the line.
        fn look(&self, seen: Word, line: usize, reached: &Reached) -> Option<u64> {
            if self.part.line(line).is_some() {
                reached.at("found");
            } else {
                let is_partial = || self.location.load(Acquire) == PARTIAL;
                if !fault(self.latch(), seen, is_partial, || self.part.load(line, LOADED)) {
                    reached.at("refused");
                    return None;
                }
                reached.at("loaded");
            }
            // A mini page may have lost the line since.
            Some(self.part.line(line).map_or(0, |word| word.load(Relaxed)))
        }

        /// Looks at all lines. If that counts, they must be of the version seen.
        fn read(&self, reached: &Reached) {
            let Some(seen) = self.see() else { return reached.at("away") };
            let mut found = [0; LINES];
            for (line, found) in found.iter_mut().enumerate() {
                let Some(word) = self.look(seen, line, reached) else { return };
                *found = word;
            }
            if !self.latch().validate(seen) {
                return reached.at("stale");
            }
            let wanted = if seen.version() == 0 { LOADED } else { CHANGED };
            assert_eq!(found, [wanted, wanted + 1], "at version {}", seen.version());
            reached.at(if wanted == LOADED { "old" } else { "new" });
        }

        /// Changes all lines, after a look at the last: a reader begins with the first.
        fn write(&self, reached: &Reached) {
            let Some(seen) = self.see() else { return };
            if self.look(seen, LINES - 1, reached).is_none() || !self.latch().try_exclusive(seen) {
                return;
            }
            // As `tier::partial::change`.
            for line in 0..LINES {
                self.part.load(line, LOADED);
                self.part.line(line).expect("it is loaded").store(CHANGED + line as u64, Relaxed);
            }
            self.latch().release_changed();
        }

        /// Evicts the page, and has another one take the frame or slot.
        fn evict(&self) {
            let latch = self.latch();
            if !latch.try_exclusive(latch.load()) {
                return;
            }
            self.location.store(BELOW, Release);
            latch.release_changed();
            let other = Latch(&self.other_latch);
            assert!(other.try_exclusive(other.load()), "nobody else is at that page");
            self.part.reuse();
            other.release_changed();
        }
    }

    /// A reader beside `other`. Loom would not run another thread before the first step of its own,
    /// so both are threads.
    fn explore(is_mini: bool, reached: &'static Reached, other: fn(&Page, &Reached)) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || {
            let page = Page::new(is_mini);
            let threads: [fn(&Page, &Reached); 2] = [other, |page, reached| page.read(reached)];
            let threads = threads.map(|work| {
                let page = Arc::clone(&page);
                loom::thread::spawn(move || work(&page, reached))
            });
            threads.into_iter().for_each(|thread| thread.join().expect("it panics by itself"));
            if page.location.load(Acquire) == BELOW {
                assert!(page.part.is_others(), "it has a line of the page that has left");
            }
        });
    }

    type Model = fn(bool, &'static Reached);

    fn beside_a_writer(is_mini: bool, reached: &'static Reached) {
        explore(is_mini, reached, Page::write);
    }

    fn beside_eviction(is_mini: bool, reached: &'static Reached) {
        explore(is_mini, reached, |page, _| page.evict());
    }

    fn holds(is_mini: bool, model: Model, branches: &[&'static str]) {
        let reached = Reached::new(branches);
        model(is_mini, reached);
        reached.check();
    }

    #[test]
    fn looks_beside_a_writer_are_of_one_version() {
        holds(false, beside_a_writer, &BRANCHES);
    }

    #[test]
    fn looks_at_a_mini_page_beside_a_writer_are_of_one_version() {
        holds(true, beside_a_writer, &BRANCHES);
    }

    /// No other thread loads a line of the page, which does not change. A late look may find lines
    /// of the other page.
    const BRANCHES_OF_EVICTION: [&str; 6] = ["away", "found", "loaded", "refused", "stale", "old"];

    #[test]
    fn no_line_is_loaded_into_the_frame_of_another_page() {
        holds(false, beside_eviction, &BRANCHES_OF_EVICTION);
    }

    #[test]
    fn no_line_is_loaded_into_the_slot_of_another_page() {
        holds(true, beside_eviction, &BRANCHES_OF_EVICTION);
    }

    fn catches(bug: Bug, kinds: &[bool], model: Model) {
        for &is_mini in kinds {
            plant(Some(bug));
            let outcome = catch_unwind(AssertUnwindSafe(|| model(is_mini, Reached::new(&BRANCHES))));
            plant(None);
            assert!(outcome.is_err(), "{bug:?} was not noticed, mini: {is_mini}");
        }
    }

    #[test]
    fn catches_line_bit_before_line() {
        catches(Bug::LineBitBeforeLine, &[false, true], beside_a_writer);
    }

    #[test]
    fn catches_line_counted_before_number() {
        catches(Bug::LineCountedBeforeNumber, &[true], beside_a_writer);
    }

    #[test]
    fn catches_load_under_shared_latch() {
        catches(Bug::LoadUnderSharedLatch, &[false, true], beside_eviction);
    }
}
