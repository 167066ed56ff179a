//! Files that are damaged, foreign or of another version: found, named, and never a panic.

use std::path::Path;

use terrace::{Db, Error};

const DRAM: u64 = 2 << 20;

fn open(path: &Path) -> terrace::Result<Db> {
    Db::builder().dram(DRAM).create(false).open(path)
}

/// A database of a few hundred entries and one large value, closed.
fn build(path: &Path) {
    let db = Db::builder().dram(DRAM).log_max(256 << 10).open(path).unwrap();
    let table = db.create_table("t").unwrap();
    for n in 0..600u32 {
        table.put(n.to_be_bytes(), vec![n as u8; 100]).unwrap();
    }
    table.put("large", vec![3; 40_000]).unwrap();
    db.close().unwrap();
}

/// CRC-32C, bit by bit.
fn checksum(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |sum, &byte| {
        (0..8).fold(sum ^ u32::from(byte), |sum, _| (sum >> 1) ^ (0x82f6_3b78 * (sum & 1)))
    })
}

#[test]
fn another_format_version_is_refused_by_name() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("db");
    build(&path);
    let file = path.join("pages.terrace");
    let mut bytes = std::fs::read(&file).unwrap();
    for slot in [0, 16 << 10] {
        bytes[slot + 4] = 77;
        let sum = checksum(&bytes[slot + 4..slot + (16 << 10)]);
        bytes[slot..slot + 4].copy_from_slice(&sum.to_le_bytes());
    }
    std::fs::write(&file, &bytes).unwrap();
    let error = open(&path).unwrap_err();
    assert!(matches!(error, Error::Version { found: 77, .. }), "{error}");
}

#[test]
fn a_log_of_another_database_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let (one, other) = (place.path().join("one"), place.path().join("other"));
    build(&one);
    build(&other);
    std::fs::copy(other.join("log.terrace"), one.join("log.terrace")).unwrap();
    let error = open(&one).unwrap_err();
    assert!(matches!(error, Error::NotADatabase { .. }), "{error}");
    std::fs::remove_file(one.join("log.terrace")).unwrap();
    let error = open(&one).unwrap_err();
    assert!(error.to_string().contains("log.terrace"), "{error}");
}

#[test]
fn flipped_bytes_are_found_or_do_not_matter() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("db");
    build(&path);
    let file = path.join("pages.terrace");
    let good = std::fs::read(&file).unwrap();
    let log = std::fs::read(path.join("log.terrace")).unwrap();
    let pages = good.len() / 4096;
    let mut found = 0;
    for page in 0..pages {
        let mut bad = good.clone();
        let at = page * 4096 + (page * 37 + 5) % 4096;
        if bad[page * 4096..][..4096].iter().all(|&byte| byte == 0) {
            continue;
        }
        bad[at] ^= 0x40;
        std::fs::write(&file, &bad).unwrap();
        std::fs::write(path.join("log.terrace"), &log).unwrap();
        let Ok(db) = Db::builder().dram(DRAM).read_only(true).open(&path) else {
            found += 1;
            continue;
        };
        let report = db.verify().unwrap();
        found += usize::from(!report.is_ok());
        if report.is_ok() {
            let table = db.open_table("t").unwrap();
            assert_eq!(table.len().unwrap(), 601);
            assert_eq!(table.get("large").unwrap().unwrap(), vec![3; 40_000]);
            assert!(table.iter().all(|entry| entry.is_ok()));
        }
    }
    println!("{found} of {pages} places matter");
    assert!(found > 20);
}
