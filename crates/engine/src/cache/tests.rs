//! Tests of a database over a cache: warm after every open, never stale, and only slower after a
//! failure.

mod copies;
mod damage;

use std::sync::Arc;

use terrace_cache::Bypass;
use terrace_io::MemoryDirectory;

use super::*;
use crate::{Builder, CacheStats, Db, Mode};

/// A database in one directory, the fast device in another.
struct Folder {
    slow: Arc<MemoryDirectory>,
    fast: Arc<MemoryDirectory>,
}

const KEYS: u32 = 6000;

impl Folder {
    fn new() -> Folder {
        Folder { slow: Arc::new(MemoryDirectory::new()), fast: Arc::new(MemoryDirectory::new()) }
    }

    fn builder(&self) -> Builder {
        let directory = Arc::clone(&self.slow) as Arc<dyn Directory>;
        Db::builder().directory(directory).dram(2 << 20).log_max(1 << 20).mode(Mode::Inline).no_middle()
    }

    fn open(&self, name: &str) -> Db {
        let fast = Arc::clone(&self.fast) as Arc<dyn Directory>;
        let cache: Cache = format!("file:{name},16MiB").parse().unwrap();
        self.builder().cache_directory(fast).cache(cache).open("").unwrap()
    }
}

fn fill(db: &Db, round: u8) {
    let table = db.open_or_create_table("t").unwrap();
    for key in 0..KEYS {
        table.put(key.to_be_bytes(), vec![round; 1000]).unwrap();
    }
}

/// Reads all entries, which exceed the memory.
fn check(db: &Db, round: u8) -> CacheStats {
    let table = db.open_table("t").unwrap();
    for key in 0..KEYS {
        let value = table.get(key.to_be_bytes()).unwrap_or_else(|error| panic!("key {key}: {error}"));
        assert_eq!(value.unwrap(), vec![round; 1000], "key {key}");
    }
    db.stats().cache.unwrap()
}

#[test]
fn a_cache_is_warm_when_the_database_is_opened_again() {
    let folder = Folder::new();
    let db = folder.open("cache");
    fill(&db, 1);
    let table = db.open_table("t").unwrap();
    db.close().unwrap();
    // A remaining handle does not hold the cache file.
    let db = folder.open("cache");
    drop(table);
    let stats = check(&db, 1);
    assert!(stats.kept > 1000 && stats.dropped == 0 && stats.cold.is_none(), "{stats:?}");
    assert!(stats.hits > 10 * stats.misses, "{stats:?}");
    assert!(db.verify().unwrap().is_ok());
}

fn used_without_the_cache(meanwhile: impl FnOnce(&Folder)) -> CacheStats {
    let folder = Folder::new();
    let db = folder.open("cache");
    fill(&db, 1);
    check(&db, 1);
    db.close().unwrap();
    meanwhile(&folder);
    check(&folder.open("cache"), 2)
}

/// The cache still has old content of blocks that were rewritten since.
fn without_a_cache() -> CacheStats {
    let stats = used_without_the_cache(|folder| {
        let db = folder.builder().open("").unwrap();
        fill(&db, 3);
        fill(&db, 2);
        db.close().unwrap();
    });
    // The superblock would reveal it too, but it does not record a whole life.
    let why = stats.cold.clone().expect("it is cold");
    assert!(why.contains("was written without it since"), "the guard was not told: {why}");
    stats
}

#[test]
fn a_cache_that_was_left_out_or_replaced_is_cold() {
    without_a_cache();
    let stats = used_without_the_cache(|folder| {
        let db = folder.open("other");
        fill(&db, 2);
        db.close().unwrap();
    });
    assert!(stats.cold.unwrap().contains("another cache"));
}

#[test]
#[should_panic(expected = "the guard was not told")]
fn catches_cache_untold() {
    struct Planted;
    impl Drop for Planted {
        fn drop(&mut self) {
            crate::planted::plant(None);
        }
    }
    let _planted = Planted;
    crate::planted::plant(Some(Bug::CacheUntold));
    without_a_cache();
}

