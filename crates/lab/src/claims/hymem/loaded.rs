//! H3: lines of NVM loaded for a lookup, as pages become lines (figure 10).

use terrace_common::failure::Outcome;
use terrace_common::report::Lines;

use super::setup::{Design, LINES_PER_PAGE, Point, run};
use crate::claims::claim::{Measured, Setting, Verdict};
use crate::hierarchy::Found;

/// Million lines: whole pages, lines, and lines with mini pages.
const PAPER: [f64; 3] = [652.5, 11.8, 5.6];
const DESIGNS: [Design; 4] = [Design::Basic, Design::Pages, Design::ThreeTier, Design::Direct];

/// One design.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Loaded {
    /// Lines for each lookup.
    lines: f64,
    ops_per_second: f64,
}

impl Loaded {
    fn of(design: Design, found: &Found, operations: u64) -> Outcome<Loaded> {
        let lines = match design {
            Design::Basic => found.misses * LINES_PER_PAGE,
            _ => {
                let middle = found.middle()?;
                let whole = middle.migrations.middle_to_dram - middle.promoted_partial;
                (middle.lines_loaded as f64 + whole as f64 * LINES_PER_PAGE) / operations as f64
            }
        };
        Ok(Loaded { lines, ops_per_second: found.ops_per_second })
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
    let [basic, pages, lines, direct] = each else { unreachable!("each design was measured") };
    let (fewer, paper) = (pages.lines / lines.lines, PAPER[0] / PAPER[1]);
    let faster = lines.ops_per_second / basic.ops_per_second;
    let bars = DESIGNS.iter().zip(each).enumerate();
    let bars = bars.map(|(at, (design, loaded))| (design.name(), at as f64, loaded.ops_per_second));
    let figure = Lines::new("Throughput, step by step", "design", "operations/s");
    let figure = bars.fold(figure, |figure, (name, at, rate)| figure.line(name, vec![(at, 0.0), (at, rate)]));
    Measured {
        measured: format!(
            "lines loaded for a lookup: basic {:.1}, three tiers with whole pages {:.1}, with lines {:.2}, {fewer:.1} times fewer (paper \
             {paper:.0}). Throughput over basic: whole pages {:.2}, lines {faster:.2}, NVM Direct {:.2}",
            basic.lines,
            pages.lines,
            lines.lines,
            pages.ops_per_second / basic.ops_per_second,
            direct.ops_per_second / basic.ops_per_second,
        ),
        verdict: if fewer > 1.0 && faster > 1.0 { Verdict::Sign } else { Verdict::Fails },
        note: format!(
            "Lookups of one field, 2, 10 and 10 GB. Sign at most: mini pages, the paper's second step to {} M lines, are not built. Our \
             header, slots and entries spread a lookup over more lines than the paper's arrays.",
            PAPER[2]
        ),
        figures: vec![figure],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_lines_have_the_right_sign_and_more_fail() {
        let judged = |lines: f64, rate: f64| {
            let of = |lines, ops_per_second| Loaded { lines, ops_per_second };
            judge(&[of(65.0, 1.0), of(65.0, 1.0), of(lines, rate), of(0.0, 2.0)]).verdict
        };
        assert_eq!(judged(1.2, 3.0), Verdict::Sign);
        assert_eq!(judged(1.2, 0.9), Verdict::Fails);
        assert_eq!(judged(70.0, 3.0), Verdict::Fails);
    }
}
