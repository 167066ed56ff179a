//! Cost of populating and releasing pages, for each system interface.
//!
//! ```text
//! cargo run --release -p terrace-io --example mapping [ROUNDS]
//! ```
//!
//! For each page size, batches of 1 to 128 pages, scattered or adjacent, by one thread and by two.
//! Prints nanoseconds per page: the median of the rounds, in which the ways alternate. Populating
//! includes storing the content, so that ways that touch or copy compare with ways that only map.
//! Decision: docs/decisions/0015-mapped-pages.md.
#![allow(unsafe_code, reason = "the ways that were not chosen are nowhere else")]

use std::ffi::c_void;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Barrier;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use rustix::mm::{Advice, UserfaultfdFlags, madvise};
use terrace_io::Region;

const BATCHES: [usize; 4] = [1, 8, 32, 128];
/// Address range of one thread's scattered pages, bytes.
const SPREAD_BYTES: usize = 4 << 30;
/// Bytes measured per round and way; also the most resident at a time.
const ROUND_BYTES: usize = 16 << 20;
const THREADS_MAX: usize = 2;

/// A way to populate pages, or to release them.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Touch,
    Populate,
    PopulateVector,
    Copy,
    Move,
    DontNeed,
    DontNeedVector,
    Free,
}

const FILLS: [Way; 5] = [Way::Touch, Way::Populate, Way::PopulateVector, Way::Copy, Way::Move];
const RELEASES: [Way; 3] = [Way::DontNeed, Way::DontNeedVector, Way::Free];

impl Way {
    fn name(self) -> &'static str {
        match self {
            Way::Touch => "touch",
            Way::Populate => "populate",
            Way::PopulateVector => "p. vector",
            Way::Copy => "uffd copy",
            Way::Move => "uffd move",
            Way::DontNeed => "dontneed",
            Way::DontNeedVector => "d. vector",
            Way::Free => "free",
        }
    }
}

/// The measured region, and the descriptors that change its memory.
struct Setup {
    region: Region,
    faults: Option<OwnedFd>,
}

impl Setup {
    fn new(huge: bool) -> io::Result<Setup> {
        let region = Region::reserve_sparse(2 * SPREAD_BYTES * THREADS_MAX, 4096)?;
        let faults = match huge {
            true => None,
            false => faults_of(&region).inspect_err(|error| eprintln!("no userfaultfd: {error}")).ok(),
        };
        if huge {
            // SAFETY: advice for our own mapping; no byte changes.
            unsafe { madvise(region.as_ptr().cast(), region.len(), Advice::LinuxHugepage)? };
        }
        Ok(Setup { region, faults })
    }

    fn advise(&self, range: &Range<usize>, advice: Advice) -> io::Result<()> {
        // SAFETY: the range is in the region, whose bytes are only visible as atomics.
        unsafe { madvise(self.region.as_ptr().add(range.start).cast(), range.len(), advice)? };
        Ok(())
    }

    fn advise_all(&self, ranges: &[Range<usize>], advice: Advice) -> io::Result<()> {
        let vectors: Vec<libc::iovec> = runs(ranges)
            .map(|range| libc::iovec {
                iov_base: self.region.as_ptr().wrapping_add(range.start).cast::<c_void>(),
                iov_len: range.len(),
            })
            .collect();
        // SAFETY: as in `advise`; the vectors live until the call returns.
        let done = unsafe {
            libc::syscall(
                libc::SYS_process_madvise,
                PIDFD_SELF_THREAD,
                vectors.as_ptr(),
                vectors.len(),
                advice as libc::c_int,
                0,
            )
        };
        let bytes: usize = ranges.iter().map(Range::len).sum();
        match done {
            -1 => Err(io::Error::last_os_error()),
            done if done as usize == bytes => Ok(()),
            done => Err(io::Error::other(format!("{done} of {bytes} bytes"))),
        }
    }

    fn fill(&self, way: Way, ranges: &[Range<usize>], content: &[u64]) -> io::Result<()> {
        match way {
            Way::Populate => {
                runs(ranges).try_for_each(|run| self.advise(&run, Advice::LinuxPopulateWrite))?;
            }
            Way::PopulateVector => self.advise_all(ranges, Advice::LinuxPopulateWrite)?,
            Way::Copy => {
                let faults = self.faults.as_ref().ok_or(io::ErrorKind::Unsupported)?;
                let from = content.as_ptr().addr();
                return ranges.iter().try_for_each(|range| self.transfer(faults, UFFDIO_COPY, from, range));
            }
            Way::Move => {
                let faults = self.faults.as_ref().ok_or(io::ErrorKind::Unsupported)?;
                for range in ranges {
                    let from = self.region.as_ptr().addr() + spare(range).start;
                    self.transfer(faults, UFFDIO_MOVE, from, range)?;
                }
            }
            _ => {}
        }
        for range in ranges {
            let words = self.region.words(range.clone());
            words.iter().zip(content).for_each(|(word, &new)| word.store(new, Relaxed));
        }
        Ok(())
    }

