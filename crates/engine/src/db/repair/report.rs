//! The report of a repair: saved and lost data.

#[cfg(doc)]
use crate::Builder;

/// Result of [`Builder::repair`]: saved and lost data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RepairReport {
    /// Page images checked.
    pub pages_checked: u64,
    /// Entries in the new database.
    pub entries: u64,
    /// Missing or damaged pages, with the reason.
    pub lost_pages: Vec<(u64, String)>,
    /// The tables of the new database, sorted by name.
    pub tables: Vec<RepairedTable>,
    /// Whether the saved entries are those after the last commit.
    ///
    /// That requires an intact page table and log. Otherwise values may be old, deleted keys may be
    /// back, and transactions may be incomplete.
    pub consistent: bool,
    /// Entries left out because their transaction neither committed nor could be undone.
    pub uncommitted: u64,
    /// Damage of superblock, page table and log.
    pub notes: Vec<String>,
}

/// One table of a repaired database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RepairedTable {
    /// Name in the new database.
    ///
    /// `table-` and the root page if the name is lost; `page-` and a page for entries of an unknown
    /// table.
    pub name: String,
    /// Entries saved.
    pub entries: u64,
    /// Key ranges that are lost in whole or in part.
    ///
    /// From the first key (inclusive) to the second (exclusive); `None` is the end of the table.
    pub lost_ranges: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    /// Keys whose values are lost.
    ///
    /// Long values that are damaged, and values before an uncommitted change that cannot be undone.
    pub lost_values: Vec<Vec<u8>>,
}

impl RepairReport {
    /// Whether everything was saved.
    pub fn is_complete(&self) -> bool {
        let whole = |table: &RepairedTable| table.lost_ranges.is_empty() && table.lost_values.is_empty();
        self.consistent
            && self.lost_pages.is_empty()
            && self.uncommitted == 0
            && self.notes.is_empty()
            && self.tables.iter().all(whole)
    }
}
