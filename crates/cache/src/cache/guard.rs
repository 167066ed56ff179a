//! The guard: a page beside the slow device that names the cache to trust.
//!
//! If a failed fast device cannot record a write of the slow device, its blocks become outdated.
//! Before such a write the cache is *revoked*: its superblocks are wiped, or the guard says so. A
//! cache that enters service is named as the only one to trust. Before its first dirty block the
//! guard calls it *needed*: without it nothing is opened.
//!
//! Each opening and each close draws a *session* for guard and cache ([`Name`]), to exclude older
//! copies of either. The order, each step durable before the next:
//!
//! 1. the cache gets the new session and keeps the previous one;
//! 2. the guard gets the new session;
//! 3. the cache drops the previous one, before the slow device is written.
//!
//! After a crash between 1 and 2, the cache still accepts the guard's previous session. If kept
//! longer, it would match an older copy of slow device and guard.
//!
//! Format, version 2: `TERRGARD`; number of the cache (u64); state (u32); version (u32); session
//! (u64); sequence of its superblock (u64); zeros; at byte 508 the CRC-32C. One sector, so a power
//! cut cannot tear it. States: 0 all revoked, 1 only this one usable, 2 needed, 3 only its dirty
//! blocks usable. Version 1 has zeros from the version on; its oldest form had the checksum in the
//! page's last four bytes. Later versions, damage and zeros revoke all caches.

use std::io;

use super::checksum::checksum;
use super::layout::{PAGE_BYTES, Superblock};
use crate::planted::{CacheBug, planted};
use terrace_io::{AlignedBuffer, BlockDevice};

const MAGIC: [u8; 8] = *b"TERRGARD";
const CHECK_AT: usize = 508;
const CHECK_ONCE_AT: usize = PAGE_BYTES - 4;
const VERSION: u32 = 2;

/// The guard's name for a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Name {
    pub number: u64,
    /// The session; 0 in guards without sessions.
    pub session: u64,
    /// The sequence of its superblock then. An older copy, with a smaller one, lacks dirty blocks.
    pub sequence: u64,
}

impl Name {
    /// Whether this superblock is that cache, in its latest state.
    pub fn fits(self, found: &Superblock) -> bool {
        if self.number != found.number {
            // False, except with the planted bug.
            return planted(CacheBug::ForgetLatest);
        }
        let is_before = found.session_before != 0 && found.session_before == self.session;
        self.session == found.session || is_before || planted(CacheBug::ForgetSession)
    }
}

/// Which caches the guard lets a device use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GuardState {
    /// There is no guard: any cache may be used.
    Absent,
    /// The guard is new, or replaces a lost one: no cache may be used.
    Blank,
    /// No cache may be used. Earlier versions revoked single caches, in their own format.
    NoCache,
    /// Only the cache used last.
    Only(Name),
    /// The guard is damaged, and a cache may be needed: none may be used.
    Damaged,
    /// Only this one, without which the slow device is incomplete.
    Needs(Name),
    /// Only the dirty blocks of this one.
    OnlyDirtyOf(Name),
}

impl GuardState {
    /// Whether the cache with this number may not be used.
    pub fn refuses(self, number: u64) -> bool {
        match self {
            GuardState::Absent => false,
            GuardState::Blank | GuardState::NoCache | GuardState::Damaged => true,
            GuardState::Only(only) | GuardState::Needs(only) | GuardState::OnlyDirtyOf(only) => {
                only.number != number && !planted(CacheBug::ForgetLatest)
            }
        }
    }

    pub fn needed(self) -> Option<Name> {
        match self {
            GuardState::Needs(name) | GuardState::OnlyDirtyOf(name) => Some(name),
            _ => None,
        }
    }

    pub fn latest(self) -> Option<Name> {
        match self {
            GuardState::Only(name) => Some(name),
            _ => self.needed(),
        }
    }

    pub fn read(guard: &dyn BlockDevice) -> io::Result<GuardState> {
        if guard.len() < PAGE_BYTES as u64 {
            guard.set_len(PAGE_BYTES as u64)?;
            guard.sync()?;
        }
        let mut page = AlignedBuffer::zeroed(PAGE_BYTES);
        guard.read_at(0, &mut page)?;
        if page.iter().all(|&byte| byte == 0) {
            return Ok(GuardState::Blank);
        }
        let is_checked = |at: usize| page[at..at + 4] == checksum(&page[..at]).to_le_bytes();
        let is_whole = page[..8] == MAGIC && (is_checked(CHECK_AT) || is_checked(CHECK_ONCE_AT));
        let u64_at = |at: usize| u64::from_le_bytes(page[at..at + 8].try_into().expect("eight bytes"));
        let u32_at = |at: usize| u32::from_le_bytes(page[at..at + 4].try_into().expect("four bytes"));
        let name = Name { number: u64_at(8), session: u64_at(24), sequence: u64_at(32) };
        Ok(match u32_at(16) {
            _ if u32_at(20) > VERSION => GuardState::Damaged,
            1 if is_whole => GuardState::Only(name),
            2 if is_whole => GuardState::Needs(name),
            3 if is_whole => GuardState::OnlyDirtyOf(name),
            _ if is_whole => GuardState::NoCache,
            _ => GuardState::Damaged,
        })
    }

    pub fn write(self, guard: &dyn BlockDevice) -> io::Result<()> {
        let mut page = AlignedBuffer::zeroed(PAGE_BYTES);
        let nameless = Name { number: 0, session: 0, sequence: 0 };
        let said = match self {
            GuardState::Absent | GuardState::Blank => None,
            GuardState::NoCache | GuardState::Damaged => Some((nameless, 0_u32)),
            GuardState::Only(name) => Some((name, 1)),
            GuardState::Needs(name) => Some((name, 2)),
            GuardState::OnlyDirtyOf(name) => Some((name, 3)),
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
    use terrace_io::MemoryDevice;

    #[test]
    fn what_was_revoked_is_read_back_and_damage_revokes_everything() {
        let guard = MemoryDevice::new("guard", 0);
        assert_eq!(GuardState::read(&guard).unwrap(), GuardState::Blank);
        let name = |number| Name { number, session: number << 40, sequence: 7 };
        let only = [GuardState::Only(name(3)), GuardState::Needs(name(4)), GuardState::OnlyDirtyOf(name(5))];
        for revoked in [GuardState::NoCache, GuardState::Blank].into_iter().chain(only) {
            revoked.write(&guard).unwrap();
            assert_eq!(GuardState::read(&guard).unwrap(), revoked);
        }
        assert!(
            GuardState::NoCache.refuses(8) && GuardState::Blank.refuses(8) && !GuardState::Absent.refuses(8)
        );
        assert!(only.iter().all(|state| state.refuses(8)) && !only[0].refuses(3) && !only[1].refuses(4));
        let mut page = AlignedBuffer::zeroed(512);
        page[0] = 1;
        guard.write_at(0, &page).unwrap();
        assert_eq!(GuardState::read(&guard).unwrap(), GuardState::Damaged);
    }
}
