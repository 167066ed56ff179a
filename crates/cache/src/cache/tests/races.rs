//! Races, one interleaving each: a device runs an action inside a call of the cache.

use std::io;

use parking_lot::Mutex;

use super::super::index::State;
use super::*;
use crate::Bypass;
use crate::policy::{Access, Admission, Applies, Filtered, Lru, Occupancy};

type Act = Box<dyn FnOnce() + Send>;

/// A device that runs an action within its next read or before its next write.
pub(super) struct Interposed {
    inner: MemoryDevice,
    act: Mutex<Option<Act>>,
    before_write: Mutex<Option<Act>>,
}

impl std::fmt::Debug for Interposed {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.fmt(formatter)
    }
}

impl Interposed {
    pub fn new(bytes: u64) -> Arc<Self> {
        let inner = MemoryDevice::new("interposed", bytes);
        Arc::new(Self { inner, act: Mutex::new(None), before_write: Mutex::new(None) })
    }

    pub fn before_next_write(&self, act: impl FnOnce() + Send + 'static) {
        *self.before_write.lock() = Some(Box::new(act));
    }

    fn after_next_read(&self, act: impl FnOnce() + Send + 'static) {
        *self.act.lock() = Some(Box::new(act));
    }
}

impl BlockDevice for Interposed {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn alignment(&self) -> usize {
        self.inner.alignment()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let act = self.act.lock().take();
        // Half of the bytes are read before the action, half after, as in a real transfer.
        let half = buffer.len() / 2;
        self.inner.read_at(offset, &mut buffer[..half])?;
        if let Some(act) = act {
            act();
        }
        self.inner.read_at(offset + half as u64, &mut buffer[half..])
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let act = self.before_write.lock().take();
        if let Some(act) = act {
            act();
        }
        self.inner.write_at(offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.inner.sync()
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.inner.set_len(bytes)
    }
}

fn reader_of_a_reused_slot() -> AlignedBuffer {
    let slow = Arc::new(MemoryDevice::new("slow", 1 << 20));
    slow.write_at(0, &filled(BLOCK, 1)).unwrap();
    slow.write_at(BLOCK as u64, &filled(BLOCK, 2)).unwrap();
    let fast = Interposed::new(0);
    // The block's checksum would show it, too.
    let config = CacheConfig { verify_hits: false, ..timeless(1).policy("lru").unwrap() };
    let cached = Arc::new(Cached::open(slow, Arc::clone(&fast) as Arc<dyn BlockDevice>, config).unwrap());
    read(&*cached, 0, BLOCK);
    let other = Arc::clone(&cached);
    fast.after_next_read(move || {
        read(&*other, BLOCK as u64, BLOCK);
    });
    let served = read(&*cached, 0, BLOCK);
    assert!(fast.act.lock().is_none(), "the first block was read from the fast device");
    served
}

#[test]
fn a_slot_that_is_reused_while_it_is_read_is_not_served() {
    assert!(reader_of_a_reused_slot().iter().all(|&byte| byte == 1));
}

/// Writes a block during its fetch; returns the served bytes and the slow device's.
fn block_written_while_it_is_fetched() -> (AlignedBuffer, AlignedBuffer) {
    let slow = Interposed::new(1 << 20);
    let fast = Arc::new(MemoryDevice::new("fast", 0));
    let config = timeless(4).policy("lru").unwrap();
    let cached = Arc::new(Cached::open(Arc::clone(&slow) as Arc<dyn BlockDevice>, fast, config).unwrap());
    let other = Arc::clone(&cached);
    slow.after_next_read(move || other.write_at(0, &filled(BLOCK, 7)).unwrap());
    read(&*cached, 0, BLOCK);
    assert!(slow.act.lock().is_none());
    (read(&*cached, 0, BLOCK), read(&slow.inner, 0, BLOCK))
}

#[test]
fn a_block_that_is_written_while_it_is_fetched_is_not_kept() {
    let (served, truth) = block_written_while_it_is_fetched();
    assert!(served[..] == truth[..] && truth[0] == 7);
}

#[test]
fn a_block_that_is_freed_while_it_is_fetched_is_not_kept() {
    let slow = Interposed::new(1 << 20);
    let fast = Arc::new(MemoryDevice::new("fast", 0));
    let cached = Cached::open(Arc::clone(&slow) as Arc<dyn BlockDevice>, fast, timeless(4)).unwrap();
    let cached = Arc::new(cached);
    let other = Arc::clone(&cached);
    slow.after_next_read(move || other.free(0, BLOCK as u64));
    read(&*cached, 0, BLOCK);
    assert_eq!(cached.stats().resident_blocks(), 0);
}

/// A write-back cache over zeros whose block 0 is dirty and filled with 1.
fn with_a_dirty_block(blocks: u64) -> (Arc<Cached>, Arc<Interposed>) {
    let slow = Interposed::new(blocks * BLOCK as u64);
    let device = |bytes| Arc::new(MemoryDevice::new("memory", bytes));
    let config = timeless(64).mode(WriteMode::Back).guard(device(BLOCK as u64));
    let cached = Cached::open(Arc::clone(&slow) as Arc<dyn BlockDevice>, device(0), config).unwrap();
    cached.write_at(0, &filled(BLOCK, 1)).unwrap();
    assert_eq!(cached.stats().dirty_blocks, 1);
    (Arc::new(cached), slow)
}

fn read_again(cached: &Cached) -> u8 {
    let mut buffer = filled(BLOCK, 0xee);
    assert!(cached.read_again(0, &mut buffer, |_| true).unwrap());
    buffer[0]
}

/// During a second write the block has no slot, then one in `Writing`, then a dirty one.
#[test]
fn a_dirty_block_that_is_read_again_amid_a_write_is_not_the_slow_devices() {
    let (cached, slow) = with_a_dirty_block(16);
    let (tell, told) = std::sync::mpsc::channel();
    slow.after_next_read(move || tell.send(()).unwrap());
    // A reader that takes a middle state for the last would read the slow device; a correct one
    // waits.
    let chance = || {
        let _ = told.recv_timeout(std::time::Duration::from_millis(50));
    };
    let placement = cached.blocks.placement.lock();
    let (slot, _) = cached.blocks.index.get(0).unwrap();
    cached.blocks.index.unlink(slot);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| read_again(&cached));
        chance();
        cached.blocks.index.link(slot, 0, State::Writing);
        drop(placement);
        chance();
        let placement = cached.blocks.placement.lock();
        cached.blocks.index.set_dirty(slot, cached.blocks.index.checksum(slot));
        cached.blocks.settled.notify_all();
        drop(placement);
        assert_eq!(reader.join().unwrap(), 1, "what was acknowledged is lost");
    });
}

