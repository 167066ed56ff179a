//! Power cuts at any call of the disk, also in recovery.
//!
//! Durable commits are there, whole. Other commits are there whole or not at all, and never without
//! the earlier ones.
//!
//! A run is a script from a seed. The disk loses power at a random call, and a random subset of the
//! unsynced sectors survives. The database is opened on the rest, with further power cuts, compared
//! with the possible states, verified, and used on.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use terrace::{
    Compression, Db, Durability, Error, Mode, Result, SimulatedDisk, Swap, TableOptions, WriteBatch,
};
use terrace_io::CallKind;

use super::common;

type Tables = BTreeMap<String, BTreeMap<Vec<u8>, Vec<u8>>>;

/// All states since the last durable one, which comes first.
struct Ledger {
    states: Vec<Tables>,
    /// Durability of single changes: the default of the database.
    singles: Durability,
    pages: Pages,
    /// Whether the log's ring is in persistent memory.
    log_memory: bool,
}

/// Page settings of tables.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pages {
    Plain,
    /// Two blocks long and compressed.
    Compressed,
    /// First table: one block; second: two; third: two and compressed.
    Mixed,
    /// One block, with long values on pages of up to 128 KiB, or compressed ones of up to 256 KiB.
    Values,
}

impl Ledger {
    fn now(&self) -> &Tables {
        self.states.last().unwrap()
    }

    fn durable(&mut self) {
        self.states.drain(..self.states.len() - 1);
    }
}

fn open(disk: &SimulatedDisk, ledger: &mut Ledger, random: &mut SmallRng) -> Result<Db> {
    ledger.singles = if random.random_range(0..2) == 0 { Durability::Sync } else { Durability::Buffered };
    let builder = common::builder().directory(Arc::new(disk.clone()));
    let builder = match ledger.pages {
        Pages::Plain => builder.dram(1 << 20).page_size(4096).log_max(256 << 10),
        Pages::Compressed => {
            builder.dram(2 << 20).page_size(8192).log_max(512 << 10).compression(Compression::Lz4)
        }
        Pages::Mixed => builder.dram(2 << 20).page_size_max(8192).log_max(512 << 10),
        Pages::Values => builder.dram(24 << 20).value_page_size_max(256 << 10).log_max(4 << 20),
    };
    let builder = match (ledger.log_memory, ledger.pages) {
        (false, _) => builder,
        (true, Pages::Values) => builder.log_memory("simulated:optane,2MiB".parse().unwrap()),
        (true, _) => builder.log_memory("simulated:optane,256KiB".parse().unwrap()),
    };
    builder.mode(Mode::Inline).seed(1).durability(ledger.singles).open("")
}

fn options(pages: Pages, name: &str) -> TableOptions {
    match (pages, name) {
        (Pages::Mixed, "table 1") => TableOptions::new().page_size(8192),
        (Pages::Mixed, "table 2") => TableOptions::new().page_size(8192).compression(Compression::Lz4),
        (Pages::Values, "table 1") => TableOptions::new().value_page_size_max(128 << 10),
        (Pages::Values, "table 2") => {
            TableOptions::new().value_page_size_max(256 << 10).compression(Compression::Lz4)
        }
        _ => TableOptions::new(),
    }
}

fn contents(db: &Db) -> Result<Tables> {
    let mut tables = Tables::new();
    for name in db.table_names()? {
        let entries = db.open_table(&name)?.iter().collect::<Result<_>>()?;
        tables.insert(name, entries);
    }
    Ok(tables)
}

fn value(random: &mut SmallRng, pages: Pages) -> Vec<u8> {
    let length = match random.random_range(0..20) {
        0 if pages == Pages::Values => random.random_range(4000..300_000),
        0 => random.random_range(4000..60_000),
        1..4 => random.random_range(500..3000),
        // Often of equal size, which overwrites the old value in its leaf.
        4..12 => 100,
        _ => random.random_range(0..200),
    };
    vec![random.random(); length]
}

