//! Entry point of the loadable extension.
//!
//! SQLite derives the function's name from the letters of the file name, `libterrace_sqlite.so`.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use libsqlite3_sys as ffi;

use crate::api::Api;
use crate::vfs;

/// Registers the VFS with the SQLite that loads this library. The library stays loaded.
///
/// # Safety
/// Only SQLite may call it: `routines` is its table of functions, and `message` is null or room for
/// a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sqlite3_terracesqlite_init(
    _connection: *mut ffi::sqlite3,
    message: *mut *mut c_char,
    routines: *const ffi::sqlite3_api_routines,
) -> c_int {
    let loaded = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: the caller is SQLite.
        let api = unsafe { Api::of(routines) }?;
        vfs::register(api, false)
            .inspect_err(|error| {
                if !message.is_null() {
                    // SAFETY: it is room for a text that SQLite frees.
                    unsafe { *message = api.allocated(&error.to_string()) };
                }
            })
            .map_err(|error| error.code())
    }));
    match loaded {
        Ok(Ok(())) => ffi::SQLITE_OK_LOAD_PERMANENTLY,
        Ok(Err(code)) => code.0,
        Err(_) => ffi::SQLITE_ERROR,
    }
}
