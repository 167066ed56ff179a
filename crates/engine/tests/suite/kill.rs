//! Processes killed at any instant: acknowledged commits are there, whole, at the next open.
//!
//! The parent starts this binary again as a child on a database, and reads from a pipe what the
//! child begins and what was acknowledged. It kills the child at a random instant, opens the
//! database, and compares it with its ledger. The next cycle continues with the same database.
//!
//! Each thread of the child has its own keys, so the ledger needs no order between threads.
//! Transaction `n` of a thread writes `n` under all of its keys, with lengths that follow from `n`.
//! The last acknowledged transaction, or the one after it, must be found under every key. Every
//! third transaction is aborted instead, with a marker that must never appear.
//!
//! Runs over the page file alone, with a block cache, over a middle tier in shared memory, and with
//! the log in shared memory. Cache and tier must be warm after each kill.
//!
//! `TERRACE_KILL_CYCLES` is the number of cycles, `TERRACE_SEED` the first seed.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use terrace::{Backend, CacheStats, Db, Stats, Table};

use super::common;

const THREADS: u64 = 3;
const KEYS: u64 = 8;
/// Most commits before a kill.
const COMMITS_MAX: u32 = 200;
const CHILD: &str = "TERRACE_KILL_CHILD";
const CACHE: &str = "TERRACE_KILL_CACHE";
const TIER: &str = "TERRACE_KILL_TIER";
const RING: &str = "TERRACE_KILL_RING";
const NUMBERS: &str = "TERRACE_KILL_NUMBERS";

/// What a database has beside its directory.
#[derive(Clone, Debug, Default)]
struct Beside {
    /// The file of a block cache.
    cache: Option<PathBuf>,
    /// A middle tier in shared memory.
    tier: Option<PathBuf>,
    /// The log's ring in shared memory.
    ring: Option<PathBuf>,
}

impl Beside {
    fn of_environment() -> Beside {
        let file = |name| std::env::var_os(name).map(PathBuf::from);
        Beside { cache: file(CACHE), tier: file(TIER), ring: file(RING) }
    }

    /// The same files in other folders, copied there if they exist.
    fn copied_to(&self, disk: &Path, memory: &Path) -> Beside {
        let copy = |file: &Option<PathBuf>, folder: &Path| {
            let file = file.as_ref().filter(|file| file.exists())?;
            let copy = folder.join(file.file_name().unwrap());
            std::fs::copy(file, &copy).unwrap();
            Some(copy)
        };
        Beside {
            cache: copy(&self.cache, disk),
            tier: copy(&self.tier, memory),
            ring: copy(&self.ring, memory),
        }
    }
}

/// Opens the database, with the files beside it.
fn open(path: &Path, beside: &Beside) -> Db {
    let builder = common::builder().dram(2 << 20).page_size(4096).log_max(512 << 10);
    let builder = match &beside.cache {
        Some(file) => builder.cache(format!("file:{},4MiB", file.display()).parse().unwrap()),
        None => builder,
    };
    let builder = match &beside.ring {
        Some(file) => builder.log_memory(format!("shm:{},256KiB", file.display()).parse().unwrap()),
        None => builder,
    };
    let builder = match &beside.tier {
        Some(file) => builder.middle(format!("shm:{},4MiB", file.display()).parse().unwrap()),
        None => builder,
    };
    let builder = if beside.tier.is_some() { builder.backend(Backend::Frames) } else { builder };
    builder.open(path).unwrap()
}

fn key(thread: u64, key: u64) -> String {
    format!("thread {thread} key {key}")
}

/// A value, sometimes of many pages.
fn value(thread: u64, key: u64, number: u64) -> Vec<u8> {
    let length = if number % 16 == key { 12_000 } else { (number * 37 + key * 11) % 700 };
    let mut value = number.to_le_bytes().to_vec();
    value.extend((0..length).map(|at| (at + number * 3 + key + thread) as u8));
    value
}

fn marker(thread: u64) -> String {
    format!("aborted {thread}")
}

/// Commits from `number` on until killed, with a line before and after each commit.
fn write_for_ever(db: &Db, table: &Table, thread: u64, mut number: u64) {
    let tell = |what: char, number: u64| {
        let line = format!("{what} {thread} {number}\n");
        if std::io::stdout()
            .lock()
            .write_all(line.as_bytes())
            .and_then(|()| std::io::stdout().flush())
            .is_err()
        {
            std::process::exit(0);
        }
    };
    loop {
        let mut transaction = db.begin();
        if number.is_multiple_of(3) {
            transaction.put(table, marker(thread), [1; 3000]).unwrap();
            transaction.put(table, key(thread, 0), marker(thread)).unwrap();
            transaction.abort();
            transaction = db.begin();
        }
        for name in 0..KEYS {
            transaction.put(table, key(thread, name), value(thread, name, number)).unwrap();
        }
        tell('b', number);
        transaction.commit().unwrap();
        tell('a', number);
        number += 1;
    }
}

