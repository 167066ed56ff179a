//! A middle tier whose file outlives the process: what another open finds in it.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use terrace::{
    Backend, Builder, Db, Durability, Error, MemoryDirectory, Mode, PersistentStats, Profile, Time,
    VirtualTime,
};
use terrace_io::{Pattern, SimulatedMemory};

use super::kill::shared_memory;

const KEYS: u32 = 2000;
const MEBIBYTE: u64 = 1 << 20;

struct Home {
    _folders: [tempfile::TempDir; 2],
    database: PathBuf,
    tier: PathBuf,
}

impl Home {
    fn new() -> Home {
        let (folder, shared) = (tempfile::tempdir().unwrap(), shared_memory());
        let (database, tier) = (folder.path().join("db"), shared.path().join("tier"));
        Home { _folders: [folder, shared], database, tier }
    }

    fn builder(&self) -> Builder {
        Db::builder().dram(2 << 20).page_size(4096).mode(Mode::Inline).backend(Backend::Frames)
    }

    fn with(&self, bytes: u64) -> Builder {
        let middle = format!("shm:{},{bytes}B", self.tier.display());
        self.builder().middle(middle.parse().unwrap()).policy("0,0,1,1".parse().unwrap())
    }

    fn open(&self) -> Db {
        self.with(8 * MEBIBYTE).open(&self.database).unwrap()
    }

    /// A database whose pages are in the tier, closed.
    fn filled() -> Home {
        let home = Home::new();
        fill(&home.open(), 1);
        home
    }
}

fn value(key: u32, round: u32) -> Vec<u8> {
    let mut value = (key * 7 + round).to_le_bytes().to_vec();
    value.resize(600, round as u8);
    value
}

fn fill(db: &Db, round: u32) {
    let table = db.open_or_create_table("t").unwrap();
    (0..KEYS).for_each(|key| table.put(key.to_be_bytes(), value(key, round)).unwrap());
}

fn check(db: &Db, round: u32) {
    let table = db.open_table("t").unwrap();
    for key in 0..KEYS {
        assert_eq!(table.get(key.to_be_bytes()).unwrap(), Some(value(key, round)), "{key}");
    }
    assert_eq!(db.verify().unwrap().errors, []);
}

fn persistent(db: &Db) -> PersistentStats {
    db.stats().middle.unwrap().persistent.expect("the tier is persistent")
}

fn misses(db: &Db) -> u64 {
    db.stats().middle.unwrap().migrations.store_to_middle
}

#[test]
fn pages_are_where_they_were_after_a_restart() {
    let home = Home::filled();
    assert_eq!(std::fs::metadata(&home.tier).unwrap().permissions().mode() & 0o777, 0o600);
    for round in 1..4 {
        let db = home.open();
        let before = persistent(&db);
        assert!(before.adopted > 200, "{before:?}");
        check(&db, round);
        assert_eq!(misses(&db), 0, "no page comes from the store");
        fill(&db, round + 1);
        assert!(persistent(&db).unseals > 100, "{:?}", persistent(&db));
    }
}

#[test]
fn a_database_that_was_open_without_its_tier_starts_cold() {
    let home = Home::filled();
    fill(&home.builder().no_middle().open(&home.database).unwrap(), 2);
    let db = home.open();
    let stats = persistent(&db);
    assert!(stats.adopted == 0 && stats.dropped_life > 200, "{stats:?}");
    check(&db, 2);
    drop(db);
    let db = home.open();
    assert!(persistent(&db).adopted > 200);
    check(&db, 2);
}

#[test]
fn another_size_keeps_the_frames_that_fit() {
    let home = Home::filled();
    let all = persistent(&home.open()).adopted;
    assert!(all > 300, "{all} frames");
    let mebibytes = [(16, all..=all), (1, 100..=256), (8, 100..=256), (8, all..=2048)];
    for (round, (size, fit)) in (1..).zip(mebibytes) {
        let bytes = size * MEBIBYTE;
        let db = home.with(bytes).open(&home.database).unwrap();
        let stats = persistent(&db);
        assert!(fit.contains(&stats.adopted), "{size} MiB: {stats:?}");
        assert_eq!(db.stats().middle.unwrap().capacity_bytes, bytes);
        check(&db, round);
        fill(&db, round + 1);
        drop(db);
        assert_eq!(std::fs::metadata(&home.tier).unwrap().len(), bytes + 2 * MEBIBYTE);
    }
}

