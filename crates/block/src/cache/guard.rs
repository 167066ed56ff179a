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
//! # Sessions
//! A cache's number stays the same from its making on, so it cannot tell a cache's file from an older copy of it. Each opening
//! and each close therefore draws a *session*, a random number, for guard and cache ([`Name`]). A cache is used only if the guard
//! has its session: an older copy of the cache's file has another, and so has the cache of an older copy of the guard. The
//! order, each step durable before the next:
//!
//! 1. the cache has the new session, and the one before as well;
//! 2. the guard has the new session;
//! 3. the cache has the new one only. Nothing is written to the slow device before that.
//!
//! A crash between 1 and 2 leaves a guard of the session before, which the cache still accepts: it is as it was in that session. A
//! crash between 2 and 3 leaves the new session in both. Were the session before kept any longer, the cache would fit a copy of the
//! slow device and its guard that is one opening old.
//!
//! # Format, version 2
//! 4096 bytes: `TERRGARD`, the number of a cache (8 bytes), what it says of it (4 bytes): 0 that every cache is revoked;
//! 1 that it is the only one that may be used; 2 that it is needed; 3 that only its dirty blocks are to be
//! used. Then the version (4 bytes), the session (8 bytes), the sequence that the cache's superblock had when it was named (8 bytes),
//! zeros, and from byte 508 the CRC-32C of all before it: all is in one sector, which a power cut does not tear.
//!
//! Version 1 has zeros for version, session and sequence; it fits only a cache of a version without sessions. Once the checksum was in
//! the page's last four bytes, of the rest; such a guard is read, too. A later version is as a damaged one. A page of zeros, as of
//! a guard that was lost, revokes everything, and so does a damaged one.

use std::io;

use super::checksum;
use super::layout::{PAGE_BYTES, Superblock};
use crate::planted::{CacheBug, planted};
use crate::{AlignedBuffer, BlockDevice};

const MAGIC: [u8; 8] = *b"TERRGARD";
const CHECK_AT: usize = 508;
const CHECK_ONCE_AT: usize = PAGE_BYTES - 4;
const VERSION: u32 = 2;

/// What the guard calls a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Name {
    /// Of the cache, from its making on.
    pub number: u64,
    /// From one opening or close to the next; 0 where the guard is of a version that had none.
    pub session: u64,
    /// Of the cache's superblock at that time: an older copy of the cache has a smaller one.
    pub sequence: u64,
}

impl Name {
    /// Whether this is the cache with this superblock, as it was left.
    pub fn fits(self, found: &Superblock) -> bool {
        if self.number != found.number {
            return planted(CacheBug::ForgetLatest);
        }
        let is_before = found.session_before != 0 && found.session_before == self.session;
        self.session == found.session || is_before || planted(CacheBug::ForgetSession)
    }
}

/// Which caches are revoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Revoked {
    /// None: there is no guard.
    None,
    /// All: the guard is new, or stands for one that was lost, so nobody knows what was done before.
    Blank,
    /// All. Earlier versions revoked single ones; those of the others that may still be there are of their format.
    All,
    /// All but the one with this number, which was used last.
    AllBut(Name),
    /// The guard is damaged: all, and nobody knows whether one is needed.
    Unknown,
    /// All but this one, and without it the slow device is not complete.
    AllButNeeded(Name),
    /// The same, but only what it has to write back may be used of it.
    AllButDirty(Name),
}

impl Revoked {
    /// Whether the cache with this number is.
    pub fn covers(self, number: u64) -> bool {
        match self {
            Revoked::None => false,
            Revoked::Blank | Revoked::All | Revoked::Unknown => true,
            Revoked::AllBut(only) | Revoked::AllButNeeded(only) | Revoked::AllButDirty(only) => {
                only.number != number && !planted(CacheBug::ForgetLatest)
            }
        }
    }

    /// The cache without which the slow device is not complete.
    pub fn needed(self) -> Option<Name> {
        match self {
            Revoked::AllButNeeded(name) | Revoked::AllButDirty(name) => Some(name),
            _ => None,
        }
    }

    /// The cache that was used last, where the guard knows it.
    pub fn latest(self) -> Option<Name> {
        match self {
            Revoked::AllBut(name) => Some(name),
            _ => self.needed(),
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
            return Ok(Revoked::Blank);
        }
        let is_checked = |at: usize| page[at..at + 4] == checksum(&page[..at]).to_le_bytes();
        let is_whole = page[..8] == MAGIC && (is_checked(CHECK_AT) || is_checked(CHECK_ONCE_AT));
        let u64_at = |at: usize| u64::from_le_bytes(page[at..at + 8].try_into().expect("eight bytes"));
        let u32_at = |at: usize| u32::from_le_bytes(page[at..at + 4].try_into().expect("four bytes"));
        let name = Name { number: u64_at(8), session: u64_at(24), sequence: u64_at(32) };
        Ok(match u32_at(16) {
            _ if u32_at(20) > VERSION => Revoked::Unknown,
            1 if is_whole => Revoked::AllBut(name),
            2 if is_whole => Revoked::AllButNeeded(name),
            3 if is_whole => Revoked::AllButDirty(name),
            _ if is_whole => Revoked::All,
            _ => Revoked::Unknown,
        })
    }

    /// Writes the guard, durably.
    pub fn write(self, guard: &dyn BlockDevice) -> io::Result<()> {
        let mut page = AlignedBuffer::zeroed(PAGE_BYTES);
        let nameless = Name { number: 0, session: 0, sequence: 0 };
        let said = match self {
            Revoked::None | Revoked::Blank => None,
            Revoked::All | Revoked::Unknown => Some((nameless, 0_u32)),
            Revoked::AllBut(name) => Some((name, 1)),
            Revoked::AllButNeeded(name) => Some((name, 2)),
            Revoked::AllButDirty(name) => Some((name, 3)),
        };
        if let Some((name, what)) = said {
            page[..8].copy_from_slice(&MAGIC);
            page[8..16].copy_from_slice(&name.number.to_le_bytes());
            page[16..20].copy_from_slice(&what.to_le_bytes());
            page[20..24].copy_from_slice(&VERSION.to_le_bytes());
            page[24..32].copy_from_slice(&name.session.to_le_bytes());
            page[32..40].copy_from_slice(&name.sequence.to_le_bytes());
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
        assert_eq!(Revoked::read(&guard).unwrap(), Revoked::Blank);
        let name = |number| Name { number, session: number << 40, sequence: 7 };
        let only = [Revoked::AllBut(name(3)), Revoked::AllButNeeded(name(4)), Revoked::AllButDirty(name(5))];
        for revoked in [Revoked::All, Revoked::Blank].into_iter().chain(only) {
            revoked.write(&guard).unwrap();
            assert_eq!(Revoked::read(&guard).unwrap(), revoked);
        }
        assert!(Revoked::All.covers(8) && Revoked::Blank.covers(8) && !Revoked::None.covers(8));
        assert!(only.iter().all(|revoked| revoked.covers(8)) && !only[0].covers(3) && !only[1].covers(4));
        let mut page = AlignedBuffer::zeroed(512);
        page[0] = 1;
        guard.write_at(0, &page).unwrap();
        assert_eq!(Revoked::read(&guard).unwrap(), Revoked::Unknown);
    }
}
