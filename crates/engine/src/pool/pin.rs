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
//!
//! **Middle tier.** A pin first is an ordinary access, which may promote the page, then pins it in
//! its tier. Words in a middle frame are read and written there (CXL paper, section III-G).

use super::backoff::Backoff;
use super::buffer_pool::Pool;
use super::frames::partition::is_middle;
use super::page_table::{Entry, Location};
use super::retry::Retry;
use super::tier::migration::Access;
use super::tier::operation;
use super::view::{Racy, View};
use crate::error::Result;
use crate::ids::{Lsn, PageId, SizeClass};
use crate::planted::{Bug, planted};
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
    ///
    /// With a middle tier it is an operation by `access` first, as the tree's are. Only the test
    /// for one is inlined: a pin without one saves no registers for the other way.
    #[inline]
    pub(crate) fn pin(&self, id: PageId, access: Access) -> Result<Pin<'_>, Retry> {
        if self.middle.is_some() {
            return access_and_pin(self, id, access);
        }
        pin_untiered(self, id)
    }

    /// Creates a page of zeros and pins it. May wait for a frame.
    pub(crate) fn create_pinned(&self, class: SizeClass) -> Result<(PageId, Pin<'_>), Retry> {
        if self.middle.is_some() {
            operation::begin(Access::Write);
        }
        let new = self.new_page(class, None)?;
        let mut content = new.zeroed();
        page::set_kind(&mut content, page::Kind::Words);
        page::set_page_id(&mut content, new.id());
        let id = self.create_unlogged(new, &content);
        // It may have been evicted, and reading it may fail. Its creation was its access.
        match pin_in_place(self, id, false) {
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

#[inline(never)]
fn pin_untiered(pool: &Pool, id: PageId) -> Result<Pin<'_>, Retry> {
    pin_in_place(pool, id, false)
}

/// The access may promote the page, so it comes before the latch: a pinned page cannot move.
#[inline(never)]
fn access_and_pin(pool: &Pool, id: PageId, access: Access) -> Result<Pin<'_>, Retry> {
    let _early = planted(Bug::PromoteAfterPin).then(|| pin_in_place(pool, id, false));
    operation::begin(access);
    pool.read(id)?;
    pin_in_place(pool, id, true)
}

/// Pins `id` in the tier where it is. `touched`: an access has marked it, or loaded it.
#[inline(always)]
fn pin_in_place(pool: &Pool, id: PageId, touched: bool) -> Result<Pin<'_>, Retry> {
    let entry = pool.table.entry(id).ok_or(Retry::Missing(id))?;
    let latch = entry.latch();
    let (mut loaded, mut backoff) = (touched, Backoff::new());
    loop {
        let seen = latch.load();
        if let Location::Frame(_) = entry.location()
            && latch.try_share()
        {
            // It may have moved before; now it cannot.
            if let Location::Frame(frame) = entry.location() {
                if !loaded {
                    pool.touch(entry, seen, frame);
                }
                return Ok(Pin { pool, id, entry, frame, changed: false });
            }
            latch.unshare();
        }
        if fetch_to_pin(pool, id)? {
            loaded = true;
        } else {
            backoff.wait();
        }
    }
}

