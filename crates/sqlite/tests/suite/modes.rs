//! Databases with and without a cache hold the same rows, in every journal mode.

use crate::common::{
    Folder, Model, SCHEMA, SLOW_DISK, Seed, change, check_integrity, content, journal_mode, random, stat,
};
use rand::RngExt;
use rusqlite::Connection;

const MODES: [&str; 6] = ["delete", "truncate", "persist", "memory", "wal", "off"];

/// Mode `off` cannot roll back, so it gets no rollbacks.
fn run(db: &mut Connection, mode: &str, seed: u64) -> Model {
    let (mut model, mut random) = (Model::new(), random(seed));
    db.execute_batch(SCHEMA).expect("tables");
    for step in 0..60 {
        if mode == "off" {
            let id: i64 = random.random_range(0..200);
            let value: Vec<u8> = (0..random.random_range(0..9000)).map(|_| random.random()).collect();
            db.execute("insert or replace into t values (?, ?)", rusqlite::params![id, value])
                .expect("a row");
            model.insert(id, value);
        } else {
            change(db, &mut model, &mut random).expect("a change");
        }
        if step % 20 == 19 {
            db.execute_batch("vacuum").expect("a vacuum");
        }
        assert_eq!(content(db).expect("rows"), model, "step {step}");
    }
    check_integrity(db);
    model
}

#[test]
fn every_journal_mode_and_page_size_reads_what_it_wrote() {
    for (number, mode) in MODES.into_iter().enumerate() {
        for page_bytes in [1024, 4096, 16384] {
            let seed = Seed(number as u64 * 100 + page_bytes);
            let folder = Folder::new();
            let mut db = folder.cached();
            db.execute_batch(&format!(
                "pragma page_size = {page_bytes}; pragma auto_vacuum = incremental; vacuum"
            ))
            .expect("pragmas");
            journal_mode(&db, mode);
            let model = run(&mut db, mode, seed.0);
            drop(db);
            let plain = folder.plain();
            check_integrity(&plain);
            assert_eq!(content(&plain).expect("rows"), model, "{mode} {page_bytes}: the file alone");
            drop(plain);
            assert_eq!(content(&folder.cached()).expect("rows"), model, "{mode} {page_bytes}: opened again");
        }
    }
}

#[test]
fn what_was_read_once_is_a_hit() {
    for mode in ["delete", "wal"] {
        let folder = Folder::new();
        let mut db = folder.cached();
        journal_mode(&db, mode);
        let model = run(&mut db, mode, 7);
        drop(db);
        let db = folder.cached_with(SLOW_DISK);
        for _ in 0..6 {
            assert_eq!(content(&db).expect("rows"), model);
        }
        let (hits, misses) = (stat(&db, "hits"), stat(&db, "misses"));
        assert!(hits >= 3.0 * misses && hits > 100.0, "{mode}: {hits} hits, {misses} misses");
        assert_eq!(stat(&db, "emptied"), 0.0, "{mode}");
    }
}

#[test]
fn our_own_changes_do_not_empty_the_cache() {
    for mode in ["delete", "wal"] {
        let folder = Folder::new();
        let slow = || folder.cached_with(SLOW_DISK);
        let (mut one, two) = (slow(), slow());
        journal_mode(&one, mode);
        let (mut model, mut random) = (Model::new(), random(3));
        one.execute_batch(SCHEMA).expect("tables");
        one.execute_batch("pragma wal_autocheckpoint = 20").expect("a pragma");
        for step in 0..200 {
            change(&mut one, &mut model, &mut random).expect("a change");
            assert_eq!(content(&two).expect("rows"), model, "{mode}, step {step}");
            if step == 100 && mode == "wal" {
                one.query_row("pragma wal_checkpoint(truncate)", [], |_| Ok(())).expect("a checkpoint");
            }
        }
        assert_eq!(stat(&two, "emptied"), 0.0, "{mode}");
        assert!(stat(&two, "hit_ratio") > 0.5, "{mode}");
    }
}

#[test]
fn databases_are_attached_and_cut() {
    let folder = Folder::new();
    let mut db = folder.cached();
    journal_mode(&db, "wal");
    let path = folder.path().display();
    db.execute_batch(&format!(
        "attach 'file:{path}/y.db?vfs=terrace&block_cache={path}/cache-y' as other;
         create table other.u(a); insert into other.u values (randomblob(100000));"
    ))
    .expect("a second database");
    let model = run(&mut db, "wal", 11);
    db.execute_batch(
        "insert into other.u select value from main.t; delete from t; pragma wal_checkpoint; vacuum",
    )
    .expect("a change of both");
    let count: i64 = db.query_row("select count(*) from other.u", [], |row| row.get(0)).expect("rows");
    assert_eq!(count, model.len() as i64 + 1);
    assert!(content(&db).expect("rows").is_empty());
    check_integrity(&db);
}

#[test]
fn threads_share_a_cache() {
    let folder = Folder::new();
    let mut db = folder.cached();
    journal_mode(&db, "wal");
    let (mut model, mut random) = (Model::new(), random(5));
    db.execute_batch(SCHEMA).expect("tables");
    db.execute_batch(
        "create table sums(total integer); insert into sums values (0); pragma wal_autocheckpoint = 10",
    )
    .expect("tables");
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let db = folder.cached();
                let mut rounds = 0;
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) || rounds < 3 {
                    // One snapshot: the sum must match the rows.
                    let query =
                        "select (select total from sums), (select coalesce(sum(length(value)), 0) from t)";
                    let (total, sum): (i64, i64) =
                        db.query_row(query, [], |row| Ok((row.get(0)?, row.get(1)?))).expect("rows");
                    assert_eq!(total, sum, "round {rounds}");
                    rounds += 1;
                }
            });
        }
        for step in 0..200 {
            let sum = "update sums set total = (select coalesce(sum(length(value)), 0) from t)";
            let transaction = db.transaction().expect("a transaction");
            let id: i64 = random.random_range(0..200);
            let value: Vec<u8> = (0..random.random_range(0..9000)).map(|_| random.random()).collect();
            transaction
                .execute("insert or replace into t values (?, ?)", rusqlite::params![id, value])
                .unwrap_or_else(|error| panic!("step {step}: {error}"));
            transaction.execute(sum, []).expect("a sum");
            transaction.commit().expect("a commit");
            model.insert(id, value);
        }
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert_eq!(content(&db).expect("rows"), model);
    check_integrity(&db);
}

thread_local! {
    static KEPT: std::cell::RefCell<Option<Connection>> = const { std::cell::RefCell::new(None) };
}

/// A connection in a thread-local outlives the thread-locals of the VFS. A panic there would abort
/// the process.
#[test]
fn a_connection_in_a_threads_own_memory_is_closed_when_the_thread_ends() {
    let folder = Folder::new();
    let (mut model, mut random) = (Model::new(), random(9));
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // Created now, so it is dropped after the thread-locals of the VFS.
            KEPT.with_borrow(|kept| assert!(kept.is_none()));
            let mut db = folder.cached();
            journal_mode(&db, "wal");
            db.execute_batch(SCHEMA).expect("tables");
            (0..30).for_each(|_| change(&mut db, &mut model, &mut random).expect("a change"));
            KEPT.set(Some(db));
        });
        // The scope does not wait for the thread's destructors.
        thread.join().expect("the thread ends");
    });
    let db = folder.cached();
    check_integrity(&db);
    assert_eq!(content(&db).expect("rows"), model);
    assert_eq!(
        std::fs::metadata(folder.path().join("x.db-wal")).map_or(0, |log| log.len()),
        0,
        "it was closed"
    );
}
