//! Repair of any damage: the result was committed, losses are reported, and the source is not
//! written.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use terrace::{
    Db, Directory, Durability, Error, MemoryDirectory, Mode, RepairReport, Result, SimulatedDisk, WriteBatch,
};
use terrace_io::{AlignedBuffer, OpenMode};

use super::common;

const PAGE_BYTES: u64 = 4096;
const TABLES: [&str; 3] = ["few", "many", "other"];

type Entries = BTreeMap<Vec<u8>, Vec<u8>>;
type Tables = BTreeMap<String, Entries>;

fn open(disk: &SimulatedDisk) -> Result<Db> {
    let builder = common::builder().directory(Arc::new(disk.clone())).dram(1 << 20).page_size(4096);
    builder.log_max(256 << 10).mode(Mode::Inline).seed(1).open("")
}

fn repair(disk: &SimulatedDisk) -> Result<(RepairReport, Tables)> {
    let before = files(disk);
    let target = Arc::new(MemoryDirectory::new());
    let report = common::builder().dram(4 << 20).mode(Mode::Inline).repair_in(disk, target.clone())?;
    assert!(files(disk) == before, "the source was written to");
    for file in ["pages.salvage", "log.salvage", "pages.repaired", "log.repaired"] {
        assert!(!target.exists(file).unwrap(), "{file} is left");
    }
    let db = common::builder().directory(target).dram(4 << 20).create(false).mode(Mode::Inline).open("")?;
    assert_eq!(db.verify().unwrap().errors, []);
    let tables = contents(&db);
    let counted: u64 = tables.values().map(|entries| entries.len() as u64).sum();
    assert_eq!(report.entries, counted);
    Ok((report, tables))
}

fn contents(db: &Db) -> Tables {
    let of = |name: &String| db.open_table(name).unwrap().iter().map(Result::unwrap).collect();
    db.table_names().unwrap().iter().map(|name| (name.clone(), of(name))).collect()
}

fn files(disk: &SimulatedDisk) -> Vec<Vec<u8>> {
    let bytes = |file| {
        let Ok(device) = disk.open(file, OpenMode::Read) else { return Vec::new() };
        let mut bytes = AlignedBuffer::zeroed(device.len() as usize);
        device.read_at(0, &mut bytes).unwrap();
        bytes.to_vec()
    };
    ["pages.terrace", "log.terrace"].map(bytes).to_vec()
}

/// Record of a history.
#[derive(Default)]
struct Ledger {
    /// All states so far, and the last one that is surely durable.
    states: Vec<Tables>,
    durable: usize,
    /// All values ever written, by table and key.
    ever: BTreeMap<String, BTreeMap<Vec<u8>, BTreeSet<Vec<u8>>>>,
}

fn value(random: &mut SmallRng) -> Vec<u8> {
    let length = match random.random_range(0..30) {
        0 => random.random_range(4000..40_000),
        1..5 => random.random_range(500..1200),
        _ => random.random_range(0..120),
    };
    (0..length).map(|_| random.random()).collect()
}

/// Works on a new database for `steps` steps or until the power goes.
fn history(disk: &SimulatedDisk, seed: u64, steps: u32) -> Ledger {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut ledger = Ledger { states: vec![Tables::new()], ..Ledger::default() };
    let outcome = open(disk).and_then(|db| {
        for name in TABLES {
            let mut next = ledger.states.last().unwrap().clone();
            next.insert(name.to_owned(), Entries::new());
            ledger.states.push(next);
            db.create_table(name)?;
            ledger.durable = ledger.states.len() - 1;
        }
        for _ in 0..steps {
            match random.random_range(0..40) {
                0 => db.checkpoint()?,
                _ => batch(&db, &mut ledger, &mut random)?,
            }
        }
        // The process is killed: nothing is closed.
        std::mem::forget(db);
        Ok(())
    });
    assert!(outcome.is_ok() || disk.crashed().is_some(), "{outcome:?}");
    ledger
}

