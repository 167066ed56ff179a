//! Tries a middle tier between DRAM and the disk, before buying one: the memory is simulated.
//!
//! `cargo run --release -p terrace --example middle_tier`
//!
//! Compares the page reads from disk without and with 16 MiB of simulated CXL memory. On a machine
//! that has such memory, its NUMA node replaces the simulation: `Middle::parse("numa:1,16GiB")`.

use std::error::Error;

use terrace::{Db, Middle};

const ENTRIES: u64 = 60_000;

fn main() -> Result<(), Box<dyn Error>> {
    for middle in [None, Some("simulated:cxl,16MiB")] {
        let home = tempfile::tempdir().expect("the system has a directory for temporary files");
        let mut builder = Db::builder().dram(4 << 20);
        if let Some(middle) = middle {
            builder = builder.middle(middle.parse::<Middle>()?);
        }
        let db = builder.open(home.path().join("tiers.db"))?;
        let table = db.create_table("t")?;
        for number in 0..ENTRIES {
            table.put(number.to_be_bytes(), [7; 200])?;
        }
        let before = db.stats();
        for read in 0..200_000_u64 {
            let number = (read * read) % ENTRIES;
            assert!(table.get(number.to_be_bytes())?.is_some());
        }
        let after = db.stats();
        println!(
            "{:22} {:6} page reads from disk",
            middle.unwrap_or("DRAM and disk"),
            after.faults - before.faults
        );
        db.close()?;
    }
    Ok(())
}
