//! The two ways to house the bytes of pages.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use crate::error::{Error, Result};

/// Where the bytes of pages in memory are. Everything else is the same with either: files, log, tree, transactions, and the
/// budget. A database written with one opens with the other.
///
/// ```
/// use terrace::{Backend, Db, MemoryDirectory};
///
/// # let directory = std::sync::Arc::new(MemoryDirectory::new());
/// let db = Db::builder().directory(directory.clone()).dram(4 << 20).backend(Backend::Mapped).open("")?;
/// db.create_table("t")?.put("k", "v")?;
/// assert_eq!(db.stats().backend, Backend::Mapped);
/// db.close()?;
/// let db = Db::builder().directory(directory).dram(4 << 20).backend(Backend::Frames).open("")?;
/// assert_eq!(db.open_table("t")?.get("k")?.as_deref(), Some(&b"v"[..]));
/// # Ok::<(), terrace::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// In frames, which have their memory from the start, in huge pages where the system has them.
    #[default]
    Frames,
    /// At an address for each page id, with memory as long as the page is in it: translation by virtual memory, as in vmcache
    /// and in the CXL buffer manager. Takes a terabyte of addresses for each size of pages in use, eight bytes of the
    /// kernel's page tables for every 4 KiB that were ever in memory, and a system call for each batch of pages that comes or
    /// goes.
    Mapped,
}

/// The variable of the environment that says what a builder means that says nothing: for running programs and tests as they are
/// with either.
const VARIABLE: &str = "TERRACE_BACKEND";

impl Backend {
    /// Both.
    pub const ALL: [Backend; 2] = [Backend::Frames, Backend::Mapped];

    /// Its name in commands and settings.
    pub const fn name(self) -> &'static str {
        match self {
            Backend::Frames => "frames",
            Backend::Mapped => "mapped",
        }
    }

    /// What the environment variable `TERRACE_BACKEND` says, or else the default.
    ///
    /// # Errors
    /// [`Error::Config`] if it names none.
    pub(crate) fn of_environment() -> Result<Backend> {
        match std::env::var(VARIABLE) {
            Ok(name) => name.parse().map_err(|error| Error::Config(format!("{VARIABLE}: {error}"))),
            Err(std::env::VarError::NotPresent) => Ok(Backend::default()),
            Err(error) => Err(Error::Config(format!("{VARIABLE}: {error}"))),
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Backend {
    type Err = String;

    fn from_str(name: &str) -> Result<Backend, String> {
        let found = Backend::ALL.into_iter().find(|backend| backend.name() == name);
        found.ok_or_else(|| format!("there is no back end \"{name}\"; there are frames and mapped"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_others_are_refused() {
        for backend in Backend::ALL {
            assert_eq!(backend.to_string().parse(), Ok(backend));
        }
        for name in ["", "Frames", "mmap", "frames "] {
            assert!(name.parse::<Backend>().unwrap_err().contains(name));
        }
    }
}
