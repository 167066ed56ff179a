//! Stress test of the commit protocol of [`super`]: many threads over one map behind a mutex.
//!
//! Threads open, close and charge accounts; money only moves. Every snapshot must see the same sum,
//! by points and by scan. Transactions that read a whole range and insert into it must not miss
//! each other.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::clock::{Clock, Outcome};
use super::effort::{Effort, Protected};
use super::flight::InFlight;
use super::gate::{Alone, Gate};
use super::locks::LockTable;
use super::read_set::ReadSet;
use super::snapshots::{MonotonicTime, Snapshots};
use super::versions::{OldValue, OldVersion, Room, Versions};
use super::write_set::{NewValue, Write, WriteSet};
use super::{Key, KeyRange, next_owner};
use crate::{Error, Lsn, Result, TableId, Timestamp};

const TABLE: TableId = TableId(1);
const ALL: KeyRange<'static> = (Bound::Unbounded, Bound::Unbounded);
const ACCOUNTS: u8 = 24;
/// Fewer than accounts: some share a lock and a chain of old versions.
const CHAINS: usize = 16;
const TOTAL: u64 = 24_000;

type Leaf = BTreeMap<Key, (Timestamp, u64)>;

struct Bank {
    leaf: Mutex<Leaf>,
    gate: Gate,
    locks: LockTable,
    flight: InFlight,
    clock: Clock,
    versions: Versions,
    snapshots: Arc<Snapshots>,
    conflicts: AtomicU64,
    with_priority: AtomicU64,
}

/// A transaction over the bank's one leaf.
#[derive(Default)]
struct Transfer {
    reads: ReadSet,
    writes: WriteSet,
}

fn number(value: &NewValue) -> u64 {
    match value {
        NewValue::Inline(bytes) => u64::from_le_bytes(bytes[..].try_into().unwrap()),
        NewValue::Overflow(_) => unreachable!("no overflow values in this test"),
    }
}

impl Bank {
    fn new() -> Self {
        let room = Room { chains: CHAINS, bytes_max: 1 << 20, bytes_reserved: 8 << 20, entry_bytes_max: 64 };
        let opened = |n| (Key::from([n].as_slice()), (Timestamp(1), TOTAL / u64::from(ACCOUNTS)));
        Bank {
            leaf: Mutex::new((0..ACCOUNTS).map(opened).collect()),
            gate: Gate::new(Arc::new(MonotonicTime::new())),
            locks: LockTable::new(CHAINS),
            flight: InFlight::new(),
            clock: Clock::starting_above(Timestamp(1), 8),
            versions: Versions::new(room).unwrap(),
            snapshots: Snapshots::new(Arc::new(MonotonicTime::new())),
            conflicts: AtomicU64::new(0),
            with_priority: AtomicU64::new(0),
        }
    }

    fn advance(&self) -> Result<()> {
        self.clock.advance(Lsn::NONE);
        Ok(())
    }

    fn get(&self, transfer: &mut Transfer, key: &[u8]) -> Option<u64> {
        match transfer.writes.get(TABLE, key) {
            Some(Write::Put(value)) => return Some(number(value)),
            Some(Write::Delete) => return None,
            None => {}
        }
        let entry = self.leaf.lock().get(key).copied();
        transfer.reads.point(TABLE, key, entry.map(|(timestamp, _)| timestamp));
        entry.map(|(_, value)| value)
    }

    fn scan(&self, transfer: &mut Transfer) -> Vec<(Key, u64)> {
        let id = transfer.reads.begin_range(TABLE);
        transfer.reads.cover(&id, ALL);
        let leaf = self.leaf.lock().clone();
        leaf.iter().for_each(|(key, (timestamp, _))| transfer.reads.saw(&id, key, *timestamp));
        leaf.into_iter().map(|(key, (_, value))| (key, value)).collect()
    }

    fn validate(&self, reads: &ReadSet, me: u64) -> Result<()> {
        if reads.is_contradicted() {
            return Err(Error::Conflict);
        }
        for point in reads.points() {
            let locked = self.locks.is_locked_by_other(TABLE, point.key, me);
            let now = self.leaf.lock().get(point.key).map(|entry| entry.0);
            if locked || now != point.seen {
                return Err(Error::Conflict);
            }
        }
        for range in reads.ranges() {
            let foreign =
                range.covered().is_some_and(|covered| self.flight.any_foreign_in(TABLE, covered, me));
            let mut digest = range.digest().fresh();
            self.leaf.lock().iter().for_each(|(key, (timestamp, _))| digest.add(key, *timestamp));
            if foreign || digest != *range.digest() {
                return Err(Error::Conflict);
            }
        }
        Ok(())
    }

