//! A directory on a simulated network disk: a mount whose reads and writes wait.
//!
//! Each takes 500 us, and all together do 3,000 a second and 125 MB/s: a volume of a cloud with its
//! default limits. Syncs and names do not wait. Ends when the mount point is unmounted.
//!
//! ```text
//!   network_disk DIRECTORY MOUNTPOINT
//! ```

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use terrace_mount::{Mount, MountConfig, Observed, Observer};

const LATENCY: Duration = Duration::from_micros(500);
const OPERATIONS_A_SECOND: f64 = 3000.0;
const BYTES_A_SECOND: f64 = 125e6;
/// Enough to reach the rate in spite of the latency, and for what waits for it.
const THREADS: usize = 64;

/// When the disk begins the next request.
#[derive(Debug)]
struct Disk(Mutex<Instant>);

impl Observer for Disk {
    fn note(&self, observed: &Observed<'_>) {
        let seconds = (1.0 / OPERATIONS_A_SECOND).max(observed.bytes as f64 / BYTES_A_SECOND);
        let begins = {
            let mut next = self.0.lock().expect("no thread panics");
            let begins = (*next).max(Instant::now());
            *next = begins + Duration::from_secs_f64(seconds);
            begins
        };
        thread::sleep((begins + LATENCY).saturating_duration_since(Instant::now()));
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folders: Vec<_> = std::env::args_os().skip(1).collect();
    let [directory, mountpoint] = &folders[..] else {
        return Err("usage: network_disk DIRECTORY MOUNTPOINT".into());
    };
    let mut config = MountConfig::new(directory, mountpoint);
    config.allow_other = true;
    config.threads = THREADS;
    config.observer = Some(Arc::new(Disk(Mutex::new(Instant::now()))));
    let stats = Mount::start(&config)?.wait(|| false)?;
    println!("{stats}");
    Ok(())
}
