//! An allocator's private file, removed with it.
//!
//! The file is new, readable by its owner only, and locked. An existing file is replaced only if it
//! is unlocked and its superblocks show that a killed allocator left it. Any other file is refused.
//!
//! No process ever reads its pages later, so only the superblocks are synced ([`Unsynced`]). If the
//! operating system loses a write, the image's checksum shows that.

use std::io;
use std::path::Path;
use std::sync::Arc;

use terrace_io::{BlockDevice, Directory, FileDirectory, LockError, OpenMode, Sharing};

use crate::error::{Error, Result};
use crate::store::superblock::Slots;

/// Replaces a database's identity in the superblock of such a file.
pub(super) const MARK: [u8; 16] = *b"pages, not a db.";

/// A file that is removed when this is dropped.
pub(super) struct PageFile {
    directory: Arc<dyn Directory>,
    file: String,
    device: Arc<dyn BlockDevice>,
    lock: Option<Box<dyn Send + Sync>>,
    /// The process that made it. A forked child must not remove it.
    process: u32,
}

impl std::fmt::Debug for PageFile {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("PageFile").field("file", &self.file).finish_non_exhaustive()
    }
}

impl PageFile {
    /// Makes the file `path`, in `directory` if given, else in the path's directory.
    pub(super) fn create(path: &Path, directory: Option<Arc<dyn Directory>>) -> Result<PageFile> {
        let shown = path.display().to_string();
        let Some(file) = path.file_name().and_then(|name| name.to_str()) else {
            return Err(Error::Config(format!("{shown:?} does not name a file for pages")));
        };
        let directory = match directory {
            Some(directory) => directory,
            None => {
                let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
                let opened = FileDirectory::open(parent.unwrap_or(Path::new(".")));
                Arc::new(opened.map_err(|source| Error::io("open", &shown, None, source))?)
            }
        };
        let failed =
            |operation: &'static str| move |source: io::Error| Error::io(operation, &shown, None, source);
        if directory.exists(file).map_err(failed.clone()("look for"))? {
            let _alone = lock(&*directory, file)?;
            check_left_over(&*directory, file)?;
            tracing::info!(file, "replacing the pages that a killed process left");
            directory.remove(file).map_err(failed.clone()("remove"))?;
        }
        let device = directory.open(file, OpenMode::CreateNew).map_err(failed("create"))?;
        let held = lock(&*directory, file)?;
        Ok(PageFile {
            file: file.to_owned(),
            directory,
            device,
            lock: Some(held),
            process: std::process::id(),
        })
    }

    /// Syncs the file's mark, so that it is known after a power cut.
    pub(super) fn make_known(&self) -> Result<()> {
        let synced = self.device.sync().and_then(|()| self.directory.sync());
        synced.map_err(|source| Error::io("sync", self.device.name(), None, source))
    }

    /// The file as a device that is never synced.
    pub(super) fn device(&self) -> Arc<dyn BlockDevice> {
        Arc::new(Unsynced(Arc::clone(&self.device)))
    }
}

impl Drop for PageFile {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            return;
        }
        if let Err(error) = self.directory.remove(&self.file) {
            tracing::warn!(%error, file = self.file, "the file of pages could not be removed");
        }
        drop(self.lock.take());
    }
}

fn lock(directory: &dyn Directory, file: &str) -> Result<Box<dyn Send + Sync>> {
    directory.lock_existing(file, Sharing::Alone).map_err(|error| {
        let path = format!("{}/{file}", directory.name());
        match error {
            LockError::Busy { owner_process } => Error::Busy { path, owner_process },
            LockError::Io(source) => Error::io("lock", &path, None, source),
        }
    })
}

/// Checks that `file` is what a killed allocator left.
fn check_left_over(directory: &dyn Directory, file: &str) -> Result<()> {
    let path = format!("{}/{file}", directory.name());
    let device =
        directory.open(file, OpenMode::Read).map_err(|source| Error::io("open", &path, None, source))?;
    if device.is_empty() || Slots::open(device).is_ok_and(|(_, superblock)| superblock.uuid == MARK) {
        return Ok(());
    }
    Err(Error::Config(format!("{path} exists and is not a file of pages; name another, or remove it")))
}

/// A device whose content is useless after a crash.
#[derive(Debug)]
struct Unsynced(Arc<dyn BlockDevice>);

impl terrace_io::Decorator for Unsynced {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.0
    }

    fn write_through_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_at(offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}
