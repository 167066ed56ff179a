//! A PostgreSQL server, as Debian packages it, whose data directory is on a mount that records.
//!
//! Data are loaded past the mount. Then `terrace mount --trace`, a process of its own, shows the
//! same directory and records every page that the server asks for beyond its shared buffers: the
//! kernel caches nothing of a mount. The log of the server is outside of it. Names of queries come
//! into the recording by reads of small files, the *marks*.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use terrace_common::failure::{Failure, Outcome};
use terrace_common::interrupt::Leftover;

use super::processes::{PATIENCE, PAUSE, Processes, command, last_lines};

const FOLDER: &str = "/usr/lib/postgresql";
const PROGRAMS: [&str; 4] = ["initdb", "postgres", "psql", "pgbench"];
const USER: &str = "postgres";
/// Bytes of a page.
pub const PAGE_BYTES: u64 = 8192;
/// The mark after which requests belong to nothing.
pub const NO_QUERY: &str = "none";
/// Answered after each statement of a session.
const DONE: &str = "terrace-done";
/// `CAP_SYS_ADMIN`, the right to mount.
const SYS_ADMIN: u64 = 1 << 21;

/// A query is run by one process, and spills nothing. Durability costs only time, which is not
/// measured. Nothing happens in the background but writes of changed pages.
const SETTINGS: [&str; 10] = [
    "listen_addresses=",
    "max_connections=40",
    "fsync=off",
    "synchronous_commit=off",
    "full_page_writes=off",
    "autovacuum=off",
    "jit=off",
    "max_parallel_workers_per_gather=0",
    "work_mem=64MB",
    "statement_timeout=300s",
];

/// The programs of the newest version that is installed, and the version.
fn installed() -> Option<(PathBuf, u32)> {
    let versions = fs::read_dir(FOLDER).into_iter().flatten().flatten().map(|entry| entry.path());
    let version = |folder: PathBuf| Some((folder.join("bin"), folder.file_name()?.to_str()?.parse().ok()?));
    let is_whole = |(bin, _): &(PathBuf, u32)| PROGRAMS.iter().all(|program| bin.join(program).exists());
    versions.filter_map(version).filter(is_whole).max_by_key(|(_, version)| *version)
}

/// Numbers of PostgreSQL's user and group.
fn user() -> Option<(u32, u32)> {
    let users = fs::read_to_string("/etc/passwd").ok()?;
    let fields = users.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let found = fields.into_iter().find(|fields| fields[0] == USER)?;
    Some((found.get(2)?.parse().ok()?, found.get(3)?.parse().ok()?))
}

fn may_mount() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let rights = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let rights = rights.and_then(|rights| u64::from_str_radix(rights.trim(), 16).ok()).unwrap_or(0);
    rights & SYS_ADMIN != 0
}

/// What a server on a mount needs and is not here.
pub fn missing() -> Vec<&'static str> {
    let fuse = || fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_ok();
    let setpriv = || ["/usr/bin/setpriv", "/bin/setpriv"].iter().any(|path| Path::new(path).exists());
    let needs = [
        ("the command `mount` in this build", cfg!(feature = "mount")),
        ("PostgreSQL with psql and pgbench in /usr/lib/postgresql", installed().is_some()),
        ("the user postgres", user().is_some()),
        ("root", rustix::process::geteuid().is_root()),
        ("the right to mount", may_mount()),
        ("/dev/fuse", fuse()),
        ("setpriv", setpriv()),
        ("/proc/self/schedstat", Path::new("/proc/self/schedstat").exists()),
    ];
    needs.into_iter().filter(|(_, is_here)| !is_here).map(|(what, _)| what).collect()
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::Work(format!("PostgreSQL on a mount: {error}"))
}