/// Extends and shrinks the page file, with live pages among those it moves.
fn grow_and_compact_for_ever(db: &Db) {
    loop {
        let table = db.open_or_create_table("passing").unwrap();
        for key in 0..300u32 {
            table.put(key.to_be_bytes(), [7; 2000]).unwrap();
        }
        drop(table);
        db.drop_table("passing").unwrap();
        db.compact().unwrap();
    }
}

/// The child; without its environment variable it does nothing.
#[test]
fn child() {
    let Some(path) = std::env::var_os(CHILD) else { return };
    let numbers = std::env::var(NUMBERS).unwrap();
    let db = open(Path::new(&path), &Beside::of_environment());
    let table = db.open_or_create_table("ledger").unwrap();
    println!("\nready");
    std::thread::scope(|scope| {
        for (thread, number) in numbers.split(' ').enumerate() {
            let (db, table, number) = (&db, &table, number.parse().unwrap());
            scope.spawn(move || write_for_ever(db, table, thread as u64, number));
        }
        scope.spawn(|| grow_and_compact_for_ever(&db));
    });
}

fn start(path: &Path, beside: &Beside, ledger: &BTreeMap<u64, (u64, u64)>) -> Child {
    let numbers = ledger.values().map(|(acknowledged, begun)| (acknowledged.max(begun) + 1).to_string());
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["kill::child", "--exact", "--nocapture", "--test-threads=1"]);
    command.env(CHILD, path).env(NUMBERS, numbers.collect::<Vec<_>>().join(" "));
    for (name, file) in [(CACHE, &beside.cache), (TIER, &beside.tier), (RING, &beside.ring)] {
        file.iter().for_each(|file| _ = command.env(name, file));
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap()
}

/// Compares a database with its ledger; returns its statistics.
fn check(path: &Path, beside: &Beside, ledger: &mut BTreeMap<u64, (u64, u64)>) -> Stats {
    let db = open(path, beside);
    assert_eq!(db.verify().unwrap().errors, []);
    let table = db.open_or_create_table("ledger").unwrap();
    for (&thread, (acknowledged, begun)) in ledger.iter_mut() {
        assert_eq!(table.get(marker(thread)).unwrap(), None, "an aborted write is there");
        let first = table.get(key(thread, 0)).unwrap();
        let found = first.map_or(0, |value| u64::from_le_bytes(*value.first_chunk().unwrap()));
        assert!(found == *acknowledged || found == *begun, "{found}, not {acknowledged} or {begun}");
        for name in 0..KEYS {
            let wanted = (found > 0).then(|| value(thread, name, found));
            assert!(
                table.get(key(thread, name)).unwrap() == wanted,
                "transaction {found} of {thread} is not whole"
            );
        }
        (*acknowledged, *begun) = (found, found);
    }
    let stats = db.stats();
    db.close().unwrap();
    stats
}

/// Notes what the child reports until it ends, and passes on each acknowledgement.
fn listen(
    lines: impl Iterator<Item = std::io::Result<String>>,
    ledger: &mut BTreeMap<u64, (u64, u64)>,
    acknowledged: &Sender<()>,
) -> u64 {
    let mut commits = 0;
    for line in lines.map_while(Result::ok) {
        let words: Vec<_> = line.split(' ').collect();
        let [what, thread, number] = words[..] else { continue };
        let (Ok(thread), Ok(number)) = (thread.parse(), number.parse()) else { continue };
        let Some((last, begun)) = ledger.get_mut(&thread) else { continue };
        match what {
            "b" => *begun = number,
            "a" => {
                (*last, commits) = (number, commits + 1);
                // The killer waits for the first ones only.
                let _ = acknowledged.send(());
            }
            _ => {}
        }
    }
    commits
}

