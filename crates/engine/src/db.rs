//! Public handles of a database, and their shared state.
//!
//! | file                          | contents                                     |
//! |-------------------------------|----------------------------------------------|
//! | `open.rs`, `files.rs`         | creation, locks, recovery; names of files    |
//! | `core.rs`                     | shared state, threads, closing               |
//! | `budget.rs`, `limits.rs`      | budget changes; errors of process limits     |
//! | `names.rs`, `options.rs`      | table handles by name; table options         |
//! | `table.rs`                    | gets of a table                              |
//! | `table_changes.rs`, `swap.rs` | changes and scans; compare-and-swap          |
//! | `transaction.rs`, `pending.rs` | transactions; their reads and writes        |
//! | `transaction_ranges.rs`       | ranges of a transaction                      |
//! | `update.rs`                   | retries of a closure                         |
//! | `batch.rs`, `lookup.rs`       | write batches; asynchronous reads            |
//! | `typed.rs`, `buffer.rs`       | typed tables; buffers for reads              |
//! | `snapshot.rs`, `named.rs`     | snapshots and cursors; named snapshots       |
//! | `range.rs`, `raw.rs`          | cursor of a transaction; raw frames          |
//! | `backup.rs`, `compact.rs`     | backup and restore; compaction               |
//! | `verify.rs`, `repair.rs`      | verification; repair                         |
//! | `overlay.rs`                  | memory layer of a read-only open             |
//! | `stats.rs`                    | statistics                                   |

pub(crate) mod backup;
pub(crate) mod batch;
pub(crate) mod budget;
mod buffer;
pub(crate) mod compact;
pub(crate) mod core;
pub(crate) mod files;
mod limits;
#[cfg(test)]
mod line_writes_tests;
#[cfg(test)]
mod long_log_tests;
pub(crate) mod lookup;
pub(crate) mod named;
mod names;
pub(crate) mod open;
pub(crate) mod options;
#[cfg(test)]
mod order_tests;
pub(crate) mod overlay;
#[cfg(test)]
mod page_table_tests;
pub(crate) mod pending;
#[cfg(test)]
mod planted_tests;
pub(crate) mod range;
#[cfg(feature = "raw-frames")]
pub(crate) mod raw;
pub(crate) mod repair;
pub(crate) mod snapshot;
mod stats;
pub(crate) mod swap;
pub(crate) mod table;
mod table_changes;
pub(crate) mod transaction;
pub(crate) mod transaction_ranges;
#[cfg(test)]
mod turn_tests;
pub(crate) mod typed;
#[cfg(test)]
mod undecided_tests;
mod update;
pub(crate) mod verify;

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use self::batch::{BatchChange, WriteBatch};
use self::compact::Compaction;
use self::core::Shared;
use self::options::TableOptions;
use self::snapshot::Snapshot;
use self::stats::stats;
use self::table::Table;
use self::transaction::Transaction;
use self::update::GaveUp;
use self::verify::verify_all;
use crate::config::Builder;
use crate::error::{Error, Result};
use crate::migration::Policy;
use crate::stats::{LineWrites, Stats, TableStats, VerifyReport};
use crate::txn::catalog::tables;
use crate::txn::durability::Durability;

/// Above this number of pages, `table_stats` counts none: it needs a read per hundred pages.
const PAGES_COUNTED_MAX: u64 = 100_000;

/// An open database.
///
/// A cheap handle: clones share the database, and any thread may use it.
///
/// The database closes when its last handle is dropped. Tables, transactions, snapshots and cursors
/// are handles too. [`Db::close`] closes it at once and reports errors.
///
/// ```
/// use terrace::Db;
///
/// let place = tempfile::tempdir().unwrap();
/// let db = Db::builder().dram(4 << 20).open(place.path().join("db"))?;
/// let table = db.open_or_create_table("greetings")?;
/// table.put("en", "hello")?;
/// db.close()?;
///
/// let db = Db::builder().dram(4 << 20).open(place.path().join("db"))?;
/// assert_eq!(db.open_table("greetings")?.get("en")?.as_deref(), Some(&b"hello"[..]));
/// # Ok::<(), terrace::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Db {
    pub(crate) shared: Arc<Shared>,
}

