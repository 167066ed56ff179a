//! Writes salvaged tables into the new database.

use std::collections::HashSet;

use super::report::RepairedTable;
use super::walk::{Survivors, read};
use crate::compression::Compression;
use crate::db::Db;
use crate::db::batch::WriteBatch;
use crate::db::options::TableOptions;
use crate::db::table::Table;
use crate::error::{Error, Result};
use crate::ids::{Lsn, PageId, SizeClass};
use crate::index::chain::{chain_pages, read_value};
use crate::index::node::Node;
use crate::index::node::overflow::Reference;
use crate::recovery::salvage::Salvaged;
use crate::store::image::wants_compression;
use crate::store::page;
use crate::txn::durability::Durability;
use crate::txn::undo::Inverse;

/// Bytes of entries per transaction; a long value is alone in one.
const BATCH_BYTES: usize = 64 << 10;

pub(super) struct Emitter<'a> {
    db: &'a Db,
    salvaged: &'a Salvaged,
    tables: Vec<RepairedTable>,
    uncommitted: u64,
}

impl<'a> Emitter<'a> {
    pub(super) fn new(db: &'a Db, salvaged: &'a Salvaged) -> Self {
        Emitter { db, salvaged, tables: Vec::new(), uncommitted: 0 }
    }

    /// Returns the tables written, and the number of omitted uncommitted entries.
    pub(super) fn finish(self) -> Result<(Vec<RepairedTable>, u64)> {
        self.db.flush()?;
        Ok((self.tables, self.uncommitted))
    }

    pub(super) fn table(&mut self, found: Survivors) -> Result<()> {
        let Survivors { name, root, fallback, mut leaves, mut gaps, values } = found;
        let options = self.options(&leaves, values)?;
        let (name, table) = self.create(name, fallback, &options)?;
        // Where old and new leaves overlap, the newer one is written last.
        leaves.sort_unstable();
        gaps.sort_unstable();
        let mut report = RepairedTable { name, lost_ranges: gaps, ..RepairedTable::default() };
        let (mut batch, mut bytes) = (WriteBatch::new(), 0);
        for (_, leaf) in leaves {
            let Some(page) = read(&self.salvaged.maintenance.pool, leaf)? else { continue };
            let node = Node::new(&page[..]);
            for index in 0..node.count() {
                let (entry, key) = (node.entry(index), node.key(index));
                if self.salvaged.losers.contains(&entry.timestamp) {
                    self.uncommitted += 1;
                    report.lost_values.push(key);
                    continue;
                }
                let mut value = page[entry.value_at..entry.value_at + entry.value_length].to_vec();
                if entry.is_overflow() {
                    match self.long_value(&value, page::lsn(&page))? {
                        Some(long) => value = long,
                        None => {
                            report.lost_values.push(key);
                            continue;
                        }
                    }
                }
                bytes += key.len() + value.len();
                batch.put(&table, key, value);
                if bytes >= BATCH_BYTES {
                    self.db.write(std::mem::take(&mut batch), Durability::Buffered)?;
                    bytes = 0;
                }
            }
        }
        self.db.write(batch, Durability::Buffered)?;
        // Values before a change that could not be undone are lost.
        let undo = self.salvaged.not_undone.iter().filter_map(|undo| Inverse::decode(undo));
        report.lost_values.extend(undo.filter(|undo| undo.root == root).map(|undo| undo.key.to_vec()));
        report.lost_values.sort_unstable();
        report.lost_values.dedup();
        report.entries = table.len()?;
        self.tables.push(report);
        Ok(())
    }

    /// Options like those of the salvaged pages, if possible.
    fn options(&self, leaves: &[(Lsn, PageId)], values: Option<SizeClass>) -> Result<TableOptions> {
        let is_compressed = |page: Vec<u8>| wants_compression(page[page::LEVEL_AT]);
        for &(_, leaf) in leaves {
            if let Some(page) = read(&self.salvaged.maintenance.pool, leaf)? {
                let wanted = if is_compressed(page) { Compression::Lz4 } else { Compression::None };
                let page_bytes = leaf.page_bytes();
                let value_bytes = values.map_or(0, SizeClass::page_bytes).max(page_bytes);
                let wanted = wanted.check(value_bytes).unwrap_or_default();
                let options = TableOptions::new().page_size(page_bytes as u64).compression(wanted);
                return Ok(options.value_page_size_max(value_bytes as u64));
            }
        }
        Ok(TableOptions::new())
    }

    fn create(&self, name: String, fallback: String, options: &TableOptions) -> Result<(String, Table)> {
        let wanted = std::iter::once(name).chain(std::iter::once(fallback.clone()));
        for name in wanted.chain((2..).map(|number: u64| format!("{fallback}-{number}"))) {
            match self.db.create_table_with(&name, options) {
                Ok(table) => return Ok((name, table)),
                Err(Error::TableExists(_) | Error::InvalidName { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        unreachable!("some number is free")
    }

    /// The long value that a leaf at `lsn` refers to, if it is complete and all pages belong to it.
    ///
    /// Pages newer than the leaf belong to another value. So do data pages that are not of the
    /// record that created their index page: ids were used again, or only an older image was left.
    fn long_value(&self, reference: &[u8], lsn: Lsn) -> Result<Option<Vec<u8>>> {
        let pool = &self.salvaged.maintenance.pool;
        let Some(reference) = Reference::decode(reference) else { return Ok(None) };
        let (mut pages, mut seen) = (Vec::new(), HashSet::new());
        let walked = chain_pages(pool, reference.head, &mut |id| pages.push(id));
        let value = match walked.and_then(|()| read_value(pool, reference)) {
            Err(Error::Corrupt { .. }) => return Ok(None),
            value => value?,
        };
        let mut index = None;
        for id in pages {
            let Some(page) = read(pool, id)? else { return Ok(None) };
            let written = page::lsn(&page);
            if page::kind(&page) == page::Kind::OverflowIndex as u8 {
                index = Some(written);
            }
            if !seen.insert(id) || written > lsn || index.is_some_and(|index| index != written) {
                return Ok(None);
            }
        }
        Ok(Some(value))
    }
}