/// Such tiers have two groups of headers and bodies.
#[test]
fn tiers_of_more_than_32256_frames_keep_them_too() {
    let home = Home::new();
    let open = |mebibytes: u64| {
        let builder = home.with(mebibytes * MEBIBYTE).dram(8 << 20).durability(Durability::Buffered);
        builder.open(&home.database).unwrap()
    };
    let large = |key: u32| vec![key as u8; 2500];
    let put = |db: &Db, keys: std::ops::Range<u32>| {
        let table = db.open_or_create_table("large").unwrap();
        keys.for_each(|key| table.put(key.to_be_bytes(), large(key)).unwrap());
    };
    // A page has one such record.
    put(&open(120), 0..20_000);
    let db = open(136);
    assert!(persistent(&db).adopted > 19_000, "{:?}", persistent(&db));
    put(&db, 20_000..34_000);
    drop(db);
    for (mebibytes, least, most) in
        [(136, 32_300, 34_816), (129, 32_200, 33_024), (20, 4000, 5120), (136, 4000, 5120)]
    {
        let db = open(mebibytes);
        let stats = persistent(&db);
        assert!((least..=most).contains(&stats.adopted), "{mebibytes} MiB: {stats:?}");
        // Others would take frames.
        let table = db.open_table("large").unwrap();
        for key in (0..34_000u32).step_by(if mebibytes == 20 { 997 } else { 31 }) {
            assert_eq!(table.get(key.to_be_bytes()).unwrap(), Some(large(key)), "{key}");
        }
    }
}

#[test]
fn damaged_files_start_cold_or_lose_the_damaged_frames() {
    let whole = Home::filled();
    let bytes = std::fs::read(&whole.tier).unwrap();
    let headers = 4096..4096 + 2048 * 64;
    let bodies = 2 << 20;
    type Damage<'a> = (&'a str, Box<dyn Fn(&mut Vec<u8>)>, fn(PersistentStats) -> bool);
    let cold: fn(PersistentStats) -> bool = |stats| stats.adopted == 0;
    let damages: [Damage<'_>; 8] = [
        ("identity", Box::new(|file| file[40] ^= 1), cold),
        ("version", Box::new(|file| file[8] = 9), cold),
        ("cut off", Box::new(|file| file.truncate(1 << 20)), cold),
        ("cut off within a page", Box::new(|file| file.truncate((1 << 20) + 700)), cold),
        // As after a power cut, while the tier gets another size.
        ("longer", Box::new(|file| file.extend([0; 8192])), |stats| stats.adopted > 200),
        ("no byte is left", Box::new(|file| file.fill(0)), cold),
        (
            "headers",
            Box::new(move |file| {
                file[headers.clone()].chunks_exact_mut(64).step_by(2).for_each(|line| line[9] ^= 4)
            }),
            |stats| stats.adopted > 50 && stats.dropped_header > 50,
        ),
        (
            "bodies",
            Box::new(move |file| {
                file[bodies..].chunks_exact_mut(4096).step_by(2).for_each(|page| page[900] ^= 4)
            }),
            |stats| stats.adopted > 200 && stats.dropped_body < 20,
        ),
    ];
    for (what, damage, is_right) in damages {
        let home = Home::filled();
        let mut file = bytes.clone();
        // Each database has its own UUID, so its own tier is damaged.
        file.copy_from_slice(&std::fs::read(&home.tier).unwrap());
        damage(&mut file);
        std::fs::write(&home.tier, &file).unwrap();
        let db = home.open();
        assert!(is_right(persistent(&db)), "{what}: {:?}", persistent(&db));
        check(&db, 1);
        if what == "bodies" {
            assert!(persistent(&db).dropped_body > 50, "{:?}", persistent(&db));
        }
        fill(&db, 2);
        drop(db);
        check(&home.open(), 2);
    }
}

#[test]
fn a_file_that_is_no_tier_stays_as_it_is() {
    for content in [&b"a letter to somebody"[..], &[7; 4096], &[7; 10 << 20], b""] {
        let home = Home::new();
        std::fs::write(&home.tier, content).unwrap();
        let db = home.open();
        fill(&db, 1);
        check(&db, 1);
        assert_eq!(db.stats().middle.unwrap().persistent.is_some(), content.is_empty());
        drop(db);
        if !content.is_empty() {
            assert_eq!(std::fs::read(&home.tier).unwrap(), content);
        }
    }
}

#[test]
fn the_tier_of_another_database_is_not_believed() {
    let (first, second) = (Home::filled(), Home::filled());
    std::fs::copy(&first.tier, &second.tier).unwrap();
    let db = second.open();
    assert_eq!(persistent(&db).adopted, 0);
    check(&db, 1);
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for file in ["pages.terrace", "log.terrace"] {
        std::fs::copy(from.join(file), to.join(file)).unwrap();
    }
}

