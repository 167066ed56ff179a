//! Paragraphs of comments and of markdown, without tables, headings and code.

use crate::comments::Comment;
use crate::sources::Source;

/// Words of a paragraph, each with its line.
pub type Paragraph<'t> = Vec<(usize, &'t str)>;

/// Lines of text, each with its number.
type Lines<'t> = Vec<(usize, &'t str)>;

fn lines(source: &Source) -> Lines<'_> {
    match &source.rust {
        Some(rust) => {
            rust.lexed.comments.iter().map(|comment| (comment.line, comment.text.as_str())).collect()
        }
        None => (1..).zip(source.text.lines()).collect(),
    }
}

/// Whether two lines are of one paragraph, as far as their numbers say.
fn follow(before: usize, line: usize) -> bool {
    before + 1 == line
}

fn is_fence(text: &str) -> bool {
    text.trim_start().starts_with("```") || text.trim_start().starts_with("~~~")
}

/// Headings, rows of tables, definitions of links, indented code: each ends a paragraph.
fn is_no_prose(text: &str) -> bool {
    let trimmed = text.trim();
    let is_heading = trimmed.starts_with("# ") || trimmed.starts_with("##");
    let is_definition = trimmed.starts_with('[') && trimmed.contains("]: ");
    trimmed.is_empty() || is_heading || trimmed.starts_with('|') || is_definition || text.starts_with("    ")
}

/// Whether the line begins an item of a list.
fn is_item(text: &str) -> bool {
    let text = text.trim_start();
    let number = text.trim_start_matches(|letter: char| letter.is_ascii_digit());
    text.starts_with("- ")
        || text.starts_with("* ")
        || (number.len() < text.len() && number.starts_with(". "))
}

/// The paragraphs of a page, or of the comments of a Rust file.
pub fn paragraphs(source: &Source) -> Vec<Paragraph<'_>> {
    let mut paragraphs: Vec<Paragraph<'_>> = vec![Vec::new()];
    let (mut is_code, mut last) = (false, 0);
    for (number, text) in lines(source) {
        // A comment that ends within a fence does not open one.
        is_code &= follow(last, number);
        if !follow(last, number) || is_item(text) {
            paragraphs.push(Vec::new());
        }
        last = number;
        if is_fence(text) {
            is_code = !is_code;
        }
        if is_code || is_fence(text) || is_no_prose(text) {
            paragraphs.push(Vec::new());
            continue;
        }
        let words = without_code(text).map(|word| (number, word));
        paragraphs.last_mut().expect("one was begun").extend(words);
    }
    paragraphs.retain(|paragraph| !paragraph.is_empty());
    paragraphs
}

/// Words, a span of code as one of them.
fn without_code(text: &str) -> impl Iterator<Item = &str> {
    let mut parts: Vec<&str> = Vec::new();
    for (index, part) in text.split('`').enumerate() {
        if index % 2 == 1 {
            parts.push("`");
        } else {
            parts.extend(part.split_whitespace());
        }
    }
    parts.into_iter()
}

/// Words without marks at their ends, in lower case, as patterns compare them.
pub fn bare(word: &str) -> String {
    let is_mark = |letter: char| !letter.is_alphanumeric();
    word.trim_matches(is_mark).to_lowercase()
}

/// Whether a sentence ends with this word.
pub fn ends_sentence(word: &str) -> bool {
    let word = word.trim_end_matches(['*', '_', ')', '"', '\'']);
    word.ends_with(['.', '!', '?', ':']) && !["e.g.", "i.e.", "vs."].contains(&word)
}

/// Words with a letter in them.
pub fn count_words(text: &str) -> usize {
    text.split_whitespace().filter(|word| word.chars().any(char::is_alphabetic)).count()
}

/// Lines of comments that are no prose and may be wide: see `columns`.
pub fn is_wide_by_right(text: &str) -> bool {
    let trimmed = text.trim_start();
    trimmed.starts_with('|') || trimmed.starts_with('#') || trimmed.contains("](") || trimmed.contains("://")
}

/// Whether each line of these comments is within a fence.
pub fn fenced(comments: &[Comment]) -> impl Iterator<Item = (&Comment, bool)> {
    let (mut is_code, mut last) = (false, 0);
    comments.iter().map(move |comment| {
        is_code &= follow(last, comment.line);
        last = comment.line;
        is_code ^= is_fence(&comment.text);
        (comment, is_code)
    })
}

#[test]
fn paragraphs_leave_tables_and_code_out() {
    let text = "# Head\n\nOne two\nthree `a b`.\n- four\n```\ncode\n```\n| table |\nfive\n";
    let source = Source { path: "a.md".to_owned(), text: text.to_owned(), rust: None };
    let found: Vec<String> = paragraphs(&source)
        .iter()
        .map(|words| words.iter().map(|(line, word)| format!("{line}:{word}")).collect::<Vec<_>>().join(" "))
        .collect();
    assert_eq!(found, ["3:One 3:two 4:three 4:` 4:.", "5:- 5:four", "10:five"]);
}
