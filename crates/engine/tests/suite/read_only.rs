//! Read-only opens: they leave no trace, share the database, and keep writers out.
//!
//! A database that was not closed cleanly is recovered in memory or refused. `crash.rs` compares
//! the result with that of a writing recovery.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::SystemTime;

use terrace::{Builder, Db, Durability, Error, MemoryDirectory, Mode, PageTableKind, SimulatedDisk};

use super::common;

/// Directory for the part of a child process.
const FOLDER: &str = "TERRACE_READ_ONLY_FOLDER";
/// A user that owns nothing.
const NOBODY: u32 = 65534;

fn builder() -> Builder {
    common::builder().dram(2 << 20)
}

fn reader(path: &Path) -> terrace::Result<Db> {
    builder().read_only(true).open(path)
}

fn fill(db: &Db) {
    let table = db.open_or_create_table("t").unwrap();
    for number in 0..2000u32 {
        table.put(number.to_be_bytes(), vec![number as u8; 200]).unwrap();
    }
    table.put("large", vec![3; 40_000]).unwrap();
}

/// Reads everything, in order and at random, in several threads.
fn look(db: &Db) {
    let table = db.open_table("t").unwrap();
    assert_eq!(table.len().unwrap(), 2001);
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let table = &table;
            scope.spawn(move || {
                for number in 0..2000u32 {
                    let number = (number * 7 + thread * 100) % 2000;
                    assert_eq!(table.get(number.to_be_bytes()).unwrap().unwrap(), vec![number as u8; 200]);
                }
            });
        }
    });
    assert_eq!(table.get("large").unwrap().unwrap(), vec![3; 40_000]);
    assert_eq!(db.snapshot().len(&table).unwrap(), 2001);
    assert_eq!(db.verify().unwrap().errors, []);
}

/// Content, times and permissions of a directory and its files.
fn trace(path: &Path) -> BTreeMap<String, (Vec<u8>, SystemTime, i64, u32)> {
    let of = |path: &Path| {
        let about = std::fs::metadata(path).unwrap();
        let bytes = if about.is_file() { std::fs::read(path).unwrap() } else { Vec::new() };
        (bytes, about.modified().unwrap(), about.ctime() * 1_000_000_000 + about.ctime_nsec(), about.mode())
    };
    let files = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    let mut found: BTreeMap<_, _> =
        files.map(|file| (file.file_name().unwrap().to_string_lossy().into_owned(), of(&file))).collect();
    found.insert(".".to_owned(), of(path));
    found
}

fn child(test: &str, folder: &Path, umask: &str) -> Command {
    let mut command = Command::new("sh");
    let script =
        format!("umask {umask}; exec \"$0\" --exact read_only::{test} --include-ignored --nocapture");
    command.args(["-c", &script]).arg(std::env::current_exe().unwrap()).env(FOLDER, folder);
    command
}

fn ready(child: &mut Child) {
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "ready"));
}

#[test]
fn reading_leaves_no_trace() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("db");
    let db = builder().open(&path).unwrap();
    fill(&db);
    db.close().unwrap();
    for with_lock_file in [true, false] {
        if !with_lock_file {
            std::fs::remove_file(path.join("lock")).unwrap();
        }
        let before = trace(&path);
        assert_eq!(before.len(), if with_lock_file { 4 } else { 3 });
        let (one, other) = (reader(&path).unwrap(), reader(&path).unwrap());
        look(&one);
        look(&other);
        one.close().unwrap();
        drop(other);
        assert!(trace(&path) == before, "something changed");
    }
}

#[test]
#[ignore = "the part of a child process"]
fn child_reads_what_it_may_not_write() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let path = Path::new(&folder);
    look(&reader(path).unwrap());
    let refused = builder().open(path).unwrap_err();
    assert!(
        matches!(&refused, Error::Io { source, .. }
        if source.kind() == std::io::ErrorKind::PermissionDenied),
        "{refused}"
    );
    println!("\nread");
}

#[test]
fn what_may_not_be_written_can_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("db");
    let db = builder().open(&path).unwrap();
    fill(&db);
    db.close().unwrap();
    let is_root = std::fs::metadata(folder.path()).unwrap().uid() == 0;
    let mut files: Vec<_> = std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()).collect();
    for file in &files {
        std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o400)).unwrap();
    }
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o500)).unwrap();
    let mut command = child("child_reads_what_it_may_not_write", &path, "022");
    if is_root {
        // The superuser may do anything, so use another user.
        files.extend([path.clone(), folder.path().to_owned()]);
        files.iter().for_each(|file| chown(file, Some(NOBODY), Some(NOBODY)).unwrap());
        command.uid(NOBODY).gid(NOBODY);
    }
    let before = trace(&path);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("\nread\n"), "{said}");
    assert!(trace(&path) == before, "something changed");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn readers_share_and_keep_writers_out() {
    let folder = tempfile::tempdir().unwrap();
    let memory = MemoryDirectory::new();
    let disk = SimulatedDisk::new(1);
    let kinds: [(&str, &dyn Fn(Builder) -> Builder); 3] = [
        ("file", &|builder| builder),
        ("memory", &|builder| builder.directory(Arc::new(memory.clone()))),
        ("simulated", &|builder| builder.directory(Arc::new(disk.clone()))),
    ];
    for (kind, within) in kinds {
        let open = |read_only| within(builder()).read_only(read_only).open(folder.path().join("db"));
        let writer = open(false).unwrap();
        assert!(
            matches!(open(true), Err(Error::Busy { owner_process: Some(process), .. })
                if process == std::process::id()),
            "{kind}: a writer is named to readers"
        );
        writer.close().unwrap();
        let (one, other) = (open(true).unwrap(), open(true).unwrap());
        assert!(matches!(open(false), Err(Error::Busy { .. })), "{kind}: two readers keep a writer out");
        one.close().unwrap();
        let refused = open(false).unwrap_err();
        assert!(matches!(refused, Error::Busy { .. }), "{kind}: so does one: {refused}");
        drop(other);
        open(false).unwrap().close().unwrap();
    }
}

