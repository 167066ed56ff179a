//! Errors of the file are passed on, errors of the cache are not.

use std::fs::{self, OpenOptions};
use std::process::Command;

use crate::common::{
    Folder, Model, SCHEMA, SLOW_DISK, change, check_integrity, content, journal_mode, random, stat, stats,
};
use rusqlite::{Connection, ErrorCode};

fn code(error: &rusqlite::Error) -> i32 {
    error.sqlite_error().unwrap_or_else(|| panic!("{error}")).extended_code
}

#[test]
fn mistakes_in_parameters_are_refused() {
    let folder = Folder::new();
    for query in [
        "block_cache=",
        "block_cache=/c&block_cache_size=much",
        "block_cache=/c&block_cache_policy=best",
        "block_cache=/c&block_cache_policy=belady",
        "block_cache_size=4MiB",
        "latency_us=slow",
        "block_cache=/c&block_cache_sise=4MiB",
        "block_cache_sise=4MiB",
        "block_cache=/c&block_cache_write_budget=much",
    ] {
        let uri = format!("file:{}?vfs=terrace&{query}", folder.database().display());
        let error = Connection::open(uri).expect_err(query);
        assert_eq!(error.sqlite_error_code(), Some(ErrorCode::CannotOpen), "{query}");
    }
    assert!(!folder.database().exists(), "nothing is made by a mistake");
}

#[test]
fn a_directory_that_cannot_be_had_is_no_error() {
    let folder = Folder::new();
    fs::write(folder.path().join("file"), "no directory").expect("a file");
    let uri = format!("file:{0}/x.db?vfs=terrace&block_cache={0}/file/cache", folder.path().display());
    let mut db = Connection::open(uri).expect("it opens without a cache");
    db.execute_batch(SCHEMA).expect("tables");
    let mut model = Model::new();
    change(&mut db, &mut model, &mut random(1)).expect("a change");
    assert_eq!(content(&db).expect("rows"), model);
}

