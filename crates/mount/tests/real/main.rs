//! A real mount: files behave as below, and no cached byte is stale.

mod left_out;
mod passed;

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rustix::fs::{AtFlags, CWD, FallocateFlags, RenameFlags, SeekFrom, Timespec, Timestamps, XattrFlags};
use terrace_mount::{Mount, MountCache, MountConfig, MountStats, Observed, Observer};

const MIB: usize = 1 << 20;

/// Directories below, of the mount, and of the cache.
struct Scene {
    directory: tempfile::TempDir,
}

/// Whether mounts are possible; says so if not.
fn may_mount() -> bool {
    // Root in a container often may not mount.
    let may_administer = rustix::thread::capabilities(None)
        .is_ok_and(|sets| sets.effective.contains(rustix::thread::CapabilitySet::SYS_ADMIN));
    let fuse = OpenOptions::new().read(true).write(true).open("/dev/fuse");
    let is_possible = may_administer && fuse.is_ok();
    if !is_possible {
        let must = std::env::var("TERRACE_REQUIRE_MOUNT").is_ok_and(|value| value == "1");
        assert!(!must, "mounts are required here, but there is no /dev/fuse or no permission");
        eprintln!("left out: no /dev/fuse or no permission to mount");
    }
    is_possible
}

impl Scene {
    fn new() -> Option<Scene> {
        let directory = may_mount().then(|| tempfile::tempdir().expect("a directory"))?;
        for name in ["slow", "mount", "fast"] {
            fs::create_dir(directory.path().join(name)).expect("a directory");
        }
        Some(Scene { directory })
    }

    fn slow(&self, name: &str) -> PathBuf {
        self.directory.path().join("slow").join(name)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join("mount").join(name)
    }

    /// A cache that is used even though it is on the directory's device.
    fn cache(&self, name: &str) -> MountCache {
        let path = self.directory.path().join("fast").join(name);
        MountCache { always: true, ..MountCache::new(path, 16 << 20) }
    }

    fn config(&self) -> MountConfig {
        let mut config = MountConfig::new(self.slow(""), self.at(""));
        config.threads = 4;
        config.quiet = Duration::ZERO;
        config
    }

    fn plain(&self) -> Mount {
        Mount::start(&self.config()).expect("a mount")
    }

    fn cached(&self) -> Mount {
        let mut config = self.config();
        config.cache = Some(self.cache("cache"));
        Mount::start(&config).expect("a mount with a cache")
    }

    /// A mount without a cache that serves all itself.
    fn served(&self) -> Mount {
        let mut config = self.config();
        config.passthrough = false;
        Mount::start(&config).expect("a mount")
    }

    /// Runs `test` on a mount whose files the kernel passes, on one that serves them, and on one
    /// with a cache.
    fn each(test: impl Fn(&Scene)) {
        for start in [Scene::plain, Scene::served, Scene::cached] {
            let Some(scene) = Scene::new() else { return };
            let mount = start(&scene);
            test(&scene);
            mount.unmount().expect("the end");
        }
    }
}

fn bytes(seed: u8, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at / 7 + at / 4096) as u8 ^ seed).collect()
}

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).expect("a file")
}

/// Reads the file twice, so that the second time comes from the cache.
fn read_twice(path: &Path) -> Vec<u8> {
    let first = fs::read(path).expect("a file");
    assert!(first == fs::read(path).expect("a file"), "{}", path.display());
    first
}

fn hits_of(stats: &MountStats) -> u64 {
    stats.cache.as_ref().expect("a cache").hits
}

