//! What all handles of an open database share, and how long it lives.
//!
//! [`Core`] is the engine: the pool and the parts a commit is made of. [`Shared`] is a core with its threads; every
//! handle (database, table, transaction, snapshot, cursor) holds a count of it, and the last one closes it.
//!
//! Three threads work in the background: one writes the log where nobody waits for it, one runs the pool's rounds
//! (write-back, checkpoint, cleaning), one gives up old snapshots, drops old versions and frees garbage. They are
//! three because each waits for what the one before provides: rounds for the log, freeing for the log and for frames. Inline there is
//! no thread: each commit does a small share of the last one's work, and the pool calls its own when it needs it.

use std::cell::Cell;
use std::collections::HashMap;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, RwLock};

use super::budget::Budget;
use super::catalog::Place;
use super::count::{Counts, TableCount};
use super::garbage::Garbage;
use super::lookup::{Lookup, Lookups};
use super::named::NamedSnapshots;
use super::options::Compression;
use crate::buffer::{Mode, Pool};
use crate::config::Durability;
use crate::error::{Error, Result};
use crate::ids::{Lsn, PageId, SizeClass, TableId, Timestamp};
use crate::index::Tree;
use crate::index::overflow::ValuePages;
use crate::threads::Tally;
use crate::txn::clock::Clock;
use crate::txn::flight::InFlight;
use crate::txn::gate::Gate;
use crate::txn::locks::LockTable;
use crate::txn::read_set::ReadMemory;
use crate::txn::snapshots::Snapshots;
use crate::txn::versions::Versions;

/// The tree of table names, in a database whose own pages are of `class`.
pub(crate) fn catalog_root(class: SizeClass) -> PageId {
    PageId::new(class, 1)
}

/// The tree of what is to be freed.
pub(crate) fn garbage_root(class: SizeClass) -> PageId {
    PageId::new(class, 2)
}

/// The catalog as a table of the transactions.
pub(crate) const CATALOG: TableId = TableId(1);
/// Where that is. Its pages are few, and are not compressed.
pub(crate) fn catalog_place(class: SizeClass) -> Place {
    Place { id: CATALOG, root: catalog_root(class), compression: Compression::None, values: class }
}

/// The first id of a user's table.
pub(crate) const FIRST_TABLE: u64 = 16;

/// Transactions of several records that apply at the same time. Each holds a ticket of the log while every record
/// takes one more, and tickets are finite.
const CHAINS_MAX: u32 = 64;
/// Commits of a thread between two collections of old versions.
const COMMITS_PER_COLLECTION: u32 = 64;
/// Time between two looks of the collecting thread whether counts of entries are to be saved, which stops all commits
/// for a moment.
const SAVE_PAUSE: Duration = Duration::from_secs(1);
/// How long the collecting thread sleeps when nobody rings.
const COLLECTOR_PAUSE: Duration = Duration::from_millis(10);

/// A table as long as anybody knows it.
#[derive(Debug)]
pub(crate) struct TableState {
    pub(crate) id: TableId,
    pub(crate) tree: Tree,
    pub(crate) compression: Compression,
    /// The class of the largest pages of its long values.
    pub(crate) values: SizeClass,
    pub(crate) name: RwLock<Arc<str>>,
    pub(crate) count: Arc<TableCount>,
    /// The commit that dropped it; 0 = it exists.
    dropped_at: AtomicU64,
}

impl TableState {
    pub(crate) fn new(place: Place, name: &str, count: Arc<TableCount>) -> Self {
        let (Place { id, root, compression, values }, name) = (place, RwLock::new(name.into()));
        TableState {
            id,
            tree: Tree { root },
            compression,
            values,
            name,
            count,
            dropped_at: AtomicU64::new(0),
        }
    }

    /// How large the pages of its long values are.
    pub(crate) fn value_pages(&self) -> ValuePages {
        ValuePages { own: self.tree.class(), most: self.values }
    }

    /// Notes the commit that dropped it.
    pub(crate) fn set_dropped(&self, at: Timestamp) {
        self.dropped_at.store(at.0, SeqCst);
    }

    /// An error if it has been dropped.
    #[inline]
    pub(crate) fn check(&self) -> Result<()> {
        if self.dropped_at.load(SeqCst) == 0 { Ok(()) } else { Err(self.gone()) }
    }

