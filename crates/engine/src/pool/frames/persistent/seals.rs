//! Seals while the database is open.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use terrace_io::{Direction, Pattern, PersistentMemory, SimulatedMemory, fork_count};

use super::layout::{self, LINE_BYTES, Layout, Sealed};
use crate::error::{Error, Result};
use crate::ids::{Lsn, PageId};
use crate::planted::{Bug, planted};
use crate::pool::frames::partition::{Partition, index_of};
use crate::pool::view::{Racy, View};
use crate::stats::PersistentStats;
use crate::store::page;

/// DRAM beside each frame, bytes.
pub(crate) const BYTES_BESIDE: u64 = size_of::<AtomicU32>() as u64;

/// Bits of a frame's state. Its header may say that it is sealed.
const SEALED: u32 = 1;
/// Adopted, and its body not yet compared.
const UNCHECKED: u32 = 2;
/// Adopted, its image maybe older, and redo has met no record of its page.
const UNMET: u32 = 4;
/// The page's version at the last look, above these bits.
const VERSION_SHIFT: u32 = 8;

/// Frames of the middle tier.
///
/// Knowledge of a seal is in DRAM. A header that reads unsealed proves nothing: its line may not be
/// durable.
#[derive(Debug)]
pub(crate) struct PersistentFrames {
    pub(super) memory: Arc<PersistentMemory>,
    pub(super) layout: Layout,
    /// Charges write-backs of headers, if simulated.
    pub(super) charge: Option<Arc<SimulatedMemory>>,
    states: Box<[AtomicU32]>,
    /// The next frame to look at for sealing.
    hand: AtomicU32,
    /// Forks before it mapped the memory. A child has no mapping.
    forks: u32,
    checks_bodies: bool,
    counts: SealCounts,
}

#[derive(Debug, Default)]
struct SealCounts {
    adopted: AtomicU64,
    adoption_ns: AtomicU64,
    seals: AtomicU64,
    unseals: AtomicU64,
    dropped: [AtomicU64; Dropped::COUNT],
}

/// Why a sealed frame does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dropped {
    /// The tier was not attached in the database's last life.
    Life,
    /// The header is damaged.
    Header,
    /// There is no such page.
    Page,
    /// The page's image or allocation is newer.
    Older,
    /// The log ends before the frame's LSN.
    BeyondLog,
    /// Another frame has a higher LSN of the page.
    Duplicate,
    /// The body is not what was sealed.
    Body,
}

impl Dropped {
    const COUNT: usize = Dropped::Body as usize + 1;
}

/// A page to be sealed, whose shared latch the caller holds.
#[derive(Clone, Copy, Debug)]
pub(in crate::pool) struct Sealing {
    frame: u32,
    sealed: Sealed,
}

impl PersistentFrames {
    pub(super) fn new(
        memory: Arc<PersistentMemory>,
        layout: Layout,
        charge: Option<Arc<SimulatedMemory>>,
        checks_bodies: bool,
    ) -> PersistentFrames {
        PersistentFrames {
            memory,
            layout,
            charge,
            states: (0..layout.frames).map(|_| AtomicU32::new(SEALED)).collect(),
            hand: AtomicU32::new(0),
            forks: fork_count(),
            checks_bodies,
            counts: SealCounts::default(),
        }
    }

    pub(in crate::pool::frames) fn partition(&self) -> Partition {
        Partition::middle(self.layout.class)
    }

    /// The file, for messages.
    pub(crate) fn name(&self) -> &str {
        self.memory.name()
    }

    pub(in crate::pool::frames) fn memory(&self) -> &PersistentMemory {
        &self.memory
    }

    /// Frames, and where their bodies begin in the memory.
    pub(in crate::pool::frames) fn bodies(&self) -> impl Iterator<Item = (Range<u32>, usize)> {
        self.layout.bodies()
    }

    /// # Errors
    /// [`Error::Poisoned`] in a forked child.
    #[inline]
    pub(crate) fn check_process(&self) -> Result<()> {
        if self.is_of_this_process() { Ok(()) } else { Err(forked(self.memory.name())) }
    }

    #[inline]
    pub(crate) fn is_of_this_process(&self) -> bool {
        fork_count() == self.forks
    }

    fn state(&self, frame: u32) -> &AtomicU32 {
        &self.states[index_of(frame) as usize]
    }

    fn line(&self, frame: u32) -> &[AtomicU64] {
        self.memory.words(self.layout.header(index_of(frame)))
    }

