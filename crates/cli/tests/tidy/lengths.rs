//! Checks: files and functions fit a sitting, tests included.

use std::cmp::Reverse;

use crate::Finding;
use crate::sources::Sources;

const FILE_LINES_MAX: usize = 700;
const FUNCTION_LINES_MAX: usize = 70;

pub fn files(sources: &Sources) -> Vec<Finding> {
    let mut long: Vec<_> = sources.rust().map(|(file, _)| (file.text.lines().count(), file)).collect();
    long.retain(|(lines, _)| *lines > FILE_LINES_MAX);
    long.sort_by_key(|(lines, _)| Reverse(*lines));
    let sentence = |lines| format!("{lines} lines, at most {FILE_LINES_MAX}");
    long.into_iter().map(|(lines, file)| Finding::at(&file.path, 0, sentence(lines))).collect()
}

/// Functions of too many lines, from `fn` to the closing brace.
pub fn functions(sources: &Sources) -> Vec<Finding> {
    let all =
        sources.rust().flat_map(|(file, rust)| rust.outline.functions.iter().map(move |found| (file, found)));
    let mut long: Vec<_> = all.filter(|(_, function)| function.lines > FUNCTION_LINES_MAX).collect();
    long.sort_by_key(|(_, function)| Reverse(function.lines));
    let sentence = |name: &str, lines| format!("`{name}` has {lines} lines, at most {FUNCTION_LINES_MAX}");
    long.into_iter()
        .map(|(file, found)| Finding::at(&file.path, found.line, sentence(&found.name, found.lines)))
        .collect()
}

#[test]
fn files_fit_a_sitting() {
    crate::holds("file lengths", files(Sources::repository()));
}

#[test]
fn a_long_file_is_noticed() {
    let text = "// A line.\n".repeat(FILE_LINES_MAX);
    assert!(files(&Sources::seeded(&[("crates/a/tests/a.rs", &text)])).is_empty());
    let text = format!("{text}\n");
    assert_eq!(files(&Sources::seeded(&[("crates/a/tests/a.rs", &text)])).len(), 1);
}

#[test]
fn functions_fit_a_screen() {
    crate::holds("function lengths", functions(Sources::repository()));
}

#[test]
fn a_long_function_is_noticed() {
    let text = format!("struct A;\nimpl A {{\n    fn f() {{\n{}    }}\n}}\n", "        g();\n".repeat(68));
    assert!(functions(&Sources::seeded(&[("crates/a/tests/a.rs", &text)])).is_empty());
    let found = functions(&Sources::seeded(&[(
        "crates/a/tests/a.rs",
        &text.replace("        g();\n    }", "g(\n);}"),
    )]));
    assert_eq!(found.len(), 0);
    let found = functions(&Sources::seeded(&[("crates/a/tests/a.rs", &text.replacen("g();", "g(\n);", 1))]));
    assert_eq!(found[0].to_string(), "crates/a/tests/a.rs:3: `f` has 71 lines, at most 70");
}
