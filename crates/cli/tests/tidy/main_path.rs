//! Check: the files and functions that ARCHITECTURE.md names exist.
//!
//! A step of the main path is an item of a list that begins with a file and a name:
//!
//! ```text
//! - `engine/src/db/table.rs`: `Table::get` — finds the tree of the table, ...
//! ```
//!
//! The file is a path below `crates`. The name is a function of that file (`get`), a function of a
//! type or trait in it (`Table::get`), or a definition in it (`Table`, `IMAGE_BYTES`). There are at
//! least [`STEPS_MIN`] steps. A list of them leads through at most [`FILES_MAX`] files and enters
//! each once. Every other file in backticks must exist too: `table.rs` or
//! `db/table.rs` is the end of the path of some file, `db/` that of a folder.

use std::collections::BTreeSet;

use crate::Finding;
use crate::outline::Outline;
use crate::sources::Sources;

const PAGE: &str = "ARCHITECTURE.md";
const STEPS_MIN: usize = 7;
const FILES_MAX: usize = 10;

/// The file and the name of a line that has the form of a step.
fn step(line: &str) -> Option<(&str, &str)> {
    let item = line.trim_start();
    let number = item.trim_start_matches(|letter: char| letter.is_ascii_digit());
    let text = item.strip_prefix("- ").or_else(|| number.strip_prefix(". "))?;
    let (file, rest) = text.strip_prefix('`')?.split_once("`: `")?;
    let (name, _) = rest.split_once('`')?;
    file.ends_with(".rs").then_some((file, name))
}

fn has(outline: &Outline, name: &str) -> bool {
    let is_defined = |name: &str| outline.definitions.iter().any(|definition| definition.name == name);
    match name.rsplit_once("::") {
        Some((owner, function)) => {
            let is = |found: &&str| *found == owner;
            let functions = outline.functions.iter().filter(|found| found.name == function);
            functions.filter_map(|found| found.owner.as_deref()).any(|found| is(&found))
        }
        None => is_defined(name) || outline.functions.iter().any(|found| found.name == name),
    }
}

/// Names of files and folders in backticks.
fn files_in(line: &str) -> impl Iterator<Item = &str> {
    let is_path = |text: &&str| {
        let is_plain = text.chars().all(|letter| letter.is_alphanumeric() || "/_-.".contains(letter));
        is_plain && (text.ends_with(".rs") || text.ends_with('/'))
    };
    line.split('`').skip(1).step_by(2).filter(is_path)
}

/// The lists of steps: files in their order, one that follows itself once, with the lines.
fn lists(text: &str) -> Vec<Vec<(usize, &str)>> {
    let mut lists: Vec<Vec<_>> = vec![Vec::new()];
    for (number, line) in (1..).zip(text.lines()) {
        let list = lists.last_mut().expect("one was begun");
        match step(line) {
            Some((file, _)) if list.last().is_none_or(|(_, last)| *last != file) => list.push((number, file)),
            Some(_) => {}
            // A step may have several lines: the others are indented.
            None if line.is_empty() || line.starts_with(' ') => {}
            None => lists.push(Vec::new()),
        }
    }
    lists.retain(|list| !list.is_empty());
    lists
}

fn walks(text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for list in lists(text) {
        let mut entered = BTreeSet::new();
        for (line, file) in &list {
            if !entered.insert(*file) {
                findings.push(Finding::at(PAGE, *line, format!("the path enters {file} twice")));
            }
        }
        if entered.len() > FILES_MAX {
            let sentence = format!("the path leads through {} files, at most {FILES_MAX}", entered.len());
            findings.push(Finding::at(PAGE, list[0].0, sentence));
        }
    }
    findings
}

pub fn findings(sources: &Sources) -> Vec<Finding> {
    let Some(text) = sources.text(PAGE) else { return vec![Finding::at(PAGE, 0, "is not there")] };
    let mut findings = walks(text);
    let mut steps = BTreeSet::new();
    for (number, line) in (1..).zip(text.lines()) {
        if let Some((file, name)) = step(line) {
            steps.insert((file, name));
            let path = format!("crates/{file}");
            let found = sources.rust().find(|(source, _)| source.path == path);
            if !found.is_some_and(|(_, rust)| has(&rust.outline, name)) {
                findings.push(Finding::at(PAGE, number, format!("there is no `{name}` in {path}")));
            }
        }
        for file in files_in(line) {
            let ending = format!("/{}", file.trim_end_matches('/'));
            let is_there = |path: &String| format!("/{path}").ends_with(&ending);
            if !sources.paths.iter().any(is_there) {
                findings.push(Finding::at(PAGE, number, format!("there is no {file}")));
            }
        }
    }
    if steps.len() < STEPS_MIN {
        let sentence =
            format!("names {} steps of the main path, at least {STEPS_MIN} are expected", steps.len());
        findings.push(Finding::at(PAGE, 0, sentence));
    }
    findings
}

#[test]
fn the_main_path_exists() {
    crate::holds("main path", findings(Sources::repository()));
}

#[test]
fn a_step_that_does_not_exist_is_noticed() {
    let good: String = ["T::a", "T::b", "T::c", "U::d", "T", "e", "N"]
        .map(|name| format!("- `a/src/lib.rs`: `{name}` — does something (`src/lib.rs`, `src/`).\n"))
        .concat();
    let library = "struct T;\nimpl T { fn a() {} fn b() {} fn c() {} }\nimpl U for T { fn x() {} }\n\
                   trait U { fn d() {} }\nfn e() {}\nconst N: u8 = 1;\n";
    let found = |page: &str| {
        let mut sources = Sources::seeded(&[(PAGE, page), ("crates/a/src/lib.rs", library)]);
        sources.paths.insert("crates/a/src".to_owned());
        findings(&sources).iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert!(found(&good).is_empty(), "{:?}", found(&good));
    assert_eq!(found("")[0], "ARCHITECTURE.md: names 0 steps of the main path, at least 7 are expected");
    let bad =
        format!("{good}1. `a/src/lib.rs`: `T::e` — no.\n2. `b/src/lib.rs`: `T::a` — no.\nSee `x.rs`.\n");
    assert_eq!(
        found(&bad),
        [
            "ARCHITECTURE.md:8: there is no `T::e` in crates/a/src/lib.rs",
            "ARCHITECTURE.md:9: there is no `T::a` in crates/b/src/lib.rs",
            "ARCHITECTURE.md:9: there is no b/src/lib.rs",
            "ARCHITECTURE.md:10: there is no x.rs",
        ]
    );
}

#[test]
fn a_long_walk_is_noticed() {
    let list = |files: &[&str]| -> String {
        files.iter().map(|file| format!("- `{file}.rs`: `f` — does\n  more\n\n")).collect()
    };
    let ten = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];
    let twice = list(&["a", "a", "b", "a"]);
    let found: Vec<_> =
        walks(&format!("{}A fault:\n\n{twice}", list(&ten))).iter().map(ToString::to_string).collect();
    assert_eq!(found, ["ARCHITECTURE.md:42: the path enters a.rs twice"]);
    let found = walks(&format!("{}{}", list(&ten), list(&["k"])));
    assert_eq!(found[0].to_string(), "ARCHITECTURE.md:1: the path leads through 11 files, at most 10");
}
