//! S15: the chance that a page is in DRAM after n reads.
//!
//! Everything is in the middle tier and would fit in DRAM, so that no page leaves. The first record
//! of each leaf is read again and again, in rounds.

use terrace::Replacement;
use terrace::migration::{Choice, Policy};
use terrace_common::failure::{Failure, Outcome};
use terrace_common::report::{Lines, Scale};
use terrace_common::values;

use super::setup::experiment;
use crate::claims::claim::{Measured, Setting, Verdict};
use crate::hierarchy::{Experiment, Running};

/// Rounds after which pages are counted.
const ROUNDS: [u32; 8] = [1, 2, 5, 10, 20, 50, 100, 200];
/// The probabilities that the paper compares most.
const DICE: [f64; 2] = [0.01, 0.1];
/// Standard deviations of a binomial count that are allowed.
const SIGMAS: f64 = 4.0;
/// MiB of DRAM, of the middle tier, and of data.
const DRAM: u64 = 16;
const MIDDLE: u64 = 16;
const DATA: u64 = 8;

fn fixed(dr: f64) -> Outcome<Policy> {
    Policy::new(dr, dr, 1.0, 1.0).map_err(Failure::Work)
}

fn promoted(running: &Running) -> Outcome<u64> {
    let middle = running.stats().middle;
    let none = || Failure::Work("the hierarchy has no middle tier".into());
    Ok(middle.ok_or_else(none)?.migrations.middle_to_dram)
}

fn read(running: &Running, number: u64) -> Outcome {
    match running.value(number)? {
        Some(_) => Ok(()),
        None => Err(Failure::Damaged(format!("record {number} is missing"))),
    }
}

/// The numbers of the first records of leaves: those whose read promotes a page if each read does.
fn firsts(base: &Experiment) -> Outcome<Vec<u64>> {
    base.begin(|running| {
        running.set_policy(fixed(1.0)?);
        let mut firsts = Vec::new();
        for number in (0..base.records).map(values::loaded) {
            let before = promoted(running)?;
            read(running, number)?;
            if promoted(running)? > before {
                firsts.push(number);
            }
        }
        Ok(firsts)
    })
}

/// The share of pages in DRAM after each of [`ROUNDS`].
fn shares(base: &Experiment, firsts: &[u64], dr: f64) -> Outcome<Vec<f64>> {
    base.begin(|running| {
        running.set_policy(fixed(dr)?);
        let (mut found, before) = (Vec::new(), promoted(running)?);
        for round in 1..=ROUNDS[ROUNDS.len() - 1] {
            firsts.iter().try_for_each(|&number| read(running, number))?;
            if ROUNDS.contains(&round) {
                found.push((promoted(running)? - before) as f64 / firsts.len() as f64);
            }
        }
        Ok(found)
    })
}

/// Measures the curve.
pub fn measure(_: &Setting) -> Outcome<Measured> {
    let base = experiment(DRAM, MIDDLE, DATA, "ro", 1)?.with(Replacement::ClockPaper);
    // Nothing is promoted before the reads that count.
    let base = Experiment { migration: Choice::Fixed(fixed(0.0)?).into(), filling: 0, warmup: 0, ..base };
    let firsts = firsts(&base)?;
    let shares = DICE.iter().map(|&dr| shares(&base, &firsts, dr)).collect::<Outcome<Vec<_>>>()?;
    Ok(judge(&shares, firsts.len()))
}

/// The paper's formula.
fn expected(dr: f64, reads: u32) -> f64 {
    1.0 - (1.0 - dr).powi(reads as i32)
}

fn judge(shares: &[Vec<f64>], pages: usize) -> Measured {
    let cells = || {
        DICE.iter().zip(shares).flat_map(|(&dr, row)| {
            ROUNDS.iter().zip(row).map(move |(&reads, &share)| (share, expected(dr, reads)))
        })
    };
    let near = |(share, expected): (f64, f64)| {
        let sigma = (expected * (1.0 - expected) / pages.max(1) as f64).sqrt();
        // A few pages are inner nodes, which every read may promote.
        (share - expected).abs() <= SIGMAS * sigma + 0.01
    };
    let rises = shares.iter().all(|row| row.is_sorted() && row.first() < row.last());
    let verdict = match (cells().all(near), rises) {
        (true, _) => Verdict::Holds,
        (_, true) => Verdict::Sign,
        _ => Verdict::Fails,
    };
    let row = |(&dr, row): (&f64, &Vec<f64>)| {
        let found: Vec<String> = row.iter().map(|share| format!("{share:.3}")).collect();
        let paper: Vec<String> = ROUNDS.iter().map(|&reads| format!("{:.3}", expected(dr, reads))).collect();
        format!(
            "D_r {dr}, promotions per leaf, with inner nodes: {} (formula {})",
            found.join(", "),
            paper.join(", ")
        )
    };
    let points = |values: &mut dyn Iterator<Item = f64>| -> Vec<(f64, f64)> {
        ROUNDS.iter().map(|&reads| f64::from(reads)).zip(values).collect()
    };
    let lines = Lines {
        scale: Scale::Logarithmic,
        ..Lines::new(
            "Chance of being in DRAM, S15",
            "reads of a page",
            "promotions per leaf, those of inner nodes included",
        )
    };
    let lines = DICE
        .iter()
        .zip(shares)
        .fold(lines, |lines, (dr, row)| lines.line(format!("D_r {dr}"), points(&mut row.iter().copied())));
    let figure = DICE.iter().fold(lines, |lines, &dr| {
        lines.paper(format!("D_r {dr}"), points(&mut ROUNDS.iter().map(|&reads| expected(dr, reads))))
    });
    Measured {
        measured: format!(
            "after {} reads of each of {pages} leaves: {}",
            ROUNDS.map(|reads| reads.to_string()).join(", "),
            DICE.iter().zip(shares).map(row).collect::<Vec<_>>().join("; ")
        ),
        verdict,
        note: format!(
            "All data in Optane, and DRAM that holds them, so no page leaves. Holds: each share within {SIGMAS} standard deviations of \
             the formula, and .01 for inner nodes; sign: the shares rise."
        ),
        figures: vec![figure],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(share: impl Fn(f64, u32) -> f64) -> Verdict {
        let rows: Vec<Vec<f64>> =
            DICE.iter().map(|&dr| ROUNDS.iter().map(|&reads| share(dr, reads)).collect()).collect();
        judge(&rows, 1500).verdict
    }

    #[test]
    fn the_formula_holds_and_others_do_not() {
        assert_eq!(verdict(expected), Verdict::Holds);
        // Two dice a read, as with one for each fix of the page.
        assert_eq!(verdict(|dr, reads| expected(dr, 2 * reads)), Verdict::Sign);
        assert_eq!(verdict(|dr, reads| 1.0 - expected(dr, reads)), Verdict::Fails);
        assert_eq!(verdict(|_, _| 0.0), Verdict::Fails);
    }

    #[test]
    fn a_page_is_promoted_by_chance() {
        let measured = measure(&Setting::default()).unwrap();
        assert_eq!(measured.verdict, Verdict::Holds, "{}", measured.measured);
    }
}