#[test]
fn names_links_and_directories() {
    Scene::each(|scene| {
        fs::create_dir(scene.at("d")).expect("a directory");
        fs::write(scene.at("d/a"), "one").expect("a file");
        fs::hard_link(scene.at("d/a"), scene.at("b")).expect("a link");
        symlink("d/a", scene.at("s")).expect("a symbolic link");
        assert_eq!(fs::read(scene.at("s")).expect("a file"), b"one");
        assert_eq!(fs::read_link(scene.at("s")).expect("a link"), Path::new("d/a"));
        let (above, below) = (fs::metadata(scene.at("b")), fs::metadata(scene.slow("b")));
        let (above, below) = (above.expect("a file"), below.expect("a file"));
        assert_eq!((above.nlink(), above.ino(), above.mode()), (2, below.ino(), below.mode()));
        fs::rename(scene.at("b"), scene.at("c")).expect("a rename");
        assert!(!scene.slow("b").exists() && scene.slow("c").exists());
        let names = || -> Vec<_> {
            let entries = fs::read_dir(scene.at("")).expect("a directory");
            let mut names: Vec<_> = entries.map(|entry| entry.expect("an entry").file_name()).collect();
            names.sort();
            names
        };
        assert_eq!(names(), ["c", "d", "s"]);
        assert!(fs::remove_dir(scene.at("d")).is_err());
        fs::remove_file(scene.at("d/a")).expect("removed");
        fs::remove_dir(scene.at("d")).expect("removed");
        rustix::fs::mknodat(CWD, scene.at("p"), rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("a pipe");
        assert_eq!(names(), ["c", "p", "s"]);
        for number in 0..1500 {
            fs::write(scene.slow(&format!("many-{number}")), "").expect("a file");
        }
        assert_eq!(names().len(), 1503);
    });
}

#[test]
fn renames_over_open_files_and_flags() {
    Scene::each(|scene| {
        fs::write(scene.at("old"), bytes(1, 100_000)).expect("a file");
        fs::write(scene.at("new"), bytes(2, 100_000)).expect("a file");
        let old = open(&scene.at("old"));
        read_twice(&scene.at("old"));
        fs::rename(scene.at("new"), scene.at("old")).expect("a rename");
        let mut held = vec![0; 100_000];
        old.read_exact_at(&mut held, 0).expect("the replaced file");
        assert!(held == bytes(1, 100_000));
        assert!(read_twice(&scene.at("old")) == bytes(2, 100_000));
        fs::write(scene.at("x"), "x").expect("a file");
        let flags = RenameFlags::NOREPLACE;
        assert!(rustix::fs::renameat_with(CWD, scene.at("x"), CWD, scene.at("old"), flags).is_err());
        let flags = RenameFlags::EXCHANGE;
        rustix::fs::renameat_with(CWD, scene.at("x"), CWD, scene.at("old"), flags).expect("an exchange");
        assert_eq!(fs::read(scene.at("old")).expect("a file"), b"x");
        assert!(read_twice(&scene.at("x")) == bytes(2, 100_000));
    });
}

#[test]
fn an_unlinked_open_file_stays() {
    Scene::each(|scene| {
        fs::write(scene.at("f"), bytes(1, 200_000)).expect("a file");
        let file = open(&scene.at("f"));
        fs::remove_file(scene.at("f")).expect("removed");
        file.write_all_at(&bytes(9, 8192), 8192).expect("written");
        let mut found = vec![0; 200_000];
        file.read_exact_at(&mut found, 0).expect("read");
        let mut expected = bytes(1, 200_000);
        expected[8192..16384].copy_from_slice(&bytes(9, 8192));
        assert!(found == expected);
        assert_eq!(file.metadata().expect("a file").nlink(), 0);
        fs::write(scene.at("f"), bytes(3, 200_000)).expect("another file");
        assert!(read_twice(&scene.at("f")) == bytes(3, 200_000));
    });
}

#[test]
fn attributes_of_files() {
    Scene::each(|scene| {
        let path = scene.at("f");
        fs::write(&path, bytes(1, 50_000)).expect("a file");
        read_twice(&path);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o4751)).expect("changed");
        std::os::unix::fs::chown(&path, Some(7), Some(8)).expect("changed");
        let time = Timespec { tv_sec: -5, tv_nsec: 0 };
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(CWD, &path, &times, AtFlags::empty()).expect("changed");
        rustix::fs::setxattr(&path, "user.colour", b"blue", XattrFlags::empty()).expect("set");
        let below = fs::metadata(scene.slow("f")).expect("a file");
        assert_eq!((below.mode() & 0o7777, below.uid(), below.gid()), (0o751, 7, 8));
        assert_eq!((below.mtime(), below.mtime_nsec()), (-5, 0));
        let above = fs::metadata(&path).expect("a file");
        assert_eq!((above.mtime(), above.mtime_nsec(), above.ctime_nsec()), (-5, 0, below.ctime_nsec()));
        let mut value = [0; 16];
        let length = rustix::fs::getxattr(&path, "user.colour", &mut value).expect("an attribute");
        assert_eq!(&value[..length], b"blue");
        let mut names = [0u8; 256];
        let length = rustix::fs::listxattr(&path, &mut names).expect("names");
        assert!(names[..length].windows(11).any(|name| name == b"user.colour"));
        rustix::fs::removexattr(&path, "user.colour").expect("removed");
        assert!(rustix::fs::getxattr(&path, "user.colour", &mut value).is_err());
        assert!(read_twice(&path) == bytes(1, 50_000));
        let (above, below) = (rustix::fs::statvfs(scene.at("")), rustix::fs::statvfs(scene.slow("")));
        assert_eq!(above.expect("a file system").f_blocks, below.expect("a file system").f_blocks);
    });
}

