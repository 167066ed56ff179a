//! Validation of a transaction's reads.

use std::sync::Arc;

use super::mvcc::Mvcc;
use super::read_set::ReadSet;
use super::records::tree_of;
use super::scan::digest_holds;
use super::table::TableState;
use crate::error::{Error, Result};
use crate::ids::PageId;

/// Checks that all reads still hold: no key changed or locked, no range changed or about to change.
/// Writes need no check, because their keys are locked.
pub(crate) fn validate(mvcc: &Mvcc, tables: &[Arc<TableState>], reads: &ReadSet, me: u64) -> Result<()> {
    if reads.is_contradicted() {
        return Err(Error::Conflict);
    }
    let mut value = Vec::new();
    for point in reads.points() {
        // The lock first: a commit that ends in between is then already applied, and seen.
        if mvcc.locks.is_locked_by_other(point.table, point.key, me) {
            return Err(Error::Conflict);
        }
        let now = tree_of(tables, point.table).get_into(&mvcc.pool, point.key, &mut value)?;
        if now.map(|(timestamp, _)| timestamp) != point.seen {
            return Err(Error::Conflict);
        }
    }
    for range in reads.ranges() {
        let Some(covered) = range.covered() else { continue };
        if mvcc.flight.any_foreign_in(range.table(), covered, me) {
            return Err(Error::Conflict);
        }
        let tree = tree_of(tables, range.table());
        let unmoved = |&(leaf, version): &(PageId, u64)| tree.leaf_version_is(&mvcc.pool, leaf, version);
        let moved = !range.leaves().is_some_and(|leaves| leaves.iter().all(unmoved));
        if moved && !digest_holds(&mvcc.pool, tree, range)? {
            return Err(Error::Conflict);
        }
    }
    Ok(())
}
