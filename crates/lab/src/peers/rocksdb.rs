//! RocksDB: an LSM tree with a log. Each table is a database in its own directory.
//!
//! Settings follow the tuning guide: level compaction with dynamic level sizes, a Bloom filter of
//! ten bits per key, and `increase_parallelism` with the number of CPUs. Index and filter blocks
//! are in the block cache, pinned for level 0. Two write buffers take an eighth of the budget each,
//! at most 64 MiB; the block cache has the rest. `sync` sets `sync` on each write, and waiting
//! writers share one sync. `buffered` hands the log to the kernel.

pub(super) mod business;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use rocksdb::{BlockBasedOptions, Cache, DB, DBCompressionType, Options, WriteBatch, WriteOptions};
use terrace::Durability;
use terrace_common::failure::{Failure, Outcome};
use terrace_common::store::{self, Access, Counters, Ending, Opener, Settings, Store, Visit};
use terrace_common::units::show_size;

use super::folder::{Folder, budget, failed};
use super::overlay;

const NAME: &str = "rocksdb";

/// Maximum number of write buffers: one filling, one flushing.
const BUFFERS: u64 = 2;

/// The RocksDB engine.
pub struct Engine;

impl Opener for Engine {
    fn open(&self, settings: &Settings) -> Outcome<Box<dyn store::Database>> {
        Ok(Box::new(Database::open(settings)?))
    }
}

impl Database {
    fn open(settings: &Settings) -> Outcome<Database> {
        let folder = Folder::of(settings)?;
        let budget_bytes = budget(settings);
        let buffer_bytes = (budget_bytes / 8).clamp(4 << 20, 64 << 20);
        let cache_bytes = budget_bytes.saturating_sub(BUFFERS * buffer_bytes).max(budget_bytes / 4);
        let cache = Cache::new_hyper_clock_cache(cache_bytes as usize, 0);
        let shared = Shared {
            durability: settings.tiers.commits.durability,
            budget_bytes,
            buffer_bytes,
            cache_bytes,
            folder,
        };
        Ok(Database { shared: Arc::new(shared), cache, tables: Mutex::default() })
    }
}

struct Shared {
    durability: Durability,
    budget_bytes: u64,
    buffer_bytes: u64,
    cache_bytes: u64,
    folder: Folder,
}

struct Database {
    shared: Arc<Shared>,
    cache: Cache,
    tables: Mutex<BTreeMap<String, Arc<Inner>>>,
}

/// An open RocksDB database.
struct Inner {
    db: DB,
    /// Shared by plain writes, exclusive for a transaction.
    apart: RwLock<()>,
    shared: Arc<Shared>,
}

impl Database {
    fn tables(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Inner>>> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, table: &str) -> PathBuf {
        self.shared.folder.path.join(table)
    }

    fn options(&self, create: bool) -> Options {
        let mut blocks = BlockBasedOptions::default();
        blocks.set_block_cache(&self.cache);
        blocks.set_bloom_filter(10.0, false);
        blocks.set_cache_index_and_filter_blocks(true);
        blocks.set_pin_l0_filter_and_index_blocks_in_cache(true);
        let mut options = Options::default();
        options.create_if_missing(create);
        options.set_block_based_table_factory(&blocks);
        options.set_compression_type(DBCompressionType::None);
        options.set_write_buffer_size(self.shared.buffer_bytes as usize);
        options.set_max_write_buffer_number(BUFFERS as i32);
        options.set_level_compaction_dynamic_level_bytes(true);
        options.increase_parallelism(std::thread::available_parallelism().map_or(1, |n| n.get() as i32));
        options
    }
}

impl store::Database for Database {
    fn table(&self, name: &str, create: bool) -> Outcome<Box<dyn Store>> {
        let mut open = self.tables();
        if let Some(inner) = open.get(name) {
            return Ok(Box::new(Table::of(inner.clone())));
        }
        let path = self.path(name);
        if !create && !path.is_dir() {
            return Err(Failure::Work(format!("{NAME}: there is no table {name:?}")));
        }
        let db = DB::open(&self.options(create), path).map_err(failed(NAME))?;
        let inner = Arc::new(Inner { db, apart: RwLock::new(()), shared: self.shared.clone() });
        open.insert(name.to_owned(), inner.clone());
        Ok(Box::new(Table::of(inner)))
    }

