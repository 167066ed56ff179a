//! The split of the memory budget into parts, and the least sizes of the parts.
//!
//! The record cache has no part: it borrows frames (`pool/record_cache/share.rs`).
//! [`Split::with_frames`] computes the share of the page table.

use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::ids::SizeClass;
use crate::pool::options::HashOptions;
use crate::pool::{
    BATCH_PAGES_MAX, BATCHES_MAX, BufferSizes, FRAMES_MAX, RECORD_BYTES_PER_FRAME, RecordCache,
    VALUE_FRAMES_MIN, buffers_bytes, bytes_per_entry, frame_cost, table_bytes_per_page,
};
use crate::store::page_sizes::PageSizes;

/// The smallest budget, bytes. Below it no room for frames is left.
pub const MIN_DRAM_BYTES: u64 = 1 << 20;
/// The smallest log, bytes.
pub const MIN_LOG_BYTES: u64 = 256 << 10;
/// Least frames of each page size in use, if tree nodes can have that size.
pub(crate) const FRAMES_MIN: u32 = 24;

/// For tree nodes.
pub(crate) fn class_of(page_bytes: u64) -> Result<SizeClass> {
    class_between(page_bytes, SizeClass::SMALLEST, SizeClass::LARGEST_NODE, "pages")
}

/// For any content.
pub(crate) fn any_class_of(page_bytes: u64) -> Result<SizeClass> {
    class_between(page_bytes, SizeClass::SMALLEST, SizeClass::LARGEST, "pages")
}

/// For long values of a table of class `own`.
pub(crate) fn value_class_of(page_bytes: u64, own: SizeClass) -> Result<SizeClass> {
    class_between(page_bytes, own, SizeClass::LARGEST, "pages for values")
}

fn class_between(page_bytes: u64, least: SizeClass, most: SizeClass, what: &str) -> Result<SizeClass> {
    let class = SizeClass::of_bytes(page_bytes).filter(|class| (least..=most).contains(class));
    class.ok_or_else(|| {
        let [least, most] = [least, most].map(SizeClass::page_bytes);
        Error::Config(format!(
            "{what} of {page_bytes} bytes; a power of two from {least} to {most} is possible"
        ))
    })
}

pub(super) fn check_dram(bytes: u64) -> Result<u64> {
    if bytes < MIN_DRAM_BYTES {
        return Err(Error::Config(format!("dram of {bytes} bytes; the least is {MIN_DRAM_BYTES} (1 MiB)")));
    }
    Ok(bytes)
}

/// The budget, split into parts of bytes or slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Split {
    pub(crate) total: u64,
    pub(crate) buffers: BufferSizes,
    pub(crate) versions: u64,
    pub(crate) lock_slots: usize,
    pub(crate) clock_window: usize,
    /// For writes of a read-only open.
    pub(crate) overlay: u64,
    /// For headers of the middle tier's frames and the index of the block cache.
    pub(crate) beside: u64,
    pub(crate) record_overhead_per_frame: u64,
    /// Bytes beside the page table per page of the file, in memory or not.
    pub(crate) table_bytes_per_page: u64,
    /// Bytes of the array per page of the file.
    pub(crate) array_bytes_per_page: u64,
    /// In place of the array, which serves recovery alone, before there are pages in frames.
    pub(crate) hash: Option<HashOptions>,
    pub(crate) frame_bytes: u64,
}

/// Least bytes that recovery in memory leaves to everything else, for small budgets.
const BESIDE_OVERLAY_BYTES_MIN: u64 = 768 << 10;
/// Bytes to note a new epoch and the log end in memory.
const OVERLAY_BYTES_MIN: u64 = 64 << 10;

/// Bytes that a read-only open may use for writes, of a budget of `total`.
///
/// Half of the budget if the log holds changes, so that recovery can keep their results.
pub(crate) fn overlay_bytes(total: u64, log_has_changes: bool) -> u64 {
    match log_has_changes {
        true => (total / 2).min(total.saturating_sub(BESIDE_OVERLAY_BYTES_MIN)).max(OVERLAY_BYTES_MIN),
        false => OVERLAY_BYTES_MIN,
    }
}

/// Least pages per segment. It limits the share lost at a segment's end.
pub(super) const SEGMENT_PAGES_MIN: u64 = 16;
/// Largest segment for nodes. A new file has eight.
pub(super) const SEGMENT_BYTES_MAX: u64 = 512 << 10;
/// Bytes of padded slots: snapshots, gate, keys in flight, shards, tickets, counters.
const SLOT_BYTES: u64 = 192 << 10;

/// Least number of pages of a size that each part must hold.
pub(super) struct Needs {
    log_buffer: u64,
    staging: u64,
    /// In batch buffers: those of one buffer, and one more.
    batches: u64,
    pub(super) log: u64,
    pub(super) segment: u64,
}

