//! Device failures: the fast one costs only speed, errors of the slow one are passed on.
//!
//! A file that is not the cache is never used.

use super::*;
use crate::{Bypass, CacheError, CacheStats, Start};
use terrace_io::{CallKind, Directory, FaultPlan, MemoryDirectory, OpenMode, Read, SimulatedDisk, Write};

const BLOCKS: u64 = 40;

struct Devices {
    slow_disk: SimulatedDisk,
    fast_disk: SimulatedDisk,
    slow: Arc<dyn BlockDevice>,
    fast: Arc<dyn BlockDevice>,
}

impl Devices {
    fn new(seed: u64) -> Self {
        let (slow_disk, fast_disk) = (SimulatedDisk::new(seed), SimulatedDisk::new(seed + 1));
        let slow = slow_disk.open("slow", OpenMode::CreateNew).unwrap();
        slow.set_len(BLOCKS * BLOCK as u64).unwrap();
        let fast = fast_disk.open("fast", OpenMode::CreateNew).unwrap();
        Self { slow_disk, fast_disk, slow, fast }
    }

    fn open(&self) -> Cached {
        let guard = match self.slow_disk.exists("guard").unwrap() {
            true => self.slow_disk.open("guard", OpenMode::Write),
            false => self.slow_disk.open("guard", OpenMode::CreateNew),
        };
        let config = timeless(10).guard(guard.unwrap()).power_cycle(Some([1; 16]));
        Cached::open(Arc::clone(&self.slow), Arc::clone(&self.fast), config).unwrap()
    }

    fn work(&self, cached: &Cached, seed: u64) {
        let mut random = Random(seed);
        for step in 0..150 {
            let offset = random.skewed(BLOCKS) * BLOCK as u64;
            match random.below(8) {
                0 | 1 => cached.write_at(offset, &filled(BLOCK, step as u8)).unwrap(),
                2 => cached.sync().unwrap(),
                3 => cached.free(offset, BLOCK as u64),
                _ => {
                    let (served, truth) = (read(cached, offset, BLOCK), read(&*self.slow, offset, BLOCK));
                    assert!(served[..] == truth[..], "seed {seed} step {step}");
                }
            }
        }
    }
}

#[test]
fn a_fast_device_that_fails_at_any_call_costs_nothing_but_speed() {
    let calls = {
        let devices = Devices::new(1);
        devices.work(&devices.open(), 1);
        devices.fast_disk.calls()
    };
    let (mut given_up, mut in_service) = (0, 0);
    for call in 1..calls {
        for (variant, from_then_on) in [(0, false), (1, true)] {
            let devices = Devices::new(1);
            devices.fast_disk.fail(FaultPlan {
                from_then_on,
                short: call % 2 == 0,
                ..FaultPlan::once(CallKind::Any, call, [libc::EIO, libc::ENOSPC][(call % 3 == 0) as usize])
            });
            let cached = devices.open();
            devices.work(&cached, 1);
            match cached.stats().out_of_service {
                Some(reason) => {
                    assert!(reason.contains("failed"), "{reason}");
                    given_up += 1;
                }
                None => in_service += 1,
            }
            assert!(cached.stats().errors > 0, "call {call} variant {variant}");
            cached.close().unwrap();
            drop(cached);
            // The device returns, with the content of its failure.
            devices.fast_disk.mend();
            let cached = devices.open();
            devices.work(&cached, 2);
            assert_eq!(cached.stats().out_of_service, None);
        }
    }
    assert!(given_up > 10 && in_service > 10, "{given_up} {in_service}");
}

#[test]
fn a_fast_device_that_vanishes_is_bypassed_with_its_reason() {
    let devices = Devices::new(3);
    let cached = devices.open();
    devices.work(&cached, 3);
    devices.fast_disk.crash_at(devices.fast_disk.calls() + 1);
    devices.work(&cached, 4);
    let reason = cached.stats().out_of_service.expect("out of service");
    assert!(reason.contains("power lost"), "{reason}");
    // All bypasses now count, block by block, with their reasons.
    let counts = |stats: &CacheStats| {
        (
            stats.misses,
            stats.write_misses,
            stats.bypasses.of(Bypass::OutOfService),
            Bypass::ALL.map(|reason| stats.bypasses.of(reason)).iter().sum(),
        )
    };
    let (misses, write_misses, unserved, bypasses): (u64, u64, u64, u64) = counts(&cached.stats());
    let half = BLOCK as u64 / 2;
    read(&cached, half, 3 * BLOCK);
    cached.write_batch(&[Write::new(0, &filled(BLOCK, 1)), Write::new(half, &filled(BLOCK, 1))]).unwrap();
    let (mut first, mut second) = (filled(BLOCK, 0), filled(BLOCK, 0));
    cached.read_batch(&mut [Read::new(0, &mut first), Read::new(u64::MAX - half, &mut second)]);
    let expected = (misses + 5, write_misses + 3, unserved + 8, bypasses + 8);
    assert_eq!(counts(&cached.stats()), expected, "the second read is no read of a block");
}