#[test]
fn a_restored_database_finds_no_cache_warm() {
    let folder = Folder::new();
    let db = folder.open("cache");
    fill(&db, 1);
    let (backup, restored) = (Arc::new(MemoryDirectory::new()), Folder::new());
    db.backup_to(&*backup).unwrap();
    db.close().unwrap();
    crate::Backup::open_in(&*backup).unwrap().restore_to(&*restored.slow).unwrap();
    let restored = Folder { fast: Arc::clone(&folder.fast), ..restored };
    let stats = check(&restored.open("cache"), 1);
    assert_eq!((stats.kept, stats.damaged), (0, 0));
}

#[test]
fn what_the_cleaner_moves_stays_cached_and_admits_nothing() {
    let folder = Folder::new();
    let db = folder.open("cache");
    fill(&db, 1);
    check(&db, 1);
    let table = db.open_table("t").unwrap();
    // Frees blocks all over the file until segments must be emptied.
    let mut round = 0_u32;
    while db.stats().cache.unwrap().relocations < 100 && round < 40 {
        for key in (0..KEYS).filter(|key| (key / 8 + round).is_multiple_of(3)) {
            table.put(key.to_be_bytes(), vec![1; 1000]).unwrap();
        }
        db.checkpoint().unwrap();
        round += 1;
    }
    let stats = db.stats();
    let cache = stats.cache.unwrap();
    assert!(cache.relocations >= 100, "{cache:?}");
    assert!(
        cache.relocations * 2 > stats.images_moved,
        "nearly all was cached: {} {cache:?}",
        stats.images_moved
    );
    check(&db, 1);
    db.close().unwrap();
    let stats = check(&folder.open("cache"), 1);
    assert!(stats.kept > 1000 && stats.damaged == 0, "{stats:?}");
}

#[test]
fn compaction_and_reading_leave_the_cache_right() {
    let folder = Folder::new();
    let db = folder.open("cache");
    fill(&db, 1);
    let table = db.open_table("t").unwrap();
    for key in (0..KEYS).filter(|key| key % 8 != 0) {
        table.delete(key.to_be_bytes()).unwrap();
    }
    db.compact().unwrap();
    for key in (0..KEYS).step_by(8) {
        assert!(table.get(key.to_be_bytes()).unwrap().is_some());
    }
    drop(table);
    db.close().unwrap();
    // A read-only open goes past the cache and leaves it alone.
    let db = folder.builder().read_only(true).cache("file:cache,16MiB".parse().unwrap()).open("").unwrap();
    assert!(db.stats().cache.is_none());
    drop(db);
    let db = folder.open("cache");
    assert!(db.stats().cache.unwrap().cold.is_none());
    assert!(db.verify().unwrap().is_ok());
}

#[test]
fn a_policy_that_remembers_more_takes_more_of_the_budget() {
    let per_block = |policy: &str| {
        let cache: Cache = "simulated:dram,16MiB".parse().unwrap();
        cache.policy(policy).unwrap().dram_bytes() / 4096
    };
    let rising = ["sieve", "arc", "lfu", "auto"].map(per_block);
    assert!(rising.is_sorted_by(|less, more| less < more), "{rising:?}");
    assert!(per_block("lru") <= 40 && per_block("nvcache") == per_block("small-bypass+obp+lfru"));
    assert!(per_block("frequency+lru") > per_block("obp+lru"));
    // The bytes are reported, and refused if they do not fit.
    let open = |dram, policy: &str| {
        let cache: Cache = "simulated:dram,16MiB".parse().unwrap();
        Folder::new().builder().dram(dram).cache(cache.policy(policy).unwrap()).open("")
    };
    let db = open(16 << 20, "lfu").unwrap();
    assert_eq!(db.stats().cache.unwrap().dram_bytes, 4096 * rising[2]);
    assert!(open(4 << 20, "sieve").is_ok());
    assert!(matches!(open(4 << 20, "auto"), Err(Error::Config(_))));
}