    fn commit(
        &self,
        transfer: &mut Transfer,
        alone: Option<Alone<'_>>,
        random: &mut SmallRng,
    ) -> Result<Timestamp> {
        let me = next_owner();
        let (reads, writes) = (&transfer.reads, Arc::new(std::mem::take(&mut transfer.writes)));
        let inside = self.gate.enter(|reads| writes.keys().any(|(table, key)| reads.holds(table, key)));
        let locks = self.locks.lock(me, writes.keys());
        let flight = self.flight.announce(me, Arc::clone(&writes));
        let ticket = self.clock.draw(|| self.advance())?;
        let timestamp = ticket.timestamp();
        self.validate(reads, me)?;
        drop(alone);
        if random.random_range(0..8) == 0 {
            // Validated but not applied: only locks can stop others here.
            std::thread::sleep(std::time::Duration::from_micros(20));
        }
        let fails = random.random_range(0..16) == 0;
        for (pushed, (table, key, write)) in writes.iter().enumerate() {
            if fails && pushed > 0 {
                writes
                    .keys()
                    .take(pushed)
                    .for_each(|(table, key)| self.versions.retract(table, key, timestamp));
                return Err(Error::Conflict);
            }
            let old = self.leaf.lock().get(key).copied();
            let bytes = old.map(|(_, value)| value.to_le_bytes());
            let old = match (old, &bytes) {
                (Some((timestamp, _)), Some(bytes)) => {
                    OldVersion { timestamp, value: OldValue::Inline(&bytes[..]) }
                }
                _ => OldVersion { timestamp: Timestamp::NONE, value: OldValue::Absent },
            };
            self.versions.push(table, key, timestamp, *write == Write::Delete, &old)?;
        }
        // Entry by entry, so that others see half of it.
        for (_, key, write) in writes.iter() {
            match write {
                Write::Put(value) => self.leaf.lock().insert(Arc::clone(key), (timestamp, number(value))),
                Write::Delete => self.leaf.lock().remove(key),
            };
        }
        ticket.complete(Outcome::Buffered);
        drop((flight, locks, inside));
        self.clock.wait_visible(timestamp, || self.advance())?;
        Ok(timestamp)
    }

    /// Runs `body` until it commits, finally with priority.
    fn update(&self, random: &mut SmallRng, mut body: impl FnMut(&mut Transfer, &mut SmallRng)) -> Timestamp {
        let mut effort = Effort::new(&self.gate);
        loop {
            let mut transfer = Transfer::default();
            let turn = effort.begin_run().and_then(|Protected { turn, reads }| {
                transfer.reads.protect(reads);
                turn
            });
            body(&mut transfer, random);
            let had_turn = turn.is_some();
            let turn = turn.filter(|turn| turn.lasts());
            let lapsed = had_turn && turn.is_none();
            if let Ok(timestamp) = self.commit(&mut transfer, turn.map(|turn| turn.alone()), random) {
                self.with_priority.fetch_add(u64::from(had_turn), SeqCst);
                return timestamp;
            }
            self.conflicts.fetch_add(1, SeqCst);
            if !effort.goes_on(lapsed, &transfer.reads) {
                effort = Effort::new(&self.gate);
            }
            if random.random_range(0..4) == 0 {
                std::thread::yield_now();
            }
        }
    }

    /// Moves money between two accounts; closes an empty account, opens a missing one.
    fn transfer(&self, transfer: &mut Transfer, random: &mut SmallRng) {
        let (from, to) = ([random.random_range(0..ACCOUNTS)], [random.random_range(0..ACCOUNTS)]);
        let balance = self.get(transfer, &from).unwrap_or(0);
        let amount = if random.random_range(0..3) == 0 { balance } else { random.random_range(0..=balance) };
        if balance == amount {
            transfer.writes.delete(TABLE, &from);
        } else {
            transfer.writes.put(TABLE, &from, NewValue::inline(&(balance - amount).to_le_bytes()));
        }
        let balance = self.get(transfer, &to).unwrap_or(0);
        if balance + amount > 0 {
            transfer.writes.put(TABLE, &to, NewValue::inline(&(balance + amount).to_le_bytes()));
        }
    }

    /// Opens an empty account; returns how many of its kind existed. Two concurrent calls write
    /// different keys, but must not see the same number.
    fn open_one_more(&self, transfer: &mut Transfer, name: [u8; 3]) -> usize {
        let there = self.scan(transfer).iter().filter(|(key, _)| key.len() == 3).count();
        transfer.writes.put(TABLE, &name, NewValue::inline(&0u64.to_le_bytes()));
        there
    }

