//! Pages that are held for long, and changed without a log: for structures that live as long as the process
//! (`crate::pages`).
//!
//! A latch of this pool is held for as long as it takes to change a page. Those who look after the pages wait for latches, and
//! everybody waits for them; what a user holds while he does as he pleases must be none of these. So a page is *pinned*: by the
//! shared latch, which keeps it in its frame and disturbs neither write-back nor cleaner. Who may read and who write the words
//! of a pinned page is settled above, among the pins.
//!
//! **Writing.** The words of a pinned page are stored to while write-back may be copying them. The image is then of no one
//! moment, and that does no harm: the page is in its frame as long as it is pinned, so nobody reads that image, and when
//! the writer is done, the page is marked dirty under the exclusive latch, for which the pin is exchanged; so there will
//! be another image before the page can leave. An image in flight at that time does not make it clean ([`Pool::note_change`]
//! has the same for changes with a log).
//!
//! **Without a log.** Nothing of such a pool is ever recovered. Its pages have no recLSN, so that only the sweep has them
//! written, and not the checkpoint: what fits into memory is never written at all. What write-back and cleaner log about
//! places is cut off by the checkpoint as in any pool.

use super::backoff::Backoff;
use super::pool::{Event, Pool, Stop};
use super::table::{Entry, Location};
use super::view::{Racy, View};
use crate::error::Result;
use crate::ids::{Lsn, PageId, SizeClass};
use crate::store::page;

use std::sync::atomic::AtomicU64;

/// Pins of one page at the same time, at most. The latch counts to 255, and the last ones are for write-back and cleaner.
pub(crate) const PINS_MAX: u64 = 200;

/// A page that stays in its frame.
pub(crate) struct Pin<'p> {
    pool: &'p Pool,
    id: PageId,
    entry: Entry<'p>,
    frame: u32,
    changed: bool,
}

impl std::fmt::Debug for Pin<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Pin").field("frame", &self.frame).finish_non_exhaustive()
    }
}

impl Pool {
    /// Pins `id`, faulting it in if need be. The caller sees to it that there are no more than [`PINS_MAX`].
    pub(crate) fn pin(&self, id: PageId) -> Result<Pin<'_>, Stop> {
        let entry = self.table.entry(id).ok_or(Stop::Missing(id))?;
        let latch = entry.latch();
        let (mut loaded, mut backoff) = (false, Backoff::new());
        loop {
            let seen = latch.load();
            if let Location::Frame(_) = entry.location()
                && latch.try_share()
            {
                // It may have moved before the latch was there; from here on it does not.
                if let Location::Frame(frame) = entry.location() {
                    if !loaded {
                        self.touch(entry, seen, frame);
                    }
                    return Ok(Pin { pool: self, id, entry, frame, changed: false });
                }
                latch.unshare();
            }
            loaded |= self.fetch(id)?;
            if !loaded {
                backoff.wait();
            }
        }
    }

    /// The page whose bytes include `word`, which somebody has pinned.
    pub(crate) fn page_at(&self, word: &AtomicU64) -> Option<PageId> {
        self.frames.page_at(std::ptr::from_ref(word).addr())
    }

    /// Brings a page of `class` into being, zeros behind its header, and pins it. May wait for a frame.
    pub(crate) fn create_pinned(&self, class: SizeClass) -> Result<(PageId, Pin<'_>), Stop> {
        let new = self.new_page(class, None)?;
        let mut content = new.zeroed();
        page::set_kind(&mut content, page::Kind::Words);
        page::set_page_id(&mut content, new.id());
        let id = self.create_unlogged(new, &content);
        // It may have been written and evicted by now, and be hard to read again.
        match self.pin(id) {
            Ok(pin) => Ok((id, pin)),
            Err(stop) => {
                self.free_unlogged(id);
                Err(stop)
            }
        }
    }

    /// Ends a page that was made by [`Pool::create_pinned`], that nobody has pinned and nobody will. Its id, its frame and its
    /// places are free after the next round of upkeep.
    pub(crate) fn free_unlogged(&self, id: PageId) {
        // Below everything that is durable, so that nothing has to become so first.
        let lsn = Lsn(self.wal.cut_limit().0 - 1);
        self.events.lock().push(Event { lsn, page: id, allocated: false });
        if self.works_inline() {
            self.absorb_freed();
        }
    }

    /// Takes in what was freed, at once.
    pub(crate) fn absorb_freed(&self) {
        self.absorb(&mut self.upkeep.lock());
    }
}

impl<'p> Pin<'p> {
    /// The words behind the page's header, in the order of this machine.
    pub(crate) fn words(&self) -> &'p [AtomicU64] {
        &self.pool.frames.words(self.id, self.frame)[page::HEADER_BYTES / 8..]
    }

    /// Copies the bytes from `at` on, counted from behind the page's header, into `to`.
    pub(crate) fn copy_to(&self, at: usize, to: &mut [u8]) {
        Racy::new(self.words()).copy_to(at, to);
    }

    /// The words are stored to from now on: when this pin goes, the page has changed.
    pub(crate) fn will_change(&mut self) {
        self.changed = true;
    }
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        let latch = self.entry.latch();
        if !self.changed {
            return latch.unshare();
        }
        // Nobody else writes, so all that can share it now is a copy that is being made of it.
        let mut backoff = Backoff::new();
        while !latch.try_promote() {
            backoff.wait();
        }
        let header = self.pool.frames.header(self.frame);
        if latch.load().is_claimed() {
            // The image in flight may lack this change: when it is in force, the page is still dirty.
            header.set_next_recovery(self.pool.wal.tail());
        }
        latch.set_dirty(true);
        latch.release_changed();
        self.pool.unlocked(self.id, self.entry, self.frame);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::channel;

    use terrace_block::MemoryDirectory;

    use crate::{Db, Mode};

    /// Write-back and whoever empties frames go by what they have read of a page before it was freed.
    #[test]
    fn an_id_may_be_latched_for_a_moment_when_it_is_used_again() {
        let directory = Arc::new(MemoryDirectory::new());
        let db = Db::builder().directory(directory).dram(4 << 20).mode(Mode::Inline).open("").unwrap();
        let pool = &db.shared.pool;
        let (id, pin) = pool.create_pinned(pool.class()).unwrap();
        drop(pin);
        pool.free_unlogged(id);
        let latch = pool.table.entry(id).unwrap().latch();
        assert!(latch.try_share());
        let (created, other) = channel();
        std::thread::scope(|scope| {
            scope.spawn(move || created.send(pool.create_pinned(pool.class()).unwrap().0).unwrap());
            assert!(other.recv_timeout(std::time::Duration::from_millis(20)).is_err());
            latch.unshare();
        });
        assert_eq!(other.recv().unwrap(), id);
    }
}
