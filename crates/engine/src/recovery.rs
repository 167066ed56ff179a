//! Recovery: builds a pool from superblock, mapping chunks and log.
//!
//! 1. Read the superblock. Rewrite and sync the log up to its end: bytes that a killed process left
//!    in a cache can still be lost (docs/durability.md, rule 13).
//! 2. Read the log for the newest image of each chunk and for losers. Read it again for mapping and
//!    allocation. Only then are the extents of base images final.
//! 3. Write the new epoch to the superblock and sync it. Only then may anything be appended.
//! 4. Redo each change that the base lacks. Eviction, write-back and checkpoint run as usual, so
//!    recovery keeps the memory limit. The cut stays below the next change to redo.
//! 5. The caller undoes the losers, by key, and closes them.
//!
//! After a failure or crash in any step, recovery starts again at step 1.
//!
//! | file          | contents                               |
//! |---------------|----------------------------------------|
//! | this file     | the order of the steps; steps 1 and 3  |
//! | `analysis.rs` | step 2: chunks and log                 |
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
use crate::error::{Error, Result};
use crate::ids::Lsn;
use crate::maintenance::Maintenance;
use crate::planted::{Bug, planted};
use crate::pool::PoolOptions;
use crate::store::files::Files;
use crate::store::superblock::Superblock;
use crate::wal::{
    BUFFER_BYTES_MAX, EpochRule, Geometry, Kind, LogScan, Wal, WalOptions, read_header, rewrite_tail,
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
    let (_, superblock) = files.superblocks()?;
    let (rings, rule) = log_of(files, &superblock)?;
    let mut records = LogScan::new(files.log.clone(), rings.present, superblock.cut, rule)?;
    while let Some(record) = records.next()? {
        if record.kind() == Kind::Pages {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Recovers the database in `files` up to and including redo. The caller undoes the losers.
pub(crate) fn recover(files: &Files, options: &PoolOptions, redo: &dyn Redo) -> Result<Recovered> {
    let (mut slots, mut superblock) = files.superblocks()?;
    let (Rings { present: geometry, largest }, rule) = log_of(files, &superblock)?;
    let scan = |from| LogScan::new(files.log.clone(), geometry, from, rule);
    let log_end = find_end(files, geometry, superblock.cut, scan(superblock.cut)?)?;
    if log_end < superblock.log_end {
        let what = format!("the log ends at {log_end}, but it was durable up to {}", superblock.log_end);
        return Err(Error::corrupt(files.log.name(), None, what));
    }
    slots.write_again()?;

    let analysis = Analysis::of(files, options, &superblock, scan)?;

    // Old records behind the end must never count as records of the next epoch.
    superblock.epoch += 1;
    superblock.epoch_start = log_end;
    superblock.log_end = log_end;
    superblock.sequence = slots.first_of_life(superblock.sequence);
    superblock.highest_timestamp = superblock.highest_timestamp.max(analysis.highest);
    if !planted(Bug::AppendBeforeEpochSync) {
        slots.write(&superblock)?;
    }
    let wal_options = WalOptions {
        geometry,
        largest,
        buffer_bytes: options.buffers.log as usize,
        epoch: superblock.epoch,
        tail: log_end,
        cut: superblock.cut,
    };
    let wal = Wal::open(files.log.clone(), wal_options)?;
    let cut = superblock.cut;
    let Assembled { maintenance, losers, born } = analysis.assemble(slots, superblock, wal, options)?;
    maintenance.pool.use_classes_with_ids()?;
    let losers_floor = losers.iter().map(|loser| loser.first.0).min().unwrap_or(u64::MAX);
    let redone = redo::redo_all(&maintenance, scan(cut)?, &born, losers_floor, redo)?;
    maintenance.requests.recovery_floor.store(losers_floor, Relaxed);
    Ok(Recovered { maintenance, losers, redone, log_end })
}

struct Rings {
    present: Geometry,
    largest: Geometry,
}

/// The log's geometries, and which records count.
fn log_of(files: &Files, superblock: &Superblock) -> Result<(Rings, EpochRule)> {
    let header = read_header(&*files.log).map_err(|error| match error {
        // The page file is a database, so its log was one.
        Error::NotADatabase { path, what } => Error::corrupt(&path, None, what),
        error => error,
    })?;
    if header.database != superblock.uuid || header.timeline != superblock.timeline {
        return Err(Error::NotADatabase {
            path: files.log.name().to_owned(),
            what: "the log belongs to another database than the page file".into(),
        });
    }
    let rings =
        Rings { present: header.ring(&*files.log, superblock.log_capacity)?, largest: header.largest };
    Ok((rings, EpochRule { epoch: superblock.epoch, first_lsn: superblock.epoch_start }))
}

/// Finds the end of the log, and makes the log durable. Rewrites the last bytes, since a
/// later sync proves nothing about bytes whose sync failed. The earlier owner may have had a larger
/// buffer.
fn find_end(files: &Files, geometry: Geometry, cut: Lsn, scan: LogScan) -> Result<Lsn> {
    let end = scan.finish()?;
    let from = Lsn(end.0.saturating_sub(2 * BUFFER_BYTES_MAX)).max(cut);
    rewrite_tail(&*files.log, geometry, from, end)?;
    files.pages.sync().map_err(|source| Error::io("sync", files.pages.name(), None, source))?;
    Ok(end)
}
