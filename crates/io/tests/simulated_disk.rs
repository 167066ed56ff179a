//! Faults of the simulated disk: at least as bad as real ones, and reproducible.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::sync::Arc;

use terrace_io::{
    AlignedBuffer, BlockDevice, CallKind, Directory, FaultPlan, LockError, OpenMode, Read, SimulatedDisk,
    Write,
};

const SECTORS: usize = 4;

fn filled(sectors: usize, byte: u8) -> AlignedBuffer {
    let mut buffer = AlignedBuffer::zeroed(sectors * 512);
    buffer.fill(byte);
    buffer
}

/// A disk with one durable file of zeros.
fn disk(seed: u64) -> (SimulatedDisk, Arc<dyn BlockDevice>) {
    let disk = SimulatedDisk::new(seed);
    let device = disk.open("pages", OpenMode::CreateNew).unwrap();
    disk.sync().unwrap();
    device.set_len(SECTORS as u64 * 512).unwrap();
    device.sync().unwrap();
    (disk, device)
}

/// The first byte of each sector of a file.
fn sectors(disk: &SimulatedDisk, file: &str) -> Vec<u8> {
    let device = disk.open(file, OpenMode::Read).unwrap();
    let mut buffer = AlignedBuffer::zeroed(device.len() as usize);
    device.read_at(0, &mut buffer).unwrap();
    buffer.chunks(512).map(|sector| sector[0]).collect()
}

#[test]
fn the_same_seed_gives_the_same_survivor() {
    let run = |seed| {
        let (disk, device) = disk(seed);
        disk.crash_at(disk.calls() + 3);
        for byte in 1..5 {
            let _ = device.write_at(0, &filled(SECTORS, byte));
        }
        (0..50).map(|seed| sectors(&disk.survivor(seed), "pages")).collect::<Vec<_>>()
    };
    assert_eq!(run(1), run(1));
    assert!((2..20).any(|seed| run(seed) != run(1)), "the torn write depends on the disk's seed");
}

#[test]
fn every_call_from_the_crash_on_fails_and_nothing_more_happens() {
    let (disk, device) = disk(1);
    disk.crash_at(disk.calls() + 1);
    assert_eq!(disk.crashed(), None);
    let mut page = filled(1, 1);
    let errors = [
        device.sync().unwrap_err(),
        device.write_at(0, &page).unwrap_err(),
        device.write_through_at(0, &page).unwrap_err(),
        device.write_batch(&[Write::new(0, &page), Write::new(512, &page)]).unwrap_err(),
        device.read_at(0, &mut page).unwrap_err(),
        device.set_len(0).unwrap_err(),
        disk.sync().unwrap_err(),
        disk.open("pages", OpenMode::Read).map(drop).unwrap_err(),
        disk.exists("pages").map(drop).unwrap_err(),
        disk.rename("pages", "other").unwrap_err(),
        disk.remove("pages").unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Other);
        assert!(error.to_string().contains("power lost"), "{error}");
    }
    assert!(matches!(disk.lock("lock"), Err(LockError::Io(_))));
    assert_eq!(disk.crashed().as_deref(), Some("Sync simulated:pages"));
    assert!((0..50).all(|seed| sectors(&disk.survivor(seed), "pages") == [0; SECTORS]));
}

#[test]
fn a_write_under_way_at_the_crash_may_be_torn() {
    let outcomes: BTreeSet<_> = (0..500)
        .map(|seed| {
            let (disk, device) = disk(seed);
            disk.crash_at(disk.calls() + 1);
            device.write_at(0, &filled(SECTORS, 1)).unwrap_err();
            sectors(&disk.survivor(seed), "pages")
        })
        .collect();
    assert_eq!(outcomes.len(), 1 << SECTORS, "any subset of its sectors");
}

#[test]
fn writes_of_a_batch_overtake_the_one_that_crashes() {
    let overtaken = (0..200).any(|seed| {
        let (disk, device) = disk(seed);
        disk.crash_at(disk.calls() + 1);
        let (first, second) = (filled(1, 1), filled(1, 2));
        device.write_batch(&[Write::new(0, &first), Write::new(512, &second)]).unwrap_err();
        sectors(&disk.killed(), "pages")[..2] == [0, 2]
    });
    assert!(overtaken);
}

