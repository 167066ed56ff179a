//! Undo of a commit that failed between its first and its last record.
//!
//! It works as recovery does with a loser, while other threads run. Compensation records undo the
//! records in descending order, each naming the next one to undo, and an end record closes the
//! transaction. Their log space was reserved with that of the commit. The keys are locked, the
//! timestamp is undecided, and the ticket holds the log until the end record is durable. So readers
//! at earlier times find the old versions, and transactions that read a change meet a conflict.
//! After a crash, recovery continues the undo.
//!
//! The old versions stay until no snapshot is that old: a reader may have seen a page before its
//! undo. The values they refer to belong to the pages again and are not freed.

use super::chain::Chain;
use super::records::Records;
use super::undo::Inverse;
use crate::error::{Error, Result};
use crate::ids::{Lsn, Timestamp};
use crate::index::{Tree, Write};
use crate::planted::{Bug, planted};
use crate::wal::RecordBuilder;

/// Undoes the changes of `chain` because of `error`; returns the end of its last record.
///
/// `None` if that fails: then the log has failed.
pub(super) fn take_back(chain: &mut Chain<'_, '_>, records: &Records<'_>, error: &Error) -> Option<Lsn> {
    let count = chain.lsns.len();
    let mut inverses: Vec<Vec<u8>> = Vec::with_capacity(count);
    records
        .each(chain.pool, Timestamp::NONE, |_, _, inverse| {
            if inverses.len() < count {
                let mut bytes = Vec::new();
                inverse.encode(&mut bytes);
                inverses.push(bytes);
            }
            Ok(())
        })
        .expect("listing does not fail");
    let taken_back = chain.pool.check().and_then(|()| undo(chain, &inverses));
    match taken_back {
        Ok(end) => {
            tracing::warn!(timestamp = chain.timestamp.0, %error, "a commit was taken back");
            Some(end)
        }
        Err(second) => {
            let what = format!("a commit failed halfway: {error}; and could not be taken back: {second}");
            chain.pool.wal().poison(&what);
            None
        }
    }
}

/// Undoes the records by their inverses, the last one first, and closes the transaction.
fn undo(chain: &mut Chain<'_, '_>, inverses: &[Vec<u8>]) -> Result<Lsn> {
    let (pool, mut last) = (chain.pool, chain.previous());
    let undone_by = inverses.iter().enumerate().rev().filter(|_| !planted(Bug::LeaveAbortedChanges));
    for (index, inverse) in undone_by {
        let inverse = Inverse::decode(inverse).expect("encoded just now");
        let next = index.checked_sub(1).map_or(Lsn::NONE, |before| chain.lsns[before]);
        let mut underfull = false;
        let mut write = Write {
            transaction: chain.timestamp,
            previous: last,
            compensation: Some(next),
            reservation: Some(&mut *chain.reservation),
            grant: Some(&mut *chain.grant),
            underfull: Some(&mut underfull),
            ..Write::default()
        };
        last = Tree { root: inverse.root }.apply(pool, &mut write, inverse.change())?.lsn;
    }
    let mut end = RecordBuilder::end(chain.timestamp, last);
    Ok(pool.wal().append(&mut end, Some(&mut *chain.reservation))?.end)
}
