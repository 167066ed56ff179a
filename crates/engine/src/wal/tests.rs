//! The log as a whole: order, wrap-around, holes, failures. Power cuts are in `tests/power.rs`.

mod growth;
mod power;
mod ring;
mod rounds;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use proptest::prelude::*;
use terrace_io::{
    AlignedBuffer, BlockDevice, CallKind, Directory, FaultPlan, FileDirectory, MemoryDevice, OpenMode,
    SimulatedDisk,
};

use super::*;
use crate::ids::{PageId, Timestamp};

const EIO: i32 = 5;
const ENOSPC: i32 = 28;
const FIRST_EPOCH: EpochRule = EpochRule { epoch: 1, first_lsn: FIRST_LSN };

type Device = Arc<dyn BlockDevice>;

fn create(device: &Device, capacity: u64) -> Geometry {
    let geometry = Geometry::new(capacity).unwrap();
    let header = LogHeader { database: [1; 16], timeline: 1, largest: geometry };
    Wal::create(&**device, &header, geometry).unwrap();
    geometry
}

fn open(device: &Device, geometry: Geometry, buffer_bytes: usize, epoch: u32, tail: Lsn, cut: Lsn) -> Wal {
    Wal::open(
        Arc::clone(device),
        WalOptions {
            geometry,
            largest: geometry,
            buffer_bytes,
            ring: None,
            in_memory: false,
            epoch,
            tail,
            cut,
        },
    )
    .unwrap()
}

fn fresh(capacity: u64, buffer_bytes: usize) -> (Device, Geometry, Wal) {
    let device: Device = Arc::new(MemoryDevice::new("log", 0));
    let geometry = create(&device, capacity);
    let wal = open(&device, geometry, buffer_bytes, 1, FIRST_LSN, FIRST_LSN);
    (device, geometry, wal)
}

/// A unique record, a little longer than `bytes`.
fn record(number: u64, bytes: usize) -> RecordBuilder {
    let mut builder = RecordBuilder::pages(Timestamp(number), Lsn::NONE);
    builder.change_with(PageId(number + 1), change_kind::INDEX_FIRST, 0, |out| {
        out.resize(out.len() + bytes, number as u8)
    });
    builder
}

fn append(wal: &Wal, number: u64, bytes: usize) -> Appended {
    wal.append(&mut record(number, bytes), None).unwrap()
}

/// The numbers of all records from `from` on, and the log's end. Checks every record.
fn scan(device: &Device, geometry: Geometry, from: Lsn, rule: EpochRule) -> (Vec<u64>, Lsn) {
    let mut scan = LogScan::new(Arc::clone(device), geometry, from, rule).unwrap();
    let mut numbers = Vec::new();
    while let Some(record) = scan.next().unwrap() {
        let number = record.transaction().0;
        for change in record.changes() {
            assert_eq!(change.page, PageId(number + 1));
            assert!(change.payload.iter().all(|&byte| byte == number as u8));
        }
        numbers.push(number);
    }
    (numbers, scan.end())
}

#[test]
fn what_is_flushed_is_read_back_in_order() {
    let (device, geometry, wal) = fresh(1 << 20, 1 << 17);
    for number in 1..=300 {
        append(&wal, number, number as usize);
    }
    assert_eq!(wal.persistent(), FIRST_LSN);
    wal.flush_to(wal.tail()).unwrap();
    assert_eq!(scan(&device, geometry, FIRST_LSN, FIRST_EPOCH), ((1..=300).collect(), wal.tail()));
    let stats = wal.stats();
    assert_eq!((stats.records, stats.record_bytes), (300, wal.tail().0 - FIRST_LSN.0));
    assert_eq!((stats.persistent, stats.reserved), (wal.tail(), 0));
}

#[test]
fn one_flush_serves_all_who_appended() {
    let (_device, _geometry, wal) = fresh(1 << 20, 1 << 16);
    let first = append(&wal, 1, 10);
    append(&wal, 2, 10);
    wal.flush_to(first.end).unwrap();
    assert_eq!((wal.persistent(), wal.stats().flushes), (wal.tail(), 1));
    wal.flush_to(wal.tail()).unwrap();
    assert_eq!(wal.stats().flushes, 1);
}