#[test]
fn a_full_fast_device_leaves_the_cache_out_of_service() {
    let devices = Devices::new(4);
    devices.fast_disk.set_capacity(100 * 4096);
    let cached = devices.open();
    devices.work(&cached, 4);
    let reason = cached.stats().out_of_service.expect("out of service");
    assert!(reason.contains("formatting"), "{reason}");
}

#[test]
fn errors_of_the_slow_device_are_passed_on_unchanged() {
    let devices = Devices::new(5);
    let cached = devices.open();
    read(&cached, 0, BLOCK);
    for kind in [CallKind::Read, CallKind::Write, CallKind::Sync, CallKind::SetLen] {
        devices.slow_disk.fail(FaultPlan::from_then_on(kind, 1, libc::EREMOTEIO));
    }
    let mut buffer = filled(BLOCK, 0);
    let block = 7 * BLOCK as u64;
    let errors = [
        cached.read_at(block, &mut buffer),
        cached.write_at(block, &buffer),
        cached.write_batch(&[terrace_io::Write::new(block, &buffer)]),
        cached.set_len(0),
        cached.sync(),
    ];
    for error in errors {
        assert_eq!(error.unwrap_err().raw_os_error(), Some(libc::EREMOTEIO));
    }
    assert!(matches!(cached.close(), Err(CacheError::Slow { .. })));
    devices.slow_disk.mend();
    devices.work(&cached, 5);
    assert_eq!(cached.stats().out_of_service, None, "it is not the fast device's fault");
}

#[test]
fn a_block_whose_fetch_fails_is_fetched_by_the_next_reader() {
    let devices = Devices::new(6);
    let cached = devices.open();
    devices.slow_disk.fail(FaultPlan::once(CallKind::Read, 1, libc::EIO));
    let mut buffer = filled(BLOCK, 0);
    assert!(cached.read_at(0, &mut buffer).is_err());
    assert!(cached.read_at(0, &mut buffer).is_ok() && cached.read_at(0, &mut buffer).is_ok());
    assert_eq!((cached.stats().hits, cached.stats().misses), (1, 2));
}

#[test]
fn a_block_whose_neighbour_cannot_be_read_is_not_refused() {
    let devices = Devices::new(7);
    let cached = devices.open();
    devices.slow_disk.fail(FaultPlan::once(CallKind::Read, 1, libc::EIO));
    let mut part = filled(512, 0xee);
    cached.read_at(512, &mut part).unwrap();
    assert!(part.iter().all(|&byte| byte == 0));
}

#[test]
fn after_a_failed_sync_nothing_of_its_slots_is_cached() {
    let devices = Devices::new(8);
    let cached = devices.open();
    cached.write_at(0, &filled(BLOCK, 1)).unwrap();
    devices.slow_disk.fail(FaultPlan::once(CallKind::Sync, 1, libc::EIO));
    assert!(cached.sync().is_err());
    cached.sync().unwrap();
    for _ in 0..3 {
        read(&cached, 0, BLOCK);
    }
    assert_eq!((cached.stats().hits, cached.stats().bypasses.of(Bypass::Doubt)), (0, 3));
    drop(cached);
    // The machine did not restart, so the doubt remains.
    let cached = devices.open();
    read(&cached, 0, BLOCK);
    assert_eq!(cached.stats().bypasses.of(Bypass::Doubt), 1);
}

