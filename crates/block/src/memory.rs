//! Memory that the standard allocator does not hand out: aligned for direct I/O, or reserved first and backed later.
//!
//! [`aligned::AlignedBuffer`] is a buffer for one transfer. [`region::Region`] is an address range for frames, whose
//! addresses never change and whose memory is asked for, and given back, piece by piece, or (`runs.rs`) page by page. [`prefetch::prefetch`] asks
//! for lines of it ahead, [`copy::copy_words`] copies them while they may be changing. `numa.rs` puts regions on nodes, and moves their pages. [`simulated::SimulatedMemory`] is memory that this machine
//! does not have. [`limit::address_limit`] is what the process may have of addresses.

pub(crate) mod aligned;
pub(crate) mod copy;
pub(crate) mod limit;
pub(crate) mod numa;
pub(crate) mod prefetch;
pub(crate) mod region;
pub(crate) mod runs;
pub(crate) mod simulated;