#[test]
fn parallel_writers_find_all_their_records_in_the_log() {
    const THREADS: u64 = 4;
    const EACH: u64 = 3000;
    let (device, geometry, wal) = fresh(8 << 20, 1 << 14);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let wal = &wal;
            scope.spawn(move || {
                let mut last = Lsn::NONE;
                for i in 0..EACH {
                    let ticket = wal.enter();
                    let appended = append(wal, thread * EACH + i, (i * 37 % 900) as usize);
                    assert!(ticket.low() <= appended.lsn && last <= appended.lsn);
                    last = appended.end;
                    if i % 7 == 0 {
                        wal.flush_to(appended.end).unwrap();
                        assert!(wal.persistent() >= appended.end);
                    } else {
                        assert!(wal.floor() <= appended.lsn);
                        wal.retire_when_persistent(ticket, appended.end);
                    }
                }
                wal.flush_to(last).unwrap();
            });
        }
    });
    let (numbers, end) = scan(&device, geometry, FIRST_LSN, FIRST_EPOCH);
    assert_eq!((end, wal.persistent(), wal.floor()), (wal.tail(), wal.tail(), wal.tail()));
    for thread in 0..THREADS {
        let of_thread: Vec<_> = numbers.iter().filter(|&&number| number / EACH == thread).collect();
        assert!(of_thread.is_sorted());
        assert_eq!(of_thread.len() as u64, EACH);
    }
    assert_eq!(wal.stats().records, THREADS * EACH);
}

#[test]
fn a_small_log_goes_around_many_times() {
    for (capacity, buffer) in [(8192, 8192), (12288, 8192), (16384, 1 << 20), (36864, 16384)] {
        let (device, geometry, wal) = fresh(capacity, buffer);
        let mut since_cut = Vec::new();
        for number in 1..3000 {
            let bytes = (number * 53 % 1500) as usize;
            let Some(mut reservation) = wal.reserve(bytes as u64 + 100, Class::Commit) else {
                wal.flush_to(wal.tail()).unwrap();
                assert_eq!(scan(&device, geometry, wal.cut(), FIRST_EPOCH), (since_cut, wal.tail()));
                since_cut = Vec::new();
                wal.set_cut(wal.cut_limit());
                assert_eq!(wal.cut(), wal.tail());
                continue;
            };
            wal.append(&mut record(number, bytes), Some(&mut reservation)).unwrap();
            since_cut.push(number);
            if number % 5 == 0 {
                wal.flush_to(wal.tail()).unwrap();
            }
        }
        assert!(wal.tail().0 > capacity * 10);
    }
}

#[test]
fn large_rounds_around_both_wraps_come_back() {
    let (device, geometry, wal) = fresh(5 << 16, 1 << 18);
    for number in 1..40 {
        for part in 0..4 {
            append(&wal, number * 10 + part, 40_000);
        }
        wal.flush_to(wal.tail()).unwrap();
        let (numbers, end) = scan(&device, geometry, wal.cut(), FIRST_EPOCH);
        assert_eq!((numbers.len(), end), (4, wal.tail()));
        wal.set_cut(wal.persistent());
    }
}

#[test]
fn a_file_with_its_alignment_rules_serves_as_well() {
    let directory = tempfile::tempdir().unwrap();
    let files = FileDirectory::create(&directory.path().join("database")).unwrap();
    let device = files.open("log", OpenMode::CreateNew).unwrap();
    let geometry = create(&device, 5 << 16);
    let wal = open(&device, geometry, 1 << 18, 1, FIRST_LSN, FIRST_LSN);
    for number in 1..30 {
        let bytes = (number * 7919 % 90_000) as usize;
        append(&wal, number, bytes);
        append(&wal, number + 100, bytes);
        wal.flush_to(wal.tail()).unwrap();
        rewrite_tail(&*device, geometry, wal.cut(), wal.tail()).unwrap();
        assert_eq!(scan(&device, geometry, wal.cut(), FIRST_EPOCH), (vec![number, number + 100], wal.tail()));
        wal.set_cut(wal.persistent());
    }
    assert!(wal.tail().0 > 2 * geometry.capacity());
    assert_eq!(read_header(&*device).unwrap().largest, geometry);
}

