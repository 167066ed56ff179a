//! PostgreSQL, as Debian packages it.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::cycles::{Run, Server};
use crate::ledger::{Dialect, rows};
use crate::mounted::Mounted;
use crate::process::{self, Daemon, PATIENCE};
use crate::sessions::locked;
use crate::{Checked, ledger, number, text_of};

/// Buffers are a tenth of the items. Small segments of the log are renamed often.
const SETTINGS: &[&str] = &[
    "fsync=on",
    "full_page_writes=on",
    "synchronous_commit=on",
    "shared_buffers=1MB",
    "max_connections=20",
    "max_wal_size=8MB",
    "min_wal_size=2MB",
    "checkpoint_timeout=30s",
    "bgwriter_delay=20ms",
    "autovacuum_naptime=1s",
    "max_parallel_workers_per_gather=0",
    "log_checkpoints=off",
    "listen_addresses=",
];
const PAGE_BYTES: u64 = 8192;

/// Bytes of every index must be right, and those of the ledger's tables must lead to all rows.
const CHECKS: &str = "\
SELECT 'checked', count(bt_index_check(c.oid, true)) > 100 FROM pg_class c JOIN pg_am a ON a.oid = c.relam \
JOIN pg_index i ON i.indexrelid = c.oid WHERE a.amname = 'btree' AND i.indisvalid AND c.relpersistence = 'p';
SELECT 'checked', count(bt_index_parent_check(indexrelid, true, true)) = 4 FROM pg_index \
WHERE indrelid IN ('items'::regclass, 'accounts'::regclass, 'transfers'::regclass);
SELECT 'damaged', c.relname, v.* FROM pg_class c, verify_heapam(c.oid, check_toast => true) v \
WHERE c.relkind IN ('r', 't', 'm') AND c.relpersistence = 'p';
CREATE TEMP TABLE seen AS SELECT count(*) n, sum(value) s FROM items;
SET enable_seqscan = off; SET enable_bitmapscan = off;
SELECT 'checked', (n, s) = (SELECT count(*), sum(value) FROM items WHERE value >= 0) FROM seen;
";

/// Recovery syncs every file, and the templates have two thirds of them.
const ONE_DATABASE: &str = "\
ALTER DATABASE template0 IS_TEMPLATE false; DROP DATABASE template0;
ALTER DATABASE template1 IS_TEMPLATE false; DROP DATABASE template1;
";

pub struct Postgres {
    programs: PathBuf,
    socket: PathBuf,
    log: PathBuf,
    daemon: Option<Daemon>,
}

/// The newest version that is installed.
fn programs() -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let folders = versions.map(|entry| entry.path().join("bin")).filter(|bin| bin.join("initdb").exists());
    let version = |bin: &PathBuf| bin.iter().rev().nth(1).and_then(|name| name.to_str()?.parse::<u32>().ok());
    folders.max_by_key(version).expect("PostgreSQL is installed: package `postgresql`")
}

impl Postgres {
    fn program(&self, name: &str) -> String {
        text_of(&self.programs.join(name))
    }
}

impl Server for Postgres {
    const USER: &'static str = "postgres";
    const DIALECT: &'static Dialect =
        &Dialect { update_returns: true, commit: "COMMIT;\n", committed: "COMMIT" };

    fn create(mounted: &Mounted) -> Checked<Self> {
        let (socket, log) = (mounted.path("socket"), mounted.path("server.log"));
        let server = Self { programs: programs(), socket, log, daemon: None };
        let mut initdb = process::bound_as(Self::USER, &server.program("initdb"));
        initdb.args(["-A", "trust", "-E", "UTF8", "--locale=C", "--data-checksums", "--wal-segsize=1", "-D"]);
        process::run(initdb.arg(mounted.data()), "")?;
        Ok(server)
    }

    fn load(&self) -> Checked {
        let rows = rows(|count| format!("generate_series(0, {}) AS seq", count - 1));
        let statements = format!("{ONE_DATABASE}CREATE EXTENSION amcheck;\n{}{rows}", ledger::SCHEMA);
        process::run(&mut self.client(), &statements).map(drop)
    }

    fn start(&mut self, mounted: &Mounted, _variant: u64) -> Checked {
        let mut command = process::bound_as(Self::USER, &self.program("postgres"));
        command
            .arg("-D")
            .arg(mounted.data())
            .arg("-k")
            .arg(&self.socket)
            .args(SETTINGS.iter().flat_map(|set| ["-c", set]));
        command.current_dir("/");
        let mut daemon = Daemon::start(&mut command, &self.log)?;
        let since = Instant::now();
        loop {
            if process::run(self.client().args(["-c", "SELECT 1"]), "").is_ok() {
                break;
            }
            if !daemon.is_running() || since.elapsed() > PATIENCE {
                return Err(format!("PostgreSQL does not start\n{}", self.said()));
            }
            thread::sleep(Duration::from_millis(30));
        }
        self.daemon = Some(daemon);
        Ok(())
    }

