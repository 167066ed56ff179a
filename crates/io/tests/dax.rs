//! Persistent memory by `MAP_SYNC`, in a guest with an emulated NVDIMM.
//!
//! `.ci/run dax` starts that guest, with the directory of each kind in an environment variable. The
//! tests are ignored, and fail elsewhere. An emulated processor loses no line, so lost lines are
//! the matter of the simulated disk (`tests/persistent_lines.rs`).

use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use terrace_io::{Directory, FileDirectory, NodeSet, OpenMode, PersistentKind, PersistentMemory, Region};

const BYTES: u64 = 4 << 20;

/// A folder on a file system with DAX.
const DAX: &str = "TERRACE_DAX";
/// A folder on a file system of the same kind, mounted without it.
const NO_DAX: &str = "TERRACE_NO_DAX";
/// A folder with DAX that two boots share, with a power cut between them.
const POWER_CUT: &str = "TERRACE_POWER_CUT";

fn directory(variable: &str) -> FileDirectory {
    let folder = std::env::var_os(variable).unwrap_or_else(|| panic!("needs the folder {variable}"));
    FileDirectory::open(&PathBuf::from(folder)).unwrap()
}

fn new(directory: &FileDirectory, file: &str) -> Arc<PersistentMemory> {
    let _ = directory.remove(file);
    directory.open_memory(file, BYTES, OpenMode::CreateNew).unwrap()
}

fn store(memory: &PersistentMemory, value: u64) {
    memory.words(0..BYTES as usize).iter().zip(value..).for_each(|(word, value)| word.store(value, Relaxed));
}

fn holds(memory: &PersistentMemory, value: u64) -> bool {
    memory.words(0..BYTES as usize).iter().zip(value..).all(|(word, value)| word.load(Relaxed) == value)
}

#[test]
#[ignore = "needs a file system with DAX"]
fn a_file_with_dax_is_mapped_synchronously_and_keeps_its_bytes() {
    let directory = directory(DAX);
    let memory = new(&directory, "frames");
    assert_eq!(memory.kind(), PersistentKind::Dax);
    let instruction = memory.instruction().expect("lines need one");
    println!("lines are written back by {instruction}");
    store(&memory, 1);
    memory.persist(0..BYTES as usize).unwrap();
    let error = directory.open_memory("frames", BYTES, OpenMode::Write).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ResourceBusy, "{error}");
    drop(memory);
    let memory = directory.open_memory("frames", 0, OpenMode::Write).unwrap();
    assert!(holds(&memory, 1));
}

#[test]
#[ignore = "needs a file system with DAX"]
fn its_bytes_appear_in_a_region_as_synchronously() {
    let directory = directory(DAX);
    let memory = new(&directory, "region");
    let region = Region::reserve(8 << 20).unwrap();
    memory.map_over(&region, 2 << 20..6 << 20, 0).unwrap();
    store(&memory, 7);
    let words = region.words(2 << 20..6 << 20);
    assert!(words.iter().zip(7..).all(|(word, value)| word.load(Relaxed) == value));
    let start = format!("{:x}-", region.as_ptr().addr() + (2 << 20));
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let ours = maps.lines().skip_while(|line| !line.starts_with(&start));
    let flags = ours.into_iter().find(|line| line.starts_with("VmFlags:")).unwrap();
    assert!(flags.contains(" sf") && flags.contains(" dc"), "synchronous, not in children: {flags}");
}

#[test]
#[ignore = "needs a file system with DAX"]
fn it_stays_where_its_hardware_is() {
    let memory = new(&directory(DAX), "placed");
    let error = memory.bind_to(&NodeSet::of(&[0]).unwrap()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
}

#[test]
#[ignore = "needs a file system with DAX"]
fn too_little_space_is_an_error_of_the_opening() {
    let directory = directory(DAX);
    let error = directory.open_memory("large", 1 << 40, OpenMode::CreateNew).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::FileTooLarge), "{error}");
    assert!(!directory.exists("large").unwrap());
}

#[test]
#[ignore = "needs a file system mounted without DAX"]
fn the_same_file_system_without_dax_is_refused_with_the_reason() {
    let directory = directory(NO_DAX);
    let error = directory.open_memory("frames", BYTES, OpenMode::CreateNew).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("MAP_SYNC") && error.to_string().contains("dax"), "{error}");
    assert!(!directory.exists("frames").unwrap());
}

#[test]
#[ignore = "is run before a power cut"]
fn before_the_power_cut() {
    let directory = directory(POWER_CUT);
    let memory = new(&directory, "kept");
    directory.sync().unwrap();
    store(&memory, 5);
    memory.persist(0..BYTES as usize).unwrap();
}

#[test]
#[ignore = "is run after a power cut"]
fn after_the_power_cut() {
    let memory = directory(POWER_CUT).open_memory("kept", 0, OpenMode::Write).unwrap();
    assert_eq!((memory.kind(), memory.len() as u64), (PersistentKind::Dax, BYTES));
    assert!(holds(&memory, 5));
}
