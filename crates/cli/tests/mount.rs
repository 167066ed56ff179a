//! `terrace mount` from its start to its end, and after a kill.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use terrace_cache::trace::{Event, Trace};

const MIB: usize = 1 << 20;
/// `CAP_SYS_ADMIN`.
const SYS_ADMIN: u64 = 1 << 21;

struct Scene(tempfile::TempDir);

/// A running command with its output.
struct Running {
    child: Child,
    output: BufReader<ChildStdout>,
    mountpoint: PathBuf,
}

fn terrace() -> Command {
    Command::new(env!("CARGO_BIN_EXE_terrace"))
}

/// Whether this process may mount; root in a container often may not.
fn may_mount() -> bool {
    let status = fs::read_to_string("/proc/self/status").expect("/proc is mounted");
    let capabilities = status.lines().find_map(|line| line.strip_prefix("CapEff:")).expect("a line of it");
    let capabilities = u64::from_str_radix(capabilities.trim(), 16).expect("a number");
    let fuse = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
    capabilities & SYS_ADMIN != 0 && fuse.is_ok()
}

impl Scene {
    fn new() -> Option<Scene> {
        if !may_mount() {
            let must = std::env::var("TERRACE_REQUIRE_MOUNT").is_ok_and(|value| value == "1");
            assert!(!must, "mounts are required here, but there is no /dev/fuse or no permission");
            eprintln!("left out: no /dev/fuse or no permission to mount");
            return None;
        }
        let scene = Scene(tempfile::tempdir().expect("a directory"));
        for name in ["slow", "mount", "fast"] {
            fs::create_dir(scene.at(name)).expect("a directory");
        }
        Some(scene)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn start(&self, flags: &[&str]) -> Running {
        self.start_with(flags, Stdio::inherit())
    }

    fn start_with(&self, flags: &[&str], errors: Stdio) -> Running {
        let mut command = terrace();
        command.arg("mount").arg(self.at("slow")).arg(self.at("mount")).args(flags).stderr(errors);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the command");
        let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut line = String::new();
        output.read_line(&mut line).expect("the first line");
        assert!(line.starts_with("mounted ") && line.contains("/mount"), "{line}");
        Running { child, output, mountpoint: self.at("mount") }
    }

    fn cached(&self) -> Running {
        let cache = format!("--cache=file:{},16MiB", self.at("fast/cache").display());
        let policy = ["--cache-admission=always", "--cache-eviction=lru"];
        self.start(&[&*cache, "--cache-always", "--threads=3", policy[0], policy[1]])
    }
}

/// Ends what a failed test leaves: its output is a pipe that others wait for.
impl Drop for Running {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = self.child.kill();
            let _ = rustix::mount::unmount(&self.mountpoint, rustix::mount::UnmountFlags::DETACH);
        }
    }
}

impl Running {
    fn signal(&self, signal: Signal) {
        let process = Pid::from_child(&self.child);
        kill_process(process, signal).expect("a signal");
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("a line");
        line
    }

    /// Where it serves statistics.
    fn address(&mut self) -> String {
        let line = self.line();
        let address =
            line.trim().strip_prefix("statistics at http://").and_then(|rest| rest.strip_suffix('/'));
        address.unwrap_or_else(|| panic!("{line}")).to_owned()
    }

    /// What it says at its end.
    fn ends(mut self) -> String {
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).expect("the output");
        let status = self.child.wait().expect("the end");
        assert!(status.success(), "{status}");
        rest
    }

    fn kill(mut self) {
        self.child.kill().expect("a kill");
        self.child.wait().expect("the end");
        rustix::mount::unmount(&self.mountpoint, rustix::mount::UnmountFlags::DETACH).expect("unmounted");
    }
}

fn hits(output: &str) -> u64 {
    let before = output.split(" hits").next().expect("a text");
    before.rsplit(' ').next().and_then(|number| number.parse().ok()).expect("a number of hits")
}

#[test]
fn a_mount_serves_until_a_signal_and_reports() {
    let Some(scene) = Scene::new() else { return };
    fs::write(scene.at("slow/f"), vec![7; MIB]).expect("a file");
    for signal in [Signal::TERM, Signal::INT] {
        let mount = scene.cached();
        fs::write(scene.at("mount/g"), vec![8; MIB]).expect("a file");
        assert!(fs::read(scene.at("mount/f")).expect("a file") == vec![7; MIB]);
        assert!(fs::read(scene.at("mount/g")).expect("a file") == vec![8; MIB]);
        mount.signal(signal);
        let report = mount.ends();
        assert!(report.contains("hit ratio") && hits(&report) >= 256, "{report}");
        assert!(!scene.at("mount/f").exists() && fs::read(scene.at("slow/g")).expect("a file").len() == MIB);
    }
    let mount = scene.start(&[]);
    assert_eq!(fs::read(scene.at("mount/f")).expect("a file").len(), MIB);
    rustix::mount::unmount(scene.at("mount"), rustix::mount::UnmountFlags::empty()).expect("unmounted");
    assert!(mount.ends().contains("reads "));
}

