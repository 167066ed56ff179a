//! Region marks: parts of the slow device with writes that may not be durable.
//!
//! After a power cut, unsynced sectors of 512 bytes are old or new, and cached copies may differ.
//! So a region is marked durably on the fast device *before* its first write, and after a power cut
//! nothing of it is used. A mark is removed when
//!
//! 1. no write to the region is under way, or began after the last successful sync of the slow
//!    device did; and then
//! 2. the cache's blocks and journal are durable; otherwise an older copy of a block could return.
//!
//! Only quiet regions lose their marks, so a busy one costs one durable write in all, like the
//! write-intent bitmap of RAID. After a failed sync of the slow device, regions written since the
//! last good one are *in doubt*: not cached until the machine restarts. Region numbers wrap if the
//! device grows a lot; two locations then share a mark.
//!
//! Page format: CRC-32C of the rest (4 bytes), page number (4), generation at formatting (8), zeros
//! (16), a byte for each of 4064 regions: 0 unmarked, 1 marked, 2 in doubt.
//!
//! Locks: `io`, then `table`. Pages are written under `io` alone.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::checksum::checksum;
use super::layout::{Layout, PAGE_BYTES};
use terrace_io::{AlignedBuffer, BlockDevice, Write};

const HEAD_BYTES: usize = 32;

pub(super) const PAGE_REGIONS: usize = PAGE_BYTES - HEAD_BYTES;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Mark {
    None = 0,
    Written = 1,
    Doubt = 2,
    /// Only when read: the page is damaged.
    Unknown = 3,
}

#[derive(Clone, Copy, Debug)]
struct Region {
    mark: Mark,
    writes_under_way: u32,
    written_at: u64,
}

#[derive(Debug)]
struct Table {
    regions: Vec<Region>,
    tick: u64,
    /// Writes up to this tick are durable.
    synced: u64,
    rounds: u64,
}

#[derive(Debug)]
pub(super) struct Regions {
    layout: Layout,
    shift: u32,
    generation: u64,
    table: Mutex<Table>,
    io: Mutex<()>,
    any_doubt: AtomicBool,
    /// Removed marks may not be durable yet; true at open.
    is_loose: AtomicBool,
}

impl Regions {
    pub fn new(layout: Layout, shift: u32, generation: u64) -> Self {
        let count = layout.region_pages as usize * PAGE_REGIONS;
        let regions = vec![Region { mark: Mark::None, writes_under_way: 0, written_at: 1 }; count];
        Self {
            layout,
            shift,
            generation,
            table: Mutex::new(Table { regions, tick: 1, synced: 0, rounds: 0 }),
            io: Mutex::new(()),
            any_doubt: AtomicBool::new(false),
            is_loose: AtomicBool::new(true),
        }
    }

    pub fn read(fast: &dyn BlockDevice, layout: Layout, shift: u32) -> io::Result<Self> {
        let regions = Self::new(layout, shift, 0);
        let mut page = AlignedBuffer::zeroed(PAGE_BYTES);
        let mut table = regions.table.lock();
        for (number, marks) in (0..).zip(table.regions.chunks_mut(PAGE_REGIONS)) {
            fast.read_at(layout.region_page_offset(number), &mut page)?;
            let is_whole =
                page[..4] == checksum(&page[4..]).to_le_bytes() && page[4..8] == number.to_le_bytes();
            for (region, byte) in marks.iter_mut().zip(&page[HEAD_BYTES..]) {
                region.mark = match byte {
                    0 if is_whole => Mark::None,
                    1 if is_whole => Mark::Written,
                    2 if is_whole => Mark::Doubt,
                    _ => Mark::Unknown,
                };
            }
        }
        drop(table);
        Ok(regions)
    }

    fn region(&self, offset: u64) -> usize {
        (offset >> self.shift) as usize % (self.layout.region_pages as usize * PAGE_REGIONS)
    }

    pub fn mark(&self, offset: u64) -> Mark {
        self.table.lock().regions[self.region(offset)].mark
    }

    /// Whether marks were removed since the last sync of the fast device.
    pub fn is_loose(&self) -> bool {
        self.is_loose.load(Ordering::Acquire)
    }

    /// Records a sync of the fast device without mark removals meanwhile.
    pub fn tighten(&self) {
        self.is_loose.store(false, Ordering::Release);
    }

    pub fn is_in_doubt(&self, offset: u64) -> bool {
        self.any_doubt.load(Ordering::Acquire) && self.mark(offset) == Mark::Doubt
    }

    pub fn keep_doubts(&self, before: &Regions) {
        let (mut table, before) = (self.table.lock(), before.table.lock());
        for (region, before) in table.regions.iter_mut().zip(&before.regions) {
            if before.mark == Mark::Doubt {
                region.mark = Mark::Doubt;
                self.any_doubt.store(true, Ordering::Release);
            }
        }
    }

    fn image(&self, table: &Table, page: u32) -> AlignedBuffer {
        let mut image = AlignedBuffer::zeroed(PAGE_BYTES);
        image[4..8].copy_from_slice(&page.to_le_bytes());
        image[8..16].copy_from_slice(&self.generation.to_le_bytes());
        let first = page as usize * PAGE_REGIONS;
        let marks = &table.regions[first..first + PAGE_REGIONS];
        for (byte, region) in image[HEAD_BYTES..].iter_mut().zip(marks) {
            *byte = region.mark as u8;
        }
        let check = checksum(&image[4..]);
        image[..4].copy_from_slice(&check.to_le_bytes());
        image
    }

