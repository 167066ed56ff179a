//! The budget, and changing it while the database is open. What it is made of is in `config.rs`.

use parking_lot::Mutex;

use super::core::Core;
use super::open::pages_in;
use crate::config::Split;
use crate::error::{Error, Result};

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
        let (old, page_bytes) = (self.budget.split(), self.pool.page_bytes() as u64);
        let versions = match self.settings.old_version_bytes_max {
            Some(bytes) => bytes,
            None => Split::versions_share(total).max(self.versions.bytes_max_least() as u64),
        };
        let file_bytes = self.pool.footprint().file_bytes;
        let file_pages = pages_in(file_bytes, page_bytes, self.pool.page_ids_used());
        let new = old.resized(total, versions, page_bytes, file_pages)?;
        // Frames first: it is they that may not be had, or not be given back.
        self.pool.resize(new.frames)?;
        self.versions.set_bytes_max(new.versions as usize);
        self.collect();
        *self.budget.now.lock() = new;
        tracing::info!(from = old.total, to = new.total, frames = new.frames, "the budget was changed");
        Ok(())
    }
}
