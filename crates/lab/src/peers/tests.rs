//! One conformance test for every engine, Terrace included: what workloads rely on.

use std::path::Path;

use terrace::Durability;
use terrace_common::failure::Failure;
use terrace_common::store::{Access, Database, Ending, Settings, Store};
use terrace_common::tiers::{CommitArgs, MemoryArgs, TierArgs};

use super::folder::Folder;
use super::*;

/// Every engine of this build, with its name for test messages.
fn engines() -> Vec<(&'static str, Box<dyn Opener>)> {
    let open = |name: &&'static str| {
        (*name, opener(name).unwrap_or_else(|| Box::new(terrace_common::engine::Engine)))
    };
    // Reading from a copy breaks these promises, so raw-frames has its own test.
    NAMES.iter().filter(|name| **name != "raw-frames").map(open).collect()
}

fn settings(store: Option<&Path>) -> Settings {
    let tiers = TierArgs {
        memory: MemoryArgs { dram: Some(32 << 20), ..MemoryArgs::default() },
        commits: CommitArgs { durability: Durability::Buffered },
        ..TierArgs::default()
    };
    Settings {
        create: true,
        threads: 2,
        records: 1000,
        value_bytes: 100,
        ..Settings::new(&tiers, store.map(Path::to_owned))
    }
}

fn entries(store: &dyn Store, from: &[u8], limit: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut found = Vec::new();
    let done = store.scan(from, &mut |key, value| {
        found.push((key.to_vec(), value.to_vec()));
        if found.len() < limit {
            std::ops::ControlFlow::Continue(())
        } else {
            std::ops::ControlFlow::Break(())
        }
    });
    done.expect("a scan");
    found
}

fn pair(key: &str, value: &str) -> (Vec<u8>, Vec<u8>) {
    (key.into(), value.into())
}

/// Single operations, batches and scans.
fn plain(store: &dyn Store) {
    assert_eq!(store.get(b"a").unwrap(), None);
    assert!(entries(store, b"", 10).is_empty());
    assert!(!store.delete(b"a").unwrap());
    store.put(b"b", b"one").unwrap();
    store.put(b"b", b"two").unwrap();
    store.put(b"d", b"").unwrap();
    assert_eq!(store.get(b"b").unwrap(), Some(b"two".to_vec()));
    assert_eq!(store.get(b"d").unwrap(), Some(Vec::new()));
    let mut read = Vec::new();
    assert!(store.get_with(b"b", &mut |value| read.extend_from_slice(value)).unwrap());
    assert!(!store.get_with(b"c", &mut |_| panic!("there is no such key")).unwrap());
    assert_eq!(read, b"two");
    store.write(&[pair("a", "1"), pair("c", "3"), pair("b", "2")]).unwrap();
    let all = [pair("a", "1"), pair("b", "2"), pair("c", "3"), pair("d", "")];
    assert_eq!(entries(store, b"", 10), all);
    assert_eq!(entries(store, b"b", 2), all[1..3]);
    assert_eq!(entries(store, b"bb", 10), all[2..]);
    assert!(entries(store, b"e", 10).is_empty());
    assert!(store.delete(b"d").unwrap() && !store.delete(b"d").unwrap());
    assert_eq!(store.get(b"d").unwrap(), None);
}

/// Transactions see their own writes and leave nothing if aborted or failed.
fn transactions(store: &dyn Store) {
    let mut seen = None;
    let done = store.transact(&mut |transaction: &mut dyn Access| {
        transaction.put(b"a", b"9")?;
        seen = transaction.get(b"a")?;
        assert_eq!(transaction.get(b"b")?, Some(b"2".to_vec()));
        assert_eq!(transaction.get(b"none")?, None);
        transaction.put(b"z", b"26")?;
        Ok(Ending::Commit)
    });
    assert_eq!((done.unwrap(), seen), (0, Some(b"9".to_vec())));
    assert_eq!(
        (store.get(b"a").unwrap(), store.get(b"z").unwrap()),
        (Some(b"9".to_vec()), Some(b"26".to_vec()))
    );
    let abort = store.transact(&mut |transaction: &mut dyn Access| {
        transaction.put(b"a", b"aborted")?;
        Ok(Ending::Abort)
    });
    let fail = store.transact(&mut |transaction: &mut dyn Access| {
        transaction.put(b"a", b"failed")?;
        Err(Failure::Work("on purpose".to_owned()))
    });
    assert!(abort.is_ok() && fail.unwrap_err().to_string() == "on purpose");
    assert_eq!(store.get(b"a").unwrap(), Some(b"9".to_vec()));
    assert!(store.delete(b"z").unwrap());
}

