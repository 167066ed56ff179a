//! Kills a process that loads a database, repeatedly.
//!
//! The database must stay valid with the cache and without, and the next process continues with
//! both. `TERRACE_KILLS` sets the kills in each mode.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::{Folder, Seed, check_integrity, journal_mode, random};
use rand::RngExt;
use rusqlite::Connection;

/// Default number of kills in each mode.
const CYCLES: u64 = 8;

fn cycles() -> u64 {
    std::env::var("TERRACE_KILLS").map_or(CYCLES, |text| text.parse().expect("a number of kills"))
}

/// Child process: loads rows until killed, and prints their number after each commit.
#[test]
#[ignore = "runs as a child of the test below"]
fn child_loads() {
    let uri = std::env::var("TERRACE_TEST_URI").expect("called by the test below");
    terrace_sqlite::register(false).expect("SQLite takes the VFS");
    let db = Connection::open(uri).expect("it opens");
    // The machine stays up, so no sync is needed.
    db.busy_timeout(Duration::from_secs(10)).expect("a timeout");
    db.execute_batch("pragma cache_size = 10; pragma wal_autocheckpoint = 30; pragma synchronous = off")
        .expect("pragmas");
    loop {
        let add = "insert into t select null, randomblob(abs(random()) % 3000) from rows limit 50;
                   update t set value = randomblob(200) where id % 17 = abs(random()) % 17;";
        db.execute_batch(&format!("begin immediate; {add} commit")).expect("a commit");
        let count: i64 = db.query_row("select count(*) from t", [], |row| row.get(0)).expect("a count");
        let sum: i64 = db.query_row("select sum(length(value)) from t", [], |row| row.get(0)).expect("a sum");
        println!("committed {count} {sum}");
        std::io::stdout().flush().expect("a pipe");
    }
}

#[test]
fn a_killed_load_leaves_a_valid_database() {
    for mode in ["delete", "wal"] {
        let seed = Seed(1);
        let (folder, mut random) = (Folder::new(), random(seed.0));
        let plain = folder.plain();
        journal_mode(&plain, mode);
        plain
            .execute_batch(
                "create table t(id integer primary key, value blob);
                 create table rows as with recursive n(a) as (select 1 union all select a + 1 from n where a < 50)
                 select a from n;",
            )
            .expect("tables");
        drop(plain);
        for cycle in 0..cycles() {
            let mut child = Command::new(std::env::current_exe().expect("this program"))
                .args(["--ignored", "--exact", "kill::child_loads", "--nocapture"])
                .env("TERRACE_TEST_URI", folder.uri(""))
                .stdout(Stdio::piped())
                .spawn()
                .expect("a child");
            let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
            let commits = random.random_range(1..8);
            let reader = std::thread::spawn(move || {
                let mut last = None;
                let mut seen = 0;
                for line in lines.map_while(Result::ok).filter(|line| line.starts_with("committed ")) {
                    last = line.split(' ').nth(1).and_then(|count| count.parse::<i64>().ok());
                    seen += 1;
                    if seen == commits {
                        break;
                    }
                }
                last.expect("a commit")
            });
            let committed = reader.join().expect("the child commits");
            std::thread::sleep(Duration::from_micros(random.random_range(0..5000)));
            child.kill().expect("it runs");
            child.wait().expect("it ends");
            // The first open recovers; test both kinds.
            let check = |db: &Connection| {
                check_integrity(db);
                let count: i64 =
                    db.query_row("select count(*) from t", [], |row| row.get(0)).expect("a count");
                assert!(count >= committed, "{mode}, cycle {cycle}: {count} rows of {committed}");
            };
            if cycle % 2 == 0 {
                check(&folder.cached());
                check(&folder.plain());
            } else {
                check(&folder.plain());
                check(&folder.cached());
            }
        }
    }
}
