//! Stores eight times as much as the memory budget, and shows what the engine does with its memory.
//!
//! `cargo run --release -p terrace --example larger_than_memory`
//!
//! Shows the budget, bulk loading in batches, many reads at once, and statistics.

use terrace::{Db, Durability, Result, WriteBatch};

const BUDGET: u64 = 8 << 20;
const ENTRIES: u64 = 256 << 10;
const VALUE_BYTES: usize = 240;

fn main() -> Result<()> {
    let home = tempfile::tempdir().expect("the system has a directory for temporary files");
    let db = Db::builder().dram(BUDGET).log_max(16 << 20).open(home.path().join("large.db"))?;
    let events = db.create_table("events")?;

    // A batch is one commit. Keys in ascending order fill the leaves best.
    for first in (0..ENTRIES).step_by(4096) {
        let mut batch = WriteBatch::new();
        for number in first..first + 4096 {
            batch.put(&events, number.to_be_bytes(), [number as u8; VALUE_BYTES]);
        }
        db.write(batch, Durability::Buffered)?;
    }
    db.flush()?;

    // Reads of pages that are not in memory go to the disk together.
    let scattered: Vec<_> = (0..1_000).map(|at| (at * 7_919 % ENTRIES).to_be_bytes()).collect();
    let found = events.get_many(&scattered)?;
    assert!(found.iter().all(Option::is_some));

    let stats = db.stats();
    println!("stored    {:4} MiB", (ENTRIES * (8 + VALUE_BYTES as u64)) >> 20);
    println!("budget    {:4} MiB, of it frames {} MiB", stats.budget_bytes >> 20, stats.frame_bytes >> 20);
    println!("faults    {:4}, evictions {}", stats.faults, stats.evictions);
    db.close()
}