/// Of sizes for nodes. A batch of a large value is one record of sixteen pages.
const NODE_NEEDS: Needs = Needs { log_buffer: 32, staging: 8, batches: 2, log: 64, segment: 4 };
/// Of sizes for values alone: one page per record. Two buffers hold an image and its page.
const VALUE_NEEDS: Needs = Needs { log_buffer: 2, staging: 2, batches: 4, log: 8, segment: 4 };
/// Least pages in batch buffers, for node sizes: the number of possible buffers.
const BATCHES_PAGES_MIN: u64 = 4;

pub(super) fn needs(class: SizeClass) -> &'static Needs {
    if class.is_for_values() { &VALUE_NEEDS } else { &NODE_NEEDS }
}

/// The least log for pages of `class`.
pub(crate) fn log_bytes_min(class: SizeClass) -> u64 {
    needs(class).log * class.page_bytes() as u64
}

/// Bytes per page: its share of the free ids.
const ID_BYTES_PER_PAGE: u64 = 2;
/// Part of the budget for pages to come, as a divisor.
pub(super) const TABLE_SHARE: u64 = 48;

pub(crate) fn frames_min(class: SizeClass) -> u32 {
    if class.is_for_values() { VALUE_FRAMES_MIN } else { FRAMES_MIN }
}

impl Split {
    /// Splits `total` bytes for these page sizes and a page file of `file_pages` pages.
    pub(crate) fn new(
        total: u64,
        versions: Option<u64>,
        records: RecordCache,
        backend: Backend,
        sizes: PageSizes,
        file_pages: u64,
    ) -> Result<Split> {
        let page_bytes = sizes.largest_node().page_bytes() as u64;
        let value_bytes = sizes.largest_for_values().map_or(0, |class| class.page_bytes() as u64);
        let log_buffer = (total / 32).min(crate::wal::BUFFER_BYTES_MAX);
        let log_buffer = log_buffer
            .max(NODE_NEEDS.log_buffer * page_bytes)
            .max(VALUE_NEEDS.log_buffer * value_bytes)
            .next_power_of_two();
        let least = NODE_NEEDS.staging * page_bytes;
        let staging = (total / 64).clamp(least, (2 << 20).max(least));
        let staging = (staging / page_bytes * page_bytes).max(VALUE_NEEDS.staging * value_bytes);
        let batches = (total / 64 / page_bytes)
            .clamp(BATCHES_PAGES_MIN, (BATCH_PAGES_MAX * BATCHES_MAX) as u64)
            * page_bytes;
        let batches = batches.max(VALUE_NEEDS.batches * value_bytes);
        // Keeps later sums from overflowing; too much is still refused.
        let versions = versions.unwrap_or(Split::versions_share(total)).min(total);
        let lock_slots =
            ((total / 256 / 16) as usize).clamp(256, crate::txn::locks::LockTable::SLOTS_DEFAULT);
        let clock_window = ((total / 512 / 16) as usize).clamp(64, crate::txn::clock::Clock::WINDOW_DEFAULT);
        let split = Split {
            total,
            buffers: BufferSizes {
                log: log_buffer,
                staging,
                batches,
                batch_least: VALUE_NEEDS.batches / 2 * value_bytes,
            },
            versions,
            lock_slots,
            clock_window,
            overlay: 0,
            beside: 0,
            record_overhead_per_frame: if records == RecordCache::Off { 0 } else { RECORD_BYTES_PER_FRAME },
            table_bytes_per_page: ID_BYTES_PER_PAGE + table_bytes_per_page(backend, sizes.own),
            array_bytes_per_page: bytes_per_entry(false),
            hash: None,
            frame_bytes: 0,
        };
        split.with_frames(sizes, file_pages)
    }

    /// Gives the array hints.
    pub(crate) fn with_hints(self, sizes: PageSizes, file_pages: u64) -> Result<Split> {
        Split { array_bytes_per_page: bytes_per_entry(true), ..self }.with_frames(sizes, file_pages)
    }

    /// Takes `bytes` for middle tier and block cache off the frames.
    pub(crate) fn with_beside(self, bytes: u64, sizes: PageSizes, file_pages: u64) -> Result<Split> {
        Split { beside: bytes, ..self }.with_frames(sizes, file_pages)
    }

    /// Gives the share of the array to a hash table, and takes that of its swips off the frames.
    pub(crate) fn with_hash(self, hash: HashOptions, sizes: PageSizes, file_pages: u64) -> Result<Split> {
        Split { hash: Some(hash), ..self }.with_frames(sizes, file_pages)
    }

    /// Bytes of the page table with `pages` pages and room for others.
    fn table_bytes(&self, pages: u64) -> u64 {
        let (table, swips) = match self.hash {
            Some(hash) => (hash.bytes(pages), hash.swips_bytes()),
            None => (pages * self.array_bytes_per_page, 0),
        };
        (self.total / TABLE_SHARE).max(table + pages * self.table_bytes_per_page) + swips
    }