fn key(random: &mut SmallRng) -> Vec<u8> {
    random.random_range(0..500u16).to_be_bytes().to_vec()
}

/// One call, noted in the ledger first: it may be in force although it fails.
fn step(db: &Db, ledger: &mut Ledger, random: &mut SmallRng) -> Result<()> {
    let next = ledger.now().clone();
    let name = format!("table {}", random.random_range(0..3));
    let is_there = next.contains_key(&name);
    let mut call = Call { db, ledger, random, name, next };
    if !is_there {
        return call.create_table();
    }
    match call.random.random_range(0..100) {
        0 => call.drop_table(),
        1 => call.all_durable(Db::checkpoint),
        2 => call.all_durable(Db::flush),
        3 => call.abort(),
        4 => call.all_durable(|db| db.compact().map(drop)),
        5..7 => call.delete_range(),
        7..9 => call.swap(),
        9..16 => call.update_range(),
        16..40 => call.single(),
        _ => call.batch(),
    }
}

/// A call on one table.
struct Call<'a> {
    db: &'a Db,
    ledger: &'a mut Ledger,
    random: &'a mut SmallRng,
    name: String,
    /// The state after the call.
    next: Tables,
}

impl Call<'_> {
    fn entries(&mut self) -> &mut BTreeMap<Vec<u8>, Vec<u8>> {
        self.next.get_mut(&self.name).expect("the table is there")
    }

    /// Notes the state after the call.
    fn note(&mut self) {
        self.ledger.states.push(std::mem::take(&mut self.next));
    }

    /// A single change has returned: it is durable if that is the database's default.
    fn single_done(&mut self) {
        if self.ledger.singles == Durability::Sync {
            self.ledger.durable();
        }
    }

    fn create_table(&mut self) -> Result<()> {
        self.next.insert(self.name.clone(), BTreeMap::new());
        self.note();
        self.db.create_table_with(&self.name, &options(self.ledger.pages, &self.name))?;
        self.ledger.durable();
        Ok(())
    }

    fn drop_table(&mut self) -> Result<()> {
        self.next.remove(&self.name);
        self.note();
        self.db.drop_table(&self.name)?;
        self.ledger.durable();
        Ok(())
    }

    /// Calls `act`, which makes all earlier commits durable.
    fn all_durable(&mut self, act: impl FnOnce(&Db) -> Result<()>) -> Result<()> {
        act(self.db)?;
        self.ledger.durable();
        Ok(())
    }

    /// A transaction that is partly on disk and never commits.
    fn abort(&mut self) -> Result<()> {
        let transaction = self.db.begin();
        let table = self.db.open_table(&self.name)?;
        transaction.put(&table, "aborted", vec![9; self.random.random_range(1..30_000)])
    }

    fn delete_range(&mut self) -> Result<()> {
        let table = self.db.open_table(&self.name)?;
        let (low, high) = (key(self.random), key(self.random));
        let entries = self.entries();
        let before = entries.len();
        entries.retain(|key, _| !(low <= *key && *key < high));
        let removed = (before - entries.len()) as u64;
        self.note();
        match table.delete_range(low..high) {
            // Nothing was acknowledged, so earlier buffered commits may still be lost.
            Err(Error::TransactionTooLarge { .. }) => _ = self.ledger.states.pop(),
            deleted => {
                assert_eq!(deleted?, removed);
                self.single_done();
            }
        }
        Ok(())
    }

    fn swap(&mut self) -> Result<()> {
        let table = self.db.open_table(&self.name)?;
        let key = key(self.random);
        let now = self.entries().get(&key).cloned();
        let expected = if self.random.random_range(0..4) == 0 { None } else { now.clone() };
        let new = (self.random.random_range(0..4) > 0).then(|| value(self.random, self.ledger.pages));
        let right = expected == now;
        if right {
            match &new {
                Some(new) => self.entries().insert(key.clone(), new.clone()),
                None => self.entries().remove(&key),
            };
            self.note();
        }
        let swap = table.compare_and_swap(&key, expected.as_deref(), new.as_deref())?;
        assert_eq!(swap, if right { Swap::Done } else { Swap::Found(now) });
        if right {
            self.single_done();
        }
        Ok(())
    }

    /// Overwrites a part of a value.
    fn update_range(&mut self) -> Result<()> {
        let table = self.db.open_table(&self.name)?;
        let key = key(self.random);
        let Some(mut value) = self.entries().get(&key).cloned() else {
            assert!(!table.update_range(&key, 0, "a")?);
            return Ok(());
        };
        let at = self.random.random_range(0..=value.len());
        let part = vec![self.random.random(); self.random.random_range(0..=value.len() - at)];
        value[at..at + part.len()].copy_from_slice(&part);
        self.entries().insert(key.clone(), value);
        self.note();
        assert!(table.update_range(&key, at, &part)?);
        self.single_done();
        Ok(())
    }

    /// Puts or deletes one key.
    fn single(&mut self) -> Result<()> {
        let table = self.db.open_table(&self.name)?;
        let key = key(self.random);
        if self.random.random_range(0..4) == 0 {
            let existed = self.entries().remove(&key).is_some();
            self.note();
            assert_eq!(table.delete(&key)?, existed);
        } else {
            let value = value(self.random, self.ledger.pages);
            self.entries().insert(key.clone(), value.clone());
            self.note();
            table.put(&key, &value)?;
        }
        self.single_done();
        Ok(())
    }

    fn batch(&mut self) -> Result<()> {
        let table = self.db.open_table(&self.name)?;
        let mut batch = WriteBatch::new();
        let changes = if self.random.random_range(0..3) == 0 { self.random.random_range(2..30) } else { 1 };
        for _ in 0..changes {
            let key = key(self.random);
            if self.random.random_range(0..4) == 0 {
                batch.delete(&table, &key);
                self.entries().remove(&key);
            } else {
                let value = value(self.random, self.ledger.pages);
                batch.put(&table, &key, &value);
                self.entries().insert(key, value);
            }
        }
        let sync = self.random.random_range(0..3) > 0;
        self.note();
        self.db.write(batch, if sync { Durability::Sync } else { Durability::Buffered })?;
        if sync {
            self.ledger.durable();
        }
        Ok(())
    }
}

