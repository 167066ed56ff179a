//! After a fork, two children of a cache's parent draw different sessions.
//!
//! The only test in its binary, so that no other thread holds a lock at the fork.
#![allow(unsafe_code)]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use terrace_cache::{CacheConfig, Cached};
use terrace_io::MemoryDevice;

fn session() -> u64 {
    let device = |bytes| Arc::new(MemoryDevice::new("memory", bytes));
    let cached = Cached::open(device(1 << 16), device(0), CacheConfig::new(16)).unwrap();
    cached.session().expect("memory does not fail")
}

/// The first session of a child.
fn session_of_a_child() -> u64 {
    let (mut from_child, mut to_parent) = UnixStream::pair().unwrap();
    // SAFETY: no other thread holds a lock, and the child exits without running destructors.
    match unsafe { libc::fork() } {
        0 => {
            to_parent.write_all(&session().to_le_bytes()).unwrap();
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(0) }
        }
        child => {
            drop(to_parent);
            let mut bytes = [0; 8];
            from_child.read_exact(&mut bytes).unwrap();
            // SAFETY: waits for the child just made, without its status.
            assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child);
            u64::from_le_bytes(bytes)
        }
    }
}

#[test]
fn siblings_draw_different_sessions() {
    let parents = session();
    let drawn = [parents, session_of_a_child(), session_of_a_child(), session()];
    for (at, session) in drawn.iter().enumerate() {
        assert!(!drawn[..at].contains(session), "one of {drawn:x?} is drawn twice");
    }
}
