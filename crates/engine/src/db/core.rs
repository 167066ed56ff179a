//! State shared by all handles of an open database, and its lifetime.
//!
//! [`Core`] is [`Mvcc`] with tables, budget and reader threads. [`Shared`] adds the background
//! threads. Every handle refers to it, and the last one closes the database.
//!
//! The first thread writes the log, the second runs maintenance. The third gives up old snapshots,
//! drops old versions and frees garbage. Each waits for the one before, so they cannot be one. In
//! inline mode each commit does a share of the third thread's work, and the pool runs its own when
//! needed.

use std::cell::Cell;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::budget::Budget;
use super::lookup::{Lookup, Lookups};
use crate::error::{CLOSED, Error, Result};
use crate::index::{Before, Single};
use crate::maintenance::Maintenance;
use crate::pool::Mode;
use crate::txn::commit::{Committed, Work};
use crate::txn::durability::Durability;
use crate::txn::large::{Written, write_value};
use crate::txn::mvcc::Mvcc;
use crate::txn::single::SingleEnd;
use crate::txn::table::TableState;
use crate::txn::tables::Tables;

const COMMITS_PER_COLLECTION: u32 = 64;
/// Interval of checks whether to save counts, which stops commits briefly.
const SAVE_PAUSE: Duration = Duration::from_secs(1);
/// Sleep of the collector without a wake-up.
const COLLECTOR_PAUSE: Duration = Duration::from_millis(10);

/// An open database without its threads.
pub(crate) struct Core {
    pub(crate) mvcc: Mvcc,
    pub(crate) maintenance: Arc<Maintenance>,
    pub(crate) tables: Tables,
    pub(crate) budget: Budget,
    pub(crate) verifying: Mutex<()>,
    pub(crate) lock: Mutex<Option<Box<dyn Send + Sync>>>,
    pub(crate) collector: Collector,
    pub(crate) lookups: Lookups,
    /// Serialises backups.
    pub(crate) backups: Mutex<()>,
}

impl Deref for Core {
    type Target = Mvcc;

    #[inline]
    fn deref(&self) -> &Mvcc {
        &self.mvcc
    }
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

    /// Waits for work; `false` means stop.
    fn wait(&self) -> bool {
        let mut state = self.state.lock();
        if !state.0 && !state.1 {
            self.work.wait_for(&mut state, COLLECTOR_PAUSE);
        }
        state.0 = false;
        !state.1
    }
}

thread_local! {
    static COMMITS: Cell<u32> = const { Cell::new(0) };
}

impl Core {
    /// Commits, or fails with nothing changed.
    pub(crate) fn commit(&self, work: Work<'_>) -> Result<Committed> {
        let writes = work.has_writes();
        let outcome = self.mvcc.commit(work);
        if writes {
            self.after_commit();
        }
        outcome
    }

    /// Sets or removes one key if `accept` agrees ([`Mvcc::commit_single`]).
    pub(crate) fn commit_single(
        &self,
        table: &TableState,
        single: Single<'_>,
        durability: Durability,
        accept: impl FnMut(Option<&Before<'_>>) -> bool,
    ) -> Result<SingleEnd> {
        // Not `?`: the result of the commit is then written where the caller wants it.
        match self.check_writable() {
            Ok(()) => {
                let outcome = self.mvcc.commit_single(table, single, durability, accept);
                if !matches!(outcome, Ok(SingleEnd::Large | SingleEnd::Refused)) {
                    self.after_commit();
                }
                outcome
            }
            Err(error) => Err(error),
        }
    }

    pub(super) fn after_commit(&self) {
        let due = COMMITS.with(|commits| {
            let count = commits.get() + 1;
            commits.set(count % COMMITS_PER_COLLECTION);
            count == COMMITS_PER_COLLECTION
        });
        if due {
            if self.pool.mode() == Mode::Background {
                self.collect_own();
            } else {
                // No other thread collects the versions of ended threads.
                self.collect();
                // A failure is retried later, and the next call reports a poisoned log.
                let _ = self.garbage.free(&self.pool, &|| self.oldest(), 4);
                let _ = self.tables.save_counts_if_due(self);
                self.maintenance.seal_inline();
            }
        }
    }

    pub(crate) fn free_all_garbage(&self) -> Result<()> {
        self.collect();
        if self.pool.mode() == Mode::Background {
            self.collector.ring();
            return Ok(());
        }
        self.garbage.free_sound(&self.pool, &|| self.oldest())
    }

    /// Saves the changed counts. With `mark`, as the last commit before closing.
    pub(crate) fn save_counts(&self, mark: bool) -> Result<()> {
        self.tables.save_counts(self, mark)
    }

    /// Writes `value` to its own pages ([`write_value`]).
    ///
    /// # Errors
    /// [`Error::Config`] without room for a new page size, and write errors.
    pub(crate) fn write_value(&self, value: &[u8], table: &TableState) -> Result<Written> {
        for class in table.value_pages().classes(value.len()) {
            self.budget.use_class(&self.pool, class)?;
        }
        write_value(self, value, table)
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
            let freed = self.garbage.free(&self.pool, &|| self.oldest(), 64);
            // Warn once per series of retries.
            match &freed {
                Err(Error::Full { what }) if !failed => tracing::warn!(what, "freeing waits for disk space"),
                // Reported where it was set aside.
                Err(Error::Corrupt { .. }) => {}
                Err(error) if !failed => tracing::error!(%error, "freeing failed; the next open will do it"),
                _ => {}
            }
            failed = matches!(&freed, Err(error) if !matches!(error, Error::Corrupt { .. }));
            if saved.elapsed() >= SAVE_PAUSE {
                // A failure is retried later.
                let _ = self.tables.save_counts_if_due(self);
                saved = Instant::now();
            }
        }
    }

