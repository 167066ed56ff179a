//! SQLite's result codes as errors.

use std::ffi::c_int;

use libsqlite3_sys as ffi;

/// A result code other than `SQLITE_OK`, possibly extended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Code(pub c_int);

pub(crate) type Outcome<T = ()> = Result<T, Code>;

impl Code {
    /// Converts what a call of SQLite returned.
    pub fn check(code: c_int) -> Outcome {
        if code == ffi::SQLITE_OK { Ok(()) } else { Err(Code(code)) }
    }

    /// Converts to what SQLite expects.
    pub fn of(outcome: Outcome) -> c_int {
        outcome.map_or_else(|code| code.0, |()| ffi::SQLITE_OK)
    }
}
