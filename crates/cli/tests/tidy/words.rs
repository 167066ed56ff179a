//! Check: words that CONTRIBUTING and the glossary replace by others.
//!
//! Prose is comments and markdown without code in backticks. A pattern is words with blanks between
//! them; alternatives have `|`, and `*` stands for any ending. Words of identifiers are their
//! parts: `next_bell` and `NextBell` have the words `next` and `bell`.

use crate::Finding;
use crate::prose;
use crate::sources::Sources;

/// A phrase that is nearly always wrong.
struct Phrase {
    words: &'static str,
    say: &'static str,
    /// Right after one of these.
    not_after: &'static str,
    /// Right before one of these.
    not_before: &'static str,
}

const fn phrase(words: &'static str, say: &'static str) -> Phrase {
    Phrase { words, say, not_after: "", not_before: "" }
}

/// Words that `who` may follow.
const PEOPLE: &str =
    "people|person|reader|readers|user|users|those|anyone|someone|authors|maintainers|developers";

const PHRASES: &[Phrase] = &[
    Phrase { words: "who|whom", say: "the thread that", not_after: PEOPLE, not_before: "" },
    phrase("him|himself", "it"),
    phrase("his|hers", "its"),
    phrase("he|she", "it"),
    phrase("in hands", "holds"),
    phrase("in its|their|his|the hands", "holds"),
    phrase("of the system's", "of the kernel"),
    Phrase { words: "so many", say: "the number", not_after: "", not_before: "that" },
    phrase("what is", "name the thing"),
    phrase("as new", "current"),
    phrase("house|houses|housed|housing", "populate"),
    phrase("evacuat*", "discard"),
    phrase("move|moves|moved|moving down", "demote"),
    phrase("bring|brings|brought|bringing up", "promote"),
    phrase("stripe|stripes|striped", "partition"),
    phrase("laundry", "dirty queue"),
    phrase("census", "verify marks"),
    Phrase { words: "wear|wears|wore", say: "line writes", not_after: "", not_before: "out|off" },
    phrase("upkeep", "maintenance"),
    phrase("bell|bells", "wake-up"),
    Phrase { words: "tend|tends|tended|tending", say: "maintain", not_after: "", not_before: "to" },
    phrase("pump|pumps|pumped|pumping", "advance"),
    phrase("hurried|hurriedly", "urgent"),
    phrase("glance|glances|glanced|glancing", "try_read"),
    phrase("vouch*", "verify the image"),
    Phrase {
        words: "place|places",
        say: "name it: block id, log slot, segment slot, entry, mapping word",
        not_after: "in|take|takes|took|taken|taking|first|decimal|into",
        not_before: "",
    },
];

/// Words that are part of no identifier.
const PARTS: &[(&str, &str)] = &[
    ("stripe|stripes", "partition"),
    ("laundry", "dirty queue"),
    ("census", "verify marks"),
    ("wear", "line writes"),
    ("upkeep", "maintenance"),
    ("bell", "wake-up"),
    ("tend", "maintain"),
    ("pump|pumped", "advance"),
    ("hurried", "urgent"),
    ("glance", "try_read"),
    ("vouch|vouches", "verify image"),
    ("evacuate|evacuated", "discard"),
    ("house|housed|houses", "populate"),
    ("settle", "access in the middle tier"),
    ("place|places", "block id, log slot, segment slot, entry, mapping word"),
];

/// Identifiers that are said otherwise as a whole.
const WHOLE: &[(&str, &str)] = &[
    ("Due", "promotion batch"),
    ("part_with", "detach_copy"),
    ("bring_up|raise_page|raised_pages", "promote"),
    ("go_down|move_down", "demote"),
    ("recall|recalled|Recalled", "lookup"),
    ("remember|remembered", "insert"),
    ("Stop", "Retry"),
    ("Purpose", "ReadReason"),
];

/// Names that one package may give to one type only.
const ONCE: &[&str] = &["Found", "Counts", "Mapped"];

/// Whether `word` is one of the alternatives.
fn is_any(alternatives: &str, word: &str) -> bool {
    alternatives.split('|').any(|alternative| match alternative.strip_suffix('*') {
        Some(beginning) => word.starts_with(beginning),
        None => alternative == word,
    })
}

impl Phrase {
    /// The number of words at `at` that are this phrase.
    fn fits(&self, words: &[(usize, String)], at: usize) -> bool {
        let word = |at: usize| words.get(at).map_or("", |(_, word)| word.as_str());
        let mut length = 0;
        for alternatives in self.words.split(' ') {
            if !is_any(alternatives, word(at + length)) {
                return false;
            }
            length += 1;
        }
        let is_right_after = at > 0 && !self.not_after.is_empty() && is_any(self.not_after, word(at - 1));
        let is_right_before = !self.not_before.is_empty() && is_any(self.not_before, word(at + length));
        !is_right_after && !is_right_before
    }
}

