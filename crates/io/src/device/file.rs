//! A file, read and written around the page cache if possible.
//!
//! Direct I/O saves a copy and a second cache. If it is refused, the file goes through the page
//! cache under the same alignment rules. A system call may move fewer bytes than asked; under
//! direct I/O the rest must start on a block boundary, so [`transfer`] steps back to the last one.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::FallocateFlags;
use rustix::io::{Errno, ReadWriteFlags};

use super::{BlockDevice, check_aligned, check_write, opened_for_reading, past_the_end};

/// Alignment of all files, whatever the block size of the disk.
pub(crate) const BLOCK_BYTES: usize = 4096;

const ZEROS_BYTES: usize = 256 * 1024;

/// Consecutive transfers of less than a block before giving up.
const STALLS_MAX: u32 = 16;

/// An open file.
///
/// ```
/// use terrace_io::{BlockDevice, FileDirectory, OpenMode};
///
/// let place = tempfile::tempdir()?;
/// let device = FileDirectory::open(place.path())?.open_file("pages", OpenMode::CreateNew)?;
/// device.set_len(1 << 20)?;
/// println!("around the page cache: {}", device.direct());
/// assert_eq!((device.len(), device.alignment()), (1 << 20, 4096));
/// # std::io::Result::Ok(())
/// ```
#[derive(Debug)]
pub struct FileDevice {
    file: OwnedFd,
    name: String,
    writable: bool,
    direct: bool,
    /// The process that opened the file. A forked child has the handle and a stale copy of this
    /// state.
    process: u32,
    /// The kernel or the file system lacks durable writes: write and sync instead.
    write_through_refused: AtomicBool,
    /// The last length from the kernel. Writes inside it ask for no new one, see
    /// [`FileDevice::check_write`].
    length_seen: AtomicU64,
}

impl FileDevice {
    pub(crate) fn new(file: OwnedFd, name: String, writable: bool, direct: bool) -> io::Result<Self> {
        let (write_through_refused, length_seen) = (AtomicBool::new(false), AtomicU64::new(0));
        let process = std::process::id();
        let device = Self { file, name, writable, direct, process, write_through_refused, length_seen };
        device.length()?;
        Ok(device)
    }

    /// Whether transfers go around the page cache.
    pub fn direct(&self) -> bool {
        self.direct
    }

    pub(crate) fn descriptor(&self) -> &OwnedFd {
        &self.file
    }

    /// The length from the kernel. Other handles may have changed it.
    pub(crate) fn length(&self) -> io::Result<u64> {
        let length = rustix::fs::fstat(self.file.as_fd())?.st_size as u64;
        self.length_seen.store(length, Ordering::Relaxed);
        Ok(length)
    }

    pub(crate) fn check_writable(&self) -> io::Result<()> {
        self.check_process()?;
        if self.writable { Ok(()) } else { Err(opened_for_reading(&self.name)) }
    }

    /// Fails in a forked child. Its state is stale, and the parent still changes the files.
    pub(crate) fn check_process(&self) -> io::Result<()> {
        if self.process == std::process::id() {
            return Ok(());
        }
        let what = format!(
            "{} was opened by process {}, before this one was forked; open it again",
            self.name, self.process
        );
        Err(io::Error::new(io::ErrorKind::PermissionDenied, what))
    }