fn batch(db: &Db, ledger: &mut Ledger, random: &mut SmallRng) -> Result<()> {
    let mut next = ledger.states.last().unwrap().clone();
    let mut batch = WriteBatch::new();
    for _ in 0..random.random_range(1..25) {
        let name = TABLES[random.random_range(0..30usize).min(28) / 14];
        let table = db.open_table(name)?;
        let key =
            format!("{:05}", random.random_range(0..if name == "few" { 20 } else { 1500 })).into_bytes();
        let entries = next.get_mut(name).unwrap();
        if random.random_range(0..5) == 0 {
            batch.delete(&table, &key);
            entries.remove(&key);
        } else {
            let value = value(random);
            batch.put(&table, &key, &value);
            let ever = ledger.ever.entry(name.to_owned()).or_default();
            ever.entry(key.clone()).or_default().insert(value.clone());
            entries.insert(key, value);
        }
    }
    ledger.states.push(next);
    db.write(batch, Durability::Sync)?;
    ledger.durable = ledger.states.len() - 1;
    Ok(())
}

/// Checks that saved and lost entries together make up `state`.
fn makes_up(state: &Tables, report: &RepairReport, found: &Tables) -> std::result::Result<(), String> {
    let names_lost = report.notes.iter().any(|note| note.contains("names of tables are lost"));
    for (name, entries) in state {
        let (Some(found), Some(table)) =
            (found.get(name), report.tables.iter().find(|table| table.name == *name))
        else {
            if names_lost {
                continue;
            }
            return Err(format!("table {name} is missing, and nothing is said of it"));
        };
        for (key, value) in entries {
            let in_range = |(from, to): &(Vec<u8>, Option<Vec<u8>>)| {
                from <= key && to.as_ref().is_none_or(|to| key < to)
            };
            let lost = table.lost_ranges.iter().any(in_range) || table.lost_values.contains(key);
            match found.get(key) {
                Some(found) if found == value => {}
                None if lost => {}
                found => {
                    let found = found.map(Vec::len);
                    return Err(format!("{name}, {}: {found:?}", String::from_utf8_lossy(key)));
                }
            }
        }
        if let Some(key) = found.keys().find(|key| !entries.contains_key(*key)) {
            return Err(format!("{name}, {}: it should not be there", String::from_utf8_lossy(key)));
        }
    }
    Ok(())
}

fn judge(
    ledger: &Ledger,
    log_damaged: bool,
    report: &RepairReport,
    found: &Tables,
) -> std::result::Result<(), String> {
    for (name, entries) in found {
        for (key, value) in entries {
            // Entries kept apart may be of any table.
            let tables =
                ledger.ever.iter().filter(|(table, _)| *table == name || !TABLES.contains(&&name[..]));
            let was = |ever: &BTreeMap<Vec<u8>, BTreeSet<Vec<u8>>>| {
                ever.get(key).is_some_and(|values| values.contains(value))
            };
            if !tables.into_iter().any(|(_, ever)| was(ever)) {
                return Err(format!("{name}, {}: never committed", String::from_utf8_lossy(key)));
            }
        }
    }
    if !report.consistent {
        return Ok(());
    }
    // A log damaged beyond the superblock's end looks like one that a power cut ended.
    let from = if log_damaged { 0 } else { ledger.durable };
    let verdicts: Vec<_> =
        ledger.states[from..].iter().rev().map(|state| makes_up(state, report, found)).collect();
    match verdicts.iter().any(|verdict| verdict.is_ok()) {
        true => Ok(()),
        false => Err(format!("{:?}", &verdicts[..verdicts.len().min(3)])),
    }
}

/// Damages some blocks of a file.
fn damage(disk: &SimulatedDisk, file: &str, times: u32, random: &mut SmallRng) {
    let device = disk.open(file, OpenMode::Write).unwrap();
    let mut block = AlignedBuffer::zeroed(4096);
    let blocks = device.len() / 4096;
    for _ in 0..times {
        let at = random.random_range(0..blocks) * 4096;
        device.read_at(at, &mut block).unwrap();
        match random.random_range(0..4) {
            0 => block.fill(0),
            1 => block[random.random_range(0..8) * 512..][..512].fill(0xa5),
            // Another block's content, as after a misdirected write.
            2 => device.read_at(random.random_range(0..blocks) * 4096, &mut block).unwrap(),
            _ => block[random.random_range(0..4096)] ^= 1 << random.random_range(0..8),
        }
        device.write_at(at, &block).unwrap();
    }
}