/// Threads increment one number in transactions; no increment is lost.
fn additions(store: &dyn Store) {
    const EACH: u64 = 50;
    store.put(b"sum", &0u64.to_le_bytes()).unwrap();
    let number =
        |bytes: Option<Vec<u8>>| u64::from_le_bytes(bytes.expect("the sum is there").try_into().unwrap());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..EACH {
                    let done = store.transact(&mut |transaction: &mut dyn Access| {
                        let sum = number(transaction.get(b"sum")?);
                        transaction.put(b"sum", &(sum + 1).to_le_bytes())?;
                        Ok(Ending::Commit)
                    });
                    done.unwrap();
                }
            });
        }
    });
    assert_eq!(number(store.get(b"sum").unwrap()), 2 * EACH);
    assert!(store.delete(b"sum").unwrap());
}

fn open(engine: &dyn Opener, settings: &Settings) -> (Box<dyn Database>, Box<dyn Store>) {
    let database = engine.open(settings).expect("it opens");
    database.drop_table("not there").unwrap();
    let table = database.table("t", settings.create).expect("a table");
    (database, table)
}

#[test]
fn every_engine_keeps_the_promises_of_the_seam() {
    for (name, engine) in engines() {
        println!("{name}");
        let (database, table) = open(&*engine, &settings(None));
        plain(&*table);
        transactions(&*table);
        additions(&*table);
        assert!(database.table("none", false).is_err(), "{name}");
        assert!(!database.settings().is_empty());
        let other = database.table("other", true).unwrap();
        other.put(b"a", b"other").unwrap();
        assert_eq!(table.get(b"a").unwrap(), Some(b"9".to_vec()));
        drop((table, other));
        database.drop_table("t").unwrap();
        let table = database.table("t", true).unwrap();
        assert!(entries(&*table, b"", 10).is_empty(), "{name}");
        assert_eq!(entries(&*database.table("other", false).unwrap(), b"", 10), [pair("a", "other")]);
        drop(table);
        database.close().unwrap();
    }
}

#[test]
fn what_was_closed_is_there_again() {
    for (name, engine) in engines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("db");
        let settings = settings(Some(&path));
        if name == "btreemap" {
            assert_eq!(engine.open(&settings).err().unwrap().code(), 2);
            continue;
        }
        let absent = Settings { create: false, ..settings.clone() };
        assert!(engine.open(&absent).is_err() && !path.exists(), "{name}");
        for durability in [Durability::Sync, Durability::Buffered] {
            let tiers = TierArgs { commits: CommitArgs { durability }, ..settings.tiers.clone() };
            let settings = Settings { tiers, ..settings.clone() };
            let (database, table) = open(&*engine, &settings);
            let key = format!("{durability:?}");
            table.put(key.as_bytes(), &[7; 3000]).unwrap();
            table.write(&[pair(&format!("{key} batch"), "1")]).unwrap();
            assert!(table.counters().store_capacity_bytes > 0, "{name}");
            drop(table);
            database.close().unwrap();
            let (database, table) = open(&*engine, &Settings { create: false, ..settings });
            assert_eq!(table.get(key.as_bytes()).unwrap(), Some(vec![7; 3000]), "{name}");
            assert_eq!(entries(&*table, b"", 10).len(), if durability == Durability::Sync { 2 } else { 4 });
            drop(table);
            database.close().unwrap();
        }
    }
}

#[test]
fn files_that_nobody_asked_for_are_removed() {
    for (name, engine) in engines() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("db");
        let given = Settings { scratch: Some(path.clone()), ..settings(None) };
        let (database, table) = open(&*engine, &given);
        table.put(b"a", b"1").unwrap();
        let has_files = !["terrace", "btreemap"].contains(&name);
        assert_eq!(path.exists(), has_files, "{name}");
        drop(table);
        database.close().unwrap();
    }
    let folder = Folder::of(&settings(None)).unwrap();
    let path = folder.path.clone();
    assert!(path.is_dir());
    drop(folder);
    assert!(!path.exists());
}

#[test]
fn names_are_checked() {
    assert_eq!(parse("redb"), Ok("redb".to_owned()));
    let error = parse("oracle").unwrap_err();
    assert!(NAMES.iter().all(|name| error.contains(name)), "{error}");
    for optional in ["rocksdb", "raw-frames"] {
        let told = |error: String| error.contains(&format!("--features {optional}"));
        assert!(parse(optional).map_or_else(told, |name| name == optional));
    }
}
