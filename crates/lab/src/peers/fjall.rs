//! fjall: an LSM tree with a journal.
//!
//! `sync` persists the journal with `fdatasync` after each commit (`PersistMode::SyncData`);
//! `buffered` hands it to the kernel. Three write buffers (one active, two flushing) take an eighth
//! of the budget each, within the documented 8 to 64 MiB. The block cache has the rest. The last
//! level has no filters, as documented for keys that exist.
//!
//! fjall's own transactions stay off. They would burden every plain write more than the shared lock
//! of [`super::overlay`].

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use fjall::config::CompressionPolicy;
use fjall::{CompressionType, KeyspaceCreateOptions, PersistMode};
use terrace::Durability;
use terrace_common::failure::{Failure, Outcome};
use terrace_common::store::{self, Access, Counters, Ending, Opener, Settings, Store, Visit};
use terrace_common::units::show_size;

use super::folder::{Folder, budget, failed};
use super::overlay;

const NAME: &str = "fjall";

/// Maximum number of write buffers.
const BUFFERS: u64 = 3;

/// The fjall engine.
pub struct Engine;

impl Opener for Engine {
    fn open(&self, settings: &Settings) -> Outcome<Box<dyn store::Database>> {
        let folder = Folder::of(settings)?;
        let budget_bytes = budget(settings);
        let buffer_bytes = (budget_bytes / 8).clamp(8 << 20, 64 << 20);
        let cache_bytes = budget_bytes.saturating_sub(BUFFERS * buffer_bytes).max(budget_bytes / 4);
        let db = fjall::Database::builder(&folder.path)
            .cache_size(cache_bytes)
            .journal_compression(CompressionType::None)
            .open()
            .map_err(failed(NAME))?;
        let persist = match settings.tiers.commits.durability {
            Durability::Sync => PersistMode::SyncData,
            Durability::Buffered => PersistMode::Buffer,
        };
        let sizes = Sizes { budget_bytes, buffer_bytes, cache_bytes };
        Ok(Box::new(Database(Arc::new(Inner { db, persist, apart: RwLock::new(()), sizes, folder }))))
    }
}

struct Sizes {
    budget_bytes: u64,
    buffer_bytes: u64,
    cache_bytes: u64,
}

struct Inner {
    db: fjall::Database,
    persist: PersistMode,
    /// Shared by plain writes, exclusive for a transaction.
    apart: RwLock<()>,
    sizes: Sizes,
    folder: Folder,
}

impl Inner {
    /// Syncs if commits are durable.
    fn persist(&self) -> Outcome {
        match self.persist {
            // Every write already handed the journal to the kernel.
            PersistMode::Buffer => Ok(()),
            mode => self.db.persist(mode).map_err(failed(NAME)),
        }
    }
}

struct Database(Arc<Inner>);

impl store::Database for Database {
    fn table(&self, name: &str, create: bool) -> Outcome<Box<dyn Store>> {
        let Inner { db, sizes, .. } = &*self.0;
        if !create && !db.keyspace_exists(name) {
            return Err(Failure::Work(format!("{NAME}: there is no table {name:?}")));
        }
        let options = || {
            KeyspaceCreateOptions::default()
                .max_memtable_size(sizes.buffer_bytes)
                .data_block_compression_policy(CompressionPolicy::disabled())
                .index_block_compression_policy(CompressionPolicy::disabled())
                .expect_point_read_hits(true)
        };
        let keyspace = db.keyspace(name, options).map_err(failed(NAME))?;
        Ok(Box::new(Table { inner: self.0.clone(), keyspace }))
    }

    fn drop_table(&self, name: &str) -> Outcome {
        if !self.0.db.keyspace_exists(name) {
            return Ok(());
        }
        let keyspace = self.0.db.keyspace(name, KeyspaceCreateOptions::default).map_err(failed(NAME))?;
        self.0.db.delete_keyspace(keyspace).map_err(failed(NAME))
    }

    fn settings(&self) -> BTreeMap<&'static str, String> {
        let Inner { sizes, persist, folder, .. } = &*self.0;
        let persist = match persist {
            PersistMode::Buffer => "Buffer",
            PersistMode::SyncData => "SyncData after each commit",
            PersistMode::SyncAll => "SyncAll after each commit",
        };
        BTreeMap::from([
            ("version", "fjall 3".to_owned()),
            ("cache_size", show_size(sizes.cache_bytes)),
            (
                "max_memtable_size",
                format!("{} ({BUFFERS} of them within the budget)", show_size(sizes.buffer_bytes)),
            ),
            ("persist", persist.to_owned()),
            ("compression", "none".to_owned()),
            ("expect_point_read_hits", "true".to_owned()),
            ("block_size", "4 KiB (default)".to_owned()),
            ("files", folder.kind.to_owned()),
        ])
    }

    fn close(self: Box<Self>) -> Outcome {
        self.0.db.persist(PersistMode::SyncAll).map_err(failed(NAME))
    }
}

struct Table {
    inner: Arc<Inner>,
    keyspace: fjall::Keyspace,
}

impl Table {
    fn batch(&self, entries: &[(Vec<u8>, Vec<u8>)]) -> Outcome {
        let mut batch = self.inner.db.batch().durability(Some(PersistMode::Buffer));
        for (key, value) in entries {
            batch.insert(&self.keyspace, key.as_slice(), value.as_slice());
        }
        batch.commit().map_err(failed(NAME))
    }
}

impl Store for Table {
    fn get(&self, key: &[u8]) -> Outcome<Option<Vec<u8>>> {
        let found = self.keyspace.get(key).map_err(failed(NAME))?;
        Ok(found.map(|value| value.to_vec()))
    }

    fn get_with(&self, key: &[u8], read: &mut dyn FnMut(&[u8])) -> Outcome<bool> {
        let found = self.keyspace.get(key).map_err(failed(NAME))?;
        Ok(found.map(|value| read(&value)).is_some())
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Outcome {
        let shared = self.inner.apart.read().unwrap_or_else(PoisonError::into_inner);
        self.keyspace.insert(key, value).map_err(failed(NAME))?;
        drop(shared);
        self.inner.persist()
    }

    fn delete(&self, key: &[u8]) -> Outcome<bool> {
        let exclusive = self.inner.apart.write().unwrap_or_else(PoisonError::into_inner);
        let was = self.keyspace.contains_key(key).map_err(failed(NAME))?;
        self.keyspace.remove(key).map_err(failed(NAME))?;
        drop(exclusive);
        self.inner.persist()?;
        Ok(was)
    }

    fn write(&self, entries: &[(Vec<u8>, Vec<u8>)]) -> Outcome {
        let shared = self.inner.apart.read().unwrap_or_else(PoisonError::into_inner);
        self.batch(entries)?;
        drop(shared);
        self.inner.persist()
    }

    fn transact(&self, body: &mut dyn FnMut(&mut dyn Access) -> Outcome<Ending>) -> Outcome<u64> {
        let exclusive = self.inner.apart.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(writes) = overlay::run(&|key| self.get(key), body)? {
            self.batch(&writes)?;
            drop(exclusive);
            self.inner.persist()?;
        }
        Ok(0)
    }

    fn scan(&self, from: &[u8], visit: &mut Visit<'_>) -> Outcome {
        for entry in self.keyspace.range(from..) {
            let (key, value) = entry.into_inner().map_err(failed(NAME))?;
            if visit(&key, &value).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn counters(&self) -> Counters {
        self.inner.folder.counters(self.inner.sizes.budget_bytes)
    }
}
