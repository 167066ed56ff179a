//! The system calls for nodes, which no crate we use wraps.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::io;
use std::ops::Range;
use std::ptr;

use super::nodes::{NODES_MAX, NodeSet};
use crate::memory::region::Region;

/// What `mbind` is to do (linux/mempolicy.h).
#[derive(Clone, Copy, Debug)]
pub(super) enum Mode {
    /// From the first of the nodes, as long as it has memory.
    Prefer = libc::MPOL_PREFERRED as isize,
    /// From each in turn.
    Interleave = libc::MPOL_INTERLEAVE as isize,
}

/// Move pages that are elsewhere, if no other process has them (linux/mempolicy.h).
const MPOL_MF_MOVE: libc::c_ulong = 1 << 1;
/// What no page's status ever is: the call did not say what became of it.
const UNSAID: i32 = i32::MIN;

/// Where the memory comes from that the calling thread touches first, where the addresses have no choice of their own.
#[derive(Clone, Copy, Debug)]
pub(super) struct ThreadPolicy {
    /// The kernel's number of it, with flags.
    mode: libc::c_int,
    mask: [u64; NODES_MAX / 64],
}

impl ThreadPolicy {
    pub(super) fn of(mode: Mode, nodes: &NodeSet) -> ThreadPolicy {
        ThreadPolicy { mode: mode as libc::c_int, mask: *nodes.mask() }
    }

    /// The calling thread's.
    pub(super) fn current() -> io::Result<ThreadPolicy> {
        let mut policy = ThreadPolicy { mode: 0, mask: [0; NODES_MAX / 64] };
        // SAFETY: the kernel writes the mode, and as many bits of the mask as it is told, one less than the number says.
        let done = unsafe {
            libc::syscall(
                libc::SYS_get_mempolicy,
                &raw mut policy.mode,
                policy.mask.as_mut_ptr(),
                NODES_MAX as libc::c_ulong + 1,
                ptr::null::<c_void>(),
                0,
            )
        };
        if done == 0 { Ok(policy) } else { Err(io::Error::last_os_error()) }
    }

    /// Makes it the calling thread's. Nothing moves that is there.
    pub(super) fn set(&self) -> io::Result<()> {
        // SAFETY: the kernel reads one bit of the mask less than it is told, and where memory comes from changes no byte.
        let done = unsafe {
            libc::syscall(
                libc::SYS_set_mempolicy,
                self.mode,
                self.mask.as_ptr(),
                NODES_MAX as libc::c_ulong + 1,
            )
        };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// The node of the processor that the calling thread is on just now.
pub(super) fn node_of_thread() -> io::Result<u32> {
    let (mut cpu, mut node) = (0u32, 0u32);
    // SAFETY: the call writes the two numbers; there was a third argument once, which it ignores.
    let done =
        unsafe { libc::syscall(libc::SYS_getcpu, &raw mut cpu, &raw mut node, ptr::null_mut::<c_void>()) };
    if done == 0 { Ok(node) } else { Err(io::Error::last_os_error()) }
}

/// Has `range`, which is whole pages inside, no choice of its own any more of where its memory comes from.
pub(super) fn clear_policy(region: &Region, range: &Range<usize>) -> io::Result<()> {
    debug_assert!(range.start <= range.end && range.end <= region.len());
    // SAFETY: there is no mask. The addresses are of the region, which is ours, and no byte of it changes.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            region.as_ptr().wrapping_add(range.start).cast::<c_void>(),
            range.len(),
            libc::MPOL_DEFAULT,
            ptr::null::<u64>(),
            0,
            0,
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sets where memory for `range`, which is whole pages inside, comes from; with `moves`, moves what has memory elsewhere.
pub(super) fn set_policy(
    region: &Region,
    range: &Range<usize>,
    mode: Mode,
    nodes: &NodeSet,
    moves: bool,
) -> io::Result<()> {
    debug_assert!(range.start <= range.end && range.end <= region.len());
    let flags = if moves { MPOL_MF_MOVE } else { 0 };
    // The kernel reads one bit less than it is told.
    let bits = NODES_MAX as libc::c_ulong + 1;
    // SAFETY: the kernel reads NODES_MAX bits of the mask, which lives until the call returns. The addresses are of the region,
    // which is ours; where their memory comes from changes no byte of it, also if it moves.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            region.as_ptr().wrapping_add(range.start).cast::<c_void>(),
            range.len(),
            mode as libc::c_int,
            nodes.mask().as_ptr(),
            bits,
            flags,
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Moves the pages at `offsets`, each that of a page inside, to `node`, or only asks where they are. Returns for each the node that it is
/// on, or a negative number if it has no memory, did not move, or if the call did not say.
pub(super) fn move_pages(region: &Region, offsets: &[usize], node: Option<u32>) -> io::Result<Vec<i32>> {
    debug_assert!(offsets.iter().all(|offset| *offset < region.len()));
    let pages: Vec<*mut c_void> =
        offsets.iter().map(|&offset| region.as_ptr().wrapping_add(offset).cast()).collect();
    let nodes = node.map(|node| vec![node as libc::c_int; offsets.len()]);
    let mut status = vec![UNSAID; offsets.len()];
    // SAFETY: the three arrays have as many entries as the call is told, and live until it returns; it writes only the last.
    // The pages are of the region, which is ours, and keep their bytes wherever they are.
    let outcome = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            0,
            pages.len(),
            pages.as_ptr(),
            nodes.as_ref().map_or(ptr::null(), |nodes| nodes.as_ptr()),
            status.as_mut_ptr(),
            MPOL_MF_MOVE,
        )
    };
    // Above 0 it is a number of pages that did not move, in the midst of which the call may have stopped.
    if outcome >= 0 { Ok(status) } else { Err(io::Error::last_os_error()) }
}
