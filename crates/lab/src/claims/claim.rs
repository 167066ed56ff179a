//! A claim of a paper and the result of its measurement.

use std::path::PathBuf;

use terrace_common::failure::Outcome;
use terrace_common::report::Lines;

/// The time base of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Counted or simulated, so repeatable.
    Virtual,
    /// Wall-clock time.
    Wall,
}

impl Mode {
    /// The name in `--json`.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Virtual => "virtual",
            Mode::Wall => "wall",
        }
    }
}

/// How the result compares with the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// Not measured.
    NotHere,
    /// The direction differs.
    Fails,
    /// The direction agrees, the size does not.
    Sign,
    /// The ratios roughly agree.
    Holds,
}

impl Verdict {
    /// The name in `--json`.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Holds => "holds",
            Verdict::Sign => "sign",
            Verdict::Fails => "fails",
            Verdict::NotHere => "not-here",
        }
    }
}

/// Result of an experiment.
pub struct Measured {
    /// Numbers to set against the paper's.
    pub measured: String,
    /// Comparison with the paper.
    pub verdict: Verdict,
    /// How the experiment ran, and why numbers differ.
    pub note: String,
    /// The paper's figure with our numbers.
    pub figures: Vec<Lines>,
}

/// Inputs of the experiments.
#[derive(Clone, Debug, Default)]
pub struct Setting {
    /// Directory of the shared traces, if given.
    pub traces: Option<PathBuf>,
    /// Profile of NVCache's Optane memory, if not the paper's.
    pub optane: Option<String>,
    /// Profile of NVCache's disk, if not the paper's.
    pub disk: Option<String>,
    /// Nanoseconds of computation per operation in NVCache's claims, if not our measurement.
    pub operation_ns: Option<u64>,
    /// NVCache's claims without the page cache that the paper's machine had.
    pub no_page_cache: bool,
    /// NVCache's claims over a page file with so much room that it is hardly cleaned.
    pub no_cleaning: bool,
    /// Data and transactions of the claims on PostgreSQL, relative to their own.
    pub postgresql_scale: Option<f64>,
}

/// A claim of a paper.
pub struct Claim {
    /// Paper letter and number.
    pub id: &'static str,
    /// The statement.
    pub claim: &'static str,
    /// The paper's numbers and where they are.
    pub paper: &'static str,
    /// The time base.
    pub mode: Mode,
    /// The measurement.
    pub measure: fn(&Setting) -> Outcome<Measured>,
}
