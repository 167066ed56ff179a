//! The error type of the engine. Each message names the cause and the next step.

use std::io;

use terrace_io::units::show_size;

/// An error of the engine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused or failed an operation on a file.
    #[error("{operation} failed on {file}{}: {source}{}", at(offset), io_advice(operation, source))]
    Io {
        /// What was attempted: "read", "write", "sync", "open", ...
        operation: &'static str,
        /// Path or device name of the file.
        file: String,
        /// Offset in the file, bytes.
        offset: Option<u64>,
        /// Error of the operating system.
        source: io::Error,
    },
    /// Stored bytes differ from those that were written.
    #[error(
        "{file} is damaged{}: {what}; run `terrace verify`, then restore a backup or save the rest with `terrace repair`",
        page_of(page)
    )]
    Corrupt {
        /// Path or device name of the file.
        file: String,
        /// Id of the damaged page, if known.
        page: Option<u64>,
        /// The check that failed.
        what: String,
    },
    /// The disk, a quota or a file size limit leaves no room.
    ///
    /// Reads still work, and commits work again once there is room. A process beyond its file size
    /// limit (`RLIMIT_FSIZE`) also gets `SIGXFSZ`, which ends it unless the program handles or
    /// ignores the signal.
    #[error("disk full: {what}; free some space and try again, nothing needs to be restarted")]
    Full {
        /// The operation that found no room.
        what: String,
    },
    /// The memory budget is too small for the concurrent work.
    #[error("{what}; give the database more memory, or run less at once")]
    OutOfFrames {
        /// The operation that needed frames.
        what: String,
    },
    /// The log is too small for the concurrent work.
    ///
    /// No space became free for ten seconds. The call changed nothing.
    #[error("{what}; run less at once, or make the database with a larger log_max")]
    OutOfLog {
        /// The operation that needed log space.
        what: String,
    },
    /// Another transaction changed data that this one read.
    ///
    /// Retry the transaction; [`crate::Db::update`] does so automatically.
    #[error("conflict with another transaction; run this transaction again")]
    Conflict,
    /// A write or sync failed earlier, or the database was closed. Reopen it to continue.
    #[error("{}", stopped(reason))]
    Poisoned {
        /// The first failure, or that it was closed.
        reason: String,
    },
    /// Another process or another handle has the database open.
    #[error("{path} is in use{}; close it there first", owner(owner_process))]
    Busy {
        /// The database directory.
        path: String,
        /// Process id of the writer; `None` if only readers have it open.
        owner_process: Option<u32>,
    },
    /// A read-only open needs more memory to recover an unclean database.
    #[error(
        "{path} was not closed cleanly, and recovering it read-only takes more than the {bytes_max} bytes of memory set \
         aside for that; give it more memory, or open it once for writing"
    )]
    NeedsRecovery {
        /// The database directory.
        path: String,
        /// Memory available for the recovery, bytes.
        bytes_max: u64,
    },
    /// The persistent memory for the log is missing, or is not that of this database.
    #[error("{path}: {what}")]
    LogMemory {
        /// Path of the memory, or of the database that lacks one.
        path: String,
        /// The reason and the next step.
        what: String,
    },
    /// The path does not hold a Terrace database, or a backup of one.
    #[error("{path} is not a Terrace database: {what}")]
    NotADatabase {
        /// The path given.
        path: String,
        /// The missing or unexpected thing.
        what: String,
    },
    /// The directory for a backup, a restore or a repair has files. Nothing was written.
    #[error("{path} is not empty; choose a new or an empty directory")]
    NotEmpty {
        /// The path given.
        path: String,
    },
    /// The files have a different format version.
    #[error(
        "{file} has format version {found}, this build reads version {supported}; {}",
        other_release(*found, *supported)
    )]
    Version {
        /// The file with that version.
        file: String,
        /// The version in the file.
        found: u32,
        /// The version that this build reads and writes.
        supported: u32,
    },
    /// A key is longer than [`crate::MAX_KEY_BYTES`].
    #[error(
        "key of {length} bytes is too large, at most {max} are allowed; keep the rest of it in the value"
    )]
    KeyTooLarge {
        /// Length of the key, bytes.
        length: usize,
        /// The limit, bytes.
        max: usize,
    },
    /// A value is longer than [`crate::MAX_VALUE_BYTES`].
    #[error("value of {length} bytes is too large, at most {max} are allowed; divide it among several keys")]
    ValueTooLarge {
        /// Length of the value, bytes.
        length: usize,
        /// The limit, bytes.
        max: usize,
    },
    /// A part to be read or changed is not inside the value.
    #[error(
        "bytes {start} to {end} are not inside the value of {length} bytes; put a value of another length whole"
    )]
    OutsideValue {
        /// Offset of the part's first byte.
        start: usize,
        /// Offset behind the part's last byte.
        end: usize,
        /// Length of the value, bytes.
        length: usize,
    },
    /// A transaction exceeds its share of the log or of the budget.
    ///
    /// Changes count against the log, reads against the budget.
    #[error("{}", too_large(*bytes, *max, *reads))]
    TransactionTooLarge {
        /// Bytes needed, of log or of memory.
        bytes: u64,
        /// The limit, bytes.
        max: u64,
        /// Whether it is for what was read, so of memory.
        reads: bool,
    },
    /// No table has this name.
    #[error("there is no table named {0:?}; create it first")]
    TableNotFound(String),
    /// A table has this name already.
    #[error("a table named {0:?} exists already; open it instead")]
    TableExists(String),
    /// The table name is empty, too long, or has control characters.
    #[error("{name:?} cannot name a table: {what}")]
    InvalidName {
        /// The name given.
        name: String,
        /// The rule that the name breaks.
        what: &'static str,
    },
    /// The snapshot exceeded its age limit or the limit of old versions.
    #[error("the snapshot is too old: the old versions it needs were dropped; take a new one")]
    SnapshotTooOld,
    /// No snapshot has this name.
    #[error("there is no snapshot named {0:?}; create it first")]
    SnapshotNotFound(String),
    /// A snapshot has this name already.
    #[error("a snapshot named {0:?} exists already; drop it first, or read at it")]
    SnapshotExists(String),
    /// The savepoint is of another transaction or was rolled back.
    #[error("the savepoint no longer exists; take a new one")]
    SavepointGone,
    /// The page of [`crate::pages`] was freed or belongs to another allocator.
    #[error(
        "page {page} was freed or belongs to another allocator; the structure that refers to it is wrong"
    )]
    PageNotFound {
        /// Page id.
        page: u64,
    },
    /// The page of [`crate::pages`] had the most possible shared guards for two seconds.
    #[error("page {page} has {max} shared guards, the maximum; drop some first")]
    TooManyGuards {
        /// Page id.
        page: u64,
        /// The limit of concurrent shared guards per page.
        max: u64,
    },
    /// The database was opened read-only.
    #[error("the database is open read-only; open it for writing to change it")]
    ReadOnly,
    /// A setting is out of range or contradicts another.
    #[error("bad setting: {0}")]
    Config(String),
    /// A key or value does not fit the types of a [`crate::TypedTable`].
    #[error("table {table:?} does not fit its types: {what}; name the types that wrote it")]
    Codec {
        /// Name of the table.
        table: String,
        /// The key or value, and why it does not fit.
        what: String,
    },
    /// The operating system refused memory.
    #[error("cannot get {} of memory for {what}: {source}{}", show_size(*bytes), memory_advice(source))]
    Memory {
        /// Bytes requested.
        bytes: u64,
        /// Purpose of the memory.
        what: &'static str,
        /// Error of the operating system.
        source: io::Error,
    },
}

