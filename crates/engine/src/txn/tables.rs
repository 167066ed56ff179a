//! Tables with handles, and the creation, renaming and dropping of tables.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::catalog::{NEXT_ID, change, count_key, create_root, damaged, location_of, next_table_id};
use super::counts::Counts;
use super::durability::Durability;
use super::garbage::{GarbageKey, Transfer};
use super::mvcc::Mvcc;
use super::table::{TableLocation, TableState};
use crate::compression::Compression;
use crate::error::{Error, Result};
use crate::ids::{PageId, SizeClass, TableId, Timestamp};

const NAME_BYTES_MAX: usize = 255;
/// Bytes of the reference counts of a table's state and name.
const SHARED_BYTES: usize = 4 * size_of::<usize>();

/// Tables with handles, and the counts of tables.
#[derive(Debug)]
pub(crate) struct Tables {
    open: Mutex<HashMap<TableId, Weak<TableState>>>,
    pub(crate) counts: Counts,
}

pub(crate) fn check_name(name: &str) -> Result<()> {
    let refuse = |what| Err(Error::InvalidName { name: name.to_owned(), what });
    if name.is_empty() {
        return refuse("it is empty");
    }
    if name.len() > NAME_BYTES_MAX {
        return refuse("it is longer than 255 bytes");
    }
    if name.chars().any(char::is_control) {
        return refuse("it has control characters");
    }
    Ok(())
}

impl Tables {
    /// Finds out at open which saved counts are valid, before any commit.
    pub(crate) fn load(mvcc: &Mvcc) -> Result<Self> {
        Ok(Tables { open: Mutex::default(), counts: Counts::load(mvcc)? })
    }

    /// The state shared by all handles of a table.
    pub(crate) fn state_of(
        &self,
        mvcc: &Mvcc,
        name: &str,
        location: TableLocation,
    ) -> Result<Arc<TableState>> {
        let count = self.counts.of(mvcc, location.id)?;
        let mut tables = self.open.lock();
        if let Some(state) = tables.get(&location.id).and_then(Weak::upgrade) {
            // Two names with one id would share the state of one tree.
            return if state.tree.root == location.root { Ok(state) } else { Err(damaged()) };
        }
        if tables.len() == tables.capacity() {
            tables.retain(|_, state| state.strong_count() > 0);
        }
        let state = Arc::new(TableState::new(location, name, count));
        tables.insert(location.id, Arc::downgrade(&state));
        Ok(state)
    }

    fn forget_closed(&self) {
        let mut tables = self.open.lock();
        tables.retain(|_, state| state.strong_count() > 0);
        tables.shrink_to_fit();
    }

    /// Bytes of table states and counts.
    pub(crate) fn size_bytes(&self) -> usize {
        let of = |state: &Weak<TableState>| {
            let name = state.upgrade().map_or(0, |state| state.name.read().len());
            size_of::<TableState>() + name + SHARED_BYTES
        };
        let tables = self.open.lock();
        let counts = self.counts.size_bytes();
        counts
            + tables.capacity() * size_of::<(TableId, Weak<TableState>)>()
            + tables.values().map(of).sum::<usize>()
    }

    /// Creates a table after `prepare`, which may refuse its page sizes.
    pub(crate) fn create(
        &self,
        mvcc: &Mvcc,
        name: &str,
        (class, values): (SizeClass, SizeClass),
        compression: Compression,
        prepare: impl FnOnce() -> Result<()>,
    ) -> Result<TableLocation> {
        mvcc.alone(|| {
            if location_of(mvcc, name)?.is_some() {
                return Err(Error::TableExists(name.to_owned()));
            }
            prepare()?;
            let id = next_table_id(mvcc)?;
            // Decoding would refuse the id after the last one, so it is never written.
            let next_id = id.0.checked_add(1).filter(|&next| next < u64::MAX).ok_or_else(damaged)?;
            let root = create_root(mvcc, class, compression)?;
            let location = TableLocation { id, root, compression, values };
            let next = TableLocation {
                id: TableId(next_id),
                root: PageId::NONE,
                compression: Compression::None,
                values: SizeClass::SMALLEST,
            };
            let claim = Transfer::Claim(GarbageKey::table(root), None);
            let value = |location: TableLocation| Some(location.encode().to_vec());
            let changes = vec![(name.as_bytes(), value(location)), (NEXT_ID, value(next))];
            change(mvcc, changes, vec![claim], Durability::Sync)
                .inspect_err(|_| mvcc.garbage.add_table(root, Timestamp::NONE))?;
            Ok(location)
        })
    }

    pub(crate) fn rename(&self, mvcc: &Mvcc, from: &str, to: &str) -> Result<()> {
        mvcc.alone(|| {
            let location = location_of(mvcc, from)?.ok_or_else(|| Error::TableNotFound(from.to_owned()))?;
            if location_of(mvcc, to)?.is_some() {
                return Err(Error::TableExists(to.to_owned()));
            }
            let state = self.state_of(mvcc, from, location)?;
            let changes = vec![(from.as_bytes(), None), (to.as_bytes(), Some(location.encode().to_vec()))];
            change(mvcc, changes, Vec::new(), Durability::Sync)?;
            *state.name.write() = to.into();
            Ok(())
        })
    }

    pub(crate) fn drop(&self, mvcc: &Mvcc, name: &str) -> Result<()> {
        mvcc.alone(|| {
            let location = location_of(mvcc, name)?.ok_or_else(|| Error::TableNotFound(name.to_owned()))?;
            let state = self.state_of(mvcc, name, location)?;
            let discard = Transfer::Discard(GarbageKey::table(location.root), None);
            let count = count_key(location.id);
            let changes = vec![(name.as_bytes(), None), (&count[..], None)];
            let at = change(mvcc, changes, vec![discard], Durability::Sync)?;
            self.counts.forget(location.id);
            // Before other threads commit again, and long before its pages are freed.
            state.set_dropped(at);
            mvcc.garbage.add_table(location.root, at);
            Ok(())
        })
    }

