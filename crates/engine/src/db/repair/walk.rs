//! Assigns salvaged pages to tables.
//!
//! A missing or unexpected child of a walked tree leaves a *gap*: an unknown range of keys. A leaf
//! that no walk reached fills a gap if the page table confirms it and only one tree has a gap for
//! its keys. Other leaves are kept apart, by the highest remaining page above them.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::error::{Error, Result};
use crate::ids::{Lsn, PageId, SizeClass};
use crate::index::check_page;
use crate::index::node::{INNER, LEAF, Node, fence_limit};
use crate::pool::view::View;
use crate::pool::{Pool, Retry};
use crate::recovery::salvage::Salvaged;
use crate::store::page;
use crate::txn::catalog::FIRST_NAME;
use crate::txn::garbage::garbage_root;
use crate::txn::garbage::table_root;
use crate::txn::table::TableLocation;
use crate::txn::table::catalog_root;

/// More than any tree has levels.
const LEVELS_MAX: u32 = 64;

/// Keys from the first (inclusive) to the second (exclusive); `None` is the end.
pub(super) type Range = (Vec<u8>, Option<Vec<u8>>);

#[derive(Debug, Default)]
pub(super) struct Survivors {
    pub(super) name: String,
    /// Root of its tree; none if unknown.
    pub(super) root: PageId,
    /// Name if its own cannot be used.
    pub(super) fallback: String,
    pub(super) leaves: Vec<(Lsn, PageId)>,
    pub(super) gaps: Vec<Range>,
    /// Class of the largest pages of long values, if the catalog has it.
    pub(super) values: Option<SizeClass>,
}

#[derive(Debug, Default)]
pub(super) struct Harvest {
    pub(super) tables: Vec<Survivors>,
    pub(super) notes: Vec<String>,
}

/// The page `id`, if it is readable and well formed.
///
/// The copied image was checked, but damaged log records may have changed the page since.
pub(super) fn read(pool: &Pool, id: PageId) -> Result<Option<Vec<u8>>> {
    loop {
        let guard = match pool.read(id) {
            Ok(guard) => guard,
            Err(Retry::Missing(_) | Retry::Fail(Error::Corrupt { .. })) => return Ok(None),
            Err(Retry::Restart) => continue,
            Err(Retry::Fail(error)) => return Err(error),
        };
        let mut page = vec![0; id.page_bytes()];
        guard.view().copy_to(0, &mut page);
        if guard.validate().is_ok() {
            return Ok(check_page(&page).is_ok().then_some(page));
        }
    }
}

fn rows(page: &[u8]) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> + '_ {
    let node = Node::new(page);
    (0..node.count()).map(move |index| {
        let entry = node.entry(index);
        (node.key(index), page[entry.value_at..entry.value_at + entry.value_length].to_vec())
    })
}

struct Walk<'a> {
    pool: &'a Pool,
    /// Whether a child must match its parent exactly.
    strict: bool,
    visited: HashSet<PageId>,
}

impl Harvest {
    pub(super) fn of(salvaged: &Salvaged) -> Result<Harvest> {
        let pool = &salvaged.maintenance.pool;
        let mut walk = Walk { pool, strict: salvaged.consistent, visited: HashSet::new() };
        let mut harvest = Harvest::default();
        let catalog = walk.tree(catalog_root(pool.class()))?;
        let mut garbage = walk.tree(garbage_root(pool.class()))?;
        for (name, location) in tables(pool, &catalog, &mut harvest.notes)? {
            let found = walk.tree(location.root)?;
            let (fallback, values) = (format!("table-{}", location.root), Some(location.values));
            harvest.tables.push(Survivors { name, fallback, values, ..found });
        }
        // Trees being created or freed belong to no table, but they own pages.
        for root in released(pool, &garbage)? {
            walk.strict = false;
            garbage.gaps.extend(walk.tree(root)?.gaps);
            walk.strict = salvaged.consistent;
        }
        if !catalog.gaps.is_empty() {
            harvest.notes.push("names of tables are lost".into());
        }
        harvest.rest(&mut walk, salvaged, &catalog, garbage)?;
        Ok(harvest)
    }