#[test]
fn a_hole_keeps_the_durable_end_below_it() {
    let (device, geometry, wal) = fresh(1 << 20, 1 << 16);
    append(&wal, 1, 100);
    let hole = wal.ring.draw(64);
    let behind = append(&wal, 2, 100);
    let waiting = AtomicBool::new(true);
    std::thread::scope(|scope| {
        let flusher = scope.spawn(|| {
            wal.flush_to(behind.end).unwrap();
            assert!(!waiting.load(SeqCst));
        });
        while wal.persistent() < hole.lsn() {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(wal.persistent(), hole.lsn());
        assert_eq!(scan(&device, geometry, FIRST_LSN, FIRST_EPOCH), (vec![1], hole.lsn()));
        waiting.store(false, SeqCst);
        drop(hole);
        flusher.join().unwrap();
    });
    assert_eq!(scan(&device, geometry, FIRST_LSN, FIRST_EPOCH).0, [1, 0, 2]);
}

#[test]
fn a_log_opened_amid_a_block_keeps_what_is_before() {
    let (device, geometry, wal) = fresh(1 << 16, 1 << 14);
    let mut tail = FIRST_LSN;
    drop(wal);
    for number in 1..100 {
        let wal = open(&device, geometry, 1 << 14, 1, tail, FIRST_LSN);
        append(&wal, number, 300);
        wal.flush_to(wal.tail()).unwrap();
        tail = wal.tail();
    }
    assert_eq!(scan(&device, geometry, FIRST_LSN, FIRST_EPOCH), ((1..100).collect(), tail));
}

#[test]
fn settings_that_do_not_fit_are_refused() {
    let (device, geometry, wal) = fresh(1 << 14, 1 << 14);
    assert_eq!(wal.record_bytes_max(), 10240);
    let try_open = |buffer_bytes, tail, cut| {
        let options = WalOptions {
            geometry,
            largest: geometry,
            buffer_bytes,
            ring: None,
            in_memory: false,
            epoch: 1,
            tail: Lsn(tail),
            cut: Lsn(cut),
        };
        Wal::open(Arc::clone(&device), options).map(|_| ())
    };
    for buffer in [0, 4096, 8192 + 4096] {
        assert!(matches!(try_open(buffer, 4096, 4096), Err(Error::Config(_))));
    }
    for (tail, cut) in [(4097, 4096), (4096, 4104), (4096 + 16392, 4096), (4096, 0), (u64::MAX - 7, 4096)] {
        assert!(matches!(try_open(8192, tail, cut), Err(Error::Corrupt { .. })), "{tail} {cut}");
    }
    assert!(try_open(8192, 4096 + 16384, 4096).is_ok());
    let header = LogHeader { database: [1; 16], timeline: 1, largest: geometry };
    assert!(matches!(Wal::create(&*device, &header, geometry), Err(Error::Io { operation: "create", .. })));
}

#[test]
fn a_record_that_fits_nowhere_is_refused_and_harms_nothing() {
    let (_device, _geometry, wal) = fresh(1 << 20, 1 << 14);
    let refused = wal.append(&mut record(1, 1 << 14), None);
    assert!(matches!(refused, Err(Error::TransactionTooLarge { max: 12288, .. })));
    append(&wal, 1, 12_000);
    assert!(wal.poisoned().is_none());
}

#[test]
fn an_append_without_space_fails_the_log_and_overwrites_nothing() {
    let (device, geometry, wal) = fresh(16384, 1 << 16);
    for number in 1..=4 {
        append(&wal, number, 4000);
    }
    assert!(matches!(wal.append(&mut record(5, 4000), None), Err(Error::Poisoned { .. })));
    assert!(matches!(wal.append(&mut record(6, 1), None), Err(Error::Poisoned { .. })));
    assert!(wal.flush_to(wal.tail()).is_err());
    assert_eq!(scan(&device, geometry, FIRST_LSN, FIRST_EPOCH).0, [0; 0]);
}

#[test]
fn a_poisoned_log_refuses_appends_and_flushes() {
    let (_device, _geometry, wal) = fresh(16384, 1 << 14);
    append(&wal, 1, 10);
    wal.poison("the store failed");
    wal.poison("and again");
    let is_first = |error: Error| matches!(error, Error::Poisoned { reason } if reason == "the store failed");
    assert!(is_first(wal.flush_to(wal.tail()).unwrap_err()));
    assert!(is_first(wal.append(&mut record(2, 10), None).unwrap_err()));
    assert_eq!((wal.poisoned(), wal.persistent()), (Some("the store failed"), FIRST_LSN));
}

#[test]
fn a_failed_write_or_sync_is_never_forgotten() {
    for (kind, error) in [
        (CallKind::WriteThrough, EIO),
        (CallKind::WriteThrough, ENOSPC),
        (CallKind::Write, EIO),
        (CallKind::Sync, EIO),
    ] {
        let disk = SimulatedDisk::new(1);
        let device = disk.open("log", OpenMode::CreateNew).unwrap();
        let geometry = create(&device, 1 << 20);
        let wal = open(&device, geometry, 1 << 18, 1, FIRST_LSN, FIRST_LSN);
        let bytes = if kind == CallKind::WriteThrough { 10 } else { 150_001 };
        disk.fail(FaultPlan::once(kind, 1, error));
        let appended = append(&wal, 1, bytes);
        assert!(matches!(wal.flush_to(appended.end), Err(Error::Io { operation: "write", .. })), "{kind:?}");
        disk.mend();
        assert!(matches!(wal.flush_to(appended.end), Err(Error::Poisoned { .. })));
        assert!(matches!(wal.append(&mut record(2, 10), None), Err(Error::Poisoned { .. })));
        assert_eq!(wal.persistent(), FIRST_LSN);
    }
}

#[test]
fn writers_who_wait_for_room_learn_of_a_failure() {
    let disk = SimulatedDisk::new(1);
    let device = disk.open("log", OpenMode::CreateNew).unwrap();
    let geometry = create(&device, 1 << 20);
    let wal = open(&device, geometry, 8192, 1, FIRST_LSN, FIRST_LSN);
    disk.fail(FaultPlan::from_then_on(CallKind::Any, 20, EIO));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| while wal.append(&mut record(1, 500), None).is_ok() {});
        }
    });
    assert!(wal.poisoned().is_some());
}

