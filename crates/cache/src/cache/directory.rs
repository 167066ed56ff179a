//! A cache in a file of a directory, locked by `NAME.lock`.
//!
//! Foreign files are refused. A cache of another version is renamed to `NAME.aside`, `NAME.aside2`
//! and so on up to 9. A cache of another slow device is made anew, unless it has dirty blocks; then
//! it is refused.
//!
//! A new file gets its first bytes before its length, so a crash leaves no long file of zeros. A
//! long file that begins with zeros, such as a disk image, is therefore not a cache.

use std::io;
use std::sync::Arc;

use super::layout::{Header, PAGE_BYTES, Superblock};
use super::{CacheConfig, CacheError, Cached};
use terrace_io::{BlockDevice, Directory, LockError, OpenMode};

const ASIDE_MAX: u32 = 9;

impl Cached {
    /// Opens the cache in the file `name` of `directory`, creating it if needed.
    ///
    /// A cache of another version is renamed to `name.aside`. A cache that is damaged, has other
    /// settings or belongs to another slow device is made anew in the same file.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use terrace_cache::{CacheConfig, CacheError, Cached};
    /// use terrace_io::{MemoryDevice, MemoryDirectory};
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
    /// As [`Cached::open`]. [`CacheError::Busy`] when another cache, in any process, has the file.
    /// [`CacheError::Directory`] when the file cannot be made, or nine others have been set aside.
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
            // Before a lock file is created beside a foreign file.
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

    /// Durably reserves an empty file for a cache; returns whether it was empty.
    ///
    /// Existing caches and their remains stay unchanged. [`Cached::open_in`] calls this; other
    /// owners of cache files must do so themselves.
    ///
    /// # Errors
    /// [`CacheError::Foreign`] when the file has other content. [`CacheError::Directory`] when an
    /// empty file cannot be written. An unreadable file is no error, because the cache works
    /// without it.
    pub fn claim(file: &dyn BlockDevice) -> Result<bool, CacheError> {
        if !is_unclaimed(file)? {
            return Ok(false);
        }
        let failed = |source| CacheError::Directory { file: file.name().to_owned(), source };
        Superblock::reserve(file).map(|()| true).map_err(failed)
    }
}

/// Whether a file is empty; refuses one that is neither empty nor a cache.
fn is_unclaimed(file: &dyn BlockDevice) -> Result<bool, CacheError> {
    match Superblock::read(file) {
        Ok(Header::Blank) if file.len() <= 2 * PAGE_BYTES as u64 => Ok(true),
        // Only the first pages were read.
        Ok(Header::Blank | Header::Foreign) => Err(CacheError::Foreign { device: file.name().to_owned() }),
        _ => Ok(false),
    }
}

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

/// Why a file must be set aside, if it must.
///
/// Refuses a cache of another slow device with dirty blocks. [`Cached::open`] handles unreadable
/// files, and makes all others anew.
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
        // `claim` refuses files that are not caches.
        Header::Foreign | Header::Blank | Header::Reserved | Header::Damaged | Header::Whole(_) => None,
    })
}
