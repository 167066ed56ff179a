//! Signals of the system that the command takes as errors of calls.
//!
//! A process whose files may not be longer than a limit (`ulimit -f`) is sent `SIGXFSZ` by a write beyond it, which ends it
//! in the middle of its work unless it says otherwise. Ignored, the write fails, and the engine reports a full disk, as
//! of any other. A library must not decide this for the program it is part of, so only the command does.

#![allow(unsafe_code)]

/// Has writes beyond the limit on the size of files fail instead of ending the process.
pub fn take_file_limits_as_errors() {
    // SAFETY: no handler is installed, so no code of ours runs in one. The disposition of this signal is nobody else's
    // concern in this process, and this is called before there are other threads.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
}