#[test]
fn holes_truncation_and_allocation() {
    Scene::each(|scene| {
        let path = scene.at("f");
        let mut expected = bytes(5, 3 * MIB);
        fs::write(&path, &expected).expect("a file");
        assert!(read_twice(&path) == expected);
        let file = open(&path);
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, punch, 100_000, 200_000).expect("a hole");
        expected[100_000..300_000].fill(0);
        assert!(read_twice(&path) == expected);
        let hole = rustix::fs::seek(&file, SeekFrom::Hole(0)).expect("a hole");
        assert_eq!(hole, rustix::fs::seek(open(&scene.slow("f")), SeekFrom::Hole(0)).expect("a hole"));
        if rustix::fs::fallocate(&file, FallocateFlags::COLLAPSE_RANGE, 4096, 8192).is_ok() {
            expected.drain(4096..12288);
            assert!(read_twice(&path) == expected);
        }
        let length = expected.len() as u64 + 10;
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, length).expect("room");
        expected.resize(expected.len() + 10, 0);
        assert!(read_twice(&path) == expected);
        for length in [2 * MIB + 17, MIB, 5000, 3 * MIB, 0, 70_000] {
            file.set_len(length as u64).expect("truncated");
            expected.resize(length, 0);
            assert!(read_twice(&path) == expected, "{length}");
        }
        let source = bytes(8, 300_000);
        fs::write(scene.at("source"), &source).expect("a file");
        let (mut from, mut to) = (1000, 5000);
        let source_file = open(&scene.at("source"));
        let copied = rustix::fs::copy_file_range(&source_file, Some(&mut from), &file, Some(&mut to), 60_000);
        let copied = copied.expect("copied");
        expected.resize(expected.len().max(5000 + copied), 0);
        expected[5000..5000 + copied].copy_from_slice(&source[1000..1000 + copied]);
        assert!(read_twice(&path) == expected && copied > 0);
    });
}

