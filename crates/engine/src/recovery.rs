//! Recovery: builds a pool from superblock, mapping chunks and log.
//!
//! 1. Read the superblock, and the log to its end. Note losers, the newest image of each chunk, and
//!    what the log says of mapping and allocation. Append to the log's file what a ring in
//!    persistent memory has beyond it. Rewrite and sync the log's end: a killed process may leave
//!    bytes that can still be lost (docs/durability.md, rule 13).
//! 2. Read the chunks, and apply what was noted. Only then are the extents of base images final.
//!    Frames of a persistent middle tier, whose headers are durable now, are bases instead of
//!    images (rule 10).
//! 3. Write the new epoch to the superblock and sync it. Unseal all other frames, and give the tier
//!    the epoch. Only then may anything be appended.
//! 4. Redo each change that the base lacks. Eviction, write-back and checkpoint run as usual, which
//!    keeps the memory limit. The cut stays below the next change to redo.
//! 5. The caller undoes the losers, by key, and closes them.
//!
//! After a failure or crash, recovery starts again at step 1.
//!
//! | file          | contents                               |
//! |---------------|----------------------------------------|
//! | this file     | the order of the steps; steps 1 and 3  |
//! | `analysis.rs` | chunks, and what the log says of pages |
//! | `assemble.rs` | the pool that results from step 2      |
//! | `redo.rs`     | step 4                                 |
//! | `undo.rs`     | step 5                                 |
//! | `salvage.rs`  | a pool from a damaged database         |

mod analysis;
mod assemble;
mod redo;
pub(crate) mod salvage;
mod undo;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use self::analysis::Analysis;
pub(crate) use self::analysis::Loser;
use self::assemble::Assembled;
pub(crate) use self::redo::Redo;
pub(crate) use self::undo::{Undo, undo_losers};
use terrace_io::units::show_size;

use crate::error::{Error, Result};
use crate::ids::Lsn;
use crate::maintenance::Maintenance;
use crate::planted::{Bug, planted};
use crate::pool::persistent::Attached;
use crate::pool::{Mode, PoolOptions};
use crate::store::files::Files;
use crate::store::ring::RingMemory;
use crate::store::superblock::{RingName, Slots, Superblock};
use crate::wal::{
    BUFFER_BYTES_MAX, EpochRule, Geometry, Kind, LogScan, RecordView, Wal, WalOptions, check_not_outrun,
    file_ring, read_header, rewrite_tail,
};

/// A pool after redo, with its maintenance.
#[derive(Debug)]
pub(crate) struct Recovered {
    pub(crate) maintenance: Arc<Maintenance>,
    pub(crate) losers: Vec<Loser>,
    /// Number of redone changes.
    pub(crate) redone: u64,
    /// The end of the log.
    pub(crate) log_end: Lsn,
}

