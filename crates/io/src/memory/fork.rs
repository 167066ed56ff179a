//! Forks of this process, counted.
#![allow(unsafe_code)]

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

static FORKS: AtomicU32 = AtomicU32::new(0);
static REGISTERED: Once = Once::new();

/// How many forks led to this process since its first call. A child so learns, by one load, that
/// it lacks the mappings of its parent.
///
/// ```
/// assert_eq!(terrace_io::fork_count(), terrace_io::fork_count());
/// ```
#[inline]
pub fn fork_count() -> u32 {
    if !REGISTERED.is_completed() {
        register();
    }
    FORKS.load(Ordering::Relaxed)
}

#[cold]
fn register() {
    extern "C" fn in_child() {
        FORKS.fetch_add(1, Ordering::Relaxed);
    }
    REGISTERED.call_once(|| {
        // SAFETY: the handler lives as long as the program, and does one atomic addition.
        let refused = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        assert_eq!(refused, 0, "the system has no room for a handler of forks");
    });
}