#[test]
fn direct_and_unaligned_transfers() {
    Scene::each(|scene| {
        let path = scene.at("f");
        let mut expected = bytes(1, 300_001);
        fs::write(&path, &expected).expect("a file");
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(libc::O_DIRECT);
        let direct = options.open(&path).expect("direct");
        let mut page = terrace_io::AlignedBuffer::zeroed(65536);
        page.copy_from_slice(&bytes(77, 65536));
        direct.write_all_at(&page, 131_072).expect("written");
        expected[131_072..196_608].copy_from_slice(&page);
        assert!(read_twice(&path) == expected);
        page.fill(0);
        direct.read_exact_at(&mut page, 131_072).expect("read");
        assert!(page[..] == expected[131_072..196_608]);
        let file = open(&path);
        for (offset, length) in [(1, 1), (4095, 2), (8191, 8194), (299_999, 2), (12_288, 4096), (5, 200_000)]
        {
            let change = bytes(offset as u8, length);
            file.write_all_at(&change, offset).expect("written");
            expected[offset as usize..offset as usize + length].copy_from_slice(&change);
            let mut found = vec![0; length];
            file.read_exact_at(&mut found, offset).expect("read");
            assert!(found == change && read_twice(&path) == expected, "{offset}");
        }
        let mut appending = OpenOptions::new().append(true).open(&path).expect("a file");
        appending.write_all(b"tail").expect("appended");
        expected.extend(b"tail");
        assert!(read_twice(&path) == expected);
        assert!(fs::read(scene.slow("f")).expect("a file") == expected);
    });
}

#[test]
#[allow(unsafe_code)]
fn shared_mappings_and_reads_agree() {
    use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
    Scene::each(|scene| {
        let path = scene.at("f");
        fs::write(&path, bytes(1, 65536)).expect("a file");
        read_twice(&path);
        let file = open(&path);
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping, used within its length below and unmapped once.
        let memory = unsafe { mmap(std::ptr::null_mut(), 65536, protection, flags, &file, 0) };
        let memory = memory.expect("a mapping");
        // SAFETY: the mapping has 65,536 bytes, and nobody else has a reference to them.
        let mapped = unsafe { std::slice::from_raw_parts_mut(memory.cast::<u8>(), 65536) };
        assert!(mapped[..] == bytes(1, 65536));
        mapped[10_000..10_004].copy_from_slice(b"mmap");
        // SAFETY: the range is the mapping.
        unsafe { msync(memory, 65536, MsyncFlags::SYNC) }.expect("synced");
        let mut expected = bytes(1, 65536);
        expected[10_000..10_004].copy_from_slice(b"mmap");
        assert!(read_twice(&path) == expected);
        file.write_all_at(b"write", 20_000).expect("written");
        assert_eq!(&mapped[20_000..20_005], b"write");
        // SAFETY: the last use.
        unsafe { munmap(memory, 65536) }.expect("unmapped");
        expected[20_000..20_005].copy_from_slice(b"write");
        assert!(fs::read(scene.slow("f")).expect("a file") == expected);
    });
}

/// A change that leaves length and modification time as they were.
fn change_in_secret(path: &Path, seed: u8) -> Vec<u8> {
    let before = fs::metadata(path).expect("a file");
    let after = bytes(seed, before.len() as usize);
    open(path).write_all_at(&after, 0).expect("changed");
    let modified = Timespec { tv_sec: before.mtime(), tv_nsec: before.mtime_nsec() as _ };
    let times = Timestamps { last_access: modified, last_modification: modified };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::empty()).expect("changed");
    after
}

#[test]
fn changes_below_are_seen_while_mounted_and_after() {
    let Some(scene) = Scene::new() else { return };
    fs::write(scene.slow("f"), bytes(1, MIB)).expect("a file");
    let mount = scene.cached();
    let held = open(&scene.at("f"));
    for seed in 2..6 {
        read_twice(&scene.at("f"));
        let after = change_in_secret(&scene.slow("f"), seed);
        let mut found = vec![0; MIB];
        held.read_exact_at(&mut found, 0).expect("read");
        assert!(found == after && read_twice(&scene.at("f")) == after, "{seed}");
    }
    let stats = mount.stats();
    assert!(hits_of(&stats) > 0 && stats.dropped_outside >= 4, "{stats}");
    drop(held);
    mount.unmount().expect("the end");
    let after = change_in_secret(&scene.slow("f"), 9);
    let mount = scene.cached();
    assert!(read_twice(&scene.at("f")) == after);
    mount.unmount().expect("the end");
}

