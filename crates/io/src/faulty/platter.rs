//! One file of a simulated disk, and the effect of a power cut.
//!
//! ```text
//!   current   visible to reads
//!   durable   safe
//!   pending   leads from durable to current, in order: writes, lengths, and barriers
//! ```
//!
//! A power cut starts from `durable`, walks over `pending`, and lets each sector of each write
//! persist or not. So every sector ends as its durable version or any unsynced one, in every
//! combination. A barrier marks sectors that a durable write has made durable at this point of the
//! order: older pending versions never come back.
//!
//! After a failed sync the kernel treats dirty pages as clean. The pending changes are then
//! *forsaken*: each may persist or not, until the sector is rewritten.

use std::io;
use std::sync::Arc;

use super::random::Random;
use crate::device::memory::SECTOR_BYTES;
use crate::device::sparse::Sparse;

const SECTOR: u64 = SECTOR_BYTES as u64;

#[derive(Clone, Debug)]
enum Pending {
    /// Whole sectors at a byte offset.
    Write { offset: u64, bytes: Arc<[u8]>, forsaken: bool },
    /// A length; `durable` if it has certainly been reached.
    Length { bytes: u64, durable: bool, forsaken: bool },
    /// Sectors whose durable content is newer than all earlier pending writes.
    Barrier { offset: u64, length: usize },
}

#[derive(Clone, Debug, Default)]
pub(super) struct Platter {
    current: Sparse,
    durable: Sparse,
    pending: Vec<Pending>,
}

/// How a power cut chooses. Independent coins alone would hardly ever keep or lose a large write as
/// a whole.
enum Cut {
    /// Nothing pending persists.
    Nothing,
    /// Everything pending persists.
    Everything,
    /// Each sector of each write persists with this chance in percent.
    Sectors(usize),
    /// Each write persists as a whole or not at all, with an occasional torn one.
    Writes,
    /// Only a prefix persists, up to a torn write.
    Prefix(usize),
}

impl Platter {
    pub(super) fn len(&self) -> u64 {
        self.current.len()
    }

    pub(super) fn read(&self, offset: u64, buffer: &mut [u8]) {
        self.current.read(offset, buffer);
    }

    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.current.write(offset, bytes);
            self.pending.push(Pending::Write { offset, bytes: bytes.into(), forsaken: false });
        }
    }

    /// A durable write. Pending lengths that could remove its range become durable too.
    pub(super) fn write_through(&mut self, offset: u64, bytes: &[u8]) {
        self.current.write(offset, bytes);
        let end = offset + bytes.len() as u64;
        let cuts = |pending: &Pending| matches!(pending, Pending::Length { bytes, durable: false, forsaken: false } if *bytes < end);
        if end > self.durable.len() || self.pending.iter().any(cuts) {
            self.make_lengths_durable();
        }
        self.durable.write(offset, bytes);
        if !self.pending.is_empty() {
            self.pending.push(Pending::Barrier { offset, length: bytes.len() });
        }
    }

    pub(super) fn set_len(&mut self, bytes: u64) -> io::Result<()> {
        self.current.set_len(bytes)?;
        self.pending.push(Pending::Length { bytes, durable: false, forsaken: false });
        Ok(())
    }

    /// Makes everything durable except what a failed sync has forsaken.
    pub(super) fn sync(&mut self) {
        let any_forsaken = self.pending.iter().any(|pending| match pending {
            Pending::Write { forsaken, .. } | Pending::Length { forsaken, .. } => *forsaken,
            Pending::Barrier { .. } => false,
        });
        self.make_lengths_durable();
        if !any_forsaken {
            // All differences between `current` and `durable` are pending, so whole chunks can be
            // shared.
            for pending in self.pending.drain(..) {
                if let Pending::Write { offset, bytes, .. } = pending {
                    self.durable.share_chunks(&self.current, offset, bytes.len());
                }
            }
            return;
        }
        for pending in &mut self.pending {
            if let Pending::Write { offset, bytes, forsaken: false } = pending {
                let (offset, length) = (*offset, bytes.len());
                self.durable.copy_from(&self.current, offset, length);
                *pending = Pending::Barrier { offset, length };
            }
        }
    }

    /// A failed sync: later syncs never make the pending changes durable, though they may persist.
    pub(super) fn forsake(&mut self) {
        for pending in &mut self.pending {
            match pending {
                Pending::Write { forsaken, .. } | Pending::Length { forsaken, .. } => *forsaken = true,
                Pending::Barrier { .. } => {}
            }
        }
    }

    /// Makes the latest length durable, with all earlier ones.
    fn make_lengths_durable(&mut self) {
        for pending in &mut self.pending {
            if let Pending::Length { bytes, durable: durable @ false, forsaken: false } = pending {
                self.durable.set_len(*bytes).expect("the current content took this length");
                *durable = true;
            }
        }
    }

    /// Applies part of `bytes`, as a write interrupted by a power cut or kill.
    pub(super) fn write_torn(&mut self, offset: u64, bytes: &[u8], random: &mut Random) {
        let sectors = random.below(bytes.len() / SECTOR_BYTES + 1);
        self.write(offset, &bytes[..sectors * SECTOR_BYTES]);
    }

    /// One possible state after a power cut, entirely durable.
    pub(super) fn survivor(&self, random: &mut Random) -> Platter {
        let mut content = self.durable.clone();
        let cut = match random.below(8) {
            0 => Cut::Nothing,
            1 => Cut::Everything,
            2 | 3 => Cut::Writes,
            4 | 5 => Cut::Prefix(random.below(self.pending.len() + 1)),
            _ => Cut::Sectors([10, 50, 90][random.below(3)]),
        };
        let lengths = self.lengths_that_persist(&cut, random);
        let mut length_index = 0;
        for (index, pending) in self.pending.iter().enumerate() {
            match pending {
                Pending::Write { offset, bytes, .. } => {
                    let percent = match cut {
                        Cut::Nothing => 0,
                        Cut::Everything => 100,
                        Cut::Sectors(percent) => percent,
                        Cut::Writes => [0, 0, 0, 100, 100, 100, 50][random.below(7)],
                        Cut::Prefix(count) if index < count => 100,
                        Cut::Prefix(count) if index == count => 50,
                        Cut::Prefix(_) => 0,
                    };
                    write_some(&mut content, *offset, bytes, percent, random);
                }
                Pending::Length { bytes, durable, .. } => {
                    if *durable || length_index < lengths {
                        content.set_len(*bytes).expect("the current content took this length");
                    }
                    length_index += 1;
                }
                Pending::Barrier { offset, length } => content.copy_from(&self.durable, *offset, *length),
            }
        }
        Platter { durable: content.clone(), current: content, pending: Vec::new() }
    }

    /// The number of pending lengths that persist: lengths of one file stay in order.
    fn lengths_that_persist(&self, cut: &Cut, random: &mut Random) -> usize {
        let lengths = |pending: &[Pending]| {
            pending.iter().filter(|pending| matches!(pending, Pending::Length { .. })).count()
        };
        match cut {
            Cut::Nothing => 0,
            Cut::Everything => usize::MAX,
            Cut::Prefix(count) => lengths(&self.pending[..*count]),
            Cut::Sectors(_) | Cut::Writes => random.below(lengths(&self.pending) + 1),
        }
    }
}

