//! Opening: what an earlier life of the cache has left, and how much of it is used.
//!
//! 1. The superblock says whose cache this is. What is not a cache is refused; a cache of another database or of other
//!    settings, or a damaged one, is emptied, which is told in a warning and in the statistics. So is one that is not as the guard
//!    left it (`guard.rs`), or whose slow device is not as far as it was: a copy of one of them was put back.
//! 2. The slow device is synced: from now on it is what it will be, unless it is written.
//! 3. Dirty blocks are written to it (`recover.rs`). A cache that the guard says is needed must be there for that; what else
//!    says that it has dirty blocks is not believed.
//! 4. The journal is replayed; if pages of it are missing the cache is emptied. A block is dropped if it lies beyond the device, if its region is in doubt, or if its region
//!    is marked and the power may have gone since. Blocks that stay are compared with their checksum when they are first hit.
//! 5. The other half of the journal is begun with what is left, and named by a new superblock, both durably.
//! 6. Only then the marks are taken off.
//!
//! Whether the power may have gone is known from the name of the machine's life between two power-ons
//! ([`CacheConfig::power_cycle`]). If the process was killed and the machine lives, everything it wrote is there. Then the
//! order of writes alone (`write.rs`, `journal.rs`) makes sure that a block whose checksum is right is the slow device's,
//! and marks do not matter.

use std::io;

use rustix::io::retry_on_intr;
use rustix::rand::{GetRandomFlags, getrandom};

use super::guard::{Name, Revoked};
use super::index::Index;
use super::journal::{Place, Record, replay};
use super::layout::{Header, Layout, REGION_PAGES_MAX, Superblock};
use super::placement::Placement;
use super::recover::{Recovered, recover};
use super::regions::{Mark, PAGE_REGIONS, Regions};
use super::stats::Start;
use super::{CacheConfig, CacheError};
use crate::BlockDevice;
use crate::planted::{CacheBug, planted};

/// What opening comes to.
pub(super) struct Opened {
    pub superblock: Superblock,
    pub regions: Regions,
    pub start: Start,
    /// Dirty blocks that were written to the slow device.
    pub recovered: u64,
    /// By slot, what an earlier life has left; empty if nothing.
    found: Vec<Option<Place>>,
}

