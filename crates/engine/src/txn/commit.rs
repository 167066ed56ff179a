//! Commit, in the order that `txn.rs` and `docs/durability.md` require.
//!
//! 1. Enter the gate, lock the keys and read their entries. No other thread changes them from here
//!    on.
//! 2. Split crowded leaves if there are many. Then reserve log space and pages for everything else,
//!    compensations included. After this nothing fails for lack of room, unless other commits crowd
//!    many leaves again.
//! 3. Announce the write set, draw the timestamp, validate the read set.
//! 4. Push the old versions, then change key after key. Each change is a record with its inverse,
//!    and the last record carries the commit. So a transaction of one key is a single record.
//! 5. Complete the timestamp, unlock, merge nearly empty leaves, leave the gate. If the commit is
//!    durable, flush; then wait until it is visible.
//!
//! Merges wait for the end of the commit, so that an undo finds room for the entries it restores.
//!
//! A transaction of several records holds a log ticket from before its first record until its last
//! is durable, so the log is not cut in between. A single record needs none beyond that of
//! `Pool::change`.
//!
//! A failure before the first change takes back the versions. After the first change, for example
//! when a page cannot be read, the commit is taken back (`take_back.rs`). If that fails too, or the
//! thread panics, the log fails: half a transaction is in the pages, nothing more is read or
//! promised, and recovery undoes it.

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::chain::Chain;
use super::clock::{Outcome, Ticket};
use super::durability::Durability;
use super::flight::FlightGuard;
use super::garbage::{GarbageKey, Transfer};
use super::gate::Alone;
use super::locks::LockSet;
use super::mvcc::Mvcc;
use super::next_owner;
use super::order::{AtWork, TimestampOrder, Turn};
use super::read_set::ReadSet;
use super::records::{Old, Records, tree_of};
use super::table::TableState;
use super::take_back::take_back;
use super::validate::validate;
use super::versions::{OldValue, OldVersion, OverflowRef};
use super::write_set::{Write, WriteSet};
use crate::error::{Error, Result};
use crate::ids::{Lsn, TableId, Timestamp};
use crate::index::{CROWDED_MAX, crowded, make_room_for, tidy};
use crate::planted::{Bug, planted};
use crate::pool::Pool;

pub(crate) struct Work<'a> {
    pub(crate) tables: &'a [Arc<TableState>],
    pub(crate) reads: &'a ReadSet,
    pub(crate) writes: WriteSet,
    /// Maps a large value of `writes` to the key of its garbage entry.
    pub(crate) large: &'a dyn Fn(OverflowRef) -> GarbageKey,
    /// Further changes of the garbage tree.
    pub(crate) transfers: Vec<Transfer>,
    pub(crate) durability: Durability,
    /// Keeps other commits out until the reads are validated.
    pub(crate) alone: Option<Alone<'a>>,
    /// With timestamp ordering, the turn in which it has read; `reads` is empty then.
    pub(crate) turn: Option<Turn<'a>>,
}

