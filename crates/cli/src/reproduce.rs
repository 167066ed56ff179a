//! The papers' claims, each held against what this implementation does.
//!
//! A [`Claim`] is an id, what the paper says, and a function that measures it. The function runs the experiment at a smaller
//! size and says what it found, and whether the claim holds, holds in sign only, or fails. A verdict is a finding, not an
//! error: nothing is tuned until a claim holds. What cannot be run here says why.
//!
//! To add a claim: write a function from [`Setting`] to [`Measured`] in the file of its paper, and put it in the claim's
//! row there.
//!
//! | module        | paper                                                                    |
//! |---------------|--------------------------------------------------------------------------|
//! | `spitfire`    | S: Spitfire, SIGMOD 2021                                                  |
//! | `hymem`       | H: Managing Non-Volatile Memory in Database Systems, SIGMOD 2018          |
//! | `cxl`         | C: three-tier buffer management with CXL, HardBD & Active 2024            |
//! | `nvcache`     | N: NVCache, "Writes Hurt", FAST 2022                                      |
//! | `heuristicdb` | U: HeuristicDB, SYSTOR 2021; U4 and U5, under SQLite, in `sqlite`          |

mod cxl;
mod heuristicdb;
mod hymem;
mod nvcache;
mod spitfire;
mod sqlite;
mod traces;

use std::path::PathBuf;

use crate::failure::Outcome;
use crate::report::Lines;

/// How time was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Counted or simulated: the same at each run.
    Virtual,
    /// By the clock of the machine.
    Wall,
}

impl Mode {
    /// Its name in the object of `--json`.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Virtual => "virtual",
            Mode::Wall => "wall",
        }
    }
}

/// Whether what was found is what the paper says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// It was not measured.
    NotHere,
    /// Not even the direction is right.
    Fails,
    /// The direction is right, the size is not.
    Sign,
    /// The ratios are about what the paper says.
    Holds,
}

impl Verdict {
    /// Its name in the object of `--json`.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Holds => "holds",
            Verdict::Sign => "sign",
            Verdict::Fails => "fails",
            Verdict::NotHere => "not-here",
        }
    }
}

/// What was found.
pub struct Measured {
    /// The numbers that stand beside the paper's.
    pub measured: String,
    /// Whether they are what the paper says.
    pub verdict: Verdict,
    /// How it was run, and why the numbers differ.
    pub note: String,
    /// The paper's figure, drawn from our numbers.
    pub figures: Vec<Lines>,
}

/// Where experiments find what they need.
#[derive(Clone, Debug, Default)]
pub struct Setting {
    /// The shared traces, where the command line says so.
    pub traces: Option<PathBuf>,
    /// The profile of NVCache's Optane memory, instead of its machine's.
    pub optane: Option<String>,
    /// Nanoseconds that an operation computes in NVCache's claims, instead of those measured here.
    pub operation_ns: Option<u64>,
}

/// How a claim is measured.
pub enum Run {
    /// By this function.
    Here(fn(&Setting) -> Outcome<Measured>),
    /// Not at all, for this reason.
    NotHere(&'static str),
}

/// A claim of a paper.
pub struct Claim {
    /// A letter for the paper and a number.
    pub id: &'static str,
    /// What is claimed.
    pub claim: &'static str,
    /// The paper's numbers, and where they are in it.
    pub paper: &'static str,
    /// How time is measured for it.
    pub mode: Mode,
    /// How it is measured.
    pub run: Run,
}

/// A claim that is not measured.
const fn not_here(
    id: &'static str,
    mode: Mode,
    claim: &'static str,
    paper: &'static str,
    why: &'static str,
) -> Claim {
    Claim { id, claim, paper, mode, run: Run::NotHere(why) }
}

/// All claims, paper by paper.
pub fn claims() -> impl Iterator<Item = &'static Claim> {
    let papers: [&'static [Claim]; 5] =
        [spitfire::CLAIMS, hymem::CLAIMS, cxl::CLAIMS, nvcache::CLAIMS, heuristicdb::CLAIMS];
    papers.into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_claim_is_there_once() {
        let ids: Vec<&str> = claims().map(|claim| claim.id).collect();
        let numbered = |letter: char, last: u32| (1..=last).map(move |number| format!("{letter}{number}"));
        let expected: Vec<String> = [('S', 15), ('H', 11), ('C', 4), ('N', 11), ('U', 6)]
            .into_iter()
            .flat_map(|(letter, last)| numbered(letter, last))
            .collect();
        assert_eq!(ids, expected);
        assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len());
    }

    #[test]
    fn what_is_not_here_says_why() {
        for claim in claims() {
            if let Run::NotHere(why) = claim.run {
                assert!(why.len() > 20, "{}", claim.id);
            }
            assert!(!claim.claim.is_empty() && !claim.paper.is_empty(), "{}", claim.id);
        }
    }
}
