//! Directories: flat sets of named devices.
//!
//! Names are single path components, so a name from a database cannot lead elsewhere. A power cut
//! may undo a creation, removal or rename until [`Directory::sync`] returns, even if the file's
//! content was synced.
//!
//! [`Directory::lock`] makes one process the owner, named in the lock file.
//! [`Directory::lock_existing`] changes nothing, so it works on a read-only directory too. Locks
//! end with their process.

use std::fmt::Debug;
use std::io;
use std::sync::Arc;

use crate::device::{BlockDevice, invalid_input};
use crate::memory::persistent::PersistentMemory;

pub(crate) mod decorated;
pub(crate) mod file;
mod file_lock;
mod locality;
pub(crate) mod memory;
mod persistent;

/// How to open a file.
///
/// ```
/// use terrace_io::{Directory, MemoryDirectory, OpenMode};
///
/// let directory = MemoryDirectory::new();
/// assert!(directory.open("log", OpenMode::Write).is_err(), "must exist");
/// directory.open("log", OpenMode::CreateNew)?;
/// assert!(directory.open("log", OpenMode::CreateNew).is_err(), "must not exist");
/// # std::io::Result::Ok(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// Existing, read-only.
    Read,
    /// Existing, for reading and writing.
    Write,
    /// Not existing, for reading and writing; created empty.
    CreateNew,
}

impl OpenMode {
    pub(crate) fn is_writable(self) -> bool {
        self != OpenMode::Read
    }
}

/// The kinds of a lock.
///
/// ```
/// use terrace_io::{Directory, MemoryDirectory, OpenMode, Sharing};
///
/// let directory = MemoryDirectory::new();
/// directory.open("pages", OpenMode::CreateNew)?;
/// let one = directory.lock_existing("pages", Sharing::Shared).unwrap();
/// let other = directory.lock_existing("pages", Sharing::Shared).unwrap();
/// assert!(directory.lock_existing("pages", Sharing::Alone).is_err());
/// drop((one, other));
/// assert!(directory.lock_existing("pages", Sharing::Alone).is_ok());
/// # std::io::Result::Ok(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Excludes only [`Sharing::Alone`].
    Shared,
    /// Excludes all others.
    Alone,
}

/// Why a lock was not granted.
///
/// ```
/// use terrace_io::{Directory, LockError, MemoryDirectory};
///
/// let directory = MemoryDirectory::new();
/// let held = directory.lock("lock").unwrap();
/// assert!(matches!(directory.lock("lock"), Err(LockError::Busy { .. })));
/// drop(held);
/// assert!(directory.lock("lock").is_ok());
/// ```
#[derive(Debug)]
pub enum LockError {
    /// Another process, or another handle in this one, holds it.
    Busy {
        /// The owner's process id, if there is one owner that has stored it.
        owner_process: Option<u32>,
    },
    /// The lock file could not be opened or locked.
    Io(io::Error),
}

impl std::fmt::Display for LockError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LockError::Busy { owner_process: Some(process) } => {
                write!(formatter, "locked by process {process}")
            }
            LockError::Busy { owner_process: None } => write!(formatter, "locked by another process"),
            LockError::Io(error) => write!(formatter, "cannot lock: {error}"),
        }
    }
}

impl std::error::Error for LockError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            LockError::Busy { .. } => None,
            LockError::Io(error) => Some(error),
        }
    }
}

impl From<io::Error> for LockError {
    fn from(error: io::Error) -> Self {
        LockError::Io(error)
    }
}

/// A set of named devices.
///
/// ```
/// use terrace_io::{Directory, MemoryDirectory, OpenMode};
///
/// let directory = MemoryDirectory::new();
/// directory.open("new", OpenMode::CreateNew)?;
/// directory.rename("new", "pages")?;
/// directory.sync()?;
/// assert!(directory.exists("pages")? && !directory.exists("new")?);
/// # std::io::Result::Ok(())
/// ```
pub trait Directory: Send + Sync + Debug {
    /// The path of the directory, or `memory:`, for error messages.
    fn name(&self) -> String;

    /// Opens or creates `file`.
    ///
    /// # Errors
    /// `NotFound`, `AlreadyExists`, `InvalidInput` for a name that is not a single component or not
    /// a regular file, or what the system reports.
    fn open(&self, file: &str, mode: OpenMode) -> io::Result<Arc<dyn BlockDevice>>;

