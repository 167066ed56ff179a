//! The NUMA system calls, which our dependencies do not wrap.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::io;
use std::ops::Range;
use std::ptr;

use super::nodes::{NODES_MAX, NodeSet};
use crate::memory::region::Region;

#[derive(Clone, Copy, Debug)]
pub(super) enum Mode {
    Prefer = libc::MPOL_PREFERRED as isize,
    Interleave = libc::MPOL_INTERLEAVE as isize,
}

/// Move pages from elsewhere, unless another process has them (linux/mempolicy.h).
const MPOL_MF_MOVE: libc::c_ulong = 1 << 1;
/// Page status if the call reported none; never a valid status.
const UNSAID: i32 = i32::MIN;

/// A thread's memory policy, for addresses without their own.
#[derive(Clone, Copy, Debug)]
pub(super) struct ThreadPolicy {
    mode: libc::c_int,
    mask: [u64; NODES_MAX / 64],
}

impl ThreadPolicy {
    pub(super) fn of(mode: Mode, nodes: &NodeSet) -> ThreadPolicy {
        ThreadPolicy { mode: mode as libc::c_int, mask: *nodes.mask() }
    }

    pub(super) fn current() -> io::Result<ThreadPolicy> {
        let mut policy = ThreadPolicy { mode: 0, mask: [0; NODES_MAX / 64] };
        // SAFETY: the kernel writes the mode, and one bit of the mask less than the given number.
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

    pub(super) fn set(&self) -> io::Result<()> {
        // SAFETY: the kernel reads one bit of the mask less than the given number, and a policy
        // changes no byte.
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

pub(super) fn node_of_thread() -> io::Result<u32> {
    let (mut cpu, mut node) = (0u32, 0u32);
    // SAFETY: the call writes the two numbers and ignores the obsolete third argument.
    let done =
        unsafe { libc::syscall(libc::SYS_getcpu, &raw mut cpu, &raw mut node, ptr::null_mut::<c_void>()) };
    if done == 0 { Ok(node) } else { Err(io::Error::last_os_error()) }
}

/// Removes the policy of `range`, whole pages inside the region.
pub(super) fn clear_policy(region: &Region, range: &Range<usize>) -> io::Result<()> {
    debug_assert!(range.start <= range.end && range.end <= region.len());
    // SAFETY: there is no mask. The addresses are in the region, which is ours, and no byte of it
    // changes.
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

/// Sets the policy of `range`, whole pages inside the region; `moves` also moves existing memory.
pub(super) fn set_policy(
    region: &Region,
    range: &Range<usize>,
    mode: Mode,
    nodes: &NodeSet,
    moves: bool,
) -> io::Result<()> {
    debug_assert!(range.start <= range.end && range.end <= region.len());
    let flags = if moves { MPOL_MF_MOVE } else { 0 };
    // The kernel reads one bit less than the given number.
    let bits = NODES_MAX as libc::c_ulong + 1;
    // SAFETY: the kernel reads NODES_MAX bits of the mask, which lives until the call returns. The
    // addresses are in the region, which is ours; neither a policy nor a move changes its bytes.
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

/// Moves the pages at `offsets` to `node`, or only locates them. Returns the node of each page, or
/// a negative number if it has no memory, did not move, or has no reported status.
pub(super) fn move_pages(region: &Region, offsets: &[usize], node: Option<u32>) -> io::Result<Vec<i32>> {
    debug_assert!(offsets.iter().all(|offset| *offset < region.len()));
    let pages: Vec<*mut c_void> =
        offsets.iter().map(|&offset| region.as_ptr().wrapping_add(offset).cast()).collect();
    let nodes = node.map(|node| vec![node as libc::c_int; offsets.len()]);
    let mut status = vec![UNSAID; offsets.len()];
    // SAFETY: the three arrays have the given number of entries, and live until the call returns;
    // it writes only the last. The pages are in the region, which is ours, and keep their bytes.
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
    // A positive outcome counts pages that did not move; the call may have stopped early.
    if outcome >= 0 { Ok(status) } else { Err(io::Error::last_os_error()) }
}
