//! A table as commits and reads know it, and its entry in the catalog.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use parking_lot::RwLock;

use super::table_count::TableCount;
use crate::compression::Compression;
use crate::error::{Error, Result};
use crate::ids::{PageId, SizeClass, TableId, Timestamp};
use crate::index::Tree;
use crate::index::node::overflow::ValuePages;

/// Root of the tree of table names, in a database of `class`.
pub(crate) fn catalog_root(class: SizeClass) -> PageId {
    PageId::new(class, 1)
}

pub(crate) const CATALOG: TableId = TableId(1);
/// Catalog entry of the catalog itself. Its pages are few and not compressed.
pub(crate) fn catalog_location(class: SizeClass) -> TableLocation {
    TableLocation { id: CATALOG, root: catalog_root(class), compression: Compression::None, values: class }
}

pub(crate) const FIRST_TABLE: u64 = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TableLocation {
    pub(crate) id: TableId,
    /// Its class is that of all tree pages.
    pub(crate) root: PageId,
    /// The pages repeat this, and they decide how they are written. Large values start with it.
    pub(crate) compression: Compression,
    /// Class of the largest pages of large values.
    pub(crate) values: SizeClass,
}

impl TableLocation {
    pub(crate) fn encode(self) -> [u8; 18] {
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
        // Lower ids are the database's own, and no table gets the last one.
        let is_id = (FIRST_TABLE..u64::MAX).contains(&id);
        (is_id && !own.is_for_values() && own <= values).then_some(TableLocation {
            id: TableId(id),
            root,
            compression: Compression::decode(compression)?,
            values,
        })
    }
}

/// State of a table while it has handles.
#[derive(Debug)]
pub(crate) struct TableState {
    pub(crate) id: TableId,
    pub(crate) tree: Tree,
    pub(crate) compression: Compression,
    pub(crate) values: SizeClass,
    pub(crate) name: RwLock<Arc<str>>,
    pub(crate) count: Arc<TableCount>,
    /// Timestamp of the commit that dropped it; 0 if it exists.
    dropped_at: AtomicU64,
}

impl TableState {
    pub(crate) fn new(location: TableLocation, name: &str, count: Arc<TableCount>) -> Self {
        let (TableLocation { id, root, compression, values }, name) = (location, RwLock::new(name.into()));
        TableState {
            id,
            tree: Tree { root },
            compression,
            values,
            name,
            count,
            dropped_at: AtomicU64::new(0),
        }
    }

    pub(crate) fn value_pages(&self) -> ValuePages {
        ValuePages { own: self.tree.class(), most: self.values }
    }

    pub(crate) fn set_dropped(&self, at: Timestamp) {
        self.dropped_at.store(at.0, SeqCst);
    }

    #[inline]
    pub(crate) fn check(&self) -> Result<()> {
        if self.dropped_at.load(SeqCst) == 0 { Ok(()) } else { Err(self.gone()) }
    }

    /// Fails if the table was dropped at or before `at`.
    pub(crate) fn check_at(&self, at: Timestamp) -> Result<()> {
        match self.dropped_at.load(SeqCst) {
            dropped if dropped != 0 && dropped <= at.0 => Err(self.gone()),
            _ => Ok(()),
        }
    }

    fn gone(&self) -> Error {
        Error::TableNotFound(self.name.read().to_string())
    }
}
