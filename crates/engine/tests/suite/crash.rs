//! Power cuts at any call of the disk, in recovery too: what was acknowledged as durable is there, whole; what was not
//! is there whole or not at all, and never something later without something earlier.
//!
//! A run is a script drawn from a seed. The disk loses power at a drawn call; of what was not synced any subset of
//! sectors survives. The database is opened on what is left, with further power cuts now and then, compared with the
//! states it may be in, verified, and used on.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use terrace::{
    Compression, Db, Durability, Error, Mode, Result, SimulatedDisk, Swap, TableOptions, WriteBatch,
};
use terrace_block::CallKind;

type Tables = BTreeMap<String, BTreeMap<Vec<u8>, Vec<u8>>>;

/// All states since the last one known to be durable, that one first.
struct Ledger {
    states: Vec<Tables>,
    /// Of single changes, which are made with the durability the database was opened with.
    singles: Durability,
    pages: Pages,
}

/// What the pages of tables are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pages {
    Plain,
    /// Of two places, and compressed.
    Compressed,
    /// Of one place in the first table, of two in the second, of two and compressed in the third.
    Mixed,
    /// Of one place, with long values on pages of up to 128 KiB, or compressed ones of up to 256 KiB.
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
    let builder = Db::builder().directory(Arc::new(disk.clone()));
    let builder = match ledger.pages {
        Pages::Plain => builder.dram(1 << 20).page_size(4096).log_max(256 << 10),
        Pages::Compressed => {
            builder.dram(2 << 20).page_size(8192).log_max(512 << 10).compression(Compression::Lz4)
        }
        Pages::Mixed => builder.dram(2 << 20).page_size_max(8192).log_max(512 << 10),
        Pages::Values => builder.dram(24 << 20).value_page_size_max(256 << 10).log_max(4 << 20),
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
        // Often one of the same size, which goes over the old one in its leaf.
        4..12 => 100,
        _ => random.random_range(0..200),
    };
    vec![random.random(); length]
}

/// One call, entered in the ledger before it is made: it may be in force although it fails.
fn step(db: &Db, ledger: &mut Ledger, random: &mut SmallRng) -> Result<()> {
    let mut next = ledger.now().clone();
    let name = format!("table {}", random.random_range(0..3));
    let Some(entries) = next.get_mut(&name) else {
        next.insert(name.clone(), BTreeMap::new());
        ledger.states.push(next);
        db.create_table_with(&name, &options(ledger.pages, &name))?;
        ledger.durable();
        return Ok(());
    };
    match random.random_range(0..100) {
        0 => {
            next.remove(&name);
            ledger.states.push(next);
            db.drop_table(&name)?;
            ledger.durable();
        }
        1 => {
            db.checkpoint()?;
            ledger.durable();
        }
        2 => {
            db.flush()?;
            ledger.durable();
        }
        3 => {
            // Begun, partly written to disk, and not committed.
            let mut transaction = db.begin();
            let table = db.open_table(&name)?;
            transaction.put(&table, "aborted", vec![9; random.random_range(1..30_000)])?;
        }
        4 => {
            db.compact()?;
            ledger.durable();
        }
        5..7 => {
            let table = db.open_table(&name)?;
            let bound = |random: &mut SmallRng| random.random_range(0..500u16).to_be_bytes().to_vec();
            let (low, high) = (bound(random), bound(random));
            let before = entries.len();
            entries.retain(|key, _| !(low <= *key && *key < high));
            let removed = (before - entries.len()) as u64;
            ledger.states.push(next);
            match table.delete_range(low..high) {
                // Nothing was acknowledged, so what was buffered before may still be lost.
                Err(Error::TransactionTooLarge { .. }) => _ = ledger.states.pop(),
                deleted => {
                    assert_eq!(deleted?, removed);
                    if ledger.singles == Durability::Sync {
                        ledger.durable();
                    }
                }
            }
        }
        7..9 => {
            let table = db.open_table(&name)?;
            let key = random.random_range(0..500u16).to_be_bytes().to_vec();
            let now = entries.get(&key).cloned();
            let expected = if random.random_range(0..4) == 0 { None } else { now.clone() };
            let new = (random.random_range(0..4) > 0).then(|| value(random, ledger.pages));
            let right = expected == now;
            if right {
                match &new {
                    Some(new) => entries.insert(key.clone(), new.clone()),
                    None => entries.remove(&key),
                };
                ledger.states.push(next);
            }
            let swap = table.compare_and_swap(&key, expected.as_deref(), new.as_deref())?;
            assert_eq!(swap, if right { Swap::Done } else { Swap::Found(now) });
            if right && ledger.singles == Durability::Sync {
                ledger.durable();
            }
        }
        9..40 => {
            let table = db.open_table(&name)?;
            let key = random.random_range(0..500u16).to_be_bytes().to_vec();
            if random.random_range(0..4) == 0 {
                let existed = entries.remove(&key).is_some();
                ledger.states.push(next);
                assert_eq!(table.delete(&key)?, existed);
            } else {
                let value = value(random, ledger.pages);
                entries.insert(key.clone(), value.clone());
                ledger.states.push(next);
                table.put(&key, &value)?;
            }
            if ledger.singles == Durability::Sync {
                ledger.durable();
            }
        }
        _ => {
            let table = db.open_table(&name)?;
            let mut batch = WriteBatch::new();
            let changes = if random.random_range(0..3) == 0 { random.random_range(2..30) } else { 1 };
            for _ in 0..changes {
                let key = random.random_range(0..500u16).to_be_bytes().to_vec();
                if random.random_range(0..4) == 0 {
                    batch.delete(&table, &key);
                    entries.remove(&key);
                } else {
                    let value = value(random, ledger.pages);
                    batch.put(&table, &key, &value);
                    entries.insert(key, value);
                }
            }
            let sync = random.random_range(0..3) > 0;
            ledger.states.push(next);
            db.write(batch, if sync { Durability::Sync } else { Durability::Buffered })?;
            if sync {
                ledger.durable();
            }
        }
    }
    Ok(())
}

