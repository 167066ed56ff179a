//! Snapshots of values that change in part: each reads what it read first, however the value
//! changes and wherever its entry moves.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use terrace::{
    Backend, Builder, Compression, Db, Durability, Error, MemoryDirectory, Mode, SimulatedDisk, Snapshot,
    Table, TableOptions, Time, VirtualTime, WriteBatch,
};
use terrace_io::{CallKind, FaultPlan};

use super::common;

/// Memory for old versions, beside that for pages.
const VERSIONS: u64 = 8 << 20;

fn open(builder: Builder) -> (Db, Table) {
    let db = builder.durability(Durability::Buffered).snapshot_age_max(Duration::MAX).open("").unwrap();
    let table = db.create_table("t").unwrap();
    (db, table)
}

/// Opens with the least memory beside that for old versions, and `more`.
fn open_small(more: u64, builder: impl Fn() -> Builder) -> Db {
    let with = |dram: u64| builder().dram(dram + VERSIONS).old_version_bytes_max(VERSIONS).open("");
    let mut least = 1 << 20;
    while matches!(with(least), Err(Error::Config(_))) {
        least += 256 << 10;
        assert!(least < 16 << 20, "it is not the memory that is refused");
    }
    with(least + more).unwrap()
}

fn in_memory() -> Builder {
    let builder = common::builder().directory(Arc::new(MemoryDirectory::new())).mode(Mode::Inline).seed(1);
    builder.dram((4 << 20) + VERSIONS).old_version_bytes_max(VERSIONS)
}

fn update(table: &Table, key: &str, at: usize, bytes: &str) {
    assert!(table.update_range(key, at, bytes).unwrap(), "{key}");
}

/// Whether every read of `key` at `snapshot` finds `expected`.
fn check(snapshot: &Snapshot, table: &Table, key: &str, expected: Option<&str>) {
    let expected = expected.map(str::as_bytes);
    assert_eq!(snapshot.get(table, key).unwrap().as_deref(), expected, "{key}");
    let many = snapshot.get_many(table, [key, "absent", key]).unwrap();
    assert_eq!(many, [expected.map(<[u8]>::to_vec), None, expected.map(<[u8]>::to_vec)], "{key}");
    let row = expected.map(|value| (key.as_bytes().to_vec(), value.to_vec()));
    let mut rows = snapshot.range(table, key..=key).map(Result::unwrap);
    assert_eq!((rows.next(), rows.next()), (row.clone(), None), "{key}");
    let mut rows = snapshot.range(table, key..=key).rev().map(Result::unwrap);
    assert_eq!((rows.next(), rows.next()), (row, None), "{key}");
    let length = expected.map_or(0, <[u8]>::len);
    for part in (0..=length).flat_map(|end| (0..=end).map(move |start| start..end)) {
        let found = snapshot.get_range(table, key, part.clone()).unwrap();
        assert_eq!(found.as_deref(), expected.map(|value| &value[part.clone()]), "{key}, {part:?}");
    }
    match snapshot.get_range(table, key, ..length + 1) {
        Err(Error::OutsideValue { length: found, .. }) => assert_eq!(Some(found), expected.map(<[u8]>::len)),
        other => assert_eq!((other.unwrap(), expected), (None, None), "{key}"),
    }
}