/// Copies count the same epochs, under the same UUID.
#[test]
fn copies_of_a_database_do_not_believe_each_others_tier() {
    let home = Home::filled();
    let other = home.database.with_extension("copy");
    copy(&home.database, &other);
    // The copy takes the tier along, and writes.
    let db = home.with(8 * MEBIBYTE).open(&other).unwrap();
    assert!(persistent(&db).adopted > 200, "as far as they go they are equal");
    fill(&db, 2);
    drop(db);
    let db = home.open();
    assert_eq!(persistent(&db).adopted, 0, "the tier is the copy's now");
    check(&db, 1);
    fill(&db, 3);
    drop(db);
    // Old files of the database are put back, with the newer tier.
    let old = home.database.with_extension("old");
    copy(&home.database, &old);
    fill(&home.open(), 4);
    copy(&old, &home.database);
    let db = home.open();
    assert_eq!(persistent(&db).adopted, 0);
    check(&db, 3);
    drop(db);
    // And an old tier, with the newer database.
    let tier = std::fs::read(&home.tier).unwrap();
    fill(&home.open(), 5);
    std::fs::write(&home.tier, tier).unwrap();
    let db = home.open();
    assert_eq!(persistent(&db).adopted, 0);
    check(&db, 5);
}

#[test]
fn a_tier_in_use_or_of_the_wrong_memory_is_refused_by_name() {
    let home = Home::filled();
    let db = home.open();
    let other = home.with(8 * MEBIBYTE).open(home.database.with_extension("other"));
    let error = other.unwrap_err();
    assert!(matches!(error, Error::Busy { .. }) && error.to_string().contains("tier"), "{error}");
    drop(db);
    let refused = |kind: &str, file: &Path, backend| {
        let middle = format!("{kind}:{},8MiB", file.display());
        let builder = home.builder().middle(middle.parse().unwrap()).backend(backend);
        builder.open(&home.database).unwrap_err().to_string()
    };
    let new = home.tier.with_extension("new");
    let error = refused("pmem", &new, Backend::Frames);
    assert!(error.contains("power cut") && error.contains("new"), "{error}");
    assert!(!new.exists(), "it was of no use");
    let error = refused("shm", &new, Backend::Mapped);
    assert!(error.contains("needs the back end frames"), "{error}");
    let error = refused("shm", Path::new("/no such folder/tier"), Backend::Frames);
    assert!(error.contains("/no such folder/tier"), "{error}");
    check(&home.open(), 1);
}

#[test]
fn readers_and_backups_leave_the_tier_alone() {
    let home = Home::filled();
    let before = std::fs::read(&home.tier).unwrap();
    let reader = home.with(8 * MEBIBYTE).read_only(true).open(&home.database).unwrap();
    check(&reader, 1);
    assert_eq!(reader.stats().middle.unwrap().persistent, None);
    drop(reader);
    assert!(std::fs::read(&home.tier).unwrap() == before);
    assert!(persistent(&home.open()).adopted > 200);
}

#[test]
fn a_persistent_profile_takes_the_same_path_and_is_charged() {
    let directory = std::sync::Arc::new(MemoryDirectory::new());
    let time = std::sync::Arc::new(VirtualTime::new(1));
    let open = |time: &std::sync::Arc<VirtualTime>| {
        let builder = Db::builder().dram(2 << 20).page_size(4096).mode(Mode::Inline).backend(Backend::Frames);
        let builder =
            builder.middle("simulated:optane,8MiB".parse().unwrap()).policy("0,0,1,1".parse().unwrap());
        let builder = builder.simulated_time(Time::Virtual(std::sync::Arc::clone(time)));
        builder.directory(directory.clone()).open("").unwrap()
    };
    fill(&open(&time), 1);
    let db = open(&time);
    assert!(persistent(&db).adopted > 200, "{:?}", persistent(&db));
    check(&db, 1);
    let before = (time.elapsed_ns(), persistent(&db).unseals);
    let table = db.open_table("t").unwrap();
    table.put(0u32.to_be_bytes(), value(0, 2)).unwrap();
    assert!(persistent(&db).unseals > before.1 && time.elapsed_ns() > before.0 + 100);
}

