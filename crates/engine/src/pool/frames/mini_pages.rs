//! Mini pages: up to 16 lines of a partial page, in a slot of a DRAM frame (HyMem, section 3.2).
//!
//! ```text
//!   slot   page, mapping word, recLSN, next recLSN, middle copy     40 bytes
//!          line numbers, one byte each                              16
//!          count of lines, marked rounds, mask of dirty lines        8
//!          16 lines, in order of arrival                          16 lines
//! ```
//!
//! Lines do not move while the mini page lives, and count after their bytes and numbers. So
//! optimistic readers need no latch. A late reader may see bytes of any page; it does not validate.
//!
//! A frame that holds mini pages says so in its header, and stands in the main queue as one frame.
//! The lock here protects which slots are in use; it is the innermost.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

use super::header::Header;
use super::links::Links;
use super::partition::{MINI_FRAMES_MAX, Partition, SLOTS_MAX, index_of, mini_page_of, slot_of};
use crate::ids::{PageId, SizeClass};
use crate::pool::line_fault::{Arrivals, COUNT, MINI_LINES};

/// Words of a slot before its lines.
const HEADER_WORDS: usize = 8;
/// Words of [`Header`] in a slot.
const NUMBERS_AT: usize = 5;
const STATE_AT: usize = 7;
/// Positions of marked rounds and the mask of dirty lines in the state word, above the count.
const ROUNDS_SHIFT: u32 = 8;
const DIRTY_SHIFT: u32 = 16;
const ROUNDS: u64 = ((1 << DIRTY_SHIFT) - 1) & !COUNT;
const _: () = assert!(COUNT < 1 << ROUNDS_SHIFT);

fn slot_words(line_bytes: usize) -> usize {
    HEADER_WORDS + MINI_LINES * line_bytes / 8
}

#[derive(Debug)]
pub(crate) struct MiniPages {
    class: SizeClass,
    line_bytes: usize,
    hosts: Mutex<Hosts>,
}

/// The sweep asks under the lock of the free frames. So its calls look at a frame and its two
/// neighbours in the list, however many frames there are.
#[derive(Debug, Default)]
struct Hosts {
    /// By frame.
    all: BTreeMap<u32, Host>,
    /// Ends of the list of frames that new mini pages may go to: first those that the sweep reaches
    /// next.
    first: Option<u32>,
    last: Option<u32>,
    /// Free slots of the frames in the list.
    free: usize,
    #[cfg(test)]
    looks: usize,
}

/// A frame that holds mini pages.
#[derive(Debug, Default)]
struct Host {
    /// One bit per slot in use.
    used: u16,
    /// Whether no slot of it may be taken.
    is_closed: bool,
    /// Whether it is in the list of open frames: not closed, and with a free slot.
    is_listed: bool,
    /// Neighbours in that list.
    before: Option<u32>,
    behind: Option<u32>,
}

impl Hosts {
    fn host(&mut self, frame: u32) -> &mut Host {
        #[cfg(test)]
        {
            self.looks += 1;
        }
        self.all.get_mut(&frame).expect("it holds mini pages")
    }

    /// Puts a frame with `free` free slots into the list.
    fn list(&mut self, frame: u32, free: usize, as_first: bool) {
        self.free += free;
        self.host(frame).is_listed = true;
        let (before, behind) = if as_first { (None, self.first) } else { (self.last, None) };
        self.join(Some(frame), behind);
        self.join(before, Some(frame));
    }

    /// Takes a frame with `free` free slots out of the list.
    fn unlist(&mut self, frame: u32, free: usize) {
        self.free -= free;
        let host = self.host(frame);
        host.is_listed = false;
        let (before, behind) = (host.before, host.behind);
        self.join(before, behind);
    }

    /// Makes two frames neighbours; none is the end of the list.
    fn join(&mut self, before: Option<u32>, behind: Option<u32>) {
        match before {
            Some(frame) => self.host(frame).behind = behind,
            None => self.first = behind,
        }
        match behind {
            Some(frame) => self.host(frame).before = before,
            None => self.last = before,
        }
    }
}

impl MiniPages {
    /// Bytes beside a frame that note its slots.
    pub(crate) const BYTES_PER_FRAME: u64 = 48;

    /// Whether a frame of `class` has room for more than one, with `line_bytes` bytes a line.
    pub(crate) fn are_useful(class: SizeClass, line_bytes: usize) -> bool {
        MiniPages::new(class, line_bytes).slots() > 1
    }

    pub(super) fn new(class: SizeClass, line_bytes: usize) -> MiniPages {
        MiniPages { class, line_bytes, hosts: Mutex::default() }
    }