#[test]
fn a_killed_process_leaves_its_writes_but_they_are_not_durable() {
    let (disk, device) = disk(1);
    let _lock = disk.lock("lock").unwrap();
    device.write_at(0, &filled(SECTORS, 1)).unwrap();
    disk.crash_at(disk.calls() + 1);
    device.sync().unwrap_err();
    let killed = disk.killed();
    assert_eq!(sectors(&killed, "pages"), [1; SECTORS]);
    assert!(killed.lock("lock").is_ok(), "locks die with the process");
    assert!((0..50).any(|seed| sectors(&killed.survivor(seed), "pages") != [1; SECTORS]));
    killed.open("pages", OpenMode::Write).unwrap().sync().unwrap();
    assert!((0..50).all(|seed| sectors(&killed.survivor(seed), "pages") == [1; SECTORS]));
}

#[test]
fn writes_to_two_files_persist_in_either_order() {
    let (disk, first) = disk(1);
    let second = disk.open("log", OpenMode::CreateNew).unwrap();
    disk.sync().unwrap();
    second.set_len(512).unwrap();
    second.sync().unwrap();
    first.write_at(0, &filled(1, 1)).unwrap();
    second.write_at(0, &filled(1, 1)).unwrap();
    let outcomes: BTreeSet<_> = (0..200)
        .map(|seed| disk.survivor(seed))
        .map(|disk| (sectors(&disk, "pages")[0], sectors(&disk, "log")[0]))
        .collect();
    assert_eq!(outcomes, [(0, 0), (0, 1), (1, 0), (1, 1)].into());
}

#[test]
fn a_file_whose_name_was_not_synced_may_be_gone_though_its_content_was() {
    let disk = SimulatedDisk::new(1);
    let device = disk.open("pages", OpenMode::CreateNew).unwrap();
    device.set_len(512).unwrap();
    device.sync().unwrap();
    let kept = (0..100).filter(|&seed| disk.survivor(seed).exists("pages").unwrap()).count();
    assert!((1..100).contains(&kept));
    disk.sync().unwrap();
    assert!((0..100).all(|seed| disk.survivor(seed).exists("pages").unwrap()));
}

#[test]
fn a_planned_fault_strikes_its_call_and_no_other() {
    for kind in [CallKind::Write, CallKind::WriteThrough, CallKind::Sync, CallKind::Read, CallKind::SetLen] {
        let (disk, device) = disk(1);
        let call = |at| match at {
            CallKind::Write => device.write_at(0, &filled(1, 1)),
            CallKind::WriteThrough => device.write_through_at(0, &filled(1, 1)),
            CallKind::Sync => device.sync(),
            CallKind::Read => device.read_at(0, &mut filled(1, 0)),
            _ => device.set_len(SECTORS as u64 * 512),
        };
        disk.fail(FaultPlan::once(kind, 2, libc::EIO));
        disk.fail(FaultPlan::from_then_on(kind, 4, libc::ENOSPC));
        let outcomes: Vec<_> =
            (0..5).map(|_| call(kind).err().and_then(|error| error.raw_os_error())).collect();
        assert_eq!(
            outcomes,
            [None, Some(libc::EIO), None, Some(libc::ENOSPC), Some(libc::ENOSPC)],
            "{kind:?}"
        );
        disk.mend();
        call(kind).unwrap();
    }
}

#[test]
fn interruptions_are_repeated_by_the_device() {
    let (disk, device) = disk(1);
    disk.fail(FaultPlan::once(CallKind::Any, 1, libc::EINTR));
    device.write_at(0, &filled(1, 1)).unwrap();
    assert_eq!(sectors(&disk, "pages")[0], 1);
    disk.fail(FaultPlan::from_then_on(CallKind::Sync, 1, libc::EINTR));
    assert_eq!(device.sync().unwrap_err().kind(), ErrorKind::Interrupted);
}

