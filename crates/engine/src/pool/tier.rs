//! The middle tier: decisions, migration both ways, and simulated costs.

mod adapt;
mod addresses;
mod charge;
mod demote;
mod line_counts;
mod middle;
pub mod migration;
pub(crate) mod operation;
pub(in crate::pool) mod partial;
mod promote;
mod promotion_batch;
mod seal;
mod tuner;

pub(in crate::pool) use middle::RESTARTS_MAX;
pub(crate) use middle::{MiddleOptions, MiddleTier, TierOptions};
pub(in crate::pool) use promote::{Rising, Seen};
pub(crate) use seal::SealLimits;
pub(in crate::pool) use seal::seal_some;
