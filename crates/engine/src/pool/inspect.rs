//! The memory and file space that a pool uses.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::buffer_pool::Pool;
use super::frames::HEADER_BYTES;
use super::partition::{ByPartition, Partition};
use crate::backend::Backend;
use crate::ids::SizeClass;
use crate::page_table::PageTableKind;
use crate::stats::FrameClass;

/// Memory and file space of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Footprint {
    /// Frames by page size, smallest first.
    pub(crate) frames: Vec<FrameClass>,
    pub(crate) page_table: PageTableKind,
    pub(crate) is_swizzled: bool,
    pub(crate) page_table_bytes: u64,
    pub(crate) live_pages: u64,
    pub(crate) file_bytes: u64,
    /// Bytes of current images.
    pub(crate) live_bytes: u64,
}

impl Footprint {
    pub(crate) fn of(pool: &Pool) -> Footprint {
        let ids = pool.ids.lock();
        Footprint {
            frames: frames_by_class(pool),
            page_table: pool.table.kind(),
            is_swizzled: pool.table.is_swizzled(),
            page_table_bytes: ids.free_bytes()
                + pool.table.bytes(ids.entries())
                + pool.frames.tables_bytes(&ids.ends()),
            live_pages: ids.used(),
            file_bytes: pool.device.len(),
            live_bytes: pool.space.live_bytes(),
        }
    }
}

fn frames_by_class(pool: &Pool) -> Vec<FrameClass> {
    let one = |class: SizeClass| {
        let (page_bytes, frames) = (class.page_bytes() as u64, u64::from(pool.frames.count(class)));
        let partition = Partition::from(class);
        let count = |counts: &ByPartition<AtomicU64>| counts[partition.index()].load(Relaxed);
        FrameClass {
            page_bytes,
            frames,
            bytes: frames * (page_bytes + HEADER_BYTES),
            resident_bytes: pool.frames.resident_bytes(class).saturating_sub(resident_in_middle(pool, class)),
            huge_pages: pool.frames.huge_pages(class),
            taken: pool.stats.taken(class),
            gained: count(&pool.stats.frames_gained),
            lost: count(&pool.stats.frames_lost),
        }
    };
    pool.frames.classes().map(one).collect()
}

/// Resident bytes of mapped pages of `class` in the middle tier. The frames count them together
/// with those in DRAM.
fn resident_in_middle(pool: &Pool, class: SizeClass) -> u64 {
    let partition = Partition::middle(class);
    if pool.backend() == Backend::Frames || pool.frames.count(partition) == 0 {
        return 0;
    }
    let idle = pool.replacer.free(partition).lock().idle(&pool.frames);
    u64::from(pool.frames.count(partition)).saturating_sub(idle) * class.page_bytes() as u64
}