/// A warm cache of 40 blocks in a directory, and its file.
fn in_directory() -> (MemoryDirectory, Arc<MemoryDevice>) {
    let directory = MemoryDirectory::new();
    let slow = Arc::new(MemoryDevice::new("slow", BLOCKS * BLOCK as u64));
    for block in 0..BLOCKS {
        slow.write_at(block * BLOCK as u64, &filled(BLOCK, block as u8)).unwrap();
    }
    let cached = open_in(&directory, &slow, [1; 16]).unwrap();
    read(&cached, 0, BLOCKS as usize * BLOCK);
    cached.close().unwrap();
    (directory, slow)
}

fn open_in(
    directory: &MemoryDirectory,
    slow: &Arc<MemoryDevice>,
    identity: [u8; 16],
) -> Result<Cached, CacheError> {
    let config = timeless(64).identity(identity);
    Cached::open_in(Arc::clone(slow) as Arc<dyn BlockDevice>, directory, "cache", config)
}

#[test]
fn what_was_cached_is_there_after_a_clean_close() {
    let (directory, slow) = in_directory();
    let cached = open_in(&directory, &slow, [1; 16]).unwrap();
    assert_eq!(cached.start(), Start::Warm { kept: BLOCKS, dropped: 0 });
    for block in 0..BLOCKS {
        assert!(read(&cached, block * BLOCK as u64, BLOCK).iter().all(|&byte| byte == block as u8));
    }
    assert_eq!((cached.stats().hits, cached.stats().misses), (BLOCKS, 0));
}

#[test]
fn a_cache_in_use_is_refused() {
    let (directory, slow) = in_directory();
    let first = open_in(&directory, &slow, [1; 16]).unwrap();
    assert!(matches!(open_in(&directory, &slow, [1; 16]), Err(CacheError::Busy { .. })));
    drop(first);
    assert!(open_in(&directory, &slow, [1; 16]).is_ok());
}

#[test]
fn one_file_in_turn_for_several_databases_takes_the_room_of_one() {
    let (directory, slow) = in_directory();
    let length = || directory.open("cache", OpenMode::Read).unwrap().len();
    let before = length();
    for turn in 0..4 {
        let cached = open_in(&directory, &slow, [2 + turn % 2; 16]).unwrap();
        let start = cached.start();
        assert!(
            matches!(start, Start::Cold(ref reason) if reason.contains("another slow device")),
            "{start:?}"
        );
        read(&cached, 0, BLOCK);
        cached.close().unwrap();
    }
    assert_eq!((length(), directory.exists("cache.aside").unwrap()), (before, false));
}

#[test]
fn a_file_that_is_no_cache_is_left_as_it_is() {
    // The last two are shorter than caches, and begin with zeros like disk images.
    for (length, content) in [(20_480, 0x41), (1024, 0x41), (8192, 0)] {
        let (directory, slow) = in_directory();
        directory.remove("cache").unwrap();
        let file = directory.open("cache", OpenMode::CreateNew).unwrap();
        file.set_len(65536 + length).unwrap();
        file.write_at(65536, &filled(length as usize, 0x42)).unwrap();
        file.write_at(0, &filled(length as usize, content)).unwrap();
        if length == 1024 {
            file.set_len(length).unwrap();
        }
        if content != 0 {
            let slow = Arc::clone(&slow) as Arc<dyn BlockDevice>;
            let refused = Cached::open(slow, Arc::clone(&file), timeless(64));
            assert!(matches!(refused, Err(CacheError::Foreign { .. })), "{refused:?}");
        }
        let before = read(&*file, 0, file.len() as usize);
        match open_in(&directory, &slow, [1; 16]) {
            Err(CacheError::Foreign { device }) => assert!(device.contains("cache"), "{device}"),
            other => panic!("{other:?}"),
        }
        let after = directory.open("cache", OpenMode::Read).unwrap();
        assert!(read(&*after, 0, after.len() as usize)[..] == before[..]);
        assert!(!directory.exists("cache.aside").unwrap());
    }
}

/// A file that begins like a cache of a future version.
fn of_another_version(directory: &MemoryDirectory, content: u8) {
    let file = directory.open("cache", OpenMode::Write).unwrap();
    for page in [0, 4096] {
        let mut bytes = read(&*file, page, 4096);
        bytes[8..12].copy_from_slice(&(100 + u32::from(content)).to_le_bytes());
        let check = super::super::checksum::checksum(&bytes[..508]);
        bytes[508..512].copy_from_slice(&check.to_le_bytes());
        file.write_at(page, &bytes).unwrap();
    }
}