/// Headers go to the memory twice, once before they are read. Bodies are compared at their first
/// access.
#[test]
fn an_open_is_charged_for_headers_and_first_accesses_for_bodies() {
    const LINE_NS: u64 = 1000;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("slow.toml");
    std::fs::write(&file, format!("base = 'optane'\nname = 'slow'\nwrite_back_ns = {LINE_NS}\n")).unwrap();
    let directory = std::sync::Arc::new(MemoryDirectory::new());
    let time = std::sync::Arc::new(VirtualTime::new(1));
    let open = || {
        let builder = Db::builder().dram(2 << 20).page_size(4096).mode(Mode::Inline).backend(Backend::Frames);
        let builder = builder.middle(format!("simulated:{},8MiB", file.display()).parse().unwrap());
        let builder = builder.policy("0,0,1,1".parse().unwrap());
        let builder = builder.simulated_time(Time::Virtual(std::sync::Arc::clone(&time)));
        builder.directory(directory.clone()).open("").unwrap()
    };
    fill(&open(), 1);
    let before = time.elapsed_ns();
    let db = open();
    let (opened, adopted, frames) =
        (time.elapsed_ns() - before, persistent(&db).adopted, db.stats().middle.unwrap().frames);
    assert!(adopted > 200 && opened >= 2 * frames * LINE_NS, "{opened} ns for {frames} frames");
    let table = db.open_table("t").unwrap();
    let pass = || {
        let before = time.elapsed_ns();
        for key in 0..KEYS {
            assert_eq!(table.get(key.to_be_bytes()).unwrap(), Some(value(key, 1)), "{key}");
        }
        time.elapsed_ns() - before
    };
    let (first, second) = (pass(), pass());
    // A core takes 248 ns for each, and a few were read by the open.
    assert!(first >= second + (adopted - 10) * 240, "{first} and {second} ns, {adopted} frames");
}

#[test]
fn memory_mode_is_volatile() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mode.toml");
    std::fs::write(&file, "base = 'optane'\nname = 'mode'\ndram_cache_bytes = 1048576\n").unwrap();
    let builder = Db::builder().dram(2 << 20).page_size(4096).mode(Mode::Inline).backend(Backend::Frames);
    let builder = builder.middle(format!("simulated:{},8MiB", file.display()).parse().unwrap());
    let db = builder.directory(std::sync::Arc::new(MemoryDirectory::new())).open("").unwrap();
    assert_eq!(db.stats().middle.unwrap().persistent, None);
}

/// Virtual nanoseconds of a run over `profile` with that many writes in a hundred operations, and
/// its statistics. The tier holds most pages, as in Spitfire's Figure 5.
fn virtual_run(profile: &str, writes: u32) -> (u64, Option<PersistentStats>) {
    const OPERATIONS: u32 = 60_000;
    const RECORDS: u32 = 8000;
    let time = std::sync::Arc::new(VirtualTime::new(1));
    let builder = Db::builder().dram(2 << 20).page_size(4096).mode(Mode::Inline).backend(Backend::Frames);
    let builder = builder.middle(format!("simulated:{profile},8MiB").parse().unwrap());
    let builder = builder.policy("lazy".parse().unwrap()).durability(Durability::Buffered);
    let builder = builder.simulated_time(Time::Virtual(std::sync::Arc::clone(&time))).seed(7);
    let db = builder.directory(std::sync::Arc::new(MemoryDirectory::new())).open("").unwrap();
    let table = db.create_table("t").unwrap();
    (0..RECORDS).for_each(|key| table.put(key.to_be_bytes(), value(key, 0)).unwrap());
    let mut random = SmallRng::seed_from_u64(7);
    let before = time.elapsed_ns();
    for _ in 0..OPERATIONS {
        // Skewed: half of the operations go to an eighth of the keys.
        let share: f64 = random.random();
        let key = ((share.powi(3) * f64::from(RECORDS)) as u32).wrapping_mul(5) % RECORDS;
        match random.random_range(0..100) < writes {
            true => table.put(key.to_be_bytes(), value(key, 1)).unwrap(),
            false => _ = table.get(key.to_be_bytes()).unwrap().unwrap(),
        }
    }
    (time.elapsed_ns() - before, db.stats().middle.unwrap().persistent)
}

/// The balanced and the write-heavy mix of Spitfire (YCSB-BA, YCSB-WH).
#[test]
fn unsealing_costs_little_of_mixes_with_writes() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("volatile.toml");
    std::fs::write(&file, "base = 'optane'\nname = 'volatile'\npersistent = false\n").unwrap();
    let memory = SimulatedMemory::new(
        Profile::named("optane").unwrap(),
        Time::Virtual(std::sync::Arc::new(VirtualTime::new(1))),
    );
    let one = memory.write(0, 64, Pattern::Random) + memory.write_back(0, 64) + memory.fence();
    for (name, writes) in [("BA", 50), ("WH", 90)] {
        let (volatile, none) = virtual_run(&file.display().to_string(), writes);
        let (persistent, stats) = virtual_run("optane", writes);
        let stats = stats.unwrap();
        assert_eq!(none, None);
        assert!(stats.unseals > 100, "{stats:?}");
        let unsealing = (stats.unseals * one) as f64 / persistent as f64;
        let all = persistent as f64 / volatile as f64 - 1.0;
        let (unsealing, all) = (unsealing * 100.0, all * 100.0);
        println!("{name}: unsealing {unsealing:.2} %, with sealing {all:.2} % ({stats:?})");
        assert!(unsealing <= 3.0, "{name}: {unsealing:.2} %");
    }
}
