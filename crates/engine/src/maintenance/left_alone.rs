//! Segments that the cleaner could not empty, and the time of the next try.

use std::collections::HashMap;

use crate::store::space::Space;

/// Retries wait 2, 4, 8 looks, at most two to the power of this.
const TRIES_COUNTED: u32 = 4;

#[derive(Clone, Copy, Debug)]
pub(super) struct Stubborn {
    /// Fill time, from `Space::victim`.
    filled_at: u64,
    pub(super) tries: u32,
    /// The look of the next try. `None`: unreadable, so no retry helps.
    again: Option<u64>,
}

#[derive(Debug, Default)]
pub(crate) struct LeftAlone {
    pub(super) segments: HashMap<u64, Stubborn>,
    pub(super) looks: u64,
}

impl LeftAlone {
    pub(super) fn cut(&mut self, end: u64) {
        self.segments.retain(|&segment, _| segment < end);
    }

    /// Forgets changed segments. Returns the live blocks still to be moved.
    pub(super) fn blocks(&mut self, space: &Space) -> u64 {
        let mut blocks = 0;
        self.segments.retain(|&segment, stubborn| {
            let (filled_at, live) = space.filling(segment);
            let is_same = filled_at == stubborn.filled_at && live > 0;
            blocks += if is_same && stubborn.again.is_some() { live } else { 0 };
            is_same
        });
        blocks
    }

    /// Makes all retries due at the next look. Returns whether any was waiting.
    pub(super) fn hurry(&mut self) -> bool {
        let next = self.looks + 1;
        let waiting = self.segments.values_mut().filter_map(|stubborn| stubborn.again.as_mut());
        waiting.filter(|again| **again > next).map(|again| *again = next).count() > 0
    }

    pub(super) fn is_due(&self, segment: u64) -> bool {
        let stubborn = self.segments.get(&segment);
        stubborn.is_none_or(|stubborn| stubborn.again.is_some_and(|again| again <= self.looks))
    }

    /// Leaves a segment after `tries` visits. `for_good`: no later visit will help.
    pub(super) fn leave(&mut self, segment: u64, filled_at: u64, tries: u32, for_good: bool) {
        let again = (!for_good).then(|| self.looks + (1 << tries.min(TRIES_COUNTED)));
        self.segments.insert(segment, Stubborn { filled_at, tries, again });
    }
}
