//! Directories of peers' files, and statistics from outside the engine.

use std::fmt::Display;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tempfile::TempDir;

use terrace_common::failure::{Failure, Outcome};
use terrace_common::store::{Counters, Settings};

/// Memory of a peer without a budget: Terrace's largest default.
pub const BUDGET_DEFAULT: u64 = 1 << 30;

/// Default location of files: a file system in memory, if any.
const MEMORY_FILES: &str = "/dev/shm";

/// Directory for in-memory databases, and its kind.
pub fn memory_files() -> (PathBuf, &'static str) {
    match Path::new(MEMORY_FILES) {
        path if path.is_dir() => (path.to_owned(), "in memory (tmpfs)"),
        _ => (std::env::temp_dir(), "temporary, on a disk: there is no tmpfs here"),
    }
}

/// The directory of an open database. A temporary one is removed with the last handle.
#[derive(Clone)]
pub(super) struct Folder {
    pub(super) path: PathBuf,
    pub(super) kind: &'static str,
    _removed: Option<Arc<TempDir>>,
}

impl Folder {
    pub(super) fn of(settings: &Settings) -> Outcome<Folder> {
        let (near, kind) = memory_files();
        if let Some(path) = &settings.store {
            return Folder::named(path, "as given", settings.create);
        }
        if let Some(path) = &settings.scratch {
            return Folder::named(path, kind, true);
        }
        let made = tempfile::Builder::new().prefix("terrace-peer-").tempdir_in(&near);
        let made = made.map_err(|error| Failure::file("making a directory in", &near, error))?;
        Ok(Folder { path: made.path().to_owned(), kind, _removed: Some(Arc::new(made)) })
    }

    fn named(path: &Path, kind: &'static str, create: bool) -> Outcome<Folder> {
        if create {
            fs::create_dir_all(path).map_err(|error| Failure::file("making the directory", path, error))?;
        } else if !path.is_dir() {
            return Err(Failure::Work(format!(
                "there is no database at {}",
                terrace_common::escape::path(path)
            )));
        }
        Ok(Folder { path: path.to_owned(), kind, _removed: None })
    }

    /// Statistics from outside the engine: disk space, this process's device reads, and everyone's
    /// writes to the files' device. The kernel's per-process write count is useless here: it counts
    /// whole folios when pages become dirty.
    pub(super) fn counters(&self, budget_bytes: u64) -> Counters {
        let io = fs::read_to_string("/proc/self/io").unwrap_or_default();
        let read = io.lines().find_map(|line| line.strip_prefix("read_bytes: ")?.parse().ok());
        Counters {
            budget_bytes,
            store_capacity_bytes: allocated_bytes(&self.path),
            store_read_bytes: read.unwrap_or(0),
            store_written_bytes: written_bytes(&self.path).unwrap_or(0),
            ..Counters::default()
        }
    }
}

/// Bytes written to the block device below `folder` since boot; none for files in memory.
fn written_bytes(folder: &Path) -> Option<u64> {
    let device = fs::metadata(folder).ok()?.dev();
    let stat = format!("/sys/dev/block/{}:{}/stat", libc::major(device), libc::minor(device));
    // Reads, reads merged, sectors read, time; writes, writes merged, sectors written. Sectors are
    // always 512 bytes here.
    let sectors: u64 = fs::read_to_string(stat).ok()?.split_whitespace().nth(6)?.parse().ok()?;
    Some(sectors * 512)
}

fn allocated_bytes(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let size = |entry: fs::DirEntry| match entry.metadata() {
        Ok(found) if found.is_dir() => allocated_bytes(&entry.path()),
        Ok(found) => found.blocks() * 512,
        Err(_) => 0,
    };
    entries.flatten().map(size).sum()
}

/// Converts an engine's error to a failure that names the engine.
pub(super) fn failed<E: Display>(engine: &'static str) -> impl Fn(E) -> Failure {
    move |error| Failure::Work(format!("{engine}: {error}"))
}

/// The memory budget of a peer.
pub(super) fn budget(settings: &Settings) -> u64 {
    settings.tiers.memory.dram.unwrap_or(BUDGET_DEFAULT)
}
