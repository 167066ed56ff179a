//! What goes wrong below is told as it is, and what goes wrong with the cache is not told at all.

mod common;

use std::fs::{self, OpenOptions};
use std::process::Command;

use common::{Model, Place, SCHEMA, change, check_integrity, content, journal_mode, random, stat};
use rusqlite::{Connection, ErrorCode};

fn code(error: &rusqlite::Error) -> i32 {
    error.sqlite_error().unwrap_or_else(|| panic!("{error}")).extended_code
}

#[test]
fn mistakes_in_parameters_are_refused() {
    let place = Place::new();
    for query in [
        "block_cache=",
        "block_cache=/c&block_cache_size=much",
        "block_cache=/c&block_cache_policy=best",
        "block_cache=/c&block_cache_policy=belady",
        "block_cache_size=4MiB",
        "latency_us=slow",
    ] {
        let uri = format!("file:{}?vfs=terrace&{query}", place.database().display());
        let error = Connection::open(uri).expect_err(query);
        assert_eq!(error.sqlite_error_code(), Some(ErrorCode::CannotOpen), "{query}");
    }
    assert!(!place.database().exists(), "nothing is made by a mistake");
}

#[test]
fn a_directory_that_cannot_be_had_is_no_error() {
    let place = Place::new();
    fs::write(place.path().join("file"), "no directory").expect("a file");
    let uri = format!("file:{0}/x.db?vfs=terrace&block_cache={0}/file/cache", place.path().display());
    let mut db = Connection::open(uri).expect("it opens without a cache");
    db.execute_batch(SCHEMA).expect("tables");
    let mut model = Model::new();
    change(&mut db, &mut model, &mut random(1)).expect("a change");
    assert_eq!(content(&db).expect("rows"), model);
}

/// The same damage is told with the same code by our VFS and the system's.
#[test]
fn damage_has_the_code_of_the_systems_vfs() {
    for (damage, expected) in [
        (damage_header as fn(&Place), ErrorCode::NotADatabase),
        (damage_page, ErrorCode::DatabaseCorrupt),
        (cut, ErrorCode::DatabaseCorrupt),
    ] {
        let place = Place::new();
        let mut db = place.cached();
        db.execute_batch(SCHEMA).expect("tables");
        let mut model = Model::new();
        for seed in 0..5 {
            change(&mut db, &mut model, &mut random(seed)).expect("a change");
        }
        drop(db);
        damage(&place);
        let ask = |db: Connection| {
            db.query_row("select sum(length(value)) from t", [], |_| Ok(())).expect_err("damage is noticed")
        };
        let (open_ours, open_plain) = (Connection::open(place.uri("")), Connection::open(place.database()));
        let (ours, plain) = (ask(open_ours.expect("it opens")), ask(open_plain.expect("it opens")));
        assert_eq!(ours.sqlite_error_code(), Some(expected));
        assert_eq!(code(&ours), code(&plain));
    }
}

fn overwrite(place: &Place, offset: u64) {
    use std::os::unix::fs::FileExt;
    let file = OpenOptions::new().write(true).open(place.database()).expect("it is there");
    file.write_all_at(&[0xa5; 4096], offset).expect("it can be written");
}

fn damage_header(place: &Place) {
    overwrite(place, 0);
}

fn damage_page(place: &Place) {
    overwrite(place, 4096);
}

fn cut(place: &Place) {
    let file = OpenOptions::new().write(true).open(place.database()).expect("it is there");
    file.set_len(4096).expect("it can be cut");
}

#[test]
fn a_read_only_file_says_so() {
    let place = Place::new();
    let db = place.cached();
    db.execute_batch(SCHEMA).expect("tables");
    drop(db);
    let db = Connection::open(place.uri("&mode=ro")).expect("it opens");
    let error = db.execute_batch("insert into t values (1, 'x')").expect_err("it cannot be written");
    assert_eq!(error.sqlite_error_code(), Some(ErrorCode::ReadOnly));
    assert!(content(&db).expect("rows").is_empty());
}

#[test]
fn a_cache_that_is_cut_or_overwritten_harms_nothing() {
    let place = Place::new();
    let mut db = place.cached();
    journal_mode(&db, "wal");
    db.execute_batch(SCHEMA).expect("tables");
    let (mut model, mut random) = (Model::new(), random(4));
    for step in 0..60 {
        change(&mut db, &mut model, &mut random).expect("a change");
        db.query_row("pragma wal_checkpoint", [], |_| Ok(())).expect("a checkpoint");
        assert_eq!(content(&db).expect("rows"), model, "step {step}");
        if step == 30 {
            let blocks = OpenOptions::new().write(true).open(place.path().join("cache/blocks"));
            blocks.expect("it is there").set_len(0).expect("it can be cut");
        }
    }
    assert!(stat(&db, "errors") > 0.0);
    check_integrity(&db);
    drop(db);
    for name in ["blocks", "origin", "blocks"] {
        fs::write(place.path().join("cache").join(name), vec![0x5a; 1 << 20]).expect("it can be overwritten");
        let db = place.cached();
        assert_eq!(content(&db).expect("rows"), model, "{name} is foreign");
        assert_ne!(stat(&db, "capacity_blocks"), 0.0, "{name} is foreign: there is a new one");
    }
}

/// The other half of the next test: a process that may not write files longer than it is told.
#[test]
#[ignore = "runs as a child of the test below"]
fn child_fills_its_limit() {
    let uri = std::env::var("TERRACE_TEST_URI").expect("called by the test below");
    terrace_sqlite::register(false).expect("SQLite takes the VFS");
    let db = Connection::open(uri).expect("it opens");
    let limit = rustix::process::Rlimit { current: Some(200_000), maximum: Some(200_000) };
    rustix::process::setrlimit(rustix::process::Resource::Fsize, limit).expect("a limit can be set");
    let error = loop {
        if let Err(error) = db.execute_batch("insert into t values (null, randomblob(3000))") {
            break error;
        }
    };
    println!("the code is {}", code(&error));
    check_integrity(&db);
}

#[test]
fn a_file_that_cannot_grow_has_the_code_of_the_systems_vfs() {
    let mut codes = Vec::new();
    for is_cached in [false, true] {
        let place = Place::new();
        place.plain().execute_batch(SCHEMA).expect("tables");
        let plain = format!("file:{}", place.database().display());
        let uri = if is_cached { place.uri("&block_cache_size=1MiB") } else { plain };
        // Without a handler the signal that comes with the limit ends the process; a shell ignores it for its children.
        let test = std::env::current_exe().expect("this program");
        let script = format!(
            "trap '' XFSZ; exec '{}' --ignored --exact child_fills_its_limit --nocapture",
            test.display()
        );
        let child =
            Command::new("sh").arg("-c").arg(script).env("TERRACE_TEST_URI", uri).output().expect("a shell");
        let output = String::from_utf8_lossy(&child.stdout).into_owned();
        assert!(child.status.success(), "{output}{}", String::from_utf8_lossy(&child.stderr));
        let line = output.lines().find(|line| line.contains("the code is")).expect("a code").to_owned();
        codes.push(line);
        check_integrity(&place.plain());
    }
    assert_eq!(codes[0], codes[1]);
}
