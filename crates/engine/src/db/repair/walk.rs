//! Finding out what is left of which table.
//!
//! Each tree is walked from its root. Where a page is not there, or is not the child that its parent means, there is a
//! *gap*: a range of keys of which nothing is known. Leaves that no walk has come to are then held against the gaps. A
//! leaf belongs where its keys are missing if the page table vouches that it belongs somewhere and only one tree has
//! such a gap. The others are kept apart, by the highest page over them that is left.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::buffer::salvage::Salvaged;
use crate::buffer::view::View;
use crate::buffer::{Pool, Stop};
use crate::db::catalog::{FIRST_NAME, Place};
use crate::db::core::{catalog_root, garbage_root};
use crate::db::garbage::table_root;
use crate::error::{Error, Result};
use crate::ids::{Lsn, PageId, SizeClass};
use crate::index::node::{INNER, LEAF, Node, fence_limit};
use crate::store::page;

/// Steps from a page to the highest one over it: more than any tree has levels.
const LEVELS_MAX: u32 = 64;

/// A range of keys: the first one included, the second not; none is the end of all.
pub(super) type Range = (Vec<u8>, Option<Vec<u8>>);

/// What is left of a table.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) name: String,
    /// The root of its tree; none if that is not known.
    pub(super) root: PageId,
    /// What it is called if its name cannot be used.
    pub(super) fallback: String,
    /// Its leaves, with the LSN of each.
    pub(super) leaves: Vec<(Lsn, PageId)>,
    pub(super) gaps: Vec<Range>,
    /// The class of the largest pages of its long values, if the catalog still says so.
    pub(super) values: Option<SizeClass>,
}

/// What is left of all tables.
#[derive(Debug, Default)]
pub(super) struct Harvest {
    pub(super) tables: Vec<Found>,
    pub(super) notes: Vec<String>,
}

/// The page `id`, if it is there.
pub(super) fn read(pool: &Pool, id: PageId) -> Result<Option<Vec<u8>>> {
    loop {
        let guard = match pool.read(id) {
            Ok(guard) => guard,
            Err(Stop::Missing(_) | Stop::Fail(Error::Corrupt { .. })) => return Ok(None),
            Err(Stop::Restart) => continue,
            Err(Stop::Fail(error)) => return Err(error),
        };
        let mut page = vec![0; id.page_bytes()];
        guard.view().copy_to(0, &mut page);
        if guard.validate().is_ok() {
            return Ok(Some(page));
        }
    }
}

/// Entries of a leaf: key and value as they stand there.
fn rows(page: &[u8]) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> + '_ {
    let node = Node::new(page);
    (0..node.count()).map(move |index| {
        let entry = node.entry(index);
        (node.key(index), page[entry.value_at..entry.value_at + entry.value_length].to_vec())
    })
}

struct Walk<'a> {
    pool: &'a Pool,
    /// Whether every child must be exactly what its parent says.
    strict: bool,
    visited: HashSet<PageId>,
}

