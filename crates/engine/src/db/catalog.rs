//! The tables of a database by name.
//!
//! The catalog is a tree like any other, so that names have versions, are undone in recovery and are seen by
//! snapshots. Key: the name; value: id, root page, and what the table was made with. The empty name, which no table can have, holds the next id.
//!
//! Keys that begin with a zero byte name no table: they hold counts of entries (`count.rs`).
//!
//! Changes of the catalog are made by who is alone inside the gate: nobody else commits meanwhile, so no commit writes
//! to a table after it was dropped. A table is made by a record of its empty root together with a garbage entry, then a
//! transaction that puts the name and removes the entry; it is dropped by one that removes the name and adds an entry.
//! Its pages are freed when no snapshot can read it any more.

use std::sync::{Arc, Weak};

use super::commit::Work;
use super::core::{CATALOG, Core, FIRST_TABLE, Shared, TableState};
use super::count::{count_key, is_count_key};
use super::garbage::{GarbageKey, Transfer, garbage_tree, put};
use super::options::{Compression, TableOptions};
use super::scan::{Row, Scan};
use super::table::Table;
use crate::config::{Durability, class_of, value_class_of};
use crate::error::{Error, Result};
use crate::ids::{PageId, SizeClass, TableId, Timestamp};
use crate::index::{SPLIT_FRAMES, Stored, Tree, Write, log_bytes};
use crate::txn::read_set::ReadSet;
use crate::txn::write_set::{NewValue, WriteSet};

const NAME_BYTES_MAX: usize = 255;
/// Pages that the garbage entry of a new root may cost.
const GARBAGE_PAGES: u64 = 4;
/// What shared pointers to a table's state and to its name count by.
const SHARED_BYTES: usize = 4 * size_of::<usize>();
/// The key of the next table's id.
const NEXT_ID: &[u8] = b"";
/// No name is below this, and no other key above.
pub(super) const FIRST_NAME: &[u8] = &[1];

/// Where a table is, and what it was made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) id: TableId,
    /// Its class is that of all its pages.
    pub(crate) root: PageId,
    /// The root page says so too, and every page under it: that is what they are written by. Large values are begun by this.
    pub(crate) compression: Compression,
    /// The class of the largest pages of large values.
    pub(crate) values: SizeClass,
}

impl Place {
    fn encode(self) -> [u8; 18] {
        let mut bytes = [0; 18];
        bytes[..8].copy_from_slice(&self.id.0.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.root.0.to_le_bytes());
        bytes[16] = self.compression.encode();
        bytes[17] = self.values.index() as u8;
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (id, rest) = bytes.split_first_chunk::<8>()?;
        let (root, options) = rest.split_first_chunk::<8>()?;
        let &[compression, values] = options else { return None };
        let root = PageId(u64::from_le_bytes(*root));
        let (own, values) = (root.class()?, SizeClass::from_index(values.into())?);
        let id = u64::from_le_bytes(*id);
        // Ids below are the database's own, and no table ever gets the last one.
        let is_id = (FIRST_TABLE..u64::MAX).contains(&id);
        (is_id && !own.is_for_values() && own <= values).then_some(Place {
            id: TableId(id),
            root,
            compression: Compression::decode(compression)?,
            values,
        })
    }
}