#[test]
fn every_block_that_missed_came_in_or_was_bypassed_for_a_reason() {
    let folder = Folder::new();
    let cache: Cache = "file:cache,1MiB".parse().unwrap();
    let cache = cache.policy("probability:0.5+sieve").unwrap();
    let db = folder.builder().cache_directory(Arc::clone(&folder.fast) as _).cache(cache).open("").unwrap();
    fill(&db, 1);
    let stats = check(&db, 1);
    let of = &stats.bypasses;
    let policy = of.policy;
    // Without writes of cached blocks.
    let missed = policy + of.no_slot + of.tail + of.doubt + of.aside + of.budget + of.out_of_service;
    let either = of.in_use + of.partial_write + of.write_around;
    let (looked, came) = (stats.misses + stats.write_misses, stats.admissions);
    assert!(policy > 100 && stats.write_misses > 100 && came > 100, "{stats:?}");
    assert!(came + missed <= looked && looked <= came + missed + either, "{stats:?}");
    // Each reason is in the text for Prometheus.
    let text = db.stats().prometheus(&[]);
    for reason in Bypass::ALL {
        assert!(text.contains(&format!("reason=\"{}\"", reason.name())), "{}", reason.name());
    }
    assert!(text.contains("terrace_cache_writes_total"));
}

#[test]
fn a_cache_in_use_and_impossible_settings_are_refused() {
    let folder = Folder::new();
    let _db = folder.open("cache");
    let other = Folder { fast: Arc::clone(&folder.fast), ..Folder::new() };
    let with =
        |cache: Cache| other.builder().cache_directory(Arc::clone(&other.fast) as _).cache(cache).open("");
    let cache = || "file:cache,16MiB".parse::<Cache>().unwrap();
    assert!(matches!(with(cache()), Err(Error::Busy { path, .. }) if path.contains("cache")));
    assert!(cache().policy("lruu").unwrap_err().to_string().contains("lruu"));
    for name in ["belady", "opencas", "memory-mode"] {
        let error = cache().policy(name).unwrap_err();
        assert!(matches!(&error, Error::Config(what) if what.contains(name)), "{error}");
    }
    assert_eq!("file:x,1.5MiB".parse::<Cache>().unwrap().bytes(), 3 << 19);
    // The index is part of the budget, which is too small for it.
    assert!(matches!(with("file:other,1GiB".parse().unwrap()), Err(Error::Config(_))));
    for (text, wrong) in [
        ("", "kind and a size"),
        ("file:cache", "kind and a size"),
        ("file:cache,10", "no room"),
        ("file:cache,64MB", "did you mean MiB"),
        ("file:cache,4095B", "no room"),
        ("file:,1MiB", "there is no cache"),
        ("numa:0,1MiB", "there is no cache"),
        ("simulated:drum,1MiB", "drum"),
    ] {
        let error = text.parse::<Cache>().unwrap_err();
        assert!(error.contains(wrong), "{text}: {error}");
    }
    assert_eq!(cache().to_string().parse(), Ok(cache()));
    // A profile from a file stays its file: another process would resolve the name differently.
    let profile = tempfile::tempdir().unwrap().keep().join("slow.toml");
    std::fs::write(&profile, "base = 'optane'\nname = 'optane'\nrandom_read_ns = 4000").unwrap();
    let slow: Cache = format!("simulated:{},1MiB", profile.display()).parse().unwrap();
    assert_eq!(slow.to_string().parse(), Ok(slow));
    std::fs::remove_dir_all(profile.parent().unwrap()).unwrap();
}

