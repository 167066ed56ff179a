//! The file of an allocator: made for it alone, and removed with it.
//!
//! It is made anew, readable by its owner only, and locked. Where a file of that name is already, it is replaced if nobody has it
//! locked and it is what an allocator left whose process was killed; everything else, a database for instance, is
//! refused and left as it is. What is in the file says what it is: its superblocks, or nothing yet.
//!
//! Nothing in it is ever read by another process, so, but for what it is, none of it is synced ([`Unsynced`]). Writes that fail fail at once with
//! direct I/O; where there is none, a write that the system loses later is found by the checksum of the image that is
//! not there.

use std::io;
use std::path::Path;
use std::sync::Arc;

use terrace_block::{BlockDevice, Directory, FileDirectory, LockError, OpenMode, Read, Sharing, Write};

use crate::error::{Error, Result};
use crate::store::superblock::Slots;

/// What stands in the superblock of such a file in place of a database's identity.
pub(super) const MARK: [u8; 16] = *b"pages, not a db.";

/// A file that is removed when this is dropped.
pub(super) struct PageFile {
    directory: Arc<dyn Directory>,
    file: String,
    device: Arc<dyn BlockDevice>,
    lock: Option<Box<dyn Send + Sync>>,
    /// Who made it. A forked child has a copy and must not remove it.
    process: u32,
}

impl std::fmt::Debug for PageFile {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("PageFile").field("file", &self.file).finish_non_exhaustive()
    }
}

impl PageFile {
    /// Makes the file `path`, in `directory` if one is given and else where the path leads.
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

    /// What is in the file by now says what it is, also after a power cut.
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

/// Whether `file` is what an allocator left, and nobody's loss.
fn check_left_over(directory: &dyn Directory, file: &str) -> Result<()> {
    let path = format!("{}/{file}", directory.name());
    let device =
        directory.open(file, OpenMode::Read).map_err(|source| Error::io("open", &path, None, source))?;
    if device.is_empty() || Slots::open(device).is_ok_and(|(_, superblock)| superblock.uuid == MARK) {
        return Ok(());
    }
    Err(Error::Config(format!("{path} exists and is not a file of pages; name another, or remove it")))
}

/// A device whose content nobody needs after a crash.
#[derive(Debug)]
struct Unsynced(Arc<dyn BlockDevice>);

impl BlockDevice for Unsynced {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn len(&self) -> u64 {
        self.0.len()
    }

    fn alignment(&self) -> usize {
        self.0.alignment()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.0.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_at(offset, bytes)
    }

    fn read_batch(&self, reads: &mut [Read<'_>]) {
        self.0.read_batch(reads);
    }

    fn write_batch(&self, writes: &[Write<'_>]) -> io::Result<()> {
        self.0.write_batch(writes)
    }

    fn write_through_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_at(offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.0.set_len(bytes)
    }
}