#[test]
fn parts_whole_values_lengths_and_deletions_mix() {
    let (db, table) = open(in_memory());
    let mut seen = Vec::new();
    let mut note = |value: Option<&'static str>| seen.push((db.snapshot(), value));
    note(None);
    table.put("k", "abcdef").unwrap();
    note(Some("abcdef"));
    update(&table, "k", 1, "XY");
    note(Some("aXYdef"));
    update(&table, "k", 2, "ZW");
    note(Some("aXZWef"));
    update(&table, "k", 6, "");
    update(&table, "k", 0, "A");
    note(Some("AXZWef"));
    table.put("k", "AXZwef").unwrap();
    note(Some("AXZwef"));
    update(&table, "k", 0, "abcdef");
    note(Some("abcdef"));
    table.put("k", "another length").unwrap();
    update(&table, "k", 8, "LENGTH");
    note(Some("another LENGTH"));
    table.delete("k").unwrap();
    note(None);
    table.put("k", "new").unwrap();
    update(&table, "k", 2, "t");
    note(Some("net"));
    db.update(|transaction| {
        assert!(transaction.update_range(&table, "k", 1, "u")?);
        transaction.put(&table, "other", "o")
    })
    .unwrap();
    note(Some("nut"));
    update(&table, "k", 0, "c");
    note(Some("cut"));
    table.put("k", "").unwrap();
    update(&table, "k", 0, "");
    note(Some(""));
    table.delete("k").unwrap();
    note(None);
    for round in 0..3 {
        seen.iter().for_each(|(snapshot, value)| check(snapshot, &table, "k", *value));
        match round {
            // Others collect, and the key comes back.
            0 => (0..500).for_each(|number| table.put(format!("other {number}"), "o").unwrap()),
            _ => {
                table.put("k", "again").unwrap();
                update(&table, "k", 1, "GAI");
            }
        }
    }
    // The oldest go, and the others still hold.
    while let Some(&(ref snapshot, value)) = seen.first() {
        check(snapshot, &table, "k", value);
        seen.remove(0);
        (0..200).for_each(|number| table.put(format!("other {number}"), "o").unwrap());
        seen.iter().for_each(|(snapshot, value)| check(snapshot, &table, "k", *value));
    }
}

/// Splits, merges and compactions move the entry; so does another tier.
#[test]
fn entries_that_move_have_their_parts() {
    let time = || Time::Virtual(Arc::new(VirtualTime::new(1)));
    let frames = || {
        let builder = Db::builder().directory(Arc::new(MemoryDirectory::new())).mode(Mode::Inline).seed(1);
        builder.durability(Durability::Buffered).snapshot_age_max(Duration::MAX)
    };
    let tier = |builder: Builder| {
        let builder =
            builder.middle("simulated:dram,4MiB".parse().unwrap()).policy("1,1,1,1".parse().unwrap());
        builder.simulated_time(time()).backend(Backend::Frames)
    };
    let builders: [&dyn Fn() -> Builder; 5] = [
        &|| frames().backend(Backend::Frames),
        &|| frames().backend(Backend::Mapped),
        &|| tier(frames()),
        &|| tier(frames()).lines(64),
        &|| tier(frames()).page_size(16 << 10).lines(64).mini_pages(true),
    ];
    for builder in builders {
        let db = open_small(512 << 10, builder);
        let table = db.create_table("t").unwrap();
        let others = db.create_table("others").unwrap();
        (0..2500u32).for_each(|number| others.put(number.to_be_bytes(), [1; 1000]).unwrap());
        table.put("m", "0123456789").unwrap();
        let mut seen = vec![(db.snapshot(), "0123456789".to_owned())];
        let mut value = b"0123456789".to_vec();
        for round in 0..12u8 {
            let at = usize::from(round) * 5 % 8;
            let letter = [b'a' + round; 2];
            assert!(table.update_range("m", at, letter).unwrap());
            value[at..at + 2].copy_from_slice(&letter);
            seen.push((db.snapshot(), String::from_utf8(value.clone()).unwrap()));
            // Around it: a split, then deletions and a merge, and values of other lengths.
            for number in 0..150u32 {
                let key = format!("{}{number}", if number % 2 == 0 { 'l' } else { 'n' });
                match round % 3 {
                    0 => table.put(key, vec![round; 700]).unwrap(),
                    1 => table.put(key, vec![round; 10]).unwrap(),
                    _ => _ = table.delete(key).unwrap(),
                }
            }
            // Its page leaves DRAM.
            (0..2500u32).for_each(|number| _ = others.get(number.to_be_bytes()).unwrap());
            seen.iter().for_each(|(snapshot, value)| check(snapshot, &table, "m", Some(value)));
        }
        drop(seen);
        assert_eq!(table.get("m").unwrap(), Some(value));
        assert_eq!(db.verify().unwrap().errors, []);
    }
}

