//! Builds a pool and its maintenance from the analysis.

use std::sync::Arc;

use terrace_io::AlignedBuffer;

use super::analysis::{Analysis, Bases, FirstChanges, Loser};
use crate::error::{Error, Result};
use crate::ids::Lsn;
use crate::maintenance::{LeftAlone, Maintenance, RoundState, Staging};
use crate::planted::{Bug, planted};
use crate::pool::Mode;
use crate::pool::adopt::adopt;
use crate::pool::assemble::{PoolParts, assemble, refused};
use crate::pool::options::PoolOptions;
use crate::pool::page_ids::{PageIds, ids_below};
use crate::pool::page_table::Location;
use crate::pool::persistent::{Adopted, PersistentFrames};
use crate::pool::requests::Requests;
use crate::pool::resident::blocks_granted;
use crate::pool::stats::Cause;
use crate::store::mapping_word::BLOCK_BYTES;
use crate::store::space::{Geometry as SpaceGeometry, Space};
use crate::store::superblock::{Slots, Superblock};
use crate::wal::Wal;

/// Share of the frames' memory that redo may take for LSNs of images, and for pages to read, as a
/// divisor. Old versions have more, and recovery makes none.
const SHARE_KEPT: u64 = 64;

/// The input of redo and undo.
pub(super) struct Assembled {
    pub(super) maintenance: Arc<Maintenance>,
    /// Oldest first.
    pub(super) losers: Vec<Loser>,
    pub(super) bases: Bases,
    pub(super) first_changes: FirstChanges,
}

impl Analysis<'_> {
    /// Builds pool and maintenance.
    pub(super) fn assemble(
        mut self,
        slots: Slots,
        superblock: Superblock,
        wal: Wal,
        (persistent, adopted): (Option<PersistentFrames>, Vec<Adopted>),
        options: &PoolOptions,
    ) -> Result<Assembled> {
        // While every location is that of an image.
        let (space, ids) = self.count_space(options, &adopted)?;
        let staging_bytes = (options.buffers.staging as usize).next_multiple_of(self.page_bytes);
        let absorbed = wal.tail();
        let wal = Arc::new(wal);
        let requests = Arc::new(Requests::recovering_from(superblock.cut));
        let found = PoolParts {
            files: self.files,
            table: self.table,
            ids,
            space,
            wal,
            requests,
            page_bytes: self.page_bytes,
            staging_bytes,
            highest: self.highest,
            seed: u64::from_le_bytes(superblock.uuid[..8].try_into().expect("eight bytes")),
            persistent,
        };
        let pool = Arc::new(assemble(found, &PoolOptions { mode: Mode::Inline, ..options.clone() })?);
        adopt(&pool.tiers, &adopted, |id| match self.unwritten.remove(&id) {
            true => self.bases.born.get(&id).copied(),
            false => None,
        })?;
        let staging = AlignedBuffer::try_zeroed(staging_bytes)
            .map_err(refused("the DRAM tier", staging_bytes as u64))?;
        let round_state = RoundState {
            slots,
            superblock,
            mapping: self.mapping,
            staging: Staging::new(staging),
            absorbed,
            left_alone: LeftAlone::default(),
            frames_taken: [0; _],
            cause: Cause::Checkpoint,
            backup: None,
            growth_asked: Lsn::NONE,
            log_refused: false,
        };
        let maintenance = Maintenance::new(pool, round_state, self.unwritten, options.in_memory);
        let mut losers: Vec<Loser> = self.open.into_values().collect();
        losers.sort_unstable_by_key(|loser| loser.first);
        self.bases.forget_images_beyond(options.frame_bytes / SHARE_KEPT);
        self.first_changes.keep_unread(
            &maintenance.pool.table,
            &self.bases,
            options.frame_bytes / SHARE_KEPT,
        );
        Ok(Assembled { maintenance, losers, bases: self.bases, first_changes: self.first_changes })
    }

    /// Space of the page file with every image counted, and the ids in use.
    fn count_space(&self, options: &PoolOptions, adopted: &[Adopted]) -> Result<(Arc<Space>, PageIds)> {
        let geometry = SpaceGeometry { segment_blocks: self.segment_blocks };
        // The file may be longer than the superblock says, but never shorter.
        let held = self.files.pages.len().saturating_sub(geometry.file_bytes(0))
            / (BLOCK_BYTES as u64 * self.segment_blocks);
        if held < self.segments {
            return Err(Error::corrupt(
                self.files.pages.name(),
                None,
                "the page file is shorter than its superblock says",
            ));
        }
        let space = Arc::new(Space::new(self.files.pages.clone(), geometry, held, options.store_bytes_max));
        let mut ids = PageIds::used_below(self.ids_end);
        let is_adopted = |id| adopted.iter().any(|frame| frame.id == id);
        // The lowest id is taken first.
        let pages = ids_below(self.ids_end).rev().filter_map(|id| {
            match self.table.entry(id).map(|entry| entry.location()) {
                Some(Location::Store(_)) if planted(Bug::AdoptBeforeCount) && is_adopted(id) => {}
                Some(Location::Store(mapped)) => {
                    return Some(mapped.extent().expect("stored pages have an image"));
                }
                _ if self.unwritten.contains(&id) => {}
                _ => ids.give_back(id),
            }
            None
        });
        space.count(pages)?;
        let parts = self.mapping.chunks().iter().chain(self.mapping.blocks().iter());
        space.count(parts.filter_map(|(_, part)| part.image.extent()))?;
        space.end_count(self.unwritten.iter().map(|&id| blocks_granted(id)).sum());
        Ok((space, ids))
    }
}
