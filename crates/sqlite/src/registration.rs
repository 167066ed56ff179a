//! The name of the VFS, and why SQLite may refuse it.

use crate::code::Code;

/// Name of the VFS.
pub const NAME: &str = "terrace";

/// Reason why the VFS could not be registered.
///
/// ```
/// assert!(terrace_sqlite::RegisterError::Version.to_string().contains("3.31"));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// SQLite is older than 3.31.
    #[error("SQLite 3.31 or later is required")]
    Version,
    /// SQLite has no VFS to wrap.
    #[error("this SQLite has no default VFS")]
    NoSystem,
    /// SQLite refused, with this result code.
    #[error("SQLite refused the VFS: error {0}")]
    Refused(i32),
}

impl RegisterError {
    pub(crate) fn code(&self) -> Code {
        match self {
            RegisterError::Version => Code(libsqlite3_sys::SQLITE_MISUSE),
            RegisterError::NoSystem => Code(libsqlite3_sys::SQLITE_ERROR),
            RegisterError::Refused(code) => Code(*code),
        }
    }
}