impl Work<'_> {
    /// Whether it changes anything.
    pub(crate) fn has_writes(&self) -> bool {
        !self.writes.is_empty() || !self.transfers.is_empty()
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Committed {
    /// Timestamp; none if nothing changed.
    pub(crate) timestamp: Timestamp,
    pub(crate) existed: bool,
}

/// A commit as scans see it: its keys, and with timestamp ordering its timestamp.
type Begun<'a> = (FlightGuard<'a>, Option<AtWork<'a>>);

impl Mvcc {
    /// Commits, or fails with nothing changed.
    pub(crate) fn commit(&self, work: Work<'_>) -> Result<Committed> {
        self.check()?;
        if work.writes.is_empty() && work.transfers.is_empty() {
            return self.commit_reads(work);
        }
        let outcome = self.commit_writes(work);
        self.count(&outcome);
        outcome
    }

    pub(super) fn count<T>(&self, outcome: &Result<T>) {
        match outcome {
            Ok(_) => self.counters.commits.raise(),
            Err(Error::Conflict) => _ = self.counters.conflicts.fetch_add(1, Relaxed),
            Err(_) => _ = self.counters.aborts.fetch_add(1, Relaxed),
        }
    }

    /// Commits a transaction without writes: its reads must hold and be decided.
    fn commit_reads(&self, mut work: Work<'_>) -> Result<Committed> {
        if let Some(turn) = work.turn {
            // It may have read commits below that are not durable yet.
            self.clock.wait_visible(turn.timestamp, || self.advance())?;
            self.check()?;
            self.counters.commits.raise();
        }
        if work.reads.is_empty() {
            return Ok(Committed { timestamp: Timestamp::NONE, existed: false });
        }
        let drawn = self.clock.highest_drawn();
        let validated = self.check_reads(work.tables, work.reads, next_owner(), drawn);
        // Pages of a dropped table may be freed or reused. That explains any other error.
        work.tables.iter().try_for_each(|table| table.check())?;
        validated.inspect_err(|_| {
            self.counters.conflicts.fetch_add(1, Relaxed);
        })?;
        drop(work.alone.take());
        // An absent key has no timestamp. After recent deletions, wait for all commits that may
        // have removed it.
        let deleted = work.tables.iter().any(|table| !self.versions.nothing_deleted(table.id));
        let needs = if deleted { self.clock.highest_drawn() } else { work.reads.highest() };
        if needs > self.clock.highest_drawn() {
            return Err(self.never_drawn(needs));
        }
        self.clock.wait_visible(needs, || self.advance())?;
        if let Some(order) = &self.order {
            order.wait_for(self.clock.highest_drawn());
            self.check()?;
        }
        self.counters.commits.raise();
        Ok(Committed { timestamp: Timestamp::NONE, existed: false })
    }

    fn commit_writes(&self, work: Work<'_>) -> Result<Committed> {
        let Work { tables, reads, writes, large, transfers, durability, alone, turn } = work;
        let me = next_owner();
        let writes = Arc::new(writes);
        let inside = self.gate.enter(|reads| writes.keys().any(|(table, key)| reads.holds(table, key)));
        // Only a thread alone inside the gate drops a table, so this holds until the end.
        tables.iter().try_for_each(|table| table.check())?;
        let locks = self.locks.lock(me, writes.keys());
        let admit = |turn| self.admit(turn, me, &writes, &locks);
        let olds = self.read_old(tables, &writes)?;
        let records = Records { tables, writes: &writes, olds: &olds, large, transfers: &transfers };
        let estimate = records.estimate(&self.pool);
        if estimate.records == 0 {
            // Only deletions of absent keys.
            let admitted = turn.map(admit).transpose()?;
            self.check_reads(tables, reads, me, self.clock.highest_drawn())?;
            self.note_written(&locks, self.clock.highest_drawn());
            drop((alone, admitted, locks, inside));
            return self.nothing_to_do(durability);
        }
        make_room(&self.pool, tables, &writes)?;
        let mut grant = self.pool.grant(estimate.blocks(), estimate.frames())?;
        let mut reservation = self.pool.reserve_log(estimate.log_bytes())?;
        let (flight, at_work) = turn.map_or_else(|| Ok(self.announce(me, &writes)), admit)?;
        let permit = (estimate.records > 1).then(|| self.chains.take());
        let ticket = permit.is_some().then(|| self.pool.wal().enter());
        let (drawn, timestamp) = self.timestamp_of(turn)?;
        let valid = self.check_reads(tables, reads, me, timestamp);
        let valid = valid.and_then(|()| self.check_newest(&olds, timestamp));
        if let Err(error) = valid {
            drop(drawn);
            self.clock.advance(self.pool.wal().persistent());
            return Err(error);
        }
        drop(alone);
        self.note_written(&locks, timestamp);
        let mut chain = Chain::new(&self.pool, timestamp, estimate.records, &mut reservation, &mut grant);
        if let Err((error, taken_back)) = self.apply(&mut chain, &records, turn.is_some()) {
            if let Some(end) = taken_back
                && let Some(ticket) = ticket
            {
                self.pool.wal().retire_when_persistent(ticket, end);
            }
            chain.settled = true;
            // Not before the pages are restored: until then no thread may read at this timestamp.
            drop(drawn);
            self.clock.advance(self.pool.wal().persistent());
            return Err(error);
        }
        chain.settled = true;
        let (end, underfull) = (chain.end, std::mem::take(&mut chain.underfull));
        drop(chain);
        records.count();
        let sync = self.decide(drawn, end, durability);
        drop(flight);
        // Readers of a turn's changes wait for the locks, since `visible` has passed it.
        let held =
            Some((at_work, locks)).filter(|_| sync && turn.is_some() && !planted(Bug::UnlockBeforeDurable));
        if let Some(ticket) = ticket {
            self.pool.wal().retire_when_persistent(ticket, end);
        }
        drop((permit, reservation, grant));
        for (tree, key) in &underfull {
            tidy(*tree, &self.pool, key);
        }
        drop(inside);
        self.acknowledge(timestamp, sync.then_some(end))?;
        drop(held);
        Ok(Committed { timestamp, existed: olds.iter().any(Option::is_some) })
    }

    /// Admits a transaction that has read in its `turn`, and has locked what it writes.
    ///
    /// # Errors
    /// [`Error::Conflict`] if a later one has read or written that, or if the old versions that its
    /// turn needs may be gone.
    fn admit<'a>(
        &'a self,
        turn: Turn<'_>,
        me: u64,
        writes: &Arc<WriteSet>,
        locks: &LockSet<'_>,
    ) -> Result<Begun<'a>> {
        let order = self.order.as_ref().expect("turns are those of timestamp ordering");
        // Before it begins: a validator of a range marks the table, and then looks here.
        let flight = self.flight.announce(me, Arc::clone(writes));
        let mut tables: Vec<TableId> = writes.keys().map(|(table, _)| table).collect();
        tables.dedup();
        let at_work = order.begin(turn.timestamp, tables).ok_or(Error::Conflict)?;
        // After it has begun: from here on it bounds the collection itself.
        if turn.snapshot.expired() || !order.admits(locks.slots(), turn.timestamp) {
            return Err(Error::Conflict);
        }
        Ok((flight, Some(at_work)))
    }

    /// Begins a commit that has not read in a turn.
    fn announce(&self, me: u64, writes: &Arc<WriteSet>) -> Begun<'_> {
        (self.flight.announce(me, Arc::clone(writes)), self.begin_above())
    }

    /// The timestamp of the `turn`, or a new one, to be decided.
    fn timestamp_of(&self, turn: Option<Turn<'_>>) -> Result<(Option<Ticket<'_>>, Timestamp)> {
        if let Some(turn) = turn {
            return Ok((None, turn.timestamp));
        }
        let drawn = self.clock.draw(|| self.advance())?;
        let timestamp = drawn.timestamp();
        Ok((Some(drawn), timestamp))
    }

    /// With timestamp ordering, begins a commit that will draw its timestamp.
    pub(super) fn begin_above(&self) -> Option<AtWork<'_>> {
        self.order.as_ref().map(|order| order.begin_above(self.clock.highest_drawn()))
    }

    /// With timestamp ordering, keeps earlier turns from changing the locked keys. It comes before
    /// the old versions: those of one key have rising timestamps, also if this commit fails.
    fn note_written(&self, locks: &LockSet<'_>, at: Timestamp) {
        if let Some(order) = &self.order {
            order.wrote(locks.slots(), at);
        }
    }

    /// Validates reads as of `at`. With timestamp ordering, it first keeps transactions below that
    /// from changing them. Those at work hold locks and are in flight, which the validation sees.
    fn check_reads(&self, tables: &[Arc<TableState>], reads: &ReadSet, me: u64, at: Timestamp) -> Result<()> {
        if let Some(order) = &self.order {
            self.mark_reads(order, reads, Timestamp(at.0.saturating_sub(1)));
        }
        validate(self, tables, reads, me)
    }

    fn mark_reads(&self, order: &TimestampOrder, reads: &ReadSet, at: Timestamp) {
        for point in reads.points() {
            order.read(self.locks.slot(point.table, point.key), at);
        }
        for range in reads.ranges() {
            order.note_scan(range.table(), at);
        }
    }

    /// Checks that no entry is newer than the commit that replaces it.
    fn check_newest(&self, olds: &[Option<Old>], timestamp: Timestamp) -> Result<()> {
        match olds.iter().flatten().map(|old| old.timestamp).max() {
            Some(newest) if newest >= timestamp => Err(self.never_drawn(newest)),
            _ => Ok(()),
        }
    }

    /// Pushes the old versions and applies the records. After an error nothing is changed, and the
    /// end of the log record that says so is returned, if there is one.
    fn apply(
        &self,
        chain: &mut Chain<'_, '_>,
        records: &Records<'_>,
        in_turn: bool,
    ) -> std::result::Result<(), (Error, Option<Lsn>)> {
        let timestamp = chain.timestamp;
        let mut pushed = 0;
        let push = records.kept().try_for_each(|((table, key, write), old)| {
            let none = OldVersion { timestamp: Timestamp::NONE, value: OldValue::Absent };
            let old = old.as_ref().map_or(none, Old::version);
            self.versions.push(table, key, timestamp, *write == Write::Delete, &old)?;
            pushed += 1;
            Ok(())
        });
        records.note_passing(&self.pool);
        let applied = push.and_then(|()| {
            records.each(&self.pool, timestamp, |tree, change, inverse| chain.apply(tree, change, inverse))
        });
        let Err(error) = applied else { return Ok(()) };
        if chain.lsns.is_empty() {
            for ((table, key, _), _) in records.kept().take(pushed) {
                self.versions.retract(table, key, timestamp);
            }
            return Err((error, None));
        }
        let end = take_back(chain, records, &error);
        self.order.iter().for_each(TimestampOrder::note_taken_back);
        if end.is_some() {
            // The pages refer to the old values again, so they are not freed with the old versions.
            // Other threads may have read the new ones.
            // Those of a turn may have snapshots above it.
            let above_readers = match in_turn {
                true => Timestamp(self.clock.highest_drawn().0 + 1),
                false => timestamp,
            };
            self.garbage.note_taken_back(above_readers);
            for ((table, key, _), _) in records.kept().take(pushed) {
                self.versions.restored(table, key, timestamp);
            }
        }
        Err((error, end))
    }

    /// Decides an applied commit whose last record ends at `end`, unless its timestamp was decided
    /// before. Returns whether it waits for the log.
    pub(crate) fn decide(&self, drawn: Option<Ticket<'_>>, end: Lsn, durability: Durability) -> bool {
        let sync = durability == Durability::Sync && !planted(Bug::AcknowledgeBeforeFlush);
        if let Some(drawn) = drawn {
            drawn.complete(if sync { Outcome::Sync { needs: end } } else { Outcome::Buffered });
            self.clock.advance(self.pool.wal().persistent());
        }
        sync
    }

    /// Waits until the commit may be reported: log durable up to `end`, if given, and commit
    /// visible.
    pub(crate) fn acknowledge(&self, timestamp: Timestamp, end: Option<Lsn>) -> Result<()> {
        if let Some(end) = end {
            self.pool.meanwhile();
            self.pool.wal().acknowledge(end)?;
        }
        self.clock.wait_visible(timestamp, || self.advance())
    }

    /// The error for an entry whose timestamp is above the clock's.
    pub(crate) fn never_drawn(&self, timestamp: Timestamp) -> Error {
        let what = format!("an entry has timestamp {timestamp}, which was never drawn");
        Error::corrupt(self.pool.file(), None, what)
    }

    /// The entries of all keys, in the order of the write set. Loads their leaves.
    fn read_old(&self, tables: &[Arc<TableState>], writes: &WriteSet) -> Result<Vec<Option<Old>>> {
        let mut olds = Vec::with_capacity(writes.len());
        let mut value = Vec::new();
        for (table, key, _) in writes.iter() {
            let found = tree_of(tables, table).get_into(&self.pool, key, &mut value)?;
            olds.push(found.map(|(timestamp, flags)| Old { timestamp, flags, value: value[..].into() }));
        }
        Ok(olds)
    }
}

/// Splits the leaves that a large write set would crowd, if they are many over all tables.
fn make_room(pool: &Pool, tables: &[Arc<TableState>], writes: &WriteSet) -> Result<()> {
    if writes.len() <= CROWDED_MAX {
        return Ok(());
    }
    let puts = |table: &TableState| -> Vec<_> {
        let changes = writes.in_range(table.id, (Bound::Unbounded, Bound::Unbounded));
        let put = changes.filter_map(|(key, write)| match write {
            Write::Put(value) => Some((&key[..], value.leaf_bytes())),
            Write::Delete => None,
        });
        put.collect()
    };
    let enough = CROWDED_MAX + 1;
    let mut crowded_leaves = 0;
    for table in tables {
        crowded_leaves += crowded(table.tree, pool, &puts(table), enough - crowded_leaves)?;
        if crowded_leaves == enough {
            return tables.iter().try_for_each(|table| make_room_for(table.tree, pool, &puts(table)));
        }
    }
    Ok(())
}
