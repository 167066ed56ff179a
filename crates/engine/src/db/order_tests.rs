//! Order in which buffered commits survive a kill.
//!
//! Of two concurrent commits the later one's records may end first, and a log that ends in between
//! keeps only the later commit. The guide (`durability.md`) promises an order only for commits that
//! were *not* concurrent.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;

use terrace_io::SimulatedDisk;

use crate::crash::play;
use crate::{Db, Durability, Mode, Table, WriteBatch};

/// Keys of the large commit, one record each.
const KEYS: u32 = 6;

fn open(disk: &SimulatedDisk) -> Db {
    let builder = Db::builder().directory(Arc::new(disk.clone())).dram(1 << 20).page_size(4096).seed(1);
    builder.mode(Mode::Inline).durability(Durability::Buffered).open("").unwrap()
}

/// Which of five commits survive a kill; the large one and `within` are concurrent.
///
/// `within` runs between the large commit's first two records. The log is written once, at the
/// yield point `flushed`. `None` if there are fewer.
fn survivors(flushed: u32) -> Option<[bool; 5]> {
    let disk = SimulatedDisk::new(1);
    let db = open(&disk);
    let table = db.create_table("t").unwrap();
    // Far from the large commit's keys, in another leaf.
    (0..400u32).for_each(|n| table.put(format!("filler {n:04}"), [1; 100]).unwrap());
    table.put("within", "0").unwrap();
    db.flush().unwrap();

    let point = Rc::new(Cell::new(0));
    let is_large = Rc::new(Cell::new(0));
    let within: Rc<RefCell<Option<JoinHandle<()>>>> = Rc::default();
    let others = {
        let (db, table) = (db.clone(), table.clone());
        let (point, is_large, within) = (Rc::clone(&point), Rc::clone(&is_large), Rc::clone(&within));
        move |_: &crate::pool::Pool| {
            if is_large.get() > 0 {
                is_large.set(is_large.get() + 1);
            }
            // The large commit is about to make its second change.
            if is_large.get() == 3 {
                let records = db.stats().log_records;
                let table: Table = table.clone();
                *within.borrow_mut() = Some(std::thread::spawn(move || table.put("within", "1").unwrap()));
                while db.stats().log_records == records {
                    std::thread::yield_now();
                }
            }
            if point.get() == flushed {
                let wal = db.shared.pool.wal();
                wal.flush_to(wal.tail()).unwrap();
            }
            point.set(point.get() + 1);
        }
    };
    play(Some(Rc::new(others)));
    table.put("before 1", "1").unwrap();
    table.put("before 2", "1").unwrap();
    let mut large = WriteBatch::new();
    (0..KEYS).for_each(|n| _ = large.put(&table, format!("a{n}"), "1"));
    is_large.set(1);
    db.write(large, Durability::Buffered).unwrap();
    is_large.set(0);
    within.take().expect("the small commit was begun").join().unwrap();
    table.put("after", "1").unwrap();
    play(None);

    let db = open(&disk.killed());
    let table = db.open_table("t").unwrap();
    let large = (0..KEYS).filter(|n| table.get(format!("a{n}")).unwrap().is_some()).count() as u32;
    assert!(large == 0 || large == KEYS, "a part of a commit is there: {large} keys");
    let is_there = |key: &str| table.get(key).unwrap().is_some_and(|value| value == b"1");
    let survivors =
        [is_there("before 1"), is_there("before 2"), large > 0, is_there("within"), is_there("after")];
    (flushed < point.get()).then_some(survivors)
}

#[test]
fn commits_survive_in_their_order_unless_they_were_under_way_together() {
    let mut later_alone = 0;
    for flushed in 0.. {
        let Some(survivors) = survivors(flushed) else { break };
        let [first, second, large, within, after] = survivors;
        assert!(first || !second, "{survivors:?}, the log written at point {flushed}");
        assert!(
            (first && second) || (!large && !within),
            "{survivors:?}, the log written at point {flushed}"
        );
        assert!((large && within) || !after, "{survivors:?}, the log written at point {flushed}");
        later_alone += u32::from(within && !large);
    }
    // The exception in the guide does occur.
    assert!(later_alone > 0, "the order of timestamps was kept");
}
