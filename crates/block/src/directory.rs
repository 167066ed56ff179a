//! Where devices come from: a flat set of names, each a device.
//!
//! A database is a directory with a few files. Names are single components: no separators, never a path, so no name
//! that comes out of a database can lead elsewhere.
//!
//! Names have a durability of their own. A created, removed or renamed file is seen at once, but a power cut may take
//! the change back until [`Directory::sync`] returned, even when the file's content was synced.
//!
//! One process at a time owns a directory through [`Directory::lock`], which makes a file that names the owner. Files
//! that exist are locked by [`Directory::lock_existing`], alone or together with others, and nothing is changed by it:
//! so a directory that cannot be written can be locked too. Locks belong to the process: they vanish with it, however
//! it dies, so there is never a stale one to break.

use std::fmt::Debug;
use std::io;
use std::sync::Arc;

use crate::device::{BlockDevice, invalid_input};

pub(crate) mod decorated;
pub(crate) mod file;
mod locality;
pub(crate) mod memory;

/// How to open a file.
///
/// ```
/// use terrace_block::{Directory, MemoryDirectory, OpenMode};
///
/// let directory = MemoryDirectory::new();
/// assert!(directory.open("log", OpenMode::Write).is_err(), "must exist");
/// directory.open("log", OpenMode::CreateNew)?;
/// assert!(directory.open("log", OpenMode::CreateNew).is_err(), "must not exist");
/// # std::io::Result::Ok(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// Existing, for reading only.
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

/// Whom a lock keeps out.
///
/// ```
/// use terrace_block::{Directory, MemoryDirectory, OpenMode, Sharing};
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
    /// Those that want the file alone.
    Shared,
    /// Everybody.
    Alone,
}

/// Why a lock was not granted.
///
/// ```
/// use terrace_block::{Directory, LockError, MemoryDirectory};
///
/// let directory = MemoryDirectory::new();
/// let held = directory.lock("lock").unwrap();
/// assert!(matches!(directory.lock("lock"), Err(LockError::Busy { .. })));
/// drop(held);
/// assert!(directory.lock("lock").is_ok());
/// ```
#[derive(Debug)]
pub enum LockError {
    /// Someone holds it: another process, or another handle in this one.
    Busy {
        /// Their process id, where there is one owner that has named itself.
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
/// use terrace_block::{Directory, MemoryDirectory, OpenMode};
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
    /// `NotFound`, `AlreadyExists`, `InvalidInput` for a name that is not a single component or not a regular file, or
    /// what the system reports.
    fn open(&self, file: &str, mode: OpenMode) -> io::Result<Arc<dyn BlockDevice>>;

    /// Whether there is a file of this name.
    ///
    /// # Errors
    /// What the system reports other than its absence.
    fn exists(&self, file: &str) -> io::Result<bool>;

    /// Removes the name. Devices that have the file open go on working.
    ///
    /// # Errors
    /// `NotFound`, or what the system reports.
    fn remove(&self, file: &str) -> io::Result<()>;

    /// Gives `from` the name `to`, in one step, replacing the file that had it.
    ///
    /// # Errors
    /// `NotFound`, or what the system reports.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Returns when all names are durable. The contents of the files are not its business.
    ///
    /// # Errors
    /// What the system reports; the names changed before are then in doubt.
    fn sync(&self) -> io::Result<()>;

    /// Whether what is written to a file here outlives the process as long as this machine is on, synced or not. A file system of
    /// another machine that may be switched off by itself does not keep it. False where nobody knows, which is the default.
    fn is_local(&self) -> bool {
        false
    }

    /// Takes the lock `file` without waiting, creating the file if need be. Dropping what is returned unlocks it, the
    /// death of the process does too.
    ///
    /// # Errors
    /// [`LockError::Busy`] with the owner's process id if another process or another call in this one holds it; `InvalidInput` if
    /// the file has something else in it than a lock, and what the system reports.
    fn lock(&self, file: &str) -> Result<Box<dyn Send + Sync>, LockError>;

    /// Locks `file`, which exists, without waiting and without changing anything. Not for files of [`Directory::lock`].
    ///
    /// # Errors
    /// [`LockError::Busy`] if others hold it in a way that this excludes; `NotFound`, or what the system reports.
    fn lock_existing(&self, file: &str, sharing: Sharing) -> Result<Box<dyn Send + Sync>, LockError>;

    /// The process that names itself in `file`, taken by [`Directory::lock`]. A courtesy for messages: it may be gone.
    fn lock_owner(&self, file: &str) -> Option<u32>;
}

/// Refuses names that are not one plain component of a path.
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