/// A value in pages of its own is replaced as a whole, before and after parts of a short one.
#[test]
fn long_values_and_parts_of_short_ones_mix() {
    let (db, table) = open(in_memory());
    let mut value = vec![1; 50_000];
    table.put("k", &value).unwrap();
    let mut seen = vec![(db.snapshot(), value.clone())];
    for (round, length) in [(2u8, 50_000), (3, 300), (4, 300), (5, 70_000), (6, 300), (7, 300)] {
        if length != value.len() {
            value = vec![round; length];
            table.put("k", &value).unwrap();
            seen.push((db.snapshot(), value.clone()));
        }
        let at = usize::from(round) * 20;
        assert!(table.update_range("k", at, vec![round + 100; 100]).unwrap());
        value[at..at + 100].fill(round + 100);
        seen.push((db.snapshot(), value.clone()));
        for (snapshot, value) in &seen {
            assert!(snapshot.get(&table, "k").unwrap().as_ref() == Some(value));
            for part in [0..value.len(), 90..250, 299..300] {
                assert!(
                    snapshot.get_range(&table, "k", part.clone()).unwrap().as_deref() == Some(&value[part])
                );
            }
            let row = snapshot.range(&table, "k"..).next().unwrap().unwrap();
            assert!(row.1 == *value);
        }
    }
}

/// A commit of several records that fails halfway restores the entry between two changes of parts.
#[test]
fn parts_around_a_commit_that_was_taken_back() {
    let disk = SimulatedDisk::new(1);
    let db = open_small(0, || {
        let builder = Db::builder().directory(Arc::new(disk.clone())).page_size(4096).seed(1);
        let builder = builder.mode(Mode::Inline).durability(Durability::Buffered).log_max(2 << 20);
        builder.snapshot_age_max(Duration::MAX)
    });
    let table = db.create_table("t").unwrap();
    for number in 0..600u32 {
        table.put(number.to_be_bytes(), vec![1; 1000]).unwrap();
    }
    let first = db.snapshot();
    let keys = || (0..600u32).step_by(3).map(u32::to_be_bytes);
    keys().for_each(|key| assert!(table.update_range(key, 10, [2; 50]).unwrap()));
    db.checkpoint().unwrap();
    let second = db.snapshot();
    let mut taken_back = 0;
    for nth in (100..500).step_by(7) {
        let mut batch = WriteBatch::new();
        for (index, key) in keys().enumerate() {
            if index % 2 == 0 {
                batch.put(&table, key, [3; 90])
            } else {
                batch.delete(&table, key)
            };
        }
        disk.fail(FaultPlan::once(CallKind::Read, nth, 5));
        let records = db.stats().log_records;
        let outcome = db.write(batch, Durability::Sync);
        disk.mend();
        assert!(matches!(outcome, Err(Error::Io { operation: "read", .. })), "{outcome:?}");
        taken_back += u32::from(db.stats().log_records > records);
        if taken_back == 2 {
            break;
        }
    }
    assert_eq!(taken_back, 2, "commits failed halfway");
    let third = db.snapshot();
    keys().for_each(|key| assert!(table.update_range(key, 40, [4; 50]).unwrap()));
    let value = |parts: &[(usize, u8)]| {
        let mut value = vec![1; 1000];
        parts.iter().for_each(|&(at, byte)| value[at..at + 50].fill(byte));
        value
    };
    let (before, between) = (value(&[]), value(&[(10, 2)]));
    for (snapshot, expected) in [(&first, &before), (&second, &between), (&third, &between)] {
        for key in keys() {
            assert!(snapshot.get(&table, key).unwrap().as_ref() == Some(expected));
            let part = snapshot.get_range(&table, key, 5..70).unwrap();
            assert!(part.as_deref() == Some(&expected[5..70]));
        }
        let rows: Vec<_> = snapshot.iter(&table).map(Result::unwrap).collect();
        assert_eq!(rows.len(), 600);
        assert!(rows.iter().step_by(3).all(|(_, value)| value == expected));
    }
    let now = value(&[(10, 2), (40, 4)]);
    assert!(keys().all(|key| table.get(key).unwrap().as_ref() == Some(&now)));
}

