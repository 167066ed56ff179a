//! Long values on pages too large for nodes: written, read, freed, and damaged.

use super::chain::{self, FreeStep};
use super::change::{Change, Write};
use super::node::LEFTMOST;
use super::node::overflow::{Reference, ValuePages, data_capacity};
use super::pool_tests::{TestPool, overwrite, problems, put_long_on, value_pool};
use crate::error::Error;
use crate::ids::{PageId, SizeClass, Timestamp};

/// Offset of the first data page in an index page.
const FIRST_ID: usize = 40;

fn class(kib: u64) -> SizeClass {
    SizeClass::of_bytes(kib << 10).unwrap()
}

fn value(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at >> 3) as u8).collect()
}

/// The pages of a value, index pages included.
fn pages(test: &TestPool, reference: Reference) -> Vec<PageId> {
    let mut pages = Vec::new();
    chain::verify_value(&test.pool, reference, &mut |id| pages.push(id)).unwrap();
    pages
}

fn is_damage<T: std::fmt::Debug>(outcome: crate::Result<T>) {
    assert!(matches!(outcome, Err(Error::Corrupt { .. })), "{outcome:?}");
}

#[test]
fn sizes_of_the_pages_of_a_value_follow_from_its_length() {
    let sizes = ValuePages { own: class(8), most: class(256) };
    let of = |length| sizes.classes(length).map(|class| class.page_bytes() >> 10).collect::<Vec<_>>();
    let capacity = |kib: u64| data_capacity(class(kib).page_bytes());
    assert_eq!(of(1), [8], "no smaller than the table's own");
    for (kib, next) in [(8, 16), (64, 128), (128, 256)] {
        assert_eq!(of(capacity(kib)), [kib as usize]);
        assert_eq!(of(capacity(kib) + 1), [next]);
    }
    assert_eq!(of(capacity(256)), [256]);
    assert_eq!(of(capacity(256) + 1), [256, 8]);
    assert_eq!(of(2 * capacity(256)), [256]);
    assert_eq!(of(2 * capacity(256) + capacity(64) + 1), [256, 128]);
    let total = 2 * capacity(256) as u64 + 100;
    assert_eq!(sizes.data_pages(total), 3);
    assert_eq!(
        [0, 1, 2, 3].map(|number| sizes.length_of(number, total)),
        [capacity(256), capacity(256), 100, 0]
    );
}

#[test]
fn the_last_page_of_a_value_is_as_small_as_it_can_be() {
    let test = value_pool();
    let capacity = data_capacity(class(128).page_bytes());
    for (rest, last) in [(1, 4), (capacity, 128), (data_capacity(4096) + 1, 128)] {
        let value = value(2 * capacity + rest);
        let most = class(128);
        // This pool does not use the sizes between.
        if SizeClass::holding(rest as u64 + 32).is_some_and(|class| !test.pool.uses(class)) {
            continue;
        }
        let reference = put_long_on(&test, most, b"long", &value);
        assert!(chain::read_value(&test.pool, reference).unwrap() == value);
        let pages = pages(&test, reference);
        let data = pages.iter().filter(|id| **id != reference.head && id.class() == Some(class(128)));
        assert_eq!(data.count(), if last == 128 { 3 } else { 2 });
        assert_eq!(pages.last().unwrap().class(), Some(class(last)));
    }
}

/// A hostile file.
#[test]
fn a_child_that_is_too_large_for_a_node_is_damage() {
    let test = value_pool();
    for number in 100..300u64 {
        test.put(&number.to_be_bytes(), 1, &[1; 100]);
    }
    let other = put_long_on(&test, class(256), b"long", &value(200_000)).head;
    assert_eq!(other.class(), Some(class(256)));
    for child in [other, PageId::new(class(128), 77), PageId(10 << 56 | 1)] {
        overwrite(&test.pool, test.tree.root, LEFTMOST, &child.0.to_le_bytes());
        is_damage(test.tree.get(&test.pool, &[0; 8]));
        let change = Change::Put { key: &[0; 8], timestamp: Timestamp(9), flags: 0, value: &[2; 100] };
        is_damage(test.tree.apply(&test.pool, &mut Write::default(), change));
        let problems = problems(&test.pool, test.tree, &mut |_| {});
        assert_eq!(problems.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [child], "{problems:?}");
    }
}

