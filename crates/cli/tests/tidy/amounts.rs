//! Checks: amounts of comments and of documents, and lengths of sentences.

use std::collections::BTreeMap;

use crate::Finding;
use crate::comments::Comment;
use crate::prose;
use crate::sources::{Source, Sources};

/// Of words of comments, by 100 lines of code of all packages.
const COMMENT_WORDS_MAX: usize = 150;
/// Of one package: a library has a line of documentation for each of its public fields.
const PACKAGE_COMMENT_WORDS_MAX: usize = 170;
const MARKDOWN_BYTES_MAX: usize = 250_000;
/// Mean of a page.
const SENTENCE_WORDS_MAX: f64 = 20.0;

/// Words of comments without the code of their examples, which is compiled and run.
fn words(comments: &[Comment]) -> usize {
    let mut is_example = false;
    let mut words = 0;
    for comment in comments {
        if comment.text.trim_start().starts_with("```") {
            is_example = !is_example;
        } else if !is_example {
            words += prose::count_words(&comment.text);
        }
    }
    words
}

/// Comment words and code lines of each package, and of all, without files of tests.
fn shares(sources: &Sources) -> BTreeMap<&str, (usize, usize)> {
    let mut packages: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for (_, rust, module) in sources.product() {
        for name in [module.package.as_str(), "*"] {
            let (sum, lines) = packages.entry(name).or_default();
            *sum += words(&rust.lexed.comments);
            *lines += rust.lexed.code_lines;
        }
    }
    packages
}

fn comments(sources: &Sources) -> Vec<Finding> {
    let packages = shares(sources);
    let mut findings = Vec::new();
    for (package, (words, lines)) in packages {
        let share = 100 * words / lines.max(1);
        println!("tidy: crates/{package}/src: {share} words of comments by 100 lines of code");
        let most = if package == "*" { COMMENT_WORDS_MAX } else { PACKAGE_COMMENT_WORDS_MAX };
        if share > most {
            let sentence = format!("{share} words of comments by 100 lines of code, at most {most}");
            findings.push(Finding::at(&format!("crates/{package}/src"), 0, sentence));
        }
    }
    findings
}

fn markdown(sources: &Sources) -> Vec<Finding> {
    let bytes: usize = sources.markdown().map(|file| file.text.len()).sum();
    if bytes <= MARKDOWN_BYTES_MAX {
        return Vec::new();
    }
    let largest = sources.markdown().max_by_key(|file| file.text.len()).expect("there is a page");
    let sentence =
        format!("all pages have {bytes} bytes together, at most {MARKDOWN_BYTES_MAX}; this is the largest");
    vec![Finding::at(&largest.path, 0, sentence)]
}

fn mean_sentence(source: &Source) -> f64 {
    let (mut words, mut sentences) = (0, 0);
    for paragraph in prose::paragraphs(source) {
        let mut length = 0;
        for (_, word) in &paragraph {
            length += usize::from(word.chars().any(char::is_alphanumeric) || *word == "`");
            if prose::ends_sentence(word) && length > 0 {
                (words, sentences, length) = (words + length, sentences + 1, 0);
            }
        }
        if length > 0 {
            (words, sentences) = (words + length, sentences + 1);
        }
    }
    f64::from(words as u32) / f64::from((sentences as u32).max(1))
}

fn sentences(sources: &Sources) -> Vec<Finding> {
    let means = sources.markdown().map(|file| (mean_sentence(file), file));
    let mut long: Vec<_> = means.filter(|(mean, _)| *mean > SENTENCE_WORDS_MAX).collect();
    long.sort_by(|(left, _), (right, _)| right.total_cmp(left));
    let sentence = |mean| format!("{mean:.1} words a sentence on average, at most {SENTENCE_WORDS_MAX}");
    long.into_iter().map(|(mean, file)| Finding::at(&file.path, 0, sentence(mean))).collect()
}

#[test]
fn comments_are_fewer_than_code() {
    crate::holds("comment words", comments(Sources::repository()));
}

#[test]
fn many_comments_are_noticed() {
    let found = |words: usize| {
        let text = format!("//!{}\n{}", " word".repeat(words), "fn f() {}\n\n".repeat(10));
        let tests = format!("//!{}\n", " word".repeat(1000));
        comments(&Sources::seeded(&[
            ("crates/a/src/lib.rs", &format!("{text}#[cfg(test)]\nmod tests;\n")),
            ("crates/a/src/tests.rs", &tests),
        ]))
    };
    assert!(found(18).is_empty());
    // Of all packages, which is this one.
    assert_eq!(
        found(20)[0].to_string(),
        "crates/*/src: 166 words of comments by 100 lines of code, at most 150"
    );
    assert_eq!(found(22).len(), 2);
    assert_eq!(
        found(22)[1].to_string(),
        "crates/a/src: 183 words of comments by 100 lines of code, at most 170"
    );
}

#[test]
fn the_documents_fit_an_afternoon() {
    crate::holds("markdown bytes", markdown(Sources::repository()));
}

#[test]
fn many_documents_are_noticed() {
    let page = "a".repeat(MARKDOWN_BYTES_MAX / 2);
    assert!(markdown(&Sources::seeded(&[("a.md", &page), ("b.md", &page)])).is_empty());
    assert_eq!(markdown(&Sources::seeded(&[("a.md", &page), ("b.md", &page), ("c.md", "a")])).len(), 1);
}

#[test]
fn sentences_are_short() {
    crate::holds("sentences", sentences(Sources::repository()));
}

#[test]
fn long_sentences_are_noticed() {
    let long = format!("Of{} `code`, and\none more.\n", " words".repeat(18));
    let found = |text: &str| sentences(&Sources::seeded(&[("a.md", text)])).len();
    assert_eq!(found(&long), 1);
    assert_eq!(found(&format!("{long}\n- And a short one.\n")), 0);
    assert_eq!(found(&format!("# Heads and tables\n\n{long}| a. b. c. |\n")), 1);
}