/// Refuses names that no table may have.
fn check_name(name: &str) -> Result<()> {
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

pub(super) fn damaged() -> Error {
    Error::corrupt("the catalog", None, "an entry that means nothing")
}

impl Core {
    fn place_of(&self, name: &str) -> Result<Option<Place>> {
        if name.is_empty() || is_count_key(name.as_bytes()) {
            return Ok(None);
        }
        let entry = self.get_now(&self.catalog, name.as_bytes())?;
        entry.map(|bytes| Place::decode(&bytes).ok_or_else(damaged)).transpose()
    }

    /// The names and places of all tables.
    pub(crate) fn tables(&self) -> Result<Vec<(String, Place)>> {
        let snapshot = self.snapshots.register(&self.clock);
        let all = (std::ops::Bound::Included(FIRST_NAME.to_vec()), std::ops::Bound::Unbounded);
        let mut scan = Scan::new(self.catalog.tree, all, Some(snapshot.timestamp()));
        let mut tables = Vec::new();
        self.check()?;
        while let Some(Row { key, value, .. }) = scan.next(self, &self.catalog, &mut |_, _| {})? {
            let Stored::Inline(value) = value else { return Err(damaged()) };
            let name = String::from_utf8(key).map_err(|_| damaged())?;
            tables.push((name, Place::decode(&value).ok_or_else(damaged)?));
        }
        snapshot.check()?;
        Ok(tables)
    }

    /// The one state that all handles of a table share.
    fn state_of(&self, name: &str, place: Place) -> Result<Arc<TableState>> {
        let count = self.count_of(place.id)?;
        let mut tables = self.tables.lock();
        if let Some(state) = tables.get(&place.id).and_then(Weak::upgrade) {
            // Two names with one id would share the state of one tree.
            return if state.tree.root == place.root { Ok(state) } else { Err(damaged()) };
        }
        if tables.len() == tables.capacity() {
            tables.retain(|_, state| state.strong_count() > 0);
        }
        let state = Arc::new(TableState::new(place, name, count));
        tables.insert(place.id, Arc::downgrade(&state));
        Ok(state)
    }

    /// Drops what is kept of tables that nobody has a handle of.
    pub(super) fn forget_closed_tables(&self) {
        let mut tables = self.tables.lock();
        tables.retain(|_, state| state.strong_count() > 0);
        tables.shrink_to_fit();
    }

    /// Bytes of memory that tables take of which somebody has, or had, a handle; without their counts.
    pub(crate) fn table_bytes(&self) -> usize {
        let of = |state: &Weak<TableState>| {
            let name = state.upgrade().map_or(0, |state| state.name.read().len());
            size_of::<TableState>() + name + SHARED_BYTES
        };
        let tables = self.tables.lock();
        tables.capacity() * size_of::<(TableId, Weak<TableState>)>() + tables.values().map(of).sum::<usize>()
    }

    /// Runs `work` while nobody else commits.
    pub(super) fn alone<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.check_writable()?;
        let _alone = (!self.gate.is_mine()).then(|| self.gate.enter_alone());
        work()
    }

    /// Sets or removes keys of the catalog.
    pub(super) fn change_catalog(
        &self,
        changes: Vec<(&[u8], Option<Vec<u8>>)>,
        transfers: Vec<Transfer>,
        durability: Durability,
    ) -> Result<Timestamp> {
        let mut writes = WriteSet::default();
        for (key, value) in changes {
            match value {
                Some(value) => writes.put(CATALOG, key, NewValue::Inline(value.into())),
                None => writes.delete(CATALOG, key),
            };
        }
        let committed = self.commit(Work {
            tables: &[Arc::clone(&self.catalog)],
            reads: &ReadSet::default(),
            writes,
            large: &|_| unreachable!("the catalog has no large values"),
            transfers,
            durability,
            alone: None,
        })?;
        Ok(committed.timestamp)
    }

    /// The id that the next table gets.
    pub(super) fn next_table_id(&self) -> Result<TableId> {
        match self.get_now(&self.catalog, NEXT_ID)? {
            None => Ok(TableId(FIRST_TABLE)),
            Some(bytes) => Ok(Place::decode(&bytes).ok_or_else(damaged)?.id),
        }
    }

    fn create_table(&self, name: &str, options: &TableOptions) -> Result<Place> {
        check_name(name)?;
        let class = options.page_size.map_or(Ok(self.pool.class()), class_of)?;
        let compression = options.compression.unwrap_or(self.settings.compression);
        let values = options.value_page_size_max.map_or(Ok(class), |bytes| value_class_of(bytes, class))?;
        let compression = compression.check(class.max(values).page_bytes())?;
        self.alone(|| {
            if self.place_of(name)?.is_some() {
                return Err(Error::TableExists(name.to_owned()));
            }
            if values > class {
                self.check_value_pages(class, values)?;
            }
            self.use_class(class)?;
            let id = self.next_table_id()?;
            // Decoding the next entry would refuse the id after the last one, so it is not written.
            let next_id = id.0.checked_add(1).filter(|&next| next < u64::MAX).ok_or_else(damaged)?;
            let root = self.create_root(class, compression)?;
            let place = Place { id, root, compression, values };
            let next = Place {
                id: TableId(next_id),
                root: PageId::NONE,
                compression: Compression::None,
                values: SizeClass::SMALLEST,
            };
            let claim = Transfer::Claim(GarbageKey::table(root), None);
            let value = |place: Place| Some(place.encode().to_vec());
            let changes = vec![(name.as_bytes(), value(place)), (NEXT_ID, value(next))];
            self.change_catalog(changes, vec![claim], Durability::Sync)
                .inspect_err(|_| self.garbage.add_table(root, Timestamp::NONE))?;
            Ok(place)
        })
    }

    /// An empty tree, garbage until somebody claims it.
    fn create_root(&self, class: SizeClass, compression: Compression) -> Result<PageId> {
        let mut frames = [0; SizeClass::COUNT];
        frames[class.index()] += 1;
        frames[self.pool.class().index()] += SPLIT_FRAMES;
        let places = class.places() + GARBAGE_PAGES * self.pool.class().places();
        let mut grant = self.pool.grant(places, frames)?;
        let new = self.pool.new_page(class, Some(&mut grant))?;
        let root = new.id();
        let key = GarbageKey::table(root);
        let change = put(&key, &[]);
        let mut reservation =
            self.pool.reserve_log(log_bytes(&change, 0) + class.page_bytes() as u64 + 64)?;
        let mut write = Write {
            reservation: Some(&mut reservation),
            grant: Some(&mut grant),
            create: vec![(new, Tree::init_root(root, compression != Compression::None))],
            ..Write::default()
        };
        garbage_tree(&self.pool).apply(&self.pool, &mut write, change)?;
        Ok(root)
    }

    pub(crate) fn rename_table(&self, from: &str, to: &str) -> Result<()> {
        check_name(to)?;
        self.alone(|| {
            let place = self.place_of(from)?.ok_or_else(|| Error::TableNotFound(from.to_owned()))?;
            if self.place_of(to)?.is_some() {
                return Err(Error::TableExists(to.to_owned()));
            }
            let state = self.state_of(from, place)?;
            let changes = vec![(from.as_bytes(), None), (to.as_bytes(), Some(place.encode().to_vec()))];
            self.change_catalog(changes, Vec::new(), Durability::Sync)?;
            *state.name.write() = to.into();
            Ok(())
        })
    }

    pub(crate) fn drop_table(&self, name: &str) -> Result<()> {
        self.alone(|| {
            let place = self.place_of(name)?.ok_or_else(|| Error::TableNotFound(name.to_owned()))?;
            let state = self.state_of(name, place)?;
            let discard = Transfer::Discard(GarbageKey::table(place.root), None);
            let count = count_key(place.id);
            let changes = vec![(name.as_bytes(), None), (&count[..], None)];
            let at = self.change_catalog(changes, vec![discard], Durability::Sync)?;
            self.counts.forget(place.id);
            // Before anybody commits again, and long before its pages are freed.
            state.set_dropped(at);
            self.garbage.add_table(place.root, at);
            self.collector.ring();
            Ok(())
        })
    }
}