/// A small middle tier may lose the page again and again: then it is loaded to DRAM.
#[cold]
#[inline(never)]
fn fetch_to_pin(pool: &Pool, id: PageId) -> Result<bool, Retry> {
    let loaded = pool.fetch(id)?;
    if loaded && pool.middle.is_some() {
        operation::again();
    }
    Ok(loaded)
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
        if !(planted(Bug::PinInMiddleStaysClean) && is_middle(self.frame)) {
            latch.set_dirty(true);
        }
        // A middle copy below a page in DRAM is older from here on.
        latch.release_changed();
        self.pool.unlocked(self.id, self.entry, self.frame);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::channel;

    use std::sync::atomic::Ordering::Relaxed;

    use terrace_io::MemoryDirectory;

    use super::super::tier_tests::{Whereabouts, evict, whereabouts};
    use super::{Access, Pool, is_middle};
    use crate::ids::PageId;
    use crate::planted::{Bug, plant};
    use crate::{Backend, Db, Mode};

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

    fn over_a_middle_tier(policy: &str) -> Db {
        let builder = Db::builder().directory(Arc::new(MemoryDirectory::new())).dram(4 << 20);
        let builder = builder.backend(Backend::Frames).page_size(4096).lines(0).mode(Mode::Inline);
        let builder = builder.middle("simulated:dram,1MiB".parse().unwrap());
        builder.policy(policy.parse().unwrap()).open("").unwrap()
    }

    fn make(pool: &Pool, first: u64) -> PageId {
        let (id, pin) = pool.create_pinned(pool.class()).unwrap();
        drop(pin);
        write(pool, id, first);
        id
    }

    fn write(pool: &Pool, id: PageId, first: u64) {
        let mut pin = pool.pin(id, Access::Write).unwrap();
        pin.will_change();
        pin.words()[0].store(first, Relaxed);
    }

    fn read(pool: &Pool, id: PageId) -> u64 {
        pool.pin(id, Access::Read).unwrap().words()[0].load(Relaxed)
    }

    fn promote_all(pool: &Pool) {
        pool.set_policy("1,1,1,1".parse::<crate::migration::Choice>().unwrap().policy());
    }

    /// Makes a page that is in DRAM and has a copy in the middle tier.
    fn make_with_copy(pool: &Pool) -> PageId {
        let id = make(pool, 1);
        promote_all(pool);
        assert_eq!(read(pool, id), 1);
        assert_eq!(whereabouts(pool, id), Whereabouts::Both);
        id
    }

    /// Has all pages leave both tiers that are there now.
    fn drive_out(pool: &Pool, id: PageId) {
        for _ in 0..20 {
            if whereabouts(pool, id) == Whereabouts::Store {
                return;
            }
            (0..500).for_each(|_| _ = make(pool, 0));
        }
        panic!("the page stays");
    }

    /// Reads what was written to a clean page in the middle tier, after it was in the store.
    fn written_in_place(bug: Option<Bug>) -> u64 {
        let db = over_a_middle_tier("0,0,1,1");
        let pool = &db.shared.pool;
        let id = make(pool, 1);
        drive_out(pool, id);
        assert_eq!(read(pool, id), 1);
        assert_eq!(whereabouts(pool, id), Whereabouts::Middle);
        plant(bug);
        write(pool, id, 2);
        plant(None);
        drive_out(pool, id);
        read(pool, id)
    }

    #[test]
    fn catches_pin_in_middle_stays_clean() {
        assert_eq!(written_in_place(None), 2);
        assert_eq!(written_in_place(Some(Bug::PinInMiddleStaysClean)), 1);
    }

    /// Whether a pin by `access` promotes a page, when all are to be.
    fn promotes(access: Access, bug: Option<Bug>) -> bool {
        let db = over_a_middle_tier("0,0,1,1");
        let pool = &db.shared.pool;
        let id = make(pool, 1);
        assert_eq!(whereabouts(pool, id), Whereabouts::Middle);
        promote_all(pool);
        plant(bug);
        let pin = pool.pin(id, access).unwrap();
        plant(None);
        !is_middle(pin.frame)
    }

    #[test]
    fn catches_promote_after_pin() {
        for access in [Access::Read, Access::Write] {
            assert!(promotes(access, None));
            assert!(!promotes(access, Some(Bug::PromoteAfterPin)));
        }
    }

    /// Writes to a page with a middle copy, and reads it after its demotion.
    fn written_above_a_copy(bug: Option<Bug>) -> u64 {
        let db = over_a_middle_tier("0,0,1,1");
        let pool = &db.shared.pool;
        let id = make_with_copy(pool);
        write(pool, id, 2);
        assert_eq!(whereabouts(pool, id), Whereabouts::Both);
        plant(bug);
        assert!(evict(pool, id));
        plant(None);
        assert_eq!(whereabouts(pool, id), Whereabouts::Middle);
        read(pool, id)
    }

    #[test]
    fn a_write_in_dram_makes_the_middle_copy_stale() {
        assert_eq!(written_above_a_copy(None), 2);
        assert_eq!(written_above_a_copy(Some(Bug::StaleMiddleCopy)), 1);
    }

    #[test]
    fn a_pinned_page_stays_in_its_tier_and_others_use_it_there() {
        let db = over_a_middle_tier("0,0,1,1");
        let pool = &db.shared.pool;
        let id = make(pool, 1);
        let pin = pool.pin(id, Access::Read).unwrap();
        promote_all(pool);
        let again = pool.pin(id, Access::Read).unwrap();
        assert!(is_middle(again.frame) && again.frame == pin.frame && !evict(pool, id));
        assert_eq!(pool.page_at(&pin.words()[3]), Some(id));
        let middle = pool.tiers.middle_stats().unwrap();
        assert_eq!(middle.up_refused, 1);
        drop((pin, again));
        assert!(!is_middle(pool.pin(id, Access::Read).unwrap().frame));
    }

    #[test]
    fn a_freed_page_leaves_no_middle_copy() {
        let db = over_a_middle_tier("0,0,1,1");
        let pool = &db.shared.pool;
        let id = make_with_copy(pool);
        let used = |pool: &Pool| pool.tiers.middle_stats().unwrap();
        let before = used(pool);
        pool.free_unlogged(id);
        let after = used(pool);
        assert_eq!((before.copies, after.copies, after.copies_freed), (1, 0, 1));
        assert_eq!((after.used, after.dram_used), (before.used - 1, before.dram_used - 1));
    }
}