    /// Assigns the pages that no walk reached.
    fn rest(
        &mut self,
        walk: &mut Walk<'_>,
        salvaged: &Salvaged,
        catalog: &Survivors,
        garbage: Survivors,
    ) -> Result<()> {
        let pool = walk.pool;
        let existing = salvaged.maintenance.existing()?;
        let mut parents: HashMap<PageId, PageId> = HashMap::new();
        let mut whole = Vec::new();
        for &id in existing.iter().filter(|id| !walk.visited.contains(*id)) {
            let Some(page) = read(pool, id)? else { continue };
            let node = Node::new(&page[..]);
            if node.kind() == INNER {
                parents.extend((0..=node.count()).map(|index| (node.child_at(index), id)));
            }
            if [INNER, LEAF].contains(&node.kind()) && node.is_first() && node.is_last() {
                whole.push(id);
            }
        }
        // Roots whose catalog entries are lost.
        if !catalog.gaps.is_empty() {
            for root in whole.into_iter().filter(|root| !parents.contains_key(root)) {
                let name = format!("table-{root}");
                self.tables.push(Survivors { fallback: name.clone(), name, ..walk.tree(root)? });
            }
        }
        let mut apart: BTreeMap<PageId, Survivors> = BTreeMap::new();
        for &id in existing.iter().filter(|id| !walk.visited.contains(*id)) {
            let Some(page) = read(pool, id)? else { continue };
            let node = Node::new(&page[..]);
            if node.kind() != LEAF {
                continue;
            }
            let (fences, leaf) = (node.fences(), (page::lsn(&page), id));
            let verified = !salvaged.found.contains(&id);
            let has_gap = |found: &&mut Survivors| found.gap_around(&fences.lower, &fences.upper).is_some();
            let elsewhere = catalog.gap_around(&fences.lower, &fences.upper).is_some()
                || garbage.gap_around(&fences.lower, &fences.upper).is_some();
            let mut owners = self.tables.iter_mut().filter(has_gap);
            match (owners.next(), owners.next()) {
                (Some(owner), None) if verified && !elsewhere => owner.fill(leaf, fences.lower, fences.upper),
                _ => {
                    let top = top(&parents, id);
                    let name = format!("page-{top}");
                    let found = apart.entry(top).or_insert(Survivors {
                        name: name.clone(),
                        fallback: name,
                        ..Survivors::default()
                    });
                    found.leaves.push(leaf);
                }
            }
        }
        self.tables.extend(apart.into_values());
        Ok(())
    }
}

impl Survivors {
    fn gap_around(&self, lower: &[u8], upper: &Option<Vec<u8>>) -> Option<usize> {
        self.gaps.iter().position(|(from, to)| {
            let ends_inside = match (to, upper) {
                (None, _) => true,
                (Some(to), Some(upper)) => upper <= to,
                (Some(_), None) => false,
            };
            from[..] <= *lower && ends_inside
        })
    }

    fn fill(&mut self, leaf: (Lsn, PageId), lower: Vec<u8>, upper: Option<Vec<u8>>) {
        let gap = self.gap_around(&lower, &upper).expect("the caller has found it");
        let (from, to) = self.gaps.swap_remove(gap);
        if from < lower {
            self.gaps.push((from, Some(lower)));
        }
        if let Some(upper) = upper
            && to.as_ref() != Some(&upper)
        {
            self.gaps.push((upper, to));
        }
        self.leaves.push(leaf);
    }
}

