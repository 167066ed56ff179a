//! The VFS as SQLite calls it.
//!
//! It opens database files with our parameters; everything else goes to the system's VFS. It is
//! registered for the life of the process, so its memory is never freed.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::ptr;
use std::sync::Arc;

use libsqlite3_sys as ffi;

use crate::api::Api;
use crate::below::Below;
use crate::code::{Code, Outcome};
use crate::connection::Connection;
use crate::database::Database;
use crate::file::{File, Handle};
use crate::gates;
use crate::log_file::Log;
use crate::options::{self, Options};
use crate::registration::{NAME, RegisterError};
use crate::statements;
use crate::storage::Storage;

/// Target of our VFS's `pAppData`.
struct Ours {
    api: Api,
    system: *mut ffi::sqlite3_vfs,
}

/// Registers the VFS with one SQLite, unless the name is taken.
pub(crate) fn register(api: Api, make_default: bool) -> Result<(), RegisterError> {
    api.check_version().map_err(|_| RegisterError::Version)?;
    let name = CString::new(NAME).expect("a name without zero bytes");
    // SAFETY: the name is a C string; null asks for the default.
    let (there, system) = unsafe { ((api.vfs_find)(name.as_ptr()), (api.vfs_find)(ptr::null())) };
    if !there.is_null() {
        return Ok(());
    }
    if system.is_null() {
        return Err(RegisterError::NoSystem);
    }
    // SAFETY: a registered VFS stays valid.
    let system_ref = unsafe { &*system };
    let ours = Box::leak(Box::new(Ours { api, system }));
    let vfs = ffi::sqlite3_vfs {
        iVersion: system_ref.iVersion.min(2),
        szOsFile: system_ref.szOsFile.max(size_of::<File>() as c_int),
        mxPathname: system_ref.mxPathname,
        pNext: ptr::null_mut(),
        zName: name.into_raw(),
        pAppData: ptr::from_mut(ours).cast(),
        xOpen: Some(open),
        xDelete: Some(delete),
        xAccess: Some(access),
        xFullPathname: Some(full_pathname),
        xDlOpen: Some(dl_open),
        xDlError: Some(dl_error),
        xDlSym: Some(dl_sym),
        xDlClose: Some(dl_close),
        xRandomness: Some(randomness),
        xSleep: Some(sleep),
        xCurrentTime: Some(current_time),
        xGetLastError: Some(get_last_error),
        xCurrentTimeInt64: Some(current_time_int64),
        xSetSystemCall: None,
        xGetSystemCall: None,
        xNextSystemCall: None,
    };
    // SAFETY: the VFS is complete and never freed.
    let code = unsafe { (api.vfs_register)(Box::leak(Box::new(vfs)), c_int::from(make_default)) };
    Code::check(code).map_err(|code| RegisterError::Refused(code.0))?;
    // The policies work without statements.
    if let Err(code) = statements::watch_connections(&api) {
        api.warn(&format!("terrace: policies get no statements: SQLite error {}", code.0));
    }
    Ok(())
}

/// The data of our VFS.
///
/// # Safety
/// [`register`] made `vfs`.
unsafe fn ours(vfs: *mut ffi::sqlite3_vfs) -> &'static Ours {
    // SAFETY: guaranteed by the caller; it is never freed.
    unsafe { &*(*vfs).pAppData.cast::<Ours>() }
}

// Safety of all functions below: SQLite calls them with our VFS, and with arguments as documented.

unsafe extern "C" fn open(
    vfs: *mut ffi::sqlite3_vfs,
    name: ffi::sqlite3_filename,
    file: *mut ffi::sqlite3_file,
    flags: c_int,
    flags_out: *mut c_int,
) -> c_int {
    // SAFETY: see above. SQLite does not close a file without methods.
    let ours = unsafe {
        (*file).pMethods = ptr::null();
        ours(vfs)
    };
    let opened = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: see above.
        unsafe { open_handle(ours, name, flags) }
    }));
    match opened {
        Ok(Ok(Some((handle, flags)))) => {
            // SAFETY: `szOsFile` has room for the file; `flags_out` may be null.
            unsafe {
                File::put(file, &ours.api, handle);
                if !flags_out.is_null() {
                    *flags_out = flags;
                }
            }
            ffi::SQLITE_OK
        }
        // SAFETY: see above; `szOsFile` also has room for the system's file.
        Ok(Ok(None)) => unsafe {
            (*ours.system).xOpen.expect("a VFS opens")(ours.system, name, file, flags, flags_out)
        },
        Ok(Err(code)) => code.0,
        Err(_) => ffi::SQLITE_CANTOPEN,
    }
}