/// A refusal caused by the process's address space limit.
#[derive(Debug, thiserror::Error)]
#[error(
    "{source}; the process is limited to {limit_bytes} bytes of address space (`ulimit -v`) and needs about \
     {needed_bytes}, most of it reserved and never used: raise that limit to {} KiB or more",
    needed_bytes / 1024
)]
pub(crate) struct AddressLimit {
    pub(crate) limit_bytes: u64,
    pub(crate) needed_bytes: u64,
    pub(crate) source: io::Error,
}

fn memory_advice(source: &io::Error) -> &'static str {
    let is_limited = source.get_ref().is_some_and(|inner| inner.is::<AddressLimit>());
    if is_limited { "" } else { "; lower the budget" }
}

/// The reason of a database that was closed.
pub(crate) const CLOSED: &str = "the database was closed";

fn stopped(reason: &str) -> String {
    match reason {
        CLOSED => format!("{reason}; open it again"),
        _ => format!(
            "the database stopped accepting work after a failure: {reason}; close it and open it again"
        ),
    }
}

fn io_advice(operation: &str, source: &io::Error) -> &'static str {
    let is_parent_missing = operation == "create" && source.kind() == io::ErrorKind::NotFound;
    if is_parent_missing { "; create its parent directory first" } else { "" }
}

