//! Tests of files restored from copies: page file and log, the guard, the cache file.
//!
//! Reads come from the page file, and a cache that does not match it starts cold.

use super::*;
use terrace_io::{LockError, Sharing};

const DATABASE: [&str; 2] = ["pages.terrace", "log.terrace"];

/// Copies files of `from` into `to`.
fn put(from: &MemoryDirectory, to: &MemoryDirectory, names: &[&str]) {
    for name in names {
        let source = from.open(name, OpenMode::Read).unwrap();
        let mut bytes = AlignedBuffer::zeroed(source.len() as usize);
        source.read_at(0, &mut bytes).unwrap();
        if to.exists(name).unwrap() {
            to.remove(name).unwrap();
        }
        let target = to.open(name, OpenMode::CreateNew).unwrap();
        target.set_len(bytes.len() as u64).unwrap();
        target.write_at(0, &bytes).unwrap();
    }
}

impl Folder {
    fn copied(&self) -> Folder {
        let copy = Folder::new();
        put(&self.slow, &copy.slow, &DATABASE);
        put(&self.slow, &copy.slow, &[GUARD]);
        put(&self.fast, &copy.fast, &["cache"]);
        copy
    }

    /// A life in which every value becomes `round`, several times, so that blocks are reused.
    fn live(&self, round: u8) {
        let db = self.open("cache");
        fill(&db, round);
        fill(&db, round);
        check(&db, round);
        db.close().unwrap();
    }
}

fn lives() -> (Folder, Folder) {
    let folder = Folder::new();
    folder.live(1);
    let older = folder.copied();
    folder.live(2);
    (older, folder)
}

#[track_caller]
fn is_cold(folder: &Folder, round: u8) {
    let db = folder.open("cache");
    let stats = check(&db, round);
    assert!(db.stats().prometheus(&[]).contains("terrace_cache_cold_starts_total 1"));
    assert!(stats.cold.is_some() && (stats.kept, stats.damaged) == (0, 0), "{stats:?}");
}

#[test]
fn an_older_copy_of_the_caches_file_is_cold() {
    let (older, folder) = lives();
    put(&older.fast, &folder.fast, &["cache"]);
    is_cold(&folder, 2);
}

#[test]
fn an_older_copy_of_the_guard_makes_the_cache_cold() {
    let (older, folder) = lives();
    put(&older.slow, &folder.slow, &[GUARD]);
    is_cold(&folder, 2);
}

#[test]
fn older_copies_of_cache_and_guard_are_cold_before_a_newer_database() {
    let (older, folder) = lives();
    put(&older.slow, &folder.slow, &[GUARD]);
    put(&older.fast, &folder.fast, &["cache"]);
    is_cold(&folder, 2);
}

/// `cp -a copy db`, with the guard of the copy or without one.
#[test]
fn a_copy_of_a_database_beside_a_newer_cache_opens_with_that_empty() {
    for with_guard in [true, false] {
        let (older, folder) = lives();
        if !with_guard {
            older.slow.remove(GUARD).unwrap();
        }
        let put_back = Folder { fast: Arc::clone(&folder.fast), ..older };
        is_cold(&put_back, 1);
        // The database that used the cache last is unaffected.
        is_cold(&folder, 2);
    }
}

/// `cp -r a b`, then `b` uses the cache, then `a`.
#[test]
fn a_clone_that_used_the_cache_leaves_it_cold_for_the_original() {
    let folder = Folder::new();
    folder.live(1);
    let clone = Folder { fast: Arc::clone(&folder.fast), ..folder.copied() };
    clone.live(2);
    is_cold(&folder, 1);
}

fn page_file_put_back_alone() {
    let (older, folder) = lives();
    put(&older.slow, &folder.slow, &DATABASE);
    is_cold(&folder, 1);
}

#[test]
fn an_older_page_file_and_log_under_a_newer_guard_and_cache_find_it_cold() {
    page_file_put_back_alone();
}

#[test]
fn catches_step_untold() {
    crate::planted::plant(Some(Bug::StepUntold));
    let outcome = std::panic::catch_unwind(page_file_put_back_alone);
    crate::planted::plant(None);
    assert!(outcome.is_err(), "it must be noticed");
}

/// The volume of the database returns to a snapshot within a life; the cache is on another volume.
#[test]
fn a_snapshot_of_database_and_guard_within_a_life_finds_a_later_cache_cold() {
    let folder = Folder::new();
    let db = folder.open("cache");
    fill(&db, 1);
    db.checkpoint().unwrap();
    let snapshot = folder.copied();
    fill(&db, 2);
    fill(&db, 2);
    check(&db, 2);
    // As after a kill.
    let fast = folder.copied().fast;
    drop(db);
    is_cold(&Folder { fast, ..snapshot }, 1);
}