#[test]
fn records_are_read_at_any_lsn_in_any_order() {
    let (_device, _geometry, wal) = fresh(1 << 20, 1 << 18);
    let positions: Vec<_> =
        (1..2000).map(|number| (append(&wal, number, (number % 700) as usize).lsn, number)).collect();
    wal.flush_to(wal.tail()).unwrap();
    let mut reader = wal.reader().unwrap();
    for &(lsn, number) in positions.iter().rev().chain(&positions).chain(positions.iter().step_by(701)) {
        assert_eq!(reader.read_record_at(lsn).unwrap().transaction().0, number);
    }
    assert!(matches!(reader.read_record_at(Lsn(FIRST_LSN.0 + 8)), Err(Error::Corrupt { .. })));
    assert!(matches!(reader.read_record_at(Lsn(8)), Err(Error::Corrupt { .. })));
    assert!(matches!(reader.read_record_at(Lsn(1 << 40)), Err(Error::Corrupt { .. })));
}

/// A log of three records of one block each, of epoch 1; the second was lost and rewritten in epoch
/// 2.
fn two_epochs() -> (Device, Geometry) {
    let (device, geometry, wal) = fresh(1 << 20, 1 << 16);
    for number in 1..=3 {
        append(&wal, number, 4096 - 40 - 16 - 16);
    }
    wal.flush_to(wal.tail()).unwrap();
    // So small a ring writes nothing ahead, which would zero the third.
    let wal = open(&device, geometry, 1 << 15, 2, Lsn(8192), FIRST_LSN);
    append(&wal, 4, 4096 - 40 - 16 - 16);
    wal.flush_to(wal.tail()).unwrap();
    (device, geometry)
}

#[test]
fn records_of_an_earlier_epoch_do_not_come_back() {
    let (device, geometry) = two_epochs();
    let rule = |epoch, first_lsn| EpochRule { epoch, first_lsn: Lsn(first_lsn) };
    assert_eq!(scan(&device, geometry, FIRST_LSN, rule(2, 8192)), (vec![1, 4], Lsn(12288)));
    // Nor below a later epoch: there, epochs do not decrease.
    assert_eq!(scan(&device, geometry, FIRST_LSN, rule(3, 16384)), (vec![1, 4], Lsn(12288)));
    assert_eq!(scan(&device, geometry, FIRST_LSN, rule(3, 8192)), (vec![1], Lsn(8192)));
    // No record reaches into the next epoch.
    assert_eq!(scan(&device, geometry, FIRST_LSN, rule(3, 8200)), (vec![1], Lsn(8192)));
}

