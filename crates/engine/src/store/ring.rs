//! The log's ring in persistent memory: its owner, and how its bytes become persistent.
//!
//! ```text
//!  0         128       256     264    272       4096
//!  | slot 0  | slot 1  | filed | held | zeros   | the ring, a power of two ...
//! ```
//!
//! A slot has magic, checksum, version, UUID, timeline, id, bytes of the ring, epoch and life. Head
//! and tail are not stored: the records say whether they count (`wal/scan.rs`).
//!
//! **Identity.** The superblock names the ring that it relies on, by id. The ring says which life
//! of which database uses it. A life is an epoch and a random number, because copies of a database
//! count the same epochs. Only a ring of the life that the superblock names is read. It also says
//! how much it relies on the log's file, so no older copy of that fits.
//!
//! **Order.** A recovery makes a slot of its new life persistent, beside that of the last one. Then
//! it writes the superblock, and then clears the older slot, before the first append. So the ring
//! always has the life that the superblock names, and after the first append no other.
//!
//! A ring that the superblock does not name is cleared first, since its records may fit by LSN and
//! epoch; or refused, if somebody may need them.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use terrace_io::{Pattern, PersistentMemory, SimulatedMemory};

use super::page::crc32c;
use super::superblock::{FORMAT_VERSION, RingName, Superblock};
use crate::error::{Error, Result};
use crate::planted::{Bug, planted};

pub(crate) const RING_AT: usize = 4096;
pub(crate) const RING_BYTES_MIN: u64 = 16 << 10;
/// The longest ring; recovery rewrites twice as much of the log.
pub(crate) const RING_BYTES_MAX: u64 = 8 << 20;

const MAGIC: [u8; 8] = *b"TERRING\0";
const SLOT_BYTES: usize = 128;
const SLOTS: usize = 2;
const CHECKED_AT: usize = 12;
/// The end of the log's file that the ring relies on: it may have overwritten all below.
const FILED_AT: usize = SLOTS * SLOT_BYTES;
/// The end of records that the page file relies on.
const HELD_AT: usize = FILED_AT + 8;
const HEADER_BYTES: usize = HELD_AT + 8;

/// A memory for the log's ring.
#[derive(Debug)]
pub(crate) struct RingMemory {
    memory: Arc<PersistentMemory>,
    bytes: usize,
    /// The id that it gets with its first database.
    new_id: u64,
    /// Charges for simulated memory.
    cost: Option<Arc<SimulatedMemory>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot {
    uuid: [u8; 16],
    timeline: u64,
    name: RingName,
    epoch: u32,
    life: u64,
}

impl Slot {
    fn encode(&self) -> [u8; SLOT_BYTES] {
        let mut slot = [0; SLOT_BYTES];
        slot[..8].copy_from_slice(&MAGIC);
        slot[12..16].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        slot[16..32].copy_from_slice(&self.uuid);
        slot[32..40].copy_from_slice(&self.timeline.to_le_bytes());
        slot[40..48].copy_from_slice(&self.name.id.to_le_bytes());
        slot[48..56].copy_from_slice(&self.name.bytes.to_le_bytes());
        slot[56..60].copy_from_slice(&self.epoch.to_le_bytes());
        slot[64..72].copy_from_slice(&self.life.to_le_bytes());
        let check = crc32c(&slot[CHECKED_AT..]);
        slot[8..CHECKED_AT].copy_from_slice(&check.to_le_bytes());
        slot
    }

