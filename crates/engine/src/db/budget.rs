//! The budget, and changing it while the database is open. What it is made of is in `config.rs`.

use parking_lot::Mutex;

use super::core::Core;
use super::open::pages_in;
use crate::config::Split;
use crate::error::{Error, Result};
use crate::ids::SizeClass;

/// The budget as it is now.
#[derive(Debug)]
pub(crate) struct Budget {
    now: Mutex<Split>,
    /// Held by who changes it.
    changing: Mutex<()>,
}

impl Budget {
    pub(crate) fn new(split: Split) -> Self {
        Budget { now: Mutex::new(split), changing: Mutex::new(()) }
    }

    /// How it is split.
    pub(crate) fn split(&self) -> Split {
        *self.now.lock()
    }
}

impl Core {
    /// Makes pages of `class` possible, for a table that is to have such pages. The caller holds no latch.
    ///
    /// # Errors
    /// [`Error::Config`] if the budget or its parts do not suffice for that, with what would do; otherwise those of
    /// [`Core::set_dram`].
    pub(crate) fn use_class(&self, class: SizeClass) -> Result<()> {
        if !self.pool.uses(class) {
            let log_capacity = self.pool.wal().stats().capacity;
            self.budget.split().check_class(class, log_capacity, self.pool.segment_bytes())?;
        }
        self.pool.use_class(class)
    }

    /// Whether long values of a table with pages of class `own` can have pages up to class `most`. They come into use with the
    /// first value that needs them.
    ///
    /// # Errors
    /// [`Error::Config`] if the budget or its parts do not suffice for that, with what would do.
    pub(crate) fn check_value_pages(&self, own: SizeClass, most: SizeClass) -> Result<()> {
        let (split, log_capacity) = (self.budget.split(), self.pool.wal().stats().capacity);
        for class in SizeClass::all().filter(|&class| own < class && class <= most) {
            split.check_class(class, log_capacity, self.pool.segment_bytes())?;
        }
        let sizes = self.pool.page_sizes().with_values(own, most);
        split.resized(split.total, split.versions, sizes, self.file_pages()).map(drop)
    }

    /// Pages that the page file has room for, for the budget.
    fn file_pages(&self) -> u64 {
        let (file_bytes, page_bytes) = (self.pool.footprint().file_bytes, self.pool.page_bytes() as u64);
        pages_in(file_bytes, page_bytes, self.pool.page_ids_used())
    }

    /// Makes it a budget of `total` bytes, or changes nothing.
    pub(crate) fn set_dram(&self, total: u64) -> Result<()> {
        self.check()?;
        let _turn = self.budget.changing.lock();
        let most = self.settings.dram_max;
        if total > most {
            return Err(Error::Config(format!(
                "dram of {total} bytes; the database was opened with a dram_max of {most}"
            )));
        }
        let old = self.budget.split();
        let versions = match self.settings.old_version_bytes_max {
            Some(bytes) => bytes,
            None => Split::versions_share(total).max(self.versions.bytes_max_least() as u64),
        };
        let new = old.resized(total, versions, self.pool.page_sizes(), self.file_pages())?;
        // Frames first: it is they that may not be had, or not be given back.
        self.pool.resize(new.frame_bytes)?;
        self.versions.set_bytes_max(new.versions as usize);
        self.read_memory.set_total(total);
        self.collect();
        *self.budget.now.lock() = new;
        tracing::info!(from = old.total, to = new.total, "the budget was changed");
        Ok(())
    }
}
