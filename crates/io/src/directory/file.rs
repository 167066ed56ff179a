//! A directory of the file system.
//!
//! Everything is relative to one open handle, so renaming the directory changes nothing. Files
//! belong to their owner alone, whatever the umask. Links and other non-regular files are refused.
//! Direct I/O is enabled after opening, because an `open` that refuses it may have created the file
//! already.
//!
//! Locks use `flock`. They conflict between processes and between handles of one process, and the
//! kernel drops them with the last handle. Shared locks need only read permission.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::file_lock::{FileLock, OWNER_ONLY_FILE, read_owner};
use super::{Directory, LockError, OpenMode, Sharing, check_memory_mode, check_name, locality, persistent};
use crate::AlignedBuffer;
use crate::device::file::{BLOCK_BYTES, FileDevice, retry};
use crate::device::uring::{self, UringDevice};
use crate::device::{BlockDevice, invalid_input};
use crate::memory::persistent::PersistentMemory;

const OWNER_ONLY_DIRECTORY: Mode = Mode::RWXU;

/// Pause and number of retries for a refused lock whose file names no owner yet.
const OWNER_WAIT: Duration = Duration::from_millis(5);
const OWNER_WAITS_MAX: u32 = 20;

/// How to read and write files.
///
/// ```
/// use terrace_io::{FileDirectory, FileOptions};
///
/// let place = tempfile::tempdir()?;
/// let options = FileOptions { direct: false, uring: false };
/// let directory = FileDirectory::open_with(place.path(), options)?;
/// assert!(!directory.direct() && !directory.uring());
/// # std::io::Result::Ok(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct FileOptions {
    /// Bypass the page cache if the file system allows it.
    pub direct: bool,
    /// Use io_uring for batches if the kernel allows it.
    pub uring: bool,
}

impl Default for FileOptions {
    fn default() -> Self {
        Self { direct: true, uring: true }
    }
}

/// A file system directory whose files use direct I/O.
///
/// ```
/// use terrace_io::{AlignedBuffer, BlockDevice, Directory, FileDirectory, OpenMode};
///
/// let place = tempfile::tempdir()?;
/// let directory = FileDirectory::create(&place.path().join("database"))?;
/// let _lock = directory.lock("lock")?;
/// let pages = directory.open("pages", OpenMode::CreateNew)?;
/// directory.sync()?; // the name
/// pages.set_len(1 << 20)?;
/// pages.write_at(0, &AlignedBuffer::zeroed(4096))?;
/// pages.sync()?; // the content
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct FileDirectory {
    path: PathBuf,
    handle: OwnedFd,
    options: FileOptions,
    /// Some file was refused direct I/O.
    buffered: AtomicBool,
    /// The kernel grants rings, and the options ask for them.
    uring: bool,
}

impl FileDirectory {
    /// Creates the directory with mode 0700 if it does not exist, and opens it.
    ///
    /// # Errors
    /// `NotFound` if its parent does not exist, or what the system reports.
    pub fn create(path: &Path) -> io::Result<Self> {
        Self::create_with(path, FileOptions::default())
    }

    /// As [`FileDirectory::create`], with options.
    ///
    /// # Errors
    /// As [`FileDirectory::create`].
    pub fn create_with(path: &Path, options: FileOptions) -> io::Result<Self> {
        match retry(|| rustix::fs::mkdir(path, OWNER_ONLY_DIRECTORY)) {
            Err(Errno::EXIST) => return Self::open_with(path, options),
            outcome => outcome?,
        }
        // The umask can only remove permissions; a strange one would lock the owner out.
        retry(|| rustix::fs::chmod(path, OWNER_ONLY_DIRECTORY))?;
        let directory = Self::open_with(path, options)?;
        let parent = open_directory(&directory.handle, "..")?;
        retry(|| rustix::fs::fsync(&parent))?;
        Ok(directory)
    }

    /// Opens an existing directory.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`, or what the system reports.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::open_with(path, FileOptions::default())
    }

    /// As [`FileDirectory::open`], with options.
    ///
    /// # Errors
    /// As [`FileDirectory::open`].
    pub fn open_with(path: &Path, options: FileOptions) -> io::Result<Self> {
        let handle = open_directory(CWD, path)?;
        let uring = options.uring && uring::is_available();
        if options.uring && !uring {
            tracing::info!("no io_uring here, batches are loops of plain calls");
        }
        let buffered = AtomicBool::new(!options.direct);
        Ok(Self { path: path.to_owned(), handle, options, buffered, uring })
    }

    /// Whether every file opened so far bypasses the page cache.
    pub fn direct(&self) -> bool {
        !self.buffered.load(Ordering::Relaxed)
    }

    /// Whether batches go through io_uring.
    pub fn uring(&self) -> bool {
        self.uring
    }

    /// [`Directory::open`] for the plain file, without a pool of rings.
    ///
    /// # Errors
    /// As [`Directory::open`].
    pub fn open_file(&self, file: &str, mode: OpenMode) -> io::Result<FileDevice> {
        let opened = self.open_plain(file, mode)?;
        let name = self.path_of(file);
        let direct = self.go_direct(&opened, &name)?;
        FileDevice::new(opened, name, mode.is_writable(), direct)
    }

    fn open_plain(&self, file: &str, mode: OpenMode) -> io::Result<OwnedFd> {
        check_name(file)?;
        let flags = match mode {
            OpenMode::Read => OFlags::RDONLY,
            OpenMode::Write => OFlags::RDWR,
            OpenMode::CreateNew => OFlags::RDWR | OFlags::CREATE | OFlags::EXCL,
        };
        let opened = open_regular(&self.handle, file, flags)?;
        if mode == OpenMode::CreateNew {
            retry(|| rustix::fs::fchmod(&opened, OWNER_ONLY_FILE))?;
        }
        Ok(opened)
    }

    fn path_of(&self, file: &str) -> String {
        self.path.join(file).display().to_string()
    }

    /// Enables direct I/O and reads a block. Some file systems accept the flag and refuse the
    /// transfer.
    fn go_direct(&self, file: &OwnedFd, name: &str) -> io::Result<bool> {
        if self.options.direct && rustix::fs::fcntl_setfl(file, OFlags::DIRECT).is_ok() {
            let mut block = AlignedBuffer::try_zeroed(BLOCK_BYTES)?;
            match retry(|| rustix::io::pread(file, &mut block[..], 0)) {
                Err(Errno::INVAL) => {}
                // Any other failure belongs to a later read of that block.
                _ => return Ok(true),
            }
        }
        rustix::fs::fcntl_setfl(file, OFlags::empty())?;
        if self.options.direct && !self.buffered.swap(true, Ordering::Relaxed) {
            tracing::warn!(file = name, "no direct I/O here, going through the page cache");
        }
        Ok(false)
    }
}

