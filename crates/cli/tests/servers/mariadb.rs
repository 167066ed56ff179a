//! MariaDB with InnoDB, as Debian packages it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::cycles::Server;
use crate::ledger::{Dialect, rows};
use crate::mounted::Mounted;
use crate::process::{self, Daemon, PATIENCE};
use crate::{Checked, ledger};

/// The smallest pool and log, so that pages are read and written often.
const SETTINGS: &[&str] = &[
    "--skip-networking",
    "--skip-name-resolve",
    "--innodb-buffer-pool-size=6M",
    "--innodb-buffer-pool-dump-at-shutdown=0",
    "--innodb-buffer-pool-load-at-startup=0",
    "--innodb-log-file-size=4M",
    "--innodb-flush-log-at-trx-commit=1",
    "--innodb-doublewrite=1",
    "--innodb-max-dirty-pages-pct=10",
    "--transaction-isolation=READ-COMMITTED",
    "--key-buffer-size=1M",
    "--aria-pagecache-buffer-size=1M",
    "--performance-schema=OFF",
];

/// The scans come first: an index that `CHECK TABLE` calls corrupt can be read no more, and whether
/// its rows were there would stay unknown. Then purge ends: while it removes entries of deleted
/// rows, `EXTENDED` finds faults in a sound table, in a plain directory, too.
const CHECKS: &str = "\
SELECT 'same', (SELECT concat(count(*), ' ', sum(value)) FROM items FORCE INDEX (items_by_value) WHERE value >= 0) \
= (SELECT concat(count(*), ' ', sum(value)) FROM items FORCE INDEX (PRIMARY) WHERE id >= 0);
SET GLOBAL innodb_max_purge_lag_wait = 0;
CHECK TABLE items, accounts, transfers EXTENDED;
";

pub struct Mariadb {
    socket: PathBuf,
    scratch: PathBuf,
    log: PathBuf,
    daemon: Option<Daemon>,
}

impl Mariadb {
    fn mariadb(&self, database: &str) -> Command {
        let mut command = Command::new("mariadb");
        command.args([
            "--no-defaults",
            "--batch",
            "--skip-column-names",
            "--unbuffered",
            "--user=root",
            "--default-character-set=latin1",
        ]);
        command.arg("--socket").arg(&self.socket).arg(database);
        command
    }
}

impl Server for Mariadb {
    const USER: &'static str = "mysql";
    /// The client prints nothing for COMMIT, so a query follows it.
    const DIALECT: &'static Dialect =
        &Dialect { update_returns: false, commit: "COMMIT;\nSELECT 'committed';\n", committed: "committed" };

    fn create(mounted: &Mounted) -> Checked<Self> {
        let socket = mounted.path("socket").join("s");
        let server =
            Self { socket, scratch: mounted.path("scratch"), log: mounted.path("server.log"), daemon: None };
        let mut install = process::bound_as(Self::USER, "mariadb-install-db");
        install.args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"]);
        install.arg("--innodb-log-file-size=4M").current_dir("/");
        install.arg(format!("--datadir={}", mounted.data().display()));
        install.arg(format!("--tmpdir={}", server.scratch.display()));
        process::run(&mut install, "")?;
        Ok(server)
    }

    fn load(&self) -> Checked {
        let rows = rows(|count| format!("seq_0_to_{}", count - 1));
        let statements = format!("CREATE DATABASE ledger;\nUSE ledger;\n{}{rows}", ledger::SCHEMA);
        process::run(&mut self.mariadb("mysql"), &statements).map(drop)
    }

    /// Half of the lives use O_DIRECT.
    fn start(&mut self, mounted: &Mounted, variant: u64) -> Checked {
        let flush = if variant.is_multiple_of(2) { "O_DIRECT" } else { "fsync" };
        let mut command = process::bound_as(Self::USER, "mariadbd");
        command.arg("--no-defaults").args(SETTINGS).arg(format!("--innodb-flush-method={flush}"));
        for (flag, path) in
            [("datadir", &mounted.data()), ("socket", &self.socket), ("tmpdir", &self.scratch)]
        {
            command.arg(format!("--{flag}={}", path.display()));
        }
        command.arg(format!("--pid-file={}", self.scratch.join("pid").display())).current_dir("/");
        let mut daemon = Daemon::start(&mut command, &self.log)?;
        let since = Instant::now();
        loop {
            if process::run(self.mariadb("mysql").args(["-e", "SELECT 1"]), "").is_ok() {
                break;
            }
            if !daemon.is_running() || since.elapsed() > PATIENCE {
                return Err(format!("MariaDB does not start\n{}", self.said()));
            }
            thread::sleep(Duration::from_millis(30));
        }
        self.daemon = Some(daemon);
        Ok(())
    }

    fn stop(&mut self) -> Checked {
        let mut daemon = self.daemon.take().expect("the server runs");
        daemon.end(Signal::TERM).map_err(|wrong| format!("MariaDB: {wrong}\n{}", self.said()))
    }

    fn kill(&mut self) {
        self.daemon = None;
    }

    fn said(&self) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        format!("log of the server:\n{}", process::last_lines(&log, 30))
    }

    fn client(&self) -> Command {
        self.mariadb("ledger")
    }

    fn check(&self) -> Checked {
        let answer = process::run(&mut self.client(), CHECKS)?;
        let mut expected = "same\t1\n".to_owned();
        expected.extend(
            ["items", "accounts", "transfers"].map(|table| format!("ledger.{table}\tcheck\tstatus\tOK\n")),
        );
        match answer == expected {
            true => Ok(()),
            false => Err(format!("CHECK TABLE or an index scan:\n{answer}\n{}", self.said())),
        }
    }

    fn check_stopped(&self, data: &Path) -> Checked {
        let folder = data.join("ledger");
        let entries = fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        // Not the system tablespace: its doublewrite pages may be torn by right.
        let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
        files.retain(|path| path.extension().is_some_and(|extension| extension == "ibd"));
        files.iter().try_for_each(|file| process::run(Command::new("innochecksum").arg(file), "").map(drop))
    }
}
