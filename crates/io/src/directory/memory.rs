//! A directory in memory, for tests and temporary databases.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

use super::{Directory, LockError, OpenMode, Sharing, already_exists, check_name, not_found};
use crate::device::BlockDevice;
use crate::device::memory::MemoryDevice;

/// A directory of [`MemoryDevice`]s. Clones are handles of the same directory.
///
/// ```
/// use terrace_io::{BlockDevice, Directory, MemoryDirectory, OpenMode};
///
/// let directory = MemoryDirectory::new();
/// directory.open("pages", OpenMode::CreateNew)?.set_len(4096)?;
/// assert_eq!(directory.clone().open("pages", OpenMode::Read)?.len(), 4096);
/// # std::io::Result::Ok(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct MemoryDirectory {
    files: Arc<Mutex<BTreeMap<String, MemoryDevice>>>,
    locks: Locks,
}

impl MemoryDirectory {
    /// An empty directory.
    pub fn new() -> Self {
        Self::default()
    }

    /// An independent directory with the present files and no locks. Unchanged content is shared.
    ///
    /// ```
    /// use terrace_io::{AlignedBuffer, BlockDevice, Directory, MemoryDirectory, OpenMode};
    ///
    /// let directory = MemoryDirectory::new();
    /// directory.open("pages", OpenMode::CreateNew)?.set_len(512)?;
    /// let copy = directory.copy();
    /// copy.open("pages", OpenMode::Write)?.write_at(0, &AlignedBuffer::zeroed(512))?;
    /// copy.remove("pages")?;
    /// assert!(directory.exists("pages")?);
    /// # std::io::Result::Ok(())
    /// ```
    pub fn copy(&self) -> Self {
        let files = self.files.lock();
        let copied = files.iter().map(|(name, device)| (name.clone(), device.copy()));
        Self { files: Arc::new(Mutex::new(copied.collect())), locks: Locks::default() }
    }
}

impl Directory for MemoryDirectory {
    fn name(&self) -> String {
        "memory:".to_owned()
    }

    fn open(&self, file: &str, mode: OpenMode) -> io::Result<Arc<dyn BlockDevice>> {
        check_name(file)?;
        let mut files = self.files.lock();
        if mode == OpenMode::CreateNew {
            if files.contains_key(file) {
                return Err(already_exists(file));
            }
            files.insert(file.to_owned(), MemoryDevice::new(file, 0));
        }
        let device = files.get(file).ok_or_else(|| not_found(file))?;
        Ok(Arc::new(device.handle(mode.is_writable())))
    }

    fn exists(&self, file: &str) -> io::Result<bool> {
        check_name(file)?;
        Ok(self.files.lock().contains_key(file))
    }

    fn remove(&self, file: &str) -> io::Result<()> {
        check_name(file)?;
        self.files.lock().remove(file).map(drop).ok_or_else(|| not_found(file))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        check_name(from)?;
        check_name(to)?;
        let mut files = self.files.lock();
        let device = files.remove(from).ok_or_else(|| not_found(from))?;
        files.insert(to.to_owned(), device);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn lock(&self, file: &str) -> Result<Box<dyn Send + Sync>, LockError> {
        check_name(file)?;
        self.locks.take(file, Sharing::Alone)
    }

    fn lock_existing(&self, file: &str, sharing: Sharing) -> Result<Box<dyn Send + Sync>, LockError> {
        if !self.exists(file)? {
            return Err(not_found(file).into());
        }
        self.locks.take(file, sharing)
    }

    fn lock_owner(&self, file: &str) -> Option<u32> {
        self.locks.owner(file)
    }
}

/// The locks of a directory that only this process sees.
#[derive(Clone, Debug, Default)]
pub(crate) struct Locks {
    held: Arc<Mutex<BTreeMap<String, Holders>>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holders {
    One,
    Sharing(usize),
}

impl Locks {
    pub(crate) fn take(&self, file: &str, sharing: Sharing) -> Result<Box<dyn Send + Sync>, LockError> {
        let mut held = self.held.lock();
        let holders = match (held.get(file), sharing) {
            (None, Sharing::Alone) => Holders::One,
            (None, Sharing::Shared) => Holders::Sharing(1),
            (Some(Holders::Sharing(count)), Sharing::Shared) => Holders::Sharing(count + 1),
            _ => return Err(LockError::Busy { owner_process: Some(std::process::id()) }),
        };
        held.insert(file.to_owned(), holders);
        Ok(Box::new(Held { locks: self.clone(), file: file.to_owned() }))
    }

    pub(crate) fn owner(&self, file: &str) -> Option<u32> {
        (self.held.lock().get(file) == Some(&Holders::One)).then(std::process::id)
    }
}

struct Held {
    locks: Locks,
    file: String,
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut held = self.locks.held.lock();
        match held.get(&self.file) {
            Some(Holders::Sharing(count)) if *count > 1 => {
                let left = Holders::Sharing(count - 1);
                held.insert(self.file.clone(), left);
            }
            _ => _ = held.remove(&self.file),
        }
    }
}
