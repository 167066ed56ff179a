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
//!
//! A change may depend on what the entry is: it is asked about under the latch, where nothing can come in between any more,
//! and refused without a trace if the answer is no.

use super::commit::Committed;
use super::core::{Core, TableState};
use crate::config::Durability;
use crate::error::Result;
use crate::ids::Timestamp;
use crate::index::{Before, Single, SingleOutcome};
use crate::txn::clock::Ticket;
use crate::txn::next_owner;
use crate::txn::versions::{OldValue, OldVersion};

/// How a change of one key ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SingleEnd {
    Committed(Committed),
    /// It takes more than one record, because the old value is a large one. Nothing was done.
    Large,
    /// The entry is not what it should have been. Nothing was done.
    Refused,
}

impl Core {
    /// Sets or removes one key, if `accept`, which is asked under the leaf's latch, says yes to what its entry is; none =
    /// it is absent.
    pub(crate) fn commit_single(
        &self,
        table: &TableState,
        single: Single<'_>,
        durability: Durability,
        accept: impl FnMut(Option<&Before<'_>>) -> bool,
    ) -> Result<SingleEnd> {
        self.check_writable()?;
        let outcome = self.try_commit_single(table, single, durability, accept);
        if !matches!(outcome, Ok(SingleEnd::Large | SingleEnd::Refused)) {
            self.count(&outcome);
            self.after_commit();
        }
        outcome
    }

    fn try_commit_single(
        &self,
        table: &TableState,
        single: Single<'_>,
        durability: Durability,
        mut accept: impl FnMut(Option<&Before<'_>>) -> bool,
    ) -> Result<SingleEnd> {
        let me = next_owner();
        let inside = self.gate.enter(|reads| reads.holds(table.id, single.key));
        // A table is dropped by who is alone inside the gate, so this holds until the end.
        table.check()?;
        let lock = self.locks.lock_one(me, table.id, single.key);
        let mut drawn = None;
        let mut full = None;
        let (end, existed, underfull) = loop {
            let applied = table.tree.apply_single(&self.pool, single, |before| {
                if !accept(before.as_ref()) {
                    return Ok(None);
                }
                self.begin_single(table, single, before, &mut drawn, &mut full)
            });
            match applied {
                Ok(SingleOutcome::Done { end, existed, underfull }) => break (end, existed, underfull),
                Ok(SingleOutcome::Large) => return Ok(SingleEnd::Large),
                Ok(SingleOutcome::Absent) if !accept(None) => return Ok(SingleEnd::Refused),
                Ok(SingleOutcome::Absent) => {
                    drop((lock, inside));
                    return self.nothing_to_do(durability).map(SingleEnd::Committed);
                }
                Ok(SingleOutcome::NoTimestamp) => match full.take() {
                    Some(needs) => self.clock.wait_visible(needs, || self.pump())?,
                    None => return Ok(SingleEnd::Refused),
                },
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
        match (single.value.is_some(), existed) {
            (true, false) => table.count.add(1),
            (false, true) => table.count.add(-1),
            _ => {}
        }
        let drawn = drawn.expect("what is done has its timestamp");
        let timestamp = drawn.timestamp();
        let sync = self.decide(drawn, end, durability);
        drop(lock);
        if underfull {
            table.tree.tidy(&self.pool, single.key);
        }
        drop(inside);
        self.acknowledge(timestamp, sync.then_some(end))?;
        Ok(SingleEnd::Committed(Committed { timestamp, existed }))
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

    use rand::rngs::SmallRng;
    use rand::seq::SliceRandom;
    use rand::{RngExt, SeedableRng};

    use crate::ids::Timestamp;
    use crate::index::{LeafRows, Seek};
    use crate::{Db, Durability, MemoryDirectory, Table};

    /// All entries of a table: key, commit, value.
    fn entries(db: &Db, table: &Table) -> Vec<(Vec<u8>, Timestamp, Vec<u8>)> {
        let mut found = Vec::new();
        let mut rows = LeafRows::new();
        let tree = table.state().tree;
        tree.read_leaf(&db.shared.pool, Seek::First, &mut rows).unwrap();
        loop {
            let row = |index| (rows.key(index).to_vec(), rows.timestamp(index), rows.value(index).to_vec());
            found.extend((0..rows.len()).map(row));
            let Some(upper) = rows.upper.take() else { return found };
            tree.read_leaf(&db.shared.pool, Seek::At(&upper), &mut rows).unwrap();
        }
    }

    /// Single puts are not announced to validators of ranges. So a transaction that counts the keys of a prefix while
    /// they are put must still have counted exactly those with a lower timestamp than its own.
    #[test]
    fn a_range_counted_in_a_transaction_holds_every_single_put_before_it() {
        const PUTS: u32 = 4000;
        const COUNTERS: u32 = 2;
        let seed = 0x51_61e5;
        println!("seed {seed:#x}");
        let directory = Arc::new(MemoryDirectory::new());
        let builder = Db::builder().directory(directory).dram(4 << 20).durability(Durability::Buffered);
        let db = builder.open("").unwrap();
        let table = db.create_table("t").unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for counter in 0..COUNTERS {
                let (db, table, stop) = (&db, &table, &stop);
                scope.spawn(move || {
                    for round in 0u32.. {
                        let last = stop.load(SeqCst);
                        db.update(|transaction| {
                            let count = transaction.prefix(table, "put/").count() as u32;
                            transaction.put(table, format!("counted/{counter}/{round}"), count.to_le_bytes())
                        })
                        .unwrap();
                        if last {
                            break;
                        }
                    }
                });
            }
            let mut random = SmallRng::seed_from_u64(seed);
            let mut numbers: Vec<u32> = (0..PUTS).collect();
            numbers.shuffle(&mut random);
            for number in numbers {
                table.put(format!("put/{number:05}"), vec![1; random.random_range(0..60)]).unwrap();
            }
            stop.store(true, SeqCst);
        });
        let entries = entries(&db, &table);
        let mut puts: Vec<_> =
            entries.iter().filter(|(key, ..)| key.starts_with(b"put/")).map(|(_, at, _)| *at).collect();
        assert_eq!(puts.len(), PUTS as usize);
        puts.sort_unstable();
        let counts: Vec<_> = entries.iter().filter(|(key, ..)| key.starts_with(b"counted/")).collect();
        for (key, at, value) in &counts {
            let counted = u32::from_le_bytes(value[..].try_into().unwrap()) as usize;
            let before = puts.partition_point(|put| put < at);
            assert_eq!(counted, before, "{} committed at {at}", String::from_utf8_lossy(key));
        }
        assert!(counts.len() >= COUNTERS as usize);
    }
}
