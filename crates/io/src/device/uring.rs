//! A file whose batches go through io_uring.
//!
//! Single transfers use `pread` and `pwrite`, which are faster for one. A batch takes a ring from
//! the device's pool, submits everything in one call, and waits, so at most [`RINGS_MAX`] batches
//! run at a time. No kernel thread polls: on a busy machine it takes a core from the database.
//! Rings have the file registered, but no buffers: pinned memory is limited.
//!
//! Soundness rests on one rule: **no call returns while the kernel may still touch a buffer.**
//! [`Ring::run`] returns only after every entry that the kernel took has completed, despite any
//! errors. Plain calls then carry out the entries that the kernel did not take, cut short or asked
//! to repeat. If the kernel refuses rings (old, or a sandbox), every batch is a loop of plain
//! calls.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use io_uring::{IoUring, opcode, squeue, types};
use parking_lot::{Condvar, Mutex};

use super::file::{BLOCK_BYTES, FileDevice};
use super::{BlockDevice, Read, Write, check_aligned};

/// Rings per device: the most concurrent batches.
const RINGS_MAX: usize = 4;

/// Entries per ring: the most concurrent transfers of a batch.
const DEPTH: usize = 128;

/// Bytes per entry; plain calls transfer the rest.
const ENTRY_BYTES_MAX: usize = 1 << 30;

/// Consecutive refusals by the kernel before the rest uses plain calls.
const REFUSALS_MAX: u32 = 100;

/// Pause between polls for completions while the kernel refuses to wait.
const PAUSE: Duration = Duration::from_millis(1);

/// A file with a pool of rings for its batches.
///
/// ```
/// use terrace_io::{AlignedBuffer, BlockDevice, FileDirectory, OpenMode, UringDevice, Write};
///
/// let place = tempfile::tempdir()?;
/// let file = FileDirectory::open(place.path())?.open_file("pages", OpenMode::CreateNew)?;
/// let device = UringDevice::new(file);
/// device.set_len(1 << 20)?;
/// let page = AlignedBuffer::zeroed(4096);
/// let writes: Vec<_> = (0..200).map(|number| Write::new(number * 4096, &page)).collect();
/// device.write_batch(&writes)?;
/// println!("through io_uring: {}", device.uring());
/// # std::io::Result::Ok(())
/// ```
#[derive(Debug)]
pub struct UringDevice {
    file: FileDevice,
    rings: Rings,
}

impl UringDevice {
    /// Uses io_uring for batches of `file`, if the kernel allows it.
    pub fn new(file: FileDevice) -> Self {
        Self { file, rings: Rings::new(Ring::new) }
    }

    /// Whether batches go through io_uring; known after the first.
    pub fn uring(&self) -> bool {
        !self.rings.pool.lock().refused
    }

    /// Whether transfers go around the page cache.
    pub fn direct(&self) -> bool {
        self.file.direct()
    }

    /// Runs `count` entries on a ring. Each result is the system call's, or `None` for an entry
    /// that was not carried out.
    ///
    /// # Safety
    /// The buffers in the entries must stay valid, and for reads untouched by others, until this
    /// returns.
    unsafe fn run(&self, count: usize, entry: impl Fn(usize) -> squeue::Entry) -> Vec<Option<i32>> {
        let mut results = vec![None; count];
        if count > 1
            && let Some(mut ring) = self.rings.take(self.file.descriptor())
        {
            // SAFETY: passed on to the caller.
            let intact = unsafe { ring.run(&mut results, entry) };
            self.rings.put_back(ring, intact);
        }
        results
    }
}

pub(crate) fn is_available() -> bool {
    IoUring::new(2).is_ok()
}

impl BlockDevice for UringDevice {
    fn name(&self) -> &str {
        self.file.name()
    }

    fn len(&self) -> u64 {
        self.file.len()
    }

    fn covers(&self, end: u64) -> bool {
        self.file.covers(end)
    }

    fn alignment(&self) -> usize {
        BLOCK_BYTES
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.file.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_at(offset, bytes)
    }