/// Whether the server has processes of sessions, ended ones included that it did not notice so far.
pub fn has_sessions(postmaster: u32) -> bool {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.path());
    let is_session = |process: PathBuf| {
        let stat = fs::read_to_string(process.join("stat")).ok()?;
        // The name in parentheses may have blanks.
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
        let (state, parent) = (fields.next()?, fields.next()?.parse::<u32>().ok()?);
        let title = || fs::read(process.join("cmdline")).unwrap_or_default();
        let is_local = || String::from_utf8_lossy(&title()).contains("[local]");
        Some(parent == postmaster && (state == "Z" || is_local()))
    };
    processes.filter_map(is_session).any(|is_session| is_session)
}

/// A cluster in a temporary folder, and the processes that use it. Dropping it ends them.
pub struct Server {
    processes: Processes,
    programs: PathBuf,
    /// Major version.
    pub version: u32,
    folder: TempDir,
    /// After the folder, which a signal may find half removed. Processes end before.
    _leftovers: [Leftover; 2],
}

impl Drop for Server {
    fn drop(&mut self) {
        self.processes.end_all();
    }
}

impl Server {
    /// Makes an empty cluster.
    pub fn create() -> Outcome<Server> {
        let (programs, version) = installed().ok_or_else(|| failed("no server is installed"))?;
        let (user, group) = user().ok_or_else(|| failed("there is no user postgres"))?;
        // The server's user must pass.
        let open = Permissions::from_mode(0o755);
        let folder =
            tempfile::Builder::new().prefix("terrace").permissions(open).tempdir().map_err(failed)?;
        let processes = Processes::default();
        let leftovers = [processes.end_at_signal(), Leftover::tree(folder.path())];
        let server = Server { processes, programs, version, folder, _leftovers: leftovers };
        for name in ["lower", "lower/marks", "mount", "lower/data", "log", "socket"] {
            let path = server.path(name);
            fs::create_dir(&path).map_err(failed)?;
            if ["lower/data", "log", "socket"].contains(&name) {
                fs::set_permissions(&path, Permissions::from_mode(0o700)).map_err(failed)?;
                chown(&path, Some(user), Some(group)).map_err(failed)?;
            }
        }
        let mut initdb = server.command("initdb");
        initdb.args(["-A", "trust", "-E", "UTF8", "--locale=C", "-N", "-X"]).arg(server.path("log"));
        server.run(initdb.arg("-D").arg(server.path("lower/data")))?;
        Ok(server)
    }

