//! The contract of persistent memory, checked on every kind that any machine has.
//!
//! `tests/dax.rs` has the kind that needs a machine, or a guest, with an NVDIMM.
#![allow(unsafe_code)]

use std::io::ErrorKind;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use terrace_io::{
    CallKind, DecoratedDirectory, Directory, FaultPlan, FileDirectory, MemoryDirectory, NodeSet, OpenMode,
    PersistentKind, PersistentMemory, Region, SimulatedDisk,
};

/// Environment variable with the directory for a child process's part of a test.
const FOLDER: &str = "TERRACE_TEST_FOLDER";

const BYTES: u64 = 8 << 12;

/// Runs `check` on an empty directory of each kind that has memory.
fn on_every_directory(check: impl Fn(&dyn Directory)) {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let decorated = DecoratedDirectory::new(Arc::new(MemoryDirectory::new()), |_, device| device);
    let directories: [(&str, Arc<dyn Directory>); 4] = [
        ("shm", Arc::new(FileDirectory::create(&folder.path().join("d")).unwrap())),
        ("memory", Arc::new(MemoryDirectory::new())),
        ("decorated", Arc::new(decorated)),
        ("simulated", Arc::new(SimulatedDisk::new(1))),
    ];
    for (name, directory) in directories {
        println!("{name}");
        check(&*directory);
    }
}

fn create(directory: &dyn Directory) -> Arc<PersistentMemory> {
    directory.open_memory("frames", BYTES, OpenMode::CreateNew).unwrap()
}

fn store(memory: &PersistentMemory, at: usize, value: u64) {
    memory.note(at..at + 8);
    memory.words(at..at + 8)[0].store(value, Relaxed);
}

fn load(memory: &PersistentMemory, at: usize) -> u64 {
    memory.words(at..at + 8)[0].load(Relaxed)
}

#[test]
fn bytes_are_zero_at_first_and_are_there_again_after_closing() {
    on_every_directory(|directory| {
        let memory = create(directory);
        assert_eq!(memory.len() as u64, BYTES);
        assert!((0..memory.len()).step_by(8).all(|at| load(&memory, at) == 0));
        store(&memory, 4096, 7);
        memory.persist(4096..4104).unwrap();
        store(&memory, 8192, 8);
        drop(memory);
        let again = directory.open_memory("frames", 4096, OpenMode::Write).unwrap();
        assert_eq!(again.len() as u64, BYTES, "a file keeps its length");
        assert_eq!((load(&again, 4096), load(&again, 8192)), (7, 8));
    });
}

#[test]
fn a_memory_of_another_length_keeps_what_fits_and_gets_zeros() {
    on_every_directory(|directory| {
        let memory = create(directory);
        (0..8).for_each(|page| store(&memory, page * 4096 + 8, page as u64 + 1));
        memory.persist(0..memory.len()).unwrap();
        let busy = directory.resize_memory("frames", 4096).unwrap_err();
        assert_eq!(busy.kind(), ErrorKind::ResourceBusy, "{busy}");
        drop(memory);
        // Twice the same, and not whole pages.
        for (bytes, kept) in [(3 << 12, 3), (3 << 12, 3), ((5 << 12) - 9, 3), (4096, 1), (8 << 12, 1)] {
            directory.resize_memory("frames", bytes).unwrap();
            let memory = directory.open_memory("frames", 4096, OpenMode::Write).unwrap();
            assert_eq!(memory.len() as u64, bytes.next_multiple_of(4096));
            for page in 0..memory.len() / 4096 {
                let wanted = if page < kept { page as u64 + 1 } else { 0 };
                assert_eq!(load(&memory, page * 4096 + 8), wanted, "page {page} of {bytes} bytes");
            }
        }
        let refused = |file, bytes| directory.resize_memory(file, bytes).unwrap_err().kind();
        assert_eq!(refused("none", 4096), ErrorKind::NotFound);
        assert_eq!(refused("frames", 0), ErrorKind::InvalidInput);
        assert_eq!(refused("frames", u64::MAX), ErrorKind::StorageFull);
        assert_eq!(directory.open_memory("frames", 0, OpenMode::Write).unwrap().len(), 8 << 12);
    });
}