pub fn phrases(sources: &Sources) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in sources.files.iter().filter(|file| file.rust.is_some() || file.is_markdown()) {
        for paragraph in prose::paragraphs(file) {
            let words: Vec<_> = paragraph.iter().map(|(line, word)| (*line, prose::bare(word))).collect();
            for at in 0..words.len() {
                for phrase in PHRASES.iter().filter(|phrase| phrase.fits(&words, at)) {
                    let length = phrase.words.split(' ').count();
                    let found: Vec<_> =
                        words[at..at + length].iter().map(|(_, word)| word.as_str()).collect();
                    let sentence = format!("\"{}\": {}", found.join(" "), phrase.say);
                    findings.push(Finding::at(&file.path, words[at].0, sentence));
                }
            }
        }
    }
    findings
}

/// The words of an identifier, in lower case.
fn parts(identifier: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut was_lower = false;
    for letter in identifier.chars() {
        if letter == '_' || (letter.is_uppercase() && was_lower) {
            parts.push(String::new());
        }
        was_lower = !letter.is_uppercase() && letter != '_';
        if letter != '_' {
            parts.last_mut().expect("one was begun").extend(letter.to_lowercase());
        }
    }
    parts
}

/// The word to use instead of a part or the whole of an identifier.
fn instead(identifier: &str) -> Option<&'static str> {
    let whole = WHOLE.iter().find(|(words, _)| is_any(words, identifier));
    let parts = parts(identifier);
    let part = || {
        PARTS.iter().find(|(words, _)| {
            let is_idiom = |at: usize| at > 0 && parts[at] == "place" && parts[at - 1] == "in";
            (0..parts.len()).any(|at| is_any(words, &parts[at]) && !is_idiom(at))
        })
    };
    whole.or_else(part).map(|(_, say)| *say)
}

pub fn identifiers(sources: &Sources) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (file, rust) in sources.rust() {
        for (identifier, line) in &rust.lexed.identifiers {
            if let Some(say) = instead(identifier) {
                findings.push(Finding::at(&file.path, *line, format!("`{identifier}`: {say}")));
            }
        }
    }
    for package in sources.packages() {
        for name in ONCE {
            let files = sources.product().filter(|(_, _, module)| module.package == package);
            let structs =
                files.flat_map(|(file, rust, _)| rust.outline.structs.iter().map(move |found| (file, found)));
            let named: Vec<_> = structs.filter(|(_, found)| found.name == *name).collect();
            if let [_, others @ ..] = &named[..] {
                let sentence = format!("`{name}` is the name of {} types of {package}", named.len());
                findings.extend(
                    others.iter().map(|(file, found)| Finding::at(&file.path, found.line, sentence.clone())),
                );
            }
        }
    }
    findings
}

#[test]
fn prose_has_the_words_of_the_glossary() {
    crate::holds("words", phrases(Sources::repository()));
}

#[test]
fn a_forbidden_word_is_noticed() {
    let code = "/// Held by\n/// who waits, in `who` and in place.\nfn f() {} // so many\n";
    let page = "People who read this tend to stop.\n\nA frame moves\ndown. The upkeep's bell\n\n    who\n";
    let sources = Sources::seeded(&[("a.md", page), ("crates/a/src/lib.rs", code)]);
    let found: Vec<_> = phrases(&sources).iter().map(ToString::to_string).collect();
    assert_eq!(
        found,
        [
            "a.md:3: \"moves down\": demote",
            "a.md:4: \"bell\": wake-up",
            "crates/a/src/lib.rs:2: \"who\": the thread that",
            "crates/a/src/lib.rs:3: \"so many\": the number",
        ]
    );
}

#[test]
fn identifiers_have_the_words_of_the_glossary() {
    crate::holds("identifiers", identifiers(Sources::repository()));
}

#[test]
fn a_forbidden_identifier_is_noticed() {
    let code = "struct NextBell;\nfn wear_of(in_place: u8, replace: u8) {}\nfn part_with() {}\nfn doorbell() {}\n\
                mod a { struct Found; }\nstruct Found;\n";
    let found: Vec<_> = identifiers(&Sources::seeded(&[("crates/a/src/lib.rs", code)]))
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        found,
        [
            "crates/a/src/lib.rs:1: `NextBell`: wake-up",
            "crates/a/src/lib.rs:3: `part_with`: detach_copy",
            "crates/a/src/lib.rs:2: `wear_of`: line writes",
            "crates/a/src/lib.rs:6: `Found` is the name of 2 types of a",
        ]
    );
}