/// The disk after a recovery, and a kill.
fn recovered(disk: &SimulatedDisk) -> SimulatedDisk {
    std::mem::forget(open(disk).unwrap());
    disk.killed()
}

#[test]
fn what_was_saved_was_committed_and_what_was_not_is_told() {
    let number = |variable: &str| std::env::var(variable).ok().map(|value| value.parse().unwrap());
    let seeds = match number("TERRACE_SEED") {
        Some(seed) => seed..seed + number("TERRACE_RUNS").unwrap_or(1),
        None => 1..number("TERRACE_RUNS").unwrap_or(60) + 1,
    };
    let (mut complete, mut partial, mut inconsistent, mut nothing) = (0, 0, 0, 0);
    for seed in seeds.clone() {
        let mut random = SmallRng::seed_from_u64(seed ^ 0x7e9a1);
        let disk = SimulatedDisk::new(seed);
        if random.random_range(0..2) == 0 {
            disk.crash_at(random.random_range(300..4000));
        }
        let ledger = history(&disk, seed, random.random_range(20..150));
        let left = if random.random_range(0..2) == 0 { disk.killed() } else { disk.survivor(seed) };
        if !left.exists("pages.terrace").unwrap() {
            continue;
        }
        // Recovery leaves other files than commits do.
        let left = if seed % 3 == 0 { recovered(&left) } else { left };
        let in_pages = random.random_range(0..8);
        damage(&left, "pages.terrace", in_pages, &mut random);
        let log_damaged = random.random_range(0..4) == 0;
        if log_damaged {
            let in_log = random.random_range(1..4);
            damage(&left, "log.terrace", in_log, &mut random);
        }
        match repair(&left) {
            Ok((report, found)) => {
                judge(&ledger, log_damaged, &report, &found)
                    .unwrap_or_else(|what| panic!("TERRACE_SEED={seed} replays this: {what}\n{report:?}"));
                complete += u32::from(report.is_complete());
                partial += u32::from(report.consistent && !report.is_complete());
                inconsistent += u32::from(!report.consistent);
            }
            Err(Error::NotADatabase { .. }) => nothing += 1,
            Err(error) => panic!("TERRACE_SEED={seed} replays this: {error}"),
        }
    }
    println!("{complete} complete, {partial} in part, {inconsistent} not consistent, {nothing} nothing");
    assert!(seeds.end - seeds.start < 50 || (complete > 3 && partial > 3 && inconsistent > 3));
}

/// A closed database of one table with ascending keys, and the blocks of its leaves.
fn closed(entries: u32) -> (SimulatedDisk, Entries, Vec<u64>) {
    let disk = SimulatedDisk::new(1);
    let db = open(&disk).unwrap();
    let table = db.create_table("t").unwrap();
    let mut all = Entries::new();
    for number in 0..entries {
        let (key, value) = (format!("{number:06}").into_bytes(), vec![number as u8; 200]);
        table.put(&key, &value).unwrap();
        all.insert(key, value);
    }
    drop(table);
    db.close().unwrap();
    let blocks = images_of_leaves(&disk).into_values().map(|images| images.last_key_value().unwrap().1[0]);
    let blocks = blocks.collect();
    (disk, all, blocks)
}

/// Blocks of the images of leaves of tables, by page and LSN.
fn images_of_leaves(disk: &SimulatedDisk) -> BTreeMap<u64, BTreeMap<u64, Vec<u64>>> {
    let device = disk.open("pages.terrace", OpenMode::Read).unwrap();
    let mut page = AlignedBuffer::zeroed(PAGE_BYTES as usize);
    let mut images = BTreeMap::<_, BTreeMap<_, Vec<_>>>::new();
    for block in 8..device.len() / PAGE_BYTES {
        device.read_at(block * PAGE_BYTES, &mut page).unwrap();
        let word = |at: usize| u64::from_le_bytes(page[at..at + 8].try_into().unwrap());
        if page[4] == 1 && word(8) > 2 {
            images.entry(word(8)).or_default().entry(word(16)).or_default().push(block);
        }
    }
    images
}