    /// `None` if the slot was never written, or torn.
    fn decode(slot: &[u8; SLOT_BYTES]) -> Option<(u32, Slot)> {
        let word = |at: usize| u64::from_le_bytes(slot[at..at + 8].try_into().expect("eight bytes"));
        let half = |at: usize| u32::from_le_bytes(slot[at..at + 4].try_into().expect("four bytes"));
        if slot[..8] != MAGIC || half(8) != crc32c(&slot[CHECKED_AT..]) {
            return None;
        }
        let uuid = slot[16..32].try_into().expect("sixteen bytes");
        let name = RingName { id: word(40), bytes: word(48) };
        Some((half(12), Slot { uuid, timeline: word(32), name, epoch: half(56), life: word(64) }))
    }
}

impl RingMemory {
    /// The ring in `memory`. It gets `new_id` with its first database.
    ///
    /// # Errors
    /// [`Error::LogMemory`] if its length is none that a ring has.
    pub(crate) fn new(
        memory: Arc<PersistentMemory>,
        new_id: u64,
        cost: Option<Arc<SimulatedMemory>>,
    ) -> Result<Self> {
        let bytes = memory.len().saturating_sub(RING_AT);
        if !bytes.is_power_of_two() || !(RING_BYTES_MIN..=RING_BYTES_MAX).contains(&(bytes as u64)) {
            let what = format!(
                "its length of {} bytes is none that a log's memory has (a power of two from {RING_BYTES_MIN} to \
                 {RING_BYTES_MAX}, and {RING_AT}); give another path, or remove the file if no database needs it",
                memory.len()
            );
            return Err(Error::LogMemory { path: memory.name().to_owned(), what });
        }
        Ok(Self { memory, bytes, new_id: new_id.max(1), cost })
    }

    pub(crate) fn name(&self) -> &str {
        self.memory.name()
    }

    /// A power of two.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The bytes of the ring.
    pub(crate) fn words(&self) -> &[AtomicU64] {
        self.memory.words(RING_AT..RING_AT + self.bytes)
    }

    fn refused(&self, what: String) -> Error {
        Error::LogMemory { path: self.name().to_owned(), what }
    }

    fn failed(&self, source: io::Error) -> Error {
        Error::io("persist", self.name(), None, source)
    }

    /// The slots, in memory's order.
    fn slots(&self) -> Result<[Option<Slot>; SLOTS]> {
        let mut slots = [None; SLOTS];
        for (index, slot) in slots.iter_mut().enumerate() {
            let mut bytes = [0; SLOT_BYTES];
            let words = self.memory.words(index * SLOT_BYTES..(index + 1) * SLOT_BYTES);
            for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
                to.copy_from_slice(&word.load(Relaxed).to_ne_bytes());
            }
            *slot = match Slot::decode(&bytes) {
                Some((FORMAT_VERSION, slot)) => Some(slot),
                Some((found, _)) => {
                    let file = self.name().to_owned();
                    return Err(Error::Version { file, found, supported: FORMAT_VERSION });
                }
                None if bytes[..8] == MAGIC || bytes[..8] == [0; 8] => None,
                None => {
                    return Err(self.refused(
                        "it holds something else than a log; give another path, or remove the file if nothing needs it"
                            .into(),
                    ));
                }
            };
        }
        Ok(slots)
    }

    /// Checks that this is the ring that `superblock` names, or that nothing needs what it holds.
    /// Returns whether it is named.
    ///
    /// # Errors
    /// [`Error::LogMemory`] if it is another's, or of another time; [`Error::Version`].
    pub(crate) fn check(&self, superblock: &Superblock) -> Result<bool> {
        let slots = self.slots()?;
        let all = || slots.iter().flatten();
        if let Some(other) = all().find(|slot| slot.uuid != superblock.uuid) {
            return Err(self.refused(format!(
                "it holds the log of another database ({:032x}); close that one, or remove the file if it is gone",
                u128::from_be_bytes(other.uuid)
            )));
        }
        if all().any(|slot| slot.timeline != superblock.timeline) {
            return Err(self.refused(
                "it holds the log of this database on another timeline, before a backup was restored; remove the file \
                 if that database is gone"
                    .into(),
            ));
        }
        let (epoch, life) = (superblock.epoch, superblock.life);
        let is_last_life = |slot: &Slot| slot.epoch == epoch && slot.life == life;
        let Some(name) = superblock.ring else {
            // Else a recovery was cut off before anything relied on the ring, or a close after.
            let is_needed = all().next().is_some()
                && !all().any(is_last_life)
                && self.words().iter().any(|word| word.load(Relaxed) != 0);
            return match is_needed {
                true => Err(self.refused(
                    "it was in use by another copy of this database, or by this one before it was opened without it, and may \
                     hold commits; open and close that copy, or remove the file if it is gone"
                        .into(),
                )),
                false => Ok(false),
            };
        };
        if name.bytes != self.bytes as u64 {
            return Err(self.refused(format!(
                "it has {} bytes for the log, but had {} when it was in use; give it back its length",
                self.bytes, name.bytes
            )));
        }
        let is_named = |slot: &Slot| slot.name == name;
        if all().any(|slot| is_named(slot) && (is_last_life(slot) || planted(Bug::RingOfEarlierLife))) {
            return Ok(true);
        }
        let help = "find the right one, or go on without the newest commits with `terrace repair`";
        let what = match all().filter(|slot| is_named(slot)).map(|slot| slot.epoch).max() {
            None => "it is not the memory that holds the newest part of this database's log".to_owned(),
            Some(other) if other < epoch => {
                format!("it is an older copy, of epoch {other} of this database, which is in epoch {epoch}")
            }
            Some(other) => format!(
                "it was in use in epoch {other} of another copy of this database, which is in epoch {epoch} itself"
            ),
        };
        Err(self.refused(format!("{what}; {help}")))
    }

