//! The standard library's `BTreeMap` behind a reader-writer lock: no pages, no log, no files.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use terrace_common::failure::{Failure, Outcome};
use terrace_common::store::{self, Access, Counters, Ending, Opener, Settings, Store, Visit};

use super::overlay;

/// The `BTreeMap` engine.
pub struct Engine;

impl Opener for Engine {
    fn open(&self, settings: &Settings) -> Outcome<Box<dyn store::Database>> {
        match &settings.store {
            Some(_) => Err(Failure::Usage("--engine btreemap has no files; leave out --store".to_owned())),
            None => Ok(Box::new(Database::default())),
        }
    }
}

#[derive(Default)]
struct Database(RwLock<BTreeMap<String, Table>>);

#[derive(Clone, Default)]
struct Table(Arc<RwLock<BTreeMap<Vec<u8>, Vec<u8>>>>);

impl store::Database for Database {
    fn table(&self, name: &str, create: bool) -> Outcome<Box<dyn Store>> {
        let mut tables = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if !create && !tables.contains_key(name) {
            return Err(terrace::Error::TableNotFound(name.to_owned()).into());
        }
        Ok(Box::new(tables.entry(name.to_owned()).or_default().clone()))
    }

    fn drop_table(&self, name: &str) -> Outcome {
        self.0.write().unwrap_or_else(PoisonError::into_inner).remove(name);
        Ok(())
    }

    fn settings(&self) -> BTreeMap<&'static str, String> {
        BTreeMap::from([("files", "none".to_owned()), ("budget", "none: memory as it needs".to_owned())])
    }

    fn close(self: Box<Self>) -> Outcome {
        Ok(())
    }
}

impl Table {
    fn shared(&self) -> RwLockReadGuard<'_, BTreeMap<Vec<u8>, Vec<u8>>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn exclusive(&self) -> RwLockWriteGuard<'_, BTreeMap<Vec<u8>, Vec<u8>>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for Table {
    fn get(&self, key: &[u8]) -> Outcome<Option<Vec<u8>>> {
        Ok(self.shared().get(key).cloned())
    }

    fn get_with(&self, key: &[u8], read: &mut dyn FnMut(&[u8])) -> Outcome<bool> {
        Ok(self.shared().get(key).map(|value| read(value)).is_some())
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Outcome {
        // Allocate before taking the lock and drop the old value after releasing it.
        let (key, value) = (key.to_vec(), value.to_vec());
        let replaced = self.exclusive().insert(key, value);
        drop(replaced);
        Ok(())
    }

    fn delete(&self, key: &[u8]) -> Outcome<bool> {
        Ok(self.exclusive().remove(key).is_some())
    }

    fn write(&self, entries: &[(Vec<u8>, Vec<u8>)]) -> Outcome {
        self.exclusive().extend(entries.iter().cloned());
        Ok(())
    }

    fn transact(&self, body: &mut dyn FnMut(&mut dyn Access) -> Outcome<Ending>) -> Outcome<u64> {
        let mut map = self.exclusive();
        if let Some(writes) = overlay::run(&|key| Ok(map.get(key).cloned()), body)? {
            map.extend(writes);
        }
        Ok(0)
    }

    fn scan(&self, from: &[u8], visit: &mut Visit<'_>) -> Outcome {
        let map = self.shared();
        for (key, value) in
            map.range::<[u8], _>((std::ops::Bound::Included(from), std::ops::Bound::Unbounded))
        {
            if visit(key, value).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }
}
