//! Repair: a new database of whatever is whole in the files of a damaged one, which are only read.
//!
//! `buffer/salvage.rs` makes a pool of the pages that are left, with redo and undo where the log is whole. Here their
//! entries are read, table by table (`walk.rs`), and put into a database that is made next to that pool, by ordinary
//! writes. What could not be read is told: pages, ranges of keys, keys of long values.
//!
//! Nothing is given that was not committed for its key. Where it cannot be known which table a leaf belonged to,
//! its entries go to a table of their own, named by a page.
//!
//! | name in the destination            | what it is                                                         |
//! |------------------------------------|--------------------------------------------------------------------|
//! | `pages.salvage`, `log.salvage`     | the pool, removed in the end                                       |
//! | `pages.repaired`, `log.repaired`   | the new database until it is complete                              |

mod emit;
mod names;
mod walk;

use std::path::Path;
use std::sync::Arc;

use terrace_block::{Directory, OpenMode, Sharing};

use self::emit::Emitter;
use self::names::Renamed;
use self::walk::Harvest;
use super::backup::{create, new_directory, publish, refuse_used};
use super::open::{LOCK, LOG, PAGES, exists, hold, open_directory, within};
use super::undo::KeyUndo;
use crate::buffer::salvage::{Means, Remains, Salvaged};
use crate::buffer::{Files, Mode, NodeOptions, PAGES_MAX, PoolOptions, RecordCache};
use crate::config::{Builder, FRAMES_MIN, PageSizes, Split};
use crate::error::{Error, Result};
use crate::ids::SizeClass;
use crate::index::{NodeRedo, check_page};

const SALVAGE_PAGES: &str = "pages.salvage";
const SALVAGE_LOG: &str = "log.salvage";
const REPAIRED_PAGES: &str = "pages.repaired";
const REPAIRED_LOG: &str = "log.repaired";
/// Where there is one of these and no database, a repair was never finished.
pub(super) const UNFINISHED_REPAIR: [&str; 4] = [SALVAGE_PAGES, SALVAGE_LOG, REPAIRED_PAGES, REPAIRED_LOG];

/// What [`Builder::repair`] has saved, and what it could not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RepairReport {
    /// Images of pages that were looked at.
    pub pages_checked: u64,
    /// Entries in the new database.
    pub entries: u64,
    /// Pages that should be there and are not whole, with what is wrong with them.
    pub lost_pages: Vec<(u64, String)>,
    /// The tables of the new database, sorted by name.
    pub tables: Vec<RepairedTable>,
    /// Whether page table and log were whole, so that the entries saved are those after the last commit. Otherwise
    /// values may be older ones of their keys, deleted keys may be back, and of a transaction that was committing
    /// when the database stopped there may be a part.
    pub consistent: bool,
    /// Entries left out because the transaction that wrote them had not committed, and could not be undone.
    pub uncommitted: u64,
    /// What was wrong with superblock, page table and log.
    pub notes: Vec<String>,
}

/// One table of a repaired database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RepairedTable {
    /// Its name in the new database. A table whose name is lost is called `table-` and its root page, entries that
    /// may belong to any table are in one called `page-` and a page of theirs.
    pub name: String,
    /// Entries saved.
    pub entries: u64,
    /// Ranges of keys that are lost, or of which some are: the first key included, the second not; none is the end
    /// of the table.
    pub lost_ranges: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    /// Keys whose values are lost though their leaves are not: long values that are not whole, and what was there before
    /// a change that was never committed and cannot be undone.
    pub lost_values: Vec<Vec<u8>>,
}

impl RepairReport {
    /// Whether everything was saved.
    pub fn is_complete(&self) -> bool {
        let whole = |table: &RepairedTable| table.lost_ranges.is_empty() && table.lost_values.is_empty();
        self.consistent
            && self.lost_pages.is_empty()
            && self.uncommitted == 0
            && self.notes.is_empty()
            && self.tables.iter().all(whole)
    }
}