    fn body(&self, frame: u32) -> Racy<'_> {
        Racy::new(self.memory.words(self.layout.body(index_of(frame))))
    }

    /// Unseals `frame` durably, unless this process knows that it is.
    ///
    /// The caller may change the frame, or holds its page's latch.
    #[inline]
    pub(crate) fn unseal(&self, frame: u32) {
        if self.state(frame).load(Relaxed) & SEALED != 0 {
            self.unseal_now(frame);
        }
    }

    #[cold]
    #[inline(never)]
    fn unseal_now(&self, frame: u32) {
        let line = self.layout.header(index_of(frame));
        self.memory.note(line.clone());
        layout::clear_seal(self.line(frame));
        // Fails only after a simulated power cut. Then nothing that follows counts.
        let _ = match planted(Bug::UnsealUnfenced) {
            true => self.memory.write_back(line),
            false => self.memory.persist(line),
        };
        self.charge_header(frame);
        self.charge.iter().for_each(|charge| _ = charge.fence());
        self.state(frame).fetch_and(!(SEALED | UNCHECKED | UNMET), Relaxed);
        self.counts.unseals.fetch_add(1, Relaxed);
    }

    /// Says that stores to the body of an unsealed `frame` follow.
    #[inline]
    pub(crate) fn note_stores(&self, frame: u32) {
        self.memory.note(self.layout.body(index_of(frame)));
    }

    /// Unseals `frame` if it is older than `image`, which comes into force.
    pub(crate) fn unseal_older(&self, frame: u32, image: Lsn) {
        let is_older = || self.body(frame).u64(page::LSN_AT) < image.0;
        if self.state(frame).load(Relaxed) & SEALED != 0 && is_older() {
            self.unseal_now(frame);
        }
    }

    pub(in crate::pool::frames) fn forget_seal(&self, frame: u32) {
        self.state(frame).store(0, Relaxed);
    }

    pub(crate) fn is_sealed(&self, frame: u32) -> bool {
        self.state(frame).load(Relaxed) & SEALED != 0
    }

    pub(in crate::pool) fn next_in_turn(&self, count: u32) -> u32 {
        let index = self.hand.load(Relaxed) % count.max(1);
        self.hand.store(index + 1, Relaxed);
        self.partition().frame(index)
    }

    /// Notes a look at `frame`; whether its page had this version at the last one too.
    pub(in crate::pool) fn is_unchanged(&self, frame: u32, version: u64) -> bool {
        let (state, looked) = (self.state(frame), (version as u32) << VERSION_SHIFT);
        let before = state.load(Relaxed);
        state.fetch_xor((before ^ looked) & !0 << VERSION_SHIFT, Relaxed);
        before & !0 << VERSION_SHIFT == looked
    }

    /// Sends the body of `frame` to the memory. `None` if records of its changes are not `durable`.
    ///
    /// `buffer` has room for a page. The caller holds the page's shared latch until
    /// [`PersistentFrames::seal`] returns.
    pub(in crate::pool) fn begin_seal(
        &self,
        frame: u32,
        id: PageId,
        durable: Lsn,
        buffer: &mut [u8],
    ) -> Option<Sealing> {
        let body = self.layout.body(index_of(frame));
        let buffer = &mut buffer[..body.len()];
        self.body(frame).copy_to(0, buffer);
        let lsn = page::lsn(buffer);
        if lsn >= durable && !planted(Bug::SealBeforeDurable) {
            return None;
        }
        let lsn = if planted(Bug::SealBeforeDurable) { lsn.min(Lsn(durable.0 - 1)) } else { lsn };
        let sealing = Sealing { frame, sealed: Sealed { page: id, lsn, checksum: page::crc32c(buffer) } };
        if planted(Bug::SealBeforeBody) {
            self.seal(&[sealing]);
        }
        self.charge_body(&body);
        if let Some(charge) = &self.charge {
            charge.write_back(body.start as u64, body.len() as u64);
        }
        if !planted(Bug::SealUnflushed) {
            self.memory.write_back(body).ok()?;
        }
        Some(sealing)
    }

    /// Seals frames whose bodies are on their way to the memory.
    pub(in crate::pool) fn seal(&self, frames: &[Sealing]) {
        if frames.is_empty() || self.memory.fence().is_err() {
            return;
        }
        for &Sealing { frame, sealed } in frames {
            // Before the header can read so.
            self.state(frame).fetch_or(SEALED, Relaxed);
            let line = self.layout.header(index_of(frame));
            self.memory.note(line.clone());
            sealed.store(index_of(frame), self.line(frame));
            if self.memory.write_back(line).is_err() {
                return;
            }
            self.charge_header(frame);
        }
        self.charge.iter().for_each(|charge| _ = charge.fence() + charge.fence());
        if self.memory.fence().is_ok() {
            self.counts.seals.fetch_add(frames.len() as u64, Relaxed);
        }
    }

    /// All frames but those of these indexes are unsealed. With each comes whether its page's image
    /// is equal.
    pub(super) fn begin_life(&self, adopted: impl ExactSizeIterator<Item = (u32, bool)>) {
        self.states.iter().for_each(|state| state.store(0, Relaxed));
        self.counts.adopted.store(adopted.len() as u64, Relaxed);
        for (index, is_imaged) in adopted {
            let unmet = if is_imaged { 0 } else { UNMET };
            self.states[index as usize].store(SEALED | UNCHECKED | unmet, Relaxed);
        }
    }

    pub(super) fn is_adopted(&self, index: u32) -> bool {
        self.states[index as usize].load(Relaxed) & UNCHECKED != 0
    }

    /// Charges a core for reading a body.
    fn charge_body(&self, body: &Range<usize>) {
        if let Some(charge) = &self.charge {
            let (at, bytes) = (body.start as u64, body.len() as u64);
            let read = charge.begin(Direction::Read, at, bytes, Pattern::Sequential);
            charge.copy(bytes);
            read.finish();
        }
    }

    /// Charges storing `stored` bytes where `ranges` begin, writing those back, and a fence.
    pub(super) fn charge_write_back(&self, ranges: impl IntoIterator<Item = Range<usize>>, stored: usize) {
        let Some(charge) = &self.charge else { return };
        for (number, range) in ranges.into_iter().enumerate() {
            if number == 0 {
                charge.write(range.start as u64, stored as u64, Pattern::Sequential);
            }
            charge.write_back(range.start as u64, range.len() as u64);
        }
        charge.fence();
    }

    fn charge_header(&self, frame: u32) {
        if let Some(charge) = &self.charge {
            let address = self.layout.header(index_of(frame)).start as u64;
            charge.begin(Direction::Write, address, LINE_BYTES as u64, Pattern::Random).finish();
            charge.write_back(address, LINE_BYTES as u64);
        }
    }

    #[inline]
    pub(in crate::pool) fn wants_check(&self, frame: u32) -> bool {
        self.state(frame).load(Relaxed) & UNCHECKED != 0
    }

    /// Whether redo dirties the page at the first record that it meets.
    pub(in crate::pool) fn is_unmet(&self, frame: u32) -> bool {
        self.state(frame).load(Relaxed) & UNMET != 0
    }

    pub(in crate::pool) fn meet(&self, frame: u32) {
        self.state(frame).fetch_and(!UNMET, Relaxed);
    }

    /// Compares the body in `frame` with its header, once. Whether it holds.
    ///
    /// The caller holds the page's latch, or is alone.
    pub(in crate::pool) fn check_body(&self, frame: u32, id: PageId) -> bool {
        self.charge_body(&self.layout.body(index_of(frame)));
        let holds = !self.checks_bodies || self.body_fault(frame, id).is_none();
        match holds {
            true => _ = self.state(frame).fetch_and(!UNCHECKED, Relaxed),
            false => self.count_dropped(Dropped::Body, 1),
        }
        holds
    }

    /// The fault of the body of sealed `frame`, or of its header.
    pub(in crate::pool) fn body_fault(&self, frame: u32, id: PageId) -> Option<&'static str> {
        let mut content = vec![0; self.layout.class.page_bytes()];
        self.body(frame).copy_to(0, &mut content);
        let Some(sealed) = Sealed::load(index_of(frame), self.line(frame)) else {
            return Some("its header is damaged");
        };
        if sealed.checksum != page::crc32c(&content) {
            return Some("its checksum does not hold");
        }
        if sealed.page != id || page::page_id(&content) != id || page::lsn(&content) != sealed.lsn {
            return Some("its header is of another page or LSN");
        }
        page::check_kind(&content, id).err()
    }

    pub(in crate::pool) fn sealed_lsn(&self, frame: u32) -> Option<Lsn> {
        Sealed::load(index_of(frame), self.line(frame)).map(|sealed| sealed.lsn)
    }

    /// Counts time that the open spends on headers.
    pub(in crate::pool) fn count_adoption(&self, begun: Instant) {
        self.counts.adoption_ns.fetch_add(begun.elapsed().as_nanos() as u64, Relaxed);
    }

    pub(super) fn count_dropped(&self, why: Dropped, frames: u64) {
        self.counts.dropped[why as usize].fetch_add(frames, Relaxed);
    }

    pub(in crate::pool) fn stats(&self) -> PersistentStats {
        let dropped = |why: Dropped| self.counts.dropped[why as usize].load(Relaxed);
        let sealed = self.states.iter().filter(|state| state.load(Relaxed) & SEALED != 0).count();
        let adopted = self.counts.adopted.load(Relaxed);
        // The machine's time: runs repeat where nothing was adopted.
        let adoption_ns = if adopted > 0 { self.counts.adoption_ns.load(Relaxed) } else { 0 };
        PersistentStats {
            adopted,
            adoption_us: adoption_ns / 1000,
            sealed: sealed as u64,
            seals: self.counts.seals.load(Relaxed),
            unseals: self.counts.unseals.load(Relaxed),
            dropped_life: dropped(Dropped::Life),
            dropped_header: dropped(Dropped::Header),
            dropped_page: dropped(Dropped::Page),
            dropped_older: dropped(Dropped::Older),
            dropped_beyond_log: dropped(Dropped::BeyondLog),
            dropped_duplicate: dropped(Dropped::Duplicate),
            dropped_body: dropped(Dropped::Body),
        }
    }
}

#[cold]
fn forked(name: &str) -> Error {
    Error::Poisoned { reason: format!("this process was forked by the one that has the middle tier {name}") }
}