#[test]
fn caches_of_other_versions_are_set_aside_and_none_is_written_over() {
    let (directory, slow) = in_directory();
    for number in 0..9 {
        of_another_version(&directory, number);
        let cached = open_in(&directory, &slow, [1; 16]).unwrap();
        assert!(matches!(cached.start(), Start::Cold(_)));
        cached.close().unwrap();
    }
    of_another_version(&directory, 9);
    let refused = open_in(&directory, &slow, [1; 16]);
    assert!(
        matches!(&refused, Err(CacheError::Directory { source, .. }) if source.to_string().contains("set aside"))
    );
    for number in 0..9_u8 {
        let name = if number == 0 { "cache.aside".to_owned() } else { format!("cache.aside{}", number + 1) };
        assert_eq!(read(&*directory.open(&name, OpenMode::Read).unwrap(), 0, 512)[8], 100 + number, "{name}");
    }
}

#[test]
fn a_cache_that_was_cut_to_its_first_page_is_made_anew() {
    for length in [0, 4096, 8192, 12288] {
        let (directory, slow) = in_directory();
        directory.open("cache", OpenMode::Write).unwrap().set_len(length).unwrap();
        let cached = open_in(&directory, &slow, [1; 16]).unwrap();
        assert!(!matches!(cached.start(), Start::Warm { .. }));
    }
}

#[test]
fn the_first_opening_in_a_directory_may_be_cut_off_anywhere() {
    for call in 1..40 {
        let disk = SimulatedDisk::new(call);
        disk.open("slow", OpenMode::CreateNew).unwrap().set_len(BLOCKS * BLOCK as u64).unwrap();
        disk.sync().unwrap();
        disk.crash_at(disk.calls() + call);
        let open = |disk: &SimulatedDisk| {
            let slow = disk.open("slow", OpenMode::Write).map_err(|error| error.to_string())?;
            Cached::open_in(slow, disk, "cache", timeless(64)).map_err(|error| error.to_string())
        };
        let _ = open(&disk);
        for left in (0..40).map(|seed| disk.survivor(seed)).chain([disk.killed()]) {
            assert_eq!(open(&left).map(drop), Ok(()), "call {call}");
        }
    }
}

/// Bits flip and the file is cut, anywhere: served content is still right.
#[test]
fn a_damaged_file_serves_nothing_wrong() {
    let (directory, slow) = in_directory();
    let original = directory.open("cache", OpenMode::Read).unwrap();
    let whole = read(&*original, 0, original.len() as usize);
    let metadata_bytes = (3 + 2 * 65) * 4096;
    let mut random = Random(11);
    let (mut warm, mut cold, mut damaged) = (0, 0, 0);
    for case in 0..400_u64 {
        let file = MemoryDevice::new("cache", whole.len() as u64);
        file.write_at(0, &whole).unwrap();
        match case % 4 {
            0 => file.set_len(random.below(whole.len() as u64 / 512) * 512).unwrap(),
            kind => {
                for _ in 0..1 + random.below(3) {
                    let limit = [0, 4096 * 4, metadata_bytes, whole.len() as u64][kind as usize];
                    let byte = random.below(limit);
                    let sector = byte / 512 * 512;
                    let mut bytes = read(&file, sector, 512);
                    bytes[(byte - sector) as usize] ^= 1 << random.below(8);
                    file.write_at(sector, &bytes).unwrap();
                }
            }
        }
        let config = timeless(64).identity([1; 16]);
        let slow = Arc::clone(&slow) as Arc<dyn BlockDevice>;
        let cached = match Cached::open(slow, Arc::new(file), config) {
            Ok(cached) => cached,
            Err(CacheError::Foreign { .. } | CacheError::OtherVersion { .. }) => continue,
            Err(error) => panic!("case {case}: {error}"),
        };
        match cached.start() {
            Start::Warm { .. } => warm += 1,
            _ => cold += 1,
        }
        for block in 0..BLOCKS {
            let bytes = read(&cached, block * BLOCK as u64, BLOCK);
            assert!(bytes.iter().all(|&byte| byte == block as u8), "case {case}, block {block}");
        }
        damaged += cached.stats().damaged;
    }
    assert!(warm > 100 && cold > 50 && damaged > 10, "{warm} {cold} {damaged}");
}
