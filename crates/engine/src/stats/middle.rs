//! Statistics of the middle tier.

use serde::Serialize;
use terrace_io::stats::{self, Family};

pub use terrace_io::DramCacheCounts as DramCacheStats;

use crate::migration::Policy;

const POLICY: Family =
    Family::gauge("terrace_middle_policy", "Probabilities of the migration policy.").by("probability");
const IN_PLACE: Family =
    Family::counter("terrace_in_place_total", "Looks at pages in the middle tier where they are.")
        .by("access");
const MIGRATIONS: Family =
    Family::counter("terrace_migrations_total", "Pages that went from one tier to another.").by("way");
const WRITES: Family =
    Family::counter("terrace_middle_writes_total", "Page writes to the middle tier, by why.").by("reason");
const MOVED_BYTES: Family = Family::counter(
    "terrace_middle_moved_bytes_total",
    "Bytes of whole pages read from the middle tier and written to it.",
)
.by("direction");
const FLUSHES: Family =
    Family::counter("terrace_tier_flushes_total", "Images written to the store, by tier.").by("tier");
const MOVES_NOT_MADE: Family =
    Family::counter("terrace_migrations_not_made_total", "Moves between tiers refused or deferred.")
        .by("reason");
const COPIES_DROPPED: Family =
    Family::counter("terrace_middle_copies_dropped_total", "Middle copies dropped, by why.").by("reason");
const SEALS: Family =
    Family::counter("terrace_middle_seals_total", "Changes of the seals of persistent frames.").by("to");
const SEALED_DROPPED: Family = Family::counter(
    "terrace_middle_sealed_dropped_total",
    "Sealed frames of a persistent middle tier that did not count, by why.",
)
.by("reason");
const MEMORY_MOVES: Family = Family::counter(
    "terrace_memory_moves_total",
    "Pages whose memory was to go to the nodes of another tier, by what became of them.",
)
.by("outcome");

terrace_io::present!(Policy, |policy, family, _label, text| {
    let shares = [("dr", policy.dr()), ("dw", policy.dw()), ("nr", policy.nr()), ("nw", policy.nw())];
    shares.iter().for_each(|(name, share)| text.sample(family, name, share));
});

