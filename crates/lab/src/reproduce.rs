//! `terrace reproduce`: measures the papers' claims, with verdicts, figures and a report.
//!
//! Any verdict is a success of the command. With `--out`, the directory gets `reproduce.html` and
//! one figure per chart: `U1.svg`, `U1-2.svg` and so on.

use std::fs;
use std::io::Write;
use std::path::Path;

use serde::Serialize;
use terrace_common::failure::{Failure, Outcome};
use terrace_common::interrupt;
use terrace_common::output::{print, print_json};
use terrace_common::progress::Progress;
use terrace_common::report::{self, Lines, Report};

use crate::args::ReproduceArgs;
use crate::claims::{Claim, Measured, Setting, Verdict, claims};

/// The object of `--json`.
#[derive(Debug, Serialize)]
struct Chosen {
    claims: Vec<ClaimFound>,
}

/// One claim in `--json`.
#[derive(Debug, Serialize)]
struct ClaimFound {
    id: &'static str,
    claim: &'static str,
    /// The paper's numbers.
    paper: &'static str,
    /// Our numbers; null if not measured.
    measured: Option<String>,
    mode: &'static str,
    /// Null in a list, without measurement.
    verdict: Option<&'static str>,
    note: String,
    /// File of the first figure; null without --out.
    figure: Option<String>,
    #[serde(skip)]
    drawn: Vec<Lines>,
    #[serde(skip)]
    holds: Verdict,
}

/// Lists or measures claims.
pub fn run(args: &ReproduceArgs, output: &mut dyn Write) -> Outcome {
    let is_list = args.claims == ["list"];
    let chosen = chosen(&args.claims)?;
    let setting =
        Setting { traces: args.traces.clone(), optane: args.optane.clone(), operation_ns: args.operation_ns };
    let out = args.out.as_ref().filter(|_| !is_list);
    if let Some(out) = out {
        make_directory(out)?;
    }
    let bar = Progress::new("reproducing", "claims", chosen.len() as u64);
    let mut found = Vec::with_capacity(chosen.len());
    for claim in chosen {
        found.push(match is_list {
            true => ClaimFound { verdict: None, ..listed(claim) },
            false => interrupt::at_once(|| measure(claim, &setting))?,
        });
        bar.add(1);
    }
    drop(bar);
    if let Some(out) = out {
        write_report(out, &mut found)?;
    }
    let found = Chosen { claims: found };
    match args.output.json {
        true => print_json(output, &found),
        false if is_list => show_list(&found, output),
        false => show(&found, output),
    }
}

/// The claims named on the command line, in the papers' order.
fn chosen(names: &[String]) -> Outcome<Vec<&'static Claim>> {
    if let [name] = names
        && (name == "all" || name == "list")
    {
        return Ok(claims().collect());
    }
    let unknown = names.iter().find(|name| !claims().any(|claim| claim.id.eq_ignore_ascii_case(name)));
    if let Some(name) = unknown {
        return Err(Failure::Usage(format!("unknown claim {name:?}; see `terrace reproduce list`")));
    }
    let is_named = |claim: &&Claim| names.iter().any(|name| claim.id.eq_ignore_ascii_case(name));
    Ok(claims().filter(is_named).collect())
}

fn listed(claim: &Claim) -> ClaimFound {
    let measured = Measured {
        measured: String::new(),
        verdict: Verdict::NotHere,
        note: "can be measured".to_owned(),
        figures: Vec::new(),
    };
    claim_found(claim, measured)
}

fn measure(claim: &Claim, setting: &Setting) -> Outcome<ClaimFound> {
    Ok(claim_found(claim, (claim.measure)(setting)?))
}

fn claim_found(claim: &Claim, measured: Measured) -> ClaimFound {
    ClaimFound {
        id: claim.id,
        claim: claim.claim,
        paper: claim.paper,
        measured: Some(measured.measured).filter(|text| !text.is_empty()),
        mode: claim.mode.name(),
        verdict: Some(measured.verdict.name()),
        note: measured.note,
        figure: None,
        drawn: measured.figures,
        holds: measured.verdict,
    }
}

/// Writes figures and report, and records the figures' files in the claims.
/// Makes the directory of the report, before claims take their time.
fn make_directory(out: &Path) -> Outcome {
    if out.extension().is_some_and(|ending| ending == "html") {
        let why = format!("--out names a directory, for reproduce.html and the figures: {}", out.display());
        return Err(Failure::Usage(why));
    }
    fs::create_dir_all(out).map_err(|error| Failure::file("making the directory", out, error))
}

