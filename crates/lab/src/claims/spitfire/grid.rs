//! S11: which hierarchy to buy.
//!
//! A grid of DRAM and Optane sizes over one SSD, as in figure 14. The measure is operations a
//! second for a dollar. Prices are the profiles', for the paper's sizes: a GB is 671,089 bytes, as
//! in all of Spitfire's claims. "No DRAM" is the engine's minimum, and is paid for.

use terrace::migration::{Choice, Policy};
use terrace_common::failure::{Failure, Outcome};
use terrace_common::report::Lines;
use terrace_io::Profile;

use super::inputs::{Input, Inputs};
use super::setup::{FRAMES_LEAST, PAGE_BYTES, RECORDS_PER_PAGE, experiment};
use crate::claims::claim::{Measured, Setting, Verdict};
use crate::hierarchy::{Experiment, Found, run_all};
use crate::workload::ycsb::Distribution;

/// The paper's 12.5 GB are 8 MiB.
const GB: f64 = (8 << 20) as f64 / 12.5;
/// GB of DRAM and of Optane.
const DRAM: [u64; 5] = [0, 4, 8, 16, 32];
const MIDDLE: [u64; 5] = [0, 40, 80, 120, 160];
/// GB of the SSD and of the data.
const STORE: u64 = 200;
const DATA: u64 = 100;
const WORKERS: usize = 8;
const WARMUP_PER_PAGE: u64 = 4;
const OPERATIONS: u64 = 20_000;
const MIXES: [&str; 3] = ["ro", "ba", "wh"];
/// The paper's best by price: GB of DRAM and Optane. WH's is any without DRAM.
const PAPER: [&str; 3] = ["4 + 80", "8 + 80", "NVM-SSD"];

/// A hierarchy, with its price and throughput.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Cell {
    dram: u64,
    middle: u64,
    dollars: f64,
    ops_per_second: f64,
}

impl Cell {
    fn per_dollar(self) -> f64 {
        self.ops_per_second / self.dollars
    }

    fn name(self) -> String {
        match (self.dram, self.middle) {
            (0, middle) => format!("0 + {middle} (NVM-SSD)"),
            (dram, 0) => format!("{dram} + 0 (DRAM-SSD)"),
            (dram, middle) => format!("{dram} + {middle}"),
        }
    }

    fn has_all(self) -> bool {
        self.dram > 0 && self.middle > 0
    }
}

fn bytes(gb: u64) -> u64 {
    (gb as f64 * GB) as u64
}

fn sizes() -> impl Iterator<Item = (u64, u64)> {
    let all = DRAM.into_iter().flat_map(|dram| MIDDLE.map(|middle| (dram, middle)));
    all.filter(|size| *size != (0, 0))
}

fn without_dram() -> impl Iterator<Item = (u64, u64)> {
    sizes().filter(|(dram, _)| *dram == 0)
}

fn dram_bytes(gb: u64) -> u64 {
    bytes(gb).max(FRAMES_LEAST * PAGE_BYTES)
}

fn experiment_of(mix: &str, (dram, middle): (u64, u64), inputs: Inputs) -> Outcome<Experiment> {
    let run = experiment(8, 32, 64, mix, WORKERS)?;
    let policy = match (dram, middle) {
        (0, _) => Policy::new(0.0, 0.0, 1.0, 1.0).map(Choice::Fixed).map_err(Failure::Work)?,
        // Unused without a middle tier.
        (_, 0) => Choice::Eager,
        _ => Choice::Lazy,
    };
    let mut hierarchy = run.hierarchy.clone();
    hierarchy.dram_bytes = dram_bytes(dram);
    hierarchy.middle = hierarchy.middle.filter(|_| middle > 0).map(|(profile, _)| (profile, bytes(middle)));
    let run = Experiment { hierarchy, ..run }.under(policy);
    let filling = if dram > 0 && middle > 0 { run.filling } else { 0 };
    let pages = bytes(DATA) / PAGE_BYTES;
    Ok(inputs.of(Experiment {
        records: pages * RECORDS_PER_PAGE,
        distribution: Distribution::Zipfian(0.5),
        filling,
        warmup: WARMUP_PER_PAGE * pages + filling,
        operations: OPERATIONS,
        ..run
    }))
}