#[test]
fn after_a_kill_the_cache_is_warm_where_files_are_unchanged() {
    let Some(scene) = Scene::new() else { return };
    let mount = scene.cached();
    for name in ["same", "changed"] {
        fs::write(scene.at("mount").join(name), vec![1; MIB]).expect("a file");
    }
    let file = fs::OpenOptions::new().write(true).open(scene.at("mount/same")).expect("a file");
    file.write_all_at(&[2; 8192], 16384).expect("written");
    // Part of a block: it must not come back.
    file.write_all_at(&[3; 100], 50_000).expect("written");
    drop(file);
    mount.kill();
    let changed = fs::OpenOptions::new().write(true).open(scene.at("slow/changed")).expect("a file");
    changed.write_all_at(&[9; 8192], 16384).expect("written");
    let mount = scene.cached();
    let same = fs::read(scene.at("mount/same")).expect("a file");
    let changed = fs::read(scene.at("mount/changed")).expect("a file");
    assert!(same == fs::read(scene.at("slow/same")).expect("a file"));
    assert!(same[16384..24576] == [2; 8192] && same[50_000..50_100] == [3; 100]);
    assert!(changed == fs::read(scene.at("slow/changed")).expect("a file"));
    mount.signal(Signal::TERM);
    let report = mount.ends();
    assert!((200..=256).contains(&hits(&report)), "{report}");
}

/// Status and the rest of an answer.
fn ask(address: &str, request: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).expect("a connection");
    write!(stream, "{request} HTTP/1.0\r\n\r\n").expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    (status, answer)
}

#[test]
fn statistics_are_served_while_it_is_mounted() {
    let Some(scene) = Scene::new() else { return };
    fs::create_dir_all(scene.at("slow/base/5")).expect("a directory");
    let cache = format!("--cache=file:{},16MiB", scene.at("fast/cache").display());
    let flags = [&*cache, "--cache-admission=always", "--cache-eviction=lru", "--metrics=127.0.0.1:0"];
    let mut mount = scene.start(&flags);
    let address = mount.address();
    // A table of two segments, and one of its forks.
    for name in ["16384", "16384.1", "16384_vm"] {
        fs::write(scene.at("mount/base/5").join(name), vec![1; MIB]).expect("a file");
    }
    let mut file = fs::File::open(scene.at("mount/base/5/16384")).expect("a file");
    file.read_exact(&mut vec![0; 4096]).expect("read");
    drop(file);
    let (status, metrics) = ask(&address, "GET /metrics");
    assert_eq!(status, 200);
    for line in [
        "\nterrace_mount_read_seconds_count{from=\"cache\"} ",
        "\nterrace_mount_bytes_total{request=\"write\"} 3145728\n",
        "\nterrace_mount_relation_blocks_total{relation=\"base/5/16384\",event=\"write\"} 5",
        "\nterrace_mount_relation_blocks_total{relation=\"base/5/16384_vm\",event=\"write\"} 25",
        "\nterrace_cache_written_bytes_total ",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    let (status, json) = ask(&address, "GET /stats.json?now");
    assert!(status == 200 && json.contains("\"write_bytes\":3145728") && json.contains("\"base/5/16384\""));
    let (status, page) = ask(&address, "GET /");
    assert!(status == 200 && page.contains("text/html") && page.contains("</html>"));
    assert_eq!([ask(&address, "GET /other").0, ask(&address, "POST /metrics").0], [404, 405]);
    // The address is taken, which is said before anything is mounted.
    let mut second = terrace();
    second.arg("mount").arg(scene.at("slow")).arg(scene.at("fast")).arg(format!("--metrics={address}"));
    let output = second.output().expect("the command");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && error.contains("statistics cannot be served"), "{error}");
    mount.signal(Signal::TERM);
    mount.ends();
    assert!(TcpStream::connect(&address).is_err());
}