    /// Slots of a frame.
    pub(crate) fn slots(&self) -> usize {
        (self.class.page_bytes() / 8 / slot_words(self.line_bytes)).min(SLOTS_MAX)
    }

    fn all_slots(&self) -> u16 {
        ((1u32 << self.slots()) - 1) as u16
    }

    fn free_of(&self, host: &Host) -> usize {
        (!host.used & self.all_slots()).count_ones() as usize
    }

    /// Class of the pages, and of the frames that hold them.
    pub(crate) fn class(&self) -> SizeClass {
        self.class
    }

    /// The mini page in a slot of a frame with `words`.
    pub(super) fn page<'a>(&self, words: &'a [AtomicU64], mini: u32) -> MiniPage<'a> {
        // A late reader may ask for a slot of a frame that has fewer.
        let slot = slot_of(mini).0.min(self.slots() - 1);
        let length = slot_words(self.line_bytes);
        MiniPage { words: &words[slot * length..(slot + 1) * length], line_words: self.line_bytes / 8 }
    }

    /// Whether `frame` may hold mini pages.
    pub(crate) fn may_hold(&self, frame: u32) -> bool {
        index_of(frame) < MINI_FRAMES_MAX
    }

    /// Takes a slot for a page; `clear` empties it.
    pub(super) fn take(&self, clear: impl FnOnce(u32)) -> Option<u32> {
        let mut hosts = self.hosts.lock();
        let frame = hosts.last?;
        let host = hosts.host(frame);
        let slot = host.used.trailing_ones();
        host.used |= 1 << slot;
        let is_full = host.used == self.all_slots();
        hosts.free -= 1;
        if is_full {
            hosts.unlist(frame, 0);
        }
        let mini = mini_page_of(frame, slot as usize);
        clear(mini);
        Some(mini)
    }

    /// The frame that `mini` is in.
    pub(super) fn frame_of(&self, mini: u32) -> u32 {
        Partition::from(self.class).frame(slot_of(mini).1)
    }

    /// Frees the slot of `mini`.
    pub(super) fn give(&self, mini: u32) {
        let frame = self.frame_of(mini);
        let mut hosts = self.hosts.lock();
        let host = hosts.host(frame);
        debug_assert!(host.used >> slot_of(mini).0 & 1 != 0);
        host.used &= !(1 << slot_of(mini).0);
        match (host.is_listed, host.is_closed) {
            (true, _) => hosts.free += 1,
            (false, true) => {}
            (false, false) => hosts.list(frame, 1, true),
        }
    }

    /// Lets an empty `frame` hold mini pages.
    pub(crate) fn begin(&self, frame: u32) {
        let mut hosts = self.hosts.lock();
        let before = hosts.all.insert(frame, Host::default());
        debug_assert!(before.is_none());
        hosts.list(frame, self.slots(), false);
    }

    /// Gives no slot of `frame` any more; returns the mini pages that it holds.
    pub(crate) fn close(&self, frame: u32) -> Vec<u32> {
        let mut hosts = self.hosts.lock();
        let host = hosts.host(frame);
        host.is_closed = true;
        let (used, is_listed, free) = (host.used, host.is_listed, self.free_of(host));
        if is_listed {
            hosts.unlist(frame, free);
        }
        pages_of(frame, used).collect()
    }

    /// Ends the hold of `frame` on mini pages if it is closed and has none.
    pub(crate) fn end(&self, frame: u32) -> bool {
        let mut hosts = self.hosts.lock();
        let is_empty = hosts.all.get(&frame).is_some_and(|host| host.used == 0 && host.is_closed);
        is_empty && hosts.all.remove(&frame).is_some()
    }

    /// Gives slots of `frame` again; returns their number. The next ones are taken there.
    pub(crate) fn open(&self, frame: u32) -> usize {
        let mut hosts = self.hosts.lock();
        let host = hosts.host(frame);
        host.is_closed = false;
        let (is_listed, free) = (host.is_listed, self.free_of(host));
        if free > 0 && !is_listed {
            hosts.list(frame, free, false);
        }
        free
    }

    /// Free slots that may be taken.
    pub(crate) fn free_slots(&self) -> usize {
        self.hosts.lock().free
    }

    /// Slots in use, and frames that hold mini pages.
    pub(crate) fn used(&self) -> (u64, u64) {
        let hosts = self.hosts.lock();
        let used = hosts.all.values().map(|host| u64::from(host.used.count_ones())).sum();
        (used, hosts.all.len() as u64)
    }

    /// Calls `with` for all slots in use, of which none is taken or freed meanwhile.
    pub(super) fn for_each(&self, mut with: impl FnMut(u32)) {
        let hosts = self.hosts.lock();
        hosts.all.iter().flat_map(|(&frame, host)| pages_of(frame, host.used)).for_each(&mut with);
    }
}