    /// Adds the life `epoch`, `life` of `superblock`'s database, persistently. What the ring held
    /// must be in the log's file. The caller has called [`RingMemory::check`].
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(crate) fn attach(&self, superblock: &Superblock, epoch: u32, life: u64) -> Result<RingName> {
        // A killed process may have left slots that a power cut still loses.
        self.memory.persist(0..HEADER_BYTES).map_err(|source| self.failed(source))?;
        let Superblock { uuid, timeline, .. } = *superblock;
        let (index, name) = match superblock.ring {
            Some(name) => {
                let last = Slot { uuid, timeline, name, epoch: superblock.epoch, life: superblock.life };
                let kept = self.slots()?.iter().position(|&slot| slot == Some(last));
                (kept.map_or(0, |kept| 1 - kept), name)
            }
            None => {
                if !planted(Bug::RingNotCleared) {
                    self.clear(RING_AT..RING_AT + self.bytes)?;
                }
                self.clear(0..HEADER_BYTES)?;
                (0, RingName { id: self.new_id, bytes: self.bytes as u64 })
            }
        };
        let range = index * SLOT_BYTES..(index + 1) * SLOT_BYTES;
        let slot = Slot { uuid, timeline, name, epoch, life }.encode();
        self.memory.note(range.clone());
        for (word, bytes) in self.memory.words(range.clone()).iter().zip(slot.as_chunks::<8>().0) {
            word.store(u64::from_ne_bytes(*bytes), Relaxed);
        }
        self.memory.persist(range).map_err(|source| self.failed(source))?;
        Ok(name)
    }

    /// Removes every life but that of `superblock`, which is durable and names this ring.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::LogMemory`].
    pub(crate) fn keep_life_of(&self, superblock: &Superblock) -> Result<()> {
        if planted(Bug::KeepOldRingLife) {
            return Ok(());
        }
        for (index, slot) in self.slots()?.into_iter().enumerate() {
            if slot.is_none_or(|slot| (slot.epoch, slot.life) != (superblock.epoch, superblock.life)) {
                self.clear(index * SLOT_BYTES..(index + 1) * SLOT_BYTES)?;
            }
        }
        Ok(())
    }

