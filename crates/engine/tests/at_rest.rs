//! An unused budget costs nothing: memory and log come as they are needed.
//!
//! Alone in its process, which it measures.

use terrace::{Backend, Db};

const MIB: u64 = 1 << 20;

/// Bytes of this process in memory.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// Bytes that the files of a directory take on the disk.
fn disk_bytes(directory: &std::path::Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let files = std::fs::read_dir(directory).unwrap();
    files.map(|file| file.unwrap().metadata().unwrap().blocks() * 512).sum()
}

#[test]
fn a_database_with_one_entry_takes_little_whatever_its_budget() {
    for backend in Backend::ALL {
        for dram in [None, Some(16 * MIB), Some(64 << 30)] {
            let folder = tempfile::tempdir().unwrap();
            let builder = Db::builder().backend(backend).no_middle();
            let builder = dram.map_or(builder.clone(), |bytes| builder.dram(bytes));
            let before = resident_bytes();
            let db = builder.open(folder.path()).unwrap();
            let table = db.create_table("t").unwrap();
            table.put("key", "value").unwrap();
            let memory = resident_bytes().saturating_sub(before);
            let disk = disk_bytes(folder.path());
            let what = format!("{backend}, budget {dram:?}: {memory} bytes of memory, {disk} on disk");
            assert!(memory <= 12 * MIB && disk <= 8 * MIB, "{what}");
            // Most of the budget is still to come.
            let stats = db.stats();
            assert!(
                stats.frame_classes.iter().map(|class| class.resident_bytes).sum::<u64>() <= 2 * MIB,
                "{what}"
            );
            if dram == Some(64 << 30) {
                assert!(
                    stats.frame_classes.iter().map(|class| class.bytes).sum::<u64>() > 32 << 30,
                    "{what}"
                );
            }
        }
    }
}