#[test]
fn a_second_handle_is_refused_until_the_first_is_gone() {
    on_every_directory(|directory| {
        let memory = create(directory);
        let error = directory.open_memory("frames", BYTES, OpenMode::Write).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ResourceBusy, "{error}");
        assert!(error.to_string().contains(memory.name()), "{error}");
        drop(memory);
        directory.open_memory("frames", BYTES, OpenMode::Write).unwrap();
    });
}

#[test]
fn the_same_bytes_appear_in_a_region() {
    on_every_directory(|directory| {
        let memory = create(directory);
        let region = Region::reserve(4 << 20).unwrap();
        memory.map_over(&region, 4096..4096 + 8192, 8192).unwrap();
        store(&memory, 8192 + 16, 5);
        assert_eq!(region.words(4096 + 16..4096 + 24)[0].load(Relaxed), 5);
        region.words(12280..12288)[0].store(6, Relaxed);
        assert_eq!(load(&memory, 16384 - 8), 6);
        drop(memory);
        assert_eq!(region.words(12280..12288)[0].load(Relaxed), 6, "it outlives the handle");
    });
}

#[test]
fn anonymous_memory_is_simulated_and_needs_no_instruction() {
    let memory = PersistentMemory::anonymous("frames", 4096).unwrap();
    assert_eq!((memory.kind(), memory.instruction()), (PersistentKind::Simulated, None));
    store(&memory, 0, 1);
    memory.persist(0..4096).unwrap();
    assert_eq!(load(&memory, 0), 1);
}

/// A directory on tmpfs.
fn shm() -> (tempfile::TempDir, FileDirectory, PathBuf) {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let directory = FileDirectory::open(folder.path()).unwrap();
    let file = folder.path().join("frames");
    (folder, directory, file)
}

#[test]
fn what_is_missing_there_already_or_not_for_memory_is_refused() {
    on_every_directory(|directory| {
        let open = |file: &str, bytes, mode| directory.open_memory(file, bytes, mode).unwrap_err().kind();
        assert_eq!(open("frames", BYTES, OpenMode::Write), ErrorKind::NotFound);
        assert_eq!(open("frames", 0, OpenMode::CreateNew), ErrorKind::InvalidInput);
        assert_eq!(open("a/b", BYTES, OpenMode::CreateNew), ErrorKind::InvalidInput);
        assert_eq!(open("frames", u64::MAX, OpenMode::CreateNew), ErrorKind::StorageFull);
        assert!(!directory.exists("frames").unwrap(), "a refusal leaves nothing");
        drop(create(directory));
        assert_eq!(open("frames", BYTES, OpenMode::CreateNew), ErrorKind::AlreadyExists);
        assert_eq!(open("frames", BYTES, OpenMode::Read), ErrorKind::InvalidInput);
        directory.open_memory("frames", BYTES, OpenMode::Write).unwrap();
    });
}

#[test]
fn lengths_are_rounded_up_to_pages() {
    on_every_directory(|directory| {
        assert_eq!(directory.open_memory("a", 1, OpenMode::CreateNew).unwrap().len(), 4096);
        assert_eq!(directory.open_memory("b", 4097, OpenMode::CreateNew).unwrap().len(), 8192);
    });
    assert_eq!(PersistentMemory::anonymous("c", 5000).unwrap().len(), 8192);
}

#[test]
fn a_renamed_memory_keeps_its_bytes_and_a_removed_one_is_new() {
    on_every_directory(|directory| {
        let memory = create(directory);
        store(&memory, 0, 3);
        directory.rename("frames", "other").unwrap();
        store(&memory, 8, 4);
        drop(memory);
        let again = directory.open_memory("other", 0, OpenMode::Write).unwrap();
        assert_eq!((load(&again, 0), load(&again, 8)), (3, 4));
        drop(again);
        directory.remove("other").unwrap();
        let new = directory.open_memory("other", BYTES, OpenMode::CreateNew).unwrap();
        assert_eq!(load(&new, 0), 0);
    });
}

