//! Terrace without its page table, to measure the table's cost: `terrace bench ycsb --workload c
//! --compare terrace,raw-frames`.
//!
//! Records are loaded into an in-memory database as usual. The first read copies the table so that
//! inner nodes name their children's frames. All reads use that copy, so nothing can change
//! afterwards. Copying takes about as long as loading and belongs in the warm-up.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, OnceLock};

use terrace::{Db, Durability, MemoryDirectory, RawFrames, WriteBatch};

use terrace_common::failure::{Failure, Outcome};
use terrace_common::store::{self, Access, Counters, Ending, Opener, Settings, Store, Visit};
use terrace_common::units::show_size;

/// The engine of in-memory databases with raw frames.
pub struct Engine;

impl Opener for Engine {
    fn open(&self, settings: &Settings) -> Outcome<Box<dyn store::Database>> {
        if settings.store.is_some() {
            return Err(Failure::Usage("--engine raw-frames has no files; leave out --store".to_owned()));
        }
        let builder = settings.tiers.builder()?.create(true).durability(Durability::Buffered);
        let directory = Arc::new(MemoryDirectory::new());
        Ok(Box::new(Database(builder.directory(directory).open("")?)))
    }
}

struct Database(Db);

impl store::Database for Database {
    fn table(&self, name: &str, create: bool) -> Outcome<Box<dyn Store>> {
        let table = if create { self.0.open_or_create_table(name)? } else { self.0.open_table(name)? };
        Ok(Box::new(Table { db: self.0.clone(), table, raw: OnceLock::new() }))
    }

    fn drop_table(&self, name: &str) -> Outcome {
        match self.0.drop_table(name) {
            Ok(()) | Err(terrace::Error::TableNotFound(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn settings(&self) -> BTreeMap<&'static str, String> {
        BTreeMap::from([
            ("page_size", show_size(self.0.stats().page_bytes)),
            ("files", "none, all in memory".to_owned()),
            ("page_table", "none: parents name frames".to_owned()),
        ])
    }

    fn close(self: Box<Self>) -> Outcome {
        Ok(self.0.close()?)
    }
}

struct Table {
    db: Db,
    table: terrace::Table,
    raw: OnceLock<Result<RawFrames, terrace::Error>>,
}

impl Table {
    fn check_changeable(&self) -> Outcome {
        match self.raw.get() {
            None => Ok(()),
            Some(_) => {
                Err(Failure::Work("raw-frames reads from a copy; it supports only workload c".to_owned()))
            }
        }
    }
}

impl Store for Table {
    fn get(&self, key: &[u8]) -> Outcome<Option<Vec<u8>>> {
        match self.raw.get_or_init(|| RawFrames::of(&self.table)) {
            Ok(raw) => Ok(raw.get(key)?),
            Err(error) => Err(Failure::Work(format!("copying the table: {error}"))),
        }
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Outcome {
        self.check_changeable()?;
        Ok(self.table.put(key, value)?)
    }

    fn delete(&self, key: &[u8]) -> Outcome<bool> {
        self.check_changeable()?;
        Ok(self.table.delete(key)?)
    }

    fn write(&self, entries: &[(Vec<u8>, Vec<u8>)]) -> Outcome {
        self.check_changeable()?;
        let mut batch = WriteBatch::new();
        for (key, value) in entries {
            batch.put(&self.table, key, value);
        }
        Ok(self.db.write(batch, Durability::Buffered)?)
    }

    fn transact(&self, _: &mut dyn FnMut(&mut dyn Access) -> Outcome<Ending>) -> Outcome<u64> {
        Err(Failure::Work("raw-frames has no transactions; it supports only workload c".to_owned()))
    }

    fn scan(&self, from: &[u8], visit: &mut Visit<'_>) -> Outcome {
        let range = (Bound::Included(from), Bound::Unbounded);
        let _: Option<()> = self.table.scan::<&[u8], ()>(range, |key, value| visit(key, value))?;
        Ok(())
    }

    fn counters(&self) -> Counters {
        Counters { budget_bytes: self.db.stats().budget_bytes, ..Counters::default() }
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use terrace_common::tiers::{MemoryArgs, TierArgs};

    use super::*;

    #[test]
    fn the_copy_answers_as_the_table_did_and_then_nothing_changes() {
        let tiers = TierArgs {
            memory: MemoryArgs { dram: Some(32 << 20), ..MemoryArgs::default() },
            ..TierArgs::default()
        };
        let settings = Settings::new(&tiers, None);
        let database = Engine.open(&settings).unwrap();
        let table = database.table("t", true).unwrap();
        let entry = |number: u32| (number.to_be_bytes().to_vec(), vec![number as u8; number as usize % 600]);
        let entries: Vec<_> = (0..10_000).step_by(2).map(entry).collect();
        table.write(&entries).unwrap();
        for number in 0..10_000 {
            let (key, value) = entry(number);
            assert_eq!(table.get(&key).unwrap(), (number % 2 == 0).then_some(value), "{number}");
        }
        assert!(
            table.put(b"k", b"v").is_err() && table.write(&entries).is_err() && table.delete(b"k").is_err()
        );
        let mut seen = 0;
        table
            .scan(&[], &mut |_, _| {
                seen += 1;
                ControlFlow::Continue(())
            })
            .unwrap();
        assert_eq!(seen, entries.len());
    }
}