fn flip(disk: &SimulatedDisk, file: &str, at: u64) {
    let device = disk.open(file, OpenMode::Write).unwrap();
    let mut sector = AlignedBuffer::zeroed(512);
    device.read_at(at / 512 * 512, &mut sector).unwrap();
    sector[(at % 512) as usize] ^= 1;
    device.write_at(at / 512 * 512, &sector).unwrap();
}

#[test]
fn a_damaged_leaf_costs_its_own_entries_and_no_others() {
    let (disk, all, leaves) = closed(2000);
    let (report, found) = repair(&disk).unwrap();
    assert!(report.is_complete(), "{report:?}");
    assert_eq!(found["t"], all);
    for &block in leaves.iter().step_by(leaves.len() / 10) {
        let damaged = disk.killed();
        flip(&damaged, "pages.terrace", block * PAGE_BYTES + 300);
        let (report, found) = repair(&damaged).unwrap();
        assert_eq!((report.lost_pages.len(), report.consistent), (1, true), "{report:?}");
        let lost: Vec<_> = all.keys().filter(|key| !found["t"].contains_key(*key)).collect();
        assert!((1..=20).contains(&lost.len()), "{} entries of a leaf", lost.len());
        let [(from, to)] = &report.tables[0].lost_ranges[..] else { panic!("{report:?}") };
        assert!(lost.iter().all(|key| from <= *key && to.as_ref().is_none_or(|to| *key < to)));
        // No other entry is in that range.
        let in_range = all.keys().filter(|key| from <= *key && to.as_ref().is_none_or(|to| *key < to));
        assert_eq!(in_range.count(), lost.len());
    }
}

#[test]
fn leaves_are_found_again_when_what_leads_to_them_is_gone() {
    let (disk, all, _) = closed(2000);
    let device = disk.open("pages.terrace", OpenMode::Read).unwrap();
    let mut page = AlignedBuffer::zeroed(PAGE_BYTES as usize);
    for kind in [2, 0x43, 0x44] {
        // Inner nodes, chunks of the page table, its directory.
        let damaged = disk.killed();
        for block in 8..device.len() / PAGE_BYTES {
            device.read_at(block * PAGE_BYTES, &mut page).unwrap();
            if page[4] == kind {
                flip(&damaged, "pages.terrace", block * PAGE_BYTES + 100);
            }
        }
        let (report, found) = repair(&damaged).unwrap();
        assert!(!report.is_complete(), "kind {kind}");
        let saved = &found["t"];
        assert!(saved.iter().all(|(key, value)| all[key] == *value), "kind {kind}");
        let lost = all.len() - saved.len();
        assert_eq!(lost, 0, "kind {kind}: {report:?}");
    }
}

/// Regression: the older image of a leaf whose newest one is damaged counted as the last state.
#[test]
fn an_older_image_found_without_the_page_table_is_told() {
    let disk = SimulatedDisk::new(1);
    let db = open(&disk).unwrap();
    let table = db.create_table("t").unwrap();
    let keys: Vec<String> = (0..100).map(|number| format!("{number:06}")).collect();
    for round in [1u8, 2] {
        keys.iter().for_each(|key| table.put(key, [round; 200]).unwrap());
        db.checkpoint().unwrap();
    }
    drop(table);
    db.close().unwrap();
    let images = images_of_leaves(&disk);
    let flip_chunks = |damaged: &SimulatedDisk| {
        let device = damaged.open("pages.terrace", OpenMode::Read).unwrap();
        let mut page = AlignedBuffer::zeroed(PAGE_BYTES as usize);
        for block in 8..device.len() / PAGE_BYTES {
            device.read_at(block * PAGE_BYTES, &mut page).unwrap();
            if page[4] == 0x43 {
                flip(damaged, "pages.terrace", block * PAGE_BYTES + 100);
            }
        }
    };
    let mut outdated = 0;
    for images in images.values() {
        let (_, newest) = images.last_key_value().unwrap();
        let damaged = disk.killed();
        flip_chunks(&damaged);
        newest.iter().for_each(|block| flip(&damaged, "pages.terrace", block * PAGE_BYTES + 300));
        let (report, found) = repair(&damaged).unwrap();
        let is_old = |key: &&String| found["t"].get(key.as_bytes()).is_some_and(|value| value[0] == 1);
        let old = keys.iter().filter(is_old).count();
        outdated += usize::from(old > 0);
        assert!(old == 0 || !report.consistent, "{old} values are old: {report:?}");
    }
    assert!(outdated > 3, "{outdated} leaves");
}

