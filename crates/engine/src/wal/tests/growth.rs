//! The log grows while it is used.

use std::sync::{OnceLock, Weak};

use terrace_io::Decorator;

use super::*;
use crate::planted::plant;

const FIRST: u64 = 16 << 10;
const LARGEST: u64 = 64 << 10;

fn growing(device: &Device) -> Wal {
    let [geometry, largest] = [FIRST, LARGEST].map(|capacity| Geometry::new(capacity).unwrap());
    let header = LogHeader { database: [1; 16], timeline: 1, largest };
    Wal::create(&**device, &header, geometry).unwrap();
    let (tail, cut) = (FIRST_LSN, FIRST_LSN);
    let options = WalOptions {
        geometry,
        largest,
        buffer_bytes: 8192,
        ring: None,
        in_memory: false,
        epoch: 1,
        tail,
        cut,
    };
    Wal::open(Arc::clone(device), options).unwrap()
}

fn fresh() -> (Device, Wal) {
    let device: Device = Arc::new(MemoryDevice::new("log", 0));
    let wal = growing(&device);
    (device, wal)
}

/// Lets the log grow, and new records go over its old blocks, before its next read.
#[derive(Debug)]
struct GrowsInRead {
    inner: MemoryDevice,
    log: OnceLock<Weak<Wal>>,
    armed: AtomicBool,
}

impl Decorator for GrowsInRead {
    fn inner(&self) -> &dyn BlockDevice {
        &self.inner
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> std::io::Result<()> {
        if self.armed.swap(false, SeqCst) {
            let wal = self.log.get().and_then(Weak::upgrade).unwrap();
            assert!(wal.grow(2 * FIRST, |_| Ok(())).unwrap());
            while let Some(mut reservation) = wal.reserve(1000, Class::Commit) {
                wal.append(&mut record(255, 900), Some(&mut reservation)).unwrap();
            }
            wal.flush_to(wal.tail()).unwrap();
        }
        self.inner.read_at(offset, buffer)
    }
}

/// Whether a scan finds all records of a log that another thread lets grow during its first read.
fn reads_beside_growth() -> bool {
    (0..40).all(|begin| {
        let inner = MemoryDevice::new("log", 0);
        let racing = GrowsInRead { inner, log: OnceLock::new(), armed: AtomicBool::new(false) };
        let racing = Arc::new(racing);
        let wal = Arc::new(growing(&(Arc::clone(&racing) as Device)));
        racing.log.set(Arc::downgrade(&wal)).unwrap();
        fill(&wal, 0..begin + 1);
        (begin + 1..begin + 9).for_each(|number| _ = append(&wal, number, 900));
        wal.flush_to(wal.tail()).unwrap();
        let mut records = wal.scan(wal.cut(), FIRST_EPOCH).unwrap();
        racing.armed.store(true, SeqCst);
        let mut numbers = Vec::new();
        while let Ok(Some(record)) = records.next() {
            numbers.push(record.transaction().0);
        }
        numbers.starts_with(&(begin..begin + 9).collect::<Vec<_>>())
    })
}

#[test]
fn a_scan_reads_again_what_growth_may_have_overwritten() {
    assert!(reads_beside_growth());
    plant(Some(Bug::ReadOldRing));
    let found_all = reads_beside_growth();
    plant(None);
    assert!(!found_all);
}

/// Appends `numbers` durably and keeps only the last of them in the log.
fn fill(wal: &Wal, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let at = append(wal, number, 900).lsn;
        wal.flush_to(wal.tail()).unwrap();
        wal.set_cut(at);
    }
}

fn found(device: &Device, capacity: u64, wal: &Wal) -> Vec<u64> {
    let (numbers, end) = scan(device, Geometry::new(capacity).unwrap(), wal.cut(), FIRST_EPOCH);
    assert_eq!(end, wal.tail());
    numbers
}

/// The live records begin at many offsets in even and odd laps, and some wrap.
#[test]
fn a_log_that_grows_keeps_what_it_holds_wherever_that_lies() {
    let steps = [&[2 * FIRST, LARGEST][..], &[LARGEST]];
    for (begin, steps) in (0..160).flat_map(|begin| steps.map(|steps| (begin, steps))) {
        let (device, wal) = fresh();
        fill(&wal, 0..begin + 1);
        let mut next = begin + 1;
        for &longer in steps {
            let capacity = wal.capacity();
            let wanted = next + 3 * capacity / FIRST;
            while next < wanted {
                append(&wal, next, 900);
                next += 1;
            }
            wal.flush_to(wal.tail()).unwrap();
            let announced = |new: u64| {
                assert_eq!(new, longer);
                // Commits go on meanwhile, maybe into the next lap.
                for _ in 0..5 {
                    let all: Vec<u64> = (begin..next).collect();
                    assert_eq!(found(&device, capacity, &wal), all, "the old ring, from {begin}");
                    assert_eq!(found(&device, new, &wal), all, "the new ring, from {begin}");
                    append(&wal, next, 900);
                    wal.flush_to(wal.tail()).unwrap();
                    next += 1;
                }
                Ok(())
            };
            assert!(wal.grow(longer, announced).unwrap());
            assert_eq!(found(&device, longer, &wal), (begin..next).collect::<Vec<_>>());
            assert_eq!((wal.capacity(), wal.stats().capacity), (longer, longer));
        }
        assert!(!wal.grow(0, |_| panic!("it is the largest")).unwrap());
        while let Some(mut reservation) = wal.reserve(1000, Class::Commit) {
            wal.append(&mut record(next, 900), Some(&mut reservation)).unwrap();
            next += 1;
        }
        wal.flush_to(wal.tail()).unwrap();
        assert!(wal.tail().0 - wal.cut().0 > LARGEST / 2);
        assert_eq!(found(&device, LARGEST, &wal), (begin..next).collect::<Vec<_>>());
        fill(&wal, next..next + 200);
        assert_eq!(found(&device, LARGEST, &wal), [next + 199]);
    }
}

