//! Moved data, and caches used in turn.

use super::claims::Folder;
use super::*;
use crate::Start;

fn offset(block: u64) -> u64 {
    block * BLOCK as u64
}

fn move_blocks(cached: &Cached, from: u64, to: u64, count: usize) {
    let mut bytes = filled(count * BLOCK, 0xee);
    cached.read_past(offset(from), &mut bytes).unwrap();
    cached.write_past(offset(to), &bytes).unwrap();
    cached.relocate(offset(from), offset(to), &bytes);
}

#[test]
fn cached_blocks_follow_their_bytes_and_nothing_is_admitted() {
    let (cached, slow) = in_memory(100, timeless(10));
    for block in 0..4 {
        slow.write_at(offset(block), &filled(BLOCK, block as u8 + 1)).unwrap();
    }
    read(&cached, offset(1), BLOCK);
    read(&cached, offset(2), BLOCK);
    // Block 51 is cached with outdated bytes.
    read(&cached, offset(51), BLOCK);
    let before = cached.stats();
    move_blocks(&cached, 0, 50, 4);
    let after = cached.stats();
    assert_eq!((after.relocations, after.admissions), (2, before.admissions));
    assert_eq!((after.misses, after.write_misses), (before.misses, before.write_misses));
    assert_eq!((after.invalidations, after.resident_blocks()), (1, 2));
    for block in [51, 52] {
        assert_eq!(read(&cached, offset(block), BLOCK)[0], block as u8 - 49);
    }
    assert_eq!(cached.stats().hits, before.hits + 2);
    // The old locations have no cached blocks any more.
    assert_eq!(read(&cached, offset(1), BLOCK)[0], 2);
    assert_eq!(cached.stats().misses, before.misses + 1);
}

#[test]
fn what_is_not_the_same_is_not_renamed() {
    let (cached, _) = in_memory(100, timeless(10));
    read(&cached, offset(1), BLOCK);
    cached.write_past(offset(50), &filled(BLOCK, 7)).unwrap();
    cached.relocate(offset(1), offset(50), &filled(BLOCK, 7));
    assert_eq!(cached.stats().relocations, 0, "other bytes");
    assert_eq!(read(&cached, offset(50), BLOCK)[0], 7);
    cached.relocate(offset(1), offset(50), &filled(BLOCK, 0));
    assert_eq!(cached.stats().relocations, 0, "a block that has a slot of its own");
    cached.relocate(offset(1) + 512, offset(60), &filled(2 * BLOCK, 0));
    assert_eq!(cached.stats().relocations, 0, "places that lie differently in their blocks");
    cached.relocate(offset(1), offset(99), &filled(2 * BLOCK, 0));
    cached.relocate(u64::MAX - 4095, offset(3), &filled(BLOCK, 0));
    assert_eq!(cached.stats().relocations, 1, "what lies beyond the device is left alone");
}

/// Moves a block, writes its old location, and is killed.
fn old_copy_is_written() {
    for call in 1..12 {
        let folder = Folder::new();
        let cached = folder.open();
        cached.write_at(0, &filled(BLOCK, 1)).unwrap();
        cached.maintain();
        folder.disk.crash_at(folder.disk.calls() + call);
        let moved = (|| {
            cached.write_past(offset(5), &filled(BLOCK, 1))?;
            cached.relocate(0, offset(5), &filled(BLOCK, 1));
            cached.write_at(0, &filled(BLOCK, 2))?;
            cached.write_at(offset(5), &filled(BLOCK, 3))
        })();
        let _: std::io::Result<()> = moved;
        folder.killed().check(0..6, &format!("killed at call {call}"));
        folder.cut_off(call).check(0..6, &format!("cut off at call {call}"));
    }
}

#[test]
fn neither_copy_of_a_moved_block_is_stale_after_a_kill() {
    old_copy_is_written();
}

/// A database is used with one cache, then another or none, then the first again.
fn used_in_turn(with_second: bool) {
    let (slow, guard) =
        (Arc::new(MemoryDevice::new("slow", offset(10))), Arc::new(MemoryDevice::new("guard", 0)));
    let open = |fast: &Arc<MemoryDevice>| {
        let config =
            timeless(10).guard(Arc::clone(&guard) as Arc<dyn BlockDevice>).power_cycle(Some([1; 16]));
        Cached::open(
            Arc::clone(&slow) as Arc<dyn BlockDevice>,
            Arc::clone(fast) as Arc<dyn BlockDevice>,
            config,
        )
        .unwrap()
    };
    let (first, second) = (Arc::new(MemoryDevice::new("first", 0)), Arc::new(MemoryDevice::new("second", 0)));
    let cached = open(&first);
    read(&cached, 0, BLOCK);
    cached.close().unwrap();
    drop(cached);
    let cached = open(&first);
    assert!(matches!(cached.start(), Start::Warm { kept: 1, .. }));
    cached.close().unwrap();
    drop(cached);
    if with_second {
        open(&second).write_at(0, &filled(BLOCK, 2)).unwrap();
    } else {
        Cached::revoke_all(&*guard).unwrap();
        slow.write_at(0, &filled(BLOCK, 2)).unwrap();
    }
    let cached = open(&first);
    assert_eq!(read(&cached, 0, BLOCK)[0], 2, "a block of before");
    assert!(matches!(&cached.start(), Start::Cold(reason) if reason.contains("since")));
    // It is the latest now, and the second is not.
    assert!(matches!(open(&first).start(), Start::Warm { .. }));
    if with_second {
        assert!(matches!(open(&second).start(), Start::Cold(_)));
    }
}

#[test]
fn a_cache_is_cold_if_the_slow_device_was_used_without_it() {
    used_in_turn(true);
    used_in_turn(false);
}

mod planted_bugs {
    use super::*;
    use crate::planted::{CacheBug, plant};

    struct Planted;

    impl Planted {
        fn of(bug: CacheBug) -> Self {
            plant(Some(bug));
            Planted
        }
    }

    impl Drop for Planted {
        fn drop(&mut self) {
            plant(None);
        }
    }

    #[test]
    #[should_panic(expected = "block 0: 1 for 2")]
    fn catches_forget_moved() {
        let _planted = Planted::of(CacheBug::ForgetMoved);
        old_copy_is_written();
    }

    #[test]
    #[should_panic(expected = "a block of before")]
    fn catches_forget_latest() {
        let _planted = Planted::of(CacheBug::ForgetLatest);
        used_in_turn(true);
    }
}
