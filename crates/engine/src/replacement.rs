//! The page replacement policies.

use std::fmt;
use std::str::FromStr;

/// Page replacement policy.
///
/// ```
/// use terrace::{Db, MemoryDirectory, Replacement};
///
/// # let directory = std::sync::Arc::new(MemoryDirectory::new());
/// let builder = Db::builder().directory(directory).dram(4 << 20);
/// let db = builder.replacement(Replacement::Mark).open("")?;
/// # Ok::<(), terrace::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Replacement {
    /// Three queues, a ghost and a mark per page (S3-FIFO, SOSP 2023).
    #[default]
    Mark,
    /// A second-chance queue, as in the CXL buffer manager (section III-E).
    ///
    /// Each page is queued with its version; a change moves it to the end. A baseline: takes up to
    /// 64 bytes per frame beyond the budget.
    #[cfg(any(test, feature = "paper-baselines"))]
    FifoPaper,
    /// One independent CLOCK per tier, as in Spitfire (section 3).
    ///
    /// A page in DRAM keeps its middle copy until the middle tier's CLOCK evicts it. A baseline.
    #[cfg(any(test, feature = "paper-baselines"))]
    ClockPaper,
}

impl Replacement {
    /// All policies: without the feature `paper-baselines`, one.
    #[cfg(not(any(test, feature = "paper-baselines")))]
    pub const ALL: [Replacement; 1] = [Replacement::Mark];
    /// All policies.
    #[cfg(any(test, feature = "paper-baselines"))]
    pub const ALL: [Replacement; 3] = [Replacement::Mark, Replacement::FifoPaper, Replacement::ClockPaper];

    /// Name in commands and settings.
    pub const fn name(self) -> &'static str {
        match self {
            Replacement::Mark => "mark",
            #[cfg(any(test, feature = "paper-baselines"))]
            Replacement::FifoPaper => "fifo-paper",
            #[cfg(any(test, feature = "paper-baselines"))]
            Replacement::ClockPaper => "clock-paper",
        }
    }

    /// Whether it is the queue of the CXL paper.
    #[inline]
    pub(crate) const fn is_fifo_paper(self) -> bool {
        #[cfg(any(test, feature = "paper-baselines"))]
        return matches!(self, Replacement::FifoPaper);
        #[cfg(not(any(test, feature = "paper-baselines")))]
        false
    }

    /// Whether it is the CLOCK of the Spitfire paper.
    #[inline]
    pub(crate) const fn is_clock_paper(self) -> bool {
        #[cfg(any(test, feature = "paper-baselines"))]
        return matches!(self, Replacement::ClockPaper);
        #[cfg(not(any(test, feature = "paper-baselines")))]
        false
    }
}

impl fmt::Display for Replacement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Replacement {
    type Err = String;

    fn from_str(name: &str) -> Result<Replacement, String> {
        let found = Replacement::ALL.into_iter().find(|replacement| replacement.name() == name);
        found.ok_or_else(|| {
            if matches!(name, "fifo-paper" | "clock-paper") {
                return format!(
                    "this program was built without the replacement \"{name}\"; it needs the feature \
                     paper-baselines of terrace"
                );
            }
            format!("there is no replacement \"{name}\"; there are mark, fifo-paper and clock-paper")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_others_are_refused() {
        for replacement in Replacement::ALL {
            assert_eq!(replacement.to_string().parse(), Ok(replacement));
        }
        assert!("lru".parse::<Replacement>().unwrap_err().contains("lru"));
    }
}
