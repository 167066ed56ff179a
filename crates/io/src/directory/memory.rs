//! A directory in memory, for tests and temporary databases.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

use super::{
    Directory, LockError, OpenMode, Sharing, already_exists, check_memory_mode, check_name, memory_is_open,
    not_found,
};
use crate::device::memory::MemoryDevice;
use crate::device::{BlockDevice, invalid_input};
use crate::memory::persistent::mapping::SharedMapping;
use crate::memory::persistent::{PersistentKind, PersistentMemory};

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
    files: Arc<Mutex<BTreeMap<String, File>>>,
    locks: Locks,
}

#[derive(Clone, Debug)]
enum File {
    Device(MemoryDevice),
    /// Its handles come and go, its bytes stay.
    Memory(Arc<SharedMapping>),
}

impl File {
    fn copy(&self) -> File {
        match self {
            File::Device(device) => File::Device(device.copy()),
            File::Memory(mapping) => {
                File::Memory(Arc::new(mapping.copy(mapping.len() as u64).expect("memory for a copy")))
            }
        }
    }
}

impl MemoryDirectory {
    /// An empty directory.
    pub fn new() -> Self {
        Self::default()
    }

    /// An independent directory with the present files and no locks. Unchanged content is shared,
    /// but for persistent memory.
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
    ///
    /// # Panics
    /// If memory for a persistent memory is short.
    pub fn copy(&self) -> Self {
        let files = self.files.lock();
        let copied = files.iter().map(|(name, file)| (name.clone(), file.copy()));
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
            files.insert(file.to_owned(), File::Device(MemoryDevice::new(file, 0)));
        }
        match files.get(file).ok_or_else(|| not_found(file))? {
            File::Device(device) => Ok(Arc::new(device.handle(mode.is_writable()))),
            File::Memory(_) => Err(is_memory(file)),
        }
    }

    fn open_memory(&self, file: &str, bytes: u64, mode: OpenMode) -> io::Result<Arc<PersistentMemory>> {
        check_name(file)?;
        check_memory_mode(file, mode)?;
        let mut files = self.files.lock();
        let name = format!("memory:{file}");
        let mapping = match (files.get(file), mode) {
            (Some(_), OpenMode::CreateNew) => return Err(already_exists(file)),
            (None, OpenMode::CreateNew) => Arc::new(SharedMapping::anonymous(file, bytes)?),
            (None, _) => return Err(not_found(file)),
            (Some(File::Memory(mapping)), _) => Arc::clone(mapping),
            (Some(File::Device(_)), _) => return Err(is_no_memory(file)),
        };
        let lock = self.locks.take(file, Sharing::Alone).map_err(|_| memory_is_open(&name))?;
        files.insert(file.to_owned(), File::Memory(Arc::clone(&mapping)));
        Ok(Arc::new(PersistentMemory::of(name, PersistentKind::Simulated, mapping, Some(lock))))
    }

    fn resize_memory(&self, file: &str, bytes: u64) -> io::Result<()> {
        check_name(file)?;
        let mut files = self.files.lock();
        let _lock = self.locks.take(file, Sharing::Alone).map_err(|_| memory_is_open(file))?;
        match files.get_mut(file).ok_or_else(|| not_found(file))? {
            File::Memory(mapping) => *mapping = Arc::new(mapping.copy(bytes)?),
            File::Device(_) => return Err(is_no_memory(file)),
        }
        Ok(())
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

/// A memory that is to be a device.
pub(crate) fn is_memory(file: &str) -> io::Error {
    invalid_input(format!("{file:?} is persistent memory, and not for reads and writes"))
}

/// A device that is to be memory.
pub(crate) fn is_no_memory(file: &str) -> io::Error {
    invalid_input(format!("{file:?} is there, and is no persistent memory"))
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
