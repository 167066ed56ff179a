//! Recognising a database file that nobody has changed.
//!
//! A cache that outlives its process must know, when it comes back, whether the file was changed meanwhile by somebody who does
//! not know of it. The head of the file has a counter of changes, but in WAL mode not every change counts. So the file's times
//! are looked at, too, and since the kernel's clock for them ticks in milliseconds, a time by itself does not tell a change
//! from the one just before it. Whoever keeps all others out may therefore *stamp* the file: give it a time of modification
//! a fraction of a second later than its own, with nanoseconds drawn by chance, which no later change will hit again.
//!
//! A file that was last changed seconds ago needs no stamp: its next change will be in another tick.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use rand::RngExt;
use rand::rand_core::UnwrapErr;
use rand::rngs::SysRng;
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_OMIT};
use terrace_block::CacheConfig;

use crate::header::Header;

const BILLION: i64 = 1_000_000_000;

/// After how many seconds a file's time is sure to be another than that of its next change. File systems that count in whole
/// seconds are the reason, and clocks of file servers that are not quite this machine's.
const SETTLED_SECONDS: i64 = 10;

/// What is known of a file's content without reading it. Two that are equal are of the same content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fingerprint {
    pub inode: u64,
    pub bytes: u64,
    /// Seconds and nanoseconds.
    pub modified: [i64; 2],
    pub changed: [i64; 2],
    pub header: Header,
    /// For a file in WAL mode the machine's life since it was switched on, zeros otherwise. Syncing a file's bytes need not sync its times: after
    /// a power cut an older time may be back over newer bytes, and in WAL mode nothing else tells.
    pub power_cycle: [u8; 16],
}

/// The system's random numbers. A generator of the thread's own may be gone when the last connection is closed: a thread that ends drops
/// what it keeps in any order.
pub(crate) fn system_random() -> UnwrapErr<SysRng> {
    UnwrapErr(SysRng)
}

impl Fingerprint {
    /// The fingerprint of the file at `path`, whose head is `header`; none if it cannot be had.
    pub fn of(path: &Path, header: Header) -> Option<Fingerprint> {
        let stat = rustix::fs::stat(path).ok()?;
        let power_cycle = if header.is_wal { CacheConfig::machine_power_cycle()? } else { [0; 16] };
        Some(Fingerprint {
            inode: stat.st_ino,
            bytes: u64::try_from(stat.st_size).ok()?,
            modified: [stat.st_mtime, stat.st_mtime_nsec as i64],
            changed: [stat.st_ctime, stat.st_ctime_nsec as i64],
            header,
            power_cycle,
        })
    }

    /// Whether the last change was so long ago that the next one will have another time.
    pub fn is_settled(&self) -> bool {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
        self.modified[0] + SETTLED_SECONDS < now && self.changed[0] + SETTLED_SECONDS < now
    }

    /// Stamps the file at `path`, of which this is the fingerprint; gives the new one if that worked. Only for who keeps out
    /// everybody who would write.
    pub fn stamp(self, path: &Path) -> Option<Fingerprint> {
        let [seconds, nanoseconds] = self.modified;
        // Later, never earlier: a backup that goes by times must not pass over the file.
        let modified = match BILLION - 1 - nanoseconds {
            0..1_000_000 => [seconds + 1, system_random().random_range(0..BILLION)],
            _ => [seconds, system_random().random_range(nanoseconds + 1..BILLION)],
        };
        let times = Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            last_modification: Timespec { tv_sec: modified[0], tv_nsec: modified[1] },
        };
        rustix::fs::utimensat(CWD, path, &times, AtFlags::empty()).ok()?;
        Fingerprint::of(path, self.header).filter(|stamped| stamped.modified == modified)
    }

    /// Bytes of one in a file.
    pub const BYTES: usize = 8 + 8 + 32 + Header::BYTES + 16;

    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = Vec::with_capacity(Self::BYTES);
        bytes.extend(self.inode.to_le_bytes());
        bytes.extend(self.bytes.to_le_bytes());
        bytes.extend([self.modified, self.changed].into_iter().flatten().flat_map(i64::to_le_bytes));
        bytes.extend(self.header.to_bytes());
        bytes.extend(self.power_cycle);
        bytes.try_into().expect("the sum of the parts")
    }
}
