//! Errors of a command, and its exit code.
//!
//! Exit codes are part of the command's interface: 1 the work failed, 2 the command line is wrong,
//! 3 the data are damaged, 128 and the number of a signal if that ended the work. Every error
//! becomes a [`Failure`]; only `main` turns it into text and a code.

use std::fmt::Display;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

/// An error, classified by what the user must do about it.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The work failed; the message says on what and what to do next.
    #[error("{0}")]
    Work(String),
    /// The command line or the `--config` file is invalid.
    #[error("{0}")]
    Usage(String),
    /// Stored data differ from what was written.
    #[error("{0}")]
    Damaged(String),
    /// The reader of our output has gone, so no report is possible.
    #[error("the reader of standard output closed it")]
    OutputClosed,
    /// A signal, given by its number, asked for the end of the work.
    #[error("signal {0} ended the work")]
    Interrupted(i32),
    /// The engine refused or failed.
    #[error(transparent)]
    Engine(#[from] terrace::Error),
}

/// The result of a command or of part of one.
pub type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    /// A failed operation on a named file.
    pub fn file(what: &str, path: &Path, source: impl Display) -> Failure {
        Failure::Work(format!("{what} {} failed: {source}", crate::escape::path(path)))
    }

    /// A failed write to standard output.
    pub fn output(source: io::Error) -> Failure {
        match source.kind() {
            io::ErrorKind::BrokenPipe => Failure::OutputClosed,
            _ => Failure::Work(format!("writing standard output failed: {source}")),
        }
    }

    /// The process's exit code.
    pub fn code(&self) -> u8 {
        match self {
            Failure::Work(_) | Failure::OutputClosed => 1,
            Failure::Usage(_) | Failure::Engine(terrace::Error::Config(_)) => 2,
            Failure::Interrupted(signal) => 128 | *signal as u8,
            Failure::Damaged(_) | Failure::Engine(terrace::Error::Corrupt { .. }) => 3,
            Failure::Engine(_) => 1,
        }
    }

    /// Prints the error to standard error and returns the exit code.
    pub fn report(&self) -> ExitCode {
        if !matches!(self, Failure::OutputClosed | Failure::Interrupted(_)) {
            // Nobody reads the message if standard error is closed.
            let _ = writeln!(io::stderr(), "terrace: {}", crate::escape::text(&self.to_string()));
        }
        ExitCode::from(self.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_exit_code() {
        assert_eq!(Failure::Work("x".into()).code(), 1);
        assert_eq!(Failure::Usage("x".into()).code(), 2);
        assert_eq!(Failure::Damaged("x".into()).code(), 3);
        let corrupt = terrace::Error::Corrupt { file: "f".into(), page: None, what: "w".into() };
        assert_eq!(Failure::from(corrupt).code(), 3);
        assert_eq!(Failure::from(terrace::Error::Config("c".into())).code(), 2);
        assert_eq!(Failure::from(terrace::Error::ReadOnly).code(), 1);
        assert_eq!([2, 15].map(|signal| Failure::Interrupted(signal).code()), [130, 143]);
    }

    #[test]
    fn a_closed_pipe_is_not_a_failed_disk() {
        let closed = Failure::output(io::ErrorKind::BrokenPipe.into());
        assert!(matches!(closed, Failure::OutputClosed));
        assert!(matches!(Failure::output(io::ErrorKind::StorageFull.into()), Failure::Work(_)));
    }
}
