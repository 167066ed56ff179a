//! Files that are damaged, foreign or of another version are named, without a panic.
//!
//! The fixtures in `tests/fixtures/format-N` of this version open with every entry, and this build
//! writes the same bytes. If the last test fails, read its message; this writes the fixture of the
//! current version anew:
//!
//! ```sh
//! TERRACE_WRITE_FIXTURE=1 cargo test -p terrace --test suite format::fixture
//! ```

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrace::{
    Compression, Db, Directory, Durability, Error, FORMAT_VERSION, MemoryDirectory, Mode, SimulatedDisk,
    TableOptions, WriteBatch,
};
use terrace_io::{AlignedBuffer, OpenMode};

use super::common;

const DRAM: u64 = 2 << 20;

fn open(path: &Path) -> terrace::Result<Db> {
    common::builder().dram(DRAM).create(false).open(path)
}

/// A closed database of a few hundred entries and a large value.
fn build(path: &Path) {
    let db = common::builder().dram(DRAM).log_max(256 << 10).open(path).unwrap();
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

/// Changes the version in superblocks or log header, with a valid checksum.
fn set_version(path: &Path, file: &str, version: u32) {
    let path = path.join(file);
    let mut bytes = std::fs::read(&path).unwrap();
    if file == "pages.terrace" {
        for slot in [0, 16 << 10] {
            bytes[slot + 4..slot + 8].copy_from_slice(&version.to_le_bytes());
            let sum = checksum(&bytes[slot + 4..slot + (16 << 10)]);
            bytes[slot..slot + 4].copy_from_slice(&sum.to_le_bytes());
        }
    } else {
        bytes[8..12].copy_from_slice(&version.to_le_bytes());
        let sum = checksum(&bytes[..48]);
        bytes[48..52].copy_from_slice(&sum.to_le_bytes());
    }
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn other_format_versions_are_refused_by_name_with_advice() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("db");
    build(&path);
    for file in ["pages.terrace", "log.terrace"] {
        for (version, advice) in [
            (0, "older release"),
            (FORMAT_VERSION - 1, "older release"),
            (FORMAT_VERSION + 1, "newer release"),
            (u32::MAX, "newer release"),
        ] {
            set_version(&path, file, version);
            let before = std::fs::read(path.join(file)).unwrap();
            for read_only in [false, true] {
                let opened = common::builder().dram(DRAM).create(false).read_only(read_only).open(&path);
                let error = opened.unwrap_err();
                assert!(
                    matches!(&error, Error::Version { file: named, found, supported }
                        if named.ends_with(file) && *found == version && *supported == FORMAT_VERSION),
                    "{error}"
                );
                assert!(error.to_string().contains(advice), "{error}");
            }
            assert!(std::fs::read(path.join(file)).unwrap() == before, "it was written to");
        }
        set_version(&path, file, FORMAT_VERSION);
        open(&path).unwrap().close().unwrap();
    }
}

#[test]
fn a_new_database_that_cannot_be_opened_leaves_no_file() {
    let files = ["pages.terrace", "log.terrace", "pages.new", "log.new", "cache.guard"];
    let directory = Arc::new(MemoryDirectory::new());
    let builder = || common::builder().directory(directory.clone());
    for refused in [builder().dram(1 << 20).page_size(1 << 16), builder().dram(u64::MAX / 2)] {
        let error = refused.open("").unwrap_err();
        assert!(matches!(error, Error::Config(_) | Error::Memory { .. }), "{error}");
        let left: Vec<_> = files.iter().filter(|file| directory.exists(file).unwrap()).collect();
        assert!(left.is_empty(), "{left:?}");
    }
    let db = builder().dram(DRAM).open("").unwrap();
    db.create_table("t").unwrap().put("key", "value").unwrap();
    drop(db);
    // One that exists stays.
    assert!(builder().dram(u64::MAX / 2).open("").is_err());
    let db = builder().dram(DRAM).open("").unwrap();
    assert_eq!(db.open_table("t").unwrap().get("key").unwrap().unwrap(), b"value");
}

#[test]
fn a_log_of_another_database_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (one, other) = (folder.path().join("one"), folder.path().join("other"));
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
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("db");
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
        let Ok(db) = common::builder().dram(DRAM).read_only(true).open(&path) else {
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

type Tables = BTreeMap<String, BTreeMap<Vec<u8>, Vec<u8>>>;

/// Puts into a table and into its expected content.
fn put(db: &Db, tables: &mut Tables, table: &str, key: &[u8], value: Vec<u8>) {
    db.open_table(table).unwrap().put(key, &value).unwrap();
    tables.get_mut(table).unwrap().insert(key.to_vec(), value);
}

/// Mostly zeros, which take no room in a fixture.
fn long(length: usize) -> Vec<u8> {
    (0..length).map(|at| if at % 4000 == 0 { (at / 4000 + length) as u8 | 1 } else { 0 }).collect()
}

/// Content of the fixtures, written by this build as if its process had been killed.
///
/// Leaves, inner nodes and long values of one, several and many pages, compressed and not. Pages of
/// several sizes; tables renamed and dropped; changes before and after a checkpoint; garbage
/// values. All of it fits into frames, so only checkpoints write pages.
///
/// Runs on a new thread: collections depend on the number of the thread's commits.
fn written() -> (SimulatedDisk, Tables) {
    std::thread::spawn(write).join().unwrap()
}

fn write() -> (SimulatedDisk, Tables) {
    let disk = SimulatedDisk::new(1);
    let builder = common::builder().directory(Arc::new(disk.clone())).dram(FIXTURE_DRAM).page_size(8192);
    let builder = builder.value_page_size_max(128 << 10);
    let builder = builder.log_max(4 << 20).mode(Mode::Inline).seed(1).durability(Durability::Buffered);
    let db = builder.open("").unwrap();
    let mut tables = Tables::new();
    for name in ["numbers", "odd keys", "long values", "dropped", "before"] {
        let is_compressed = ["numbers", "long values"].contains(&name);
        let compression = if is_compressed { Compression::Lz4 } else { Compression::None };
        db.create_table_with(name, &TableOptions::new().compression(compression)).unwrap();
        tables.insert(name.to_owned(), BTreeMap::new());
    }
    db.create_table_with("small pages", &TableOptions::new().page_size(4096)).unwrap();
    tables.insert("small pages".to_owned(), BTreeMap::new());
    let options = TableOptions::new().value_page_size_max(128 << 10);
    db.create_table_with("values on long pages", &options).unwrap();
    tables.insert("values on long pages".to_owned(), BTreeMap::new());
    let value = |number: u32, round: u32| vec![(number * 3 + round) as u8; (number * 7 % 90) as usize];
    for number in 0..300u32 {
        put(&db, &mut tables, "numbers", &(number * 37 % 300).to_be_bytes(), value(number, 0));
    }
    for key in [&b""[..], b"\0", b"a", b"ab", &[255; 1024], "\u{fc}mlaut \"quoted\"".as_bytes()] {
        put(&db, &mut tables, "odd keys", key, key.to_vec());
    }
    for length in [1000, 2000, 4000, 9000, 80_000] {
        put(&db, &mut tables, "long values", format!("{length} bytes").as_bytes(), long(length));
    }
    for number in 0..100u32 {
        put(&db, &mut tables, "small pages", &number.to_be_bytes(), value(number, 2));
    }
    put(&db, &mut tables, "small pages", b"9000 bytes", long(9000));
    for length in [9000, 60_000, 100_000, 150_000] {
        put(&db, &mut tables, "values on long pages", format!("{length} bytes").as_bytes(), long(length));
    }
    put(&db, &mut tables, "dropped", b"k", b"v".to_vec());
    put(&db, &mut tables, "before", b"k", b"v".to_vec());
    db.checkpoint().unwrap();
    db.drop_table("dropped").unwrap();
    tables.remove("dropped");
    db.rename_table("before", "after").unwrap();
    let renamed = tables.remove("before").unwrap();
    tables.insert("after".to_owned(), renamed);
    let mut batch = WriteBatch::new();
    let (numbers, odd) = (db.open_table("numbers").unwrap(), db.open_table("odd keys").unwrap());
    for number in (0..300u32).step_by(11) {
        let expected = tables.get_mut("numbers").unwrap();
        if number % 2 == 0 {
            batch.delete(&numbers, number.to_be_bytes());
            expected.remove(&number.to_be_bytes()[..]);
        } else {
            batch.put(&numbers, number.to_be_bytes(), value(number, 1));
            expected.insert(number.to_be_bytes().to_vec(), value(number, 1));
        }
    }
    batch.delete(&odd, "ab");
    tables.get_mut("odd keys").unwrap().remove(&b"ab"[..]);
    db.write(batch, Durability::Sync).unwrap();
    put(&db, &mut tables, "long values", b"9000 bytes", long(9001));
    let aborted = db.begin();
    aborted.put(&numbers, "aborted", long(6000)).unwrap();
    aborted.abort();
    db.flush().unwrap();
    assert!(db.stats().images_compressed > 5, "the fixture has compressed images");
    (disk.killed(), tables)
}

fn contents(db: &Db) -> Tables {
    let entries = |name: &String| db.open_table(name).unwrap().iter().map(Result::unwrap).collect();
    let names = db.table_names().unwrap();
    names.into_iter().map(|name| (name.clone(), entries(&name))).collect()
}

const SECTOR: usize = 512;
/// For pages of 128 KiB.
const FIXTURE_DRAM: u64 = 24 << 20;

/// A file without its zero sectors: its length, then number and bytes of each other sector.
fn sparse(directory: &dyn Directory, file: &str) -> Vec<u8> {
    let device = directory.open(file, OpenMode::Read).unwrap();
    let mut bytes = AlignedBuffer::zeroed(device.len() as usize);
    device.read_at(0, &mut bytes).unwrap();
    let mut found = device.len().to_le_bytes().to_vec();
    for (number, sector) in
        bytes.chunks(SECTOR).enumerate().filter(|(_, sector)| sector.iter().any(|&b| b != 0))
    {
        found.extend((number as u64).to_le_bytes());
        found.extend(sector);
    }
    found
}

/// A directory with the files of a fixture.
fn expanded(fixture: &Path) -> MemoryDirectory {
    let directory = MemoryDirectory::new();
    for file in ["pages.terrace", "log.terrace"] {
        let stored = std::fs::read(fixture.join(file)).unwrap();
        let (length, sectors) = stored.split_at(8);
        let mut bytes = AlignedBuffer::zeroed(u64::from_le_bytes(length.try_into().unwrap()) as usize);
        for sector in sectors.chunks(8 + SECTOR) {
            let number = u64::from_le_bytes(sector[..8].try_into().unwrap()) as usize;
            bytes[number * SECTOR..][..SECTOR].copy_from_slice(&sector[8..]);
        }
        let device = directory.open(file, OpenMode::CreateNew).unwrap();
        device.set_len(bytes.len() as u64).unwrap();
        device.write_at(0, &bytes).unwrap();
    }
    directory
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

fn present() -> PathBuf {
    fixtures().join(format!("format-{FORMAT_VERSION}"))
}

fn write_fixture_if_asked() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        if std::env::var_os("TERRACE_WRITE_FIXTURE").is_some() {
            let (disk, _) = written();
            std::fs::create_dir_all(present()).unwrap();
            for file in ["pages.terrace", "log.terrace"] {
                std::fs::write(present().join(file), sparse(&disk, file)).unwrap();
            }
        }
    });
}

