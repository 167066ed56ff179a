//! redb: a copy-on-write B-tree in one file, with one writer and snapshot readers.
//!
//! `sync` is `Durability::Immediate`. `buffered` is `Durability::None`, which becomes durable only
//! with the next immediate commit. The documentation warns that the file grows without any, so one
//! commit per second is immediate. The cache is the budget.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use redb::{ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction};
use terrace::Durability;
use terrace_common::failure::Outcome;
use terrace_common::store::{self, Access, Counters, Ending, Opener, Settings, Store, Visit};
use terrace_common::units::show_size;

use super::folder::{Folder, budget, failed};

const NAME: &str = "redb";

/// Interval between immediate commits of a buffered database.
const IMMEDIATE_EVERY: Duration = Duration::from_secs(1);

/// The redb engine.
pub struct Engine;

impl Opener for Engine {
    fn open(&self, settings: &Settings) -> Outcome<Box<dyn store::Database>> {
        let folder = Folder::of(settings)?;
        let budget_bytes = budget(settings);
        let mut builder = redb::Builder::new();
        builder.set_cache_size(usize::try_from(budget_bytes).unwrap_or(usize::MAX));
        let file = folder.path.join("data.redb");
        let db = if settings.create { builder.create(file) } else { builder.open(file) };
        Ok(Box::new(Database(Arc::new(Inner {
            db: db.map_err(failed(NAME))?,
            durability: settings.tiers.commits.durability,
            immediate: Mutex::new(Instant::now()),
            budget_bytes,
            folder,
        }))))
    }
}

struct Inner {
    db: redb::Database,
    durability: Durability,
    /// Time of the last immediate commit of a buffered database.
    immediate: Mutex<Instant>,
    budget_bytes: u64,
    folder: Folder,
}

impl Inner {
    fn begin(&self) -> Outcome<WriteTransaction> {
        let mut transaction = self.db.begin_write().map_err(failed(NAME))?;
        let durability = match self.durability {
            Durability::Sync => redb::Durability::Immediate,
            Durability::Buffered => {
                let mut last = self.immediate.lock().unwrap_or_else(PoisonError::into_inner);
                match last.elapsed() >= IMMEDIATE_EVERY {
                    true => {
                        *last = Instant::now();
                        redb::Durability::Immediate
                    }
                    false => redb::Durability::None,
                }
            }
        };
        transaction.set_durability(durability).map_err(failed(NAME))?;
        Ok(transaction)
    }
}

struct Database(Arc<Inner>);

type Definition<'a> = TableDefinition<'a, &'static [u8], &'static [u8]>;

impl store::Database for Database {
    fn table(&self, name: &str, create: bool) -> Outcome<Box<dyn Store>> {
        let definition: Definition<'_> = TableDefinition::new(name);
        if create {
            let transaction = self.0.db.begin_write().map_err(failed(NAME))?;
            transaction.open_table(definition).map_err(failed(NAME))?;
            transaction.commit().map_err(failed(NAME))?;
        } else {
            self.0.db.begin_read().map_err(failed(NAME))?.open_table(definition).map_err(failed(NAME))?;
        }
        Ok(Box::new(Table { inner: self.0.clone(), name: name.to_owned() }))
    }

    fn drop_table(&self, name: &str) -> Outcome {
        let definition: Definition<'_> = TableDefinition::new(name);
        let transaction = self.0.db.begin_write().map_err(failed(NAME))?;
        transaction.delete_table(definition).map_err(failed(NAME))?;
        transaction.commit().map_err(failed(NAME))
    }

    fn settings(&self) -> BTreeMap<&'static str, String> {
        let durability = match self.0.durability {
            Durability::Sync => "Immediate".to_owned(),
            Durability::Buffered => format!("None, Immediate every {} s", IMMEDIATE_EVERY.as_secs()),
        };
        BTreeMap::from([
            ("version", "redb 4".to_owned()),
            ("cache_size", show_size(self.0.budget_bytes)),
            ("durability", durability),
            ("page_size", "4 KiB (fixed)".to_owned()),
            ("files", self.0.folder.kind.to_owned()),
        ])
    }

    fn close(self: Box<Self>) -> Outcome {
        // This immediate commit makes the earlier ones durable.
        if self.0.durability == Durability::Buffered {
            self.0.db.begin_write().map_err(failed(NAME))?.commit().map_err(failed(NAME))?;
        }
        Ok(())
    }
}

