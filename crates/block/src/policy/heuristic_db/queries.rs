//! The query profile queue (paper 002, section 5.1): the relations a query requires, and the hits since it began.
//!
//! The paper's queue has two places, one of which is the query being submitted; what has to be kept is the other. Queries
//! may run at the same time; a hit counts for the one submitted last. Rule 7.2 wants to know which others run: those
//! that have begun and not ended, at most [`RUNNING_MAX`] of them, so that a caller who never tells of an end
//! costs no more than that.

use std::collections::VecDeque;

use crate::policy::Relation;

/// Queries taken for running at a time; the oldest gives way.
const RUNNING_MAX: usize = 64;

/// What rule 6 wants done with the cached blocks when a query is submitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// The cached blocks gave no hits, and the queries share these relations.
    Evict { hot: Vec<Relation> },
    /// All other cases.
    Demote,
}

/// The profile of the query submitted last, if there was one, and the relations of those that run.
#[derive(Clone, Debug, Default)]
pub(super) struct Queries {
    last: Option<Profile>,
    /// Oldest first.
    running: VecDeque<(u64, Vec<Relation>)>,
}

#[derive(Clone, Debug)]
struct Profile {
    /// Sorted.
    relations: Vec<Relation>,
    hits: u64,
}

impl Queries {
    /// Counts a hit for the last query.
    pub fn hit(&mut self) {
        if let Some(last) = &mut self.last {
            last.hits += 1;
        }
    }

    /// A query that requires `relations` is submitted.
    pub fn begin(&mut self, query: u64, relations: &[Relation]) -> Change {
        self.end(query);
        if self.running.len() == RUNNING_MAX {
            self.running.pop_front();
        }
        self.running.push_back((query, relations.to_vec()));
        let mut sorted = relations.to_vec();
        sorted.sort_unstable();
        let Some(last) = self.last.replace(Profile { relations: sorted, hits: 0 }) else {
            return Change::Demote;
        };
        let is_shared = |relation: &Relation| last.relations.binary_search(relation).is_ok();
        let hot: Vec<_> = relations.iter().copied().filter(is_shared).collect();
        if last.hits == 0 && !hot.is_empty() { Change::Evict { hot } } else { Change::Demote }
    }

    /// A query is over.
    pub fn end(&mut self, query: u64) {
        self.running.retain(|(running, _)| *running != query);
    }

    /// The relations of the queries that run, query by query.
    pub fn running(&self) -> impl Iterator<Item = &[Relation]> {
        self.running.iter().map(|(_, relations)| relations.as_slice())
    }
}

#[cfg(test)]
mod tests {
    use super::{Change, Queries, RUNNING_MAX};
    use crate::policy::Relation;

    #[test]
    fn eviction_needs_no_hits_and_a_shared_relation() {
        let [a, b, c] = [1, 2, 3].map(Relation);
        let mut queries = Queries::default();
        queries.hit();
        assert_eq!(queries.begin(1, &[a, b]), Change::Demote, "nothing to compare with");
        assert_eq!(queries.begin(2, &[c, b]), Change::Evict { hot: vec![b] });
        queries.hit();
        assert_eq!(queries.begin(3, &[b, c]), Change::Demote, "a hit");
        assert_eq!(queries.begin(4, &[a]), Change::Demote, "nothing shared");
    }

    #[test]
    fn queries_run_until_they_end_and_not_without_bound() {
        let mut queries = Queries::default();
        for query in 0..1000 {
            queries.begin(query, &[Relation(query as u32)]);
        }
        assert_eq!(queries.running().count(), RUNNING_MAX);
        queries.end(999);
        queries.end(0);
        let last = queries.running().last().map(<[Relation]>::to_vec);
        assert_eq!((queries.running().count(), last), (RUNNING_MAX - 1, Some(vec![Relation(998)])));
        queries.begin(998, &[Relation(7)]);
        assert_eq!(queries.running().count(), RUNNING_MAX - 1, "a query runs once");
    }
}