    /// Copies the content at `from` to `range`, or moves its memory there.
    fn transfer(&self, faults: &OwnedFd, request: u64, from: usize, range: &Range<usize>) -> io::Result<()> {
        let to = self.region.as_ptr().addr() + range.start;
        let mut transfer =
            Transfer { to: to as u64, from: from as u64, length: range.len() as u64, mode: 0, done: 0 };
        // SAFETY: the argument has the request's type; the range has no memory, and all bytes of
        // the region are visible as atomics only.
        match unsafe { libc::ioctl(faults.as_raw_fd(), request as libc::Ioctl, &raw mut transfer) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn release(&self, way: Way, ranges: &[Range<usize>]) -> io::Result<()> {
        match way {
            Way::DontNeedVector => self.advise_all(ranges, Advice::LinuxDontNeed),
            Way::Free => runs(ranges).try_for_each(|run| self.advise(&run, Advice::LinuxFree)),
            _ => runs(ranges).try_for_each(|run| self.advise(&run, Advice::LinuxDontNeed)),
        }
    }
}

/// Merges adjacent ranges.
fn runs(ranges: &[Range<usize>]) -> impl Iterator<Item = Range<usize>> {
    ranges.chunk_by(|one, next| one.end == next.start).map(|run| run[0].start..run[run.len() - 1].end)
}

/// `struct uffdio_api`, `uffdio_register` and `uffdio_copy` of linux/userfaultfd.h; `uffdio_move`
/// has the layout of `uffdio_copy`.
#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct Register {
    start: u64,
    length: u64,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct Transfer {
    to: u64,
    from: u64,
    length: u64,
    mode: u64,
    done: i64,
}

const UFFDIO_API: u64 = 0xc018_aa3f;
const UFFDIO_REGISTER: u64 = 0xc020_aa00;
const UFFDIO_COPY: u64 = 0xc028_aa03;
const UFFDIO_MOVE: u64 = 0xc028_aa05;
/// The calling thread, in linux/pidfd.h.
const PIDFD_SELF_THREAD: libc::c_int = -10000;
/// Needs no privilege.
const USER_MODE_ONLY: UserfaultfdFlags = UserfaultfdFlags::from_bits_retain(1);
/// Reports only writes to protected pages, of which there are none: missing pages read as zeros.
const REGISTER_MODE_WP: u64 = 2;

fn faults_of(region: &Region) -> io::Result<OwnedFd> {
    // SAFETY: it changes only this program's own region.
    let faults = unsafe { rustix::mm::userfaultfd(UserfaultfdFlags::CLOEXEC | USER_MODE_ONLY)? };
    let mut api = Api { api: 0xaa, features: 0, ioctls: 0 };
    let mut register = Register {
        start: region.as_ptr().addr() as u64,
        length: region.len() as u64,
        mode: REGISTER_MODE_WP,
        ioctls: 0,
    };
    for (request, argument) in [
        (UFFDIO_API, (&raw mut api).cast::<c_void>()),
        (UFFDIO_REGISTER, (&raw mut register).cast::<c_void>()),
    ] {
        // SAFETY: the argument has the request's type.
        if unsafe { libc::ioctl(faults.as_raw_fd(), request as libc::Ioctl, argument) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(faults)
}

#[derive(Clone, Copy)]
struct Case {
    page_bytes: usize,
    batch: usize,
    adjacent: bool,
    threads: usize,
}

/// The pages of one batch of `thread`, sorted.
fn pages(case: Case, thread: usize, random: &mut u64) -> Vec<Range<usize>> {
    let (first, count) = (thread * SPREAD_BYTES / case.page_bytes, SPREAD_BYTES / case.page_bytes);
    let mut draw = || {
        // Xorshift (Marsaglia 2003).
        *random ^= *random << 13;
        *random ^= *random >> 7;
        *random ^= *random << 17;
        *random as usize
    };
    let mut pages: Vec<usize> = match case.adjacent {
        true => {
            let start = draw() % (count - case.batch);
            (start..start + case.batch).collect()
        }
        false => (0..case.batch).map(|_| draw() % count).collect(),
    };
    pages.sort_unstable();
    pages.dedup();
    let bytes = |page: usize| (first + page) * case.page_bytes..(first + page + 1) * case.page_bytes;
    pages.into_iter().map(bytes).collect()
}

/// The source of the memory that moves to `range`.
fn spare(range: &Range<usize>) -> Range<usize> {
    let beside = SPREAD_BYTES * THREADS_MAX;
    range.start + beside..range.end + beside
}

/// Nanoseconds per page to fill and to release, as seen by each thread.
fn measure(setup: &Setup, case: Case, fill: Way, release: Way, seed: u64) -> io::Result<(f64, f64)> {
    let batches = (ROUND_BYTES / (case.page_bytes * case.batch)).max(1);
    let barrier = Barrier::new(case.threads);
    let one = |thread: usize| -> io::Result<(f64, f64)> {
        let mut random = (seed << 8) + thread as u64 + 1;
        let content = vec![seed | 1; case.page_bytes / 8];
        let (mut filling, mut releasing, mut count) = (Duration::ZERO, Duration::ZERO, 0);
        barrier.wait();
        for _ in 0..batches {
            let ranges = pages(case, thread, &mut random);
            if fill == Way::Move {
                let spares: Vec<Range<usize>> = ranges.iter().map(spare).collect();
                setup.advise_all(&spares, Advice::LinuxPopulateWrite)?;
            }
            let begun = Instant::now();
            let filled = setup.fill(fill, &ranges, &content);
            let between = Instant::now();
            setup.release(release, &ranges)?;
            releasing += between.elapsed();
            filling += between - begun;
            count += ranges.len();
            filled?;
            if release == Way::Free {
                // Lazily freed memory is still resident.
                setup.release(Way::DontNeed, &ranges)?;
            }
        }
        let each = |time: Duration| time.as_nanos() as f64 / f64::from(count as u32);
        Ok((each(filling), each(releasing)))
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..case.threads).map(|thread| scope.spawn(move || one(thread))).collect();
        let mut sum = (0.0, 0.0);
        for thread in threads {
            let (fill, release) = thread.join().expect("a thread only measures")?;
            sum = (sum.0 + fill / case.threads as f64, sum.1 + release / case.threads as f64);
        }
        Ok(sum)
    })
}

fn median(mut figures: Vec<f64>) -> Option<f64> {
    figures.sort_unstable_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied()
}

fn table(setup: &Setup, page_bytes: usize, rounds: u64) {
    for threads in 1..=THREADS_MAX {
        for adjacent in [false, true] {
            for batch in BATCHES {
                if batch * page_bytes > ROUND_BYTES || adjacent && batch == 1 {
                    continue;
                }
                let case = Case { page_bytes, batch, adjacent, threads };
                let mut figures = vec![Vec::new(); FILLS.len() + RELEASES.len()];
                for round in 1..=rounds {
                    for (at, &fill) in FILLS.iter().enumerate() {
                        if let Ok((time, _)) = measure(setup, case, fill, Way::DontNeed, round) {
                            figures[at].push(time);
                        }
                    }
                    for (at, &release) in RELEASES.iter().enumerate() {
                        if let Ok((_, time)) = measure(setup, case, Way::Populate, release, round) {
                            figures[FILLS.len() + at].push(time);
                        }
                    }
                }
                let order = if adjacent { "adjacent" } else { "scattered" };
                let figures: Vec<String> = figures
                    .into_iter()
                    .map(|figures| median(figures).map_or("-".to_owned(), |time| format!("{time:.0}")))
                    .collect();
                println!(
                    "| {} | {threads} | {order} | {batch} | {} |",
                    page_bytes / 1024,
                    figures.join(" | ")
                );
            }
        }
    }
}

fn main() -> io::Result<()> {
    let rounds = std::env::args().nth(1).and_then(|rounds| rounds.parse().ok()).unwrap_or(5);
    let names: Vec<&str> = FILLS.iter().chain(&RELEASES).map(|way| way.name()).collect();
    println!("ns a page\n| KiB | threads | pages | batch | {} |", names.join(" | "));
    println!("|{}", "---|".repeat(4 + names.len()));
    let setup = Setup::new(false)?;
    for page_bytes in [4 << 10, 16 << 10, 64 << 10, 2 << 20] {
        table(&setup, page_bytes, rounds);
    }
    println!("in huge pages");
    table(&Setup::new(true)?, 2 << 20, rounds);
    Ok(())
}