#[test]
fn a_cache_is_warm_after_unmounting() {
    let Some(scene) = Scene::new() else { return };
    let mount = scene.cached();
    fs::write(scene.at("written"), bytes(1, MIB)).expect("a file");
    fs::write(scene.slow("read"), bytes(2, MIB)).expect("a file");
    read_twice(&scene.at("read"));
    let stats = mount.unmount().expect("the end");
    // The program's memory is not aligned, so the kernel cuts its writes within a block.
    assert!(stats.cache.expect("a cache").write_misses >= 250);
    let mount = scene.cached();
    assert!(fs::read(scene.at("written")).expect("a file") == bytes(1, MIB));
    assert!(fs::read(scene.at("read")).expect("a file") == bytes(2, MIB));
    let stats = mount.unmount().expect("the end");
    assert!(hits_of(&stats) >= 500 && stats.kept_files == 2, "{stats}");
}

#[test]
fn a_map_of_another_directory_or_with_damage_makes_the_cache_cold() {
    let Some(scene) = Scene::new() else { return };
    fs::write(scene.slow("f"), bytes(1, MIB)).expect("a file");
    let mount = scene.cached();
    read_twice(&scene.at("f"));
    mount.unmount().expect("the end");
    let fast = scene.directory.path().join("fast");
    let (cache, map) = (fast.join("cache"), fast.join("cache.map"));
    let modes = [&cache, &map].map(|path| fs::metadata(path).expect("a file").mode() & 0o777);
    assert_eq!(modes, [0o600, 0o600]);
    let old = (fs::read(&cache).expect("a cache"), fs::read(&map).expect("a map"));
    let damages: [&dyn Fn(); 4] = [
        &|| fs::write(&map, &old.1[..1000]).expect("a map"),
        &|| fs::write(&map, [&old.1[..4200], &[7; 5000]].concat()).expect("a map"),
        &|| fs::remove_file(&map).expect("a map"),
        // The older copy of the cache belongs to an earlier session.
        &|| fs::write(&cache, &old.0).expect("a cache"),
    ];
    for (number, damage) in damages.iter().enumerate() {
        damage();
        let after = change_in_secret(&scene.slow("f"), number as u8 + 10);
        let mount = scene.cached();
        assert!(read_twice(&scene.at("f")) == after, "{number}");
        mount.unmount().expect("the end");
    }
    fs::rename(scene.slow(""), scene.directory.path().join("other")).expect("renamed");
    fs::create_dir(scene.slow("")).expect("a directory");
    fs::write(scene.slow("f"), bytes(99, MIB)).expect("a file");
    let mount = scene.cached();
    assert!(fs::read(scene.at("f")).expect("a file") == bytes(99, MIB));
    assert_eq!(mount.unmount().expect("the end").kept_files, 0);
    fs::write(&map, "notes of somebody").expect("a file");
    let mut config = scene.config();
    config.cache = Some(scene.cache("cache"));
    let refused = format!("{:?}", Mount::start(&config).expect_err("a foreign file"));
    assert!(refused.contains("left as it is"), "{refused}");
}

#[test]
fn directories_that_cannot_be_mounted_are_refused() {
    let Some(scene) = Scene::new() else { return };
    let refused = |config: &MountConfig| Mount::start(config).expect_err("refused").to_string();
    fs::create_dir(scene.slow("in")).expect("a directory");
    let inside = MountConfig::new(scene.slow(""), scene.slow("in"));
    assert!(refused(&inside).contains("is in"));
    let over = MountConfig::new(scene.slow("in"), scene.slow(""));
    assert!(refused(&over).contains("would hide"));
    fs::write(scene.at("f"), "").expect("a file");
    assert!(refused(&scene.config()).contains("not empty"));
    fs::remove_file(scene.at("f")).expect("removed");
    let mut config = scene.config();
    config.cache = Some(MountCache::new(scene.slow("cache"), 1 << 20));
    assert!(refused(&config).contains("outside"));
    let missing = MountConfig::new(scene.slow("missing"), scene.at(""));
    assert!(refused(&missing).contains("missing"));
}

