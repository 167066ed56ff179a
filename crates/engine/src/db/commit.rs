//! Committing, step by step as the essay of the transactions (`txn.rs`) and the rules of the log want it.
//!
//! 1. Enter the gate; lock the keys; read what the entries are. From here on nobody else changes them.
//! 2. Split the leaves that would be crowded, if they are many; then reserve log space and pages for everything else,
//!    compensations of a recovery included. Nothing can fail for want of room after this, unless other commits crowd
//!    many leaves anew.
//! 3. Announce the write set, draw the timestamp, validate the read set.
//! 4. Push the old versions, then change key after key, each one a record that carries its inverse. The last record
//!    carries the commit; so a transaction that changes one key is a single record.
//! 5. Complete the timestamp, unlock, merge the leaves that are nearly empty now, leave. Flush if the commit is to be
//!    durable, and wait until it is visible.
//!
//! Leaves are not merged before the commit is complete. So an undo of it finds room where it puts entries back, however many
//! it has removed, unless others have filled it meanwhile; it splits little or nothing.
//!
//! A transaction of several records holds a ticket of the log from before its first record until its last one is
//! durable, so that the log is not cut between the two. A single record needs none: it is there or it is not.
//!
//! A failure before the first change takes the versions back and changes nothing. A commit that fails after it, for
//! instance because a page cannot be read, takes its changes back (`commit/take_back.rs`): it ends as if it had never
//! begun. Only if that fails too, or the thread panics, does half a transaction stay in the pages. Then the log fails: nothing more is read
//! or promised, and recovery undoes it.

mod take_back;

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::core::{Core, TableState};
use super::garbage::{GarbageKey, Transfer, garbage_tree};
use super::undo::{Inverse, OldEntry};
use crate::buffer::{Grant, Pool};
use crate::config::Durability;
use crate::error::{Error, Result};
use crate::ids::{ByClass, Lsn, PageId, SizeClass, TableId, Timestamp};
use crate::index::node::OVERFLOW;
use crate::index::overflow::Reference;
use crate::index::{CROWDED_MAX, Change, SPLIT_FRAMES, Tree, Write as TreeWrite, log_bytes};
use crate::planted::{Bug, planted};
use crate::txn::clock::{Outcome, Ticket};
use crate::txn::gate::Alone;
use crate::txn::next_owner;
use crate::txn::read_set::ReadSet;
use crate::txn::versions::{OldValue, OldVersion, OverflowRef};
use crate::txn::write_set::{NewValue, Write, WriteSet};
use crate::wal::Reservation;

/// Everything a commit needs to know.
pub(crate) struct Work<'a> {
    /// The tables that reads and writes name.
    pub(crate) tables: &'a [Arc<TableState>],
    pub(crate) reads: &'a ReadSet,
    pub(crate) writes: WriteSet,
    /// Under which entry of the garbage tree each large value in `writes` is.
    pub(crate) large: &'a dyn Fn(OverflowRef) -> GarbageKey,
    /// What else changes in the garbage tree.
    pub(crate) transfers: Vec<Transfer>,
    pub(crate) durability: Durability,
    /// With nobody else inside the gate until what was read is validated.
    pub(crate) alone: Option<Alone<'a>>,
}

/// How a commit ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Committed {
    /// Its timestamp; none where nothing was changed.
    pub(crate) timestamp: Timestamp,
    /// Whether a key that it wrote was there before.
    pub(crate) existed: bool,
}

/// An entry as it was before the commit, with the bytes its leaf had.
struct Old {
    timestamp: Timestamp,
    flags: u8,
    value: Box<[u8]>,
}

impl Old {
    fn entry(&self) -> OldEntry<'_> {
        OldEntry { timestamp: self.timestamp, flags: self.flags, value: &self.value }
    }

    fn reference(&self) -> Option<Reference> {
        (self.flags & OVERFLOW != 0).then(|| Reference::decode(&self.value)).flatten()
    }

    fn version(&self) -> OldVersion<&[u8]> {
        let value = match self.reference() {
            Some(reference) => OldValue::Overflow(OverflowRef(reference.encode())),
            None => OldValue::Inline(&self.value[..]),
        };
        OldVersion { timestamp: self.timestamp, value }
    }
}

