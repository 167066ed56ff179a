//! The one error type. Each variant is a thing its user can act on, and each message says what to do next.

use std::io;

/// What can go wrong in a call of the engine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused or failed an operation on a file.
    #[error("{operation} failed on {file}{}: {source}", at(offset))]
    Io {
        /// What was attempted: "read", "write", "sync", "open", ...
        operation: &'static str,
        /// The file's path or device name.
        file: String,
        /// Where in the file, in bytes.
        offset: Option<u64>,
        /// What the operating system said.
        source: io::Error,
    },
    /// Stored bytes are not what was written.
    #[error(
        "{file} is damaged{}: {what}; run `terrace verify`, then restore a backup or save the rest with `terrace repair`",
        page_of(page)
    )]
    Corrupt {
        /// The file's path or device name.
        file: String,
        /// The page concerned, where it is known.
        page: Option<u64>,
        /// What did not hold.
        what: String,
    },
    /// The disk, a quota, or a limit on the size of files leaves no room. Reads go on; commits work again when there is some.
    ///
    /// A limit of the process on the size of files (`RLIMIT_FSIZE`) also sends it the signal `SIGXFSZ`, which ends it unless the
    /// program ignores the signal or has a handler for it. The library leaves that to the program.
    #[error("disk full: {what}; free some space and try again, nothing needs to be restarted")]
    Full {
        /// What could not be placed.
        what: String,
    },
    /// The budget is too small for what runs at the same time.
    #[error("{what}; give the database more memory, or run less at once")]
    OutOfFrames {
        /// What could not be done.
        what: String,
    },
    /// The log is too small for what runs at the same time: no space of it came free while nothing moved for ten seconds.
    /// Nothing has happened; other work goes on.
    #[error("{what}; raise log_max, or run less at once")]
    OutOfLog {
        /// What could not be had.
        what: String,
    },
    /// Another transaction changed what this one read. Run the transaction again.
    #[error("conflict with another transaction; run this transaction again")]
    Conflict,
    /// A write or sync failed earlier, so nothing more can be promised until the database is opened again.
    #[error("the database stopped accepting work after a failure: {reason}; close it and open it again")]
    Poisoned {
        /// The first failure.
        reason: String,
    },
    /// Another process, or another handle in this one, has the database open.
    #[error("{path} is in use{}; close it there first", owner(owner_process))]
    Busy {
        /// The database directory.
        path: String,
        /// The process id of the owner, where there is one: not of those that only read it.
        owner_process: Option<u32>,
    },
    /// The database was not closed cleanly, and recovering it in memory, for reading only, takes more of that than there
    /// is.
    #[error(
        "{path} was not closed cleanly, and what its log has to make good takes more than the {bytes_max} bytes that \
         opening it read-only has for that; give it more memory, or open it once for writing"
    )]
    NeedsRecovery {
        /// The database directory.
        path: String,
        /// Bytes of memory there were for it.
        bytes_max: u64,
    },
    /// The path does not hold a Terrace database.
    #[error("{path} is not a Terrace database: {what}")]
    NotADatabase {
        /// The path that was opened.
        path: String,
        /// What is missing or foreign.
        what: String,
    },
    /// The database was written by another format version.
    #[error(
        "{file} has format version {found}, this build reads version {supported}; {}",
        other_release(*found, *supported)
    )]
    Version {
        /// The file that says so.
        file: String,
        /// The version found in it.
        found: u32,
        /// The version this build reads and writes.
        supported: u32,
    },
    /// A key is longer than [`crate::MAX_KEY_BYTES`].
    #[error("key of {length} bytes is too large, at most {max} are allowed")]
    KeyTooLarge {
        /// Length of the key given, bytes.
        length: usize,
        /// The limit, bytes.
        max: usize,
    },
    /// A value is longer than [`crate::MAX_VALUE_BYTES`].
    #[error("value of {length} bytes is too large, at most {max} are allowed")]
    ValueTooLarge {
        /// Length of the value given, bytes.
        length: usize,
        /// The limit, bytes.
        max: usize,
    },
    /// A transaction's changes do not fit into the log that is allowed, or what it has read not into its part of the
    /// budget.
    #[error(
        "transaction needs {bytes} bytes, at most {max} are allowed; split it, or raise log_max for what it writes and \
         dram for what it reads"
    )]
    TransactionTooLarge {
        /// Bytes the transaction would need, of the log or of the part of the budget.
        bytes: u64,
        /// The limit, bytes.
        max: u64,
    },
    /// No table of this name.
    #[error("there is no table named {0:?}; create it first")]
    TableNotFound(String),
    /// A table of this name exists already.
    #[error("a table named {0:?} exists already; open it instead")]
    TableExists(String),
    /// A table's name is empty, too long, or holds control characters.
    #[error("{name:?} cannot name a table: {what}")]
    InvalidName {
        /// The name given.
        name: String,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The snapshot outlived the limit of age or of old versions kept; take a new one.
    #[error("the snapshot is too old, the versions it needs were given up; take a new one")]
    SnapshotTooOld,
    /// No snapshot has this name.
    #[error("there is no snapshot named {0:?}; create it first")]
    SnapshotNotFound(String),
    /// A snapshot has this name already.
    #[error("a snapshot named {0:?} exists already; drop it first, or read at it")]
    SnapshotExists(String),
    /// A savepoint is of another transaction, or the transaction has gone back to an earlier one since.
    #[error("the savepoint does not exist any more; take a new one")]
    SavepointGone,
    /// A page of [`crate::pages`] was freed, or is another allocator's.
    #[error("page {page} was freed, or is of another allocator; the structure that names it is wrong")]
    PageNotFound {
        /// Its id.
        page: u64,
    },
    /// A page of [`crate::pages`] had as many shared guards as it can have for two seconds.
    #[error("page {page} has {max} shared guards, the most there can be; drop some first")]
    TooManyGuards {
        /// Its id.
        page: u64,
        /// Shared guards of one page at the same time.
        max: u64,
    },
    /// The database was opened read-only.
    #[error("the database is open read-only; open it for writing to change it")]
    ReadOnly,
    /// A setting is out of range or contradicts another.
    #[error("bad setting: {0}")]
    Config(String),
    /// Memory could not be had from the operating system.
    #[error("cannot get {bytes} bytes of memory for {what}: {source}{}", memory_advice(source))]
    Memory {
        /// How much was asked for.
        bytes: u64,
        /// For what.
        what: &'static str,
        /// What the operating system said.
        source: io::Error,
    },
}

