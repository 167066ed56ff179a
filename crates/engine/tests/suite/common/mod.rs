//! What several of these tests use.

pub mod copies;

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// Sets what other threads stop at when it goes out of scope: also when an assertion has failed, because a scope waits for
/// its threads before it tells of that.
pub struct Stop<'a>(pub &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}