/// The kernel's idea of the length is old when another program appended below.
#[test]
fn appends_go_to_the_end() {
    Scene::each(|scene| {
        fs::write(scene.at("log"), bytes(1, 50_000)).expect("a file");
        let mut log = OpenOptions::new().append(true).open(scene.at("log")).expect("a file");
        log.write_all(b"one").expect("written");
        let mut below = OpenOptions::new().append(true).open(scene.slow("log")).expect("a file");
        below.write_all(&bytes(2, 30_000)).expect("written");
        log.write_all(b"three").expect("written");
        let whole = [bytes(1, 50_000), b"one".to_vec(), bytes(2, 30_000), b"three".to_vec()].concat();
        assert!(read_twice(&scene.slow("log")) == whole);
        assert!(read_twice(&scene.at("log")) == whole);
        // The flag may also come later.
        let file = open(&scene.at("log"));
        rustix::fs::fcntl_setfl(&file, rustix::fs::OFlags::APPEND).expect("set");
        below.write_all(b"four").expect("written");
        (&file).write_all(b"five").expect("written");
        assert!(read_twice(&scene.at("log")) == [&whole[..], b"fourfive"].concat());
    });
}

/// A file system that is mounted below is refused: it has its own inodes, clocks and rules.
#[test]
fn other_file_systems_below_are_refused() {
    Scene::each(|scene| {
        fs::create_dir(scene.slow("other")).expect("a directory");
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("none", scene.slow("other"), "tmpfs", flags, None).expect("a tmpfs");
        let error = fs::read_dir(scene.at("other")).expect_err("refused");
        rustix::mount::unmount(scene.slow("other"), rustix::mount::UnmountFlags::empty()).expect("unmounted");
        assert_eq!(error.raw_os_error(), Some(libc::EXDEV));
        fs::read_dir(scene.at("other")).expect("the directory itself");
    });
}

/// A shell of another user on a mount that lets all in.
fn shell(scene: &Scene, command: &str) -> std::process::Command {
    let mut shell = std::process::Command::new("sh");
    std::os::unix::process::CommandExt::uid(&mut shell, 12345);
    std::os::unix::process::CommandExt::gid(&mut shell, 12346);
    shell.args(["-c", command]).current_dir(scene.at("d"));
    shell
}

fn as_user(scene: &Scene, command: &str) -> std::process::Output {
    shell(scene, command).output().expect("a shell")
}

#[test]
fn new_files_belong_to_the_program_and_lose_its_ids_when_changed() {
    let Some(scene) = Scene::new() else { return };
    fs::set_permissions(scene.directory.path(), fs::Permissions::from_mode(0o755)).expect("set");
    let mut config = scene.config();
    config.allow_other = true;
    let mount = Mount::start(&config).expect("a mount");
    fs::create_dir(scene.at("d")).expect("a directory");
    fs::set_permissions(scene.at("d"), fs::Permissions::from_mode(0o777)).expect("set");
    let made = as_user(&scene, "umask 022; echo x > f && mkdir e && ln -s f l && mkfifo p && chmod 4755 f");
    assert!(made.status.success(), "{made:?}");
    for name in ["f", "e", "l", "p"] {
        let found = fs::symlink_metadata(scene.slow("d").join(name)).expect("a file");
        assert_eq!((found.uid(), found.gid()), (12345, 12346), "{name}");
    }
    let mode = || fs::metadata(scene.slow("d/f")).expect("a file").mode() & 0o7777;
    assert_eq!(mode(), 0o4755);
    let file = open(&scene.at("d/f"));
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 10_000).expect("room");
    assert_eq!(mode(), 0o755);
    // This thread still has its own rights.
    fs::write(scene.at("d/mine"), "x").expect("a file");
    assert_eq!(fs::metadata(scene.slow("d/mine")).expect("a file").uid(), 0);
    drop(file);
    mount.unmount().expect("the end");
}