/// Programs that are wrong, slow or too many end neither the statistics nor the mount.
#[test]
fn statistics_outlive_hostile_requests_and_a_lack_of_files() {
    let Some(scene) = Scene::new() else { return };
    let mut mount = scene.start_with(&["--metrics=127.0.0.1:0"], Stdio::piped());
    let address = mount.address();
    let mut errors = BufReader::new(mount.child.stderr.take().expect("a pipe"));
    for length in ["18446744073709551615", "9223372036854775807", "4000000000"] {
        assert_eq!(ask(&address, &format!("POST / HTTP/1.1\r\nContent-Length: {length}\r\nX: GET /")).0, 405);
        assert_eq!(ask(&address, &format!("GET / HTTP/1.1\r\nContent-Length: {length}\r\nX:")).0, 200);
    }
    let mut half = TcpStream::connect(&address).expect("a connection");
    half.write_all(b"POST / HTTP/1.1\r\nContent-Length: 9\r\n").expect("sent");
    assert_eq!(ask(&address, "GET /metrics").0, 200);
    // No file is left for the connection until the limit is as before.
    let process = Pid::from_child(&mount.child);
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let before =
        prlimit(Some(process), Resource::Nofile, Rlimit { current: Some(3), maximum: limit.maximum });
    let before = before.expect("a limit");
    let mut waiting = TcpStream::connect(&address).expect("a connection");
    waiting.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").expect("sent");
    let mut line = String::new();
    errors.read_line(&mut line).expect("a warning");
    assert!(line.contains("connections cannot be accepted"), "{line}");
    prlimit(Some(process), Resource::Nofile, before).expect("a limit");
    let mut answer = String::new();
    waiting.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    // The end waits for none of these.
    let held: Vec<_> = (0..20).map(|_| TcpStream::connect(&address).expect("a connection")).collect();
    mount.signal(Signal::TERM);
    mount.ends();
    let mut rest = String::new();
    errors.read_to_string(&mut rest).expect("the errors");
    assert!(!rest.contains("cannot be accepted"), "{rest}");
    drop((half, held));
}

#[test]
fn a_trace_is_whole_when_nobody_reads_the_report() {
    let Some(scene) = Scene::new() else { return };
    let path = scene.at("asked.csv");
    let mut command = terrace();
    command.arg("mount").arg(scene.at("slow")).arg(scene.at("mount"));
    command.arg(format!("--trace={}", path.display())).stdout(Stdio::piped());
    let mut child = command.spawn().expect("the command");
    let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
    output.read_line(&mut String::new()).expect("the first line");
    fs::write(scene.at("mount/f"), vec![1; 40_960]).expect("a file");
    drop(output);
    kill_process(Pid::from_child(&child), Signal::TERM).expect("a signal");
    assert_eq!(child.wait().expect("the end").code(), Some(1));
    let trace = Trace::open(&path, None, 4096).expect("a trace");
    let events: Vec<Event> = trace.map(|event| event.expect("one")).collect();
    assert_eq!(events.len(), 10);
}

#[test]
fn a_trace_has_what_programs_asked_for() {
    let Some(scene) = Scene::new() else { return };
    fs::create_dir_all(scene.at("slow/base/5")).expect("a directory");
    let path = scene.at("asked.pgt");
    let mount = scene.start(&[&format!("--trace={}", path.display()), "--block-size=8KiB"]);
    fs::write(scene.at("mount/base/5/16384.1"), vec![1; 16384]).expect("a file");
    let file = fs::OpenOptions::new().read(true).write(true).open(scene.at("mount/base/5/16384.1"));
    let file = file.expect("a file");
    // From the middle of one block into the next.
    file.write_all_at(&[2; 200], 8100).expect("written");
    let mut bytes = vec![0; 8192];
    file.read_exact_at(&mut bytes, 8192).expect("read");
    drop(file);
    mount.signal(Signal::TERM);
    let report = mount.ends();
    let events: Vec<Event> =
        Trace::open(&path, None, 8192).expect("a trace").map(|event| event.expect("one")).collect();
    let named = |event: &Event| matches!(event, Event::Relation(relation) if relation.name == "base/5/16384");
    assert!(named(&events[0]), "{events:?}");
    let requests: Vec<(u64, bool)> = events[1..]
        .iter()
        .map(|event| match event {
            Event::Request(request) => (request.block, request.write),
            other => panic!("{other:?}"),
        })
        .collect();
    // The second segment begins at 1 GiB.
    let (first, second) = (131_072, 131_073);
    assert_eq!(requests[..4], [(first, true), (second, true), (first, true), (second, true)], "{requests:?}");
    assert!(requests[4..].contains(&(second, false)), "{requests:?}");
    assert!(report.contains(&format!("asked.pgt has {} requests", requests.len())), "{report}");
    // A trace that is there stays.
    let mut second = terrace();
    second
        .arg("mount")
        .arg(scene.at("slow"))
        .arg(scene.at("mount"))
        .arg(format!("--trace={}", path.display()));
    let output = second.output().expect("the command");
    assert!(output.status.code() == Some(1) && String::from_utf8_lossy(&output.stderr).contains("exists"));
}