terrace_io::stats! {
    /// State of the middle tier, and page moves since the database was opened.
    ///
    /// ```
    /// use terrace::{Db, MemoryDirectory};
    /// use terrace::migration::{Choice, Policy};
    ///
    /// # let directory = std::sync::Arc::new(MemoryDirectory::new());
    /// let builder = Db::builder().directory(directory).dram(4 << 20);
    /// let builder = builder.middle("simulated:dram,8MiB".parse()?);
    /// let db = builder.policy(Choice::Lazy).open("")?;
    /// let middle = db.stats().middle.unwrap();
    /// assert_eq!((middle.frames, middle.policy), (2048, Policy::LAZY));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[derive(Clone, Debug, PartialEq, Eq, Serialize)]
    #[non_exhaustive]
    pub struct MiddleStats {
        /// Size in bytes, of frames of all page sizes.
        capacity_bytes: u64 => gauge "terrace_middle_bytes" "Bytes of the middle tier.",
        /// Frames of all page sizes.
        frames: u64 => gauge "terrace_middle_frames" "Frames of the middle tier.",
        /// Frames that hold a page.
        used: u64 => gauge
            "terrace_middle_used_frames" "Frames of the middle tier that hold a page.",
        /// Frames whose page has a copy in DRAM too.
        copies: u64 => gauge
            "terrace_middle_copies" "Pages with a copy in DRAM and one in the middle tier.",
        /// DRAM frames that hold a page of a size that this tier has frames for.
        dram_used: u64 => gauge
            "terrace_middle_dram_used_frames" "DRAM frames of the same sizes that hold a page.",
        /// Frames by page size, smallest first.
        classes: Vec<MiddleClass>,
        /// Moves of frames from one page size to another.
        frame_moves: u64 => counter "terrace_middle_frame_moves_total"
            "Times that frames of the middle tier went from pages of one size to pages of another.",
        /// Current migration policy.
        policy: Policy => POLICY,
        /// State of the tuner, with [`crate::migration::Choice::Adaptive`].
        tuning: Option<Tuning>,
        /// Whether its memory is simulated.
        simulated: bool => gauge "terrace_middle_simulated" "1 where the middle tier is simulated.",
        /// Page reads in place.
        reads_in_place: u64 => IN_PLACE "read",
        /// Page accesses in place for a change.
        writes_in_place: u64 => IN_PLACE "write",
        /// 64-byte lines changed in place.
        lines_written: u64 => counter
            "terrace_middle_lines_written_total" "Lines of 64 bytes changed in place.",
        /// Lines loaded into partial pages ([`crate::Builder::lines`]), of the size chosen there.
        lines_loaded: u64 => counter "terrace_middle_lines_loaded_total"
            "Lines of pages loaded from the middle tier to DRAM one by one.",
        /// Changed lines of partial pages copied to the middle tier, of the same size.
        lines_demoted: u64 => counter "terrace_middle_lines_demoted_total"
            "Changed lines of pages copied from DRAM to the middle tier one by one.",
        /// Pages promoted to DRAM without their lines.
        promoted_partial: u64 => counter "terrace_middle_promoted_partial_total"
            "Pages promoted to DRAM without their lines.",
        /// Partial pages whose other lines were loaded, for an access other than a point read.
        made_whole: u64 => counter "terrace_middle_made_whole_total"
            "Partial pages whose other lines were loaded, for an access other than a point read.",
        /// Of the pages promoted partial, those to mini pages ([`crate::Builder::mini_pages`]).
        promoted_mini: u64 => counter "terrace_middle_promoted_mini_total"
            "Pages promoted to DRAM as mini pages.",
        /// Pages in mini pages now.
        mini_pages: u64 => gauge "terrace_middle_mini_pages" "Pages in mini pages.",
        /// DRAM frames that hold mini pages.
        mini_page_frames: u64 => gauge
            "terrace_middle_mini_page_frames" "DRAM frames that hold mini pages.",
        /// Mini pages that got a frame, for more lines or another access than a point read.
        widened: u64 => counter "terrace_middle_widened_total"
            "Mini pages that got a frame of their own.",
        /// Frames that outlive the process, with a persistent middle tier.
        persistent: Option<PersistentStats>,
        /// The DRAM cache in front of a simulated memory (memory mode).
        dram_cache: Option<DramCacheStats>,
        /// Bytes of whole pages read from this tier, for DRAM or the store.
        read_bytes: u64 => MOVED_BYTES "read",
        /// Bytes of whole pages written to this tier.
        written_bytes: u64 => MOVED_BYTES "written",
        /// Page moves between tiers.
        migrations: Migrations,
        /// Page writes to this tier, by reason.
        writes: MiddleWrites,
        /// Images written to the store from DRAM.
        dram_flushes: u64 => FLUSHES "dram",
        /// Images written to the store from this tier.
        middle_flushes: u64 => FLUSHES "middle",
        /// Promotions refused because no frame was free or the page was being changed.
        up_refused: u64 => MOVES_NOT_MADE "promotion_refused",
        /// Promotions deferred to a batch, where memory moves with pages.
        up_deferred: u64 => MOVES_NOT_MADE "promotion_deferred",
        /// Demotions refused because no frame was free.
        down_refused: u64 => MOVES_NOT_MADE "demotion_refused",
        /// Middle copies dropped to make room.
        copies_dropped: u64 => COPIES_DROPPED "room",
        /// Middle copies dropped because their pages were freed.
        copies_freed: u64 => COPIES_DROPPED "freed",
        /// Pages read or created while their size has no frames here.
        ///
        /// A persistent tier takes one size alone, any other those that fit.
        other_sizes: u64 => counter "terrace_middle_other_sizes_total"
            "Pages read or made that the middle tier has no frames for, because of their size.",
        /// Moves of memory between nodes.
        memory_moves: MemoryMoves,
        /// 4 KiB pages that the system placed outside the tier's nodes since open.
        misplaced_pages: u64 => counter "terrace_middle_misplaced_pages_total"
            "Pages of the system's that it put elsewhere than on the nodes of the middle tier.",
    }
}

