//! Repair: makes a new database from the intact parts of a damaged one, which is only read.
//!
//! `recovery/salvage.rs` makes a pool of the remaining pages. This module reads their entries table
//! by table (`walk.rs`), writes them to a new database, and reports lost pages, key ranges and
//! keys.
//!
//! The result has only committed entries. Leaves without a known table go to tables named after a
//! page.
//!
//! | name in the destination        | contents                            |
//! |--------------------------------|-------------------------------------|
//! | `pages.salvage`, `log.salvage` | the pool, removed at the end        |
//! | `pages.repaired`, `log.repaired` | the new database until complete   |

mod emit;
mod names;
pub(crate) mod report;
mod walk;

use std::path::Path;
use std::sync::Arc;

use terrace_io::{Directory, OpenMode, Sharing};

use self::emit::Emitter;
use self::names::Renamed;
use self::report::RepairReport;
use self::walk::Harvest;
use super::backup::{create, new_directory, publish, refuse_used};
use super::files::{
    LOCK, LOG, PAGES, REPAIRED_LOG, REPAIRED_PAGES, SALVAGE_LOG, SALVAGE_PAGES, UNFINISHED_REPAIR, hold,
    open_directory,
};
use crate::config::{Builder, FRAMES_MIN, PageSizes, Split};
use crate::error::{Error, Result};
use crate::ids::SizeClass;
use crate::index::{NodeRedo, check_page};
use crate::pool::{Mode, PAGES_MAX, PoolOptions, RecordCache, TierOptions};
use crate::recovery::salvage::{Means, Remains, Salvaged};
use crate::store::files::Files;
use crate::store::names::{exists, within};
use crate::txn::undo::KeyUndo;

impl Builder {
    /// Makes a new database of the intact data of a damaged one.
    ///
    /// The directory `destination` must be empty or missing. The directory `source` is only read,
    /// and no writer may have it open. Takes some hundred bytes per page beyond this builder's
    /// memory, and temporarily as much disk space as the source.
    ///
    /// # Errors
    /// [`Error::NotADatabase`] if nothing can be saved, [`Error::Busy`], [`Error::Version`],
    /// [`Error::Io`], [`Error::Full`], [`Error::Config`], [`Error::Memory`]. After an error no
    /// database is left behind.
    ///
    /// ```
    /// use terrace::Db;
    ///
    /// let place = tempfile::tempdir().unwrap();
    /// let db = Db::builder().dram(4 << 20).open(place.path().join("db"))?;
    /// db.create_table("t")?.put("key", "value")?;
    /// db.close()?;
    ///
    /// let builder = Db::builder().dram(8 << 20);
    /// let report = builder.repair(place.path().join("db"), place.path().join("new"))?;
    /// assert!(report.is_complete() && report.entries == 1);
    /// # Ok::<(), terrace::Error>(())
    /// ```
    pub fn repair(self, source: impl AsRef<Path>, destination: impl AsRef<Path>) -> Result<RepairReport> {
        let source = open_directory(source.as_ref(), false)?;
        let (directory, made) = new_directory(destination.as_ref())?;
        let directory: Arc<dyn Directory> = Arc::new(directory);
        self.repair_in(&*source, Arc::clone(&directory)).inspect_err(|_| {
            if made {
                // Best effort; the lock file is the last file in the directory.
                let _ = directory.remove(LOCK);
                let _ = std::fs::remove_dir(destination.as_ref());
            }
        })
    }

    /// Repairs like [`Builder::repair`], between any kinds of directory.
    ///
    /// # Errors
    /// Those of [`Builder::repair`].
    pub fn repair_in(self, source: &dyn Directory, destination: Arc<dyn Directory>) -> Result<RepairReport> {
        if !exists(source, PAGES)? {
            return Err(Error::NotADatabase { path: source.name(), what: format!("it holds no {PAGES}") });
        }
        refuse_used(&*destination)?;
        // Shared with readers; excludes writers.
        let _readers = hold(source, Sharing::Shared)?;
        let dram = self.dram_bytes()?;
        let repaired = repair(self, source, &destination).map_err(|error| {
            error.of_part(format_args!(
                "of {dram} bytes of dram, a repair has half for each of the two databases"
            ))
        });
        // The page file goes last: its name marks the log as a remainder.
        let remains = [SALVAGE_LOG, SALVAGE_PAGES, REPAIRED_LOG, REPAIRED_PAGES];
        for file in remains.iter().take(if repaired.is_ok() { 2 } else { 4 }) {
            let _ = destination.remove(file);
        }
        repaired
    }
}

