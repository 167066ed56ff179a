//! Opening: what the previous run left, and how much of it is used.
//!
//! 1. `judge` reads the superblock. Foreign files are refused. A cache that is damaged, has another
//!    identity or other settings, or contradicts guard (`guard.rs`) or progress, is emptied with a
//!    warning.
//! 2. The slow device is synced, so that its content is settled.
//! 3. Dirty blocks are written to it (`recover.rs`), if the guard calls this cache needed. Opening
//!    fails if some of them are missing (`check_complete`).
//! 4. The journal is replayed; if pages are missing, the cache is emptied. Blocks beyond the
//!    device, in doubtful regions, or in marked ones after a possible power cut, are dropped.
//! 5. The other half of the journal is written, and a new superblock names it, both durably.
//! 6. Only then are the marks removed.
//!
//! [`CacheConfig::power_cycle`] excludes a power cut. Then all writes exist, and their order
//! (`write.rs`, `journal.rs`) proves that a block with a matching checksum is current.

use std::io;

use super::guard::{GuardState, Name};
use super::index::Index;
use super::journal::replay;
use super::layout::{Header, Layout, PAGE_BYTES, REGION_PAGES_MAX, Superblock};
use super::placement::Placement;
use super::random::draw;
use super::record::{Record, SlotContent};
use super::recover::{Recovered, recover};
use super::regions::{Mark, PAGE_REGIONS, Regions};
use super::stats::Start;
use super::{CacheConfig, CacheError};
use crate::planted::{CacheBug, planted};
use terrace_io::{AlignedBuffer, BlockDevice};

const CLEARED_BYTES: usize = 1 << 20;

pub(super) struct Opened {
    pub superblock: Superblock,
    pub regions: Regions,
    pub start: Start,
    pub recovered: u64,
    /// Blocks of the previous run by slot; empty if none.
    found: Vec<Option<SlotContent>>,
}

