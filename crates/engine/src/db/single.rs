//! Committing the change of one key by who has read nothing: the same steps as in `commit.rs`, without a transaction.
//!
//! There is nothing to validate, and the one record is there with its commit or not at all, so it needs neither an
//! inverse nor a ticket. The timestamp is drawn under the leaf's latch, just before the record is appended: it stays
//! undecided for less than a microsecond, and commits of other threads hardly ever wait for it.
//!
//! For the same reason the key is not announced to validators of ranges ([`crate::txn::flight`]). Say a validator has
//! drawn a higher timestamp than this commit. Then it looks at the leaf after this commit has latched it, for the latch
//! comes before the one draw and the look after the other. It finds the leaf latched, or changed; both send it to
//! scan again, and reading the leaf waits for the latch. So it sees the change.

use super::commit::Committed;
use super::core::{Core, TableState};
use crate::config::Durability;
use crate::error::Result;
use crate::ids::Timestamp;
use crate::index::{Before, Single, SingleOutcome};
use crate::txn::clock::Ticket;
use crate::txn::next_owner;
use crate::txn::versions::{OldValue, OldVersion};

impl Core {
    /// Sets or removes one key. `None`: it takes more than one record, because the old value is a large one; nothing
    /// was done.
    pub(crate) fn commit_single(
        &self,
        table: &TableState,
        single: Single<'_>,
        durability: Durability,
    ) -> Result<Option<Committed>> {
        self.check_writable()?;
        let outcome = self.try_commit_single(table, single, durability).transpose();
        if let Some(outcome) = &outcome {
            self.count(outcome);
            self.after_commit();
        }
        outcome.transpose()
    }

    fn try_commit_single(
        &self,
        table: &TableState,
        single: Single<'_>,
        durability: Durability,
    ) -> Result<Option<Committed>> {
        let me = next_owner();
        let inside = self.gate.enter();
        // A table is dropped by who is alone inside the gate, so this holds until the end.
        table.check()?;
        let lock = self.locks.lock_one(me, table.id, single.key);
        let mut drawn = None;
        let mut full = None;
        let (end, existed, underfull) = loop {
            let applied = table.tree.apply_single(&self.pool, single, |before| {
                self.begin_single(table, single, before, &mut drawn, &mut full)
            });
            match applied {
                Ok(SingleOutcome::Done { end, existed, underfull }) => break (end, existed, underfull),
                Ok(SingleOutcome::Large) => return Ok(None),
                Ok(SingleOutcome::Absent) => {
                    drop((lock, inside));
                    return self.nothing_to_do(durability).map(Some);
                }
                Ok(SingleOutcome::NoTimestamp) => {
                    let needs = full.take().expect("the callback has said what is missing");
                    self.clock.wait_visible(needs, || self.pump())?;
                }
                Err(error) => {
                    if let Some(ticket) = drawn.take() {
                        let ticket: Ticket<'_> = ticket;
                        self.versions.retract(table.id, single.key, ticket.timestamp());
                    }
                    self.clock.advance(self.pool.wal().durable());
                    return Err(error);
                }
            }
        };
        let drawn = drawn.expect("what is done has its timestamp");
        let timestamp = drawn.timestamp();
        let sync = self.decide(drawn, end, durability);
        drop(lock);
        if underfull {
            table.tree.tidy(&self.pool, single.key);
        }
        drop(inside);
        self.acknowledge(timestamp, sync.then_some(end))?;
        Ok(Some(Committed { timestamp, existed }))
    }

    /// Under the leaf's latch: draws the timestamp and keeps the old version. `None`: there is no timestamp before
    /// what is then in `full` is visible.
    fn begin_single<'c>(
        &'c self,
        table: &TableState,
        single: Single<'_>,
        before: Option<Before<'_>>,
        drawn: &mut Option<Ticket<'c>>,
        full: &mut Option<Timestamp>,
    ) -> Result<Option<Timestamp>> {
        let ticket = match self.clock.try_draw() {
            Ok(ticket) => ticket,
            Err(needs) => {
                *full = Some(needs);
                return Ok(None);
            }
        };
        let timestamp = ticket.timestamp();
        let old = match before {
            Some(before) if before.timestamp >= timestamp => return Err(self.never_drawn(before.timestamp)),
            Some(before) => OldVersion { timestamp: before.timestamp, value: OldValue::Inline(before.value) },
            None => OldVersion { timestamp: Timestamp::NONE, value: OldValue::Absent },
        };
        self.versions.push(table.id, single.key, timestamp, single.value.is_none(), &old)?;
        *drawn = Some(ticket);
        Ok(Some(timestamp))
    }

    /// Acknowledges a commit that had nothing to change.
    pub(super) fn nothing_to_do(&self, durability: Durability) -> Result<Committed> {
        if durability == Durability::Sync {
            // The key may be gone by a buffered deletion; the acknowledgement of this one promises that it stays so.
            self.pool.wal().acknowledge(self.pool.wal().tail())?;
        }
        self.clock.wait_visible(self.clock.highest_drawn(), || self.pump())?;
        Ok(Committed { timestamp: Timestamp::NONE, existed: false })
    }
}
