//! The page cache of an operating system, before a simulated disk.
//!
//! Buffered files leave pages of 4 KiB in DRAM, as in NVCache (footnote 7, section 4.1.1). The page
//! used longest ago leaves first. A read copies the pages that are there; before that the disk
//! reads the runs of the others, all at once, into pages. A write copies into pages and then waits
//! for the disk, so no page is dirty. A system would write later, with the same bytes.
//!
//! Only time is simulated: the bytes always come from the device below.

use std::collections::{BTreeMap, HashMap};

use parking_lot::Mutex;

use super::SimulatedMemory;
use super::channel::Time;
use super::profile::{Direction, Pattern, Profile};

pub(super) const PAGE_BYTES: u64 = 4096;
/// Nanoseconds of a system call, measured on a virtual machine of 2025: a read of one byte.
const CALL_NS: u64 = 460;

#[derive(Debug)]
pub(super) struct PageCache {
    memory: SimulatedMemory,
    address: u64,
    pages: Mutex<Pages>,
}

/// Offset and bytes of a transfer.
pub(super) type Transfer = (u64, usize);

impl PageCache {
    /// The page cache of a disk with `profile`, if it has a page.
    pub(super) fn before(profile: &Profile, time: &Time) -> Option<PageCache> {
        let layout = profile.page_cache.as_deref().filter(|layout| layout.bytes >= PAGE_BYTES)?;
        Some(PageCache {
            memory: SimulatedMemory::new(layout.memory.clone(), time.clone()),
            address: layout.address,
            pages: Mutex::new(Pages::new(layout.bytes / PAGE_BYTES)),
        })
    }

    /// Charges `reads`. `disk` charges the runs that it must read.
    pub(super) fn read(&self, reads: impl Iterator<Item = Transfer>, disk: impl FnOnce(&[Transfer])) {
        let (mut missing, mut used): (Vec<Transfer>, Vec<(u64, bool)>) = (Vec::new(), Vec::new());
        for read in reads {
            self.call();
            let mut pages = self.pages.lock();
            let mut follows = false;
            for page in pages_of(read) {
                let (slot, is_there) = pages.use_page(page);
                used.push((slot, is_there));
                match missing.last_mut() {
                    _ if is_there => {}
                    Some((_, bytes)) if follows => *bytes += PAGE_BYTES as usize,
                    _ => missing.push((page * PAGE_BYTES, PAGE_BYTES as usize)),
                }
                follows = !is_there;
            }
        }
        if !missing.is_empty() {
            disk(&missing);
        }
        for (slot, is_there) in used {
            if !is_there {
                _ = self.memory.write(self.address_of(slot), PAGE_BYTES, Pattern::Sequential);
            }
            self.copy(Direction::Read, slot);
        }
    }

    /// Charges `writes`, but for the disk.
    pub(super) fn write(&self, writes: impl Iterator<Item = Transfer>) {
        for write in writes {
            self.call();
            for page in pages_of(write) {
                let (slot, _) = self.pages.lock().use_page(page);
                self.copy(Direction::Write, slot);
            }
        }
    }

    fn call(&self) {
        self.memory.channel.wait(CALL_NS * 1000).finish();
    }

    fn copy(&self, direction: Direction, slot: u64) {
        let charge = self.memory.begin(direction, self.address_of(slot), PAGE_BYTES, Pattern::Sequential);
        self.memory.copy(PAGE_BYTES);
        charge.finish();
    }

    fn address_of(&self, slot: u64) -> u64 {
        self.address + slot * PAGE_BYTES
    }
}

fn pages_of((offset, bytes): Transfer) -> std::ops::Range<u64> {
    offset / PAGE_BYTES..offset.saturating_add(bytes as u64).div_ceil(PAGE_BYTES)
}

/// The pages in memory.
#[derive(Debug)]
struct Pages {
    capacity: u64,
    /// By page: its last use and its slot.
    slots: HashMap<u64, (u64, u64)>,
    /// Pages by last use.
    order: BTreeMap<u64, u64>,
    uses: u64,
}

impl Pages {
    fn new(capacity: u64) -> Pages {
        Pages { capacity, slots: HashMap::new(), order: BTreeMap::new(), uses: 0 }
    }

