//! A cache in a file of a directory: locked against other processes, and set aside when it cannot be used.
//!
//! The file is locked by `NAME.lock` beside it. A file that is not a cache is refused and left as it is: its name was mistyped. A cache of
//! another version is renamed to `NAME.aside`, `NAME.aside2` and so on up to 9, and a new one is made; where all of these exist the
//! cache is refused, so that nothing is ever written over. A cache of another slow device has nothing that is not there: it is made
//! anew in the same file, so that one file which several devices use in turn takes the room of one. One that has blocks to write back
//! there is refused.
//!
//! A new file gets a cache's first bytes before its length, so a crash leaves no long file of zeros. One that begins with zeros is
//! therefore not a cache either: disk images may begin so.

use std::io;
use std::sync::Arc;

use super::layout::{Header, PAGE_BYTES, Superblock};
use super::{CacheConfig, CacheError, Cached};
use crate::{BlockDevice, Directory, LockError, OpenMode};

/// Files that were set aside beside each other.
const ASIDE_MAX: u32 = 9;

impl Cached {
    /// As [`Cached::open`], with the cache in the file `name` of `directory`, which is made if need be. A cache of another version is
    /// renamed to `name.aside`; a file that is not a cache is refused. A cache that is made anew because it belongs to another slow device, for other
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
    /// [`CacheError::Directory`] when the file cannot be made, or nine others have been set aside;
    /// [`CacheError::Foreign`] when the file is not a cache.
    pub fn open_in(
        slow: Arc<dyn BlockDevice>,
        directory: &dyn Directory,
        name: &str,
        config: CacheConfig,
    ) -> Result<Self, CacheError> {
        config.check()?;
        let failed = |source| CacheError::Directory { file: format!("{}/{name}", directory.name()), source };
        if directory.exists(name).map_err(failed)? {
            // Before there is a lock beside somebody else's file.
            is_unclaimed(&*directory.open(name, OpenMode::Read).map_err(failed)?)?;
        }
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
        if Self::claim(&*fast)? {
            directory.sync().map_err(failed)?;
        }
        let mut cached = Self::open(slow, fast, config)?;
        if let Some(reason) = aside {
            cached.set_aside(reason);
        }
        *cached.lock.lock() = Some(lock);
        Ok(cached)
    }

    /// Says in an empty file, durably, that it is to become a cache. Says whether that was to be done: a cache, or what has become of one,
    /// stays as it is. For owners that keep their caches in files of their own; [`Cached::open_in`] does it.
    ///
    /// # Errors
    /// [`CacheError::Foreign`] when the file has something else in it, and [`CacheError::Directory`] when an empty one cannot be
    /// written. A file that cannot be read is none: the cache does without it.
    pub fn claim(file: &dyn BlockDevice) -> Result<bool, CacheError> {
        if !is_unclaimed(file)? {
            return Ok(false);
        }
        let failed = |source| CacheError::Directory { file: file.name().to_owned(), source };
        Superblock::reserve(file).map(|()| true).map_err(failed)
    }
}

/// Whether a file is empty; refuses one that is neither that nor a cache.
fn is_unclaimed(file: &dyn BlockDevice) -> Result<bool, CacheError> {
    match Superblock::read(file) {
        Ok(Header::Blank) if file.len() <= 2 * PAGE_BYTES as u64 => Ok(true),
        // Only the first pages were read.
        Ok(Header::Blank | Header::Foreign) => Err(CacheError::Foreign { device: file.name().to_owned() }),
        _ => Ok(false),
    }
}

/// A name that is not in use for what is set aside.
fn name_aside(directory: &dyn Directory, name: &str) -> io::Result<String> {
    let mut other = format!("{name}.aside");
    for number in 2..=ASIDE_MAX + 1 {
        if !directory.exists(&other)? {
            return Ok(other);
        }
        other = format!("{name}.aside{number}");
    }
    let what = format!("{ASIDE_MAX} files have been set aside beside it; remove those that nobody needs");
    Err(io::Error::new(io::ErrorKind::AlreadyExists, what))
}

/// Why what is in a file is kept apart. What cannot be read is left to the cache, which does without it. A cache of another slow device
/// that has blocks to write back there is not touched; any other is for [`Cached::open`] to make anew.
fn why_set_aside(device: &dyn BlockDevice, config: &CacheConfig) -> Result<Option<String>, CacheError> {
    let Ok(header) = Superblock::read(device) else { return Ok(None) };
    Ok(match header {
        Header::OtherVersion(version) => Some(format!("it is of version {version}")),
        Header::Whole(found) if found.identity != config.identity && found.is_dirty => {
            let reason = "it holds blocks that are yet to be written there".to_owned();
            return Err(CacheError::Incomplete {
                device: format!("another than that of {}", device.name()),
                reason,
            });
        }
        // What is none is refused when it is claimed.
        Header::Foreign | Header::Blank | Header::Reserved | Header::Damaged | Header::Whole(_) => None,
    })
}
