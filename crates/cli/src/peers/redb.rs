//! redb: a copy-on-write B-tree in one file, one writer, readers of snapshots.
//!
//! `sync` is `Durability::Immediate`. `buffered` is `Durability::None`, whose commits last only with the next immediate one;
//! its documentation warns that the file grows without any, so one commit a second is immediate. The cache is the budget.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use redb::{ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction};

use super::{Place, budget, failed};
use crate::failure::Outcome;
use crate::store::{self, Access, Counters, Durability, Ending, Opener, Settings, Store, Visit};
use crate::units::show_size;

const NAME: &str = "redb";

/// How long commits of a buffered database may wait for an immediate one.
const IMMEDIATE_EVERY: Duration = Duration::from_secs(1);

/// Opens redb databases.
pub struct Engine;

impl Opener for Engine {
    fn open(&self, settings: &Settings) -> Outcome<Box<dyn store::Database>> {
        let place = Place::of(settings)?;
        let budget_bytes = budget(settings);
        let mut builder = redb::Builder::new();
        builder.set_cache_size(usize::try_from(budget_bytes).unwrap_or(usize::MAX));
        let file = place.path.join("data.redb");
        let db = if settings.create { builder.create(file) } else { builder.open(file) };
        Ok(Box::new(Database(Arc::new(Inner {
            db: db.map_err(failed(NAME))?,
            durability: settings.durability,
            immediate: Mutex::new(Instant::now()),
            budget_bytes,
            place,
        }))))
    }
}

struct Inner {
    db: redb::Database,
    durability: Durability,
    /// When the last immediate commit of a buffered database was.
    immediate: Mutex<Instant>,
    budget_bytes: u64,
    place: Place,
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
            ("files", self.0.place.kind.to_owned()),
        ])
    }

    fn close(self: Box<Self>) -> Outcome {
        // What was committed with no durability lasts from here on.
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
        // One that is dropped, as by a failing body, is aborted.
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
        self.inner.place.counters(self.inner.budget_bytes)
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
