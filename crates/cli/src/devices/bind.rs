//! Memory of one NUMA node: the one system call for it, which no crate we use wraps.
#![allow(unsafe_code)]

use std::io;

/// Bits of the node mask handed to the kernel.
const NODES_MAX: usize = 1024;

/// Makes every page that this thread touches first from now on come from `node`, or fail. Ends with the thread.
pub fn allocate_on(node: u32) -> io::Result<()> {
    let mut mask = [0u64; NODES_MAX / 64];
    let word = mask.get_mut(node as usize / 64).ok_or(io::ErrorKind::InvalidInput)?;
    *word = 1 << (node % 64);
    // The kernel reads one bit less than it is told.
    let bits = NODES_MAX as libc::c_ulong + 1;
    // SAFETY: the kernel reads NODES_MAX bits from `mask`, which lives until the call returns, and writes nothing.
    let result = unsafe { libc::syscall(libc::SYS_set_mempolicy, libc::MPOL_BIND, mask.as_ptr(), bits) };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