impl Shared {
    pub(crate) fn new_table(self: &Arc<Self>, name: &str, options: &TableOptions) -> Result<Table> {
        self.create_table(name, options)?;
        self.table(name)
    }

    pub(crate) fn table(self: &Arc<Self>, name: &str) -> Result<Table> {
        loop {
            let place = self.place_of(name)?.ok_or_else(|| Error::TableNotFound(name.to_owned()))?;
            let state = self.state_of(name, place)?;
            // Who drops or renames it from now on finds this state; who has done so has changed the catalog before.
            if self.place_of(name)? == Some(place) {
                return Ok(Table::new(Arc::clone(self), state));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use terrace_block::{Directory, OpenMode};

    use super::*;
    use crate::store::superblock::Slots;

    #[test]
    fn names_are_plain_text() {
        assert!(check_name("a").is_ok() && check_name("größe/2 ✓").is_ok());
        for name in ["", "a\nb", "\u{1b}[31m", &"x".repeat(256)] {
            assert!(matches!(check_name(name), Err(Error::InvalidName { .. })), "{name:?}");
        }
        let place = Place {
            id: TableId(FIRST_TABLE),
            root: PageId(1 << 56 | 9),
            compression: Compression::Lz4,
            values: SizeClass::LARGEST,
        };
        for values in SizeClass::all().skip(1) {
            let place = Place { values, ..place };
            assert_eq!(Place::decode(&place.encode()), Some(place));
        }
        let ids = [0, CATALOG.0, FIRST_TABLE - 1, u64::MAX];
        let no_ids = ids.map(|id| Place { id: TableId(id), ..place }.encode());
        let last = Place { id: TableId(u64::MAX - 1), ..place };
        assert_eq!(Place::decode(&last.encode()), Some(last));
        let smaller = Place { values: SizeClass::SMALLEST, ..place }.encode();
        let no_class = Place { root: PageId(10 << 56 | 3), ..place }.encode();
        let no_node = Place { root: PageId(5 << 56 | 3), ..place }.encode();
        let mut no_values = place.encode();
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
        for hostile in hostile.into_iter().chain(no_ids.iter().map(|place| &place[..])) {
            assert_eq!(Place::decode(hostile), None);
        }
    }

    /// A database in whose catalog `change` was made.
    fn with_catalog(change: impl FnOnce(&crate::Db)) -> crate::Db {
        let directory = Arc::new(crate::MemoryDirectory::new());
        let db = crate::Db::builder().directory(directory).dram(2 << 20).mode(crate::Mode::Inline);
        let db = db.open("").unwrap();
        db.create_table("t").unwrap().put("k", "v").unwrap();
        change(&db);
        db
    }

    fn set(db: &crate::Db, key: &[u8], place: Place) {
        let changes = vec![(key, Some(place.encode().to_vec()))];
        db.shared.alone(|| db.shared.change_catalog(changes, Vec::new(), Durability::Buffered)).unwrap();
    }

    #[test]
    fn no_table_gets_an_id_after_the_last() {
        for id in [0, CATALOG.0, u64::MAX - 1, u64::MAX] {
            let next = Place {
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
            let [one, other] = ["t", "u"].map(|name| db.shared.place_of(name).unwrap().unwrap());
            set(db, b"u", Place { id: one.id, ..other });
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
