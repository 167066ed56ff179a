//! How long a random read takes on the disk under a directory.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use serde::Serialize;

use crate::failure::{Failure, Outcome};
use crate::workload::latency::Latencies;

/// Bytes of a read, and what direct access wants aligned.
const BLOCK: usize = 4096;
/// Bytes of the file that is made where there is no database to read.
const FILE_BYTES: usize = 32 << 20;
/// How long is measured.
const TIME: Duration = Duration::from_millis(300);

/// A disk and its speed.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Disk {
    /// The directory asked about.
    pub path: String,
    /// Median time of a 4 KiB read at a random place, one at a time.
    pub read_latency_us: f64,
    /// Its 99th percentile.
    pub read_latency_p99_us: f64,
    /// Time of a 4 KiB write with the sync that makes it durable.
    pub durable_write_us: f64,
    /// Whether reads went past the page cache; where not, the latency is that of memory.
    pub direct: bool,
}

/// Measures the disk under `directory`, in a file that is removed again.
pub fn measure(directory: &Path) -> Outcome<Disk> {
    let failed = |error: io::Error| Failure::file("measuring the disk under", directory, error);
    let file = Scratch::create(directory).map_err(failed)?;
    let (reader, direct) = file.open_direct().map_err(failed)?;
    let mut latencies = Latencies::default();
    let mut random = SmallRng::seed_from_u64(1);
    let mut memory = vec![0; 2 * BLOCK];
    let start = memory.as_ptr().align_offset(BLOCK);
    let block = &mut memory[start..start + BLOCK];
    let began = Instant::now();
    while began.elapsed() < TIME {
        let place = random.random_range(0..FILE_BYTES / BLOCK) * BLOCK;
        let started = Instant::now();
        reader.read_exact_at(block, place as u64).map_err(failed)?;
        latencies.record(started.elapsed());
    }
    let summary = latencies.summary();
    Ok(Disk {
        path: crate::escape::path(directory),
        read_latency_us: summary.p50,
        read_latency_p99_us: summary.p99,
        durable_write_us: durable_write(&file).map_err(failed)?,
        direct,
    })
}

/// Median microseconds of a few synced writes.
fn durable_write(scratch: &Scratch) -> io::Result<f64> {
    let mut latencies = Latencies::default();
    for block in 0..50u64 {
        let started = Instant::now();
        scratch.file.write_all_at(&[7; BLOCK], block * BLOCK as u64)?;
        scratch.file.sync_data()?;
        latencies.record(started.elapsed());
    }
    Ok(latencies.summary().p50)
}

/// A file of random bytes that is removed when dropped.
struct Scratch {
    path: PathBuf,
    file: File,
}

impl Scratch {
    fn create(directory: &Path) -> io::Result<Scratch> {
        let path = directory.join(format!(".terrace-devices-{}", std::process::id()));
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        let mut scratch = Scratch { path, file };
        let mut random = SmallRng::seed_from_u64(2);
        let mut chunk = vec![0u8; 1 << 20];
        for _ in 0..FILE_BYTES / chunk.len() {
            random.fill(&mut chunk[..]);
            scratch.file.write_all(&chunk)?;
        }
        scratch.file.sync_all()?;
        Ok(scratch)
    }

    /// The file for reading past the page cache; through it where that is refused.
    fn open_direct(&self) -> io::Result<(File, bool)> {
        match OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&self.path) {
            Ok(file) => Ok((file, true)),
            Err(_) => Ok((File::open(&self.path)?, false)),
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Nothing is left to be done about a file that cannot be removed.
        let _ = fs::remove_file(&self.path);
    }
}