fn pages_of(frame: u32, used: u16) -> impl Iterator<Item = u32> {
    let slots = (0..SLOTS_MAX).filter(move |slot| used >> slot & 1 != 0);
    slots.map(move |slot| mini_page_of(frame, slot))
}

/// The slot of a mini page. Its page's exclusive latch protects changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MiniPage<'a> {
    words: &'a [AtomicU64],
    line_words: usize,
}

impl<'a> MiniPage<'a> {
    /// `links` are those of the frame.
    pub(super) fn header(self, links: Links<'a>) -> Header<'a> {
        let [page, mapped, rec_lsn, next_rec_lsn, middle_copy_and_read_reason] = &self.words[..NUMBERS_AT]
        else {
            unreachable!("five words were asked for");
        };
        Header { page, mapped, rec_lsn, next_rec_lsn, middle_copy_and_read_reason, links }
    }

    /// Forgets page and lines.
    pub(super) fn clear(self) {
        self.arrivals().forget();
        self.words[..NUMBERS_AT].iter().for_each(|word| word.store(0, Relaxed));
        debug_assert!(PageId::NONE == PageId(0));
    }

    fn arrivals(self) -> Arrivals<'a> {
        #[cfg(not(loom))]
        return Arrivals { numbers: &self.words[NUMBERS_AT..STATE_AT], state: &self.words[STATE_AT] };
        #[cfg(loom)]
        unreachable!("loom checks lines of its own, not those of {self:?}");
    }

    pub(crate) fn count(self) -> usize {
        self.arrivals().count()
    }

