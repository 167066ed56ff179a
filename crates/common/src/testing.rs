//! An in-memory engine for tests of code written against the traits.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use terrace::VerifyReport;

use crate::failure::Outcome;
use crate::store::{Access, Counters, Database, Ending, Opener, Settings, Stat, Store, Visit};

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// An in-memory table.
#[derive(Clone, Default)]
pub struct MemoryStore(pub Arc<Mutex<Map>>);

/// An in-memory database.
#[derive(Clone, Default)]
pub struct MemoryDatabase(Arc<Mutex<BTreeMap<String, MemoryStore>>>);

struct Body<'a>(&'a mut Map);

impl Access for Body<'_> {
    fn get(&mut self, key: &[u8]) -> Outcome<Option<Vec<u8>>> {
        Ok(self.0.get(key).cloned())
    }
    fn put(&mut self, key: &[u8], value: &[u8]) -> Outcome {
        self.0.insert(key.to_vec(), value.to_vec());
        Ok(())
    }
}

impl Store for MemoryStore {
    fn get(&self, key: &[u8]) -> Outcome<Option<Vec<u8>>> {
        Ok(self.0.lock().unwrap().get(key).cloned())
    }
    fn put(&self, key: &[u8], value: &[u8]) -> Outcome {
        self.0.lock().unwrap().insert(key.to_vec(), value.to_vec());
        Ok(())
    }
    fn delete(&self, key: &[u8]) -> Outcome<bool> {
        Ok(self.0.lock().unwrap().remove(key).is_some())
    }
    fn write(&self, entries: &[(Vec<u8>, Vec<u8>)]) -> Outcome {
        self.0.lock().unwrap().extend(entries.iter().cloned());
        Ok(())
    }
    fn transact(&self, body: &mut dyn FnMut(&mut dyn Access) -> Outcome<Ending>) -> Outcome<u64> {
        let mut map = self.0.lock().unwrap();
        let mut copy = map.clone();
        if body(&mut Body(&mut copy))? == Ending::Commit {
            *map = copy;
        }
        Ok(0)
    }
    fn scan(&self, from: &[u8], visit: &mut Visit<'_>) -> Outcome {
        for (key, value) in self.0.lock().unwrap().range(from.to_vec()..) {
            if visit(key, value).is_break() {
                break;
            }
        }
        Ok(())
    }
    fn counters(&self) -> Counters {
        Counters { budget_bytes: 1 << 30, stalls: vec![("log".into(), 2)], ..Counters::default() }
    }
}

impl Database for MemoryDatabase {
    fn table(&self, name: &str, create: bool) -> Outcome<Box<dyn Store>> {
        let mut tables = self.0.lock().unwrap();
        if !create && !tables.contains_key(name) {
            return Err(terrace::Error::TableNotFound(name.to_owned()).into());
        }
        Ok(Box::new(tables.entry(name.to_owned()).or_default().clone()))
    }
    fn drop_table(&self, name: &str) -> Outcome {
        self.0.lock().unwrap().remove(name);
        Ok(())
    }
    fn stat(&self) -> Outcome<Stat> {
        Ok(Stat { format: 1, ..Stat::default() })
    }
    fn verify(&self) -> Outcome<VerifyReport> {
        Ok(VerifyReport::default())
    }
    fn close(self: Box<Self>) -> Outcome {
        Ok(())
    }
}

impl Opener for MemoryDatabase {
    fn open(&self, _: &Settings) -> Outcome<Box<dyn Database>> {
        Ok(Box::new(self.clone()))
    }
}
