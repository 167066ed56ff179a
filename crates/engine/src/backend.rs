//! The two back ends that hold the bytes of pages in memory.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

/// Placement of page bytes in memory.
///
/// Files, log, tree, transactions and budget do not depend on it. A database written with one opens
/// with the other.
///
/// ```
/// use terrace::{Backend, Db, MemoryDirectory};
///
/// # let directory = std::sync::Arc::new(MemoryDirectory::new());
/// let builder = Db::builder().directory(directory.clone()).dram(4 << 20);
/// let db = builder.backend(Backend::Mapped).open("")?;
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
    /// In frames: fixed addresses, memory as pages come, in huge pages if available.
    #[default]
    Frames,
    /// At an address per page id (vmcache, CXL buffer manager).
    ///
    /// Costs a terabyte of address space per page size in use, and a system call per batch of pages
    /// that enter or leave. Kernel page tables take eight bytes per 4 KiB ever in memory.
    Mapped,
}

impl Backend {
    /// All back ends.
    pub const ALL: [Backend; 2] = [Backend::Frames, Backend::Mapped];

    /// Name in commands and settings.
    pub const fn name(self) -> &'static str {
        match self {
            Backend::Frames => "frames",
            Backend::Mapped => "mapped",
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
