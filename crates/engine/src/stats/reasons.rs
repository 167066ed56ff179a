//! Counts by reason: structs with one counter per reason, also iterable by name.

use serde::Serialize;
use terrace_io::stats::{Family, Field, Text};

macro_rules! by_reason {
    ($(
        $(#[$about:meta])*
        pub struct $name:ident => $label:ident $family:literal $help:literal {
            $($(#[$doc:meta])* $reason:ident,)*
        }
    )*) => {$(
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
        #[non_exhaustive]
        pub struct $name {
            $($(#[$doc])* pub $reason: u64,)*
        }

        impl Field for $name {
            fn show(&self, _: &Family, _: &str, text: &mut Text) {
                let family = Family::counter($family, $help).by(stringify!($label));
                self.by_reason().for_each(|(reason, count)| text.sample(&family, reason, count));
            }

            fn since(&self, earlier: &Self, _: &Family) -> Self {
                $name { $($reason: self.$reason.saturating_sub(earlier.$reason),)* }
            }
        }

        impl $name {
            /// Name and count of each reason.
            pub fn by_reason(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$((stringify!($reason), self.$reason)),*].into_iter()
            }

            /// Sum over all reasons.
            pub fn total(&self) -> u64 {
                self.by_reason().map(|(_, count)| count).sum()
            }
        }
    )*};
}

by_reason! {
    /// Waits by reason; `docs/tiers.md` explains them.
    ///
    /// ```
    /// let stalls = terrace::Stalls::default();
    /// assert_eq!((stalls.total(), stalls.by_reason().next()), (0, Some(("frames", 0))));
    /// ```
    pub struct Stalls => reason "terrace_stalls_total" "Times somebody waited, by what for." {
        /// A page read or creation waited for write-back of a frame.
        frames,
        /// A commit or tree change waited for a checkpoint to cut the log.
        log_space,
        /// A record waited for room in the log buffer.
        log_buffer,
        /// Write-back waited for a free segment.
        segments,
        /// A reader or writer waited for a latch.
        latches,
        /// A commit waited for a key lock of another commit.
        locks,
        /// A commit waited for a transaction with priority, or a pause.
        gate,
        /// A commit waited for a timestamp: too many were undecided.
        timestamps,
        /// A transaction of several records waited for others of its kind.
        chains,
    }

    /// Restarts by reason.
    ///
    /// ```
    /// assert_eq!(terrace::Retries::default().by_reason().count(), 3);
    /// ```
    pub struct Retries => reason "terrace_retries_total"
        "Times a search or change was begun again, by why."
    {
        /// A page changed or was evicted during an optimistic read.
        changed,
        /// A page changed, was evicted or latched between read and latch.
        latched,
        /// Another thread loaded, evicted or changed the page first.
        loaded,
    }

    /// Outcomes of the sweep for free frames.
    ///
    /// ```
    /// assert_eq!(terrace::Sweeps::default().by_reason().count(), 4);
    /// ```
    pub struct Sweeps => outcome "terrace_swept_pages_total"
        "Pages that the sweep for frames met, by what became of them."
    {
        /// Clean and unmarked: evicted.
        evicted,
        /// Marked since the last visit: kept.
        used,
        /// Dirty or being written: left to write-back.
        dirty,
        /// Latched or changed at that moment: skipped.
        busy,
    }

    /// Images written to the page file, by reason.
    ///
    /// ```
    /// assert_eq!(terrace::WriteBacks::default().by_reason().count(), 5);
    /// ```
    pub struct WriteBacks => reason "terrace_images_written_total" "Images of dirty pages written, by why." {
        /// Ahead of the sweep, to provide clean frames.
        ahead,
        /// Because threads waited for frames.
        frames,
        /// To let the log be cut.
        checkpoint,
        /// Dirty pages of a segment being emptied; `images_moved` counts clean ones.
        cleaner,
        /// At close.
        close,
    }

    /// Images read without a frame, by reader.
    ///
    /// ```
    /// assert_eq!(terrace::Bypasses::default().by_reason().count(), 2);
    /// ```
    pub struct Bypasses => reason "terrace_bypassing_reads_total" "Images read past the frames, by whom." {
        /// The cleaner, which moves images unchanged.
        cleaner,
        /// Verification, which checks the file itself.
        verify,
    }

    /// Snapshots given up, by reason.
    ///
    /// ```
    /// assert_eq!(terrace::GivenUp::default().by_reason().count(), 2);
    /// ```
    pub struct GivenUp => reason "terrace_snapshots_given_up_total" "Snapshots given up, by why." {
        /// Older than `snapshot_age_max`.
        age,
        /// The oldest, because old versions exceeded their limit.
        memory,
    }
}
