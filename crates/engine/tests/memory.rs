//! The memory of a process stays within the budget plus 32 MiB.
//!
//! The data have eight times the budget and the log has six times. Checked during load and changes,
//! during recovery, and after changes of the budget.
//!
//! Each part is a process of its own, a new run of this binary, because the kernel keeps one peak
//! per process. The first loads, changes until there is much to recover, reports its peak, and is
//! killed. The second recovers, reads, and reports its own. The third changes its budget and
//! reports its memory after each change.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rustix::mm::{MlockAllFlags, mlockall, munlockall};
use rustix::process::{Resource, Rlimit, geteuid, getrlimit, setrlimit};
use terrace::{Backend, Compression, Db, Durability, Error, Table, WriteBatch};

const BUDGET_BYTES: u64 = 8 << 20;
/// The raised budget: nearly all data fit.
const LARGE_BUDGET_BYTES: u64 = 64 << 20;
const LOG_BYTES: u64 = 48 << 20;
/// Bytes for the program, its stacks and a write set.
const BESIDE_BYTES: u64 = 32 << 20;
const VALUE_BYTES: usize = 1000;
const ENTRIES: u64 = 8 * BUDGET_BYTES / VALUE_BYTES as u64;
const BATCH: u64 = 64;
const DATABASE: &str = "TERRACE_MEMORY_DATABASE";
/// Selects larger, compressed pages.
const COMPRESSED: &str = "TERRACE_MEMORY_COMPRESSED";

fn open(path: &Path) -> Db {
    let builder = Db::builder().dram(BUDGET_BYTES).log_max(LOG_BYTES).durability(Durability::Buffered);
    let builder = match std::env::var_os(COMPRESSED) {
        Some(_) => builder.page_size(16 << 10).compression(Compression::Lz4),
        None => builder,
    };
    builder.open(path).unwrap()
}

fn value(number: u64, round: u8) -> Vec<u8> {
    let mut value = vec![round; VALUE_BYTES];
    value[..8].copy_from_slice(&number.to_le_bytes());
    value
}

/// Line `name` of this process's memory status, bytes, if the system has it.
fn status_bytes(name: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
}

/// Peak memory of this process, bytes, if the system reports it.
fn peak_bytes() -> Option<u64> {
    status_bytes("VmHWM:")
}

/// Memory of this process, bytes.
fn resident_bytes() -> u64 {
    status_bytes("VmRSS:").unwrap()
}

fn tell(what: &str) {
    println!("\npeak {} {what}", peak_bytes().unwrap());
}

fn load(db: &Db) -> Table {
    let table = db.create_table("t").unwrap();
    for first in (0..ENTRIES).step_by(BATCH as usize) {
        let mut batch = WriteBatch::new();
        for number in first..ENTRIES.min(first + BATCH) {
            batch.put(&table, number.to_be_bytes(), value(number, 0));
        }
        db.write(batch, Durability::Buffered).unwrap();
    }
    db.flush().unwrap();
    table
}

/// Also ends with the parent, should that fail.
fn wait_to_be_killed() {
    let _ = std::io::stdin().read_line(&mut String::new());
}

/// Loads, changes, and waits to be killed; does nothing without its environment variable.
#[test]
fn loader() {
    let Some(path) = std::env::var_os(DATABASE) else { return };
    let db = open(Path::new(&path));
    let table = load(&db);
    tell("load");
    let mut random = SmallRng::seed_from_u64(1);
    for change in 0.. {
        let number = random.random_range(0..ENTRIES);
        let old = table.get(number.to_be_bytes()).unwrap().unwrap();
        table.put(number.to_be_bytes(), value(number, old[8].wrapping_add(1))).unwrap();
        let stats = db.stats();
        // Few large pages are written quickly. A checkpoint in the background may begin at half and
        // keep up with the changes.
        let enough = LOG_BYTES / if stats.page_bytes > 4096 { 8 } else { 4 };
        if change >= ENTRIES / 4 && stats.log_tail - stats.log_cut > enough {
            break;
        }
        assert!(change < 2 * ENTRIES, "the log does not fill: {stats:?}");
    }
    db.flush().unwrap();
    tell("run");
    println!("loaded");
    wait_to_be_killed();
}

