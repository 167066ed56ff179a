//! SQLite's result codes, as the errors that they are between the functions of this crate.

use std::ffi::c_int;

use libsqlite3_sys as ffi;

/// A result code other than `SQLITE_OK`, extended or not. Those of the system's VFS are passed on unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Code(pub c_int);

pub(crate) type Outcome<T = ()> = Result<T, Code>;

impl Code {
    /// What a call of SQLite's returned.
    pub fn check(code: c_int) -> Outcome {
        if code == ffi::SQLITE_OK { Ok(()) } else { Err(Code(code)) }
    }

    /// What is returned to SQLite.
    pub fn of(outcome: Outcome) -> c_int {
        outcome.map_or_else(|code| code.0, |()| ffi::SQLITE_OK)
    }
}
