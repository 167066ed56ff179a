//! Signals: file size limits become errors, `SIGINT` and `SIGTERM` end work in order.
//!
//! A write beyond the file size limit (`ulimit -f`) sends `SIGXFSZ`, which kills the process by
//! default. If ignored, the write fails, and the engine reports a full disk. Only the command sets
//! signals, because a library must leave them to its program.

#![allow(unsafe_code)]

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::thread;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use terrace_common::failure::{Failure, Outcome};
use terrace_common::interrupt;

/// Passes `SIGINT` and `SIGTERM` to [`interrupt::raise`] from now on.
///
/// # Errors
/// [`Failure::Work`] if the system refuses the handler or its thread.
pub fn end_in_order() -> Outcome {
    let failed = |error: io::Error| Failure::Work(format!("handling signals failed: {error}"));
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(failed)?;
    let wait = move || {
        for signal in signals.forever() {
            interrupt::raise(signal, announce);
        }
    };
    thread::Builder::new().name("signals".to_owned()).spawn(wait).map_err(failed)?;
    Ok(())
}

/// The signal that asked a child of this command to end, if `status` says so: it ends in order, or
/// at once before it has a handler.
pub fn ended_by(status: ExitStatus) -> Option<i32> {
    [SIGINT, SIGTERM].into_iter().find(|&signal| {
        let in_order = i32::from(Failure::Interrupted(signal).code());
        status.signal() == Some(signal) || status.code() == Some(in_order)
    })
}

/// Says on standard error that the work ends, unless that would wait for a reader.
///
/// It goes around [`io::stderr`], whose lock another thread may hold while it waits.
fn announce() {
    let stderr = rustix::stdio::stderr();
    let mut ready = [PollFd::new(&stderr, PollFlags::OUT)];
    if poll(&mut ready, Some(&Timespec::default())).is_ok_and(|ready| ready == 1) {
        // Nobody reads the message if standard error is closed.
        let _ = rustix::io::write(stderr, b"terrace: ending; press Ctrl-C again to end at once\n");
    }
}

/// Makes writes beyond the file size limit fail instead of killing the process.
pub fn take_file_limits_as_errors() {
    // SAFETY: SIG_IGN installs no handler, so none of our code runs in a signal context. Nothing
    // else in this process uses this signal, and no other threads exist yet.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_that_was_asked_to_end_is_told_from_others() {
        let ended = [(15, Some(SIGTERM)), (130 << 8, Some(SIGINT)), (143 << 8, Some(SIGTERM))];
        let others = [0, 1 << 8, 9, 137 << 8, 2 << 8].map(|status| (status, None));
        for (status, signal) in ended.into_iter().chain(others) {
            assert_eq!(ended_by(ExitStatus::from_raw(status)), signal, "{status}");
        }
    }
}
