//! Locked files of a directory, and the owner that a lock file names.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{FlockOperation, Mode};
use rustix::io::Errno;

use crate::device::file::retry;
use crate::device::invalid_input;

pub(super) const OWNER_ONLY_FILE: Mode = Mode::RUSR.union(Mode::WUSR);

const OWNER_BYTES_MAX: usize = 16;

/// A held `flock`; an owner's file has its process id meanwhile.
pub(super) struct FileLock {
    file: OwnedFd,
    names_owner: bool,
    process: u32,
}

impl FileLock {
    /// Of a file that is locked, and whose content is its own.
    pub(super) fn nameless(file: OwnedFd) -> Self {
        Self { file, names_owner: false, process: std::process::id() }
    }

    pub(super) fn named(file: OwnedFd, name: &str) -> io::Result<Self> {
        check_lock(&file, name)?;
        let mut lock = Self::nameless(file);
        lock.names_owner = true;
        retry(|| rustix::fs::fchmod(&lock.file, OWNER_ONLY_FILE))?;
        retry(|| rustix::fs::ftruncate(&lock.file, 0))?;
        let owner = format!("{}\n", lock.process);
        match retry(|| rustix::io::pwrite(&lock.file, owner.as_bytes(), 0)) {
            // The id is only for messages; a full disk must never keep the owner out.
            Ok(_) | Err(Errno::NOSPC | Errno::DQUOT) => Ok(lock),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // A forked child drops its copy; the lock is its parent's.
            return;
        }
        if self.names_owner {
            let _ = retry(|| rustix::fs::ftruncate(&self.file, 0));
        }
        // Closing is not enough if a forked child shares the handle.
        let _ = retry(|| rustix::fs::flock(&self.file, FlockOperation::Unlock));
    }
}

/// Refuses to overwrite a file that is not a lock. A lock file holds the owner's number, nothing,
/// or zeros (a power cut may keep only the length).
fn check_lock(file: &OwnedFd, name: &str) -> io::Result<()> {
    let mut text = [0; OWNER_BYTES_MAX + 1];
    let length = retry(|| rustix::io::pread(file, &mut text, 0))?;
    let is_owner = text[..length].iter().all(|byte| byte.is_ascii_digit() || matches!(byte, b'\n' | 0));
    if length > OWNER_BYTES_MAX || !is_owner {
        return Err(invalid_input(format!("{name:?} is needed as a lock, and is another file")));
    }
    Ok(())
}

pub(super) fn read_owner(file: &OwnedFd) -> io::Result<Option<u32>> {
    let mut text = [0; OWNER_BYTES_MAX];
    let length = retry(|| rustix::io::pread(file, &mut text, 0))?;
    // Without its newline the number may be cut short.
    let line = std::str::from_utf8(&text[..length]).ok().and_then(|text| text.strip_suffix('\n'));
    Ok(line.and_then(|line| line.parse().ok()))
}