    /// An error if it had been dropped at time `at`.
    pub(crate) fn check_at(&self, at: Timestamp) -> Result<()> {
        match self.dropped_at.load(SeqCst) {
            dropped if dropped != 0 && dropped <= at.0 => Err(self.gone()),
            _ => Ok(()),
        }
    }

    fn gone(&self) -> Error {
        Error::TableNotFound(self.name.read().to_string())
    }
}

/// What is counted beside the pool and the log.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) commits: Tally,
    pub(crate) aborts: AtomicU64,
    pub(crate) conflicts: AtomicU64,
    pub(crate) alone: AtomicU64,
    pub(crate) versions_dropped: AtomicU64,
    pub(crate) given_up_for_age: AtomicU64,
    pub(crate) given_up_for_memory: AtomicU64,
    pub(crate) losers_undone: AtomicU64,
    pub(crate) changes_redone: AtomicU64,
    /// Of a database that is only read: from where to where its log has what a recovery reads, whatever was recovered in memory.
    pub(crate) log_on_disk: Option<(Lsn, Lsn)>,
}

/// Settings that hold while the database is open.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) name: String,
    pub(crate) durability: Durability,
    pub(crate) snapshot_age_max: Duration,
    pub(crate) read_only: bool,
    /// The budget cannot become larger.
    pub(crate) dram_max: u64,
    /// What old versions may take whatever the budget is.
    pub(crate) old_version_bytes_max: Option<u64>,
    /// What tables are made with that say nothing else.
    pub(crate) compression: Compression,
}

/// An open database without its threads.
pub(crate) struct Core {
    pub(crate) pool: Pool,
    pub(crate) clock: Clock,
    pub(crate) gate: Gate,
    pub(crate) locks: LockTable,
    pub(crate) flight: InFlight,
    pub(crate) versions: Versions,
    /// For what transactions have read.
    pub(crate) read_memory: ReadMemory,
    pub(crate) snapshots: Arc<Snapshots>,
    pub(crate) named: NamedSnapshots,
    pub(crate) catalog: Arc<TableState>,
    /// The tables that somebody has a handle of.
    pub(crate) tables: Mutex<HashMap<TableId, Weak<TableState>>>,
    pub(crate) counts: Counts,
    pub(crate) garbage: Garbage,
    pub(crate) chains: Permits,
    pub(crate) counters: Counters,
    pub(crate) settings: Settings,
    pub(crate) budget: Budget,
    /// Held by who verifies.
    pub(crate) verifying: Mutex<()>,
    /// The lock on the directory.
    pub(crate) lock: Mutex<Option<Box<dyn Send + Sync>>>,
    pub(crate) collector: Collector,
    pub(crate) lookups: Lookups,
    /// Held while a backup is made: there is one at a time.
    pub(crate) backups: Mutex<()>,
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Db").field("name", &self.settings.name).finish_non_exhaustive()
    }
}

/// Wakes and stops the collecting thread.
#[derive(Debug, Default)]
pub(crate) struct Collector {
    state: Mutex<(bool, bool)>,
    work: Condvar,
}

impl Collector {
    /// Asks for a collection soon.
    pub(crate) fn ring(&self) {
        let mut state = self.state.lock();
        if !state.0 {
            state.0 = true;
            self.work.notify_one();
        }
    }

    fn stop(&self) {
        self.state.lock().1 = true;
        self.work.notify_all();
    }

    /// Waits for work; false = stop.
    fn wait(&self) -> bool {
        let mut state = self.state.lock();
        if !state.0 && !state.1 {
            self.work.wait_for(&mut state, COLLECTOR_PAUSE);
        }
        state.0 = false;
        !state.1
    }
}

/// A counting semaphore.
#[derive(Debug)]
pub(crate) struct Permits {
    free: Mutex<u32>,
    returned: Condvar,
    /// How often somebody found none.
    waits: AtomicU64,
}

impl Default for Permits {
    fn default() -> Self {
        Permits { free: Mutex::new(CHAINS_MAX), returned: Condvar::new(), waits: AtomicU64::new(0) }
    }
}

/// One of them; dropping it returns it.
#[derive(Debug)]
pub(crate) struct Permit<'a>(&'a Permits);

impl Permits {
    pub(crate) fn take(&self) -> Permit<'_> {
        let mut free = self.free.lock();
        if *free == 0 {
            self.waits.fetch_add(1, Relaxed);
        }
        while *free == 0 {
            self.returned.wait(&mut free);
        }
        *free -= 1;
        Permit(self)
    }

    /// How often somebody found none.
    pub(crate) fn waits(&self) -> u64 {
        self.waits.load(Relaxed)
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        *self.0.free.lock() += 1;
        self.0.returned.notify_one();
    }
}

