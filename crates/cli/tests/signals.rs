//! The built command after `SIGINT` and `SIGTERM`, and after its reader has gone.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

/// What a command says before an orderly end.
const ENDING: &str = "terrace: ending; press Ctrl-C again to end at once\n";

/// A running command, killed with its children on drop.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = kill_process_group(self.id(), Signal::KILL);
        let _ = self.0.wait();
    }
}

impl Running {
    /// Starts the command in its own process group, with temporary files in `folder`.
    fn start(folder: &Path, arguments: &[&str]) -> Running {
        let mut command = Command::new(env!("CARGO_BIN_EXE_terrace"));
        command.args(arguments).env("TMPDIR", folder).current_dir(folder).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Running(command.spawn().expect("the command starts"))
    }

    fn id(&self) -> Pid {
        Pid::from_child(&self.0)
    }

    /// Its only child, as soon as there is one.
    fn child(&self) -> Pid {
        let children = format!("/proc/{0}/task/{0}/children", self.id());
        let mut child = None;
        wait_until("its child runs", || {
            let ids = fs::read_to_string(&children).expect("it runs");
            child = ids.trim().parse().ok().and_then(Pid::from_raw);
            child.is_some()
        });
        child.expect("it runs")
    }

    /// Sends a signal to the process alone.
    fn signal(&self, signal: Signal) {
        kill_process(self.id(), signal).expect("it runs");
    }

    /// Sends a signal to the process and its children, as a terminal does.
    fn signal_group(&self, signal: Signal) {
        kill_process_group(self.id(), signal).expect("it runs");
    }

    /// Waits for the end; returns the exit code and standard error.
    fn end(mut self) -> (Option<i32>, String) {
        let mut said = String::new();
        if let Some(mut stderr) = self.0.stderr.take() {
            stderr.read_to_string(&mut said).expect("text");
        }
        (self.0.wait().expect("it ends").code(), said)
    }
}

fn wait_until(what: &str, mut is_true: impl FnMut() -> bool) {
    for _ in 0..60_000 {
        if is_true() {
            return;
        }
        thread::sleep(Duration::from_millis(1));
    }
    panic!("not in a minute: {what}");
}

fn entries(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a directory").flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

fn terrace(arguments: &[&str], input: &[u8]) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_terrace"));
    let mut child = command.args(arguments).stdin(Stdio::piped()).spawn().expect("the command starts");
    child.stdin.take().expect("piped").write_all(input).expect("it reads");
    assert!(child.wait().expect("it ends").success(), "{arguments:?}");
}

/// A database with `count` records of `bytes` bytes.
fn database(folder: &Path, count: u32, bytes: usize) -> String {
    let path = folder.join("db").to_str().expect("a path of text").to_owned();
    let value = "v".repeat(bytes);
    let lines: String =
        (0..count).map(|key| format!("{{\"key\":\"{key:08}\",\"value\":\"{value}\"}}\n")).collect();
    terrace(&["load", &path, "--table", "t", "--format", "jsonl", "--dram", "8MiB", "-"], lines.as_bytes());
    path
}

#[test]
fn the_demo_removes_its_database_in_every_phase() {
    let group = |demo: &Running| demo.signal_group(Signal::INT);
    let alone = |demo: &Running| demo.signal(Signal::TERM);
    // As if this process were told after its child has ended.
    let child = |demo: &Running| kill_process(demo.child(), Signal::TERM).expect("it runs");
    type Send<'a> = &'a dyn Fn(&Running);
    let phases: [(_, Send, _); 4] = [
        ("loading", &group, 130),
        ("kill 1:", &group, 130),
        ("kill 3:", &alone, 143),
        ("kill 1:", &child, 143),
    ];
    for (phase, signal, code) in phases {
        let folder = tempfile::tempdir().unwrap();
        let mut demo = Running::start(folder.path(), &["demo", "--data-size", "8MiB", "--dram", "8MiB"]);
        let lines = BufReader::new(demo.0.stdout.take().expect("piped")).lines();
        let mut lines = lines.map_while(Result::ok);
        lines.find(|line| line.starts_with(phase)).unwrap_or_else(|| panic!("it says {phase}"));
        assert!(!entries(folder.path()).is_empty(), "{phase}: the database is in TMPDIR");
        signal(&demo);
        let rest: Vec<String> = lines.collect();
        let (ended, said) = demo.end();
        assert_eq!(ended, Some(code), "{phase}: {said}");
        assert_eq!(entries(folder.path()), [""; 0], "{phase}: {said}");
        assert!(!rest.iter().any(|line| line.starts_with("report")), "{phase}: {rest:?}");
    }
}

#[test]
fn a_load_that_waits_for_input_ends_and_closes_the_database() {
    let folder = tempfile::tempdir().unwrap();
    let db = folder.path().join("db").to_str().unwrap().to_owned();
    let mut load = Running::start(folder.path(), &["load", &db, "--table", "t", "--format", "jsonl", "-"]);
    let mut input = load.0.stdin.take().expect("piped");
    // Far more than the pipe and the load's own buffers hold. So when all is written, the database
    // is open: a signal during its open ends the load without a word.
    for key in 0..50_000 {
        writeln!(input, "{{\"key\":\"{key:08}\",\"value\":\"v\"}}").unwrap();
    }
    load.signal(Signal::TERM);
    assert_eq!(load.end(), (Some(143), ENDING.to_owned()));
    drop(input);
    terrace(&["put", &db, "--table", "t", "k", "v"], b"");
    terrace(&["verify", &db], b"");
}

