//! A database on a DAX file system, with its middle tier and its log in persistent memory.
//!
//! `.ci/run dax` runs these tests in a guest whose power it cuts; they are ignored, and fail
//! elsewhere. The ledger of acknowledged commits is what the guest wrote on its console until the
//! cut, because the host has that.

use std::io::Write;
use std::path::PathBuf;

use terrace::{Backend, Builder, Db, Error, Table};

/// The folder with DAX that all boots share.
const POWER_CUT: &str = "TERRACE_POWER_CUT";
/// The file with what the console showed: lines "acknowledged THREAD NUMBER".
const LEDGER: &str = "TERRACE_LEDGER";

const THREADS: u64 = 2;
/// Groups of rows that the transactions of a thread rewrite in turn, a power of two.
const GROUPS: u64 = 256;
/// Rows of a group, each in another part of the table.
const ROWS: u64 = 8;

fn variable(name: &str) -> PathBuf {
    std::env::var_os(name).unwrap_or_else(|| panic!("needs {name}")).into()
}

/// A budget of 2 MiB over a tier of 4, for some 5 of data. The log goes around often.
fn builder() -> Builder {
    let middle = format!("pmem:{},4MiB", variable(POWER_CUT).join("tier").display());
    let builder = Db::builder().dram(2 << 20).page_size(4096).log_max(1 << 20).backend(Backend::Frames);
    builder.middle(middle.parse().unwrap()).policy("0.1,0.1,1,1".parse().unwrap())
}

fn open() -> Db {
    let ring = format!("pmem:{},256KiB", variable(POWER_CUT).join("ring").display());
    builder().log_memory(ring.parse().unwrap()).open(path()).unwrap()
}

fn path() -> PathBuf {
    variable(POWER_CUT).join("database")
}

/// Groups of neighbouring numbers are far apart.
fn key(thread: u64, number: u64, row: u64) -> Vec<u8> {
    let group = number.wrapping_mul(101) % GROUPS;
    [thread.to_be_bytes(), row.to_be_bytes(), group.to_be_bytes()].concat()
}

fn value(thread: u64, number: u64, row: u64) -> Vec<u8> {
    let mut value = number.to_be_bytes().to_vec();
    value.resize(1000, (number * 7 + thread * 3 + row) as u8);
    value
}

fn newest(thread: u64) -> String {
    format!("newest {thread}")
}

/// The number of the newest transaction of `thread` in the database, from 1 on.
fn found(table: &Table, thread: u64) -> u64 {
    let number = table.get(newest(thread)).unwrap();
    number.map_or(0, |bytes| u64::from_be_bytes(bytes[..].try_into().unwrap()))
}

/// Commits until the power goes, with a line on the console after each commit.
fn commit_for_ever(db: &Db, table: &Table, thread: u64) -> Result<(), Box<dyn std::error::Error>> {
    for number in found(table, thread) + 1.. {
        let transaction = db.begin();
        for row in 0..ROWS {
            transaction.put(table, key(thread, number, row), value(thread, number, row))?;
        }
        transaction.put(table, newest(thread), number.to_be_bytes())?;
        transaction.commit()?;
        // In one call, so that lines of two threads are whole.
        std::io::stdout().lock().write_all(format!("acknowledged {thread} {number}\n").as_bytes())?;
    }
    Ok(())
}

/// Ends only by an error.
#[test]
#[ignore = "is run until a power cut"]
fn commits_before_the_power_cut() {
    let db = open();
    let table = db.open_or_create_table("t").unwrap();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (db, table) = (&db, &table);
            scope.spawn(move || {
                let ended = commit_for_ever(db, table, thread);
                println!("thread {thread} ended: {ended:?}");
                std::process::exit(1);
            });
        }
    });
}

/// The last number in the ledger for `thread`. The cut may have torn the last line.
fn acknowledged(ledger: &str, thread: u64) -> u64 {
    let start = format!("acknowledged {thread} ");
    let numbers = ledger.lines().filter_map(|line| line.strip_prefix(&start)?.parse().ok());
    numbers.max().unwrap_or_else(|| panic!("the ledger has no commit of thread {thread}"))
}

#[test]
#[ignore = "is run after a power cut"]
fn commits_are_there_after_the_power_cut() {
    let ledger = std::fs::read_to_string(variable(LEDGER)).unwrap();
    match builder().open(path()) {
        Err(error @ Error::LogMemory { .. }) => println!("without the log's memory: {error}"),
        other => panic!("not refused without the log's memory: {other:?}"),
    }
    let db = open();
    let stats = db.stats();
    let frames = stats.middle.unwrap().persistent.expect("the tier is persistent");
    println!(
        "log in the file up to {}, in memory up to {}; {frames:?}",
        stats.log_filed, stats.log_persistent
    );
    let table = db.open_table("t").unwrap();
    for thread in 0..THREADS {
        let (told, newest) = (acknowledged(&ledger, thread), found(&table, thread));
        assert!(newest >= told, "thread {thread}: commits up to {told} were acknowledged, {newest} is there");
        for number in newest.saturating_sub(GROUPS - 1).max(1)..=newest {
            for row in 0..ROWS {
                let found = table.get(key(thread, number, row)).unwrap();
                assert!(
                    found.as_deref() == Some(&value(thread, number, row)[..]),
                    "thread {thread}: commit {number} of {newest}, row {row} is not there"
                );
            }
        }
        println!("thread {thread}: {told} acknowledged, {newest} there");
    }
    assert_eq!(db.verify().unwrap().errors, []);
    assert!(frames.adopted > 0, "the tier is cold: {frames:?}");
    println!(
        "body checksums that did not hold: {}",
        db.stats().middle.unwrap().persistent.unwrap().dropped_body
    );
}