fn write_report(out: &Path, found: &mut [ClaimFound]) -> Outcome {
    let lead = "What papers claim, held against what was measured here, at smaller sizes.";
    let mut page = Report::new("The papers' claims", lead);
    for claim in found {
        page.section(&format!("{} {}", claim.id, claim.claim));
        let (sign, word) = match claim.holds {
            Verdict::Holds => (report::Verdict::Good, "Holds."),
            Verdict::Sign => (report::Verdict::Open, "Holds in sign."),
            Verdict::Fails => (report::Verdict::Bad, "Does not hold."),
            Verdict::NotHere => (report::Verdict::Open, "Not measured here."),
        };
        page.verdict(sign, word).paragraph(&format!("Paper: {}", claim.paper));
        if let Some(measured) = &claim.measured {
            page.paragraph(&format!("Here: {measured}"));
        }
        page.paragraph(&claim.note);
        for (number, lines) in (1..).zip(&claim.drawn) {
            let suffix = if number == 1 { String::new() } else { format!("-{number}") };
            let file = out.join(format!("{}{suffix}.svg", claim.id));
            report::write_figure(lines, &file)?;
            page.lines(lines);
            claim.figure.get_or_insert_with(|| file.display().to_string());
        }
    }
    page.write(&out.join("reproduce.html"))
}

fn show_list(found: &Chosen, output: &mut dyn Write) -> Outcome {
    for claim in &found.claims {
        print(output, format_args!("{:<4} {}: {}\n", claim.id, claim.claim, claim.note))?;
    }
    Ok(())
}

fn show(found: &Chosen, output: &mut dyn Write) -> Outcome {
    for claim in &found.claims {
        print(
            output,
            format_args!("{} {} [{}]: {}\n", claim.id, claim.claim, claim.mode, claim.holds.name()),
        )?;
        print(output, format_args!("  paper: {}\n", claim.paper))?;
        if let Some(measured) = &claim.measured {
            print(output, format_args!("  here:  {measured}\n"))?;
        }
        print(output, format_args!("  note:  {}\n", claim.note))?;
        if let Some(figure) = &claim.figure {
            print(output, format_args!("  figure: {figure}\n"))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(claims: &[&str]) -> serde_json::Value {
        let args = ReproduceArgs {
            claims: claims.iter().map(|id| (*id).to_owned()).collect(),
            out: None,
            traces: Some("no-such-directory".into()),
            optane: None,
            operation_ns: None,
            output: terrace_common::tiers::OutputArgs { json: true, config: None },
        };
        let mut output = Vec::new();
        run(&args, &mut output).unwrap();
        serde_json::from_slice(&output).unwrap()
    }

    #[test]
    fn a_report_that_cannot_be_written_is_refused_before_the_claims_are_measured() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("file"), "").unwrap();
        for (out, why) in [("r.html", "--out names a directory"), ("file/out", "making the directory")] {
            let refused = make_directory(&folder.path().join(out)).unwrap_err().to_string();
            assert!(refused.contains(why), "{refused}");
        }
        let out = folder.path().join("a/b");
        make_directory(&out).unwrap();
        write_report(&out, &mut []).unwrap();
        assert!(out.join("reproduce.html").exists());
    }

    #[test]
    fn claims_are_chosen_by_id_in_the_order_of_the_papers() {
        let found = json(&["c3", "S8"]);
        let claims = found["claims"].as_array().unwrap();
        let ids: Vec<&str> = claims.iter().map(|claim| claim["id"].as_str().unwrap()).collect();
        assert_eq!(ids, ["S8", "C3"]);
        for key in ["claim", "paper", "measured", "mode", "verdict", "note", "figure"] {
            assert!(claims[0].get(key).is_some(), "{key}");
        }
        let listed = json(&["list"]);
        let listed = listed["claims"].as_array().unwrap();
        assert!(listed.len() == 47 && listed.iter().all(|claim| claim["verdict"].is_null()), "{listed:?}");
        assert_eq!(chosen(&["U9".to_owned()]).map(|_| ()).unwrap_err().code(), 2);
    }

    #[test]
    fn without_its_trace_a_claim_is_not_here() {
        let found = json(&["U1"]);
        assert_eq!(found["claims"][0]["verdict"], "not-here");
        assert!(found["claims"][0]["note"].as_str().unwrap().contains("--traces"));
    }
}
