//! The log in persistent memory, through the public interface.

use std::path::Path;
use std::sync::Arc;

use terrace::{
    Backup, Builder, Db, Error, FileDirectory, MemoryDirectory, Mode, RepairReport, SimulatedDisk, Time,
    VirtualTime,
};

use super::common;

const DRAM: u64 = 2 << 20;

fn builder() -> Builder {
    common::builder().dram(DRAM).page_size(4096).log_max(1 << 20)
}

/// Commits `numbers`, each with a key of its own.
fn put(db: &Db, numbers: std::ops::Range<u32>) {
    let table = db.open_or_create_table("t").unwrap();
    for number in numbers {
        table.put(number.to_be_bytes(), [number as u8; 100]).unwrap();
    }
}

fn count(db: &Db) -> u64 {
    assert_eq!(db.verify().unwrap().errors, []);
    db.open_table("t").unwrap().iter().inspect(|entry| assert!(entry.is_ok())).count() as u64
}

/// A database on a simulated disk, whose power fails with commits only in the log's memory.
fn cut_off(commits: u32) -> SimulatedDisk {
    let disk = SimulatedDisk::new(1);
    let db = open(&disk, Some("simulated:optane,256KiB")).unwrap();
    put(&db, 0..commits);
    let stats = db.stats();
    assert!(stats.log_filed < stats.log_persistent && stats.log_persistent == stats.log_tail);
    assert_eq!(stats.log_memory_bytes, 256 << 10);
    disk.crash_at(0);
    drop(db);
    disk.survivor(2)
}

fn open(disk: &SimulatedDisk, memory: Option<&str>) -> terrace::Result<Db> {
    let builder = builder().directory(Arc::new(disk.clone())).mode(Mode::Inline);
    match memory {
        Some(memory) => builder.log_memory(memory.parse().unwrap()).open(""),
        None => builder.open(""),
    }
}

fn refusal(opened: terrace::Result<Db>) -> String {
    match opened {
        Err(error @ Error::LogMemory { .. }) => error.to_string(),
        other => panic!("not refused for its log memory: {other:?}"),
    }
}

#[test]
fn commits_that_only_the_memory_has_need_it_and_a_closed_database_does_not() {
    let disk = cut_off(50);
    assert!(refusal(open(&disk, None)).contains("--log-memory"));
    let read_only = builder().directory(Arc::new(disk.clone())).read_only(true).open("");
    assert!(refusal(read_only).contains("for writing"));
    let db = open(&disk, Some("simulated:optane,256KiB")).unwrap();
    assert_eq!(count(&db), 50);
    put(&db, 50..60);
    db.close().unwrap();
    let read_only = builder().directory(Arc::new(disk.clone())).read_only(true).open("").unwrap();
    assert_eq!(count(&read_only), 60);
    drop(read_only);
    let db = open(&disk, None).unwrap();
    assert_eq!((count(&db), db.stats().log_memory_bytes), (60, 0));
}

#[test]
fn another_size_takes_effect_at_the_next_open() {
    let disk = cut_off(50);
    for (size, bytes) in [("1MiB", 1 << 20), ("128KiB", 128 << 10)] {
        let db = open(&disk, Some(&format!("simulated:optane,{size}"))).unwrap();
        assert_eq!((count(&db), db.stats().log_memory_bytes), (50, bytes));
        // Without a close: what was just committed is in the memory alone.
        drop(db);
    }
    let small = open(&disk, Some("simulated:optane,16KiB"));
    assert!(matches!(small, Err(Error::Config(what)) if what.contains("buffer")));
}

#[test]
fn memory_that_is_not_persistent_or_not_there_is_refused() {
    let directory = Arc::new(MemoryDirectory::new());
    let open =
        |memory: &str| builder().directory(directory.clone()).log_memory(memory.parse().unwrap()).open("");
    assert!(
        matches!(open("simulated:dram,256KiB"), Err(Error::Config(what)) if what.contains("not persistent"))
    );
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let file = folder.path().join("ring");
    let missing = open(&format!("shm:{}/none/ring", folder.path().display()));
    assert!(matches!(missing, Err(Error::Io { operation: "open", .. })), "{missing:?}");
    let no_pmem = refusal(open(&format!("pmem:{},256KiB", file.display())));
    assert!(no_pmem.contains("no power cut"), "{no_pmem}");
    std::fs::write(&file, [7; 4096 + (256 << 10)]).unwrap();
    let something = refusal(open(&format!("shm:{}", file.display())));
    assert!(something.contains("something else"), "{something}");
    assert!(std::fs::read(&file).unwrap().iter().all(|&byte| byte == 7), "it was written to");
}

fn shm(path: &Path) -> terrace::LogMemory {
    format!("shm:{},256KiB", path.display()).parse().unwrap()
}

