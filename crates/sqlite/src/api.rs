//! The functions of SQLite that are called here, and where they come from.
//!
//! A loaded extension must use the SQLite that loaded it, which hands over a table of its functions; a program in Rust is
//! linked with one. So no function of SQLite is called by name, except in [`Api::linked`].
//!
//! The table, `sqlite3_api_routines` of `sqlite3ext.h`, is part of SQLite's stable interface: functions are only ever added at
//! its end. `libsqlite3-sys` declares it only together with a feature that takes the linked functions away from everybody else
//! in the same build, so the places of the seven that are needed are given here by number.

#![allow(unsafe_code)]

use std::ffi::{CString, c_char, c_int, c_void};
use std::mem;

use libsqlite3_sys as ffi;

use crate::code::{Code, Outcome};

/// The oldest version that will do, as SQLite numbers them: from 3.31 on the parameters of a URI are known for the journal's
/// and the log's name, too.
const VERSION_MIN: c_int = 3_031_000;

/// Places in `sqlite3_api_routines`, counted from 0.
const FREE: usize = 58;
const LIBVERSION_NUMBER: usize = 67;
const MPRINTF: usize = 69;
const VFS_FIND: usize = 141;
const VFS_REGISTER: usize = 142;
const LOG: usize = 167;
const URI_PARAMETER: usize = 189;

type LibversionNumber = unsafe extern "C" fn() -> c_int;
type Free = unsafe extern "C" fn(*mut c_void);
type Mprintf = unsafe extern "C" fn(*const c_char, ...) -> *mut c_char;
type VfsFind = unsafe extern "C" fn(*const c_char) -> *mut ffi::sqlite3_vfs;
type VfsRegister = unsafe extern "C" fn(*mut ffi::sqlite3_vfs, c_int) -> c_int;
type Log = unsafe extern "C" fn(c_int, *const c_char, ...);
type UriParameter = unsafe extern "C" fn(*const c_char, *const c_char) -> *const c_char;

/// Functions of one SQLite.
#[derive(Clone, Copy)]
pub(crate) struct Api {
    libversion_number: LibversionNumber,
    free: Free,
    mprintf: Mprintf,
    pub vfs_find: VfsFind,
    pub vfs_register: VfsRegister,
    log: Log,
    pub uri_parameter: UriParameter,
}

impl Api {
    /// Those of the SQLite that this program is linked with.
    pub fn linked() -> Api {
        Api {
            libversion_number: ffi::sqlite3_libversion_number,
            free: ffi::sqlite3_free,
            mprintf: ffi::sqlite3_mprintf,
            vfs_find: ffi::sqlite3_vfs_find,
            vfs_register: ffi::sqlite3_vfs_register,
            log: ffi::sqlite3_log,
            uri_parameter: ffi::sqlite3_uri_parameter,
        }
    }

    /// Those of the SQLite that loads an extension.
    ///
    /// # Errors
    /// `SQLITE_MISUSE` when it is too old.
    ///
    /// # Safety
    /// `routines` is what SQLite gave to the extension's entry point.
    pub unsafe fn of(routines: *const ffi::sqlite3_api_routines) -> Outcome<Api> {
        let slots = routines.cast::<Option<unsafe extern "C" fn()>>();
        // SAFETY: every SQLite that can load extensions has this member: the table was that long when it was introduced. All
        // members are pointers of one size, and none of those asked for here is ever null.
        let version: LibversionNumber = unsafe { mem::transmute(*slots.add(LIBVERSION_NUMBER)) };
        // SAFETY: it takes nothing.
        if unsafe { version() } < VERSION_MIN {
            return Err(Code(ffi::SQLITE_MISUSE));
        }
        // SAFETY: as above; the version says that the table is long enough, and the types are those of `sqlite3ext.h`.
        unsafe {
            Ok(Api {
                libversion_number: version,
                free: mem::transmute::<Option<unsafe extern "C" fn()>, Free>(*slots.add(FREE)),
                mprintf: mem::transmute::<Option<unsafe extern "C" fn()>, Mprintf>(*slots.add(MPRINTF)),
                vfs_find: mem::transmute::<Option<unsafe extern "C" fn()>, VfsFind>(*slots.add(VFS_FIND)),
                vfs_register: mem::transmute::<Option<unsafe extern "C" fn()>, VfsRegister>(
                    *slots.add(VFS_REGISTER),
                ),
                log: mem::transmute::<Option<unsafe extern "C" fn()>, Log>(*slots.add(LOG)),
                uri_parameter: mem::transmute::<Option<unsafe extern "C" fn()>, UriParameter>(
                    *slots.add(URI_PARAMETER),
                ),
            })
        }
    }

    /// Whether this SQLite is new enough.
    pub fn check_version(&self) -> Outcome {
        // SAFETY: it takes nothing.
        let version = unsafe { (self.libversion_number)() };
        if version < VERSION_MIN { Err(Code(ffi::SQLITE_MISUSE)) } else { Ok(()) }
    }

    /// Writes a line to SQLite's error log, which the application may have set up.
    pub fn warn(&self, text: &str) {
        let text = CString::new(text.replace('\0', " ")).expect("no zero byte is left");
        // SAFETY: both are C strings, and the format takes one.
        unsafe { (self.log)(ffi::SQLITE_WARNING, c"%s".as_ptr(), text.as_ptr()) }
    }

    /// Puts a copy of `text` where SQLite has a text of its own or null, and frees that.
    ///
    /// # Safety
    /// `place` is such a place, and its text is SQLite's to free.
    pub unsafe fn replace(&self, place: *mut *mut c_char, text: &str) -> Outcome {
        // SAFETY: by the caller's word; freeing null does nothing.
        unsafe {
            (self.free)((*place).cast());
            *place = self.allocated(text);
            if (*place).is_null() { Err(Code(ffi::SQLITE_NOMEM)) } else { Ok(()) }
        }
    }

    /// A copy of `text` that SQLite frees; null if there is no memory.
    pub fn allocated(&self, text: &str) -> *mut c_char {
        let text = CString::new(text.replace('\0', " ")).expect("no zero byte is left");
        // SAFETY: both are C strings, and the format takes one.
        unsafe { (self.mprintf)(c"%s".as_ptr(), text.as_ptr().cast::<c_void>()) }
    }
}
