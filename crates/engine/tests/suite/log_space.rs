//! Transactions that take much of the log: they wait for it to be cut, and are refused only when they could never fit.

use std::sync::Arc;
use std::time::{Duration, Instant};

use terrace::{Db, Durability, Mode, SimulatedDisk, Table, WriteBatch};

fn open(mode: Mode, log_bytes: u64) -> (SimulatedDisk, Db, Table) {
    let disk = SimulatedDisk::new(1);
    let builder = Db::builder().directory(Arc::new(disk.clone())).dram(4 << 20).page_size(4096).seed(1);
    let db = builder.log_max(log_bytes).mode(mode).open("").unwrap();
    let table = db.create_table("t").unwrap();
    (disk, db, table)
}

#[test]
fn transactions_of_half_the_log_follow_each_other() {
    for mode in [Mode::Inline, Mode::Background] {
        let (_disk, db, table) = open(mode, 1 << 20);
        let began = Instant::now();
        for round in 0..30u32 {
            let mut batch = WriteBatch::new();
            for number in 0..250u32 {
                let key = [round, number].map(u32::to_be_bytes).concat();
                batch.put(&table, key, [round as u8; 1000]);
            }
            db.write(batch, Durability::Buffered)
                .unwrap_or_else(|error| panic!("{mode:?}, {round}: {error}"));
        }
        assert_eq!(table.len().unwrap(), 30 * 250);
        assert!(began.elapsed() < Duration::from_secs(60), "{mode:?}: {:?}", began.elapsed());
    }
}