/// Opens a file with our parameters; `None` leaves it to the system's VFS.
///
/// # Safety
/// The arguments are those of `xOpen`.
unsafe fn open_handle(
    ours: &Ours,
    name: *const c_char,
    flags: c_int,
) -> Outcome<Option<(Box<dyn Handle>, c_int)>> {
    const WITH_PARAMETERS: c_int =
        ffi::SQLITE_OPEN_MAIN_DB | ffi::SQLITE_OPEN_MAIN_JOURNAL | ffi::SQLITE_OPEN_WAL;
    if name.is_null() || flags & WITH_PARAMETERS == 0 {
        return Ok(None);
    }
    let parameter = |key: &str| {
        let key = CString::new(key).expect("a key without zero bytes");
        // SAFETY: SQLite passed this name to `xOpen`, for a kind of file that has parameters.
        let value = unsafe { (ours.api.uri_parameter)(name, key.as_ptr()) };
        // SAFETY: it is null or a C string.
        (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) }.to_string_lossy().into_owned())
    };
    // SAFETY: as above.
    let names = unsafe { names(&ours.api, name) };
    let options = options::check_names(names).and_then(|()| Options::parse(parameter));
    let options = options.and_then(|options| {
        options.cache.as_ref().map_or(Ok(()), Storage::check)?;
        Ok(options)
    });
    let options = options.map_err(|why| {
        ours.api.warn(&format!("terrace: {why}"));
        Code(ffi::SQLITE_CANTOPEN)
    })?;
    if options == Options::default() {
        return Ok(None);
    }
    // SAFETY: it is a C string.
    let path = PathBuf::from(std::ffi::OsStr::from_bytes(unsafe { CStr::from_ptr(name) }.to_bytes()));
    let is_database = flags & ffi::SQLITE_OPEN_MAIN_DB != 0;
    let disk = options.limits.map(|limits| gates::of(&path, limits));
    let is_log = flags & ffi::SQLITE_OPEN_WAL != 0;
    if !is_database && disk.is_none() && !(is_log && options.cache.is_some()) {
        return Ok(None);
    }
    // SAFETY: the system's VFS is registered, and the name is SQLite's.
    let (below, flags) = unsafe { Below::open(ours.system, name, flags, disk.clone()) }?;
    if is_log {
        let pages = Database::log_of(&gates::database_of(&path), &options);
        return Ok(Some((Box::new(Log::new(below, pages)), flags)));
    }
    if !is_database {
        return Ok(Some((Box::new(Beside(below)), flags)));
    }
    let warn = {
        let api = ours.api;
        Arc::new(move |text: &str| api.warn(&format!("terrace: {text}")))
    };
    let database = Database::of(&path, &options, disk, warn).map_err(|why| {
        ours.api.warn(&format!("terrace: {why}"));
        Code(ffi::SQLITE_CANTOPEN)
    })?;
    Ok(Some((Box::new(Connection::new(below, database)), flags)))
}

/// The names of a file's parameters.
///
/// # Safety
/// SQLite passed `file` to `xOpen`, for a kind of file that has parameters.
unsafe fn names(api: &Api, file: *const c_char) -> impl Iterator<Item = String> + use<'_> {
    (0..).map_while(move |number| {
        // SAFETY: guaranteed by the caller; after the last name it returns null.
        let name = unsafe { (api.uri_key)(file, number) };
        // SAFETY: it is null or a C string.
        (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned())
    })
}

/// A journal on a slow disk.
struct Beside(Below);

impl Handle for Beside {
    fn below(&self) -> &Below {
        &self.0
    }
}

/// Defines a VFS function that calls the system's.
macro_rules! delegate {
    ($name:ident, $member:ident, ($($argument:ident: $type:ty),*) -> $result:ty, $absent:expr) => {
        unsafe extern "C" fn $name(vfs: *mut ffi::sqlite3_vfs $(, $argument: $type)*) -> $result {
            // SAFETY: see above.
            let system = unsafe { ours(vfs) }.system;
            // SAFETY: see above; the system's VFS accepts the same arguments.
            match unsafe { (*system).$member } {
                // SAFETY: as above.
                Some(function) => unsafe { function(system $(, $argument)*) },
                None => $absent,
            }
        }
    };
}

type Symbol = Option<unsafe extern "C" fn(*mut ffi::sqlite3_vfs, *mut c_void, *const c_char)>;

delegate!(delete, xDelete, (name: *const c_char, sync: c_int) -> c_int, ffi::SQLITE_IOERR_DELETE);
delegate!(access, xAccess, (name: *const c_char, flags: c_int, to: *mut c_int) -> c_int, ffi::SQLITE_IOERR_ACCESS);
delegate!(full_pathname, xFullPathname, (name: *const c_char, bytes: c_int, to: *mut c_char) -> c_int, ffi::SQLITE_CANTOPEN);
delegate!(dl_open, xDlOpen, (name: *const c_char) -> *mut c_void, ptr::null_mut());
delegate!(dl_error, xDlError, (bytes: c_int, to: *mut c_char) -> (), ());
delegate!(dl_sym, xDlSym, (library: *mut c_void, name: *const c_char) -> Symbol, None);
delegate!(dl_close, xDlClose, (library: *mut c_void) -> (), ());
delegate!(randomness, xRandomness, (bytes: c_int, to: *mut c_char) -> c_int, 0);
delegate!(sleep, xSleep, (microseconds: c_int) -> c_int, 0);
delegate!(current_time, xCurrentTime, (to: *mut f64) -> c_int, ffi::SQLITE_ERROR);
delegate!(get_last_error, xGetLastError, (bytes: c_int, to: *mut c_char) -> c_int, 0);
delegate!(current_time_int64, xCurrentTimeInt64, (to: *mut i64) -> c_int, ffi::SQLITE_ERROR);
