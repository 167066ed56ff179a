//! A file of the default VFS, below one of ours.
//!
//! SQLite makes the calls on a file one at a time, and a [`Below`] is used only within such a call.
//! `gates.rs` may slow transfers and syncs down.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void};
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use libsqlite3_sys as ffi;

use crate::code::{Code, Outcome};
use crate::gates::{Cause, SlowDisk};

pub(crate) struct Below {
    /// `szOsFile` bytes, as words to align like SQLite's allocator. Null methods mean closed.
    memory: NonNull<ffi::sqlite3_file>,
    words: usize,
    disk: Option<Arc<SlowDisk>>,
    is_database: bool,
}

// SAFETY: any thread may use a SQLite file, one at a time, which SQLite ensures (see above).
unsafe impl Send for Below {}
// SAFETY: as above; it is shared only to pass it through a cache to its device, within one call.
unsafe impl Sync for Below {}

impl fmt::Debug for Below {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Below").field("disk", &self.disk).finish_non_exhaustive()
    }
}

/// Calls a method that every file has.
macro_rules! call {
    ($file:expr, $method:ident $(, $argument:expr)*) => {{
        let file = $file.memory.as_ptr();
        // SAFETY: the file is open, so it has methods, and all versions have this one. The
        // arguments are SQLite's own, or point to valid memory of the given length.
        unsafe { ((*(*file).pMethods).$method.expect("a method of the first version"))(file $(, $argument)*) }
    }};
}

/// Calls a method of a later version, which the caller has checked.
macro_rules! call_later {
    ($file:expr, $method:ident $(, $argument:expr)*) => {{
        let file = $file.memory.as_ptr();
        // SAFETY: as above; the version has this method.
        match unsafe { (*(*file).pMethods).$method } {
            // SAFETY: as above.
            Some(method) => unsafe { method(file $(, $argument)*) },
            None => ffi::SQLITE_IOERR,
        }
    }};
}

impl Below {
    /// Opens a file; also returns the flags that apply.
    ///
    /// # Safety
    /// `vfs` is a registered VFS; SQLite passed `name` to `xOpen`.
    pub unsafe fn open(
        vfs: *mut ffi::sqlite3_vfs,
        name: *const c_char,
        flags: c_int,
        disk: Option<Arc<SlowDisk>>,
    ) -> Outcome<(Below, c_int)> {
        // SAFETY: the VFS is registered.
        let (bytes, open) = unsafe { ((*vfs).szOsFile, (*vfs).xOpen) };
        let words = usize::try_from(bytes).expect("the size of a file object").div_ceil(8);
        let memory = Box::into_raw(vec![0u64; words].into_boxed_slice()).cast::<ffi::sqlite3_file>();
        let memory = NonNull::new(memory).expect("a box is somewhere");
        let is_database = flags & ffi::SQLITE_OPEN_MAIN_DB != 0;
        let below = Below { memory, words, disk, is_database };
        let mut flags_out = flags;
        // SAFETY: the memory is zeroed and as long as the VFS asks; the name is SQLite's.
        let code = unsafe { open.expect("a VFS opens")(vfs, name, memory.as_ptr(), flags, &mut flags_out) };
        match Code::check(code) {
            Ok(()) => Ok((below, flags_out)),
            Err(code) => {
                // A failed open may leave methods; then the file must be closed.
                let _ = below.close();
                Err(code)
            }
        }
    }

    fn is_open(&self) -> bool {
        // SAFETY: the memory stays until the drop.
        !unsafe { (*self.memory.as_ptr()).pMethods }.is_null()
    }

    /// Closes the file. No other call may follow.
    pub fn close(&self) -> Outcome {
        if !self.is_open() {
            return Ok(());
        }
        let closed = Code::check(call!(self, xClose));
        // SAFETY: the memory stays until the drop.
        unsafe { (*self.memory.as_ptr()).pMethods = ptr::null() };
        closed
    }

    /// 2 and later have shared memory.
    pub fn version(&self) -> c_int {
        // SAFETY: the file is open.
        unsafe { (*(*self.memory.as_ptr()).pMethods).iVersion }
    }

    /// Fills `buffer`.
    ///
    /// Beyond the end it zeroes the rest and returns `SQLITE_IOERR_SHORT_READ`.
    pub fn read(&self, buffer: &mut [u8], offset: i64) -> Outcome {
        let bytes = length(buffer)?;
        let cause = if self.is_database { Cause::DatabaseRead } else { Cause::LogRead };
        self.slowly(cause, buffer.len(), || {
            Code::check(call!(self, xRead, buffer.as_mut_ptr().cast(), bytes, offset))
        })
    }

    pub fn write(&self, bytes: &[u8], offset: i64) -> Outcome {
        let count = length(bytes)?;
        let cause = if self.is_database { Cause::DatabaseWrite } else { Cause::LogWrite };
        self.slowly(cause, bytes.len(), || {
            Code::check(call!(self, xWrite, bytes.as_ptr().cast(), count, offset))
        })
    }

    pub fn truncate(&self, bytes: i64) -> Outcome {
        Code::check(call!(self, xTruncate, bytes))
    }

    pub fn sync(&self, flags: c_int) -> Outcome {
        self.slowly(Cause::Sync, 0, || Code::check(call!(self, xSync, flags)))
    }

