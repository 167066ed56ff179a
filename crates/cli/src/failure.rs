//! Why a command did not do its work, and the exit code that says so.
//!
//! Exit codes are part of the command's interface: 1 the work failed, 2 the command line is wrong, 3 the data are
//! damaged. Everything that can go wrong becomes a [`Failure`], and only `main` turns one into text and a code.

use std::fmt::Display;
use std::io;
use std::path::Path;
use std::process::ExitCode;

/// What went wrong, sorted by what the user has to do about it.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The work failed; the message names what it was about and what to do next.
    #[error("{0}")]
    Work(String),
    /// The command line, or the file given with `--config`, asks for something that cannot be.
    #[error("{0}")]
    Usage(String),
    /// Stored data are not what was written.
    #[error("{0}")]
    Damaged(String),
    /// Whoever read our output went away; there is nobody left to tell.
    #[error("the reader of standard output closed it")]
    OutputClosed,
    /// The engine refused or failed.
    #[error(transparent)]
    Engine(#[from] terrace::Error),
}

/// The result of a command or of a part of it.
pub type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    /// A failed operation on a file, with its name.
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
            Failure::Damaged(_) | Failure::Engine(terrace::Error::Corrupt { .. }) => 3,
            Failure::Engine(_) => 1,
        }
    }

    /// Says what happened on standard error and gives the exit code.
    pub fn report(&self) -> ExitCode {
        if !matches!(self, Failure::OutputClosed) {
            eprintln!("terrace: {}", crate::escape::text(&self.to_string()));
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
    }

    #[test]
    fn a_closed_pipe_is_not_a_failed_disk() {
        let closed = Failure::output(io::ErrorKind::BrokenPipe.into());
        assert!(matches!(closed, Failure::OutputClosed));
        assert!(matches!(Failure::output(io::ErrorKind::StorageFull.into()), Failure::Work(_)));
    }
}