pub(super) enum Usable {
    Yes(Box<Opened>),
    /// Not at all: the failed step and its error.
    No(&'static str, io::Error),
}

/// Log2 of the region size, as large as the slow device's length demands.
fn region_shift(config: &CacheConfig, slow: &dyn BlockDevice) -> u32 {
    let regions_max = u64::from(REGION_PAGES_MAX) * PAGE_REGIONS as u64;
    // Twice the present length, so that the device may grow.
    let least = slow.len().div_ceil(regions_max / 2).next_power_of_two();
    let wanted = config.region_bytes.max(config.block_bytes as u64).next_power_of_two();
    least.max(wanted).trailing_zeros()
}

fn fresh_superblock(config: &CacheConfig, slow: &dyn BlockDevice) -> Superblock {
    // No leftover page can have this generation.
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

/// Fails if dirty blocks are missing from `fast`, or may be.
fn check_complete(
    slow: &dyn BlockDevice,
    fast: &dyn BlockDevice,
    config: &CacheConfig,
    guard_state: GuardState,
    header: &Header,
) -> Result<(), CacheError> {
    let incomplete = |reason: String| CacheError::Incomplete { device: slow.name().to_owned(), reason };
    if let Some(name) = guard_state.needed() {
        match *header {
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
    if let Header::Whole(found) = *header
        && found.identity == config.identity
        && found.is_dirty
        && matches!(guard_state, GuardState::Absent | GuardState::Blank | GuardState::Damaged)
    {
        return Err(incomplete(format!("the guard that names {} is missing or damaged", fast.name())));
    }
    if let Header::Whole(found) = *header
        && let GuardState::Only(name) = guard_state
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
    Ok(())
}

/// The superblock of a usable cache, or the reason why there is none.
fn judge(
    fast: &dyn BlockDevice,
    config: &CacheConfig,
    guard_state: GuardState,
    header: &Header,
) -> Result<(Option<Superblock>, Start), CacheError> {
    let cold = |reason: &str| Start::Cold(reason.to_owned());
    Ok(match *header {
        Header::Foreign => return Err(CacheError::Foreign { device: fast.name().to_owned() }),
        Header::OtherVersion(version) => {
            return Err(CacheError::OtherVersion { device: fast.name().to_owned(), version });
        }
        Header::Blank | Header::Reserved => (None, Start::New),
        Header::Damaged => (None, cold("the superblocks are damaged")),
        Header::Whole(found) if guard_state.refuses(found.number) && !planted(CacheBug::ForgetRevoked) => {
            let reason = match guard_state {
                GuardState::Only(_) => "the slow device was used with another cache since",
                GuardState::Blank => "the guard is new, so nobody knows how the slow device was used",
                _ => "the slow device was written without it since",
            };
            (None, cold(reason))
        }
        Header::Whole(found) if found.is_dirty && guard_state.needed().is_none() => {
            (None, cold("it was put away before the slow device was complete"))
        }
        Header::Whole(_) if matches!(guard_state, GuardState::OnlyDirtyOf(_)) => {
            (None, cold("it was given up before the slow device was complete"))
        }
        Header::Whole(found) if found.identity != config.identity => {
            (None, cold("it belongs to another slow device"))
        }
        Header::Whole(found) if found.session == 0 => (None, cold("it was made by an earlier version")),
        Header::Whole(found) if !is_as_left(&found, config, guard_state) => {
            (None, Start::Cold(OLDER.to_owned()))
        }
        Header::Whole(found) if !has_progress_of(&found, config) => (None, Start::Cold(ELSEWHERE.to_owned())),
        Header::Whole(found) => match other_setting(&found, config) {
            Some(setting) => (None, Start::Cold(format!("it was made with another {setting}"))),
            None if fast.len() < found.layout.bytes() => (None, cold("it is truncated")),
            None => (Some(found), Start::New),
        },
    })
}

/// Reads `fast`, changing it only if unusable, and syncs `slow`.
pub(super) fn open(
    slow: &dyn BlockDevice,
    fast: &dyn BlockDevice,
    config: &CacheConfig,
    guard_state: GuardState,
) -> Result<Usable, CacheError> {
    let incomplete = |reason: String| CacheError::Incomplete { device: slow.name().to_owned(), reason };
    let header = match Superblock::read(fast) {
        Ok(header) => header,
        Err(error) if guard_state.needed().is_some() => {
            return Err(incomplete(format!("{} cannot be read: {error}", fast.name())));
        }
        Err(error) => return Ok(Usable::No("reading the superblock", error)),
    };
    check_complete(slow, fast, config, guard_state, &header)?;
    let (superblock, mut start) = judge(fast, config, guard_state, &header)?;
    if let Err(source) = slow.sync() {
        if let Some(found) = superblock {
            doubt(fast, &found, config, guard_state);
        }
        return Err(CacheError::Slow { device: slow.name().to_owned(), source });
    }
    let recovered = match header {
        Header::Whole(found)
            if found.is_dirty && guard_state.needed().is_some() && !planted(CacheBug::ForgetDirty) =>
        {
            recover(slow, fast, &found, !is_same_cycle(&found, config))?
        }
        _ => Recovered::default(),
    };
    if let Some(found) = superblock {
        match warm(slow, fast, config, found, guard_state, &recovered) {
            Ok(Some(opened)) => {
                return Ok(Usable::Yes(Box::new(Opened { recovered: recovered.written, ..opened })));
            }
            Ok(None) => start = Start::Cold("the journal is damaged".to_owned()),
            Err(error) => return Ok(Usable::No("reading the journal", error)),
        }
    }
    if let Some(guard) = config.guard.as_ref().filter(|_| guard_state.needed().is_some()) {
        // The slow device is complete; after a crash it must not require the wiped cache.
        let device = guard.name().to_owned();
        GuardState::NoCache.write(&**guard).map_err(|source| CacheError::Slow { device, source })?;
    }
    match format(slow, fast, config, &header) {
        Ok((superblock, regions)) => Ok(Usable::Yes(Box::new(Opened {
            superblock,
            regions,
            start,
            recovered: recovered.written,
            found: Vec::new(),
        }))),
        Err(error) => Ok(Usable::No("formatting the cache at its full size", error)),
    }
}

/// Records doubt about earlier writes after a failed sync of the slow device.
fn doubt(fast: &dyn BlockDevice, found: &Superblock, config: &CacheConfig, guard_state: GuardState) {
    let noted = Regions::read(fast, found.layout, found.region_shift).and_then(|marks| {
        marks.sync_failed();
        marks.write_all(fast)?;
        fast.sync()
    });
    let put_away = || match (guard_state.needed(), &config.guard) {
        (Some(name), Some(guard)) => GuardState::OnlyDirtyOf(name).write(&**guard),
        _ => Superblock::wipe(fast),
    };
    if noted.is_err() && put_away().is_err() {
        tracing::error!(
            device = fast.name(),
            "what is in doubt cannot be noted; this cache must not be used again"
        );
    }
}

fn is_same_cycle(found: &Superblock, config: &CacheConfig) -> bool {
    let power_cycle = config.power_cycle.unwrap_or_default();
    power_cycle != [0; 16] && power_cycle == found.power_cycle
}

pub(super) const OLDER: &str =
    "it is not as it was left: an older copy of it, or of the slow device and its guard, was put back";
pub(super) const ELSEWHERE: &str =
    "the slow device is not as it was left: a copy of it was put back, or it was written without the cache";

fn is_as_left(found: &Superblock, config: &CacheConfig, guard_state: GuardState) -> bool {
    let fits_guard = guard_state.latest().is_none_or(|name| name.fits(found));
    let fits_session = config.session.is_none_or(|session| {
        let number = found.number;
        Name { number, session, sequence: 0 }.fits(found)
    });
    fits_guard && fits_session
}

/// Whether the guard or owner has the current session, not the previous one.
///
/// Then the previous one is dropped, and the next opening keeps the current one.
fn is_session_noted(found: &Superblock, config: &CacheConfig, guard_state: GuardState) -> bool {
    let noted = [guard_state.latest().map(|name| name.session), config.session];
    noted.contains(&Some(found.session)) && !noted.contains(&Some(found.session_before))
}

/// The number of this opening's first step: random, so that no other opening has it.
fn draw_first_step(config: &CacheConfig) -> u64 {
    const STEPS_MAX: u64 = 1 << 16;
    match config.progress {
        0 => 0,
        progress => progress.saturating_add(2 + draw() / 2 % STEPS_MAX),
    }
}

/// Whether the slow device is at the cache's progress, or one step further.
///
/// A step is reported after it was made; the first one of an opening is stored beforehand.
fn has_progress_of(found: &Superblock, config: &CacheConfig) -> bool {
    let steps = config.progress.checked_sub(found.progress);
    found.progress == 0
        || config.progress == 0
        || steps.is_some_and(|steps| steps <= 1)
        || config.progress == found.first_step
        || planted(CacheBug::ForgetProgress)
}

/// The setting that the cache was not made with.
fn other_setting(found: &Superblock, config: &CacheConfig) -> Option<&'static str> {
    let layout = &found.layout;
    if 1 << layout.block_shift != config.block_bytes || found.region_shift < layout.block_shift {
        return Some("size of blocks");
    }
    (layout.slots != config.capacity_blocks_max()).then_some("capacity")
}

fn format(
    slow: &dyn BlockDevice,
    fast: &dyn BlockDevice,
    config: &CacheConfig,
    before: &Header,
) -> io::Result<(Superblock, Regions)> {
    if !matches!(before, Header::Blank | Header::Reserved) {
        Superblock::wipe(fast)?;
    }
    let superblock = fresh_superblock(config, slow);
    let (left, bytes) = (fast.len(), superblock.layout.bytes());
    if left < bytes {
        fast.set_len(bytes)?;
    } else if let Header::Whole(found) = before
        && found.layout.bytes() > bytes
        && let Err(error) = fast.set_len(bytes)
    {
        // A partition cannot be shortened.
        tracing::warn!(device = fast.name(), %error, "the space of the larger cache is not given back");
    }
    if !planted(CacheBug::KeepLeftovers) {
        clear_journal(fast, superblock.layout, left)?;
    }
    let regions = Regions::new(superblock.layout, superblock.region_shift, superblock.generation);
    Ok((superblock, regions))
}

/// Clears what another layout has left in its `left` bytes where both halves of the journal will
/// be.
///
/// Replay would take a block's bytes behind the last page for a damaged page. They are cleared
/// before a superblock names the journal: its first half ends with a sync.
fn clear_journal(fast: &dyn BlockDevice, layout: Layout, left: u64) -> io::Result<()> {
    let (mut from, end) = (layout.journal_offset(0, 0), layout.journal_offset(2, 0));
    let end = end.min(left.next_multiple_of(PAGE_BYTES as u64));
    let zeros = AlignedBuffer::zeroed(CLEARED_BYTES);
    let mut content = AlignedBuffer::zeroed(CLEARED_BYTES);
    while from < end {
        let bytes = (end - from).min(CLEARED_BYTES as u64) as usize;
        fast.read_at(from, &mut content[..bytes])?;
        if content[..bytes] != zeros[..bytes] {
            fast.write_at(from, &zeros[..bytes])?;
        }
        from += bytes as u64;
    }
    Ok(())
}

fn warm(
    slow: &dyn BlockDevice,
    fast: &dyn BlockDevice,
    config: &CacheConfig,
    mut superblock: Superblock,
    guard_state: GuardState,
    recovered: &Recovered,
) -> io::Result<Option<Opened>> {
    let layout = superblock.layout;
    let marks = Regions::read(fast, layout, superblock.region_shift)?;
    let power_cycle = config.power_cycle.unwrap_or_default();
    let is_same_cycle = is_same_cycle(&superblock, config);
    let mut found = vec![None; layout.slots as usize];
    let is_whole = replay(fast, &superblock, !is_same_cycle, |record| match record {
        Record::Holds { slot, content } => found[slot as usize] = Some(content),
        Record::Free { slot } => found[slot as usize] = None,
        Record::Durable { .. } => {}
    })?;
    if !is_whole {
        return Ok(None);
    }
    let whole_blocks = slow.len() >> layout.block_shift;
    let mut dropped = 0;
    for (slot, content) in (0_u32..).zip(&mut found) {
        let Some(SlotContent { block, epoch, .. }) = *content else { continue };
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
            *content = None;
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
    if is_session_noted(&superblock, config, guard_state) && !planted(CacheBug::KeepUnneeded) {
        superblock.session_before = 0;
    }
    superblock.progress = config.progress;
    superblock.first_step = draw_first_step(config);
    let start = Start::Warm { kept, dropped };
    Ok(Some(Opened { superblock, regions, start, recovered: 0, found }))
}

impl Opened {
    pub fn nothing(config: &CacheConfig, slow: &dyn BlockDevice) -> Self {
        let superblock = fresh_superblock(config, slow);
        let regions = Regions::new(superblock.layout, superblock.region_shift, superblock.generation);
        let start = Start::Cold("the device cannot be used".to_owned());
        Opened { superblock, regions, start, recovered: 0, found: Vec::new() }
    }

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
