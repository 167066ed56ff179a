//! What becomes of the pages of values that are freed step by step while others are written.

use std::collections::HashSet;
use std::sync::Arc;

use terrace_block::MemoryDirectory;

use super::entries;
use crate::ids::PageId;
use crate::index::overflow::data_capacity;
use crate::{Db, Durability, Mode, Transaction};

/// New values beside two that are half freed take the pages that those had; each of them is a garbage key then.
#[test]
fn a_value_freed_in_parts_keeps_its_entry_to_the_end() {
    const NEW_VALUES: usize = 40;
    let builder = Db::builder().directory(Arc::new(MemoryDirectory::new())).dram(4 << 20);
    let db = builder.mode(Mode::Inline).durability(Durability::Buffered).open("").unwrap();
    let (core, pool) = (&db.shared, &db.shared.pool);
    let large = vec![1; 50 * pool.page_bytes()];
    let one_page = vec![2; data_capacity(pool.page_bytes())];
    let table = db.create_table("t").unwrap();
    // One that was referred to has its entry under its head, one that never was under its last index page.
    table.put("k", &large).unwrap();
    table.delete("k").unwrap();
    let mut aborted = db.begin();
    aborted.put(&table, "k", &large).unwrap();
    drop(aborted);
    core.collect();
    assert_eq!((entries(pool).unwrap().len(), core.garbage.waiting()), (2, 2));

    let mut transactions: Vec<Transaction> = Vec::new();
    let mut reused = 0;
    while core.garbage.waiting() > 0 {
        core.free_garbage(1).unwrap();
        // The ids of what was freed can be used again when it is durable.
        pool.wal().flush_to(pool.wal().tail()).unwrap();
        pool.round(false).unwrap();
        let known: HashSet<PageId> = pool.page_ids().collect();
        let mut transaction = db.begin();
        for key in 0..NEW_VALUES as u32 {
            transaction.put(&table, key.to_be_bytes(), &one_page).unwrap();
        }
        reused += transaction.large.values().filter(|key| known.contains(&key.id())).count();
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
