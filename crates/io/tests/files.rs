//! File system directories: permissions, links, and locks between processes.

use std::io::{BufRead, BufReader, ErrorKind, Write as _};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use terrace_io::{Directory, FileDirectory, FileOptions, LockError, OpenMode};

/// Environment variable with the directory for a child process's part of a test.
const FOLDER: &str = "TERRACE_TEST_FOLDER";

fn child(test: &str, folder: &Path, umask: &str) -> Child {
    let script = format!("umask {umask}; exec \"$0\" --exact {test} --include-ignored --nocapture");
    Command::new("sh")
        .args(["-c", &script])
        .arg(std::env::current_exe().unwrap())
        .env(FOLDER, folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

fn mode(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
#[ignore = "the part of a child process"]
fn child_creates() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let directory = FileDirectory::create(&Path::new(&folder).join("database")).unwrap();
    drop(directory.lock("lock").unwrap());
    directory.open("pages", OpenMode::CreateNew).unwrap();
    directory.open("pages", OpenMode::Write).unwrap().set_len(4096).unwrap();
}

#[test]
fn files_and_directories_belong_to_their_owner_whatever_the_umask() {
    for umask in ["000", "777", "022"] {
        let folder = tempfile::tempdir().unwrap();
        assert!(child("child_creates", folder.path(), umask).wait().unwrap().success());
        let database = folder.path().join("database");
        assert_eq!(mode(&database), 0o700, "umask {umask}");
        assert_eq!(mode(&database.join("pages")), 0o600, "umask {umask}");
        assert_eq!(mode(&database.join("lock")), 0o600, "umask {umask}");
    }
}

#[test]
#[ignore = "the part of a child process"]
fn child_holds_the_lock() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let _held = FileDirectory::open(Path::new(&folder)).unwrap().lock("lock").unwrap();
    println!("\nlocked");
    std::io::stdout().flush().unwrap();
    // Blocks until it or its parent is killed.
    let _ = std::io::stdin().read_line(&mut String::new());
}

#[test]
fn another_process_is_named_as_the_owner_and_its_death_unlocks() {
    let folder = tempfile::tempdir().unwrap();
    let directory = FileDirectory::open(folder.path()).unwrap();
    for _ in 0..3 {
        let mut child = child("child_holds_the_lock", folder.path(), "022");
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap() == "locked"));
        match directory.lock("lock").err().unwrap() {
            LockError::Busy { owner_process } => assert_eq!(owner_process, Some(child.id())),
            LockError::Io(error) => panic!("{error}"),
        }
        child.kill().unwrap();
        child.wait().unwrap();
        drop(directory.lock("lock").unwrap());
    }
}

#[test]
fn links_and_pipes_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let directory = FileDirectory::open(folder.path()).unwrap();
    directory.open("pages", OpenMode::CreateNew).unwrap();
    symlink("pages", folder.path().join("link")).unwrap();
    symlink("nowhere", folder.path().join("dangling")).unwrap();
    std::fs::create_dir(folder.path().join("folder")).unwrap();
    assert!(Command::new("mkfifo").arg(folder.path().join("pipe")).status().unwrap().success());
    for name in ["link", "dangling", "folder", "pipe"] {
        for mode in [OpenMode::Read, OpenMode::Write, OpenMode::CreateNew] {
            assert!(directory.open(name, mode).is_err(), "{name} {mode:?}");
        }
        assert!(matches!(directory.lock(name), Err(LockError::Io(_))), "{name}");
    }
    assert!(!folder.path().join("nowhere").exists());
}

#[test]
fn a_missing_directory_is_not_found_and_an_existing_one_is_opened_by_create() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("database");
    assert_eq!(FileDirectory::open(&path).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(FileDirectory::create(&path.join("deeper")).unwrap_err().kind(), ErrorKind::NotFound);
    FileDirectory::create(&path).unwrap().open("pages", OpenMode::CreateNew).unwrap();
    assert!(FileDirectory::create(&path).unwrap().exists("pages").unwrap());
    assert!(FileDirectory::open(&path.join("pages")).is_err(), "a file is no directory");
}

#[test]
fn a_renamed_directory_stays_usable() {
    let folder = tempfile::tempdir().unwrap();
    let directory = FileDirectory::create(&folder.path().join("before")).unwrap();
    std::fs::rename(folder.path().join("before"), folder.path().join("after")).unwrap();
    directory.open("pages", OpenMode::CreateNew).unwrap();
    assert!(folder.path().join("after/pages").exists());
}

#[test]
fn growing_allocates_the_space() {
    use std::os::unix::fs::MetadataExt;
    let folder = tempfile::tempdir().unwrap();
    let device = FileDirectory::open(folder.path()).unwrap().open("pages", OpenMode::CreateNew).unwrap();
    device.set_len(3 << 20).unwrap();
    device.set_len(8 << 20).unwrap();
    let blocks = std::fs::metadata(folder.path().join("pages")).unwrap().blocks();
    assert!(blocks * 512 >= 8 << 20, "{blocks} blocks");
}

#[test]
fn the_page_cache_can_be_chosen() {
    let folder = tempfile::tempdir().unwrap();
    let directory =
        FileDirectory::open_with(folder.path(), FileOptions { direct: false, uring: false }).unwrap();
    assert!(!directory.open_file("pages", OpenMode::CreateNew).unwrap().direct());
    assert!(!directory.direct() && !directory.uring());
}

#[test]
fn a_full_disk_refuses_to_grow_and_keeps_the_length() {
    // More than any disk has, but a valid file length.
    let folder = tempfile::tempdir().unwrap();
    let device = FileDirectory::open(folder.path()).unwrap().open("pages", OpenMode::CreateNew).unwrap();
    device.set_len(8192).unwrap();
    let error = device.set_len(10 << 40).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    assert_eq!(device.len(), 8192);
    device.set_len(12288).unwrap();
}

#[test]
fn a_file_that_is_no_lock_is_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let directory = FileDirectory::open(folder.path()).unwrap();
    for content in ["a line of somebody's\n", "12345678901234567\n", "12\n34x"] {
        let file = folder.path().join("yarn.lock");
        std::fs::write(&file, content).unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).unwrap();
        match directory.lock("yarn.lock") {
            Err(LockError::Io(error)) => assert!(error.to_string().contains("yarn.lock"), "{error}"),
            other => panic!("{content:?}: {:?}", other.map(drop)),
        }
        assert_eq!((std::fs::read_to_string(&file).unwrap().as_str(), mode(&file)), (content, 0o644));
    }
    // All possible after a killed owner or a power cut, which may keep only the length.
    for content in ["", "4711\n", "47", "\0", "\0\0\0\0\n", "47\0\0\0"] {
        std::fs::write(folder.path().join("lock"), content).unwrap();
        assert!(directory.lock("lock").is_ok(), "{content:?}");
    }
}

#[test]
fn a_directory_says_whether_it_is_of_this_machine() {
    // A process's own pseudo files never outlive it.
    assert!(!FileDirectory::open(Path::new("/proc/self")).unwrap().is_local());
}