fn dollars((dram, middle): (u64, u64)) -> Outcome<f64> {
    let price = |name: &str| -> Outcome<f64> {
        Ok(Profile::named(name).map_err(|error| Failure::Work(error.to_string()))?.price_per_gb())
    };
    let dram = dram_bytes(dram) as f64 / GB;
    Ok(dram * price("dram")? + middle as f64 * price("optane")? + STORE as f64 * price("nvme-optane")?)
}

/// The cells of `sizes` for each mix.
fn grids(sizes: &[(u64, u64)], inputs: Inputs) -> Outcome<Vec<Vec<Cell>>> {
    let of = |mix: &'static str| sizes.iter().map(move |size| experiment_of(mix, *size, inputs));
    let runs = MIXES.into_iter().flat_map(of).collect::<Outcome<Vec<Experiment>>>()?;
    let found = run_all(&runs)?;
    let cell = |(&(dram, middle), found): (&(u64, u64), &Found)| {
        Ok(Cell { dram, middle, dollars: dollars((dram, middle))?, ops_per_second: found.ops_per_second })
    };
    found.chunks(sizes.len()).map(|row| sizes.iter().zip(row).map(cell).collect()).collect()
}

/// Runs the experiment.
pub fn measure(_: &Setting) -> Outcome<Measured> {
    let sizes: Vec<(u64, u64)> = sizes().collect();
    let without_dram: Vec<(u64, u64)> = without_dram().collect();
    let long = grids(&without_dram, Inputs::on(&[Input::Log]))?;
    let mut measured = judge(&grids(&sizes, Inputs::NONE)?, &long);
    let operations = grids(&sizes, Inputs::on(&[Input::Operation]))?;
    measured.note += &format!(
        " With {} ({}): {}.",
        Input::Operation.name(),
        verdict(&operations).name(),
        tell(&operations, None)
    );
    Ok(measured)
}

fn best(grid: &[Cell], rate: impl Fn(&Cell) -> f64) -> Cell {
    *grid.iter().max_by(|a, b| rate(a).total_cmp(&rate(b))).expect("the grid has cells")
}

fn at(grid: &[Cell], dram: u64, middle: u64) -> Cell {
    *grid.iter().find(|cell| (cell.dram, cell.middle) == (dram, middle)).expect("a cell of the grid")
}

/// The best cells of each mix by price, and the fastest.
fn bests(grids: &[Vec<Cell>]) -> [Vec<Cell>; 2] {
    let best_by = |rate: fn(&Cell) -> f64| grids.iter().map(|grid| best(grid, rate)).collect();
    [best_by(|cell| cell.per_dollar()), best_by(|cell| cell.ops_per_second)]
}

fn verdict(grids: &[Vec<Cell>]) -> Verdict {
    let [bought, fastest] = bests(grids);
    let is_cell = |cell: Cell, dram, middle| (cell.dram, cell.middle) == (dram, middle);
    let holds = is_cell(bought[0], 4, 80) && is_cell(bought[1], 8, 80) && bought[2].dram == 0;
    let sign = bought[0].has_all() && bought[2].dram == 0 && fastest.iter().all(|cell| cell.dram > 0);
    match (holds, sign) {
        (true, _) => Verdict::Holds,
        (false, true) => Verdict::Sign,
        _ => Verdict::Fails,
    }
}