impl Db {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Db { shared }
    }

    /// Returns a builder with default settings.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Opens or creates the database in directory `path` with default settings.
    ///
    /// # Errors
    /// Those of [`Builder::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Db> {
        Builder::default().open(path)
    }

    /// Creates a table durably.
    ///
    /// # Errors
    /// [`Error::TableExists`], [`Error::InvalidName`], [`Error::ReadOnly`], [`Error::Full`],
    /// [`Error::Poisoned`], [`Error::Io`].
    pub fn create_table(&self, name: &str) -> Result<Table> {
        self.shared.new_table(name, &TableOptions::default())
    }

    /// Creates a table with its own options, durably. The database supplies omitted ones.
    ///
    /// # Errors
    /// [`Error::Config`] for invalid options, and those of [`Db::create_table`].
    pub fn create_table_with(&self, name: &str, options: &TableOptions) -> Result<Table> {
        self.shared.new_table(name, options)
    }

    /// Opens a table.
    ///
    /// # Errors
    /// [`Error::TableNotFound`], [`Error::Poisoned`], [`Error::Corrupt`], [`Error::Io`].
    pub fn open_table(&self, name: &str) -> Result<Table> {
        self.shared.table(name)
    }

    /// Opens a table, or creates it.
    ///
    /// # Errors
    /// Those of [`Db::create_table`] and [`Db::open_table`].
    pub fn open_or_create_table(&self, name: &str) -> Result<Table> {
        match self.open_table(name) {
            Err(Error::TableNotFound(_)) => {}
            other => return other,
        }
        match self.create_table(name) {
            // Another thread created it first.
            Err(Error::TableExists(_)) => self.open_table(name),
            other => other,
        }
    }

    /// Returns the names of all tables, sorted.
    ///
    /// # Errors
    /// [`Error::Poisoned`], [`Error::Corrupt`], [`Error::Io`].
    pub fn table_names(&self) -> Result<Vec<String>> {
        Ok(tables(&self.shared)?.into_iter().map(|(name, _)| name).collect())
    }

    /// Renames a table durably. Existing handles stay valid.
    ///
    /// # Errors
    /// [`Error::TableNotFound`], [`Error::TableExists`], and those of [`Db::create_table`].
    pub fn rename_table(&self, from: &str, to: &str) -> Result<()> {
        self.shared.rename_table(from, to)
    }

    /// Drops a table with its entries, durably.
    ///
    /// Earlier snapshots still read it. The last of them to end frees its space.
    ///
    /// # Errors
    /// [`Error::TableNotFound`], and those of [`Db::create_table`].
    pub fn drop_table(&self, name: &str) -> Result<()> {
        self.shared.drop_table(name)
    }

    /// Begins a transaction with the default durability of the database.
    pub fn begin(&self) -> Transaction {
        self.begin_with(self.shared.settings.durability)
    }

    /// Begins a transaction with the given durability.
    pub fn begin_with(&self, durability: Durability) -> Transaction {
        Transaction::new(&self.shared, durability)
    }

    /// Runs `body` in a transaction and commits it, with retries on conflict.
    ///
    /// The body may run up to 24 times, so it must not change anything outside the transaction. Its
    /// error, of the application's own type or [`Error`], aborts and is returned as it is. If data
    /// that the body read has changed, or a call met a conflict, it runs again instead. A body that
    /// ends in `Ok(())` names the error's type, as below.
    ///
    /// After sixteen conflicts, or the first one later than 100 ms, the transaction gets
    /// *priority*, which one transaction has at a time. Commits that write what it has read then
    /// wait until it ends: at most twice its longest run so far, and between 10 ms and 30 s. After
    /// that they proceed, and the transaction meets a conflict. So a body that waits for such a
    /// commit only delays it.
    ///
    /// # Errors
    /// Those of the body and of [`Transaction::commit`]. [`Error::Conflict`] after eight failed
    /// runs with priority, or after three that outlasted the wait of other commits.
    ///
    /// ```
    /// use terrace::{Db, MemoryDirectory};
    ///
    /// # let directory = std::sync::Arc::new(MemoryDirectory::new());
    /// let db = Db::builder().directory(directory).dram(4 << 20).open("")?;
    /// let table = db.create_table("t")?;
    /// let count = db.update(|transaction| {
    ///     let count = transaction.get(&table, "count")?.map_or(0, |bytes| bytes[0]) + 1;
    ///     transaction.put(&table, "count", [count])?;
    ///     Ok::<_, terrace::Error>(count)
    /// })?;
    /// assert_eq!(count, 1);
    /// # Ok::<(), terrace::Error>(())
    /// ```
    pub fn update<T, E: From<Error> + 'static>(
        &self,
        body: impl FnMut(&mut Transaction) -> Result<T, E>,
    ) -> Result<T, E> {
        self::update::update(&self.shared, body).map_err(GaveUp::into_error)
    }

    /// Takes a snapshot of all tables.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::new(&self.shared)
    }

    /// Applies all changes of a batch atomically.
    ///
    /// # Errors
    /// Those of [`Transaction::put`] and [`Transaction::commit`], except [`Error::Conflict`].
    pub fn write(&self, batch: WriteBatch, durability: Durability) -> Result<()> {
        let transaction = self.begin_with(durability);
        for BatchChange { table, key, value } in &batch.changes {
            match value {
                Some(value) => transaction.put(table, key, value)?,
                None => transaction.remove(table, key)?,
            }
        }
        transaction.commit()
    }

    /// Makes all acknowledged commits durable, the buffered ones included.
    ///
    /// # Errors
    /// [`Error::Poisoned`], [`Error::Io`].
    pub fn flush(&self) -> Result<()> {
        self.shared.check()?;
        if self.shared.settings.read_only {
            return Ok(());
        }
        let wal = self.shared.pool.wal();
        wal.flush_to(wal.tail())?;
        self.shared.advance()
    }

    /// Writes all dirty pages, cuts the log and frees garbage.
    ///
    /// A crash right afterwards needs no recovery.
    ///
    /// # Errors
    /// [`Error::Poisoned`], [`Error::Full`], [`Error::Io`].
    pub fn checkpoint(&self) -> Result<()> {
        self.shared.check_writable()?;
        self.shared.free_all_garbage()?;
        self.shared.save_counts(true)?;
        self.shared.maintenance.checkpoint_now(true)
    }

    /// Shrinks the page file while other threads read and write.
    ///
    /// Moves pages from the end of the file into free space and cuts the file, to 1.14 times the
    /// pages in use plus a small reserve. The log keeps its size. A crash keeps the progress made.
    ///
    /// # Errors
    /// [`Error::ReadOnly`], [`Error::Poisoned`], [`Error::Full`], [`Error::Io`]. [`Error::Corrupt`]
    /// if a page to move, or a value or table to free, is damaged.
    ///
    /// ```
    /// use terrace::{Db, Durability, MemoryDirectory};
    ///
    /// # let directory = std::sync::Arc::new(MemoryDirectory::new());
    /// let builder = Db::builder().directory(directory).dram(4 << 20);
    /// let db = builder.durability(Durability::Buffered).open("")?;
    /// let table = db.create_table("t")?;
    /// (0..4000u32).try_for_each(|key| table.put(key.to_be_bytes(), [7; 1000]))?;
    /// db.drop_table("t")?;
    /// let done = db.compact()?;
    /// assert!(done.file_bytes_after < done.file_bytes_before / 2);
    /// assert_eq!(done.file_bytes_after, db.stats().file_bytes);
    /// # Ok::<(), terrace::Error>(())
    /// ```
    pub fn compact(&self) -> Result<Compaction> {
        self.compact_with(|_| ControlFlow::Continue(()))
    }

    /// Compacts like [`Db::compact`], and calls `progress` after each emptied segment.
    ///
    /// The compaction ends if `progress` breaks. A later call continues.
    ///
    /// # Errors
    /// Those of [`Db::compact`].
    pub fn compact_with(&self, progress: impl FnMut(&Compaction) -> ControlFlow<()>) -> Result<Compaction> {
        self.shared.compact(progress)
    }

    /// Changes the memory budget to `bytes` while the database is in use.
    ///
    /// The limit is [`Builder::dram_max`]. When the call returns, added memory is available and
    /// removed memory is back with the system. Lowering the budget writes the dirty pages of the
    /// removed frames, which may be all. Parts fixed at open, such as the log buffer, keep their
    /// size. `docs/guide/memory.md` lists the parts.
    ///
    /// ```
    /// use terrace::{Db, MemoryDirectory};
    ///
    /// # let directory = std::sync::Arc::new(MemoryDirectory::new());
    /// let db = Db::builder().directory(directory).dram(4 << 20).dram_max(64 << 20).open("")?;
    /// db.set_dram(32 << 20)?;
    /// assert_eq!(db.stats().budget_bytes, 32 << 20);
    /// db.set_dram(2 << 20)?;
    /// assert!(db.set_dram(128 << 20).is_err());
    /// assert_eq!(db.stats().budget_bytes, 2 << 20);
    /// # Ok::<(), terrace::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Config`] for a budget out of range; the message says what would do.
    /// [`Error::Memory`] if the system refuses the memory, [`Error::OutOfFrames`] if pages stay in
    /// use for many seconds. [`Error::Full`], [`Error::Poisoned`] or [`Error::Io`] if dirty pages
    /// cannot be written. After an error the budget is unchanged.
    pub fn set_dram(&self, bytes: u64) -> Result<()> {
        self.shared.budget.set(&self.shared, bytes)
    }

    /// Changes the migration policy of all threads at once.
    ///
    /// The other settings of [`Builder::migration`] stay. Without a middle tier
    /// ([`Builder::middle`]) the call has no effect.
    ///
    /// ```
    /// use terrace::{Db, MemoryDirectory};
    /// use terrace::migration::{Choice, Policy};
    ///
    /// # let directory = std::sync::Arc::new(MemoryDirectory::new());
    /// let builder = Db::builder().directory(directory).dram(4 << 20);
    /// let builder = builder.middle("simulated:dram,8MiB".parse()?);
    /// let db = builder.policy(Choice::Eager).open("")?;
    /// db.set_policy(Policy::new(0.1, 0.1, 0.5, 1.0)?);
    /// assert_eq!(db.policy().unwrap().nr(), 0.5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_policy(&self, policy: Policy) {
        self.shared.pool.set_policy(policy);
    }

    /// Returns the current migration policy; `None` without a middle tier.
    pub fn policy(&self) -> Option<Policy> {
        self.shared.pool.policy()
    }

    /// Returns counters and sizes of the database.
    pub fn stats(&self) -> Stats {
        stats(&self.shared)
    }

    /// Returns how often each line of the middle tier was written.
    ///
    /// `None` without a simulated middle tier. The copy takes 4 bytes for each line ever written in
    /// place.
    pub fn line_writes(&self) -> Option<LineWrites> {
        self.shared.pool.line_writes()
    }

    /// Returns statistics of each table, sorted by name.
    ///
    /// Walks no table to count entries, and counts no pages in a database of more than 100,000.
    ///
    /// # Errors
    /// [`Error::Poisoned`], [`Error::Corrupt`], [`Error::Io`].
    pub fn table_stats(&self) -> Result<Vec<TableStats>> {
        let names = self.table_names()?;
        let is_small = self.stats().live_pages <= PAGES_COUNTED_MAX;
        let table_stats = |table: Table, name: String| {
            let known = table.len_if_known()?;
            let entries = known.map_or_else(|| table.approximate_len(), Ok)?;
            let pages = is_small.then(|| table.pages()).transpose()?;
            let state = table.state();
            Ok(Some(TableStats {
                name,
                entries,
                entries_exact: known.is_some(),
                pages,
                levels: table.levels()?,
                page_bytes: state.tree.page_bytes() as u64,
                value_page_bytes_max: state.values.page_bytes() as u64,
                compression: state.compression,
            }))
        };
        let of = |name: String| match self.open_table(&name) {
            Ok(table) => table_stats(table, name),
            // Dropped by another thread.
            Err(Error::TableNotFound(_)) => Ok(None),
            Err(error) => Err(error),
        };
        names.into_iter().filter_map(|name| of(name).transpose()).collect()
    }

    /// Checks the whole database while other threads use it.
    ///
    /// Verifies the checksum of every image, every tree and every large value, and that each page
    /// has exactly one owner. Commits wait only briefly at the beginning. Takes two bits per page
    /// beyond the budget.
    ///
    /// It may miss tables and large values that appear or disappear meanwhile, but never reports
    /// them wrongly. Verifications run one at a time.
    ///
    /// # Errors
    /// Only read errors. Damage is in the report.
    pub fn verify(&self) -> Result<VerifyReport> {
        verify_all(&self.shared, u64::MAX)
    }

    /// Verifies like [`Db::verify`], at most `bytes_per_s` bytes of pages per second.
    ///
    /// The limit leaves disk and memory bandwidth to other threads. Each page is read twice, in its
    /// tree and in the page file.
    ///
    /// ```
    /// use terrace::{Db, MemoryDirectory};
    ///
    /// # let directory = std::sync::Arc::new(MemoryDirectory::new());
    /// let db = Db::builder().directory(directory).dram(4 << 20).open("")?;
    /// db.create_table("t")?.put("k", "v")?;
    /// assert!(db.verify_at(100 << 20)?.is_ok());
    /// # Ok::<(), terrace::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Db::verify`]; [`Error::Config`] for a rate of 0.
    pub fn verify_at(&self, bytes_per_s: u64) -> Result<VerifyReport> {
        if bytes_per_s == 0 {
            return Err(Error::Config("a verification at 0 bytes a second would never end".into()));
        }
        verify_all(&self.shared, bytes_per_s)
    }

    /// Makes all commits durable, writes all pages and closes the files.
    ///
    /// Calls on the remaining handles fail from then on.
    ///
    /// # Errors
    /// [`Error::Poisoned`], [`Error::Full`] or [`Error::Io`] if something could not be written. The
    /// database is closed in any case, and recovers at the next open.
    pub fn close(self) -> Result<()> {
        self.shared.close()
    }
}