/// Whether the log in `files` holds records since its last cut.
pub(crate) fn log_has_changes(files: &Files) -> Result<bool> {
    let (slots, superblock) = files.superblocks()?;
    let (rings, rule) = log_of(files, &slots, &superblock)?;
    let mut records = LogScan::new(files.log.clone(), rings.present, superblock.cut, rule)?;
    while let Some(record) = records.next()? {
        if record.kind() == Kind::Pages {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Recovers up to and including redo. The caller undoes the losers.
pub(crate) fn recover(files: &Files, options: &PoolOptions, redo: &dyn Redo) -> Result<Recovered> {
    let (mut slots, mut superblock) = files.superblocks()?;
    let (Rings { present: geometry, largest }, rule) = log_of(files, &slots, &superblock)?;
    let scan = |from| LogScan::new(files.log.clone(), geometry, from, rule)?.widened();
    let named = named_ring(files, &superblock)?;
    let mut analysis = Analysis::new(files, options, &superblock)?;
    let records = scan(superblock.cut)?;
    let log_end =
        find_end(files, geometry, (&superblock, rule), records, named, |record| analysis.note(record))?;
    slots.write_again()?;
    let attached = attach(options, &superblock)?;

    analysis.finish(scan)?;
    let adopted = match attached.as_ref().filter(|tier| tier.is_of_life(&superblock)) {
        Some(tier) => analysis.bases_in(tier, log_end),
        None => Vec::new(),
    };

    // Records behind the end must never count in the next epoch.
    let (epoch, life) = (superblock.epoch + 1, files.life.unwrap_or(superblock.life.wrapping_add(1)));
    // Before the superblock: what it names must be there.
    let ring = files.ring.as_ref().map(|ring| ring.attach(&superblock, epoch, life)).transpose()?;
    superblock.ring = if planted(Bug::RingUnnamed) { None } else { ring };
    (superblock.epoch, superblock.life) = (epoch, life);
    superblock.epoch_start = log_end;
    superblock.log_end = log_end;
    superblock.sequence = slots.first_of_life(superblock.sequence);
    superblock.highest_timestamp = superblock.highest_timestamp.max(analysis.highest);
    if !planted(Bug::AppendBeforeEpochSync) {
        slots.write(&superblock)?;
    }
    // Before the first append: another copy of the database may name the life before.
    files.ring.as_ref().map_or(Ok(()), |ring| ring.keep_life_of(&superblock))?;
    let persistent = attached.map(|tier| tier.begin_life(&superblock, &adopted)).transpose()?;
    let wal_options = WalOptions {
        geometry,
        largest,
        buffer_bytes: options.buffers.log as usize,
        ring: files.ring.clone(),
        in_memory: options.in_memory,
        epoch: superblock.epoch,
        tail: log_end,
        cut: superblock.cut,
    };
    let wal = Wal::open(files.log.clone(), wal_options)?;
    let cut = superblock.cut;
    let Assembled { maintenance, losers, bases, first_changes } =
        analysis.assemble(slots, superblock, wal, (persistent, adopted), options)?;
    maintenance.pool.use_classes_with_ids()?;
    let losers_floor = losers.iter().map(|loser| loser.first.0).min().unwrap_or(u64::MAX);
    let records = maintenance.wal.scan(cut, rule)?.widened()?;
    let redone = match options.mode == Mode::Background && options.tiers.memory.is_none() {
        true => redo::redo_beside_reads(&maintenance, records, &bases, &first_changes, losers_floor, redo)?,
        false => redo::redo_all(&maintenance, records, &bases, None, losers_floor, redo)?,
    };
    maintenance.requests.recovery_floor.store(losers_floor, Relaxed);
    Ok(Recovered { maintenance, losers, redone, log_end })
}

fn attach(options: &PoolOptions, superblock: &Superblock) -> Result<Option<Attached>> {
    let tiers = &options.tiers;
    let (Some(source), Some(middle)) = (&tiers.persistent, &tiers.middle) else { return Ok(None) };
    Attached::open(source, superblock, middle.frames, tiers.memory.clone())
}

struct Rings {
    present: Geometry,
    largest: Geometry,
}

/// Gives up the ring in `files`, whose records go to the log's file. Nothing names it then.
///
/// # Errors
/// Those of recovery's first step.
pub(crate) fn leave_ring(files: &Files) -> Result<()> {
    let (mut slots, mut superblock) = files.superblocks()?;
    let Some(ring) = &files.ring else { return Ok(()) };
    // A kill may leave a superblock without the ring that a power cut takes back.
    slots.write_again()?;
    if let Some(ring) = named_ring(files, &superblock)? {
        let (Rings { present: geometry, .. }, rule) = log_of(files, &slots, &superblock)?;
        let scan = LogScan::new(files.log.clone(), geometry, superblock.cut, rule)?;
        let log_end = find_end(files, geometry, (&superblock, rule), scan, Some(ring), |_| ())?;
        // The life of a cut-off recovery must not outlast the known one.
        ring.keep_life_of(&superblock)?;
        superblock.log_end = log_end;
        superblock.ring = None;
        superblock.sequence = slots.first_of_life(superblock.sequence);
        slots.write(&superblock)?;
    }
    ring.release()
}

/// The log's geometries, and which records count.
fn log_of(files: &Files, slots: &Slots, superblock: &Superblock) -> Result<(Rings, EpochRule)> {
    let header = read_header(&*files.log).map_err(|error| match error {
        // The page file is a database, so its log was one.
        Error::NotADatabase { path, what } => Error::corrupt(&path, None, what),
        error => error,
    })?;
    if header.database != superblock.uuid || header.timeline != superblock.timeline {
        return Err(Error::NotADatabase {
            path: files.log.name().to_owned(),
            what: "its log is that of another database than its page file; put the right file back, or save data with \
                   `terrace repair`"
                .into(),
        });
    }
    let rings =
        Rings { present: header.ring(&*files.log, superblock.log_capacity)?, largest: header.largest };
    let rule = EpochRule { epoch: superblock.epoch, first_lsn: superblock.epoch_start };
    if slots.is_alone() {
        check_not_outrun(files.log.clone(), rings.present, superblock.cut, rule)?;
    }
    Ok((rings, rule))
}

/// The ring that holds the newest of the log, if any.
///
/// # Errors
/// [`Error::LogMemory`] if it is missing, or not the one in `files`.
fn named_ring<'a>(files: &'a Files, superblock: &Superblock) -> Result<Option<&'a RingMemory>> {
    match &files.ring {
        Some(ring) => Ok(ring.check(superblock)?.then_some(&**ring)),
        None if planted(Bug::MissingRingAccepted) => Ok(None),
        None => superblock.ring.map_or(Ok(None), |name| Err(missing_ring(files, name))),
    }
}

/// For a database that is opened without the ring it relies on.
pub(crate) fn missing_ring(files: &Files, name: RingName) -> Error {
    let what = format!(
        "its newest commits are in persistent memory of {} (id {:016x}); open it with the log memory it had \
         (`--log-memory`), or go on without them with `terrace repair`",
        show_size(name.bytes),
        name.id
    );
    Error::LogMemory { path: files.pages.name().to_owned(), what }
}

/// Finds the log's end and makes it durable. Rewrites the last bytes, since a later sync proves
/// nothing about bytes whose sync failed. The earlier owner may have had a larger buffer. `each`
/// gets every record; what it gathers counts once the end is durable.
fn find_end(
    files: &Files,
    geometry: Geometry,
    (superblock, rule): (&Superblock, EpochRule),
    mut scan: LogScan,
    ring: Option<&RingMemory>,
    mut each: impl FnMut(&RecordView<'_>),
) -> Result<Lsn> {
    let (cut, mut end) = (superblock.cut, scan.finish_with(&mut each)?);
    if let Some(ring) = ring {
        if end.0 < ring.has_let_go() {
            let what = format!(
                "it ends at {end}, but the log's memory {} relies on it up to {}: it is an older copy",
                ring.name(),
                ring.has_let_go()
            );
            return Err(Error::corrupt(files.log.name(), None, what));
        }
        end = file_ring(&*files.log, geometry, ring, (cut, end), rule)?;
        ring.check_end(end.0, superblock)?;
        if !planted(Bug::AnalysisWithoutRing) {
            scan.resume();
            scan.finish_with(&mut each)?;
        }
    }
    if end < superblock.log_end {
        let what = format!("the log ends at {end}, but it was durable up to {}", superblock.log_end);
        return Err(Error::corrupt(files.log.name(), None, what));
    }
    let from = Lsn(end.0.saturating_sub(2 * BUFFER_BYTES_MAX)).max(cut);
    rewrite_tail(&*files.log, geometry, from, end)?;
    files.pages.sync().map_err(|source| Error::io("sync", files.pages.name(), None, source))?;
    Ok(end)
}
