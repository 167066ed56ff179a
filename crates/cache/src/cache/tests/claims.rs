//! Outdated claims of the journal: nothing that matches them by chance is served.
//!
//! In the cycles of `crash.rs` the journal is written at once, and bytes never repeat. Here records
//! wait, bytes repeat, and the fast device is damaged after writes.

use super::*;
use terrace_io::{CallKind, Directory, FaultPlan, OpenMode, SimulatedDisk};

const BLOCKS: u64 = 1000;

/// Enough that records wait.
const SLOTS: u32 = 640;

/// The slow device, and the fast one on a disk that can fail.
pub(super) struct Folder {
    pub(super) disk: SimulatedDisk,
    power_cycle: u8,
}

impl Folder {
    pub(super) fn new() -> Self {
        let disk = SimulatedDisk::new(1);
        for name in ["slow", "fast"] {
            disk.open(name, OpenMode::CreateNew).unwrap();
        }
        let slow = disk.open("slow", OpenMode::Write).unwrap();
        slow.set_len(BLOCKS * BLOCK as u64).unwrap();
        slow.sync().unwrap();
        disk.sync().unwrap();
        Self { disk, power_cycle: 1 }
    }

    fn device(&self, name: &str) -> Arc<dyn BlockDevice> {
        self.disk.open(name, OpenMode::Write).unwrap()
    }

    pub(super) fn open(&self) -> Cached {
        let config =
            CacheConfig::new(SLOTS).policy("fifo").unwrap().power_cycle(Some([self.power_cycle; 16]));
        Cached::open(self.device("slow"), self.device("fast"), config).unwrap()
    }

    pub(super) fn killed(&self) -> Self {
        Self { disk: self.disk.killed(), power_cycle: self.power_cycle }
    }

    pub(super) fn cut_off(&self, seed: u64) -> Self {
        Self { disk: self.disk.survivor(seed), power_cycle: self.power_cycle + 1 }
    }

    /// Compares these blocks through a new cache with the slow device.
    pub(super) fn check(&self, blocks: std::ops::Range<u64>, what: &str) {
        let (cached, slow) = (self.open(), self.device("slow"));
        for block in blocks {
            let (served, truth) =
                (read(&cached, block * BLOCK as u64, BLOCK), read(&*slow, block * BLOCK as u64, BLOCK));
            assert!(served[..] == truth[..], "{what}: block {block}: {} for {}", served[0], truth[0]);
        }
    }
}

#[test]
fn bytes_that_come_back_to_a_block_do_not_fit_an_old_claim() {
    for call in 1..8 {
        let folder = Folder::new();
        let cached = folder.open();
        cached.write_at(0, &filled(BLOCK, 1)).unwrap();
        cached.maintain();
        cached.write_at(0, &filled(BLOCK, 2)).unwrap();
        folder.disk.crash_at(folder.disk.calls() + call);
        let _ = cached.write_at(0, &filled(BLOCK, 1));
        folder.killed().check(0..1, &format!("killed at call {call} of the write"));
    }
}

#[test]
#[should_panic(expected = "killed: block 0: 0 for 7")]
fn catches_forget_ended_claims() {
    struct Planted;
    impl Drop for Planted {
        fn drop(&mut self) {
            crate::planted::plant(None);
        }
    }
    crate::planted::plant(Some(crate::planted::CacheBug::ForgetEndedClaims));
    let _planted = Planted;
    equal_bytes_of_another_block_do_not_fit_an_old_claim();
}

#[test]
fn equal_bytes_of_another_block_do_not_fit_an_old_claim() {
    let folder = Folder::new();
    let cached = folder.open();
    // All blocks are zeros, and the slots are full.
    for block in 0..u64::from(SLOTS) {
        read(&cached, block * BLOCK as u64, BLOCK);
    }
    cached.maintain();
    cached.write_at(0, &filled(BLOCK, 7)).unwrap();
    // The first block leaves first, and its slot holds zeros again.
    read(&cached, u64::from(SLOTS) * BLOCK as u64, BLOCK);
    folder.killed().check(0..2, "killed");
}

/// A second run that evicts and rewrites blocks of the first, over many journal pages.
fn with_false_claims() -> (Folder, Cached) {
    let folder = Folder::new();
    let cached = folder.open();
    for block in 0..40 {
        read(&cached, block * BLOCK as u64, BLOCK);
    }
    cached.close().unwrap();
    drop(cached);
    let cached = folder.open();
    for block in 0..30 {
        // A partial write: the block leaves.
        cached.write_at(block * BLOCK as u64, &filled(512, 9)).unwrap();
    }
    (folder, cached)
}

#[test]
fn a_device_given_up_in_two_steps_is_never_used_with_half_of_them() {
    for call in 1..12 {
        let (folder, cached) = with_false_claims();
        folder.disk.fail(FaultPlan::once(CallKind::Sync, 1, libc::EIO));
        folder.disk.crash_at(folder.disk.calls() + call);
        cached.maintain();
        folder.killed().check(0..40, &format!("killed at call {call} of giving up"));
        for seed in 0..20 {
            let folder = folder.cut_off(seed);
            folder.check(0..40, &format!("power cut {seed} at call {call} of giving up"));
        }
    }
}

#[test]
fn a_damaged_page_does_not_revive_an_old_claim() {
    let (folder, cached) = with_false_claims();
    cached.close().unwrap();
    drop(cached);
    for page in 0..200 {
        for byte in [0, 8, 17, 70, 4090] {
            let folder = folder.killed();
            let (fast, offset) = (folder.device("fast"), page * 4096 + byte / 512 * 512);
            let mut sector = read(&*fast, offset, 512);
            sector[(byte % 512) as usize] ^= 4;
            fast.write_at(offset, &sector).unwrap();
            folder.check(0..40, &format!("page {page} byte {byte}"));
        }
    }
}

/// A power cut at any call of the first opening leaves a usable device.
#[test]
fn the_first_opening_may_be_cut_off_anywhere() {
    for call in 1..40 {
        let folder = Folder::new();
        folder.disk.crash_at(folder.disk.calls() + call);
        let config = CacheConfig::new(SLOTS);
        let Ok(slow) = folder.disk.open("slow", OpenMode::Write) else { continue };
        let Ok(fast) = folder.disk.open("fast", OpenMode::Write) else { continue };
        let _ = Cached::open(slow, fast, config);
        for seed in 0..200 {
            let folder = folder.cut_off(seed);
            let opened = Cached::open(folder.device("slow"), folder.device("fast"), CacheConfig::new(SLOTS));
            assert!(opened.is_ok(), "call {call}, power cut {seed}: {:?}", opened.err());
        }
    }
}
