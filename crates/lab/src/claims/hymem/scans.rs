//! H4: scans of designs with lines and mini pages (table in section 5.4.2).
//!
//! The engine's scans read whole pages, and make none partial. The paper leaves such a hint to
//! others. So lines delay a scan only where lookups left partial pages, whose other lines it loads.
//! The third kind of scan here meets those; the paper has none.
//!
//! Virtual time has no residency checks, which the paper's figures include.

use terrace_common::failure::Outcome;
use terrace_common::report::Lines;
use terrace_common::values;
use terrace_io::PAGE_NS;

use super::setup::{Design, Point, RECORDS_PER_PAGE};
use crate::claims::claim::{Measured, Setting, Verdict};
use crate::hierarchy::{Experiment, Running, side_by_side};

const DESIGNS: [Design; 4] = [Design::Basic, Design::Pages, Design::Lines, Design::ThreeTier];
/// Percent of the rate of basic NVM with lines, and with mini pages too.
const PAPER: [[f64; 2]; 2] = [[104.2, 91.3], [93.1, 90.8]];
const KINDS: [&str; 3] = ["small scan", "full scan", "small scan between lookups"];
/// Rows of a small scan.
const ROWS: u64 = 100;
const SCANS: u64 = 1000;
/// Lookups before each scan of the third kind.
const LOOKUPS: u64 = 100;
/// A core copies a row of 1000 bytes in 62 ns, and accesses a page once for its rows.
const ROW_NS: u64 = 62 + PAGE_NS / RECORDS_PER_PAGE;
const SEED: u64 = 1;
/// Least share of the rate with whole pages, as in the paper, and that with twice its overhead.
const SHARE: f64 = 0.9;
const SHARE_OF_SIGN: f64 = 0.8;

/// Scans a second, by [`KINDS`].
type Rates = [f64; KINDS.len()];

/// Runs the experiment.
pub fn measure(_: &Setting) -> Outcome<Measured> {
    let found = side_by_side(&DESIGNS, |&design| rates(&Point::USUAL.experiment(design)?, SCANS))?;
    Ok(judge(&found))
}

/// `scans` small scans of each kind, and one of all.
fn rates(run: &Experiment, scans: u64) -> Outcome<Rates> {
    let last = values::loaded(run.records - ROWS);
    let mut starts = Experiment { seed: SEED, ..run.clone() }.streams().remove(0);
    run.begin(|running| {
        let mut small = |lookups| {
            rate(running, scans, |running| {
                running.go_on(lookups)?;
                Ok((starts.next_operation().number.min(last), ROWS))
            })
        };
        // The warm-up was lookups.
        let between = small(LOOKUPS)?;
        small(0)?;
        let small = small(0)?;
        let mut full = || rate(running, 1, |_| Ok((values::loaded(0), run.records)));
        full()?;
        Ok([small, full()?, between])
    })
}

/// Scans a second of `scans` scans. `before` is not measured, and gives the first number and rows.
fn rate(
    running: &mut Running,
    scans: u64,
    mut before: impl FnMut(&mut Running) -> Outcome<(u64, u64)>,
) -> Outcome<f64> {
    let mut nanoseconds = 0;
    for _ in 0..scans {
        let (first, rows) = before(running)?;
        let began = running.level_clocks();
        running.scan(first, rows, ROW_NS)?;
        nanoseconds += running.level_clocks() - began;
    }
    Ok(scans as f64 * 1e9 / nanoseconds.max(1) as f64)
}

/// `found` is in the order of [`DESIGNS`].
fn judge(found: &[Rates]) -> Measured {
    let [basic, pages, lines, minis] = found else { unreachable!("each design was measured") };
    let over = |base: &Rates, rates: &Rates| [0, 1, 2].map(|kind| rates[kind] / base[kind]);
    let steps = [over(pages, lines), over(pages, minis)];
    // The paper has the first two kinds.
    let least =
        steps.iter().flat_map(|step| &step[..2]).fold(f64::INFINITY, |least, &share| least.min(share));
    let told = |shares: Rates| {
        let [small, full, between] = shares.map(|share| share * 100.0);
        format!("{small:.1}, {full:.1} and {between:.1} %")
    };
    let figures = KINDS.iter().enumerate().map(|(kind, name)| {
        let figure = Lines::new(format!("Rate of a {name}, step by step"), "design", "scans/s");
        DESIGNS.iter().zip(found).enumerate().fold(figure, |figure, (at, (design, rates))| {
            figure.line(design.name(), vec![(at as f64, 0.0), (at as f64, rates[kind])])
        })
    });
    Measured {
        measured: format!(
            "of the rate of small scans, full scans and small scans between lookups with whole pages, lines have {}, mini pages {} \
             (paper {:.1} and {:.1}, {:.1} and {:.1}). Whole pages in three tiers have {} of basic NVM's",
            told(steps[0]),
            told(steps[1]),
            PAPER[0][0],
            PAPER[0][1],
            PAPER[1][0],
            PAPER[1][1],
            told(over(basic, pages)),
        ),
        verdict: match least {
            SHARE.. => Verdict::Holds,
            SHARE_OF_SIGN.. => Verdict::Sign,
            _ => Verdict::Fails,
        },
        note: format!(
            "Scans of {ROWS} rows and of the whole table, 2, 10 and 10 GB, pages 95 % full. Scans load whole pages, so small ones gain nothing \
             by lines, and pay only where {LOOKUPS} lookups before each left partial pages. Residency checks take no virtual time. \
             Holds: lines and mini pages keep {SHARE} of the rate with whole pages in the paper's two scans; sign: {SHARE_OF_SIGN}."
        ),
        figures: figures.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_overhead_holds_and_a_larger_one_fails() {
        let judged = |small: f64, full: f64| {
            let whole = [100.0, 1.0, 100.0];
            judge(&[whole, whole, [104.2, 0.913, 10.0], [100.0 * small, full, 10.0]]).verdict
        };
        assert_eq!(judged(0.931, 0.908), Verdict::Holds);
        assert_eq!(judged(0.85, 0.908), Verdict::Sign);
        assert_eq!(judged(0.931, 0.7), Verdict::Fails);
    }

    /// Scans between lookups meet partial pages, and load the rest of them.
    #[test]
    fn only_scans_between_lookups_are_delayed_by_lines() {
        let small = Point { dram: 0.1, nvm: 0.4, data: 0.3, ..Point::USUAL };
        let rates = [Design::Pages, Design::Lines, Design::ThreeTier].map(|design| {
            let run = small.experiment(design).unwrap();
            rates(&Experiment { filling: 500, warmup: 500, ..run }, 50).unwrap()
        });
        let [pages, lines, minis] = rates;
        assert!(pages.iter().all(|&rate| rate > 0.0) && pages[0] > pages[1], "{pages:?}");
        for rates in [lines, minis] {
            assert!(rates[2] < 0.99 * pages[2], "{rates:?} {pages:?}");
            assert!((0.99..1.01).contains(&(rates[1] / pages[1])), "{rates:?} {pages:?}");
        }
    }
}
