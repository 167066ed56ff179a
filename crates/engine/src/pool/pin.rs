//! Pages held for long and changed without a log (`crate::pages`).
//!
//! Maintenance waits for latches, and all threads wait for maintenance, so latches are held
//! briefly. A user may hold a page for any time. Such a page is *pinned* by the shared latch: it
//! stays in its frame and hinders neither write-back nor cleaner. The layer above decides which
//! pins read and which write the words.
//!
//! **Writing.** Write-back may copy a page during stores, so the image may mix two states. It is
//! not read, since a pinned page stays in its frame. Afterwards the writer exchanges its pin for
//! the exclusive latch and marks the page dirty. So another image is written before the page can
//! leave. An image in flight does not make it clean, as in
//! [`WriteGuard::note_change`](super::guard::WriteGuard::note_change).
//!
//! **Without a log.** Such a pool is never recovered. Its pages have no recLSN, unless changed
//! while an image was in flight. So the sweep has them written, not the checkpoint. Pages that fit
//! in memory are never written.

use super::backoff::Backoff;
use super::buffer_pool::Pool;
use super::page_table::{Entry, Location};
use super::retry::Retry;
use super::view::{Racy, View};
use crate::error::Result;
use crate::ids::{Lsn, PageId, SizeClass};
use crate::store::page;

use std::sync::atomic::AtomicU64;

/// Limit on pins of one page. The latch counts to 255, also for write-back and cleaner.
pub(crate) const PINS_MAX: u64 = 200;

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
    /// Pins `id`, after a fault if needed. The caller keeps to [`PINS_MAX`].
    pub(crate) fn pin(&self, id: PageId) -> Result<Pin<'_>, Retry> {
        let entry = self.table.entry(id).ok_or(Retry::Missing(id))?;
        let latch = entry.latch();
        let (mut loaded, mut backoff) = (false, Backoff::new());
        loop {
            let seen = latch.load();
            if let Location::Frame(_) = entry.location()
                && latch.try_share()
            {
                // It may have moved before; now it cannot.
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

    /// Creates a page of zeros and pins it. May wait for a frame.
    pub(crate) fn create_pinned(&self, class: SizeClass) -> Result<(PageId, Pin<'_>), Retry> {
        let new = self.new_page(class, None)?;
        let mut content = new.zeroed();
        page::set_kind(&mut content, page::Kind::Words);
        page::set_page_id(&mut content, new.id());
        let id = self.create_unlogged(new, &content);
        // It may have been evicted, and reading it may fail.
        match self.pin(id) {
            Ok(pin) => Ok((id, pin)),
            Err(stop) => {
                self.free_unlogged(id);
                Err(stop)
            }
        }
    }

    /// Frees a page of [`Pool::create_pinned`] without present or future pins. The next round frees
    /// its id, frame and blocks.
    pub(crate) fn free_unlogged(&self, id: PageId) {
        // Below the end of finished work, so the free applies without a flush.
        let lsn = Lsn(self.wal.finished().0 - 1);
        self.requests.note(lsn, id, false);
        if self.requests.works_inline() {
            self.requests.maintainer().absorb_freed();
        }
    }
}

impl<'p> Pin<'p> {
    /// The words after the page's header, in native byte order.
    pub(crate) fn words(&self) -> &'p [AtomicU64] {
        &self.pool.frames.words(self.id, self.frame)[page::HEADER_BYTES / 8..]
    }

    /// `at` counts from the end of the header.
    pub(crate) fn copy_to(&self, at: usize, to: &mut [u8]) {
        Racy::new(self.words()).copy_to(at, to);
    }

    /// Announces stores: dropping the pin marks the page dirty.
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
        // The only other holders are copies in progress.
        let mut backoff = Backoff::new();
        while !latch.try_promote() {
            backoff.wait();
        }
        let header = self.pool.frames.header(self.frame);
        if latch.load().is_claimed() {
            // The image in flight may lack this change, so the page stays dirty.
            header.set_next_rec_lsn(self.pool.wal.tail());
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

    use terrace_io::MemoryDirectory;

    use crate::{Db, Mode};

    /// Write-back and eviction may latch an id that was freed meanwhile.
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