/// Recovers and reads; does nothing without its environment variable.
#[test]
fn recoverer() {
    let Some(path) = std::env::var_os(DATABASE) else { return };
    let db = open(Path::new(&path));
    tell("recovery");
    let stats = db.stats();
    assert!(
        stats.changes_redone > 0 && stats.evictions > 2 * stats.frames,
        "too little to recover: {stats:?}"
    );
    let table = db.open_table("t").unwrap();
    for number in (0..ENTRIES).step_by(16) {
        let found = table.get(number.to_be_bytes()).unwrap().unwrap();
        assert_eq!(found, value(number, found[8]));
    }
    tell("reading");
    println!("read");
    wait_to_be_killed();
}

/// Raises and lowers its budget; does nothing without its environment variable.
#[test]
fn resizer() {
    let Some(path) = std::env::var_os(DATABASE) else { return };
    let builder = Db::builder().dram(BUDGET_BYTES).dram_max(LARGE_BUDGET_BYTES).log_max(LOG_BYTES);
    let db = builder.durability(Durability::Buffered).open(Path::new(&path)).unwrap();
    let limits = getrlimit(Resource::Data);
    let little = status_bytes("VmData:").unwrap() + (16 << 20);
    setrlimit(Resource::Data, Rlimit { current: Some(little), ..limits }).unwrap();
    let raised = db.set_dram(LARGE_BUDGET_BYTES);
    match db.stats().backend {
        // The system refuses the memory, and the budget stays.
        Backend::Frames => {
            let refused = raised.unwrap_err();
            assert!(matches!(refused, Error::Memory { .. }), "{refused}");
            assert_eq!(db.stats().budget_bytes, BUDGET_BYTES);
        }
        // The limit counts writable address space, and that of all pages was counted at open.
        Backend::Mapped => {
            raised.unwrap();
            assert_eq!(db.stats().budget_bytes, LARGE_BUDGET_BYTES);
        }
    }
    setrlimit(Resource::Data, limits).unwrap();

    db.set_dram(LARGE_BUDGET_BYTES).unwrap();
    let table = load(&db);
    let large = resident_bytes();
    println!("with a budget of {LARGE_BUDGET_BYTES} bytes: {large}");
    assert!(large > LARGE_BUDGET_BYTES * 3 / 4 && large <= LARGE_BUDGET_BYTES + BESIDE_BYTES);
    let mut random = SmallRng::seed_from_u64(2);
    for round in 0..3 {
        db.set_dram(BUDGET_BYTES).unwrap();
        let small = resident_bytes();
        println!("back at {BUDGET_BYTES} bytes: {small}");
        assert!(small <= BUDGET_BYTES + BESIDE_BYTES, "{small} bytes of {large} are left");
        // From here on the peak is that of the small budget.
        std::fs::write("/proc/self/clear_refs", "5").unwrap();
        for _ in 0..ENTRIES / 16 {
            let number = random.random_range(0..ENTRIES);
            let old = table.get(number.to_be_bytes()).unwrap().unwrap();
            assert_eq!(old, value(number, old[8]));
            table.put(number.to_be_bytes(), value(number, old[8].wrapping_add(1))).unwrap();
        }
        tell(&format!("under a lowered budget, round {round},"));
        db.set_dram(LARGE_BUDGET_BYTES / 2).unwrap();
        for number in (0..ENTRIES).step_by(3) {
            assert!(table.contains(number.to_be_bytes()).unwrap());
        }
    }
    println!("resized");
    wait_to_be_killed();
}