    fn shut_down(&self) -> Result<()> {
        let outcome = if self.settings.read_only { Ok(()) } else { self.write_everything() };
        // Remaining handles must not write beside the next owner.
        self.pool.wal().close(CLOSED);
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
        self.maintenance.checkpoint_now(true)?;
        self.maintenance.release_ring()
    }
}

/// A core with its threads. The last handle to drop it closes the database.
#[derive(Debug)]
pub(crate) struct Shared {
    core: Arc<Core>,
    threads: Mutex<Option<Vec<JoinHandle<()>>>>,
    /// Process that opened it; a forked child has no threads.
    process: u32,
}

impl Deref for Shared {
    type Target = Core;

    fn deref(&self) -> &Core {
        &self.core
    }
}

impl Shared {
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
                ("terrace-upkeep", |core| core.maintenance.run_maintenance()),
                ("terrace-collect", Core::run_collector),
            ];
            for (name, body) in bodies {
                match spawn(name, body) {
                    Ok(thread) => threads.push(thread),
                    Err(error) => {
                        // Running threads hold the database and its lock.
                        core.maintenance.stop_maintenance();
                        core.pool.wal().stop_writer();
                        threads.into_iter().for_each(|thread| drop(thread.join()));
                        return Err(error);
                    }
                }
            }
        }
        Ok(Arc::new(Shared { core, threads: Mutex::new(Some(threads)), process: std::process::id() }))
    }

    /// From memory at once, else in a reader thread if there is one.
    pub(crate) fn get_async(&self, table: &Arc<TableState>, key: &[u8]) -> Lookup {
        if let Some(answer) = self.core.get_from_memory(table, key) {
            return Lookup::ready(answer);
        }
        let spawn = || {
            let core = Arc::clone(&self.core);
            let builder = std::thread::Builder::new().name("terrace-read".to_owned());
            builder.spawn(move || core.lookups.serve(&core))
        };
        let has_threads = self.core.pool.mode() == Mode::Background && self.process == std::process::id();
        let submitted = has_threads.then(|| self.core.lookups.submit(table, key, spawn)).flatten();
        submitted.unwrap_or_else(|| Lookup::ready(self.core.get_now(table, key)))
    }

    /// Closes the database; later calls do nothing.
    pub(crate) fn close(&self) -> Result<()> {
        if self.process != std::process::id() {
            // In a forked child, threads, files and lock belong to the parent.
            return Ok(());
        }
        let Some(mut threads) = self.threads.lock().take() else { return Ok(()) };
        self.core.lookups.close();
        self.core.collector.stop();
        // The collector first: it depends on maintenance.
        if let Some(collector) = threads.pop() {
            let _ = collector.join();
        }
        let outcome = self.core.shut_down();
        self.core.maintenance.stop_maintenance();
        self.core.pool.wal().stop_writer();
        for thread in threads {
            let _ = thread.join();
        }
        self.core.maintenance.wait_for_writes();
        self.core.maintenance.seal_all();
        if let Some(cache) = &self.core.pool.cache
            && let Err(error) = cache.retire()
        {
            tracing::warn!(%error, "closing the cache failed; some of it is cold when it is opened again");
        }
        // Release the lock last: all work has ended.
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
