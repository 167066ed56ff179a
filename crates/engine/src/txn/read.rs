//! Reads of a key: now, and at a timestamp.

use super::mvcc::Mvcc;
use super::order::TimestampOrder;
use super::scan::stored;
use super::snapshots::SnapshotHandle;
use super::table::TableState;
use super::versions::OldValue;
use crate::error::{Error, Result};
use crate::ids::Timestamp;
use crate::index::chain::{read_value, read_value_to};
use crate::index::{Copied, Found, Held, Look, Stored, Wanted, Whole, get_many, get_resident};
use crate::planted::{Bug, planted};

/// Attempts of a read outside a transaction if its snapshots are given up.
const ATTEMPTS: u32 = 100;

impl Mvcc {
    /// The visible value of `key` now.
    ///
    /// `visible` is loaded before the entry is read. An inline value written by then, or a key that
    /// is absent and was not deleted lately, is the answer, without a write to shared memory. All
    /// else takes a snapshot: entries of undecided commits, possible deletions, and large values,
    /// whose pages must stay.
    #[inline]
    pub(crate) fn get_now(&self, table: &TableState, key: &[u8]) -> Result<Option<Vec<u8>>> {
        if self.order.is_some() {
            return self.get_in_order(table, key);
        }
        // Before the check: a half-done commit fails the log before its timestamp is decided.
        let visible = self.clock.visible();
        self.check()?;
        table.check()?;
        let found = match table.tree.get(&self.pool, key) {
            Ok(found) => found,
            Err(error) => return table.check().and(Err(error)),
        };
        match self.decided(table, found, visible) {
            // The table may have been dropped, and its pages reused, during the read.
            Some(answer) => table.check().map(|()| answer),
            None => self.get_by_snapshot(table, key),
        }
    }

    /// [`Mvcc::get_now`] with timestamp ordering, whose checks would slow the others' gets.
    #[inline(never)]
    fn get_in_order(&self, table: &TableState, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut value = Vec::new();
        let found = self.copy_now(table, key, Whole, &mut value)?;
        Ok(found.then_some(value))
    }

    /// The number of commits taken back, for [`Mvcc::is_settled`].
    #[inline]
    fn taken_back(&self) -> u64 {
        self.order.as_ref().map_or(0, TimestampOrder::taken_back)
    }

    /// Whether the entry of `key`, not above `visible` and read after `taken_back`, is of a commit
    /// that has ended. With timestamp ordering, one below `visible` may be at work: it has the
    /// lock, or was taken back.
    #[inline]
    fn is_settled(&self, table: &TableState, key: &[u8], taken_back: u64) -> bool {
        self.order.is_none() || self.has_ended(table, key, taken_back)
    }

    /// A failed log, too: it unlocks commits that were not durable, or half done.
    #[cold]
    #[inline(never)]
    fn has_ended(&self, table: &TableState, key: &[u8], taken_back: u64) -> bool {
        planted(Bug::LockNotAwaited)
            || (!self.locks.is_locked_by_other(table.id, key, 0)
                && self.taken_back() == taken_back
                && self.check().is_ok())
    }

    /// Sees to it that `key` has all its versions up to `at`. With timestamp ordering, a commit
    /// below may be at work, or come later.
    pub(crate) fn complete_up_to(&self, table: &TableState, key: &[u8], at: Timestamp) {
        let Some(order) = &self.order else { return };
        let slot = self.locks.slot(table.id, key);
        order.read(slot, at);
        if !planted(Bug::LockNotAwaited) {
            self.locks.wait_out(slot);
        }
    }

    /// [`Mvcc::get_now`] of the wanted bytes into a buffer; returns whether the key is there.
    pub(crate) fn copy_now<W: Wanted>(
        &self,
        table: &TableState,
        key: &[u8],
        wanted: W,
        value: &mut Vec<u8>,
    ) -> Result<bool> {
        // Before the check, as in `get_now`.
        let visible = self.clock.visible();
        let taken_back = self.taken_back();
        self.check()?;
        table.check()?;
        let copied = match table.tree.copy_to(&self.pool, key, wanted, value) {
            Ok(copied) => copied,
            Err(error) => return table.check().and(Err(error)),
        };
        match copied {
            Some(Copied { timestamp, held: Held::Inline })
                if timestamp <= visible && self.is_settled(table, key, taken_back) =>
            {
                table.check().map(|()| true)
            }
            None if self.versions.nothing_deleted(table.id) && self.is_settled(table, key, taken_back) => {
                table.check().map(|()| false)
            }
            _ => self.by_snapshot(|snapshot| {
                self.complete_up_to(table, key, snapshot.timestamp());
                self.copy_at(table, key, snapshot, wanted, value)
            }),
        }
    }

