//! Check: docs/testing.md counts the planted bugs of the engine, and a test is named after each.

use crate::Finding;
use crate::sources::Sources;

const PAGE: &str = "docs/testing.md";
/// The package whose bugs are looked up; the page has a row for each package.
const PACKAGE: &str = "engine";
const BUGS_MIN: usize = 20;

/// `SkipLogSync` as it is written in the name of a function: `skip_log_sync`.
fn snake_case(name: &str) -> String {
    let mut snake = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !snake.is_empty() {
            snake.push('_');
        }
        snake.extend(letter.to_lowercase());
    }
    snake
}

/// The variants of `enum Bug`, in whatever file of the package it is, with their lines.
fn bugs(sources: &Sources) -> Vec<(&str, usize, &str)> {
    let mut bugs = Vec::new();
    for (file, _, module) in sources.product() {
        if module.package != PACKAGE {
            continue;
        }
        let lines = (1..).zip(file.text.lines());
        let inside = lines.skip_while(|(_, line)| !line.trim_end().ends_with("enum Bug {")).skip(1);
        let inside = inside.take_while(|(_, line)| *line != "}");
        let variants = inside.filter_map(|(number, line)| Some((number, line.trim().strip_suffix(',')?)));
        bugs.extend(variants.map(|(number, name)| (file.path.as_str(), number, name)));
    }
    bugs
}

/// The tests that a file of the package may have: functions, and lines of the crash harness' macro.
fn is_test(sources: &Sources, name: &str) -> bool {
    let (function, line) = (format!("fn {name}()"), format!("    {name}: "));
    // Faults are compiled into the library's own tests alone.
    let folder = format!("crates/{PACKAGE}/src/");
    let files = sources.files.iter().filter(|file| file.rust.is_some() && file.path.starts_with(&folder));
    files.into_iter().any(|file| file.text.contains(&function) || file.text.contains(&line))
}

pub fn findings(sources: &Sources) -> Vec<Finding> {
    let page = sources.text(PAGE).unwrap_or_default();
    let row = page.lines().find_map(|line| line.strip_prefix("| engine | ")).unwrap_or_default();
    let counted = row.split(',').next().and_then(|count| count.parse::<usize>().ok());
    let bugs = bugs(sources);
    let mut findings = Vec::new();
    if bugs.len() < BUGS_MIN {
        let sentence = format!("has {} planted bugs, at least {BUGS_MIN} are expected", bugs.len());
        findings.push(Finding::at(&format!("crates/{PACKAGE}/src"), 0, sentence));
    }
    if counted != Some(bugs.len()) {
        let sentence = format!("counts {} planted bugs, there are {}", counted.unwrap_or(0), bugs.len());
        findings.push(Finding::at(PAGE, 0, sentence));
    }
    for (file, line, bug) in bugs {
        let catcher = format!("catches_{}", snake_case(bug));
        if !is_test(sources, &catcher) {
            findings.push(Finding::at(file, line, format!("{bug}: there is no test {catcher}")));
        }
    }
    findings
}

#[test]
fn every_planted_bug_is_counted_and_has_a_test_named_after_it() {
    crate::holds("planted bugs", findings(Sources::repository()));
}

#[test]
fn a_planted_bug_that_is_not_counted_or_has_no_test_is_noticed() {
    let bugs: String = ('A'..='T').map(|letter| format!("    /// One.\n    {letter}x,\n")).collect();
    let tests: String = ('a'..='s').map(|letter| format!("fn catches_{letter}x() {{}}\n")).collect();
    let row = "| engine | 20, in a file |\n";
    let text = format!("pub(crate) enum Bug {{\n{bugs}}}\n{tests}");
    let found = |row: &str, text: &str| {
        let sources = Sources::seeded(&[(PAGE, row), ("crates/engine/src/anywhere.rs", text)]);
        findings(&sources).into_iter().map(|finding| finding.sentence).collect::<Vec<_>>()
    };
    assert_eq!(found(row, &text), ["Tx: there is no test catches_tx"]);
    let macro_line = format!("{text}caught! {{\n    catches_tx: 1;\n}}\n");
    assert!(found(row, &macro_line).is_empty());
    assert_eq!(found("| engine | 19 |\n", &macro_line), ["counts 0 planted bugs, there are 20"]);
    assert_eq!(found("| engine | 19, in a file |\n", &macro_line), ["counts 19 planted bugs, there are 20"]);
    assert_eq!(found(row, "")[0], "has 0 planted bugs, at least 20 are expected");
}
