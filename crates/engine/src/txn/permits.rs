//! A limit on transactions that apply several records concurrently.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::{Condvar, Mutex};

/// Transactions of several records that apply concurrently. Tickets of the log are finite; each
/// holds one, and another per record.
const CHAINS_MAX: u32 = 64;

/// A counting semaphore.
#[derive(Debug)]
pub(crate) struct Permits {
    free: Mutex<u32>,
    returned: Condvar,
    waits: AtomicU64,
}

impl Default for Permits {
    fn default() -> Self {
        Permits { free: Mutex::new(CHAINS_MAX), returned: Condvar::new(), waits: AtomicU64::new(0) }
    }
}

/// One permit; dropping it returns it.
#[derive(Debug)]
pub(crate) struct Permit<'a>(&'a Permits);

impl Permits {
    pub(crate) fn take(&self) -> Permit<'_> {
        let mut free = self.free.lock();
        if *free == 0 {
            self.waits.fetch_add(1, Relaxed);
        }
        while *free == 0 {
            self.returned.wait(&mut free);
        }
        *free -= 1;
        Permit(self)
    }

    pub(crate) fn waits(&self) -> u64 {
        self.waits.load(Relaxed)
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        *self.0.free.lock() += 1;
        self.0.returned.notify_one();
    }
}