impl Harvest {
    pub(super) fn of(salvaged: &Salvaged) -> Result<Harvest> {
        let pool = &salvaged.pool;
        let mut walk = Walk { pool, strict: salvaged.consistent, visited: HashSet::new() };
        let mut harvest = Harvest::default();
        let catalog = walk.tree(catalog_root(pool.class()))?;
        let mut garbage = walk.tree(garbage_root(pool.class()))?;
        for (name, place) in tables(pool, &catalog, &mut harvest.notes)? {
            let found = walk.tree(place.root)?;
            let (fallback, values) = (format!("table-{}", place.root), Some(place.values));
            harvest.tables.push(Found { name, fallback, values, ..found });
        }
        // Trees that are being made or freed are nobody's tables, but pages belong to them.
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

    /// Finds out about the pages that were not come to.
    fn rest(
        &mut self,
        walk: &mut Walk<'_>,
        salvaged: &Salvaged,
        catalog: &Found,
        garbage: Found,
    ) -> Result<()> {
        let pool = walk.pool;
        let existing = pool.existing()?;
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
        // Roots that the catalog would have named.
        if !catalog.gaps.is_empty() {
            for root in whole.into_iter().filter(|root| !parents.contains_key(root)) {
                let name = format!("table-{root}");
                self.tables.push(Found { fallback: name.clone(), name, ..walk.tree(root)? });
            }
        }
        let mut apart: BTreeMap<PageId, Found> = BTreeMap::new();
        for &id in existing.iter().filter(|id| !walk.visited.contains(*id)) {
            let Some(page) = read(pool, id)? else { continue };
            let node = Node::new(&page[..]);
            if node.kind() != LEAF {
                continue;
            }
            let (fences, leaf) = (node.fences(), (page::lsn(&page), id));
            let vouched = salvaged.consistent && !salvaged.found.contains(&id);
            let has_gap = |found: &&mut Found| found.gap_around(&fences.lower, &fences.upper).is_some();
            let elsewhere = catalog.gap_around(&fences.lower, &fences.upper).is_some()
                || garbage.gap_around(&fences.lower, &fences.upper).is_some();
            let mut owners = self.tables.iter_mut().filter(has_gap);
            match (owners.next(), owners.next()) {
                (Some(owner), None) if vouched && !elsewhere => owner.fill(leaf, fences.lower, fences.upper),
                _ => {
                    let top = top(&parents, id);
                    let name = format!("page-{top}");
                    let found = apart.entry(top).or_insert(Found {
                        name: name.clone(),
                        fallback: name,
                        ..Found::default()
                    });
                    found.leaves.push(leaf);
                }
            }
        }
        self.tables.extend(apart.into_values());
        Ok(())
    }
}

impl Found {
    /// The gap that the whole range lies in.
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

    /// Adds a leaf whose keys were missing.
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
    /// Walks the tree at `root`.
    fn tree(&mut self, root: PageId) -> Result<Found> {
        let mut found = Found { root, ..Found::default() };
        self.node(root, None, (Vec::new(), None), &mut found)?;
        Ok(found)
    }

    fn node(&mut self, id: PageId, level: Option<u8>, range: Range, found: &mut Found) -> Result<()> {
        let Some(page) = self.child(id, level, &range)? else {
            found.gaps.push(range);
            return Ok(());
        };
        self.visited.insert(id);
        let node = Node::new(&page[..]);
        if node.is_leaf() {
            let upper = node.fences().upper;
            found.leaves.push((page::lsn(&page), id));
            // It was split, and its parent is older than that.
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

    /// The page `id`, if it is a node that was not met before and that its parent may mean.
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
        // An inner node's fences are cut.
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

/// The tables that the catalog names.
fn tables(pool: &Pool, catalog: &Found, notes: &mut Vec<String>) -> Result<Vec<(String, Place)>> {
    let mut tables = Vec::new();
    for &(_, leaf) in &catalog.leaves {
        let Some(page) = read(pool, leaf)? else { continue };
        for (name, place) in rows(&page).filter(|(name, _)| &name[..] >= FIRST_NAME) {
            let name = String::from_utf8_lossy(&name).into_owned();
            match Place::decode(&place) {
                Some(place) => tables.push((name, place)),
                None => notes.push(format!("the catalog's entry of table {name:?} means nothing")),
            }
        }
    }
    Ok(tables)
}

/// The roots of tables that are being made or freed.
fn released(pool: &Pool, garbage: &Found) -> Result<Vec<PageId>> {
    let mut roots = Vec::new();
    for &(_, leaf) in &garbage.leaves {
        let Some(page) = read(pool, leaf)? else { continue };
        roots.extend(rows(&page).filter_map(|(key, _)| table_root(&key)));
    }
    Ok(roots)
}

/// The highest page over `id` that is left.
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
