//! Counts by reason: each a struct with a number for every reason, which can also be walked through by name.

use serde::Serialize;

macro_rules! by_reason {
    ($($(#[$about:meta])* pub struct $name:ident { $($(#[$doc:meta])* $reason:ident,)* })*) => {$(
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
        #[non_exhaustive]
        pub struct $name {
            $($(#[$doc])* pub $reason: u64,)*
        }

        impl $name {
            /// Every reason's name and count.
            pub fn by_reason(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$((stringify!($reason), self.$reason)),*].into_iter()
            }

            /// All of them together.
            pub fn total(&self) -> u64 {
                self.by_reason().map(|(_, count)| count).sum()
            }
        }
    )*};
}

by_reason! {
    /// How often somebody had to wait, by what for. `docs/tiers.md` has the rule behind them.
    ///
    /// ```
    /// let stalls = terrace::Stalls::default();
    /// assert_eq!((stalls.total(), stalls.by_reason().next()), (0, Some(("frames", 0))));
    /// ```
    pub struct Stalls {
        /// A page to be read or made found no clean frame, and waited for write-back.
        frames,
        /// A commit or a change of a tree waited for the checkpoint to cut the log.
        log_space,
        /// A record waited for room in the log's buffer, which took a write of the log.
        log_buffer,
        /// Write-back found no free segment, and had some emptied first.
        segments,
        /// A reader or writer met a page that another thread held, and waited a moment.
        latches,
        /// A commit waited for another that had locked one of its keys, longer than a moment.
        locks,
        /// A commit waited for a transaction with priority that had read what it writes, or for a moment in which the
        /// engine needs no commits.
        gate,
        /// A commit waited for a timestamp, because as many were undecided as the clock keeps.
        timestamps,
        /// A transaction of several records waited for others of its kind to end.
        chains,
    }

    /// How often work was begun again, by why.
    ///
    /// ```
    /// assert_eq!(terrace::Retries::default().by_reason().count(), 3);
    /// ```
    pub struct Retries {
        /// A page changed, or was evicted, while it was being read without a latch, and the descent began anew.
        changed,
        /// A page changed, was evicted, or was latched by another, between being read and being latched for a change.
        latched,
        /// A page was loaded, evicted or changed by another thread before this one could load it.
        loaded,
    }

    /// What the sweep for free frames did with the pages it came by.
    ///
    /// ```
    /// assert_eq!(terrace::Sweeps::default().by_reason().count(), 4);
    /// ```
    pub struct Sweeps {
        /// Clean and not used since the last visit: its frame was taken.
        evicted,
        /// Used since the last visit: it stayed.
        used,
        /// Dirty, or being written: it was left to write-back.
        dirty,
        /// Latched, or changed at that moment: it was left alone.
        busy,
    }

    /// Images of pages written to the page file, by why.
    ///
    /// ```
    /// assert_eq!(terrace::WriteBacks::default().by_reason().count(), 5);
    /// ```
    pub struct WriteBacks {
        /// Ahead of the sweep, so that it finds clean frames.
        ahead,
        /// Because frames were waited for.
        frames,
        /// So that the log could be cut.
        checkpoint,
        /// Out of a segment that was being emptied; clean images moved are `images_moved`.
        cleaner,
        /// When the database was closed.
        close,
    }

    /// Images read past the frames, by whom.
    ///
    /// ```
    /// assert_eq!(terrace::Bypasses::default().by_reason().count(), 2);
    /// ```
    pub struct Bypasses {
        /// The cleaner, which moves images as they are.
        cleaner,
        /// Verification, which wants what is in the file.
        verify,
    }

    /// Snapshots given up, by why.
    ///
    /// ```
    /// assert_eq!(terrace::GivenUp::default().by_reason().count(), 2);
    /// ```
    pub struct GivenUp {
        /// Older than `snapshot_age_max`.
        age,
        /// The oldest, when old versions took more memory than they may.
        memory,
    }
}