/// What a commit is going to log.
#[derive(Default)]
struct Estimate {
    records: usize,
    log_bytes: u64,
    /// Bytes that leaves gain, and may be split by, where any leaf is changed: by the class of the pages.
    leaf_bytes: [Option<u64>; SizeClass::COUNT],
}

impl Estimate {
    fn record(&mut self, tree: Tree, change: &Change<'_>, inverse: &Inverse<'_>) {
        const ENTRY: u64 = 24;
        self.records += 1;
        self.log_bytes += log_bytes(change, inverse.encoded_bytes()) + log_bytes(&inverse.change(), 0);
        let leaf_bytes = self.leaf_bytes[tree.class().index()].get_or_insert_default();
        if let Change::Put { key, value, .. } = change {
            *leaf_bytes += (key.len() + value.len()) as u64 + ENTRY;
        }
    }

    /// Pages that splits may make, with their class: leaves that are half full afterwards, those of crowded leaves that
    /// were not split before, and some inner nodes.
    fn pages(&self) -> impl Iterator<Item = (SizeClass, u64)> + '_ {
        SizeClass::all().zip(self.leaf_bytes).filter_map(|(class, leaf_bytes)| {
            Some((class, 2 + CROWDED_MAX as u64 + leaf_bytes? * 2 / class.page_bytes() as u64))
        })
    }
}

impl Estimate {
    /// Frames that are in hand at once, at most.
    fn frames(&self) -> ByClass<u32> {
        self.leaf_bytes.map(|bytes| if bytes.is_some() { SPLIT_FRAMES } else { 0 })
    }
}

/// The records of one transaction on their way into the log.
struct Chain<'a, 'p> {
    core: &'p Core,
    timestamp: Timestamp,
    left: usize,
    /// Those that are in the log.
    lsns: Vec<Lsn>,
    end: Lsn,
    undo: Vec<u8>,
    /// Where leaves are nearly empty now.
    underfull: Vec<(Tree, Box<[u8]>)>,
    reservation: &'a mut Reservation<'p>,
    grant: &'a mut Grant<'p>,
    /// The transaction is in the pages as a whole, or not at all.
    settled: bool,
}

/// A panic may leave half a transaction in the pages, and old versions that say otherwise. The log fails before the
/// timestamp is decided and the keys are unlocked, which are dropped after this.
impl Drop for Chain<'_, '_> {
    fn drop(&mut self) {
        if !self.settled {
            self.core.pool.wal().poison("a thread panicked while it committed");
        }
    }
}

impl<'p> Chain<'_, 'p> {
    fn apply(&mut self, tree: Tree, change: Change<'_>, inverse: &Inverse<'_>) -> Result<()> {
        inverse.encode(&mut self.undo);
        self.left -= 1;
        let mut underfull = false;
        let mut write = TreeWrite {
            transaction: self.timestamp,
            previous: self.previous(),
            undo: &self.undo,
            commit: self.left == 0,
            reservation: Some(&mut *self.reservation),
            grant: Some(&mut *self.grant),
            underfull: Some(&mut underfull),
            ..TreeWrite::default()
        };
        let appended = tree.apply(&self.core.pool, &mut write, change)?;
        if underfull {
            self.underfull.push((tree, change.key().into()));
        }
        self.lsns.push(appended.lsn);
        self.end = appended.end;
        Ok(())
    }

    /// The record before the next one.
    fn previous(&self) -> Lsn {
        self.lsns.last().copied().unwrap_or(Lsn::NONE)
    }
}

/// The tree of a table among those a transaction has used.
pub(crate) fn tree_of(tables: &[Arc<TableState>], id: TableId) -> Tree {
    state_of(tables, id).tree
}

fn state_of(tables: &[Arc<TableState>], id: TableId) -> &TableState {
    tables.iter().find(|table| table.id == id).expect("a transaction knows the tables it has used")
}

