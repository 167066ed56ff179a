//! Aligned buffers, reserved address ranges, copies, prefetches and NUMA placement.

pub(crate) mod aligned;
pub(crate) mod copy;
pub(crate) mod fork;
pub(crate) mod limit;
pub(crate) mod numa;
pub(crate) mod persistent;
pub(crate) mod prefetch;
pub(crate) mod region;
pub(crate) mod runs;
