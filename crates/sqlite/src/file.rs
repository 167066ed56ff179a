//! The methods of a file as SQLite calls them, over a [`Handle`].
//!
//! SQLite allocates the object of a file and passes its address to every method. Ours has the
//! method table and the handle. The system's file below has memory of its own, because it may be
//! used a moment longer (`below.rs`). A panic in a method becomes `SQLITE_IOERR`.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::{ptr, slice};

use libsqlite3_sys as ffi;

use crate::api::Api;
use crate::below::{Below, WalIndex};
use crate::code::{Code, Outcome};
use crate::queries::Roots;

/// A layer between SQLite and a system file; forwards calls by default.
pub(crate) trait Handle: Send {
    fn below(&self) -> &Below;

    fn close(&mut self) -> Outcome {
        self.below().close()
    }

    fn read(&mut self, buffer: &mut [u8], offset: i64) -> Outcome {
        self.below().read(buffer, offset)
    }

    fn write(&mut self, bytes: &[u8], offset: i64) -> Outcome {
        self.below().write(bytes, offset)
    }

    fn truncate(&mut self, bytes: i64) -> Outcome {
        self.below().truncate(bytes)
    }

    fn sync(&mut self, flags: c_int) -> Outcome {
        self.below().sync(flags)
    }

    fn lock(&mut self, level: c_int) -> Outcome {
        self.below().lock(level)
    }

    fn unlock(&mut self, level: c_int) -> Outcome {
        self.below().unlock(level)
    }

    /// Shared memory region 0 was mapped, or (`None`) will be unmapped.
    fn wal_index(&mut self, _index: Option<WalIndex>) {}

    fn shm_lock(&mut self, offset: c_int, count: c_int, flags: c_int) -> Outcome {
        self.below().shm_lock(offset, count, flags)
    }

    fn shm_barrier(&mut self) {
        self.below().shm_barrier();
    }

    fn pragma(&mut self, _name: &str, _argument: Option<&str>) -> Option<String> {
        None
    }

    fn wants_statements(&self) -> bool {
        false
    }

    /// Whether the tables and indexes of this text are known.
    fn knows_statement(&self, _text: &str) -> bool {
        false
    }

    fn statement_begins(&mut self, _statement: usize, _text: &str, _roots: Roots) {}

    fn statement_ends(&mut self, _statement: usize) {}
}

/// The object of a file in SQLite's memory.
#[repr(C)]
pub(crate) struct File {
    methods: *const ffi::sqlite3_io_methods,
    handle: *mut Opened,
}

struct Opened {
    handle: Box<dyn Handle>,
    api: &'static Api,
}

impl File {
    /// Fills in the object of an open file.
    ///
    /// # Safety
    /// `file` has room for a [`File`].
    pub unsafe fn put(file: *mut ffi::sqlite3_file, api: &'static Api, handle: Box<dyn Handle>) {
        let methods = if handle.below().version() >= 2 { &METHODS } else { &METHODS_WITHOUT_SHARED_MEMORY };
        let handle = Box::into_raw(Box::new(Opened { handle, api }));
        // SAFETY: the caller guarantees the room.
        unsafe { file.cast::<File>().write(File { methods, handle }) };
    }

    /// The file control that passes a [`Call`]; SQLite's own numbers are below 100.
    pub const CALL: c_int = 0x7465_7272;

    /// Whether `file` is one of ours.
    ///
    /// # Safety
    /// `file` is null or the object of a file in SQLite.
    pub unsafe fn is_ours(file: *mut ffi::sqlite3_file) -> bool {
        if file.is_null() {
            return false;
        }
        // SAFETY: guaranteed by the caller. Only objects from `put` have one of our tables.
        let methods = unsafe { (*file).pMethods };
        ptr::eq(methods, &METHODS) || ptr::eq(methods, &METHODS_WITHOUT_SHARED_MEMORY)
    }
}