impl Core {
    /// Commits, or fails with nothing changed.
    pub(crate) fn commit(&self, work: Work<'_>) -> Result<Committed> {
        self.check()?;
        if work.writes.is_empty() && work.transfers.is_empty() {
            return self.commit_reads(work);
        }
        let outcome = self.commit_writes(work);
        self.count(&outcome);
        self.after_commit();
        outcome
    }

    /// Counts how a commit ended.
    pub(super) fn count<T>(&self, outcome: &Result<T>) {
        match outcome {
            Ok(_) => self.counters.commits.raise(),
            Err(Error::Conflict) => _ = self.counters.conflicts.fetch_add(1, Relaxed),
            Err(_) => _ = self.counters.aborts.fetch_add(1, Relaxed),
        }
    }

    /// A transaction that wrote nothing: what it read must hold, and must be decided.
    fn commit_reads(&self, mut work: Work<'_>) -> Result<Committed> {
        if work.reads.is_empty() {
            return Ok(Committed { timestamp: Timestamp::NONE, existed: false });
        }
        let validated = self.validate(work.tables, work.reads, next_owner());
        // The pages of a table that was dropped may be nobody's any more, or somebody else's: that explains all else.
        work.tables.iter().try_for_each(|table| table.check())?;
        validated.inspect_err(|_| {
            self.counters.conflicts.fetch_add(1, Relaxed);
        })?;
        drop(work.alone.take());
        // An absent key has no timestamp: if any was deleted lately, wait for whatever may have done it.
        let deleted = work.tables.iter().any(|table| !self.versions.nothing_deleted(table.id));
        let needs = if deleted { self.clock.highest_drawn() } else { work.reads.highest() };
        if needs > self.clock.highest_drawn() {
            return Err(self.never_drawn(needs));
        }
        self.clock.wait_visible(needs, || self.pump())?;
        self.counters.commits.raise();
        Ok(Committed { timestamp: Timestamp::NONE, existed: false })
    }

