//! Reads the past from a snapshot, copies the database while it is in use, and restores the copy.
//!
//! `cargo run --release -p terrace --example backup_and_snapshots`

use terrace::{Backup, Db, Result};

fn main() -> Result<()> {
    let home = tempfile::tempdir().expect("the system has a directory for temporary files");
    let at = |name| home.path().join(name);
    let db = Db::builder().dram(8 << 20).open(at("stock.db"))?;
    let stock = db.create_table("stock")?;
    for (fruit, pieces) in [("apple", 12), ("pear", 5), ("plum", 40)] {
        stock.put(fruit, [pieces])?;
    }

    let monday = db.snapshot();
    stock.delete("pear")?;
    stock.put("apple", [11])?;
    println!("now:    {:?} apples, {:?} pears", stock.get("apple")?, stock.get("pear")?);
    println!("monday: {:?} apples, {:?} pears", monday.get(&stock, "apple")?, monday.get(&stock, "pear")?);

    // The copy holds every commit that was acknowledged before the call.
    let report = db.backup(at("copy"))?;
    println!("copied {} pages and {} bytes of log", report.pages, report.log_bytes);
    stock.delete_range::<&str>(..)?;
    db.close()?;

    let copy = Backup::open(at("copy"))?;
    assert!(copy.check()?.is_ok());
    copy.restore(at("restored.db"))?;
    let restored = Db::builder().dram(8 << 20).open(at("restored.db"))?;
    println!("restored: {} kinds of fruit", restored.open_table("stock")?.len()?);
    restored.close()
}
