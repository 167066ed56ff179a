//! What a read takes from the directory and from the cache's device, so that a mount does without a
//! cache that cannot help.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, Mode, OFlags, SeekFrom};
use terrace_io::AlignedBuffer;
use terrace_io::stats::Family;

use crate::lower::ALIGNMENT;

/// What a request costs by FUSE, on top of what it reads. A hit has to save more.
const REQUEST: Duration = Duration::from_micros(30);
const READS: u64 = 64;
/// With fewer reads nothing is decided, unless the time was over.
const READS_MIN: usize = 16;
/// With fewer bytes the reads would meet each other.
const BYTES_MIN: u64 = 1 << 20;
/// Limits of the search for files.
const ENTRIES_MAX: usize = 20_000;
const SEARCH_MAX: Duration = Duration::from_secs(1);
/// Limit of the reads of one device.
const READS_MAX: Duration = Duration::from_secs(1);

const MEASURED: Family = Family::gauge(
    "terrace_mount_measured_read_nanoseconds",
    "Reads as the mount measured them when it left out its cache.",
)
.by("from");

terrace_io::stats! {
    /// Medians of direct reads of a block, at offsets spread over all bytes.
    ///
    /// ```
    /// let times = terrace_mount::ReadTimes::default();
    /// assert_eq!(times.cache_nanos, 0);
    /// ```
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
    #[non_exhaustive]
    pub struct ReadTimes {
        /// Nanoseconds from the directory.
        directory_nanos: u64 => MEASURED "directory",
        /// Nanoseconds from the cache's device.
        cache_nanos: u64 => MEASURED "cache",
    }
}

impl fmt::Display for ReadTimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = |nanos: u64| nanos as f64 / 1e3;
        let (directory, cache) = (micros(self.directory_nanos), micros(self.cache_nanos));
        write!(f, "a block takes {directory:.1} us from the directory, {cache:.1} us from the cache's device")
    }
}

impl ReadTimes {
    /// Whether a hit takes less time than a read of the directory without the mount.
    pub(crate) fn are_worth_a_cache(self) -> bool {
        let hit = self.cache_nanos.saturating_add(self.cache_nanos / 4);
        self.directory_nanos > hit.saturating_add(REQUEST.as_nanos() as u64)
    }

    /// Measures both, if they can be read directly and have enough bytes.
    pub(crate) fn measure(source: &Path, cache: &Path, block_bytes: usize) -> Option<ReadTimes> {
        let directory = Files::below(source).median(block_bytes)?;
        // A cache that is new has nothing to read.
        let cache = Files::of(cache).median(block_bytes).or_else(|| {
            let bytes = BYTES_MIN.max(READS_MIN as u64 * block_bytes as u64);
            let scratch = Scratch::beside(cache, bytes).inspect_err(|error| {
                tracing::info!(%error, "the cache's device cannot be measured");
            });
            Files::of(&scratch.ok()?.path()).median(block_bytes)
        })?;
        let nanos = |time: Duration| time.as_nanos() as u64;
        let times = ReadTimes { directory_nanos: nanos(directory), cache_nanos: nanos(cache) };
        tracing::debug!("{times}");
        Some(times)
    }
}

/// A file without a name, filled with bytes that do not repeat.
struct Scratch(File);

impl Scratch {
    fn beside(cache: &Path, bytes: u64) -> io::Result<Scratch> {
        let parent = cache.parent().filter(|parent| !parent.as_os_str().is_empty());
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(CWD, parent.unwrap_or(Path::new(".")), flags, Mode::RUSR | Mode::WUSR)?;
        let mut file = File::from(fd);
        let mut state = 1_u64;
        let words = std::iter::repeat_with(|| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            state.to_le_bytes()
        });
        let content: Vec<u8> = words.take(bytes as usize / 8).flatten().collect();
        file.write_all(&content)?;
        file.sync_all()?;
        Ok(Scratch(file))
    }

    fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }
}

/// Files as one row of bytes.
struct Files {
    /// Each with where it ends in the row.
    ends: Vec<(PathBuf, u64)>,
    bytes: u64,
}

impl Files {
    fn of(path: &Path) -> Files {
        let mut files = Files { ends: Vec::new(), bytes: 0 };
        if let Ok(metadata) = fs::metadata(path) {
            files.add(path.to_owned(), &metadata);
        }
        files
    }

    fn add(&mut self, path: PathBuf, metadata: &fs::Metadata) {
        let end = self.bytes.checked_add(metadata.len());
        if let Some(end) = end.filter(|end| metadata.is_file() && *end > self.bytes) {
            self.bytes = end;
            self.ends.push((path, end));
        }
    }

