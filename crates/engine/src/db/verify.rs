//! Whether a database is what it should be: every image in the page file what was written, every tree a tree, every
//! page in exactly one of them. Others read, write, commit and free meanwhile.
//!
//! What a tree or a value looks like is judged by copies of pages that belonged together ([`crate::index`]), so what is
//! wrong was wrong at one instant. Two things more can make a sound database look damaged, and must not:
//!
//! - **The ground moves.** A table may be dropped, and its pages freed, while it is walked. What was found in it counts
//!   only if the catalog still has it afterwards. Garbage is looked at entry by entry, each while nothing is freed.
//! - **Pages change hands.** The *census* (`buffer/census.rs`) knows which pages came into being, were freed, or were
//!   passed on with a value or a table since the beginning. Only pages of which it knows nothing of the kind can have two
//!   owners, or none. They are owned by what owned them all the time, which is walked: tables first, then garbage. But
//!   what was passed on from the garbage to a table that had been walked by then was met in neither; so if pages are left
//!   over, what was passed on is walked in the end, from the heads and roots that the census remembers.
//!
//! It takes two bits of memory per page, beside the budget, and waits for commits only at its beginning, as dropping a table
//! does. Commits never wait for it but there.

use std::time::{Duration, Instant};

use super::catalog::Place;
use super::core::Core;
use super::garbage::{Named, each_entry, garbage_tree};
use crate::buffer::census::{Counting, Known};
use crate::error::{Error, Result};
use crate::ids::PageId;
use crate::index::chain::{chain_pages, is_value};
use crate::index::overflow::Reference;
use crate::index::{LeafRows, Met, Seek, Tree};
use crate::stats::{Damage, VerifyReport};

pub(crate) mod damages;

use damages::Damages;

/// Snapshots of the catalog that may be given up before one is read to its end.
const CATALOG_ATTEMPTS: u32 = 1000;

impl Core {
    /// Verifies everything, looking at no more than `bytes_per_s` bytes of pages a second.
    pub(crate) fn verify(&self, bytes_per_s: u64) -> Result<VerifyReport> {
        self.check()?;
        let (_turn, counting) = self.begin_verification()?;
        counting.settle()?;
        let mut findings = Findings {
            core: self,
            counting,
            report: VerifyReport::default(),
            damages: Damages::default(),
            owner: String::new(),
            pace: Pace { start: Instant::now(), bytes: 0, bytes_per_s },
        };
        findings.owned("the catalog", |found| found.tree(self.catalog.tree, true, false))?;
        findings.owned("the garbage tree", |found| found.tree(garbage_tree(&self.pool), true, false))?;
        findings.tables()?;
        findings.garbage()?;
        if findings.left_over().next().is_some() {
            findings.passed_on()?;
        }
        findings.images()?;
        let (errors, more_errors) = findings.damages.into_parts();
        Ok(VerifyReport { errors, more_errors, ..findings.report })
    }

    /// Begins a census, when no other verification is under way.
    fn begin_verification(&self) -> Result<(impl Drop + '_, Counting<'_>)> {
        loop {
            let is_mine = self.gate.is_mine();
            let alone = (!is_mine).then(|| self.gate.enter_alone());
            // A verification under way needs the gate no more, so who is alone in it for other reasons may wait here.
            let turn = if is_mine { Some(self.verifying.lock()) } else { self.verifying.try_lock() };
            if let Some(turn) = turn {
                let _still = self.garbage.hold();
                return Ok((turn, self.pool.count_pages()?));
            }
            drop(alone);
            drop(self.verifying.lock());
        }
    }

    /// The tables there are. A snapshot that is given up for want of memory is taken again.
    fn tables_now(&self) -> Result<Vec<(String, Place)>> {
        for _ in 1..CATALOG_ATTEMPTS {
            match self.tables() {
                Err(Error::SnapshotTooOld) => {}
                other => return other,
            }
        }
        self.tables()
    }
}

/// What was found so far.
struct Findings<'a> {
    core: &'a Core,
    counting: Counting<'a>,
    /// What was looked at.
    report: VerifyReport,
    damages: Damages,
    /// Whose pages are being met.
    owner: String,
    pace: Pace,
}

/// Keeps to a rate.
struct Pace {
    start: Instant,
    bytes: u64,
    bytes_per_s: u64,
}

impl Pace {
    /// Looking at a page: waits until it is due. The caller holds no latch.
    fn page(&mut self, bytes: usize) {
        /// Sleeping for less would take longer than it says.
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
        owner.clone_into(&mut self.owner);
        match walk(self) {
            Ok(()) => Ok(()),
            Err(error) => self.note(error),
        }
    }