    /// The slot of `page`, and whether it was there.
    fn use_page(&mut self, page: u64) -> (u64, bool) {
        self.uses += 1;
        let (slot, is_there) = match self.slots.remove(&page) {
            Some((last_use, slot)) => {
                self.order.remove(&last_use);
                (slot, true)
            }
            None if (self.slots.len() as u64) < self.capacity => (self.slots.len() as u64, false),
            None => {
                let (_, oldest) = self.order.pop_first().expect("a full cache has pages");
                let (_, slot) = self.slots.remove(&oldest).expect("every page has a slot");
                (slot, false)
            }
        };
        self.slots.insert(page, (self.uses, slot));
        self.order.insert(self.uses, page);
        (slot, is_there)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::device::SimulatedDevice;
    use super::super::virtual_time::VirtualTime;
    use super::*;
    use crate::{AlignedBuffer, BlockDevice, MemoryDevice, Read};

    const DISK_NS: u64 = 12_000;
    /// A page's copy takes the core longer than the memory.
    const COPY_NS: u64 = 62 * 4;
    /// A page from the disk is written to DRAM: 75 ns, and 4096 bytes at 180 GB/s.
    const FILL_NS: u64 = 75 + 22;

    fn dram() -> Profile {
        Profile::named("dram").unwrap()
    }

    /// A disk of 1 MiB behind a page cache.
    fn disk(bytes: u64, memory: Profile) -> (SimulatedDevice, Arc<VirtualTime>) {
        let time = Arc::new(VirtualTime::new(1));
        let profile = Profile::named("nvme-optane").unwrap().with_page_cache(bytes, memory, 0);
        let inner = Arc::new(MemoryDevice::new("pages", 1 << 20));
        (SimulatedDevice::new(inner, profile, Time::Virtual(Arc::clone(&time))), time)
    }

    /// Nanoseconds of a read of pages.
    fn read(device: &SimulatedDevice, time: &VirtualTime, page: u64, pages: usize) -> u64 {
        let (before, mut buffer) = (time.now(0), AlignedBuffer::zeroed(pages * PAGE_BYTES as usize));
        device.read_at(page * PAGE_BYTES, &mut buffer).unwrap();
        time.now(0) - before
    }

    fn is_read_by_disk(nanoseconds: u64) -> bool {
        nanoseconds > DISK_NS
    }

    #[test]
    fn a_page_that_was_read_or_written_is_copied() {
        let (device, time) = disk(1 << 20, dram());
        let first = read(&device, &time, 64, 4);
        let transfer = 16384 * 10 / 24;
        let expected = CALL_NS + DISK_NS + transfer + 4 * (FILL_NS + COPY_NS);
        assert!(first.abs_diff(expected) <= 5, "{first} {expected}");
        assert_eq!(read(&device, &time, 64, 4), CALL_NS + 4 * COPY_NS);
        let before = time.now(0);
        device.write_at(128 * PAGE_BYTES, &AlignedBuffer::zeroed(4096)).unwrap();
        assert!(time.now(0) - before > CALL_NS + COPY_NS + DISK_NS, "a write waits for the disk");
        assert_eq!(read(&device, &time, 128, 1), CALL_NS + COPY_NS);
    }

    #[test]
    fn the_disk_reads_the_runs_that_are_missing_at_once() {
        let (device, time) = disk(1 << 20, dram());
        read(&device, &time, 2, 1);
        let runs = |first: u64| {
            let mut seen = Vec::new();
            let cache = PageCache::before(device.profile(), &Time::Virtual(Arc::clone(&time))).unwrap();
            cache.read([(first * PAGE_BYTES + 4096, 4096)].into_iter(), |_| {});
            let reads = [(first * PAGE_BYTES, 16384), (40 * PAGE_BYTES, 100)];
            cache.read(reads.into_iter(), |missing| seen.extend_from_slice(missing));
            seen.iter().map(|(offset, bytes)| (offset / PAGE_BYTES, bytes / 4096)).collect::<Vec<_>>()
        };
        assert_eq!(runs(0), [(0, 1), (2, 2), (40, 1)]);
        assert_eq!(runs(36), [(36, 1), (38, 2), (40, 1)], "each read has its own runs");
        let before = time.now(0);
        let (mut first, mut last) = (AlignedBuffer::zeroed(4096), AlignedBuffer::zeroed(4096));
        device.read_batch(&mut [Read::new(0, &mut first), Read::new(99 * PAGE_BYTES, &mut last)]);
        // A disk's unit has 16 KiB.
        let (units, others) = (2 * 16384 * 10 / 24, 2 * (CALL_NS + FILL_NS + COPY_NS));
        let expected = DISK_NS + units + others;
        assert!((time.now(0) - before).abs_diff(expected) <= 5, "both wait for the disk once");
    }

    #[test]
    fn the_page_used_longest_ago_leaves() {
        let (device, time) = disk(2 * PAGE_BYTES, dram());
        for page in [0, 1, 0, 2] {
            read(&device, &time, page, 1);
        }
        assert_eq!([0, 1].map(|page| is_read_by_disk(read(&device, &time, page, 1))), [false, true]);
        assert_eq!([2, 1].map(|page| is_read_by_disk(read(&device, &time, page, 1))), [true, false]);
        let (none, time) = disk(PAGE_BYTES - 1, dram());
        assert!((0..2).all(|_| is_read_by_disk(read(&none, &time, 0, 1))), "no page fits");
    }

    /// Pages of another memory in the same modules push lines out of their DRAM.
    #[test]
    fn in_memory_mode_it_shares_dram_with_other_memory_of_the_modules() {
        let modules = Profile::named("optane").unwrap().with_cache_bytes(0).with_dram_cache_bytes(64 << 10);
        let (device, time) = disk(1 << 20, modules.clone());
        let hit = |page| read(&device, &time, page, 1);
        hit(0);
        let (warm, memory) = (hit(0), SimulatedMemory::new(modules, Time::Virtual(Arc::clone(&time))));
        let counted = memory.dram_cache().unwrap();
        assert!(counted.hits >= 64 && counted.misses >= 64, "it counts the page's lines: {counted:?}");
        memory.read(64 << 10, 64 << 10, Pattern::Sequential);
        assert!(hit(0) > warm, "the lines come from Optane memory again");
        assert_eq!(hit(0), warm);
        let apart = Arc::new(VirtualTime::new(1));
        let other = SimulatedMemory::new(memory.profile().clone(), Time::Virtual(apart));
        assert_eq!(other.dram_cache().unwrap().misses, 0, "another machine");
    }
}
