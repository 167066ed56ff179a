//! S5: bytes written to the middle tier, by the probability that pages enter it.
//!
//! The paper counts writes in place, pages from DRAM and pages from the store. So does this. Lines
//! of headers, which a persistent tier writes to seal and unseal a frame, are counted beside.

use terrace::Replacement;
use terrace_common::failure::Outcome;
use terrace_common::report::{Lines, Scale};

use super::inputs::{Input, Inputs, by_input};
use super::setup::{MIXES, PAGE_BYTES, TPCC_NOTE, WORKLOADS, experiment, with_both};
use crate::claims::claim::{Measured, Setting, Verdict};
use crate::hierarchy::{Found, run_all};

/// Values of N; D = 1.
const STEPS: [f64; 3] = [0.01, 0.1, 1.0];
/// Bytes with N = 1 over those with N = .1, by workload (figure 8).
const PAPER: [f64; WORKLOADS.len()] = [91.8, 1.58, 1.45, 1.31];
/// Required share of the paper's ratio, either way.
const SHARE: f64 = 0.7;
const LINE_BYTES: u64 = 64;

/// Bytes by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Written {
    in_place: f64,
    from_dram: f64,
    from_store: f64,
    headers: f64,
}

impl Written {
    /// Of a measurement of `operations` operations, for each.
    fn of(found: &Found, operations: u64) -> Outcome<Written> {
        let middle = found.middle()?;
        let each = |bytes: u64| bytes as f64 / operations as f64;
        let seals = middle.persistent.map_or(0, |persistent| persistent.seals + persistent.unseals);
        Ok(Written {
            in_place: each(middle.lines_written * LINE_BYTES),
            from_dram: each((middle.writes.from_dram + middle.writes.from_dram_clean) * PAGE_BYTES),
            from_store: each((middle.writes.from_store + middle.writes.created) * PAGE_BYTES),
            headers: each(seals * LINE_BYTES),
        })
    }

    /// What the paper counts.
    fn counted(self) -> f64 {
        self.in_place + self.from_dram + self.from_store
    }
}

/// Runs the experiment.
pub fn measure(_: &Setting) -> Outcome<Measured> {
    let mut measured = with_both(|replacement| measure_with(replacement, Inputs::NONE))?;
    let told = by_input(&[Input::Versions, Input::Log], |inputs| {
        Ok(measure_with(Replacement::ClockPaper, inputs)?.measured)
    })?;
    measured.note += &format!(" With the paper's inputs, CLOCK. {told}.");
    Ok(measured)
}

fn measure_with(replacement: Replacement, inputs: Inputs) -> Outcome<Measured> {
    let mut experiments = Vec::new();
    for mix in WORKLOADS {
        let base = inputs.of(experiment(8, 32, 64, mix, 1)?.with(replacement));
        for step in STEPS {
            experiments.push(base.clone().lockstep(1.0, step)?);
        }
    }
    let found = run_all(&experiments)?;
    let written = found.iter().zip(&experiments).map(|(found, run)| Written::of(found, run.operations));
    let written = written.collect::<Outcome<Vec<Written>>>()?;
    Ok(judge(written.as_chunks().0))
}

/// `rows` are the steps of each workload.
fn judge(rows: &[[Written; 3]]) -> Measured {
    let over = |step: usize| rows.iter().map(move |row| row[2].counted() / row[step].counted().max(1e-9));
    let near = |(ratio, paper): (f64, f64)| (SHARE..=1.0 / SHARE).contains(&(ratio / paper));
    let order: Vec<f64> = over(1).take(MIXES.len()).collect();
    let fewer = over(0).chain(over(1)).all(|ratio| ratio > 1.0);
    let verdict = match (over(1).zip(PAPER).all(near), fewer && order.is_sorted_by(|a, b| a > b)) {
        (true, _) => Verdict::Holds,
        (false, true) => Verdict::Sign,
        _ => Verdict::Fails,
    };
    let tell = |((mix, row), (tenth, hundredth)): ((&str, &[Written; 3]), (f64, f64))| {
        let kib = |bytes: f64| format!("{:.2}", bytes / 1024.0);
        let Written { in_place, from_dram, from_store, headers } = row[2];
        format!(
            "{} {tenth:.2} times fewer at N = .1, {hundredth:.1} at .01; KiB an operation with N = 1: {} from the store, {} from DRAM, {} in \
             place, headers {:.4}",
            mix.to_uppercase(),
            kib(from_store),
            kib(from_dram),
            kib(in_place),
            headers / 1024.0
        )
    };
    let told: Vec<String> = WORKLOADS.into_iter().zip(rows).zip(over(1).zip(over(0))).map(tell).collect();
    let lines = Lines::new("Writes to NVM", "N", "bytes, of N = 1");
    let lines = Lines { scale: Scale::Symmetric(STEPS.to_vec()), ..lines };
    let lines = WORKLOADS.iter().zip(rows).fold(lines, |lines, (mix, row)| {
        let points = STEPS.into_iter().zip(row).map(|(n, written)| (n, written.counted() / row[2].counted()));
        lines.line(mix.to_uppercase(), points.collect())
    });
    let lines = WORKLOADS.iter().zip(PAPER).fold(lines, |lines, (mix, ratio)| {
        lines.paper(mix.to_uppercase(), vec![(STEPS[1], 1.0 / ratio), (STEPS[2], 1.0)])
    });
    Measured {
        measured: told.join("; "),
        verdict,
        note: format!(
            "One worker, N swept with D = 1 after filling with N = 1. Holds: with N = .1 all write fewer bytes than with N = 1 by {SHARE} to \
             {:.1} times the paper's factor; sign: fewer, and of YCSB's mixes reads by the largest factor, WH by the least. A page read from the store \
             enters with probability N, so reads alone write at most about 1 / N times fewer: the paper's 91.8 fits N = .01. {TPCC_NOTE}",
            1.0 / SHARE
        ),
        figures: vec![lines],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_ratios_hold_and_more_writes_fail() {
        let row = |tenth: f64| {
            [1.0 / (2.0 * tenth), 1.0 / tenth, 1.0].map(|in_place| Written {
                in_place,
                headers: 9.0,
                ..Written::default()
            })
        };
        let judged = |ratios: [f64; 4]| judge(&ratios.map(row)).verdict;
        assert_eq!(judged(PAPER), Verdict::Holds);
        assert_eq!(judged([11.0, 1.58, 1.45, 1.31]), Verdict::Sign);
        assert_eq!(judged([11.0, 1.45, 1.58, 1.31]), Verdict::Fails, "another order");
        assert_eq!(judged([11.0, 1.2, 0.9, 1.31]), Verdict::Fails, "more writes");
        assert_eq!(judged([11.0, 1.58, 1.45, 0.9]), Verdict::Fails, "more writes by TPC-C");
    }
}
