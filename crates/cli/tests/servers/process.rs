//! Processes that a test starts, waits for and kills.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::Checked;

/// A hanging file system shall not hang the test.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A command whose process gets signal 9 when the thread that started it ends.
pub fn bound(program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig=KILL", "--", program]).stdin(Stdio::null()).process_group(0);
    command
}

/// The same with the rights of `user`. PostgreSQL refuses to run as root.
pub fn bound_as(user: &str, program: &str) -> Command {
    let mut command = Command::new("setpriv");
    let flags = [format!("--reuid={user}"), format!("--regid={user}")];
    command.args(flags).args(["--init-groups", "--pdeathsig=KILL", "--", program]);
    command.stdin(Stdio::null()).process_group(0);
    command
}

/// Gives `path` to `user` and the group of the same name.
pub fn give(path: &Path, user: &str) {
    let passwords = fs::read_to_string("/etc/passwd").expect("a list of users");
    let found =
        passwords.lines().map(|line| line.split(':').collect::<Vec<_>>()).find(|line| line[0] == user);
    let line = found.unwrap_or_else(|| panic!("no user {user}: install the server's package"));
    let id = |text: &str| Some(text.parse().expect("a number"));
    std::os::unix::fs::chown(path, id(line[2]), id(line[3])).expect("root may give files away");
}

/// Waits for the end of a process.
pub fn wait(child: &mut Child, patience: Duration) -> Checked<ExitStatus> {
    let since = Instant::now();
    while since.elapsed() < patience {
        if let Some(status) = child.try_wait().expect("the process is our child") {
            return Ok(status);
        }
        thread::sleep(Duration::from_millis(5));
    }
    Err(format!("process {} is still there after {patience:?}", child.id()))
}

fn drain(mut pipe: impl Read + Send + 'static) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Runs a command to its end and returns its output. A failure is a finding.
pub fn run(command: &mut Command, input: &str) -> Checked<String> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("{command:?}: {error}"))?;
    let (output, errors) =
        (drain(child.stdout.take().expect("piped")), drain(child.stderr.take().expect("piped")));
    let (mut stdin, input) = (child.stdin.take().expect("piped"), input.to_owned());
    // A command that failed stops reading, and its status says so.
    let feed = thread::spawn(move || drop(stdin.write_all(input.as_bytes())));
    let status = wait(&mut child, 2 * PATIENCE).inspect_err(|_| drop(child.kill()));
    let status = status.map_err(|late| format!("{command:?}: {late}"))?;
    feed.join().expect("feeding does not panic");
    let (output, errors) = (output.join().expect("text"), errors.join().expect("text"));
    match status.success() {
        true => Ok(output),
        false => Err(format!("{command:?}: {status}\n{}{errors}", last_lines(&output, 20))),
    }
}

pub fn last_lines(text: &str, lines: usize) -> String {
    let all: Vec<_> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].iter().map(|line| format!("{line}\n")).collect()
}

/// A server or mount, which gets signal 9 with all its children when dropped.
pub struct Daemon {
    child: Child,
}

impl Daemon {
    /// Starts `command`, whose errors are appended to `log`.
    pub fn start(command: &mut Command, log: &Path) -> Checked<Self> {
        let log = File::options().create(true).append(true).open(log).expect("a log outside the mount");
        let child = command.stderr(log).spawn().map_err(|error| format!("{command:?}: {error}"))?;
        Ok(Self { child })
    }

    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// The process and its children.
    pub fn processes(&self) -> Vec<u32> {
        let children = children(Pid::from_child(&self.child));
        let children = children.iter().map(|child| child.as_raw_nonzero().get().unsigned_abs());
        children.chain([self.child.id()]).collect()
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("our child").is_none()
    }

    /// Asks for an orderly end, and waits for it.
    pub fn end(&mut self, signal: Signal) -> Checked {
        let _ = kill_process(Pid::from_child(&self.child), signal);
        let status = wait(&mut self.child, PATIENCE)?;
        if status.success() { Ok(()) } else { Err(format!("an orderly end gave {status}")) }
    }

    /// Kills the process and its children. Children of PostgreSQL have groups of their own.
    pub fn kill(&mut self) {
        if !self.is_running() {
            return;
        }
        let pid = Pid::from_child(&self.child);
        // A stopped parent makes no more children.
        let _ = kill_process(pid, Signal::STOP);
        let children = children(pid);
        for &process in children.iter().chain([&pid]) {
            let _ = kill_process(process, Signal::KILL);
        }
        let _ = kill_process_group(pid, Signal::KILL);
        // A process that waits for a hanging mount does not end, and the next start says so.
        let _ = wait(&mut self.child, PATIENCE);
        // A new server refuses to start beside children of the old one.
        let since = Instant::now();
        while children.iter().any(|&child| is_alive(child)) && since.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
    }
}

/// State and parent of a process, from `/proc/PID/stat`.
fn state(process: &str) -> Option<(char, i32)> {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name in parentheses may have blanks.
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

fn is_alive(process: Pid) -> bool {
    state(&process.to_string()).is_some_and(|(state, _)| state != 'Z' && state != 'X')
}

fn children(parent: Pid) -> Vec<Pid> {
    let entries = fs::read_dir("/proc").expect("/proc is mounted").flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let is_child = |name: &String| state(name).is_some_and(|(_, of)| of == parent.as_raw_nonzero().get());
    names.filter(is_child).filter_map(|name| name.parse().ok().and_then(Pid::from_raw)).collect()
}

/// Sends signal 9 to a child that its owner waits for.
pub fn kill(process: u32) {
    if let Some(pid) = i32::try_from(process).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, Signal::KILL);
    }
}