    /// The files below a directory, if there are many only some. What cannot be read is left out.
    fn below(source: &Path) -> Files {
        let mut files = Files { ends: Vec::new(), bytes: 0 };
        let Ok(device) = fs::metadata(source).map(|metadata| metadata.dev()) else { return files };
        let (begun, mut seen) = (Instant::now(), 0);
        let mut directories = vec![source.to_owned()];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(directory).into_iter().flatten().map_while(Result::ok) {
                seen += 1;
                if seen > ENTRIES_MAX || begun.elapsed() > SEARCH_MAX {
                    return files;
                }
                // Of a link, not of what it leads to.
                let Ok(metadata) = entry.metadata() else { continue };
                match metadata.is_dir() {
                    _ if metadata.dev() != device => {}
                    true => directories.push(entry.path()),
                    false => files.add(entry.path(), &metadata),
                }
            }
        }
        files
    }

    fn median(&self, block_bytes: usize) -> Option<Duration> {
        if self.bytes < BYTES_MIN {
            return None;
        }
        let mut buffer = AlignedBuffer::zeroed(block_bytes.next_multiple_of(ALIGNMENT));
        let begun = Instant::now();
        let (mut times, mut is_enough) = (Vec::new(), false);
        for number in 0..READS {
            // Multiples of the golden ratio, modulo 1, spread evenly, and no device foresees them.
            let part = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let at = ((u128::from(part) * u128::from(self.bytes)) >> 64) as u64;
            times.extend(self.read(at, &mut buffer).ok().flatten());
            is_enough = times.len() >= READS_MIN;
            if begun.elapsed() > READS_MAX {
                is_enough = !times.is_empty();
                break;
            }
        }
        times.sort_unstable();
        is_enough.then(|| times[times.len() / 2])
    }

    /// Times a read past the kernel's cache; `None` of a hole.
    fn read(&self, at: u64, buffer: &mut [u8]) -> io::Result<Option<Duration>> {
        let index = self.ends.partition_point(|(_, end)| *end <= at);
        let Some((path, _)) = self.ends.get(index) else { return Ok(None) };
        let begin = if index == 0 { 0 } else { self.ends[index - 1].1 };
        // A pipe that has taken the file's name does not block.
        let flags = libc::O_DIRECT | libc::O_NOATIME | libc::O_NONBLOCK | libc::O_NOCTTY;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
        let length = buffer.len() as u64;
        let within = (at - begin) / length * length;
        // No device is asked for a hole.
        if rustix::fs::seek(&file, SeekFrom::Data(within))? != within {
            return Ok(None);
        }
        let begun = Instant::now();
        let read = file.read_at(buffer, within)?;
        Ok((read > 0).then(|| begun.elapsed()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hit_must_save_more_than_a_request_costs() {
        let is_worth = |directory_micros: u64, cache_micros: u64| {
            let (directory_nanos, cache_nanos) = (directory_micros * 1000, cache_micros * 1000);
            ReadTimes { directory_nanos, cache_nanos }.are_worth_a_cache()
        };
        // A network disk or a hard disk before local flash, flash before persistent memory.
        assert!(is_worth(500, 80) && is_worth(8000, 80) && is_worth(80, 10));
        // Both in memory, both on flash, and the wrong way round.
        assert!(!is_worth(10, 10) && !is_worth(10, 1) && !is_worth(90, 80) && !is_worth(80, 500));
    }

    #[test]
    fn reads_spread_over_all_files_below_and_spare_holes_and_links() {
        let directory = tempfile::tempdir().expect("a directory");
        let at = |name: &str| directory.path().join(name);
        fs::create_dir_all(at("a/b")).expect("directories");
        for (name, bytes) in [("a/b/long", 3 << 20), ("a/short", 1 << 20), ("empty", 0)] {
            fs::write(at(name), vec![1; bytes]).expect("a file");
        }
        std::os::unix::fs::symlink(at("a/b/long"), at("link")).expect("a link");
        std::os::unix::fs::symlink(directory.path(), at("a/around")).expect("a link");
        let files = Files::below(directory.path());
        let mut names: Vec<_> = files.ends.iter().map(|(path, _)| path.clone()).collect();
        names.sort();
        assert_eq!((names, files.bytes), (vec![at("a/b/long"), at("a/short")], 4 << 20));
        let sparse = File::create(at("sparse")).expect("a file");
        sparse.set_len(1 << 40).expect("a hole");
        let mut buffer = AlignedBuffer::zeroed(4096);
        assert_eq!(Files::of(&at("sparse")).read(1 << 39, &mut buffer).ok().flatten(), None);
        assert_eq!(Files::of(&at("sparse")).median(4096), None);
        assert_eq!(Files::of(&at("missing")).median(4096), None);
    }

    #[test]
    fn a_scratch_file_has_no_name_and_enough_blocks() {
        let directory = tempfile::tempdir().expect("a directory");
        let scratch = match Scratch::beside(&directory.path().join("cache"), 2 << 20) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR)) => {
                eprintln!("left out: this file system has no files without a name");
                return;
            }
            scratch => scratch.expect("a file"),
        };
        assert_eq!(fs::read_dir(directory.path()).expect("a directory").count(), 0);
        let files = Files::of(&scratch.path());
        assert_eq!(files.bytes, 2 << 20);
        let is_direct =
            OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(scratch.path()).is_ok();
        assert_eq!(files.median(64 << 10).is_some(), is_direct);
    }
}