impl Walk<'_> {
    fn tree(&mut self, root: PageId) -> Result<Survivors> {
        let mut found = Survivors { root, ..Survivors::default() };
        self.node(root, None, (Vec::new(), None), &mut found)?;
        Ok(found)
    }

    fn node(&mut self, id: PageId, level: Option<u8>, range: Range, found: &mut Survivors) -> Result<()> {
        let Some(page) = self.child(id, level, &range)? else {
            found.gaps.push(range);
            return Ok(());
        };
        self.visited.insert(id);
        let node = Node::new(&page[..]);
        if node.is_leaf() {
            let upper = node.fences().upper;
            found.leaves.push((page::lsn(&page), id));
            // The leaf was split after its parent was written.
            if let Some(upper) = upper
                && range.1.as_ref() != Some(&upper)
            {
                found.gaps.push((upper, range.1));
            }
            return Ok(());
        }
        for index in 0..=node.count() {
            let lower = if index == 0 { range.0.clone() } else { node.key(index - 1) };
            let upper = if index == node.count() { range.1.clone() } else { Some(node.key(index)) };
            self.node(node.child_at(index), Some(node.level() - 1), (lower, upper), found)?;
        }
        Ok(())
    }

    /// The page `id`, if it is an unvisited node that fits its parent.
    fn child(&self, id: PageId, level: Option<u8>, range: &Range) -> Result<Option<Vec<u8>>> {
        if self.visited.contains(&id) {
            return Ok(None);
        }
        let Some(page) = read(self.pool, id)? else { return Ok(None) };
        let node = Node::new(&page[..]);
        let kind = node.kind();
        if ![LEAF, INNER].contains(&kind) || level.is_some_and(|level| level != node.level()) {
            return Ok(None);
        }
        // Fences of inner nodes are truncated.
        let limit = fence_limit(kind, page.len());
        let cut = |fence: &[u8]| fence[..fence.len().min(limit)].to_vec();
        let (fences, upper) = (node.fences(), range.1.as_deref().map(cut));
        let ends = match (&fences.upper, &upper) {
            (is, should) if is == should => true,
            (Some(is), Some(should)) => !self.strict && is < should,
            (Some(_), None) => !self.strict,
            (None, _) => false,
        };
        Ok((fences.lower == cut(&range.0) && ends).then_some(page))
    }
}

fn tables(pool: &Pool, catalog: &Survivors, notes: &mut Vec<String>) -> Result<Vec<(String, TableLocation)>> {
    let mut tables = Vec::new();
    for &(_, leaf) in &catalog.leaves {
        let Some(page) = read(pool, leaf)? else { continue };
        for (name, location) in rows(&page).filter(|(name, _)| &name[..] >= FIRST_NAME) {
            let name = String::from_utf8_lossy(&name).into_owned();
            match TableLocation::decode(&location) {
                Some(location) => tables.push((name, location)),
                None => notes.push(format!("the catalog's entry of table {name:?} means nothing")),
            }
        }
    }
    Ok(tables)
}

fn released(pool: &Pool, garbage: &Survivors) -> Result<Vec<PageId>> {
    let mut roots = Vec::new();
    for &(_, leaf) in &garbage.leaves {
        let Some(page) = read(pool, leaf)? else { continue };
        roots.extend(rows(&page).filter_map(|(key, _)| table_root(&key)));
    }
    Ok(roots)
}

fn top(parents: &HashMap<PageId, PageId>, id: PageId) -> PageId {
    let mut top = id;
    for _ in 0..LEVELS_MAX {
        match parents.get(&top) {
            Some(&parent) => top = parent,
            None => break,
        }
    }
    top
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use terrace_io::MemoryDirectory;

    use super::*;
    use crate::db::Db;
    use crate::pool::Mode;
    use crate::txn::catalog::tables;

    /// A value length beyond the page made repair panic.
    #[test]
    fn a_leaf_that_the_log_has_spoilt_counts_as_lost() {
        let builder = Db::builder().directory(Arc::new(MemoryDirectory::new())).dram(4 << 20);
        let db = builder.mode(Mode::Inline).no_middle().open("").unwrap();
        db.create_table("t").unwrap().put("key", [7; 100]).unwrap();
        let root = tables(&db.shared).unwrap()[0].1.root;
        let pool = &db.shared.pool;
        let mut page = read(pool, root).unwrap().unwrap();
        let length_at = page.windows(2).rposition(|bytes| bytes == 100_u16.to_le_bytes()).unwrap();
        page[length_at..length_at + 2].copy_from_slice(&20_000_u16.to_le_bytes());
        let mut leaf = pool.latch(root).unwrap();
        leaf.store(&page);
        drop(leaf);
        assert!(read(pool, root).unwrap().is_none());
    }
}