#[test]
fn ranges_that_do_not_fit_are_refused() {
    on_every_directory(|directory| {
        let memory = create(directory);
        let region = Region::reserve(4 << 20).unwrap();
        let bytes = BYTES as usize;
        for (range, at) in
            [(0..bytes + 4096, 0), (0..4096, bytes), (0..4096, 100), (100..4196, 0), (0..100, 0)]
        {
            let error = memory.map_over(&region, range.clone(), at).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{range:?} at {at}: {error}");
            assert!(error.to_string().contains(memory.name()), "{error}");
        }
        let beyond = memory.map_over(&region, (4 << 20) - 4096..(4 << 20) + 4096, 0).unwrap_err();
        assert_eq!(beyond.kind(), ErrorKind::InvalidInput);
        assert_eq!(
            memory.map_over(&region, 0..4096, usize::MAX - 4095).unwrap_err().kind(),
            ErrorKind::InvalidInput
        );
        let panics = |call: &dyn Fn()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).is_err();
        assert!(panics(&|| assert_eq!(memory.words(0..bytes + 8).len(), 0)));
        assert!(panics(&|| assert_eq!(memory.words(4..8).len(), 0)));
        assert!(panics(&|| drop(memory.write_back(bytes..bytes + 64))));
    });
}

#[test]
fn memory_over_a_region_is_not_released_with_it_and_neighbours_stay() {
    on_every_directory(|directory| {
        let memory = create(directory);
        let region = Region::reserve(8 << 20).unwrap();
        region.commit(0..4 << 20).unwrap();
        region.words(0..8)[0].store(1, Relaxed);
        region.words(16384..16392)[0].store(2, Relaxed);
        let late_reader = region.words(4096..12288);
        memory.map_over(&region, 4096..12288, 0).unwrap();
        store(&memory, 0, 3);
        assert_eq!(late_reader[0].load(Relaxed), 3, "the same addresses");
        assert_eq!(region.words(0..8)[0].load(Relaxed), 1);
        assert_eq!(region.words(16384..16392)[0].load(Relaxed), 2);
        region.release(4096..12288).unwrap();
        region.commit(0..4 << 20).unwrap();
        assert_eq!(late_reader[0].load(Relaxed), 3);
        drop(region);
        assert_eq!(load(&memory, 0), 3);
    });
}

#[test]
fn memory_and_devices_are_not_each_other() {
    let directories: [Arc<dyn Directory>; 2] =
        [Arc::new(MemoryDirectory::new()), Arc::new(SimulatedDisk::new(1))];
    for directory in directories {
        drop(create(&*directory));
        directory.open("pages", OpenMode::CreateNew).unwrap();
        let wrong = [
            directory.open("frames", OpenMode::Write).map(drop).unwrap_err(),
            directory.open_memory("pages", BYTES, OpenMode::Write).map(drop).unwrap_err(),
        ];
        assert!(wrong.iter().all(|error| error.kind() == ErrorKind::InvalidInput), "{wrong:?}");
    }
}

#[test]
fn a_copied_directory_has_its_own_memory() {
    let directory = MemoryDirectory::new();
    let memory = create(&directory);
    store(&memory, 4096, 1);
    let copy = directory.copy();
    store(&memory, 4096, 2);
    let copied = copy.open_memory("frames", 0, OpenMode::Write).unwrap();
    assert_eq!((load(&copied, 4096), copied.len() as u64), (1, BYTES));
}

#[test]
fn a_shared_file_belongs_to_its_owner_and_has_its_space() {
    let (_folder, directory, file) = shm();
    let memory = create(&directory);
    assert_eq!((memory.kind(), memory.instruction()), (PersistentKind::Shm, None));
    let status = std::fs::metadata(&file).unwrap();
    assert_eq!(status.permissions().mode() & 0o7777, 0o600);
    assert_eq!(status.len(), BYTES);
    assert_eq!(std::os::unix::fs::MetadataExt::blocks(&status) * 512, BYTES, "allocated");
    assert_eq!(memory.name(), file.to_str().unwrap());
}

#[test]
fn too_little_space_is_an_error_of_the_opening() {
    let (_folder, directory, _) = shm();
    let error = directory.open_memory("frames", 1 << 45, OpenMode::CreateNew).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
    assert!(error.to_string().contains("frames"), "{error}");
    assert!(!directory.exists("frames").unwrap());
}

#[test]
fn a_file_of_another_length_keeps_it() {
    let (_folder, directory, file) = shm();
    std::fs::write(&file, [7; 12288]).unwrap();
    let memory = directory.open_memory("frames", 4096, OpenMode::Write).unwrap();
    assert_eq!((memory.len(), load(&memory, 12280)), (12288, 0x0707_0707_0707_0707));
    drop(memory);
    std::fs::write(&file, [7; 5000]).unwrap();
    let error = directory.open_memory("frames", 8192, OpenMode::Write).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
    assert_eq!(std::fs::read(&file).unwrap(), [7; 5000], "unchanged");
    std::fs::write(&file, []).unwrap();
    assert_eq!(directory.open_memory("frames", 8192, OpenMode::Write).unwrap().len(), 8192);
}

