//! Tests of cache bytes that rot while the database is open: only the statistics notice.

use std::collections::HashSet;

use super::*;
use crate::planted::plant;

fn image_blocks(device: &dyn BlockDevice) -> impl Iterator<Item = (u64, AlignedBuffer)> + '_ {
    (0..device.len() / BLOCK_BYTES as u64).map(|number| {
        let mut bytes = AlignedBuffer::zeroed(BLOCK_BYTES);
        device.read_at(number * BLOCK_BYTES as u64, &mut bytes).unwrap();
        (number * BLOCK_BYTES as u64, bytes)
    })
}

impl Folder {
    /// Changes a byte of every cached block; returns their number.
    fn rot(&self) -> usize {
        let pages = self.slow.open("pages.terrace", OpenMode::Read).unwrap();
        let known: HashSet<Vec<u8>> = image_blocks(&*pages).map(|(_, bytes)| bytes.to_vec()).collect();
        let fast = self.fast.open("cache", OpenMode::Write).unwrap();
        let mut rotten = 0;
        for (offset, mut bytes) in image_blocks(&*fast) {
            if known.contains(&bytes[..]) && bytes.iter().any(|&byte| byte != 0) {
                bytes[(offset / 7) as usize % BLOCK_BYTES] ^= 1 << (offset / 512 % 8);
                fast.write_at(offset, &bytes).unwrap();
                rotten += 1;
            }
        }
        rotten
    }
}

fn fallbacks(db: &Db) -> u64 {
    db.stats().cache.unwrap().fallbacks
}

/// Reads through a rotten cache must come from the page file; returns how many did.
///
/// The number of cache reads depends on the clock and is not asserted.
fn unharmed(folder: &Folder, db: &Db, way: &str, read: impl FnOnce(&Db)) -> u64 {
    check(db, 1);
    folder.rot();
    let before = fallbacks(db);
    read(db);
    let stats = db.stats().cache.unwrap();
    assert!(stats.out_of_service.is_none() && stats.damaged >= stats.fallbacks, "{way}: {stats:?}");
    check(db, 1);
    stats.fallbacks - before
}

#[test]
fn a_bad_byte_in_the_cache_costs_a_read_of_the_page_file_and_no_more() {
    let folder = Folder::new();
    let db = folder.open("cache");
    fill(&db, 1);
    db.checkpoint().unwrap();
    let all = |db: &Db| {
        let table = db.open_table("t").unwrap();
        let values = table.range::<&[u8]>(..).map(|entry| entry.unwrap().1);
        assert_eq!(values.filter(|value| value[..] == [1; 1000]).count(), KEYS as usize);
    };
    let mut found = unharmed(&folder, &db, "one by one", |db| drop(check(db, 1)));
    found += unharmed(&folder, &db, "together", |db| {
        let table = db.open_table("t").unwrap();
        for keys in (0..KEYS).map(u32::to_be_bytes).collect::<Vec<_>>().chunks(40) {
            let values = table.get_many(keys).unwrap();
            assert!(values.into_iter().all(|value| value.unwrap()[..] == [1; 1000]));
        }
    });
    found += unharmed(&folder, &db, "ahead", all);
    found += unharmed(&folder, &db, "to be written", |db| fill(db, 1));
    assert!(found > 0, "nothing rotten was read");
    // These read the page file at once.
    folder.rot();
    assert!(db.verify().unwrap().is_ok());
    let copy = Folder::new();
    db.backup_to(&*copy.slow).unwrap();
    let table = db.open_table("t").unwrap();
    for key in (0..KEYS).step_by(4) {
        assert!(table.delete(key.to_be_bytes()).unwrap());
    }
    db.compact().unwrap();
    assert_eq!(table.range::<&[u8]>(..).filter(|entry| entry.is_ok()).count(), (KEYS - KEYS / 4) as usize);
    assert!(db.verify().unwrap().is_ok());
}

