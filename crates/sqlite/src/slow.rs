//! The database file as the slow device of a cache.
//!
//! SQLite opens a file once for each connection, and must: POSIX locks belong to the process, and closing any handle of a file
//! drops them all. So the cache, which all connections share, has no handle of its own. A connection lends it its own for the
//! length of a call ([`SlowFile::through`]), and also gets to know by that what the system's VFS said, to pass it on unchanged.

use std::cell::RefCell;
use std::ffi::c_int;
use std::io;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use libsqlite3_sys as ffi;
use terrace_block::BlockDevice;

use crate::below::Below;
use crate::code::{Code, Outcome};

/// What offsets and lengths are multiples of, in bytes: the smallest page of SQLite's.
const ALIGNMENT: usize = 512;

thread_local! {
    // Nothing is to be dropped when the thread ends: a connection may be closed then, after such memory is gone.
    static LENT: RefCell<Option<ManuallyDrop<Lent>>> = const { RefCell::new(None) };
}

/// A connection's file, for the length of a call.
struct Lent {
    below: Arc<Below>,
    sync_flags: c_int,
    /// The last error of the system's VFS.
    error: Option<Code>,
}

/// The device. It is as long as the file was when somebody last looked, or as our own writes have made it. What lies beyond is read
/// from the file itself.
#[derive(Debug)]
pub(crate) struct SlowFile {
    name: String,
    /// Relaxed everywhere: a length that is too short makes a read slower, one that is too long makes it an error of the file's.
    length: AtomicU64,
}

impl SlowFile {
    pub fn new(name: String, bytes: u64) -> Self {
        Self { name, length: AtomicU64::new(bytes) }
    }

    /// The file was seen to have so many bytes, or is about to.
    pub fn reaches(&self, bytes: u64) {
        self.length.fetch_max(bytes, Ordering::Relaxed);
    }

    /// Does `act`, in which this device is the file `below`. An error of the file's own is the outcome as it is, another one
    /// is `otherwise`.
    pub fn through<T>(
        below: &Arc<Below>,
        sync_flags: c_int,
        otherwise: c_int,
        act: impl FnOnce() -> io::Result<T>,
    ) -> Outcome<T> {
        /// Takes the file back, also if `act` panics.
        struct Back;
        impl Drop for Back {
            fn drop(&mut self) {
                LENT.take().into_iter().for_each(|lent| drop(ManuallyDrop::into_inner(lent)));
            }
        }
        let lent = ManuallyDrop::new(Lent { below: Arc::clone(below), sync_flags, error: None });
        LENT.with_borrow_mut(|place| *place = Some(lent));
        let back = Back;
        let outcome = act().map_err(|_| {
            let said = LENT.with_borrow(|lent| lent.as_ref().and_then(|lent| lent.error));
            said.unwrap_or(Code(otherwise))
        });
        drop(back);
        outcome
    }

    /// A call of the file that was lent.
    fn call(&self, act: impl FnOnce(&Below, c_int) -> Outcome) -> io::Result<()> {
        LENT.with_borrow_mut(|lent| {
            let Some(lent) = lent else {
                return Err(io::Error::other(format!("{}: no connection has lent its file", self.name)));
            };
            act(&lent.below, lent.sync_flags).map_err(|code| {
                lent.error = Some(code);
                io::Error::other(format!("{}: SQLite's code {}", self.name, code.0))
            })
        })
    }
}

/// An offset as SQLite has it. The device ends far below what does not fit.
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