/// What the operating system said of memory, where it is the process's own limit on addresses that refuses it.
#[derive(Debug, thiserror::Error)]
#[error(
    "{source}; the process may have {limit_bytes} bytes of addresses (`ulimit -v`), and needs about {needed_bytes} of them, \
     most of which never get any memory: raise that limit to {} KiB or more",
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
    process.map_or_else(|| " by others".to_owned(), |process| format!(" by process {process}"))
}

impl Error {
    /// Whether running the same transaction again may succeed.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Error::Conflict)
    }

    /// An I/O error with its place.
    pub(crate) fn io(operation: &'static str, file: &str, offset: Option<u64>, source: io::Error) -> Self {
        // A full file system is the one I/O failure that passes by itself, so it has a kind of its own.
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Error::Full { what: format!("{operation} on {file}{}: {source}", at(&offset)) }
            }
            // So does this one: the limit can be raised while the process runs.
            io::ErrorKind::FileTooLarge => Error::Full {
                what: format!(
                    "{operation} on {file}{}: {source}; files may not be longer by a limit of the process (`ulimit -f`) \
                     or of the file system, which is to be raised",
                    at(&offset)
                ),
            },
            _ => Error::Io { operation, file: file.to_owned(), offset, source },
        }
    }

    /// Damage found in `file`.
    pub(crate) fn corrupt(file: &str, page: Option<u64>, what: impl Into<String>) -> Self {
        Error::Corrupt { file: file.to_owned(), page, what: what.into() }
    }

    /// The same where what settings do not suffice for has a part of the budget only, which `part` says.
    pub(crate) fn of_part(self, part: impl std::fmt::Display) -> Self {
        match self {
            Error::Config(what) => Error::Config(format!("{part}: {what}")),
            other => other,
        }
    }
}

/// The result of every fallible call of the engine.
pub type Result<T, E = Error> = std::result::Result<T, E>;
