//! Check: comments and markdown are at most 100 columns wide.
//!
//! Tables, fenced code, headings, and lines with a link may be wider.

use crate::Finding;
use crate::prose;
use crate::sources::Sources;

const COLUMNS_MAX: usize = 100;

pub fn findings(sources: &Sources) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut add = |file: &str, line, columns: usize| {
        if columns > COLUMNS_MAX {
            findings.push(Finding::at(file, line, format!("{columns} columns, at most {COLUMNS_MAX}")));
        }
    };
    for (file, rust) in sources.rust() {
        for (comment, is_code) in prose::fenced(&rust.lexed.comments) {
            if !is_code && !prose::is_wide_by_right(&comment.text) {
                add(&file.path, comment.line, comment.end);
            }
        }
    }
    for file in sources.markdown() {
        let mut is_code = false;
        for (number, line) in (1..).zip(file.text.lines()) {
            is_code ^= line.trim_start().starts_with("```");
            if !is_code && !prose::is_wide_by_right(line) {
                add(&file.path, number, line.chars().count());
            }
        }
    }
    findings
}

#[test]
fn comments_and_pages_are_narrow() {
    crate::holds("columns", findings(Sources::repository()));
}

#[test]
fn a_wide_line_is_noticed() {
    let wide = "word ".repeat(20);
    let wide = wide.trim_end();
    let page = format!("{wide} a\n| {wide} |\n# {wide}\n```\n{wide} b\n```\n[{wide}](a.md)\n");
    let code = format!(
        "//! {wide}\n/// | {wide} |\n/// ```\n/// {wide}\n/// ```\nfn f() {{}} // {wide}\nconst A: &str = \"{wide} {wide}\";\n"
    );
    let sources = Sources::seeded(&[("a.md", &page), ("crates/a/src/lib.rs", &code)]);
    let found: Vec<_> = findings(&sources).iter().map(ToString::to_string).collect();
    assert_eq!(
        found,
        [
            "crates/a/src/lib.rs:1: 103 columns, at most 100",
            "crates/a/src/lib.rs:6: 112 columns, at most 100",
            "a.md:1: 101 columns, at most 100",
        ]
    );
}