/// Opens with little address space, then with locked memory; does nothing without its environment
/// variable.
#[test]
fn confined() {
    let Some(path) = std::env::var_os(DATABASE) else { return };
    let open = |backend| {
        let builder = Db::builder().dram(BUDGET_BYTES).log_max(LOG_BYTES).backend(backend);
        builder.open(Path::new(&path)).and_then(Db::close)
    };
    let refused = || {
        let refused = open(Backend::Mapped).unwrap_err();
        println!("refused: {refused}");
        refused
    };
    // The limit that the error suggests is sufficient.
    let limits = getrlimit(Resource::As);
    for backend in [Backend::Frames, Backend::Mapped] {
        let few = status_bytes("VmSize:").unwrap() + (1 << 30);
        setrlimit(Resource::As, Rlimit { current: Some(few), ..limits }).unwrap();
        let told = open(backend).unwrap_err().to_string();
        assert!(told.contains("ulimit -v") && !told.contains("lower the budget"), "{told}");
        let enough = told.split("limit to ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
        let enough = enough.parse::<u64>().unwrap() * 1024;
        setrlimit(Resource::As, Rlimit { current: Some(enough), ..limits }).unwrap();
        open(backend).unwrap();
    }
    setrlimit(Resource::As, limits).unwrap();
    // Enough for the page table, but not for an address per page.
    let little = status_bytes("VmSize:").unwrap() + (64 << 30);
    setrlimit(Resource::As, Rlimit { current: Some(little), ..limits }).unwrap();
    let few = refused();
    assert!(
        matches!(few, Error::Memory { .. })
            && few.to_string().contains("bytes of addresses for pages of 4096 bytes")
    );
    open(Backend::Frames).unwrap();
    setrlimit(Resource::As, limits).unwrap();
    open(Backend::Mapped).unwrap();
    // Only a process that may lock any amount of memory gets as far as pages.
    if !geteuid().is_root() || mlockall(MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT).is_err() {
        println!("left out: this process may not lock its memory");
    } else {
        let locked = refused();
        assert!(matches!(locked, Error::Config(_)) && locked.to_string().contains("mlockall"));
        munlockall().unwrap();
        open(Backend::Mapped).unwrap();
    }
    println!("confined");
    wait_to_be_killed();
}

/// Runs `part` in a new process and kills it after it reports `last`. Its peaks must hold.
fn peaks_hold(part: &str, path: &Path, compressed: bool, last: &str) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    if compressed {
        command.env(COMPRESSED, "1");
    }
    command.args([part, "--exact", "--nocapture", "--test-threads=1"]).env(DATABASE, path);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        println!("{part}: {line}");
        if line == last {
            child.kill().unwrap();
            child.wait().unwrap();
            return;
        }
        let words: Vec<_> = line.split(' ').collect();
        if let ["peak", bytes, what] = words[..] {
            let bytes: u64 = bytes.parse().unwrap();
            assert!(
                bytes <= BUDGET_BYTES + BESIDE_BYTES,
                "{what} took {bytes} bytes of memory with a budget of {BUDGET_BYTES}"
            );
        }
    }
    panic!("the {part} ended with {:?}", child.wait());
}

#[test]
fn a_process_keeps_its_budget_through_load_run_and_recovery() {
    if peak_bytes().is_none() {
        println!("left out: the system does not say how much memory a process has");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("db");
    peaks_hold("loader", &path, false, "loaded");
    peaks_hold("recoverer", &path, false, "read");
}

#[test]
fn compressed_pages_take_no_more_memory_than_others() {
    if peak_bytes().is_none() {
        println!("left out: the system does not say how much memory a process has");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("db");
    peaks_hold("loader", &path, true, "loaded");
    peaks_hold("recoverer", &path, true, "read");
}

#[test]
fn memory_comes_and_goes_with_the_budget() {
    if peak_bytes().is_none() {
        println!("left out: the system does not say how much memory a process has");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    peaks_hold("resizer", &folder.path().join("db"), false, "resized");
}

#[test]
fn mapped_pages_that_the_system_has_no_addresses_for_or_locks_are_refused_at_open() {
    if peak_bytes().is_none() {
        println!("left out: the system does not say how much memory a process has");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    peaks_hold("confined", &folder.path().join("db"), false, "confined");
}
