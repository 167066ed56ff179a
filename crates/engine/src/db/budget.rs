//! The budget, and its changes at run time.

use parking_lot::Mutex;

use crate::config::{Split, log_bytes_min};
use crate::error::{Error, Result};
use crate::ids::SizeClass;
use crate::index::node::leaf::max_record;
use crate::pool::Pool;
use crate::pool::inspect::Footprint;
use crate::store::mapping_word::BLOCK_BYTES;
use crate::txn::mvcc::Mvcc;

#[derive(Debug)]
pub(crate) struct Budget {
    now: Mutex<Split>,
    changing: Mutex<()>,
}

impl Budget {
    pub(crate) fn new(split: Split) -> Self {
        Budget { now: Mutex::new(split), changing: Mutex::new(()) }
    }

    pub(crate) fn split(&self) -> Split {
        *self.now.lock()
    }
}

impl Budget {
    /// Prepares for pages of `class`, for a new table. The caller holds no latch.
    ///
    /// # Errors
    /// [`Error::Config`] with a sufficient setting if the budget or its parts are too small, and
    /// those of [`Budget::set`].
    pub(crate) fn use_class(&self, pool: &Pool, class: SizeClass) -> Result<()> {
        if !pool.uses(class) {
            let log_capacity = pool.wal().capacity_max();
            self.split().check_class(class, log_capacity, pool.segment_bytes())?;
            pool.ensure_log_capacity(log_bytes_min(class))?;
        }
        pool.resizer().use_class(class)
    }

    /// Checks that long values of a table of class `own` can have pages up to class `most`.
    ///
    /// The first value that needs such pages puts them into use.
    ///
    /// # Errors
    /// [`Error::Config`] with a sufficient setting if the budget or its parts are too small.
    pub(crate) fn check_value_pages(&self, pool: &Pool, own: SizeClass, most: SizeClass) -> Result<()> {
        let (split, log_capacity) = (self.split(), pool.wal().capacity_max());
        for class in SizeClass::all().filter(|&class| own < class && class <= most) {
            split.check_class(class, log_capacity, pool.segment_bytes())?;
        }
        let sizes = pool.page_sizes().with_values(own, most);
        split.resized(split.total, split.versions, sizes, Self::file_pages(pool)).map(drop)
    }

    fn file_pages(pool: &Pool) -> u64 {
        let (file_bytes, page_bytes) = (Footprint::of(pool).file_bytes, pool.page_bytes() as u64);
        pages_in(file_bytes, page_bytes, pool.page_ids_used())
    }

    /// Sets a budget of `total` bytes, or changes nothing.
    pub(crate) fn set(&self, mvcc: &Mvcc, total: u64) -> Result<()> {
        mvcc.check()?;
        let pool = &mvcc.pool;
        let _turn = self.changing.lock();
        let most = mvcc.settings.dram_max;
        if total > most {
            return Err(Error::Config(format!(
                "dram of {total} bytes; the database was opened with a dram_max of {most}"
            )));
        }
        let old = self.split();
        let versions = match mvcc.settings.old_version_bytes_max {
            Some(bytes) => bytes,
            None => Split::versions_share(total).max(mvcc.versions.bytes_max_least() as u64),
        };
        let new = old.resized(total, versions, pool.page_sizes(), Self::file_pages(pool))?;
        // Frames first: only they may be refused.
        pool.resizer().resize(new.frame_bytes)?;
        mvcc.versions.set_bytes_max(new.versions as usize);
        mvcc.read_memory.set_total(total);
        mvcc.collect();
        *self.now.lock() = new;
        tracing::info!(from = old.total, to = new.total, "the budget was changed");
        Ok(())
    }
}

/// Estimate of pages in a file of `file_bytes` bytes.
///
/// Uncompressed pages, or the page ids ever used if they fit when compressed.
pub(crate) fn pages_in(file_bytes: u64, page_bytes: u64, page_ids_used: u64) -> u64 {
    (file_bytes / page_bytes).max(page_ids_used.min(file_bytes / BLOCK_BYTES as u64))
}

/// Address space for old versions, if the budget may grow to `dram_max` bytes.
pub(super) fn old_version_bytes_reserved(split: Split, dram_max: u64, log_bytes: u64) -> u64 {
    let entry_bytes_max = max_record(split.largest_node().page_bytes()) as u64;
    let in_flight = log_bytes + split.clock_window as u64 * entry_bytes_max;
    2 * (split.versions.max(Split::versions_share(dram_max)) + in_flight)
}