    pub fn size(&self) -> Outcome<i64> {
        let mut bytes = 0;
        Code::check(call!(self, xFileSize, &mut bytes))?;
        Ok(bytes)
    }

    pub fn lock(&self, level: c_int) -> Outcome {
        Code::check(call!(self, xLock, level))
    }

    pub fn unlock(&self, level: c_int) -> Outcome {
        Code::check(call!(self, xUnlock, level))
    }

    pub fn check_reserved_lock(&self) -> Outcome<bool> {
        let mut reserved = 0;
        Code::check(call!(self, xCheckReservedLock, &mut reserved))?;
        Ok(reserved != 0)
    }

    /// # Safety
    /// SQLite passed `argument` with `operation`.
    pub unsafe fn control(&self, operation: c_int, argument: *mut c_void) -> Outcome {
        Code::check(call!(self, xFileControl, operation, argument))
    }

    pub fn sector_bytes(&self) -> c_int {
        call!(self, xSectorSize)
    }

    pub fn characteristics(&self) -> c_int {
        call!(self, xDeviceCharacteristics)
    }

    /// A region of the shared memory, or null if there is none yet.
    pub fn shm_map(&self, region: c_int, bytes: c_int, extend: c_int) -> Outcome<*mut c_void> {
        let mut address = ptr::null_mut();
        Code::check(call_later!(self, xShmMap, region, bytes, extend, &mut address))?;
        Ok(address)
    }

    pub fn shm_lock(&self, offset: c_int, count: c_int, flags: c_int) -> Outcome {
        Code::check(call_later!(self, xShmLock, offset, count, flags))
    }

    pub fn shm_barrier(&self) {
        let file = self.memory.as_ptr();
        // SAFETY: the file is open; SQLite calls this only if the version has it.
        if let Some(method) = unsafe { (*(*file).pMethods).xShmBarrier } {
            // SAFETY: as above.
            unsafe { method(file) }
        }
    }

    pub fn shm_unmap(&self, delete: c_int) -> Outcome {
        Code::check(call_later!(self, xShmUnmap, delete))
    }

    fn slowly<T>(&self, cause: Cause, bytes: usize, act: impl FnOnce() -> T) -> T {
        match &self.disk {
            Some(disk) => disk.slowly(cause, bytes, act),
            None => act(),
        }
    }
}

impl Drop for Below {
    fn drop(&mut self) {
        // Nobody to report to: SQLite has the result of its own close.
        let _ = self.close();
        let memory = ptr::slice_from_raw_parts_mut(self.memory.as_ptr().cast::<u64>(), self.words);
        // SAFETY: it came from a box of this many words, and this is the last use.
        drop(unsafe { Box::from_raw(memory) });
    }
}

fn length(bytes: &[u8]) -> Outcome<c_int> {
    c_int::try_from(bytes.len()).map_err(|_| Code(ffi::SQLITE_MISUSE))
}

/// Lock in the log's index of the process that checkpoints.
pub(crate) const CHECKPOINT_LOCK: c_int = 1;

/// State of the log's index, with the progress of checkpoints.
///
/// `salts` change when the log restarts; `frames` is its length. Checkpoints have begun to transfer
/// `attempted` frames or fewer, and have transferred `backfilled`. Both are needed: after an index
/// recovery or an interrupted checkpoint all frames count as attempted, and the next checkpoint
/// changes `backfilled` alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WalState {
    pub salts: [u32; 2],
    pub frames: u32,
    pub backfilled: u32,
    pub attempted: u32,
}

impl WalState {
    /// The part that any further transfer changes.
    pub fn progress(self) -> (u32, u32) {
        (self.attempted, self.backfilled)
    }
}

/// Head of a file's shared memory: SQLite's `WalIndexHdr`, twice, and `WalCkptInfo`.
///
/// It is mapped from [`Below::shm_map`] to [`Below::shm_unmap`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct WalIndex(NonNull<u32>);

// SAFETY: processes share the memory, and only atomic loads read it here.
unsafe impl Send for WalIndex {}

impl WalIndex {
    /// Bytes of the 34 words read here (SQLite's "WAL-mode File Format", section 2.1).
    pub const BYTES_MIN: c_int = 136;
    const FRAMES: usize = 4;
    const SALTS: [usize; 2] = [8, 9];
    const BACKFILLED: usize = 24;
    const ATTEMPTED: usize = 32;

    /// The head at `address`, unless that is null.
    ///
    /// # Safety
    /// `address` is null or region 0 from `xShmMap`, of at least [`WalIndex::BYTES_MIN`] bytes. The
    /// result is not used after the region is unmapped.
    pub unsafe fn at(address: *mut c_void) -> Option<WalIndex> {
        NonNull::new(address.cast()).map(WalIndex)
    }

    pub fn state(self) -> WalState {
        let word = |index: usize| {
            // SAFETY: it lies inside the mapped region, and is aligned because regions begin with a
            // page.
            let word = unsafe { AtomicU32::from_ptr(self.0.as_ptr().add(index)) };
            // Acquire: pairs with the barriers in the locks of the processes that write it.
            word.load(Ordering::Acquire)
        };
        WalState {
            salts: Self::SALTS.map(word),
            frames: word(Self::FRAMES),
            backfilled: word(Self::BACKFILLED),
            attempted: word(Self::ATTEMPTED),
        }
    }
}
