//! Databases with a hash table and swips.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use terrace_io::MemoryDirectory;

use crate::ids::PageId;
use crate::planted::{Bug, plant};
use crate::{Backend, Builder, Db, Error, Mode, PageTableKind, Table};

fn builder(dram: u64) -> Builder {
    let builder = Db::builder().dram(dram).page_size(4096).mode(Mode::Inline);
    builder.page_table(PageTableKind::Hash).swizzle(true)
}

fn value(key: u32) -> Vec<u8> {
    key.to_le_bytes().repeat(25)
}

/// How many of the keys have a wrong answer.
fn wrong(table: &Table, keys: impl Iterator<Item = u32>) -> usize {
    let is_wrong =
        |key: &u32| !matches!(table.get(key.to_be_bytes()), Ok(Some(found)) if found == value(*key));
    keys.filter(is_wrong).count()
}

/// Wrong answers for the first 6,000 keys under `bug`.
fn wrong_under(bug: Option<Bug>, table: &Table) -> usize {
    plant(bug);
    let wrong = wrong(table, 0..6000);
    plant(None);
    wrong
}

/// Wrong answers after splits that move children to other indexes and nodes.
fn wrong_after_splits(bug: Option<Bug>) -> usize {
    let db = builder(32 << 20).directory(Arc::new(MemoryDirectory::new())).open("").unwrap();
    let table = db.create_table("t").unwrap();
    let put = |key: u32| table.put(key.to_be_bytes(), value(key)).unwrap();
    (0..6000).step_by(2).for_each(put);
    assert_eq!(wrong(&table, (0..6000).step_by(2)), 0, "each swip is there");
    (1..6000).step_by(2).for_each(put);
    wrong_under(bug, &table)
}

#[test]
fn catches_swip_of_reused_entry() {
    assert_eq!(wrong_after_splits(None), 0);
    assert!(wrong_after_splits(Some(Bug::SwipOfReusedEntry)) > 1000);
}

/// Frames of inner nodes get other pages, while others read and write.
#[test]
fn answers_are_right_while_pages_come_and_go() {
    let directory = Arc::new(MemoryDirectory::new());
    let db = builder(2 << 20).mode(Mode::Background).directory(directory.clone()).open("").unwrap();
    let table = db.create_table("t").unwrap();
    (0..40_000).for_each(|key: u32| table.put(key.to_be_bytes(), value(key)).unwrap());
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for key in (0..40_000u32).step_by(7) {
                table.delete(key.to_be_bytes()).unwrap();
                table.put(key.to_be_bytes(), value(key)).unwrap();
            }
            done.store(true, Relaxed);
        });
        let mut round = 0;
        while !done.load(Relaxed) || round < 4 {
            // The writer's keys may be absent for a moment.
            let keys = (0..40_000).filter(|key| key % 7 != 0).map(|key| (key * 7919 + round) % 40_000);
            assert_eq!(wrong(&table, keys.filter(|key| key % 7 != 0)), 0);
            round += 1;
        }
    });
    assert!(db.stats().faults > 10_000, "not all of it fits");
    db.close().unwrap();
    let db = builder(2 << 20).page_table(PageTableKind::Array).swizzle(false).directory(directory.clone());
    let db = db.open("").unwrap();
    assert_eq!(wrong(&db.open_table("t").unwrap(), 0..40_000), 0, "the files are the same");
    db.close().unwrap();
    let db = builder(2 << 20).directory(directory).open("").unwrap();
    assert_eq!(wrong(&db.open_table("t").unwrap(), 0..40_000), 0);
    assert!(db.verify().unwrap().is_ok());
}

/// Databases with each page table, whose pages lie in frames: new ones, then opened again.
fn with_each_table(dram: u64, with: impl Fn(&Db, &Table)) {
    for (kind, swizzle) in
        [(PageTableKind::Array, false), (PageTableKind::Hash, false), (PageTableKind::Hash, true)]
    {
        let builder = builder(dram).page_table(kind).swizzle(swizzle);
        let builder = builder.backend(Backend::Frames).directory(Arc::new(MemoryDirectory::new()));
        let db = builder.clone().open("").unwrap();
        let table = db.create_table("t").unwrap();
        (0..20_000).for_each(|key: u32| table.put(key.to_be_bytes(), value(key)).unwrap());
        with(&db, &table);
        drop(table);
        db.close().unwrap();
        let db = builder.open("").unwrap();
        with(&db, &db.open_table("t").unwrap());
    }
}

#[test]
fn hints_say_where_pages_are() {
    with_each_table(2 << 20, |db, table| {
        assert_eq!(wrong(table, (0..20_000).rev()), 0);
        let pool = &table.shared().pool;
        let noted = |id: &PageId| {
            let frame = pool.table.entry(*id).and_then(|entry| entry.location().frame());
            frame.map(|frame| pool.table.hint(*id) == pool.frames.fixed().map(|fixed| fixed.hint(frame)))
        };
        let noted: Vec<bool> = pool.page_ids().filter_map(|id| noted(&id)).collect();
        assert!(noted.len() > 100 && db.stats().faults > 100, "pages left and came back");
        // With a middle tier there are none.
        assert!(pool.middle.is_some() || noted.iter().all(|&right| right));
    });
}