    /// The answer, if the entry found decides it; `visible` was loaded before.
    #[inline]
    pub(crate) fn decided(
        &self,
        table: &TableState,
        found: Option<Found>,
        visible: Timestamp,
    ) -> Option<Option<Vec<u8>>> {
        match found {
            Some(Found { timestamp, value: Stored::Inline(value) }) if timestamp <= visible => {
                Some(Some(value))
            }
            None if self.versions.nothing_deleted(table.id) => Some(None),
            _ => None,
        }
    }

    /// Reads like [`Mvcc::get_now`], but only from memory: no I/O, no waiting.
    pub(crate) fn get_from_memory(&self, table: &TableState, key: &[u8]) -> Option<Result<Option<Vec<u8>>>> {
        // Before the check, as in `get_now`.
        let visible = self.clock.visible();
        let taken_back = self.taken_back();
        if let Err(error) = self.check().and_then(|()| table.check()) {
            return Some(Err(error));
        }
        let value = match get_resident(&self.pool, table.tree, key) {
            Ok(Look::Found(found)) => {
                Ok(self.decided(table, found, visible).filter(|_| self.is_settled(table, key, taken_back))?)
            }
            Ok(Look::Away(_) | Look::Moved) => return None,
            Err(error) => Err(error),
        };
        Some(table.check().and(value))
    }

    /// Reads several keys like [`Mvcc::get_now`], with the missing pages in batches.
    ///
    /// Calls `answer` once per index of `wanted`, in any order.
    pub(crate) fn get_many_now(
        &self,
        wanted: &[(&TableState, &[u8])],
        answer: &mut dyn FnMut(usize, Result<Option<Vec<u8>>>),
    ) {
        let lookups: Vec<_> = wanted.iter().map(|&(table, key)| (table.tree, key)).collect();
        let visible = self.clock.visible();
        let taken_back = self.taken_back();
        get_many(&self.pool, &lookups, &mut |index, found| {
            let (table, key) = wanted[index];
            let value = found.and_then(|found| match self.decided(table, found, visible) {
                Some(value) if self.is_settled(table, key, taken_back) => Ok(value),
                _ => self.get_by_snapshot(table, key),
            });
            // The table may have been dropped during the read.
            answer(index, table.check().and(value));
        });
    }