terrace_io::stats! {
    /// Frames of the middle tier for pages of one size.
    ///
    /// ```
    /// use terrace::{Db, MemoryDirectory, TableOptions};
    ///
    /// # let directory = std::sync::Arc::new(MemoryDirectory::new());
    /// let builder = Db::builder().directory(directory).dram(16 << 20).page_size_max(16 << 10);
    /// let db = builder.middle("simulated:dram,8MiB".parse()?).open("")?;
    /// db.create_table_with("t", &TableOptions::new().page_size(16 << 10))?;
    /// let frames: Vec<_> = db.stats().middle.unwrap().classes.iter().map(|class| class.frames).collect();
    /// assert_eq!(frames, [1024, 256], "half of the tier each");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
    #[non_exhaustive]
    pub struct MiddleClass {
        /// Page size, bytes.
        page_bytes: u64 as "page_bytes",
        /// Bytes of the tier that a frame takes.
        ///
        /// At least those of the database's own page size: the tier has headers for frames of that.
        frame_bytes: u64 => gauge "terrace_middle_class_frame_bytes"
            "Bytes of the middle tier that a frame takes, by the size of its pages.",
        /// Frames of this size.
        frames: u64 => gauge
            "terrace_middle_class_frames" "Frames of the middle tier by the size of their pages.",
        /// Frames that hold a page.
        used: u64 => gauge "terrace_middle_class_used_frames"
            "Frames of the middle tier that hold a page, by its size.",
        /// DRAM frames of this size that hold a page.
        dram_used: u64 => gauge "terrace_middle_class_dram_used_frames"
            "DRAM frames that hold a page of a size that the middle tier takes, by that size.",
        /// Frames taken for pages read, created or demoted.
        taken: u64 => counter "terrace_middle_class_frames_taken_total"
            "Frames of the middle tier taken for pages, by their size.",
        /// Frames gained from other page sizes.
        gained: u64 => counter "terrace_middle_class_frames_gained_total"
            "Frames of the middle tier that came from pages of another size.",
        /// Frames lost to other page sizes.
        lost: u64 => counter "terrace_middle_class_frames_lost_total"
            "Frames of the middle tier that went to pages of another size.",
    }
}

terrace_io::stats! {
    /// Frames of a middle tier that outlives the process, such as [`crate::MiddleKind::Shm`].
    ///
    /// Only sealed frames count at the next open. Sealed frames that did not count at this one are
    /// in the `dropped` counters, by reason.
    ///
    /// ```
    /// assert_eq!(terrace::PersistentStats::default().adopted, 0);
    /// ```
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
    #[non_exhaustive]
    pub struct PersistentStats {
        /// Frames adopted at open.
        adopted: u64 => gauge
            "terrace_middle_adopted_frames" "Frames of the middle tier adopted at open.",
        /// Microseconds that the open spent on headers of frames; 0 if it adopted none.
        adoption_us: u64 => gauge "terrace_middle_adoption_microseconds"
            "Microseconds that the open spent on headers of frames.",
        /// Frames sealed now.
        sealed: u64 => gauge
            "terrace_middle_sealed_frames" "Frames of the middle tier that would count after a crash.",
        /// Frames sealed since open.
        seals: u64 => SEALS "sealed",
        /// Frames unsealed since open, because they changed or lost their page.
        unseals: u64 => SEALS "unsealed",
        /// All, because the database was open without the tier.
        dropped_life: u64 => SEALED_DROPPED "life",
        /// The header is damaged.
        dropped_header: u64 => SEALED_DROPPED "header",
        /// The page was freed.
        dropped_page: u64 => SEALED_DROPPED "page",
        /// The image or the allocation of the page is newer.
        dropped_older: u64 => SEALED_DROPPED "older",
        /// The log ends before the frame.
        dropped_beyond_log: u64 => SEALED_DROPPED "beyond_log",
        /// Another frame has a newer state of the page.
        dropped_duplicate: u64 => SEALED_DROPPED "duplicate",
        /// The checksum of the body does not hold, found at the first access.
        dropped_body: u64 => SEALED_DROPPED "body",
    }
}

terrace_io::stats! {
    /// Mapped memory moved between the nodes of two tiers ([`crate::MiddleKind::Numa`]).
    ///
    /// ```
    /// assert_eq!(terrace::MemoryMoves::default().calls_per_page(), 0.0);
    /// ```
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
    #[non_exhaustive]
    pub struct MemoryMoves {
        /// Pages moved.
        pages: u64 => MEMORY_MOVES "moved",
        /// System calls for the moves.
        calls: u64 => counter
            "terrace_memory_move_calls_total" "System calls that moved memory from tier to tier.",
        /// Pages not moved because the system or another process uses them.
        busy: u64 => MEMORY_MOVES "busy",
        /// Pages not moved because a node was full.
        full: u64 => MEMORY_MOVES "full",
    }
}

