//! The two protocols of transactions.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

/// How transactions that run at the same time are kept apart.
///
/// Files do not depend on it. A database written with one opens with the other.
///
/// ```
/// use terrace::{Concurrency, Db, MemoryDirectory};
///
/// # let directory = std::sync::Arc::new(MemoryDirectory::new());
/// let builder = Db::builder().directory(directory).dram(4 << 20);
/// let db = builder.concurrency(Concurrency::Mvto).open("")?;
/// let table = db.create_table("t")?;
/// table.put("a", "1")?;
/// let report = db.begin();
/// assert_eq!(report.get(&table, "a")?.as_deref(), Some(&b"1"[..]));
/// table.put("b", "2")?;
/// assert_eq!(report.get(&table, "b")?, None, "it came later");
/// report.put(&table, "sum", "1")?;
/// report.commit()?;
/// # Ok::<(), terrace::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Concurrency {
    /// Optimistic: at commit, all that a transaction read must still be the newest. Strictly
    /// serializable.
    #[default]
    Occ,
    /// Multi-version timestamp ordering, as in Spitfire (section 6.1).
    ///
    /// A transaction takes its turn in the order of all at its first read. It reads what was there
    /// then, so it needs no check of its reads and keeps no list of them. It fails if another that
    /// comes later in the order has read or changed before what it changes. So a transaction that
    /// reads much and writes what nobody else uses commits beside writers.
    ///
    /// Serializable, but not strictly: a transaction may not see what others committed after its
    /// first read, and still commit. A read that meets the commit of the same key waits, for a
    /// durable commit until that is durable; a scan or a snapshot waits for all of them.
    ///
    /// A scan or a count of a table fails older transactions that change the table after it.
    /// Snapshots, named ones too, and [`Db::checkpoint`](crate::Db::checkpoint) fail all older ones
    /// that change anything. Keys may share a mark, which fails a few more. A read fails with
    /// [`Error::Conflict`](crate::Error::Conflict) if old versions that it needs had no room. After
    /// several failures, [`Db::update`](crate::Db::update) runs the closure as with
    /// [`Concurrency::Occ`].
    ///
    /// A crash may take a buffered commit and leave a later one that changed what the lost one had
    /// read, but none that saw its changes.
    Mvto,
}

impl Concurrency {
    /// All protocols.
    pub const ALL: [Concurrency; 2] = [Concurrency::Occ, Concurrency::Mvto];

    /// Name in commands and settings.
    pub const fn name(self) -> &'static str {
        match self {
            Concurrency::Occ => "occ",
            Concurrency::Mvto => "mvto",
        }
    }
}

impl fmt::Display for Concurrency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Concurrency {
    type Err = String;

    fn from_str(name: &str) -> Result<Concurrency, String> {
        let found = Concurrency::ALL.into_iter().find(|protocol| protocol.name() == name);
        found.ok_or_else(|| format!("there is no protocol \"{name}\"; there are occ and mvto"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_others_are_refused() {
        for protocol in Concurrency::ALL {
            assert_eq!(protocol.to_string().parse(), Ok(protocol));
        }
        for name in ["", "Occ", "2pl", "mvto "] {
            assert!(name.parse::<Concurrency>().unwrap_err().contains(name));
        }
    }
}