    fn check_a_snapshot(&self) {
        let snapshot = self.snapshots.register(&self.clock);
        let at = snapshot.timestamp();
        let read = |key: &[u8]| match self.leaf.lock().get(key).copied() {
            Some((timestamp, value)) if timestamp <= at => Ok(Some(value)),
            entry => Err(entry),
        };
        let get = |key: &[u8]| {
            read(key).unwrap_or_else(|entry| match self.versions.read(TABLE, key, at) {
                Some(old) => old_number(&old),
                None => {
                    assert!(entry.is_none() || snapshot.expired(), "a version that {at} needs is gone");
                    None
                }
            })
        };
        let points: u64 = (0..ACCOUNTS).filter_map(|n| get(&[n])).sum();
        assert!(points == TOTAL || snapshot.expired(), "{points} by points at {at}");
        let here: Vec<Key> = self.leaf.lock().keys().cloned().collect();
        let mut seen: BTreeMap<Key, u64> =
            here.into_iter().filter_map(|key| Some((key.clone(), get(&key)?))).collect();
        let gone = self.versions.deleted_in(TABLE, ALL, at);
        seen.extend(gone.into_iter().filter_map(|(key, old)| Some((key, old_number(&old)?))));
        let scanned: u64 = seen.values().sum();
        assert!(scanned == TOTAL || snapshot.expired(), "{scanned} by scan at {at}: {seen:?}");
    }
}

fn old_number(old: &OldVersion) -> Option<u64> {
    match &old.value {
        OldValue::Inline(bytes) => Some(u64::from_le_bytes(bytes[..].try_into().unwrap())),
        OldValue::Absent => None,
        OldValue::Part { .. } | OldValue::Overflow(_) => unreachable!("no such values in this test"),
    }
}

#[test]
fn money_is_neither_made_nor_lost_and_no_insert_is_missed() {
    let seed = 0xba9c;
    println!("seed {seed:#x}");
    let bank = Bank::new();
    let stop = AtomicBool::new(false);
    let mut opened: Vec<(Timestamp, usize)> = std::thread::scope(|scope| {
        let (bank, stop) = (&bank, &stop);
        let writers: Vec<_> = (0..4)
            .map(|thread| {
                scope.spawn(move || {
                    let mut random = SmallRng::seed_from_u64(seed + thread);
                    let mut opened = Vec::new();
                    for round in 0..2000 {
                        if round % 10 == 0 {
                            let mut there = 0;
                            let name = [255, thread as u8, (round / 10) as u8];
                            let at = bank.update(&mut random, |transfer, _| {
                                there = bank.open_one_more(transfer, name);
                            });
                            opened.push((at, there));
                        } else {
                            bank.update(&mut random, |transfer, random| bank.transfer(transfer, random));
                        }
                    }
                    opened
                })
            })
            .collect();
        for collector in [false, true] {
            scope.spawn(move || {
                while !stop.load(SeqCst) {
                    if collector {
                        let oldest = bank.snapshots.oldest(&bank.clock);
                        bank.versions.collect(oldest, bank.clock.visible(), &mut Vec::new());
                        std::thread::yield_now();
                    } else {
                        bank.check_a_snapshot();
                    }
                }
            });
        }
        let results: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        stop.store(true, SeqCst);
        results.into_iter().flat_map(|result| result.unwrap()).collect()
    });
    bank.check_a_snapshot();
    opened.sort_unstable();
    let seen: Vec<usize> = opened.iter().map(|(_, there)| *there).collect();
    assert_eq!(seen, (0..800).collect::<Vec<_>>(), "two transactions missed each other's insert");
    println!("{} conflicts, {} with priority", bank.conflicts.load(SeqCst), bank.with_priority.load(SeqCst));
    let now = bank.clock.visible();
    bank.versions.collect(bank.snapshots.oldest(&bank.clock), now, &mut Vec::new());
    assert!(bank.versions.deleted_in(TABLE, ALL, Timestamp(1)).is_empty());
}

/// Each thread raises its flag if the other's is down: each reads what the other writes. If both
/// committed (write skew), both would be inside.
#[test]
fn two_that_read_what_the_other_writes_do_not_both_commit() {
    let seed = 0x5e3;
    println!("seed {seed:#x}");
    let bank = Bank::new();
    let inside = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for (mine, other) in [([200], [201]), ([201], [200])] {
            let (bank, inside) = (&bank, &inside);
            scope.spawn(move || {
                let mut random = SmallRng::seed_from_u64(seed + u64::from(mine[0]));
                for _ in 0..4000 {
                    let mut raised = false;
                    bank.update(&mut random, |transfer, _| {
                        raised = bank.get(transfer, &other).is_none();
                        if raised {
                            transfer.writes.put(TABLE, &mine, NewValue::inline(&1u64.to_le_bytes()));
                        }
                    });
                    if raised {
                        assert_eq!(inside.fetch_add(1, SeqCst), 0, "both flags are up");
                        std::thread::yield_now();
                        inside.fetch_sub(1, SeqCst);
                        bank.update(&mut random, |transfer, _| {
                            transfer.writes.delete(TABLE, &mine);
                        });
                    }
                }
            });
        }
    });
}