#[test]
fn large_pages_and_values_are_unharmed_by_bad_bytes_in_the_cache() {
    let folder = Folder::new();
    let fast = Arc::clone(&folder.fast) as Arc<dyn Directory>;
    let cache: Cache = "file:cache,16MiB".parse().unwrap();
    let builder = folder.builder().dram(4 << 20).page_size(16 << 10).compression(crate::Compression::Lz4);
    let db = builder.cache_directory(fast).cache(cache).open("").unwrap();
    let (small, large) = (db.create_table("small").unwrap(), db.create_table("large").unwrap());
    let value =
        |key: u32, bytes: usize| (0..bytes).map(|at| (at as u32 / 3 * (key + 7)) as u8).collect::<Vec<_>>();
    for key in 0..3000_u32 {
        small.put(key.to_be_bytes(), value(key, 700)).unwrap();
        if key % 50 == 0 {
            large.put(key.to_be_bytes(), value(key, 90_000)).unwrap();
        }
    }
    db.checkpoint().unwrap();
    let read = || {
        for key in 0..3000_u32 {
            assert_eq!(small.get(key.to_be_bytes()).unwrap().unwrap(), value(key, 700));
            if key % 50 == 0 {
                assert_eq!(large.get(key.to_be_bytes()).unwrap().unwrap(), value(key, 90_000));
            }
        }
    };
    read();
    read();
    assert!(folder.rot() > 0);
    read();
    assert!(fallbacks(&db) > 0, "{:?}", db.stats().cache);
    assert!(db.verify().unwrap().is_ok());
}

#[test]
fn damage_of_the_page_file_below_a_cached_page_is_found_by_verification() {
    let folder = Folder::new();
    let db = folder.open("cache");
    fill(&db, 1);
    db.checkpoint().unwrap();
    check(&db, 1);
    let pages = folder.slow.open("pages.terrace", OpenMode::Write).unwrap();
    let wanted = [1; 900];
    let (offset, mut bytes) = image_blocks(&*pages)
        .filter(|(_, bytes)| bytes.windows(900).any(|part| *part == wanted))
        .last()
        .unwrap();
    bytes[2000] ^= 1;
    pages.write_at(offset, &bytes).unwrap();
    assert!(!db.verify().unwrap().is_ok());
}

#[test]
#[should_panic(expected = "Corrupt")]
fn catches_believe_cache() {
    struct Planted;
    impl Drop for Planted {
        fn drop(&mut self) {
            plant(None);
        }
    }
    let folder = Folder::new();
    let db = folder.open("cache");
    fill(&db, 1);
    check(&db, 1);
    folder.rot();
    let _planted = Planted;
    plant(Some(Bug::BelieveCache));
    let table = db.open_table("t").unwrap();
    (0..KEYS).for_each(|key| drop(table.get(key.to_be_bytes()).unwrap()));
}

#[test]
fn a_page_of_several_blocks_is_cached_wholly_or_not_at_all() {
    let folder = Folder::new();
    let fast = Arc::clone(&folder.fast) as Arc<dyn Directory>;
    let cache = "file:cache,16MiB".parse::<Cache>().unwrap().policy("probability:0.3+lru").unwrap();
    let builder = folder.builder().dram(4 << 20).page_size(16 << 10).cache_directory(fast);
    let db = builder.cache(cache).open("").unwrap();
    fill(&db, 1);
    db.checkpoint().unwrap();
    let first = check(&db, 1);
    let stats = check(&db, 1).since(&first);
    assert!(stats.requests_whole > 20 && stats.requests_missed > 20, "{stats:?}");
    // The cache may stand aside during a request, once or twice. Block-wise reads would make most
    // requests partial.
    assert!(50 * stats.requests_part <= stats.requests_whole, "{stats:?}");
    let text = db.stats().prometheus(&[]);
    for name in ["terrace_cache_requests_total{cached=\"all\"}", "terrace_cache_fallbacks_total 0"] {
        assert!(text.contains(name), "{name}");
    }
}
