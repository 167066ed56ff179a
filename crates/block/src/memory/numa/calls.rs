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