#[test]
fn a_second_mount_with_a_cache_is_refused() {
    let Some(scene) = Scene::new() else { return };
    let first = scene.cached();
    let mut config = scene.config();
    fs::create_dir(scene.directory.path().join("second")).expect("a directory");
    config.mountpoint = scene.directory.path().join("second");
    config.cache = Some(scene.cache("other"));
    let error = Mount::start(&config).expect_err("refused").to_string();
    assert!(error.contains("is locked by another program"), "{error}");
    first.unmount().expect("the end");
    Mount::start(&config).expect("a mount").unmount().expect("the end");
}

#[test]
fn a_read_only_mount_refuses_changes() {
    let Some(scene) = Scene::new() else { return };
    fs::write(scene.slow("f"), "one").expect("a file");
    let mut config = scene.config();
    config.read_only = true;
    let mount = Mount::start(&config).expect("a mount");
    let error = fs::write(scene.at("f"), "two").expect_err("refused");
    assert_eq!(error.raw_os_error(), Some(libc::EROFS));
    let mut text = String::new();
    File::open(scene.at("f")).expect("a file").read_to_string(&mut text).expect("read");
    assert_eq!(text, "one");
    mount.unmount().expect("the end");
}

/// The same random calls on the mount, past it, and on a plain directory.
#[test]
fn a_mount_is_like_a_plain_directory() {
    let Some(scene) = Scene::new() else { return };
    let seed = rand::rng().random::<u64>();
    println!("seed {seed}");
    let mut random = SmallRng::seed_from_u64(seed);
    let plain = scene.directory.path().join("plain");
    fs::create_dir(&plain).expect("a directory");
    let mut mount = scene.cached();
    for step in 0..400 {
        let name = format!("f{}", random.random_range(0..4));
        let other = format!("f{}", random.random_range(0..4));
        let (offset, seed) = (random.random_range(0..300_000u64), step as u8);
        let length = if random.random() { 8192 } else { random.random_range(1..40_000) };
        let offset = if length == 8192 { offset / 4096 * 4096 } else { offset };
        let call = random.random_range(0..10);
        let is_past = random.random_range(0..8) == 0;
        let act = |path: &dyn Fn(&str) -> PathBuf| -> bool {
            match call {
                0 => fs::remove_file(path(&name)).is_ok(),
                1 => fs::rename(path(&name), path(&other)).is_ok(),
                2 => File::create_new(path(&name)).is_ok(),
                3 => {
                    let file = OpenOptions::new().write(true).open(path(&name));
                    file.is_ok_and(|file| file.set_len(offset).is_ok())
                }
                4..7 => {
                    let file = OpenOptions::new().write(true).open(path(&name));
                    file.is_ok_and(|file| file.write_all_at(&bytes(seed, length), offset).is_ok())
                }
                _ => true,
            }
        };
        let on_mount = if is_past { act(&|name| scene.slow(name)) } else { act(&|name| scene.at(name)) };
        assert_eq!(on_mount, act(&|name| plain.join(name)), "step {step}");
        let (found, expected) = (fs::read(scene.at(&name)).ok(), fs::read(plain.join(&name)).ok());
        assert!(found == expected, "step {step}, call {call}, past {is_past}");
        if call == 9 && random.random_range(0..10) == 0 {
            mount.unmount().expect("the end");
            mount = scene.cached();
        }
    }
    let stats = mount.unmount().expect("the end");
    println!("{stats}");
}

