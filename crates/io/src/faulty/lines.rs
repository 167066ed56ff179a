//! The lines of one persistent memory, and the effect of a power cut.
//!
//! ```text
//!   durable   safe
//!   earlier   contents that a line had since, in order: noted before stores, or written back
//!   present   visible to loads: in the mapping, while there is one
//! ```
//!
//! The processor may write a line back at any time. So each line ends as its durable content, an
//! earlier or the present one, independently of others. A fence makes what the same thread wrote
//! back durable: that content or a later one stays. Whole lines persist, and stores to one line
//! stay in order (Intel SDM, volume 3, 9.2).
//!
//! Only notes are seen. A store without one still counts: the present content is compared with the
//! durable one.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::thread::{self, ThreadId};

use super::random::Random;
use crate::device::sparse::Sparse;
use crate::memory::persistent::flush::LINE_BYTES;
use crate::memory::persistent::mapping::{PAGE_BYTES, SharedMapping, whole_pages};

/// Earlier contents that a line keeps, which may change a thousand times before its fence.
const EARLIER_MAX: usize = 8;

const LINES_PER_PAGE: usize = PAGE_BYTES / LINE_BYTES;

type Line = [u8; LINE_BYTES];

#[derive(Clone, Debug)]
struct Earlier {
    content: Line,
    /// When it was first and last seen.
    since: u64,
    until: u64,
    /// A fence to come names it by `since`.
    written_back: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Lines {
    durable: Sparse,
    /// The present content, while there is no mapping.
    present: Sparse,
    mapping: Option<Arc<SharedMapping>>,
    /// What was there before a cut, which a power cut may undo.
    uncut: Option<Box<Lines>>,
    /// By number of the line. Absent ones have had only their durable and their present content.
    earlier: BTreeMap<usize, Vec<Earlier>>,
    /// By thread since its last fence: lines, and their moments.
    written_back: Vec<(ThreadId, Vec<(usize, u64)>)>,
    moment: u64,
}

/// How a power cut chooses.
#[derive(Clone, Copy, Debug)]
enum Cut {
    /// Only durable contents persist.
    Durable,
    /// All stores persist.
    Present,
    /// All until a moment, and none behind it.
    Moment(u64),
    /// Each line so with this chance in percent, else as any of its contents.
    MomentOfSome(u64, usize),
    /// Each line present with this chance in percent, else durable.
    Lines(usize),
    /// Each page, and the few lines of it that differ from their page.
    Pages,
}

impl Lines {
    pub(super) fn new(bytes: u64) -> io::Result<Lines> {
        let mut durable = Sparse::default();
        durable.set_len(whole_pages(bytes)?)?;
        Ok(Self::of(durable.clone(), durable))
    }

    fn of(durable: Sparse, present: Sparse) -> Lines {
        let (earlier, written_back) = (BTreeMap::new(), Vec::new());
        Lines { durable, present, mapping: None, uncut: None, earlier, written_back, moment: 0 }
    }

    pub(super) fn len(&self) -> u64 {
        self.durable.len()
    }

    /// The mapping with the present content, which later stores change.
    pub(super) fn map(&mut self, name: &str) -> io::Result<Arc<SharedMapping>> {
        if let Some(mapping) = &self.mapping {
            return Ok(Arc::clone(mapping));
        }
        let mapping = Arc::new(SharedMapping::anonymous(name, self.len())?);
        for (at, bytes) in self.present.pieces() {
            mapping.fill(at, bytes);
        }
        self.mapping = Some(Arc::clone(&mapping));
        Ok(mapping)
    }

    fn present_line(&self, line: usize) -> Line {
        let mut content = [0; LINE_BYTES];
        match &self.mapping {
            Some(mapping) => mapping.read(line * LINE_BYTES, &mut content),
            None => self.present.read((line * LINE_BYTES) as u64, &mut content),
        }
        content
    }

    fn durable_line(&self, line: usize) -> Line {
        let mut content = [0; LINE_BYTES];
        self.durable.read((line * LINE_BYTES) as u64, &mut content);
        content
    }

