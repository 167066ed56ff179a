//! Tables by name.
//!
//! The catalog is an ordinary tree, so names have versions, are undone in recovery and are visible
//! to snapshots. It maps a name to id, root page and options of the table. The empty name, which no
//! table can have, holds the next id. Keys that begin with a zero byte hold entry counts
//! (`counts.rs`).
//!
//! Only a thread alone inside the gate changes the catalog, so no commit writes to a table after
//! its drop. A new table begins with one record that logs its empty root and a garbage entry. Then
//! a transaction adds the name and removes that entry. A drop is one transaction that removes the
//! name and adds a garbage entry. The pages are freed once no snapshot can read them.

use std::ops::Bound;
use std::sync::Arc;

use super::commit::Work;
use super::durability::Durability;
use super::garbage::{GarbageKey, Transfer, garbage_tree, put};
use super::mvcc::Mvcc;
use super::read_set::ReadSet;
use super::scan::{Row, Scan};
use super::table::{CATALOG, FIRST_TABLE, TableLocation};
use super::write_set::{NewValue, WriteSet};
use crate::compression::Compression;
use crate::error::{Error, Result};
use crate::ids::{PageId, SizeClass, TableId, Timestamp};
use crate::index::{SPLIT_FRAMES, Stored, Tree, Write, log_bytes};

/// Pages that the garbage entry of a new root may need.
const GARBAGE_PAGES: u64 = 4;
/// Key of the next table id.
pub(super) const NEXT_ID: &[u8] = b"";
/// Lower bound of all names; all other keys are below it.
pub(crate) const FIRST_NAME: &[u8] = &[1];

/// First byte of catalog keys that are not names; no name has it.
const PREFIX: u8 = 0;
pub(super) const MARK: &[u8] = &[PREFIX];

pub(super) fn count_key(table: TableId) -> [u8; 9] {
    let mut key = [PREFIX; 9];
    key[1..].copy_from_slice(&table.0.to_be_bytes());
    key
}

pub(super) fn is_count_key(key: &[u8]) -> bool {
    key.first() == Some(&PREFIX)
}

pub(crate) fn damaged() -> Error {
    Error::corrupt("the catalog", None, "an entry that means nothing")
}

pub(crate) fn location_of(mvcc: &Mvcc, name: &str) -> Result<Option<TableLocation>> {
    if name.is_empty() || is_count_key(name.as_bytes()) {
        return Ok(None);
    }
    let entry = mvcc.get_now(&mvcc.catalog, name.as_bytes())?;
    entry.map(|bytes| TableLocation::decode(&bytes).ok_or_else(damaged)).transpose()
}

/// All tables by name.
pub(crate) fn tables(mvcc: &Mvcc) -> Result<Vec<(String, TableLocation)>> {
    let snapshot = mvcc.snapshots.register(&mvcc.clock);
    let all = (Bound::Included(FIRST_NAME.to_vec()), Bound::Unbounded);
    let mut scan = Scan::new(mvcc.catalog.tree, all, Some(snapshot.timestamp()));
    let mut tables = Vec::new();
    mvcc.check()?;
    while let Some(Row { key, value, .. }) = scan.next(mvcc, &mvcc.catalog, &mut |_, _| {})? {
        let Stored::Inline(value) = value else { return Err(damaged()) };
        let name = String::from_utf8(key).map_err(|_| damaged())?;
        tables.push((name, TableLocation::decode(&value).ok_or_else(damaged)?));
    }
    snapshot.check()?;
    Ok(tables)
}

pub(crate) fn change(
    mvcc: &Mvcc,
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
    let committed = mvcc.commit(Work {
        tables: &[Arc::clone(&mvcc.catalog)],
        reads: &ReadSet::default(),
        writes,
        large: &|_| unreachable!("the catalog has no large values"),
        transfers,
        durability,
        alone: None,
        turn: None,
    })?;
    Ok(committed.timestamp)
}

pub(super) fn next_table_id(mvcc: &Mvcc) -> Result<TableId> {
    match mvcc.get_now(&mvcc.catalog, NEXT_ID)? {
        None => Ok(TableId(FIRST_TABLE)),
        Some(bytes) => Ok(TableLocation::decode(&bytes).ok_or_else(damaged)?.id),
    }
}

/// Creates an empty tree, which is garbage until a commit claims it.
pub(super) fn create_root(mvcc: &Mvcc, class: SizeClass, compression: Compression) -> Result<PageId> {
    let mut frames = [0; SizeClass::COUNT];
    frames[class.index()] += 1;
    frames[mvcc.pool.class().index()] += SPLIT_FRAMES;
    let blocks = class.blocks() + GARBAGE_PAGES * mvcc.pool.class().blocks();
    let mut grant = mvcc.pool.grant(blocks, frames)?;
    let new = mvcc.pool.new_page(class, Some(&mut grant))?;
    let root = new.id();
    let key = GarbageKey::table(root);
    let change = put(&key, &[]);
    let mut reservation = mvcc.pool.reserve_log(log_bytes(&change, 0) + class.page_bytes() as u64 + 64)?;
    let mut write = Write {
        reservation: Some(&mut reservation),
        grant: Some(&mut grant),
        create: vec![(new, Tree::init_root(root, compression != Compression::None))],
        ..Write::default()
    };
    garbage_tree(&mvcc.pool).apply(&mvcc.pool, &mut write, change)?;
    Ok(root)
}