    /// Writes all pages, without a sync.
    pub fn write_all(&self, fast: &dyn BlockDevice) -> io::Result<()> {
        let _io = self.io.lock();
        let images: Vec<_> = {
            let table = self.table.lock();
            (0..self.layout.region_pages).map(|page| (page, self.image(&table, page))).collect()
        };
        let writes: Vec<_> = images
            .iter()
            .map(|(page, image)| Write::new(self.layout.region_page_offset(*page), image))
            .collect();
        fast.write_batch(&writes)
    }

    /// The regions of ranges `(offset, length)`, ascending and without duplicates.
    pub fn of(&self, ranges: impl Iterator<Item = (u64, u64)>) -> Vec<usize> {
        let count = self.layout.region_pages as u64 * PAGE_REGIONS as u64;
        let mut regions = Vec::new();
        for (offset, length) in ranges.filter(|(_, length)| *length > 0) {
            let (first, last) = (offset >> self.shift, (offset + length - 1) >> self.shift);
            let last = last.min(first + count - 1);
            regions.extend((first..=last).map(|number| (number % count) as usize));
        }
        regions.sort_unstable();
        regions.dedup();
        regions
    }

    /// Marks regions durably before their writes begin.
    ///
    /// From here on their writes count as under way, also if this fails.
    pub fn begin(&self, fast: &dyn BlockDevice, regions: &[usize]) -> io::Result<()> {
        let is_marked = {
            let mut table = self.table.lock();
            let mut is_marked = true;
            for &region in regions {
                let region = &mut table.regions[region];
                region.writes_under_way += 1;
                is_marked &= region.mark != Mark::None;
            }
            is_marked
        };
        if is_marked {
            return Ok(());
        }
        let _io = self.io.lock();
        for of_page in regions.chunk_by(|one, other| one / PAGE_REGIONS == other / PAGE_REGIONS) {
            let page = (of_page[0] / PAGE_REGIONS) as u32;
            // Marked in memory only when the page is durable; until then others must wait, too.
            let image = {
                let mut table = self.table.lock();
                let new: Vec<_> =
                    of_page.iter().filter(|&&region| table.regions[region].mark == Mark::None).collect();
                if new.is_empty() {
                    continue;
                }
                new.iter().for_each(|&&region| table.regions[region].mark = Mark::Written);
                let image = self.image(&table, page);
                new.iter().for_each(|&&region| table.regions[region].mark = Mark::None);
                image
            };
            fast.write_through_at(self.layout.region_page_offset(page), &image)?;
            let mut table = self.table.lock();
            for &region in of_page {
                let mark = &mut table.regions[region].mark;
                *mark = if *mark == Mark::None { Mark::Written } else { *mark };
            }
        }
        Ok(())
    }

    pub fn end(&self, regions: &[usize]) {
        let mut table = self.table.lock();
        let tick = table.tick;
        for &region in regions {
            let region = &mut table.regions[region];
            region.writes_under_way -= 1;
            region.written_at = tick;
        }
    }

    /// Announces a sync of the slow device and returns its number; one at a time.
    pub fn begin_sync(&self) -> u64 {
        let mut table = self.table.lock();
        table.tick += 1;
        table.tick - 1
    }

    pub fn synced(&self, number: u64) {
        let mut table = self.table.lock();
        table.synced = table.synced.max(number);
    }

    /// Records a failed sync: puts unsynced and unknown regions in doubt.
    ///
    /// This includes all regions that were marked at open.
    pub fn sync_failed(&self) {
        let mut table = self.table.lock();
        let synced = table.synced;
        for region in &mut table.regions {
            let is_marked = matches!(region.mark, Mark::Written | Mark::Unknown);
            if is_marked && (region.written_at > synced || region.writes_under_way > 0) {
                region.mark = Mark::Doubt;
                self.any_doubt.store(true, Ordering::Release);
            }
        }
    }

    /// Marked regions that are durable, and quiet unless `even_recent`.
    pub fn settled(&self, even_recent: bool) -> Vec<(usize, u64)> {
        let mut table = self.table.lock();
        let newest = if even_recent { table.synced } else { table.synced.min(table.rounds) };
        table.rounds = table.synced;
        let settled = table.regions.iter().enumerate().filter(|(_, region)| {
            region.mark == Mark::Written && region.writes_under_way == 0 && region.written_at <= newest
        });
        settled.map(|(number, region)| (number, region.written_at)).collect()
    }

    /// Removes the marks of `settled` regions that were not written since.
    ///
    /// All work before [`Regions::settled`] must be durable by now.
    pub fn unmark(&self, fast: &dyn BlockDevice, settled: &[(usize, u64)]) -> io::Result<()> {
        let _io = self.io.lock();
        if !settled.is_empty() {
            self.is_loose.store(true, Ordering::Release);
        }
        for of_page in settled.chunk_by(|one, other| one.0 / PAGE_REGIONS == other.0 / PAGE_REGIONS) {
            let page = (of_page[0].0 / PAGE_REGIONS) as u32;
            let image = {
                let mut table = self.table.lock();
                for &(number, written_at) in of_page {
                    let region = &mut table.regions[number];
                    if region.writes_under_way == 0
                        && region.written_at == written_at
                        && region.mark == Mark::Written
                    {
                        region.mark = Mark::None;
                    }
                }
                self.image(&table, page)
            };
            fast.write_at(self.layout.region_page_offset(page), &image)?;
        }
        Ok(())
    }
}
