//! A file of a directory as persistent memory: on tmpfs, or on a file system with DAX.
//!
//! On tmpfs the page cache is the file. Elsewhere the kernel must grant `MAP_SYNC`, which only DAX
//! does: a line in the memory is then in the file, with its metadata (mmap(2)). Other file systems,
//! which would lose stores with the power, are refused.
//!
//! All space is allocated at once: a touch of a page without any would kill the process.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{FallocateFlags, FlockOperation};
use rustix::io::Errno;

use super::file_lock::FileLock;
use super::memory_is_open;
use crate::device::file::retry;
use crate::memory::persistent::flush::Flush;
use crate::memory::persistent::mapping::{Backing, PAGE_BYTES, SharedMapping, whole_pages};
use crate::memory::persistent::{PersistentKind, PersistentMemory};

const TMPFS: u32 = 0x0102_1994;

/// An empty `file` gets `bytes`.
pub(super) fn open(file: OwnedFd, name: String, bytes: u64) -> io::Result<PersistentMemory> {
    let lock = Box::new(lock(&file, &name)?);
    let is_tmpfs = retry(|| rustix::fs::fstatfs(&file))?.f_type as u32 == TMPFS;
    let flush = if is_tmpfs { None } else { Some(flush_of_processor(&name)?) };
    let stat = rustix::fs::fstat(&file)?;
    let length = stat.st_size as u64;
    if !length.is_multiple_of(PAGE_BYTES as u64) {
        let what = format!("{name}: {length} bytes are not whole pages of {PAGE_BYTES}: no memory of ours");
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    if !is_tmpfs {
        // Before any space is taken: most file systems refuse this.
        probe(&file, &name)?;
    }
    let length = if length == 0 { bytes } else { length };
    let length = whole_pages(length).map_err(|error| explained(&name, "has no such length", error))?;
    // Blocks of 512 bytes; on tmpfs they are those of the content alone, and looking is quick.
    if !is_tmpfs || (stat.st_blocks as u64) < length / 512 {
        allocate(&file, &name, length)?;
    }
    let backing = if flush.is_some() { Backing::Dax } else { Backing::Cache };
    let mapping = SharedMapping::of_file(file, length, backing)
        .map_err(|error| if flush.is_some() { not_synchronous(&name, error) } else { error })?;
    let kind = if flush.is_some() { PersistentKind::Dax } else { PersistentKind::Shm };
    let memory = PersistentMemory::of(name, kind, Arc::new(mapping), Some(lock));
    Ok(match flush {
        Some(flush) => memory.flushed_by(flush),
        None => memory,
    })
}

/// Gives `file`, which nobody has mapped, another length.
pub(super) fn resize(file: OwnedFd, name: &str, bytes: u64) -> io::Result<()> {
    let _lock = lock(&file, name)?;
    let length = whole_pages(bytes).map_err(|error| explained(name, "has no such length", error))?;
    if length < rustix::fs::fstat(&file)?.st_size as u64 {
        let cut = retry(|| rustix::fs::ftruncate(&file, length));
        return cut.map_err(|error| explained(name, "cannot be cut", error.into()));
    }
    allocate(&file, name, length)
}

fn lock(file: &OwnedFd, name: &str) -> io::Result<FileLock> {
    let handle = file.try_clone()?;
    match retry(|| rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive)) {
        Ok(()) => Ok(FileLock::nameless(handle)),
        Err(Errno::WOULDBLOCK) => Err(memory_is_open(name)),
        Err(error) => Err(explained(name, "cannot be locked", error.into())),
    }
}

fn flush_of_processor(name: &str) -> io::Result<Flush> {
    Flush::detect().ok_or_else(|| {
        let what = format!(
            "{name}: this processor has no instruction that writes a line back to persistent memory; a file on tmpfs needs none"
        );
        io::Error::new(io::ErrorKind::Unsupported, what)
    })
}

/// Asks for a synchronous mapping of one page, without touching it.
fn probe(file: &OwnedFd, name: &str) -> io::Result<()> {
    let page = SharedMapping::of_file(file.try_clone()?, PAGE_BYTES as u64, Backing::Dax);
    page.map(drop).map_err(|error| not_synchronous(name, error))
}

/// Takes the space, and makes the length durable.
fn allocate(file: impl AsFd, name: &str, length: u64) -> io::Result<()> {
    retry(|| rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, length))
        .map_err(|error| explained(name, &format!("cannot have {length} bytes"), error.into()))?;
    retry(|| rustix::fs::fsync(&file)).map_err(|error| explained(name, "cannot be synced", error.into()))
}

fn not_synchronous(name: &str, error: io::Error) -> io::Error {
    let reason = match error.raw_os_error() {
        Some(libc::EOPNOTSUPP | libc::EINVAL) => {
            "its file system does not map persistent memory (no MAP_SYNC): it needs ext4 or xfs on an NVDIMM, mounted with dax, or tmpfs for memory that outlives the process only"
        }
        _ => "it cannot be mapped as persistent memory",
    };
    let kind = match error.raw_os_error() {
        Some(libc::EOPNOTSUPP | libc::EINVAL) => io::ErrorKind::Unsupported,
        _ => error.kind(),
    };
    io::Error::new(kind, format!("{name}: {reason}: {error}"))
}

fn explained(name: &str, what: &str, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{name}: {what}: {error}"))
}