    pub(crate) fn save_counts_if_due(&self, mvcc: &Mvcc) -> Result<()> {
        if self.counts.is_save_due(mvcc) { self.save_counts(mvcc, false) } else { Ok(()) }
    }

    /// Saves the changed counts. With `mark`, as the last commit before closing.
    pub(crate) fn save_counts(&self, mvcc: &Mvcc, mark: bool) -> Result<()> {
        mvcc.alone(|| {
            if self.counts.save(mvcc, mark)? {
                self.forget_closed();
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use terrace_io::{Directory, OpenMode};

    use super::super::catalog::*;
    use super::super::table::*;
    use super::*;
    use crate::TableOptions;
    use crate::config::class_of;
    use crate::store::superblock::Slots;

    #[test]
    fn names_are_plain_text() {
        assert!(check_name("a").is_ok() && check_name("größe/2 ✓").is_ok());
        for name in ["", "a\nb", "\u{1b}[31m", &"x".repeat(256)] {
            assert!(matches!(check_name(name), Err(Error::InvalidName { .. })), "{name:?}");
        }
        let location = TableLocation {
            id: TableId(FIRST_TABLE),
            root: PageId(1 << 56 | 9),
            compression: Compression::Lz4,
            values: SizeClass::LARGEST,
        };
        for values in SizeClass::all().skip(1) {
            let location = TableLocation { values, ..location };
            assert_eq!(TableLocation::decode(&location.encode()), Some(location));
        }
        let ids = [0, CATALOG.0, FIRST_TABLE - 1, u64::MAX];
        let no_ids = ids.map(|id| TableLocation { id: TableId(id), ..location }.encode());
        let last = TableLocation { id: TableId(u64::MAX - 1), ..location };
        assert_eq!(TableLocation::decode(&last.encode()), Some(last));
        let smaller = TableLocation { values: SizeClass::SMALLEST, ..location }.encode();
        let no_class = TableLocation { root: PageId(10 << 56 | 3), ..location }.encode();
        let no_node = TableLocation { root: PageId(5 << 56 | 3), ..location }.encode();
        let mut no_values = location.encode();
        no_values[17] = 10;
        let hostile = [
            &b"short"[..],
            &[0; 16],
            &[0; 17],
            &[0; 19],
            &[2; 18],
            &smaller,
            &no_class,
            &no_node,
            &no_values,
        ];
        for hostile in hostile.into_iter().chain(no_ids.iter().map(|location| &location[..])) {
            assert_eq!(TableLocation::decode(hostile), None);
        }
    }

    fn with_catalog(change: impl FnOnce(&crate::Db)) -> crate::Db {
        let directory = Arc::new(crate::MemoryDirectory::new());
        let db = crate::Db::builder().directory(directory).dram(2 << 20).mode(crate::Mode::Inline);
        let db = db.open("").unwrap();
        db.create_table("t").unwrap().put("k", "v").unwrap();
        change(&db);
        db
    }

    fn set(db: &crate::Db, key: &[u8], location: TableLocation) {
        let changes = vec![(key, Some(location.encode().to_vec()))];
        db.shared.alone(|| change(&db.shared, changes, Vec::new(), Durability::Buffered)).unwrap();
    }

    #[test]
    fn no_table_gets_an_id_after_the_last() {
        for id in [0, CATALOG.0, u64::MAX - 1, u64::MAX] {
            let next = TableLocation {
                id: TableId(id),
                root: PageId::NONE,
                compression: Compression::None,
                values: SizeClass::SMALLEST,
            };
            let db = with_catalog(|db| set(db, NEXT_ID, next));
            let refused = db.create_table("u").unwrap_err();
            assert!(matches!(refused, Error::Corrupt { .. }), "{id}: {refused}");
            assert_eq!(db.open_table("t").unwrap().get("k").unwrap().as_deref(), Some(&b"v"[..]));
            assert!(db.open_table("u").is_err(), "{id}");
        }
    }

    #[test]
    fn two_names_with_one_id_are_damage() {
        let db = with_catalog(|db| {
            db.create_table("u").unwrap();
            let [one, other] = ["t", "u"].map(|name| location_of(&db.shared, name).unwrap().unwrap());
            set(db, b"u", TableLocation { id: one.id, ..other });
        });
        let one = db.open_table("t").unwrap();
        assert!(matches!(db.open_table("u"), Err(Error::Corrupt { .. })));
        assert_eq!(one.get("k").unwrap().as_deref(), Some(&b"v"[..]));
    }

    #[test]
    fn the_superblock_says_at_once_that_there_are_pages_of_another_size() {
        let directory = Arc::new(crate::MemoryDirectory::new());
        let db = crate::Db::builder().directory(directory.clone()).dram(24 << 20).page_size_max(32 << 10);
        let db = db.mode(crate::Mode::Inline).open("").unwrap();
        let class = class_of(32 << 10).unwrap();
        let pages = directory.open("pages.terrace", OpenMode::Read).unwrap();
        let ids_end = || Slots::open(pages.clone()).unwrap().1.page_ids_end[class.index()];
        assert_eq!(ids_end(), 1);
        db.create_table_with("t", &TableOptions::new().page_size(32 << 10)).unwrap();
        assert!(ids_end() > 1);
    }
}
