//! The query profile queue (HeuristicDB, section 5.1).
//!
//! Queries may run concurrently; a lookup counts for the last submitted. Rule 7.2 needs the running
//! queries: begun and not ended, at most [`RUNNING_MAX`], so a caller that reports no end costs
//! little.
//!
//! A short query proves nothing by its misses, so the caller sets the lookups for a judgement.
//! Shorter queries are judged together, back to the last judgement, and cause no demotion.

use std::collections::VecDeque;

use crate::policy::Relation;

/// Most running queries; the oldest is dropped.
const RUNNING_MAX: usize = 64;

/// Rule 6's effect on the cached blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// No hits in enough lookups; the queries share relations `hot`.
    Evict { hot: Vec<Relation> },
    /// There were hits, or no shared relations.
    Demote,
    /// The last query was too short to judge.
    Keep,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Queries {
    last: Option<Profile>,
    /// Of all queries since a judgement, except the last.
    unjudged: Benefit,
    /// Oldest first.
    running: VecDeque<(u64, Vec<Relation>)>,
}

#[derive(Clone, Debug)]
struct Profile {
    /// Sorted.
    relations: Vec<Relation>,
    benefit: Benefit,
}

#[derive(Clone, Copy, Debug, Default)]
struct Benefit {
    look_ups: u64,
    hits: u64,
}

impl Queries {
    pub fn look_up(&mut self, is_hit: bool) {
        if let Some(last) = &mut self.last {
            last.benefit.look_ups += 1;
            last.benefit.hits += u64::from(is_hit);
        }
    }

    /// A query requires `relations`; a judgement needs `judged_look_ups`.
    pub fn begin(&mut self, query: u64, relations: &[Relation], judged_look_ups: u64) -> Change {
        self.end(query);
        if self.running.len() == RUNNING_MAX {
            self.running.pop_front();
        }
        self.running.push_back((query, relations.to_vec()));
        let mut sorted = relations.to_vec();
        sorted.sort_unstable();
        let profile = Profile { relations: sorted, benefit: Benefit::default() };
        let Some(last) = self.last.replace(profile) else {
            return Change::Demote;
        };
        let mut benefit = last.benefit;
        if benefit.look_ups < judged_look_ups {
            benefit.look_ups += self.unjudged.look_ups;
            benefit.hits += self.unjudged.hits;
        }
        if benefit.look_ups < judged_look_ups {
            self.unjudged = benefit;
            return Change::Keep;
        }
        self.unjudged = Benefit::default();
        let is_shared = |relation: &Relation| last.relations.binary_search(relation).is_ok();
        let hot: Vec<_> = relations.iter().copied().filter(is_shared).collect();
        match benefit.hits {
            0 if !hot.is_empty() => Change::Evict { hot },
            _ if last.benefit.look_ups < judged_look_ups => Change::Keep,
            _ => Change::Demote,
        }
    }

    pub fn end(&mut self, query: u64) {
        self.running.retain(|(running, _)| *running != query);
    }

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
        queries.look_up(true);
        assert_eq!(queries.begin(1, &[a, b], 0), Change::Demote, "nothing to compare with");
        assert_eq!(queries.begin(2, &[c, b], 0), Change::Evict { hot: vec![b] });
        queries.look_up(true);
        assert_eq!(queries.begin(3, &[b, c], 0), Change::Demote, "a hit");
        assert_eq!(queries.begin(4, &[a], 0), Change::Demote, "nothing shared");
    }

    #[test]
    fn short_queries_are_judged_together() {
        let (a, evict) = (Relation(1), Change::Evict { hot: vec![Relation(1)] });
        let mut queries = Queries::default();
        let mut run = |look_ups, hits| {
            (0..look_ups).for_each(|look_up| queries.look_up(look_up < hits));
            queries.begin(1, &[a], 10)
        };
        assert_eq!(run(0, 0), Change::Demote, "nothing to compare with");
        assert_eq!([run(4, 0), run(5, 0)], [Change::Keep, Change::Keep], "too few look-ups");
        assert_eq!(run(1, 0), evict, "ten without a hit");
        assert_eq!([run(4, 1), run(5, 0), run(1, 0)], [Change::Keep, Change::Keep, Change::Keep], "one hit");
        assert_eq!([run(9, 0), run(9, 0)], [Change::Keep, evict.clone()], "judged anew");
        assert_eq!([run(9, 9), run(10, 0), run(10, 1)], [Change::Keep, evict, Change::Demote], "long ones");
    }

    #[test]
    fn queries_run_until_they_end_and_not_without_bound() {
        let mut queries = Queries::default();
        for query in 0..1000 {
            queries.begin(query, &[Relation(query as u32)], 0);
        }
        assert_eq!(queries.running().count(), RUNNING_MAX);
        queries.end(999);
        queries.end(0);
        let last = queries.running().last().map(<[Relation]>::to_vec);
        assert_eq!((queries.running().count(), last), (RUNNING_MAX - 1, Some(vec![Relation(998)])));
        queries.begin(998, &[Relation(7)], 0);
        assert_eq!(queries.running().count(), RUNNING_MAX - 1, "a query runs once");
    }
}