/// Regression: the log was written over what follows the older superblock's cut. Opening and repair
/// took the state at that cut for the last one.
#[test]
fn a_newer_superblock_that_is_lost_is_told() {
    const LOG_BYTES: u64 = 256 << 10;
    let disk = SimulatedDisk::new(1);
    let db = open(&disk).unwrap();
    let table = db.create_table("t").unwrap();
    let mut number = 0u32;
    let mut put_until = |tail: u64| {
        while db.stats().log_tail < tail {
            number += 1;
            table.put(format!("{:02}", number % 50), [number as u8; 1000]).unwrap();
        }
    };
    put_until(LOG_BYTES / 4);
    db.checkpoint().unwrap();
    let first = db.stats().log_tail;
    put_until(first + LOG_BYTES / 16 * 7);
    db.checkpoint().unwrap();
    let second = db.stats().log_tail;
    put_until(second + LOG_BYTES / 16 * 7);
    // A long value in one commit, with which the log is still not cut.
    table.put("long", vec![7; 64 << 10]).unwrap();
    assert!(db.stats().log_tail > first + LOG_BYTES + 8192 && db.stats().log_cut < second + 4096);
    std::mem::forget(db);
    let slots = disk.open("pages.terrace", OpenMode::Read).unwrap();
    let sequence = |slot: u64| {
        let mut sector = AlignedBuffer::zeroed(512);
        slots.read_at(slot * (16 << 10), &mut sector).unwrap();
        u64::from_le_bytes(sector[40..48].try_into().unwrap())
    };
    let newer = u64::from(sequence(1) > sequence(0));
    let damaged = disk.killed();
    flip(&damaged, "pages.terrace", newer * (16 << 10) + 100);
    let (report, _) = repair(&damaged).unwrap();
    assert!(!report.consistent && !report.notes.is_empty(), "{report:?}");
    assert!(matches!(open(&damaged), Err(Error::Corrupt { .. })));
    // Nothing is wrong with the newer one alone.
    let damaged = disk.killed();
    flip(&damaged, "pages.terrace", (1 - newer) * (16 << 10) + 100);
    let (report, found) = repair(&damaged).unwrap();
    assert!(report.consistent && found["t"].len() == 51, "{report:?}");
    let db = open(&damaged).unwrap();
    assert_eq!(db.open_table("t").unwrap().get("long").unwrap().unwrap(), [7; 64 << 10]);
}

#[test]
fn without_superblock_log_or_catalog_the_pages_speak_for_themselves() {
    let (disk, all, _) = closed(1000);
    let whole = |damaged: &SimulatedDisk, name: &str| {
        let (report, found) = repair(damaged).unwrap();
        assert!(!report.is_complete(), "{report:?}");
        let found = found.get(name).unwrap_or_else(|| panic!("no table {name}: {report:?}"));
        assert_eq!(*found, all, "{name}");
    };
    // Both superblocks.
    let damaged = disk.killed();
    flip(&damaged, "pages.terrace", 100);
    flip(&damaged, "pages.terrace", (16 << 10) + 100);
    whole(&damaged, "t");
    // The log: the pages of a closed database are complete, but nothing confirms that.
    let damaged = disk.killed();
    damaged.remove("log.terrace").unwrap();
    whole(&damaged, "t");
    assert!(!repair(&damaged).unwrap().0.consistent);
    // A flipped bit in its header is harmless: the superblock repeats its content.
    let damaged = disk.killed();
    flip(&damaged, "log.terrace", 44);
    let (report, found) = repair(&damaged).unwrap();
    assert!(report.is_complete() && found["t"] == all, "{report:?}");
    // Every image of the catalog's only leaf.
    let damaged = disk.killed();
    let device = disk.open("pages.terrace", OpenMode::Read).unwrap();
    let mut page = AlignedBuffer::zeroed(PAGE_BYTES as usize);
    for block in 8..device.len() / PAGE_BYTES {
        device.read_at(block * PAGE_BYTES, &mut page).unwrap();
        if page[4] == 1 && page[8..16] == 1u64.to_le_bytes() {
            flip(&damaged, "pages.terrace", block * PAGE_BYTES + 100);
        }
    }
    let (report, _) = repair(&damaged).unwrap();
    let name =
        report.tables.iter().find(|table| table.name.starts_with("table-")).map(|table| table.name.clone());
    whole(&damaged, &name.unwrap_or_else(|| panic!("{report:?}")));
}