    /// Numbers of the lines that it has, in order of arrival.
    pub(crate) fn numbers(self) -> impl Iterator<Item = usize> + use<'a> {
        self.arrivals().numbers()
    }

    fn position(self, line: usize) -> Option<usize> {
        self.arrivals().position(line)
    }

    fn line_at(self, index: usize) -> &'a [AtomicU64] {
        let at = HEADER_WORDS + index * self.line_words;
        &self.words[at..at + self.line_words]
    }

    /// The words of `line`, if it has that line.
    pub(crate) fn line(self, line: usize) -> Option<&'a [AtomicU64]> {
        self.position(line).map(|index| self.line_at(index))
    }

    /// The words of the line that arrives after `ahead` others.
    pub(crate) fn next_line(self, ahead: usize) -> &'a [AtomicU64] {
        self.line_at(self.count() + ahead)
    }

    /// Publishes `line`, whose bytes are in the next one's words.
    pub(crate) fn publish(self, line: usize) {
        self.arrivals().publish(line);
    }

    /// Rounds of the sweep that it has left, as a frame of the main queue.
    pub(crate) fn rounds(self) -> u32 {
        ((self.words[STATE_AT].load(Relaxed) & ROUNDS) >> ROUNDS_SHIFT) as u32
    }

    /// Needs the page's latch or the lock of the free frames, so that the slot stays one.
    pub(crate) fn set_rounds(self, rounds: u32) {
        let change = self.words[STATE_AT].load(Relaxed) & ROUNDS ^ u64::from(rounds) << ROUNDS_SHIFT;
        self.words[STATE_AT].fetch_xor(change, Relaxed);
    }

    pub(crate) fn is_dirty(self, line: usize) -> bool {
        let state = self.words[STATE_AT].load(Relaxed);
        self.position(line).is_some_and(|index| state >> DIRTY_SHIFT >> index & 1 != 0)
    }

    pub(crate) fn set_dirty(self, line: usize) {
        if let Some(index) = self.position(line) {
            self.words[STATE_AT].fetch_or(1 << DIRTY_SHIFT << index, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::SmallRng;
    use rand::{RngExt, SeedableRng};

    use super::*;

    fn pages() -> MiniPages {
        MiniPages::new(SizeClass::of_bytes(16 << 10).unwrap(), 64)
    }

    #[test]
    fn lines_are_found_in_order_of_arrival_and_neighbours_keep_theirs() {
        let (pages, words) = (pages(), (0..2048).map(|_| AtomicU64::new(7)).collect::<Vec<_>>());
        assert_eq!(pages.slots(), 15);
        let slots: Vec<_> = (0..15).map(|slot| pages.page(&words, mini_page_of(0, slot))).collect();
        slots.iter().for_each(|slot| slot.clear());
        let numbers =
            |slot: usize| (0..MINI_LINES).map(move |index| (255 - 5 * index * (slot + 1) % 256) % 256);
        for (at, slot) in slots.iter().enumerate() {
            for (index, line) in numbers(at).enumerate() {
                assert!(slot.line(line).is_none() && !slot.is_dirty(line));
                slot.next_line(0).iter().for_each(|word| word.store((at * 100 + index) as u64, Relaxed));
                slot.publish(line);
                if index % 3 == 0 {
                    slot.set_dirty(line);
                }
            }
        }
        for (at, slot) in slots.iter().enumerate() {
            assert!(slot.numbers().eq(numbers(at)));
            for (index, line) in numbers(at).enumerate() {
                let words = slot.line(line).unwrap();
                assert_eq!(words.len(), 8);
                assert!(words.iter().all(|word| word.load(Relaxed) == (at * 100 + index) as u64));
                assert_eq!(slot.is_dirty(line), index % 3 == 0);
            }
        }
    }

    #[test]
    fn slots_are_taken_from_open_frames_and_a_frame_ends_empty() {
        let pages = pages();
        let frame = Partition::from(pages.class()).frame(4);
        assert_eq!(pages.take(|_| {}), None);
        pages.begin(frame);
        let all: Vec<u32> = (0..15).map(|_| pages.take(|_| {}).unwrap()).collect();
        assert_eq!(pages.take(|_| {}), None);
        pages.give(all[3]);
        assert_eq!((pages.free_slots(), pages.take(|_| {})), (1, Some(all[3])));
        assert_eq!(pages.close(frame), all);
        all.iter().for_each(|&mini| assert!(!pages.end(frame), "{mini}"));
        pages.give(all[0]);
        assert_eq!((pages.close(frame).len(), pages.take(|_| {})), (14, None));
        assert_eq!(pages.open(frame), 1);
        assert_eq!([pages.take(|_| {}), pages.take(|_| {})], [Some(all[0]), None]);
        all.iter().for_each(|&mini| pages.give(mini));
        assert!(!pages.end(frame), "it is open");
        assert_eq!((pages.close(frame).len(), pages.end(frame), pages.take(|_| {})), (0, true, None));
    }

    /// Frames come and go at both ends of the list and inside it.
    #[test]
    fn the_list_of_open_frames_is_as_one_that_is_searched() {
        let pages = pages();
        let frame = |index: u32| Partition::from(pages.class()).frame(index);
        // Free slots of open frames, in order; closed frames; mini pages.
        let (mut open, mut closed, mut minis) = (Vec::<(u32, usize)>::new(), Vec::new(), Vec::new());
        (0..40).for_each(|index| {
            pages.begin(frame(index));
            open.push((frame(index), 15));
        });
        let mut random = SmallRng::seed_from_u64(7);
        for step in 0..30_000 {
            match random.random_range(0..10) {
                0..4 => {
                    let taken = pages.take(|_| {});
                    assert_eq!(taken.map(|mini| pages.frame_of(mini)), open.last().map(|&(frame, _)| frame));
                    minis.extend(taken);
                    if let Some((_, free)) = open.last_mut() {
                        *free -= 1;
                    }
                }
                4..7 if !minis.is_empty() => {
                    let mini = minis.swap_remove(random.random_range(0..minis.len()));
                    pages.give(mini);
                    let frame = pages.frame_of(mini);
                    match open.iter_mut().find(|(other, _)| *other == frame) {
                        Some((_, free)) => *free += 1,
                        None if closed.contains(&frame) => {}
                        None => open.insert(0, (frame, 1)),
                    }
                }
                7..9 => {
                    let frame = frame(random.random_range(0..40));
                    if !closed.contains(&frame) {
                        pages.close(frame);
                        open.retain(|&(other, _)| other != frame);
                        closed.push(frame);
                    }
                }
                _ => {
                    if let Some(frame) = closed.pop() {
                        let free = pages.open(frame);
                        let used = minis.iter().filter(|&&mini| pages.frame_of(mini) == frame).count();
                        assert_eq!(free, 15 - used);
                        open.extend((free > 0).then_some((frame, free)));
                    }
                }
            }
            open.retain(|&(_, free)| free > 0);
            assert_eq!(pages.free_slots(), open.iter().map(|&(_, free)| free).sum(), "step {step}");
        }
        assert!(!closed.is_empty() && minis.len() > 50);
    }

    #[test]
    fn the_sweep_looks_at_few_frames_however_many_there_are() {
        let pages = pages();
        let frame = |index: u32| Partition::from(pages.class()).frame(index);
        (0..10_000).for_each(|index| pages.begin(frame(index)));
        let before = pages.hosts.lock().looks;
        for index in [0, 4_000, 9_999] {
            pages.close(frame(index));
            pages.free_slots();
            pages.open(frame(index));
        }
        assert!(pages.hosts.lock().looks - before < 30);
    }
}
