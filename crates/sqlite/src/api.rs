//! The SQLite functions that this crate calls.
//!
//! An extension must use the SQLite that loads it, which passes a table of functions; a Rust
//! program links one. So only [`Api::linked`] calls functions by name.
//!
//! The table is `sqlite3_api_routines` of `sqlite3ext.h`. It is stable: functions are only added at
//! its end. `libsqlite3-sys` declares it only with a feature that removes the linked functions from
//! the whole build, so members are accessed by index.

#![allow(unsafe_code)]

use std::ffi::{CString, c_char, c_int, c_uchar, c_uint, c_void};
use std::mem;

use libsqlite3_sys as ffi;

use crate::code::{Code, Outcome};

/// Minimum version: since 3.31 journal and log names have URI parameters too.
const VERSION_MIN: c_int = 3_031_000;

/// Indexes in `sqlite3_api_routines`.
const COLUMN_INT: usize = 28;
const COLUMN_TEXT: usize = 36;
const DB_HANDLE: usize = 49;
const FINALIZE: usize = 57;
const FREE: usize = 58;
const LIBVERSION_NUMBER: usize = 67;
const MPRINTF: usize = 69;
const STEP: usize = 94;
const PREPARE_V2: usize = 116;
const FILE_CONTROL: usize = 127;
const VFS_FIND: usize = 141;
const VFS_REGISTER: usize = 142;
const SQL: usize = 153;
const LOG: usize = 167;
const URI_PARAMETER: usize = 189;
const AUTO_EXTENSION: usize = 192;
const TRACE_V2: usize = 214;
const URI_KEY: usize = 245;

type LibversionNumber = unsafe extern "C" fn() -> c_int;
type Free = unsafe extern "C" fn(*mut c_void);
type Mprintf = unsafe extern "C" fn(*const c_char, ...) -> *mut c_char;
type VfsFind = unsafe extern "C" fn(*const c_char) -> *mut ffi::sqlite3_vfs;
type VfsRegister = unsafe extern "C" fn(*mut ffi::sqlite3_vfs, c_int) -> c_int;
type Log = unsafe extern "C" fn(c_int, *const c_char, ...);
type UriParameter = unsafe extern "C" fn(*const c_char, *const c_char) -> *const c_char;
type UriKey = unsafe extern "C" fn(*const c_char, c_int) -> *const c_char;
type AutoExtension = unsafe extern "C" fn(Option<Entry>) -> c_int;

/// Called for a new connection.
pub(crate) type Entry =
    unsafe extern "C" fn(*mut ffi::sqlite3, *mut *mut c_char, *const ffi::sqlite3_api_routines) -> c_int;

type FileControl = unsafe extern "C" fn(*mut ffi::sqlite3, *const c_char, c_int, *mut c_void) -> c_int;
type PrepareV2 = unsafe extern "C" fn(
    *mut ffi::sqlite3,
    *const c_char,
    c_int,
    *mut *mut ffi::sqlite3_stmt,
    *mut *const c_char,
) -> c_int;
type Step = unsafe extern "C" fn(*mut ffi::sqlite3_stmt) -> c_int;
type Finalize = unsafe extern "C" fn(*mut ffi::sqlite3_stmt) -> c_int;
type DbHandle = unsafe extern "C" fn(*mut ffi::sqlite3_stmt) -> *mut ffi::sqlite3;
type Sql = unsafe extern "C" fn(*mut ffi::sqlite3_stmt) -> *const c_char;
type ColumnInt = unsafe extern "C" fn(*mut ffi::sqlite3_stmt, c_int) -> c_int;
type ColumnText = unsafe extern "C" fn(*mut ffi::sqlite3_stmt, c_int) -> *const c_uchar;

/// Called when a statement begins or ends.
pub(crate) type Traced = unsafe extern "C" fn(c_uint, *mut c_void, *mut c_void, *mut c_void) -> c_int;
type TraceV2 = unsafe extern "C" fn(*mut ffi::sqlite3, c_uint, Option<Traced>, *mut c_void) -> c_int;

#[derive(Clone, Copy)]
pub(crate) struct Api {
    libversion_number: LibversionNumber,
    free: Free,
    mprintf: Mprintf,
    pub vfs_find: VfsFind,
    pub vfs_register: VfsRegister,
    log: Log,
    pub uri_parameter: UriParameter,
    pub uri_key: UriKey,
    pub auto_extension: AutoExtension,
    /// Null in builds of SQLite without it.
    pub trace_v2: Option<TraceV2>,
    pub file_control: FileControl,
    pub prepare_v2: PrepareV2,
    pub step: Step,
    pub finalize: Finalize,
    pub db_handle: DbHandle,
    pub sql: Sql,
    pub column_int: ColumnInt,
    pub column_text: ColumnText,
}

