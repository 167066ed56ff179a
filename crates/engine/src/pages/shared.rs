//! What the handles and guards of an allocator share, and the names of pages.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;

use super::file::PageFile;
use super::words::{PageWords, Refused};
use crate::error::{Error, Result};
use crate::ids::{PageId, SizeClass};
use crate::maintenance::Maintenance;
use crate::pool::{Mode, PINS_MAX, Pool, Retry};
use crate::store::page;

/// The name of an allocator's page.
///
/// It has 16 bytes and is unique within the process: a reused page id gets a new name. Names of
/// freed pages, or of another allocator's, are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageRef {
    pub(super) id: PageId,
    pub(super) number: u64,
}

impl PageRef {
    /// Its id: size class and index. Ids are reused.
    pub fn id(self) -> PageId {
        self.id
    }

    /// Bytes it takes.
    pub fn page_bytes(self) -> usize {
        self.id.page_bytes()
    }

    /// Usable bytes: all but a header of 24.
    pub fn capacity(self) -> usize {
        self.id.page_bytes() - page::HEADER_BYTES
    }

    pub(super) fn missing(self) -> Error {
        Error::PageNotFound { page: self.id.0 }
    }

    pub(super) fn refused(self, refused: Refused) -> Error {
        match refused {
            Refused::Missing => self.missing(),
            Refused::Crowded => Error::TooManyGuards { page: self.id.0, max: PINS_MAX },
        }
    }

    pub(super) fn stopped(self, stop: Retry) -> Error {
        match stop {
            Retry::Fail(error) => error,
            Retry::Missing(_) | Retry::Restart => self.missing(),
        }
    }
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) pool: Arc<Pool>,
    maintenance: Arc<Maintenance>,
    pub(super) words: PageWords,
    /// Allowed page classes. The pool may have one more, for its tables.
    pub(super) classes: Vec<SizeClass>,
    pub(super) pages: AtomicU64,
    pub(super) dram: u64,
    pub(super) log_bytes: u64,
    pub(super) round_state: Option<JoinHandle<()>>,
    process: u32,
    /// Dropped last: removes the file once nothing writes to it.
    _file: PageFile,
}

impl Shared {
    pub(super) fn start(
        maintenance: Arc<Maintenance>,
        words: PageWords,
        classes: Vec<SizeClass>,
        file: PageFile,
        dram: u64,
        log_bytes: u64,
        mode: Mode,
    ) -> Result<Shared> {
        let pool = Arc::clone(&maintenance.pool);
        let round_state = match mode {
            Mode::Inline => None,
            Mode::Background => {
                let maintenance = Arc::clone(&maintenance);
                let builder = std::thread::Builder::new().name("terrace-pages".to_owned());
                let spawned = builder.spawn(move || maintenance.run_maintenance());
                Some(spawned.map_err(|source| Error::io("start a thread", "terrace-pages", None, source))?)
            }
        };
        let process = std::process::id();
        let pages = AtomicU64::new(0);
        Ok(Shared {
            pool,
            maintenance,
            words,
            classes,
            pages,
            dram,
            log_bytes,
            round_state,
            process,
            _file: file,
        })
    }

    /// Frees the page of an exclusive guard that has unpinned it.
    pub(super) fn freed(&self, page: PageRef) {
        self.pages.fetch_sub(1, Relaxed);
        self.pool.free_unlogged(page.id);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // A forked child has neither the thread nor the file.
        if self.process == std::process::id()
            && let Some(round_state) = self.round_state.take()
        {
            self.pool.wal().close("the allocator has been dropped");
            self.maintenance.stop_maintenance();
            let _ = round_state.join();
        }
    }
}
