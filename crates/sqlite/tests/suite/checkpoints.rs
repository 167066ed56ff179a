//! A checkpoint of a recovered log is noticed.
//!
//! The index counts all frames as attempted before it.

use crate::common::{Folder, journal_mode};
use rusqlite::{Connection, config::DbConfig};

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
                 insert into t select a, printf('%01000d', ?1) from n"
        }
        false => "update t set value = printf('%01000d', ?1) where id <= ?2",
    };
    db.execute(sql, [value, ROWS]).expect("rows");
}

/// Number of rows with this value.
fn count(db: &Connection, value: i64) -> i64 {
    let sql = "select count(*) from t where cast(value as integer) = ?1";
    db.query_row(sql, [value], |row| row.get(0)).expect("a count")
}

#[test]
fn a_checkpoint_of_a_recovered_log_is_noticed() {
    let folder = Folder::new();
    let db = folder.cached();
    load(&db);
    for _ in 0..3 {
        assert_eq!(count(&db, 1), ROWS);
    }
    set(&db, 2, false);
    // Like a kill: the log stays, and the next open recovers its index.
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).expect("a setting");
    drop(db);
    let db = folder.cached();
    assert_eq!(count(&db, 2), ROWS);
    let moved: i64 =
        folder.plain().query_row("pragma wal_checkpoint", [], |row| row.get(2)).expect("a checkpoint");
    assert!(moved > 50, "{moved} frames");
    assert_eq!(count(&db, 2), ROWS);
}
