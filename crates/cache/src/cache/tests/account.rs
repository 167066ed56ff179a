//! Calls of admission policies, counted by hand.
//!
//! A look-up per use, an insertion and a removal per block, and nothing for a dirty block that
//! changes slots.

use parking_lot::Mutex;

use super::*;
use crate::policy::{Access, Admission, Applies, Filtered, Lru, Occupancy};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Told {
    look_ups: u64,
    hits: u64,
    inserted: u64,
    removed: u64,
}

struct Counting(Arc<Mutex<Told>>);

impl Admission for Counting {
    fn look_up(&mut self, _: Access, hit: bool) {
        let mut told = self.0.lock();
        told.look_ups += 1;
        told.hits += u64::from(hit);
    }

    fn admits(&mut self, _: Access, _: Occupancy) -> bool {
        true
    }

    fn inserted(&mut self) {
        self.0.lock().inserted += 1;
    }

    fn removed(&mut self) {
        self.0.lock().removed += 1;
    }
}

#[test]
fn a_dirty_block_that_is_written_again_is_used_once_and_neither_comes_nor_goes() {
    let told = Arc::new(Mutex::new(Told::default()));
    let mut config = timeless(4).mode(WriteMode::Back).guard(Arc::new(MemoryDevice::new("guard", 0)));
    config.dirty_blocks_max = Some(4);
    let (cached, _) = in_memory(16, config);
    let counting = Box::new(Counting(Arc::clone(&told)));
    let policy = Filtered::new(Lru::new(4), 4, vec![(Applies::Both, counting as Box<dyn Admission>)]);
    cached.blocks.placement.lock().set_policy(Box::new(policy));
    let expect = |look_ups, hits, inserted, removed| {
        cached.blocks.report_hits();
        assert_eq!(*told.lock(), Told { look_ups, hits, inserted, removed });
    };
    let write = |block: u64| cached.write_at(block * BLOCK as u64, &filled(BLOCK, 1)).unwrap();
    write(0);
    expect(1, 0, 1, 0);
    // In the same epoch, and in the next, when the synced version must stay.
    write(0);
    expect(2, 1, 1, 0);
    read(&cached, 0, BLOCK);
    cached.sync().unwrap();
    write(0);
    expect(4, 3, 1, 0);
    write(1);
    cached.drain().unwrap();
    expect(5, 3, 2, 0);
    // Over its own clean slot.
    write(0);
    expect(6, 4, 2, 0);
    read(&cached, 2 * BLOCK as u64, BLOCK);
    read(&cached, 3 * BLOCK as u64, BLOCK);
    expect(8, 4, 4, 0);
    // All slots are taken, so block 1 leaves for the other slot, and the previous one is free.
    write(0);
    expect(9, 5, 4, 1);
    cached.free(2 * BLOCK as u64, BLOCK as u64);
    expect(9, 5, 4, 2);
    write(5);
    expect(10, 5, 5, 2);
    assert_eq!((cached.stats().write_hits, cached.stats().write_misses), (4, 3));
}