/// A database as a kill leaves it, with changes in its log.
fn not_closed(log_max: u64, entries: u32) -> SimulatedDisk {
    let disk = SimulatedDisk::new(1);
    let builder = common::builder().directory(Arc::new(disk.clone())).dram(8 << 20).log_max(log_max);
    let db = builder.mode(Mode::Inline).durability(Durability::Buffered).open("").unwrap();
    let table = db.create_table("t").unwrap();
    for number in 0..entries {
        table.put(number.to_be_bytes(), [1; 1000]).unwrap();
    }
    db.checkpoint().unwrap();
    for number in 0..entries {
        table.put(number.to_be_bytes(), [2; 1000]).unwrap();
    }
    db.flush().unwrap();
    disk.killed()
}

#[test]
fn what_was_not_closed_is_recovered_in_memory_as_far_as_the_budget_goes() {
    PageTableKind::ALL.into_iter().for_each(recovers_in_memory);
}

fn recovers_in_memory(table: PageTableKind) {
    let disk = not_closed(16 << 20, 2000);
    let open = |dram: u64| {
        let builder = common::builder().directory(Arc::new(disk.clone())).dram(dram);
        builder.page_table(table).read_only(true).mode(Mode::Inline).open("")
    };
    let reading = disk.calls();
    let (mut refused, mut read) = (0, 0);
    for dram in [1 << 20, 2 << 20, 4 << 20, 8 << 20, 16 << 20] {
        match open(dram) {
            Err(Error::NeedsRecovery { bytes_max, .. }) => {
                assert!(read == 0 && bytes_max < dram, "{dram}");
                refused += 1;
            }
            Err(error) => panic!("{dram}: {error}"),
            Ok(db) => {
                read += 1;
                assert_eq!(db.stats().budget_bytes, dram);
                assert!(db.stats().changes_redone > 0);
                let table = db.open_table("t").unwrap();
                assert_eq!(table.len().unwrap(), 2000);
                assert!(table.iter().all(|entry| entry.unwrap().1 == [2; 1000]));
                assert_eq!(db.verify().unwrap().errors, []);
                assert!(matches!(table.put("k", "v"), Err(Error::ReadOnly)));
            }
        }
    }
    assert!(refused > 0 && read > 0, "{refused} refused, {read} read");
    assert!(disk.calls() > reading);
    let writes = [terrace_io::CallKind::Write, terrace_io::CallKind::WriteThrough];
    assert_eq!(writes.map(|kind| disk.calls_of(kind)), [0, 0]);
    assert_eq!(disk.calls_of(terrace_io::CallKind::SetLen), 0);
    let db = common::builder().directory(Arc::new(disk.clone())).dram(4 << 20).open("").unwrap();
    assert_eq!(db.open_table("t").unwrap().len().unwrap(), 2000);
}

#[test]
#[ignore = "the part of a child process"]
fn child_has_it_open() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let db = builder().open(Path::new(&folder)).unwrap();
    fill(&db);
    println!("\nready");
    std::io::stdout().flush().unwrap();
    // Holds on until it or its parent is killed.
    let _ = std::io::stdin().read_line(&mut String::new());
}

#[test]
fn the_death_of_the_owner_frees_the_database() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("db");
    for _ in 0..2 {
        let mut owner = child("child_has_it_open", &path, "022")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        ready(&mut owner);
        for read_only in [true, false] {
            let refused = builder().read_only(read_only).open(&path).unwrap_err();
            assert!(
                matches!(refused, Error::Busy { owner_process: Some(process), .. } if process == owner.id()),
                "{refused}"
            );
        }
        owner.kill().unwrap();
        owner.wait().unwrap();
        let before = trace(&path);
        let db = reader(&path).unwrap();
        assert!(db.stats().changes_redone > 0, "it was not closed");
        look(&db);
        drop(db);
        assert!(trace(&path) == before, "something changed");
        builder().open(&path).unwrap().close().unwrap();
    }
}

#[test]
#[ignore = "the part of a child process"]
fn child_creates() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let db = builder().open(Path::new(&folder)).unwrap();
    fill(&db);
    db.close().unwrap();
}

#[test]
fn files_belong_to_their_owner_whatever_the_umask() {
    for umask in ["000", "077", "777"] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("db");
        assert!(child("child_creates", &path, umask).output().unwrap().status.success(), "{umask}");
        let modes: Vec<_> =
            trace(&path).into_iter().map(|(name, (.., mode))| (name, mode & 0o7777)).collect();
        let wanted = [(".", 0o700), ("lock", 0o600), ("log.terrace", 0o600), ("pages.terrace", 0o600)];
        assert_eq!(modes, wanted.map(|(name, mode)| (name.to_owned(), mode)), "umask {umask}");
    }
}
