//! The DRAM of every policy, counted by the allocator.
//!
//! `terrace_cache::policy::Name::dram_bytes` states it, and the engine's budget believes that.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::HashMap;

use terrace_cache::policy::{Access, HashedTable, Hint, NAMES, Name, Policy, Relation, Settings, Slot};

struct Counting;

thread_local! {
    static IS_COUNTING: Cell<bool> = const { Cell::new(false) };
    static BYTES: Cell<i64> = const { Cell::new(0) };
}

fn count(bytes: i64) {
    // Ending threads free memory without their locals.
    let _ = IS_COUNTING.try_with(|is_counting| {
        if is_counting.get() {
            let _ = BYTES.try_with(|total| total.set(total.get() + bytes));
        }
    });
}

// SAFETY: The system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: The caller keeps the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: The caller keeps the contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Counts what `work` allocates and frees.
fn counted<T>(work: impl FnOnce() -> T) -> T {
    IS_COUNTING.set(true);
    let result = work();
    IS_COUNTING.set(false);
    result
}

/// Most bytes that the policy has during accesses to a device of twenty times the cache.
fn most_bytes(name: &Name, capacity: u32) -> i64 {
    BYTES.set(0);
    let settings = Settings { lfu_counts: Some(COUNTS_PER_SLOT), ..Settings::new(capacity as usize) };
    let mut policy = counted(|| name.boxed::<HashedTable>(&settings));
    let (mut slots, mut blocks) = (HashMap::new(), vec![0; capacity as usize]);
    let (mut filled, mut state, mut most) = (0, 1_u64, 0);
    for step in 0..capacity * 16 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Squared, so that some blocks return.
        let share = (state >> 33) as f64 / (1_u64 << 31) as f64;
        let access = Access::read((share * share * 20.0 * f64::from(capacity)) as u64);
        if let Some(&slot) = slots.get(&access.block) {
            counted(|| policy.hit(slot, access));
        } else if counted(|| {
            policy.miss(access);
            policy.admits(access)
        }) {
            let slot = if filled < capacity {
                filled += 1;
                Slot(filled - 1)
            } else {
                let slot = counted(|| policy.victim(access)).expect("a full cache has a victim");
                slots.remove(&blocks[slot.index()]);
                slot
            };
            blocks[slot.index()] = access.block;
            slots.insert(access.block, slot);
            counted(|| policy.insert(access, slot));
        }
        if step % 64 == 0 {
            most = most.max(BYTES.get());
        }
        // Selectors have more candidates once they are told of a query.
        if step % capacity == 1 {
            let relations = &[Relation(1), Relation(2)];
            counted(|| policy.hint(Hint::QueryBegins { query: u64::from(step), relations }));
        }
    }
    most
}

/// Bytes per block of the cache's index, which are in the statement too.
const INDEX_BYTES: u64 = 24;
/// Bytes of a policy without slots.
const SMALL_BYTES: u64 = 4096;
/// Counts of `lfu` in a live cache.
const COUNTS_PER_SLOT: usize = 4;

#[test]
fn no_policy_takes_more_memory_than_it_states() {
    for name in NAMES {
        let name: Name = name.parse().unwrap();
        if name.needs_future() {
            continue;
        }
        let each = [3000, 4100, 5000, 6200].map(|capacity: u32| {
            let index = INDEX_BYTES * u64::from(capacity);
            let stated = name.dram_bytes(u64::from(capacity)) - index + SMALL_BYTES;
            let most = most_bytes(&name, capacity);
            assert!(most as u64 <= stated, "{name} of {capacity} blocks: {most} bytes of {stated}");
            most / i64::from(capacity)
        });
        println!("{name}: {each:?} bytes a block");
    }
}
