//! H10: line writes to NVM, in total and of the line written most often (figure 16).

use terrace_common::failure::{Failure, Outcome};

use super::setup::{Design, Point};
use crate::claims::claim::{Measured, Setting, Verdict};
use crate::hierarchy::side_by_side;

/// The paper's lines written, NVM Direct over three tiers, and those of the hottest line.
const PAPER: f64 = 25.0 / 4.7;
const PAPER_HOTTEST: f64 = 60e3 / 3.0;
/// Required share of the total's ratio, and of the hottest line's: the paper's run is 250 times as
/// long, and so is what its hottest line gathers.
const SHARE: f64 = 0.7;
const HOTTEST: f64 = 100.0;

/// Writes of one design.
#[derive(Clone, Copy, Debug, PartialEq)]
struct LineWrites {
    /// Lines, for each update.
    each: f64,
    hottest: u64,
}

/// Runs the experiment.
pub fn measure(_: &Setting) -> Outcome<Measured> {
    let designs = [Design::Direct, Design::ThreeTier];
    let found = side_by_side(&designs, |&design| {
        let run = Point { updates: 100, ..Point::USUAL }.experiment(design)?;
        run.begin(|running| {
            let none = || Failure::Work("no lines are counted".into());
            let before = running.line_writes().ok_or_else(none)?;
            running.go_on(run.operations)?;
            let writes = running.line_writes().ok_or_else(none)?.since(&before);
            Ok(LineWrites { each: writes.total() as f64 / run.operations as f64, hottest: writes.max() })
        })
    })?;
    Ok(judge(found[0], found[1]))
}

fn judge(direct: LineWrites, three: LineWrites) -> Measured {
    let total = direct.each / three.each;
    let hottest = direct.hottest as f64 / three.hottest.max(1) as f64;
    let verdict = match (total >= PAPER * SHARE && hottest >= HOTTEST, total > 1.0 && hottest > 1.0) {
        (true, _) => Verdict::Holds,
        (false, true) => Verdict::Sign,
        _ => Verdict::Fails,
    };
    Measured {
        measured: format!(
            "NVM Direct writes {:.2} lines for each update, three tiers {:.2}, {total:.2} times fewer (paper {PAPER:.1}). The hottest line is \
             written {} times and {}, {hottest:.0} times fewer (paper {PAPER_HOTTEST:.0})",
            direct.each, three.each, direct.hottest, three.hottest
        ),
        verdict,
        note: format!(
            "Updates of one field alone, 2, 10 and 10 GB. Pages go down by the lines that changed. Holds: {SHARE} of 5.3, and a \
             hottest line with at most 1 / {HOTTEST} of the writes; sign: fewer of both."
        ),
        figures: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_counts_hold_and_its_reverse_fails() {
        let judged = |each: f64, hottest: u64| {
            judge(LineWrites { each: 2.5, hottest: 6000 }, LineWrites { each, hottest }).verdict
        };
        assert_eq!(judged(0.47, 3), Verdict::Holds);
        assert_eq!(judged(2.0, 3), Verdict::Sign);
        assert_eq!(judged(0.47, 300), Verdict::Sign);
        assert_eq!(judged(60.0, 3), Verdict::Fails);
    }
}
