//! Recovery: writes the previous run's dirty blocks to the slow device, in order of epochs.
//!
//! Of several versions of a block in one epoch, the latest record counts. A version with a wrong
//! checksum was torn by a power cut before its sync, and is skipped. In a durable epoch it is
//! damaged, and the opening fails without changes. Recovery may be repeated after any failure.

use std::collections::{BTreeMap, HashMap};

use super::CacheError;
use super::checksum::checksum;
use super::journal::replay;
use super::layout::Superblock;
use super::record::Record;
use terrace_io::{AlignedBuffer, BlockDevice};

#[derive(Debug, Default)]
pub(super) struct Recovered {
    /// By dirty block, the slot that now equals the slow device, if any.
    pub slots: HashMap<u64, Option<u32>>,
    pub written: u64,
}

/// Writes the dirty blocks of `fast` to `slow`; `may_be_torn` as for [`replay`].
pub(super) fn recover(
    slow: &dyn BlockDevice,
    fast: &dyn BlockDevice,
    superblock: &Superblock,
    may_be_torn: bool,
) -> Result<Recovered, CacheError> {
    let incomplete = |reason: String| CacheError::Incomplete { device: slow.name().to_owned(), reason };
    let unreadable = |error| incomplete(format!("{} cannot be read: {error}", fast.name()));
    let layout = superblock.layout;
    // By slot, the record and the number of records before it.
    let mut found = vec![None; layout.slots as usize];
    let (mut records, mut durable) = (0_u64, 0);
    let is_whole = replay(fast, superblock, may_be_torn, |record| {
        records += 1;
        match record {
            Record::Holds { slot, content } => found[slot as usize] = Some((records, content)),
            Record::Free { slot } => found[slot as usize] = None,
            Record::Durable { epoch } => durable = epoch,
        }
    });
    if !is_whole.map_err(unreadable)? {
        return Err(incomplete(format!("the journal of {} is damaged", fast.name())));
    }
    let mut epochs: BTreeMap<u32, BTreeMap<u64, (u64, u32, u32)>> = BTreeMap::new();
    for (slot, found) in (0_u32..).zip(found) {
        let Some((order, content)) = found.filter(|(_, content)| content.epoch > 0) else { continue };
        let version = (order, slot, content.checksum);
        let newest = epochs.entry(content.epoch).or_default().entry(content.block).or_insert(version);
        *newest = version.max(*newest);
    }
    let mut recovered = Recovered::default();
    let block_bytes = 1_usize << layout.block_shift;
    let mut bytes = AlignedBuffer::zeroed(block_bytes);
    for (epoch, blocks) in epochs {
        for (block, (_, slot, sum)) in blocks {
            fast.read_at(layout.slots_start() + (u64::from(slot) << layout.block_shift), &mut bytes)
                .map_err(unreadable)?;
            recovered.slots.insert(block, None);
            if checksum(&bytes) != sum {
                if epoch <= durable {
                    return Err(incomplete(format!("block {block} in {} is damaged", fast.name())));
                }
                continue;
            }
            if block >= slow.len() >> layout.block_shift {
                return Err(incomplete(format!("block {block} in {} lies beyond the end", fast.name())));
            }
            slow.write_at(block << layout.block_shift, &bytes)
                .map_err(|source| CacheError::Slow { device: slow.name().to_owned(), source })?;
            recovered.slots.insert(block, Some(slot));
            recovered.written += 1;
        }
        slow.sync().map_err(|source| CacheError::Slow { device: slow.name().to_owned(), source })?;
    }
    Ok(recovered)
}