    fn read_batch(&self, reads: &mut [Read<'_>]) {
        let mut ready: Vec<&mut Read<'_>> = Vec::with_capacity(reads.len());
        for read in reads {
            // A forked child shares the parent's rings.
            let process = self.file.check_process();
            read.result =
                process.and_then(|()| check_aligned(self.name(), BLOCK_BYTES, read.offset, read.buffer));
            if read.result.is_ok() {
                ready.push(read);
            }
        }
        let targets: Vec<_> =
            ready.iter_mut().map(|read| (read.offset, read.buffer.as_mut_ptr(), read.buffer.len())).collect();
        let entry = |index: usize| {
            let (offset, start, length): (u64, *mut u8, usize) = targets[index];
            opcode::Read::new(types::Fixed(0), start, length.min(ENTRY_BYTES_MAX) as u32)
                .offset(offset)
                .build()
        };
        // SAFETY: each `Read`, which outlives this call, borrows its buffer exclusively, and
        // nothing here touches it before `run` returns.
        let results = unsafe { self.run(ready.len(), entry) };
        for (read, result) in ready.into_iter().zip(results) {
            read.result = match outcome(result) {
                Outcome::Moved(bytes) if bytes == read.buffer.len() => Ok(()),
                Outcome::Moved(bytes) => self.file.read_rest(read.offset, read.buffer, bytes),
                Outcome::Repeat => self.file.read_at(read.offset, read.buffer),
                Outcome::Failed(error) => Err(error),
            };
        }
    }

    fn write_batch(&self, writes: &[Write<'_>]) -> io::Result<()> {
        self.file.check_writable()?;
        let checks: Vec<_> =
            writes.iter().map(|write| self.file.check_write(write.offset, write.bytes)).collect();
        let ready: Vec<_> =
            writes.iter().zip(&checks).filter(|(_, check)| check.is_ok()).map(|(write, _)| write).collect();
        let entry = |index: usize| {
            let Write { offset, bytes } = *ready[index];
            opcode::Write::new(types::Fixed(0), bytes.as_ptr(), bytes.len().min(ENTRY_BYTES_MAX) as u32)
                .offset(offset)
                .build()
        };
        // SAFETY: `writes`, which outlives this call, borrows the bytes, and the kernel only reads
        // them.
        let mut results = unsafe { self.run(ready.len(), entry) }.into_iter();
        let mut first = Ok(());
        for (write, check) in writes.iter().zip(checks) {
            let written = check.and_then(|()| match outcome(results.next().flatten()) {
                Outcome::Moved(bytes) if bytes == write.bytes.len() => Ok(()),
                Outcome::Moved(bytes) => self.file.write_rest(write.offset, write.bytes, bytes),
                Outcome::Repeat => self.file.write_rest(write.offset, write.bytes, 0),
                Outcome::Failed(error) => Err(error),
            });
            first = first.and(written);
        }
        first
    }

    fn write_through_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_through_at(offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)
    }
}

enum Outcome {
    Moved(usize),
    /// Not carried out: repeat by a plain call.
    Repeat,
    Failed(io::Error),
}

fn outcome(result: Option<i32>) -> Outcome {
    match result {
        Some(bytes) if bytes >= 0 => Outcome::Moved(bytes as usize),
        Some(code) if code != -libc::EINTR && code != -libc::EAGAIN => {
            Outcome::Failed(io::Error::from_raw_os_error(-code))
        }
        _ => Outcome::Repeat,
    }
}

type Create = fn(&OwnedFd) -> io::Result<Ring>;

#[derive(Debug)]
struct Rings {
    pool: Mutex<Pool>,
    freed: Condvar,
    create: Create,
}

#[derive(Debug, Default)]
struct Pool {
    idle: Vec<Ring>,
    /// Existing rings and those being made, idle or in use.
    made: usize,
    /// The kernel refused the first ring; no other will be tried.
    refused: bool,
}

impl Rings {
    fn new(create: Create) -> Self {
        Self { pool: Mutex::default(), freed: Condvar::new(), create }
    }

    /// Takes a ring for one batch; waits while all are in use. `None` if the kernel refuses rings.
    fn take(&self, file: &OwnedFd) -> Option<Ring> {
        let mut pool = self.pool.lock();
        loop {
            if let Some(ring) = pool.idle.pop() {
                return Some(ring);
            }
            if pool.refused {
                return None;
            }
            if pool.made == RINGS_MAX {
                self.freed.wait(&mut pool);
                continue;
            }
            pool.made += 1;
            drop(pool);
            let created = (self.create)(file);
            pool = self.pool.lock();
            match created {
                Ok(ring) => return Some(ring),
                Err(error) => {
                    pool.made -= 1;
                    if pool.made == 0 {
                        tracing::info!(%error, "no io_uring here, batches are loops of plain calls");
                        pool.refused = true;
                        self.freed.notify_all();
                    }
                    // Other rings exist, but this batch need not wait for them.
                    return None;
                }
            }
        }
    }

    /// Returns the ring of a batch. Closes a ring that is not intact, together with its leftover
    /// entries.
    fn put_back(&self, ring: Ring, intact: bool) {
        let mut pool = self.pool.lock();
        if intact {
            pool.idle.push(ring);
        } else {
            pool.made -= 1;
        }
        self.freed.notify_one();
    }
}

/// A ring with the device's file registered as number 0. That saves a kernel lookup per entry.
struct Ring {
    ring: IoUring,
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Ring")
    }
}

impl Ring {
    fn new(file: &OwnedFd) -> io::Result<Self> {
        let ring = IoUring::new(DEPTH as u32)?;
        ring.submitter().register_files(&[file.as_raw_fd()])?;
        Ok(Self { ring })
    }