/// A closure to run on a file's handle, passed by a file control.
///
/// So SQLite allows no other call on the file meanwhile, even from connections with a shared cache.
pub(crate) type Call<'a> = &'a mut dyn FnMut(&mut dyn Handle, &'static Api);

/// Methods of version 2. Version 3 has mapped reads, which would bypass the cache.
static METHODS: ffi::sqlite3_io_methods = methods(2);
static METHODS_WITHOUT_SHARED_MEMORY: ffi::sqlite3_io_methods = methods(1);

const fn methods(version: c_int) -> ffi::sqlite3_io_methods {
    ffi::sqlite3_io_methods {
        iVersion: version,
        xClose: Some(close),
        xRead: Some(read),
        xWrite: Some(write),
        xTruncate: Some(truncate),
        xSync: Some(sync),
        xFileSize: Some(size),
        xLock: Some(lock),
        xUnlock: Some(unlock),
        xCheckReservedLock: Some(check_reserved_lock),
        xFileControl: Some(control),
        xSectorSize: Some(sector_bytes),
        xDeviceCharacteristics: Some(characteristics),
        xShmMap: Some(shm_map),
        xShmLock: Some(shm_lock),
        xShmBarrier: Some(shm_barrier),
        xShmUnmap: Some(shm_unmap),
        xFetch: None,
        xUnfetch: None,
    }
}

/// Runs `act` on the handle of `file`.
///
/// # Safety
/// [`File::put`] made `file`, and SQLite makes no other call on it meanwhile.
unsafe fn with<T>(file: *mut ffi::sqlite3_file, panicked: T, act: impl FnOnce(&mut Opened) -> T) -> T {
    // SAFETY: guaranteed by the caller.
    let opened = unsafe { &mut *(*file.cast::<File>()).handle };
    catch_unwind(AssertUnwindSafe(|| act(opened))).unwrap_or(panicked)
}

/// Runs `act` on the handle of `file`; returns its result code.
///
/// # Safety
/// That of [`with`].
unsafe fn attempt(file: *mut ffi::sqlite3_file, act: impl FnOnce(&mut dyn Handle) -> Outcome) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { with(file, ffi::SQLITE_IOERR, |opened| Code::of(act(opened.handle.as_mut()))) }
}

// Safety of all functions below: SQLite calls them with an open file, one call at a time. Buffers
// and out-pointers have the lengths that its documentation gives.

unsafe extern "C" fn close(file: *mut ffi::sqlite3_file) -> c_int {
    // SAFETY: see above.
    let code = unsafe { attempt(file, |handle| handle.close()) };
    // SAFETY: see above; `put` made the box, and SQLite does not use a closed file.
    unsafe {
        let opened = Box::from_raw((*file.cast::<File>()).handle);
        (*file).pMethods = ptr::null();
        if catch_unwind(AssertUnwindSafe(|| drop(opened))).is_err() {
            return ffi::SQLITE_IOERR_CLOSE;
        }
    }
    code
}

unsafe extern "C" fn read(file: *mut ffi::sqlite3_file, to: *mut c_void, bytes: c_int, offset: i64) -> c_int {
    let Ok(bytes) = usize::try_from(bytes) else { return ffi::SQLITE_MISUSE };
    // SAFETY: see above.
    let buffer = unsafe { slice::from_raw_parts_mut(to.cast::<u8>(), bytes) };
    // SAFETY: see above.
    unsafe { attempt(file, |handle| handle.read(buffer, offset)) }
}

unsafe extern "C" fn write(
    file: *mut ffi::sqlite3_file,
    from: *const c_void,
    bytes: c_int,
    offset: i64,
) -> c_int {
    let Ok(bytes) = usize::try_from(bytes) else { return ffi::SQLITE_MISUSE };
    // SAFETY: see above.
    let bytes = unsafe { slice::from_raw_parts(from.cast::<u8>(), bytes) };
    // SAFETY: see above.
    unsafe { attempt(file, |handle| handle.write(bytes, offset)) }
}

unsafe extern "C" fn truncate(file: *mut ffi::sqlite3_file, bytes: i64) -> c_int {
    // SAFETY: see above.
    unsafe { attempt(file, |handle| handle.truncate(bytes)) }
}

unsafe extern "C" fn sync(file: *mut ffi::sqlite3_file, flags: c_int) -> c_int {
    // SAFETY: see above.
    unsafe { attempt(file, |handle| handle.sync(flags)) }
}

unsafe extern "C" fn size(file: *mut ffi::sqlite3_file, to: *mut i64) -> c_int {
    // SAFETY: see above.
    unsafe { attempt(file, |handle| handle.below().size().map(|bytes| *to = bytes)) }
}

unsafe extern "C" fn lock(file: *mut ffi::sqlite3_file, level: c_int) -> c_int {
    // SAFETY: see above.
    unsafe { attempt(file, |handle| handle.lock(level)) }
}

unsafe extern "C" fn unlock(file: *mut ffi::sqlite3_file, level: c_int) -> c_int {
    // SAFETY: see above.
    unsafe { attempt(file, |handle| handle.unlock(level)) }
}

