//! Recovery: from the superblock, the mapping chunks and the log to a pool whose pages are as the log says.
//!
//! 1. Read the superblock, and rewrite and sync what may be in a cache only (durability, rule 13): a killed process
//!    leaves bytes that a power cut can still take.
//! 2. Read the log to its end once for the newest image of each chunk and for losers, then once more for what it says
//!    about mapping and allocation. Only now are the places of base images final.
//! 3. Announce the new epoch in the superblock and sync it. Only now may anything be appended.
//! 4. Redo: each change whose page is allocated, which is not older than the page's last allocation or free, and which
//!    the base lacks. Pages are evicted and written meanwhile as always, so recovery keeps the memory limit, and the
//!    checkpoint runs, with the cut held below what is still to be redone.
//! 5. The caller undoes the losers, by key, and closes them.
//!
//! A failure or crash in any step leaves a database from which recovery starts again at step 1.
//!
//! | file          | what is in it                                                          |
//! |---------------|------------------------------------------------------------------------|
//! | this one      | the steps in their order; steps 1 and 3                                |
//! | `analysis.rs` | step 2: what the chunks and the log say                                |
//! | `assemble.rs` | the pool that follows from it                                          |
//! | `redo.rs`     | step 4                                                                 |
//! | `undo.rs`     | step 5                                                                 |

mod analysis;
mod assemble;
mod redo;
mod undo;

use std::sync::atomic::Ordering::Relaxed;

use self::analysis::Analysis;
pub(crate) use self::analysis::Loser;
pub(crate) use self::redo::Redo;
pub(crate) use self::undo::Undo;
use super::create::{Files, PoolOptions};
use super::pool::Pool;
use crate::error::{Error, Result};
use crate::ids::Lsn;
use crate::planted::{Bug, planted};
use crate::store::superblock::Superblock;
use crate::wal::{
    BUFFER_BYTES_MAX, EpochRule, Geometry, Kind, LogScan, Wal, WalOptions, read_header, rewrite_tail,
};

/// A pool after redo.
#[derive(Debug)]
pub(crate) struct Recovered {
    pub(crate) pool: Pool,
    pub(crate) losers: Vec<Loser>,
    /// How many changes were redone.
    pub(crate) redone: u64,
    /// The end of the log that was found.
    pub(crate) log_end: Lsn,
}

impl Pool {
    /// Whether the log in `files` holds changes since its last cut, so that recovery may have something to redo or undo.
    pub(crate) fn log_has_changes(files: &Files) -> Result<bool> {
        let (_, superblock) = files.superblocks()?;
        let (geometry, rule) = log_of(files, &superblock)?;
        let mut records = LogScan::new(files.log.clone(), geometry, superblock.cut, rule)?;
        while let Some(record) = records.next()? {
            if record.kind() == Kind::Pages {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Recovers the database in `files` up to and including redo. The losers are the caller's to undo.
    pub(crate) fn recover(files: &Files, options: &PoolOptions, redo: &dyn Redo) -> Result<Recovered> {
        let (mut slots, mut superblock) = files.superblocks()?;
        let (geometry, rule) = log_of(files, &superblock)?;
        let scan = |from| LogScan::new(files.log.clone(), geometry, from, rule);
        let log_end = make_durable(files, geometry, superblock.cut, scan(superblock.cut)?)?;
        if log_end < superblock.log_end {
            let what = format!("the log ends at {log_end}, but it was durable up to {}", superblock.log_end);
            return Err(Error::corrupt(files.log.name(), None, what));
        }
        slots.write_again()?;

        let analysis = Analysis::of(files, options, &superblock, scan)?;

        // Records behind the end, left by this epoch, must never be taken for the next one's.
        let first_append_before_sync = planted(Bug::AppendBeforeEpochSync);
        superblock.epoch += 1;
        superblock.epoch_start = log_end;
        superblock.log_end = log_end;
        superblock.sequence = slots.first_of_life(superblock.sequence);
        superblock.highest_timestamp = superblock.highest_timestamp.max(analysis.highest);
        if !first_append_before_sync {
            slots.write(&superblock)?;
        }
        let wal_options = WalOptions {
            geometry,
            buffer_bytes: options.log_buffer_bytes,
            epoch: superblock.epoch,
            tail: log_end,
            cut: superblock.cut,
        };
        let wal = Wal::open(files.log.clone(), wal_options)?;
        let cut = superblock.cut;
        let (pool, losers, born) = analysis.into_pool(slots, superblock, wal, options)?;
        pool.use_classes_with_ids()?;
        let losers_floor = losers.iter().map(|loser| loser.first.0).min().unwrap_or(u64::MAX);
        let redone = pool.redo_all(scan(cut)?, &born, losers_floor, redo)?;
        pool.recovery_floor.store(losers_floor, Relaxed);
        Ok(Recovered { pool, losers, redone, log_end })
    }

    /// The losers are undone and closed, durably: the log may be cut past them.
    pub(crate) fn recovery_done(&self) {
        self.recovery_floor.store(u64::MAX, Relaxed);
    }

    /// Whether losers are still to be undone; what that takes may use the log to its end.
    pub(crate) fn is_recovering(&self) -> bool {
        self.recovery_floor.load(Relaxed) != u64::MAX
    }
}

/// Where the log of this superblock's database is in its file, and which of its records count.
fn log_of(files: &Files, superblock: &Superblock) -> Result<(Geometry, EpochRule)> {
    let header = read_header(&*files.log).map_err(|error| match error {
        // The page file is one, so this was one.
        Error::NotADatabase { path, what } => Error::corrupt(&path, None, what),
        error => error,
    })?;
    if header.database != superblock.uuid || header.timeline != superblock.timeline {
        return Err(Error::NotADatabase {
            path: files.log.name().to_owned(),
            what: "the log belongs to another database than the page file".into(),
        });
    }
    let geometry = header.geometry;
    if geometry.capacity() != superblock.log_capacity {
        let (is, should) = (geometry.capacity(), superblock.log_capacity);
        let what = format!("the log holds {is} bytes, the page file's superblock says {should}");
        return Err(Error::corrupt(files.log.name(), None, what));
    }
    Ok((geometry, EpochRule { epoch: superblock.epoch, first_lsn: superblock.epoch_start }))
}

/// Finds the end of the log and makes sure that everything up to it is on the disk and not only in a cache. What an earlier
/// owner wrote and could not sync is not made durable by a sync that succeeds later, only by writing it again; that owner
/// may have had a larger buffer than this one.
fn make_durable(files: &Files, geometry: Geometry, cut: Lsn, mut scan: LogScan) -> Result<Lsn> {
    while scan.next()?.is_some() {}
    let end = scan.finish()?;
    let from = Lsn(end.0.saturating_sub(2 * BUFFER_BYTES_MAX)).max(cut);
    rewrite_tail(&*files.log, geometry, from, end)?;
    files.pages.sync().map_err(|source| Error::io("sync", files.pages.name(), None, source))?;
    Ok(end)
}