#[test]
fn fixture_of_this_version_opens_with_every_entry() {
    write_fixture_if_asked();
    let (_, expected) = written();
    let directory = expanded(&present());
    for read_only in [true, false, true] {
        let builder = common::builder().directory(Arc::new(directory.clone()));
        let builder = builder.dram(2 * FIXTURE_DRAM).read_only(read_only);
        let db = builder.create(false).open("").unwrap();
        let found = contents(&db);
        assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
        for (table, entries) in &expected {
            for (key, value) in entries {
                assert!(found[table].get(key) == Some(value), "{table} {key:?}");
            }
            assert_eq!(found[table].len(), entries.len(), "{table}");
        }
        assert_eq!(db.verify().unwrap().errors, []);
        db.close().unwrap();
    }
}

#[test]
fn fixtures_of_other_versions_are_refused_by_name() {
    write_fixture_if_asked();
    let mut versions = 0;
    for entry in std::fs::read_dir(fixtures()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        let version: u32 = name.strip_prefix("format-").unwrap().parse().unwrap();
        versions += 1;
        let opened = common::builder().directory(Arc::new(expanded(&path))).dram(FIXTURE_DRAM).open("");
        match opened {
            Ok(_) => assert_eq!(version, FORMAT_VERSION),
            Err(Error::Version { found, .. }) => assert!(found == version && version != FORMAT_VERSION),
            Err(error) => panic!("{name}: {error}"),
        }
    }
    assert_eq!(versions, FORMAT_VERSION, "a fixture of each version");
}

#[test]
fn fixture_is_what_this_build_writes() {
    write_fixture_if_asked();
    let (disk, _) = written();
    for file in ["pages.terrace", "log.terrace"] {
        assert!(
            sparse(&disk, file) == std::fs::read(present().join(file)).unwrap(),
            "{file} is no longer written as the fixture of version {FORMAT_VERSION} has it. If an older build of this \
             version could not read it, the format is another one: raise the version, in superblock and log, and add \
             its fixture. If only what is written when has changed, write the fixture anew; the head of this file says \
             how."
        );
    }
}
