//! Planted bugs that only a whole database shows. The others are caught where the harness of their layer is.
#![cfg(feature = "planted-bugs")]

use std::sync::Arc;

use terrace::planted::{Bug, plant};
use terrace::{Db, Mode, Result, SimulatedDisk};

fn open(disk: &SimulatedDisk) -> Result<Db> {
    let builder = Db::builder().directory(Arc::new(disk.clone())).dram(1 << 20).page_size(4096);
    builder.log_max(256 << 10).mode(Mode::Inline).seed(1).open("")
}

/// What a table has for its only key after `disk` is opened; none if there is no such table.
fn found(disk: &SimulatedDisk) -> Result<Option<Vec<u8>>> {
    open(disk)?.open_table("t")?.get("key")
}

/// A database with one entry, and the power cut right after it was acknowledged.
fn cut_after_the_first_entry(seed: u64) -> SimulatedDisk {
    let disk = SimulatedDisk::new(0);
    let db = open(&disk).unwrap();
    db.create_table("t").unwrap().put("key", "value").unwrap();
    disk.survivor(seed)
}

#[test]
fn catches_skip_directory_sync() {
    let kept = |seed| matches!(found(&cut_after_the_first_entry(seed)), Ok(Some(value)) if value == b"value");
    plant(Some(Bug::SkipDirectorySync));
    let lost = (0..100).find(|&seed| !kept(seed));
    plant(None);
    assert!(kept(lost.expect("a database whose name was never synced is gone after some power cut")));
}

#[test]
fn catches_timestamps_from_zero() {
    let disk = SimulatedDisk::new(0);
    let db = open(&disk).unwrap();
    let table = db.create_table("t").unwrap();
    for number in 0..100u32 {
        table.put("key", number.to_le_bytes()).unwrap();
    }
    drop(table);
    db.close().unwrap();
    plant(Some(Bug::TimestampsFromZero));
    let wrong = found(&disk);
    plant(None);
    assert!(!matches!(wrong, Ok(Some(_))), "entries of the past are in the future of a clock set back");
    assert_eq!(found(&disk).unwrap().unwrap(), 99u32.to_le_bytes());
}
