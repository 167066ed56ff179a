//! Decorates every device of a directory, for instance to throttle a database.

use std::fmt;
use std::io;
use std::sync::Arc;

use super::{Directory, LockError, OpenMode, Sharing};
use crate::device::BlockDevice;
use crate::memory::persistent::PersistentMemory;

type Decorate = dyn Fn(&str, Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice> + Send + Sync;

/// A directory that passes each device through a function on opening.
///
/// ```
/// use std::sync::Arc;
/// use terrace_io::{BlockDevice, CountedDevice, Counters, DecoratedDirectory};
/// use terrace_io::{Directory, MemoryDirectory, OpenMode};
///
/// let counters = Arc::new(Counters::default());
/// let directory = DecoratedDirectory::new(Arc::new(MemoryDirectory::new()), {
///     let counters = Arc::clone(&counters);
///     move |_file, device| Arc::new(CountedDevice::new(device, Arc::clone(&counters)))
/// });
/// directory.open("pages", OpenMode::CreateNew)?.sync()?;
/// assert_eq!(counters.counts().syncs, 1);
/// # std::io::Result::Ok(())
/// ```
pub struct DecoratedDirectory {
    inner: Arc<dyn Directory>,
    decorate: Box<Decorate>,
}

impl DecoratedDirectory {
    /// Passes each device opened in `inner`, with its file's name, through `decorate`.
    pub fn new(
        inner: Arc<dyn Directory>,
        decorate: impl Fn(&str, Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice> + Send + Sync + 'static,
    ) -> Self {
        Self { inner, decorate: Box::new(decorate) }
    }
}

impl fmt::Debug for DecoratedDirectory {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("DecoratedDirectory").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl Directory for DecoratedDirectory {
    fn name(&self) -> String {
        self.inner.name()
    }

    fn open(&self, file: &str, mode: OpenMode) -> io::Result<Arc<dyn BlockDevice>> {
        Ok((self.decorate)(file, self.inner.open(file, mode)?))
    }

    /// Of the inner directory: memory has no calls that a device's decorator could see.
    fn open_memory(&self, file: &str, bytes: u64, mode: OpenMode) -> io::Result<Arc<PersistentMemory>> {
        self.inner.open_memory(file, bytes, mode)
    }

    fn resize_memory(&self, file: &str, bytes: u64) -> io::Result<()> {
        self.inner.resize_memory(file, bytes)
    }

    fn exists(&self, file: &str) -> io::Result<bool> {
        self.inner.exists(file)
    }

    fn remove(&self, file: &str) -> io::Result<()> {
        self.inner.remove(file)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.inner.rename(from, to)
    }

    fn sync(&self) -> io::Result<()> {
        self.inner.sync()
    }

    fn is_local(&self) -> bool {
        self.inner.is_local()
    }

    fn lock(&self, file: &str) -> Result<Box<dyn Send + Sync>, LockError> {
        self.inner.lock(file)
    }

    fn lock_existing(&self, file: &str, sharing: Sharing) -> Result<Box<dyn Send + Sync>, LockError> {
        self.inner.lock_existing(file, sharing)
    }

    fn lock_owner(&self, file: &str) -> Option<u32> {
        self.inner.lock_owner(file)
    }
}
