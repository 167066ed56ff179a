//! Commit of one key without reads: the steps of `commit.rs` without a transaction.
//!
//! There is nothing to validate. The one record carries its commit, so it needs no inverse, and no
//! ticket beyond that of `Pool::change`. The timestamp is drawn under the leaf's latch, just before
//! the record is appended. It stays undecided for less than a microsecond, so other commits hardly
//! ever wait for it.
//!
//! For the same reason the key is not announced to range validators ([`crate::txn::flight`]). Take
//! a validator with a higher timestamp than this commit. It looks at the leaf after drawing its own
//! timestamp, and this commit latched the leaf before drawing the lower one. So the validator finds
//! the leaf latched or changed, scans again, and sees the change.
//!
//! A condition on the entry is checked under the latch, so nothing can come in between. A refused
//! change leaves no trace.

use super::clock::Ticket;
use super::commit::Committed;
use super::durability::Durability;
use super::mvcc::Mvcc;
use super::next_owner;
use super::table::TableState;
use super::versions::{OldValue, OldVersion};
use crate::error::Result;
use crate::ids::Timestamp;
use crate::index::{Before, New, Single, SingleOutcome, apply_single, tidy};

#[derive(Clone, Copy, Debug)]
pub(crate) enum SingleEnd {
    Committed(Committed),
    /// Nothing done: the old value is large, so one record is not enough.
    Large,
    /// Nothing done: `accept` refused the entry.
    Refused,
}

impl Mvcc {
    /// Sets or removes one key if `accept` agrees, called under the leaf's latch.
    ///
    /// `accept` gets the current entry, or `None` for an absent key.
    pub(crate) fn commit_single(
        &self,
        table: &TableState,
        single: Single<'_>,
        durability: Durability,
        accept: impl FnMut(Option<&Before<'_>>) -> bool,
    ) -> Result<SingleEnd> {
        let outcome = self.try_commit_single(table, single, durability, accept);
        if !matches!(outcome, Ok(SingleEnd::Large | SingleEnd::Refused)) {
            self.count(&outcome);
        }
        outcome
    }

    /// Not inlined: it then writes its result directly into the caller's.
    #[inline(never)]
    fn try_commit_single(
        &self,
        table: &TableState,
        mut single: Single<'_>,
        durability: Durability,
        mut accept: impl FnMut(Option<&Before<'_>>) -> bool,
    ) -> Result<SingleEnd> {
        let me = next_owner();
        let inside = self.gate.enter(|reads| reads.holds(table.id, single.key));
        // Only a thread alone inside the gate drops a table, so this holds until the end.
        table.check()?;
        let lock = self.locks.lock_one(me, table.id, single.key);
        let at_work = self.begin_above();
        self.set_sees_all(table, &mut single);
        let mut drawn = None;
        let mut full = None;
        let (end, existed, underfull) = loop {
            let applied = apply_single(table.tree, &self.pool, single, |before| {
                if !accept(before) {
                    return Ok(None);
                }
                self.begin_single(table, single, before, &mut drawn, &mut full)
            });
            match applied {
                Ok(SingleOutcome::Done { end, existed, underfull }) => break (end, existed, underfull),
                Ok(SingleOutcome::Large) => return Ok(SingleEnd::Large),
                Ok(SingleOutcome::Absent) if !accept(None) => return Ok(SingleEnd::Refused),
                Ok(SingleOutcome::Absent) => {
                    drop((at_work, lock, inside));
                    return self.nothing_to_do(durability).map(SingleEnd::Committed);
                }
                Ok(SingleOutcome::NoTimestamp) => match full.take() {
                    Some(needs) => self.clock.wait_visible(needs, || self.advance())?,
                    None => return Ok(SingleEnd::Refused),
                },
                Err(error) => {
                    if let Some(ticket) = drawn.take() {
                        let ticket: Ticket<'_> = ticket;
                        self.versions.retract(table.id, single.key, ticket.timestamp());
                    }
                    self.clock.advance(self.pool.wal().persistent());
                    return Err(error);
                }
            }
        };
        match (single.new, existed) {
            (New::Value(_), false) => table.count.add(1),
            (New::Nothing, true) => table.count.add(-1),
            _ => {}
        }
        let timestamp = drawn.as_ref().expect("what is done has its timestamp").timestamp();
        let sync = self.decide(drawn, end, durability);
        drop((at_work, lock));
        if underfull {
            tidy(table.tree, &self.pool, single.key);
        }
        drop(inside);
        self.acknowledge(timestamp, sync.then_some(end))?;
        Ok(SingleEnd::Committed(Committed { timestamp, existed }))
    }

    /// Lets a change of a part see the whole value if the old version shall have it.
    fn set_sees_all(&self, table: &TableState, single: &mut Single<'_>) {
        if let New::Part { sees_all, .. } = &mut single.new {
            *sees_all = self.versions.wants_whole(table.id, single.key, || self.oldest());
        }
    }

    /// Draws the timestamp and pushes the old version, under the leaf's latch.
    ///
    /// `None` if the clock's window is full; `full` is then the timestamp to wait for.
    fn begin_single<'c>(
        &'c self,
        table: &TableState,
        single: Single<'_>,
        before: Option<&Before<'_>>,
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
            Some(&Before { timestamp, length, at, value: bytes }) => {
                let is_whole = bytes.len() == length;
                let value = if is_whole { OldValue::Inline(bytes) } else { OldValue::Part { at, bytes } };
                OldVersion { timestamp, value }
            }
            None => OldVersion { timestamp: Timestamp::NONE, value: OldValue::Absent },
        };
        if let Some(order) = &self.order {
            order.wrote(&[self.locks.slot(table.id, single.key)], timestamp);
        }
        let removes = matches!(single.new, New::Nothing);
        self.versions.push(table.id, single.key, timestamp, removes, &old)?;
        *drawn = Some(ticket);
        Ok(Some(timestamp))
    }

    /// Acknowledges a commit without changes.
    pub(crate) fn nothing_to_do(&self, durability: Durability) -> Result<Committed> {
        if durability == Durability::Sync {
            // A buffered deletion may have removed the key. This acknowledgement promises that it
            // stays removed.
            self.pool.wal().acknowledge(self.pool.wal().tail())?;
        }
        self.clock.wait_visible(self.clock.highest_drawn(), || self.advance())?;
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

    /// Single puts are not announced to range validators.
    ///
    /// A transaction that counts a range must still have counted exactly the puts with lower
    /// timestamps.
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