/// Reads again a dirty block at the end of a long chain, where lock-free look-ups give up.
fn end_of_a_long_chain() -> u8 {
    let (cached, _) = with_a_dirty_block(8192);
    let chain = |block: u64| {
        let hash = (block ^ cached.config().seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        (hash * 64) >> 32
    };
    for block in (1..8192).filter(|&block| chain(block) == chain(0)).take(40) {
        read(&*cached, block * BLOCK as u64, BLOCK);
    }
    assert!(
        cached.blocks.index.find(0).is_none() && cached.blocks.index.get(0).is_some(),
        "the chain is long"
    );
    read_again(&cached)
}

#[test]
fn a_dirty_block_at_the_end_of_a_long_chain_is_read_again_from_the_cache() {
    assert_eq!(end_of_a_long_chain(), 1);
}

/// Admits nothing, and notes the blocks it was asked about.
struct Asked(Arc<Mutex<Vec<u64>>>);

impl Admission for Asked {
    fn admits(&mut self, access: Access, _: Occupancy) -> bool {
        self.0.lock().push(access.block);
        false
    }
}

#[test]
fn a_request_whose_first_block_is_in_use_does_not_get_the_answer_of_the_one_before() {
    let slow = Interposed::new(1 << 20);
    let fast = Arc::new(MemoryDevice::new("fast", 0));
    let cached = Cached::open(Arc::clone(&slow) as Arc<dyn BlockDevice>, fast, timeless(16)).unwrap();
    let asked = Arc::new(Mutex::new(vec![]));
    let admission: Box<dyn Admission> = Box::new(Asked(Arc::clone(&asked)));
    let policy = Filtered::new(Lru::new(16), 16, vec![(Applies::Both, admission)]);
    cached.blocks.placement.lock().set_policy(Box::new(policy));
    let cached = Arc::new(cached);
    let other = Arc::clone(&cached);
    slow.before_next_write(move || drop(read(&*other, 0, 2 * BLOCK)));
    cached.write_at(0, &filled(BLOCK, 1)).unwrap();
    assert_eq!(cached.stats().bypasses.of(Bypass::InUse), 1);
    assert_eq!(*asked.lock(), [0, 1], "of the write's block, and of the one that was read");
}

mod planted_bugs {
    use super::*;
    use crate::planted::{CacheBug, plant};

    #[test]
    fn catches_serve_reused_slot() {
        plant(Some(CacheBug::ServeReusedSlot));
        let served = reader_of_a_reused_slot();
        plant(None);
        assert!(served.iter().any(|&byte| byte != 1), "the other block's bytes are seen");
    }

    #[test]
    fn catches_find_without_lock() {
        plant(Some(CacheBug::FindWithoutLock));
        let found = end_of_a_long_chain();
        plant(None);
        assert_eq!(found, 0, "the slow device's bytes are served");
    }

    #[test]
    fn catches_keep_raced_fetch() {
        plant(Some(CacheBug::KeepRacedFetch));
        let (served, truth) = block_written_while_it_is_fetched();
        plant(None);
        assert!(served[..] != truth[..], "the old block is served");
    }
}
