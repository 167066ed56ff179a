//! Memory that the standard allocator does not hand out: aligned for direct I/O, or reserved first and backed later.
//!
//! [`aligned::AlignedBuffer`] is a buffer for one transfer. [`region::Region`] is an address range for frames, whose
//! addresses never change and whose memory is asked for, and given back, piece by piece, or (`runs.rs`) page by page. [`prefetch::prefetch`] asks
//! for lines of it ahead, [`copy::copy_words`] copies them while they may be changing. [`simulated::SimulatedMemory`] is memory that this machine
//! does not have.

pub(crate) mod aligned;
pub(crate) mod copy;
pub(crate) mod prefetch;
pub(crate) mod region;
pub(crate) mod runs;
pub(crate) mod simulated;