#[test]
fn pages_of_other_sizes_than_a_value_has_are_damage() {
    let test = value_pool();
    let other =
        [4, 128, 256].map(|kib| put_long_on(&test, class(kib), b"other", &value(kib as usize * 1000)).head);
    for number in [1, 3] {
        let reference = put_long_on(&test, class(128), b"long", &value(300_000));
        let index = pages(&test, reference)[number - 1];
        assert_eq!(index.class(), Some(class(4)));
        for wrong in other.into_iter().chain([PageId(11 << 56 | 3), PageId(3)]) {
            overwrite(&test.pool, index, FIRST_ID, &wrong.0.to_le_bytes());
            is_damage(chain::read_value(&test.pool, reference));
            is_damage(chain::verify_value(&test.pool, reference, &mut |_| {}));
        }
    }
    let whole = put_long_on(&test, class(128), b"whole", &value(300_000));
    for total_length in [1, 100_000, 299_999, 300_001, 400_000, 1 << 30, u64::MAX] {
        is_damage(chain::read_value(&test.pool, Reference { total_length, ..whole }));
    }
    let one = put_long_on(&test, class(256), b"one", &value(200_000));
    for total_length in [0, 199_999, 200_001, 300_000] {
        is_damage(chain::read_value(&test.pool, Reference { total_length, ..one }));
    }
}

/// All pages freed by one record are in frames at once. There are four of this size.
#[test]
fn large_pages_are_freed_one_by_one() {
    let test = value_pool();
    let reference = put_long_on(&test, class(256), b"long", &value(3_000_000));
    let all = pages(&test, reference);
    let count = |class: SizeClass| all.iter().filter(|id| id.class() == Some(class)).count();
    assert_eq!((count(class(256)), count(class(4))), (11, 12), "the last 115 KB are on 128 KiB");
    let mut left = all.len();
    let last = loop {
        match chain::free_step(&test.pool, reference.head, 17).unwrap() {
            FreeStep::Again => {
                let mut now = Vec::new();
                chain::chain_pages(&test.pool, reference.head, &mut |id| now.push(id)).unwrap();
                let freed = left - now.len();
                assert!((1..=2).contains(&freed), "{freed} pages in one record");
                left = now.len();
            }
            FreeStep::Last(last) => break last,
        }
    };
    assert_eq!((last.len(), left), (2, 2));
    assert!(last.contains(&reference.head));
    test.pool.wal().flush_to(test.pool.wal().tail()).unwrap();
    test.pool.round(false).unwrap();
    let there = all.iter().filter(|&&id| test.pool.exists(id)).count();
    assert_eq!(there, 2, "those are the caller's to free");
}

/// There may be hundreds of threads, and no budget covers what they keep.
#[test]
fn a_thread_keeps_little_memory_after_a_long_value() {
    use std::sync::Arc;

    use super::read_leaf::rows_bytes_kept;
    use super::tree::scratch_bytes_kept;
    use crate::threads::KEPT_BYTES_MAX;

    for page_size in [4096, 65536] {
        let directory = Arc::new(crate::MemoryDirectory::new());
        let builder =
            crate::Db::builder().directory(directory).dram(16 << 20).page_size(page_size).no_middle();
        let db = builder.durability(crate::Durability::Buffered).open("").unwrap();
        let table = db.create_table("t").unwrap();
        let kept = |what: &str| {
            let kept = scratch_bytes_kept().max(rows_bytes_kept());
            assert!(kept <= KEPT_BYTES_MAX, "{kept} bytes are kept after {what}, pages of {page_size} bytes");
        };
        for key in 0..200u32 {
            table.put(key.to_be_bytes(), vec![1; 2000]).unwrap();
            kept("a put");
        }
        table.put("long", value(900_000)).unwrap();
        kept("a long value");
        assert_eq!(table.iter().count(), 201);
        kept("a scan");
        table.delete("long").unwrap();
        db.checkpoint().unwrap();
        kept("freeing");
    }
}
