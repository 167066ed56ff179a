//! Files that the kernel reads and writes by itself.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use terrace_mount::Mount;

use crate::{Scene, bytes, hits_of, open, read_twice};

/// Waits until the mount has heard of the last close of files that the kernel passed.
fn wait_for_served(mount: &Mount, path: &Path) {
    let before = mount.stats().reads();
    for _ in 0..500 {
        fs::read(path).expect("a file");
        if mount.stats().reads() > before {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{} is still passed", path.display());
}

#[test]
fn the_kernel_passes_all_files_without_a_cache_and_logs_with_one() {
    let Some(scene) = Scene::new() else { return };
    let mount = scene.plain();
    fs::write(scene.at("f"), bytes(1, 100_000)).expect("a file");
    assert!(read_twice(&scene.at("f")) == bytes(1, 100_000));
    let stats = mount.unmount().expect("the end");
    if stats.opens_passed == 0 {
        eprintln!("left out: this kernel passes no files");
        return;
    }
    assert_eq!((stats.opens_passed, stats.reads(), stats.writes), (3, 0, 0));

    let mount = scene.cached();
    let (log, table) = (scene.at("pg_wal/1"), scene.at("table"));
    fs::create_dir(scene.at("pg_wal")).expect("a directory");
    let mut expected = bytes(2, 200_000);
    fs::write(&log, &expected).expect("a log");
    assert!(read_twice(&log) == expected);
    let stats = mount.stats();
    assert_eq!((stats.opens_passed, stats.reads(), stats.writes), (3, 0, 0));
    // A log that gets the name of a table is passed until nobody has it open.
    let file = open(&log);
    fs::rename(&log, &table).expect("renamed");
    for (at, change) in [(70_000, b"first"), (80_000, b"again")] {
        file.write_all_at(change, at as u64).expect("written");
        expected[at..at + 5].copy_from_slice(change);
        assert!(read_twice(&table) == expected);
    }
    assert_eq!(mount.stats().reads(), 0);
    drop(file);
    wait_for_served(&mount, &table);
    assert!(read_twice(&table) == expected && read_twice(&table) == expected);
    let hits = hits_of(&mount.stats());
    assert!(hits > 0);
    // Blocks of a table that gets the name of a log could become outdated, so it is not passed.
    fs::rename(&table, &log).expect("renamed");
    let passed = mount.stats().opens_passed;
    open(&log).write_all_at(b"third", 90_000).expect("written");
    expected[90_000..90_005].copy_from_slice(b"third");
    assert!(read_twice(&log) == expected && hits_of(&mount.stats()) > hits);
    assert_eq!(mount.stats().opens_passed, passed);
    mount.unmount().expect("the end");
    // Nor after a restart, when only the map of the cache knows the blocks.
    let mount = scene.cached();
    std::os::unix::fs::chown(&log, Some(1), None).expect("changed");
    open(&log).write_all_at(b"fifth", 95_000).expect("written");
    expected[95_000..95_005].copy_from_slice(b"fifth");
    assert!(read_twice(&log) == expected);
    assert_eq!((mount.stats().opens_passed, mount.stats().kept_files), (0, 1));
    mount.unmount().expect("the end");
}
