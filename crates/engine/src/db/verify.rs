//! Verification of a database in use: every image, every tree, and one owner for every page.
//!
//! Trees and values are checked on consistent copies of pages ([`crate::index`]). Two effects could
//! still make a sound database look damaged:
//!
//! - **Drops.** Findings in a table count only if the catalog still has it after the walk. Each
//!   garbage entry is checked while nothing is freed.
//! - **Changed owners.** The verify marks (`pool/verify_marks.rs`) record pages created, freed,
//!   or passed on with a value or table since the beginning. Only other pages can have two owners
//!   or none. Tables are walked first, then garbage. A value passed from garbage to a table already
//!   walked is met in neither. So the recorded heads and roots are walked if pages are left over.

use std::time::{Duration, Instant};

use super::core::Core;
use crate::error::{Error, Result};
use crate::ids::PageId;
use crate::index::chain::{chain_pages, is_value};
use crate::index::node::overflow::Reference;
use crate::index::{LeafRows, Met, Seek, Tree, verify, verify_released};
use crate::pool::counting::Counting;
use crate::pool::verify_marks::Known;
use crate::stats::{Damage, VerifyReport};
use crate::txn::catalog::tables;
use crate::txn::garbage::{Named, each_entry, garbage_tree};
use crate::txn::table::TableLocation;

pub(crate) mod damages;

use damages::Damages;

const CATALOG_ATTEMPTS: u32 = 1000;

pub(crate) fn verify_all(core: &Core, bytes_per_s: u64) -> Result<VerifyReport> {
    core.check()?;
    let (_turn, counting) = begin_verification(core)?;
    core.maintenance.wait_for_changes()?;
    let mut findings = Findings {
        core,
        counting,
        report: VerifyReport::default(),
        damages: Damages::default(),
        owner: String::new(),
        pace: Pace { start: Instant::now(), bytes: 0, bytes_per_s },
    };
    findings.owned("the catalog", |found| found.tree(core.catalog.tree, true, false))?;
    findings.owned("the garbage tree", |found| found.tree(garbage_tree(&core.pool), true, false))?;
    findings.tables()?;
    findings.garbage()?;
    if findings.left_over().next().is_some() {
        findings.passed_on()?;
    }
    findings.images()?;
    findings.sealed_frames()?;
    let (errors, more_errors) = findings.damages.into_parts();
    Ok(VerifyReport { errors, more_errors, ..findings.report })
}

/// Starts the verify marks once no other verification runs.
fn begin_verification(core: &Core) -> Result<(impl Drop + '_, Counting<'_>)> {
    loop {
        let is_mine = core.gate.is_mine();
        let alone = (!is_mine).then(|| core.gate.enter_alone());
        // A running verification needs no gate, so a thread alone in it may wait here.
        let turn = if is_mine { Some(core.verifying.lock()) } else { core.verifying.try_lock() };
        if let Some(turn) = turn {
            let _still = core.garbage.hold();
            return Ok((turn, Counting::of(&core.pool)?));
        }
        drop(alone);
        drop(core.verifying.lock());
    }
}

/// All tables. Retries if the snapshot is given up.
fn tables_now(core: &Core) -> Result<Vec<(String, TableLocation)>> {
    for _ in 1..CATALOG_ATTEMPTS {
        match tables(core) {
            Err(Error::SnapshotTooOld) => {}
            other => return other,
        }
    }
    tables(core)
}

struct Findings<'a> {
    core: &'a Core,
    counting: Counting<'a>,
    report: VerifyReport,
    damages: Damages,
    owner: String,
    pace: Pace,
}

struct Pace {
    start: Instant,
    bytes: u64,
    bytes_per_s: u64,
}

impl Pace {
    /// Waits until the next page is due. The caller holds no latch.
    fn page(&mut self, bytes: usize) {
        /// A shorter sleep would take longer than requested.
        const SLEEP_MIN: Duration = Duration::from_millis(2);
        self.bytes += bytes as u64;
        let due = Duration::from_secs_f64(self.bytes as f64 / self.bytes_per_s as f64);
        let early = due.saturating_sub(self.start.elapsed());
        if early >= SLEEP_MIN {
            std::thread::sleep(early);
        }
    }
}

