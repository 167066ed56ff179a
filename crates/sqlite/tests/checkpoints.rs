//! Checkpoints that leave the log's index as it was, or as a recovery makes it: what they change in the file is noticed.

mod common;

use common::{Place, journal_mode};
use rusqlite::{Connection, config::DbConfig, ffi};

const ROWS: i64 = 400;

fn load(db: &Connection) {
    journal_mode(db, "wal");
    db.execute_batch("create table t(id integer primary key, value blob); pragma wal_autocheckpoint = 0")
        .expect("a table");
    set(db, 1, true);
    db.query_row("pragma wal_checkpoint(truncate)", [], |_| Ok(())).expect("a checkpoint");
}

fn set(db: &Connection, value: i64, new: bool) {
    let sql = match new {
        true => {
            "with recursive n(a) as (select 1 union all select a + 1 from n where a < ?2)
                 insert into t select a, zeroblob(1000) || ?1 from n"
        }
        false => "update t set value = zeroblob(1000) || ?1 where id <= ?2",
    };
    db.execute(sql, [value, ROWS]).expect("rows");
}

/// How many rows have that value.
fn count(db: &Connection, value: i64) -> i64 {
    let sql = "select count(*) from t where cast(substr(value, 1001) as integer) = ?1";
    db.query_row(sql, [value], |row| row.get(0)).expect("a count")
}

#[test]
fn one_that_was_interrupted_and_is_finished_by_another() {
    let place = Place::new();
    let (writer, reader) = (place.cached(), place.cached());
    load(&writer);
    for _ in 0..3 {
        assert_eq!(count(&reader, 1), ROWS);
    }
    set(&writer, 2, false);
    writer.get_interrupt_handle().interrupt();
    // SAFETY: the connection is open, null stands for all databases, and nothing is asked back.
    let code = unsafe {
        let null = std::ptr::null_mut();
        let passive = ffi::SQLITE_CHECKPOINT_PASSIVE;
        ffi::sqlite3_wal_checkpoint_v2(writer.handle(), std::ptr::null(), passive, null, null)
    };
    assert_eq!(code, ffi::SQLITE_INTERRUPT);
    assert_eq!(count(&reader, 2), ROWS);
    let moved: i64 =
        place.plain().query_row("pragma wal_checkpoint", [], |row| row.get(2)).expect("a checkpoint");
    assert!(moved > 100, "{moved} frames");
    assert_eq!(count(&reader, 2), ROWS);
}

#[test]
fn one_of_a_log_that_was_recovered() {
    let place = Place::new();
    let db = place.cached();
    load(&db);
    for _ in 0..3 {
        assert_eq!(count(&db, 1), ROWS);
    }
    set(&db, 2, false);
    // As after a kill: the log stays, and who comes next recovers its index.
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).expect("a setting");
    drop(db);
    let db = place.cached();
    assert_eq!(count(&db, 2), ROWS);
    let moved: i64 =
        place.plain().query_row("pragma wal_checkpoint", [], |row| row.get(2)).expect("a checkpoint");
    assert!(moved > 100, "{moved} frames");
    assert_eq!(count(&db, 2), ROWS);
}
