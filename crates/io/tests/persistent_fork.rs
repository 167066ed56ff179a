//! A forked process that drops its copies of a persistent memory and of the region over it.
//!
//! The only test of its binary, so that no other thread holds a lock at the fork.
#![allow(unsafe_code)]

use std::sync::atomic::Ordering::Relaxed;

use terrace_io::{Directory, FileDirectory, OpenMode, Region};

const BYTES: usize = 4 << 20;

/// Maps a page of its own there, which must be free. Returns whether that worked.
fn take(address: usize) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: the kernel refuses addresses that are in use.
    let page = unsafe { libc::mmap(address as *mut libc::c_void, 4096, libc::PROT_READ, flags, -1, 0) };
    page.addr() == address
}

fn is_mapped(address: usize) -> bool {
    let mut present = 0u8;
    // SAFETY: the kernel writes one byte, for one page, and refuses addresses without a mapping.
    unsafe { libc::mincore(address as *mut libc::c_void, 4096, &raw mut present) == 0 }
}

#[test]
fn a_forked_process_unmaps_nothing_that_came_into_the_gaps_and_frees_no_lock() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let directory = FileDirectory::open(folder.path()).unwrap();
    let memory = directory.open_memory("frames", BYTES as u64, OpenMode::CreateNew).unwrap();
    let region = Region::reserve(2 * BYTES).unwrap();
    memory.map_over(&region, 0..BYTES, 0).unwrap();
    memory.words(0..8)[0].store(7, Relaxed);
    let gaps = [memory.words(0..8).as_ptr().addr(), region.as_ptr().addr()];
    // SAFETY: no other thread runs that could hold a lock, and the child ends without returning.
    match unsafe { libc::fork() } {
        0 => {
            let free = gaps.iter().all(|&gap| take(gap));
            drop(memory);
            drop(region);
            let kept = gaps.iter().all(|&gap| is_mapped(gap));
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(!free) + 2 * i32::from(!kept)) }
        }
        child => {
            let mut status = 0;
            // SAFETY: writes the status of the child.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0, "exit code 1: an address was taken; 2: one was unmapped");
        }
    }
    assert_eq!(region.words(0..8)[0].load(Relaxed), 7);
    assert!(directory.open_memory("frames", 0, OpenMode::Write).is_err(), "still locked");
    drop(memory);
    directory.open_memory("frames", 0, OpenMode::Write).unwrap();
}