impl MemoryMoves {
    /// System calls per moved page; 0 without moves.
    pub fn calls_per_page(&self) -> f64 {
        if self.pages == 0 { 0.0 } else { self.calls as f64 / self.pages as f64 }
    }
}

terrace_io::stats! {
    /// Progress of the policy tuner ([`crate::migration::Tuner`]).
    ///
    /// ```
    /// assert!(!terrace::Tuning::default().runs);
    /// ```
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
    #[non_exhaustive]
    pub struct Tuning {
        /// Whether the tuner still runs; [`crate::Db::set_policy`] stops it.
        runs: bool => gauge "terrace_tuner_runs" "1 while the tuner of the policy runs.",
        /// Whether a search is over and its policy holds until the workload shifts.
        is_holding: bool => gauge "terrace_tuner_holds" "1 while the tuner holds a policy.",
        /// Epochs so far.
        epochs: u64 => gauge "terrace_tuner_epochs" "Epochs of the tuner so far.",
        /// Searches so far.
        searches: u64 => gauge "terrace_tuner_searches" "Searches of the tuner so far.",
        /// Operations per epoch.
        epoch_operations: u64 => gauge "terrace_tuner_epoch_operations" "Operations of one epoch.",
    }
}

terrace_io::stats! {
    /// Pages moved between tiers, named as in `bench --json`.
    ///
    /// ```
    /// assert_eq!(terrace::Migrations::default().store_to_dram, 0);
    /// ```
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
    #[non_exhaustive]
    pub struct Migrations {
        /// Read from the store into DRAM.
        store_to_dram: u64 => MIGRATIONS "store_to_dram",
        /// Read from the store into the middle tier.
        store_to_middle: u64 => MIGRATIONS "store_to_middle",
        /// Promoted to DRAM for a read or a write.
        middle_to_dram: u64 => MIGRATIONS "middle_to_dram",
        /// Promotions for a write.
        middle_to_dram_for_writes: u64 => counter
            "terrace_promotions_for_writes_total" "Pages that went to DRAM for a write.",
        /// Copied from DRAM to the middle tier.
        dram_to_middle: u64 => MIGRATIONS "dram_to_middle",
        /// Evicted from DRAM with a current middle copy, so nothing was copied.
        dram_to_middle_uncopied: u64 => MIGRATIONS "dram_to_middle_uncopied",
        /// Evicted from DRAM to the store.
        dram_to_store: u64 => MIGRATIONS "dram_to_store",
        /// Evicted from the middle tier to the store.
        middle_to_store: u64 => MIGRATIONS "middle_to_store",
    }
}

terrace_io::stats! {
    /// Pages written to the middle tier, by reason.
    ///
    /// ```
    /// assert_eq!(terrace::MiddleWrites::default().in_place, 0);
    /// ```
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
    #[non_exhaustive]
    pub struct MiddleWrites {
        /// Accesses in place for a change.
        in_place: u64 => WRITES "in_place",
        /// Dirty pages from DRAM.
        from_dram: u64 => WRITES "from_dram",
        /// Clean pages from DRAM.
        from_dram_clean: u64 => WRITES "from_dram_clean",
        /// Pages from the store.
        from_store: u64 => WRITES "from_store",
        /// Pages created in this tier.
        created: u64 => WRITES "created",
    }
}

impl MiddleStats {
    /// Counters since `earlier`; current state as it is now.
    #[must_use]
    pub fn since(&self, earlier: &MiddleStats) -> MiddleStats {
        stats::since(self, earlier)
    }

    /// Inclusivity ratio (Spitfire, section 3.3 and Table 2).
    ///
    /// Pages with a copy in both tiers, as a fraction of all pages in either; 0 without pages.
    pub fn inclusivity(&self) -> f64 {
        let pages = (self.used + self.dram_used).saturating_sub(self.copies);
        if pages == 0 { 0.0 } else { self.copies as f64 / pages as f64 }
    }
}
