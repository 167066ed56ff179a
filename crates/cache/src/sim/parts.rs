//! Counts by query and by relation.
//!
//! The request loop ignores these: it runs over stretches of one query, and of one relation if
//! these are counted, and the difference of its counts is added here.

use std::collections::BTreeMap;
use std::ops::Range;

use super::chunk::Chunk;
use super::counts::Counts;

/// Counts of one query or relation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its number; `None` for requests without one.
    pub number: Option<u32>,
    /// The counts.
    pub counts: Counts,
}

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

    pub(super) fn query(&mut self, query: Option<u32>) {
        self.query = query;
    }

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

    /// By query and by relation, in order of number; empty if not requested.
    pub(super) fn finish(self) -> (Vec<Part>, Vec<Part>) {
        let parts = |counts: Option<BTreeMap<Option<u32>, Counts>>| {
            let counts = counts.unwrap_or_default().into_iter();
            counts.map(|(number, counts)| Part { number, counts }).collect()
        };
        (parts(self.queries), parts(self.relations))
    }
}