thread_local! {
    static COMMITS: Cell<u32> = const { Cell::new(0) };
}

impl Core {
    /// An error if nothing can be promised any more.
    #[inline]
    pub(crate) fn check(&self) -> Result<()> {
        self.pool.check()
    }

    /// An error if nothing may be changed.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.settings.read_only { Err(Error::ReadOnly) } else { self.pool.check() }
    }

    /// What brings `visible` nearer for those that wait for it.
    pub(crate) fn pump(&self) -> Result<()> {
        self.pool.check()?;
        self.clock.advance(self.pool.wal().durable());
        Ok(())
    }

    /// Drops the old versions nobody can see, giving up snapshots if they take too much room. What the versions
    /// referred to becomes garbage.
    pub(crate) fn collect(&self) {
        self.give_up_named();
        let mut freed = Vec::new();
        loop {
            let (oldest, visible) = (self.snapshots.oldest(&self.clock), self.clock.visible());
            let collected = self.versions.collect(oldest, visible, &mut freed);
            self.counters.versions_dropped.fetch_add(collected.versions as u64, Relaxed);
            if !self.versions.is_over_limit(self.read_memory.used()) {
                break;
            }
            match self.snapshots.give_up_oldest() {
                0 => break,
                given_up => self.note_given_up(given_up, &self.counters.given_up_for_memory, "memory"),
            }
        }
        self.garbage.add_values(freed);
    }

    fn note_given_up(&self, snapshots: usize, counter: &AtomicU64, reason: &str) {
        if snapshots > 0 {
            counter.fetch_add(snapshots as u64, Relaxed);
            tracing::warn!(database = self.settings.name, snapshots, reason, "snapshots given up");
        }
    }

    /// Drops the old versions that this thread has pushed and nobody can see; less than [`Core::collect`], and cheaper.
    fn collect_own(&self) {
        let mut freed = Vec::new();
        let (oldest, visible) = (self.snapshots.oldest(&self.clock), self.clock.visible());
        let collected = self.versions.collect_own(oldest, visible, &mut freed);
        self.counters.versions_dropped.fetch_add(collected.versions as u64, Relaxed);
        if !freed.is_empty() {
            self.garbage.add_values(freed);
        }
        if self.versions.is_over_limit(self.read_memory.used()) {
            self.collect();
        }
    }

    /// The share of the collecting that each commit does.
    pub(crate) fn after_commit(&self) {
        let due = COMMITS.with(|commits| {
            let count = commits.get() + 1;
            commits.set(count % COMMITS_PER_COLLECTION);
            count == COMMITS_PER_COLLECTION
        });
        if due {
            if self.pool.mode() == Mode::Background {
                self.collect_own();
            } else {
                // Nobody else collects what threads that are gone have left.
                self.collect();
                // What fails here is tried again, and a poisoned log is reported by the next call.
                let _ = self.free_garbage(4);
                let _ = self.save_counts_if_due();
            }
        }
    }

    fn run_collector(&self) {
        let mut failed = false;
        let mut saved = Instant::now();
        while self.collector.wait() {
            if self.check().is_err() {
                continue;
            }
            let given_up = self.snapshots.give_up_older_than(self.settings.snapshot_age_max);
            self.note_given_up(given_up, &self.counters.given_up_for_age, "age");
            self.collect();
            let freed = self.free_garbage(64);
            // Told once, however often it is tried again.
            match &freed {
                Err(Error::Full { what }) if !failed => tracing::warn!(what, "freeing waits for disk space"),
                // Told where it was set aside, once for each.
                Err(Error::Corrupt { .. }) => {}
                Err(error) if !failed => tracing::error!(%error, "freeing failed; the next open will do it"),
                _ => {}
            }
            failed = matches!(&freed, Err(error) if !matches!(error, Error::Corrupt { .. }));
            if saved.elapsed() >= SAVE_PAUSE {
                // As above: it is tried again.
                let _ = self.save_counts_if_due();
                saved = Instant::now();
            }
        }
    }

    /// Makes everything durable, writes everything out, and lets nothing more be written.
    fn shut_down(&self) -> Result<()> {
        let outcome = if self.settings.read_only { Ok(()) } else { self.write_everything() };
        // Handles that are left must not write beside the next owner.
        self.pool.wal().close("the database has been closed");
        outcome
    }

    fn write_everything(&self) -> Result<()> {
        self.check()?;
        if let Err(error) = self.save_counts(true) {
            tracing::warn!(%error, "counts of entries were not saved; tables will be counted when somebody asks");
        }
        match self.garbage.damaged() {
            0 => {}
            damaged => {
                tracing::warn!(damaged, "closing with deleted values or tables that are damaged and stay")
            }
        }
        self.pool.stats.closing.store(true, Relaxed);
        self.collect();
        self.pool.wal().flush_to(self.pool.wal().tail())?;
        self.pool.checkpoint_now(true)
    }
}