#[test]
fn files_that_are_not_there_are_told_apart_from_those_that_cannot_be_used() {
    let (folder, files) = (Folder::new(), tempfile::tempdir().unwrap());
    let path = |name: &str| files.path().join(name);
    let open = |path: PathBuf| folder.builder().cache(Cache::new(CacheKind::File(path), 4 << 20)).open("");
    assert!(matches!(open(path("none/cache")), Err(Error::Config(what)) if what.contains("none")));
    // A directory of that name holds the file.
    let db = open(files.path().into()).unwrap();
    fill(&db, 1);
    db.close().unwrap();
    let names: Vec<_> = std::fs::read_dir(files.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    let file = names.iter().find(|path| path.extension().is_some_and(|end| end == "cache")).unwrap();
    // A damaged cache file is neither used nor changed, and the database opens.
    std::fs::write(file, [7; 20_000]).unwrap();
    let db = open(files.path().into()).unwrap();
    assert!(check(&db, 1).out_of_service.is_some_and(|why| why.contains("not a cache")));
    fill(&db, 1);
    db.close().unwrap();
    assert!(std::fs::read(file).unwrap() == [7; 20_000]);
    std::fs::remove_file(path("").join(file).with_extension("cache.lock")).unwrap();
    assert_eq!(std::fs::read_dir(files.path()).unwrap().count(), 1);
    // The same holds for a foreign file in place of its lock.
    std::fs::remove_file(file).unwrap();
    let lock = path("").join(file).with_extension("cache.lock");
    std::fs::write(&lock, "mine").unwrap();
    let db = open(files.path().into()).unwrap();
    assert!(db.stats().cache.unwrap().out_of_service.is_some_and(|why| why.contains("lock")));
    db.close().unwrap();
    assert!(std::fs::read(&lock).unwrap() == b"mine");
    std::fs::remove_file(&lock).unwrap();
    std::fs::write(file, "").unwrap();
    // A directory in place of the file cannot be used: the database goes on without a cache.
    std::fs::remove_file(file).unwrap();
    std::fs::create_dir(file).unwrap();
    let db = open(files.path().into()).unwrap();
    let stats = check(&db, 1);
    assert!(stats.out_of_service.is_some() && stats.hits == 0, "{stats:?}");
    // Statistics explain every miss.
    let missed = stats.misses + stats.write_misses;
    assert!(missed > 0 && stats.bypasses.out_of_service == missed, "{stats:?}");
    db.close().unwrap();
}

#[test]
fn a_simulated_cache_is_new_every_time() {
    let folder = Folder::new();
    for _ in 0..2 {
        let db = folder.builder().cache("simulated:dram,16MiB".parse().unwrap()).open("").unwrap();
        fill(&db, 1);
        let stats = check(&db, 1);
        assert!(stats.kept == 0 && stats.hits + stats.below > 0, "{stats:?}");
        db.close().unwrap();
    }
}

/// Two workers read pages that only the cache has. Its reads slow down with writes to a middle tier
/// in the same modules.
#[test]
fn a_simulated_cache_and_middle_tier_of_one_name_share_the_modules() {
    let elapsed = |middle: &str, cache: &str| {
        let slow = |name: &str| {
            let keys = ["sequential_read", "random_read", "sequential_write", "random_write"];
            let text = keys.map(|key| format!("{key}_gb_s = 0.1\n")).concat();
            Profile::parse(&format!("base = 'optane'\n{text}"), name).unwrap()
        };
        let time = Arc::new(VirtualTime::new(2));
        time.enter(0);
        let middle = crate::Middle::new(crate::MiddleKind::Simulated(slow(middle)), 2 << 20);
        let builder = Folder::new().builder().middle(middle).policy("0,0,1,1".parse().unwrap());
        let builder = builder.simulated_time(Time::Virtual(Arc::clone(&time)));
        let cache = Cache::new(CacheKind::Simulated(slow(cache)), 16 << 20);
        let db = builder.cache(cache).open("").unwrap();
        fill(&db, 1);
        let (table, before) = (db.open_table("t").unwrap(), time.elapsed_ns());
        time.spend(1, before);
        for turn in 0..2000 {
            time.enter(time.next());
            table.get((turn * 7919 % KEYS).to_be_bytes()).unwrap().unwrap();
        }
        assert!(db.stats().cache.unwrap().hits > 0);
        time.elapsed_ns() - before
    };
    let (shared, apart) = (elapsed("modules", "modules"), elapsed("modules", "others"));
    assert!(shared > apart * 11 / 10, "{shared} {apart}");
}

#[test]
fn a_cache_has_no_memory_mode() {
    let profile = Profile::named("optane").unwrap().with_dram_cache_bytes(1 << 20);
    let cache = Cache::new(CacheKind::Simulated(profile), 16 << 20);
    let refused = Folder::new().builder().cache(cache).open("");
    assert!(matches!(refused, Err(Error::Config(what)) if what.contains("optane")));
}