/// Whatever hints name: other pages, frames without memory, no frames.
#[test]
fn answers_do_not_depend_on_hints() {
    with_each_table(8 << 20, |_, table| {
        let pool = &table.shared().pool;
        for wild in [0, 1, 100, 1 << 12, 1 << 16, 1 << 31, u32::MAX] {
            pool.page_ids().for_each(|id| pool.table.note_hint(id, wild));
            assert_eq!(wrong(table, 0..20_000), 0, "{wild}");
            pool.page_ids().for_each(|id| pool.table.note_hint(id, id.index() as u32 ^ wild));
            assert_eq!(wrong(table, 0..20_000), 0, "{wild}");
        }
    });
}

/// Wrong answers if each page has the hint of another.
fn wrong_with_hints_of_others(bug: Option<Bug>) -> usize {
    let builder = builder(8 << 20).page_table(PageTableKind::Array).swizzle(false).backend(Backend::Frames);
    let db = builder.directory(Arc::new(MemoryDirectory::new())).open("").unwrap();
    let table = db.create_table("t").unwrap();
    (0..6000).for_each(|key: u32| table.put(key.to_be_bytes(), value(key)).unwrap());
    let pool = &table.shared().pool;
    let hints: Vec<u32> = pool.page_ids().filter_map(|id| pool.table.hint(id)).collect();
    pool.page_ids().zip(hints.iter().cycle().skip(1)).for_each(|(id, &hint)| pool.table.note_hint(id, hint));
    wrong_under(bug, &table)
}

#[test]
fn catches_believe_hint() {
    assert_eq!(wrong_with_hints_of_others(None), 0);
    // With a middle tier there are no hints.
    let has_hints = std::env::var_os("TERRACE_MIDDLE").is_none();
    assert!(!has_hints || wrong_with_hints_of_others(Some(Bug::BelieveHint)) > 1000);
}

#[test]
fn the_hash_table_and_its_swips_count_in_the_budget() {
    // A mapped table takes whole pages of the system.
    let open = |builder: Builder| {
        let builder = builder.backend(Backend::Frames).directory(Arc::new(MemoryDirectory::new()));
        builder.open("").unwrap()
    };
    let array = open(builder(64 << 20).page_table(PageTableKind::Array).swizzle(false)).stats();
    let hash = open(builder(64 << 20).swizzle(false)).stats();
    let swips = open(builder(64 << 20)).stats();
    // Of a 48th of the budget, as a power of two, slots are a third; entries come with pages.
    assert!(hash.page_table_bytes.abs_diff(1 << 18) < 16 << 10, "{}", hash.page_table_bytes);
    assert!(array.page_table_bytes < 4096, "{}", array.page_table_bytes);
    assert!(swips.page_table_bytes > hash.page_table_bytes + (64 << 20) / 400);
    // With header and share of the record cache, rounded to whole frames.
    let [array, hash_frames, swips_frames] = [&array, &hash, &swips].map(|stats| stats.frames * 4200);
    assert_eq!(array, hash_frames, "it has the array's share");
    let of_swips = swips.page_table_bytes - hash.page_table_bytes;
    assert!(hash_frames + 4200 >= swips_frames + of_swips, "{hash_frames} {swips_frames} {of_swips}");
}

/// A file may name one page far beyond all others.
#[test]
fn free_ids_take_no_entries() {
    let directory = Arc::new(MemoryDirectory::new());
    let db = builder(4 << 20).directory(directory.clone()).open("").unwrap();
    let table = db.create_table("t").unwrap();
    (0..20_000).for_each(|key: u32| table.put(key.to_be_bytes(), value(key)).unwrap());
    let before = db.stats().page_table_bytes;
    table.delete_range_in_steps::<[u8; 0]>(..).unwrap();
    db.close().unwrap();
    let db = builder(4 << 20).directory(directory).open("").unwrap();
    let after = db.stats().page_table_bytes;
    assert!(after + 400 * 24 < before, "{before} {after}");
    let table = db.open_table("t").unwrap();
    (0..20_000).for_each(|key: u32| table.put(key.to_be_bytes(), value(key)).unwrap());
    assert_eq!(wrong(&table, 0..20_000), 0, "they get entries when they are used again");
    assert!(db.stats().page_table_bytes >= before);
}

#[test]
fn statistics_name_the_page_table_wherever_it_comes_from() {
    for (named, table, swizzled) in [
        ("array", PageTableKind::Array, false),
        ("hash", PageTableKind::Hash, false),
        ("hash,swizzle", PageTableKind::Hash, true),
    ] {
        let variable = |name: &str| (name == "TERRACE_PAGE_TABLE").then(|| named.to_owned());
        let builder = Db::builder().defaults_from(variable).unwrap().dram(4 << 20).mode(Mode::Inline);
        let stats = builder.directory(Arc::new(MemoryDirectory::new())).open("").unwrap().stats();
        assert_eq!((stats.page_table, stats.swizzled), (table, swizzled), "{named}");
    }
}

#[test]
fn swips_without_a_hash_table_are_refused() {
    let builder = builder(4 << 20).page_table(PageTableKind::Array);
    let refused = builder.directory(Arc::new(MemoryDirectory::new())).open("").unwrap_err();
    assert!(matches!(&refused, Error::Config(what) if what.contains("swizzle")), "{refused}");
}
