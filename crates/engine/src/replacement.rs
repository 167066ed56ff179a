//! The ways to choose which pages leave memory.

use std::fmt;
use std::str::FromStr;

/// Which pages leave memory when others need their place.
///
/// ```
/// use terrace::{Db, MemoryDirectory, Replacement};
///
/// # let directory = std::sync::Arc::new(MemoryDirectory::new());
/// let db = Db::builder().directory(directory).dram(4 << 20).replacement(Replacement::FifoPaper).open("")?;
/// # Ok::<(), terrace::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Replacement {
    /// Three queues and a memory of what left, with one mark on each page that a hit sets if it is clear (S3-FIFO, SOSP 2023).
    #[default]
    Mark,
    /// One queue with a second chance, of pages with the version at which they stood in line, as in the CXL buffer manager
    /// (section III-E): whoever changes a page puts it at the end. To compare with; up to 64 bytes a frame are taken beside
    /// the budget.
    FifoPaper,
    /// A CLOCK for each tier that knows nothing of the other's, as in Spitfire (section 3): a page that has a copy in the middle tier
    /// keeps it while it is in DRAM, as long as its turn there has not come. To compare with.
    ClockPaper,
}

impl Replacement {
    /// All of them.
    pub const ALL: [Replacement; 3] = [Replacement::Mark, Replacement::FifoPaper, Replacement::ClockPaper];

    /// Its name in commands and settings.
    pub const fn name(self) -> &'static str {
        match self {
            Replacement::Mark => "mark",
            Replacement::FifoPaper => "fifo-paper",
            Replacement::ClockPaper => "clock-paper",
        }
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