/// A part takes its own bytes of the memory for old versions; a put takes the value's.
#[test]
fn old_parts_take_little_memory_and_named_snapshots_read_them() {
    let (db, table) = open(in_memory());
    table.put("k", vec![0; 1000]).unwrap();
    let bytes = |change: &dyn Fn(u8)| {
        let snapshot = db.create_named_snapshot("then", None).unwrap();
        (1..=100).for_each(change);
        let [named] = &db.named_snapshots()[..] else { panic!("there is one") };
        db.drop_named_snapshot("then").unwrap();
        (named.version_bytes, snapshot.get(&table, "k").unwrap().unwrap())
    };
    let (parts, before) = bytes(&|round| assert!(table.update_range("k", 300, [round; 100]).unwrap()));
    assert_eq!(before, [0; 1000]);
    let (wholes, before) = bytes(&|round| table.put("k", vec![round; 1000]).unwrap());
    assert_eq!(before[300..400], [100; 100]);
    assert!(parts < 100 * 200 && wholes > 100 * 1000, "{parts} bytes by parts, {wholes} by puts");
}

/// Reads a value at a snapshot, and again after some turns of other threads.
fn read_twice(db: &Db, table: &Table, moment: &dyn Fn(&[u8]) -> u64, turns: u32) -> Result<(), Error> {
    let snapshot = db.snapshot();
    let first = moment(&snapshot.get(table, "k")?.unwrap());
    (0..turns).for_each(|_| std::thread::yield_now());
    let part = snapshot.get_range(table, "k", 80..)?.unwrap();
    let row = snapshot.range(table, "b"..).next().unwrap()?;
    assert_eq!((moment(&row.1), &row.1[80..]), (first, &part[..]));
    Ok(())
}

/// Field `n` of the value gets the number of each commit that ends in `n`, so a value tells up to
/// which commit it has all.
#[test]
fn readers_beside_a_writer_of_parts_see_one_moment() {
    const FIELDS: usize = 10;
    const COMMITS: u64 = 20_000;
    for builder in [
        common::builder().dram(4 << 20),
        common::builder()
            .dram(2 << 20)
            .backend(Backend::Frames)
            .no_middle()
            .middle("simulated:dram,8MiB".parse().unwrap())
            .lines(64),
    ] {
        let (db, table) = open(builder.directory(Arc::new(MemoryDirectory::new())));
        for key in ["a", "k", "z"] {
            table.put(key, vec![0; FIELDS * 80]).unwrap();
        }
        let done = AtomicBool::new(false);
        let moment = |value: &[u8]| {
            let fields: Vec<u64> =
                value.chunks(80).map(|field| u64::from_le_bytes(*field.first_chunk().unwrap())).collect();
            let last = *fields.iter().max().unwrap();
            let expected = |field: u64| {
                (0..FIELDS as u64).find_map(|before| last.checked_sub(before).filter(|at| at % 10 == field))
            };
            for (field, found) in fields.iter().enumerate() {
                assert_eq!(*found, expected(field as u64).unwrap_or(0), "up to {last}: {fields:?}");
            }
            last
        };
        std::thread::scope(|scope| {
            let stop = common::Retry(&done);
            for reader in 0..2u32 {
                let (db, table, done, moment) = (&db, &table, &done, &moment);
                scope.spawn(move || {
                    let mut reads = 0;
                    while !done.load(SeqCst) || reads < 100 {
                        // It may be given up for the memory that the writer takes.
                        match read_twice(db, table, moment, reader * 20) {
                            Err(Error::SnapshotTooOld) => {}
                            outcome => reads += outcome.map(|()| 1).unwrap(),
                        }
                    }
                });
            }
            for commit in 1..=COMMITS {
                let at = (commit as usize % FIELDS) * 80;
                assert!(table.update_range("k", at, commit.to_le_bytes()).unwrap());
            }
            drop(stop);
        });
        assert_eq!(moment(&table.get("k").unwrap().unwrap()), COMMITS);
    }
}

