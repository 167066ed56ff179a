//! The designs that HyMem compares (section 5), and its YCSB, scaled down.
//!
//! * **SSD BM**: DRAM over an SSD.
//! * **Basic NVM BM**: DRAM over a page file in NVM, loaded page by page.
//! * **NVM Direct**: all pages in NVM, used in place. Each changed line is written back and fenced
//!   before the commit. It has the engine's minimum of DRAM.
//! * **3 Tier BM**: DRAM, NVM and SSD with HyMem's admission queue, and lines of 64 bytes,
//!   and mini pages.
//! * The same with whole pages, and with lines alone.
//!
//! A GB is 8 MiB here. The emulated NVM of the paper delays each line that the processor loads. So
//! a look charges the lines that it touches, unless the last-level cache has them, and the copy of
//! a page takes as long as its one core needs for the lines ([`LINES_IN_FLIGHT`]). The log is free
//! for every design, and long enough not to be cut.

use terrace::migration::Choice;
use terrace_common::failure::{Failure, Outcome};
use terrace_io::{OPERATION_NS, Profile};

use crate::design::{self, PAGE_BYTES};
use crate::hierarchy::{Experiment, Found, Hierarchy, LoadOrder, Logging, run_all};
use crate::workload::ycsb::Distribution;

pub(super) const GB: u64 = 8 << 20;
pub(super) const RECORDS_PER_PAGE: u64 = 15;
/// The engine's minimum of DRAM frames.
const FRAMES_LEAST: u64 = 24;
/// Lines that a core loads at the same time: the fill buffers of the paper's processor. A soft
/// number, for the paper has none.
const LINES_IN_FLIGHT: f64 = 10.0;
const LINE_BYTES: f64 = 64.0;
pub(super) const LINES_PER_PAGE: f64 = PAGE_BYTES as f64 / LINE_BYTES;
/// The paper's 20 MB of last-level cache.
const LAST_LEVEL_BYTES: u64 = 20 * (GB >> 10);
const LONG_LOG_BYTES: u64 = 64 << 20;
/// Operations that fill the tiers, for each page of data.
const FILLING_PER_PAGE: u64 = 20;
const OPERATIONS: u64 = 40_000;

/// An architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Design {
    Ssd,
    Basic,
    Direct,
    Pages,
    Lines,
    ThreeTier,
}

impl Design {
    /// The paper's name.
    pub(super) fn name(self) -> &'static str {
        match self {
            Design::Ssd => "SSD BM",
            Design::Basic => "basic NVM BM",
            Design::Direct => "NVM Direct",
            Design::Pages => "3 tiers, whole pages",
            Design::Lines => "3 tiers, lines",
            Design::ThreeTier => "3 tier BM",
        }
    }

    fn preset(self) -> design::Design {
        match self {
            Design::Ssd => design::Design::Ssd,
            Design::Basic => design::Design::Nvm,
            Design::Direct => design::Design::Direct,
            Design::Pages | Design::Lines | Design::ThreeTier => design::Design::ThreeTiers,
        }
    }
}

/// A point of a figure. The paper's GB.
#[derive(Clone, Copy, Debug)]
pub(super) struct Point {
    pub(super) dram: f64,
    pub(super) nvm: f64,
    pub(super) data: f64,
    pub(super) latency_ns: f64,
    /// Percent of updates; the rest are lookups. Both touch one field.
    pub(super) updates: u8,
}

impl Point {
    /// The paper's usual point: 2, 10 and 10 GB, 500 ns, lookups.
    pub(super) const USUAL: Point = Point { dram: 2.0, nvm: 10.0, data: 10.0, latency_ns: 500.0, updates: 0 };

    /// Whether the data fit the memory of `design`.
    pub(super) fn runs(self, design: Design) -> bool {
        !matches!(design, Design::Basic | Design::Direct) || self.data <= self.nvm
    }

    /// The experiment of `design`.
    pub(super) fn experiment(self, design: Design) -> Outcome<Experiment> {
        let bytes = |gb: f64| (gb * GB as f64) as u64 / PAGE_BYTES * PAGE_BYTES;
        let flash = Profile::named("nvme-flash").map_err(|error| Failure::Work(error.to_string()))?;
        let nvm = nvm(self.latency_ns)?;
        let pages = bytes(self.data) / PAGE_BYTES;
        // Inner nodes and free frames take some beside the data.
        let whole = bytes(self.data) + bytes(self.data) / 16 + (1 << 20);
        // Without a middle tier no page moves.
        let migration = design.preset().choice().unwrap_or(Choice::Eager);
        let (dram_bytes, middle, store) = match design {
            Design::Ssd => (bytes(self.dram), None, flash),
            // `bench` has its pages in a middle tier; here the page file is the NVM.
            Design::Basic => (bytes(self.dram), None, nvm),
            Design::Direct => (FRAMES_LEAST * PAGE_BYTES, Some((nvm.with_write_back(), whole)), flash),
            Design::Pages | Design::Lines | Design::ThreeTier => {
                let dram = bytes(self.dram).max(FRAMES_LEAST * PAGE_BYTES);
                (dram, Some((nvm, bytes(self.nvm))), flash)
            }
        };
        Ok(Experiment {
            hierarchy: Hierarchy {
                dram_bytes: dram_bytes.max(FRAMES_LEAST * PAGE_BYTES),
                middle,
                store,
                cache: None,
            },
            log: Logging { capacity_bytes: LONG_LOG_BYTES, ..Logging::default() },
            migration: migration.into(),
            replacement: design::REPLACEMENT,
            lines: if design == Design::Pages { 0 } else { design.preset().lines() },
            mini_pages: design == Design::ThreeTier,
            business: None,
            page_bytes: PAGE_BYTES,
            records: pages * RECORDS_PER_PAGE,
            load_order: LoadOrder::Ascending,
            value_bytes: 1000,
            fields: Some("10x100".parse().map_err(Failure::Work)?),
            mix: format!("rw:{}", 100 - self.updates).parse().map_err(Failure::Work)?,
            distribution: Distribution::Zipfian(1.0),
            workers: 1,
            operation_ns: OPERATION_NS,
            filling: FILLING_PER_PAGE * pages,
            warmup: OPERATIONS,
            operations: OPERATIONS,
            seed: 20_180_610,
        })
    }
}