#[test]
fn shared_memory_has_one_user_at_a_time_and_belongs_to_one_database() {
    let (folder, memory) = (tempfile::tempdir().unwrap(), tempfile::tempdir_in("/dev/shm").unwrap());
    let (one, other) = (folder.path().join("one"), folder.path().join("other"));
    let ring = memory.path().join("ring");
    let db = builder().log_memory(shm(&ring)).open(&one).unwrap();
    put(&db, 0..20);
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&ring).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    assert!(matches!(builder().log_memory(shm(&ring)).open(&other), Err(Error::Busy { .. })));
    // As after a kill: a copy of all files.
    let copy = folder.path().join("copy");
    std::fs::create_dir(&copy).unwrap();
    for file in ["pages.terrace", "log.terrace"] {
        std::fs::copy(one.join(file), copy.join(file)).unwrap();
    }
    let copied = memory.path().join("copied");
    std::fs::copy(&ring, &copied).unwrap();
    drop(db);
    let refused = refusal(builder().log_memory(shm(&copied)).open(&other));
    assert!(refused.contains("another database"), "{refused}");
    let db = builder().log_memory(shm(&copied)).open(&copy).unwrap();
    assert_eq!(count(&db), 20);
    db.close().unwrap();
    // Free again.
    builder().log_memory(shm(&copied)).open(&other).unwrap().close().unwrap();
    let db = builder().open(&one).unwrap();
    assert_eq!(count(&db), 20);
}

#[test]
fn a_backup_has_what_only_the_memory_has_and_is_restored_without_it() {
    let folder = tempfile::tempdir().unwrap();
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let db = builder().log_memory(shm(&memory.path().join("ring"))).open(folder.path().join("db")).unwrap();
    put(&db, 0..40);
    assert!(db.stats().log_filed < db.stats().log_persistent);
    db.backup(folder.path().join("backup")).unwrap();
    put(&db, 40..50);
    let restored = folder.path().join("restored");
    Backup::open(folder.path().join("backup")).unwrap().restore(&restored).unwrap();
    let copy = builder().open(&restored).unwrap();
    assert_eq!(count(&copy), 40);
    assert_eq!(count(&db), 50);
}

#[test]
fn a_repair_goes_on_without_the_memory_and_says_what_is_lost() {
    let disk = cut_off(30);
    let target = Arc::new(MemoryDirectory::new());
    let report: RepairReport = builder().dram(8 << 20).repair_in(&disk, target).unwrap();
    assert!(report.notes.iter().any(|note| note.contains("are lost")), "{:?}", report.notes);
    // The original can still be opened, with everything.
    assert_eq!(count(&open(&disk, Some("simulated:optane,256KiB")).unwrap()), 30);
}

/// Fences cost a millisecond here, and nothing else costs as much.
#[test]
fn a_commit_is_charged_for_its_fence_and_the_file_for_another() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("slow.toml");
    std::fs::write(&file, "base = 'optane'\nname = 'slow'\nfence_ns = 1000000\n").unwrap();
    let time = Arc::new(VirtualTime::new(1));
    let builder = builder().directory(Arc::new(MemoryDirectory::new())).mode(Mode::Inline).no_middle();
    let builder = builder.log_memory(format!("simulated:{},256KiB", file.display()).parse().unwrap());
    let db = builder.simulated_time(Time::Virtual(Arc::clone(&time))).open("").unwrap();
    let table = db.create_table("t").unwrap();
    let fences_of = |work: &dyn Fn()| {
        let before = time.elapsed_ns();
        work();
        (time.elapsed_ns() - before) / 1_000_000
    };
    assert_eq!(fences_of(&|| table.put("k", "v").unwrap()), 1);
    let stats = db.stats();
    assert!(stats.log_filed < stats.log_persistent);
    let fences = fences_of(&|| db.checkpoint().unwrap());
    let records = db.stats().log_records - stats.log_records;
    assert!(fences > records, "{fences} fences for {records} records: the ring notes what the file has");
}

#[test]
fn threads_commit_side_by_side_and_the_file_follows() {
    let (folder, memory) = (tempfile::tempdir().unwrap(), tempfile::tempdir_in("/dev/shm").unwrap());
    let directory = || Arc::new(FileDirectory::create(folder.path().join("db").as_path()).unwrap());
    let ring = memory.path().join("ring");
    let db = builder().directory(directory()).log_memory(shm(&ring)).open("").unwrap();
    let table = db.create_table("t").unwrap();
    std::thread::scope(|scope| {
        for thread in 0..3u32 {
            let table = &table;
            scope.spawn(move || {
                for number in 0..1500 {
                    table.put((thread * 10_000 + number).to_be_bytes(), [number as u8; 200]).unwrap();
                }
            });
        }
    });
    let stats = db.stats();
    assert!(stats.log_tail > 4 * (256 << 10), "the ring went around: {}", stats.log_tail);
    assert!(stats.log_flushes < 1500, "{} writes of the log for 4500 commits", stats.log_flushes);
    drop(table);
    db.close().unwrap();
    assert_eq!(count(&builder().directory(directory()).open("").unwrap()), 4500);
}
