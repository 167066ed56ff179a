//! A process of a comparison, which ends with its parent's work.

use std::io::{self, Read};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use terrace_common::failure::{Failure, Outcome};
use terrace_common::interrupt;

/// Interval of looking for a signal.
const WAIT: Duration = Duration::from_millis(100);

/// A process, killed on drop.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // It may already be dead.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs `command`, named `name` in errors, and returns its exit status and standard output.
///
/// # Errors
/// [`Failure::Interrupted`] after a signal, once the process is killed; [`Failure::Work`].
pub(super) fn output(name: &str, command: &mut Command) -> Outcome<Output> {
    let failed = |error: io::Error| Failure::Work(format!("starting {name} failed: {error}"));
    // The child shares standard error; its standard output is the result.
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let mut child = Ended(command.spawn().map_err(failed)?);
    let mut pipe = child.0.stdout.take().expect("it was piped");
    let (sender, all) = mpsc::channel();
    thread::spawn(move || {
        let mut stdout = Vec::new();
        let read = pipe.read_to_end(&mut stdout).map(|_| stdout);
        // Nobody receives after a signal.
        let _ = sender.send(read);
    });
    let stdout = loop {
        interrupt::check()?;
        match all.recv_timeout(WAIT) {
            Ok(read) => break read.map_err(failed)?,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Failure::Work(format!("reading the output of {name} failed")));
            }
        }
    };
    let status = child.0.wait().map_err(failed)?;
    interrupt::check()?;
    Ok(Output { status, stdout, stderr: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_and_exit_code_of_a_process_are_returned() {
        let done = output("sh", Command::new("sh").args(["-c", "echo out; exit 3"])).unwrap();
        assert_eq!((done.stdout.as_slice(), done.status.code()), (&b"out\n"[..], Some(3)));
        let error = output("none", &mut Command::new("/no/such/program")).unwrap_err();
        assert!(error.to_string().contains("starting none failed"), "{error}");
    }
}
