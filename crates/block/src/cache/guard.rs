//! The guard: a page beside the slow device that says which cache must not be used again.
//!
//! When the fast device fails so that a write of the slow device cannot be noted on it, the write is done all the same.
//! The fast device then holds blocks that are older than the slow device's and does not know it; should it come back, after a restart
//! or in another machine, it would serve them. So before such a write the cache is *revoked*: its superblocks are wiped,
//! or, since a device that fails will hardly take that, its number is written to the guard, which lies where the slow
//! device lies and fails only with it.
//!
//! The guard also says which cache was *used last*. One that is opened while the guard names another knows nothing of what was written
//! since, and is begun anew. So several caches may be used in turn, and so may none: who writes the slow device without one says
//! so first ([`Cached::revoke_all`](super::Cached::revoke_all)).
//!
//! # Format
//! 4096 bytes: `TERRGARD`, the number of the revoked cache (8 bytes; 0 for all), the number of the one that is not revoked all the same
//! (8 bytes; 0 for none), zeros, and in the last four bytes the CRC-32C of the rest. A page of zeros revokes nothing, a damaged one
//! everything. A version that does not know the second number takes all for revoked.

use std::io;

use super::checksum;
use super::layout::PAGE_BYTES;
use crate::planted::{CacheBug, planted};
use crate::{AlignedBuffer, BlockDevice};

const MAGIC: [u8; 8] = *b"TERRGARD";
const CHECK_AT: usize = PAGE_BYTES - 4;

/// Which caches are revoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Revoked {
    /// None.
    None,
    /// The one with this number. Earlier versions wrote this.
    One(u64),
    /// All but the one with this number, which was used last.
    AllBut(u64),
    /// All.
    All,
}

impl Revoked {
    /// Whether the cache with this number is.
    pub fn covers(self, number: u64) -> bool {
        match self {
            Revoked::None => false,
            Revoked::One(revoked) => revoked == number,
            Revoked::AllBut(latest) => latest != number && !planted(CacheBug::ForgetLatest),
            Revoked::All => true,
        }
    }

    /// Reads the guard, which is made long enough.
    pub fn read(guard: &dyn BlockDevice) -> io::Result<Revoked> {
        if guard.len() < PAGE_BYTES as u64 {
            guard.set_len(PAGE_BYTES as u64)?;
            guard.sync()?;
        }
        let mut page = AlignedBuffer::zeroed(PAGE_BYTES);
        guard.read_at(0, &mut page)?;
        if page.iter().all(|&byte| byte == 0) {
            return Ok(Revoked::None);
        }
        let is_whole = page[..8] == MAGIC && page[CHECK_AT..] == checksum(&page[..CHECK_AT]).to_le_bytes();
        let number = |at: usize| u64::from_le_bytes(page[at..at + 8].try_into().expect("eight bytes"));
        Ok(match (number(8), number(16)) {
            (revoked, 0) if is_whole && revoked != 0 => Revoked::One(revoked),
            (0, latest) if is_whole && latest != 0 => Revoked::AllBut(latest),
            _ => Revoked::All,
        })
    }

    /// Writes the guard, durably.
    pub fn write(self, guard: &dyn BlockDevice) -> io::Result<()> {
        let mut page = AlignedBuffer::zeroed(PAGE_BYTES);
        if self != Revoked::None {
            let (revoked, latest) = match self {
                Revoked::One(number) => (number, 0),
                Revoked::AllBut(number) => (0, number),
                Revoked::None | Revoked::All => (0, 0),
            };
            page[..8].copy_from_slice(&MAGIC);
            page[8..16].copy_from_slice(&revoked.to_le_bytes());
            page[16..24].copy_from_slice(&latest.to_le_bytes());
            let check = checksum(&page[..CHECK_AT]);
            page[CHECK_AT..].copy_from_slice(&check.to_le_bytes());
        }
        guard.write_through_at(0, &page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;

    #[test]
    fn what_was_revoked_is_read_back_and_damage_revokes_everything() {
        let guard = MemoryDevice::new("guard", 0);
        assert_eq!(Revoked::read(&guard).unwrap(), Revoked::None);
        for revoked in
            [Revoked::One(7), Revoked::All, Revoked::AllBut(7), Revoked::None, Revoked::One(u64::MAX)]
        {
            revoked.write(&guard).unwrap();
            assert_eq!(Revoked::read(&guard).unwrap(), revoked);
        }
        assert!(Revoked::One(7).covers(7) && !Revoked::One(7).covers(8) && Revoked::All.covers(8));
        assert!(!Revoked::AllBut(7).covers(7) && Revoked::AllBut(7).covers(8));
        let mut page = AlignedBuffer::zeroed(512);
        page[0] = 1;
        guard.write_at(1024, &page).unwrap();
        assert_eq!(Revoked::read(&guard).unwrap(), Revoked::All);
    }
}