impl Findings<'_> {
    fn damage(&mut self, page: Option<PageId>, what: String) {
        let (file, page) = (self.core.pool.file().to_owned(), page.map(|page| page.0));
        self.damages.add(Damage { file, page, what });
    }

    /// Reports damage; any other error ends the verification.
    fn note(&mut self, error: Error) -> Result<()> {
        match error {
            Error::Corrupt { page, what, .. } => {
                self.damage(page.map(PageId), what);
                Ok(())
            }
            error => Err(error),
        }
    }

    fn owned(&mut self, owner: &str, walk: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        owner.clone_into(&mut self.owner);
        match walk(self) {
            Ok(()) => Ok(()),
            Err(error) => self.note(error),
        }
    }

    /// Meets a page of the owner. With `may_be_met`, an earlier owner may have met it.
    fn met(&mut self, page: PageId, may_be_met: bool) {
        self.pace.page(self.core.pool.page_bytes());
        if self.counting.verify_marks.meet(page) == Known::Met && !may_be_met {
            self.damage(Some(page), format!("it belongs to {} and to another owner", self.owner));
        }
    }

    fn tree(&mut self, tree: Tree, whole: bool, may_be_met: bool) -> Result<()> {
        let pool = &self.core.pool;
        let mut visit = |met: Met| match met {
            Met::Page(page) => self.met(page, may_be_met),
            Met::Problem(page, what) => self.damage(Some(page), what),
        };
        if whole { verify(tree, pool, &mut visit) } else { verify_released(tree, pool, &mut visit) }
    }

    fn tables(&mut self) -> Result<()> {
        let tables = match tables_now(self.core) {
            Ok(tables) => tables,
            Err(error) => return self.note(error),
        };
        for (name, location) in tables {
            let part = self.damages.begin_part();
            let before = std::mem::replace(&mut self.damages, part);
            let tree = Tree { root: location.root };
            self.owned(&format!("table {name:?}"), |found| found.tree(tree, true, false))?;
            self.count(&name, location)?;
            let found = std::mem::replace(&mut self.damages, before);
            if found.is_empty() {
                continue;
            }
            let is_there = match tables_now(self.core) {
                Ok(now) => now.iter().any(|(_, now)| *now == location),
                Err(error) => {
                    self.note(error)?;
                    true
                }
            };
            if is_there {
                self.damages.take(found);
            }
        }
        Ok(())
    }

    /// Counts the entries of a table and compares with the kept count (`counts.rs`).
    ///
    /// Only without commits meanwhile or undecided ones at the beginning. An unknown count becomes
    /// known.
    fn count(&mut self, name: &str, location: TableLocation) -> Result<()> {
        let tree = Tree { root: location.root };
        let (quiet, mut entries) = (self.core.quiet(), 0);
        let mut rows = LeafRows::new();
        let mut upper: Option<Vec<u8>> = None;
        loop {
            let seek = upper.as_deref().map_or(Seek::First, Seek::At);
            if let Err(error) = tree.read_leaf(&self.core.pool, seek, &mut rows) {
                return self.note(error);
            }
            let from = upper.as_deref().unwrap_or_default();
            let counted = (0..rows.len()).filter(|&index| rows.key(index) >= from);
            entries += counted.count() as u64;
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
        let Some(quiet) = quiet else { return Ok(()) };
        match self.core.tables.counts.check(self.core, location.id, entries, quiet) {
            Ok(None) => Ok(()),
            Ok(Some(counted)) => {
                let what = format!("table {name:?} has {entries} entries, not {counted} as counted");
                self.damage(Some(location.root), what);
                Ok(())
            }
            Err(error) => self.note(error),
        }
    }

    fn garbage(&mut self) -> Result<()> {
        let (core, mut meaningless) = (self.core, Vec::new());
        let walked = each_entry(
            &core.pool,
            &core.garbage,
            |named| self.garbage_entry(named),
            |leaf| {
                meaningless.push(leaf);
                Ok(())
            },
        );
        for leaf in meaningless {
            self.damage(Some(leaf), "an entry of the garbage tree that means nothing".to_owned());
        }
        walked.or_else(|error| self.note(error))
    }

    fn garbage_entry(&mut self, named: Named) -> Result<()> {
        self.core.pool.meanwhile();
        let (Named::Table(head) | Named::Value(Reference { head, .. })) = named;
        // A new head may lead to older pages: a value is written from its end.
        let may_be_met = matches!(self.counting.verify_marks.known(head), Known::PassedOn | Known::Renewed);
        match named {
            Named::Table(root) => self.owned(&format!("the dropped table at page {root}"), |found| {
                found.tree(Tree { root }, false, may_be_met)
            }),
            Named::Value(_) => self.owned(&format!("the garbage value at page {head}"), |found| {
                chain_pages(&found.core.pool, head, &mut |page| found.met(page, may_be_met))
            }),
        }
    }

    fn left_over(&self) -> impl Iterator<Item = PageId> + '_ {
        let (pool, verify_marks) = (&self.core.pool, &self.counting.verify_marks);
        // In this order: a page that is gone was noted as renewed before.
        pool.page_ids().filter(|&id| pool.exists(id) && verify_marks.known(id) == Known::Unmet)
    }

    /// Meets what was passed on, wherever it is now. Other walks report its damage.
    fn passed_on(&mut self) -> Result<()> {
        let (core, verify_marks) = (self.core, self.counting.verify_marks.clone());
        let _still = core.garbage.hold();
        for head in verify_marks.passed_on() {
            core.pool.meanwhile();
            let mut visit = |page| self.met(page, true);
            let walked = match is_value(&core.pool, head) {
                Ok(true) => chain_pages(&core.pool, head, &mut visit),
                Ok(false) => verify_released(Tree { root: head }, &core.pool, &mut |met| match met {
                    Met::Page(page) => visit(page),
                    Met::Problem(..) => {}
                }),
                Err(error) => Err(error),
            };
            match walked {
                Ok(()) | Err(Error::Corrupt { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Checks the frames of a persistent middle tier that would count after a crash.
    fn sealed_frames(&mut self) -> Result<()> {
        let damages = &mut self.damages;
        self.core.maintenance.check_sealed(|file, page, what| {
            damages.add(Damage { file: file.to_owned(), page: Some(page.0), what });
        })
    }

    /// Checks the images of all pages, and that each page has an owner.
    fn images(&mut self) -> Result<()> {
        let core = self.core;
        for page in core.pool.page_ids() {
            // In the order of `left_over`.
            if !core.pool.exists(page) {
                continue;
            }
            if self.counting.verify_marks.known(page) == Known::Unmet {
                self.damage(Some(page), "it belongs to nothing: its space is lost".to_owned());
            }
            core.pool.meanwhile();
            self.pace.page(page.class().expect("pages that exist have a class").page_bytes());
            self.report.pages_checked += 1;
            if let Err(error) = core.maintenance.check_image(page) {
                self.note(error)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