    /// A file of the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, program: &str) -> Command {
        command(&self.programs.join(program), Some(USER), "QUIT")
    }

    /// A client, with root's rights.
    pub fn client(&self, program: &str) -> Command {
        let mut command = command(&self.programs.join(program), None, "TERM");
        command.arg("-h").arg(self.path("socket")).args(["-U", USER]);
        command
    }

    /// Runs a program to its end.
    pub fn run(&self, command: &mut Command) -> Outcome {
        self.processes.run(command, &self.path("client.log"))
    }

    /// Begins to record in the new file `trace`. `marks` are all that will be set.
    pub fn record(&self, trace: &Path, marks: &[&str]) -> Outcome {
        for mark in marks.iter().chain(&[NO_QUERY]) {
            fs::write(self.path("lower/marks").join(mark), "m").map_err(failed)?;
        }
        let (mountpoint, log) = (self.path("mount"), self.path("mount.log"));
        let terrace = std::env::current_exe().map_err(failed)?;
        let mut mount = command(&terrace, None, "TERM");
        mount.arg("mount").arg(self.path("lower")).arg(&mountpoint);
        mount.args(["--allow-other", "--block-size", "8KiB", "--trace"]).arg(trace);
        self.processes.start(&mut mount, &log, Some(&mountpoint))?;
        self.wait_for("the mount does not begin", &log, || mountpoint.join("data").exists())
    }

    /// Starts the server, on the mount if that `is_recorded`.
    pub fn start(&self, is_recorded: bool, shared_buffers: u64) -> Outcome<u32> {
        let data = self.path(if is_recorded { "mount/data" } else { "lower/data" });
        let log = self.path("server.log");
        let mut postgres = self.command("postgres");
        postgres.arg("-D").arg(data).arg("-k").arg(self.path("socket"));
        postgres.args(SETTINGS.iter().flat_map(|setting| ["-c", setting]));
        postgres.arg("-c").arg(format!("shared_buffers={}kB", shared_buffers / 1024));
        let process = self.processes.start(&mut postgres, &log, None)?;
        // The first line is the process, the last one the state. A killed one leaves the file.
        let state = self.path("lower/data/postmaster.pid");
        let is_ready = || {
            let text = fs::read_to_string(&state).unwrap_or_default();
            text.lines().next() == Some(&process.to_string()) && text.trim_end().ends_with("ready")
        };
        self.wait_for("PostgreSQL does not start", &log, is_ready)?;
        Ok(process)
    }

    fn wait_for(&self, what: &str, log: &Path, is_there: impl Fn() -> bool) -> Outcome {
        let since = Instant::now();
        while !is_there() {
            if !self.processes.last_runs() || since.elapsed() > PATIENCE {
                return Err(failed(format!("{what}; its log ends:\n{}", last_lines(log))));
            }
            thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Ends the process that was started last: the server, then the mount.
    pub fn end(&self) {
        self.processes.end_last();
    }

    /// Says in the recording that all requests from here on belong to `name`.
    pub fn mark(&self, name: impl AsRef<OsStr>) -> Outcome {
        fs::read(self.path("mount/marks").join(name.as_ref())).map(drop).map_err(failed)
    }

    /// Runs a file of statements.
    pub fn script(&self, file: &Path) -> Outcome {
        let mut psql = self.client("psql");
        self.run(psql.args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", USER, "-f"]).arg(file))
    }

    /// Connects.
    pub fn session(&self) -> Outcome<Session<'_>> {
        let mut psql = self.client("psql");
        psql.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", USER]);
        let (input, output) = self.processes.talk(&mut psql, &self.path("client.log"))?;
        let mut session =
            Session { server: self, input: Some(input), output: BufReader::new(output), process: 0 };
        let process = session.ask("select pg_backend_pid();")?;
        session.process =
            process.first().and_then(|line| line.parse().ok()).ok_or_else(|| failed("no pid"))?;
        Ok(session)
    }
}

/// A connection. Dropping it ends the process that was started last, so it goes before others.
pub struct Session<'s> {
    server: &'s Server,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    /// The server's process for it.
    process: u32,
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        self.input = None;
        self.server.end();
    }
}

impl Session<'_> {
    /// Runs a statement; returns its rows, with bars between columns.
    pub fn ask(&mut self, statement: &str) -> Outcome<Vec<String>> {
        let input = self.input.as_mut().expect("it is open");
        // If the client has gone, the answer says so.
        let _ = writeln!(input, "{statement}\n\\echo {DONE}").and_then(|()| input.flush());
        let mut rows = Vec::new();
        loop {
            let mut line = String::new();
            match self.output.read_line(&mut line) {
                Ok(length) if length > 0 && line.trim_end() == DONE => return Ok(rows),
                Ok(length) if length > 0 => rows.push(line.trim_end().to_owned()),
                _ => {
                    let [client, server] =
                        ["client.log", "server.log"].map(|log| last_lines(&self.server.path(log)));
                    let what = format!("the session ended:\n{client}\nthe server's log ends:\n{server}");
                    return Err(failed(what));
                }
            }
        }
    }

    /// Processor time of the server's process so far, its system calls included.
    pub fn processor(&self) -> Outcome<Duration> {
        let text = fs::read_to_string(format!("/proc/{}/schedstat", self.process)).map_err(failed)?;
        let nanoseconds = text.split_whitespace().next().and_then(|number| number.parse().ok());
        nanoseconds.map(Duration::from_nanos).ok_or_else(|| failed("schedstat has no time"))
    }
}
