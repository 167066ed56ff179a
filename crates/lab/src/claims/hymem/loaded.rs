//! H3: lines of NVM loaded for a lookup, as pages become lines and mini pages (figure 10).

use terrace_common::failure::Outcome;
use terrace_common::report::Lines;

use super::setup::{Design, LINES_PER_PAGE, Point, run};
use crate::claims::claim::{Measured, Setting, Verdict};
use crate::hierarchy::Found;

/// Million lines: whole pages, lines, and lines with mini pages.
const PAPER: [f64; 3] = [652.5, 11.8, 5.6];
/// Lines loaded for each page: a design with whole pages loads as many pages as one with lines.
const PAPER_LINES: f64 = PAPER[1] / (PAPER[0] / LINES_PER_PAGE);
const DESIGNS: [Design; 5] = [Design::Basic, Design::Pages, Design::Lines, Design::ThreeTier, Design::Direct];
/// Required share of the paper's ratios.
const SHARE: f64 = 0.7;

/// One design.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Loaded {
    /// Lines for each lookup.
    lines: f64,
    /// Pages that got to DRAM, for each lookup.
    pages: f64,
    ops_per_second: f64,
}

impl Loaded {
    fn of(design: Design, found: &Found, operations: u64) -> Outcome<Loaded> {
        let (lines, pages) = match design {
            Design::Basic => (found.misses * LINES_PER_PAGE, found.misses),
            _ => {
                let (middle, each) = (found.middle()?, 1.0 / operations as f64);
                let pages = middle.migrations.middle_to_dram;
                let whole = (pages - middle.promoted_partial) as f64 * LINES_PER_PAGE;
                ((middle.lines_loaded as f64 + whole) * each, pages as f64 * each)
            }
        };
        Ok(Loaded { lines, pages, ops_per_second: found.ops_per_second })
    }
}

/// Runs the experiment.
pub fn measure(_: &Setting) -> Outcome<Measured> {
    let operations = Point::USUAL.experiment(Design::Basic)?.operations;
    let mut each = Vec::new();
    for (row, design) in run(&DESIGNS, &[Point::USUAL])?.into_iter().zip(DESIGNS) {
        for found in row.into_iter().flatten() {
            each.push(Loaded::of(design, &found, operations)?);
        }
    }
    Ok(judge(&each))
}

/// `each` is in the order of [`DESIGNS`].
fn judge(each: &[Loaded]) -> Measured {
    let [basic, pages, lines, minis, direct] = each else { unreachable!("each design was measured") };
    let steps = [pages.lines / lines.lines, lines.lines / minis.lines];
    let paper = [PAPER[0] / PAPER[1], PAPER[1] / PAPER[2]];
    let faster = minis.ops_per_second / basic.ops_per_second;
    let bars = DESIGNS.iter().zip(each).enumerate();
    let bars = bars.map(|(at, (design, loaded))| (design.name(), at as f64, loaded.ops_per_second));
    let figure = Lines::new("Throughput, step by step", "design", "operations/s");
    let figure = bars.fold(figure, |figure, (name, at, rate)| figure.line(name, vec![(at, 0.0), (at, rate)]));
    Measured {
        measured: format!(
            "lines loaded for a lookup: basic {:.1}, three tiers with whole pages {:.1}, with lines {:.2}, {:.1} times fewer (paper {:.0}), \
             with mini pages {:.2}, {:.2} times fewer again (paper {:.1}). A page gets {:.1} lines in DRAM (paper {PAPER_LINES:.1}). Throughput over basic: whole pages {:.2}, lines {:.2}, mini pages \
             {faster:.2}, NVM Direct {:.2}",
            basic.lines,
            pages.lines,
            lines.lines,
            steps[0],
            paper[0],
            minis.lines,
            steps[1],
            paper[1],
            lines.lines / lines.pages,
            pages.ops_per_second / basic.ops_per_second,
            lines.ops_per_second / basic.ops_per_second,
            direct.ops_per_second / basic.ops_per_second,
        ),
        verdict: match (
            steps.iter().zip(paper).all(|(step, paper)| *step >= paper * SHARE) && faster > 1.0,
            steps.iter().all(|&step| step > 1.0) && faster > 1.0,
        ) {
            (true, _) => Verdict::Holds,
            (false, true) => Verdict::Sign,
            _ => Verdict::Fails,
        },
        note: format!(
            "Lookups of one field, 2, 10 and 10 GB. Holds: {SHARE} of both steps, and faster than basic; sign: fewer at both. Our header, \
             slots and entries spread a lookup over more lines than the paper's arrays."
        ),
        figures: vec![figure],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_steps_hold_and_more_lines_fail() {
        let judged = |lines: f64, minis: f64, rate: f64| {
            let of = |lines, ops_per_second| Loaded { lines, pages: 0.25, ops_per_second };
            judge(&[of(65.0, 1.0), of(65.0, 1.0), of(lines, 3.0), of(minis, rate), of(0.0, 2.0)]).verdict
        };
        assert_eq!(judged(1.2, 0.6, 3.0), Verdict::Holds);
        assert_eq!(judged(1.8, 1.0, 3.0), Verdict::Sign);
        assert_eq!(judged(1.2, 1.0, 3.0), Verdict::Sign);
        assert_eq!(judged(1.2, 0.6, 0.9), Verdict::Fails);
        assert_eq!(judged(1.2, 1.3, 3.0), Verdict::Fails);
        assert_eq!(judged(70.0, 1.0, 3.0), Verdict::Fails);
    }
}