/// `grids` of each mix; `long`, if given, has the cells without DRAM with a log that is not cut.
fn tell(grids: &[Vec<Cell>], long: Option<&[Vec<Cell>]>) -> String {
    let [bought, fastest] = bests(grids);
    let tell = |(at, mix): (usize, &&str)| {
        let without_dram: Vec<Cell> = grids[at].iter().copied().filter(|cell| cell.dram == 0).collect();
        let of_best =
            |cells: &[Cell]| best(cells, |cell| cell.per_dollar()).per_dollar() / bought[at].per_dollar();
        let long = long.map(|long| format!(", {:.2} with a log that is not cut", of_best(&long[at])));
        format!(
            "{}: best {} (paper {}), NVM-SSD {:.2} of it{}; fastest {}",
            mix.to_uppercase(),
            bought[at].name(),
            PAPER[at],
            of_best(&without_dram),
            long.unwrap_or_default(),
            fastest[at].name()
        )
    };
    let told: Vec<String> = MIXES.iter().enumerate().map(tell).collect();
    let (small, large) = (at(&grids[0], 4, 80), at(&grids[0], 32, 80));
    format!(
        "GB of DRAM + Optane: {}. RO, 32 + 80 over 4 + 80: {:+.0} % as fast (paper +4), {:+.0} % as dear (paper +29)",
        told.join("; "),
        (large.ops_per_second / small.ops_per_second - 1.0) * 100.0,
        (large.dollars / small.dollars - 1.0) * 100.0
    )
}

fn judge(grids: &[Vec<Cell>], long: &[Vec<Cell>]) -> Measured {
    let figures = MIXES.iter().zip(grids).map(|(mix, grid)| {
        let title = format!("Performance by price, {}", mix.to_uppercase());
        DRAM.iter().fold(Lines::new(title, "GB of Optane", "operations/s for a dollar"), |lines, &dram| {
            let row = grid.iter().filter(|cell| cell.dram == dram);
            let points = row.map(|cell| (cell.middle as f64, cell.per_dollar()));
            lines.line(format!("{dram} GB of DRAM"), points.collect())
        })
    });
    Measured {
        measured: tell(grids, Some(long)),
        verdict: verdict(grids),
        note: format!(
            "{WORKERS} workers, {DATA} GB of data, skew .5, policy lazy; no DRAM is {FRAMES_LEAST} frames. Holds: the best by price are the \
             paper's; sign: its rules hold, three tiers for reads, no DRAM for WH, the fastest with DRAM. The cut of the log writes dirty \
             pages of the middle tier too, which the paper spares NVM-SSD; so its cells also have a log that is not cut. TPC-C is not run."
        ),
        figures: figures.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A grid whose best by price is `bought` and whose fastest is `fastest`.
    fn grid(bought: (u64, u64), fastest: (u64, u64)) -> Vec<Cell> {
        let cell = |size: (u64, u64)| {
            let per_dollar = if size == bought { 3.0 } else { 1.0 };
            let dollars = dollars(size).unwrap();
            let ops_per_second = if size == fastest { 2.5 * dollars } else { per_dollar * dollars };
            Cell { dram: size.0, middle: size.1, dollars, ops_per_second }
        };
        sizes().map(cell).collect()
    }

    #[test]
    fn the_papers_choices_hold_and_others_do_not() {
        let judged = |bought: [(u64, u64); 3], fastest| {
            let grids: Vec<Vec<Cell>> = bought.map(|bought| grid(bought, fastest)).into();
            judge(&grids, &grids).verdict
        };
        assert_eq!(judged([(4, 80), (8, 80), (0, 120)], (32, 160)), Verdict::Holds);
        assert_eq!(judged([(8, 120), (0, 80), (0, 120)], (32, 160)), Verdict::Sign);
        assert_eq!(
            judged([(8, 120), (0, 80), (0, 120)], (0, 160)),
            Verdict::Fails,
            "the fastest has no DRAM"
        );
        assert_eq!(judged([(0, 120), (8, 80), (0, 120)], (32, 160)), Verdict::Fails, "no DRAM for reads");
        assert_eq!(judged([(4, 80), (8, 80), (4, 120)], (32, 160)), Verdict::Fails, "DRAM for WH");
    }

    #[test]
    fn prices_are_the_papers() {
        let dear = dollars((32, 80)).unwrap() / dollars((4, 80)).unwrap();
        assert!((1.28..1.30).contains(&dear), "{dear}");
    }
}
