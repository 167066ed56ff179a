//! What a middle tier tells about itself.

use serde::Serialize;
use terrace_block::DramCacheCounts;

use crate::migration::Policy;

/// The middle tier: what it takes now, and how pages went to it and from it since the database was opened.
///
/// ```
/// use terrace::{Db, MemoryDirectory};
/// use terrace::migration::{Choice, Policy};
///
/// # let directory = std::sync::Arc::new(MemoryDirectory::new());
/// let builder = Db::builder().directory(directory).dram(4 << 20).middle("simulated:dram,8MiB".parse()?);
/// let db = builder.policy(Choice::Lazy).open("")?;
/// let middle = db.stats().middle.unwrap();
/// assert_eq!((middle.frames, middle.policy), (2048, Policy::LAZY));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct MiddleStats {
    /// Bytes of its frames.
    pub capacity_bytes: u64,
    /// Its frames, each for a page of the database's own size.
    pub frames: u64,
    /// Those that hold a page.
    pub used: u64,
    /// Those of them whose page has a copy in DRAM too.
    pub copies: u64,
    /// Frames in DRAM for pages of that size that hold one.
    pub dram_used: u64,
    /// By which probabilities pages go to it and from it now.
    pub policy: Policy,
    /// How far the search for better ones is, if the policy changes by itself ([`crate::migration::Choice::Adaptive`]).
    pub tuning: Option<Tuning>,
    /// Whether its memory is simulated.
    pub simulated: bool,
    /// Looks at pages where they are.
    pub reads_in_place: u64,
    /// Looks of those that are about to change them there.
    pub writes_in_place: u64,
    /// Lines of memory, of 64 bytes, that were changed in pages where they are.
    pub lines_written: u64,
    /// What happened in the DRAM before its memory, where it is simulated and has some (memory mode).
    pub dram_cache: Option<DramCacheStats>,
    /// Bytes of a page of it: the database's own size. Pages of other sizes do not come here ([`MiddleStats::other_sizes`]).
    pub page_bytes: u64,
    /// How pages moved.
    pub migrations: Migrations,
    /// Why pages were written to it.
    pub writes: MiddleWrites,
    /// Images of pages that were written to the store from DRAM.
    pub dram_flushes: u64,
    /// And from here.
    pub middle_flushes: u64,
    /// Pages that should have come to DRAM and stayed here, because DRAM had no frame at once or they were being changed.
    pub up_refused: u64,
    /// Looks that decided so where memory moves with pages, and whose pages wait for others to come with them.
    pub up_deferred: u64,
    /// Pages that should have come here from DRAM, and there was no frame at once.
    pub down_refused: u64,
    /// Copies of pages in DRAM that made room for other pages here.
    pub copies_dropped: u64,
    /// Copies that went with their pages when those were freed.
    pub copies_freed: u64,
    /// Pages of other sizes than [`MiddleStats::page_bytes`] that were read from the store, or made. The tier has no frames for them.
    pub other_sizes: u64,
    /// How memory moved with them.
    pub memory_moves: MemoryMoves,
    /// Pages of the system's, 4 KiB each, that came to a tier on nodes and that the system put elsewhere, since the database was opened.
    pub misplaced_pages: u64,
}

/// Memory of mapped pages that went from the nodes of one tier to those of the other ([`crate::MiddleKind::Numa`]).
///
/// ```
/// assert_eq!(terrace::MemoryMoves::default().calls_per_page(), 0.0);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct MemoryMoves {
    /// Pages that went.
    pub pages: u64,
    /// System calls that it took.
    pub calls: u64,
    /// Pages that stayed in their tier because the system would not move them: it has them in use, or another process does.
    pub busy: u64,
    /// Pages that stayed because a node was full.
    pub full: u64,
}

impl MemoryMoves {
    /// System calls for each page that moved; 0 if none did.
    pub fn calls_per_page(&self) -> f64 {
        if self.pages == 0 { 0.0 } else { self.calls as f64 / self.pages as f64 }
    }
}

/// DRAM that is a direct-mapped cache of the lines of a simulated memory ([`terrace_block::Profile::dram_cache_bytes`]).
///
/// ```
/// use terrace::{Db, MemoryDirectory, Middle, MiddleKind, Profile};
///
/// # let directory = std::sync::Arc::new(MemoryDirectory::new());
/// let memory_mode = Profile::named("optane").unwrap().with_dram_cache_bytes(1 << 20);
/// let builder = Db::builder().directory(directory).dram(4 << 20);
/// let builder = builder.middle(Middle::new(MiddleKind::Simulated(memory_mode), 8 << 20));
/// let db = builder.policy("0,0,1,1".parse()?).open("")?;
/// db.create_table("t")?.put("k", "v")?;
/// let dram = db.stats().middle.unwrap().dram_cache.unwrap();
/// assert!(dram.misses > 0 && dram.hit_ratio() < 1.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct DramCacheStats {
    /// Lines of 64 bytes that were there.
    pub hits: u64,
    /// Lines that were not.
    pub misses: u64,
    /// Lines that others displaced and that were written back to the memory.
    pub write_backs: u64,
    /// Bytes that were read from the memory, in whole units of its media.
    pub memory_read_bytes: u64,
    /// And written to it.
    pub memory_written_bytes: u64,
}

