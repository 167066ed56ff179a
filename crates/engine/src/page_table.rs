//! The two page tables.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

/// How a page id leads to the page's entry in the page table.
///
/// Files do not depend on it. A database written with one opens with the other.
///
/// ```
/// use terrace::{Db, MemoryDirectory, PageTableKind};
///
/// # let directory = std::sync::Arc::new(MemoryDirectory::new());
/// let builder = Db::builder().directory(directory).dram(4 << 20);
/// let db = builder.page_table(PageTableKind::Hash).swizzle(true).open("")?;
/// db.create_table("t")?.put("k", "v")?;
/// # Ok::<(), terrace::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PageTableKind {
    /// An array over page ids: a shift and an addition.
    #[default]
    Array,
    /// A hash table with open addressing, as buffer managers in papers have it. A baseline.
    ///
    /// Sized at open for twice the pages there are. Each time the database outgrows it, it gets
    /// another table of twice the size, which costs a probe more per lookup.
    Hash,
}

impl PageTableKind {
    /// All page tables.
    pub const ALL: [PageTableKind; 2] = [PageTableKind::Array, PageTableKind::Hash];

    /// Name in commands and settings.
    pub const fn name(self) -> &'static str {
        match self {
            PageTableKind::Array => "array",
            PageTableKind::Hash => "hash",
        }
    }
}

impl fmt::Display for PageTableKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for PageTableKind {
    type Err = String;

    fn from_str(name: &str) -> Result<PageTableKind, String> {
        let found = PageTableKind::ALL.into_iter().find(|table| table.name() == name);
        found.ok_or_else(|| format!("there is no page table \"{name}\"; there are array and hash"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_others_are_refused() {
        for table in PageTableKind::ALL {
            assert_eq!(table.to_string().parse(), Ok(table));
        }
        for name in ["", "Hash", "tree", "hash "] {
            assert!(name.parse::<PageTableKind>().unwrap_err().contains(name));
        }
    }
}