    /// Splits a new budget of `total` bytes at run time.
    ///
    /// Parts fixed at open stay; old versions may take `versions` bytes.
    pub(crate) fn resized(
        &self,
        total: u64,
        versions: u64,
        sizes: PageSizes,
        file_pages: u64,
    ) -> Result<Split> {
        let versions = versions.min(check_dram(total)?);
        Split { total, versions, ..*self }.with_frames(sizes, file_pages)
    }

    /// Largest node class that the fixed parts have room for.
    pub(crate) fn largest_node(&self) -> SizeClass {
        let has_room = |class: &SizeClass| {
            !class.is_for_values() && self.check_class(*class, u64::MAX, u64::MAX).is_ok()
        };
        SizeClass::all().rev().find(has_room).unwrap_or(SizeClass::SMALLEST)
    }

    /// Default limit of old versions for a budget of `total` bytes.
    pub(crate) fn versions_share(total: u64) -> u64 {
        total / 16
    }

    fn with_frames(mut self, sizes: PageSizes, file_pages: u64) -> Result<Split> {
        let Split {
            total,
            buffers: BufferSizes { log: log_buffer, staging, batches, .. },
            versions,
            lock_slots,
            clock_window,
            overlay,
            beside,
            record_overhead_per_frame,
            ..
        } = self;
        let page_table = self.table_bytes(file_pages);
        let log_memory = crate::wal::Wal::memory_bytes(log_buffer);
        let buffers = buffers_bytes(sizes.largest_used());
        let fixed = (log_memory + staging + (lock_slots * 16 + clock_window * 16) as u64 + SLOT_BYTES)
            .saturating_add(batches + page_table + buffers)
            .saturating_add(versions)
            .saturating_add(overlay)
            .saturating_add(beside);
        // The record cache may take all frames of the database's own size, so each of them counts
        // its bytes.
        let own_cost = frame_cost(sizes.own);
        let frames = total.saturating_sub(fixed) / (own_cost + record_overhead_per_frame);
        let floors =
            sizes.in_use().map(|class| u64::from(frames_min(class)) * frame_cost(class)).sum::<u64>();
        if frames * own_cost < floors {
            let least =
                fixed.saturating_add(floors.div_ceil(own_cost) * (own_cost + record_overhead_per_frame));
            let least = least.checked_next_multiple_of(1 << 20).unwrap_or(u64::MAX);
            let (values, nodes): (Vec<_>, Vec<_>) = sizes.in_use().partition(|class| class.is_for_values());
            let named = |classes: Vec<SizeClass>| {
                let bytes: Vec<String> = classes.iter().map(|class| class.page_bytes().to_string()).collect();
                bytes.join(" and of ")
            };
            let values = match values.is_empty() {
                true => String::new(),
                false => format!(", and {VALUE_FRAMES_MIN} of {} bytes", named(values)),
            };
            return Err(Error::Config(format!(
                "dram of {total} bytes leaves {} bytes for frames; {FRAMES_MIN} frames of {} bytes{values} are needed; \
                 give it about {least} bytes",
                frames * own_cost,
                named(nodes)
            )));
        }
        self.frame_bytes = buffers + frames.min(FRAMES_MAX.into()) * own_cost;
        Ok(self)
    }

    /// Checks that the parts have room for pages of `class`, given log and segment sizes.
    ///
    /// # Errors
    /// [`Error::Config`], with a setting that would do.
    pub(crate) fn check_class(&self, class: SizeClass, log_capacity: u64, segment_bytes: u64) -> Result<()> {
        let (page_bytes, needs) = (class.page_bytes() as u64, needs(class));
        let setting = if class.is_for_values() { "value_page_size_max" } else { "page_size_max" };
        let made = [
            ("the log", log_capacity, needs.log, "log_max"),
            ("a segment", segment_bytes, needs.segment, setting),
        ];
        for (what, bytes, pages, setting) in made {
            if bytes < pages * page_bytes {
                return Err(Error::Config(format!(
                    "pages of {page_bytes} bytes; {what} of this database has {bytes} bytes, and {pages} pages are needed: \
                     that is decided when a database is created, by {setting}"
                )));
            }
        }
        let opened = [
            ("log buffer", self.buffers.log, needs.log_buffer),
            ("staging buffer", self.buffers.staging, needs.staging),
            ("buffers for batches of reads", self.buffers.batches, needs.batches),
        ];
        for (what, bytes, pages) in opened {
            if bytes < pages * page_bytes {
                return Err(Error::Config(format!(
                    "pages of {page_bytes} bytes; the {what} of this database has {bytes} bytes, and {pages} pages are \
                     needed: open it with {setting}({page_bytes}), or with a larger dram"
                )));
            }
        }
        Ok(())
    }
}