impl Api {
    /// Functions of the linked SQLite.
    pub fn linked() -> Api {
        Api {
            libversion_number: ffi::sqlite3_libversion_number,
            free: ffi::sqlite3_free,
            mprintf: ffi::sqlite3_mprintf,
            vfs_find: ffi::sqlite3_vfs_find,
            vfs_register: ffi::sqlite3_vfs_register,
            log: ffi::sqlite3_log,
            uri_parameter: ffi::sqlite3_uri_parameter,
            uri_key: ffi::sqlite3_uri_key,
            auto_extension: ffi::sqlite3_auto_extension,
            trace_v2: Some(ffi::sqlite3_trace_v2),
            file_control: ffi::sqlite3_file_control,
            prepare_v2: ffi::sqlite3_prepare_v2,
            step: ffi::sqlite3_step,
            finalize: ffi::sqlite3_finalize,
            db_handle: ffi::sqlite3_db_handle,
            sql: ffi::sqlite3_sql,
            column_int: ffi::sqlite3_column_int,
            column_text: ffi::sqlite3_column_text,
        }
    }

    /// Functions of the SQLite that loads the extension.
    ///
    /// # Errors
    /// `SQLITE_MISUSE` if it is too old.
    ///
    /// # Safety
    /// SQLite passed `routines` to the extension's entry point.
    pub unsafe fn of(routines: *const ffi::sqlite3_api_routines) -> Outcome<Api> {
        let slots = routines.cast::<Option<unsafe extern "C" fn()>>();
        // SAFETY: all SQLites that load extensions have this member, because the first table had
        // it. All members are pointers of one size, and and none used here is null except
        // `trace_v2`, an `Option`.
        let version: LibversionNumber = unsafe { mem::transmute(*slots.add(LIBVERSION_NUMBER)) };
        // SAFETY: it has no arguments.
        if unsafe { version() } < VERSION_MIN {
            return Err(Code(ffi::SQLITE_MISUSE));
        }
        /// The member at an index, as its type.
        macro_rules! at {
            ($target:ident, $type:ty) => {
                mem::transmute::<Option<unsafe extern "C" fn()>, $type>(*slots.add($target))
            };
        }
        // SAFETY: as above; a table of this version is long enough, and the types are those of
        // `sqlite3ext.h`.
        unsafe {
            Ok(Api {
                libversion_number: version,
                free: at!(FREE, Free),
                mprintf: at!(MPRINTF, Mprintf),
                vfs_find: at!(VFS_FIND, VfsFind),
                vfs_register: at!(VFS_REGISTER, VfsRegister),
                log: at!(LOG, Log),
                uri_parameter: at!(URI_PARAMETER, UriParameter),
                uri_key: at!(URI_KEY, UriKey),
                auto_extension: at!(AUTO_EXTENSION, AutoExtension),
                trace_v2: at!(TRACE_V2, Option<TraceV2>),
                file_control: at!(FILE_CONTROL, FileControl),
                prepare_v2: at!(PREPARE_V2, PrepareV2),
                step: at!(STEP, Step),
                finalize: at!(FINALIZE, Finalize),
                db_handle: at!(DB_HANDLE, DbHandle),
                sql: at!(SQL, Sql),
                column_int: at!(COLUMN_INT, ColumnInt),
                column_text: at!(COLUMN_TEXT, ColumnText),
            })
        }
    }

    /// Whether SQLite is new enough.
    pub fn check_version(&self) -> Outcome {
        // SAFETY: it has no arguments.
        let version = unsafe { (self.libversion_number)() };
        if version < VERSION_MIN { Err(Code(ffi::SQLITE_MISUSE)) } else { Ok(()) }
    }

    pub fn warn(&self, text: &str) {
        let text = CString::new(text.replace('\0', " ")).expect("no zero byte is left");
        // SAFETY: both are C strings, and the format takes one.
        unsafe { (self.log)(ffi::SQLITE_WARNING, c"%s".as_ptr(), text.as_ptr()) }
    }

    /// Replaces a text of SQLite's, or null, with a copy of `text`.
    ///
    /// # Safety
    /// `target` points to null or to a text that SQLite frees.
    pub unsafe fn replace(&self, target: *mut *mut c_char, text: &str) -> Outcome {
        // SAFETY: guaranteed by the caller; freeing null does nothing.
        unsafe {
            (self.free)((*target).cast());
            *target = self.allocated(text);
            if (*target).is_null() { Err(Code(ffi::SQLITE_NOMEM)) } else { Ok(()) }
        }
    }

    /// A copy of `text` that SQLite frees; null without memory.
    pub fn allocated(&self, text: &str) -> *mut c_char {
        let text = CString::new(text.replace('\0', " ")).expect("no zero byte is left");
        // SAFETY: both are C strings, and the format takes one.
        unsafe { (self.mprintf)(c"%s".as_ptr(), text.as_ptr().cast::<c_void>()) }
    }
}
