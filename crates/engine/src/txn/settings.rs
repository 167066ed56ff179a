//! Settings that hold while a database is open.

use std::time::Duration;

use super::durability::Durability;
use crate::compression::Compression;
use crate::concurrency::Concurrency;

/// Settings that hold while the database is open.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) name: String,
    pub(crate) durability: Durability,
    pub(crate) snapshot_age_max: Duration,
    pub(crate) read_only: bool,
    pub(crate) dram_max: u64,
    /// Limit of old versions, independent of the budget.
    pub(crate) old_version_bytes_max: Option<u64>,
    pub(crate) compression: Compression,
    pub(crate) concurrency: Concurrency,
}