#[test]
fn blocks_count_for_the_relation_of_their_file_whatever_its_name_was() {
    let Some(scene) = Scene::new() else { return };
    let blocks = |mount: &Mount, name: &str| {
        let relations = mount.watch().relations();
        let found = relations.iter().find(|relation| relation.name == name);
        found.map_or((0, 0), |found| (found.hits + found.misses, found.writes))
    };
    let mount = scene.cached();
    fs::create_dir_all(scene.at("base/5")).expect("a directory");
    for name in ["base/5/7", "base/5/7.1", "#sql-1.ibd"] {
        fs::write(scene.at(name), bytes(1, MIB)).expect("a file");
    }
    // Writes within the first 16 KiB of a file go past the cache.
    let (reads, writes) = blocks(&mount, "base/5/7");
    assert!(reads == 0 && (504..=512).contains(&writes), "{reads} {writes}");
    fs::rename(scene.at("#sql-1.ibd"), scene.at("shop.ibd")).expect("a rename");
    fs::write(scene.at("shop.ibd"), bytes(2, MIB)).expect("a file");
    read_twice(&scene.at("shop.ibd"));
    let (reads, writes) = blocks(&mount, "shop.ibd");
    // The first writes were those of the old name.
    assert!(reads >= 256 && (252..=256).contains(&writes), "{reads} {writes}");
    let stats = mount.unmount().expect("the end");
    assert!(stats.reads() > 0 && stats.cached_reads.count <= stats.reads());
    // The names come back with the files.
    let mount = scene.cached();
    read_twice(&scene.at("base/5/7.1"));
    assert!(blocks(&mount, "base/5/7").0 >= 256);
    mount.unmount().expect("the end");
}

/// The relation of the last request.
#[derive(Debug, Default)]
struct Latest(Mutex<String>);

impl Observer for Latest {
    fn note(&self, observed: &Observed<'_>) {
        observed.relation.clone_into(&mut self.0.lock().expect("no panic"));
    }
}

/// Programs keep files open while these and their directories get other names.
#[test]
fn requests_are_told_and_counted_by_the_present_name() {
    for is_cached in [false, true] {
        let Some(scene) = Scene::new() else { return };
        let (mut config, latest) = (scene.config(), Arc::new(Latest::default()));
        config.cache = is_cached.then(|| scene.cache("cache"));
        config.observer = Some(Arc::clone(&latest) as _);
        let mount = Mount::start(&config).expect("a mount");
        fs::create_dir(scene.at("d")).expect("a directory");
        fs::create_dir(scene.at("deep")).expect("a directory");
        fs::write(scene.at("d/a"), bytes(1, MIB)).expect("a file");
        let file = open(&scene.at("d/a"));
        let is_named = |name: &str| {
            for _ in 0..2 {
                file.write_all_at(&bytes(2, 65536), 65536).expect("written");
                assert_eq!(*latest.0.lock().expect("no panic"), name);
            }
            let relations = mount.watch().relations();
            let found = relations.iter().find(|relation| relation.name == name);
            let writes = found.map_or(0, |relation| relation.writes);
            assert!(!is_cached || writes >= 30, "{name}: {relations:?}");
        };
        let rename = |from: &str, to: &str| fs::rename(scene.at(from), scene.at(to)).expect("a rename");
        is_named("d/a");
        rename("d/a", "d/b");
        is_named("d/b");
        rename("d", "e");
        is_named("e/b");
        rename("e", "deep/f");
        is_named("deep/f/b");
        rename("deep", "deeper");
        is_named("deeper/f/b");
        // As some programs rename files.
        fs::hard_link(scene.at("deeper/f/b"), scene.at("c")).expect("a link");
        fs::remove_file(scene.at("deeper/f/b")).expect("removed");
        is_named("c");
        fs::write(scene.at("other"), "x").expect("a file");
        let flags = RenameFlags::EXCHANGE;
        rustix::fs::renameat_with(CWD, scene.at("other"), CWD, scene.at("c"), flags).expect("an exchange");
        is_named("other");
        // Past the mount it shows at the next look-up.
        fs::rename(scene.slow("other"), scene.slow("past")).expect("a rename");
        File::open(scene.at("past")).expect("a file");
        is_named("past");
        rename("c", "past");
        is_named("past");
        fs::rename(scene.slow("deeper"), scene.slow("d")).expect("a rename");
        fs::write(scene.at("d/f/b"), bytes(1, MIB)).expect("a file");
        assert_eq!(*latest.0.lock().expect("no panic"), "d/f/b");
        drop(file);
        mount.unmount().expect("the end");
    }
}
