//! The papers' claims, compared with this implementation.
//!
//! A [`Claim`] has an id, the paper's statement and a function that runs the experiment at a
//! smaller size. The verdict is: holds, holds in sign only, or fails. A verdict is a finding, not
//! an error; nothing is tuned to make a claim hold. Without its trace a claim is not measured.
//!
//! To add a claim, write a function from [`Setting`] to [`Measured`] in its paper's file and add a
//! row there.
//!
//! | module        | paper                                                             |
//! |---------------|-------------------------------------------------------------------|
//! | `spitfire`    | S: Spitfire, SIGMOD 2021                                          |
//! | `hymem`       | H: Managing Non-Volatile Memory in Database Systems, SIGMOD 2018  |
//! | `cxl`         | C: three-tier buffer management with CXL, HardBD & Active 2024    |
//! | `nvcache`     | N: NVCache, "Writes Hurt", FAST 2022                              |
//! | `heuristicdb` | U: HeuristicDB, SYSTOR 2021; U4 to U6, under SQLite, in `sqlite`  |
//!
//! An id such as `U4-postgresql` is the same claim on a PostgreSQL server, if one is here.

mod claim;
mod cxl;
mod heuristicdb;
mod hymem;
mod nvcache;
mod postgresql;
mod replayed;
mod spitfire;
mod sqlite;
mod traces;

pub use claim::{Claim, Measured, Setting, Verdict};

/// The trace that `claim` replays. U1 and U2 go without it by SQLite's recordings alone.
fn trace_of(claim: &Claim) -> Option<&'static str> {
    match claim.id {
        "U1" | "U2" => Some("pg_tpch.pgt.zst"),
        "U3" => Some("pg_oltp.pgt.zst"),
        _ => None,
    }
}

/// The trace of `claim` that is not there.
pub fn missing_trace(claim: &Claim, setting: &Setting) -> Option<&'static str> {
    trace_of(claim).filter(|trace| traces::find(setting, trace).is_none())
}

/// Why `claim` cannot be measured, if so.
pub fn lack(claim: &Claim, setting: &Setting) -> Option<String> {
    match claim.id {
        "U3" => missing_trace(claim, setting).map(|_| "needs traces".to_owned()),
        "C4" => {
            let nodes = terrace_io::nodes().iter().filter(|node| node.bytes > 0).count();
            (nodes < 2).then(|| "needs two nodes".to_owned())
        }
        id => postgresql::lack(id),
    }
}

/// All claims, grouped by paper.
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
        let all: Vec<&str> = claims().map(|claim| claim.id).collect();
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
        let (again, ids): (Vec<&str>, Vec<&str>) = all.iter().partition(|id| id.contains('-'));
        assert_eq!(again, ["N6-postgresql", "U4-postgresql", "U5-postgresql"]);
        let numbered = |letter: char, last: u32| (1..=last).map(move |number| format!("{letter}{number}"));
        let expected: Vec<String> = [('S', 15), ('H', 11), ('C', 4), ('N', 11), ('U', 6)]
            .into_iter()
            .flat_map(|(letter, last)| numbered(letter, last))
            .collect();
        assert_eq!(ids, expected);
    }

    /// The measurement looks for the same file as the list.
    #[test]
    fn without_its_trace_a_claim_is_not_here() {
        let setting = Setting { traces: Some("no-such-directory".into()), ..Setting::default() };
        let needy: Vec<&Claim> =
            claims().filter(|claim| lack(claim, &setting).as_deref() == Some("needs traces")).collect();
        assert_eq!(needy.iter().map(|claim| claim.id).collect::<Vec<_>>(), ["U3"]);
        let found = (needy[0].measure)(&setting).unwrap();
        let file = missing_trace(needy[0], &setting).unwrap();
        assert_eq!(found.verdict, Verdict::NotHere);
        assert!(found.note.contains(file) && found.note.contains("--traces"), "{}", found.note);
    }

    #[test]
    fn every_claim_has_its_statement_and_the_papers_numbers() {
        let is_told = |claim: &Claim| !claim.claim.is_empty() && !claim.paper.is_empty();
        assert!(claims().all(is_told));
    }
}