impl Builder {
    /// Makes a new database in the directory `destination`, which is empty or does not exist, of what is whole in the
    /// damaged one in `source`, and says what is lost. The source is only read; nobody may have it
    /// open for writing. The memory is this builder's; beside it some hundred bytes for each page. Until it is done the
    /// destination takes as much space again as the source.
    ///
    /// # Errors
    /// [`Error::NotADatabase`] if there is nothing to be saved, [`Error::Busy`], [`Error::Version`], [`Error::Io`],
    /// [`Error::Full`], [`Error::Config`], [`Error::Memory`]. Nothing that would be taken for a database is left then.
    ///
    /// ```
    /// use terrace::Db;
    ///
    /// let place = tempfile::tempdir().unwrap();
    /// let db = Db::builder().dram(4 << 20).open(place.path().join("db"))?;
    /// db.create_table("t")?.put("key", "value")?;
    /// db.close()?;
    ///
    /// let report = Db::builder().dram(8 << 20).repair(place.path().join("db"), place.path().join("new"))?;
    /// assert!(report.is_complete() && report.entries == 1);
    /// # Ok::<(), terrace::Error>(())
    /// ```
    pub fn repair(self, source: impl AsRef<Path>, destination: impl AsRef<Path>) -> Result<RepairReport> {
        let source = open_directory(source.as_ref(), false)?;
        let (directory, made) = new_directory(destination.as_ref())?;
        let directory: Arc<dyn Directory> = Arc::new(directory);
        self.repair_in(&*source, Arc::clone(&directory)).inspect_err(|_| {
            if made {
                // Best effort; the lock's file is the last thing in it.
                let _ = directory.remove(LOCK);
                let _ = std::fs::remove_dir(destination.as_ref());
            }
        })
    }

    /// As [`Builder::repair`], from and to directories of any kind.
    ///
    /// # Errors
    /// As [`Builder::repair`].
    pub fn repair_in(self, source: &dyn Directory, destination: Arc<dyn Directory>) -> Result<RepairReport> {
        if !exists(source, PAGES)? {
            return Err(Error::NotADatabase { path: source.name(), what: format!("it holds no {PAGES}") });
        }
        refuse_used(&*destination)?;
        // With others that read; who writes is kept out, and keeps out.
        let _readers = hold(source, Sharing::Shared)?;
        let dram = self.dram_bytes()?;
        let repaired = repair(self, source, &destination).map_err(|error| {
            error.of_part(format_args!(
                "of {dram} bytes of dram, a repair has half for each of the two databases"
            ))
        });
        // The page file's name goes last: it is what says that the log is a remainder.
        let remains = [SALVAGE_LOG, SALVAGE_PAGES, REPAIRED_LOG, REPAIRED_PAGES];
        for file in remains.iter().take(if repaired.is_ok() { 2 } else { 4 }) {
            let _ = destination.remove(file);
        }
        repaired
    }
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
    // Half of the memory for each of the two.
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
    let options = |sizes: PageSizes, file_pages: u64| {
        let backend = builder.backend_or_default()?;
        let split = Split::new(share, None, RecordCache::Off, backend, sizes, file_pages)?;
        Ok(PoolOptions {
            frame_bytes: split.frame_bytes,
            frame_bytes_max: share,
            frames_floor: FRAMES_MIN,
            log_buffer_bytes: split.log_buffer as usize,
            staging_bytes: split.staging as usize,
            batch_bytes: split.batches as usize,
            batch_least: split.batch_least as usize,
            pages_max: PAGES_MAX,
            store_bytes_max: u64::MAX,
            record_cache: RecordCache::Off,
            backend,
            replacement: builder.replacement,
            middle: None,
            middle_memory: None,
            nodes: NodeOptions::default(),
            time: terrace_block::Time::wall(),
            mode: Mode::Inline,
            in_memory: false,
        })
    };
    let means =
        Means { check: check_page, redo: &NodeRedo, undo: &KeyUndo, scratch: &scratch, options: &options };
    let salvaged = Salvaged::of(&remains, &means)?;
    let page_bytes = salvaged.pool.page_bytes() as u64;
    let harvest = Harvest::of(&salvaged)?;

    let names = [(PAGES, REPAIRED_PAGES), (LOG, REPAIRED_LOG)];
    let renamed = Renamed::new(Arc::clone(destination), names, &UNFINISHED_REPAIR);
    let page_size = builder.page_size.unwrap_or(page_bytes);
    // Tables are made with pages of the size they had.
    let largest = salvaged.pool.page_sizes().largest_used().min(SizeClass::LARGEST_NODE).page_bytes() as u64;
    let largest = largest.max(page_size).max(builder.page_size_max.unwrap_or(page_size));
    // And so are their long values.
    let values = harvest.tables.iter().filter_map(|table| table.values).max();
    let values =
        values.map_or(0, |class| class.page_bytes() as u64).max(builder.value_page_size_max.unwrap_or(0));
    let builder =
        builder.directory(Arc::new(renamed)).dram(share).page_size(page_size).page_size_max(largest);
    let builder = if values > largest { builder.value_page_size_max(values) } else { builder };
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