/// What a read-only open finds on a copy of `disk`; no tables if there is no database yet. `None`
/// if the newest commits are in the log's memory.
fn read_only(disk: &SimulatedDisk) -> Option<Tables> {
    let disk = disk.killed();
    let builder = common::builder().directory(Arc::new(disk.clone())).dram(48 << 20).read_only(true);
    let found = match builder.open("") {
        Ok(db) => {
            assert_eq!(db.verify().unwrap().errors, []);
            contents(&db).unwrap()
        }
        Err(Error::NotADatabase { .. }) => Tables::new(),
        Err(Error::LogMemory { .. }) => return None,
        Err(error) => panic!("opening read-only failed: {error}"),
    };
    let reading = [CallKind::Read, CallKind::Open, CallKind::Exists, CallKind::Lock];
    let calls = reading.map(|kind| disk.calls_of(kind)).iter().sum::<u64>();
    assert_eq!(calls, disk.calls(), "something was changed");
    Some(found)
}

/// Opens the rest of the disk, through further power cuts, and compares it with the ledger.
fn recover(disk: &SimulatedDisk, ledger: &mut Ledger, random: &mut SmallRng) -> (SimulatedDisk, Db) {
    let mut disk = disk.survivor(random.random());
    for cuts_left in (0..4).rev() {
        let seen = read_only(&disk);
        assert!(seen.is_some() || ledger.log_memory);
        if cuts_left > 0 && random.random_range(0..2) == 0 {
            disk.crash_at(disk.calls() + random.random_range(1..150));
        }
        let opened = open(&disk, ledger, random).and_then(|db| Ok((contents(&db)?, db)));
        match opened {
            Ok((found, db)) if disk.crashed().is_none() => {
                if let Some(seen) = seen {
                    assert!(seen == found, "read-only it was otherwise: {}", difference(&found, &seen));
                }
                let at = ledger.states.iter().rposition(|state| *state == found);
                let Some(at) = at else {
                    let wanted = ledger.states.iter().map(|state| difference(state, &found));
                    panic!("the database is in none of its states: {:#?}", wanted.collect::<Vec<_>>());
                };
                ledger.states = vec![ledger.states.swap_remove(at)];
                disk.crash_at(u64::MAX);
                for (name, entries) in ledger.now() {
                    let table = db.open_table(name).unwrap();
                    if let Some(counted) = table.len_if_known().unwrap() {
                        assert_eq!(counted, entries.len() as u64, "{name}");
                    }
                    if random.random_range(0..2) == 0 {
                        assert_eq!(table.len().unwrap(), entries.len() as u64, "{name}");
                    }
                }
                assert_eq!(db.verify().unwrap().errors, []);
                return (disk, db);
            }
            Ok((_, db)) => drop(db),
            Err(error) => assert!(disk.crashed().is_some(), "opening failed: {error}"),
        }
        disk = disk.survivor(random.random());
    }
    unreachable!("the last attempt is not cut")
}

