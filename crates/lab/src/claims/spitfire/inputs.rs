//! Inputs of the paper that the experiments lack: one switch each.
//!
//! The verdicts are those without them. A claim tells its figure with each alone and with all, so
//! that a cause shows. Each has a source other than the claim; none is fitted.

use terrace_common::failure::Outcome;
use terrace_io::{PAGE_NS, Profile};

use super::setup::LONG_LOG_BYTES;
use crate::hierarchy::{Experiment, Logging};

/// Computation of an operation of the authors' code, in memory with one thread, measured on the
/// machine of the other constants.
const OPERATION_NS: u64 = 2260;
/// Levels whose computation is charged apart.
const LEVELS: u64 = 3;

/// A switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Input {
    /// An operation computes as long as the authors' code does.
    Operation,
    /// Adjoining lines of one change are one access to Optane.
    Runs,
    /// Reads and updates change pages with versions, as in the authors' code.
    Versions,
    /// The log is so long that nothing is written to cut it. The paper has no size.
    Log,
    /// A core copies from and to Optane as fast as in DRAM. Not the paper's: the charge of earlier.
    Copies,
    /// A row of TPC-C computes only the looks at its pages. Not the paper's, which has no number.
    Rows,
}

impl Input {
    const ALL: [Input; 6] =
        [Input::Operation, Input::Runs, Input::Versions, Input::Log, Input::Copies, Input::Rows];

    pub(super) fn name(self) -> &'static str {
        match self {
            Input::Operation => "operations of 2.26 us",
            Input::Runs => "writes by runs of lines",
            Input::Versions => "pages of versions",
            Input::Log => "a log that is not cut",
            Input::Copies => "copies without a core's limit",
            Input::Rows => "rows of TPC-C of 360 ns",
        }
    }

    fn is_papers(self) -> bool {
        !matches!(self, Input::Copies | Input::Rows)
    }

    fn of(self, run: Experiment) -> Experiment {
        let mut hierarchy = run.hierarchy.clone();
        let mut middle = |change: &dyn Fn(Profile) -> Profile| {
            hierarchy.middle = hierarchy.middle.take().map(|(profile, bytes)| (change(profile), bytes));
        };
        match self {
            Input::Operation => {
                return Experiment { operation_ns: OPERATION_NS - LEVELS * PAGE_NS, ..run };
            }
            Input::Rows => {
                let operation_ns = if run.business.is_some() { 0 } else { run.operation_ns };
                return Experiment { operation_ns, ..run };
            }
            Input::Runs => middle(&|profile| profile.with_joined_writes(true)),
            Input::Copies => middle(&|profile| profile.without_core_limits()),
            Input::Versions => {
                return Experiment { log: Logging { versions: true, ..run.log.clone() }, ..run };
            }
            Input::Log => {
                return Experiment {
                    log: Logging { capacity_bytes: LONG_LOG_BYTES, ..run.log.clone() },
                    ..run
                };
            }
        }
        Experiment { hierarchy, ..run }
    }
}

/// Inputs that are on, a bit for each.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inputs(u8);

impl Inputs {
    pub(super) const NONE: Inputs = Inputs(0);

    pub(super) fn on(inputs: &[Input]) -> Inputs {
        Inputs(inputs.iter().fold(0, |bits, input| bits | 1 << *input as u8))
    }

    pub(super) fn of(self, run: Experiment) -> Experiment {
        let on = Input::ALL.into_iter().filter(|input| self.0 & 1 << *input as u8 != 0);
        on.fold(run, |run, input| input.of(run))
    }
}

/// The figure that `tell` gives with each of `inputs` alone, then with all that are the paper's.
pub(super) fn by_input(inputs: &[Input], tell: impl Fn(Inputs) -> Outcome<String>) -> Outcome<String> {
    let papers: Vec<Input> = inputs.iter().copied().filter(|input| input.is_papers()).collect();
    let mut told = Vec::new();
    for input in inputs {
        told.push(format!("{}: {}", input.name(), tell(Inputs::on(&[*input]))?));
    }
    if papers.len() > 1 {
        told.push(format!("all of the paper's: {}", tell(Inputs::on(&papers))?));
    }
    Ok(told.join(". "))
}

#[cfg(test)]
mod tests {
    use super::super::setup::{MIXES, experiment};
    use super::*;

    #[test]
    fn each_input_changes_what_its_name_says() {
        let with = |inputs: &[Input]| Inputs::on(inputs).of(experiment(8, 32, 64, MIXES[0], 1).unwrap());
        let (none, all) = (with(&[]), with(&Input::ALL[..4]));
        assert_eq!(with(&[Input::Operation]).operation_ns + LEVELS * PAGE_NS, 2260);
        assert_eq!(all.operation_ns, with(&[Input::Operation]).operation_ns);
        let middle = |run: &Experiment| run.hierarchy.middle.clone().unwrap().0;
        assert!(!middle(&none).joins_writes() && middle(&all).joins_writes());
        assert!(middle(&all).core_gb_s(terrace_io::Direction::Read) < 4.0);
        let copies = middle(&with(&[Input::Copies]));
        assert_eq!(copies.core_gb_s(terrace_io::Direction::Read), f64::INFINITY);
        assert!(!none.log.versions && all.log.versions);
        assert!(all.log.capacity_bytes > none.log.capacity_bytes);
    }

    #[test]
    fn each_is_told_alone_then_the_papers_together() {
        let told = by_input(&[Input::Runs, Input::Log, Input::Copies], |inputs| {
            Ok(format!("{} on", inputs.0.count_ones()))
        });
        let told = told.unwrap();
        assert_eq!(told.matches("1 on").count(), 3, "{told}");
        assert!(told.ends_with("all of the paper's: 2 on"), "{told}");
    }
}