struct Table {
    inner: Arc<Inner>,
    name: String,
}

impl Table {
    fn definition(&self) -> Definition<'_> {
        TableDefinition::new(&self.name)
    }
}

impl Store for Table {
    fn get(&self, key: &[u8]) -> Outcome<Option<Vec<u8>>> {
        let transaction = self.inner.db.begin_read().map_err(failed(NAME))?;
        let table = transaction.open_table(self.definition()).map_err(failed(NAME))?;
        let found = table.get(key).map_err(failed(NAME))?;
        Ok(found.map(|value| value.value().to_vec()))
    }

    fn get_with(&self, key: &[u8], read: &mut dyn FnMut(&[u8])) -> Outcome<bool> {
        let transaction = self.inner.db.begin_read().map_err(failed(NAME))?;
        let table = transaction.open_table(self.definition()).map_err(failed(NAME))?;
        let found = table.get(key).map_err(failed(NAME))?;
        Ok(found.map(|value| read(value.value())).is_some())
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Outcome {
        let transaction = self.inner.begin()?;
        transaction
            .open_table(self.definition())
            .map_err(failed(NAME))?
            .insert(key, value)
            .map_err(failed(NAME))?;
        transaction.commit().map_err(failed(NAME))
    }

    fn delete(&self, key: &[u8]) -> Outcome<bool> {
        let transaction = self.inner.begin()?;
        let mut table = transaction.open_table(self.definition()).map_err(failed(NAME))?;
        let was = table.remove(key).map_err(failed(NAME))?.is_some();
        drop(table);
        transaction.commit().map_err(failed(NAME))?;
        Ok(was)
    }

    fn write(&self, entries: &[(Vec<u8>, Vec<u8>)]) -> Outcome {
        let transaction = self.inner.begin()?;
        let mut table = transaction.open_table(self.definition()).map_err(failed(NAME))?;
        for (key, value) in entries {
            table.insert(key.as_slice(), value.as_slice()).map_err(failed(NAME))?;
        }
        drop(table);
        transaction.commit().map_err(failed(NAME))
    }

    fn transact(&self, body: &mut dyn FnMut(&mut dyn Access) -> Outcome<Ending>) -> Outcome<u64> {
        let transaction = self.inner.begin()?;
        // Dropping the transaction, as after a failing body, aborts it.
        let ending = body(&mut Inside(transaction.open_table(self.definition()).map_err(failed(NAME))?))?;
        match ending {
            Ending::Commit => transaction.commit().map_err(failed(NAME))?,
            Ending::Abort => transaction.abort().map_err(failed(NAME))?,
        }
        Ok(0)
    }

    fn scan(&self, from: &[u8], visit: &mut Visit<'_>) -> Outcome {
        let transaction = self.inner.db.begin_read().map_err(failed(NAME))?;
        let table = transaction.open_table(self.definition()).map_err(failed(NAME))?;
        for entry in table.range(from..).map_err(failed(NAME))? {
            let (key, value) = entry.map_err(failed(NAME))?;
            if visit(key.value(), value.value()).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn counters(&self) -> Counters {
        self.inner.folder.counters(self.inner.budget_bytes)
    }
}

struct Inside<'a>(redb::Table<'a, &'static [u8], &'static [u8]>);

impl Access for Inside<'_> {
    fn get(&mut self, key: &[u8]) -> Outcome<Option<Vec<u8>>> {
        let found = self.0.get(key).map_err(failed(NAME))?;
        Ok(found.map(|value| value.value().to_vec()))
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Outcome {
        self.0.insert(key, value).map_err(failed(NAME))?;
        Ok(())
    }
}
