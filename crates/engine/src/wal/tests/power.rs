//! The log through power cuts, and each of its rules broken on read reason.

use terrace_io::{Directory, OpenMode, SimulatedDisk};

use super::*;
use crate::crash::open_log;

/// Epoch after epoch on one disk: works until the power fails, checks what survived, and continues.
fn live_through_power_cuts(seed: u64, cut_after: u64, capacity: u64) -> Result<(), String> {
    let mut disk = SimulatedDisk::new(seed);
    let geometry = create(&disk.open("log", OpenMode::CreateNew).unwrap(), capacity);
    disk.sync().unwrap();
    let mut rule = FIRST_EPOCH;
    let (mut cut, mut tail) = (FIRST_LSN, FIRST_LSN);
    let mut alive: Vec<(Lsn, u64)> = Vec::new();
    let mut number = seed * 1000;
    for life in 0..4 {
        let device = open_log(&disk).unwrap();
        let wal = open(&device, geometry, 16384, rule.epoch, tail, cut);
        disk.crash_at(disk.calls() + cut_after + life * 3);
        let mut acknowledged = alive.len();
        let mut tried = alive.clone();
        loop {
            number += 1;
            let bytes = (number * 97 % 1800) as usize;
            if wal.reserve(bytes as u64 + 100, Class::Commit).is_none() {
                if wal.flush_to(wal.tail()).is_err() {
                    break;
                }
                acknowledged = tried.len();
                // Stands for syncing the superblock that names the cut.
                cut = if tried.len() > 2 { tried[tried.len() - 2].0 } else { wal.persistent() };
                wal.set_cut(cut);
                let kept = tried.iter().position(|&(lsn, _)| lsn >= cut).unwrap_or(tried.len());
                tried.drain(..kept);
                acknowledged -= kept;
                continue;
            }
            let Ok(appended) = wal.append(&mut record(number, bytes), None) else { break };
            tried.push((appended.lsn, number));
            if number.is_multiple_of(3) {
                if wal.flush_to(appended.end).is_err() {
                    break;
                }
                acknowledged = tried.len();
            }
        }
        disk = disk.survivor(seed ^ life);
        let device = disk.open("log", OpenMode::Write).unwrap();
        let (numbers, end) = scan(&device, geometry, cut, rule);
        let expected: Vec<_> = tried.iter().map(|&(_, number)| number).collect();
        if numbers.len() < acknowledged {
            return Err(format!("{} of {acknowledged} acknowledged records are left", numbers.len()));
        }
        // The list lacks a record whose append was interrupted, but it may be durable.
        let known = numbers.len().min(expected.len());
        if numbers[..known] != expected[..known] || numbers.len() > expected.len() + 1 {
            return Err(format!("found {numbers:?}, expected {expected:?}"));
        }
        let mut records = LogScan::new(Arc::clone(&device), geometry, cut, rule).unwrap();
        alive.clear();
        while let Some(record) = records.next().unwrap() {
            alive.push((record.lsn(), record.transaction().0));
        }
        rewrite_tail(&*device, geometry, cut, end).unwrap();
        tail = end;
        rule = EpochRule { epoch: rule.epoch + 1, first_lsn: end };
    }
    Ok(())
}

#[test]
fn acknowledged_records_survive_every_power_cut_as_a_prefix() {
    for seed in 0..400 {
        let capacity = [16384, 24576, 65536, 1 << 18][seed as usize % 4];
        if let Err(what) = live_through_power_cuts(seed, 1 + seed / 4 % 60, capacity) {
            panic!("seed {seed}: {what}");
        }
    }
}

mod planted_bugs {
    use super::*;
    use crate::planted::plant;

    fn with<T>(bug: Bug, act: impl FnOnce() -> T) -> T {
        plant(Some(bug));
        let outcome = act();
        plant(None);
        outcome
    }

    #[test]
    fn a_sync_left_out_loses_acknowledged_records() {
        let lost =
            with(Bug::SkipLogSync, || (0..40).any(|seed| live_through_power_cuts(seed, 30, 65536).is_err()));
        assert!(lost);
    }

    #[test]
    fn catches_watermark_as_maximum() {
        let (device, geometry, wal) = fresh(1 << 20, 1 << 16);
        let hole = wal.ring.draw(64);
        let behind = append(&wal, 2, 100);
        with(Bug::WatermarkAsMaximum, || wal.flush_to(behind.end).unwrap());
        assert_eq!(wal.persistent(), behind.end);
        assert_eq!(scan(&device, geometry, FIRST_LSN, FIRST_EPOCH).0, [0; 0]);
        drop(hole);
    }

    #[test]
    fn without_epochs_old_records_come_back() {
        let (device, geometry) = two_epochs();
        let rule = EpochRule { epoch: 2, first_lsn: Lsn(8192) };
        let found = with(Bug::NoEpochInRecords, || scan(&device, geometry, FIRST_LSN, rule).0);
        assert_eq!(found, [1, 4, 3]);
    }

    #[test]
    fn cuts_pass_what_they_must_not() {
        let (_device, _geometry, wal) = fresh(1 << 20, 1 << 16);
        let ticket = wal.enter();
        append(&wal, 1, 10);
        wal.flush_to(wal.tail()).unwrap();
        assert_eq!(wal.cut_limit(), FIRST_LSN);
        assert_eq!(with(Bug::CutPastCommitInFlight, || wal.cut_limit()), wal.tail());
        drop(ticket);
        append(&wal, 2, 10);
        assert!(wal.cut_limit() < wal.tail());
        assert_eq!(with(Bug::CutPastWatermark, || wal.cut_limit()), wal.tail());
    }
}
