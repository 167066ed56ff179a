//! Sealing of a persistent middle tier, a little in each round.

use super::rounds::Maintenance;
use super::state::RoundState;
use crate::error::Result;
use crate::ids::PageId;
use crate::pool::SealLimits;
use crate::pool::adopt::look_at_sealed;
use crate::pool::partition::Partition;
use crate::store::page;

/// Frames to look at in a round, and bytes to seal.
const LOOKS: u32 = 4096;
const SEALED_BYTES: usize = 1 << 20;
/// As much without a maintenance thread, after a number of commits.
const LOOKS_INLINE: u32 = 32;
const SEALS_INLINE: usize = 8;

impl Maintenance {
    pub(super) fn seal_frames(&self, round_state: &mut RoundState) {
        let seals = (SEALED_BYTES / self.pool.page_bytes()).max(1);
        self.seal(round_state, SealLimits { looks: LOOKS, seals, all: false });
    }

    fn seal(&self, round_state: &mut RoundState, limits: SealLimits) -> usize {
        // A poisoned log is as durable as it was, and stays so.
        self.pool.seal_some(self.wal.persistent(), limits, &mut round_state.staging.bytes)
    }

    /// Inline, the share of a thread that commits.
    pub(crate) fn seal_inline(&self) {
        if self.pool.frames.persistent.is_some() {
            let limits = SealLimits { looks: LOOKS_INLINE, seals: SEALS_INLINE, all: false };
            self.seal(&mut self.round_state.lock(), limits);
        }
    }

    /// Checks that sealed frames are whole, and no image in force is newer. Damage is the tier's,
    /// not the database's.
    ///
    /// # Errors
    /// [`Error::Memory`].
    pub(crate) fn check_sealed(&self, mut damage: impl FnMut(&str, PageId, String)) -> Result<()> {
        let Some(persistent) = &self.pool.frames.persistent else { return Ok(()) };
        let mut buffer = self.pool.images.image_buffer(self.pool.class(), self.pool.frames.largest())?;
        for frame in self.pool.frames.of(Partition::middle(self.pool.class())) {
            // No image comes into force meanwhile.
            let _round_state = self.round_state.lock();
            let Some((id, lsn, fault)) = look_at_sealed(&self.pool, persistent, frame) else { continue };
            let mapped = self.durable_state(id);
            let image = mapped.has_image().then(|| {
                self.pool.images.read_from(self.file.slow(), &self.pool.stats, id, mapped, &mut buffer)
            });
            let newer = match image {
                Some(Ok(image)) if page::lsn(image) > lsn => Some("its image is newer"),
                // Damage of an image is reported as such.
                _ => None,
            };
            if let Some(what) = fault.or(newer) {
                damage(persistent.name(), id, format!("a sealed frame of the middle tier: {what}"));
            }
        }
        Ok(())
    }

    /// Seals all frames that can be, before the database closes.
    pub(crate) fn seal_all(&self) -> usize {
        let limits = SealLimits { looks: u32::MAX, seals: usize::MAX, all: true };
        self.seal(&mut self.round_state.lock(), limits)
    }
}