#[test]
fn a_long_value_that_is_not_whole_is_lost_and_not_shortened() {
    let disk = SimulatedDisk::new(1);
    let db = open(&disk).unwrap();
    let table = db.create_table("t").unwrap();
    table.put("long", vec![7; 50_000]).unwrap();
    table.put("other", vec![8; 50_000]).unwrap();
    drop(table);
    db.close().unwrap();
    let device = disk.open("pages.terrace", OpenMode::Read).unwrap();
    let mut page = AlignedBuffer::zeroed(PAGE_BYTES as usize);
    let mut damaged = 0;
    for block in 8..device.len() / PAGE_BYTES {
        device.read_at(block * PAGE_BYTES, &mut page).unwrap();
        if page[4] == 4 && page[1000] == 7 && damaged == 0 {
            damaged += 1;
            flip(&disk, "pages.terrace", block * PAGE_BYTES + 1000);
        }
    }
    assert_eq!(damaged, 1);
    let (report, found) = repair(&disk).unwrap();
    assert_eq!(report.tables[0].lost_values, [b"long".to_vec()]);
    assert_eq!(found["t"], Entries::from([(b"other".to_vec(), vec![8; 50_000])]));
}

#[test]
fn what_cannot_be_repaired_is_said_and_leaves_nothing() {
    let block = tempfile::tempdir().unwrap();
    let at = |name: &str| block.path().join(name);
    let builder = || common::builder().dram(8 << 20);
    let error = builder().repair(at("nowhere"), at("new")).unwrap_err();
    assert!(matches!(error, Error::NotADatabase { .. }), "{error}");
    std::fs::create_dir(at("noise")).unwrap();
    std::fs::write(at("noise").join("pages.terrace"), vec![0x5a; 300_000]).unwrap();
    let error = builder().repair(at("noise"), at("new")).unwrap_err();
    assert!(matches!(error, Error::NotADatabase { .. }), "{error}");
    assert!(!at("new").exists());
    let db = builder().open(at("db")).unwrap();
    db.create_table("t").unwrap().put("key", "value").unwrap();
    let error = builder().repair(at("db"), at("new")).unwrap_err();
    assert!(matches!(error, Error::Busy { .. }), "{error}");
    db.close().unwrap();
    let error = builder().repair(at("db"), at("noise")).unwrap_err();
    assert!(error.to_string().contains("not empty"), "{error}");
    assert!(builder().repair(at("db"), at("new")).unwrap().is_complete());
    // Cut off at any call, the target holds no database until it is complete.
    let source = SimulatedDisk::new(1);
    let db = open(&source).unwrap();
    db.create_table("t").unwrap().put("key", "value").unwrap();
    db.close().unwrap();
    let run = |target: &SimulatedDisk| {
        common::builder()
            .dram(4 << 20)
            .mode(Mode::Inline)
            .repair_in(&source, Arc::new(target.clone()))
            .is_ok()
    };
    let calls = {
        let target = SimulatedDisk::new(1);
        assert!(run(&target));
        target.calls()
    };
    for call in 1..=calls {
        let target = SimulatedDisk::new(call);
        target.crash_at(call);
        run(&target);
        let left = Arc::new(target.survivor(call));
        match common::builder().dram(1 << 20).mode(Mode::Inline).create(false).directory(left).open("") {
            Err(Error::NotADatabase { .. }) => {}
            Err(error) => panic!("call {call}: {error}"),
            Ok(db) => {
                assert_eq!(db.open_table("t").unwrap().get("key").unwrap().unwrap(), b"value", "call {call}")
            }
        }
    }
}