/// If all three are restored together, the cache stays warm.
#[test]
fn copies_of_one_time_are_warm_together() {
    let (older, folder) = lives();
    put(&older.slow, &folder.slow, &DATABASE);
    put(&older.slow, &folder.slow, &[GUARD]);
    put(&older.fast, &folder.fast, &["cache"]);
    let stats = check(&folder.open("cache"), 1);
    assert!(stats.cold.is_none() && stats.kept > 1000 && stats.damaged == 0, "{stats:?}");
}

#[test]
fn a_file_that_is_no_cache_is_refused_by_name_and_left_as_it_is() {
    let folder = Folder::new();
    folder.live(1);
    let other = Folder::new();
    put(&folder.slow, &other.fast, &["pages.terrace"]);
    let bytes = |name: &str| {
        let file = other.fast.open(name, OpenMode::Read).unwrap();
        let mut bytes = AlignedBuffer::zeroed(file.len() as usize);
        file.read_at(0, &mut bytes).unwrap();
        bytes
    };
    let before = bytes("pages.terrace");
    let fast = Arc::clone(&other.fast) as Arc<dyn Directory>;
    let cache: Cache = "file:pages.terrace,16MiB".parse().unwrap();
    // Refused at the second attempt too.
    for _ in 0..2 {
        let builder = other.builder().cache_directory(Arc::clone(&fast)).cache(cache.clone());
        let refused = builder.open("");
        assert!(
            matches!(&refused, Err(Error::Config(what)) if what.contains("pages.terrace") && what.contains("not a cache")),
            "{refused:?}"
        );
    }
    assert!(bytes("pages.terrace")[..] == before[..]);
    assert!(!other.fast.exists("pages.terrace.aside").unwrap());
}

/// A directory in memory that claims to be local or not.
#[derive(Debug)]
struct Local(Arc<MemoryDirectory>, bool);

impl Directory for Local {
    fn name(&self) -> String {
        self.0.name()
    }

    fn open(&self, file: &str, mode: OpenMode) -> io::Result<Arc<dyn BlockDevice>> {
        self.0.open(file, mode)
    }

    fn exists(&self, file: &str) -> io::Result<bool> {
        self.0.exists(file)
    }

    fn remove(&self, file: &str) -> io::Result<()> {
        self.0.remove(file)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.0.rename(from, to)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }

    fn is_local(&self) -> bool {
        self.1
    }

    fn lock(&self, file: &str) -> std::result::Result<Box<dyn Send + Sync>, LockError> {
        self.0.lock(file)
    }

    fn lock_existing(
        &self,
        file: &str,
        sharing: Sharing,
    ) -> std::result::Result<Box<dyn Send + Sync>, LockError> {
        self.0.lock_existing(file, sharing)
    }

    fn lock_owner(&self, file: &str) -> Option<u32> {
        self.0.lock_owner(file)
    }
}

fn dropped_after_a_kill(slow: bool, fast: bool, trust: CacheTrust) -> u64 {
    let folder = Folder::new();
    let open = |folder: &Folder| {
        let cache = "file:cache,16MiB".parse::<Cache>().unwrap().trust(trust);
        let builder = folder.builder().directory(Arc::new(Local(Arc::clone(&folder.slow), slow)));
        let fast = Arc::new(Local(Arc::clone(&folder.fast), fast));
        builder.cache_directory(fast).cache(cache).open("").unwrap()
    };
    let db = open(&folder);
    fill(&db, 1);
    db.checkpoint().unwrap();
    fill(&db, 2);
    let killed = folder.copied();
    drop(db);
    let stats = check(&open(&killed), 2);
    assert!(stats.cold.is_none() && stats.kept + stats.dropped > 1000 && stats.damaged == 0, "{stats:?}");
    stats.dropped
}

#[test]
fn a_cache_is_believed_as_far_as_it_was_synced_unless_both_devices_are_local() {
    let synced = dropped_after_a_kill(true, true, CacheTrust::Synced);
    assert!(synced > 100, "{synced}");
    assert_eq!(dropped_after_a_kill(true, true, CacheTrust::Auto), 0);
    assert!(dropped_after_a_kill(false, true, CacheTrust::Auto) > 100);
    assert!(dropped_after_a_kill(true, false, CacheTrust::Auto) > 100);
    assert_eq!(dropped_after_a_kill(false, false, CacheTrust::Written), 0);
}