    /// Opens or creates `file` as memory that outlives the process. A new or empty file gets
    /// `bytes` zeros, rounded up to 4096; another keeps its length. Only one handle exists at a
    /// time.
    ///
    /// # Errors
    /// As [`Directory::open`]; `ResourceBusy` if another handle exists; `Unsupported` where files
    /// cannot be such memory, with the reason, which is the default; `InvalidData` for a file that
    /// is not a multiple of 4096 bytes; `InvalidInput` for [`OpenMode::Read`] and for 0 bytes of a
    /// new file; `StorageFull` if there is too little space.
    fn open_memory(&self, file: &str, bytes: u64, mode: OpenMode) -> io::Result<Arc<PersistentMemory>> {
        let _ = (bytes, mode);
        let what = format!("{}: files here cannot be persistent memory, such as {file:?}", self.name());
        Err(io::Error::new(io::ErrorKind::Unsupported, what))
    }

    /// Gives the persistent memory `file`, which has no handle, `bytes` bytes, rounded up to 4096.
    ///
    /// New bytes are zeros, durable with their length. A power cut may undo a cut, with the bytes
    /// that were there.
    ///
    /// # Errors
    /// As [`Directory::open_memory`] for [`OpenMode::Write`], also if it then has 0 bytes.
    fn resize_memory(&self, file: &str, bytes: u64) -> io::Result<()> {
        self.open_memory(file, bytes, OpenMode::Write).map(drop)?;
        let what = format!("{}: {file:?} keeps its length here", self.name());
        Err(io::Error::new(io::ErrorKind::Unsupported, what))
    }

    /// Whether `file` exists.
    ///
    /// # Errors
    /// What the system reports, other than absence.
    fn exists(&self, file: &str) -> io::Result<bool>;

    /// Removes the name. Open devices of the file keep working.
    ///
    /// # Errors
    /// `NotFound`, or what the system reports.
    fn remove(&self, file: &str) -> io::Result<()>;

    /// Atomically renames `from` to `to`, replacing an existing `to`.
    ///
    /// # Errors
    /// `NotFound`, or what the system reports.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Makes all names durable, but no contents.
    ///
    /// # Errors
    /// What the system reports; earlier changes of names are then in doubt.
    fn sync(&self) -> io::Result<()>;

    /// Whether writes here outlive the process without a sync while this machine runs. False if
    /// unknown, which is the default, or if another machine stores the files.
    fn is_local(&self) -> bool {
        false
    }

    /// Takes the lock `file` without waiting, creating the file if needed. Dropping the result, or
    /// the death of the process, unlocks it.
    ///
    /// # Errors
    /// [`LockError::Busy`] with the owner's process id if another process or another call in this
    /// one holds it; `InvalidInput` if the file is not a lock file; or what the system reports.
    fn lock(&self, file: &str) -> Result<Box<dyn Send + Sync>, LockError>;

    /// Locks the existing `file` without waiting and without changing anything. Not for files of
    /// [`Directory::lock`].
    ///
    /// # Errors
    /// [`LockError::Busy`] if a conflicting lock exists; `NotFound`, or what the system reports.
    fn lock_existing(&self, file: &str, sharing: Sharing) -> Result<Box<dyn Send + Sync>, LockError>;

    /// The process named in the lock file `file`, for messages: it may be gone.
    fn lock_owner(&self, file: &str) -> Option<u32>;
}

pub(crate) fn check_name(file: &str) -> io::Result<()> {
    if file.is_empty() || file == "." || file == ".." || file.contains(['/', '\0']) {
        return Err(invalid_input(format!(
            "{file:?} cannot name a file: it must be one component of a path"
        )));
    }
    Ok(())
}

pub(crate) fn not_found(file: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("there is no file {file:?}"))
}

pub(crate) fn already_exists(file: &str) -> io::Error {
    io::Error::new(io::ErrorKind::AlreadyExists, format!("there is a file {file:?} already"))
}

/// Refuses to open memory for reading only: its words are handed out for stores.
pub(crate) fn check_memory_mode(file: &str, mode: OpenMode) -> io::Result<()> {
    if mode.is_writable() {
        return Ok(());
    }
    Err(invalid_input(format!("{file:?} is to be persistent memory, which is never read-only")))
}

/// A second handle of a memory.
pub(crate) fn memory_is_open(name: &str) -> io::Error {
    let what =
        format!("{name}: another handle of this persistent memory is open, here or in another process");
    io::Error::new(io::ErrorKind::ResourceBusy, what)
}
