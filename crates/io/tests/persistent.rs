//! The contract of persistent memory, checked on every kind that any machine has.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use terrace_io::{
    Directory, FileDirectory, MemoryDirectory, OpenMode, PersistentKind, PersistentMemory, Region,
    SimulatedDisk,
};

const BYTES: u64 = 8 << 12;

/// Runs `check` on an empty directory of each kind that has memory.
fn on_every_directory(check: impl Fn(&dyn Directory)) {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let directories: [(&str, Arc<dyn Directory>); 3] = [
        ("shm", Arc::new(FileDirectory::create(&folder.path().join("d")).unwrap())),
        ("memory", Arc::new(MemoryDirectory::new())),
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