/// Returns the statistics after each kill. `beside` is in the folder of the database, or another.
fn survive_kills(cycles_default: u64, beside: impl FnOnce(&Path) -> Beside) -> Vec<Stats> {
    let number = |name: &str, default| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let (cycles, seed) = (number("TERRACE_KILL_CYCLES", cycles_default), number("TERRACE_SEED", 1));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("db");
    let beside = beside(folder.path());
    let mut random = SmallRng::seed_from_u64(seed);
    let mut ledger: BTreeMap<u64, (u64, u64)> = (0..THREADS).map(|thread| (thread, (0, 0))).collect();
    let (mut commits, mut told) = (0, Vec::new());
    println!("seed {seed}");
    for cycle in 0..cycles {
        let mut child = start(&path, &beside, &ledger);
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // One in four is killed during its open, but not during creation.
        let is_ready = (beside.cache.is_some() && cycle == 0) || random.random_range(0..4) > 0;
        if is_ready {
            let ready = lines.by_ref().map_while(Result::ok).any(|line| line == "ready");
            assert!(ready, "cycle {cycle}: the child ended before it was killed");
        }
        // By its commits, so that a slow machine kills it no earlier.
        let wanted = if is_ready { random.random_range(0..COMMITS_MAX) } else { 0 };
        let pause = Duration::from_micros(random.random_range(0..if is_ready { 5000 } else { 300_000 }));
        let (acknowledged, acknowledgements) = channel();
        let killer = std::thread::spawn(move || {
            let _ = (0..wanted).try_for_each(|_| acknowledgements.recv());
            std::thread::sleep(pause);
            child.kill().unwrap();
            child.wait().unwrap()
        });
        commits += listen(lines, &mut ledger, &acknowledged);
        drop(acknowledged);
        let status = killer.join().unwrap();
        assert_eq!(status.code(), None, "cycle {cycle}: the child ended by itself");
        // Every second life begins with what the kill left; the check then runs on a copy.
        told.push(if random.random_range(0..2) == 0 {
            check(&path, &beside, &mut ledger)
        } else {
            let copy = tempfile::tempdir().unwrap();
            for file in ["pages.terrace", "log.terrace", "cache.guard"] {
                if path.join(file).exists() {
                    std::fs::copy(path.join(file), copy.path().join(file)).unwrap();
                }
            }
            let memory = shared_memory();
            let files = beside.copied_to(copy.path(), memory.path());
            check(copy.path(), &files, &mut ledger)
        });
    }
    println!("{cycles} kills, {commits} commits acknowledged, seed {seed}");
    told
}

#[test]
fn acknowledged_commits_survive_kills() {
    survive_kills(15, |_| Beside::default());
}

#[test]
fn acknowledged_commits_in_shared_memory_survive_kills() {
    let memory = shared_memory();
    survive_kills(10, |_| Beside { ring: Some(memory.path().join("ring")), ..Beside::default() });
}

/// A folder of files in shared memory.
pub(crate) fn shared_memory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").expect("this machine has shared memory")
}

#[test]
fn acknowledged_commits_survive_kills_over_a_middle_tier_that_stays() {
    let folder = shared_memory();
    let (tier, ring) = (folder.path().join("tier"), folder.path().join("ring"));
    for ring in [None, Some(ring)] {
        let beside = Beside { tier: Some(tier.clone()), ring, ..Beside::default() };
        let told = survive_kills(8, |_| beside);
        let adopted = told.iter().map(|stats| stats.middle.as_ref().unwrap().persistent.unwrap().adopted);
        let adopted: Vec<u64> = adopted.collect();
        assert!(adopted.iter().filter(|&&frames| frames > 0).count() * 2 > told.len(), "{adopted:?}");
        std::fs::remove_file(&tier).unwrap();
    }
}

#[test]
fn acknowledged_commits_over_a_cache_survive_kills_and_it_is_warm_again() {
    let told =
        survive_kills(10, |folder| Beside { cache: Some(folder.join("db.cache")), ..Beside::default() });
    let told: Vec<CacheStats> = told.into_iter().map(|stats| stats.cache.unwrap()).collect();
    for (cycle, stats) in told.iter().enumerate() {
        assert_eq!((&stats.cold, &stats.out_of_service), (&None, &None), "cycle {cycle}: {stats:?}");
        assert!(stats.kept > 0, "cycle {cycle}: {stats:?}");
    }
    let sum = |count: fn(&CacheStats) -> u64| told.iter().map(count).sum::<u64>();
    let (hits, dropped, damaged) =
        (sum(|stats| stats.hits), sum(|stats| stats.dropped), sum(|stats| stats.damaged));
    println!("{hits} hits, {dropped} blocks dropped, {damaged} found not to be the slow device's");
    assert!(hits > 100 && dropped == 0, "{hits} hits, {dropped} blocks dropped");
}