    /// Carries out one entry per result. Returns whether the ring is reusable. If not, entries that
    /// the kernel did not take remain in it, with result `None`.
    ///
    /// # Safety
    /// As [`UringDevice::run`]. Nothing in here panics while the kernel holds entries.
    unsafe fn run(&mut self, results: &mut [Option<i32>], entry: impl Fn(usize) -> squeue::Entry) -> bool {
        let (mut pushed, mut completed, mut refusals) = (0, 0, 0);
        while completed < results.len() {
            let mut queue = self.ring.submission();
            while pushed < results.len() && pushed - completed < DEPTH {
                // SAFETY: the caller keeps the buffers valid until `run` returns, which is after
                // the completion.
                if unsafe { queue.push(&entry(pushed).user_data(pushed as u64)) }.is_err() {
                    break;
                }
                pushed += 1;
            }
            drop(queue);
            // Refill once half of the ring has completed.
            let under_way = pushed - completed;
            let want = if pushed == results.len() { under_way } else { under_way.div_ceil(2) };
            let waited = self.ring.submit_and_wait(want);
            let before = completed;
            completed += self.collect(results);
            match waited {
                Err(error) if error.kind() != io::ErrorKind::Interrupted && completed == before => {
                    refusals += 1;
                    if refusals == REFUSALS_MAX {
                        let left = self.ring.submission().len();
                        self.drain(results, pushed - left - completed);
                        tracing::warn!(%error, "io_uring takes no more entries, going on by plain calls");
                        return false;
                    }
                    std::thread::sleep(PAUSE);
                }
                _ => refusals = 0,
            }
        }
        true
    }

    fn collect(&mut self, results: &mut [Option<i32>]) -> usize {
        let mut count = 0;
        for completion in self.ring.completion() {
            if let Some(result) = results.get_mut(completion.user_data() as usize) {
                *result = Some(completion.result());
            }
            count += 1;
        }
        count
    }

    /// Waits, without submitting, until the `under_way` entries in the kernel have completed.
    fn drain(&mut self, results: &mut [Option<i32>], mut under_way: usize) {
        while under_way > 0 {
            // Returning from the kernel posts pending completions.
            std::thread::sleep(PAUSE);
            under_way = under_way.saturating_sub(self.collect(results));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AlignedBuffer, FileDirectory, OpenMode};

    fn device(folder: &tempfile::TempDir, create: Create) -> UringDevice {
        let directory = FileDirectory::open(folder.path()).unwrap();
        let file = directory.open_file("pages", OpenMode::CreateNew).unwrap();
        file.set_len(1 << 20).unwrap();
        UringDevice { file, rings: Rings::new(create) }
    }

    fn writes_and_reads_back(device: &UringDevice) {
        let pages: Vec<_> = (0..=255).map(|page| vec_of(page as u8)).collect();
        let writes: Vec<_> =
            pages.iter().enumerate().map(|(index, page)| Write::new(index as u64 * 4096, page)).collect();
        device.write_batch(&writes).unwrap();
        let mut buffers = vec![AlignedBuffer::zeroed(4096); 256];
        let mut reads: Vec<_> = buffers
            .iter_mut()
            .enumerate()
            .map(|(index, buffer)| Read::new(index as u64 * 4096, buffer))
            .collect();
        device.read_batch(&mut reads);
        assert!(reads.iter().all(|read| read.result.is_ok()));
        assert!(buffers.iter().zip(&pages).all(|(buffer, page)| buffer[..] == page[..]));
    }

    fn vec_of(byte: u8) -> AlignedBuffer {
        let mut page = AlignedBuffer::zeroed(4096);
        page.fill(byte);
        page
    }

    #[test]
    fn a_kernel_that_refuses_rings_leaves_plain_calls() {
        let folder = tempfile::tempdir().unwrap();
        let device = device(&folder, |_| Err(io::Error::from_raw_os_error(libc::EPERM)));
        writes_and_reads_back(&device);
        assert!(!device.uring());
    }

    #[test]
    fn a_batch_larger_than_the_ring_is_carried_out_whole() {
        let folder = tempfile::tempdir().unwrap();
        let device = device(&folder, Ring::new);
        writes_and_reads_back(&device);
        assert_eq!(device.uring(), is_available());
    }

    #[test]
    fn more_threads_than_rings_take_turns() {
        let folder = tempfile::tempdir().unwrap();
        let device = device(&folder, Ring::new);
        writes_and_reads_back(&device);
        std::thread::scope(|scope| {
            for _ in 0..3 * RINGS_MAX {
                scope.spawn(|| (0..5).for_each(|_| writes_and_reads_back(&device)));
            }
        });
        assert!(device.rings.pool.lock().made <= RINGS_MAX);
    }

    #[test]
    fn a_completion_is_bytes_an_error_or_to_be_repeated() {
        assert!(matches!(outcome(Some(4096)), Outcome::Moved(4096)));
        assert!(
            matches!(outcome(Some(-libc::EIO)), Outcome::Failed(error) if error.raw_os_error() == Some(libc::EIO))
        );
        for result in [None, Some(-libc::EINTR), Some(-libc::EAGAIN)] {
            assert!(matches!(outcome(result), Outcome::Repeat));
        }
    }
}