    /// The visible values of `keys` now, in their order.
    pub(crate) fn get_all_now(&self, table: &TableState, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>> {
        self.check()?;
        table.check()?;
        let wanted: Vec<_> = keys.iter().map(|&key| (table, key)).collect();
        let answers = collect(keys.len(), |answer| self.get_many_now(&wanted, answer));
        // As in `get_now`, but once, after all reads.
        self.check().and(answers)
    }

    pub(crate) fn get_all_at(
        &self,
        table: &TableState,
        keys: &[&[u8]],
        snapshot: &SnapshotHandle,
    ) -> Result<Vec<Option<Vec<u8>>>> {
        self.check()?;
        table.check_at(snapshot.timestamp())?;
        let outcome = collect(keys.len(), |answer| self.get_each_at(table, keys, snapshot, answer));
        // As in `get_at`.
        snapshot.check()?;
        outcome
    }

    /// Reads several keys at a snapshot, which the caller checks afterwards. Calls `answer` once
    /// per index of `keys`, in any order.
    pub(crate) fn get_each_at(
        &self,
        table: &TableState,
        keys: &[&[u8]],
        snapshot: &SnapshotHandle,
        answer: &mut dyn FnMut(usize, Result<Option<Vec<u8>>>),
    ) {
        let at = snapshot.timestamp();
        let wanted: Vec<_> = keys.iter().map(|&key| (table.tree, key)).collect();
        get_many(&self.pool, &wanted, &mut |index, found| {
            let value = found.and_then(|found| self.resolve_at(table, keys[index], at, found));
            answer(index, value.and_then(|value| self.load(value)));
        });
    }

    #[cold]
    fn get_by_snapshot(&self, table: &TableState, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.by_snapshot(|snapshot| {
            self.complete_up_to(table, key, snapshot.timestamp());
            self.get_at(table, key, snapshot)
        })
    }

    #[cold]
    fn by_snapshot<T>(&self, mut read: impl FnMut(&SnapshotHandle) -> Result<T>) -> Result<T> {
        for _ in 0..ATTEMPTS {
            let snapshot = self.snapshots.register(&self.clock);
            match read(&snapshot) {
                Err(Error::SnapshotTooOld) => {}
                outcome => return outcome,
            }
        }
        Err(Error::SnapshotTooOld)
    }

    pub(crate) fn get_at(
        &self,
        table: &TableState,
        key: &[u8],
        snapshot: &SnapshotHandle,
    ) -> Result<Option<Vec<u8>>> {
        let mut value = Vec::new();
        let found = self.copy_at(table, key, snapshot, Whole, &mut value)?;
        Ok(found.then_some(value))
    }

    /// [`Mvcc::get_at`] of the wanted bytes into a buffer; returns whether the key is there.
    pub(crate) fn copy_at<W: Wanted>(
        &self,
        table: &TableState,
        key: &[u8],
        snapshot: &SnapshotHandle,
        wanted: W,
        value: &mut Vec<u8>,
    ) -> Result<bool> {
        self.check()?;
        let at = snapshot.timestamp();
        table.check_at(at)?;
        let outcome = self.find_at(table, key, at, wanted, value);
        // After the read, even a failed one: pages may have been freed under a given-up snapshot.
        snapshot.check()?;
        outcome
    }

    fn find_at<W: Wanted>(
        &self,
        table: &TableState,
        key: &[u8],
        at: Timestamp,
        wanted: W,
        value: &mut Vec<u8>,
    ) -> Result<bool> {
        // The page first, the old versions second.
        let stored = match table.tree.copy_to(&self.pool, key, wanted, value)? {
            Some(Copied { timestamp, held }) if timestamp <= at => match held {
                Held::Inline => return Ok(true),
                Held::Outside(length) => return wanted.inside(length).map(|_| true),
                Held::Overflow(reference) => Some(Stored::Overflow(reference)),
            },
            Some(Copied { held, .. }) => return self.find_below(table, key, at, held, wanted, value),
            None => match self.versions.read(table.id, key, at) {
                Some(old) => stored(old.value)?,
                None => None,
            },
        };
        self.load_to(stored, wanted, value)
    }

    /// [`Mvcc::find_at`] if the entry is newer, of which `value` has the wanted bytes.
    fn find_below<W: Wanted>(
        &self,
        table: &TableState,
        key: &[u8],
        at: Timestamp,
        newer: Held,
        wanted: W,
        value: &mut Vec<u8>,
    ) -> Result<bool> {
        let bytes = if newer == Held::Inline { &value[..] } else { &[] };
        let part = OldValue::Part { at: wanted.start(), bytes };
        let old = match newer {
            Held::Inline | Held::Outside(_) => self.versions.read_below(table.id, key, at, &part),
            Held::Overflow(_) => self.versions.read(table.id, key, at),
        };
        match (old.ok_or(Error::SnapshotTooOld)?.value, newer) {
            // A change of a part keeps the value's length.
            (OldValue::Part { .. }, Held::Outside(length)) => wanted.inside(length).map(|_| true),
            (OldValue::Part { bytes, .. }, _) => {
                *value = bytes;
                Ok(true)
            }
            (old, _) => self.load_to(stored(old)?, wanted, value),
        }
    }

    /// The value of `key` at time `at`, where the tree holds `found`.
    fn resolve_at(
        &self,
        table: &TableState,
        key: &[u8],
        at: Timestamp,
        found: Option<Found>,
    ) -> Result<Option<Stored>> {
        let old = match &found {
            Some(Found { timestamp, .. }) if *timestamp <= at => return Ok(found.map(|found| found.value)),
            Some(Found { value: Stored::Inline(value), .. }) => {
                self.versions.read_below(table.id, key, at, &OldValue::Inline(value))
            }
            Some(Found { value: Stored::Overflow(_), .. }) | None => self.versions.read(table.id, key, at),
        };
        match old {
            Some(old) => stored(old.value),
            None if found.is_none() => Ok(None),
            None => Err(Error::SnapshotTooOld),
        }
    }

    pub(crate) fn load(&self, value: Option<Stored>) -> Result<Option<Vec<u8>>> {
        match value {
            None => Ok(None),
            Some(Stored::Inline(bytes)) => Ok(Some(bytes)),
            Some(Stored::Overflow(reference)) => read_value(&self.pool, reference).map(Some),
        }
    }

    /// [`Mvcc::load`] of the wanted bytes into a buffer; returns whether there is a value.
    pub(crate) fn load_to(
        &self,
        stored: Option<Stored>,
        wanted: impl Wanted,
        value: &mut Vec<u8>,
    ) -> Result<bool> {
        match stored {
            None => return Ok(false),
            Some(Stored::Inline(bytes)) => {
                value.clear();
                value.extend_from_slice(&bytes[wanted.inside(bytes.len())?]);
            }
            Some(Stored::Overflow(reference)) => read_value_to(&self.pool, reference, wanted, value)?,
        }
        Ok(true)
    }
}

/// Sorts answers into the order of the requests; returns the first error in that order.
pub(crate) fn collect<T>(count: usize, ask: impl FnOnce(&mut dyn FnMut(usize, Result<T>))) -> Result<Vec<T>> {
    let mut answers: Vec<Option<Result<T>>> = (0..count).map(|_| None).collect();
    ask(&mut |index, answer| answers[index] = Some(answer));
    answers.into_iter().map(|answer| answer.expect("every question is answered")).collect()
}