    fn drop_table(&self, name: &str) -> Outcome {
        drop(self.tables().remove(name));
        let path = self.path(name);
        match path.is_dir() {
            true => fs::remove_dir_all(&path).map_err(|error| Failure::file("removing", &path, error)),
            false => Ok(()),
        }
    }

    fn settings(&self) -> BTreeMap<&'static str, String> {
        let sync = self.shared.durability == Durability::Sync;
        BTreeMap::from([
            ("version", "RocksDB 11".to_owned()),
            ("block_cache", format!("{} (HyperClockCache)", show_size(self.shared.cache_bytes))),
            ("write_buffer_size", format!("{} x {BUFFERS}", show_size(self.shared.buffer_bytes))),
            ("sync", sync.to_string()),
            ("bloom_filter", "10 bits a key".to_owned()),
            ("compression", "none".to_owned()),
            ("compaction", "level, dynamic level bytes".to_owned()),
            ("files", self.shared.folder.kind.to_owned()),
        ])
    }

    fn close(self: Box<Self>) -> Outcome {
        self.tables().values().try_for_each(|inner| inner.db.flush_wal(true).map_err(failed(NAME)))
    }
}

struct Table {
    inner: Arc<Inner>,
    options: WriteOptions,
}

impl Table {
    fn of(inner: Arc<Inner>) -> Table {
        let mut options = WriteOptions::default();
        options.set_sync(inner.shared.durability == Durability::Sync);
        Table { inner, options }
    }

    fn batch(&self, entries: &[(Vec<u8>, Vec<u8>)]) -> Outcome {
        let mut batch = WriteBatch::default();
        for (key, value) in entries {
            batch.put(key, value);
        }
        self.inner.db.write_opt(batch, &self.options).map_err(failed(NAME))
    }
}

impl Store for Table {
    fn get(&self, key: &[u8]) -> Outcome<Option<Vec<u8>>> {
        let found = self.inner.db.get_pinned(key).map_err(failed(NAME))?;
        Ok(found.map(|value| value.to_vec()))
    }

    fn get_with(&self, key: &[u8], read: &mut dyn FnMut(&[u8])) -> Outcome<bool> {
        let found = self.inner.db.get_pinned(key).map_err(failed(NAME))?;
        Ok(found.map(|value| read(&value)).is_some())
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Outcome {
        let _shared = self.inner.apart.read().unwrap_or_else(PoisonError::into_inner);
        self.inner.db.put_opt(key, value, &self.options).map_err(failed(NAME))
    }

    fn delete(&self, key: &[u8]) -> Outcome<bool> {
        let _exclusive = self.inner.apart.write().unwrap_or_else(PoisonError::into_inner);
        let was = self.inner.db.get_pinned(key).map_err(failed(NAME))?.is_some();
        self.inner.db.delete_opt(key, &self.options).map_err(failed(NAME))?;
        Ok(was)
    }

    fn write(&self, entries: &[(Vec<u8>, Vec<u8>)]) -> Outcome {
        let _shared = self.inner.apart.read().unwrap_or_else(PoisonError::into_inner);
        self.batch(entries)
    }

    fn transact(&self, body: &mut dyn FnMut(&mut dyn Access) -> Outcome<Ending>) -> Outcome<u64> {
        let _exclusive = self.inner.apart.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(writes) = overlay::run(&|key| self.get(key), body)? {
            self.batch(&writes)?;
        }
        Ok(0)
    }

    fn scan(&self, from: &[u8], visit: &mut Visit<'_>) -> Outcome {
        let mut rows = self.inner.db.raw_iterator();
        rows.seek(from);
        while let Some((key, value)) = rows.item() {
            if visit(key, value).is_break() {
                return Ok(());
            }
            rows.next();
        }
        rows.status().map_err(failed(NAME))
    }

    fn counters(&self) -> Counters {
        self.inner.shared.folder.counters(self.inner.shared.budget_bytes)
    }
}