    /// The lines of `range` may persist with their present content.
    pub(super) fn note(&mut self, range: Range<usize>) {
        self.moment += 1;
        for line in lines_of(range) {
            let content = self.present_line(line);
            self.keep(line, content);
        }
    }

    fn keep(&mut self, line: usize, content: Line) -> &mut Earlier {
        let (earlier, moment) = (self.earlier.entry(line).or_default(), self.moment);
        if earlier.last().is_none_or(|last| last.content != content) {
            if earlier.len() >= EARLIER_MAX
                && let Some(forgotten) = forgettable(earlier, moment)
            {
                earlier.remove(forgotten);
            }
            earlier.push(Earlier { content, since: moment, until: moment, written_back: false });
        }
        let last = earlier.last_mut().expect("one was pushed, or is equal");
        last.until = moment;
        last
    }

    pub(super) fn write_back(&mut self, range: Range<usize>) {
        self.moment += 1;
        let mut named = Vec::new();
        for line in lines_of(range) {
            let content = self.present_line(line);
            if !self.earlier.contains_key(&line) && content == self.durable_line(line) {
                continue;
            }
            let earlier = self.keep(line, content);
            earlier.written_back = true;
            named.push((line, earlier.since));
        }
        let thread = thread::current().id();
        match self.written_back.iter_mut().find(|(of, _)| *of == thread) {
            Some((_, before)) => before.extend(named),
            None => self.written_back.push((thread, named)),
        }
    }

    /// What this thread wrote back is durable, and what the lines had before never returns.
    pub(super) fn fence(&mut self) {
        let thread = thread::current().id();
        let Some(at) = self.written_back.iter().position(|(of, _)| *of == thread) else { return };
        for (line, since) in self.written_back.swap_remove(at).1 {
            let Some(earlier) = self.earlier.get_mut(&line) else { continue };
            // Another thread's fence may have made this or a later content durable.
            let Some(last) = earlier.iter().rposition(|earlier| earlier.since <= since) else { continue };
            self.durable.write_changed((line * LINE_BYTES) as u64, &earlier[last].content);
            earlier.drain(..=last);
            if earlier.is_empty() {
                self.earlier.remove(&line);
            }
        }
    }

    /// The present content. It shares equal chunks with the durable one.
    fn content(&self) -> Sparse {
        let Some(mapping) = &self.mapping else { return self.present.clone() };
        let (mut content, mut page) = (self.durable.clone(), [0; PAGE_BYTES]);
        let mut visited = 0;
        for data in mapping.data() {
            // Without memory here it is zeros, and may be something else durably.
            content.zero(visited..data.start);
            visited = data.end;
            for at in data.step_by(PAGE_BYTES) {
                mapping.read(at, &mut page);
                content.write_changed(at as u64, &page);
            }
        }
        content.zero(visited..mapping.len());
        content
    }

    /// Gives the memory, which has no handle, another length.
    pub(super) fn resize(&mut self, bytes: u64) -> io::Result<()> {
        let (bytes, before) = (whole_pages(bytes)?, self.len());
        self.freeze();
        if bytes < before {
            self.uncut = self.uncut.take().or_else(|| Some(Box::new(self.clone())));
        }
        self.present.set_len(bytes)?;
        self.durable.set_len(bytes)?;
        self.earlier.split_off(&(bytes as usize / LINE_BYTES));
        if bytes > before {
            self.uncut = None;
        }
        Ok(())
    }

    /// Stores from now on do not count.
    pub(super) fn freeze(&mut self) {
        self.present = self.content();
        self.mapping = None;
    }

    /// After a kill nobody is left to fence what was written back.
    pub(super) fn killed(&self) -> Lines {
        let mut lines = Self::of(self.durable.clone(), self.content());
        lines.earlier.clone_from(&self.earlier);
        lines.earlier.values_mut().flatten().for_each(|earlier| earlier.written_back = false);
        lines.moment = self.moment;
        lines.uncut = self.uncut.as_ref().map(|uncut| Box::new(uncut.killed()));
        lines
    }