#[test]
fn the_pragma_tells_the_state_of_the_cache_and_its_reason() {
    let state = |db: &Connection, state: &str, reason: &str| {
        let told = stats(db);
        let begins = format!(r#"{{"state":"{state}""#);
        assert!(told.starts_with(&begins) && told.contains(reason), "{state}, {reason}: {told}");
    };
    let folder = Folder::new();
    let db = folder.cached();
    state(&db, "pending", r#""reason":"the next read under a lock opens the cache","cache":null"#);
    db.execute_batch(SCHEMA).expect("tables");
    content(&db).expect("rows");
    state(&db, "cached", r#""state":"cached","cache":{"#);

    let second = folder.cached_with("&block_cache_policy=lru");
    let reason = r#" is open in this process for another file or with other settings","cache":null"#;
    state(&second, "uncached", reason);
    let path = folder.path().display();
    let slow = Connection::open(format!("file:{path}/x.db?vfs=terrace&time=counted")).expect("it opens");
    state(&slow, "uncached", r#""reason":"the URI has no block_cache","cache":null"#);

    let small = Folder::new();
    let db = small.cached();
    db.execute_batch(&format!("pragma page_size = 1024; {SCHEMA}")).expect("tables");
    content(&db).expect("rows");
    state(&db, "uncached", "has pages of 1024 bytes; a cache needs 4096 or more");

    let quoted = Folder::new();
    let path = quoted.path().display();
    fs::write(quoted.path().join("no \"directory\""), "").expect("a file");
    let uri = format!("file:{path}/x.db?vfs=terrace&block_cache={path}/no \"directory\"");
    let db = Connection::open(uri).expect("it opens");
    state(&db, "uncached", r#"no \"directory\"#);
}

/// The cache's disk has fifty times the latency of the database's, in counted time.
#[test]
fn the_pragma_says_that_a_cache_on_a_slower_disk_rests() {
    let folder = Folder::new();
    let db = folder.cached_with("&latency_us=100&block_cache_latency_us=5000&time=counted");
    db.execute_batch(SCHEMA).expect("tables");
    db.execute_batch(
        "with recursive n(a) as (select 1 union all select a + 1 from n where a < 2000)
         insert into t select a, cast(printf('%0500d', a) as blob) from n",
    )
    .expect("rows");
    for _ in 0..100 {
        assert_eq!(content(&db).expect("rows").len(), 2000);
    }
    let told = stats(&db);
    let begins = r#"{"state":"aside","reason":"the cache's disk is the slower one","cache":{"#;
    assert!(told.starts_with(begins) && told.contains(r#""is_aside":true"#), "{told}");
}

#[test]
fn a_write_budget_limits_what_enters_the_cache() {
    for (budget, is_limited) in [("&block_cache_write_budget=24KiB", true), ("", false)] {
        let folder = Folder::new();
        let mut db = folder.cached_with(budget);
        db.execute_batch(SCHEMA).expect("tables");
        let (mut model, mut random) = (Model::new(), random(3));
        for _ in 0..20 {
            change(&mut db, &mut model, &mut random).expect("a change");
            assert_eq!(content(&db).expect("rows"), model);
        }
        // An hour of this budget, the most that it saves up, is less than a block.
        let (admitted, refused) = (stat(&db, "admissions"), stat(&db, "budget"));
        assert_eq!((admitted == 0.0, refused > 0.0), (is_limited, is_limited), "{}", stats(&db));
    }
}

/// Damage gives the same code through our VFS and the system's.
#[test]
fn damage_has_the_code_of_the_systems_vfs() {
    for (damage, expected) in [
        (damage_header as fn(&Folder), ErrorCode::NotADatabase),
        (damage_page, ErrorCode::DatabaseCorrupt),
        (cut, ErrorCode::DatabaseCorrupt),
    ] {
        let folder = Folder::new();
        let mut db = folder.cached();
        db.execute_batch(SCHEMA).expect("tables");
        let mut model = Model::new();
        for seed in 0..5 {
            change(&mut db, &mut model, &mut random(seed)).expect("a change");
        }
        drop(db);
        damage(&folder);
        let ask = |db: Connection| {
            db.query_row("select sum(length(value)) from t", [], |_| Ok(())).expect_err("damage is noticed")
        };
        let (open_ours, open_plain) = (Connection::open(folder.uri("")), Connection::open(folder.database()));
        let (ours, plain) = (ask(open_ours.expect("it opens")), ask(open_plain.expect("it opens")));
        assert_eq!(ours.sqlite_error_code(), Some(expected));
        assert_eq!(code(&ours), code(&plain));
    }
}

fn overwrite(folder: &Folder, offset: u64) {
    use std::os::unix::fs::FileExt;
    let file = OpenOptions::new().write(true).open(folder.database()).expect("it is there");
    file.write_all_at(&[0xa5; 4096], offset).expect("it can be written");
}

fn damage_header(folder: &Folder) {
    overwrite(folder, 0);
}

fn damage_page(folder: &Folder) {
    overwrite(folder, 4096);
}

fn cut(folder: &Folder) {
    let file = OpenOptions::new().write(true).open(folder.database()).expect("it is there");
    file.set_len(4096).expect("it can be cut");
}

#[test]
fn a_read_only_file_says_so() {
    let folder = Folder::new();
    let db = folder.cached();
    db.execute_batch(SCHEMA).expect("tables");
    drop(db);
    let db = Connection::open(folder.uri("&mode=ro")).expect("it opens");
    let error = db.execute_batch("insert into t values (1, 'x')").expect_err("it cannot be written");
    assert_eq!(error.sqlite_error_code(), Some(ErrorCode::ReadOnly));
    assert!(content(&db).expect("rows").is_empty());
}

#[test]
fn a_cache_that_is_cut_or_overwritten_harms_nothing() {
    let folder = Folder::new();
    let mut db = folder.cached();
    journal_mode(&db, "wal");
    db.execute_batch(SCHEMA).expect("tables");
    let (mut model, mut random) = (Model::new(), random(4));
    for step in 0..60 {
        change(&mut db, &mut model, &mut random).expect("a change");
        db.query_row("pragma wal_checkpoint", [], |_| Ok(())).expect("a checkpoint");
        assert_eq!(content(&db).expect("rows"), model, "step {step}");
        if step == 30 {
            let blocks = OpenOptions::new().write(true).open(folder.path().join("cache/blocks"));
            blocks.expect("it is there").set_len(0).expect("it can be cut");
        }
    }
    assert!(stat(&db, "errors") > 0.0);
    let told = stats(&db);
    for part in [
        r#"{"state":"uncached","reason":"use of a device"#,
        r#""in_service":false"#,
        r#""out_of_service":"use of a device"#,
    ] {
        assert!(told.contains(part), "{told}");
    }
    check_integrity(&db);
    drop(db);
}

#[test]
fn files_that_are_not_the_caches_are_left_as_they_are() {
    let folder = Folder::new();
    let mut db = folder.cached();
    db.execute_batch(SCHEMA).expect("tables");
    let (mut model, mut random) = (Model::new(), random(5));
    change(&mut db, &mut model, &mut random).expect("a change");
    drop(db);
    for name in ["blocks", "origin", "lock"] {
        let file = folder.path().join("cache").join(name);
        fs::write(&file, vec![0x5a; 1 << 20]).expect("it can be overwritten");
        let db = folder.cached();
        assert_eq!(content(&db).expect("rows"), model, "{name} is foreign");
        assert!(stats(&db).contains(r#","cache":null"#), "{name}: {}", stats(&db));
        drop(db);
        assert!(fs::read(&file).expect("it is there") == vec![0x5a; 1 << 20], "{name} is changed");
        fs::remove_file(&file).expect("it is there");
        let db = folder.cached();
        assert_eq!(content(&db).expect("rows"), model);
        assert_ne!(stat(&db, "capacity_blocks"), 0.0, "without {name} there is a new one");
    }
    let left = fs::read_dir(folder.path().join("cache")).expect("it is there");
    let names: Vec<_> = left.map(|entry| entry.expect("an entry").file_name()).collect();
    assert!(names.iter().all(|name| !name.to_string_lossy().contains("aside")), "{names:?}");
}

/// Caches of a later version are set aside under separate names.
#[test]
fn caches_of_other_versions_are_set_aside_and_none_is_written_over() {
    let folder = Folder::new();
    let open = || {
        let db = folder.cached();
        db.execute_batch(SCHEMA).expect("tables");
        content(&db).expect("rows");
        stats(&db)
    };
    open();
    let file = |name: &str| folder.path().join("cache").join(name);
    for (version, aside) in [(101_u32, "blocks.aside"), (102, "blocks.aside2")] {
        open();
        let mut bytes = fs::read(file("blocks")).expect("a cache");
        for page in [0, 4096] {
            bytes[page + 8..page + 12].copy_from_slice(&version.to_le_bytes());
            let check =
                crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &bytes[page..page + 508]) as u32;
            bytes[page + 508..page + 512].copy_from_slice(&check.to_le_bytes());
        }
        fs::write(file("blocks"), bytes).expect("it can be overwritten");
        let told = open();
        assert!(told.contains(aside), "{told}");
    }
    assert_eq!(fs::read(file("blocks.aside")).expect("it is there")[8], 101);
    assert_eq!(fs::read(file("blocks.aside2")).expect("it is there")[8], 102);
}

/// Child process of the next test, with a limited file size.
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
        let folder = Folder::new();
        folder.plain().execute_batch(SCHEMA).expect("tables");
        let plain = format!("file:{}", folder.database().display());
        let uri = if is_cached { folder.uri("&block_cache_size=1MiB") } else { plain };
        // The limit's signal kills a process without a handler; children of a shell ignore it.
        let test = std::env::current_exe().expect("this program");
        let script = format!(
            "trap '' XFSZ; exec '{}' --ignored --exact errors::child_fills_its_limit --nocapture",
            test.display()
        );
        let child =
            Command::new("sh").arg("-c").arg(script).env("TERRACE_TEST_URI", uri).output().expect("a shell");
        let output = String::from_utf8_lossy(&child.stdout).into_owned();
        assert!(child.status.success(), "{output}{}", String::from_utf8_lossy(&child.stderr));
        let line = output.lines().find(|line| line.contains("the code is")).expect("a code").to_owned();
        codes.push(line);
        check_integrity(&folder.plain());
    }
    assert_eq!(codes[0], codes[1]);
}

/// Child process of the next test: its rollback fails, so another must roll back.
#[test]
#[ignore = "runs as a child of the test below"]
fn child_cannot_roll_back() {
    let uri = std::env::var("TERRACE_TEST_URI").expect("called by the test below");
    terrace_sqlite::register(false).expect("SQLite takes the VFS");
    let path = uri.strip_prefix("file:").and_then(|rest| rest.split('?').next()).expect("a path").to_owned();
    let db = Connection::open(uri).expect("it opens");
    let count = |db: &Connection, value: i64| -> i64 {
        let sql = "select count(*) from t where cast(value as integer) = ?1";
        db.query_row(sql, [value], |row| row.get(0)).expect("a count")
    };
    db.execute_batch(
        "pragma cache_size = 10;
         with recursive n(a) as (select 1 union all select a + 1 from n where a < 2000)
         insert into t select a, printf('%01000d', 1) from n",
    )
    .expect("rows");
    assert_eq!((count(&db, 1), count(&db, 1)), (2000, 2000));
    let limit = |current| {
        let limit = rustix::process::Rlimit { current, maximum: None };
        rustix::process::setrlimit(rustix::process::Resource::Fsize, limit).expect("a limit can be set");
    };
    // Too large for memory, so the file is written before the commit, which never comes.
    db.execute_batch("begin; update t set value = printf('%01000d', 2)").expect("a change");
    // Above the cache's journal, below its blocks and most of the database.
    limit(Some(590_000));
    // Any result: what it cannot write back stays in the journal.
    let _ = db.execute_batch("rollback");
    limit(None);
    assert!(fs::metadata(format!("{path}-journal")).expect("a journal is left").len() > 100_000);
    let plain =
        Connection::open_with_flags_and_vfs(path, rusqlite::OpenFlags::SQLITE_OPEN_READ_WRITE, "unix");
    assert_eq!(count(&plain.expect("it opens"), 1), 2000, "the journal is played back");
    assert_eq!(count(&db, 1), 2000, "and what it took back is not in the cache");
    assert!(stat(&db, "write_hits") > 100.0);
    let stats = stats(&db);
    assert!(stats.contains("\"in_service\":true"), "{stats}");
    check_integrity(&db);
}

#[test]
fn a_change_that_another_takes_back_leaves_the_cache() {
    let folder = Folder::new();
    folder.plain().execute_batch(SCHEMA).expect("tables");
    let test = std::env::current_exe().expect("this program");
    let script = format!(
        "trap '' XFSZ; exec '{}' --ignored --exact errors::child_cannot_roll_back --nocapture",
        test.display()
    );
    let child =
        Command::new("sh").arg("-c").arg(script).env("TERRACE_TEST_URI", folder.uri(SLOW_DISK)).output();
    let child = child.expect("a shell");
    let output = [child.stdout, child.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(child.status.success(), "{}{}", output[0], output[1]);
}

/// SQLite has no checksums to detect this.
#[test]
fn a_byte_that_changes_in_the_cache_is_never_seen() {
    let (folder, seed) = (Folder::new(), 31);
    let mut db = folder.cached_with(SLOW_DISK);
    db.execute_batch(SCHEMA).expect("tables");
    let (mut model, mut random) = (Model::new(), random(seed));
    for _ in 0..30 {
        change(&mut db, &mut model, &mut random).expect("a change");
    }
    assert_eq!(content(&db).expect("a table"), model, "seed {seed}");
    let path = folder.path().join("cache/blocks");
    let mut bytes = fs::read(&path).expect("the cache's file");
    // All cached pages, but not the journal and marks before them.
    let slots = (stat(&db, "capacity_blocks") * 4096.0) as usize;
    let first = bytes.len() - slots;
    for slot in bytes[first..].chunks_mut(4096).filter(|slot| slot.iter().any(|&byte| byte != 0)) {
        slot[2077] ^= 16;
    }
    fs::write(&path, &bytes).expect("the cache's file");
    assert_eq!(content(&db).expect("a table"), model, "seed {seed}");
    assert!(stat(&db, "fallbacks") > 10.0, "{}", stats(&db));
    check_integrity(&db);
    assert_eq!(stat(&db, "requests_part"), 0.0);
}
