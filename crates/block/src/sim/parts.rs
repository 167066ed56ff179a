//! Counts by query and by relation.
//!
//! The loop over requests knows nothing of these: it is run over stretches of requests of one query, and, where
//! relations are counted, of one relation, and what it counted in between is added to theirs.

use std::collections::BTreeMap;
use std::ops::Range;

use super::cache::Counts;
use super::chunk::Chunk;

/// Counts of the requests of one query or relation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The number of the query or relation; `None` for requests of none.
    pub number: Option<u32>,
    /// What happened.
    pub counts: Counts,
}

/// What is counted apart.
#[derive(Clone, Debug, Default)]
pub(super) struct Parts {
    queries: Option<BTreeMap<Option<u32>, Counts>>,
    relations: Option<BTreeMap<Option<u32>, Counts>>,
    query: Option<u32>,
}

impl Parts {
    pub(super) fn new(by_query: bool, by_relation: bool) -> Parts {
        Parts {
            queries: by_query.then(BTreeMap::new),
            relations: by_relation.then(BTreeMap::new),
            query: None,
        }
    }

    pub(super) fn is_asked_for(&self) -> bool {
        self.queries.is_some() || self.relations.is_some()
    }

    /// The requests from here on are of this query.
    pub(super) fn query(&mut self, query: Option<u32>) {
        self.query = query;
    }

    /// The stretches of a range that are of one relation; all of it where relations are not counted.
    pub(super) fn runs(&self, chunk: &Chunk, range: Range<usize>) -> Vec<(Option<u32>, Range<usize>)> {
        if range.is_empty() {
            return Vec::new();
        }
        if self.relations.is_none() || !chunk.has_relations {
            return vec![(None, range)];
        }
        let mut runs: Vec<(Option<u32>, Range<usize>)> = Vec::new();
        for (index, request) in range.clone().zip(chunk.requests(range)) {
            let relation = Some((request.block >> 32) as u32);
            match runs.last_mut() {
                Some((last, run)) if *last == relation => run.end = index + 1,
                _ => runs.push((relation, index..index + 1)),
            }
        }
        runs
    }

    /// Adds what happened in a run.
    pub(super) fn add(&mut self, relation: Option<u32>, counts: &Counts) {
        if let Some(queries) = &mut self.queries {
            let sum = queries.entry(self.query).or_default();
            *sum = sum.plus(counts);
        }
        if let Some(relations) = &mut self.relations {
            let sum = relations.entry(relation).or_default();
            *sum = sum.plus(counts);
        }
    }

    /// By query and by relation, in the order of their numbers; empty where not asked for.
    pub(super) fn finish(self) -> (Vec<Part>, Vec<Part>) {
        let parts = |counts: Option<BTreeMap<Option<u32>, Counts>>| {
            let counts = counts.unwrap_or_default().into_iter();
            counts.map(|(number, counts)| Part { number, counts }).collect()
        };
        (parts(self.queries), parts(self.relations))
    }
}