    /// One possible state after a power cut.
    pub(super) fn survivor(&self, random: &mut Random) -> Lines {
        let (present, moment) = (self.content(), random.below(self.moment as usize + 2) as u64);
        let cut = match random.below(10) {
            0 => Cut::Durable,
            1 => Cut::Present,
            2 | 3 => Cut::Moment(moment),
            4 | 5 => Cut::MomentOfSome(moment, [50, 90][random.below(2)]),
            6 | 7 => Cut::Pages,
            _ => Cut::Lines([3, 50, 97][random.below(3)]),
        };
        let mut content = self.durable.clone();
        let mut page = (usize::MAX, false);
        for line in self.differing_lines(&present) {
            if page.0 != line / LINES_PER_PAGE {
                page = (line / LINES_PER_PAGE, random.chance(50));
            }
            if let Some(bytes) = self.choose(line, &present, cut, page.1, random) {
                content.write((line * LINE_BYTES) as u64, &bytes);
            }
        }
        if let Some(uncut) = self.uncut.as_ref().filter(|_| random.chance(50)) {
            let mut whole = uncut.survivor(random).durable;
            whole.copy_from(&content, 0, content.len() as usize);
            content = whole;
        }
        Self::of(content.clone(), content)
    }

    /// All lines with a choice, in order.
    fn differing_lines(&self, present: &Sparse) -> Vec<usize> {
        let mut lines: Vec<usize> = self.earlier.keys().copied().collect();
        for (at, durable, present) in self.durable.differences(present) {
            let differing = durable.chunks(LINE_BYTES).zip(present.chunks(LINE_BYTES)).enumerate();
            let differing = differing.filter(|(_, (durable, present))| durable != present);
            lines.extend(differing.map(|(line, _)| at / LINE_BYTES + line));
        }
        lines.sort_unstable();
        lines.dedup();
        lines
    }