    /// Gives the ring up, after a durable superblock that does not name it.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(crate) fn release(&self) -> Result<()> {
        self.clear(0..HEADER_BYTES)
    }

    /// Notes persistently that the log's file has everything below `filed`, so that the ring may
    /// overwrite it.
    ///
    /// # Errors
    /// Those of a simulated memory.
    pub(crate) fn let_go(&self, filed: u64) -> io::Result<()> {
        if planted(Bug::RingForgetsFiled) {
            return Ok(());
        }
        let range = FILED_AT..HELD_AT;
        self.memory.note(range.clone());
        self.memory.words(range.clone())[0].store(filed, Relaxed);
        if let Some(cost) = &self.cost {
            let (at, bytes) = (range.start as u64, range.len() as u64);
            cost.write(at, bytes, Pattern::Random);
            cost.write_back(at, bytes);
            cost.fence();
        }
        self.memory.persist(range)
    }

    /// Notes persistently that the page file relies on the records below `held`, so that a ring
    /// that has lost them is known.
    ///
    /// # Errors
    /// Those of a simulated memory.
    pub(crate) fn rely_on(&self, held: u64) -> io::Result<()> {
        let range = HELD_AT..HEADER_BYTES;
        self.memory.note(range.clone());
        self.memory.words(range.clone())[0].fetch_max(held, Relaxed);
        self.memory.persist(range)
    }

    /// Checks that the records in file and ring end at `end`, behind those that others rely on.
    /// The file has what the ring let go.
    ///
    /// # Errors
    /// [`Error::LogMemory`].
    pub(crate) fn check_end(&self, end: u64, superblock: &Superblock) -> Result<()> {
        let held = self.memory.words(HELD_AT..HEADER_BYTES)[0].load(Relaxed).max(superblock.log_end.0);
        if end >= held {
            return Ok(());
        }
        Err(self.refused(format!(
            "it has lost records of the log: they end at {end}, but reached at least {held}; put back the right memory, or \
             go on without the newest commits with `terrace repair`"
        )))
    }

    /// The LSN below which the ring may lack records. A log's file that ends below is an older
    /// copy, put back meanwhile.
    pub(crate) fn has_let_go(&self) -> u64 {
        self.memory.words(FILED_AT..HELD_AT)[0].load(Relaxed)
    }

    fn clear(&self, range: Range<usize>) -> Result<()> {
        let words = self.memory.words(range.clone());
        if words.iter().any(|word| word.load(Relaxed) != 0) {
            self.memory.note(range.clone());
            words.iter().for_each(|word| word.store(0, Relaxed));
        }
        self.memory.persist(range).map_err(|source| self.failed(source))
    }

    /// Around the ring's end if needed. Offset and length are multiples of 8.
    pub(crate) fn read(&self, lsn: u64, target: &mut [u8]) {
        debug_assert!(lsn.is_multiple_of(8) && target.len() <= self.bytes);
        let words = self.words();
        let first = lsn as usize / 8;
        if let Some(cost) = &self.cost {
            cost.read((lsn % self.bytes as u64) + RING_AT as u64, target.len() as u64, Pattern::Sequential);
        }
        for (index, to) in target.chunks_exact_mut(8).enumerate() {
            let word = words[(first + index) % words.len()].load(Relaxed);
            to.copy_from_slice(&word.to_ne_bytes());
        }
    }

    /// The one or two parts of the ring's bytes from `lsn` on, in the memory.
    fn parts(&self, lsn: u64, bytes: usize) -> [Range<usize>; 2] {
        let at = (lsn % self.bytes as u64) as usize;
        let first = bytes.min(self.bytes - at);
        [RING_AT + at..RING_AT + at + first, RING_AT..RING_AT + bytes - first]
    }

    /// Call before stores to `bytes` bytes from `lsn` on.
    pub(crate) fn note(&self, lsn: u64, bytes: usize) {
        for part in self.parts(lsn, bytes).into_iter().filter(|part| !part.is_empty()) {
            self.memory.note(part);
        }
    }

    /// Makes the stores of this thread to `bytes` bytes from `lsn` on persistent.
    ///
    /// # Errors
    /// Those of a simulated memory.
    pub(crate) fn persist(&self, lsn: u64, bytes: usize) -> io::Result<()> {
        for part in self.parts(lsn, bytes).into_iter().filter(|part| !part.is_empty()) {
            if let Some(cost) = &self.cost {
                let (at, bytes) = (part.start as u64, part.len() as u64);
                cost.write(at, bytes, Pattern::Sequential);
                cost.write_back(at, bytes);
            }
            self.memory.write_back(part)?;
        }
        if planted(Bug::AcknowledgeBeforeRingFence) {
            return Ok(());
        }
        if let Some(cost) = &self.cost {
            cost.fence();
        }
        self.memory.fence()
    }

    /// Charges reading `bytes` bytes from `lsn` on, which the caller does.
    pub(crate) fn charge_read(&self, lsn: u64, bytes: usize) {
        if let Some(cost) = &self.cost {
            cost.read((lsn % self.bytes as u64) + RING_AT as u64, bytes as u64, Pattern::Sequential);
        }
    }
}
