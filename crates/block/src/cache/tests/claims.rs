//! Claims of the journal that are not true any more: nothing that fits them by chance, or by a flipped bit elsewhere, is served.
//!
//! The cycles of `crash.rs` have few slots, so that the journal is written at once, and bytes that never come again. Here records
//! wait, bytes come back, and what is on the fast device is damaged after blocks were written.

use super::*;
use crate::{CallKind, Directory, FaultPlan, OpenMode, SimulatedDisk};

const BLOCKS: u64 = 1000;

/// So many that records wait for others.
const SLOTS: u32 = 640;

/// The slow device and the fast one on a disk that can die.
pub(super) struct Place {
    pub(super) disk: SimulatedDisk,
    /// Names the machine's life.
    power_cycle: u8,
}

impl Place {
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

    /// What is left when the process is killed.
    pub(super) fn killed(&self) -> Self {
        Self { disk: self.disk.killed(), power_cycle: self.power_cycle }
    }

    /// What may be left when the power goes.
    pub(super) fn cut_off(&self, seed: u64) -> Self {
        Self { disk: self.disk.survivor(seed), power_cycle: self.power_cycle + 1 }
    }

    /// What a new cache serves of these blocks is what the slow device has.
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
        let place = Place::new();
        let cached = place.open();
        cached.write_at(0, &filled(BLOCK, 1)).unwrap();
        cached.tend();
        cached.write_at(0, &filled(BLOCK, 2)).unwrap();
        place.disk.crash_at(place.disk.calls() + call);
        let _ = cached.write_at(0, &filled(BLOCK, 1));
        place.killed().check(0..1, &format!("killed at call {call} of the write"));
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
    let place = Place::new();
    let cached = place.open();
    // All blocks are zeros, and the slots are full.
    for block in 0..u64::from(SLOTS) {
        read(&cached, block * BLOCK as u64, BLOCK);
    }
    cached.tend();
    cached.write_at(0, &filled(BLOCK, 7)).unwrap();
    // The first that came is the first that goes, and its slot holds zeros again.
    read(&cached, u64::from(SLOTS) * BLOCK as u64, BLOCK);
    place.killed().check(0..2, "killed");
}

/// A cache in its second life, in which blocks that it had in its first have left and were then written: 0 to 29 one by one,
/// so that there are many pages of the journal.
fn with_false_claims() -> (Place, Cached) {
    let place = Place::new();
    let cached = place.open();
    for block in 0..40 {
        read(&cached, block * BLOCK as u64, BLOCK);
    }
    cached.close().unwrap();
    drop(cached);
    let cached = place.open();
    for block in 0..30 {
        // Part of a block: it leaves.
        cached.write_at(block * BLOCK as u64, &filled(512, 9)).unwrap();
    }
    (place, cached)
}

#[test]
fn a_device_given_up_in_two_steps_is_never_used_with_half_of_them() {
    for call in 1..12 {
        let (place, cached) = with_false_claims();
        place.disk.fail(FaultPlan::once(CallKind::Sync, 1, libc::EIO));
        place.disk.crash_at(place.disk.calls() + call);
        cached.tend();
        place.killed().check(0..40, &format!("killed at call {call} of giving up"));
        for seed in 0..20 {
            let place = place.cut_off(seed);
            place.check(0..40, &format!("power cut {seed} at call {call} of giving up"));
        }
    }
}

/// Damages every page of the metadata, one at a time.
#[test]
fn a_damaged_page_does_not_revive_an_old_claim() {
    let (place, cached) = with_false_claims();
    cached.close().unwrap();
    drop(cached);
    for page in 0..200 {
        for byte in [0, 8, 17, 70, 4090] {
            let place = place.killed();
            let (fast, offset) = (place.device("fast"), page * 4096 + byte / 512 * 512);
            let mut sector = read(&*fast, offset, 512);
            sector[(byte % 512) as usize] ^= 4;
            fast.write_at(offset, &sector).unwrap();
            place.check(0..40, &format!("page {page} byte {byte}"));
        }
    }
}

/// A power cut at any call of the first opening leaves a place for a cache.
#[test]
fn the_first_opening_may_be_cut_off_anywhere() {
    for call in 1..40 {
        let place = Place::new();
        place.disk.crash_at(place.disk.calls() + call);
        let config = CacheConfig::new(SLOTS);
        let Ok(slow) = place.disk.open("slow", OpenMode::Write) else { continue };
        let Ok(fast) = place.disk.open("fast", OpenMode::Write) else { continue };
        let _ = Cached::open(slow, fast, config);
        for seed in 0..200 {
            let place = place.cut_off(seed);
            let opened = Cached::open(place.device("slow"), place.device("fast"), CacheConfig::new(SLOTS));
            assert!(opened.is_ok(), "call {call}, power cut {seed}: {:?}", opened.err());
        }
    }
}
