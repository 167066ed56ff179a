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
use terrace_common::report::{self, Lines, Report};

use crate::args::ReproduceArgs;
use crate::claims::{Claim, Measured, Setting, Verdict, claims, lack, missing_trace};

/// The object of `--json`.
#[derive(Debug, Serialize)]
struct Chosen {
    claims: Vec<ClaimFound>,
    /// File of the report; null without --out.
    report: Option<String>,
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
    let names = names(&args.claims);
    let is_list = names == ["list"];
    let chosen = chosen(&names)?;
    let setting = Setting {
        traces: args.traces.clone(),
        optane: args.optane.clone(),
        disk: args.disk.clone(),
        operation_ns: args.operation_ns,
        no_page_cache: args.no_page_cache,
        no_cleaning: args.no_cleaning,
        postgresql_scale: args.postgresql_scale,
    };
    let out = args.out.as_ref().filter(|_| !is_list);
    if let Some(traces) = args.traces.as_ref().filter(|_| !is_list) {
        check_traces(traces, &chosen, &setting)?;
    }
    if let Some(out) = out {
        make_directory(out)?;
    }
    let all = chosen.len();
    let mut found = Vec::with_capacity(all);
    for (number, claim) in (1..).zip(chosen) {
        found.push(match is_list {
            true => ClaimFound { verdict: None, ..listed(claim, &setting) },
            false => {
                eprintln!("terrace: {} ({number} of {all})", claim.id);
                interrupt::at_once(|| measure(claim, &setting))?
            }
        });
    }
    let report = out.map(|out| write_report(out, &mut found)).transpose()?;
    let found = Chosen { claims: found, report };
    match args.output.json {
        true => print_json(output, &found),
        false if is_list => show_list(&found, output),
        false => show(&found, output),
    }
}

/// The names on the command line, between which may be commas.
fn names(given: &[String]) -> Vec<&str> {
    given.iter().flat_map(|names| names.split(',')).filter(|name| !name.is_empty()).collect()
}

/// The claims of these names, in the papers' order.
fn chosen(names: &[&str]) -> Outcome<Vec<&'static Claim>> {
    if let [name] = names
        && ["all", "list"].contains(name)
    {
        return Ok(claims().collect());
    }
    let unknown = names.iter().find(|name| !claims().any(|claim| claim.id.eq_ignore_ascii_case(name)));
    if let Some(name) = unknown {
        return Err(Failure::Usage(format!("unknown claim {name:?}; see `terrace reproduce list`")));
    }
    if names.is_empty() {
        return Err(Failure::Usage("no claim is named; see `terrace reproduce list`".to_owned()));
    }
    let is_named = |claim: &&Claim| names.iter().any(|name| claim.id.eq_ignore_ascii_case(name));
    Ok(claims().filter(is_named).collect())
}

/// Checks that a directory of traces given by the user has those of the claims, before any claim
/// takes its time.
fn check_traces(traces: &Path, chosen: &[&Claim], setting: &Setting) -> Outcome {
    match chosen.iter().find_map(|claim| Some((claim, missing_trace(claim, setting)?))) {
        Some((claim, file)) => Err(Failure::Work(format!(
            "no {file} in {}, and {} replays it",
            terrace_common::escape::path(traces),
            claim.id
        ))),
        None => Ok(()),
    }
}

fn listed(claim: &Claim, setting: &Setting) -> ClaimFound {
    let measured = Measured {
        measured: String::new(),
        verdict: Verdict::NotHere,
        note: lack(claim, setting).unwrap_or_else(|| "can be measured".to_owned()),
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

/// Makes the directory of the report, before claims take their time.
fn make_directory(out: &Path) -> Outcome {
    if out.extension().is_some_and(|ending| ending == "html") {
        let why = format!("--out names a directory, for reproduce.html and the figures: {}", out.display());
        return Err(Failure::Usage(why));
    }
    fs::create_dir_all(out).map_err(|error| Failure::file("making the directory", out, error))
}

/// Writes figures and report, records the figures' files in the claims, and returns the report's.
fn write_report(out: &Path, found: &mut [ClaimFound]) -> Outcome<String> {
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
    let file = out.join("reproduce.html");
    page.write(&file).map(|()| file.display().to_string())
}

fn show_list(found: &Chosen, output: &mut dyn Write) -> Outcome {
    for claim in &found.claims {
        print(output, format_args!("{:<13} {}: {}\n", claim.id, claim.claim, claim.note))?;
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
    match &found.report {
        Some(report) => print(output, format_args!("report: {report}\n")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(claims: &[&str]) -> ReproduceArgs {
        ReproduceArgs {
            claims: claims.iter().map(|id| (*id).to_owned()).collect(),
            out: None,
            traces: Some("no-such-directory".into()),
            optane: None,
            disk: None,
            operation_ns: None,
            no_page_cache: false,
            no_cleaning: false,
            postgresql_scale: None,
            output: terrace_common::tiers::OutputArgs::default(),
        }
    }

    fn text(args: &ReproduceArgs) -> Outcome<String> {
        let mut output = Vec::new();
        run(args, &mut output).map(|()| String::from_utf8(output).unwrap())
    }

    fn json(claims: &[&str]) -> serde_json::Value {
        let mut args = args(claims);
        args.output.json = true;
        serde_json::from_str(&text(&args).unwrap()).unwrap()
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
        assert_eq!(names(&["U1,,C3".into(), "S1".into()]), ["U1", "C3", "S1"]);
        assert_eq!(chosen(&["C3", "S1"]).unwrap().len(), 2);
        assert_eq!(chosen(&[]).map(|_| ()).unwrap_err().code(), 2);
        let claims = found["claims"].as_array().unwrap();
        let ids: Vec<&str> = claims.iter().map(|claim| claim["id"].as_str().unwrap()).collect();
        assert_eq!(ids, ["S8", "C3"]);
        for key in ["claim", "paper", "measured", "mode", "verdict", "note", "figure"] {
            assert!(claims[0].get(key).is_some(), "{key}");
        }
        let listed = json(&["list"]);
        let listed = listed["claims"].as_array().unwrap();
        assert!(listed.len() == 50 && listed.iter().all(|claim| claim["verdict"].is_null()), "{listed:?}");
        assert_eq!(chosen(&["U9"]).map(|_| ()).unwrap_err().code(), 2);
    }

    #[test]
    fn a_given_directory_without_the_trace_is_an_error() {
        let error = text(&args(&["C3,U1"])).unwrap_err();
        assert_eq!(error.code(), 1);
        let told = error.to_string();
        assert_eq!(told, "no pg_tpch.pgt.zst in no-such-directory, and U1 replays it");
    }

    #[test]
    fn the_list_says_which_claims_need_traces() {
        let listed = json(&["list"]);
        let listed = listed["claims"].as_array().unwrap();
        let needy: Vec<&str> = listed
            .iter()
            .filter(|claim| claim["note"] == "needs traces")
            .map(|claim| claim["id"].as_str().unwrap())
            .collect();
        assert_eq!(needy, ["U3"]);
        assert!(listed.iter().any(|claim| claim["note"] == "can be measured"));
    }

    #[test]
    fn the_report_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("out");
        let told = text(&ReproduceArgs { out: Some(out.clone()), ..args(&["C3"]) }).unwrap();
        let report = out.join("reproduce.html");
        assert!(told.ends_with(&format!("report: {}\n", report.display())), "{told}");
        assert!(report.exists());
    }
}