/// A value, and the number of the change that made it; none was removed.
type Change = (usize, Option<Vec<u8>>);

/// What each key had after each change.
#[derive(Default)]
struct History {
    changes: usize,
    of: BTreeMap<u32, Vec<Change>>,
}

impl History {
    fn set(&mut self, key: u32, value: Option<Vec<u8>>) {
        self.of.entry(key).or_default().push((self.changes, value));
    }

    fn get(&self, key: u32, at: usize) -> Option<&Vec<u8>> {
        let versions = self.of.get(&key)?;
        let index = versions.partition_point(|(change, _)| *change <= at).checked_sub(1)?;
        versions[index].1.as_ref()
    }

    fn rows(&self, from: u32, at: usize) -> impl DoubleEndedIterator<Item = (Vec<u8>, Vec<u8>)> {
        let here = self.of.range(from..);
        here.filter_map(move |(key, _)| Some((key.to_be_bytes().to_vec(), self.get(*key, at)?.clone())))
    }
}

/// Values of more than the DRAM has frames for.
const KEYS: u32 = 3000;

/// Few keys change, and are read, often.
fn some_key(random: &mut SmallRng) -> u32 {
    let most = if random.random_range(0..3) == 0 { KEYS } else { 8 };
    random.random_range(0..most) * (KEYS / most)
}

/// Reads some keys of a snapshot, taken after change `at`.
fn compare(snapshot: &Snapshot, table: &Table, history: &History, at: usize, random: &mut SmallRng) {
    let key = some_key(random);
    let expected = history.get(key, at);
    let name = key.to_be_bytes();
    match random.random_range(0..8) {
        0 => {
            let rows: Vec<_> = snapshot.range(table, name..).take(9).map(Result::unwrap).collect();
            assert!(rows.into_iter().eq(history.rows(key, at).take(9)), "rows from key {key}");
        }
        1 => {
            let rows: Vec<_> = snapshot.range(table, name..).rev().take(9).map(Result::unwrap).collect();
            assert!(rows.into_iter().eq(history.rows(key, at).rev().take(9)), "rows to key {key}");
        }
        2 => {
            let keys: Vec<u32> = (0..9).map(|_| some_key(random)).collect();
            let found = snapshot.get_many(table, keys.iter().map(|key| key.to_be_bytes())).unwrap();
            assert!(keys.iter().map(|&key| history.get(key, at)).eq(found.iter().map(Option::as_ref)));
        }
        3 => assert!(snapshot.get(table, name).unwrap().as_ref() == expected, "key {key}"),
        _ => {
            let start = random.random_range(0..1100);
            let part = start..start + random.random_range(0..120);
            match snapshot.get_range(table, name, part.clone()) {
                Ok(found) => {
                    let expected = expected.map(|value| &value[part.clone()]);
                    assert!(found.as_deref() == expected, "key {key}, {part:?}");
                }
                Err(Error::OutsideValue { length, .. }) => {
                    assert!(expected.is_some_and(|value| value.len() == length && length < part.end));
                }
                Err(error) => panic!("key {key}: {error}"),
            }
        }
    }
}

/// Changes a key in one of several ways.
fn change(db: &Db, table: &Table, history: &mut History, random: &mut SmallRng) {
    let key = some_key(random);
    let (name, old) = (key.to_be_bytes(), history.get(key, history.changes).cloned());
    history.changes += 1;
    let mut bytes = |length: usize| -> Vec<u8> { (0..length).map(|_| random.random()).collect() };
    match (bytes(1)[0] % 16, old) {
        (0..9, Some(mut value)) => {
            let start = usize::from(bytes(1)[0]) * value.len() / 256;
            let part = bytes((value.len() - start).min(usize::from(start as u8 % 130)));
            value[start..start + part.len()].copy_from_slice(&part);
            if start % 5 == 0 {
                db.update(|transaction| {
                    assert!(transaction.update_range(table, name, start, &part)?);
                    transaction.put(table, [&name[..], b"beside"].concat(), "")?;
                    transaction.delete(table, [&name[..], b"beside"].concat())
                })
                .unwrap();
            } else {
                assert!(table.update_range(name, start, &part).unwrap());
            }
            history.set(key, Some(value));
        }
        (9, Some(_)) => {
            assert!(table.delete(name).unwrap());
            history.set(key, None);
        }
        (10..12, Some(value)) => {
            let value = bytes(value.len());
            table.put(name, &value).unwrap();
            history.set(key, Some(value));
        }
        (kind, _) => {
            let length = if kind == 15 { 6000 } else { usize::from(bytes(1)[0]) * 5 };
            let value = bytes(length);
            table.put(name, &value).unwrap();
            history.set(key, Some(value));
        }
    }
}

