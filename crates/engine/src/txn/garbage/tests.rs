//! Tests of stepwise freeing beside writes.

use std::collections::HashSet;
use std::sync::Arc;

use terrace_io::MemoryDirectory;

use super::entries;
use crate::ids::PageId;
use crate::index::node::LEFTMOST;
use crate::index::node::overflow::data_capacity;
use crate::index::{Write, overwrite};
use crate::{Db, Durability, Mode, Transaction};

/// New values reuse pages of two half-freed ones, so each becomes a garbage key.
#[test]
fn a_value_freed_in_parts_keeps_its_entry_to_the_end() {
    const NEW_VALUES: usize = 40;
    let builder = Db::builder().directory(Arc::new(MemoryDirectory::new())).dram(4 << 20);
    let db = builder.mode(Mode::Inline).durability(Durability::Buffered).open("").unwrap();
    let (core, pool) = (&db.shared, &db.shared.maintenance);
    let large = vec![1; 50 * pool.page_bytes()];
    let one_page = vec![2; data_capacity(pool.page_bytes())];
    let table = db.create_table("t").unwrap();
    // A committed value has its entry under its head, an uncommitted one under its last index page.
    table.put("k", &large).unwrap();
    table.delete("k").unwrap();
    let aborted = db.begin();
    aborted.put(&table, "k", &large).unwrap();
    drop(aborted);
    core.collect();
    assert_eq!((entries(pool).unwrap().len(), core.garbage.waiting()), (2, 2));

    let mut transactions: Vec<Transaction> = Vec::new();
    let mut reused = 0;
    while core.garbage.waiting() > 0 {
        core.garbage.free(&core.pool, &|| core.oldest(), 1).unwrap();
        // Freed ids are reusable once the record is durable.
        pool.wal().flush_to(pool.wal().tail()).unwrap();
        pool.round(false).unwrap();
        let known: HashSet<PageId> = pool.page_ids().collect();
        let transaction = db.begin();
        for key in 0..NEW_VALUES as u32 {
            transaction.put(&table, key.to_be_bytes(), &one_page).unwrap();
        }
        reused += transaction.large().iter().filter(|key| known.contains(&key.id())).count();
        transactions.push(transaction);
        let new_values = transactions.len() * NEW_VALUES;
        assert_eq!(entries(pool).unwrap().len(), new_values + core.garbage.waiting());
        assert_eq!(db.verify().unwrap().errors, []);
    }
    assert!(reused > 100, "{reused} pages were used again");
    transactions.pop().expect("a transaction").commit().unwrap();
    drop(transactions);
    core.free_all_garbage().unwrap();
    assert_eq!(entries(pool).unwrap().len(), 0);
    assert_eq!(db.verify().unwrap().errors, []);
}

/// Points the first child of the table's root at a missing page.
fn damage_tree(db: &Db, root: PageId) {
    let pool = &db.shared.maintenance;
    overwrite(pool, root, LEFTMOST, &500_000u64.to_le_bytes());
}

/// Freeing was retried forever, and without threads the database did not open any more.
#[test]
fn a_dropped_table_that_is_damaged_is_set_aside_and_the_rest_is_freed() {
    let directory = Arc::new(MemoryDirectory::new());
    let open = || {
        let builder = Db::builder().directory(directory.clone()).dram(4 << 20);
        builder.mode(Mode::Inline).durability(Durability::Buffered).open("")
    };
    let db = open().unwrap();
    let (core, pool) = (&db.shared, &db.shared.maintenance);
    for name in ["damaged", "sound"] {
        let table = db.create_table(name).unwrap();
        (0..2000u32).for_each(|number| table.put(number.to_be_bytes(), [7; 100]).unwrap());
    }
    damage_tree(&db, db.open_table("damaged").unwrap().state().tree.root);
    db.drop_table("damaged").unwrap();
    db.drop_table("sound").unwrap();
    db.checkpoint().unwrap();
    assert_eq!((core.garbage.waiting(), core.garbage.damaged(), entries(pool).unwrap().len()), (0, 1, 1));
    assert_eq!(db.stats().garbage, 1, "it is told as long as it is there");
    core.garbage.free(&core.pool, &|| core.oldest(), usize::MAX).expect("nobody tries again");
    let refused = db.compact();
    assert!(matches!(refused, Err(crate::Error::Corrupt { page: Some(500_000), .. })), "{refused:?}");
    assert_eq!((core.garbage.waiting(), core.garbage.damaged()), (0, 1));
    db.close().unwrap();
    let db = open().unwrap();
    assert_eq!((db.shared.garbage.waiting(), db.shared.garbage.damaged()), (0, 1));
}

/// An entry that named a tree of the database itself was believed, and emptied that tree.
#[test]
fn garbage_that_names_the_catalog_is_damage() {
    let directory = Arc::new(MemoryDirectory::new());
    let builder = || Db::builder().directory(directory.clone()).dram(4 << 20).mode(Mode::Inline);
    let db = builder().open("").unwrap();
    db.create_table("t").unwrap().put("k", "v").unwrap();
    let (pool, catalog) = (&db.shared.maintenance, db.shared.catalog.tree.root);
    let key = super::GarbageKey::table(catalog);
    super::garbage_tree(pool).apply(pool, &mut Write::default(), super::put(&key, &[])).unwrap();
    db.close().unwrap();
    let refused = builder().open("");
    assert!(matches!(refused, Err(crate::Error::Corrupt { .. })), "{refused:?}");
}
