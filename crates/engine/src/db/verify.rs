//! Whether a database is what it should be: every image in the page file what was written, every tree a tree, every
//! page in exactly one of them.
//!
//! It runs alone inside the gate, and nothing is freed meanwhile. Others may read, and may write large values that
//! they have not committed: their pages only ever join a value whose garbage entry leads to them.

use std::collections::HashMap;

use super::catalog::Place;
use super::core::Core;
use super::garbage::{self, GARBAGE, Named};
use crate::error::{Error, Result};
use crate::ids::PageId;
use crate::index::chain::chain_pages;
use crate::index::{LeafRows, Seek, Tree};
use crate::stats::{Damage, VerifyReport};

/// What was found so far.
struct Findings<'a> {
    core: &'a Core,
    report: VerifyReport,
    /// The owner of each page met.
    owners: HashMap<PageId, usize>,
    names: Vec<String>,
}

impl Core {
    pub(crate) fn verify(&self) -> Result<VerifyReport> {
        self.check()?;
        let _alone = (!self.gate.is_mine()).then(|| self.gate.enter_alone());
        let _still = self.garbage.hold();
        let existing = self.pool.existing()?;
        let mut findings = Findings {
            core: self,
            report: VerifyReport::default(),
            owners: HashMap::with_capacity(existing.len()),
            names: Vec::new(),
        };
        findings.owned("the catalog", |found| found.tree(self.catalog.tree, true))?;
        findings.owned("the garbage tree", |found| found.tree(GARBAGE, true))?;
        match self.tables() {
            Ok(tables) => {
                for (name, place) in tables {
                    let tree = Tree { root: place.root };
                    findings.owned(&format!("table {name:?}"), |found| found.tree(tree, true))?;
                    findings.count(&name, place)?;
                }
            }
            Err(error) => findings.note(error)?,
        }
        match garbage::entries(&self.pool) {
            Ok(entries) => {
                for (_, named) in entries {
                    findings.garbage(named)?;
                }
            }
            Err(error) => findings.note(error)?,
        }
        for &page in &existing {
            findings.report.pages_checked += 1;
            if let Err(error) = self.pool.check_image(page) {
                findings.note(error)?;
            }
            if !findings.owners.contains_key(&page) {
                findings.damage(Some(page), "it belongs to nothing: its space is lost".to_owned());
            }
        }
        Ok(findings.report)
    }
}

impl Findings<'_> {
    fn damage(&mut self, page: Option<PageId>, what: String) {
        let (file, page) = (self.core.pool.file().to_owned(), page.map(|page| page.0));
        let damage = Damage { file, page, what };
        if !self.report.errors.contains(&damage) {
            self.report.errors.push(damage);
        }
    }

    /// Damage goes into the report, other errors end the verification.
    fn note(&mut self, error: Error) -> Result<()> {
        match error {
            Error::Corrupt { page, what, .. } => {
                self.damage(page.map(PageId), what);
                Ok(())
            }
            error => Err(error),
        }
    }

    /// Walks something whose pages belong to `owner`.
    fn owned(&mut self, owner: &str, walk: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        self.names.push(owner.to_owned());
        match walk(self) {
            Ok(()) => Ok(()),
            Err(error) => self.note(error),
        }
    }

    fn met(&mut self, pages: Vec<PageId>) {
        let me = self.names.len() - 1;
        for page in pages {
            if let Some(other) = self.owners.insert(page, me) {
                let what = format!("it belongs to {} and to {}", self.names[other], self.names[me]);
                self.damage(Some(page), what);
            }
        }
    }

    fn tree(&mut self, tree: Tree, whole: bool) -> Result<()> {
        let mut pages = Vec::new();
        let pool = &self.core.pool;
        let mut visit = |page| pages.push(page);
        let problems =
            if whole { tree.verify(pool, &mut visit) } else { tree.verify_released(pool, &mut visit) };
        self.met(pages);
        for (page, what) in problems? {
            self.damage(Some(page), what);
        }
        Ok(())
    }

    fn garbage(&mut self, named: Named) -> Result<()> {
        match named {
            Named::Table(root) => self.owned(&format!("the dropped table at page {root}"), |found| {
                found.tree(Tree { root }, false)
            }),
            Named::Value(reference) => {
                let owner = format!("the garbage value at page {}", reference.head);
                self.owned(&owner, |found| {
                    let mut pages = Vec::new();
                    let walked = chain_pages(&found.core.pool, reference.head, &mut |page| pages.push(page));
                    found.met(pages);
                    walked
                })
            }
        }
    }

    /// Counts the entries of a table.
    fn count(&mut self, name: &str, place: Place) -> Result<()> {
        let tree = Tree { root: place.root };
        let mut entries = 0;
        let mut rows = LeafRows::new();
        let mut upper: Option<Vec<u8>> = None;
        loop {
            let seek = upper.as_deref().map_or(Seek::First, Seek::At);
            if let Err(error) = tree.read_leaf(&self.core.pool, seek, &mut rows) {
                return self.note(error);
            }
            entries += rows.len() as u64;
            let newest = (0..rows.len()).map(|index| rows.timestamp(index)).max().unwrap_or_default();
            if newest > self.core.clock.highest_drawn() {
                self.damage(Some(rows.leaf), format!("it has timestamp {newest}, which was never drawn"));
            }
            upper = rows.upper.take();
            if upper.is_none() {
                break;
            }
        }
        self.report.entries_checked += entries;
        match self.core.check_count(place.id, entries) {
            Ok(None) => Ok(()),
            Ok(Some(counted)) => {
                self.damage(
                    Some(place.root),
                    format!("table {name:?} has {entries} entries, not {counted} as counted"),
                );
                Ok(())
            }
            Err(error) => self.note(error),
        }
    }
}
