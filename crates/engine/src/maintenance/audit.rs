//! Consistency checks of pool and page file, for tests.

use super::rounds::Maintenance;

impl Maintenance {
    /// Describes each inconsistency. No thread may change pages meanwhile.
    pub(crate) fn audit(&self) -> Vec<String> {
        let budget = self.pool.resizing.lock();
        let round_state = self.round_state.lock();
        let chunks = round_state.mapping.chunks().iter();
        let chunks = chunks.map(|(name, chunk)| (chunk.image.extent(), format!("chunk {name}")));
        let blocks = round_state.mapping.blocks().iter();
        let blocks = blocks.map(|(name, block)| (block.image.extent(), format!("directory block {name}")));
        let parts = chunks.chain(blocks).collect();
        self.pool.audit_with(&budget, &|id| self.durable_state(id), parts)
    }
}

/// Lets tests use a pool through its maintenance.
impl std::ops::Deref for Maintenance {
    type Target = crate::pool::Pool;

    fn deref(&self) -> &crate::pool::Pool {
        &self.pool
    }
}
