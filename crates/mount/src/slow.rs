//! The files of the lower directory as one slow device of the cache.
//!
//! The device has no file itself. Whoever calls the cache lends it the open file that a program
//! uses, for this one call ([`through`]), because the cache reads and writes in the caller's
//! thread.

use std::cell::RefCell;
use std::io;
use std::sync::Arc;

use terrace_io::BlockDevice;

use crate::lower::{ALIGNMENT, Lower};
use crate::planted::{MountBug, planted};

thread_local! {
    static LENT: RefCell<Option<Lent>> = const { RefCell::new(None) };
}

struct Lent {
    /// None: writes do nothing, since the file has them already.
    lower: Option<Arc<dyn Lower>>,
    /// File offset minus address.
    shift: u64,
    used: Used,
}

/// What the cache did with the file.
#[derive(Debug, Default)]
pub(crate) struct Used {
    /// Result of the last write, if there was one.
    pub written: Option<io::Result<usize>>,
    /// Whether bytes were read.
    pub was_read: bool,
}

/// Runs `act` with `lower` as this thread's file, whose `offset` is at `address`.
pub(crate) fn through<T>(
    lower: Option<&Arc<dyn Lower>>,
    offset: u64,
    address: u64,
    act: impl FnOnce() -> T,
) -> (T, Used) {
    /// Takes the file back, even if `act` panics.
    struct Back;
    impl Drop for Back {
        fn drop(&mut self) {
            LENT.take();
        }
    }
    let lent = Lent { lower: lower.cloned(), shift: offset.wrapping_sub(address), used: Used::default() };
    LENT.set(Some(lent));
    let back = Back;
    let outcome = act();
    let used = LENT.with_borrow_mut(|lent| lent.as_mut().map(|lent| std::mem::take(&mut lent.used)));
    drop(back);
    (outcome, used.unwrap_or_default())
}

/// The device; its length is the whole address space.
#[derive(Debug)]
pub(crate) struct SlowFiles {
    name: String,
    bytes: u64,
}

impl SlowFiles {
    pub fn new(name: String, bytes: u64) -> Self {
        Self { name, bytes }
    }
}

fn nothing_lent() -> io::Error {
    io::Error::other("the cache read a file that nobody lent it")
}

impl BlockDevice for SlowFiles {
    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> u64 {
        self.bytes
    }

    fn alignment(&self) -> usize {
        ALIGNMENT
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let lent = LENT.with_borrow_mut(|lent| {
            let lent = lent.as_mut()?;
            lent.used.was_read = true;
            Some((lent.lower.clone()?, lent.shift))
        });
        let (lower, shift) = lent.ok_or_else(nothing_lent)?;
        match lower.read_at(offset.wrapping_add(shift), buffer)? {
            read if read == buffer.len() => Ok(()),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let lent = LENT.with_borrow(|lent| lent.as_ref().map(|lent| (lent.lower.clone(), lent.shift)));
        let Some((Some(lower), shift)) = lent else {
            return lent.map_or_else(|| Err(nothing_lent()), |_| Ok(()));
        };
        let written = lower.write_at(offset.wrapping_add(shift), bytes);
        let outcome = match &written {
            Ok(count) if *count == bytes.len() => Ok(()),
            _ if planted(MountBug::KeepFailedWrite) => Ok(()),
            Ok(_) => Err(io::ErrorKind::WriteZero.into()),
            Err(error) => Err(error.kind().into()),
        };
        LENT.with_borrow_mut(|lent| {
            if let Some(lent) = lent {
                lent.used.written = Some(written);
            }
        });
        outcome
    }

    /// Programs sync their files; the marks that need it are of no use here (see `cache.rs`).
    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn set_len(&self, _bytes: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