    /// A page of the owner's; one that `may_be_met`, because all of it was passed on, may have been met elsewhere.
    fn met(&mut self, page: PageId, may_be_met: bool) {
        self.pace.page(self.core.pool.page_bytes());
        if self.counting.census.meet(page) == Known::Met && !may_be_met {
            self.damage(Some(page), format!("it belongs to {} and to another owner", self.owner));
        }
    }

    fn tree(&mut self, tree: Tree, whole: bool, may_be_met: bool) -> Result<()> {
        let pool = &self.core.pool;
        let mut visit = |met: Met| match met {
            Met::Page(page) => self.met(page, may_be_met),
            Met::Problem(page, what) => self.damage(Some(page), what),
        };
        if whole { tree.verify(pool, &mut visit) } else { tree.verify_released(pool, &mut visit) }
    }

    fn tables(&mut self) -> Result<()> {
        let tables = match self.core.tables_now() {
            Ok(tables) => tables,
            Err(error) => return self.note(error),
        };
        for (name, place) in tables {
            let part = self.damages.begin_part();
            let before = std::mem::replace(&mut self.damages, part);
            let tree = Tree { root: place.root };
            self.owned(&format!("table {name:?}"), |found| found.tree(tree, true, false))?;
            self.count(&name, place)?;
            let found = std::mem::replace(&mut self.damages, before);
            if found.is_empty() {
                continue;
            }
            let is_there = match self.core.tables_now() {
                Ok(now) => now.iter().any(|(_, now)| *now == place),
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

    /// Counts the entries of a table. If nothing was committed meanwhile, nor was undecided at the beginning, it must be the
    /// number that commits have counted (`count.rs`); or becomes it, where that was not known.
    fn count(&mut self, name: &str, place: Place) -> Result<()> {
        let tree = Tree { root: place.root };
        let (drawn, mut entries) = (self.core.clock.highest_drawn(), 0);
        let all_decided = self.core.clock.visible() == drawn;
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
        if !all_decided {
            return Ok(());
        }
        match self.core.check_count(place.id, entries, drawn) {
            Ok(None) => Ok(()),
            Ok(Some(counted)) => {
                let what = format!("table {name:?} has {entries} entries, not {counted} as counted");
                self.damage(Some(place.root), what);
                Ok(())
            }
            Err(error) => self.note(error),
        }
    }

    fn garbage(&mut self) -> Result<()> {
        let (core, mut meaningless) = (self.core, Vec::new());
        let walked = each_entry(
            core,
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
        // Under a head that is new there may be pages that are not: a value is written from its end on.
        let may_be_met = matches!(self.counting.census.known(head), Known::PassedOn | Known::Renewed);
        match named {
            Named::Table(root) => self.owned(&format!("the dropped table at page {root}"), |found| {
                found.tree(Tree { root }, false, may_be_met)
            }),
            Named::Value(_) => self.owned(&format!("the garbage value at page {head}"), |found| {
                chain_pages(&found.core.pool, head, &mut |page| found.met(page, may_be_met))
            }),
        }
    }

    /// Pages that nobody was met with, and that nothing happened to.
    fn left_over(&self) -> impl Iterator<Item = PageId> + '_ {
        let (pool, census) = (&self.core.pool, &self.counting.census);
        // In this order: a page that does not exist any more was noted as renewed before.
        pool.page_ids().filter(|&id| pool.exists(id) && census.known(id) == Known::Unmet)
    }

    /// Meets what was passed on, wherever it is now. What is damaged in it was found, or will be found, elsewhere.
    fn passed_on(&mut self) -> Result<()> {
        let (core, census) = (self.core, self.counting.census.clone());
        let _still = core.garbage.hold();
        for head in census.passed_on() {
            core.pool.meanwhile();
            let mut visit = |page| self.met(page, true);
            let walked = match is_value(&core.pool, head) {
                Ok(true) => chain_pages(&core.pool, head, &mut visit),
                Ok(false) => Tree { root: head }.verify_released(&core.pool, &mut |met| match met {
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

    /// Checks the images of all pages, and that each page belongs to somebody.
    fn images(&mut self) -> Result<()> {
        let core = self.core;
        for page in core.pool.page_ids() {
            // In the order of `left_over`.
            if !core.pool.exists(page) {
                continue;
            }
            if self.counting.census.known(page) == Known::Unmet {
                self.damage(Some(page), "it belongs to nothing: its space is lost".to_owned());
            }
            core.pool.meanwhile();
            self.pace.page(page.class().expect("pages that exist have a class").page_bytes());
            self.report.pages_checked += 1;
            if let Err(error) = core.pool.check_image(page) {
                self.note(error)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