impl DramCacheStats {
    /// Lines that were there, for each that was wanted; 0 where none was.
    pub fn hit_ratio(&self) -> f64 {
        match self.hits + self.misses {
            0 => 0.0,
            lines => self.hits as f64 / lines as f64,
        }
    }

    fn since(&self, earlier: &DramCacheStats) -> DramCacheStats {
        let less = |field: fn(&DramCacheStats) -> u64| field(self).saturating_sub(field(earlier));
        DramCacheStats {
            hits: less(|stats| stats.hits),
            misses: less(|stats| stats.misses),
            write_backs: less(|stats| stats.write_backs),
            memory_read_bytes: less(|stats| stats.memory_read_bytes),
            memory_written_bytes: less(|stats| stats.memory_written_bytes),
        }
    }
}

impl From<DramCacheCounts> for DramCacheStats {
    fn from(counts: DramCacheCounts) -> DramCacheStats {
        let DramCacheCounts { hits, misses, write_backs, memory_read_bytes, memory_written_bytes, .. } =
            counts;
        DramCacheStats { hits, misses, write_backs, memory_read_bytes, memory_written_bytes }
    }
}

/// How far the search for a better policy is ([`crate::migration::Tuner`]).
///
/// ```
/// assert!(!terrace::Tuning::default().runs);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Tuning {
    /// Whether the policy may still change by itself; not after [`crate::Db::set_policy`].
    pub runs: bool,
    /// Whether a search is over, and its policy holds until the workload shifts.
    pub is_holding: bool,
    /// Epochs so far.
    pub epochs: u64,
    /// Searches so far.
    pub searches: u64,
    /// Operations of an epoch.
    pub epoch_operations: u64,
}

/// Pages that went from one tier to another. From and to are as `bench --json` names them.
///
/// ```
/// assert_eq!(terrace::Migrations::default().store_to_dram, 0);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Migrations {
    /// Read from the store past the middle tier.
    pub store_to_dram: u64,
    /// Read from the store to the middle tier.
    pub store_to_middle: u64,
    /// Brought to DRAM, to be read there or to be written there.
    pub middle_to_dram: u64,
    /// Those of them that were to be written.
    pub middle_to_dram_for_writes: u64,
    /// Copied from DRAM to the middle tier.
    pub dram_to_middle: u64,
    /// Left DRAM for a copy in the middle tier that was as new: nothing was copied.
    pub dram_to_middle_uncopied: u64,
    /// Left DRAM for the store.
    pub dram_to_store: u64,
    /// Left the middle tier for the store.
    pub middle_to_store: u64,
}

/// Pages written to the middle tier, by why.
///
/// ```
/// assert_eq!(terrace::MiddleWrites::default().in_place, 0);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct MiddleWrites {
    /// Looks of those that were about to change them where they are.
    pub in_place: u64,
    /// Pages that came from DRAM and lacked changes in the store.
    pub from_dram: u64,
    /// Pages that came from DRAM and lacked none.
    pub from_dram_clean: u64,
    /// Pages that came from the store.
    pub from_store: u64,
    /// Pages that were made here.
    pub created: u64,
}

impl MiddleStats {
    /// The same with what was counted before `earlier` taken off; what there is now stays.
    pub fn since(&self, earlier: &MiddleStats) -> MiddleStats {
        let dram_cache = self.dram_cache.map(|now| now.since(&earlier.dram_cache.unwrap_or_default()));
        let counted = since!(
            self,
            earlier,
            reads_in_place,
            writes_in_place,
            lines_written,
            migrations.store_to_dram,
            migrations.store_to_middle,
            migrations.middle_to_dram,
            migrations.middle_to_dram_for_writes,
            migrations.dram_to_middle,
            migrations.dram_to_middle_uncopied,
            migrations.dram_to_store,
            migrations.middle_to_store,
            writes.in_place,
            writes.from_dram,
            writes.from_dram_clean,
            writes.from_store,
            writes.created,
            dram_flushes,
            middle_flushes,
            up_refused,
            up_deferred,
            memory_moves.pages,
            memory_moves.calls,
            memory_moves.busy,
            memory_moves.full,
            misplaced_pages,
            down_refused,
            copies_dropped,
            copies_freed,
            other_sizes
        );
        MiddleStats { dram_cache, ..counted }
    }

    /// The inclusivity ratio (Spitfire, section 3.3 and Table 2): pages that have a copy in DRAM and one here, of all that have one in
    /// either; 0 if none has.
    pub fn inclusivity(&self) -> f64 {
        let pages = (self.used + self.dram_used).saturating_sub(self.copies);
        if pages == 0 { 0.0 } else { self.copies as f64 / pages as f64 }
    }
}
