//! Child processes that end with the work, whatever ends it.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};
use terrace_common::failure::{Failure, Outcome};
use terrace_common::interrupt::Leftover;

/// Longest wait for a process.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// The same while a signal ends this program, which then notices no other signal.
const HURRY: Duration = Duration::from_secs(2);
pub const PAUSE: Duration = Duration::from_millis(5);
/// Lines of a log in an error.
const LOG_LINES: usize = 10;

/// A command that gets `signal` when this process dies, with the rights of `user` if not root's.
///
/// It has a process group of its own: Ctrl-C reaches it only in order, from here.
pub fn command(program: &Path, user: Option<&str>, signal: &str) -> Command {
    let mut command = Command::new("setpriv");
    if let Some(user) = user {
        command.args([&format!("--reuid={user}"), &format!("--regid={user}"), "--init-groups"]);
    }
    command.arg(format!("--pdeathsig={signal}")).arg("--").arg(program);
    command.stdin(Stdio::null()).process_group(0).current_dir("/");
    command
}

/// The last lines of a log.
pub fn last_lines(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
}

fn log_to(path: &Path) -> Outcome<File> {
    let log = OpenOptions::new().create(true).append(true).mode(0o600).open(path);
    log.map_err(|error| Failure::file("opening the log", path, error))
}

fn failed(command: &Command, why: impl std::fmt::Display) -> Failure {
    // The program comes after the flags of `setpriv`.
    let program = command.get_args().skip_while(|argument| *argument != "--").nth(1).unwrap_or_default();
    Failure::Work(format!("{}: {why}", program.display()))
}

struct Running {
    child: Child,
    /// What the process shows there, if it is a mount.
    mountpoint: Option<PathBuf>,
}

impl Running {
    fn is_over(&mut self) -> bool {
        // A child that cannot be waited for is not there.
        self.child.try_wait().map_or(true, |status| status.is_some())
    }

    /// Ends it in order if it listens within `patience`, or else at once.
    fn end(mut self, patience: Duration) {
        // PostgreSQL ends its sessions by the first, and itself without a checkpoint by the second.
        for signal in [Signal::INT, Signal::QUIT, Signal::KILL] {
            if self.is_over() {
                break;
            }
            let _ = kill_process(Pid::from_child(&self.child), signal);
            let since = Instant::now();
            while !self.is_over() && since.elapsed() < patience {
                thread::sleep(PAUSE);
            }
        }
        if let Some(mountpoint) = &self.mountpoint {
            // Does nothing if the process has unmounted it.
            let _ = unmount(mountpoint, UnmountFlags::DETACH);
        }
    }
}

/// Ends processes in the reverse order of their start.
fn end_all(all: &mut Vec<Running>, patience: Duration) {
    while let Some(last) = all.pop() {
        last.end(patience);
    }
}

/// Processes in the order of their start, which end in the reverse order.
#[derive(Clone, Default)]
pub struct Processes(Arc<Mutex<Vec<Running>>>);

impl Processes {
    fn all(&self) -> MutexGuard<'_, Vec<Running>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends them if a signal ends this process.
    pub fn end_at_signal(&self) -> Leftover {
        let processes = self.clone();
        Leftover::ended_by(move || {
            let mut all = processes.all();
            end_all(&mut all, HURRY);
            // Holds up the work, which would start others or report an error.
            std::mem::forget(all);
        })
    }

    /// Starts `command`, whose errors go to `log`.
    pub fn start(&self, command: &mut Command, log: &Path, mountpoint: Option<&Path>) -> Outcome<u32> {
        command.stdout(log_to(log)?).stderr(log_to(log)?);
        let mut all = self.all();
        let child = command.spawn().map_err(|error| failed(command, error))?;
        let process = child.id();
        all.push(Running { child, mountpoint: mountpoint.map(Path::to_owned) });
        Ok(process)
    }

    /// Starts `command` with pipes for input and output; errors go to `log`.
    pub fn talk(&self, command: &mut Command, log: &Path) -> Outcome<(ChildStdin, ChildStdout)> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log_to(log)?);
        let mut all = self.all();
        let mut child = command.spawn().map_err(|error| failed(command, error))?;
        let pipes = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        all.push(Running { child, mountpoint: None });
        Ok(pipes)
    }

    /// Whether the last one runs.
    pub fn last_runs(&self) -> bool {
        self.all().last_mut().is_some_and(|last| !last.is_over())
    }

    pub fn end_last(&self) {
        let mut all = self.all();
        if let Some(last) = all.pop() {
            last.end(PATIENCE);
        }
    }

    pub fn end_all(&self) {
        end_all(&mut self.all(), PATIENCE);
    }

    /// Runs `command` to its end. What it says goes to `log`, and into the error if it fails.
    pub fn run(&self, command: &mut Command, log: &Path) -> Outcome {
        // An error shows this program's words alone.
        let _ = fs::remove_file(log);
        self.start(command, log, None)?;
        let status = loop {
            let mut all = self.all();
            let last = all.last_mut().expect("it was started");
            if let Some(status) = last.child.try_wait().map_err(|error| failed(command, error))? {
                all.pop();
                break status;
            }
            drop(all);
            thread::sleep(PAUSE);
        };
        match status.success() {
            true => Ok(()),
            false => Err(failed(command, format!("{status}\n{}", last_lines(log)))),
        }
    }
}
