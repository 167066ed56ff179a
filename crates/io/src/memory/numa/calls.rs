//! The NUMA system calls, which our dependencies do not wrap.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::io;
use std::marker::PhantomData;
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

/// Addresses of a mapping that the caller owns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pages<'m> {
    start: *mut u8,
    length: usize,
    mapping: PhantomData<&'m ()>,
}

impl<'m> Pages<'m> {
    /// `length` bytes at `start`, which are mapped for the lifetime.
    pub(crate) fn of(start: *mut u8, length: usize) -> Pages<'m> {
        Pages { start, length, mapping: PhantomData }
    }

    pub(super) fn len(self) -> usize {
        self.length
    }

    fn at(self, offset: usize) -> *mut c_void {
        debug_assert!(offset < self.length);
        self.start.wrapping_add(offset).cast()
    }
}

impl<'m> From<&'m Region> for Pages<'m> {
    fn from(region: &'m Region) -> Pages<'m> {
        Pages::of(region.as_ptr(), region.len())
    }
}

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

/// Removes the policy of `range`, whole pages inside.
pub(super) fn clear_policy<'m>(pages: impl Into<Pages<'m>>, range: &Range<usize>) -> io::Result<()> {
    let pages = pages.into();
    debug_assert!(range.start <= range.end && range.end <= pages.length);
    // SAFETY: there is no mask. The addresses are in a mapping of the caller's, and no byte of it
    // changes.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            pages.at(range.start),
            range.len(),
            libc::MPOL_DEFAULT,
            ptr::null::<u64>(),
            0,
            0,
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sets the policy of `range`, whole pages inside; `moves` also moves existing memory.
pub(super) fn set_policy<'m>(
    pages: impl Into<Pages<'m>>,
    range: &Range<usize>,
    mode: Mode,
    nodes: &NodeSet,
    moves: bool,
) -> io::Result<()> {
    let pages = pages.into();
    debug_assert!(range.start <= range.end && range.end <= pages.length);
    let flags = if moves { MPOL_MF_MOVE } else { 0 };
    // The kernel reads one bit less than the given number.
    let bits = NODES_MAX as libc::c_ulong + 1;
    // SAFETY: the kernel reads NODES_MAX bits of the mask, which lives until the call returns. The
    // addresses are in a mapping of the caller's; neither a policy nor a move changes its bytes.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            pages.at(range.start),
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
pub(super) fn move_pages<'m>(
    pages: impl Into<Pages<'m>>,
    offsets: &[usize],
    node: Option<u32>,
) -> io::Result<Vec<i32>> {
    let of = pages.into();
    let pages: Vec<*mut c_void> = offsets.iter().map(|&offset| of.at(offset)).collect();
    let nodes = node.map(|node| vec![node as libc::c_int; offsets.len()]);
    let mut status = vec![UNSAID; offsets.len()];
    // SAFETY: the three arrays have the given number of entries, and live until the call returns;
    // it writes only the last. The pages are in a mapping of the caller's, and keep their bytes.
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
