//! What rounds write beside the records, and the background writer.

use super::*;

/// Fills the ring, as if the file system exposed old data.
fn fill_ring(device: &Device, geometry: Geometry, byte: u8) {
    let mut block = AlignedBuffer::zeroed(BLOCK as usize);
    block.fill(byte);
    for at in (BLOCK..geometry.file_bytes()).step_by(BLOCK as usize) {
        device.write_at(at, &block).unwrap();
    }
}

/// The bytes of the ring from `from` to `to`, within one lap.
fn bytes(device: &Device, geometry: Geometry, from: u64, to: u64) -> AlignedBuffer {
    let mut found = AlignedBuffer::zeroed((to - from) as usize);
    device.read_at(geometry.offset(from), &mut found).unwrap();
    found
}

#[test]
fn a_small_round_of_the_first_lap_writes_zeros_ahead_once() {
    let (device, geometry, wal) = fresh(1 << 20, 1 << 18);
    fill_ring(&device, geometry, 0xff);
    let ahead = 1 << 15;
    let first = append(&wal, 1, 100);
    wal.flush_to(first.end).unwrap();
    assert_eq!(wal.stats().flushed_bytes, ahead - BLOCK);
    let behind = bytes(&device, geometry, BLOCK, ahead + BLOCK);
    let (zeros, untouched) =
        behind[(first.end.0 - BLOCK) as usize..].split_at((ahead - first.end.0) as usize);
    assert!(zeros.iter().all(|&byte| byte == 0) && untouched.iter().all(|&byte| byte == 0xff));
    // The next rounds find these blocks written, until their end.
    for number in 2.. {
        let before = wal.stats().flushed_bytes;
        let appended = append(&wal, number, 3000);
        wal.flush_to(appended.end).unwrap();
        let written = wal.stats().flushed_bytes - before;
        if appended.end.0 > ahead {
            assert!(written >= ahead, "{written}");
            break;
        }
        assert!(written <= 2 * BLOCK, "{written}");
    }
    assert_eq!(scan(&device, geometry, FIRST_LSN, FIRST_EPOCH).1, wal.tail());
}

#[test]
fn later_laps_write_nothing_ahead() {
    let (device, geometry, wal) = fresh(1 << 18, 1 << 18);
    let mut number = 0;
    while wal.tail().0 < geometry.capacity() * 3 {
        number += 1;
        let before = wal.stats().flushed_bytes;
        // All but the last record is needed: zeros beyond the tail would destroy what recovery
        // reads.
        let kept = wal.tail();
        let appended = append(&wal, number, 3000);
        wal.flush_to(appended.end).unwrap();
        if kept.0 > geometry.capacity() {
            assert!(wal.stats().flushed_bytes - before <= 2 * BLOCK);
        }
        if wal.tail().0 - wal.cut().0 > geometry.capacity() - 3 * BLOCK {
            let (numbers, end) = scan(&device, geometry, wal.cut(), FIRST_EPOCH);
            assert_eq!((numbers.last(), end), (Some(&number), wal.tail()));
            wal.set_cut(kept);
        }
    }
}

#[test]
fn a_log_opened_in_its_first_lap_writes_ahead_from_its_end() {
    let (device, geometry, wal) = fresh(1 << 18, 1 << 18);
    for number in 1..=20 {
        append(&wal, number, 1000);
    }
    wal.flush_to(wal.tail()).unwrap();
    let (tail, cut) = (wal.tail(), wal.cut());
    drop(wal);
    let wal = open(&device, geometry, 1 << 18, 2, tail, cut);
    let rule = EpochRule { epoch: 2, first_lsn: tail };
    let appended = append(&wal, 21, 1000);
    wal.flush_to(appended.end).unwrap();
    assert_eq!(scan(&device, geometry, FIRST_LSN, rule), ((1..=21).collect(), appended.end));
}

#[test]
fn the_logs_thread_writes_what_nobody_waits_for() {
    let (device, geometry, wal) = fresh(4 << 20, 1 << 16);
    std::thread::scope(|scope| {
        scope.spawn(|| wal.run_writer());
        for number in 1..=1000 {
            append(&wal, number, 1000);
        }
        while wal.persistent() < wal.tail() {
            std::thread::yield_now();
        }
        wal.stop_writer();
    });
    assert_eq!(scan(&device, geometry, FIRST_LSN, FIRST_EPOCH), ((1..=1000).collect(), wal.tail()));
}

#[test]
fn the_logs_thread_ends_when_the_log_has_failed() {
    let (_device, _geometry, wal) = fresh(1 << 20, 1 << 16);
    append(&wal, 1, 10);
    wal.poison("a test");
    wal.run_writer();
    assert_eq!(wal.persistent(), FIRST_LSN);
}
