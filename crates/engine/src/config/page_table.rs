//! The page table of a builder.

use super::Builder;
use super::split::TABLE_SHARE;
use crate::error::{Error, Result};
use crate::ids::SizeClass;
use crate::page_table::PageTableKind;
use crate::pool::options::HashOptions;
use crate::pool::{SwipSizes, first_slots, frame_cost};

/// A hash table for `file_pages` pages, of a budget in bytes and its upper limit.
///
/// # Errors
/// [`Error::Config`] for swips without one, unless they are a default.
pub(crate) fn hash_options(
    builder: &Builder,
    class: SizeClass,
    file_pages: u64,
    (dram, dram_max): (u64, u64),
) -> Result<Option<HashOptions>> {
    let (default, default_swizzle) = builder.defaults.table;
    let swizzle = builder.swizzle.unwrap_or(default_swizzle && builder.page_table.is_none());
    if builder.page_table.unwrap_or(default) == PageTableKind::Array {
        return match swizzle && builder.swizzle.is_some() {
            true => Err(Error::Config(
                "swizzle needs the page table hash: the page id alone names an entry of the array, so a swip spares nothing"
                    .to_owned(),
            )),
            false => Ok(None),
        };
    }
    let frames = |bytes: u64| bytes / frame_cost(class);
    let swips = swizzle.then(|| SwipSizes::of(class.page_bytes() as u64, frames(dram), frames(dram_max)));
    Ok(Some(HashOptions { slots: first_slots(file_pages, dram / TABLE_SHARE), swips }))
}

/// The hash table of this run of the tests, small enough to grow.
#[cfg(test)]
pub(crate) fn hash_of_environment() -> Option<HashOptions> {
    let sizes = (1 << 16, 16 << 20);
    hash_options(&Builder::default(), SizeClass::SMALLEST, 0, sizes).expect("there are defaults")
}
