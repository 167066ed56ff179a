//! The ring in persistent memory: writers side by side, damage in it, and earlier epochs.

use terrace_io::PersistentMemory;

use super::*;
use crate::store::ring::{RING_AT, RingMemory};

const RING: usize = 32 << 10;

fn memory(disk: &SimulatedDisk, mode: OpenMode) -> Arc<RingMemory> {
    let memory = disk.open_memory("ring", (RING_AT + RING) as u64, mode).unwrap();
    Arc::new(RingMemory::new(memory, 1, None).unwrap())
}

fn open_in(device: &Device, geometry: Geometry, ring: &Arc<RingMemory>, epoch: u32, tail: Lsn) -> Wal {
    let options = WalOptions {
        geometry,
        largest: geometry,
        buffer_bytes: 8192,
        ring: Some(Arc::clone(ring)),
        in_memory: false,
        epoch,
        tail,
        cut: FIRST_LSN,
    };
    Wal::open(Arc::clone(device), options).unwrap()
}

/// A log on a disk of this seed, with its ring on the same disk.
fn on_disk(seed: u64, capacity: u64) -> (SimulatedDisk, Device, Geometry, Wal) {
    let disk = SimulatedDisk::new(seed);
    let device = disk.open("log", OpenMode::CreateNew).unwrap();
    let geometry = create(&device, capacity);
    let ring = memory(&disk, OpenMode::CreateNew);
    disk.sync().unwrap();
    let wal = open_in(&device, geometry, &ring, 1, FIRST_LSN);
    (disk, device, geometry, wal)
}

/// Files the ring of `disk` as recovery does, and returns all records.
fn recovered(disk: &SimulatedDisk, geometry: Geometry, rule: EpochRule) -> (Vec<u64>, Lsn) {
    let device: Device = disk.open("log", OpenMode::Write).unwrap();
    let (_, filed) = scan(&device, geometry, FIRST_LSN, rule);
    let ring = memory(disk, OpenMode::Write);
    let end = file_ring(&*device, geometry, &ring, (FIRST_LSN, filed), rule).unwrap();
    let (numbers, found) = scan(&device, geometry, FIRST_LSN, rule);
    assert_eq!(found, end);
    (numbers, end)
}

#[test]
fn acknowledged_records_survive_without_a_write_to_the_file() {
    let (disk, _device, geometry, wal) = on_disk(1, 1 << 20);
    for number in 0..100 {
        let appended = append(&wal, number, 50);
        wal.acknowledge(appended.end).unwrap();
        assert!(wal.persistent() >= appended.end);
    }
    assert_eq!(wal.stats().flushes, 0);
    assert_eq!(recovered(&disk.survivor(1), geometry, FIRST_EPOCH), ((0..100).collect(), wal.tail()));
}

/// Behind a slow writer, others may file the complete records.
#[test]
fn acknowledged_records_of_threads_survive() {
    for seed in 0..10 {
        let (disk, _device, geometry, wal) = on_disk(seed, 1 << 20);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let wal = &wal;
                scope.spawn(move || {
                    for number in 0..25 {
                        let appended = append(wal, thread * 100 + number, 50);
                        wal.acknowledge(appended.end).unwrap();
                        assert!(wal.persistent() >= appended.end);
                    }
                });
            }
        });
        let (mut numbers, end) = recovered(&disk.survivor(seed), geometry, FIRST_EPOCH);
        assert_eq!(end, wal.tail(), "seed {seed}");
        numbers.sort_unstable();
        let all: Vec<u64> = (0..4).flat_map(|thread| (0..25).map(move |n| thread * 100 + n)).collect();
        assert_eq!(numbers, all, "seed {seed}");
    }
}

#[test]
fn a_ring_that_went_around_gives_what_the_file_lacks_and_no_stale_lap() {
    for seed in 0..40 {
        let (disk, _device, geometry, wal) = on_disk(seed, 1 << 20);
        let mut last = 0;
        while wal.tail().0 < 3 * RING as u64 + seed * 997 {
            last += 1;
            append(&wal, last, (last * 61 % 900) as usize);
        }
        wal.acknowledge(wal.tail()).unwrap();
        assert!(wal.filed() < wal.tail() && wal.filed().0 > RING as u64);
        let (numbers, end) = recovered(&disk.survivor(seed), geometry, FIRST_EPOCH);
        assert_eq!((numbers, end), ((1..=last).collect(), wal.tail()), "seed {seed}");
    }
}

/// Records behind a lost one are whole, and at exactly the right LSN for the next epoch's.
#[test]
fn records_of_an_earlier_epoch_in_the_ring_do_not_come_back() {
    let (disk, device, geometry, wal) = on_disk(1, 1 << 20);
    for number in 1..=3 {
        append(&wal, number, 100);
    }
    let second = append(&wal, 4, 100).lsn;
    append(&wal, 5, 100);
    wal.file_to(second).unwrap();
    drop(wal);
    // The fourth was lost: the log goes on there in the next epoch.
    let ring = memory(&disk, OpenMode::Write);
    let wal = open_in(&device, geometry, &ring, 2, second);
    let end = append(&wal, 6, 100).end;
    drop((wal, ring, device));
    let rule = EpochRule { epoch: 2, first_lsn: second };
    // Everything was filed in the round before, with the fifth.
    let found = recovered(&disk.killed(), geometry, rule);
    assert_eq!(found, (vec![1, 2, 3, 6], end));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// For any damage, the ring yields a prefix or an error.
    #[test]
    fn a_damaged_ring_yields_a_prefix(flips in prop::collection::vec((0usize..RING / 8, 1u64..), 1..20)) {
        let (disk, _device, geometry, wal) = on_disk(3, 1 << 20);
        for number in 1..=40 {
            append(&wal, number, (number * 31 % 500) as usize);
        }
        let tail = wal.tail();
        let disk = disk.killed();
        let damaged: Arc<PersistentMemory> = disk.open_memory("ring", 0, OpenMode::Write).unwrap();
        for (word, flip) in flips {
            let words = damaged.words(RING_AT..RING_AT + RING);
            words[word].fetch_xor(flip, SeqCst);
        }
        drop(damaged);
        let (numbers, end) = recovered(&disk, geometry, FIRST_EPOCH);
        prop_assert!(end <= tail && numbers == (1..=numbers.len() as u64).collect::<Vec<_>>());
    }
}