#[test]
fn a_short_transfer_moves_a_part_and_fails() {
    let parts: BTreeSet<_> = (0..50)
        .map(|seed| {
            let (disk, device) = disk(seed);
            disk.fail(FaultPlan::once(CallKind::Write, 1, libc::ENOSPC).short());
            let error = device.write_at(0, &filled(SECTORS, 1)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::StorageFull);
            sectors(&disk, "pages").iter().filter(|&&byte| byte == 1).count()
        })
        .collect();
    assert_eq!(parts, (0..=SECTORS).collect());
    let (disk, device) = disk(1);
    disk.fail(FaultPlan::once(CallKind::Read, 1, libc::EIO).short());
    let mut buffer = filled(2, 0xee);
    device.read_at(0, &mut buffer).unwrap_err();
    assert_eq!((buffer[0], buffer[512]), (0, 0xee));
}

#[test]
fn a_failed_sync_is_not_made_good_by_a_later_one() {
    let (disk, device) = disk(1);
    device.write_at(0, &filled(1, 1)).unwrap();
    disk.fail(FaultPlan::once(CallKind::Sync, 1, libc::EIO));
    device.sync().unwrap_err();
    device.sync().unwrap();
    assert!((0..50).any(|seed| sectors(&disk.survivor(seed), "pages")[0] == 0));
}

#[test]
fn a_lying_disk_says_yes_and_keeps_nothing() {
    let (disk, device) = disk(1);
    disk.lie_about_syncs(true);
    device.write_at(0, &filled(1, 1)).unwrap();
    device.write_through_at(512, &filled(1, 1)).unwrap();
    device.sync().unwrap();
    let survivors: BTreeSet<_> = (0..100).map(|seed| sectors(&disk.survivor(seed), "pages")).collect();
    assert_eq!(survivors.len(), 4, "{survivors:?}");
    disk.mend();
    device.sync().unwrap();
    assert!((0..50).all(|seed| sectors(&disk.survivor(seed), "pages") == [1, 1, 0, 0]));
}

#[test]
fn growing_beyond_the_capacity_fails_until_space_is_free() {
    let (disk, device) = disk(1);
    disk.set_capacity(8 * 512);
    let other = disk.open("log", OpenMode::CreateNew).unwrap();
    assert_eq!(other.set_len(5 * 512).unwrap_err().kind(), ErrorKind::StorageFull);
    assert_eq!(other.len(), 0);
    other.set_len(4 * 512).unwrap();
    assert!(device.set_len(5 * 512).is_err());
    disk.remove("log").unwrap();
    device.set_len(5 * 512).unwrap();
}

#[test]
fn calls_are_counted_by_kind_and_each_transfer_of_a_batch_once() {
    let (disk, device) = disk(1);
    let (calls, page) = (disk.calls(), filled(1, 1));
    device.write_batch(&[Write::new(0, &page); 3]).unwrap();
    let (mut first, mut second) = (filled(1, 0), filled(1, 0));
    device.read_batch(&mut [Read::new(0, &mut first), Read::new(512, &mut second)]);
    assert_eq!(disk.calls() - calls, 5);
    assert_eq!((disk.calls_of(CallKind::Write), disk.calls_of(CallKind::Read)), (3, 2));
    let sum: u64 = CallKind::ALL.iter().map(|&kind| disk.calls_of(kind)).sum();
    assert_eq!(sum, disk.calls_of(CallKind::Any));
}

#[test]
fn a_cycle_of_crash_and_survivor_is_quick() {
    // A small database's disk; then cycles of writes, a crash and a survivor.
    let mut disk = SimulatedDisk::new(1);
    let device = disk.open("pages", OpenMode::CreateNew).unwrap();
    device.set_len(16 << 20).unwrap();
    device.sync().unwrap();
    disk.sync().unwrap();
    let (start, cycles, page) = (std::time::Instant::now(), 500, filled(32, 1));
    for seed in 0..cycles {
        disk = if seed % 2 == 0 { disk.survivor(seed) } else { disk.killed() };
        let device = disk.open("pages", OpenMode::Write).unwrap();
        let mut buffer = filled(32, 0);
        for write in 0..50 {
            let offset = (seed * 7919 + write * 104_729) % 1000 * 16384;
            device.read_at(offset % device.len(), &mut buffer).unwrap();
            device.write_at(offset % device.len(), &page).unwrap();
        }
        device.sync().unwrap();
        device.write_at(0, &page).unwrap();
    }
    let spent = start.elapsed();
    println!("{:.0} cycles a second", cycles as f64 / spent.as_secs_f64());
    assert!(spent.as_secs() < 10, "{spent:?} for {cycles} cycles");
}
