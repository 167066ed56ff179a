//! Requests: blocks that are read or written together, such as a page.
//!
//! Admission is decided once per request, because a partly cached page needs both devices, which
//! costs more than a miss. A transfer is one request unless the caller says that several begin in
//! it (`Cached::read_batch_of`, `Cached::write_of`). A page written in parts is one request, too.

/// Ascending offsets where requests begin on the slow device.
///
/// Each read begins a request, and so does a write if there are no offsets.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Starts<'a>(pub &'a [u64]);

impl Starts<'_> {
    pub fn has(self, offset: u64) -> bool {
        !self.0.is_empty() && self.0.binary_search(&offset).is_ok()
    }
}

#[derive(Debug, Default)]
pub(super) struct Request {
    blocks: u64,
    served: u64,
    /// Whether the policy has decided on a block of it; the decision holds for the request.
    is_told: bool,
    /// Whether the last slot was taken from this request.
    took_back: bool,
    /// Whether the budget affords its admissions, if asked.
    affords: Option<bool>,
    /// Slots of its blocks, or of blocks read with it, that no other thread can use yet.
    fresh: Vec<u32>,
}

impl Request {
    /// The continuation of an earlier transfer's request.
    pub fn continued() -> Self {
        Self { blocks: 1, is_told: true, ..Self::default() }
    }

    /// Records that the policy decides on one of its blocks.
    pub fn tells(&mut self) {
        self.is_told = true;
    }

    pub fn is_told(&self) -> bool {
        self.is_told
    }

    /// The budget's answer, asked once; later requests pay for overdrawing.
    pub fn affords(&mut self, ask: impl FnOnce() -> bool) -> bool {
        *self.affords.get_or_insert_with(ask)
    }

    /// Adds a slot into which a block will be fetched.
    pub fn gains(&mut self, slot: u32) {
        self.fresh.push(slot);
    }

    /// Gives up a slot that only this request uses; returns whether it was one.
    pub fn gives_up(&mut self, slot: u32) -> bool {
        let found = self.fresh.iter().position(|&other| other == slot);
        self.took_back = found.map(|at| self.fresh.swap_remove(at)).is_some();
        self.took_back
    }

    /// Whether the last slot was one that this request gave up.
    pub fn took_back(&mut self) -> bool {
        std::mem::take(&mut self.took_back)
    }

    /// Makes its slots known to other threads.
    pub fn publishes(&mut self) {
        self.fresh.clear();
    }

    pub fn hit(&mut self) {
        (self.blocks, self.served) = (self.blocks + 1, self.served + 1);
        // The policy hears of the hit before the next block is admitted.
        self.is_told = true;
    }

    pub fn missed(&mut self, blocks: u64) {
        self.blocks += blocks;
    }

    /// Begins the next request; returns the blocks of this one, and the cached ones.
    pub fn end(&mut self) -> (u64, u64) {
        let fresh = std::mem::take(&mut self.fresh);
        let Request { blocks, served, .. } = std::mem::replace(self, Request { fresh, ..Request::default() });
        (blocks, served)
    }
}
