//! Replacement: which frames are free, and which pages to evict first.

pub(in crate::pool) mod fifo;
pub(in crate::pool) mod queues;
mod replacer;
mod reserve;
mod sweep;
pub(in crate::pool) mod victim;

pub(in crate::pool) use replacer::{BATCH, FreeFrames, Replacer};
pub(crate) use reserve::FrameReservation;
pub(in crate::pool) use reserve::Waits;
pub(in crate::pool) use sweep::Sweep;