fn operate(db: &Db, table: &Table, seed: u64) {
    let (mut random, mut history) = (SmallRng::seed_from_u64(seed), History::default());
    for key in 0..KEYS {
        let value = vec![key as u8; 600 + key as usize % 300];
        table.put(key.to_be_bytes(), &value).unwrap();
        history.set(key, Some(value));
    }
    let mut open: Vec<(Snapshot, usize)> = Vec::new();
    for step in 0..12_000 {
        match random.random_range(0..100) {
            0 => open.push((db.snapshot(), history.changes)),
            1 if !open.is_empty() => _ = open.swap_remove(random.random_range(0..open.len())),
            // The oldest are needed longest.
            2 if open.len() > 8 => _ = open.remove(0),
            3 if step % 7 == 0 => db.checkpoint().unwrap(),
            4..50 => change(db, table, &mut history, &mut random),
            _ if open.is_empty() => compare(&db.snapshot(), table, &history, history.changes, &mut random),
            _ => {
                let (snapshot, at) = &open[random.random_range(0..open.len())];
                compare(snapshot, table, &history, *at, &mut random);
            }
        }
    }
    for (snapshot, at) in &open {
        assert!(snapshot.iter(table).map(Result::unwrap).eq(history.rows(0, *at)));
        assert!(snapshot.iter(table).rev().map(Result::unwrap).eq(history.rows(0, *at).rev()));
    }
    assert!(db.stats().versions_dropped > 1000, "nothing was collected");
    drop(open);
    assert!(table.iter().map(Result::unwrap).eq(history.rows(0, history.changes)));
    assert_eq!(db.verify().unwrap().errors, []);
}

fn of_seed(seed: u64) -> Builder {
    let builder = Db::builder().directory(Arc::new(MemoryDirectory::new())).seed(seed);
    let builder = builder.mode(if seed.is_multiple_of(3) { Mode::Background } else { Mode::Inline });
    let builder = builder.snapshot_age_max(Duration::MAX).durability(Durability::Buffered).log_max(4 << 20);
    let tier = |builder: Builder| {
        let builder = builder.middle("simulated:dram,4MiB".parse().unwrap()).backend(Backend::Frames);
        let time = Time::Virtual(Arc::new(VirtualTime::new(1)));
        builder.policy("1,1,1,1".parse().unwrap()).simulated_time(time)
    };
    match seed % 5 {
        0 => builder.backend(Backend::Frames),
        1 => builder.backend(Backend::Mapped),
        2 => builder.backend(Backend::Frames).page_size(16 << 10),
        3 => tier(builder).lines(64),
        _ => tier(builder).page_size(16 << 10).lines(64).mini_pages(true),
    }
}

/// Some seeds each of frames, mapped pages, compressed pages, and tiers by lines and mini pages.
#[test]
fn snapshots_read_what_a_history_of_values_says() {
    let seeds = match std::env::var("TERRACE_SEED") {
        Ok(seed) => seed.parse().map(|seed| seed..seed + 1).expect("TERRACE_SEED is a number"),
        Err(_) => 0..10,
    };
    for seed in seeds {
        println!("TERRACE_SEED={seed}");
        let db = open_small(512 << 10, || of_seed(seed));
        let compression = if seed % 5 == 2 { Compression::Lz4 } else { Compression::None };
        let table = db.create_table_with("t", &TableOptions::new().compression(compression)).unwrap();
        operate(&db, &table, seed);
    }
}
