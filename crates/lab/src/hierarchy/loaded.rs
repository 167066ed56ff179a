//! Initial databases of experiments.

use std::collections::HashMap;
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use terrace::{Db, Durability, MemoryDirectory, Mode, RecordCache, TableOptions};
use terrace_common::failure::Outcome;
use terrace_common::values;

use super::noting::key_of;
use super::versions::Versions;
use crate::workload::fields::Fields;
use crate::workload::tpcc;
use crate::workload::tpcc::load::load;
use crate::workload::tpcc::tables::Tables;

/// The table with the records.
pub(super) const TABLE: &str = "records";
/// Budget of a load of records, which is sequential, and of one of a business.
const LOADING_BYTES: u64 = 16 << 20;
const LOADING_BUSINESS_BYTES: u64 = 64 << 20;
/// Seed of a business's rows.
const SEED: u64 = 20_180_610;

/// The engine keeps some counts per thread, and those of other databases would mix in.
pub fn on_new_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| scope.spawn(work).join().unwrap_or_else(|panic| resume_unwind(panic)))
}

/// Order in which records are loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LoadOrder {
    /// That of their keys. Leaves are full.
    #[default]
    Ascending,
    /// Random. Leaves are .69 full on average.
    Random,
}

/// Initial contents of a database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Data {
    pub(super) business: Option<tpcc::Scale>,
    pub(super) page_bytes: u64,
    pub(super) value_bytes: usize,
    pub(super) fields: Option<Fields>,
    pub(super) records: u64,
    pub(super) order: LoadOrder,
    pub(super) log_bytes: u64,
    pub(super) versions: bool,
}

impl Data {
    pub(super) fn load(self) -> Outcome<MemoryDirectory> {
        on_new_thread(|| self.load_here())
    }

    fn load_here(self) -> Outcome<MemoryDirectory> {
        let directory = MemoryDirectory::new();
        let db = Db::builder()
            .no_middle()
            .directory(Arc::new(directory.clone()))
            .dram(self.business.map_or(LOADING_BYTES, |_| LOADING_BUSINESS_BYTES))
            // A log that grows writes pages at other times.
            .log_min(self.log_bytes)
            .log_max(self.log_bytes)
            .page_size(self.page_bytes)
            .page_size_max(self.page_bytes)
            .record_cache(RecordCache::Off)
            .durability(Durability::Buffered)
            .mode(Mode::Inline)
            .seed(1)
            .open("")?;
        match self.business {
            Some(scale) => {
                let tables = Tables::open(&db, &TableOptions::new())?;
                load(&tables, scale, SEED, |_| Ok(()))?;
                if self.versions {
                    load_versions(&db, &tables, scale)?;
                }
            }
            None => self.load_records(&db)?,
        }
        db.close()?;
        Ok(directory)
    }

    fn load_records(self, db: &Db) -> Outcome {
        let table = db.create_table(TABLE)?;
        let (mut value, mut one) = (Vec::new(), Vec::new());
        let mut records: Vec<u64> = (0..self.records).collect();
        if self.order == LoadOrder::Random {
            records.sort_by_key(|&record| values::mix(record));
        }
        for record in records {
            let number = values::loaded(record);
            match self.fields {
                None => values::fill(number, 0, self.value_bytes, &mut value),
                Some(fields) => fields.fill(number, 0, &mut one, &mut value),
            }
            table.put(values::key(number), &value)?;
        }
        if self.versions {
            let mut versions = Versions::create(db, self.records, self.value_bytes)?;
            for record in 0..self.records {
                versions.note_load(&values::loaded(record).to_be_bytes())?;
            }
        }
        Ok(())
    }
}

fn load_versions(db: &Db, tables: &Tables, scale: tpcc::Scale) -> Outcome {
    let mut versions = Versions::create(db, scale.rows(), tpcc::Scale::ROW_BYTES as usize)?;
    for (at, table) in tables.all().iter().enumerate() {
        // An iterator would keep what it does not see yet.
        let keys = table.iter().map(|entry| Ok(key_of(at, &entry?.0))).collect::<Outcome<Vec<Vec<u8>>>>()?;
        keys.iter().try_for_each(|key| versions.note_load(key))?;
    }
    Ok(())
}

/// Initial databases, each loaded on first use and dropped after its last.
pub(super) struct Loaded(Mutex<Uses>);

/// Remaining uses and the image, by contents.
type Uses = HashMap<Data, (usize, Arc<OnceLock<MemoryDirectory>>)>;

impl Loaded {
    pub(super) fn for_all(all: impl Iterator<Item = Data>) -> Loaded {
        let mut uses = Uses::new();
        for data in all {
            uses.entry(data).or_insert_with(|| (0, Arc::default())).0 += 1;
        }
        Loaded(Mutex::new(uses))
    }

    fn uses(&self) -> MutexGuard<'_, Uses> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A private copy.
    pub(super) fn image(&self, data: Data) -> Outcome<MemoryDirectory> {
        let slot = Arc::clone(&self.uses()[&data].1);
        if let Some(image) = slot.get() {
            return Ok(image.copy());
        }
        // Two threads may race here and load identical images.
        let image = data.load()?;
        Ok(slot.get_or_init(|| image).copy())
    }

    pub(super) fn is_done(&self, data: Data) {
        let mut uses = self.uses();
        let left = uses.get_mut(&data).map_or(0, |(left, _)| {
            *left -= 1;
            *left
        });
        if left == 0 {
            uses.remove(&data);
        }
    }
}
