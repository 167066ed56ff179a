//! Turns file size limits into errors.
//!
//! A write beyond the file size limit (`ulimit -f`) sends `SIGXFSZ`, which kills the process by
//! default. If ignored, the write fails, and the engine reports a full disk. Only the command sets
//! this, because a library must leave signals to its program.

#![allow(unsafe_code)]

/// Makes writes beyond the file size limit fail instead of killing the process.
pub fn take_file_limits_as_errors() {
    // SAFETY: SIG_IGN installs no handler, so none of our code runs in a signal context. Nothing
    // else in this process uses this signal, and no other threads exist yet.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
}