#[test]
fn queries_are_told_by_a_socket() {
    let Some(scene) = Scene::new() else { return };
    let socket = scene.at("control");
    let cache = format!("--cache=file:{},16MiB", scene.at("fast/cache").display());
    let control = format!("--control={}", socket.display());
    let flags = [&*cache, "--cache-eviction=heuristicdb", &*control];
    let running = scene.start(&flags);
    assert_eq!(fs::metadata(&socket).expect("a socket").permissions().mode() & 0o777, 0o600);
    let mut client = UnixStream::connect(&socket).expect("a client");
    client.write_all(b"17 base/5/16384 base/5/16385\n18\n\n\n-1 base/5/16384\n").expect("told");
    let mut said = String::new();
    client.read_to_string(&mut said).expect("an answer");
    assert_eq!(said, "\"-1\" is not the number of a query\n");
    // A client that says nothing does not keep the mount.
    let silent = UnixStream::connect(&socket).expect("a client");
    running.signal(Signal::TERM);
    running.ends();
    assert!(!socket.exists());
    drop(silent);
    // The socket of a killed mount is in nobody's way, another file is left as it is.
    scene.start(&flags).kill();
    assert!(socket.exists());
    let running = scene.start(&flags);
    let refused = || {
        let mut command = terrace();
        command.arg("mount").arg(scene.at("slow")).arg(scene.at("other")).args(flags);
        String::from_utf8(command.output().expect("the command").stderr).expect("text")
    };
    fs::create_dir(scene.at("other")).expect("a directory");
    assert!(refused().contains("cannot listen") && socket.exists());
    running.signal(Signal::TERM);
    running.ends();
    fs::write(&socket, "mine").expect("a file");
    assert!(refused().contains("cannot listen"));
    assert_eq!(fs::read(&socket).expect("a file"), b"mine");
}

#[test]
fn wrong_arguments_are_refused() {
    let folder = tempfile::tempdir().expect("a directory");
    let (slow, empty) = (folder.path().join("slow"), folder.path().join("empty"));
    for path in [&slow, &empty] {
        fs::create_dir(path).expect("a directory");
    }
    fs::write(slow.join("f"), "").expect("a file");
    let refused = |arguments: &[&Path], flags: &[&str], what: &str| {
        let output = terrace().arg("mount").args(arguments).args(flags).output().expect("the command");
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && error.contains(what), "{flags:?}: {error}");
    };
    refused(&[&slow], &[], "MOUNTPOINT");
    refused(&[&empty, &slow], &[], "not empty");
    refused(&[&slow, &slow], &[], "is in");
    refused(&[&slow, &empty], &["--block-size=8KiB"], "--cache");
    refused(&[&slow, &empty], &["--cache-always"], "--cache-always");
    refused(&[&slow, &empty], &["--metrics=here"], "--metrics");
    refused(&[&slow, &empty], &["--control=here"], "--cache");
    let trace = format!("--trace={}", folder.path().join("asked.pgt").display());
    refused(&[&slow, &slow], &[&trace], "is in");
    assert!(!folder.path().join("asked.pgt").exists());
    let trace = format!("--trace={}", folder.path().join("asked.lis").display());
    refused(&[&slow, &empty], &[&trace], ".pgt or .csv");
    assert!(!folder.path().join("asked.lis").exists());
    refused(&[&slow, &empty], &["--cache=simulated:dram,1MiB"], "file:PATH,SIZE");
    let cache = format!("--cache=file:{},1MiB", slow.join("cache").display());
    refused(&[&slow, &empty], &[&cache], "outside");
    let cache = format!("--cache=file:{},1MiB", folder.path().join("cache").display());
    refused(&[&slow, &empty], &[&cache, "--block-size=5KiB"], "block size");
    refused(&[&slow, &empty], &[&cache, "--cache-trust=synced"], "--cache-trust");
    refused(&[&slow, &empty], &[&cache, "--cache-eviction=belady"], "belady");
}
