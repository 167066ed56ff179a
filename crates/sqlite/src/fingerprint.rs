//! Fingerprints, by which a database file is known to be unchanged.
//!
//! A cache that outlives its process must know whether others have changed the file since. The
//! change counter in the file's head misses changes in WAL mode, so the file's times count too. The
//! kernel's clock for them ticks in milliseconds and cannot separate two close changes. So a
//! process that keeps all writers out may *stamp* the file: it moves the modification time forward,
//! by less than a second, to random nanoseconds that no later change will hit. After
//! [`SETTLED_SECONDS`] no stamp is needed.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use rand::RngExt;
use rand::rand_core::UnwrapErr;
use rand::rngs::SysRng;
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_OMIT};
use terrace_cache::CacheConfig;

use crate::header::Header;

const BILLION: i64 = 1_000_000_000;

/// Age after which the next change is sure to have another time.
///
/// Some file systems count whole seconds, and clocks of file servers differ.
const SETTLED_SECONDS: i64 = 10;

/// Equal fingerprints mean equal content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fingerprint {
    pub inode: u64,
    pub bytes: u64,
    /// Seconds and nanoseconds.
    pub modified: [i64; 2],
    pub changed: [i64; 2],
    pub header: Header,
    /// The machine's power cycle in WAL mode, otherwise zeros.
    ///
    /// A power cut may restore an older time over newer synced bytes, which nothing else shows in
    /// WAL mode.
    pub power_cycle: [u8; 16],
}

/// Random numbers from the system.
///
/// A thread-local generator may be gone when an ending thread closes the last connection.
pub(crate) fn system_random() -> UnwrapErr<SysRng> {
    UnwrapErr(SysRng)
}

impl Fingerprint {
    /// The fingerprint of the file at `path` with this header.
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

    /// Whether the next change is sure to have another time.
    pub fn is_settled(&self) -> bool {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
        self.modified[0] + SETTLED_SECONDS < now && self.changed[0] + SETTLED_SECONDS < now
    }

    /// Stamps the file at `path` and returns its new fingerprint.
    ///
    /// The caller keeps all writers out.
    pub fn stamp(self, path: &Path) -> Option<Fingerprint> {
        let [seconds, nanoseconds] = self.modified;
        // Later, never earlier: a backup that compares times must see the change.
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

    /// Length of its encoding.
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
