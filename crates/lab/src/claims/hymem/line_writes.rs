//! H10: line writes to NVM, in total and of the line written most often (figure 16).

use terrace_common::failure::{Failure, Outcome};

use super::setup::{Design, Point};
use crate::claims::claim::{Measured, Setting, Verdict};
use crate::hierarchy::{Running, side_by_side};

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

/// What updates write.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Bytes {
    New,
    /// Those that are there. Only the page's LSN and the entry's timestamp change.
    Same,
}

const RUNS: [(Design, Bytes); 5] = [
    (Design::Direct, Bytes::New),
    (Design::ThreeTier, Bytes::New),
    (Design::Lines, Bytes::New),
    (Design::Direct, Bytes::Same),
    (Design::ThreeTier, Bytes::Same),
];

/// Runs the experiment.
pub fn measure(_: &Setting) -> Outcome<Measured> {
    let found = side_by_side(&RUNS, |&(design, bytes)| {
        let run = Point { updates: 100, ..Point::USUAL }.experiment(design)?;
        match bytes {
            Bytes::New => run.begin(|running| line_writes(running, run.operations)),
            // Lookups leave the bytes of the load.
            Bytes::Same => Point::USUAL.experiment(design)?.begin(|running| {
                running.shift(&run)?;
                running.rewrite()?;
                running.go_on(run.warmup)?;
                line_writes(running, run.operations)
            }),
        }
    })?;
    Ok(judge(&found))
}

fn line_writes(running: &mut Running, operations: u64) -> Outcome<LineWrites> {
    let none = || Failure::Work("no lines are counted".into());
    let before = running.line_writes().ok_or_else(none)?;
    running.go_on(operations)?;
    let writes = running.line_writes().ok_or_else(none)?.since(&before);
    Ok(LineWrites { each: writes.total() as f64 / operations as f64, hottest: writes.max() })
}

/// `found` is in the order of [`RUNS`].
fn judge(found: &[LineWrites]) -> Measured {
    let [direct, three, lines, same_direct, same_three] = found else { unreachable!("each was measured") };
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
             written {} times and {}, {hottest:.0} times fewer (paper {PAPER_HOTTEST:.0}). Without mini pages {:.2} lines. Updates that write \
             the bytes that are there write {:.2} and {:.2}: the page's LSN and the entry's timestamp",
            direct.each,
            three.each,
            direct.hottest,
            three.hottest,
            lines.each,
            same_direct.each,
            same_three.each
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
            let [direct, three] =
                [(2.5, 6000), (each, hottest)].map(|(each, hottest)| LineWrites { each, hottest });
            judge(&[direct, three, three, direct, three]).verdict
        };
        assert_eq!(judged(0.47, 3), Verdict::Holds);
        assert_eq!(judged(2.0, 3), Verdict::Sign);
        assert_eq!(judged(0.47, 300), Verdict::Sign);
        assert_eq!(judged(60.0, 3), Verdict::Fails);
    }
}
