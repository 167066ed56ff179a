//! What no compiler checks: the order of folders and files, sizes, words, and links.
//!
//! Every check is a function from sources to findings. One of its tests runs it on the repository,
//! the others on sources seeded in memory that break the rule. `TERRACE_TIDY_ROOT` names another
//! checkout to run on.

use std::fmt;

mod amounts;
mod circles;
mod columns;
mod comments;
mod environment;
mod layers;
mod lengths;
mod main_path;
mod names;
mod outline;
mod pages;
mod planted;
mod prose;
mod sources;
mod types;
mod words;

/// A line that breaks a rule, and how.
#[derive(Debug)]
pub struct Finding {
    /// Path below the root, with `/`.
    pub file: String,
    /// From 1; 0 for the file as a whole.
    pub line: usize,
    /// How it breaks the rule.
    pub sentence: String,
}

impl Finding {
    /// A finding at a line of a file.
    pub fn at(file: &str, line: usize, sentence: impl Into<String>) -> Self {
        Self { file: file.to_owned(), line, sentence: sentence.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        match self.line {
            0 => write!(formatter, "{}: {}", self.file, self.sentence),
            line => write!(formatter, "{}:{line}: {}", self.file, self.sentence),
        }
    }
}

/// Fails if there are findings, and prints them.
pub fn holds(check: &str, findings: Vec<Finding>) {
    let mut text = format!("tidy: {check}: {} findings", findings.len());
    for finding in &findings {
        text.push_str(&format!("\n  {finding}"));
    }
    println!("{text}");
    assert!(findings.is_empty(), "{text}");
}

#[test]
fn every_rust_file_can_be_parsed() {
    let files = sources::Sources::repository().rust();
    let findings = files.filter_map(|(file, rust)| {
        rust.outline.error.as_ref().map(|error| Finding::at(&file.path, 0, error.clone()))
    });
    holds("syntax", findings.collect());
}

#[test]
fn a_file_that_is_no_rust_is_noticed() {
    let sources = sources::Sources::seeded(&[("crates/a/src/lib.rs", "fn fn\n")]);
    assert!(sources.rust().all(|(_, rust)| rust.outline.error.is_some()));
}