    fn commit_writes(&self, work: Work<'_>) -> Result<Committed> {
        let Work { tables, reads, writes, large, transfers, durability, alone } = work;
        let me = next_owner();
        let writes = Arc::new(writes);
        let inside = self.gate.enter(|reads| writes.keys().any(|(table, key)| reads.holds(table, key)));
        // A table is dropped by who is alone inside the gate, so this holds until the end.
        tables.iter().try_for_each(|table| table.check())?;
        let locks = self.locks.lock(me, writes.keys());
        let olds = self.read_old(tables, &writes)?;
        let steps = || writes.iter().zip(&olds);
        let estimate = self.estimate(tables, steps(), large, &transfers);
        if estimate.records == 0 {
            // Nothing but deletions of what is not there.
            self.validate(tables, reads, me)?;
            drop((alone, locks, inside));
            return self.nothing_to_do(durability);
        }
        make_room(&self.pool, tables, &writes)?;
        // Each page that a split makes is logged half full, in a record of its own.
        let split_bytes: u64 =
            estimate.pages().map(|(class, pages)| pages * (class.page_bytes() as u64 / 2 + 256)).sum();
        let places = estimate.pages().map(|(class, pages)| pages * class.places()).sum();
        let mut grant = self.pool.grant(places, estimate.frames())?;
        let mut reservation = self.pool.reserve_log(estimate.log_bytes + 2 * 64 + split_bytes)?;
        let flight = self.flight.announce(me, Arc::clone(&writes));
        let permit = (estimate.records > 1).then(|| self.chains.take());
        let ticket = permit.is_some().then(|| self.pool.wal().enter());
        let drawn = self.clock.draw(|| self.pump())?;
        let timestamp = drawn.timestamp();
        if let Err(error) = self.validate(tables, reads, me) {
            drop(drawn);
            self.clock.advance(self.pool.wal().durable());
            return Err(error);
        }
        drop(alone);
        let newest = olds.iter().flatten().map(|old| old.timestamp).max();
        if newest.is_some_and(|newest| newest >= timestamp) {
            drop(drawn);
            self.clock.advance(self.pool.wal().durable());
            return Err(self.never_drawn(newest.unwrap_or_default()));
        }
        let kept = || steps().filter(|((_, _, write), old)| old.is_some() || **write != Write::Delete);
        let mut chain = Chain {
            core: self,
            timestamp,
            left: estimate.records,
            lsns: Vec::with_capacity(estimate.records),
            end: Lsn::NONE,
            undo: Vec::new(),
            underfull: Vec::new(),
            reservation: &mut reservation,
            grant: &mut grant,
            settled: false,
        };
        let mut pushed = 0;
        let push = kept().try_for_each(|((table, key, write), old)| {
            let none = OldVersion { timestamp: Timestamp::NONE, value: OldValue::Absent };
            let old = old.as_ref().map_or(none, Old::version);
            self.versions.push(table, key, timestamp, *write == Write::Delete, &old)?;
            pushed += 1;
            Ok(())
        });
        self.note_passing(steps(), &transfers);
        let applied = push.and_then(|()| self.apply_all(&mut chain, tables, steps(), large, &transfers));
        if let Err(error) = applied {
            if chain.lsns.is_empty() {
                for ((table, key, _), _) in kept().take(pushed) {
                    self.versions.retract(table, key, timestamp);
                }
            } else if let Some(end) = self.take_back(&mut chain, tables, steps(), large, &transfers, &error) {
                // What is in the pages again is not what the old versions alone refer to; and what was in them, others
                // may have found.
                self.garbage.note_taken_back(timestamp);
                for ((table, key, _), _) in kept().take(pushed) {
                    self.versions.restored(table, key, timestamp);
                }
                if let Some(ticket) = ticket {
                    self.pool.wal().retire_when_durable(ticket, end);
                }
            }
            chain.settled = true;
            // Not before the pages are as they were: until then nobody may see as of this time.
            drop(drawn);
            self.clock.advance(self.pool.wal().durable());
            return Err(error);
        }
        chain.settled = true;
        let (end, underfull) = (chain.end, std::mem::take(&mut chain.underfull));
        drop(chain);
        for ((table, _, write), old) in steps() {
            match (write, old) {
                (Write::Put(_), None) => state_of(tables, table).count.add(1),
                (Write::Delete, Some(_)) => state_of(tables, table).count.add(-1),
                _ => {}
            }
        }
        let sync = self.decide(drawn, end, durability);
        drop((flight, locks));
        if let Some(ticket) = ticket {
            self.pool.wal().retire_when_durable(ticket, end);
        }
        drop((permit, reservation, grant));
        for (tree, key) in &underfull {
            tree.tidy(&self.pool, key);
        }
        drop(inside);
        self.acknowledge(timestamp, sync.then_some(end))?;
        Ok(Committed { timestamp, existed: olds.iter().any(Option::is_some) })
    }

    /// Decides a commit that is applied and whose last record ends at `end`; whether it waits for the log.
    pub(super) fn decide(&self, drawn: Ticket<'_>, end: Lsn, durability: Durability) -> bool {
        let sync = durability == Durability::Sync && !planted(Bug::AcknowledgeBeforeFlush);
        drawn.complete(if sync { Outcome::Sync { needs: end } } else { Outcome::Buffered });
        self.clock.advance(self.pool.wal().durable());
        sync
    }

    /// Returns when the commit at `timestamp` may be reported: the log durable up to `end`, if it waits for that, and
    /// everybody able to see it.
    pub(super) fn acknowledge(&self, timestamp: Timestamp, end: Option<Lsn>) -> Result<()> {
        if let Some(end) = end {
            self.pool.wal().acknowledge(end)?;
        }
        self.clock.wait_visible(timestamp, || self.pump())
    }

    /// An entry has a timestamp that the clock, which starts above all there ever were, has not reached.
    pub(super) fn never_drawn(&self, timestamp: Timestamp) -> Error {
        let what = format!("an entry has timestamp {timestamp}, which was never drawn");
        Error::corrupt(self.pool.file(), None, what)
    }

