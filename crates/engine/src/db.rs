//! The database as its users see it.
//!
//! | file             | what is in it                                                          |
//! |------------------|------------------------------------------------------------------------|
//! | `open.rs`        | creating, locking, recovering                                          |
//! | `core.rs`        | what all handles share; the threads; closing                           |
//! | `budget.rs`      | the budget, and changing it                                            |
//! | `catalog.rs`     | tables by name                                                         |
//! | `count.rs`       | how many entries tables have                                           |
//! | `table.rs`       | single operations                                                      |
//! | `single.rs`      | the commit of one key                                                  |
//! | `swap.rs`        | changing a key depending on its value                                  |
//! | `transaction.rs` | several operations as one                                              |
//! | `batch.rs`       | several writes as one                                                  |
//! | `backup.rs`      | copying it while it is used, and making a database of the copy         |
//! | `snapshot.rs`    | reading at one moment                                                  |
//! | `named.rs`       | snapshots that have names                                              |
//! | `read.rs`        | finding what counts for a key, now and at a time                       |
//! | `lookup.rs`      | reads that do not block                                                |
//! | `scan.rs`        | walking entries from both ends                                         |
//! | `range.rs`       | bounds; a transaction's cursor                                         |
//! | `commit.rs`      | the commit                                                             |
//! | `undo.rs`        | taking losers back                                                     |
//! | `commit/take_back.rs` | taking a commit back that failed halfway                          |
//! | `update.rs`      | running a transaction's body until it commits                          |
//! | `large.rs`       | writing large values                                                   |
//! | `garbage.rs`     | pages that belong to nobody                                            |
//! | `verify.rs`      | whether everything is what it should be                                |
//! | `repair.rs`      | a new database of what is whole in a damaged one                       |
//! | `compact.rs`     | making the page file shorter                                           |
//! | `overlay.rs`     | reading without writing                                                |
//! | `limits.rs`      | what the process's limits refuse                                        |

pub(crate) mod backup;
pub(crate) mod batch;
pub(crate) mod budget;
pub(crate) mod catalog;
pub(crate) mod commit;
pub(crate) mod compact;
pub(crate) mod core;
pub(crate) mod count;
pub(crate) mod garbage;
pub(crate) mod large;
mod limits;
pub(crate) mod lookup;
pub(crate) mod named;
pub(crate) mod open;
pub(crate) mod options;
#[cfg(test)]
mod order_tests;
pub(crate) mod overlay;
#[cfg(test)]
mod planted_tests;
pub(crate) mod range;
#[cfg(feature = "raw-frames")]
pub(crate) mod raw;
pub(crate) mod read;
pub(crate) mod repair;
pub(crate) mod scan;
pub(crate) mod single;
pub(crate) mod snapshot;
pub(crate) mod swap;
pub(crate) mod table;
pub(crate) mod transaction;
#[cfg(test)]
mod undecided_tests;
pub(crate) mod undo;
pub(crate) mod update;
pub(crate) mod verify;
#[cfg(test)]
mod wear_tests;

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use self::batch::{BatchChange, WriteBatch};
use self::compact::Compaction;
use self::core::Shared;
use self::options::TableOptions;
use self::snapshot::Snapshot;
use self::table::Table;
use self::transaction::Transaction;
use crate::config::{Builder, Durability};
use crate::error::{Error, Result};
use crate::migration::Policy;
use crate::stats::{LineWrites, Stats, TableStats, VerifyReport};

/// Pages of a database up to which those of each table are counted: it takes a read for every hundred of them.
const PAGES_COUNTED_MAX: u64 = 100_000;