    fn stop(&mut self) -> Checked {
        let mut daemon = self.daemon.take().expect("the server runs");
        daemon.end(Signal::INT).map_err(|wrong| format!("PostgreSQL: {wrong}\n{}", self.said()))
    }

    fn kill(&mut self) {
        let Some(daemon) = self.daemon.take() else { return };
        let memory = shared_memory(&daemon.processes());
        drop(daemon);
        for command in memory {
            let _ = process::run(Command::new(command[0].as_str()).args(&command[1..]), "");
        }
    }

    fn said(&self) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        format!("log of the server:\n{}", process::last_lines(&log, 20))
    }

    fn client(&self) -> Command {
        let mut command = Command::new(self.program("psql"));
        command.args([
            "-X",
            "-A",
            "-t",
            "-F",
            "\t",
            "-v",
            "ON_ERROR_STOP=1",
            "-U",
            "postgres",
            "-d",
            "postgres",
        ]);
        command.arg("-h").arg(&self.socket).env("PGCONNECT_TIMEOUT", "20");
        command
    }

    fn check(&self) -> Checked {
        let answer = process::run(self.client().arg("-q"), CHECKS)?;
        match answer == "checked\tt\n".repeat(3) {
            true => Ok(()),
            false => Err(format!("amcheck or an index scan:\n{answer}\n{}", self.said())),
        }
    }

    fn check_stopped(&self, data: &Path) -> Checked {
        let mut command = process::bound_as(Self::USER, &self.program("pg_checksums"));
        process::run(command.arg("--check").arg("-D").arg(data), "").map(drop)
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Commands that remove a server's shared memory, which stays when it is killed.
fn shared_memory(processes: &[u32]) -> BTreeSet<Vec<String>> {
    let maps = |process: &u32| fs::read_to_string(format!("/proc/{process}/maps")).ok();
    let maps: String = processes.iter().filter_map(maps).collect();
    let command = |line: &str| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let (id, name) = (*fields.get(4)?, *fields.get(5)?);
        let words = match name {
            name if name.starts_with("/dev/shm/PostgreSQL.") => ["rm", "-f", name],
            // System V gives the segment's number as that of an inode.
            name if name.starts_with("/SYSV") => ["ipcrm", "-m", id],
            _ => return None,
        };
        Some(words.map(str::to_owned).to_vec())
    };
    maps.lines().filter_map(command).collect()
}

/// The page that has an item's row, and its file below.
fn page_of(run: &Run<Postgres>, id: u64) -> Checked<(PathBuf, u64)> {
    let query =
        format!("SELECT pg_relation_filepath('items'), (ctid::text::point)[0] FROM items WHERE id = {id};");
    let answer = run.ask(&query)?;
    let (file, page) = answer.trim_end().split_once('\t').ok_or(format!("no item {id}: {answer}"))?;
    Ok((run.mounted.lower_data().join(file), page.parse().expect("the number of a page")))
}

/// The harness itself: an older image of one page, with its right checksum, is a finding.
pub fn lost_page_is_found() {
    let seed = number("TERRACE_SEED", rand::random());
    println!("TERRACE_SEED={seed}");
    if let Err(wrong) = lose_page(seed) {
        panic!("{wrong}\nseed {seed}");
    }
}

fn lose_page(seed: u64) -> Checked {
    let mut run = Run::<Postgres>::new(seed, true)?;
    run.ask("CHECKPOINT;")?;
    let (file, _) = page_of(&run, 0)?;
    let older = fs::read(&file).expect("the server's file");
    let saved = locked(&run.ledger).saved();
    run.work_in_order(Duration::from_millis(500))?;
    run.check()?;
    // A ledger of another time is a finding, too.
    let latest = locked(&run.ledger).saved();
    locked(&run.ledger).put_back(saved.clone());
    let wrong = run.check().expect_err("the ledger is older than the database");
    assert!(wrong.contains("differences from the ledger"), "{wrong}");
    locked(&run.ledger).put_back(latest.clone());
    run.check()?;

    // The older image lacks the newest row of such an item, whatever else the page has.
    let count = older.len() as u64 / PAGE_BYTES;
    let pages = latest.written_since(&saved).into_iter().map(|id| page_of(&run, id).map(|(_, page)| page));
    let page = pages.flatten().find(|page| *page < count).ok_or("no page of the older file has changed")?;
    // Reads set hint bits, which log the whole page. Recovery must have no such image.
    run.ask("VACUUM items;\nCHECKPOINT;")?;
    run.server.kill();
    let image = &older[(page * PAGE_BYTES) as usize..][..PAGE_BYTES as usize];
    let target = File::options().write(true).open(&file).expect("the server's file");
    target.write_all_at(image, page * PAGE_BYTES).expect("the page is written");
    run.start()?;
    let wrong = run.check().expect_err("an older page came back unnoticed");
    println!("found, after page {page} was lost:\n{wrong}");
    Ok(())
}
