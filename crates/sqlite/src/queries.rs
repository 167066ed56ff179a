//! Statements on a database, as queries for the cache policy and the trace.
//!
//! Tables and indexes of a statement are cached by its text, as hints: a schema change discards
//! them, but one by another process may go unnoticed.

use std::collections::HashMap;

use terrace_cache::policy::Relation;

/// Limit of cached texts; beyond it all are dropped.
const TEXTS_MAX: usize = 256;

/// Attempts to explain a text; some, such as an `EXPLAIN`, always fail.
const TRIES_MAX: u8 = 3;

/// Limit of running statements that are tracked.
const RUNNING_MAX: usize = 256;

/// Longest name of a statement in a trace.
const NAME_BYTES_MAX: usize = 32;

/// Answer to which tables and indexes a statement uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Roots {
    /// Not asked: known already.
    Known,
    /// Their root pages.
    Told(Vec<u32>),
    /// SQLite could not tell.
    Untold,
}

#[derive(Debug, Default)]
struct Uses {
    relations: Box<[Relation]>,
    /// Failed attempts; 0 after an answer.
    tries: u8,
}

#[derive(Debug, Default)]
pub(crate) struct Queries {
    uses: HashMap<Box<str>, Uses>,
    /// Query numbers by the address of the running statement.
    running: HashMap<usize, u32>,
    begun: u32,
    schema: Option<[u8; 4]>,
}

impl Queries {
    /// Whether SQLite need not be asked about this text.
    pub fn knows(&self, text: &str) -> bool {
        self.uses.get(text).is_some_and(|uses| uses.tries == 0 || uses.tries >= TRIES_MAX)
    }

    /// Stores SQLite's answer for this text.
    pub fn learn(&mut self, text: &str, roots: &Roots) {
        if *roots == Roots::Known {
            return;
        }
        if self.uses.len() >= TEXTS_MAX && !self.uses.contains_key(text) {
            self.uses.clear();
        }
        let uses = self.uses.entry(text.into()).or_default();
        match roots {
            Roots::Told(roots) => {
                *uses = Uses { relations: roots.iter().copied().map(Relation).collect(), tries: 0 };
            }
            _ => uses.tries = uses.tries.saturating_add(1),
        }
    }

    /// Starts a statement.
    ///
    /// Returns its number, the number of an earlier run at this address that did not end, and its
    /// tables and indexes.
    pub fn begin(&mut self, statement: usize, text: &str) -> (u32, Option<u32>, &[Relation]) {
        if self.running.len() >= RUNNING_MAX {
            self.running.clear();
        }
        self.begun = self.begun.wrapping_add(1) & (u32::MAX >> 1);
        let before = self.running.insert(statement, self.begun);
        (self.begun, before, self.uses.get(text).map_or(&[], |uses| &uses.relations))
    }

    /// Ends a statement; returns its number if it was tracked.
    pub fn end(&mut self, statement: usize) -> Option<u32> {
        self.running.remove(&statement)
    }

    pub fn begun(&self) -> u32 {
        self.begun
    }

    /// Notes the schema version of the first page.
    pub fn saw_schema(&mut self, version: [u8; 4]) {
        if self.schema.replace(version).is_some_and(|before| before != version) {
            self.uses.clear();
        }
    }
}

/// Name in a trace: the leading comment, or first word and checksum.
pub(crate) fn name_of(text: &str) -> String {
    let text = text.trim_start();
    let comment = text.strip_prefix("/*").and_then(|rest| rest.split_once("*/"));
    let comment = comment.map(|(comment, _)| comment.trim()).filter(|comment| !comment.is_empty());
    let mut name = comment.map_or_else(
        || {
            let word = text.split(|letter: char| !letter.is_ascii_alphabetic()).next().unwrap_or("");
            let sum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32IsoHdlc, text.as_bytes());
            format!("{}-{sum:08x}", word.to_ascii_lowercase())
        },
        str::to_owned,
    );
    let end = (0..=NAME_BYTES_MAX.min(name.len())).rev().find(|&end| name.is_char_boundary(end)).unwrap_or(0);
    name.truncate(end);
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_statement_uses_is_known_until_the_schema_changes() {
        let mut queries = Queries::default();
        queries.saw_schema([1; 4]);
        queries.learn("select", &Roots::Told(vec![2, 3]));
        assert_eq!(queries.begin(70, "select"), (1, None, &[Relation(2), Relation(3)][..]));
        assert_eq!(queries.begin(70, "insert"), (2, Some(1), &[][..]));
        assert_eq!((queries.end(70), queries.end(70)), (Some(2), None));
        queries.saw_schema([1; 4]);
        assert!(queries.knows("select"));
        queries.saw_schema([2; 4]);
        assert!(!queries.knows("select"));
    }

    #[test]
    fn what_could_not_be_told_is_asked_for_again_a_few_times() {
        let mut queries = Queries::default();
        for _ in 0..TRIES_MAX {
            assert!(!queries.knows("select"));
            queries.learn("select", &Roots::Untold);
            assert_eq!(queries.begin(70, "select").2, &[]);
        }
        assert!(queries.knows("select"), "no more");
        queries.learn("insert", &Roots::Untold);
        queries.learn("insert", &Roots::Told(vec![4]));
        queries.learn("insert", &Roots::Known);
        assert!(queries.knows("insert"));
        assert_eq!(queries.begin(70, "insert").2, &[Relation(4)]);
    }

    #[test]
    fn no_number_of_statements_takes_more_memory() {
        let mut queries = Queries::default();
        for number in 0..10 * TEXTS_MAX {
            queries.learn(&number.to_string(), &Roots::Told(vec![1]));
            queries.begin(number, &number.to_string());
        }
        assert!(queries.uses.len() <= TEXTS_MAX && queries.running.len() <= RUNNING_MAX);
    }

    #[test]
    fn names_are_short() {
        assert_eq!(name_of("/* q3 */ select 1"), "q3");
        assert!(name_of(" SELECT 1").starts_with("select-"));
        assert_ne!(name_of("select 1"), name_of("select 2"));
        assert_eq!(name_of(&format!("/*{}*/", "ä".repeat(20))).len(), 32);
        assert!(name_of("").starts_with('-'));
    }
}
