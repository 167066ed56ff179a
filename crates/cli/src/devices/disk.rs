//! Read and write latency of the disk under a directory.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use serde::Serialize;

use terrace_common::failure::{Failure, Outcome};
use terrace_common::latency::Latencies;

/// Bytes per read; also the alignment for direct I/O.
const BLOCK: usize = 4096;
/// Size of the scratch file.
const FILE_BYTES: usize = 32 << 20;
/// Duration of the measurement.
const TIME: Duration = Duration::from_millis(300);

/// A disk and its speed.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Disk {
    /// The measured directory.
    pub path: String,
    /// Median latency of a random 4 KiB read, one at a time.
    pub read_latency_us: f64,
    /// 99th percentile of that latency.
    pub read_latency_p99_us: f64,
    /// Latency of a 4 KiB write with its sync.
    pub durable_write_us: f64,
    /// Whether reads bypassed the page cache; if not, they measured memory.
    pub direct: bool,
}

/// Measures the disk under `directory` with a temporary file.
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
        let offset = random.random_range(0..FILE_BYTES / BLOCK) * BLOCK;
        let started = Instant::now();
        reader.read_exact_at(block, offset as u64).map_err(failed)?;
        latencies.record(started.elapsed());
    }
    let summary = latencies.summary();
    Ok(Disk {
        path: terrace_common::escape::path(directory),
        read_latency_us: summary.p50,
        read_latency_p99_us: summary.p99,
        durable_write_us: durable_write(&file).map_err(failed)?,
        direct,
    })
}

/// Median microseconds of several synced writes.
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

/// A file of random bytes, removed on drop.
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

    /// Opens the file with O_DIRECT, or without if that is refused.
    fn open_direct(&self) -> io::Result<(File, bool)> {
        match OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&self.path) {
            Ok(file) => Ok((file, true)),
            Err(_) => Ok((File::open(&self.path)?, false)),
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Nothing can be done if removal fails.
        let _ = fs::remove_file(&self.path);
    }
}