/// What a read-only opening finds on a disk like `disk`; no tables where there is no database yet.
fn read_only(disk: &SimulatedDisk) -> Tables {
    let disk = disk.killed();
    let builder = Db::builder().directory(Arc::new(disk.clone())).dram(48 << 20).read_only(true);
    let found = match builder.open("") {
        Ok(db) => {
            assert_eq!(db.verify().unwrap().errors, []);
            contents(&db).unwrap()
        }
        Err(Error::NotADatabase { .. }) => Tables::new(),
        Err(error) => panic!("opening read-only failed: {error}"),
    };
    let reading = [CallKind::Read, CallKind::Open, CallKind::Exists, CallKind::Lock];
    let calls = reading.map(|kind| disk.calls_of(kind)).iter().sum::<u64>();
    assert_eq!(calls, disk.calls(), "something was changed");
    found
}

/// Opens what is left of the disk, through some more power cuts, and holds it against the ledger.
fn recover(disk: &SimulatedDisk, ledger: &mut Ledger, random: &mut SmallRng) -> (SimulatedDisk, Db) {
    let mut disk = disk.survivor(random.random());
    for cuts_left in (0..4).rev() {
        let seen = read_only(&disk);
        if cuts_left > 0 && random.random_range(0..2) == 0 {
            disk.crash_at(disk.calls() + random.random_range(1..150));
        }
        let opened = open(&disk, ledger, random).and_then(|db| Ok((contents(&db)?, db)));
        match opened {
            Ok((found, db)) if disk.crashed().is_none() => {
                assert!(seen == found, "read-only it was otherwise: {}", difference(&found, &seen));
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

fn run(seed: u64) {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut disk = SimulatedDisk::new(seed);
    let pages = [Pages::Compressed, Pages::Plain, Pages::Mixed, Pages::Values][seed as usize % 4];
    let mut ledger = Ledger { states: vec![Tables::new()], singles: Durability::Sync, pages };
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
        // Whatever the script has come to, the power goes now.
        let (left, recovered) = recover(&disk, &mut ledger, &mut random);
        (disk, db) = (left, Some(recovered));
    }
}

#[test]
fn acknowledged_commits_survive_power_cuts() {
    let first: u64 = std::env::var("TERRACE_SEED").map_or(1, |seed| seed.parse().unwrap());
    let runs: u64 = std::env::var("TERRACE_RUNS").map_or(10_000, |runs| runs.parse().unwrap());
    let seconds = std::env::var("TERRACE_SECONDS").map_or(5, |seconds| seconds.parse().unwrap());
    let begun = Instant::now();
    for seed in first..first + runs {
        println!("seed {seed}");
        run(seed);
        if begun.elapsed() > Duration::from_secs(seconds) {
            break;
        }
    }
}
