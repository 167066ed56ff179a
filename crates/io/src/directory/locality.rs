//! Whether a directory is on a file system of this machine.
//!
//! A local file system keeps unsynced writes as long as the machine runs; a file server may stop on
//! its own and lose them. The file system type decides; unlisted types are not local. An overlay
//! counts as its upper layer. If that is hidden, as in most containers, it counts as local: the
//! kernel refuses most network file systems there. Network block devices remain undetected.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

const OVERLAY: u32 = 0x794c_7630;

/// File systems on devices of this machine, or in its memory.
const LOCAL: [u32; 18] = [
    0xef53,      // ext2, ext3, ext4
    0x5846_5342, // XFS
    0x9123_683e, // Btrfs
    0xf2f5_2010, // F2FS
    0x2fc1_2fc1, // ZFS
    0xca45_1a4e, // bcachefs
    0x5265_4973, // ReiserFS
    0x3153_464a, // JFS
    0x3434,      // NILFS
    0x0102_1994, // tmpfs
    0x8584_58f6, // ramfs
    0x9584_58f6, // hugetlbfs
    0x4d44,      // FAT
    0x2011_bab0, // exFAT
    0x7366_746e, // NTFS
    0x482b,      // HFS+
    0x1501_3346, // UDF
    0x2405_1905, // UBIFS
];

/// Whether this file system type is local. `upper` returns the type of an overlay's upper layer, if
/// visible.
fn is_local_kind(kind: u32, upper: impl FnOnce() -> Option<u32>) -> bool {
    match kind {
        OVERLAY => upper().is_none_or(|kind| LOCAL.contains(&kind)),
        kind => LOCAL.contains(&kind),
    }
}

/// Whether the directory with this `handle` and `path` is local; false if unknown.
pub(super) fn is_local(handle: &std::os::fd::OwnedFd, path: &Path) -> bool {
    let Ok(kind) = rustix::fs::fstatfs(handle) else { return false };
    is_local_kind(kind.f_type as u32, || {
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let upper = upper_of(&mounts, &fs::canonicalize(path).ok()?)?;
        rustix::fs::statfs(&upper).ok().map(|kind| kind.f_type as u32)
    })
}

/// The upper layer of the overlay that contains `path`, from the text of `/proc/self/mountinfo`.
fn upper_of(mounts: &str, path: &Path) -> Option<PathBuf> {
    let of_line = |line: &str| {
        let (mount, rest) = line.split_once(" - ")?;
        let point = PathBuf::from(unescaped(mount.split(' ').nth(4)?));
        let mut rest = rest.split(' ');
        let (kind, options) = (rest.next()?, rest.nth(1)?);
        path.starts_with(&point).then(|| (point.components().count(), kind.to_owned(), options.to_owned()))
    };
    // Of two mounts at one point the later hides the earlier.
    let (_, kind, options) = mounts.lines().filter_map(of_line).max_by_key(|&(depth, ..)| depth)?;
    let upper = options.split(',').find_map(|option| option.strip_prefix("upperdir="));
    upper.filter(|_| kind == "overlay").map(|upper| PathBuf::from(unescaped(upper)))
}

/// Decodes octal escapes: a backslash and three digits.
fn unescaped(text: &str) -> std::ffi::OsString {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()).filter(|_| first == b'\\') {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    std::ffi::OsStr::from_bytes(&bytes).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NFS: u32 = 0x6969;
    const FUSE: u32 = 0x6573_5546;

    #[test]
    fn network_file_systems_and_unknown_ones_are_not_local() {
        let cifs = [0xff53_4d42, 0xfe53_4d42, 0x517b];
        let others =
            [NFS, FUSE, 0x0102_1997, 0x00c3_6400, 0x0bd0_0bd0, 0x4750_4653, 0x5346_414f, 0x1234_5678];
        for kind in cifs.into_iter().chain(others) {
            assert!(!is_local_kind(kind, || panic!("it is no overlay")), "{kind:x}");
        }
        for kind in [0xef53, 0x5846_5342, 0x0102_1994] {
            assert!(is_local_kind(kind, || panic!("it is no overlay")), "{kind:x}");
        }
    }

    #[test]
    fn an_overlay_is_as_local_as_its_upper_layer() {
        for (upper, is_local) in [(None, true), (Some(0xef53), true), (Some(FUSE), false), (Some(NFS), false)]
        {
            assert_eq!(is_local_kind(OVERLAY, || upper), is_local, "{upper:x?}");
        }
    }

    #[test]
    fn the_upper_layer_is_that_of_the_innermost_mount() {
        let mounts = "\
21 1 0:20 / / rw - overlay overlay rw,lowerdir=/l,upperdir=/layers/u,workdir=/layers/w\n\
22 21 0:21 / /data rw shared:3 - nfs server:/x rw,vers=4\n\
23 21 0:22 / /data/a\\040b rw - overlay over rw,lowerdir=/l,upperdir=/net/u\\0401,workdir=/w\n\
24 21 8:1 / /var rw - ext4 /dev/sda1 rw\n";
        let upper = |path: &str| upper_of(mounts, Path::new(path));
        assert_eq!(upper("/srv/x"), Some("/layers/u".into()));
        assert_eq!(upper("/data/a b/c"), Some("/net/u 1".into()));
        assert_eq!(
            (upper("/data/a"), upper("/var/x"), upper("/variety")),
            (None, None, Some("/layers/u".into()))
        );
    }
}