/// What `fast` can be used as.
pub(super) enum Usable {
    /// As a cache, perhaps a warm one.
    Yes(Box<Opened>),
    /// Not at all.
    No(&'static str, io::Error),
}

/// Regions of 1 MiB, or as large as the marks of the longest slow device demand.
fn region_shift(config: &CacheConfig, slow: &dyn BlockDevice) -> u32 {
    let regions_max = u64::from(REGION_PAGES_MAX) * PAGE_REGIONS as u64;
    // Twice what it takes now, so that the device may grow.
    let least = slow.len().div_ceil(regions_max / 2).next_power_of_two();
    let wanted = config.region_bytes.max(config.block_bytes as u64).next_power_of_two();
    least.max(wanted).trailing_zeros()
}

/// A number that nobody has drawn before. The system draws it: what a process draws with keys of its own, its forked children draw, too.
pub(super) fn draw() -> u64 {
    let mut bytes = [0; 8];
    let drawn = retry_on_intr(|| getrandom(&mut bytes, GetRandomFlags::empty()));
    // Fewer than 256 bytes come all or not at all.
    assert_eq!(drawn, Ok(bytes.len()), "the system has no random numbers");
    u64::from_le_bytes(bytes) | 1
}

fn fresh_superblock(config: &CacheConfig, slow: &dyn BlockDevice) -> Superblock {
    // Never one that pages which were left here could have.
    let generation = draw();
    let region_shift = region_shift(config, slow);
    let regions = ((slow.len() * 2) >> region_shift) + 1;
    let region_pages = regions.div_ceil(PAGE_REGIONS as u64).clamp(1, u64::from(REGION_PAGES_MAX)) as u32;
    Superblock {
        layout: Layout {
            block_shift: config.block_bytes.trailing_zeros(),
            slots: config.capacity_blocks_max(),
            region_pages,
        },
        region_shift,
        identity: config.identity,
        power_cycle: config.power_cycle.unwrap_or_default(),
        sequence: 0,
        generation,
        half: 1,
        pages: 0,
        number: draw(),
        session: draw(),
        session_before: 0,
        progress: config.progress,
        first_step: draw_first_step(config),
        is_dirty: false,
    }
}

/// Reads `fast`, which is changed only if what it holds cannot be used. Syncs `slow`.
pub(super) fn open(
    slow: &dyn BlockDevice,
    fast: &dyn BlockDevice,
    config: &CacheConfig,
    revoked: Revoked,
) -> Result<Usable, CacheError> {
    let incomplete = |reason: String| CacheError::Incomplete { device: slow.name().to_owned(), reason };
    let header = match Superblock::read(fast) {
        Ok(header) => header,
        Err(error) if revoked.needed().is_some() => {
            return Err(incomplete(format!("{} cannot be read: {error}", fast.name())));
        }
        Err(error) => return Ok(Usable::No("reading the superblock", error)),
    };
    if let Some(name) = revoked.needed() {
        match header {
            Header::Whole(found) if found.number != name.number || found.identity != config.identity => {
                return Err(incomplete(format!("{} is another cache", fast.name())));
            }
            Header::Whole(found) if !name.fits(&found) => {
                let (older, newer) = ("an older copy of its cache", "its cache, but newer than the guard");
                let what = if found.sequence < name.sequence { older } else { newer };
                return Err(incomplete(format!("{} is {what}", fast.name())));
            }
            Header::Whole(found) if fast.len() < found.layout.bytes() => {
                return Err(incomplete(format!("{} is truncated", fast.name())));
            }
            Header::Whole(_) => {}
            _ => return Err(incomplete(format!("{} is not its cache, or is damaged", fast.name()))),
        }
    }
    if let Header::Whole(found) = header
        && found.identity == config.identity
        && found.is_dirty
        && matches!(revoked, Revoked::None | Revoked::Blank | Revoked::Unknown)
    {
        return Err(incomplete(format!("the guard that names {} is missing or damaged", fast.name())));
    }
    if let Header::Whole(found) = header
        && let Revoked::AllBut(name) = revoked
        && found.identity == config.identity
        && found.is_dirty
        && found.number == name.number
        && found.sequence > name.sequence
        && !name.fits(&found)
    {
        // An older cache's dirty blocks have been written back since; these have not.
        return Err(incomplete(format!(
            "the guard is older than {}, which has blocks to write back",
            fast.name()
        )));
    }
    let cold = |reason: &str| Start::Cold(reason.to_owned());
    let (superblock, mut start) = match header {
        Header::Foreign => return Err(CacheError::Foreign { device: fast.name().to_owned() }),
        Header::OtherVersion(version) => {
            return Err(CacheError::OtherVersion { device: fast.name().to_owned(), version });
        }
        Header::Blank | Header::Reserved => (None, Start::New),
        Header::Damaged => (None, cold("the superblocks are damaged")),
        Header::Whole(found) if revoked.covers(found.number) && !planted(CacheBug::ForgetRevoked) => {
            let reason = match revoked {
                Revoked::AllBut(_) => "the slow device was used with another cache since",
                Revoked::Blank => "the guard is new, so nobody knows how the slow device was used",
                _ => "the slow device was written without it since",
            };
            (None, cold(reason))
        }
        Header::Whole(found) if found.is_dirty && revoked.needed().is_none() => {
            (None, cold("it was put away before the slow device was complete"))
        }
        Header::Whole(_) if matches!(revoked, Revoked::AllButDirty(_)) => {
            (None, cold("it was given up before the slow device was complete"))
        }
        Header::Whole(found) if found.identity != config.identity => {
            (None, cold("it belongs to another slow device"))
        }
        Header::Whole(found) if found.session == 0 => (None, cold("it was made by an earlier version")),
        Header::Whole(found) if !is_as_left(&found, config, revoked) => (None, Start::Cold(OLDER.to_owned())),
        Header::Whole(found) if !has_progress_of(&found, config) => (None, Start::Cold(ELSEWHERE.to_owned())),
        Header::Whole(found) if !is_of(&found, config) => (None, cold("it was made with other settings")),
        Header::Whole(found) if fast.len() < found.layout.bytes() => (None, cold("it is truncated")),
        Header::Whole(found) => (Some(found), Start::New),
    };
    if let Err(source) = slow.sync() {
        if let Some(found) = superblock {
            doubt(fast, &found, config, revoked);
        }
        return Err(CacheError::Slow { device: slow.name().to_owned(), source });
    }
    let recovered = match header {
        Header::Whole(found)
            if found.is_dirty && revoked.needed().is_some() && !planted(CacheBug::ForgetDirty) =>
        {
            recover(slow, fast, &found, !is_same_cycle(&found, config))?
        }
        _ => Recovered::default(),
    };
    if let Some(found) = superblock {
        match warm(slow, fast, config, found, revoked, &recovered) {
            Ok(Some(opened)) => {
                return Ok(Usable::Yes(Box::new(Opened { recovered: recovered.written, ..opened })));
            }
            Ok(None) => start = cold("the journal is damaged"),
            Err(error) => return Ok(Usable::No("reading the journal", error)),
        }
    }
    if let Some(guard) = config.guard.as_ref().filter(|_| revoked.needed().is_some()) {
        // The slow device is complete; a crash from here on must not have it wait for what is wiped.
        let device = guard.name().to_owned();
        Revoked::All.write(&**guard).map_err(|source| CacheError::Slow { device, source })?;
    }
    match format(slow, fast, config, matches!(header, Header::Blank | Header::Reserved)) {
        Ok((superblock, regions)) => Ok(Usable::Yes(Box::new(Opened {
            superblock,
            regions,
            start,
            recovered: recovered.written,
            found: Vec::new(),
        }))),
        Err(error) => Ok(Usable::No("formatting", error)),
    }
}

/// The slow device cannot be synced: what was written in an earlier life is in doubt from now on.
fn doubt(fast: &dyn BlockDevice, found: &Superblock, config: &CacheConfig, revoked: Revoked) {
    let noted = Regions::read(fast, found.layout, found.region_shift).and_then(|marks| {
        marks.sync_failed();
        marks.write_all(fast)?;
        fast.sync()
    });
    let put_away = || match (revoked.needed(), &config.guard) {
        // Its dirty blocks are the only copies.
        (Some(name), Some(guard)) => Revoked::AllButDirty(name).write(&**guard),
        _ => Superblock::wipe(fast),
    };
    if noted.is_err() && put_away().is_err() {
        tracing::error!(
            device = fast.name(),
            "what is in doubt cannot be noted; this cache must not be used again"
        );
    }
}

/// Whether the machine has been on all the time since.
fn is_same_cycle(found: &Superblock, config: &CacheConfig) -> bool {
    let power_cycle = config.power_cycle.unwrap_or_default();
    power_cycle != [0; 16] && power_cycle == found.power_cycle
}

/// Why a cache is not used that the guard knows in another session.
pub(super) const OLDER: &str =
    "it is not as it was left: an older copy of it, or of the slow device and its guard, was put back";
/// Why a cache is not used whose slow device is at another point of its history.
pub(super) const ELSEWHERE: &str =
    "the slow device is not as it was left: a copy of it was put back, or it was written without the cache";

/// Whether a cache is the one that was used last, as it was left then.
fn is_as_left(found: &Superblock, config: &CacheConfig, revoked: Revoked) -> bool {
    let fits_guard = revoked.latest().is_none_or(|name| name.fits(found));
    let fits_session = config.session.is_none_or(|session| {
        let number = found.number;
        Name { number, session, sequence: 0 }.fits(found)
    });
    fits_guard && fits_session
}

/// Whether whoever notes the session has the one that the cache has now, not the one before: that need not be kept, and the next opening
/// has to keep this one.
fn is_session_noted(found: &Superblock, config: &CacheConfig, revoked: Revoked) -> bool {
    let noted = [revoked.latest().map(|name| name.session), config.session];
    noted.contains(&Some(found.session)) && !noted.contains(&Some(found.session_before))
}

/// The number of the first step of this opening. By chance, so that it is of no other opening, even of one that began at the same place.
fn draw_first_step(config: &CacheConfig) -> u64 {
    const STEPS_MAX: u64 = 1 << 16;
    match config.progress {
        0 => 0,
        progress => progress.saturating_add(2 + draw() / 2 % STEPS_MAX),
    }
}

/// Whether the slow device is as far as the cache knows, or one step further: the step is told when it has been made. The first of an
/// opening is known before.
fn has_progress_of(found: &Superblock, config: &CacheConfig) -> bool {
    let steps = config.progress.checked_sub(found.progress);
    found.progress == 0
        || config.progress == 0
        || steps.is_some_and(|steps| steps <= 1)
        || config.progress == found.first_step
        || planted(CacheBug::ForgetProgress)
}

fn is_of(found: &Superblock, config: &CacheConfig) -> bool {
    found.layout.slots == config.capacity_blocks_max()
        && 1 << found.layout.block_shift == config.block_bytes
        && found.region_shift >= found.layout.block_shift
}

fn format(
    slow: &dyn BlockDevice,
    fast: &dyn BlockDevice,
    config: &CacheConfig,
    is_blank: bool,
) -> io::Result<(Superblock, Regions)> {
    if !is_blank {
        Superblock::wipe(fast)?;
    }
    let superblock = fresh_superblock(config, slow);
    if fast.len() < superblock.layout.bytes() {
        fast.set_len(superblock.layout.bytes())?;
    }
    let regions = Regions::new(superblock.layout, superblock.region_shift, superblock.generation);
    Ok((superblock, regions))
}

fn warm(
    slow: &dyn BlockDevice,
    fast: &dyn BlockDevice,
    config: &CacheConfig,
    mut superblock: Superblock,
    revoked: Revoked,
    recovered: &Recovered,
) -> io::Result<Option<Opened>> {
    let layout = superblock.layout;
    let marks = Regions::read(fast, layout, superblock.region_shift)?;
    let power_cycle = config.power_cycle.unwrap_or_default();
    let is_same_cycle = is_same_cycle(&superblock, config);
    let mut found = vec![None; layout.slots as usize];
    let is_whole = replay(fast, &superblock, !is_same_cycle, |record| match record {
        Record::Holds { slot, place } => found[slot as usize] = Some(place),
        Record::Free { slot } => found[slot as usize] = None,
        Record::Durable { .. } => {}
    })?;
    if !is_whole {
        return Ok(None);
    }
    let whole_blocks = slow.len() >> layout.block_shift;
    let mut dropped = 0;
    for (slot, place) in (0_u32..).zip(&mut found) {
        let Some(Place { block, epoch, .. }) = *place else { continue };
        let is_current = match recovered.slots.get(&block) {
            // Just written and synced, from this very slot.
            Some(&of_block) => {
                of_block == Some(slot) && epoch > 0 && marks.mark(block << layout.block_shift) != Mark::Doubt
            }
            None if epoch > 0 || block >= whole_blocks => false,
            None => match marks.mark(block << layout.block_shift) {
                Mark::None => true,
                Mark::Written => is_same_cycle || planted(CacheBug::ServeMarkedRegions),
                Mark::Doubt | Mark::Unknown => false,
            },
        };
        if !is_current {
            *place = None;
            dropped += 1;
        }
    }
    let kept = found.iter().flatten().count() as u64;
    let regions = Regions::new(layout, superblock.region_shift, superblock.generation);
    let is_other_cycle = power_cycle != [0; 16] && superblock.power_cycle != [0; 16] && !is_same_cycle;
    if !is_other_cycle {
        regions.keep_doubts(&marks);
    }
    superblock.power_cycle = power_cycle;
    if is_session_noted(&superblock, config, revoked) && !planted(CacheBug::KeepUnneeded) {
        superblock.session_before = 0;
    }
    superblock.progress = config.progress;
    superblock.first_step = draw_first_step(config);
    let start = Start::Warm { kept, dropped };
    Ok(Some(Opened { superblock, regions, start, recovered: 0, found }))
}

impl Opened {
    /// What a cache has whose device cannot be used.
    pub fn nothing(config: &CacheConfig, slow: &dyn BlockDevice) -> Self {
        let superblock = fresh_superblock(config, slow);
        let regions = Regions::new(superblock.layout, superblock.region_shift, superblock.generation);
        let start = Start::Cold("the device cannot be used".to_owned());
        Opened { superblock, regions, start, recovered: 0, found: Vec::new() }
    }

    /// Gives the blocks that were found back to their slots.
    pub fn restore(&mut self, index: &Index, placement: &mut Placement) {
        let found = std::mem::take(&mut self.found);
        if !found.is_empty() {
            placement.restore(index, &found);
        }
        if let Start::Warm { kept, .. } = &mut self.start {
            *kept = u64::from(placement.used());
        }
    }
}