    /// Refuses a write that is not aligned or ends beyond the file.
    ///
    /// Asks the kernel for the length only if the last one seen is too short. Asking makes the next
    /// write store exact times: on ext4 without a journal a small durable write then took 265 us
    /// instead of 190. So a write may lengthen a file that another handle has shortened.
    pub(crate) fn check_write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let seen = self.length_seen.load(Ordering::Relaxed);
        let ends_inside = offset.checked_add(bytes.len() as u64).is_some_and(|end| end <= seen);
        let length = if ends_inside { seen } else { self.length()? };
        check_write(&self.name, BLOCK_BYTES, length, offset, bytes)
    }

    pub(crate) fn read_rest(&self, offset: u64, buffer: &mut [u8], done: usize) -> io::Result<()> {
        let wanted = buffer.len();
        let moved = transfer(wanted, done, |done| {
            rustix::io::pread(self.file.as_fd(), &mut buffer[done..], offset + done as u64)
        })?;
        match moved {
            Some(()) => Ok(()),
            None => Err(past_the_end(&self.name, offset, wanted, self.length()?)),
        }
    }

    pub(crate) fn write_rest(&self, offset: u64, bytes: &[u8], done: usize) -> io::Result<()> {
        self.finish_write(transfer(bytes.len(), done, |done| {
            rustix::io::pwrite(self.file.as_fd(), &bytes[done..], offset + done as u64)
        })?)
    }

    fn finish_write(&self, moved: Option<()>) -> io::Result<()> {
        moved.ok_or_else(|| {
            io::Error::new(io::ErrorKind::WriteZero, format!("{}: a write makes no progress", self.name))
        })
    }

    /// Grows the file with zeros, for file systems that cannot allocate space.
    fn write_zeros(&self, from: u64, to: u64) -> io::Result<()> {
        let block = BLOCK_BYTES as u64;
        let (start, end) = (from.next_multiple_of(block), to.next_multiple_of(block));
        // The tail of the last block needs no zeros: the file system clears it on growth.
        rustix::fs::ftruncate(self.file.as_fd(), end)?;
        let zeros = crate::AlignedBuffer::try_zeroed(ZEROS_BYTES.min(end.saturating_sub(start) as usize))?;
        let mut offset = start;
        while offset < end {
            let length = (end - offset).min(zeros.len() as u64) as usize;
            self.write_rest(offset, &zeros[..length], 0)?;
            offset += length as u64;
        }
        Ok(rustix::fs::ftruncate(self.file.as_fd(), to)?)
    }

    fn grow(&self, from: u64, to: u64) -> io::Result<()> {
        // Checks first, since allocation up to the last free block would briefly leave no room for
        // others. A file system without a known size reports 0 blocks.
        let space = retry(|| rustix::fs::fstatvfs(self.file.as_fd()))?;
        if space.f_blocks > 0 && space.f_bfree.saturating_mul(space.f_frsize) < to - from {
            return Err(Errno::NOSPC.into());
        }
        let allocated =
            retry(|| rustix::fs::fallocate(self.file.as_fd(), FallocateFlags::empty(), from, to - from));
        let grown = match allocated {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => self.write_zeros(from, to),
            outcome => outcome.map_err(io::Error::from),
        };
        if grown.is_err() {
            // Gives the allocated space back. If that fails too, the first error counts.
            let _ = rustix::fs::ftruncate(self.file.as_fd(), from);
        }
        grown
    }
}

impl BlockDevice for FileDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> u64 {
        self.length().unwrap_or_else(|_| self.length_seen.load(Ordering::Relaxed))
    }

    fn covers(&self, end: u64) -> bool {
        end <= self.length_seen.load(Ordering::Relaxed) || end <= self.len()
    }

    fn alignment(&self) -> usize {
        BLOCK_BYTES
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        check_aligned(&self.name, BLOCK_BYTES, offset, buffer)?;
        if i64::try_from(offset).ok().and_then(|at| at.checked_add(buffer.len() as i64)).is_none() {
            return Err(past_the_end(&self.name, offset, buffer.len(), self.length()?));
        }
        self.read_rest(offset, buffer, 0)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.check_writable()?;
        self.check_write(offset, bytes)?;
        self.write_rest(offset, bytes, 0)
    }

    fn write_through_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.check_writable()?;
        self.check_write(offset, bytes)?;
        if !self.write_through_refused.load(Ordering::Relaxed) {
            let moved = transfer(bytes.len(), 0, |done| {
                let slice = [io::IoSlice::new(&bytes[done..])];
                rustix::io::pwritev2(self.file.as_fd(), &slice, offset + done as u64, ReadWriteFlags::DSYNC)
            });
            match moved {
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                    self.write_through_refused.store(true, Ordering::Relaxed);
                    tracing::info!(file = %self.name, "no durable writes here, writing and syncing instead");
                }
                moved => return self.finish_write(moved?),
            }
        }
        self.write_rest(offset, bytes, 0)?;
        self.sync()
    }

    fn sync(&self) -> io::Result<()> {
        // An interruption says nothing about the data, so a retry is safe; any other failure is
        // final.
        Ok(retry(|| rustix::fs::fdatasync(self.file.as_fd()))?)
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.check_writable()?;
        let length = self.length()?;
        if i64::try_from(bytes).is_err() {
            return Err(Errno::FBIG.into());
        }
        match bytes.cmp(&length) {
            std::cmp::Ordering::Greater => self.grow(length, bytes)?,
            std::cmp::Ordering::Less => retry(|| rustix::fs::ftruncate(self.file.as_fd(), bytes))?,
            std::cmp::Ordering::Equal => {}
        }
        self.length().map(drop)
    }
}

pub(crate) fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            outcome => return outcome,
        }
    }
}