    /// What the entries of all keys are, in the order of the write set. Brings their leaves into frames.
    fn read_old(&self, tables: &[Arc<TableState>], writes: &WriteSet) -> Result<Vec<Option<Old>>> {
        let mut olds = Vec::with_capacity(writes.len());
        let mut value = Vec::new();
        for (table, key, _) in writes.iter() {
            let found = tree_of(tables, table).get_into(&self.pool, key, &mut value)?;
            olds.push(found.map(|(timestamp, flags)| Old { timestamp, flags, value: value[..].into() }));
        }
        Ok(olds)
    }

    /// The records to come, without their timestamp.
    fn estimate<'w>(
        &self,
        tables: &[Arc<TableState>],
        steps: impl Iterator<Item = ((TableId, &'w Arc<[u8]>, &'w Write), &'w Option<Old>)>,
        large: &dyn Fn(OverflowRef) -> GarbageKey,
        transfers: &[Transfer],
    ) -> Estimate {
        let (garbage, mut estimate) = (garbage_tree(&self.pool), Estimate::default());
        for_each_record(
            garbage,
            tables,
            steps,
            large,
            transfers,
            Timestamp::NONE,
            |tree, change, inverse| {
                estimate.record(tree, &change, inverse);
                Ok(())
            },
        )
        .expect("counting does not fail");
        estimate
    }

    /// Tells a verification that runs meanwhile which values and tables are about to change hands.
    fn note_passing<'w>(
        &self,
        steps: impl Iterator<Item = ((TableId, &'w Arc<[u8]>, &'w Write), &'w Option<Old>)>,
        transfers: &[Transfer],
    ) {
        let Some(census) = self.pool.census().filter(|_| !planted(Bug::PassingUntold)) else { return };
        for ((_, _, write), old) in steps {
            if let Write::Put(NewValue::Overflow(OverflowRef(reference))) = write {
                Reference::decode(reference).into_iter().for_each(|new| census.pass_on(new.head));
            }
            old.as_ref().and_then(Old::reference).into_iter().for_each(|old| census.pass_on(old.head));
        }
        for Transfer::Claim(key, reference) | Transfer::Discard(key, reference) in transfers {
            census.pass_on(reference.map_or(key.id(), |reference| reference.head));
        }
    }

    fn apply_all<'w>(
        &self,
        chain: &mut Chain<'_, '_>,
        tables: &[Arc<TableState>],
        steps: impl Iterator<Item = ((TableId, &'w Arc<[u8]>, &'w Write), &'w Option<Old>)>,
        large: &dyn Fn(OverflowRef) -> GarbageKey,
        transfers: &[Transfer],
    ) -> Result<()> {
        let (garbage, timestamp) = (garbage_tree(&self.pool), chain.timestamp);
        for_each_record(garbage, tables, steps, large, transfers, timestamp, |tree, change, inverse| {
            chain.apply(tree, change, inverse)
        })
    }

    /// Whether everything read still holds: no key changed or locked by another, no range changed or about to be.
    pub(crate) fn validate(&self, tables: &[Arc<TableState>], reads: &ReadSet, me: u64) -> Result<()> {
        if reads.is_contradicted() {
            return Err(Error::Conflict);
        }
        let mut value = Vec::new();
        for point in reads.points() {
            // The lock first: a commit that ends in between has then been applied, and is seen.
            if self.locks.is_locked_by_other(point.table, point.key, me) {
                return Err(Error::Conflict);
            }
            let now = tree_of(tables, point.table).get_into(&self.pool, point.key, &mut value)?;
            if now.map(|(timestamp, _)| timestamp) != point.seen {
                return Err(Error::Conflict);
            }
        }
        for range in reads.ranges() {
            let Some(covered) = range.covered() else { continue };
            if self.flight.any_foreign_in(range.table(), covered, me) {
                return Err(Error::Conflict);
            }
            let tree = tree_of(tables, range.table());
            let unmoved = |&(leaf, version): &(PageId, u64)| tree.leaf_version_is(&self.pool, leaf, version);
            let moved = !range.leaves().is_some_and(|leaves| leaves.iter().all(unmoved));
            if moved && !super::scan::digest_holds(self, tree, range)? {
                return Err(Error::Conflict);
            }
        }
        Ok(())
    }
}