#[test]
fn a_log_whose_new_ring_is_not_announced_goes_on_in_the_old_one() {
    let (device, wal) = fresh();
    fill(&wal, 0..20);
    let refused = wal.grow(0, |_| Err(Error::Config("not now".into()))).unwrap_err();
    assert!(matches!(refused, Error::Config(_)));
    assert_eq!(wal.capacity(), FIRST);
    fill(&wal, 20..100);
    assert_eq!(found(&device, FIRST, &wal), [99]);
    assert!(wal.grow(0, |_| Ok(())).unwrap());
}

#[test]
fn a_full_disk_leaves_the_log_as_it_is() {
    let disk = SimulatedDisk::new(1);
    let device = disk.open("log", OpenMode::CreateNew).unwrap();
    let wal = growing(&device);
    fill(&wal, 0..20);
    disk.fail(FaultPlan::once(CallKind::SetLen, 1, ENOSPC));
    let refused = wal.grow(0, |_| panic!("there is no space")).unwrap_err();
    assert!(matches!(refused, Error::Full { .. }), "{refused}");
    assert!(wal.poisoned().is_none());
    fill(&wal, 20..60);
    assert_eq!(found(&device, FIRST, &wal), [59]);
}

/// In the second lap records move: the length is synced, the last block copied, then the others,
/// and the copies synced.
#[test]
fn a_failed_sync_or_copy_while_the_log_grows_fails_it() {
    let calls = [(CallKind::Sync, 1), (CallKind::Sync, 2), (CallKind::Write, 1), (CallKind::Write, 2)];
    for (kind, at) in calls {
        let disk = SimulatedDisk::new(1);
        let device = disk.open("log", OpenMode::CreateNew).unwrap();
        let wal = growing(&device);
        fill(&wal, 0..20);
        (20..25).for_each(|number| _ = append(&wal, number, 900));
        wal.flush_to(wal.tail()).unwrap();
        disk.fail(FaultPlan::once(kind, at, EIO));
        let failed = wal.grow(0, |_| panic!("the new ring is not durable")).unwrap_err();
        assert!(matches!(failed, Error::Io { .. }), "{kind:?} {at}: {failed}");
        assert!(wal.poisoned().is_some(), "{kind:?} {at}");
        assert_eq!(found(&device, FIRST, &wal), (19..25).collect::<Vec<_>>());
    }
}

/// A process that was killed after it had made the file longer leaves a length that a power cut
/// takes.
#[test]
fn a_length_left_by_a_killed_process_is_synced_before_it_is_announced() {
    let disk = SimulatedDisk::new(1);
    let device = disk.open("log", OpenMode::CreateNew).unwrap();
    let wal = growing(&device);
    device.set_len(Geometry::new(2 * FIRST).unwrap().file_bytes()).unwrap();
    disk.fail(FaultPlan::once(CallKind::Sync, 1, EIO));
    wal.grow(0, |_| panic!("its length is not durable")).unwrap_err();
}

#[test]
fn reservations_made_before_a_log_grows_go_back_whole() {
    let (_device, wal) = fresh();
    let largest = wal.max_reservation();
    assert_eq!((wal.max_reservation_now(), largest), (FIRST / 8 * 5, LARGEST / 8 * 5));
    assert!(wal.reserve(largest, Class::Commit).is_none());
    let small: Vec<_> = (0..20).map(|_| wal.reserve(64, Class::Commit).unwrap()).collect();
    while wal.grow(0, |_| Ok(())).unwrap() {}
    drop(wal.reserve(largest, Class::Commit).unwrap());
    drop(small);
    assert_eq!(wal.stats().reserved, 0);
    let most = wal.reserve(LARGEST / 4 * 3 - BLOCK, Class::Commit);
    assert!(most.is_some());
}

/// The records found after the log grew in its second lap, whose records move.
fn found_with(bug: Option<Bug>) -> Vec<u64> {
    let (device, wal) = fresh();
    fill(&wal, 0..20);
    assert_eq!(wal.cut().0 / FIRST, 1);
    let more = |numbers: std::ops::Range<u64>| {
        numbers.for_each(|number| _ = append(&wal, number, 900));
        wal.flush_to(wal.tail())
    };
    more(20..23).unwrap();
    plant(bug);
    let grown = wal.grow(0, |_| more(23..26));
    plant(None);
    assert!(grown.unwrap());
    scan(&device, Geometry::new(2 * FIRST).unwrap(), wal.cut(), FIRST_EPOCH).0
}

#[test]
fn catches_log_in_old_ring() {
    let all: Vec<u64> = (19..26).collect();
    assert_eq!(found_with(None), all);
    assert_ne!(found_with(Some(Bug::LogInOldRing)), all);
    assert_ne!(found_with(Some(Bug::LogLeftBehind)), all);
}
