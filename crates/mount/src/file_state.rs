//! What the cache knows of one file, and the rules by which it is believed.
//!
//! ```text
//!               stamp differs            quiet time is over
//!   trusted  ---------------->  young  ----------------------->  trusted
//!      |  begin                            (the stamp is the same)
//!      v
//!   being written  -- last finish: new stamp -->  trusted
//! ```
//!
//! While changes through the mount are under way, the stamp moves and proves nothing. A change from
//! outside at that very moment goes unnoticed; docs/mount.md says so.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use crate::extents::Extents;
use crate::links::Links;
use crate::relations::{Log, Part};
use crate::slow_calls::AbortOnPanic;
use crate::stamp::{FileId, Stamp};

/// The state of a file, in its node.
#[derive(Debug)]
pub(crate) struct FileState {
    pub id: FileId,
    pub links: Arc<Links>,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
pub(crate) struct Inner {
    /// The relation of a file with extents, whose number it holds.
    pub part: Option<Part>,
    /// Directories that had been renamed when that was found.
    pub directory_renames: u64,
    /// Whether the map was asked for the file.
    pub is_known: bool,
    /// The stamp to which the blocks belong.
    pub stamp: Option<Stamp>,
    /// Since when it is known to be the file's.
    pub stamped: Option<Instant>,
    /// A change from outside may last until then.
    pub young_until: Option<Instant>,
    /// When that began.
    pub young_since: Option<Instant>,
    /// A sync of the file failed: the kernel may show bytes that the disk does not have.
    pub is_in_doubt: bool,
    /// A log of which no block is cached. The kernel may read and write it by itself, or did:
    /// mappings of programs may outlive their open files, but not the kernel's knowledge.
    pub left: Option<Log>,
    /// Changes through the mount that are under way.
    pub writers: u32,
    pub extents: Extents,
    /// The record in the map.
    pub slot: Option<u32>,
    /// The record in the map is up to date.
    pub is_recorded: bool,
}

/// A change through the mount that is under way.
#[derive(Debug)]
pub(crate) struct Change {
    pub _guard: AbortOnPanic,
    /// The extents that the change saw.
    pub seen: Extents,
    /// Whether blocks may be cached.
    pub is_trusted: bool,
    /// The relation of the file.
    pub part: Option<Part>,
}

impl Inner {
    /// The file has this stamp now, and the blocks belong to it.
    pub fn take_stamp(&mut self, stamp: Stamp) {
        (self.stamp, self.stamped) = (Some(stamp), Some(Instant::now()));
    }

    /// For how long the file has had its stamp, at least.
    pub fn watched(&self) -> Duration {
        self.stamped.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

impl FileState {
    pub fn new(id: FileId, links: Arc<Links>) -> Arc<FileState> {
        Arc::new(FileState { id, links, inner: Mutex::default() })
    }

    /// Relative to the root, by the latest name that was looked up or renamed and not removed.
    pub fn path(&self) -> PathBuf {
        self.links.path()
    }

    pub fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }
}