#[test]
fn links_folders_and_pipes_are_no_memory() {
    let (folder, directory, file) = shm();
    std::fs::write(folder.path().join("target"), [0; 4096]).unwrap();
    symlink(folder.path().join("target"), &file).unwrap();
    assert!(directory.open_memory("frames", BYTES, OpenMode::Write).is_err(), "a link");
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir(&file).unwrap();
    assert!(directory.open_memory("frames", BYTES, OpenMode::Write).is_err(), "a folder");
    std::fs::remove_dir(&file).unwrap();
    assert!(Command::new("mkfifo").arg(&file).status().unwrap().success());
    let error = directory.open_memory("frames", BYTES, OpenMode::Write).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
}

/// Only what a machine of tests surely has: a file system on a disk, without DAX.
#[test]
fn a_file_system_without_persistent_memory_is_refused_with_the_reason() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let directory = FileDirectory::open(folder.path()).unwrap();
    let error = directory.open_memory("frames", BYTES, OpenMode::CreateNew).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    for word in ["frames", "MAP_SYNC", "dax", "tmpfs"] {
        assert!(error.to_string().contains(word), "{error}");
    }
    assert!(!directory.exists("frames").unwrap());
    std::fs::write(folder.path().join("mine"), [7; 4096]).unwrap();
    directory.open_memory("mine", BYTES, OpenMode::Write).unwrap_err();
    assert_eq!(std::fs::read(folder.path().join("mine")).unwrap(), [7; 4096]);
}

#[test]
#[ignore = "the part of a child process"]
fn child_stores_and_is_killed() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let directory = FileDirectory::open(Path::new(&folder)).unwrap();
    let memory = create(&directory);
    let region = Region::reserve(4 << 20).unwrap();
    memory.map_over(&region, 0..4096, 4096).unwrap();
    for word in 0..512 {
        region.words(word * 8..word * 8 + 8)[0].store(word as u64 + 1, Relaxed);
    }
    // SAFETY: ends this process.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
}

#[test]
fn stores_outlive_a_process_that_is_killed() {
    let (folder, directory, _) = shm();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_stores_and_is_killed", "--include-ignored"])
        .env(FOLDER, folder.path())
        .output()
        .unwrap();
    assert_eq!(child.status.signal(), Some(libc::SIGKILL), "{child:?}");
    let memory = directory.open_memory("frames", 0, OpenMode::Write).unwrap();
    for word in 0..512 {
        assert_eq!(load(&memory, 4096 + word * 8), word as u64 + 1);
    }
}

/// Whether these addresses are mapped, without touching them.
fn is_mapped(address: usize) -> bool {
    let mut present = 0u8;
    // SAFETY: the kernel writes one byte, for one page, and refuses addresses without a mapping.
    unsafe { libc::mincore(address as *mut libc::c_void, 4096, &raw mut present) == 0 }
}

#[test]
fn a_forked_process_has_neither_mapping_and_takes_nothing_away() {
    on_every_directory(|directory| {
        let memory = create(directory);
        let region = Region::reserve(4 << 20).unwrap();
        memory.map_over(&region, 0..8192, 0).unwrap();
        store(&memory, 0, 9);
        let own = memory.words(0..8).as_ptr().addr();
        let (over, beside) = (region.as_ptr().addr(), region.as_ptr().addr() + 8192);
        assert!(is_mapped(own) && is_mapped(over) && is_mapped(beside));
        let mut status = 0;
        // SAFETY: the child only asks the kernel, and ends.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                let good = !is_mapped(own) && !is_mapped(over) && is_mapped(beside);
                libc::_exit(i32::from(!good));
            }
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        }
        assert_eq!(status, 0);
        assert_eq!((load(&memory, 0), region.words(0..8)[0].load(Relaxed)), (9, 9));
    });
}

