//! A cache in a file of a directory: locked against other processes, and set aside when it cannot be used.
//!
//! The file is locked by `NAME.lock` beside it. A file that is not a cache, or is of another version, is renamed to `NAME.aside`,
//! `NAME.aside2` and so on up to 9, which is written over, and a new one is made: so a name that was mistyped
//! costs nobody his file. A cache of another slow device has nothing that is not there: it is made anew in the same file, so that one file
//! which several devices use in turn takes the room of one. One that has blocks to write back there is refused.

use std::io;
use std::sync::Arc;

use super::layout::{Header, Superblock};
use super::{CacheConfig, CacheError, Cached};
use crate::{BlockDevice, Directory, LockError, OpenMode};

/// Files that were set aside beside each other.
const ASIDE_MAX: u32 = 9;

impl Cached {
    /// As [`Cached::open`], with the cache in the file `name` of `directory`, which is made if need be. What is no cache, or one
    /// of another version, is renamed to `name.aside`. A cache that is made anew because it belongs to another slow device, for other
    /// settings, or because it was damaged, is made in the same file.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use terrace_block::{CacheConfig, CacheError, Cached, MemoryDevice, MemoryDirectory};
    ///
    /// let slow = Arc::new(MemoryDevice::new("database", 1 << 20));
    /// let directory = MemoryDirectory::new();
    /// let cached = Cached::open_in(slow.clone(), &directory, "cache", CacheConfig::new(64))?;
    /// let second = Cached::open_in(slow, &directory, "cache", CacheConfig::new(64));
    /// assert!(matches!(second, Err(CacheError::Busy { .. })));
    /// cached.close()?;
    /// # Ok::<(), CacheError>(())
    /// ```
    ///
    /// # Errors
    /// As [`Cached::open`]; [`CacheError::Busy`] when another cache, in this process or another, has the file;
    /// [`CacheError::Directory`] when the file cannot be made.
    pub fn open_in(
        slow: Arc<dyn BlockDevice>,
        directory: &dyn Directory,
        name: &str,
        config: CacheConfig,
    ) -> Result<Self, CacheError> {
        config.check()?;
        let failed = |source| CacheError::Directory { file: format!("{}/{name}", directory.name()), source };
        let lock = directory.lock(&format!("{name}.lock")).map_err(|error| match error {
            LockError::Busy { owner_process } => CacheError::Busy { file: name.to_owned(), owner_process },
            LockError::Io(error) => failed(error),
        })?;
        let exists = directory.exists(name).map_err(failed)?;
        let mut aside = None;
        if exists {
            let device = directory.open(name, OpenMode::Read).map_err(failed)?;
            aside = why_set_aside(&*device, &config)?;
        }
        if let Some(reason) = &aside {
            let other = name_aside(directory, name).map_err(failed)?;
            tracing::warn!(file = name, aside = other, reason, "a file cannot be used as the cache");
            directory.rename(name, &other).map_err(failed)?;
        }
        let mode = if exists && aside.is_none() { OpenMode::Write } else { OpenMode::CreateNew };
        let fast = directory.open(name, mode).map_err(failed)?;
        if mode == OpenMode::CreateNew {
            directory.sync().map_err(failed)?;
        }
        let mut cached = Self::open(slow, fast, config)?;
        if let Some(reason) = aside {
            cached.set_aside(reason);
        }
        *cached.lock.lock() = Some(lock);
        Ok(cached)
    }
}

/// A name that is not in use for what is set aside. Only the last one is given twice.
fn name_aside(directory: &dyn Directory, name: &str) -> io::Result<String> {
    let mut other = format!("{name}.aside");
    for number in 2..=ASIDE_MAX {
        if !directory.exists(&other)? {
            break;
        }
        other = format!("{name}.aside{number}");
    }
    Ok(other)
}

/// Why what is in a file is kept apart. What cannot be read is left to the cache, which does without it. A cache of another slow device
/// that has blocks to write back there is not touched; any other is for [`Cached::open`] to make anew.
fn why_set_aside(device: &dyn BlockDevice, config: &CacheConfig) -> Result<Option<String>, CacheError> {
    let Ok(header) = Superblock::read(device) else { return Ok(None) };
    Ok(match header {
        Header::Foreign => Some("it is not a cache".to_owned()),
        Header::OtherVersion(version) => Some(format!("it is of version {version}")),
        Header::Whole(found) if found.identity != config.identity && found.is_dirty => {
            let reason = "it holds blocks that are yet to be written there".to_owned();
            return Err(CacheError::Incomplete {
                device: format!("another than that of {}", device.name()),
                reason,
            });
        }
        Header::Blank | Header::Damaged | Header::Whole(_) => None,
    })
}