    /// `None` for the durable content.
    fn choose(
        &self,
        line: usize,
        present: &Sparse,
        cut: Cut,
        page_is_present: bool,
        random: &mut Random,
    ) -> Option<Line> {
        let earlier = self.earlier.get(&line).map_or(&[][..], Vec::as_slice);
        let at_present = || {
            let mut content = [0; LINE_BYTES];
            present.read((line * LINE_BYTES) as u64, &mut content);
            Some(content)
        };
        let at_moment = |moment: u64| match earlier.iter().find(|earlier| earlier.until >= moment) {
            Some(earlier) => Some(earlier.content),
            None => at_present(),
        };
        match cut {
            Cut::Durable => None,
            Cut::Present => at_present(),
            Cut::Moment(moment) => at_moment(moment),
            Cut::MomentOfSome(moment, percent) if random.chance(percent) => at_moment(moment),
            Cut::MomentOfSome(..) => match random.below(earlier.len() + 2) {
                0 => None,
                1 => at_present(),
                index => Some(earlier[index - 2].content),
            },
            Cut::Lines(percent) => random.chance(percent).then(at_present).flatten(),
            Cut::Pages => (page_is_present ^ random.chance(3)).then(at_present).flatten(),
        }
    }
}

fn lines_of(range: Range<usize>) -> Range<usize> {
    if range.is_empty() { 0..0 } else { range.start / LINE_BYTES..range.end.div_ceil(LINE_BYTES) }
}

/// Which earlier content to forget: never one that a fence will name.
fn forgettable(earlier: &[Earlier], moment: u64) -> Option<usize> {
    let start = moment as usize % earlier.len();
    (0..earlier.len()).map(|step| (start + step) % earlier.len()).find(|&at| !earlier[at].written_back)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::sync::atomic::Ordering::Relaxed;

    fn lines() -> (Lines, Arc<SharedMapping>) {
        let mut lines = Lines::new(2 * PAGE_BYTES as u64).unwrap();
        let mapping = lines.map("lines").unwrap();
        (lines, mapping)
    }

    fn store(lines: &mut Lines, line: usize, value: u64) {
        lines.note(line * LINE_BYTES..line * LINE_BYTES + 8);
        store_unseen(lines, line, value);
    }

    fn store_unseen(lines: &Lines, line: usize, value: u64) {
        let at = line * LINE_BYTES;
        lines.mapping.as_ref().unwrap().words(at..at + 8)[0].store(value, Relaxed);
    }

    fn persist(lines: &mut Lines, line: usize) {
        lines.write_back(line * LINE_BYTES..(line + 1) * LINE_BYTES);
        lines.fence();
    }

    /// All outcomes of 2,000 power cuts for the first word of each of these lines.
    fn outcomes(lines: &Lines, of: &[usize]) -> BTreeSet<Vec<u64>> {
        let outcome = |seed| {
            let survivor = lines.survivor(&mut Random::new(seed));
            let word =
                |line: &usize| u64::from_ne_bytes(*survivor.present_line(*line).first_chunk().unwrap());
            of.iter().map(word).collect()
        };
        (0..2000).map(outcome).collect()
    }

    #[test]
    fn a_line_persists_as_any_content_that_was_noted_since_its_fence() {
        let (mut lines, _mapping) = lines();
        store(&mut lines, 0, 1);
        persist(&mut lines, 0);
        for value in 2..5 {
            store(&mut lines, 0, value);
        }
        assert_eq!(outcomes(&lines, &[0]), [vec![1], vec![2], vec![3], vec![4]].into());
        persist(&mut lines, 0);
        assert_eq!(outcomes(&lines, &[0]), [vec![4]].into());
        assert!(lines.earlier.is_empty());
    }

    #[test]
    fn lines_are_lost_independently() {
        let (mut lines, _mapping) = lines();
        let apart = [0, 1, 70];
        apart.iter().for_each(|&line| store(&mut lines, line, 1));
        let all = (0..8).map(|bits: u64| (0..3).map(|line| bits >> line & 1).collect());
        assert_eq!(outcomes(&lines, &apart), all.collect());
    }

    #[test]
    fn a_write_back_without_a_fence_promises_nothing() {
        let (mut lines, _mapping) = lines();
        store(&mut lines, 3, 1);
        lines.write_back(0..PAGE_BYTES);
        assert_eq!(outcomes(&lines, &[3]), [vec![0], vec![1]].into());
        store_unseen(&lines, 3, 2);
        lines.fence();
        assert_eq!(outcomes(&lines, &[3]), [vec![1], vec![2]].into(), "as it was when written back");
    }

    #[test]
    fn the_fence_of_another_thread_promises_nothing() {
        let (mut lines, _mapping) = lines();
        store(&mut lines, 3, 1);
        lines.write_back(0..PAGE_BYTES);
        std::thread::scope(|scope| {
            scope.spawn(|| lines.fence());
        });
        assert_eq!(outcomes(&lines, &[3]), [vec![0], vec![1]].into());
        lines.fence();
        assert_eq!(outcomes(&lines, &[3]), [vec![1]].into());
    }

    #[test]
    fn an_older_fence_never_takes_back_what_a_newer_one_made_durable() {
        let (mut lines, _mapping) = lines();
        store(&mut lines, 3, 1);
        lines.write_back(0..PAGE_BYTES);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                store(&mut lines, 3, 2);
                persist(&mut lines, 3);
            });
        });
        lines.fence();
        assert_eq!(outcomes(&lines, &[3]), [vec![2]].into());
    }

    #[test]
    fn a_line_stored_again_as_it_was_stays_named_by_its_write_back() {
        let (mut lines, _mapping) = lines();
        store(&mut lines, 3, 1);
        lines.write_back(3 * LINE_BYTES..4 * LINE_BYTES);
        store(&mut lines, 3, 1);
        lines.note(3 * LINE_BYTES..4 * LINE_BYTES);
        lines.fence();
        assert_eq!(outcomes(&lines, &[3]), [vec![1]].into());
    }

    #[test]
    fn a_store_without_a_note_counts() {
        let (lines, _mapping) = lines();
        store_unseen(&lines, 100, 1);
        assert_eq!(outcomes(&lines, &[100]), [vec![0], vec![1]].into());
    }

    #[test]
    fn a_store_behind_the_crash_does_not_count() {
        let (mut lines, mapping) = lines();
        store(&mut lines, 0, 1);
        lines.freeze();
        mapping.words(0..8)[0].store(2, Relaxed);
        assert_eq!(outcomes(&lines, &[0]), [vec![0], vec![1]].into());
    }

    #[test]
    fn a_killed_process_leaves_its_stores_and_older_lines_may_return() {
        let (mut before, _mapping) = lines();
        store(&mut before, 0, 1);
        persist(&mut before, 0);
        store(&mut before, 0, 2);
        store(&mut before, 0, 0);
        before.write_back(0..8);
        let mut killed = before.killed();
        let mapping = killed.map("killed").unwrap();
        assert_eq!(mapping.words(0..8)[0].load(Relaxed), 0);
        assert_eq!(outcomes(&killed, &[0]), [vec![0], vec![1], vec![2]].into());
        killed.fence();
        assert_eq!(outcomes(&killed, &[0]).len(), 3, "the fence is of another life");
        persist(&mut killed, 0);
        assert_eq!(outcomes(&killed, &[0]), [vec![0]].into(), "zeros again, durably");
    }

    #[test]
    fn a_moment_keeps_what_was_stored_before_it_and_nothing_behind() {
        let (mut lines, _mapping) = lines();
        for line in 0..20 {
            store(&mut lines, line, 1);
        }
        let all = outcomes(&lines, &(0..20).collect::<Vec<_>>());
        for stored in 0..=20 {
            let moment: Vec<_> = (0..20).map(|line| u64::from(line < stored)).collect();
            assert!(all.contains(&moment), "the first {stored} lines and no others");
        }
    }

    #[test]
    fn a_line_that_changes_without_end_keeps_few_contents_and_what_a_fence_names() {
        let (mut lines, _mapping) = lines();
        store(&mut lines, 0, 1);
        lines.write_back(0..8);
        for value in 2..1000 {
            store(&mut lines, 0, value);
        }
        assert_eq!(lines.earlier[&0].len(), EARLIER_MAX);
        lines.fence();
        let seen = outcomes(&lines, &[0]);
        assert!(seen.contains(&vec![1]) && !seen.contains(&vec![0]), "{seen:?}");
    }

    #[test]
    fn a_power_cut_may_undo_a_cut_until_the_memory_grows() {
        let (mut lines, mapping) = lines();
        let (kept, beyond) = (1, PAGE_BYTES / LINE_BYTES + 1);
        for line in [kept, beyond] {
            store(&mut lines, line, 1);
            persist(&mut lines, line);
            store(&mut lines, line, 2);
        }
        drop(mapping);
        let length_and_words = |lines: &Lines| {
            let outcome = |seed| {
                let survivor = lines.survivor(&mut Random::new(seed));
                let word = |line: usize| survivor.present_line(line)[0];
                (survivor.len() as usize / PAGE_BYTES, word(kept), word(beyond))
            };
            (0..2000).map(outcome).collect::<BTreeSet<_>>()
        };
        lines.resize(PAGE_BYTES as u64).unwrap();
        let undone = [(1, 1, 0), (1, 2, 0), (2, 1, 1), (2, 1, 2), (2, 2, 1), (2, 2, 2)].into();
        assert_eq!(length_and_words(&lines), undone);
        assert_eq!(length_and_words(&lines.killed()), undone);
        lines.resize(3 * PAGE_BYTES as u64).unwrap();
        assert_eq!(length_and_words(&lines), [(3, 1, 0), (3, 2, 0)].into());
    }

    #[test]
    fn looking_for_changes_gives_untouched_pages_no_memory() {
        let mut lines = Lines::new(1 << 30).unwrap();
        let mapping = lines.map("lines").unwrap();
        store(&mut lines, 1 << 20, 1);
        assert_eq!(lines.content().len(), 1 << 30);
        let touched = 64 << 20..(64 << 20) + PAGE_BYTES;
        assert_eq!(mapping.data(), vec![touched; 1]);
        assert_eq!(lines.differing_lines(&lines.content()), [1 << 20]);
    }
}
