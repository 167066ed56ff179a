//! Signals: file size limits become errors, `SIGINT` and `SIGTERM` end work in order.
//!
//! A write beyond the file size limit (`ulimit -f`) sends `SIGXFSZ`, which kills the process by
//! default. If ignored, the write fails, and the engine reports a full disk. Only the command sets
//! signals, because a library must leave them to its program.

#![allow(unsafe_code)]

use std::io;
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