/// Each design at each point; `None` where its data do not fit.
pub(super) fn run(designs: &[Design], points: &[Point]) -> Outcome<Vec<Vec<Option<Found>>>> {
    let all = |design: Design| points.iter().map(move |point| (design, *point));
    let all: Vec<(Design, Point)> = designs.iter().flat_map(|&design| all(design)).collect();
    let experiments = all.iter().filter(|(design, point)| point.runs(*design));
    let experiments = experiments.map(|(design, point)| point.experiment(*design));
    let mut found = run_all(&experiments.collect::<Outcome<Vec<Experiment>>>()?)?.into_iter();
    let row = |row: &[(Design, Point)]| {
        row.iter()
            .map(|(design, point)| found.by_ref().take(usize::from(point.runs(*design))).next())
            .collect()
    };
    Ok(all.chunks(points.len().max(1)).map(row).collect())
}

/// The emulated memory, whose reads take `latency_ns`.
pub(super) fn nvm(latency_ns: f64) -> Outcome<Profile> {
    let core_gb_s = LINES_IN_FLIGHT * LINE_BYTES / latency_ns;
    let text = format!(
        "base = 'optane'\nsequential_read_ns = {latency_ns:?}\nrandom_read_ns = {latency_ns:?}\n\
         core_read_gb_s = {core_gb_s:?}\ngranularity_bytes = 64\ncache_bytes = {LAST_LEVEL_BYTES}\ncounts_lines = true\n\
         persistent = false"
    );
    Profile::parse(&text, "nvm").map_err(|error| Failure::Work(error.to_string()))
}

#[cfg(test)]
mod tests {
    use terrace_io::{Direction, Pattern};

    use super::*;

    #[test]
    fn a_page_takes_as_long_as_a_core_needs_for_its_lines() {
        let nvm = nvm(500.0).unwrap();
        let page = nvm.time_of(Direction::Read, Pattern::Sequential, 16 << 10).as_nanos();
        assert_eq!(page, 12_800, "256 lines at ten in 500 ns");
        let line = nvm.time_of(Direction::Read, Pattern::Random, 64).as_nanos();
        assert!((500..=505).contains(&line), "{line}");
        assert_eq!(nvm.time_of(Direction::Read, Pattern::Random, 16 << 10).as_nanos(), page);
        let writes = |profile: &Profile| profile.latency_ns(Direction::Write, Pattern::Random);
        assert!((writes(&nvm.clone().with_write_back()) - writes(&nvm) - 63.4).abs() < 0.01);
    }

    #[test]
    fn designs_without_room_for_the_data_do_not_run() {
        let point = Point { data: 15.0, ..Point::USUAL };
        let runs = |design| point.runs(design);
        assert!(runs(Design::Ssd) && runs(Design::ThreeTier));
        assert!(!runs(Design::Basic) && !runs(Design::Direct));
    }

    /// A field is read and changed in each design, in a small database.
    #[test]
    fn each_design_runs() {
        let small = Point { dram: 0.1, nvm: 0.4, data: 0.3, updates: 50, ..Point::USUAL };
        let others = [Design::Ssd, Design::Basic, Design::Direct, Design::Pages];
        for design in others.into_iter().chain([Design::Lines, Design::ThreeTier]) {
            let experiment = small.experiment(design).unwrap();
            let experiment = Experiment { filling: 500, warmup: 500, operations: 500, ..experiment };
            let found = experiment.run().unwrap();
            assert!(found.ops_per_second > 0.0, "{design:?}");
            let reads_store = matches!(design, Design::Ssd | Design::Basic);
            assert_eq!(found.misses > 0.1, reads_store, "{design:?}: {}", found.misses);
            let middle = found.middle().ok();
            if design == Design::Direct {
                assert!(middle.unwrap().lines_written > 250, "each update changes a line");
            }
            let loads_lines = middle.is_some_and(|middle| middle.lines_loaded > 0);
            let has_lines = matches!(design, Design::Lines | Design::ThreeTier);
            assert_eq!(loads_lines, has_lines, "{design:?}");
            let has_minis = middle.is_some_and(|middle| middle.promoted_mini > 0);
            assert_eq!(has_minis, design == Design::ThreeTier, "{design:?}");
        }
    }
}