fn difference(state: &Tables, found: &Tables) -> String {
    let names = |tables: &Tables| tables.keys().cloned().collect::<Vec<_>>();
    if names(state) != names(found) {
        return format!("tables {:?}, not {:?}", names(found), names(state));
    }
    let differs = |(name, entries): (&String, &BTreeMap<Vec<u8>, Vec<u8>>)| {
        let other = &found[name];
        let keys = entries.keys().chain(other.keys());
        let keys: Vec<_> = keys.filter(|key| entries.get(*key) != other.get(*key)).take(5).collect();
        (!keys.is_empty()).then(|| format!("{name}: {keys:?}"))
    };
    state.iter().filter_map(differs).collect::<Vec<_>>().join(", ")
}

fn run(seed: u64, log_memory: bool) {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut disk = SimulatedDisk::new(seed);
    let pages = [Pages::Compressed, Pages::Plain, Pages::Mixed, Pages::Values][seed as usize % 4];
    let mut ledger = Ledger { states: vec![Tables::new()], singles: Durability::Sync, pages, log_memory };
    let mut db = None;
    for _ in 0..4 {
        disk.crash_at(disk.calls() + random.random_range(1..1500));
        let opened = match db.take() {
            Some(db) => Ok(db),
            None => open(&disk, &mut ledger, &mut random),
        };
        if let Ok(db) = opened {
            for _ in 0..400 {
                if step(&db, &mut ledger, &mut random).is_err() {
                    break;
                }
            }
        }
        // The power goes now, however far the script is.
        let (left, recovered) = recover(&disk, &mut ledger, &mut random);
        (disk, db) = (left, Some(recovered));
    }
}

#[test]
fn acknowledged_commits_survive_power_cuts() {
    run_all(false);
}

#[test]
fn acknowledged_commits_in_the_logs_memory_survive_power_cuts() {
    run_all(true);
}

fn run_all(log_memory: bool) {
    let first: u64 = std::env::var("TERRACE_SEED").map_or(1, |seed| seed.parse().unwrap());
    let runs: u64 = std::env::var("TERRACE_RUNS").map_or(10_000, |runs| runs.parse().unwrap());
    let seconds = std::env::var("TERRACE_SECONDS").map_or(5, |seconds| seconds.parse().unwrap());
    let begun = Instant::now();
    for seed in first..first + runs {
        println!("seed {seed}");
        run(seed, log_memory);
        if begun.elapsed() > Duration::from_secs(seconds) {
            break;
        }
    }
}
