//! The guard: a page beside the slow device that says which cache may be used before it.
//!
//! When the fast device fails so that a write of the slow device cannot be noted on it, the write is done all the same.
//! The fast device then holds blocks that are older than the slow device's and does not know it; should it come back, after a restart
//! or in another machine, it would serve them. So before such a write the cache is *revoked*: its superblocks are wiped,
//! or, since a device that fails will hardly take that, the guard is told, which lies where the slow device lies and fails only with it.
//!
//! A cache that enters service has itself named as the only one that may be used from then on. So a device that was revoked stays
//! so when another takes its place, and one that was put away while another was used is not believed when it comes back.
//!
//! Before the first block becomes dirty the guard says, too, that the slow device is not complete without this cache: it is
//! then *needed*, and without it nothing is opened.
//!
//! So several caches may be used in turn, and so may none: who writes the slow device without one says so first
//! ([`Cached::revoke_all`](super::Cached::revoke_all)).
//!
//! # Format
//! 4096 bytes: `TERRGARD`, the number of a cache (8 bytes), what it says of it (4 bytes): 0 that it is revoked, or every cache if the
//! number is 0; 1 that it is the only one that may be used; 2 that it is needed; 3 that only its dirty blocks are to be
//! used. Then zeros, and from
//! byte 508 the CRC-32C of all before it: all is in one sector, which a power cut does not tear. Once the checksum was in the page's last
//! four bytes, of the rest; such a guard is read, too. A page of zeros revokes nothing, a damaged one everything.

use std::io;

use super::checksum;
use super::layout::PAGE_BYTES;
use crate::planted::{CacheBug, planted};
use crate::{AlignedBuffer, BlockDevice};

const MAGIC: [u8; 8] = *b"TERRGARD";
const CHECK_AT: usize = 508;
const CHECK_ONCE_AT: usize = PAGE_BYTES - 4;

/// Which caches are revoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Revoked {
    /// None.
    None,
    /// The one with this number. Earlier versions wrote this.
    One(u64),
    /// All.
    All,
    /// All but the one with this number, which was used last.
    AllBut(u64),
    /// The guard is damaged: all, and nobody knows whether one is needed.
    Unknown,
    /// All but this one, and without it the slow device is not complete.
    AllButNeeded(u64),
    /// The same, but only what it has to write back may be used of it.
    AllButDirty(u64),
}

impl Revoked {
    /// Whether the cache with this number is.
    pub fn covers(self, number: u64) -> bool {
        match self {
            Revoked::None => false,
            Revoked::One(revoked) => revoked == number,
            Revoked::All | Revoked::Unknown => true,
            Revoked::AllBut(only) | Revoked::AllButNeeded(only) | Revoked::AllButDirty(only) => {
                only != number && !planted(CacheBug::ForgetLatest)
            }
        }
    }

    /// The cache without which the slow device is not complete.
    pub fn needed(self) -> Option<u64> {
        match self {
            Revoked::AllButNeeded(number) | Revoked::AllButDirty(number) => Some(number),
            _ => None,
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
        let is_checked = |at: usize| page[at..at + 4] == checksum(&page[..at]).to_le_bytes();
        let is_whole = page[..8] == MAGIC && (is_checked(CHECK_AT) || is_checked(CHECK_ONCE_AT));
        let number = u64::from_le_bytes(page[8..16].try_into().expect("eight bytes"));
        let what = u32::from_le_bytes(page[16..20].try_into().expect("four bytes"));
        Ok(match what {
            0 if is_whole && number != 0 => Revoked::One(number),
            1 if is_whole => Revoked::AllBut(number),
            2 if is_whole => Revoked::AllButNeeded(number),
            3 if is_whole => Revoked::AllButDirty(number),
            _ if is_whole => Revoked::All,
            _ => Revoked::Unknown,
        })
    }

    /// Writes the guard, durably.
    pub fn write(self, guard: &dyn BlockDevice) -> io::Result<()> {
        let mut page = AlignedBuffer::zeroed(PAGE_BYTES);
        let said = match self {
            Revoked::None => None,
            Revoked::One(number) => Some((number, 0_u32)),
            Revoked::All | Revoked::Unknown => Some((0, 0)),
            Revoked::AllBut(number) => Some((number, 1)),
            Revoked::AllButNeeded(number) => Some((number, 2)),
            Revoked::AllButDirty(number) => Some((number, 3)),
        };
        if let Some((number, what)) = said {
            page[..8].copy_from_slice(&MAGIC);
            page[8..16].copy_from_slice(&number.to_le_bytes());
            page[16..20].copy_from_slice(&what.to_le_bytes());
            let check = checksum(&page[..CHECK_AT]);
            page[CHECK_AT..CHECK_AT + 4].copy_from_slice(&check.to_le_bytes());
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
        let only = [Revoked::AllBut(3), Revoked::AllButNeeded(4), Revoked::AllButDirty(5)];
        for revoked in
            [Revoked::One(7), Revoked::All, Revoked::None, Revoked::One(u64::MAX)].into_iter().chain(only)
        {
            revoked.write(&guard).unwrap();
            assert_eq!(Revoked::read(&guard).unwrap(), revoked);
        }
        assert!(Revoked::One(7).covers(7) && !Revoked::One(7).covers(8) && Revoked::All.covers(8));
        assert!(only.iter().all(|revoked| revoked.covers(8)) && !only[0].covers(3) && !only[1].covers(4));
        let mut page = AlignedBuffer::zeroed(512);
        page[0] = 1;
        guard.write_at(0, &page).unwrap();
        assert_eq!(Revoked::read(&guard).unwrap(), Revoked::Unknown);
    }
}