unsafe extern "C" fn check_reserved_lock(file: *mut ffi::sqlite3_file, to: *mut c_int) -> c_int {
    // SAFETY: see above.
    unsafe {
        attempt(file, |handle| {
            handle.below().check_reserved_lock().map(|reserved| *to = c_int::from(reserved))
        })
    }
}

unsafe extern "C" fn sector_bytes(file: *mut ffi::sqlite3_file) -> c_int {
    // SAFETY: see above.
    unsafe { with(file, 0, |opened| opened.handle.below().sector_bytes()) }
}

unsafe extern "C" fn characteristics(file: *mut ffi::sqlite3_file) -> c_int {
    // Hides batch writes on F2FS: their rollback does not say where they were.
    const HIDDEN: c_int = ffi::SQLITE_IOCAP_BATCH_ATOMIC;
    // SAFETY: see above.
    unsafe { with(file, 0, |opened| opened.handle.below().characteristics() & !HIDDEN) }
}

unsafe extern "C" fn control(file: *mut ffi::sqlite3_file, operation: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: see above.
    unsafe {
        with(file, ffi::SQLITE_IOERR, |opened| match operation {
            ffi::SQLITE_FCNTL_VFSNAME => {
                let lower = opened.handle.below().control(operation, argument);
                Code::of(lower.and_then(|()| prefix_name(opened.api, argument.cast())))
            }
            ffi::SQLITE_FCNTL_PRAGMA => match pragma(opened, argument.cast()) {
                true => ffi::SQLITE_OK,
                false => Code::of(opened.handle.below().control(operation, argument)),
            },
            ffi::SQLITE_FCNTL_MMAP_SIZE => ffi::SQLITE_NOTFOUND,
            File::CALL => {
                let call = argument.cast::<Call<'_>>();
                (*call)(opened.handle.as_mut(), opened.api);
                ffi::SQLITE_OK
            }
            _ => Code::of(opened.handle.below().control(operation, argument)),
        })
    }
}

/// Puts our VFS name before the lower one, as stacked VFSs do.
///
/// # Safety
/// `name` is the pointer that SQLite passed; its text is null or SQLite's to free.
unsafe fn prefix_name(api: &Api, name: *mut *mut c_char) -> Outcome {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let lower = match (*name).is_null() {
            true => String::new(),
            false => format!("/{}", CStr::from_ptr(*name).to_string_lossy()),
        };
        api.replace(name, &format!("terrace{lower}"))
    }
}

/// Answers a pragma, if it is ours.
///
/// # Safety
/// `texts` is SQLite's array: room for the answer, the name, and the argument or null.
unsafe fn pragma(opened: &mut Opened, texts: *mut *mut c_char) -> bool {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let name = CStr::from_ptr(*texts.add(1)).to_string_lossy();
        let argument = *texts.add(2);
        let argument = (!argument.is_null()).then(|| CStr::from_ptr(argument).to_string_lossy());
        let Some(answer) = opened.handle.pragma(&name, argument.as_deref()) else { return false };
        *texts = opened.api.allocated(&answer);
        true
    }
}

unsafe extern "C" fn shm_map(
    file: *mut ffi::sqlite3_file,
    region: c_int,
    bytes: c_int,
    extend: c_int,
    to: *mut *mut c_void,
) -> c_int {
    // SAFETY: see above; region 0 stays mapped until `shm_unmap`, which drops the index.
    unsafe {
        attempt(file, |handle| {
            *to = ptr::null_mut();
            *to = handle.below().shm_map(region, bytes, extend)?;
            if region == 0 && bytes >= WalIndex::BYTES_MIN {
                handle.wal_index(WalIndex::at(*to));
            }
            Ok(())
        })
    }
}

unsafe extern "C" fn shm_lock(
    file: *mut ffi::sqlite3_file,
    offset: c_int,
    count: c_int,
    flags: c_int,
) -> c_int {
    // SAFETY: see above.
    unsafe { attempt(file, |handle| handle.shm_lock(offset, count, flags)) }
}

unsafe extern "C" fn shm_barrier(file: *mut ffi::sqlite3_file) {
    // SAFETY: see above.
    unsafe { with(file, (), |opened| opened.handle.shm_barrier()) }
}

unsafe extern "C" fn shm_unmap(file: *mut ffi::sqlite3_file, delete: c_int) -> c_int {
    // SAFETY: see above.
    unsafe {
        attempt(file, |handle| {
            handle.wal_index(None);
            handle.below().shm_unmap(delete)
        })
    }
}