fn too_large(bytes: u64, max: u64, reads: bool) -> String {
    let (needs, bytes_max) = (show_size(bytes), show_size(max));
    match reads {
        true => format!(
            "what the transaction read needs at least {needs} of memory, and may take {bytes_max}; split it, or raise dram"
        ),
        false => format!(
            "what the transaction writes needs at least {needs} of log, and may take {bytes_max}; split it, or make the \
             database with a larger log_max, or dump and load it"
        ),
    }
}

fn other_release(found: u32, supported: u32) -> &'static str {
    match found > supported {
        true => "use the newer release that wrote it, or a later one",
        false => "dump its tables with the older release that wrote it, and load them with this one",
    }
}

fn at(offset: &Option<u64>) -> String {
    offset.map(|offset| format!(" at byte {offset}")).unwrap_or_default()
}

fn page_of(page: &Option<u64>) -> String {
    page.map(|page| format!(" at page {page}")).unwrap_or_default()
}

fn owner(process: &Option<u32>) -> String {
    match *process {
        None => " by others".to_owned(),
        Some(process) if process == std::process::id() => " by this process".to_owned(),
        Some(process) => format!(" by process {process}"),
    }
}

impl Error {
    /// Whether a retry of the transaction may succeed.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Error::Conflict)
    }

    pub(crate) fn io(operation: &'static str, file: &str, offset: Option<u64>, source: io::Error) -> Self {
        // Recoverable, because space can become free while the process runs.
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Error::Full { what: format!("{operation} on {file}{}: {source}", at(&offset)) }
            }
            // Recoverable, because the limit can be raised.
            io::ErrorKind::FileTooLarge => Error::Full {
                what: format!(
                    "{operation} on {file}{}: {source}; raise the limit on the size of files, of the process \
                     (`ulimit -f`) or of the file system",
                    at(&offset)
                ),
            },
            _ => Error::Io { operation, file: file.to_owned(), offset, source },
        }
    }

    pub(crate) fn corrupt(file: &str, page: Option<u64>, what: impl Into<String>) -> Self {
        Error::Corrupt { file: file.to_owned(), page, what: what.into() }
    }

    /// Prefixes an error of settings with `part` of the budget.
    pub(crate) fn of_part(self, part: impl std::fmt::Display) -> Self {
        match self {
            Error::Config(what) => Error::Config(format!("{part}: {what}")),
            other => other,
        }
    }
}

/// Result of a fallible call of the engine.
pub type Result<T, E = Error> = std::result::Result<T, E>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_step_is_that_of_the_cause() {
        let large = |reads| Error::TransactionTooLarge { bytes: 200_704, max: 131_072, reads }.to_string();
        assert!(
            large(true).contains("196 KiB of memory, and may take 128 KiB")
                && large(true).ends_with("raise dram")
        );
        assert!(large(false).contains("of log") && large(false).ends_with("dump and load it"));
        let stopped = |reason: &str| Error::Poisoned { reason: reason.to_owned() }.to_string();
        assert_eq!(stopped(CLOSED), "the database was closed; open it again");
        assert!(stopped("sync failed").contains("after a failure: sync failed"));
        let create = |kind: io::ErrorKind| Error::io("create", "no/such", None, kind.into()).to_string();
        assert!(create(io::ErrorKind::NotFound).ends_with("; create its parent directory first"));
        assert!(!create(io::ErrorKind::PermissionDenied).contains("parent"));
    }

    #[test]
    fn the_owner_of_a_busy_database_is_named() {
        let busy = |owner_process| Error::Busy { path: "shop".to_owned(), owner_process }.to_string();
        let own = std::process::id();
        assert_eq!(busy(Some(own)), "shop is in use by this process; close it there first");
        let other = format!("shop is in use by process {}; close it there first", own + 1);
        assert_eq!(busy(Some(own + 1)), other);
        assert_eq!(busy(None), "shop is in use by others; close it there first");
    }
}