#[test]
fn a_log_that_lost_what_was_durable_is_damaged() {
    let (device, geometry) = two_epochs();
    let finish = |first_lsn| {
        let rule = EpochRule { epoch: 3, first_lsn: Lsn(first_lsn) };
        LogScan::new(Arc::clone(&device), geometry, FIRST_LSN, rule).unwrap().finish()
    };
    assert_eq!(finish(12288).unwrap(), Lsn(12288));
    assert!(matches!(finish(12296), Err(Error::Corrupt { .. })));
}

#[test]
fn a_device_that_cannot_be_read_is_an_error_not_an_end() {
    let disk = SimulatedDisk::new(1);
    let device = disk.open("log", OpenMode::CreateNew).unwrap();
    let geometry = create(&device, 1 << 16);
    disk.fail(FaultPlan::once(CallKind::Read, 1, EIO));
    let mut scan = LogScan::new(device, geometry, FIRST_LSN, FIRST_EPOCH).unwrap();
    assert!(matches!(scan.next(), Err(Error::Io { operation: "read", .. })));
}

#[test]
fn a_scan_reads_no_more_than_one_capacity() {
    let (device, geometry, wal) = fresh(8192, 8192);
    append(&wal, 1, 4096 - 72);
    append(&wal, 2, 4096 - 72);
    wal.flush_to(wal.tail()).unwrap();
    assert_eq!(wal.tail().0, FIRST_LSN.0 + 8192);
    assert_eq!(scan(&device, geometry, FIRST_LSN, FIRST_EPOCH), (vec![1, 2], wal.tail()));
}

#[test]
fn a_rewritten_tail_survives_the_power_cut_after_a_kill() {
    let mut lost = 0;
    for seed in 0..20 {
        let disk = SimulatedDisk::new(seed);
        let device = disk.open("log", OpenMode::CreateNew).unwrap();
        let geometry = create(&device, 1 << 16);
        disk.sync().unwrap();
        disk.lie_about_syncs(true);
        let wal = open(&device, geometry, 1 << 14, 1, FIRST_LSN, FIRST_LSN);
        for number in 1..=20 {
            append(&wal, number, 1000);
        }
        wal.flush_to(wal.tail()).unwrap();
        let killed = disk.killed();
        let reread = |disk: &SimulatedDisk| {
            let device = disk.open("log", OpenMode::Write).unwrap();
            scan(&device, geometry, FIRST_LSN, FIRST_EPOCH).0.len()
        };
        lost += usize::from(reread(&killed.survivor(seed)) < 20);
        let device = killed.open("log", OpenMode::Write).unwrap();
        rewrite_tail(&*device, geometry, FIRST_LSN, wal.tail()).unwrap();
        assert_eq!(reread(&killed.survivor(seed)), 20);
    }
    assert!(lost > 0, "the power cut took nothing, so this test shows nothing");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// For any damage, a scan yields a prefix or an error.
    #[test]
    fn a_damaged_log_yields_a_prefix(
        flips in prop::collection::vec((4096u64..4096 + 65536, any::<u8>()), 1..40),
        sizes in prop::collection::vec(0usize..3000, 1..30),
    ) {
        let (device, geometry, wal) = fresh(1 << 16, 1 << 15);
        let mut count = 0;
        for bytes in sizes {
            if wal.reserve(bytes as u64 + 100, Class::System).is_none() { break; }
            count += 1;
            append(&wal, count, bytes);
        }
        wal.flush_to(wal.tail()).unwrap();
        for (at, byte) in flips {
            let mut block = AlignedBuffer::zeroed(4096);
            device.read_at(block_floor(at), &mut block).unwrap();
            block[(at % 4096) as usize] ^= byte;
            device.write_at(block_floor(at), &block).unwrap();
        }
        let (numbers, end) = scan(&device, geometry, FIRST_LSN, FIRST_EPOCH);
        prop_assert!(end <= wal.tail() && numbers == (1..=numbers.len() as u64).collect::<Vec<_>>());
    }
}