fn options(builder: &Builder, share: u64, sizes: PageSizes, file_pages: u64) -> Result<PoolOptions> {
    let backend = builder.backend_or_default();
    let split = Split::new(share, None, RecordCache::Off, backend, sizes, file_pages)?;
    Ok(PoolOptions {
        frame_bytes: split.frame_bytes,
        frame_bytes_max: share,
        frames_floor: FRAMES_MIN,
        buffers: split.buffers,
        pages_max: PAGES_MAX,
        hash: None,
        store_bytes_max: u64::MAX,
        record_cache: RecordCache::Off,
        backend,
        replacement: builder.replacement,
        tiers: TierOptions::default(),
        mode: Mode::Inline,
        in_memory: false,
        hints: false,
    })
}

/// Settings of the new database, with the page sizes of the salvaged one.
fn sized(builder: Builder, salvaged: &Salvaged, values: Option<SizeClass>) -> Builder {
    let page_size = builder.page_size.unwrap_or(salvaged.maintenance.pool.page_bytes() as u64);
    // Tables keep their page sizes.
    let largest =
        salvaged.maintenance.pool.page_sizes().largest_used().min(SizeClass::LARGEST_NODE).page_bytes()
            as u64;
    let largest = largest.max(page_size).max(builder.page_size_max.unwrap_or(page_size));
    let values =
        values.map_or(0, |class| class.page_bytes() as u64).max(builder.value_page_size_max.unwrap_or(0));
    let builder = builder.page_size(page_size).page_size_max(largest);
    if values > largest { builder.value_page_size_max(values) } else { builder }
}

fn repair(
    builder: Builder,
    source: &dyn Directory,
    destination: &Arc<dyn Directory>,
) -> Result<RepairReport> {
    let open = |file: &str| {
        let opened = source.open(file, OpenMode::Read);
        opened.map_err(|error| Error::io("open", &within(source, file), None, error))
    };
    let remains = Remains { pages: open(PAGES)?, log: open(LOG).ok() };
    // Half of the memory for each of the two databases.
    let dram = builder.dram_bytes()?;
    let share = (dram / 2).max(crate::MIN_DRAM_BYTES);
    let scratch = || {
        for file in [SALVAGE_LOG, SALVAGE_PAGES] {
            if exists(&**destination, file)? {
                let removed = destination.remove(file);
                removed.map_err(|error| Error::io("remove", &within(&**destination, file), None, error))?;
            }
        }
        Ok(Files::new(create(&**destination, SALVAGE_PAGES)?, create(&**destination, SALVAGE_LOG)?))
    };
    let options = |sizes: PageSizes, file_pages: u64| options(&builder, share, sizes, file_pages);
    let means =
        Means { check: check_page, redo: &NodeRedo, undo: &KeyUndo, scratch: &scratch, options: &options };
    let salvaged = Salvaged::of(&remains, &means)?;
    let harvest = Harvest::of(&salvaged)?;

    let names = [(PAGES, REPAIRED_PAGES), (LOG, REPAIRED_LOG)];
    let renamed = Renamed::new(Arc::clone(destination), names, &UNFINISHED_REPAIR);
    let values = harvest.tables.iter().filter_map(|table| table.values).max();
    let builder = sized(builder.directory(Arc::new(renamed)).dram(share), &salvaged, values);
    let db = builder.create(true).read_only(false).open("")?;
    let mut emitter = Emitter::new(&db, &salvaged);
    for table in harvest.tables {
        emitter.table(table)?;
    }
    let (mut tables, uncommitted) = emitter.finish()?;
    db.close()?;
    publish(&**destination, [(REPAIRED_LOG, LOG), (REPAIRED_PAGES, PAGES)])?;
    tables.sort_by(|one, other| one.name.cmp(&other.name));
    let lost = salvaged.lost.iter();
    let mut notes = salvaged.notes;
    notes.extend(harvest.notes);
    Ok(RepairReport {
        pages_checked: salvaged.images,
        entries: tables.iter().map(|table| table.entries).sum(),
        lost_pages: lost.map(|lost| (lost.page.0, lost.what.clone())).collect(),
        tables,
        consistent: salvaged.consistent,
        uncommitted,
        notes,
    })
}