/// A core with its threads. The last handle to drop it closes the database.
#[derive(Debug)]
pub(crate) struct Shared {
    core: Arc<Core>,
    threads: Mutex<Option<Vec<JoinHandle<()>>>>,
    /// Who opened it. A forked child has a copy without its threads.
    process: u32,
}

impl Deref for Shared {
    type Target = Core;

    fn deref(&self) -> &Core {
        &self.core
    }
}

impl Shared {
    /// Starts the threads of `core`, if it is to have any.
    pub(crate) fn start(core: Core) -> Result<Arc<Self>> {
        let core = Arc::new(core);
        let mut threads = Vec::new();
        if core.pool.mode() == Mode::Background && !core.settings.read_only {
            let spawn = |name: &str, body: fn(&Core)| {
                let core = Arc::clone(&core);
                let builder = std::thread::Builder::new().name(name.to_owned());
                builder.spawn(move || body(&core)).map_err(|source| Error::Io {
                    operation: "start a thread",
                    file: name.to_owned(),
                    offset: None,
                    source,
                })
            };
            type Body = fn(&Core);
            let bodies: [(&str, Body); 3] = [
                ("terrace-log", |core| core.pool.wal().run_writer()),
                ("terrace-upkeep", |core| core.pool.run_upkeep()),
                ("terrace-collect", Core::run_collector),
            ];
            for (name, body) in bodies {
                match spawn(name, body) {
                    Ok(thread) => threads.push(thread),
                    Err(error) => {
                        // The threads that run have the database, its lock included, as long as they do.
                        core.pool.stop_upkeep();
                        core.pool.wal().stop_writer();
                        threads.into_iter().for_each(|thread| drop(thread.join()));
                        return Err(error);
                    }
                }
            }
        }
        Ok(Arc::new(Shared { core, threads: Mutex::new(Some(threads)), process: std::process::id() }))
    }

    /// As [`Core::get_now`], at once if memory has the answer, else by a thread of the database's own if it has any.
    pub(crate) fn get_async(&self, table: &Arc<TableState>, key: &[u8]) -> Lookup {
        if let Some(answer) = self.core.get_from_memory(table, key) {
            return Lookup::ready(answer);
        }
        let has_threads = self.core.pool.mode() == Mode::Background && self.process == std::process::id();
        let submitted = has_threads.then(|| Lookups::submit(&self.core, table, key)).flatten();
        submitted.unwrap_or_else(|| Lookup::ready(self.core.get_now(table, key)))
    }

    /// Closes the database; later calls do nothing.
    pub(crate) fn close(&self) -> Result<()> {
        if self.process != std::process::id() {
            // A forked child: the threads, the files and the lock are its parent's.
            return Ok(());
        }
        let Some(mut threads) = self.threads.lock().take() else { return Ok(()) };
        self.core.lookups.close();
        self.core.collector.stop();
        // The collector first: it needs the upkeep to get through.
        if let Some(collector) = threads.pop() {
            let _ = collector.join();
        }
        let outcome = self.core.shut_down();
        self.core.pool.stop_upkeep();
        self.core.pool.wal().stop_writer();
        for thread in threads {
            let _ = thread.join();
        }
        self.core.pool.wait_for_writes();
        if let Some(cache) = &self.core.pool.cache
            && let Err(error) = cache.retire()
        {
            tracing::warn!(%error, "closing the cache failed; some of it is cold when it is opened again");
        }
        // Only now may there be another owner: what was under way when the log was poisoned has ended too.
        self.core.lock.lock().take();
        tracing::info!(database = self.core.settings.name, cleanly = outcome.is_ok(), "closed");
        outcome
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::error!(%error, "closing the database failed; it will be recovered when it is opened");
        }
    }
}