fn write_some(content: &mut Sparse, offset: u64, bytes: &[u8], percent: usize, random: &mut Random) {
    match percent {
        0 => {}
        100 => content.write(offset, bytes),
        _ => {
            for (sector, bytes) in bytes.chunks(SECTOR_BYTES).enumerate() {
                if random.chance(percent) {
                    content.write(offset + sector as u64 * SECTOR, bytes);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn platter(sectors: usize) -> Platter {
        let mut platter = Platter::default();
        platter.set_len((sectors * SECTOR_BYTES) as u64).unwrap();
        platter.sync();
        platter
    }

    fn first_bytes(platter: &Platter) -> Vec<u8> {
        let mut bytes = vec![0; platter.len() as usize];
        platter.read(0, &mut bytes);
        bytes.chunks(SECTOR_BYTES).map(|sector| sector[0]).collect()
    }

    fn survivors(platter: &Platter) -> BTreeSet<Vec<u8>> {
        (0..2000).map(|seed| first_bytes(&platter.survivor(&mut Random::new(seed)))).collect()
    }

    #[test]
    fn every_combination_of_unsynced_versions_can_survive() {
        let mut platter = platter(2);
        platter.write(0, &[1; 1024]);
        platter.write(0, &[2; 1024]);
        let expected = (0..3).flat_map(|first| (0..3).map(move |second| vec![first, second])).collect();
        assert_eq!(survivors(&platter), expected);
    }

    #[test]
    fn a_sync_leaves_one_outcome() {
        let mut platter = platter(2);
        platter.write(0, &[1; 1024]);
        platter.write(512, &[2; 512]);
        platter.sync();
        assert_eq!(survivors(&platter), [vec![1, 2]].into());
    }

    #[test]
    fn a_durable_write_secures_its_own_sectors_only() {
        let mut platter = platter(3);
        platter.write(0, &[1; 1536]);
        platter.write_through(512, &[2; 512]);
        let seen = survivors(&platter);
        assert!(seen.iter().all(|sectors| sectors[1] == 2), "{seen:?}");
        assert_eq!(seen.len(), 4, "the other two sectors are free: {seen:?}");
        platter.write(512, &[3; 512]);
        assert!(survivors(&platter).iter().any(|sectors| sectors[1] == 3));
    }

    #[test]
    fn a_failed_sync_leaves_its_writes_in_doubt_after_a_good_one() {
        let mut platter = platter(2);
        platter.write(0, &[1; 1024]);
        platter.forsake();
        platter.write(512, &[2; 512]);
        platter.sync();
        assert_eq!(survivors(&platter), [vec![0, 2], vec![1, 2]].into());
        platter.write(0, &[3; 512]);
        platter.sync();
        assert_eq!(survivors(&platter), [vec![3, 2]].into());
    }

    #[test]
    fn an_unsynced_length_may_be_lost_with_what_lies_beyond_it() {
        let mut platter = platter(1);
        platter.set_len(1024).unwrap();
        platter.write(512, &[1; 512]);
        assert_eq!(survivors(&platter), [vec![0], vec![0, 0], vec![0, 1]].into());
        platter.write_through(512, &[2; 512]);
        assert_eq!(survivors(&platter), [vec![0, 2]].into());
    }

    #[test]
    fn a_durable_write_outlives_lengths_that_became_durable_later() {
        let mut platter = platter(2);
        platter.set_len(512).unwrap();
        platter.set_len(1024).unwrap();
        platter.write_through(512, &[1; 512]);
        assert_eq!(survivors(&platter), [vec![0, 1]].into());
        platter.sync();
        assert_eq!(survivors(&platter), [vec![0, 1]].into());
    }

    #[test]
    fn what_a_durable_shrinking_cut_off_does_not_return() {
        let mut platter = platter(2);
        platter.write(512, &[1; 512]);
        platter.set_len(512).unwrap();
        platter.set_len(1024).unwrap();
        platter.sync();
        assert_eq!(survivors(&platter), [vec![0, 0]].into());
    }
}
