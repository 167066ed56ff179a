//! A mount does without a cache that cannot help.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use terrace_mount::{Mount, MountCache, MountConfig, Observed, Observer};

use crate::{MIB, Scene, bytes, hits_of, open, read_twice};

const LONG: usize = 7 * MIB;

/// A device on which each read takes far longer than on any disk of the machine.
#[derive(Debug)]
struct Slow;

impl Observer for Slow {
    fn note(&self, observed: &Observed<'_>) {
        if !observed.is_write {
            thread::sleep(Duration::from_millis(30));
        }
    }
}

impl Scene {
    /// Mounts the directory `name` on itself, as a slow one.
    fn slow_down(&self, name: &str) -> Mount {
        let (below, at) = (self.directory.path().join("below"), self.directory.path().join(name));
        fs::rename(&at, &below).expect("renamed");
        fs::create_dir(&at).expect("a directory");
        let mut config = MountConfig::new(below, at);
        config.observer = Some(Arc::new(Slow));
        Mount::start(&config).expect("a mount")
    }

    fn measured(&self) -> Mount {
        let mut config = self.config();
        config.cache = Some(MountCache { always: false, ..self.cache("cache") });
        Mount::start(&config).expect("a mount")
    }
}

/// Whether files here can be read past the kernel's cache.
fn is_direct(path: &Path) -> bool {
    let is_direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path).is_ok();
    if !is_direct {
        eprintln!("left out: this file system knows no O_DIRECT");
    }
    is_direct
}

#[test]
fn a_cache_on_the_slower_device_is_left_out_and_stays_warm() {
    let Some(scene) = Scene::new() else { return };
    // They nearly fill the cache, so that there is enough to read.
    for name in ["same", "changed"] {
        fs::write(scene.slow(name), bytes(1, LONG)).expect("a file");
        open(&scene.slow(name)).sync_all().expect("a sync");
    }
    if !is_direct(&scene.slow("same")) {
        return;
    }
    let mount = scene.cached();
    for name in ["same", "changed"] {
        read_twice(&scene.at(name));
    }
    mount.unmount().expect("the end");

    let fast = scene.slow_down("fast");
    let mount = scene.measured();
    let times = mount.stats().left_out.expect("it is left out");
    assert!(times.cache_nanos >= 30_000_000 && times.directory_nanos < times.cache_nanos, "{times}");
    assert!(mount.stats().cache.is_none());
    assert!(mount.stats().to_string().contains("\nthe cache was left out: a block takes "));
    open(&scene.at("changed")).write_all_at(b"new", 5000).expect("written");
    let stats = mount.unmount().expect("the end");
    // If the kernel can pass files, it does.
    assert!(stats.opens_passed == 1 || stats.writes == 1, "{stats}");
    fast.unmount().expect("the end");
    fs::remove_dir(scene.directory.path().join("fast")).expect("removed");
    fs::rename(scene.directory.path().join("below"), scene.directory.path().join("fast")).expect("renamed");

    let mount = scene.cached();
    assert!(read_twice(&scene.at("same")) == bytes(1, LONG));
    let stats = mount.stats();
    let cache = stats.cache.as_ref().expect("a cache");
    let found = cache.hits + cache.below;
    assert!(stats.kept_files == 2 && cache.misses == 0 && found >= 2 * LONG as u64 / 4096, "{stats}");
    let mut expected = bytes(1, LONG);
    expected[5000..5003].copy_from_slice(b"new");
    assert!(read_twice(&scene.at("changed")) == expected);
    assert_eq!(mount.unmount().expect("the end").dropped_outside, 1);
}

#[test]
fn a_cache_before_a_slower_directory_is_used_even_when_new() {
    let Some(scene) = Scene::new() else { return };
    fs::write(scene.slow("f"), bytes(1, 2 * MIB)).expect("a file");
    if !is_direct(&scene.slow("f")) {
        return;
    }
    let slow = scene.slow_down("slow");
    let mount = scene.measured();
    assert!(read_twice(&scene.at("f")) == bytes(1, 2 * MIB));
    let stats = mount.unmount().expect("the end");
    assert!(stats.left_out.is_none() && hits_of(&stats) > 0, "{stats}");
    slow.unmount().expect("the end");
}

#[test]
fn without_bytes_to_measure_the_cache_is_used() {
    let Some(scene) = Scene::new() else { return };
    // A hole asks no device.
    fs::File::create(scene.slow("hole")).and_then(|file| file.set_len(1 << 30)).expect("a file");
    fs::write(scene.slow("small"), bytes(1, MIB / 2)).expect("a file");
    let stats = scene.measured().unmount().expect("the end");
    assert!(stats.left_out.is_none() && stats.cache.is_some(), "{stats}");
}