/// Calls `step(bytes done)` until all of `wanted` have moved; `None` if no more bytes move.
fn transfer(
    wanted: usize,
    done: usize,
    mut step: impl FnMut(usize) -> Result<usize, Errno>,
) -> Result<Option<()>, Errno> {
    // A short transfer may end inside a block, and the next must start at its beginning.
    let mut done = done - done % BLOCK_BYTES;
    let mut stalls = 0;
    while done < wanted {
        let moved = retry(|| step(done))?;
        let reached = done + moved;
        let next = if reached >= wanted { wanted } else { reached - reached % BLOCK_BYTES };
        stalls = if next > done { 0 } else { stalls + 1 };
        if moved == 0 || stalls == STALLS_MAX {
            return Ok(None);
        }
        done = next;
    }
    Ok(Some(()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(wanted: usize, answers: &[Result<usize, Errno>]) -> (Result<Option<()>, Errno>, Vec<usize>) {
        let (mut answers, mut offsets) = (answers.iter(), Vec::new());
        let outcome = transfer(wanted, 0, |done| {
            offsets.push(done);
            *answers.next().expect("no further call")
        });
        (outcome, offsets)
    }

    #[test]
    fn a_short_transfer_continues_at_a_block_boundary() {
        let (outcome, offsets) = steps(12288, &[Ok(4096), Ok(5000), Ok(4096)]);
        assert_eq!((outcome, offsets), (Ok(Some(())), vec![0, 4096, 8192]));
    }

    #[test]
    fn an_interrupted_transfer_is_repeated() {
        let (outcome, offsets) = steps(8192, &[Err(Errno::INTR), Ok(4096), Err(Errno::INTR), Ok(4096)]);
        assert_eq!((outcome, offsets), (Ok(Some(())), vec![0, 0, 4096, 4096]));
    }

    #[test]
    fn an_error_after_a_short_transfer_is_reported() {
        assert_eq!(steps(8192, &[Ok(4096), Err(Errno::NOSPC)]).0, Err(Errno::NOSPC));
    }

    #[test]
    fn a_transfer_without_progress_ends() {
        assert_eq!(steps(8192, &[Ok(4096), Ok(0)]).0, Ok(None));
        assert_eq!(steps(8192, &[Ok(100); STALLS_MAX as usize]).0, Ok(None));
    }

    fn file(folder: &tempfile::TempDir) -> FileDevice {
        let directory = crate::FileDirectory::open(folder.path()).unwrap();
        directory.open_file("pages", crate::OpenMode::CreateNew).unwrap()
    }

    #[test]
    fn growing_by_zeros_keeps_what_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let device = file(&folder);
        device.set_len(4096).unwrap();
        let mut page = crate::AlignedBuffer::zeroed(4096);
        page.fill(7);
        device.write_at(0, &page).unwrap();
        for (from, to) in [(4096, 4196), (4196, 5000), (5000, 3 * ZEROS_BYTES as u64 + 1)] {
            device.write_zeros(from, to).unwrap();
            assert_eq!(device.len(), to);
        }
        let content = std::fs::read(folder.path().join("pages")).unwrap();
        assert!(
            content[..4096].iter().all(|&byte| byte == 7) && content[4096..].iter().all(|&byte| byte == 0)
        );
    }

    #[test]
    fn without_durable_writes_it_writes_and_syncs() {
        let folder = tempfile::tempdir().unwrap();
        let device = file(&folder);
        device.write_through_refused.store(true, Ordering::Relaxed);
        device.set_len(4096).unwrap();
        let mut page = crate::AlignedBuffer::zeroed(4096);
        page.fill(7);
        device.write_through_at(0, &page).unwrap();
        assert_eq!(std::fs::read(folder.path().join("pages")).unwrap(), page[..]);
    }

    #[test]
    fn writes_find_a_file_that_another_handle_made_longer() {
        let folder = tempfile::tempdir().unwrap();
        let device = file(&folder);
        device.set_len(4096).unwrap();
        let page = crate::AlignedBuffer::zeroed(4096);
        assert_eq!(device.write_at(4096, &page).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        let other = crate::FileDirectory::open(folder.path()).unwrap();
        other.open_file("pages", crate::OpenMode::Write).unwrap().set_len(8192).unwrap();
        device.write_at(4096, &page).unwrap();
        device.write_through_at(4096, &page).unwrap();
    }

    #[test]
    fn a_file_cut_behind_its_back_ends_reads_and_refuses_writes() {
        let folder = tempfile::tempdir().unwrap();
        let device = file(&folder);
        device.set_len(8192).unwrap();
        std::fs::OpenOptions::new()
            .write(true)
            .open(folder.path().join("pages"))
            .unwrap()
            .set_len(5000)
            .unwrap();
        let mut buffer = crate::AlignedBuffer::zeroed(8192);
        assert_eq!(device.read_at(0, &mut buffer).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(device.write_at(0, &buffer).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(device.len(), 5000);
    }
}