fn open_directory(base: impl AsFd, path: impl rustix::path::Arg + Copy) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(retry(|| rustix::fs::openat(&base, path, flags, Mode::empty()))?)
}

/// Never through a link.
fn open_regular(directory: &OwnedFd, file: &str, flags: OFlags) -> io::Result<OwnedFd> {
    // NONBLOCK avoids waiting on a pipe; it has no effect on a regular file.
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let opened = retry(|| rustix::fs::openat(directory, file, flags, OWNER_ONLY_FILE))?;
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&opened)?.st_mode);
    if kind != FileType::RegularFile {
        return Err(invalid_input(format!("{file:?} is not a regular file")));
    }
    Ok(opened)
}

impl Directory for FileDirectory {
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn open(&self, file: &str, mode: OpenMode) -> io::Result<Arc<dyn BlockDevice>> {
        let device = self.open_file(file, mode)?;
        Ok(if self.uring { Arc::new(UringDevice::new(device)) } else { Arc::new(device) })
    }

    fn open_memory(&self, file: &str, bytes: u64, mode: OpenMode) -> io::Result<Arc<PersistentMemory>> {
        check_memory_mode(file, mode)?;
        let opened = self.open_plain(file, mode)?;
        let outcome = persistent::open(opened, self.path_of(file), bytes);
        let is_busy = |error: &io::Error| error.kind() == io::ErrorKind::ResourceBusy;
        if mode == OpenMode::CreateNew && outcome.as_ref().is_err_and(|error| !is_busy(error)) {
            // Nobody needs a file that cannot be what it was made for. If it is busy, another one
            // opened it first, and has it.
            let _ = self.remove(file);
        }
        outcome.map(Arc::new)
    }

    fn resize_memory(&self, file: &str, bytes: u64) -> io::Result<()> {
        let opened = self.open_plain(file, OpenMode::Write)?;
        persistent::resize(opened, &self.path_of(file), bytes)
    }

    fn exists(&self, file: &str) -> io::Result<bool> {
        check_name(file)?;
        match retry(|| rustix::fs::statat(&self.handle, file, AtFlags::SYMLINK_NOFOLLOW)) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn remove(&self, file: &str) -> io::Result<()> {
        check_name(file)?;
        Ok(retry(|| rustix::fs::unlinkat(&self.handle, file, AtFlags::empty()))?)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        check_name(from)?;
        check_name(to)?;
        Ok(retry(|| rustix::fs::renameat(&self.handle, from, &self.handle, to))?)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(retry(|| rustix::fs::fsync(&self.handle))?)
    }

    fn is_local(&self) -> bool {
        locality::is_local(&self.handle, &self.path)
    }

    fn lock(&self, file: &str) -> Result<Box<dyn Send + Sync>, LockError> {
        check_name(file)?;
        let opened = open_regular(&self.handle, file, OFlags::RDWR | OFlags::CREATE)?;
        let mut waits = 0;
        loop {
            match retry(|| rustix::fs::flock(&opened, FlockOperation::NonBlockingLockExclusive)) {
                Ok(()) => return Ok(Box::new(FileLock::named(opened, file)?)),
                Err(Errno::WOULDBLOCK) => {}
                Err(error) => return Err(LockError::Io(error.into())),
            }
            // A new or ending owner has no id in the file.
            let owner_process = read_owner(&opened)?;
            if owner_process.is_some() || waits == OWNER_WAITS_MAX {
                return Err(LockError::Busy { owner_process });
            }
            waits += 1;
            std::thread::sleep(OWNER_WAIT);
        }
    }

    fn lock_existing(&self, file: &str, sharing: Sharing) -> Result<Box<dyn Send + Sync>, LockError> {
        check_name(file)?;
        let (flags, operation) = match sharing {
            Sharing::Shared => (OFlags::RDONLY, FlockOperation::NonBlockingLockShared),
            // Over a network an exclusive lock needs write permission.
            Sharing::Alone => (OFlags::RDWR, FlockOperation::NonBlockingLockExclusive),
        };
        let opened = open_regular(&self.handle, file, flags)?;
        match retry(|| rustix::fs::flock(&opened, operation)) {
            Ok(()) => Ok(Box::new(FileLock::nameless(opened))),
            Err(Errno::WOULDBLOCK) => Err(LockError::Busy { owner_process: None }),
            Err(error) => Err(LockError::Io(error.into())),
        }
    }

    fn lock_owner(&self, file: &str) -> Option<u32> {
        let opened = open_regular(&self.handle, file, OFlags::RDONLY).ok()?;
        read_owner(&opened).ok().flatten()
    }
}
