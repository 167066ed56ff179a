//! The engines that Terrace is measured against, each behind the same traits as Terrace itself.
//!
//! | module | engine |
//! |---|---|
//! | `redb`, `lmdb`, `sqlite` | B-trees: copy-on-write in a file, copy-on-write in mapped memory, pages and a log |
//! | `fjall`, `rocksdb` | LSM trees; RocksDB only in a build with the feature of that name |
//! | `btreemap` | the standard library's map behind a lock: main memory only, the yardstick for what storing costs |
//! | `raw_frames` | Terrace itself, reading from a copy without a page table; only in a build with that feature |
//! | `overlay` | transactions for the engines that have none of a kind that fits |
//!
//! The rules, the same for all. An operation is a transaction of its own, a read sees the newest commit. Memory, caches and
//! write buffers together are the budget. Durability is mapped to the same class: `sync` survives a power cut, `buffered` may
//! lose the last commits. Everything else is set as the engine's own documentation advises for this use, never worse than that,
//! and every setting that was made is told with the result ([`crate::store::Database::settings`]). Values are
//! incompressible, so nothing compresses.

mod btreemap;
mod fjall;
mod lmdb;
mod overlay;
#[cfg(feature = "raw-frames")]
mod raw_frames;
mod redb;
#[cfg(feature = "rocksdb")]
mod rocksdb;
mod sqlite;

use std::fmt::Display;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tempfile::TempDir;

use crate::failure::{Failure, Outcome};
use crate::store::{Counters, Opener, Settings};

/// The name of the engine of this workspace.
pub const TERRACE: &str = "terrace";

/// Every name that `--engine` and `--compare` know in this build.
pub const NAMES: &[&str] = &[
    TERRACE,
    "redb",
    "fjall",
    "lmdb",
    "sqlite",
    "btreemap",
    #[cfg(feature = "rocksdb")]
    "rocksdb",
    #[cfg(feature = "raw-frames")]
    "raw-frames",
];

/// Memory a peer may use when no budget is given: the most that Terrace would take by itself.
pub const BUDGET_DEFAULT: u64 = 1 << 30;

/// Where files lie when nobody said where: a file system in memory, if there is one.
const MEMORY_FILES: &str = "/dev/shm";

/// A name on the command line, checked.
pub fn parse(name: &str) -> Result<String, String> {
    let known = NAMES.join(" ");
    match name {
        "rocksdb" | "raw-frames" if !NAMES.contains(&name) => {
            Err(format!("this build has no {name}, build with --features {name}; engines here: {known}"))
        }
        name if NAMES.contains(&name) => Ok(name.to_owned()),
        name => Err(format!("there is no engine {name:?}; use one of {known}")),
    }
}

/// The opener of a peer; none for Terrace, and for a name that [`parse`] would not pass.
pub fn opener(name: &str) -> Option<Box<dyn Opener>> {
    Some(match name {
        "redb" => Box::new(redb::Engine),
        "fjall" => Box::new(fjall::Engine),
        "lmdb" => Box::new(lmdb::Engine),
        "sqlite" => Box::new(sqlite::Engine),
        "btreemap" => Box::new(btreemap::Engine),
        #[cfg(feature = "rocksdb")]
        "rocksdb" => Box::new(rocksdb::Engine),
        #[cfg(feature = "raw-frames")]
        "raw-frames" => Box::new(raw_frames::Engine),
        _ => return None,
    })
}

/// Where databases for main memory only lie, and the kind of files they are there.
pub fn memory_files() -> (PathBuf, &'static str) {
    match Path::new(MEMORY_FILES) {
        path if path.is_dir() => (path.to_owned(), "in memory (tmpfs)"),
        _ => (std::env::temp_dir(), "temporary, on a disk: there is no tmpfs here"),
    }
}

/// The directory of one open database. One that nobody named is removed with the last handle.
#[derive(Clone)]
struct Place {
    path: PathBuf,
    kind: &'static str,
    _removed: Option<Arc<TempDir>>,
}

impl Place {
    fn of(settings: &Settings) -> Outcome<Place> {
        let (near, kind) = memory_files();
        if let Some(path) = &settings.store {
            return Place::named(path, "as given", settings.create);
        }
        if let Some(path) = &settings.scratch {
            return Place::named(path, kind, true);
        }
        let made = tempfile::Builder::new().prefix("terrace-peer-").tempdir_in(&near);
        let made = made.map_err(|error| Failure::file("making a directory in", &near, error))?;
        Ok(Place { path: made.path().to_owned(), kind, _removed: Some(Arc::new(made)) })
    }

    fn named(path: &Path, kind: &'static str, create: bool) -> Outcome<Place> {
        if create {
            fs::create_dir_all(path).map_err(|error| Failure::file("making the directory", path, error))?;
        } else if !path.is_dir() {
            return Err(Failure::Work(format!("there is no database at {}", crate::escape::path(path))));
        }
        Ok(Place { path: path.to_owned(), kind, _removed: None })
    }

    /// What can be counted from outside the engine: room on the disk, what this process read from devices, and what anybody
    /// wrote to the device that has the files. The kernel counts a process's writes when it makes pages dirty, by whole
    /// folios, which says little about what is written.
    fn counters(&self, budget_bytes: u64) -> Counters {
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

/// Bytes written to the block device that has the files below `folder`, since it is there; none for files in memory.
fn written_bytes(folder: &Path) -> Option<u64> {
    let device = fs::metadata(folder).ok()?.dev();
    let stat = format!("/sys/dev/block/{}:{}/stat", libc::major(device), libc::minor(device));
    // Reads, reads merged, sectors read, time; writes, writes merged, sectors written. A sector has 512 bytes here always.
    let sectors: u64 = fs::read_to_string(stat).ok()?.split_whitespace().nth(6)?.parse().ok()?;
    Some(sectors * 512)
}

/// Bytes the files below `folder` have on their disk.
fn allocated_bytes(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let size = |entry: fs::DirEntry| match entry.metadata() {
        Ok(found) if found.is_dir() => allocated_bytes(&entry.path()),
        Ok(found) => found.blocks() * 512,
        Err(_) => 0,
    };
    entries.flatten().map(size).sum()
}

/// Turns an engine's error into a failure that names the engine.
fn failed<E: Display>(engine: &'static str) -> impl Fn(E) -> Failure {
    move |error| Failure::Work(format!("{engine}: {error}"))
}

/// The budget of a peer.
fn budget(settings: &Settings) -> u64 {
    settings.dram_bytes.unwrap_or(BUDGET_DEFAULT)
}

#[cfg(test)]
mod tests;
