//! Putting what was found into the new database, by ordinary writes.

use std::collections::HashSet;

use super::RepairedTable;
use super::walk::{Found, read};
use crate::buffer::salvage::Salvaged;
use crate::config::Durability;
use crate::db::Db;
use crate::db::batch::WriteBatch;
use crate::db::options::{Compression, TableOptions};
use crate::db::table::Table;
use crate::db::undo::Inverse;
use crate::error::{Error, Result};
use crate::ids::{Lsn, PageId, SizeClass};
use crate::index::chain::{chain_pages, read_value};
use crate::index::node::Node;
use crate::index::overflow::Reference;
use crate::store::image::wants_compression;
use crate::store::page;

/// Bytes of entries written by one transaction; a long value is one by itself.
const BATCH_BYTES: usize = 64 << 10;

/// Fills the new database.
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

    /// What was written, and how many entries were left out because nobody committed them.
    pub(super) fn finish(self) -> Result<(Vec<RepairedTable>, u64)> {
        self.db.flush()?;
        Ok((self.tables, self.uncommitted))
    }

    /// Makes a table of what was found of one.
    pub(super) fn table(&mut self, found: Found) -> Result<()> {
        let Found { name, root, fallback, mut leaves, mut gaps, values } = found;
        let options = self.options(&leaves, values)?;
        let (name, table) = self.create(name, fallback, &options)?;
        // Where leaves overlap because some are old, the newer one has the last word.
        leaves.sort_unstable();
        gaps.sort_unstable();
        let mut report = RepairedTable { name, lost_ranges: gaps, ..RepairedTable::default() };
        let (mut batch, mut bytes) = (WriteBatch::new(), 0);
        for (_, leaf) in leaves {
            let Some(page) = read(&self.salvaged.pool, leaf)? else { continue };
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
        // What was there before a change that could not be undone is lost.
        let undo = self.salvaged.not_undone.iter().filter_map(|undo| Inverse::decode(undo));
        report.lost_values.extend(undo.filter(|undo| undo.root == root).map(|undo| undo.key.to_vec()));
        report.lost_values.sort_unstable();
        report.lost_values.dedup();
        report.entries = table.len()?;
        self.tables.push(report);
        Ok(())
    }

    /// A table's pages say how large they are and how they are written, and the new one's are made in the same way, if
    /// they can be.
    fn options(&self, leaves: &[(Lsn, PageId)], values: Option<SizeClass>) -> Result<TableOptions> {
        let is_compressed = |page: Vec<u8>| wants_compression(page[page::LEVEL_AT]);
        for &(_, leaf) in leaves {
            if let Some(page) = read(&self.salvaged.pool, leaf)? {
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

    /// The value that a leaf at `lsn` refers to, if all of it is there and was there when the leaf was written: pages that
    /// are newer belong to another value by now.
    fn long_value(&self, reference: &[u8], lsn: Lsn) -> Result<Option<Vec<u8>>> {
        let pool = &self.salvaged.pool;
        let Some(reference) = Reference::decode(reference) else { return Ok(None) };
        let mut pages: HashSet<PageId> = HashSet::new();
        let mut twice = false;
        let walked = chain_pages(pool, reference.head, &mut |id| twice |= !pages.insert(id));
        match walked.and_then(|()| read_value(pool, reference)) {
            Err(Error::Corrupt { .. }) => Ok(None),
            Err(error) => Err(error),
            Ok(_) if twice => Ok(None),
            Ok(value) => {
                for id in pages {
                    let newer = read(pool, id)?.is_none_or(|page| page::lsn(&page) > lsn);
                    if newer {
                        return Ok(None);
                    }
                }
                Ok(Some(value))
            }
        }
    }
}
