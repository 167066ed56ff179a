//! Checks of texts: no path of one machine, nothing left for later, opening comments, links.

use std::collections::BTreeSet;

use crate::Finding;
use crate::sources::{Source, Sources};

/// Lines that contain one of `needles`.
fn lines_with(sources: &Sources, needles: &[String], wanted: impl Fn(&Source) -> bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in sources.files.iter().filter(|file| wanted(file)) {
        for (number, line) in (1..).zip(file.text.lines()) {
            if needles.iter().any(|needle| line.contains(needle.as_str())) {
                findings.push(Finding::at(&file.path, number, line.trim()));
            }
        }
    }
    findings
}

fn machine_paths(sources: &Sources) -> Vec<Finding> {
    // Put together here, so that this file does not name them.
    let paths = [["/wo", "rk/"], ["/fa", "rm/"], ["/ro", "ot/"], ["/ho", "me/"], ["/Us", "ers/"]];
    lines_with(sources, &paths.map(|parts| parts.concat()), |_| true)
}

fn unfinished(sources: &Sources) -> Vec<Finding> {
    let marks =
        [["TO", "DO"], ["FIX", "ME"], ["XX", "X:"], ["todo", "!("], ["unimple", "mented!("], ["db", "g!("]];
    let is_code = |file: &Source| file.path.starts_with("crates/") || file.rust.is_some();
    lines_with(sources, &marks.map(|parts| parts.concat()), is_code)
}

fn silent(sources: &Sources) -> Vec<Finding> {
    let is_silent = |file: &&Source| {
        // A fuzz target must begin with an attribute of the crate.
        file.rust.is_some()
            && !file.text.trim_start().starts_with("//!")
            && !file.text.starts_with("#![no_main]")
    };
    let silent = sources.files.iter().filter(is_silent);
    silent.map(|file| Finding::at(&file.path, 0, "does not say first what it is")).collect()
}

/// The path that `link` leads to from a file in `folder`; none if it leaves the repository.
fn joined(folder: &str, link: &str) -> Option<String> {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in link.split('/').filter(|part| !part.is_empty()) {
        match part {
            "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// What a link to a heading has behind `#`: words in lower case with `-` between them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for line in text.lines().filter(|line| line.starts_with('#')) {
        let heading = line.trim_start_matches('#').trim().to_lowercase();
        let kept = heading.chars().filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
        anchors.insert(kept.map(|letter| if letter == ' ' { '-' } else { letter }).collect());
    }
    anchors
}

fn dangling(sources: &Sources) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in sources.markdown() {
        let folder = file.path.rsplit_once('/').map_or("", |(folder, _)| folder);
        for (number, line) in (1..).zip(file.text.lines()) {
            for rest in line.split("](").skip(1) {
                let link = rest.split([')', ' ']).next().unwrap_or_default();
                if link.contains("://") || link.starts_with("mailto:") {
                    continue;
                }
                let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
                let target = if path.is_empty() { Some(file.path.clone()) } else { joined(folder, path) };
                let is_there =
                    target.as_ref().is_some_and(|path| path.is_empty() || sources.paths.contains(path));
                if !is_there {
                    findings.push(Finding::at(
                        &file.path,
                        number,
                        format!("links to {path}, which is not there"),
                    ));
                    continue;
                }
                let page = sources.markdown().find(|page| Some(&page.path) == target.as_ref());
                if !anchor.is_empty() && !page.is_none_or(|page| anchors(&page.text).contains(anchor)) {
                    findings.push(Finding::at(
                        &file.path,
                        number,
                        format!("links to {link}, which is no heading"),
                    ));
                }
            }
        }
    }
    findings
}

#[test]
fn no_file_names_a_path_of_one_machine() {
    crate::holds("machine paths", machine_paths(Sources::repository()));
}

#[test]
fn a_machine_path_is_noticed() {
    let text = format!("//! Fine.\n// See {}x.\n", ["/wo", "rk/"].concat());
    assert_eq!(machine_paths(&Sources::seeded(&[("crates/a/src/lib.rs", &text)]))[0].line, 2);
}

#[test]
fn nothing_is_left_for_later() {
    crate::holds("unfinished", unfinished(Sources::repository()));
}

#[test]
fn what_is_left_for_later_is_noticed() {
    let text = format!("//! Fine.\nfn f() {{\n    {}\n}}\n", ["todo", "!()"].concat());
    assert_eq!(unfinished(&Sources::seeded(&[("crates/a/src/lib.rs", &text)]))[0].line, 3);
}

#[test]
fn every_rust_file_says_first_what_it_is() {
    crate::holds("opening comments", silent(Sources::repository()));
}

#[test]
fn a_file_without_an_opening_comment_is_noticed() {
    let sources =
        Sources::seeded(&[("fuzz/a.rs", "#![no_main]\n//! A.\n"), ("crates/a/src/lib.rs", "mod a;\n")]);
    assert_eq!(silent(&sources)[0].file, "crates/a/src/lib.rs");
}

#[test]
fn every_page_of_the_documentation_that_is_linked_exists() {
    crate::holds("links", dangling(Sources::repository()));
}

#[test]
fn a_link_to_nothing_is_noticed() {
    let sources = Sources::seeded(&[
        ("README.md", "[a](docs/a.md#two-words), [b](https://example.org), [c](../a.md)\n"),
        ("docs/a.md", "# Two `words`\n[a](../README.md) [b](b.md)\n[c](#one)\n[d](#two-words)\n"),
    ]);
    let found: Vec<_> = dangling(&sources).iter().map(ToString::to_string).collect();
    assert_eq!(
        found,
        [
            "README.md:1: links to ../a.md, which is not there",
            "docs/a.md:2: links to b.md, which is not there",
            "docs/a.md:3: links to #one, which is no heading",
        ]
    );
}