/// Splits the leaves that a large write set would crowd, if they are many in all tables together.
fn make_room(pool: &Pool, tables: &[Arc<TableState>], writes: &WriteSet) -> Result<()> {
    if writes.len() <= CROWDED_MAX {
        return Ok(());
    }
    let puts = |table: &TableState| -> Vec<_> {
        let changes = writes.range(table.id, (Bound::Unbounded, Bound::Unbounded));
        let put = changes.filter_map(|(key, write)| match write {
            Write::Put(value) => Some((&key[..], value.leaf_bytes())),
            Write::Delete => None,
        });
        put.collect()
    };
    let enough = CROWDED_MAX + 1;
    let mut crowded = 0;
    for table in tables {
        crowded += table.tree.crowded(pool, &puts(table), enough - crowded)?;
        if crowded == enough {
            return tables.iter().try_for_each(|table| table.tree.make_room_for(pool, &puts(table)));
        }
    }
    Ok(())
}

/// Calls `record` for each record of a commit: for every key its change, then what it does to the garbage tree.
fn for_each_record<'w>(
    garbage: Tree,
    tables: &[Arc<TableState>],
    steps: impl Iterator<Item = ((TableId, &'w Arc<[u8]>, &'w Write), &'w Option<Old>)>,
    large: &dyn Fn(OverflowRef) -> GarbageKey,
    transfers: &[Transfer],
    timestamp: Timestamp,
    mut record: impl FnMut(Tree, Change<'_>, &Inverse<'_>) -> Result<()>,
) -> Result<()> {
    for ((table, key, write), old) in steps {
        if old.is_none() && *write == Write::Delete {
            continue;
        }
        let tree = tree_of(tables, table);
        let inverse = Inverse { root: tree.root, key, old: old.as_ref().map(Old::entry) };
        let change = match write {
            Write::Put(NewValue::Inline(value)) => Change::Put { key, timestamp, flags: 0, value },
            Write::Put(NewValue::Overflow(OverflowRef(value))) => {
                Change::Put { key, timestamp, flags: OVERFLOW, value }
            }
            Write::Delete => Change::Remove { key },
        };
        record(tree, change, &inverse)?;
        if let Write::Put(NewValue::Overflow(reference)) = write {
            let claimed = Reference::decode(&reference.0);
            transfer(garbage, &Transfer::Claim(large(*reference), claimed), &mut record)?;
        }
        if let Some(reference) = old.as_ref().and_then(Old::reference) {
            let discard = Transfer::Discard(GarbageKey::value(reference.head), Some(reference));
            transfer(garbage, &discard, &mut record)?;
        }
    }
    transfers.iter().try_for_each(|each| transfer(garbage, each, &mut record))
}

fn transfer(
    garbage: Tree,
    transfer: &Transfer,
    record: &mut impl FnMut(Tree, Change<'_>, &Inverse<'_>) -> Result<()>,
) -> Result<()> {
    let (Transfer::Claim(key, reference) | Transfer::Discard(key, reference)) = transfer;
    let bytes = reference.map(|reference| reference.encode());
    let value = bytes.as_ref().map_or(&[][..], |bytes| bytes);
    let entry = OldEntry { timestamp: Timestamp::NONE, flags: 0, value };
    match transfer {
        Transfer::Claim(..) => {
            let inverse = Inverse { root: garbage.root, key: key.bytes(), old: Some(entry) };
            record(garbage, Change::Remove { key: key.bytes() }, &inverse)
        }
        Transfer::Discard(..) => {
            let inverse = Inverse { root: garbage.root, key: key.bytes(), old: None };
            record(garbage, super::garbage::put(key, value), &inverse)
        }
    }
}
