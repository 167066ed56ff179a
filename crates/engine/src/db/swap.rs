//! Changes of a key that need its old value, without a transaction where one record suffices.
//!
//! A single-key commit compares the old value under the leaf's latch (`single.rs`). A transaction
//! compares large values.
//!
//! A swap that finds another value waits until that value's commit is visible. Otherwise a crash
//! could lose a reported value.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::core::Shared;
use super::table::Table;
use super::update::{GaveUp, insist, update};
use crate::error::{Error, Result};
use crate::ids::MAX_KEY_BYTES;
use crate::ids::Timestamp;
use crate::index::node::leaf::max_inline_value;
use crate::index::{New, Part, Single, Wanted};
use crate::txn::effort::MAX_CONFLICTS;
use crate::txn::mvcc::Mvcc;
use crate::txn::single::SingleEnd;
use crate::txn::table::TableState;

/// Result of [`Table::compare_and_swap`].
///
/// ```
/// use terrace::{Db, MemoryDirectory, Swap};
///
/// # let directory = std::sync::Arc::new(MemoryDirectory::new());
/// let db = Db::builder().directory(directory).dram(4 << 20).open("")?;
/// let table = db.create_table("t")?;
/// let swap = table.compare_and_swap("k", Some(b"old"), Some(b"new"))?;
/// assert_eq!(swap, Swap::Found(None), "there is no such key");
/// assert!(!swap.is_done());
/// # Ok::<(), terrace::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "the value may have been another one"]
pub enum Swap {
    /// The value was the expected one and has been replaced.
    Done,
    /// The value was this one and is unchanged; `None` if the key was absent.
    Found(Option<Vec<u8>>),
}

impl Swap {
    /// Whether the value was replaced.
    pub fn is_done(&self) -> bool {
        matches!(self, Swap::Done)
    }
}

struct Other {
    timestamp: Timestamp,
    value: Option<Vec<u8>>,
}

impl Shared {
    pub(crate) fn compare_and_swap(
        self: &Arc<Self>,
        table: &Table,
        key: &[u8],
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<Swap> {
        let inline = max_inline_value(table.state().tree.page_bytes(), key.len());
        if key.len() <= MAX_KEY_BYTES && new.is_none_or(|new| new.len() <= inline) {
            let mut other = None;
            let single = Single { key, new: New::value_or_nothing(new) };
            let end = self.commit_single(table.state(), single, self.settings.durability, |before| {
                let same = before.map(|before| before.value) == expected;
                if !same {
                    let timestamp = before.map_or(Timestamp::NONE, |before| before.timestamp);
                    other = Some(Other { timestamp, value: before.map(|before| before.value.to_vec()) });
                }
                same
            })?;
            match (end, other) {
                (SingleEnd::Committed(_), _) => return Ok(Swap::Done),
                (SingleEnd::Refused, Some(other)) => return settled(self, table.state(), other),
                (SingleEnd::Refused, None) => unreachable!("only another value is refused"),
                (SingleEnd::Large, _) => {}
            }
        }
        self.swap_in_transaction(table, key, expected, new)
    }

    /// Returns the value before.
    pub(crate) fn exchange(
        self: &Arc<Self>,
        table: &Table,
        key: &[u8],
        new: Option<&[u8]>,
    ) -> Result<Option<Vec<u8>>> {
        let inline = max_inline_value(table.state().tree.page_bytes(), key.len());
        if key.len() <= MAX_KEY_BYTES && new.is_none_or(|new| new.len() <= inline) {
            let mut old = None;
            let single = Single { key, new: New::value_or_nothing(new) };
            let end = self.commit_single(table.state(), single, self.settings.durability, |before| {
                old = before.map(|before| before.value.to_vec());
                true
            })?;
            if let SingleEnd::Committed(_) = end {
                return Ok(old);
            }
        }
        insist(self, |transaction| match new {
            Some(new) => transaction.replace(table, key, new),
            None => transaction.take(table, key),
        })
    }

    /// Returns whether the key exists.
    pub(crate) fn overwrite(
        self: &Arc<Self>,
        table: &Table,
        key: &[u8],
        at: usize,
        bytes: &[u8],
    ) -> Result<bool> {
        let inline = max_inline_value(table.state().tree.page_bytes(), key.len());
        if key.len() <= MAX_KEY_BYTES && bytes.len() <= inline {
            let single = Single { key, new: New::Part { at, bytes, sees_all: false } };
            let end = self.commit_single(table.state(), single, self.settings.durability, |before| {
                before.is_none_or(|before| Part::at(at, bytes.len()).of(before.length).is_some())
            })?;
            if let SingleEnd::Committed(committed) = end {
                return Ok(committed.existed);
            }
        }
        insist(self, |transaction| transaction.update_range(table, key, at, bytes))
    }

    fn swap_in_transaction(
        self: &Arc<Self>,
        table: &Table,
        key: &[u8],
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<Swap> {
        insist(self, |transaction| {
            let found = transaction.get(table, key)?;
            if found.as_deref() != expected {
                return Ok(Swap::Found(found));
            }
            match new {
                Some(new) => transaction.put(table, key, new)?,
                None => transaction.remove(table, key)?,
            }
            Ok(Swap::Done)
        })
    }

    /// Sets `key` to `change` of its value, with retries and finally with priority.
    pub(crate) fn fetch_and_update<E: From<Error> + 'static>(
        self: &Arc<Self>,
        table: &Table,
        key: &[u8],
        mut change: impl FnMut(Option<&[u8]>) -> Result<Option<Vec<u8>>, E>,
    ) -> Result<Option<Vec<u8>>, E> {
        let mut now = self.get_now(table.state(), key)?;
        for _ in 0..MAX_CONFLICTS {
            let new = change(now.as_deref())?;
            match self.compare_and_swap(table, key, now.as_deref(), new.as_deref())? {
                Swap::Done => return Ok(new),
                Swap::Found(found) => now = found,
            }
            self.counters.conflicts.fetch_add(1, Relaxed);
        }
        let outcome = update(self, |transaction| {
            let new = change(transaction.get(table, key)?.as_deref())?;
            match &new {
                Some(new) => transaction.put(table, key, new)?,
                None => transaction.remove(table, key)?,
            }
            Ok(new)
        });
        outcome.map_err(GaveUp::of_large_value)
    }
}

fn settled(mvcc: &Mvcc, table: &TableState, other: Other) -> Result<Swap> {
    let drawn = mvcc.clock.highest_drawn();
    let needs = match other.value {
        Some(_) if other.timestamp > drawn => return Err(mvcc.never_drawn(other.timestamp)),
        Some(_) => other.timestamp,
        // An absent key has no timestamp: wait for all commits that may have removed it.
        None if mvcc.versions.nothing_deleted(table.id) => Timestamp::NONE,
        None => drawn,
    };
    mvcc.clock.wait_visible(needs, || mvcc.advance())?;
    // With timestamp ordering, it may be of a commit that failed with the log.
    mvcc.check()?;
    Ok(Swap::Found(other.value))
}
