//! The database file as the slow device of a cache.
//!
//! Only SQLite may open the file: POSIX locks belong to the process, and closing any handle of a
//! file drops them all. So the shared cache has no handle. A connection lends its own for one call
//! ([`SlowFile::through`]), and gets the result code of the default VFS unchanged.

use std::cell::RefCell;
use std::ffi::c_int;
use std::io;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use libsqlite3_sys as ffi;
use terrace_io::BlockDevice;

use crate::below::Below;
use crate::code::{Code, Outcome};

/// Alignment of offsets and lengths in bytes: SQLite's smallest page.
const ALIGNMENT: usize = 512;

thread_local! {
    // Has no destructor: a connection may be closed while the thread ends, after its thread-locals
    // are gone.
    static LENT: RefCell<Option<ManuallyDrop<Lent>>> = const { RefCell::new(None) };
}

struct Lent {
    below: Arc<Below>,
    sync_flags: c_int,
    /// Last error of the default VFS.
    error: Option<Code>,
}

/// The device.
///
/// Its length is the latest one seen or written by us; reads beyond it go to the file.
#[derive(Debug)]
pub(crate) struct SlowFile {
    name: String,
    /// Relaxed: a short length slows reads down, a long one lets the file fail them.
    length: AtomicU64,
}

impl SlowFile {
    pub fn new(name: String, bytes: u64) -> Self {
        Self { name, length: AtomicU64::new(bytes) }
    }

    pub fn reaches(&self, bytes: u64) {
        self.length.fetch_max(bytes, Ordering::Relaxed);
    }

    /// Runs `act` with `below` as this device.
    ///
    /// Returns an error of the file unchanged; any other error becomes `otherwise`.
    pub fn through<T>(
        below: &Arc<Below>,
        sync_flags: c_int,
        otherwise: c_int,
        act: impl FnOnce() -> io::Result<T>,
    ) -> Outcome<T> {
        /// Returns the file, even if `act` panics.
        struct Back;
        impl Drop for Back {
            fn drop(&mut self) {
                LENT.take().into_iter().for_each(|lent| drop(ManuallyDrop::into_inner(lent)));
            }
        }
        let lent = ManuallyDrop::new(Lent { below: Arc::clone(below), sync_flags, error: None });
        LENT.with_borrow_mut(|slot| *slot = Some(lent));
        let back = Back;
        let outcome = act().map_err(|_| {
            let said = LENT.with_borrow(|lent| lent.as_ref().and_then(|lent| lent.error));
            said.unwrap_or(Code(otherwise))
        });
        drop(back);
        outcome
    }

    fn call(&self, act: impl FnOnce(&Below, c_int) -> Outcome) -> io::Result<()> {
        LENT.with_borrow_mut(|lent| {
            let Some(lent) = lent else {
                return Err(io::Error::other(format!("{}: no connection has lent its file", self.name)));
            };
            act(&lent.below, lent.sync_flags).map_err(|code| {
                lent.error = Some(code);
                io::Error::other(format!("{}: SQLite error {}", self.name, code.0))
            })
        })
    }
}

/// Converts to SQLite's type; the device ends far below the limit.
fn offset_of(offset: u64) -> Outcome<i64> {
    i64::try_from(offset).map_err(|_| Code(ffi::SQLITE_FULL))
}

impl BlockDevice for SlowFile {
    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> u64 {
        self.length.load(Ordering::Relaxed)
    }

    fn alignment(&self) -> usize {
        ALIGNMENT
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.call(|below, _| below.read(buffer, offset_of(offset)?))
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.call(|below, _| below.write(bytes, offset_of(offset)?))
    }

    fn sync(&self) -> io::Result<()> {
        self.call(|below, flags| below.sync(flags))
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.call(|below, _| below.truncate(offset_of(bytes)?))?;
        self.length.store(bytes, Ordering::Relaxed);
        Ok(())
    }
}
