//! What no compiler checks: that the sources name no place of the machine they were written on, leave nothing for
//! later, stay small enough to be read in a sitting, and that every planted bug has a test that is named after it.

use std::fs;
use std::path::{Path, PathBuf};

/// No file is longer, tests included.
const LINES_MAX: usize = 800;

/// Every file of the repository that people read, with its text.
fn sources() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut folders = vec![root.clone()];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of the repository can be read") {
            let path = entry.expect("an entry can be read").path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
            if path.is_dir() {
                let skipped = ["target", ".git", "corpus", "artifacts"].contains(&name.as_str());
                if !skipped {
                    folders.push(path);
                }
            } else if is_read_by_people(&name) {
                let text = fs::read_to_string(&path).expect("sources are text");
                found.push((path.strip_prefix(&root).expect("below the root").to_owned(), text));
            }
        }
    }
    assert!(found.len() > 100, "the walk has missed the sources");
    found.sort();
    found
}

fn is_read_by_people(name: &str) -> bool {
    let endings = [".rs", ".toml", ".md", ".html", ".css", ".js", ".yml"];
    name == "run" || endings.iter().any(|ending| name.ends_with(ending))
}

fn is_rust(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "rs")
}

/// Lines that contain one of `needles`, as `file:line`.
fn lines_with(needles: &[String], wanted: impl Fn(&Path) -> bool) -> Vec<String> {
    let mut hits = Vec::new();
    for (path, text) in sources().iter().filter(|(path, _)| wanted(path)) {
        for (number, line) in (1..).zip(text.lines()) {
            if needles.iter().any(|needle| line.contains(needle.as_str())) {
                hits.push(format!("{}:{number}: {}", path.display(), line.trim()));
            }
        }
    }
    hits
}

#[test]
fn no_file_names_a_place_of_one_machine() {
    // Put together here, so that this file does not name them.
    let places = [["/wo", "rk/"], ["/fa", "rm/"], ["/ro", "ot/"], ["/ho", "me/"], ["/Us", "ers/"]];
    let hits = lines_with(&places.map(|parts| parts.concat()), |_| true);
    assert!(hits.is_empty(), "machine paths:\n{}", hits.join("\n"));
}

#[test]
fn nothing_is_left_for_later() {
    let marks =
        [["TO", "DO"], ["FIX", "ME"], ["XX", "X:"], ["todo", "!("], ["unimple", "mented!("], ["db", "g!("]];
    let hits =
        lines_with(&marks.map(|parts| parts.concat()), |path| path.starts_with("crates") || is_rust(path));
    assert!(hits.is_empty(), "unfinished:\n{}", hits.join("\n"));
}

#[test]
fn files_fit_a_sitting() {
    let long: Vec<_> = sources()
        .iter()
        .filter(|(path, text)| is_rust(path) && text.lines().count() > LINES_MAX)
        .map(|(path, text)| format!("{}: {} lines", path.display(), text.lines().count()))
        .collect();
    assert!(long.is_empty(), "longer than {LINES_MAX} lines:\n{}", long.join("\n"));
}

#[test]
fn every_rust_file_says_first_what_it_is() {
    let silent: Vec<_> = sources()
        .iter()
        .filter(|(path, text)| is_rust(path) && !text.trim_start().starts_with("//!"))
        // A fuzz target must begin with an attribute of the crate.
        .filter(|(_, text)| !text.starts_with("#![no_main]"))
        .map(|(path, _)| path.display().to_string())
        .collect();
    assert!(silent.is_empty(), "without an opening comment:\n{}", silent.join("\n"));
}

#[test]
fn every_page_of_the_documentation_that_is_linked_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut dangling = Vec::new();
    for (path, text) in sources().iter().filter(|(path, _)| path.extension().is_some_and(|e| e == "md")) {
        for rest in text.split("](").skip(1) {
            let link = rest.split([')', '#']).next().unwrap_or_default();
            let is_local = !link.is_empty() && !link.contains("://");
            let folder = root.join(path.parent().unwrap_or(Path::new("")));
            if is_local && !folder.join(link).exists() {
                dangling.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert!(dangling.is_empty(), "links to nothing:\n{}", dangling.join("\n"));
}

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

/// What stands between `start` and the next `end` in `text`.
fn between<'t>(text: &'t str, start: &str, end: &str) -> &'t str {
    let from = text.split_once(start).unwrap_or_else(|| panic!("{start:?} is not there")).1;
    from.split_once(end).unwrap_or_else(|| panic!("{end:?} does not follow {start:?}")).0
}

#[test]
fn every_planted_bug_has_its_row_and_a_test_named_after_it() {
    let sources = sources();
    let text = |name: &str| {
        let found = sources.iter().find(|(path, _)| path.ends_with(name));
        &found.unwrap_or_else(|| panic!("{name} is not there")).1
    };
    let planted = text("engine/src/planted.rs");
    let variants: Vec<_> = between(planted, "pub(crate) enum Bug {", "\n}")
        .lines()
        .filter_map(|line| line.trim().strip_suffix(','))
        .collect();
    assert!(variants.len() > 20);
    // Faults are compiled into the library's own tests alone.
    let is_run = |path: &Path| is_rust(path) && path.starts_with("crates/engine/src");
    let tests: String =
        sources.iter().filter(|(path, _)| is_run(path)).map(|(_, text)| text.as_str()).collect();
    // The second form is a line of the macro that makes the tests of the crash harness.
    let is_test =
        |name: &str| tests.contains(&format!("fn {name}()")) || tests.contains(&format!("    {name}: "));
    let mut missing = Vec::new();
    for bug in variants {
        let row = text("docs/testing.md").lines().find(|line| line.starts_with(&format!("| {bug} ")));
        let Some(row) = row else {
            missing.push(format!("{bug} has no row in docs/testing.md"));
            continue;
        };
        let catcher = format!("catches_{}", snake_case(bug));
        let named: Vec<_> = row.split('`').skip(1).step_by(2).collect();
        if !named.contains(&catcher.as_str()) {
            missing.push(format!("the row of {bug} does not name {catcher}"));
        }
        let absent = named.into_iter().filter(|name| !is_test(name));
        missing.extend(absent.map(|name| format!("{bug}: there is no test {name}")));
    }
    assert!(missing.is_empty(), "planted bugs:\n{}", missing.join("\n"));
}
