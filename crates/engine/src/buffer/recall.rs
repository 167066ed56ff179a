//! What the pool does with cached records ([`super::records`]): finds them for pages that are away, and takes them in.

use super::guard::ReadGuard;
use super::pool::Pool;
use super::records::{Record, Source};
use super::stripe::Stripe;
use super::table::Location;
use crate::ids::{PageId, Timestamp};
use crate::store::place::Mapped;

impl Pool {
    /// What is known of `key` in the page `id`, if the page is in the store only. It is what the page held at a moment
    /// during this call; whoever followed a pointer to the page looks at that once more. Does no I/O and waits for nothing.
    #[cold]
    pub(crate) fn recall(&self, id: PageId, key: &[u8]) -> Option<Record> {
        if self.records.is_empty() {
            return None;
        }
        self.meanwhile();
        // This load is the moment. The page may move at once, but an incarnation that is still the record's was not moved
        // on since the record was copied, so the image in that place was the same all the time.
        let Location::Store(mapped) = self.table.entry(id)?.location() else { return None };
        let record = self.records.find(&self.frames, self.source(id, mapped), key)?;
        #[cfg(test)]
        super::replacement_tests::touch(id);
        Some(record)
    }

    /// Takes in what a get found in `leaf`, which it had to wait for. The caller holds no latch.
    #[cold]
    pub(crate) fn remember(
        &self,
        leaf: &ReadGuard<'_>,
        key: &[u8],
        timestamp: Timestamp,
        value: Option<&[u8]>,
    ) {
        if self.records.takes(key, value)
            && let Some(source) = leaf.source()
        {
            self.records.insert(self, source, key, timestamp, value);
        }
    }

    /// The image `mapped` of `id`, which is the page's now.
    pub(super) fn source(&self, id: PageId, mapped: Mapped) -> Source {
        let incarnation = mapped.extent().map_or(0, |extent| self.space.incarnation(extent.first));
        Source { page: id, mapped, incarnation }
    }

    /// Frames of a stripe that hold pages, or may.
    pub(super) fn page_frames(&self, stripe: impl Into<Stripe>) -> u32 {
        let stripe = stripe.into();
        let records = if stripe == self.class().into() { self.records.held() } else { 0 };
        self.frames.count(stripe).saturating_sub(records)
    }
}