/// An open database. A handle: clones name the same database, and all threads may use it.
///
/// The last handle that is dropped, tables, transactions, snapshots and cursors included, closes it;
/// [`Db::close`] does so at once and says whether it succeeded.
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

    /// Settings to open a database with.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Opens the database in the directory `path` with the default settings, or creates it.
    ///
    /// # Errors
    /// As [`Builder::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Db> {
        Builder::default().open(path)
    }

    /// Makes a table, durably.
    ///
    /// # Errors
    /// [`Error::TableExists`], [`Error::InvalidName`], [`Error::ReadOnly`], [`Error::Full`], [`Error::Poisoned`],
    /// [`Error::Io`].
    pub fn create_table(&self, name: &str) -> Result<Table> {
        self.shared.new_table(name, &TableOptions::default())
    }

    /// Makes a table with other options than the database has for those that say nothing, durably. It keeps them.
    ///
    /// # Errors
    /// [`Error::Config`] for options that cannot be, and as [`Db::create_table`].
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

    /// Opens a table, or makes it.
    ///
    /// # Errors
    /// As [`Db::create_table`] and [`Db::open_table`].
    pub fn open_or_create_table(&self, name: &str) -> Result<Table> {
        match self.open_table(name) {
            Err(Error::TableNotFound(_)) => {}
            other => return other,
        }
        match self.create_table(name) {
            // Another thread was faster.
            Err(Error::TableExists(_)) => self.open_table(name),
            other => other,
        }
    }

    /// The names of all tables, sorted.
    ///
    /// # Errors
    /// [`Error::Poisoned`], [`Error::Corrupt`], [`Error::Io`].
    pub fn table_names(&self) -> Result<Vec<String>> {
        Ok(self.shared.tables()?.into_iter().map(|(name, _)| name).collect())
    }

    /// Gives a table another name, durably. Handles of it stay valid.
    ///
    /// # Errors
    /// [`Error::TableNotFound`], [`Error::TableExists`], and as [`Db::create_table`].
    pub fn rename_table(&self, from: &str, to: &str) -> Result<()> {
        self.shared.rename_table(from, to)
    }

    /// Removes a table with everything in it, durably. Snapshots taken before still see it; its space is used again
    /// when the last of them is gone.
    ///
    /// # Errors
    /// [`Error::TableNotFound`], and as [`Db::create_table`].
    pub fn drop_table(&self, name: &str) -> Result<()> {
        self.shared.drop_table(name)
    }

    /// Begins a transaction with the durability the database was opened with.
    pub fn begin(&self) -> Transaction {
        self.begin_with(self.shared.settings.durability)
    }

    /// Begins a transaction.
    pub fn begin_with(&self, durability: Durability) -> Transaction {
        Transaction::new(&self.shared, durability)
    }

    /// Runs `body` in a transaction and commits it, again after each conflict. An error of the body aborts, and is
    /// returned unless what the body had read no longer holds: then it is run again too. The body must expect to be run
    /// from the start.
    ///
    /// After sixteen conflicts, or with the first after 100 ms, the transaction gets *priority*, one transaction at a
    /// time. Commits of other threads that write what it has read wait until it has ended; all others pass. They wait
    /// at most for twice the length of its longest run so far, for no less than 10 ms and no more than 30 s. Then they
    /// go on, and the transaction meets a conflict. So a body that waits for such a commit delays it and does not stop it.
    ///
    /// The body runs at most 24 times.
    ///
    /// # Errors
    /// The body's, and those of [`Transaction::commit`]. [`Error::Conflict`] if eight runs with priority have failed, or
    /// three in which others had waited as long as they do: the body takes more than 30 s, or waits for commits that write what
    /// it has read.
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
    ///     Ok(count)
    /// })?;
    /// assert_eq!(count, 1);
    /// # Ok::<(), terrace::Error>(())
    /// ```
    pub fn update<T>(&self, body: impl FnMut(&mut Transaction) -> Result<T>) -> Result<T> {
        Ok(self::update::update(&self.shared, body)?)
    }

    /// Takes a snapshot.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::new(&self.shared)
    }

    /// Makes all changes of a batch as one.
    ///
    /// # Errors
    /// As [`Transaction::put`] and [`Transaction::commit`], but never [`Error::Conflict`].
    pub fn write(&self, batch: WriteBatch, durability: Durability) -> Result<()> {
        let mut transaction = self.begin_with(durability);
        for BatchChange { table, key, value } in &batch.changes {
            match value {
                Some(value) => transaction.put(table, key, value)?,
                None => transaction.remove(table, key)?,
            }
        }
        transaction.commit()
    }

    /// Returns when every commit acknowledged so far would survive a power cut, the buffered ones too.
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
        self.shared.pump()
    }

    /// Writes everything out and cuts the log, so that a recovery has nothing to do, and frees what nobody needs.
    ///
    /// # Errors
    /// [`Error::Poisoned`], [`Error::Full`], [`Error::Io`].
    pub fn checkpoint(&self) -> Result<()> {
        self.shared.check_writable()?;
        self.shared.free_all_garbage()?;
        self.shared.save_counts(true)?;
        self.shared.pool.checkpoint_now(true)
    }

    /// Makes the page file shorter, while others read and write: moves pages from its end to free places ahead and cuts it
    /// off behind the last one. What is left is 1.14 times the pages in use, and a little that the cleaner needs; the file
    /// grows again when pages are added. The log keeps its size. A crash at any time loses nothing, and what was moved
    /// until then stays moved.
    ///
    /// # Errors
    /// [`Error::ReadOnly`], [`Error::Poisoned`], [`Error::Full`], [`Error::Corrupt`] when a page that is to be moved, or a value
    /// or table that is to be freed, is damaged, [`Error::Io`].
    ///
    /// ```
    /// use terrace::{Db, Durability, MemoryDirectory};
    ///
    /// # let directory = std::sync::Arc::new(MemoryDirectory::new());
    /// let db = Db::builder().directory(directory).dram(4 << 20).durability(Durability::Buffered).open("")?;
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

    /// As [`Db::compact`], and calls `progress` after each segment that was emptied; when it breaks, the compaction ends
    /// with what was reached. It can be gone on with at any time.
    ///
    /// # Errors
    /// As [`Db::compact`].
    pub fn compact_with(&self, progress: impl FnMut(&Compaction) -> ControlFlow<()>) -> Result<Compaction> {
        self.shared.compact(progress)
    }

    /// Changes the budget ([`Builder::dram`]) to `bytes`, at most [`Builder::dram_max`], while others go on working.
    ///
    /// Raised, the memory is there when this returns. Lowered, it has been given back to the system then: pages in
    /// the frames that go are written if they are dirty, and dropped. That may take as long as writing all of them.
    /// What is fixed at open, as the log's buffer, stays as it is; `docs/tiers.md` has the list.
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
    /// [`Error::Config`] for too much, and for too little with what would do; [`Error::Memory`] if the system refuses
    /// the memory; [`Error::OutOfFrames`] if pages stay in use for many seconds; [`Error::Full`], [`Error::Poisoned`],
    /// [`Error::Io`] if dirty pages cannot be written. The budget is the old one then.
    pub fn set_dram(&self, bytes: u64) -> Result<()> {
        self.shared.set_dram(bytes)
    }

    /// Changes by which probabilities pages move between DRAM, the middle tier and the store, for all threads, at once. What was said
    /// when the database was opened of clean victims and of an admission queue stays as it is. Without a middle tier
    /// ([`Builder::middle`]) it changes nothing.
    ///
    /// ```
    /// use terrace::{Db, MemoryDirectory};
    /// use terrace::migration::{Choice, Policy};
    ///
    /// # let directory = std::sync::Arc::new(MemoryDirectory::new());
    /// let builder = Db::builder().directory(directory).dram(4 << 20).middle("simulated:dram,8MiB".parse()?);
    /// let db = builder.policy(Choice::Eager).open("")?;
    /// db.set_policy(Policy::new(0.1, 0.1, 0.5, 1.0)?);
    /// assert_eq!(db.policy().unwrap().nr(), 0.5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_policy(&self, policy: Policy) {
        self.shared.pool.set_policy(policy);
    }

    /// By which probabilities pages move now; none without a middle tier.
    pub fn policy(&self) -> Option<Policy> {
        self.shared.pool.policy()
    }

    /// What the database has done and what it takes.
    pub fn stats(&self) -> Stats {
        Stats::of(&self.shared)
    }

    /// How often each line of the middle tier was written; none if there is no middle tier that is simulated. Takes 4 bytes for each line
    /// that was ever changed where it is.
    pub fn line_writes(&self) -> Option<LineWrites> {
        self.shared.pool.line_writes()
    }

    /// What there is in each table, sorted by name. Entries are not counted where their number is not known, and pages
    /// not in a database of more than 100,000, so this does not take long.
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
                page_bytes: state.tree.page_bytes() as u64,
                value_page_bytes_max: state.values.page_bytes() as u64,
                compression: state.compression,
            }))
        };
        let of = |name: String| match self.open_table(&name) {
            Ok(table) => table_stats(table, name),
            // Dropped meanwhile.
            Err(Error::TableNotFound(_)) => Ok(None),
            Err(error) => Err(error),
        };
        names.into_iter().filter_map(|name| of(name).transpose()).collect()
    }

    /// Checks everything: every image in the page file against its checksum, every tree, every large value, and
    /// that every page belongs to exactly one of them. Others go on working meanwhile: commits wait only for a moment at the
    /// beginning, as when a table is dropped. It takes two bits of memory per page beside the budget.
    ///
    /// What is there all the time is checked. Of what comes or goes meanwhile, a table or a large value, damage may be
    /// left for the next time; it is never reported where there is none. Two verifications take turns.
    ///
    /// # Errors
    /// Failures to look. Damage is in the report.
    pub fn verify(&self) -> Result<VerifyReport> {
        self.shared.verify(u64::MAX)
    }

    /// As [`Db::verify`], looking at no more than `bytes_per_s` bytes of pages a second, so that those who work beside it
    /// keep what they need of the disk and the memory. Each page is looked at twice, in its tree and in the page file.
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
    /// As [`Db::verify`]; [`Error::Config`] for a rate of nothing.
    pub fn verify_at(&self, bytes_per_s: u64) -> Result<VerifyReport> {
        if bytes_per_s == 0 {
            return Err(Error::Config("a verification at 0 bytes a second would never end".into()));
        }
        self.shared.verify(bytes_per_s)
    }

    /// Makes everything durable, writes everything out and lets go of the files, also if other handles are left:
    /// their calls fail from now on.
    ///
    /// # Errors
    /// What prevented it, [`Error::Poisoned`], [`Error::Full`] or [`Error::Io`]. The database is closed in any case,
    /// and recovers when it is opened again.
    pub fn close(self) -> Result<()> {
        self.shared.close()
    }
}