#[test]
fn a_message_that_nobody_takes_does_not_keep_the_command() {
    let folder = tempfile::tempdir().unwrap();
    let (_reader, mut full) = std::io::pipe().unwrap();
    let size = rustix::pipe::fcntl_getpipe_size(&full).unwrap();
    full.write_all(&vec![0; size]).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_terrace"));
    command.args(["load", "db", "--table", "t", "--format", "jsonl", "-"]).stdin(Stdio::piped()).stderr(full);
    command.current_dir(folder.path()).process_group(0);
    let load = Running(command.spawn().expect("the command starts"));
    wait_until("the database", || folder.path().join("db").exists());
    load.signal(Signal::TERM);
    assert_eq!(load.end(), (Some(143), String::new()));
}

#[test]
fn work_that_cannot_check_ends_at_once_and_removes_its_destination() {
    let folder = tempfile::tempdir().unwrap();
    let simulate = Running::start(folder.path(), &["simulate", "--format", "lis", "--size", "9", "-"]);
    // Give it time to read; before that it ends the same way, or by default.
    wait_until("its threads run", || {
        let tasks = fs::read_dir(format!("/proc/{}/task", simulate.0.id()));
        tasks.is_ok_and(|tasks| tasks.count() > 1)
    });
    simulate.signal(Signal::INT);
    assert_eq!(simulate.end().0, Some(130));

    let db = database(folder.path(), 10_000, 1000);
    let new = folder.path().join("new");
    let mut ended = Some(0);
    // A repair that ends before its signal is tried again.
    for _ in 0..20 {
        let repair = Running::start(folder.path(), &["repair", &db, new.to_str().unwrap()]);
        wait_until("its directory", || new.exists());
        repair.signal(Signal::TERM);
        ended = repair.end().0;
        assert_eq!(new.exists(), ended == Some(0), "{ended:?}: only a whole database stays");
        if ended != Some(0) {
            break;
        }
        fs::remove_dir_all(&new).unwrap();
    }
    assert_eq!(ended, Some(143));
}

#[test]
fn a_second_signal_ends_what_the_first_cannot() {
    let folder = tempfile::tempdir().unwrap();
    let db = database(folder.path(), 2000, 1000);
    // Nobody reads the pipe, so the dump blocks in a write.
    let mut dump = Running::start(folder.path(), &["dump", &db, "--table", "t"]);
    let unread = dump.0.stdout.take();
    wait_until("the dump sleeps in a write", || {
        let wait = fs::read_to_string(format!("/proc/{}/wchan", dump.0.id())).unwrap_or_default();
        wait.contains("pipe_write")
    });
    dump.signal(Signal::INT);
    let mut said = String::new();
    BufReader::new(dump.0.stderr.take().expect("piped")).read_line(&mut said).unwrap();
    assert_eq!(said, ENDING);
    assert!(dump.0.try_wait().unwrap().is_none(), "it still writes");
    dump.signal(Signal::INT);
    assert_eq!(dump.end().0, Some(130));
    drop(unread);
}

#[test]
#[cfg(feature = "lab")]
fn a_benchmark_closes_its_database_and_a_comparison_removes_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let db = folder.path().join("db").to_str().unwrap().to_owned();
    let line = ["bench", "ycsb", "--records", "20000", "--dram", "64MiB", "--seconds", "100", "--store", &db];
    let bench = Running::start(folder.path(), &line);
    wait_until("a log that grows", || {
        fs::metadata(Path::new(&db).join("log.terrace")).is_ok_and(|log| log.len() > 12 << 20)
    });
    bench.signal(Signal::INT);
    assert_eq!(bench.end(), (Some(130), ENDING.to_owned()));
    terrace(&["verify", &db], b"");

    let store = folder.path().join("compared");
    let line =
        ["bench", "ycsb", "--records", "1000", "--seconds", "100", "--compare", "terrace", "--unconfined"];
    let line = [&line[..], &["--store", store.to_str().unwrap()]].concat();
    let compare = Running::start(folder.path(), &line);
    let database = || entries(&store.join(format!("terrace-compare-{}", compare.0.id())));
    wait_until("a run", || store.exists() && !entries(&store).is_empty() && !database().is_empty());
    compare.signal(Signal::TERM);
    let (code, said) = compare.end();
    assert_eq!(code, Some(143), "{said}");
    assert_eq!(entries(&store), [""; 0]);
}

#[test]
fn a_reader_that_has_gone_ends_the_output_quietly() {
    let folder = tempfile::tempdir().unwrap();
    let db = database(folder.path(), 2000, 1000);
    for line in [&["scan", &db, "--table", "t"][..], &["dump", &db, "--table", "t"]] {
        let mut writer = Running::start(folder.path(), line);
        let mut first = String::new();
        BufReader::new(writer.0.stdout.take().expect("piped")).read_line(&mut first).unwrap();
        assert!(first.contains("00000000"), "{first}");
        assert_eq!(writer.end(), (Some(1), String::new()), "{line:?}");
    }
    // A closed standard error is no reason to panic, which would be code 101.
    let mut get = Running::start(folder.path(), &["get", "/no/such/database", "--table", "t", "k"]);
    drop(get.0.stderr.take());
    assert_eq!(get.end().0, Some(1));
}
