//! Files that the kernel reads and writes by itself.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::process::Stdio;

use terrace_mount::Mount;

use crate::{Scene, as_user, bytes, hits_of, open, read_twice, shell};

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
    // It stays so: a mapping could change it even when no file is open.
    drop(file);
    assert!(read_twice(&table) == expected);
    let stats = mount.stats();
    assert_eq!((stats.reads(), hits_of(&stats)), (0, 0));
    mount.unmount().expect("the end");
    let mount = scene.cached();
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
    // What InnoDB logs about reads that fail must not outlive its data. Nor is its log cached.
    let (redo, before) = (scene.at("ib_logfile0"), mount.stats());
    fs::write(&redo, &expected).expect("a log");
    assert!(read_twice(&redo) == expected && read_twice(&redo) == expected);
    let stats = mount.stats();
    assert_eq!((stats.opens_passed, hits_of(&stats)), (0, hits_of(&before)));
    assert!(stats.reads() > before.reads());
    mount.unmount().expect("the end");
}

/// Nobody else may put bytes into a program that then runs with its owner's rights.
#[test]
fn set_id_bits_do_not_outlive_writes_of_others() {
    for (is_cached, passthrough) in [(false, true), (false, false), (true, true)] {
        let Some(scene) = Scene::new() else { return };
        fs::set_permissions(scene.directory.path(), fs::Permissions::from_mode(0o755)).expect("set");
        let mut config = scene.config();
        (config.allow_other, config.passthrough) = (true, passthrough);
        config.cache = is_cached.then(|| scene.cache("cache"));
        let mount = Mount::start(&config).expect("a mount");
        fs::create_dir(scene.at("d")).expect("a directory");
        let set = |name: &str, mode| fs::set_permissions(scene.at(name), fs::Permissions::from_mode(mode));
        let check = |name: &str, is_changed: bool| {
            let found = fs::metadata(scene.slow(name)).expect("a file");
            assert_eq!(found.len() == 2, is_changed, "{name}, {passthrough}");
            let has_bits = found.permissions().mode() & 0o6000 != 0;
            assert!(!(is_changed && has_bits), "{name}, {passthrough}: {:o}", found.permissions().mode());
        };
        for name in ["d/before", "d/meanwhile", "d/joined"] {
            fs::write(scene.at(name), "x").expect("a file");
            set(name, 0o777).expect("set");
        }
        set("d/before", 0o6777).expect("set");
        assert!(as_user(&scene, "printf y >> before").status.success());
        check("d/before", true);

        let script = "exec 3>>meanwhile; echo; read go; printf y >&3";
        let mut writer = shell(&scene, script);
        let mut writer = writer.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a shell");
        let mut output = writer.stdout.take().expect("a pipe");
        output.read_exact(&mut [0]).expect("it has the file open");
        if let Err(error) = set("d/meanwhile", 0o6777) {
            assert_eq!(error.raw_os_error(), Some(libc::ETXTBSY));
        }
        drop(writer.stdin.take());
        writer.wait().expect("the end");
        check("d/meanwhile", true);

        // The owner may set them, but then nobody else may write as long as it has the file open.
        let file = open(&scene.at("d/joined"));
        file.set_permissions(fs::Permissions::from_mode(0o6777)).expect("set");
        let is_written = as_user(&scene, "printf y >> joined").status.success();
        check("d/joined", is_written);
        drop(file);
        mount.unmount().expect("the end");
    }
}