/// A child has the handles of its parent until it ends, so closing them frees no lock.
#[test]
fn a_process_that_forks_meanwhile_keeps_no_lock_of_a_resize() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let directory = FileDirectory::create(&folder.path().join("d")).unwrap();
    drop(create(&directory));
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Relaxed) {
                let mut status = 0;
                // SAFETY: the child only sleeps, and ends.
                unsafe {
                    let child = libc::fork();
                    if child == 0 {
                        libc::usleep(1000);
                        libc::_exit(0);
                    }
                    assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
                }
            }
        });
        let resized: std::io::Result<()> = (0..2000).try_for_each(|round| {
            directory.resize_memory("frames", BYTES + (round % 2) * 4096)?;
            directory.open_memory("frames", 0, OpenMode::Write).map(drop)
        });
        ended.store(true, Relaxed);
        resized.unwrap();
    });
}

#[test]
fn a_node_without_memory_is_refused_by_its_number() {
    let memory = PersistentMemory::anonymous("frames", 8192).unwrap();
    let error = memory.bind_to(&NodeSet::of(&[1000]).unwrap()).unwrap_err();
    assert!(error.to_string().contains("node 1000"), "{error}");
    store(&memory, 0, 1);
    assert_eq!(memory.bind_to(&NodeSet::of(&[0]).unwrap()).unwrap(), 0);
    assert_eq!(load(&memory, 0), 1);
}

#[test]
fn write_backs_and_fences_are_calls_of_the_simulated_disk() {
    let disk = SimulatedDisk::new(1);
    let memory = create(&disk);
    let calls = disk.calls();
    memory.note(0..64);
    memory.write_back(0..4096).unwrap();
    memory.persist(64..128).unwrap();
    assert_eq!(disk.calls() - calls, 3);
    assert_eq!((disk.calls_of(CallKind::WriteBack), disk.calls_of(CallKind::Fence)), (2, 1));
    disk.crash_at(disk.calls() + 2);
    memory.write_back(0..64).unwrap();
    store(&memory, 0, 1);
    let error = memory.fence().unwrap_err();
    assert!(error.to_string().contains("power lost"), "{error}");
    assert_eq!(disk.crashed().as_deref(), Some("Fence simulated:frames"));
    assert!(memory.write_back(0..64).is_err());
    store(&memory, 0, 2);
    assert_eq!(load(&memory, 0), 2, "it still runs, and counts no more");
    let after = disk.killed();
    assert_eq!(load(&after.open_memory("frames", 0, OpenMode::Write).unwrap(), 0), 1);
}

#[test]
fn faults_strike_memory_only_if_they_name_it() {
    let disk = SimulatedDisk::new(1);
    let memory = create(&disk);
    disk.fail(FaultPlan::from_then_on(CallKind::Any, 1, libc::EIO));
    memory.persist(0..64).unwrap();
    assert!(disk.exists("frames").is_err());
    disk.mend();
    disk.sync().unwrap();
    disk.fail(FaultPlan::once(CallKind::Fence, 1, libc::EIO));
    store(&memory, 0, 1);
    assert_eq!(memory.persist(0..64).unwrap_err().raw_os_error(), Some(libc::EIO));
    let lost = |disk: &SimulatedDisk| {
        let first = |seed| load(&disk.survivor(seed).open_memory("frames", 0, OpenMode::Write).unwrap(), 0);
        (0..50).any(|seed| first(seed) == 0)
    };
    assert!(lost(&disk), "the fence that failed had no effect");
    memory.fence().unwrap();
    assert!(!lost(&disk));
}

#[test]
fn the_name_of_a_memory_is_durable_after_a_sync_of_its_directory() {
    let disk = SimulatedDisk::new(1);
    let memory = create(&disk);
    store(&memory, 0, 1);
    memory.persist(0..8).unwrap();
    let kept = (0..100).filter(|&seed| disk.survivor(seed).exists("frames").unwrap()).count();
    assert!((1..100).contains(&kept));
    disk.sync().unwrap();
    for seed in 0..100 {
        let after = disk.survivor(seed).open_memory("frames", 0, OpenMode::Write).unwrap();
        assert_eq!(load(&after, 0), 1, "seed {seed}");
    }
}

#[test]
fn memory_takes_part_of_the_capacity() {
    let disk = SimulatedDisk::new(1);
    disk.set_capacity(BYTES + 4096);
    create(&disk);
    let error = disk.open_memory("more", 8192, OpenMode::CreateNew).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    assert!(!disk.exists("more").unwrap());
    disk.open_memory("more", 4096, OpenMode::CreateNew).unwrap();
}
